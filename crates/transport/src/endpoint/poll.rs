//! Polling: hot lanes in each call, the activity lines in some, everything else seldom.
//!
//! Nothing that arrives is trusted: every number is checked against our own tables, every offset against the
//! sender's section, and after a payload has been copied out the sender's record is read once more (P5). A
//! sender whose message cannot be right is *faulty*: it is treated as gone.

use isthmus_lockfree::hint;
use isthmus_region::counters::Counter;
use isthmus_region::local::LocalBuf;
use isthmus_region::roster::Present;
use rustix::io::Errno;

use super::cushion::NoMemoryLeft;
use super::payload::Payload;
use super::two_sided::LARGE;
use super::{Berth, Core, Peer};
use crate::address::Address;
use crate::fault::{Step, step};
use crate::lane::{Incoming, Size};
use crate::matching::Matching;
use crate::types::{Completion, PeerId, Ticket};
use crate::wire::{self, INLINE_BYTES, Inline, flag, kind};
use Stop::Faulty;

/// Why a message was not taken.
pub(super) enum Stop {
    /// Its sender broke the protocol.
    Faulty,
    /// This process has no memory for it. Nothing was done, and the message stays in its lane.
    NoMemory,
    /// The system does not let this process map what it lies in, which is no fault of its sender's. Nothing was done.
    Unmapped(Errno),
}

impl Stop {
    /// What comes of bytes of the sender's that could not be had.
    #[cold]
    pub(super) fn of(error: isthmus_region::Error) -> Self {
        match error {
            isthmus_region::Error::Memory { source, .. } => Self::Unmapped(source),
            _ => Faulty,
        }
    }
}

impl From<NoMemoryLeft> for Stop {
    fn from(_: NoMemoryLeft) -> Self {
        Self::NoMemory
    }
}

/// Where completions go.
pub trait Sink {
    /// Whether [`Sink::complete`] is to be called at once; else completions are kept for [`super::Endpoint::pop`].
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

/// What takes short messages.
pub trait ShortSink {
    /// Takes one, and its sender's address.
    fn take(&mut self, got: &ShortReceived, from: &Address);
}

/// What [`super::Endpoint::poll_short`] found.
#[derive(Debug)]
pub enum Short {
    /// Nothing: the most frequent outcome, and the cheapest.
    Nothing,
    /// Messages, which are now received; no [`Completion`] will come.
    Received,
    /// Something for [`super::Endpoint::progress_into`]. Nothing was done.
    Other,
}

/// Messages taken from one lane before the others get their turn.
const BATCH: usize = 64;
/// A lane is not read while its sender is owed more replies than this.
const MOST_REPLIES: usize = 1024;
/// Slots are given back after this many short messages, while more are there.
const SHORT_BATCH: usize = 16;
/// Slots ahead of the next one whose line is prefetched, while several messages are there.
const EXPECT_AHEAD: u64 = 4;
/// Time that the hints between the polls of [`Core::spin`] take; the polls come on top, 1 to 2 ns for
/// each hot lane. MPICH's answer takes 0.7 us where two hardware threads share a core; to wait for a later
/// one costs it a system call.
const SPIN_NS: u32 = 1500;
/// Its polls where hints are slow, as under emulation; 1 to 4 ns each on a processor.
const POLLS_WITHOUT_HINT: u32 = 500;
/// Most calls between two polls of the activity lines, while there are hot lanes. After a poll that finds
/// something the next call polls them again.
const ACTIVITY_EVERY: u64 = 8;
/// Calls between two rounds of [`Core::slow`].
const SLOW_EVERY: u64 = 256;

/// How [`Core::spin`] spins.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spin {
    polls: u32,
    /// Before each poll is a hint to the processor.
    hinted: bool,
}

impl Spin {
    pub(super) fn new() -> Self {
        let hinted = hint::is_cheap();
        Self { polls: if hinted { hint::within(SPIN_NS) } else { POLLS_WITHOUT_HINT }, hinted }
    }
}

