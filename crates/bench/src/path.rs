//! Which way the bytes went, from counters alone.

/// A way that carried less than this share of the payload is noise: name look-ups, the launcher's control
/// connections, other programs on the same interface.
const NOISE: f64 = 0.1;

/// A way that carried at least this share of the payload, as the kernel counts it, may have carried all of it: the
/// first bytes of a message that goes by cross-memory attach go another way.
const WHOLE: f64 = 0.9;

/// Granted pages, memory of the region, or direct operations, that carried at least this share of the payload: the edges of a buffer, which
/// are no whole chunks of pages, go as other messages do, and so does what comes before memory is granted, and a trial of two copies.
const MOST: f64 = 0.75;

/// What moved while one block was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moved {
    /// Messages that the program sent, all directions; of a collective call the fewest that it can be made of.
    pub messages: u64,
    /// Their bytes.
    pub payload: u64,
    /// Messages and bytes that went through the region, as all ranks' own counters say; `None` where a rank has none.
    pub region: Option<(u64, u64)>,
    /// Of those bytes, what receivers copied from pages that their senders granted.
    pub pages: u64,
    /// Of those bytes, what receivers copied from where their senders have it in the region.
    pub resident: u64,
    /// Of the region's bytes, what a rank read or changed in the other's memory itself, without a message.
    pub direct: u64,
    /// By cross-memory attach.
    pub cma: u64,
    /// On network interfaces, loopback included, protocol headers and all.
    pub network: u64,
}

impl Moved {
    /// The name of the way, for ranks of which `one_host` says whether they share a kernel.
    ///
    /// `shm` is what is left when two ranks of one host exchanged messages that no counter saw: there is no
    /// counter of an MPI's own shared memory. Between hosts nothing is left over, and the answer is `None`.
    pub fn way(&self, one_host: bool) -> Option<&'static str> {
        // Counters hold whole numbers far below 2^53.
        let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        if self.messages == 0 {
            // None that a way could be claimed for.
            return None;
        }
        let (messages, bytes) = self.region.unwrap_or((0, 0));
        // The region counts exactly, and what both ranks saw go through it, big and small, went no other way.
        let whole = if self.payload == 0 { 1.0 } else { share(bytes, self.payload) };
        let region = share(messages, self.messages).min(whole);
        // An empty message is a byte at least on any other way.
        let kernel = self.payload.max(self.messages);
        if region >= 1.0 {
            // The provider announces all messages in the region, and may have the kernel copy the long ones.
            return Some(if share(self.cma, kernel) >= WHOLE {
                "region+cma"
            } else if share(self.pages, kernel) >= MOST {
                "region+pages"
            } else if share(self.resident, kernel) >= MOST {
                "region+resident"
            } else if share(self.direct, kernel) >= MOST {
                "region+direct"
            } else {
                "region"
            });
        }
        let ways =
            [("region", region), ("cma", share(self.cma, kernel)), ("tcp", share(self.network, kernel))];
        let used: Vec<_> = ways.iter().filter(|(_, share)| *share >= NOISE).collect();
        match used[..] {
            [] if one_host => Some("shm"),
            [] => None,
            [(name, share)] if *name != "region" && *share >= WHOLE => Some(name),
            _ => Some("mixed"),
        }
    }
}

/// Whether a way is that of the provider alone: through the region, or announced there and copied by the kernel, from granted pages or from
/// where the sender has it in the region.
pub fn is_providers(way: Option<&str>) -> bool {
    let ways = ["region", "region+cma", "region+pages", "region+resident", "region+direct", SOME_PAGES];
    way.is_some_and(|way| ways.contains(&way))
}

/// Blocks of which some went in granted pages, and others did not.
const SOME_PAGES: &str = "region, some pages";

