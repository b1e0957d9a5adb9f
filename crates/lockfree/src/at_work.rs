//! Which threads of a process are at something, as another thread of it may find out that seldom wants to know: those at work pay for
//! no fence (P25).
//!
//! ```text
//! at work: mark += 1                             the other: it is over (others say so, or this one)
//!          kept in this order by the compiler               a full fence in all threads (membarrier(2))
//!          is it over? if not: works                        a mark? then somebody may be at work still
//!          mark -= 1 (release)
//! ```
//! A thread whose mark the other one does not find has gone on, and all that it did is seen; or it sets its mark after the
//! fence, and finds that it is over.

use std::cell::{OnceCell, UnsafeCell};
use std::sync::Arc;

use crate::sync::{Word, compiler_order};

/// In a mark: what the thread keeps is being changed.
const CHANGES: u64 = 1 << 32;

/// The mark of one thread, which alone changes it: how often it is at work, as the handler of a signal may be, too.
#[derive(Debug)]
pub struct AtWork(Word);

/// While it lives, its thread is at work.
#[derive(Debug)]
pub struct Working<'a> {
    mark: &'a Word,
    before: u64,
}

impl AtWork {
    /// The mark of a thread that is at nothing.
    #[allow(clippy::new_without_default)] // models have their words on the heap
    pub fn new() -> Self {
        Self(Word::new(0))
    }

    /// Says that the calling thread, whose mark this is, is at work. After this it looks whether that is over. None while what it keeps
    /// is being changed.
    ///
    /// # Ordering
    /// None but the compiler's: the other thread has the processors keep it (P25).
    #[inline]
    pub fn begin(&self) -> Option<Working<'_>> {
        let before = self.0.peek();
        if before >= CHANGES {
            return None;
        }
        self.0.put(before + 1);
        compiler_order();
        Some(Working { mark: &self.0, before })
    }

    /// Says that the calling thread changes what it keeps; none while it is at work.
    fn change(&self) -> Option<Working<'_>> {
        if self.0.peek() != 0 {
            return None;
        }
        self.0.put(CHANGES);
        compiler_order();
        Some(Working { mark: &self.0, before: 0 })
    }

    /// Whether its thread is at work; for one that has had a fence made in all threads since it found that it is over.
    ///
    /// # Ordering
    /// Acquire: what its thread did is visible (P25).
    pub fn is_set(&self) -> bool {
        self.0.get() != 0
    }
}

impl Drop for Working<'_> {
    #[inline]
    fn drop(&mut self) {
        self.mark.set(self.before);
    }
}

/// What a thread keeps, for itself alone, and is at work with whenever it uses it: a `RefCell` whose count of users other threads may see.
#[derive(Debug)]
pub struct Own<T> {
    mark: OnceCell<Arc<AtWork>>,
    value: UnsafeCell<T>,
}

impl<T> Own<T> {
    /// With this value.
    pub const fn new(value: T) -> Self {
        Self { mark: OnceCell::new(), value: UnsafeCell::new(value) }
    }

    /// The thread's mark.
    pub fn mark(&self) -> &Arc<AtWork> {
        self.mark.get_or_init(|| Arc::new(AtWork::new()))
    }

    /// Uses it, at work; not before [`Own::mark`] was called, nor while it is changed.
    #[inline]
    pub fn read<R>(&self, does: impl FnOnce(&T) -> R) -> Option<R> {
        let _working = self.mark.get()?.begin()?;
        // SAFETY: one thread alone has this, and its mark keeps `change` from any other reference meanwhile.
        Some(does(unsafe { &*self.value.get() }))
    }

    /// Changes it, unless the thread is at work with it, or changes it already.
    pub fn change<R>(&self, does: impl FnOnce(&mut T) -> R) -> Option<R> {
        let _changing = self.mark().change()?;
        // SAFETY: one thread alone has this, and its mark said that there is no other reference, and keeps others from it.
        Some(does(unsafe { &mut *self.value.get() }))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_keeps_is_used_or_changed() {
        let own = Own::new(1);
        assert_eq!(own.read(|it| *it), None, "without a mark");
        let mark = Arc::clone(own.mark());
        let read = own.read(|it| {
            assert!(mark.is_set());
            assert_eq!(own.change(|it| *it += 1), None, "it is used");
            (*it, own.read(|it| *it), mark.is_set())
        });
        assert_eq!((read, mark.is_set()), (Some((1, Some(1), true)), false));
        let changed = own.change(|it| {
            *it += 1;
            (own.read(|it| *it), own.change(|it| *it))
        });
        assert_eq!((changed, mark.is_set(), own.read(|it| *it)), (Some((None, None)), false, Some(2)));
    }
}
