//! The endpoint: posting, progress, completions.
//!
//! - `api`: what programs call.
//! - `post`: what the caller posts: sends, receives, peeks, RMA.
//! - `poll`: polling the lanes, and the order of progress.
//! - `two_sided`: messages that arrive, and their receives.
//! - `payload`: what a message brings, wherever it lies.
//! - `target`: reads, writes and atomics served for others.
//! - `push`: pipelined messages, replies.
//! - `offer`: long messages that are copied in one copy from where their program has them.
//! - `attach`: those in memory of the sender's process.
//! - `resident`: those in memory of the region.
//! - `grants`: long messages that are copied from pages that their sender grants.
//! - `ways`: which way a long message goes.
//! - `work`: whether the program works meanwhile.
//! - `depth`: how many of its chunks are under way.
//! - `direct`: RMA and atomics that need no message.
//! - `path`: how a remote endpoint is reached.
//! - `outgoing`, `incoming`: opening, accepting, closing lanes.
//! - `heat`: which lanes are polled directly.
//! - `entries`: tables of lane descriptors and accept entries.
//! - `remotes`: remote endpoints, and their deaths.
//! - `backlog`: replies and posts that wait for room in a lane.
//! - `table`: operations that wait for the remote endpoint.
//! - `cushion`: messages for which there is no memory.
//! - `sleep`: going to sleep, and waking others.
//! - `tally`: counters.
//! - `close`: the end of an endpoint.
//!
//! An endpoint polls its *hot* lanes directly; one activity line for each peer of the region leads it to the others.

mod api;
mod attach;
mod backlog;
mod close;
mod cushion;
mod depth;
mod direct;
mod entries;
mod grants;
mod heat;
mod incoming;
mod offer;
mod outgoing;
mod path;
mod payload;
mod poll;
mod post;
mod push;
mod remotes;
mod resident;
mod sleep;
mod table;
mod tally;
mod target;
mod two_sided;
mod ways;
mod work;

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Instant;

use isthmus_region::chain::{self, Chain};
use isthmus_region::doorbell::Sleeper;
use isthmus_region::format::{GlobalSlot, block};
use isthmus_region::holds::Hold;
use isthmus_region::mapping::LineRef;
use isthmus_region::member::Member;
use isthmus_region::roster::{Record, Roster};
use isthmus_region::{PeerSection, ReadOnly};

use crate::address::Address;
use crate::lane::{Incoming, Outgoing, Place, Size};
use crate::matching::{Bufs, Matching};
use crate::types::{Completion, Error, Long, Memory, PeerId, Replacement, Result, Ticket};
pub use attach::LEAST as ATTACH_BYTES;
pub use close::{CLOSE_PATIENCE, Closing};
pub use offer::{Offer, Space};
pub use outgoing::MANY_LANES;
use path::Path;
use poll::Spin;
pub use poll::{Short, ShortReceived, ShortSink, Sink};
use remotes::Unmapped;
pub use sleep::Asleep;
use table::Table;
use tally::{Sent, Tally};

/// Longest injected payload: fits any lane's data ring.
const INJECT_BYTES: usize = 4096;
/// Most operand bytes of an atomic operation, so that operands and compare values fit any data ring together.
const ATOMIC_BYTES: usize = 2048;
/// Settings of an endpoint. The defaults were found by measurement.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Messages up to this many bytes go through the data ring, longer ones are pipelined.
    pub eager_bytes: u64,
    /// Bytes of one chunk of a pipelined message.
    pub chunk_bytes: u64,
    /// Chunks in flight on one lane.
    pub pipeline_depth: usize,
    /// The same where a receiver has found that many are faster.
    pub deep_pipeline: usize,
    /// Lanes polled directly.
    pub hot_lanes: usize,
    /// Most bytes of this process's memory for queued posts; beyond them posts are refused.
    pub backlog_bytes: u64,
    /// The way of long messages.
    pub long: Long,
    /// Which granted pages make room for others.
    pub replacement: Replacement,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            eager_bytes: 16 << 10,
            chunk_bytes: 32 << 10,
            pipeline_depth: 8,
            deep_pipeline: 32,
            hot_lanes: 8,
            backlog_bytes: u64::MAX,
            long: Long::Auto,
            replacement: Replacement::Idle,
        }
    }
}

