//! How a thread waits until a word of shared memory changes: by the stages of [`isthmus_region::waiting`], each only as long as
//! it pays.
//!
//! What pays is learned from the last waits, per object and process (per participant of a barrier):
//! - A spin that ended the wait allows the next one to last longer, any other makes it shorter; now and then a long one is
//!   tried. The longest is what going to sleep and being woken costs: about 20 microseconds natively; in a VM, where that differs
//!   by far, the shortest of the last sleeps.
//! - That other threads wait for the processor is known from the number of participants, and seen from how long a yield takes.
//! - After a yield that cost a whole time slice there are none for as many waits as make up for it, since the kernel gives a
//!   sleeper a processor sooner.
//! - In a VM it is the agent that uses the yields of two processes that wake each other, and both are late because they sleep. So a
//!   long spin is tried there whoever uses the yields, and one that pays says that nobody else needs the processor.
//! - Where other threads use the yields there are naps: after a millisecond of one wait, and now and then between many short
//!   ones.

use std::time::{Duration, Instant};

use isthmus_lockfree::hint;
use isthmus_lockfree::sync::Word;
use isthmus_region::doorbell::Doorbell;
use isthmus_region::waiting::{Crowd, Pace, SLICE};

use crate::error::Result;

/// How a waiting thread passes its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Waiting {
    /// It spins and now and then yields; at once where there are more participants than processors. For short waits with a
    /// processor for each participant. Where other threads use its yields, it naps for about 100 microseconds at a time once
    /// a wait has lasted a millisecond.
    Spin,
    /// It sleeps, after spinning for 10 microseconds at most, and not at all where processors are scarce. Once in 32 to 256
    /// waits it spins for as long as being woken would take: a participant that was just woken is that much late, and so
    /// makes those late that wait for it, until one of them stays awake.
    Block,
    /// It spins as long as that pays, then yields a few times, then sleeps.
    Hybrid,
}

/// Polls before anything else is done.
const QUICK: u32 = 64;
/// What yields are learned within, and the polls between two yields of a thread that spins.
const PACE: Pace = Pace::OBJECTS;
/// Rounds of these polls from one check to the next, of a thread that spins.
const CHECK_EVERY: u64 = 4;
/// Time from a yield that no other thread used to the next, of a thread that spins. It grows; where processors are scarce,
/// only after [`PATIENCE`].
const SHORTEST_GAP: Duration = Duration::from_micros(2);
const LONGEST_GAP: Duration = Duration::from_micros(100);
/// How long a thread that spins yields in one wait before it naps, if other threads use the yields.
const PATIENCE: Duration = Duration::from_millis(1);
/// How long its yields take in all, in many short waits, before it naps once.
const TIRED: Duration = Duration::from_millis(10);
/// Naps from one yield to the next, which shows whether other threads still use it.
const NAPS: u64 = 8;
/// The longest spin of [`Waiting::Block`].
const BRIEF: Duration = Duration::from_micros(10);
/// Between which lies what going to sleep and being woken by a service costs.
const COSTS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(2));
/// The shortest spin that pays.
const SHORTEST_NS: u64 = 500;
/// After a yield of a [`SLICE`], one wait does without yields for each [`PAUSE_NS`] that it took: its cost per wait is then that low.
const PAUSE_NS: u64 = 2000;
/// Waits after which a long spin is tried, whatever the last ones brought: this many after one that paid, and twice as many
/// after each that did not, up to a limit.
const TRY_EVERY: u64 = 32;
const TRY_AT_LEAST_EVERY: u64 = 256;
/// Waits from one check whether processors are scarce to the next.
const RECHECK_EVERY: u64 = 4096;
/// No limit, as a number.
const LONG: Duration = Duration::from_secs(3600);

/// Why a wait is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// What was waited for has happened.
    Ready,
    /// The check ended it.
    Stopped,
    /// The time is up.
    TimedOut,
}

