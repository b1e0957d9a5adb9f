//! Barriers, mutexes, condition variables, semaphores, reader-writer locks, and initialisation once.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::TryLockError;
use std::time::Duration;

use isthmus::sync::once::Begun;
use isthmus::{
    Attachment, Barrier, Condvar, Kind, Mutex, Named, Parameters, Participant, RwLock, Semaphore, Waiting,
};
use isthmus_cabi::put;

use crate::Handle;
use crate::attachment::hand_over;
use crate::errno::{Failure, given};
use crate::segment::named;

const FOREVER: u64 = u64::MAX;
/// A lock was taken whose earlier owner died with it.
const OWNER_DIED: c_int = 1;

/// A barrier's participant, as C holds it.
pub type Seat = std::sync::Mutex<Participant>;

/// The name that C gave, with the mode of what may be made there.
///
/// # Safety
/// `name` is null or a string.
pub(crate) unsafe fn name(here: &Attachment, name: *const c_char, mode: c_uint) -> Result<Named, Failure> {
    // SAFETY: by this function's contract, `name` is null or a string that ends in a zero.
    Ok(here.named(unsafe { named(name) }?).mode(mode))
}

pub(crate) fn limit(timeout_ns: u64) -> Option<Duration> {
    (timeout_ns != FOREVER).then(|| Duration::from_nanos(timeout_ns))
}

/// Removes a name.
///
/// # Safety
/// `here` is null or an attachment; `name` is null or a string.
pub(crate) unsafe fn unlink(here: *const Handle<Attachment>, kind: Kind, name: *const c_char) -> c_int {
    // SAFETY: by this function's contract, `name` is null or a string that ends in a zero.
    let body = |attached: &Attachment| Ok(attached.unlink(kind, unsafe { named(name) }?)?);
    // SAFETY: by this function's contract, `here` is null or an open handle.
    unsafe { Handle::run(here, body) }
}

/// Takes part in a barrier.
///
/// # Safety
/// `here` is null or an attachment; `called` is null or a string; `seat` is null or good for writing a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_barrier_join(
    here: *const Handle<Attachment>,
    called: *const c_char,
    parties: u32,
    waiting: c_uint,
    mode: c_uint,
    seat: *mut *mut Handle<Seat>,
) -> c_int {
    let body = |attached: &Attachment| {
        // SAFETY: by this function's contract, `called` is null or a string that ends in a zero.
        let barrier = unsafe { barrier(attached, called, parties, waiting, mode) }?;
        // SAFETY: by this function's contract, `seat` is null or a place for a pointer.
        unsafe { hand_over(seat, Seat::new(barrier.participate()?)) }
    };
    // SAFETY: by this function's contract, `here` is null or an open handle.
    unsafe { Handle::run(here, body) }
}

/// The barrier of that name, made if need be.
///
/// # Safety
/// `called` is null or a string.
unsafe fn barrier(
    here: &Attachment,
    called: *const c_char,
    parties: u32,
    waiting: c_uint,
    mode: c_uint,
) -> Result<Barrier, Failure> {
    let waiting = match waiting {
        1 => Waiting::Spin,
        2 => Waiting::Block,
        3 => Waiting::Hybrid,
        _ => return Err(Failure::invalid("waiting is ISTHMUS_SPIN, ISTHMUS_BLOCK or ISTHMUS_HYBRID")),
    };
    // SAFETY: by this function's contract, `called` is null or a string that ends in a zero.
    let name = unsafe { name(here, called, mode) }?;
    Ok(name.barrier(Parameters::new(parties, waiting))?)
}

/// Makes a broken barrier usable again.
///
/// # Safety
/// `here` is null or an attachment; `called` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_barrier_reset(
    here: *const Handle<Attachment>,
    called: *const c_char,
    parties: u32,
    waiting: c_uint,
    mode: c_uint,
) -> c_int {
    let body = |attached: &Attachment| {
        // SAFETY: by this function's contract, `called` is null or a string that ends in a zero.
        let barrier = unsafe { barrier(attached, called, parties, waiting, mode) }?;
        Ok(barrier.reset()?)
    };
    // SAFETY: by this function's contract, `here` is null or an open handle.
    unsafe { Handle::run(here, body) }
}

