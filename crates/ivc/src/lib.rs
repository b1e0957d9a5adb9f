//! IVC: socket-style channels between processes that share a region, in VMs and on the host.
//!
//! A process registers a [`Context`] with the *magic id* of its job and a *client id* of its choice. All contexts with one
//! magic id form a group: each lists the others ([`Context::peers`]), is told of those that join and leave
//! ([`Context::events`]), connects to them ([`Context::connect`]) and accepts their connections ([`Context::accept`]). A
//! [`Channel`] between two members, each the other's *partner*, is a byte stream each way, through a ring in the writer's
//! memory:
//!
//! ```text
//!           own area                    partner's area
//! write ──► ring, write position ─────► read
//! read ◄─────────────────────────────── ring, write position
//!           read position ────────────► (room)
//! ```
//! Reads and writes never wait unless asked to, and return how many bytes they moved. Bytes are copied once into the ring
//! and once out of it; with [`Channel::reserve`] and [`Channel::peek`] programs work in the ring itself. A message of 64
//! bytes costs two cache lines: its own, and that of the write position.
//!
//! What is read from other members is checked before it is used; a member that breaks the protocol, or dies, ends its own
//! channels and nothing else. Every word has one writer, so nothing here needs an atomic read-modify-write between VMs.
//!
//! Programs get a context by `isthmus::Attachment::register`; without that crate:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use isthmus_ivc::Context;
//! let member = isthmus_attach::client::shared()?;
//! let context = Context::register(&member, 0x6a6f62, 7)?;
//! let peer = context.peers().remove(0);
//! let channel = context.connect(peer.address, None)?;
//! channel.write_all(b"hello", None)?;
//! let mut answer = [0; 5];
//! channel.read_exact(&mut answer, None)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Source
//! Wei Huang, "High Performance Network I/O in Virtual Machines over Modern Interconnects" (2008), 6.1.
#![forbid(unsafe_code)]

mod channel;
mod config;
mod connect;
mod context;
mod error;
mod event;
mod link;
mod loan;
mod peer;
mod piece;
mod table;
mod wait;

pub use channel::{Channel, Interest, ReadHalf, WriteHalf};
pub use config::{Config, LEAST_RING_BYTES, LEAST_SEGMENT_BYTES, MOST_RING_BYTES};
pub use connect::Connecting;
pub use context::Context;
pub use error::{Error, Result};
pub use event::{Callbacks, ChannelId, Event, OnGone, OnReachable, OnSuspended};
pub use loan::{Loan, MOST_LOAN_BYTES, Ticket};
pub use peer::{Address, Peer};
pub use piece::{ReadPiece, WritePiece};
