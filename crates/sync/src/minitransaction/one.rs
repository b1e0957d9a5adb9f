//! Minitransactions that lie in one aligned word: a load, or a compare-and-swap.

use isthmus_lockfree::commit;

use super::committer::Committer;
use super::contention::Wait;
use super::error::{Error, Result};
use super::fault::{Step, step};
use super::items::{Minitransaction, One, Outcome};

/// What a thread knows of the word that it looked at last. It serves to tell a compare that failed because somebody else was
/// faster, after which waiting helps all, from one that failed because the program wanted to know.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    name: u64,
    offset: u64,
    value: u64,
    /// A compare with it had failed.
    has_failed: bool,
}

/// Where a word and its lock are.
#[derive(Debug, Clone, Copy)]
struct Place {
    segment: usize,
    offset: u64,
    lock: u64,
}

enum Tried {
    /// The word was this and matched, and the change, if there is one, is made.
    Made(u64),
    /// The word is this, which does not match.
    Differs(u64),
    /// Somebody changed the word in between.
    Raced,
    /// The lock has this token.
    Locked(u64),
}

/// Exchanges that fail before a change of a part of a word, which others change in other parts, makes room for others.
const RACES: u32 = 4;

impl Committer {
    #[inline]
    pub(super) fn commit_one(&mut self, t: &mut Minitransaction) -> Result<Outcome> {
        let segment = self.segment(t.one.name)?;
        let lock = self.shared.machinery.lock_of(t.one.name, t.one.offset / 64);
        let place = Place { segment, offset: t.one.offset, lock };
        match self.try_one(&t.one, place)? {
            Tried::Made(before) => Ok(self.made(t, before)),
            tried => self.try_on(t, place, tried),
        }
    }

    #[inline]
    fn made(&mut self, t: &mut Minitransaction, before: u64) -> Outcome {
        let one = &t.one;
        if one.write.0 != 0 {
            self.backoff.succeeded();
        }
        let value = one.changed(before);
        self.seen = Some(Seen { name: one.name, offset: one.offset, value, has_failed: false });
        t.fill_from(before);
        Outcome::Committed
    }

    /// All that does not go well at once.
    #[cold]
    fn try_on(&mut self, t: &mut Minitransaction, place: Place, first: Tried) -> Result<Outcome> {
        let one = &{ t.one };
        let mut wait = Wait::new(self.shared.patience());
        let mut tried = first;
        let mut races = 0;
        let mut has_waited = false;
        loop {
            match tried {
                Tried::Made(before) => return Ok(self.made(t, before)),
                Tried::Differs(value) => {
                    let was_beaten = self.was_beaten(one, value);
                    self.seen = Some(Seen { name: one.name, offset: one.offset, value, has_failed: true });
                    if !was_beaten || has_waited {
                        t.fill_from(value);
                        return Ok(Outcome::CompareFailed);
                    }
                    // Looked at again after the wait: the program gets what is there now, and can go on from that.
                    self.back_off()?;
                    has_waited = true;
                }
                Tried::Raced => {
                    races += 1;
                    if races > RACES {
                        self.back_off()?;
                        if !wait.round() {
                            return Ok(Outcome::LockFailed);
                        }
                    }
                }
                Tried::Locked(token) => {
                    if !self.wait_for(place.lock, token, &mut wait)? {
                        return Ok(Outcome::LockFailed);
                    }
                }
            }
            tried = self.try_one(one, place)?;
        }
    }

    /// Whether `value` is not what the program compares with because somebody changed it since this thread looked last.
    fn was_beaten(&self, one: &One, value: u64) -> bool {
        self.seen.is_some_and(|seen| {
            (seen.name, seen.offset) == (one.name, one.offset)
                && seen.value != value
                && (seen.has_failed || one.matches(seen.value))
        })
    }

    #[inline(always)] // its outcome is looked at at once
    fn try_one(&mut self, one: &One, place: Place) -> Result<Tried> {
        let machinery = &self.shared.machinery;
        let segment = &self.segments[place.segment];
        let Ok(data) = segment.section.word("segment", place.offset) else {
            // Segments are whole words, so if any byte is outside the word is.
            segment.check(place.offset, 8)?;
            return Err(Error::BadSegment { len: segment.section.len() });
        };
        let lock = machinery.lock(place.lock)?;
        let value = match commit::read(data, lock) {
            Ok(value) => value,
            Err(token) => return Ok(Tried::Locked(token)),
        };
        if !one.matches(value) {
            return Ok(Tried::Differs(value));
        }
        if one.write.0 == 0 {
            return Ok(Tried::Made(value));
        }
        if !self.is_flyer {
            let (flyers, bit) = machinery.flyer(self.slot)?;
            flyers.insert(bit);
            self.is_flyer = true;
        }
        let flight = &self.flight.words[0];
        commit::announce(flight, place.lock);
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
        Ok(tried)
    }
}
