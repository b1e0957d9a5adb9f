//! The local service's side: grants areas, publishes endpoints, and notices deaths.
//!
//! One thread owns everything: the listening socket, each client's socket and pidfd, and the writer of the peer's
//! section. It never waits for a client: what a client does not read at once ends its attachment.
//!
//! ```text
//!            accept            Hello + pidfd, Welcome            Detach, end of file, pidfd, bad frame, full socket
//! (nothing) ────────► greeting ───────────────────────► attached ─────────────────────────────────────────► gone
//!                        │ GREETING passed, refused
//!                        └────────────────────────────────────────────────────────────────────────────────► gone
//! ```

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use isthmus_region::directory::{self, Directory};
use isthmus_region::format::GlobalSlot;
use isthmus_region::gate_bits as gate;
use isthmus_region::party::Party;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::bells::Bells;
use crate::error::{Error, Result};
use crate::protocol::{self, Code, Observed, Reply, Request, VERSION, Welcome};
use crate::socket;

/// How long a client may take from connecting to its `Hello`.
const GREETING: Duration = Duration::from_secs(10);
/// How long the service looks at a pidfd after a connection ended, to tell a death from a mere close.
const LAST_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
/// A look at a pidfd that does not wait.
const NO_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// Eventfds for places of the region that one process may have.
const MOST_WATCHES: usize = 256;
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
    /// The region's descriptor, as clients get it.
    pub region: OwnedFd,
    /// Bytes of the region.
    pub region_bytes: u64,
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
    /// Who answers questions about named objects; nobody does if there is none.
    pub names: Option<Box<dyn Names>>,
    /// Whether its thread runs before others ([`be_urgent`]): where all wake-ups go through it.
    pub is_urgent: bool,
}

/// What is to be woken in another peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wakeup {
    /// An endpoint, by its slot in the region.
    Endpoint(GlobalSlot),
    /// Those who wait at a place of the region, in the peers that the bits name.
    Gate {
        /// The peers, as bits.
        peers: u64,
        /// Offset in the region.
        place: u64,
    },
}

/// Passes on wake-ups for other peers; called on the server's thread, so it must not wait.
#[derive(Default)]
pub struct Relay(Option<Box<dyn Fn(Wakeup) + Send>>);

impl Relay {
    /// One that goes somewhere.
    pub fn new(to: impl Fn(Wakeup) + Send + 'static) -> Self {
        Self(Some(Box::new(to)))
    }
}

/// Answers questions about named objects.
pub trait Names: Send + std::fmt::Debug {
    /// Takes a question, which is one of `Create`, `Open`, `Close`, `Shrink` and `Unlink`. The answer may be given at once
    /// or later, from any thread; this must not wait.
    fn ask(&mut self, asker: Asker, question: Request, answer: Answer);

    /// A process of this peer is dead, and so is all that it had open.
    fn gone(&mut self, party: Party);
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker {
    /// The process.
    pub party: Party,
    /// Its user and group.
    pub user: (u32, u32),
}

/// Where an answer goes.
#[derive(Debug)]
pub struct Answer {
    key: u64,
    sequence: u64,
    orders: mpsc::Sender<Order>,
    bell: Arc<OwnedFd>,
}

impl Answer {
    /// Gives it. One whose asker is gone goes nowhere.
    pub fn give(self, reply: &Reply) {
        let frame = reply.encode(self.sequence);
        let _ = self.orders.send(Order::Answer { key: self.key, frame });
        ring(&*self.bell);
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
    /// Everybody who can reach the socket.
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
    /// The process said so.
    Detached,
    /// The connection ended while the process lives: it executed another program or closed its descriptors.
    Closed,
    /// The process died without a word.
    Died,
    /// The service ended it: bad frames, or replies that were not read.
    Dropped,
}

/// What happens at the server, for a log and for whoever must name a process that died.
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
        /// How it went.
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
    /// The server cannot go on with something; clients that are attached stay so.
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
                    Ending::Closed => "has closed its connection without a word",
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

/// What is called with each event, on the server's thread: it must not wait.
pub type Observer = Box<dyn Fn(&Event) + Send>;

/// A running server. Dropping it ends it; attached processes go on without.
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
}

/// Wakes those of the peer who sleep, from any thread, also after the server's end.
#[derive(Debug, Clone)]
pub struct Waker(Arc<Bells>);

impl Waker {
    /// Wakes the endpoint in `slot` of the peer's table, if it sleeps.
    pub fn wake(&self, slot: u32) {
        self.0.wake(slot);
    }

