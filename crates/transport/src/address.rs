//! The 64 bytes by which an endpoint is known: fixed, opaque and location-independent to programs.
//!
//! ```text
//!  0  magic "isep" and version       8 bytes
//!  8  region uuid                   16 bytes
//! 24  global endpoint slot           8 bytes
//! 32  endpoint incarnation           8 bytes
//! 40  reserved (an inner address)   24 bytes, zero
//! ```

use isthmus_region::format::GlobalSlot;

use crate::types::{Error, Result};

/// Bytes of an address.
pub const ADDRESS_BYTES: usize = 64;
const MAGIC: u64 = u64::from_le_bytes(*b"isep\x01\0\0\0");

/// An endpoint's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address {
    /// The region's identity.
    pub region: [u64; 2],
    /// Where its record is.
    pub slot: GlobalSlot,
    /// Which of the slot's lives.
    pub incarnation: u64,
}

impl Address {
    /// The bytes that travel.
    pub fn to_bytes(self) -> [u8; ADDRESS_BYTES] {
        let mut bytes = [0; ADDRESS_BYTES];
        let words = [MAGIC, self.region[0], self.region[1], u64::from(self.slot.0), self.incarnation];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The address in the first 64 of `bytes`.
    ///
    /// # Errors
    /// [`Error::NotAnAddress`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let word = |i: usize| -> Result<u64> {
            let at = bytes.get(i * 8..i * 8 + 8).ok_or(Error::NotAnAddress)?;
            Ok(u64::from_le_bytes(at.try_into().map_err(|_| Error::NotAnAddress)?))
        };
        if word(0)? != MAGIC || bytes.len() < ADDRESS_BYTES {
            return Err(Error::NotAnAddress);
        }
        let slot = u32::try_from(word(3)?).map_err(|_| Error::NotAnAddress)?;
        Ok(Self { region: [word(1)?, word(2)?], slot: GlobalSlot(slot), incarnation: word(4)? })
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b] = self.region;
        write!(f, "isthmus://{a:016x}{b:016x}/{}#{:x}", self.slot.0, self.incarnation)
    }
}