/// Whether a lane was ever not accepted for want of memory.
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
    /// Where it is: its endpoint record; none if its peer is gone.
    record: Option<Record>,
    path: Path,
    sent: Sent,
    /// What waits for room.
    backlog: backlog::Backlog,
    /// Pipelined messages on their way.
    pushes: VecDeque<Push>,
    /// In `Endpoint::busy`.
    is_busy: bool,
    /// What of its memory can be reached without messages.
    reach: direct::Reach,
    /// It is this endpoint itself.
    is_own: bool,
    /// Long messages may be copied from its process's memory, and from ours by it, if the system allows that.
    is_near: bool,
    attach: attach::Reach,
    /// The pool of pages of its system, if that is another that grants some, and what the grant table there calls its process.
    pool: Option<(isthmus_region::grants::Pool, u64)>,
    ways: ways::Ways,
    depths: depth::Depths,
    /// Messages that are being copied from where its program has them.
    pulls: VecDeque<offer::Pull>,
    /// Where those are that lie in memory of the region.
    section: Option<PeerSection>,
    /// The program may know its number: it resolved the address, or got a message from it; or it is faulty.
    is_kept: bool,
    /// In `Endpoint::strangers`: its number may be used again.
    is_spare: bool,
}

/// What made us owe a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Because {
    /// A message. The number of such replies is bounded: a sender that is owed too many is not read.
    Asked,
    /// A receive of our own for a kept message. There are as many as we post, and they must not keep us from
    /// reading the lane: if both endpoints stopped reading, neither would ever find room.
    Posted,
}

/// The registration that an initiator named. It is looked up again for each piece, since the program may end
/// it and free its memory while the initiator takes its time.
#[derive(Debug, Clone, Copy)]
struct Registered {
    key: u64,
    addr: u64,
}

impl Registered {
    /// The address of byte `at`. It does not wrap: `Memory::find` has accepted the whole length.
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
    /// Where the bytes are registered, if they answer a read: `bufs` must not be read once the registration
    /// has ended.
    registered: Option<Registered>,
    len: u64,
    at: u64,
    /// Our operation that waits for `DONE`.
    awaited: Option<u64>,
    /// The completion, once all bytes are out of `bufs`.
    then: Option<Completion>,
    /// The receiver wants granted pages.
    granted: bool,
    /// It wants a deep pipeline.
    is_deep: bool,
    /// The chunk of them that was looked for last, and those that are under way.
    found: Option<grants::Found>,
    pins: Vec<grants::Pin>,
    /// Bytes that went in pages.
    paged: u64,
}

impl Push {
    /// A message that is copied, from its first byte on.
    fn new(id: u64, bufs: Bufs, len: u64, awaited: Option<u64>) -> Self {
        let (registered, then, found) = (None, None, None);
        Self {
            id,
            bufs,
            registered,
            len,
            at: 0,
            awaited,
            then,
            granted: false,
            is_deep: false,
            found,
            pins: Vec::new(),
            paged: 0,
        }
    }
}

/// A remote endpoint that may send to us.
#[derive(Debug)]
struct Sender {
    address: Address,
    record: Record,
    block: LineRef<ReadOnly>,
    lanes_seen: u64,
    lanes: Vec<u32>,
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
    /// Cancelled by the caller while messages were still being placed.
    canceled: bool,
}

/// An endpoint; see the crate's description.
pub struct Endpoint {
    core: Core,
    /// None while its process is attached nowhere.
    berth: Option<Berth>,
}

/// What an endpoint is, wherever its process is attached: the remote endpoints that it knows, what is posted, and what waits.
struct Core {
    address: Address,
    config: Config,
    memory: Box<dyn Memory>,
    peers: Vec<Peer>,
    by_address: HashMap<Address, PeerId>,
    /// Senders that are gone and were never reported to the program; their numbers may be used again.
    strangers: Vec<PeerId>,
    /// Faulty remote endpoints that [`Endpoint::take_faulty`] has not returned yet.
    faulty: Vec<PeerId>,
    /// Remote endpoints for which replies, pipelines or posts wait.
    busy: Vec<PeerId>,
    /// Those for which a reply or pipeline has begun since the last [`Core::answer`].
    owed: Vec<PeerId>,
    matching: Matching,
    multis: HashMap<u32, Multi>,
    next_multi: u32,
    /// The value of the last offer's word.
    next_offer: u64,
    /// Questions to the service about a process that had no answer.
    unanswered: u32,
    /// It is too slow, or gone: it is asked no more.
    is_unheard: bool,
    /// Whether any receiver has ever asked for a deep pipeline.
    has_deep: bool,
    cushion: cushion::Cushion,
    unmapped: Unmapped,
    operations: Table,
    completions: VecDeque<Completion>,
    /// Bytes of memory that all queued posts take.
    backlog_bytes: u64,
    /// A post was refused since the last sleep.
    refused: bool,
    tally: Tally,
    /// The room of an atomic operation's former values, kept for the next one.
    values: Vec<u8>,
    ticks: u64,
    watch: work::Watch,
    /// How often in a row [`Core::can_wait`] said so.
    waited: u32,
    /// Until this tick a long message counts as just ended.
    recent_until: u64,
    spin_plan: Spin,
    /// Being closed: requests of others are no longer answered.
    leaving: bool,
    /// Being closed for a while: messages are no longer confirmed.
    deaf: bool,
}

