//! A context, as programs use it: a process's membership of a group, and what all of its channels share.

mod group;
mod offers;
mod sleep;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use isthmus_lockfree::sync::Word;
use isthmus_region::doorbell::Sleeper;
use isthmus_region::format::{KIND_CHANNELS, block};
use isthmus_region::mapping::LineRef;
use isthmus_region::member::Member;
use isthmus_region::roster::{Record, Roster};
use isthmus_region::waiting::nap;

use crate::channel::Channel;
use crate::config::Config;
use crate::connect::Connecting;
use crate::error::{Error, Result, region};
use crate::event::{Callbacks, Event};
use crate::link::Link;
use crate::loan::Lender;
use crate::peer::{Address, Peer};
use crate::table::Table;
use crate::wait::{self, lock};

pub(crate) use group::Known;
pub(crate) use offers::Lingering;

use group::Strangers;
use offers::Offer;
use sleep::Sleeping;

/// Most events that are kept for a program that does not ask for them.
const MOST_EVENTS: usize = 4096;
/// How soon a program that polls is to look again while a partner may not know that it does.
const UNSURE: Duration = Duration::from_millis(250);
/// How long a context that ends waits for its partners to see that, once they have read everything.
const GRACE: Duration = Duration::from_millis(50);

/// Indices of words in the first line of a block.
pub(crate) const SLEEP: usize = 4;
pub(crate) const VERSION: usize = 7;
/// Indices of words in the second line.
const KIND: usize = 1;
const MAGIC: usize = 2;
const CLIENT: usize = 3;
pub(crate) const BACKLOG: usize = 4;

/// A process's membership of a group.
///
/// All contexts of a region with the same magic id form a group, wherever they are: in VMs, on the host, several in one
/// process. Groups do not see each other. Any number of threads may use a context at once. Dropping it ends the membership
/// once its channels and loans are dropped, too; the last drop waits up to [`Config::linger`] until what was written has been read.
/// A process that ends without that (`std::process::exit`) takes unread bytes with it. A forked child must not use its
/// parent's contexts and channels; it may drop them.
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
    /// The own endpoint, which is where the address leads in this region.
    pub(crate) own: Record,
    pub(crate) config: Config,
    magic: u64,
    client: u64,
    local: u32,
    block_at: u64,
    block: LineRef,
    facts: LineRef,
    pub(crate) sleeper: Sleeper,
    sleeping: Mutex<Sleeping>,
    state: Mutex<State>,
    pub(crate) lender: Mutex<Lender>,
    callbacks: Mutex<Callbacks>,
    /// Whether more processes run than there are processors.
    crowded: Word,
    /// Number of channels so far.
    channels: Word,
    /// The process that registered. A forked child has copies of all this without the mapping.
    owner: rustix::process::Pid,
}

/// What the context's lock protects.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) table: Table,
    roster: Roster<Strangers>,
    /// The other members of the group, by slot.
    pub(crate) known: BTreeMap<u32, Known>,
    pub(crate) offers: VecDeque<Offer>,
    pub(crate) links: Vec<Weak<Link>>,
    lingering: Vec<Lingering>,
    events: VecDeque<Event>,
    pub(crate) suspended: bool,
    /// How many connections may wait to be accepted, but while suspended.
    backlog: u32,
}

impl Context {
    /// Joins the group of `magic`, with a client id of the program's choice and the sizes of [`Config::default`].
    ///
    /// # Errors
    /// [`Error::Region`] if no memory or slot is left, or the service is gone.
    pub fn register(member: &Arc<Member>, magic: u64, client: u64) -> Result<Self> {
        Self::register_with(member, magic, client, Config::default())
    }

