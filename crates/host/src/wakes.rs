//! The relay of wake-ups between the host and its VMs.
//!
//! A message between two peers needs no service, but a receiver that sleeps in a VM has to be woken by its agent. So
//! each VM has a virtio-serial port for wake-ups, whose other end QEMU connects to one socket here. It carries frames
//! of eight bytes in both directions (`docs/attach-protocol.md`, *Wake-ups between peers*).
//!
//! Nothing depends on a wake-up, since every sleep has a time limit. So nothing here blocks, and what does not fit
//! into a socket is dropped. For the same reason a VM is believed when it says which one it is: all that a lie can do
//! is to take another VM's wake-ups, and to wake others for nothing.
//!
//! A VM also rings by its port for each step of its joining, and is rung once its entry in the membership table has
//! been looked at or has changed. The words in the region are the truth; an agent that gets no answer rings again.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use isthmus_attach::pace::Pace;
use isthmus_attach::server::{Allowed, Waker};
use isthmus_attach::{ring, socket};
use isthmus_region::format::GlobalSlot;
use isthmus_region::gate_bits;
use isthmus_region::life::State;
use isthmus_region::membership::Region;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::errands::Errands;
use crate::error::{Error, Result};
use crate::names;

/// Connections at once; each VM has one.
const MOST_LINKS: usize = 2048;

type Routes = HashMap<u32, Arc<OwnedFd>>;

/// Where wake-ups go.
#[derive(Clone)]
pub(crate) struct Router {
    region: Region,
    /// What wakes the host's own processes, by peer: one, unless they are peers of their own.
    wakers: Arc<OnceLock<Vec<Waker>>>,
    /// Connections to VMs, by member.
    routes: Arc<Mutex<Routes>>,
    /// Answers the VMs' requests about named objects.
    names: names::Shared,
    /// For what may block.
    errands: Errands,
}

impl Router {
    pub(crate) fn new(region: Region, names: names::Shared, errands: Errands) -> Self {
        Self { region, wakers: Arc::default(), routes: Arc::default(), names, errands }
    }

    /// Sets what wakes the host's own processes, by peer.
    pub(crate) fn set_wakers(&self, wakers: Vec<Waker>) {
        let _ = self.wakers.set(wakers);
    }

    /// The host's own peers, each with what wakes its processes.
    fn near(&self) -> impl Iterator<Item = (u32, &Waker)> {
        (0..).zip(self.wakers.get().into_iter().flatten())
    }

    fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes an endpoint of any peer.
    pub(crate) fn wake(&self, slot: GlobalSlot) {
        let endpoints = self.region.shape().endpoints;
        let member = slot.peer(endpoints);
        match self.near().find(|(peer, _)| *peer == member) {
            Some((_, waker)) => waker.wake(slot.local(endpoints)),
            None => self.send(member, &ring::wake(slot.0)),
        }
    }

    fn send(&self, member: u32, frame: &[u8]) {
        let link = self.routes().get(&member).cloned();
        if let Some(link) = link {
            let _ = rustix::net::send(&*link, frame, quiet());
        }
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
        let members: Vec<u32> = self.routes().keys().copied().filter(|m| gate_bits::bit(*m) == bit).collect();
        for member in members {
            self.send(member, &ring::ring(peer, place));
        }
    }

    /// Wakes the sleepers of all peers but `peer` itself, whose own service does that: it, or a process of it, is gone.
    pub(crate) fn death(&self, peer: u32) {
        for (_, waker) in self.near().filter(|(near, _)| *near != peer) {
            waker.death();
        }
        let members: Vec<u32> = self.routes().keys().copied().filter(|member| *member != peer).collect();
        for member in members {
            self.send(member, &ring::death(peer));
        }
    }

    /// The same, for a process of a VM.
    fn death_in(&self, member: u32) {
        self.death(member);
        self.errands.sweep();
    }

    /// Tells a VM that its entry in the membership table has been looked at, or has changed.
    pub(crate) fn tell(&self, member: u32) {
        self.send(member, &ring::peer(member, self.region.shape().uuid[0]));
    }

    /// Closes what dead processes had open.
    pub(crate) fn sweep(&self) {
        self.names.with(names::Registry::sweep);
    }

    /// Answers a VM's request about named objects, and tells the VM so.
    fn call(&self, member: u32) {
        let number = self.names.with(|r| r.hear(member));
        if let Some(number) = number {
            self.send(member, &ring::call(u32::try_from(number & 0xffff_ffff).unwrap_or(0)));
        }
    }

