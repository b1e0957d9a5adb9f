//! Which way a long message goes, where there is more than one: found by measurement, for each remote endpoint and class of
//! lengths, and for what lies in memory of the region separately.
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

/// Classes of lengths: the first ends at [`attach::LEAST`], and each other but the last reaches to four times the one before.
pub(super) const CLASSES: usize = 9;
/// Messages of a class that take turns, however they fare.
const TRIALS: u32 = 8;
/// Trials by pages, at most, that are made once more, since the buffer had not come back.
const MORE_TRIALS: u32 = 32;
/// One odd message ([`Ways::ended`]) in so many does not count, nor do the first [`MOST_ODD`] beyond that; both are counted in parts, of
/// which each odd message takes as many as others give back.
const ODD_SHARE: u32 = 32;
const MOST_ODD: u32 = 128 * ODD_SHARE;
/// Messages over which the mean goes once odd ones count.
const MEAN_OF: f64 = 16.0;
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
    /// From memory of the region, in which the sender has it.
    Resident,
}

impl Way {
    /// Place of its cost: of the two ways of a choice one is always the copy.
    fn place(self) -> usize {
        usize::from(self != Self::Copy)
    }

    /// How much longer than two copies it may take, as the receiver sees it, who does not see that its sender has nothing to copy: of all
    /// work of both that is nearly half.
    fn favour(self) -> f64 {
        if matches!(self, Self::Pages | Self::Resident) { 1.03 } else { 1.0 }
    }
}

/// A message that may come in two copies or in one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    pub(super) len: u64,
    /// The way that is one copy.
    pub(super) one_copy: Way,
}

/// A message that is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    choice: Choice,
    way: Way,
    begin: Instant,
}

impl Measured {
    /// The counters of what messages of its way took, and its length.
    pub(super) fn counted(&self) -> ([Counter; 2], u64) {
        let counters = match self.way {
            Way::Copy => [Counter::CopyNs, Counter::CopyBytes],
            Way::Attach => [Counter::AttachNs, Counter::AttachBytes],
            Way::Pages => [Counter::GrantNs, Counter::GrantBytes],
            Way::Resident => [Counter::ResideNs, Counter::ResideBytes],
        };
        (counters, self.choice.len)
    }

    /// Its bytes.
    pub(super) fn len(&self) -> u64 {
        self.choice.len
    }

    /// A message that begins now.
    pub(super) fn begin(choice: Choice, way: Way) -> Self {
        Self { choice, way, begin: Instant::now() }
    }
}

/// What a byte costs by one way.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cost {
    /// Messages that have ended.
    seen: u32,
    /// Nanoseconds; none before the second message.
    ns: Option<f64>,
}

impl Cost {
    /// One that is known.
    pub(super) fn of(ns: f64) -> Self {
        Self { seen: TRIALS, ns: Some(ns) }
    }

    /// What a byte costs, in nanoseconds; none before the second measurement.
    pub(super) fn each(self) -> Option<f64> {
        self.ns
    }

