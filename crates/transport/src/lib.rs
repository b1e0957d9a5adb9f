//! Endpoints, lanes, matching and protocols over a region.
//!
//! - [`address`]: the 64 bytes by which an endpoint is known.
//! - [`types`]: what is posted and what completes.
//! - [`endpoint`]: the endpoint itself: posting, progress, completions.
//! - [`lane`]: a one-way ring between two endpoints, both ends of it.
//! - [`wire`]: the messages that travel in slots.
//! - [`fault`]: places where tests stop a process.
//! - [`matching`]: posted receives, and messages that arrived before their receive.
//!
//! Safe code only. Nothing here knows that a service, a VM or libfabric exists. One endpoint is used by one thread
//! at a time (its methods take `&mut self`); different endpoints share nothing but the allocator of their process.
#![forbid(unsafe_code)]

pub mod address;
pub mod endpoint;
pub mod fault;
mod hash;
pub mod lane;
pub mod matching;
pub mod types;
pub mod wire;

pub use address::{Address, Destination, Name, SystemId};
pub use endpoint::{
    Asleep, CLOSE_PATIENCE, Closing, Config, Endpoint, Short, ShortReceived, ShortSink, Sink,
};
pub use types::{
    Access, Atomic, AtomicKind, Completion, Error, Long, Memory, Op, PeerId, PostError, Posted, Receive,
    Replacement, Result, Rma, Selector, Send, Status, Ticket,
};
