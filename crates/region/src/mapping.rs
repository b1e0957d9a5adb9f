//! A mapped region and checked views of it.
//!
//! Rules:
//! 1. No Rust reference to bytes that a peer can write: words are atomics, bytes are copied in or out.
//! 2. A view is made by one of the functions here, which check offset, length and alignment against the mapping.
//!    After that, using it needs no check that could fail: indices are masked or compared with the checked length.
//! 3. Every view keeps the mapping alive.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use isthmus_lockfree::LINE_BYTES;
use isthmus_lockfree::ring::Slots;
use isthmus_lockfree::slot::Slot;
use isthmus_lockfree::sync::{Line, Word};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::error::{Error, Result};
use crate::local::LocalBuf;
use crate::membership::Region;

/// A region (or a part of one) in this process's address space, until the last view is gone.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: u64,
    owner: rustix::process::Pid,
}

// SAFETY: the mapping is shared memory that other processes write at any time anyway; all access goes through
// atomics and copies, from whichever thread.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `fd` read-write and shared. A forked child does not inherit the mapping.
    ///
    /// # Errors
    /// [`Error::Memory`] with the system's answer.
    pub fn map(fd: BorrowedFd<'_>, len: u64) -> Result<Arc<Self>> {
        Self::map_as(fd, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// As [`Mapping::map`], but without write access: for [`crate::reader`], which hands out no view that writes.
    pub(crate) fn map_for_reading(fd: BorrowedFd<'_>, len: u64) -> Result<Arc<Self>> {
        Self::map_as(fd, len, ProtFlags::READ)
    }

    fn map_as(fd: BorrowedFd<'_>, len: u64, access: ProtFlags) -> Result<Arc<Self>> {
        let failed = |source| Error::Memory { action: "map", bytes: len, source };
        let size = usize::try_from(len).map_err(|_| failed(rustix::io::Errno::NOMEM))?;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
        let base =
            unsafe { mmap(std::ptr::null_mut(), size, access, MapFlags::SHARED, fd, 0) }.map_err(failed)?;
        // SAFETY: exactly the range that was just mapped. A failure is harmless: a BAR's mapping may refuse advice.
        let _ = unsafe { madvise(base, size, Advice::LinuxDontFork) };
        let base = NonNull::new(base.cast()).ok_or_else(|| failed(rustix::io::Errno::NOMEM))?;
        Ok(Arc::new(Self { base, len, owner: rustix::process::getpid() }))
    }

    /// Bytes mapped.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing is mapped; never so for a mapping that [`Mapping::map`] returned.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The whole mapping as one section.
    pub fn whole(self: &Arc<Self>) -> Section {
        Section { map: Arc::clone(self), base: 0, len: self.len }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A forked child did not inherit the range, and may have mapped something else there since.
        if rustix::process::getpid() != self.owner {
            return;
        }
        // The length came from a usize, so this conversion cannot fail.
        let size = usize::try_from(self.len).unwrap_or(0);
        // SAFETY: the range that `map` obtained; every view holds an Arc, so none is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), size) };
    }
}

/// A checked part of a mapping. Offsets are relative to its start.
#[derive(Debug, Clone)]
pub struct Section {
    map: Arc<Mapping>,
    base: u64,
    len: u64,
}

impl Section {
    /// Bytes of the section.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Where in the mapping the section starts.
    pub(crate) fn start(&self) -> u64 {
        self.base
    }

    /// Whether the section has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The one place where a claim (offset, length, alignment) becomes an address.
    #[inline]
    fn check(&self, what: &'static str, offset: u64, len: u64, align: u64) -> Result<NonNull<u8>> {
        let end = offset.checked_add(len);
        if end.is_none_or(|end| end > self.len) || !(self.base + offset).is_multiple_of(align) {
            return Err(Error::OutOfBounds { what, offset, len, limit: self.len });
        }
        // base + len <= map.len was established when the section was made, and map.len fits a usize.
        let at = usize::try_from(self.base + offset).map_err(|_| Error::Invalid { what, value: offset })?;
        // SAFETY: at <= map.len, so the result lies in, or one past, the mapping.
        Ok(unsafe { self.map.base.add(at) })
    }

    /// A part of this section.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn part(&self, what: &'static str, offset: u64, len: u64) -> Result<Section> {
        self.check(what, offset, len, 1)?;
        Ok(Section { map: Arc::clone(&self.map), base: self.base + offset, len })
    }

    /// Whether the section has these bytes.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    #[inline]
    pub fn holds(&self, what: &'static str, offset: u64, len: u64) -> Result<()> {
        self.check(what, offset, len, 1).map(|_| ())
    }

    /// The word at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], also for a misaligned offset.
    #[inline]
    pub fn word(&self, what: &'static str, offset: u64) -> Result<&Word> {
        let at = self.check(what, offset, 8, 8)?;
        // SAFETY: eight aligned bytes inside the mapping, which lives as long as self; a Word is an atomic, for which
        // any bytes are valid and concurrent writes by others are allowed.
        Ok(unsafe { at.cast::<Word>().as_ref() })
    }

    /// A 32-bit field, read once (the two halves of a word have one writer).
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn half(&self, what: &'static str, offset: u64) -> Result<u32> {
        let word = self.word(what, offset & !7)?.get();
        let shift = if offset % 8 == 4 { 32 } else { 0 };
        #[allow(clippy::cast_possible_truncation)] // the half that is wanted
        Ok((word >> shift) as u32)
    }

    /// An owned view of the line at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], also for a misaligned offset.
    pub fn line(&self, what: &'static str, offset: u64) -> Result<LineRef> {
        let at = self.check(what, offset, LINE_BYTES as u64, LINE_BYTES as u64)?;
        Ok(LineRef { line: at.cast(), _map: Arc::clone(&self.map) })
    }

    /// A ring of `count` slots, a power of two.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::Invalid`] when `count` is not a power of two.
    pub fn ring(&self, what: &'static str, offset: u64, count: u64) -> Result<SlotRing> {
        if !count.is_power_of_two() || count > 1 << 24 {
            return Err(Error::Invalid { what, value: count });
        }
        let at = self.check(what, offset, count * LINE_BYTES as u64, LINE_BYTES as u64)?;
        Ok(SlotRing { first: at.cast(), mask: count - 1, _map: Arc::clone(&self.map) })
    }

    /// A range of plain bytes.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn bytes(&self, what: &'static str, offset: u64, len: u64) -> Result<Bytes> {
        let at = self.check(what, offset, len, 1)?;
        Ok(Bytes { at, len, _map: Arc::clone(&self.map) })
    }

    /// Copies all of `from` to `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; nothing is copied then.
    #[inline]
    pub fn fill(&self, what: &'static str, offset: u64, from: LocalBuf) -> Result<()> {
        let at = self.check(what, offset, from.len() as u64, 1)?;
        from.copy_to(at);
        Ok(())
    }

    /// Copies a slice to `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; nothing is copied then.
    pub fn fill_bytes(&self, what: &'static str, offset: u64, from: &[u8]) -> Result<()> {
        let at = self.check(what, offset, from.len() as u64, 1)?;
        // SAFETY: the target range was checked; a slice of ours cannot overlap with bytes that no slice may name.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), at.as_ptr(), from.len()) };
        Ok(())
    }

    /// Copies `into.len()` bytes from `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; nothing is copied then.
    #[inline]
    pub fn drain(&self, what: &'static str, offset: u64, into: LocalBuf) -> Result<()> {
        let at = self.check(what, offset, into.len() as u64, 1)?;
        into.copy_from(at);
        Ok(())
    }

    /// Bytes as a buffer, for accesses that the views here do not have: atomic operations of a program's own kinds.
    ///
    /// # Safety
    /// The buffer must not outlive the section. All that may reach these bytes at the same time must do so by copies or
    /// by atomic accesses of the same size, as [`LocalBuf`]'s user does.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub unsafe fn lend(&self, what: &'static str, offset: u64, len: u64) -> Result<LocalBuf> {
        let at = self.check(what, offset, len, 1)?;
        let size = usize::try_from(len).map_err(|_| Error::Invalid { what, value: len })?;
        // SAFETY: the range was checked; the caller keeps the mapping.
        Ok(unsafe { LocalBuf::new(at.as_ptr(), size) })
    }

    /// Where in the section an address of this process lies.
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        let base = self.map.base.as_ptr().expose_provenance() as u64;
        address.checked_sub(base)?.checked_sub(self.base).filter(|offset| *offset < self.len)
    }

    /// The address in this process of a byte of the section, as a number.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn address(&self, offset: u64) -> Result<u64> {
        Ok(self.check("address", offset, 1, 1)?.as_ptr().expose_provenance() as u64)
    }

    /// The region that the section is a part of.
    ///
    /// # Errors
    /// As [`Region::open`].
    pub fn region(&self) -> Result<Region> {
        Region::open(&self.map)
    }

    /// Zeroes a range.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn zero(&self, what: &'static str, offset: u64, len: u64) -> Result<()> {
        let at = self.check(what, offset, len, 1)?;
        let size = usize::try_from(len).map_err(|_| Error::Invalid { what, value: len })?;
        // SAFETY: the range was checked to lie inside the mapping; no reference to plain bytes of it exists.
        unsafe { std::ptr::write_bytes(at.as_ptr(), 0, size) };
        Ok(())
    }
}

