//! Flags and counts that threads of one process share, outside of every region.
//!
//! All accesses but [`Count::peek`] are sequentially consistent: what a thread did before it set a flag is visible to a thread that
//! sees it set, and no two threads disagree about an order. None of this is on the way of a message.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// A flag.
#[derive(Debug, Default)]
pub struct Flag(AtomicBool);

impl Flag {
    /// A flag that is set or not.
    pub const fn new(is_set: bool) -> Self {
        Self(AtomicBool::new(is_set))
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        self.0.load(SeqCst)
    }

    /// Sets it; gives whether it was set before.
    pub fn set(&self) -> bool {
        self.0.swap(true, SeqCst)
    }

    /// Clears it; gives whether it was set before.
    pub fn clear(&self) -> bool {
        self.0.swap(false, SeqCst)
    }
}

/// A count, or a set of bits.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// A count that begins at `value`.
    pub const fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// The count.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(SeqCst)
    }

    /// The count, without order: for a first look that a second one confirms.
    #[inline]
    pub fn peek(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Sets it.
    pub fn set(&self, value: u64) {
        self.0.store(value, SeqCst);
    }

    /// Adds to it; gives what it was before.
    pub fn add(&self, by: u64) -> u64 {
        self.0.fetch_add(by, SeqCst)
    }

    /// Takes from it; gives what it was before.
    pub fn sub(&self, by: u64) -> u64 {
        self.0.fetch_sub(by, SeqCst)
    }

    /// Sets it to zero; gives what it was.
    pub fn take(&self) -> u64 {
        self.0.swap(0, SeqCst)
    }

    /// Sets bits; gives what it was before.
    pub fn insert(&self, bits: u64) -> u64 {
        self.0.fetch_or(bits, SeqCst)
    }

    /// Clears bits; gives what it was before.
    pub fn remove(&self, bits: u64) -> u64 {
        self.0.fetch_and(!bits, SeqCst)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_change_gives_what_was_before() {
        let (flag, count) = (Flag::default(), Count::new(3));
        assert!(!flag.set() && flag.set() && flag.is_set() && flag.clear() && !flag.clear());
        assert_eq!([count.add(2), count.sub(1), count.get()], [3, 5, 4]);
        assert_eq!([count.insert(3), count.remove(4), count.take(), count.peek()], [4, 7, 3, 0]);
    }
}
