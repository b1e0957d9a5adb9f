//! Waiting: for others to be done, and so that others can be.
//!
//! Two kinds. Who finds a lock taken has to wait for its holder, and does so until that is over ([`Wait`]): first on the
//! processor, then giving it away, then asleep.
//!
//! Who fails to change a word since another changed it first has nobody to wait for, and could try again at once. But each
//! try takes the word's line from whoever has it, so that all are slower the more they try, and most tries fail. Whoever has
//! the line makes a change in some tens of nanoseconds; so it is best that one makes many changes while the others leave it
//! alone, and that they take turns. [`Backoff`] does that without any shared word: who fails waits for a random time around
//! its *level*, which doubles with each failure and shrinks by a 32nd with each success. So the level settles where one in
//! fifty or so fails, whatever the number of threads and the price of a line; and as a level has an effect only
//! after a failure, threads that meet nobody wait for nobody, however high theirs was.
//!
//! No clock is read while spinning: hints are counted, and what one takes is measured once per process.

use std::hint::spin_loop;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// The level after the first failure, in nanoseconds.
const LEVEL_MIN: u32 = 250;
/// The highest level.
const LEVEL_MAX: u32 = 100_000;
/// A success takes this part of the level away: one by 2^.
const FALL: u32 = 5;
/// Waits that are longer give the processor away, where there may be others for it.
const LONG: u32 = 4_000;

/// Spin hints in 1,024 ns, measured once: they take from 4 ns to 280 ns (under emulation).
fn hints_per_1024_ns() -> u32 {
    static HINTS: OnceLock<u32> = OnceLock::new();
    *HINTS.get_or_init(|| {
        const COUNT: u32 = 256;
        // The fastest of a few: any of them may be interrupted.
        let measure = |_| {
            let begun = Instant::now();
            (0..COUNT).for_each(|_| spin_loop());
            begun.elapsed().as_nanos()
        };
        let best = (0..4).map(measure).min().unwrap_or(1).clamp(64, 1 << 20);
        u32::try_from(u128::from(COUNT) * 1024 / best).unwrap_or(1).clamp(1, 1024)
    })
}

/// Stays on the processor for about so long.
fn spin(nanoseconds: u32) {
    let hints = u64::from(nanoseconds) * u64::from(hints_per_1024_ns()) / 1024;
    (0..=hints).for_each(|_| spin_loop());
}

/// A thread's memory of how much it was in others' way lately.
#[derive(Debug)]
pub(crate) struct Backoff {
    /// Around how long a failure is waited after, in nanoseconds.
    level: u32,
    random: u64,
}

impl Backoff {
    /// `seed` differs from thread to thread.
    pub(crate) fn new(seed: u64) -> Self {
        Self { level: 0, random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 }
    }

    /// From `low` to below `2 * low`.
    fn around(&mut self, low: u32) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        #[allow(clippy::cast_possible_truncation)] // below the factor
        let more = (((self.random >> 32) * u64::from(low)) >> 32) as u32;
        low + more
    }

    /// A change was made.
    #[inline]
    pub(crate) fn succeeded(&mut self) {
        self.level -= self.level >> FALL;
    }

    /// Somebody else had changed the word: waits. `crowded`: there are more committers than processors.
    #[cold]
    pub(crate) fn failed(&mut self, crowded: bool) {
        self.level = (self.level * 2).clamp(LEVEL_MIN, LEVEL_MAX);
        let wait = self.around(self.level);
        match crowded && wait >= LONG {
            true => thread::sleep(Duration::from_nanos(u64::from(wait))),
            false => spin(wait),
        }
    }
}

/// One wait for others, from the first look on.
#[derive(Debug)]
pub(crate) struct Wait {
    patience: Duration,
    rounds: u32,
    begun: Option<Instant>,
    slept: bool,
}

/// Rounds on the processor: about 16 us in all.
const SPINS: u32 = 64;
/// Then rounds that give it away, before those that sleep.
const YIELDS: u32 = 64;

impl Wait {
    pub(crate) fn new(patience: Duration) -> Self {
        Self { patience, rounds: 0, begun: None, slept: false }
    }

    /// Lets some time pass. Gives whether the patience is not at its end.
    #[cold]
    pub(crate) fn round(&mut self) -> bool {
        self.rounds = self.rounds.saturating_add(1);
        if self.patience.is_zero() {
            return false;
        }
        if self.rounds <= SPINS {
            spin(250);
            return true;
        }
        let begun = *self.begun.get_or_insert_with(Instant::now);
        self.slept = self.rounds > SPINS + YIELDS;
        match self.slept {
            true => thread::sleep(Duration::from_micros(50)),
            false => thread::yield_now(),
        }
        begun.elapsed() < self.patience
    }

    /// Whether it is time to see if the others live: not at first, and then every few rounds.
    pub(crate) fn is_time_to_look(&self) -> bool {
        self.rounds >= SPINS && self.rounds.is_multiple_of(8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_rises_with_failures_and_falls_with_successes() {
        let mut backoff = Backoff::new(7);
        backoff.succeeded();
        assert_eq!(backoff.level, 0);
        (0..4).for_each(|_| backoff.failed(false));
        assert_eq!(backoff.level, LEVEL_MIN * 8);
        (0..200).for_each(|_| backoff.succeeded());
        assert!(backoff.level < LEVEL_MIN, "{}", backoff.level);
        (0..20).for_each(|_| backoff.failed(false));
        assert_eq!(backoff.level, LEVEL_MAX, "and has a bound");
    }

    #[test]
    fn waits_are_random_within_bounds() {
        let mut backoff = Backoff::new(3);
        let times: Vec<u32> = (0..100).map(|_| backoff.around(1000)).collect();
        assert!(times.iter().all(|t| (1000..2000).contains(t)));
        assert!(times.iter().any(|t| *t < 1250) && times.iter().any(|t| *t >= 1750));
    }

    #[test]
    fn a_wait_ends_with_the_patience() {
        let mut wait = Wait::new(Duration::from_millis(5));
        let mut rounds = 0;
        while wait.round() {
            rounds += 1;
        }
        assert!(rounds >= SPINS);
        assert!(!Wait::new(Duration::ZERO).round());
    }
}
