//! Which way a long message goes, where there is more than one: found by measurement, for each remote endpoint and class of
//! lengths, and for what lies in memory of the region separately.
//!
//! The receiver chooses and measures. A message counts from when it was asked for, or from when the last one ended if that is
//! later: of messages that overlap each counts the time that it adds. If no other is under way when it ends, the time until the next one is
//! asked for counts as well, as much as a message before took at most: in two copies a sender goes on while its receiver still copies, and
//! with one copy it goes on after that, so what a sender has to do until its next message is a longer wait for the receiver.
//!
//! One message says little: the first of several adds what all have to wait for, while the receiver copies one by itself the sender
//! fills chunks for the next, and caches are those of the way before. So messages have the same way and are measured together, as one *streak*,
//! as for the depth of pipelines ([`super::depth`]). Of messages by pages those do not count that cost what the next one of the same
//! buffer will not, unless there are many of them.
//!
//! Here is what circumstances a message comes in; [`class`] has what is learnt in each of them, and [`cost`] the means. What is faster depends on
//! caches, on where the two processes run, and on what they do, so no number here is one of a machine.

mod class;
mod cost;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use isthmus_region::counters::Counter;

use super::attach;
use super::work::{Own, Watched};
use class::Class;
pub(super) use cost::Cost;

/// Classes of lengths: the first ends at [`attach::LEAST`], and each other but the last reaches to four times the one before.
pub(super) const CLASSES: usize = 9;
/// Messages after a first one that goes the other way that are taken for such that come meanwhile; for each further one there is one more, up to so
/// many.
const MUTUAL: (u32, u32) = (16, 256);
/// One message in `2^SELDOM` is watched, in an order that no program's steps have; and each that is counted by the time of the copies.
const SELDOM: u32 = 3;
/// After a message says that the program works, so many are taken for such that come while it does. Each further one that says so doubles the number,
/// up to the second value. One that says that the program waits counts as so many of them.
const AT_WORK: (u32, u32) = (8, 128);
const WAITS: u32 = 16;
/// A message that is counted by the time of the copies, and for which pages were granted, costs so many times these at most.
const MOST_ODD_WORK: u64 = 32;
/// Messages follow each other if there is less between them than such a part of the time that one takes.
const PAUSE: u64 = 8;

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

    /// How much longer than two copies it may take, as the receiver sees it, which does not see that its sender has nothing to copy: of all
    /// work of both that is nearly half.
    fn favour(self) -> f64 {
        if self.is_by_processors() { 1.03 } else { 1.0 }
    }

    /// Whether the copies are such as those of two copies, and not the kernel's.
    fn is_by_processors(self) -> bool {
        matches!(self, Self::Pages | Self::Resident)
    }
}

/// A message that may come in two copies or in one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    pub(super) len: u64,
    /// The way that is one copy.
    pub(super) one_copy: Way,
    /// The receiver has long messages of its own under way to the sender.
    pub(super) is_sending: bool,
}

/// A message that is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    choice: Choice,
    pub(super) way: Way,
    begin: Instant,
    /// The streak that it is part of, and whether it counts there.
    streak: u64,
    counts: bool,
    /// Whether it is one of several at a time, and whether messages go the other way meanwhile.
    is_dense: bool,
    is_mutual: bool,
    /// Whether it is taken for one that comes while the program works.
    pub(super) is_at_work: bool,
    /// Whether it is counted by the time of the copies.
    pub(super) is_by_copies: bool,
    /// Whether it is to be watched, and what is known then.
    pub(super) is_watched: bool,
    pub(super) watched: Option<Watched>,
}

/// Does what copies bytes of a message.
#[inline]
pub(super) fn timed<T>(message: &mut Option<Measured>, copy: impl FnOnce() -> T) -> T {
    let begin = message.and_then(|message| message.watched).map(|_| Instant::now());
    let done = copy();
    if let (Some(begin), Some(Measured { watched: Some(watched), .. })) = (begin, message) {
        watched.copied(begin);
    }
    done
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
}

/// Messages of about the same length, in four classes, since what is faster for some may be slower for others: those that come while long messages go
/// the other way, with which both processes have work, too, and others; and of both those that follow one another, and those that come one at a
/// time, between which the program does other things.
#[derive(Debug, Clone, Copy, Default)]
struct Lengths {
    waiting: [[Class; 2]; 2],
    /// Of messages that are counted by the time of the copies, however many come at a time: while the program works, and some while messages go the
    /// other way.
    by_copies: Class,
}

