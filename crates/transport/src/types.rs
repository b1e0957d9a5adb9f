//! What is posted to an endpoint, and what completes.

use std::sync::Arc;

use isthmus_region::Section;
use isthmus_region::local::LocalBuf;
use isthmus_region::member::Member;

/// A remote endpoint, as one of our endpoints numbers it: 0, 1, 2, … in the order of first use. One address
/// has one number for the life of the endpoint; an endpoint that is opened anew has another address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// What the caller gets back with a completion; opaque here. [`crate::Endpoint::cancel`] and claims find
/// operations by `context`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ticket {
    /// Usually a pointer of the caller's.
    pub context: u64,
    /// The caller's own flags.
    pub flags: u64,
}

/// A message to be sent.
#[derive(Debug, Clone, Copy)]
pub struct Send<'a> {
    /// The receiver.
    pub to: PeerId,
    /// Tagged and untagged messages never meet each other's receives.
    pub tagged: bool,
    /// The tag; 0 for untagged messages.
    pub tag: u64,
    /// Data for the receiver's completion.
    pub data: Option<u64>,
    /// The payload, in order. Must stay valid until completion, unless `inject`.
    pub bufs: &'a [LocalBuf],
    /// The payload may be reused on return; at most [`crate::Endpoint::inject_bytes`] bytes. Completes later only if it
    /// is `delivered`, too.
    pub inject: bool,
    /// Completes only when the receiver has matched or kept the message; else when `bufs` may be reused.
    pub delivered: bool,
    /// Comes back in the completion.
    pub ticket: Ticket,
}

/// Whether a posted operation is over already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted {
    /// It has completed, and well; no [`Completion`] will come.
    Done,
    /// A [`Completion`] with the ticket will come.
    Pending,
}

/// Which messages a receive, peek or claim takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selector {
    /// Tagged or untagged messages.
    pub tagged: bool,
    /// Only from this sender, if given.
    pub from: Option<PeerId>,
    /// The tag; 0 for untagged messages.
    pub tag: u64,
    /// Tag bits that are not compared.
    pub ignore: u64,
}

/// A receive to be posted.
#[derive(Debug, Clone, Copy)]
pub struct Receive<'a> {
    /// Which messages it takes.
    pub select: Selector,
    /// Where the payload goes. Must stay valid until completion.
    pub bufs: &'a [LocalBuf],
    /// A multi-receive: takes one message after the other into its one buffer, until fewer than this many
    /// bytes are left, and is then released. Each message gets a completion of its own.
    pub multi: Option<u64>,
    /// Comes back in the completion.
    pub ticket: Ticket,
}

/// A one-sided operation on memory that the target registered.
#[derive(Debug, Clone, Copy)]
pub struct Rma<'a> {
    /// The target.
    pub to: PeerId,
    /// Key of the registration.
    pub key: u64,
    /// Where in it; the registration defines the meaning (see [`Memory`]).
    pub addr: u64,
    /// The local side, in order.
    pub bufs: &'a [LocalBuf],
    /// Data for a completion at the target (writes only).
    pub data: Option<u64>,
    /// Writes of at most [`crate::Endpoint::inject_bytes`] only: `bufs` may be reused on return. A completion comes all
    /// the same, when the data is visible at the target (counters count it).
    pub inject: bool,
    /// Comes back in the completion.
    pub ticket: Ticket,
}

/// Which results an atomic operation returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicKind {
    /// None.
    Plain,
    /// The value before.
    Fetch,
    /// The value before, of an operation that compares, such as compare-and-swap.
    Compare,
}

