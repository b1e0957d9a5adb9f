//! Long messages to another system whose bytes stay where their program has them: in pages that the sender's guest driver has moved into
//! the pool of its VM's section, where the receiver copies from (`isthmus_region::grants`).
//!
//! The sender says in its announcement that it can grant pages, the receiver in its `CLEAR` that it wants them. What is in granted pages
//! then goes as `PAGES`, which name a list of pages in the sender's area, everything else as `CHUNK`s, all in order. The receiver copies them
//! and looks at the grant table and at the list once more. If either has changed, it asks `AGAIN` for the bytes from there on, which
//! then come as `CHUNK`s; what is still under way is left alone. The sender's operation ends with `DONE`.
//!
//! Moving a page costs as much as copying several, so the sender keeps pages granted ([`Cache`]): in chunks of 16 pages, aligned to
//! 64 KiB, each with its list. A chunk is granted when it is sent for the second time. Once the cache is full, a chunk is only let in
//! if the one that was not used for longest has been idle for longer than the newcomer was away, so that buffers that are gone through in
//! turn, more of them than there is room for, do not drive out one another.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use isthmus_lockfree::life::unchanged;
use isthmus_lockfree::slot::Message;
use isthmus_lockfree::sync::release_fence;
use isthmus_region::PeerSection;
use isthmus_region::counters::Counter;
use isthmus_region::grants::{self, Granted, PAGE, Pool};
use isthmus_region::member::Member;
use isthmus_region::roster;
use isthmus_region::roster::Record;

use super::attach::LEAST;
use super::poll::Stop;
use super::table::Operation;
use super::ways;
use super::{Because, Berth, Core, Push};
use crate::hash::Spread;
use crate::types::{Long, PeerId, Replacement};
use crate::wire::{self, flag, kind};
use Stop::Faulty;

/// Pages of a chunk, and its bytes.
const PAGES: usize = 16;
const CHUNK: u64 = PAGES as u64 * PAGE;
/// Bytes of a chunk's list.
const LIST: u64 = PAGES as u64 * 8;
/// Bytes that are taken for lists at once.
const LISTS: u64 = 16 << 10;
/// Most such pieces of an endpoint: twice what the chunks below need.
const MOST_LISTS: u64 = 8;
/// Most beyond them, for lists that messages have which were given up.
const MOST_GIVEN_UP: u64 = 64;
/// Most chunks that are granted: 8,192 pages, as in the paper.
const MOST_CHUNKS: usize = 512;
/// Chunks that were sent and are not granted, of which is known when.
const MOST_SEEN: usize = 8 * MOST_CHUNKS;
/// Uses of granted chunks that are remembered, beyond two for each.
const SPARE_USES: usize = 32;
/// Uses of chunks for which the pool's being full is believed.
const FULL: u64 = 4096;
/// Uses of a chunk after which pages are tried again that could not be granted; doubled each time.
const RETRY: u64 = 4;

/// Keeps a chunk's list as it is while a message is under way. The sender that gives up on one ends the list ([`Berth::withdraw`]).
#[derive(Debug, Clone)]
pub(super) struct Pin {
    chunk: u64,
    /// What counts is how many there are.
    _count: Arc<()>,
}

/// A chunk as a message finds it.
#[derive(Debug)]
pub(super) struct Found {
    chunk: u64,
    /// Offset of its list, and which of its pages are granted, as bits; none is if there is no list.
    list: u64,
    pages: u32,
    /// Whether some were granted now.
    is_fresh: bool,
}

impl Found {
    fn nothing(chunk: u64) -> Self {
        Self { chunk, list: 0, pages: 0, is_fresh: false }
    }
}

/// A chunk of which pages are granted.
#[derive(Debug)]
struct Entry {
    list: u64,
    pages: [Option<Granted>; PAGES],
    /// When it was used last.
    tick: u64,
    /// From which use on pages that are missing are tried again, and how many uses after that.
    retry: u64,
    gap: u64,
    pins: Arc<()>,
}

