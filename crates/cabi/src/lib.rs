//! Panic guard, pointer and string checks for the C edges.
//!
//! Every body of an `extern "C"` function runs inside [`guard`]: a panic must not cross into C. Pointers from C are
//! checked before they are used, in release builds too: [`slice()`], [`object()`], [`put()`], [`text()`]. There are no
//! domain types here, but for what two of our libraries agree on ([`heap`]).

pub mod heap;

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, Once, OnceLock, PoisonError};
use std::thread::ThreadId;

/// Whether a call on an object has panicked. Such an object may be half changed, so it refuses further calls.
#[derive(Debug, Default)]
pub struct Poison(OnceLock<()>);

impl Poison {
    /// Of an object on which no call has panicked.
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Whether a call has panicked.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.get().is_some()
    }
}

/// Runs `body`. Gives `broken` if it panics, or if an earlier call on the same object did; the first time, `report` gets
/// the panic's message and place.
#[inline]
pub fn guard<R>(poison: &Poison, broken: R, report: impl FnOnce(&str), body: impl FnOnce() -> R) -> R {
    if poison.is_set() {
        return broken;
    }
    // Unwind safe: after a panic the object is not used any more, so no call sees the state that it is in.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(answer) => answer,
        Err(payload) => {
            caught(poison, payload, report);
            broken
        }
    }
}

#[cold]
fn caught(poison: &Poison, payload: Box<dyn std::any::Any + Send>, report: impl FnOnce(&str)) {
    let first = poison.0.set(()).is_ok();
    let said = {
        let mut words = last_words().lock().unwrap_or_else(PoisonError::into_inner);
        let mine = words.iter().position(|(thread, _)| *thread == std::thread::current().id());
        mine.map(|at| words.swap_remove(at).1)
    };
    let said = said.unwrap_or_else(|| {
        let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
        text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
    });
    if first {
        // A panic of the report must not leave this function either.
        let _ = catch_unwind(AssertUnwindSafe(|| report(&said)));
    }
}

/// Message and place of the panic of each thread that is panicking; several may at once.
fn last_words() -> &'static Mutex<Vec<(ThreadId, String)>> {
    static LAST: Mutex<Vec<(ThreadId, String)>> = Mutex::new(Vec::new());
    &LAST
}

/// Makes panics keep message and place for [`guard`]'s report, and not write them to standard error, which belongs to the
/// program that loaded this library. It has a copy of the standard library of its own, and no other is affected.
pub fn keep_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let text = info.to_string();
            let thread = std::thread::current().id();
            let mut words = last_words().lock().unwrap_or_else(PoisonError::into_inner);
            // The entry of a panic that no guard caught stays until the thread panics again.
            words.retain(|(other, _)| *other != thread);
            words.push((thread, text));
        }));
    });
}

/// The `count` elements at `at`; none for null with a count, a misaligned pointer, or more elements than `most`.
///
/// # Safety
/// A pointer that is neither null nor misaligned must point to `count` initialised elements that do not change while the
/// slice is in use.
#[inline]
pub unsafe fn slice<'a, T>(at: *const T, count: usize, most: usize) -> Option<&'a [T]> {
    if count == 0 {
        return Some(&[]);
    }
    if at.is_null() || !at.is_aligned() || count > most {
        return None;
    }
    // SAFETY: neither null nor misaligned, so the caller vouches for `count` elements that do not change.
    Some(unsafe { std::slice::from_raw_parts(at, count) })
}

/// The object at `at`; none for a null or misaligned pointer.
///
/// # Safety
/// Any other pointer must point to an initialised `T` that lives for `'a` and is not changed other than through cells.
#[inline]
pub unsafe fn object<'a, T>(at: *const T) -> Option<&'a T> {
    if at.is_null() || !at.is_aligned() {
        return None;
    }
    // SAFETY: neither null nor misaligned, so the caller vouches for a `T` that lives for `'a`.
    Some(unsafe { &*at })
}

/// Writes `value` to `at`, unless that is null or misaligned; gives whether it was written.
///
/// # Safety
/// A pointer that is neither null nor misaligned must be good for writing a `T`.
#[inline]
pub unsafe fn put<T>(at: *mut T, value: T) -> bool {
    if at.is_null() || !at.is_aligned() {
        return false;
    }
    // SAFETY: neither null nor misaligned, so good for writing, for which the caller vouches.
    unsafe { at.write(value) };
    true
}

/// A C string; none for null, and for a string that is not UTF-8.
///
/// # Safety
/// Any other pointer must point to a string that ends in a zero and is not changed while it is in use.
pub unsafe fn text<'a>(at: *const c_char) -> Option<&'a str> {
    if at.is_null() {
        return None;
    }
    // SAFETY: not null, so a string that ends in a zero and does not change, for which the caller vouches.
    unsafe { CStr::from_ptr(at) }.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_answered_reported_once_and_remembered() {
        keep_quiet();
        let poison = Poison::new();
        let mut reports = Vec::new();
        assert_eq!(guard(&poison, -5, |s| reports.push(s.to_owned()), || 3), 3);
        assert_eq!(guard(&poison, -5, |s| reports.push(s.to_owned()), || panic!("ouch")), -5);
        assert_eq!(guard(&poison, -5, |s| reports.push(s.to_owned()), || 3), -5, "refuses further calls");
        assert_eq!(reports.len(), 1);
        assert!(reports[0].contains("ouch") && reports[0].contains("lib.rs"), "{}", reports[0]);
    }

    #[test]
    fn a_report_that_panics_stays_inside() {
        keep_quiet();
        assert_eq!(guard(&Poison::new(), -1, |_| panic!("again"), || panic!("ouch")), -1);
    }

    #[test]
    fn pointers_are_checked() {
        let words = [1u32, 2, 3];
        // SAFETY: three initialised elements.
        assert_eq!(unsafe { slice(words.as_ptr(), 3, 3) }, Some(&words[..]));
        // SAFETY: refused by count.
        assert_eq!(unsafe { slice(words.as_ptr(), 3, 2) }, None);
        // SAFETY: null is refused with a count.
        assert_eq!(unsafe { slice(std::ptr::null::<u32>(), 1, 9) }, None);
        // SAFETY: an empty slice, for which null is fine.
        assert_eq!(unsafe { slice(std::ptr::null::<u32>(), 0, 9) }, Some(&[][..]));
        let odd = words.as_ptr().cast::<u8>().wrapping_add(1).cast::<u32>();
        // SAFETY: refused by alignment.
        assert_eq!(unsafe { slice(odd, 1, 9) }, None);
        // SAFETY: refused by alignment.
        assert!(unsafe { object(odd) }.is_none());
        // SAFETY: null is refused.
        assert!(!unsafe { put(std::ptr::null_mut(), 1u32) });
        // SAFETY: a literal that ends in a zero.
        assert_eq!(unsafe { text(c"abc".as_ptr()) }, Some("abc"));
        // SAFETY: null is refused.
        assert_eq!(unsafe { text(std::ptr::null()) }, None);
    }
}
