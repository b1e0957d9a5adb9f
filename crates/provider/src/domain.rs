//! Domains, as in fi_domain(3): objects that share an attachment, a table of registrations, and a promise on threads.

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::{Arc, Weak};

use isthmus_cabi::Poison;
use isthmus_fabric_sys::*;
use isthmus_region::member::Member;

use crate::av::Av;
use crate::cntr::Cntr;
use crate::core::{Core, log};
use crate::cq::Cq;
use crate::ep::Ep;
use crate::fabric::Fabric;
use crate::info::DomainHints;
use crate::lock::Lock;
use crate::memory::{self, Store};
use crate::mr::{self, Registrations};
use crate::object::{self, Object};
use crate::{arithmetic, attachment, errno, unsupported};

/// A domain.
#[repr(C)]
pub(crate) struct Domain {
    head: fid_domain,
    poison: Poison,
    pub(crate) fabric: Arc<Fabric>,
    /// Not dropped in a forked child, where the region is not mapped.
    pub(crate) member: ManuallyDrop<Arc<Member>>,
    /// The process that opened it.
    pub(crate) pid: u32,
    /// Whether several threads may use it at a time, so that its locks are real; see [`crate::lock`].
    pub(crate) locks: bool,
    pub(crate) registrations: Arc<Registrations>,
    /// Memory of the region that the program uses itself.
    pub(crate) store: ManuallyDrop<Store>,
    /// Its endpoints.
    pub(crate) endpoints: Lock<Vec<Weak<Ep>>>,
    /// Held while an endpoint that is being closed, and is no longer among them, makes progress.
    pub(crate) closing: Lock<()>,
}

// SAFETY: the head is not written after `open`; its pointers are to static tables, and the program's own context, which
// is not followed.
unsafe impl Send for Domain {}
// SAFETY: what changes is behind locks, or within its own synchronised types; the head as for Send.
unsafe impl Sync for Domain {}

// SAFETY: `repr(C)`, and the head is the first field.
unsafe impl Object for Domain {
    type Head = fid_domain;
    fn poison(&self) -> &Poison {
        &self.poison
    }
    fn core(&self) -> Option<&'static Core> {
        self.fabric.core()
    }
}

static FID_OPS: fi_ops = object::ops_with(close, bind, unsupported::control, memory::open_ops);
static OPS: fi_ops_domain = fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open,
    cq_open,
    endpoint,
    scalable_ep: unsupported::scalable_ep,
    cntr_open,
    poll_open: unsupported::poll_open,
    stx_ctx: unsupported::stx_ctx,
    srx_ctx: unsupported::srx_ctx,
    query_atomic: Some(query_atomic),
    query_collective: None,
    endpoint2: Some(endpoint2),
};

impl Domain {
    pub(crate) fn open(
        fabric: Arc<Fabric>,
        info: *mut fi_info,
        context: *mut c_void,
    ) -> Result<Arc<Self>, c_int> {
        // SAFETY: null, or attributes that the program lends for this call.
        let info = unsafe { isthmus_cabi::object(info) }.ok_or(FI_EINVAL)?;
        // SAFETY: null or a part of `info`; `DomainHints` is what every version has.
        let attr: Option<&DomainHints> = unsafe { isthmus_cabi::object(info.domain_attr.cast()) };
        let (threading, mr_mode) = attr.map_or((FI_THREAD_SAFE, 0), |a| (a.threading, a.mr_mode));
        let member = attachment::take(fabric.region).map_err(|e| {
            log!(
                fabric.core(),
                WARN,
                DOMAIN,
                "cannot open a domain: {}",
                isthmus_region::error::with_causes(&e)
            );
            errno::of_attach(&e)
        })?;
        if fabric.region.is_some_and(|region| region != member.region().shape().uuid) {
            log!(
                fabric.core(),
                WARN,
                DOMAIN,
                "cannot open a domain: the service of this fabric's region has ended"
            );
            return Err(FI_ENODATA);
        }
        let fid = object::head(FI_CLASS_DOMAIN, context, &FID_OPS);
        Ok(Arc::new(Self {
            head: fid_domain { fid, ops: &OPS, mr: &mr::OPS },
            poison: Poison::new(),
            fabric,
            member: ManuallyDrop::new(member),
            pid: std::process::id(),
            locks: threading != FI_THREAD_DOMAIN,
            registrations: Arc::new(Registrations::new(mr_mode)),
            store: ManuallyDrop::default(),
            endpoints: Lock::new(threading != FI_THREAD_DOMAIN, Vec::new()),
            closing: Lock::new(threading != FI_THREAD_DOMAIN, ()),
        }))
    }

