//! The local service's side of its peer's section: it writes the directory and the tables, and grants the heap.

use isthmus_lockfree::life::{Life, State};
use isthmus_lockfree::sync::{Word, release_fence};

use super::{OwnDirectory, heap_end, least_section_bytes, pages_fit, places};
use crate::address::Naming;
use crate::counters::{Counters, Totals};
use crate::error::{Error, Result};
use crate::extent::{Extent, Heap};
use crate::format::{DIRECTORY_MAGIC, PROGRAM_BYTES, area, directory, endpoint};
use crate::grants::table_bytes;
use crate::mapping::LineRef;
use crate::membership::{PeerInfo, Region};
use crate::party::GONE;
use crate::text::padded;

/// The local service's side of its peer's section.
#[derive(Debug)]
pub struct Writer {
    directory: OwnDirectory,
    /// Its generation, and what else changes with that.
    status: LineRef,
    peer: u32,
    incarnation: u64,
    /// Birth of the endpoint that was opened last.
    birth: u64,
    heap: Heap,
    areas: Vec<AreaSlot>,
    endpoints: Vec<EndpointSlot>,
    /// The region as it was when this began: what members write over its header later changes nothing here.
    region: Region,
}

#[derive(Debug, Clone, Default)]
struct AreaSlot {
    lives: u64,
    extents: Vec<Extent>,
    /// Its process is gone; its memory is not taken back while another process changes it.
    held: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct EndpointSlot {
    lives: u64,
    owner: Option<u32>,
    /// The area of the process that had it, and whose end ended it: that may live on.
    ended_with: Option<u32>,
}

/// A process's place: index of its area, its incarnation, its first extent (zeroed).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AreaGrant {
    /// Index in the area table.
    pub area: u32,
    /// Incarnation of the process.
    pub incarnation: u64,
    /// The first extent; counters come first.
    pub first: Extent,
}

impl Writer {
    /// Writes the directory of the fresh section of peer `peer`, for the life that the membership table shows, and for the
    /// system that `naming` names.
    ///
    /// # Errors
    /// [`Error::Full`] when the section is too small for its tables and one area; [`Error::NoPeer`]; [`Error::ReadOnly`].
    pub fn create(region: &Region, peer: u32, naming: Naming) -> Result<Self> {
        Self::create_with_pages(region, peer, naming, 0)
    }

    /// As [`Writer::create`]; the last `pages_bytes` of the section are a pool of pages, of which the heap takes none.
    ///
    /// # Errors
    /// As [`Writer::create`]; [`Error::Invalid`] for a pool that is not aligned as sections are.
    pub fn create_with_pages(region: &Region, peer: u32, naming: Naming, pages_bytes: u64) -> Result<Self> {
        let info = region.peer(peer)?.ok_or(Error::NoPeer { peer })?;
        let PeerInfo { life: Life { incarnation, .. }, .. } = info;
        let (section, shape) = (region.own_section(&info)?, region.shape());
        let taken = pages_bytes.saturating_add(table_bytes(pages_bytes));
        let least = least_section_bytes(shape).saturating_add(taken);
        if section.len() < least {
            return Err(Error::Full { bytes: least - section.len() });
        }
        let (p, pages) = (places(shape), section.len() - pages_bytes);
        if !pages_fit(shape, section.len(), pages, pages_bytes) {
            return Err(Error::Invalid { what: "bytes of the pool of pages", value: pages_bytes });
        }
        let heap_end = heap_end(pages, pages_bytes).unwrap_or(p.heap);
        section.zero("tables", 0, p.heap)?;
        let heap = Heap::new(p.heap, heap_end - p.heap, peer.into());
        let put = |offset, value| section.word("directory", offset).map(|w| w.put(value));
        put(directory::INCARNATION, incarnation)?;
        put(directory::ENDPOINT_TABLE, p.endpoints)?;
        put(directory::AREA_TABLE, p.areas)?;
        put(directory::ACTIVITY_TABLE, p.activity)?;
        put(directory::HEAP, p.heap)?;
        put(directory::HEAP_BYTES, heap_end - p.heap)?;
        put(directory::PAGES, pages)?;
        put(directory::PAGES_BYTES, pages_bytes)?;
        put(directory::SYSTEM, naming.system.0[0])?;
        put(directory::SYSTEM + 8, naming.system.0[1])?;
        section.word("directory", directory::MAGIC)?.set(DIRECTORY_MAGIC);
        let slots = usize::try_from(shape.endpoints).unwrap_or(0);
        Ok(Self {
            directory: OwnDirectory::open(&section, shape, incarnation)?,
            status: section.line("directory", directory::GENERATION)?,
            peer,
            incarnation,
            birth: u64::from(naming.former) << 32,
            heap,
            areas: vec![AreaSlot::default(); slots],
            endpoints: vec![EndpointSlot::default(); slots],
            region: region.clone(),
        })
    }

