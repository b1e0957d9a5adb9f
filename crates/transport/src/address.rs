//! Addresses as libfabric's programs carry them: fixed, opaque and location-independent. They are those of endpoints, or
//! names: of a service at a system, which stands for the endpoint that has the name when it is used.
//!
//! ```text
//!  0  magic "isep" and version       8 bytes
//!  8  system                        16 bytes
//! 24  endpoint's number there        8 bytes
//! 32  endpoint's birth               8 bytes
//! 40  reserved (an inner address)   24 bytes, zero
//!
//!  0  magic "isnm" and version       8 bytes
//!  8  system                        16 bytes
//! 24  reserved                       8 bytes, zero
//! 32  service, padded with zeros    32 bytes
//! ```

pub use isthmus_region::address::{Address, SystemId};
use isthmus_region::objects::endpoint::MAX_SERVICE;

use crate::types::{Error, Result};

/// Bytes of an address, of either kind.
pub const ADDRESS_BYTES: usize = 64;
const MAGIC: u64 = u64::from_le_bytes(*b"isep\x02\0\0\0");
const NAME_MAGIC: u64 = u64::from_le_bytes(*b"isnm\x02\0\0\0");
const SERVICE_BYTES: usize = ADDRESS_BYTES - 32;
const _: () = assert!(SERVICE_BYTES == MAX_SERVICE);

fn word(bytes: &[u8], number: usize) -> Result<u64> {
    let at = bytes.get(number * 8..number * 8 + 8).ok_or(Error::NotAnAddress)?;
    Ok(u64::from_le_bytes(at.try_into().map_err(|_| Error::NotAnAddress)?))
}

/// A service at a system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name {
    /// The system.
    pub system: SystemId,
    service: [u8; SERVICE_BYTES],
}

impl Name {
    /// The name of a service; none if it is too long or has a zero in it. No endpoint has the empty name.
    pub fn new(system: SystemId, service: &str) -> Option<Self> {
        let mut bytes = [0; SERVICE_BYTES];
        bytes
            .get_mut(..service.len())
            .filter(|_| !service.contains('\0'))?
            .copy_from_slice(service.as_bytes());
        Some(Self { system, service: bytes })
    }

    /// The service.
    pub fn service(&self) -> &str {
        let end = self.service.iter().position(|b| *b == 0).unwrap_or(SERVICE_BYTES);
        // Valid UTF-8, which was checked when the name was made.
        std::str::from_utf8(&self.service[..end]).unwrap_or_default()
    }

    /// The bytes that travel.
    pub fn to_bytes(self) -> [u8; ADDRESS_BYTES] {
        let mut bytes = [0; ADDRESS_BYTES];
        let words = [NAME_MAGIC, self.system.0[0], self.system.0[1]];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes[ADDRESS_BYTES - SERVICE_BYTES..].copy_from_slice(&self.service);
        bytes
    }

    /// The name in the first 64 of `bytes`.
    ///
    /// # Errors
    /// [`Error::NotAnAddress`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        if word(bytes, 0)? != NAME_MAGIC || word(bytes, 3)? != 0 {
            return Err(Error::NotAnAddress);
        }
        let service = bytes.get(ADDRESS_BYTES - SERVICE_BYTES..ADDRESS_BYTES).ok_or(Error::NotAnAddress)?;
        let service = std::str::from_utf8(service).map_err(|_| Error::NotAnAddress)?.trim_end_matches('\0');
        Self::new(SystemId([word(bytes, 1)?, word(bytes, 2)?]), service).ok_or(Error::NotAnAddress)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "isthmus://{}:{}", self.system, self.service())
    }
}

/// What a message is addressed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Destination {
    /// An endpoint.
    Endpoint(Address),
    /// The name of one.
    Name(Name),
}

impl Destination {
    /// The destination in the first 64 of `bytes`.
    ///
    /// # Errors
    /// [`Error::NotAnAddress`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let all = bytes.get(..ADDRESS_BYTES).ok_or(Error::NotAnAddress)?;
        if word(all, 0)? != MAGIC {
            return Name::from_bytes(all).map(Self::Name);
        }
        // A number that no endpoint can have.
        u32::try_from(word(all, 3)?).map_err(|_| Error::NotAnAddress)?;
        let address = all.get(8..8 + Address::BYTES).and_then(|bytes| bytes.try_into().ok());
        address.map(|bytes| Self::Endpoint(Address::from_bytes(bytes))).ok_or(Error::NotAnAddress)
    }

    /// The bytes that travel.
    pub fn to_bytes(self) -> [u8; ADDRESS_BYTES] {
        match self {
            Self::Endpoint(address) => {
                let mut bytes = [0; ADDRESS_BYTES];
                bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
                bytes[8..8 + Address::BYTES].copy_from_slice(&address.to_bytes());
                bytes
            }
            Self::Name(name) => name.to_bytes(),
        }
    }

    /// The system that it is in.
    pub fn system(&self) -> SystemId {
        match self {
            Self::Endpoint(address) => address.system,
            Self::Name(name) => name.system,
        }
    }
}

impl std::fmt::Display for Destination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Endpoint(address) => address.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYSTEM: SystemId = SystemId([1, 2]);

    #[test]
    fn addresses_survive_a_round_trip() {
        let address = Address { system: SYSTEM, number: 3, birth: 4 };
        let all = [Destination::Endpoint(address)]
            .into_iter()
            .chain(["", "9228", &"s".repeat(32)].map(|s| Destination::Name(Name::new(SYSTEM, s).unwrap())));
        for destination in all {
            assert_eq!(Destination::from_bytes(&destination.to_bytes()).unwrap(), destination);
            assert!(Destination::from_bytes(&destination.to_bytes()[..63]).is_err());
        }
        assert_eq!(Name::new(SYSTEM, "9228").unwrap().service(), "9228");
        assert_eq!(Name::new(SYSTEM, &"s".repeat(33)), None);
        assert_eq!(Name::new(SYSTEM, "a\0b"), None);
    }

    #[test]
    fn invalid_addresses_are_refused() {
        let name = Name::new(SYSTEM, "9228").unwrap().to_bytes();
        let address = Destination::Endpoint(Address { system: SYSTEM, number: 3, birth: 4 }).to_bytes();
        for (good, at, value) in
            [(name, 0, 0), (name, 24, 1), (name, 32, 0xff), (name, 33, 0), (address, 0, 0), (address, 28, 1)]
        {
            let mut other = good;
            other[at] = value;
            assert!(Destination::from_bytes(&other).is_err(), "byte {at}");
        }
        let former = [b"isep\x01\0\0\0".as_slice(), &address[8..]].concat();
        assert!(Destination::from_bytes(&former).is_err(), "of another version");
    }
}
