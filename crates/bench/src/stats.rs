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

/// The ratios `subject / peer` of those rounds that have both, each pair taken from one round.
///
/// Pairs, since the machine changes between rounds (where the host puts its virtual processors, what else
/// runs) and what changes for both at once should not show in their ratio.
pub fn pairs(subject: &[Option<f64>], peer: &[Option<f64>]) -> Vec<f64> {
    subject
        .iter()
        .zip(peer)
        .filter_map(|(subject, peer)| Some(((*subject)?, (*peer)?)))
        .filter(|(_, peer)| *peer > 0.0)
        .map(|(subject, peer)| subject / peer)
        .collect()
}

/// Where a median lies with a probability of 95 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

/// How often the rounds are drawn again for an interval.
const DRAWS: usize = 4000;
/// Where the generator of these draws begins: the same rounds always give the same interval.
const SEED: u64 = 0x2545_f491_4f6c_dd1d;

/// Numbers that look random, always the same ones: Marsaglia's xorshift, multiplied as Vigna does.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(SEED) >> 32;
        // Below `bound`, a count of rounds.
        usize::try_from((high * bound as u64) >> 32).unwrap_or(0)
    }
}

/// Rounds from which on their range holds the median with 95 % or more: it does with 1 - 2^(1 - rounds).
const ENOUGH: usize = 6;

/// The 95 % bootstrap interval of the median of `values`: as many of them are drawn again and again, each of them with equal
/// chance each time, and of the medians the middle 95 % are taken. Of fewer than 6 it is their range, which holds the median
/// less surely (2 values: 50 %, 3: 75 %, 5: 94 %). `None` of fewer than two.
pub fn interval(values: &[f64]) -> Option<Interval> {
    if values.len() < 2 {
        return None;
    }
    if values.len() < ENOUGH {
        let low = values.iter().copied().min_by(f64::total_cmp)?;
        return Some(Interval { low, high: values.iter().copied().max_by(f64::total_cmp)? });
    }
    let mut draws = Draws(SEED);
    let mut drawn = vec![0.0; values.len()];
    let mut medians: Vec<f64> = (0..DRAWS)
        .filter_map(|_| {
            drawn.iter_mut().for_each(|value| *value = values[draws.below(values.len())]);
            median(&drawn)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let cut = DRAWS / 40;
    Some(Interval { low: medians[cut], high: medians[DRAWS - 1 - cut] })
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
    fn ratios_are_taken_within_rounds_that_have_both() {
        // Medians of both sides are equal, and yet the subject takes twice as long in two rounds of three.
        let some = |values: [f64; 3]| values.map(Some);
        assert_eq!(median(&pairs(&some([2.0, 4.0, 1.0]), &some([1.0, 2.0, 4.0]))), Some(2.0));
        assert_eq!(pairs(&[Some(1.0), None, Some(6.0)], &[Some(0.0), Some(1.0), Some(2.0)]), [3.0]);
    }

    #[test]
    fn an_interval_is_always_the_same_and_holds_the_median() {
        let values: Vec<f64> = (1..=21).map(f64::from).collect();
        let found = interval(&values).unwrap();
        assert_eq!(interval(&values), Some(found));
        // The exact one of the binomial distribution is from the 6th to the 16th of 21.
        assert!((6.0..=7.0).contains(&found.low) && (15.0..=16.0).contains(&found.high), "{found:?}");
        assert_eq!(interval(&[2.0; 7]), Some(Interval { low: 2.0, high: 2.0 }));
        assert_eq!(interval(&[2.0]), None);
    }

    #[test]
    fn an_interval_covers_the_true_median_about_as_often_as_it_says() {
        // 200 times 21 draws from an even distribution around 1.
        let mut draws = Draws(7);
        let mut covered = 0;
        for _ in 0..200 {
            let values: Vec<f64> =
                (0..21).map(|_| 0.5 + draws.below(1 << 20) as f64 / f64::from(1 << 20)).collect();
            let found = interval(&values).unwrap();
            covered += usize::from(found.low <= 1.0 && 1.0 <= found.high);
        }
        assert!((180..=200).contains(&covered), "{covered} of 200");
    }
}