/// What an endpoint has of the region that its process is attached to: its slot, its block with the lanes' tables, and the lanes
/// that lead to it.
struct Berth {
    member: Arc<Member>,
    slot: GlobalSlot,
    local: u32,
    incarnation: u64,
    block_at: u64,
    block: LineRef,
    hold: Hold,
    /// Where threads sleep that wait for this endpoint.
    sleeper: Arc<Sleeper>,
    lanes: Chain,
    accepts: Chain,
    reserve: Option<Place>,
    open_lanes: usize,
    /// Closed lanes whose receivers have not cleared their accept entries yet.
    closing: Vec<(PeerId, Outgoing)>,
    /// When the last of them was closed.
    closed: Option<Instant>,
    chunk_pool: Vec<u64>,
    chunks_taken: usize,
    /// The fewest chunks that were in the pool, and since when.
    idle_chunks: Option<(usize, Instant)>,
    /// The peers of the region, each with those of its endpoints that may send to us, by slot.
    roster: Roster<Vec<Option<Sender>>>,
    incoming: Vec<Option<Incoming>>,
    hot: Vec<u32>,
    cooling: Vec<u32>,
    /// When the last of them was.
    cooled: Option<Instant>,
    /// Lanes whose senders sleep until more of the lane was read.
    waiters: Vec<u32>,
    /// A lane could not be accepted yet.
    retry_lanes: bool,
    /// Whether `retry_lanes` was ever set, and that was reported.
    shortage: Shortage,
    /// Tick of the next poll of the activity lines, 0 while no lane is hot; and how many ticks apart such polls are now.
    next_activity: u64,
    activity_every: u64,
    next_slow: u64,
    /// Sleeps so far; whether one lasts; how many in a row found nothing.
    sleeps: u64,
    asleep: Option<isthmus_lockfree::sleep::Bell>,
    naps: u32,
    crowded: bool,
    /// As [`Member::may_attach`].
    may_attach: bool,
    /// The pages that this process has granted, where it may.
    grants: Option<grants::Cache>,
    /// Words of offers in memory of the region.
    offers: resident::Words,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("address", &self.core.address)
            .field("peers", &self.core.peers.len())
            .finish_non_exhaustive()
    }
}

impl Core {
    fn new(address: Address, config: Config, memory: Box<dyn Memory>) -> Self {
        Self {
            address,
            config,
            memory,
            peers: Vec::new(),
            by_address: HashMap::new(),
            strangers: Vec::new(),
            faulty: Vec::new(),
            busy: Vec::new(),
            owed: Vec::new(),
            matching: Matching::default(),
            multis: HashMap::new(),
            next_multi: 0,
            next_offer: RandomState::new().hash_one(0_u8),
            unanswered: 0,
            is_unheard: false,
            has_deep: false,
            cushion: cushion::Cushion::default(),
            unmapped: Unmapped::default(),
            operations: Table::default(),
            completions: VecDeque::with_capacity(64),
            backlog_bytes: 0,
            refused: false,
            tally: Tally::default(),
            values: Vec::new(),
            ticks: 0,
            watch: work::Watch::default(),
            waited: 0,
            recent_until: 0,
            spin_plan: Spin::new(),
            leaving: false,
            deaf: false,
        }
    }
}

/// Memory of an endpoint that is not published yet: given back, unless it is kept.
struct Taken<'a> {
    member: &'a Member,
    block: Option<u64>,
    reserve: Option<Place>,
}

