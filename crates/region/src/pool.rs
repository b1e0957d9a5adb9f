//! A process's allocator of memory that the program itself uses in the region.
//!
//! Beside [`crate::area`], which rounds to powers of two for many small things of few sizes: a program takes few, large
//! and arbitrary ones, and gives them back in any order. First fit over a sorted free list; neighbours join.

use crate::extent::Extent;

/// All sizes and places are multiples of a cache line, which two allocations never share.
const UNIT: u64 = 64;

/// What was granted for this, as far as it is free.
#[derive(Debug, Default)]
pub struct Pool {
    free: Vec<Extent>,
    /// Bytes that the service granted.
    granted: u64,
}

impl Pool {
    /// How many bytes an allocation of `bytes` takes.
    pub fn rounded(bytes: u64) -> Option<u64> {
        bytes.max(1).checked_next_multiple_of(UNIT)
    }

    /// Takes `bytes`, rounded up, at a multiple of `align`, a power of two; gives the offset.
    pub fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let bytes = Self::rounded(bytes)?;
        let align = align.max(UNIT);
        let (at, offset) = self.free.iter().enumerate().find_map(|(i, e)| {
            let offset = e.offset.checked_next_multiple_of(align)?;
            (offset - e.offset <= e.bytes && e.bytes - (offset - e.offset) >= bytes).then_some((i, offset))
        })?;
        let found = self.free.remove(at);
        let end = found.offset + found.bytes;
        if offset + bytes < end {
            self.free.insert(at, Extent { offset: offset + bytes, bytes: end - offset - bytes });
        }
        if found.offset < offset {
            self.free.insert(at, Extent { offset: found.offset, bytes: offset - found.offset });
        }
        Some(offset)
    }

    /// Adds what the service granted.
    pub fn add(&mut self, extent: Extent) {
        self.granted += extent.bytes;
        self.give(extent);
    }

    /// Bytes that the service granted, in use or not.
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// Adds free memory: what [`Pool::take`] gave.
    pub fn give(&mut self, extent: Extent) {
        let at = self.free.partition_point(|e| e.offset < extent.offset);
        self.free.insert(at, extent);
        let joins = |a: &Extent, b: &Extent| a.offset + a.bytes == b.offset;
        if self.free.get(at + 1).is_some_and(|next| joins(&extent, next)) {
            self.free[at].bytes += self.free.remove(at + 1).bytes;
        }
        if at > 0 && joins(&self.free[at - 1], &self.free[at]) {
            self.free[at - 1].bytes += self.free.remove(at).bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_in_any_order_is_whole_again() {
        let mut pool = Pool::default();
        pool.give(Extent { offset: 1 << 20, bytes: 1 << 20 });
        let mut taken = Vec::new();
        for (bytes, align) in [(1, 1), (100, 64), (5000, 4096), (64, 256), (300_000, 1), (4096, 4096)] {
            let at = pool.take(bytes, align).unwrap();
            assert_eq!(at % align.max(64), 0);
            let extent = Extent { offset: at, bytes: Pool::rounded(bytes).unwrap() };
            assert!(extent.offset >= 1 << 20 && extent.offset + extent.bytes <= 2 << 20);
            let apart = |o: &Extent| at + extent.bytes <= o.offset || o.offset + o.bytes <= at;
            assert!(taken.iter().all(apart));
            taken.push(extent);
        }
        assert_eq!(pool.take(1 << 20, 1), None);
        assert_eq!(pool.take(u64::MAX, 1), None);
        for i in [3, 0, 5, 1, 4, 2] {
            pool.give(taken[i]);
        }
        assert_eq!(pool.take(1 << 20, 4096), Some(1 << 20));
    }
}