    /// Wakes those of this peer who wait at a place of the region.
    pub fn ring(&self, place: u64) {
        self.0.ring(place);
    }
}

impl Server {
    /// Listens and serves, on a thread of its own.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::Socket`], [`Error::System`].
    pub fn start(config: Config, writer: directory::Writer, observer: Observer) -> Result<Self> {
        let listener = socket::listen(&config.path, SocketType::SEQPACKET, config.mode, config.group)?;
        let bell = eventfd()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|source| Error::System { action: "create an epoll descriptor", source })?;
        let watch = |fd: &OwnedFd, key| {
            epoll::add(&epoll, fd, EventData::new_u64(key), EventFlags::IN)
                .map_err(|source| Error::System { action: "watch a descriptor", source })
        };
        watch(&listener, LISTENER)?;
        watch(&bell, BELL)?;
        let (orders, inbox) = mpsc::channel();
        let bell = Arc::new(bell);
        let path = config.path.clone();
        let directory = writer.directory().clone();
        let bells = Arc::new(Bells::new(&directory));
        let state = Loop {
            config,
            writer,
            observer,
            epoll,
            listener,
            bell: Arc::clone(&bell),
            orders: orders.clone(),
            inbox,
            bells: Arc::clone(&bells),
            clients: HashMap::new(),
            lingering: HashMap::new(),
            parties: HashMap::new(),
            next: FIRST_CLIENT,
            deaf_until: None,
        };
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

