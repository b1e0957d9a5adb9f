//! The local service's side: grants areas, publishes endpoints, and notices deaths.
//!
//! One thread owns everything: the listening socket, each client's socket and pidfd, and the writer of the peer's
//! section. It never blocks on a client: a reply that does not fit into the client's socket ends its attachment.
//!
//! ```text
//!            accept            Hello + pidfd, Welcome            Detach, end of file, pidfd, bad frame, full socket
//! (nothing) ────────► greeting ───────────────────────► attached ─────────────────────────────────────────► gone
//!                        │ no Hello within GREETING, or refused
//!                        └────────────────────────────────────────────────────────────────────────────────► gone
//! ```
//!
//! This file has what the embedding service configures and is told; `event_loop` is the thread, `client` one
//! connection, `requests` what an attached process asks.

mod client;
mod event_loop;
mod requests;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use isthmus_region::directory::{self, Directory};
use isthmus_region::driver::Driver;
use isthmus_region::format::GlobalSlot;
use isthmus_region::party::Party;
use isthmus_region::source::Source;
use rustix::event::EventfdFlags;
use rustix::io::Errno;

use self::event_loop::Loop;
use crate::bells::Bells;
pub use crate::bells::be_urgent;
use crate::error::{Error, Result};
use crate::protocol::{Reply, Request};
pub use isthmus_region::doorbell::ring;

/// Bytes of an area at attach, by default: counters, blocks, and a receive lane for some endpoints.
pub const AREA_BYTES: u64 = 128 << 10;

/// What a service tells the server about itself and its region.
#[derive(Debug)]
pub struct Config {
    /// Where to listen; the folder must exist.
    pub path: PathBuf,
    /// Mode of the socket.
    pub mode: u32,
    /// Group of the socket, if not the service's own.
    pub group: Option<u32>,
    /// Users that may attach.
    pub allowed: Allowed,
    /// Where the region's files come from, as clients get them: open for writing only where they may write.
    pub source: Arc<dyn Source>,
    /// The region's identity.
    pub uuid: [u64; 2],
    /// Index of the peer served here.
    pub peer: u32,
    /// The peer's incarnation.
    pub incarnation: u64,
    /// Name of the peer.
    pub host_name: String,
    /// Bytes of an area at attach; [`AREA_BYTES`] is a good value.
    pub area_bytes: u64,
    /// Where wake-ups for other peers go.
    pub relay: Relay,
    /// What answers requests about named objects; without it they are refused.
    pub names: Option<Box<dyn Names>>,
    /// What hands processes on to the services of other peers; without it all that attach here are this peer's.
    pub door: Option<Box<dyn Door>>,
    /// The guest driver, if the region is its device's: it rings this peer's sleepers.
    pub driver: Option<Arc<Driver>>,
    /// Whether its thread has the highest priority ([`be_urgent`]), as it should where all wake-ups go through it.
    pub is_urgent: bool,
}

/// What is to be woken in another peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wakeup {
    /// An endpoint, by its slot in the region.
    Endpoint(GlobalSlot),
    /// The waiters at a place of the region, in the peers that the bits name.
    Gate {
        /// The peers, as bits.
        peers: u64,
        /// The place, as a word ([`isthmus_region::place::Place`]).
        place: u64,
    },
    /// All sleepers: a process of this peer is gone.
    Death,
}

/// Passes on wake-ups for other peers, or drops them (the default). It is called on the server's thread and must not
/// block.
#[derive(Default)]
pub struct Relay(Option<Box<dyn Fn(Wakeup) + Send>>);

impl Relay {
    /// A relay that calls `to`.
    pub fn new(to: impl Fn(Wakeup) + Send + 'static) -> Self {
        Self(Some(Box::new(to)))
    }
}

/// Answers requests about named objects.
pub trait Names: Send + std::fmt::Debug {
    /// Takes a request, which is one of `Create`, `Open`, `Close`, `Shrink`, `Unlink`, `Hold`, `Release`, `Enter`, `Removed`,
    /// `Change`, `Remove` and `Settle`. Gives the answer, if there is one at once; else `answer` gives it later, from any thread.
    /// This must not block.
    fn ask(&mut self, asker: Asker, request: Request, answer: Answer) -> Option<Reply>;

    /// A process of this peer is dead; what it had open is open no more.
    fn gone(&mut self, party: Party);
}

