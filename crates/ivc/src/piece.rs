//! Pieces of rings, for programs that read and write in place.

use isthmus_region::value::Value;
use isthmus_region::{Bytes, ReadOnly};

/// A piece of the partner's ring with bytes to be read. The partner can change this memory at any time, so it is copied
/// from and never borrowed, and [`Channel::release`](crate::Channel::release) says whether what was copied counts.
#[derive(Debug, Clone, Copy)]
pub struct ReadPiece<'a> {
    pub(crate) bytes: &'a Bytes<ReadOnly>,
    pub(crate) at: u64,
    pub(crate) len: u64,
}

/// A piece of the own ring to be written. The partner sees it after [`Channel::commit`](crate::Channel::commit).
#[derive(Debug, Clone, Copy)]
pub struct WritePiece<'a> {
    pub(crate) bytes: &'a Bytes,
    pub(crate) at: u64,
    pub(crate) len: u64,
}

macro_rules! piece {
    ($name:ident) => {
        impl $name<'_> {
            /// Bytes of the piece.
            pub fn len(&self) -> usize {
                usize::try_from(self.len).unwrap_or(0)
            }

            /// Whether there are none.
            pub fn is_empty(&self) -> bool {
                self.len == 0
            }

            /// Address of its first byte in this process, for programs that work in place. The partner can change bytes
            /// to be read at any time, by mistake or not: read each once, and check the copy.
            pub fn address(&self) -> u64 {
                self.bytes.address(self.at).unwrap_or(0)
            }

            /// Place and length of the part from `offset` on, cut to what there is.
            fn part(&self, offset: usize, len: usize) -> (u64, usize) {
                let offset = (offset as u64).min(self.len);
                let len = len.min(usize::try_from(self.len - offset).unwrap_or(0));
                (self.at + offset, len)
            }
        }
    };
}

piece!(ReadPiece);
piece!(WritePiece);

impl ReadPiece<'_> {
    /// Copies bytes from `offset` of the piece on, as many as there are and fit; returns their count.
    pub fn copy_to(&self, offset: usize, into: &mut [u8]) -> usize {
        let (at, len) = self.part(offset, into.len());
        self.bytes.get(at, &mut into[..len]).map_or(0, |()| len)
    }

    /// The value of up to 256 bytes at `offset` of the piece, little-endian; `None` if not all of it is in the piece.
    #[inline]
    pub fn get<T: Value>(&self, offset: usize) -> Option<T> {
        let (at, len) = self.part(offset, T::BYTES);
        if len == T::BYTES { self.bytes.value(at).ok() } else { None }
    }
}

impl WritePiece<'_> {
    /// Copies bytes to `offset` of the piece, as many as fit; returns their count.
    pub fn copy_from(&self, offset: usize, from: &[u8]) -> usize {
        let (at, len) = self.part(offset, from.len());
        self.bytes.put(at, &from[..len]).map_or(0, |()| len)
    }

    /// Writes a value of up to 256 bytes to `offset` of the piece, little-endian, so that a program that computes what it
    /// sends need keep it nowhere else. Returns whether there was room; without room nothing is written.
    #[inline]
    pub fn set<T: Value>(&self, offset: usize, value: T) -> bool {
        let (at, len) = self.part(offset, T::BYTES);
        len == T::BYTES && self.bytes.put_value(at, value).is_ok()
    }
}
