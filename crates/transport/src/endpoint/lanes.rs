//! Opening, accepting and closing lanes; peers that come and go.

use isthmus_lockfree::activity::Seen;
use isthmus_lockfree::life::{Life, State, unchanged};
use isthmus_lockfree::sync::release_fence;
use isthmus_region::counters::Counter;
use isthmus_region::directory::Directory;
use isthmus_region::format::{CHUNK_ENTRIES, GlobalSlot, accept, block, chunk, lane};
use isthmus_region::mapping::LineRef;
use isthmus_region::{Section, SlotRing};

use super::progress::{Keep, release_of};
use super::table::Operation;
use super::{Chunks, Endpoint, Peer, Quarter, Sender, Shortage, took_leave};
use crate::address::Address;
use crate::fault::{Step, step};
use crate::lane::{Incoming, Outgoing, Place, Size};
use crate::matching::Target;
use crate::types::{Op, PeerId, PostError, Status};

/// Lanes above which new ones are small.
pub const MANY_LANES: usize = 32;
/// Chunks that an endpoint takes of its area, at most: the depth of four lanes' pipelines.
const MOST_CHUNKS: u64 = 32;
/// Lanes that are taken from one sender: the one that is open, and one that was closed while we looked.
const MOST_LANES: usize = 2;

/// Where the next chunk of a pipelined message goes.
pub(super) struct ChunkPlace {
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// From the pool, and not from the lane's data ring.
    pub(super) pooled: bool,
}

/// What a lane descriptor claims; nothing is checked yet.
struct Claim {
    number: u32,
    generation: u64,
    /// Offset of the ring, and its slots.
    ring: (u64, u64),
    descriptor: LineRef,
}

impl Claim {
    /// What descriptor `number` claims, if it is one of a lane to `slot` in its life `incarnation`. A descriptor that
    /// becomes another lane's while it is read claims nothing: the version changes after that (P5).
    fn read(number: u32, descriptor: LineRef, slot: GlobalSlot, incarnation: u64) -> Option<Self> {
        let words = &descriptor.words;
        let seen = words[0].get();
        let life = Life::unpack(seen);
        if life.state != State::Active {
            return None;
        }
        let ours = words[1].peek() == u64::from(slot.0) && words[2].peek() == incarnation;
        let ring = (words[3].peek(), words[4].peek() & 0xffff_ffff);
        let is_one = unchanged(&words[0], seen);
        (ours && is_one).then_some(Self { number, generation: life.incarnation, ring, descriptor })
    }
}

impl Endpoint {
    /// Takes a free entry of a table, adding a chunk where needed.
    fn take_entry(&mut self, lanes: bool) -> isthmus_region::Result<u32> {
        let table = if lanes { &mut self.lanes } else { &mut self.accepts };
        if let Some(number) = table.free.pop() {
            return Ok(number);
        }
        let bytes = table.bytes();
        let at = self.member.take(bytes)?;
        let section = self.member.section();
        section.zero("chunk", at, bytes)?;
        let first = u32::try_from(table.chunks.len()).unwrap_or(u32::MAX) * 16;
        let link = match table.chunks.last() {
            Some(last) => section.word("chunk", last + chunk::NEXT)?,
            None => {
                section.word("block", self.block_at + if lanes { block::LANES } else { block::ACCEPTS })?
            }
        };
        link.set(at);
        table.chunks.push(at);
        table.free.extend((first + 1..first + 16).rev());
        Ok(first)
    }

    fn bump_version(&self, lanes: bool) {
        let word = &self.block.words[if lanes { 1 } else { 3 }];
        word.set(word.peek().wrapping_add(1));
    }

