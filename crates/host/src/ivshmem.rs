//! The server that QEMU's ivshmem-doorbell devices connect to.
//!
//! Source: QEMU, `docs/specs/ivshmem-spec.txt`, "Client-Server protocol". It is one-way: the server sends messages of
//! eight bytes, a little-endian number, with at most one descriptor each; QEMU sends nothing, and its end of file is
//! the VM's end. Four habits of QEMU shape this server:
//!
//! 1. A client that got half a greeting spins for ever, and a silent server freezes its VM. So the whole greeting is
//!    queued at once after accept, and a client that cannot be let in is sent a protocol version that it refuses.
//! 2. An id that is used again makes QEMU write to freed memory. So the ids that a QEMU is told only grow.
//! 3. A second greeting on one connection would be taken for messages about other VMs. So a greeting is sent once.
//! 4. QEMU may not read for a while (it is stopped, or loading). So nothing blocks: what does not fit is queued.
//!
//! An id means something in one QEMU only. Each is told that its own is 0, since QEMU lets a device with `master=on` migrate,
//! and refuses any other id for it; the others are numbered from 1 in its view, the host first. So an id says nothing
//! about who a VM is: that is known by its wake port (`ports`). An agent whose VM rings by the device is told which id is whose.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use isthmus_attach::pace::{OF_STRANGER, OF_USER, Refusals};
use isthmus_attach::server::{Allowed, ring};
use isthmus_attach::socket;
use isthmus_region::dax::Head;
use isthmus_region::error::with_causes;
use isthmus_region::mapping::Section;
use isthmus_region::room::limit_told;
use isthmus_region::shared_by_threads::Flag;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::doorbells::eventfd;
use crate::errands::Errands;
use crate::error::{Error, Result};
use crate::members::{Change, Members};
use crate::ports::{Caller, Process};
use crate::service::{Event, Observer};
use crate::wakes::{Names, Router};

/// Version of the protocol.
const PROTOCOL: i64 = 0;
/// A version that no QEMU speaks: QEMU gives up with a message instead of waiting.
const REFUSAL: i64 = -1;
/// The message that brings the shared memory.
const SHARED_MEMORY: i64 = -1;
/// The id that each VM has in its own view.
const OWN_ID: i64 = 0;
/// The first id that a VM is told for another, which is the host.
const FIRST_ID: u16 = 1;
/// Messages that a client may leave unread; more than even the largest region needs at once.
const MOST_QUEUED: usize = 1 << 17;

/// What the server is started with.
pub(crate) struct Config {
    /// Sockets, each with the number of the VM that connects there; `None` for that which all VMs share.
    pub sockets: Vec<(PathBuf, Option<u32>)>,
    /// Users whose QEMU may connect.
    pub allowed: Allowed,
    /// Mode of the sockets.
    pub mode: u32,
    /// Group of the sockets, if not the service's own.
    pub group: Option<u32>,
    /// The memory of each member's device, by its number.
    pub memory: Vec<Arc<OwnedFd>>,
    /// What a memory device begins with, where VMs have the region as one.
    pub head: Option<Arc<Head>>,
    /// The memory of devices that are for doorbells alone, which says whose they are.
    pub bells: Option<Section>,
    /// Interrupt vectors of each device.
    pub vectors: u16,
    /// Tells VMs of their joining and end, and rings all peers when a VM is gone.
    pub router: Router,
    /// What this server's thread is asked to do.
    pub errands: Errands,
}

/// A running server. Dropping it ends it; VMs go on, but no longer learn of each other's joining and end.
#[derive(Debug)]
pub struct Server {
    errands: Errands,
    stop: Arc<Flag>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Clone)]
struct Message {
    value: i64,
    fd: Option<Arc<OwnedFd>>,
}

impl Message {
    fn plain(value: i64) -> Self {
        Self { value, fd: None }
    }

    fn with(value: i64, fd: &Arc<OwnedFd>) -> Self {
        Self { value, fd: Some(Arc::clone(fd)) }
    }
}

