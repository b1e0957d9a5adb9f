//! RMA and atomics without messages: where the target's memory is in the region and published, the initiator
//! copies, or does the operation with its own processor, and the target does nothing.
//!
//! A table in the target's area says what may be reached (`isthmus_region::registrations`). Its ranges are
//! copied when its version changes, and checked at each use: key, bounds and access against the copy, the
//! generation against the table. Before a change the initiator takes a hold on the target's area (P7), and
//! only then checks that the target lives and that the range is still registered; so the memory cannot belong
//! to another process yet. After a read both are checked again (P5).
//!
//! Where the target has granted pages of its own memory, and keeps them, the table has a list of these
//! (`isthmus_region::grants`): the initiator finds each page by the list, and checks it in the grant table as it checks the range.
//! What of it is not granted, or not any more, is reached by messages, which the target takes as a sign to grant it. While such
//! messages are under way nothing is done directly there, so that nothing overtakes them.
//!
//! Memory that is not published is reached by messages, and so are writes with data for the target's
//! completions. Atomic operations are direct only where the processor has them for initiator and target, and
//! not while others are under way by messages, which keeps them in the order of the calls.

use isthmus_lockfree::life::unchanged;
use isthmus_region::counters::Counter;
use isthmus_region::grants::{self, Granted, PAGE, Pool};
use isthmus_region::holds::Owner;
use isthmus_region::local::LocalBuf;
use isthmus_region::registrations::{self, Published, Range, Reader};
use isthmus_region::roster;
use isthmus_region::sync::Word;

use super::post::total;
use super::{ATOMIC_BYTES, Berth, Core};
use crate::matching::Bufs;
use crate::types::{Atomic, AtomicKind, Op, PeerId, Posted, RemoteAtomic, Rma, Status, Ticket};

/// What is known of a remote endpoint's published memory.
#[derive(Debug, Default)]
pub(super) enum Reach {
    /// Not checked yet.
    #[default]
    Unknown,
    /// It has no table.
    None,
    /// Its table, as last read.
    Table(Box<Known>),
}

#[derive(Debug)]
pub(super) struct Known {
    reader: Reader,
    /// The target's section, to be written.
    section: isthmus_region::Section,
    owner: Owner,
    /// The pages that its process may have granted, and what the grant table calls the process; none if it has none.
    pool: Option<(Pool, u64)>,
    /// None before it was first read.
    version: Option<u64>,
    /// By key.
    ranges: Vec<Published>,
    /// Which of them was used last: it is looked at first.
    last: usize,
}

impl Known {
    /// The range with a key, as the table has it now.
    fn range(&mut self, key: u64) -> Option<usize> {
        let version = self.reader.version();
        if self.version != Some(version) {
            self.ranges = self.reader.ranges();
            self.ranges.sort_by_key(|p| p.range.key);
            self.version = Some(version);
        }
        if self.ranges.get(self.last).is_none_or(|p| p.range.key != key) {
            self.last = self.ranges.binary_search_by_key(&key, |p| p.range.key).ok()?;
        }
        Some(self.last)
    }

    /// The registration that was used last, if these bytes are of it, and where in it, if it allows `needed`. It may have ended since: the
    /// caller looks whether it stands.
    #[inline(always)] // a few instructions of a short operation
    fn found_last(&self, key: u64, addr: u64, len: u64, needed: u64) -> Option<(&Published, u64)> {
        let published = self.ranges.get(self.last)?;
        let range = &published.range;
        let at = addr.wrapping_sub(range.base);
        let fits = at.checked_add(len).is_some_and(|end| end <= range.len);
        (range.key == key && fits && range.access & needed == needed).then_some((published, at))
    }

    /// Byte `at` of such a registration, of which `len` bytes are used.
    #[inline(always)] // as `found_last`
    fn spot(&self, published: &Published, at: u64, len: u64) -> Option<Spot> {
        let range = &published.range;
        if range.access & registrations::PAGES == 0 {
            return Some(Spot { offset: range.offset + at, page: None });
        }
        self.spot_in_page(range, range.skip + at, len)
    }

