//! Long messages that their receiver copies in one copy from where the sender's program has them: from the memory of its process, by
//! cross-memory attach (`attach`), or from memory of the region, if they lie there (`resident`).
//!
//! The sender's announcement *offers* that: it has the payload's place. The receiver answers with `DONE` once it has copied, or with
//! `CLEAR` as if nothing had been offered, also after it has tried. After each copy it reads the sender's record again (P5), as after
//! each copy out of the region, and after the last whether the offer still stands ([`Standing`]).

use isthmus_lockfree::sync::{Word, release_fence};
use isthmus_region::attach::Failure;
use isthmus_region::counters::Counter;
use isthmus_region::local::LocalBuf;

use super::attach::Reach;
use super::resident::Taken;
use super::table::Operation;
use super::ways::{self, Choice, Measured, Way};
use super::{Because, Berth, Core, Peer, attach};
use crate::fault::{Step, step};
use crate::types::{Long, PeerId};

/// Most bytes that are copied from one process in one round of progress.
pub(super) const PIECE: u64 = 1 << 20;
/// Messages in memory of the region that are shorter are announced where their sender waits for the receive, or has a small lane. They always
/// come from there: two copies take two messages more.
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
    /// A word in the region, and where it is noted that it is in use.
    Region(Taken),
    /// To this endpoint itself: it stands for as long as its operation is announced.
    Own,
}

impl Standing {
    /// What counts the messages that their receiver has copied, and their bytes; none of what goes to this endpoint itself.
    pub(super) fn counters(&self) -> Option<[Counter; 2]> {
        match self {
            Self::Process(_) => Some([Counter::Attached, Counter::AttachedBytes]),
            Self::Region(_) => Some([Counter::Resident, Counter::ResidentBytes]),
            Self::Own => None,
        }
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        // P5: before the program writes to its buffer again.
        match self {
            Self::Process(word) => word.put(0),
            Self::Region(taken) => taken.word().put(0),
            Self::Own => return,
        }
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
        bytes: u64,
        all: bool,
    },
    /// The operation has ended.
    Over,
    /// This message must go the other way; so many bytes were copied for nothing.
    Failed {
        bytes: u64,
    },
}

impl Piece {
    /// One that could not be copied.
    pub(super) const NONE: Self = Self::Failed { bytes: 0 };

    /// Bytes that were copied.
    fn bytes(&self) -> u64 {
        match self {
            Self::Copied { bytes, .. } | Self::Failed { bytes } => *bytes,
            Self::Over => 0,
        }
    }
}

impl Core {
    /// What a message that is announced to `to` offers.
    pub(super) fn offer(
        &mut self,
        berth: &mut Berth,
        to: PeerId,
        bufs: &[LocalBuf],
    ) -> Option<(Standing, Offer)> {
        if self.peers[to.0 as usize].is_own {
            return Some(self.offer_own());
        }
        let [buf] = bufs else { return None };
        if self.config.long == Long::Copy {
            return None;
        }
        self.offer_resident(berth, *buf).or_else(|| self.offer_process(to, *buf))
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
        let is_resident = offer.is_some_and(|offer| offer.space == Space::Region);
        let Peer { is_own, is_near, attach, pool, ways, pushes, .. } = &mut self.peers[from.0 as usize];
        if *is_own && offer.is_some() && !is_resident {
            return (Way::Attach, None);
        }
        let other = match (&*is_near, pool) {
            _ if is_resident => Way::Resident,
            (true, _) if offer.is_some() && !self.is_unheard && !attach.is_closed() => Way::Attach,
            (false, Some(_)) if pages => Way::Pages,
            _ => return (Way::Copy, None),
        };
        let least = if is_resident { LEAST_CHOICE } else { attach::LEAST };
        match self.config.long {
            Long::Copy => (Way::Copy, None),
            _ if len < least => (if is_resident { other } else { Way::Copy }, None),
            Long::Attach => (other, None),
            Long::Auto => {
                let is_sending = self.operations.has_long_to(from) || !pushes.is_empty();
                let choice = Choice { len, one_copy: other, is_sending };
                let mut message = ways.begin(choice);
                message.watched = message.is_watched.then(|| self.watch.begin(self.ticks));
                (message.way, Some(message))
            }
        }
    }

    /// Copies what comes next of the messages that are copied from where `from` has them, a [`PIECE`] at most. Returns whether there was
    /// anything.
    pub(super) fn pull(&mut self, berth: &Berth, from: PeerId) -> bool {
        let mut left = PIECE;
        while left > 0 && self.pull_next(berth, from, &mut left) {}
        left < PIECE
    }

