//! What the caller posts.

use isthmus_lockfree::slot::{Message, Slot};
use isthmus_region::counters::{Counter, LaneCounter};
use isthmus_region::local::LocalBuf;

use super::backlog::Payload;
use super::table::Operation;
use super::{Because, Endpoint, INJECT_BYTES, Multi};
use crate::fault::{Step, step};
use crate::matching::{Arrived, Bufs, Target, Waiting};
use crate::types::{
    Atomic, AtomicKind, Completion, Op, PeerId, PostError, Posted, Receive, Rma, Selector, Send, Status,
    Ticket,
};
use crate::wire::{self, AtomicWord, INLINE_BYTES, flag, kind};

#[inline]
fn flags_of(tagged: bool, data: Option<u64>) -> u8 {
    let tagged = if tagged { flag::TAGGED } else { 0 };
    tagged | if data.is_some() { flag::DATA } else { 0 }
}

fn total(bufs: &[LocalBuf]) -> u64 {
    bufs.iter().map(|b| b.len() as u64).sum()
}

/// A message with its payload in it, and its words.
#[inline(always)] // as if it stood in its caller
fn inline(send: &Send<'_>) -> (Message, usize) {
    let mut bytes = [0; INLINE_BYTES];
    let mut at = 0;
    for buf in send.bufs {
        at += buf.read(&mut bytes[at..]);
    }
    let flags = flags_of(send.tagged, send.data);
    let mut message = [wire::head(kind::INLINE, flags, at), send.tag, send.data.unwrap_or(0), 0, 0, 0, 0, 0];
    message[3..].copy_from_slice(&wire::words(&bytes));
    (message, 3 + at.div_ceil(8))
}

/// Stores a payload that is not just one word. Not inlined, so that the rest fits into its caller.
#[inline(never)]
fn put_words(slot: &Slot, buf: LocalBuf) {
    buf.words(|i, word| slot.put(3 + i, word));
}

impl Endpoint {
    /// Makes sure that a message can be pushed to `to` now. If there is no room ([`PostError::Again`]), the
    /// caller queues its post.
    fn ready(&mut self, to: PeerId) -> Result<(), PostError> {
        let peer = self.core.peers.get_mut(to.0 as usize).ok_or(PostError::NoPeer)?;
        if !peer.lives() {
            return Err(PostError::PeerGone);
        }
        if peer.out.is_none() {
            self.open_lane(to)?;
        }
        if !self.core.peers[to.0 as usize].backlog.is_empty() && !self.flush_backlog(to) {
            return Err(PostError::Again);
        }
        let Some(out) = &mut self.core.peers[to.0 as usize].out else { return Err(PostError::PeerGone) };
        match out.has_room() {
            Ok(true) => Ok(()),
            Ok(false) => {
                if !out.is_accepted() {
                    self.check_accept(to);
                }
                Err(PostError::Again)
            }
            Err(_) => {
                self.lose_faulty(to);
                Err(PostError::PeerGone)
            }
        }
    }

    /// Counts an RMA or atomic operation that goes by messages, and the payload that goes with it.
    fn count_rma(&mut self, to: PeerId, len: u64) {
        self.core.tally.add(Counter::Rma, 1);
        self.core.tally.add(Counter::RmaBytes, len);
        let sent = &mut self.core.peers[to.0 as usize].sent;
        sent.add(LaneCounter::Rma, 1);
        sent.add(LaneCounter::RmaBytes, len);
    }

    /// Pushes a message after [`Endpoint::ready`] has succeeded.
    #[inline]
    pub(super) fn push(&mut self, to: PeerId, message: &Message, count: usize) {
        if let Some(out) = &mut self.core.peers[to.0 as usize].out
            && out.push(message, count)
        {
            self.ring_receiver(to);
        }
        step(Step::Announced);
    }

    /// Takes room in the data ring and copies `bufs` there; returns the offset. [`PostError::Again`]: there
    /// is no room.
    #[inline]
    fn stage(&mut self, to: PeerId, bufs: &[LocalBuf], len: u64) -> Result<u64, PostError> {
        let peer = &mut self.core.peers[to.0 as usize];
        let Some(out) = &mut peer.out else { return Err(PostError::Again) };
        match out.take_data(len) {
            Ok(Some(offset)) => {
                let mut at = offset;
                for buf in bufs {
                    // The data ring is our own; its bounds were checked when the lane was made.
                    let _ = self.berth.member.section().fill("data ring", at, *buf);
                    at += buf.len() as u64;
                }
                step(Step::Staged);
                Ok(offset)
            }
            Ok(None) => Err(PostError::Again),
            Err(_) => {
                self.lose_faulty(to);
                Err(PostError::PeerGone)
            }
        }
    }

