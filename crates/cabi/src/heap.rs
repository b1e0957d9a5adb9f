//! What `libisthmus-alloc.so` and the provider agree on: the operations on large allocations that the one has the other do.

use std::ffi::{CStr, c_int, c_void};

/// The provider's function that gives [`Ops`]; null if the process has not been told to use them.
pub const ENTRY: &CStr = c"isthmus_heap";

/// The operations.
#[repr(C)]
#[derive(Debug)]
pub struct Ops {
    /// Bytes of this structure; later versions add to its end.
    pub size: usize,
    /// From which size on an allocation is asked for here.
    pub least: usize,
    /// Takes so many bytes, at a multiple of so many, as zeros if the third is not 0; null where there are none.
    pub take: extern "C" fn(usize, usize, c_int) -> *mut c_void,
    /// Takes a block back: 0, or -1 if it is none.
    pub give: extern "C" fn(*mut c_void) -> c_int,
    /// The bytes of a block; 0 if it is none.
    pub usable: extern "C" fn(*mut c_void) -> usize,
    /// Whether the process may fork: 0, or -1 after a line that says why not.
    pub may_fork: extern "C" fn() -> c_int,
}