/// An atomic operation on memory that the target registered.
#[derive(Debug, Clone, Copy)]
pub struct Atomic<'a> {
    /// The target.
    pub to: PeerId,
    /// Key of the registration.
    pub key: u64,
    /// Where in it.
    pub addr: u64,
    /// Kind of the operation.
    pub kind: AtomicKind,
    /// Datatype and operation, understood by the target's [`Memory`] alone.
    pub datatype: u8,
    /// The operation.
    pub op: u8,
    /// Elements.
    pub count: u32,
    /// Bytes of one element.
    pub size: u32,
    /// Operands; may be empty (an atomic read).
    pub operand: &'a [LocalBuf],
    /// Values to compare with; [`AtomicKind::Compare`] only.
    pub compare: &'a [LocalBuf],
    /// Where the values before go; not for [`AtomicKind::Plain`].
    pub result: &'a [LocalBuf],
    /// As in [`Rma::inject`].
    pub inject: bool,
    /// Comes back in the completion.
    pub ticket: Ticket,
}

/// What a completion is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A send.
    Send {
        /// Whether it was tagged.
        tagged: bool,
    },
    /// A receive, or one message of a multi-receive.
    Receive {
        /// Whether it was tagged.
        tagged: bool,
    },
    /// A peek, with or without claim.
    Peek {
        /// Whether it was tagged.
        tagged: bool,
    },
    /// A read from remote memory.
    Read,
    /// A write to remote memory.
    Write,
    /// An atomic operation.
    Atomic(AtomicKind),
    /// A remote write with data to our memory; the ticket is empty.
    RemoteWrite,
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Success.
    Ok,
    /// The message was longer than the receive; `cut` bytes are lost, the rest is in place.
    Truncated {
        /// Bytes cut off.
        cut: u64,
    },
    /// Cancelled before anything matched.
    Canceled,
    /// A peek that found nothing.
    NoMessage,
    /// The remote endpoint is gone, or faulty.
    PeerGone,
    /// The target knows no such key.
    NoKey,
    /// The target's registration does not allow this access or range.
    NoAccess,
    /// The target does not have this operation.
    Unsupported,
}

/// An operation's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// What was given when it was posted.
    pub ticket: Ticket,
    /// What it was.
    pub op: Op,
    /// How it ended.
    pub status: Status,
    /// Bytes placed (receives), or of the message (peeks).
    pub len: u64,
    /// The message's tag, in full.
    pub tag: u64,
    /// The message's data.
    pub data: Option<u64>,
    /// The sender (receives, peeks, remote writes); for an operation that failed at a remote endpoint or with
    /// it, that endpoint.
    pub source: Option<PeerId>,
    /// Address of the payload (receives).
    pub buf: u64,
    /// A multi-receive is released with this: its buffer is the caller's again. `len` is 0 and `status` is
    /// [`Status::Ok`] when the release came without a message.
    pub released: bool,
}

/// The way of long messages between processes of one system that may both copy through the region and attach to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Long {
    /// What is faster, by measurement.
    #[default]
    Auto,
    /// Always through the region, in two copies. Nothing is offered to others either.
    Copy,
    /// Always in one copy from where the sender has it, if the system allows that.
    Attach,
}

/// Which chunks are granted, and which make room for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Replacement {
    /// One is granted when it comes back. The one that was not used for longest makes room, if that is longer than the other one was away.
    #[default]
    Idle,
    /// Each is granted when it is sent first, and the one that was not used for longest makes room (LRU). For benchmarks, beside the first.
    Age,
}

/// Why a post was refused. Nothing of the operation was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// No room: make progress and retry.
    #[error("no room now; make progress and try again")]
    Again,
    /// The remote endpoint is gone.
    #[error("the remote endpoint is gone")]
    PeerGone,
    /// No remote endpoint has this number.
    #[error("no such peer")]
    NoPeer,
    /// Longer than the operation can be.
    #[error("the message is too long for this operation")]
    TooLong,
    /// The operation makes no sense (a claim of nothing, more results than operands, …).
    #[error("the operation is not valid")]
    Invalid,
}

/// What an initiator does with our memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read it.
    Read,
    /// Write it.
    Write,
    /// Change it atomically (read and write).
    Atomic,
}

