//! Addresses: what names an endpoint wherever its system is. They have no region and no place: an endpoint never leaves its
//! system, so where a system is now is one entry of a region's peer table.

use std::fmt;
use std::io::Read;

use crate::error::{Error, Result};

/// The 128 random bits that name a system: a VM, or a host's own processes, as long as it lives. A system that is in several
/// regions at once has one for each of its services, so that an address is in one region only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SystemId(pub [u64; 2]);

impl SystemId {
    /// Of no system.
    pub const NONE: Self = Self([0; 2]);

    /// One that no system has had.
    ///
    /// # Errors
    /// [`Error::Random`].
    pub fn random() -> Result<Self> {
        let mut bytes = [0_u8; 16];
        let mut source = std::fs::File::open("/dev/urandom").map_err(Error::Random)?;
        source.read_exact(&mut bytes).map_err(Error::Random)?;
        let number = u128::from_le_bytes(bytes);
        Ok(Self([word(number), word(number >> 64)]))
    }

    /// As [`fmt::Display`] writes it.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = Some(text).filter(|t| t.len() == 32 && t.bytes().all(|b| b.is_ascii_hexdigit()))?;
        let number = u128::from_str_radix(digits, 16).ok()?;
        Some(Self([word(number >> 64), word(number)]))
    }
}

/// The lower half.
fn word(number: u128) -> u64 {
    u64::try_from(number & u128::from(u64::MAX)).unwrap_or(0)
}

impl fmt::Display for SystemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.0[0], self.0[1])
    }
}

/// An endpoint's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The system that it is in.
    pub system: SystemId,
    /// Its number there: its slot in the endpoint table of the system's peer.
    pub number: u32,
    /// Tells it from all others that the system ever had.
    pub birth: u64,
}

impl Address {
    /// Bytes of [`Address::to_bytes`].
    pub const BYTES: usize = 32;

    /// The address as bytes, to be handed to other processes.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let words = [self.system.0[0], self.system.0[1], self.number.into(), self.birth];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The address whose [`Address::to_bytes`] these are. Other bytes make an address that no endpoint has.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Self {
            system: SystemId([word(0), word(8)]),
            number: u32::try_from(word(16)).unwrap_or(u32::MAX),
            birth: word(24),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "isthmus://{}/{}#{:x}", self.system, self.number, self.birth)
    }
}

/// What a local service calls its system and the endpoints there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Naming {
    /// The system.
    pub system: SystemId,
    /// How many services this one follows that had the same system: births begin with it, so that none comes twice.
    pub former: u32,
}

impl Naming {
    /// Of a system whose first service this is.
    pub fn first(system: SystemId) -> Self {
        Self { system, former: 0 }
    }

    /// Of the peer with this index in a region of a test.
    #[doc(hidden)]
    pub fn of_test(peer: u32) -> Self {
        Self::first(SystemId([0x7e57, u64::from(peer) + 1]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_as_bytes() {
        let address = Address { system: SystemId([1, 2]), number: 7, birth: u64::MAX - 1 };
        assert_eq!(Address::from_bytes(address.to_bytes()), address);
        assert_eq!(Address::from_bytes([0xff; 32]).number, u32::MAX);
    }

    #[test]
    fn systems_are_unlike_and_survive_as_text() {
        let (one, other) = (SystemId::random().unwrap(), SystemId::random().unwrap());
        assert!(one != other && one != SystemId::NONE);
        assert_eq!(SystemId::parse(&one.to_string()), Some(one));
        for text in ["", &"0".repeat(31), &"0".repeat(33), &format!("+{}", "0".repeat(31)), &"g".repeat(32)] {
            assert_eq!(SystemId::parse(text), None, "{text}");
        }
    }
}
