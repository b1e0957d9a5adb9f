//! libisthmus.so: the C face, `include/isthmus.h`. Thin over the crate `isthmus`, a function for each call.
//!
//! Every body runs inside [`isthmus_cabi::guard`]. Pointers that come from C are looked at before they are used. An object is
//! a box whose pointer C holds; the functions that close one take the box back.

pub mod attachment;
pub mod errno;
pub mod ivc;
pub mod segment;
pub mod space;
pub mod sync;

use std::ffi::c_int;

use isthmus_cabi::Poison;

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

    /// Runs `body` on the object behind a pointer, and turns its error into a number.
    ///
    /// # Safety
    /// `at` is null, or came from [`Handle::new`] and was not closed.
    unsafe fn run(at: *const Self, body: impl FnOnce(&T) -> Result<(), errno::Failure>) -> c_int {
        // SAFETY: the caller vouches for it.
        match unsafe { isthmus_cabi::object(at) } {
            Some(handle) => errno::answer(&handle.poison, || body(&handle.object)),
            None => errno::fail(errno::Failure::invalid("the object is NULL")),
        }
    }

    /// Looks at the object behind a pointer; `otherwise` for null.
    ///
    /// # Safety
    /// As [`Handle::run`].
    unsafe fn look<R>(at: *const Self, otherwise: R, body: impl FnOnce(&T) -> R) -> R {
        // SAFETY: the caller vouches for it.
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
        // SAFETY: it came from `new`, and this is its only end.
        let handle = unsafe { Box::from_raw(at) };
        errno::answer(&Poison::new(), || {
            drop(handle);
            Ok(())
        });
    }
}
