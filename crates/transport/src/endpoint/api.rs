//! What programs call. Each call goes to the core, with the berth where it needs one.
//!
//! An endpoint without a berth reaches nobody. None is made so; it is what is left of an endpoint while its process is attached
//! nowhere. Nothing moves then, and what must go somewhere is refused as in a full region, with nothing done. Receives are posted,
//! and take what was kept; its senders are answered later.

use std::sync::Arc;

use isthmus_lockfree::slot::Message;
use isthmus_region::doorbell::Sleeper;
use isthmus_region::local::LocalBuf;

use super::{Asleep, Endpoint, Short, ShortSink, Sink};
use crate::address::Address;
use crate::types::{Atomic, Error, PeerId, PostError, Posted, Receive, Rma, Selector, Send, Ticket};

/// Nothing can be sent or answered now.
const NOWHERE: PostError = PostError::Again;

impl Endpoint {
    /// Whether a receiver has not taken yet what was sent to it (a close would wait for it).
    pub fn is_flushing(&mut self) -> bool {
        self.core.is_flushing()
    }

    /// Moves everything that can be moved, within bounds: incoming messages, pipelines, replies. Returns
    /// whether anything happened. Completions are kept for [`Endpoint::pop`]. Makes no system call.
    pub fn progress(&mut self) -> bool {
        let Some(berth) = &mut self.berth else { return false };
        self.core.progress(berth)
    }

    /// As [`Endpoint::progress`], but all completions go to `sink`, older ones first.
    #[inline]
    pub fn progress_into(&mut self, sink: &mut impl Sink) -> bool {
        let Some(berth) = &mut self.berth else {
            self.core.drain_into(sink);
            return false;
        };
        self.core.progress_into(berth, sink)
    }

    /// Hands all completions that are there to `sink`.
    #[inline(never)]
    pub fn drain_into(&mut self, sink: &mut impl Sink) {
        self.core.drain_into(sink)
    }

    /// The short way of a poll: takes up to `room` short messages of one lane, each for the oldest receive,
    /// or finds nothing. It leaves all else to [`Endpoint::progress_into`], and says so often enough
    /// ([`Short::Other`]). With `wait` it spins once where there is nothing.
    #[inline(always)] // on the way of a short message
    pub fn poll_short(&mut self, room: usize, wait: bool, sink: &mut impl ShortSink) -> Short {
        self.core.poll_short(&mut self.berth, room, wait, sink)
    }

    /// Sends a message of up to `most` bytes at once, if its receiver is known, lives and keeps up, and the payload fits into
    /// a slot or is eager. Returns whether it did; if not, nothing was done, and the caller uses [`Endpoint::send`].
    /// Messages of both stay in order. `most` concerns payloads that fit into no slot.
    #[inline(always)] // all that a short message takes, in its caller
    pub fn send_at_once(
        &mut self,
        to: PeerId,
        tagged: bool,
        tag: u64,
        data: Option<u64>,
        buf: LocalBuf,
        most: usize,
    ) -> bool {
        self.core.send_at_once(&mut self.berth, to, tagged, tag, data, buf, most)
    }

    /// Sends a message. Messages to one peer are matched in the order of the calls.
    ///
    /// # Errors
    /// [`PostError`]; nothing was done.
    pub fn send(&mut self, send: &Send<'_>) -> Result<Posted, PostError> {
        let Some(berth) = &mut self.berth else { return Err(NOWHERE) };
        self.core.send(berth, send)
    }

    /// As [`Endpoint::send`], but whatever its length the payload stays here until a receive asks for it: the
    /// send completes when the message was received or discarded, not when it was kept.
    ///
    /// # Errors
    /// [`PostError`]; nothing was done. [`PostError::Invalid`] with `inject`: the payload would have nowhere
    /// to stay.
    pub fn send_until_matched(&mut self, send: &Send<'_>) -> Result<Posted, PostError> {
        let Some(berth) = &mut self.berth else { return Err(NOWHERE) };
        self.core.send_until_matched(berth, send)
    }

