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

use std::collections::HashMap;

use isthmus_lockfree::life::unchanged;
use isthmus_region::counters::Counter;
use isthmus_region::grants::{self, Granted, PAGE, Pool};
use isthmus_region::holds::Owner;
use isthmus_region::local::LocalBuf;
use isthmus_region::registrations::{self, Published, Reader};
use isthmus_region::roster;
use isthmus_region::sync::Word;

use super::{ATOMIC_BYTES, Berth, Core};
use crate::matching::Bufs;
use crate::types::{Atomic, AtomicKind, Op, PeerId, RemoteAtomic, Rma, Status, Ticket};

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
    ranges: HashMap<u64, Published>,
}

/// Pages of a target's own memory.
struct Pages {
    pool: Pool,
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

impl Found {
    fn pages(&self) -> &[Option<Granted>] {
        match self {
            Self::Few(pages, count) => &pages[..*count],
            Self::Many(pages) => pages,
        }
    }
}

impl Pages {
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
struct Place {
    published: Published,
    section: isthmus_region::Section,
    owner: Owner,
    offset: u64,
    /// Where it lies instead, if in pages of the target's own memory.
    pages: Option<Pages>,
}

impl Place {
    /// Has `change` write `len` bytes, piece by piece as [`Pages::each`]; nothing is written unless all can be.
    fn write(
        &self,
        len: u64,
        mut change: impl FnMut(u64, u64, u64) -> Result<(), Status>,
    ) -> Result<bool, Status> {
        let Some(pages) = &self.pages else { return change(self.offset, 0, len).map(|()| true) };
        // What is written to a page that the target loses meanwhile is as if it had been written just before.
        match pages.find(&self.section, len) {
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
        match pages.find(&self.section, len) {
            Some(found) => pages.each(&found, len, copy).map(|()| pages.stood(&self.section, &found)),
            None => Ok(false),
        }
    }

    /// What of its place says how its elements are aligned.
    fn begin(&self) -> u64 {
        self.pages.as_ref().map_or(self.offset, |pages| pages.skip)
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
    /// Finds the place for a use that needs all access of `needed`, or the status with which the operation
    /// fails. None if its registration is not published: the operation goes by messages.
    fn place_of(
        &mut self,
        berth: &mut Berth,
        to: PeerId,
        key: u64,
        addr: u64,
        len: u64,
        needed: u64,
    ) -> Option<Result<Place, Status>> {
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
                Reach::Table(Box::new(Known {
                    reader,
                    section,
                    owner,
                    pool,
                    version: None,
                    ranges: HashMap::new(),
                }))
            });
        }
        let Reach::Table(known) = &mut peer.reach else { return None };
        let version = known.reader.version();
        if known.version != Some(version) {
            known.ranges = known.reader.ranges().into_iter().map(|p| (p.range.key, p)).collect();
            known.version = Some(version);
        }
        let published = known.ranges.get(&key)?;
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
        let section = known.section.clone();
        let pages = if range.access & registrations::PAGES == 0 {
            None
        } else if self.operations.one_sided(to) > 0 {
            return None;
        } else {
            let (pool, owner) = known.pool.clone()?;
            let at = range.skip + offset;
            Some(Pages { pool, owner, list: range.offset + at / PAGE * 8, skip: at % PAGE })
        };
        // Cannot overflow: the reader has checked the range against the section.
        let offset = range.offset + if pages.is_some() { 0 } else { offset };
        Some(Ok(Place { published: published.clone(), section, owner: known.owner, offset, pages }))
    }

    /// Runs `change` under a hold, if the target lives and the range is still registered.
    fn change(
        &mut self,
        berth: &mut Berth,
        to: PeerId,
        place: &Place,
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

    /// Completes an operation, if it is over; returns whether it is.
    fn end_attempt(&mut self, to: PeerId, attempt: Attempt, ticket: Ticket, op: Op, len: u64) -> bool {
        let Attempt::Over(status) = attempt else { return false };
        let mut then = self.template(ticket, op, len);
        then.status = status;
        then.source = (status != Status::Ok).then_some(to);
        self.completions.push_back(then);
        self.tally.add(Counter::Rma, 1);
        if status == Status::Ok {
            self.tally.add(Counter::Direct, 1);
            self.tally.add(Counter::DirectBytes, len);
        }
        true
    }

    /// Writes directly if possible; returns whether the operation is over.
    pub(super) fn write_directly(&mut self, berth: &mut Berth, rma: &Rma<'_>, len: u64) -> bool {
        if rma.data.is_some() {
            return false;
        }
        let attempt = match self.place_of(berth, rma.to, rma.key, rma.addr, len, registrations::WRITE) {
            None => return false,
            Some(Err(status)) => Attempt::Over(status),
            Some(Ok(place)) => self.change(berth, rma.to, &place, |_| {
                let bufs = Bufs::new(rma.bufs);
                Attempt::of(place.write(len, |offset, from, len| {
                    let fill = |done, piece| place.section.fill("registration", offset + done, piece);
                    bufs.pieces(from, len, fill).map_err(|_| Status::NoAccess)
                }))
            }),
        };
        self.end_attempt(rma.to, attempt, rma.ticket, Op::Write, len)
    }

    /// Reads directly if possible; returns whether the operation is over.
    pub(super) fn read_directly(&mut self, berth: &mut Berth, rma: &Rma<'_>, len: u64) -> bool {
        let attempt = match self.place_of(berth, rma.to, rma.key, rma.addr, len, registrations::READ) {
            None => return false,
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
        self.end_attempt(rma.to, attempt, rma.ticket, Op::Read, len)
    }

    /// Does an atomic operation directly if possible; returns whether the operation is over. Lengths were
    /// checked.
    pub(super) fn atomic_directly(&mut self, berth: &mut Berth, atomic: &Atomic<'_>, span: u64) -> bool {
        let size = u64::from(atomic.size);
        if !self.memory.is_atomic_here(size) || self.operations.one_sided(atomic.to) > 0 {
            return false;
        }
        // An operation that returns values needs read access, too.
        let reads = if atomic.kind == AtomicKind::Plain { 0 } else { registrations::READ };
        let place =
            self.place_of(berth, atomic.to, atomic.key, atomic.addr, span, registrations::ATOMIC | reads);
        let attempt = match place {
            None => return false,
            Some(Err(status)) => Attempt::Over(status),
            Some(Ok(place)) if !place.begin().is_multiple_of(size.max(1)) => return false,
            Some(Ok(place)) if place.pages.as_ref().is_some_and(|pages| pages.skip + span > PAGE) => {
                return false;
            }
            Some(Ok(place)) => {
                let mut bytes = [0; 2 * ATOMIC_BYTES];
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
                let mut before = Vec::new();
                let attempt = self.change(berth, atomic.to, &place, |this| {
                    Attempt::of(place.write(span, |offset, _, len| {
                        this.memory.atomic_there(&place.section, offset, len, &what, &mut before)
                    }))
                });
                if atomic.kind != AtomicKind::Plain && matches!(attempt, Attempt::Over(Status::Ok)) {
                    Bufs::new(atomic.result).scatter(0, &before);
                }
                attempt
            }
        };
        self.end_attempt(atomic.to, attempt, atomic.ticket, Op::Atomic(atomic.kind), span)
    }
}
