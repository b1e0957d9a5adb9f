//! Pipelined messages, both ends of them, and the protocol's replies.

use std::time::{Duration, Instant};

use isthmus_lockfree::slot::Message;
use isthmus_region::counters::{Counter, LaneCounter};
use isthmus_region::member::MOST_PIECE_BYTES;

use super::grants::Next;
use super::offer::Standing;
use super::payload::Payload;
use super::poll::Stop;
use super::sleep::RECENT;
use super::table::Operation;
use super::ways::{self, Way};
use super::{Because, Berth, Config, Core, Peer, Push};
use crate::fault::{Step, step};
use crate::types::{Access, Op, PeerId, Status};
use crate::wire::{self, flag, kind};
use Stop::Faulty;

/// Smallest piece of a pipelined message, in bytes.
const LEAST_PIECE: u64 = 16 << 10;
/// Most chunks that an endpoint takes from its area: the depth of four lanes' usual pipelines. What deep ones have beyond the usual
/// depth comes on top, and is less than that.
const MOST_CHUNKS: usize = 32;

/// Messages that name pages, at most, in one round of progress: for each, pages may have to be granted first.
const MOST_PAGED: u32 = 16;

/// How long an endpoint keeps chunks that no message needs.
const CHUNKS_KEPT: Duration = Duration::from_millis(100);

/// Where the next chunk of a pipelined message goes.
pub(super) struct ChunkPlace {
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// From the pool, and not from the lane's data ring.
    pub(super) pooled: bool,
}

impl Core {
    /// Asks for the bytes of an announced message: `want` of them, for our operation `mine`.
    pub(super) fn send_clear(
        &mut self,
        to: PeerId,
        id: u64,
        mine: u64,
        want: u64,
        flags: u8,
        because: Because,
    ) {
        let message = [wire::head(kind::CLEAR, flags, 0), id, mine, want, 0, 0, 0, 0];
        self.reply(to, message, 4, None, because);
    }

    /// Tells the sender that its operation `id`, if there is one, has ended.
    pub(super) fn send_done(&mut self, to: PeerId, id: Option<u64>, status: Status, because: Because) {
        if let Some(id) = id {
            let message = [wire::head(kind::DONE, 0, 0), id, wire::status_code(status), 0, 0, 0, 0, 0];
            self.reply(to, message, 3, None, because);
        }
    }

    /// Answers a read or a fetching atomic with the bytes, or with the status that says why there are none.
    pub(super) fn send_result(&mut self, to: PeerId, id: u64, status: Status, payload: Option<Box<[u8]>>) {
        let len = payload.as_ref().map_or(0, |p| p.len() as u64);
        let message = [wire::head(kind::RESULT, 0, 0), id, wire::status_code(status), len, 0, 0, 0, 0];
        self.reply(to, message, 5, payload, Because::Asked);
    }

    /// The receiver of an announced message asks for its bytes: begins its pipeline.
    pub(super) fn take_clear(&mut self, source: PeerId, message: &Message, flags: u8) -> Result<(), Stop> {
        if !self.still_lives(source) {
            return Ok(());
        }
        let (id, theirs, want) = (message[1], message[2], message[3]);
        // Checked before it is taken: an operation that a faulty peer names must stay in the table for `lose`
        // to end it.
        if !matches!(self.operations.get(id, source), Some(Operation::Announced { len, .. }) if want <= *len)
        {
            return Err(Faulty);
        }
        let Some(Operation::Announced { to, bufs, then, awaits_done, pages, .. }) =
            self.operations.take(id, source)
        else {
            return Err(Faulty);
        };
        let mut then = Some(then);
        let granted = pages && flags & flag::PAGES != 0 && want > 0;
        if granted {
            if let Some(then) = then.take() {
                let (bufs, pins) = (bufs.clone(), Vec::new());
                let lent = Operation::Lent {
                    to,
                    then,
                    bufs,
                    len: want,
                    theirs,
                    pins,
                    paged: 0,
                    sending: true,
                    is_asked_again: false,
                };
                self.operations.put_back(id, lent);
            }
        } else if awaits_done {
            // `DONE` names the number that was announced, so the operation keeps it.
            if let Some(completion) = then.take() {
                self.operations.put_back(id, Operation::Await { to, then: completion, sending: want > 0 });
            }
        }
        if want == 0 {
            self.completions.extend(then);
            return Ok(());
        }
        step(Step::ClearTaken);
        let peer = &mut self.peers[source.0 as usize];
        let awaited = (awaits_done || granted).then_some(id);
        let is_deep = flags & flag::DEEP != 0;
        self.has_deep |= is_deep;
        peer.pushes.push_back(Push { then, granted, is_deep, ..Push::new(theirs, bufs, want, awaited) });
        self.owe(source);
        Ok(())
    }