/// One line of a region.
#[derive(Debug, Clone)]
pub struct LineRef {
    line: NonNull<Line>,
    _map: Arc<Mapping>,
}

// SAFETY: a line is eight atomics.
unsafe impl Send for LineRef {}
// SAFETY: a line is eight atomics.
unsafe impl Sync for LineRef {}

impl std::ops::Deref for LineRef {
    type Target = Line;

    #[inline]
    fn deref(&self) -> &Line {
        // SAFETY: `Section::line` checked range and alignment, and the mapping lives as long as self.
        unsafe { self.line.as_ref() }
    }
}

/// A ring of slots in a region.
#[derive(Debug, Clone)]
pub struct SlotRing {
    first: NonNull<Slot>,
    mask: u64,
    _map: Arc<Mapping>,
}

// SAFETY: a slot is eight atomics.
unsafe impl Send for SlotRing {}
// SAFETY: a slot is eight atomics.
unsafe impl Sync for SlotRing {}

impl Slots for SlotRing {
    #[inline]
    fn slot(&self, position: u64) -> &Slot {
        #[allow(clippy::cast_possible_truncation)] // mask is below 2^24
        let index = (position & self.mask) as usize;
        // SAFETY: index <= mask, and `Section::ring` checked mask + 1 slots.
        let slot = unsafe { self.first.add(index) };
        // SAFETY: in range and aligned as checked there; atomics only; the mapping lives as long as self.
        unsafe { slot.as_ref() }
    }

    #[inline]
    fn capacity(&self) -> u64 {
        self.mask + 1
    }
}

/// A range of plain bytes in a region: copied into and out of, never referenced.
#[derive(Debug, Clone)]
pub struct Bytes {
    at: NonNull<u8>,
    len: u64,
    _map: Arc<Mapping>,
}

// SAFETY: access is by copy only; what a racing writer leaves is garbage in its own data, never a broken invariant.
unsafe impl Send for Bytes {}
// SAFETY: as for Send.
unsafe impl Sync for Bytes {}

impl Bytes {
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