/// A message that has ended, in so many nanoseconds, while no other was under way: what lies between it and the next one is not known yet.
#[derive(Debug, Clone, Copy)]
struct Held {
    message: Measured,
    ns: u64,
    is_odd: bool,
}

/// What is known of the ways to one remote endpoint.
#[derive(Debug, Default)]
pub(super) struct Ways {
    /// Of messages that lie in memory of the region, and of others; none before the first message that has a choice.
    resident: Option<Box<[Lengths; CLASSES]>>,
    others: Option<Box<[Lengths; CLASSES]>>,
    under_way: u64,
    held: Option<Held>,
    /// Messages that have ended since none was under way, and the nanoseconds that they took.
    busy: (u64, u64),
    /// Whether the last message that came after a pause was followed by another one without a pause.
    is_dense: bool,
    /// How many of the next ones are taken for such that come while messages go the other way, if no more are sent there.
    mutual: u32,
    /// Messages that had a choice; and how many of the next ones are taken for such that come while the program works.
    messages: u32,
    at_work: u32,
    /// What a message that says that the program works raises `at_work` to. Such a message doubles this first; one that says that it waits halves it.
    worked: u32,
    /// Whether the last message overlapped with long ones that the receiver sent.
    overlaps: bool,
    /// When the last one ended, and how long it took.
    last_end: Option<Instant>,
    last_ns: u64,
}