/// One name for several blocks: theirs if they agree, and `mixed` if not. Blocks in which the provider chose differently still
/// went by its ways alone.
pub fn common<'a>(ways: &[Option<&'a str>]) -> Option<&'a str> {
    match ways {
        [first, rest @ ..] if rest.iter().all(|way| way == first) => *first,
        [] => None,
        _ if ways.iter().all(|way| is_providers(*way)) => {
            let has = |wanted: &str| ways.iter().flatten().any(|way| *way == wanted);
            let pages = has("region+pages") || has(SOME_PAGES);
            match (has("region+cma"), pages, has("region+resident"), has("region+direct")) {
                (true, false, false, false) => Some("region+cma"),
                (false, true, false, false) => Some(SOME_PAGES),
                (false, false, true, false) => Some("region+resident"),
                _ => Some("mixed"),
            }
        }
        _ => Some("mixed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOVED: Moved = Moved {
        messages: 10,
        payload: 1000,
        region: None,
        pages: 0,
        resident: 0,
        direct: 0,
        cma: 0,
        network: 0,
    };

    #[test]
    fn what_carried_all_is_named() {
        assert_eq!(Moved { network: 1100, ..MOVED }.way(false), Some("tcp"));
        assert_eq!(Moved { cma: 950, ..MOVED }.way(true), Some("cma"));
        assert_eq!(Moved { region: Some((12, 1004)), network: 200, ..MOVED }.way(false), Some("region"));
    }

    #[test]
    fn what_the_provider_had_the_kernel_copy_is_told_from_what_went_through_memory() {
        let all = Moved { region: Some((10, 1000)), ..MOVED };
        let ways = [0, 890, 900, 1000].map(|cma| Moved { cma, ..all }.way(true));
        assert_eq!(ways, [Some("region"), Some("region"), Some("region+cma"), Some("region+cma")]);
        assert!(ways.into_iter().all(is_providers));
        assert_eq!(Moved { region: Some((6, 600)), cma: 1000, ..MOVED }.way(true), Some("mixed"));
        let ways = [740, 750, 1000].map(|pages| Moved { pages, ..all }.way(false));
        assert_eq!(ways, [Some("region"), Some("region+pages"), Some("region+pages")]);
        let ways = [740, 750, 1000].map(|resident| Moved { resident, ..all }.way(true));
        assert_eq!(ways, [Some("region"), Some("region+resident"), Some("region+resident")]);
        let ways = [740, 750, 1000].map(|direct| Moved { direct, ..all }.way(false));
        assert_eq!(ways, [Some("region"), Some("region+direct"), Some("region+direct")]);
        assert!(ways.into_iter().all(is_providers));
        assert!(![None, Some("cma"), Some("mixed")].into_iter().any(is_providers));
    }

    #[test]
    fn two_ways_or_a_part_of_one_are_mixed() {
        assert_eq!(Moved { region: Some((6, 600)), network: 500, ..MOVED }.way(false), Some("mixed"));
        assert_eq!(Moved { region: Some((10, 999)), ..MOVED }.way(true), Some("mixed"));
        assert_eq!(Moved { region: Some((9, 1000)), ..MOVED }.way(false), Some("mixed"));
        assert_eq!(Moved { network: 500, ..MOVED }.way(false), Some("mixed"));
    }

    #[test]
    fn messages_without_bytes_have_a_way_too() {
        let empty = Moved { payload: 0, ..MOVED };
        assert_eq!(Moved { region: Some((10, 0)), network: 1000, ..empty }.way(true), Some("region"));
        assert_eq!(Moved { network: 600, ..empty }.way(true), Some("tcp"));
        assert_eq!(empty.way(true), Some("shm"));
        assert_eq!(Moved { messages: 0, ..empty }.way(true), None);
        assert_eq!(Moved { region: Some((9, 0)), ..empty }.way(true), Some("mixed"));
    }

    #[test]
    fn nothing_counted_is_shared_memory_on_one_host_only() {
        assert_eq!(MOVED.way(true), Some("shm"));
        assert_eq!(MOVED.way(false), None);
        assert_eq!(Moved { region: Some((0, 0)), ..MOVED }.way(false), None);
    }

    #[test]
    fn blocks_that_disagree_are_mixed() {
        assert_eq!(common(&[Some("region"), Some("region")]), Some("region"));
        assert_eq!(common(&[Some("region"), Some("region+cma")]), Some("region+cma"));
        assert_eq!(common(&[Some("cma"), Some("region+cma")]), Some("mixed"));
        assert_eq!(common(&[Some("region+pages"), Some("region")]), Some(SOME_PAGES));
        assert_eq!(common(&[Some("region+pages"), Some("region+pages")]), Some("region+pages"));
        assert_eq!(common(&[Some(SOME_PAGES), Some("region")]), Some(SOME_PAGES));
        assert_eq!(common(&[Some("region+pages"), Some("region+cma")]), Some("mixed"));
        assert_eq!(common(&[Some("region+resident"), Some("region")]), Some("region+resident"));
        assert_eq!(common(&[Some("region+resident"), Some("region+cma")]), Some("mixed"));
        assert_eq!(common(&[Some("region"), None]), Some("mixed"));
        assert_eq!(common(&[]), None);
    }
}
