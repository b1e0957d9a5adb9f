//! A lock that is left out where the caller promised to keep threads apart.
//!
//! Under `FI_THREAD_DOMAIN` libfabric's contract is that one thread at a time uses a domain and all that belongs to it,
//! so every lock of that domain is left out and costs nothing. With any other level the lock is real.

use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A value of a domain.
pub(crate) struct Lock<T> {
    mutex: Option<Mutex<()>>,
    value: UnsafeCell<T>,
}

// SAFETY: with the mutex as any mutex; without it, the caller promised that threads take turns (and orders their
// accesses), which is sending the value from one to the next.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Lock<T> {}

impl<T> Lock<T> {
    /// A value that is locked if `real`.
    pub(crate) fn new(real: bool, value: T) -> Self {
        Self { mutex: real.then(Mutex::default), value: UnsafeCell::new(value) }
    }

    /// Waits for its turn. Must not be called again while the guard lives.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        let held = self.mutex.as_ref().map(wait);
        Guard { value: self.value.get(), _held: held, _of: self }
    }

    /// Takes its turn where no lock is needed for that.
    #[inline]
    pub(crate) fn unlocked(&self) -> Option<Guard<'_, T>> {
        self.mutex.is_none().then(|| Guard { value: self.value.get(), _held: None, _of: self })
    }

    /// Takes its turn if nobody else has it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        let held = match &self.mutex {
            None => None,
            Some(mutex) => Some(try_wait(mutex)?),
        };
        Some(Guard { value: self.value.get(), _held: held, _of: self })
    }
}

// What a real lock needs is kept out of line, so that the way without one stays short.

#[inline(never)]
fn wait(mutex: &Mutex<()>) -> Held<'_> {
    Held(ManuallyDrop::new(mutex.lock().unwrap_or_else(PoisonError::into_inner)))
}

#[inline(never)]
fn try_wait(mutex: &Mutex<()>) -> Option<Held<'_>> {
    let guard = match mutex.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(p)) => p.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    Some(Held(ManuallyDrop::new(guard)))
}

/// A real lock's turn.
struct Held<'a>(ManuallyDrop<MutexGuard<'a, ()>>);

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        #[inline(never)]
        fn give_back(guard: &mut ManuallyDrop<MutexGuard<'_, ()>>) {
            // SAFETY: called once, by the drop of what holds it.
            unsafe { ManuallyDrop::drop(guard) };
        }
        give_back(&mut self.0);
    }
}

/// The turn.
pub(crate) struct Guard<'a, T> {
    value: *mut T,
    _held: Option<Held<'a>>,
    _of: &'a Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard is the only one, by the mutex or by the caller's promise.
        unsafe { &*self.value }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_lock_is_held_once() {
        let lock = Lock::new(true, 1);
        let mut held = lock.lock();
        *held += 1;
        assert!(lock.try_lock().is_none());
        drop(held);
        assert_eq!(lock.try_lock().map(|v| *v), Some(2));
    }
}
