//! Signals are blocked while a thread has a lock of the library, or allocates for it: a handler that interrupts it may make
//! calls which need the same lock. Nor is the thread cancelled (pthread_cancel(3)) where it may come to one of libc's points of
//! cancellation, to open, read or close a file: a lock would be left taken, or the process be ended, since no frame here can be unwound so.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Signals that a thread's own instructions cause. Blocked, they would end a process that handles them: one that has its system
/// calls emulated, or its memory fetched.
const OWN: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// All signals but those, and those of libc's own.
fn blocked() -> libc::sigset_t {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: a set of this function's.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    for own in OWN {
        // SAFETY: the same set.
        unsafe { libc::sigdelset(all.as_mut_ptr(), own) };
    }
    // SAFETY: zeros are a set as well.
    unsafe { all.assume_init() }
}

/// The kernel's part of a set.
fn kernel_set(set: &libc::sigset_t) -> u64 {
    // SAFETY: a set of libc is larger, aligned, and begins with it.
    unsafe { std::ptr::from_ref(set).cast::<u64>().read() }
}

/// While it lives, its thread has all signals blocked but those that its own instructions cause. They nest; the last one dropped
/// restores the program's mask.
#[derive(Debug)]
pub struct Blocked {
    before: Option<libc::sigset_t>,
    /// It stays in its thread.
    _thread: PhantomData<*const ()>,
}

impl Blocked {
    /// Blocks all signals.
    #[allow(clippy::new_without_default)] // it has an effect
    pub fn new() -> Self {
        let all = blocked();
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: two sets of this function's.
        let done = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, before.as_mut_ptr()) };
        // SAFETY: filled in by the call, and zeros are a set as well.
        let before = unsafe { before.assume_init() };
        Self { before: (done == 0).then_some(before), _thread: PhantomData }
    }

    /// The signals that are blocked by this and were not before, as the kernel has them: signal 1 in bit 0.
    pub fn added(&self) -> u64 {
        self.before.as_ref().map_or(0, |before| kernel_set(&blocked()) & !kernel_set(before))
    }

    /// The mask that the thread had before, if it is known.
    pub fn before(&self) -> Option<&libc::sigset_t> {
        self.before.as_ref()
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // SAFETY: the set that the thread had.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
        }
    }
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}

/// `PTHREAD_CANCEL_DISABLE`, with glibc and with musl.
const CANCEL_DISABLE: libc::c_int = 1;

/// While it lives, its thread is not cancelled: pthread_cancel(3) unwinds a thread at libc's points of cancellation (close(2) is one), and
/// cannot unwind our frames, so the process would end. A request stays pending. They nest. It costs tens of nanoseconds, so calls that
/// are over sooner do without, and reach no such point.
#[derive(Debug)]
pub struct Uncancelled {
    before: libc::c_int,
    /// It stays in its thread.
    _thread: PhantomData<*const ()>,
}

impl Uncancelled {
    /// Has the thread not be cancelled.
    #[allow(clippy::new_without_default)] // it has an effect
    pub fn new() -> Self {
        let mut before = 0;
        // SAFETY: a state of pthreads, and a place of this function's.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut before) };
        Self { before, _thread: PhantomData }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state that the thread had; it acts on a request only at its next point of cancellation.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}

/// Memory that is allocated and freed with all signals blocked, in a call that signals may interrupt.
#[derive(Debug)]
pub struct Allocated<T>(Vec<T>);

impl<T: Clone> Allocated<T> {
    /// So many of a value.
    pub fn new(value: T, count: usize) -> Self {
        let _blocked = Blocked::new();
        Self(vec![value; count])
    }
}

impl<T> Deref for Allocated<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for Allocated<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T> Drop for Allocated<T> {
    fn drop(&mut self) {
        let _blocked = Blocked::new();
        drop(std::mem::take(&mut self.0));
    }
}

/// Drops what a call has that signals may interrupt: with all signals blocked, and not cancelled, if it is the last of it.
pub fn let_go<T>(shared: Arc<T>) {
    let _guards = (Arc::strong_count(&shared) == 1).then(|| (Uncancelled::new(), Blocked::new()));
    drop(shared);
}

/// A lock that others have for a few instructions; none if this thread is the handler of a signal that came while it had it.
pub(crate) fn lock_soon<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    const TRIES: u32 = 1000;
    for _ in 0..TRIES {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(guard)) => return Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
        }
    }
    None
}

/// A lock that its thread has with all signals blocked.
#[derive(Debug)]
pub struct Guarded<'a, T> {
    // The lock goes first.
    guard: MutexGuard<'a, T>,
    _blocked: Blocked,
}

/// Blocks all signals, and locks.
pub fn lock<T>(mutex: &Mutex<T>) -> Guarded<'_, T> {
    let blocked = Blocked::new();
    Guarded { guard: mutex.lock().unwrap_or_else(PoisonError::into_inner), _blocked: blocked }
}

impl<T> Deref for Guarded<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Guarded<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_blocked() -> bool {
        let mut now = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: a set of this function's.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), now.as_mut_ptr()) };
        // SAFETY: as above, filled in by the call.
        unsafe { libc::sigismember(now.as_ptr(), libc::SIGUSR1) == 1 }
    }

    #[test]
    fn signals_are_blocked_while_a_lock_is_held() {
        let (outer, inner) = (Mutex::new(1), Mutex::new(2));
        assert!(!is_blocked());
        let first = lock(&outer);
        drop(lock(&inner));
        assert!(is_blocked());
        drop(first);
        assert!(!is_blocked());
    }
}
