//! Loans: bytes of a program's own memory that other members of its group copy from where they are.
//!
//! A loan is an entry in the context's table of registrations ([`isthmus_region::registrations`]), or two: one for the pages that the
//! guest driver has granted ([`isthmus_region::grants`]), with a list of all pages in which others are 0, and one for a copy of the
//! bytes in those others, one behind the other. Without a driver all are such. A member that knows the loan's key copies from both, and
//! believes what it has copied if the entries are still those that it read (P5), the pages are still granted, and the lender lives.
//!
//! To move a page costs more than to copy it, so pages are granted, in chunks of 64 KiB, once they are lent again. They stay granted, and
//! kept for this process (a forked child gets a copy), when their loan ends: to lend them anew takes no system call. A chunk is given up
//! for another one if it was not lent for long, and pages that come and go are asked for ever more seldom; so of more memory than there
//! is room for, lent piece after piece, some stays granted, and the rest is copied.

use std::collections::{BTreeSet, HashMap};
use std::marker::PhantomData;
use std::sync::Arc;

use isthmus_region::grants::{self, Granted, KeptPages, Own, PAGE, Pool};
use isthmus_region::local::LocalBuf;
use isthmus_region::member::Member;
use isthmus_region::registrations::{self, Published, READ, Range, Reader, Table};
use isthmus_region::{PeerSection, roster};

use crate::context::{Context, Shared};
use crate::error::{Error, Result, region};
use crate::peer::Address;
use crate::wait::lock;

/// Most bytes of a loan.
pub const MOST_LOAN_BYTES: u64 = registrations::MOST_PAGED;

/// The key of a loan's copied bytes is its own and this.
const COPIED: u64 = 1;
/// Pages of a chunk, and its bytes.
const PAGES: usize = 16;
const CHUNK: u64 = PAGES as u64 * PAGE;
/// Chunks that are remembered, or twice those that are granted or lent.
const MOST_CHUNKS: usize = 8192;
/// A chunk is given up for another one if so many were lent since, or twice as many as are granted where that is less.
const MOST_AWAY: u64 = 512;
/// A page that was lent so often before it was lost is worth as much as one that never was.
const WORTH: u32 = 32;
/// Most losses of a page that are counted.
const MOST_LOST: u8 = 16;

/// What names a loan: to be handed to the members that are to fetch from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The context that lends.
    pub lender: Address,
    /// Which of its loans.
    pub key: u64,
    /// How many bytes are lent.
    pub bytes: u64,
}

impl Ticket {
    /// Bytes of [`Ticket::to_bytes`].
    pub const BYTES: usize = Address::BYTES + 16;

    /// The ticket as bytes, to be written to a channel.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..Address::BYTES].copy_from_slice(&self.lender.to_bytes());
        bytes[Address::BYTES..][..8].copy_from_slice(&self.key.to_le_bytes());
        bytes[Address::BYTES + 8..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// The ticket whose [`Ticket::to_bytes`] these are. Other bytes make a ticket of no loan.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let mut lender = [0; Address::BYTES];
        lender.copy_from_slice(&bytes[..Address::BYTES]);
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let (key, bytes) = (word(Address::BYTES), word(Address::BYTES + 8));
        Self { lender: Address::from_bytes(lender), key, bytes }
    }
}

/// Bytes that are lent. While it exists they must not change; when it is dropped the loan is over: a member that fetches from it then,
/// or is still at it, gets [`Error::LoanOver`]. It keeps its context's membership, as a channel does. One that is forgotten
/// (`std::mem::forget`) does not end before the process: members may fetch what its memory has become.
pub struct Loan<'a> {
    shared: Arc<Shared>,
    ticket: Ticket,
    parts: Parts,
    bytes: PhantomData<&'a [u8]>,
}

impl std::fmt::Debug for Loan<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loan")
            .field("ticket", &self.ticket)
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}

impl Loan<'_> {
    /// What names it.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// How many of its bytes are copied once: by the member that fetches them, from where the program has them. The others were copied
    /// when they were lent.
    pub fn in_place(&self) -> u64 {
        self.parts.in_place
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        if self.shared.is_ours() {
            let parts = std::mem::take(&mut self.parts);
            lock(&self.shared.lender).end(&self.shared.member, parts);
        }
    }
}

