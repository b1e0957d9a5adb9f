//! What can go wrong with a region.

/// This crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// An error with its causes, on one line: no error of ours repeats its cause's text.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        text = format!("{text}: {e}");
        cause = e.source();
    }
    text
}

/// A region that cannot be made, mapped or believed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Memory could not be created or mapped.
    #[error("cannot {action} a region of {bytes} bytes")]
    Memory {
        /// What was attempted: create, size, fill, seal, map.
        action: &'static str,
        /// Size of the region.
        bytes: u64,
        /// The system's answer.
        #[source]
        source: rustix::io::Errno,
    },
    /// The system gives no random bytes.
    #[error("cannot read random bytes from /dev/urandom")]
    Random(#[source] std::io::Error),
    /// An address of a system that is not in the region.
    #[error("no host or VM of this region is {system}")]
    NoSystem {
        /// The system.
        system: crate::address::SystemId,
    },
    /// A file of the region that cannot be had here.
    #[error("cannot map the region's file {file}: {reason}")]
    NoFile {
        /// Its index.
        file: u32,
        /// Why not.
        reason: &'static str,
    },
    /// Memory that others write, and that this process has mapped for reading.
    #[error("this memory belongs to another peer, and can only be read here")]
    ReadOnly,
    /// The machine or control group has not as much memory.
    #[error(
        "a region of {bytes} bytes does not fit: {reason}; ask for a smaller one (--region-size, --grant), or raise the limit"
    )]
    DoesNotFit {
        /// Size of the region.
        bytes: u64,
        /// Which limit, as far as it is known.
        reason: String,
    },
    /// Huge pages of a size that this machine does not have.
    #[error(
        "this machine has no huge pages of {page}, {known}: name another size with --huge-pages, or none"
    )]
    NoSuchHugePages {
        /// The size asked for.
        page: String,
        /// Which there are.
        known: String,
    },
    /// A size that is no whole number of huge pages.
    #[error(
        "a region of {bytes} bytes is no whole number of huge pages of {page}: ask for a larger one with --region-size, or for smaller pages"
    )]
    NotHugePages {
        /// Size of the region.
        bytes: u64,
        /// Size of a page.
        page: String,
    },
    /// Not enough huge pages are free.
    #[error(
        "a region of {bytes} bytes takes {needed} huge pages of {page}, and {free} are free (the machine has {total}): as root, `echo {raise} > {setting}` (soon after boot, as memory gets fragmented), ask for a smaller region with --region-size, or do without --huge-pages"
    )]
    NoHugePages {
        /// Size of the region.
        bytes: u64,
        /// Size of a page.
        page: String,
        /// Pages that the region takes.
        needed: u64,
        /// Pages that can be had.
        free: u64,
        /// Pages that the pool has.
        total: u64,
        /// How many the pool should have.
        raise: u64,
        /// The file that says how many it has.
        setting: String,
    },
    /// A size that no region can have.
    #[error("{bytes} is not a region size: it must be a power of two of at least {least} bytes")]
    BadSize {
        /// The size asked for.
        bytes: u64,
        /// The smallest size.
        least: u64,
    },
    /// The file or BAR is smaller than what the service announced.
    #[error("the region has {found} bytes where {expected} were announced")]
    WrongSize {
        /// Bytes found.
        found: u64,
        /// Bytes announced.
        expected: u64,
    },
    /// It is not a region, or one of another format.
    #[error(
        "not a region of format version {expected}: found magic {magic:#018x}, version {version}; use the same isthmus version on host and guests"
    )]
    Version {
        /// Magic number found.
        magic: u64,
        /// Version found.
        version: u32,
        /// Version understood here.
        expected: u32,
    },
    /// It is of this version, but made by a build whose fields lie elsewhere.
    #[error(
        "the region was made by another build of isthmus, whose fields lie elsewhere (layout {found:#018x}, here {expected:#018x}); use the same build for service, agents and provider"
    )]
    Layout {
        /// Hash of the fields found.
        found: u64,
        /// Hash of the fields here.
        expected: u64,
    },
    /// A value in the region points outside of where it may point.
    #[error("{what}: offset {offset} with {len} bytes does not fit into {limit} bytes, or is misaligned")]
    OutOfBounds {
        /// The field or structure.
        what: &'static str,
        /// Claimed offset.
        offset: u64,
        /// Claimed length.
        len: u64,
        /// Bytes there are.
        limit: u64,
    },
    /// A value in the region cannot be right.
    #[error("{what}: {value} is not a valid value")]
    Invalid {
        /// The field or structure.
        what: &'static str,
        /// Value found.
        value: u64,
    },
    /// What should be looked at is a folder, a pipe, a device.
    #[error("it is neither memory nor a plain file")]
    NotAFile,
    /// The peer does not exist or is gone.
    #[error("peer {peer} is not an active member of the region")]
    NoPeer {
        /// Index of the peer.
        peer: u32,
    },
    /// The local service refused or could not be asked.
    #[error("the local service cannot {action}: {reason}")]
    Service {
        /// What was asked.
        action: &'static str,
        /// Its answer.
        reason: String,
    },
    /// No memory left in the section.
    #[error("no {bytes} bytes left in the region's section; a larger --region-size helps")]
    Full {
        /// Bytes asked for.
        bytes: u64,
    },
    /// A named object cannot be had.
    #[error("{text}")]
    Object {
        /// What is in the way.
        problem: ObjectProblem,
        /// The same in words, with the name.
        text: String,
    },
}

impl Error {
    /// Whether memory could not be looked at just now, which says nothing of what is in it: there was no room for a mapping or no
    /// descriptor, or the service did not answer.
    pub fn says_nothing(&self) -> bool {
        matches!(self, Self::Memory { .. } | Self::Service { .. } | Self::NoFile { .. })
    }
}

/// Why a named object cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectProblem {
    /// There is none with that name and kind.
    NotFound,
    /// There is one already.
    Exists,
    /// Its mode, or its owner, does not let this user do that.
    Denied,
    /// No memory, no place in the table, or more than the user may have.
    Full,
    /// A value is wrong.
    Invalid,
}