    /// Takes the next bytes of a pipelined message, or of a read or write that is pipelined.
    pub(super) fn take_chunk(
        &mut self,
        source: PeerId,
        message: &Message,
        payload: &Payload<'_>,
    ) -> Result<(), Stop> {
        let (id, at, len) = (message[1], message[2], payload.len());
        let Some(Operation::Incoming { dest, want, received, done, registered, measured, again, .. }) =
            self.operations.get(id, source)
        else {
            // The operation may have ended, with its sender's death or our close; its late chunks are
            // ignored.
            return Ok(());
        };
        if *again {
            if at > *received {
                return Ok(());
            }
            *again = false;
        }
        // Chunks come in order: an honest sender's position is what was received so far.
        if at != *received || len == 0 || len > *want - *received {
            return Err(Faulty);
        }
        match *registered {
            None => ways::timed(measured, || payload.place(len, dest, at))?,
            Some(place) => match self.memory.find(place.key, place.at(at), len, Access::Write) {
                Ok(buf) => payload.copy(0, buf)?,
                Err(status) => {
                    let done = *done;
                    self.operations.take(id, source);
                    self.send_done(source, done, status, Because::Asked);
                    return Ok(());
                }
            },
        }
        step(Step::ChunkDrained);
        *received += len;
        let finished = *received == *want;
        if !self.still_lives(source) {
            // The operation ends with its sender.
            return Ok(());
        }
        if finished {
            self.finish_incoming(id, source);
        }
        Ok(())
    }

    /// Completes an operation whose bytes are all here.
    pub(super) fn finish_incoming(&mut self, id: u64, source: PeerId) {
        let Some(Operation::Incoming { then, multi, done, measured, timed, paged, is_odd, .. }) =
            self.operations.take(id, source)
        else {
            return;
        };
        step(Step::AllReceived);
        let Peer { ways, depths, pushes, .. } = &mut self.peers[source.0 as usize];
        let is_sending = self.operations.has_long_to(source) || !pushes.is_empty();
        let own = measured.and_then(|message| Some((message, message.watched?))).map(|(message, watched)| {
            let by_sender = match message.way {
                Way::Copy => message.len(),
                Way::Pages => message.len().saturating_sub(paged),
                Way::Attach | Way::Resident => 0,
            };
            self.watch.end(&watched, message.len(), (by_sender, is_odd), self.ticks)
        });
        let is_at_work = measured.is_some_and(|message| message.is_at_work)
            || own.is_some_and(|own| own.is_at_work == Some(true));
        match timed {
            Some(timed) => {
                // What elapses while the program works is its own time.
                if is_at_work {
                    depths.passed();
                } else {
                    depths.ended(timed);
                }
                self.tally.add(Counter::Deep, timed.is_deep.into());
            }
            None if measured.is_some() => depths.passed(),
            None => {}
        }
        if let Some(message) = measured {
            let took = match timed {
                Some(timed) if timed.is_trial && !message.is_by_copies => ways.passed(message, own),
                _ => ways.ended(message, is_odd || paged < message.len() / 2, own),
            };
            ways.overlapped(&message, is_sending);
            let ([ns, bytes], len) = message.counted();
            self.tally.add(ns, took);
            self.tally.add(bytes, len);
        }
        self.recent_until = self.ticks + RECENT;
        self.send_done(source, done, Status::Ok, Because::Asked);
        match then.op {
            // A remote write completes here only if data came with it.
            Op::RemoteWrite if then.data.is_none() => {}
            _ => self.finish_receive(then, multi),
        }
    }

