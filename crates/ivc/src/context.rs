//! A context: a process's membership of a group, and what all of its channels share.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use isthmus_lockfree::activity::{self, Seen};
use isthmus_lockfree::life::{Life, State as Living, unchanged};
use isthmus_lockfree::sleep::{self, Bell};
use isthmus_lockfree::stream;
use isthmus_lockfree::sync::Word;
use isthmus_region::directory::{Directory, EndpointInfo};
use isthmus_region::format::{GlobalSlot, KIND_CHANNELS, block};
use isthmus_region::mapping::LineRef;
use isthmus_region::member::Member;
use isthmus_region::{Bytes, Section, wake};

use crate::channel::{Channel, Link};
use crate::config::Config;
use crate::connect::{Connecting, Offer};
use crate::error::{Error, Result, region};
use crate::event::{Callbacks, Event};
use crate::peer::{Address, Peer};
use crate::table::{Claim, End, Table, Terms, claims};
use crate::wait::{self, Sleeper, lock};

/// Events that are kept for a program that does not ask for them.
const MOST_EVENTS: usize = 4096;
/// How long a context that ends waits for the other sides to notice, once they have read everything.
const GRACE: Duration = Duration::from_millis(50);

/// Indices of words in the first line of a block.
pub(crate) const SLEEP: usize = 4;
pub(crate) const VERSION: usize = 7;
/// Indices of words in the second.
const KIND: usize = 1;
const MAGIC: usize = 2;
const CLIENT: usize = 3;
pub(crate) const BACKLOG: usize = 4;

/// A process's membership of a group.
///
/// All contexts of a region with the same magic id form a group, wherever they are: in VMs, on the host, several in one
/// process. Groups do not see each other. A context may be used by any number of threads at once. Dropping it ends the
/// membership once its channels are dropped, too, and then waits up to [`Config::linger`] until what was written has been
/// read: a process that ends without that (`std::process::exit`) takes unread bytes with it. A forked child must not use
/// its parent's contexts and channels; it may drop them.
///
/// # Source
/// The dissertation's `ivc_register`, 6.1.2.
pub struct Context {
    pub(crate) shared: Arc<Shared>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shared { address, magic, client, .. } = &*self.shared;
        f.debug_struct("Context")
            .field("address", address)
            .field("magic", magic)
            .field("client", client)
            .finish_non_exhaustive()
    }
}

/// What a context and its channels share.
pub(crate) struct Shared {
    pub(crate) member: Arc<Member>,
    pub(crate) address: Address,
    pub(crate) config: Config,
    magic: u64,
    client: u64,
    local: u32,
    block_at: u64,
    block: LineRef,
    facts: LineRef,
    pub(crate) sleeper: Sleeper,
    naps: Mutex<Naps>,
    state: Mutex<State>,
    callbacks: Mutex<Callbacks>,
    /// Whether more processes run than there are processors.
    crowded: Word,
    /// Channels so far.
    channels: Word,
    /// The process that registered. A forked child has copies of all this, and no mapping behind them.
    owner: rustix::process::Pid,
}

/// Threads that sleep until something happens to the context.
#[derive(Default)]
struct Naps {
    count: u64,
    sleepers: u32,
    /// A program polls the descriptor.
    armed: bool,
}

/// What is behind the lock.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) table: Table,
    quarters: Vec<Quarter>,
    region_seen: Option<u64>,
    retry: bool,
    /// The group but for ourselves, by slot.
    pub(crate) known: BTreeMap<u32, Known>,
    pub(crate) offers: VecDeque<Offer>,
    pub(crate) links: Vec<Weak<Link>>,
    lingering: Vec<Lingering>,
    events: VecDeque<Event>,
    pub(crate) suspended: bool,
}

/// A member VM, or the host: what it has for us.
struct Quarter {
    index: u32,
    incarnation: u64,
    host: Arc<str>,
    directory: Directory,
    generation_seen: Option<u64>,
    activity: LineRef,
    seen: Seen,
    /// Endpoints that are none of ours: their incarnation, by slot.
    strangers: HashMap<u32, u64>,
}

/// Another member of the group.
pub(crate) struct Known {
    pub(crate) peer: Peer,
    pub(crate) life: LineRef,
    pub(crate) alive: u64,
    pub(crate) section: Section,
    pub(crate) block: LineRef,
    pub(crate) facts: LineRef,
    version_seen: Option<u64>,
    /// Offers that were queued, taken or refused: number and generation.
    handled: HashMap<u32, u64>,
    rung: u64,
}