    /// Pushes a message for which there is room, or queues it.
    fn push_or_queue(&mut self, ready: Result<(), Payload>, to: PeerId, message: &Message, count: usize) {
        match ready {
            Ok(()) => self.push(to, message, count),
            Err(payload) => self.queue(to, message, count, payload, None),
        }
    }

    /// After [`Endpoint::ready`] or [`Endpoint::stage`]: their result, or the payload with which the post is
    /// to be queued.
    fn or_queued<T>(
        &mut self,
        tried: Result<T, PostError>,
        to: PeerId,
        bufs: &[LocalBuf],
        copied: bool,
    ) -> Result<Result<T, Payload>, PostError> {
        match tried {
            Ok(it) => Ok(Ok(it)),
            Err(PostError::Again) => self.make_space(to, bufs, copied).map(Err),
            Err(error) => Err(error),
        }
    }

    /// Sends a short message at once, if its receiver is known, lives and keeps up, and the payload fits into
    /// a slot. Returns whether it did; if not, nothing was done, and the caller uses [`Endpoint::send`].
    /// Messages of both stay in order.
    #[inline(always)] // all that a short message takes, in its caller
    pub fn send_at_once(
        &mut self,
        to: PeerId,
        tagged: bool,
        tag: u64,
        data: Option<u64>,
        buf: LocalBuf,
    ) -> bool {
        let Some(peer) = self.core.peers.get_mut(to.0 as usize) else { return false };
        if buf.len() > INLINE_BYTES || !peer.backlog.is_empty() || !peer.lives() {
            return false;
        }
        let Some(out) = &mut peer.out else { return false };
        if !out.has_known_room() {
            return false;
        }
        let (slot, announced) = out.begin_message();
        slot.put(1, tag);
        slot.put(2, data.unwrap_or(0));
        match buf.eight() {
            Some(word) => slot.put(3, word),
            None => put_words(slot, buf),
        }
        out.publish(wire::head(kind::INLINE, flags_of(tagged, data), buf.len()), announced);
        out.count_bytes(buf.len() as u64);
        if announced {
            self.ring_receiver(to);
        }
        true
    }

    /// Sends a message. Messages to one peer are matched in the order of the calls.
    ///
    /// # Errors
    /// [`PostError`]; nothing was done.
    pub fn send(&mut self, send: &Send<'_>) -> Result<Posted, PostError> {
        self.send_until(send, send.delivered, false)
    }

    /// As [`Endpoint::send`], but whatever its length the payload stays here until a receive asks for it: the
    /// send completes when the message was received or discarded, not when it was kept.
    ///
    /// # Errors
    /// [`PostError`]; nothing was done. [`PostError::Invalid`] with `inject`: the payload would have nowhere
    /// to stay.
    pub fn send_until_matched(&mut self, send: &Send<'_>) -> Result<Posted, PostError> {
        if send.inject {
            return Err(PostError::Invalid);
        }
        self.send_until(send, true, true)
    }