    /// The same in the page that all of these bytes lie in, if it is granted, as [`Pages::find`].
    #[inline(never)]
    fn spot_in_page(&self, range: &Range, at: u64, len: u64) -> Option<Spot> {
        let (pool, owner) = self.pool.as_ref()?;
        let list = range.offset + at / PAGE * 8;
        let granted = Granted::of_word(self.section.word("list of pages", list).ok()?.get())?;
        let stands = pool.stands(*owner, granted);
        let offset = pool.place(granted, at % PAGE, len).ok().filter(|_| stands)?;
        Some(Spot { offset, page: Some((list, granted)) })
    }

    /// Whether the page still was granted when all of a copy had been made (P5).
    #[inline(always)] // as `found_last`
    fn stood(&self, spot: &Spot) -> bool {
        spot.page.is_none_or(|(list, granted)| self.page_stood(list, granted))
    }

    #[inline(never)]
    fn page_stood(&self, list: u64, granted: Granted) -> bool {
        self.pool.as_ref().is_some_and(|(pool, owner)| pool.stands(*owner, granted))
            && self
                .section
                .word("list of pages", list)
                .is_ok_and(|word: &Word| unchanged(word, granted.word()))
    }
}

/// Where the bytes of a short operation lie in the target's section.
struct Spot {
    offset: u64,
    /// The page, if it is one of the target's own memory, and where the list names it.
    page: Option<(u64, Granted)>,
}

/// What an operation uses, and the access that it needs.
struct Use {
    key: u64,
    addr: u64,
    len: u64,
    needed: u64,
    /// Whether operations of ours on the target's memory are under way by messages.
    behind: bool,
}

/// Pages of a target's own memory.
struct Pages<'a> {
    pool: &'a Pool,
    owner: u64,
    /// Offset in the section of the list's word for the first of them, and where in it the memory begins.
    list: u64,
    skip: u64,
}

/// Pages of a use, few of which take no memory of their own.
enum Found {
    Few([Option<Granted>; FEW], usize),
    Many(Vec<Option<Granted>>),
}

/// How many are few.
const FEW: usize = 4;
/// Bytes of an element or two, and of what they are compared with.
const FEW_BYTES: usize = 64;

impl Found {
    fn pages(&self) -> &[Option<Granted>] {
        match self {
            Self::Few(pages, count) => &pages[..*count],
            Self::Many(pages) => pages,
        }
    }
}

impl Pages<'_> {
    /// Looks up the pages that `len` bytes lie in; none if one of them is not granted.
    ///
    /// # Ordering
    /// Under a hold, what was granted then is the target's or nobody's until the hold ends.
    fn find(&self, section: &isthmus_region::Section, len: u64) -> Option<Found> {
        let count = if len == 0 { 0 } else { usize::try_from((self.skip + len).div_ceil(PAGE)).ok()? };
        let mut found = match count {
            0..=FEW => Found::Few([None; FEW], count),
            _ => Found::Many(vec![None; count]),
        };
        let pages = match &mut found {
            Found::Few(pages, count) => &mut pages[..*count],
            Found::Many(pages) => pages,
        };
        for (page, word) in pages.iter_mut().zip((self.list..).step_by(8)) {
            *page = Granted::of_word(section.word("list of pages", word).ok()?.get());
        }
        (self.pool.standing(self.owner, pages) == count).then_some(found)
    }

    /// Whether they still were granted when all of a copy had been made (P5).
    fn stood(&self, section: &isthmus_region::Section, found: &Found) -> bool {
        let pages = found.pages();
        let words = pages.iter().map(|page| page.map_or(0, Granted::word)).zip((self.list..).step_by(8));
        let same =
            |(named, at)| section.word("list of pages", at).is_ok_and(|word: &Word| unchanged(word, named));
        self.pool.standing(self.owner, pages) == pages.len() && words.into_iter().all(same)
    }

    /// Has `each` copy `len` bytes, run by run: it is given the offset in the section, where in the buffers, and how many.
    fn each(
        &self,
        found: &Found,
        len: u64,
        mut each: impl FnMut(u64, u64, u64) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let mut done = 0;
        while done < len {
            let (number, start) = ((self.skip + done) / PAGE, (self.skip + done) % PAGE);
            let rest = usize::try_from(number).ok().and_then(|number| found.pages().get(number..));
            let Some(rest @ [Some(first), ..]) = rest else { return Err(Status::NoAccess) };
            let take = (self.pool.run(rest) as u64 * PAGE).saturating_sub(start).min(len - done);
            if take == 0 {
                return Err(Status::NoAccess);
            }
            let place = self.pool.place(*first, start, take).map_err(|_| Status::NoAccess)?;
            each(place, done, take)?;
            done += take;
        }
        Ok(())
    }
}

