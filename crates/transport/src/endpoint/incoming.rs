//! Incoming lanes: finding them, accepting them, forgetting them.

use isthmus_lockfree::life::{Life, State, unchanged};
use isthmus_region::chain;
use isthmus_region::format::{GlobalSlot, accept};
use isthmus_region::mapping::LineRef;
use isthmus_region::roster::{Present, Record, Senders};
use isthmus_region::{PeerSection, ReadOnly, SlotRing};

use super::entries::accept_key;
use super::poll::Keep;
use super::{Berth, Core, Sender, Shortage};
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

/// Whose lanes are looked for: the sender in a slot of the peer at place `q` of the roster.
struct Whose {
    q: usize,
    slot: u32,
    address: Address,
    record: Record,
    section: PeerSection,
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

impl Berth {
    /// Whether messages are left on a lane, since its sender is owed too many replies or there is no memory.
    /// The lane must be polled on then: a sender without room announces nothing.
    pub(super) fn is_left(&self, number: u32) -> bool {
        matches!(self.incoming.get(number as usize), Some(Some(lane)) if lane.arrived().is_some())
    }

    /// What is known of the sender in a slot of the peer at place `q` of the roster.
    fn sender(&self, q: usize, slot: u32) -> Option<&Sender> {
        self.roster.peers().get(q)?.kept.get(slot as usize)?.as_ref()
    }

    fn sender_mut(&mut self, q: usize, slot: u32) -> Option<&mut Sender> {
        self.roster.peers_mut().get_mut(q)?.kept.get_mut(slot as usize)?.as_mut()
    }

    /// Looks at a sender's lanes once more, though it announces none.
    fn look_again(&mut self, q: usize, slot: u32) {
        self.retry_lanes = true;
        if let Some(sender) = self.sender_mut(q, slot) {
            sender.lanes_seen = u64::MAX;
        }
    }
}

impl Core {
    /// Follows an activity line: polls the lanes of these senders of the peer at place `q` of the roster.
    pub(super) fn visit(&mut self, berth: &mut Berth, q: usize, senders: Senders) -> bool {
        let mut moved = false;
        let high = berth.roster.peers()[q].directory.endpoints_high();
        for slot in (0..high).filter(|slot| senders.has(*slot)) {
            if !self.know_sender(berth, q, slot) {
                continue;
            }
            let mut k = 0;
            loop {
                let lane = berth.sender(q, slot).and_then(|s| s.lanes.get(k)).copied();
                let Some(number) = lane else { break };
                k += 1;
                if self.drain(berth, number) {
                    moved = true;
                    self.warm(berth, number);
                }
                self.take_request(berth, number);
            }
        }
        moved
    }

    /// Takes all that a lane holds now: the rest would wait for the next announcement.
    fn drain(&mut self, berth: &mut Berth, number: u32) -> bool {
        let mut moved = false;
        let mut rounds = 0;
        while self.poll(berth, number, &mut Keep) {
            moved = true;
            rounds += 1;
            // A sender that fills the lane as fast as we empty it must not keep us here: the lane becomes
            // hot.
            if rounds == 64 {
                self.warm(berth, number);
                break;
            }
        }
        if berth.is_left(number) {
            self.warm(berth, number);
        }
        moved
    }

    /// Tries again to accept lanes for which there was no memory.
    pub(super) fn retry_accepts(&mut self, berth: &mut Berth) {
        if std::mem::take(&mut berth.retry_lanes) {
            for q in 0..berth.roster.peers().len() {
                self.visit(berth, q, Senders::ALL);
            }
        }
    }

    /// Brings what is known of a sender up to date; returns whether it lives.
    fn know_sender(&mut self, berth: &mut Berth, q: usize, slot: u32) -> bool {
        let peer = &mut berth.roster.peers_mut()[q];
        let at = slot as usize;
        if peer.kept.len() <= at {
            peer.kept.resize_with(at + 1, || None);
        }
        let known = peer.kept[at].as_ref().is_some_and(|sender| sender.record.lives());
        if !known {
            let before = peer.kept[at].take();
            peer.kept[at] = new_sender(peer, slot);
            // The record decides whether the former sender is gone; the directory's generation is only a
            // hint.
            if let Some(id) = before.and_then(|sender| self.by_address.get(&sender.address).copied()) {
                let died = !self.peers[id.0 as usize].took_leave();
                self.lose(berth, id, died);
            }
        }
        let peer = &mut berth.roster.peers_mut()[q];
        let Some(sender) = &mut peer.kept[at] else { return false };
        let version = sender.block.words[1].get();
        if version != sender.lanes_seen {
            sender.lanes_seen = version;
            let first = sender.block.words[0].get();
            let (address, record) = (sender.address, sender.record.clone());
            let whose = Whose { q, slot, address, record, section: peer.directory.section().clone() };
            self.find_lanes(berth, &whose, first);
        }
        true
    }

