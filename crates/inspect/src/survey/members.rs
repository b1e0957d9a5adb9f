//! A member's section: directory, areas and endpoints.

use std::collections::HashMap;

use isthmus_region::counters::{Totals, WORDS};
use isthmus_region::directory::{Places, heap_end, pages_fit, places};
use isthmus_region::format::{
    CHUNK_ENTRIES, DIRECTORY_MAGIC, EXTENT_UNIT, area, block, chunk, counters, directory, endpoint,
};
use isthmus_region::grants::{self, PAGE};
use isthmus_region::life::State;
use isthmus_region::membership::Shape;
use isthmus_region::text::printable;

use super::registrations::Window;
use super::{Result, Walk, word};
use crate::claims::Claims;
use crate::fault::{Place, number};
use crate::model::{Endpoint, Member, Process, lives, padded};

/// Words of a record.
fn words_of(bytes: u64) -> usize {
    usize::try_from(bytes / 8).unwrap_or(1)
}

/// A section whose contents are being read, and the bytes of it that were found in use.
pub(super) struct Within {
    pub(super) peer: u32,
    /// Offset of the section in the region.
    pub(super) start: u64,
    /// Bytes of the section.
    pub(super) bytes: u64,
    /// Where its heap ends, as an offset in it.
    pub(super) heap_end: u64,
    pub(super) places: Places,
    pub(super) incarnation: u64,
    /// What lies in the heap.
    pub(super) parts: Claims,
    /// First extents of areas, and the areas that own them.
    pub(super) extents: Claims,
    pub(super) owners: HashMap<u64, u32>,
    /// What its processes let initiators reach.
    pub(super) windows: Vec<Window>,
}

impl Within {
    /// Whether the heap has these bytes, aligned.
    pub(super) fn holds(&self, offset: u64, bytes: u64, align: u64) -> bool {
        offset >= self.places.heap
            && offset.is_multiple_of(align)
            && offset.checked_add(bytes).is_some_and(|end| end <= self.heap_end)
    }

    /// What [`Within::holds`] asks for, in words.
    pub(super) fn wanted(&self, bytes: u64, align: u64) -> String {
        let heap = self.places.heap;
        format!(
            "a multiple of {align} from {heap} on, with {} bytes before the heap's end at {}",
            number(bytes),
            number(self.heap_end)
        )
    }
}

