//! Whether the program works while a long message comes.
//!
//! A receiver that waits for a message has nothing better to do than to copy, so the faster way is the better one, whoever copies
//! more for it. One that has work of its own, and looks after the message now and then, loses what the message takes of its
//! processor's time, and so does its sender. What elapses says nothing of that.
//!
//! Some messages are *watched*: of each, the time in the endpoint's rounds of progress is known, that in copies of its bytes, and how many
//! polls there were. The program works if the rest of the time that the message takes is a good part of it, and if so much of it
//! lies between two polls as a loop that only waits would hardly take: [`AWAY`]. A message that comes in the round in which it is asked for, or in the
//! next one, as in one copy from where its sender has it, does not say that the program works. It says that it waits if the round before was a moment
//! ago.

use std::time::{Duration, Instant};

use super::poll::SPIN_NS;

/// One message in so many is watched; each, while the program works.
pub(super) const SELDOM: u32 = 8;
/// A program that works stays away between two polls, on average, for as long as it takes to copy so many bytes of the message, and for this time at
/// least. What a loop does between two polls takes 0.2 us, and an endpoint that waits spins in each ([`SPIN_NS`]).
const AWAY: u64 = 64 << 10;
const LEAST_AWAY: Duration = Duration::from_nanos(4 * SPIN_NS as u64);
/// It is away for one part in so many of the time that the message takes.
const PART: u32 = 4;

/// What the receiver of a message has done for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Own {
    /// Nanoseconds of copies.
    pub(super) copied: u64,
    /// Whether the program has worked meanwhile, if that can be told.
    pub(super) is_at_work: Option<bool>,
}

/// A message that is watched.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watched {
    begin: Instant,
    /// Of the endpoint, when it began.
    inside: Duration,
    polls: u64,
    /// How long the program had been away between two polls when the round began that found the message.
    before: Option<Duration>,
    /// In copies of its bytes.
    copied: Duration,
}

impl Watched {
    /// A copy of its bytes has begun at `begin` and is done.
    pub(super) fn copied(&mut self, begin: Instant) {
        self.copied += begin.elapsed();
    }
}

/// Time in rounds of progress, while messages are watched.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Messages that are watched.
    messages: u32,
    /// Whether rounds are, too, while there is none: the program works, as far as is known.
    pub(super) is_on: bool,
    inside: Duration,
    /// When the round began that goes on, or the first message in it; how long the program was away before it, on average between two polls; and when
    /// and after how many polls the round before was over.
    round: Option<Instant>,
    away: Option<Duration>,
    last: Option<(Instant, u64)>,
}

impl Watch {
    /// A round begins, after so many polls: rounds, and looks at the hot lanes alone.
    #[inline]
    pub(super) fn begin_round(&mut self, polls: u64) {
        if self.messages > 0 || self.is_on {
            let now = Instant::now();
            self.away = self.last.take().map(|(last, before)| {
                let polls = u32::try_from(polls.wrapping_sub(before)).unwrap_or(u32::MAX);
                now.saturating_duration_since(last) / (polls + 1)
            });
            self.round = Some(now);
        }
    }

    #[inline]
    pub(super) fn end_round(&mut self, polls: u64) {
        if let Some(begin) = self.round.take() {
            let now = Instant::now();
            self.inside += now.saturating_duration_since(begin);
            (self.last, self.away) = (Some((now, polls)), None);
        }
    }

    /// Watches a message that is asked for now; there were so many polls before.
    pub(super) fn begin(&mut self, polls: u64) -> Watched {
        let begin = Instant::now();
        self.messages += 1;
        // Outside of a round the next one begins anew.
        self.round.get_or_insert(begin);
        Watched { begin, inside: self.inside_at(begin), polls, before: self.away, copied: Duration::ZERO }
    }

    fn inside_at(&self, now: Instant) -> Duration {
        self.inside + self.round.map_or(Duration::ZERO, |begin| now.saturating_duration_since(begin))
    }

