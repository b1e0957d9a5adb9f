//! How often sleepers are rung for deaths: at once as long as there are few, some together where there are many. A ring for a
//! death wakes all that sleep, so a process that attaches and leaves without end, a VM that reports deaths without end, or the
//! end of a job with hundreds of ranks must not lead to as many of them.

use std::time::{Duration, Instant};

/// So many go through at once.
const BURST: u32 = 16;
/// After these, one in so long.
const EVERY: Duration = Duration::from_millis(5);

/// Decides for each death whether to ring at once.
#[derive(Debug)]
pub struct Pace {
    /// Rings that may be made at once, as of `refilled`.
    left: u32,
    refilled: Instant,
    /// Whether a death waits to be rung for.
    waits: bool,
}

impl Pace {
    /// With all of the burst left.
    pub fn new(now: Instant) -> Self {
        Self { left: BURST, refilled: now, waits: false }
    }

    /// Notes a death. Returns whether to ring now; if not, [`Pace::is_due`] will tell.
    pub fn comes(&mut self, now: Instant) -> bool {
        self.waits = true;
        self.is_due(now)
    }

    /// Whether to ring now for what was noted. Returns true once.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let periods = now.saturating_duration_since(self.refilled).as_nanos() / EVERY.as_nanos();
        if periods >= u128::from(BURST - self.left) {
            (self.left, self.refilled) = (BURST, now);
        } else if let Ok(periods) = u32::try_from(periods) {
            self.left += periods;
            self.refilled += EVERY * periods;
        }
        let due = self.waits && self.left > 0;
        if due {
            self.waits = false;
            self.left -= 1;
        }
        due
    }

    /// How long until [`Pace::is_due`] is to be asked again; never if nothing waits.
    pub fn due_in(&self, now: Instant) -> Option<Duration> {
        self.waits.then(|| (self.refilled + EVERY).saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_rung_for_at_once() {
        let begun = Instant::now();
        let mut pace = Pace::new(begun);
        for i in 0..1000 {
            assert!(pace.comes(begun + EVERY * i));
            assert_eq!(pace.due_in(begun + EVERY * i), None);
        }
        let now = begun + EVERY * 2000;
        assert_eq!((0..BURST).filter(|_| pace.comes(now)).count(), BURST as usize);
    }

    #[test]
    fn many_are_rung_for_together_and_none_is_forgotten() {
        let begun = Instant::now();
        let mut pace = Pace::new(begun);
        let (mut rings, mut now) = (0, begun);
        for _ in 0..10_000 {
            now += Duration::from_micros(100);
            rings += u32::from(pace.comes(now));
        }
        // One second: the burst, and one in each 5 ms.
        assert!((190..=BURST + 200).contains(&rings), "{rings}");
        while let Some(wait) = pace.due_in(now) {
            assert!(wait <= EVERY);
            now += wait;
            assert!(pace.is_due(now));
        }
        assert!(!pace.is_due(now + EVERY), "the last ring was for all");
    }
}
