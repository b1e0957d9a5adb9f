//! Waiting for completions: in blocking calls, by descriptors for `poll`, and between empty reads.
//!
//! **Blocking.** A thread that has found nothing for a while lets its endpoints fall asleep, polls once more, and
//! sleeps: where its endpoint's threads sleep if there is only one (`isthmus_region::doorbell`); else in `poll` on an epoll
//! descriptor. That holds a pipe of each endpoint, to which the local service writes; an eventfd of our own, for what other
//! threads of the process add; and a timer, since an endpoint bounds how long it may sleep. `FI_GETWAIT` gives the same
//! descriptor; `fi_trywait` then does all but the waiting.
//!
//! **Polling.** MPIs never block: they read again and again. [`Patience`] counts empty reads, by the policy of
//! [`isthmus_region::waiting`]. Where there are enough processors it yields after [`POLLS`] of them, and now and then afterwards,
//! and goes on polling. Where there are more processes than processors it yields much sooner, and then naps for at most
//! [`NAP`] at a time; a message ends a nap.
//! As long as no endpoint has a lane it yields in place of naps, ever more rarely if no other thread runs meanwhile.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use isthmus_region::doorbell::{Pollable, Sleeper};
use isthmus_region::shared_by_threads::Count;
use isthmus_region::waiting::{self, LONG_YIELD, NAP, Pace, SWITCHED};

use crate::cq::Progress;
use crate::ep::Ep;
use crate::lock::Lock;

/// Empty reads before a blocking call sleeps.
const SPINS: u32 = 256;
/// The same while a long message or an operation is under way, or one has just ended: the remote endpoint copies a piece
/// of it in the time of some hundred reads, and a sleep and a wake-up for each piece cost more than all of them.
const SPINS_MOVING: u32 = 4096;
/// How long these may take: a call with a time limit returns late by as much, and reads take longer under emulation.
const LONGEST_SPIN: Duration = Duration::from_micros(500);
/// Empty reads in a row before a yield, where there are enough processors.
const POLLS: u32 = Pace::READS.polls;
/// The same where there are more processes than processors.
const FEW_POLLS: u32 = Pace::READS.crowded_polls;
/// Empty reads between two yields, at first.
const FURTHER_POLLS: u32 = 64;
/// How often that is doubled while no other thread runs meanwhile.
const MOST_DOUBLINGS: u16 = 6;
/// A nap that no message can end, as in a VM; the system rounds it up.
const BLIND_NAP: Duration = Duration::from_micros(20);
/// As many yields in a row in which no other thread ran show that there is none. With fewer, some barriers of ranks that
/// share processors took longer.
const IDLE_YIELDS: u16 = 256;
/// How long to sleep where there is nothing to wait on.
const STOPGAP: Duration = Duration::from_millis(1);

/// A bit of [`Waiter::watch`].
const ARMED: u64 = 1 << 63;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a blocking call that has found nothing in `spins` reads since `begun` reads once more before it sleeps.
#[inline]
pub(crate) fn reads_on(spins: u32, begun: Instant, endpoints: &Lock<Vec<Arc<Ep>>>) -> bool {
    let moving = || begun.elapsed() < LONGEST_SPIN && endpoints.lock().iter().any(|ep| ep.has_transfers());
    spins < SPINS || (spins < SPINS_MOVING && (!spins.is_multiple_of(SPINS) || moving()))
}

/// When a blocking call ends: `timeout` in milliseconds from now, negative for never.
pub(crate) fn deadline(timeout: i32) -> Option<Instant> {
    u64::try_from(timeout).ok().map(|ms| Instant::now() + Duration::from_millis(ms))
}

/// The time until then; a day if it is never.
pub(crate) fn left(until: Option<Instant>) -> Duration {
    until.map_or(Duration::from_secs(86_400), |u| u.saturating_duration_since(Instant::now()))
}

/// What threads wait with for one queue or counter.
#[derive(Default)]
pub(crate) struct Waiter {
    /// The number of threads that sleep, and [`ARMED`] while the program may be polling the descriptor.
    watch: Count,
    /// Where a thread sleeps, or slept last.
    alarm: Mutex<Option<Arc<Sleeper>>>,
    watching: OnceLock<Watching>,
    /// Endpoints that fell asleep when the descriptor was armed, as often as they did. Locked to change [`ARMED`].
    armed: Mutex<Vec<Weak<Ep>>>,
}

/// The descriptor, and the endpoints whose bells it watches.
struct Watching {
    pollable: Pollable,
    known: Mutex<Vec<Weak<Ep>>>,
}

impl Watching {
    fn new() -> rustix::io::Result<Self> {
        Ok(Self { pollable: Pollable::new()?, known: Mutex::default() })
    }

