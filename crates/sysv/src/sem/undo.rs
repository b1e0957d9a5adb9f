//! `SEM_UNDO`: what is to be added to a semaphore once a process is dead.
//!
//! A *cell* belongs to a process, and has one semaphore and its adjustment. The adjustment changes only together with the semaphore, as
//! one change of both words, and so is applied once, by whoever comes first. Cells of a process whose
//! [party](isthmus_region::party) may write no more are due. That is so once it is dead, and not before: also a process that executes
//! another program keeps its cells, and its new program takes others, whose adjustments add.
//!
//! No service takes part. A thread that uses a set looks for what is due whenever it hears of a death, and so do those that wait, since
//! a death ends their sleep. Before a thread says that it cannot go on, or what a semaphore's value is, it has the services notice
//! the deaths that have happened by then, if others have adjustments there at all.

use std::sync::OnceLock;

use isthmus_lockfree::mcas::{self, Memory};
use isthmus_lockfree::sync::Word;
use isthmus_region::party::Party;
use rustix::io::Errno;

use super::{MOST, Set, damage, words};
use crate::Result;

/// The cells that this process has, by semaphore: 0 for none, or one more than the cell's index.
#[derive(Debug, Default)]
pub(super) struct Own(OnceLock<Box<[Word]>>);

impl Own {
    #[inline]
    fn of(&self, set: &Set, num: u32) -> Option<&Word> {
        let all = self.0.get_or_init(|| (0..set.len()).map(|_| Word::new(0)).collect());
        all.get(num as usize)
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
        let index = match self.free_cell(num)? {
            Some(index) => index,
            None => {
                self.free_those_of_the_dead()?;
                self.free_cell(num)?.ok_or(Errno::NOMEM)?
            }
        };
        if let Some(own) = self.own.of(self, num) {
            own.set(u64::from(index) + 1);
        }
        Ok(index)
    }

    /// Takes a free cell.
    fn free_cell(&self, num: u32) -> Result<Option<u32>> {
        for index in 0..self.space.layout.cells {
            let party = self.space.party(index)?;
            if party.peek() != 0 || party.replace(0, self.me).is_err() {
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
            self.space.raise(index)?;
            return Ok(Some(index));
        }
        Ok(None)
    }

    /// Applies what is due, and gives the cells of the dead back.
    fn free_those_of_the_dead(&self) -> Result<()> {
        self.apply_due()?;
        for index in 0..self.space.high() {
            let party = self.space.party(index)?;
            let there = party.get();
            let cell = mcas::read(&self.space, self.space.layout.cell(index)).map_err(damage)?;
            if there != 0 && words::adjustment(cell) == 0 && self.is_dead(there) {
                // The dead adjust nothing any more, so it is 0 as long as that party stands here.
                let _ = party.replace(there, 0);
            }
        }
        Ok(())
    }

    fn is_dead(&self, party: u64) -> bool {
        Party::named(party).is_none_or(|party| !self.member.is_alive(party))
    }

    /// Looks for cells of others with an adjustment; calls `each` with index, party and word.
    fn others(&self, mut each: impl FnMut(u32, u64, u64) -> Result<()>) -> Result<()> {
        for index in 0..self.space.high() {
            let party = self.space.party(index)?.get();
            if party == 0 || party == self.me {
                continue;
            }
            let cell = mcas::read(&self.space, self.space.layout.cell(index)).map_err(damage)?;
            if words::adjustment(cell) != 0 {
                each(index, party, cell)?;
            }
        }
        Ok(())
    }

    /// Applies what is due. Gives whether anything was.
    pub(super) fn apply_due(&self) -> Result<bool> {
        let mut was_any = false;
        self.others(|index, party, _| {
            if self.is_dead(party) {
                self.apply(index, party)?;
                was_any = true;
            }
            Ok(())
        })?;
        Ok(was_any)
    }

    /// If a death was heard of since the last time: applies what is due.
    #[inline]
    pub(super) fn hear(&self) -> Result<()> {
        let deaths = self.deaths().get();
        if self.heard.peek() == deaths { Ok(()) } else { self.hear_of(deaths) }
    }

    #[cold]
    fn hear_of(&self, deaths: u64) -> Result<()> {
        self.apply_due()?;
        // Not earlier, so that no other thread goes on before that.
        self.heard.put(deaths);
        Ok(())
    }

    /// If others have adjustments: has the services notice all deaths, and applies what is due. Gives whether anything may have
    /// changed.
    pub(super) fn settle(&self) -> Result<bool> {
        let mut has_others = false;
        self.others(|_, _, _| {
            has_others = true;
            Ok(())
        })?;
        if has_others {
            let _ = self.member.service().settle();
            self.apply_due()?;
        }
        Ok(has_others)
    }

    /// Applies the adjustment of a dead process's cell, once.
    fn apply(&self, index: u32, dead: u64) -> Result<()> {
        let place = self.space.layout.cell(index);
        loop {
            let cell = mcas::read(&self.space, place).map_err(damage)?;
            let party = self.space.party(index)?;
            if party.get() != dead || words::adjustment(cell) == 0 {
                return Ok(());
            }
            let num = words::semaphore(cell);
            if num >= self.len() {
                // No process writes that.
                let word = self.space.word(place).ok_or(Errno::IO)?;
                let _ = word.replace(cell, words::adjusted(cell, 0));
                return Ok(());
            }
            let mut change = self.begin(2)?;
            let semaphore = change.take(self.space.layout.semaphore(num)).map_err(damage)?;
            let now = change.take(place).map_err(damage)?;
            // Now that the cell is marked it is known whose it is: it is given back only with an adjustment of 0.
            if now != cell || party.get() != dead {
                continue;
            }
            let value = (words::value(semaphore) + words::adjustment(cell)).clamp(0, MOST);
            let after = words::changed(semaphore, value, words::who_of(cell));
            change.set(0, after);
            change.set(1, words::adjusted(cell, 0));
            if change.commit() {
                self.step(super::Step::Applied);
                self.used_now()?;
                self.ring_after(num, semaphore, after)?;
                let _ = party.replace(dead, 0);
                return Ok(());
            }
        }
    }
}
