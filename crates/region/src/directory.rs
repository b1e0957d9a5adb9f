//! One peer's section: its directory, endpoint table, area table and activity words.
//!
//! The peer's local service is the writer of the first three ([`Writer`]); all members read ([`Directory`]).

use isthmus_lockfree::life::{Life, State};
use isthmus_lockfree::sync::{ReadWord, release_fence};

use crate::address::SystemId;
use crate::counters::Totals;
use crate::error::{Error, Result};
use crate::format::{DIRECTORY_MAGIC, activity, area, directory, endpoint};
use crate::grants::table_bytes;
use crate::mapping::{LineRef, PeerSection, ReadOnly, Section};
use crate::membership::Shape;

mod writer;

pub use writer::{AreaGrant, Writer};

/// Offset of the endpoint table.
const TABLES: u64 = 4096;

/// A peer's section as all members read it.
#[derive(Debug, Clone)]
pub struct Directory {
    section: PeerSection,
    shape: Shape,
    status: LineRef<ReadOnly>,
    endpoint_table: u64,
    area_table: u64,
    activity_table: u64,
}

/// One endpoint record, as it was at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointInfo {
    /// Incarnation and state.
    pub life: Life,
    /// Area of its process.
    pub area: u64,
    /// Offset of its block in the section.
    pub block: u64,
    /// Process id at its own system.
    pub pid: u64,
    /// Tells it from all others that its system ever had.
    pub birth: u64,
}

/// Where the tables lie in a section; the same arithmetic for all peers of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// Offset of the endpoint table.
    pub endpoints: u64,
    /// Offset of the area table.
    pub areas: u64,
    /// Offset of the activity table.
    pub activity: u64,
    /// Offset of the heap.
    pub heap: u64,
}

/// Where this version puts the tables of each section.
pub fn places(shape: &Shape) -> Places {
    let areas = TABLES + u64::from(shape.endpoints) * endpoint::BYTES;
    let activity = areas + u64::from(shape.endpoints) * area::BYTES;
    let heap = (activity + u64::from(shape.slots()) * activity::BYTES).next_multiple_of(4096);
    Places { endpoints: TABLES, areas, activity, heap }
}

/// The least bytes of a section: its tables and some heap.
pub fn least_section_bytes(shape: &Shape) -> u64 {
    (places(shape).heap + (256 << 10)).next_multiple_of(shape.section_align)
}

/// Whether a section of `section_bytes` can have its pool of pages there: aligned as sections are, behind the tables and the pool's
/// grant table, up to the section's end.
pub fn pages_fit(shape: &Shape, section_bytes: u64, pages: u64, pages_bytes: u64) -> bool {
    let is_aligned = [pages, pages_bytes].iter().all(|word| word.is_multiple_of(shape.section_align));
    let is_behind = heap_end(pages, pages_bytes).is_some_and(|end| end >= places(shape).heap);
    is_aligned && is_behind && pages.checked_add(pages_bytes) == Some(section_bytes)
}

/// Where the heap ends: before the grant table of the pool.
pub fn heap_end(pages: u64, pages_bytes: u64) -> Option<u64> {
    pages.checked_sub(table_bytes(pages_bytes))
}

impl Directory {
    /// Believes a section to hold the directory of `incarnation`, after checking it.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is not written yet or belongs to another life; [`Error::OutOfBounds`].
    pub fn open(section: &PeerSection, shape: &Shape, incarnation: u64) -> Result<Self> {
        let word = |offset| section.word("directory", offset).map(ReadWord::get);
        if word(directory::MAGIC)? != DIRECTORY_MAGIC {
            return Err(Error::Invalid { what: "directory magic", value: word(directory::MAGIC)? });
        }
        if word(directory::INCARNATION)? != incarnation {
            return Err(Error::Invalid {
                what: "directory incarnation",
                value: word(directory::INCARNATION)?,
            });
        }
        // The tables lie where the shape says; what the words claim is checked, not used.
        let expected = places(shape);
        for (offset, place) in [
            (directory::ENDPOINT_TABLE, expected.endpoints),
            (directory::AREA_TABLE, expected.areas),
            (directory::ACTIVITY_TABLE, expected.activity),
        ] {
            if word(offset)? != place {
                return Err(Error::Invalid { what: "directory table offset", value: word(offset)? });
            }
        }
        section.part("tables", 0, expected.heap)?;
        let (pages, pages_bytes) = (word(directory::PAGES)?, word(directory::PAGES_BYTES)?);
        if !pages_fit(shape, section.len(), pages, pages_bytes) {
            return Err(Error::Invalid { what: "offset of the pool of pages", value: pages });
        }
        Ok(Self {
            section: section.clone(),
            shape: *shape,
            status: section.line("directory", directory::GENERATION)?,
            endpoint_table: expected.endpoints,
            area_table: expected.areas,
            activity_table: expected.activity,
        })
    }

