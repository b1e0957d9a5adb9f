//! One cache line that carries a message together with the flag that says it is there.
//!
//! Word 0 holds the stamp in its low 32 bits; the other words are payload. The producer writes the payload
//! first and the stamp last; the consumer never writes the line at all, so an unanswered message costs one line
//! transfer. A slot that was never written holds stamp 0, and the stamp of position `p` is `p + 1` in 32 bits, so
//! the stamp left by the lap before can never be taken for the one awaited.

use crate::LINE_WORDS;
use crate::hint;
use crate::sync::{AtomicU64, Ordering};
use std::ops::Deref;

/// The message as both sides see it: word 0's upper half, and seven words of payload.
pub type Message = [u64; LINE_WORDS];

/// The part of word 0 that belongs to the ring.
pub const STAMP_MASK: u64 = 0xffff_ffff;

/// A slot of a ring as the consumer has it: there is no way to store to it.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ReadSlot {
    words: [AtomicU64; LINE_WORDS],
}

/// A slot of a ring as the producer has it; see the module's description. It reads as a [`ReadSlot`].
#[derive(Debug)]
#[repr(transparent)]
pub struct Slot(ReadSlot);

impl Deref for Slot {
    type Target = ReadSlot;

    #[inline(always)] // it is the same slot
    fn deref(&self) -> &ReadSlot {
        &self.0
    }
}

impl Slot {
    /// An empty slot on the heap.
    pub fn new() -> Self {
        Self(ReadSlot { words: std::array::from_fn(|_| AtomicU64::new(0)) })
    }

    /// The stamp that the message at `position` carries.
    #[inline]
    pub fn stamp(position: u64) -> u64 {
        position.wrapping_add(1) & STAMP_MASK
    }

    /// Writes `count` words of `message` and then its stamp.
    ///
    /// # Ordering
    /// Release on word 0. Pairs with the acquire in [`ReadSlot::take`], which then sees the words 1 to `count - 1`
    /// (P1). The payload stores may be relaxed because word 0 publishes them.
    #[inline]
    pub fn publish(&self, position: u64, message: &Message, count: usize) {
        for (i, (word, value)) in self.0.words.iter().zip(message).enumerate().skip(1) {
            if i >= count {
                break;
            }
            word.store(*value, Ordering::Relaxed);
        }
        self.announce(position, message[0]);
    }

    /// Stores payload word `i`; relaxed, because [`Slot::announce`] publishes it.
    #[inline]
    pub fn put(&self, i: usize, word: u64) {
        self.0.words[i & (LINE_WORDS - 1)].store(word, Ordering::Relaxed);
    }

    /// Publishes what [`Slot::put`] stored, with its word 0.
    ///
    /// # Ordering
    /// As [`Slot::publish`] (P1).
    #[inline]
    pub fn announce(&self, position: u64, head: u64) {
        self.0.words[0].store((head & !STAMP_MASK) | Self::stamp(position), Ordering::Release);
    }

    /// Asks for the line to write, ahead of the writes; see [`hint::prepare`].
    #[inline(always)] // one instruction
    pub fn prepare(&self) {
        hint::prepare((&raw const self.0.words).cast());
    }

    /// Forgets whatever is in the slot; for the producer, before the ring is offered to a new consumer.
    pub fn clear(&self) {
        for word in &self.0.words {
            word.store(0, Ordering::Relaxed);
        }
    }
}

impl ReadSlot {
    /// Asks for the line to read, ahead of the reads. A hint, as [`Slot::prepare`].
    #[inline(always)] // one instruction
    pub fn expect(&self) {
        hint::expect((&raw const self.words).cast());
    }

    /// Word 0 if the message at `position` has arrived.
    ///
    /// # Ordering
    /// Acquire on word 0. Pairs with the release in [`Slot::publish`] (P1).
    #[inline]
    pub fn arrived(&self, position: u64) -> Option<u64> {
        let head = self.words[0].load(Ordering::Acquire);
        if head & STAMP_MASK == Slot::stamp(position) { Some(head) } else { None }
    }

    /// Payload word `i`, after [`ReadSlot::arrived`] gave `Some`; relaxed, because that call acquired it (P1).
    #[inline]
    pub fn word(&self, i: usize) -> u64 {
        self.words[i & (LINE_WORDS - 1)].load(Ordering::Relaxed)
    }

    /// The whole message, after [`ReadSlot::arrived`] gave its `head`.
    #[inline]
    pub fn message(&self, head: u64) -> Message {
        let mut message = [head; LINE_WORDS];
        for (i, word) in message.iter_mut().enumerate().skip(1) {
            *word = self.word(i);
        }
        message
    }

    /// The whole message at `position`, if it has arrived.
    #[inline]
    pub fn take(&self, position: u64) -> Option<Message> {
        self.arrived(position).map(|head| self.message(head))
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::new()
    }
}
