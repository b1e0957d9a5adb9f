//! The relay of wake-ups between the host and its VMs.
//!
//! A message between two peers needs no service, but a receiver that sleeps in a VM has to be woken by its agent. So
//! each VM has a virtio-serial port for wake-ups, whose other end QEMU connects to a socket here. It carries frames
//! of eight or sixteen bytes in both directions (`docs/attach-protocol.md`, *Wake-ups between peers*).
//!
//! Nothing depends on a wake-up, since every sleep has a time limit. So nothing here blocks, and what does not fit
//! into a socket is dropped. Which VM speaks is known by the port ([`Ports`]), and no VM can say that it is another.
//!
//! A VM also rings by its port for each step of its joining, and is rung once its entry in the membership table has
//! been looked at or has changed. The words in the region are the truth; an agent that gets no answer rings again.

use std::collections::BTreeSet;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use isthmus_attach::pace::Pace;
use isthmus_attach::server::{Allowed, Settler, Waker};
use isthmus_attach::{ring, socket};
use isthmus_region::driver::vector_of_slot;
use isthmus_region::format::GlobalSlot;
use isthmus_region::gate_bits;
use isthmus_region::membership::Region;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::net::{RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::doorbells::Doorbells;
use crate::errands::Errands;
use crate::error::{Error, Result};
use crate::names;
use crate::ports::{Caller, Ports, Process};
use crate::service::{Event, Observer};
use crate::settling::{Begun, Origin, Rounds};

/// Connections at once; each VM has one.
const MOST_LINKS: usize = 2048;
/// Rounds that a VM has asked for and that wait to be begun.
const MOST_ASKED: usize = 256;
/// Descriptors that the relay looks at before those of the connections.
const FIXED: usize = 3;

/// After so many turns with rings of the host within a window there is a pause.
const STORM: u32 = 1000;
const STORM_WINDOW: Duration = Duration::from_millis(10);
/// How long nobody is let in where there was no descriptor.
const SHUT: Duration = Duration::from_secs(1);
const STORM_PAUSE: Duration = Duration::from_millis(1);

/// Where wake-ups go.
#[derive(Clone)]
pub(crate) struct Router {
    region: Region,
    /// What wakes the host's own processes, by peer: one, unless they are peers of their own.
    wakers: Arc<OnceLock<Vec<Waker>>>,
    /// The VMs' ports, by member.
    ports: Arc<Mutex<Ports>>,
    /// Answers the VMs' requests about named objects.
    names: names::Shared,
    /// For what may block.
    errands: Errands,
    /// What has the host's own services look at their processes, by peer.
    settlers: Arc<OnceLock<Vec<Settler>>>,
    rounds: Rounds,
    doorbells: Doorbells,
    /// Readable once the relay is to look at the clock for the rounds.
    clock: Arc<OwnedFd>,
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router").finish_non_exhaustive()
    }
}

