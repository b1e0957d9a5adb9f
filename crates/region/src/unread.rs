//! How much of what was sent to a socket's other end nobody has read yet.

use std::ffi::c_int;
use std::os::fd::AsFd;

use rustix::ioctl::{self, Getter};

/// `SIOCOUTQ` in unix(7), which has the number of `TIOCOUTQ`.
#[allow(clippy::cast_possible_truncation)] // a number of 16 bits
const SIOCOUTQ: ioctl::Opcode = libc::TIOCOUTQ as ioctl::Opcode;

/// Bytes that the other end of a UNIX socket has not read, as the kernel counts them, with what it needs for itself. They are none once
/// the other end is closed, whichever end was shut down before.
///
/// # Errors
/// The system's answer.
pub fn unread(socket: impl AsFd) -> rustix::io::Result<usize> {
    // SAFETY: the call of this number writes one int, if anything, whatever the descriptor is.
    let call = unsafe { Getter::<SIOCOUTQ, c_int>::new() };
    // SAFETY: as above.
    let bytes = unsafe { ioctl::ioctl(socket, call) }?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType};

    use super::*;

    #[test]
    fn what_was_sent_is_unread_until_it_is_read_or_its_reader_is_gone() {
        let pair = || {
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap()
        };
        let (one, two) = pair();
        assert_eq!(unread(&one), Ok(0));
        rustix::net::send(&one, b"abc", SendFlags::empty()).unwrap();
        for end in [&one, &two] {
            rustix::net::shutdown(end, Shutdown::Both).unwrap();
            assert!(unread(&one).unwrap() > 0);
        }
        rustix::net::recv(&two, &mut [0_u8; 8][..], rustix::net::RecvFlags::empty()).unwrap();
        assert_eq!(unread(&one), Ok(0));
        let (one, two) = pair();
        rustix::net::send(&one, b"abc", SendFlags::empty()).unwrap();
        drop(two);
        assert_eq!(unread(&one), Ok(0));
        assert!(unread(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