impl Taken<'_> {
    fn keep(&mut self) {
        (self.block, self.reserve) = (None, None);
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(reserve) = self.reserve {
            reserve.give(self.member);
        }
        if let Some(block) = self.block {
            self.member.give(block, block::BYTES);
        }
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
        let mut taken = Taken { member, block: Some(block_at), reserve: None };
        let section = member.section();
        section.zero("block", block_at, block::BYTES).map_err(failed("write an endpoint's block"))?;
        let block = section.line("block", block_at).map_err(failed("write an endpoint's block"))?;
        let hold = Hold::of(section, block_at).map_err(failed("write an endpoint's block"))?;
        let table = section.word("block", block_at + block::REGISTRATIONS);
        table.map_err(failed("write an endpoint's block"))?.put(memory.published().unwrap_or(0));
        let reserve = Place::take(member, Size::RESERVE, true);
        let reserve = reserve.map_err(failed("take memory for an endpoint's reserve"))?;
        taken.reserve = Some(reserve);
        let opened = member.service().open_endpoint(block_at);
        // Where the service has not answered, it may publish the endpoint yet: its memory must serve nothing else.
        if !matches!(opened, Err(isthmus_region::Error::Full { .. })) {
            taken.keep();
        }
        let (local, incarnation) = opened.map_err(failed("publish an endpoint"))?;
        let sleeper = Sleeper::new(member, local, false).map_err(failed("find an endpoint's record"))?;
        let longest = sleep::LONGEST.max(sleeper.most());
        let slot = member.region().shape().slot(member.peer(), local);
        let most_chunks = chain::most_lane_chunks(member.region().shape());
        let berth = Berth {
            member: Arc::clone(member),
            slot,
            local,
            incarnation,
            block_at,
            block,
            hold,
            sleeper: Arc::new(sleeper.with_longest(longest)),
            lanes: Chain::new(chain::LANES, most_chunks),
            accepts: Chain::new(chain::ACCEPTS, most_chunks),
            reserve: Some(reserve),
            open_lanes: 0,
            closing: Vec::new(),
            closed: None,
            chunk_pool: Vec::new(),
            chunks_taken: 0,
            idle_chunks: None,
            roster: Roster::default(),
            incoming: Vec::new(),
            hot: Vec::new(),
            cooling: Vec::new(),
            cooled: None,
            waiters: Vec::new(),
            retry_lanes: false,
            shortage: Shortage::None,
            next_activity: 0,
            activity_every: 1,
            next_slow: 0,
            sleeps: 0,
            asleep: None,
            naps: 0,
            crowded: false,
            may_attach: member.may_attach(),
            grants: grants::Cache::of(member, config.long, config.replacement),
            offers: resident::Words::default(),
        };
        let address = member.address(local).map_err(failed("find an endpoint's record"))?;
        // From now on it closes itself where something fails.
        let mut endpoint = Self { core: Core::new(address, config, memory), berth: Some(berth) };
        if let Self { core, berth: Some(berth) } = &mut endpoint {
            berth.reserve_entries().map_err(failed("take memory for an endpoint's first lanes"))?;
            core.check_region(berth);
        }
        Ok(endpoint)
    }

    /// The endpoint's address.
    pub fn address(&self) -> Address {
        self.core.address
    }

    /// Longest payload of an inject.
    pub fn inject_bytes(&self) -> usize {
        INJECT_BYTES
    }

    /// Most operand bytes of one atomic operation (operands and compare values each).
    pub fn atomic_bytes(&self) -> usize {
        ATOMIC_BYTES
    }

    /// Whether senders wait because the section has no memory for more accept entries; true once. For logs.
    #[inline]
    pub fn take_shortage(&mut self) -> bool {
        let Some(berth) = &mut self.berth else { return false };
        let seen = berth.shortage == Shortage::Seen;
        if seen {
            berth.shortage = Shortage::Told;
        }
        seen
    }

    /// Whether senders wait because this process has no memory left for messages without a receive; true
    /// once. For logs.
    #[inline]
    pub fn take_memory_shortage(&mut self) -> bool {
        self.core.cushion.take_shortage()
    }

    /// The oldest completion that was not taken yet.
    #[inline]
    pub fn pop(&mut self) -> Option<Completion> {
        self.core.completions.pop_front()
    }

    /// Whether there is a lane to or from any endpoint.
    pub fn has_lanes(&self) -> bool {
        let has = |berth: &Berth| berth.open_lanes > 0 || berth.incoming.iter().any(Option::is_some);
        self.berth.as_ref().is_some_and(has)
    }

    /// Bytes of memory that queued posts take.
    pub fn backlog_bytes(&self) -> u64 {
        self.core.backlog_bytes
    }
}
