//! The program's buffers, as libfabric's calls describe them.
//!
//! Null with a length is refused; null without one is an empty buffer. Descriptors (`desc`) are ignored: local memory
//! needs no registration, and MPICH passes pointers to null there.

use std::ffi::c_void;

use isthmus_fabric_sys::{fi_ioc, iovec};
use isthmus_region::local::LocalBuf;

use crate::info::{IOV_LIMIT, MAX_MESSAGE_BYTES};

/// One buffer.
///
/// # Safety
/// Until the operation completes the bytes must be readable, and writable where the operation receives into them.
#[inline]
pub(crate) unsafe fn one(at: *const c_void, len: usize) -> Option<LocalBuf> {
    if (at.is_null() && len > 0) || len > MAX_MESSAGE_BYTES {
        return None;
    }
    // SAFETY: the caller vouches for these bytes until the operation completes.
    Some(unsafe { LocalBuf::new(at.cast_mut().cast(), len) })
}

/// Several buffers, without the empty ones.
#[allow(clippy::large_enum_variant)] // it lives for the length of a call, on its stack
pub(crate) enum Bufs {
    /// Of one part at most: most have no more, and to make room for all takes longer than some operations.
    One([LocalBuf; 1], usize),
    /// Of more.
    Many([LocalBuf; IOV_LIMIT], usize),
}

impl Bufs {
    /// The buffers of an array of `count` parts; none if one is refused, or if they are too many or too long.
    ///
    /// # Safety
    /// `iov` is null or has `count` parts, each as [`one`] asks.
    pub(crate) unsafe fn of(iov: *const iovec, count: usize) -> Option<Self> {
        // SAFETY: the caller vouches for the array and its count.
        let parts = unsafe { isthmus_cabi::slice(iov, count, IOV_LIMIT) }?;
        // SAFETY: the caller vouches for the bytes of each part.
        unsafe { Self::collect(parts.iter().map(|p| (p.iov_base.cast_const(), p.iov_len))) }
    }

    /// The same for parts that count elements of `size` bytes.
    ///
    /// # Safety
    /// `ioc` is null or has `count` parts, each as [`one`] asks.
    pub(crate) unsafe fn elements(ioc: *const fi_ioc, count: usize, size: usize) -> Option<Self> {
        // SAFETY: the caller vouches for the array and its count.
        let parts = unsafe { isthmus_cabi::slice(ioc, count, IOV_LIMIT) }?;
        let parts = parts.iter().map(|p| (p.addr.cast_const(), p.count.saturating_mul(size)));
        // SAFETY: the caller vouches for the bytes of each part.
        unsafe { Self::collect(parts) }
    }

    /// # Safety
    /// Each part is as [`one`] asks.
    #[inline]
    unsafe fn collect(parts: impl ExactSizeIterator<Item = (*const c_void, usize)>) -> Option<Self> {
        let is_one = parts.len() <= 1;
        let mut bufs = match is_one {
            true => Self::One([LocalBuf::EMPTY], 0),
            false => Self::Many([LocalBuf::EMPTY; IOV_LIMIT], 0),
        };
        let (room, count): (&mut [LocalBuf], _) = match &mut bufs {
            Self::One(room, count) => (room, count),
            Self::Many(room, count) => (room, count),
        };
        let mut total = 0usize;
        for (at, len) in parts {
            total = total.checked_add(len).filter(|t| *t <= MAX_MESSAGE_BYTES)?;
            if len == 0 {
                continue;
            }
            // SAFETY: the caller vouches for the bytes of each part.
            let part = unsafe { one(at, len) }?;
            *room.get_mut(*count)? = part;
            *count += 1;
        }
        Some(bufs)
    }

    #[inline]
    pub(crate) fn get(&self) -> &[LocalBuf] {
        match self {
            Self::One(parts, count) => &parts[..*count],
            Self::Many(parts, count) => &parts[..*count],
        }
    }

    /// Bytes of all parts.
    pub(crate) fn len(&self) -> usize {
        self.get().iter().map(|p| p.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_with_a_length_and_too_many_parts_are_refused() {
        // SAFETY: refused, since it is null.
        assert!(unsafe { one(std::ptr::null(), 1) }.is_none());
        // SAFETY: empty.
        assert!(unsafe { one(std::ptr::null(), 0) }.is_some());
        let byte = 1u8;
        let part = iovec { iov_base: (&raw const byte).cast_mut().cast(), iov_len: 1 };
        let empty = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let parts = [empty, part, empty];
        // SAFETY: three parts, of at most one readable byte.
        assert_eq!(unsafe { Bufs::of(parts.as_ptr(), 3) }.map(|b| (b.get().len(), b.len())), Some((1, 1)));
        // SAFETY: refused by its count.
        assert!(unsafe { Bufs::of(parts.as_ptr(), IOV_LIMIT + 1) }.is_none());
        let huge = iovec { iov_len: usize::MAX, ..part };
        // SAFETY: refused by its length.
        assert!(unsafe { Bufs::of([huge, part].as_ptr(), 2) }.is_none());
    }
}