/// What a loan has of the region.
#[derive(Debug, Default)]
struct Parts {
    /// Numbers of its entries.
    numbers: Vec<u32>,
    /// Offset and bytes of the list of pages, and of the copy.
    list: Option<(u64, u64)>,
    copy: Option<(u64, u64)>,
    chunks: Vec<u64>,
    in_place: u64,
}

/// What is known of a page of the program's memory.
#[derive(Debug, Default, Clone, Copy)]
struct Page {
    granted: Option<Granted>,
    /// How often it was lent, since it was last lost.
    count: u32,
    /// How often it was lost, or given up, in a row.
    lost: u8,
}

impl Page {
    /// It is not granted any more.
    fn lose(&mut self, was_worth_it: bool) {
        let lost = if was_worth_it { 0 } else { (self.lost + 1).min(MOST_LOST) };
        *self = Self { granted: None, count: 0, lost };
    }

    /// Counts a loan. Gives whether it is to be asked for: it comes back, and is not granted. What could not be granted, or was lost
    /// before, is asked for ever more seldom.
    fn lend(&mut self) -> bool {
        self.count = self.count.saturating_add(1);
        self.granted.is_none() && self.count.is_power_of_two() && self.count >= 2 << self.lost
    }
}

/// The same of a chunk.
#[derive(Debug, Default)]
struct Chunk {
    pages: [Page; PAGES],
    kept: KeptPages,
    /// In how many loans it is now.
    loans: u32,
    /// When it was last lent.
    tick: u64,
}

impl Chunk {
    /// Lets go of what is not granted any more: what was at these addresses is nobody's. Gives whether there was any.
    fn let_go(&mut self, member: &Member, own: &Own, address: u64) -> bool {
        let lost = self.kept.take_lost(own);
        // Also where none is lost: a page that was moved to another address is kept anew there, by another word.
        for page in &mut self.pages {
            if page.granted.is_some_and(|granted| !own.pool.stands(own.owner, granted)) {
                page.lose(page.count >= WORTH);
            }
        }
        if lost.is_empty() {
            return false;
        }
        member.release_kept(lost);
        // Some may still be there, in the pool.
        revoke(member, address);
        true
    }
}

/// Has the pages of a chunk moved back that are not kept. What cannot be moved just now is granted until the program frees it.
fn revoke(member: &Member, address: u64) {
    let _ = member.revoke_pages(address, u32::try_from(PAGES).unwrap_or(0));
}

/// The loans of a context.
#[derive(Debug)]
pub(crate) struct Lender {
    /// None once it was given back.
    table: Option<Table>,
    /// None before that was asked, and inside where this process cannot grant pages.
    own: Option<Option<Own>>,
    keys: u64,
    /// Chunks that were lent.
    ticks: u64,
    chunks: HashMap<u64, Chunk>,
    /// How many of them there may be before some are forgotten.
    most: usize,
    /// Those that have pages of the pool and are in no loan: when they were last lent, and their addresses.
    idle: BTreeSet<(u64, u64)>,
}

impl Lender {
    /// With a table at the offset that it gives, for the endpoint's block to name.
    pub(crate) fn new(member: &Arc<Member>) -> isthmus_region::Result<(Self, u64)> {
        let table = Table::create(member)?;
        let at = table.offset();
        let (chunks, idle) = (HashMap::new(), BTreeSet::new());
        let most = MOST_CHUNKS;
        Ok((Self { table: Some(table), own: None, keys: 0, ticks: 0, chunks, most, idle }, at))
    }

    /// Gives all back; the endpoint has been closed.
    pub(crate) fn give_back(&mut self, member: &Member) {
        while self.evict(member, 0) {}
        self.table = None;
    }

    /// Leaves the table where it is, as [`Table::leave`], and gives the pages back unless they are the parent's of a fork.
    pub(crate) fn leave(&mut self, member: Option<&Member>) {
        while member.is_some_and(|member| self.evict(member, 0)) {}
        if let Some(table) = self.table.take() {
            table.leave();
        }
    }

    fn lend(&mut self, member: &Member, from: &Source<'_>) -> isthmus_region::Result<(u64, Parts)> {
        self.keys += 2;
        let mut parts = Parts::default();
        let pages = self.grant(member, from, &mut parts);
        let placed = self.place(member, from, &pages, &mut parts);
        match placed {
            Ok(()) => Ok((self.keys, parts)),
            Err(e) => {
                self.end(member, parts);
                Err(e)
            }
        }
    }

