//! The endpoint's tables of lane descriptors and of accept entries, in its own area. A table is a chain of
//! chunks of sixteen entries, and has a version that changes with each entry.

use isthmus_region::format::{CHUNK_ENTRIES, GlobalSlot, block, chunk};

use super::Endpoint;

/// A table in the area that grows by linked chunks of sixteen entries.
#[derive(Debug)]
pub(super) struct Chunks {
    pub(super) entry_bytes: u64,
    pub(super) chunks: Vec<u64>,
    pub(super) free: Vec<u32>,
}

impl Chunks {
    pub(super) fn new(entry_bytes: u64) -> Self {
        Self { entry_bytes, chunks: Vec::new(), free: Vec::new() }
    }

    pub(super) fn bytes(&self) -> u64 {
        64 + CHUNK_ENTRIES * self.entry_bytes
    }

    /// Offset of an entry.
    pub(super) fn at(&self, number: u32) -> u64 {
        let chunk = self.chunks.get(number as usize / 16).copied().unwrap_or(0);
        chunk + 64 + u64::from(number % 16) * self.entry_bytes
    }
}

impl Endpoint {
    /// Takes a free entry, of lane descriptors (`lanes`) or of accept entries, adding a chunk if needed.
    pub(super) fn take_entry(&mut self, lanes: bool) -> isthmus_region::Result<u32> {
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

    /// Takes the first chunk of both tables, so that every endpoint has entries for its first lanes even in a
    /// full region.
    pub(super) fn reserve_entries(&mut self) -> isthmus_region::Result<()> {
        let first = self.take_entry(true)?;
        self.lanes.free.push(first);
        let first = self.take_entry(false)?;
        self.accepts.free.push(first);
        Ok(())
    }

    /// Changes the version of a table, after one of its entries has changed.
    pub(super) fn bump_version(&self, lanes: bool) {
        let word = &self.block.words[if lanes { 1 } else { 3 }];
        word.set(word.peek().wrapping_add(1));
    }
}

/// The key under which a sender finds its accept entry.
pub(super) fn accept_key(sender: GlobalSlot, number: u32) -> u64 {
    ((u64::from(sender.0) << 32) | u64::from(number)) + 1
}