impl Router {
    pub(crate) fn new(
        region: Region,
        names: names::Shared,
        errands: Errands,
        doorbells: Doorbells,
    ) -> Result<Self> {
        let clock = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|source| Error::System { action: "create an eventfd", source })?;
        Ok(Self {
            region,
            wakers: Arc::default(),
            ports: Arc::default(),
            names,
            errands,
            settlers: Arc::default(),
            rounds: Rounds::default(),
            doorbells,
            clock: Arc::new(clock),
        })
    }

    /// Sets what wakes the host's own processes, by peer.
    pub(crate) fn set_wakers(&self, wakers: Vec<Waker>) {
        let _ = self.wakers.set(wakers);
    }

    /// Sets what has the host's own services look at their processes, by peer.
    pub(crate) fn set_settlers(&self, settlers: Vec<Settler>) {
        let _ = self.settlers.set(settlers);
    }

    /// The host's own peers, each with what wakes its processes.
    fn near(&self) -> impl Iterator<Item = (u32, &Waker)> {
        (0..).zip(self.wakers.get().into_iter().flatten())
    }

    fn ports(&self) -> MutexGuard<'_, Ports> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A VM's device has connected, and its wake port is heard from now on.
    pub(crate) fn plugged(&self, member: u32, caller: Caller, vectors: Vec<Arc<OwnedFd>>) {
        self.doorbells.plugged(member, vectors);
        self.ports().plugged(member, caller);
    }

    /// A VM's device is gone: tells the VM, which may run on without it, and listens to its wake port no more.
    pub(crate) fn unplugged(&self, member: u32) {
        self.tell(member);
        self.ports().unplugged(member);
        self.doorbells.unplugged(member);
        self.lost(member);
    }

    /// The doorbells of the VMs and of the host.
    pub(crate) fn doorbells(&self) -> &Doorbells {
        &self.doorbells
    }

    /// Tells a VM by which id its device knows a member, if it wants to know. Gives whether there was room for that.
    pub(crate) fn known(&self, member: u32, other: u32, id: Option<u16>) -> bool {
        !self.doorbells.rings(member) || self.try_send(member, &ring::known(other, id))
    }

    /// The host's own peers.
    pub(crate) fn own_peers(&self) -> impl Iterator<Item = u32> {
        self.near().map(|(peer, _)| peer)
    }

    /// A VM has rung a vector of the host: wakes those of its processes that this is for.
    fn rung(&self, vector: u32) {
        let vectors = self.doorbells.own_vectors();
        if vectors == 0 || vector == 0 {
            return;
        }
        for (_, waker) in self.near() {
            waker.wake_those(|slot| vector_of_slot(slot, vectors) == vector);
        }
    }

    /// Wakes an endpoint of any peer.
    pub(crate) fn wake(&self, slot: GlobalSlot) {
        let endpoints = self.region.shape().endpoints;
        let member = slot.peer(endpoints);
        match self.near().find(|(peer, _)| *peer == member) {
            Some((_, waker)) => waker.wake(slot.local(endpoints)),
            None if self.doorbells.endpoint(member, slot.local(endpoints)) => {}
            None => self.send(member, &ring::wake(slot.0)),
        }
    }

    fn send(&self, member: u32, frame: &[u8]) {
        let _ = self.try_send(member, frame);
    }

    /// Sends a frame to a VM's port, if it has one. Gives false if there was no room for it.
    fn try_send(&self, member: u32, frame: &[u8]) -> bool {
        let link = self.ports().of(member);
        link.is_none_or(|link| rustix::net::send(&*link, frame, quiet()) != Err(Errno::AGAIN))
    }

    /// Wakes the waiters at a place of the region, in the peers that the bits name.
    pub(crate) fn ring(&self, peers: u64, place: u64) {
        for peer in (0..64).filter(|peer| peers & gate_bits::bit(*peer) != 0) {
            self.ring_peer(peer, place);
        }
    }

    /// As [`Router::ring`], for the bit of `peer`. The last bit stands for many peers, which are all rung.
    fn ring_peer(&self, peer: u32, place: u64) {
        let bit = gate_bits::bit(peer);
        for (_, waker) in self.near().filter(|(near, _)| gate_bits::bit(*near) == bit) {
            waker.ring(place);
        }
        for member in self.members().into_iter().filter(|member| gate_bits::bit(*member) == bit) {
            if !self.doorbells.gate(member, place) {
                self.send(member, &ring::ring(peer, place));
            }
        }
    }

    /// Wakes the sleepers of all peers but `peer` itself, whose own service does that: it, or a process of it, is gone.
    pub(crate) fn death(&self, peer: u32) {
        for (_, waker) in self.near().filter(|(near, _)| *near != peer) {
            waker.death();
        }
        for member in self.members().into_iter().filter(|member| *member != peer) {
            self.tell_of_death(member, peer);
        }
    }

    /// A VM's life is over, though the VM is there: wakes the sleepers of all peers, and its own as far as its device can.
    pub(crate) fn over(&self, peer: u32) {
        self.death(peer);
        self.doorbells.all_sleepers(peer);
    }

    /// The VMs that can be told something, by their ports or by their devices.
    fn members(&self) -> BTreeSet<u32> {
        let ports: BTreeSet<u32> = self.ports().members().collect();
        ports.into_iter().chain(self.doorbells.members()).collect()
    }

    fn tell_of_death(&self, member: u32, peer: u32) {
        if !self.doorbells.death(member) {
            self.send(member, &ring::death(peer));
        }
    }

    /// The same, for a process of the VM whose wake port `key` is.
    fn death_behind(&self, key: u64) {
        let member = self.ports().member(key);
        if let Some(member) = member {
            self.death(member);
            self.errands.sweep();
        }
    }

    /// Tells a VM that its entry in the membership table has been looked at, or has changed.
    pub(crate) fn tell(&self, member: u32) {
        self.send(member, &ring::peer(member, self.region.shape().uuid[0]));
    }

    /// Closes what dead processes had open, and wakes those that this lets go on.
    pub(crate) fn sweep(&self) {
        let undone = self.names.with(|r| {
            r.sweep();
            r.take_undone()
        });
        if undone {
            for (_, waker) in self.near() {
                waker.death();
            }
            for member in self.members() {
                self.tell_of_death(member, 0);
            }
        }
    }

    /// Has all services hear what their processes have said by now and notice all deaths, but for that of `asker`, which has done so;
    /// then closes what the dead had open, and calls `then`, here or on another thread.
    pub(crate) fn settle(&self, asker: u32, origin: Origin, then: Box<dyn FnOnce() + Send>) {
        let near = (0..).zip(self.settlers.get().into_iter().flatten()).filter(|(peer, _)| *peer != asker);
        let near: Vec<(u32, Settler)> = near.map(|(peer, settler)| (peer, settler.clone())).collect();
        let members: BTreeSet<u32> = self.ports().members().filter(|member| *member != asker).collect();
        let all = near.iter().map(|(peer, _)| *peer).chain(members.iter().copied()).collect();
        let (number, over) = match self.rounds.begin(origin, &all, Instant::now(), then) {
            Begun::Round(number, is_first) => {
                if is_first {
                    isthmus_attach::server::ring(&*self.clock);
                }
                (number, None)
            }
            Begun::Known => return,
            // No round has this number; those who were silent are heard again by it.
            Begun::Over(then) => (0, Some(then)),
        };
        for (peer, settler) in near {
            let router = self.clone();
            settler.settle(move || router.answered(peer, number));
        }
        for member in members {
            self.send(member, &ring::settle(number));
        }
        if let Some(then) = over {
            self.settled(then);
        }
    }

    fn settled(&self, then: Box<dyn FnOnce() + Send>) {
        self.sweep();
        then();
    }

    /// The service of a peer has done what was asked of it in a round.
    fn answered(&self, peer: u32, number: u32) {
        if let Some(then) = self.rounds.answered(peer, number) {
            self.settled(then);
        }
    }

    /// No answers come from a VM any more.
    fn lost(&self, member: u32) {
        for then in self.rounds.lost(member) {
            self.settled(then);
        }
    }

    /// Ends rounds that take too long, and asks again for those that may have lost something. Gives when to look again.
    fn look_at_rounds(&self) -> Option<Duration> {
        let due = self.rounds.due(Instant::now());
        for then in due.over {
            self.settled(then);
        }
        for (member, number) in due.again {
            self.send(member, &ring::settle(number));
        }
        due.next
    }

    /// Answers a VM's request about named objects, and tells the VM so.
    fn call(&self, member: u32) {
        let number = self.names.with(|r| r.hear(member));
        if let Some(number) = number {
            self.send(member, &ring::call(u32::try_from(number & 0xffff_ffff).unwrap_or(0)));
        }
    }
}

