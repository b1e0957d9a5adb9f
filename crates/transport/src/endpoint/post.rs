//! What the caller posts.

use isthmus_lockfree::slot::Message;
use isthmus_region::Section;
use isthmus_region::counters::{Counter, LaneCounter};
use isthmus_region::local::LocalBuf;

use super::backlog::Payload;
use super::offer::{Offer, Space, Standing};
use super::table::Operation;
use super::{Because, Berth, Core, INJECT_BYTES, Multi};
use crate::fault::{Step, step};
use crate::lane::{EXPECTED, Outgoing};
use crate::matching::{Arrived, Bufs, Target, Waiting};
use crate::types::{
    Atomic, AtomicKind, Completion, Op, PeerId, PostError, Posted, Receive, Rma, Selector, Send, Status,
    Ticket,
};
use crate::wire::{self, AtomicWord, INLINE_BYTES, flag, kind};

/// Longest payload, in bytes, of which as much as the next one takes is asked for when one was sent.
const PREPARED: u64 = 1024;

#[inline]
fn flags_of(tagged: bool, data: Option<u64>) -> u8 {
    let tagged = if tagged { flag::TAGGED } else { 0 };
    tagged | if data.is_some() { flag::DATA } else { 0 }
}

pub(super) fn total(bufs: &[LocalBuf]) -> u64 {
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

/// The announcement of a message, and its words.
fn ready(flags: u8, [tag, data, len, id]: [u64; 4], offer: Option<Offer>) -> (Message, usize) {
    match offer {
        None => ([wire::head(kind::READY, flags, 0), tag, data, len, id, 0, 0, 0], 5),
        Some(Offer { space, payload, word, value }) => {
            let space = if space == Space::Region { flag::RESIDENT } else { 0 };
            let head = wire::head(kind::READY, flags | flag::OFFER | space, 0);
            ([head, tag, data, len, id, payload, word, value], 8)
        }
    }
}

/// The rest of [`Core::send_at_once`] for a payload that goes through the data ring. Returns whether the message has to be
/// announced, or that nothing was done.
#[inline(never)]
fn stage_at_once(
    out: &mut Outgoing,
    section: &Section,
    flags: u8,
    words: [u64; 2],
    buf: LocalBuf,
    most: u64,
) -> Option<bool> {
    let len = buf.len() as u64;
    if len > most.min(out.eager_bytes()) {
        return None;
    }
    // A position that cannot be right is told by the general way.
    let offset = out.take_data(len).ok()??;
    // The data ring is our own; its bounds were checked when the lane was made.
    let _ = section.fill("data ring", offset, buf);
    step(Step::Staged);
    let announced = out.push_staged(wire::head(kind::EAGER, flags, 0), words, len, offset);
    out.count_bytes(len);
    // The next message is probably as long. Its lines come here now from the processor that read them last. Those of a shorter one
    // are asked for by a receiver that waits, and of a longer one they are too many to come together.
    if len > EXPECTED
        && len <= PREPARED
        && let Some(next) = out.next_data(len)
    {
        section.prepare(next, len);
    }
    Some(announced)
}

impl Core {
    /// Makes sure that a message can be pushed to `to` now. If there is no room ([`PostError::Again`]), the
    /// caller queues its post.
    fn ready(&mut self, berth: &mut Berth, to: PeerId) -> Result<(), PostError> {
        let peer = self.peers.get_mut(to.0 as usize).ok_or(PostError::NoPeer)?;
        if !peer.lives() {
            return Err(PostError::PeerGone);
        }
        if peer.path.lane().is_none() {
            self.open_lane(berth, to)?;
        }
        if !self.peers[to.0 as usize].backlog.is_empty() && !self.flush_backlog(berth, to) {
            return Err(PostError::Again);
        }
        let Some(out) = self.peers[to.0 as usize].path.lane_mut() else { return Err(PostError::PeerGone) };
        match out.has_room() {
            Ok(true) => Ok(()),
            Ok(false) => {
                if !out.is_accepted() {
                    self.check_accept(berth, to);
                }
                Err(PostError::Again)
            }
            Err(_) => {
                self.lose_faulty(berth, to);
                Err(PostError::PeerGone)
            }
        }
    }

    /// Counts an RMA or atomic operation that goes by messages, and the payload that goes with it.
    fn count_rma(&mut self, to: PeerId, len: u64) {
        self.tally.add(Counter::Rma, 1);
        self.tally.add(Counter::RmaBytes, len);
        let sent = &mut self.peers[to.0 as usize].sent;
        sent.add(LaneCounter::Rma, 1);
        sent.add(LaneCounter::RmaBytes, len);
    }

    /// Pushes a message after [`Core::ready`] has succeeded; `bytes` of it are a program's payload, with it or announced by it.
    #[inline]
    fn push(&mut self, berth: &mut Berth, to: PeerId, message: &Message, count: usize, bytes: u64) {
        if let Some(out) = self.peers[to.0 as usize].path.lane_mut() {
            out.count_bytes(bytes);
            if out.push(message, count) {
                self.ring_receiver(berth, to);
            }
        }
        step(Step::Announced);
    }

    /// Takes room in the data ring and copies `bufs` there; returns the offset. [`PostError::Again`]: there
    /// is no room.
    #[inline]
    fn stage(
        &mut self,
        berth: &mut Berth,
        to: PeerId,
        bufs: &[LocalBuf],
        len: u64,
    ) -> Result<u64, PostError> {
        let peer = &mut self.peers[to.0 as usize];
        let Some(out) = peer.path.lane_mut() else { return Err(PostError::Again) };
        match out.take_data(len) {
            Ok(Some(offset)) => {
                let mut at = offset;
                for buf in bufs {
                    // The data ring is our own; its bounds were checked when the lane was made.
                    let _ = berth.member.section().fill("data ring", at, *buf);
                    at += buf.len() as u64;
                }
                step(Step::Staged);
                Ok(offset)
            }
            Ok(None) => Err(PostError::Again),
            Err(_) => {
                self.lose_faulty(berth, to);
                Err(PostError::PeerGone)
            }
        }
    }

    /// Pushes a message for which there is room, or queues it.
    fn push_or_queue(
        &mut self,
        berth: &mut Berth,
        ready: Result<(), Payload>,
        to: PeerId,
        message: &Message,
        count: usize,
    ) {
        match ready {
            Ok(()) => self.push(berth, to, message, count, 0),
            Err(payload) => self.queue(berth, to, message, count, payload, None),
        }
    }

    /// After [`Core::ready`] or [`Core::stage`]: their result, or the payload with which the post is
    /// to be queued.
    fn or_queued<T>(
        &mut self,
        berth: &mut Berth,
        tried: Result<T, PostError>,
        to: PeerId,
        bufs: &[LocalBuf],
        copied: bool,
    ) -> Result<Result<T, Payload>, PostError> {
        match tried {
            Ok(it) => Ok(Ok(it)),
            Err(PostError::Again) => self.make_space(berth, to, bufs, copied).map(Err),
            Err(error) => Err(error),
        }
    }

    /// As [`super::Endpoint::send_at_once`].
    #[inline(always)] // all that a short message takes, in its caller
    #[allow(clippy::too_many_arguments)] // they stay in registers
    pub(super) fn send_at_once(
        &mut self,
        berth: &mut Option<Berth>,
        to: PeerId,
        tagged: bool,
        tag: u64,
        data: Option<u64>,
        buf: LocalBuf,
        most: usize,
    ) -> bool {
        let Some(peer) = self.peers.get_mut(to.0 as usize) else { return false };
        let Some(record) = &peer.record else { return false };
        // Where there is a lane, its receiver was not seen to be gone.
        if !record.lives() {
            return false;
        }
        let Some(out) = peer.path.lane_mut() else { return false };
        if !peer.backlog.is_empty() {
            return false;
        }
        if !out.has_known_room() {
            return false;
        }
        if buf.len() > INLINE_BYTES {
            // An endpoint without a berth has no lanes.
            let Some(berth) = berth else { return false };
            let most = self.config.eager_bytes.min(most as u64);
            let words = [tag, data.unwrap_or(0)];
            let staged = stage_at_once(out, berth.member.section(), flags_of(tagged, data), words, buf, most);
            if let Some(announced) = staged {
                self.tally.add(Counter::Eager, 1);
                if announced {
                    self.ring_receiver(berth, to);
                }
            }
            return staged.is_some();
        }
        let head = wire::head(kind::INLINE, flags_of(tagged, data), buf.len());
        let announced = out.push_inline(head, [tag, data.unwrap_or(0)], buf);
        out.count_bytes(buf.len() as u64);
        if announced && let Some(berth) = berth {
            self.ring_receiver(berth, to);
        }
        true
    }

    /// As [`super::Endpoint::send`].
    pub(super) fn send(&mut self, berth: &mut Berth, send: &Send<'_>) -> Result<Posted, PostError> {
        self.send_until(berth, send, send.delivered, false)
    }

    /// Makes the announcement of a message, and the operation that waits for its receiver; gives the announcement's words, too.
    fn announce(&mut self, berth: &mut Berth, send: &Send<'_>, delivered: bool) -> (Message, usize) {
        let (to, len) = (send.to, total(send.bufs));
        if len >= super::attach::LEAST {
            self.peers[to.0 as usize].ways.sent();
        }
        let then = self.template(send.ticket, Op::Send { tagged: send.tagged }, len);
        let (offered, offer) = self.offer(berth, to, send.bufs).unzip();
        // What lies in memory of the region has no pages to grant, and what stays here needs none.
        let may_grant = !matches!(offered, Some(Standing::Region(_) | Standing::Own));
        let pages = send.bufs.len() == 1 && may_grant && self.grants_to(berth, to, len);
        let bufs = Bufs::new(send.bufs);
        let operation = Operation::Announced { to, bufs, len, then, awaits_done: delivered, offered, pages };
        let id = self.operations.insert(operation);
        let ack = if delivered { flag::ACK } else { 0 };
        let pages = if pages { flag::PAGES } else { 0 };
        ready(
            flags_of(send.tagged, send.data) | ack | pages,
            [send.tag, send.data.unwrap_or(0), len, id],
            offer,
        )
    }

    /// As [`super::Endpoint::send_until_matched`].
    pub(super) fn send_until_matched(
        &mut self,
        berth: &mut Berth,
        send: &Send<'_>,
    ) -> Result<Posted, PostError> {
        if send.inject {
            return Err(PostError::Invalid);
        }
        self.send_until(berth, send, true, true)
    }

    #[inline(always)] // a function each for the two that call it: the usual one has no question more than it had
    fn send_until(
        &mut self,
        berth: &mut Berth,
        send: &Send<'_>,
        delivered: bool,
        matched: bool,
    ) -> Result<Posted, PostError> {
        berth.next_activity = 0;
        if let Err(error) = self.ready(berth, send.to) {
            return self.queue_send(berth, error, send, delivered, matched);
        }
        let len = total(send.bufs);
        let flags = flags_of(send.tagged, send.data);
        let (tag, data) = (send.tag, send.data.unwrap_or(0));
        if len <= INLINE_BYTES as u64 && !delivered {
            let (message, count) = inline(send);
            self.push(berth, send.to, &message, count, len);
        } else if !matched && (len <= self.eager_bytes(send.to) || send.inject) {
            if send.inject && len > INJECT_BYTES as u64 {
                return Err(PostError::TooLong);
            }
            let offset = match self.stage(berth, send.to, send.bufs, len) {
                Ok(offset) => offset,
                Err(error) => return self.queue_send(berth, error, send, delivered, matched),
            };
            let mut message = [wire::head(kind::EAGER, flags, 0), tag, data, len, offset, 0, 0, 0];
            let mut count = 5;
            if delivered {
                message[0] |= wire::head(0, flag::ACK, 0);
                let then = self.template(send.ticket, Op::Send { tagged: send.tagged }, len);
                let awaited = Operation::Await { to: send.to, then, sending: false };
                message[5] = self.operations.insert(awaited);
                count = 6;
            }
            self.push(berth, send.to, &message, count, len);
            self.tally.add(Counter::Eager, 1);
        } else {
            let (message, count) = self.announce(berth, send, delivered);
            self.push(berth, send.to, &message, count, len);
            self.tally.add(Counter::Rendezvous, 1);
            return Ok(Posted::Pending);
        }
        Ok(if delivered { Posted::Pending } else { Posted::Done })
    }

    /// Queues a message for which there is no room, with its payload. As [`Core::send_until`], but a send
    /// that would complete in the call completes when the message has gone, unless it is injected.
    #[cold]
    #[inline(never)]
    fn queue_send(
        &mut self,
        berth: &mut Berth,
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
            let payload = self.make_space(berth, to, &[], true)?;
            let (message, count) = inline(send);
            self.queue(berth, to, &message, count, payload, (!send.inject).then_some(then));
            return Ok(if send.inject { Posted::Done } else { Posted::Pending });
        }
        if matched || (len > self.eager_bytes(to) && !send.inject) {
            let payload = self.make_space(berth, to, &[], true)?;
            let (message, count) = self.announce(berth, send, delivered);
            self.queue(berth, to, &message, count, payload, None);
            return Ok(Posted::Pending);
        }
        if send.inject && len > INJECT_BYTES as u64 {
            return Err(PostError::TooLong);
        }
        let payload = self.make_space(berth, to, send.bufs, send.inject)?;
        let mut message = [wire::head(kind::EAGER, flags, 0), tag, data, len, 0, 0, 0, 0];
        if delivered {
            let sending = payload.is_lent();
            message[5] = self.operations.insert(Operation::Await { to, then, sending });
            self.queue(berth, to, &message, 6, payload, None);
        } else {
            self.queue(berth, to, &message, 5, payload, (!send.inject).then_some(then));
        }
        Ok(if delivered || !send.inject { Posted::Pending } else { Posted::Done })
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

    /// As [`super::Endpoint::receive_at_once`].
    #[inline(always)] // all that the usual receive takes, in its caller
    pub(super) fn receive_at_once(&mut self, select: Selector, buf: LocalBuf, ticket: Ticket) -> bool {
        let died = |from: PeerId| self.peers.get(from.0 as usize).is_none_or(|p| p.path.has_died());
        let possible = !self.matching.has_arrived(select.tagged) && !select.from.is_some_and(died);
        if possible {
            self.matching.post(Waiting { select, target: Target::Plain(Bufs::One(buf)), ticket });
        }
        possible
    }

    /// As [`super::Endpoint::receive`].
    pub(super) fn receive(&mut self, receive: &Receive<'_>) -> Result<(), PostError> {
        if let Some(least) = receive.multi {
            return self.receive_many(receive, least);
        }
        let select = receive.select;
        let target = Target::Plain(Bufs::new(receive.bufs));
        let waiting = Waiting { select, target, ticket: receive.ticket };
        match (self.matching.take_arrived(&select), select.from) {
            (Some(arrived), _) => self.deliver_kept(waiting, arrived, Because::Posted),
            // No message can come for it. Receives that were posted before the death have ended, too.
            (None, Some(from)) if self.peers.get(from.0 as usize).is_some_and(|p| p.path.has_died()) => {
                let mut then = self.template(receive.ticket, Op::Receive { tagged: select.tagged }, 0);
                (then.status, then.tag, then.source) = (Status::PeerGone, select.tag, Some(from));
                self.completions.push_back(then);
            }
            (None, _) => self.matching.post(waiting),
        }
        Ok(())
    }

    /// Posts a multi-receive.
    fn receive_many(&mut self, receive: &Receive<'_>, least: u64) -> Result<(), PostError> {
        let select = receive.select;
        let [buf] = receive.bufs else { return Err(PostError::Invalid) };
        let number = self.next_multi;
        self.next_multi = self.next_multi.wrapping_add(1);
        self.multis.insert(
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
        self.matching.post(waiting.clone());
        // Messages that came before go in at once, as long as there is room.
        while self.multis.get(&number).is_some_and(|m| !m.closed) {
            let Some(arrived) = self.matching.take_arrived(&select) else { break };
            self.deliver_kept(waiting.clone(), arrived, Because::Posted);
        }
        let died = |from: PeerId| self.peers.get(from.0 as usize).is_some_and(|p| p.path.has_died());
        if let Some(from) = select.from.filter(|from| died(*from))
            && self.multis.remove(&number).is_some()
        {
            // As for any directed receive: no further message can come.
            self.matching.drop_multi(number);
            let mut then = self.template(receive.ticket, Op::Receive { tagged: select.tagged }, 0);
            (then.status, then.tag, then.source) = (Status::PeerGone, select.tag, Some(from));
            then.released = true;
            self.completions.push_back(then);
        }
        Ok(())
    }

    /// As [`super::Endpoint::peek`].
    pub(super) fn peek(&mut self, select: &Selector, claim: bool, discard: bool, ticket: Ticket) {
        let mut completion = self.template(ticket, Op::Peek { tagged: select.tagged }, 0);
        match self.matching.find_arrived(select) {
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
        self.completions.push_back(completion);
        if completion.status == Status::Ok
            && (claim || discard)
            && let Some(found) = self.matching.take_arrived(select)
        {
            if discard {
                self.drop_arrived(found);
            } else if let Some(lost) = self.matching.claim(ticket.context, found) {
                self.drop_arrived(lost);
            }
        }
    }

    /// As [`super::Endpoint::receive_claimed`].
    pub(super) fn receive_claimed(
        &mut self,
        context: u64,
        bufs: &[LocalBuf],
        ticket: Ticket,
    ) -> Result<(), PostError> {
        let arrived = self.matching.take_claimed(context).ok_or(PostError::Invalid)?;
        let select =
            Selector { tagged: arrived.tagged, from: Some(arrived.source), tag: arrived.tag, ignore: 0 };
        let waiting = Waiting { select, target: Target::Plain(Bufs::new(bufs)), ticket };
        self.deliver_kept(waiting, arrived, Because::Posted);
        Ok(())
    }

    /// As [`super::Endpoint::discard_claimed`].
    pub(super) fn discard_claimed(&mut self, context: u64, ticket: Ticket) -> Result<(), PostError> {
        let arrived = self.matching.take_claimed(context).ok_or(PostError::Invalid)?;
        let mut completion = self.template(ticket, Op::Receive { tagged: arrived.tagged }, 0);
        completion.tag = arrived.tag;
        completion.data = arrived.data;
        completion.source = Some(arrived.source);
        self.completions.push_back(completion);
        self.drop_arrived(arrived);
        Ok(())
    }

    /// Ends a kept message that is not received: its sender must not wait for ever.
    fn drop_arrived(&mut self, arrived: Arrived) {
        self.cushion.try_again();
        if let crate::matching::Body::Ready(crate::matching::Ready { id, ack, .. }) = arrived.body {
            let source = arrived.source;
            self.send_clear(source, id, 0, 0, 0, Because::Posted);
            self.send_done(source, ack.then_some(id), Status::Ok, Because::Posted);
        }
    }

    /// As [`super::Endpoint::cancel`].
    pub(super) fn cancel(&mut self, context: u64) -> bool {
        let Some(waiting) = self.matching.cancel(context) else { return false };
        let mut completion = self.template(waiting.ticket, Op::Receive { tagged: waiting.select.tagged }, 0);
        completion.status = Status::Canceled;
        completion.tag = waiting.select.tag;
        if let Target::Multi(number) = waiting.target {
            if let Some(multi) = self.multis.get_mut(&number) {
                multi.closed = true;
                multi.canceled = true;
                if multi.inflight > 0 {
                    // Messages that have matched still arrive; the receive ends after them.
                    return true;
                }
                self.multis.remove(&number);
            }
            completion.released = true;
        }
        self.completions.push_back(completion);
        true
    }

    /// As [`super::Endpoint::read`].
    pub(super) fn read(&mut self, berth: &mut Berth, rma: &Rma<'_>) -> Result<Posted, PostError> {
        let len = total(rma.bufs);
        if let Some(posted) = self.read_directly(berth, rma, len) {
            return Ok(posted);
        }
        let ready = self.ready(berth, rma.to);
        let ready = self.or_queued(berth, ready, rma.to, &[], true)?;
        let id = self.operations.insert(Operation::Incoming {
            from: rma.to,
            dest: Bufs::new(rma.bufs),
            want: len,
            received: 0,
            then: self.template(rma.ticket, Op::Read, len),
            multi: None,
            done: None,
            registered: None,
            measured: None,
            timed: None,
            again: false,
            paged: 0,
            is_odd: false,
        });
        let message = [wire::head(kind::READ, 0, 0), id, rma.key, rma.addr, len, 0, 0, 0];
        self.push_or_queue(berth, ready, rma.to, &message, 5);
        self.count_rma(rma.to, 0);
        Ok(Posted::Pending)
    }

    /// As [`super::Endpoint::write`].
    pub(super) fn write(&mut self, berth: &mut Berth, rma: &Rma<'_>) -> Result<Posted, PostError> {
        let len = total(rma.bufs);
        if rma.inject && len > INJECT_BYTES as u64 {
            return Err(PostError::TooLong);
        }
        if let Some(posted) = self.write_directly(berth, rma, len) {
            return Ok(posted);
        }
        let ready = self.ready(berth, rma.to);
        let flags = if rma.data.is_some() { flag::DATA } else { 0 };
        let data = rma.data.unwrap_or(0);
        let then = self.template(rma.ticket, Op::Write, len);
        if len <= self.eager_bytes(rma.to) || rma.inject {
            let offset = ready.and_then(|()| self.stage(berth, rma.to, rma.bufs, len));
            let staged = self.or_queued(berth, offset, rma.to, rma.bufs, rma.inject)?;
            let sending = staged.as_ref().is_err_and(Payload::is_lent);
            let id = self.operations.insert(Operation::Await { to: rma.to, then, sending });
            let at = staged.as_ref().copied().unwrap_or(0);
            let message = [wire::head(kind::WRITE, flags, 0), id, rma.key, rma.addr, len, at, data, 0];
            self.push_or_queue(berth, staged.map(|_| ()), rma.to, &message, 7);
        } else {
            let ready = self.or_queued(berth, ready, rma.to, &[], true)?;
            let bufs = Bufs::new(rma.bufs);
            let id = self.operations.insert(Operation::Announced {
                to: rma.to,
                bufs,
                len,
                then,
                awaits_done: true,
                offered: None,
                pages: false,
            });
            let message = [wire::head(kind::WRITE_READY, flags, 0), id, rma.key, rma.addr, len, 0, data, 0];
            self.push_or_queue(berth, ready, rma.to, &message, 7);
        }
        self.count_rma(rma.to, len);
        Ok(Posted::Pending)
    }

    /// As [`super::Endpoint::atomic`].
    pub(super) fn atomic(&mut self, berth: &mut Berth, atomic: &Atomic<'_>) -> Result<Posted, PostError> {
        let (operands, compares) = (total(atomic.operand), total(atomic.compare));
        let span = u64::from(atomic.count) * u64::from(atomic.size);
        let limit = super::ATOMIC_BYTES as u64;
        if operands > limit || compares > limit || span > limit {
            return Err(PostError::TooLong);
        }
        if atomic.kind != AtomicKind::Plain && total(atomic.result) < span {
            return Err(PostError::Invalid);
        }
        if let Some(posted) = self.atomic_directly(berth, atomic, span) {
            return Ok(posted);
        }
        let operand = atomic.operand.iter().chain(atomic.compare).copied().collect::<Vec<_>>();
        let bytes = operands + compares;
        let offset =
            self.ready(berth, atomic.to).and_then(|()| self.stage(berth, atomic.to, &operand, bytes));
        let staged = self.or_queued(berth, offset, atomic.to, &operand, true)?;
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
                measured: None,
                timed: None,
                again: false,
                paged: 0,
                is_odd: false,
            },
        };
        let id = self.operations.insert(operation);
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
        self.push_or_queue(berth, staged.map(|_| ()), atomic.to, &message, 8);
        self.count_rma(atomic.to, bytes);
        Ok(Posted::Pending)
    }

    /// As [`super::Endpoint::push_raw`].
    #[doc(hidden)]
    pub(super) fn push_raw(&mut self, berth: &mut Berth, to: PeerId, message: &Message) -> bool {
        let ready = self.ready(berth, to).is_ok();
        if ready {
            self.push(berth, to, message, message.len(), 0);
        }
        ready
    }
}
