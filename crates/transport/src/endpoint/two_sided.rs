//! Messages that arrive: into their receives, or kept until those are posted.

use isthmus_lockfree::slot::Message;
use isthmus_region::PeerSection;
use isthmus_region::counters::Counter;
use isthmus_region::local::LocalBuf;

use super::cushion::zeroed;
use super::offer::{Offer, Pull, Space};
use super::payload::Payload;
use super::poll::{Sink, Stop};
use super::table::{Operation, Table};
use super::ways::Way;
use super::{Because, Core, Multi};
use crate::fault::{Step, step};
use crate::lane::Incoming;
use crate::matching::{Arrived, Body, Bufs, Matching, Ready, Target, Waiting};
use crate::types::{Completion, Op, PeerId, Status, Ticket};
use crate::wire::{self, INLINE_BYTES, Inline, flag};
use Stop::Faulty;

/// Payloads from this many bytes on are given back at once, not with the batch: the sender waits for the
/// room.
pub(super) const LARGE: u64 = 1024;
/// Longest message that may be announced: the size of an address space.
const MOST_BYTES: u64 = 1 << 47;

/// What identifies a message.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    pub(super) source: PeerId,
    pub(super) tag: u64,
    pub(super) data: Option<u64>,
}

impl Core {
    /// Takes an `INLINE` message.
    #[inline]
    pub(super) fn take_inline<S: Sink>(
        &mut self,
        source: PeerId,
        message: Inline<'_>,
        sink: &mut S,
    ) -> Result<(), Stop> {
        let len = message.len();
        if len > INLINE_BYTES {
            return Err(Faulty);
        }
        let (tag, data) = (message.tag(), message.data());
        let mut payload = [0; wire::INLINE_WORDS];
        for (i, word) in payload.iter_mut().enumerate().take(len.div_ceil(8)) {
            *word = message.payload(i);
        }
        let peer = &self.peers[source.0 as usize];
        if !peer.still_lives() {
            self.tally.add(Counter::Discarded, 1);
            return Ok(());
        }
        let tagged = message.tagged();
        let from = Origin { source, tag, data };
        if let Some((buf, ticket)) = self.matching.find_simple(tagged, source, tag) {
            self.matching.drop_oldest(tagged);
            let fit = buf.write_words(&payload, len) as u64;
            let done = received(ticket, tagged, from, buf.address(), fit, len as u64);
            if S::DIRECT && self.completions.is_empty() {
                sink.complete(&done, Some(&peer.address));
            } else {
                self.completions.push_back(done);
            }
        } else {
            self.take_inline_otherwise(from, tagged, &payload, len)?;
        }
        self.tally.add(Counter::RxMessages, 1);
        self.tally.add(Counter::RxBytes, len as u64);
        Ok(())
    }

    /// Takes a short message whose receive is not the oldest, has several buffers, or is not posted yet.
    #[inline(never)]
    fn take_inline_otherwise(
        &mut self,
        from: Origin,
        tagged: bool,
        payload: &[u64; wire::INLINE_WORDS],
        len: usize,
    ) -> Result<(), Stop> {
        let payload = wire::bytes(payload);
        match self.matching.take_waiting(tagged, from.source, from.tag) {
            Some(waiting) => self.deliver(&waiting, from, &Payload::Bytes(&payload[..len]))?,
            None => {
                let Origin { source, tag, data } = from;
                let body = Body::Inline(payload, len);
                self.keep(Arrived { source, tagged, tag, data, body })?;
            }
        }
        Ok(())
    }

    /// Keeps a message that no receive wants yet, if there is memory for it.
    fn keep(&mut self, arrived: Arrived) -> Result<(), Stop> {
        let source = arrived.source;
        let mut arrived = Some(arrived);
        let Core { cushion, matching, operations, .. } = self;
        let keep = |matching: &mut Matching, awaited| matching.keep(&mut arrived, awaited);
        cushion.keep(matching, |matching| is_awaited(operations, matching, source), keep)?;
        self.tally.add(Counter::Unexpected, 1);
        Ok(())
    }

