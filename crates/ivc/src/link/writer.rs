//! The direction that is written: whether it may be, room, publishing, and waiting for room.

use std::time::Instant;

use isthmus_lockfree::heat::must_announce;
use isthmus_lockfree::sleep::{self, Bell};
use isthmus_lockfree::stream::{self, pieces};
use isthmus_lockfree::sync::ReadWord;
use isthmus_region::waiting::Pace;

use super::{Ended, Link, STOPPED, SUSPENDING};
use crate::error::Result;
use crate::table::at;
use crate::wait::{self, lock};

/// A long write is published in pieces of one `PARTS`th of the ring, so that the reader begins before the writer has ended.
const PARTS: u64 = 4;

pub(crate) struct Writer {
    pub(crate) positions: stream::Writer,
    /// The reader's heat that was last answered, and its sleep that was last rung for.
    answered: u64,
    rung: u64,
    /// Sleeps that were announced so far, and threads that sleep now.
    sleeps: u64,
    sleepers: u32,
    /// Whether the program may be polling the descriptor.
    armed: bool,
    /// Bytes that the last reservation gave and no commit has used.
    pub(crate) reserved: u64,
    pub(crate) ended: Option<Ended>,
    /// How often the program was told that writing has ended. Any thread that polls may find that out, and not tell.
    pub(crate) told: u32,
    pub(super) paused: bool,
}

impl Writer {
    pub(super) fn new(ring_bytes: u64) -> Self {
        Self {
            positions: stream::Writer::new(ring_bytes),
            answered: 0,
            rung: 0,
            sleeps: 0,
            sleepers: 0,
            armed: false,
            reserved: 0,
            ended: None,
            told: 0,
            paused: false,
        }
    }

    /// Passes on what the program gets: an error tells it that writing has ended.
    #[inline]
    pub(crate) fn tell<T>(&mut self, result: Result<T>) -> Result<T> {
        self.told = self.told.saturating_add(result.is_err().into());
        result
    }
}

impl Link {
    /// Whether writing is possible: false while suspended, an error if it never will be again.
    #[inline]
    pub(crate) fn may_write(&self, core: &mut Writer) -> Result<bool> {
        if let Some(ended) = core.ended {
            return if ended == Ended::Suspended { self.check_gone(core) } else { Err(self.error(ended)) };
        }
        let stopped = self.partner.reader(at::STOPPED).peek();
        if self.is_alive() && stopped == 0 && self.alarm.peek() == 0 {
            return Ok(true);
        }
        self.check_stopped(core, stopped)
    }

    /// [`Link::may_write`] while suspended: a partner that is gone, or has closed the channel, is no longer waited for.
    #[cold]
    fn check_gone(&self, core: &mut Writer) -> Result<bool> {
        let ended = if !self.is_alive() && !self.record.still_lives() {
            self.how_it_left()
        } else if self.partner.reader(at::STOPPED).get() == STOPPED {
            Ended::Closed
        } else {
            return Ok(false);
        };
        core.ended = Some(ended);
        Err(self.error(ended))
    }

