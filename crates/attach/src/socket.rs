//! Frames with descriptors over a UNIX socket, and where that is.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use isthmus_region::shared_by_threads::Count;
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::error::{Error, Result};
use crate::protocol::MAX_FRAME;

/// Most descriptors in a frame.
const MAX_FDS: usize = 4;
/// The environment variable that names the socket.
pub const SOCKET_VARIABLE: &str = "ISTHMUS_SOCKET";
/// Where the service of a machine, or of a VM, listens.
pub const SYSTEM_SOCKET: &str = "/run/isthmus/socket";

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
/// told that nobody listens, and another service never takes it for the socket of a dead one.
///
/// # Errors
/// [`Error::InUse`] if a process listens at `path`; [`Error::Socket`].
pub fn listen(path: &Path, kind: SocketType, mode: u32, group: Option<u32>) -> Result<OwnedFd> {
    let failed = |action| move |source| Error::Socket { action, path: path.to_path_buf(), source };
    check_free(path)?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).map_err(failed("create"))?;
    let unnamed = unnamed_beside(path);
    let address = SocketAddrUnix::new(&unnamed).map_err(failed("name"))?;
    rustix::net::bind(&socket, &address).map_err(failed("bind"))?;
    let listening = || {
        if let Some(group) = group
            && rustix::fs::stat(&unnamed).map_err(failed("look at"))?.st_gid != group
        {
            // Before the mode, which lets the group in.
            let group = rustix::fs::Gid::from_raw(group);
            rustix::fs::chown(&unnamed, None, Some(group)).map_err(failed("set the group of"))?;
        }
        let mode = rustix::fs::Mode::from_raw_mode(mode);
        rustix::fs::chmod(&unnamed, mode).map_err(failed("set the mode of"))?;
        rustix::net::listen(&socket, 1024).map_err(failed("listen on"))?;
        rustix::fs::renameat_with(CWD, &unnamed, CWD, path, RenameFlags::NOREPLACE).map_err(|source| {
            match source {
                // Another service took it since the look.
                Errno::EXIST => Error::InUse { path: path.to_path_buf() },
                source => failed("name")(source),
            }
        })
    };
    if let Err(error) = listening() {
        let _ = rustix::fs::unlink(&unnamed);
        return Err(error);
    }
    Ok(socket)
}

/// A name of no other socket, in the same folder as `path`.
fn unnamed_beside(path: &Path) -> PathBuf {
    static COUNT: Count = Count::new(0);
    path.with_file_name(format!(".{:x}.{:x}", std::process::id(), COUNT.add(1)))
}

/// Makes sure that no process listens at `path`, and removes a socket that a dead service left there.
///
/// # Errors
/// [`Error::InUse`] if a process listens there; [`Error::Socket`] if there is something else.
pub fn check_free(path: &Path) -> Result<()> {
    let failed = |action| move |source| Error::Socket { action, path: path.to_path_buf(), source };
    if path.symlink_metadata().is_err() {
        return Ok(());
    }
    let address = SocketAddrUnix::new(path).map_err(failed("name"))?;
    let probe = packet_socket(SocketFlags::NONBLOCK).map_err(failed("create"))?;
    match rustix::net::connect(&probe, &address) {
        // PROTOTYPE: a process listens there with another kind of socket.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(Error::InUse { path: path.to_path_buf() }),
        // Only a socket without a listener is removed, never another file.
        Err(Errno::CONNREFUSED) if is_socket(path) => {
            rustix::fs::unlink(path).map_err(failed("remove the stale"))
        }
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

    /// Services that start at once: one gets the name, the others hear that it is in use and leave nothing behind.
    #[test]
    fn a_name_is_had_once() {
        let dir = tempfile::tempdir().unwrap();
        for round in 0..50 {
            let path = dir.path().join(round.to_string());
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
            let in_use = |attempt: &Result<OwnedFd>| matches!(attempt, Err(Error::InUse { .. }));
            assert_eq!(attempts.iter().filter(|attempt| in_use(attempt)).count(), 3, "{attempts:?}");
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), round + 1);
        }
    }
}
