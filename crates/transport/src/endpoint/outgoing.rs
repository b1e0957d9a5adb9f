//! Outgoing lanes: opening them, finding their accept entries, closing them.

use std::time::{Duration, Instant};

use isthmus_lockfree::life::{Life, State};
use isthmus_lockfree::sync::release_fence;
use isthmus_region::chain;
use isthmus_region::counters::Counter;
use isthmus_region::format::{accept, lane};
use isthmus_region::mapping::LineRef;
use isthmus_region::roster::{self, Record};
use isthmus_region::{PeerSection, ReadOnly};

use super::entries::accept_key;
use super::path::Path;
use super::{Berth, Core};
use crate::fault::{Step, step};
use crate::lane::{Outgoing, Place, Size};
use crate::types::{PeerId, PostError};

/// Lanes above which new ones are small.
pub const MANY_LANES: usize = 32;
/// In a full region lanes are closed one after the other; but where the last one's receiver has not let it go for so long, up to so many.
const LATE: Duration = Duration::from_millis(10);
const MOST_CLOSING: usize = 4;

impl Berth {
    /// Returns a lane's memory to the area, or to the reserve.
    pub(super) fn give_place(&mut self, place: Place) {
        if place.reserve {
            self.reserve = Some(place);
        } else {
            place.give(&self.member);
        }
    }

    /// The block line of a remote endpoint.
    pub(super) fn remote_block(&self, record: &Record) -> Option<(PeerSection, LineRef<ReadOnly>)> {
        let (directory, info) = roster::endpoint(&self.member, record.slot()).ok()?;
        if !info.life.is_active(record.incarnation()) {
            return None;
        }
        let line = directory.section().line("block", info.block).ok()?;
        Some((directory.section().clone(), line))
    }

    /// Searches a receiver's accept table.
    fn find_accept(
        &self,
        section: &PeerSection,
        first: u64,
        key: u64,
        generation: u64,
    ) -> Option<(LineRef<ReadOnly>, LineRef<ReadOnly>)> {
        let most = chain::most_lane_chunks(self.member.region().shape());
        for (_, at) in chain::entries(section, chain::ACCEPTS, most, first) {
            let heat = section.line("accept", at).ok()?;
            if heat.words[0].get() == key
                && heat.words[1].peek() == generation
                && heat.words[2].peek() == self.incarnation
            {
                return Some((heat, section.line("accept", at + accept::READ).ok()?));
            }
        }
        None
    }
}

impl Core {
    /// Opens the lane to a peer.
    pub(super) fn open_lane(&mut self, berth: &mut Berth, to: PeerId) -> Result<(), PostError> {
        let peer = &self.peers[to.0 as usize];
        let record = peer.record.clone().filter(|_| peer.lives()).ok_or(PostError::PeerGone)?;
        let size = if berth.open_lanes >= MANY_LANES { Size::SMALL } else { Size::USUAL };
        let place = match Place::take(&berth.member, size, false) {
            Ok(place) => place,
            // The region is full: the reserve serves one remote endpoint after the other.
            Err(_) => match berth.reserve.take() {
                Some(reserve) => reserve,
                None => {
                    self.make_room(berth);
                    return Err(PostError::Again);
                }
            },
        };
        step(Step::LaneTaken);
        match self.describe(berth, to, &record, place) {
            Ok(out) => {
                step(Step::LaneOpened);
                self.peers[to.0 as usize].path = Path::Near(out);
                berth.open_lanes += 1;
                // At once: it is rare, and a process that holds still soon after writes no other counts.
                berth.member.counters().add_shared(Counter::LanesOpened as usize, 1);
                Ok(())
            }
            Err(_) => {
                // No descriptor is free, and no memory for more of them: the reserve alone does not help.
                berth.give_place(place);
                self.make_room(berth);
                Err(PostError::Again)
            }
        }
    }

    /// Closes an idle lane in a full region, so that another can be opened.
    fn make_room(&mut self, berth: &mut Berth) {
        // One whose receiver makes no progress must not keep others from going.
        let is_late = || berth.closed.is_none_or(|at| at.elapsed() > LATE);
        if berth.closing.is_empty() || (berth.closing.len() < MOST_CLOSING && is_late()) {
            self.close_an_idle_lane(berth);
        }
        self.finish_closing(berth);
    }

    /// Writes a lane's descriptor.
    fn describe(
        &mut self,
        berth: &mut Berth,
        to: PeerId,
        record: &Record,
        place: Place,
    ) -> isthmus_region::Result<Outgoing> {
        let activity = berth.member.own().announcements(record.slot().0)?;
        let number = berth.take_descriptor()?;
        let section = berth.member.section();
        let ring = section.ring("ring", place.ring, place.size.slots)?;
        let at = berth.lanes.at(number)?;
        let (descriptor, counters) = (section.line("lane", at)?, section.line("lane", at + lane::MESSAGES)?);
        let generation = Life::unpack(descriptor.words[0].peek()).incarnation + 1;
        let sleeper = berth.remote_block(record).map(|(_, line)| line);
        let out =
            Outgoing::new(number, place, ring, descriptor.clone(), counters, activity, berth.local, sleeper);
        out.tell(&self.peers[to.0 as usize].totals());
        let words = &descriptor.words;
        // A receiver that reads any word below also reads that the old lane is closed (P5).
        release_fence();
        words[1].put(record.slot().0.into());
        words[2].put(record.incarnation());
        words[3].put(place.ring);
        words[4].put(place.size.slots | (place.size.data_bytes << 32));
        words[5].put(place.data);
        words[6].put(0);
        words[7].put(0);
        step(Step::LaneDescribed);
        words[0].set(Life { incarnation: generation, state: State::Active }.pack());
        step(Step::LaneAlive);
        berth.bump_version(true);
        Ok(out)
    }

