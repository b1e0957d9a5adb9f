//! libisthmus.so: the C face, `include/isthmus.h`. Thin over the crate `isthmus`, a function for each call.
//!
//! Every body runs inside [`isthmus_cabi::guard`]. Pointers that come from C are checked for null and alignment before
//! they are used; what else must hold of them is each function's contract with C, its *Safety* section. An object is a
//! box whose pointer C holds, a *handle*. It is open from the call that made it to the one that closes it, which takes
//! the box back. An open handle may be used by several threads at once.

pub mod attachment;
pub mod errno;
pub mod ivc;
pub mod segment;
pub mod space;
pub mod sync;

use std::ffi::c_int;

use isthmus_cabi::Poison;
use isthmus_region::signals::Uncancelled;

/// What a C handle points to: an object of the Rust face, and whether its code has panicked.
#[derive(Debug)]
pub struct Handle<T> {
    object: T,
    poison: Poison,
}

impl<T> Handle<T> {
    /// The object, for functions that are given two.
    fn object(&self) -> &T {
        &self.object
    }

    fn new(object: T) -> *mut Self {
        Box::into_raw(Box::new(Self { object, poison: Poison::new() }))
    }

    /// Runs `body` on the object behind a pointer, and turns its error into a number. The thread is not cancelled meanwhile.
    ///
    /// # Safety
    /// `at` is null, or came from [`Handle::new`] and was not closed.
    unsafe fn run(at: *const Self, body: impl FnOnce(&T) -> Result<(), errno::Failure>) -> c_int {
        let _uncancelled = Uncancelled::new();
        // SAFETY: this function's contract.
        unsafe { Self::run_fast(at, body) }
    }

    /// As [`Handle::run`], for calls that most often are over within some tens of nanoseconds, as it takes to keep a thread from being
    /// cancelled. They reach no point of cancellation: they open and close nothing, and wait by [`isthmus_region::waiting::nap`] and at
    /// doorbells.
    ///
    /// # Safety
    /// As [`Handle::run`].
    unsafe fn run_fast(at: *const Self, body: impl FnOnce(&T) -> Result<(), errno::Failure>) -> c_int {
        // SAFETY: by this function's contract, `at` is null or a box of `new`, which is only ever shared, and not
        // freed during the call.
        match unsafe { isthmus_cabi::object(at) } {
            Some(handle) => errno::answer(&handle.poison, || body(&handle.object)),
            None => errno::fail(errno::Failure::invalid("the object is NULL")),
        }
    }

    /// Asks the object behind a pointer for a value; `otherwise` for null, or if it panics.
    ///
    /// # Safety
    /// As [`Handle::run`].
    unsafe fn ask<R>(at: *const Self, otherwise: R, body: impl FnOnce(&T) -> R) -> R {
        // SAFETY: as in `run`.
        match unsafe { isthmus_cabi::object(at) } {
            Some(handle) => {
                let mut answer = otherwise;
                let place = &mut answer;
                errno::answer(&handle.poison, || {
                    *place = body(&handle.object);
                    Ok(())
                });
                answer
            }
            None => otherwise,
        }
    }

    /// Takes the object back.
    ///
    /// # Safety
    /// As [`Handle::run`]; the pointer is not used any more.
    unsafe fn close(at: *mut Self) {
        if at.is_null() {
            return;
        }
        let _uncancelled = Uncancelled::new();
        // SAFETY: by this function's contract, `at` is a box of `new`, which is not freed yet and not used any more.
        let handle = unsafe { Box::from_raw(at) };
        errno::answer(&Poison::new(), || {
            drop(handle);
            Ok(())
        });
    }
}
