//! The layout of the shared machinery: a mark, the lock table, and a slot for each committing thread.
//!
//! ```text
//! 0      mark of the shape, written once (exchanged against 0)
//! 64     8 words: a bit for each slot that changes single words (set and cleared by the slot's owner and heirs)
//! 128    locks: a line each, whose first word is 0 or a token (isthmus_lockfree::commit)
//! then   slots, each: a line with owner (a party) and state; a line with the flight; the log
//! ```
//! A log is: counts of locks and of writes; the index of each lock; for each write a word of node and segment, one of the
//! offset, one of the length in bytes, and the bytes in whole words. Only the slot's owner writes it.
//!
//! Zeroed memory is a machinery in which nothing ever happened.

use isthmus_lockfree::LINE_BYTES;
use isthmus_lockfree::sync::Word;
use isthmus_region::Section;
use isthmus_region::mapping::LineRef;

use super::error::{Error, Result};

const LINE: u64 = LINE_BYTES as u64;
const FLYERS: u64 = LINE;
const LOCKS: u64 = 2 * LINE;
/// Words of the set of slots that change single words.
const FLYER_WORDS: u64 = 8;
const SLOTS_MAX: u64 = 64 * FLYER_WORDS;
/// Offsets in a slot.
const OWNER: u64 = 0;
const STATE: u64 = 8;
const FLIGHT: u64 = LINE;
const LOG: u64 = 2 * LINE;

/// The size of a machinery. All its users must ask for the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Threads that can commit at the same time, over all processes; at most 512.
    pub slots: u32,
    /// Locks; a power of two, at most 2^20. Each takes 64 bytes.
    pub locks: u32,
    /// Bytes of log for each slot: what bounds the size of one minitransaction. A multiple of 64, at most 2^20. It takes 8
    /// bytes, 8 more for each different lock (each 64 bytes touched, at most), and for each write 24 and its length in whole
    /// words.
    pub log_bytes: u32,
}

impl Default for Shape {
    /// 64 slots, 2,048 locks and 4 KiB of log: 393 KiB.
    fn default() -> Self {
        Self { slots: 64, locks: 2048, log_bytes: 4096 }
    }
}

impl Shape {
    /// Bytes that the machinery takes: the least length of the section for [`super::Space::open`].
    pub fn bytes(self) -> u64 {
        LOCKS + u64::from(self.locks) * LINE + u64::from(self.slots) * self.slot_bytes()
    }

    fn slot_bytes(self) -> u64 {
        LOG + u64::from(self.log_bytes)
    }

    /// Whether a machinery of this shape is possible.
    pub fn is_sound(self) -> bool {
        (1..=SLOTS_MAX).contains(&self.slots.into())
            && self.locks.is_power_of_two()
            && self.locks <= 1 << 20
            && u64::from(self.log_bytes).is_multiple_of(LINE)
            && (LINE..=1 << 20).contains(&self.log_bytes.into())
    }

    /// The machinery's first word: a layout version and the shape's numbers.
    fn mark(self) -> u64 {
        (1 << 60)
            | (u64::from(self.slots) << 48)
            | (u64::from(self.locks.trailing_zeros()) << 40)
            | u64::from(self.log_bytes)
    }
}

/// Checked views of a machinery.
#[derive(Debug)]
pub(crate) struct Machinery {
    section: Section,
    shape: Shape,
    /// Where the slots begin.
    slots: u64,
}