/// A VM's connection.
#[derive(Debug)]
struct Link {
    socket: OwnedFd,
    member: u32,
    vectors: Vec<Arc<OwnedFd>>,
    queue: VecDeque<Message>,
    /// The ids of other VMs in this one's view, by their keys.
    ids: HashMap<u64, u16>,
    /// The next id in this one's view; none once all are used.
    next_id: Option<u16>,
    /// Whether its agent is still to be told of ids, since QEMU has not been told of all.
    is_untold: bool,
}

impl Link {
    /// Queues the greeting, up to the host; other VMs and the VM's own vectors follow.
    fn new(socket: OwnedFd, member: u32, vectors: Vec<Arc<OwnedFd>>) -> Self {
        let queue = VecDeque::from([Message::plain(PROTOCOL), Message::plain(OWN_ID)]);
        Self {
            socket,
            member,
            vectors,
            queue,
            ids: HashMap::new(),
            next_id: Some(FIRST_ID),
            is_untold: false,
        }
    }

    /// Gives the next id in this VM's view. A VM that has seen 65535 others learns of no more.
    fn id(&mut self) -> Option<u16> {
        let id = self.next_id?;
        self.next_id = id.checked_add(1);
        Some(id)
    }

    /// Queues what announces another VM to this one.
    fn announce(&mut self, key: u64, vectors: &[Arc<OwnedFd>]) {
        if let Some(id) = self.id() {
            self.ids.insert(key, id);
            self.queue.extend(vectors.iter().map(|fd| Message::with(id.into(), fd)));
        }
    }

    /// Sends what fits. Returns whether the connection is still good.
    fn flush(&mut self) -> bool {
        while let Some(message) = self.queue.front() {
            let fds: Vec<_> = message.fd.iter().map(|fd| fd.as_fd()).collect();
            match socket::send(&self.socket, &message.value.to_le_bytes(), &fds, SendFlags::DONTWAIT) {
                Ok(()) => {
                    self.queue.pop_front();
                }
                // Too many descriptors in flight, too, ends when the client reads.
                Err(Errno::AGAIN | Errno::TOOMANYREFS | Errno::NOBUFS) => {
                    return self.queue.len() <= MOST_QUEUED;
                }
                Err(_) => return false,
            }
        }
        true
    }
}

const BELL: u64 = 0;
const FIRST_LISTENER: u64 = 1;
/// Keys of connections are never used again.
const FIRST_LINK: u64 = 1 << 32;

struct Loop {
    config: Config,
    members: Arc<Mutex<Members>>,
    observer: Observer,
    epoll: OwnedFd,
    stop: Arc<Flag>,
    /// They go before the listeners are closed, so that nothing connects to a server that has ended, and what another service has
    /// made by then stays.
    _names: Names,
    listeners: Vec<OwnedFd>,
    links: HashMap<u64, Link>,
    next_key: u64,
    unwatched_until: Option<Instant>,
    /// Those that were told.
    refusals: Refusals,
    /// Members of which it was told in this life that their entries are no good.
    troubled: BTreeSet<u32>,
}

