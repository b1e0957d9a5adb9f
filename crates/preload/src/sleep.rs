//! Signals around a wait: all are blocked until the thread sleeps, and then those that the program has blocked.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use isthmus_region::signals::Blocked;
use isthmus_sysv::waiting::Sleep;

/// The calling thread's sleep.
pub(crate) struct Signals {
    /// While all are blocked.
    blocked: Option<Blocked>,
}

impl Signals {
    pub(crate) fn new() -> Self {
        Self { blocked: None }
    }
}

impl Sleep for Signals {
    fn begin(&mut self) {
        self.blocked = Some(Blocked::new());
    }

    fn sleep(&mut self, bells: &[BorrowedFd<'_>], limit: Duration) -> bool {
        let watched =
            |bell: &BorrowedFd<'_>| libc::pollfd { fd: bell.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut polls: Vec<_> = bells.iter().map(watched).collect();
        let limit = libc::timespec {
            tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let mask =
            self.blocked.as_ref().and_then(Blocked::before).map_or(std::ptr::null(), std::ptr::from_ref);
        // By the system call: libc's function is a point of cancellation, and a thread must not be unwound from here.
        // SAFETY: descriptors, a time and a set of this function's; the kernel's set has eight bytes.
        let done = unsafe {
            libc::syscall(libc::SYS_ppoll, polls.as_mut_ptr(), polls.len(), &raw const limit, mask, 8_usize)
        };
        done == -1 && crate::errno() == rustix::io::Errno::INTR
    }

    fn end(&mut self) {
        self.blocked = None;
    }
}