/// The pages that a process has granted, by their addresses.
#[derive(Debug)]
pub(super) struct Cache {
    pool: Pool,
    owner: u64,
    entries: HashMap<u64, Entry, Spread>,
    /// When which of them was used, in the order of that. Each one's last use is there, and of earlier ones some.
    uses: VecDeque<(u64, u64)>,
    /// Chunks that were sent and are not granted, and when; also in the order of that.
    seen: HashMap<u64, u64, Spread>,
    seen_order: VecDeque<(u64, u64)>,
    /// Chunks of which no page could be granted: from which use on they are tried again, and how many uses after that.
    refused: HashMap<u64, (u64, u64), Spread>,
    free_lists: Vec<u64>,
    /// Lists of messages that were given up.
    given_up: u64,
    /// Pieces of the area that lists lie in.
    pieces: Vec<u64>,
    /// Counts uses of chunks.
    ticks: u64,
    most: usize,
    /// Until then there is room for so many: others of the process or the VM have granted the rest.
    full: (u64, usize),
    replacement: Replacement,
}

/// Bits `from` to `from + count - 1`.
fn bits(from: usize, count: usize) -> u32 {
    ((1_u32 << count) - 1) << from
}

impl Cache {
    /// None where this process may grant none, or is not to.
    pub(super) fn of(member: &Member, long: Long, replacement: Replacement) -> Option<Self> {
        if long == Long::Copy {
            return None;
        }
        let pool = Pool::of(&member.section().for_reading())?;
        let mut none = [None; 1];
        // Nothing is at address 0, and the driver says so, if there is one that would grant pages.
        member.grant_pages(0, &mut none).ok()?;
        let most = usize::try_from(pool.count() / PAGES as u64).unwrap_or(0).min(MOST_CHUNKS);
        (most > 0).then(|| Self {
            pool,
            owner: grants::owner(member.grant().area),
            entries: HashMap::default(),
            uses: VecDeque::new(),
            seen: HashMap::default(),
            seen_order: VecDeque::new(),
            refused: HashMap::default(),
            free_lists: Vec::new(),
            given_up: 0,
            pieces: Vec::new(),
            ticks: 0,
            most,
            full: (0, 0),
            replacement,
        })
    }

    /// What of a chunk is granted for a message that has pages `from` to `from + count - 1` of it.
    fn find(&mut self, member: &Member, chunk: u64, from: usize, count: usize) -> (Found, Option<Pin>) {
        self.ticks += 1;
        let now = self.ticks;
        let away = match self.entries.get(&chunk) {
            Some(entry) if self.replacement == Replacement::Idle => Some(now - entry.tick),
            Some(_) => Some(0),
            None => self.admit(member, chunk),
        };
        let Some(away) = away else { return (Found::nothing(chunk), None) };
        self.used(chunk, now);
        let Self { pool, owner, entries, .. } = self;
        let Some(entry) = entries.get_mut(&chunk) else { return (Found::nothing(chunk), None) };
        entry.tick = now;
        let pages = entry.standing(pool, *owner, from, count);
        if pages == bits(from, count) || entry.retry > now {
            return entry.found(chunk, pages, false);
        }
        self.grant_more(member, chunk, from, count, (pages, away))
    }

    /// [`Cache::find`] of a chunk that has only `pages` of them granted, and was not used for `away` uses of others.
    fn grant_more(
        &mut self,
        member: &Member,
        chunk: u64,
        from: usize,
        count: usize,
        (pages, away): (u32, u64),
    ) -> (Found, Option<Pin>) {
        let now = self.ticks;
        let nothing = || (Found::nothing(chunk), None);
        let Some(entry) = self.entries.get_mut(&chunk) else { return nothing() };
        let (mut granted, is_full) = entry.grant(member, chunk, from, count);
        let mut made_room = 0;
        // Others of the process or the VM have granted the rest: what was idle for longer than this was away makes room for it.
        if is_full && self.evict(member, away, chunk) {
            let Some(entry) = self.entries.get_mut(&chunk) else { return nothing() };
            (granted, _) = entry.grant(member, chunk, from, count);
            // The driver may still be clearing it.
            made_room = 1;
        }
        let Some(entry) = self.entries.get_mut(&chunk) else { return nothing() };
        if granted == bits(from, count) {
            (entry.gap, entry.retry) = (RETRY, 0);
        } else {
            entry.gap = (2 * entry.gap).min(1 << 20);
            entry.retry = now + entry.gap * PAGES as u64;
        }
        // What holds nothing is in the way of others. A message that is under way may still need the list.
        if entry.is_empty_and_free() {
            let (retry, gap) = (entry.retry, entry.gap);
            let list = self.forget(member, chunk);
            self.free_lists.extend(list);
            if is_full {
                self.full = (now + FULL, self.entries.len() + made_room);
                self.saw(chunk, now);
            } else {
                self.refuse(chunk, retry, gap);
            }
            return nothing();
        }
        entry.found(chunk, granted, granted & !pages != 0)
    }

