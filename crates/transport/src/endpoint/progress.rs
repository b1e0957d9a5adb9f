//! What arrives, and what is pushed on.
//!
//! Nothing that arrives is trusted: every number is checked against our own tables, every offset against the
//! sender's section, and after a payload has been copied out the sender's record is looked at once more (P5). A
//! message that cannot be right makes its sender *faulty*: it is treated as gone.

use isthmus_lockfree::hint;
use isthmus_lockfree::slot::Message;
use isthmus_region::counters::{Counter, LaneCounter};
use isthmus_region::local::LocalBuf;

use super::cushion::{NoMemoryLeft, zeroed};
use super::sleep::RECENT;
use super::table::{Operation, Table};
use super::{Because, Endpoint, Multi, Peer, Push, Registered};
use crate::address::Address;
use crate::fault::{Step, step};
use crate::lane::{Incoming, Size};
use crate::matching::{Arrived, Body, Bufs, Matching, Target, Waiting};
use crate::types::{Access, AtomicKind, Completion, Op, PeerId, RemoteAtomic, Status, Ticket};
use crate::wire::{self, AtomicWord, INLINE_BYTES, flag, kind};

/// Messages taken from one lane before the others get their turn.
const BATCH: usize = 64;
/// Payload bytes in the data ring from which they are given back at once, and not with the batch: the sender waits for
/// the room.
const LARGE: u64 = 1024;
/// Least bytes of a piece of a pipelined message.
const LEAST_PIECE: u64 = 16 << 10;
/// Replies that a peer asked for and that found no room, above which its lane is not read on.
const MOST_REPLIES: usize = 1024;
/// Longest message that anybody may announce: what an address space holds.
const MOST_BYTES: u64 = 1 << 47;

/// Whose message it is.
#[derive(Clone, Copy)]
struct Origin {
    source: PeerId,
    tag: u64,
    data: Option<u64>,
}

/// Why a message was not taken.
enum Stop {
    /// Its sender broke the protocol.
    Faulty,
    /// This process has no memory for it. Nothing of it was done, and it stays in its lane.
    NoMemory,
}
use Stop::Faulty;

impl From<NoMemoryLeft> for Stop {
    fn from(_: NoMemoryLeft) -> Self {
        Self::NoMemory
    }
}

/// Where completions go.
pub trait Sink {
    /// Whether [`Sink::complete`] is to be called at once; else completions are kept for [`Endpoint::pop`].
    const DIRECT: bool = true;

    /// Takes one, and the address of its source if it has one.
    fn complete(&mut self, completion: &Completion, source: Option<&Address>);
}

/// Keeps completions in the endpoint.
pub(super) struct Keep;

impl Sink for Keep {
    const DIRECT: bool = false;
    fn complete(&mut self, _: &Completion, _: Option<&Address>) {}
}

/// A short message that went into its receive whole.
#[derive(Debug, Clone, Copy)]
pub struct ShortReceived {
    /// The receive's.
    pub ticket: Ticket,
    /// Tagged or not.
    pub tagged: bool,
    /// The message's tag, in full.
    pub tag: u64,
    /// The message's data.
    pub data: Option<u64>,
    /// The sender.
    pub source: PeerId,
    /// Address of the payload.
    pub buf: u64,
    /// Bytes.
    pub len: usize,
}

/// Who gets short messages.
pub trait ShortSink {
    /// Takes one, and its sender's address.
    fn take(&mut self, got: &ShortReceived, from: &Address);
}

/// What [`Endpoint::poll_short`] found.
#[derive(Debug)]
pub enum Short {
    /// Nothing. That was one poll of the many, and the cheapest.
    Nothing,
    /// Messages, which are now received; no [`Completion`] will come.
    Received,
    /// Something for [`Endpoint::progress_into`]. Nothing was done.
    Other,
}

/// Takes the message at a lane's head if it is a short one for the oldest receive, which has room for it.
#[inline(always)] // on the way of a short message
fn take_short(lane: &mut Incoming, head: u64, peer: &Peer, matching: &mut Matching) -> Option<ShortReceived> {
    let (source, slot) = (lane.peer, lane.next());
    let (len, flags, tag) = (wire::inline_len(head), wire::flags_of(head), slot.word(1));
    let tagged = flags & flag::TAGGED != 0;
    let (buf, ticket) = matching.find_simple(tagged, source, tag)?;
    if wire::kind_of(head) != kind::INLINE || len > INLINE_BYTES || len > buf.len() {
        return None;
    }
    let data = if flags & flag::DATA != 0 { Some(slot.word(2)) } else { None };
    // Copied out, checked (P5), and only then placed.
    if len <= 8 {
        let word = slot.word(3);
        if !peer.still_lives() {
            return None;
        }
        buf.write_words(&[word], len);
    } else {
        let words = std::array::from_fn::<_, { wire::INLINE_WORDS }, _>(|i| slot.word(3 + i));
        if !peer.still_lives() {
            return None;
        }
        buf.write_words(&words, len);
    }
    matching.drop_oldest(tagged);
    lane.advance();
    Some(ShortReceived { ticket, tagged, tag, data, source, buf: buf.address(), len })
}

