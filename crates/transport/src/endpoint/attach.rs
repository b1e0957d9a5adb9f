//! Long messages that their receiver copies from the memory of the sender's process, by cross-memory attach: the kernel copies.
//!
//! Whose memory is copied the sender has no say in: its local service gives a pidfd of the process that opened the endpoint.
//! What the sender says is an address there, and the kernel copies from it or fails. After each copy the receiver looks whether
//! the process has ended, so that its number might be another's.
//!
//! A refusal of the service or of the kernel is no error: the messages go the other way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_lockfree::sync::Word;
use isthmus_region::attach::Process;
use isthmus_region::local::LocalBuf;
use isthmus_region::roster::Record;

use super::offer::{Offer, Piece, Pull, Space, Standing};
use super::{Berth, Core};
use crate::types::PeerId;

/// The shortest message that is offered. What the kernel does for each copy costs as much as copying some thousand bytes.
pub const LEAST: u64 = 64 << 10;
/// A question to the service that failed in less time was not waited for: another thread was asking it something.
const AT_ONCE: Duration = Duration::from_millis(50);
/// Failures of that kind after which an endpoint asks no more.
const MOST_TRIES: u32 = 100;

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

impl Reach {
    /// Whether nothing can be copied from the process.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self, Self::Never)
    }
}

impl Berth {
    /// Whether an endpoint is one of our own peer's, and of a region in which these may attach to each other.
    pub(super) fn is_near(&self, record: Option<&Record>) -> bool {
        let endpoints = self.member.region().shape().endpoints;
        self.may_attach && record.is_some_and(|r| r.slot().peer(endpoints) == self.member.peer())
    }
}

impl Core {
    /// Offers a buffer in memory of this process.
    pub(super) fn offer_process(&mut self, to: PeerId, buf: LocalBuf) -> Option<(Standing, Offer)> {
        let offered = buf.len() as u64 >= LEAST
            && !self.is_unheard
            && self.peers.get(to.0 as usize).is_some_and(|peer| peer.is_near);
        if !offered {
            return None;
        }
        let value = self.next_offer();
        let word = Box::new(Word::new(value));
        let at = std::ptr::from_ref(&*word) as u64;
        Some((
            Standing::Process(word),
            Offer { space: Space::Process, payload: buf.address(), word: at, value },
        ))
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

    /// Copies the next piece of a message from the memory of the process of `from`.
    pub(super) fn pull_attached(&mut self, berth: &Berth, from: PeerId, pull: Pull, most: u64) -> Piece {
        let Some(process) = self.process_of(berth, from) else { return Piece::NONE };
        let stands = || process.word(pull.offer.word).map(|value| value == pull.offer.value);
        self.pull_piece(from, pull, most, |at, piece| process.copy(at, piece), stands)
    }
}
