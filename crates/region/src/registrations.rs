//! What a domain lets others reach without messages: a table in its process's area, written by that process alone.
//!
//! An entry is a range of the area with a key, what is allowed there, and a generation. An initiator that wants to use it copies
//! the entry, checks key, bounds and access against the copy, and looks at the entry's life again at each use: a
//! generation never comes back. The table's version tells when a copy of the whole is out of date.
//!
//! What lies in no area, but in the program's own memory, can be reached page by page where its process has granted these
//! ([`crate::grants`]) and keeps them: such an entry names a list in the area with a word for each page, as a page list of a message has it,
//! or 0 for one that is not granted. The process writes words while the entry is in force; the grant table says whether they still hold.

use std::sync::Arc;

use isthmus_lockfree::life::{Life, State, unchanged};

use crate::chain::{self, Chain, REGISTRATIONS};
use crate::error::{Error, Result};
use crate::format::{block, registrations};
use crate::grants::PAGE;
use crate::mapping::{LineRef, PeerSection, ReadOnly};
use crate::member::Member;

/// Reads are allowed.
pub const READ: u64 = 1;
/// Writes are allowed.
pub const WRITE: u64 = 2;
/// Atomic operations are allowed.
pub const ATOMIC: u64 = 4;
/// The range lies in granted pages.
pub const PAGES: u64 = 8;

/// Most bytes of a range in granted pages.
pub const MOST_PAGED: u64 = 256 << 20;

/// Most chunks of a table; a reader follows no more.
pub const MOST_CHUNKS: usize = 4096;

/// What an entry says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Key of the registration.
    pub key: u64,
    /// Offset in the section of its first byte; of its list of pages with [`PAGES`].
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// What is allowed: a sum of [`READ`], [`WRITE`] and [`ATOMIC`]; and [`PAGES`].
    pub access: u64,
    /// The address that stands for its first byte.
    pub base: u64,
    /// With [`PAGES`]: where in the first page its first byte is; else 0.
    pub skip: u64,
}

impl Range {
    /// How many pages a range of these bytes lies in.
    pub fn pages(skip: u64, len: u64) -> u64 {
        skip.saturating_add(len).div_ceil(PAGE)
    }

    /// Whether what it names lies in a section.
    fn lies_in(&self, section: &PeerSection) -> bool {
        if self.access & PAGES == 0 {
            return self.skip == 0 && section.holds("registration", self.offset, self.len).is_ok();
        }
        let list = Self::pages(self.skip, self.len) * 8;
        let is_one = self.skip < PAGE && self.len <= MOST_PAGED && self.offset.is_multiple_of(8);
        is_one && section.holds("list of pages", self.offset, list).is_ok()
    }
}

/// The writer's side.
#[derive(Debug)]
pub struct Table {
    member: Arc<Member>,
    at: u64,
    head: LineRef,
    entries: Chain,
    is_left: bool,
}

impl Table {
    /// An empty table.
    ///
    /// # Errors
    /// [`Error::Full`] when the region has no room; [`Error::Service`].
    pub fn create(member: &Arc<Member>) -> Result<Self> {
        let at = member.take(registrations::BYTES)?;
        member.section().zero("registrations", at, registrations::BYTES)?;
        let head = member.section().line("registrations", at)?;
        let entries = Chain::new(REGISTRATIONS, MOST_CHUNKS as u64);
        Ok(Self { member: Arc::clone(member), at, head, entries, is_left: false })
    }

    /// Leaves it where it is, as long as the attachment: its endpoint stays open, or is another process's.
    pub fn leave(mut self) {
        self.is_left = true;
    }

    /// Where it is, for an endpoint's block.
    pub fn offset(&self) -> u64 {
        self.at
    }

    fn entry(&self, number: u32) -> Result<LineRef> {
        self.member.section().line("registration", self.entries.at(number)?)
    }

    /// Publishes a range; gives its number.
    ///
    /// # Errors
    /// As [`Table::create`]; [`Error::Full`] also when there are more ranges than readers would look at.
    pub fn publish(&mut self, range: &Range) -> Result<u32> {
        let number = self.entries.take(&self.member, self.at + registrations::FIRST)?;
        let line = self.entry(number)?;
        let life = Life::unpack(line.words[0].peek());
        for (word, value) in line.words[1..].iter().zip([
            range.key,
            range.offset,
            range.len,
            range.access,
            range.base,
            range.skip,
        ]) {
            word.put(value);
        }
        line.words[0].set(Life { incarnation: life.incarnation + 1, state: State::Active }.pack());
        self.changed();
        Ok(number)
    }

    /// Takes a range back. A process that holds its owner ([`crate::holds`]) may still be at it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a number that was not given.
    pub fn withdraw(&mut self, number: u32) -> Result<()> {
        let line = self.entry(number)?;
        let life = Life::unpack(line.words[0].peek());
        line.words[0].set(Life { state: State::Free, ..life }.pack());
        // A reader that copies what the next range writes here, or what the program puts into the memory next, must see this first (P5).
        crate::sync::release_fence();
        self.changed();
        self.entries.give(number);
        Ok(())
    }

    fn changed(&self) {
        self.head.words[1].set(self.head.words[1].peek().wrapping_add(1));
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if !self.is_left {
            self.entries.give_back(&self.member);
            self.member.give(self.at, registrations::BYTES);
        }
    }
}

