//! The endpoint: posting, progress, completions.
//!
//! - `post`: what the caller posts: sends, receives, peeks, RMA.
//! - `progress`: what arrives, and what is pushed on.
//! - `sleep`: going to sleep, and waking others.
//! - `direct`: RMA and atomics that need no message.
//! - `lanes`: opening, accepting, closing lanes; peers that go.
//! - `backlog`: replies and posts that wait for room in a lane.
//! - `table`: operations that wait for the other side.
//! - `cushion`: what becomes of messages for which there is no memory.
//! - `tally`: what was done, for those who look at the region.
//!
//! An endpoint polls its *hot* lanes directly; one activity line for each peer of the region leads it to the others.

mod backlog;
mod cushion;
mod direct;
mod lanes;
mod post;
mod progress;
mod sleep;
mod table;
mod tally;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_lockfree::activity::Seen;
use isthmus_lockfree::life::{Life, State, unchanged};
use isthmus_region::directory::Directory;
use isthmus_region::format::{CHUNK_ENTRIES, GlobalSlot, KIND_LANES, block};
use isthmus_region::holds::Hold;
use isthmus_region::mapping::LineRef;
use isthmus_region::member::Member;

use crate::address::Address;
use crate::fault::{Step, step};
use crate::lane::{Incoming, Outgoing, Place, Size};
use crate::matching::{Bufs, Matching};
use crate::types::{Completion, Error, Memory, PeerId, Result, Ticket};
pub use lanes::MANY_LANES;
use progress::Moment;
pub use progress::{Short, ShortReceived, ShortSink, Sink};
pub use sleep::{Alarm, Asleep};
use table::Table;
use tally::{Sent, Tally};

/// Longest injected payload: fits any lane's data ring.
const INJECT_BYTES: usize = 4096;
/// Most operand bytes of an atomic operation, so that operands and compare values fit any data ring together.
const ATOMIC_BYTES: usize = 2048;
/// A good patience for [`Endpoint::close`]: a receiver may compute, be traced, or sit in a paused virtual machine.
pub const CLOSE_PATIENCE: Duration = Duration::from_secs(60);
/// How long an endpoint that is being closed confirms what others send to it.
const CONFIRMING: Duration = Duration::from_secs(1);

/// Choices for an endpoint. The defaults were found by measurement.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Messages up to this many bytes go through the data ring, longer ones are pipelined.
    pub eager_bytes: u64,
    /// Bytes of one chunk of a pipelined message.
    pub chunk_bytes: u64,
    /// Chunks in flight on one lane.
    pub pipeline_depth: usize,
    /// Lanes polled directly.
    pub hot_lanes: usize,
    /// Most bytes of this process's memory for posts that wait for room; beyond them posts are refused.
    pub backlog_bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            eager_bytes: 16 << 10,
            chunk_bytes: 32 << 10,
            pipeline_depth: 8,
            hot_lanes: 8,
            backlog_bytes: u64::MAX,
        }
    }
}

/// Whether a lane could ever not be accepted for want of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shortage {
    None,
    Seen,
    Told,
}

/// One remote endpoint.
#[derive(Debug)]
struct Peer {
    address: Address,
    /// The line of its endpoint record; none if its VM is gone.
    life: Option<LineRef>,
    /// What the line says while it lives.
    alive: u64,
    gone: bool,
    /// It did not go in good order: who waits for it waits in vain.
    died: bool,
    out: Option<Outgoing>,
    sent: Sent,
    /// What waits for room.
    backlog: backlog::Backlog,
    /// Pipelined messages on their way.
    pushes: VecDeque<Push>,
    /// In `Endpoint::busy`.
    is_busy: bool,
    /// What of its memory can be reached without messages.
    reach: direct::Reach,
    /// Somebody may know its number: the program asked for it, it has sent something, or it is to be remembered as faulty.
    is_kept: bool,
    /// In `Endpoint::strangers`.
    is_spare: bool,
}

