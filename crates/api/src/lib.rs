//! Shared memory between the virtual machines of one host, for programs written for it.
//!
//! A program attaches to the service of its host or VM, and shares objects with other processes by name: *segments*, which are
//! bytes that all of them see; barriers, mutexes, condition variables, semaphores, reader-writer locks and minitransactions,
//! which synchronise them; and *channels*, which are byte streams between two contexts of a group.
//!
//! ```no_run
//! # fn main() -> isthmus::Result<()> {
//! let here = isthmus::Attachment::open()?;
//! let board = here.segment("board").or_create(4096)?;
//! board.set(0, 42_u64)?;
//! assert_eq!(board.get::<u64>(0)?, 42);
//!
//! let barrier = here.named("all here").barrier(isthmus::Parameters::new(4, isthmus::Waiting::Hybrid))?;
//! let mut seat = barrier.participate()?;
//! seat.wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! `examples/rust` has programs, one idea per file.
//!
//! Rules that hold for all of it:
//! - Everything is Send and Sync, and may be used from several threads, unless it says otherwise.
//! - A process that dies holds no other up: barriers break, and a lock goes to the next owner, which is told.
//! - No Rust reference ever points into shared memory: bytes are copied, words are atomic.
//! - A name belongs to a kind of object, and is the same for processes of the host and of all its VMs.
//! - A forked child must attach for itself.
#![forbid(unsafe_code)]

mod attachment;
mod error;
mod named;
mod segment;
mod space;

/// Channels between processes, as of sockets: [`Attachment::register`].
pub mod ivc {
    pub use isthmus_ivc::*;
    pub use isthmus_region::local::LocalBuf;
}

pub use attachment::{Attachment, Kind, Member, ObjectInfo, ProgramMemory};
pub use error::{Error, Result};
pub use isthmus_region::Error as RegionError;
pub use isthmus_region::objects::UNLINKED;
pub use isthmus_region::value::Value;
pub use isthmus_sync as sync;
pub use isthmus_sync::Waiting;
pub use isthmus_sync::barrier::{Algorithm, Parameters};
pub use named::{Barrier, Borrowed, Condvar, Held, Mutex, Named, Once, Participant, RwLock, Semaphore};
pub use segment::{Segment, SegmentOptions, Word};
pub use space::{Committer, Space};
