//! The frames of the attach protocol, version 4. `docs/attach-protocol.md` describes the conversation.
//!
//! A frame is one packet of a `SOCK_SEQPACKET` socket. All numbers are little-endian. Every frame starts with the same
//! sixteen bytes: kind (4), length of the whole frame (4), sequence number (8). A reply carries the number of its
//! request, so that a reply which comes after its request was given up is not taken for the next one's.
//!
//! This file says what is in the frames; `encoding` has their bytes.

mod encoding;

pub use self::encoding::sequence_of;
use isthmus_region::directory::AreaGrant;
use isthmus_region::extent::Extent;
use isthmus_region::objects::sysv::{Change, Sharing};
use isthmus_region::objects::{Access, Kind, NewObject, ObjectGrant};

/// Version of the protocol. `Hello` begins in all versions as it does here, and `Refused` keeps its layout.
pub const VERSION: u32 = 4;
/// Longest frame.
pub const MAX_FRAME: usize = 1024;
/// Bytes of a name: UTF-8, padded with zeros.
pub const NAME_BYTES: usize = 64;
/// Bytes of a refusal's text, at most.
pub const MAX_TEXT: usize = 768;

/// What a process asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The first frame, with a pidfd of the process.
    Hello {
        /// Version that the process speaks.
        version: u32,
        /// Its process id as it sees it.
        pid: u32,
        /// The program's name, for people.
        name: String,
        /// The same for all attachments of a process between two of its execs, and another after an exec; 0 if it is not known.
        image: u64,
    },
    /// A further extent.
    Grow {
        /// Least bytes of it.
        bytes: u64,
    },
    /// A further endpoint.
    OpenEndpoint {
        /// Offset of its block in the section.
        block: u64,
    },
    /// Ends an endpoint.
    CloseEndpoint {
        /// Its slot in the peer's endpoint table.
        slot: u32,
    },
    /// Ends the attachment. There is no reply.
    Detach,
    /// In place of `Hello`: a descriptor of a file of the region for reading, without a place in it. The service closes the
    /// connection after its reply.
    Observe {
        /// Version that the process speaks.
        version: u32,
        /// The file's number; 0 is the first.
        file: u32,
    },
    /// Wakes an endpoint that sleeps, because a message was announced to it. There is no reply.
    Wake {
        /// Its slot in the region.
        slot: u32,
    },
    /// A bell that is rung when an own endpoint is to be woken.
    Bell {
        /// Its slot in the peer's endpoint table.
        slot: u32,
    },
    /// Makes a named object.
    Create(NewObject),
    /// Opens a named object.
    Open {
        /// What it must be.
        kind: Kind,
        /// Its name.
        name: String,
        /// What for.
        access: Access,
    },
    /// Closes an object that was opened.
    Close {
        /// Its index in the table.
        index: u32,
        /// Its incarnation.
        incarnation: u64,
    },
    /// Makes an object smaller.
    Shrink {
        /// Its index in the table.
        index: u32,
        /// Its incarnation.
        incarnation: u64,
        /// Bytes that it keeps.
        len: u64,
    },
    /// Takes a name away.
    Unlink {
        /// What it names.
        kind: Kind,
        /// The name.
        name: String,
    },
    /// Opens an object by its place.
    Hold {
        /// Its index in the table.
        index: u32,
        /// Its incarnation.
        incarnation: u64,
    },
    /// Closes an object once. There is no reply.
    Release {
        /// Its index in the table.
        index: u32,
        /// Its incarnation.
        incarnation: u64,
    },
    /// Opens an object for a process that has said so in the object. There is no reply.
    Enter {
        /// Its index in the table.
        index: u32,
        /// Its incarnation.
        incarnation: u64,
    },
    /// Takes the name of an object away that bears its removal itself. There is no reply.
    Removed {
        /// Its index in the table.
        index: u32,
        /// Its incarnation.
        incarnation: u64,
    },
    /// Changes an object of System V IPC.
    Change {
        /// Its index in the table.
        index: u32,
        /// Its incarnation.
        incarnation: u64,
        /// What of it.
        change: Change,
    },
    /// Takes the name of an object of System V IPC away.
    Remove {
        /// Its index in the table.
        index: u32,
        /// Its incarnation.
        incarnation: u64,
    },
    /// Limits an object of System V IPC to some systems, or takes that back.
    Share {
        /// Its index in the table.
        index: u32,
        /// Its incarnation.
        incarnation: u64,
        /// To which.
        sharing: Sharing,
    },
    /// Answered once all deaths are noticed that have happened in this system.
    Settle,
    /// Takes back what the process had before it executed its program: it has taken over what was to stay.
    Forget,
    /// A bell that is rung when a place is.
    Watch {
        /// Offset in the region.
        place: u64,
    },
    /// Wakes the waiters at a place. There is no reply.
    Ring {
        /// The peers in which they wait, as bits.
        peers: u64,
        /// Offset in the region.
        place: u64,
    },
    /// A descriptor of a file of the region other than the first.
    File {
        /// Its number.
        index: u32,
    },
    /// A pidfd of the process that has an endpoint of the same peer.
    Process {
        /// The endpoint's slot in the peer's endpoint table.
        slot: u32,
        /// The endpoint's incarnation.
        incarnation: u64,
    },
}

