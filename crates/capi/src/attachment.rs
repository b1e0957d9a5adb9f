//! `isthmus_attach` and what is asked of an attachment.

use std::ffi::{c_char, c_int};

use isthmus::Attachment;
use isthmus_cabi::{Poison, put, text};

use crate::Handle;
use crate::errno::{ENOTFOUND, Failure, answer};

/// Attaches this process.
///
/// # Safety
/// `socket` is null or a string; `here` is null or good for writing a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_attach(socket: *const c_char, here: *mut *mut Handle<Attachment>) -> c_int {
    answer(&Poison::new(), || {
        let attached = if socket.is_null() {
            Attachment::open()?
        } else {
            // SAFETY: not null; the caller vouches for the string.
            let path = unsafe { text(socket) };
            Attachment::at(path.ok_or_else(|| Failure::invalid("the socket's path is not UTF-8"))?)?
        };
        // SAFETY: the caller vouches for the place.
        unsafe { hand_over(here, attached) }
    })
}

/// Writes a handle to where C wants it.
///
/// # Safety
/// `place` is null or good for writing a pointer.
pub(crate) unsafe fn hand_over<T>(place: *mut *mut Handle<T>, object: T) -> Result<(), Failure> {
    let handle = Handle::new(object);
    // SAFETY: the caller vouches for it.
    if unsafe { put(place, handle) } {
        return Ok(());
    }
    // SAFETY: nobody else has it.
    unsafe { Handle::close(handle) };
    Err(Failure::invalid("the place for the object is NULL"))
}

/// Ends an attachment.
///
/// # Safety
/// `here` is null, or came from `isthmus_attach` and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_detach(here: *mut Handle<Attachment>) {
    // SAFETY: the caller vouches for it.
    unsafe { Handle::close(here) };
}

/// Number of the own member.
///
/// # Safety
/// `here` is null, or an attachment that was not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_member(here: *const Handle<Attachment>) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { Handle::look(here, u32::MAX, |a| a.member().map_or(u32::MAX, |m| m.index)) }
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
        // SAFETY: the caller vouches for the room, and a string of ours does not lie there.
        unsafe { std::ptr::copy_nonoverlapping(found.name.as_ptr().cast(), name, len) };
        // SAFETY: len < bytes.
        unsafe { name.wrapping_add(len).write(0) };
        Ok(())
    };
    // SAFETY: the caller vouches for it.
    unsafe { Handle::run(here, body) }
}
