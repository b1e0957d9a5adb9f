//! Posted receives, and messages that arrived before their receive.
//!
//! Tagged and untagged messages have a queue of each kind. A receive takes the earliest message that fits, a
//! message the earliest receive; so the messages of one sender are matched in the order in which they were
//! sent, since they arrive in that order. The module `queue` finds the earliest entry of a long queue.

mod queue;

use std::collections::{HashMap, TryReserveError};

use isthmus_region::local::LocalBuf;

use crate::endpoint::Offer;
use crate::types::{PeerId, Selector, Ticket};
use crate::wire::INLINE_BYTES;
use queue::Queue;

/// A caller's buffers.
#[derive(Debug, Clone)]
pub enum Bufs {
    /// The common case.
    One(LocalBuf),
    /// Several, in order.
    Many(Box<[LocalBuf]>),
}

impl Bufs {
    /// A copy of the caller's list (not of the bytes).
    #[inline]
    pub fn new(bufs: &[LocalBuf]) -> Self {
        match bufs {
            [] => Self::One(LocalBuf::EMPTY),
            [one] => Self::One(*one),
            many => Self::Many(many.into()),
        }
    }

    /// All bytes together.
    pub fn len(&self) -> u64 {
        match self {
            Self::One(buf) => buf.len() as u64,
            Self::Many(bufs) => bufs.iter().map(|b| b.len() as u64).sum(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        match self {
            Self::One(buf) => buf.address(),
            Self::Many(bufs) => bufs.first().map_or(0, |b| b.address()),
        }
    }

    /// The buffer, where there is one alone.
    pub fn one(&self) -> Option<LocalBuf> {
        match self {
            Self::One(buf) => Some(*buf),
            Self::Many(_) => None,
        }
    }

    /// Calls `each` with the pieces that make up `len` bytes from `offset`, and their positions relative to `offset`.
    pub fn pieces<E>(
        &self,
        offset: u64,
        len: u64,
        mut each: impl FnMut(u64, LocalBuf) -> Result<(), E>,
    ) -> Result<(), E> {
        let all: &[LocalBuf] = match self {
            Self::One(buf) => std::slice::from_ref(buf),
            Self::Many(bufs) => bufs,
        };
        let (mut skip, mut left, mut done) = (offset, len, 0);
        for buf in all {
            if left == 0 {
                break;
            }
            let bytes = buf.len() as u64;
            if skip >= bytes {
                skip -= bytes;
                continue;
            }
            let take = left.min(bytes - skip);
            // Both are at most the buffer's length, which is a usize.
            let (from, count) = (usize::try_from(skip).unwrap_or(0), usize::try_from(take).unwrap_or(0));
            each(done, buf.part(from, count))?;
            (skip, left, done) = (0, left - take, done + take);
        }
        Ok(())
    }

    /// Copies `from` to `offset`, cut to what fits; returns the count.
    pub fn scatter(&self, offset: u64, from: &[u8]) -> u64 {
        if let (Self::One(buf), 0) = (self, offset) {
            return buf.write(from) as u64;
        }
        let mut count = 0;
        let _ = self.pieces::<()>(offset, from.len() as u64, |at, piece| {
            let at = usize::try_from(at).unwrap_or(0);
            count += piece.write(&from[at..]) as u64;
            Ok(())
        });
        count
    }
}

/// Where a matched message goes.
#[derive(Debug, Clone)]
pub enum Target {
    /// Into a receive's own buffers.
    Plain(Bufs),
    /// Into what is left of the multi-receive with this number.
    Multi(u32),
}

/// A posted receive.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// Which messages it takes.
    pub select: Selector,
    /// Where they go.
    pub target: Target,
    /// The caller's ticket.
    pub ticket: Ticket,
}

/// What is known of a message that has no receive yet.
#[derive(Debug)]
pub struct Arrived {
    /// Sender.
    pub source: PeerId,
    /// Tagged or not.
    pub tagged: bool,
    /// Tag.
    pub tag: u64,
    /// Data for the completion.
    pub data: Option<u64>,
    /// The payload, or where it is.
    pub body: Body,
}

/// A message's payload before its receive.
#[derive(Debug)]
pub enum Body {
    /// Short.
    Inline([u8; INLINE_BYTES], usize),
    /// Copied out of the lane.
    Bytes(Box<[u8]>),
    /// Announced; the sender waits for `CLEAR`.
    Ready(Ready),
    /// Was announced, and is gone with its sender.
    Lost,
}

/// An announcement.
#[derive(Debug, Clone, Copy)]
pub struct Ready {
    /// Bytes of the message.
    pub len: u64,
    /// The sender's operation.
    pub id: u64,
    /// The sender wants `DONE` at the end.
    pub ack: bool,
    /// Where in the sender's memory the payload is, if the receiver may copy it from there.
    pub offer: Option<Offer>,
    /// The sender can grant pages.
    pub pages: bool,
}

impl Arrived {
    /// Bytes of the message.
    pub fn len(&self) -> u64 {
        match &self.body {
            Body::Inline(_, len) => *len as u64,
            Body::Bytes(bytes) => bytes.len() as u64,
            Body::Ready(ready) => ready.len,
            Body::Lost => 0,
        }
    }