    /// Has pages granted that lie within the bytes whole, since others can read all of a page. Gives which of all pages are.
    fn grant(&mut self, member: &Member, from: &Source<'_>, parts: &mut Parts) -> Vec<Option<Granted>> {
        let (start, len) = (from.address(), from.len());
        let mut pages = vec![None; size(Range::pages(start % PAGE, len))];
        let (low, high) = (start.next_multiple_of(PAGE), (start + len) / PAGE * PAGE);
        if low >= high || self.own.get_or_insert_with(|| Own::of(member)).is_none() {
            return pages;
        }
        let chunks = || (low / CHUNK * CHUNK..high).step_by(size(CHUNK));
        // First, so that none of them is given up for another.
        for address in chunks() {
            self.ticks += 1;
            let chunk = self.chunks.entry(address).or_default();
            self.idle.remove(&(chunk.tick, address));
            chunk.tick = self.ticks;
            chunk.loans += 1;
            parts.chunks.push(address);
        }
        for address in chunks() {
            let (from, to) = (address.max(low), (address + CHUNK).min(high));
            let within = size((from - address) / PAGE)..size((to - address) / PAGE);
            self.grant_chunk(member, address, within.clone());
            let first = size(from / PAGE - start / PAGE);
            if let (Some(chunk), Some(into)) =
                (self.chunks.get(&address), pages.get_mut(first..first + within.len()))
            {
                into.iter_mut().zip(&chunk.pages[within]).for_each(|(into, page)| *into = page.granted);
            }
        }
        if self.chunks.len() > self.most {
            self.chunks.retain(|_, chunk| chunk.loans > 0 || !chunk.kept.is_empty());
            self.most = MOST_CHUNKS.max(2 * self.chunks.len());
        }
        pages
    }

    /// Has pages of a chunk granted where they are to be.
    fn grant_chunk(&mut self, member: &Member, address: u64, within: std::ops::Range<usize>) {
        let (Some(Some(own)), Some(chunk)) = (&self.own, self.chunks.get_mut(&address)) else { return };
        chunk.let_go(member, own, address);
        let asks = |page: &mut Page| page.lend();
        if chunk.pages[within.clone()].iter_mut().map(asks).fold(false, |any, asks| any | asks)
            && self.ask(member, address, within.clone())
            && (self.sweep(member) || self.evict(member, MOST_AWAY.min(2 * (self.idle.len() as u64 + 1))))
        {
            self.ask(member, address, within);
        }
    }

    /// Asks for pages of a chunk. Gives whether there was no room for all.
    fn ask(&mut self, member: &Member, address: u64, within: std::ops::Range<usize>) -> bool {
        let Some(chunk) = self.chunks.get_mut(&address) else { return false };
        let mut asked = [None; PAGES];
        let asked = &mut asked[..within.len()];
        let from = address + within.start as u64 * PAGE;
        let Ok(outcome) = member.keep_pages(from, asked, &mut chunk.kept) else { return false };
        for (page, asked) in chunk.pages[within].iter_mut().zip(asked) {
            page.granted = asked.or(page.granted);
        }
        outcome.is_full
    }

    /// Lets go of pages of idle chunks that are not granted any more, as after free(3). Gives whether there were any.
    fn sweep(&mut self, member: &Member) -> bool {
        let Some(Some(own)) = &self.own else { return false };
        let mut any = false;
        let chunks = &mut self.chunks;
        self.idle.retain(|(_, address)| {
            let Some(chunk) = chunks.get_mut(address) else { return false };
            any |= chunk.let_go(member, own, *address);
            !chunk.kept.is_empty()
        });
        any
    }

    /// Takes the pages back of the chunk that was not lent for longest, if `away` others were lent since; gives whether it did.
    fn evict(&mut self, member: &Member, away: u64) -> bool {
        let Some((tick, address)) = self.idle.first().copied().filter(|(tick, _)| self.ticks - tick >= away)
        else {
            return false;
        };
        self.idle.remove(&(tick, address));
        if let Some(chunk) = self.chunks.get_mut(&address) {
            member.release_kept(std::mem::take(&mut chunk.kept));
            chunk.pages.iter_mut().filter(|page| page.granted.is_some()).for_each(|page| page.lose(false));
        }
        revoke(member, address);
        true
    }