fn quiet() -> SendFlags {
    SendFlags::DONTWAIT | SendFlags::NOSIGNAL
}

/// What the relay is started with.
pub(crate) struct Config {
    /// Sockets, each with the number of the VM whose port connects there; `None` for that which all VMs share.
    pub sockets: Vec<(PathBuf, Option<u32>)>,
    /// Users whose QEMU may connect.
    pub allowed: Allowed,
    /// Mode of the sockets.
    pub mode: u32,
    /// Group of the sockets, if not the service's own.
    pub group: Option<u32>,
    /// Where wake-ups go.
    pub router: Router,
}

/// The running relay. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Wakes {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Wakes {
    /// Listens, and relays on a thread of its own.
    pub(crate) fn start(config: Config, observer: Observer) -> Result<Self> {
        let system = |action| move |source| Error::System { action, source };
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = Arc::new(stop.map_err(system("create an eventfd"))?);
        let door =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("create an epoll descriptor"))?;
        let (mut listeners, mut names) = (Vec::new(), Names::default());
        for (key, (path, _)) in (0_u64..).zip(&config.sockets) {
            let listener = socket::listen(path, SocketType::STREAM, config.mode, config.group)?;
            names.0.push(socket::Name::of(path));
            epoll::add(&door, &listener, EventData::new_u64(key), EventFlags::IN)
                .map_err(system("watch a descriptor"))?;
            listeners.push(listener);
        }
        let state = Relay {
            config,
            observer,
            door,
            _names: names,
            listeners,
            stop: Arc::clone(&stop),
            links: Vec::new(),
            next_key: 0,
            storm: Storm::default(),
            shut_until: None,
        };
        let thread = std::thread::Builder::new().name("isthmus-wakes".into()).spawn(move || state.run());
        let failed = |e: std::io::Error| Error::System {
            action: "start the thread that relays wake-ups",
            source: Errno::from_io_error(&e).unwrap_or(Errno::IO),
        };
        Ok(Self { stop, thread: Some(thread.map_err(failed)?) })
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        isthmus_attach::server::ring(&*self.stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sockets' names, which are removed with this value: also where one after them cannot be made.
#[derive(Debug, Default)]
pub(crate) struct Names(pub Vec<socket::Name>);

impl Drop for Names {
    fn drop(&mut self) {
        self.0.iter().for_each(socket::Name::remove);
    }
}

struct Link {
    /// No other connection has this number.
    key: u64,
    socket: Arc<OwnedFd>,
    /// The socket that it came to, as a position among the listeners.
    listener: usize,
    caller: Caller,
    /// Whether it was some member's port when it last said hello.
    is_known: bool,
    /// Whether it was reported that it is nobody's port.
    is_reported: bool,
    /// Received bytes that are not a whole frame yet.
    part: Vec<u8>,
    /// Of the steps of joining that it rings for.
    joins: Pace,
    /// Of the deaths that it tells of.
    deaths: Pace,
    /// Of the rounds that it asks for, and those that wait: with their numbers.
    rounds: Pace,
    asked: BTreeSet<u32>,
}

impl Link {
    /// Has its VM's entry in the table of members looked at.
    fn look_at(&self, router: &Router) {
        let member = router.ports().member(self.key);
        if let Some(member) = member {
            router.errands.look_at(member);
        }
    }

    /// Begins one round for all that its VM has asked for and that wait: each of its numbers is answered.
    fn begin_round(&mut self, router: &Router) {
        let member = router.ports().member(self.key);
        let numbers = std::mem::take(&mut self.asked);
        let Some(member) = member.filter(|_| !numbers.is_empty()) else { return };
        let (back, asked) = (router.clone(), numbers.clone());
        let then = move || asked.iter().for_each(|number| back.send(member, &ring::settled(*number)));
        router.settle(member, Some((member, numbers)), Box::new(then));
    }
}

struct Relay {
    config: Config,
    observer: Observer,
    /// Readable while any of the listeners is, so that there is one descriptor for all of them.
    door: OwnedFd,
    /// They go before the listeners are closed: after that they may be those of a service that has taken them over.
    _names: Names,
    listeners: Vec<OwnedFd>,
    stop: Arc<OwnedFd>,
    links: Vec<Link>,
    next_key: u64,
    storm: Storm,
    /// Nobody is let in before this: there was no descriptor.
    shut_until: Option<Instant>,
}

/// Rings of the host within a window.
#[derive(Debug, Default)]
struct Storm {
    since: Option<Instant>,
    count: u32,
}

impl Storm {
    /// There is one more. Gives whether there are too many.
    fn comes(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now - since > STORM_WINDOW) {
            (self.since, self.count) = (Some(now), 0);
        }
        self.count += 1;
        let is_too_many = self.count > STORM;
        if is_too_many {
            self.since = None;
        }
        is_too_many
    }
}