/// Whether an endpoint's record says that it was closed in good order.
fn took_leave(word: u64, address: &Address) -> bool {
    let life = Life::unpack(word);
    life.state == State::Free && life.incarnation == address.incarnation
}

impl Peer {
    #[inline]
    fn lives(&self) -> bool {
        !self.gone && self.life.as_ref().is_some_and(|l| l.words[0].peek() == self.alive)
    }

    /// Whether what was copied out of its memory was its own (P5).
    #[inline]
    fn still_lives(&self) -> bool {
        self.life.as_ref().is_some_and(|l| unchanged(&l.words[0], self.alive))
    }
}

/// What a reply is owed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Because {
    /// A message of the peer's. It must not make us owe it any number of them: its lane is not read on meanwhile.
    Asked,
    /// A receive of our own for a message that was kept. Such replies are as many as we post, and must not keep us from
    /// reading: if both sides waited so, neither would ever find room.
    Posted,
}

/// What a peer named when it asked to read or write our memory. It is looked up again for each piece: the program may end
/// a registration, and free what was registered, however long the peer takes.
#[derive(Debug, Clone, Copy)]
struct Registered {
    key: u64,
    addr: u64,
}

impl Registered {
    /// The address of the byte at `at`. What was found with its whole length does not wrap.
    fn at(self, at: u64) -> u64 {
        self.addr.wrapping_add(at)
    }
}

/// A pipelined message on its way.
#[derive(Debug)]
struct Push {
    /// The receiver's operation.
    id: u64,
    bufs: Bufs,
    /// Where the bytes are registered, if they answer a read: `bufs` is then no longer ours to read once that has ended.
    registered: Option<Registered>,
    len: u64,
    at: u64,
    /// Our own operation, which waits for `DONE`.
    awaited: Option<u64>,
    /// Comes when all bytes are out of `bufs`.
    then: Option<Completion>,
}

/// An endpoint of another peer that may send to us.
#[derive(Debug)]
struct Sender {
    incarnation: u64,
    life: LineRef,
    block: LineRef,
    lanes_seen: u64,
    lanes: Vec<u32>,
}

/// One peer of the region, as far as it may send to us.
#[derive(Debug)]
struct Quarter {
    index: u32,
    incarnation: u64,
    directory: Directory,
    generation_seen: u64,
    activity: LineRef,
    seen: Seen,
    senders: Vec<Option<Sender>>,
}

/// A multi-receive.
#[derive(Debug)]
struct Multi {
    buf: isthmus_region::local::LocalBuf,
    used: u64,
    least: u64,
    ticket: Ticket,
    tagged: bool,
    /// Messages that are still being placed.
    inflight: u32,
    /// No longer posted.
    closed: bool,
    /// Taken back by the caller while messages were still being placed.
    canceled: bool,
}

/// A table in the area that grows by linked chunks of sixteen entries.
#[derive(Debug)]
struct Chunks {
    entry_bytes: u64,
    chunks: Vec<u64>,
    free: Vec<u32>,
}

impl Chunks {
    fn new(entry_bytes: u64) -> Self {
        Self { entry_bytes, chunks: Vec::new(), free: Vec::new() }
    }

    fn bytes(&self) -> u64 {
        64 + CHUNK_ENTRIES * self.entry_bytes
    }

    /// Offset of an entry.
    fn at(&self, number: u32) -> u64 {
        let chunk = self.chunks.get(number as usize / 16).copied().unwrap_or(0);
        chunk + 64 + u64::from(number % 16) * self.entry_bytes
    }
}

