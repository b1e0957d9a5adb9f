//! Synchronisation between the processes of a region, in VMs and on the host.
//!
//! - [`barrier`]: all of a known number of participants wait for each other.
//! - [`mutex`]: one at a time; the next owner learns that the last one died. [`condvar`]: waiting for a change under it.
//! - [`rwlock`]: many readers or one writer, with the same care for the dead.
//! - [`semaphore`]: a count that is waited for. [`once`]: something is made once, by whoever comes first and lives.
//! - [`minitransaction`]: reads, comparisons and writes of several places in segments, all or nothing.
//! - [`wait`]: how a thread passes its time until then.
//!
//! Everything here lives in a piece of a shared section that all members may write: a `Section`, zeroed when it was made,
//! which whoever hands out names has given to all who opened the same name. Nothing in it is believed without a check, and
//! any of its users may be killed at any instruction.
//!
//! Rules:
//! 1. What must not be wrong for ever (an owner, a seat) is the name of a process, so that others can ask whether it lives.
//!    A process that has detached is dead in this sense: what it does to an object afterwards is an error of its own.
//! 2. No sleep lasts longer than [`isthmus_region::gate::LONGEST`], in a VM
//!    [`isthmus_region::gate::LONGEST_BY_SERVICE`], without a look at who lives. So a wake-up that dies with its sender is
//!    late, and never lost.
//! 3. A handle may be used by many threads at once, unless it says otherwise, and each process opens its own. No handle
//!    is of use in a forked child: it attaches and opens anew.
//!
//! # Ordering
//! What a thread did before it arrived at a barrier, gave a lock back, posted or notified is visible to those whom that
//! lets go on.
#![forbid(unsafe_code)]

pub mod barrier;
pub mod condvar;
mod error;
pub mod mutex;
pub mod once;
mod raw;
pub mod rwlock;
pub mod semaphore;
pub mod wait;

pub use barrier::Barrier;
pub use condvar::Condvar;
pub use error::{Error, Result};
pub use mutex::Mutex;
pub use once::Once;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use wait::Waiting;
pub mod minitransaction;
