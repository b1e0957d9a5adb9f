//! Messages of about the same length, in like circumstances: their streaks, and which way is the usual one.
//!
//! At first the ways alternate, and the first streak of each is not measured, since memory is touched and the sender's process looked up there.
//! Not so where messages are counted by the time of their copies and the one copy is of the same kind as the two: it is half the work, so it is
//! the usual way until a trial finds otherwise, and a program that sends few messages has it as well. From then on the way that was faster has
//! almost all messages; the other is tried again after 256 of them, and then ever more seldom while it stays the slower one. If the usual way
//! comes to take longer than the other once did, the other is not taken at once, since what slows down one may slow down both, and each change
//! costs something. It is tried: the longer the usual way takes, the sooner. It becomes the usual one if it is faster in that trial. The way
//! that was left is expected to take what it did at its best, so it is soon tried again. After trials in vain the next ones come later.
//!
//! One message says nothing about a way that none has come for long: caches have become used to the other, and it takes some ten
//! megabytes until they are used to this one. So a trial is a streak as well, of which the end counts, and it is given up if it takes
//! far longer than the usual way.

use std::time::Instant;

use super::cost::{Cost, TRIALS, Took};
use super::{Choice, Measured, Way};

/// Messages and bytes that count after which a streak ends: of messages that come one at a time and of others, while the ways
/// alternate and later.
const STREAK: [[(u64, u64); 2]; 2] = [[(4, 4 << 20), (64, 8 << 20)], [(16, 4 << 20), (u64::MAX, 8 << 20)]];
/// Bytes at the beginning of one of the first streaks that do not count: of messages that come one at a time, none if one is longer; and of
/// others if the streak before is still under way, then one message at least.
const UNCOUNTED: [u64; 2] = [256 << 10, 1 << 20];
/// Messages and bytes of a trial, at most. Between two trials, after the first, there are at least so many times the messages of one, unless the usual
/// way has become slower.
const TRIAL: (u64, u64) = (64, 64 << 20);
const RARE: u64 = 64;
/// If the usual way takes longer than is known of the other by a part p of that, there are so many divided by p times the messages of a trial between
/// two trials (p of a half: four times), and once at least. Each trial of late that was in vain doubles that, up to so often. A change that is
/// undone within so many times the messages of a trial was in vain, too.
const DOUBT: f64 = 2.0;
pub(super) const MOST_DOUBTS: u32 = 5;
const LASTING: u64 = 8;
/// A trial goes on as long as messages overlap, for so many at most.
const OVERLAP: u64 = 16;
/// A streak ends early if it takes so many times what the usual way takes: a trial after a quarter of its messages, another after so many.
const TOO_LONG: f64 = 2.0;
const FEW: u64 = 16;
/// A message that may only have waited for a processor counts so many times what the usual way takes at most: one that is single or of a trial,
/// and another. Odd ones count in full.
const MOST: (f64, f64) = (4.0, 16.0);
/// Messages before the first trial; and, where it is known which way is the better one, bytes of as many as long as the first.
const SOON: u64 = 256;
const SOON_BYTES: u64 = 256 << 20;
/// A way is given up if it fails twice in so many messages.
const FAILS: u32 = 8;
/// Streaks by pages, at most, that are followed by another one where the ways alternate, and trials, since no buffer had come back.
const MORE: (u64, u64) = (8, 2);
/// One odd message ([`super::Ways::ended`]) in so many does not count, nor do the first ones beyond that: so many messages, or so many bytes if
/// that is more. Both are counted in parts, of which each odd message takes as many as others give back.
const ODD_SHARE: u32 = 32;
const ODD: (u64, u64) = (128, 64 << 20);
/// An odd message that takes twice as long as so many copies of its length, or three times, counts as two or three; as 16 at most.
const DEAR: f64 = 8.0;
/// Messages from one trial to the next, at most, if trials are not so rare already.
const RETRY: u64 = 4096;

