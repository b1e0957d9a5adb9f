//! Pages that processes grant: pages of a program's own memory that the guest driver has moved into the pool at the end of a VM's
//! section (isthmus(4)), where all members can read them.
//!
//! Before the pool lies the *grant table*, a word for each of its pages, written by the driver alone: the upper 40 bits are the page's
//! generation, which changes before anything else when what was granted stops being that, the lower 24 say which process granted it.
//! A reader copies first, and then believes what it has copied if the word is still the one that it was told ([`Pool::copy`], [`Pool::standing`]).

use std::collections::{BTreeMap, HashMap};

use isthmus_lockfree::life::unchanged;

use crate::error::Result;
use crate::format::directory;
use crate::format::{EXTENT_UNIT, MAX_ENDPOINTS};
use crate::local::LocalBuf;
use crate::mapping::PeerSection;
use crate::member::Member;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Bits of a word of the grant table that are not its generation.
const LOW: u64 = 0xff_ffff;

/// Bytes of the grant table of a pool, in units in which the heap before it is granted.
pub fn table_bytes(pages_bytes: u64) -> u64 {
    (pages_bytes / PAGE * 8).next_multiple_of(EXTENT_UNIT)
}

/// The area that the grant table names for pages whose process is gone and that another one has still: there is none of this number.
pub const NOBODY: u32 = MAX_ENDPOINTS;

/// What the grant table calls the process of an area.
pub fn owner(area: u32) -> u64 {
    (u64::from(area) + 1) & LOW
}

/// The process of whom a word of the grant table says that it granted the page, by its area; none for a page that is not granted.
pub fn area(word: u64) -> Option<u32> {
    u32::try_from(word & LOW).ok().and_then(|owner| owner.checked_sub(1))
}

/// What came of pages that were to be granted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// How many are granted now.
    pub count: usize,
    /// Some are not, since the pool has no more or the process may have no more.
    pub is_full: bool,
}

/// A page that was granted: which of the pool, and its generation then, in one word. Never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted(u64);

impl Granted {
    /// A page of the pool, and what the grant table had for it. None for a page without a generation, which the driver gives to none.
    pub fn new(page: u32, word: u64) -> Option<Self> {
        let (page, generation) = (u64::from(page), word & !LOW);
        (page <= LOW && generation != 0).then_some(Self(generation | page))
    }

    /// One that somebody names.
    pub fn of_word(word: u64) -> Option<Self> {
        (word & !LOW != 0).then_some(Self(word))
    }

    /// As [`Granted::of_word`] takes it.
    pub fn word(self) -> u64 {
        self.0
    }

    /// Which page of the pool it is.
    pub(crate) fn page(self) -> u32 {
        (self.0 & LOW) as u32
    }

    /// Where it begins in the pool.
    fn offset(self) -> u64 {
        u64::from(self.page()) * PAGE
    }

    /// What the grant table has for it as long as the grant stands.
    fn expected(self, owner: u64) -> u64 {
        (self.0 & !LOW) | owner
    }
}

/// Pages that are kept for a registration ([`crate::member::Member::keep_pages`]): each counts once, however often it was granted.
#[derive(Debug, Default)]
pub struct KeptPages(BTreeMap<u32, Granted>);

impl KeptPages {
    /// Adds a page. Gives whether it was not among them.
    pub(crate) fn add(&mut self, page: Granted) -> bool {
        self.0.insert(page.page(), page).is_none()
    }

    /// Takes those out that are not what was granted any more.
    #[must_use]
    pub fn take_lost(&mut self, own: &Own) -> Self {
        let mut lost = BTreeMap::new();
        self.0.retain(|number, page| {
            let stands = own.pool.stands(own.owner, *page);
            if !stands {
                lost.insert(*number, *page);
            }
            stands
        });
        Self(lost)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn into_pages(self) -> impl Iterator<Item = Granted> {
        self.0.into_values()
    }
}

/// How many registrations of a process keep a page, by the page. The driver keeps it once for all of them.
#[derive(Debug, Default)]
pub(crate) struct Keepers(HashMap<u32, u32>);

impl Keepers {
    pub(crate) fn add(&mut self, page: Granted) {
        *self.0.entry(page.page()).or_insert(0) += 1;
    }

