//! Which way the bytes went, from counters alone.

/// A way that carried less than this share of the payload is noise: name look-ups, the launcher's control
/// connections, other programs on the same interface.
const NOISE: f64 = 0.1;

/// A way that carried at least this share of the payload may have carried all of it.
const WHOLE: f64 = 0.9;

/// Bytes that moved while a block, or a whole job, was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moved {
    /// What the program sent, both directions.
    pub payload: u64,
    /// What isthmus counted through the region; `None` where nobody counted.
    pub region: Option<u64>,
    /// By cross-memory attach.
    pub cma: u64,
    /// On network interfaces, loopback included, protocol headers and all.
    pub network: u64,
}

impl Moved {
    /// Adds another block of the same job.
    pub fn add(&mut self, other: &Self) {
        self.payload += other.payload;
        self.cma += other.cma;
        self.network += other.network;
        self.region = match (self.region, other.region) {
            (Some(mine), Some(more)) => Some(mine + more),
            (mine, more) => mine.or(more),
        };
    }
}

/// The name of the way, for ranks of which `one_host` says whether they share a kernel.
///
/// `shm` is what is left when two ranks of one host exchanged messages that no counter saw: there is no
/// counter of an MPI's own shared memory. Between hosts nothing is left over, and the answer is `None`.
pub fn name(moved: &Moved, one_host: bool) -> Option<&'static str> {
    // Counters hold whole numbers of bytes far below 2^53.
    let share = |bytes: u64| bytes as f64 / moved.payload.max(1) as f64;
    let ways = [
        ("region", share(moved.region.unwrap_or(0))),
        ("cma", share(moved.cma)),
        ("tcp", share(moved.network)),
    ];
    let used: Vec<_> = ways.iter().filter(|(_, share)| *share >= NOISE).collect();
    match used[..] {
        [] if one_host => Some("shm"),
        [] => None,
        [(name, share)] if *share >= WHOLE => Some(name),
        _ => Some("mixed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOVED: Moved = Moved { payload: 1000, region: None, cma: 0, network: 0 };

    #[test]
    fn what_carried_all_is_named() {
        assert_eq!(name(&Moved { network: 1100, ..MOVED }, false), Some("tcp"));
        assert_eq!(name(&Moved { cma: 1000, ..MOVED }, true), Some("cma"));
        assert_eq!(name(&Moved { region: Some(1000), network: 20, ..MOVED }, false), Some("region"));
    }

    #[test]
    fn two_ways_or_half_of_one_are_mixed() {
        assert_eq!(name(&Moved { region: Some(600), network: 500, ..MOVED }, false), Some("mixed"));
        assert_eq!(name(&Moved { region: Some(500), ..MOVED }, true), Some("mixed"));
    }

    #[test]
    fn nothing_counted_is_shared_memory_on_one_host_only() {
        assert_eq!(name(&MOVED, true), Some("shm"));
        assert_eq!(name(&MOVED, false), None);
        assert_eq!(name(&Moved { region: Some(0), ..MOVED }, false), None);
    }
}