/// Short messages after which their slots are given back, while more are there.
const SHORT_BATCH: usize = 16;
const EXPECT_AHEAD: u64 = 4;
/// How long the hints between the looks of [`Endpoint::spin`] take, in nanoseconds; the looks themselves come on top, 1 to 2 ns for
/// each hot lane. MPICH's answer takes 0.7 us where two hardware threads share a core; a
/// wait for one that comes later costs it a system call.
const MOMENT: u32 = 1500;
/// Its looks where hints are slow, as under emulation; 1 to 4 ns each on a processor.
const BARE_LOOKS: u32 = 500;
/// Most polls between two looks at the activity lines, while there are lanes that are polled directly. After a look
/// that finds something the next poll looks again.
const LOOK_EVERY: u64 = 8;
/// Polls between two rounds of what need not be done often.
const SLOW_EVERY: u64 = 256;

/// What [`Endpoint::spin`] does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    looks: u32,
    /// Before each is a hint to the processor.
    hinted: bool,
}

impl Moment {
    pub(super) fn new() -> Self {
        let hinted = hint::is_cheap();
        Self { looks: if hinted { hint::within(MOMENT) } else { BARE_LOOKS }, hinted }
    }
}

impl Endpoint {
    /// Moves everything that can be moved, within bounds: incoming messages, pipelines, replies. Gives whether
    /// anything happened. Completions are kept for [`Endpoint::pop`]. Makes no system call.
    pub fn progress(&mut self) -> bool {
        self.advance(&mut Keep)
    }

    /// As [`Endpoint::progress`], but all completions go to `sink`, older ones first.
    #[inline]
    pub fn progress_into(&mut self, sink: &mut impl Sink) -> bool {
        let moved = self.advance(sink);
        if !self.completions.is_empty() {
            self.drain_into(sink);
        }
        moved
    }

    /// Gives all completions that are there to `sink`.
    #[inline(never)]
    pub fn drain_into(&mut self, sink: &mut impl Sink) {
        while let Some(completion) = self.completions.pop_front() {
            let source = completion.source.and_then(|s| self.peers.get(s.0 as usize));
            sink.complete(&completion, source.map(|p| &p.address));
        }
    }

    /// The short way of a poll: takes up to `room` short messages of one lane, for each of which the oldest receive waits,
    /// or finds that there is nothing. Whatever else there is to do it leaves to [`Endpoint::progress_into`], which it asks
    /// for often enough. With `wait` it looks on for a moment where there is nothing.
    #[inline(always)] // on the way of a short message
    pub fn poll_short(&mut self, room: usize, wait: bool, sink: &mut impl ShortSink) -> Short {
        let ticks = self.ticks.wrapping_add(1);
        let other = !self.busy.is_empty() || !self.completions.is_empty() || self.hot.is_empty();
        if other || (ticks >= self.next_look && !self.nothing_announced(ticks)) {
            return Short::Other;
        }
        self.ticks = ticks;
        let mut wait = wait;
        loop {
            for number in &self.hot {
                let Some(Some(lane)) = self.incoming.get_mut(*number as usize) else { continue };
                let Some(head) = lane.arrived() else { continue };
                let Some(peer) = self.peers.get(lane.peer.0 as usize) else { return Short::Other };
                let Some(received) = take_short(lane, head, peer, &mut self.matching) else {
                    return Short::Other;
                };
                sink.take(&received, &peer.address);
                lane.last = ticks;
                self.tally.add(Counter::RxMessages, 1);
                self.tally.add(Counter::RxBytes, received.len as u64);
                if self.hot.len() > 1 || lane.arrived().is_some() {
                    let number = *number;
                    self.take_more(number, room - 1, sink);
                } else {
                    lane.release();
                }
                return Short::Received;
            }
            if !wait || !self.spin() {
                return Short::Nothing;
            }
            wait = false;
        }
    }

    /// Takes up to `room` further short messages of a hot lane, and puts it behind the others, so that none is passed over
    /// for long. Apart from the first message, whose way is then shorter.
    #[inline(never)]
    fn take_more(&mut self, number: u32, room: usize, sink: &mut impl ShortSink) {
        if let Some(Some(lane)) = self.incoming.get_mut(number as usize)
            && let Some(peer) = self.peers.get(lane.peer.0 as usize)
        {
            let (mut count, mut bytes) = (0, 0);
            while count < room
                && let Some(head) = lane.arrived()
            {
                lane.expect(EXPECT_AHEAD);
                let Some(received) = take_short(lane, head, peer, &mut self.matching) else { break };
                bytes += received.len;
                count += 1;
                sink.take(&received, &peer.address);
                if count % SHORT_BATCH == 0 {
                    lane.release();
                }
            }
            lane.release();
            self.tally.add(Counter::RxMessages, count as u64);
            self.tally.add(Counter::RxBytes, bytes as u64);
        }
        if self.hot.len() > 1
            && let Some(at) = self.hot.iter().position(|hot| *hot == number)
        {
            let hot = self.hot.remove(at);
            self.hot.push(hot);
        }
    }

