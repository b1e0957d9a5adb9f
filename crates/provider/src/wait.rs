//! Waiting for completions: by blocking calls, by descriptors that can be polled, and between empty reads.
//!
//! **Blocking.** A thread that has found nothing for a while lets its endpoints fall asleep, looks once more, and waits:
//! on the one endpoint's futex where that is possible, else in `poll` on an epoll descriptor. That holds an eventfd of
//! each endpoint, which the local service writes, one of our own for what other threads of the process add, and a timer,
//! since an endpoint says how long it may sleep at most. The same descriptor is what `FI_GETWAIT` gives; `fi_trywait`
//! then does all but the waiting.
//!
//! **Polling.** MPIs never block: they read again and again. [`Patience`] counts empty reads. Where processors are
//! enough it offers its own to others after [`POLLS`] of them, now and then, and goes on polling; where there are more processes than
//! processors it does so soon, and then sleeps for at most [`NAP`] at a time, in such a way that a message wakes it. As long as
//! nobody talks to it that way it only offers its processor, ever more rarely if nobody takes it.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use isthmus_transport::{Alarm, Bell};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};

use crate::cq::Progress;
use crate::ep::Ep;
use crate::lock::Lock;

/// Empty reads before a blocking call goes to sleep.
const SPINS: u32 = 256;
/// The same while a long message or an operation is under way, or one has just ended: the other side copies a piece of it in the
/// time of some hundred reads, and a sleep and a wake-up for each piece cost more than all of them.
const SPINS_MOVING: u32 = 4096;
/// How long they may take: a call with a time limit is late by as much, and reads under emulation take longer.
const LONGEST_SPIN: Duration = Duration::from_micros(500);
/// Empty reads in a row after which the processor is offered to others, where there are enough of them.
const POLLS: u32 = 2000;
/// The same, where there are not.
const FEW_POLLS: u32 = 200;
/// Empty reads between two such offers, at first.
const FURTHER_POLLS: u32 = 64;
/// How often that is doubled while nobody takes them up: Linux counts each as a whole slice of time that the thread has had, and
/// who has had too many waits for a processor for long (`isthmus_sync` tells more where it waits).
const RARER: u16 = 6;
/// Offers before a nap.
const OFFERS: u16 = 4;
/// The longest nap between two reads.
const NAP: Duration = Duration::from_micros(100);
/// The same where no message can end it, as in a VM: the system rounds it up.
const BLIND_NAP: Duration = Duration::from_micros(20);
/// An offer of the processor that took longer than this was taken up: somebody else needs it.
const TAKEN_UP: Duration = Duration::from_micros(100);
/// One that took longer than this went to somebody, if only to another one who polls.
const SWITCHED: Duration = Duration::from_nanos(1500);
/// So many in a row that went to nobody say that there is nobody; fewer cost ranks that share processors some of their barriers.
const IN_VAIN: u16 = 256;
/// How long to wait where there is nothing to wait on.
const STOPGAP: Duration = Duration::from_millis(1);

const ARMED: u32 = 1 << 31;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Whether a blocking call that has found nothing `spins` times since `begun` reads on before it sleeps.
#[inline]
pub(crate) fn reads_on(spins: u32, begun: Instant, endpoints: &Lock<Vec<Arc<Ep>>>) -> bool {
    let moving = || begun.elapsed() < LONGEST_SPIN && endpoints.lock().iter().any(|ep| ep.has_transfers());
    spins < SPINS || (spins < SPINS_MOVING && (!spins.is_multiple_of(SPINS) || moving()))
}

/// When a blocking call ends: `timeout` in milliseconds from now, negative for never.
pub(crate) fn deadline(timeout: i32) -> Option<Instant> {
    u64::try_from(timeout).ok().map(|ms| Instant::now() + Duration::from_millis(ms))
}

/// The time until then; a day if there is no end.
pub(crate) fn left(until: Option<Instant>) -> Duration {
    until.map_or(Duration::from_secs(86_400), |u| u.saturating_duration_since(Instant::now()))
}

/// What those wait with who wait for one queue or counter.
#[derive(Default)]
pub(crate) struct Waiter {
    /// Threads that sleep, and [`ARMED`] while somebody may be polling the descriptor.
    watch: AtomicU32,
    alarm: Mutex<Option<Alarm>>,
    pollable: OnceLock<Pollable>,
    /// Endpoints that sleep for the descriptor's sake.
    armed: Mutex<Vec<Weak<Ep>>>,
}

