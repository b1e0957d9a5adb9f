//! Doorbells: how a thread sleeps until another process rings, and how it is rung, whichever way the memory allows.
//!
//! Three kinds. With [`Doorbell::Futex`] the kernel finds the sleepers of a word by its file and offset, so the processes of one
//! system ring each other without help. In a device's BAR there are no futexes: with [`Doorbell::Service`] a sleeper has the
//! read end of a pipe from its local service, and the service writes to the other end when it is asked to. (An eventfd would be
//! one open file of both: a sleeper that made it block could stop the service.) A process of another peer is always rung through
//! the services, or, with [`Doorbell::Interrupt`], by the guest driver: the descriptor that a sleeper got from its service is the driver's
//! then, and whoever rings has the driver interrupt the sleeper's VM ([`crate::driver::Ringer`]).
//!
//! - A [`Sleeper`] is where the threads of a process sleep that wait for an endpoint; [`Member::ring`] wakes them.
//! - A [`crate::gate::Gate`] is where they sleep at a word that many may change.
//! - A [`Pollable`] is a descriptor for `poll(2)` that rings and a timer make readable.
//!
//! No sleep lasts longer than [`Doorbell::longest`], if the sleeper has no limit of its own: a waker may be killed between its
//! change and its ring.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use isthmus_lockfree::sleep::Bell;
use isthmus_lockfree::sync::{ReadWord, Word};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll};
use rustix::pipe::PipeFlags;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};

use crate::error::Result;
use crate::format::GlobalSlot;
use crate::mapping::LineRef;
use crate::member::Member;
use crate::shared_by_threads::Flag;
use crate::signals::Uncancelled;
use crate::waiting::nap;
use crate::wake;

/// The longest sleep where nothing can ring.
const LONGEST_UNRUNG: Duration = Duration::from_millis(1);
/// Time from a refusal of the service, which may be short of descriptors, to the next request.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// How threads of this system sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doorbell {
    /// At a futex in the region.
    Futex,
    /// At a pipe from the local service.
    Service,
    /// At a descriptor of the guest driver, from the local service.
    Interrupt,
}

impl Doorbell {
    /// The kind that works for memory with this word in it: it is tried.
    pub fn of(word: &ReadWord) -> Self {
        if wake::works(word) { Self::Futex } else { Self::Service }
    }

    /// As sleep words name it.
    pub fn bell(self) -> Bell {
        match self {
            Self::Futex => Bell::Futex,
            Self::Service | Self::Interrupt => Bell::Service,
        }
    }

    /// The longest sleep: so late at most is a lost ring, or a death that nobody rang for, found. Longer where a look costs more.
    pub fn longest(self) -> Duration {
        match self {
            Self::Futex => Duration::from_millis(50),
            Self::Service => Duration::from_millis(250),
            // No ring of those who live is lost on its way to an interrupt. But a process may be stopped between a change and its ring,
            // and an agent may be gone.
            Self::Interrupt => Duration::from_secs(5),
        }
    }

    /// About what it costs to go to sleep and to be woken: polling for longer does not pay.
    pub fn cost(self) -> Duration {
        match self {
            Self::Futex => Duration::from_micros(20),
            Self::Service => Duration::from_micros(300),
            Self::Interrupt => Duration::from_micros(100),
        }
    }

    /// Wakes up to `count` of the threads of this system that sleep at the word, which was changed already. Gives whether this
    /// kind can; if not, a service has to.
    #[inline]
    pub fn ring(self, word: &ReadWord, count: u32) -> bool {
        if self == Self::Futex {
            wake::ring(word, count);
        }
        self == Self::Futex
    }

    /// Adds one to an endpoint's wake word and wakes its sleepers at the futex, if there are such.
    pub fn ring_endpoint(self, word: &Word) {
        word.add(1);
        self.ring(word, u32::MAX);
    }
}

