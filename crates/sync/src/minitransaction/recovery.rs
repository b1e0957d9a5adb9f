//! Completing or undoing the commits of dead processes.
//!
//! A slot's log is read before the slot is claimed, so that a process that cannot complete it (a segment is unknown here)
//! leaves it to others; and again after, since only the claim makes sure that no other process recovers the slot. The log of
//! a dead process changes no more.

use isthmus_lockfree::commit::{self, Phase, State};
use isthmus_region::party::Party;

use super::error::{Error, Result};
use super::fault::{Step, step};
use super::items::number;
use super::space::{Segment, Shared};

/// A write of a log.
pub(crate) struct Redo {
    segment: Segment,
    offset: u64,
    bytes: Vec<u8>,
}

impl Shared {
    /// Whether the owner word of a slot names a process that lives.
    pub(crate) fn is_alive(&self, owner: u64) -> bool {
        Party::named(owner).is_some_and(|party| self.member().is_alive(party))
    }

    /// Recovers a slot if its owner is dead; returns whether it is free now and was not before.
    pub(crate) fn recover(&self, slot: u64) -> Result<bool> {
        let owner = self.machinery.owner(slot)?;
        let dead = owner.get();
        if dead == 0 || self.is_alive(dead) {
            return Ok(false);
        }
        if let Err(error) = self.log_of(slot) {
            // If an heir was faster, and the slot's next owner writes its log, this was of neither.
            return if owner.get() == dead { Err(error) } else { Ok(false) };
        }
        if !commit::claim(owner, dead, self.member().party().word()) {
            return Ok(false);
        }
        step(Step::Claimed);
        match self.settle(slot) {
            Ok(()) => {
                owner.set(0);
                step(Step::GivenUp);
                Ok(true)
            }
            Err(e) => {
                // Leave it as it was found: another process may know the segment.
                owner.set(dead);
                Err(e)
            }
        }
    }

    /// Completes or undoes the commit of a slot that the caller owns, and leaves the slot idle.
    pub(crate) fn settle(&self, slot: u64) -> Result<()> {
        let state = self.machinery.state(slot)?;
        let found = commit::inherit(state);
        let (locks, writes) = self.log_of(slot)?;
        if found.phase == Phase::Committed {
            for write in &writes {
                write_bytes(&write.segment, write.offset, &write.bytes, Step::Rewrote)?;
            }
            step(Step::Replayed);
            commit::finish(state, found.generation);
            step(Step::ReplayTold);
        }
        let token = commit::token(slot, found.generation);
        for index in locks {
            if commit::free_inherited(self.machinery.lock(index)?, token) {
                step(Step::FreedInherited);
            }
        }
        step(Step::AllInherited);
        commit::settle(state, found.generation);
        commit::withdraw(self.machinery.flight(slot)?);
        let (flyers, bit) = self.machinery.flyer(slot)?;
        flyers.remove(bit);
        step(Step::Settled);
        Ok(())
    }

    /// What a slot's log says, as far as its state makes it valid: the locks that it may hold, and the writes if it is
    /// committed.
    fn log_of(&self, slot: u64) -> Result<(Vec<u64>, Vec<Redo>)> {
        let State { phase, .. } = State::unpack(self.machinery.state(slot)?.get());
        let mut at = 0;
        let mut next = || {
            at += 1;
            self.machinery.log(slot, at - 1).map(|word| word.get())
        };
        if phase == Phase::Idle {
            return Ok((Vec::new(), Vec::new()));
        }
        let counts = next()?;
        let (locks, writes) = (counts & 0xffff_ffff, counts >> 32);
        if phase != Phase::Committed {
            // The next log may be half written over this one, whose locks are all free then: words that are no index of a
            // lock can be left out.
            let there = locks.min(self.machinery.log_words() - 1);
            let mut found = (0..there).map(|_| next()).collect::<Result<Vec<u64>>>()?;
            found.retain(|index| self.machinery.lock(*index).is_ok());
            return Ok((found, Vec::new()));
        }
        let mut found = Vec::new();
        for _ in 0..locks {
            let index = next()?;
            self.machinery.lock(index)?;
            found.push(index);
        }
        let mut redo = Vec::new();
        for _ in 0..writes {
            let (name, offset, len) = (next()?, next()?, next()?);
            if len > self.machinery.log_words() * 8 {
                return Err(Error::Corrupt { what: "a length in a log", value: len });
            }
            let segment = match self.find(name) {
                Ok(segment) => segment,
                // The segment may have gone with the dead process: the rest is completed.
                Err(Error::NoSegment { .. } | Error::NotReachable { .. }) if self.is_gone(name) => {
                    for _ in 0..len.div_ceil(8) {
                        next()?;
                    }
                    continue;
                }
                Err(e) => return Err(e),
            };
            if segment.check(offset, len).is_err() && !self.can_be_cut_off(&segment, offset, len) {
                return Err(Error::Corrupt { what: "an offset in a log", value: offset });
            }
            let mut bytes = Vec::new();
            for _ in 0..len.div_ceil(8) {
                bytes.extend_from_slice(&next()?.to_le_bytes());
            }
            // What was cut off the segment since is not written.
            let here = len.min(segment.section.len().saturating_sub(offset));
            bytes.truncate(usize::try_from(here).unwrap_or(0));
            redo.push(Redo { segment, offset, bytes });
        }
        Ok((found, redo))
    }

    /// Whether a segment may have had these bytes before it was made smaller. Only a segment of the shared section can be: it
    /// lies there in one piece, and begins where it always did.
    fn can_be_cut_off(&self, segment: &Segment, offset: u64, len: u64) -> bool {
        let Ok(shared) = self.member().region().shared() else { return false };
        let begin = segment.section.address(0, 0).ok().and_then(|address| shared.offset_of(address));
        let end = begin.and_then(|at| at.checked_add(offset)).and_then(|at| at.checked_add(len));
        end.is_some_and(|end| end <= shared.len())
    }
}

/// Writes bytes word by word. The other bytes of the words are safe: changing them takes the same lock.
pub(crate) fn write_bytes(segment: &Segment, offset: u64, bytes: &[u8], each: Step) -> Result<()> {
    let mut offset = offset;
    let mut bytes = bytes;
    while !bytes.is_empty() {
        let shift = offset % 8;
        #[allow(clippy::cast_possible_truncation)] // at most 8
        let (now, later) = bytes.split_at(bytes.len().min(8 - shift as usize));
        let word = segment.section.word("segment", offset - shift)?;
        let mask = (u64::MAX >> (64 - 8 * now.len())) << (8 * shift);
        let value = number(now) << (8 * shift);
        word.put(if mask == u64::MAX { value } else { (word.peek() & !mask) | value });
        step(each);
        offset += now.len() as u64;
        bytes = later;
    }
    Ok(())
}

/// Reads bytes word by word.
pub(crate) fn read_bytes(segment: &Segment, offset: u64, bytes: &mut [u8]) -> Result<()> {
    let mut offset = offset;
    let mut bytes = bytes;
    while !bytes.is_empty() {
        let shift = offset % 8;
        #[allow(clippy::cast_possible_truncation)] // at most 8
        let shifted = shift as usize;
        let (now, later) = bytes.split_at_mut(bytes.len().min(8 - shifted));
        let word = segment.section.word("segment", offset - shift)?.peek().to_le_bytes();
        now.copy_from_slice(&word[shifted..shifted + now.len()]);
        offset += now.len() as u64;
        bytes = later;
    }
    Ok(())
}
