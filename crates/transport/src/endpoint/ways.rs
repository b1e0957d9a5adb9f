//! Which way a long message goes, where there is more than one: found by measurement, for each remote endpoint and class of
//! lengths.
//!
//! The receiver chooses and measures. A message counts from when it was asked for, or from when the last one ended if that is
//! later: of messages that overlap each counts the time that it adds. The first messages of a class take turns, of which the first
//! of each way is not measured, since memory is touched and the sender's process looked up there. From then on the way that was
//! faster has almost all; the other is tried again after 64 messages, and after twice as many each time that it stays the slower
//! one, so that trials cost ever less. What is faster depends on caches, on where the two processes run, and on what they do, so
//! no number here is one of a machine.

use std::time::Instant;

use isthmus_region::counters::Counter;

use super::attach;

/// Classes of lengths: each but the last reaches to four times the one before.
const CLASSES: usize = 8;
/// Messages of a class that take turns, however they fare.
const TRIALS: u32 = 8;
/// Trials by pages, at most, that are made once more, since the buffer had not come back.
const MORE_TRIALS: u32 = 32;
/// Of messages by pages that were granted for them, how many more than one in [`FRESH_SHARE`] are not counted.
const FRESH: u32 = 64;
const FRESH_SHARE: u32 = 4;
/// Messages from one trial of the slower way to the next, at first and at most.
const RETRY: (u32, u32) = (64, 4096);

/// A way of long messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Pipelined two-copy.
    Copy,
    /// Copied from the sender's memory by its receiver.
    Attach,
    /// From pages that the sender grants.
    Pages,
}

impl Way {
    /// Place of its cost: of the two ways to a remote endpoint one is always the copy.
    fn place(self) -> usize {
        usize::from(self != Self::Copy)
    }

    /// How much more than two copies it may take, as the receiver sees it, who does not see that its sender has nothing to copy: of all
    /// work of both that is nearly half.
    fn favour(self) -> f64 {
        if self == Self::Pages { 1.125 } else { 1.0 }
    }
}

/// A message that is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    way: Way,
    len: u64,
    begin: Instant,
}

impl Measured {
    /// The counters of what messages of its way took, and its length.
    pub(super) fn counted(&self) -> ([Counter; 2], u64) {
        let counters = match self.way {
            Way::Copy => [Counter::CopyNs, Counter::CopyBytes],
            Way::Attach => [Counter::AttachNs, Counter::AttachBytes],
            Way::Pages => [Counter::GrantNs, Counter::GrantBytes],
        };
        (counters, self.len)
    }

    /// A message that begins now.
    pub(super) fn begin(way: Way, len: u64) -> Self {
        Self { way, len, begin: Instant::now() }
    }
}

/// What a byte costs by one way.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    /// Messages that have ended.
    seen: u32,
    /// Nanoseconds; none before the second message.
    ns: Option<f64>,
}

impl Cost {
    fn add(&mut self, ns: f64) {
        self.seen = self.seen.saturating_add(1);
        if self.seen == 1 {
            return;
        }
        // What disturbs a message makes it slower, and a process that has to wait for a processor a thousand times slower. So what is
        // faster counts at once, or nearly so, and what is slower counts little, however much slower it is.
        self.ns = Some(match self.ns {
            Some(old) if !old.is_finite() => ns,
            Some(old) if self.seen <= TRIALS / 2 => old.min(ns),
            Some(old) if ns < old => old + (ns - old) / 2.0,
            Some(old) => old + (ns - old).min(old) / 8.0,
            None => ns,
        });
    }
}

/// Lengths of about the same size.
#[derive(Debug, Clone, Copy, Default)]
struct Class {
    messages: u32,
    /// Trials that said nothing.
    unfit: u32,
    /// How many more of the trial that is made now may say nothing, each of which is followed by another one; whether the next is such.
    more: u32,
    is_more: bool,
    /// What messages by fresh pages have cost and others have given back; beyond [`FRESH`] they count.
    fresh: u32,
    /// By way.
    costs: [Cost; 2],
    /// The way that was faster when a message last had the choice, the message with which the other is tried again, and the
    /// distance to the trial after that.
    faster: Option<Way>,
    retry: u32,
    gap: u32,
}