/// Takes the message at a lane's head if it is in-line or eager, and the oldest receive is one for it and has room. Gives its bytes.
#[inline(always)] // on the way of a short message
fn take_short(
    lane: &mut Incoming,
    head: u64,
    peer: &Peer,
    matching: &mut Matching,
    sink: &mut impl ShortSink,
) -> Option<usize> {
    let (source, message) = (lane.peer, Inline { slot: lane.next(), head });
    let (len, tagged, tag) = (message.len(), message.tagged(), message.tag());
    let (buf, ticket) = matching.find_simple(tagged, source, tag)?;
    if wire::kind_of(head) != kind::INLINE {
        return take_staged(lane, (head, tag), peer, matching, (buf, ticket), sink);
    }
    let data = message.data();
    // Copied out, checked (P5), and only then placed.
    if len == 8 {
        if buf.len() < 8 {
            return None;
        }
        let word = message.payload(0);
        if !peer.still_lives() {
            return None;
        }
        buf.write_words(&[word], 8);
    } else {
        if len > INLINE_BYTES || len > buf.len() {
            return None;
        }
        let words = std::array::from_fn::<_, { wire::INLINE_WORDS }, _>(|i| message.payload(i));
        if !peer.still_lives() {
            return None;
        }
        buf.write_words(&words, len);
    }
    matching.drop_oldest(tagged);
    lane.advance();
    sink.take(&ShortReceived { ticket, tagged, tag, data, source, buf: buf.address(), len }, &peer.address);
    Some(len)
}

/// The rest of it where the payload is in the data ring: takes a message that need not be confirmed.
#[inline(never)]
fn take_staged(
    lane: &mut Incoming,
    // As read once: what was matched is what is reported.
    (head, tag): (u64, u64),
    peer: &Peer,
    matching: &mut Matching,
    (buf, ticket): (LocalBuf, Ticket),
    sink: &mut impl ShortSink,
) -> Option<usize> {
    let (source, slot, flags) = (lane.peer, lane.next(), wire::flags_of(head));
    let (len, offset) = (slot.word(3), slot.word(4));
    let is_plain = wire::kind_of(head) == kind::EAGER && flags & flag::ACK == 0;
    if !is_plain || len > (buf.len() as u64).min(Size::USUAL.data_bytes) {
        return None;
    }
    let (tagged, data) = (flags & flag::TAGGED != 0, (flags & flag::DATA != 0).then(|| slot.word(2)));
    // At most the length of the buffer.
    let size = usize::try_from(len).unwrap_or(0);
    lane.section.drain("payload", offset, buf.part(0, size)).ok()?;
    if !peer.still_lives() {
        // The copy may be another endpoint's bytes (P5): the receive stays posted.
        return None;
    }
    matching.drop_oldest(tagged);
    lane.advance();
    lane.took_payload(offset, len);
    let got = ShortReceived { ticket, tagged, tag, data, source, buf: buf.address(), len: size };
    sink.take(&got, &peer.address);
    Some(size)
}

impl Berth {
    /// Whether there is nothing to do now: no activity line has changed, nobody waits for room, and
    /// [`Core::slow`] is not due.
    #[inline(never)]
    fn is_activity_unchanged(&mut self, ticks: u64) -> bool {
        let quiet = ticks < self.next_slow
            && !self.hot.is_empty()
            && self.waiters.is_empty()
            && self.roster.peers().iter().all(Present::is_quiet);
        if quiet {
            self.activity_every = (2 * self.activity_every).min(ACTIVITY_EVERY);
            self.next_activity = ticks + self.activity_every;
        }
        quiet
    }
}

impl Core {
    /// As [`super::Endpoint::progress`].
    pub(super) fn progress(&mut self, berth: &mut Berth) -> bool {
        self.advance(berth, &mut Keep)
    }