impl Known {
    pub(crate) fn lives(&self) -> bool {
        self.life.words[0].peek() == self.alive
    }
}

/// An own end that is closed, while the other side may still be looking at it.
pub(crate) struct Lingering {
    pub(crate) number: u32,
    /// The ring: offset and bytes, until it has been read; and where it ends.
    pub(crate) ring: Option<(u64, u64)>,
    pub(crate) last: u64,
    pub(crate) partner: End,
    pub(crate) partner_life: u64,
    pub(crate) life: LineRef,
    pub(crate) alive: u64,
    /// Whether it refuses an offer, and never was an end of a channel.
    pub(crate) refused: bool,
}

impl Lingering {
    /// Gives back what nobody looks at any more; says whether that is all.
    fn settle(&mut self, member: &Member) -> bool {
        let gone = self.life.words[0].get() != self.alive || self.partner.life().get() != self.partner_life;
        if (gone || self.partner.read().get() == self.last)
            && let Some((at, bytes)) = self.ring.take()
        {
            member.give(at, bytes);
        }
        gone
    }
}

impl Context {
    /// Joins the group of `magic`, with a client id of the program's choice, as [`Config::default`] says.
    ///
    /// # Errors
    /// [`Error::Region`]: no memory or slot is left, or the service is gone.
    pub fn register(member: &Arc<Member>, magic: u64, client: u64) -> Result<Self> {
        Self::register_with(member, magic, client, Config::default())
    }

    /// As [`Context::register`], with sizes and limits of the program's choice.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes that cannot be; [`Error::Region`].
    pub fn register_with(member: &Arc<Member>, magic: u64, client: u64, config: Config) -> Result<Self> {
        config.check()?;
        let failed = region("take memory for a context");
        let section = member.section();
        let block_at = member.take(block::BYTES).map_err(&failed)?;
        section.zero("block", block_at, block::BYTES).map_err(&failed)?;
        let block = section.line("block", block_at).map_err(&failed)?;
        let facts = section.line("block", block_at + block::HOLD).map_err(&failed)?;
        for (word, value) in
            [(KIND, KIND_CHANNELS), (MAGIC, magic), (CLIENT, client), (BACKLOG, config.backlog.into())]
        {
            facts.words[word].put(value);
        }
        let (local, incarnation) = member.service().open_endpoint(block_at).map_err(|source| {
            member.give(block_at, block::BYTES);
            Error::Region { action: "publish a context", source }
        })?;
        let slot = member.region().shape().slot(member.peer(), local);
        let shared = Arc::new(Shared {
            member: Arc::clone(member),
            address: Address::new(slot, incarnation),
            config,
            magic,
            client,
            local,
            block_at,
            block,
            facts,
            sleeper: Sleeper::new(member, local, config.by_service)?,
            naps: Mutex::default(),
            state: Mutex::default(),
            callbacks: Mutex::default(),
            crowded: Word::new(0),
            channels: Word::new(0),
            owner: rustix::process::getpid(),
        });
        {
            let mut state = lock(&shared.state);
            shared.look(&mut state);
            // Those who were there before are no news to us, but we are to them.
            state.events.clear();
            shared.tell_all(&mut state);
        }
        Ok(Self { shared })
    }

    /// Where this context is, for others to connect to.
    pub fn address(&self) -> Address {
        self.shared.address
    }

    /// The group's magic id.
    pub fn magic(&self) -> u64 {
        self.shared.magic
    }

    /// The client id of this context.
    pub fn client(&self) -> u64 {
        self.shared.client
    }

    /// The other members of the group that live now, by address.
    ///
    /// # Source
    /// The dissertation's `ivc_get_hosts`, 6.1.2.
    pub fn peers(&self) -> Vec<Peer> {
        let mut state = lock(&self.shared.state);
        self.shared.look(&mut state);
        state.known.values().filter(|k| k.lives()).map(|k| k.peer.clone()).collect()
    }