    /// [`Link::may_write`], if one of the words that it polls says that there may be a reason not to.
    #[cold]
    fn check_stopped(&self, core: &mut Writer, stopped: u64) -> Result<bool> {
        if !self.record.still_lives() {
            let ended = self.how_it_left();
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
        // The writer's lock is held: it is taken before the reader's, never after.
        lock(&self.reader).ended
    }

    /// Returns the room that there is; reads the partner's position only if less than `wanted` is known of.
    #[inline]
    pub(crate) fn make_room(&self, core: &mut Writer, wanted: u64) -> Result<u64> {
        if core.positions.room() < wanted
            && let Err(bad) = core.positions.refresh(self.own_read_position())
        {
            let dead = !self.record.still_lives();
            let ended = if dead { self.how_it_left() } else { Ended::Faulty("channel.READ", bad) };
            core.ended = Some(ended);
            return Err(self.error(ended));
        }
        Ok(core.positions.room())
    }

    /// How far the partner has read of the own ring.
    #[inline]
    fn own_read_position(&self) -> &ReadWord {
        self.partner.read()
    }

    /// Writes up to `want` bytes; `get` gets a place in the ring, an offset in the source and a length.
    #[inline]
    pub(crate) fn write_with(
        &self,
        core: &mut Writer,
        want: u64,
        mut get: impl FnMut(u64, u64, u64),
    ) -> Result<u64> {
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
    pub(crate) fn publish(&self, core: &mut Writer, len: u64) {
        core.reserved = 0;
        let announce =
            must_announce(self.partner.reader(at::HEAT), self.own.writer(at::ANSWER), &mut core.answered);
        core.positions.publish(self.own.writer(at::WRITE), len);
        if announce {
            self.ring_for(self.partner.reader(at::SLEEP), &mut core.rung);
        }
        if core.armed {
            core.armed = false;
            if core.sleepers == 0 {
                sleep::announce_awake(self.own.writer(at::ROOM));
            }
        }
    }

    /// Waits until `wanted` bytes can be written (at most the whole ring), or writing has ended. Returns whether either
    /// happened in time.
    pub(crate) fn wait_writable(&self, wanted: u64, deadline: Option<Instant>) -> bool {
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
        let (word, stopped) = (self.own_read_position(), self.partner.reader(at::STOPPED));
        let changed =
            || word.peek() != read || stopped.peek() != 0 || self.alarm.peek() != 0 || !self.is_alive();
        Pace::CHANNELS.spin(self.shared.is_crowded(), changed);
        let mut tries = 0;
        loop {
            let rings = self.shared.sleeper.seen();
            let mut limit = wait::left(deadline);
            {
                let mut core = lock(&self.writer);
                core.sleeps += 1;
                let bell = if core.armed { Bell::Service } else { self.shared.sleeper.doorbell().bell() };
                sleep::announce_sleep(self.own.writer(at::ROOM), core.sleeps, bell);
                // The check that decides, after the sleep was announced.
                let found = ready(&mut core);
                if found || limit.is_zero() {
                    if core.sleepers == 0 && !core.armed {
                        sleep::announce_awake(self.own.writer(at::ROOM));
                    }
                    return found;
                }
                // A reader is sure to check whether this side sleeps only if the ring was at least half full.
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

    /// Ends the own stream after what was written.
    pub(crate) fn shut_write(&self) {
        {
            let mut core = lock(&self.writer);
            core.told = core.told.saturating_add(1);
            if core.ended.is_none() {
                core.ended = Some(Ended::Closed);
            }
            let end = self.own.writer(at::END);
            // A suspended stream has no end: it breaks off.
            if end.peek() == 0 && !core.paused {
                end.set(core.positions.written() + 1);
            }
        }
        self.ring_both();
    }

    /// Bytes that the partner has not read yet, as far as it has published.
    pub(crate) fn unread(&self) -> Result<u64> {
        let mut core = lock(&self.writer);
        let written = core.positions.written();
        if core.positions.read_seen() == written {
            return Ok(0);
        }
        if !self.record.still_lives() {
            return Err(self.error(self.how_it_left()));
        }
        let capacity = self.ring.len();
        self.make_room(&mut core, capacity)?;
        Ok(written - core.positions.read_seen())
    }

    /// Prepares for a poll of the descriptor; returns whether there is room already, or writing has ended, which no call has told.
    pub(super) fn arm_writer(&self) -> bool {
        let mut core = lock(&self.writer);
        core.armed = true;
        core.sleeps += 1;
        sleep::announce_sleep(self.own.writer(at::ROOM), core.sleeps, Bell::Service);
        match self.may_write(&mut core) {
            Ok(true) => self.make_room(&mut core, 1).is_err() || core.positions.room() > 0,
            Ok(false) => false,
            Err(_) => core.told == 0,
        }
    }
}
