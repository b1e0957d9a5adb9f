//! What went through the region, by peer: sums of the processes' own counters.

use std::collections::BTreeMap;

use isthmus_region::counters::Totals;
use serde::Serialize;

/// Counters of one peer or of all, by name.
pub type Named = BTreeMap<String, u64>;

/// Counters of a region.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Each peer's, by its name: of its present and former processes, also if the peer itself is gone.
    pub peers: BTreeMap<String, Named>,
    /// The sum of all peers.
    pub sum: Named,
    #[serde(skip)]
    totals: Totals,
}

impl Stats {
    pub(crate) fn new(peers: impl IntoIterator<Item = (String, Totals)>) -> Self {
        let mut stats = Self::default();
        for (name, totals) in peers {
            stats.totals.add(&totals);
            stats.peers.insert(name, totals.named().collect());
        }
        stats.sum = stats.totals.named().collect();
        stats
    }

    /// The sum of all peers, as the region has it.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// One line of JSON: `{"peers":{NAME:{COUNTER:VALUE,...},...},"sum":{COUNTER:VALUE,...}}`.
    pub fn to_json(&self) -> String {
        // Maps of strings and numbers cannot fail to serialise.
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_peers_and_their_sum() {
        let json = Stats::new([("a\"b".to_owned(), Totals::default())]).to_json();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["peers"]["a\"b"]["tx_bytes"], 0);
        assert_eq!(value["sum"]["rx_messages"], 0);
    }
}