    /// As [`Context::register`], with sizes and limits of the program's choice.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes that are not possible; [`Error::Region`].
    pub fn register_with(member: &Arc<Member>, magic: u64, client: u64, config: Config) -> Result<Self> {
        config.check()?;
        let failed = region("take memory for a context");
        let section = member.section();
        let (mut lender, table) = Lender::new(member).map_err(&failed)?;
        let block_at = member.take(block::BYTES).map_err(&failed)?;
        section.zero("block", block_at, block::BYTES).map_err(&failed)?;
        let block = section.line("block", block_at).map_err(&failed)?;
        let facts = section.line("block", block_at + block::HOLD).map_err(&failed)?;
        for (word, value) in
            [(KIND, KIND_CHANNELS), (MAGIC, magic), (CLIENT, client), (BACKLOG, config.backlog.into())]
        {
            facts.words[word].put(value);
        }
        section.word("block", block_at + block::REGISTRATIONS).map_err(&failed)?.put(table);
        let (local, incarnation) = match member.service().open_endpoint(block_at) {
            Ok(opened) => opened,
            Err(source) => {
                // A service that has not answered may publish it yet: then its memory must serve nothing else.
                match source {
                    isthmus_region::Error::Full { .. } => member.give(block_at, block::BYTES),
                    _ => lender.leave(None),
                }
                return Err(Error::Region { action: "publish a context", source });
            }
        };
        let slot = member.region().shape().slot(member.peer(), local);
        let found = region("find a context's record");
        let shared = Arc::new(Shared {
            member: Arc::clone(member),
            address: member.address(local).map_err(&found)?,
            own: Record::of(member.own(), slot, incarnation).map_err(&found)?,
            config,
            magic,
            client,
            local,
            block_at,
            block,
            facts,
            sleeper: Sleeper::new(member, local, config.by_service).map_err(&found)?,
            sleeping: Mutex::default(),
            state: Mutex::default(),
            lender: Mutex::new(lender),
            callbacks: Mutex::default(),
            crowded: Word::new(0),
            channels: Word::new(0),
            owner: rustix::process::getpid(),
        });
        {
            let mut state = lock(&shared.state);
            state.backlog = shared.config.backlog;
            shared.refresh(&mut state);
            // Members that were there before are no events here; they are rung to find this one.
            state.events.clear();
            shared.ring_group(&mut state);
        }
        Ok(Self { shared })
    }

    /// Where this context is: other members connect to this.
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

    /// The other members of the group that live now, VM by VM.
    ///
    /// # Source
    /// The dissertation's `ivc_get_hosts`, 6.1.2.
    pub fn peers(&self) -> Vec<Peer> {
        let mut state = lock(&self.shared.state);
        self.shared.refresh(&mut state);
        state.known.values().filter(|k| k.lives()).map(|k| k.peer.clone()).collect()
    }

    /// Waits until at least `count` other members of the group live: at most `limit`, or for ever. Returns all that do, as
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

