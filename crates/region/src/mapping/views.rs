//! Views of a section that were checked when they were made: using them needs no check that could fail.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use isthmus_lockfree::ring::{ReadSlots, Slots};
use isthmus_lockfree::slot::{ReadSlot, Slot};

use super::{Access, Mapping, ReadWrite};
use crate::error::{Error, Result};
use crate::local::LocalBuf;

/// One line of a region.
#[derive(Debug)]
pub struct LineRef<A: Access = ReadWrite> {
    pub(super) line: NonNull<A::Line>,
    pub(super) _map: Arc<Mapping>,
}

impl<A: Access> Clone for LineRef<A> {
    fn clone(&self) -> Self {
        Self { line: self.line, _map: Arc::clone(&self._map) }
    }
}

// SAFETY: a line is eight atomics.
unsafe impl<A: Access> Send for LineRef<A> {}
// SAFETY: a line is eight atomics.
unsafe impl<A: Access> Sync for LineRef<A> {}

impl<A: Access> std::ops::Deref for LineRef<A> {
    type Target = A::Line;

    #[inline]
    fn deref(&self) -> &A::Line {
        // SAFETY: `Section::line` checked range and alignment, and the mapping lives as long as self.
        unsafe { self.line.as_ref() }
    }
}

/// A ring of slots in a region.
#[derive(Debug, Clone)]
pub struct SlotRing<A: Access = ReadWrite> {
    pub(super) first: NonNull<Slot>,
    pub(super) mask: u64,
    pub(super) _map: Arc<Mapping>,
    pub(super) access: PhantomData<A>,
}

// SAFETY: a slot is eight atomics.
unsafe impl<A: Access> Send for SlotRing<A> {}
// SAFETY: a slot is eight atomics.
unsafe impl<A: Access> Sync for SlotRing<A> {}

impl<A: Access> SlotRing<A> {
    /// The slot of a position.
    #[inline(always)] // a mask and an addition, in each poll
    fn at(&self, position: u64) -> NonNull<Slot> {
        #[allow(clippy::cast_possible_truncation)] // mask is below 2^24
        let index = (position & self.mask) as usize;
        // SAFETY: index <= mask, and `Section::ring` checked mask + 1 slots.
        unsafe { self.first.add(index) }
    }
}

impl<A: Access> ReadSlots for SlotRing<A> {
    #[inline]
    fn read_slot(&self, position: u64) -> &ReadSlot {
        // SAFETY: in range and aligned as `Section::ring` checked; a Slot is a transparent ReadSlot, which is atomics only; the
        // mapping lives as long as self.
        unsafe { self.at(position).cast().as_ref() }
    }

    #[inline]
    fn capacity(&self) -> u64 {
        self.mask + 1
    }
}

impl Slots for SlotRing {
    #[inline]
    fn slot(&self, position: u64) -> &Slot {
        // SAFETY: in range and aligned as `Section::ring` checked; atomics only; the mapping lives as long as self.
        unsafe { self.at(position).as_ref() }
    }
}

/// A range of plain bytes in a region: copied into and out of, never referenced.
#[derive(Debug, Clone)]
pub struct Bytes<A: Access = ReadWrite> {
    pub(super) at: NonNull<u8>,
    pub(super) len: u64,
    pub(super) _map: Arc<Mapping>,
    pub(super) access: PhantomData<A>,
}

// SAFETY: access is by copy only; what a racing writer leaves is garbage in its own data, never a broken invariant.
unsafe impl<A: Access> Send for Bytes<A> {}
// SAFETY: as for Send.
unsafe impl<A: Access> Sync for Bytes<A> {}

impl<A: Access> Bytes<A> {
    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the range is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn range(&self, offset: u64, len: u64) -> Result<NonNull<u8>> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::OutOfBounds { what: "bytes", offset, len, limit: self.len });
        }
        #[allow(clippy::cast_possible_truncation)] // bounded by the mapping, which fits a usize
        let at = offset as usize;
        // SAFETY: at <= len, inside or one past the checked range.
        Ok(unsafe { self.at.add(at) })
    }

    /// Copies `into.len()` bytes from `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; nothing is copied then.
    #[inline]
    pub fn drain(&self, offset: u64, into: LocalBuf) -> Result<()> {
        let at = self.range(offset, into.len() as u64)?;
        into.copy_from(at);
        Ok(())
    }

    /// Copies `into.len()` bytes from `offset` into a slice.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; nothing is copied then.
    #[inline]
    pub fn get(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let at = self.range(offset, into.len() as u64)?;
        // SAFETY: the source range was checked; a slice of ours cannot overlap with bytes that no slice may name.
        unsafe { std::ptr::copy_nonoverlapping(at.as_ptr(), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// The address in this process of the byte at `offset`, as a number: for programs that read and write in place. One
    /// past the end will do.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn address(&self, offset: u64) -> Result<u64> {
        Ok(self.range(offset, 0)?.as_ptr().expose_provenance() as u64)
    }

    /// Copies `len` bytes from `offset` into a fresh vector.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn to_vec(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        let at = self.range(offset, len)?;
        let size = usize::try_from(len).map_err(|_| Error::Invalid { what: "bytes", value: len })?;
        let mut copy = vec![0_u8; size];
        // SAFETY: the source was checked just above, the target is a vector of that size, and they cannot overlap.
        unsafe { std::ptr::copy_nonoverlapping(at.as_ptr(), copy.as_mut_ptr(), size) };
        Ok(copy)
    }
}

impl Bytes {
    /// Copies all of `from` to `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; nothing is copied then.
    #[inline]
    pub fn fill(&self, offset: u64, from: LocalBuf) -> Result<()> {
        let at = self.range(offset, from.len() as u64)?;
        from.copy_to(at);
        Ok(())
    }

    /// Copies a slice to `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; nothing is copied then.
    #[inline]
    pub fn put(&self, offset: u64, from: &[u8]) -> Result<()> {
        let at = self.range(offset, from.len() as u64)?;
        // SAFETY: the target range was checked; a slice of ours cannot overlap with bytes that no slice may name.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), at.as_ptr(), from.len()) };
        Ok(())
    }
}
