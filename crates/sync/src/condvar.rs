//! A condition variable: waiting for a notification, with a [mutex](crate::mutex) given back meanwhile.
//!
//! A wait may end for no reason, so its caller checks its condition again. In particular, a notification whose waiter is
//! killed, or whose notifier is killed in the middle of it, ends other waits within [`isthmus_region::doorbell::Doorbell::longest`] (50 ms) (in a
//! VM 250 ms, or 5 s with the guest driver): no notification is lost for longer than that.
//!
//! # Layout
//! One line, a gate: a count of notifications, two words of sleepers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_region::gate::Gate;
use isthmus_region::mapping::Section;
use isthmus_region::member::Member;

use crate::error::{Error, Result};
use crate::mutex::Guard;
use crate::wait;

/// Bytes of the section that a condition variable takes.
pub const BYTES: u64 = 64;

/// A condition variable, as one process has opened it. Any thread may use it, several at once; all waiters of all
/// processes use the same mutex with it.
#[derive(Debug)]
pub struct Condvar {
    gate: Gate,
}

impl Condvar {
    /// Opens the condition variable in `section`, which must be zeroed before it is opened for the first time.
    ///
    /// # Errors
    /// [`Error::Memory`] if the section is smaller than [`BYTES`] or misaligned.
    pub fn open(member: &Arc<Member>, section: &Section) -> Result<Self> {
        Ok(Self { gate: Gate::new(member, section, 0).map_err(Error::memory("a condition variable"))? })
    }

    /// Gives the mutex back, sleeps until a notification, and takes the mutex again.
    ///
    /// # Errors
    /// Those of [`crate::Mutex::lock`]; the mutex is not taken then.
    pub fn wait<'a>(&self, guard: Guard<'a>) -> Result<Guard<'a>> {
        self.wait_until(guard, None).map(|(guard, _)| guard)
    }

    /// As [`Condvar::wait`], sleeping for `limit` at most; then the mutex is taken again, however long that takes. Returns
    /// whether there was a notification.
    ///
    /// # Errors
    /// As [`Condvar::wait`].
    pub fn wait_within<'a>(&self, guard: Guard<'a>, limit: Duration) -> Result<(Guard<'a>, bool)> {
        self.wait_until(guard, wait::deadline(Some(limit)))
    }

    fn wait_until<'a>(&self, guard: Guard<'a>, deadline: Option<Instant>) -> Result<(Guard<'a>, bool)> {
        let mutex = guard.mutex();
        // A notification after the mutex was given back changes this word.
        let seen = self.gate.word().get();
        drop(guard);
        let deaths = self.gate.deaths();
        let notified = loop {
            if self.gate.word().get() != seen {
                break true;
            }
            let left = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break false;
            }
            self.gate.sleep(seen, &deaths, left);
        };
        mutex.lock_until(None).map(|guard| (guard, notified))
    }

    /// Ends the wait of one thread, and perhaps of others, a little later.
    pub fn notify_one(&self) {
        self.gate.word().add(1);
        self.gate.ring(1);
    }

    /// Ends the wait of all threads that wait now.
    pub fn notify_all(&self) {
        self.gate.word().add(1);
        self.gate.ring(u32::MAX);
    }
}
