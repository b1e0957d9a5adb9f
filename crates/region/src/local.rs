//! Memory that a caller lends us for the length of an operation.
//!
//! A program's buffer is known by address and length only, may be read-only or overlap others, and stays the
//! program's: so it is never a Rust reference here, only the source or target of a copy.

use std::ptr::NonNull;

/// A caller's buffer.
#[derive(Debug, Clone, Copy)]
pub struct LocalBuf {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: it is an address and a length; the promise made to `new` holds for every thread.
unsafe impl Send for LocalBuf {}

impl LocalBuf {
    /// A buffer of no bytes.
    pub const EMPTY: Self = Self { at: NonNull::dangling(), len: 0 };

    /// The `len` bytes at `at`; a null pointer counts as an empty buffer if `len` is 0.
    ///
    /// # Safety
    /// Until the operation that is given the buffer has completed, the bytes must be readable, and writable too if
    /// the operation receives into it.
    pub unsafe fn new(at: *mut u8, len: usize) -> Self {
        match NonNull::new(at) {
            Some(at) => Self { at, len },
            None => Self::EMPTY,
        }
    }

    /// A vector's bytes as a buffer.
    ///
    /// # Safety
    /// The vector must neither move its bytes nor be dropped while the buffer is in use.
    pub unsafe fn of(bytes: &mut [u8]) -> Self {
        Self { at: NonNull::from(&mut *bytes).cast(), len: bytes.len() }
    }

    /// A buffer that is never freed: for programs that need a few for their whole life, and no unsafe code.
    pub fn leaked(bytes: Vec<u8>) -> Self {
        let bytes = bytes.leak();
        Self { at: NonNull::from(&mut *bytes).cast(), len: bytes.len() }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Address, for error texts and for a completion's `buf`.
    pub fn address(self) -> u64 {
        self.at.as_ptr() as u64
    }

    /// The part from `offset`, at most `len` bytes, cut to what there is.
    #[inline]
    #[must_use]
    pub fn part(self, offset: usize, len: usize) -> Self {
        let offset = offset.min(self.len);
        // SAFETY: offset <= len, inside or one past the lent bytes.
        let at = unsafe { self.at.add(offset) };
        Self { at, len: len.min(self.len - offset) }
    }

    /// Copies all bytes to `to`, which [`crate::mapping::Bytes`] has checked.
    #[inline]
    pub(crate) fn copy_to(self, to: NonNull<u8>) {
        // SAFETY: `new`'s caller promised the source; the target was checked for this length. A program may send from
        // a buffer that is itself in the region, so the two may overlap.
        unsafe { std::ptr::copy(self.at.as_ptr(), to.as_ptr(), self.len) };
    }

    /// Fills all bytes from `from`, which [`crate::mapping::Bytes`] has checked.
    #[inline]
    pub(crate) fn copy_from(self, from: NonNull<u8>) {
        // SAFETY: as in `copy_to`, the other way round; `new`'s caller promised that the bytes may be written.
        unsafe { std::ptr::copy(from.as_ptr(), self.at.as_ptr(), self.len) };
    }

    /// Copies as much of `from` as fits; gives the count.
    #[inline]
    pub fn write(self, from: &[u8]) -> usize {
        let count = from.len().min(self.len);
        // SAFETY: count is within both; `new`'s caller promised that the bytes may be written.
        unsafe { std::ptr::copy(from.as_ptr(), self.at.as_ptr(), count) };
        count
    }

    /// Copies as much as fits into `into`; gives the count.
    #[inline]
    pub fn read(self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.len);
        // SAFETY: count is within both; `new`'s caller promised that the bytes may be read.
        unsafe { std::ptr::copy(self.at.as_ptr(), into.as_mut_ptr(), count) };
        count
    }

    /// Copies between two of the caller's buffers; gives the count.
    pub fn copy(self, into: LocalBuf) -> usize {
        let count = self.len.min(into.len);
        // SAFETY: count is within both, both were promised to `new`; they may overlap.
        unsafe { std::ptr::copy(self.at.as_ptr(), into.at.as_ptr(), count) };
        count
    }

    /// All bytes, copied.
    pub fn to_vec(self) -> Vec<u8> {
        let mut copy = vec![0; self.len];
        self.read(&mut copy);
        copy
    }
}