    /// Checks whether the receiver has accepted our lane.
    pub(super) fn check_accept(&mut self, berth: &mut Berth, to: PeerId) {
        let peer = &self.peers[to.0 as usize];
        let Some(out) = peer.path.lane().filter(|o| !o.is_accepted()) else { return };
        let block = peer.record.as_ref().and_then(|record| berth.remote_block(record));
        let Some((section, line)) = block else { return };
        let version = line.words[3].get();
        if out.accepts_seen == Some(version) {
            return;
        }
        let key = accept_key(berth.slot, out.number);
        let life = berth.lanes.at(out.number).and_then(|at| berth.member.section().word("lane", at));
        let generation = life.map(|word| Life::unpack(word.peek()).incarnation);
        let generation = generation.unwrap_or(0);
        let found = berth.find_accept(&section, line.words[2].get(), key, generation);
        let Some(out) = self.peers[to.0 as usize].path.lane_mut() else { return };
        match found {
            Some((heat, read)) => out.accept(heat, read),
            None => out.accepts_seen = Some(version),
        }
    }

    /// Checks whether lanes were accepted, answers requests to cool, and collects chunks.
    pub(super) fn check_accepts(&mut self, berth: &mut Berth) {
        for i in 0..self.peers.len() {
            let Some(out) = self.peers[i].path.lane_mut() else { continue };
            if !out.is_accepted() {
                self.check_accept(berth, PeerId(u32::try_from(i).unwrap_or(u32::MAX)));
                continue;
            }
            out.answer();
            step(Step::CoolAnswered);
            out.idle = out.idle.saturating_add(1);
            if out.chunks_held() > 0 && out.refresh().is_ok() {
                while let Some(chunk) = out.free_chunk() {
                    berth.chunk_pool.push(chunk);
                }
            }
        }
    }

    /// Closes the lane that was idle longest.
    fn close_an_idle_lane(&mut self, berth: &mut Berth) {
        let mut longest: Option<(u32, usize)> = None;
        for (i, peer) in self.peers.iter_mut().enumerate() {
            if !peer.pushes.is_empty() || !peer.backlog.is_empty() {
                continue;
            }
            let Some(out) = peer.path.lane_mut() else { continue };
            let idle = out.is_accepted() && out.is_drained().unwrap_or(false);
            if idle && longest.is_none_or(|(most, _)| out.idle >= most) {
                longest = Some((out.idle, i));
            }
        }
        if let Some((_, i)) = longest {
            self.close_lane(berth, i);
        }
    }

    /// Begins to close a lane that its receiver has drained. Its memory stays as it is until the receiver has cleared
    /// its accept entry, since it may still be polling the ring.
    fn close_lane(&mut self, berth: &mut Berth, peer: usize) {
        let id = PeerId(u32::try_from(peer).unwrap_or(u32::MAX));
        let Some(mut out) = self.take_lane(id) else { return };
        berth.member.counters().add_shared(Counter::LanesClosed as usize, 1);
        step(Step::LaneClosing);
        let section = berth.member.section();
        if let Ok(at) = berth.lanes.at(out.number)
            && let (Ok(life), Ok(end)) = (section.word("lane", at), section.word("lane", at + lane::ROOM))
        {
            end.put(out.written());
            life.set(Life { state: State::Dead, ..Life::unpack(life.peek()) }.pack());
        }
        step(Step::LaneClosed);
        berth.bump_version(true);
        out.announce();
        if let Some(bell) = out.bell_to_ring()
            && let Some(slot) = self.peers[peer].record.as_ref().map(Record::slot)
        {
            self.ring(berth, id, bell, slot);
        }
        berth.closed = Some(Instant::now());
        berth.chunk_pool.extend(out.all_chunks());
        berth.closing.push((id, out));
    }

    /// Takes back the memory of closed lanes whose receivers have cleared their accept entries, or are gone.
    pub(super) fn finish_closing(&mut self, berth: &mut Berth) {
        let mut k = 0;
        while let Some((peer, out)) = berth.closing.get(k) {
            let key = accept_key(berth.slot, out.number);
            if out.is_let_go(key) || !self.peers[peer.0 as usize].lives() {
                let (_, out) = berth.closing.swap_remove(k);
                berth.open_lanes -= 1;
                berth.lanes.give(out.number);
                berth.give_place(out.place);
            } else {
                k += 1;
            }
        }
    }
}
