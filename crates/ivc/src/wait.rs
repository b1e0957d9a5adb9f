//! Waiting: spin, yield, sleep.
//!
//! Everything that a context waits for rings one bell, that of its endpoint ([`isthmus_region::doorbell::Sleeper`]). A context that
//! sleeps announces it in a word that it alone writes (P6): one for offers, answers and members, and for each channel one for
//! bytes and one for room. A death rings all of them; each sleep has a bound all the same, since a process may be killed before
//! it rings. Before a sleep a thread polls and yields at the pace [`isthmus_region::waiting::Pace::CHANNELS`].

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Sleeps of a thread that may not be rung for what came just before: the first, and the longest. They double.
const UNSURE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(64));

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves what these locks protect whole: it is changed in steps that each do.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A time-out as a point in time; `None` is for ever.
pub(crate) fn deadline(limit: Option<Duration>) -> Option<Instant> {
    limit.and_then(|limit| Instant::now().checked_add(limit))
}

/// The time left until then.
pub(crate) fn left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |d| d.saturating_duration_since(Instant::now()))
}

/// How long a thread that may not be rung sleeps for the `tries`th time.
pub(crate) fn unsure(tries: u32) -> Duration {
    UNSURE.0.saturating_mul(1 << tries.min(16)).min(UNSURE.1)
}
