//! What waits for room in a lane: the protocol's replies, and the caller's posts behind them.
//!
//! A post that finds no room is queued and not refused: its message is built, its payload stays where the
//! caller has it (or is copied, if the post is an inject), and the send completes when it has gone. Replies
//! go first, since a sender that is owed too many is not read. The queue is bounded by memory, and by
//! [`super::Config::backlog_bytes`]; beyond that posts are refused.
//!
//! A sender that is faster than its receiver for long would fill the memory. So once [`LONG`] posts are
//! queued, each further post waits for a moment while the receiver takes messages. A receiver that takes
//! none, since it computes, delays no post.

use std::collections::{TryReserveError, VecDeque};

use isthmus_lockfree::slot::Message;
use isthmus_region::counters::{Counter, LaneCounter};
use isthmus_region::local::LocalBuf;

use super::table::Operation;
use super::{Because, Berth, Core};
use crate::lane::{Outgoing, Size};
use crate::matching::Bufs;
use crate::types::{Completion, PeerId, PostError};
use crate::wire::{self, flag, kind};

/// Queued posts to one receiver, from which on the next post waits for it for a moment.
const LONG: usize = 4096;
/// Polls during that moment, each a load and a hint to the processor.
const POLLS: u32 = 100;
/// An empty queue keeps memory for this many entries.
const KEPT: usize = 64;

/// Payload that is to go into the data ring with its message.
#[derive(Debug)]
pub(super) enum Payload {
    /// There is none.
    None,
    /// In the caller's buffers, which are ours until the post completes.
    Lent(Bufs),
    /// Copied.
    Copied(Box<[u8]>),
}

impl Payload {
    fn of(bufs: &[LocalBuf], copied: bool) -> Result<Self, TryReserveError> {
        if !copied {
            return Ok(Self::Lent(Bufs::new(bufs)));
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(bufs.iter().map(|buf| buf.len()).sum())?;
        bufs.iter().for_each(|buf| buf.append_to(&mut bytes));
        Ok(Self::Copied(bytes.into()))
    }

    /// Whether it is copied from the caller's buffers only when its message goes.
    pub(super) fn is_lent(&self) -> bool {
        matches!(self, Self::Lent(_))
    }

    /// Its length, if it needs a place in the data ring.
    fn len(&self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Lent(bufs) => Some(bufs.len()),
            Self::Copied(bytes) => Some(bytes.len() as u64),
        }
    }
}

/// A message that waits for room.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) message: Message,
    /// Words of the message.
    pub(super) count: usize,
    pub(super) payload: Payload,
    pub(super) because: Because,
    /// The completion, once the message has gone.
    pub(super) then: Option<Completion>,
}

impl Queued {
    /// The operation of ours that ends with `DONE`, if the payload is to be confirmed.
    fn awaited(&self) -> Option<u64> {
        match wire::kind_of(self.message[0]) {
            kind::EAGER if wire::flags_of(self.message[0]) & flag::ACK != 0 => Some(self.message[5]),
            kind::WRITE => Some(self.message[1]),
            _ => None,
        }
    }

    /// Bytes that it takes of the process's memory.
    fn bytes(&self) -> u64 {
        Self::bytes_with(&self.payload)
    }

    fn bytes_with(payload: &Payload) -> u64 {
        let further = match payload {
            Payload::Copied(bytes) => bytes.len(),
            Payload::Lent(Bufs::Many(bufs)) => size_of_val::<[LocalBuf]>(bufs),
            _ => 0,
        };
        // A queue that has grown may have twice the room of its entries, and most posts have an operation,
        // too.
        (2 * size_of::<Self>() + size_of::<Operation>() + further) as u64
    }
}

/// What waits for room in the lane to one remote endpoint.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Length of both queues; the way of a short message reads this alone.
    count: usize,
    replies: VecDeque<Queued>,
    posts: VecDeque<Queued>,
    /// Replies that are [`Because::Asked`].
    pub(super) owed: usize,
    /// Read position at which a post last waited and the receiver took nothing.
    stood_at: Option<u64>,
}

impl Backlog {
    /// Whether nothing waits.
    #[inline(always)] // on the way of a short message
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many wait.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The next one to go, and whether it is a post.
    fn first(&self) -> Option<(&Queued, bool)> {
        self.replies.front().map(|first| (first, false)).or(self.posts.front().map(|first| (first, true)))
    }

    fn push_reply(&mut self, reply: Queued) {
        self.owed += usize::from(reply.because == Because::Asked);
        self.replies.push_back(reply);
        self.count += 1;
    }

    fn push_post(&mut self, post: Queued) {
        self.posts.push_back(post);
        self.count += 1;
    }

    fn pop(&mut self) -> Option<Queued> {
        let reply = self.replies.pop_front();
        let next = if let Some(reply) = reply {
            self.owed -= usize::from(reply.because == Because::Asked);
            Some(reply)
        } else {
            let post = self.posts.pop_front();
            if self.posts.is_empty() && self.posts.capacity() > KEPT {
                self.posts = VecDeque::new();
            }
            post
        };
        self.count -= usize::from(next.is_some());
        next
    }

