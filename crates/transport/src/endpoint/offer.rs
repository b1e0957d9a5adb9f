//! Long messages that their receiver copies in one copy from where the sender's program has them: from the memory of its process, by
//! cross-memory attach (`attach`), or from memory of the region, if they lie there (`shared`).
//!
//! The sender's announcement *offers* that: it has the payload's place. The receiver answers with `DONE` once it has copied, or with
//! `CLEAR` as if nothing had been offered, also after it has tried. After each copy it reads the sender's record again (P5), as after
//! each copy out of the region, and after the last whether the offer still stands ([`Standing`]).

use isthmus_lockfree::sync::{Word, release_fence};
use isthmus_region::counters::Counter;
use isthmus_region::local::LocalBuf;
use isthmus_region::mapping::LineRef;

use super::table::Operation;
use super::ways::{Choice, Measured, Way};
use super::{Because, Berth, Core, Peer, attach};
use crate::fault::{Step, step};
use crate::types::{Long, PeerId};

/// Most bytes that are copied from one process in one round of progress.
pub(super) const PIECE: u64 = 1 << 20;
/// Messages in memory of the region that are shorter are announced only where their sender waits for the receive. They always come from there:
/// two copies take two messages more.
const LEAST_CHOICE: u64 = 16 << 10;

/// Whose addresses an offer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// Those of the sender's process.
    Process,
    /// Offsets in the sender's section.
    Region,
}

/// What an announcement says besides, where the receiver may copy the payload itself.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    /// Where the places below are.
    pub space: Space,
    /// Where the payload is.
    pub payload: u64,
    /// Where the word is that has `value` for as long as the offer stands.
    pub word: u64,
    /// What that word has.
    pub value: u64,
}

/// The word that says that an offer stands. It ends with the offer, before the program has its buffer back: a sender that has given its
/// receiver up completes its sends while its record says that it lives, and nothing else in the region tells the receiver. So the
/// receiver reads this word, too, after it has copied.
#[derive(Debug)]
pub(super) enum Standing {
    /// In this process's own memory.
    Process(Box<Word>),
    /// A word of a line in the region.
    Region(LineRef, usize),
}

impl Standing {
    fn word(&self) -> &Word {
        match self {
            Self::Process(word) => word,
            Self::Region(line, index) => &line.words[*index],
        }
    }

    /// Of whose addresses its offer is.
    pub(super) fn space(&self) -> Space {
        match self {
            Self::Process(_) => Space::Process,
            Self::Region(..) => Space::Region,
        }
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.word().put(0);
        // Before the program writes to its buffer again.
        release_fence();
    }
}

/// A message that is being copied from where its sender has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pull {
    /// Our operation, and the sender's.
    pub(super) mine: u64,
    pub(super) theirs: u64,
    pub(super) offer: Offer,
    pub(super) because: Because,
}

/// How a piece ended.
pub(super) enum Piece {
    Copied {
        all: bool,
    },
    /// The operation has ended.
    Over,
    /// This message must go the other way.
    Failed,
}

impl Core {
    /// What a message that is announced to `to` offers.
    pub(super) fn offer(
        &mut self,
        berth: &mut Berth,
        to: PeerId,
        bufs: &[LocalBuf],
    ) -> Option<(Standing, Offer)> {
        let [buf] = bufs else { return None };
        if self.config.long == Long::Copy {
            return None;
        }
        self.offer_shared(berth, *buf).or_else(|| self.offer_process(to, *buf))
    }

    /// A value that no word of an offer of this endpoint had before, and never 0, as far as can be told.
    pub(super) fn next_offer(&mut self) -> u64 {
        self.next_offer = self.next_offer.wrapping_add(1).max(1);
        self.next_offer
    }

    /// The way by which `len` bytes of a message come that has this offer or may come in pages, and its measurement if there was a choice.
    pub(super) fn choose_way(
        &mut self,
        from: PeerId,
        len: u64,
        offer: Option<&Offer>,
        pages: bool,
    ) -> (Way, Option<Measured>) {
        let is_shared = offer.is_some_and(|offer| offer.space == Space::Region);
        let Peer { is_near, attach, pool, ways, .. } = &mut self.peers[from.0 as usize];
        let other = match (&*is_near, pool) {
            _ if is_shared => Way::Shared,
            (true, _) if offer.is_some() && !self.is_unheard && !attach.is_closed() => Way::Attach,
            (false, Some(_)) if pages => Way::Pages,
            _ => return (Way::Copy, None),
        };
        let least = if is_shared { LEAST_CHOICE } else { attach::LEAST };
        match self.config.long {
            Long::Copy => (Way::Copy, None),
            _ if len < least => (if is_shared { other } else { Way::Copy }, None),
            Long::Attach => (other, None),
            Long::Auto => {
                let choice = Choice { len, one_copy: other };
                let way = ways.choose(choice);
                (way, Some(Measured::begin(choice, way)))
            }
        }
    }

    /// Copies the next piece of the oldest message that is copied from where `from` has it. Returns whether there was one.
    pub(super) fn pull(&mut self, berth: &Berth, from: PeerId) -> bool {
        let Some(pull) = self.peers[from.0 as usize].pulls.front().copied() else { return false };
        let piece = match pull.offer.space {
            Space::Process => self.pull_attached(berth, from, pull),
            Space::Region => self.pull_shared(from, pull),
        };
        step(Step::PieceAttached);
        if !matches!(piece, Piece::Copied { all: false }) {
            self.peers[from.0 as usize].pulls.pop_front();
        }
        match piece {
            Piece::Copied { all: true } => {
                if let Some(Operation::Incoming { done, .. }) = self.operations.get(pull.mine, from) {
                    // Whether or not the sender's program waits for that, the sender's operation does.
                    *done = Some(pull.theirs);
                }
                self.finish_incoming(pull.mine, from);
            }
            Piece::Copied { all: false } | Piece::Over => {}
            Piece::Failed => self.ask_instead(from, pull),
        }
        true
    }

    /// Asks for the bytes of a message, from the first one on, that could not be copied from where its sender has them.
    fn ask_instead(&mut self, from: PeerId, pull: Pull) {
        let Some(Operation::Incoming { want, received, measured, .. }) = self.operations.get(pull.mine, from)
        else {
            return;
        };
        *received = 0;
        self.tally.add(Counter::AttachRefused, 1);
        let (want, measured) = (*want, measured.take());
        if let Some(message) = measured {
            self.peers[from.0 as usize].ways.failed(message);
        }
        self.send_clear(from, pull.theirs, pull.mine, want, 0, pull.because);
    }
}