/// Arrives and waits.
///
/// # Safety
/// `seat` is null, or a participant that has not left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_barrier_wait(seat: *mut Handle<Seat>, timeout_ns: u64) -> c_int {
    let mut serial = false;
    let body = |seat: &Seat| {
        let mut seat = match seat.try_lock() {
            Ok(seat) => seat,
            Err(TryLockError::Poisoned(seat)) => seat.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::invalid("another thread waits with this participant"));
            }
        };
        serial = match limit(timeout_ns) {
            None => seat.wait(),
            Some(limit) => seat.wait_within(limit),
        }?;
        Ok(())
    };
    // SAFETY: by this function's contract, `seat` is null or an open handle.
    match unsafe { Handle::run_fast(seat, body) } {
        0 => c_int::from(serial),
        failed => failed,
    }
}

/// Leaves a barrier.
///
/// # Safety
/// `seat` is null, or came from `isthmus_barrier_join` and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_barrier_leave(seat: *mut Handle<Seat>) {
    // SAFETY: by this function's contract, `seat` is null or an open handle, and this call is its last use.
    unsafe { Handle::close(seat) };
}

/// Removes a barrier's name.
///
/// # Safety
/// `here` is null or an attachment; `called` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_barrier_unlink(
    here: *const Handle<Attachment>,
    called: *const c_char,
) -> c_int {
    // SAFETY: by this function's contract, `here` is null or an open handle, `called` null or a string that ends in a zero.
    unsafe { unlink(here, Kind::Barrier, called) }
}

/// Opens or makes a mutex.
///
/// # Safety
/// `here` is null or an attachment; `called` is null or a string; `mutex` is null or good for writing a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_mutex_open(
    here: *const Handle<Attachment>,
    called: *const c_char,
    mode: c_uint,
    mutex: *mut *mut Handle<Mutex>,
) -> c_int {
    let body = |attached: &Attachment| {
        // SAFETY: by this function's contract, `called` is null or a string that ends in a zero.
        let opened = unsafe { name(attached, called, mode) }?.mutex()?;
        // SAFETY: by this function's contract, `mutex` is null or a place for a pointer.
        unsafe { hand_over(mutex, opened) }
    };
    // SAFETY: by this function's contract, `here` is null or an open handle.
    unsafe { Handle::run(here, body) }
}

/// Locks a mutex.
///
/// # Safety
/// `mutex` is null, or a mutex that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_mutex_lock(mutex: *mut Handle<Mutex>, timeout_ns: u64) -> c_int {
    let mut answer = 0;
    let body = |mutex: &Mutex| {
        let guard = match limit(timeout_ns) {
            None => mutex.lock(),
            Some(limit) if limit.is_zero() => mutex.try_lock(),
            Some(limit) => mutex.lock_within(limit),
        }?;
        answer = if guard.owner_died() { OWNER_DIED } else { 0 };
        guard.keep();
        Ok(())
    };
    // SAFETY: by this function's contract, `mutex` is null or an open handle.
    match unsafe { Handle::run_fast(mutex, body) } {
        0 => answer,
        failed => failed,
    }
}

/// Declares what a mutex protects consistent again.
///
/// # Safety
/// `mutex` is null, or a mutex that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_mutex_mend(mutex: *mut Handle<Mutex>) -> c_int {
    let body = |mutex: &Mutex| {
        let mut guard = mutex.kept()?;
        guard.mend();
        guard.keep();
        Ok(())
    };
    // SAFETY: by this function's contract, `mutex` is null or an open handle.
    unsafe { Handle::run(mutex, body) }
}

/// Unlocks a mutex.
///
/// # Safety
/// `mutex` is null, or a mutex that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_mutex_unlock(mutex: *mut Handle<Mutex>) -> c_int {
    // SAFETY: by this function's contract, `mutex` is null or an open handle.
    unsafe { Handle::run_fast(mutex, |m| Ok(m.unlock()?)) }
}

