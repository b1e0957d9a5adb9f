//! A channel: a byte stream each way.
//!
//! What the two directions keep is behind a lock of its own each, so that any thread may read and any may write; it is
//! not contended as long as one reads and one writes. Neither lock is held while somebody sleeps.

use std::io::{IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use isthmus_lockfree::heat::{Heat, Thermostat, must_announce};
use isthmus_lockfree::life::{Life, State as Living, unchanged};
use isthmus_lockfree::ring::BadPosition;
use isthmus_lockfree::sleep::{self, Bell};
use isthmus_lockfree::stream::{self, pieces};
use isthmus_lockfree::sync::Word;
use isthmus_region::Bytes;
use isthmus_region::local::LocalBuf;
use isthmus_region::mapping::LineRef;
use isthmus_region::value::Value;

use crate::context::{Lingering, Shared};
use crate::error::{Error, Result};
use crate::event::{ChannelId, Event};
use crate::peer::Peer;
use crate::table::{Claim, End, at};
use crate::wait::{self, lock};

/// Reads in a row that found something, after which the writer is told that it need not look whether we sleep.
const WARM: u32 = 4;
/// A long write is published in so many parts of a ring, so that the reader begins before the writer has ended.
const PARTS: u64 = 4;

/// `channel::STOPPED`: nothing is read any more.
pub(crate) const STOPPED: u64 = 1;
/// `channel::STOPPED`: nothing is to be written, since the channel is being suspended.
const SUSPENDING: u64 = 2;

/// How a direction ended for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    End,
    Closed,
    Died,
    Faulty(&'static str, BadPosition),
    Suspended,
}

/// What a program that polls wants to know of a channel ([`Channel::watch`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interest {
    /// Bytes to be read, or the end of the stream.
    pub read: bool,
    /// Room to write.
    pub write: bool,
}

/// The two sides' lines, and what both directions of a channel share.
pub(crate) struct Link {
    shared: Arc<Shared>,
    id: ChannelId,
    peer: Peer,
    number: u32,
    own_life: u64,
    own: End,
    other: End,
    other_life: u64,
    ring: Bytes,
    ring_at: u64,
    other_ring: Bytes,
    segment: u64,
    /// The other context's endpoint record, and what it says while that lives.
    life: LineRef,
    alive: u64,
    /// Not 0 once something happened here that both directions are to notice.
    alarm: Word,
    reader: Mutex<Reader>,
    writer: Mutex<Writer>,
    state: Mutex<Watched>,
}

#[derive(Default)]
struct Watched {
    interest: Interest,
    told: bool,
    pausing: bool,
    handed_over: bool,
}

struct Reader {
    positions: stream::Reader,
    /// The write position up to which the bytes are known to be the other's own (P5).
    sure: u64,
    thermostat: Thermostat,
    streak: u32,
    sleeps: u64,
    sleepers: u32,
    armed: bool,
    /// The other's wait for room that it was rung for.
    rung: u64,
    ended: Option<Ended>,
}

struct Writer {
    positions: stream::Writer,
    answered: u64,
    rung: u64,
    sleeps: u64,
    sleepers: u32,
    armed: bool,
    reserved: u64,
    ended: Option<Ended>,
    paused: bool,
}

/// A byte stream to another member of the group, and one from it.
///
/// Any thread may use it at any time; one that reads and one that writes do not hinder each other. Dropping it closes it:
/// what was written is still delivered (see [`crate::Context`] for the end of a process), then the other side reads the
/// end of the stream, and what it writes from then on is refused.
///
/// # Source
/// The dissertation's `ivc_write` and `ivc_read`, 6.1.2.
pub struct Channel {
    link: Arc<Link>,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel")
            .field("id", &self.link.id)
            .field("peer", &self.link.peer)
            .finish_non_exhaustive()
    }
}

/// A piece of the other side's ring with bytes to be read. Its memory is the other's: it is copied from, never referred
/// to, and [`Channel::release`] says whether what was copied counts.
#[derive(Debug, Clone, Copy)]
pub struct ReadPiece<'a> {
    bytes: &'a Bytes,
    at: u64,
    len: u64,
}

/// A piece of the own ring to be written. Others see it after [`Channel::commit`].
#[derive(Debug, Clone, Copy)]
pub struct WritePiece<'a> {
    bytes: &'a Bytes,
    at: u64,
    len: u64,
}

macro_rules! piece {
    ($name:ident) => {
        impl $name<'_> {
            /// Bytes of the piece.
            pub fn len(&self) -> usize {
                usize::try_from(self.len).unwrap_or(0)
            }

            /// Whether there are none.
            pub fn is_empty(&self) -> bool {
                self.len == 0
            }

            /// Address of its first byte in this process, for programs that work in place. The other side may change
            /// bytes to be read at any time, by mistake or not: nothing may be believed of them that is read twice.
            pub fn address(&self) -> u64 {
                self.bytes.address(self.at).unwrap_or(0)
            }

            /// The part from `offset` on, cut to what there is.
            fn part(&self, offset: usize, len: usize) -> (u64, usize) {
                let offset = (offset as u64).min(self.len);
                let len = len.min(usize::try_from(self.len - offset).unwrap_or(0));
                (self.at + offset, len)
            }
        }
    };
}

