//! Members of a group, and where they are.

use std::fmt;
use std::sync::Arc;

use isthmus_region::format::GlobalSlot;

/// Where a context is: valid for this context's life, in its region, and comparable by value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    pub(crate) slot: u32,
    pub(crate) incarnation: u64,
}

impl Address {
    /// Bytes of [`Address::to_bytes`].
    pub const BYTES: usize = 16;

    pub(crate) fn new(slot: GlobalSlot, incarnation: u64) -> Self {
        Self { slot: slot.0, incarnation }
    }

    /// The address as bytes, to be handed to other processes of the same region.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&u64::from(self.slot).to_le_bytes());
        bytes[8..].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes
    }

    /// The address whose [`Address::to_bytes`] these are. Other bytes make an address that no context has.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let [slot, incarnation] = [0, 8].map(|at| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        });
        Self { slot: u32::try_from(slot).unwrap_or(u32::MAX), incarnation }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.incarnation)
    }
}

/// A member of the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The id that its program chose. Two members may have chosen the same.
    pub client: u64,
    /// The name of the VM that it is in, or of the host.
    pub host: Arc<str>,
    /// Where it is.
    pub address: Address,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} on '{}' (endpoint {})", self.client, self.host, self.address.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_as_bytes() {
        let address = Address { slot: 7, incarnation: u64::MAX - 1 };
        assert_eq!(Address::from_bytes(address.to_bytes()), address);
        assert_eq!(Address::from_bytes([0xff; 16]).slot, u32::MAX);
    }
}