    /// Drops the replies: their receiver is gone.
    fn drop_replies(&mut self) {
        self.count -= self.replies.len();
        (self.replies, self.owed) = (VecDeque::new(), 0);
    }
}

impl Berth {
    /// Wakes our own sleeping threads: when they fell asleep they did not ask for the room that is needed
    /// now.
    fn wake_sleepers(&mut self) {
        if self.asleep.is_some() {
            self.wake_all();
        }
    }
}

impl Core {
    /// Notes a reply. It goes with the next [`Core::answer`], or as soon as there is room after that.
    pub(super) fn reply(
        &mut self,
        to: PeerId,
        message: Message,
        count: usize,
        payload: Option<Box<[u8]>>,
        because: Because,
    ) {
        let payload = payload.map_or(Payload::None, Payload::Copied);
        let reply = Queued { message, count, payload, because, then: None };
        self.peers[to.0 as usize].backlog.push_reply(reply);
        crate::fault::step(crate::fault::Step::ReplyOwed);
        self.owe(to);
    }

    /// Notes that a reply or a pipeline to `to` has just begun.
    pub(super) fn owe(&mut self, to: PeerId) {
        if self.owed.last() != Some(&to) {
            self.owed.push(to);
        }
    }

    /// Sends what has begun since the last call, as far as there is room.
    #[inline]
    pub(super) fn answer(&mut self, berth: &mut Berth) {
        if !self.owed.is_empty() {
            self.answer_now(berth);
        }
    }

    #[inline(never)]
    fn answer_now(&mut self, berth: &mut Berth) {
        while let Some(to) = self.owed.pop() {
            let peer = &self.peers[to.0 as usize];
            if !peer.pulls.is_empty() {
                // A piece in each round of progress, and not with each message that comes. A thread that sleeps makes those rounds.
                self.mark_busy(to);
                berth.wake_sleepers();
            }
            if !self.peers[to.0 as usize].pushes.is_empty() {
                self.mark_busy(to);
                self.pump_peer(berth, to);
            } else if !self.flush_replies(berth, to) {
                self.mark_busy(to);
                berth.wake_sleepers();
            }
        }
    }

    /// Counts a post to `to` that found no room, and takes memory for it. Returns the payload to queue:
    /// `bufs` as they are, or `copied`; [`Payload::None`] if `bufs` is empty and `copied`.
    ///
    /// # Errors
    /// [`PostError::Again`]: there is no memory.
    #[cold]
    pub(super) fn make_space(
        &mut self,
        berth: &mut Berth,
        to: PeerId,
        bufs: &[LocalBuf],
        copied: bool,
    ) -> Result<Payload, PostError> {
        self.tally.add(Counter::Stalls, 1);
        self.peers[to.0 as usize].sent.add(LaneCounter::Stalls, 1);
        self.wait_for_receiver(berth, to);
        if self.peers[to.0 as usize].path.is_gone() {
            // The wait found that it is faulty.
            return Err(PostError::PeerGone);
        }
        let payload = if bufs.is_empty() && copied { Ok(Payload::None) } else { Payload::of(bufs, copied) };
        let posts = &mut self.peers[to.0 as usize].backlog.posts;
        let most = self.config.backlog_bytes.saturating_sub(self.backlog_bytes);
        match payload {
            Ok(payload) if Queued::bytes_with(&payload) <= most && posts.try_reserve(1).is_ok() => {
                Ok(payload)
            }
            _ => {
                self.refused = true;
                Err(PostError::Again)
            }
        }
    }

    /// Queues a post for which [`Core::make_space`] found memory.
    #[cold]
    #[inline(never)]
    pub(super) fn queue(
        &mut self,
        berth: &mut Berth,
        to: PeerId,
        message: &Message,
        count: usize,
        payload: Payload,
        then: Option<Completion>,
    ) {
        let post = Queued { message: *message, count, payload, because: Because::Posted, then };
        self.backlog_bytes += post.bytes();
        self.peers[to.0 as usize].backlog.push_post(post);
        self.mark_busy(to);
        berth.wake_sleepers();
    }

    /// Waits for a moment if much is queued and the receiver takes messages.
    fn wait_for_receiver(&mut self, berth: &mut Berth, to: PeerId) {
        let position = |this: &Self| this.peers[to.0 as usize].path.lane().map(Outgoing::read_seen);
        let before = position(self);
        let backlog = &self.peers[to.0 as usize].backlog;
        if backlog.posts.len() < LONG || before.is_none() || backlog.stood_at == before {
            return;
        }
        for _ in 0..POLLS {
            self.flush_backlog(berth, to);
            if position(self) != before {
                return;
            }
            std::hint::spin_loop();
        }
        self.peers[to.0 as usize].backlog.stood_at = before;
    }

