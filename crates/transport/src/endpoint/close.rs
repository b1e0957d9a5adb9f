//! Closing an endpoint: what was sent still arrives, then its memory goes back to the process's area.

use std::time::{Duration, Instant};

use isthmus_region::format::block;

use super::{Berth, Core, Endpoint, Peer};
use crate::fault::{Step, step};

/// A usual patience for [`Endpoint::close`]: a receiver may compute, be traced, or be in a paused VM.
pub const CLOSE_PATIENCE: Duration = Duration::from_secs(60);
/// How long an endpoint that is being closed still confirms messages.
const CONFIRMING: Duration = Duration::from_secs(1);

impl Core {
    /// As [`super::Endpoint::is_flushing`].
    pub(super) fn is_flushing(&mut self) -> bool {
        // A receiver may ask for the rest of a message of which it did not find all pages.
        let mut flushing = self.operations.has_lent();
        for peer in &mut self.peers {
            if peer.path.is_gone() {
                continue;
            }
            if !peer.backlog.is_empty() || !peer.pushes.is_empty() {
                flushing = true;
                continue;
            }
            if let Some(out) = peer.path.lane_mut() {
                // A close does not wait for a faulty receiver.
                if !out.is_drained().unwrap_or(true) {
                    flushing = true;
                    // Not accepted yet: the read position is in the accept entry.
                    if !out.is_accepted() {
                        out.accepts_seen = None;
                    }
                }
            }
        }
        flushing
    }

    /// A number that changes whenever a receiver takes something.
    fn moves(&self) -> u64 {
        let of = |p: &Peer| {
            let taken = p.path.lane().map_or(0, |out| out.written().wrapping_add(out.read_seen()));
            let pushed = p.pushes.iter().map(|push| push.at + 1).sum::<u64>();
            taken.wrapping_add(pushed).wrapping_sub(p.backlog.count() as u64)
        };
        self.peers.iter().filter(|p| !p.path.is_gone()).map(of).fold(0, u64::wrapping_add)
    }

    /// Receivers that have not taken yet what was sent to them.
    fn waited_for(&mut self) -> usize {
        let waits = |p: &mut Peer| {
            let full = p.path.lane_mut().is_some_and(|out| !out.is_drained().unwrap_or(true));
            !p.path.is_gone() && (full || !p.backlog.is_empty() || !p.pushes.is_empty())
        };
        self.peers.iter_mut().filter_map(|p| waits(p).then_some(())).count()
    }

    /// Returns all memory to the process's area. The endpoint's record must say that it is gone.
    pub(super) fn give_back_everything(&mut self, berth: &mut Berth) {
        for i in 0..self.peers.len() {
            if let Some(mut out) = self.peers[i].path.close() {
                berth.chunk_pool.extend(out.all_chunks());
                berth.give_place(out.place);
            }
        }
        for (_, out) in std::mem::take(&mut berth.closing) {
            berth.give_place(out.place);
        }
        berth.give_chunks(berth.chunk_pool.len(), self.config.chunk_bytes);
        if let Some(grants) = berth.grants.take() {
            grants.end(&berth.member);
        }
        std::mem::take(&mut berth.offers).give_back(&berth.member);
        if let Some(reserve) = berth.reserve.take() {
            reserve.give(&berth.member);
        }
        for table in [&mut berth.lanes, &mut berth.accepts] {
            table.give_back(&berth.member);
        }
        berth.member.give(berth.block_at, block::BYTES);
    }
}

impl Berth {
    /// Gives chunks of the pool back, each of so many bytes.
    pub(super) fn give_chunks(&mut self, count: usize, bytes: u64) {
        // The first ones were used longest ago.
        for chunk in self.chunk_pool.drain(..count.min(self.chunk_pool.len())) {
            self.member.give_piece(chunk, bytes);
            self.chunks_taken = self.chunks_taken.saturating_sub(1);
        }
        self.idle_chunks = None;
    }
}

impl Endpoint {
    /// Closes the endpoint. What was sent still arrives, as long as its receivers live and take it. If none
    /// of them has taken anything for `patience`, the close waits no longer; it returns the number of
    /// receivers that live and have not taken all. Remote reads, writes and atomics that come meanwhile are
    /// not done, and messages that come after the first second are not confirmed; a sender or initiator that
    /// waits for either learns that this endpoint is gone.
    pub fn close(self, patience: Duration) -> usize {
        let mut closing = self.begin_close(patience);
        loop {
            if let Some(waited_for) = closing.advance() {
                return waited_for;
            }
            closing.rest();
        }
    }

    /// As [`Endpoint::close`], in steps, for a caller that has something else to do in between.
    pub fn begin_close(mut self, patience: Duration) -> Closing {
        self.core.leaving = true;
        let (moves, begin) = (self.core.moves(), Instant::now());
        Closing { endpoint: self, patience, rounds: 0, begin, moves, since: begin }
    }
}

/// An endpoint that is being closed. It is gone once this is dropped.
#[derive(Debug)]
pub struct Closing {
    endpoint: Endpoint,
    patience: Duration,
    rounds: u32,
    begin: Instant,
    /// [`Core::moves`], and since when it is that.
    moves: u64,
    since: Instant,
}

impl Closing {
    /// Makes progress. Once there is nothing more to wait for, returns the number of receivers that live and
    /// have not taken what was sent.
    pub fn advance(&mut self) -> Option<usize> {
        let Endpoint { core, berth: Some(berth) } = &mut self.endpoint else { return Some(0) };
        core.progress(berth);
        core.check_accepts(berth);
        if !core.is_flushing() {
            return Some(0);
        }
        self.rounds += 1;
        if self.rounds.is_multiple_of(64) {
            core.slow(berth);
            core.deaf = self.begin.elapsed() >= CONFIRMING;
            let now = core.moves();
            if now != self.moves {
                (self.moves, self.since) = (now, Instant::now());
            } else if self.since.elapsed() >= self.patience {
                return Some(core.waited_for());
            }
        }
        None
    }

    /// Yields, between two calls of [`Closing::advance`]; naps once many have passed.
    pub fn rest(&self) {
        if self.rounds > 10_000 {
            std::thread::sleep(Duration::from_micros(50));
        } else {
            std::thread::yield_now();
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Endpoint {
    /// Gives the berth up; what is left reaches nobody. Public for tests.
    #[doc(hidden)]
    pub fn leave(&mut self) {
        let Some(mut berth) = self.berth.take() else { return };
        self.core.settle(&mut berth);
        self.core.operations.end_offers();
        // The record first: once it is closed, no receiver takes what is in our memory for messages (P5). If
        // the service is gone, the record stays as it is; then the memory must not serve others before the
        // process ends.
        step(Step::Closing);
        let told = berth.member.service().close_endpoint(berth.local).is_ok();
        step(Step::Closed);
        if told {
            self.core.give_back_everything(&mut berth);
        } else if let Some(grants) = &mut berth.grants {
            // The program has its buffers back.
            grants.withdraw_all(&berth.member);
        }
    }
}
