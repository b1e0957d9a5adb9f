//! Frames with descriptors over a UNIX socket, and where that is.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use rustix::process::Pid;

use crate::error::{Error, Result};
use crate::protocol::MAX_FRAME;

/// How long a service waits for others that start in the same folder.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of a path that every client can name, QEMU too, which has a zero at the end.
const LONGEST_PATH: usize = 107;
/// Most descriptors in a frame.
const MAX_FDS: usize = 4;
/// The environment variable that names the socket.
pub const SOCKET_VARIABLE: &str = "ISTHMUS_SOCKET";
/// Where the service of a machine, or of a VM, listens.
pub const SYSTEM_SOCKET: &str = "/run/isthmus/socket";

/// The process at the other end of a connection, as the kernel states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// Its number; none for one that has no number here, as from outside of a container with process numbers of its own.
    pub pid: Option<Pid>,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// Who is at the other end of a connection (`SO_PEERCRED` in unix(7)).
///
/// # Errors
/// The system's answer.
pub fn caller(socket: impl AsFd) -> rustix::io::Result<Caller> {
    // Rustix's own gives a number that must not be 0, and writes what the kernel says there.
    let said = getsockopt(&socket, PeerCredentials)
        .map_err(|e| Errno::from_io_error(&e.into()).unwrap_or(Errno::INVAL))?;
    let pid = Pid::from_raw(said.pid());
    Ok(Caller { pid, uid: said.uid(), gid: said.gid() })
}

/// The socket of the local service: `ISTHMUS_SOCKET`, else `/run/isthmus/socket`, else
/// `$XDG_RUNTIME_DIR/isthmus/socket`. The variable is believed; the other two must exist.
///
/// # Errors
/// [`Error::NoSocket`] naming the places.
pub fn find_socket() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(SOCKET_VARIABLE).filter(|p| !p.is_empty()) {
        return Ok(path.into());
    }
    let places = [Some(PathBuf::from(SYSTEM_SOCKET)), user_socket()];
    let found = places.into_iter().flatten().find(|path| path.exists());
    found.ok_or_else(|| Error::NoSocket { tried: self::places() })
}

/// The places that [`find_socket`] tries, and what is there, as text for people.
pub fn places() -> String {
    let named = std::env::var_os(SOCKET_VARIABLE).filter(|p| !p.is_empty());
    let state = |path: &Path| match path.try_exists() {
        Ok(true) => "is there",
        Ok(false) => "is not there",
        Err(_) => {
            "is in a directory that this user may not enter (`isthmus host --allow USER` or `--group GROUP` lets others in)"
        }
    };
    let named = match named.as_deref().map(Path::new) {
        Some(path) => format!("{SOCKET_VARIABLE} names {}, which {}", path.display(), state(path)),
        None => format!("{SOCKET_VARIABLE} is not set"),
    };
    let user = match user_socket() {
        Some(path) => format!("{} {}", path.display(), state(&path)),
        None => "XDG_RUNTIME_DIR is not set".to_owned(),
    };
    format!("{named}, {SYSTEM_SOCKET} {}, {user}", state(Path::new(SYSTEM_SOCKET)))
}

/// Where a service that this user starts by hand listens, so that [`find_socket`] finds it: at `ISTHMUS_SOCKET`, else
/// for root at `/run/isthmus/socket`, else at `$XDG_RUNTIME_DIR/isthmus/socket`. `None` without any of them.
pub fn own_socket() -> Option<PathBuf> {
    let named = std::env::var_os(SOCKET_VARIABLE).filter(|p| !p.is_empty());
    if named.is_some() {
        return named.map(PathBuf::from);
    }
    if rustix::process::getuid().is_root() { Some(SYSTEM_SOCKET.into()) } else { user_socket() }
}

/// Where the service of a user listens.
pub fn user_socket() -> Option<PathBuf> {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").filter(|p| !p.is_empty())?;
    Some(Path::new(&folder).join("isthmus/socket"))
}

pub(crate) fn packet_socket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)
}