    /// Searches a sender's lane descriptors for new lanes to us, and for lanes that were closed.
    fn find_lanes(&mut self, berth: &mut Berth, whose: &Whose, first: u64) {
        let Whose { q, slot, ref section, .. } = *whose;
        let mut claims = Vec::new();
        let most = chain::most_lane_chunks(berth.member.region().shape());
        for (number, at) in chain::entries(section, chain::LANES, most, first) {
            let Ok(descriptor) = section.line("lane", at) else { break };
            claims.extend(Claim::read(number, descriptor, berth.slot, berth.incarnation));
        }
        // A lane that is no longer described was closed, which its sender does only once it is drained.
        let known: Vec<u32> = berth.sender(q, slot).map_or_else(Vec::new, |s| s.lanes.clone());
        for number in known {
            let Some(Some(lane)) = berth.incoming.get(number as usize) else { continue };
            let described = claims.iter().any(|c| c.number == lane.number && c.generation == lane.generation);
            if !described {
                self.drop_incoming(berth, number);
            }
        }
        for claim in claims {
            let sender = berth.sender(q, slot);
            let known = sender.is_some_and(|s| {
                s.lanes.iter().any(|n| {
                    matches!(berth.incoming.get(*n as usize), Some(Some(l))
                        if l.number == claim.number && l.generation == claim.generation)
                })
            });
            if !known && sender.is_some_and(|s| s.lanes.len() < MOST_LANES) {
                self.accept(berth, whose, &claim);
            }
        }
    }

    /// Accepts a lane; a claim that cannot be right is ignored.
    fn accept(&mut self, berth: &mut Berth, whose: &Whose, claim: &Claim) {
        let Whose { q, slot, address, ref record, ref section } = *whose;
        let (ring_at, slots) = claim.ring;
        let ring: Result<SlotRing<ReadOnly>, _> = section.ring("ring", ring_at, slots);
        let seen = ring.and_then(|ring| Ok((ring, self.meet_at(berth, &address, Some(record.clone()))?)));
        let (ring, source) = match seen {
            Ok(seen) => seen,
            // It cannot be mapped just now, and its sender announces it once.
            Err(e) if e.says_nothing() => return berth.look_again(q, slot),
            Err(_) => return,
        };
        if self.peers[source.0 as usize].path.is_gone() {
            // It is faulty and still runs, or has just died.
            self.spare(source);
            return;
        }
        let Ok(entry) = berth.take_accept() else {
            // No memory for the accept entry. The sender fills its ring once and announces nothing more, so
            // trying again is up to us.
            if berth.shortage == Shortage::None {
                berth.shortage = Shortage::Seen;
            }
            return berth.look_again(q, slot);
        };
        let mine = berth.member.section();
        let Ok(at) = berth.accepts.at(entry) else { return };
        let (Ok(heat), Ok(read)) = (mine.line("accept", at), mine.line("accept", at + accept::READ)) else {
            return;
        };
        read.words[0].put(0);
        heat.words[1].put(claim.generation);
        heat.words[2].put(record.incarnation());
        heat.words[3].put(0);
        step(Step::AcceptWritten);
        heat.words[0].set(accept_key(record.slot(), claim.number));
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
            berth.sender(q, slot).map(|s| s.block.clone()),
        );
        let number = berth.incoming.iter().position(Option::is_none).unwrap_or_else(|| {
            berth.incoming.push(None);
            berth.incoming.len() - 1
        });
        berth.incoming[number] = Some(lane);
        if let Some(sender) = berth.sender_mut(q, slot) {
            sender.lanes.push(u32::try_from(number).unwrap_or(u32::MAX));
        }
        berth.bump_version(false);
        // The sender may sleep until the lane is accepted.
        self.wake_sender(berth, u32::try_from(number).unwrap_or(u32::MAX));
    }

    /// Forgets an incoming lane, and frees its accept entry.
    pub(super) fn drop_incoming(&mut self, berth: &mut Berth, number: u32) {
        let Some(lane) = berth.incoming.get_mut(number as usize).and_then(Option::take) else { return };
        self.peers[lane.peer.0 as usize].is_kept |= lane.has_taken();
        berth.hot.retain(|n| *n != number);
        if berth.hot.is_empty() {
            berth.next_activity = 0;
        }
        berth.cooling.retain(|n| *n != number);
        berth.waiters.retain(|n| *n != number);
        for peer in berth.roster.peers_mut() {
            for sender in peer.kept.iter_mut().flatten() {
                sender.lanes.retain(|n| *n != number);
            }
        }
        let at = berth.accepts.at(lane.entry);
        if let Ok(key) = at.and_then(|at| berth.member.section().word("accept", at)) {
            key.set(0);
        }
        step(Step::AcceptFreed);
        berth.accepts.give(lane.entry);
        berth.bump_version(false);
    }
}

fn new_sender<T>(peer: &Present<T>, slot: u32) -> Option<Sender> {
    let info = peer.directory.endpoint(slot).ok()?;
    if info.life.state != State::Active {
        return None;
    }
    let place = peer.directory.shape().slot(peer.index, slot);
    let record = Record::of(&peer.directory, place, info.life.incarnation).ok()?;
    let address = Address { system: peer.system, number: slot, birth: info.birth };
    let block = peer.directory.section().line("block", info.block).ok()?;
    Some(Sender { address, record, block, lanes_seen: 0, lanes: Vec::new() })
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
