//! Places where a test can stop a process for ever, to check what its peers see.
//!
//! Each [`Step`] is a place in a protocol at which something is half done. In a build with the feature
//! `fault`, a test arms one with `die_at`; the thread that gets there unwinds with `Dead`, and the test then
//! forgets the endpoint, as the kernel forgets a process that was killed. In every other build `step` is
//! empty.

/// A place at which a process may be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A lane has its memory, and no descriptor.
    LaneTaken,
    /// The descriptor is written, and not active yet.
    LaneDescribed,
    /// The descriptor is active, and the version does not say so.
    LaneAlive,
    /// The lane is open, with nothing in it.
    LaneOpened,
    /// A payload is in the data ring, and no slot names it.
    Staged,
    /// A slot is about to be published.
    Unpublished,
    /// A slot is published and not announced.
    Published,
    /// A slot is announced, if that was needed.
    Announced,
    /// A reply of the protocol's own is owed.
    ReplyOwed,
    /// `CLEAR` has come, and no chunk has gone.
    ClearTaken,
    /// A chunk is filled, and no slot names it.
    ChunkFilled,
    /// A chunk is on its way.
    ChunkSent,
    /// A lane is about to be closed.
    LaneClosing,
    /// A lane's descriptor says that it is closed, and its receiver does not know.
    LaneClosed,
    /// An accept entry is written, and has no key yet.
    AcceptWritten,
    /// An accept entry has its key, and the version does not say so.
    AcceptAlive,
    /// A message is there, and is not handled.
    MessageSeen,
    /// A message is handled, and counts as unread.
    MessageTaken,
    /// Messages are read, and their slots are not given back.
    Unreleased,
    /// A message is announced, matches, and is not asked for.
    Unasked,
    /// A piece is copied from where its sender has it, and nobody knows.
    PieceAttached,
    /// A chunk is copied out, and is not counted.
    ChunkDrained,
    /// A chunk is counted and given back.
    ChunkReleased,
    /// A pipelined message is whole, and `DONE` is not sent.
    AllReceived,
    /// A remote write is in place, and `DONE` is not sent.
    Written,
    /// A remote read is about to be answered.
    ReadAsked,
    /// An atomic operation is done, and its result is not sent.
    AtomicDone,
    /// A result is in place, and the operation is not over.
    ResultPlaced,
    /// `DONE` has come, and the operation is not over.
    DoneSeen,
    /// A lane was made hot.
    Warmed,
    /// A lane was asked to cool.
    CoolAsked,
    /// A request to cool was answered.
    CoolAnswered,
    /// An incoming lane's accept entry is free again, and the version does not say so.
    AcceptFreed,
    /// An endpoint is about to be closed.
    Closing,
    /// An endpoint's record is closed, and its memory is not given back.
    Closed,
}

impl Step {
    /// All steps.
    pub const ALL: [Self; 35] = [
        Self::LaneTaken,
        Self::LaneDescribed,
        Self::LaneAlive,
        Self::LaneOpened,
        Self::Staged,
        Self::Unpublished,
        Self::Published,
        Self::Announced,
        Self::ReplyOwed,
        Self::ClearTaken,
        Self::ChunkFilled,
        Self::ChunkSent,
        Self::LaneClosing,
        Self::LaneClosed,
        Self::AcceptWritten,
        Self::AcceptAlive,
        Self::MessageSeen,
        Self::MessageTaken,
        Self::Unreleased,
        Self::Unasked,
        Self::PieceAttached,
        Self::ChunkDrained,
        Self::ChunkReleased,
        Self::AllReceived,
        Self::Written,
        Self::ReadAsked,
        Self::AtomicDone,
        Self::ResultPlaced,
        Self::DoneSeen,
        Self::Warmed,
        Self::CoolAsked,
        Self::CoolAnswered,
        Self::AcceptFreed,
        Self::Closing,
        Self::Closed,
    ];
}

#[cfg(not(feature = "fault"))]
#[inline(always)]
pub(crate) fn step(_: Step) {}

#[cfg(feature = "fault")]
pub(crate) use armed::step;
#[cfg(feature = "fault")]
pub use armed::{Dead, die_at};

#[cfg(feature = "fault")]
mod armed {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};

    use super::Step;

    thread_local! {
        static ARMED: Cell<Option<(Step, u32)>> = const { Cell::new(None) };
    }

    /// A process was stopped, and where.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Dead(pub Step);

    pub(crate) fn step(here: Step) {
        match ARMED.get() {
            Some((at, 0)) if at == here => {
                ARMED.set(None);
                panic_any(Dead(here));
            }
            Some((at, more)) if at == here => ARMED.set(Some((at, more - 1))),
            _ => {}
        }
    }

    /// Runs `body` as a process that is stopped when it reaches `at` after passing it `passes` times;
    /// `passes` is left at what remains of them. If it was stopped, what `body` used must be forgotten, not
    /// dropped.
    ///
    /// # Errors
    /// [`Dead`] if it was stopped.
    pub fn die_at<T>(at: Step, passes: &mut u32, body: impl FnOnce() -> T) -> Result<T, Dead> {
        ARMED.set(Some((at, *passes)));
        let outcome = catch_unwind(AssertUnwindSafe(body));
        if let Some((_, left)) = ARMED.take() {
            *passes = left;
        }
        outcome.map_err(|cause| match cause.downcast::<Dead>() {
            Ok(dead) => *dead,
            Err(other) => resume_unwind(other),
        })
    }
}
