//! The layout of a set, and checked views of it.
//!
//! ```text
//! 0      time of the last SETVAL or SETALL; number of cells that were ever taken; time of the last operation
//! 64     semaphores, a line each: a gate with near sleepers
//! then   undo cells, 16 bytes each: party (0: free), then semaphore and adjustment
//!        waiters, 16 bytes each: party (0: free), then 1 + semaphore * 2 + kind
//!        slots for changes of several words: a line, then 24 bytes for each entry (isthmus_lockfree::mcas); one of them is
//!        the host service's, and the last ones have room for all semaphores and cells
//! ```
//! Zeroed memory is a set whose values are 0.

use isthmus_lockfree::LINE_BYTES;
use isthmus_lockfree::mcas::{Entry, Memory, Slot};
use isthmus_lockfree::sync::Word;
use isthmus_region::mapping::Section;
use rustix::io::Errno;

use crate::Result;

const LINE: u64 = LINE_BYTES as u64;
const CHANGED: u64 = 0;
const HIGH: u64 = 8;
/// Offset of the time of the last operation, in seconds since 1970.
pub const USED: u64 = 16;
const SEMAPHORES: u64 = LINE;
const CELL: u64 = 16;
const WAITER: u64 = 16;
const WAITERS: u64 = 256;
const ENTRY: u64 = 24;
/// Slots for small changes, and the entries of each.
const SMALL: u64 = 32;
pub(super) const SMALL_ENTRIES: u64 = 16;
const SMALL_BYTES: u64 = LINE + SMALL_ENTRIES * ENTRY;
/// The one of the host service, after those.
const SERVICE: u64 = SMALL;
/// Slots for large ones, after that.
const WIDE: std::ops::Range<u64> = SERVICE + 1..SERVICE + 3;

/// Looks at a mark before its change is called off: some microseconds of a small one, some milliseconds of a wide one.
const PATIENCE: u32 = 200;
const WIDE_PATIENCE: u32 = 500_000;
const WIDE_PATIENCE_EACH: u32 = 50;

/// Where the parts of a set with so many semaphores are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) semaphores: u32,
    pub(super) cells: u32,
    first_cell: u64,
    first_waiter: u64,
    first_small: u64,
    first_wide: u64,
    wide_entries: u64,
    wide_bytes: u64,
}

impl Layout {
    pub(super) fn new(semaphores: u32) -> Self {
        let cells = (768 + 32 * semaphores).min(1 << 15);
        let first_cell = SEMAPHORES + u64::from(semaphores) * LINE;
        let first_waiter = first_cell + u64::from(cells) * CELL;
        let first_small = first_waiter + WAITERS * WAITER;
        let first_wide = first_small + WIDE.start * SMALL_BYTES;
        let wide_entries = u64::from(semaphores) + u64::from(cells);
        let wide_bytes = LINE + (wide_entries * ENTRY).next_multiple_of(LINE);
        Self {
            semaphores,
            cells,
            first_cell,
            first_waiter,
            first_small,
            first_wide,
            wide_entries,
            wide_bytes,
        }
    }

    /// Bytes of the whole set.
    pub(super) fn bytes(&self) -> u64 {
        self.first_wide + (WIDE.end - WIDE.start) * self.wide_bytes
    }

    /// The place of a semaphore's word.
    #[inline]
    pub(super) fn semaphore(&self, num: u32) -> u64 {
        SEMAPHORES + u64::from(num) * LINE
    }

    /// The place of a cell's word.
    #[inline]
    pub(super) fn cell(&self, index: u32) -> u64 {
        self.first_cell + u64::from(index) * CELL + 8
    }

    /// The slots that have room for so many entries.
    pub(super) fn slots(&self, entries: usize) -> std::ops::Range<u64> {
        if entries as u64 <= SMALL_ENTRIES { 0..SMALL } else { WIDE }
    }

    /// The slot that the host service alone uses, for small changes.
    pub(super) fn service_slot(&self) -> u64 {
        SERVICE
    }
}

/// A set's memory.
#[derive(Debug)]
pub(super) struct Space {
    section: Section,
    pub(super) layout: Layout,
    /// Whether it waits for wide changes no longer than for small ones, as the host service does: if it calls one off, that is
    /// tried again.
    is_impatient: bool,
}

impl Space {
    /// # Errors
    /// `EINVAL` if the section is too small for so many semaphores.
    pub(super) fn new(section: &Section, semaphores: u64) -> Result<Self> {
        let count = u32::try_from(semaphores).ok().filter(|n| (1..=super::MOST_OF_SET).contains(n));
        let layout = Layout::new(count.ok_or(Errno::INVAL)?);
        let section = section.part("set", 0, layout.bytes()).map_err(|_| Errno::INVAL)?;
        // The lines are whole only if the first one is.
        section.line("set", 0).map_err(|_| Errno::INVAL)?;
        Ok(Self { section, layout, is_impatient: false })
    }