impl Relay {
    fn run(mut self) {
        isthmus_attach::server::be_urgent();
        loop {
            let sockets: Vec<_> = self.links.iter().map(|l| Arc::clone(&l.socket)).collect();
            self.shut_until = self.shut_until.filter(|until| Instant::now() < *until);
            let is_open = sockets.len() < MOST_LINKS && self.shut_until.is_none();
            let mut poll = vec![
                PollFd::new(&*self.stop, PollFlags::IN),
                PollFd::new(&*self.config.router.clock, PollFlags::IN),
                PollFd::new(&self.door, if is_open { PollFlags::IN } else { PollFlags::empty() }),
            ];
            poll.extend(sockets.iter().map(|s| PollFd::new(&**s, PollFlags::IN)));
            let vectors = self.config.router.doorbells.own().to_vec();
            poll.extend(vectors.iter().map(|vector| PollFd::new(&**vector, PollFlags::IN)));
            let rounds = self.config.router.look_at_rounds();
            let now = Instant::now();
            let paces = self.links.iter().flat_map(|link| [&link.joins, &link.deaths, &link.rounds]);
            let opens = self.shut_until.map(|until| until.saturating_duration_since(now));
            let due = paces.filter_map(|pace| pace.due_in(now)).chain(rounds).chain(opens).min();
            let timeout = due.and_then(|due| Timespec::try_from(due).ok());
            match rustix::event::poll(&mut poll, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            let ready: Vec<bool> = poll.iter().map(|p| !p.revents().is_empty()).collect();
            drop(poll);
            if ready[0] {
                return;
            }
            // A VM that rings without end leaves the others their turns.
            let is_storm =
                vectors.iter().enumerate().any(|(vector, _)| ready[FIXED + sockets.len() + vector])
                    && self.storm.comes(Instant::now());
            // First, since processes sleep until then.
            for (vector, fd) in (0..).zip(&vectors) {
                if ready[FIXED + sockets.len() + vector] {
                    // Every QEMU has this file, too, and could have it block.
                    let mut count = [0_u8; 8];
                    let flags = ReadWriteFlags::NOWAIT;
                    let read =
                        rustix::io::preadv2(&**fd, &mut [IoSliceMut::new(&mut count)], u64::MAX, flags);
                    if read == Err(Errno::OPNOTSUPP) {
                        // Before Linux 5.8.
                        let _ = rustix::io::read(&**fd, &mut count);
                    }
                    self.config.router.rung(u32::try_from(vector).unwrap_or(0));
                }
            }
            if is_storm {
                std::thread::sleep(STORM_PAUSE);
            }
            // From the last, since `end` moves the last link to the place of the one that ends. All of them before new ones, so
            // that a port that was plugged in anew does not meet its own former connection.
            for i in (0..sockets.len()).rev() {
                if ready[i + FIXED] && !self.receive(i) {
                    self.end(i);
                }
            }
            let now = Instant::now();
            for link in &mut self.links {
                if link.joins.is_due(now) {
                    link.look_at(&self.config.router);
                }
                if link.deaths.is_due(now) {
                    self.config.router.death_behind(link.key);
                }
                if link.rounds.is_due(now) {
                    link.begin_round(&self.config.router);
                }
            }
            if ready[1] {
                let _ = rustix::io::read(&*self.config.router.clock, &mut [0_u8; 8]);
            }
            if ready[2] {
                self.accept();
            }
        }
    }

    fn accept(&mut self) {
        let mut events = Vec::with_capacity(64);
        let at_once = Timespec::default();
        let _ = epoll::wait(&self.door, rustix::buffer::spare_capacity(&mut events), Some(&at_once));
        for event in &events {
            let Ok(listener) = usize::try_from(event.data.u64()) else { continue };
            self.accept_at(listener);
        }
    }

    fn accept_at(&mut self, listener: usize) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = rustix::net::accept_with(&self.listeners[listener], flags) else {
            // Perhaps out of descriptors: later, or the loop would spin. Those that are there have their turns.
            self.shut_until = Some(Instant::now() + SHUT);
            return;
        };
        let Ok(peer) = isthmus_attach::socket::caller(&socket) else { return };
        if self.config.allowed.lets_in(peer.uid) {
            let key = self.next_key;
            self.next_key += 1;
            self.links.push(Link {
                key,
                socket: Arc::new(socket),
                listener,
                caller: Caller {
                    vm: self.config.sockets[listener].1,
                    process: peer.pid.and_then(Process::with),
                },
                is_known: false,
                is_reported: false,
                part: Vec::new(),
                joins: Pace::of_joins(Instant::now()),
                deaths: Pace::of_deaths_behind(Instant::now()),
                rounds: Pace::of_rounds(Instant::now()),
                asked: BTreeSet::new(),
            });
        }
    }

