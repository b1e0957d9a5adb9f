//! Waiting for locks of others, and making room for others that change the same word.
//!
//! A thread that finds a lock taken waits for its holder ([`Wait`]): it spins, then yields, then sleeps.
//!
//! A thread that fails to change a word, since another changed it first, has nothing to wait for and could try again at
//! once. But each try takes the word's line from the processor that has it, so the more threads try, the slower all are, and
//! most tries fail. The processor that has the line makes a change in some ten nanoseconds; getting the line from another
//! takes a hundred. So it is best that one thread makes many changes while the others leave the line alone, and that they
//! take turns. [`Backoff`] does that without any shared word:
//! - A thread that *fails* after its turn, that is at least [`TURN`] changes since it last waited, leaves the word to the
//!   others for a random time of some 10 microseconds.
//! - A thread that *fails* before that waits for a random time around its level, which doubles with each failure and shrinks
//!   by a 16th with each success. The level has a bound that grows with the number of committers that change words, so that
//!   one of them tries every few microseconds, however many there are; among few committers the bound is below the time for
//!   which a thread makes room. So a thread that had no turn gets one, and none keeps the word by being quicker. The level
//!   has an effect only after a failure, so threads that meet no other never wait, however high it was.
//! - A thread that *meets* another, that is comes back to write a word and finds that another thread has changed it since it
//!   wrote it last, has had its turn if that was longer than [`TURN`] changes. It then waits for a random time, in which the
//!   other has its turn. If it finds after that that no thread used the time, this was no contention but two programs that
//!   answer each other; then it does not wait again for many changes, and for twice as many each time.
//!
//! No clock is read while spinning: hints are counted, and what one takes is measured once per process.

use std::thread;
use std::time::{Duration, Instant};

use isthmus_lockfree::hint::spin;
use isthmus_region::waiting::{Pace, nap};

/// The level after the first failure, in nanoseconds.
const LEVEL_MIN: u32 = 250;
/// What each other committer adds to the level's bound, and the highest bound.
const LEVEL_EACH: u32 = 4_000;
const LEVEL_MAX: u32 = 100_000;
/// A success takes a 2^FALLth of the level away.
const FALL: u32 = 4;
/// Least changes of a turn.
const TURN: u32 = 64;
/// The shortest and the longest time to make room for, in nanoseconds.
const ROOM_MIN: u32 = 500;
const ROOM_MAX: u32 = 16_000;
/// Changes of the turn after room was made and not used: the first time, and at most.
const LONG_TURN_MIN: u32 = 1 << 12;
const LONG_TURN_MAX: u32 = 1 << 17;
/// A longer wait sleeps, where other committers may need the processor.
const LONG: u32 = 4_000;

/// What a thread remembers of lately being in the way of others, and others in its.
#[derive(Debug)]
pub(crate) struct Backoff {
    /// Around how long to wait after a failure, in nanoseconds.
    level: u32,
    /// Changes left of this turn, before the thread makes room.
    left: u32,
    /// Around how long to make room for, in nanoseconds.
    room: u32,
    /// Changes of the next turn, if room was made and not used.
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

    /// Another thread changed a word that this thread wrote last. Makes room for it, if this turn was long enough; returns
    /// whether it did.
    #[cold]
    pub(crate) fn met(&mut self) -> bool {
        if self.left > 0 {
            return false;
        }
        let wait = self.around(self.room);
        spin(wait);
        true
    }

    /// Records whether another thread used the room that was made.
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

    /// One of `others` had changed the word: waits. `crowded` is whether there are more committers than processors.
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
            true => nap(Duration::from_nanos(u64::from(wait))),
            false => spin(wait),
        }
    }
}

/// One wait for others, from the first check on.
#[derive(Debug)]
pub(crate) struct Wait {
    patience: Duration,
    rounds: u32,
    begun: Option<Instant>,
    slept: bool,
    /// Whether the one try after the end of the patience was made.
    is_over: bool,
}

/// What one round of polls leaves the lock alone for, in nanoseconds.
const ROUND: u32 = 250;
/// Rounds that spin.
const SPINS: u32 = Pace::LOCKS.polls;
/// The length of those that sleep.
const NAP: Duration = Duration::from_micros(50);

impl Wait {
    pub(crate) fn new(patience: Duration) -> Self {
        Self { patience, rounds: 0, begun: None, slept: false, is_over: false }
    }

    /// Lets some time pass. Returns whether some of the patience is left.
    #[cold]
    pub(crate) fn round(&mut self) -> bool {
        self.rounds = self.rounds.saturating_add(1);
        if self.patience.is_zero() {
            return false;
        }
        if self.rounds <= SPINS {
            spin(ROUND);
            return true;
        }
        let begun = *self.begun.get_or_insert_with(Instant::now);
        self.slept = self.rounds > SPINS + Pace::LOCKS.yields;
        match self.slept {
            true => nap(NAP),
            false => thread::yield_now(),
        }
        begun.elapsed() < self.patience
    }

    /// Whether there may be another try after the end of the patience: once for each lock, since a lock that changes hands
    /// all the time would have no end.
    pub(crate) fn may_try_once_more(&mut self) -> bool {
        !std::mem::replace(&mut self.is_over, true)
    }

    /// A lock was taken: the next one may have a try of its own after the end.
    pub(crate) fn next_lock(&mut self) {
        self.is_over = false;
    }

    /// Whether it is time to check if the holder lives: not at first, and then every few rounds.
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
    fn a_failure_after_a_turn_makes_room_and_keeps_the_level() {
        let mut backoff = Backoff::new(7);
        (0..TURN).for_each(|_| backoff.succeeded());
        backoff.failed(1, false);
        assert_eq!((backoff.level, backoff.left, backoff.room), (0, TURN, 2 * ROOM_MIN));
        backoff.failed(1, false);
        assert_eq!((backoff.level, backoff.room), (LEVEL_MIN, 2 * ROOM_MIN), "this one had no turn");
    }

    #[test]
    fn room_is_made_after_a_turn_and_less_often_if_unused() {
        let mut backoff = Backoff::new(7);
        assert!(!backoff.met(), "the first turn is not over");
        (0..TURN).for_each(|_| backoff.succeeded());
        assert!(backoff.met());
        backoff.made_room(true);
        assert!(!backoff.met() && backoff.room == 2 * ROOM_MIN);
        (0..TURN).for_each(|_| backoff.succeeded());
        assert!(backoff.met());
        backoff.made_room(false);
        assert_eq!(backoff.room, 4 * ROOM_MIN, "it was too short, or no other thread is there");
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