/// Tells to which peer a process belongs, where one socket lets processes into several.
pub trait Door: Send + std::fmt::Debug {
    /// The service that a process is handed on to; none if it is one of the peer whose socket it has found. `pidfd` is that of
    /// the process, which asks to attach. This must not block.
    fn peer_of(&mut self, pid: u32, pidfd: &OwnedFd) -> Option<Adopter>;
}

/// Takes on processes that connected elsewhere.
#[derive(Debug, Clone)]
pub struct Adopter {
    orders: mpsc::Sender<Order>,
    bell: Arc<OwnedFd>,
}

impl Adopter {
    /// If the service has ended, the connection ends with it.
    fn take(&self, process: Newcomer) {
        let _ = self.orders.send(Order::Take(Box::new(process)));
        ring(&*self.bell);
    }
}

/// A process that is handed on: its connection, what the kernel states about the other end, and its `Hello`, which was checked.
#[derive(Debug)]
struct Newcomer {
    socket: OwnedFd,
    who: Who,
    gid: u32,
    image: u64,
    sequence: u64,
    pidfd: OwnedFd,
}

/// The process that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker {
    /// Its identity.
    pub party: Party,
    /// Its user and group.
    pub user: (u32, u32),
}

/// Where an answer goes, if one is awaited; or what is counted until it was passed on.
#[derive(Debug)]
pub struct Answer(To);

#[derive(Debug)]
enum To {
    Asker(Asked),
    Nobody(Untold),
}

/// What a process has said without waiting for an answer counts as long as this lives: it must not say more than can be passed on.
#[derive(Debug, Clone, Default)]
pub struct Untold(Arc<()>);

impl Untold {
    /// How many there are.
    fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

#[derive(Debug)]
struct Asked {
    key: u64,
    sequence: u64,
    orders: mpsc::Sender<Order>,
    bell: Arc<OwnedFd>,
}

impl Answer {
    /// Sends the reply; if the asker is gone, it is dropped.
    pub fn give(self, reply: &Reply) {
        let To::Asker(asked) = self.0 else { return };
        let frame = reply.encode(asked.sequence);
        let _ = asked.orders.send(Order::Answer { key: asked.key, frame });
        ring(&*asked.bell);
    }

    /// What is to live until the request is carried out, if nobody waits for that.
    pub fn untold(&self) -> Option<Untold> {
        match &self.0 {
            To::Nobody(untold) => Some(untold.clone()),
            To::Asker(_) => None,
        }
    }
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Relay").field(&self.0.is_some()).finish()
    }
}

/// Users that may attach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    /// These user ids, and root.
    Users(Vec<u32>),
    /// Every user that can reach the socket.
    Everybody,
}

impl Allowed {
    /// Whether user `uid` is let in.
    pub fn lets_in(&self, uid: u32) -> bool {
        match self {
            Self::Users(users) => uid == 0 || users.contains(&uid),
            Self::Everybody => true,
        }
    }

    /// Whether all that are let in are root's or user `uid`'s.
    pub fn is_one_user(&self, uid: u32) -> bool {
        matches!(self, Self::Users(users) if users.iter().all(|user| *user == 0 || *user == uid))
    }
}

/// A client, as events name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// Process id as the service sees it.
    pub pid: u32,
    /// User id.
    pub uid: u32,
    /// The program's name, as the process gave it.
    pub name: String,
}

/// How an attachment ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The process detached.
    Detached,
    /// The connection ended while the process lives: it executed another program or closed its descriptors.
    Closed,
    /// The process executed another program, which has attached.
    Executed,
    /// The process died without detaching.
    Died,
    /// The service ended it: bad frames, or replies that were not read.
    Dropped,
}

/// What happens at the server, for logs and for naming a process that died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A process has attached.
    Attached {
        /// The process.
        who: Who,
        /// Its area.
        area: u32,
    },
    /// A process is gone; its death is published already.
    Gone {
        /// The process.
        who: Who,
        /// Its area.
        area: u32,
        /// How its attachment ended.
        ending: Ending,
        /// Endpoints that went with it.
        endpoints: Vec<u32>,
    },
    /// A client was turned away before it attached.
    Refused {
        /// The process.
        who: Who,
        /// Why.
        reason: String,
    },
    /// Something failed in the server; attached clients stay attached.
    Trouble {
        /// What.
        reason: String,
    },
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Attached { who, area } => {
                write!(f, "process {} ({}) of user {} attached, area {area}", who.pid, who.name, who.uid)
            }
            Self::Gone { who, ending, .. } => {
                let how = match ending {
                    Ending::Detached => "has detached",
                    Ending::Executed => "has executed another program",
                    Ending::Closed => "has closed its connection without detaching",
                    Ending::Died => "is dead",
                    Ending::Dropped => "was dropped: it does not keep to the attach protocol",
                };
                write!(f, "process {} ({}) {how}", who.pid, who.name)
            }
            Self::Refused { who, reason } => {
                write!(f, "process {} of user {} was turned away: {reason}", who.pid, who.uid)
            }
            Self::Trouble { reason } => f.write_str(reason),
        }
    }
}

