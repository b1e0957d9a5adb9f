//! Event queues, as in fi_eq(3). The provider reports no events: what a program reads is what it wrote.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use isthmus_cabi::Poison;
use isthmus_fabric_sys::*;

use crate::core::Core;
use crate::fabric::Fabric;
use crate::object::{self, Object};
use crate::unsupported;

/// How many events a queue holds if the program does not say.
const DEFAULT_SIZE: usize = 256;
/// The length of the longest event that may be written.
const EVENT_BYTES: usize = 4096;

/// An event queue.
#[repr(C)]
pub(crate) struct Eq {
    head: fid_eq,
    poison: Poison,
    fabric: Arc<Fabric>,
    writable: bool,
    size: usize,
    events: Mutex<VecDeque<(u32, Vec<u8>)>>,
}

// SAFETY: the head is not written after `open`; its pointers are to static tables, and the program's own context, which
// is not followed.
unsafe impl Send for Eq {}
// SAFETY: what changes is behind a lock; the head as for Send.
unsafe impl Sync for Eq {}

// SAFETY: `repr(C)`, and the head is the first field.
unsafe impl Object for Eq {
    type Head = fid_eq;
    fn poison(&self) -> &Poison {
        &self.poison
    }
    fn core(&self) -> Option<&'static Core> {
        self.fabric.core()
    }
}

static FID_OPS: fi_ops = object::ops(close, unsupported::bind, unsupported::control);
static OPS: fi_ops_eq = fi_ops_eq { size: size_of::<fi_ops_eq>(), read, readerr, write, sread, strerror };

impl Eq {
    pub(crate) fn open(
        fabric: Arc<Fabric>,
        attr: *mut fi_eq_attr,
        context: *mut c_void,
    ) -> Result<Arc<Self>, c_int> {
        // SAFETY: null, or attributes that the program lends for this call.
        let attr = unsafe { isthmus_cabi::object(attr) };
        let (flags, size, wait) =
            attr.map_or((0, 0, FI_WAIT_NONE), |a: &fi_eq_attr| (a.flags, a.size, a.wait_obj));
        if !matches!(wait, FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_YIELD) {
            return Err(FI_ENOSYS);
        }
        let fid = object::head(FI_CLASS_EQ, context, &FID_OPS);
        Ok(Arc::new(Self {
            head: fid_eq { fid, ops: &OPS },
            poison: Poison::new(),
            fabric,
            writable: flags & FI_EQ_WRITE != 0,
            size: if size == 0 { DEFAULT_SIZE } else { size },
            events: Mutex::default(),
        }))
    }

    fn read(&self, event: *mut u32, buf: *mut c_void, len: usize, peek: bool) -> isize {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((kind, bytes)) = events.front() else { return -(FI_EAGAIN as isize) };
        if buf.is_null() || len < bytes.len() {
            return -(FI_ETOOSMALL as isize);
        }
        // SAFETY: null, or the program's place for the kind of event.
        unsafe { isthmus_cabi::put(event, *kind) };
        // SAFETY: not null, and the program's buffer is at least as long as the event (checked above).
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast::<u8>(), bytes.len()) };
        let count = bytes.len().cast_signed();
        if !peek {
            events.pop_front();
        }
        count
    }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: fi_eq_open gave `fid` out, and this is the one fi_close of it.
    unsafe { object::close::<Eq>(fid.cast(), object::unless_busy) }
}

unsafe extern "C" fn read(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    // SAFETY: fi_eq_open gave `eq` out, and the program has not closed it.
    unsafe {
        object::call::<Eq, _>(eq, -(FI_EIO as isize), |eq| eq.read(event, buf, len, flags & FI_PEEK != 0))
    }
}

unsafe extern "C" fn readerr(_eq: *mut fid_eq, _buf: *mut fi_eq_err_entry, _flags: u64) -> isize {
    // Nothing fails after its call has returned, so there are no such events.
    -(FI_EAGAIN as isize)
}

unsafe extern "C" fn write(
    eq: *mut fid_eq,
    event: u32,
    buf: *const c_void,
    len: usize,
    _flags: u64,
) -> isize {
    let body = |eq: &Eq| {
        // SAFETY: null, or `len` bytes that the program lends for this call.
        let bytes = unsafe { isthmus_cabi::slice(buf.cast::<u8>(), len, EVENT_BYTES) };
        let (Some(bytes), true) = (bytes, eq.writable) else { return -(FI_EINVAL as isize) };
        let mut events = eq.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() >= eq.size {
            return -(FI_EAGAIN as isize);
        }
        events.push_back((event, bytes.to_vec()));
        len.cast_signed()
    };
    // SAFETY: fi_eq_open gave `eq` out, and the program has not closed it.
    unsafe { object::call::<Eq, _>(eq, -(FI_EIO as isize), body) }
}

unsafe extern "C" fn sread(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    let until = Instant::now() + Duration::from_millis(u64::try_from(timeout).unwrap_or(0));
    loop {
        // SAFETY: fi_eq_open gave `eq` out, and the program has not closed it; the buffer is as `read` asks.
        let got = unsafe { read(eq, event, buf, len, flags) };
        if got != -(FI_EAGAIN as isize) || (timeout >= 0 && Instant::now() >= until) {
            return got;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

unsafe extern "C" fn strerror(
    _eq: *mut fid_eq,
    _prov_errno: c_int,
    _err_data: *const c_void,
    _buf: *mut c_char,
    _len: usize,
) -> *const c_char {
    c"no error".as_ptr()
}