    /// Notes a use of a chunk that has an entry.
    fn used(&mut self, chunk: u64, now: u64) {
        if let Some((tick, last)) = self.uses.back_mut()
            && *last == chunk
        {
            *tick = now;
            return;
        }
        if self.uses.len() > 2 * self.entries.len() + SPARE_USES {
            let mut uses = std::mem::take(&mut self.uses);
            uses.retain(|(tick, chunk)| self.is_last_use(*tick, *chunk));
            self.uses = uses;
        }
        self.uses.push_back((now, chunk));
    }

    fn is_last_use(&self, tick: u64, chunk: u64) -> bool {
        self.entries.get(&chunk).is_some_and(|entry| entry.tick == tick)
    }

    /// Notes that a chunk that is not granted was used; gives when it was before.
    fn saw(&mut self, chunk: u64, now: u64) -> Option<u64> {
        let before = self.seen.insert(chunk, now);
        self.seen_order.push_back((now, chunk));
        while self.seen_order.len() > MOST_SEEN
            && let Some((tick, chunk)) = self.seen_order.pop_front()
        {
            if self.seen.get(&chunk) == Some(&tick) {
                self.seen.remove(&chunk);
            }
        }
        before
    }

    /// Notes that no page of a chunk can be granted, before so many uses.
    fn refuse(&mut self, chunk: u64, retry: u64, gap: u64) {
        if self.refused.len() >= MOST_SEEN {
            self.refused.clear();
        }
        self.refused.insert(chunk, (retry, gap));
    }

    /// Lets a chunk in that is not granted, if the rule does and there is room for it. If it has an entry now, gives for how many uses of
    /// chunks it was away.
    fn admit(&mut self, member: &Member, chunk: u64) -> Option<u64> {
        let now = self.ticks;
        if self.refused.get(&chunk).is_some_and(|(retry, _)| now < *retry) {
            return None;
        }
        let away = match (self.replacement, self.saw(chunk, now)) {
            (Replacement::Idle, None) => return None,
            (Replacement::Idle, Some(before)) => now - before,
            (Replacement::Age, _) => 0,
        };
        let (until, room) = self.full;
        let most = if now < until { room.min(self.most) } else { self.most };
        if self.entries.len() >= most && !self.evict(member, away, chunk) {
            return None;
        }
        let list = self.take_list(member)?;
        self.seen.remove(&chunk);
        let gap = self.refused.remove(&chunk).map_or(RETRY, |(_, gap)| gap);
        let entry = Entry { list, pages: [None; PAGES], tick: now, retry: 0, gap, pins: Arc::new(()) };
        self.entries.insert(chunk, entry);
        Some(away)
    }

    /// Takes the pages back of the chunk that was not used for longest, if that is longer than `away`, no message needs it, and it is
    /// another than `newcomer`.
    fn evict(&mut self, member: &Member, away: u64, newcomer: u64) -> bool {
        let is_idle = |(tick, _): &&(u64, u64)| self.ticks - *tick > away;
        let is_free = |(tick, chunk): &&(u64, u64)| {
            let entry = self.entries.get(chunk).filter(|entry| entry.tick == *tick);
            *chunk != newcomer && entry.is_some_and(Entry::is_free)
        };
        let oldest = self.uses.iter().take_while(is_idle).find(is_free);
        let Some(chunk) = oldest.map(|(_, chunk)| *chunk) else { return false };
        let list = self.forget(member, chunk);
        self.free_lists.extend(list);
        true
    }

