//! `SEM_UNDO`: what is to be added to a semaphore once a process is dead.
//!
//! A *cell* belongs to a process, and has one semaphore and its adjustment. The adjustment changes only together with the semaphore, as
//! one change of both words. Cells of a process whose [party](isthmus_region::party) may write no more are due: once it is dead, and not
//! before, so that a process that executes another program keeps its cells. Its new program takes them over when it attaches
//! ([`crate::Ipc::take_over`]), before the service forgets the former party.
//!
//! The host service applies what is due ([`apply`]), in the order of the deaths, and gives the cells back, before it rings for the death.
//! A thread that says that it cannot go on, or what a semaphore's value is, has the services notice the deaths that have happened by then,
//! if others have adjustments there at all.

use std::cell::Cell;
use std::sync::OnceLock;

use isthmus_lockfree::mcas::{self, Change, Entry, Memory, Slot};
use isthmus_lockfree::sync::Word;
use isthmus_region::mapping::Section;
use isthmus_region::member::Member;
use isthmus_region::party::Party;
use isthmus_region::signals::Blocked;
use rustix::io::Errno;

use super::space::Space;
use super::{MOST, Set, damage, seconds, words};
use crate::Result;

/// How often the service looks at a set at most to apply what one process owes there: at changes of others that are in its way, each of which
/// it calls off after 200 looks, and after attempts of its own that others have called off. So and so often for each semaphore besides. Who keeps
/// writing to the set holds it up for so long, a second or two, and no longer. Not by the clock: a service that loses its processor has made no
/// attempt meanwhile.
const MOST_LOOKS: u64 = 1 << 18;
const MOST_LOOKS_EACH: u64 = 64;
/// What the service calls itself in its slot. No party is called so.
const SERVICE: u64 = u64::MAX;

/// The cells that this process has, by semaphore: 0 for none, or one more than the cell's index.
#[derive(Debug, Default)]
pub(super) struct Own(OnceLock<Box<[Word]>>);

impl Own {
    #[inline]
    fn of(&self, set: &Set, num: u32) -> Option<&Word> {
        self.0.get().map_or_else(|| self.made(set), Box::as_ref).get(num as usize)
    }

    #[cold]
    fn made(&self, set: &Set) -> &[Word] {
        // The handler of a signal that came meanwhile would wait for this for ever.
        let _blocked = Blocked::new();
        self.0.get_or_init(|| (0..set.len()).map(|_| Word::new(0)).collect())
    }
}

impl Set {
    /// This process's cell for a semaphore, if it has one: unless others have written over it, so it is to be
    /// [checked](Set::check_cell) once it is marked.
    #[inline]
    pub(super) fn known_cell(&self, num: u32) -> Option<u32> {
        u32::try_from(self.own.of(self, num)?.peek().checked_sub(1)?).ok()
    }

    /// This process's cell for a semaphore, which is to be checked as above.
    ///
    /// # Errors
    /// `ENOMEM` if all are taken.
    #[inline]
    pub(super) fn own_cell(&self, num: u32) -> Result<u32> {
        match self.known_cell(num) {
            Some(index) => Ok(index),
            None => self.new_cell(num),
        }
    }

    /// Whether a cell, which has this word, is this process's, and the semaphore's. If not, it is forgotten.
    #[inline]
    pub(super) fn check_cell(&self, index: u32, cell: u64, num: u32) -> Result<bool> {
        let is_it = self.space.party(index)?.peek() == self.me && words::semaphore(cell) == num;
        if !is_it && let Some(own) = self.own.of(self, num) {
            own.set(0);
        }
        Ok(is_it)
    }

    #[cold]
    fn new_cell(&self, num: u32) -> Result<u32> {
        // The service looks for what a dead process owes in the sets that it had open.
        if let Some(used) = &self.used {
            used.keep()?;
        }
        let found = match self.former_cell(num)? {
            None => self.free_cell(num)?,
            former => former,
        };
        let index = match found {
            Some(index) => index,
            None => {
                let _ = self.member.service().settle();
                self.free_cell(num)?.ok_or(Errno::NOMEM)?
            }
        };
        if let Some(own) = self.own.of(self, num) {
            own.set(u64::from(index) + 1);
        }
        Ok(index)
    }