    /// The region's shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The section.
    pub fn section(&self) -> &PeerSection {
        &self.section
    }

    /// What its service calls the system.
    pub fn system(&self) -> SystemId {
        // One of the directory's lines, whose length was checked.
        SystemId([self.status.words[4].peek(), self.status.words[5].peek()])
    }

    /// Counts changes of the endpoint and area tables.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.status.words[0].get()
    }

    /// Endpoint slots that were ever used: those from this number on were not.
    #[inline]
    pub fn endpoints_high(&self) -> u32 {
        u32::try_from(self.status.words[2].get()).unwrap_or(u32::MAX).min(self.shape.endpoints)
    }

    /// Bytes of the heap that are granted.
    pub fn heap_used(&self) -> u64 {
        self.status.words[1].peek()
    }

    /// By how many vectors the peer's sleepers are rung, as its service says; 0 if by none.
    pub fn vectors(&self) -> u32 {
        said_vectors(&self.section)
    }

    /// The same of a section, without more of its directory; 0 also if it is not of this life.
    pub(crate) fn vectors_in(section: &PeerSection, incarnation: u64) -> u32 {
        let is_there = [(directory::MAGIC, DIRECTORY_MAGIC), (directory::INCARNATION, incarnation)]
            .into_iter()
            .all(|(offset, wanted)| section.word("directory", offset).is_ok_and(|word| word.get() == wanted));
        if is_there { said_vectors(section) } else { 0 }
    }

    fn endpoint_at(&self, slot: u32) -> Result<u64> {
        if slot >= self.shape.endpoints {
            return Err(Error::Invalid { what: "endpoint slot", value: slot.into() });
        }
        Ok(self.endpoint_table + u64::from(slot) * endpoint::BYTES)
    }

    /// The line that holds an endpoint's life, for readers that poll it.
    ///
    /// # Errors
    /// [`Error::Invalid`] beyond the table.
    pub fn endpoint_line(&self, slot: u32) -> Result<LineRef<ReadOnly>> {
        self.section.line("endpoint", self.endpoint_at(slot)?)
    }

    /// The word that counts deaths, anywhere in the region, of which the peer's service has heard.
    pub fn deaths(&self) -> &ReadWord {
        &self.status.words[3]
    }

    /// About how many processes have endpoints: each record is read once, also one that changes meanwhile, since a peer
    /// whose records never hold still shall not keep others here.
    pub fn processes(&self) -> usize {
        let high = self.endpoints_high();
        let mut areas: Vec<u64> = (0..high)
            .filter_map(|slot| self.endpoint_line(slot).ok())
            .filter(|line| Life::unpack(line.words[0].get()).state == State::Active)
            .map(|line| line.words[1].peek())
            .collect();
        areas.sort_unstable();
        areas.dedup();
        areas.len()
    }

    /// One endpoint record. The life is read first and again at the end, so the rest belongs to it.
    ///
    /// # Errors
    /// [`Error::Invalid`] beyond the table.
    pub fn endpoint(&self, slot: u32) -> Result<EndpointInfo> {
        let line = self.endpoint_line(slot)?;
        // A record that never holds still is mischief: its reader gives up.
        for _ in 0..1000 {
            let seen = line.words[0].get();
            let info = EndpointInfo {
                life: Life::unpack(seen),
                area: line.words[1].peek(),
                block: line.words[2].peek(),
                pid: line.words[3].peek(),
                birth: line.words[4].peek(),
            };
            if isthmus_lockfree::life::unchanged(&line.words[0], seen) {
                return Ok(info);
            }
        }
        Err(Error::Invalid { what: "endpoint record, which keeps changing", value: slot.into() })
    }

    /// The activity line of the receiver with global slot `receiver`.
    ///
    /// # Errors
    /// [`Error::Invalid`] beyond the table.
    pub fn activity(&self, receiver: u32) -> Result<LineRef<ReadOnly>> {
        self.section.line("activity", self.activity_at(receiver)?)
    }

    fn activity_at(&self, receiver: u32) -> Result<u64> {
        if receiver >= self.shape.slots() {
            return Err(Error::Invalid { what: "global slot", value: receiver.into() });
        }
        Ok(self.activity_table + u64::from(receiver) * activity::BYTES)
    }

    /// Counters of the peer: of processes that are gone, and of those there are.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when a record points outside of the section.
    pub fn totals(&self) -> Result<Totals> {
        counted(&self.section, &self.shape)
    }

    /// Endpoint slots that are in use, with their records.
    pub fn endpoints(&self) -> Vec<(u32, EndpointInfo)> {
        (0..self.shape.endpoints)
            .filter_map(|slot| Some((slot, self.endpoint(slot).ok()?)))
            .filter(|(_, info)| info.life.state == State::Active)
            .collect()
    }
}