    /// Gives whether nobody keeps the page any more.
    pub(crate) fn remove(&mut self, page: Granted) -> bool {
        let Some(count) = self.0.get_mut(&page.page()) else { return false };
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            self.0.remove(&page.page());
        }
        is_last
    }
}

/// The pages that this process may grant, for reading.
#[derive(Debug)]
pub struct Own {
    /// The pool of its own system.
    pub pool: Pool,
    /// What the grant table calls the process.
    pub owner: u64,
}

impl Own {
    /// None where the process cannot grant any.
    pub fn of(member: &Member) -> Option<Self> {
        let pool = Pool::of(&member.section().for_reading())?;
        // Nothing is at address 0, and the driver says so, if there is one that would grant pages.
        member.grant_pages(0, &mut [None; 1]).ok()?;
        Some(Self { pool, owner: owner(member.grant().area) })
    }
}

/// The pool of a peer, and its grant table, for reading.
#[derive(Debug, Clone)]
pub struct Pool {
    section: PeerSection,
    table: u64,
    pages: u64,
    count: u64,
}

impl Pool {
    /// The pool of a peer's section, of which the directory was checked; none if it has none.
    pub fn of(section: &PeerSection) -> Option<Self> {
        let word = |at| section.word("directory", at).map(isthmus_lockfree::sync::ReadWord::get).ok();
        let (pages, bytes) = (word(directory::PAGES)?, word(directory::PAGES_BYTES)?);
        let count = bytes / PAGE;
        // What a hostile peer has put there since the directory was checked stays within the section, too.
        let table = pages.checked_sub(table_bytes(bytes))?;
        section.holds("pool of pages", pages, bytes).ok()?;
        (count > 0).then(|| Self { section: section.clone(), table, pages, count })
    }

    /// Pages of the pool.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether a grant by this owner still stands.
    #[inline]
    pub fn stands(&self, owner: u64, granted: Granted) -> bool {
        u64::from(granted.page()) < self.count
            && self
                .section
                .word("grant table", self.table + u64::from(granted.page()) * 8)
                .is_ok_and(|word| unchanged(word, granted.expected(owner)))
    }

    /// How many of these pages, from the first one on, this owner has still granted.
    ///
    /// # Ordering
    /// What was copied before from the pages that stand is what was granted ([`unchanged`], P5).
    #[inline]
    pub fn standing(&self, owner: u64, pages: &[Option<Granted>]) -> usize {
        pages.iter().take_while(|page| page.is_some_and(|granted| self.stands(owner, granted))).count()
    }

    /// How many pages, from the first one on, lie one behind the other in the pool; 0 if there is no first one, or not in the pool.
    #[inline]
    pub fn run(&self, pages: &[Option<Granted>]) -> usize {
        let Some(Some(first)) = pages.first() else { return 0 };
        let pages = (u64::from(first.page())..self.count).zip(pages);
        pages
            .take_while(|(expected, page)| page.is_some_and(|granted| u64::from(granted.page()) == *expected))
            .count()
    }

    /// Copies from byte `at` of a page on, also from those that lie behind it in the pool. Believed is what came of pages of which
    /// [`Pool::standing`] says so afterwards; all else may be anything.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for bytes that are not of the pool.
    #[inline]
    pub fn copy(&self, first: Granted, at: u64, into: LocalBuf) -> Result<()> {
        let place = self.place(first, at, into.len() as u64)?;
        self.section.drain("granted pages", place, into)
    }

