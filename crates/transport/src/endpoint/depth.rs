//! How many chunks of a pipelined message may be under way: the usual few, which stay in caches that both processors are close to, or
//! many, which hold up the sender less where the receiver's copies are the slower ones, since it must fetch each line from a cache
//! that it does not share. Which is faster depends on the machine and on where both processes run, so it is found by measurement.
//!
//! The receiver measures and says which it wants. One message of many says nothing, as it depends on those before it what the caches
//! hold; so messages of about the same length take turns in *streaks*, of which the beginning is not counted. From then on the depth that
//! was faster has almost all of them, as with the ways of [`super::ways`]. Those learn nothing from a trial. While they prefer another
//! way than two copies there are hardly other copies than those of their trials, and these make up the streaks.

use std::time::Instant;

use super::ways::{CLASSES, Cost, added, class_of};

/// Bytes of a streak: so many do not count, and then so many do.
const UNCOUNTED: u64 = 1 << 20;
const COUNTED: u64 = 4 << 20;
/// Streaks that take turns at first.
const TRIALS: u64 = 8;
/// Streaks from one trial of the slower depth to the next, at first and at most: few, so that a process which is moved to another
/// processor soon has the depth for that.
const RETRY: (u64, u64) = (16, 128);
/// How much faster many chunks must be: they take memory.
const FAVOUR: f64 = 0.97;
/// A streak that costs less than this much of what was known is not chance: a process was moved, say.
const SUDDEN: f64 = 0.75;

/// A message that is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timed {
    len: u64,
    begin: Instant,
    pub(super) is_deep: bool,
    /// Its depth is not the one that is known to be faster.
    pub(super) is_trial: bool,
}

/// Lengths of about the same size.
#[derive(Debug, Clone, Copy, Default)]
struct Class {
    /// Streaks before this one, and which depth it has.
    streaks: u64,
    is_deep: bool,
    /// Whether the greater depth is known to be faster.
    is_deep_faster: bool,
    /// Bytes of this streak, and of those that count: how many, and how long they took.
    bytes: u64,
    counted: u64,
    ns: u64,
    /// By depth.
    costs: [Cost; 2],
    /// The streak with which the slower one is tried again, and the distance to the trial after that.
    retry: u64,
    gap: u64,
}

impl Class {
    fn learn(&mut self, timed: &Timed, ns: u64) {
        if timed.is_deep != self.is_deep {
            // Of the streak before this one.
            return;
        }
        if self.bytes >= UNCOUNTED {
            self.counted = self.counted.saturating_add(timed.len);
            self.ns = self.ns.saturating_add(ns);
        }
        self.bytes = self.bytes.saturating_add(timed.len);
        if self.counted >= COUNTED {
            // Lengths and times far below 2^53.
            let cost = &mut self.costs[usize::from(self.is_deep)];
            let ns = self.ns as f64 / self.counted as f64;
            if cost.each().is_some_and(|each| ns < SUDDEN * each) {
                *cost = Cost::of(ns);
                self.gap = RETRY.0;
                self.retry = self.retry.min(self.streaks + 1 + self.gap);
            } else {
                cost.add(ns);
            }
            self.next();
        }
    }

    /// Begins a streak.
    fn next(&mut self) {
        (self.bytes, self.counted, self.ns) = (0, 0, 0);
        self.streaks += 1;
        if self.streaks < TRIALS {
            self.is_deep = !self.streaks.is_multiple_of(2);
            return;
        }
        self.is_deep_faster = match self.costs.map(Cost::each) {
            [Some(usual), Some(deep)] => deep < usual * FAVOUR,
            _ => false,
        };
        if self.streaks == TRIALS {
            self.gap = RETRY.0;
            self.retry = self.streaks + self.gap;
        }
        let is_trial = self.streaks >= self.retry;
        if is_trial {
            self.gap = (2 * self.gap).min(RETRY.1);
            self.retry = self.streaks + self.gap;
        }
        self.is_deep = self.is_deep_faster != is_trial;
    }
}

/// What is known of depths for the messages of one remote endpoint.
#[derive(Debug, Default)]
pub(super) struct Depths {
    /// None before the first message.
    classes: Option<Box<[Class; CLASSES]>>,
    last_end: Option<Instant>,
}

