//! Minitransactions that lie in one aligned word: a load, or a compare-and-swap.

use isthmus_lockfree::commit;
use isthmus_lockfree::sync::Word;
use isthmus_region::Section;
use isthmus_region::mapping::LineRef;

use super::committer::Committer;
use super::contention::{Backoff, Wait};
use super::error::{Error, Result};
use super::fault::{Step, step};
use super::items::{Minitransaction, One, Outcome};

/// An aligned word of 8 bytes of a segment, found once: for loops that change the same words again and again
/// ([`Committer::load`], [`Committer::exchange`]). It keeps the segment's memory mapped, also once that is unregistered.
#[derive(Debug, Clone)]
pub struct Place {
    /// The word alone.
    pub(super) data: Section,
    pub(super) lock: LineRef,
    /// Index of the lock.
    pub(super) index: u64,
    /// Stands for node, segment and offset in a thread's [`Memory`].
    pub(super) key: u64,
}

impl Place {
    #[inline]
    fn data(&self) -> Result<&Word> {
        Ok(self.data.word("segment", 0)?)
    }
}

/// How [`Committer::exchange`] ended: as [`Outcome`], with the value that was there instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exchange {
    /// The word had the old value, and has the new one.
    Committed,
    /// The word had this value.
    CompareFailed(u64),
    /// Others held the lock for too long.
    LockFailed,
}

/// What a thread last knew of a word, so that it can tell why the word is different now.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Memory {
    key: u64,
    value: u64,
    how: How,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum How {
    #[default]
    Read,
    Wrote,
    /// A compare failed and found this value.
    Failed,
}

/// Words that a thread remembers; a newer one replaces an older one.
pub(super) type Memories = [Memory; 16];

#[inline]
fn memory(memories: &mut Memories, key: u64) -> &mut Memory {
    // Words side by side get different places, and so do words of lines side by side.
    #[allow(clippy::cast_possible_truncation)] // below 16
    let at = ((key ^ (key >> 3)) % 16) as usize;
    &mut memories[at]
}

/// Stands for a word in [`Memory`]. If two words have the same key, that costs a wrong guess and no more.
#[inline]
pub(super) fn key(name: u64, offset: u64) -> u64 {
    name.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(offset / 8)
}

enum Tried {
    /// The word had this value, which matched, and the change, if there is one, is made.
    Made(u64),
    /// The word has this value, which does not match.
    Differs(u64),
    /// Another thread changed the word in between.
    Raced,
    /// The lock has this token.
    Locked(u64),
}

/// Exchanges of a part of a word that fail, since other threads change other parts, before this one backs off.
const RACES: u32 = 4;

/// Reads the word, and changes it if it matches. `flight` is the own slot's.
#[inline(always)] // with what is known of the change, little of it is left
fn try_once(data: &Word, lock: &Word, index: u64, flight: &Word, one: &One) -> Tried {
    let value = match commit::read(data, lock) {
        Ok(value) => value,
        Err(token) => return Tried::Locked(token),
    };
    if !one.matches(value) {
        return Tried::Differs(value);
    }
    if one.write.0 == 0 {
        return Tried::Made(value);
    }
    step(Step::Matched);
    commit::announce(flight, index);
    step(Step::Announced);
    let tried = match lock.get() {
        0 => {
            step(Step::Unlocked);
            match data.replace(value, one.changed(value)) {
                Ok(()) => Tried::Made(value),
                Err(other) if one.matches(other) => Tried::Raced,
                Err(other) => Tried::Differs(other),
            }
        }
        token => Tried::Locked(token),
    };
    step(Step::Changed);
    commit::withdraw(flight);
    step(Step::Withdrawn);
    tried
}

/// Remembers a word that was read or changed. Returns whether there was no contention: false if this thread reads a word that
/// another has changed since this thread did, perhaps to change it again. Then the two had better take turns.
#[inline(always)] // as above
fn is_quiet(memories: &mut Memories, backoff: &mut Backoff, key: u64, one: &One, before: u64) -> bool {
    let memory = memory(memories, key);
    if one.write.0 != 0 {
        *memory = Memory { key, value: one.changed(before), how: How::Wrote };
        backoff.succeeded();
        return true;
    }
    let is_met = memory.key == key && memory.how == How::Wrote && memory.value != before;
    *memory = Memory { key, value: before, how: How::Read };
    !is_met
}

impl Committer {
    #[inline]
    pub(super) fn commit_one(&mut self, t: &mut Minitransaction) -> Result<Outcome> {
        self.fly(t.one.write.0)?;
        let segment = self.segment(t.one.name)?;
        let segment = &self.segments[segment];
        let Ok(data) = segment.section.word("segment", t.one.offset) else {
            // Segments are whole words, so if any byte is outside, the word is.
            segment.check(t.one.offset, 8)?;
            return Err(Error::BadSegment { len: segment.section.len() });
        };
        let index = self.shared.machinery.lock_of(t.one.name, t.one.offset / 64);
        let lock = self.shared.machinery.lock(index)?;
        let key = key(t.one.name, t.one.offset);
        let tried = try_once(data, lock, index, &self.flight.words[0], &t.one);
        let (outcome, value) = match tried {
            Tried::Made(before) if is_quiet(&mut self.memories, &mut self.backoff, key, &t.one, before) => {
                (Outcome::Committed, before)
            }
            tried => {
                let place = self.shared.place(segment, t.one.offset)?;
                self.try_on(&place, &t.one, tried)?
            }
        };
        if outcome != Outcome::LockFailed {
            t.fill_from(value);
        }
        Ok(outcome)
    }

