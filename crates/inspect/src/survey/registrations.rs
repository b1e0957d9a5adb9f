//! Memory that initiators reach without messages: tables of registrations, and holds on memory that is being changed (P7).
//!
//! A registration names memory that its process took from the region for the program, or, of what lies in granted pages, for the list of
//! these. Several may name the same bytes, if they are of one process; none may name memory of a service, of the transport, or of another process.

use std::collections::HashSet;

use isthmus_region::format::{CHUNK_ENTRIES, block, chunk, registration, registrations as head};
use isthmus_region::grants::PAGE;
use isthmus_region::holds::Owner;
use isthmus_region::life::{Life, State};
use isthmus_region::membership::Shape;
use isthmus_region::registrations::{self, ATOMIC, MOST_CHUNKS, MOST_PAGED, PAGES, READ, WRITE};

use super::members::{Within, chunk_bytes};
use super::{Result, Walk, word};
use crate::fault::{Place, number};
use crate::model::{Endpoint, Hold, Range, Registrations, Survey, lives};

/// A registration that lies in the heap.
pub(super) struct Window {
    start: u64,
    bytes: u64,
    area: u32,
    place: Place,
    /// Offset of the entry in the region.
    at: u64,
}

/// What the entries of a table add up to.
#[derive(Default)]
struct Uses {
    /// How often one was written.
    published: u64,
    /// How many are in force.
    active: u64,
}

impl Uses {
    /// The version of a table that was changed so often: each entry that is not in force was also withdrawn.
    fn version(&self) -> u64 {
        self.published.wrapping_mul(2).wrapping_sub(self.active)
    }
}