    /// A message of `len` bytes has come; there were so many polls before.
    pub(super) fn end(&mut self, message: &Watched, len: u64, polls: u64) -> Own {
        let now = Instant::now();
        let took = now.saturating_duration_since(message.begin);
        let away = took.saturating_sub(self.inside_at(now).saturating_sub(message.inside));
        self.forget();
        let polls = polls.wrapping_sub(message.polls);
        let copied = u64::try_from(message.copied.as_nanos()).unwrap_or(u64::MAX);
        let waits = || message.before.is_some_and(|before| before < least_away(copied, len));
        let is_at_work = match is_at_work(took, away, copied, len, polls.max(1)) {
            false if polls <= 1 => waits().then_some(false),
            it => Some(it),
        };
        Own { copied, is_at_work }
    }

    /// A watched message will not come.
    pub(super) fn forget(&mut self) {
        self.messages = self.messages.saturating_sub(1);
    }
}

/// How long a program that works stays away, if copies of `len` bytes take `copied` nanoseconds.
fn least_away(copied: u64, len: u64) -> Duration {
    let ns = u128::from(copied) * u128::from(AWAY) / u128::from(len.max(1));
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)).max(LEAST_AWAY)
}

/// Whether a program works that was away for that long of the time that a message took, in so many polls.
fn is_at_work(took: Duration, away: Duration, copied: u64, len: u64, polls: u64) -> bool {
    let polls = u32::try_from(polls).unwrap_or(u32::MAX);
    away > took / PART && away > least_away(copied, len).saturating_mul(polls)
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn only_who_stays_away_works() {
        // 1 MiB that is copied in 100 us: 64 KiB in 6.25.
        let at_work = |took, away, rounds| is_at_work(took * US, away * US, 100_000, 1 << 20, rounds);
        // A loop that waits looks each 2 us, however long the sender takes.
        assert!(!at_work(120, 20, 10));
        assert!(!at_work(1100, 1000, 500));
        // Eight pieces of work; and a single one.
        assert!(at_work(300, 200, 8));
        assert!(at_work(10_000, 9_900, 2));
        // It is not much beside the message.
        assert!(!at_work(120, 20, 1));
    }

    #[test]
    fn what_rounds_take_is_no_work() {
        let mut watch = Watch::default();
        watch.begin_round(0);
        let message = watch.begin(0);
        std::thread::sleep(Duration::from_millis(5));
        watch.end_round(0);
        let waited = watch.end(&Watched { copied: 4000 * US, ..message }, 1 << 20, 2);
        assert_eq!(waited, Own { copied: 4_000_000, is_at_work: Some(false) });
        assert_eq!(watch.messages, 0);

        let message = watch.begin(1);
        // No round: the message was asked for by a receive.
        std::thread::sleep(Duration::from_millis(5));
        watch.begin_round(0);
        let worked = watch.end(&Watched { copied: 1000 * US, ..message }, 1 << 20, 2);
        assert_eq!(worked.is_at_work, Some(true));
        watch.end_round(0);
        assert!(watch.inside < Duration::from_millis(6));
    }

    /// What a message says that comes in the round in which it is asked for, so long after the one before.
    fn at_once(after: Option<Duration>) -> Option<bool> {
        let mut watch = Watch { is_on: true, ..Watch::default() };
        if let Some(after) = after {
            watch.begin_round(0);
            watch.end_round(0);
            std::thread::sleep(after);
        }
        watch.begin_round(0);
        let message = watch.begin(7);
        // 64 KiB take 12.5 ms.
        watch.end(&Watched { copied: 200_000 * US, ..message }, 1 << 20, 7).is_at_work
    }

    #[test]
    fn a_message_that_comes_at_once_says_no_more_than_that_the_program_waited() {
        assert_eq!(at_once(Some(Duration::ZERO)), Some(false));
        assert_eq!(at_once(Some(Duration::from_millis(20))), None);
        assert_eq!(at_once(None), None);
    }
}