    /// Ends the grant of a chunk's pages. Gives its list, which must have no other use while a receiver may read it.
    fn forget(&mut self, member: &Member, chunk: u64) -> Option<u64> {
        let entry = self.entries.remove(&chunk)?;
        entry.end_list(member);
        // Those that cannot be moved now are once the program gives them back.
        let _ = member.revoke_pages(chunk, u32::try_from(PAGES).unwrap_or(0));
        Some(entry.list)
    }

    fn take_list(&mut self, member: &Member) -> Option<u64> {
        if let Some(list) = self.free_lists.pop() {
            return Some(list);
        }
        // Lists of messages that were given up have no other use any more.
        let given_up = self.given_up / (LISTS / LIST);
        if self.pieces.len() as u64 >= MOST_LISTS + given_up.min(MOST_GIVEN_UP) {
            return None;
        }
        let piece = member.take_unless_refused(LISTS).ok()?;
        self.pieces.push(piece);
        self.free_lists.extend((0..LISTS / LIST).map(|i| piece + i * LIST));
        self.free_lists.pop()
    }

    /// Gives all memory of the region back, and the pages to their program.
    pub(super) fn end(mut self, member: &Member) {
        self.withdraw_all(member);
        for piece in self.pieces {
            member.give(piece, LISTS);
        }
    }

    /// The program has all its buffers back; the lists' memory serves nothing else.
    pub(super) fn withdraw_all(&mut self, member: &Member) {
        let all: Vec<u64> = self.entries.keys().copied().collect();
        for chunk in all {
            self.forget(member, chunk);
        }
    }
}

impl Entry {
    /// Whether no message that is under way needs it.
    fn is_free(&self) -> bool {
        Arc::strong_count(&self.pins) == 1
    }

    /// What a message is told of it.
    fn found(&self, chunk: u64, pages: u32, is_fresh: bool) -> (Found, Option<Pin>) {
        let pin = Pin { chunk, _count: Arc::clone(&self.pins) };
        (Found { chunk, list: self.list, pages, is_fresh }, Some(pin))
    }

    fn is_empty_and_free(&self) -> bool {
        self.is_free() && self.pages.iter().all(Option::is_none)
    }

    /// Which of these pages are granted, as far as anybody could tell now.
    fn standing(&self, pool: &Pool, owner: u64, from: usize, count: usize) -> u32 {
        let stands = |at: &usize| self.pages[*at].is_some_and(|granted| pool.stands(owner, granted));
        (from..from + count).filter(stands).fold(0, |all, at| all | 1 << at)
    }

    /// Grants pages, also those that are granted already; gives which are, and whether there was no room for more.
    fn grant(&mut self, member: &Member, chunk: u64, from: usize, count: usize) -> (u32, bool) {
        let Some(pages) = self.pages.get_mut(from..from + count) else { return (0, false) };
        let outcome = member.grant_pages(chunk + from as u64 * PAGE, pages);
        if outcome.is_err() {
            pages.fill(None);
        }
        let mut granted = 0;
        for (at, page) in (from..).zip(pages) {
            if let Ok(word) = member.section().word("list of pages", self.list + at as u64 * 8) {
                // With what the kernel has copied before it.
                word.set(page.map_or(0, Granted::word));
                granted |= u32::from(page.is_some()) << at;
            }
        }
        (granted, outcome.is_ok_and(|outcome| outcome.is_full))
    }

    /// Whoever copies by the list from now on does not believe what it has copied.
    fn end_list(&self, member: &Member) {
        for at in 0..PAGES as u64 {
            if let Ok(word) = member.section().word("list of pages", self.list + at * 8) {
                word.set(0);
            }
        }
        // Before the program writes there.
        release_fence();
    }
}

impl Berth {
    /// The pool of the system that has a remote endpoint, and what the grant table calls its process; none if it is our own system, or
    /// grants no pages.
    pub(super) fn pool_of(&self, record: Option<&Record>) -> Option<(Pool, u64)> {
        let record = record?;
        let endpoints = self.member.region().shape().endpoints;
        if record.slot().peer(endpoints) == self.member.peer() {
            return None;
        }
        let (directory, info) = roster::endpoint(&self.member, record.slot()).ok()?;
        let pool = Pool::of(directory.section())?;
        Some((pool, grants::owner(u32::try_from(info.area).ok()?)))
    }

