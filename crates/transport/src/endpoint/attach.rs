//! Long messages that their receiver copies from the sender's memory itself, by cross-memory attach: one copy, which the kernel
//! makes.
//!
//! The sender's announcement *offers* that: it has the payload's address. The receiver answers with `DONE` once it has copied,
//! or with `CLEAR` as if nothing had been offered, also after it has tried.
//!
//! Whose memory is copied the sender has no say in: its local service gives a pidfd of the process that opened the endpoint.
//! What the sender says is an address there, and the kernel copies from it or fails. After each copy the receiver looks whether
//! the process has ended, so that its number might be another's, and reads the sender's record again (P5), as after each copy
//! out of the region. After the last it reads whether the offer still stands ([`Standing`]).
//!
//! A refusal of the service or of the kernel is no error: the messages go the other way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_lockfree::sync::Word;
use isthmus_region::attach::{Failure, Process};
use isthmus_region::counters::Counter;
use isthmus_region::local::LocalBuf;
use isthmus_region::roster::Record;

use super::table::Operation;
use super::ways::{Measured, Way};
use super::{Because, Berth, Core, Peer};
use crate::fault::{Step, step};
use crate::types::{Long, PeerId};

/// The shortest message that is offered. What the kernel does for each copy costs as much as copying some thousand bytes.
pub const LEAST: u64 = 64 << 10;
/// A question to the service that failed in less time was not waited for: another thread was asking it something.
const AT_ONCE: Duration = Duration::from_millis(50);
/// Failures of that kind after which an endpoint asks no more.
const MOST_TRIES: u32 = 100;
/// Most bytes that are copied from one process in one round of progress.
const PIECE: u64 = 1 << 20;

/// How a remote endpoint's process can be attached to.
#[derive(Debug, Default)]
pub(super) enum Reach {
    /// The local service was not asked yet.
    #[default]
    Unknown,
    /// It may be copied from, as far as is known.
    Open(Arc<Process>),
    /// The service or the kernel refused, or the remote endpoint is gone.
    Never,
}

/// What an announcement says besides, where the receiver may copy the payload itself: addresses in the sender's process.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    /// Where the payload is.
    pub payload: u64,
    /// Where the word is that has `value` for as long as the offer stands.
    pub word: u64,
    /// What that word has.
    pub value: u64,
}

/// The word in this process's memory that says that an offer stands. It ends with the offer, before the program has its buffer
/// back: a sender that has given its receiver up completes its sends while its record says that it lives, and nothing in the
/// region tells the receiver. So the receiver reads this word, too, after it has copied.
#[derive(Debug)]
pub(super) struct Standing(Box<Word>);

impl Standing {
    fn new(value: u64) -> Self {
        Self(Box::new(Word::new(value)))
    }

    fn address(&self) -> u64 {
        std::ptr::from_ref(&*self.0) as u64
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.0.set(0);
    }
}

/// A message that is being copied from its sender's memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pull {
    /// Our operation, and the sender's.
    pub(super) mine: u64,
    pub(super) theirs: u64,
    pub(super) offer: Offer,
    pub(super) because: Because,
}

/// How a piece ended.
enum Piece {
    Copied {
        all: bool,
    },
    /// The operation has ended.
    Over,
    /// This message must go the other way.
    Failed,
}

impl Berth {
    /// Whether an endpoint is one of our own peer's, and of a region in which these may attach to each other.
    pub(super) fn is_near(&self, record: Option<&Record>) -> bool {
        let endpoints = self.member.region().shape().endpoints;
        self.may_attach && record.is_some_and(|r| r.slot().peer(endpoints) == self.member.peer())
    }
}

impl Core {
    /// What a message that is announced to `to` offers.
    pub(super) fn offer(&mut self, to: PeerId, bufs: &[LocalBuf]) -> Option<(Standing, Offer)> {
        let [buf] = bufs else { return None };
        let offered = buf.len() as u64 >= LEAST
            && self.config.long != Long::Copy
            && !self.is_unheard
            && self.peers.get(to.0 as usize).is_some_and(|peer| peer.is_near);
        if !offered {
            return None;
        }
        // Never 0, and none that an earlier offer of this process had, as far as can be told.
        self.next_offer = self.next_offer.wrapping_add(1).max(1);
        let standing = Standing::new(self.next_offer);
        let offer = Offer { payload: buf.address(), word: standing.address(), value: self.next_offer };
        Some((standing, offer))
    }