/// Called with each event, on the server's thread; it must not block.
pub type Observer = Box<dyn Fn(&Event) + Send>;

/// A running server. Dropping it ends it; attached processes go on without it.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    directory: Directory,
    orders: mpsc::Sender<Order>,
    bell: Arc<OwnedFd>,
    bells: Arc<Bells>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Order {
    Stop,
    Answer { key: u64, frame: Vec<u8> },
    Take(Box<Newcomer>),
    Settle(Settling),
}

/// Who waits until all that was said and all deaths are known.
enum Settling {
    /// A process, which asked for it while that was going on.
    Client { key: u64, sequence: u64 },
    /// Another service.
    Service(Box<dyn FnOnce() + Send>),
}

impl std::fmt::Debug for Settling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Client { key, .. } => f.debug_tuple("Client").field(key).finish(),
            Self::Service(_) => f.write_str("Service"),
        }
    }
}

/// Has a server hear what its processes have said by now and notice all deaths, from any thread.
#[derive(Debug, Clone)]
pub struct Settler {
    orders: mpsc::Sender<Order>,
    bell: Arc<OwnedFd>,
}

impl Settler {
    /// Calls `then` on the server's thread once that is done; what was said has gone to [`Names`] before. Never, if the server
    /// has ended.
    pub fn settle(&self, then: impl FnOnce() + Send + 'static) {
        let _ = self.orders.send(Order::Settle(Settling::Service(Box::new(then))));
        ring(&*self.bell);
    }
}

/// Wakes sleepers of the peer, from any thread, also after the server's end.
#[derive(Debug, Clone)]
pub struct Waker(Arc<Bells>);

impl Waker {
    /// Wakes the endpoint in `slot` of the peer's table, if it sleeps.
    pub fn wake(&self, slot: u32) {
        self.0.wake(slot);
    }

    /// Wakes the endpoints in those slots of the peer's table for which `is_one` says so.
    pub fn wake_those(&self, is_one: impl Fn(u32) -> bool) {
        self.0.wake_those(is_one);
    }

    /// Wakes the waiters of this peer at a place of the region.
    pub fn ring(&self, place: u64) {
        self.0.ring(place);
    }

    /// Wakes all sleepers of this peer: a process of another one, or the whole of it, is gone.
    pub fn death(&self) {
        self.0.death();
    }
}

impl Server {
    /// Listens and serves, on a thread of its own.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::Socket`], [`Error::System`].
    pub fn start(config: Config, writer: directory::Writer, observer: Observer) -> Result<Self> {
        let (orders, inbox) = mpsc::channel();
        let path = config.path.clone();
        let directory = Directory::clone(writer.directory());
        let state = Loop::new(config, writer, observer, orders.clone(), inbox)?;
        let (bell, bells) = (Arc::clone(&state.bell), Arc::clone(&state.bells));
        let thread = std::thread::Builder::new()
            .name("isthmus-attach".into())
            .spawn(move || {
                if state.config.is_urgent {
                    be_urgent();
                }
                state.run();
            })
            .map_err(|e| Error::System { action: "start the attach service's thread", source: errno(&e) })?;
        Ok(Self { path, directory, orders, bell, bells, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The peer's section, for counters and endpoints.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// What wakes the peer's endpoints.
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.bells))
    }

    /// What hands processes on to this server.
    pub fn adopter(&self) -> Adopter {
        Adopter { orders: self.orders.clone(), bell: Arc::clone(&self.bell) }
    }

    /// What has this server look at its processes.
    pub fn settler(&self) -> Settler {
        Settler { orders: self.orders.clone(), bell: Arc::clone(&self.bell) }
    }

    fn order(&self, order: Order) {
        // If the thread has ended, there is nothing left to order.
        let _ = self.orders.send(order);
        ring(&self.bell);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.order(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn eventfd() -> Result<OwnedFd> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|source| Error::System { action: "create an eventfd", source })
}
