//! Signals around a wait: all are blocked until the thread sleeps, and then those that the program has blocked.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use isthmus_sysv::waiting::Sleep;

/// The calling thread's sleep.
pub(crate) struct Signals {
    /// The program's own mask, while all are blocked.
    mask: Option<libc::sigset_t>,
}

impl Signals {
    pub(crate) fn new() -> Self {
        Self { mask: None }
    }
}

impl Sleep for Signals {
    fn begin(&mut self) {
        let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: a set of this function's.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: two sets of this function's.
        let done = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr()) };
        if done == 0 {
            // SAFETY: filled in by the call.
            self.mask = Some(unsafe { before.assume_init() });
        }
    }

    fn sleep(&mut self, bells: &[BorrowedFd<'_>], limit: Duration) -> bool {
        let watched =
            |bell: &BorrowedFd<'_>| libc::pollfd { fd: bell.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut polls: Vec<_> = bells.iter().map(watched).collect();
        let limit = libc::timespec {
            tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let mask = self.mask.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // By the system call: libc's function is a point of cancellation, and a thread must not be unwound from here.
        // SAFETY: descriptors, a time and a set of this function's; the kernel's set has eight bytes.
        let done = unsafe {
            libc::syscall(libc::SYS_ppoll, polls.as_mut_ptr(), polls.len(), &raw const limit, mask, 8_usize)
        };
        done == -1 && crate::errno() == rustix::io::Errno::INTR
    }

    fn end(&mut self) {
        if let Some(mask) = self.mask.take() {
            // SAFETY: the set that `begin` got.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut()) };
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.end();
    }
}