    /// One of our operations has ended at the remote endpoint.
    pub(super) fn take_done(&mut self, source: PeerId, message: &Message) -> Result<(), Stop> {
        if !self.still_lives(source) {
            return Ok(());
        }
        let status = wire::status_of(message[2]);
        // Checked before it is taken, as in `take_clear`. An announced operation ends here only if it is a
        // write that was refused before its payload was asked for, or a message that its receiver may have
        // copied itself; one whose payload is still being read from the caller's buffers, only if it was
        // refused meanwhile.
        match self.operations.get(message[1], source) {
            Some(Operation::Await { sending: false, .. } | Operation::Lent { sending: false, .. }) => {}
            Some(Operation::Await { .. } | Operation::Lent { .. }) if status != Status::Ok => {
                let id = Some(message[1]);
                self.peers[source.0 as usize].pushes.retain(|push| push.awaited != id);
                self.drop_post(source, message[1]);
            }
            Some(Operation::Announced { offered, len, .. }) if offered.is_some() || status != Status::Ok => {
                if let (Some([count, bytes]), Status::Ok) =
                    (offered.as_ref().and_then(Standing::counters), status)
                {
                    self.tally.add(count, 1);
                    self.tally.add(bytes, *len);
                }
            }
            _ => return Err(Faulty),
        }
        step(Step::DoneSeen);
        let taken = self.operations.take(message[1], source);
        if let Some(Operation::Lent { paged, .. }) = &taken
            && *paged > 0
            && status == Status::Ok
        {
            self.tally.add(Counter::Granted, 1);
            self.tally.add(Counter::GrantedBytes, *paged);
        }
        if let Some(
            Operation::Await { mut then, .. }
            | Operation::Lent { mut then, .. }
            | Operation::Announced { mut then, .. },
        ) = taken
        {
            then.status = status;
            then.source = (status != Status::Ok).then_some(source);
            self.completions.push_back(then);
        }
        Ok(())
    }

    /// Lists a remote endpoint as one for which replies, pipelines or posts wait.
    pub(super) fn mark_busy(&mut self, peer: PeerId) {
        let entry = &mut self.peers[peer.0 as usize];
        if !entry.is_busy {
            entry.is_busy = true;
            self.busy.push(peer);
        }
    }

    /// Continues the replies, posts and pipelines of all busy peers, and what is copied from their memory.
    pub(super) fn pump(&mut self, berth: &mut Berth) -> bool {
        let mut moved = false;
        let mut k = 0;
        while let Some(peer) = self.busy.get(k).copied() {
            moved |= self.pull(berth, peer);
            moved |= self.pump_peer(berth, peer);
            let entry = &mut self.peers[peer.0 as usize];
            if entry.backlog.is_empty() && entry.pushes.is_empty() && entry.pulls.is_empty() {
                entry.is_busy = false;
                self.busy.swap_remove(k);
            } else {
                k += 1;
            }
        }
        moved
    }

    /// Continues the replies, pipelines and posts of one peer, in that order. Pipelines take few slots at a
    /// time, so they come before the posts, of which there may be many.
    pub(super) fn pump_peer(&mut self, berth: &mut Berth, to: PeerId) -> bool {
        let replies = self.peers[to.0 as usize].backlog.count();
        if !self.flush_replies(berth, to) {
            return self.peers[to.0 as usize].backlog.count() < replies;
        }
        let mut moved = self.push_chunks(berth, to);
        let before = self.peers[to.0 as usize].backlog.count();
        moved |= before < replies;
        if before > 0 {
            self.flush_backlog(berth, to);
            moved |= self.peers[to.0 as usize].backlog.count() < before;
        }
        moved
    }

