//! Commits of minitransactions: locks that survive their holder, and changes of one word that pass by them.
//!
//! Every committing thread has a *slot* in shared memory: its owner, how far its transaction is (`state`), a redo log,
//! and a `flight` word. A lock names the slot and the transaction that holds it, so a thread that finds the lock
//! of a dead process can finish or undo that transaction:
//!
//! ```text
//! several words:  log, state := locking      each lock: 0 -> token      full fence      no flight names my locks
//!                 state := committed   fence   data   state := done   each lock := 0
//! one word:       flight := lock   full fence   lock = 0?   data: old -> new   flight := 0
//! one read:       data   lock = 0?
//! recovery:       owner: dead -> me   committed? then fence, data, state := done   each lock: token -> 0   state := idle
//! ```
//! - A thread that takes a lock, or finds it free after a read, sees all that was written under it, whole (P13).
//! - Between a change of one word and the locks stands a full fence on each side, as in [`crate::hold`]: the one-word change
//!   sees the lock, or the thread that took the lock sees the flight and waits until it is over (P14).
//! - No data is written before `committed` stands, and no lock is free before `done` stands; so a log is replayed only while
//!   all its locks are held, and nothing that came later is overwritten (P15).
//! - A slot of a dead process has one heir at a time: the process whose compare-and-swap put itself in the owner's place. If it
//!   dies, it is the dead owner (P16).
//!
//! # Source
//! Ke, "Interprocess Communication Mechanisms with Inter-Virtual Machine Shared Memory" (2011), 3.1. There no holder of a
//! lock dies, and contention is left to the program.

use crate::sync::{ReadWord, Word, full_fence, release_fence};

const SLOT_BITS: u32 = 10;
const PHASE_BITS: u32 = 2;

/// Most slots that tokens can name.
pub const SLOTS_MAX: u64 = (1 << SLOT_BITS) - 1;
/// Bits of a generation.
pub const GENERATION_BITS: u32 = u64::BITS - SLOT_BITS;

/// How far a slot's transaction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// There is none, and it holds no lock.
    Idle = 0,
    /// Its log is whole; it takes its locks, or looks at the data. To be undone.
    Locking = 1,
    /// It holds all its locks and will write all its data. To be completed.
    Committed = 2,
    /// All its data is written, or none will be; it frees its locks.
    Done = 3,
}

/// A phase and the transaction it belongs to, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Which of the slot's transactions; the lower [`GENERATION_BITS`] bits count.
    pub generation: u64,
    /// How far it is.
    pub phase: Phase,
}

impl State {
    /// Packs both into the slot's word.
    #[inline]
    pub fn pack(self) -> u64 {
        (clip(self.generation) << PHASE_BITS) | self.phase as u64
    }

    /// Unpacks a word that any process may have written.
    #[inline]
    pub fn unpack(word: u64) -> Self {
        let phase = match word % (1 << PHASE_BITS) {
            0 => Phase::Idle,
            1 => Phase::Locking,
            2 => Phase::Committed,
            _ => Phase::Done,
        };
        Self { generation: clip(word >> PHASE_BITS), phase }
    }
}

#[inline]
fn clip(generation: u64) -> u64 {
    generation & ((1 << GENERATION_BITS) - 1)
}

/// What stands in a lock that a transaction holds: no two transactions have the same. Never 0.
#[inline]
pub fn token(slot: u64, generation: u64) -> u64 {
    (clip(generation) << SLOT_BITS) | ((slot + 1) & SLOTS_MAX)
}

/// Slot and generation that a lock names; nothing of it is checked. `None` for words that no holder writes.
#[inline]
pub fn holder(token: u64) -> Option<(u64, u64)> {
    let slot = (token & SLOTS_MAX).checked_sub(1)?;
    Some((slot, token >> SLOT_BITS))
}

/// Before the log of a new transaction is written: the locks of the last one were freed before that (P15).
#[inline]
pub fn before_log() {
    release_fence();
}

/// The log is whole; locks may be taken now. The log is visible to a thread that finds one of them taken (P15).
#[inline]
pub fn begin(state: &Word, generation: u64) {
    state.set(State { generation, phase: Phase::Locking }.pack());
}

