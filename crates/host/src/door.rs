//! The one socket of a service whose processes are peers of their own.
//!
//! Launchers give all ranks of a host the same environment, so all processes come to the same socket. Each is handed on to the
//! service of a peer that has no process; where there is none, to the one that has the fewest. A process keeps its peer as long
//! as it lives, also if it detaches and comes again.

use std::os::fd::OwnedFd;

use isthmus_attach::server::{self, Adopter};
use rustix::event::{PollFd, PollFlags, Timespec};

/// Hands each process on to its peer's service.
#[derive(Debug)]
pub(crate) struct Door {
    /// The services of all peers but the first, whose socket the door is.
    others: Vec<Adopter>,
    /// The living processes of each peer, with their pidfds.
    processes: Vec<Vec<(u32, OwnedFd)>>,
}

impl Door {
    pub(crate) fn new(others: Vec<Adopter>) -> Self {
        let processes = std::iter::repeat_with(Vec::new).take(others.len() + 1).collect();
        Self { others, processes }
    }

    /// The index of a process's peer.
    fn index_of(&mut self, pid: u32, pidfd: &OwnedFd) -> usize {
        for processes in &mut self.processes {
            processes.retain(|(_, pidfd)| !is_dead(pidfd));
        }
        let known = self.processes.iter().position(|all| all.iter().any(|(known, _)| *known == pid));
        if let Some(index) = known {
            return index;
        }
        let fewest = self.processes.iter().enumerate().min_by_key(|(_, all)| all.len());
        let index = fewest.map_or(0, |(index, _)| index);
        // Without a descriptor for it the process is only not counted.
        if let Ok(pidfd) = pidfd.try_clone() {
            self.processes[index].push((pid, pidfd));
        }
        index
    }
}

impl server::Door for Door {
    fn peer_of(&mut self, pid: u32, pidfd: &OwnedFd) -> Option<Adopter> {
        let index = self.index_of(pid, pidfd);
        index.checked_sub(1).and_then(|index| self.others.get(index)).cloned()
    }
}

fn is_dead(pidfd: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&at_once)), Ok(1))
}