    /// The member with an ivshmem id.
    fn member(&self, id: u32) -> Option<u32> {
        let lives = |state| matches!(state, State::Joining | State::Active);
        self.region.peers().iter().find(|p| p.ivshmem_id == Some(id) && lives(p.life.state)).map(|p| p.index)
    }
}

fn quiet() -> SendFlags {
    SendFlags::DONTWAIT | SendFlags::NOSIGNAL
}

/// The running relay. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Wakes {
    path: PathBuf,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Wakes {
    /// Listens at `path`.
    pub(crate) fn start(
        path: &Path,
        mode: u32,
        group: Option<u32>,
        allowed: Allowed,
        router: Router,
    ) -> Result<Self> {
        let system = |action| move |source| Error::System { action, source };
        let listener = socket::listen(path, SocketType::STREAM, mode, group)?;
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = Arc::new(stop.map_err(system("create an eventfd"))?);
        let state = Relay { listener, stop: Arc::clone(&stop), allowed, router, links: Vec::new() };
        let thread = std::thread::Builder::new().name("isthmus-wakes".into()).spawn(move || state.run());
        let failed = |e: std::io::Error| Error::System {
            action: "start the thread that relays wake-ups",
            source: Errno::from_io_error(&e).unwrap_or(Errno::IO),
        };
        Ok(Self { path: path.to_path_buf(), stop, thread: Some(thread.map_err(failed)?) })
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        isthmus_attach::server::ring(&*self.stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = rustix::fs::unlink(&self.path);
    }
}

struct Link {
    socket: Arc<OwnedFd>,
    member: Option<u32>,
    /// Received bytes that are not a whole frame yet.
    part: Vec<u8>,
    /// Of the deaths that it tells of.
    pace: Pace,
}

struct Relay {
    listener: OwnedFd,
    stop: Arc<OwnedFd>,
    allowed: Allowed,
    router: Router,
    links: Vec<Link>,
}

impl Relay {
    fn run(mut self) {
        isthmus_attach::server::be_urgent();
        loop {
            let sockets: Vec<_> = self.links.iter().map(|l| Arc::clone(&l.socket)).collect();
            let mut poll = vec![
                PollFd::new(&*self.stop, PollFlags::IN),
                PollFd::new(
                    &self.listener,
                    if sockets.len() < MOST_LINKS { PollFlags::IN } else { PollFlags::empty() },
                ),
            ];
            poll.extend(sockets.iter().map(|s| PollFd::new(&**s, PollFlags::IN)));
            let now = Instant::now();
            let due = self.links.iter().filter_map(|link| link.pace.due_in(now)).min();
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
            // From the last, since `end` moves the last link to the place of the one that ends.
            for i in (0..sockets.len()).rev() {
                if ready[i + 2] && !self.receive(i) {
                    self.end(i);
                }
            }
            let now = Instant::now();
            for link in &mut self.links {
                if link.pace.is_due(now)
                    && let Some(member) = link.member
                {
                    self.router.death_in(member);
                }
            }
            if ready[1] {
                self.accept();
            }
        }
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = rustix::net::accept_with(&self.listener, flags) else {
            // Perhaps out of descriptors: pause, or the loop would spin.
            return std::thread::sleep(std::time::Duration::from_millis(20));
        };
        let uid = rustix::net::sockopt::socket_peercred(&socket).map(|peer| peer.uid.as_raw());
        if uid.is_ok_and(|uid| self.allowed.lets_in(uid)) {
            self.links.push(Link {
                socket: Arc::new(socket),
                member: None,
                part: Vec::new(),
                pace: Pace::new(Instant::now()),
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
        for frame in frames {
            match frame {
                ring::Frame::Hello { id } => {
                    let member = self.router.member(id);
                    link.member = member;
                    if let Some(member) = member {
                        self.router.routes().insert(member, Arc::clone(&link.socket));
                        self.router.errands.look_at(member);
                    }
                }
                ring::Frame::Wake { slot } => self.router.wake(GlobalSlot(slot)),
                ring::Frame::Ring { peer, place } => self.router.ring_peer(peer, place),
                // Whatever it says, it is this link's peer of which a process is gone.
                ring::Frame::Death { .. } => {
                    if let Some(member) = link.member
                        && link.pace.comes(Instant::now())
                    {
                        self.router.death_in(member);
                    }
                }
                ring::Frame::Call { .. } => {
                    if let Some(member) = link.member {
                        self.router.call(member);
                    }
                }
                // Only the host service says that.
                ring::Frame::Peer { .. } => {}
            }
        }
        true
    }

    fn end(&mut self, index: usize) {
        let link = self.links.swap_remove(index);
        // Under whichever member it has registered.
        self.router.routes().retain(|_, s| !Arc::ptr_eq(s, &link.socket));
    }
}