piece!(ReadPiece);
piece!(WritePiece);

impl ReadPiece<'_> {
    /// Copies bytes from `offset` of the piece on, as many as there are and fit; gives the count.
    pub fn copy_to(&self, offset: usize, into: &mut [u8]) -> usize {
        let (at, len) = self.part(offset, into.len());
        self.bytes.get(at, &mut into[..len]).map_or(0, |()| len)
    }

    /// The value of up to 256 bytes at `offset` of the piece, little-endian; `None` where not all of it is in there.
    #[inline]
    pub fn get<T: Value>(&self, offset: usize) -> Option<T> {
        let (at, len) = self.part(offset, T::BYTES);
        if len == T::BYTES { self.bytes.value(at).ok() } else { None }
    }
}

impl WritePiece<'_> {
    /// Copies bytes to `offset` of the piece, as many as fit; gives the count.
    pub fn copy_from(&self, offset: usize, from: &[u8]) -> usize {
        let (at, len) = self.part(offset, from.len());
        self.bytes.put(at, &from[..len]).map_or(0, |()| len)
    }

    /// Writes a value of up to 256 bytes to `offset` of the piece, little-endian: a program that computes what it sends need
    /// keep it nowhere else. Gives whether there was room; nothing is written where there is none.
    #[inline]
    pub fn set<T: Value>(&self, offset: usize, value: T) -> bool {
        let (at, len) = self.part(offset, T::BYTES);
        len == T::BYTES && self.bytes.put_value(at, value).is_ok()
    }
}