/// A place in a target's memory that may be used now.
struct Place<'a> {
    published: &'a Published,
    section: &'a isthmus_region::Section,
    owner: Owner,
    offset: u64,
    /// Where it lies instead, if in pages of the target's own memory.
    pages: Option<Pages<'a>>,
}

impl<'a> Place<'a> {
    /// The place for a use, or the status with which the operation fails. None if its registration is not published: the operation goes by
    /// messages.
    fn of(known: &'a mut Known, what: &Use) -> Option<Result<Self, Status>> {
        let Use { key, addr, len, needed, behind } = *what;
        let at = known.range(key)?;
        let known = &*known;
        let published = &known.ranges[at];
        let range = &published.range;
        if needed & registrations::ATOMIC != 0
            && range.access & (registrations::WRITE | registrations::ATOMIC) == registrations::WRITE
        {
            // Only the target does atomic operations here.
            return None;
        }
        let offset = addr.wrapping_sub(range.base);
        let fits = offset.checked_add(len).is_some_and(|end| end <= range.len);
        if !fits || range.access & needed != needed {
            return Some(Err(Status::NoAccess));
        }
        let Known { section, owner, .. } = known;
        let pages = if range.access & registrations::PAGES == 0 {
            None
        } else if behind {
            return None;
        } else {
            let (pool, owner) = known.pool.as_ref()?;
            let at = range.skip + offset;
            Some(Pages { pool, owner: *owner, list: range.offset + at / PAGE * 8, skip: at % PAGE })
        };
        // Cannot overflow: the reader has checked the range against the section.
        let offset = range.offset + if pages.is_some() { 0 } else { offset };
        Some(Ok(Place { published, section, owner: *owner, offset, pages }))
    }

    /// Has `change` write `len` bytes, piece by piece as [`Pages::each`]; nothing is written unless all can be.
    fn write(
        &self,
        len: u64,
        mut change: impl FnMut(u64, u64, u64) -> Result<(), Status>,
    ) -> Result<bool, Status> {
        let Some(pages) = &self.pages else { return change(self.offset, 0, len).map(|()| true) };
        // What is written to a page that the target loses meanwhile is as if it had been written just before.
        match pages.find(self.section, len) {
            Some(found) => pages.each(&found, len, change).map(|()| true),
            None => Ok(false),
        }
    }

    /// Has `copy` read `len` bytes likewise. Gives whether they were the target's.
    fn read(
        &self,
        len: u64,
        mut copy: impl FnMut(u64, u64, u64) -> Result<(), Status>,
    ) -> Result<bool, Status> {
        let Some(pages) = &self.pages else { return copy(self.offset, 0, len).map(|()| true) };
        match pages.find(self.section, len) {
            Some(found) => pages.each(&found, len, copy).map(|()| pages.stood(self.section, &found)),
            None => Ok(false),
        }
    }