    /// Takes an `EAGER` message, whose payload is in the data ring of `lane`.
    #[inline(never)]
    pub(super) fn take_eager<S: Sink>(
        &mut self,
        lane: &mut Incoming,
        head: u64,
        sink: &mut S,
    ) -> Result<(), Stop> {
        let (source, slot) = (lane.peer, lane.next());
        let (tag, len, offset) = (slot.word(1), slot.word(3), slot.word(4));
        // Checked once for the whole payload, so that copying cannot fail.
        let payload = Payload::in_data_ring(&lane.section, offset, len)?;
        let flags = wire::flags_of(head);
        // An endpoint that is being closed soon stops to confirm, since confirmations could keep it open for
        // ever.
        let ack = (flags & flag::ACK != 0 && !self.deaf).then(|| slot.word(5));
        let data = (flags & flag::DATA != 0).then(|| slot.word(2));
        self.take_whole(Origin { source, tag, data }, flags & flag::TAGGED != 0, ack, &payload, sink)?;
        if len >= LARGE {
            lane.release_through();
        }
        Ok(())
    }

    /// Takes a message that has come whole, with its payload.
    #[inline(always)] // into each of its callers
    fn take_whole<S: Sink>(
        &mut self,
        from: Origin,
        tagged: bool,
        ack: Option<u64>,
        payload: &Payload<'_>,
        sink: &mut S,
    ) -> Result<(), Stop> {
        let (Origin { source, tag, data }, len) = (from, payload.len());
        let peer = &self.peers[source.0 as usize];
        if !peer.lives() {
            self.tally.add(Counter::Discarded, 1);
            return Ok(());
        }
        let found = self.matching.position(tagged, source, tag);
        match found.and_then(|at| Some((at, self.matching.waiting(tagged, at)?))) {
            Some((at, Waiting { target: Target::Plain(bufs), ticket, .. })) => {
                let fit = bufs.len().min(len);
                payload.place(fit, bufs, 0)?;
                if !peer.still_lives() {
                    // The copy may be another endpoint's bytes: the receive stays posted.
                    self.tally.add(Counter::Discarded, 1);
                    return Ok(());
                }
                let done = received(*ticket, tagged, from, bufs.address(), fit, len);
                self.matching.remove(tagged, at);
                if S::DIRECT && self.completions.is_empty() {
                    sink.complete(&done, Some(&peer.address));
                } else {
                    self.completions.push_back(done);
                }
            }
            Some((_, waiting)) => {
                let waiting = waiting.clone();
                self.deliver(&waiting, from, payload)?;
            }
            None => {
                let Self { cushion, matching, operations, .. } = self;
                let is_awaited = |matching: &Matching| is_awaited(operations, matching, source);
                let mut bytes = cushion.keep(matching, is_awaited, |_, _| zeroed(len))?;
                payload.read(&mut bytes)?;
                if !self.still_lives(source) {
                    self.tally.add(Counter::Discarded, 1);
                    return Ok(());
                }
                let body = Body::Bytes(bytes.into());
                self.keep(Arrived { source, tagged, tag, data, body })?;
            }
        }
        self.tally.add(Counter::RxMessages, 1);
        self.tally.add(Counter::RxBytes, len);
        self.send_done(source, ack, Status::Ok, Because::Asked);
        Ok(())
    }