    /// Opens the lane to a peer.
    pub(super) fn open_lane(&mut self, to: PeerId) -> Result<(), PostError> {
        let address = self.peers[to.0 as usize].address;
        if !self.peers[to.0 as usize].lives() {
            return Err(PostError::PeerGone);
        }
        let size = if self.open_lanes >= MANY_LANES { Size::SMALL } else { Size::USUAL };
        let place = match Place::take(&self.member, size, false) {
            Ok(place) => place,
            // The region is full: the reserve serves one peer after the other.
            Err(_) => match self.reserve.take() {
                Some(reserve) => reserve,
                None => {
                    self.make_room();
                    return Err(PostError::Again);
                }
            },
        };
        step(Step::LaneTaken);
        match self.describe(to, &address, place) {
            Ok(out) => {
                step(Step::LaneOpened);
                self.peers[to.0 as usize].out = Some(out);
                self.open_lanes += 1;
                self.tally.add(Counter::LanesOpened, 1);
                Ok(())
            }
            Err(_) => {
                // No descriptor is free, and there is no room for more of them: the reserve alone does not help.
                self.give_place(place);
                self.make_room();
                Err(PostError::Again)
            }
        }
    }

    /// Closes a lane in favour of another, in a full region.
    fn make_room(&mut self) {
        if self.closing.is_empty() {
            self.close_an_idle_lane();
        }
        self.finish_closing();
    }

    /// Takes the first chunk of both tables, so that a full region keeps no endpoint from its first lanes.
    pub(super) fn reserve_entries(&mut self) -> isthmus_region::Result<()> {
        let first = self.take_entry(true)?;
        self.lanes.free.push(first);
        let first = self.take_entry(false)?;
        self.accepts.free.push(first);
        Ok(())
    }

    fn give_place(&mut self, place: Place) {
        if place.reserve {
            self.reserve = Some(place);
        } else {
            place.give(&self.member);
        }
    }

    /// Writes a lane's descriptor.
    fn describe(&mut self, to: PeerId, address: &Address, place: Place) -> isthmus_region::Result<Outgoing> {
        let own = self.member.directory(self.member.peer())?.1;
        let activity = own.activity(address.slot.0)?;
        let number = self.take_entry(true)?;
        let section = self.member.section();
        let ring = section.ring("ring", place.ring, place.size.slots)?;
        let at = self.lanes.at(number);
        let (descriptor, counters) = (section.line("lane", at)?, section.line("lane", at + lane::MESSAGES)?);
        let generation = Life::unpack(descriptor.words[0].peek()).incarnation + 1;
        let sleeper = self.remote_block(address).map(|(_, line)| line);
        let out =
            Outgoing::new(number, place, ring, descriptor.clone(), counters, activity, self.local, sleeper);
        out.tell(&self.peers[to.0 as usize].totals());
        let words = &descriptor.words;
        // Who sees any of this sees that the descriptor is no longer the lane's before (P5).
        release_fence();
        words[1].put(address.slot.0.into());
        words[2].put(self.peers[to.0 as usize].address.incarnation);
        words[3].put(place.ring);
        words[4].put(place.size.slots | (place.size.data_bytes << 32));
        words[5].put(place.data);
        words[6].put(0);
        words[7].put(0);
        step(Step::LaneDescribed);
        words[0].set(Life { incarnation: generation, state: State::Active }.pack());
        step(Step::LaneAlive);
        self.bump_version(true);
        Ok(out)
    }

    /// The block line of a remote endpoint.
    fn remote_block(&self, address: &Address) -> Option<(Section, LineRef)> {
        let endpoints = self.member.region().shape().endpoints;
        let (_, directory) = self.member.directory(address.slot.peer(endpoints)).ok()?;
        let info = directory.endpoint(address.slot.local(endpoints)).ok()?;
        if !info.life.is_active(address.incarnation) {
            return None;
        }
        let line = directory.section().line("block", info.block).ok()?;
        Some((directory.section().clone(), line))
    }

    /// Looks whether a receiver has accepted our lane.
    pub(super) fn look_for_accept(&mut self, to: PeerId) {
        let peer = &self.peers[to.0 as usize];
        let Some(out) = peer.out.as_ref().filter(|o| !o.is_accepted()) else { return };
        let Some((section, line)) = self.remote_block(&peer.address) else { return };
        let version = line.words[3].get();
        if out.accepts_seen == Some(version) {
            return;
        }
        let key = accept_key(self.slot, out.number);
        let generation = self.member.section().word("lane", self.lanes.at(out.number)).map(|w| w.peek() >> 8);
        let generation = generation.unwrap_or(0);
        let found = self.find_accept(&section, line.words[2].get(), key, generation);
        let Some(out) = &mut self.peers[to.0 as usize].out else { return };
        match found {
            Some((heat, read)) => out.accept(heat, read),
            None => out.accepts_seen = Some(version),
        }
    }

