//! Operations that wait for a remote endpoint. Their numbers travel with a generation, so that a reply to an
//! operation that is over finds nothing.

use super::Registered;
use super::depth::Timed;
use super::grants::Pin;
use super::offer::Standing;
use super::ways::Measured;
use crate::matching::Bufs;
use crate::types::{Completion, Op, PeerId};

/// An operation that waits.
#[derive(Debug)]
pub(super) enum Operation {
    /// A message was announced; `CLEAR` is awaited.
    Announced {
        to: PeerId,
        bufs: Bufs,
        len: u64,
        /// The completion: when the bytes are out of `bufs`, or at `DONE` if `awaits_done`.
        then: Completion,
        awaits_done: bool,
        /// The receiver may copy the payload itself, and then answers with `DONE` alone.
        offered: Option<Standing>,
        /// It may ask for granted pages.
        pages: bool,
    },
    /// `DONE` is awaited of a receiver that may be copying from pages of `bufs`, or `AGAIN`.
    Lent {
        to: PeerId,
        then: Completion,
        bufs: Bufs,
        len: u64,
        /// The receiver's operation.
        theirs: u64,
        pins: Vec<Pin>,
        /// Bytes that went in pages.
        paged: u64,
        /// As of `Await`.
        sending: bool,
        is_asked_again: bool,
    },
    /// `DONE` is awaited.
    Await {
        to: PeerId,
        then: Completion,
        /// The payload is still being read from the caller's buffers, so a `DONE` with success cannot be
        /// right yet.
        sending: bool,
    },
    /// Payload is awaited, in chunks or in one `RESULT`.
    Incoming {
        from: PeerId,
        dest: Bufs,
        want: u64,
        received: u64,
        then: Completion,
        /// Of a multi-receive.
        multi: Option<u32>,
        /// The sender's operation that gets `DONE` at the end.
        done: Option<u64>,
        /// For a remote write: the registration that it goes to.
        registered: Option<Registered>,
        /// For a message that had a choice of ways.
        measured: Option<Measured>,
        /// For a message that comes in two copies.
        timed: Option<Timed>,
        /// The sender was asked for the bytes from `received` on once more; those behind them, which are under way, do not count.
        again: bool,
        /// Bytes that came in granted pages, and whether some of these were granted for this message, or gone when they were read.
        paged: u64,
        is_odd: bool,
    },
}

impl Operation {
    /// Whether it is an operation of ours on remote memory.
    fn is_one_sided(&self) -> bool {
        let (Self::Announced { then, .. }
        | Self::Lent { then, .. }
        | Self::Await { then, .. }
        | Self::Incoming { then, .. }) = self;
        matches!(then.op, Op::Read | Op::Write | Op::Atomic(_))
    }

    pub(super) fn peer(&self) -> PeerId {
        match self {
            Self::Announced { to, .. } | Self::Lent { to, .. } | Self::Await { to, .. } => *to,
            Self::Incoming { from, .. } => *from,
        }
    }
}

/// Operations under way with one remote endpoint.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    /// Ours on its memory.
    one_sided: u32,
    /// Long messages of ours that it has not asked for yet, or reads pages of.
    long: u32,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    entries: Vec<(u32, Option<Operation>)>,
    free: Vec<u32>,
    /// By remote endpoint.
    counts: Vec<Counts>,
    /// Messages to any receiver that were announced and not asked for yet.
    announced: u32,
    /// Messages of which receivers read pages.
    lent: u32,
}

impl Table {
    /// Our one-sided operations on a peer's memory that are under way.
    pub(super) fn one_sided(&self, peer: PeerId) -> u32 {
        self.counts.get(peer.0 as usize).map_or(0, |counts| counts.one_sided)
    }

    /// Whether any operation is under way.
    pub(super) fn has_any(&self) -> bool {
        self.free.len() < self.entries.len()
    }

    /// Whether any operation with a peer is under way. Reads the whole table.
    pub(super) fn has_with(&self, peer: PeerId) -> bool {
        self.entries.iter().any(|entry| entry.1.as_ref().is_some_and(|op| op.peer() == peer))
    }

    /// Whether a receiver may still be reading pages of ours.
    pub(super) fn has_lent(&self) -> bool {
        self.lent > 0
    }

    /// Whether a long message of ours is under way that this receiver has not asked for yet, or reads pages of.
    pub(super) fn has_long_to(&self, peer: PeerId) -> bool {
        self.counts.get(peer.0 as usize).is_some_and(|counts| counts.long > 0)
    }

    /// Whether announced messages wait to be asked for.
    pub(super) fn has_announced(&self) -> bool {
        self.announced > 0
    }

