//! Plain values in shared memory: copied in and out whole, never referred to.
//!
//! A copy of more than eight bytes, or of a misaligned value, may be torn where another writes it at the same time: it then
//! has some bytes of each. Any bytes are a value of these types, so that is wrong data and nothing worse.

use crate::error::Result;
use crate::local::LocalBuf;
use crate::mapping::{Access, Bytes, Section};

/// A value that any bytes are one of.
pub trait Value: Copy + Default {
    /// Bytes that it takes.
    const BYTES: usize;

    /// Writes it, little-endian, into as many bytes.
    fn put(self, bytes: &mut [u8]);

    /// Reads it from as many bytes.
    fn take(bytes: &[u8]) -> Self;
}

macro_rules! numbers {
    ($($type:ty),*) => { $(
        impl Value for $type {
            const BYTES: usize = size_of::<$type>();

            #[inline]
            fn put(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }

            #[inline]
            fn take(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$type>()];
                own.copy_from_slice(bytes);
                Self::from_le_bytes(own)
            }
        }
    )* };
}

numbers!(u8, i8, u16, i16, u32, i32, u64, i64, u128, i128, f32, f64);

impl<T: Value, const N: usize> Value for [T; N]
where
    [T; N]: Default,
{
    const BYTES: usize = N * T::BYTES;

    #[inline]
    fn put(self, bytes: &mut [u8]) {
        for (value, part) in self.into_iter().zip(bytes.chunks_exact_mut(T::BYTES.max(1))) {
            value.put(part);
        }
    }

    #[inline]
    fn take(bytes: &[u8]) -> Self {
        let mut values = Self::default();
        for (value, part) in values.iter_mut().zip(bytes.chunks_exact(T::BYTES.max(1))) {
            *value = T::take(part);
        }
        values
    }
}

/// Longest value that goes through a buffer on the stack.
const MOST: usize = 256;

impl<A: Access> Section<A> {
    /// Copies a value out.
    ///
    /// # Errors
    /// [`crate::Error::OutOfBounds`]; [`crate::Error::Invalid`] for a type of more than 256 bytes.
    #[inline]
    pub fn get<T: Value>(&self, offset: u64) -> Result<T> {
        let mut bytes = [0_u8; MOST];
        let bytes = bytes.get_mut(..T::BYTES).ok_or_else(too_long::<T>)?;
        // SAFETY: a buffer of this function's own, which outlives the copy.
        let into = unsafe { LocalBuf::of(bytes) };
        self.drain("value", offset, into)?;
        Ok(T::take(bytes))
    }

    /// Copies all bytes of `into` from `offset`.
    ///
    /// # Errors
    /// [`crate::Error::OutOfBounds`]; nothing is copied then.
    pub fn copy_out(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        // SAFETY: the caller's slice, borrowed for this call.
        let into = unsafe { LocalBuf::of(into) };
        self.drain("bytes", offset, into)
    }
}

impl Section {
    /// Copies a value in.
    ///
    /// # Errors
    /// As [`Section::get`]; nothing is written then.
    #[inline]
    pub fn set<T: Value>(&self, offset: u64, value: T) -> Result<()> {
        let mut bytes = [0_u8; MOST];
        let bytes = bytes.get_mut(..T::BYTES).ok_or_else(too_long::<T>)?;
        value.put(bytes);
        self.fill_bytes("value", offset, bytes)
    }
}

impl<A: Access> Bytes<A> {
    /// Copies a value out.
    ///
    /// # Errors
    /// As [`Section::get`].
    #[inline]
    pub fn value<T: Value>(&self, offset: u64) -> Result<T> {
        let mut bytes = [0_u8; MOST];
        let bytes = bytes.get_mut(..T::BYTES).ok_or_else(too_long::<T>)?;
        self.get(offset, bytes)?;
        Ok(T::take(bytes))
    }
}

impl Bytes {
    /// Copies a value in.
    ///
    /// # Errors
    /// As [`Section::get`]; nothing is written then.
    #[inline]
    pub fn put_value<T: Value>(&self, offset: u64, value: T) -> Result<()> {
        let mut bytes = [0_u8; MOST];
        let bytes = bytes.get_mut(..T::BYTES).ok_or_else(too_long::<T>)?;
        value.put(bytes);
        self.put(offset, bytes)
    }
}

#[cold]
fn too_long<T: Value>() -> crate::Error {
    crate::Error::Invalid { what: "bytes of a value", value: T::BYTES as u64 }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use crate::mapping::Mapping;

    #[test]
    fn values_come_back_and_stay_inside() {
        let fd = crate::create::memory(1 << 20).unwrap();
        let section =
            Mapping::map(fd.as_fd(), 1 << 20).unwrap().whole().unwrap().part("test", 4096, 4096).unwrap();
        section.set(3, -7_i32).unwrap();
        section.set(8, [1.5_f64, -2.0, 3.25]).unwrap();
        assert_eq!(section.get::<i32>(3).unwrap(), -7);
        assert_eq!(section.get::<[f64; 3]>(8).unwrap(), [1.5, -2.0, 3.25]);
        assert_eq!(section.get::<u8>(8 + 7).unwrap(), 0x3f, "little-endian");
        for offset in [4089, 4096, u64::MAX] {
            assert!(section.get::<u64>(offset).is_err() && section.set(offset, 1_u64).is_err());
        }
        let mut bytes = [0; 8];
        section.copy_out(8, &mut bytes).unwrap();
        assert_eq!(f64::from_le_bytes(bytes), 1.5);
        assert!(section.copy_out(4090, &mut bytes).is_err());
        let part = section.bytes("test", 8, 24).unwrap();
        assert_eq!(part.value::<[f64; 3]>(0).unwrap(), [1.5, -2.0, 3.25]);
        part.put_value(16, 7_u64).unwrap();
        assert_eq!(section.get::<u64>(24).unwrap(), 7);
        assert!(part.value::<u64>(17).is_err() && part.put_value(24, 0_u8).is_err());
        assert!(part.value::<[[u8; 32]; 9]>(0).is_err(), "longer than any value");
    }
}
