//! Counters of messages, bytes and events.
//!
//! To count a message costs no access to shared memory. What is counted often is counted where the sender
//! writes anyway (`Outgoing`); now and then the sums are written to the process's counters, and to the second
//! line of each lane's descriptor.

use isthmus_region::counters::{Counter, LaneCounter, LaneTotals, WORDS};

use super::{Berth, Core, Peer};
use crate::types::PeerId;

/// What was counted since the last write to the process's counters.
#[derive(Debug)]
pub(super) struct Tally {
    counts: [u64; WORDS],
}

impl Default for Tally {
    fn default() -> Self {
        Self { counts: [0; WORDS] }
    }
}

impl Tally {
    /// Keeps counters that are added to together apart: two plain additions are cheaper than one of a vector,
    /// under emulation by far.
    #[inline]
    const fn place(counter: usize) -> usize {
        counter * 7 % WORDS
    }

    #[inline]
    pub(super) fn add(&mut self, counter: Counter, by: u64) {
        self.counts[Self::place(counter as usize)] += by;
    }

    fn get(&self, counter: Counter) -> u64 {
        self.counts[Self::place(counter as usize)]
    }
}

/// What was sent to one peer, through whatever lane.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// Messages and their bytes are those of closed lanes; the open lane counts its own.
    counts: LaneTotals,
    /// Messages and their bytes that the process's counters contain.
    told: (u64, u64),
    /// Something else was counted since the last write to the lane's descriptor.
    changed: bool,
}

impl Sent {
    pub(super) fn add(&mut self, counter: LaneCounter, by: u64) {
        self.counts.add(counter, by);
        self.changed = true;
    }
}

impl Peer {
    /// All that was sent to it.
    pub(super) fn totals(&self) -> LaneTotals {
        let (messages, bytes) = self.path.lane().map_or((0, 0), super::Outgoing::sent);
        let mut totals = self.sent.counts;
        totals.add(LaneCounter::Messages, messages);
        totals.add(LaneCounter::BytesSent, bytes);
        totals
    }
}

impl Core {
    /// Writes the totals of one lane, if they have changed.
    fn settle_lane(&mut self, peer: usize) {
        let Some(peer) = self.peers.get_mut(peer) else { return };
        let totals = peer.totals();
        let now = (totals.get(LaneCounter::Messages), totals.get(LaneCounter::BytesSent));
        if now == peer.sent.told && !peer.sent.changed {
            return;
        }
        self.tally.add(Counter::TxMessages, now.0 - peer.sent.told.0);
        self.tally.add(Counter::TxBytes, now.1 - peer.sent.told.1);
        peer.sent.told = now;
        peer.sent.changed = false;
        if let Some(out) = peer.path.lane() {
            out.tell(&totals);
        }
    }

    /// Takes the lane to a remote endpoint from it, and keeps the lane's counts.
    pub(super) fn take_lane(&mut self, peer: PeerId) -> Option<super::Outgoing> {
        self.settle_lane(peer.0 as usize);
        let peer = self.peers.get_mut(peer.0 as usize)?;
        peer.sent.counts = peer.totals();
        peer.path.close()
    }

    /// Writes all that was counted.
    pub(super) fn settle(&mut self, berth: &mut Berth) {
        for peer in 0..self.peers.len() {
            self.settle_lane(peer);
        }
        // Messages that were neither eager nor rendezvous were in-line.
        let sent = self.tally.get(Counter::TxMessages);
        let otherwise = self.tally.get(Counter::Eager) + self.tally.get(Counter::Rendezvous);
        self.tally.add(Counter::Inline, sent.saturating_sub(otherwise));
        for i in 0..self.tally.counts.len() {
            let count = &mut self.tally.counts[Tally::place(i)];
            if *count != 0 {
                berth.member.counters().add_shared(i, *count);
                *count = 0;
            }
        }
    }
}