    /// Looks at the hot lanes again and again, for a [`MOMENT`], and nothing else. Gives whether something is
    /// there. Not where processors are short, nor where the program waits for nothing: Open MPI 4 reads again at once after
    /// each message that it got, and would be held up before it sends the answer.
    #[inline(never)]
    fn spin(&self) -> bool {
        if self.crowded || !(self.matching.has_waiting() || self.operations.has_any()) {
            return false;
        }
        let Moment { looks, hinted } = self.moment;
        (0..looks).any(|_| {
            // The first look was the poll's own.
            if hinted {
                std::hint::spin_loop();
            }
            std::hint::black_box(&self.hot).iter().any(
                |number| matches!(self.incoming.get(*number as usize), Some(Some(l)) if l.arrived().is_some()),
            )
        })
    }

    /// A look at the activity lines that finds nothing, if that is all there is to do now.
    #[inline(never)]
    fn nothing_announced(&mut self, ticks: u64) -> bool {
        let quiet = ticks < self.next_slow
            && self.askers.is_empty()
            && self.quarters.iter().all(|q| q.seen.is_current(&q.activity));
        if quiet {
            self.look_every = (2 * self.look_every).min(LOOK_EVERY);
            self.next_look = ticks + self.look_every;
        }
        quiet
    }

    #[inline]
    fn advance<S: Sink>(&mut self, sink: &mut S) -> bool {
        let mut moved = false;
        let mut k = 0;
        while let Some(number) = self.hot.get(k).copied() {
            moved |= self.poll(number, sink);
            k += 1;
        }
        if !self.busy.is_empty() {
            moved |= self.pump();
        }
        self.ticks = self.ticks.wrapping_add(1);
        if self.ticks >= self.next_look || self.hot.is_empty() {
            moved |= self.look();
        }
        if moved && self.asleep.is_some() {
            self.rouse();
        }
        moved
    }

    /// Looks at the activity lines, and where they point.
    #[inline(never)]
    fn look(&mut self) -> bool {
        let mut moved = false;
        for q in 0..self.quarters.len() {
            let quarter = &mut self.quarters[q];
            let groups = quarter.seen.changed(&quarter.activity);
            if groups != 0 {
                moved |= self.visit(q, groups);
            }
        }
        if !self.askers.is_empty() {
            self.take_requests();
        }
        let soon = moved || !self.askers.is_empty();
        self.look_every = if soon { 1 } else { (2 * self.look_every).min(LOOK_EVERY) };
        self.next_look = self.ticks + self.look_every;
        if self.ticks >= self.next_slow {
            self.next_slow = self.ticks + SLOW_EVERY;
            moved |= self.slow();
        }
        moved
    }

    /// What need not be done often. Gives whether there is more to take or to do than before.
    pub(super) fn slow(&mut self) -> bool {
        let there = |this: &Self| (this.completions.len(), this.hot.len(), this.busy.len());
        let before = there(self);
        self.look_at_region();
        self.look_for_lanes();
        self.cool_down();
        self.finish_closing();
        self.look_for_accepts();
        self.settle();
        let after = there(self);
        after.0 > before.0 || after.1 > before.1 || after.2 > before.2
    }

    /// Takes what has arrived on one lane.
    #[inline]
    pub(super) fn poll<S: Sink>(&mut self, number: u32, sink: &mut S) -> bool {
        let Some(Some(lane)) = self.incoming.get_mut(number as usize) else { return false };
        let Some(head) = lane.arrived() else { return false };
        let source = lane.peer;
        if self.peers[source.0 as usize].backlog.owed > MOST_REPLIES {
            return false;
        }
        lane.last = self.ticks;
        self.take_batch(number, source, head, sink)
    }

    /// Takes messages, the first of which is known to be there. Gives whether anything was done.
    #[inline]
    fn take_batch<S: Sink>(&mut self, number: u32, source: PeerId, first: u64, sink: &mut S) -> bool {
        let mut head = Some(first);
        let mut taken = 0;
        while taken < BATCH
            && let Some(found) = head
        {
            step(Step::MessageSeen);
            let outcome = match wire::kind_of(found) {
                kind::INLINE => self.take_inline(number, found, sink),
                kind::EAGER => self.take_eager(number, found, sink),
                _ => self.take(number, source, found),
            };
            match outcome {
                Ok(()) => {}
                // The sender finds no more room, until receives have taken what is kept here.
                Err(Stop::NoMemory) => break,
                Err(Faulty) => {
                    self.lose_faulty(source);
                    return true;
                }
            }
            // What was taken may have ended the lane.
            let Some(Some(lane)) = self.incoming.get_mut(number as usize) else { return true };
            step(Step::MessageTaken);
            lane.advance();
            head = lane.arrived();
            taken += 1;
        }
        step(Step::Unreleased);
        if let Some(Some(lane)) = self.incoming.get_mut(number as usize) {
            lane.release();
        }
        taken > 0
    }

    /// Whether what was copied out of a sender's memory was the sender's (P5).
    #[inline]
    pub(super) fn still_lives(&self, source: PeerId) -> bool {
        self.peers[source.0 as usize].still_lives()
    }