    /// Takes the announcement of a pipelined message.
    pub(super) fn take_ready(
        &mut self,
        source: PeerId,
        section: &PeerSection,
        message: &Message,
        flags: u8,
    ) -> Result<(), Stop> {
        let (tag, len, id) = (message[1], message[3], message[4]);
        if len > MOST_BYTES {
            return Err(Faulty);
        }
        if !self.still_lives(source) {
            return Ok(());
        }
        let tagged = flags & flag::TAGGED != 0;
        let data = (flags & flag::DATA != 0).then_some(message[2]);
        let ack = flags & flag::ACK != 0;
        let space = if flags & flag::RESIDENT == 0 { Space::Process } else { Space::Region };
        let offer = Offer { space, payload: message[5], word: message[6], value: message[7] };
        let offer = (flags & flag::OFFER != 0).then_some(offer);
        if let Some(offer @ Offer { space: Space::Region, .. }) = &offer {
            self.take_resident(source, section, len, offer)?;
        }
        let pages = flags & flag::PAGES != 0;
        let ready = Ready { len, id, ack, offer, pages };
        let arrived = Arrived { source, tagged, tag, data, body: Body::Ready(ready) };
        match self.matching.take_waiting(tagged, source, tag) {
            Some(waiting) => self.deliver_kept(waiting, arrived, Because::Asked),
            None => self.keep(arrived)?,
        }
        self.tally.add(Counter::RxMessages, 1);
        Ok(())
    }

    /// Delivers a kept message to a receive.
    pub(super) fn deliver_kept(&mut self, waiting: Waiting, arrived: Arrived, because: Because) {
        self.cushion.try_again();
        let Arrived { source, tag, data, body, .. } = arrived;
        let from = Origin { source, tag, data };
        // Copying what is in our own memory does not fail.
        match body {
            Body::Inline(payload, len) => {
                let _ = self.deliver(&waiting, from, &Payload::Bytes(&payload[..len]));
            }
            Body::Bytes(bytes) => {
                let _ = self.deliver(&waiting, from, &Payload::Bytes(&bytes));
            }
            Body::Ready(ready) => self.begin(waiting, from, ready, because),
            Body::Lost => {
                let mut done = received(waiting.ticket, waiting.select.tagged, from, 0, 0, 0);
                done.status = Status::PeerGone;
                self.completions.push_back(done);
            }
        }
    }

    /// Where a message of `len` bytes goes: the buffers, how much fits, and the multi-receive.
    #[inline]
    fn place(&mut self, waiting: &Waiting, len: u64) -> (Bufs, u64, Option<u32>) {
        match &waiting.target {
            Target::Plain(bufs) => {
                let fit = bufs.len().min(len);
                (bufs.clone(), fit, None)
            }
            Target::Multi(number) => {
                let Some(multi) = self.multis.get_mut(number) else {
                    return (Bufs::One(LocalBuf::EMPTY), 0, None);
                };
                let used = usize::try_from(multi.used).unwrap_or(usize::MAX);
                let rest = multi.buf.part(used, usize::MAX);
                let fit = len.min(rest.len() as u64);
                multi.used += fit;
                multi.inflight += 1;
                if (multi.buf.len() as u64) - multi.used < multi.least {
                    multi.closed = true;
                    self.matching.drop_multi(*number);
                }
                let fit_size = usize::try_from(fit).unwrap_or(0);
                (Bufs::One(rest.part(0, fit_size)), fit, Some(*number))
            }
        }
    }

    /// Copies a whole message into a receive and completes it.
    fn deliver(&mut self, waiting: &Waiting, from: Origin, payload: &Payload<'_>) -> Result<(), Stop> {
        let len = payload.len();
        let (bufs, fit, multi) = self.place(waiting, len);
        payload.place(fit, &bufs, 0)?;
        let mut done = received(waiting.ticket, waiting.select.tagged, from, bufs.address(), fit, len);
        if payload.is_shared() && !self.still_lives(from.source) {
            // Its place in the buffer is used up, so the message is reported as lost with its sender.
            done.status = Status::PeerGone;
        }
        self.finish_receive(done, multi);
        Ok(())
    }

    /// Completes a receive; the last one of a multi-receive releases it.
    pub(super) fn finish_receive(&mut self, mut completion: Completion, multi: Option<u32>) {
        if let Some(number) = multi
            && let Some(m) = self.multis.get_mut(&number)
        {
            m.inflight -= 1;
            if m.closed && m.inflight == 0 {
                if completion.status == Status::Ok && !m.canceled {
                    completion.released = true;
                    self.completions.push_back(completion);
                } else {
                    let release = release_of(m);
                    self.completions.push_back(completion);
                    self.completions.push_back(release);
                }
                self.multis.remove(&number);
                return;
            }
        }
        self.completions.push_back(completion);
    }