/// The descriptor, and what makes it readable.
struct Pollable {
    epoll: OwnedFd,
    own: OwnedFd,
    timer: OwnedFd,
    /// Endpoints whose eventfds it holds.
    known: Mutex<Vec<Weak<Ep>>>,
}

impl Pollable {
    fn new() -> rustix::io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let own = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let timer = rustix::time::timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        for fd in [&own, &timer] {
            epoll::add(&epoll, fd, EventData::new_u64(0), EventFlags::IN)?;
        }
        Ok(Self { epoll, own, timer, known: Mutex::default() })
    }

    /// Adds an endpoint's eventfd, once; gives whether it is there.
    fn add(&self, ep: &Arc<Ep>) -> bool {
        let Some(bell) = ep.bell() else { return false };
        let mut known = locked(&self.known);
        if known.iter().any(|k| std::ptr::eq(k.as_ptr(), Arc::as_ptr(ep))) {
            return true;
        }
        known.retain(|k| k.strong_count() > 0);
        let added = epoll::add(&self.epoll, bell, EventData::new_u64(0), EventFlags::IN).is_ok();
        if added {
            known.push(Arc::downgrade(ep));
        }
        added
    }

    /// Makes it unreadable until something new comes.
    fn drain(&self) {
        let mut count = [0_u8; 8];
        let _ = rustix::io::read(&self.own, &mut count);
        let _ = rustix::io::read(&self.timer, &mut count);
        for ep in locked(&self.known).iter().filter_map(Weak::upgrade) {
            if let Some(bell) = ep.bell() {
                let _ = rustix::io::read(bell, &mut count);
            }
        }
    }

    /// Makes it readable after `limit`.
    fn set_timer(&self, limit: Duration) {
        let once = Itimerspec {
            it_interval: timespec(Duration::ZERO),
            it_value: timespec(limit.max(Duration::from_nanos(1))),
        };
        let _ = rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }
}

impl Waiter {
    /// One whose descriptor is there from the start, for `FI_WAIT_FD`.
    pub(crate) fn with_descriptor() -> rustix::io::Result<Self> {
        let waiter = Self::default();
        let _ = waiter.pollable.set(Pollable::new()?);
        Ok(waiter)
    }

    /// The descriptor.
    pub(crate) fn descriptor(&self) -> Option<RawFd> {
        self.pollable.get().map(|p| p.epoll.as_raw_fd())
    }

    /// Something was added to the queue or counter: wakes who waits for that.
    #[inline]
    pub(crate) fn ring(&self) {
        if self.watch.load(Ordering::SeqCst) != 0 {
            self.ring_now();
        }
    }

    #[cold]
    fn ring_now(&self) {
        if let Some(alarm) = &*locked(&self.alarm) {
            alarm.ring();
        }
        if let Some(pollable) = self.pollable.get() {
            let _ = rustix::io::write(&pollable.own, &1_u64.to_ne_bytes());
        }
    }

    fn pollable(&self) -> Option<&Pollable> {
        if self.pollable.get().is_none() {
            // Another thread may be first, which is as well.
            let _ = Pollable::new().map(|made| self.pollable.set(made));
        }
        self.pollable.get()
    }

    /// Sleeps until something may have come for these endpoints, or `is_there` by another thread's doing, at most
    /// `limit`. May return for no reason.
    pub(crate) fn sleep(&self, endpoints: &Lock<Vec<Arc<Ep>>>, limit: Duration, is_there: impl Fn() -> bool) {
        let all: Vec<Arc<Ep>> = endpoints.lock().clone();
        self.watch.fetch_add(1, Ordering::SeqCst);
        match all.as_slice() {
            [one] if one.has_futex() => self.sleep_on_futex(one, limit, is_there),
            _ => self.sleep_on_descriptor(&all, limit, is_there),
        }
        self.watch.fetch_sub(1, Ordering::SeqCst);
    }

    fn sleep_on_futex(&self, ep: &Arc<Ep>, limit: Duration, is_there: impl Fn() -> bool) {
        let Some(asleep) = ep.fall_asleep(Bell::Futex) else { return };
        *locked(&self.alarm) = Some(asleep.alarm());
        if !is_there() {
            asleep.wait(limit);
        }
        ep.wake_up();
    }

