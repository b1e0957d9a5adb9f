//! The frames of wake-ups between a VM's agent and the host service: eight bytes each, in either direction.

use crate::error::{Error, Result};

/// Bytes of a frame.
pub const BYTES: usize = 8;

const HELLO: u32 = u32::from_le_bytes(*b"iam1");
const WAKE: u32 = u32::from_le_bytes(*b"ring");

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// From an agent, first: the ivshmem id of its VM.
    Hello {
        /// The id.
        id: u32,
    },
    /// An endpoint is to be woken.
    Wake {
        /// Its slot in the region.
        slot: u32,
    },
}

fn frame(kind: u32, value: u32) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[4..].copy_from_slice(&value.to_le_bytes());
    bytes
}

/// [`Frame::Hello`].
pub fn hello(id: u32) -> [u8; BYTES] {
    frame(HELLO, id)
}

/// [`Frame::Wake`].
pub fn wake(slot: u32) -> [u8; BYTES] {
    frame(WAKE, slot)
}

/// Takes all whole frames from the front of what has come.
///
/// # Errors
/// [`Error::BadFrame`]: the stream is not of these frames, or is out of step.
pub fn take(bytes: &mut Vec<u8>) -> Result<Vec<Frame>> {
    let whole = bytes.len() / BYTES * BYTES;
    let taken: Vec<u8> = bytes.drain(..whole).collect();
    let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    taken
        .chunks_exact(BYTES)
        .map(|chunk| match word(&chunk[..4]) {
            HELLO => Ok(Frame::Hello { id: word(&chunk[4..]) }),
            WAKE => Ok(Frame::Wake { slot: word(&chunk[4..]) }),
            _ => Err(Error::BadFrame { what: "it is not one of a wake-up" }),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_whatever_the_pieces() {
        let mut stream = Vec::new();
        let sent: Vec<u8> = [hello(7), wake(0), wake(u32::MAX)].concat();
        let mut found = Vec::new();
        for piece in sent.chunks(5) {
            stream.extend_from_slice(piece);
            found.extend(take(&mut stream).unwrap());
        }
        assert_eq!(found, [Frame::Hello { id: 7 }, Frame::Wake { slot: 0 }, Frame::Wake { slot: u32::MAX }]);
        assert!(stream.is_empty());
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        assert!(take(&mut b"garbage!".to_vec()).is_err());
        assert_eq!(take(&mut b"rin".to_vec()).unwrap(), []);
    }
}
