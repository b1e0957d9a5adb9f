//! The atomics of this workspace. Under `cfg(loom)` they are the model checker's, and live on the heap.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use crate::LINE_WORDS;

/// A 64-bit word in shared memory as its readers have it: there is no way to store to it.
#[derive(Debug)]
#[repr(transparent)]
pub struct ReadWord(AtomicU64);

impl ReadWord {
    /// Reads with acquire: everything that the writer stored before its [`Word::set`] is visible after.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Reads without ordering: for the word's own writer, and for hints that are read again.
    #[inline]
    pub fn peek(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The lower half, in place: what a futex of this word is. For the kernel alone to read.
    #[cfg(not(loom))]
    pub fn futex(&self) -> &AtomicU32 {
        // SAFETY: a little-endian word starts with its lower half, and an atomic may be aligned better than it must be.
        unsafe { &*(&raw const self.0).cast::<AtomicU32>() }
    }
}

/// A 64-bit word in shared memory as a writer has it; it has one writer unless its field says otherwise. It reads as a
/// [`ReadWord`].
///
/// The three accesses are all that the format needs: what is published with [`Word::set`] is read with
/// [`ReadWord::get`], and a value that its only writer reads back uses [`ReadWord::peek`].
#[derive(Debug)]
#[repr(transparent)]
pub struct Word(ReadWord);

impl std::ops::Deref for Word {
    type Target = ReadWord;

    #[inline(always)] // it is the same word
    fn deref(&self) -> &ReadWord {
        &self.0
    }
}

impl Word {
    /// A word on the heap, for models and tests; in a region words are views of mapped memory.
    pub fn new(value: u64) -> Self {
        Self(ReadWord(AtomicU64::new(value)))
    }

    #[inline(always)] // it is the same word
    fn atomic(&self) -> &AtomicU64 {
        &self.0.0
    }

    /// Publishes `value` with release.
    #[inline]
    pub fn set(&self, value: u64) {
        self.atomic().store(value, Ordering::Release);
    }

    /// Stores without ordering: for words that another store publishes, and for statistics.
    #[inline]
    pub fn put(&self, value: u64) {
        self.atomic().store(value, Ordering::Relaxed);
    }

    /// Adds to a statistic that has one writer: a load and a store, no locked instruction.
    #[inline]
    pub fn bump(&self, by: u64) {
        self.put(self.peek().wrapping_add(by));
    }

    /// Adds atomically, with acquire and release; for words that several processes share. Gives what was there.
    #[inline]
    pub fn add(&self, by: u64) -> u64 {
        self.atomic().fetch_add(by, Ordering::AcqRel)
    }

    /// Exchanges atomically, with acquire and release. Gives what was there.
    #[inline]
    pub fn swap(&self, value: u64) -> u64 {
        self.atomic().swap(value, Ordering::AcqRel)
    }

    /// Stores `new` if the word holds `old`, with acquire and release; else gives what it holds, with acquire.
    ///
    /// # Errors
    /// What the word holds instead.
    #[inline]
    pub fn replace(&self, old: u64, new: u64) -> Result<(), u64> {
        self.atomic().compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }

    /// Sets bits atomically, with acquire and release. Gives what was there.
    #[inline]
    pub fn insert(&self, bits: u64) -> u64 {
        self.atomic().fetch_or(bits, Ordering::AcqRel)
    }

    /// Clears bits atomically, with acquire and release. Gives what was there.
    #[inline]
    pub fn remove(&self, bits: u64) -> u64 {
        self.atomic().fetch_and(!bits, Ordering::AcqRel)
    }
}

/// One cache line of words, as its readers have it.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ReadLine {
    /// The eight words.
    pub words: [ReadWord; LINE_WORDS],
}

/// One cache line of words, as a writer has it. It reads as a [`ReadLine`].
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Line {
    /// The eight words, each with the writer that the field's description names.
    pub words: [Word; LINE_WORDS],
}

impl Line {
    /// A zeroed line on the heap.
    pub fn new() -> Self {
        Self { words: std::array::from_fn(|_| Word::new(0)) }
    }
}

impl std::ops::Deref for Line {
    type Target = ReadLine;

    #[inline(always)] // it is the same line
    fn deref(&self) -> &ReadLine {
        // SAFETY: both are eight words at the same places, and a Word is a transparent ReadWord; all access is by atomics.
        unsafe { &*(&raw const *self).cast::<ReadLine>() }
    }
}

impl Default for Line {
    fn default() -> Self {
        Self::new()
    }
}

/// Makes every load before it happen before every store and load after it.
///
/// Stands between a copy out of shared memory and the second look at the incarnation that guards it (P5).
#[inline]
pub fn acquire_fence() {
    fence(Ordering::Acquire);
}

/// Makes every store before it visible before any store after it.
#[inline]
pub fn release_fence() {
    fence(Ordering::Release);
}

/// Orders a store before it with a load after it, which nothing weaker does (P6).
#[inline]
pub fn full_fence() {
    fence(Ordering::SeqCst);
}

/// Keeps the compiler from moving accesses across it. A model has a full fence instead.
#[cfg(not(loom))]
#[inline]
pub fn compiler_order() {
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// Keeps the compiler from moving accesses across it. A model has a full fence instead.
#[cfg(loom)]
pub fn compiler_order() {
    full_fence();
}