    /// Sends as many chunks of one peer's pipelines as room and depth allow.
    fn push_chunks(&mut self, berth: &mut Berth, to: PeerId) -> bool {
        let mut moved = false;
        let mut paged = 0;
        loop {
            let peer = &mut self.peers[to.0 as usize];
            if peer.pushes.is_empty() || paged == MOST_PAGED {
                return moved;
            }
            if !peer.lives() {
                // `lose` ends the rest once the region says that the peer is gone.
                return moved;
            }
            if peer.path.lane().is_none() && self.open_lane(berth, to).is_err() {
                return moved;
            }
            let most = match self.push_pages(berth, to) {
                Next::Sent => {
                    moved = true;
                    paged += 1;
                    self.end_push(to);
                    continue;
                }
                Next::Full => return moved,
                Next::Copy(most) => most,
            };
            let Some(chunk) = self.take_chunk_place(berth, to) else { return moved };
            let peer = &mut self.peers[to.0 as usize];
            // With more messages behind it, sender and receiver copy at the same time anyway, and larger
            // pieces cost less.
            let alone = peer.pushes.len() == 1 && !self.operations.has_announced();
            let (Some(out), Some(push)) = (peer.path.lane_mut(), peer.pushes.front_mut()) else {
                return moved;
            };
            let piece = if alone { piece_of(push.len) } else { chunk.bytes };
            let len = (push.len - push.at).min(chunk.bytes).min(piece).min(most);
            let section = berth.member.section();
            // Both ends of the copy are ours: the program's buffers and a chunk of our area.
            let fill = |done, piece| section.fill("chunk", chunk.offset + done, piece);
            let found = push
                .registered
                .map(|place| self.memory.find(place.key, place.at(push.at), len, Access::Read));
            let _ = match found {
                None => push.bufs.pieces(push.at, len, fill),
                Some(Ok(buf)) => fill(0, buf),
                Some(Err(status)) => {
                    if chunk.pooled {
                        berth.chunk_pool.push(chunk.offset);
                    }
                    let id = push.id;
                    peer.pushes.pop_front();
                    self.send_result(to, id, status, None);
                    continue;
                }
            };
            step(Step::ChunkFilled);
            let message = [wire::head(kind::CHUNK, 0, 0), push.id, push.at, len, chunk.offset, 0, 0, 0];
            let announced = out.push(&message, 5);
            if chunk.pooled {
                out.hold_chunk(chunk.offset);
            }
            step(Step::ChunkSent);
            push.at += len;
            self.tally.add(Counter::Chunks, 1);
            peer.sent.add(LaneCounter::Chunks, 1);
            moved = true;
            self.end_push(to);
            if announced {
                self.ring_receiver(berth, to);
            }
        }
    }

    /// Ends the oldest pipelined message to `to`, if all of it was sent.
    fn end_push(&mut self, to: PeerId) {
        let pushes = &mut self.peers[to.0 as usize].pushes;
        if pushes.front().is_none_or(|push| push.at < push.len) {
            return;
        }
        let Some(done) = pushes.pop_front() else { return };
        self.recent_until = self.ticks + RECENT;
        match done.awaited.and_then(|own| self.operations.get(own, to)) {
            Some(Operation::Await { sending, .. }) => *sending = false,
            Some(Operation::Lent { sending, pins, paged, .. }) => {
                *sending = false;
                *paged += done.paged;
                pins.extend(done.pins);
            }
            _ => {}
        }
        self.completions.extend(done.then);
    }

    /// Gives back the chunks that no message has needed for a while, so that others of the process have them.
    pub(super) fn give_back_chunks(&mut self, berth: &mut Berth) {
        if berth.chunks_taken == 0 {
            return;
        }
        let idle = berth.chunk_pool.len();
        let (least, since) = berth.idle_chunks.get_or_insert_with(|| (idle, Instant::now()));
        *least = idle.min(*least);
        if since.elapsed() >= CHUNKS_KEPT {
            let count = *least;
            berth.give_chunks(count, self.config.chunk_bytes);
        }
    }

    /// Whether there is room for a message in the lane to `to`.
    pub(super) fn has_room(&mut self, berth: &mut Berth, to: PeerId) -> bool {
        let Some(out) = self.peers[to.0 as usize].path.lane_mut() else { return false };
        let Ok(room) = out.has_room() else {
            self.lose_faulty(berth, to);
            return false;
        };
        if !room && !out.is_accepted() {
            self.check_accept(berth, to);
        }
        room
    }

