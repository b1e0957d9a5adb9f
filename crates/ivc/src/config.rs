//! Sizes and limits of a context.

use std::time::Duration;

use crate::error::{Error, Result};

/// The smallest ring.
pub const LEAST_RING_BYTES: u64 = 256;
/// The largest ring.
pub const MOST_RING_BYTES: u64 = 1 << 30;
/// The smallest segment: a cache line.
pub const LEAST_SEGMENT_BYTES: u64 = 64;

/// Sizes and limits of a context. Each side of a channel chooses those of the ring that it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Bytes of the ring that this context writes for each channel, in the region: a power of two from 256 to 2^30. The
    /// default is 64 KiB, as in the dissertation.
    pub ring_bytes: u64,
    /// Bytes of a segment, a power of two from 64 to a quarter of the ring. The reader gives room back once it has read
    /// across the end of a segment (or everything), so that reading single bytes does not take the position's line from the
    /// writer for each. The default is 64. Unlike in the dissertation, a write that does not fill its last segment leaves
    /// nothing unused.
    pub segment_bytes: u64,
    /// How many connections may wait to be accepted; further ones are refused. 0 refuses all.
    pub backlog: u32,
    /// How long dropping the last handle waits until what was written has been read.
    pub linger: Duration,
    /// Whether the local service wakes threads that sleep even where they could sleep on futexes. For tests: so it is in
    /// VMs.
    pub by_service: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ring_bytes: 64 << 10,
            segment_bytes: 64,
            backlog: 64,
            linger: Duration::from_secs(5),
            by_service: false,
        }
    }
}

impl Config {
    pub(crate) fn check(&self) -> Result<()> {
        let allowed = "a power of two from 256 to 2^30 bytes";
        if !fits_ring(self.ring_bytes) {
            return Err(Error::Invalid { what: "size of a ring", value: self.ring_bytes, allowed });
        }
        let allowed = "a power of two from 64 bytes to a quarter of the ring";
        if !fits_segment(self.segment_bytes, self.ring_bytes) {
            return Err(Error::Invalid { what: "size of a segment", value: self.segment_bytes, allowed });
        }
        Ok(())
    }
}

pub(crate) fn fits_ring(bytes: u64) -> bool {
    bytes.is_power_of_two() && (LEAST_RING_BYTES..=MOST_RING_BYTES).contains(&bytes)
}

pub(crate) fn fits_segment(bytes: u64, ring: u64) -> bool {
    bytes.is_power_of_two() && (LEAST_SEGMENT_BYTES..=ring / 4).contains(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_sizes_are_refused() {
        let usual = Config::default();
        usual.check().unwrap();
        for (ring_bytes, segment_bytes) in
            [(0, 64), (128, 64), (65535, 64), (1 << 31, 64), (4096, 0), (4096, 32), (4096, 96), (4096, 2048)]
        {
            assert!(
                Config { ring_bytes, segment_bytes, ..usual }.check().is_err(),
                "{ring_bytes} {segment_bytes}"
            );
        }
        Config { ring_bytes: 256, segment_bytes: 64, ..usual }.check().unwrap();
    }
}