    fn sleep_on_descriptor(&self, all: &[Arc<Ep>], limit: Duration, is_there: impl Fn() -> bool) {
        let Some(pollable) = self.pollable() else {
            return std::thread::sleep(limit.min(STOPGAP));
        };
        if let Some(least) = Self::all_asleep(pollable, all) {
            if !is_there() {
                let mut poll = [PollFd::new(&pollable.epoll, PollFlags::IN)];
                // All of its outcomes mean the same: look again.
                let _ = rustix::event::poll(&mut poll, Some(&timespec(limit.min(least))));
            }
            all.iter().for_each(|ep| ep.wake_up());
        }
        // Others may sleep by the same descriptors: the reads that follow find what was rung for, and ring again.
        pollable.drain();
    }

    /// Lets all fall asleep, to be woken through the descriptor; gives how long that may last. If one of them has
    /// something to do, all stay awake.
    fn all_asleep(pollable: &Pollable, all: &[Arc<Ep>]) -> Option<Duration> {
        let mut limit = Duration::MAX;
        for (i, ep) in all.iter().enumerate() {
            // Without an eventfd nobody rings.
            let most = if pollable.add(ep) { Duration::MAX } else { STOPGAP };
            match ep.fall_asleep(Bell::Service) {
                Some(asleep) => limit = limit.min(asleep.limit).min(most),
                None => {
                    all[..i].iter().for_each(|ep| ep.wake_up());
                    return None;
                }
            }
        }
        Some(limit)
    }

    /// `fi_trywait`: gets ready for a `poll` of the descriptor. Gives whether the caller may go into it.
    pub(crate) fn arm(&self, endpoints: &Lock<Vec<Arc<Ep>>>, is_there: impl Fn() -> bool) -> Option<bool> {
        let pollable = self.pollable.get()?;
        self.disarm();
        let all: Vec<Arc<Ep>> = endpoints.lock().clone();
        // The program sleeps at once, so what a blocking call does before its sleep is done here.
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
        let Some(limit) = Self::all_asleep(pollable, &all) else { return Some(false) };
        pollable.set_timer(limit);
        *locked(&self.armed) = all.iter().map(Arc::downgrade).collect();
        self.watch.fetch_or(ARMED, Ordering::SeqCst);
        let quiet = !is_there();
        if !quiet {
            self.disarm();
        }
        Some(quiet)
    }

    /// The poll is over: whoever reads does not sleep.
    #[inline]
    pub(crate) fn disarm(&self) {
        if self.watch.load(Ordering::Relaxed) & ARMED != 0 {
            self.disarm_now();
        }
    }

    #[cold]
    fn disarm_now(&self) {
        self.watch.fetch_and(!ARMED, Ordering::SeqCst);
        let armed = std::mem::take(&mut *locked(&self.armed));
        armed.iter().filter_map(Weak::upgrade).for_each(|ep| ep.wake_up());
        if let Some(pollable) = self.pollable.get() {
            pollable.drain();
        }
    }
}

/// What to do after an empty read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Return.
    None,
    /// Offer the processor to others.
    Yield,
    /// Sleep a little.
    Nap,
}

/// Counts empty reads of one queue or counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Patience {
    /// Reads until it is time to do something.
    left: u32,
    stage: u16,
    /// Reads that may still wait for a moment before they say that there is nothing.
    spins: u16,
}

