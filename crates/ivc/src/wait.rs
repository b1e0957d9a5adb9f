//! Waiting: spin, yield, sleep.
//!
//! Everything that a context waits for rings one bell, that of its endpoint: natively a futex in its record, in a VM an
//! eventfd that the agent writes. A context that sleeps announces it in a word that it alone writes (P6): one for offers,
//! answers and members, and for each channel one for bytes and one for room. Each sleep has a bound, since a death rings
//! no bell.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use isthmus_lockfree::sleep::Bell;
use isthmus_region::mapping::LineRef;
use isthmus_region::member::Member;
use isthmus_region::wake;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};

use crate::error::{Error, Result, region};

/// The longest sleep natively, and so the longest time until a death is seen.
const LONGEST: Duration = Duration::from_millis(50);
/// The longest sleep where a service rings.
const LONGEST_BY_SERVICE: Duration = Duration::from_millis(250);
/// The longest sleep where nothing rings.
const LONGEST_UNRUNG: Duration = Duration::from_millis(1);
/// Sleeps of a thread that may not be rung for what came just before: the first, and the longest. They double.
const UNSURE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(64));
/// Polls before the first yield; the same where more processes run than there are processors.
const POLLS: (u32, u32) = (2000, 100);
/// Yields before a sleep.
const YIELDS: u32 = 8;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves what these locks protect whole: it is changed in steps that each do.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A time-out as a point in time; `None` is for ever.
pub(crate) fn deadline(limit: Option<Duration>) -> Option<Instant> {
    limit.and_then(|limit| Instant::now().checked_add(limit))
}

/// The time left until then.
pub(crate) fn left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |d| d.saturating_duration_since(Instant::now()))
}

/// How long a thread that may not be rung sleeps for the `tries`th time.
pub(crate) fn unsure(tries: u32) -> Duration {
    UNSURE.0.saturating_mul(1 << tries.min(16)).min(UNSURE.1)
}

/// Polls `news` for a while, then yields between polls. Returns whether it returned true.
pub(crate) fn spin(crowded: bool, mut news: impl FnMut() -> bool) -> bool {
    let polls = if crowded { POLLS.1 } else { POLLS.0 };
    for i in 0..polls {
        if news() {
            return true;
        }
        if i % 8 == 7 {
            std::hint::spin_loop();
        }
    }
    for _ in 0..YIELDS {
        std::thread::yield_now();
        if news() {
            return true;
        }
    }
    false
}

/// The bell of a context's endpoint, for its own threads.
pub(crate) struct Sleeper {
    member: Arc<Member>,
    local: u32,
    has_futexes: bool,
    wake: LineRef,
    /// The eventfd of this endpoint; none if the service gives none.
    bell: OnceLock<Option<OwnedFd>>,
    /// Whether a thread sleeps at the eventfd; the others sleep at `rung` until it wakes them.
    at_bell: Mutex<bool>,
    rung: Condvar,
    descriptor: OnceLock<Descriptor>,
}

/// The descriptor that programs poll.
struct Descriptor {
    epoll: OwnedFd,
    /// Written by own threads that consumed a ring which may have been for the program.
    relay: OwnedFd,
    timer: OwnedFd,
}

impl Sleeper {
    pub(crate) fn new(member: &Arc<Member>, local: u32, by_service: bool) -> Result<Self> {
        let wake = member.directory(member.peer()).and_then(|(_, d)| d.wake_line(local));
        Ok(Self {
            member: Arc::clone(member),
            local,
            has_futexes: member.has_futexes() && !by_service,
            wake: wake.map_err(region("find a context's record"))?,
            bell: OnceLock::new(),
            at_bell: Mutex::new(false),
            rung: Condvar::new(),
            descriptor: OnceLock::new(),
        })
    }

    /// The bell that wakes own threads.
    pub(crate) fn mode(&self) -> Bell {
        if self.has_futexes { Bell::Futex } else { Bell::Service }
    }

    /// Number of rings so far; to be read before the check that decides.
    #[inline]
    pub(crate) fn seen(&self) -> u64 {
        self.wake.words[0].get()
    }