    /// Searches a receiver's accept table. The number of chunks is bounded by what the region can hold, so that a
    /// receiver that links them in a circle wastes little of our time.
    fn find_accept(
        &self,
        section: &Section,
        first: u64,
        key: u64,
        generation: u64,
    ) -> Option<(LineRef, LineRef)> {
        let mut at = first;
        for _ in 0..=u64::from(self.member.region().shape().slots()) / CHUNK_ENTRIES {
            if at == 0 {
                return None;
            }
            let next = section.word("chunk", at.checked_add(chunk::NEXT)?).ok()?.get();
            section.part("accepts", at, 64 + CHUNK_ENTRIES * accept::BYTES).ok()?;
            for i in 0..CHUNK_ENTRIES {
                let entry = at + 64 + i * accept::BYTES;
                let heat = section.line("accept", entry).ok()?;
                if heat.words[0].get() == key
                    && heat.words[1].peek() == generation
                    && heat.words[2].peek() == self.incarnation
                {
                    return Some((heat, section.line("accept", entry + accept::READ).ok()?));
                }
            }
            at = next;
        }
        None
    }

    /// Looks for answers to all lanes that have none, answers requests to cool, and collects chunks.
    pub(super) fn look_for_accepts(&mut self) {
        for i in 0..self.peers.len() {
            let Some(out) = &mut self.peers[i].out else { continue };
            if !out.is_accepted() {
                self.look_for_accept(PeerId(u32::try_from(i).unwrap_or(u32::MAX)));
                continue;
            }
            out.answer();
            step(Step::CoolAnswered);
            out.idle = out.idle.saturating_add(1);
            if out.chunks_held() > 0 && out.refresh().is_ok() {
                while let Some(chunk) = out.free_chunk() {
                    self.chunk_pool.push(chunk);
                }
            }
        }
    }

    /// A place for the next chunk to `to`, if there is room for its message too.
    pub(super) fn take_chunk_place(&mut self, to: PeerId) -> Option<ChunkPlace> {
        let (depth, bytes) = (self.config.pipeline_depth, self.config.chunk_bytes);
        let out = self.peers[to.0 as usize].out.as_mut()?;
        let Ok(room) = out.has_room() else {
            self.lose_faulty(to);
            return None;
        };
        if !room {
            if !out.is_accepted() {
                self.look_for_accept(to);
            }
            return None;
        }
        if out.chunks_held() >= depth {
            if !out.is_accepted() {
                self.look_for_accept(to);
            }
            let out = self.peers[to.0 as usize].out.as_mut()?;
            if out.refresh().is_err() {
                self.lose_faulty(to);
                return None;
            }
        }
        let out = self.peers[to.0 as usize].out.as_mut()?;
        while let Some(chunk) = out.free_chunk() {
            self.chunk_pool.push(chunk);
        }
        if out.chunks_held() >= depth {
            return None;
        }
        if let Some(offset) = self.chunk_pool.pop() {
            return Some(ChunkPlace { offset, bytes, pooled: true });
        }
        if self.chunks_taken < MOST_CHUNKS
            && let Ok(offset) = self.member.take(bytes)
        {
            self.chunks_taken += 1;
            return Some(ChunkPlace { offset, bytes, pooled: true });
        }
        let out = self.peers[to.0 as usize].out.as_mut()?;
        if out.chunks_held() > 0 {
            return None;
        }
        // A full region: the lane's own data ring carries the message, in small pieces.
        let bytes = out.eager_bytes();
        let offset = out.take_data(bytes).ok().flatten()?;
        Some(ChunkPlace { offset, bytes, pooled: false })
    }

    /// Gives up the lane that was idle longest, where the region has no room for another.
    fn close_an_idle_lane(&mut self) {
        let mut longest: Option<(u32, usize)> = None;
        for (i, peer) in self.peers.iter_mut().enumerate() {
            if !peer.pushes.is_empty() || !peer.backlog.is_empty() {
                continue;
            }
            let Some(out) = &mut peer.out else { continue };
            let idle = out.is_accepted() && out.is_drained().unwrap_or(false);
            if idle && longest.is_none_or(|(most, _)| out.idle >= most) {
                longest = Some((out.idle, i));
            }
        }
        if let Some((_, i)) = longest {
            self.close_lane(i);
        }
    }