impl Walk<'_> {
    pub(super) fn member(&mut self, shape: &Shape, member: &mut Member) -> Result<()> {
        let mut within = Within {
            peer: member.index,
            start: member.section,
            bytes: member.section_bytes,
            heap_end: member.section_bytes,
            places: places(shape),
            incarnation: member.incarnation,
            parts: Claims::default(),
            extents: Claims::default(),
            owners: HashMap::new(),
            windows: Vec::new(),
        };
        if !self.directory(shape, &mut within, member)? {
            return Ok(());
        }
        let slots = usize::try_from(shape.endpoints).unwrap_or(0);
        let size = words_of(area::BYTES);
        let areas = self.words("area table", within.start + within.places.areas, slots * size)?;
        let mut granted = 0_u64;
        for (index, record) in (0_u32..).zip(areas.chunks_exact(size)) {
            if let Some(process) = self.area(&mut within, index, record)? {
                member.counters.add(&process.counters);
                granted = granted.saturating_add(process.memory_bytes);
                member.processes.push(process);
            }
        }
        let at = within.start + directory::HEAP_USED;
        let used = member.heap_used;
        self.require(granted <= used, Place::Directory(within.peer), "directory.HEAP_USED", at, used, || {
            format!("at least {}, which the areas were granted", number(granted))
        });
        let high = self.words("directory", within.start + directory::ENDPOINTS_HIGH, 1)?[0];
        let size = words_of(endpoint::BYTES);
        let endpoints = self.words("endpoint table", within.start + within.places.endpoints, slots * size)?;
        for (slot, record) in (0_u32..).zip(endpoints.chunks_exact(size)) {
            if let Some(endpoint) =
                self.endpoint(shape, &mut within, &member.processes, slot, record, high)?
            {
                self.registrations(&mut within, &endpoint, &mut member.registrations)?;
                member.endpoints.push(endpoint);
            }
        }
        self.windows(&within);
        self.grant_table(shape, &within, member)
    }

    /// Counts what is granted of the pool. A page may outlive the process that it was granted by, where a fork has it, too.
    fn grant_table(&mut self, shape: &Shape, within: &Within, member: &mut Member) -> Result<()> {
        let count = usize::try_from(member.pages_bytes / PAGE).unwrap_or(0);
        let table = self.words("grant table", within.start + within.heap_end, count)?;
        let mut beyond = None;
        for (at, area) in (0_u64..).zip(&table).filter_map(|(at, word)| Some((at, grants::area(*word)?))) {
            member.pages_granted += PAGE;
            match member.processes.binary_search_by_key(&area, |process| process.area) {
                Ok(process) => member.processes[process].pages_granted += PAGE,
                Err(_) if area == grants::NOBODY => {}
                Err(_) if area >= shape.endpoints => beyond = beyond.or(Some((at, area))),
                Err(_) => {}
            }
        }
        if let Some((at, area)) = beyond {
            let offset = within.start + within.heap_end + at * 8;
            self.fault(
                Place::Directory(within.peer),
                "grant table",
                offset,
                number(area.into()),
                format!("an area below {}, or none", shape.endpoints),
            );
        }
        Ok(())
    }

    /// Returns whether the section can be walked.
    fn directory(&mut self, shape: &Shape, within: &mut Within, member: &mut Member) -> Result<bool> {
        let words = self.words("directory", within.start, 64)?;
        let place = Place::Directory(within.peer);
        let get = |offset| word(&words, offset);
        let at = |offset| within.start + offset;
        if get(directory::MAGIC) != DIRECTORY_MAGIC {
            let bytes = get(directory::MAGIC).to_le_bytes();
            let found: String = bytes.iter().map(|b| char::from(*b)).collect();
            let value = format!("{:?}", printable(&found));
            self.fault(
                place,
                "directory.MAGIC",
                at(directory::MAGIC),
                value,
                "\"PEERDIR1\", since the peer is active",
            );
            return Ok(false);
        }
        let mut sound = self.require(
            get(directory::INCARNATION) == within.incarnation,
            place,
            "directory.INCARNATION",
            at(directory::INCARNATION),
            get(directory::INCARNATION),
            || format!("{}, as the peer's entry says", within.incarnation),
        );
        let (pages, pages_bytes) = (get(directory::PAGES), get(directory::PAGES_BYTES));
        let fit = pages_fit(shape, within.bytes, pages, pages_bytes);
        sound &= self.require(fit, place, "directory.PAGES", at(directory::PAGES), pages, || {
            format!(
                "a multiple of {} behind the tables, with PAGES_BYTES of such multiples up to the section's end at {}",
                shape.section_align,
                number(within.bytes)
            )
        });
        if fit {
            within.heap_end = heap_end(pages, pages_bytes).unwrap_or(pages);
            member.pages_bytes = pages_bytes;
        }
        member.vectors = isthmus_region::driver::vectors(get(directory::VECTORS));
        let heap_bytes = within.heap_end - within.places.heap;
        for (field, offset, right) in [
            ("directory.ENDPOINT_TABLE", directory::ENDPOINT_TABLE, within.places.endpoints),
            ("directory.AREA_TABLE", directory::AREA_TABLE, within.places.areas),
            ("directory.ACTIVITY_TABLE", directory::ACTIVITY_TABLE, within.places.activity),
            ("directory.HEAP", directory::HEAP, within.places.heap),
            ("directory.HEAP_BYTES", directory::HEAP_BYTES, heap_bytes),
        ] {
            sound &=
                self.require(get(offset) == right, place, field, at(offset), get(offset), || number(right));
        }
        member.heap_bytes = heap_bytes;
        member.heap_used = get(directory::HEAP_USED);
        let fits = member.heap_used <= member.heap_bytes && member.heap_used.is_multiple_of(EXTENT_UNIT);
        self.require(fits, place, "directory.HEAP_USED", at(directory::HEAP_USED), member.heap_used, || {
            format!("a multiple of {EXTENT_UNIT} up to {}", number(member.heap_bytes))
        });
        let high = get(directory::ENDPOINTS_HIGH);
        let most = u64::from(shape.endpoints);
        self.require(
            high <= most,
            place,
            "directory.ENDPOINTS_HIGH",
            at(directory::ENDPOINTS_HIGH),
            high,
            || format!("at most {most}"),
        );
        let first = usize::try_from(directory::RETIRED / 8).unwrap_or(0);
        member.counters = totals(&words[first..]);
        Ok(sound)
    }

    fn area(&mut self, within: &mut Within, index: u32, record: &[u64]) -> Result<Option<Process>> {
        let place = Place::Area(within.peer, index);
        let at = within.start + within.places.areas + u64::from(index) * area::BYTES;
        let life = self.life(place, "area.LIFE", at + area::LIFE, word(record, area::LIFE));
        if !lives(life) {
            return Ok(None);
        }
        self.incarnation(within, place, "area.LIFE", at + area::LIFE, life.incarnation);
        let (first, bytes) = (word(record, area::FIRST), word(record, area::FIRST_BYTES));
        let granted = word(record, area::GRANTED);
        let heap = within.heap_end - within.places.heap;
        self.require(
            granted >= bytes && granted <= heap,
            place,
            "area.GRANTED",
            at + area::GRANTED,
            granted,
            || format!("from {} to {}", number(bytes), number(heap)),
        );
        let enough = bytes >= counters::BYTES && bytes.is_multiple_of(EXTENT_UNIT);
        let mut sound =
            self.require(enough, place, "area.FIRST_BYTES", at + area::FIRST_BYTES, bytes, || {
                format!("a multiple of {EXTENT_UNIT}, and not 0")
            });
        let (offset, wanted) = (at + area::FIRST, within.wanted(bytes, EXTENT_UNIT));
        sound &=
            self.require(within.holds(first, bytes, EXTENT_UNIT), place, "area.FIRST", offset, first, || {
                wanted
            });
        let mut process = Process {
            area: index,
            incarnation: life.incarnation,
            pid: word(record, area::PID),
            program: self.program(place, at, record),
            memory_bytes: granted,
            pages_granted: 0,
            counters: Totals::default(),
        };
        if sound {
            match within.extents.take(first, bytes) {
                Ok(()) => {
                    within.owners.insert(first, index);
                }
                Err(other) => self.overlap(place, "area.FIRST", at + area::FIRST, (first, bytes), other),
            }
            let _ = within.parts.take(first, counters::BYTES);
            process.counters = totals(&self.words("counters", within.start + first, WORDS)?);
        }
        Ok(Some(process))
    }

    fn program(&mut self, place: Place, at: u64, record: &[u64]) -> String {
        let words = record[words_of(area::PROGRAM)..].iter();
        let (name, length) = padded(&words.flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
        if length.is_none() {
            let allowed = "UTF-8 and zeros behind it";
            self.fault(place, "area.PROGRAM", at + area::PROGRAM, format!("{name:?}"), allowed);
        }
        name
    }

    pub(super) fn overlap(
        &mut self,
        place: Place,
        field: &'static str,
        at: u64,
        own: (u64, u64),
        other: (u64, u64),
    ) {
        let value = format!("{:#x} to {:#x}", own.0, own.0.saturating_add(own.1));
        let allowed = format!("outside of {:#x} to {:#x}, which belong to something else", other.0, other.1);
        self.fault(place, field, at, value, allowed);
    }

    /// Lives inside a section carry its peer's in their upper bits.
    fn incarnation(&mut self, within: &Within, place: Place, field: &'static str, at: u64, incarnation: u64) {
        let own = within.incarnation;
        self.require(incarnation >> 32 == own, place, field, at, incarnation, || {
            format!("the peer's incarnation {own} in the bits from 40 on")
        });
    }

    fn endpoint(
        &mut self,
        shape: &Shape,
        within: &mut Within,
        processes: &[Process],
        slot: u32,
        record: &[u64],
        high: u64,
    ) -> Result<Option<Endpoint>> {
        let place = Place::Endpoint(within.peer, slot);
        let at = within.start + within.places.endpoints + u64::from(slot) * endpoint::BYTES;
        let life = self.life(place, "endpoint.LIFE", at + endpoint::LIFE, word(record, endpoint::LIFE));
        if life.state != State::Active {
            return Ok(None);
        }
        self.incarnation(within, place, "endpoint.LIFE", at + endpoint::LIFE, life.incarnation);
        self.require(u64::from(slot) < high, place, "endpoint.LIFE", at + endpoint::LIFE, 2, || {
            format!("free, since the directory says that only the first {high} were ever used")
        });
        let owner = word(record, endpoint::AREA);
        let process = processes.binary_search_by_key(&owner, |p| p.area.into()).ok().map(|i| &processes[i]);
        self.require(process.is_some(), place, "endpoint.AREA", at + endpoint::AREA, owner, || {
            "the number of an area in use".into()
        });
        let mut endpoint = Endpoint {
            slot: shape.slot(within.peer, slot).0,
            local: slot,
            incarnation: life.incarnation,
            area: process.map_or(0, |p| p.area),
            pid: word(record, endpoint::PID),
            lanes: Vec::new(),
            polled_directly: 0,
            asleep: None,
            registrations: None,
            holds: None,
            accepts: Vec::new(),
            lane_entries: 0,
            group: None,
            channels: Vec::new(),
            block: 0,
        };
        let block = word(record, endpoint::BLOCK);
        if !self.part(within, place, "endpoint.BLOCK", at + endpoint::BLOCK, block, block::BYTES) {
            return Ok(Some(endpoint));
        }
        self.block(shape, within, &mut endpoint, block)?;
        Ok(Some(endpoint))
    }
}

/// Bytes of a chunk with entries of `entry` bytes.
pub(super) fn chunk_bytes(entry: u64) -> u64 {
    chunk::BYTES + CHUNK_ENTRIES * entry
}

fn totals(words: &[u64]) -> Totals {
    Totals::from_words(std::array::from_fn(|i| words.get(i).copied().unwrap_or(0)))
}