    /// The section as all members see it, and the words that its processes write.
    pub fn directory(&self) -> &OwnDirectory {
        &self.directory
    }

    /// The peer that the section belongs to.
    pub fn peer(&self) -> u32 {
        self.peer
    }

    /// The life of the peer that the section is for.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The region as it was when this began.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Says by how many vectors the peer's sleepers are rung.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn set_vectors(&self, vectors: u32) -> Result<()> {
        self.directory.section.word("directory", directory::VECTORS)?.set(vectors.into());
        Ok(())
    }

    fn own_endpoint_line(&self, slot: u32) -> Result<LineRef> {
        self.directory.section.line("endpoint", self.directory.endpoint_at(slot)?)
    }

    /// The next incarnation of a slot: the peer's own in the upper bits, so that a slot's number never comes back.
    fn next_life(&self, lives: &mut u64) -> u64 {
        *lives += 1;
        self.life_of(*lives)
    }

    fn life_of(&self, lives: u64) -> u64 {
        (self.incarnation << 32) | (lives & 0xffff_ffff)
    }

    fn area_word(&self, index: u32, field: u64) -> Result<&Word> {
        self.directory
            .section
            .word("area", self.directory.area_table + u64::from(index) * area::BYTES + field)
    }

    fn changed(&self) {
        let words = &self.status.words;
        words[1].put(self.heap.used());
        words[0].set(words[0].peek().wrapping_add(1));
    }

    fn zeroed(&mut self, bytes: u64) -> Result<Extent> {
        let extent = self.heap.take(bytes).ok_or(Error::Full { bytes })?;
        if let Err(e) = self.directory.section.zero("extent", extent.offset, extent.bytes) {
            self.heap.give(extent);
            return Err(e);
        }
        Ok(extent)
    }

    /// Grants an area to a process that attaches, `pid` of `program`; of a longer name only the beginning is kept.
    ///
    /// # Errors
    /// [`Error::Full`] when no slot or no memory is left.
    pub fn open_area(&mut self, bytes: u64, pid: u32, program: &str) -> Result<AreaGrant> {
        let index = self.areas.iter().position(|a| a.extents.is_empty()).ok_or(Error::Full { bytes })?;
        let first = self.zeroed(bytes)?;
        let area = u32::try_from(index).map_err(|_| Error::Full { bytes })?;
        let mut lives = self.areas[index].lives;
        let incarnation = self.next_life(&mut lives);
        self.areas[index] = AreaSlot { lives, extents: vec![first], held: false };
        // A reader must not take the old incarnation together with what the new process has (P5).
        self.area_word(area, area::LIFE)?.set(Life { incarnation, state: State::Joining }.pack());
        release_fence();
        self.area_word(area, area::FIRST)?.put(first.offset);
        self.area_word(area, area::FIRST_BYTES)?.put(first.bytes);
        self.area_word(area, area::GRANTED)?.put(first.bytes);
        self.area_word(area, area::PID)?.put(pid.into());
        let at = self.directory.area_table + u64::from(area) * area::BYTES + area::PROGRAM;
        self.directory.section.fill_bytes("area", at, &padded::<PROGRAM_BYTES>(program))?;
        self.area_word(area, area::LIFE)?.set(Life { incarnation, state: State::Active }.pack());
        self.changed();
        Ok(AreaGrant { area, incarnation, first })
    }

    /// Grants a further, zeroed extent to an area.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn grow_area(&mut self, index: u32, bytes: u64) -> Result<Extent> {
        let extent = self.zeroed(bytes)?;
        let slot = self.areas.get_mut(index as usize).filter(|a| !a.extents.is_empty() && !a.held);
        let Some(slot) = slot else {
            self.heap.give(extent);
            return Err(Error::Invalid { what: "area", value: index.into() });
        };
        slot.extents.push(extent);
        self.area_word(index, area::GRANTED)?.bump(extent.bytes);
        self.changed();
        Ok(extent)
    }

    /// Opens an endpoint for the process with area `index`; its block must be written already.
    /// Gives its slot and incarnation.
    ///
    /// # Errors
    /// [`Error::Full`] when all slots or all births are used; [`Error::OutOfBounds`] for a block that is not in the section.
    pub fn open_endpoint(&mut self, index: u32, block: u64, pid: u32) -> Result<(u32, u64)> {
        self.directory.section.line("block", block)?;
        // The lowest free slot is taken, so that a scan for senders reads few of them. What a process that may live on holds is known by its
        // slot (P7).
        let may_hold = |area: u32| self.areas.get(area as usize).is_some_and(|a| a.held);
        let slot = self
            .endpoints
            .iter()
            .position(|e| e.owner.is_none() && !e.ended_with.is_some_and(may_hold))
            .and_then(|i| u32::try_from(i).ok())
            .ok_or(Error::Full { bytes: endpoint::BYTES })?;
        // The upper half is the services' that come after this one.
        let birth = Some(self.birth + 1).filter(|birth| birth & 0xffff_ffff != 0);
        self.birth = birth.ok_or(Error::Full { bytes: endpoint::BYTES })?;
        let mut lives = self.endpoints[slot as usize].lives;
        let incarnation = self.next_life(&mut lives);
        self.endpoints[slot as usize] = EndpointSlot { lives, owner: Some(index), ended_with: None };
        let line = self.own_endpoint_line(slot)?;
        // Free first: a reader must not take the old incarnation together with the new block (P5).
        line.words[0].set(Life { incarnation, state: State::Joining }.pack());
        release_fence();
        line.words[1].put(index.into());
        line.words[2].put(block);
        line.words[3].put(pid.into());
        line.words[4].put(self.birth);
        line.words[0].set(Life { incarnation, state: State::Active }.pack());
        let high = &self.status.words[2];
        high.set(high.peek().max(u64::from(slot) + 1));
        self.changed();
        Ok((slot, incarnation))
    }

    /// The area that has the endpoint in `slot`, in this life of it, whatever stands in the section.
    pub fn owner(&self, slot: u32, incarnation: u64) -> Option<u32> {
        let endpoint = self.endpoints.get(slot as usize)?;
        (self.life_of(endpoint.lives) == incarnation).then_some(endpoint.owner)?
    }

    /// Whether an open endpoint is the area's.
    pub fn owns(&self, index: u32, slot: u32) -> bool {
        self.endpoints.get(slot as usize).is_some_and(|e| e.owner == Some(index))
    }

    /// Publishes that an endpoint was closed in good order; only its own area may close it. Its slot reads as free
    /// then, where that of an endpoint whose process died reads as dead.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a slot that the area does not own.
    pub fn close_endpoint(&mut self, index: u32, slot: u32) -> Result<()> {
        self.end_endpoint(index, slot, State::Free)
    }

    fn end_endpoint(&mut self, index: u32, slot: u32, state: State) -> Result<()> {
        match self.endpoints.get_mut(slot as usize) {
            Some(e) if e.owner == Some(index) => e.owner = None,
            _ => return Err(Error::Invalid { what: "endpoint slot", value: slot.into() }),
        }
        let line = self.own_endpoint_line(slot)?;
        let life = Life { state, ..Life::unpack(line.words[0].peek()) };
        if state == State::Dead {
            line.words[5].put(life.incarnation);
        }
        line.words[0].set(life.pack());
        // What is done with the endpoint's memory afterwards comes after this (P5).
        release_fence();
        self.changed();
        Ok(())
    }

    /// Publishes the death of a process, adds its counters to the retired sums, and takes its memory back.
    /// Gives the slots of endpoints that died with it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an area that is not granted.
    pub fn close_area(&mut self, index: u32) -> Result<Vec<u32>> {
        let owned = self.end_area(index)?;
        self.take_back(index)?;
        Ok(owned)
    }

    /// As [`Writer::close_area`], but leaves the memory to [`Writer::take_back`]: its process may still be writing there.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an area that is not granted.
    pub fn end_area(&mut self, index: u32) -> Result<Vec<u32>> {
        let slot = self.areas.get_mut(index as usize).filter(|a| !a.extents.is_empty() && !a.held);
        let slot = slot.ok_or(Error::Invalid { what: "area", value: index.into() })?;
        slot.held = true;
        let first = slot.extents[0];
        let owned: Vec<u32> = (0_u32..)
            .zip(&self.endpoints)
            .filter(|(_, e)| e.owner == Some(index))
            .map(|(slot, _)| slot)
            .collect();
        for slot in &owned {
            self.end_endpoint(index, *slot, State::Dead)?;
            self.endpoints[*slot as usize].ended_with = Some(index);
        }
        let life = self.area_word(index, area::LIFE)?;
        life.set(Life { state: State::Dead, ..Life::unpack(life.peek()) }.pack());
        release_fence();
        let section = &self.directory.section;
        let gone = Totals::read(section, first.offset)?;
        Counters::at(section, directory::RETIRED)?.absorb(&gone);
        self.changed();
        Ok(owned)
    }

    /// Areas of processes that are gone and whose memory others may still be changing.
    pub fn held(&self) -> Vec<u32> {
        (0_u32..).zip(&self.areas).filter(|(_, a)| a.held).map(|(index, _)| index).collect()
    }

    /// Publishes that a process whose area has ended is gone, and writes no more. Gives whether that is news.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::Invalid`] for an area that has not ended.
    pub fn gone(&self, index: u32) -> Result<bool> {
        let ended = self.areas.get(index as usize).is_some_and(|a| a.held);
        if !ended {
            return Err(Error::Invalid { what: "area", value: index.into() });
        }
        let is_news = self.area_word(index, area::PID)?.swap(GONE) != GONE;
        if is_news {
            self.changed();
        }
        Ok(is_news)
    }

    /// Takes back the memory of a process that is gone, unless another process is changing it; then this is to be retried.
    /// Gives whether it was taken back.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::Invalid`] for an area whose process is not gone.
    pub fn take_back(&mut self, index: u32) -> Result<bool> {
        self.gone(index)?;
        let section = self.directory.section.clone();
        let slot = self.areas.get_mut(index as usize).filter(|a| a.held);
        let slot = slot.ok_or(Error::Invalid { what: "area", value: index.into() })?;
        if crate::holds::are_on(&self.region, self.peer, Some(index)) {
            return Ok(false);
        }
        slot.held = false;
        for extent in std::mem::take(&mut slot.extents) {
            section.zero("extent", extent.offset, extent.bytes)?;
            self.heap.give(extent);
        }
        self.area_word(index, area::GRANTED)?.set(0);
        self.changed();
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::counters;
    use crate::mapping::{Mapping, Section};
    use crate::membership::{self, Shape};
    use std::os::fd::AsFd;

    fn fresh() -> (membership::Writer, Section) {
        let bytes = 4 << 20;
        let fd = crate::create::memory(bytes).unwrap();
        let map = Mapping::map(fd.as_fd(), bytes).unwrap();
        let shape = Shape::new(bytes, [1, 2], 2, 16).unwrap();
        let mut host = membership::Writer::create(&map, &shape, 1).unwrap();
        let new = membership::NewPeer {
            file: 0,
            section: shape.host_bytes,
            section_bytes: 1 << 20,
            is_vm: false,
            name: "host",
        };
        let incarnation = host.add(0, &new).unwrap();
        assert_eq!(incarnation, 1);
        let info = host.region().peer(0).unwrap().unwrap();
        let section = host.region().own_section(&info).unwrap();
        (host, section)
    }

    #[test]
    fn a_process_that_goes_leaves_its_counters_and_nothing_else() {
        let (host, section) = fresh();
        let mut w = Writer::create(host.region(), 0, Naming::of_test(0)).unwrap();
        let grant = w.open_area(100_000, 77, "a program of a name that is too long").unwrap();
        let at = w.directory.area_table + u64::from(grant.area) * area::BYTES;
        let name = section.bytes("area", at + area::PROGRAM, 24).unwrap().to_vec(0, 24).unwrap();
        assert_eq!(name, b"a program of a name that");
        // It ends where the next entry begins.
        assert_eq!(section.word("area", at + area::BYTES).unwrap().get(), 0);
        let counters = Counters::at(&section, grant.first.offset).unwrap();
        counters.add(crate::counters::Counter::TxBytes, 5);
        let block = grant.first.offset + counters::BYTES;
        let (slot, incarnation) = w.open_endpoint(grant.area, block, 77).unwrap();
        assert!(w.directory().endpoint(slot).unwrap().life.is_active(incarnation));
        assert_eq!(w.owner(slot, incarnation), Some(grant.area));
        assert_eq!((w.owner(slot, incarnation + 1), w.owner(slot + 1, 0)), (None, None));
        assert_eq!(w.close_area(grant.area).unwrap(), [slot]);
        assert_eq!(w.owner(slot, incarnation), None);
        assert!(!w.directory().endpoint(slot).unwrap().life.is_active(incarnation));
        assert_eq!(w.directory().totals().unwrap().get(crate::counters::Counter::TxBytes), 5);
        assert_eq!(w.directory().heap_used(), 0);
        let again = w.open_area(100_000, 78, "test").unwrap();
        assert_ne!(again.incarnation, grant.incarnation);
        assert_eq!(section.word("t", again.first.offset + 8).unwrap().peek(), 0, "memory is zeroed");
    }

    #[test]
    fn a_full_section_refuses_and_stays_usable() {
        let (host, _) = fresh();
        let mut w = Writer::create(host.region(), 0, Naming::of_test(0)).unwrap();
        assert!(matches!(w.open_area(64 << 20, 1, "test"), Err(Error::Full { .. })));
        let grant = w.open_area(1, 1, "test").unwrap();
        while w.grow_area(grant.area, 64 << 10).is_ok() {}
        w.close_area(grant.area).unwrap();
        assert!(w.open_area(300_000, 1, "test").is_ok());
    }

    #[test]
    fn a_pool_of_pages_ends_the_section_and_the_heap_takes_none_of_it() {
        let (host, section) = fresh();
        let (shape, len) = (*host.region().shape(), section.len());
        let (least, align) = (least_section_bytes(&shape), shape.section_align);
        for bytes in [4096, align + 4096, len - least, len - least + align, len, u64::MAX - 4095] {
            assert!(
                Writer::create_with_pages(host.region(), 0, Naming::of_test(0), bytes).is_err(),
                "{bytes}"
            );
        }
        for bytes in [0, 4 * align, len - least - align] {
            let mut w = Writer::create_with_pages(host.region(), 0, Naming::of_test(0), bytes).unwrap();
            let grant = w.open_area(1, 1, "test").unwrap();
            let mut extents = vec![grant.first];
            extents.extend(std::iter::from_fn(|| w.grow_area(grant.area, 1).ok()));
            assert_eq!(
                extents.iter().map(|e| e.offset + e.bytes).max(),
                Some(len - bytes - table_bytes(bytes))
            );
            let word = |at| section.word("t", at).unwrap();
            assert_eq!(
                [directory::PAGES, directory::PAGES_BYTES].map(|at| word(at).get()),
                [len - bytes, bytes]
            );
            assert_eq!(
                word(directory::HEAP).get() + word(directory::HEAP_BYTES).get(),
                len - bytes - table_bytes(bytes)
            );
            // Readers believe no other pool.
            let opens = || OwnDirectory::open(&section, &shape, 1).is_ok();
            for (at, wrong) in [
                (directory::PAGES, align),
                (directory::PAGES, len - bytes - 4096),
                (directory::PAGES_BYTES, bytes + align),
                (directory::PAGES_BYTES, u64::MAX - align + 1),
            ] {
                let good = word(at).get();
                assert!(opens());
                word(at).set(wrong);
                assert!(!opens(), "{bytes}: {at} is {wrong:#x}");
                word(at).set(good);
            }
        }
    }

    #[test]
    fn memory_that_somebody_changes_is_not_given_away() {
        let (mut host, section) = fresh();
        host.activate(0, Naming::of_test(0).system).unwrap();
        let mut w = Writer::create(host.region(), 0, Naming::of_test(0)).unwrap();
        let (a, b) = (w.open_area(1, 1, "test").unwrap(), w.open_area(1, 2, "test").unwrap());
        let block = b.first.offset + counters::BYTES;
        w.open_endpoint(a.area, a.first.offset + counters::BYTES, 1).unwrap();
        w.open_endpoint(b.area, block, 2).unwrap();
        let hold = crate::holds::Hold::of(&section, block).unwrap();
        hold.take(crate::holds::Owner::new(0, a.area));
        section.word("t", a.first.offset + 1024).unwrap().set(7);
        let party = crate::party::Party::new(0, a.area, a.incarnation);
        assert!(party.may_write(host.region()) && w.gone(a.area).is_err());
        w.close_area(a.area).unwrap();
        assert_eq!(w.held(), [a.area]);
        assert_eq!(section.word("t", a.first.offset + 1024).unwrap().get(), 7, "not even zeroed");
        assert!(w.grow_area(a.area, 1).is_err() && w.close_area(a.area).is_err(), "it is gone all the same");
        assert!(!party.may_write(host.region()), "nobody waits for it, whoever holds its memory");
        let c = w.open_area(1, 3, "test").unwrap();
        assert!(c.area != a.area && c.first != a.first);
        assert!(!w.take_back(a.area).unwrap() && !w.gone(a.area).unwrap());
        hold.release();
        assert!(w.take_back(a.area).unwrap());
        assert!(w.held().is_empty());
        assert_eq!(w.open_area(1, 4, "test").unwrap().first, a.first);
        // A holder that is dead itself holds nothing.
        hold.take(crate::holds::Owner::new(0, c.area));
        w.close_area(b.area).unwrap();
        w.close_area(c.area).unwrap();
        assert!(w.held().is_empty());
    }

    #[test]
    fn what_a_process_holds_that_was_dropped_alive_is_held_until_it_is_gone() {
        let (mut host, section) = fresh();
        host.activate(0, Naming::of_test(0).system).unwrap();
        let mut w = Writer::create(host.region(), 0, Naming::of_test(0)).unwrap();
        let (a, b) = (w.open_area(1, 1, "test").unwrap(), w.open_area(1, 2, "test").unwrap());
        let block = b.first.offset + counters::BYTES;
        let (slot, _) = w.open_endpoint(b.area, block, 2).unwrap();
        crate::holds::Hold::of(&section, block).unwrap().take(crate::holds::Owner::new(0, a.area));
        w.end_area(b.area).unwrap();
        w.end_area(a.area).unwrap();
        assert!(!w.take_back(a.area).unwrap(), "it may be in the middle of a put");
        let c = w.open_area(1, 3, "test").unwrap();
        let (other, _) = w.open_endpoint(c.area, c.first.offset + counters::BYTES, 3).unwrap();
        assert_ne!(other, slot, "its hold is known by its slot");
        assert!(w.take_back(b.area).unwrap());
        assert!(w.take_back(a.area).unwrap());
        assert_eq!(w.open_endpoint(c.area, c.first.offset + counters::BYTES, 3).unwrap().0, slot);
    }

    #[test]
    fn the_dead_do_not_live_on_in_what_those_after_them_have() {
        use crate::party::Party;

        let (mut host, _) = fresh();
        host.activate(0, Naming::of_test(0).system).unwrap();
        let mut w = Writer::create(host.region(), 0, Naming::of_test(0)).unwrap();
        // Gives a process that is dead, and whose memory is taken back.
        let mut former = |pid| {
            let grant = w.open_area(1, pid, "test").unwrap();
            let party = Party::new(0, grant.area, grant.incarnation);
            w.end_area(grant.area).unwrap();
            assert!(party.may_write(host.region()), "its process may live on");
            assert!(w.take_back(grant.area).unwrap());
            assert_eq!(grant.area, 0);
            party.word()
        };
        let last = Word::new(former(1));
        std::thread::scope(|threads| {
            let reader = threads.spawn(|| {
                let mut alive = 0;
                while let Some(party) = Party::named(last.get()) {
                    alive += u32::from(party.may_write(host.region()));
                }
                alive
            });
            for pid in 2..100_000 {
                last.set(former(pid));
            }
            last.set(0);
            assert_eq!(reader.join().unwrap(), 0, "taken for alive");
        });
    }

    #[test]
    fn no_birth_comes_twice() {
        let (host, _) = fresh();
        let mut births = Vec::new();
        for former in 0..3 {
            let naming = Naming { former, ..Naming::of_test(0) };
            let mut w = Writer::create(host.region(), 0, naming).unwrap();
            assert_eq!(w.directory().system(), naming.system);
            let area = w.open_area(1, 1, "test").unwrap();
            for _ in 0..3 {
                let (slot, _) = w.open_endpoint(area.area, area.first.offset, 1).unwrap();
                births.push(w.directory().endpoint(slot).unwrap().birth);
                w.close_endpoint(area.area, slot).unwrap();
            }
            if former == 2 {
                w.birth = (w.birth | 0xffff_ffff) - 1;
                assert!(w.open_endpoint(area.area, area.first.offset, 1).is_ok());
                assert!(
                    w.open_endpoint(area.area, area.first.offset, 1).is_err(),
                    "the next are another service's"
                );
            }
        }
        assert!(births.windows(2).all(|pair| pair[0] < pair[1]), "{births:x?}");
    }

    #[test]
    fn only_its_owner_closes_an_endpoint() {
        let (host, _) = fresh();
        let mut w = Writer::create(host.region(), 0, Naming::of_test(0)).unwrap();
        let a = w.open_area(1, 1, "test").unwrap();
        let b = w.open_area(1, 2, "test").unwrap();
        let (slot, _) = w.open_endpoint(a.area, a.first.offset + counters::BYTES, 1).unwrap();
        assert!(w.close_endpoint(b.area, slot).is_err());
        assert!(w.open_endpoint(a.area, u64::MAX - 63, 1).is_err());
    }
}
