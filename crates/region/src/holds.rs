//! Which processes are changing the memory of others right now (P7).
//!
//! A process that writes to another's area itself, or does atomic operations there, names that area in its endpoint's
//! block while it does. A local service does not give the memory of a dead process away while any endpoint names its area;
//! nor does the host service that of a whole peer. Such an operation is short; one that takes longer belongs to a
//! process that stands still, as in a machine that is paused, and it may go on at any time.

use std::collections::HashSet;

use isthmus_lockfree::hold;
use isthmus_lockfree::life::{Life, State};
use isthmus_lockfree::sync::ReadWord;

use crate::directory::{Directory, places};
use crate::format::{area, block};
use crate::mapping::{LineRef, PeerSection, Section};
use crate::membership::{PeerInfo, Region, Shape};
use crate::party::GONE;

/// An area, as hold words name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner(u64);

impl Owner {
    /// The area with index `area` of peer `peer`.
    pub fn new(peer: u32, area: u32) -> Self {
        Self((u64::from(peer) << 32 | u64::from(area)).wrapping_add(1))
    }

    /// Peer and area that a hold word names, of which nothing is checked; none if it names no area.
    pub fn named(word: u64) -> Option<(u32, u32)> {
        let word = word.checked_sub(1)?;
        Some((u32::try_from(word >> 32).ok()?, u32::try_from(word & 0xffff_ffff).ok()?))
    }
}

/// An endpoint's own hold word.
#[derive(Debug, Clone)]
pub struct Hold(LineRef);

impl Hold {
    /// The one of the block at `at` of the own section.
    ///
    /// # Errors
    /// [`crate::Error::OutOfBounds`].
    pub fn of(section: &Section, at: u64) -> crate::Result<Self> {
        Ok(Self(section.line("block", at + block::HOLD)?))
    }

    /// Takes a hold on an area: its memory is not given away until [`Hold::release`], if its owner is seen to live after this.
    #[inline]
    pub fn take(&self, owner: Owner) {
        hold::take(&self.0.words[0], owner.0);
    }

    /// Lets go.
    #[inline]
    pub fn release(&self) {
        hold::release(&self.0.words[0]);
    }
}

/// Whether the process of an area whose service has dropped it may live on, in the middle of what it was at. Its slot serves no other
/// endpoint until it is gone.
fn may_go_on(section: &PeerSection, shape: &Shape, area: u64) -> bool {
    if area >= u64::from(shape.endpoints) {
        return false;
    }
    let at = places(shape).areas + area * area::BYTES;
    let word = |offset| section.word("area", at + offset).map_or(0, ReadWord::get);
    let is_over = Life::unpack(word(area::LIFE)).state == State::Dead;
    is_over && word(area::GRANTED) > 0 && word(area::PID) != GONE
}

/// Calls `each` with the endpoints (peer and slot) that hold an area of `peer`, the given one or any, until it gives true. Gives whether
/// it did.
fn any(region: &Region, peer: u32, area: Option<u32>, mut each: impl FnMut((u32, u32)) -> bool) -> bool {
    hold::after_death();
    // Who has the memory in another file cannot write it, and a hold that is told there is a lie.
    let file = region.peer(peer).ok().flatten().map(|p| p.file);
    let may_write = |p: &&PeerInfo| file.is_none_or(|file| p.file == file);
    let all = region.peers();
    all.iter().filter(|p| p.life.state == State::Active).filter(may_write).any(|p| {
        // What cannot be read belongs to no process that keeps to the format.
        let Ok(section) = region.section(p) else { return false };
        let Ok(directory) = Directory::open(&section, region.shape(), p.life.incarnation) else {
            return false;
        };
        (0..directory.endpoints_high()).any(|slot| {
            let Ok(info) = directory.endpoint(slot) else { return false };
            let word = info.block.checked_add(block::HOLD).and_then(|at| section.word("block", at).ok());
            let counts = match info.life.state {
                State::Active => true,
                State::Dead => may_go_on(&section, region.shape(), info.area),
                State::Free | State::Joining => false,
            };
            let Some(word) = word.filter(|_| counts) else { return false };
            let is_on = match area {
                Some(area) => hold::is_on(word, Owner::new(peer, area).0),
                None => word.get().checked_sub(1).is_some_and(|w| w >> 32 == u64::from(peer)),
            };
            is_on && each((p.index, slot))
        })
    })
}

/// Whether any endpoint of the region, of a process that lives or may live on, holds an area of `peer`: the given one, or any. The death of the owner, or
/// the end of what the hold is for, must have been published.
pub fn are_on(region: &Region, peer: u32, area: Option<u32>) -> bool {
    any(region, peer, area, |_| true)
}

/// The endpoints that held an area at some moment, and at each look since. Any other hold was taken later, by an endpoint that has seen
/// what was published before.
#[derive(Debug)]
pub struct Former(HashSet<(u32, u32)>);

impl Former {
    /// Those that hold the area now. The end of what the hold is for must have been published.
    pub fn of(region: &Region, peer: u32, area: u32) -> Self {
        let mut all = HashSet::new();
        any(region, peer, Some(area), |endpoint| !all.insert(endpoint));
        Self(all)
    }

    /// Looks again. Gives whether none of them is left.
    pub fn are_gone(&mut self, region: &Region, peer: u32, area: u32) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let mut left = HashSet::new();
        any(region, peer, Some(area), |endpoint| self.0.contains(&endpoint) && !left.insert(endpoint));
        self.0 = left;
        self.0.is_empty()
    }
}
