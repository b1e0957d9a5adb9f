//! The program's pointers. Those of the calls that are not in a hurry are read and written by the kernel (process_vm_readv(2)), so that a
//! wrong one is `EFAULT` and no signal; those of semop, msgsnd and msgrcv are only looked at.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use rustix::io::Errno;

use crate::Result;

/// The lowest address that a program can have anything at, and the first that none has.
const ADDRESSES: std::ops::Range<usize> = 4096..1 << 47;

/// Whether `bytes` at an address can be the program's; a pointer that is wrong otherwise is a signal.
pub(crate) fn check(at: *const c_void, bytes: usize) -> Result<()> {
    let begin = at.addr();
    let is_there =
        ADDRESSES.contains(&begin) && begin.checked_add(bytes).is_some_and(|end| end <= ADDRESSES.end);
    if is_there { Ok(()) } else { Err(Errno::FAULT) }
}

/// Reads a value from an address of the program.
pub(crate) fn get<T: Copy>(at: *const T) -> Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    copy(value.as_mut_ptr().cast(), at.cast_mut().cast(), size_of::<T>(), false)?;
    // SAFETY: all its bytes were read, or the copy failed; callers read plain structures of numbers.
    Ok(unsafe { value.assume_init() })
}

/// Writes a value to an address of the program.
pub(crate) fn put<T: Copy>(at: *mut T, mut value: T) -> Result<()> {
    copy((&raw mut value).cast(), at.cast(), size_of::<T>(), true)
}

/// Reads as many values as `into` has.
pub(crate) fn get_all<T: Copy>(at: *const T, into: &mut [T]) -> Result<()> {
    copy(into.as_mut_ptr().cast(), at.cast_mut().cast(), size_of_val(into), false)
}

/// Writes all values of `from`.
pub(crate) fn put_all<T: Copy>(at: *mut T, from: &[T]) -> Result<()> {
    copy(from.as_ptr().cast_mut().cast(), at.cast(), size_of_val(from), true)
}

/// Copies between memory of ours and an address of the program, by the kernel.
fn copy(ours: *mut c_void, theirs: *mut c_void, bytes: usize, to_them: bool) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let ours = libc::iovec { iov_base: ours, iov_len: bytes };
    let theirs = libc::iovec { iov_base: theirs, iov_len: bytes };
    // SAFETY: no arguments.
    let own = unsafe { libc::getpid() };
    let done = match to_them {
        // SAFETY: `ours` is memory of the caller's; the kernel checks the other address.
        true => unsafe { libc::process_vm_writev(own, &raw const ours, 1, &raw const theirs, 1, 0) },
        // SAFETY: as above.
        false => unsafe { libc::process_vm_readv(own, &raw const ours, 1, &raw const theirs, 1, 0) },
    };
    if usize::try_from(done) == Ok(bytes) { Ok(()) } else { Err(Errno::FAULT) }
}