    /// Waits until at least `count` other members of the group live: at most `limit`, or for ever. Gives all that do, as
    /// [`Context::peers`].
    ///
    /// # Errors
    /// [`Error::TimedOut`].
    pub fn wait_peers(&self, count: usize, limit: Option<Duration>) -> Result<Vec<Peer>> {
        let mut found = Vec::new();
        let in_time = self.shared.wait_for(limit, |_, state| {
            found = state.known.values().filter(|k| k.lives()).map(|k| k.peer.clone()).collect();
            found.len() >= count
        });
        let limit = limit.unwrap_or(Duration::MAX);
        let late = Error::TimedOut { action: "waiting for members of the group", limit, moved: 0 };
        if in_time { Ok(found) } else { Err(late) }
    }

    /// Changes how many connections may wait to be accepted. What waits already stays.
    pub fn set_backlog(&self, backlog: u32) {
        let state = lock(&self.shared.state);
        if !state.suspended {
            self.shared.facts.words[BACKLOG].set(backlog.into());
        }
    }

    /// Connects to a member of the group, waiting until it has accepted: at most `limit`, or for ever.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::TimedOut`], [`Error::NoPeer`], [`Error::PeerDied`], [`Error::Oneself`],
    /// [`Error::Faulty`], [`Error::Region`]. Nothing is left behind.
    pub fn connect(&self, to: Address, limit: Option<Duration>) -> Result<Channel> {
        let mut connecting = self.begin_connect(to)?;
        connecting.wait(limit)
    }

    /// Begins to connect. The other side is asked when this returns; [`Connecting::poll`] tells what it said.
    ///
    /// # Errors
    /// As [`Context::connect`].
    pub fn begin_connect(&self, to: Address) -> Result<Connecting> {
        Connecting::begin(&self.shared, to)
    }

    /// Accepts the oldest connection that waits, if there is one.
    ///
    /// # Errors
    /// [`Error::Region`]: no memory for the channel's ring is left. The connection goes on waiting.
    pub fn try_accept(&self) -> Result<Option<Channel>> {
        let mut state = lock(&self.shared.state);
        self.shared.look(&mut state);
        self.shared.accept_one(&mut state)
    }

    /// Accepts a connection, waiting for it: at most `limit`, or for ever.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::Region`].
    pub fn accept(&self, limit: Option<Duration>) -> Result<Channel> {
        let mut found = None;
        let in_time = self.shared.wait_for(limit, |shared, state| {
            match shared.accept_one(state) {
                Ok(None) => {}
                Ok(Some(channel)) => found = Some(Ok(channel)),
                Err(e) => found = Some(Err(e)),
            }
            found.is_some()
        });
        match found {
            Some(done) => done,
            None => {
                debug_assert!(!in_time);
                let limit = limit.unwrap_or(Duration::MAX);
                Err(Error::TimedOut { action: "waiting for a connection", limit, moved: 0 })
            }
        }
    }

    /// Looks after the group and all channels, calls the call-backs for what happened, and keeps other events for
    /// [`Context::events`]. Bounded; to be called now and then by programs that rely on call-backs. Other calls look, too,
    /// but call nothing back.
    pub fn progress(&self) {
        self.shared.progress();
        self.dispatch();
    }

    fn dispatch(&self) {
        // A call-back that calls us again finds this locked, and its events wait for the next call.
        let Ok(mut callbacks) = self.shared.callbacks.try_lock() else { return };
        let events: Vec<Event> = lock(&self.shared.state).events.drain(..).collect();
        let rest = callbacks.call(events);
        let mut state = lock(&self.shared.state);
        for event in rest.into_iter().rev() {
            state.events.push_front(event);
        }
    }

    /// What has happened since this was last asked, oldest first. The oldest are dropped when more than 4096 wait;
    /// [`Context::peers`] has the truth.
    pub fn events(&self) -> Vec<Event> {
        self.progress();
        lock(&self.shared.state).events.drain(..).collect()
    }

    /// Waits until there is an event, at most `limit` or for ever, and gives what there is.
    pub fn wait_events(&self, limit: Option<Duration>) -> Vec<Event> {
        let deadline = wait::deadline(limit);
        loop {
            let events = self.events();
            if !events.is_empty() || wait::left(deadline).is_zero() {
                return events;
            }
            self.shared.wait_for(Some(wait::left(deadline)), |_, state| !state.events.is_empty());
        }
    }

