//! A queue that finds the earliest entry that fits, fast even where it is long.
//!
//! A queue is searched from its oldest entry on, which most often fits. Where it is long and searches took
//! many steps, it gets an index: one table for each mask of tag bits that receives compare (an MPI uses a
//! handful), from (masked tag, source) to the entries' numbers, in order. An index that is no longer used is
//! dropped.
//!
//! ```text
//! receives:  each stands in the table of its own mask, under its source or under "any";
//!            a message asks every table for its tag, under its source and under "any", and takes the earliest
//! messages:  each stands in every table, under its source and under "any";
//!            a receive asks the table of its own mask, which is made when it is asked for first
//! ```
//! An entry that is taken from the middle leaves a gap, and each that is taken its number in the tables until a search
//! comes across it. When there are more gaps than entries, or so many numbers may be left, the queue is compacted and its
//! index rebuilt; the cost is spread over as many takes.

use std::collections::{HashMap, TryReserveError, VecDeque};

use crate::hash::Spread;

/// Entries from which a queue may have an index.
const LONG: usize = 48;
/// An index is made when this many times the queue's length was searched, and dropped when this many times
/// its length was taken without using it: about what it costs to make one.
const WORTH: usize = 8;
/// Most masks that have a table; a queue with more is searched.
const MOST_MASKS: usize = 8;
/// "Any source", among the sources.
const ANY: u32 = u32::MAX;
/// Further entries to reserve memory for: what a lane holds, and more.
const SPARE: usize = 128;

/// A source as part of a key.
#[inline]
pub(super) fn source(from: Option<u32>) -> u32 {
    from.unwrap_or(ANY)
}

/// How an entry is found.
pub(super) trait Keys {
    /// The tag bits that it compares; none for a message, whose tag is compared under the receive's mask.
    fn mask(&self) -> Option<u64>;
    /// Its tag.
    fn tag(&self) -> u64;
    /// The sources that it stands under.
    fn sources(&self) -> [Option<u32>; 2];
}

/// Numbers of entries with one key, in order. Few keys have several.
type Numbers = VecDeque<u64>;

/// The entries by their tags under one mask.
#[derive(Debug)]
struct Table {
    mask: u64,
    numbers: HashMap<(u64, u32), Numbers, Spread>,
}

impl Table {
    fn add(&mut self, entry: &impl Keys, number: u64) -> Result<(), TryReserveError> {
        let tag = entry.tag() & self.mask;
        for source in entry.sources().into_iter().flatten() {
            self.numbers.try_reserve(1)?;
            let numbers = self.numbers.entry((tag, source)).or_default();
            numbers.try_reserve(1)?;
            numbers.push_back(number);
        }
        Ok(())
    }

    /// The number of the earliest entry with this key that is still there; forgets those that are not.
    fn earliest(&mut self, tag: u64, source: u32, is_there: impl Fn(u64) -> bool) -> Option<u64> {
        let key = (tag & self.mask, source);
        let numbers = self.numbers.get_mut(&key)?;
        while let Some(number) = numbers.front().copied() {
            if is_there(number) {
                return Some(number);
            }
            numbers.pop_front();
        }
        self.numbers.remove(&key);
        None
    }
}

/// The queue.
#[derive(Debug)]
pub(super) struct Queue<T> {
    entries: VecDeque<Option<T>>,
    /// Number of the first entry.
    first: u64,
    gaps: usize,
    tables: Option<Vec<Table>>,
    /// Entries that were searched without an index.
    walked: usize,
    /// Entries taken since the index was last used.
    spared: usize,
    /// Entries taken since the index was made: so many numbers at most are in the tables for nothing.
    taken: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { entries: VecDeque::new(), first: 0, gaps: 0, tables: None, walked: 0, spared: 0, taken: 0 }
    }
}

impl<T: Keys> Queue<T> {
    /// The oldest entry.
    #[inline(always)] // on the way of a short message
    pub(super) fn front(&self) -> Option<&T> {
        // The first one is never a gap.
        self.entries.front().and_then(Option::as_ref)
    }

    /// Whether there is none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of entries, without gaps.
    fn len(&self) -> usize {
        self.entries.len() - self.gaps
    }

    /// The entry at a position.
    #[inline]
    pub(super) fn get(&self, at: usize) -> Option<&T> {
        self.entries.get(at).and_then(Option::as_ref)
    }

    /// Adds an entry behind all others.
    #[inline(always)] // on the way of a short message
    pub(super) fn push(&mut self, entry: T) {
        if self.tables.is_some() {
            return self.push_indexed(entry);
        }
        self.entries.push_back(Some(entry));
    }

    /// Takes the oldest entry.
    #[inline(always)] // on the way of a short message
    pub(super) fn pop(&mut self) -> Option<T> {
        let taken = self.entries.pop_front().flatten();
        self.first = self.first.wrapping_add(1);
        if self.tables.is_some() {
            self.tidy();
        }
        taken
    }

