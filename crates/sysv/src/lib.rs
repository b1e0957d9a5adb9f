//! System V IPC between the processes of a region, in VMs and on the host: svipc(7), with the semantics of its man pages.
//!
//! - [`ipc`]: ids, keys, modes and removal, which all three kinds have in common.
//! - [`shm`]: shared memory. This crate says where a segment is and who has it attached; mapping it is the face's.
//! - [`msg`]: message queues.
//! - [`sem`]: sets of semaphores.
//! - [`waiting`]: how a call waits that signals may interrupt.
//!
//! An object is an entry of the region's table and a piece of the shared section. Creation, change and removal go through the local
//! service, which alone writes the table; data never does. Finding an object takes a look at the table. Nothing that stands in the
//! shared section is believed.
//!
//! This half knows nothing of QEMU, of signals, or of the calling conventions of libc: the face (`crates/preload`) does.
//!
//! # Source
//! Vshmem (003), "III. VSHMEM DESIGN" and "IV. IMPLEMENTATION"; the man pages of section 2.
#![forbid(unsafe_code)]

pub mod caller;
mod fault;
pub mod ipc;
pub mod msg;
pub mod sem;
pub mod shm;
pub mod waiting;

pub use caller::Caller;
pub use ipc::{Ipc, Used};
pub use rustix::io::Errno;

/// A result whose error is that of the system call.
pub type Result<T> = std::result::Result<T, Errno>;
