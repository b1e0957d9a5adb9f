//! The direction that is read: polling for bytes, the end of the stream, and waiting for either.

use std::time::Instant;

use isthmus_lockfree::heat::{Heat, Thermostat};
use isthmus_lockfree::ring::BadPosition;
use isthmus_lockfree::sleep::{self, Bell};
use isthmus_lockfree::stream::{self, pieces};
use isthmus_region::waiting::Pace;

use super::{Ended, Link, STOPPED};
use crate::error::{Error, Result};
use crate::table::at;
use crate::wait::{self, lock};

/// Reads in a row that found bytes, after which the writer is told that it need not check whether this side sleeps.
const WARM: u32 = 4;

pub(crate) struct Reader {
    pub(crate) positions: stream::Reader,
    /// The write position up to which the bytes are known to be the partner's own (P5).
    sure: u64,
    thermostat: Thermostat,
    /// Reads in a row that found bytes.
    streak: u32,
    /// Sleeps that were announced so far, and threads that sleep now.
    sleeps: u64,
    sleepers: u32,
    /// Whether the program may be polling the descriptor.
    armed: bool,
    /// Whether the partner had not answered, when that was announced, that it announces again.
    unsure: bool,
    /// The partner's wait for room that it was last rung for.
    rung: u64,
    /// Bytes that the program was shown, and has neither read nor given back.
    pub(crate) shown: u64,
    pub(crate) ended: Option<Ended>,
    /// How often the program was told that reading has ended. Any thread that polls may find that out, and not tell.
    pub(crate) told: u32,
}

impl Reader {
    pub(super) fn new(ring_bytes: u64) -> Self {
        Self {
            positions: stream::Reader::new(ring_bytes),
            sure: 0,
            thermostat: Thermostat::default(),
            streak: 0,
            sleeps: 0,
            sleepers: 0,
            armed: false,
            unsure: false,
            rung: 0,
            shown: 0,
            ended: None,
            told: 0,
        }
    }

    /// Passes on what the program gets: an error tells it that reading has ended.
    #[inline]
    pub(crate) fn tell<T>(&mut self, result: Result<T>) -> Result<T> {
        self.told = self.told.saturating_add(result.is_err().into());
        result
    }
}

impl Link {
    /// Records why reading has ended.
    #[cold]
    fn end_reading(&self, core: &mut Reader, ended: Ended) -> Error {
        core.ended = Some(ended);
        if let Ended::Faulty(..) = ended {
            self.alarm.set(1);
        }
        self.error(ended)
    }

    /// Ends reading since the partner is gone: bytes up to `sure` were its own.
    #[cold]
    fn lose(&self, core: &mut Reader) -> Error {
        let all = core.positions.read() == core.sure && self.left_in_order();
        self.end_reading(core, if all { Ended::End } else { Ended::Died })
    }

    /// Polls the write position. An error is for ever, and comes after all bytes.
    pub(crate) fn poll(&self, core: &mut Reader) -> Result<()> {
        if let Some(ended) = core.ended {
            return Err(self.error(ended));
        }
        if let Err(bad) = core.positions.refresh(self.partner.writer(at::WRITE)) {
            if !self.record.still_lives() {
                return Err(self.lose(core));
            }
            return Err(self.end_reading(core, Ended::Faulty("channel.WRITE", bad)));
        }
        if core.positions.available() == 0 {
            return self.poll_end(core);
        }
        Ok(())
    }