    /// As [`super::Endpoint::progress_into`].
    #[inline]
    pub(super) fn progress_into(&mut self, berth: &mut Berth, sink: &mut impl Sink) -> bool {
        let moved = self.advance(berth, sink);
        if !self.completions.is_empty() {
            self.drain_into(sink);
        }
        moved
    }

    /// As [`super::Endpoint::drain_into`].
    #[inline(never)]
    pub(super) fn drain_into(&mut self, sink: &mut impl Sink) {
        while let Some(completion) = self.completions.pop_front() {
            let source = completion.source.and_then(|s| self.peers.get(s.0 as usize));
            sink.complete(&completion, source.map(|p| &p.address));
        }
    }

    /// As [`super::Endpoint::poll_short`].
    #[inline(always)] // on the way of a short message
    pub(super) fn poll_short(
        &mut self,
        berth: &mut Option<Berth>,
        room: usize,
        wait: bool,
        sink: &mut impl ShortSink,
    ) -> Short {
        let ticks = self.ticks.wrapping_add(1);
        let Some(berth) = berth else { return Short::Other };
        // The activity lines are always due while no lane is hot.
        let other = !self.busy.is_empty() || !self.completions.is_empty();
        if other || (ticks >= berth.next_activity && !berth.is_activity_unchanged(ticks)) {
            return Short::Other;
        }
        self.ticks = ticks;
        let mut wait = wait;
        loop {
            for number in &berth.hot {
                let Some(Some(lane)) = berth.incoming.get_mut(*number as usize) else { continue };
                let Some(head) = lane.arrived() else { continue };
                let Some(peer) = self.peers.get(lane.peer.0 as usize) else { return Short::Other };
                let Some(bytes) = take_short(lane, head, peer, &mut self.matching, sink) else {
                    return Short::Other;
                };
                lane.last = ticks;
                self.tally.add(Counter::RxMessages, 1);
                self.tally.add(Counter::RxBytes, bytes as u64);
                if berth.hot.len() > 1 || (self.matching.has_waiting() && lane.arrived().is_some()) {
                    let number = *number;
                    self.take_more(berth, number, room - 1, sink);
                } else {
                    lane.give_back();
                }
                return Short::Received;
            }
            if !wait || !self.spin(berth) {
                return Short::Nothing;
            }
            wait = false;
        }
    }

    /// Takes up to `room` further short messages of a hot lane, and moves the lane behind the others, so that
    /// none starves. A function of its own, which keeps the way of the first message short.
    #[inline(never)]
    fn take_more(&mut self, berth: &mut Berth, number: u32, room: usize, sink: &mut impl ShortSink) {
        if let Some(Some(lane)) = berth.incoming.get_mut(number as usize)
            && let Some(peer) = self.peers.get(lane.peer.0 as usize)
        {
            let (mut count, mut bytes) = (0, 0);
            while count < room
                && let Some(head) = lane.arrived()
            {
                lane.expect(EXPECT_AHEAD);
                let Some(taken) = take_short(lane, head, peer, &mut self.matching, sink) else { break };
                bytes += taken;
                count += 1;
                if count % SHORT_BATCH == 0 || taken as u64 >= LARGE {
                    lane.give_back();
                }
            }
            lane.release();
            self.tally.add(Counter::RxMessages, count as u64);
            self.tally.add(Counter::RxBytes, bytes as u64);
        }
        if berth.hot.len() > 1
            && let Some(at) = berth.hot.iter().position(|hot| *hot == number)
        {
            let hot = berth.hot.remove(at);
            berth.hot.push(hot);
        }
    }

