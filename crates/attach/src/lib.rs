//! The attach protocol: how a process reaches its local service and receives its part of the region.
//!
//! - [`protocol`]: the frames, byte for byte; `docs/attach-protocol.md` says the same in prose.
//! - [`socket`]: frames with descriptors over a UNIX socket, and where that is.
//! - [`ring`]: the frames of wake-ups between a VM's agent and the host service.
//! - [`client`]: the process's side: [`connect`] returns a [`isthmus_region::member::Member`].
//! - [`server`]: the local service's side, the same in the host service and in the guest agent.
//! - [`deaths`]: names the process that died first, for both services.
//! - [`pace`]: how often sleepers are rung for deaths, rounds of all services are begun, and refusals are told.
//! - [`notify`]: reports to systemd.
//! - [`daemon`]: signals that stay ignored, and the limit on descriptors.
//!
//! There is no policy here: the service that embeds [`server::Server`] says which users may attach, and handles the
//! events.

#![forbid(unsafe_code)]

mod bells;
pub mod client;
pub mod daemon;
pub mod deaths;
pub mod error;
pub mod notify;
pub mod pace;
pub mod protocol;
pub mod ring;
pub mod server;
pub mod socket;

pub use client::{connect, connect_at, shared, shared_at};
pub use error::{Error, Result};
pub use socket::find_socket;
