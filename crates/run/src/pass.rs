//! Messages with descriptors between processes of a run, over UNIX stream sockets.
//!
//! A descriptor cannot be taken by its number without `unsafe`, so what a child shall inherit besides its
//! three standard ones is sent to it: its standard input is a socket, and on it come one message and the
//! descriptors. A message is a length of 4 bytes, little-endian, and that many bytes of JSON; descriptors
//! travel with the length.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest message taken: a command line and an environment fit many times over.
const MAX_BYTES: usize = 64 << 20;
/// Most descriptors in one message.
const MAX_FDS: usize = 8;

/// Sends `message` with `fds`.
///
/// # Errors
/// Those of the socket; `InvalidInput` for more than 8 descriptors.
pub fn send<T: Serialize>(socket: &UnixStream, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let len = u32::try_from(body.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    if fds.len() > MAX_FDS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let head = len.to_le_bytes();
    let sent = sendmsg(socket, &[IoSlice::new(&head)], &mut control, SendFlags::NOSIGNAL)?;
    let mut socket = socket;
    socket.write_all(&head[sent..])?;
    socket.write_all(&body)
}

/// Receives one message and its descriptors; `None` at the end of the stream.
///
/// # Errors
/// Those of the socket; `InvalidData` for a message that is too long or not understood.
pub fn receive<T: DeserializeOwned>(socket: &UnixStream) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut head = [0; 4];
    let got = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut head)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?.bytes,
        }
    };
    if got == 0 {
        return Ok(None);
    }
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    let mut socket = socket;
    socket.read_exact(&mut head[got..])?;
    let len = u32::from_le_bytes(head) as usize;
    if len > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "message too long"));
    }
    let mut body = vec![0; len];
    socket.read_exact(&mut body)?;
    Ok(Some((serde_json::from_slice(&body)?, fds)))
}

/// Takes this process's standard input as the socket that it was started with, and puts `/dev/null` in its
/// place.
///
/// # Errors
/// Those of the duplication.
pub fn take_stdin_socket() -> io::Result<UnixStream> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    Ok(UnixStream::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_arrive_with_their_message() {
        let (a, b) = UnixStream::pair().unwrap();
        let (read, write) = io::pipe().unwrap();
        send(&a, &"first", &[write.as_fd()]).unwrap();
        send(&a, &"second", &[]).unwrap();
        drop((a, write));
        let (text, mut fds) = receive::<String>(&b).unwrap().unwrap();
        assert_eq!((text.as_str(), fds.len()), ("first", 1));
        let mut passed = std::fs::File::from(fds.remove(0));
        passed.write_all(b"x").unwrap();
        drop(passed);
        let mut through = String::new();
        let mut read = read;
        read.read_to_string(&mut through).unwrap();
        assert_eq!(through, "x");
        assert_eq!(receive::<String>(&b).unwrap().unwrap().0, "second");
        assert!(receive::<String>(&b).unwrap().is_none());
    }

    #[test]
    fn an_absurd_length_is_refused() {
        let (mut a, b) = UnixStream::pair().unwrap();
        a.write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert_eq!(receive::<String>(&b).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