/// A listening socket at `path`, whose folder must exist, with this mode and group; a socket that a dead service left
/// there is removed.
///
/// It gets its name when it listens, not before: a client that sees the name is let in, or has to wait, but is never
/// told that no process listens, and another service never takes it for the socket of a dead one.
///
/// # Errors
/// [`Error::InUse`] if a process listens at `path`; [`Error::Socket`].
pub fn listen(path: &Path, kind: SocketType, mode: u32, group: Option<u32>) -> Result<OwnedFd> {
    let failed = |action| move |source| Error::Socket { action, path: path.to_path_buf(), source };
    if path.as_os_str().len() > LONGEST_PATH {
        return Err(failed("name")(Errno::NAMETOOLONG));
    }
    // Until the end of this function: of services that start at once, one looks at what is there at a time.
    let _turn = take_turn(path);
    check_free(path)?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).map_err(failed("create"))?;
    let unnamed = bind_beside(&socket, path).map_err(failed("bind"))?;
    let listening = || {
        if let Some(group) = group
            && rustix::fs::stat(&unnamed).map_err(failed("look at"))?.st_gid != group
        {
            // Before the mode, which lets the group in.
            let group = rustix::fs::Gid::from_raw(group);
            rustix::fs::chown(&unnamed, None, Some(group)).map_err(failed("set the group of"))?;
        }
        let mode = Mode::from_raw_mode(mode);
        rustix::fs::chmod(&unnamed, mode).map_err(failed("set the mode of"))?;
        rustix::net::listen(&socket, 1024).map_err(failed("listen on"))?;
        rename(&unnamed, path).map_err(|source| match source {
            // Another service took it since the look, one that could not wait for its turn.
            Errno::EXIST => Error::InUse { path: path.to_path_buf() },
            source => failed("name")(source),
        })
    };
    if let Err(error) = listening() {
        let _ = rustix::fs::unlink(&unnamed);
        return Err(error);
    }
    Ok(socket)
}

/// The name of a socket that this process has made, by which its file is known again: the name may be another socket's by the time when
/// this one goes, if somebody has removed it.
#[derive(Debug)]
pub struct Name {
    path: PathBuf,
    /// Device and number of the file. The socket keeps it, so no other file has these as long as the socket is open.
    file: Option<(u64, u64)>,
}

impl Name {
    /// The name at which a socket of this process listens.
    pub fn of(path: &Path) -> Self {
        Self { path: path.to_path_buf(), file: file_at(path) }
    }

    /// Removes it, if it is still that socket's. To be done before the socket is closed.
    pub fn remove(&self) {
        if self.file.is_some() && file_at(&self.path) == self.file {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

/// Device and number of the file with this name.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    rustix::fs::lstat(path).ok().map(|file| (file.st_dev, file.st_ino))
}

/// Waits until no other service looks at what is in the folder of `path`: a lock of the folder, which ends with its
/// descriptor. Other users may lock it, too, so after [`PATIENCE`] it goes on without.
fn take_turn(path: &Path) -> Option<OwnedFd> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty()).ok()?;
    let begun = Instant::now();
    while rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive).is_err() {
        if begun.elapsed() > PATIENCE {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Some(folder)
}

/// Binds `socket` to a name of no other file in the folder of `path`, and gives that. It begins with that of `path`, if
/// that is not too long.
fn bind_beside(socket: &OwnedFd, path: &Path) -> rustix::io::Result<PathBuf> {
    let mut tries = 0;
    loop {
        let random = RandomState::new().build_hasher().finish();
        let mut long = path.as_os_str().to_owned();
        long.push(format!(".{:08x}", random >> 32));
        let (long, short) = (PathBuf::from(long), path.with_file_name(format!(".{:03x}", random & 0xfff)));
        let name = if SocketAddrUnix::new(&long).is_ok() { long } else { short };
        match rustix::net::bind(socket, &SocketAddrUnix::new(&name)?) {
            Err(Errno::ADDRINUSE) if tries < 100 => tries += 1,
            bound => return bound.map(|()| name),
        }
    }
}

/// Renames `from`; fails with `EXIST` if there is something at `to`.
fn rename(from: &Path, to: &Path) -> rustix::io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // A file system without this (NFS, 9p). Services that wait for their turn do not meet here.
        Err(Errno::INVAL | Errno::NOSYS) if to.symlink_metadata().is_ok() => Err(Errno::EXIST),
        Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::rename(from, to),
        other => other,
    }
}

/// Makes sure that no process listens at `path`, and removes a socket that a dead service left there.
///
/// # Errors
/// [`Error::InUse`] if a process listens there; [`Error::Socket`] if there is something else.
pub fn check_free(path: &Path) -> Result<()> {
    let failed = |action| move |source| Error::Socket { action, path: path.to_path_buf(), source };
    let address = SocketAddrUnix::new(path).map_err(failed("name"))?;
    if path.symlink_metadata().is_err() {
        return Ok(());
    }
    let probe = packet_socket(SocketFlags::NONBLOCK).map_err(failed("create"))?;
    match rustix::net::connect(&probe, &address) {
        // PROTOTYPE: a process listens there with another kind of socket.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(Error::InUse { path: path.to_path_buf() }),
        // It was removed since the look.
        Err(Errno::NOENT) => Ok(()),
        // Only a socket without a listener is removed, never another file.
        Err(Errno::CONNREFUSED) if is_socket(path) => match rustix::fs::unlink(path) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(source) => Err(failed("remove the stale")(source)),
        },
        Err(source) => Err(failed("take over")(source)),
    }
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    path.symlink_metadata().is_ok_and(|m| m.file_type().is_socket())
}

