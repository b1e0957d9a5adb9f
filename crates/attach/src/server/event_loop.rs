//! The server's thread: waits for clients, orders and deaths; accepts connections; takes back the areas of the dead.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use isthmus_region::directory;
use isthmus_region::party::Party;
use isthmus_region::room::limit_told;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType};

use super::client::{AT_ONCE, Client, Lingering, Undecided, is_dead, refuse};
use super::{Config, Ending, Event, Newcomer, Observer, Order, Settling, Wakeup, Who, eventfd};
use crate::bells::Bells;
use crate::error::{Error, Result};
use crate::pace::{OF_STRANGER, OF_USER, Pace, Refusals};
use crate::protocol::{Code, Request};
use crate::socket::{self, Name};

/// How often to look at what is to be tried again.
const TICK: Duration = Duration::from_millis(250);
/// How often to say that there are no descriptors for more processes.
pub(super) const TOLD: Duration = Duration::from_secs(60);
/// How long a client may take from connecting to its `Hello`.
const GREETING: Duration = Duration::from_secs(10);

/// Frames of one process that are heard in one go: more than its socket holds (some 280 of them).
const MOST_AT_ONCE: u32 = 1024;

const LISTENER: u64 = 0;
const BELL: u64 = 1;
/// A client's key is even for its socket, the next number for its pidfd; keys are never used again.
const FIRST_CLIENT: u64 = 2;

pub(super) struct Loop {
    pub(super) config: Config,
    pub(super) writer: directory::Writer,
    observer: Observer,
    pub(super) epoll: OwnedFd,
    listener: OwnedFd,
    name: Name,
    pub(super) bell: Arc<OwnedFd>,
    pub(super) orders: mpsc::Sender<Order>,
    inbox: mpsc::Receiver<Order>,
    pub(super) bells: Arc<Bells>,
    pub(super) clients: HashMap<u64, Client>,
    /// Processes that live on after their attachment, by area. They may still write there, so the memory is given to no other
    /// process before they are dead, or have executed another program.
    pub(super) lingering: HashMap<u32, Lingering>,
    /// Those of them whose connections ended a moment ago, and that may be dying.
    pub(super) undecided: Vec<Undecided>,
    /// Processes whose areas have not been taken back yet, by area.
    pub(super) parties: HashMap<u32, Party>,
    next: u64,
    /// Until when the listener is not watched, because no descriptor was left for a connection.
    unwatched_until: Option<Instant>,
    /// Until when that is not told again.
    told_until: Option<Instant>,
    /// Until when it is not told again that descriptors cannot be sent.
    pub(super) short_until: Option<Instant>,
    /// Connections that have ended and whose answers were not read yet, each with its user.
    pub(super) unread: Vec<(u32, OwnedFd)>,
    /// When to look again whether areas of the dead are still held.
    held_next: Instant,
    /// Of the rings for deaths.
    pace: Pace,
    /// Those that were told.
    refusals: Refusals,
    /// Clients that are not heard for now ([`Loop::let_go_on`]).
    pub(super) held_up: BTreeSet<u64>,
    /// Until when it looks for frames without sleeping.
    pub(super) awake_until: Option<Instant>,
    /// Whether all that was said by now is being heard.
    is_settling: bool,
}