    /// Begins to close a lane that its receiver has drained. Its memory stays as it is until the receiver has cleared
    /// its accept entry, since it may still be polling the ring.
    fn close_lane(&mut self, peer: usize) {
        let id = PeerId(u32::try_from(peer).unwrap_or(u32::MAX));
        let Some(mut out) = self.take_lane(id) else { return };
        self.tally.add(Counter::LanesClosed, 1);
        step(Step::LaneClosing);
        let section = self.member.section();
        let at = self.lanes.at(out.number);
        if let (Ok(life), Ok(end)) = (section.word("lane", at), section.word("lane", at + lane::ROOM)) {
            end.put(out.written());
            life.set(Life { state: State::Dead, ..Life::unpack(life.peek()) }.pack());
        }
        step(Step::LaneClosed);
        self.bump_version(true);
        out.announce();
        self.chunk_pool.extend(out.all_chunks());
        self.closing.push((id, out));
    }

    /// Takes back the memory of lanes whose receivers have let go.
    pub(super) fn finish_closing(&mut self) {
        let mut k = 0;
        while let Some((peer, out)) = self.closing.get(k) {
            let key = accept_key(self.slot, out.number);
            if out.is_let_go(key) || !self.peers[peer.0 as usize].lives() {
                let (_, out) = self.closing.swap_remove(k);
                self.open_lanes -= 1;
                self.lanes.free.push(out.number);
                self.give_place(out.place);
            } else {
                k += 1;
            }
        }
    }

    /// Looks for peers that joined, left or died, where the region says that something changed.
    pub(super) fn look_at_region(&mut self) {
        let generation = self.member.region().generation();
        if generation != self.region_seen || self.retry_quarters {
            self.region_seen = generation;
            self.look_at_peers();
            self.crowded = self.member.is_crowded();
        }
        let mut changed = false;
        for q in 0..self.quarters.len() {
            let generation = self.quarters[q].directory.generation();
            if generation != self.quarters[q].generation_seen {
                changed = true;
                self.quarters[q].generation_seen = generation;
                let index = self.quarters[q].index;
                self.look_for_dead(index);
            }
        }
        if changed {
            self.crowded = self.member.is_crowded();
        }
    }

    fn look_at_peers(&mut self) {
        self.retry_quarters = false;
        let member = std::sync::Arc::clone(&self.member);
        for info in member.region().peers() {
            let at = self.quarters.iter().position(|q| q.index == info.index);
            let active = info.life.state == State::Active;
            if let Some(at) = at {
                if active && self.quarters[at].incarnation == info.life.incarnation {
                    continue;
                }
                self.quarters.swap_remove(at);
                self.look_for_dead(info.index);
            }
            if !active {
                self.lose_all(info.index);
                continue;
            }
            // The peer's own service may not have written its directory yet.
            match member.directory(info.index).and_then(|(i, d)| Ok((i, d.activity(self.slot.0)?, d))) {
                Ok((incarnation, activity, directory)) => {
                    let generation_seen = directory.generation();
                    self.quarters.push(Quarter {
                        index: info.index,
                        incarnation,
                        directory,
                        generation_seen,
                        activity,
                        seen: Seen::new(),
                        senders: Vec::new(),
                    });
                }
                Err(_) => self.retry_quarters = true,
            }
        }
    }

    /// Ends everything with endpoints of a peer that are gone.
    fn look_for_dead(&mut self, index: u32) {
        self.lose_of(index, |peer| !peer.lives());
    }

    /// Ends everything with endpoints of a peer that is gone itself. Their records say so only a moment later, and nobody
    /// looks at them then.
    fn lose_all(&mut self, index: u32) {
        self.lose_of(index, |_| true);
    }