/// Closes a mutex.
///
/// # Safety
/// `mutex` is null, or came from `isthmus_mutex_open` and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_mutex_close(mutex: *mut Handle<Mutex>) {
    // SAFETY: by this function's contract, `mutex` is null or an open handle, and this call is its last use.
    unsafe { Handle::close(mutex) };
}

/// Removes a mutex's name.
///
/// # Safety
/// `here` is null or an attachment; `called` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_mutex_unlink(
    here: *const Handle<Attachment>,
    called: *const c_char,
) -> c_int {
    // SAFETY: by this function's contract, `here` is null or an open handle, `called` null or a string that ends in a zero.
    unsafe { unlink(here, Kind::Mutex, called) }
}

/// Opens or makes a condition variable.
///
/// # Safety
/// `here` is null or an attachment; `called` is null or a string; `condition` is null or good for writing a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_condition_open(
    here: *const Handle<Attachment>,
    called: *const c_char,
    mode: c_uint,
    condition: *mut *mut Handle<Condvar>,
) -> c_int {
    let body = |attached: &Attachment| {
        // SAFETY: by this function's contract, `called` is null or a string that ends in a zero.
        let opened = unsafe { name(attached, called, mode) }?.condvar()?;
        // SAFETY: by this function's contract, `condition` is null or a place for a pointer.
        unsafe { hand_over(condition, opened) }
    };
    // SAFETY: by this function's contract, `here` is null or an open handle.
    unsafe { Handle::run(here, body) }
}

/// Unlocks a mutex, waits, and locks it again.
///
/// # Safety
/// `condition` and `mutex` are null, or were not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_condition_wait(
    condition: *mut Handle<Condvar>,
    mutex: *mut Handle<Mutex>,
    timeout_ns: u64,
) -> c_int {
    let mut answer = 0;
    let body = |condition: &Condvar| {
        let body = |mutex: &Mutex| {
            let guard = mutex.kept()?;
            let (guard, notified) = match limit(timeout_ns) {
                None => (condition.wait(guard)?, true),
                Some(limit) => condition.wait_within(guard, limit)?,
            };
            let died = guard.owner_died();
            answer = if died { OWNER_DIED } else { 0 };
            guard.keep();
            // What the dead owner left has to be mended, time-out or not.
            if notified || died { Ok(()) } else { Err(isthmus::sync::Error::TimedOut.into()) }
        };
        // SAFETY: by this function's contract, `mutex` is null or an open handle.
        given(unsafe { Handle::run(mutex, body) })
    };
    // SAFETY: by this function's contract, `condition` is null or an open handle.
    match unsafe { Handle::run(condition, body) } {
        0 => answer,
        failed => failed,
    }
}

/// Wakes one waiting thread, or all.
///
/// # Safety
/// `condition` is null, or was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_condition_notify(condition: *mut Handle<Condvar>, all: c_int) -> c_int {
    let body = |condition: &Condvar| {
        if all == 0 {
            condition.notify_one();
        } else {
            condition.notify_all();
        }
        Ok(())
    };
    // SAFETY: by this function's contract, `condition` is null or an open handle.
    unsafe { Handle::run_fast(condition, body) }
}

/// Closes a condition variable.
///
/// # Safety
/// `condition` is null, or came from `isthmus_condition_open` and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_condition_close(condition: *mut Handle<Condvar>) {
    // SAFETY: by this function's contract, `condition` is null or an open handle, and this call is its last use.
    unsafe { Handle::close(condition) };
}

/// Removes a condition variable's name.
///
/// # Safety
/// `here` is null or an attachment; `called` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_condition_unlink(
    here: *const Handle<Attachment>,
    called: *const c_char,
) -> c_int {
    // SAFETY: by this function's contract, `here` is null or an open handle, `called` null or a string that ends in a zero.
    unsafe { unlink(here, Kind::Condition, called) }
}