/// An endpoint; see the crate's description.
pub struct Endpoint {
    member: Arc<Member>,
    config: Config,
    memory: Box<dyn Memory>,
    slot: GlobalSlot,
    local: u32,
    incarnation: u64,
    block_at: u64,
    block: LineRef,
    hold: Hold,
    lanes: Chunks,
    accepts: Chunks,
    reserve: Option<Place>,
    peers: Vec<Peer>,
    by_address: HashMap<(u32, u64), PeerId>,
    /// Senders that are gone, and of whom nobody has heard.
    strangers: Vec<PeerId>,
    incoming: Vec<Option<Incoming>>,
    hot: Vec<u32>,
    cooling: Vec<u32>,
    /// Lanes whose senders sleep until more of them was read.
    askers: Vec<u32>,
    quarters: Vec<Quarter>,
    region_seen: u64,
    /// A peer was there whose directory could not be opened yet.
    retry_quarters: bool,
    /// A lane was offered that could not be accepted yet.
    retry_lanes: bool,
    /// Whether that ever was so, and who asked was told.
    shortage: Shortage,
    cushion: cushion::Cushion,
    matching: Matching,
    multis: HashMap<u32, Multi>,
    next_multi: u32,
    operations: Table,
    completions: VecDeque<Completion>,
    busy: Vec<PeerId>,
    chunk_pool: Vec<u64>,
    chunks_taken: u64,
    /// Bytes of memory that all queued posts take.
    backlog_bytes: u64,
    tally: Tally,
    ticks: u64,
    /// Ticks of the next look at the activity lines, and how far apart such looks are now.
    next_look: u64,
    look_every: u64,
    next_slow: u64,
    /// Until then a long message has just ended.
    recent_until: u64,
    open_lanes: usize,
    /// The line whose first word counts wake-ups of this endpoint.
    wake: LineRef,
    /// Sleeps so far; whether one lasts; how many in a row found nothing.
    sleeps: u64,
    asleep: Option<isthmus_lockfree::sleep::Bell>,
    naps: u32,
    /// A post was refused since the last sleep.
    refused: bool,
    crowded: bool,
    moment: Moment,
    /// Lanes that are closed here and not let go by their receivers yet.
    closing: Vec<(PeerId, Outgoing)>,
    /// Peers that broke the protocol, until they were named.
    faulty: Vec<PeerId>,
    /// Being closed: what others ask for is no longer done.
    leaving: bool,
    /// Being closed for a while: what others send is no longer confirmed.
    deaf: bool,
    closed: bool,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("slot", &self.slot)
            .field("peers", &self.peers.len())
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Opens an endpoint; `memory` is what others may reach by RMA.
    ///
    /// # Errors
    /// [`Error::Region`] when the region or the local service has no room.
    pub fn open(member: &Arc<Member>, config: Config, memory: Box<dyn Memory>) -> Result<Self> {
        let failed = |action| move |source| Error::Region { action, source };
        let block_at = member.take(block::BYTES).map_err(failed("take memory for an endpoint"))?;
        let section = member.section();
        section.zero("block", block_at, block::BYTES).map_err(failed("write an endpoint's block"))?;
        let block = section.line("block", block_at).map_err(failed("write an endpoint's block"))?;
        let hold = Hold::of(section, block_at).map_err(failed("write an endpoint's block"))?;
        let table = section.word("block", block_at + block::REGISTRATIONS);
        table.map_err(failed("write an endpoint's block"))?.put(memory.published().unwrap_or(0));
        let reserve = Place::take(member, Size::RESERVE, true);
        let reserve = reserve.map_err(failed("take memory for an endpoint's reserve"))?;
        let (local, incarnation) =
            member.service().open_endpoint(block_at).map_err(failed("publish an endpoint"))?;
        let wake = member.directory(member.peer()).and_then(|(_, d)| d.wake_line(local));
        let wake = wake.map_err(failed("find an endpoint's record"))?;
        let mut endpoint = Self {
            member: Arc::clone(member),
            config,
            memory,
            slot: member.region().shape().slot(member.peer(), local),
            local,
            incarnation,
            block_at,
            block,
            hold,
            lanes: Chunks::new(isthmus_region::format::lane::BYTES),
            accepts: Chunks::new(isthmus_region::format::accept::BYTES),
            reserve: Some(reserve),
            peers: Vec::new(),
            by_address: HashMap::new(),
            strangers: Vec::new(),
            incoming: Vec::new(),
            hot: Vec::new(),
            cooling: Vec::new(),
            askers: Vec::new(),
            quarters: Vec::new(),
            region_seen: u64::MAX,
            retry_quarters: false,
            retry_lanes: false,
            shortage: Shortage::None,
            cushion: cushion::Cushion::default(),
            matching: Matching::default(),
            multis: HashMap::new(),
            next_multi: 0,
            operations: Table::default(),
            completions: VecDeque::with_capacity(64),
            busy: Vec::new(),
            chunk_pool: Vec::new(),
            chunks_taken: 0,
            backlog_bytes: 0,
            tally: Tally::default(),
            ticks: 0,
            next_look: 0,
            look_every: 1,
            next_slow: 0,
            recent_until: 0,
            open_lanes: 0,
            wake,
            sleeps: 0,
            asleep: None,
            naps: 0,
            refused: false,
            crowded: false,
            moment: Moment::new(),
            closing: Vec::new(),
            faulty: Vec::new(),
            leaving: false,
            deaf: false,
            closed: false,
        };
        endpoint.reserve_entries().map_err(failed("take memory for an endpoint's first lanes"))?;
        endpoint.look_at_region();
        Ok(endpoint)
    }