/// When a wait of `limit` from now ends.
pub fn deadline(limit: Option<Duration>) -> Option<Instant> {
    limit.and_then(|limit| Instant::now().checked_add(limit))
}

/// What was learned from earlier waits. The words are this process's own; a lost update does no harm.
#[derive(Debug)]
pub struct Learned {
    /// What going to sleep and being woken costs.
    longest_ns: Word,
    /// Whether that is learned.
    learns_cost: bool,
    /// How long a spin pays.
    spin_ns: Word,
    /// Waits until a long spin is tried, and from one such to the next.
    until_try: Word,
    try_every: Word,
    /// How many yields pay.
    yields: Word,
    /// Waits left without yields.
    pause: Word,
    /// Whether other threads use the yields.
    crowd: Crowd,
    /// Whether there are more participants than processors.
    scarce: Word,
    /// Number of waits that were not over at once.
    waits: Word,
    /// Whether a hint follows each poll from the first one on.
    hints: bool,
}

impl Learned {
    /// Nothing yet, for threads that sleep so.
    pub fn new(doorbell: Doorbell) -> Self {
        let longest = nanos(doorbell.cost());
        Self {
            longest_ns: Word::new(longest),
            learns_cost: doorbell != Doorbell::Futex,
            spin_ns: Word::new(longest),
            until_try: Word::new(TRY_EVERY),
            try_every: Word::new(TRY_EVERY),
            yields: Word::new(2),
            pause: Word::new(0),
            crowd: Crowd::default(),
            scarce: Word::new(0),
            waits: Word::new(0),
            hints: hint::is_cheap(),
        }
    }

    /// Records whether there are more participants than processors.
    pub fn set_scarce(&self, scarce: bool) {
        self.scarce.put(scarce.into());
    }

    /// Whether it is time to check again whether processors are scarce. A caller that gets true does so; others get false for
    /// the next `RECHECK_EVERY` waits.
    pub fn must_recheck(&self) -> bool {
        let is_due = self.waits.peek().is_multiple_of(RECHECK_EVERY);
        if is_due {
            self.waits.bump(1);
        }
        is_due
    }

    fn is_crowded(&self) -> bool {
        self.scarce.peek() != 0 || self.crowd.is_there()
    }

    /// Whether a long spin is to be tried now.
    fn tries_long_spin(&self) -> bool {
        let left = self.until_try.peek();
        let every = self.try_every.peek();
        self.until_try.put(if left == 0 { every } else { left - 1 });
        if left == 0 {
            self.try_every.put((every * 2).min(TRY_AT_LEAST_EVERY));
        }
        left == 0
    }

    fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest_ns.peek())
    }

    /// A sleep that a ring has ended took so long. The shortest were those that had to wait for little else than the ring itself; a
    /// longer one raises the cost by little, as what was measured once need not be so for ever.
    pub fn slept(&self, took: Duration) {
        // One that ended sooner was none: the word had changed already.
        if !self.learns_cost || took < COSTS.0 {
            return;
        }
        let (known, ns) = (self.longest_ns.peek(), nanos(took).saturating_add(nanos(took) / 4));
        let next = if ns < known { known - (known - ns) / 4 } else { known + (ns - known).min(known) / 16 };
        self.longest_ns.put(next.clamp(nanos(COSTS.0), nanos(COSTS.1)));
    }

    fn spin_paid(&self, lasted: Duration) {
        self.try_every.put(TRY_EVERY);
        self.until_try.put(self.until_try.peek().min(TRY_EVERY));
        let next = nanos(lasted).max(self.spin_ns.peek());
        self.spin_ns.put((next + next / 4).min(self.longest_ns.peek()));
    }

    fn spin_failed(&self) {
        let next = self.spin_ns.peek() / 2;
        self.spin_ns.put(if next < SHORTEST_NS { 0 } else { next });
    }

    /// A spin beside other threads was in vain. They may need the processor, so the next one is shorter, unless sleeps are long.
    fn try_failed(&self) {
        self.longest_ns.put((self.longest_ns.peek() / 2).max(nanos(COSTS.0)));
    }

    fn yields_for_now(&self) -> u64 {
        match self.pause.peek() {
            0 => self.yields.peek(),
            left => {
                self.pause.put(left - 1);
                0
            }
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A wait, as its caller wants it.
pub struct Wait<'a> {
    /// What it does when polling does not help.
    pub how: Waiting,
    /// What earlier waits of the same object taught.
    pub learned: &'a Learned,
    /// When it ends, if it does.
    pub deadline: Option<Instant>,
}

impl Wait<'_> {
    /// Waits until `ready` returns true. `check` is called now and then, reads the circumstances (who lives), and returns
    /// whether to end the wait; `sleep` sleeps until the awaited word may have changed, for the time it gets at most.
    ///
    /// # Errors
    /// Those of `check`.
    #[inline]
    pub fn until(
        &self,
        mut ready: impl FnMut() -> bool,
        check: impl FnMut() -> Result<bool>,
        sleep: impl FnMut(Duration),
    ) -> Result<Ended> {
        for _ in 0..QUICK {
            if ready() {
                return Ok(Ended::Ready);
            }
            if self.learned.hints {
                std::hint::spin_loop();
            }
        }
        self.learned.waits.bump(1);
        match self.how {
            Waiting::Spin => self.spin(ready, check),
            Waiting::Block | Waiting::Hybrid => self.sleep_at_last(ready, check, sleep),
        }
    }

    /// The time left. Reads the clock only if there is a limit.
    fn left(&self) -> Duration {
        self.deadline.map_or(LONG, |at| at.saturating_duration_since(Instant::now()))
    }

    #[cold]
    fn spin(
        &self,
        mut ready: impl FnMut() -> bool,
        mut check: impl FnMut() -> Result<bool>,
    ) -> Result<Ended> {
        let learned = self.learned;
        let begun = Instant::now();
        let (mut next_yield, mut gap, mut naps) = (begun, Duration::ZERO, 0);
        let mut turn = 0_u64;
        loop {
            turn += 1;
            let crowded = learned.is_crowded();
            for _ in 0..PACE.polls(crowded) {
                if ready() {
                    return Ok(Ended::Ready);
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            let left = self.deadline.map_or(LONG, |at| at.saturating_duration_since(now));
            // At the end, too: a caller that always gives a limit of 0 must learn of it.
            if (left.is_zero() || turn.is_multiple_of(CHECK_EVERY)) && check()? {
                return Ok(Ended::Stopped);
            }
            if left.is_zero() {
                return Ok(if ready() { Ended::Ready } else { Ended::TimedOut });
            }
            let is_late = now.duration_since(begun) >= PATIENCE;
            let is_tired = learned.crowd.yielded() >= TIRED;
            if (is_late || is_tired) && learned.crowd.is_there() && naps < NAPS {
                learned.crowd.nap(left);
                naps += 1;
            } else if now >= next_yield {
                let (took, was_used) = learned.crowd.yield_now();
                if !was_used {
                    // There were `naps` fewer yields than there would have been without naps.
                    learned.crowd.shrink(naps);
                }
                naps = 0;
                gap = match was_used || crowded && !is_late {
                    true => Duration::ZERO,
                    false => (gap * 2).clamp(SHORTEST_GAP, LONGEST_GAP),
                };
                next_yield = now + took + gap;
            }
        }
    }

    #[cold]
    fn sleep_at_last(
        &self,
        mut ready: impl FnMut() -> bool,
        mut check: impl FnMut() -> Result<bool>,
        mut sleep: impl FnMut(Duration),
    ) -> Result<Ended> {
        let learned = self.learned;
        let crowded = learned.is_crowded();
        let may_try = !crowded || learned.learns_cost && learned.scarce.peek() == 0;
        let tries = may_try && learned.tries_long_spin();
        if !crowded || tries {
            let most =
                if self.how == Waiting::Block { learned.longest().min(BRIEF) } else { learned.longest() };
            let longest = match tries {
                true => learned.longest(),
                false => Duration::from_nanos(learned.spin_ns.peek()).min(most),
            };
            let left = self.left();
            if !longest.is_zero() && !left.is_zero() {
                let begun = Instant::now();
                while begun.elapsed() < longest.min(left) {
                    for _ in 0..16 {
                        if ready() {
                            learned.spin_paid(longest);
                            if crowded {
                                learned.crowd.shrink(u64::MAX);
                            }
                            return Ok(Ended::Ready);
                        }
                        std::hint::spin_loop();
                    }
                }
                // Nothing is learned from a spin that the limit cut short.
                if longest <= left {
                    learned.spin_failed();
                    if crowded {
                        learned.try_failed();
                    }
                }
            }
        }
        if self.how == Waiting::Hybrid && self.yields_end_it(&mut ready) {
            return Ok(Ended::Ready);
        }
        loop {
            if check()? {
                return Ok(Ended::Stopped);
            }
            if ready() {
                break;
            }
            let left = self.left();
            if left.is_zero() {
                return Ok(Ended::TimedOut);
            }
            let begun = learned.learns_cost.then(Instant::now);
            sleep(left);
            if ready() {
                if let Some(begun) = begun {
                    learned.slept(begun.elapsed());
                }
                break;
            }
        }
        if crowded {
            // No yield shows here any more that the other threads are gone.
            learned.crowd.shrink(1);
        }
        Ok(Ended::Ready)
    }

    fn yields_end_it(&self, ready: &mut impl FnMut() -> bool) -> bool {
        let learned = self.learned;
        let most = learned.yields_for_now();
        for _ in 0..most {
            if self.left().is_zero() {
                return false;
            }
            let (took, _) = learned.crowd.yield_now();
            if ready() {
                learned.yields.put((most * 2).min(PACE.yields.into()));
                return true;
            }
            if took > SLICE {
                learned.pause.put(nanos(took) / PAUSE_NS);
                learned.yields.put(1);
                return false;
            }
        }
        learned.yields.put((most / 2).max(1));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_LIMIT: Option<Instant> = None;

    /// Other threads use the yields, which have taken `yielded` since the last nap, or more.
    fn crowded(yielded: Duration) -> Learned {
        crowded_at(Doorbell::Futex, yielded)
    }

    fn crowded_at(doorbell: Doorbell, yielded: Duration) -> Learned {
        let learned = Learned::new(doorbell);
        learned.crowd.note(Duration::from_nanos(1));
        for _ in 0..16 {
            learned.crowd.note(yielded / 8);
        }
        learned
    }

    #[test]
    fn what_a_sleep_costs_is_learned_where_a_service_ends_it() {
        let sleep = |learned: &Learned, count, took| {
            (0..count).for_each(|_| learned.slept(Duration::from_micros(took)));
            learned.longest().as_micros()
        };
        let learned = Learned::new(Doorbell::Service);
        let cost = sleep(&learned, 200, 700);
        assert!((800..900).contains(&cost), "{cost}");
        let cost = sleep(&learned, 30, 40);
        assert!((50..60).contains(&cost), "{cost}");
        assert_eq!(sleep(&learned, 30, 1), cost, "no sleep");
        assert_eq!(sleep(&learned, 30, 20), 25);
        assert_eq!(sleep(&learned, 3000, 10_000), 2000);
        let learned = Learned::new(Doorbell::Futex);
        assert_eq!(sleep(&learned, 200, 700), Doorbell::Futex.cost().as_micros());
    }

    #[test]
    fn a_long_spin_that_pays_ends_a_crowd_in_a_vm() {
        let ends = |doorbell| {
            let learned = crowded_at(doorbell, SLICE);
            for _ in 0..=TRY_EVERY {
                let begun = Instant::now();
                let ready = || begun.elapsed() > Duration::from_micros(50);
                let wait = Wait { how: Waiting::Block, learned: &learned, deadline: NO_LIMIT };
                wait.until(ready, || Ok(false), |_| std::thread::sleep(Duration::from_micros(60))).unwrap();
            }
            !learned.crowd.is_there()
        };
        assert!(!ends(Doorbell::Futex));
        // The one spin may come while this thread has lost its processor.
        assert!((0..5).any(|_| ends(Doorbell::Service)));
    }

    #[test]
    fn what_came_during_a_nap_is_seen_before_a_yield() {
        for deadline in [NO_LIMIT, deadline(Some(Duration::from_secs(60)))] {
            let learned = crowded(TIRED);
            let mut polls = 0;
            // The nap comes after this many.
            let ready = || {
                polls += 1;
                polls > QUICK + PACE.crowded_polls
            };
            let wait = Wait { how: Waiting::Spin, learned: &learned, deadline };
            let ended = wait.until(ready, || Ok(false), |_| ()).unwrap();
            assert_eq!(ended, Ended::Ready);
            assert_eq!(learned.crowd.yielded(), Duration::ZERO, "there was a nap, and no yield after it");
        }
    }

    #[test]
    fn many_short_waits_have_naps_between_where_yields_are_used() {
        let learned = crowded(PATIENCE);
        let mut naps = 0;
        for _ in 0..100 {
            // Over after the first yield or nap.
            let mut polls = 0;
            let ready = || {
                polls += 1;
                polls > QUICK + PACE.crowded_polls
            };
            let wait = Wait { how: Waiting::Spin, learned: &learned, deadline: NO_LIMIT };
            wait.until(ready, || Ok(false), |_| ()).unwrap();
            naps += u32::from(learned.crowd.yielded().is_zero());
            // As if another thread had used yields for this long.
            for _ in 0..4 {
                learned.crowd.note(PATIENCE / 4);
            }
        }
        assert!((5..50).contains(&naps), "{naps}");
    }

    #[test]
    fn naps_are_followed_by_a_yield_now_and_then() {
        let learned = crowded(TIRED);
        let (begun, mut has_napped) = (Instant::now(), false);
        let ready = || {
            let yielded = !learned.crowd.yielded().is_zero();
            has_napped |= !yielded;
            has_napped && yielded && begun.elapsed() > PATIENCE
        };
        let wait = Wait { how: Waiting::Spin, learned: &learned, deadline: NO_LIMIT };
        assert_eq!(wait.until(ready, || Ok(false), |_| ()).unwrap(), Ended::Ready);
    }

    #[test]
    fn a_wait_without_time_checks_and_neither_yields_nor_sleeps() {
        for how in [Waiting::Spin, Waiting::Block, Waiting::Hybrid] {
            let learned = Learned::new(Doorbell::Futex);
            let mut checks = 0;
            let check = || {
                checks += 1;
                Ok(checks == 3)
            };
            let mut check = check;
            let mut poll = || {
                let wait = Wait { how, learned: &learned, deadline: Some(Instant::now()) };
                wait.until(|| false, &mut check, |_| panic!("asleep")).unwrap()
            };
            assert_eq!([poll(), poll(), poll()], [Ended::TimedOut, Ended::TimedOut, Ended::Stopped]);
            assert_eq!(learned.crowd.yielded(), Duration::ZERO, "{how:?}");
            assert_eq!(learned.spin_ns.peek(), nanos(Doorbell::Futex.cost()), "nothing is learned from that");
        }
    }

    #[test]
    fn scarcity_is_checked_once_and_again_after_many_waits() {
        let learned = Learned::new(Doorbell::Futex);
        assert!(learned.must_recheck());
        for _ in 1..RECHECK_EVERY {
            assert!(!learned.must_recheck() && !learned.must_recheck());
            learned.waits.bump(1);
        }
        assert!(learned.must_recheck() && !learned.must_recheck());
    }
}
