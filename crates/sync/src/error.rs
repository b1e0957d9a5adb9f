//! What can go wrong with an object of synchronisation.

use isthmus_region::party::Party;

/// This crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The memory of the object cannot be used.
    #[error("cannot use the memory of {what}")]
    Memory {
        /// The object.
        what: &'static str,
        /// What is wrong with it.
        #[source]
        source: isthmus_region::Error,
    },
    /// A parameter that no object of this kind can have.
    #[error("{what} cannot be {value}: {limits}")]
    BadParameter {
        /// The parameter.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Which values there may be.
        limits: &'static str,
    },
    /// Others use the same memory with other parameters.
    #[error("{what} is used with other parameters by others: all must open it with the same ones")]
    Mismatch {
        /// The object.
        what: &'static str,
    },
    /// A shared word has an impossible value: some process has written where it should not.
    #[error("{what} holds {value:#x}, which cannot be right: some process has overwritten the object")]
    Corrupt {
        /// The word.
        what: &'static str,
        /// What it holds.
        value: u64,
    },
    /// All places are taken.
    #[error("{what} has {places} places, and all are taken by processes that live")]
    Full {
        /// The object.
        what: &'static str,
        /// How many places it has.
        places: u64,
    },
    /// A participant of the barrier is gone, so this round and all later ones cannot end.
    #[error("the barrier is broken: {}", broken(*dead))]
    Broken {
        /// The process that died; none if a participant gave the barrier up.
        dead: Option<Party>,
    },
    /// What was to be reset is in use by processes that live.
    #[error("{what} is still in use by processes that live")]
    InUse {
        /// The object.
        what: &'static str,
    },
    /// The time is up.
    #[error("the time was up before it came about")]
    TimedOut,
    /// It could not be done at once, and the caller asked not to wait.
    #[error("it could not be done at once")]
    WouldBlock,
    /// The caller waits for itself.
    #[error("this thread owns the lock already and would wait for itself")]
    Deadlock,
    /// Only the thread that owns a lock can give it back, or declare sound what it protects.
    #[error("this thread does not own the lock")]
    NotOwner,
    /// The last writer's process died while it wrote; the lock was not taken.
    #[error("a process died while it owned the lock: a writer has to take it and mend what it protects")]
    OwnerDied,
    /// An owner died, and the next one gave the lock back without declaring what it protects mended.
    #[error("the lock cannot be used any more: what it protects was left unmended after its owner's death")]
    NotRecoverable,
    /// The semaphore's value would be too large.
    #[error("the semaphore would go beyond its largest value, {most}")]
    Overflow {
        /// The largest value.
        most: u64,
    },
}

impl Error {
    /// Wraps what the region says about the memory of `what`.
    pub(crate) fn memory(what: &'static str) -> impl Fn(isthmus_region::Error) -> Self {
        move |source| Self::Memory { what, source }
    }
}

fn broken(dead: Option<Party>) -> String {
    dead.map_or_else(|| "a participant gave it up".into(), |party| format!("{party} died"))
}
