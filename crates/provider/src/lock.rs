//! A lock that is left out where the program promised to keep threads apart.
//!
//! Under `FI_THREAD_DOMAIN` one thread at a time uses a domain and all that belongs to it, by libfabric's contract, so
//! every lock of that domain is left out and costs nothing. With any other level the lock is real.

use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A value of a domain: at most one [`Guard`] of it is in use at a time.
pub(crate) struct Lock<T> {
    mutex: Option<Mutex<()>>,
    value: UnsafeCell<T>,
}

// SAFETY: with the mutex, as any mutex. Without it, the program promised FI_THREAD_DOMAIN: threads take turns, and it
// orders their accesses, so the value is sent from one to the next.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A value with a real lock if `real`, else one whose lock is left out.
    pub(crate) fn new(real: bool, value: T) -> Self {
        Self { mutex: real.then(Mutex::default), value: UnsafeCell::new(value) }
    }

    /// Locks it, waiting for the lock. The thread must not hold a guard of it already.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        let held = self.mutex.as_ref().map(wait);
        Guard { value: self.value.get(), _held: held, _of: self }
    }

    /// Its guard where the lock is left out; none where the lock is real.
    #[inline]
    pub(crate) fn without_lock(&self) -> Option<Guard<'_, T>> {
        self.mutex.is_none().then(|| Guard { value: self.value.get(), _held: None, _of: self })
    }

    /// Locks it, unless another thread holds the lock.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        let held = match &self.mutex {
            None => None,
            Some(mutex) => Some(try_wait(mutex)?),
        };
        Some(Guard { value: self.value.get(), _held: held, _of: self })
    }
}

// What a real lock needs is out of line, so that the code without one stays short.

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

/// A real lock that is held.
struct Held<'a>(ManuallyDrop<MutexGuard<'a, ()>>);

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        #[inline(never)]
        fn give_back(guard: &mut ManuallyDrop<MutexGuard<'_, ()>>) {
            // SAFETY: only `Held::drop` calls this, so once, and nothing uses the guard afterwards.
            unsafe { ManuallyDrop::drop(guard) };
        }
        give_back(&mut self.0);
    }
}

/// Access to the value, until dropped.
pub(crate) struct Guard<'a, T> {
    value: *mut T,
    _held: Option<Held<'a>>,
    _of: &'a Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: no other guard is in use: the mutex is held, or the program promised FI_THREAD_DOMAIN.
        unsafe { &*self.value }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: no other guard is in use, as in `deref`, and this one is borrowed mutably.
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
