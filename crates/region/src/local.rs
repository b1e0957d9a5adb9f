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

    /// As [`LocalBuf::copy_to`]; eight bytes take no call.
    #[inline(always)] // two moves, mostly
    pub(crate) fn copy_short_to(self, to: NonNull<u8>) {
        match self.eight() {
            // SAFETY: the target was checked for eight bytes.
            Some(word) => unsafe { to.cast::<[u8; 8]>().write(word.to_le_bytes()) },
            None => self.copy_to(to),
        }
    }

    /// As [`LocalBuf::copy_from`]; eight bytes take no call.
    #[inline(always)] // as `copy_short_to`
    pub(crate) fn copy_short_from(self, from: NonNull<u8>) {
        if self.len == 8 {
            // SAFETY: `from` was checked for eight bytes.
            let word = unsafe { from.cast::<[u8; 8]>().read() };
            // SAFETY: `new`'s caller promised that the bytes may be written.
            unsafe { self.at.cast::<[u8; 8]>().write(word) };
        } else {
            self.copy_from(from);
        }
    }

    /// Has the kernel fill it from address `at` of process `pid`; gives the count, or the system's answer.
    pub(crate) fn fill_from(self, pid: i32, at: u64) -> Result<usize, i32> {
        let local = libc::iovec { iov_base: self.at.as_ptr().cast(), iov_len: self.len };
        let remote = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: self.len };
        // SAFETY: `new`'s caller promised that all bytes of `local` may be written, and the kernel writes no others. The other
        // side is an address in a process, maybe this one, that the kernel alone reads; it checks it.
        let count = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
        usize::try_from(count)
            .map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
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

    /// The bytes as a little-endian word, where there are eight.
    #[inline(always)] // one load
    pub fn eight(self) -> Option<u64> {
        // SAFETY: all of the eight bytes; `new`'s caller promised that they may be read.
        (self.len == 8).then(|| u64::from_le_bytes(unsafe { self.at.as_ptr().cast::<[u8; 8]>().read() }))
    }

    /// Calls `each` with the bytes packed into little-endian words, the last one filled up with zeros. For short
    /// payloads: a few moves instead of a call.
    #[inline(always)] // its callers know more of the length than it does
    pub fn words(self, mut each: impl FnMut(usize, u64)) {
        let at = self.at.as_ptr();
        let whole = self.len / 8;
        for i in 0..whole {
            // SAFETY: bytes 8 i to 8 i + 7 are below the length; `new`'s caller promised that they may be read.
            each(i, u64::from_le_bytes(unsafe { at.wrapping_add(8 * i).cast::<[u8; 8]>().read() }));
        }
        if self.len.is_multiple_of(8) {
            return;
        }
        let (mut done, mut rest) = (8 * whole, 0_u64);
        if self.len & 4 != 0 {
            // SAFETY: four of the up to seven bytes that are left.
            rest = u32::from_le_bytes(unsafe { at.wrapping_add(done).cast::<[u8; 4]>().read() }).into();
            done += 4;
        }
        if self.len & 2 != 0 {
            // SAFETY: two of the up to three bytes that are left.
            let two = u16::from_le_bytes(unsafe { at.wrapping_add(done).cast::<[u8; 2]>().read() });
            rest |= u64::from(two) << (8 * (done & 7));
            done += 2;
        }
        if self.len & 1 != 0 {
            // SAFETY: the one byte that is left.
            rest |= u64::from(unsafe { at.wrapping_add(done).read() }) << (8 * (done & 7));
        }
        each(whole, rest);
    }

    /// Writes the first `len` bytes of what [`LocalBuf::words`] packed, as many as fit; gives the count.
    #[inline(always)] // its callers know more of the length than it does
    pub fn write_words<const N: usize>(self, words: &[u64; N], len: usize) -> usize {
        let count = len.min(self.len).min(8 * N);
        let at = self.at.as_ptr();
        for (i, word) in words.iter().enumerate() {
            if count < 8 * i + 8 {
                break;
            }
            // SAFETY: bytes 8 i to 8 i + 7 are below count; `new`'s caller promised that they may be written.
            unsafe { at.wrapping_add(8 * i).cast::<[u8; 8]>().write(word.to_le_bytes()) };
        }
        if !count.is_multiple_of(8) {
            let rest = words[count / 8].to_le_bytes();
            let mut done = count & !7;
            if count & 4 != 0 {
                // SAFETY: four of the up to seven bytes that are left.
                unsafe {
                    at.wrapping_add(done).cast::<[u8; 4]>().write([rest[0], rest[1], rest[2], rest[3]])
                };
                done += 4;
            }
            if count & 2 != 0 {
                let two = [rest[done & 7], rest[(done & 7) + 1]];
                // SAFETY: two of the up to three bytes that are left.
                unsafe { at.wrapping_add(done).cast::<[u8; 2]>().write(two) };
                done += 2;
            }
            if count & 1 != 0 {
                // SAFETY: the one byte that is left.
                unsafe { at.wrapping_add(done).write(rest[done & 7]) };
            }
        }
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
        let mut copy = Vec::new();
        self.append_to(&mut copy);
        copy
    }

    /// Copies all bytes behind those of `bytes`.
    pub fn append_to(self, bytes: &mut Vec<u8>) {
        bytes.reserve(self.len);
        let end = bytes.spare_capacity_mut();
        // SAFETY: `new`'s caller promised that the bytes may be read; there is room for as many, which was reserved above, and
        // which no other thread knows of.
        unsafe { std::ptr::copy_nonoverlapping(self.at.as_ptr(), end.as_mut_ptr().cast(), self.len) };
        let len = bytes.len() + self.len;
        // SAFETY: within the capacity, and all of it was written.
        unsafe { bytes.set_len(len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_carry_every_length_at_every_alignment() {
        for len in 0..=40_usize {
            for shift in 0..8 {
                let mut from: Vec<u8> = (0..64).map(|i| u8::try_from(i * 3 + len).unwrap()).collect();
                let mut to = vec![0xee_u8; 64];
                let whole = from.clone();
                // SAFETY: the vector outlives the buffer.
                let from = unsafe { LocalBuf::of(&mut from) };
                let mut behind = vec![1, 2];
                from.part(shift, len).append_to(&mut behind);
                assert!(behind[..2] == [1, 2] && behind[2..] == whole[shift..shift + len]);
                // SAFETY: as above.
                let into = unsafe { LocalBuf::of(&mut to) };
                let mut words = [0; 5];
                from.part(shift, len).words(|i, word| words[i] = word);
                let count = into.part(shift, 60).write_words(&words, len);
                assert_eq!(count, len);
                assert_eq!(to[shift..shift + count], whole[shift..shift + count], "{len} at {shift}");
                assert!(
                    to[shift + count..].iter().all(|b| *b == 0xee) && to[..shift].iter().all(|b| *b == 0xee)
                );
                let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
                assert!(bytes[count..].iter().all(|b| *b == 0), "the rest is zeros");
                assert_eq!(into.part(0, 3).write_words(&words, len), len.min(3), "cut to what fits");
            }
        }
    }
}
