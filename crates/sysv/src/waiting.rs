//! How a call waits that signals may interrupt. Such calls are never restarted (signal(7)).
//!
//! A wait passes through the stages of [`isthmus_sync::wait`], and sleeps at a bell of the local service. All signals are blocked from
//! before the wait's last look, so that none comes unseen between that and the sleep, during which the caller's own mask holds.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use isthmus_region::gate::{self, Gate};
use isthmus_sync::wait::{Ended, Learned, Wait, Waiting};
use rustix::io::Errno;

use crate::Result;

/// What a thread does to wait, as the face does it, which knows about signals.
pub trait Sleep {
    /// Blocks all signals.
    fn begin(&mut self);

    /// Sleeps until one of the descriptors is readable or `limit` is up; with the signal mask that the thread had before. Gives
    /// whether a signal was handled.
    fn sleep(&mut self, bells: &[BorrowedFd<'_>], limit: Duration) -> bool;

    /// Restores the mask.
    fn end(&mut self);
}

/// A sleep that signals do not end, for tests and tools.
#[derive(Debug, Clone, Copy, Default)]
pub struct Uninterrupted;

impl Sleep for Uninterrupted {
    fn begin(&mut self) {}

    fn sleep(&mut self, bells: &[BorrowedFd<'_>], limit: Duration) -> bool {
        gate::poll(bells, limit);
        false
    }

    fn end(&mut self) {}
}

/// When a wait of `limit` from now ends.
pub fn deadline(limit: Option<Duration>) -> Option<Instant> {
    limit.and_then(|limit| Instant::now().checked_add(limit))
}

/// Tries until there is an outcome. `attempt` gives the gate to wait at and what was seen there if there is none yet; the gate's word is
/// rung at whenever that may have changed.
///
/// # Errors
/// Those of `attempt`; `EAGAIN` once `until` is over; `EINTR`.
pub fn until<'a, T>(
    sleep: &mut dyn Sleep,
    learned: &Learned,
    until: Option<Instant>,
    mut attempt: impl FnMut() -> Result<Attempt<'a, T>>,
) -> Result<T> {
    sleep.begin();
    let done = wait(sleep, learned, until, &mut attempt);
    sleep.end();
    done
}

/// How far an attempt came.
#[derive(Debug)]
pub enum Attempt<'a, T> {
    /// It is done.
    Done(T),
    /// It has to wait until this gate's word is another one.
    Blocked(&'a Gate, u64),
}

fn wait<'a, T>(
    sleep: &mut dyn Sleep,
    learned: &Learned,
    until: Option<Instant>,
    attempt: &mut impl FnMut() -> Result<Attempt<'a, T>>,
) -> Result<T> {
    loop {
        let (gate, seen) = match attempt()? {
            Attempt::Done(it) => return Ok(it),
            Attempt::Blocked(gate, seen) => (gate, seen),
        };
        let deaths = gate.deaths();
        let signalled = Cell::new(false);
        // A sleep ends for other reasons, too: then the attempt is made anew.
        let rest = |limit: Duration| {
            let mut nap = |bells: &[BorrowedFd<'_>], limit| signalled.set(sleep.sleep(bells, limit));
            gate.sleep_by(seen, &deaths, limit, &mut nap);
        };
        let ready = || gate.word().peek() != seen;
        let mut looks = 0;
        let check = || {
            looks += 1;
            Ok(looks > 1)
        };
        let how = Wait { how: Waiting::Hybrid, learned, deadline: until };
        let ended = how.until(ready, check, rest).map_err(|_| Errno::IO)?;
        if signalled.get() {
            // What came together with the signal counts.
            return match attempt()? {
                Attempt::Done(it) => Ok(it),
                Attempt::Blocked(..) => Err(Errno::INTR),
            };
        }
        if ended == Ended::TimedOut {
            return match attempt()? {
                Attempt::Done(it) => Ok(it),
                Attempt::Blocked(..) => Err(Errno::AGAIN),
            };
        }
    }
}