/// Offsets are checked by [`Bytes`]; a length of the program's fits a usize.
#[inline(always)]
fn size(len: u64) -> usize {
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
        other_ring: Bytes,
        life: (LineRef, u64),
    ) -> Arc<Self> {
        let own_bytes = ring.0.len();
        Arc::new(Self {
            shared: Arc::clone(shared),
            id: shared.next_channel(),
            peer,
            number: own.0,
            own_life: own.2,
            own: own.1,
            other: claim.end.clone(),
            other_life: claim.life,
            ring: ring.0,
            ring_at: ring.1,
            other_ring,
            segment: claim.segment_bytes,
            life: life.0,
            alive: life.1,
            alarm: Word::new(0),
            reader: Mutex::new(Reader {
                positions: stream::Reader::new(claim.ring_bytes),
                sure: 0,
                thermostat: Thermostat::default(),
                streak: 0,
                sleeps: 0,
                sleepers: 0,
                armed: false,
                rung: 0,
                ended: None,
            }),
            writer: Mutex::new(Writer {
                positions: stream::Writer::new(own_bytes),
                answered: 0,
                rung: 0,
                sleeps: 0,
                sleepers: 0,
                armed: false,
                reserved: 0,
                ended: None,
                paused: false,
            }),
            state: Mutex::default(),
        })
    }

    fn error(&self, ended: Ended) -> Error {
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
        self.life.words[0].peek() == self.alive
    }

    /// Whether the other context's end was closed in good order, once it is no longer alive.
    fn took_leave(&self) -> bool {
        let life = Life::unpack(self.life.words[0].get());
        life.state == Living::Free && life.incarnation == Life::unpack(self.alive).incarnation
    }

    /// Ends reading.
    #[cold]
    fn end_reading(&self, core: &mut Reader, ended: Ended) -> Error {
        core.ended = Some(ended);
        if let Ended::Faulty(..) = ended {
            self.alarm.set(1);
        }
        self.error(ended)
    }

    /// The other context is gone: everything up to `sure` was its own.
    #[cold]
    fn lose(&self, core: &mut Reader) -> Error {
        let all = core.positions.read() == core.sure && self.took_leave();
        self.end_reading(core, if all { Ended::End } else { Ended::Died })
    }

    /// Looks what has come. What is an error then is one for ever; it comes after all bytes.
    fn look(&self, core: &mut Reader) -> Result<()> {
        if let Some(ended) = core.ended {
            return Err(self.error(ended));
        }
        if let Err(bad) = core.positions.refresh(self.other.writer(at::WRITE)) {
            if !unchanged(&self.life.words[0], self.alive) {
                return Err(self.lose(core));
            }
            return Err(self.end_reading(core, Ended::Faulty("channel.WRITE", bad)));
        }
        if core.positions.available() == 0 {
            return self.look_for_end(core);
        }
        Ok(())
    }

    /// Nothing is there: whether nothing will come.
    fn look_for_end(&self, core: &mut Reader) -> Result<()> {
        let (end, paused) = (self.other.writer(at::END).get(), self.other.writer(at::PAUSED).get());
        if end != 0 || paused != 0 {
            // What was written before that is visible now (P17).
            if let Err(bad) = core.positions.refresh(self.other.writer(at::WRITE)) {
                if !unchanged(&self.life.words[0], self.alive) {
                    return Err(self.lose(core));
                }
                return Err(self.end_reading(core, Ended::Faulty("channel.WRITE", bad)));
            }
        }
        if !unchanged(&self.life.words[0], self.alive) {
            return Err(self.lose(core));
        }
        core.sure = core.positions.write_seen();
        if (end == 0 && paused == 0) || core.positions.available() > 0 {
            return Ok(());
        }
        if end == 0 {
            return Err(self.end_reading(core, Ended::Suspended));
        }
        let read = core.positions.read();
        if end - 1 != read {
            let bad = BadPosition { found: end, low: read + 1, high: read + 1 };
            return Err(self.end_reading(core, Ended::Faulty("channel.END", bad)));
        }
        Err(self.end_reading(core, Ended::End))
    }

    /// Reads up to `want` bytes; `put` is given a place in the ring, an offset in the target and a length.
    #[inline]
    fn read_with(&self, core: &mut Reader, want: u64, mut put: impl FnMut(u64, u64, u64)) -> Result<u64> {
        if core.positions.available() < want || core.ended.is_some() {
            self.look(core)?;
        }
        let len = core.positions.available().min(want);
        if len == 0 {
            core.streak = 0;
            return Ok(0);
        }
        let [first, second] = pieces(core.positions.read(), len, core.positions.capacity());
        put(first.0, 0, first.1);
        if second.1 > 0 {
            put(second.0, first.1, second.1);
        }
        self.took(core, len)?;
        Ok(len)
    }

    /// Counts bytes as read, if they were the other's own.
    #[inline]
    fn took(&self, core: &mut Reader, len: u64) -> Result<()> {
        if !unchanged(&self.life.words[0], self.alive) {
            return Err(self.lose(core));
        }
        core.sure = core.positions.write_seen();
        let held = core.positions.held();
        core.positions.advance(len);
        if core.armed {
            core.armed = false;
            if core.sleepers == 0 {
                sleep::announce_awake(self.own.reader(at::SLEEP));
            }
        }
        if core.positions.release(self.own.read(), self.segment) {
            // A writer that sleeps said so in the line that was just read, or has filled the ring.
            let room = self.other.writer(at::ROOM);
            if held * 2 >= core.positions.capacity() || room.peek() != 0 {
                self.ring_for(room, &mut core.rung);
            }
        }
        if core.thermostat.heat() != Heat::Hot && core.sleepers == 0 {
            core.streak += 1;
            if core.streak >= WARM {
                core.thermostat.warm(self.own.reader(at::HEAT));
            }
        }
        Ok(())
    }

    /// Rings the other side, if it says in `word` that it sleeps.
    #[inline]
    fn ring_for(&self, word: &Word, rung: &mut u64) {
        if let Some(bell) = sleep::who_to_ring(word, rung) {
            self.shared.ring(self.peer.address.slot, bell);
        }
    }

    /// What keeps from writing for ever, or from now on.
    #[inline]
    fn may_write(&self, core: &mut Writer) -> Result<bool> {
        if let Some(ended) = core.ended {
            return if ended == Ended::Suspended { Ok(false) } else { Err(self.error(ended)) };
        }
        let stopped = self.other.reader(at::STOPPED).peek();
        if self.is_alive() && stopped == 0 && self.alarm.peek() == 0 {
            return Ok(true);
        }
        self.look_why(core, stopped)
    }

    #[cold]
    fn look_why(&self, core: &mut Writer, stopped: u64) -> Result<bool> {
        if !unchanged(&self.life.words[0], self.alive) {
            let ended = if self.took_leave() { Ended::Closed } else { Ended::Died };
            core.ended = Some(ended);
            return Err(self.error(ended));
        }
        if let Some(faulty @ Ended::Faulty(..)) = self.reading_ended() {
            core.ended = Some(faulty);
            return Err(self.error(faulty));
        }
        match stopped {
            0 => Ok(true),
            SUSPENDING => {
                self.pause_writing(core);
                Ok(false)
            }
            _ => {
                core.ended = Some(Ended::Closed);
                Err(self.error(Ended::Closed))
            }
        }
    }

    fn reading_ended(&self) -> Option<Ended> {
        // Never the other way round: who reads takes no lock of who writes.
        lock(&self.reader).ended
    }

    fn pause_writing(&self, core: &mut Writer) {
        if !core.paused {
            core.paused = true;
            core.reserved = 0;
            core.ended.get_or_insert(Ended::Suspended);
            self.own.writer(at::PAUSED).set(core.positions.written() + 1);
            lock(&self.state).pausing = true;
        }
    }

    /// Looks for room, if there is less than `wanted` by what is known.
    #[inline]
    fn make_room(&self, core: &mut Writer, wanted: u64) -> Result<u64> {
        if core.positions.room() < wanted
            && let Err(bad) = core.positions.refresh(self.own_read_position())
        {
            let dead = !unchanged(&self.life.words[0], self.alive);
            let ended = match dead {
                true if self.took_leave() => Ended::Closed,
                true => Ended::Died,
                false => Ended::Faulty("channel.READ", bad),
            };
            core.ended = Some(ended);
            return Err(self.error(ended));
        }
        Ok(core.positions.room())
    }

    /// How far the other side has read of our ring.
    #[inline]
    fn own_read_position(&self) -> &Word {
        self.other.read()
    }

    /// Writes up to `want` bytes; `get` is given a place in the ring, an offset in the source and a length.
    #[inline]
    fn write_with(&self, core: &mut Writer, want: u64, mut get: impl FnMut(u64, u64, u64)) -> Result<u64> {
        if !self.may_write(core)? {
            return Ok(0);
        }
        let total = self.make_room(core, want)?.min(want);
        let part = core.positions.capacity() / PARTS;
        let mut done = 0;
        while done < total {
            let len = (total - done).min(part);
            let [first, second] = pieces(core.positions.written(), len, core.positions.capacity());
            get(first.0, done, first.1);
            if second.1 > 0 {
                get(second.0, done + first.1, second.1);
            }
            self.publish(core, len);
            done += len;
        }
        Ok(total)
    }

    #[inline]
    fn publish(&self, core: &mut Writer, len: u64) {
        core.reserved = 0;
        let announce =
            must_announce(self.other.reader(at::HEAT), self.own.writer(at::ANSWER), &mut core.answered);
        core.positions.publish(self.own.writer(at::WRITE), len);
        if announce {
            self.ring_for(self.other.reader(at::SLEEP), &mut core.rung);
        }
        if core.armed {
            core.armed = false;
            if core.sleepers == 0 {
                sleep::announce_awake(self.own.writer(at::ROOM));
            }
        }
    }

    /// Waits until something can be read or reading has ended. Gives whether that came about in time.
    fn wait_readable(&self, deadline: Option<Instant>) -> bool {
        let seen = {
            let core = lock(&self.reader);
            if core.positions.available() > 0 || core.ended.is_some() {
                return true;
            }
            core.positions.write_seen()
        };
        let news = || {
            let [write, end, paused] = [at::WRITE, at::END, at::PAUSED].map(|w| self.other.writer(w).peek());
            write != seen || end != 0 || paused != 0 || self.alarm.peek() != 0 || !self.is_alive()
        };
        // Whatever it is, the look tells.
        if wait::spin(self.shared.is_crowded(), news) {
            return true;
        }
        let mut tries = 0;
        loop {
            let rings = self.shared.sleeper.seen();
            let mut limit = wait::left(deadline);
            {
                let mut core = lock(&self.reader);
                core.streak = 0;
                core.thermostat.cool(self.own.reader(at::HEAT));
                core.sleeps += 1;
                let bell = if core.armed { Bell::Service } else { self.shared.sleeper.mode() };
                sleep::announce_sleep(self.own.reader(at::SLEEP), core.sleeps, bell);
                let settled = core.thermostat.settled(self.other.writer(at::ANSWER));
                // The look that decides.
                if self.look(&mut core).is_err() || core.positions.available() > 0 || limit.is_zero() {
                    if core.sleepers == 0 && !core.armed {
                        sleep::announce_awake(self.own.reader(at::SLEEP));
                    }
                    return core.ended.is_some() || core.positions.available() > 0;
                }
                if !settled {
                    limit = limit.min(wait::unsure(tries));
                    tries += 1;
                }
                core.sleepers += 1;
            }
            self.shared.sleeper.sleep(rings, limit);
            let mut core = lock(&self.reader);
            core.sleepers -= 1;
            if core.sleepers == 0 && !core.armed {
                sleep::announce_awake(self.own.reader(at::SLEEP));
            }
        }
    }

    /// Waits until `wanted` bytes can be written (at most the whole ring) or writing has ended. Gives whether that came
    /// about in time.
    fn wait_writable(&self, wanted: u64, deadline: Option<Instant>) -> bool {
        let wanted = wanted.clamp(1, self.ring.len());
        let ready = |core: &mut Writer| {
            !matches!(self.may_write(core), Ok(true))
                || !matches!(self.make_room(core, wanted), Ok(room) if room < wanted)
        };
        let read = {
            let mut core = lock(&self.writer);
            if ready(&mut core) {
                return true;
            }
            core.positions.read_seen()
        };
        let (word, stopped) = (self.own_read_position(), self.other.reader(at::STOPPED));
        let news =
            || word.peek() != read || stopped.peek() != 0 || self.alarm.peek() != 0 || !self.is_alive();
        wait::spin(self.shared.is_crowded(), news);
        let mut tries = 0;
        loop {
            let rings = self.shared.sleeper.seen();
            let mut limit = wait::left(deadline);
            {
                let mut core = lock(&self.writer);
                core.sleeps += 1;
                let bell = if core.armed { Bell::Service } else { self.shared.sleeper.mode() };
                sleep::announce_sleep(self.own.writer(at::ROOM), core.sleeps, bell);
                // The look that decides.
                let found = ready(&mut core);
                if found || limit.is_zero() {
                    if core.sleepers == 0 && !core.armed {
                        sleep::announce_awake(self.own.writer(at::ROOM));
                    }
                    return found;
                }
                // A reader looks whether we sleep where the ring was half full.
                if core.positions.room() * 2 > core.positions.capacity() {
                    limit = limit.min(wait::unsure(tries));
                    tries += 1;
                }
                core.sleepers += 1;
            }
            self.shared.sleeper.sleep(rings, limit);
            let mut core = lock(&self.writer);
            core.sleepers -= 1;
            if core.sleepers == 0 && !core.armed {
                sleep::announce_awake(self.own.writer(at::ROOM));
            }
        }
    }

    /// Ends the own stream behind what was written.
    fn shut_write(&self) {
        {
            let mut core = lock(&self.writer);
            if core.ended.is_none() {
                core.ended = Some(Ended::Closed);
            }
            let end = self.own.writer(at::END);
            // A stream that was suspended breaks off instead of ending.
            if end.peek() == 0 && !core.paused {
                end.set(core.positions.written() + 1);
            }
        }
        self.ring_both();
    }

    /// Reads no more: the other side's writes are refused from here on.
    fn stop_reading(&self) {
        {
            let mut core = lock(&self.reader);
            core.ended.get_or_insert(Ended::Closed);
            self.own.reader(at::STOPPED).set(STOPPED);
        }
        self.ring_both();
    }

    /// Wakes whoever of the other side sleeps at this channel.
    fn ring_both(&self) {
        for word in [self.other.reader(at::SLEEP), self.other.writer(at::ROOM)] {
            // A ring too many wakes somebody for nothing; this is not what happens often.
            self.ring_for(word, &mut 0);
        }
    }

    /// Bytes that the other side has not read yet, as far as it has said.
    fn unread_there(&self) -> Result<u64> {
        let mut core = lock(&self.writer);
        let written = core.positions.written();
        if core.positions.read_seen() == written {
            return Ok(0);
        }
        if !unchanged(&self.life.words[0], self.alive) {
            let ended = if self.took_leave() { Ended::Closed } else { Ended::Died };
            return Err(self.error(ended));
        }
        let capacity = self.ring.len();
        self.make_room(&mut core, capacity)?;
        Ok(written - core.positions.read_seen())
    }

    /// Looks after the channel for a context that makes progress: whether its other side is gone or asks to suspend.
    pub(crate) fn look_after(&self) {
        let gone = !self.is_alive();
        if gone && !std::mem::replace(&mut lock(&self.state).told, true) {
            // First what the end of the stream says, which outlasts its writer here.
            let _ = self.look(&mut lock(&self.reader));
            self.shared.tell(Event::Gone { channel: self.id, peer: self.peer.clone() });
            self.shared.sleeper.rouse();
        }
        if gone {
            return;
        }
        if self.other.writer(at::END).peek() != 0 {
            let mut core = lock(&self.reader);
            if core.positions.available() == 0 {
                let _ = self.look(&mut core);
            }
        }
        let paused = self.other.writer(at::PAUSED).peek() != 0;
        if self.other.reader(at::STOPPED).peek() == SUSPENDING || paused {
            self.pause();
        }
        if paused && lock(&self.state).pausing {
            self.hand_over();
        }
    }

    /// Stops writing, and asks the other side to stop.
    pub(crate) fn pause(&self) {
        self.pause_writing(&mut lock(&self.writer));
        let stopped = self.own.reader(at::STOPPED);
        {
            let _core = lock(&self.reader);
            if stopped.peek() == 0 {
                stopped.set(SUSPENDING);
            }
        }
        self.ring_both();
        self.shared.ring_context(self.peer.address.slot);
    }

    /// Whether the other side writes no more.
    pub(crate) fn is_settled(&self) -> bool {
        let silent = [at::PAUSED, at::END].iter().any(|w| self.other.writer(*w).get() != 0);
        silent || !self.is_alive() || lock(&self.state).handed_over
    }

    /// Takes all that has come, tells the program, and ends both directions.
    pub(crate) fn hand_over(&self) {
        if std::mem::replace(&mut lock(&self.state).handed_over, true) {
            return;
        }
        let mut unread = Vec::new();
        {
            let mut core = lock(&self.reader);
            // What was written before the pause is visible: the caller has seen it (P17). No more than a ring full.
            while core.ended.is_none() {
                let start = unread.len();
                let Ok(()) = self.look(&mut core) else { break };
                let len = core.positions.available();
                if len == 0 || unread.len() >= size(core.positions.capacity()) {
                    break;
                }
                unread.resize(start + size(len), 0);
                let target = &mut unread[start..];
                let got = self.read_with(&mut core, len, |from, to, len| {
                    // In bounds: the ring's length is the capacity, and the target was made for it.
                    let _ = self.other_ring.get(from, &mut target[size(to)..size(to + len)]);
                });
                unread.truncate(start + size(got.unwrap_or(0)));
            }
            if core.ended.is_none() {
                core.ended = Some(Ended::Suspended);
            }
        }
        self.alarm.set(1);
        self.shared.sleeper.rouse();
        self.shared.tell(Event::Suspended { channel: self.id, peer: self.peer.clone(), unread });
    }

    /// Gets ready for a poll; gives whether there is something to do already.
    pub(crate) fn arm(&self) -> bool {
        let interest = lock(&self.state).interest;
        let mut ready = false;
        if interest.read {
            let mut core = lock(&self.reader);
            core.armed = true;
            core.streak = 0;
            core.thermostat.cool(self.own.reader(at::HEAT));
            core.sleeps += 1;
            sleep::announce_sleep(self.own.reader(at::SLEEP), core.sleeps, Bell::Service);
            ready |= core.ended.is_none() && self.look(&mut core).is_err();
            ready |= core.positions.available() > 0;
        }
        if interest.write {
            let mut core = lock(&self.writer);
            core.armed = true;
            core.sleeps += 1;
            sleep::announce_sleep(self.own.writer(at::ROOM), core.sleeps, Bell::Service);
            let was = core.ended;
            ready |= match self.may_write(&mut core) {
                Ok(true) => self.make_room(&mut core, 1).is_err() || core.positions.room() > 0,
                Ok(false) => false,
                Err(_) => was.is_none(),
            };
        }
        ready
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
        // From here on the other's ring is not read; the other's life is looked at after the fence (P19).
        stream::publish_life(self.own.life(), dead);
        let last = lock(&self.writer).positions.written();
        let lingering = Lingering {
            number: self.number,
            ring: Some((self.ring_at, self.ring.len())),
            last,
            partner: self.other.clone(),
            partner_life: self.other_life,
            life: self.life.clone(),
            alive: self.alive,
            refused: false,
        };
        let mut state = self.shared.state();
        self.shared.let_go(&mut state, lingering);
        self.shared.announce(&mut state, self.peer.address.slot);
    }
}

