//! A process's allocator of the extents that its local service granted it.
//!
//! Sizes are rounded to powers of two from one cache line up; a freed block serves the next request of its size.
//! Blocks are not zeroed when they are reused: the code that takes one clears what has to be clear.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::extent::Extent;
use crate::format::counters;

/// Smallest block.
const LEAST: u64 = 64;

/// What a process has of its peer's section.
#[derive(Debug, Default)]
pub struct Area {
    extents: Vec<Extent>,
    open: Extent2,
    free: HashMap<u64, Vec<u64>>,
}

/// The part of the newest extent that was not handed out.
#[derive(Debug, Default, Clone, Copy)]
struct Extent2 {
    at: u64,
    end: u64,
}

impl Area {
    /// An area with its first extent, whose start holds the process's counters.
    pub fn new(first: Extent) -> Self {
        let open = Extent2 { at: first.offset + counters::BYTES, end: first.offset + first.bytes };
        Self { extents: vec![first], open, free: HashMap::new() }
    }

    /// Adds an extent that the service granted.
    pub fn add(&mut self, extent: Extent) {
        // What is left of the one before serves small requests later.
        while self.open.end - self.open.at >= LEAST {
            let size = 1_u64 << (63 - (self.open.end - self.open.at).leading_zeros());
            self.free.entry(size).or_default().push(self.open.at);
            self.open.at += size;
        }
        self.extents.push(extent);
        self.open = Extent2 { at: extent.offset, end: extent.offset + extent.bytes };
    }

    /// Bytes of all extents.
    pub fn bytes(&self) -> u64 {
        self.extents.iter().map(|e| e.bytes).sum()
    }

    /// Takes a block of at least `bytes`, aligned to a cache line; gives its offset in the section.
    ///
    /// # Errors
    /// [`Error::Full`]: ask the service for an extent of at least that many bytes and try again.
    pub fn take(&mut self, bytes: u64) -> Result<u64> {
        let size = bytes.max(LEAST).checked_next_power_of_two().ok_or(Error::Full { bytes })?;
        if let Some(at) = self.free.get_mut(&size).and_then(Vec::pop) {
            return Ok(at);
        }
        if self.open.end - self.open.at >= size {
            let at = self.open.at;
            self.open.at += size;
            return Ok(at);
        }
        // A larger free block is split before the service is asked.
        let larger = self.free.iter().filter(|(s, v)| **s > size && !v.is_empty()).map(|(s, _)| *s).min();
        let Some(mut split) = larger else { return Err(Error::Full { bytes: size }) };
        let at = self.free.get_mut(&split).and_then(Vec::pop).ok_or(Error::Full { bytes: size })?;
        while split > size {
            split /= 2;
            self.free.entry(split).or_default().push(at + split);
        }
        Ok(at)
    }

    /// Takes back what [`Area::take`] gave for `bytes`.
    pub fn give(&mut self, at: u64, bytes: u64) {
        let size = bytes.max(LEAST).next_power_of_two();
        self.free.entry(size).or_default().push(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_do_not_overlap_and_come_back() {
        let mut area = Area::new(Extent { offset: 4096, bytes: 16384 });
        let mut taken = Vec::new();
        for bytes in [64, 100, 4096, 1, 4000, 64].into_iter().cycle() {
            let Ok(at) = area.take(bytes) else { break };
            let size = bytes.max(64).next_power_of_two();
            assert!(at >= 4096 + counters::BYTES && at + size <= 4096 + 16384 && at % 64 == 0);
            assert!(taken.iter().all(|(a, s)| at + size <= *a || a + s <= at));
            taken.push((at, size));
        }
        area.add(Extent { offset: 65536, bytes: 65536 });
        assert!(area.take(32768).unwrap() >= 65536);
        for (at, size) in taken {
            area.give(at, size);
        }
        assert!(area.take(4096).unwrap() < 65536);
    }
}