    /// Polls the hot lanes for [`SPIN_NS`]. Returns whether something is there. Not where processors are
    /// short, nor where the program waits for nothing: Open MPI 4 reads its queue again at once after each
    /// message, and would be delayed before it sends the answer.
    ///
    /// With a slot come the lines of a short payload that is expected ([`Incoming::expect_payload`]): asked for after it, they would
    /// take a transfer more.
    #[inline(never)]
    fn spin(&self, berth: &Berth) -> bool {
        if berth.crowded || !(self.matching.has_waiting() || self.operations.has_any()) {
            return false;
        }
        let Spin { polls, hinted } = self.spin_plan;
        (0..polls).any(|_| {
            // The caller has just polled them once.
            if hinted {
                std::hint::spin_loop();
            }
            std::hint::black_box(&berth.hot).iter().any(|number| {
                let Some(Some(lane)) = berth.incoming.get(*number as usize) else { return false };
                lane.expect_payload();
                lane.arrived().is_some()
            })
        })
    }

    /// One round of progress: hot lanes, then what waits for room, then the activity lines if it is their turn.
    #[inline]
    fn advance<S: Sink>(&mut self, berth: &mut Berth, sink: &mut S) -> bool {
        let mut moved = false;
        let mut k = 0;
        self.watch.begin_round();
        while let Some(number) = berth.hot.get(k).copied() {
            moved |= self.poll(berth, number, sink);
            k += 1;
        }
        if !self.busy.is_empty() {
            moved |= self.pump(berth);
            self.answer(berth);
        }
        self.ticks = self.ticks.wrapping_add(1);
        if self.ticks >= berth.next_activity {
            moved |= self.poll_activity(berth);
        }
        if moved && berth.asleep.is_some() {
            berth.wake_all();
        }
        self.watch.end_round();
        moved
    }

    /// Polls the activity lines, and visits the senders that they lead to.
    #[inline(never)]
    fn poll_activity(&mut self, berth: &mut Berth) -> bool {
        let mut moved = false;
        // First, since it finds peers that have come, which may have announced something.
        if self.ticks >= berth.next_slow {
            berth.next_slow = self.ticks + SLOW_EVERY;
            moved |= self.slow(berth);
        }
        for at in 0..berth.roster.peers().len() {
            let senders = berth.roster.peers_mut()[at].announced();
            if !senders.is_none() {
                moved |= self.visit(berth, at, senders);
            }
        }
        if !berth.waiters.is_empty() {
            self.take_requests(berth);
        }
        let soon = moved || !berth.waiters.is_empty();
        berth.activity_every = if soon { 1 } else { (2 * berth.activity_every).min(ACTIVITY_EVERY) };
        berth.next_activity = if berth.hot.is_empty() { 0 } else { self.ticks + berth.activity_every };
        moved
    }

    /// What need not be done often. Returns whether there is more to take or to do than before.
    pub(super) fn slow(&mut self, berth: &mut Berth) -> bool {
        let there = |this: &Self, berth: &Berth| (this.completions.len(), berth.hot.len(), this.busy.len());
        let before = there(self, berth);
        self.check_region(berth);
        self.retry_accepts(berth);
        self.cool_down(berth);
        self.finish_closing(berth);
        self.check_accepts(berth);
        self.give_back_chunks(berth);
        self.settle(berth);
        let after = there(self, berth);
        after.0 > before.0 || after.1 > before.1 || after.2 > before.2
    }

    /// Takes what has arrived on one lane.
    #[inline]
    pub(super) fn poll<S: Sink>(&mut self, berth: &mut Berth, number: u32, sink: &mut S) -> bool {
        let Some(Some(lane)) = berth.incoming.get_mut(number as usize) else { return false };
        let Some(head) = lane.arrived() else { return false };
        let source = lane.peer;
        if self.peers[source.0 as usize].backlog.owed > MOST_REPLIES {
            return false;
        }
        lane.last = self.ticks;
        self.take_batch(berth, number, source, head, sink)
    }