    fn lose_of(&mut self, index: u32, is_lost: impl Fn(&Peer) -> bool) {
        let endpoints = self.member.region().shape().endpoints;
        for i in 0..self.peers.len() {
            let peer = &self.peers[i];
            if peer.address.slot.peer(endpoints) == index && !peer.gone && is_lost(peer) {
                // One that was closed in good order has taken leave: nobody waits for it.
                let word = peer.life.as_ref().map_or(0, |l| l.words[0].get());
                let died = !took_leave(word, &peer.address);
                self.lose(PeerId(u32::try_from(i).unwrap_or(u32::MAX)), died);
            }
        }
    }

    /// Ends everything with a peer that broke the protocol, and remembers to name it.
    #[cold]
    pub(super) fn lose_faulty(&mut self, id: PeerId) {
        if !self.peers[id.0 as usize].gone {
            self.faulty.push(id);
        }
        self.peers[id.0 as usize].is_kept = true;
        self.lose(id, true);
    }

    /// Ends everything with a peer that is gone, or faulty.
    pub(super) fn lose(&mut self, id: PeerId, died: bool) {
        let peer = &mut self.peers[id.0 as usize];
        if peer.gone {
            return;
        }
        peer.gone = true;
        peer.died = died;
        let pushes = std::mem::take(&mut peer.pushes);
        let posts = self.take_backlog(id);
        if let Some(mut out) = self.take_lane(id) {
            self.open_lanes -= 1;
            self.chunk_pool.extend(out.all_chunks());
            if let Ok(life) = self.member.section().word("lane", self.lanes.at(out.number)) {
                life.set(Life { state: State::Dead, ..Life::unpack(life.peek()) }.pack());
            }
            self.lanes.free.push(out.number);
            self.give_place(out.place);
        }
        for mut then in pushes.into_iter().filter_map(|push| push.then).chain(posts) {
            (then.status, then.source) = (Status::PeerGone, Some(id));
            self.completions.push_back(then);
        }
        for operation in self.operations.take_all(id) {
            match operation {
                Operation::Offer { mut then, .. } | Operation::Await { mut then, .. } => {
                    (then.status, then.source) = (Status::PeerGone, Some(id));
                    self.completions.push_back(then);
                }
                Operation::Incoming { mut then, multi, .. } => {
                    (then.status, then.source) = (Status::PeerGone, Some(id));
                    then.len = 0;
                    if then.op != Op::RemoteWrite {
                        self.completions.push_back(then);
                    }
                    self.end_multi_message(multi);
                }
            }
        }
        self.matching.forget(id);
        if died {
            for waiting in self.matching.take_directed(id) {
                let mut completion =
                    self.template(waiting.ticket, Op::Receive { tagged: waiting.select.tagged }, 0);
                completion.status = Status::PeerGone;
                completion.tag = waiting.select.tag;
                completion.source = Some(id);
                if let Target::Multi(number) = waiting.target {
                    self.multis.remove(&number);
                    completion.released = true;
                }
                self.completions.push_back(completion);
            }
        }
        for number in 0..self.incoming.len() {
            if self.incoming[number].as_ref().is_some_and(|l| l.peer == id) {
                self.drop_incoming(u32::try_from(number).unwrap_or(u32::MAX));
            }
        }
        self.spare(id);
    }

    fn end_multi_message(&mut self, multi: Option<u32>) {
        let Some(number) = multi else { return };
        let Some(m) = self.multis.get_mut(&number) else { return };
        m.inflight -= 1;
        if m.closed && m.inflight == 0 {
            let release = release_of(m);
            self.completions.push_back(release);
            self.multis.remove(&number);
        }
    }

    /// Forgets an incoming lane, and frees its accept entry.
    fn drop_incoming(&mut self, number: u32) {
        let Some(lane) = self.incoming.get_mut(number as usize).and_then(Option::take) else { return };
        self.peers[lane.peer.0 as usize].is_kept |= lane.has_taken();
        self.hot.retain(|n| *n != number);
        self.cooling.retain(|n| *n != number);
        self.askers.retain(|n| *n != number);
        for quarter in &mut self.quarters {
            for sender in quarter.senders.iter_mut().flatten() {
                sender.lanes.retain(|n| *n != number);
            }
        }
        if let Ok(key) = self.member.section().word("accept", self.accepts.at(lane.entry)) {
            key.set(0);
        }
        step(Step::AcceptFreed);
        self.accepts.free.push(lane.entry);
        self.bump_version(false);
    }