/// Messages that come by the same way and are measured together.
#[derive(Debug, Clone, Copy, Default)]
struct Streak {
    /// From 1.
    number: u64,
    /// Of messages that are several at a time.
    is_dense: bool,
    /// One of those in which the ways alternate.
    is_first: bool,
    /// None if it has ended.
    way: Option<Way>,
    /// How many messages it is to have if it is a trial.
    trial: Option<u64>,
    /// It has taken too long.
    is_too_long: bool,
    /// What counts began while others were under way.
    is_part: bool,
    /// Messages that were asked for, those that count, and those that are under way.
    asked: u64,
    counting: u64,
    open: u64,
    /// Messages that have ended, and messages and bytes that count of these.
    ended: u64,
    came: (u64, u64),
    /// Odd messages that have come.
    odd: u64,
    /// Bytes that have come and the nanoseconds that they took, of all but odd messages that do not count, and of what counts.
    all: Took,
    counted: Took,
}

impl Streak {
    /// Whether it has the next message, too.
    fn goes_on(&self) -> bool {
        let (messages, bytes) = STREAK[usize::from(self.is_dense)][usize::from(!self.is_first)];
        self.way.is_some()
            && !self.is_too_long
            && match self.trial {
                // All of those that overlap, so that it says as much as other streaks.
                Some(trial) => self.asked < trial || self.open > 0 && self.asked < trial + OVERLAP.min(trial),
                // What has come, since much more may be under way.
                None => self.came.0 < messages && self.came.1 < bytes,
            }
    }
}

/// Lengths of about the same size.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Class {
    messages: u64,
    /// This streak, and the one before as long as messages of that are under way.
    streak: Streak,
    last: Option<Streak>,
    /// How many of the next messages do not count.
    settling: u64,
    /// Streaks that said nothing while the ways alternated; whether they never do, since one is known to be the better one.
    unfit: u64,
    is_known: bool,
    /// How many more trials may say nothing, each of which is followed by another one; whether the next is such.
    more: u64,
    is_more: bool,
    /// Parts that odd messages have taken, and others not given back; and how many do not count.
    odd: u32,
    most_odd: u32,
    /// By way.
    pub(super) costs: [Cost; 2],
    /// The usual way, which was the faster one when that was last decided, and the message from which on it is; the message with which the other
    /// is tried again, and the distance to the trial after that.
    faster: Option<Way>,
    since: u64,
    retry: u64,
    gap: u64,
    /// The message with which the last trial began, whether it came early since the usual way had become slower, and of which way it was and what
    /// a byte took, until that is looked at.
    tried: u64,
    is_doubted: bool,
    found: Option<(Way, f64)>,
    /// Trials that were in vain, of late.
    doubts: u32,
    /// What the usual way took at its best since it became the usual one.
    least: f64,
    /// What is left of failures of the way that is one copy.
    fails: u32,
}

impl Class {
    /// The next message, which is asked for now.
    pub(super) fn begin(
        &mut self,
        choice: Choice,
        begin: Instant,
        is_dense: bool,
        is_mutual: bool,
    ) -> Measured {
        if !self.streak.goes_on() {
            self.next_streak(choice, is_dense);
        }
        if self.most_odd == 0 {
            let most_odd = ODD.0.max(ODD.1 / choice.len.max(1));
            self.most_odd = u32::try_from(most_odd).unwrap_or(u32::MAX).saturating_mul(ODD_SHARE);
        }
        let streak = &mut self.streak;
        let is_idle = streak.open == 0 && self.last.is_none();
        let counts = match streak.trial {
            Some(trial) => {
                streak.counting > 0
                    || streak.asked
                        >= if is_idle { trial - trial.div_ceil(4) } else { trial - trial.div_ceil(8) }
            }
            None => self.settling == 0,
        };
        streak.is_part |= counts && streak.counting == 0 && !is_idle;
        self.settling = self.settling.saturating_sub(1);
        self.messages += 1;
        streak.asked += 1;
        streak.counting += u64::from(counts);
        streak.open += 1;
        Measured {
            choice,
            way: streak.way.unwrap_or(Way::Copy),
            begin,
            streak: streak.number,
            counts,
            is_dense,
            is_mutual,
            is_at_work: false,
            is_by_copies: false,
            is_watched: false,
            watched: None,
        }
    }

