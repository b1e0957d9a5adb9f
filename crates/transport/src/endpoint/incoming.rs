//! Incoming lanes: finding them, accepting them, forgetting them.

use isthmus_lockfree::life::{Life, State, unchanged};
use isthmus_region::directory::Directory;
use isthmus_region::format::{CHUNK_ENTRIES, GlobalSlot, accept, chunk, lane};
use isthmus_region::mapping::LineRef;
use isthmus_region::{PeerSection, ReadOnly, SlotRing};

use super::entries::accept_key;
use super::poll::Keep;
use super::roster::took_leave;
use super::{Endpoint, Sender, Shortage};
use crate::address::Address;
use crate::fault::{Step, step};
use crate::lane::Incoming;

/// Most lanes of one sender: the one that is open, and one that was closed while the table was read.
const MOST_LANES: usize = 2;

/// What a lane descriptor claims; nothing is checked yet.
struct Claim {
    number: u32,
    generation: u64,
    /// Offset of the ring, and its slots.
    ring: (u64, u64),
    descriptor: LineRef<ReadOnly>,
}

impl Claim {
    /// What descriptor `number` claims, if it describes a lane to incarnation `incarnation` of `slot`. A
    /// descriptor that becomes another lane's while it is read claims nothing; the table's version changes
    /// after that (P5).
    fn read(number: u32, descriptor: LineRef<ReadOnly>, slot: GlobalSlot, incarnation: u64) -> Option<Self> {
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
    /// Follows an activity line: polls the lanes of the senders in `groups` of quarter `q`.
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

    /// Takes all that a lane holds now: the rest would wait for the next announcement.
    fn drain(&mut self, number: u32) -> bool {
        let mut moved = false;
        let mut rounds = 0;
        while self.poll(number, &mut Keep) {
            moved = true;
            rounds += 1;
            // A sender that fills the lane as fast as we empty it must not keep us here: the lane becomes
            // hot.
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

    /// Whether messages are left on a lane, since its sender is owed too many replies or there is no memory.
    /// The lane must be polled on then: a sender without room announces nothing.
    pub(super) fn is_left(&self, number: u32) -> bool {
        matches!(self.incoming.get(number as usize), Some(Some(lane)) if lane.arrived().is_some())
    }

    /// Tries again to accept lanes for which there was no memory.
    pub(super) fn retry_accepts(&mut self) {
        if std::mem::take(&mut self.retry_lanes) {
            for q in 0..self.quarters.len() {
                self.visit(q, u8::MAX);
            }
        }
    }

    /// Brings what is known of a sender up to date; returns whether it lives.
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
            // The record decides whether the former sender is gone; the directory's generation is only a
            // hint.
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

    /// Searches a sender's lane descriptors for new lanes to us, and for lanes that were closed.
    fn find_lanes(
        &mut self,
        q: usize,
        slot: u32,
        section: &PeerSection,
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
        // A lane that is no longer described was closed, which its sender does only once it is drained.
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

    /// Accepts a lane; a claim that cannot be right is ignored.
    fn accept(
        &mut self,
        q: usize,
        slot: u32,
        section: &PeerSection,
        claim: &Claim,
        peer: u32,
        incarnation: u64,
    ) {
        let (ring_at, slots) = claim.ring;
        let Ok(ring): Result<SlotRing<ReadOnly>, _> = section.ring("ring", ring_at, slots) else { return };
        let address = Address {
            region: self.member.region().shape().uuid,
            slot: GlobalSlot::new(peer, slot, self.member.region().shape().endpoints),
            incarnation,
        };
        let Ok(source) = self.meet(&address) else { return };
        if self.peers[source.0 as usize].gone {
            // It is faulty and still runs, or has just died.
            self.spare(source);
            return;
        }
        let Ok(entry) = self.take_entry(false) else {
            // No memory for the accept entry. The sender fills its ring once and announces nothing more, so
            // trying again is up to us.
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
        // The sender may sleep until the lane is accepted.
        self.wake_sender(u32::try_from(number).unwrap_or(u32::MAX));
    }

    /// Forgets an incoming lane, and frees its accept entry.
    pub(super) fn drop_incoming(&mut self, number: u32) {
        let Some(lane) = self.incoming.get_mut(number as usize).and_then(Option::take) else { return };
        self.peers[lane.peer.0 as usize].is_kept |= lane.has_taken();
        self.hot.retain(|n| *n != number);
        self.cooling.retain(|n| *n != number);
        self.waiters.retain(|n| *n != number);
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

#[cfg(test)]
#[allow(clippy::disallowed_types)] // orderings of the test's own threads
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicBool, Ordering};

    use isthmus_lockfree::sync::release_fence;
    use isthmus_region::mapping::Mapping;

    use super::*;

    /// A sender closes and opens lanes, to us and to others in turn, while we read its descriptor.
    #[test]
    fn a_descriptor_that_changes_hands_claims_nothing() {
        let fd = isthmus_region::create::memory(1 << 20).unwrap();
        let map = Mapping::map(fd.as_fd(), 1 << 20).unwrap();
        let line = map.whole_for_reading().line("lane", 0).unwrap();
        let theirs = map.whole().unwrap().line("lane", 0).unwrap();
        let done = AtomicBool::new(false);
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