    /// Follows an activity line: looks at the senders of quarter `q` in `groups`.
    pub(super) fn visit(&mut self, q: usize, groups: u8) -> bool {
        let mut moved = false;
        let high = self.quarters[q].directory.endpoints_high();
        for slot in (0..high).filter(|s| groups & (1 << isthmus_lockfree::activity::group(*s)) != 0) {
            if !self.know_sender(q, slot) {
                continue;
            }
            let mut k = 0;
            loop {
                let sender = self.quarters.get(q).and_then(|q| q.senders.get(slot as usize));
                let lane = sender.and_then(Option::as_ref).and_then(|s| s.lanes.get(k)).copied();
                let Some(number) = lane else { break };
                k += 1;
                if self.drain(number) {
                    moved = true;
                    self.warm(number);
                }
                self.take_request(number);
                if q >= self.quarters.len() {
                    return moved;
                }
            }
        }
        moved
    }

    /// Takes all that a lane holds now: what is left behind would wait for the next announcement.
    fn drain(&mut self, number: u32) -> bool {
        let mut moved = false;
        let mut rounds = 0;
        while self.poll(number, &mut Keep) {
            moved = true;
            rounds += 1;
            // A sender that fills as fast as we empty makes the lane hot, and is polled from there.
            if rounds == 64 {
                self.warm(number);
                break;
            }
        }
        if self.is_left(number) {
            self.warm(number);
        }
        moved
    }

    /// Whether something is left on a lane: it may not be read on, since replies to its sender wait or there is no memory, and
    /// must not be forgotten either, for a sender without room announces nothing.
    fn is_left(&self, number: u32) -> bool {
        matches!(self.incoming.get(number as usize), Some(Some(lane)) if lane.arrived().is_some())
    }

    /// Looks again for lanes that could not be accepted for want of memory.
    pub(super) fn look_for_lanes(&mut self) {
        if std::mem::take(&mut self.retry_lanes) {
            for q in 0..self.quarters.len() {
                self.visit(q, u8::MAX);
            }
        }
    }

    /// Makes sure that what is known of a sender is up to date; gives whether it lives.
    fn know_sender(&mut self, q: usize, slot: u32) -> bool {
        let quarter = &mut self.quarters[q];
        let at = slot as usize;
        if quarter.senders.len() <= at {
            quarter.senders.resize_with(at + 1, || None);
        }
        let known = quarter.senders[at]
            .as_ref()
            .is_some_and(|s| Life::unpack(s.life.words[0].peek()).is_active(s.incarnation));
        if !known {
            let before = quarter.senders[at].take();
            quarter.senders[at] = new_sender(&quarter.directory, slot);
            // Whose record says so is gone; that the directory has changed, too, is only its word.
            let place = GlobalSlot::new(quarter.index, slot, self.member.region().shape().endpoints).0;
            let id = before.and_then(|sender| self.by_address.get(&(place, sender.incarnation)).copied());
            if let Some(id) = id {
                let peer = &self.peers[id.0 as usize];
                let word = peer.life.as_ref().map_or(0, |l| l.words[0].get());
                let died = !took_leave(word, &peer.address);
                self.lose(id, died);
            }
        }
        let quarter = &mut self.quarters[q];
        let Some(sender) = &mut quarter.senders[at] else { return false };
        let version = sender.block.words[1].get();
        if version != sender.lanes_seen {
            sender.lanes_seen = version;
            let first = sender.block.words[0].get();
            let incarnation = sender.incarnation;
            let section = quarter.directory.section().clone();
            let index = quarter.index;
            self.find_lanes(q, slot, &section, first, index, incarnation);
        }
        true
    }