    /// One more measurement. The first does not count.
    pub(super) fn add(&mut self, ns: f64) {
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

    /// The same, where each message counts as much as the others.
    fn weigh(&mut self, ns: f64) {
        self.seen = self.seen.saturating_add(1);
        self.ns = Some(match self.ns {
            Some(old) if old.is_finite() => old + (ns - old) / MEAN_OF,
            _ => ns,
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
    /// Parts that odd messages have taken, and others not given back.
    odd: u32,
    /// By way.
    costs: [Cost; 2],
    /// The way that was faster when a message last had the choice, and the message from which on it was; the message with which the other
    /// is tried again, and the distance to the trial after that.
    faster: Option<Way>,
    since: u32,
    retry: u32,
    gap: u32,
}

impl Class {
    fn choose(&mut self, one_copy: Way) -> Way {
        let number = self.messages;
        // After the last number there are no first messages again.
        self.messages = number.checked_add(1).unwrap_or(u32::MAX / 2);
        if number < TRIALS + 2 * self.unfit {
            return if number.is_multiple_of(2) { Way::Copy } else { one_copy };
        }
        let (way, other) = match self.costs.map(|cost| cost.ns) {
            [Some(copy), Some(other)] if other < copy * one_copy.favour() => (one_copy, Way::Copy),
            _ => (Way::Copy, one_copy),
        };
        if self.faster != Some(way) {
            // If it changes back and forth, trials stay as rare as they were.
            if number.wrapping_sub(self.since) >= self.gap {
                self.gap = RETRY.0;
            }
            (self.faster, self.since) = (Some(way), number);
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
    fn learn(&mut self, way: Way, ns: f64, is_odd: bool) {
        let cost = &mut self.costs[way.place()];
        if is_odd {
            self.odd = (self.odd + ODD_SHARE - 1).min(2 * MOST_ODD);
            if self.odd > MOST_ODD {
                cost.weigh(ns);
            }
            // While ways are tried, another message is tried in its place.
            if self.messages < TRIALS + 2 * self.unfit {
                self.unfit += u32::from(self.unfit < MORE_TRIALS);
            } else if self.faster == Some(Way::Copy) && self.more > 0 {
                (self.more, self.is_more, self.retry) = (self.more - 1, true, self.messages);
            }
            return;
        }
        if way == Way::Pages {
            self.odd = self.odd.saturating_sub(1);
            // Once the way is not taken, what is tried seldom says more.
            if self.odd > MOST_ODD && self.faster == Some(way) {
                // One that has to wait for a processor counts no more than twice, as of other ways.
                cost.weigh(cost.ns.filter(|old| old.is_finite()).map_or(ns, |old| ns.min(2.0 * old)));
                return;
            }
        }
        let before = cost.ns;
        cost.add(ns);
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
    /// Of messages that lie in memory of the region, and of others; none before the first message that has a choice.
    resident: Option<Box<[Class; CLASSES]>>,
    others: Option<Box<[Class; CLASSES]>>,
    last_end: Option<Instant>,
}

/// The nanoseconds that a message adds to those before it, of which the last ended at `last_end`; that is `now` then.
pub(super) fn added(last_end: &mut Option<Instant>, begin: Instant, now: Instant) -> u64 {
    let begin = last_end.map_or(begin, |last| last.max(begin));
    *last_end = Some(now);
    u64::try_from(now.saturating_duration_since(begin).as_nanos()).unwrap_or(u64::MAX)
}

/// The class of a length.
pub(super) fn class_of(len: u64) -> usize {
    let quarters = (4 * (len.min(u64::MAX / 4)) / attach::LEAST).max(1).ilog2() / 2;
    (quarters as usize).min(CLASSES - 1)
}

impl Ways {
    fn class(&mut self, choice: Choice) -> &mut Class {
        let of = if choice.one_copy == Way::Resident { &mut self.resident } else { &mut self.others };
        &mut of.get_or_insert_default()[class_of(choice.len)]
    }

    /// The way of the next message.
    pub(super) fn choose(&mut self, choice: Choice) -> Way {
        self.class(choice).choose(choice.one_copy)
    }

    /// A message has ended well; gives how many nanoseconds it took. It is odd if it was to come in pages and cost what the next one of the
    /// same buffer will not: hardly any page was granted, since the buffer had not come back; they were granted for this message; or
    /// one was no longer granted when it was read.
    pub(super) fn ended(&mut self, message: Measured, is_odd: bool) -> u64 {
        self.ended_at(message, is_odd, Instant::now())
    }

    fn ended_at(&mut self, message: Measured, is_odd: bool, now: Instant) -> u64 {
        let Measured { choice, way, begin } = message;
        let ns = added(&mut self.last_end, begin, now);
        // Lengths and times far below 2^53.
        let each = ns as f64 / choice.len.max(1) as f64;
        self.class(choice).learn(way, each, is_odd && way == Way::Pages);
        ns
    }

    /// Whether most messages like this one come another way.
    pub(super) fn is_rare(&mut self, message: &Measured) -> bool {
        self.class(message.choice).faster.is_some_and(|faster| faster != message.way)
    }

    /// A message has ended well, in circumstances from which nothing is learnt; gives how many nanoseconds it took.
    pub(super) fn passed(&mut self, message: Measured) -> u64 {
        added(&mut self.last_end, message.begin, Instant::now())
    }

    /// A message could not go the way that was chosen.
    pub(super) fn failed(&mut self, message: Measured) {
        self.class(message.choice).costs[message.way.place()] = Cost::of(f64::INFINITY);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PAGES: Choice = Choice { len: 100_000, one_copy: Way::Pages };

    fn to_attach(len: u64) -> Choice {
        Choice { len, one_copy: Way::Attach }
    }

    /// Sends messages of which each takes `ns` by its way, one after the other; gives how many were attached to.
    fn run(ways: &mut Ways, count: u32, len: u64, ns: [u64; 2]) -> u32 {
        let mut now = ways.last_end.unwrap_or_else(Instant::now);
        let mut attached = 0;
        for _ in 0..count {
            let choice = to_attach(len);
            let way = ways.choose(choice);
            let message = Measured { choice, way, begin: now };
            now += Duration::from_nanos(ns[way.place()]);
            attached += u32::from(way == Way::Attach);
            ways.ended_at(message, false, now);
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
            let message = Measured { choice: to_attach(len), way: Way::Copy, begin };
            ways.ended_at(message, false, begin + Duration::from_nanos(i * len));
        }
        assert_eq!(ways.class(to_attach(len)).costs[0].ns, Some(1.0));
    }

    #[test]
    fn a_way_that_fails_is_not_taken_until_it_works() {
        let mut ways = Ways::default();
        run(&mut ways, TRIALS, 100_000, [100, 50]);
        let message = |begin| Measured { choice: to_attach(100_000), way: Way::Attach, begin };
        ways.failed(message(Instant::now()));
        assert_eq!(ways.choose(to_attach(100_000)), Way::Copy);
        let now = Instant::now();
        ways.ended_at(message(now), false, now);
        assert_eq!(ways.choose(to_attach(100_000)), Way::Attach);
    }

    /// Sends messages that may come by pages, the n-th of those odd or not, in so many nanoseconds; by copy in 100,000. Gives how many came by
    /// pages, and the mean of all in nanoseconds.
    fn by_pages(ways: &mut Ways, count: u32, mut pages: impl FnMut(u32, u32) -> (bool, u64)) -> (u32, u64) {
        let (mut now, mut all, mut sum) = (ways.last_end.unwrap_or_else(Instant::now), 0, 0);
        for i in 0..count {
            let way = ways.choose(PAGES);
            let message = Measured { choice: PAGES, way, begin: now };
            let (is_odd, ns) = if way == Way::Pages { pages(i, all) } else { (false, 100_000) };
            all += u32::from(way == Way::Pages);
            sum += ns;
            now += Duration::from_nanos(ns);
            ways.ended_at(message, is_odd, now);
        }
        (all, sum / u64::from(count))
    }

    /// A pool of buffers, each of which is odd the first two times that it comes by pages.
    fn pool(buffers: usize) -> impl FnMut(u32, u32) -> (bool, u64) {
        let mut seen = vec![0; buffers];
        move |i, _| {
            let seen = &mut seen[i as usize % buffers];
            *seen += 1;
            [(true, 100_000), (true, 300_000), (false, 60_000)][usize::min(*seen, 3) - 1]
        }
    }

    #[test]
    fn what_it_takes_to_grant_pages_once_does_not_count() {
        let mut ways = Ways::default();
        assert!(by_pages(&mut ways, 100, pool(1)).0 > 80);
        // Other buffers, more of them.
        for buffers in [16, 40] {
            let (all, _) = by_pages(&mut ways, 2000, pool(buffers));
            assert!(all >= 1990, "{all}: all but trials of two copies");
        }
        // Tried until a buffer has come back.
        let (all, _) = by_pages(&mut Ways::default(), 1000, pool(5));
        assert!(all > 950, "{all}");
    }

    #[test]
    fn pages_that_must_be_granted_again_and_again_cost_what_they_cost() {
        // One message of so many is odd, and takes so long; after those of the beginning all is hardly slower than by copy.
        for (one_of, ns) in
            [(1, 150_000), (1, 2_000_000), (2, 500_000), (3, 2_000_000), (4, 500_000), (8, 800_000)]
        {
            let mut ways = Ways::default();
            by_pages(&mut ways, 1000, pool(1));
            let odd = |_: u32, n: u32| if n.is_multiple_of(one_of) { (true, ns) } else { (false, 60_000) };
            by_pages(&mut ways, 3000, odd);
            let (all, mean) = by_pages(&mut ways, 50_000, odd);
            assert!(mean < 125_000, "1 of {one_of} in {ns}: {all} by pages, {mean} ns");
            // A buffer that comes back is found again.
            let (all, _) = by_pages(&mut ways, 60_000, pool(4));
            assert!(all > 30_000, "1 of {one_of} in {ns}: {all}");
        }
        // Two of three.
        let mut ways = Ways::default();
        by_pages(&mut ways, 1000, pool(1));
        let odd = |_: u32, n: u32| if n.is_multiple_of(3) { (false, 60_000) } else { (true, 500_000) };
        by_pages(&mut ways, 3000, odd);
        let (all, mean) = by_pages(&mut ways, 50_000, odd);
        assert!(mean < 125_000, "{all} by pages, {mean} ns");
        // Of few the grants are paid by the others, and worth it.
        let mut ways = Ways::default();
        let odd = |_: u32, n: u32| if n.is_multiple_of(40) { (true, 500_000) } else { (false, 60_000) };
        assert!(by_pages(&mut ways, 10_000, odd).0 > 9_900);
    }

    #[test]
    fn a_large_pool_stays_although_some_messages_wait_for_a_processor() {
        let mut ways = Ways::default();
        let mut new = pool(200);
        by_pages(&mut ways, 4000, &mut new);
        let (all, _) =
            by_pages(&mut ways, 16_000, |i, n| if n % 200 == 199 { (false, 3_000_000) } else { new(i, n) });
        assert!(all > 10_000, "{all}");
    }

    #[test]
    fn buffers_that_never_come_back_end_their_trials() {
        let mut ways = Ways::default();
        let (all, _) = by_pages(&mut ways, 10_000, |_, _| (true, 105_000));
        assert!(all < 300, "{all}");
        // Nor do those that came back once keep others on their way.
        let mut ways = Ways::default();
        by_pages(&mut ways, 1000, pool(1));
        let (all, _) = by_pages(&mut ways, 20_000, |_, _| (true, 120_000));
        assert!(all < 2000, "{all}");
    }

    #[test]
    fn an_odd_message_is_not_charged_to_the_next_one() {
        let (mut ways, begin) = (Ways::default(), Instant::now());
        let len = attach::LEAST;
        // All asked for at the same time.
        for (i, (way, is_odd)) in
            (1..).zip([(Way::Copy, false), (Way::Pages, true), (Way::Copy, false), (Way::Copy, false)])
        {
            let at = begin + Duration::from_nanos(if i == 1 { len } else { (i + 10) * len });
            let choice = Choice { len, one_copy: Way::Pages };
            ways.ended_at(Measured { choice, way, begin }, is_odd, at);
        }
        assert_eq!(ways.class(PAGES).costs[0].ns, Some(1.0));
    }

    #[test]
    fn pages_may_take_a_little_longer_since_their_sender_does_not_copy() {
        for (ns, expected) in [(102_000, true), (105_000, false)] {
            let (mut ways, now, mut by_pages) = (Ways::default(), Instant::now(), 0);
            for _ in 0..200 {
                let way = ways.choose(PAGES);
                let message = Measured { choice: PAGES, way, begin: now };
                let ns = if way == Way::Pages { ns } else { 100_000 };
                by_pages += u32::from(way == Way::Pages);
                ways.last_end = None;
                ways.ended_at(message, false, now + Duration::from_nanos(ns));
            }
            assert_eq!(by_pages > 100, expected, "{ns}: {by_pages}");
        }
    }

    #[test]
    fn what_lies_in_the_region_is_measured_by_itself() {
        let (mut ways, now) = (Ways::default(), Instant::now());
        let resident = Choice { len: 100_000, one_copy: Way::Resident };
        for i in 0..100 {
            for (choice, [copy, one_copy]) in
                [(resident, [100_000, 50_000]), (to_attach(100_000), [100_000, 200_000])]
            {
                let way = ways.choose(choice);
                let took = if way == Way::Copy { copy } else { one_copy };
                ways.last_end = None;
                ways.ended_at(Measured { choice, way, begin: now }, false, now + Duration::from_nanos(took));
                if i >= TRIALS && i != 64 + TRIALS {
                    let faster = if choice.one_copy == Way::Resident { Way::Resident } else { Way::Copy };
                    assert_eq!(way, faster, "message {i}");
                }
            }
        }
    }

    #[test]
    fn classes_are_powers_of_four() {
        let lens = [1, (1 << 16) - 1, 1 << 16, (1 << 18) - 1, 1 << 18, 1 << 20, 1 << 22, 1 << 40, u64::MAX];
        assert_eq!(lens.map(class_of), [0, 0, 1, 1, 2, 3, 4, 8, 8]);
    }
}