    /// Sets the call-backs, in place of those set before. Not to be called from a call-back.
    pub fn set_callbacks(&self, callbacks: Callbacks) {
        *lock(&self.shared.callbacks) = callbacks;
    }

    /// A descriptor for `poll(2)`, `epoll` and the like: readable when something may have happened since the last
    /// [`Context::arm`]. Valid as long as the context; never read or written by the program.
    ///
    /// # Errors
    /// [`Error::Region`], [`Error::System`].
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.shared.sleeper.descriptor()
    }

    /// Gets ready to poll the descriptor. Gives whether the program may: if not, there is something to be done already (a
    /// connection waits, an event, bytes or room on a channel that is watched, [`Channel::watch`]). To be called before
    /// each poll. The descriptor also becomes readable now and then without cause, since deaths are seen only by looking.
    pub fn arm(&self) -> bool {
        let shared = &self.shared;
        shared.sleeper.quiet();
        {
            let mut naps = lock(&shared.naps);
            naps.armed = true;
            naps.count += 1;
            sleep::announce_sleep(&shared.block.words[SLEEP], naps.count, Bell::Service);
        }
        // The look that decides.
        let links = shared.progress();
        self.dispatch();
        let mut ready = links.iter().filter(|link| link.arm()).count() > 0;
        {
            let mut state = lock(&shared.state);
            shared.prune(&mut state);
            ready |= !state.events.is_empty() || !state.offers.is_empty();
        }
        if ready {
            let mut naps = lock(&shared.naps);
            naps.armed = false;
            if naps.sleepers == 0 {
                sleep::announce_awake(&shared.block.words[SLEEP]);
            }
        }
        !ready
    }

    /// Stops all channels, as before a migration: nothing is written to them any more (every write returns 0), the other
    /// sides are asked to stop, too, and when each has, or after `limit`, its unread bytes are handed over in an
    /// [`Event::Suspended`], or to the call-back. Connections are no longer accepted until [`Context::resume`]. The
    /// channels stay suspended for ever: new ones are connected where the peers can be reached again. Gives how many
    /// channels did not answer in time; what they write after that is not delivered.
    ///
    /// # Source
    /// Steps 2 to 4 of the dissertation's figure 6.5.
    pub fn suspend(&self, limit: Duration) -> usize {
        let shared = &self.shared;
        {
            let mut state = lock(&shared.state);
            state.suspended = true;
            shared.facts.words[BACKLOG].set(0);
        }
        let mut waiting: Vec<Arc<Link>> = shared.links();
        waiting.iter().for_each(|link| link.pause());
        let deadline = Instant::now() + limit;
        let mut tries = 0;
        loop {
            shared.progress();
            waiting.retain(|link| !link.is_settled());
            if waiting.is_empty() || Instant::now() >= deadline {
                break;
            }
            std::thread::sleep(wait::unsure(tries).min(Duration::from_millis(5)));
            tries += 1;
        }
        let silent = waiting.len();
        waiting.iter().for_each(|link| link.hand_over());
        drop(waiting);
        self.dispatch();
        silent
    }

    /// After [`Context::suspend`]: accepts connections again, and tells of all members of the group that can be reached as
    /// if they had just joined.
    pub fn resume(&self) {
        let shared = &self.shared;
        {
            let mut state = lock(&shared.state);
            state.suspended = false;
            shared.facts.words[BACKLOG].set(shared.config.backlog.into());
            shared.look(&mut state);
            let peers: Vec<Peer> = state.known.values().map(|k| k.peer.clone()).collect();
            peers.into_iter().for_each(|peer| state.tell(Event::Joined(peer)));
        }
        self.dispatch();
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.shared.is_ours() {
            return;
        }
        let mut state = lock(&self.shared.state);
        // Nobody will accept any more; channels that are still held go on.
        self.shared.facts.words[BACKLOG].set(0);
        self.shared.look(&mut state);
        for offer in std::mem::take(&mut state.offers) {
            self.shared.refuse(&mut state, &offer.peer.address, &offer.claim);
        }
    }
}

impl State {
    fn tell(&mut self, event: Event) {
        if self.events.len() >= MOST_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }
}

impl Shared {
    pub(crate) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Whether this is the process that registered: in a forked child, dropping its copies must touch nothing.
    pub(crate) fn is_ours(&self) -> bool {
        rustix::process::getpid() == self.owner
    }

