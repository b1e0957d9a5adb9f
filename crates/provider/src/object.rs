//! What all objects have in common: a head that C sees, an `Arc` that counts its users, a guard around every call.
//!
//! An object is an `Arc` whose value starts with libfabric's structure. C holds one count of it, from open to close;
//! the objects that need it hold others, and while there are any, closing it gives `-FI_EBUSY`.
//!
//! # Safety
//! The functions in libfabric's tables (`unsafe extern "C"`) have one contract, which the manual pages ask of the
//! program, and on which the `SAFETY` comments of this crate rest:
//! - An object's pointer is the one that its open call gave ([`give`]), and the program has not closed it. Since a table
//!   hangs on the objects of one kind, a function of it is called with that kind. The one close is the last use.
//! - Any other pointer is null, or good for what the manual page does with it, for the length or count beside it.
//! - The program lends the buffers of an operation until that completes, those of an inject until it returns.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use isthmus_cabi::{Poison, guard, object};
use isthmus_fabric_sys::*;

use crate::core::{Core, log};
use crate::unsupported;

/// An object that C holds.
///
/// # Safety
/// The type must be `repr(C)`, with a `Head` as its first field: the pointer to one is used as that to the other.
pub(crate) unsafe trait Object: Sized {
    /// libfabric's structure, with which the value begins.
    type Head;

    /// Whether a call on it has panicked.
    fn poison(&self) -> &Poison;

    /// The libfabric to log through.
    fn core(&self) -> Option<&'static Core>;
}

/// Hands an object to C.
pub(crate) fn give<T: Object>(made: Arc<T>) -> *mut T::Head {
    Arc::into_raw(made).cast_mut().cast()
}

/// Takes C's count back, in the object's close.
///
/// # Safety
/// `head` was made by [`give`] for a `T`, has not been taken back, and C does not use it again.
pub(crate) unsafe fn take<T: Object>(head: *mut T::Head) -> Arc<T> {
    // SAFETY: `give` made it by `Arc::into_raw`, and the count that it left with C is taken here, once.
    unsafe { Arc::from_raw(head.cast::<T>()) }
}

/// The object behind a head.
///
/// # Safety
/// Null, or made by [`give`] for a `T` that C has not closed.
#[inline]
pub(crate) unsafe fn of<'a, T: Object>(head: *const T::Head) -> Option<&'a T> {
    // SAFETY: null, or the value's beginning (`Object`), which C's count keeps alive until the close.
    unsafe { object(head.cast::<T>()) }
}

/// A further count of the object behind a head.
///
/// # Safety
/// As [`of`].
pub(crate) unsafe fn share<T: Object>(head: *const T::Head) -> Option<Arc<T>> {
    // SAFETY: `of` asks for the same.
    let here: &T = unsafe { of(head) }?;
    let at = std::ptr::from_ref(here);
    // SAFETY: `give` made the pointer by `Arc::into_raw`, and C's count keeps the value alive.
    unsafe { Arc::increment_strong_count(at) };
    // SAFETY: made by `Arc::into_raw`; the count is the one added above.
    Some(unsafe { Arc::from_raw(at) })
}

/// Runs `body` on the object behind `head`, guarded; gives `broken` for a null pointer, or if a call on it has panicked.
///
/// # Safety
/// As [`of`].
#[inline]
pub(crate) unsafe fn call<T: Object, R: Copy>(
    head: *const T::Head,
    broken: R,
    body: impl FnOnce(&T) -> R,
) -> R {
    // SAFETY: `of` asks for the same.
    match unsafe { of::<T>(head) } {
        Some(this) => guard(this.poison(), broken, |said| report(this.core(), said), || body(this)),
        None => broken,
    }
}

/// Runs `body`, which opens an object, under the guard of the object that it is opened in.
///
/// # Safety
/// As [`of`]; `answer` is null or may be written.
pub(crate) unsafe fn open<T: Object, N: Object>(
    head: *const T::Head,
    answer: *mut *mut N::Head,
    body: impl FnOnce(Arc<T>) -> Result<Arc<N>, c_int>,
) -> c_int {
    // SAFETY: the caller vouches for `head` as `share` asks.
    let Some(this) = (unsafe { share::<T>(head) }) else { return -FI_EINVAL };
    if answer.is_null() {
        return -FI_EINVAL;
    }
    let core = this.core();
    let inner = Arc::clone(&this);
    guard(
        this.poison(),
        -FI_EIO,
        |said| report(core, said),
        || match body(inner) {
            Ok(made) => {
                // SAFETY: not null, so it may be written, for which the caller vouches.
                unsafe { answer.write(give(made)) };
                0
            }
            Err(error) => -error,
        },
    )
}

/// Closes an object, unless `last` gives an error; that runs before C's count is dropped.
///
/// # Safety
/// As [`take`].
pub(crate) unsafe fn close<T: Object>(head: *mut T::Head, last: impl FnOnce(&Arc<T>) -> c_int) -> c_int {
    // SAFETY: `head` is not closed yet, since this is its close.
    let Some(this) = (unsafe { share::<T>(head) }) else { return -FI_EINVAL };
    let core = this.core();
    let result = guard(this.poison(), 0, |said| report(core, said), || last(&this));
    if result != 0 {
        return result;
    }
    drop(this);
    // SAFETY: this is the object's close, which succeeds: C's last use.
    let own = unsafe { take::<T>(head) };
    // After a panic its state may make the drop panic, too, which must not reach C.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || drop(own)));
    0
}

/// `-FI_EBUSY` while an object has further counts than those of C and of the running close.
pub(crate) fn unless_busy<T>(this: &Arc<T>) -> c_int {
    if Arc::strong_count(this) > 2 { -FI_EBUSY } else { 0 }
}

fn report(core: Option<&Core>, said: &str) {
    log!(core, WARN, CORE, "internal error, the object is closed to further calls: {said}");
}

/// The head of an object.
pub(crate) fn head(class: usize, context: *mut c_void, ops: &'static fi_ops) -> fid {
    fid { fclass: class, context, ops }
}

type OpsOpen = unsafe extern "C" fn(*mut fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int;

/// A table of the operations that every object has.
pub(crate) const fn ops(
    close: unsafe extern "C" fn(*mut fid) -> c_int,
    bind: unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int,
    control: unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int,
) -> fi_ops {
    ops_with(close, bind, control, unsupported::ops_open)
}

/// The same for an object that has operations of its own (`fi_open_ops`).
pub(crate) const fn ops_with(
    close: unsafe extern "C" fn(*mut fid) -> c_int,
    bind: unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int,
    control: unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int,
    ops_open: OpsOpen,
) -> fi_ops {
    fi_ops { size: size_of::<fi_ops>(), close, bind, control, ops_open, tostr: None, ops_set: None }
}
