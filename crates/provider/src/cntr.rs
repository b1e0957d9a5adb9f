//! Counters, as in fi_cntr(3). Reading one moves everything of the endpoints that are bound to it.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_cabi::Poison;
use isthmus_fabric_sys::*;

use crate::core::Core;
use crate::cq::{FURTHER_POLLS, is_idle, progress};
use crate::domain::Domain;
use crate::ep::Ep;
use crate::lock::Lock;
use crate::object::{self, Object};

/// A counter.
#[repr(C)]
pub(crate) struct Cntr {
    head: fid_cntr,
    poison: Poison,
    pub(crate) domain: Arc<Domain>,
    endpoints: Lock<Vec<Arc<Ep>>>,
    counts: Lock<Counts>,
}

#[derive(Default)]
struct Counts {
    done: u64,
    failed: u64,
    /// Sum of both when it was read last, and how often it was the same.
    seen: u64,
    idle: u32,
}

// SAFETY: the head is written when it is made and only read since; its pointers are C's.
unsafe impl Send for Cntr {}
// SAFETY: as above.
unsafe impl Sync for Cntr {}

impl Object for Cntr {
    type Head = fid_cntr;
    fn poison(&self) -> &Poison {
        &self.poison
    }
    fn core(&self) -> Option<&'static Core> {
        self.domain.core()
    }
}

static FID_OPS: fi_ops = object::ops(close, object::no_bind, object::no_control);
static OPS: fi_ops_cntr = fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read,
    readerr,
    add,
    set,
    wait,
    adderr: Some(adderr),
    seterr: Some(seterr),
};

impl Cntr {
    pub(crate) fn open(
        domain: Arc<Domain>,
        attr: *mut fi_cntr_attr,
        context: *mut c_void,
    ) -> Result<Arc<Self>, c_int> {
        // SAFETY: null or valid.
        let attr: Option<&fi_cntr_attr> = unsafe { isthmus_cabi::object(attr) };
        let (events, wait) = attr.map_or((FI_CNTR_EVENTS_COMP, FI_WAIT_NONE), |a| (a.events, a.wait_obj));
        if events != FI_CNTR_EVENTS_COMP || !matches!(wait, FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_YIELD) {
            return Err(FI_ENOSYS);
        }
        let fid = object::head(FI_CLASS_CNTR, context, &FID_OPS);
        Ok(Arc::new(Self {
            head: fid_cntr { fid, ops: &OPS },
            poison: Poison::new(),
            endpoints: Lock::new(domain.locks, Vec::new()),
            counts: Lock::new(domain.locks, Counts::default()),
            domain,
        }))
    }

    /// Endpoints whose progress this counter makes.
    pub(crate) fn endpoints(&self) -> &Lock<Vec<Arc<Ep>>> {
        &self.endpoints
    }

    /// Counts one completion.
    #[inline]
    pub(crate) fn count(&self, ok: bool) {
        let mut counts = self.counts.lock();
        if ok {
            counts.done = counts.done.wrapping_add(1);
        } else {
            counts.failed = counts.failed.wrapping_add(1);
        }
    }

    /// Both counts, after progress.
    fn look(&self) -> (u64, u64) {
        let progress = progress(&self.endpoints);
        let mut counts = self.counts.lock();
        let sum = counts.done.wrapping_add(counts.failed);
        let found = (counts.done, counts.failed);
        if sum != counts.seen {
            counts.seen = sum;
            counts.idle = 0;
        } else if is_idle(&mut counts.idle, progress) {
            drop(counts);
            std::thread::yield_now();
        }
        found
    }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: our counter, closed once.
    unsafe { object::close::<Cntr>(fid.cast(), object::unless_busy) }
}

unsafe extern "C" fn read(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: our counter.
    unsafe { object::call::<Cntr, _>(cntr, 0, |cntr| cntr.look().0) }
}

unsafe extern "C" fn readerr(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: our counter.
    unsafe { object::call::<Cntr, _>(cntr, 0, |cntr| cntr.look().1) }
}

/// Changes the counts.
///
/// # Safety
/// Our counter.
unsafe fn change(cntr: *mut fid_cntr, how: impl FnOnce(&mut Counts)) -> c_int {
    let body = |cntr: &Cntr| {
        how(&mut cntr.counts.lock());
        0
    };
    // SAFETY: passed on.
    unsafe { object::call::<Cntr, _>(cntr, -FI_EIO, body) }
}

unsafe extern "C" fn add(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: our counter.
    unsafe { change(cntr, |c| c.done = c.done.wrapping_add(value)) }
}

unsafe extern "C" fn set(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: our counter.
    unsafe { change(cntr, |c| c.done = value) }
}

unsafe extern "C" fn adderr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: our counter.
    unsafe { change(cntr, |c| c.failed = c.failed.wrapping_add(value)) }
}

unsafe extern "C" fn seterr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: our counter.
    unsafe { change(cntr, |c| c.failed = value) }
}

unsafe extern "C" fn wait(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    let body = |cntr: &Cntr| {
        let until = u64::try_from(timeout).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
        let failed_before = cntr.counts.lock().failed;
        loop {
            for _ in 0..FURTHER_POLLS {
                let (done, failed) = cntr.look();
                if done >= threshold {
                    return 0;
                }
                if failed != failed_before {
                    return -FI_EAVAIL;
                }
            }
            if until.is_some_and(|u| Instant::now() >= u) {
                return -FI_ETIMEDOUT;
            }
        }
    };
    // SAFETY: our counter.
    unsafe { object::call::<Cntr, _>(cntr, -FI_EIO, body) }
}