    /// Copies what is not granted, and makes the entries.
    fn place(
        &mut self,
        member: &Member,
        from: &Source<'_>,
        pages: &[Option<Granted>],
        parts: &mut Parts,
    ) -> isthmus_region::Result<()> {
        let Some(table) = &mut self.table else { return Ok(()) };
        let (section, key, len) = (member.section(), self.keys, from.len());
        let layout = Layout { skip: from.address() % PAGE, len };
        let missing = layout.copied(pages, pages.len());
        parts.in_place = len - missing;
        if missing > 0 {
            let at = member.take(missing)?;
            parts.copy = Some((at, missing));
            let mut done = 0;
            let mut number = 0;
            while number < pages.len() {
                let count = pages[number..].iter().take_while(|page| page.is_none()).count();
                if count > 0 {
                    let (begin, end) = (layout.begin(number), layout.begin(number + count));
                    from.fill(section, at + done, begin, end - begin)?;
                    done += end - begin;
                }
                number += count.max(1);
            }
        }
        let range = Range { key, offset: 0, len, access: READ, base: 0, skip: 0 };
        if missing < len {
            let bytes = pages.len() as u64 * 8;
            let list = member.take(bytes)?;
            parts.list = Some((list, bytes));
            for (page, at) in pages.iter().zip((list..).step_by(8)) {
                section.word("list of pages", at)?.put(page.map_or(0, Granted::word));
            }
            let access = READ | registrations::PAGES;
            parts.numbers.push(table.publish(&Range { offset: list, access, skip: layout.skip, ..range })?);
        }
        if let Some((offset, len)) = parts.copy {
            parts.numbers.push(table.publish(&Range { key: key + COPIED, offset, len, ..range })?);
        }
        Ok(())
    }

    /// A loan is over.
    fn end(&mut self, member: &Member, parts: Parts) {
        let Parts { numbers, list, copy, chunks, .. } = parts;
        if let Some(table) = &mut self.table {
            // They are numbers that it gave.
            numbers.into_iter().for_each(|number| drop(table.withdraw(number)));
        }
        for address in chunks {
            let Some(chunk) = self.chunks.get_mut(&address) else { continue };
            chunk.loans -= 1;
            if chunk.loans == 0 && !chunk.kept.is_empty() {
                self.idle.insert((chunk.tick, address));
            }
        }
        for (at, bytes) in list.into_iter().chain(copy) {
            member.give(at, bytes);
        }
    }
}

/// How the bytes of a loan lie in pages.
#[derive(Clone, Copy)]
struct Layout {
    /// Where in the first page the first byte is.
    skip: u64,
    len: u64,
}

impl Layout {
    /// Where a page begins, among the bytes.
    fn begin(self, number: usize) -> u64 {
        (number as u64 * PAGE).saturating_sub(self.skip).min(self.len)
    }

    /// Bytes of the first `count` pages that lie in those which are not granted.
    fn copied(self, pages: &[Option<Granted>], count: usize) -> u64 {
        let of = |(number, page): (usize, &Option<Granted>)| match page {
            Some(_) => 0,
            None => self.begin(number + 1) - self.begin(number),
        };
        pages.iter().enumerate().take(count).map(of).sum()
    }
}

/// What is lent.
enum Source<'a> {
    Slice(&'a [u8]),
    Buf(LocalBuf),
}

impl Source<'_> {
    fn address(&self) -> u64 {
        match self {
            Self::Slice(bytes) => bytes.as_ptr().expose_provenance() as u64,
            Self::Buf(buf) => buf.address(),
        }
    }

    fn len(&self) -> u64 {
        match self {
            Self::Slice(bytes) => bytes.len() as u64,
            Self::Buf(buf) => buf.len() as u64,
        }
    }

    /// Copies a part of it into the section.
    fn fill(
        &self,
        to: &isthmus_region::Section,
        offset: u64,
        begin: u64,
        len: u64,
    ) -> isthmus_region::Result<()> {
        match self {
            Self::Slice(bytes) => to.fill_bytes("loan", offset, &bytes[size(begin)..size(begin + len)]),
            Self::Buf(buf) => to.fill("loan", offset, buf.part(size(begin), size(len))),
        }
    }
}

