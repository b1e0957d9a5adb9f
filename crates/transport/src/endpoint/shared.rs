//! Long messages that lie in memory of the region, as programs have it from `isthmus_memory` and `isthmus run --alloc`: their receiver
//! copies them from there, whichever system it is of, and nobody has to allow it.
//!
//! The offer's word lies in a few lines of the sender's area. They serve one offer after the other, of which no two have the same value,
//! so a receiver that comes late finds that its offer does not stand. They become other memory only once the endpoint's record says that
//! it is gone.

use isthmus_lockfree::life::unchanged;
use isthmus_region::PeerSection;
use isthmus_region::local::LocalBuf;
use isthmus_region::mapping::LineRef;
use isthmus_region::member::Member;

use super::offer::{Offer, PIECE, Piece, Pull, Space, Standing};
use super::poll::Stop;
use super::table::Operation;
use super::{Berth, Core};
use crate::types::PeerId;

/// Lines for the words of offers, their bytes, and words.
const LINES: usize = 16;
const BYTES: u64 = 1024;
const WORDS: usize = 8 * LINES;
const _: () = assert!(BYTES == 8 * WORDS as u64);

/// The words of an endpoint's offers.
#[derive(Debug)]
pub(super) struct Words {
    at: u64,
    lines: Vec<LineRef>,
    /// Where the last free one was found.
    last: usize,
}

impl Words {
    /// None if the area has no memory for them.
    fn take(member: &Member) -> Option<Self> {
        let at = member.take(BYTES).ok()?;
        let section = member.section();
        let lines = section.zero("offers", at, BYTES).and_then(|()| {
            let offsets = (at..).step_by(64).take(LINES);
            offsets.map(|line| section.line("offers", line)).collect::<isthmus_region::Result<_>>()
        });
        match lines {
            Ok(lines) => Some(Self { at, lines, last: 0 }),
            Err(_) => {
                member.give(at, BYTES);
                None
            }
        }
    }

    /// Takes a word for an offer; gives its offset, too. None if all are in use.
    fn stand(&mut self, value: u64) -> Option<(Standing, u64)> {
        let after = (self.last + 1..).take(WORDS).map(|number| number % WORDS);
        let number = after.into_iter().find(|number| self.lines[number / 8].words[number % 8].peek() == 0)?;
        self.last = number;
        let line = self.lines[number / 8].clone();
        line.words[number % 8].put(value);
        Some((Standing::Region(line, number % 8), self.at + 8 * number as u64))
    }

    /// Gives the memory back; no offer stands.
    pub(super) fn give_back(self, member: &Member) {
        member.give(self.at, BYTES);
    }
}

impl Core {
    /// Offers a buffer that lies in memory of the region.
    pub(super) fn offer_shared(&mut self, berth: &mut Berth, buf: LocalBuf) -> Option<(Standing, Offer)> {
        let payload = self.memory.offset_of(&berth.member, buf)?;
        if berth.offers.is_none() {
            berth.offers = Words::take(&berth.member);
        }
        let value = self.next_offer();
        let (standing, word) = berth.offers.as_mut()?.stand(value)?;
        Some((standing, Offer { space: Space::Region, payload, word, value }))
    }

    /// Takes note of where a sender's offer is.
    ///
    /// # Errors
    /// [`Stop::Faulty`] if its section has no such places.
    pub(super) fn take_shared(
        &mut self,
        source: PeerId,
        section: &PeerSection,
        len: u64,
        offer: &Offer,
    ) -> Result<(), Stop> {
        section.holds("payload", offer.payload, len).map_err(|_| Stop::Faulty)?;
        section.read("offer", offer.word).map_err(|_| Stop::Faulty)?;
        self.peers[source.0 as usize].section.get_or_insert_with(|| section.clone());
        Ok(())
    }

    /// Copies the next piece of a message.
    ///
    /// # Ordering
    /// P5: the sender ends the word, and with its endpoint the record, before its program writes to the buffer again.
    pub(super) fn pull_shared(&mut self, from: PeerId, pull: Pull) -> Piece {
        let Some(Operation::Incoming { dest, want, received, .. }) = self.operations.get(pull.mine, from)
        else {
            return Piece::Over;
        };
        let peer = &self.peers[from.0 as usize];
        let Some(section) = &peer.section else { return Piece::Failed };
        let len = PIECE.min(*want - *received);
        // `take_shared` has seen that it does not overflow.
        let at = pull.offer.payload + *received;
        let copied = dest.pieces(*received, len, |done, piece| section.drain("payload", at + done, piece));
        *received += len;
        let all = *received == *want;
        let stands =
            |offer: &Offer| section.read("offer", offer.word).is_ok_and(|word| unchanged(word, offer.value));
        if copied.is_ok() && (!all || stands(&pull.offer)) && peer.still_lives() {
            Piece::Copied { all }
        } else {
            Piece::Failed
        }
    }
}
