//! Long messages that lie in memory of the region, as programs have it from `isthmus_memory` and `isthmus run --alloc`: their receiver
//! copies them from there, whichever system it is of, and nobody has to allow it.
//!
//! The offer's word lies in a few lines of the sender's area. They serve one offer after the other, of which no two have the same value,
//! so a receiver that comes late finds that its offer does not stand. They become other memory only once the endpoint's record says that
//! it is gone.

use std::sync::Arc;

use isthmus_lockfree::life::unchanged;
use isthmus_lockfree::sync::Word;
use isthmus_region::PeerSection;
use isthmus_region::attach::Failure;
use isthmus_region::local::LocalBuf;
use isthmus_region::mapping::LineRef;
use isthmus_region::member::Member;

use super::offer::{Offer, Piece, Pull, Space, Standing};
use super::poll::Stop;
use super::{Berth, Core};
use crate::types::PeerId;

/// Lines for the words of offers, their bytes, and words.
const LINES: usize = 16;
const BYTES: u64 = 1024;
const WORDS: usize = 8 * LINES;
const _: () = assert!(BYTES == 8 * WORDS as u64);
/// Offers that are not made after one for which the area had no memory.
const PAUSE: u32 = 1000;

/// The words of an endpoint's offers.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// None before the first offer.
    taken: Option<Lines>,
    /// Offers that are still not made for want of memory.
    pause: u32,
}

#[derive(Debug)]
struct Lines {
    at: u64,
    lines: Vec<LineRef>,
    in_use: Arc<InUse>,
}

/// Which words are in use, as bits. In this process's own memory: what others may write into the words does not count.
#[derive(Debug)]
struct InUse([Word; WORDS / 64]);

/// A word in use.
#[derive(Debug)]
pub(super) struct Taken {
    line: LineRef,
    number: usize,
    in_use: Arc<InUse>,
}

impl Taken {
    pub(super) fn word(&self) -> &Word {
        &self.line.words[self.number % 8]
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let bits = &self.in_use.0[self.number / 64];
        bits.put(bits.peek() & !(1 << (self.number % 64)));
    }
}

impl Lines {
    fn take(member: &Member) -> Option<Self> {
        let at = member.take(BYTES).ok()?;
        let section = member.section();
        let lines = section.zero("offers", at, BYTES).and_then(|()| {
            let offsets = (at..).step_by(64).take(LINES);
            offsets.map(|line| section.line("offers", line)).collect::<isthmus_region::Result<_>>()
        });
        match lines {
            Ok(lines) => {
                Some(Self { at, lines, in_use: Arc::new(InUse(std::array::from_fn(|_| Word::new(0)))) })
            }
            Err(_) => {
                member.give(at, BYTES);
                None
            }
        }
    }

    /// Takes a word for an offer; gives its offset, too. None if all are in use.
    fn stand(&self, value: u64) -> Option<(Standing, u64)> {
        let mut free = (0..).zip(&self.in_use.0).filter(|(_, bits)| bits.peek() != u64::MAX);
        let (group, bits) = free.next()?;
        let bit = bits.peek().trailing_ones() as usize;
        bits.put(bits.peek() | 1 << bit);
        let number = 64 * group + bit;
        let taken = Taken { line: self.lines[number / 8].clone(), number, in_use: Arc::clone(&self.in_use) };
        // P1: published with the announcement.
        taken.word().put(value);
        Some((Standing::Region(taken), self.at + 8 * number as u64))
    }
}

impl Words {
    fn stand(&mut self, member: &Member, value: u64) -> Option<(Standing, u64)> {
        if self.taken.is_none() {
            if self.pause > 0 {
                self.pause -= 1;
                return None;
            }
            self.taken = Lines::take(member);
            self.pause = PAUSE;
        }
        self.taken.as_ref()?.stand(value)
    }

    /// Gives the memory back; no offer stands.
    pub(super) fn give_back(self, member: &Member) {
        if let Some(lines) = self.taken {
            member.give(lines.at, BYTES);
        }
    }
}

impl Core {
    /// Offers a buffer that lies in memory of the region.
    pub(super) fn offer_resident(&mut self, berth: &mut Berth, buf: LocalBuf) -> Option<(Standing, Offer)> {
        let payload = self.memory.offset_of(&berth.member, buf)?;
        let value = self.next_offer();
        let (standing, word) = berth.offers.stand(&berth.member, value)?;
        Some((standing, Offer { space: Space::Region, payload, word, value }))
    }

    /// Takes note of where a sender's offer is.
    ///
    /// # Errors
    /// [`Stop::Faulty`] if its section has no such places; [`Stop::Unmapped`] if the offer's cannot be mapped.
    pub(super) fn take_resident(
        &mut self,
        source: PeerId,
        section: &PeerSection,
        len: u64,
        offer: &Offer,
    ) -> Result<(), Stop> {
        section.holds("payload", offer.payload, len).map_err(|_| Stop::Faulty)?;
        section.read("offer", offer.word).map_err(Stop::of)?;
        self.peers[source.0 as usize].section.get_or_insert_with(|| section.clone());
        Ok(())
    }

    /// Copies the next piece of a message.
    ///
    /// # Ordering
    /// P5: the sender ends the word, and with its endpoint the record, before its program writes to the buffer again.
    pub(super) fn pull_resident(&mut self, from: PeerId, pull: Pull, most: u64) -> Piece {
        let Some(section) = self.peers[from.0 as usize].section.clone() else { return Piece::NONE };
        let copy = |at, piece| section.drain("payload", at, piece).map_err(|_| Failure::Unreadable);
        let stands = || {
            let word = section.read("offer", pull.offer.word).map_err(|_| Failure::Unreadable)?;
            Ok(unchanged(word, pull.offer.value))
        };
        self.pull_piece(from, pull, most, copy, stands)
    }
}