/// Memory that the endpoint's owner registered for others. Implemented by the owner. Called from
/// [`crate::Endpoint::progress`]; [`Memory::is_atomic_here`], [`Memory::atomic_there`] and
/// [`Memory::offset_of`] from posts.
pub trait Memory: std::marker::Send + Sync {
    /// Offset, in our section, of the table of memory that others may reach without messages, if there is
    /// one. Called once.
    fn published(&self) -> Option<u64> {
        None
    }

    /// Whether atomic operations on aligned elements of this many bytes are processor instructions here, so
    /// that several processes may do them on the same memory.
    fn is_atomic_here(&self, element_bytes: u64) -> bool {
        let _ = element_bytes;
        false
    }

    /// As [`Memory::atomic`], on another process's memory in the region; only where [`Memory::is_atomic_here`] says so.
    ///
    /// # Errors
    /// As [`Memory::atomic`].
    fn atomic_there(
        &self,
        section: &Section,
        offset: u64,
        len: u64,
        what: &RemoteAtomic<'_>,
        before: &mut Vec<u8>,
    ) -> std::result::Result<(), Status> {
        let _ = (section, offset, len, what, before);
        Err(Status::Unsupported)
    }

    /// The `len` bytes at `addr` of registration `key`, if `access` is allowed there.
    ///
    /// # Errors
    /// [`Status::NoKey`] or [`Status::NoAccess`], which the initiator gets.
    fn find(&self, key: u64, addr: u64, len: u64, access: Access) -> std::result::Result<LocalBuf, Status>;

    /// Where in the section of `member` these bytes lie, if they are all in memory of the region that the program uses itself. Called
    /// for messages that are announced.
    fn offset_of(&self, member: &Arc<Member>, bytes: LocalBuf) -> Option<u64> {
        let _ = (member, bytes);
        None
    }

    /// An initiator on another system has reached memory that [`Memory::find`] found, by a message: the owner may publish it where it lies,
    /// so that the next operations need none.
    fn reached(&self, key: u64, found: LocalBuf) {
        let _ = (key, found);
    }

    /// Does an atomic operation on `target`, element by element, atomically with respect to all other calls of this
    /// function in the process. `before` gets the values before, if there is something to fetch.
    ///
    /// # Errors
    /// [`Status::Unsupported`] for an unknown datatype or operation, or for operands of a wrong length.
    fn atomic(
        &self,
        target: LocalBuf,
        what: &RemoteAtomic<'_>,
        before: &mut Vec<u8>,
    ) -> std::result::Result<(), Status>;
}

/// An atomic operation as it arrives at the target. Lengths are not checked against each other yet.
#[derive(Debug, Clone, Copy)]
pub struct RemoteAtomic<'a> {
    /// Kind.
    pub kind: AtomicKind,
    /// Datatype.
    pub datatype: u8,
    /// Operation.
    pub op: u8,
    /// Elements.
    pub count: u32,
    /// Operands.
    pub operand: &'a [u8],
    /// Values to compare with.
    pub compare: &'a [u8],
}

/// No memory at all is registered.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoMemory;

impl Memory for NoMemory {
    fn find(&self, _: u64, _: u64, _: u64, _: Access) -> std::result::Result<LocalBuf, Status> {
        Err(Status::NoKey)
    }

    fn atomic(&self, _: LocalBuf, _: &RemoteAtomic<'_>, _: &mut Vec<u8>) -> std::result::Result<(), Status> {
        Err(Status::Unsupported)
    }
}

/// This crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an endpoint cannot be opened, or an address cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The region or the local service refused.
    #[error("cannot {action}")]
    Region {
        /// What was attempted.
        action: &'static str,
        /// Why not.
        #[source]
        source: isthmus_region::Error,
    },
    /// These 64 bytes are no address.
    #[error("not an isthmus address")]
    NotAnAddress,
    /// The address is in no system that the region has, or had last at some place.
    #[error("the address is that of a host or VM which this process's region does not have")]
    NoSystem,
}
