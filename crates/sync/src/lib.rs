//! Synchronisation between the processes of a region, in VMs and on the host.
//!
//! - [`barrier`]: all of a known number of participants wait for each other.
//! - [`mutex`]: one owner at a time; the next owner learns if the last one died. [`condvar`]: waiting for a change under it.
//! - [`rwlock`]: many readers or one writer; deaths of either are dealt with, too.
//! - [`semaphore`]: a count that is waited for. [`once`]: something is made once, by the first caller that lives to finish.
//! - [`minitransaction`]: reads, comparisons and writes of several places in segments, all or nothing.
//! - [`wait`]: how a thread waits.
//!
//! Everything here lives in a piece of a shared section that all members may write: a `Section`, zeroed when it was made,
//! which all processes get that open the same name. Nothing in it is believed without a check, and any of its users may be
//! killed at any instruction.
//!
//! Rules:
//! 1. A word that a death must not leave wrong for ever (an owner, a seat) names a process, so that others can check
//!    whether it lives. A process that has detached counts as dead: it must not use an object afterwards.
//! 2. No sleep lasts longer than [`isthmus_region::doorbell::Doorbell::longest`] (50 ms), in a VM
//!    250 ms, or 5 s with the guest driver, without a check of who lives. So a wake-up that dies with its sender
//!    is late, and never lost.
//! 3. Many threads may use a handle at once, unless it says otherwise; each process opens its own. No handle is of use in
//!    a forked child: it attaches and opens anew.
//!
//! # Ordering
//! What a thread did before it arrived at a barrier, gave a lock back, posted or notified is visible to the threads that
//! this lets go on.
#![forbid(unsafe_code)]

pub mod barrier;
pub mod condvar;
mod error;
pub mod minitransaction;
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
