//! Sets that threads keep, to find them without a lookup, and how a process lets go of those that were removed although its threads are idle.
//!
//! A set's memory serves others once no process has it open. A thread that keeps a set says whenever it is at it
//! ([`isthmus_lockfree::at_work`]), and looks after that whether the set is removed. So a set that is removed, and that no thread is at, will not
//! be touched any more, though threads keep it until they come here again: the service may be told.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use isthmus_lockfree::at_work::AtWork;
use isthmus_region::signals::{self, Guarded};
use rustix::thread::{MembarrierCommand, membarrier};

use super::Set;

/// The sets that this process has open.
#[derive(Debug, Default)]
pub(crate) struct Sets {
    by_id: Mutex<HashMap<i32, Arc<Set>>>,
    /// Those that were removed, as long as a thread keeps them.
    removed: Mutex<Vec<Weak<Set>>>,
    /// The marks of threads that keep sets.
    threads: Mutex<Vec<Weak<AtWork>>>,
}

impl Sets {
    pub(super) fn lock(&self) -> Guarded<'_, HashMap<i32, Arc<Set>>> {
        signals::lock(&self.by_id)
    }

    /// Takes out what was removed.
    pub(crate) fn forget_removed(&self) {
        let removed: Vec<_> = self.lock().extract_if(|_, set| set.is_removed()).collect();
        removed.into_iter().for_each(|(_, set)| self.note(&set));
        self.let_go();
    }

    /// Takes out a set that was removed.
    pub(super) fn forget(&self, id: i32) {
        let set = self.lock().remove(&id);
        set.iter().for_each(|set| self.note(set));
    }

    fn note(&self, set: &Arc<Set>) {
        signals::lock(&self.removed).push(Arc::downgrade(set));
    }

    /// Tells the service of the sets that were removed, and that no thread is at.
    fn let_go(&self) {
        let removed = std::mem::take(&mut *signals::lock(&self.removed));
        let mut sets: Vec<_> = removed.iter().filter_map(Weak::upgrade).collect();
        if sets.is_empty() {
            return;
        }
        // All of them are removed. Where the system makes no such fence, threads let go of them one by one.
        if fence_all_threads() && !self.is_any_at_work() {
            sets.retain(|set| !set.let_go());
        }
        signals::lock(&self.removed).extend(sets.iter().map(Arc::downgrade));
        // Dropped with no lock held: the last user tells the service.
        drop(sets);
    }

    fn is_any_at_work(&self) -> bool {
        let mut threads = signals::lock(&self.threads);
        threads.retain(|mark| mark.strong_count() > 0);
        threads.iter().filter_map(Weak::upgrade).any(|mark| mark.is_set())
    }

    /// Looks at the mark of a thread that is going to keep sets.
    pub(super) fn add_thread(&self, mark: &Arc<AtWork>) {
        signals::lock(&self.threads).push(Arc::downgrade(mark));
    }
}

/// A full fence in all threads of this process that run (P25); whether there was one.
fn fence_all_threads() -> bool {
    let is_made = |command| membarrier(command).is_ok();
    is_made(MembarrierCommand::RegisterPrivateExpedited) && is_made(MembarrierCommand::PrivateExpedited)
}

/// A set that a thread keeps. It is at it only while its mark says so ([`crate::Ipc::add_thread`]), and only if it is not removed by then; or as long as it
/// has a share of its own.
#[derive(Debug)]
pub struct Keeping(Arc<Set>);

impl Keeping {
    /// Keeps a set.
    pub fn new(set: &Arc<Set>) -> Self {
        set.keepers.add(1);
        Self(Arc::clone(set))
    }

    /// A share for a call that goes on after the mark is taken back.
    pub fn share(&self) -> Arc<Set> {
        Arc::clone(&self.0)
    }
}

impl std::ops::Deref for Keeping {
    type Target = Set;

    #[inline]
    fn deref(&self) -> &Set {
        &self.0
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.0.keepers.sub(1);
    }
}

impl Set {
    /// Tells the service that this process has the set open no more, for a caller that has found no thread at work, unless somebody has a share
    /// beside those that threads keep, and the caller's. Gives whether it has.
    fn let_go(self: &Arc<Self>) -> bool {
        // In this order: one that keeps it no longer has taken itself from the count first.
        let shares = Arc::strong_count(self) as u64;
        let is_idle = shares == self.keepers.get() + 1;
        if is_idle && let Some(used) = self.used.as_ref().filter(|used| Arc::strong_count(used) == 1) {
            used.let_go();
            return true;
        }
        false
    }
}