    /// Takes messages, the first of which is known to be there. Returns whether anything was done.
    #[inline]
    fn take_batch<S: Sink>(
        &mut self,
        berth: &mut Berth,
        number: u32,
        source: PeerId,
        first: u64,
        sink: &mut S,
    ) -> bool {
        let mut head = Some(first);
        let mut taken = 0;
        while taken < BATCH
            && let Some(found) = head
        {
            step(Step::MessageSeen);
            let Some(Some(lane)) = berth.incoming.get_mut(number as usize) else { return true };
            let outcome = match wire::kind_of(found) {
                kind::INLINE => self.take_inline(source, Inline { slot: lane.next(), head: found }, sink),
                kind::EAGER => self.take_eager(lane, found, sink),
                kind::CHUNK => self.take_piece(berth, number, source, found),
                _ => self.take(lane, found),
            };
            match outcome {
                Ok(()) => {}
                // The lane fills and its sender finds no room, until receives have taken what is kept.
                Err(Stop::NoMemory) => break,
                Err(Stop::Unmapped(errno)) => {
                    if self.leave_unmapped(errno) {
                        break;
                    }
                    self.lose_unmapped(berth, source);
                    return true;
                }
                Err(Faulty) => {
                    self.lose_faulty(berth, source);
                    return true;
                }
            }
            self.answer(berth);
            // The message may have ended the lane.
            let Some(Some(lane)) = berth.incoming.get_mut(number as usize) else { return true };
            step(Step::MessageTaken);
            lane.advance();
            head = lane.arrived();
            taken += 1;
        }
        step(Step::Unreleased);
        if let Some(Some(lane)) = berth.incoming.get_mut(number as usize) {
            lane.release();
        }
        taken > 0
    }

    /// Whether what was copied out of a sender's memory was the sender's (P5).
    #[inline]
    pub(super) fn still_lives(&self, source: PeerId) -> bool {
        self.peers[source.0 as usize].still_lives()
    }

    /// Takes a `CHUNK`. It is given back by itself, so that the sender's next copy overlaps with ours.
    #[inline(never)]
    fn take_piece(&mut self, berth: &mut Berth, number: u32, source: PeerId, head: u64) -> Result<(), Stop> {
        let Some(Some(lane)) = berth.incoming.get_mut(number as usize) else { return Err(Faulty) };
        let message = &lane.next().message(head);
        let payload = Payload::within(&lane.section, message[4], message[3])?;
        self.take_chunk(source, message, &payload)?;
        lane.release_through();
        // Without a fence a request may be overlooked here; its announcement leads to it later.
        self.take_request(berth, number);
        step(Step::ChunkReleased);
        Ok(())
    }

    /// Takes any other message of a lane.
    #[inline(never)]
    fn take(&mut self, lane: &Incoming, head: u64) -> Result<(), Stop> {
        let (source, section, flags) = (lane.peer, &lane.section, wire::flags_of(head));
        let message = &lane.next().message(head);
        match wire::kind_of(head) {
            kind::READY => self.take_ready(source, section, message, flags),
            kind::CLEAR => self.take_clear(source, message, flags),
            kind::PAGES => self.take_pages(source, section, message, flags),
            kind::AGAIN => self.take_again(source, message),
            kind::DONE => self.take_done(source, message),
            // An endpoint that is being closed answers no requests, which could keep it open for ever. The
            // initiator learns that it is gone.
            kind::READ | kind::WRITE | kind::WRITE_READY | kind::ATOMIC if self.leaving => Ok(()),
            kind::READ => self.take_read(source, message),
            kind::WRITE => {
                let payload = Payload::in_data_ring(section, message[5], message[4])?;
                self.take_write(source, message, flags, &payload)
            }
            kind::WRITE_READY => self.take_write_ready(source, message, flags),
            kind::ATOMIC => {
                let (operands, compares) = (message[6] & 0xffff_ffff, message[6] >> 32);
                let payload = Payload::within(section, message[5], operands + compares)?;
                self.take_atomic(source, message, &payload)
            }
            kind::RESULT => {
                let payload = Payload::within(section, message[4], message[3])?;
                self.take_result(source, message, &payload)
            }
            _ => Err(Faulty),
        }
    }
}