impl Class {
    fn choose(&mut self, one_copy: Way) -> Way {
        let number = self.messages;
        self.messages = number.wrapping_add(1);
        if number < TRIALS + 2 * self.unfit {
            return if number.is_multiple_of(2) { Way::Copy } else { one_copy };
        }
        let (way, other) = match self.costs.map(|cost| cost.ns) {
            [Some(copy), Some(other)] if other < copy * one_copy.favour() => (one_copy, Way::Copy),
            _ => (Way::Copy, one_copy),
        };
        if self.faster != Some(way) {
            (self.faster, self.gap) = (Some(way), RETRY.0);
            self.retry = number.wrapping_add(self.gap);
        }
        if number != self.retry {
            return way;
        }
        if !std::mem::take(&mut self.is_more) {
            self.more = (self.gap / 8).min(MORE_TRIALS);
            self.gap = (2 * self.gap).min(RETRY.1);
        }
        self.retry = number.wrapping_add(self.gap);
        other
    }

    /// A message has cost `ns` a byte.
    fn learn(&mut self, way: Way, ns: f64) {
        let before = self.costs[way.place()].ns;
        self.costs[way.place()].add(ns);
        if self.faster.is_some_and(|faster| faster != way) && before.is_some_and(|before| ns < 0.75 * before)
        {
            // Circumstances have changed.
            self.gap = RETRY.0;
            self.retry = self.messages.wrapping_add(self.gap);
        }
    }
}

/// What is known of the ways to one remote endpoint.
#[derive(Debug, Default)]
pub(super) struct Ways {
    /// None before the first message that has a choice.
    classes: Option<Box<[Class; CLASSES]>>,
    last_end: Option<Instant>,
}

/// The class of a length.
fn class_of(len: u64) -> usize {
    let quarters = (len / attach::LEAST).max(1).ilog2() / 2;
    (quarters as usize).min(CLASSES - 1)
}

impl Ways {
    fn class(&mut self, len: u64) -> &mut Class {
        &mut self.classes.get_or_insert_default()[class_of(len)]
    }

    /// The way of the next message.
    pub(super) fn choose(&mut self, len: u64, one_copy: Way) -> Way {
        self.class(len).choose(one_copy)
    }

    /// A message has ended well; gives how many nanoseconds it took.
    pub(super) fn ended(&mut self, message: Measured) -> u64 {
        self.ended_at(message, Instant::now())
    }

    fn ended_at(&mut self, message: Measured, now: Instant) -> u64 {
        let Measured { way, len, begin } = message;
        let begin = self.last_end.map_or(begin, |last| last.max(begin));
        self.last_end = Some(now);
        let ns = u64::try_from(now.saturating_duration_since(begin).as_nanos()).unwrap_or(u64::MAX);
        // Lengths and times far below 2^53.
        self.class(len).learn(way, ns as f64 / len.max(1) as f64);
        ns
    }

    /// Whether a message says nothing of its way: it was to come in pages, of which `paged` bytes did, and those were few, or were granted
    /// for it, as they will not have to be for the next one. While ways are tried, another message is tried in its place.
    pub(super) fn is_unfit(&mut self, message: &Measured, paged: u64, is_fresh: bool) -> bool {
        if message.way != Way::Pages {
            return false;
        }
        let class = self.class(message.len);
        let is_paged = paged >= message.len / 2;
        if is_paged && !is_fresh {
            class.fresh = class.fresh.saturating_sub(1);
            return false;
        }
        // Where pages have to be granted again and again, that is what the way costs.
        if is_paged && class.fresh >= FRESH * FRESH_SHARE {
            return false;
        }
        class.fresh += if is_paged { FRESH_SHARE } else { 0 };
        if class.messages < TRIALS + 2 * class.unfit {
            class.unfit += u32::from(class.unfit < MORE_TRIALS);
        } else if class.faster == Some(Way::Copy) && class.more > 0 {
            (class.more, class.is_more, class.retry) = (class.more - 1, true, class.messages);
        }
        true
    }