    /// The way by which `len` bytes of a message come that offers its memory or pages, and its measurement if there was a choice.
    pub(super) fn choose_way(
        &mut self,
        from: PeerId,
        len: u64,
        offer: bool,
        pages: bool,
    ) -> (Way, Option<Measured>) {
        let Peer { is_near, attach, pool, ways, .. } = &mut self.peers[from.0 as usize];
        let other = match (&*is_near, pool) {
            (true, _) if offer && !self.is_unheard && !matches!(attach, Reach::Never) => Way::Attach,
            (false, Some(_)) if pages => Way::Pages,
            _ => return (Way::Copy, None),
        };
        if len < LEAST {
            return (Way::Copy, None);
        }
        match self.config.long {
            Long::Copy => (Way::Copy, None),
            Long::Attach => (other, None),
            Long::Auto => {
                let way = ways.choose(len, other);
                (way, Some(Measured::begin(way, len)))
            }
        }
    }

    /// The process of a remote endpoint.
    fn process_of(&mut self, berth: &Berth, of: PeerId) -> Option<Arc<Process>> {
        let peer = &mut self.peers[of.0 as usize];
        if let (Reach::Unknown, Some(record)) = (&peer.attach, &peer.record) {
            let slot = record.slot().local(berth.member.region().shape().endpoints);
            let begin = Instant::now();
            peer.attach = match berth.member.process_of(slot, record.incarnation()) {
                Ok(Some(process)) => Reach::Open(process),
                Ok(None) => Reach::Never,
                // Another thread is asking it something. The next message may be luckier.
                Err(_) if begin.elapsed() < AT_ONCE && self.unanswered < MOST_TRIES => {
                    self.unanswered += 1;
                    Reach::Unknown
                }
                Err(_) => {
                    // It is gone, or too slow to be asked again and again.
                    self.is_unheard = true;
                    Reach::Never
                }
            };
        }
        match &peer.attach {
            Reach::Open(process) => Some(Arc::clone(process)),
            Reach::Unknown | Reach::Never => None,
        }
    }

    /// Copies the next piece of the oldest message that is copied from the memory of `from`. Returns whether there was one.
    pub(super) fn pull(&mut self, berth: &Berth, from: PeerId) -> bool {
        let Some(pull) = self.peers[from.0 as usize].pulls.front().copied() else { return false };
        let piece = match self.process_of(berth, from) {
            Some(process) => self.pull_piece(&process, from, pull),
            None => Piece::Failed,
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

    fn pull_piece(&mut self, process: &Process, from: PeerId, pull: Pull) -> Piece {
        let Some(Operation::Incoming { dest, want, received, .. }) = self.operations.get(pull.mine, from)
        else {
            return Piece::Over;
        };
        let len = PIECE.min(*want - *received);
        let Some(at) = pull.offer.payload.checked_add(*received).filter(|at| at.checked_add(len).is_some())
        else {
            return Piece::Failed;
        };
        let copied = dest.pieces(*received, len, |done, piece| process.copy(at + done, piece));
        *received += len;
        let all = *received == *want;
        // What was copied is the message's if the offer stands after that. A receiver that the sender has given up then waits, as
        // for an answer to its `CLEAR`, until it learns that.
        let stands =
            copied.and_then(|()| if all { process.word(pull.offer.word) } else { Ok(pull.offer.value) });
        match stands {
            Ok(value) if value == pull.offer.value && self.peers[from.0 as usize].still_lives() => {
                Piece::Copied { all }
            }
            Ok(_) | Err(Failure::Unreadable) => Piece::Failed,
            // If it has ended indeed, the operation ends with it.
            Err(Failure::Ended | Failure::Forbidden) => {
                self.peers[from.0 as usize].attach = Reach::Never;
                Piece::Failed
            }
        }
    }

    /// Asks for the bytes of a message, from the first one on, that could not be copied from its sender's memory.
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
