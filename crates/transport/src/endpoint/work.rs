//! Whether the program works while a long message comes.
//!
//! A receiver that waits for a message has nothing better to do than to copy, so the faster way is the better one, whoever copies
//! more for it. One that has work of its own, and looks after the message now and then, loses what the message takes of its
//! processor's time, and so does its sender. What elapses says nothing of that.
//!
//! Some messages are *watched*. The program is *away* while a message is under way and the endpoint neither makes progress nor sleeps. It works if it is
//! away for a good part of that time, and between two polls for longer than a program that waits ([`AWAY`]). One that yields its processor
//! to others may be taken for one that works: the others do.
//!
//! A message that comes in the poll that finds it, or in the next one, as in one copy from where its sender has it, says nothing.

use std::time::{Duration, Instant};

/// A program that works is away between two polls, on average, for as long as it takes to copy so many bytes of the message, and for the time below at
/// least, which is far more than a program that waits is. A call of the program may be two polls.
const AWAY: u64 = 64 << 10;
const LEAST_AWAY: Duration = Duration::from_micros(6);
/// It is away for one part in so many of the time that the message takes.
const PART: u32 = 4;

/// What is known of a message that was watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Own {
    /// Nanoseconds of the copies of both sides, if the sender's are as fast.
    pub(super) copies: u64,
    /// Its sender had pages to grant for it, which is not in that, or some were no longer granted.
    pub(super) is_fresh: bool,
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
        if self.since.is_some() {
            self.add(Instant::now());
        }
    }

    fn add(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.inside += now.saturating_duration_since(since);
        }
    }

    /// A sleep begins.
    pub(super) fn sleep(&mut self) {
        if self.messages > 0 {
            self.since.get_or_insert_with(Instant::now);
        }
    }

    /// It is over, if there was one.
    pub(super) fn wake_up(&mut self) {
        if !self.is_round && self.since.is_some() {
            self.add(Instant::now());
        }
    }

    /// Watches a message that is asked for now, after so many polls.
    pub(super) fn begin(&mut self, polls: u64) -> Watched {
        self.begin_at(polls, Instant::now())
    }

    fn begin_at(&mut self, polls: u64, begin: Instant) -> Watched {
        self.messages += 1;
        if self.is_round {
            self.since.get_or_insert(begin);
        }
        Watched { begin, inside: self.inside_at(begin), polls, copied: Duration::ZERO }
    }

    fn inside_at(&self, now: Instant) -> Duration {
        self.inside + self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// A message of `len` bytes has come, after so many polls. Its sender copied so many of the bytes, too; `is_fresh` if it granted pages for
    /// it, or took some back.
    pub(super) fn end(
        &mut self,
        message: &Watched,
        len: u64,
        (by_sender, is_fresh): (u64, bool),
        polls: u64,
    ) -> Own {
        self.end_at(message, len, (by_sender, is_fresh), polls, Instant::now())
    }

    fn end_at(
        &mut self,
        message: &Watched,
        len: u64,
        (by_sender, is_fresh): (u64, bool),
        polls: u64,
        now: Instant,
    ) -> Own {
        let took = now.saturating_duration_since(message.begin);
        let away = took.saturating_sub(self.inside_at(now).saturating_sub(message.inside));
        self.forget();
        let polls = polls.wrapping_sub(message.polls);
        let copied = message.copied.as_nanos();
        let is_at_work = is_at_work(took, away, copied, len, polls.max(1));
        let both = copied.saturating_add(copied.saturating_mul(by_sender.into()) / u128::from(len.max(1)));
        Own {
            copies: u64::try_from(both).unwrap_or(u64::MAX),
            is_fresh,
            is_at_work: (is_at_work || polls > 1).then_some(is_at_work),
        }
    }

    /// A watched message will not come.
    pub(super) fn forget(&mut self) {
        self.messages = self.messages.saturating_sub(1);
    }
}

