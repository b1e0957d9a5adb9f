//! A channel's link: the lines of both ends, what both directions keep, and how either ends.
//!
//! Each direction has a lock of its own, so any thread may read and any may write; neither lock is contended while one
//! thread reads and one writes. No thread sleeps while it holds one. A thread that takes both takes the writer's first.

mod reader;
mod suspend;
mod writer;

use std::sync::{Arc, Mutex};

use isthmus_lockfree::life::{Life, State as Living};
use isthmus_lockfree::ring::BadPosition;
use isthmus_lockfree::sleep;
use isthmus_lockfree::stream;
use isthmus_lockfree::sync::{ReadWord, Word};
use isthmus_region::roster::Record;
use isthmus_region::{Bytes, Listed, ReadOnly};

use crate::channel::Interest;
use crate::context::{Lingering, Shared};
use crate::error::Error;
use crate::event::{ChannelId, Event};
use crate::peer::Peer;
use crate::table::{Claim, End, at};
use crate::wait::lock;

use reader::Reader;
use writer::Writer;

/// A value of `channel::STOPPED`: its side reads no more.
pub(crate) const STOPPED: u64 = 1;
/// A value of `channel::STOPPED`: its side suspends the channel, and its partner is to stop writing.
const SUSPENDING: u64 = 2;

/// How a direction ended on this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    End,
    Closed,
    Died,
    Faulty(&'static str, BadPosition),
    Suspended,
}

/// The lines of both ends, and what both directions of a channel share.
pub(crate) struct Link {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: ChannelId,
    pub(crate) peer: Peer,
    /// The own end: its number in the table, and its life word's value while it is open.
    number: u32,
    own_life: u64,
    own: End,
    pub(crate) partner: End<ReadOnly>,
    partner_life: u64,
    /// The own ring, which this side writes, and its offset in the section.
    pub(crate) ring: Bytes,
    ring_at: u64,
    /// The program may have pieces of it in hand.
    _listed: Option<Listed>,
    pub(crate) partner_ring: Bytes<ReadOnly>,
    /// Bytes of a segment of the partner's ring: room is given back once the end of one was read.
    segment: u64,
    /// The partner's endpoint record.
    record: Record,
    /// Not 0 once an event on this side ends both directions: the next read or write finds out which.
    alarm: Word,
    pub(crate) reader: Mutex<Reader>,
    pub(crate) writer: Mutex<Writer>,
    pub(crate) state: Mutex<Watched>,
}

/// What belongs to neither direction.
#[derive(Default)]
pub(crate) struct Watched {
    pub(crate) interest: Interest,
    /// Whether the program was told that the partner is gone.
    told: bool,
    /// Whether this side has stopped writing to suspend the channel.
    pausing: bool,
    /// Whether the unread bytes were handed over.
    handed_over: bool,
}

/// A length or offset as a usize: [`Bytes`] checks offsets, and a length that the program gave was a usize.
#[inline(always)]
pub(crate) fn size(len: u64) -> usize {
    #[allow(clippy::cast_possible_truncation)]
    {
        len as usize
    }
}