    /// Searches a sender's lane descriptors for lanes to us that are new, or closed.
    fn find_lanes(
        &mut self,
        q: usize,
        slot: u32,
        section: &Section,
        first: u64,
        peer: u32,
        incarnation: u64,
    ) {
        let mut claims = Vec::new();
        let mut at = first;
        let mut base = 0_u32;
        for _ in 0..=u64::from(self.member.region().shape().slots()) / CHUNK_ENTRIES {
            if at == 0 || section.part("lanes", at, 64 + CHUNK_ENTRIES * lane::BYTES).is_err() {
                break;
            }
            let Ok(next) = section.word("chunk", at + chunk::NEXT) else { break };
            let next = next.get();
            for i in 0..16_u32 {
                let entry = at + 64 + u64::from(i) * lane::BYTES;
                let Ok(descriptor) = section.line("lane", entry) else { break };
                claims.extend(Claim::read(base + i, descriptor, self.slot, self.incarnation));
            }
            base += 16;
            at = next;
        }
        // Lanes that are no longer described were drained and closed.
        let known: Vec<u32> =
            self.quarters[q].senders[slot as usize].as_ref().map_or_else(Vec::new, |s| s.lanes.clone());
        for number in known {
            let Some(Some(lane)) = self.incoming.get(number as usize) else { continue };
            let described = claims.iter().any(|c| c.number == lane.number && c.generation == lane.generation);
            if !described {
                self.drop_incoming(number);
            }
        }
        for claim in claims {
            let sender = self.quarters[q].senders[slot as usize].as_ref();
            let known = sender.is_some_and(|s| {
                s.lanes.iter().any(|n| {
                    matches!(self.incoming.get(*n as usize), Some(Some(l))
                        if l.number == claim.number && l.generation == claim.generation)
                })
            });
            if !known && sender.is_some_and(|s| s.lanes.len() < MOST_LANES) {
                self.accept(q, slot, section, &claim, peer, incarnation);
            }
        }
    }

    /// Accepts a lane; one that makes no sense is left alone.
    fn accept(&mut self, q: usize, slot: u32, section: &Section, claim: &Claim, peer: u32, incarnation: u64) {
        let (ring_at, slots) = claim.ring;
        let Ok(ring): Result<SlotRing, _> = section.ring("ring", ring_at, slots) else { return };
        let address = Address {
            region: self.member.region().shape().uuid,
            slot: GlobalSlot::new(peer, slot, self.member.region().shape().endpoints),
            incarnation,
        };
        let Ok(source) = self.meet(&address) else { return };
        if self.peers[source.0 as usize].gone {
            // It broke the protocol and lives on, or died this moment.
            self.spare(source);
            return;
        }
        let Ok(entry) = self.take_entry(false) else {
            // No memory for the answer: the sender fills its ring once, and says no more. We try again by ourselves.
            self.retry_lanes = true;
            if self.shortage == Shortage::None {
                self.shortage = Shortage::Seen;
            }
            if let Some(Some(sender)) = self.quarters[q].senders.get_mut(slot as usize) {
                sender.lanes_seen = u64::MAX;
            }
            return;
        };
        let mine = self.member.section();
        let at = self.accepts.at(entry);
        let (Ok(heat), Ok(read)) = (mine.line("accept", at), mine.line("accept", at + accept::READ)) else {
            return;
        };
        read.words[0].put(0);
        heat.words[1].put(claim.generation);
        heat.words[2].put(incarnation);
        heat.words[3].put(0);
        step(Step::AcceptWritten);
        heat.words[0].set(accept_key(address.slot, claim.number));
        step(Step::AcceptAlive);
        let lane = Incoming::new(
            source,
            section.clone(),
            entry,
            claim.generation,
            claim.number,
            ring,
            claim.descriptor.clone(),
            heat,
            read,
            self.quarters[q].senders.get(slot as usize).and_then(|s| Some(s.as_ref()?.block.clone())),
        );
        let number = self.incoming.iter().position(Option::is_none).unwrap_or_else(|| {
            self.incoming.push(None);
            self.incoming.len() - 1
        });
        self.incoming[number] = Some(lane);
        if let Some(Some(sender)) = self.quarters[q].senders.get_mut(slot as usize) {
            sender.lanes.push(u32::try_from(number).unwrap_or(u32::MAX));
        }
        self.bump_version(false);
        // It may sleep until it is accepted.
        self.wake_sender(u32::try_from(number).unwrap_or(u32::MAX));
    }

