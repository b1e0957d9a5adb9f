//! Fabrics, as in fi_fabric(3).

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use isthmus_cabi::{Poison, guard};
use isthmus_fabric_sys::*;

use crate::cntr::Cntr;
use crate::core::{Core, log};
use crate::cq::Cq;
use crate::domain::Domain;
use crate::eq::Eq;
use crate::object::{self, Object};
use crate::{attachment, unsupported};

/// A fabric.
#[repr(C)]
pub(crate) struct Fabric {
    head: fid_fabric,
    poison: Poison,
    core: Option<&'static Core>,
    /// The API version that the program asked for, which decides on the layout of the structures that it passes.
    pub(crate) api: u32,
    /// The region that it is; none if its name is not one that fi_getinfo gave.
    pub(crate) region: Option<[u64; 2]>,
}

// SAFETY: the head is not written after `open`; its pointers are to static tables, and the program's own context, which
// is not followed.
unsafe impl Send for Fabric {}
// SAFETY: nothing in it changes; the head as for Send.
unsafe impl Sync for Fabric {}

// SAFETY: `repr(C)`, and the head is the first field.
unsafe impl Object for Fabric {
    type Head = fid_fabric;
    fn poison(&self) -> &Poison {
        &self.poison
    }
    fn core(&self) -> Option<&'static Core> {
        self.core
    }
}

static FID_OPS: fi_ops = object::ops(close, unsupported::bind, unsupported::control);
static OPS: fi_ops_fabric = fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain: open_domain,
    passive_ep: unsupported::passive_ep,
    eq_open: open_eq,
    wait_open: unsupported::wait_open,
    trywait,
    domain2: Some(open_domain2),
};

/// `fi_fabric`.
///
/// # Safety
/// `attr` is null, or attributes that are lent for this call; `answer` is null or may be written.
pub(crate) unsafe fn open(
    core: Option<&'static Core>,
    attr: *mut fi_fabric_attr,
    answer: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    static POISON: Poison = Poison::new();
    let report = |said: &str| log!(core, WARN, FABRIC, "internal error, fabrics are off from now on: {said}");
    guard(&POISON, -FI_EIO, report, || {
        // SAFETY: null, or lent for this call, for which the caller vouches.
        let (Some(attr), false) = (unsafe { isthmus_cabi::object(attr) }, answer.is_null()) else {
            return -FI_EINVAL;
        };
        let fid = object::head(FI_CLASS_FABRIC, context, &FID_OPS);
        let head = fid_fabric { fid, ops: &OPS, api_version: attr.api_version };
        // SAFETY: null or a C string, as the names of attributes are, for which the caller vouches.
        let region = unsafe { isthmus_cabi::text(attr.name) }.and_then(attachment::region_of);
        let fabric = Arc::new(Fabric { head, poison: Poison::new(), core, api: attr.api_version, region });
        // SAFETY: not null, so it may be written, for which the caller vouches.
        unsafe { answer.write(object::give(fabric)) };
        0
    })
}

/// Whether a fabric that a program names is one of ours.
pub(crate) fn is_ours(fabric: *mut fid_fabric) -> bool {
    // SAFETY: null, or an open fabric of some provider; all have this structure.
    unsafe { isthmus_cabi::object(fabric) }.is_some_and(|f| std::ptr::eq(f.ops, &raw const OPS))
}

/// The region of an open fabric that a program names, if it is one of ours.
pub(crate) fn region_of(fabric: *mut fid_fabric) -> Option<[u64; 2]> {
    // SAFETY: ours by its table of operations, and the program has it open.
    let ours = is_ours(fabric).then(|| unsafe { object::share::<Fabric>(fabric) })??;
    ours.region
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: fi_fabric gave `fid` out, and this is the one fi_close of it.
    unsafe { object::close::<Fabric>(fid.cast(), object::unless_busy) }
}

unsafe extern "C" fn open_domain(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    answer: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: fi_fabric gave `fabric` out, and it is open; `answer` is null or the program's place for the object.
    unsafe { object::open::<Fabric, Domain>(fabric, answer, |fabric| Domain::open(fabric, info, context)) }
}

unsafe extern "C" fn open_domain2(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    answer: *mut *mut fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return -FI_EBADFLAGS;
    }
    // SAFETY: `open_domain` asks for the same of these arguments.
    unsafe { open_domain(fabric, info, answer, context) }
}

unsafe extern "C" fn open_eq(
    fabric: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    answer: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: fi_fabric gave `fabric` out, and it is open; `answer` is null or the program's place for the object.
    unsafe { object::open::<Fabric, Eq>(fabric, answer, |fabric| Eq::open(fabric, attr, context)) }
}

/// Gets queues and counters ready for a blocking wait on their descriptors, or says that there is something to read.
unsafe extern "C" fn trywait(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    let body = |_: &Fabric| {
        let count = usize::try_from(count).unwrap_or(0);
        if fids.is_null() && count > 0 {
            return -FI_EINVAL;
        }
        for i in 0..count {
            // SAFETY: not null, so the program's array of `count` places, of which this is one.
            let fid = unsafe { fids.wrapping_add(i).read() };
            // SAFETY: null, or an open object of the program's; all begin with this head.
            let class = unsafe { isthmus_cabi::object(fid) }.map(|f| f.fclass);
            let ready = match class {
                // SAFETY: a completion queue by its class; ours, since fi_trywait asks for objects of this fabric.
                Some(FI_CLASS_CQ) => unsafe { object::call::<Cq, _>(fid.cast(), None, Cq::arm) },
                // SAFETY: a counter by its class; ours, since fi_trywait asks for objects of this fabric.
                Some(FI_CLASS_CNTR) => unsafe { object::call::<Cntr, _>(fid.cast(), None, Cntr::arm) },
                _ => return -FI_EINVAL,
            };
            match ready {
                None => return -FI_EINVAL,
                Some(false) => return -FI_EAGAIN,
                Some(true) => {}
            }
        }
        0
    };
    // SAFETY: fi_fabric gave `fabric` out, and the program has not closed it.
    unsafe { object::call::<Fabric, _>(fabric, -FI_EIO, body) }
}
