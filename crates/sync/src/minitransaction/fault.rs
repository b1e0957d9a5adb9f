//! Steps at which tests stop a process for ever, to see what the others find.
//!
//! Each [`Step`] is a place at which a commit or a recovery has just changed something. In a build with the feature `fault`,
//! a thread that has called `arm` with a step calls the given function when it comes there, which ends the process or
//! unwinds. In every other build a step is no code at all.

/// A place at which a process may be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A slot is claimed.
    SlotClaimed,
    /// Half of the log is written.
    LogHalf,
    /// The log is written, and the state does not say so.
    LogWhole,
    /// The transaction has begun, and holds nothing.
    Begun,
    /// A lock was taken.
    Locked,
    /// All locks are taken.
    AllLocked,
    /// All flights are over.
    FlightsOver,
    /// The compares are made.
    Compared,
    /// It will be completed.
    Committed,
    /// A word was written.
    Wrote,
    /// All words are written.
    AllWritten,
    /// The state says that it is finished.
    Finished,
    /// A lock was freed.
    Freed,
    /// All locks are free.
    AllFreed,
    /// A word matched and its lock was free.
    Matched,
    /// A change of one word is announced.
    Announced,
    /// The lock was free.
    Unlocked,
    /// The word is changed.
    Changed,
    /// The change is no longer announced.
    Withdrawn,
    /// A dead process's slot is claimed.
    Claimed,
    /// A word of its log was written.
    Rewrote,
    /// All words of its log are written.
    Replayed,
    /// The state says that they are.
    ReplayTold,
    /// A lock of the dead process was freed.
    FreedInherited,
    /// All its locks are free.
    AllInherited,
    /// Its slot is idle.
    Settled,
    /// Its slot is free.
    GivenUp,
}

impl Step {
    /// All steps of a commit of several words.
    pub const SEVERAL: [Self; 13] = [
        Self::LogHalf,
        Self::LogWhole,
        Self::Begun,
        Self::Locked,
        Self::AllLocked,
        Self::FlightsOver,
        Self::Compared,
        Self::Committed,
        Self::Wrote,
        Self::AllWritten,
        Self::Finished,
        Self::Freed,
        Self::AllFreed,
    ];
    /// All steps of a change of one word, and of becoming able to make one.
    pub const ONE: [Self; 6] =
        [Self::SlotClaimed, Self::Matched, Self::Announced, Self::Unlocked, Self::Changed, Self::Withdrawn];
    /// All steps of a recovery.
    pub const RECOVERY: [Self; 8] = [
        Self::Claimed,
        Self::Rewrote,
        Self::Replayed,
        Self::ReplayTold,
        Self::FreedInherited,
        Self::AllInherited,
        Self::Settled,
        Self::GivenUp,
    ];
}

#[cfg(not(feature = "fault"))]
#[inline(always)] // nothing
pub(crate) fn step(_: Step) {}

#[cfg(feature = "fault")]
pub(crate) use armed::step;
#[cfg(feature = "fault")]
pub use armed::{arm, disarm};

#[cfg(feature = "fault")]
mod armed {
    use std::cell::Cell;

    use super::Step;

    /// A step, how many times to pass it, and the function to call there.
    type Armed = (Step, u32, fn(Step));

    thread_local! {
        static ARMED: Cell<Option<Armed>> = const { Cell::new(None) };
    }

    pub(crate) fn step(here: Step) {
        match ARMED.get() {
            Some((at, 0, stop)) if at == here => {
                ARMED.set(None);
                stop(here);
            }
            Some((at, more, stop)) if at == here => ARMED.set(Some((at, more - 1, stop))),
            _ => {}
        }
    }

    /// Makes this thread call `stop` when it comes to `at`, after it has passed it `passes` times.
    pub fn arm(at: Step, passes: u32, stop: fn(Step)) {
        ARMED.set(Some((at, passes, stop)));
    }

    /// Takes that back; returns whether it was still to come.
    pub fn disarm() -> bool {
        ARMED.take().is_some()
    }
}