    /// Makes a lane hot, cooling the one that was idle longest where there are too many.
    fn warm(&mut self, number: u32) {
        if self.hot.contains(&number) {
            return;
        }
        let Some(Some(lane)) = self.incoming.get_mut(number as usize) else { return };
        lane.warm();
        step(Step::Warmed);
        lane.last = self.ticks;
        self.cooling.retain(|n| *n != number);
        self.hot.push(number);
        if self.hot.len() > self.config.hot_lanes {
            let last = |n: &u32| match self.incoming.get(*n as usize) {
                Some(Some(l)) => l.last,
                _ => 0,
            };
            let oldest = (0..self.hot.len() - 1).min_by_key(|k| last(&self.hot[*k]));
            if let Some(k) = oldest {
                let cold = self.hot.remove(k);
                if let Some(Some(lane)) = self.incoming.get_mut(cold as usize) {
                    lane.cool();
                    step(Step::CoolAsked);
                    self.cooling.push(cold);
                }
            }
        }
    }

    /// Looks at lanes whose senders have not answered yet that they announce again.
    pub(super) fn cool_down(&mut self) {
        let mut k = 0;
        while let Some(number) = self.cooling.get(k).copied() {
            let settled = match self.incoming.get_mut(number as usize) {
                Some(Some(lane)) => lane.settled(),
                _ => true,
            };
            // Also after the answer, once: what was published before it was not announced (P4).
            // A sender that fills as fast as we empty must not keep us here: then the lane is looked at again next time.
            let drained = (0..64).any(|_| !self.poll(number, &mut Keep));
            if settled && drained && !self.is_left(number) && self.cooling.get(k) == Some(&number) {
                self.cooling.remove(k);
            } else {
                k += 1;
            }
        }
    }

    /// Returns all memory to the process's area. The endpoint's record says by now that it is gone.
    pub(super) fn give_back_everything(&mut self) {
        for i in 0..self.peers.len() {
            if let Some(mut out) = self.peers[i].out.take() {
                self.chunk_pool.extend(out.all_chunks());
                self.give_place(out.place);
            }
        }
        for (_, out) in std::mem::take(&mut self.closing) {
            self.give_place(out.place);
        }
        for chunk in std::mem::take(&mut self.chunk_pool) {
            self.member.give(chunk, self.config.chunk_bytes);
        }
        if let Some(reserve) = self.reserve.take() {
            reserve.give(&self.member);
        }
        for table in [&self.lanes, &self.accepts] {
            for chunk in &table.chunks {
                self.member.give(*chunk, Chunks::bytes(table));
            }
        }
        self.member.give(self.block_at, block::BYTES);
    }
}

fn new_sender(directory: &Directory, slot: u32) -> Option<Sender> {
    let info = directory.endpoint(slot).ok()?;
    if info.life.state != State::Active {
        return None;
    }
    let life = directory.endpoint_line(slot).ok()?;
    let block = directory.section().line("block", info.block).ok()?;
    Some(Sender { incarnation: info.life.incarnation, life, block, lanes_seen: 0, lanes: Vec::new() })
}

/// What an accept entry is found by.
fn accept_key(sender: GlobalSlot, number: u32) -> u64 {
    ((u64::from(sender.0) << 32) | u64::from(number)) + 1
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicBool, Ordering};

    use isthmus_region::mapping::Mapping;

    use super::*;

    /// A sender closes and opens lanes, to us and to others in turn, while we look.
    #[test]
    fn a_descriptor_that_changes_hands_claims_nothing() {
        let fd = isthmus_region::create::memory(1 << 20).unwrap();
        let map = Mapping::map(fd.as_fd(), 1 << 20).unwrap();
        let line = map.whole().line("lane", 0).unwrap();
        let (theirs, done) = (line.clone(), AtomicBool::new(false));
        std::thread::scope(|s| {
            s.spawn(|| {
                for generation in 1..400_000_u64 {
                    let life = |state| Life { incarnation: generation, state }.pack();
                    theirs.words[0].set(life(State::Dead));
                    release_fence();
                    for word in &theirs.words[1..5] {
                        word.put(generation % 2);
                    }
                    theirs.words[0].set(life(State::Active));
                }
                done.store(true, Ordering::SeqCst);
            });
            while !done.load(Ordering::SeqCst) {
                if let Some(claim) = Claim::read(0, line.clone(), GlobalSlot(1), 1) {
                    assert_eq!((claim.generation % 2, claim.ring), (1, (1, 1)));
                }
            }
        });
    }
}