impl Walk<'_> {
    /// The table that an endpoint names, unless it was read before: the endpoints of a domain share one.
    pub(super) fn registrations(
        &mut self,
        within: &mut Within,
        endpoint: &Endpoint,
        met: &mut Vec<Registrations>,
    ) -> Result<()> {
        let Some(table) = endpoint.registrations else { return Ok(()) };
        let place = Place::Endpoint(within.peer, endpoint.local);
        let (field, at) = ("block.REGISTRATIONS", within.start + endpoint.block + block::REGISTRATIONS);
        if let Some(known) = met.iter().find(|r| r.table == table) {
            let owner = known.area;
            self.require(owner == endpoint.area, place, field, at, table, || {
                format!("another table than that of area {owner}, which is another process's")
            });
            return Ok(());
        }
        if !self.part(within, place, field, at, table, head::BYTES) {
            return Ok(());
        }
        let place = Place::Registrations(within.peer, endpoint.area);
        let begin = within.start + table;
        let (first, before) = self.head(begin)?;
        let link = (table + head::FIRST, first);
        let chunks =
            self.chain(within, place, "registrations.FIRST", link, chunk_bytes(registration::BYTES))?;
        if let Some(last) = chunks.get(MOST_CHUNKS - 1)
            && chunks.len() > MOST_CHUNKS
        {
            let next = chunks[MOST_CHUNKS];
            let at = within.start + last + chunk::NEXT;
            self.require(false, place, "chunk.NEXT", at, next, || {
                format!("0, since readers follow {MOST_CHUNKS} chunks of registrations")
            });
        }
        let (mut found, mut keys, mut uses) = (Vec::new(), HashSet::new(), Uses::default());
        for (chunk_at, first) in chunks.iter().zip((0..).step_by(16)) {
            for i in 0..CHUNK_ENTRIES {
                let place = Place::Registration(within.peer, endpoint.area, first + i);
                let at = within.start + chunk_at + chunk::BYTES + i * registration::BYTES;
                let range = self.registration(within, endpoint.area, place, at, &mut uses)?;
                if let Some(range) = range {
                    self.require(
                        keys.insert(range.key),
                        place,
                        "registration.KEY",
                        at + registration::KEY,
                        range.key,
                        || "a key that no other registration of the table has".into(),
                    );
                    found.push(range);
                }
            }
        }
        self.version(place, begin, before, &uses)?;
        met.push(Registrations { table, area: endpoint.area, ranges: found });
        Ok(())
    }

    /// First chunk and version of a table.
    fn head(&self, at: u64) -> Result<(u64, u64)> {
        let words = self.words("registrations", at, 2)?;
        Ok((word(&words, head::FIRST), word(&words, head::VERSION)))
    }

    /// Compares a table's version with its entries, if it did not change while they were read.
    fn version(&mut self, place: Place, begin: u64, before: u64, uses: &Uses) -> Result<()> {
        if !self.reader.is_memory() || self.head(begin)?.1 != before {
            return Ok(());
        }
        let right = uses.version();
        // A change may be in progress: the entry is written before the version.
        let near = before.wrapping_sub(right).wrapping_add(1) <= 2;
        self.require(near, place, "registrations.VERSION", begin + head::VERSION, before, || {
            format!("{right}, the changes that the table's entries tell of")
        });
        Ok(())
    }

    fn registration(
        &mut self,
        within: &mut Within,
        area: u32,
        place: Place,
        at: u64,
        uses: &mut Uses,
    ) -> Result<Option<Range>> {
        let words = self.words("registration", at, 7)?;
        let life_word = word(&words, registration::LIFE);
        let life = self.life(place, "registration.LIFE", at + registration::LIFE, life_word);
        uses.published = uses.published.wrapping_add(life.incarnation);
        uses.active += u64::from(lives(life));
        if !matches!(life.state, State::Free | State::Active) {
            self.require(false, place, "registration.LIFE", at + registration::LIFE, life_word, || {
                "free (0) or active (2) in its lowest byte".into()
            });
        }
        // An entry that was reused for another range meanwhile is seen by the next survey.
        let again = self.words("registration", at + registration::LIFE, 1)?[0];
        if !lives(life) || Life::unpack(again) != life {
            return Ok(None);
        }
        let get = |field| word(&words, field);
        let range = Range {
            key: get(registration::KEY),
            offset: get(registration::OFFSET),
            bytes: get(registration::LENGTH),
            access: get(registration::ACCESS),
        };
        let (access, all) = (range.access, READ | WRITE | ATOMIC);
        let is_paged = access & PAGES != 0;
        self.require(
            access & all != 0 && access & !(all | PAGES) == 0,
            place,
            "registration.ACCESS",
            at + registration::ACCESS,
            access,
            || "a sum of 1 (reads), 2 (writes) and 4 (atomic operations), and 8 for granted pages".into(),
        );
        let (skip, first) = (get(registration::SKIP), if is_paged { PAGE } else { 1 });
        let has_skip =
            self.require(skip < first, place, "registration.SKIP", at + registration::SKIP, skip, || {
                format!("less than {first}")
            });
        let most = if is_paged { MOST_PAGED } else { u64::MAX };
        let has_length = self.require(
            range.bytes <= most,
            place,
            "registration.LENGTH",
            at + registration::LENGTH,
            range.bytes,
            || format!("at most {}, of granted pages", number(most)),
        );
        if !has_skip || !has_length {
            return Ok(Some(range));
        }
        let (offset, align) = (range.offset, if is_paged { 8 } else { 1 });
        if !self.require(
            offset.is_multiple_of(align),
            place,
            "registration.OFFSET",
            at + registration::OFFSET,
            offset,
            || format!("a multiple of {align}"),
        ) {
            return Ok(Some(range));
        }
        // What lies in the section: the memory, or its list of pages.
        let bytes = if is_paged { registrations::Range::pages(skip, range.bytes) * 8 } else { range.bytes };
        let base = get(registration::BASE);
        let most = u64::MAX - range.bytes;
        self.require(base <= most, place, "registration.BASE", at + registration::BASE, base, || {
            format!("at most {}, with {} bytes behind it", number(most), number(range.bytes))
        });
        let (heap, end) = (within.places.heap, within.heap_end);
        let begins = (heap..end).contains(&range.offset);
        let sound = self.require(
            begins,
            place,
            "registration.OFFSET",
            at + registration::OFFSET,
            range.offset,
            || format!("in the section's heap, from {} to {}", number(heap), number(end)),
        ) && self.require(
            bytes <= end - range.offset,
            place,
            "registration.LENGTH",
            at + registration::LENGTH,
            range.bytes,
            || {
                format!(
                    "no more than the {} bytes that the heap has from there on",
                    number(end - range.offset)
                )
            },
        );
        if sound && bytes > 0 {
            within.windows.push(Window { start: range.offset, bytes, area, place, at });
        }
        Ok(Some(range))
    }

    /// Checks that registrations name no other contents of the section; called once those are known.
    pub(super) fn windows(&mut self, within: &Within) {
        let mut sorted: Vec<&Window> = within.windows.iter().collect();
        sorted.sort_by_key(|w| w.start);
        // Of the windows so far, the one that ends last, and the last one of any other area.
        let (mut last, mut other): (Option<&Window>, Option<&Window>) = (None, None);
        let end = |w: &Window| w.start + w.bytes;
        for window in sorted {
            let of_another = |w: &&Window| w.area != window.area;
            let met = last.filter(of_another).or(other.filter(of_another));
            let anothers = met.filter(|w| end(w) > window.start).map(|w| (w.start, end(w)));
            let part = within.parts.in_the_way(window.start, window.bytes);
            let extent = within.extents.in_the_way(window.start, window.bytes);
            let extent = extent.filter(|(first, _)| within.owners.get(first) != Some(&window.area));
            if let Some(taken) = part.or(extent).or(anothers) {
                let (at, own) = (window.at + registration::OFFSET, (window.start, window.bytes));
                self.overlap(window.place, "registration.OFFSET", at, own, taken);
            }
            match last {
                Some(w) if end(w) >= end(window) => {
                    if w.area != window.area && other.is_none_or(|o| end(o) < end(window)) {
                        other = Some(window);
                    }
                }
                before => {
                    if before.is_some_and(|w| w.area != window.area) {
                        other = before;
                    }
                    last = Some(window);
                }
            }
        }
    }

    /// The area that an endpoint's hold names.
    pub(super) fn hold(&mut self, shape: &Shape, place: Place, at: u64, word: u64) -> Option<Hold> {
        let (member, area) = Owner::named(word)?;
        let (peers, areas) = (shape.peers, shape.endpoints);
        let there = member < peers && area < areas;
        self.require(there, place, "block.HOLD", at, word, || {
            format!(
                "0, or one more than a peer below {peers} in its upper half and an area below {areas} in its lower"
            )
        })
        .then_some(Hold { member, area })
    }

    /// Checks that the owners of held memory live. Only in memory, which can be surveyed again: a hold is short, and the
    /// owner may die during it.
    pub(super) fn owners(&mut self, survey: &Survey) {
        if !self.reader.is_memory() {
            return;
        }
        for member in &survey.members {
            for endpoint in &member.endpoints {
                let Some(hold) = endpoint.holds else { continue };
                let owner = survey.members.iter().find(|m| m.index == hold.member);
                let process = owner.and_then(|m| m.processes.iter().find(|p| p.area == hold.area));
                let at = member.section + endpoint.block + block::HOLD;
                let place = Place::Endpoint(member.index, endpoint.local);
                if process.is_none() {
                    let value = format!("area {} of peer {}", hold.area, hold.member);
                    let allowed = "0, or an area whose process lives: the memory of one that is gone is given to \
                                   nobody until this endpoint's process lets go";
                    self.fault(place, "block.HOLD", at, value, allowed);
                }
            }
        }
    }
}
