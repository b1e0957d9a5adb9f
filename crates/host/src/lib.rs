//! The host service: makes a region, keeps its membership table, and lets processes and VMs in.
//!
//! - [`service`]: the service as a whole, embedded by `isthmus run` and by `isthmus host`.
//! - [`members`]: the membership table and the sections behind it; the one place that writes the host section.
//! - [`ivshmem`]: the server that QEMU's ivshmem-doorbell devices connect to.
//! - [`names`]: named objects, which are pieces of the shared section; the one place that writes their table.
//! - [`options`]: what users ask of a region.
//! - [`plan`]: how a region is cut into sections.
//! - [`stats`]: what went through the region, by peer.
//! - [`device`]: what a VM needs to join.
//! - `files`: the memory files of a region, and which of them a peer's processes may write.
//! - `door`: the socket of a service whose processes are peers of their own.
//! - `errands`: what the relay of wake-ups has the ivshmem server's thread do.
//! - `ports`: which wake port is whose.
//! - `wakes`: the relay of wake-ups between the host and its VMs.
//! - [`foreground`]: the service as a program of its own.

#![forbid(unsafe_code)]

pub mod device;
mod door;
mod doorbells;
mod errands;
pub mod error;
mod files;
pub mod foreground;
pub mod ivshmem;
pub mod members;
pub mod names;
pub mod options;
pub mod plan;
mod ports;
pub mod service;
mod settling;
pub mod stats;
mod wakes;

pub use error::{Error, Result};
pub use isthmus_attach::server::{Allowed, Ending};
pub use options::RegionOptions;
pub use service::{Config, Event, Service, Vm};
pub use stats::Stats;