/// What the service answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// To `Hello`, with the descriptor of the region's first file.
    Welcome(Welcome),
    /// To `Grow`.
    Extent(Extent),
    /// To `OpenEndpoint`: slot and incarnation.
    Endpoint {
        /// Its slot in the peer's endpoint table.
        slot: u32,
        /// Its incarnation.
        incarnation: u64,
    },
    /// To `CloseEndpoint`, `Close`, `Unlink`, `Change`, `Remove`, `Share`, `Settle` and `Forget`.
    Done,
    /// To `Observe`, with a descriptor of the file that is open for reading only.
    Observed(Observed),
    /// To `Create`, `Open` and `Hold`.
    Object(ObjectGrant),
    /// To `Shrink`: bytes that the object has now.
    Len(u64),
    /// To `Bell` and `Watch`, with the descriptor: the read end of a pipe.
    Bell,
    /// To `File`, with the descriptor, which is open for writing only where the process may write.
    File,
    /// To `Process`, with the pidfd.
    Process,
    /// To anything.
    Refused {
        /// The reason as a code.
        code: Code,
        /// The reason in words.
        text: String,
    },
}

/// What an attached process is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// Version that the service speaks.
    pub version: u32,
    /// Index of the own peer.
    pub peer: u32,
    /// The peer's incarnation.
    pub incarnation: u64,
    /// Bytes of the region.
    pub region_bytes: u64,
    /// The region's identity.
    pub uuid: [u64; 2],
    /// The process's place.
    pub grant: AreaGrant,
    /// Name of the peer, a host name.
    pub host_name: String,
    /// Attachments of this process before it executed its program, of which the memory is kept until `Forget`.
    pub former: u32,
}

/// What an observer is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// Version that the service speaks.
    pub version: u32,
    /// Index of the peer that the service serves.
    pub peer: u32,
    /// Bytes of the region.
    pub region_bytes: u64,
    /// The region's identity.
    pub uuid: [u64; 2],
    /// Name of the peer, a host name.
    pub host_name: String,
}

/// Why the service refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    /// Another version of the protocol.
    Version = 1,
    /// This user or process may not attach.
    NotAllowed = 2,
    /// No memory, or no slot, is left.
    Full = 3,
    /// A value is wrong.
    Invalid = 4,
    /// The frame is not of this protocol, or not allowed at this point; the connection is closed after this reply.
    BadFrame = 5,
    /// The service itself failed.
    Failed = 6,
    /// There is no such object.
    NotFound = 7,
    /// There is such an object already.
    Exists = 8,
    /// The object's mode or owner does not let this user do that.
    Denied = 9,
}
