//! RMA and atomics without messages: where the target's memory is in the region and published, the initiator
//! copies, or does the operation with its own processor, and the target does nothing.
//!
//! A table in the target's area says what may be reached (`isthmus_region::registrations`). Its ranges are
//! copied when its version changes, and checked at each use: key, bounds and access against the copy, the
//! generation against the table. Before a change the initiator takes a hold on the target's area (P7), and
//! only then checks that the target lives and that the range is still registered; so the memory cannot belong
//! to another process yet. After a read both are checked again (P5).
//!
//! Memory that is not published is reached by messages, and so are writes with data for the target's
//! completions. Atomic operations are direct only where the processor has them for initiator and target, and
//! not while others are under way by messages, which keeps them in the order of the calls.

use std::collections::HashMap;

use isthmus_region::counters::Counter;
use isthmus_region::holds::Owner;
use isthmus_region::local::LocalBuf;
use isthmus_region::registrations::{self, Published, Reader};
use isthmus_region::roster;

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
    /// None before it was first read.
    version: Option<u64>,
    ranges: HashMap<u64, Published>,
}

/// A place in a target's memory that may be used now.
struct Place {
    published: Published,
    section: isthmus_region::Section,
    owner: Owner,
    offset: u64,
}

/// Outcome of an attempt.
enum Attempt {
    /// It goes by messages.
    No,
    /// It is over.
    Over(Status),
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
                Reach::Table(Box::new(Known {
                    reader,
                    section,
                    owner,
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
        // Cannot overflow: the reader has checked the range against the section.
        let offset = range.offset + offset;
        Some(Ok(Place { published: published.clone(), section, owner: known.owner, offset }))
    }

    /// Runs `change` under a hold, if the target lives and the range is still registered.
    fn change(
        &mut self,
        berth: &mut Berth,
        to: PeerId,
        place: &Place,
        change: impl FnOnce(&Self) -> Status,
    ) -> Attempt {
        berth.hold.take(place.owner);
        let stands = self.peers[to.0 as usize].lives() && place.published.stands();
        let attempt = if stands { Attempt::Over(change(self)) } else { Attempt::No };
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
                let mut at = place.offset;
                for buf in rma.bufs {
                    if place.section.fill("registration", at, *buf).is_err() {
                        return Status::NoAccess;
                    }
                    at += buf.len() as u64;
                }
                Status::Ok
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
                let mut at = place.offset;
                let all = rma.bufs.iter().all(|buf| {
                    let copied = place.section.drain("registration", at, *buf).is_ok();
                    at += buf.len() as u64;
                    copied
                });
                match (all, place.published.stood(), self.still_lives(rma.to)) {
                    (_, _, false) => Attempt::Over(Status::PeerGone),
                    (_, false, _) => Attempt::No,
                    (true, true, true) => Attempt::Over(Status::Ok),
                    (false, true, true) => Attempt::Over(Status::NoAccess),
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
            Some(Ok(place)) if !place.offset.is_multiple_of(size.max(1)) => return false,
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
                    let done =
                        this.memory.atomic_there(&place.section, place.offset, span, &what, &mut before);
                    done.err().unwrap_or(Status::Ok)
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
