//! Places: where something lies in a region, whatever files the region is made of.
//!
//! A place is a section and an offset in it, in one word: the section's number in the upper 16 bits, the offset in the lower 48.
//! Peer sections have the numbers of their peers.

use crate::error::{Error, Result};
use crate::format::MAX_PEERS;

const OFFSET_BITS: u32 = 48;

/// Number of the section of the host service.
pub const HOST: u16 = 0xfffe;
/// Number of the shared section.
pub const SHARED: u16 = 0xffff;
/// Number of a part of memory that is no section of a region.
const NOWHERE: u16 = 0xfffd;

/// A place in a region. Equal places are equal bytes, in whichever process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place(u64);

impl Place {
    /// The start of memory that is no section.
    pub(crate) const NOWHERE: Self = Self((NOWHERE as u64) << OFFSET_BITS);

    /// The place at `offset` of a section.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an offset that no section has.
    pub fn new(section: u16, offset: u64) -> Result<Self> {
        match offset >> OFFSET_BITS {
            0 => Ok(Self((u64::from(section) << OFFSET_BITS) | offset)),
            _ => Err(Error::Invalid { what: "offset of a place", value: offset }),
        }
    }

    /// The start of a peer's section.
    ///
    /// # Errors
    /// [`Error::NoPeer`] for a number that no peer has.
    pub fn of_peer(peer: u32) -> Result<Self> {
        let section = u16::try_from(peer).ok().filter(|_| peer < MAX_PEERS).ok_or(Error::NoPeer { peer })?;
        Self::new(section, 0)
    }

    /// The place so many bytes further.
    pub(crate) fn plus(self, bytes: u64) -> Self {
        // Sections are shorter than 2^48 bytes, so what was checked against one does not reach the number.
        Self(self.0 + bytes)
    }

    /// From a word that any process may have written.
    pub fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// As words and frames have it.
    pub fn word(self) -> u64 {
        self.0
    }

    /// The section's number.
    pub fn section(self) -> u16 {
        u16::try_from(self.0 >> OFFSET_BITS).unwrap_or(NOWHERE)
    }

    /// The offset in it.
    pub fn offset(self) -> u64 {
        self.0 & ((1 << OFFSET_BITS) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_keeps_its_parts() {
        let place = Place::new(SHARED, 0x1234_5678_9ac0).unwrap();
        assert_eq!((place.section(), place.offset()), (SHARED, 0x1234_5678_9ac0));
        assert_eq!(Place::from_word(place.word()), place);
        assert_eq!(Place::of_peer(1023).unwrap().plus(64), Place::new(1023, 64).unwrap());
        assert!(Place::new(1, 1 << 48).is_err());
        assert!(Place::of_peer(1024).is_err() && Place::of_peer(u32::MAX).is_err());
    }
}