    /// Adds an endpoint's bell, unless it was added before; gives whether it is there.
    fn add(&self, ep: &Arc<Ep>) -> bool {
        let Some(sleeper) = ep.sleeper() else { return false };
        let Some(bell) = sleeper.bell() else { return false };
        if sleeper.is_over() {
            return false;
        }
        let mut known = locked(&self.known);
        if known.iter().any(|k| std::ptr::eq(k.as_ptr(), Arc::as_ptr(ep))) {
            return true;
        }
        known.retain(|k| k.strong_count() > 0);
        let added = self.pollable.watch(bell).is_ok();
        if added {
            known.push(Arc::downgrade(ep));
        }
        added
    }

    /// Makes it unreadable until something comes.
    fn drain(&self) {
        self.pollable.drain();
        for ep in locked(&self.known).iter().filter_map(Weak::upgrade) {
            if let Some(sleeper) = ep.sleeper() {
                sleeper.drain_bell();
                if sleeper.is_over()
                    && let Some(bell) = sleeper.bell()
                {
                    self.pollable.leave(bell);
                }
            }
        }
    }
}

impl Waiter {
    /// A waiter that has its descriptor from the start, for `FI_WAIT_FD`.
    pub(crate) fn with_descriptor() -> rustix::io::Result<Self> {
        let waiter = Self::default();
        let _ = waiter.watching.set(Watching::new()?);
        Ok(waiter)
    }

    /// The descriptor, if it has one.
    pub(crate) fn descriptor(&self) -> Option<RawFd> {
        self.watching.get().map(|w| w.pollable.as_fd().as_raw_fd())
    }

    /// Wakes the threads that wait: something was added to the queue or counter.
    #[inline]
    pub(crate) fn ring(&self) {
        if self.watch.get() != 0 {
            self.ring_now();
        }
    }

    #[cold]
    fn ring_now(&self) {
        if let Some(alarm) = &*locked(&self.alarm) {
            alarm.wake_all();
        }
        if let Some(watching) = self.watching.get() {
            watching.pollable.ring();
        }
    }

    fn watching(&self) -> Option<&Watching> {
        if self.watching.get().is_none() {
            // If another thread is first, its descriptor is used.
            let _ = Watching::new().map(|made| self.watching.set(made));
        }
        self.watching.get()
    }

    /// Sleeps until something may have come for these endpoints, or another thread has added something (`is_there`), and
    /// for at most `limit`. May return for no reason.
    pub(crate) fn sleep(&self, endpoints: &Lock<Vec<Arc<Ep>>>, limit: Duration, is_there: impl Fn() -> bool) {
        let all: Vec<Arc<Ep>> = endpoints.lock().clone();
        self.watch.add(1);
        match all.as_slice() {
            [one] => self.sleep_at(one, limit, is_there),
            _ => self.sleep_on_descriptor(&all, limit, is_there),
        }
        self.watch.sub(1);
    }

    fn sleep_at(&self, ep: &Arc<Ep>, limit: Duration, is_there: impl Fn() -> bool) {
        let Some(asleep) = ep.fall_asleep(false) else { return };
        *locked(&self.alarm) = Some(Arc::clone(asleep.sleeper()));
        if !is_there() {
            asleep.wait(limit);
        }
        ep.wake_up();
    }

    fn sleep_on_descriptor(&self, all: &[Arc<Ep>], limit: Duration, is_there: impl Fn() -> bool) {
        let Some(watching) = self.watching() else {
            return std::thread::sleep(limit.min(STOPGAP));
        };
        if let Some(least) = Self::all_asleep(watching, all) {
            if !is_there() {
                watching.pollable.wait(limit.min(least));
            }
            all.iter().for_each(|ep| ep.wake_up());
        }
        // Other threads may sleep on the same descriptors: the read that follows finds what was rung for, and rings again.
        watching.drain();
    }

    /// Lets all endpoints fall asleep, to be woken through the descriptor; gives how long that may last. If one of them
    /// has something to do, all stay awake.
    fn all_asleep(watching: &Watching, all: &[Arc<Ep>]) -> Option<Duration> {
        let mut limit = Duration::MAX;
        for (i, ep) in all.iter().enumerate() {
            // Without its bell nothing would end the sleep.
            let most = if watching.add(ep) { Duration::MAX } else { STOPGAP };
            match ep.fall_asleep(true) {
                Some(asleep) => limit = limit.min(asleep.limit).min(most),
                None => {
                    all[..i].iter().for_each(|ep| ep.wake_up());
                    return None;
                }
            }
        }
        Some(limit)
    }