    /// A message could not go the way that was chosen.
    pub(super) fn failed(&mut self, message: Measured) {
        self.class(message.len).costs[message.way.place()] = Cost { seen: TRIALS, ns: Some(f64::INFINITY) };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Sends messages of which each takes `ns` by its way, one after the other; gives how many were attached to.
    fn run(ways: &mut Ways, count: u32, len: u64, ns: [u64; 2]) -> u32 {
        let mut now = ways.last_end.unwrap_or_else(Instant::now);
        let mut attached = 0;
        for _ in 0..count {
            let way = ways.choose(len, Way::Attach);
            let message = Measured { way, len, begin: now };
            now += Duration::from_nanos(ns[way.place()]);
            attached += u32::from(way == Way::Attach);
            ways.ended_at(message, now);
        }
        attached
    }

    #[test]
    fn the_faster_way_is_taken_and_the_other_is_tried_again() {
        let mut ways = Ways::default();
        assert_eq!(run(&mut ways, TRIALS, 100_000, [100, 200]), TRIALS / 2, "turns");
        assert_eq!(run(&mut ways, 64 + 128 + 256, 100_000, [100, 200]), 2, "ever more rarely");
        assert_eq!(run(&mut ways, 10_000, 100_000, [100, 200]), 5);
        // It has become the faster one, as where a process was moved to another processor.
        let attached = run(&mut ways, 8000, 100_000, [100, 50]);
        assert!(attached > 3000, "{attached}");
        assert!(run(&mut ways, 640, 100_000, [100, 50]) > 630);
        assert_eq!(run(&mut ways, TRIALS, 1 << 20, [100, 200]), TRIALS / 2, "another class");
        assert!(run(&mut ways, 64, 70_000, [100, 50]) > 60, "the first class has kept its own");
    }

    #[test]
    fn one_message_that_waits_for_a_processor_changes_nothing() {
        let mut ways = Ways::default();
        run(&mut ways, 100, 100_000, [100, 200]);
        let mut attached = 0;
        for _ in 0..20 {
            attached += run(&mut ways, 1, 100_000, [4_000_000, 4_000_000]);
            attached += run(&mut ways, 20, 100_000, [100, 200]);
        }
        assert_eq!(attached, 2, "the trials of 420 messages");
    }

    #[test]
    fn a_message_that_waited_for_another_counts_from_the_end_of_that() {
        let (mut ways, begin) = (Ways::default(), Instant::now());
        let len = attach::LEAST;
        for i in 1..=5 {
            let message = Measured { way: Way::Copy, len, begin };
            ways.ended_at(message, begin + Duration::from_nanos(i * len));
        }
        assert_eq!(ways.class(len).costs[0].ns, Some(1.0));
    }

    #[test]
    fn a_way_that_fails_is_not_taken_until_it_works() {
        let mut ways = Ways::default();
        run(&mut ways, TRIALS, 100_000, [100, 50]);
        let message = |begin| Measured { way: Way::Attach, len: 100_000, begin };
        ways.failed(message(Instant::now()));
        assert_eq!(ways.choose(100_000, Way::Attach), Way::Copy);
        let now = Instant::now();
        ways.ended_at(message(now), now);
        assert_eq!(ways.choose(100_000, Way::Attach), Way::Attach);
    }

    #[test]
    fn pages_are_tried_until_a_buffer_has_come_back() {
        let (mut ways, now) = (Ways::default(), Instant::now());
        let mut by_pages = 0;
        for _ in 0..1000 {
            let way = ways.choose(100_000, Way::Pages);
            let message = Measured { way, len: 100_000, begin: now };
            by_pages += u32::from(way == Way::Pages);
            // Five buffers in turn, of which each has to come by pages twice before it is fast.
            let paged = if by_pages > 5 { 98_304 } else { 0 };
            let is_fresh = (6..=10).contains(&by_pages);
            let ns = match way {
                Way::Pages if is_fresh => 200_000,
                Way::Pages if paged > 0 => 50_000,
                _ => 100_000,
            };
            if !ways.is_unfit(&message, paged, is_fresh) {
                ways.last_end = Some(now);
                ways.ended_at(message, now + Duration::from_nanos(ns));
            }
            ways.last_end = None;
        }
        assert!(by_pages > 950, "{by_pages}");
        // One whose buffers never come back ends its trials.
        let mut ways = Ways::default();
        let mut by_pages = 0;
        for _ in 0..10_000 {
            let way = ways.choose(100_000, Way::Pages);
            by_pages += u32::from(way == Way::Pages);
            let message = Measured { way, len: 100_000, begin: now };
            if !ways.is_unfit(&message, 0, false) {
                ways.last_end = None;
                ways.ended_at(message, now + Duration::from_nanos(100_000));
            }
        }
        assert!(by_pages < 300, "{by_pages}");
    }

    /// A pool of buffers, some of which go by pages while others are copied. Gives how many of `count` messages went by pages.
    fn in_turn(ways: &mut Ways, count: usize, buffers: usize, sent: &mut Vec<u32>, forgets: bool) -> u32 {
        let now = Instant::now();
        sent.resize(buffers, 0);
        let mut by_pages = 0;
        for i in 0..count {
            let way = ways.choose(100_000, Way::Pages);
            let message = Measured { way, len: 100_000, begin: now };
            let mut how = (0, false, 100_000);
            if way == Way::Pages {
                by_pages += 1;
                let seen = &mut sent[i % buffers];
                *seen = if forgets { 1 } else { *seen + 1 };
                how = match *seen {
                    1 if !forgets => (0, false, 100_000),
                    1 | 2 => (98_304, true, 200_000),
                    _ => (98_304, false, 60_000),
                };
            }
            let (paged, is_fresh, ns) = how;
            if !ways.is_unfit(&message, paged, is_fresh) {
                ways.last_end = None;
                ways.ended_at(message, now + Duration::from_nanos(ns));
            }
        }
        by_pages
    }

    #[test]
    fn what_it_takes_to_grant_pages_once_does_not_count() {
        let mut ways = Ways::default();
        assert!(in_turn(&mut ways, 100, 1, &mut Vec::new(), false) > 80);
        // Other buffers, more of them, and then such as have to be granted each time.
        let by_pages = in_turn(&mut ways, 1000, 16, &mut Vec::new(), false);
        assert!(by_pages > 980, "{by_pages}");
        let by_pages = in_turn(&mut ways, 10_000, 16, &mut Vec::new(), true);
        assert!(by_pages < 400, "{by_pages}");
        // A pool that comes back is found again.
        let by_pages = in_turn(&mut ways, 40_000, 8, &mut Vec::new(), false);
        assert!(by_pages > 20_000, "{by_pages}");
    }

    #[test]
    fn pages_may_take_a_little_longer_since_their_sender_does_not_copy() {
        for (ns, expected) in [(109_000, true), (116_000, false)] {
            let (mut ways, now, mut by_pages) = (Ways::default(), Instant::now(), 0);
            for _ in 0..200 {
                let way = ways.choose(100_000, Way::Pages);
                let message = Measured { way, len: 100_000, begin: now };
                let ns = if way == Way::Pages { ns } else { 100_000 };
                by_pages += u32::from(way == Way::Pages);
                ways.last_end = None;
                ways.ended_at(message, now + Duration::from_nanos(ns));
            }
            assert_eq!(by_pages > 100, expected, "{ns}: {by_pages}");
        }
    }

    #[test]
    fn classes_are_powers_of_four() {
        let lens = [1, 1 << 16, (1 << 18) - 1, 1 << 18, 1 << 20, 1 << 22, 1 << 40, u64::MAX];
        assert_eq!(lens.map(class_of), [0, 0, 0, 1, 2, 3, 7, 7]);
    }
}