/// Stages: fresh, then either of these and up to [`OFFERS`] or [`RARER`] more; [`NAPS`] and up to [`IN_VAIN`] times as many more where
/// offers take the place of naps.
const FRESH: u16 = 0;
const CROWDED: u16 = 1;
const NAPS: u16 = CROWDED + OFFERS;
const ALONE: u16 = 2000;
/// Such reads after something was found. An answer often comes within them, and what a program does between two reads
/// (MPICH gives up its processor each time) costs more. One that has other things to do than wait is held up this often.
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
        // The thread that makes the progress may be the one that waits for a processor.
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
                self.stage = (alone + 1).min(ALONE + RARER);
            }
            naps @ NAPS.. => {
                self.left = FURTHER_POLLS << ((naps - NAPS) / IN_VAIN).min(RARER);
                return Rest::Nap;
            }
            _ => self.stage += 1,
        }
        Rest::Yield
    }

    /// Offers the processor to others; notes whether anybody took it.
    pub(crate) fn offer(&mut self) {
        let begun = Instant::now();
        std::thread::yield_now();
        self.was_offered(begun.elapsed());
    }

    fn was_offered(&mut self, took: Duration) {
        if self.stage >= ALONE && took > TAKEN_UP {
            (self.left, self.stage) = (FURTHER_POLLS, CROWDED);
        }
    }

    /// Sleeps a little, where [`Patience::rest`] said so. As long as nobody talks over any of the endpoints, it only offers the
    /// processor, and later the next time, if nobody took it: what the program waits for comes by another way, its own shared
    /// memory for one, and would wait for the end of the nap, or for an offer to who sends it.
    pub(crate) fn nap(&mut self, endpoints: &Lock<Vec<Arc<Ep>>>) {
        if endpoints.try_lock().is_some_and(|all| all.iter().all(|ep| !ep.has_lanes())) {
            let begun = Instant::now();
            std::thread::yield_now();
            self.was_no_nap(begun.elapsed());
        } else {
            self.stage = NAPS;
            sleep_for_a_nap(endpoints);
        }
    }

    fn was_no_nap(&mut self, took: Duration) {
        self.stage = if took > SWITCHED { NAPS } else { (self.stage + 1).min(NAPS + RARER * IN_VAIN) };
    }
}

/// Sleeps for at most [`NAP`]; a message to the endpoint, if it is the only one, ends it.
fn sleep_for_a_nap(endpoints: &Lock<Vec<Arc<Ep>>>) {
    let one = match endpoints.try_lock().as_deref().map(Vec::as_slice) {
        Some([one]) if one.has_futex() => Some(Arc::clone(one)),
        _ => None,
    };
    let Some(ep) = one else { return std::thread::sleep(BLIND_NAP) };
    if let Some(asleep) = ep.fall_asleep(Bell::Futex) {
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
    fn enough_processors_are_never_napped_on() {
        assert_eq!(rests(false, POLLS as usize - 1), []);
        let growing = (FURTHER_POLLS << RARER) as usize;
        let rests = rests(false, POLLS as usize + growing + 100 * growing);
        assert!(rests.iter().all(|r| *r == Rest::Yield));
        assert!((100..=110).contains(&rests.len()), "{}", rests.len());
    }

    #[test]
    fn as_long_as_nobody_talks_offers_that_nobody_takes_become_rarer() {
        let growing = (FURTHER_POLLS << RARER) as usize;
        for (took, least, most) in [(SWITCHED / 2, 1000, 1300), (SWITCHED * 2, 6400, 6600)] {
            let (mut patience, mut count) = (Patience::FULL, 0);
            for _ in 0..FEW_POLLS as usize + 2 * growing + 100 * growing {
                match patience.rest(Progress::Made, || true) {
                    Rest::None => continue,
                    Rest::Nap => patience.was_no_nap(took),
                    Rest::Yield => patience.was_offered(took),
                }
                count += 1;
            }
            assert!((least..=most).contains(&count), "{count}");
        }
    }

    #[test]
    fn an_offer_that_is_taken_up_is_followed_by_another_one_soon() {
        let mut patience = Patience { left: FURTHER_POLLS << RARER, stage: ALONE + RARER, spins: 0 };
        patience.was_offered(TAKEN_UP * 2);
        assert_eq!((patience.left, patience.stage), (FURTHER_POLLS, CROWDED));
        let mut patience = Patience { left: FURTHER_POLLS << RARER, stage: ALONE + RARER, spins: 0 };
        patience.was_offered(TAKEN_UP / 2);
        assert_eq!((patience.left, patience.stage), (FURTHER_POLLS << RARER, ALONE + RARER));
    }

    #[test]
    fn too_few_are_offered_first_and_napped_on_then() {
        let rests = rests(true, FEW_POLLS as usize + 10 * FURTHER_POLLS as usize);
        let offers = OFFERS as usize + 1;
        assert!(rests[..offers].iter().all(|r| *r == Rest::Yield));
        assert!(rests.len() > offers && rests[offers..].iter().all(|r| *r == Rest::Nap));
    }
}