    /// Whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl queue::Keys for Waiting {
    fn mask(&self) -> Option<u64> {
        Some(!self.select.ignore)
    }

    fn tag(&self) -> u64 {
        self.select.tag
    }

    fn sources(&self) -> [Option<u32>; 2] {
        let from = queue::source(self.select.from.map(|p| p.0));
        [Some(from), None]
    }
}

impl queue::Keys for Arrived {
    fn mask(&self) -> Option<u64> {
        None
    }

    fn tag(&self) -> u64 {
        self.tag
    }

    fn sources(&self) -> [Option<u32>; 2] {
        [Some(queue::source(Some(self.source.0))), Some(queue::source(None))]
    }
}

#[inline]
fn fits(select: &Selector, source: PeerId, tag: u64) -> bool {
    (select.tag ^ tag) & !select.ignore == 0 && select.from.is_none_or(|from| from == source)
}

/// The queues of receives and of messages, tagged and untagged, and claimed messages.
#[derive(Debug, Default)]
pub struct Matching {
    waiting: [Queue<Waiting>; 2],
    arrived: [Queue<Arrived>; 2],
    /// How many messages of each sender are in `arrived`.
    arrived_from: Vec<u32>,
    claimed: HashMap<u64, Arrived>,
}

impl Matching {
    /// Adds a receive behind all others.
    #[inline(always)] // on the way of the usual receive
    pub fn post(&mut self, waiting: Waiting) {
        self.waiting[usize::from(waiting.select.tagged)].push(waiting);
    }

    /// The receive for a message in the most frequent case: the oldest receive fits, and has one buffer.
    #[inline(always)] // on the way of a short message
    pub fn find_simple(&self, tagged: bool, source: PeerId, tag: u64) -> Option<(LocalBuf, Ticket)> {
        match self.waiting[usize::from(tagged)].front() {
            Some(Waiting { select, target: Target::Plain(Bufs::One(buf)), ticket })
                if fits(select, source, tag) =>
            {
                Some((*buf, *ticket))
            }
            _ => None,
        }
    }

    /// Whether any receive waits for a message.
    pub fn has_waiting(&self) -> bool {
        self.waiting.iter().any(|queue| !queue.is_empty())
    }

    /// Drops the oldest receive, which [`Matching::find_simple`] found.
    #[inline(always)] // on the way of a short message
    pub fn drop_oldest(&mut self, tagged: bool) {
        self.waiting[usize::from(tagged)].forget_front();
    }

    /// Where the earliest receive for a message is; good until the next change.
    #[inline]
    pub fn position(&mut self, tagged: bool, source: PeerId, tag: u64) -> Option<usize> {
        let keys = [Some(source.0), None].map(queue::source);
        self.waiting[usize::from(tagged)].find_in_all(tag, keys, |w| fits(&w.select, source, tag))
    }

    /// The receive at a position.
    #[inline]
    pub fn waiting(&self, tagged: bool, at: usize) -> Option<&Waiting> {
        self.waiting[usize::from(tagged)].get(at)
    }

    /// Removes the receive at a position.
    #[inline]
    pub fn remove(&mut self, tagged: bool, at: usize) -> Option<Waiting> {
        self.waiting[usize::from(tagged)].remove(at)
    }

