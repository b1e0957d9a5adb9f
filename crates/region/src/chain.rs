//! Tables that grow: chains of chunks of entries, in the area of the process that alone writes them.
//!
//! ```text
//! word of a block ──► chunk: next ──► chunk: next ──► 0
//!                     entries         entries
//! ```
//! A chunk is linked once it is zeroed, and stays where it is until the whole table is given back. Readers learn from a version
//! beside the table that an entry has changed. Entries are numbered along the chain.
//!
//! A reader believes no link: it follows at most as many chunks as the table can have, each of which must lie in the section, and
//! none twice. What an entry says is for its reader to check.

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::format::{CHANNEL_ENTRIES, CHUNK_ENTRIES, accept, channel, chunk, lane, registration};
use crate::mapping::PeerSection;
use crate::member::Member;
use crate::membership::Shape;

/// Lane descriptors of an endpoint.
pub const LANES: Layout = Layout::new("lane", lane::BYTES, CHUNK_ENTRIES);
/// Accept entries of an endpoint.
pub const ACCEPTS: Layout = Layout::new("accept", accept::BYTES, CHUNK_ENTRIES);
/// Ends of channels of a context.
pub const CHANNELS: Layout = Layout::new("channel", channel::BYTES, CHANNEL_ENTRIES);
/// Registrations of a domain.
pub const REGISTRATIONS: Layout = Layout::new("registration", registration::BYTES, CHUNK_ENTRIES);

/// Most chunks of lane descriptors or accept entries: one entry for each endpoint of the region, and a chunk more for lanes that
/// are being closed.
pub fn most_lane_chunks(shape: &Shape) -> u64 {
    u64::from(shape.slots()) / CHUNK_ENTRIES + 1
}

/// What the chunks of a table look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// What an entry is, for errors.
    pub what: &'static str,
    /// Bytes of an entry.
    pub entry_bytes: u64,
    /// Entries of a chunk.
    pub entries: u64,
}

impl Layout {
    const fn new(what: &'static str, entry_bytes: u64, entries: u64) -> Self {
        Self { what, entry_bytes, entries }
    }

    /// Bytes of a chunk.
    pub const fn chunk_bytes(&self) -> u64 {
        chunk::BYTES + self.entries * self.entry_bytes
    }

    /// Offset of an entry of the chunk at `chunk`, which has this entry.
    fn entry(&self, chunk: u64, index: u64) -> u64 {
        chunk + chunk::BYTES + index * self.entry_bytes
    }
}

/// A table, as its writer keeps it.
#[derive(Debug)]
pub struct Chain {
    layout: Layout,
    most: u64,
    chunks: Vec<u64>,
    free: Vec<u32>,
}

impl Chain {
    /// A table without entries, which will have at most so many chunks.
    pub fn new(layout: Layout, most: u64) -> Self {
        Self { layout, most, chunks: Vec::new(), free: Vec::new() }
    }

    /// Takes an entry, and adds a chunk where needed. `link` is the offset in the own section of the word that names the first
    /// chunk.
    ///
    /// # Errors
    /// [`Error::Full`] when the region has no room, or readers would follow no further chunk; [`Error::Service`].
    pub fn take(&mut self, member: &Member, link: u64) -> Result<u32> {
        if self.free.is_empty() {
            self.grow(member, link)?;
        }
        self.free.pop().ok_or(Error::Full { bytes: self.layout.chunk_bytes() })
    }

    /// Makes sure that there is an entry to take, so that the next [`Chain::take`] succeeds even in a full region.
    ///
    /// # Errors
    /// As [`Chain::take`].
    pub fn reserve(&mut self, member: &Member, link: u64) -> Result<()> {
        if self.free.is_empty() { self.grow(member, link) } else { Ok(()) }
    }

    fn grow(&mut self, member: &Member, link: u64) -> Result<()> {
        let (count, bytes) = (self.chunks.len() as u64, self.layout.chunk_bytes());
        if count >= self.most {
            return Err(Error::Full { bytes });
        }
        let at = member.take(bytes)?;
        let section = member.section();
        section.zero("chunk", at, bytes)?;
        section.word("chunk", self.chunks.last().map_or(link, |last| last + chunk::NEXT))?.set(at);
        self.chunks.push(at);
        let numbers = count * self.layout.entries..(count + 1) * self.layout.entries;
        self.free.extend(numbers.rev().filter_map(|number| u32::try_from(number).ok()));
        Ok(())
    }

