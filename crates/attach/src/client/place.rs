//! Where the service listens, as a process has found it once: there it finds it again, whatever has become of its environment, its
//! directory and its root since.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use isthmus_region::kept::Kept;
use isthmus_region::member::Member;
use rustix::fs::{Mode, OFlags};

use super::connect_at;
use crate::error::{Error, Result};
use crate::socket;

/// A service's socket.
#[derive(Debug)]
pub struct Place {
    /// From the root that the process had.
    path: PathBuf,
    /// The socket itself, which no path is needed for: not its directory, by which a process could leave a root that it was put into.
    socket: Option<Kept>,
}

impl Place {
    /// Attaches this process to its local service, as [`super::connect`] does, and keeps where that is.
    ///
    /// # Errors
    /// As [`super::connect`].
    pub fn find() -> Result<(Self, Arc<Member>)> {
        let found = socket::find_socket()?;
        let member = connect_at(&found)?;
        Ok((Self::new(&found), member))
    }

    fn new(path: &Path) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let socket = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        Self { socket: socket.ok().map(Kept::new), path }
    }

    /// Attaches this process to the service there: also a forked child, or one that is another user now.
    ///
    /// # Errors
    /// As [`connect_at`].
    pub fn connect(&self) -> Result<Arc<Member>> {
        let moved = self.socket.as_ref().filter(|socket| socket.is_there() && !self.leads_to(socket));
        let Some(socket) = moved else { return connect_at(&self.path) };
        let by_number = format!("/proc/self/fd/{}", socket.as_fd().as_raw_fd());
        match connect_at(Path::new(&by_number)) {
            // Another service may have come to the path; or there is no /proc here.
            Err(Error::Connect { .. }) => connect_at(&self.path),
            done => done,
        }
    }

    /// A descriptor that is of no use but to be closed, for what the process needs one for when it may have no more.
    pub fn spare(&self) -> Option<OwnedFd> {
        let socket = self.socket.as_ref().filter(|socket| socket.is_there())?;
        rustix::io::fcntl_dupfd_cloexec(socket, 0).ok()
    }

    /// Whether the path still leads there.
    fn leads_to(&self, socket: &Kept) -> bool {
        let found = rustix::fs::stat(&self.path).ok().map(|stat| (stat.st_dev, stat.st_ino));
        found.is_some() && found == socket.identity()
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::SocketType;

    use super::*;

    /// Whether a connection came to this socket; the answer to it is none, so [`Place::connect`] fails.
    fn has_come(listener: &OwnedFd) -> bool {
        rustix::net::accept(listener).is_ok()
    }

    #[test]
    fn a_service_is_found_where_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (dir.path().join("socket"), dir.path().join("elsewhere"));
        let listen = |path: &Path| socket::listen(path, SocketType::SEQPACKET, 0o600, None).unwrap();
        let attempt = |place: &Place, listener: &OwnedFd| {
            std::thread::scope(|scope| {
                let come = scope.spawn(|| place.connect());
                let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
                while !come.is_finished() && std::time::Instant::now() < until {
                    if has_come(listener) {
                        return come.join().unwrap().is_err();
                    }
                    std::thread::yield_now();
                }
                false
            })
        };
        let first = listen(&path);
        let place = Place::new(&path);
        assert!(attempt(&place, &first), "by its path");
        std::fs::rename(&path, &elsewhere).unwrap();
        assert!(attempt(&place, &first), "its path leads nowhere");
        let other = listen(&path);
        assert!(attempt(&place, &first), "its path leads to another one");
        drop(first);
        assert!(attempt(&place, &other), "another one has come where it was");
    }
}