impl Channel {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self { link }
    }

    /// Names the channel in events of its context.
    pub fn id(&self) -> ChannelId {
        self.link.id
    }

    /// The other side.
    pub fn peer(&self) -> &Peer {
        &self.link.peer
    }

    /// Bytes of the rings: of the one that is written here, and of the one that is read.
    pub fn ring_bytes(&self) -> (usize, usize) {
        (size(self.link.ring.len()), size(self.link.other_ring.len()))
    }

    /// Bytes that this side has read and written since the channel began: the positions of both rings.
    pub fn moved(&self) -> (u64, u64) {
        let read = lock(&self.link.reader).positions.read();
        (read, lock(&self.link.writer).positions.written())
    }

    /// Reads what has come, at most `into.len()` bytes, without waiting. 0: nothing is there now (or `into` is empty).
    ///
    /// # Ordering
    /// Bytes come in the order in which they were written; what the writer did before is visible (P17).
    ///
    /// # Errors
    /// After all bytes: [`Error::End`], [`Error::PeerDied`], [`Error::Suspended`]. At once: [`Error::Faulty`], and
    /// [`Error::Closed`] once reading was stopped here.
    #[inline]
    pub fn read(&self, into: &mut [u8]) -> Result<usize> {
        let link = &*self.link;
        let mut core = lock(&link.reader);
        let got = link.read_with(&mut core, into.len() as u64, |from, to, len| {
            // In bounds: pieces of a ring that is as long as the capacity.
            let _ = link.other_ring.get(from, &mut into[size(to)..size(to + len)]);
        })?;
        Ok(size(got))
    }

    /// As [`Channel::read`], into a buffer that is known by its address.
    ///
    /// # Errors
    /// As [`Channel::read`].
    pub fn read_buf(&self, into: LocalBuf) -> Result<usize> {
        let link = &*self.link;
        let mut core = lock(&link.reader);
        let got = link.read_with(&mut core, into.len() as u64, |from, to, len| {
            let _ = link.other_ring.drain(from, into.part(size(to), size(len)));
        })?;
        Ok(size(got))
    }

    /// As [`Channel::read`], into one buffer after the other.
    ///
    /// # Errors
    /// As [`Channel::read`], if nothing was read before.
    pub fn read_vectored(&self, into: &mut [IoSliceMut<'_>]) -> Result<usize> {
        let mut done = 0;
        for buf in into {
            match self.read(buf) {
                Ok(count) => {
                    done += count;
                    if count < buf.len() {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Writes as much of `from` as there is room for, without waiting. 0: there is no room now, or the channel is
    /// suspended (or `from` is empty).
    ///
    /// # Errors
    /// [`Error::Closed`]: writing was shut down here, or the other side reads no more. [`Error::PeerDied`],
    /// [`Error::Faulty`].
    #[inline]
    pub fn write(&self, from: &[u8]) -> Result<usize> {
        let link = &*self.link;
        let mut core = lock(&link.writer);
        let put = link.write_with(&mut core, from.len() as u64, |to, at, len| {
            // In bounds, as in `read`.
            let _ = link.ring.put(to, &from[size(at)..size(at + len)]);
        })?;
        Ok(size(put))
    }

    /// As [`Channel::write`], from a buffer that is known by its address.
    ///
    /// # Errors
    /// As [`Channel::write`].
    pub fn write_buf(&self, from: LocalBuf) -> Result<usize> {
        let link = &*self.link;
        let mut core = lock(&link.writer);
        let put = link.write_with(&mut core, from.len() as u64, |to, at, len| {
            let _ = link.ring.fill(to, from.part(size(at), size(len)));
        })?;
        Ok(size(put))
    }

    /// As [`Channel::write`], from one buffer after the other.
    ///
    /// # Errors
    /// As [`Channel::write`], if nothing was written before.
    pub fn write_vectored(&self, from: &[IoSlice<'_>]) -> Result<usize> {
        let mut done = 0;
        for buf in from {
            match self.write(buf) {
                Ok(count) => {
                    done += count;
                    if count < buf.len() {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Reads at least one byte, waiting for it at most `limit` or for ever: polls, then offers the processor, then sleeps.
    ///
    /// # Errors
    /// [`Error::TimedOut`], and as [`Channel::read`].
    pub fn read_some(&self, into: &mut [u8], limit: Option<Duration>) -> Result<usize> {
        let mut got = self.read(into)?;
        if got == 0 && !into.is_empty() {
            let deadline = wait::deadline(limit);
            while got == 0 {
                if !self.link.wait_readable(deadline) {
                    return Err(timed_out("reading from a channel", limit, 0));
                }
                got = self.read(into)?;
            }
        }
        Ok(got)
    }

    /// Fills all of `into`, waiting at most `limit` in all, or for ever.
    ///
    /// # Errors
    /// [`Error::TimedOut`] with the count of bytes that were read, which are in `into`; as [`Channel::read`], where
    /// bytes that came before are in `into`, but not counted.
    pub fn read_exact(&self, into: &mut [u8], limit: Option<Duration>) -> Result<()> {
        let mut done = self.read(into)?;
        if done == into.len() {
            return Ok(());
        }
        let deadline = wait::deadline(limit);
        while done < into.len() {
            if !self.link.wait_readable(deadline) {
                return Err(timed_out("reading from a channel", limit, done));
            }
            done += self.read(&mut into[done..])?;
        }
        Ok(())
    }

    /// Writes all of `from`, waiting for room at most `limit` in all, or for ever. Longer than the ring will do.
    ///
    /// # Errors
    /// [`Error::TimedOut`] with the count of bytes that were written; as [`Channel::write`], and [`Error::Suspended`].
    pub fn write_all(&self, from: &[u8], limit: Option<Duration>) -> Result<()> {
        let mut done = self.write(from)?;
        if done == from.len() {
            return Ok(());
        }
        let deadline = wait::deadline(limit);
        while done < from.len() {
            if !self.link.wait_writable(1, deadline) {
                return Err(timed_out("writing to a channel", limit, done));
            }
            done += self.write(&from[done..])?;
            if lock(&self.link.writer).ended == Some(Ended::Suspended) {
                return Err(self.link.error(Ended::Suspended));
            }
        }
        Ok(())
    }

    /// Waits until there is something to be read, or reading has ended: at most `limit`, or for ever.
    ///
    /// # Errors
    /// [`Error::TimedOut`].
    pub fn wait_readable(&self, limit: Option<Duration>) -> Result<()> {
        match self.link.wait_readable(wait::deadline(limit)) {
            true => Ok(()),
            false => Err(timed_out("waiting for bytes on a channel", limit, 0)),
        }
    }

    /// Waits until `len` bytes can be written (at most a ring full), or writing has ended: at most `limit`, or for ever.
    ///
    /// # Errors
    /// [`Error::TimedOut`].
    pub fn wait_writable(&self, len: usize, limit: Option<Duration>) -> Result<()> {
        match self.link.wait_writable(len as u64, wait::deadline(limit)) {
            true => Ok(()),
            false => Err(timed_out("waiting for room on a channel", limit, 0)),
        }
    }

    /// Up to `most` bytes of the own ring to be written in place, in the order of the stream: two pieces where the ring's
    /// end lies between them, both empty where there is no room. Nothing is published before [`Channel::commit`]; another
    /// write or reservation takes this one's place.
    ///
    /// # Errors
    /// As [`Channel::write`].
    pub fn reserve(&self, most: usize) -> Result<[WritePiece<'_>; 2]> {
        let link = &*self.link;
        let mut core = lock(&link.writer);
        let most = most as u64;
        let len = match link.may_write(&mut core)? {
            true => link.make_room(&mut core, most)?.min(most),
            false => 0,
        };
        core.reserved = len;
        let bytes = &link.ring;
        Ok(pieces(core.positions.written(), len, bytes.len()).map(|(at, len)| WritePiece { bytes, at, len }))
    }

    /// Publishes the first `len` bytes of what [`Channel::reserve`] gave, as [`Channel::write`] would.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than were reserved; else as [`Channel::write`], and [`Error::Suspended`]. Nothing is
    /// published then.
    pub fn commit(&self, len: usize) -> Result<()> {
        let link = &*self.link;
        let mut core = lock(&link.writer);
        if !link.may_write(&mut core)? {
            return Err(link.error(Ended::Suspended));
        }
        let value = len as u64;
        if value > core.reserved {
            let allowed = "no more than was reserved last";
            return Err(Error::Invalid { what: "bytes to commit", value, allowed });
        }
        if value > 0 {
            link.publish(&mut core, value);
        }
        Ok(())
    }

    /// Up to `most` bytes that have come, where they are: two pieces where the ring's end lies between them, both empty
    /// where nothing is there. They stay until [`Channel::release`] or a read.
    ///
    /// # Errors
    /// As [`Channel::read`].
    pub fn peek(&self, most: usize) -> Result<[ReadPiece<'_>; 2]> {
        let link = &*self.link;
        let mut core = lock(&link.reader);
        let most = most as u64;
        if core.positions.available() < most || core.ended.is_some() {
            link.look(&mut core)?;
        }
        let len = core.positions.available().min(most);
        let bytes = &link.other_ring;
        let all = pieces(core.positions.read(), len, core.positions.capacity());
        Ok(all.map(|(at, len)| ReadPiece { bytes, at, len }))
    }

    /// Gives the first `len` bytes that [`Channel::peek`] showed back to the writer. Only when this succeeds were they the
    /// other side's: a program that acts on what it saw in place acts after this.
    ///
    /// # Errors
    /// [`Error::PeerDied`] and the like: what was seen may be anything. [`Error::Invalid`] for more than there is.
    pub fn release(&self, len: usize) -> Result<()> {
        let link = &*self.link;
        let mut core = lock(&link.reader);
        if let Some(ended) = core.ended {
            return Err(link.error(ended));
        }
        let value = len as u64;
        if value > core.positions.available() {
            let allowed = "no more than was shown last";
            return Err(Error::Invalid { what: "bytes to release", value, allowed });
        }
        if value > 0 {
            link.took(&mut core, value)?;
        }
        Ok(())
    }

    /// What [`crate::Context::arm`] is to look at, and its descriptor to tell of, of this channel. Nothing at first.
    pub fn watch(&self, interest: Interest) {
        lock(&self.link.state).interest = interest;
    }

    /// Shuts the own direction down: the other side reads what was written, and then the end of the stream. Reading goes
    /// on here.
    pub fn shutdown_write(&self) {
        self.link.shut_write();
    }

    /// Waits until the other side has read everything that was written: at most `limit`, or for ever.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::PeerDied`] or [`Error::Closed`]: it never will.
    pub fn flush(&self, limit: Option<Duration>) -> Result<()> {
        let deadline = wait::deadline(limit);
        let mut tries = 0;
        loop {
            if self.link.unread_there()? == 0 {
                return Ok(());
            }
            if self.link.other.reader(at::STOPPED).get() == STOPPED {
                return Err(self.link.error(Ended::Closed));
            }
            let left = wait::left(deadline);
            if left.is_zero() {
                return Err(timed_out("waiting for the other side to read", limit, 0));
            }
            // Seldom, and nobody's latency: no bell for it.
            std::thread::sleep(Duration::from_micros(20).saturating_mul(1 << u32::min(tries, 6)).min(left));
            tries += 1;
        }
    }

    /// Closes the channel, as dropping it does.
    pub fn close(self) {}

    /// The two directions, for a thread each. The channel is closed once both are dropped; each closes its direction.
    pub fn split(self) -> (ReadHalf, WriteHalf) {
        let other = Channel { link: Arc::clone(&self.link) };
        (ReadHalf { channel: self }, WriteHalf { channel: other })
    }
}

fn timed_out(action: &'static str, limit: Option<Duration>, moved: usize) -> Error {
    Error::TimedOut { action, limit: limit.unwrap_or(Duration::MAX), moved }
}

/// The direction that is read. Dropping it refuses what the other side writes from then on.
#[derive(Debug)]
pub struct ReadHalf {
    channel: Channel,
}

/// The direction that is written. Dropping it ends the stream behind what was written.
#[derive(Debug)]
pub struct WriteHalf {
    channel: Channel,
}

impl Drop for ReadHalf {
    fn drop(&mut self) {
        if !self.channel.link.shared.is_ours() {
            return;
        }
        self.channel.link.stop_reading();
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        if !self.channel.link.shared.is_ours() {
            return;
        }
        self.channel.link.shut_write();
    }
}

impl ReadHalf {
    /// The channel, whose functions that read are this half's business.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// As [`Channel::read`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        self.channel.read(into)
    }

    /// As [`Channel::read_some`].
    ///
    /// # Errors
    /// As there.
    pub fn read_some(&mut self, into: &mut [u8], limit: Option<Duration>) -> Result<usize> {
        self.channel.read_some(into, limit)
    }

    /// As [`Channel::read_exact`].
    ///
    /// # Errors
    /// As there.
    pub fn read_exact(&mut self, into: &mut [u8], limit: Option<Duration>) -> Result<()> {
        self.channel.read_exact(into, limit)
    }
}

impl WriteHalf {
    /// The channel, whose functions that write are this half's business.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// As [`Channel::write`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn write(&mut self, from: &[u8]) -> Result<usize> {
        self.channel.write(from)
    }

    /// As [`Channel::write_all`].
    ///
    /// # Errors
    /// As there.
    pub fn write_all(&mut self, from: &[u8], limit: Option<Duration>) -> Result<()> {
        self.channel.write_all(from, limit)
    }
}
