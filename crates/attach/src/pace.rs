//! How often something is done that many are woken for: at once as long as it is seldom, some together where it is not. A ring for a
//! death wakes all that sleep, so a process that attaches and leaves without end, a VM that reports deaths without end, or the
//! end of a job with hundreds of ranks must not lead to as many of them. So it is with rounds that a VM asks for, in which all services
//! look at their processes.

use std::time::{Duration, Instant};

/// How many go through at once, and after these one in how long.
type Rate = (u32, Duration);

/// Rings for the deaths of a service's own processes.
const OWN: Rate = (16, Duration::from_millis(5));
/// Rings for the deaths that a VM reports, each of which wakes all other systems.
const OF_VM: Rate = (32, Duration::from_millis(25));
/// Rounds of all services that a VM asks for.
const ROUNDS: Rate = (256, Duration::from_millis(10));

/// Decides each time whether to do it at once.
#[derive(Debug)]
pub struct Pace {
    burst: u32,
    every: Duration,
    /// So many may go through at once, as of `refilled`.
    left: u32,
    refilled: Instant,
    /// Whether one waits to be done.
    waits: bool,
}

impl Pace {
    fn new((burst, every): Rate, now: Instant) -> Self {
        Self { burst, every, left: burst, refilled: now, waits: false }
    }

    /// Of the deaths of a service's own processes.
    pub fn of_own_deaths(now: Instant) -> Self {
        Self::new(OWN, now)
    }

    /// Of the deaths that a VM reports.
    pub fn of_deaths_behind(now: Instant) -> Self {
        Self::new(OF_VM, now)
    }

    /// Of the rounds that a VM asks for.
    pub fn of_rounds(now: Instant) -> Self {
        Self::new(ROUNDS, now)
    }

    /// Notes one. Returns whether to do it now; if not, [`Pace::is_due`] will tell.
    pub fn comes(&mut self, now: Instant) -> bool {
        self.waits = true;
        self.is_due(now)
    }

    /// Whether to do now what was noted. Returns true once.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let periods = now.saturating_duration_since(self.refilled).as_nanos() / self.every.as_nanos();
        if periods >= u128::from(self.burst - self.left) {
            (self.left, self.refilled) = (self.burst, now);
        } else if let Ok(periods) = u32::try_from(periods) {
            self.left += periods;
            self.refilled += self.every * periods;
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
        self.waits.then(|| (self.refilled + self.every).saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_go_through_at_once() {
        for (rate, begun) in [OWN, OF_VM, ROUNDS].map(|rate| (rate, Instant::now())) {
            let (burst, every) = rate;
            let mut pace = Pace::new(rate, begun);
            for i in 0..1000 {
                assert!(pace.comes(begun + every * i));
                assert_eq!(pace.due_in(begun + every * i), None);
            }
            let now = begun + every * 2000;
            assert_eq!((0..burst).filter(|_| pace.comes(now)).count(), burst as usize);
        }
    }

    #[test]
    fn many_go_through_together_and_none_is_forgotten() {
        for rate in [OWN, OF_VM, ROUNDS] {
            let (burst, every) = rate;
            let begun = Instant::now();
            let mut pace = Pace::new(rate, begun);
            let (mut done, mut now) = (0, begun);
            for _ in 0..10_000 {
                now += Duration::from_micros(100);
                done += u32::from(pace.comes(now));
            }
            // One second: the burst, and one in each period.
            let periods = u32::try_from(Duration::from_secs(1).as_nanos() / every.as_nanos()).unwrap();
            assert!((burst + periods - 10..=burst + periods).contains(&done), "{done}");
            while let Some(wait) = pace.due_in(now) {
                assert!(wait <= every);
                now += wait;
                assert!(pace.is_due(now));
            }
            assert!(!pace.is_due(now + every), "the last was for all");
        }
    }
}