/// A published range, as it was read.
#[derive(Debug, Clone)]
pub struct Published {
    /// What the entry said.
    pub range: Range,
    life: u64,
    line: LineRef<ReadOnly>,
}

impl Published {
    /// Whether it is still what was read.
    #[inline]
    pub fn stands(&self) -> bool {
        self.line.words[0].get() == self.life
    }

    /// Whether it still was what was read when all of a copy had been made (P5).
    #[inline]
    pub fn stood(&self) -> bool {
        unchanged(&self.line.words[0], self.life)
    }
}

/// The reader's side of the table that an endpoint's block names.
#[derive(Debug)]
pub struct Reader {
    section: PeerSection,
    head: LineRef<ReadOnly>,
}

impl Reader {
    /// The table of the endpoint whose block is at `block` of `section`; none if it has none.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn open(section: &PeerSection, block: u64) -> Result<Option<Self>> {
        let at = block
            .checked_add(block::REGISTRATIONS)
            .ok_or(Error::Invalid { what: "block", value: block })
            .and_then(|at| section.word("block", at))?
            .get();
        if at == 0 {
            return Ok(None);
        }
        Ok(Some(Self { section: section.clone(), head: section.line("registrations", at)? }))
    }

    /// The section that ranges lie in.
    pub fn section(&self) -> &PeerSection {
        &self.section
    }

    /// The table's version.
    #[inline]
    pub fn version(&self) -> u64 {
        self.head.words[1].get()
    }

    /// All ranges that are published, and lie in the section. What cannot be right is left out.
    pub fn ranges(&self) -> Vec<Published> {
        let first = self.head.words[0].get();
        let mut found = Vec::new();
        for (_, at) in chain::entries(&self.section, REGISTRATIONS, MOST_CHUNKS as u64, first) {
            let Ok(line) = self.section.line("registration", at) else { continue };
            let life = line.words[0].get();
            let [key, offset, len, access, base, skip] = std::array::from_fn(|i| line.words[1 + i].peek());
            let entry = Published { range: Range { key, offset, len, access, base, skip }, life, line };
            let lies = entry.range.lies_in(&self.section);
            if Life::unpack(life).state == State::Active && entry.stood() && lies {
                found.push(entry);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Place;

    fn range(key: u64, offset: u64) -> Range {
        Range { key, offset, len: 100, access: READ | WRITE, base: key * 2, skip: 0 }
    }

    #[test]
    fn ranges_come_and_go_over_chunks() {
        let Place { member, .. } = Place::new();
        let mut table = Table::create(&member).unwrap();
        let block = member.take(block::BYTES).unwrap();
        member.section().zero("block", block, block::BYTES).unwrap();
        assert!(Reader::open(&member.section().for_reading(), block).unwrap().is_none());
        member.section().word("block", block + block::REGISTRATIONS).unwrap().set(table.offset());
        let reader = Reader::open(&member.section().for_reading(), block).unwrap().unwrap();
        assert!(reader.ranges().is_empty());
        let numbers: Vec<u32> = (0..40).map(|key| table.publish(&range(key, 64 * key)).unwrap()).collect();
        let version = reader.version();
        let mut found = reader.ranges();
        found.sort_by_key(|p| p.range.key);
        assert_eq!(
            found.iter().map(|p| p.range).collect::<Vec<_>>(),
            (0..40).map(|k| range(k, 64 * k)).collect::<Vec<_>>()
        );
        assert!(found.iter().all(Published::stands));
        table.withdraw(numbers[7]).unwrap();
        assert!(!found[7].stands() && !found[7].stood() && found[8].stands());
        assert_ne!(reader.version(), version);
        // The same place again is another life.
        assert_eq!(table.publish(&range(99, 0)).unwrap(), numbers[7]);
        assert!(!found[7].stands());
        assert_eq!(reader.ranges().len(), 40);
    }

    #[test]
    fn what_cannot_be_right_is_left_out() {
        let Place { member, .. } = Place::new();
        let mut table = Table::create(&member).unwrap();
        let reader = Reader {
            section: member.section().for_reading(),
            head: member.section().for_reading().line("t", table.offset()).unwrap(),
        };
        table.publish(&Range { len: u64::MAX, ..range(1, 64) }).unwrap();
        table.publish(&Range { offset: member.section().len() - 99, ..range(2, 0) }).unwrap();
        let paged = Range { access: READ | PAGES, len: 2 * PAGE, skip: 8, ..range(4, 64) };
        assert_eq!(Range::pages(paged.skip, paged.len), 3);
        let end = member.section().len();
        for wrong in [
            Range { skip: PAGE, ..paged },
            Range { len: MOST_PAGED + 1, ..paged },
            Range { len: u64::MAX, ..paged },
            Range { offset: end - 16, ..paged },
            Range { offset: 68, ..paged },
            Range { skip: 8, ..range(5, 64) },
        ] {
            table.publish(&wrong).unwrap();
        }
        assert!(reader.ranges().is_empty());
        table.publish(&range(3, 64)).unwrap();
        assert_eq!(reader.ranges().iter().map(|p| p.range.key).collect::<Vec<_>>(), [3]);
        // A chain that runs in a circle is read once, and one that leads outside up to there.
        let chunk = reader.head.words[0].get();
        for next in [chunk, u64::MAX - 63] {
            member.section().word("t", chunk).unwrap().set(next);
            assert_eq!(reader.ranges().len(), 1);
        }
    }
}
