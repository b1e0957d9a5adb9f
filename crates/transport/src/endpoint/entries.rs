//! The endpoint's tables of lane descriptors and of accept entries, in its own area. Each has a version that changes with each
//! entry.

use isthmus_region::format::{GlobalSlot, block};

use super::Berth;

impl Berth {
    /// Takes a free lane descriptor.
    pub(super) fn take_descriptor(&mut self) -> isthmus_region::Result<u32> {
        self.lanes.take(&self.member, self.block_at + block::LANES)
    }

    /// Takes a free accept entry.
    pub(super) fn take_accept(&mut self) -> isthmus_region::Result<u32> {
        self.accepts.take(&self.member, self.block_at + block::ACCEPTS)
    }

    /// Takes the first chunk of both tables, so that every endpoint has entries for its first lanes even in a
    /// full region.
    pub(super) fn reserve_entries(&mut self) -> isthmus_region::Result<()> {
        self.lanes.reserve(&self.member, self.block_at + block::LANES)?;
        self.accepts.reserve(&self.member, self.block_at + block::ACCEPTS)
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