    /// How many chunks may be under way to a remote endpoint now.
    fn depth(&self, berth: &Berth, to: PeerId) -> usize {
        let Config { pipeline_depth: usual, deep_pipeline: deep, .. } = self.config;
        let Peer { pushes, path, .. } = &self.peers[to.0 as usize];
        let under_way = berth.chunks_taken.saturating_sub(berth.chunk_pool.len());
        if pushes.front().is_none_or(|push| !push.is_deep)
            || under_way >= MOST_CHUNKS
            || berth.member.piece_bytes() > MOST_PIECE_BYTES / 2
        {
            return usual;
        }
        // Half of a lane's slots are for what else there is to say.
        path.lane().map_or(usual, |lane| deep.min(lane.slots() / 2).max(usual))
    }

    /// Chunks under way in deep pipelines beyond the usual depth.
    fn beyond_usual(&self) -> usize {
        let usual = self.config.pipeline_depth;
        let held = self.peers.iter().filter_map(|peer| peer.path.lane()).map(|lane| lane.chunks_held());
        if self.has_deep { held.map(|held| held.saturating_sub(usual)).sum() } else { 0 }
    }

    /// Looks how far the receiver has passed the chunks of a lane; none where there is no lane any more.
    fn look_for_passed(&mut self, berth: &mut Berth, to: PeerId) -> Option<()> {
        if !self.peers[to.0 as usize].path.lane()?.is_accepted() {
            self.check_accept(berth, to);
        }
        let looked = self.peers[to.0 as usize].path.lane_mut()?.refresh();
        if looked.is_err() {
            self.lose_faulty(berth, to);
        }
        looked.ok()
    }

    /// A place for the next chunk to `to`, if there is room for its message too.
    pub(super) fn take_chunk_place(&mut self, berth: &mut Berth, to: PeerId) -> Option<ChunkPlace> {
        let bytes = self.config.chunk_bytes;
        if !self.has_room(berth, to) {
            return None;
        }
        let depth = self.depth(berth, to);
        let out = self.peers[to.0 as usize].path.lane_mut()?;
        if out.chunks_held() >= depth {
            self.look_for_passed(berth, to)?;
        }
        let out = self.peers[to.0 as usize].path.lane_mut()?;
        while let Some(chunk) = out.free_chunk() {
            berth.chunk_pool.push(chunk);
        }
        // With what was freed it may be another one.
        let depth = self.depth(berth, to);
        if self.peers[to.0 as usize].path.lane()?.chunks_held() >= depth {
            return None;
        }
        if let Some(offset) = berth.chunk_pool.pop() {
            if let Some((least, _)) = &mut berth.idle_chunks {
                *least = berth.chunk_pool.len().min(*least);
            }
            return Some(ChunkPlace { offset, bytes, pooled: true });
        }
        if (berth.chunks_taken < MOST_CHUNKS || berth.chunks_taken < MOST_CHUNKS + self.beyond_usual())
            && let Ok(offset) = berth.member.take_piece(bytes)
        {
            berth.chunks_taken += 1;
            return Some(ChunkPlace { offset, bytes, pooled: true });
        }
        let out = self.peers[to.0 as usize].path.lane_mut()?;
        if out.chunks_held() > 0 {
            // There are fewer than it may hold, so nobody has looked yet which of them the receiver has passed.
            self.look_for_passed(berth, to)?;
            let out = self.peers[to.0 as usize].path.lane_mut()?;
            return out.free_chunk().map(|offset| ChunkPlace { offset, bytes, pooled: true });
        }
        // A full region: the lane's own data ring carries the message, in small pieces.
        let bytes = out.eager_bytes();
        let offset = out.take_data(bytes).ok().flatten()?;
        Some(ChunkPlace { offset, bytes, pooled: false })
    }
}

/// Bytes of one piece of a pipelined message: an eighth of it, so that sender and receiver copy at the same
/// time for most of the message.
fn piece_of(len: u64) -> u64 {
    (len / 8).next_multiple_of(4096).max(LEAST_PIECE)
}