    fn count(&mut self, operation: &Operation, came: bool) {
        let change = |count: u32| if came { count + 1 } else { count.saturating_sub(1) };
        let (is_announced, is_lent) =
            (matches!(operation, Operation::Announced { .. }), matches!(operation, Operation::Lent { .. }));
        let is_one_sided = operation.is_one_sided();
        if !is_announced && !is_lent && !is_one_sided {
            return;
        }
        let peer = operation.peer().0 as usize;
        if self.counts.len() <= peer {
            self.counts.resize(peer + 1, Counts::default());
        }
        let counts = &mut self.counts[peer];
        if is_one_sided {
            counts.one_sided = change(counts.one_sided);
        }
        if is_announced {
            self.announced = change(self.announced);
        }
        if is_lent {
            self.lent = change(self.lent);
        }
        if is_announced || is_lent {
            counts.long = change(counts.long);
        }
    }

    pub(super) fn insert(&mut self, operation: Operation) -> u64 {
        self.count(&operation, true);
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push((0, None));
            u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
        });
        let entry = &mut self.entries[index as usize];
        entry.0 = entry.0.wrapping_add(1);
        entry.1 = Some(operation);
        (u64::from(entry.0) << 32) | u64::from(index)
    }

    fn split(id: u64) -> (usize, u32) {
        let bytes = id.to_le_bytes();
        let index = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let generation = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        (index as usize, generation)
    }

    /// The operation `id`, if it is one with `peer`.
    pub(super) fn get(&mut self, id: u64, peer: PeerId) -> Option<&mut Operation> {
        let (index, generation) = Self::split(id);
        let entry = self.entries.get_mut(index)?;
        if entry.0 != generation {
            return None;
        }
        entry.1.as_mut().filter(|op| op.peer() == peer)
    }

    pub(super) fn take(&mut self, id: u64, peer: PeerId) -> Option<Operation> {
        self.get(id, peer)?;
        let (index, _) = Self::split(id);
        self.free.push(u32::try_from(index).unwrap_or(u32::MAX));
        let operation = self.entries[index].1.take()?;
        self.count(&operation, false);
        Some(operation)
    }

    /// Puts an operation under the number of the one that was just taken.
    pub(super) fn put_back(&mut self, id: u64, operation: Operation) {
        let (index, _) = Self::split(id);
        if self.free.last().is_some_and(|last| *last as usize == index) {
            self.count(&operation, true);
            self.free.pop();
            self.entries[index].1 = Some(operation);
        }
    }

    /// Ends all offers, so that the program may have its buffers back.
    pub(super) fn end_offers(&mut self) {
        for (_, operation) in &mut self.entries {
            if let Some(Operation::Announced { offered, .. }) = operation {
                *offered = None;
            }
        }
    }

    /// Takes all operations with a peer that is gone.
    pub(super) fn take_all(&mut self, peer: PeerId) -> Vec<Operation> {
        let mut taken = Vec::new();
        for (index, entry) in (0_u32..).zip(&mut self.entries) {
            if entry.1.as_ref().is_some_and(|op| op.peer() == peer) {
                taken.extend(entry.1.take());
                self.free.push(index);
            }
        }
        taken.iter().for_each(|operation| self.count(operation, false));
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Status, Ticket};

    fn then() -> Completion {
        Completion {
            ticket: Ticket::default(),
            op: Op::Send { tagged: true },
            status: Status::Ok,
            len: 0,
            tag: 0,
            data: None,
            source: None,
            buf: 0,
            released: false,
        }
    }

    fn announced(to: PeerId) -> Operation {
        Operation::Announced {
            to,
            bufs: Bufs::new(&[]),
            len: 1,
            then: then(),
            awaits_done: true,
            offered: None,
            pages: false,
        }
    }

    #[test]
    fn announced_operations_are_counted_until_taken_or_their_peer_is_gone() {
        let (here, there) = (PeerId(0), PeerId(1));
        let mut table = Table::default();
        let first = table.insert(announced(here));
        table.insert(announced(there));
        assert!(table.has_long_to(here) && table.has_long_to(there) && !table.has_long_to(PeerId(2)));
        assert!(table.take(first, there).is_none(), "another peer's");
        assert!(table.take(first, here).is_some());
        table.put_back(first, Operation::Await { to: here, then: then(), sending: false });
        assert!(table.has_announced() && table.has_long_to(there) && !table.has_long_to(here));
        assert_eq!(table.take_all(there).len(), 1);
        assert!(!table.has_announced() && !table.has_long_to(there));
        assert_eq!(table.take_all(here).len(), 1);
        assert!(!table.has_announced());
    }
}