impl Server {
    /// Listens and serves, on a thread of its own.
    ///
    /// # Errors
    /// [`Error::Attach`] for a socket that cannot be made; [`Error::System`].
    pub(crate) fn start(config: Config, members: Arc<Mutex<Members>>, observer: Observer) -> Result<Self> {
        let system = |action| move |source| Error::System { action, source };
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("create an epoll descriptor"))?;
        let watch = |fd: &OwnedFd, key| {
            epoll::add(&epoll, fd, EventData::new_u64(key), EventFlags::IN)
                .map_err(system("watch a descriptor"))
        };
        let errands = config.errands.clone();
        watch(errands.bell(), BELL)?;
        let (mut listeners, mut names) = (Vec::new(), Names::default());
        for (key, (path, _)) in (FIRST_LISTENER..).zip(&config.sockets) {
            let listener = socket::listen(path, SocketType::STREAM, config.mode, config.group)?;
            names.0.push(socket::Name::of(path));
            watch(&listener, key)?;
            listeners.push(listener);
        }
        let stop = Arc::new(Flag::default());
        let state = Loop {
            config,
            members,
            observer,
            epoll,
            stop: Arc::clone(&stop),
            _names: names,
            listeners,
            links: HashMap::new(),
            next_key: FIRST_LINK,
            unwatched_until: None,
            refusals: Refusals::default(),
            troubled: BTreeSet::new(),
        };
        let thread = std::thread::Builder::new()
            .name("isthmus-ivshmem".into())
            .spawn(move || state.run())
            .map_err(|e| Error::System {
                action: "start the ivshmem server's thread",
                source: Errno::from_io_error(&e).unwrap_or(Errno::IO),
            })?;
        Ok(Self { errands, stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.set();
        ring(self.errands.bell());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Loop {
    fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        while !self.stop.is_set() {
            events.clear();
            let timeout = self.timeout().and_then(|d| Timespec::try_from(d).ok());
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => {
                    self.tell(&Event::Trouble { reason: format!("waiting for VMs: {e}") });
                    break;
                }
            }
            for event in &events {
                match event.data.u64() {
                    BELL => {
                        let mut count = [0_u8; 8];
                        let _ = rustix::io::read(self.config.errands.bell(), &mut count);
                    }
                    key if key < FIRST_LINK => self.accept(key),
                    key => self.receive(key),
                }
            }
            self.run_errands();
            self.sweep();
        }
    }

    fn tell(&self, event: &Event) {
        (self.observer)(event);
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room in a socket is an event; free descriptors, in flight or of our own, are not, so they are polled for.
    fn timeout(&self) -> Option<Duration> {
        let queued =
            self.links.values().any(|l| !l.queue.is_empty() || l.is_untold) || self.unwatched_until.is_some();
        let told = self.refusals.due_in(Instant::now());
        queued.then_some(Duration::from_millis(100)).into_iter().chain(told).min()
    }

    /// Looks at the members that have rung, reports their changes, and answers.
    fn run_errands(&mut self) {
        let (members, sweep) = self.config.errands.take();
        for index in members {
            let change = self.members().look_at(index);
            match change {
                Ok(Some(change)) => {
                    let name = self.members().name(index).to_owned();
                    if !matches!(change, Change::Impostor(_)) {
                        self.troubled.remove(&index);
                    }
                    match change {
                        // All processes of its life before are dead for others, and let go of the region themselves.
                        Change::Over(_) => self.config.router.over(index),
                        Change::Active(_) => self.tell(&Event::VmReady { name }),
                        Change::Again(_) => self.tell(&Event::VmAgain { name }),
                        Change::Impostor(_) => self.tell(&Event::VmRefused {
                            reason: format!("'{name}' says that it is another member, or none"),
                        }),
                    }
                }
                Ok(None) => {}
                // A VM that can write the table can have it so each time.
                Err(_) if !self.troubled.insert(index) => {}
                Err(e) => {
                    // Its life may have ended before that.
                    self.config.router.death(index);
                    self.tell(&Event::Trouble {
                        reason: format!("checking the members: {}", with_causes(&e)),
                    });
                }
            }
            self.config.router.tell(index);
            if let Some(link) = self.links.values_mut().find(|link| link.member == index) {
                link.is_untold |= !link.queue.is_empty();
            }
            self.introduce(index);
        }
        if sweep {
            self.config.router.sweep();
        }
    }

    /// Tells a VM by which ids its device knows the others, if it wants to know; later, if its port has no room.
    fn introduce(&mut self, member: u32) {
        let router = &self.config.router;
        let Some((key, link)) = self.links.iter().find(|(_, link)| link.member == member && !link.is_untold)
        else {
            return;
        };
        let key = *key;
        let of_vm = |(key, id): (&u64, &u16)| self.links.get(key).map(|other| (other.member, *id));
        let mut all =
            router.own_peers().map(|peer| (peer, FIRST_ID)).chain(link.ids.iter().filter_map(of_vm));
        if !all.all(|(other, id)| router.known(member, other, Some(id)))
            && let Some(link) = self.links.get_mut(&key)
        {
            link.is_untold = true;
        }
    }

    fn accept(&mut self, key: u64) {
        let Some(number) = key.checked_sub(FIRST_LISTENER).and_then(|k| usize::try_from(k).ok()) else {
            return;
        };
        let Some(listener) = self.listeners.get(number) else { return };
        let socket = match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            Err(e) => {
                self.tell(&Event::Trouble { reason: format!("cannot accept a VM: {e}{}", limit_told(&e)) });
                for listener in &self.listeners {
                    let _ = epoll::delete(&self.epoll, listener);
                }
                self.unwatched_until = Some(Instant::now() + Duration::from_secs(1));
                return;
            }
        };
        let peer = match socket::caller(&socket) {
            Ok(peer) => peer,
            Err(source) => {
                let e = Error::System { action: "learn whose QEMU connects", source };
                return self.tell(&Event::VmRefused { reason: with_causes(&e) });
            }
        };
        // Before anything that takes time, or that others notice.
        if !self.config.allowed.lets_in(peer.uid) {
            let _ = socket::send(&socket, &REFUSAL.to_le_bytes(), &[], SendFlags::DONTWAIT);
            let reason = format!("user {} may not connect a VM to this region", peer.uid);
            return self.tell_refused(peer.uid, OF_STRANGER, reason);
        }
        let caller = Caller { vm: self.config.sockets[number].1, process: peer.pid.and_then(Process::with) };
        if let Err(reason) = self.greet(socket, caller) {
            self.tell_refused(peer.uid, OF_USER, reason);
        }
    }

    /// Tells that a VM was turned away, unless a user's were so often.
    fn tell_refused(&mut self, user: u32, most: u32, reason: String) {
        if self.refusals.comes(user, most, Instant::now()) {
            self.tell(&Event::VmRefused { reason });
        }
    }

    /// Lets a VM of an allowed user in, or tells QEMU to give up and gives the reason.
    fn greet(&mut self, socket: OwnedFd, caller: Caller) -> std::result::Result<(), String> {
        // A VM that is restarted at once may connect before the end of its old connection was read.
        let keys: Vec<u64> = self.links.keys().copied().collect();
        keys.into_iter().for_each(|key| self.receive(key));
        let admitted = self.admit(caller);
        let (member, vectors) = match admitted {
            Ok(admitted) => admitted,
            Err(reason) => {
                let _ = socket::send(&socket, &REFUSAL.to_le_bytes(), &[], SendFlags::DONTWAIT);
                return Err(reason);
            }
        };
        if let Some(head) = &self.config.head {
            // Whatever VMs have written there since, this one is to find its memory device.
            let _ = head.renew();
        }
        if let Some(bells) = &self.config.bells {
            let _ = isthmus_region::dax::mark_bells(bells, self.members().region().shape().uuid);
        }
        self.troubled.remove(&member);
        let mut link = Link::new(socket, member, vectors.clone());
        let memory = usize::try_from(member).ok().and_then(|member| self.config.memory.get(member));
        link.queue.extend(memory.map(|memory| Message::with(SHARED_MEMORY, memory)));
        // The host is the first, so that it needs no place among `ids`.
        if let Some(id) = link.id() {
            let own = self.config.router.doorbells().own();
            link.queue.extend(own.iter().map(|fd| Message::with(id.into(), fd)));
        }
        for (key, other) in &self.links {
            link.announce(*key, &other.vectors);
        }
        link.queue.extend(vectors.iter().map(|fd| Message::with(OWN_ID, fd)));
        let key = self.next_key;
        self.next_key += 1;
        let name = self.members().name(member).to_owned();
        self.tell(&Event::VmConnected { name, member });
        let watched = epoll::add(
            &self.epoll,
            &link.socket,
            EventData::new_u64(key),
            EventFlags::IN | EventFlags::RDHUP,
        );
        let stands = link.flush();
        self.links.insert(key, link);
        let keys: Vec<u64> = self.links.keys().copied().filter(|k| *k != key).collect();
        for other in keys {
            if let Some(link) = self.links.get_mut(&other) {
                link.announce(key, &vectors);
                link.is_untold = true;
                self.flush(other);
            }
        }
        if let Err(e) = watched {
            let reason = format!("cannot watch a VM's connection, which ends: {e}{}", limit_told(&e));
            self.tell(&Event::Trouble { reason });
            self.end(key);
        } else if stands {
            self.watch_for_room(key);
        } else {
            self.end(key);
        }
        Ok(())
    }

    /// Makes a VM a member. Returns its number and its eventfds.
    fn admit(&mut self, caller: Caller) -> std::result::Result<(u32, Vec<Arc<OwnedFd>>), String> {
        let told = |e: Error| with_causes(&e) + &limit_told(&e);
        let vectors: Result<Vec<_>> = (0..self.config.vectors).map(|_| eventfd().map(Arc::new)).collect();
        let vectors = vectors.map_err(told)?;
        let member = self.members().add_vm(&caller).map_err(told)?;
        // Before QEMU has its answer, after which an agent may speak.
        self.config.router.plugged(member, caller, vectors.clone());
        Ok((member, vectors))
    }

    /// Sends a VM what is queued for it, as far as it fits.
    fn flush(&mut self, key: u64) {
        let Some(link) = self.links.get_mut(&key) else { return };
        if link.flush() {
            self.watch_for_room(key);
            self.tell_ids(key);
        } else {
            self.end(key);
        }
    }

    /// Tells an agent of ids that QEMU has been told of by now.
    fn tell_ids(&mut self, key: u64) {
        let Some(link) = self.links.get_mut(&key).filter(|link| link.queue.is_empty()) else { return };
        if std::mem::take(&mut link.is_untold) {
            let member = link.member;
            self.introduce(member);
        }
    }

    /// Watches a socket for room exactly while messages wait for it.
    fn watch_for_room(&self, key: u64) {
        let Some(link) = self.links.get(&key) else { return };
        let mut flags = EventFlags::IN | EventFlags::RDHUP;
        if !link.queue.is_empty() {
            flags |= EventFlags::OUT;
        }
        let _ = epoll::modify(&self.epoll, &link.socket, EventData::new_u64(key), flags);
    }

    fn receive(&mut self, key: u64) {
        let Some(link) = self.links.get_mut(&key) else { return };
        // QEMU never sends anything: bytes, an end of file or an error end the connection.
        let ended = !matches!(socket::receive(&link.socket, RecvFlags::DONTWAIT), Err(Errno::AGAIN));
        if ended || !link.flush() {
            return self.end(key);
        }
        self.watch_for_room(key);
        self.tell_ids(key);
    }

    /// Ends a VM's membership: published first, then announced to the other VMs.
    fn end(&mut self, key: u64) {
        let Some(link) = self.links.remove(&key) else { return };
        let gone = link.member;
        let removed = self.members().remove_vm(link.member);
        let name = self.members().name(link.member).to_owned();
        let _ = epoll::delete(&self.epoll, &link.socket);
        if let Err(e) = removed {
            self.tell(&Event::Trouble {
                reason: format!("ending the membership of VM '{name}': {}", with_causes(&e)),
            });
        }
        // Its processes cannot finish what others wait for.
        self.config.router.death(link.member);
        self.config.router.sweep();
        self.config.router.unplugged(link.member);
        self.tell(&Event::VmGone { name, member: link.member });
        let keys: Vec<u64> = self.links.keys().copied().collect();
        for other in keys {
            if let Some(link) = self.links.get_mut(&other)
                && let Some(id) = link.ids.remove(&key)
            {
                link.queue.push_back(Message::plain(id.into()));
                // One that is gone need not be rung; of the next one in its place the VM is told.
                let _ = self.config.router.known(link.member, gone, None);
            }
            self.flush(other);
        }
    }

    /// Tries again to send what did not fit, and watches the listeners again.
    fn sweep(&mut self) {
        for reason in self.refusals.due(Instant::now()) {
            self.tell(&Event::Trouble { reason: format!("VMs of {reason}") });
        }
        let waiting: Vec<u64> =
            self.links.iter().filter(|(_, l)| !l.queue.is_empty()).map(|(key, _)| *key).collect();
        for key in waiting {
            self.flush(key);
        }
        let untold: Vec<u64> = self.links.iter().filter(|(_, l)| l.is_untold).map(|(key, _)| *key).collect();
        for key in untold {
            self.tell_ids(key);
        }
        if self.unwatched_until.is_some_and(|until| Instant::now() >= until) {
            self.unwatched_until = None;
            for (key, listener) in (FIRST_LISTENER..).zip(&self.listeners) {
                let _ = epoll::add(&self.epoll, listener, EventData::new_u64(key), EventFlags::IN);
            }
        }
    }
}
