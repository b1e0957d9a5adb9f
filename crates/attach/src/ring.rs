//! The frames of wake-ups between a VM's agent and the host service: eight bytes each, in either direction, and eight
//! more for a place or a region.

use crate::error::{Error, Result};

/// Bytes of a frame, but for [`Frame::Ring`], [`Frame::Peer`] and [`Frame::Known`], which have twice as many.
pub const BYTES: usize = 8;

/// Name of the virtio-serial port by which they go.
pub const PORT: &str = "isthmus.wake";

const HELLO: u32 = u32::from_le_bytes(*b"join");
const WAKE: u32 = u32::from_le_bytes(*b"ring");
const RING: u32 = u32::from_le_bytes(*b"gate");
const CALL: u32 = u32::from_le_bytes(*b"call");
const DEATH: u32 = u32::from_le_bytes(*b"died");
const PEER: u32 = u32::from_le_bytes(*b"peer");
const SETTLE: u32 = u32::from_le_bytes(*b"look");
const KNOWN: u32 = u32::from_le_bytes(*b"bell");
/// In place of an id: there is none.
const NO_ID: u64 = 0x10000;
const SETTLED: u32 = u32::from_le_bytes(*b"seen");

/// In place of a peer: the host service knows no device that belongs to this port.
pub const NOBODY: u32 = u32::MAX;

/// A frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// From an agent, first and after each of its steps. It does not say which VM it is: the host service knows that by the
    /// port, reads the VM's section, and answers with [`Frame::Peer`].
    Hello {
        /// Whether it wants to know by which ids its device knows other members ([`Frame::Known`]).
        rings: bool,
    },
    /// From the host service, to an agent that rings by its device: the id of a member in the device's view.
    Known {
        /// The member.
        member: u32,
        /// The id; none if it is gone.
        id: Option<u16>,
    },
    /// From the host service: the VM's entry in the membership table has been looked at, or has changed.
    Peer {
        /// The entry; [`NOBODY`] if no device belongs to this port.
        peer: u32,
        /// The region's identity, its first half.
        region: u64,
    },
    /// Wake an endpoint.
    Wake {
        /// Its slot in the region.
        slot: u32,
    },
    /// Wake the waiters at a place.
    Ring {
        /// The peer in which they wait.
        peer: u32,
        /// The place, as a word.
        place: u64,
    },
    /// All sleepers are to be woken: a process, or a whole peer, is gone.
    Death {
        /// The peer.
        peer: u32,
    },
    /// From an agent: there is a request about named objects in its section. To an agent: the answer is in the host
    /// section.
    Call {
        /// Number of the request, the lower half.
        number: u32,
    },
    /// From an agent: all services are to hear what their processes have said by now, and to notice all deaths. To an agent: it is.
    Settle {
        /// The asker's number for it.
        number: u32,
    },
    /// The answer to [`Frame::Settle`]: it is done.
    Settled {
        /// The number that was asked.
        number: u32,
    },
}

fn frame(kind: u32, value: u32) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[4..].copy_from_slice(&value.to_le_bytes());
    bytes
}

/// [`Frame::Hello`].
pub fn hello(rings: bool) -> [u8; BYTES] {
    frame(HELLO, rings.into())
}

/// [`Frame::Known`].
pub fn known(member: u32, id: Option<u16>) -> [u8; 2 * BYTES] {
    long_frame(KNOWN, member, id.map_or(NO_ID, u64::from))
}

/// [`Frame::Wake`].
pub fn wake(slot: u32) -> [u8; BYTES] {
    frame(WAKE, slot)
}

fn long_frame(kind: u32, value: u32, more: u64) -> [u8; 2 * BYTES] {
    let mut bytes = [0; 2 * BYTES];
    bytes[..BYTES].copy_from_slice(&frame(kind, value));
    bytes[BYTES..].copy_from_slice(&more.to_le_bytes());
    bytes
}

/// [`Frame::Ring`].
pub fn ring(peer: u32, place: u64) -> [u8; 2 * BYTES] {
    long_frame(RING, peer, place)
}

/// [`Frame::Peer`].
pub fn peer(peer: u32, region: u64) -> [u8; 2 * BYTES] {
    long_frame(PEER, peer, region)
}

/// [`Frame::Death`].
pub fn death(peer: u32) -> [u8; BYTES] {
    frame(DEATH, peer)
}

/// [`Frame::Call`].
pub fn call(number: u32) -> [u8; BYTES] {
    frame(CALL, number)
}

/// [`Frame::Settle`].
pub fn settle(number: u32) -> [u8; BYTES] {
    frame(SETTLE, number)
}

/// [`Frame::Settled`].
pub fn settled(number: u32) -> [u8; BYTES] {
    frame(SETTLED, number)
}

/// Takes all whole frames from the front of what was received.
///
/// # Errors
/// [`Error::BadFrame`] if the stream is not of these frames, or is out of step.
pub fn take(bytes: &mut Vec<u8>) -> Result<Vec<Frame>> {
    let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let (mut frames, mut at) = (Vec::new(), 0);
    while let Some(head) = bytes.get(at..at + BYTES) {
        let value = word(&head[4..]);
        frames.push(match word(&head[..4]) {
            HELLO => Frame::Hello { rings: value != 0 },
            WAKE => Frame::Wake { slot: value },
            CALL => Frame::Call { number: value },
            DEATH => Frame::Death { peer: value },
            SETTLE => Frame::Settle { number: value },
            SETTLED => Frame::Settled { number: value },
            kind @ (RING | PEER | KNOWN) => {
                let Some(rest) = bytes.get(at + BYTES..at + 2 * BYTES) else { break };
                at += BYTES;
                let more = u64::from(word(&rest[..4])) | (u64::from(word(&rest[4..])) << 32);
                match kind {
                    RING => Frame::Ring { peer: value, place: more },
                    PEER => Frame::Peer { peer: value, region: more },
                    _ => Frame::Known { member: value, id: u16::try_from(more).ok() },
                }
            }
            _ => return Err(Error::BadFrame { what: "it is not one of a wake-up" }),
        });
        at += BYTES;
    }
    bytes.drain(..at);
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_however_the_stream_is_cut() {
        let mut stream = Vec::new();
        let sent = [
            &hello(false)[..],
            &wake(0),
            &ring(3, u64::MAX - 1),
            &call(9),
            &peer(4, 5),
            &death(2),
            &settle(6),
            &settled(7),
            &known(3, Some(65_535)),
            &known(4, None),
            &hello(true),
            &wake(u32::MAX),
        ]
        .concat();
        let mut found = Vec::new();
        for piece in sent.chunks(5) {
            stream.extend_from_slice(piece);
            found.extend(take(&mut stream).unwrap());
        }
        let place = u64::MAX - 1;
        let expected = [
            Frame::Hello { rings: false },
            Frame::Wake { slot: 0 },
            Frame::Ring { peer: 3, place },
            Frame::Call { number: 9 },
            Frame::Peer { peer: 4, region: 5 },
            Frame::Death { peer: 2 },
            Frame::Settle { number: 6 },
            Frame::Settled { number: 7 },
            Frame::Known { member: 3, id: Some(65_535) },
            Frame::Known { member: 4, id: None },
            Frame::Hello { rings: true },
            Frame::Wake { slot: u32::MAX },
        ];
        assert_eq!(found, expected);
        assert!(stream.is_empty());
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        assert!(take(&mut b"garbage!".to_vec()).is_err());
        assert_eq!(take(&mut b"rin".to_vec()).unwrap(), []);
    }
}
