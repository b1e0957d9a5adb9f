//! Positions of a one-way ring of [`Slot`]s.
//!
//! A position counts slots since the start and never wraps; the slot's index is the position masked. The producer
//! learns how far the consumer is from a word that the consumer writes, and looks at it only when, by what it last
//! saw, the ring is full. Where the slots are is the caller's business: both ends take them through [`Slots`].

use crate::slot::{Message, ReadSlot, Slot};
use crate::sync::{ReadWord, Word};

/// Where the slots of a ring are that is read. `capacity` is a power of two.
pub trait ReadSlots {
    /// The slot of `position`; implementations mask it.
    fn read_slot(&self, position: u64) -> &ReadSlot;
    /// The number of slots.
    fn capacity(&self) -> u64;
}

/// Where the slots of a ring are that is written.
pub trait Slots: ReadSlots {
    /// The slot of `position`; implementations mask it.
    fn slot(&self, position: u64) -> &Slot;
}

impl ReadSlots for [Slot] {
    #[inline]
    fn read_slot(&self, position: u64) -> &ReadSlot {
        self.slot(position)
    }

    fn capacity(&self) -> u64 {
        self.len() as u64
    }
}

impl Slots for [Slot] {
    #[inline]
    fn slot(&self, position: u64) -> &Slot {
        let mask = self.len() - 1;
        // The mask keeps the low bits, so the cut to usize loses nothing that counts.
        #[allow(clippy::cast_possible_truncation)]
        &self[(position as usize) & mask]
    }
}

/// The consumer's read position makes no sense: it is ahead of what was written, or went backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadPosition {
    /// The position found in shared memory.
    pub found: u64,
    /// The oldest position that it could be.
    pub low: u64,
    /// The newest position that it could be.
    pub high: u64,
}

/// How many slots ahead of its writes a producer asks for the line: a transfer takes as long as a few short messages.
const AHEAD: u64 = 4;

/// The producer's end.
#[derive(Debug)]
pub struct Producer {
    write: u64,
    read_seen: u64,
    capacity: u64,
}

impl Producer {
    /// A producer for an empty ring of `capacity` slots.
    pub fn new(capacity: u64) -> Self {
        Self { write: 0, read_seen: 0, capacity }
    }

    /// Slots written since the start.
    #[inline]
    pub fn written(&self) -> u64 {
        self.write
    }

    /// The read position that was seen last.
    #[inline]
    pub fn read_seen(&self) -> u64 {
        self.read_seen
    }

    /// Whether a slot is free by what is known without looking.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.write - self.read_seen < self.capacity
    }

    /// Free slots by what is known without looking.
    #[inline]
    pub fn room(&self) -> u64 {
        self.capacity - (self.write - self.read_seen)
    }

    /// Looks at the consumer's read position.
    ///
    /// # Ordering
    /// Acquire. Pairs with the release in [`Consumer::release`]: the consumer's loads of a slot are over before we
    /// write the slot again (P2).
    ///
    /// # Errors
    /// [`BadPosition`] when the word holds what no honest consumer writes; nothing is changed then.
    #[inline]
    pub fn refresh(&mut self, read: &ReadWord) -> Result<(), BadPosition> {
        let found = read.get();
        if found < self.read_seen || found > self.write {
            return Err(BadPosition { found, low: self.read_seen, high: self.write });
        }
        self.read_seen = found;
        Ok(())
    }

    /// The next slot, for payload words, which [`Producer::publish`] then publishes. The caller has seen
    /// [`Producer::has_room`].
    #[inline(always)] // on the way of a short message
    pub fn begin<'s>(&self, slots: &'s (impl Slots + ?Sized)) -> &'s Slot {
        debug_assert!(self.has_room());
        slots.slot(self.write + AHEAD).prepare();
        slots.slot(self.write)
    }

    /// Publishes the slot of [`Producer::begin`] with its word 0.
    #[inline(always)] // on the way of a short message
    pub fn publish(&mut self, slot: &Slot, head: u64) {
        slot.announce(self.write, head);
        self.write += 1;
    }

    /// Writes the next slot. The caller has seen [`Producer::has_room`].
    #[inline]
    pub fn push(&mut self, slots: &(impl Slots + ?Sized), message: &Message, count: usize) {
        debug_assert!(self.has_room());
        slots.slot(self.write + AHEAD).prepare();
        slots.slot(self.write).publish(self.write, message, count);
        self.write += 1;
    }
}

/// The consumer's end.
#[derive(Debug, Default)]
pub struct Consumer {
    read: u64,
    released: u64,
}

impl Consumer {
    /// A consumer at the start of a ring.
    pub fn new() -> Self {
        Self::default()
    }

    /// Slots consumed since the start.
    #[inline]
    pub fn read(&self) -> u64 {
        self.read
    }

    /// Slots given back since the start.
    #[inline]
    pub fn released(&self) -> u64 {
        self.released
    }

    /// The slot to be looked at next.
    #[inline]
    pub fn next<'s>(&self, slots: &'s (impl ReadSlots + ?Sized)) -> &'s ReadSlot {
        slots.read_slot(self.read)
    }

    /// The next message, if it has arrived. It stays in its slot until [`Consumer::advance`] and `release`.
    #[inline]
    pub fn peek(&self, slots: &(impl ReadSlots + ?Sized)) -> Option<Message> {
        slots.read_slot(self.read).take(self.read)
    }

    /// Counts the message as consumed; its slot is given back with the next [`Consumer::release`].
    #[inline]
    pub fn advance(&mut self) {
        self.read += 1;
    }

    /// Asks for the line of a slot some way ahead, for a receiver that takes several messages in a row.
    #[inline(always)] // one instruction
    pub fn expect(&self, slots: &(impl ReadSlots + ?Sized), ahead: u64) {
        slots.read_slot(self.read + ahead).expect();
    }

    /// Whether slots were consumed that the producer cannot know of yet.
    #[inline]
    pub fn owes(&self) -> bool {
        self.read != self.released
    }

    /// Gives all consumed slots back.
    ///
    /// # Ordering
    /// Release on the read position. Pairs with the acquire in [`Producer::refresh`] (P2).
    #[inline]
    pub fn release(&mut self, read: &Word) {
        read.set(self.read);
        self.released = self.read;
    }

    /// Gives back the slot under the consumer too, which it has finished with but not advanced over yet. The
    /// [`Consumer::advance`] that follows catches up.
    #[inline]
    pub fn release_through(&mut self, read: &Word) {
        read.set(self.read + 1);
        self.released = self.read + 1;
    }
}