    /// Changes how many connections may wait to be accepted. Those that wait already stay. While all channels are suspended none may,
    /// and this is for the time after.
    pub fn set_backlog(&self, backlog: u32) {
        let mut state = lock(&self.shared.state);
        state.backlog = backlog;
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

    /// Begins to connect. When this returns the offer is made; [`Connecting::poll`] returns the answer.
    ///
    /// # Errors
    /// As [`Context::connect`].
    pub fn begin_connect(&self, to: Address) -> Result<Connecting> {
        Connecting::begin(&self.shared, to)
    }

    /// Accepts the oldest connection that waits, if there is one.
    ///
    /// # Errors
    /// [`Error::Region`] if no memory for the channel's ring is left. The connection goes on waiting.
    pub fn try_accept(&self) -> Result<Option<Channel>> {
        let mut state = lock(&self.shared.state);
        self.shared.refresh(&mut state);
        self.shared.accept_one(&mut state)
    }

    /// Accepts a connection, waiting for one: at most `limit`, or for ever.
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

    /// Checks the group and all channels, calls the call-backs for what happened, and keeps other events for
    /// [`Context::events`]. Does not wait. Programs that rely on call-backs call this now and then: other functions check,
    /// too, but call nothing back.
    pub fn progress(&self) {
        self.shared.progress();
        self.dispatch();
    }

    fn dispatch(&self) {
        // A call-back that calls this context again finds the lock held; the events of that call wait for the next one.
        let Ok(mut callbacks) = self.shared.callbacks.try_lock() else { return };
        let events: Vec<Event> = lock(&self.shared.state).events.drain(..).collect();
        let rest = callbacks.call(events);
        let mut state = lock(&self.shared.state);
        for event in rest.into_iter().rev() {
            state.events.push_front(event);
        }
    }

    /// Returns what has happened since the last call, oldest first. Of more than 4096 events that wait, the oldest are
    /// dropped; [`Context::peers`] is always right.
    pub fn events(&self) -> Vec<Event> {
        self.progress();
        lock(&self.shared.state).events.drain(..).collect()
    }

    /// Waits until there is an event, at most `limit` or for ever, and returns what there is.
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

    /// Sets the call-backs, in place of those set before. Must not be called from a call-back.
    pub fn set_callbacks(&self, callbacks: Callbacks) {
        *lock(&self.shared.callbacks) = callbacks;
    }

    /// A descriptor for `poll(2)`, `epoll` and the like: readable when something may have happened since the last
    /// [`Context::arm`]. Valid as long as the context; the program must not read or write it.
    ///
    /// # Errors
    /// [`Error::Region`], [`Error::System`].
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        let sleeper = &self.shared.sleeper;
        sleeper.ask_for_bell().map_err(region("get a bell to poll"))?;
        let made = sleeper.pollable().map(AsFd::as_fd);
        made.map_err(|source| Error::System { action: "make a descriptor to poll", source })
    }

    /// Prepares for a poll of the descriptor; to be called before each. Returns whether the program may poll: if not, there
    /// is something to do already (a connection that waits, an event, bytes, room or an end that no call has
    /// told of on a channel that is watched, [`Channel::watch`]). The descriptor also becomes readable now and then without cause.
    pub fn arm(&self) -> bool {
        let shared = &self.shared;
        shared.sleeper.clear();
        shared.arm();
        // The check that decides, after the poll was announced.
        let links = shared.progress();
        self.dispatch();
        let mut ready = links.iter().filter(|link| link.arm()).count() > 0;
        {
            let mut state = lock(&shared.state);
            shared.prune(&mut state);
            ready |= !state.events.is_empty() || !state.offers.is_empty();
        }
        if ready {
            shared.disarm();
        } else if links.iter().any(|link| link.is_unsure()) {
            shared.sleeper.look_within(UNSURE);
        }
        !ready
    }

    /// Stops all channels, as before a migration. Nothing is written to them any more: every write returns 0, and fails once the
    /// partner is gone or has closed the channel. The partners are asked to stop, too. When a partner has stopped, or after
    /// `limit`, its channel's unread bytes are handed over in an [`Event::Suspended`], or to the call-back. No connections are
    /// accepted until [`Context::resume`]. The channels stay suspended for ever: connect new ones once the members can be reached
    /// again. Returns the number of channels whose partner did not stop in time; what it writes after that is not delivered.
    ///
    /// # Source
    /// Steps 2 to 4 of the dissertation's figure 6.5.
    pub fn suspend(&self, limit: Duration) -> usize {
        let shared = &self.shared;
        {
            let mut state = lock(&shared.state);
            state.suspended = true;
            shared.shut(&mut state);
        }
        let mut waiting: Vec<Arc<Link>> = shared.links();
        waiting.iter().for_each(|link| link.pause());
        let deadline = wait::deadline(Some(limit));
        let mut tries = 0;
        loop {
            shared.progress();
            waiting.retain(|link| !link.is_settled());
            if waiting.is_empty() || wait::left(deadline).is_zero() {
                break;
            }
            nap(wait::unsure(tries).min(Duration::from_millis(5)));
            tries += 1;
        }
        let silent = waiting.len();
        waiting.iter().for_each(|link| link.hand_over());
        drop(waiting);
        self.dispatch();
        silent
    }

