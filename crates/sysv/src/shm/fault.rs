//! Steps of attaching, detaching and removing a segment: see `crate::fault`.

/// A place at which a process may be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It is said in the segment's page that the process attaches it.
    Entered,
    /// The service was told.
    Told,
    /// The time is written; the segment is not mapped yet.
    Attached,
    /// The time of the detach is written, and the mapping is gone.
    Detaching,
    /// The service was told of it.
    Detached,
    /// The segment is marked as removed.
    Removed,
}

impl Step {
    /// All steps.
    pub const ALL: [Self; 6] =
        [Self::Entered, Self::Told, Self::Attached, Self::Detaching, Self::Detached, Self::Removed];
}

crate::fault::steps!();
