//! Shared memory between the virtual machines of one host, for programs written for it.
//!
//! A program attaches to the service of its host or VM, and meets others by name: in *segments*, which are bytes that all of
//! them see.
//!
//! ```no_run
//! # fn main() -> isthmus::Result<()> {
//! let here = isthmus::Attachment::open()?;
//! let board = here.segment("board").or_create(4096)?;
//! board.set(0, 42_u64)?;
//! assert_eq!(board.get::<u64>(0)?, 42);
//! # Ok(())
//! # }
//! ```
//!
//! Rules that hold for all of it:
//! - Everything is Send and Sync, and may be used from several threads, unless it says otherwise.
//! - No Rust reference ever points into shared memory: bytes are copied, words are atomic.
//! - A name belongs to a kind of object, and is the same for processes of the host and of all its VMs.
//! - A forked child must attach for itself.
#![forbid(unsafe_code)]

mod attachment;
mod error;
mod segment;

pub use attachment::{Attachment, Member, ObjectInfo};
pub use error::{Error, Result};
pub use isthmus_region::objects::UNLINKED;
pub use isthmus_region::value::Value;
pub use segment::{Segment, SegmentOptions, Word};