    /// After [`Context::suspend`]: accepts connections again, and reports all members of the group that can be reached as if
    /// they had just joined.
    pub fn resume(&self) {
        let shared = &self.shared;
        {
            let mut state = lock(&shared.state);
            state.suspended = false;
            shared.facts.words[BACKLOG].set(state.backlog.into());
            shared.refresh(&mut state);
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
        // Nothing is accepted from now on; channels that the program still holds go on.
        self.shared.shut(&mut state);
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

    /// Whether this is the process that registered: a forked child that drops its copies must touch nothing.
    pub(crate) fn is_ours(&self) -> bool {
        rustix::process::getpid() == self.owner
    }

    /// The member of the group with an address, if it is known to have come.
    pub(crate) fn member_at(&self, address: Address) -> Option<(Peer, Record)> {
        let mut state = lock(&self.state);
        let find = |state: &State| {
            let known = state.known.values().find(|known| known.peer.address == address)?;
            Some((known.peer.clone(), known.record.clone()))
        };
        find(&state).or_else(|| {
            self.refresh(&mut state);
            find(&state)
        })
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

    /// All channels. The caller must not drop them under the lock: dropping the last handle of a channel closes it, which
    /// takes the lock.
    fn links(&self) -> Vec<Arc<Link>> {
        let mut state = lock(&self.state);
        state.links.retain(|link| link.strong_count() > 0);
        state.links.iter().filter_map(Weak::upgrade).collect()
    }

    /// Checks the group and all channels; returns the channels.
    fn progress(&self) -> Vec<Arc<Link>> {
        {
            let mut state = lock(&self.state);
            self.refresh(&mut state);
        }
        let links = self.links();
        links.iter().for_each(|link| link.progress());
        links
    }

    /// Finds members that joined or left, new offers, and ends that can be given back.
    pub(crate) fn refresh(&self, state: &mut State) {
        self.refresh_group(state);
        self.poll_activity(state);
        self.settle(state);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.is_ours() {
            // Another thread of the parent's may have had the lock.
            return self.lender.get_mut().unwrap_or_else(PoisonError::into_inner).leave(None);
        }
        let mut state = std::mem::take(&mut *lock(&self.state));
        let begun = Instant::now();
        let mut tries = 0;
        let mut read_at = None;
        loop {
            self.refresh(&mut state);
            let unread = state.lingering.iter().any(|l| l.ring.is_some());
            if !unread && read_at.is_none() {
                read_at = Some(Instant::now());
            }
            let patient = match read_at {
                // Everything was read; the partners get time to see the end, too.
                Some(at) => at.elapsed() < GRACE.min(self.config.linger),
                None => begun.elapsed() < self.config.linger,
            };
            if state.lingering.is_empty() || !patient {
                break;
            }
            nap(Duration::from_micros(50).saturating_mul(1 << tries.min(5)));
            tries += 1;
        }
        if read_at.is_none() && !state.lingering.is_empty() {
            // A partner has not read everything. If the endpoint were closed in good order now, the partner would take
            // that for the end of the stream. So it stays open, with all memory, until the end of the attachment.
            return lock(&self.lender).leave(Some(&self.member));
        }
        if self.member.service().close_endpoint(self.local).is_err() {
            return lock(&self.lender).leave(Some(&self.member));
        }
        lock(&self.lender).give_back(&self.member);
        self.ring_group(&mut state);
        for lingering in std::mem::take(&mut state.lingering) {
            if let Some((at, bytes)) = lingering.ring {
                self.member.give(at, bytes);
            }
        }
        state.table.give_back(&self.member);
        self.member.give(self.block_at, block::BYTES);
    }
}