    #[inline(always)] // a function each for the two that call it: the usual one has no question more than it had
    fn send_until(&mut self, send: &Send<'_>, delivered: bool, matched: bool) -> Result<Posted, PostError> {
        self.berth.next_activity = 0;
        if let Err(error) = self.ready(send.to) {
            return self.queue_send(error, send, delivered, matched);
        }
        let len = total(send.bufs);
        let mut flags = flags_of(send.tagged, send.data);
        let (tag, data) = (send.tag, send.data.unwrap_or(0));
        if len <= INLINE_BYTES as u64 && !delivered {
            let (message, count) = inline(send);
            self.push(send.to, &message, count);
        } else if !matched && (len <= self.eager_bytes(send.to) || send.inject) {
            if send.inject && len > INJECT_BYTES as u64 {
                return Err(PostError::TooLong);
            }
            let offset = match self.stage(send.to, send.bufs, len) {
                Ok(offset) => offset,
                Err(error) => return self.queue_send(error, send, delivered, matched),
            };
            let mut message = [wire::head(kind::EAGER, flags, 0), tag, data, len, offset, 0, 0, 0];
            let mut count = 5;
            if delivered {
                message[0] |= wire::head(0, flag::ACK, 0);
                let then = self.template(send.ticket, Op::Send { tagged: send.tagged }, len);
                let awaited = Operation::Await { to: send.to, then, sending: false };
                message[5] = self.core.operations.insert(awaited);
                count = 6;
            }
            self.push(send.to, &message, count);
            self.core.tally.add(Counter::Eager, 1);
        } else {
            let then = self.template(send.ticket, Op::Send { tagged: send.tagged }, len);
            let bufs = Bufs::new(send.bufs);
            let offer = Operation::Announced { to: send.to, bufs, len, then, awaits_done: delivered };
            let id = self.core.operations.insert(offer);
            if delivered {
                flags |= flag::ACK;
            }
            let message = [wire::head(kind::READY, flags, 0), tag, data, len, id, 0, 0, 0];
            self.push(send.to, &message, 5);
            self.core.tally.add(Counter::Rendezvous, 1);
            self.count_sent(send.to, len);
            return Ok(Posted::Pending);
        }
        self.count_sent(send.to, len);
        Ok(if delivered { Posted::Pending } else { Posted::Done })
    }

    /// Queues a message for which there is no room, with its payload. As [`Endpoint::send_until`], but a send
    /// that would complete in the call completes when the message has gone, unless it is injected.
    #[cold]
    #[inline(never)]
    fn queue_send(
        &mut self,
        error: PostError,
        send: &Send<'_>,
        delivered: bool,
        matched: bool,
    ) -> Result<Posted, PostError> {
        if error != PostError::Again {
            return Err(error);
        }
        let (to, len) = (send.to, total(send.bufs));
        let then = self.template(send.ticket, Op::Send { tagged: send.tagged }, len);
        let flags = flags_of(send.tagged, send.data) | if delivered { flag::ACK } else { 0 };
        let (tag, data) = (send.tag, send.data.unwrap_or(0));
        if len <= INLINE_BYTES as u64 && !delivered {
            let payload = self.make_space(to, &[], true)?;
            let (message, count) = inline(send);
            self.queue(to, &message, count, payload, (!send.inject).then_some(then));
            return Ok(if send.inject { Posted::Done } else { Posted::Pending });
        }
        if matched || (len > self.eager_bytes(to) && !send.inject) {
            let payload = self.make_space(to, &[], true)?;
            let bufs = Bufs::new(send.bufs);
            let id = self.core.operations.insert(Operation::Announced {
                to,
                bufs,
                len,
                then,
                awaits_done: delivered,
            });
            let message = [wire::head(kind::READY, flags, 0), tag, data, len, id, 0, 0, 0];
            self.queue(to, &message, 5, payload, None);
            return Ok(Posted::Pending);
        }
        if send.inject && len > INJECT_BYTES as u64 {
            return Err(PostError::TooLong);
        }
        let payload = self.make_space(to, send.bufs, send.inject)?;
        let mut message = [wire::head(kind::EAGER, flags, 0), tag, data, len, 0, 0, 0, 0];
        if delivered {
            let sending = payload.is_lent();
            message[5] = self.core.operations.insert(Operation::Await { to, then, sending });
            self.queue(to, &message, 6, payload, None);
        } else {
            self.queue(to, &message, 5, payload, (!send.inject).then_some(then));
        }
        Ok(if delivered || !send.inject { Posted::Pending } else { Posted::Done })
    }

    #[inline]
    fn count_sent(&mut self, to: PeerId, len: u64) {
        if let Some(out) = &mut self.core.peers[to.0 as usize].out {
            out.count_bytes(len);
        }
    }

    pub(super) fn template(&self, ticket: Ticket, op: Op, len: u64) -> Completion {
        Completion {
            ticket,
            op,
            status: Status::Ok,
            len,
            tag: 0,
            data: None,
            source: None,
            buf: 0,
            released: false,
        }
    }

