//! Addresses of 64 bytes: fixed, opaque and location-independent to programs. An address is that of an
//! endpoint, or the name of a service at a peer, which stands for the endpoint that has the name when it is
//! used.
//!
//! ```text
//!  0  magic "isep" and version       8 bytes
//!  8  region uuid                   16 bytes
//! 24  global endpoint slot           8 bytes
//! 32  endpoint incarnation           8 bytes
//! 40  reserved (an inner address)   24 bytes, zero
//!
//!  0  magic "isnm" and version       8 bytes
//!  8  region uuid                   16 bytes
//! 24  peer index                     8 bytes
//! 32  service, padded with zeros    32 bytes
//! ```

use isthmus_region::format::GlobalSlot;
use isthmus_region::objects::endpoint::MAX_SERVICE;

use crate::types::{Error, Result};

/// Bytes of an address.
pub const ADDRESS_BYTES: usize = 64;
const MAGIC: u64 = u64::from_le_bytes(*b"isep\x01\0\0\0");
const NAME_MAGIC: u64 = u64::from_le_bytes(*b"isnm\x01\0\0\0");
const SERVICE_BYTES: usize = ADDRESS_BYTES - 32;
const _: () = assert!(SERVICE_BYTES == MAX_SERVICE);

/// An endpoint's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address {
    /// The region's identity.
    pub region: [u64; 2],
    /// The endpoint slot that holds its record.
    pub slot: GlobalSlot,
    /// Incarnation of the endpoint in that slot.
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
        let word = |i| word(bytes, i);
        if word(0)? != MAGIC || bytes.len() < ADDRESS_BYTES {
            return Err(Error::NotAnAddress);
        }
        let slot = u32::try_from(word(3)?).map_err(|_| Error::NotAnAddress)?;
        Ok(Self { region: [word(1)?, word(2)?], slot: GlobalSlot(slot), incarnation: word(4)? })
    }
}

fn word(bytes: &[u8], number: usize) -> Result<u64> {
    let at = bytes.get(number * 8..number * 8 + 8).ok_or(Error::NotAnAddress)?;
    Ok(u64::from_le_bytes(at.try_into().map_err(|_| Error::NotAnAddress)?))
}

/// A service at a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name {
    /// The region's identity.
    pub region: [u64; 2],
    /// The peer's index.
    pub peer: u32,
    service: [u8; SERVICE_BYTES],
}

impl Name {
    /// The name of a service; none if it is too long or has a zero in it. No endpoint has the empty name.
    pub fn new(region: [u64; 2], peer: u32, service: &str) -> Option<Self> {
        let mut bytes = [0; SERVICE_BYTES];
        bytes
            .get_mut(..service.len())
            .filter(|_| !service.contains('\0'))?
            .copy_from_slice(service.as_bytes());
        Some(Self { region, peer, service: bytes })
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
        let words = [NAME_MAGIC, self.region[0], self.region[1], u64::from(self.peer)];
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
        if word(bytes, 0)? != NAME_MAGIC {
            return Err(Error::NotAnAddress);
        }
        let service = bytes.get(ADDRESS_BYTES - SERVICE_BYTES..ADDRESS_BYTES).ok_or(Error::NotAnAddress)?;
        let service = std::str::from_utf8(service).map_err(|_| Error::NotAnAddress)?.trim_end_matches('\0');
        let peer = u32::try_from(word(bytes, 3)?).map_err(|_| Error::NotAnAddress)?;
        Self::new([word(bytes, 1)?, word(bytes, 2)?], peer, service).ok_or(Error::NotAnAddress)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b] = self.region;
        write!(f, "isthmus://{a:016x}{b:016x}/{}:{}", self.peer, self.service())
    }
}

/// Either kind of address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// An endpoint.
    Endpoint(Address),
    /// The name of one.
    Name(Name),
}

impl Place {
    /// The address in the first 64 of `bytes`.
    ///
    /// # Errors
    /// [`Error::NotAnAddress`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        Address::from_bytes(bytes).map(Self::Endpoint).or_else(|_| Name::from_bytes(bytes).map(Self::Name))
    }

    /// The bytes that travel.
    pub fn to_bytes(self) -> [u8; ADDRESS_BYTES] {
        match self {
            Self::Endpoint(address) => address.to_bytes(),
            Self::Name(name) => name.to_bytes(),
        }
    }

    /// The region's identity.
    pub fn region(&self) -> [u64; 2] {
        match self {
            Self::Endpoint(address) => address.region,
            Self::Name(name) => name.region,
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Endpoint(address) => address.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b] = self.region;
        write!(f, "isthmus://{a:016x}{b:016x}/{}#{:x}", self.slot.0, self.incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_a_round_trip() {
        let address = Address { region: [1, 2], slot: GlobalSlot(3), incarnation: 4 };
        let places = [Place::Endpoint(address)]
            .into_iter()
            .chain(["", "9228", &"s".repeat(32)].map(|s| Place::Name(Name::new([1, 2], 7, s).unwrap())));
        for place in places {
            assert_eq!(Place::from_bytes(&place.to_bytes()).unwrap(), place);
            assert!(Place::from_bytes(&place.to_bytes()[..63]).is_err());
        }
        assert_eq!(Name::new([1, 2], 7, "9228").unwrap().service(), "9228");
        assert_eq!(Name::new([1, 2], 7, &"s".repeat(33)), None);
        assert_eq!(Name::new([1, 2], 7, "a\0b"), None);
    }

    #[test]
    fn invalid_names_are_refused() {
        let bytes = Name::new([1, 2], 7, "9228").unwrap().to_bytes();
        for (at, value) in [(0, 0), (28, 1), (32, 0xff), (33, 0)] {
            let mut other = bytes;
            other[at] = value;
            assert!(Place::from_bytes(&other).is_err(), "byte {at}");
        }
    }
}