    fn order(&self, order: Order) {
        // A thread that is gone needs no orders.
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

pub use crate::bells::{be_urgent, ring};

const LISTENER: u64 = 0;
const BELL: u64 = 1;
/// Keys of clients are even for the socket, odd for the pidfd, and never come back.
const FIRST_CLIENT: u64 = 2;

/// One connection.
struct Client {
    socket: OwnedFd,
    who: Who,
    gid: u32,
    since: Instant,
    attached: Option<Attached>,
}

struct Attached {
    area: u32,
    pidfd: OwnedFd,
    /// Held as long as the process may be rung.
    _wake: OwnedFd,
    /// How this process stands in words of the shared section.
    party: Party,
    /// Whether a question of its about a named object is being answered.
    asks: bool,
}

struct Loop {
    config: Config,
    writer: directory::Writer,
    observer: Observer,
    epoll: OwnedFd,
    listener: OwnedFd,
    bell: Arc<OwnedFd>,
    orders: mpsc::Sender<Order>,
    inbox: mpsc::Receiver<Order>,
    bells: Arc<Bells>,
    clients: HashMap<u64, Client>,
    /// Processes whose attachment has ended and which live on, by their areas. They may still write there: nobody gets the
    /// memory before they are dead.
    lingering: HashMap<u32, OwnedFd>,
    /// Processes whose areas were not taken back yet, by these.
    parties: HashMap<u32, Party>,
    next: u64,
    deaf_until: Option<Instant>,
}

impl Loop {
    fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            // Only greetings, a listener that is out of descriptors, and memory that is still held need a look at the
            // clock.
            let tick = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
            let hurry = self.deaf_until.is_some()
                || self.clients.values().any(|c| c.attached.is_none())
                || self.writer.held().iter().any(|area| !self.lingering.contains_key(area));
            let timeout = hurry.then_some(&tick);
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => {
                    return self.tell(&Event::Trouble { reason: format!("waiting for clients: {e}") });
                }
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    BELL => {
                        if self.obey() {
                            return self.finish();
                        }
                    }
                    key if key % 2 == 0 => self.hear(key),
                    key => self.end(key - 1, Ending::Died),
                }
            }
            self.sweep();
        }
    }

    fn tell(&self, event: &Event) {
        (self.observer)(event);
    }

    /// Carries out orders; says whether to stop.
    fn obey(&mut self) -> bool {
        let mut count = [0_u8; 8];
        let _ = rustix::io::read(&*self.bell, &mut count);
        while let Ok(order) = self.inbox.try_recv() {
            match order {
                Order::Stop => return true,
                Order::Answer { key, frame } => {
                    if let Some(attached) = self.clients.get_mut(&key).and_then(|c| c.attached.as_mut()) {
                        attached.asks = false;
                    }
                    self.answer(key, &frame);
                }
            }
        }
        false
    }

    /// Wakes those who wait at a place, here and in other peers.
    fn ring_anywhere(&self, peers: u64, place: u64) {
        let here = gate::bit(self.config.peer);
        if peers & here != 0 {
            self.bells.ring(place);
        }
        // The last bit stands for many.
        let others = if here == gate::bit(u32::MAX) { peers } else { peers & !here };
        if others != 0
            && let Some(relay) = &self.config.relay.0
        {
            relay(Wakeup::Gate { peers: others, place });
        }
    }

    fn finish(self) {
        // The name goes first, so that nobody connects to a service that no longer listens.
        let _ = rustix::fs::unlink(&self.config.path);
    }

    fn watch(&self, fd: &OwnedFd, key: u64) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, fd, EventData::new_u64(key), EventFlags::IN)
    }

    fn accept(&mut self) {
        let socket =
            match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => socket,
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
                Err(e) => {
                    // Out of descriptors: whoever waits goes on waiting, and the loop must not spin meanwhile.
                    self.tell(&Event::Trouble { reason: format!("cannot accept a process: {e}") });
                    let _ = epoll::delete(&self.epoll, &self.listener);
                    self.deaf_until = Some(Instant::now() + Duration::from_secs(1));
                    return;
                }
            };
        let Ok(peer) = rustix::net::sockopt::socket_peercred(&socket) else { return };
        let who = Who {
            pid: u32::try_from(peer.pid.as_raw_nonzero().get()).unwrap_or(0),
            uid: peer.uid.as_raw(),
            name: String::new(),
        };
        if !self.config.allowed.lets_in(who.uid) {
            let text = format!(
                "user {} may not attach here; the service of user {} lets in others if it is started with --allow USER or --group GROUP",
                who.uid,
                rustix::process::getuid().as_raw()
            );
            refuse(&socket, 0, Code::NotAllowed, &text);
            return self.tell(&Event::Refused { who, reason: text });
        }
        let key = self.next;
        self.next += 2;
        match self.watch(&socket, key) {
            Ok(()) => {
                let gid = peer.gid.as_raw();
                let client = Client { socket, who, gid, since: Instant::now(), attached: None };
                self.clients.insert(key, client);
            }
            Err(e) => self.tell(&Event::Trouble { reason: format!("cannot watch a process: {e}") }),
        }
    }

    /// One frame of a client; the next one makes the socket readable again, so that nobody keeps the others waiting.
    fn hear(&mut self, key: u64) {
        // It may have ended earlier in this round.
        let Some(client) = self.clients.get(&key) else { return };
        let packet = match socket::receive(&client.socket, RecvFlags::DONTWAIT) {
            Ok(packet) if packet.frame.is_empty() => return self.end(key, Ending::Closed),
            Ok(packet) => packet,
            Err(Errno::AGAIN) => return,
            Err(Errno::MSGSIZE) => return self.reject(key, 0, "it is too long"),
            Err(Errno::MFILE) if client.attached.is_none() => {
                let text = "the service may not open more descriptors (its ulimit -n)";
                return self.turn_away(key, 0, Code::Full, text);
            }
            Err(_) => return self.end(key, Ending::Closed),
        };
        match Request::decode(&packet.frame) {
            Ok((sequence, request)) => self.serve(key, sequence, request, packet.fds),
            Err(Error::BadFrame { what }) => {
                self.reject(key, protocol::sequence_of(&packet.frame), what);
            }
            Err(_) => self.reject(key, protocol::sequence_of(&packet.frame), "it cannot be read"),
        }
    }

    fn serve(&mut self, key: u64, sequence: u64, request: Request, fds: Vec<OwnedFd>) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        let pid = client.who.pid;
        let area = client.attached.as_ref().map(|a| a.area);
        let done = match (area, request) {
            (None, Request::Hello { version, name, .. }) => {
                client.who.name = name;
                return self.greet(key, sequence, version, fds);
            }
            (None, Request::Observe { version }) => return self.show(key, sequence, version),
            (None, _) => return self.reject(key, sequence, "it came before Hello"),
            (Some(_), Request::Hello { .. } | Request::Observe { .. }) => {
                return self.reject(key, sequence, "a second Hello");
            }
            (Some(_), Request::Detach) => return self.end(key, Ending::Detached),
            (Some(area), Request::Grow { bytes }) => self.writer.grow_area(area, bytes).map(Reply::Extent),
            (Some(area), Request::OpenEndpoint { block }) => self
                .writer
                .open_endpoint(area, block, pid)
                .map(|(slot, incarnation)| Reply::Endpoint { slot, incarnation }),
            (Some(area), Request::CloseEndpoint { slot }) => {
                let closed = self.writer.close_endpoint(area, slot);
                if closed.is_ok() {
                    self.bells.remove_endpoint(slot);
                }
                closed.map(|()| Reply::Done)
            }
            (Some(_), Request::Wake { slot }) => return self.wake_anywhere(GlobalSlot(slot)),
            (Some(_), Request::Ring { peers, place }) => return self.ring_anywhere(peers, place),
            (Some(_), Request::Watch { place }) => return self.give_watch(key, sequence, place),
            (
                Some(_),
                question @ (Request::Create(_)
                | Request::Open { .. }
                | Request::Close { .. }
                | Request::Shrink { .. }
                | Request::Unlink { .. }),
            ) => return self.ask_for_names(key, sequence, question),
            (Some(area), Request::Bell { slot }) => return self.give_bell(key, sequence, area, slot),
        };
        let reply = done.unwrap_or_else(|e| refusal(&e));
        self.answer(key, &reply.encode(sequence));
    }

    /// Wakes an endpoint of any peer. One that does not exist wakes nobody.
    fn wake_anywhere(&self, slot: GlobalSlot) {
        let endpoints = self.writer.directory().shape().endpoints;
        if slot.peer(endpoints) == self.config.peer {
            self.bells.wake(slot.local(endpoints));
        } else if let Some(relay) = &self.config.relay.0 {
            relay(Wakeup::Endpoint(slot));
        }
    }

    /// Passes on a question about a named object.
    fn ask_for_names(&mut self, key: u64, sequence: u64, question: Request) {
        let asker = self
            .clients
            .get(&key)
            .and_then(|c| Some(Asker { party: c.attached.as_ref()?.party, user: (c.who.uid, c.gid) }));
        let Some(asker) = asker else { return };
        if let Some(attached) = self.clients.get_mut(&key).and_then(|c| c.attached.as_mut())
            && std::mem::replace(&mut attached.asks, true)
        {
            // Who does not wait for its answers shall not keep others waiting for theirs.
            let text = "an earlier question of this process about a named object is not answered yet".into();
            return self.answer(key, &Reply::Refused { code: Code::Failed, text }.encode(sequence));
        }
        let bell = Arc::clone(&self.bell);
        let answer = Answer { key, sequence, orders: self.orders.clone(), bell };
        match &mut self.config.names {
            Some(names) => names.ask(asker, question, answer),
            None => answer.give(&Reply::Refused {
                code: Code::Failed,
                text: "this service looks after no named objects".into(),
            }),
        }
    }

    /// Makes an eventfd for a place of the region.
    fn give_watch(&mut self, key: u64, sequence: u64, place: u64) {
        let refused = |code, text: String| Reply::Refused { code, text }.encode(sequence);
        if !self.bells.is_place(place) {
            let text = format!("offset {place} is no line of the region");
            return self.answer(key, &refused(Code::Invalid, text));
        }
        if self.bells.places_of(key) >= MOST_WATCHES {
            let text = format!("this process has {MOST_WATCHES} eventfds for places already");
            return self.answer(key, &refused(Code::Full, text));
        }
        let watch = match eventfd() {
            Ok(watch) => watch,
            Err(e) => return self.answer(key, &refused(Code::Failed, e.to_string())),
        };
        self.hand_out(key, sequence, &watch, |bells, own| bells.add_place(place, key, own));
    }

    /// Makes an eventfd for an endpoint of the client.
    fn give_bell(&mut self, key: u64, sequence: u64, area: u32, slot: u32) {
        if !self.writer.owns(area, slot) {
            let error = isthmus_region::Error::Invalid { what: "endpoint slot", value: slot.into() };
            return self.answer(key, &refusal(&error).encode(sequence));
        }
        let bell = match eventfd() {
            Ok(bell) => bell,
            Err(e) => {
                let reply = Reply::Refused { code: Code::Failed, text: e.to_string() };
                return self.answer(key, &reply.encode(sequence));
            }
        };
        self.hand_out(key, sequence, &bell, |bells, own| bells.add_endpoint(slot, key, own));
    }

    /// Sends a client an eventfd, which others can ring from before it has it.
    fn hand_out(&mut self, key: u64, sequence: u64, fd: &OwnedFd, keep: impl FnOnce(&Bells, OwnedFd)) {
        let Some(client) = self.clients.get(&key) else { return };
        match fd.try_clone() {
            Ok(own) => keep(&self.bells, own),
            Err(e) => {
                let reply = Reply::Refused { code: Code::Failed, text: e.to_string() };
                return self.answer(key, &reply.encode(sequence));
            }
        }
        let frame = Reply::Eventfd.encode(sequence);
        if socket::send(&client.socket, &frame, &[fd.as_fd()], SendFlags::DONTWAIT).is_err() {
            self.end(key, Ending::Dropped);
        }
    }

    /// Sends an answer. A client that has not read so many that no more fit is not waiting for this one either.
    fn answer(&mut self, key: u64, frame: &[u8]) {
        let Some(client) = self.clients.get(&key) else { return };
        match socket::send(&client.socket, frame, &[], SendFlags::DONTWAIT) {
            Ok(()) => {}
            // It died, or closed, between its question and this answer.
            Err(Errno::PIPE | Errno::CONNRESET) => self.end(key, Ending::Closed),
            Err(_) => self.end(key, Ending::Dropped),
        }
    }

    fn reject(&mut self, key: u64, sequence: u64, what: &str) {
        if let Some(client) = self.clients.get(&key) {
            refuse(&client.socket, sequence, Code::BadFrame, what);
            if client.attached.is_none() {
                let reason = format!("a frame that is not of the attach protocol: {what}");
                self.tell(&Event::Refused { who: client.who.clone(), reason });
            }
        }
        self.end(key, Ending::Dropped);
    }

    /// Turns away a client that has said `Hello`.
    fn turn_away(&mut self, key: u64, sequence: u64, code: Code, text: &str) {
        if let Some(client) = self.clients.remove(&key) {
            refuse(&client.socket, sequence, code, text);
            self.tell(&Event::Refused { who: client.who, reason: text.to_owned() });
        }
    }

    /// Gives an observer what it came for, and lets it go.
    fn show(&mut self, key: u64, sequence: u64, version: u32) {
        if version != VERSION {
            return self.turn_away(key, sequence, Code::Version, &other_version(version));
        }
        let region = match read_only(&self.config.region) {
            Ok(region) => region,
            Err(e) => {
                let text = format!("cannot open the region for reading: {e}");
                return self.turn_away(key, sequence, Code::Failed, &text);
            }
        };
        let reply = Reply::Observed(Observed {
            version: VERSION,
            peer: self.config.peer,
            region_bytes: self.config.region_bytes,
            uuid: self.config.uuid,
            host_name: self.config.host_name.clone(),
        });
        // What was sent stays to be read after the end. An observer that is gone already needs nothing.
        if let Some(client) = self.clients.remove(&key) {
            let frame = reply.encode(sequence);
            let _ = socket::send(&client.socket, &frame, &[region.as_fd()], SendFlags::DONTWAIT);
        }
    }

    fn greet(&mut self, key: u64, sequence: u64, version: u32, fds: Vec<OwnedFd>) {
        let Some(who) = self.clients.get(&key).map(|c| c.who.clone()) else { return };
        if version != VERSION {
            return self.turn_away(key, sequence, Code::Version, &other_version(version));
        }
        let Ok([pidfd]) = <[OwnedFd; 1]>::try_from(fds) else {
            return self.turn_away(key, sequence, Code::Invalid, "a Hello comes with one pidfd");
        };
        if let Err(text) = check_pidfd(&pidfd, who.pid) {
            return self.turn_away(key, sequence, Code::NotAllowed, &text);
        }
        let grant = match self.writer.open_area(self.config.area_bytes, who.pid, &who.name) {
            Ok(grant) => grant,
            Err(e) => return self.turn_away(key, sequence, code_of(&e), &e.to_string()),
        };
        let welcome = Reply::Welcome(Welcome {
            version: VERSION,
            peer: self.config.peer,
            incarnation: self.config.incarnation,
            region_bytes: self.config.region_bytes,
            uuid: self.config.uuid,
            grant,
            host_name: self.config.host_name.clone(),
        });
        let area = grant.area;
        let begun = eventfd().and_then(|wake| {
            let system = |action| move |source| Error::System { action, source };
            self.watch(&pidfd, key + 1).map_err(system("watch a pidfd"))?;
            let client =
                self.clients.get_mut(&key).ok_or(Error::BadFrame { what: "a client that is gone" })?;
            let fds = [self.config.region.as_fd(), wake.as_fd()];
            let sent = socket::send(&client.socket, &welcome.encode(sequence), &fds, SendFlags::DONTWAIT);
            if let Err(source) = sent {
                // Who has given up waiting, or cannot be told, never hears of its area, and keeps nothing of it.
                let _ = epoll::delete(&self.epoll, &pidfd);
                return Err(system("send the region's descriptor")(source));
            }
            let party = Party::new(self.config.peer, area, grant.incarnation);
            self.parties.insert(area, party);
            client.attached = Some(Attached { area, pidfd, _wake: wake, party, asks: false });
            Ok(())
        });
        match begun {
            Ok(()) => self.tell(&Event::Attached { who, area }),
            Err(e) => {
                self.publish_end(area);
                self.take_back(area);
                let cause =
                    std::error::Error::source(&e).map_or_else(String::new, |cause| format!(": {cause}"));
                self.turn_away(key, sequence, Code::Failed, &format!("{e}{cause}"));
            }
        }
    }

    fn publish_end(&mut self, area: u32) -> Vec<u32> {
        self.writer.end_area(area).unwrap_or_else(|e| {
            self.tell(&Event::Trouble { reason: format!("cannot end area {area}: {e}") });
            Vec::new()
        })
    }

    fn take_back(&mut self, area: u32) {
        match self.writer.take_back(area) {
            Ok(true) => {
                let party = self.parties.remove(&area);
                if let (Some(names), Some(party)) = (&mut self.config.names, party) {
                    names.gone(party);
                }
            }
            Ok(false) => {}
            Err(e) => self.tell(&Event::Trouble { reason: format!("cannot take back area {area}: {e}") }),
        }
    }

    /// The end of a connection, whatever led to it: the death is published first, and then talked about.
    fn end(&mut self, key: u64, ending: Ending) {
        let Some(client) = self.clients.remove(&key) else { return };
        // Other descriptors of this socket may live on in a forked child; it shall see an end of file, too.
        let _ = rustix::net::shutdown(&client.socket, rustix::net::Shutdown::Both);
        let _ = epoll::delete(&self.epoll, &client.socket);
        let Some(Attached { area, pidfd, .. }) = client.attached else { return };
        self.bells.forget(key);
        let endpoints = self.publish_end(area);
        let ending = match ending {
            // A dying process closes its descriptors about a millisecond before its pidfd tells.
            Ending::Closed if is_dead(&pidfd, LAST_LOOK) => Ending::Died,
            other => other,
        };
        let done = match ending {
            Ending::Died | Ending::Detached => true,
            Ending::Closed | Ending::Dropped => is_dead(&pidfd, NO_LOOK),
        };
        if done {
            let _ = epoll::delete(&self.epoll, &pidfd);
            self.take_back(area);
        } else {
            // Its pidfd stays watched, and brings us to `sweep`.
            self.lingering.insert(area, pidfd);
        }
        self.tell(&Event::Gone { who: client.who, area, ending, endpoints });
    }

    fn sweep(&mut self) {
        let now = Instant::now();
        for area in self.writer.held() {
            match self.lingering.get(&area) {
                Some(pidfd) if !is_dead(pidfd, NO_LOOK) => continue,
                Some(pidfd) => {
                    let _ = epoll::delete(&self.epoll, pidfd);
                    self.lingering.remove(&area);
                }
                None => {}
            }
            self.take_back(area);
        }
        let late = |c: &Client| c.attached.is_none() && now.duration_since(c.since) > GREETING;
        let late: Vec<u64> = self.clients.iter().filter(|(_, c)| late(c)).map(|(key, _)| *key).collect();
        for key in late {
            self.turn_away(key, 0, Code::BadFrame, "no Hello came");
        }
        if self.deaf_until.is_some_and(|until| now >= until) && self.watch(&self.listener, LISTENER).is_ok() {
            self.deaf_until = None;
        }
    }
}