    fn next_streak(&mut self, choice: Choice, is_dense: bool) {
        let streak = self.streak;
        if streak.way.is_some() {
            if streak.open > 0 {
                let before = self.last.replace(streak);
                before.into_iter().for_each(|before| self.finish(before));
            } else {
                self.finish(streak);
            }
        }
        self.streak = Streak { number: streak.number + 1, is_dense, ..Streak::default() };
        let before = self.faster;
        let way = self.choose(choice);
        self.streak.way = Some(way);
        self.streak.is_first = self.streak.number <= self.first_streaks();
        // The caches are those of the way before.
        if streak.trial.is_some() && self.faster == before {
            self.settling = streak.asked / 2;
        } else if self.streak.is_first {
            // The first of several at a time adds what all wait for, which is a part of what they take; unless others are under way.
            let settling = UNCOUNTED[usize::from(is_dense)] / choice.len.max(1);
            self.settling = if streak.open > 0 {
                settling.max(1)
            } else if is_dense {
                0
            } else {
                settling
            };
        }
    }

    /// The way of this streak; says in it whether it is a trial.
    fn choose(&mut self, choice: Choice) -> Way {
        let (number, one_copy) = (self.messages, choice.one_copy);
        if self.streak.number <= self.first_streaks() {
            return if self.streak.number.is_multiple_of(2) { one_copy } else { Way::Copy };
        }
        let trial = TRIAL.0.min(TRIAL.1 / choice.len.max(1)).max(2);
        // More than 1 if the way that is one copy is the faster one.
        let ratio = |[copy, other]: [Option<f64>; 2]| match (copy, other) {
            (Some(copy), Some(other)) => copy * one_copy.favour() / other,
            _ => 0.0,
        };
        let known = self.costs.map(|cost| cost.each());
        let before = self.faster.map(Way::place);
        let mut usual = before.unwrap_or(usize::from(ratio(known) > 1.0));
        let found = self.found.take().filter(|(way, _)| way.place() != usual).map(|(_, ns)| ns);
        let now = [0, 1].map(|place| if place == usual { known[place] } else { found.or(known[place]) });
        if usize::from(ratio(now) > 1.0) != usual && (found.is_some() || known[usual] == Some(f64::INFINITY))
        {
            self.change(usual, found, number - self.since < LASTING * trial);
            usual = 1 - usual;
        } else if found.is_some() {
            self.doubt(self.is_doubted);
            if let (true, Some(found), Some(old)) = (self.is_doubted, found, known[1 - usual])
                && found > old
            {
                self.costs[1 - usual] = Cost::of(f64::midpoint(old, found));
            }
        }
        if before != Some(usual) {
            // If it changes back and forth, trials stay as rare as they were.
            if number - self.since >= self.gap {
                self.gap = SOON;
            }
            (self.since, self.least, self.retry) = (number, f64::INFINITY, number + self.gap);
        }
        let ways = [Way::Copy, one_copy];
        let (way, other) = (ways[usual], ways[1 - usual]);
        self.faster = Some(way);
        // What is known of the other is old: if the usual way takes longer now, so may that. It is tried before it is taken.
        let ratio = ratio(self.costs.map(|cost| cost.each()));
        let more = if usual == 0 { ratio } else { 1.0 / ratio } - 1.0;
        let (ago, vain) = (number - self.tried, f64::from(1 << self.doubts));
        let is_doubted = more.is_finite() && ago >= trial && ago as f64 * more >= DOUBT * trial as f64 * vain;
        if number < self.retry && !is_doubted {
            return way;
        }
        let is_doubted = is_doubted && number < self.retry;
        self.streak.trial = Some(trial);
        self.tried = number;
        if !std::mem::take(&mut self.is_more) {
            self.more = MORE.1;
            self.is_doubted = is_doubted;
            if !is_doubted {
                self.gap = (2 * self.gap).min(RETRY).max(RARE * trial);
            }
        }
        self.retry = number + self.gap;
        other
    }