    /// Takes the cell that this process had before it executed this program: the sum of both is what counts, since a value
    /// has bounds. It may have been taken over already.
    fn former_cell(&self, num: u32) -> Result<Option<u32>> {
        for index in 0..self.space.high() {
            let party = self.space.party(index)?;
            let there = party.get();
            if there == 0 {
                continue;
            }
            let cell = mcas::read(&self.space, self.space.layout.cell(index)).map_err(damage)?;
            let is_it = words::semaphore(cell) == num && words::adjustment(cell) != 0;
            if is_it && (there == self.me || self.is_former(there)? && party.replace(there, self.me).is_ok())
            {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    fn is_former(&self, word: u64) -> Result<bool> {
        is_former(&self.member, word)
    }

    /// Takes over all cells that this process had before it executed this program, and gives back those that nothing is owed for.
    pub(super) fn take_over(&self) -> Result<()> {
        for index in 0..self.space.high() {
            let party = self.space.party(index)?;
            let there = party.get();
            if there == 0 || there == self.me || !self.is_former(there)? {
                continue;
            }
            let cell = mcas::read(&self.space, self.space.layout.cell(index)).map_err(damage)?;
            let next = match words::adjustment(cell) {
                0 => 0,
                _ => {
                    // The service looks for what a dead process owes in the sets that it had open.
                    self.used.as_ref().map_or(Ok(()), |used| used.keep())?;
                    self.me
                }
            };
            // Another thread may have taken it.
            let _ = party.replace(there, next);
        }
        Ok(())
    }

    /// Takes a free cell.
    fn free_cell(&self, num: u32) -> Result<Option<u32>> {
        for index in 0..self.space.layout.cells {
            let party = self.space.party(index)?;
            if party.peek() != 0 {
                continue;
            }
            // Counted in first: of a process that is killed here, what it has is looked through that far.
            self.space.raise(index)?;
            if party.replace(0, self.me).is_err() {
                continue;
            }
            self.step(super::Step::CellTaken);
            // Others may look at it while it is counted in, and find an adjustment of 0.
            let place = self.space.layout.cell(index);
            let word = self.space.word(place).ok_or(Errno::IO)?;
            loop {
                let seen = mcas::read(&self.space, place).map_err(damage)?;
                if word.replace(seen, words::cell(num, 0, self.who)).is_ok() {
                    break;
                }
            }
            return Ok(Some(index));
        }
        Ok(None)
    }

    /// Whether others have adjustments.
    fn has_others(&self) -> Result<bool> {
        for index in 0..self.space.high() {
            let party = self.space.party(index)?.get();
            if party == 0 || party == self.me {
                continue;
            }
            let cell = mcas::read(&self.space, self.space.layout.cell(index)).map_err(damage)?;
            if words::adjustment(cell) != 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// If others have adjustments: has the services notice all deaths, and apply what is due. Gives whether anything may have changed.
    pub(super) fn settle(&self) -> Result<bool> {
        let has_others = self.has_others()?;
        if has_others {
            let _ = self.member.service().settle();
        }
        Ok(has_others)
    }
}

/// Whether a word names what the process was before it executed its program.
fn is_former(member: &Member, word: u64) -> Result<bool> {
    match Party::named(word) {
        Some(former) => former.is_former(member.party(), member.region()).map_err(|_| Errno::IO),
        None => Ok(false),
    }
}

/// Whether a set has cells of what the process was before it executed its program.
pub(super) fn has_former(member: &Member, section: &Section, semaphores: u64) -> Result<bool> {
    let space = Space::new(section, semaphores)?;
    for index in 0..space.high() {
        if is_former(member, space.party(index)?.get())? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// For the host service: applies what a dead process owes to a set, and takes its cells back. Gives whether there was any adjustment.
///
/// # Errors
/// `EINVAL` if the set cannot have so many semaphores; `EIO` if it is damaged: what is left is not applied then.
pub fn apply(section: &Section, semaphores: u64, dead: Party) -> Result<bool> {
    apply_within(section, semaphores, dead, MOST_LOOKS + MOST_LOOKS_EACH.saturating_mul(semaphores))
}

/// As [`apply`], with so many looks at most.
///
/// # Errors
/// As [`apply`].
pub fn apply_within(section: &Section, semaphores: u64, dead: Party, looks: u64) -> Result<bool> {
    let space = Bounded { space: &Space::new(section, semaphores)?.impatient(), left: Cell::new(looks) };
    let mut was_any = false;
    for index in 0..space.space.high() {
        let party = space.space.party(index)?;
        if party.get() != dead.word() {
            continue;
        }
        // As Linux has it, also where nothing is left to be undone.
        space.space.used()?.put(seconds());
        loop {
            match apply_cell(&space, index)? {
                Applied::Nothing => break,
                Applied::Something => was_any = true,
                Applied::Disturbed => {}
            }
            // Also after one that was made: others may write new ones for ever.
            if !space.may_go_on() {
                return Err(Errno::IO);
            }
        }
        let _ = party.replace(dead.word(), 0);
    }
    Ok(was_any)
}

/// A set's memory for one who looks at it so often and no more.
struct Bounded<'a> {
    space: &'a Space,
    left: Cell<u64>,
}

impl Memory for Bounded<'_> {
    fn word(&self, place: u64) -> Option<&Word> {
        self.space.word(place)
    }

    fn slot(&self, slot: u64) -> Option<Slot<'_>> {
        self.space.slot(slot)
    }

    fn entry(&self, slot: u64, index: u64) -> Option<Entry<'_>> {
        self.space.entry(slot, index)
    }

    fn patience(&self, slot: u64) -> u32 {
        self.space.patience(slot)
    }

    fn may_go_on(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left > 0
    }

    fn step(&self, step: mcas::Step) {
        self.space.step(step);
    }
}

enum Applied {
    Nothing,
    Something,
    /// Another thread called it off.
    Disturbed,
}

/// Applies the adjustment of a dead process's cell.
fn apply_cell(space: &Bounded<'_>, index: u32) -> Result<Applied> {
    let layout = &space.space.layout;
    let place = layout.cell(index);
    let cell = mcas::read(space, place).map_err(damage)?;
    let num = words::semaphore(cell);
    if words::adjustment(cell) == 0 || num >= layout.semaphores {
        return Ok(Applied::Nothing);
    }
    let slot = layout.service_slot();
    let last = space.slot(slot).map_or(0, |slot| slot.owner.get());
    if !mcas::claim(space, slot, last, SERVICE) {
        return Ok(Applied::Disturbed);
    }
    let mut change = Change::begin(space, slot).map_err(damage)?;
    let semaphore = change.take(layout.semaphore(num)).map_err(damage)?;
    if change.take(place).map_err(damage)? != cell {
        return Ok(Applied::Disturbed);
    }
    let value = (words::value(semaphore) + words::adjustment(cell)).clamp(0, MOST);
    change.set(0, words::changed(semaphore, value, words::who_of(cell)));
    change.set(1, words::adjusted(cell, 0));
    if !change.commit() {
        return Ok(Applied::Disturbed);
    }
    Ok(Applied::Something)
}