    /// Takes a short message.
    #[inline]
    fn take_inline<S: Sink>(&mut self, lane: u32, head: u64, sink: &mut S) -> Result<(), Stop> {
        let Some(Some(incoming)) = self.incoming.get(lane as usize) else { return Err(Faulty) };
        let (source, slot) = (incoming.peer, incoming.next());
        let (len, flags) = (wire::inline_len(head), wire::flags_of(head));
        if len > INLINE_BYTES {
            return Err(Faulty);
        }
        let tag = slot.word(1);
        let data = (flags & flag::DATA != 0).then(|| slot.word(2));
        let mut payload = [0; wire::INLINE_WORDS];
        for (i, word) in payload.iter_mut().enumerate().take(len.div_ceil(8)) {
            *word = slot.word(3 + i);
        }
        let peer = &self.peers[source.0 as usize];
        if !peer.still_lives() {
            self.tally.add(Counter::Discarded, 1);
            return Ok(());
        }
        let tagged = flags & flag::TAGGED != 0;
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

    /// A short message for a receive that is not the first or has several buffers, or for none yet.
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
            Some(waiting) => self.deliver(&waiting, from, &payload[..len]),
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
        let Self { cushion, matching, operations, .. } = self;
        let keep = |matching: &mut Matching, awaited| matching.keep(&mut arrived, awaited);
        cushion.keep(matching, |matching| is_awaited(operations, matching, source), keep)?;
        self.tally.add(Counter::Unexpected, 1);
        Ok(())
    }

    /// Takes one message that is not the payload of a short or middling one.
    #[inline(never)]
    fn take(&mut self, lane: u32, source: PeerId, head: u64) -> Result<(), Stop> {
        let Some(Some(incoming)) = self.incoming.get(lane as usize) else { return Err(Faulty) };
        let message = &incoming.next().message(head);
        let flags = wire::flags_of(head);
        match wire::kind_of(head) {
            kind::READY => self.take_ready(source, message, flags),
            kind::CLEAR => self.take_clear(source, message),
            kind::CHUNK => self.take_chunk(lane, source, message),
            kind::DONE => self.take_done(source, message),
            // Who asks an endpoint that is being closed hears of its end: answers would keep it here for ever.
            kind::READ | kind::WRITE | kind::WRITE_READY | kind::ATOMIC if self.leaving => Ok(()),
            kind::READ => self.take_read(source, message),
            kind::WRITE => self.take_write(lane, source, message, flags),
            kind::WRITE_READY => self.take_write_ready(source, message, flags),
            kind::ATOMIC => self.take_atomic(lane, source, message),
            kind::RESULT => self.take_result(lane, source, message),
            _ => Err(Faulty),
        }
    }

    /// The section that a lane's payloads lie in.
    fn section_of(&self, lane: u32) -> Result<isthmus_region::Section, Stop> {
        match self.incoming.get(lane as usize) {
            Some(Some(lane)) => Ok(lane.section.clone()),
            _ => Err(Faulty),
        }
    }