    /// The other way is the usual one from now on, since a trial has found what it takes, or since the one before has failed. That may have been slow for
    /// a while only. `is_soon` if the last change was not long ago.
    fn change(&mut self, from: usize, found: Option<f64>, is_soon: bool) {
        if let Some(found) = found {
            self.costs[1 - from] = Cost::of(found);
            let failed = self.costs[from].each() == Some(f64::INFINITY);
            if self.least.is_finite() && !failed {
                self.costs[from] = Cost::of(self.least);
            }
        }
        self.doubt(is_soon);
    }

    /// Trials are rarer from now on if one was in vain, and otherwise more frequent.
    fn doubt(&mut self, is_vain: bool) {
        self.doubts = if is_vain { MOST_DOUBTS.min(self.doubts + 1) } else { self.doubts.saturating_sub(1) };
    }

    /// Streaks in which the ways alternate.
    fn first_streaks(&self) -> u64 {
        if self.is_known { 0 } else { u64::from(TRIALS) + 2 * self.unfit }
    }

    /// The ways do not alternate at first: one copy is the usual one until a trial finds the other faster; or two are, if one could not be made.
    pub(super) fn begin_with_one_copy(&mut self, choice: Choice, has_failed: bool) {
        if self.messages == 0 {
            self.is_known = true;
            let soon = SOON.min(SOON_BYTES / choice.len.max(1)).max(1);
            (self.gap, self.retry, self.least) = (soon, soon, f64::INFINITY);
            self.faster = Some(if has_failed { Way::Copy } else { choice.one_copy });
            if has_failed {
                self.costs[1] = Cost::of(f64::INFINITY);
            }
        }
    }

    /// Whether one copy could not be made.
    pub(super) fn has_failed(&self) -> bool {
        self.costs[1].each() == Some(f64::INFINITY)
    }

    /// A message has ended, in `ns` nanoseconds if something is learnt from it.
    pub(super) fn ended(&mut self, message: &Measured, ns: Option<u64>, is_odd: bool) {
        let len = message.choice.len;
        let mut took = ns.map(|ns| Took { bytes: len, ns: ns as f64 });
        if is_odd {
            // One that is much dearer than a copy takes more parts.
            let dear = took.zip(self.costs[0].each()).map_or(1.0, |(took, copy)| took.each() / (DEAR * copy));
            let times = (2..=16_u32).take_while(|times| dear >= f64::from(*times)).last().unwrap_or(1);
            let parts = ODD_SHARE * times;
            self.odd = self.odd.saturating_add(parts - 1).min(self.most_odd.saturating_mul(2));
            took = took.filter(|_| self.odd > self.most_odd);
        } else if message.way == Way::Pages {
            self.odd = self.odd.saturating_sub(1);
        }
        if message.way != Way::Copy {
            self.fails = self.fails.saturating_sub(1);
        }
        let is_last = self.last.is_some_and(|last| last.number == message.streak);
        let streak = match &mut self.last {
            Some(last) if is_last => last,
            _ if self.streak.number == message.streak => &mut self.streak,
            _ => return,
        };
        streak.open = streak.open.saturating_sub(1);
        streak.ended += 1;
        streak.odd += u64::from(is_odd);
        if message.counts {
            streak.came = (streak.came.0 + 1, streak.came.1.saturating_add(len));
        }
        let usual = self.faster.and_then(|faster| self.costs[faster.place()].each()).unwrap_or(f64::INFINITY);
        if let Some(took) = took {
            // An odd one takes what it takes, and one of several what the others wait for, too, but not a thousand times as much.
            let most = match (is_odd, streak.trial.is_some() || !streak.is_dense) {
                (true, _) => f64::INFINITY,
                (false, true) => MOST.0 * usual,
                (false, false) => MOST.1 * usual,
            };
            streak.all = streak.all.and(took, most);
            if message.counts {
                streak.counted = streak.counted.and(took, most);
            }
        }
        let streak = *streak;
        if is_last {
            if streak.open == 0 {
                self.last = None;
                self.finish(streak);
            }
            return;
        }
        let few = streak.trial.map_or(FEW, |trial| trial.div_ceil(4));
        // What is a mean is not cut short.
        let is_mean = streak.trial.is_none() && streak.way == Some(Way::Pages) && self.odd > self.most_odd;
        self.streak.is_too_long = !is_mean && streak.ended >= few && streak.all.each() > TOO_LONG * usual;
        if streak.open == 0 && !self.streak.goes_on() {
            self.streak.way = None;
            // The end of those that overlap says less than they all do.
            let counted = if streak.trial.is_some() && streak.is_part { streak.all } else { streak.counted };
            self.finish(Streak { counted, ..streak });
        }
    }

