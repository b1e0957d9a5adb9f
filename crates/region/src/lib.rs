//! The region: shared memory of one trust domain, its format, and the only code that knows where it comes from.
//!
//! - [`format`](mod@format): every field with its offset, size and writer; `docs/region-format.md` is the same table in prose.
//! - [`mapping`]: a mapped region and checked views of it. An offset read from a region is a claim; it becomes a
//!   view only here.
//! - [`source`]: where a region comes from: host memory, or the BAR of an ivshmem device; [`isolated`]: or of several; `files`: the
//!   files that its sections lie in, each mapped when it is first used.
//! - [`create`]: making a region's memory and writing its header, as the host service does; [`huge`]: in huge pages.
//! - [`membership`]: the peers of a region and their sections, as every member reads them.
//! - [`directory`]: one peer's section: endpoints, areas, activity words; as its local service writes it and as
//!   all members read it.
//! - [`chain`]: tables of a process that grow, as it writes them and as others read them.
//! - [`extent`]: the service's allocator of a section's heap; [`area`]: a process's allocator of what it was granted.
//! - [`pool`]: a process's allocator of what its program uses itself; [`registrations`]: which of that others may reach
//!   without messages; [`holds`]: which are at it.
//! - [`roster`]: which peers and endpoints live, and which have announced something, as one endpoint sees it.
//! - [`member`]: what a process holds once it has attached.
//! - [`reader`]: a region that is only looked at, live or as a file.
//! - [`local`]: memory that a caller lends us for the length of an operation.
//! - [`objects`]: the table of named objects, which are pieces of the shared section.
//! - [`place`]: where something lies in a region; [`party`]: a process, as words of shared memory name it; [`gate`]: waiting at a word that many may change.
//! - [`value`]: plain values, copied in and out whole; [`text`]: names and sentences of a bounded length.
//! - [`waiting`]: how threads poll, yield and nap before they sleep; [`doorbell`]: how they sleep until they are rung, and are
//!   rung; [`wake`]: by futex.
//! - [`counters`]: what went through the region, per process and per peer.
//! - [`attach`]: memory of another process, copied by the kernel; [`unread`]: what a socket's other end has not read.
//! - [`kept`]: descriptors in somebody else's process; [`image`]: which program that executes.
//! - [`control_group`]: how much memory this process may have; [`tsc`]: how fast its processor's counter counts.

pub mod address;
pub mod area;
pub mod attach;
pub mod chain;
pub mod control_group;
pub mod counters;
pub mod create;
pub mod dax;
pub mod directory;
pub mod doorbell;
pub mod driver;
pub mod error;
pub mod extent;
mod files;
pub mod format;
pub mod gate;
pub mod grants;
pub mod holds;
pub mod huge;
pub mod image;
pub mod isolated;
pub mod kept;
pub mod local;
pub mod mapping;
pub mod member;
pub mod membership;
mod near;
pub mod objects;
pub mod party;
pub mod place;
pub mod pool;
pub mod print;
pub mod reader;
pub mod registrations;
pub mod room;
pub mod roster;
pub mod signals;
pub mod source;
#[cfg(test)]
mod testing;
pub mod text;
pub mod tsc;
pub mod unread;
pub mod value;
pub mod waiting;
pub mod wake;

pub use error::{Error, Result};
pub use isthmus_lockfree::gate as gate_bits;
/// Flags and counts of one process.
pub use isthmus_lockfree::local as shared_by_threads;
pub use isthmus_lockfree::{LINE_BYTES, at_work, life, sync};
pub use mapping::{
    Bytes, CopyForChild, Listed, Mapping, PeerSection, ProgramMemory, ReadOnly, ReadWrite, Section, SlotRing,
};