/// Takes a lock if it is free.
///
/// # Ordering
/// Acquire: all that was written under the lock is visible (P13). Release: so is the log to a thread that finds the lock taken (P15).
///
/// # Errors
/// The token of the holder.
#[inline]
pub fn take(lock: &Word, token: u64) -> Result<(), u64> {
    lock.replace(0, token)
}

/// Stands between the last lock taken and the look at the flights (P14).
#[inline]
pub fn after_locks() {
    full_fence();
}

/// The lock that a flight word names, if there is a flight. If there is none, the changes of earlier ones are visible (P14).
#[inline]
pub fn in_flight(flight: &ReadWord) -> Option<u64> {
    flight.get().checked_sub(1)
}

/// The transaction will be completed, by its owner or by an heir. Data is written after this, and not before (P15).
///
/// # Ordering
/// The fence keeps the data's stores behind that of the state, and lets a reader of the data (acquire) see the locks
/// taken ([`read`], P13).
#[inline]
pub fn commit(state: &Word, generation: u64) {
    state.put(State { generation, phase: Phase::Committed }.pack());
    release_fence();
}

/// All data is written, or none will be. Locks are freed after this, and not before (P15).
#[inline]
pub fn finish(state: &Word, generation: u64) {
    state.set(State { generation, phase: Phase::Done }.pack());
}

/// Frees a lock that the caller's own transaction holds, after [`finish`].
///
/// # Ordering
/// Release: a thread that finds the lock free sees the data (P13), and one that finds it free after a death finds `done` (P15).
#[inline]
pub fn free(lock: &Word) {
    lock.set(0);
}

/// Announces a change of one word under `lock`, the lock's index. The lock is to be looked at after this (P14).
#[inline]
pub fn announce(flight: &Word, lock: u64) {
    flight.set(lock + 1);
    full_fence();
}

/// The change is made, or not to be made (P14).
#[inline]
pub fn withdraw(flight: &Word) {
    flight.set(0);
}

/// A word as it was at some moment at which no transaction was half done with it.
///
/// # Ordering
/// The data is read with acquire, so that a value written under a lock is followed by a look that finds the lock taken by
/// its writer or by someone later, or free; and if it is free, then all that was written with the value is visible (P13).
///
/// # Errors
/// The token in the lock: the value may belong to a transaction that is half done.
#[inline]
pub fn read(data: &ReadWord, lock: &ReadWord) -> Result<u64, u64> {
    let value = data.get();
    match lock.get() {
        0 => Ok(value),
        token => Err(token),
    }
}

/// Claims what a dead owner left, or (with `dead` 0) a slot without an owner. One of those that try succeeds (P16).
#[inline]
pub fn claim(owner: &Word, dead: u64, heir: u64) -> bool {
    owner.replace(dead, heir).is_ok()
}

/// After a claim: what is to be done. Whether it is [`Phase::Committed`] decides; then all of the log is to be written
/// again after this, and [`finish`] called.
///
/// # Ordering
/// The fence does for the heir's stores what that of [`commit`] did for the dead owner's (P13).
pub fn inherit(state: &ReadWord) -> State {
    let state = State::unpack(state.get());
    release_fence();
    state
}

/// Frees a lock if that transaction holds it; for heirs, which do not know which of the locks were taken, or freed, already.
pub fn free_inherited(lock: &Word, token: u64) -> bool {
    lock.replace(token, 0).is_ok()
}

/// An heir is done: no lock names the slot any more.
pub fn settle(state: &Word, generation: u64) {
    state.set(State { generation, phase: Phase::Idle }.pack());
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_states_keep_their_parts() {
        for (slot, generation) in [(0, 0), (0, 1), (511, 7), (SLOTS_MAX - 1, (1 << GENERATION_BITS) - 1)] {
            assert_eq!(holder(token(slot, generation)), Some((slot, generation)));
            for phase in [Phase::Idle, Phase::Locking, Phase::Committed, Phase::Done] {
                let state = State { generation, phase };
                assert_eq!(State::unpack(state.pack()), state);
            }
        }
        assert_eq!(holder(0), None);
        assert_eq!(holder(1 << SLOT_BITS), None);
        assert_eq!(State::unpack(0), State { generation: 0, phase: Phase::Idle });
    }
}