    /// Handles what a link has received. Returns whether the link goes on.
    fn receive(&mut self, index: usize) -> bool {
        let Some(link) = self.links.get_mut(index) else { return false };
        let mut bytes = [0_u8; 512];
        match rustix::net::recv(&*link.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return false,
            Ok((count, _)) => link.part.extend_from_slice(&bytes[..count.min(512)]),
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        }
        let Ok(frames) = ring::take(&mut link.part) else { return false };
        let router = &self.config.router;
        for frame in frames {
            match frame {
                ring::Frame::Hello { rings } => {
                    let member = router.ports().claim(link.key, &link.caller, &link.socket);
                    link.is_known = member.is_some();
                    match member {
                        Some(member) => {
                            router.doorbells.said(member, rings);
                            // Each look takes the time of another thread, and finds all that was said before.
                            if link.joins.comes(Instant::now()) {
                                link.look_at(router);
                            }
                        }
                        None => {
                            let frame = ring::peer(ring::NOBODY, router.region.shape().uuid[0]);
                            let _ = rustix::net::send(&*link.socket, &frame, quiet());
                            if !std::mem::replace(&mut link.is_reported, true) {
                                let path = &self.config.sockets[link.listener].0;
                                let reason = stray(path, &link.caller);
                                (self.observer)(&Event::VmRefused { reason });
                            }
                        }
                    }
                }
                // Nothing else is heard from a port that is nobody's.
                _ if !link.is_known => {}
                ring::Frame::Wake { slot } => router.wake(GlobalSlot(slot)),
                ring::Frame::Ring { peer, place } => router.ring_peer(peer, place),
                // Whatever it says, it is this link's peer of which a process is gone.
                ring::Frame::Death { .. } => {
                    if link.deaths.comes(Instant::now()) {
                        router.death_behind(link.key);
                    }
                }
                ring::Frame::Call { .. } => {
                    let member = router.ports().member(link.key);
                    if let Some(member) = member {
                        router.call(member);
                    }
                }
                ring::Frame::Settle { number } => {
                    // What it asks for beyond these it asks for again.
                    if link.asked.len() < MOST_ASKED {
                        link.asked.insert(number);
                    }
                    if link.rounds.comes(Instant::now()) {
                        link.begin_round(router);
                    }
                }
                ring::Frame::Settled { number } => {
                    let member = router.ports().member(link.key);
                    if let Some(member) = member {
                        router.answered(member, number);
                    }
                }
                // Only the host service says that.
                ring::Frame::Peer { .. } | ring::Frame::Known { .. } => {}
            }
        }
        true
    }

    fn end(&mut self, index: usize) {
        let link = self.links.swap_remove(index);
        let router = &self.config.router;
        let member = router.ports().member(link.key);
        router.ports().closed(link.key);
        if let Some(member) = member {
            router.lost(member);
        }
    }
}

/// Why a wake port is nobody's, and what helps.
fn stray(path: &Path, caller: &Caller) -> String {
    let path = path.display();
    let Caller { vm, process } = caller;
    match (vm, process) {
        (Some(_), _) => format!(
            "its wake port is connected at {path}, and its device is not at the socket there whose name has ivshmem in place of wake"
        ),
        (None, Some(process)) => format!(
            "its wake port at {path} is that of process {}, which has no device at any ivshmem socket here; connect device and port to the VM's own sockets, as `isthmus vm device --name NAME` prints them",
            process.number()
        ),
        (None, None) => format!(
            "its wake port at {path} is that of a process that cannot be seen from here, so it is not known which VM that is; connect device and port to the VM's own sockets, as `isthmus vm device --name NAME` prints them"
        ),
    }
}
