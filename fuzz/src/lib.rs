// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is read from memory that others write, or from sockets that others hold, as fuzz targets.
//!
//! Each target is a function of bytes that panics where a promise is broken. Nothing in it depends on anything but the
//! bytes, so that an input which fails can be kept and run again.
//!
//! - [`region`]: header, membership, directories, areas, counters, several files, and who looks at them from outside.
//! - [`endpoint`]: an endpoint whose peer writes anything into its own section, and anything in its turn.
//! - [`fn@sync`], [`minitransaction`]: barriers, locks and their like, and the machinery of minitransactions, whose memory anybody
//!   may have written.
//! - [`fn@channel`]: a context of IVC whose peer writes anything into its own section.
//! - [`fn@objects`]: who makes and opens named objects, a VM that asks anything, and a table that anybody may have written.
//! - [`sysv_msg`], [`sysv_sem`], [`sysv_shm`]: a message queue, a set of semaphores, and the page before a segment, whose memory
//!   anybody may have written.
//! - [`attach`], [`attach_server`]: frames of the attach protocol, and the server that hears them.
//! - [`ivshmem`]: clients of the ivshmem server, and what a VM writes into its section.
//! - [`wire`], [`mux`]: frames between the launcher's side and the agents in VMs, and streams of them.
//! - [`relay`]: the launcher's switch, between a VM and an agent that say anything.
#![forbid(unsafe_code)]

mod channel;
mod files;
mod input;
mod memory;
mod objects;
mod queues;
mod segments;
mod sets;
mod sockets;
mod sync;
mod talk;
mod transactions;
mod world;

pub use channel::channel;
pub use memory::region;
pub use objects::objects;
pub use queues::sysv_msg;
pub use segments::sysv_shm;
pub use sets::sysv_sem;
pub use sockets::{attach, attach_server, ivshmem};
pub use sync::sync;
pub use talk::{mux, relay, wire};
pub use transactions::minitransaction;
pub use world::endpoint;

/// A target: its name, which is that of its program and of its corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("region", region),
    ("endpoint", endpoint),
    ("sync", sync),
    ("minitransaction", minitransaction),
    ("channel", channel),
    ("objects", objects),
    ("sysv_msg", sysv_msg),
    ("sysv_sem", sysv_sem),
    ("sysv_shm", sysv_shm),
    ("attach", attach),
    ("attach_server", attach_server),
    ("ivshmem", ivshmem),
    ("wire", wire),
    ("mux", mux),
    ("relay", relay),
];