fn other_version(version: u32) -> String {
    format!(
        "the service speaks version {VERSION} of the attach protocol, the process version {version}; use one isthmus version for both"
    )
}

/// The same memory behind a descriptor of its own that does not write.
fn read_only(region: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", region.as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn code_of(error: &isthmus_region::Error) -> Code {
    match error {
        isthmus_region::Error::Full { .. } => Code::Full,
        isthmus_region::Error::OutOfBounds { .. } | isthmus_region::Error::Invalid { .. } => Code::Invalid,
        _ => Code::Failed,
    }
}

fn refusal(error: &isthmus_region::Error) -> Reply {
    Reply::Refused { code: code_of(error), text: error.to_string() }
}

/// Says why, to a client that may not listen.
fn refuse(socket: &OwnedFd, sequence: u64, code: Code, text: &str) {
    let frame = Reply::Refused { code, text: text.to_owned() }.encode(sequence);
    let _ = socket::send(socket, &frame, &[], SendFlags::DONTWAIT);
}

fn is_dead(pidfd: &OwnedFd, look: Timespec) -> bool {
    let mut poll = [PollFd::new(pidfd, PollFlags::IN)];
    matches!(rustix::event::poll(&mut poll, Some(&look)), Ok(1))
}

/// Whether a descriptor is a pidfd of the process at the other end, as far as the kernel tells: else a process could
/// hand over the pidfd of one that lives for ever, and its own death went unnoticed while a child holds the socket.
fn check_pidfd(pidfd: &OwnedFd, pid: u32) -> std::result::Result<(), String> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))
        .map_err(|e| format!("the descriptor that came with Hello cannot be checked: {e}"))?;
    let named = info.lines().find_map(|l| l.strip_prefix("Pid:")).map(str::trim);
    match named {
        None => Err("the descriptor that came with Hello is not a pidfd".into()),
        Some(named) if named.parse() == Ok(pid) => Ok(()),
        Some(named) => {
            Err(format!("the pidfd that came with Hello is of process {named}, but process {pid} sent it"))
        }
    }
}