impl Member {
    /// Wakes the endpoint with this global slot, which sleeps at `bell`: by its futex if both ends can reach that, otherwise
    /// through the services. Says nothing of whether that came about.
    pub fn ring(&self, slot: GlobalSlot, bell: Bell) {
        let endpoints = self.region().shape().endpoints;
        let is_near = slot.peer(endpoints) == self.peer() && self.doorbell() == Doorbell::Futex;
        match self.own().wake_line(slot.local(endpoints)) {
            Ok(line) if is_near && bell == Bell::Futex => wake::wake(&line.words[0]),
            _ => self.service().wake(slot),
        }
    }
}

/// Where the threads of this process sleep that wait for one of its endpoints.
#[derive(Debug)]
pub struct Sleeper {
    member: Arc<Member>,
    local: u32,
    doorbell: Doorbell,
    longest: Duration,
    wake: LineRef,
    /// The service's descriptor, asked for when it is needed first.
    bell: OnceLock<OwnedFd>,
    /// When the service refused it.
    refused: Mutex<Option<Instant>>,
    /// An eventfd that the threads of this process write; made when a thread first sleeps at `bell`.
    own: OnceLock<OwnedFd>,
    /// Whether a thread waits at the two; the others wait for that one.
    is_taken: Mutex<bool>,
    rung: Condvar,
    pollable: OnceLock<Pollable>,
    /// Whether the descriptor's other end was closed, since the service has ended: it stays readable, and rings no more.
    is_over: Flag,
}

impl Sleeper {
    /// For the endpoint in slot `local` of the own peer. With `by_service` its threads sleep by the service even where there are
    /// futexes.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for a slot beyond the table.
    pub fn new(member: &Arc<Member>, local: u32, by_service: bool) -> Result<Self> {
        let doorbell = match member.doorbell() {
            Doorbell::Futex if by_service => Doorbell::Service,
            other => other,
        };
        Ok(Self {
            member: Arc::clone(member),
            local,
            doorbell,
            longest: doorbell.longest(),
            wake: member.own().wake_line(local)?,
            bell: OnceLock::new(),
            refused: Mutex::new(None),
            own: OnceLock::new(),
            is_taken: Mutex::new(false),
            rung: Condvar::new(),
            pollable: OnceLock::new(),
            is_over: Flag::default(),
        })
    }

    /// The same, with a longest sleep of its own.
    #[must_use]
    pub fn with_longest(self, longest: Duration) -> Self {
        Self { longest, ..self }
    }

    /// The longest sleep that it was made with.
    pub fn most(&self) -> Duration {
        self.longest
    }

    /// The kind by which its threads sleep.
    pub fn doorbell(&self) -> Doorbell {
        self.doorbell
    }

    /// Rings so far; to be read before the last poll.
    #[inline]
    pub fn seen(&self) -> u64 {
        self.wake.words[0].get()
    }

    /// The longest sleep that makes sense here.
    pub fn longest(&self) -> Duration {
        let is_deaf = self.doorbell != Doorbell::Futex && self.bell().is_none();
        if is_deaf || self.is_over() { LONGEST_UNRUNG } else { self.longest }
    }

    /// Whether the service's descriptor rings no more: who watches it leaves that, since it stays readable.
    pub fn is_over(&self) -> bool {
        self.is_over.is_set()
    }

