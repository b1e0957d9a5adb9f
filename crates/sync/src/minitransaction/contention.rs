//! Waiting: for others to be done, and so that others can be.
//!
//! Two kinds. Who finds a lock taken has to wait for its holder, and does so until that is over ([`Wait`]): first on the
//! processor, then giving it away, then asleep.
//!
//! Who fails to change a word since another changed it first has nobody to wait for, and could try again at once. But each
//! try takes the word's line from whoever has it, so that all are slower the more they try, and most tries fail. Whoever has
//! the line makes a change in some ten nanoseconds, and to get it from another processor takes a hundred; so it is best that
//! one makes many changes while the others leave it alone, and that they take turns. [`Backoff`] does that without any shared
//! word:
//! - Who *fails* and has had its turn, that is [`TURN`] changes at least since it last waited, leaves the word to the others
//!   for a random time of some 10 microseconds.
//! - Who *fails* before that waits for a random time around its level, which doubles with each failure and shrinks by a
//!   16th with each success. It has a bound that grows with the number of those who change words, so that somebody comes
//!   every few microseconds, however many there are; among few it is below the time that others make room for. So who has
//!   had no turn gets one, and nobody keeps the word by being quicker. As the level has an effect only after a failure,
//!   threads that meet nobody wait for nobody, however high it was.
//! - Who *meets* somebody, that is finds a word changed that it wrote last, and comes back to write it again, has had its
//!   turn if that was longer than [`TURN`] changes: it waits for a random time, in which the other one has his. If it then
//!   finds that nobody made use of that, this was no contention but two programs that answer each other; then it
//!   does not wait again for long, and for twice as long each time.
//!
//! No clock is read while spinning: hints are counted, and what one takes is measured once per process.

use std::thread;
use std::time::{Duration, Instant};

use isthmus_lockfree::hint::spin;

/// The level after the first failure, in nanoseconds.
const LEVEL_MIN: u32 = 250;
/// What each of the others adds to the highest level, and the most that it can be.
const LEVEL_EACH: u32 = 4_000;
const LEVEL_MAX: u32 = 100_000;
/// A success takes this part of the level away: one by 2^.
const FALL: u32 = 4;
/// Changes that a turn has at least.
const TURN: u32 = 64;
/// The shortest and the longest wait for another one's turn, in nanoseconds.
const ROOM_MIN: u32 = 500;
const ROOM_MAX: u32 = 16_000;
/// Changes without a wait after one that was in vain, at first and at most.
const LONG_TURN_MIN: u32 = 1 << 12;
const LONG_TURN_MAX: u32 = 1 << 17;
/// Waits that are longer give the processor away, where there may be others for it.
const LONG: u32 = 4_000;

/// A thread's memory of how much it was in others' way lately.
#[derive(Debug)]
pub(crate) struct Backoff {
    /// Around how long a failure is waited after, in nanoseconds.
    level: u32,
    /// Changes of this turn that are left, before it makes room.
    left: u32,
    /// Around how long it makes room, in nanoseconds.
    room: u32,
    /// How many changes it makes after it made room in vain.
    long_turn: u32,
    random: u64,
}

impl Backoff {
    /// `seed` differs from thread to thread.
    pub(crate) fn new(seed: u64) -> Self {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self { level: 0, left: TURN, room: ROOM_MIN, long_turn: LONG_TURN_MIN, random }
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
        self.left = self.left.saturating_sub(1);
    }

    /// Somebody else changed a word that this thread wrote last. Makes room for him, if this turn was long enough; gives
    /// whether.
    #[cold]
    pub(crate) fn met(&mut self) -> bool {
        if self.left > 0 {
            return false;
        }
        let wait = self.around(self.room);
        spin(wait);
        true
    }

    /// After making room: whether somebody used it.
    pub(crate) fn made_room(&mut self, was_used: bool) {
        if was_used {
            self.left = TURN;
            self.room = (self.room * 2).min(ROOM_MAX);
            self.long_turn = LONG_TURN_MIN;
        } else {
            self.left = self.long_turn;
            self.room = (self.room * 2).min(ROOM_MAX);
            self.long_turn = (self.long_turn * 2).min(LONG_TURN_MAX);
        }
    }

    /// One of `others` had changed the word: waits. `crowded`: there are more committers than processors.
    #[cold]
    pub(crate) fn failed(&mut self, others: u32, crowded: bool) {
        let wait = if self.left == 0 {
            (self.left, self.room) = (TURN, (self.room * 2).min(ROOM_MAX));
            self.around(self.room)
        } else {
            self.level = (self.level * 2)
                .clamp(LEVEL_MIN, others.saturating_mul(LEVEL_EACH).clamp(LEVEL_MIN, LEVEL_MAX));
            self.around(self.level)
        };
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
    /// The try that there is after the patience's end was had.
    is_over: bool,
}

/// Rounds on the processor: about 16 us in all.
const SPINS: u32 = 64;
/// Then rounds that give it away, before those that sleep.
const YIELDS: u32 = 64;

impl Wait {
    pub(crate) fn new(patience: Duration) -> Self {
        Self { patience, rounds: 0, begun: None, slept: false, is_over: false }
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

    /// Whether there may be another try although the patience is at its end: once for each lock, since a lock that changes all the
    /// time would have no end.
    pub(crate) fn may_try_once_more(&mut self) -> bool {
        !std::mem::replace(&mut self.is_over, true)
    }

    /// A lock was taken: the next one is another matter.
    pub(crate) fn next_lock(&mut self) {
        self.is_over = false;
    }

    /// Whether it is time to see if the others live: not at first, and then every few rounds.
    pub(crate) fn is_time_to_check(&self) -> bool {
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
        (0..4).for_each(|_| backoff.failed(100, false));
        assert_eq!(backoff.level, LEVEL_MIN * 8);
        (0..200).for_each(|_| backoff.succeeded());
        assert!(backoff.level < LEVEL_MIN, "{}", backoff.level);
        backoff.left = TURN;
        (0..20).for_each(|_| backoff.failed(3, false));
        assert_eq!(backoff.level, 3 * LEVEL_EACH, "and has a bound");
        (0..20).for_each(|_| backoff.failed(1000, false));
        assert_eq!(backoff.level, LEVEL_MAX, "whatever their number");
    }

    #[test]
    fn who_fails_after_a_turn_makes_room_and_keeps_its_level() {
        let mut backoff = Backoff::new(7);
        (0..TURN).for_each(|_| backoff.succeeded());
        backoff.failed(1, false);
        assert_eq!((backoff.level, backoff.left, backoff.room), (0, TURN, 2 * ROOM_MIN));
        backoff.failed(1, false);
        assert_eq!((backoff.level, backoff.room), (LEVEL_MIN, 2 * ROOM_MIN), "this one had no turn");
    }

    #[test]
    fn room_is_made_after_a_turn_and_not_in_vain() {
        let mut backoff = Backoff::new(7);
        assert!(!backoff.met(), "the first turn is not over");
        (0..TURN).for_each(|_| backoff.succeeded());
        assert!(backoff.met());
        backoff.made_room(true);
        assert!(!backoff.met() && backoff.room == 2 * ROOM_MIN);
        (0..TURN).for_each(|_| backoff.succeeded());
        assert!(backoff.met());
        backoff.made_room(false);
        assert_eq!(backoff.room, 4 * ROOM_MIN, "it was too short, or nobody is there");
        (1..LONG_TURN_MIN).for_each(|_| backoff.succeeded());
        assert!(!backoff.met());
        backoff.succeeded();
        assert!(backoff.met() && backoff.long_turn == 2 * LONG_TURN_MIN);
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