impl Link {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        peer: Peer,
        own: (u32, End, u64),
        ring: (Bytes, u64),
        claim: &Claim,
        partner_ring: Bytes<ReadOnly>,
        record: Record,
    ) -> Arc<Self> {
        let own_bytes = ring.0.len();
        Arc::new(Self {
            shared: Arc::clone(shared),
            id: shared.next_channel(),
            peer,
            number: own.0,
            own_life: own.2,
            own: own.1,
            partner: claim.end.clone(),
            partner_life: claim.life,
            ring: ring.0,
            ring_at: ring.1,
            _listed: shared.member.section().list("ring of a channel", ring.1, own_bytes).ok(),
            partner_ring,
            segment: claim.segment_bytes,
            record,
            alarm: Word::new(0),
            reader: Mutex::new(Reader::new(claim.ring_bytes)),
            writer: Mutex::new(Writer::new(own_bytes)),
            state: Mutex::default(),
        })
    }

    pub(crate) fn error(&self, ended: Ended) -> Error {
        let peer = self.peer.clone();
        match ended {
            Ended::End => Error::End { peer },
            Ended::Closed => Error::Closed { peer },
            Ended::Died => Error::PeerDied { peer },
            Ended::Suspended => Error::Suspended { peer },
            Ended::Faulty(what, BadPosition { found, low, high }) => {
                Error::Faulty { peer, what, found, low, high }
            }
        }
    }

    #[inline]
    fn is_alive(&self) -> bool {
        self.record.lives()
    }

    /// For a partner that no longer lives: whether its endpoint was closed in good order.
    fn left_in_order(&self) -> bool {
        self.record.took_leave()
    }

    /// How a direction ends whose partner no longer lives.
    fn how_it_left(&self) -> Ended {
        if self.left_in_order() { Ended::Closed } else { Ended::Died }
    }

    /// Rings the partner, if `word` says that it sleeps.
    #[inline]
    fn ring_for(&self, word: &ReadWord, rung: &mut u64) {
        if let Some(bell) = sleep::who_to_ring(word, rung) {
            self.shared.ring(self.record.slot().0, bell);
        }
    }

    /// Wakes the threads of the partner that sleep at this channel.
    fn ring_both(&self) {
        for word in [self.partner.reader(at::SLEEP), self.partner.writer(at::ROOM)] {
            // This may ring twice for one sleep; that costs a wake-up for nothing, and this function is called seldom.
            self.ring_for(word, &mut 0);
        }
    }

    /// The channel's part of its context's progress: checks whether the partner is gone or asks to suspend.
    pub(crate) fn progress(&self) {
        let gone = !self.is_alive();
        if gone && !std::mem::replace(&mut lock(&self.state).told, true) {
            // First: an end of the stream that the partner wrote counts, though the partner is gone.
            let _ = self.poll(&mut lock(&self.reader));
            self.shared.tell(Event::Gone { channel: self.id, peer: self.peer.clone() });
            self.shared.sleeper.wake_all();
        }
        if gone {
            return;
        }
        if self.partner.writer(at::END).peek() != 0 {
            let mut core = lock(&self.reader);
            if core.positions.available() == 0 {
                let _ = self.poll(&mut core);
            }
        }
        let paused = self.partner.writer(at::PAUSED).peek() != 0;
        if self.partner.reader(at::STOPPED).peek() == SUSPENDING || paused {
            self.pause();
        }
        if paused && lock(&self.state).pausing {
            self.hand_over();
        }
    }

    /// Prepares for a poll of the context's descriptor; returns whether there is something to do already.
    pub(crate) fn arm(&self) -> bool {
        let interest = lock(&self.state).interest;
        let mut ready = false;
        if interest.read {
            ready |= self.arm_reader();
        }
        if interest.write {
            ready |= self.arm_writer();
        }
        ready
    }

    /// Whether the partner may write after [`Link::arm`] and not ring: it may not know yet that this end sleeps.
    pub(crate) fn is_unsure(&self) -> bool {
        lock(&self.state).interest.read && self.is_unanswered()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if !self.shared.is_ours() {
            return;
        }
        self.shut_write();
        self.stop_reading();
        let dead = Life { state: Living::Dead, ..Life::unpack(self.own_life) }.pack();
        // From here on the partner's ring is not read; `let_go` reads the partner's life after the fence (P19).
        stream::publish_life(self.own.life(), dead);
        let last = lock(&self.writer).positions.written();
        let lingering = Lingering {
            number: self.number,
            ring: Some((self.ring_at, self.ring.len())),
            last,
            partner: self.partner.clone(),
            partner_life: self.partner_life,
            record: self.record.clone(),
            refused: false,
        };
        let mut state = self.shared.state();
        self.shared.let_go(&mut state, lingering);
        self.shared.announce(&mut state, self.record.slot().0);
    }
}