    /// With no bytes there: polls whether the stream has ended, and checks whether the partner lives.
    fn poll_end(&self, core: &mut Reader) -> Result<()> {
        let (end, paused) = (self.partner.writer(at::END).get(), self.partner.writer(at::PAUSED).get());
        if end != 0 || paused != 0 {
            // All bytes written before the end or the pause are visible now (P17).
            if let Err(bad) = core.positions.refresh(self.partner.writer(at::WRITE)) {
                if !self.record.still_lives() {
                    return Err(self.lose(core));
                }
                return Err(self.end_reading(core, Ended::Faulty("channel.WRITE", bad)));
            }
        }
        if !self.record.still_lives() {
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

    /// Reads up to `want` bytes; `put` gets a place in the ring, an offset in the target and a length.
    #[inline]
    pub(crate) fn read_with(
        &self,
        core: &mut Reader,
        want: u64,
        mut put: impl FnMut(u64, u64, u64),
    ) -> Result<u64> {
        if core.positions.available() < want || core.ended.is_some() {
            self.poll(core)?;
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
        self.consume(core, len)?;
        Ok(len)
    }

    /// Counts `len` bytes as read, if they were the partner's own.
    #[inline]
    pub(crate) fn consume(&self, core: &mut Reader, len: u64) -> Result<()> {
        if !self.record.still_lives() {
            return Err(self.lose(core));
        }
        core.sure = core.positions.write_seen();
        let held = core.positions.held();
        core.positions.advance(len);
        core.shown = core.shown.saturating_sub(len);
        if core.armed {
            core.armed = false;
            if core.sleepers == 0 {
                sleep::announce_awake(self.own.reader(at::SLEEP));
            }
        }
        if core.positions.release(self.own.read(), self.segment) {
            // A writer that sleeps for room has said so in the line of the write position, which was just read, or has
            // filled the ring.
            let room = self.partner.writer(at::ROOM);
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

    /// Waits until there are bytes, or reading has ended. Returns whether either happened in time.
    pub(crate) fn wait_readable(&self, deadline: Option<Instant>) -> bool {
        let seen = {
            let core = lock(&self.reader);
            if core.positions.available() > 0 || core.ended.is_some() {
                return true;
            }
            core.positions.write_seen()
        };
        let changed = || {
            let [write, end, paused] =
                [at::WRITE, at::END, at::PAUSED].map(|w| self.partner.writer(w).peek());
            write != seen || end != 0 || paused != 0 || self.alarm.peek() != 0 || !self.is_alive()
        };
        // The caller's next poll finds out what changed.
        if Pace::CHANNELS.spin(self.shared.is_crowded(), changed) {
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
                let bell = if core.armed { Bell::Service } else { self.shared.sleeper.doorbell().bell() };
                sleep::announce_sleep(self.own.reader(at::SLEEP), core.sleeps, bell);
                let settled = core.thermostat.settled(self.partner.writer(at::ANSWER));
                // The poll that decides, after the sleep was announced.
                if self.poll(&mut core).is_err() || core.positions.available() > 0 || limit.is_zero() {
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

    /// Ends reading: the partner's writes are refused from here on.
    pub(crate) fn stop_reading(&self) {
        {
            let mut core = lock(&self.reader);
            core.ended.get_or_insert(Ended::Closed);
            core.told = core.told.saturating_add(1);
            self.own.reader(at::STOPPED).set(STOPPED);
        }
        self.ring_both();
    }

    /// Whether the partner has not answered that it announces again.
    pub(super) fn is_unanswered(&self) -> bool {
        let core = lock(&self.reader);
        core.unsure && core.ended.is_none()
    }

    /// Prepares for a poll of the descriptor; returns whether there are bytes already, or reading has ended and the program
    /// was not told yet.
    pub(super) fn arm_reader(&self) -> bool {
        let mut core = lock(&self.reader);
        core.armed = true;
        core.streak = 0;
        core.thermostat.cool(self.own.reader(at::HEAT));
        core.sleeps += 1;
        sleep::announce_sleep(self.own.reader(at::SLEEP), core.sleeps, Bell::Service);
        // Before the poll: what was published until the answer was not announced (P4).
        core.unsure = !core.thermostat.settled(self.partner.writer(at::ANSWER));
        let ended = self.poll(&mut core).is_err();
        (ended && core.told == 0) || core.positions.available() > 0
    }
}