    /// The program gets buffers back that receivers may still read: they do not believe what they copy from now on.
    pub(super) fn withdraw(&mut self, pins: &[Pin]) {
        let Self { member, grants, .. } = self;
        if let Some(cache) = grants {
            for pin in pins {
                // Receivers of a message that was given up may read it at any time, so nothing else is ever put there.
                cache.given_up += u64::from(cache.forget(member, pin.chunk).is_some());
            }
        }
    }
}

/// What comes next of a message of which pages may be granted.
pub(super) enum Next {
    /// A `PAGES` was sent.
    Sent,
    /// There is no room for one.
    Full,
    /// At most so many bytes, which are to be copied.
    Copy(u64),
}

impl Core {
    /// Whether announcements to `to` say that pages can be granted, for so many bytes.
    pub(super) fn grants_to(&self, berth: &Berth, to: PeerId, len: u64) -> bool {
        len >= LEAST
            && self.config.long != Long::Copy
            && berth.grants.is_some()
            && self.peers.get(to.0 as usize).is_some_and(|peer| !peer.is_near)
    }

    /// Sends the next granted pages of the oldest pipelined message to `to`, if it is their turn.
    pub(super) fn push_pages(&mut self, berth: &mut Berth, to: PeerId) -> Next {
        let Berth { grants: Some(cache), member, .. } = berth else { return Next::Copy(u64::MAX) };
        let peer = &mut self.peers[to.0 as usize];
        let Some(push) = peer.pushes.front_mut() else { return Next::Copy(u64::MAX) };
        let (Some(buf), true) = (push.bufs.one(), push.granted) else { return Next::Copy(u64::MAX) };
        let (rest, address) = (push.len - push.at, buf.address() + push.at);
        let edge = address.next_multiple_of(PAGE) - address;
        if edge > 0 || rest < PAGE {
            return Next::Copy(if edge > 0 { edge } else { PAGE });
        }
        let chunk = address / CHUNK * CHUNK;
        let from = usize::try_from((address - chunk) / PAGE).unwrap_or(0);
        let count = usize::try_from(rest / PAGE).unwrap_or(PAGES).min(PAGES - from);
        if push.found.as_ref().is_none_or(|found| found.chunk != chunk) {
            let (found, pin) = cache.find(member, chunk, from, count);
            push.pins.extend(pin);
            push.found = Some(found);
        }
        let Some(Found { list, pages, is_fresh, .. }) = push.found else { return Next::Copy(u64::MAX) };
        let ahead = pages >> from;
        let run = usize::try_from(ahead.trailing_ones()).unwrap_or(0).min(count);
        if run == 0 {
            let missing = usize::try_from(ahead.trailing_zeros()).unwrap_or(PAGES).min(count);
            return Next::Copy(missing as u64 * PAGE);
        }
        let (id, at, len) = (push.id, push.at, run as u64 * PAGE);
        if !self.has_room(berth, to) {
            return Next::Full;
        }
        let peer = &mut self.peers[to.0 as usize];
        let (Some(out), Some(push)) = (peer.path.lane_mut(), peer.pushes.front_mut()) else {
            return Next::Full;
        };
        let flags = if is_fresh { flag::FRESH } else { 0 };
        let message = [wire::head(kind::PAGES, flags, 0), id, at, len, list, from as u64, 0, 0];
        let announced = out.push(&message, 6);
        push.at += len;
        push.paged += len;
        if announced {
            self.ring_receiver(berth, to);
        }
        Next::Sent
    }

