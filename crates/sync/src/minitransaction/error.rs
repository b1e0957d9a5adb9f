//! What a minitransaction can end with, beside its outcomes.

use super::items::{Node, SegmentId};

/// This module's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a minitransaction, or the space it belongs to, cannot be used. Nothing was written, unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The node is on no host that this process reaches.
    #[error(
        "memory node {node} is not reachable: none of its segments is registered here, and nodes of other hosts are not served yet"
    )]
    NotReachable {
        /// The node.
        node: Node,
    },
    /// The node is of this host, and has no segment of that name.
    #[error("memory node {node} has no segment {segment}: register it with the space first")]
    NoSegment {
        /// The node.
        node: Node,
        /// The segment.
        segment: SegmentId,
    },
    /// The name is in use for other bytes.
    #[error("segment {segment} of memory node {node} is registered already")]
    Registered {
        /// The node.
        node: Node,
        /// The segment.
        segment: SegmentId,
    },
    /// An item reaches beyond its segment.
    #[error(
        "{len} bytes at {offset} do not fit into the {limit} bytes of segment {segment}, or are to be an aligned word and are not"
    )]
    OutOfBounds {
        /// The segment.
        segment: SegmentId,
        /// The item's offset in bytes.
        offset: u64,
        /// Its length in bytes.
        len: u64,
        /// Bytes of the segment.
        limit: u64,
    },
    /// Segments are made of whole aligned words.
    #[error("a segment must begin at a multiple of 8 bytes and have whole words: {len} bytes do not")]
    BadSegment {
        /// Bytes of the section offered.
        len: u64,
    },
    /// The transaction does not fit into a log.
    #[error(
        "the minitransaction takes {needed} bytes of log and there are {limit}: 8 for each of its {locks} locks, and 24 and its bytes in whole words of 8 for each write; use several, or a shape with more log_bytes"
    )]
    TooLarge {
        /// Bytes of log that it takes.
        needed: u64,
        /// Bytes of log that there are.
        limit: u64,
        /// Different locks that it takes.
        locks: usize,
    },
    /// As many threads commit already as the machinery has slots.
    #[error("all {slots} slots of this minitransaction space are taken: one is needed per committing thread")]
    NoSlot {
        /// Slots of the machinery.
        slots: u32,
    },
    /// The shape is not possible.
    #[error(
        "a machinery of {slots} slots, {locks} locks and {log_bytes} bytes of log: slots go up to 512, locks are a power of two up to 2^20, the log a multiple of 64 bytes up to 2^20"
    )]
    BadShape {
        /// Slots asked for.
        slots: u32,
        /// Locks asked for.
        locks: u32,
        /// Bytes of log asked for.
        log_bytes: u32,
    },
    /// The section is smaller than the machinery.
    #[error("the machinery takes {needed} bytes and its section has {found}")]
    TooSmall {
        /// Bytes that the shape takes.
        needed: u64,
        /// Bytes of the section.
        found: u64,
    },
    /// Others opened the same machinery with another shape.
    #[error(
        "the machinery was opened with another shape (its mark is {found:#018x}, here {expected:#018x}): all users must ask for the same"
    )]
    OtherShape {
        /// Mark found.
        found: u64,
        /// Mark of the shape asked for.
        expected: u64,
    },
    /// The machinery holds what none of its users writes. All that find the same place get this error; the space must be
    /// made anew.
    #[error("the minitransaction machinery is damaged: {what} is {value:#x}")]
    Corrupt {
        /// The word.
        what: &'static str,
        /// What stands there.
        value: u64,
    },
    /// The region cannot be used.
    #[error("the region cannot be used for minitransactions")]
    Region(#[from] isthmus_region::Error),
}
