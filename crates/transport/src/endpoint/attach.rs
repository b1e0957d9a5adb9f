//! Long messages that their receiver copies from the sender's memory itself, by cross-memory attach: one copy, which the kernel
//! makes.
//!
//! The sender's announcement *offers* that: it has the payload's address. The receiver answers with `DONE` once it has copied,
//! or with `CLEAR` as if nothing had been offered, also after it has tried.
//!
//! Whose memory is copied the sender has no say in: its local service gives a pidfd of the process that opened the endpoint.
//! What the sender says is an address there, and the kernel copies from it or fails. After each copy the receiver looks whether
//! the process has ended, so that its number might be another's, and reads the sender's record again (P5), as after each copy
//! out of the region.
//!
//! A refusal of the service or of the kernel is no error: the messages go the other way.

use std::sync::Arc;

use isthmus_region::attach::{Failure, Process};
use isthmus_region::local::LocalBuf;
use isthmus_region::roster::Record;

use super::table::Operation;
use super::ways::{Measured, Way};
use super::{Because, Berth, Core, Peer};
use crate::fault::{Step, step};
use crate::types::{Long, PeerId};

/// The shortest message that is offered. What the kernel does for each copy costs as much as copying some thousand bytes.
pub const LEAST: u64 = 64 << 10;
/// Most bytes that are copied in one round of progress.
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

/// A message that is being copied from its sender's memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pull {
    /// Our operation, and the sender's.
    pub(super) mine: u64,
    pub(super) theirs: u64,
    /// Where the sender says that the payload is.
    pub(super) address: u64,
    pub(super) because: Because,
}

/// How a piece ended.
enum Piece {
    Copied {
        all: bool,
    },
    /// The operation ends with its sender, or has ended.
    Lost,
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
    /// What a message that is announced to `to` offers: the payload's address.
    pub(super) fn offer(&self, to: PeerId, bufs: &[LocalBuf]) -> Option<u64> {
        let [buf] = bufs else { return None };
        let offered = buf.len() as u64 >= LEAST
            && self.config.long != Long::Copy
            && self.peers.get(to.0 as usize).is_some_and(|peer| peer.is_near);
        offered.then(|| buf.address())
    }

    /// The way by which `len` bytes of a message come that offers both.
    pub(super) fn choose_way(&mut self, from: PeerId, len: u64) -> Way {
        let Peer { is_near, attach, ways, .. } = &mut self.peers[from.0 as usize];
        if !*is_near || len < LEAST || matches!(attach, Reach::Never) {
            return Way::Copy;
        }
        match self.config.long {
            Long::Copy => Way::Copy,
            Long::Attach => Way::Attach,
            Long::Auto => ways.choose(len),
        }
    }

    /// The process of a remote endpoint.
    fn process_of(&mut self, berth: &Berth, of: PeerId) -> Option<Arc<Process>> {
        let peer = &mut self.peers[of.0 as usize];
        if let (Reach::Unknown, Some(record)) = (&peer.attach, &peer.record) {
            let slot = record.slot().local(berth.member.region().shape().endpoints);
            peer.attach = match berth.member.process_of(slot, record.incarnation()) {
                Ok(Some(process)) => Reach::Open(process),
                Ok(None) => Reach::Never,
                Err(_) => {
                    // It is gone, or too slow to be asked again and again.
                    self.config.long = Long::Copy;
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
            Piece::Copied { all: false } | Piece::Lost => {}
            Piece::Failed => self.ask_instead(from, pull),
        }
        true
    }

    fn pull_piece(&mut self, process: &Process, from: PeerId, pull: Pull) -> Piece {
        let Some(Operation::Incoming { dest, want, received, .. }) = self.operations.get(pull.mine, from)
        else {
            return Piece::Lost;
        };
        let len = PIECE.min(*want - *received);
        let Some(at) = pull.address.checked_add(*received).filter(|at| at.checked_add(len).is_some()) else {
            return Piece::Failed;
        };
        let copied = dest.pieces(*received, len, |done, piece| process.copy(at + done, piece));
        *received += len;
        let all = *received == *want;
        match copied {
            Ok(()) if self.peers[from.0 as usize].still_lives() => Piece::Copied { all },
            Ok(()) | Err(Failure::Ended) => Piece::Lost,
            Err(Failure::Unreadable) => Piece::Failed,
            Err(Failure::Forbidden) => {
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
        let (want, measured) = (*want, measured.take());
        if let Some(message) = measured {
            self.peers[from.0 as usize].ways.failed(message);
        }
        self.send_clear(from, pull.theirs, pull.mine, want, pull.because);
    }

    /// A message of which the way was chosen, if that is to be measured.
    pub(super) fn measured(&self, way: Way, len: u64) -> Option<Measured> {
        (self.config.long == Long::Auto).then(|| Measured::begin(way, len))
    }
}