    /// Returns when the progress that its endpoints are making, in whatever thread, has ended.
    pub(crate) fn await_progress(&self) {
        let all: Vec<_> = self.endpoints.lock().iter().filter_map(Weak::upgrade).collect();
        for ep in all {
            ep.await_progress();
        }
        drop(self.closing.lock());
    }

    /// Whether this process opened it; a forked child must not touch the region.
    pub(crate) fn is_own(&self) -> bool {
        self.pid == std::process::id()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if self.is_own() {
            // Before the attachment, since its table lies in the region.
            // SAFETY: dropped here only, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.store) };
            // SAFETY: dropped here only, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.member) };
        }
    }
}

/// What a domain was opened with, and what is opened in it must keep to.
pub(crate) struct Terms {
    /// Several threads may use it at a time.
    pub(crate) locks: bool,
    /// RMA names memory by the target's addresses, and not by offsets.
    pub(crate) plain_addresses: bool,
    /// The provider chooses the keys.
    pub(crate) own_keys: bool,
}

/// The terms of a domain that a program names; none if it is not one of ours.
pub(crate) fn terms(domain: *mut fid_domain) -> Option<Terms> {
    // SAFETY: null, or an open domain of some provider; all have this structure.
    let head = unsafe { isthmus_cabi::object(domain) }?;
    if !std::ptr::eq(head.ops, &raw const OPS) {
        return None;
    }
    // SAFETY: ours by its table of operations, and the program has it open.
    let ours = unsafe { object::share::<Domain>(domain) }?;
    let (plain_addresses, own_keys) = ours.registrations.modes();
    Some(Terms { locks: ours.locks, plain_addresses, own_keys })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    let last = |domain: &Arc<Domain>| match object::unless_busy(domain) {
        0 if domain.is_own() && domain.store.is_in_use() => -FI_EBUSY,
        result => result,
    };
    // SAFETY: fi_domain gave `fid` out, and this is the one fi_close of it.
    unsafe { object::close::<Domain>(fid.cast(), last) }
}

unsafe extern "C" fn bind(_fid: *mut fid, other: *mut fid, _flags: u64) -> c_int {
    // SAFETY: null, or an open object of the program's; all begin with this head.
    match unsafe { isthmus_cabi::object(other) } {
        // Nothing of a domain completes through an event queue, so there is nothing to remember.
        Some(other) if other.fclass == FI_CLASS_EQ => 0,
        _ => -FI_EINVAL,
    }
}

unsafe extern "C" fn av_open(
    domain: *mut fid_domain,
    attr: *mut fi_av_attr,
    answer: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    // SAFETY: fi_domain gave `domain` out, and it is open; `answer` is null or the program's place for the object.
    unsafe { object::open::<Domain, Av>(domain, answer, |domain| Av::open(domain, attr, context)) }
}

unsafe extern "C" fn cq_open(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    answer: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: fi_domain gave `domain` out, and it is open; `answer` is null or the program's place for the object.
    unsafe { object::open::<Domain, Cq>(domain, answer, |domain| Cq::open(domain, attr, context)) }
}

unsafe extern "C" fn endpoint(
    domain: *mut fid_domain,
    info: *mut fi_info,
    answer: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: fi_domain gave `domain` out, and it is open; `answer` is null or the program's place for the object.
    unsafe { object::open::<Domain, Ep>(domain, answer, |domain| Ep::open(domain, info, context)) }
}

unsafe extern "C" fn endpoint2(
    domain: *mut fid_domain,
    info: *mut fi_info,
    answer: *mut *mut fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return -FI_EBADFLAGS;
    }
    // SAFETY: `endpoint` asks for the same of these arguments.
    unsafe { endpoint(domain, info, answer, context) }
}

unsafe extern "C" fn cntr_open(
    domain: *mut fid_domain,
    attr: *mut fi_cntr_attr,
    answer: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: fi_domain gave `domain` out, and it is open; `answer` is null or the program's place for the object.
    unsafe { object::open::<Domain, Cntr>(domain, answer, |domain| Cntr::open(domain, attr, context)) }
}

unsafe extern "C" fn query_atomic(
    _domain: *mut fid_domain,
    datatype: u32,
    op: u32,
    attr: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    let kind = match flags & (FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC) {
        0 => isthmus_transport::AtomicKind::Plain,
        FI_FETCH_ATOMIC => isthmus_transport::AtomicKind::Fetch,
        FI_COMPARE_ATOMIC => isthmus_transport::AtomicKind::Compare,
        _ => return -FI_EBADFLAGS,
    };
    let Some(size) = arithmetic::valid(datatype, op, kind) else { return -FI_EOPNOTSUPP };
    let answer = fi_atomic_attr { count: arithmetic::MOST_BYTES / size, size };
    // SAFETY: null, or the program's place for the answer.
    if unsafe { isthmus_cabi::put(attr, answer) } { 0 } else { -FI_EINVAL }
}
