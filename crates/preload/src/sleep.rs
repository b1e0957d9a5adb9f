//! Signals around a wait: all are blocked, and while the thread sleeps a descriptor tells of those that the program has not blocked.
//!
//! In a program with several threads the kernel would give signals of the whole process to another one, which has them unblocked,
//! while it prefers the first thread otherwise. So there a thread sleeps with the mask that it had before, and handlers run in the
//! middle of the sleep. It has signals blocked for some microseconds before it.
//!
//! A handler may fork. The child that returns from it into the sleep is told so by [`GENERATION`]; one that returns into a call which is
//! awake finds the region gone.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use isthmus_region::shared_by_threads::Count;
use isthmus_region::signals::{Blocked, Uncancelled, let_go};
use isthmus_sysv::waiting::{Heard, Sleep};
use rustix::io::Errno;

/// How often this process, and those that it descends from, were forked.
static GENERATION: Count = Count::new(0);

/// In a forked child.
pub(crate) fn count_fork() {
    GENERATION.add(1);
}

/// The calling thread's sleep.
pub(crate) struct Signals {
    /// When the call began.
    generation: u64,
    /// While all are blocked.
    blocked: Option<Blocked>,
    /// Readable when a signal has come that the program has not blocked (signalfd(2)); made for the first sleep of a wait, and none
    /// while a handler may run: it may never come back.
    coming: Option<OwnedFd>,
    /// While all are blocked and no handler runs that may leave the call for good: to close descriptors is a point of cancellation.
    uncancelled: Option<Uncancelled>,
}

/// Bytes of the kernel's set of signals.
const SET_BYTES: usize = 8;

impl Signals {
    pub(crate) fn new() -> Self {
        Self { generation: GENERATION.peek(), blocked: None, coming: None, uncancelled: None }
    }

    /// At the end of a call, lets go of what it used. A child that a handler has forked has nothing of that.
    pub(crate) fn let_go<T>(&self, used: Arc<T>) {
        match self.is_here() {
            true => let_go(used),
            false => std::mem::forget(used),
        }
    }

    /// The signals that are blocked for the wait, as the kernel has them. Others come as they do without it.
    fn wanted(&self) -> u64 {
        self.blocked.as_ref().map_or(0, Blocked::added)
    }

    /// Makes the descriptor; none where the system gives none, or there are other threads.
    fn watch(&mut self) -> Option<()> {
        if !is_alone() {
            self.coming = None;
            return None;
        }
        if self.coming.is_none() {
            let wanted = self.wanted();
            let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
            // SAFETY: a set of this function's, of as many bytes.
            let fd = unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const wanted, SET_BYTES, flags) };
            let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
            // SAFETY: it is new.
            self.coming = Some(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        Some(())
    }

    /// Whether a signal has come that the program has not blocked.
    fn is_pending(&self) -> bool {
        let mut pending = MaybeUninit::<u64>::zeroed();
        // SAFETY: a set of this function's, of as many bytes.
        let done = unsafe { libc::syscall(libc::SYS_rt_sigpending, pending.as_mut_ptr(), SET_BYTES) };
        // SAFETY: zeros are a set as well.
        done == 0 && unsafe { pending.assume_init() } & self.wanted() != 0
    }

    /// Polls, by the system call: libc's function is a point of cancellation, and a thread must not be unwound from here. `as_before`
    /// is with the mask that the thread had before.
    fn poll(&self, polls: &mut [libc::pollfd], limit: Duration, as_before: bool) -> rustix::io::Result<()> {
        let limit = libc::timespec {
            tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let before = self.blocked.as_ref().and_then(Blocked::before).filter(|_| as_before);
        let mask = before.map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: descriptors, a time and a set of this function's; the kernel's set has eight bytes.
        let done = unsafe {
            libc::syscall(libc::SYS_ppoll, polls.as_mut_ptr(), polls.len(), &raw const limit, mask, SET_BYTES)
        };
        if done == -1 { Err(crate::errno()) } else { Ok(()) }
    }
}

/// Whether the process has never had another thread, as far as libc knows (glibc 2.32 and later).
fn is_alone() -> bool {
    const NOT_THERE: u64 = 1;
    /// Where libc says so; 0 before the first look. Two threads may look at once, and none waits, since a child may be forked meanwhile.
    static AT: Count = Count::new(0);
    let mut at = AT.get();
    if at == 0 {
        // SAFETY: a name with its end.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
        at = (found.expose_provenance() as u64).max(NOT_THERE);
        AT.set(at);
    }
    let Some(at) = usize::try_from(at).ok().filter(|_| at != NOT_THERE) else { return false };
    // SAFETY: a byte of libc's (sys/single_threaded.h), which only this thread changes where it is not 0.
    unsafe { std::ptr::with_exposed_provenance::<u8>(at).read_volatile() != 0 }
}

impl Sleep for Signals {
    fn begin(&mut self) {
        self.blocked = Some(Blocked::new());
        self.uncancelled = Some(Uncancelled::new());
    }

    fn sleep(&mut self, bells: &[BorrowedFd<'_>], limit: Duration) -> Heard {
        if limit.is_zero() && bells.is_empty() {
            return if self.is_pending() { Heard::Pending } else { Heard::Nothing };
        }
        let watched = |fd: i32| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut polls: Vec<_> = bells.iter().map(|bell| watched(bell.as_raw_fd())).collect();
        if self.watch().is_none() {
            // A handler runs in the middle of the sleep.
            let done = self.poll(&mut polls, limit, true);
            return if done == Err(Errno::INTR) { Heard::Handled } else { Heard::Nothing };
        }
        polls.extend(self.coming.as_ref().map(|coming| watched(coming.as_raw_fd())));
        match self.poll(&mut polls, limit, false) {
            Ok(()) if polls.last().is_some_and(|coming| coming.revents != 0) => Heard::Pending,
            // One that is never blocked, as another process may send it.
            Err(Errno::INTR) => Heard::Handled,
            _ => Heard::Nothing,
        }
    }

    fn is_here(&self) -> bool {
        GENERATION.peek() == self.generation
    }

    fn is_told(&self) -> bool {
        is_alone()
    }

    fn handle(&mut self) -> bool {
        self.coming = None;
        self.uncancelled = None;
        let has_run = self.poll(&mut [], Duration::ZERO, true) == Err(Errno::INTR);
        self.uncancelled = Some(Uncancelled::new());
        has_run
    }

    fn end(&mut self) {
        self.coming = None;
        self.uncancelled = None;
        self.blocked = None;
    }
}
