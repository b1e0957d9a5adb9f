//! What all objects have in common: a head that C sees, an owner that is shared, a guard around every call.
//!
//! An object is an `Arc` whose value starts with libfabric's structure. C holds one count of it, from open to close;
//! others are held by the objects that need it, and while there are any, closing it gives `-FI_EBUSY`.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use isthmus_cabi::{Poison, guard, object};
use isthmus_fabric_sys::*;

use crate::core::{Core, log};
use crate::unsupported;

/// An object that C holds.
pub(crate) trait Object: Sized {
    /// libfabric's structure, which is the value's beginning.
    type Head;

    /// Whether its code panicked.
    fn poison(&self) -> &Poison;

    /// Where to log.
    fn core(&self) -> Option<&'static Core>;
}

/// Hands an object to C.
pub(crate) fn give<T: Object>(made: Arc<T>) -> *mut T::Head {
    Arc::into_raw(made).cast_mut().cast()
}

/// Takes C's count back. The caller must be the one close of this object.
///
/// # Safety
/// `head` was made by [`give`] for a `T`, and is not used again by C.
pub(crate) unsafe fn take<T: Object>(head: *mut T::Head) -> Arc<T> {
    // SAFETY: made by `Arc::into_raw` in `give`, whose count this is.
    unsafe { Arc::from_raw(head.cast::<T>()) }
}

/// The object behind a head.
///
/// # Safety
/// Null, or made by [`give`] for a `T` that C has not closed.
#[inline]
pub(crate) unsafe fn of<'a, T: Object>(head: *const T::Head) -> Option<&'a T> {
    // SAFETY: the head is the value's beginning, and alive while C may use it.
    unsafe { object(head.cast::<T>()) }
}

/// A further count of the object behind a head.
///
/// # Safety
/// As [`of`].
pub(crate) unsafe fn share<T: Object>(head: *const T::Head) -> Option<Arc<T>> {
    // SAFETY: as `of`.
    let here: &T = unsafe { of(head) }?;
    let at = std::ptr::from_ref(here);
    // SAFETY: the pointer came from `Arc::into_raw`, and C's count keeps it alive.
    unsafe { Arc::increment_strong_count(at) };
    // SAFETY: the count added above.
    Some(unsafe { Arc::from_raw(at) })
}

/// Runs `body` on the object behind `head`, guarded; `broken` for a null pointer or an object that panicked.
///
/// # Safety
/// As [`of`].
#[inline]
pub(crate) unsafe fn call<T: Object, R: Copy>(
    head: *const T::Head,
    broken: R,
    body: impl FnOnce(&T) -> R,
) -> R {
    // SAFETY: passed on.
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
    // SAFETY: passed on.
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
                // SAFETY: not null; the caller's place for the answer.
                unsafe { answer.write(give(made)) };
                0
            }
            Err(error) => -error,
        },
    )
}

/// Closes an object, unless others still need it; `last` runs before the count goes.
///
/// # Safety
/// As [`take`].
pub(crate) unsafe fn close<T: Object>(head: *mut T::Head, last: impl FnOnce(&Arc<T>) -> c_int) -> c_int {
    // SAFETY: passed on.
    let Some(this) = (unsafe { share::<T>(head) }) else { return -FI_EINVAL };
    let core = this.core();
    let result = guard(this.poison(), 0, |said| report(core, said), || last(&this));
    if result != 0 {
        return result;
    }
    drop(this);
    // SAFETY: C gives it up.
    let own = unsafe { take::<T>(head) };
    // Dropping it may run into the same broken state: nothing of that may reach C.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || drop(own)));
    0
}

/// `-FI_EBUSY` while others hold counts of an object besides C and the running close.
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

/// The same for an object that has further operations.
pub(crate) const fn ops_with(
    close: unsafe extern "C" fn(*mut fid) -> c_int,
    bind: unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int,
    control: unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int,
    ops_open: OpsOpen,
) -> fi_ops {
    fi_ops { size: size_of::<fi_ops>(), close, bind, control, ops_open, tostr: None, ops_set: None }
}