    /// Posts a receive of one buffer, if no kept message could match it. Returns whether it did; if not,
    /// nothing was done, and the caller uses [`Endpoint::receive`]. Receives of both stay in order.
    #[inline(always)] // all that the usual receive takes, in its caller
    pub fn receive_at_once(&mut self, select: Selector, buf: LocalBuf, ticket: Ticket) -> bool {
        let died = |from: PeerId| self.core.peers.get(from.0 as usize).is_none_or(|p| p.died);
        let possible = !self.core.matching.has_arrived(select.tagged) && !select.from.is_some_and(died);
        if possible {
            self.core.matching.post(Waiting { select, target: Target::Plain(Bufs::One(buf)), ticket });
        }
        possible
    }

    /// Posts a receive. Its completion always comes later: at [`Endpoint::progress_into`], or through
    /// [`Endpoint::pop`].
    ///
    /// # Errors
    /// [`PostError`]; nothing was done.
    pub fn receive(&mut self, receive: &Receive<'_>) -> Result<(), PostError> {
        if let Some(least) = receive.multi {
            return self.receive_many(receive, least);
        }
        let select = receive.select;
        let target = Target::Plain(Bufs::new(receive.bufs));
        let waiting = Waiting { select, target, ticket: receive.ticket };
        // A program that takes the general way may wait for a sender whose lane is not hot.
        self.berth.next_activity = 0;
        match (self.core.matching.take_arrived(&select), select.from) {
            (Some(arrived), _) => self.deliver_kept(waiting, arrived, Because::Posted),
            // No message can come for it. Receives that were posted before the death have ended, too.
            (None, Some(from)) if self.core.peers.get(from.0 as usize).is_some_and(|p| p.died) => {
                let mut then = self.template(receive.ticket, Op::Receive { tagged: select.tagged }, 0);
                (then.status, then.tag, then.source) = (Status::PeerGone, select.tag, Some(from));
                self.core.completions.push_back(then);
            }
            (None, _) => self.core.matching.post(waiting),
        }
        Ok(())
    }

    /// Posts a multi-receive.
    fn receive_many(&mut self, receive: &Receive<'_>, least: u64) -> Result<(), PostError> {
        let select = receive.select;
        let [buf] = receive.bufs else { return Err(PostError::Invalid) };
        let number = self.core.next_multi;
        self.core.next_multi = self.core.next_multi.wrapping_add(1);
        self.core.multis.insert(
            number,
            Multi {
                buf: *buf,
                used: 0,
                least: least.max(1),
                ticket: receive.ticket,
                tagged: select.tagged,
                inflight: 0,
                closed: false,
                canceled: false,
            },
        );
        let waiting = Waiting { select, target: Target::Multi(number), ticket: receive.ticket };
        self.core.matching.post(waiting.clone());
        // Messages that came before go in at once, as long as there is room.
        while self.core.multis.get(&number).is_some_and(|m| !m.closed) {
            let Some(arrived) = self.core.matching.take_arrived(&select) else { break };
            self.deliver_kept(waiting.clone(), arrived, Because::Posted);
        }
        let died = |from: PeerId| self.core.peers.get(from.0 as usize).is_some_and(|p| p.died);
        if let Some(from) = select.from.filter(|from| died(*from))
            && self.core.multis.remove(&number).is_some()
        {
            // As for any directed receive: no further message can come.
            self.core.matching.drop_multi(number);
            let mut then = self.template(receive.ticket, Op::Receive { tagged: select.tagged }, 0);
            (then.status, then.tag, then.source) = (Status::PeerGone, select.tag, Some(from));
            then.released = true;
            self.core.completions.push_back(then);
        }
        Ok(())
    }

    /// Makes progress, then searches the kept messages without receiving one. With `claim`, a message that is
    /// found is set aside for [`Endpoint::receive_claimed`] under `ticket.context`; with `discard` it is
    /// dropped. A completion with [`Op::Peek`] comes in any case.
    pub fn peek(&mut self, select: &Selector, claim: bool, discard: bool, ticket: Ticket) {
        self.berth.next_activity = 0;
        self.progress();
        let mut completion = self.template(ticket, Op::Peek { tagged: select.tagged }, 0);
        match self.core.matching.find_arrived(select) {
            None => {
                completion.status = Status::NoMessage;
                completion.tag = select.tag;
            }
            Some(found) => {
                completion.len = found.len();
                completion.tag = found.tag;
                completion.data = found.data;
                completion.source = Some(found.source);
            }
        }
        self.core.completions.push_back(completion);
        if completion.status == Status::Ok
            && (claim || discard)
            && let Some(found) = self.core.matching.take_arrived(select)
        {
            if discard {
                self.drop_arrived(found);
            } else if let Some(lost) = self.core.matching.claim(ticket.context, found) {
                self.drop_arrived(lost);
            }
        }
    }

