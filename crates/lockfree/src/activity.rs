//! Activity words: where should a receiver look?
//!
//! One line of eight counters belongs to one receiver and one sending peer. A sender adds to the counter that its
//! own number selects; the receiver compares the line with its own copy, so that one look at one line covers all
//! senders of a peer, and a change leads it to an eighth of them.

use crate::LINE_WORDS;
use crate::sync::{Line, ReadLine};

/// The counter that sender number `sender` adds to.
#[inline]
pub fn group(sender: u32) -> usize {
    sender as usize % LINE_WORDS
}

/// Tells the line's receiver that `sender` has published something.
///
/// # Ordering
/// Release (a locked add). Pairs with the acquire in [`Seen::changed`]: a receiver that sees the new count also
/// sees every slot that was published before it (P3).
#[inline]
pub fn announce(line: &Line, sender: u32) {
    line.words[group(sender)].add(1);
}

/// The receiver's own copy of an activity line.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    counts: [u64; LINE_WORDS],
}

impl Seen {
    /// A copy that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing was announced since the last [`Seen::changed`]. A look only: what it finds is still news to that.
    #[inline]
    pub fn is_current(&self, line: &ReadLine) -> bool {
        self.counts.iter().zip(&line.words).all(|(seen, word)| word.get() == *seen)
    }

    /// The groups that changed since the last call, as a bit set, now taken as seen.
    ///
    /// The caller scans these groups **after** the call: what is published later changes a count again (P3).
    #[inline]
    pub fn changed(&mut self, line: &ReadLine) -> u8 {
        let mut groups = 0;
        for (i, seen) in self.counts.iter_mut().enumerate() {
            let count = line.words[i].get();
            if count != *seen {
                *seen = count;
                groups |= 1 << i;
            }
        }
        groups
    }
}
