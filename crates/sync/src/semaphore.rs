//! A counting semaphore.
//!
//! What is taken from a semaphore has no owner: a process that dies gives nothing back. Where that matters, use a
//! [mutex](crate::mutex) and a [condition variable](crate::condvar).
//!
//! # Layout
//! One line, a gate: the value with its highest bit set, two words of sleepers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_region::gate::Gate;
use isthmus_region::mapping::Section;
use isthmus_region::member::Member;

use crate::error::{Error, Result};
use crate::wait::{self, Ended, Learned, Wait, Waiting};

/// Bytes of the section that a semaphore takes.
pub const BYTES: u64 = 64;
/// Largest value, that of POSIX.
pub const MOST: u32 = i32::MAX as u32;

/// Set once the value is there.
const SET: u64 = 1 << 63;

/// A semaphore, as one process has opened it. Any thread may use it, several at once.
#[derive(Debug)]
pub struct Semaphore {
    member: Arc<Member>,
    gate: Gate,
    learned: Learned,
}

impl Semaphore {
    /// Opens the semaphore in `section`, which must be zeroed before it is opened for the first time. The first to
    /// open it gives it its `initial` value.
    ///
    /// # Errors
    /// [`Error::BadParameter`] for a value above [`MOST`]; [`Error::Memory`] if the section is smaller than [`BYTES`] or
    /// misaligned.
    pub fn open(member: &Arc<Member>, section: &Section, initial: u32) -> Result<Self> {
        if initial > MOST {
            let (what, limits) = ("the value of a semaphore", "it is at most 2147483647");
            return Err(Error::BadParameter { what, value: initial.into(), limits });
        }
        let gate = Gate::new(member, section, 0).map_err(Error::memory("a semaphore"))?;
        let _ = gate.word().replace(0, SET | u64::from(initial));
        let learned = Learned::new(member.doorbell());
        Ok(Self { member: Arc::clone(member), gate, learned })
    }

    /// The value now. It may have changed by the time the caller uses it.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn value(&self) -> Result<u32> {
        Self::checked(self.gate.word().get())
    }

    fn checked(word: u64) -> Result<u32> {
        let value = u32::try_from(word ^ SET).ok().filter(|value| *value <= MOST);
        value.ok_or(Error::Corrupt { what: "a semaphore", value: word })
    }

    /// Adds one and lets a waiter go on.
    ///
    /// # Errors
    /// [`Error::Overflow`]; [`Error::Corrupt`].
    pub fn post(&self) -> Result<()> {
        let mut seen = self.gate.word().get();
        loop {
            if Self::checked(seen)? == MOST {
                return Err(Error::Overflow { most: MOST.into() });
            }
            match self.gate.word().replace(seen, seen + 1) {
                Ok(()) => break,
                Err(other) => seen = other,
            }
        }
        self.gate.ring(1);
        Ok(())
    }

    /// Takes one off, if the value is not 0.
    ///
    /// # Errors
    /// [`Error::WouldBlock`]; [`Error::Corrupt`].
    #[inline]
    pub fn try_wait(&self) -> Result<()> {
        let mut seen = self.gate.word().get();
        while Self::checked(seen)? != 0 {
            match self.gate.word().replace(seen, seen - 1) {
                Ok(()) => return Ok(()),
                Err(other) => seen = other,
            }
        }
        Err(Error::WouldBlock)
    }

    /// Takes one off, waiting until the value is not 0.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn wait(&self) -> Result<()> {
        self.wait_until(None)
    }

    /// As [`Semaphore::wait`], for `limit` at most.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Corrupt`].
    pub fn wait_within(&self, limit: Duration) -> Result<()> {
        self.wait_until(wait::deadline(Some(limit)))
    }

    fn wait_until(&self, deadline: Option<Instant>) -> Result<()> {
        loop {
            match self.try_wait() {
                Err(Error::WouldBlock) => {}
                other => return other,
            }
            if self.learned.must_recheck() {
                self.learned.set_scarce(self.member.is_crowded());
            }
            let ready = || self.gate.word().peek() != SET;
            let deaths = self.gate.deaths();
            let sleep = |limit| self.gate.sleep(SET, &deaths, limit);
            let wait = Wait { how: Waiting::Hybrid, learned: &self.learned, deadline };
            if wait.until(ready, || Ok(false), sleep)? == Ended::TimedOut {
                // This thread may have used up a wake-up, so it tries once more before it gives up.
                return self.try_wait().map_err(|e| match e {
                    Error::WouldBlock => Error::TimedOut,
                    other => other,
                });
            }
        }
    }
}