/// Opens or makes a semaphore.
///
/// # Safety
/// `here` is null or an attachment; `called` is null or a string; `semaphore` is null or good for writing a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_semaphore_open(
    here: *const Handle<Attachment>,
    called: *const c_char,
    initial: u32,
    mode: c_uint,
    semaphore: *mut *mut Handle<Semaphore>,
) -> c_int {
    let body = |attached: &Attachment| {
        // SAFETY: by this function's contract, `called` is null or a string that ends in a zero.
        let opened = unsafe { name(attached, called, mode) }?.semaphore(initial)?;
        // SAFETY: by this function's contract, `semaphore` is null or a place for a pointer.
        unsafe { hand_over(semaphore, opened) }
    };
    // SAFETY: by this function's contract, `here` is null or an open handle.
    unsafe { Handle::run(here, body) }
}

/// Decrements a semaphore, waiting while it is 0.
///
/// # Safety
/// `semaphore` is null, or was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_semaphore_wait(semaphore: *mut Handle<Semaphore>, timeout_ns: u64) -> c_int {
    let body = |semaphore: &Semaphore| {
        match limit(timeout_ns) {
            None => semaphore.wait(),
            Some(limit) if limit.is_zero() => semaphore.try_wait(),
            Some(limit) => semaphore.wait_within(limit),
        }?;
        Ok(())
    };
    // SAFETY: by this function's contract, `semaphore` is null or an open handle.
    unsafe { Handle::run_fast(semaphore, body) }
}

/// Increments a semaphore.
///
/// # Safety
/// `semaphore` is null, or was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_semaphore_post(semaphore: *mut Handle<Semaphore>) -> c_int {
    // SAFETY: by this function's contract, `semaphore` is null or an open handle.
    unsafe { Handle::run_fast(semaphore, |s| Ok(s.post()?)) }
}

/// A semaphore's value.
///
/// # Safety
/// `semaphore` is null, or was not closed; `value` is null or good for writing a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_semaphore_value(
    semaphore: *const Handle<Semaphore>,
    value: *mut u32,
) -> c_int {
    let body = |semaphore: &Semaphore| {
        let now = semaphore.value()?;
        // SAFETY: by this function's contract, `value` is null or a place for a number.
        if unsafe { put(value, now) } {
            Ok(())
        } else {
            Err(Failure::invalid("there is no place for the value"))
        }
    };
    // SAFETY: by this function's contract, `semaphore` is null or an open handle.
    unsafe { Handle::run_fast(semaphore, body) }
}

/// Closes a semaphore.
///
/// # Safety
/// `semaphore` is null, or came from `isthmus_semaphore_open` and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_semaphore_close(semaphore: *mut Handle<Semaphore>) {
    // SAFETY: by this function's contract, `semaphore` is null or an open handle, and this call is its last use.
    unsafe { Handle::close(semaphore) };
}

/// Removes a semaphore's name.
///
/// # Safety
/// `here` is null or an attachment; `called` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_semaphore_unlink(
    here: *const Handle<Attachment>,
    called: *const c_char,
) -> c_int {
    // SAFETY: by this function's contract, `here` is null or an open handle, `called` null or a string that ends in a zero.
    unsafe { unlink(here, Kind::Semaphore, called) }
}

/// Opens or makes a reader-writer lock.
///
/// # Safety
/// `here` is null or an attachment; `called` is null or a string; `lock` is null or good for writing a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_rwlock_open(
    here: *const Handle<Attachment>,
    called: *const c_char,
    opens: u32,
    mode: c_uint,
    lock: *mut *mut Handle<RwLock>,
) -> c_int {
    let body = |attached: &Attachment| {
        // SAFETY: by this function's contract, `called` is null or a string that ends in a zero.
        let opened = unsafe { name(attached, called, mode) }?.rwlock(opens)?;
        // SAFETY: by this function's contract, `lock` is null or a place for a pointer.
        unsafe { hand_over(lock, opened) }
    };
    // SAFETY: by this function's contract, `here` is null or an open handle.
    unsafe { Handle::run(here, body) }
}

/// Locks for reading.
///
/// # Safety
/// `lock` is null, or was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_rwlock_read(lock: *mut Handle<RwLock>, timeout_ns: u64) -> c_int {
    let body = |lock: &RwLock| {
        match limit(timeout_ns) {
            None => lock.read(),
            Some(limit) if limit.is_zero() => lock.try_read(),
            Some(limit) => lock.read_within(limit),
        }?
        .keep();
        Ok(())
    };
    // SAFETY: by this function's contract, `lock` is null or an open handle.
    unsafe { Handle::run_fast(lock, body) }
}

