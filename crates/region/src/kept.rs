//! Descriptors that a library keeps in somebody else's process: the program may close all that it did not open, and open others under
//! their numbers; and a forked child inherits them, with no use for them.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::process::Pid;

use crate::driver;
use crate::mapping::is_device;
use crate::shared_by_threads::Flag;

/// The signal that a descriptor would send if it were asked to send any, which ours are not (fcntl(2), asm-generic/fcntl.h). The kernel keeps
/// that number for each open file.
const SET_SIGNAL: libc::c_int = 10;
const GET_SIGNAL: libc::c_int = 11;
const MOST_SIGNALS: u64 = 64;

/// Device and number of a file, and of a device's node the mark that this open file of it has; 0 if it has none.
type Identity = (u64, u64, libc::c_int);

/// A descriptor that is closed only if it still is what it was.
#[derive(Debug)]
pub struct Kept {
    fd: ManuallyDrop<OwnedFd>,
    /// None if the system does not say.
    identity: Option<Identity>,
    pid: Pid,
    is_closed: Flag,
}

impl Kept {
    /// Keeps a descriptor.
    pub fn new(fd: OwnedFd) -> Self {
        if driver::is_node(fd.as_fd()) {
            mark(fd.as_fd());
        }
        let identity = identity_of(fd.as_fd());
        let pid = rustix::process::getpid();
        Self { fd: ManuallyDrop::new(fd), identity, pid, is_closed: Flag::new(false) }
    }

    /// Whether it still is of the file that it was of.
    pub fn is_there(&self) -> bool {
        !self.is_closed.is_set() && self.identity.is_some() && identity_of(self.as_fd()) == self.identity
    }

    /// Device and number of its file; none if the system did not say.
    pub fn identity(&self) -> Option<(u64, u64)> {
        self.identity.map(|(device, number, _)| (device, number))
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

fn identity_of(fd: BorrowedFd<'_>) -> Option<Identity> {
    let stat = rustix::fs::fstat(fd).ok()?;
    let mark = if is_device(&stat) { mark_of(fd) } else { 0 };
    Some((stat.st_dev, stat.st_ino, mark))
}

/// Marks an open file of a device's node, of which another library of this process may have others under numbers that were this one's: all
/// of them are one file. Only for those that this process alone has. One that is marked already, as its copy is, stays so.
fn mark(fd: BorrowedFd<'_>) {
    if mark_of(fd) == 0 {
        // At random, since such libraries know nothing of each other.
        let number = RandomState::new().build_hasher().finish() % MOST_SIGNALS + 1;
        // SAFETY: sets a number of an open file.
        unsafe { libc::fcntl(fd.as_raw_fd(), SET_SIGNAL, libc::c_int::try_from(number).unwrap_or(1)) };
    }
}

fn mark_of(fd: BorrowedFd<'_>) -> libc::c_int {
    // SAFETY: reads a number of an open file.
    unsafe { libc::fcntl(fd.as_raw_fd(), GET_SIGNAL) }
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

    /// Any device's node serves, marked as that of the guest driver is, of which each open file is allowed other things.
    #[test]
    fn open_files_of_one_device_are_told_apart() {
        let open = || {
            let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
            mark(file.as_fd());
            file
        };
        let kept = open();
        let number = kept.as_raw_fd();
        let copy = rustix::io::fcntl_dupfd_cloexec(&kept, 0).unwrap();
        mark(copy.as_fd());
        let kept = Kept::new(kept);
        assert!(kept.is_there(), "a copy is the same open file");
        let stranger = (0..100).map(|_| open()).find(|file| mark_of(file.as_fd()) != mark_of(copy.as_fd()));
        // SAFETY: as a program does that does not know what it closes.
        assert_eq!(unsafe { libc::dup2(stranger.unwrap().as_raw_fd(), number) }, number);
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