    /// The endpoint's address.
    pub fn address(&self) -> Address {
        Address { region: self.member.region().shape().uuid, slot: self.slot, incarnation: self.incarnation }
    }

    /// Longest payload of an inject.
    pub fn inject_bytes(&self) -> usize {
        INJECT_BYTES
    }

    /// Most operand bytes of one atomic operation (operands and compare values each).
    pub fn atomic_bytes(&self) -> usize {
        ATOMIC_BYTES
    }

    /// The number of an address; the same address has the same number. The remote side need not have been used
    /// yet; if it is gone, posts to it say so.
    ///
    /// # Errors
    /// [`Error::OtherRegion`].
    pub fn resolve(&mut self, address: &Address) -> Result<PeerId> {
        let id = self.meet(address)?;
        self.peers[id.0 as usize].is_kept = true;
        Ok(id)
    }

    /// The same for a sender, whose number may become another one's once it is gone.
    fn meet(&mut self, address: &Address) -> Result<PeerId> {
        if address.region != self.member.region().shape().uuid
            || address.slot.0 >= self.member.region().shape().slots()
        {
            return Err(Error::OtherRegion);
        }
        let key = (address.slot.0, address.incarnation);
        if let Some(known) = self.by_address.get(&key) {
            return Ok(*known);
        }
        let endpoints = self.member.region().shape().endpoints;
        let life = self
            .member
            .directory(address.slot.peer(endpoints))
            .and_then(|(_, d)| d.endpoint_line(address.slot.local(endpoints)))
            .ok();
        let alive = Life { incarnation: address.incarnation, state: State::Active }.pack();
        let word = life.as_ref().map_or(0, |l| l.words[0].get());
        // A context of IVC answers no lane: a post to it shall say so instead of waiting for ever.
        let gone = word != alive || !self.takes_lanes(address);
        let peer = Peer {
            address: *address,
            life,
            alive,
            gone,
            died: gone && !took_leave(word, address),
            out: None,
            sent: Sent::default(),
            backlog: backlog::Backlog::default(),
            pushes: VecDeque::new(),
            is_busy: false,
            reach: direct::Reach::default(),
            is_kept: false,
            is_spare: false,
        };
        let id = if let Some(id) = self.take_spare() {
            self.peers[id.0 as usize] = peer;
            id
        } else {
            self.peers.push(peer);
            PeerId(u32::try_from(self.peers.len() - 1).unwrap_or(u32::MAX))
        };
        self.by_address.insert(key, id);
        Ok(id)
    }