impl Loop {
    /// Listens at the socket that `config` names.
    pub(super) fn new(
        config: Config,
        writer: directory::Writer,
        observer: Observer,
        orders: mpsc::Sender<Order>,
        inbox: mpsc::Receiver<Order>,
    ) -> Result<Self> {
        let listener = socket::listen(&config.path, SocketType::SEQPACKET, config.mode, config.group)?;
        let name = Name::of(&config.path);
        let bell = eventfd()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|source| Error::System { action: "create an epoll descriptor", source })?;
        let watch = |fd: &OwnedFd, key| {
            epoll::add(&epoll, fd, EventData::new_u64(key), EventFlags::IN)
                .map_err(|source| Error::System { action: "watch a descriptor", source })
        };
        watch(&listener, LISTENER)?;
        watch(&bell, BELL)?;
        let bells = Arc::new(Bells::new(&writer, config.driver.clone()));
        Ok(Self {
            config,
            writer,
            observer,
            epoll,
            listener,
            name,
            bell: Arc::new(bell),
            orders,
            inbox,
            bells,
            clients: HashMap::new(),
            lingering: HashMap::new(),
            undecided: Vec::new(),
            parties: HashMap::new(),
            next: FIRST_CLIENT,
            unwatched_until: None,
            told_until: None,
            short_until: None,
            unread: Vec::new(),
            held_next: Instant::now(),
            pace: Pace::of_own_deaths(Instant::now()),
            refusals: Refusals::default(),
            held_up: BTreeSet::new(),
            awake_until: None,
            is_settling: false,
        })
    }

    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let timeout = self.timeout().and_then(|limit| Timespec::try_from(limit).ok());
            let timeout = if self.is_awake() { Some(AT_ONCE) } else { timeout };
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => {
                    return self.tell(&Event::Trouble { reason: format!("waiting for clients: {e}") });
                }
            }
            if events.is_empty() && self.awake_until.is_some() {
                std::thread::yield_now();
                continue;
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    BELL => {
                        if self.take_orders() {
                            return self.finish();
                        }
                    }
                    key if key % 2 == 0 => self.receive(key),
                    key => {
                        self.hear_out(key - 1);
                        self.end(key - 1, Ending::Died);
                    }
                }
            }
            self.sweep();
            if !self.held_up.is_empty() {
                self.let_go_on();
            }
            if self.pace.is_due(Instant::now()) {
                self.ring_now();
            }
        }
    }

    /// Whether another frame may be about to come.
    fn is_awake(&mut self) -> bool {
        self.awake_until = self.awake_until.filter(|until| Instant::now() < *until);
        self.awake_until.is_some()
    }

    /// Only these need one: clients that have not said Hello, answers that were not read, a listener that is not watched, areas of the dead that others'
    /// operations still hold, processes that may be dying, deaths that were not rung for yet, and refusals that are to be summed up.
    fn timeout(&self) -> Option<Duration> {
        let hurry = self.unwatched_until.is_some()
            || self.clients.values().any(|c| c.attached.is_none())
            || !self.unread.is_empty()
            || self.writer.held().iter().any(|area| !self.lingering.contains_key(area));
        let tick = hurry.then_some(TICK);
        let held_up = (!self.held_up.is_empty()).then_some(Duration::from_millis(10));
        let now = Instant::now();
        let dying = self.undecided.iter().map(|end| end.until.saturating_duration_since(now));
        let told = self.pace.due_in(now).into_iter().chain(self.refusals.due_in(now));
        tick.into_iter().chain(held_up).chain(dying).chain(told).min()
    }

    /// Calls the observer.
    pub(super) fn tell(&self, event: &Event) {
        (self.observer)(event);
    }

    /// Tells that a client was turned away, unless there were many of its user.
    pub(super) fn tell_refused(&mut self, who: Who, reason: String) {
        let most = if self.config.allowed.lets_in(who.uid) { OF_USER } else { OF_STRANGER };
        if self.refusals.comes(who.uid, most, Instant::now()) {
            self.tell(&Event::Refused { who, reason });
        }
    }

    /// Carries out orders. Returns whether to stop.
    fn take_orders(&mut self) -> bool {
        let mut count = [0_u8; 8];
        let _ = rustix::io::read(&*self.bell, &mut count);
        let mut settling = Vec::new();
        while let Ok(order) = self.inbox.try_recv() {
            match order {
                Order::Stop => return true,
                Order::Answer { key, frame } => self.answer_about_object(key, &frame),
                Order::Take(process) => self.adopt(*process),
                Order::Settle(who) => settling.push(who),
            }
        }
        if !settling.is_empty() {
            self.notice_deaths();
        }
        for who in settling {
            match who {
                Settling::Client { key, sequence } => self.ask_about_object(key, sequence, Request::Settle),
                Settling::Service(then) => then(),
            }
        }
        false
    }

    fn finish(mut self) {
        // Whoever asks what became of its processes asks no more after this.
        self.await_the_dying();
        self.sweep();
        self.tell_closed(None);
        // Before the listener is closed, so that nothing connects to a service that has ended.
        self.name.remove();
    }

    /// Watches `fd` for reading; its events carry `key`.
    pub(super) fn watch(&self, fd: &OwnedFd, key: u64) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, fd, EventData::new_u64(key), EventFlags::IN)
    }

    /// Accepts a connection, or turns away a user that may not attach.
    fn accept(&mut self) {
        let socket =
            match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => socket,
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
                Err(e) => {
                    // Out of descriptors. The connection stays queued; unwatch the listener, or the loop would spin.
                    let now = Instant::now();
                    if self.told_until.is_none_or(|until| now >= until) {
                        self.told_until = Some(now + TOLD);
                        let reason = format!("cannot accept a process: {e}{}", limit_told(&e));
                        self.tell(&Event::Trouble { reason });
                    }
                    let _ = epoll::delete(&self.epoll, &self.listener);
                    self.unwatched_until = Some(Instant::now() + Duration::from_secs(1));
                    return;
                }
            };
        let Ok(peer) = crate::socket::caller(&socket) else { return };
        let who = Who {
            pid: peer.pid.map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs()),
            uid: peer.uid,
            name: String::new(),
        };
        if !self.config.allowed.lets_in(who.uid) {
            let text = format!(
                "user {} may not attach here; the service of user {} lets in others if it is started with --allow USER or --group GROUP",
                who.uid,
                rustix::process::getuid().as_raw()
            );
            refuse(&socket, 0, Code::NotAllowed, &text);
            return self.tell_refused(who, text);
        }
        let _ = self.add(socket, who, peer.gid);
    }

    /// Takes on a connection. Gives its key.
    fn add(&mut self, socket: OwnedFd, who: Who, gid: u32) -> Option<u64> {
        let key = self.next;
        self.next += 2;
        match self.watch(&socket, key) {
            Ok(()) => {
                let client = Client { socket, who, gid, since: Instant::now(), image: 0, attached: None };
                self.clients.insert(key, client);
                Some(key)
            }
            Err(e) => {
                self.tell(&Event::Trouble { reason: format!("cannot watch a process: {e}") });
                None
            }
        }
    }

    /// Takes on a process whose `Hello` came to another peer's socket.
    fn adopt(&mut self, Newcomer { socket, who, gid, image, sequence, pidfd }: Newcomer) {
        if let Some(key) = self.add(socket, who, gid) {
            if let Some(client) = self.clients.get_mut(&key) {
                client.image = image;
            }
            self.welcome(key, sequence, pidfd);
        }
    }

    /// Publishes the end of an area and of its endpoints. Returns their slots.
    pub(super) fn publish_end(&mut self, area: u32) -> Vec<u32> {
        self.writer.end_area(area).unwrap_or_else(|e| {
            self.tell(&Event::Trouble { reason: format!("cannot end area {area}: {e}") });
            Vec::new()
        })
    }

    /// Rings the sleepers of all peers, now or soon: a process is gone, and that is published.
    pub(super) fn ring_all(&mut self) {
        if self.pace.comes(Instant::now()) {
            self.ring_now();
        }
    }

    fn ring_now(&self) {
        self.bells.death();
        if let Some(relay) = &self.config.relay.0 {
            relay(Wakeup::Death);
        }
    }

    /// Takes back the memory of a dead process, unless an operation of another process still holds it; then `sweep`
    /// tries again.
    pub(super) fn take_back(&mut self, area: u32) {
        let is_news = self.writer.gone(area);
        match self.writer.take_back(area) {
            Ok(true) => {
                self.config.source.settle(area);
                let party = self.parties.remove(&area);
                if let (Some(names), Some(party)) = (&mut self.config.names, party) {
                    names.gone(party);
                }
                // What it owned can be taken over now.
                self.ring_all();
            }
            // Those that wait for the process need not, though its memory stays.
            Ok(false) if is_news.is_ok_and(|is| is) => self.ring_all(),
            Ok(false) => {}
            Err(e) => self.tell(&Event::Trouble { reason: format!("cannot take back area {area}: {e}") }),
        }
    }

    /// Ends the attachments of all processes that are dead by now, after what they and all others have said by now was heard.
    /// Gives whether it did: not where it is at it already.
    pub(super) fn notice_deaths(&mut self) -> bool {
        if std::mem::replace(&mut self.is_settling, true) {
            return false;
        }
        // What those say that are held up waits until they may go on.
        let all: Vec<u64> = self.clients.keys().filter(|key| !self.held_up.contains(key)).copied().collect();
        for key in all {
            self.hear_out(key);
        }
        let is_gone = |c: &Client| c.attached.as_ref().is_some_and(|a| is_dead(&a.pidfd, AT_ONCE));
        let dead: Vec<u64> = self.clients.iter().filter(|(_, c)| is_gone(c)).map(|(key, _)| *key).collect();
        for key in dead {
            // It may have said more since.
            self.hear_out(key);
            self.end(key, Ending::Died);
        }
        self.is_settling = false;
        self.await_the_dying();
        self.sweep();
        true
    }

    /// Takes what an attached process has said by now. What it said without waiting for an answer counts also if it is dead.
    pub(super) fn hear_out(&mut self, key: u64) {
        // A process that goes on and on has its turn.
        for _ in 0..MOST_AT_ONCE {
            let Some(client) = self.clients.get(&key).filter(|c| c.attached.is_some()) else { return };
            let mut poll = [PollFd::new(&client.socket, PollFlags::IN)];
            if !matches!(rustix::event::poll(&mut poll, Some(&AT_ONCE)), Ok(1)) {
                return;
            }
            self.receive(key);
        }
    }

    /// Takes back what others no longer hold, turns away clients that sent no `Hello` in time, and watches the
    /// listener again.
    fn sweep(&mut self) {
        let now = Instant::now();
        let is_due = now >= self.held_next;
        if is_due {
            self.held_next = now + TICK;
            self.forget_read();
        }
        let mut ends = self.decided(now);
        for area in self.writer.held() {
            match self.lingering.get(&area) {
                Some(Lingering { pidfd, .. }) if !is_dead(pidfd, AT_ONCE) => continue,
                Some(Lingering { pidfd, .. }) => {
                    let _ = epoll::delete(&self.epoll, pidfd);
                    self.lingering.remove(&area);
                    // It may have died since they were decided: what is taken back takes its time.
                    ends.extend(self.died_undecided(area));
                }
                // Whether others still change its memory is written all over the region.
                None if !is_due => continue,
                None => {}
            }
            self.take_back(area);
        }
        ends.iter().for_each(|end| self.tell(end));
        for reason in self.refusals.due(now) {
            self.tell(&Event::Trouble { reason });
        }
        let late = |c: &Client| c.attached.is_none() && now.duration_since(c.since) > GREETING;
        let late: Vec<u64> = self.clients.iter().filter(|(_, c)| late(c)).map(|(key, _)| *key).collect();
        for key in late {
            self.turn_away(key, 0, Code::BadFrame, "no Hello came");
        }
        if self.unwatched_until.is_some_and(|until| now >= until)
            && self.watch(&self.listener, LISTENER).is_ok()
        {
            self.unwatched_until = None;
        }
    }
}