/// Where a loan is copied to.
enum Into<'a> {
    Slice(&'a mut [u8]),
    Buf(LocalBuf),
}

impl Into<'_> {
    fn len(&self) -> u64 {
        match self {
            Self::Slice(bytes) => bytes.len() as u64,
            Self::Buf(buf) => buf.len() as u64,
        }
    }

    fn copy(&mut self, from: &PeerSection, offset: u64, begin: u64, len: u64) -> isthmus_region::Result<()> {
        match self {
            Self::Slice(bytes) => {
                from.bytes("loan", offset, len)?.get(0, &mut bytes[size(begin)..size(begin + len)])
            }
            Self::Buf(buf) => from.drain("loan", offset, buf.part(size(begin), size(len))),
        }
    }
}

/// Of what fits into this process's memory.
fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// A loan as its lender's memory has it.
struct Found {
    section: PeerSection,
    /// The granted pages, and what the grant table calls the lender.
    pages: Option<(Pool, u64, Published)>,
    copy: Option<Published>,
}

impl Found {
    /// None if it is over, or what is said of it cannot be.
    fn of(member: &Member, record: &roster::Record, ticket: &Ticket) -> isthmus_region::Result<Option<Self>> {
        let (directory, info) = roster::endpoint(member, record.slot())?;
        if !info.life.is_active(record.incarnation()) {
            return Ok(None);
        }
        let section = directory.section().clone();
        let Some(reader) = Reader::open(&section, info.block)? else { return Ok(None) };
        let (mut pages, mut copy) = (None, None);
        for published in reader.ranges() {
            let Range { key, access, .. } = published.range;
            match (key.wrapping_sub(ticket.key), access & registrations::PAGES != 0) {
                (0, true) => pages = Some(published),
                (COPIED, false) => copy = Some(published),
                _ => {}
            }
        }
        let pages = match pages {
            None => None,
            Some(published) => {
                let (pool, area) = (Pool::of(&section), u32::try_from(info.area));
                let (Some(pool), Ok(area)) = (pool, area) else { return Ok(None) };
                Some((pool, grants::owner(area), published))
            }
        };
        let len = pages.as_ref().map(|(_, _, published)| published).or(copy.as_ref()).map(|p| p.range.len);
        Ok((len == Some(ticket.bytes)).then_some(Self { section, pages, copy }))
    }

    /// Copies bytes from `at` on. Gives whether they were the loan's: that the lender lives is still to be seen.
    fn copy(&self, at: u64, into: &mut Into<'_>) -> isthmus_region::Result<bool> {
        let len = into.len();
        let Some((pool, owner, published)) = &self.pages else {
            return self.take_copied(at, 0, len, into);
        };
        let layout = Layout { skip: published.range.skip, len: published.range.len };
        let (first, end) = ((layout.skip + at) / PAGE, (layout.skip + at + len).div_ceil(PAGE));
        let mut words = Vec::with_capacity(size(end));
        for number in 0..end {
            let word = self.section.word("list of pages", published.range.offset + number * 8)?;
            words.push(Granted::of_word(word.get()));
        }
        let mut before = layout.copied(&words, size(first));
        let mut done = 0;
        while done < len {
            let number = size((layout.skip + at + done) / PAGE);
            let rest = words.get(number..).unwrap_or(&[]);
            let in_page = at + done - layout.begin(number);
            let count = match rest {
                // As few as messages are looked at by, so that no more of anybody else's gets into the buffer.
                [Some(_), ..] => pool.run(rest).min(PAGES),
                _ => rest.iter().take_while(|page| page.is_none()).count(),
            };
            let take =
                (layout.begin(number + count) - layout.begin(number)).saturating_sub(in_page).min(len - done);
            if take == 0 {
                return Ok(false);
            }
            if let [Some(page), ..] = rest {
                let skip = if number == 0 { layout.skip } else { 0 };
                into.copy(&self.section, pool.place(*page, skip + in_page, take)?, done, take)?;
                if pool.standing(*owner, &rest[..count]) < count {
                    return Ok(false);
                }
            } else {
                if !self.take_copied(before + in_page, done, take, into)? {
                    return Ok(false);
                }
                before += layout.begin(number + count) - layout.begin(number);
            }
            done += take;
        }
        Ok(published.stood())
    }