    /// Receives the message that was claimed under `context`; the completion is an [`Op::Receive`].
    ///
    /// # Errors
    /// [`PostError::Invalid`] when nothing is claimed under it.
    pub fn receive_claimed(
        &mut self,
        context: u64,
        bufs: &[LocalBuf],
        ticket: Ticket,
    ) -> Result<(), PostError> {
        let arrived = self.core.matching.take_claimed(context).ok_or(PostError::Invalid)?;
        let select =
            Selector { tagged: arrived.tagged, from: Some(arrived.source), tag: arrived.tag, ignore: 0 };
        let waiting = Waiting { select, target: Target::Plain(Bufs::new(bufs)), ticket };
        self.deliver_kept(waiting, arrived, Because::Posted);
        Ok(())
    }

    /// Drops the message that was claimed under `context`; the completion is an [`Op::Receive`] of length 0.
    ///
    /// # Errors
    /// [`PostError::Invalid`] when nothing is claimed under it.
    pub fn discard_claimed(&mut self, context: u64, ticket: Ticket) -> Result<(), PostError> {
        let arrived = self.core.matching.take_claimed(context).ok_or(PostError::Invalid)?;
        let mut completion = self.template(ticket, Op::Receive { tagged: arrived.tagged }, 0);
        completion.tag = arrived.tag;
        completion.data = arrived.data;
        completion.source = Some(arrived.source);
        self.core.completions.push_back(completion);
        self.drop_arrived(arrived);
        Ok(())
    }

    /// Ends a kept message that is not received: its sender must not wait for ever.
    fn drop_arrived(&mut self, arrived: Arrived) {
        self.core.cushion.try_again();
        if let crate::matching::Body::Ready { id, ack, .. } = arrived.body {
            let source = arrived.source;
            self.send_clear(source, id, 0, 0, Because::Posted);
            self.send_done(source, ack.then_some(id), Status::Ok, Because::Posted);
        }
    }

    /// Cancels the oldest posted receive with this `context`, if it has matched nothing yet. Its completion says
    /// [`Status::Canceled`].
    pub fn cancel(&mut self, context: u64) -> bool {
        let Some(waiting) = self.core.matching.cancel(context) else { return false };
        let mut completion = self.template(waiting.ticket, Op::Receive { tagged: waiting.select.tagged }, 0);
        completion.status = Status::Canceled;
        completion.tag = waiting.select.tag;
        if let Target::Multi(number) = waiting.target {
            if let Some(multi) = self.core.multis.get_mut(&number) {
                multi.closed = true;
                multi.canceled = true;
                if multi.inflight > 0 {
                    // Messages that have matched still arrive; the receive ends after them.
                    return true;
                }
                self.core.multis.remove(&number);
            }
            completion.released = true;
        }
        self.core.completions.push_back(completion);
        true
    }

    /// Reads remote memory into `rma.bufs`. [`Posted::Done`]: the completion is there already.
    ///
    /// # Errors
    /// [`PostError`]; nothing was done.
    pub fn read(&mut self, rma: &Rma<'_>) -> Result<Posted, PostError> {
        let len = total(rma.bufs);
        if self.read_directly(rma, len) {
            return Ok(Posted::Done);
        }
        let ready = self.ready(rma.to);
        let ready = self.or_queued(ready, rma.to, &[], true)?;
        let id = self.core.operations.insert(Operation::Incoming {
            from: rma.to,
            dest: Bufs::new(rma.bufs),
            want: len,
            received: 0,
            then: self.template(rma.ticket, Op::Read, len),
            multi: None,
            done: None,
            registered: None,
        });
        let message = [wire::head(kind::READ, 0, 0), id, rma.key, rma.addr, len, 0, 0, 0];
        self.push_or_queue(ready, rma.to, &message, 5);
        self.count_rma(rma.to, 0);
        Ok(Posted::Pending)
    }