/// Sends one frame (or, on a stream socket, these bytes) with descriptors.
///
/// # Errors
/// The system's answer; nothing was sent then.
pub fn send(
    socket: impl AsFd,
    frame: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOMANYREFS);
    }
    loop {
        let sent =
            rustix::net::sendmsg(&socket, &[IoSlice::new(frame)], &mut control, flags | SendFlags::NOSIGNAL);
        match sent {
            Err(Errno::INTR) => {}
            Ok(count) if count != frame.len() => return Err(Errno::MSGSIZE),
            other => return other.map(|_| ()),
        }
    }
}

/// A received packet. Without bytes and descriptors it is the end of the connection.
#[derive(Debug, Default)]
pub struct Packet {
    /// Its bytes.
    pub frame: Vec<u8>,
    /// Its descriptors, close-on-exec.
    pub fds: Vec<OwnedFd>,
}

/// Receives one packet.
///
/// # Errors
/// The system's answer; `MSGSIZE` for a packet or a set of descriptors that is longer than that of any frame, `MFILE`
/// if the process may not have so many descriptors open.
pub fn receive(socket: impl AsFd, flags: RecvFlags) -> rustix::io::Result<Packet> {
    let mut bytes = [0_u8; MAX_FRAME];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        let iov = &mut [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(&socket, iov, &mut control, flags | RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    // The kernel also cuts off descriptors beyond the process's limit, and says CTRUNC then, too.
    if got.flags.contains(ReturnFlags::CTRUNC) && fds.len() < MAX_FDS {
        return Err(Errno::MFILE);
    }
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(Errno::MSGSIZE);
    }
    Ok(Packet { frame: bytes[..got.bytes].to_vec(), fds })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients that come at once: none of them finds a name at which nobody listens.
    #[test]
    fn a_name_is_there_when_it_listens() {
        let dir = tempfile::tempdir().unwrap();
        for round in 0..200 {
            let path = dir.path().join(round.to_string());
            let client = std::thread::spawn({
                let path = path.clone();
                move || {
                    let address = SocketAddrUnix::new(&path).unwrap();
                    let socket = packet_socket(SocketFlags::NONBLOCK).unwrap();
                    loop {
                        match rustix::net::connect(&socket, &address) {
                            Err(Errno::NOENT) => {}
                            other => return other,
                        }
                    }
                }
            });
            let _listener = listen(&path, SocketType::SEQPACKET, 0o600, None).unwrap();
            client.join().unwrap().unwrap();
        }
        let left = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 200, "there is more than the sockets themselves");
    }

    fn is_in_use(attempt: &Result<OwnedFd>) -> bool {
        matches!(attempt, Err(Error::InUse { .. }))
    }

    /// Services that start at once: one gets the name, also where a dead service has left a socket; the others hear that it
    /// is in use and leave nothing behind.
    #[test]
    fn a_name_is_had_once() {
        let dir = tempfile::tempdir().unwrap();
        for round in 0..300 {
            let path = dir.path().join(round.to_string());
            if round % 2 == 0 {
                drop(listen(&path, SocketType::SEQPACKET, 0o600, None).unwrap());
            }
            let start = std::sync::Barrier::new(4);
            let attempts: Vec<_> = std::thread::scope(|threads| {
                let attempt = || {
                    start.wait();
                    listen(&path, SocketType::SEQPACKET, 0o600, None)
                };
                let attempts = [(); 4].map(|()| threads.spawn(attempt));
                attempts.map(|attempt| attempt.join().unwrap()).into()
            });
            assert_eq!(attempts.iter().filter(|attempt| attempt.is_ok()).count(), 1);
            assert_eq!(attempts.iter().filter(|attempt| is_in_use(attempt)).count(), 3, "{attempts:?}");
            assert!(is_in_use(&listen(&path, SocketType::STREAM, 0o600, None)), "it is there");
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), round + 1);
        }
    }

    /// As long as a name may be, and a byte longer; the folder's lock is no condition.
    #[test]
    fn a_name_is_as_long_as_clients_can_say() {
        let dir = tempfile::tempdir().unwrap();
        let most = LONGEST_PATH - dir.path().as_os_str().len() - 1;
        let _other = take_turn(&dir.path().join("any")).unwrap();
        for (len, fits) in [(most - 9, true), (most, true), (most + 1, false), (most + 30, false)] {
            let path = dir.path().join("n".repeat(len));
            let listener = listen(&path, SocketType::SEQPACKET, 0o600, None);
            assert_eq!(listener.is_ok(), fits, "{len}: {listener:?}");
            let client = packet_socket(SocketFlags::NONBLOCK).unwrap();
            let came = SocketAddrUnix::new(&path).and_then(|at| rustix::net::connect(&client, &at));
            assert_eq!(came.is_ok(), fits, "{len}: {came:?}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
