//! Whether the program works while a long message comes.
//!
//! A receiver that waits for a message has nothing better to do than to copy, so the faster way is the better one, whoever copies
//! more for it. One that has work of its own, and looks after the message now and then, loses what the message takes of its
//! processor's time, and so does its sender. What elapses says nothing of that.
//!
//! Some messages are *watched*: of each, the time that the endpoint takes or sleeps is known, that of the copies, and how often it was polled. The rest of the
//! time that the message takes the program is *away*. It works if that is a good part of the time, and longer between two polls
//! than a program that waits needs there ([`AWAY`]). A program that gives its processor to others meanwhile may be taken for one
//! that works: they do.
//!
//! A message that comes in the poll that finds it, or in the next one, as in one copy from where its sender has it, says nothing.

use std::time::{Duration, Instant};

/// A program that works is away between two polls, on average, for as long as it takes to copy so many bytes of the message, and for this time at
/// least, which is far more than a program that waits needs. A call of the program's may be two polls.
const AWAY: u64 = 64 << 10;
const LEAST_AWAY: Duration = Duration::from_micros(6);
/// It is away for one part in so many of the time that the message takes.
const PART: u32 = 4;

/// What is known of a message that was watched.
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
    /// In copies of its bytes.
    copied: Duration,
}

impl Watched {
    /// A copy of its bytes has begun at `begin` and is done.
    pub(super) fn copied(&mut self, begin: Instant) {
        self.copied += begin.elapsed();
    }
}

/// The time that an endpoint takes for its progress, or sleeps, while messages are watched.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Messages that are watched.
    messages: u32,
    /// A round of progress goes on.
    is_round: bool,
    inside: Duration,
    /// Since when it goes on, or since there is a message in it, or when a sleep began before it.
    since: Option<Instant>,
}

impl Watch {
    #[inline]
    pub(super) fn begin_round(&mut self) {
        self.is_round = true;
        if self.messages > 0 {
            self.since.get_or_insert_with(Instant::now);
        }
    }

    #[inline]
    pub(super) fn end_round(&mut self) {
        self.is_round = false;
        if let Some(since) = self.since.take() {
            self.inside += since.elapsed();
        }
    }

    /// A sleep begins, which is over with the next round.
    pub(super) fn sleep(&mut self) {
        if self.messages > 0 {
            self.since.get_or_insert_with(Instant::now);
        }
    }

    /// Watches a message that is asked for now, after so many polls.
    pub(super) fn begin(&mut self, polls: u64) -> Watched {
        let begin = Instant::now();
        self.messages += 1;
        if self.is_round {
            self.since.get_or_insert(begin);
        }
        Watched { begin, inside: self.inside_at(begin), polls, copied: Duration::ZERO }
    }

    fn inside_at(&self, now: Instant) -> Duration {
        self.inside + self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// A message of `len` bytes has come, after so many polls.
    pub(super) fn end(&mut self, message: &Watched, len: u64, polls: u64) -> Own {
        let now = Instant::now();
        let took = now.saturating_duration_since(message.begin);
        let away = took.saturating_sub(self.inside_at(now).saturating_sub(message.inside));
        self.forget();
        let polls = polls.wrapping_sub(message.polls);
        let copied = u64::try_from(message.copied.as_nanos()).unwrap_or(u64::MAX);
        let is_at_work = is_at_work(took, away, copied, len, polls.max(1));
        Own { copied, is_at_work: (is_at_work || polls > 1).then_some(is_at_work) }
    }

    /// A watched message will not come.
    pub(super) fn forget(&mut self) {
        self.messages = self.messages.saturating_sub(1);
    }
}

/// Whether a program works that was away for that long of the time that a message of `len` bytes took, of which copies took `copied` nanoseconds, in
/// so many polls.
fn is_at_work(took: Duration, away: Duration, copied: u64, len: u64, polls: u64) -> bool {
    let least = u128::from(copied) * u128::from(AWAY) / u128::from(len.max(1));
    let least = least.max(LEAST_AWAY.as_nanos());
    away > took / PART && away.as_nanos() > least.saturating_mul(u128::from(polls))
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn only_a_program_that_stays_away_works() {
        // 1 MiB that is copied in 100 us: 64 KiB in 6.25.
        let at_work = |took, away, polls| is_at_work(took * US, away * US, 100_000, 1 << 20, polls);
        // A loop that waits looks each 2 us, however long the sender takes.
        assert!(!at_work(120, 20, 10));
        assert!(!at_work(1100, 1000, 500));
        // Eight pieces of work; and a single one.
        assert!(at_work(300, 200, 8));
        assert!(at_work(10_000, 9_900, 2));
        // It is not much beside the message.
        assert!(!at_work(120, 20, 1));
        // Nothing that polls were ever so many of.
        assert!(!at_work(u32::MAX, u32::MAX, u64::MAX));
    }

    const MS: Duration = Duration::from_millis(1);

    fn wait(times: u32) {
        std::thread::sleep(times * MS);
    }

    /// Of a message whose copies took as long as that, after so many polls since it was asked for.
    fn says(watch: &mut Watch, message: Watched, copied: u32, polls: u64) -> Option<bool> {
        watch.end(&Watched { copied: copied * MS, ..message }, 1 << 20, message.polls + polls).is_at_work
    }

    #[test]
    fn rounds_and_sleeps_are_no_work() {
        let mut watch = Watch::default();
        watch.begin_round();
        let message = watch.begin(0);
        wait(5);
        watch.end_round();
        assert_eq!(says(&mut watch, message, 4, 2), Some(false));
        assert_eq!((watch.messages, watch.since), (0, None));

        // It sleeps until the message is there.
        let message = watch.begin(1);
        watch.begin_round();
        watch.end_round();
        watch.sleep();
        wait(5);
        watch.begin_round();
        assert_eq!(says(&mut watch, message, 1, 2), Some(false));
        watch.end_round();

        // The program is away as long as it slept before.
        let message = watch.begin(1);
        wait(5);
        watch.begin_round();
        assert_eq!(says(&mut watch, message, 1, 1), Some(true));
        watch.end_round();
    }

    #[test]
    fn messages_that_are_asked_for_between_two_rounds_have_a_time_each() {
        let mut watch = Watch::default();
        let first = watch.begin(0);
        wait(10);
        let second = watch.begin(0);
        watch.begin_round();
        wait(5);
        watch.end_round();
        watch.begin_round();
        assert_eq!(says(&mut watch, second, 4, 2), Some(false));
        assert_eq!(says(&mut watch, first, 4, 2), Some(true));
        watch.end_round();
        assert!(watch.inside >= 5 * MS && watch.inside < 9 * MS, "{:?}", watch.inside);
    }

    #[test]
    fn a_message_that_comes_at_once_says_nothing() {
        let mut watch = Watch::default();
        watch.begin_round();
        let message = watch.begin(7);
        assert_eq!(says(&mut watch, message, 1, 0), None);
        let message = watch.begin(7);
        assert_eq!(says(&mut watch, message, 1, 1), None);
        watch.end_round();
    }
}