    /// The same for a caller that waits for nobody.
    pub(super) fn impatient(self) -> Self {
        Self { is_impatient: true, ..self }
    }

    pub(super) fn section(&self) -> &Section {
        &self.section
    }

    #[inline]
    fn at(&self, offset: u64) -> Result<&Word> {
        self.section.word("set", offset).map_err(|_| Errno::IO)
    }

    /// The word of semaphore `num`.
    #[inline]
    pub(super) fn semaphore(&self, num: u32) -> Result<&Word> {
        if num < self.layout.semaphores { self.at(self.layout.semaphore(num)) } else { Err(Errno::IO) }
    }

    /// The time of the last operation.
    #[inline]
    pub(super) fn used(&self) -> Result<&Word> {
        self.at(USED)
    }

    /// The time of the last change by semctl.
    pub(super) fn changed(&self) -> Result<&Word> {
        self.at(CHANGED)
    }

    /// How many cells from the first one on may be taken: no more than there are.
    pub(super) fn high(&self) -> u32 {
        let high = self.at(HIGH).map_or(0, |w| w.get());
        u32::try_from(high).unwrap_or(u32::MAX).min(self.layout.cells)
    }

    /// Cell `index` may be taken.
    pub(super) fn raise(&self, index: u32) -> Result<()> {
        let word = self.at(HIGH)?;
        let mut seen = word.get();
        while seen <= u64::from(index) {
            match word.replace(seen, u64::from(index) + 1) {
                Ok(()) => break,
                Err(other) => seen = other,
            }
        }
        Ok(())
    }

    /// The party of a cell.
    pub(super) fn party(&self, index: u32) -> Result<&Word> {
        if index < self.layout.cells { self.at(self.layout.cell(index) - 8) } else { Err(Errno::IO) }
    }

    /// Party and place of a waiter.
    pub(super) fn waiter(&self, index: u64) -> Result<(&Word, &Word)> {
        let at = self.layout.first_waiter + index % WAITERS * WAITER;
        Ok((self.at(at)?, self.at(at + 8)?))
    }

    pub(super) fn waiters(&self) -> u64 {
        WAITERS
    }

    /// Where a slot is, and how many entries it has.
    #[inline]
    fn slot_at(&self, slot: u64) -> Option<(u64, u64)> {
        match slot {
            0..=SERVICE => Some((self.layout.first_small + slot * SMALL_BYTES, SMALL_ENTRIES)),
            _ if WIDE.contains(&slot) => {
                let at = self.layout.first_wide + (slot - WIDE.start) * self.layout.wide_bytes;
                Some((at, self.layout.wide_entries))
            }
            _ => None,
        }
    }
}

impl Memory for Space {
    #[inline]
    fn word(&self, place: u64) -> Option<&Word> {
        let layout = &self.layout;
        let is_semaphore = (SEMAPHORES..layout.first_cell).contains(&place) && place.is_multiple_of(LINE);
        let is_cell = (layout.first_cell..layout.first_waiter).contains(&place) && place % CELL == 8;
        if is_semaphore || is_cell { self.at(place).ok() } else { None }
    }

    #[inline]
    fn slot(&self, slot: u64) -> Option<Slot<'_>> {
        let (at, _) = self.slot_at(slot)?;
        let [owner, state, count] = self.section.words("set", at).ok()?;
        Some(Slot { owner, state, count })
    }

    #[inline]
    fn entry(&self, slot: u64, index: u64) -> Option<Entry<'_>> {
        let (at, entries) = self.slot_at(slot)?;
        if index >= entries {
            return None;
        }
        let [place, old, new] = self.section.words("set", at + LINE + index * ENTRY).ok()?;
        Some(Entry { place, old, new })
    }

    fn patience(&self, slot: u64) -> u32 {
        match slot {
            _ if self.is_impatient => PATIENCE,
            0..=SERVICE => PATIENCE,
            _ => WIDE_PATIENCE + WIDE_PATIENCE_EACH * self.layout.semaphores,
        }
    }

    #[cfg(feature = "fault")]
    fn step(&self, step: isthmus_lockfree::mcas::Step) {
        super::fault::step(super::fault::Step::Words(step));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_begin_at_lines() {
        for n in [1, 2, 17, 500, super::super::MOST_OF_SET] {
            let layout = Layout::new(n);
            for at in [
                layout.first_cell,
                layout.first_waiter,
                layout.first_small,
                layout.first_wide,
                layout.wide_bytes,
            ] {
                assert!(at.is_multiple_of(LINE), "{layout:?}");
            }
            assert_eq!(layout.semaphore(n), layout.first_cell);
            assert_eq!(layout.cell(layout.cells) - 8, layout.first_waiter);
            assert!(layout.bytes() < 8 << 20, "{layout:?}");
        }
        assert!(SMALL_BYTES.is_multiple_of(LINE));
        assert!(Layout::new(1).bytes() <= 72 << 10, "{}", Layout::new(1).bytes());
    }
}
