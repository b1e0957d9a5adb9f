//! The endpoint: posting, progress, completions.

use std::sync::Arc;

use isthmus_region::member::Member;

use crate::address::Address;
use crate::types::{
    Atomic, Completion, Memory, PeerId, PostError, Posted, Receive, Result, Rma, Selector, Send, Ticket,
};

/// Choices for an endpoint.
#[derive(Debug, Clone, Copy, Default)]
pub struct Config {}

/// An endpoint; see the crate's description.
pub struct Endpoint {}

impl Endpoint {
    /// Opens an endpoint; `memory` is what others may reach by RMA.
    ///
    /// # Errors
    /// When the region or the local service has no room.
    pub fn open(_member: &Arc<Member>, _config: Config, _memory: Box<dyn Memory>) -> Result<Self> {
        todo!()
    }

    /// The endpoint's address.
    pub fn address(&self) -> Address {
        todo!()
    }

    /// Longest payload of an inject.
    pub fn inject_bytes(&self) -> usize {
        todo!()
    }

    /// Most operand bytes of one atomic operation (operands and compare values each).
    pub fn atomic_bytes(&self) -> usize {
        todo!()
    }

    /// The number of an address; the same address has the same number. The remote side need not have been used
    /// yet; if it is gone, posts to it say so.
    ///
    /// # Errors
    /// [`crate::Error::OtherRegion`].
    pub fn resolve(&mut self, _address: &Address) -> Result<PeerId> {
        todo!()
    }

    /// The address of a peer.
    pub fn peer_address(&self, _peer: PeerId) -> Option<Address> {
        todo!()
    }

    /// Sends a message. Messages to one peer are matched in the order of the calls.
    ///
    /// # Errors
    /// [`PostError`]; nothing was done.
    pub fn send(&mut self, _send: &Send<'_>) -> std::result::Result<Posted, PostError> {
        todo!()
    }

    /// Posts a receive. Its completion always comes through [`Endpoint::pop`].
    ///
    /// # Errors
    /// [`PostError`]; nothing was done.
    pub fn receive(&mut self, _receive: &Receive<'_>) -> std::result::Result<(), PostError> {
        todo!()
    }

    /// Looks for a message without receiving it, after making progress. With `claim`, a message that is found is set
    /// aside for [`Endpoint::receive_claimed`] under `ticket.context`; with `discard` it is dropped. A completion with
    /// [`crate::Op::Peek`] comes in any case.
    pub fn peek(&mut self, _select: &Selector, _claim: bool, _discard: bool, _ticket: Ticket) {
        todo!()
    }

    /// Receives the message that was claimed under `context`; the completion is an [`crate::Op::Receive`].
    ///
    /// # Errors
    /// [`PostError::Invalid`] when nothing is claimed under it.
    pub fn receive_claimed(
        &mut self,
        _context: u64,
        _bufs: &[isthmus_region::local::LocalBuf],
        _ticket: Ticket,
    ) -> std::result::Result<(), PostError> {
        todo!()
    }

    /// Drops the message that was claimed under `context`; the completion is an [`crate::Op::Receive`] of length 0.
    ///
    /// # Errors
    /// [`PostError::Invalid`] when nothing is claimed under it.
    pub fn discard_claimed(&mut self, _context: u64, _ticket: Ticket) -> std::result::Result<(), PostError> {
        todo!()
    }

    /// Cancels the oldest posted receive with this `context`, if it has matched nothing yet. Its completion says
    /// [`crate::Status::Canceled`].
    pub fn cancel(&mut self, _context: u64) -> bool {
        todo!()
    }

    /// Reads remote memory into `rma.bufs`.
    ///
    /// # Errors
    /// [`PostError`]; nothing was done.
    pub fn read(&mut self, _rma: &Rma<'_>) -> std::result::Result<(), PostError> {
        todo!()
    }

    /// Writes remote memory. Completes when the data is visible at the target.
    ///
    /// # Errors
    /// [`PostError`]; nothing was done.
    pub fn write(&mut self, _rma: &Rma<'_>) -> std::result::Result<(), PostError> {
        todo!()
    }

    /// Does an atomic operation on remote memory. Completes when it is visible at the target.
    ///
    /// # Errors
    /// [`PostError`]; nothing was done.
    pub fn atomic(&mut self, _atomic: &Atomic<'_>) -> std::result::Result<(), PostError> {
        todo!()
    }

    /// Moves everything that can be moved, within bounds: incoming messages, pipelines, replies. Gives whether
    /// anything happened. Makes no system call.
    pub fn progress(&mut self) -> bool {
        todo!()
    }

    /// The oldest completion that was not taken yet.
    pub fn pop(&mut self) -> Option<Completion> {
        todo!()
    }

    /// Whether something sent has not been taken by its receiver yet (a close would wait for it).
    pub fn is_flushing(&mut self) -> bool {
        todo!()
    }

    /// Closes the endpoint: what was sent still arrives, as long as its receivers live and take it.
    pub fn close(self) {
        todo!()
    }
}