    /// A message could not go the way that was chosen.
    pub(super) fn failed(&mut self, message: &Measured) {
        let fails = self.fails + FAILS;
        self.ended(message, None, false);
        self.fails = fails;
        if fails <= FAILS && self.costs[message.way.place()].is_seen() {
            // One buffer, say.
            return;
        }
        self.fails = FAILS;
        self.costs[message.way.place()] = Cost::of(f64::INFINITY);
        // Nothing is learnt from messages that were asked for before.
        self.streak.way = self.streak.way.filter(|way| *way != message.way);
        self.last = self.last.filter(|last| last.way != Some(message.way));
    }

    /// All messages of a streak have ended, or as many as will be heard of.
    fn finish(&mut self, streak: Streak) {
        let Some(way) = streak.way else { return };
        let of = if streak.counted.bytes > 0 || streak.trial.is_none() { streak.counted } else { streak.all };
        if of.bytes == 0 {
            if streak.odd > 0 {
                self.wait_for_buffers(&streak);
            }
            return;
        }
        let ns = of.each();
        let is_first = streak.number <= self.first_streaks();
        let is_dear = way == Way::Pages && self.odd > self.most_odd;
        if streak.trial.is_some() {
            self.found = Some((way, ns));
        }
        let cost = &mut self.costs[way.place()];
        match cost.each() {
            // What was known is old, and of caches that were not used to it.
            Some(old) if streak.trial.is_some() && ns < old => {
                *cost = Cost::of(ns);
                self.look_whether_changed(way, old, ns);
            }
            None if streak.trial.is_some() => *cost = Cost::of(ns),
            // Once the way is not taken, what is tried seldom says more.
            Some(old) if is_dear && (streak.odd > 0 || self.faster == Some(way)) => {
                // One that has to wait for a processor counts no more than twice, as of other ways.
                let most = if streak.odd > 0 || !old.is_finite() { ns } else { 2.0 * old };
                cost.weigh(ns.min(most), streak.ended);
            }
            Some(_) if !is_first && streak.trial.is_none() && streak.asked > 1 => cost.follow(ns),
            before => {
                cost.add(ns);
                if let Some(before) = before {
                    self.look_whether_changed(way, before, ns);
                }
            }
        }
        if let (None, Some(ns), Some(faster)) = (streak.trial, self.costs[way.place()].each(), self.faster)
            && faster.place() == way.place()
        {
            self.least = self.least.min(ns);
        }
    }

    /// No buffer of a streak has come back: another streak is tried in its place.
    fn wait_for_buffers(&mut self, streak: &Streak) {
        if streak.number <= self.first_streaks() {
            self.unfit += u64::from(self.unfit < MORE.0);
        } else if streak.trial.is_some() && self.more > 0 {
            (self.more, self.is_more, self.retry) = (self.more - 1, true, self.messages);
        } else if streak.trial.is_some() {
            // No buffer comes back as long as there are only trials, so what is known decides.
            self.found = self.costs[Way::Pages.place()].each().map(|ns| (Way::Pages, ns));
        }
    }

    /// The way that is not taken has become much faster: soon it is tried again.
    fn look_whether_changed(&mut self, way: Way, before: f64, ns: f64) {
        if self.faster.is_some_and(|faster| faster != way) && ns < 0.75 * before {
            self.gap = SOON;
            self.retry = self.messages + self.gap;
        }
    }
}
