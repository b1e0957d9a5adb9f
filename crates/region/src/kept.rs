//! Descriptors that a library keeps in somebody else's process: the program may close all that it did not open, and open others under
//! their numbers; and a forked child inherits them, with no use for them.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::process::Pid;

use crate::shared_by_threads::Flag;

/// A descriptor that is closed only if it still is what it was.
#[derive(Debug)]
pub struct Kept {
    fd: ManuallyDrop<OwnedFd>,
    /// Device and number of its file; none if the system does not say.
    identity: Option<(u64, u64)>,
    pid: Pid,
    is_closed: Flag,
}

impl Kept {
    /// Keeps a descriptor.
    pub fn new(fd: OwnedFd) -> Self {
        let identity = identity_of(fd.as_fd());
        let pid = rustix::process::getpid();
        Self { fd: ManuallyDrop::new(fd), identity, pid, is_closed: Flag::new(false) }
    }

    /// Whether it still is of the file that it was of.
    pub fn is_there(&self) -> bool {
        !self.is_closed.is_set() && self.identity.is_some() && identity_of(self.as_fd()) == self.identity
    }

    /// Whether this process is the one that kept it, and not a forked child.
    pub fn is_own(&self) -> bool {
        rustix::process::getpid() == self.pid
    }

    /// Closes it, in a forked child; which uses it no more, here or through a copy of this. Does nothing in the process that kept it.
    pub fn abandon(&self) {
        if !self.is_own() && self.is_there() && !self.is_closed.set() {
            // SAFETY: it is open, this type's own, and not used after this.
            unsafe { rustix::io::close(self.fd.as_raw_fd()) };
        }
    }
}

impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.is_there() {
            // SAFETY: once, as it is dropped.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

fn identity_of(fd: BorrowedFd<'_>) -> Option<(u64, u64)> {
    rustix::fs::fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_another_files_by_now_is_left_alone() {
        let [(kept, _), (stranger, _)] = [(); 2].map(|()| rustix::pipe::pipe().unwrap());
        let number = kept.as_raw_fd();
        let kept = Kept::new(kept);
        assert!(kept.is_there() && kept.is_own());
        kept.abandon();
        assert!(kept.is_there(), "no child");
        // SAFETY: as a program does that does not know what it closes.
        assert_eq!(unsafe { libc::dup2(stranger.as_raw_fd(), number) }, number);
        assert!(!kept.is_there());
        drop(kept);
        // SAFETY: as above; it is still open.
        assert_eq!(unsafe { libc::close(number) }, 0);
    }

    #[test]
    fn what_is_kept_is_closed_in_the_end() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        drop(Kept::new(write));
        assert_eq!(rustix::io::read(&read, &mut [0; 1]), Ok(0));
    }
}
