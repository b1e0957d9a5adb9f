//! Processes, as words of shared memory name them: the owner of a lock, a participant of a barrier, or one in the middle of a
//! change.
//!
//! A name is good for this life of the process only. It is believed in nothing: a process that finds such a word
//! reads in the membership table and that peer's area table whether the named one lives.

use isthmus_lockfree::life::{Life, State, unchanged};
use isthmus_lockfree::sync::ReadWord;

use crate::directory;
use crate::error::Result;
use crate::format::area;
use crate::membership::Region;

const PEER_BITS: u32 = 10;
const AREA_BITS: u32 = 14;
const LIFE_BITS: u32 = 40;
/// [`area::PID`] of a process that is gone.
pub(crate) const GONE: u64 = u64::MAX;

/// A process of a peer, by its area. One word, never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Party(u64);

impl Party {
    /// The process in area `area` of peer `peer`, in the area's life `incarnation`. Of that the lower 40 bits are kept: 32
    /// that count the lives of the area, and 8 of the peer's.
    pub fn new(peer: u32, area: u32, incarnation: u64) -> Self {
        let peer = u64::from(peer) & ((1 << PEER_BITS) - 1);
        let area = u64::from(area) & ((1 << AREA_BITS) - 1);
        Self((peer << (AREA_BITS + LIFE_BITS)) | (area << LIFE_BITS) | (incarnation & ((1 << LIFE_BITS) - 1)))
    }

    /// The process that a word names, if it names any; nothing of it is checked.
    pub fn named(word: u64) -> Option<Self> {
        (word & ((1 << LIFE_BITS) - 1) != 0).then_some(Self(word))
    }

    /// As it stands in a word.
    #[inline]
    pub fn word(self) -> u64 {
        self.0
    }

    /// Index of its peer.
    pub fn peer(self) -> u32 {
        u32::try_from(self.0 >> (AREA_BITS + LIFE_BITS)).unwrap_or(u32::MAX)
    }

    /// The lower eight bits of its peer's incarnation.
    pub fn peer_life(self) -> u64 {
        (self.0 >> 32) & 0xff
    }

    /// Index of its area in the peer's table.
    pub fn area(self) -> u32 {
        u32::try_from((self.0 >> LIFE_BITS) & ((1 << AREA_BITS) - 1)).unwrap_or(u32::MAX)
    }

    /// Whether it lives, as far as the services have published.
    pub fn is_alive(self, region: &Region) -> bool {
        self.look(region).is_some_and(|(state, ..)| state == State::Active)
    }

    /// Whether it may still write to the region: it lives, or its service has dropped it and it may live on. Not once it is gone, though
    /// another process may still be changing its memory.
    pub fn may_write(self, region: &Region) -> bool {
        let may_live_on = |granted, process| granted > 0 && process != GONE;
        self.look(region)
            .is_some_and(|(state, granted, process)| state == State::Active || may_live_on(granted, process))
    }

    /// Whether it is what `later`, which lives, was before: its process was dropped, lives on, and has attached again, perhaps after
    /// it has executed another program.
    ///
    /// # Errors
    /// What keeps the tables from being read.
    pub fn is_former(self, later: Self, region: &Region) -> Result<bool> {
        let (before, now) = (self.read(region)?, later.read(region)?);
        let is_it = before.zip(now).is_some_and(|((state, granted, process), (_, _, same))| {
            state != State::Active && granted > 0 && process != 0 && process == same
        });
        Ok(is_it && self.peer() == later.peer())
    }

    /// State and granted bytes of its area, and its process's number, if that is still in this process's life, and the peer lives.
    /// Memory that cannot be mapped, or not be had just now, says nothing; so that nobody takes a living process for a dead one, it is
    /// then one that is at work.
    fn look(self, region: &Region) -> Option<(State, u64, u64)> {
        self.read(region).unwrap_or_else(|e| e.says_nothing().then_some((State::Active, 1, 0)))
    }

    fn read(self, region: &Region) -> Result<Option<(State, u64, u64)>> {
        let Some(info) = region.peer(self.peer())? else { return Ok(None) };
        if info.life.state != State::Active || self.area() >= region.shape().endpoints {
            return Ok(None);
        }
        let section = region.section(&info)?;
        let at = directory::places(region.shape()).areas + u64::from(self.area()) * area::BYTES;
        let record = section.word("area", at + area::LIFE)?;
        let seen = record.get();
        let life = Life::unpack(seen);
        if life.incarnation & ((1 << LIFE_BITS) - 1) != self.0 & ((1 << LIFE_BITS) - 1) {
            return Ok(None);
        }
        let word = |offset| section.word("area", at + offset).map(ReadWord::get);
        let (granted, process) = (word(area::GRANTED)?, word(area::PID)?);
        if unchanged(record, seen) {
            return Ok(Some((life.state, granted, process)));
        }
        // It has died since, or its area has another process by now.
        let now = Life::unpack(record.get());
        let is_next = now.incarnation != life.incarnation;
        Ok(if is_next { None } else { Some((now.state, granted, process)) })
    }
}

impl std::fmt::Display for Party {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {}.{}", self.peer(), self.area())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_parts() {
        let party = Party::new(1023, 16383, (7 << 32) | 5);
        assert_eq!((party.peer(), party.area()), (1023, 16383));
        assert_eq!(Party::named(party.word()), Some(party));
        assert_ne!(party, Party::new(1023, 16383, (7 << 32) | 6));
        assert_ne!(party, Party::new(1023, 16383, (8 << 32) | 5));
        assert_eq!(Party::named(0), None);
    }
}
