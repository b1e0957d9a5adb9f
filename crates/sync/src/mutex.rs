//! A mutex that outlives its owners: robust, as POSIX calls it.
//!
//! When a process dies that owns the mutex, the next one that asks for it gets it, with [`Guard::owner_died`]: what the
//! mutex protects may be half changed. The new owner repairs that and declares it with [`Guard::mend`]. If it gives the
//! mutex back without, the mutex is [`Error::NotRecoverable`] for all from then on.
//!
//! Taking and giving back are one locked instruction each while no other thread wants the mutex. A thread that has to wait
//! spins for a while if that has paid lately, then sleeps. The first thread to come once the mutex is free takes it; for a
//! waiter that was overtaken four times it is kept.
//!
//! A death is noticed within 50 ms of sleep natively, 250 ms in a VM, or 5 s with the guest driver if its ring is lost, plus the time that the services take to publish it.
//!
//! # Layout
//! One line, a gate: the owner's process, two words of sleepers, state, heir, the owner's thread.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_lockfree::lock::{Changes, Found};
use isthmus_region::mapping::Section;
use isthmus_region::member::Member;

use crate::error::{Error, Result};
use crate::raw::RawLock;
use crate::wait;

/// Bytes of the section that a mutex takes.
pub const BYTES: u64 = 64;

/// A mutex, as one process has opened it. Any thread may use it, several at once.
#[derive(Debug)]
pub struct Mutex {
    raw: RawLock,
}

impl Mutex {
    /// Opens the mutex in `section`, which must be zeroed before it is opened for the first time.
    ///
    /// # Errors
    /// [`Error::Memory`] if the section is smaller than [`BYTES`] or misaligned.
    pub fn open(member: &Arc<Member>, section: &Section) -> Result<Self> {
        Ok(Self { raw: RawLock::new("a mutex", member, section, 0, 1, Changes::AtOnce)? })
    }

    /// Takes the mutex, waiting as long as it takes.
    ///
    /// # Errors
    /// [`Error::Deadlock`] if this thread owns it already; [`Error::NotRecoverable`].
    #[inline]
    pub fn lock(&self) -> Result<Guard<'_>> {
        self.guard(self.raw.lock(None)?)
    }

    /// Takes the mutex, waiting for `limit` at most.
    ///
    /// # Errors
    /// As [`Mutex::lock`], and [`Error::TimedOut`].
    pub fn lock_within(&self, limit: Duration) -> Result<Guard<'_>> {
        self.lock_until(wait::deadline(Some(limit)))
    }

    /// Takes the mutex if that needs no waiting: it is free, or its owner is dead.
    ///
    /// # Errors
    /// [`Error::WouldBlock`]; [`Error::NotRecoverable`].
    pub fn try_lock(&self) -> Result<Guard<'_>> {
        self.guard(self.raw.try_lock()?)
    }

    /// Whether a thread of this process is just taking the mutex, or giving it back: for a thread that was interrupted by a signal while it may have
    /// been at that itself, and would wait for itself.
    pub fn is_between(&self) -> bool {
        self.raw.is_between()
    }

    /// Gives back the mutex whose guard this thread [kept](Guard::keep).
    ///
    /// # Errors
    /// [`Error::NotOwner`].
    pub fn unlock(&self) -> Result<()> {
        self.kept().map(drop)
    }

    /// The guard that this thread kept.
    ///
    /// # Errors
    /// [`Error::NotOwner`].
    pub fn kept(&self) -> Result<Guard<'_>> {
        match self.raw.is_mine() {
            true => Ok(self.guard_of(self.raw.found())),
            false => Err(Error::NotOwner),
        }
    }

    pub(crate) fn lock_until(&self, deadline: Option<Instant>) -> Result<Guard<'_>> {
        self.guard(self.raw.lock(deadline)?)
    }

    #[inline]
    fn guard(&self, found: Found) -> Result<Guard<'_>> {
        let guard = self.guard_of(found);
        match found {
            Found::Sound | Found::Suspect => Ok(guard),
            // Dropping the guard gives the mutex back; the next owner finds the same.
            Found::Lost => Err(Error::NotRecoverable),
        }
    }

    #[inline]
    fn guard_of(&self, found: Found) -> Guard<'_> {
        Guard { mutex: self, owner_died: found == Found::Suspect, _of_this_thread: PhantomData }
    }
}

/// The mutex, taken. Dropping it gives it back; it stays with the thread that took it.
#[derive(Debug)]
#[must_use = "the mutex is given back at once"]
pub struct Guard<'a> {
    mutex: &'a Mutex,
    owner_died: bool,
    _of_this_thread: PhantomData<*const ()>,
}

impl<'a> Guard<'a> {
    /// Whether an owner died and no later one has mended what the mutex protects.
    pub fn owner_died(&self) -> bool {
        self.owner_died
    }

    /// Declares what the mutex protects sound again.
    pub fn mend(&mut self) {
        self.mutex.raw.mend();
        self.owner_died = false;
    }

    /// Leaves the mutex taken, until this thread calls [`Mutex::unlock`].
    pub fn keep(self) {
        std::mem::forget(self);
    }

    pub(crate) fn mutex(&self) -> &'a Mutex {
        self.mutex
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.mutex.raw.unlock();
    }
}
