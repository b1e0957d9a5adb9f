//! What is asked of a region.

use isthmus_region::create::{default_bytes_in, needed_bytes};
use serde::{Deserialize, Serialize};

use crate::service::default_shared_bytes;

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
    /// Most bytes of the named objects that were made in each VM; unlimited by default.
    pub shared_quota_vm: Option<u64>,
    /// Bytes of memory that each process in a VM may grant; none by default.
    pub grant_bytes: u64,
    /// Bytes of each process's own large allocations that have room in it; none by default.
    pub alloc_bytes: u64,
    /// Whether each process that is expected becomes a peer, whose section the others cannot write. Not with VMs.
    pub separate_sections: bool,
    /// Whether each VM can write only its own section. By default there are no named objects then.
    pub isolated: bool,
    /// What VMs have it as.
    pub source: Source,
}

/// What VMs have a region as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The memory of an ivshmem device, which they map by sysfs or by the guest driver.
    #[default]
    Ivshmem,
    /// A memory device, of which stock kernels make mappings that are write-back and in pages of 2 MiB.
    Dax,
}

impl RegionOptions {
    /// Bytes of a region for so many processes. What named objects are to have beyond the usual eighth comes on top of what the
    /// processes need.
    pub fn bytes_for(&self, ranks: u32) -> u64 {
        let granted = self.grant_bytes.saturating_add(self.alloc_bytes).saturating_mul(ranks.into());
        let with_granted =
            |bytes: u64| bytes.saturating_add(granted).checked_next_power_of_two().unwrap_or(1 << 63);
        let usual = || match granted {
            0 => default_bytes_in(ranks, self.huge_pages),
            _ => with_granted(needed_bytes(ranks)).max(default_bytes_in(ranks, self.huge_pages)),
        };
        self.bytes.unwrap_or_else(|| match self.shared_bytes {
            Some(shared) if shared > default_shared_bytes(usual()) => needed_bytes(ranks)
                .saturating_add(granted)
                .saturating_add(shared)
                .checked_next_power_of_two()
                .unwrap_or(1 << 63)
                .max(usual()),
            _ => usual(),
        })
    }

    /// The same with a size, for so many processes where none was asked for. The files of an isolated region have at least their share
    /// of that, and each is a power of two, so together they may have twice as much.
    #[must_use]
    pub fn sized(self, ranks: u32, vms: u32) -> Self {
        let bytes = self.bytes_for(ranks);
        if !self.isolated || self.bytes.is_some() {
            return Self { bytes: Some(bytes), ..self };
        }
        // The host section's, the host's own, the shared one's.
        let files = u64::from(vms).saturating_add(3);
        let least = files.saturating_mul(self.huge_pages.unwrap_or(0)).checked_next_power_of_two();
        Self { bytes: Some(bytes.saturating_mul(2).max(least.unwrap_or(1 << 63))), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_grows_with_what_named_objects_are_to_have() {
        let of = |shared_bytes, huge_pages, ranks| {
            RegionOptions { shared_bytes, huge_pages, ..RegionOptions::default() }.bytes_for(ranks) >> 20
        };
        let mib = |n: u64| Some(n << 20);
        assert_eq!((of(None, None, 2), of(mib(0), None, 2), of(mib(16), None, 2)), (128, 128, 128));
        assert_eq!(
            (of(mib(256), None, 2), of(mib(256), None, 16), of(mib(256), None, 20)),
            (512, 1024, 1024)
        );
        assert_eq!(of(mib(256), mib(1024), 2), 1024);
        assert_eq!(of(Some(u64::MAX), None, 2), (1 << 63) >> 20);
        let holds = |grant_bytes, alloc_bytes| {
            RegionOptions { grant_bytes, alloc_bytes, ..RegionOptions::default() }.bytes_for(2) >> 20
        };
        assert_eq!(
            (holds(0, 0), holds(48 << 20, 0), holds(0, 256 << 20), holds(0, 1 << 40)),
            (128, 256, 1024, 4 << 20)
        );
        let told = RegionOptions { bytes: mib(64), shared_bytes: mib(256), ..RegionOptions::default() };
        assert_eq!(told.bytes_for(2), 64 << 20);
        let isolated = RegionOptions { isolated: true, ..RegionOptions::default() };
        assert_eq!(isolated.sized(2, 2).bytes, mib(256));
        assert_eq!(RegionOptions { bytes: mib(64), ..isolated }.sized(2, 2).bytes, mib(64));
        assert_eq!(RegionOptions { huge_pages: mib(1024), ..isolated }.sized(2, 2).bytes, mib(8192));
        assert_eq!(RegionOptions::default().sized(2, 2).bytes, mib(128));
    }
}
