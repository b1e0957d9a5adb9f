//! Holds: how an owner's memory is not given away while another process is about to change it.
//!
//! A process that changes memory of another one itself says so in its own *hold* word, and then checks whether the owner
//! lives. The service that takes the memory away publishes the owner's death, and then reads all hold words. A full fence stands
//! between the store and the load on each side, so at least one of them sees the other (P7):
//!
//! ```text
//! changes the memory: hold := owner            takes it away: owner's life := dead (release)
//!                     full fence                              full fence
//!                     owner alive? then change                any hold on the owner? then wait
//!                     hold := 0 (release)                     (acquire) else the memory is free
//! ```

use crate::sync::{ReadWord, Word, full_fence};

/// Takes a hold on `owner`, which is not 0. Whether the owner lives is to be looked at after this.
#[inline]
pub fn take(hold: &Word, owner: u64) {
    hold.put(owner);
    full_fence();
}

/// As [`take`], in a word that several processes share: it is taken if it was free. Gives whether it was.
#[inline]
pub fn take_shared(hold: &Word, owner: u64) -> bool {
    let is_taken = hold.peek() == 0 && hold.replace(0, owner).is_ok();
    full_fence();
    is_taken
}

/// Lets go: the changes are made.
#[inline]
pub fn release(hold: &Word) {
    hold.set(0);
}

/// Stands between the publication of a death and the look at the holds.
pub fn after_death() {
    full_fence();
}

/// Whether there is a hold on `owner`. If not, all that was changed under one is visible.
#[inline]
pub fn is_on(hold: &ReadWord, owner: u64) -> bool {
    hold.get() == owner
}