/// Counters of the peer whose section this is, as [`Directory::totals`]: also when its agent has taken the directory's magic word away,
/// by which it asks for a new life. Nothing else of the directory is believed.
///
/// # Errors
/// [`Error::Invalid`] when the directory is not one of this life; as [`Directory::totals`].
pub fn totals_in(section: &PeerSection, shape: &Shape, incarnation: u64) -> Result<Totals> {
    let of = section.word("directory", directory::INCARNATION)?.get();
    if of != incarnation {
        return Err(Error::Invalid { what: "directory incarnation", value: of });
    }
    counted(section, shape)
}

fn counted(section: &PeerSection, shape: &Shape) -> Result<Totals> {
    let mut sum = Totals::read(section, directory::RETIRED)?;
    let table = places(shape).areas;
    for slot in 0..shape.endpoints {
        let at = table + u64::from(slot) * area::BYTES;
        let life = Life::unpack(section.word("area", at + area::LIFE)?.get());
        if life.state == State::Active {
            let first = section.word("area", at + area::FIRST)?.get();
            sum.add(&Totals::read(section, first)?);
        }
    }
    Ok(sum)
}

/// The directory of the own peer, with the words in it that its processes write. It reads as a [`Directory`].
#[derive(Debug, Clone)]
pub struct OwnDirectory {
    directory: Directory,
    section: Section,
}

impl std::ops::Deref for OwnDirectory {
    type Target = Directory;

    fn deref(&self) -> &Directory {
        &self.directory
    }
}

impl OwnDirectory {
    /// As [`Directory::open`].
    ///
    /// # Errors
    /// As [`Directory::open`].
    pub fn open(section: &Section, shape: &Shape, incarnation: u64) -> Result<Self> {
        let directory = Directory::open(&section.for_reading(), shape, incarnation)?;
        Ok(Self { directory, section: section.clone() })
    }

    /// The section, to be written.
    pub fn own_section(&self) -> &Section {
        &self.section
    }

    /// The line of an endpoint's wake word, its first.
    ///
    /// # Errors
    /// [`Error::Invalid`] beyond the table.
    pub fn wake_line(&self, slot: u32) -> Result<LineRef> {
        self.section.line("endpoint", self.endpoint_at(slot)? + endpoint::WAKE)
    }

    /// Counts a death, here or elsewhere, and wakes the threads of this system that sleep at gates: one of them may wait for
    /// what the dead process was to do. For the local service; the death was published before.
    pub fn count_death(&self) {
        if let Ok(word) = self.section.word("directory", directory::DEATHS) {
            crate::wake::wake(word);
        }
    }

    /// The activity line of the receiver with global slot `receiver`, for its senders in this peer.
    ///
    /// # Errors
    /// [`Error::Invalid`] beyond the table.
    pub fn announcements(&self, receiver: u32) -> Result<LineRef> {
        self.section.line("activity", self.activity_at(receiver)?)
    }
}

fn said_vectors(section: &PeerSection) -> u32 {
    let word = section.read("directory", directory::VECTORS).map_or(0, ReadWord::get);
    crate::driver::vectors(word)
}

/// Publishes that every endpoint of a section is dead; for the host service, once the peer itself is, and before it
/// zeroes the section.
///
/// # Errors
/// [`Error::OutOfBounds`] when the section is smaller than its tables.
pub fn bury(section: &Section, shape: &Shape) -> Result<()> {
    let p = places(shape);
    for slot in 0..u64::from(shape.endpoints) {
        let life = section.word("endpoint", p.endpoints + slot * endpoint::BYTES + endpoint::LIFE)?;
        let seen = Life::unpack(life.peek());
        if seen.state == State::Active || seen.state == State::Joining {
            life.set(Life { state: State::Dead, ..seen }.pack());
        }
    }
    let generation = section.word("directory", directory::GENERATION)?;
    generation.set(generation.peek().wrapping_add(1));
    // Every reader sees the zeroing after this (P5).
    release_fence();
    Ok(())
}