    /// Offset in the section of byte `at` of a page, behind which the pool has `len` bytes.
    ///
    /// # Errors
    /// As [`Pool::copy`].
    #[inline]
    pub fn place(&self, first: Granted, at: u64, len: u64) -> Result<u64> {
        let from = first.offset().checked_add(at);
        let end = from.and_then(|from| from.checked_add(len));
        match (from, end) {
            (Some(from), Some(end)) if end <= self.count * PAGE => Ok(self.pages + from),
            _ => Err(crate::Error::Invalid { what: "granted page", value: first.word() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::address::Naming;
    use crate::directory::{Directory, Writer};
    use crate::mapping::{Mapping, Section};
    use crate::membership::{self, NewPeer, Shape};

    fn with_pool(bytes: u64) -> (Section, Directory) {
        let all = 8 << 20;
        let fd = crate::create::memory(all).unwrap();
        let map = Mapping::map(fd.as_fd(), all).unwrap();
        let shape = Shape::new(all, [1, 2], 2, 16).unwrap();
        let mut host = membership::Writer::create(&map, &shape, 1).unwrap();
        let new = NewPeer {
            file: 0,
            section: shape.host_bytes,
            section_bytes: 4 << 20,
            is_vm: false,
            name: "host",
        };
        host.add(0, &new).unwrap();
        Writer::create_with_pages(host.region(), 0, Naming::of_test(0), bytes).unwrap();
        let section = host.region().own_section(&host.region().peer(0).unwrap().unwrap()).unwrap();
        let directory = Directory::open(&section.for_reading(), &shape, 1).unwrap();
        (section, directory)
    }

    #[test]
    fn what_was_copied_is_believed_while_the_grant_stands() {
        let bytes = 1 << 20;
        let (section, directory) = with_pool(bytes);
        let pool = Pool::of(directory.section()).unwrap();
        let page = 5;
        let at = section.len() - bytes + page * PAGE;
        section.fill_bytes("page", at, &[7; 4096]).unwrap();
        let word = section.word("table", section.len() - bytes - table_bytes(bytes) + page * 8).unwrap();
        let granted = Granted::new(5, (9 << 24) | owner(3)).unwrap();
        assert_eq!(Granted::of_word(granted.word()), Some(granted));
        let into = LocalBuf::leaked(vec![0; 100]);
        let read = |owner, granted| {
            pool.copy(granted, 10, into).map(|()| pool.standing(owner, &[Some(granted)]) == 1)
        };
        assert!(!read(owner(3), granted).unwrap(), "another generation");
        word.set((9 << 24) | owner(3));
        assert!(read(owner(3), granted).unwrap());
        assert_eq!(into.to_vec(), vec![7; 100]);
        assert!(!read(owner(4), granted).unwrap(), "another process's");
        let page_of = |page| Granted::new(u32::try_from(page).unwrap(), 9 << 24).unwrap();
        let (last, beyond) = (page_of(bytes / PAGE - 1), page_of(bytes / PAGE));
        assert!(pool.copy(last, PAGE - 100, into).is_ok() && pool.copy(last, PAGE - 99, into).is_err());
        assert!(pool.copy(granted, u64::MAX, into).is_err() && pool.copy(beyond, 0, into).is_err());
        let of = |pages: &[Granted]| pages.iter().copied().map(Some).collect::<Vec<_>>();
        assert_eq!(pool.standing(owner(3), &of(&[granted, last, granted])), 1);
        // A copy may go over as many pages as lie one behind the other.
        let run = |pages: &[Granted]| pool.run(&of(pages));
        assert_eq!(run(&[granted, page_of(6), page_of(7), page_of(9)]), 3);
        assert_eq!([run(&[last, beyond]), run(&[beyond]), run(&[])], [1, 0, 0]);
        assert_eq!([pool.run(&[Some(granted), None]), pool.run(&[None])], [1, 0]);
        assert_eq!((Granted::new(1, 5), Granted::of_word(5)), (None, None));
        assert_eq!((area((9 << 24) | owner(3)), area(9 << 24)), (Some(3), None));
    }

    #[test]
    fn a_page_is_let_go_by_its_last_keeper() {
        let page = |number| Granted::new(number, 9 << 24).unwrap();
        let (mut keepers, mut one, mut two) =
            (Keepers::default(), KeptPages::default(), KeptPages::default());
        let all = [&mut one, &mut two];
        for (kept, number) in [(0, 1), (0, 2), (1, 2), (0, 2), (1, 3)] {
            if all[kept].add(page(number)) {
                keepers.add(page(number));
            }
        }
        let mut end =
            |kept: KeptPages| kept.into_pages().map(|page| keepers.remove(page)).collect::<Vec<_>>();
        assert_eq!((end(one), end(two)), (vec![true, false], vec![true, true]));
        assert!(!keepers.remove(page(2)) && keepers.0.is_empty());
    }

    #[test]
    fn a_section_without_a_pool_has_none() {
        assert!(Pool::of(with_pool(0).1.section()).is_none());
    }
}