    /// `fi_trywait`: gets ready for a `poll` of the descriptor. Gives whether the program may call it.
    pub(crate) fn arm(&self, endpoints: &Lock<Vec<Arc<Ep>>>, is_there: impl Fn() -> bool) -> Option<bool> {
        let watching = self.watching.get()?;
        self.disarm();
        let all: Vec<Arc<Ep>> = endpoints.lock().clone();
        // The program will sleep at once, so the reads of a blocking call before its sleep are made here.
        let (mut spins, begun) = (0, Instant::now());
        while reads_on(spins, begun, endpoints) {
            for ep in &all {
                ep.progress();
            }
            if is_there() {
                return Some(false);
            }
            spins += 1;
        }
        watching.drain();
        let Some(limit) = Self::all_asleep(watching, &all) else { return Some(false) };
        watching.pollable.set_timer(limit);
        {
            // Another thread may have armed it meanwhile; each sleep is to be ended once.
            let mut armed = locked(&self.armed);
            armed.extend(all.iter().map(Arc::downgrade));
            self.watch.insert(ARMED);
        }
        let quiet = !is_there();
        if !quiet {
            self.disarm();
        }
        Some(quiet)
    }

    /// Ends what [`Waiter::arm`] began: a program that reads has left its `poll`.
    #[inline]
    pub(crate) fn disarm(&self) {
        if self.watch.peek() & ARMED != 0 {
            self.disarm_now();
        }
    }

    #[cold]
    fn disarm_now(&self) {
        let armed = {
            let mut armed = locked(&self.armed);
            self.watch.remove(ARMED);
            std::mem::take(&mut *armed)
        };
        armed.iter().filter_map(Weak::upgrade).for_each(|ep| ep.wake_up());
        // The thread that reads need not be the one that polls, for which nothing rings from now on. It stays readable until it is armed anew.
        if let Some(watching) = self.watching.get() {
            watching.pollable.ring();
        }
    }
}

/// What to do after an empty read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Return.
    None,
    /// Yield.
    Yield,
    /// Nap.
    Nap,
}

/// Counts empty reads of one queue or counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Patience {
    /// Reads until the next rest.
    left: u32,
    stage: u16,
    /// Reads that may still wait for a moment before they return with nothing.
    spins: u16,
}

/// The stages begin at [`FRESH`]. Where processors are few, [`CROWDED`] and on count yields up to [`NAPS`]; from there on,
/// yields in place of naps in which no other thread ran, [`IDLE_YIELDS`] for each doubling. Else [`ALONE`] and on count
/// doublings.
const FRESH: u16 = 0;
const CROWDED: u16 = 1;
#[allow(clippy::cast_possible_truncation)] // a handful
const NAPS: u16 = CROWDED + Pace::READS.yields as u16;
const ALONE: u16 = 2000;
/// Reads that may wait for a moment, after something was found. An answer often comes within it, and what a program does
/// between two reads costs more (MPICH yields each time). A program that has other things to do is held up this often.
const MOMENTS: u16 = 2;

impl Patience {
    /// After something was found.
    pub(crate) const FULL: Self = Self { left: FEW_POLLS, stage: FRESH, spins: MOMENTS };

    /// Whether the next empty read may be followed by a rest.
    #[inline]
    pub(crate) fn ends(self) -> bool {
        self.left <= 1
    }

    /// Whether this read may wait for a moment.
    #[inline]
    pub(crate) fn may_spin(&mut self) -> bool {
        let may = self.spins > 0;
        self.spins = self.spins.saturating_sub(1);
        may
    }

    /// Counts an empty read, where [`Patience::ends`] said no.
    #[inline]
    pub(crate) fn count(&mut self) {
        self.left -= 1;
    }

    /// Counts an empty read.
    pub(crate) fn rest(&mut self, progress: Progress, is_crowded: impl Fn() -> bool) -> Rest {
        // The thread that makes the progress may be waiting for this one's processor.
        let by = if progress == Progress::Elsewhere { FURTHER_POLLS } else { 1 };
        self.left = self.left.saturating_sub(by);
        if self.left > 0 {
            return Rest::None;
        }
        self.left = FURTHER_POLLS;
        match self.stage {
            FRESH if is_crowded() => self.stage = CROWDED,
            FRESH => {
                (self.left, self.stage) = (POLLS - FEW_POLLS, ALONE);
                return Rest::None;
            }
            alone @ ALONE.. => {
                self.left = FURTHER_POLLS << (alone - ALONE);
                self.stage = (alone + 1).min(ALONE + MOST_DOUBLINGS);
            }
            naps @ NAPS.. => {
                self.left = FURTHER_POLLS << ((naps - NAPS) / IDLE_YIELDS).min(MOST_DOUBLINGS);
                return Rest::Nap;
            }
            _ => self.stage += 1,
        }
        Rest::Yield
    }

