//! Minitransactions: reads, compares and writes of shared bytes, which happen all at once or not at all.
//!
//! A [`Minitransaction`] is a list of items over named [segments](Space::register), each addressed by node, segment, offset
//! and length. [`Committer::commit`] answers
//! - [`Outcome::Committed`]: all compares were equal, all writes are made, all reads are filled;
//! - [`Outcome::CompareFailed`]: a compare was not equal, nothing is written, all reads are filled;
//! - [`Outcome::LockFailed`]: others held locks for too long; nothing is written and nothing read.
//!
//! Reads and compares see the bytes as they were before; writes are made in the order of their items, so of two that overlap
//! the later one stays. Everything is strictly serialisable: there is one order of all minitransactions that agrees with
//! their outcomes, and one that began after another had returned comes after it.
//!
//! ```no_run
//! # fn f(member: std::sync::Arc<isthmus_region::member::Member>, machinery: isthmus_region::Section,
//! #      accounts: isthmus_region::Section) -> Result<(), isthmus_sync::minitransaction::Error> {
//! use isthmus_sync::minitransaction::{Minitransaction, Node, Outcome, SegmentId, Shape, Space};
//!
//! let space = Space::open(&member, &machinery, Shape::default())?;
//! let bank = SegmentId(1);
//! space.register(Node::LOCAL, bank, &accounts)?;
//! let mut committer = space.committer()?;
//! let mut t = Minitransaction::new();
//! t.compare(Node::LOCAL, bank, 0, &100_u64.to_le_bytes());
//! t.write(Node::LOCAL, bank, 0, &90_u64.to_le_bytes());
//! t.write(Node::LOCAL, bank, 4096, &10_u64.to_le_bytes());
//! let moved = committer.commit(&mut t)? == Outcome::Committed;
//! # Ok(()) }
//! ```
//!
//! # How
//! - **Locks.** One per 64 bytes of a segment, by a hash of (node, segment, offset / 64) into a table of [`Shape::locks`],
//!   each in a cache line of its own. Finer locks would not let more go on at once, since the data's own line is what
//!   processors contend for; and if locks lay side by side in one line, changes of neighbouring counters would contend for
//!   that one. A table of 2,048 takes 128 KiB; two addresses that share a lock by chance wait for each other and nothing
//!   worse. Locks are taken in the order of the table, so there is no deadlock, and waiting is bounded
//!   ([`Space::set_patience`]).
//! - **One word.** A minitransaction all of whose items lie in one aligned word of 8 bytes is one compare-and-swap of that
//!   word, or one load if it writes nothing; [`Committer::exchange`] and [`Committer::load`] are the same for words that are
//!   found once. It takes no lock; `isthmus_lockfree::commit` says how the two kinds meet.
//! - **Death.** A committer that holds locks has written into the space's machinery what it is about to do. One that finds a
//!   lock of a dead process completes that, or undoes it if the dead process had not decided yet, and goes on.
//! - **Contention.** A change that fails because another thread changed the word waits a random time that doubles with each
//!   failure and shrinks with each success. Threads that change the same words all the time take turns of some
//!   microseconds, so that few changes fail and the words' lines stay where they are used (`contention`).
//!
//! # Rules
//! 1. Bytes that minitransactions write are written by minitransactions alone, and so are the other bytes of the same aligned
//!    8: a shorter write is one of the whole word. Any process may read them at any time, word by word.
//! 2. Nothing in the machinery or in a log of a dead process is believed: what cannot be right is [`Error::Corrupt`].
//! 3. A segment's memory must outlive its users: memory of one process's area does not survive that process.
//! 4. All users of a machinery register the same bytes under the same name. A process cannot complete a log that names a
//!    segment which it has not registered and cannot find ([`Space::set_finder`]): it leaves the log to one that can.
//!
//! # Source
//! Ke, "Interprocess Communication Mechanisms with Inter-Virtual Machine Shared Memory" (2011), 3.1, after Aguilera et al.,
//! "Sinfonia" (2007).

mod committer;
mod contention;
mod error;
pub mod fault;
mod items;
mod machinery;
mod one;
mod recovery;
mod several;
mod space;

pub use committer::Committer;
pub use error::{Error, Result};
pub use items::{Minitransaction, Node, Outcome, Read, SegmentId};
pub use machinery::Shape;
pub use one::{Exchange, Place};
pub use space::{Found, PATIENCE, Space};