    /// Whether the processor can change elements of `size` there, `span` bytes in all: they are aligned, and in one page.
    fn is_for_atomics(&self, size: u64, span: u64) -> bool {
        let begin = self.pages.as_ref().map_or(self.offset, |pages| pages.skip);
        begin.is_multiple_of(size.max(1)) && self.pages.as_ref().is_none_or(|pages| pages.skip + span <= PAGE)
    }
}

/// Outcome of an attempt.
enum Attempt {
    /// It goes by messages.
    No,
    /// It is over.
    Over(Status),
}

impl Attempt {
    /// Of pages that were all there, or not, and of a copy from or to them.
    fn of(outcome: Result<bool, Status>) -> Self {
        match outcome {
            Ok(true) => Self::Over(Status::Ok),
            Ok(false) => Self::No,
            Err(status) => Self::Over(status),
        }
    }
}

impl Core {
    /// What is known of a target's published memory, taken out of its peer: [`Core::put_back`] puts it back. None if all goes by messages.
    fn known(&mut self, berth: &Berth, to: PeerId) -> Option<Box<Known>> {
        let peer = self.peers.get_mut(to.0 as usize)?;
        if let Reach::Unknown = peer.reach {
            let record = peer.record.as_ref()?;
            let slot = record.slot();
            let (directory, info) = roster::endpoint(&berth.member, slot).ok()?;
            if !info.life.is_active(record.incarnation()) {
                return None;
            }
            // Without a valid area number there is no area to hold: the endpoint is reached by messages.
            let area = u32::try_from(info.area).ok()?;
            let reader = Reader::open(directory.section(), info.block).ok().flatten();
            // Where this process may only read, all goes by messages, reads too: they must not overtake the writes.
            let open = reader.zip(directory.section().writable().ok());
            let index = slot.peer(berth.member.region().shape().endpoints);
            peer.reach = open.map_or(Reach::None, |(reader, section)| {
                let owner = Owner::new(index, area);
                let pool = Pool::of(directory.section()).map(|pool| (pool, grants::owner(area)));
                let ranges = Vec::new();
                Reach::Table(Box::new(Known { reader, section, owner, pool, version: None, ranges, last: 0 }))
            });
        }
        if let Reach::None = peer.reach {
            return None;
        }
        match std::mem::take(&mut peer.reach) {
            Reach::Table(known) => Some(known),
            Reach::Unknown | Reach::None => None,
        }
    }

    /// Puts back what [`Core::known`] took. Where that never comes, by a panic, it is found anew.
    fn put_back(&mut self, to: PeerId, known: Box<Known>) {
        self.peers[to.0 as usize].reach = Reach::Table(known);
    }

    /// Runs `change` under a hold, if the target lives and the range is still registered.
    fn change(
        &mut self,
        berth: &mut Berth,
        to: PeerId,
        place: &Place<'_>,
        change: impl FnOnce(&Self) -> Attempt,
    ) -> Attempt {
        berth.hold.take(place.owner);
        let stands = self.peers[to.0 as usize].lives() && place.published.stands();
        let attempt = if stands { change(self) } else { Attempt::No };
        berth.hold.release();
        match attempt {
            // The change may be lost with its target.
            Attempt::Over(Status::Ok) if !self.still_lives(to) => Attempt::Over(Status::PeerGone),
            other => other,
        }
    }

    /// Ends an operation that is over, and has a completion made if it failed; none if it is not over.
    fn end_attempt(
        &mut self,
        to: PeerId,
        attempt: Attempt,
        ticket: Ticket,
        op: Op,
        len: u64,
    ) -> Option<Posted> {
        let Attempt::Over(status) = attempt else { return None };
        if status == Status::Ok {
            self.count_direct(len);
            return Some(Posted::Done);
        }
        self.tally.add(Counter::Rma, 1);
        let mut then = self.template(ticket, op, len);
        then.status = status;
        then.source = Some(to);
        self.completions.push_back(then);
        Some(Posted::Pending)
    }