    /// One message of a multi-receive will not come: releases the receive if it was the last.
    pub(super) fn end_multi_message(&mut self, multi: Option<u32>) {
        let Some(number) = multi else { return };
        let Some(m) = self.multis.get_mut(&number) else { return };
        m.inflight -= 1;
        if m.closed && m.inflight == 0 {
            let release = release_of(m);
            self.completions.push_back(release);
            self.multis.remove(&number);
        }
    }

    /// Begins to receive an announced message.
    fn begin(&mut self, waiting: Waiting, from: Origin, ready: Ready, because: Because) {
        let Ready { len, id, ack, offer, pages } = ready;
        let source = from.source;
        step(Step::Unasked);
        let (dest, fit, multi) = self.place(&waiting, len);
        let then = received(waiting.ticket, waiting.select.tagged, from, dest.address(), fit, len);
        self.tally.add(Counter::RxBytes, fit);
        let done = ack.then_some(id);
        if fit == 0 {
            self.send_clear(source, id, 0, 0, 0, because);
            self.send_done(source, done, Status::Ok, because);
            self.finish_receive(then, multi);
            return;
        }
        let (way, measured) = match offer {
            None if !pages => (Way::Copy, None),
            _ => self.choose_way(source, fit, offer.as_ref(), pages),
        };
        let depths = &mut self.peers[source.0 as usize].depths;
        let timed = (way == Way::Copy).then(|| depths.begin(fit));
        // The sender's program waits until the pages have been read.
        let done = if way == Way::Pages { Some(id) } else { done };
        let operation = Operation::Incoming {
            from: source,
            dest,
            want: fit,
            received: 0,
            then,
            multi,
            done,
            registered: None,
            measured,
            timed,
            again: false,
            paged: 0,
            is_odd: false,
        };
        let mine = self.operations.insert(operation);
        match (way, offer) {
            (Way::Attach | Way::Resident, Some(offer)) => {
                let pull = Pull { mine, theirs: id, offer, because };
                self.peers[source.0 as usize].pulls.push_back(pull);
                self.owe(source);
            }
            (Way::Pages, _) => self.send_clear(source, id, mine, fit, flag::PAGES, because),
            _ => {
                let is_deep = timed.is_some_and(|timed| timed.is_deep);
                self.send_clear(source, id, mine, fit, if is_deep { flag::DEEP } else { 0 }, because);
            }
        }
    }
}

/// True if an operation with `source` is pending, or no earlier message from it is kept. Then the program may
/// be waiting for this message, or for what follows it in the lane, so it is kept even where memory is short.
fn is_awaited(operations: &Table, matching: &Matching, source: PeerId) -> bool {
    operations.has_with(source) || !matching.has_arrived_from(source)
}

/// The completion of a receive.
#[inline]
pub(super) fn received(
    ticket: Ticket,
    tagged: bool,
    from: Origin,
    buf: u64,
    fit: u64,
    len: u64,
) -> Completion {
    Completion {
        ticket,
        op: Op::Receive { tagged },
        status: if fit < len { Status::Truncated { cut: len - fit } } else { Status::Ok },
        len: fit,
        tag: from.tag,
        data: from.data,
        source: Some(from.source),
        buf,
        released: false,
    }
}

/// The completion that releases a multi-receive without a message.
pub(super) fn release_of(multi: &Multi) -> Completion {
    Completion {
        ticket: multi.ticket,
        op: Op::Receive { tagged: multi.tagged },
        status: if multi.canceled { Status::Canceled } else { Status::Ok },
        len: 0,
        tag: 0,
        data: None,
        source: None,
        buf: multi.buf.address(),
        released: true,
    }
}
