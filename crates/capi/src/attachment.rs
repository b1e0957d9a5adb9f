//! `isthmus_attach` and what is asked of an attachment.

use std::ffi::{c_char, c_int};

use isthmus::Attachment;
use isthmus_cabi::{Poison, put, text};
use isthmus_region::signals::Uncancelled;

use crate::Handle;
use crate::errno::{ENOTFOUND, Failure, answer};

/// Attaches this process.
///
/// # Safety
/// `socket` is null or a string; `here` is null or good for writing a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_attach(socket: *const c_char, here: *mut *mut Handle<Attachment>) -> c_int {
    let _uncancelled = Uncancelled::new();
    answer(&Poison::new(), || {
        let attached = if socket.is_null() {
            Attachment::open()?
        } else {
            // SAFETY: checked for null; by this function's contract, `socket` is a string that ends in a zero.
            let path = unsafe { text(socket) };
            Attachment::at(path.ok_or_else(|| Failure::invalid("the socket's path is not UTF-8"))?)?
        };
        // SAFETY: by this function's contract, `here` is null or a place for a pointer.
        unsafe { hand_over(here, attached) }
    })
}

/// Makes a handle of `object` and writes it to where C wants it.
///
/// # Safety
/// `place` is null or good for writing a pointer.
pub(crate) unsafe fn hand_over<T>(place: *mut *mut Handle<T>, object: T) -> Result<(), Failure> {
    let handle = Handle::new(object);
    // SAFETY: by this function's contract, `place` is null or a place for a pointer.
    if unsafe { put(place, handle) } {
        return Ok(());
    }
    // SAFETY: `Handle::new` made it above, and the place for it was not written, so C does not have it.
    unsafe { Handle::close(handle) };
    Err(Failure::invalid("the place for the object is NULL"))
}

/// Ends an attachment.
///
/// # Safety
/// `here` is null, or came from `isthmus_attach` and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_detach(here: *mut Handle<Attachment>) {
    // SAFETY: by this function's contract, `here` is null or an open handle, and this call is its last use.
    unsafe { Handle::close(here) };
}

/// Number of the own member.
///
/// # Safety
/// `here` is null, or an attachment that was not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_member(here: *const Handle<Attachment>) -> u32 {
    // SAFETY: by this function's contract, `here` is null or an open handle.
    unsafe { Handle::ask(here, u32::MAX, |a| a.member().map_or(u32::MAX, |m| m.index)) }
}

/// Host name of a member.
///
/// # Safety
/// `here` is null, or an attachment that was not ended; `name` is null or good for writing `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_member_name(
    here: *const Handle<Attachment>,
    index: u32,
    name: *mut c_char,
    bytes: usize,
) -> c_int {
    let body = |attached: &Attachment| {
        let found = attached.members().into_iter().find(|m| m.index == index);
        let found = found.ok_or_else(|| Failure::new(ENOTFOUND, format!("no member {index} lives")))?;
        if name.is_null() || bytes == 0 {
            return Err(Failure::invalid("there is no room for a name"));
        }
        let len = found.name.len().min(bytes - 1);
        // SAFETY: checked for null, and len < bytes: by this function's contract, `name` has room for `bytes` bytes.
        // The name is memory of our own, which C was not given.
        unsafe { std::ptr::copy_nonoverlapping(found.name.as_ptr().cast(), name, len) };
        // SAFETY: as above, and len < bytes.
        unsafe { name.wrapping_add(len).write(0) };
        Ok(())
    };
    // SAFETY: by this function's contract, `here` is null or an open handle.
    unsafe { Handle::run(here, body) }
}
