//! Registrations that lie in the program's own memory, and that initiators reach in granted pages: in a VM whose guest driver moves
//! pages into the VM's section, and keeps them there for others to write to (isthmus(4)).
//!
//! Moving pages costs more than many messages, so only what has come by messages more than once is granted: in chunks of 64 KiB, as far as
//! their pages lie within the registration whole, since others may read and write all of a page. A registration is published with a list of
//! pages as soon as one of them is there.

use std::collections::HashMap;
use std::sync::Arc;

use isthmus_region::grants::{Granted, PAGE};
use isthmus_region::member::Member;
use isthmus_region::registrations::{self, Range, Table};

/// Pages of a chunk, and its bytes.
const PAGES: usize = 16;
const CHUNK: u64 = PAGES as u64 * PAGE;
/// Chunks that are looked at when an initiator has reached so much at once.
const MOST_CHUNKS: u64 = 64;

/// What is registered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Registered {
    pub(crate) key: u64,
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// As [`Range::access`].
    pub(crate) access: u64,
    /// As [`Range::base`].
    pub(crate) base: u64,
}

/// A registration that has been reached by messages.
#[derive(Debug)]
pub(crate) struct Window {
    of: Registered,
    /// Offset of the list of its pages.
    list: u64,
    /// Number of its entry, once it is published.
    number: Option<u32>,
    is_withdrawn: bool,
    /// How often a chunk was reached.
    reached: HashMap<u64, u32>,
    pages: Vec<Option<Granted>>,
    /// Pages that were others' in the meantime.
    former: Vec<Granted>,
}

impl Window {
    /// None if there is no room for its list, or no page that lies in it whole.
    pub(crate) fn new(member: &Member, of: Registered) -> Option<Self> {
        let skip = of.start % PAGE;
        let whole = of.start.checked_add(of.len)? / PAGE > of.start.div_ceil(PAGE);
        if !whole || of.len > registrations::MOST_PAGED {
            return None;
        }
        let count = usize::try_from(Range::pages(skip, of.len)).ok()?;
        let list = member.take(count as u64 * 8).ok()?;
        let window = Self {
            of,
            list,
            number: None,
            is_withdrawn: false,
            reached: HashMap::new(),
            pages: vec![None; count],
            former: Vec::new(),
        };
        match member.section().zero("list of pages", list, count as u64 * 8) {
            Ok(()) => Some(window),
            Err(_) => None,
        }
    }

    /// An initiator has reached `len` bytes at `address` by a message. Gives whether pages can be granted at all.
    pub(crate) fn reached(
        &mut self,
        member: &Arc<Member>,
        table: &mut Table,
        address: u64,
        len: u64,
    ) -> bool {
        if self.is_withdrawn || len == 0 {
            return true;
        }
        let first = address / CHUNK;
        let last = (address.saturating_add(len - 1) / CHUNK).min(first + MOST_CHUNKS - 1);
        for chunk in first..=last {
            let count = self.reached.entry(chunk).or_insert(0);
            *count = count.saturating_add(1);
            // What cannot be granted is tried again ever more seldom.
            if *count >= 2 && count.is_power_of_two() && !self.grant(member, chunk * CHUNK) {
                return false;
            }
        }
        if self.number.is_none() && self.pages.iter().any(Option::is_some) {
            let Registered { key, len, access, base, start } = self.of;
            let access = access | registrations::PAGES;
            let range = Range { key, offset: self.list, len, access, base, skip: start % PAGE };
            // Without room for it, another time.
            self.number = table.publish(&range).ok();
        }
        true
    }

    /// Grants those pages of a chunk that lie in the registration whole. Gives whether that is possible here.
    fn grant(&mut self, member: &Member, chunk: u64) -> bool {
        let Registered { start, len, .. } = self.of;
        let low = chunk.max(start.next_multiple_of(PAGE));
        let high = (chunk + CHUNK).min((start + len) / PAGE * PAGE);
        let Some(bytes) = high.checked_sub(low).filter(|bytes| *bytes > 0) else { return true };
        let mut granted = [None; PAGES];
        let granted = &mut granted[..usize::try_from(bytes / PAGE).unwrap_or(PAGES).min(PAGES)];
        if member.keep_pages(low, granted).is_err() {
            return false;
        }
        let first = low / PAGE - start / PAGE;
        for (at, page) in (first..).zip(granted) {
            let Some(known) = usize::try_from(at).ok().and_then(|at| self.pages.get_mut(at)) else {
                continue;
            };
            if *known == *page {
                continue;
            }
            if let Ok(word) = member.section().word("list of pages", self.list + at * 8) {
                word.set(page.map_or(0, Granted::word));
            }
            self.former.extend(std::mem::replace(known, *page));
        }
        true
    }

    /// Takes it out of the table: operations that initiators have begun may still be under way.
    pub(crate) fn withdraw(&mut self, table: &mut Table) -> isthmus_region::Result<()> {
        if !std::mem::replace(&mut self.is_withdrawn, true)
            && let Some(number) = self.number
        {
            table.withdraw(number)?;
        }
        Ok(())
    }

    /// Gives all back; no operation is under way.
    pub(crate) fn end(self, member: &Member) {
        let pages: Vec<Granted> = self.pages.iter().flatten().chain(&self.former).copied().collect();
        member.release_kept(&pages);
        member.give(self.list, self.pages.len() as u64 * 8);
    }
}