    /// Yields, and notes whether another thread needs the processor.
    pub(crate) fn yield_now(&mut self) {
        self.yielded(waiting::yield_now());
    }

    fn yielded(&mut self, took: Duration) {
        if self.stage >= ALONE && took > LONG_YIELD {
            (self.left, self.stage) = (FURTHER_POLLS, CROWDED);
        }
    }

    /// Naps, where [`Patience::rest`] said so. As long as none of the endpoints has a lane it yields instead, and later the
    /// next time if no other thread ran: what the program waits for comes another way, by the MPI's own shared memory for
    /// one, so no message would end the nap, and the process that sends it may need this processor.
    pub(crate) fn nap(&mut self, endpoints: &Lock<Vec<Arc<Ep>>>) {
        if endpoints.try_lock().is_some_and(|all| all.iter().all(|ep| !ep.has_lanes())) {
            self.yielded_for_a_nap(waiting::yield_now());
        } else {
            self.stage = NAPS;
            sleep_for_a_nap(endpoints);
        }
    }

    fn yielded_for_a_nap(&mut self, took: Duration) {
        self.stage =
            if took > SWITCHED { NAPS } else { (self.stage + 1).min(NAPS + MOST_DOUBLINGS * IDLE_YIELDS) };
    }
}

/// Sleeps for at most [`NAP`]; a message to the endpoint ends it, if it is the only one, and if being woken takes less time than
/// that.
fn sleep_for_a_nap(endpoints: &Lock<Vec<Arc<Ep>>>) {
    let one = match endpoints.try_lock().as_deref().map(Vec::as_slice) {
        Some([one]) if one.doorbell().cost() < NAP => Some(Arc::clone(one)),
        _ => None,
    };
    let Some(ep) = one else { return std::thread::sleep(BLIND_NAP) };
    if let Some(asleep) = ep.fall_asleep(false) {
        asleep.wait(NAP);
        ep.wake_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rests(crowded: bool, reads: usize) -> Vec<Rest> {
        let mut patience = Patience::FULL;
        (0..reads).map(|_| patience.rest(Progress::Made, || crowded)).filter(|r| *r != Rest::None).collect()
    }

    #[test]
    fn with_enough_processors_nothing_naps() {
        assert_eq!(rests(false, POLLS as usize - 1), []);
        let growing = (FURTHER_POLLS << MOST_DOUBLINGS) as usize;
        let rests = rests(false, POLLS as usize + growing + 100 * growing);
        assert!(rests.iter().all(|r| *r == Rest::Yield));
        assert!((100..=110).contains(&rests.len()), "{}", rests.len());
    }

    #[test]
    fn without_lanes_yields_in_which_no_other_thread_runs_become_rarer() {
        let growing = (FURTHER_POLLS << MOST_DOUBLINGS) as usize;
        for (took, least, most) in [(SWITCHED / 2, 1000, 1300), (SWITCHED * 2, 6400, 6600)] {
            let (mut patience, mut count) = (Patience::FULL, 0);
            for _ in 0..FEW_POLLS as usize + 2 * growing + 100 * growing {
                match patience.rest(Progress::Made, || true) {
                    Rest::None => continue,
                    Rest::Nap => patience.yielded_for_a_nap(took),
                    Rest::Yield => patience.yielded(took),
                }
                count += 1;
            }
            assert!((least..=most).contains(&count), "{count}");
        }
    }

    #[test]
    fn a_long_yield_is_followed_by_another_one_soon() {
        let mut patience =
            Patience { left: FURTHER_POLLS << MOST_DOUBLINGS, stage: ALONE + MOST_DOUBLINGS, spins: 0 };
        patience.yielded(LONG_YIELD * 2);
        assert_eq!((patience.left, patience.stage), (FURTHER_POLLS, CROWDED));
        let mut patience =
            Patience { left: FURTHER_POLLS << MOST_DOUBLINGS, stage: ALONE + MOST_DOUBLINGS, spins: 0 };
        patience.yielded(LONG_YIELD / 2);
        assert_eq!(
            (patience.left, patience.stage),
            (FURTHER_POLLS << MOST_DOUBLINGS, ALONE + MOST_DOUBLINGS)
        );
    }

    #[test]
    fn with_too_few_processors_yields_come_before_naps() {
        let rests = rests(true, FEW_POLLS as usize + 10 * FURTHER_POLLS as usize);
        let yields = Pace::READS.yields as usize + 1;
        assert!(rests[..yields].iter().all(|r| *r == Rest::Yield));
        assert!(rests.len() > yields && rests[yields..].iter().all(|r| *r == Rest::Nap));
    }
}