impl Machinery {
    pub(crate) fn open(section: &Section, shape: Shape) -> Result<Self> {
        if !shape.is_sound() {
            let Shape { slots, locks, log_bytes } = shape;
            return Err(Error::BadShape { slots, locks, log_bytes });
        }
        if section.len() < shape.bytes() {
            return Err(Error::TooSmall { needed: shape.bytes(), found: section.len() });
        }
        // Fails unless the section begins at a line's address: all other lines are found from there.
        section.line("machinery", 0)?;
        let (mark, expected) = (section.word("machinery", 0)?, shape.mark());
        match mark.replace(0, expected) {
            Ok(()) => {}
            Err(found) if found == expected => {}
            Err(found) => return Err(Error::OtherShape { found, expected }),
        }
        let section = section.part("machinery", 0, shape.bytes())?;
        Ok(Self { section, shape, slots: LOCKS + u64::from(shape.locks) * LINE })
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn slots(&self) -> u64 {
        u64::from(self.shape.slots)
    }

    /// Words of a log.
    pub(crate) fn log_words(&self) -> u64 {
        u64::from(self.shape.log_bytes) / 8
    }

    /// Index of the lock of line `line` (64 bytes) of a segment.
    #[inline]
    pub(crate) fn lock_of(&self, name: u64, line: u64) -> u64 {
        // Neighbouring lines of a segment get different locks; those of different segments begin far from each other.
        let from = (name ^ (name >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        from.wrapping_add(line) & u64::from(self.shape.locks - 1)
    }

    /// A lock, whose index is below [`Shape::locks`].
    #[inline]
    pub(crate) fn lock(&self, index: u64) -> Result<&Word> {
        if index >= u64::from(self.shape.locks) {
            return Err(Error::Corrupt { what: "the index of a lock", value: index });
        }
        Ok(self.section.word("lock", LOCKS + index * LINE)?)
    }

    /// The line of a lock, for callers that keep it.
    pub(crate) fn lock_line(&self, index: u64) -> Result<LineRef> {
        self.lock(index)?;
        Ok(self.section.line("lock", LOCKS + index * LINE)?)
    }

    #[inline]
    fn slot(&self, slot: u64) -> Result<u64> {
        if slot >= self.slots() {
            return Err(Error::Corrupt { what: "the index of a slot", value: slot });
        }
        Ok(self.slots + slot * self.shape.slot_bytes())
    }

    #[inline]
    pub(crate) fn owner(&self, slot: u64) -> Result<&Word> {
        Ok(self.section.word("owner", self.slot(slot)? + OWNER)?)
    }

    #[inline]
    pub(crate) fn state(&self, slot: u64) -> Result<&Word> {
        Ok(self.section.word("state", self.slot(slot)? + STATE)?)
    }

    /// The line of a slot's flight word, for its owner.
    pub(crate) fn flight_line(&self, slot: u64) -> Result<LineRef> {
        Ok(self.section.line("flight", self.slot(slot)? + FLIGHT)?)
    }

    #[inline]
    pub(crate) fn flight(&self, slot: u64) -> Result<&Word> {
        Ok(self.section.word("flight", self.slot(slot)? + FLIGHT)?)
    }

    /// Word `index` of a slot's log.
    #[inline]
    pub(crate) fn log(&self, slot: u64, index: u64) -> Result<&Word> {
        if index >= self.log_words() {
            return Err(Error::Corrupt { what: "a length in a log", value: index });
        }
        Ok(self.section.word("log", self.slot(slot)? + LOG + index * 8)?)
    }

    /// The word with the slot's bit in the set of slots that change single words, and the bit.
    pub(crate) fn flyer(&self, slot: u64) -> Result<(&Word, u64)> {
        self.slot(slot)?;
        Ok((self.section.word("flyers", FLYERS + slot / 64 * 8)?, 1 << (slot % 64)))
    }

    /// The slots that change single words, as sets of 64, each with the number of its first slot.
    pub(crate) fn flyers(&self) -> impl Iterator<Item = Result<(u64, u64)>> {
        (0..self.slots().div_ceil(64)).map(|i| {
            let set = self.section.word("flyers", FLYERS + i * 8)?.get();
            let there = self.slots() - i * 64;
            Ok((i * 64, if there < 64 { set & ((1 << there) - 1) } else { set }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_bounds() {
        let good = Shape::default();
        assert!(good.is_sound());
        assert_eq!(good.bytes(), 128 + 2048 * 64 + 64 * (128 + 4096));
        for bad in [
            Shape { slots: 0, ..good },
            Shape { slots: 513, ..good },
            Shape { locks: 0, ..good },
            Shape { locks: 3, ..good },
            Shape { locks: 1 << 21, ..good },
            Shape { log_bytes: 0, ..good },
            Shape { log_bytes: 100, ..good },
            Shape { log_bytes: 2 << 20, ..good },
        ] {
            assert!(!bad.is_sound(), "{bad:?}");
        }
    }
}
