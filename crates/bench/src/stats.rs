//! Medians and ratios.

/// The median, the mean of the two middle ones if their number is even; `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[half]),
        _ => Some((sorted[half - 1] + sorted[half]) / 2.0),
    }
}

/// The median over rounds of `subject / peer`, each pair taken from one round.
///
/// Pairs, since the machine changes between rounds (where the host puts its virtual processors, what else
/// runs) and what changes for both at once should not show in their ratio.
pub fn paired_ratio(subject: &[f64], peer: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = subject
        .iter()
        .zip(peer)
        .filter(|(_, peer)| **peer > 0.0)
        .map(|(subject, peer)| subject / peer)
        .collect();
    median(&ratios)
}

/// The machine's load over the last minute.
pub fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        // Medians of both sides are equal, and yet the subject takes twice as long in two rounds of three.
        assert_eq!(paired_ratio(&[2.0, 4.0, 1.0], &[1.0, 2.0, 4.0]), Some(2.0));
        assert_eq!(paired_ratio(&[1.0], &[0.0]), None);
    }
}