    /// Drops the oldest entry without running its destructor: it must own no memory.
    #[inline(always)] // on the way of a short message
    pub(super) fn forget_front(&mut self) {
        std::mem::forget(self.entries.pop_front());
        self.first = self.first.wrapping_add(1);
        if self.tables.is_some() {
            self.tidy();
        }
    }

    #[cold]
    #[inline(never)]
    fn push_indexed(&mut self, entry: T) {
        let number = self.first.wrapping_add(self.entries.len() as u64);
        if let Some(tables) = &mut self.tables {
            let added = match entry.mask() {
                None => tables.iter_mut().try_for_each(|table| table.add(&entry, number)),
                Some(mask) => Self::table(tables, mask).add(&entry, number),
            };
            if added.is_err() {
                self.drop_index();
            }
        }
        self.entries.push_back(Some(entry));
    }

    /// Drops the index.
    #[cold]
    fn drop_index(&mut self) {
        self.tables = None;
        self.compact();
    }

    /// Reserves memory for one more entry, and for as many as a lane holds.
    pub(super) fn make_room(&mut self) -> Result<(), TryReserveError> {
        self.entries.try_reserve(1 + SPARE)
    }

    /// Reserves memory for one more entry where memory is scarce.
    pub(super) fn make_way(&mut self) -> Result<(), TryReserveError> {
        if self.entries.len() < self.entries.capacity() {
            return Ok(());
        }
        self.entries.try_reserve_exact(1 + SPARE)
    }

    /// The table of a mask; makes it if there is none.
    fn table(tables: &mut Vec<Table>, mask: u64) -> &mut Table {
        let at = tables.iter().position(|t| t.mask == mask).unwrap_or_else(|| {
            tables.push(Table { mask, numbers: HashMap::default() });
            tables.len() - 1
        });
        &mut tables[at]
    }

    /// Makes the index, if there is memory for it. Tables for masks that are not the entries' own are made
    /// when they are first used.
    fn index_all(&mut self) {
        let mut tables = Vec::new();
        let mut entries = (self.first..).zip(&self.entries);
        let added = entries.try_for_each(|(number, entry)| match entry.as_ref().map(|e| (e, e.mask())) {
            Some((entry, Some(mask))) => Self::table(&mut tables, mask).add(entry, number),
            _ => Ok(()),
        });
        self.tables = added.is_ok().then_some(tables);
        (self.walked, self.spared, self.taken) = (0, 0, 0);
    }

    /// Searches the queue from its front; makes an index if searches have been long too often.
    fn walk(&mut self, fits: impl Fn(&T) -> bool) -> Option<usize> {
        let found = self.position(fits);
        self.walked += found.unwrap_or(self.entries.len());
        if self.entries.len() >= LONG && self.walked > WORTH * self.entries.len() {
            if self.tables.is_none() {
                self.index_all();
            }
            self.walked = 0;
        }
        found
    }

    fn at(&self, number: u64) -> usize {
        usize::try_from(number.wrapping_sub(self.first)).unwrap_or(usize::MAX)
    }

    /// The position of the first entry that fits.
    pub(super) fn position(&self, fits: impl Fn(&T) -> bool) -> Option<usize> {
        self.entries.iter().position(|e| e.as_ref().is_some_and(&fits))
    }

    /// The position of the earliest entry that compares its own bits with `tag`, and stands under one of `sources`.
    #[inline]
    pub(super) fn find_in_all(
        &mut self,
        tag: u64,
        sources: [u32; 2],
        fits: impl Fn(&T) -> bool,
    ) -> Option<usize> {
        // Most messages match the oldest receive.
        if self.front().is_some_and(&fits) {
            return Some(0);
        }
        if self.tables.as_ref().is_none_or(|tables| tables.len() > MOST_MASKS) {
            return self.walk(fits);
        }
        self.look_up(tag, sources)
    }

    #[inline(never)]
    fn look_up(&mut self, tag: u64, sources: [u32; 2]) -> Option<usize> {
        self.spared = 0;
        let (entries, first) = (&self.entries, self.first);
        let is_there = |number: u64| {
            let at = usize::try_from(number.wrapping_sub(first)).unwrap_or(usize::MAX);
            entries.get(at).is_some_and(Option::is_some)
        };
        let mut found: Option<usize> = None;
        for table in self.tables.iter_mut().flatten() {
            for source in sources {
                if let Some(number) = table.earliest(tag, source, is_there) {
                    let at = usize::try_from(number.wrapping_sub(first)).unwrap_or(usize::MAX);
                    found = Some(found.map_or(at, |f| f.min(at)));
                }
            }
        }
        found
    }