    /// The number of a sender that is gone, and that nobody heard of.
    fn take_spare(&mut self) -> Option<PeerId> {
        while let Some(id) = self.strangers.pop() {
            let peer = &mut self.peers[id.0 as usize];
            peer.is_spare = false;
            if !peer.is_kept {
                self.by_address.remove(&(peer.address.slot.0, peer.address.incarnation));
                return Some(id);
            }
        }
        None
    }

    /// Remembers that the number of a peer that is gone may become another one's, unless somebody may know it.
    fn spare(&mut self, id: PeerId) {
        let peer = &mut self.peers[id.0 as usize];
        if peer.gone && !peer.is_kept && !peer.is_spare {
            peer.is_spare = true;
            self.strangers.push(id);
        }
    }

    /// Whether the endpoint at an address is one with lanes.
    fn takes_lanes(&self, address: &Address) -> bool {
        let endpoints = self.member.region().shape().endpoints;
        let Ok((_, directory)) = self.member.directory(address.slot.peer(endpoints)) else { return false };
        let Ok(info) = directory.endpoint(address.slot.local(endpoints)) else { return false };
        let kind =
            info.block.checked_add(block::KIND).and_then(|at| directory.section().word("block", at).ok());
        kind.is_some_and(|kind| kind.get() == KIND_LANES)
    }

    /// The address of a peer.
    pub fn peer_address(&self, peer: PeerId) -> Option<Address> {
        self.peers.get(peer.0 as usize).map(|p| p.address)
    }

    /// A peer that broke the protocol and was treated as gone since, each once: its process, as its service knows it,
    /// and its address. For logs.
    pub fn take_faulty(&mut self) -> Option<String> {
        let address = self.peers.get(self.faulty.pop()?.0 as usize)?.address;
        let endpoints = self.member.region().shape().endpoints;
        let index = address.slot.peer(endpoints);
        let info = self.member.region().peer(index).ok().flatten();
        // What its own section says may be garbage, too.
        let pid = self.member.directory(index).and_then(|(_, d)| d.endpoint(address.slot.local(endpoints)));
        let process = pid.map_or_else(|_| "a process".to_owned(), |e| format!("process {}", e.pid));
        let name = info.map_or_else(|| format!("peer {index}"), |i| format!("'{}'", i.name));
        Some(format!("{process} of {name} ({address})"))
    }

    /// Whether others wait to send to us since the section has no memory for us to receive it, which is said once. For
    /// logs.
    #[inline]
    pub fn take_shortage(&mut self) -> bool {
        let seen = self.shortage == Shortage::Seen;
        if seen {
            self.shortage = Shortage::Told;
        }
        seen
    }

    /// Whether others wait to send to us since this process has no memory left for messages that nobody receives yet,
    /// which is said once. For logs.
    #[inline]
    pub fn take_memory_shortage(&mut self) -> bool {
        self.cushion.take_shortage()
    }