    /// Reads a word: a minitransaction with one read item. `None` stands for [`Outcome::LockFailed`].
    ///
    /// # Ordering
    /// As [`Committer::commit`].
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    #[inline]
    pub fn load(&mut self, place: &Place) -> Result<Option<u64>> {
        let one = One::default();
        let tried = try_once(place.data()?, &place.lock.words[0], place.index, &self.flight.words[0], &one);
        match tried {
            Tried::Made(value) if is_quiet(&mut self.memories, &mut self.backoff, place.key, &one, value) => {
                Ok(Some(value))
            }
            tried => self.load_on(place, tried),
        }
    }

    #[cold]
    fn load_on(&mut self, place: &Place, tried: Tried) -> Result<Option<u64>> {
        let (outcome, value) = self.try_on(place, &One::default(), tried)?;
        Ok((outcome == Outcome::Committed).then_some(value))
    }

    /// Changes a word from `old` to `new`: a minitransaction with a compare and a write item.
    ///
    /// # Ordering
    /// As [`Committer::commit`].
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    #[inline]
    pub fn exchange(&mut self, place: &Place, old: u64, new: u64) -> Result<Exchange> {
        self.fly(u64::MAX)?;
        let all = u64::MAX;
        let one = One { compare: (all, old), write: (all, new), ..One::default() };
        let tried = try_once(place.data()?, &place.lock.words[0], place.index, &self.flight.words[0], &one);
        match tried {
            Tried::Made(value) if is_quiet(&mut self.memories, &mut self.backoff, place.key, &one, value) => {
                Ok(Exchange::Committed)
            }
            tried => self.exchange_on(place, &one, tried),
        }
    }

    #[cold]
    fn exchange_on(&mut self, place: &Place, one: &One, tried: Tried) -> Result<Exchange> {
        Ok(match self.try_on(place, one, tried)? {
            (Outcome::Committed, _) => Exchange::Committed,
            (Outcome::CompareFailed, value) => Exchange::CompareFailed(value),
            (Outcome::LockFailed, _) => Exchange::LockFailed,
        })
    }

    /// Before the first change of a single word: from now on others read this slot's flight (P14).
    #[inline]
    fn fly(&mut self, written: u64) -> Result<()> {
        if written != 0 && !self.is_flyer {
            let (flyers, bit) = self.shared.machinery.flyer(self.slot)?;
            flyers.insert(bit);
            self.is_flyer = true;
        }
        Ok(())
    }

    /// The rest of a load or change that did not succeed at once.
    #[cold]
    fn try_on(&mut self, place: &Place, one: &One, first: Tried) -> Result<(Outcome, u64)> {
        let data = place.data()?;
        let lock = &place.lock.words[0];
        let mut wait = Wait::new(self.shared.patience());
        let mut tried = first;
        let mut races = 0;
        let mut has_waited = false;
        loop {
            match tried {
                Tried::Made(before) => {
                    if one.write.0 != 0 {
                        is_quiet(&mut self.memories, &mut self.backoff, place.key, one, before);
                    } else if !has_waited && self.backoff.met() {
                        // The program gets the value after the wait, and will find it unchanged when it writes.
                        has_waited = true;
                        tried = try_once(data, lock, place.index, &self.flight.words[0], one);
                        let is_other = !matches!(tried, Tried::Made(after) if after == before);
                        self.backoff.made_room(is_other);
                        continue;
                    }
                    return Ok((Outcome::Committed, before));
                }
                Tried::Differs(value) => {
                    let memory = memory(&mut self.memories, place.key);
                    let was_beaten = memory.key == place.key
                        && memory.value != value
                        && (memory.how == How::Failed || one.matches(memory.value));
                    *memory = Memory { key: place.key, value, how: How::Failed };
                    if !was_beaten || has_waited {
                        return Ok((Outcome::CompareFailed, value));
                    }
                    // Read again after the wait: the program gets the value that is there now, and can go on from that.
                    self.back_off()?;
                    has_waited = true;
                    // Fetch the line for writing, without a change: a read would only share it, and the processor that has
                    // it would make its next change before the program's own.
                    if one.write.0 != 0 {
                        data.add(0);
                    }
                }
                Tried::Raced => {
                    races += 1;
                    if races > RACES {
                        self.back_off()?;
                        if !wait.round() {
                            return Ok((Outcome::LockFailed, 0));
                        }
                    }
                }
                Tried::Locked(token) => {
                    if !self.wait_for(place.index, token, &mut wait)? {
                        return Ok((Outcome::LockFailed, 0));
                    }
                }
            }
            tried = try_once(data, lock, place.index, &self.flight.words[0], one);
        }
    }
}
