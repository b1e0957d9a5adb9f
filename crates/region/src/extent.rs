//! The local service's allocator of a section's heap.
//!
//! It lives in the service's own memory, so a member cannot spoil it. First fit over a sorted free list, from where
//! the section's heap begins.

use crate::format::EXTENT_UNIT;

/// A range of a section, in bytes from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the section.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Free ranges of a heap.
#[derive(Debug)]
pub struct Heap {
    free: Vec<Extent>,
    used: u64,
    begin: u64,
}

/// Ways that sections are staggered in.
const STAGGER: u64 = 16;

impl Heap {
    /// A heap that is all free, of the `index`-th section.
    ///
    /// Equal sections lie a power of two apart, or nearly. If each were used from its start on, what is busy in all of
    /// them would compete for the same few entries of direct-mapped or low-way structures: translation buffers above
    /// all, of which an emulator's are direct-mapped. So each heap begins elsewhere, and uses what lies before last.
    pub fn new(offset: u64, bytes: u64, index: u64) -> Self {
        let start = offset.next_multiple_of(EXTENT_UNIT);
        let lost = (start - offset).min(bytes);
        let bytes = (bytes - lost) / EXTENT_UNIT * EXTENT_UNIT;
        let free = if bytes == 0 { Vec::new() } else { vec![Extent { offset: start, bytes }] };
        // An odd factor, so that neighbours are apart and all ways are used; never more than half of a small heap.
        let skip = (index * 5 % STAGGER) * EXTENT_UNIT;
        let begin = if skip <= bytes / 2 { start + skip } else { start };
        Self { free, used: 0, begin }
    }

    /// Bytes handed out.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Takes `bytes`, rounded up to whole units, or nothing.
    pub fn take(&mut self, bytes: u64) -> Option<Extent> {
        let bytes = bytes.max(1).checked_next_multiple_of(EXTENT_UNIT)?;
        let from = |e: &Extent| e.offset.max(self.begin);
        let fits = |e: &Extent| e.offset + e.bytes >= from(e) && e.offset + e.bytes - from(e) >= bytes;
        let at = self.free.iter().position(fits);
        let (at, offset) = match at {
            Some(at) => (at, from(&self.free[at])),
            None => {
                let at = self.free.iter().position(|e| e.bytes >= bytes)?;
                (at, self.free[at].offset)
            }
        };
        let found = self.free.remove(at);
        let (before, after) = (offset - found.offset, found.offset + found.bytes - offset - bytes);
        if after > 0 {
            self.free.insert(at, Extent { offset: offset + bytes, bytes: after });
        }
        if before > 0 {
            self.free.insert(at, Extent { offset: found.offset, bytes: before });
        }
        self.used += bytes;
        Some(Extent { offset, bytes })
    }

    /// Takes back what [`Heap::take`] gave.
    pub fn give(&mut self, extent: Extent) {
        self.used = self.used.saturating_sub(extent.bytes);
        let at = self.free.partition_point(|e| e.offset < extent.offset);
        self.free.insert(at, extent);
        if at + 1 < self.free.len() && extent.offset + extent.bytes == self.free[at + 1].offset {
            self.free[at].bytes += self.free[at + 1].bytes;
            self.free.remove(at + 1);
        }
        if at > 0 && self.free[at - 1].offset + self.free[at - 1].bytes == self.free[at].offset {
            self.free[at - 1].bytes += self.free[at].bytes;
            self.free.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_joins_its_neighbours() {
        let mut heap = Heap::new(100, 10 * EXTENT_UNIT, 0);
        let parts: Vec<Extent> = std::iter::from_fn(|| heap.take(1)).collect();
        assert_eq!(parts.len(), 9, "the misaligned start costs one unit");
        assert_eq!(heap.take(1), None);
        for part in parts.iter().rev().step_by(2).chain(parts.iter().rev().skip(1).step_by(2)) {
            heap.give(*part);
        }
        assert_eq!(heap.used(), 0);
        assert_eq!(heap.take(9 * EXTENT_UNIT).map(|e| e.bytes), Some(9 * EXTENT_UNIT));
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        let mut heap = Heap::new(0, 4 * EXTENT_UNIT, 1);
        assert_eq!(heap.take(u64::MAX), None);
    }

    #[test]
    fn heaps_begin_apart_and_use_all_in_the_end() {
        let mut firsts: Vec<u64> = Vec::new();
        for index in 0..STAGGER {
            let mut heap = Heap::new(0, 64 * EXTENT_UNIT, index);
            let first = heap.take(1).unwrap();
            firsts.push(first.offset);
            let mut parts = vec![first];
            parts.extend(std::iter::from_fn(|| heap.take(1)));
            assert_eq!(parts.len(), 64, "nothing is lost");
            parts.into_iter().for_each(|p| heap.give(p));
            assert_eq!(heap.take(1), Some(first), "and it begins there again");
            assert_eq!(heap.take(64 * EXTENT_UNIT), None);
        }
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len() as u64, STAGGER);
        assert_eq!(Heap::new(0, 4 * EXTENT_UNIT, 1).take(4 * EXTENT_UNIT).map(|e| e.offset), Some(0));
    }
}