    /// As [`super::Endpoint::write_at_once`].
    #[inline(always)] // all that a short operation takes, in its caller
    pub(super) fn write_at_once(
        &mut self,
        berth: &Option<Berth>,
        to: PeerId,
        key: u64,
        addr: u64,
        buf: LocalBuf,
    ) -> bool {
        let (Some(peer), Some(berth)) = (self.peers.get(to.0 as usize), berth) else { return false };
        let Reach::Table(known) = &peer.reach else { return false };
        let len = buf.len() as u64;
        let Some((published, at)) = known.found_last(key, addr, len, registrations::WRITE) else {
            return false;
        };
        if self.takes_long(published, at, len, to) {
            return false;
        }
        berth.hold.take(known.owner);
        let stands = peer.lives() && published.stands();
        let spot = if stands { known.spot(published, at, len) } else { None };
        let is_written = spot.is_some_and(|spot| known.section.fill_short("registration", spot.offset, buf));
        berth.hold.release();
        // What was written may be lost with its target: then the long way says so.
        let is_over = is_written && peer.still_lives();
        if is_over {
            self.count_direct(len);
        }
        is_over
    }

    /// As [`super::Endpoint::read_at_once`].
    #[inline(always)] // as `write_at_once`
    pub(super) fn read_at_once(&mut self, to: PeerId, key: u64, addr: u64, buf: LocalBuf) -> bool {
        let Some(peer) = self.peers.get(to.0 as usize) else { return false };
        let Reach::Table(known) = &peer.reach else { return false };
        let len = buf.len() as u64;
        let Some((published, at)) = known.found_last(key, addr, len, registrations::READ) else {
            return false;
        };
        if self.takes_long(published, at, len, to) {
            return false;
        }
        let Some(spot) = known.spot(published, at, len) else { return false };
        let is_read = known.section.drain_short("registration", spot.offset, buf);
        // Bytes that were not the target's are read again.
        let is_over = is_read && known.stood(&spot) && published.stood() && peer.still_lives();
        if is_over {
            self.count_direct(len);
        }
        is_over
    }

    /// Whether these bytes of the target's own memory lie in more than one page, or operations that are under way by messages would be
    /// overtaken.
    #[inline(always)] // a few instructions of a short operation
    fn takes_long(&self, published: &Published, at: u64, len: u64, to: PeerId) -> bool {
        let range = &published.range;
        range.access & registrations::PAGES != 0
            && ((range.skip + at) % PAGE + len > PAGE || self.operations.one_sided(to) > 0)
    }

    #[inline]
    fn count_direct(&mut self, len: u64) {
        self.tally.add(Counter::Rma, 1);
        self.tally.add(Counter::Direct, 1);
        self.tally.add(Counter::DirectBytes, len);
    }

    /// Writes directly if possible; none if the operation is not over.
    pub(super) fn write_directly(&mut self, berth: &mut Berth, rma: &Rma<'_>, len: u64) -> Option<Posted> {
        if rma.data.is_some() {
            return None;
        }
        let mut known = self.known(berth, rma.to)?;
        let attempt = match Place::of(&mut known, &self.use_of(rma, len, registrations::WRITE)) {
            None => Attempt::No,
            Some(Err(status)) => Attempt::Over(status),
            Some(Ok(place)) => self.change(berth, rma.to, &place, |_| {
                let bufs = Bufs::new(rma.bufs);
                Attempt::of(place.write(len, |offset, from, len| {
                    let fill = |done, piece| place.section.fill("registration", offset + done, piece);
                    bufs.pieces(from, len, fill).map_err(|_| Status::NoAccess)
                }))
            }),
        };
        self.put_back(rma.to, known);
        self.end_attempt(rma.to, attempt, rma.ticket, Op::Write, len)
    }

