//! Members of a group, and where they are.

use std::fmt;
use std::sync::Arc;

pub use isthmus_region::address::Address;

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
        write!(f, "client {} on '{}' (endpoint {})", self.client, self.host, self.address.number)
    }
}