impl Depths {
    /// The depth of the next message of a length, which is asked for now.
    pub(super) fn begin(&mut self, len: u64) -> Timed {
        let class = &self.classes.get_or_insert_default()[class_of(len)];
        let is_deep = class.is_deep;
        let is_trial = is_deep != class.is_deep_faster;
        Timed { len, begin: Instant::now(), is_deep, is_trial }
    }

    /// A message has ended that came another way.
    pub(super) fn passed(&mut self) {
        self.last_end = Some(Instant::now());
    }

    /// A message has ended well. Of messages that overlap each counts the time that it adds.
    pub(super) fn ended(&mut self, timed: Timed) {
        self.ended_at(timed, Instant::now());
    }

    fn ended_at(&mut self, timed: Timed, now: Instant) {
        let ns = added(&mut self.last_end, timed.begin, now);
        self.classes.get_or_insert_default()[class_of(timed.len)].learn(&timed, ns);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LEN: u64 = 64 << 10;

    /// Receives messages that take `ns` by their depth, eight at once; gives how many of a thousand were deep.
    fn run(depths: &mut Depths, count: u32, mut ns: impl FnMut(bool) -> u64) -> u32 {
        let mut now = depths.last_end.unwrap_or_else(Instant::now);
        let mut deep = 0;
        for _ in 0..count / 8 {
            let window: Vec<Timed> = (0..8).map(|_| Timed { begin: now, ..depths.begin(LEN) }).collect();
            for timed in window {
                now += Duration::from_nanos(ns(timed.is_deep));
                depths.ended_at(timed, now);
                deep += u32::from(timed.is_deep);
            }
        }
        u32::try_from(u64::from(deep) * 1000 / u64::from(count)).unwrap()
    }

    fn by_depth(usual: u64, deep: u64) -> impl FnMut(bool) -> u64 {
        move |is_deep| if is_deep { deep } else { usual }
    }

    #[test]
    fn the_faster_depth_has_almost_all_messages() {
        // A streak has 80 messages or so.
        let mut far = Depths::default();
        let deep = run(&mut far, 800, by_depth(10_000, 9_000));
        assert!((350..650).contains(&deep), "turns: {deep}");
        assert!(run(&mut far, 40_000, by_depth(10_000, 9_000)) > 950);
        let mut near = Depths::default();
        run(&mut near, 800, by_depth(2_000, 2_200));
        assert!(run(&mut near, 40_000, by_depth(2_000, 2_200)) < 50);
        // Where both are alike, the one that takes less memory.
        let mut alike = Depths::default();
        run(&mut alike, 800, by_depth(2_000, 1_980));
        assert!(run(&mut alike, 40_000, by_depth(2_000, 1_980)) < 50);
    }

    #[test]
    fn a_process_that_is_moved_has_another_depth_soon() {
        let mut depths = Depths::default();
        run(&mut depths, 100_000, by_depth(10_000, 9_000));
        // To a processor that shares its cache, where a message takes a fifth of the time; and back.
        run(&mut depths, 40_000, by_depth(2_000, 2_200));
        assert!(run(&mut depths, 40_000, by_depth(2_000, 2_200)) < 50);
        run(&mut depths, 40_000, by_depth(10_000, 9_000));
        assert!(run(&mut depths, 40_000, by_depth(10_000, 9_000)) > 950);
    }

    #[test]
    fn messages_that_wait_for_a_processor_change_little() {
        let mut depths = Depths::default();
        let mut number = 0_u64;
        let mut ns = move |is_deep| {
            number += 1;
            let waits = if number.is_multiple_of(1009) { 4_000_000 } else { 0 };
            waits + if is_deep { 8_500 } else { 10_000 }
        };
        run(&mut depths, 2000, &mut ns);
        assert!(run(&mut depths, 100_000, &mut ns) > 800);
    }

    #[test]
    fn lengths_have_depths_of_their_own() {
        let mut depths = Depths::default();
        run(&mut depths, 4000, by_depth(10_000, 5_000));
        let timed = depths.begin(LEN + 1);
        assert!(timed.is_deep != timed.is_trial, "deep is the faster one");
        let timed = depths.begin(4 << 20);
        assert!(!timed.is_deep && !timed.is_trial, "nothing is known of these");
    }
}