/// Whether a program works that was away for that long of the time that a message of `len` bytes took, of which copies took `copied` nanoseconds, in
/// so many polls.
fn is_at_work(took: Duration, away: Duration, copied: u128, len: u64, polls: u64) -> bool {
    let least = copied.saturating_mul(AWAY.into()) / u128::from(len.max(1));
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

    /// A watch, at a time of its own.
    struct At {
        watch: Watch,
        now: Instant,
    }

    impl At {
        fn new() -> Self {
            Self { watch: Watch::default(), now: Instant::now() }
        }

        fn round(&mut self) {
            self.watch.is_round = true;
            if self.watch.messages > 0 {
                self.watch.since.get_or_insert(self.now);
            }
        }

        fn round_ends(&mut self) {
            self.watch.is_round = false;
            self.watch.add(self.now);
        }

        fn begin(&mut self) -> Watched {
            self.watch.begin_at(0, self.now)
        }

        fn wait(&mut self, times: u32) {
            self.now += times * MS;
        }

        /// Of a message whose copies took as long as that, after so many polls since it was asked for.
        fn says(&mut self, message: Watched, copied: u32, polls: u64) -> Option<bool> {
            self.watch
                .end_at(&Watched { copied: copied * MS, ..message }, 1 << 20, (0, false), polls, self.now)
                .is_at_work
        }
    }

    #[test]
    fn rounds_and_sleeps_are_no_work() {
        let mut at = At::new();
        at.round();
        let message = at.begin();
        at.wait(5);
        at.round_ends();
        assert_eq!(at.says(message, 4, 2), Some(false));
        assert_eq!((at.watch.messages, at.watch.since), (0, None));

        // It sleeps until the message is there.
        let message = at.begin();
        at.round();
        at.round_ends();
        at.watch.since = Some(at.now);
        at.wait(5);
        at.round();
        assert_eq!(at.says(message, 1, 2), Some(false));
        at.round_ends();

        // It works as long.
        let message = at.begin();
        at.wait(5);
        at.round();
        assert_eq!(at.says(message, 1, 1), Some(true));
        at.round_ends();
    }

    #[test]
    fn a_sleep_ends_when_it_is_over() {
        let mut watch = Watch::default();
        watch.sleep();
        assert_eq!(watch.since, None, "nothing is watched");
        let message = watch.begin(0);
        watch.sleep();
        assert!(watch.since.is_some());
        watch.wake_up();
        assert_eq!(watch.since, None);
        watch.begin_round();
        watch.wake_up();
        assert!(watch.since.is_some(), "the round goes on");
        watch.end_round();
        let _ = watch.end(&message, 1 << 20, (0, false), 2);
    }

    #[test]
    fn messages_that_are_asked_for_between_two_rounds_have_a_time_each() {
        let mut at = At::new();
        let first = at.begin();
        at.wait(10);
        let second = at.begin();
        at.round();
        at.wait(5);
        at.round_ends();
        at.round();
        assert_eq!(at.says(second, 4, 2), Some(false));
        assert_eq!(at.says(first, 4, 2), Some(true));
        at.round_ends();
        assert_eq!(at.watch.inside, 5 * MS);
    }

    #[test]
    fn a_message_that_comes_at_once_says_nothing() {
        let mut at = At::new();
        at.round();
        let message = at.begin();
        assert_eq!(at.says(message, 1, 0), None);
        let message = at.begin();
        assert_eq!(at.says(message, 1, 1), None);
    }

    #[test]
    fn what_the_sender_copied_counts_as_the_receivers_copies() {
        let mut at = At::new();
        let mut copies = |by_sender| {
            let message = Watched { copied: 4 * MS, ..at.begin() };
            at.watch.end_at(&message, 1 << 20, (by_sender, false), 2, at.now).copies
        };
        assert_eq!([copies(0), copies(1 << 20), copies(1 << 18)], [4_000_000, 8_000_000, 5_000_000]);
    }
}