    /// The descriptor that the service makes readable; none if it gives none. After a refusal it is asked again, now and then.
    pub fn bell(&self) -> Option<BorrowedFd<'_>> {
        if self.bell.get().is_none() && lock(&self.refused).is_none_or(|at| at.elapsed() >= ASK_AGAIN) {
            let _ = self.ask_for_bell();
        }
        self.bell.get().map(AsFd::as_fd)
    }

    /// Asks the service for that descriptor, unless it is there.
    ///
    /// # Errors
    /// The service's.
    pub fn ask_for_bell(&self) -> Result<()> {
        let mut refused = lock(&self.refused);
        if self.bell.get().is_some() {
            return Ok(());
        }
        let _uncancelled = Uncancelled::new();
        match self.member.service().bell(self.local) {
            Ok(bell) => {
                let _ = self.bell.set(bell);
                // What has rung so far is not in it, and may have been meant for threads that are about to sleep or poll.
                self.count_ring();
                if let Some(pollable) = self.pollable.get() {
                    pollable.ring();
                }
                Ok(())
            }
            Err(refusal) => {
                *refused = Some(Instant::now());
                Err(refusal)
            }
        }
    }

    /// Sleeps until a ring after `seen` was read, until `limit` or [`Sleeper::longest`] is up, or for no reason.
    pub fn sleep(&self, seen: u64, limit: Duration) {
        let limit = limit.min(self.longest());
        if self.doorbell == Doorbell::Futex {
            return wake::wait(&self.wake.words[0], seen, limit);
        }
        // Of two threads that make a descriptor one closes its own.
        let _uncancelled = Uncancelled::new();
        let Some(bell) = self.bell() else { return nap(limit) };
        if self.own.get().is_none()
            && let Ok(own) = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        {
            let _ = self.own.set(own);
        }
        let mut is_taken = lock(&self.is_taken);
        if *is_taken {
            // Whatever rang since `seen` was read may have woken that thread alone, before this one had the lock.
            if self.seen() != seen {
                return;
            }
            let waited = self.rung.wait_timeout(is_taken, limit);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            return;
        }
        *is_taken = true;
        drop(is_taken);
        let mut is_gone = false;
        if self.seen() == seen {
            let own = self.own.get().map_or(bell, AsFd::as_fd);
            let both = &mut [PollFd::new(&bell, PollFlags::IN), PollFd::new(&own, PollFlags::IN)];
            let _ = rustix::event::poll(both, Some(&timespec(limit)));
            is_gone = both[0].revents().contains(PollFlags::HUP);
        }
        self.own.get().map(|own| drain(own.as_fd()));
        if drain(bell) {
            self.count_ring();
            // It may have been meant for the program's poll.
            if let Some(pollable) = self.pollable.get() {
                pollable.ring();
            }
        } else if is_gone {
            // It stays readable, and rings no more.
            nap(limit.min(LONGEST_UNRUNG));
        }
        *lock(&self.is_taken) = false;
        self.rung.notify_all();
    }

    /// Wakes all threads of this process that sleep here, or poll the descriptor.
    pub fn wake_all(&self) {
        self.doorbell.ring_endpoint(&self.wake.words[0]);
        if self.doorbell != Doorbell::Futex {
            // A thread that takes the lock after this finds the word changed; one before it has made the descriptor.
            drop(lock(&self.is_taken));
            self.rung.notify_all();
            // The thread that waits at the two descriptors.
            if let Some(own) = self.own.get() {
                ring(own);
            }
        }
        if let Some(pollable) = self.pollable.get() {
            pollable.ring();
        }
    }

    /// The descriptor for `poll(2)`, made when it is asked for first: readable once the endpoint is rung by the service.
    ///
    /// # Errors
    /// The system's; `NOTSUP` without a descriptor of the service.
    pub fn pollable(&self) -> rustix::io::Result<&Pollable> {
        if self.pollable.get().is_none() {
            let made = Pollable::new()?;
            let bell = self.bell().ok_or(rustix::io::Errno::NOTSUP)?;
            if !self.is_over() {
                made.watch(bell)?;
            }
            // For what has come before there was this.
            made.ring();
            // Another thread may be first, which is as well.
            let _ = self.pollable.set(made);
        }
        self.pollable.get().ok_or(rustix::io::Errno::AGAIN)
    }

    /// Takes what the service left in its descriptor, for a caller that watches it.
    pub fn drain_bell(&self) {
        let Some(bell) = self.bell.get() else { return };
        let (any, is_over) = take(bell.as_fd());
        if is_over
            && !self.is_over.set()
            && let Some(pollable) = self.pollable.get()
        {
            pollable.leave(bell.as_fd());
        }
        if any {
            self.count_ring();
            if *lock(&self.is_taken)
                && let Some(own) = self.own.get()
            {
                // The ring was meant for the thread that waits there, too, which may not have seen it yet.
                ring(own);
            }
        }
    }

    /// Counts a ring that was taken from the descriptor, for threads that are about to sleep: a service has counted it, but the guest
    /// driver cannot.
    fn count_ring(&self) {
        if self.doorbell == Doorbell::Interrupt {
            self.wake.words[0].add(1);
        }
    }

    /// Has the descriptor be readable within `limit`: something may come for which nothing rings.
    pub fn look_within(&self, limit: Duration) {
        if let Some(pollable) = self.pollable.get() {
            pollable.set_timer(limit.min(self.longest()));
        }
    }

    /// Makes the descriptor unreadable until the next ring, or until it is time to check who lives.
    pub fn clear(&self) {
        if let Some(pollable) = self.pollable.get() {
            pollable.drain();
            self.drain_bell();
            pollable.set_timer(self.longest());
        }
    }
}

