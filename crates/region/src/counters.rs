//! What went through the region: counters of a process, and sums of them.
//!
//! They are the evidence for every statement about a path: a benchmark that claims the region shows how many bytes
//! these say went through it.

use crate::error::Result;
use crate::format::{FIELDS, Field, counters, lane};
use crate::mapping::{Access, LineRef, Section};
use crate::sync::Word;

/// Words that a set of counters takes.
pub const WORDS: usize = 40;
/// Lines that a set of counters takes.
pub const LINES: usize = 5;

/// One counter, named for its field in [`counters`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs)] // each is described at its field
pub enum Counter {
    TxMessages = 0,
    TxBytes,
    RxMessages,
    RxBytes,
    Inline,
    Eager,
    Rendezvous,
    Chunks,
    Rma,
    RmaBytes,
    Unexpected,
    Stalls,
    LanesOpened,
    LanesClosed,
    Announced,
    Discarded,
    Sleeps,
    Wakeups,
    Direct,
    DirectBytes,
    Attached,
    AttachedBytes,
    CopyNs,
    CopyBytes,
    AttachNs,
    AttachBytes,
    AttachRefused,
    Granted,
    GrantedBytes,
    GrantNs,
    GrantBytes,
    GrantsStale,
    Resident,
    ResidentBytes,
    ResideNs,
    ResideBytes,
    Deep,
}

/// A view of a set of counters in the region.
#[derive(Debug, Clone)]
pub struct Counters {
    lines: [LineRef; LINES],
}

impl Counters {
    /// The counters at `offset` of `section`: an area's start, or a directory's retired sums.
    ///
    /// # Errors
    /// [`crate::Error::OutOfBounds`].
    pub fn at(section: &Section, offset: u64) -> Result<Self> {
        let line = |i: u64| section.line("counters", offset + i * 64);
        Ok(Self { lines: [line(0)?, line(1)?, line(2)?, line(3)?, line(4)?] })
    }

    #[inline]
    fn word(&self, index: usize) -> &Word {
        &self.lines[(index / 8) % LINES].words[index % 8]
    }

    /// Adds to one counter; only its one writer may.
    #[inline]
    pub fn add(&self, counter: Counter, by: u64) {
        self.word(counter as usize).bump(by);
    }

    /// Adds to counter number `index` from any thread of the process.
    pub fn add_shared(&self, index: usize, by: u64) {
        self.word(index).add(by);
    }

    /// All values, each read once.
    pub fn read(&self) -> Totals {
        Totals { words: std::array::from_fn(|i| self.word(i).peek()) }
    }

    /// Adds `totals` to these counters; only their one writer may.
    pub fn absorb(&self, totals: &Totals) {
        for (i, value) in totals.words.iter().enumerate() {
            self.word(i).bump(*value);
        }
    }
}

/// Values of a set of counters, or a sum of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    words: [u64; WORDS],
}

impl Default for Totals {
    fn default() -> Self {
        Self { words: [0; WORDS] }
    }
}

impl Totals {
    /// The counters at `offset` of `section`, each read once.
    ///
    /// # Errors
    /// [`crate::Error::OutOfBounds`].
    pub fn read<A: Access>(section: &Section<A>, offset: u64) -> Result<Self> {
        let mut words = [0; WORDS];
        for (at, word) in (0..).zip(&mut words) {
            *word = section.read("counters", offset.saturating_add(at * 8))?.peek();
        }
        Ok(Self { words })
    }

    /// Values in the format's order, as they were read.
    pub fn from_words(words: [u64; WORDS]) -> Self {
        Self { words }
    }

    /// One value.
    pub fn get(&self, counter: Counter) -> u64 {
        self.words[counter as usize]
    }

    /// Adds another set, wrapping, since a member may have written anything into its own.
    pub fn add(&mut self, other: &Totals) {
        for (mine, theirs) in self.words.iter_mut().zip(other.words) {
            *mine = mine.wrapping_add(theirs);
        }
    }

    /// Raises each value to that of another set, where that is larger: for readers that come again and again, and meet
    /// counters of a process that is just being added to those of its peer.
    pub fn raise(&mut self, other: &Totals) {
        for (mine, theirs) in self.words.iter_mut().zip(other.words) {
            *mine = (*mine).max(theirs);
        }
    }

    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Totals) -> Totals {
        Totals { words: std::array::from_fn(|i| self.words[i].wrapping_sub(earlier.words[i])) }
    }

    /// Name and value of every counter, in the format's order; names in lower case.
    pub fn named(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        FIELDS
            .iter()
            .filter(|f| f.structure == "counters")
            .map(|f| (f.name.to_lowercase(), self.words[usize::try_from(f.offset / 8).unwrap_or(0)]))
    }
}

/// Counters of a lane.
pub const LANE_WORDS: usize = 8;

/// One counter of a lane, named for its field in [`lane`]: the second line of the descriptor, in the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs)] // each is described at its field
pub enum LaneCounter {
    Messages = 0,
    BytesSent,
    Chunks,
    Rma,
    RmaBytes,
    Stalls,
    Announced,
    Wakeups,
}

/// What an endpoint has sent to another one, through all lanes that it ever had to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaneTotals {
    words: [u64; LANE_WORDS],
}

impl LaneTotals {
    /// Values in the format's order, as they were read.
    pub fn from_words(words: [u64; LANE_WORDS]) -> Self {
        Self { words }
    }

    /// One value.
    pub fn get(&self, counter: LaneCounter) -> u64 {
        self.words[counter as usize]
    }

    /// Adds to one.
    #[inline]
    pub fn add(&mut self, counter: LaneCounter, by: u64) {
        self.words[counter as usize] += by;
    }

    /// Writes them to the second line of a lane's descriptor; only its sender may.
    pub fn write(&self, line: &LineRef) {
        for (word, value) in line.words.iter().zip(self.words) {
            word.put(value);
        }
    }

    /// Name and value of every counter, in the format's order; names in lower case.
    pub fn named(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        lane_fields().map(|f| f.name.to_lowercase()).zip(self.words)
    }
}

/// The fields that [`LaneTotals`] holds, in the format's order.
pub fn lane_fields() -> impl Iterator<Item = &'static Field> {
    FIELDS.iter().filter(|f| f.structure == "lane" && f.offset >= lane::MESSAGES)
}

const _: () = assert!(counters::BYTES == (WORDS * 8) as u64);
const _: () = assert!(lane::BYTES == lane::MESSAGES + (LANE_WORDS * 8) as u64);
const _: () = assert!(lane::WAKEUPS == lane::MESSAGES + LaneCounter::Wakeups as u64 * 8);
const _: () = assert!(counters::ATTACHED_BYTES == Counter::AttachedBytes as u64 * 8);
const _: () = assert!(counters::ATTACH_REFUSED == Counter::AttachRefused as u64 * 8);
const _: () = assert!(counters::ATTACH_BYTES == Counter::AttachBytes as u64 * 8);
const _: () = assert!(counters::WAKEUPS == Counter::Wakeups as u64 * 8);
const _: () = assert!(counters::RESIDE_BYTES == Counter::ResideBytes as u64 * 8);
const _: () = assert!(counters::DEEP == Counter::Deep as u64 * 8);