    /// The longest sleep that makes sense.
    pub(crate) fn longest(&self) -> Duration {
        if self.has_futexes {
            LONGEST
        } else if self.bell().is_some() {
            LONGEST_BY_SERVICE
        } else {
            LONGEST_UNRUNG
        }
    }

    fn bell(&self) -> Option<&OwnedFd> {
        self.bell.get_or_init(|| self.member.service().bell(self.local).ok()).as_ref()
    }

    /// Sleeps until a ring after `seen` was read, or until `limit` is up. May return for no reason.
    pub(crate) fn sleep(&self, seen: u64, limit: Duration) {
        let limit = limit.min(self.longest());
        if self.has_futexes {
            return wake::wait(&self.wake.words[0], seen, limit);
        }
        let Some(bell) = self.bell() else { return std::thread::sleep(limit) };
        let mut at_bell = lock(&self.at_bell);
        if *at_bell {
            let waited = self.rung.wait_timeout(at_bell, limit);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            return;
        }
        *at_bell = true;
        drop(at_bell);
        if self.seen() == seen {
            let limit = Timespec::try_from(limit).unwrap_or_default();
            let _ = rustix::event::poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&limit));
        }
        let taken = rustix::io::read(bell, &mut [0_u8; 8]).is_ok();
        if let Some(descriptor) = self.descriptor.get().filter(|_| taken) {
            let _ = rustix::io::write(&descriptor.relay, &1_u64.to_le_bytes());
        }
        *lock(&self.at_bell) = false;
        self.rung.notify_all();
    }

    /// Wakes all own threads that sleep, and a program that polls: this thread found something for them.
    pub(crate) fn wake_all(&self) {
        wake::wake(&self.wake.words[0]);
        self.rung.notify_all();
        if let Some(descriptor) = self.descriptor.get() {
            let _ = rustix::io::write(&descriptor.relay, &1_u64.to_le_bytes());
        }
    }

    /// The descriptor for `poll(2)`.
    pub(crate) fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        if let Some(descriptor) = self.descriptor.get() {
            return Ok(descriptor.epoll.as_fd());
        }
        if self.bell().is_none() {
            // Asked again, for the reason.
            let refused = self.member.service().bell(self.local).err();
            let source = refused.unwrap_or(isthmus_region::Error::Service {
                action: "give an eventfd",
                reason: "it gave none when it was asked first".into(),
            });
            return Err(Error::Region { action: "get an eventfd to poll", source });
        }
        let made =
            self.make().map_err(|source| Error::System { action: "make a descriptor to poll", source })?;
        let _ = self.descriptor.set(made);
        self.descriptor
            .get()
            .map(|d| d.epoll.as_fd())
            .ok_or(Error::System { action: "make a descriptor to poll", source: rustix::io::Errno::AGAIN })
    }

    fn make(&self) -> rustix::io::Result<Descriptor> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let relay = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let data = epoll::EventData::new_u64(0);
        for fd in
            [self.bell().map(AsFd::as_fd), Some(relay.as_fd()), Some(timer.as_fd())].into_iter().flatten()
        {
            epoll::add(&epoll, fd, data, epoll::EventFlags::IN)?;
        }
        Ok(Descriptor { epoll, relay, timer })
    }

    /// Makes the descriptor unreadable until the next ring, or until it is time to check for deaths.
    pub(crate) fn clear(&self) {
        let Some(descriptor) = self.descriptor.get() else { return };
        for fd in
            [self.bell().map(AsFd::as_fd), Some(descriptor.relay.as_fd()), Some(descriptor.timer.as_fd())]
        {
            let _ = fd.map(|fd| rustix::io::read(fd, &mut [0_u8; 8]));
        }
        let look = Timespec::try_from(self.longest()).unwrap_or_default();
        let once = Itimerspec { it_interval: Timespec::default(), it_value: look };
        let _ = rustix::time::timerfd_settime(&descriptor.timer, TimerfdTimerFlags::empty(), &once);
    }
}