    pub(crate) fn tell(&self, event: Event) {
        lock(&self.state).tell(event);
    }

    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded.peek() != 0
    }

    pub(crate) fn next_channel(&self) -> u64 {
        self.channels.add(1) + 1
    }

    /// All channels there are. Never to be dropped under the lock: the last holder of a channel closes it.
    fn links(&self) -> Vec<Arc<Link>> {
        let mut state = lock(&self.state);
        state.links.retain(|link| link.strong_count() > 0);
        state.links.iter().filter_map(Weak::upgrade).collect()
    }

    /// Looks after everything; gives the channels.
    fn progress(&self) -> Vec<Arc<Link>> {
        {
            let mut state = lock(&self.state);
            self.look(&mut state);
        }
        let links = self.links();
        links.iter().for_each(|link| link.look_after());
        links
    }

    /// Looks for members that join or leave, for offers, and for ends that can be given back.
    pub(crate) fn look(&self, state: &mut State) {
        let generation = self.member.region().generation();
        let mut changed = false;
        if state.region_seen != Some(generation) || state.retry {
            state.region_seen = Some(generation);
            self.look_at_members(state);
            changed = true;
        }
        for q in 0..state.quarters.len() {
            let generation = Some(state.quarters[q].directory.generation());
            if state.quarters[q].generation_seen != generation {
                state.quarters[q].generation_seen = generation;
                self.scan(state, q);
                changed = true;
            }
        }
        if changed {
            self.crowded.put(self.member.is_crowded().into());
        }
        for q in 0..state.quarters.len() {
            let quarter = &mut state.quarters[q];
            let groups = quarter.seen.changed(&quarter.activity);
            if groups == 0 {
                continue;
            }
            let slots = self.slots_of(quarter.index);
            let senders: Vec<u32> = state
                .known
                .range(slots)
                .map(|(slot, _)| *slot)
                .filter(|slot| groups & (1 << activity::group(self.local_of(*slot))) != 0)
                .collect();
            senders.into_iter().for_each(|slot| self.look_for_offers(state, slot));
        }
        let member = &self.member;
        let table = &mut state.table;
        state.lingering.retain_mut(|lingering| {
            let done = lingering.settle(member);
            if done {
                table.give(lingering.number);
            }
            !done
        });
    }

    fn slots_of(&self, index: u32) -> std::ops::Range<u32> {
        let shape = self.member.region().shape();
        let first = shape.slot(index, 0).0;
        first..first + shape.endpoints
    }

    fn local_of(&self, slot: u32) -> u32 {
        GlobalSlot(slot).local(self.member.region().shape().endpoints)
    }

    fn look_at_members(&self, state: &mut State) {
        state.retry = false;
        for info in self.member.region().peers() {
            let active = info.life.state == Living::Active;
            if let Some(at) = state.quarters.iter().position(|q| q.index == info.index) {
                if active && state.quarters[at].incarnation == info.life.incarnation {
                    continue;
                }
                state.quarters.swap_remove(at);
                let slots: Vec<u32> = state.known.range(self.slots_of(info.index)).map(|(s, _)| *s).collect();
                slots.into_iter().for_each(|slot| self.lose(state, slot, false));
            }
            if !active {
                continue;
            }
            // The peer's own service may not have written its directory yet.
            let found = self.member.directory(info.index);
            match found.and_then(|(i, d)| Ok((i, d.activity(self.address.slot)?, d))) {
                Ok((incarnation, activity, directory)) => state.quarters.push(Quarter {
                    index: info.index,
                    incarnation,
                    host: info.name.into(),
                    directory,
                    generation_seen: None,
                    activity,
                    seen: Seen::new(),
                    strangers: HashMap::new(),
                }),
                Err(_) => state.retry = true,
            }
        }
    }

    /// Looks through the endpoints of a member.
    fn scan(&self, state: &mut State, q: usize) {
        let (index, directory) = (state.quarters[q].index, state.quarters[q].directory.clone());
        let shape = *self.member.region().shape();
        for local in 0..directory.endpoints_high() {
            let slot = shape.slot(index, local).0;
            if slot == self.address.slot {
                continue;
            }
            let Ok(info) = directory.endpoint(local) else { continue };
            if let Some(known) = state.known.get(&slot) {
                if info.life.is_active(known.peer.address.incarnation) {
                    continue;
                }
                let left = info.life.incarnation == known.peer.address.incarnation;
                self.lose(state, slot, left && info.life.state == Living::Free);
            }
            if info.life.state != Living::Active
                || state.quarters[q].strangers.get(&local) == Some(&info.life.incarnation)
            {
                continue;
            }
            match self.meet(&state.quarters[q], slot, local, &info) {
                Some(known) => {
                    state.tell(Event::Joined(known.peer.clone()));
                    state.known.insert(slot, known);
                    self.look_for_offers(state, slot);
                }
                None => drop(state.quarters[q].strangers.insert(local, info.life.incarnation)),
            }
        }
    }

    /// A context that is met for the first time, if it is of this group.
    fn meet(&self, quarter: &Quarter, slot: u32, local: u32, info: &EndpointInfo) -> Option<Known> {
        let directory = &quarter.directory;
        let life = directory.endpoint_line(local).ok()?;
        let section = directory.section();
        let block = section.line("block", info.block).ok()?;
        let facts = section.line("block", info.block.checked_add(block::HOLD)?).ok()?;
        let [kind, magic, client] = [KIND, MAGIC, CLIENT].map(|word| facts.words[word].get());
        let alive = info.life.pack();
        if kind != KIND_CHANNELS || magic != self.magic || !unchanged(&life.words[0], alive) {
            return None;
        }
        let address = Address { slot, incarnation: info.life.incarnation };
        Some(Known {
            peer: Peer { client, host: Arc::clone(&quarter.host), address },
            life,
            alive,
            section: section.clone(),
            block,
            facts,
            version_seen: None,
            handled: HashMap::new(),
            rung: 0,
        })
    }

    fn lose(&self, state: &mut State, slot: u32, in_order: bool) {
        let Some(known) = state.known.remove(&slot) else { return };
        state.offers.retain(|offer| offer.peer.address != known.peer.address);
        state.tell(Event::Left { peer: known.peer, in_order });
    }

    /// Forgets offers that were withdrawn.
    pub(crate) fn prune(&self, state: &mut State) {
        let known = &state.known;
        state.offers.retain(|offer| {
            let lives = known.get(&offer.peer.address.slot).is_some_and(Known::lives);
            lives && offer.claim.end.life().get() == offer.claim.life
        });
    }

    /// Looks for new offers of a member.
    fn look_for_offers(&self, state: &mut State, slot: u32) {
        let Some(known) = state.known.get_mut(&slot) else { return };
        let version = known.block.words[VERSION].get();
        if known.version_seen == Some(version) {
            return;
        }
        known.version_seen = Some(version);
        let peer = known.peer.clone();
        let mut fresh = claims(&known.section, &known.block, self.address);
        fresh.retain(|claim| {
            let offered = claim.answers.is_none() && !claim.refused;
            offered && known.handled.insert(claim.number, claim.generation()) != Some(claim.generation())
        });
        if fresh.is_empty() {
            return;
        }
        self.prune(state);
        for claim in fresh {
            let waiting = state.offers.len() as u64;
            if waiting < self.facts.words[BACKLOG].peek() {
                state.offers.push_back(Offer { peer: peer.clone(), claim });
            } else {
                self.refuse(state, &peer.address, &claim);
            }
        }
    }

    /// Takes the oldest offer and answers it.
    fn accept_one(self: &Arc<Self>, state: &mut State) -> Result<Option<Channel>> {
        self.prune(state);
        while let Some(offer) = state.offers.pop_front() {
            match self.accept_offer(state, &offer) {
                Ok(None) => {}
                Ok(Some(channel)) => return Ok(Some(channel)),
                Err(e) => {
                    state.offers.push_front(offer);
                    return Err(e);
                }
            }
        }
        Ok(None)
    }

    /// The ring that a claim names, in its owner's section.
    pub(crate) fn ring_of(section: &Section, claim: &Claim) -> Option<Bytes> {
        section.bytes("ring", claim.ring, claim.ring_bytes).ok()
    }

    /// Takes a place for an own end. Where there is none, that of the oldest refusal is taken: who was refused has had time to
    /// read that, or waits until his time is up.
    fn place(&self, state: &mut State) -> isthmus_region::Result<u32> {
        state.table.take(&self.member, self.block_at).or_else(|full| {
            let oldest = state.lingering.iter().position(|l| l.refused).ok_or(full)?;
            Ok(state.lingering.remove(oldest).number)
        })
    }

    /// Writes an own end; gives it with its number, its life and its ring. It does not live yet.
    pub(crate) fn describe(
        &self,
        state: &mut State,
        to: Address,
        answers: Option<(u32, u64)>,
    ) -> Result<(u32, End, u64, u64)> {
        let failed = region("take memory for a channel");
        let bytes = self.config.ring_bytes;
        let ring = self.member.take(bytes).map_err(&failed)?;
        let number = match self.place(state) {
            Ok(number) => number,
            Err(source) => {
                self.member.give(ring, bytes);
                return Err(failed(source));
            }
        };
        let end = state.table.end(&self.member, number).map_err(&failed)?;
        let segment_bytes = self.config.segment_bytes;
        let terms = Terms { to, ring, ring_bytes: bytes, segment_bytes, answers, refused: false };
        let life = Table::describe(&end, &terms);
        Ok((number, end, life, ring))
    }

    fn accept_offer(self: &Arc<Self>, state: &mut State, offer: &Offer) -> Result<Option<Channel>> {
        let Some(known) = state.known.get(&offer.peer.address.slot) else { return Ok(None) };
        let Some(other_ring) = Self::ring_of(&known.section, &offer.claim) else {
            // It makes no sense; its sender waits in vain.
            return Ok(None);
        };
        let (life_line, alive) = (known.life.clone(), known.alive);
        let answers = Some((offer.claim.number, offer.claim.generation()));
        let (number, end, life, ring_at) = self.describe(state, offer.peer.address, answers)?;
        stream::publish_life(end.life(), life);
        // After the fence: an offer that is withdrawn now knows of us (P19).
        if offer.claim.end.life().get() != offer.claim.life {
            end.life().set(Life { state: Living::Dead, ..Life::unpack(life) }.pack());
            state.table.give(number);
            self.member.give(ring_at, self.config.ring_bytes);
            return Ok(None);
        }
        let ring = self.member.section().bytes("ring", ring_at, self.config.ring_bytes);
        let ring = ring.map_err(region("find a channel's ring"))?;
        let link = Link::new(
            self,
            offer.peer.clone(),
            (number, end, life),
            (ring, ring_at),
            &offer.claim,
            other_ring,
            (life_line, alive),
        );
        state.links.push(Arc::downgrade(&link));
        self.announce(state, offer.peer.address.slot);
        Ok(Some(Channel::new(link)))
    }

    /// Answers an offer with no. Where there is no memory even for that, its sender's time-out has to do.
    fn refuse(&self, state: &mut State, to: &Address, claim: &Claim) {
        let Some(known) = state.known.get(&to.slot) else { return };
        let (life, alive) = (known.life.clone(), known.alive);
        let Ok(number) = self.place(state) else { return };
        let Ok(end) = state.table.end(&self.member, number) else { return };
        let answers = Some((claim.number, claim.generation()));
        let terms = Terms { to: *to, ring: 0, ring_bytes: 0, segment_bytes: 0, answers, refused: true };
        let own = Table::describe(&end, &terms);
        // It is closed from the start, so that who gives up his offer need not wait for us to take this back.
        stream::publish_life(end.life(), Life { state: Living::Dead, ..Life::unpack(own) }.pack());
        state.lingering.push(Lingering {
            number,
            ring: None,
            last: 0,
            partner: claim.end.clone(),
            partner_life: claim.life,
            life,
            alive,
            refused: true,
        });
        self.announce(state, to.slot);
    }

    /// Tells a member of the group that one of our ends changed, and wakes it if it sleeps.
    pub(crate) fn announce(&self, state: &mut State, slot: u32) {
        let version = &self.block.words[VERSION];
        version.set(version.peek().wrapping_add(1));
        if let Ok((_, own)) = self.member.directory(self.member.peer())
            && let Ok(line) = own.activity(slot)
        {
            activity::announce(&line, self.local);
        }
        if let Some(known) = state.known.get_mut(&slot)
            && let Some(bell) = sleep::who_to_ring(&known.block.words[SLEEP], &mut known.rung)
        {
            self.ring(slot, bell);
        }
    }

    /// Wakes a member of the group, if it sleeps until something happens to it.
    pub(crate) fn ring_context(&self, slot: u32) {
        let mut state = lock(&self.state);
        if let Some(known) = state.known.get_mut(&slot)
            && let Some(bell) = sleep::who_to_ring(&known.block.words[SLEEP], &mut known.rung)
        {
            self.ring(slot, bell);
        }
    }

    /// Wakes whoever of the group sleeps: we have come, or go.
    fn tell_all(&self, state: &mut State) {
        for (slot, known) in &mut state.known {
            if let Some(bell) = sleep::who_to_ring(&known.block.words[SLEEP], &mut known.rung) {
                self.ring(*slot, bell);
            }
        }
    }

    /// Rings the bell of another context.
    #[cold]
    #[inline(never)]
    pub(crate) fn ring(&self, slot: u32, bell: Bell) {
        let slot = GlobalSlot(slot);
        let endpoints = self.member.region().shape().endpoints;
        let neighbour = slot.peer(endpoints) == self.member.peer() && self.member.has_futexes();
        if bell == Bell::Futex && neighbour {
            let line = self.member.directory(self.member.peer());
            if let Ok(line) = line.and_then(|(_, d)| d.wake_line(slot.local(endpoints))) {
                wake::wake(&line.words[0]);
            }
        } else {
            self.member.service().wake(slot);
        }
    }

    /// Takes over an end that was closed. `partner` is none if nobody can have seen it.
    pub(crate) fn let_go(&self, state: &mut State, lingering: Lingering) {
        state.lingering.push(lingering);
        self.look(state);
    }

    /// Waits until `done` says so, looking whenever something may have happened: at most `limit`, or for ever. Gives
    /// whether it did.
    pub(crate) fn wait_for(
        self: &Arc<Self>,
        limit: Option<Duration>,
        mut done: impl FnMut(&Arc<Self>, &mut State) -> bool,
    ) -> bool {
        let deadline = wait::deadline(limit);
        let mut check = || {
            let links = self.progress();
            let mut state = lock(&self.state);
            self.look(&mut state);
            let is_done = done(self, &mut state);
            drop(state);
            drop(links);
            is_done
        };
        // A look costs more than one at a single word.
        for _ in 0..4 {
            if check() {
                return true;
            }
            std::thread::yield_now();
        }
        loop {
            let seen = self.sleeper.seen();
            {
                let mut naps = lock(&self.naps);
                naps.count += 1;
                naps.sleepers += 1;
                let bell = if naps.armed { Bell::Service } else { self.sleeper.mode() };
                sleep::announce_sleep(&self.block.words[SLEEP], naps.count, bell);
            }
            let found = check();
            let left = wait::left(deadline);
            if !found && !left.is_zero() {
                self.sleeper.sleep(seen, left);
            }
            {
                let mut naps = lock(&self.naps);
                naps.sleepers -= 1;
                if naps.sleepers == 0 && !naps.armed {
                    sleep::announce_awake(&self.block.words[SLEEP]);
                }
            }
            if found || left.is_zero() {
                return found;
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        let mut state = std::mem::take(&mut *lock(&self.state));
        let begun = Instant::now();
        let mut tries = 0;
        let mut read_at = None;
        loop {
            self.look(&mut state);
            let unread = state.lingering.iter().any(|l| l.ring.is_some());
            if !unread && read_at.is_none() {
                read_at = Some(Instant::now());
            }
            let patient = match read_at {
                // Everything was read; the others shall see that it ends, too.
                Some(at) => at.elapsed() < GRACE.min(self.config.linger),
                None => begun.elapsed() < self.config.linger,
            };
            if state.lingering.is_empty() || !patient {
                break;
            }
            std::thread::sleep(Duration::from_micros(50).saturating_mul(1 << tries.min(5)));
            tries += 1;
        }
        if read_at.is_none() && !state.lingering.is_empty() {
            // Somebody has not read everything. To leave in good order now would look like the end of the stream; so the
            // end of the attachment says it, and all memory stays as it is until then.
            return;
        }
        if self.member.service().close_endpoint(self.local).is_err() {
            return;
        }
        self.tell_all(&mut state);
        for lingering in std::mem::take(&mut state.lingering) {
            if let Some((at, bytes)) = lingering.ring {
                self.member.give(at, bytes);
            }
        }
        state.table.give_back(&self.member);
        self.member.give(self.block_at, block::BYTES);
    }
}