    /// Reads directly if possible; none if the operation is not over.
    pub(super) fn read_directly(&mut self, berth: &mut Berth, rma: &Rma<'_>, len: u64) -> Option<Posted> {
        let mut known = self.known(berth, rma.to)?;
        let attempt = match Place::of(&mut known, &self.use_of(rma, len, registrations::READ)) {
            None => Attempt::No,
            Some(Err(status)) => Attempt::Over(status),
            Some(Ok(place)) => {
                let bufs = Bufs::new(rma.bufs);
                let all = place.read(len, |offset, from, len| {
                    let drain = |done, piece| place.section.drain("registration", offset + done, piece);
                    bufs.pieces(from, len, drain).map_err(|_| Status::NoAccess)
                });
                match (place.published.stood(), self.still_lives(rma.to)) {
                    (_, false) => Attempt::Over(Status::PeerGone),
                    (false, _) => Attempt::No,
                    (true, true) => Attempt::of(all),
                }
            }
        };
        self.put_back(rma.to, known);
        self.end_attempt(rma.to, attempt, rma.ticket, Op::Read, len)
    }

    fn use_of(&self, rma: &Rma<'_>, len: u64, needed: u64) -> Use {
        let behind = self.operations.one_sided(rma.to) > 0;
        Use { key: rma.key, addr: rma.addr, len, needed, behind }
    }

    /// Does an atomic operation directly if possible; none if the operation is not over. Lengths were
    /// checked.
    pub(super) fn atomic_directly(
        &mut self,
        berth: &mut Berth,
        atomic: &Atomic<'_>,
        span: u64,
    ) -> Option<Posted> {
        let size = u64::from(atomic.size);
        if !self.memory.is_atomic_here(size) || self.operations.one_sided(atomic.to) > 0 {
            return None;
        }
        // An operation that returns values needs read access, too.
        let reads = if atomic.kind == AtomicKind::Plain { 0 } else { registrations::READ };
        let needed = registrations::ATOMIC | reads;
        let what = Use { key: atomic.key, addr: atomic.addr, len: span, needed, behind: false };
        let mut known = self.known(berth, atomic.to)?;
        let attempt = match Place::of(&mut known, &what) {
            Some(Err(status)) => Attempt::Over(status),
            Some(Ok(place)) if place.is_for_atomics(size, span) => {
                let values = total(atomic.operand) + total(atomic.compare);
                match values <= FEW_BYTES as u64 {
                    true => self.change_atomically::<FEW_BYTES>(berth, atomic, span, &place),
                    false => self.change_atomically::<{ 2 * ATOMIC_BYTES }>(berth, atomic, span, &place),
                }
            }
            _ => Attempt::No,
        };
        self.put_back(atomic.to, known);
        self.end_attempt(atomic.to, attempt, atomic.ticket, Op::Atomic(atomic.kind), span)
    }

    /// Changes elements there. `ROOM` is that of operands and compare values.
    #[inline(never)] // many take little room
    fn change_atomically<const ROOM: usize>(
        &mut self,
        berth: &mut Berth,
        atomic: &Atomic<'_>,
        span: u64,
        place: &Place<'_>,
    ) -> Attempt {
        let mut bytes = [0; ROOM];
        let mut at = 0;
        let mut take = |bufs: &[LocalBuf]| {
            let from = at;
            for buf in bufs {
                at += buf.read(&mut bytes[at..]);
            }
            from..at
        };
        let (operand, compare) = (take(atomic.operand), take(atomic.compare));
        let what = RemoteAtomic {
            kind: atomic.kind,
            datatype: atomic.datatype,
            op: atomic.op,
            count: atomic.count,
            operand: &bytes[operand],
            compare: &bytes[compare],
        };
        let mut before = std::mem::take(&mut self.values);
        before.clear();
        let attempt = self.change(berth, atomic.to, place, |this| {
            Attempt::of(place.write(span, |offset, _, len| {
                this.memory.atomic_there(place.section, offset, len, &what, &mut before)
            }))
        });
        if atomic.kind != AtomicKind::Plain && matches!(attempt, Attempt::Over(Status::Ok)) {
            Bufs::new(atomic.result).scatter(0, &before);
        }
        self.values = before;
        attempt
    }
}