    /// Posts a receive of one buffer, if no kept message could match it. Returns whether it did; if not,
    /// nothing was done, and the caller uses [`Endpoint::receive`]. Receives of both stay in order.
    #[inline(always)] // all that the usual receive takes, in its caller
    pub fn receive_at_once(&mut self, select: Selector, buf: LocalBuf, ticket: Ticket) -> bool {
        self.core.receive_at_once(select, buf, ticket)
    }

    /// Posts a receive. Its completion always comes later: at [`Endpoint::progress_into`], or through
    /// [`Endpoint::pop`].
    ///
    /// # Errors
    /// [`PostError`]; nothing was done.
    pub fn receive(&mut self, receive: &Receive<'_>) -> Result<(), PostError> {
        let posted = self.core.receive(receive);
        self.answer();
        posted
    }

    /// Answers senders of kept messages. A program that takes the general way to receive may wait for a sender whose lane is not
    /// hot, so the activity lines are polled next.
    fn answer(&mut self) {
        if let Some(berth) = &mut self.berth {
            berth.next_activity = 0;
            self.core.answer(berth);
        }
    }

    /// Makes progress, then searches the kept messages without receiving one. With `claim`, a message that is
    /// found is set aside for [`Endpoint::receive_claimed`] under `ticket.context`; with `discard` it is
    /// dropped. A completion with [`crate::Op::Peek`] comes in any case.
    pub fn peek(&mut self, select: &Selector, claim: bool, discard: bool, ticket: Ticket) {
        if let Some(berth) = &mut self.berth {
            berth.next_activity = 0;
            self.core.progress(berth);
        }
        self.core.peek(select, claim, discard, ticket);
        self.answer();
    }

    /// Receives the message that was claimed under `context`; the completion is an [`crate::Op::Receive`].
    ///
    /// # Errors
    /// [`PostError::Invalid`] when nothing is claimed under it.
    pub fn receive_claimed(
        &mut self,
        context: u64,
        bufs: &[LocalBuf],
        ticket: Ticket,
    ) -> Result<(), PostError> {
        let posted = self.core.receive_claimed(context, bufs, ticket);
        self.answer();
        posted
    }

    /// Drops the message that was claimed under `context`; the completion is an [`crate::Op::Receive`] of length 0.
    ///
    /// # Errors
    /// [`PostError::Invalid`] when nothing is claimed under it.
    pub fn discard_claimed(&mut self, context: u64, ticket: Ticket) -> Result<(), PostError> {
        let posted = self.core.discard_claimed(context, ticket);
        self.answer();
        posted
    }

    /// Cancels the oldest posted receive with this `context`, if it has matched nothing yet. Its completion says
    /// [`crate::Status::Canceled`].
    pub fn cancel(&mut self, context: u64) -> bool {
        self.core.cancel(context)
    }

    /// Writes one buffer to remote memory at once, if the target lives and the memory is in the region, and was used by the last operation
    /// there. Gives whether it did; if not, nothing has completed, and the caller uses [`Endpoint::write`], which also says if the target has died
    /// in the middle.
    #[inline(always)] // all that a short operation takes, in its caller
    pub fn write_at_once(&mut self, to: PeerId, key: u64, addr: u64, buf: LocalBuf) -> bool {
        self.core.write_at_once(&self.berth, to, key, addr, buf)
    }

    /// Reads remote memory into one buffer, likewise; the caller uses [`Endpoint::read`] otherwise.
    #[inline(always)] // as `write_at_once`
    pub fn read_at_once(&mut self, to: PeerId, key: u64, addr: u64, buf: LocalBuf) -> bool {
        self.berth.is_some() && self.core.read_at_once(to, key, addr, buf)
    }

    /// Reads remote memory into `rma.bufs`.
    ///
    /// # Errors
    /// [`PostError`]; nothing was done.
    pub fn read(&mut self, rma: &Rma<'_>) -> Result<Posted, PostError> {
        let Some(berth) = &mut self.berth else { return Err(NOWHERE) };
        self.core.read(berth, rma)
    }