    /// Takes the earliest receive for a message. A multi-receive stays posted.
    pub fn take_waiting(&mut self, tagged: bool, source: PeerId, tag: u64) -> Option<Waiting> {
        let at = self.position(tagged, source, tag)?;
        match self.waiting(tagged, at) {
            Some(multi @ Waiting { target: Target::Multi(_), .. }) => Some(multi.clone()),
            _ => self.remove(tagged, at),
        }
    }

    /// Removes the multi-receive `number` from the queues.
    pub fn drop_multi(&mut self, number: u32) {
        for queue in &mut self.waiting {
            queue.retain(|w| !matches!(w.target, Target::Multi(n) if n == number));
        }
    }

    /// Keeps a message without a receive; takes it out of `arrived`. With `awaited` it does with the least
    /// memory.
    ///
    /// # Errors
    /// There is no memory for it; nothing was done.
    pub fn keep(&mut self, arrived: &mut Option<Arrived>, awaited: bool) -> Result<(), TryReserveError> {
        let Some(what) = arrived else { return Ok(()) };
        let (queue, source) = (&mut self.arrived[usize::from(what.tagged)], what.source.0 as usize);
        if awaited {
            queue.make_way()?
        } else {
            queue.make_room()?
        }
        if source >= self.arrived_from.len() {
            self.arrived_from.try_reserve(source + 1 - self.arrived_from.len())?;
            self.arrived_from.resize(source + 1, 0);
        }
        self.arrived_from[source] += 1;
        arrived.take().into_iter().for_each(|a| queue.push(a));
        Ok(())
    }

    fn position_of_arrived(&mut self, select: &Selector) -> Option<usize> {
        let queue = &mut self.arrived[usize::from(select.tagged)];
        let from = queue::source(select.from.map(|p| p.0));
        queue.find_in_one(!select.ignore, select.tag, from, |a| fits(select, a.source, a.tag))
    }

    /// The earliest kept message for a selector.
    pub fn find_arrived(&mut self, select: &Selector) -> Option<&Arrived> {
        let at = self.position_of_arrived(select)?;
        self.arrived[usize::from(select.tagged)].get(at)
    }

    /// Whether any message of this kind is kept.
    #[inline]
    pub fn has_arrived(&self, tagged: bool) -> bool {
        !self.arrived[usize::from(tagged)].is_empty()
    }

    /// Whether a message of this sender is kept.
    pub fn has_arrived_from(&self, source: PeerId) -> bool {
        self.arrived_from.get(source.0 as usize).is_some_and(|count| *count > 0)
    }

    /// Takes the earliest kept message for a selector.
    pub fn take_arrived(&mut self, select: &Selector) -> Option<Arrived> {
        let at = self.position_of_arrived(select)?;
        let taken = self.arrived[usize::from(select.tagged)].remove(at)?;
        self.arrived_from[taken.source.0 as usize] -= 1;
        Some(taken)
    }

    /// Sets a message aside under a caller's context. A message that was there under the same context is
    /// replaced, and returned.
    pub fn claim(&mut self, context: u64, arrived: Arrived) -> Option<Arrived> {
        self.claimed.insert(context, arrived)
    }

    /// Takes what was claimed.
    pub fn take_claimed(&mut self, context: u64) -> Option<Arrived> {
        self.claimed.remove(&context)
    }

    /// Takes the oldest posted receive of a context.
    pub fn cancel(&mut self, context: u64) -> Option<Waiting> {
        self.waiting.iter_mut().find_map(|queue| {
            let at = queue.position(|w| w.ticket.context == context)?;
            queue.remove(at)
        })
    }

    /// Drops announced messages of a peer that is gone, whose payload will never come; a claimed one stays, and is lost. Whole
    /// messages stay.
    pub fn forget(&mut self, source: PeerId) {
        let lost = |a: &Arrived| a.source == source && matches!(a.body, Body::Ready { .. });
        let mut left = 0;
        for queue in &mut self.arrived {
            queue.retain(|a| {
                left += u32::from(a.source == source && !lost(a));
                !lost(a)
            });
        }
        if let Some(count) = self.arrived_from.get_mut(source.0 as usize) {
            *count = left;
        }
        self.claimed.values_mut().filter(|a| lost(a)).for_each(|a| a.body = Body::Lost);
    }