/// Locks for writing.
///
/// # Safety
/// `lock` is null, or was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_rwlock_write(lock: *mut Handle<RwLock>, timeout_ns: u64) -> c_int {
    let mut answer = 0;
    let body = |lock: &RwLock| {
        let guard = match limit(timeout_ns) {
            None => lock.write(),
            Some(limit) if limit.is_zero() => lock.try_write(),
            Some(limit) => lock.write_within(limit),
        }?;
        answer = if guard.owner_died() { OWNER_DIED } else { 0 };
        guard.keep();
        Ok(())
    };
    // SAFETY: by this function's contract, `lock` is null or an open handle.
    match unsafe { Handle::run_fast(lock, body) } {
        0 => answer,
        failed => failed,
    }
}

/// Declares what a lock protects consistent again.
///
/// # Safety
/// `lock` is null, or was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_rwlock_mend(lock: *mut Handle<RwLock>) -> c_int {
    let body = |lock: &RwLock| {
        let mut guard = lock.kept()?;
        guard.mend();
        guard.keep();
        Ok(())
    };
    // SAFETY: by this function's contract, `lock` is null or an open handle.
    unsafe { Handle::run(lock, body) }
}

/// Unlocks a lock, for reading or writing.
///
/// # Safety
/// `lock` is null, or was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_rwlock_unlock(lock: *mut Handle<RwLock>) -> c_int {
    // SAFETY: by this function's contract, `lock` is null or an open handle.
    unsafe { Handle::run_fast(lock, |l| Ok(l.unlock()?)) }
}

/// Closes a lock.
///
/// # Safety
/// `lock` is null, or came from `isthmus_rwlock_open` and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_rwlock_close(lock: *mut Handle<RwLock>) {
    // SAFETY: by this function's contract, `lock` is null or an open handle, and this call is its last use.
    unsafe { Handle::close(lock) };
}

/// Removes a lock's name.
///
/// # Safety
/// `here` is null or an attachment; `called` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_rwlock_unlink(
    here: *const Handle<Attachment>,
    called: *const c_char,
) -> c_int {
    // SAFETY: by this function's contract, `here` is null or an open handle, `called` null or a string that ends in a zero.
    unsafe { unlink(here, Kind::RwLock, called) }
}

/// The function that initialises something once.
pub type Make = unsafe extern "C" fn(taken_over: c_int, arg: *mut c_void) -> c_int;

/// Has something initialised once.
///
/// # Safety
/// `here` is null or an attachment; `called` is null or a string; `make` is null or a function that may be called with
/// `arg`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_once(
    here: *const Handle<Attachment>,
    called: *const c_char,
    mode: c_uint,
    make: Option<Make>,
    arg: *mut c_void,
) -> c_int {
    let mut answer = 0;
    let body = |attached: &Attachment| {
        let make = make.ok_or_else(|| Failure::invalid("there is no function to call"))?;
        // SAFETY: by this function's contract, `called` is null or a string that ends in a zero.
        let once = unsafe { name(attached, called, mode) }?.once()?;
        if let Begun::Yours(turn) = once.begin(None)? {
            // SAFETY: by this function's contract, `make` may be called with `arg`.
            answer = unsafe { make(c_int::from(turn.taken_over()), arg) };
            if answer == 0 {
                turn.finish();
            }
        }
        Ok(())
    };
    // SAFETY: by this function's contract, `here` is null or an open handle.
    match unsafe { Handle::run(here, body) } {
        0 => answer,
        failed => failed,
    }
}

/// Removes the name of something that is initialised once.
///
/// # Safety
/// `here` is null or an attachment; `called` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_once_unlink(
    here: *const Handle<Attachment>,
    called: *const c_char,
) -> c_int {
    // SAFETY: by this function's contract, `here` is null or an open handle, `called` null or a string that ends in a zero.
    unsafe { unlink(here, Kind::Once, called) }
}
