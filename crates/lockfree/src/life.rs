//! State and incarnation of an owner, in one word, so that a reader never sees half of each.

use crate::sync::{ReadWord, acquire_fence};

/// What an owner's record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// It has no owner.
    Free = 0,
    /// Being set up: not to be used yet.
    Joining = 1,
    /// Alive.
    Active = 2,
    /// Dead or gone; its memory may be zeroed at any moment.
    Dead = 3,
}

/// A state and the incarnation it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// Which of the owner's lives; 56 bits, never 0 for one that lived.
    pub incarnation: u64,
    /// The state.
    pub state: State,
}

impl Life {
    /// Packs both into the record's word.
    #[inline]
    pub fn pack(self) -> u64 {
        (self.incarnation << 8) | self.state as u64
    }

    /// Unpacks a word that any process may have written; an unknown state reads as dead.
    #[inline]
    pub fn unpack(word: u64) -> Self {
        let state = match word & 0xff {
            0 => State::Free,
            1 => State::Joining,
            2 => State::Active,
            _ => State::Dead,
        };
        Self { incarnation: word >> 8, state }
    }

    /// Whether this is a living owner of that incarnation.
    #[inline]
    pub fn is_active(self, incarnation: u64) -> bool {
        self.state == State::Active && self.incarnation == incarnation
    }
}

/// Whether `record` still shows the life that was seen before a copy.
///
/// # Ordering
/// The fence keeps the copy's loads before the second look. The writer of the record changes it (release) before it
/// touches the owner's memory, so a copy that saw any of the new bytes is followed by a changed record (P5).
#[inline]
pub fn unchanged(record: &ReadWord, seen: u64) -> bool {
    acquire_fence();
    record.peek() == seen
}