    /// Writes remote memory. Completes when the data is visible at the target. [`Posted::Done`]: the
    /// completion is there already.
    ///
    /// # Errors
    /// [`PostError`]; nothing was done.
    pub fn write(&mut self, rma: &Rma<'_>) -> Result<Posted, PostError> {
        let len = total(rma.bufs);
        if rma.inject && len > INJECT_BYTES as u64 {
            return Err(PostError::TooLong);
        }
        if self.write_directly(rma, len) {
            return Ok(Posted::Done);
        }
        let ready = self.ready(rma.to);
        let flags = if rma.data.is_some() { flag::DATA } else { 0 };
        let data = rma.data.unwrap_or(0);
        let then = self.template(rma.ticket, Op::Write, len);
        if len <= self.eager_bytes(rma.to) || rma.inject {
            let offset = ready.and_then(|()| self.stage(rma.to, rma.bufs, len));
            let staged = self.or_queued(offset, rma.to, rma.bufs, rma.inject)?;
            let sending = staged.as_ref().is_err_and(Payload::is_lent);
            let id = self.core.operations.insert(Operation::Await { to: rma.to, then, sending });
            let at = staged.as_ref().copied().unwrap_or(0);
            let message = [wire::head(kind::WRITE, flags, 0), id, rma.key, rma.addr, len, at, data, 0];
            self.push_or_queue(staged.map(|_| ()), rma.to, &message, 7);
        } else {
            let ready = self.or_queued(ready, rma.to, &[], true)?;
            let bufs = Bufs::new(rma.bufs);
            let id = self.core.operations.insert(Operation::Announced {
                to: rma.to,
                bufs,
                len,
                then,
                awaits_done: true,
            });
            let message = [wire::head(kind::WRITE_READY, flags, 0), id, rma.key, rma.addr, len, 0, data, 0];
            self.push_or_queue(ready, rma.to, &message, 7);
        }
        self.count_rma(rma.to, len);
        Ok(Posted::Pending)
    }

    /// Does an atomic operation on remote memory. Completes when it is visible at the target.
    /// [`Posted::Done`]: the completion is there already.
    ///
    /// # Errors
    /// [`PostError`]; nothing was done.
    pub fn atomic(&mut self, atomic: &Atomic<'_>) -> Result<Posted, PostError> {
        let (operands, compares) = (total(atomic.operand), total(atomic.compare));
        let span = u64::from(atomic.count) * u64::from(atomic.size);
        let limit = super::ATOMIC_BYTES as u64;
        if operands > limit || compares > limit || span > limit {
            return Err(PostError::TooLong);
        }
        if atomic.kind != AtomicKind::Plain && total(atomic.result) < span {
            return Err(PostError::Invalid);
        }
        if self.atomic_directly(atomic, span) {
            return Ok(Posted::Done);
        }
        let operand = atomic.operand.iter().chain(atomic.compare).copied().collect::<Vec<_>>();
        let bytes = operands + compares;
        let offset = self.ready(atomic.to).and_then(|()| self.stage(atomic.to, &operand, bytes));
        let staged = self.or_queued(offset, atomic.to, &operand, true)?;
        let then = self.template(atomic.ticket, Op::Atomic(atomic.kind), span);
        let operation = match atomic.kind {
            AtomicKind::Plain => Operation::Await { to: atomic.to, then, sending: false },
            AtomicKind::Fetch | AtomicKind::Compare => Operation::Incoming {
                from: atomic.to,
                dest: Bufs::new(atomic.result),
                want: span,
                received: 0,
                then,
                multi: None,
                done: None,
                registered: None,
            },
        };
        let id = self.core.operations.insert(operation);
        let what =
            AtomicWord { count: atomic.count, datatype: atomic.datatype, op: atomic.op, kind: atomic.kind };
        let lengths = operands | (compares << 32);
        let message = [
            wire::head(kind::ATOMIC, 0, 0),
            id,
            atomic.key,
            atomic.addr,
            what.pack(),
            staged.as_ref().copied().unwrap_or(0),
            lengths,
            u64::from(atomic.size),
        ];
        self.push_or_queue(staged.map(|_| ()), atomic.to, &message, 8);
        self.count_rma(atomic.to, bytes);
        Ok(Posted::Pending)
    }

    /// Pushes any message, for tests that play a hostile peer. Returns whether there was room.
    #[doc(hidden)]
    pub fn push_raw(&mut self, to: PeerId, message: &Message) -> bool {
        let ready = self.ready(to).is_ok();
        if ready {
            self.push(to, message, message.len());
        }
        ready
    }
}
