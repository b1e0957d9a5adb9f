//! Readers of a lock, counted by process, and the writer that has to find them (P12).
//!
//! A reader adds to the count of its own process and then checks whether there is a writer; a writer takes the owner's
//! word and then reads all counts. A full fence stands between the two on each side, so at least one of them sees the
//! other:
//!
//! ```text
//! reader: count += 1                    writer: owner := me
//!         full fence                            full fence
//!         owner? then count -= 1                any count? then wait for it
//! ```
//! Processes count apart from each other so that the dead can be left out.

use crate::sync::{ReadWord, Word, full_fence};

/// As many threads as a system can have; no process has more readers.
pub const MOST: u64 = 1 << 22;

/// Counts a reader in. Whether there is a writer is to be looked at after this.
#[inline]
pub fn enter(count: &Word) {
    count.add(1);
    full_fence();
}

/// Counts a reader out; all its loads are over then. A writer may wait for this.
#[inline]
pub fn leave(count: &Word) {
    count.add(u64::MAX);
}

/// Stands between the taking of the owner's word and the look at the counts.
#[inline]
pub fn bar() {
    full_fence();
}

/// How many readers a process has. Where there are none, all that they did is visible.
#[inline]
pub fn count(count: &ReadWord) -> u64 {
    count.get()
}
