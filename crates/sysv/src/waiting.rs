//! How a call waits that signals may interrupt. Such calls are never restarted (signal(7)).
//!
//! A wait begins with the stages of [`isthmus_sync::wait`] in which the thread is awake; most end there, without a system
//! call. A signal that comes so early might as well have come before the call, and ends nothing. Then all signals are blocked,
//! and after another look the thread sleeps: for a millisecond at most at the gate's futex, where there are futexes, since most
//! sleeps end there, at the least cost. Signals are that late; where another thread would take them, the thread does not sleep there.
//! Then it sleeps at a bell of its own and one of the local service, and at what tells of signals, so that none comes unseen between
//! the look and the sleep. Where the thread is told of them ([`Sleep`]), they are handled once it has let go of all that it has for
//! its wait: a handler may leave the call for good (siglongjmp(3)). It may fork as well, and the child return here: that has nothing of
//! the region, and after each point where a handler may have run, it touches nothing more, and fails with `EINTR`, as with the kernel.

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

    /// Sleeps until one of the descriptors is readable, a signal has come that the thread had not blocked before, or `limit` is up.
    fn sleep(&mut self, bells: &[BorrowedFd<'_>], limit: Duration) -> Heard;

    /// Whether this still is the process that made the call, and not a child that a handler has forked.
    fn is_here(&self) -> bool;

    /// Whether it is told of all signals of the process that come while they are blocked, and no other thread takes them.
    fn is_told(&self) -> bool;

    /// Lets signals be handled that have come, with the mask that the thread had before; whether one was. What handles it may never
    /// come back, so the thread has nothing then that others would miss.
    fn handle(&mut self) -> bool;

    /// Restores the mask.
    fn end(&mut self);
}

/// What a thread that sleeps has heard of signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// Nothing.
    Nothing,
    /// One has come, and waits for [`Sleep::handle`].
    Pending,
    /// One came and was handled meanwhile, where a thread cannot be told first.
    Handled,
}

/// A sleep that signals do not end, for tests and tools.
#[derive(Debug, Clone, Copy, Default)]
pub struct Uninterrupted;

impl Sleep for Uninterrupted {
    fn begin(&mut self) {}

    fn sleep(&mut self, bells: &[BorrowedFd<'_>], limit: Duration) -> Heard {
        gate::poll(bells, limit);
        Heard::Nothing
    }

    fn is_here(&self) -> bool {
        true
    }

    fn is_told(&self) -> bool {
        true
    }

    fn handle(&mut self) -> bool {
        false
    }

    fn end(&mut self) {}
}

/// When a wait of `limit` from now ends.
pub fn deadline(limit: Option<Duration>) -> Option<Instant> {
    limit.and_then(|limit| Instant::now().checked_add(limit))
}

/// How often a thread looks again that is still awake, before it takes the way on which signals are heard.
const LOOKS: u32 = 16;
/// How long it sleeps at a futex, with all signals blocked.
const DEAF: Duration = Duration::from_millis(1);

/// Tries until there is an outcome. `attempt` gives the gate to wait at and what was seen there if there is none yet; the
/// gate's word is rung at whenever that may have changed. `let_go` gives back what the attempts have taken for the wait; a later one
/// may take it again. With false, which is in a child that a handler has forked, it forgets that, and touches nothing of the region.
///
/// # Errors
/// Those of `attempt`; `EAGAIN` once `until` is over; `EINTR`.
pub fn until<'a, T>(
    sleep: &mut dyn Sleep,
    learned: &Learned,
    until: Option<Instant>,
    mut attempt: impl FnMut() -> Result<Attempt<'a, T>>,
    mut let_go: impl FnMut(bool),
) -> Result<T> {
    if let Some(done) = awake(learned, until, &mut attempt)? {
        return Ok(done);
    }
    sleep.begin();
    let done = match sleep.is_here() {
        true => asleep(sleep, learned, until, &mut attempt, &mut let_go),
        false => Err(Errno::INTR),
    };
    // Signals that have come meanwhile are handled at the end.
    let_go(sleep.is_here());
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
    /// It is to be made again, with a look at signals before that.
    Again,
}

/// Tries for as long as it pays to stay awake.
fn awake<'a, T>(
    learned: &Learned,
    until: Option<Instant>,
    attempt: &mut impl FnMut() -> Result<Attempt<'a, T>>,
) -> Result<Option<T>> {
    for _ in 0..LOOKS {
        let (gate, seen) = match attempt()? {
            Attempt::Done(it) => return Ok(Some(it)),
            Attempt::Blocked(gate, seen) => (gate, seen),
            Attempt::Again => continue,
        };
        let how = Wait { how: Waiting::Hybrid, learned, deadline: until };
        // The check comes where the thread would go to sleep.
        let ended = how.until(|| gate.word().peek() != seen, || Ok(true), |_| ()).map_err(|_| Errno::IO)?;
        if ended != Ended::Ready {
            break;
        }
    }
    Ok(None)
}

/// Tries until there is an outcome, and sleeps in between. All signals are blocked.
fn asleep<'a, T>(
    sleep: &mut dyn Sleep,
    learned: &Learned,
    until: Option<Instant>,
    attempt: &mut impl FnMut() -> Result<Attempt<'a, T>>,
    let_go: &mut impl FnMut(bool),
) -> Result<T> {
    let mut ended = None;
    let deaf_until = Instant::now() + DEAF;
    // Read before an attempt, so that none of them comes unseen between that and the sleep.
    let mut known = None;
    loop {
        let blocked = match (attempt()?, ended) {
            (Attempt::Done(it), _) => return Ok(it),
            // What came together with the signal, or with the end of the time, counts.
            (_, Some(errno)) => return Err(errno),
            (Attempt::Blocked(gate, seen), None) => Some((gate, seen)),
            (Attempt::Again, None) => None,
        };
        let left = until.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            ended = Some(Errno::AGAIN);
            continue;
        }
        let (mut slept, mut heard) = (false, Heard::Nothing);
        if let Some((gate, seen)) = blocked {
            let may_nap = left > DEAF && sleep.is_told();
            let mut nap = |bells: &[BorrowedFd<'_>], limit| {
                slept = true;
                heard = sleep.sleep(bells, limit);
                sleep.is_here()
            };
            let Some(known) = &known else {
                known = Some(gate.deaths());
                continue;
            };
            // A process that is killed there is counted for good, so one that often waits for a moment only does not go there.
            let deaf = deaf_until.saturating_duration_since(Instant::now());
            if may_nap && !deaf.is_zero() && gate.sleep_at_futex(seen, known, deaf) {
                continue;
            }
            let begun = Instant::now();
            gate.sleep_by(seen, known, left, &mut nap);
            if !sleep.is_here() {
                return Err(Errno::INTR);
            }
            if slept && gate.word().peek() != seen {
                learned.slept(begun.elapsed());
            }
        }
        // Where the word keeps changing there is no sleep, and signals are to be heard nevertheless.
        if !slept {
            heard = sleep.sleep(&[], Duration::ZERO);
        }
        let is_handled = match heard {
            Heard::Nothing => false,
            Heard::Handled => true,
            Heard::Pending => {
                let_go(true);
                // One that is ignored, or that another thread has taken meanwhile, ends nothing.
                let has_run = sleep.handle();
                if !sleep.is_here() {
                    return Err(Errno::INTR);
                }
                has_run
            }
        };
        if is_handled {
            ended = Some(Errno::INTR);
        }
    }
}
