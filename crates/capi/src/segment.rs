//! Named segments.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};

use isthmus::{Attachment, Segment};
use isthmus_cabi::text;

use crate::Handle;
use crate::attachment::hand_over;
use crate::errno::Failure;

const CREATE: c_uint = 1;
const EXCLUSIVE: c_uint = 2;
const READ: c_uint = 4;
const TRANSIENT: c_uint = 8;

/// A name that C gave.
///
/// # Safety
/// `name` is null or a string.
pub(crate) unsafe fn named<'a>(name: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: by this function's contract, `name` is null or a string that ends in a zero.
    unsafe { text(name) }.ok_or_else(|| Failure::invalid("the name is NULL, or not UTF-8"))
}

/// Opens or makes a segment.
///
/// # Safety
/// `here` is null or an attachment; `name` is null or a string; `segment` is null or good for writing a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_segment_open(
    here: *const Handle<Attachment>,
    name: *const c_char,
    flags: c_uint,
    mode: c_uint,
    len: usize,
    segment: *mut *mut Handle<Segment>,
) -> c_int {
    let body = |attached: &Attachment| {
        if flags & !(CREATE | EXCLUSIVE | READ | TRANSIENT) != 0 {
            return Err(Failure::invalid("flags that there are not"));
        }
        if flags & (EXCLUSIVE | TRANSIENT) != 0 && flags & CREATE == 0 {
            return Err(Failure::invalid("ISTHMUS_EXCLUSIVE and ISTHMUS_TRANSIENT go with ISTHMUS_CREATE"));
        }
        if flags & READ != 0 && flags & CREATE != 0 {
            return Err(Failure::invalid("ISTHMUS_READ does not go with ISTHMUS_CREATE"));
        }
        // SAFETY: by this function's contract, `name` is null or a string that ends in a zero.
        let name = unsafe { named(name) }?;
        let mut options = attached.segment(name).mode(mode);
        if flags & TRANSIENT != 0 {
            options = options.ends_with_creator();
        }
        let opened = match flags & (CREATE | EXCLUSIVE | READ) {
            0 => options.open(),
            READ => options.open_to_read(),
            CREATE => options.or_create(len as u64),
            _ => options.create(len as u64),
        }?;
        // SAFETY: by this function's contract, `segment` is null or a place for a pointer.
        unsafe { hand_over(segment, opened) }
    };
    // SAFETY: by this function's contract, `here` is null or an open handle.
    unsafe { Handle::run(here, body) }
}

/// A segment's bytes.
///
/// # Safety
/// `segment` is null, or a segment that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_segment_data(segment: *const Handle<Segment>) -> *mut c_void {
    // SAFETY: by this function's contract, `segment` is null or an open handle.
    unsafe { Handle::ask(segment, std::ptr::null_mut(), |s| s.address().map_or(std::ptr::null_mut(), at)) }
}

/// The pointer with an address that is mapped as long as its segment is open.
fn at(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0))
}

/// A segment's length.
///
/// # Safety
/// `segment` is null, or a segment that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_segment_len(segment: *const Handle<Segment>) -> usize {
    // SAFETY: by this function's contract, `segment` is null or an open handle.
    unsafe { Handle::ask(segment, 0, |s| usize::try_from(s.len()).unwrap_or(0)) }
}

/// Makes a segment smaller.
///
/// # Safety
/// `segment` is null, or a segment that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_segment_shrink(segment: *mut Handle<Segment>, len: usize) -> c_int {
    // SAFETY: by this function's contract, `segment` is null or an open handle.
    unsafe { Handle::run(segment, |s| Ok(s.shrink(len as u64).map(drop)?)) }
}

/// Closes a segment.
///
/// # Safety
/// `segment` is null, or came from `isthmus_segment_open` and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_segment_close(segment: *mut Handle<Segment>) {
    // SAFETY: by this function's contract, `segment` is null or an open handle, and this call is its last use.
    unsafe { Handle::close(segment) };
}

/// Removes a segment's name.
///
/// # Safety
/// `here` is null or an attachment; `name` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_segment_unlink(
    here: *const Handle<Attachment>,
    name: *const c_char,
) -> c_int {
    let body = |attached: &Attachment| {
        // SAFETY: by this function's contract, `name` is null or a string that ends in a zero.
        let name = unsafe { named(name) }?;
        Ok(attached.unlink(isthmus::Kind::Segment, name)?)
    };
    // SAFETY: by this function's contract, `here` is null or an open handle.
    unsafe { Handle::run(here, body) }
}

/// As `struct isthmus_segment_info`.
#[repr(C)]
#[derive(Debug)]
pub struct Info {
    name: *const c_char,
    len: usize,
    mode: c_uint,
    uid: u32,
    gid: u32,
    opens: u64,
    unlinked: c_int,
}

/// What is called for each segment.
pub type Each = unsafe extern "C" fn(info: *const Info, arg: *mut c_void) -> c_int;

/// Lists segments.
///
/// # Safety
/// `here` is null or an attachment; `each` is null or a function that may be called with `arg`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_segment_list(
    here: *const Handle<Attachment>,
    each: Option<Each>,
    arg: *mut c_void,
) -> c_int {
    let mut said = 0;
    let body = |attached: &Attachment| {
        let each = each.ok_or_else(|| Failure::invalid("there is no function to call"))?;
        for object in attached.segments() {
            let name = CString::new(object.name.replace('\0', " ")).unwrap_or_default();
            let info = Info {
                name: name.as_ptr(),
                len: usize::try_from(object.len).unwrap_or(usize::MAX),
                mode: object.mode,
                uid: object.owner.0,
                gid: object.owner.1,
                opens: object.opens,
                unlinked: c_int::from(object.flags & isthmus::UNLINKED != 0),
            };
            // SAFETY: by this function's contract, `each` may be called with `arg`; `info` and its name live as long
            // as the call.
            said = unsafe { each(&raw const info, arg) };
            if said != 0 {
                break;
            }
        }
        Ok(())
    };
    // SAFETY: by this function's contract, `here` is null or an open handle.
    match unsafe { Handle::run(here, body) } {
        0 => said,
        failed => failed,
    }
}