/// A descriptor for `poll(2)`: readable once a watched descriptor is, [`Pollable::ring`] is called, or the timer is up.
#[derive(Debug)]
pub struct Pollable {
    epoll: OwnedFd,
    own: OwnedFd,
    timer: OwnedFd,
}

impl Pollable {
    /// One that watches nothing yet.
    ///
    /// # Errors
    /// The system's: no descriptor is left.
    pub fn new() -> rustix::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let own = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let made = Self { epoll, own, timer };
        made.watch(made.own.as_fd())?;
        made.watch(made.timer.as_fd())?;
        Ok(made)
    }

    /// Watches another descriptor.
    ///
    /// # Errors
    /// The system's.
    pub fn watch(&self, fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
    }

    /// Watches a descriptor no more.
    pub fn leave(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Makes it readable; for threads of this process.
    pub fn ring(&self) {
        ring(&self.own);
    }

    /// Makes it readable after `limit`; replaces the limit before.
    pub fn set_timer(&self, limit: Duration) {
        let value = timespec(limit.max(Duration::from_nanos(1)));
        let once = Itimerspec { it_interval: Timespec::default(), it_value: value };
        let _ = rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }

    /// Takes what [`Pollable::ring`] and the timer have left. Watched descriptors are their owners' to drain.
    pub fn drain(&self) {
        drain(self.own.as_fd());
        drain(self.timer.as_fd());
    }

    /// Waits until it is readable, at most `limit`.
    pub fn wait(&self, limit: Duration) {
        // All of its outcomes mean the same: poll again.
        let _ = rustix::event::poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&timespec(limit)));
    }
}

impl AsFd for Pollable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// A bell: what a sleeper gets, and what [`ring`] writes to, which only the caller should keep.
///
/// # Errors
/// The system's: no descriptor is left.
pub fn bell() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // A page will do, and the system allows a user only so many. Where it cannot be made smaller it is as good.
    let _ = rustix::pipe::fcntl_setpipe_size(&write, 4096);
    Ok((read, write))
}

/// Makes the other end of an eventfd, or of a pipe, readable. It must not block; it fails only where there is something to
/// read already, or no reader.
pub fn ring(fd: impl AsFd) {
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

/// Takes what [`ring`] left in an eventfd or a pipe that does not block. Gives whether there was anything.
pub fn drain(fd: BorrowedFd<'_>) -> bool {
    take(fd).0
}

/// The same; gives as well whether nobody can ring any more.
fn take(fd: BorrowedFd<'_>) -> (bool, bool) {
    let mut bytes = [0_u8; 512];
    let mut any = false;
    loop {
        match rustix::io::read(fd, &mut bytes) {
            Ok(0) => return (any, true),
            Ok(count) if count == bytes.len() => any = true,
            Ok(_) => return (true, false),
            Err(_) => return (any, false),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// For the system; a duration that is too long for it is a day.
fn timespec(limit: Duration) -> Timespec {
    Timespec::try_from(limit.min(Duration::from_secs(86_400))).unwrap_or_default()
}
