//! An endpoint's chains: lane descriptors, accept entries, rings; and which of them belong together.

use std::collections::{HashMap, HashSet};

use isthmus_region::counters::LaneTotals;
use isthmus_region::format::{CHUNK_ENTRIES, accept, block, chunk, lane, slot};
use isthmus_region::life::State;
use isthmus_region::membership::Shape;
use isthmus_transport::wire;

use super::members::{Within, chunk_bytes};
use super::{Depth, Result, Walk, half, word};
use crate::fault::{Place, number};
use crate::model::{Accept, Endpoint, Lane, Survey};

/// Most slots of a ring.
const MOST_SLOTS: u64 = 1 << 24;
/// Slots that are read at a time.
const BATCH: u64 = 64;
/// Most faults reported for one ring.
const MOST_OF_A_RING: u32 = 4;

/// A receiver's accept entry, with the lane that it names: member, endpoint and lane in the survey.
struct Link {
    lane: (usize, usize, usize),
    accept: Accept,
    place: Place,
}

impl Walk<'_> {
    pub(super) fn block(
        &mut self,
        shape: &Shape,
        within: &mut Within,
        endpoint: &mut Endpoint,
        at: u64,
    ) -> Result<()> {
        let words = self.words("block", within.start + at, usize::try_from(block::BYTES / 8).unwrap_or(0))?;
        let place = Place::Endpoint(within.peer, endpoint.local);
        let sleep = word(&words, block::SLEEP);
        endpoint.asleep = match sleep & 3 {
            1 => Some("futex"),
            2 => Some("service"),
            _ => None,
        };
        let said = sleep == 0 || endpoint.asleep.is_some();
        self.require(said, place, "block.SLEEP", within.start + at + block::SLEEP, sleep, || {
            "0, or 1 (by its futex) or 2 (through its service) in its lowest two bits".into()
        });
        let table = word(&words, block::REGISTRATIONS);
        endpoint.registrations = (table != 0).then_some(table);
        endpoint.block = at;
        endpoint.holds = self.hold(shape, place, within.start + at + block::HOLD, word(&words, block::HOLD));
        let lanes = (at + block::LANES, word(&words, block::LANES));
        for chunk_at in self.chain(within, place, "block.LANES", lanes, chunk_bytes(lane::BYTES))? {
            for i in 0..CHUNK_ENTRIES {
                let number = endpoint.lane_entries + i;
                let entry = chunk_at + chunk::BYTES + i * lane::BYTES;
                if let Some(lane) = self.lane(shape, within, endpoint.local, number, entry)? {
                    endpoint.lanes.push(lane);
                }
            }
            endpoint.lane_entries += CHUNK_ENTRIES;
        }
        let accepts = (at + block::ACCEPTS, word(&words, block::ACCEPTS));
        let mut first = 0;
        for chunk_at in self.chain(within, place, "block.ACCEPTS", accepts, chunk_bytes(accept::BYTES))? {
            for i in 0..CHUNK_ENTRIES {
                let entry = chunk_at + chunk::BYTES + i * accept::BYTES;
                if let Some(accept) = self.accept(shape, within, endpoint.local, first + i, entry)? {
                    endpoint.accepts.push(accept);
                }
            }
            first += CHUNK_ENTRIES;
        }
        self.context(shape, within, endpoint, at, &words)
    }

    /// Offsets in the section of a chain's chunks of `bytes`; `head` is the place of the chain's first link, and its value.
    pub(super) fn chain(
        &mut self,
        within: &mut Within,
        place: Place,
        field: &'static str,
        head: (u64, u64),
        bytes: u64,
    ) -> Result<Vec<u64>> {
        let (mut field, (mut link, mut next)) = (field, head);
        let mut chunks = Vec::new();
        while next != 0 {
            let at = within.start + link;
            if !self.require(within.holds(next, bytes, 64), place, field, at, next, || {
                format!("0, or {}", within.wanted(bytes, 64))
            }) {
                break;
            }
            // A chain that leads back to itself, or into another one, ends here.
            if let Err(other) = within.parts.take(next, bytes) {
                self.overlap(place, field, at, (next, bytes), other);
                break;
            }
            chunks.push(next);
            (field, link) = ("chunk.NEXT", next + chunk::NEXT);
            next = self.words("chunk", within.start + link, 1)?[0];
        }
        Ok(chunks)
    }

    fn lane(
        &mut self,
        shape: &Shape,
        within: &mut Within,
        local: u32,
        number: u64,
        entry: u64,
    ) -> Result<Option<Lane>> {
        let place = Place::Lane(within.peer, local, number);
        let at = within.start + entry;
        let words = self.words("lane", at, usize::try_from(lane::BYTES / 8).unwrap_or(0))?;
        let life = self.life(place, "lane.LIFE", at + lane::LIFE, word(&words, lane::LIFE));
        if life.state != State::Active {
            return Ok(None);
        }
        // A descriptor that was reused meanwhile belongs to another lane, which the next survey sees.
        if self.words("lane", at + lane::LIFE, 1)?[0] != word(&words, lane::LIFE) {
            return Ok(None);
        }
        let to = word(&words, lane::TO);
        let known = self.require(to < u64::from(shape.slots()), place, "lane.TO", at + lane::TO, to, || {
            format!("below {}, the endpoint slots of the region", shape.slots())
        });
        let (slots, data_bytes) =
            (u64::from(half(&words, lane::SLOTS)), u64::from(half(&words, lane::DATA_BYTES)));
        let sized = self.require(
            slots.is_power_of_two() && slots <= MOST_SLOTS,
            place,
            "lane.SLOTS",
            at + lane::SLOTS,
            slots,
            || format!("a power of two up to {MOST_SLOTS}"),
        );
        let ring = word(&words, lane::RING);
        let whole = sized && self.part(within, place, "lane.RING", at + lane::RING, ring, slots * 64);
        if data_bytes > 0 {
            self.part(within, place, "lane.DATA", at + lane::DATA, word(&words, lane::DATA), data_bytes);
        }
        let lane = Lane {
            number,
            to: u32::try_from(to).unwrap_or(u32::MAX),
            to_incarnation: word(&words, lane::TO_INCARNATION),
            receiver_lives: false,
            slots,
            data_bytes,
            accepted: false,
            polled_directly: false,
            slots_read: 0,
            slots_unread: 0,
            counters: LaneTotals::from_words(std::array::from_fn(|i| {
                word(&words, lane::MESSAGES + 8 * i as u64)
            })),
            generation: life.incarnation,
            at,
            ring: whole.then(|| within.start + ring),
        };
        Ok(known.then_some(lane))
    }

    /// Checks and claims a part of the heap.
    pub(super) fn part(
        &mut self,
        within: &mut Within,
        place: Place,
        field: &'static str,
        at: u64,
        offset: u64,
        bytes: u64,
    ) -> bool {
        let wanted = within.wanted(bytes, 64);
        if !self.require(within.holds(offset, bytes, 64), place, field, at, offset, || wanted) {
            return false;
        }
        let taken = within.parts.take(offset, bytes);
        if let Err(other) = taken {
            self.overlap(place, field, at, (offset, bytes), other);
        }
        taken.is_ok()
    }

    fn accept(
        &mut self,
        shape: &Shape,
        within: &Within,
        local: u32,
        number: u64,
        entry: u64,
    ) -> Result<Option<Accept>> {
        let place = Place::Accept(within.peer, local, number);
        let at = within.start + entry;
        let words = self.words("accept", at, 16)?;
        let Some(key) = word(&words, accept::KEY).checked_sub(1) else { return Ok(None) };
        let sender = key >> 32;
        let known = self.require(
            sender < u64::from(shape.slots()),
            place,
            "accept.KEY",
            at + accept::KEY,
            key + 1,
            || format!("one more than a slot below {} in its upper half and a lane's number", shape.slots()),
        );
        let accept = Accept {
            number,
            sender: u32::try_from(sender).unwrap_or(u32::MAX),
            lane: key & 0xffff_ffff,
            generation: word(&words, accept::GENERATION),
            incarnation: word(&words, accept::SENDER),
            heat: word(&words, accept::HEAT),
            read: word(&words, accept::READ),
            at,
        };
        Ok(known.then_some(accept))
    }

    /// Matches lanes with their accept entries, and reads the rings.
    pub(super) fn connect(&mut self, shape: &Shape, survey: &mut Survey) -> Result<()> {
        let mut places = HashMap::new();
        for (m, member) in survey.members.iter().enumerate() {
            for (e, endpoint) in member.endpoints.iter().enumerate() {
                places.insert(endpoint.slot, (m, e));
            }
        }
        let links = self.links(survey, &places);
        for Link { lane: (m, e, l), accept, place } in links {
            let receiver = place_of(place);
            let lane = &mut survey.members[m].endpoints[e].lanes[l];
            lane.accepted = true;
            lane.polled_directly = accept.heat % 2 == 1;
            lane.slots_read = accept.read;
            if let Some(ring) = lane.ring {
                lane.slots_unread = self.unread(ring, lane.slots, accept.read)?;
                if self.depth == Depth::Slots && self.reader.is_memory() {
                    let lane = lane.clone();
                    self.positions(&lane, ring, &accept, place)?;
                }
            }
            let hot = survey.members[m].endpoints[e].lanes[l].polled_directly;
            if let Some((m, e)) = receiver.and_then(|(p, s)| places.get(&shape.slot(p, s).0)) {
                survey.members[*m].endpoints[*e].polled_directly += usize::from(hot);
            }
        }
        let alive: HashMap<u32, u64> =
            survey.members.iter().flat_map(|m| &m.endpoints).map(|e| (e.slot, e.incarnation)).collect();
        for member in &mut survey.members {
            for endpoint in &mut member.endpoints {
                for lane in &mut endpoint.lanes {
                    lane.receiver_lives = alive.get(&lane.to) == Some(&lane.to_incarnation);
                    if let Some(ring) = lane.ring {
                        if !lane.accepted {
                            lane.slots_unread = self.unread(ring, lane.slots, 0)?;
                        }
                        if self.depth == Depth::Slots {
                            let place = Place::Lane(member.index, endpoint.local, lane.number);
                            self.slots(ring, lane.slots, place)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn links(&mut self, survey: &Survey, places: &HashMap<u32, (usize, usize)>) -> Vec<Link> {
        let (mut links, mut named) = (Vec::new(), HashSet::new());
        for member in &survey.members {
            for endpoint in &member.endpoints {
                for accept in &endpoint.accepts {
                    let place = Place::Accept(member.index, endpoint.local, accept.number);
                    let Some(&(m, e)) = places.get(&accept.sender) else { continue };
                    let sender = &survey.members[m].endpoints[e];
                    // The entry for a sender that is gone has no meaning any more.
                    if sender.incarnation != accept.incarnation {
                        continue;
                    }
                    let value = accept.lane;
                    let entries = sender.lane_entries;
                    if !self.require(value < entries, place, "accept.KEY", accept.at, value, || {
                        format!("a lane below {entries}, the descriptors that its sender has")
                    }) {
                        continue;
                    }
                    let Ok(l) = sender.lanes.binary_search_by_key(&accept.lane, |l| l.number) else {
                        continue;
                    };
                    let lane = &sender.lanes[l];
                    let at = accept.at + accept::GENERATION;
                    self.require(
                        accept.generation <= lane.generation,
                        place,
                        "accept.GENERATION",
                        at,
                        accept.generation,
                        || format!("at most {}, which the lane's descriptor has", lane.generation),
                    );
                    if accept.generation != lane.generation || lane.to_incarnation != endpoint.incarnation {
                        continue;
                    }
                    let right = lane.to == endpoint.slot;
                    if self.require(right, place, "accept.KEY", accept.at, value, || {
                        format!("a lane to endpoint {}, while this one goes to {}", endpoint.slot, lane.to)
                    }) && self.require(
                        named.insert((m, e, l)),
                        place,
                        "accept.KEY",
                        accept.at,
                        value,
                        || "a lane that no other entry names".into(),
                    ) {
                        links.push(Link { lane: (m, e, l), accept: *accept, place });
                    }
                }
            }
        }
        links
    }

    /// Word 0 of slots `from` to `from + count` of a ring, by index.
    fn heads(&self, ring: u64, from: u64, count: u64) -> Result<Vec<u64>> {
        let words = self.words("ring", ring + from * slot::BYTES, usize::try_from(count * 8).unwrap_or(0))?;
        Ok(words.chunks_exact(8).map(|w| w[0]).collect())
    }

    /// Slots from position `read` on that hold a message.
    fn unread(&self, ring: u64, slots: u64, read: u64) -> Result<u64> {
        let mut count = 0;
        while count < slots {
            let index = read.wrapping_add(count) & (slots - 1);
            let batch = BATCH.min(slots - index).min(slots - count);
            for head in self.heads(ring, index, batch)? {
                let stamp = read.wrapping_add(count).wrapping_add(1) & 0xffff_ffff;
                if head & 0xffff_ffff != stamp {
                    return Ok(count);
                }
                count += 1;
            }
        }
        Ok(count)
    }

    /// Checks what holds for every slot by itself.
    fn slots(&mut self, ring: u64, slots: u64, place: Place) -> Result<()> {
        let mut reported = 0;
        let mut index = 0;
        while index < slots && reported < MOST_OF_A_RING {
            let batch = BATCH.min(slots - index);
            for (i, head) in (index..).zip(self.heads(ring, index, batch)?) {
                let stamp = head & 0xffff_ffff;
                let at = ring + i * slot::BYTES;
                // The stamp of a position is one more than it; a position's index is its lower bits.
                let fits = stamp == 0 || (stamp.wrapping_sub(1) ^ i) & (slots - 1) == 0;
                let mut sound = self.require(fits, place, "slot.STAMP", at + slot::STAMP, stamp, || {
                    format!("0, or {} more than a multiple of {slots}", i + 1)
                });
                if stamp != 0 {
                    let kind = wire::kind_of(head);
                    sound &= self.require(
                        wire::is_known(kind),
                        place,
                        "slot.KIND",
                        at + slot::KIND,
                        kind.into(),
                        || "a kind of message that `crates/transport/src/wire.rs` lists".into(),
                    );
                    let len = wire::inline_len(head) as u64;
                    let most = wire::INLINE_BYTES as u64;
                    sound &= self.require(
                        len <= most,
                        place,
                        "slot.INLINE_LEN",
                        at + slot::INLINE_LEN,
                        len,
                        || format!("at most {most}"),
                    );
                }
                reported += u32::from(!sound);
            }
            index += batch;
        }
        Ok(())
    }

    /// Checks what holds between the receiver's read position and the sender's stamps, in memory.
    fn positions(&mut self, lane: &Lane, ring: u64, accept: &Accept, place: Place) -> Result<()> {
        let mut stamps = Vec::new();
        let mut index = 0;
        while index < lane.slots {
            let batch = BATCH.min(lane.slots - index);
            stamps
                .extend(self.heads(ring, index, batch)?.iter().map(|h| h & 0xffff_ffff).filter(|s| *s != 0));
            index += batch;
        }
        // The read position advances meanwhile, and so does the sender.
        let read = self.words("accept", accept.at + accept::READ, 1)?[0];
        let oldest = accept.read.wrapping_sub(lane.slots).wrapping_add(1);
        let span = read.wrapping_sub(accept.read).saturating_add(2 * lane.slots);
        let near = |stamp: &u64| stamp.wrapping_sub(oldest) & 0xffff_ffff < span;
        let (at, count) = (accept.at + accept::READ, lane.slots);
        self.require(
            stamps.is_empty() || stamps.iter().any(near),
            place,
            "accept.READ",
            at,
            accept.read,
            || format!("within {} of a stamp in the lane's ring at {}", count, number(ring)),
        );
        Ok(())
    }
}

/// Member and endpoint of a place.
fn place_of(place: Place) -> Option<(u32, u32)> {
    match place {
        Place::Accept(peer, slot, _) | Place::Lane(peer, slot, _) | Place::Endpoint(peer, slot) => {
            Some((peer, slot))
        }
        _ => None,
    }
}