    /// Takes the next bytes of a message from pages that its sender has granted.
    pub(super) fn take_pages(
        &mut self,
        source: PeerId,
        section: &PeerSection,
        message: &Message,
        flags: u8,
    ) -> Result<(), Stop> {
        let (id, at, len, list, from) = (message[1], message[2], message[3], message[4], message[5]);
        let count = len / PAGE;
        if !len.is_multiple_of(PAGE)
            || count == 0
            || from.checked_add(count).is_none_or(|end| end > PAGES as u64)
        {
            return Err(Faulty);
        }
        section.reach("list of pages", list, LIST).map_err(Stop::of)?;
        let Some(Operation::Incoming { dest, want, received, again, done, registered, measured, .. }) =
            self.operations.get(id, source)
        else {
            // As with a late chunk.
            return Ok(());
        };
        // Only those are asked for whose sender waits for the answer, and not for memory that its program may take away.
        if done.is_none() || registered.is_some() {
            return Err(Faulty);
        }
        if *again && at > *received {
            return Ok(());
        }
        if at != *received || len > *want - *received {
            return Err(Faulty);
        }
        let Some((pool, owner)) = &self.peers[source.0 as usize].pool else { return Err(Faulty) };
        let words = section.words::<PAGES>("list of pages", list).map_err(|_| Faulty)?;
        let words =
            words.iter().skip(usize::try_from(from).unwrap_or(0)).take(usize::try_from(count).unwrap_or(0));
        let mut named = [0; PAGES];
        let mut pages = [None; PAGES];
        for ((word, named), page) in words.clone().zip(&mut named).zip(&mut pages) {
            *named = word.get();
            *page = Granted::of_word(*named);
        }
        let mut rest = &pages[..];
        while let [Some(first), ..] = rest {
            let run = pool.run(rest);
            if run == 0 {
                // A sender that is gone may have other things there by now; the operation ends with it.
                return if self.peers[source.0 as usize].still_lives() { Err(Faulty) } else { Ok(()) };
            }
            let (done, bytes) = ((PAGES - rest.len()) as u64 * PAGE, run as u64 * PAGE);
            ways::timed(measured, || {
                dest.pieces(at + done, bytes, |done, piece| pool.copy(*first, done, piece))
            })
            .map_err(Stop::of)?;
            rest = &rest[run..];
        }
        // What changed meanwhile is no fault.
        let standing = pool.standing(*owner, &pages);
        let same = words.zip(named).take(standing).take_while(|(word, named)| unchanged(word, *named));
        let whole = same.count() as u64;
        if !self.still_lives(source) {
            // The operation ends with its sender.
            return Ok(());
        }
        let Some(Operation::Incoming { want, received, done, again, paged, is_odd, .. }) =
            self.operations.get(id, source)
        else {
            return Ok(());
        };
        *is_odd |= flags & flag::FRESH != 0 || whole < count;
        *received += whole * PAGE;
        *paged += whole * PAGE;
        if whole < count {
            *again = true;
            let (theirs, at) = (done.unwrap_or(0), *received);
            self.tally.add(Counter::GrantsStale, 1);
            let message = [wire::head(kind::AGAIN, 0, 0), theirs, at, 0, 0, 0, 0, 0];
            self.reply(source, message, 3, None, Because::Asked);
        } else if *received == *want {
            self.finish_incoming(id, source);
        }
        Ok(())
    }

    /// A receiver did not find what was granted: from there on all is copied.
    pub(super) fn take_again(&mut self, source: PeerId, message: &Message) -> Result<(), Stop> {
        if !self.still_lives(source) {
            return Ok(());
        }
        let (id, from) = (message[1], message[2]);
        let Some(Operation::Lent { bufs, len, theirs, sending, paged, is_asked_again, .. }) =
            self.operations.get(id, source)
        else {
            return Err(Faulty);
        };
        // Once is enough, since then no page is sent any more.
        if from >= *len || *is_asked_again {
            return Err(Faulty);
        }
        *is_asked_again = true;
        *paged = (*paged).min(from);
        let is_under_way = std::mem::replace(sending, true);
        let push = Push { at: from, ..Push::new(*theirs, bufs.clone(), *len, Some(id)) };
        let pushes = &mut self.peers[source.0 as usize].pushes;
        if is_under_way {
            for under_way in pushes.iter_mut().filter(|push| push.awaited == Some(id)) {
                (under_way.at, under_way.granted, under_way.found) = (from, false, None);
                under_way.paged = under_way.paged.min(from);
            }
        } else {
            pushes.push_back(push);
            self.owe(source);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_those_of_the_pages() {
        assert_eq!([bits(0, 16), bits(15, 1), bits(3, 2)], [0xffff, 0x8000, 0x18]);
    }
}
