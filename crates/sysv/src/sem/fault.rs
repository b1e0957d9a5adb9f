//! Steps of operations on a set: see `crate::fault`.

use isthmus_lockfree::mcas;

/// A place at which a process may be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A change of several words is so far.
    Words(mcas::Step),
    /// A word was changed alone; nobody is rung yet.
    Changed,
    /// An undo cell is taken, and not yet named.
    CellTaken,
    /// A thread has said that it may sleep.
    Announced,
    /// A thread has said what it waits for.
    Recorded,
}

impl Step {
    /// All steps.
    pub fn all() -> impl Iterator<Item = Self> {
        let own = [Self::Changed, Self::CellTaken, Self::Announced, Self::Recorded];
        mcas::Step::ALL.into_iter().map(Self::Words).chain(own)
    }
}

crate::fault::steps!();