    /// Longest payload that goes to `to` through the data ring; while there is no lane, the limit of the
    /// smallest one.
    #[inline]
    pub(super) fn eager_bytes(&self, to: PeerId) -> u64 {
        let lane = self.peers[to.0 as usize].path.lane();
        lane.map_or(Size::RESERVE.data_bytes / 2, Outgoing::eager_bytes).min(self.config.eager_bytes)
    }

    /// Sends the replies that wait, in order. Returns whether none is left.
    pub(super) fn flush_replies(&mut self, berth: &mut Berth, to: PeerId) -> bool {
        loop {
            match self.peers[to.0 as usize].backlog.first() {
                Some((_, false)) => {}
                _ => return true,
            }
            if !self.push_first(berth, to) {
                return self.peers[to.0 as usize].backlog.replies.is_empty();
            }
        }
    }

    /// Sends the replies and posts that wait, in order. Returns whether none is left.
    pub(super) fn flush_backlog(&mut self, berth: &mut Berth, to: PeerId) -> bool {
        while !self.peers[to.0 as usize].backlog.is_empty() {
            if !self.push_first(berth, to) {
                return self.peers[to.0 as usize].backlog.is_empty();
            }
        }
        true
    }

    /// Sends the first reply, else the first post. Returns whether there was room and the receiver lives.
    fn push_first(&mut self, berth: &mut Berth, to: PeerId) -> bool {
        let peer = &mut self.peers[to.0 as usize];
        if !peer.lives() {
            // Posts fail once the region says that it is gone, as all that waits for it does.
            peer.backlog.drop_replies();
            return false;
        }
        if peer.path.lane().is_none() && self.open_lane(berth, to).is_err() {
            return false;
        }
        let peer = &mut self.peers[to.0 as usize];
        let Some(out) = peer.path.lane_mut() else { return false };
        let Ok(ready) = out.has_room() else {
            self.lose_faulty(berth, to);
            return false;
        };
        if !ready {
            if !out.is_accepted() {
                self.check_accept(berth, to);
            }
            return false;
        }
        let mut offset = None;
        if let Some((first, _)) = peer.backlog.first()
            && let Some(len) = first.payload.len()
        {
            match out.take_data(len) {
                Ok(Some(at)) => {
                    // Cannot fail: the data ring is ours and was checked when the lane was made.
                    let section = berth.member.section();
                    let _ = match &first.payload {
                        Payload::None => Ok(()),
                        Payload::Copied(bytes) => section.fill_bytes("data ring", at, bytes),
                        Payload::Lent(bufs) => {
                            bufs.pieces(0, len, |done, piece| section.fill("data ring", at + done, piece))
                        }
                    };
                    offset = Some(at);
                }
                Ok(None) => {
                    if !out.is_accepted() {
                        self.check_accept(berth, to);
                    }
                    return false;
                }
                Err(_) => {
                    self.lose_faulty(berth, to);
                    return false;
                }
            }
        }
        let is_post = peer.backlog.replies.is_empty();
        let Some(mut next) = peer.backlog.pop() else { return false };
        if is_post {
            self.backlog_bytes = self.backlog_bytes.saturating_sub(next.bytes());
        }
        if let Some(at) = offset {
            next.message[wire::offset_word(next.message[0])] = at;
        }
        let announced = out.push(&next.message, next.count);
        if next.payload.is_lent()
            && let Some(id) = next.awaited()
            && let Some(Operation::Await { sending, .. }) = self.operations.get(id, to)
        {
            *sending = false;
        }
        if is_post {
            let (len, counter) = match wire::kind_of(next.message[0]) {
                kind::INLINE => (Some(wire::inline_len(next.message[0]) as u64), None),
                kind::EAGER => (Some(next.message[3]), Some(Counter::Eager)),
                kind::READY => (Some(next.message[3]), Some(Counter::Rendezvous)),
                _ => (None, None),
            };
            out.count_bytes(len.unwrap_or(0));
            if let Some(counter) = counter {
                self.tally.add(counter, 1);
            }
        }
        if announced {
            self.ring_receiver(berth, to);
        }
        if let Some(then) = next.then {
            self.completions.push_back(then);
            berth.wake_sleepers();
        }
        true
    }

    /// Drops the post of operation `id`, which has ended before its message went.
    pub(super) fn drop_post(&mut self, to: PeerId, id: u64) {
        let backlog = &mut self.peers[to.0 as usize].backlog;
        let Some(at) = backlog.posts.iter().position(|post| post.awaited() == Some(id)) else { return };
        if let Some(post) = backlog.posts.remove(at) {
            backlog.count -= 1;
            self.backlog_bytes = self.backlog_bytes.saturating_sub(post.bytes());
        }
    }

    /// Takes all that waits for a peer that is gone; returns the completions of its posts.
    pub(super) fn take_backlog(&mut self, of: PeerId) -> Vec<Completion> {
        let backlog = std::mem::take(&mut self.peers[of.0 as usize].backlog);
        let bytes: u64 = backlog.posts.iter().map(Queued::bytes).sum();
        self.backlog_bytes = self.backlog_bytes.saturating_sub(bytes);
        backlog.posts.into_iter().filter_map(|post| post.then).collect()
    }
}