    /// Takes a message whose payload is in the data ring.
    #[inline(never)]
    fn take_eager<S: Sink>(&mut self, lane: u32, head: u64, sink: &mut S) -> Result<(), Stop> {
        let Some(Some(incoming)) = self.incoming.get(lane as usize) else { return Err(Faulty) };
        let (source, slot, section) = (incoming.peer, incoming.next(), &incoming.section);
        let (tag, len, offset) = (slot.word(1), slot.word(3), slot.word(4));
        // Checked once for the whole payload; copying can then fail no more. Nobody has a larger data ring: what has no
        // receive yet is copied, and a slot must not cost us a whole section.
        if len > Size::USUAL.data_bytes {
            return Err(Faulty);
        }
        section.holds("payload", offset, len).map_err(|_| Faulty)?;
        let flags = wire::flags_of(head);
        // Confirmations without end would keep an endpoint that is being closed here for ever.
        let ack = (flags & flag::ACK != 0 && !self.deaf).then(|| slot.word(5));
        let data = (flags & flag::DATA != 0).then(|| slot.word(2));
        let tagged = flags & flag::TAGGED != 0;
        let peer = &self.peers[source.0 as usize];
        if !peer.lives() {
            self.tally.add(Counter::Discarded, 1);
            return Ok(());
        }
        let from = Origin { source, tag, data };
        let found = self.matching.position(tagged, source, tag);
        match found.and_then(|at| Some((at, self.matching.waiting(tagged, at)?))) {
            Some((at, Waiting { target: Target::Plain(bufs), ticket, .. })) => {
                let fit = bufs.len().min(len);
                let _ = bufs.pieces(0, fit, |done, piece| section.drain("payload", offset + done, piece));
                if !peer.still_lives() {
                    // What was copied may be anybody's: the receive waits on.
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
                let (waiting, section) = (waiting.clone(), section.clone());
                let (bufs, fit, multi) = self.place(&waiting, len);
                let _ = bufs.pieces(0, fit, |done, piece| section.drain("payload", offset + done, piece));
                let mut done = received(waiting.ticket, tagged, from, bufs.address(), fit, len);
                if !self.still_lives(source) {
                    // The room is used up; the message is reported as lost with its sender.
                    done.status = Status::PeerGone;
                }
                self.finish_receive(done, multi);
            }
            None => {
                let Self { cushion, matching, operations, .. } = self;
                let is_awaited = |matching: &Matching| is_awaited(operations, matching, source);
                let mut bytes = cushion.keep(matching, is_awaited, |_, _| zeroed(len))?;
                let copied = section.bytes("payload", offset, len).and_then(|b| b.get(0, &mut bytes));
                copied.map_err(|_| Faulty)?;
                if !peer.still_lives() {
                    self.tally.add(Counter::Discarded, 1);
                    return Ok(());
                }
                let body = Body::Bytes(bytes.into());
                self.keep(Arrived { source, tagged, tag, data, body })?;
            }
        }
        self.tally.add(Counter::RxMessages, 1);
        self.tally.add(Counter::RxBytes, len);
        if len >= LARGE
            && let Some(Some(incoming)) = self.incoming.get_mut(lane as usize)
        {
            incoming.release_through();
        }
        self.send_done(source, ack, Status::Ok, Because::Asked);
        Ok(())
    }

    fn take_ready(&mut self, source: PeerId, message: &Message, flags: u8) -> Result<(), Stop> {
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
        let arrived = Arrived { source, tagged, tag, data, body: Body::Ready { len, id, ack } };
        match self.matching.take_waiting(tagged, source, tag) {
            Some(waiting) => self.deliver_kept(waiting, arrived, Because::Asked),
            None => self.keep(arrived)?,
        }
        self.tally.add(Counter::RxMessages, 1);
        Ok(())
    }

    /// Gives a message that was kept to a receive.
    pub(super) fn deliver_kept(&mut self, waiting: Waiting, arrived: Arrived, because: Because) {
        self.cushion.try_again();
        let Arrived { source, tag, data, body, .. } = arrived;
        let from = Origin { source, tag, data };
        match body {
            Body::Inline(payload, len) => self.deliver(&waiting, from, &payload[..len]),
            Body::Bytes(bytes) => self.deliver(&waiting, from, &bytes),
            Body::Ready { len, id, ack } => self.begin(waiting, from, (len, id, ack), because),
        }
    }

    /// Where a message of `len` bytes goes: the buffers, where in them, how much fits, and the multi-receive.
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
    fn deliver(&mut self, waiting: &Waiting, from: Origin, payload: &[u8]) {
        let len = payload.len() as u64;
        let (bufs, fit, multi) = self.place(waiting, len);
        bufs.scatter(0, payload.get(..usize::try_from(fit).unwrap_or(0)).unwrap_or_default());
        let done = received(waiting.ticket, waiting.select.tagged, from, bufs.address(), fit, len);
        self.finish_receive(done, multi);
    }

    /// Completes a receive; the last one of a multi-receive releases it.
    fn finish_receive(&mut self, mut completion: Completion, multi: Option<u32>) {
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

    /// Begins to receive an announced message.
    fn begin(&mut self, waiting: Waiting, from: Origin, ready: (u64, u64, bool), because: Because) {
        let (len, id, ack) = ready;
        let source = from.source;
        step(Step::Unasked);
        let (dest, fit, multi) = self.place(&waiting, len);
        let then = received(waiting.ticket, waiting.select.tagged, from, dest.address(), fit, len);
        self.tally.add(Counter::RxBytes, fit);
        let done = ack.then_some(id);
        if fit == 0 {
            self.send_clear(source, id, 0, 0, because);
            self.send_done(source, done, Status::Ok, because);
            self.finish_receive(then, multi);
            return;
        }
        let operation = Operation::Incoming {
            from: source,
            dest,
            want: fit,
            received: 0,
            then,
            multi,
            done,
            registered: None,
        };
        let mine = self.operations.insert(operation);
        self.send_clear(source, id, mine, fit, because);
    }

    /// Asks for the bytes of an announced message: `want` of them, for our operation `mine`.
    pub(super) fn send_clear(&mut self, to: PeerId, id: u64, mine: u64, want: u64, because: Because) {
        let message = [wire::head(kind::CLEAR, 0, 0), id, mine, want, 0, 0, 0, 0];
        self.reply(to, message, 4, None, because);
    }

    /// Tells that operation `id`, if there is one, has ended.
    pub(super) fn send_done(&mut self, to: PeerId, id: Option<u64>, status: Status, because: Because) {
        if let Some(id) = id {
            let message = [wire::head(kind::DONE, 0, 0), id, wire::status_code(status), 0, 0, 0, 0, 0];
            self.reply(to, message, 3, None, because);
        }
    }

    /// Answers a read or a fetching atomic: the bytes, or why there are none.
    fn send_result(&mut self, to: PeerId, id: u64, status: Status, payload: Option<Box<[u8]>>) {
        let len = payload.as_ref().map_or(0, |p| p.len() as u64);
        let message = [wire::head(kind::RESULT, 0, 0), id, wire::status_code(status), len, 0, 0, 0, 0];
        self.reply(to, message, 5, payload, Because::Asked);
    }

    fn take_clear(&mut self, source: PeerId, message: &Message) -> Result<(), Stop> {
        let (id, theirs, want) = (message[1], message[2], message[3]);
        // Looked at before it is taken: what a faulty peer names must be there for `lose` to end.
        if !matches!(self.operations.get(id, source), Some(Operation::Offer { len, .. }) if want <= *len) {
            return Err(Faulty);
        }
        let Some(Operation::Offer { to, bufs, then, awaits_done, .. }) = self.operations.take(id, source)
        else {
            return Err(Faulty);
        };
        let mut then = Some(then);
        if awaits_done {
            // `DONE` names the number that was announced, so the operation keeps it.
            if let Some(completion) = then.take() {
                self.operations.put_back(id, Operation::Await { to, then: completion, sending: want > 0 });
            }
        }
        if want == 0 {
            self.completions.extend(then);
            return Ok(());
        }
        step(Step::ClearTaken);
        let peer = &mut self.peers[source.0 as usize];
        let awaited = awaits_done.then_some(id);
        peer.pushes.push_back(Push { id: theirs, bufs, registered: None, len: want, at: 0, awaited, then });
        self.mark_busy(source);
        self.pump_peer(source);
        Ok(())
    }

    fn take_chunk(&mut self, lane: u32, source: PeerId, message: &Message) -> Result<(), Stop> {
        let (id, at, len, offset) = (message[1], message[2], message[3], message[4]);
        let Some(Some(incoming)) = self.incoming.get(lane as usize) else { return Err(Faulty) };
        let section = &incoming.section;
        let Some(Operation::Incoming { dest, want, received, done, registered, .. }) =
            self.operations.get(id, source)
        else {
            // The operation may be over, with its sender's death or our close; its chunks are nobody's.
            return Ok(());
        };
        // Chunks come in order: the position is what was received so far, or somebody is lying.
        if at != *received || len == 0 || len > *want - *received {
            return Err(Faulty);
        }
        section.holds("chunk", offset, len).map_err(|_| Faulty)?;
        let drain = |done, piece| section.drain("chunk", offset + done, piece);
        let copied = match *registered {
            None => dest.pieces(at, len, drain),
            Some(place) => match self.memory.find(place.key, place.at(at), len, Access::Write) {
                Ok(buf) => drain(0, buf),
                Err(status) => {
                    let done = *done;
                    self.operations.take(id, source);
                    self.send_done(source, done, status, Because::Asked);
                    return Ok(());
                }
            },
        };
        copied.map_err(|_| Faulty)?;
        step(Step::ChunkDrained);
        *received += len;
        let finished = *received == *want;
        if !self.still_lives(source) {
            // The operation ends with its sender.
            return Ok(());
        }
        if finished {
            self.finish_incoming(id, source);
        }
        // Chunks are given back one by one, so that the sender's next copy overlaps with ours.
        if let Some(Some(incoming)) = self.incoming.get_mut(lane as usize) {
            incoming.release_through();
        }
        // Without a fence it may be overlooked here; the announcement leads to it all the same.
        self.take_request(lane);
        step(Step::ChunkReleased);
        Ok(())
    }

    fn finish_incoming(&mut self, id: u64, source: PeerId) {
        let Some(Operation::Incoming { then, multi, done, .. }) = self.operations.take(id, source) else {
            return;
        };
        step(Step::AllReceived);
        self.recent_until = self.ticks + RECENT;
        self.send_done(source, done, Status::Ok, Because::Asked);
        match then.op {
            // A write's arrival is told only where data came with it.
            Op::RemoteWrite if then.data.is_none() => {}
            _ => self.finish_receive(then, multi),
        }
    }

    fn take_done(&mut self, source: PeerId, message: &Message) -> Result<(), Stop> {
        let status = wire::status_of(message[2]);
        // Looked at before it is taken, as in `take_clear`. An offer ends here only as a write that was refused before
        // its payload was asked for; a payload that is still being read from the caller's buffers, only as one that was
        // refused meanwhile.
        match self.operations.get(message[1], source) {
            Some(Operation::Await { sending: false, .. }) => {}
            Some(Operation::Await { .. }) if status != Status::Ok => {
                let id = Some(message[1]);
                self.peers[source.0 as usize].pushes.retain(|push| push.awaited != id);
                self.drop_post(source, message[1]);
            }
            Some(Operation::Offer { .. }) if status != Status::Ok => {}
            _ => return Err(Faulty),
        }
        step(Step::DoneSeen);
        if let Some(Operation::Await { mut then, .. } | Operation::Offer { mut then, .. }) =
            self.operations.take(message[1], source)
        {
            then.status = status;
            then.source = (status != Status::Ok).then_some(source);
            self.completions.push_back(then);
        }
        Ok(())
    }

    fn take_read(&mut self, source: PeerId, message: &Message) -> Result<(), Stop> {
        let (id, key, addr, len) = (message[1], message[2], message[3], message[4]);
        if !self.still_lives(source) {
            return Ok(());
        }
        step(Step::ReadAsked);
        match self.memory.find(key, addr, len, Access::Read) {
            Ok(buf) if len <= self.config.eager_bytes.min(4096) => {
                let mut payload = self.cushion.borrow(|| zeroed(len))?;
                buf.read(&mut payload);
                self.count_answer(source, len);
                self.send_result(source, id, Status::Ok, Some(payload.into()));
            }
            Ok(buf) => {
                self.count_answer(source, len);
                let registered = Some(Registered { key, addr });
                let bufs = Bufs::One(buf);
                let push = Push { id, bufs, registered, len, at: 0, awaited: None, then: None };
                self.peers[source.0 as usize].pushes.push_back(push);
                self.mark_busy(source);
                self.pump_peer(source);
            }
            Err(status) => self.send_result(source, id, status, None),
        }
        Ok(())
    }

    /// Counts what a read of the peer's makes us send.
    fn count_answer(&mut self, to: PeerId, len: u64) {
        self.tally.add(Counter::RmaBytes, len);
        self.peers[to.0 as usize].sent.add(LaneCounter::RmaBytes, len);
    }

    fn remote_write(&self, source: PeerId, data: Option<u64>, len: u64, buf: u64) -> Completion {
        let mut completion = self.template(Ticket::default(), Op::RemoteWrite, len);
        completion.data = data;
        completion.source = Some(source);
        completion.buf = buf;
        completion
    }

    fn take_write(&mut self, lane: u32, source: PeerId, message: &Message, flags: u8) -> Result<(), Stop> {
        let [_, id, key, addr, len, offset, data, _] = *message;
        if len > Size::USUAL.data_bytes {
            return Err(Faulty);
        }
        let section = self.section_of(lane)?;
        section.holds("payload", offset, len).map_err(|_| Faulty)?;
        // User memory is written only by what is certainly the sender's: copied out, checked, then placed.
        let mut bytes = self.cushion.borrow(|| zeroed(len))?;
        let copied = section.bytes("payload", offset, len).and_then(|b| b.get(0, &mut bytes));
        copied.map_err(|_| Faulty)?;
        if !self.still_lives(source) {
            return Ok(());
        }
        let status = match self.memory.find(key, addr, len, Access::Write) {
            Ok(buf) => {
                buf.write(&bytes);
                step(Step::Written);
                if flags & flag::DATA != 0 {
                    let completion = self.remote_write(source, Some(data), len, buf.address());
                    self.completions.push_back(completion);
                }
                Status::Ok
            }
            Err(status) => status,
        };
        self.send_done(source, Some(id), status, Because::Asked);
        Ok(())
    }

    fn take_write_ready(&mut self, source: PeerId, message: &Message, flags: u8) -> Result<(), Stop> {
        let [_, id, key, addr, len, _, data, _] = *message;
        if !self.still_lives(source) {
            return Ok(());
        }
        match self.memory.find(key, addr, len, Access::Write) {
            Ok(buf) => {
                let data = (flags & flag::DATA != 0).then_some(data);
                let then = self.remote_write(source, data, len, buf.address());
                let mine = self.operations.insert(Operation::Incoming {
                    from: source,
                    dest: Bufs::One(buf),
                    want: len,
                    received: 0,
                    then,
                    multi: None,
                    done: Some(id),
                    registered: Some(Registered { key, addr }),
                });
                self.send_clear(source, id, mine, len, Because::Asked);
            }
            Err(status) => self.send_done(source, Some(id), status, Because::Asked),
        }
        Ok(())
    }

    fn take_atomic(&mut self, lane: u32, source: PeerId, message: &Message) -> Result<(), Stop> {
        let [_, id, key, addr, what, offset, lengths, size] = *message;
        let word = AtomicWord::unpack(what).ok_or(Faulty)?;
        let (operands, compares) = (lengths & 0xffff_ffff, lengths >> 32);
        let limit = super::ATOMIC_BYTES as u64;
        let span = u64::from(word.count).checked_mul(size).ok_or(Faulty)?;
        if operands > limit || compares > limit || span > limit {
            return Err(Faulty);
        }
        let section = self.section_of(lane)?;
        let mut bytes = self.cushion.borrow(|| zeroed(operands + compares))?;
        let copied = section.bytes("operands", offset, operands + compares);
        copied.and_then(|b| b.get(0, &mut bytes)).map_err(|_| Faulty)?;
        if !self.still_lives(source) {
            return Ok(());
        }
        let (operand, compare) = bytes.split_at(usize::try_from(operands).unwrap_or(0));
        let mut before = Vec::new();
        // What gives values back reads them, too.
        let readable = match word.kind {
            AtomicKind::Plain => Ok(()),
            AtomicKind::Fetch | AtomicKind::Compare => {
                self.memory.find(key, addr, span, Access::Read).map(|_| ())
            }
        };
        let target = readable.and_then(|()| self.memory.find(key, addr, span, Access::Atomic));
        let done = target.and_then(|target| {
            let what = RemoteAtomic {
                kind: word.kind,
                datatype: word.datatype,
                op: word.op,
                count: word.count,
                operand,
                compare,
            };
            self.memory.atomic(target, &what, &mut before)
        });
        let status = done.err().unwrap_or(Status::Ok);
        step(Step::AtomicDone);
        if word.kind == AtomicKind::Plain {
            self.send_done(source, Some(id), status, Because::Asked);
            return Ok(());
        }
        let payload = if status == Status::Ok { before.into_boxed_slice() } else { Box::default() };
        self.send_result(source, id, status, Some(payload));
        Ok(())
    }

    fn take_result(&mut self, lane: u32, source: PeerId, message: &Message) -> Result<(), Stop> {
        let [_, id, code, len, offset, ..] = *message;
        let section = self.section_of(lane)?;
        let Some(Operation::Incoming { dest, want, received, then, .. }) = self.operations.get(id, source)
        else {
            return Ok(());
        };
        // Messages and writes end by their chunks.
        if !matches!(then.op, Op::Read | Op::Atomic(_)) {
            return Err(Faulty);
        }
        let status = wire::status_of(code);
        if status == Status::Ok {
            if *received != 0 || len != *want {
                return Err(Faulty);
            }
            section.holds("result", offset, len).map_err(|_| Faulty)?;
            dest.pieces(0, len, |done, piece| section.drain("result", offset + done, piece))
                .map_err(|_| Faulty)?;
            if !self.still_lives(source) {
                return Ok(());
            }
        }
        step(Step::ResultPlaced);
        if let Some(Operation::Incoming { mut then, .. }) = self.operations.take(id, source) {
            then.status = status;
            then.source = (status != Status::Ok).then_some(source);
            self.completions.push_back(then);
        }
        Ok(())
    }

    pub(super) fn mark_busy(&mut self, peer: PeerId) {
        let entry = &mut self.peers[peer.0 as usize];
        if !entry.is_busy {
            entry.is_busy = true;
            self.busy.push(peer);
        }
    }

    /// Goes on with what waits for room and with the pipelines of all busy peers.
    fn pump(&mut self) -> bool {
        let mut moved = false;
        let mut k = 0;
        while let Some(peer) = self.busy.get(k).copied() {
            moved |= self.pump_peer(peer);
            let entry = &mut self.peers[peer.0 as usize];
            if entry.backlog.is_empty() && entry.pushes.is_empty() {
                entry.is_busy = false;
                self.busy.swap_remove(k);
            } else {
                k += 1;
            }
        }
        moved
    }

    /// Goes on with what waits for room and with the pipelines of one peer. The pipelines take few slots at a time, so they
    /// come before the posts, of which there may be many.
    pub(super) fn pump_peer(&mut self, to: PeerId) -> bool {
        let replies = self.peers[to.0 as usize].backlog.count();
        if !self.flush_replies(to) {
            return self.peers[to.0 as usize].backlog.count() < replies;
        }
        let mut moved = self.push_chunks(to);
        let before = self.peers[to.0 as usize].backlog.count();
        moved |= before < replies;
        if before > 0 {
            self.flush_backlog(to);
            moved |= self.peers[to.0 as usize].backlog.count() < before;
        }
        moved
    }

    /// Goes on with one peer's pipelines: as many chunks as room and depth allow.
    fn push_chunks(&mut self, to: PeerId) -> bool {
        let mut moved = false;
        loop {
            let peer = &mut self.peers[to.0 as usize];
            if peer.pushes.is_empty() {
                return moved;
            }
            if !peer.lives() {
                // `lose` ends the rest when the region says so.
                return moved;
            }
            if peer.out.is_none() && self.open_lane(to).is_err() {
                return moved;
            }
            let Some(chunk) = self.take_chunk_place(to) else { return moved };
            let peer = &mut self.peers[to.0 as usize];
            // With more messages behind it both sides copy at the same time anyway, and fewer pieces cost less.
            let alone = peer.pushes.len() == 1 && !self.operations.has_offers();
            let (Some(out), Some(push)) = (&mut peer.out, peer.pushes.front_mut()) else { return moved };
            let piece = if alone { piece_of(push.len) } else { chunk.bytes };
            let len = (push.len - push.at).min(chunk.bytes).min(piece);
            let section = self.member.section();
            // Both ends of the copy are ours: the program's buffers and a chunk of our area.
            let fill = |done, piece| section.fill("chunk", chunk.offset + done, piece);
            let found = push
                .registered
                .map(|place| self.memory.find(place.key, place.at(push.at), len, Access::Read));
            let _ = match found {
                None => push.bufs.pieces(push.at, len, fill),
                Some(Ok(buf)) => fill(0, buf),
                Some(Err(status)) => {
                    if chunk.pooled {
                        self.chunk_pool.push(chunk.offset);
                    }
                    let id = push.id;
                    peer.pushes.pop_front();
                    self.send_result(to, id, status, None);
                    continue;
                }
            };
            step(Step::ChunkFilled);
            let message = [wire::head(kind::CHUNK, 0, 0), push.id, push.at, len, chunk.offset, 0, 0, 0];
            let announced = out.push(&message, 5);
            if chunk.pooled {
                out.hold_chunk(chunk.offset);
            }
            step(Step::ChunkSent);
            push.at += len;
            self.tally.add(Counter::Chunks, 1);
            peer.sent.add(LaneCounter::Chunks, 1);
            moved = true;
            if push.at == push.len
                && let Some(done) = peer.pushes.pop_front()
            {
                self.recent_until = self.ticks + RECENT;
                if let Some(own) = done.awaited
                    && let Some(Operation::Await { sending, .. }) = self.operations.get(own, to)
                {
                    *sending = false;
                }
                self.completions.extend(done.then);
            }
            if announced {
                self.announced(to);
            }
        }
    }
}

/// Whether somebody may wait for a message of `source`, or for what comes behind it, even while there is no memory: something
/// was begun with the sender, or nothing of it is kept that a program could take instead.
fn is_awaited(operations: &Table, matching: &Matching, source: PeerId) -> bool {
    operations.has_with(source) || !matching.has_arrived_from(source)
}

/// Bytes of one piece of a pipelined message: small ones in short messages, so that both sides copy at the same time for
/// most of it.
fn piece_of(len: u64) -> u64 {
    (len / 8).next_multiple_of(4096).max(LEAST_PIECE)
}

/// The completion of a receive.
#[inline]
fn received(ticket: Ticket, tagged: bool, from: Origin, buf: u64, fit: u64, len: u64) -> Completion {
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

/// The release of a multi-receive without a message.
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
