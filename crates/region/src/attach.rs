//! Memory of another process of this system, copied by the kernel (cross-memory attach, process_vm_readv(2)).
//!
//! Which process it is comes from the local service, as a pidfd ([`crate::member::LocalService::process`]): what a member
//! says about itself in the region is no identity. What of that process's memory is copied may be named by anybody, since
//! the kernel copies nothing but what this process may trace, and never faults.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::PTracer;

use crate::local::LocalBuf;

/// Most processes that a process holds at once: one descriptor each.
pub const MOST_PROCESSES: usize = 64;

/// Why nothing was copied, or not all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The process has ended. What was copied may be another's.
    Ended,
    /// The kernel lets this process copy nothing from that one.
    Forbidden,
    /// The kernel could not read all of it: there is no memory at that address, or none that it reads.
    Unreadable,
}

/// Another process, or this one.
#[derive(Debug)]
pub struct Process {
    /// Its number, as this process sees it. It is the process's for as long as `pidfd` has not become readable.
    pid: i32,
    pidfd: OwnedFd,
}

impl Process {
    /// The process that a pidfd stands for; none for one that has ended, has no number here, as from outside of a container,
    /// or if the descriptor is no pidfd. None, too, where `/proc` has other numbers than this process, as in a name space of
    /// process numbers that has no `/proc` of its own: what is told there would name another process.
    pub fn of(pidfd: OwnedFd) -> Option<Self> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let own = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.trim();
        if own.parse() != Ok(rustix::process::getpid().as_raw_nonzero().get()) {
            return None;
        }
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
        let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()?;
        (pid > 0).then_some(Self { pid, pidfd })
    }

    /// Whether it has ended: its number may be another's.
    pub fn has_ended(&self) -> bool {
        let mut poll = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            match rustix::event::poll(&mut poll, Some(&at_once)) {
                // A signal has come meanwhile.
                Err(rustix::io::Errno::INTR) => {}
                // Not the number of another process unless the kernel says so.
                outcome => return outcome != Ok(0),
            }
        }
    }

    /// The word at address `at` of the process.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn word(&self, at: u64) -> Result<u64, Failure> {
        let mut bytes = [0; 8];
        // SAFETY: the array outlives the copy, which is over when this returns.
        self.copy(at, unsafe { LocalBuf::of(&mut bytes) })?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Fills `into` from address `at` of the process.
    ///
    /// # Errors
    /// [`Failure`]; `into` may hold anything then.
    pub fn copy(&self, at: u64, into: LocalBuf) -> Result<(), Failure> {
        let copied = into.fill_from(self.pid, at);
        if self.has_ended() {
            return Err(Failure::Ended);
        }
        match copied {
            Ok(count) if count == into.len() => Ok(()),
            Ok(_) => Err(Failure::Unreadable),
            Err(libc::EPERM | libc::ESRCH | libc::ENOSYS) => Err(Failure::Forbidden),
            Err(_) => Err(Failure::Unreadable),
        }
    }
}

/// Lets other processes of this user copy this process's memory where the kernel keeps that to a process's parents (Yama's
/// `ptrace_scope` of 1). Debuggers may attach to it then, too.
pub fn allow_all() {
    // A kernel without Yama knows no such rule, and refuses the call.
    let _ = rustix::process::set_ptracer(PTracer::Any);
}

/// The processes that this one knows, each with one descriptor, however many endpoints it has.
#[derive(Debug, Default)]
pub(crate) struct Processes(Mutex<HashMap<i32, Weak<Process>>>);

impl Processes {
    /// The process that `pidfd` stands for, if this process may hold one more; the descriptor is closed if it is known.
    pub(crate) fn add(&self, pidfd: OwnedFd) -> Option<Arc<Process>> {
        let process = Process::of(pidfd)?;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same = known.get(&process.pid).and_then(Weak::upgrade).filter(|known| !known.has_ended());
        if same.is_some() {
            return same;
        }
        known.retain(|_, process| process.strong_count() > 0);
        if known.len() >= MOST_PROCESSES {
            return None;
        }
        let process = Arc::new(process);
        known.insert(process.pid, Arc::downgrade(&process));
        Some(process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

    fn of(pid: Pid) -> OwnedFd {
        pidfd_open(pid, PidfdFlags::empty()).unwrap()
    }

    #[test]
    fn what_is_there_is_copied_and_what_is_not_is_no_fault() {
        let process = Process::of(of(getpid())).unwrap();
        let from: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        let into = LocalBuf::leaked(vec![0; 10_000]);
        let at = from.as_ptr() as u64;
        assert_eq!(process.copy(at, into), Ok(()));
        assert!(into.to_vec() == from);
        assert_eq!(process.copy(at, LocalBuf::EMPTY), Ok(()));
        for nowhere in [1, 1 << 46, 1 << 47, u64::MAX - 100] {
            assert_eq!(process.copy(nowhere, into), Err(Failure::Unreadable), "{nowhere:x}");
        }
    }

    #[test]
    fn a_process_that_has_ended_is_not_copied_from() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let process = Process::of(of(pid)).unwrap();
        assert!(!process.has_ended());
        let ended = of(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(process.has_ended() && Process::of(ended).is_none());
        assert_eq!(process.copy(4096, LocalBuf::leaked(vec![0; 8])), Err(Failure::Ended));
        assert!(Process::of(std::fs::File::open("/dev/null").unwrap().into()).is_none(), "no pidfd");
    }

    #[test]
    fn a_signal_is_no_death() {
        extern "C" fn nothing(_: i32) {}
        let process = Process::of(of(getpid())).unwrap();
        let (from, into) = (vec![7_u8; 65536], LocalBuf::leaked(vec![0; 65536]));
        // SAFETY: a handler that does nothing, for a signal that nothing else here waits for.
        unsafe { libc::signal(libc::SIGURG, nothing as extern "C" fn(i32) as libc::sighandler_t) };
        // SAFETY: it has no preconditions.
        let me = unsafe { libc::pthread_self() };
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            while ended.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                // SAFETY: that thread waits for this one, so it is there.
                unsafe { libc::pthread_kill(me, libc::SIGURG) };
            }
        });
        for _ in 0..20_000 {
            assert_eq!(process.copy(from.as_ptr() as u64, into), Ok(()));
        }
        drop(end);
        other.join().unwrap();
    }

    /// What one user's thread may copy of another's process: as root a thread becomes another user, and everybody else tries the
    /// first process of the system, which is root's.
    #[test]
    fn a_process_of_another_user_is_forbidden() {
        let is_root = rustix::process::getuid().is_root();
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let other = if is_root { Pid::from_child(&child) } else { Pid::INIT };
        let process = Process::of(of(other)).unwrap();
        let copied = std::thread::spawn(move || {
            if is_root {
                // Of this thread alone.
                rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65534)).unwrap();
            }
            process.copy(4096, LocalBuf::leaked(vec![0; 8]))
        });
        let copied = copied.join().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(copied, Err(Failure::Forbidden));
    }

    #[test]
    fn each_process_has_one_descriptor_while_somebody_holds_it() {
        let known = Processes::default();
        let one = known.add(of(getpid())).unwrap();
        let two = known.add(of(getpid())).unwrap();
        assert!(Arc::ptr_eq(&one, &two));
        drop((one, two));
        assert!(known.0.lock().unwrap()[&getpid().as_raw_nonzero().get()].upgrade().is_none());
        assert!(known.add(of(getpid())).is_some());
    }
}