    /// The oldest completion that was not taken yet.
    #[inline]
    pub fn pop(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Whether there is a lane to or from anybody.
    pub fn has_lanes(&self) -> bool {
        self.open_lanes > 0 || self.incoming.iter().any(Option::is_some)
    }

    /// Bytes of memory that posts take which wait for room.
    pub fn backlog_bytes(&self) -> u64 {
        self.backlog_bytes
    }

    /// Whether something sent has not been taken by its receiver yet (a close would wait for it).
    pub fn is_flushing(&mut self) -> bool {
        let mut flushing = false;
        for peer in &mut self.peers {
            if peer.gone {
                continue;
            }
            if !peer.backlog.is_empty() || !peer.pushes.is_empty() {
                flushing = true;
                continue;
            }
            if let Some(out) = &mut peer.out {
                // A faulty receiver is not waited for.
                if !out.is_drained().unwrap_or(true) {
                    flushing = true;
                    // Not accepted yet: the answer shows where the read position is.
                    if !out.is_accepted() {
                        out.accepts_seen = None;
                    }
                }
            }
        }
        flushing
    }

    /// A number that changes whenever a receiver takes something of what was sent.
    fn moves(&self) -> u64 {
        let of = |p: &Peer| {
            let taken = p.out.as_ref().map_or(0, |out| out.written().wrapping_add(out.read_seen()));
            let pushed = p.pushes.iter().map(|push| push.at + 1).sum::<u64>();
            taken.wrapping_add(pushed).wrapping_sub(p.backlog.count() as u64)
        };
        self.peers.iter().filter(|p| !p.gone).map(of).fold(0, u64::wrapping_add)
    }

    /// How many receivers have not taken yet what was sent to them.
    fn waited_for(&mut self) -> usize {
        let waits = |p: &mut Peer| {
            let full = p.out.as_mut().is_some_and(|out| !out.is_drained().unwrap_or(true));
            !p.gone && (full || !p.backlog.is_empty() || !p.pushes.is_empty())
        };
        self.peers.iter_mut().filter_map(|p| waits(p).then_some(())).count()
    }

    /// Closes the endpoint: what was sent still arrives, as long as its receivers live and take it. A receiver that
    /// lives and takes nothing for as long as `patience` is not waited for any longer. Gives the number of those. Remote
    /// reads, writes and atomics that come meanwhile are not done, and messages that come after the first second are not
    /// confirmed; who waits for either learns that this endpoint is gone.
    pub fn close(self, patience: Duration) -> usize {
        let mut closing = self.begin_close(patience);
        loop {
            if let Some(waited_for) = closing.advance() {
                return waited_for;
            }
            closing.rest();
        }
    }

    /// As [`Endpoint::close`], but the caller does it bit by bit, for those who have something to do in between.
    pub fn begin_close(mut self, patience: Duration) -> Closing {
        self.leaving = true;
        let (moves, begin) = (self.moves(), Instant::now());
        Closing { endpoint: self, patience, rounds: 0, begin, moves, since: begin }
    }
}

/// An endpoint that is being closed. It is gone once this is dropped.
#[derive(Debug)]
pub struct Closing {
    endpoint: Endpoint,
    patience: Duration,
    rounds: u32,
    begin: Instant,
    /// [`Endpoint::moves`], and since when it is that.
    moves: u64,
    since: Instant,
}

impl Closing {
    /// Moves everything that can be moved. Once there is nothing more to wait for, it gives the number of receivers that
    /// live and have not taken what was sent.
    pub fn advance(&mut self) -> Option<usize> {
        let endpoint = &mut self.endpoint;
        endpoint.progress();
        endpoint.look_for_accepts();
        if !endpoint.is_flushing() {
            return Some(0);
        }
        self.rounds += 1;
        if self.rounds.is_multiple_of(64) {
            endpoint.slow();
            endpoint.deaf = self.begin.elapsed() >= CONFIRMING;
            let now = endpoint.moves();
            if now != self.moves {
                (self.moves, self.since) = (now, Instant::now());
            } else if self.since.elapsed() >= self.patience {
                return Some(endpoint.waited_for());
            }
        }
        None
    }

    /// Offers the processor to others, between two of [`Closing::advance`].
    pub fn rest(&self) {
        if self.rounds > 10_000 {
            std::thread::sleep(Duration::from_micros(50));
        } else {
            std::thread::yield_now();
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        self.closed = true;
        self.settle();
        // The record first: after it, nobody takes what is in our memory for messages (P5). A service that is gone
        // leaves the record to nobody: the process's own end is then all that tells, and nobody gets the memory before.
        step(Step::Closing);
        let told = self.member.service().close_endpoint(self.local).is_ok();
        step(Step::Closed);
        if told {
            self.give_back_everything();
        }
    }
}