    /// Gives back an entry that says nothing any more.
    pub fn give(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Offset in the section of an entry.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a number that was never taken.
    pub fn at(&self, number: u32) -> Result<u64> {
        let value = u64::from(number);
        let chunk = usize::try_from(value / self.layout.entries).ok().and_then(|at| self.chunks.get(at));
        let chunk = chunk.ok_or(Error::Invalid { what: self.layout.what, value })?;
        Ok(self.layout.entry(*chunk, value % self.layout.entries))
    }

    /// Gives all memory back, once no reader follows the chain any more.
    pub fn give_back(&mut self, member: &Member) {
        for at in self.chunks.drain(..) {
            member.give(at, self.layout.chunk_bytes());
        }
        self.free.clear();
    }
}

/// The entries of a table of others, whose first chunk is at `first`: number and offset of each. All lie in the section.
pub fn entries(
    section: &PeerSection,
    layout: Layout,
    most: u64,
    first: u64,
) -> impl Iterator<Item = (u32, u64)> + '_ {
    // Sorted, not hashed: for the first hash of each thread the system is asked for random numbers, and polls call no system.
    let mut met = BTreeSet::new();
    let mut next = first;
    let chunks = std::iter::from_fn(move || {
        let at = next;
        if at == 0 || met.len() as u64 >= most || !met.insert(at) {
            return None;
        }
        section.holds("chunk", at, layout.chunk_bytes()).ok()?;
        next = section.word("chunk", at.checked_add(chunk::NEXT)?).ok()?.get();
        Some(at)
    });
    let entries = move |at| (0..layout.entries).map(move |index| layout.entry(at, index));
    (0..).zip(chunks.flat_map(entries))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::block;
    use crate::testing::Place;

    const MOST: u64 = 4;

    /// A table with three chunks, and the word that names the first.
    fn table(place: &Place) -> (Chain, u64) {
        let member = &place.member;
        let block = member.take(block::BYTES).unwrap();
        member.section().zero("block", block, block::BYTES).unwrap();
        let (mut chain, link) = (Chain::new(LANES, MOST), block + block::LANES);
        for number in 0..40 {
            assert_eq!(chain.take(member, link).unwrap(), number);
        }
        (chain, link)
    }

    fn read(place: &Place, link: u64) -> Vec<(u32, u64)> {
        let section = place.member.section().for_reading();
        let first = section.word("block", link).unwrap().get();
        entries(&section, LANES, MOST, first).collect()
    }

    #[test]
    fn a_reader_finds_each_entry_where_its_writer_has_it() {
        let place = Place::new();
        let (mut chain, link) = table(&place);
        let all: Vec<_> = (0..48).map(|number| (number, chain.at(number).unwrap())).collect();
        assert_eq!(read(&place, link), all);
        chain.give(7);
        assert_eq!(chain.take(&place.member, link).unwrap(), 7);
        assert_eq!(chain.take(&place.member, link).unwrap(), 40);
        assert_eq!(read(&place, link), all);
        assert!(chain.at(48).is_err() && chain.at(u32::MAX).is_err());
    }

    #[test]
    fn a_table_has_no_more_chunks_than_its_readers_follow() {
        let place = Place::new();
        let (mut chain, link) = table(&place);
        let rest: Vec<_> = std::iter::from_fn(|| chain.take(&place.member, link).ok()).collect();
        assert_eq!(rest, (40..64).collect::<Vec<_>>());
        assert_eq!(read(&place, link).len(), 64);
    }

    #[test]
    fn an_entry_is_there_to_take_once_it_is_reserved() {
        let place = Place::new();
        let (mut chain, link) = (Chain::new(LANES, MOST), place.member.take(64).unwrap());
        place.member.section().zero("block", link, 64).unwrap();
        chain.reserve(&place.member, link).unwrap();
        place.fill();
        assert!(chain.reserve(&place.member, link).is_ok());
        assert_eq!((0..16).filter(|_| chain.take(&place.member, link).is_ok()).count(), 16);
        assert!(matches!(chain.take(&place.member, link), Err(Error::Full { .. })));
        assert!(chain.reserve(&place.member, link).is_err());
    }

    #[test]
    fn all_memory_comes_back() {
        let place = Place::new();
        let (mut chain, _) = table(&place);
        let first = chain.at(0).unwrap() - chunk::BYTES;
        chain.give_back(&place.member);
        let again: Vec<u64> = (0..3).map(|_| place.member.take(LANES.chunk_bytes()).unwrap()).collect();
        assert!(again.contains(&first));
        assert!(chain.at(0).is_err());
    }

    #[test]
    fn a_chain_of_a_faulty_writer_ends() {
        let place = Place::new();
        let (chain, link) = table(&place);
        let chunk = |number| chain.at(number).unwrap() - chunk::BYTES;
        let section = place.member.section();
        let cases = [
            // In a circle of one, two and three chunks.
            (chunk(0), chunk(0), 16),
            (chunk(16), chunk(0), 32),
            (chunk(32), chunk(0), 48),
            // Out of the section, by all of the chunk or by a part of it, and where no word can be.
            (chunk(16), u64::MAX - 63, 32),
            (chunk(16), u64::MAX, 32),
            (chunk(16), section.len(), 32),
            (chunk(16), section.len() - 64, 32),
            (chunk(16), chunk(32) + 1, 32),
            (link, u64::MAX, 0),
            (link, 0, 0),
        ];
        for (at, value, found) in cases {
            let word = section.word("link", at).unwrap();
            let before = word.get();
            word.set(value);
            assert_eq!(read(&place, link).len(), found, "{value:#x} at {at:#x}");
            word.set(before);
        }
        // Chunks that overlap are different chunks: no more of them than there can be.
        let at = place.member.take(8192).unwrap();
        section.zero("chunks", at, 8192).unwrap();
        for i in 0..64 {
            section.word("chunk", at + 64 * i).unwrap().set(at + 64 * (i + 1));
        }
        section.word("link", link).unwrap().set(at);
        assert_eq!(read(&place, link).len() as u64, MOST * LANES.entries);
    }
}
