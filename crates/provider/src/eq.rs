//! Event queues, as in fi_eq(3). We report no events of our own: what a program reads is what it wrote.

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

/// Events that a queue holds when the caller does not say how many.
const DEFAULT_SIZE: usize = 256;
/// Longest event that may be written.
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

// SAFETY: the head is written when it is made and only read since; its pointers are C's.
unsafe impl Send for Eq {}
// SAFETY: as above.
unsafe impl Sync for Eq {}

impl Object for Eq {
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
        // SAFETY: null or valid.
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
        // SAFETY: null or the caller's place for the kind.
        unsafe { isthmus_cabi::put(event, *kind) };
        // SAFETY: the caller's buffer, which is long enough.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast::<u8>(), bytes.len()) };
        let count = bytes.len().cast_signed();
        if !peek {
            events.pop_front();
        }
        count
    }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: our queue, closed once.
    unsafe { object::close::<Eq>(fid.cast(), object::unless_busy) }
}

unsafe extern "C" fn read(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    // SAFETY: our queue.
    unsafe {
        object::call::<Eq, _>(eq, -(FI_EIO as isize), |eq| eq.read(event, buf, len, flags & FI_PEEK != 0))
    }
}

unsafe extern "C" fn readerr(_eq: *mut fid_eq, _buf: *mut fi_eq_err_entry, _flags: u64) -> isize {
    // Nothing of ours fails later than in its call.
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
        // SAFETY: the caller vouches for `len` bytes.
        let bytes = unsafe { isthmus_cabi::slice(buf.cast::<u8>(), len, EVENT_BYTES) };
        let (Some(bytes), true) = (bytes, eq.writable) else { return -(FI_EINVAL as isize) };
        let mut events = eq.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() >= eq.size {
            return -(FI_EAGAIN as isize);
        }
        events.push_back((event, bytes.to_vec()));
        len.cast_signed()
    };
    // SAFETY: our queue.
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
        // SAFETY: passed on.
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
