//! Something that is made once: by the first caller, and if it dies while it does, by the next.
//!
//! # Layout
//! One line, a gate: 0, or the process that makes it, or all ones when it is done, or one less when nobody makes it and one has died
//! while it did; two words of sleepers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_lockfree::lock;
use isthmus_region::gate::Gate;
use isthmus_region::mapping::Section;
use isthmus_region::member::Member;
use isthmus_region::party::Party;

use crate::error::{Error, Result};
use crate::wait::{self, Ended, Learned, Wait, Waiting};

/// Bytes of the section that a once takes.
pub const BYTES: u64 = 64;

/// It is done; names no process.
const DONE: u64 = u64::MAX;
/// Nobody makes it, and a process died while it did; names no process either, so that it is inherited as from a dead one.
const SUSPECT: u64 = DONE - 1;

/// Something made once, as one process has opened it. Any thread may use it, several at once.
#[derive(Debug)]
pub struct Once {
    member: Arc<Member>,
    gate: Gate,
    learned: Learned,
}

/// What the caller of [`Once::begin`] is to do.
#[derive(Debug)]
pub enum Begun<'a> {
    /// Nothing: it is done, and what its maker wrote is visible.
    Done,
    /// Make it.
    Yours(Turn<'a>),
}

impl Once {
    /// Opens it in `section`, which must be zeroed before it is opened for the first time.
    ///
    /// # Errors
    /// [`Error::Memory`] if the section is smaller than [`BYTES`] or misaligned.
    pub fn open(member: &Arc<Member>, section: &Section) -> Result<Self> {
        let gate = Gate::new(member, section, 0).map_err(Error::memory("a once"))?;
        Ok(Self { member: Arc::clone(member), gate, learned: Learned::new(member.doorbell()) })
    }

    /// Whether it is done.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.gate.word().get() == DONE
    }

    /// Calls `make` unless it is done; waits while another thread makes it. `make` gets whether a process died while it made
    /// it, and may have left it half made. If `make` panics, it is the next caller's turn.
    ///
    /// A `make` that calls this on the same once waits for ever.
    pub fn call(&self, make: impl FnOnce(bool)) {
        // Without a limit there is no time-out.
        if let Ok(Begun::Yours(turn)) = self.begin(None) {
            make(turn.taken_over());
            turn.finish();
        }
    }

    /// Returns whether it is done or the caller's turn; waits while another thread makes it, for `limit` at most.
    ///
    /// # Errors
    /// [`Error::TimedOut`].
    pub fn begin(&self, limit: Option<Duration>) -> Result<Begun<'_>> {
        let deadline = wait::deadline(limit);
        let me = self.member.party().word();
        let word = self.gate.word();
        loop {
            if self.is_done() {
                return Ok(Begun::Done);
            }
            match lock::claim(word, me) {
                Ok(()) => return Ok(Begun::Yours(Turn { once: self, taken_over: false })),
                Err(DONE) => return Ok(Begun::Done),
                Err(other) if !self.is_alive(other) => {
                    if lock::inherit(word, other, me) {
                        return Ok(Begun::Yours(Turn { once: self, taken_over: true }));
                    }
                }
                Err(other) => self.await_other(other, deadline)?,
            }
        }
    }

    fn is_alive(&self, word: u64) -> bool {
        Party::named(word).is_some_and(|party| self.member.is_alive(party))
    }

    fn await_other(&self, other: u64, deadline: Option<Instant>) -> Result<()> {
        let ready = || self.gate.word().peek() != other;
        let deaths = self.gate.deaths();
        let check = || Ok(!self.is_alive(other));
        let sleep = |limit| self.gate.sleep(other, &deaths, limit);
        let wait = Wait { how: Waiting::Hybrid, learned: &self.learned, deadline };
        match wait.until(ready, check, sleep)? {
            Ended::TimedOut => Err(Error::TimedOut),
            Ended::Ready | Ended::Stopped => Ok(()),
        }
    }
}

/// The caller's turn to make it. Dropping this without [`Turn::finish`] leaves it to the next caller.
#[derive(Debug)]
#[must_use = "it is left to the next caller at once"]
pub struct Turn<'a> {
    once: &'a Once,
    taken_over: bool,
}

impl Turn<'_> {
    /// Whether a process died while it made it.
    pub fn taken_over(&self) -> bool {
        self.taken_over
    }

    /// Declares it done.
    pub fn finish(self) {
        lock::inherit(self.once.gate.word(), self.once.member.party().word(), DONE);
        // The drop rings.
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // What may be half made is so for the next one, too.
        let left = if self.taken_over { SUSPECT } else { 0 };
        lock::inherit(self.once.gate.word(), self.once.member.party().word(), left);
        self.once.gate.ring(u32::MAX);
    }
}
