//! What is asked of a region.

use isthmus_region::create::default_bytes_in;
use serde::{Deserialize, Serialize};

/// What users ask of the region that a service makes: `isthmus run` and `isthmus host` pass it on as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RegionOptions {
    /// Its bytes, a power of two; by default what the processes need.
    pub bytes: Option<u64>,
    /// Bytes of each huge page that it lies in; by default it lies in pages of the usual size.
    pub huge_pages: Option<u64>,
    /// Bytes of it for named objects; by default an eighth.
    pub shared_bytes: Option<u64>,
    /// Whether each process that is expected becomes a peer, whose section the others cannot write. Not with VMs.
    pub separate_sections: bool,
}

impl RegionOptions {
    /// Bytes of a region for so many processes.
    pub fn bytes_for(&self, ranks: u32) -> u64 {
        self.bytes.unwrap_or_else(|| default_bytes_in(ranks, self.huge_pages))
    }

    /// The same with a size, for so many processes where none was asked for.
    #[must_use]
    pub fn sized(self, ranks: u32) -> Self {
        Self { bytes: Some(self.bytes_for(ranks)), ..self }
    }
}