    /// Offers a message of this endpoint to itself.
    fn offer_own(&mut self) -> (Standing, Offer) {
        let value = self.next_offer();
        let standing = Standing::Own;
        (standing, Offer { space: Space::Process, payload: 0, word: 0, value })
    }

    /// Copies the next piece of a message of this endpoint to itself, from buffer to buffer. What its announcement says of places may be
    /// anybody's; where the buffers are our own operation knows.
    fn pull_own(&mut self, from: PeerId, pull: Pull, most: u64) -> Piece {
        let Some(Operation::Announced { bufs, offered: Some(Standing::Own), .. }) =
            self.operations.get(pull.theirs, from)
        else {
            return Piece::NONE;
        };
        let bufs = bufs.clone();
        let pull = Pull { offer: Offer { payload: 0, ..pull.offer }, ..pull };
        let copy = |at: u64, piece: LocalBuf| {
            let bytes = piece.len() as u64;
            if at.checked_add(bytes).is_none_or(|end| end > bufs.len()) {
                return Err(Failure::Unreadable);
            }
            bufs.pieces(at, bytes, |done, from| {
                from.copy(piece.part(usize::try_from(done).unwrap_or(usize::MAX), usize::MAX));
                Ok(())
            })
        };
        // It stands until it is answered, in this thread.
        self.pull_piece(from, pull, most, copy, || Ok(true))
    }

    /// Copies the next piece of the oldest one, which is at most what is left, and takes it from that; a message without a copy counts as a
    /// page.
    fn pull_next(&mut self, berth: &Berth, from: PeerId, left: &mut u64) -> bool {
        let Some(pull) = self.peers[from.0 as usize].pulls.front().copied() else { return false };
        let most = *left;
        let piece = match pull.offer.space {
            Space::Process if self.peers[from.0 as usize].is_own => self.pull_own(from, pull, most),
            Space::Process => self.pull_attached(berth, from, pull, most),
            Space::Region => self.pull_resident(from, pull, most),
        };
        step(Step::PieceAttached);
        if !matches!(piece, Piece::Copied { all: false, .. }) {
            self.peers[from.0 as usize].pulls.pop_front();
        }
        *left = most.saturating_sub(piece.bytes().max(4096));
        match piece {
            Piece::Copied { all: true, .. } => {
                if let Some(Operation::Incoming { done, .. }) = self.operations.get(pull.mine, from) {
                    // Whether or not the sender's program waits for that, the sender's operation does.
                    *done = Some(pull.theirs);
                }
                self.finish_incoming(pull.mine, from);
            }
            Piece::Copied { all: false, .. } | Piece::Over => {}
            Piece::Failed { .. } => self.ask_instead(from, pull),
        }
        true
    }

    /// Copies at most `most` bytes of a message by `copy`, which is given their place in the sender's space. `stands` reads the offer's word
    /// afterwards.
    pub(super) fn pull_piece(
        &mut self,
        from: PeerId,
        pull: Pull,
        most: u64,
        copy: impl Fn(u64, LocalBuf) -> Result<(), Failure>,
        stands: impl FnOnce() -> Result<bool, Failure>,
    ) -> Piece {
        let Some(Operation::Incoming { dest, want, received, measured, .. }) =
            self.operations.get(pull.mine, from)
        else {
            return Piece::Over;
        };
        let bytes = most.min(*want - *received);
        let Some(at) = pull.offer.payload.checked_add(*received).filter(|at| at.checked_add(bytes).is_some())
        else {
            return Piece::NONE;
        };
        let copied =
            ways::timed(measured, || dest.pieces(*received, bytes, |done, piece| copy(at + done, piece)));
        *received += bytes;
        let all = *received == *want;
        // What was copied is the message's if the offer stands after that. A receiver that the sender has given up then waits, as
        // for an answer to its `CLEAR`, until it learns that.
        match copied.and_then(|()| if all { stands() } else { Ok(true) }) {
            Ok(true) if self.peers[from.0 as usize].still_lives() => Piece::Copied { bytes, all },
            Ok(_) | Err(Failure::Unreadable) => Piece::Failed { bytes },
            // If it has ended indeed, the operation ends with it.
            Err(Failure::Ended | Failure::Forbidden) => {
                self.peers[from.0 as usize].attach = Reach::Never;
                Piece::Failed { bytes }
            }
        }
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
            message.watched.iter().for_each(|_| self.watch.forget());
            self.peers[from.0 as usize].ways.failed(message);
        }
        self.send_clear(from, pull.theirs, pull.mine, want, 0, pull.because);
    }
}