    /// The position of the earliest entry whose tag has these bits under `mask`, and that stands under `source`.
    pub(super) fn find_in_one(
        &mut self,
        mask: u64,
        tag: u64,
        source: u32,
        fits: impl Fn(&T) -> bool,
    ) -> Option<usize> {
        if self.front().is_some_and(&fits) {
            return Some(0);
        }
        self.spared = 0;
        let full = |tables: &Vec<Table>| tables.len() >= MOST_MASKS && tables.iter().all(|t| t.mask != mask);
        if self.tables.as_ref().is_none_or(full) {
            return self.walk(fits);
        }
        let (entries, first) = (&self.entries, self.first);
        let Some(tables) = &mut self.tables else { return None };
        if !tables.iter().any(|t| t.mask == mask) {
            let table = Self::table(tables, mask);
            let mut entries =
                (first..).zip(entries).filter_map(|(number, entry)| Some((number, entry.as_ref()?)));
            if entries.try_for_each(|(number, entry)| table.add(entry, number)).is_err() {
                self.drop_index();
                return self.position(fits);
            }
        }
        let is_there = |number: u64| {
            let at = usize::try_from(number.wrapping_sub(first)).unwrap_or(usize::MAX);
            entries.get(at).is_some_and(Option::is_some)
        };
        let number = Self::table(tables, mask).earliest(tag, source, is_there)?;
        Some(self.at(number))
    }

    /// Takes the entry at a position.
    #[inline]
    pub(super) fn remove(&mut self, at: usize) -> Option<T> {
        if at == 0 {
            return self.pop();
        }
        if self.tables.is_none() {
            return self.entries.remove(at).flatten();
        }
        let taken = self.entries.get_mut(at).and_then(Option::take);
        if taken.is_some() {
            self.gaps += 1;
            self.tidy();
        }
        taken
    }

    /// Drops gaps from the front, compacts the queue where there are too many, and drops an index that is no
    /// longer needed.
    #[inline(never)]
    fn tidy(&mut self) {
        while let Some(None) = self.entries.front() {
            self.entries.pop_front();
            self.first = self.first.wrapping_add(1);
            self.gaps -= 1;
        }
        if self.tables.is_none() {
            return;
        }
        self.spared += 1;
        self.taken += 1;
        if self.len() < LONG / 4 || self.spared > WORTH * self.len() {
            self.tables = None;
            self.compact();
        } else if self.gaps > self.len() + LONG || self.taken > 2 * (self.len() + LONG) {
            self.compact();
        }
    }

    fn compact(&mut self) {
        if self.gaps > 0 {
            self.entries.retain(Option::is_some);
            self.gaps = 0;
        }
        if self.tables.is_some() {
            let spared = self.spared;
            self.index_all();
            self.spared = spared;
        }
    }

    /// Keeps the entries for which `keep` returns true.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.entries.retain(|e| e.as_ref().is_some_and(&mut keep));
        self.gaps = 0;
        self.compact();
    }

    /// Takes all that fit, in order.
    pub(super) fn take_all(&mut self, fits: impl Fn(&T) -> bool) -> Vec<T> {
        let (taken, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.entries).into_iter().flatten().partition(|e| fits(e));
        self.entries = kept.into_iter().map(Some).collect();
        self.gaps = 0;
        self.compact();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A receive for one tag of any sender.
    struct Receive(u64);

    impl Keys for Receive {
        fn mask(&self) -> Option<u64> {
            Some(u64::MAX)
        }
        fn tag(&self) -> u64 {
            self.0
        }
        fn sources(&self) -> [Option<u32>; 2] {
            [Some(ANY), None]
        }
    }

    fn keys(queue: &Queue<Receive>) -> usize {
        queue.tables.iter().flatten().map(|table| table.numbers.len()).sum()
    }

    /// 64 receives stay posted, their tags do not come back, and every second pair of messages comes swapped: the index is used,
    /// and half of what is taken is at the front, where it is not.
    #[test]
    fn an_index_that_stays_in_use_keeps_nothing_of_what_was_taken() {
        let mut queue = Queue::default();
        let take = |queue: &mut Queue<Receive>, tag| {
            let at = queue.find_in_all(tag, [0, ANY], |r| r.0 == tag).unwrap();
            assert_eq!(queue.remove(at).unwrap().0, tag);
        };
        (0..64).for_each(|tag| queue.push(Receive(tag)));
        // From behind, until it is worth an index.
        let mut tag = 64;
        while queue.tables.is_none() {
            take(&mut queue, tag - 1);
            queue.push(Receive(tag));
            tag += 1;
            assert!(tag < 10_000, "no index was made");
        }
        let mut posted: VecDeque<u64> = queue.entries.iter().flatten().map(|r| r.0).collect();
        for round in 0..100_000_u64 {
            let (first, second) = (posted.pop_front().unwrap(), posted.pop_front().unwrap());
            let order = if round % 2 == 0 { [second, first] } else { [first, second] };
            for came in order {
                take(&mut queue, came);
                queue.push(Receive(tag));
                posted.push_back(tag);
                tag += 1;
            }
            assert!(keys(&queue) < 8 * LONG, "{} keys of {} receives", keys(&queue), queue.len());
        }
        assert!(queue.tables.is_some(), "it was in use");
        // Out of use it goes.
        while queue.tables.is_some() {
            let first = posted.pop_front().unwrap();
            take(&mut queue, first);
            queue.push(Receive(tag));
            posted.push_back(tag);
            tag += 1;
            assert!(tag < 400_000, "it stays though nobody uses it");
        }
    }
}