/// The nanoseconds that a message adds to those before it, of which the last ended at `last_end`; that is `now` then.
pub(super) fn added(last_end: &mut Option<Instant>, begin: Instant, now: Instant) -> u64 {
    let begin = last_end.map_or(begin, |last| last.max(begin));
    *last_end = Some(now);
    nanoseconds(now.saturating_duration_since(begin))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The class of a length.
pub(super) fn class_of(len: u64) -> usize {
    let quarters = (4 * (len.min(u64::MAX / 4)) / attach::LEAST).max(1).ilog2() / 2;
    (quarters as usize).min(CLASSES - 1)
}

impl Ways {
    fn lengths(&mut self, choice: Choice) -> &mut Lengths {
        let of = if choice.one_copy == Way::Resident { &mut self.resident } else { &mut self.others };
        &mut of.get_or_insert_default()[class_of(choice.len)]
    }

    fn class(&mut self, message: &Measured) -> &mut Class {
        let lengths = self.lengths(message.choice);
        if message.is_by_copies {
            &mut lengths.by_copies
        } else {
            &mut lengths.waiting[usize::from(message.is_mutual)][usize::from(message.is_dense)]
        }
    }

    /// The next message, which is asked for now, and its way.
    pub(super) fn begin(&mut self, choice: Choice) -> Measured {
        self.begin_at(choice, Instant::now())
    }

    fn begin_at(&mut self, choice: Choice, now: Instant) -> Measured {
        let gap = match self.last_end {
            Some(end) if self.under_way == 0 => nanoseconds(now.saturating_duration_since(end)),
            _ => 0,
        };
        let busy = if self.under_way == 0 { std::mem::take(&mut self.busy) } else { self.busy };
        if let Some(Held { message, ns, is_odd }) = self.held.take() {
            let most = busy.1 / busy.0.max(1);
            self.class(&message).ended(&message, Some(ns.saturating_add(gap.min(most))), is_odd);
        }
        let is_dense = self.next_is_dense(gap);
        let is_mutual = self.mutual > 0;
        self.mutual = self.mutual.saturating_sub(1);
        self.under_way += 1;
        // While both send, each has work all the time, whatever the other does; what elapses depends on the other's choice, too. Not so where they do
        // in turn.
        let do_both = is_mutual && (choice.is_sending || self.overlaps);
        let is_at_work = self.at_work > 0;
        let is_by_copies = is_at_work || do_both && choice.one_copy.is_by_processors();
        self.messages = self.messages.wrapping_add(1);
        // Multiples of the golden ratio.
        let is_watched = is_by_copies || self.messages.wrapping_mul(0x9e37_79b9) >> (32 - SELDOM) == 0;
        let lengths = self.lengths(choice);
        let message = if is_by_copies {
            // One copy instead of two of the same kind is half the work, unless memory or the program are unusual.
            if choice.one_copy.is_by_processors() {
                let has_failed = lengths.waiting.iter().flatten().any(Class::has_failed);
                lengths.by_copies.begin_with_one_copy(choice, has_failed);
            }
            lengths.by_copies.begin(choice, now, false, is_mutual)
        } else {
            lengths.waiting[usize::from(is_mutual)][usize::from(is_dense)]
                .begin(choice, now, is_dense, is_mutual)
        };
        Measured { is_at_work, is_by_copies, is_watched, ..message }
    }

    /// A long message is announced to the remote endpoint.
    pub(super) fn sent(&mut self) {
        self.mutual = if self.mutual == 0 { MUTUAL.0 } else { MUTUAL.1.min(self.mutual + 1) };
    }

    /// Whether the next message, which is asked for now, is one of several at a time. The first of several is taken for one if the last first
    /// was.
    fn next_is_dense(&mut self, gap: u64) -> bool {
        if self.under_way > 0 || self.last_end.is_some() && gap < self.last_ns / PAUSE {
            self.is_dense = true;
            return true;
        }
        std::mem::take(&mut self.is_dense)
    }

    /// A message has ended; gives how many nanoseconds it took.
    fn over(&mut self, message: &Measured, now: Instant) -> u64 {
        self.under_way = self.under_way.saturating_sub(1);
        self.last_ns = added(&mut self.last_end, message.begin, now);
        self.busy = (self.busy.0 + 1, self.busy.1.saturating_add(self.last_ns));
        self.last_ns
    }

    /// A message has ended well; gives how many nanoseconds it took. It is odd if it was to come in pages and cost what the next one of the
    /// same buffer will not: hardly any page was granted, since the buffer had not come back; they were granted for this message; or
    /// one was no longer granted when it was read.
    ///
    /// `own` is what is known of one that was watched.
    pub(super) fn ended(&mut self, message: Measured, is_odd: bool, own: Option<Own>) -> u64 {
        self.ended_at(message, is_odd, own, Instant::now())
    }

    fn ended_at(&mut self, message: Measured, is_odd: bool, own: Option<Own>, now: Instant) -> u64 {
        let ns = self.over(&message, now);
        let is_odd = is_odd && message.way == Way::Pages;
        self.hear(own);
        if message.is_by_copies {
            let ns = match own {
                // What its sender had to do is a part of what it took.
                Some(own) if own.is_fresh => ns.min(own.copies.saturating_mul(MOST_ODD_WORK)),
                Some(own) => own.copies,
                None => ns,
            };
            self.class(&message).ended(&message, Some(ns), is_odd);
        } else if own.is_some_and(|own| own.is_at_work == Some(true)) {
            // What it took is the program's time.
            self.class(&message).ended(&message, None, is_odd);
        } else if self.under_way == 0 {
            self.held = Some(Held { message, ns, is_odd });
        } else {
            self.class(&message).ended(&message, Some(ns), is_odd);
        }
        ns
    }

    /// A message has ended well, in circumstances from which nothing is learnt; gives how many nanoseconds it took.
    pub(super) fn passed(&mut self, message: Measured, own: Option<Own>) -> u64 {
        self.hear(own);
        let ns = self.over(&message, Instant::now());
        self.class(&message).ended(&message, None, false);
        ns
    }

    /// Whether a message overlapped with long ones of the receiver's: `is_sending` if there are any when it has come.
    pub(super) fn overlapped(&mut self, message: &Measured, is_sending: bool) {
        self.overlaps = message.choice.is_sending || is_sending;
    }

    /// What a message that was watched says of the program.
    fn hear(&mut self, own: Option<Own>) {
        match own {
            Some(Own { is_at_work: Some(true), .. }) => {
                self.worked = (2 * self.worked).clamp(AT_WORK.0, AT_WORK.1);
                self.at_work = self.at_work.max(self.worked);
            }
            Some(Own { is_at_work: Some(false), .. }) => {
                // One of them may have waited for something else. It takes back what one that works has added.
                self.at_work = self.at_work.saturating_sub(WAITS);
                self.worked = (self.worked / 2).min(self.at_work);
            }
            Some(Own { is_at_work: None, .. }) => self.at_work = self.at_work.saturating_sub(1),
            None => {}
        }
    }

    /// A message could not go the way that was chosen.
    pub(super) fn failed(&mut self, message: Measured) {
        self.under_way = self.under_way.saturating_sub(1);
        self.class(&message).failed(&message);
    }
}
