//! Gates: how sleepers at a word that many may change are not missed by the threads that change it.
//!
//! A gate is one line: the word itself, a count of the threads that sleep at it as at a futex, and a set of peers in which
//! threads sleep with the help of a local service. A thread that is about to sleep says so in one of these and then reads
//! the word again; one that changes the word then checks whether there are sleepers. A full fence stands between the store
//! and the load on each side, so at least one of them sees the other (P8):
//!
//! ```text
//! sleeper: count += 1, or set |= own peer       waker: word := new (release)
//!          full fence                                  full fence
//!          word still as it was? then sleep            count or set: not 0? then ring
//!          (futex: the kernel looks once more)
//!          count -= 1
//! ```
//! A waker takes the set away as it rings, so a sleeper that goes on sleeping enters it again. A process that is killed
//! in its sleep leaves its count behind: wakers then ring without need, which costs time and no more.

use crate::sync::{Line, full_fence};

/// Index of the word that is waited at.
pub const WORD: usize = 0;
/// Index of the count of sleepers at the futex.
pub const NATIVE: usize = 1;
/// Index of the set of peers with other sleepers.
pub const PEERS: usize = 2;

/// Indices of words that name near sleepers, at gates that have them: threads that the processes of their own system ring
/// without a service.
pub const NEAR: std::ops::Range<usize> = 3..7;
/// Index of the set of peers with sleepers for which no such word was free.
pub const FAR: usize = 7;

/// The bit of a peer in the set. The last one stands for all peers that have none of their own.
#[inline]
pub fn bit(peer: u32) -> u64 {
    1 << peer.min(63)
}

/// The sleepers at a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sleepers {
    /// Threads that sleep at the futex; perhaps more than there are, never fewer.
    pub native: u64,
    /// Peers in which other threads sleep, as bits.
    pub peers: u64,
}

/// Says that the caller is about to sleep at the futex; it reads the word after this.
#[inline]
pub fn enter(line: &Line) {
    line.words[NATIVE].add(1);
    full_fence();
}

/// Says that the caller no longer sleeps at the futex.
#[inline]
pub fn leave(line: &Line) {
    line.words[NATIVE].add(u64::MAX);
}

/// Says that a thread of `peer` is about to sleep with the help of its service; it reads the word after this.
#[inline]
pub fn enter_peer(line: &Line, peer: u32) {
    line.words[PEERS].insert(bit(peer));
    full_fence();
}

/// As [`enter_peer`], at a gate with near sleepers: under this name, if a word for it is free; gives whether one was.
#[inline]
pub fn enter_near(line: &Line, peer: u32, name: u64) -> bool {
    let free = |i: usize| line.words[i].peek() == 0 && line.words[i].replace(0, name).is_ok();
    let is_near = name != 0 && { NEAR }.any(free);
    if !is_near {
        line.words[FAR].insert(bit(peer));
    }
    // After the name: who finds the bit finds the name.
    line.words[PEERS].insert(bit(peer));
    full_fence();
    is_near
}

/// Says that the caller no longer sleeps under this name.
#[inline]
pub fn leave_near(line: &Line, name: u64) {
    for i in NEAR {
        if line.words[i].peek() == name {
            let _ = line.words[i].replace(name, 0);
        }
    }
}

/// The near sleepers to ring for, of those that `is_own` says are of the caller's peer; for a caller that has found its peer's bit
/// among the [`sleepers`]. They are the caller's now.
#[inline]
pub fn take_near(line: &Line, is_own: impl Fn(u64) -> bool) -> impl Iterator<Item = u64> {
    NEAR.filter_map(move |i| {
        let name = line.words[i].get();
        (name != 0 && is_own(name) && line.words[i].replace(name, 0).is_ok()).then_some(name)
    })
}

/// Whether other threads of `peer` sleep, too, for which no name was free; they are the caller's now.
#[inline]
pub fn take_far(line: &Line, peer: u32) -> bool {
    let is_there = line.words[FAR].peek() & bit(peer) != 0;
    if is_there {
        line.words[FAR].remove(bit(peer));
    }
    is_there
}

/// After the word was changed: the sleepers to ring for. The set is the caller's now.
#[inline]
pub fn sleepers(line: &Line) -> Sleepers {
    full_fence();
    let native = line.words[NATIVE].peek();
    let peers = match line.words[PEERS].peek() {
        0 => 0,
        _ => line.words[PEERS].swap(0),
    };
    Sleepers { native, peers }
}
