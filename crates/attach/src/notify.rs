//! Reports a service's state to systemd (sd_notify(3)): a datagram to the socket that it names. Without such a socket
//! nothing is sent; a failure is ignored.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

/// The variable in which systemd names its socket.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// The service takes connections; `status` is a line for `systemctl status`.
pub fn ready(status: &str) {
    tell(&format!("READY=1\nSTATUS={status}"));
}

/// What the service does now, for `systemctl status`.
pub fn status(status: &str) {
    tell(&format!("STATUS={status}"));
}

/// The service is ending.
pub fn stopping() {
    tell("STOPPING=1");
}

fn tell(state: &str) {
    if let Some(name) = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) {
        // The parent stopped listening; nothing to report.
        let _ = send(&name, state);
    }
}

fn send(name: &OsStr, state: &str) -> rustix::io::Result<()> {
    let address = match name.as_bytes() {
        // An abstract name (unix(7)).
        [b'@', rest @ ..] => SocketAddrUnix::new_abstract_name(rest)?,
        path => SocketAddrUnix::new(path)?,
    };
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::sendto(&socket, state.as_bytes(), SendFlags::NOSIGNAL, &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    fn received(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 256];
        let len = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }

    #[test]
    fn both_kinds_of_names_are_reached() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        assert_eq!(received(&socket), "READY=1");
        let name = format!("isthmus-test-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(OsStr::new(&format!("@{name}")), "STOPPING=1").unwrap();
        assert_eq!(received(&socket), "STOPPING=1");
        assert!(send(OsStr::new("/nowhere/at/all"), "READY=1").is_err());
    }
}