    /// Writes remote memory. Completes when the data is visible at the target.
    ///
    /// # Errors
    /// [`PostError`]; nothing was done.
    pub fn write(&mut self, rma: &Rma<'_>) -> Result<Posted, PostError> {
        let Some(berth) = &mut self.berth else { return Err(NOWHERE) };
        self.core.write(berth, rma)
    }

    /// Does an atomic operation on remote memory. Completes when it is visible at the target.
    ///
    /// # Errors
    /// [`PostError`]; nothing was done.
    pub fn atomic(&mut self, atomic: &Atomic<'_>) -> Result<Posted, PostError> {
        let Some(berth) = &mut self.berth else { return Err(NOWHERE) };
        self.core.atomic(berth, atomic)
    }

    /// Pushes any message, for tests that play a hostile peer. Returns whether there was room.
    #[doc(hidden)]
    pub fn push_raw(&mut self, to: PeerId, message: &Message) -> bool {
        let Some(berth) = &mut self.berth else { return false };
        self.core.push_raw(berth, to, message)
    }

    /// The number of an address; the same address has the same number. If the remote endpoint is gone, posts
    /// to it fail.
    ///
    /// # Errors
    /// [`Error::NoSystem`]; [`Error::Region`] if the remote endpoint's memory could not be mapped just now, which a later call may do.
    pub fn resolve(&mut self, address: &Address) -> Result<PeerId, Error> {
        let Some(berth) = &mut self.berth else { return Err(Error::NoSystem) };
        self.core.resolve(berth, address)
    }

    /// The address of a peer.
    pub fn peer_address(&self, peer: PeerId) -> Option<Address> {
        self.core.peer_address(peer)
    }

    /// The process, as its service knows it, and the address of a faulty remote endpoint; each is returned
    /// once. For logs.
    pub fn take_faulty(&mut self) -> Option<String> {
        let Some(berth) = &mut self.berth else { return None };
        self.core.take_faulty(berth)
    }

    /// Why messages could not be taken from memory that the system does not let this process map, and what helps. For logs.
    #[inline]
    pub fn take_unmapped(&mut self) -> Option<String> {
        self.core.unmapped.text.take()
    }

    /// Whether there are more processes with endpoints than processors for them, as far as the region tells.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        let Some(berth) = &self.berth else { return false };
        berth.is_crowded()
    }

    /// Where threads sleep that wait for it; none while its process is attached nowhere.
    pub fn sleeper(&self) -> Option<&Arc<Sleeper>> {
        self.berth.as_ref().map(|berth| &berth.sleeper)
    }

    /// Ends a sleep.
    pub fn wake_up(&mut self) {
        let Some(berth) = &mut self.berth else { return };
        berth.wake_up();
        self.core.watch.wake_up();
    }

    /// Ends all sleeps and wakes the threads. Another thread has found something, and lanes are hot again,
    /// whose senders would not ring the sleepers.
    #[cold]
    #[inline(never)]
    pub fn wake_all(&mut self) {
        let Some(berth) = &mut self.berth else { return };
        berth.wake_all()
    }

    /// Whether an operation is under way that may end soon, or a long message has just ended whose remote
    /// endpoint may still copy its last pieces. Never where processors are short.
    pub fn has_transfers(&self) -> bool {
        let Some(berth) = &self.berth else { return false };
        self.core.has_transfers(berth)
    }

    /// Whether progress can wait until the program's next call: nothing has come, and nothing is under way. Up to 16 times in a row, since
    /// there are things to do now and then.
    pub fn can_wait(&mut self) -> bool {
        let Some(berth) = &mut self.berth else { return false };
        self.core.can_wait(berth)
    }

    /// Gets ready to sleep. If there is nothing to do, senders ring the endpoint from now on, until
    /// [`Endpoint::wake_up`]. If there is something to do, returns `None`, and the endpoint stays awake. With `by_service`
    /// its thread waits at the descriptor [`Sleeper::bell`], with others; else in [`Asleep::wait`].
    pub fn fall_asleep(&mut self, by_service: bool) -> Option<Asleep> {
        let Some(berth) = &mut self.berth else { return None };
        self.core.fall_asleep(berth, by_service)
    }
}