    /// Copies bytes from `at` of the copy on, to `begin`.
    fn take_copied(
        &self,
        at: u64,
        begin: u64,
        len: u64,
        into: &mut Into<'_>,
    ) -> isthmus_region::Result<bool> {
        let Some(published) = &self.copy else { return Ok(len == 0) };
        if at.checked_add(len).is_none_or(|end| end > published.range.len) {
            return Ok(false);
        }
        into.copy(&self.section, published.range.offset + at, begin, len)?;
        Ok(published.stood())
    }
}

impl Context {
    /// Lends bytes to the other members of the group: a member that has the loan's ticket copies them with [`Context::fetch`]. Where this
    /// process may grant pages (in a VM with the guest driver, `isthmus run --grant`; [`Loan::in_place`]) that is their only copy, from the
    /// second loan of the same memory on, while there is room for its pages. Elsewhere they are copied here, too.
    ///
    /// # Ordering
    /// What a member fetches is what the bytes are now: they cannot change while they are lent.
    ///
    /// # Errors
    /// [`Error::Region`] if no memory is left for what is copied; [`Error::Invalid`] for no byte, or more than [`MOST_LOAN_BYTES`].
    ///
    /// # Source
    /// The dissertation's chapter 7: pages that are granted in place of a copy.
    pub fn lend<'a>(&self, bytes: &'a [u8]) -> Result<Loan<'a>> {
        self.lend_from(&Source::Slice(bytes))
    }

    /// As [`Context::lend`], of a buffer given by its address, which must not change or be freed before the loan is dropped.
    ///
    /// # Errors
    /// As [`Context::lend`].
    pub fn lend_buf(&self, bytes: LocalBuf) -> Result<Loan<'static>> {
        self.lend_from(&Source::Buf(bytes))
    }

    fn lend_from<'a>(&self, from: &Source<'a>) -> Result<Loan<'a>> {
        let bytes = from.len();
        if bytes == 0 || bytes > MOST_LOAN_BYTES {
            return Err(Error::Invalid {
                what: "bytes of a loan",
                value: bytes,
                allowed: "1 to 256 MiB are",
            });
        }
        let shared = &self.shared;
        let lent = lock(&shared.lender).lend(&shared.member, from);
        let (key, parts) = lent.map_err(region("lend bytes"))?;
        let ticket = Ticket { lender: shared.address, key, bytes };
        Ok(Loan { shared: Arc::clone(shared), ticket, parts, bytes: PhantomData })
    }

    /// Copies `into.len()` bytes of a loan, from its byte `at` on. It reads the lender's list from its first page on, so a few large parts
    /// are better than many small ones.
    ///
    /// # Ordering
    /// What the lender did before it lent them is visible.
    ///
    /// # Errors
    /// [`Error::LoanOver`] if the loan is over, or was while they were copied; [`Error::PeerDied`], [`Error::NoPeer`];
    /// [`Error::Invalid`] for bytes that are not the loan's. What is in `into` then is of no use.
    pub fn fetch(&self, ticket: &Ticket, at: u64, into: &mut [u8]) -> Result<()> {
        self.fetch_into(ticket, at, Into::Slice(into))
    }

    /// As [`Context::fetch`], into a buffer given by its address.
    ///
    /// # Errors
    /// As [`Context::fetch`].
    pub fn fetch_buf(&self, ticket: &Ticket, at: u64, into: LocalBuf) -> Result<()> {
        self.fetch_into(ticket, at, Into::Buf(into))
    }

    fn fetch_into(&self, ticket: &Ticket, at: u64, mut into: Into<'_>) -> Result<()> {
        let value = at.saturating_add(into.len());
        if value > ticket.bytes || ticket.bytes > MOST_LOAN_BYTES {
            return Err(Error::Invalid { what: "end of bytes of a loan", value, allowed: "it has fewer" });
        }
        let address = ticket.lender;
        let Some((peer, record)) = self.shared.member_at(address) else {
            return Err(Error::NoPeer { address });
        };
        let copied = Found::of(&self.shared.member, &record, ticket)
            .and_then(|found| found.map_or(Ok(false), |found| found.copy(at, &mut into)));
        // Whatever a member has put there that cannot be is no loan.
        match copied {
            _ if !record.still_lives() => Err(Error::PeerDied { peer }),
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(Error::LoanOver { peer }),
        }
    }
}