    /// Takes all receives that are directed to `source`.
    pub fn take_directed(&mut self, source: PeerId) -> Vec<Waiting> {
        self.waiting.iter_mut().flat_map(|queue| queue.take_all(|w| w.select.from == Some(source))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected matches, found by linear search.
    #[derive(Default)]
    struct Plain {
        waiting: Vec<Selector>,
        arrived: Vec<(u32, u64, u64)>,
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, n: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % n
        }
    }

    fn waiting(select: Selector, context: u64) -> Waiting {
        let target = Target::Plain(Bufs::One(LocalBuf::EMPTY));
        Waiting { select, target, ticket: Ticket { context, flags: 0 } }
    }

    /// Long queues, many masks, cancels, deaths: always the same match as by linear search.
    #[test]
    fn long_queues_match_as_short_ones_do() {
        for seed in 1..40 {
            let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
            let mut matching = Matching::default();
            let mut plain = Plain::default();
            let mut contexts = Vec::new();
            let mut number = 0;
            let masks =
                [0, 0xf, 0xf0, 0xff, u64::MAX, 0x3 << 40, 1 << 7, 1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12];
            let kinds = if seed % 3 == 0 { 12 } else { 3 };
            // Phases in which one side runs ahead make long queues of the other kind.
            for step in 0..6000_u64 {
                number += 1;
                let ahead = (step / 1000) % 3;
                let receive = match ahead {
                    0 => random.below(10) < 8,
                    1 => random.below(10) < 2,
                    _ => random.below(2) == 0,
                };
                let tag = random.below(400);
                let source = PeerId(u32::try_from(random.below(5)).unwrap());
                if random.below(50) == 0 && !contexts.is_empty() {
                    let k = usize::try_from(random.below(contexts.len() as u64)).unwrap();
                    let context: u64 = contexts.swap_remove(k);
                    let found = matching.cancel(context).is_some();
                    let at = plain.waiting.iter().position(|w| w.tag >> 32 == context);
                    assert_eq!(found, at.is_some());
                    at.map(|at| plain.waiting.remove(at));
                } else if receive {
                    let ignore = masks[usize::try_from(random.below(kinds)).unwrap()];
                    let from = (random.below(2) == 0).then_some(source);
                    let select = Selector { tagged: true, from, tag, ignore };
                    let found = matching.take_arrived(&select).map(|a| a.data);
                    let at = plain.arrived.iter().position(|a| fits(&select, PeerId(a.0), a.1));
                    assert_eq!(
                        found,
                        at.map(|at| Some(plain.arrived.remove(at).2)),
                        "seed {seed}, step {step}"
                    );
                    if at.is_none() {
                        matching.post(waiting(select, number));
                        contexts.push(number);
                        // The context travels in bits that no tag here has; they are masked off below.
                        plain.waiting.push(Selector { tag: tag | (number << 32), ..select });
                    }
                } else {
                    let found = matching.take_waiting(true, source, tag).map(|w| w.ticket.context);
                    let plain_fit =
                        |w: &Selector| fits(&Selector { tag: w.tag & 0xffff_ffff, ..*w }, source, tag);
                    let at = plain.waiting.iter().position(plain_fit);
                    assert_eq!(
                        found,
                        at.map(|at| plain.waiting.remove(at).tag >> 32),
                        "seed {seed}, step {step}"
                    );
                    if at.is_none() {
                        let body = Body::Bytes(Box::default());
                        let arrived = Arrived { source, tagged: true, tag, data: Some(number), body };
                        matching.keep(&mut Some(arrived), number.is_multiple_of(3)).unwrap();
                        plain.arrived.push((source.0, tag, number));
                    }
                }
                let is_kept = plain.arrived.iter().any(|a| a.0 == source.0);
                assert_eq!(matching.has_arrived_from(source), is_kept, "seed {seed}, step {step}");
                if step % 1777 == 0 {
                    let gone = matching.take_directed(source).len();
                    let before = plain.waiting.len();
                    plain.waiting.retain(|w| w.from != Some(source));
                    assert_eq!(gone, before - plain.waiting.len());
                }
            }
        }
    }
}
