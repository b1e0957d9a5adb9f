//! Counters, as in fi_cntr(3). Reading one makes the progress of the endpoints that are bound to it, unless it has news and progress can wait
//! ([`Ep::can_wait`]).

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Instant;

use isthmus_cabi::Poison;
use isthmus_fabric_sys::*;

use crate::core::Core;
use crate::cq::{Progress, get_wait, is_crowded, progress, waiter};
use crate::domain::Domain;
use crate::ep::Ep;
use crate::lock::Lock;
use crate::object::{self, Object};
use crate::unsupported;
use crate::wait::{self, Patience, Rest, Waiter};

/// A counter.
#[repr(C)]
pub(crate) struct Cntr {
    head: fid_cntr,
    poison: Poison,
    pub(crate) domain: Arc<Domain>,
    endpoints: Lock<Vec<Arc<Ep>>>,
    counts: Lock<Counts>,
    waiter: Waiter,
}

struct Counts {
    done: u64,
    failed: u64,
    /// The sum of both when the counter was read last.
    seen: u64,
    patience: Patience,
}

// SAFETY: the head is not written after `open`; its pointers are to static tables, and the program's own context, which
// is not followed.
unsafe impl Send for Cntr {}
// SAFETY: what changes is behind locks; the head as for Send.
unsafe impl Sync for Cntr {}

// SAFETY: `repr(C)`, and the head is the first field.
unsafe impl Object for Cntr {
    type Head = fid_cntr;
    fn poison(&self) -> &Poison {
        &self.poison
    }
    fn core(&self) -> Option<&'static Core> {
        self.domain.core()
    }
}

static FID_OPS: fi_ops = object::ops(close, unsupported::bind, control);
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
        // SAFETY: null, or attributes that the program lends for this call.
        let attr: Option<&fi_cntr_attr> = unsafe { isthmus_cabi::object(attr) };
        let (events, wait) = attr.map_or((FI_CNTR_EVENTS_COMP, FI_WAIT_NONE), |a| (a.events, a.wait_obj));
        if events != FI_CNTR_EVENTS_COMP {
            return Err(FI_ENOSYS);
        }
        let waiter = waiter(wait)?;
        let counts = Counts { done: 0, failed: 0, seen: 0, patience: Patience::FULL };
        let fid = object::head(FI_CLASS_CNTR, context, &FID_OPS);
        Ok(Arc::new(Self {
            head: fid_cntr { fid, ops: &OPS },
            poison: Poison::new(),
            endpoints: Lock::new(domain.locks, Vec::new()),
            counts: Lock::new(domain.locks, counts),
            waiter,
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
        drop(counts);
        self.waiter.ring();
    }

    /// `fi_trywait`: whether the program may block on the descriptor now; none if the counter has no descriptor.
    pub(crate) fn arm(&self) -> Option<bool> {
        // What was counted since the last read is news, too.
        let before = self.counts.lock().seen;
        if progress(&self.endpoints) == Progress::Broken || self.sum() != before {
            return self.waiter.descriptor().map(|_| false);
        }
        self.waiter.arm(&self.endpoints, || self.sum() != before)
    }

    fn sum(&self) -> u64 {
        let counts = self.counts.lock();
        counts.done.wrapping_add(counts.failed)
    }

    /// Both counts, after progress but for [`Cntr::poll_short`].
    #[inline]
    fn poll(&self) -> (u64, u64) {
        self.waiter.disarm();
        self.poll_short().unwrap_or_else(|| self.poll_on())
    }

    /// The short way where locks are left out, operations have completed since the last read, most of them in their calls, and progress can
    /// wait.
    fn poll_short(&self) -> Option<(u64, u64)> {
        let (endpoints, mut counts) = (self.endpoints.without_lock()?, self.counts.without_lock()?);
        let [endpoint] = endpoints.as_slice() else { return None };
        let sum = counts.done.wrapping_add(counts.failed);
        if sum == counts.seen || !endpoint.can_wait() {
            return None;
        }
        counts.seen = sum;
        counts.patience = Patience::FULL;
        Some((counts.done, counts.failed))
    }

    #[inline(never)]
    fn poll_on(&self) -> (u64, u64) {
        let progress = progress(&self.endpoints);
        let mut counts = self.counts.lock();
        let sum = counts.done.wrapping_add(counts.failed);
        let found = (counts.done, counts.failed);
        if sum != counts.seen {
            counts.seen = sum;
            counts.patience = Patience::FULL;
            return found;
        }
        let rest = counts.patience.rest(progress, || is_crowded(&self.endpoints));
        let before = counts.patience;
        let mut patience = before;
        drop(counts);
        match rest {
            Rest::None => return found,
            Rest::Nap => patience.nap(&self.endpoints),
            Rest::Yield => patience.yield_now(),
        }
        // Unless another thread has changed it meanwhile.
        let now = &mut self.counts.lock().patience;
        if *now == before {
            *now = patience;
        }
        found
    }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: fi_cntr_open gave `fid` out, and this is the one fi_close of it.
    unsafe { object::close::<Cntr>(fid.cast(), object::unless_busy) }
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    let body = |cntr: &Cntr| {
        // SAFETY: `arg` is null or has room for an int, by fi_cntr(3).
        unsafe { get_wait(&cntr.waiter, command, arg) }
    };
    // SAFETY: fi_cntr_open gave `fid` out, and the program has not closed it.
    unsafe { object::call::<Cntr, _>(fid.cast(), -FI_EIO, body) }
}

unsafe extern "C" fn read(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: fi_cntr_open gave `cntr` out, and the program has not closed it.
    unsafe { object::call::<Cntr, _>(cntr, 0, |cntr| cntr.poll().0) }
}

unsafe extern "C" fn readerr(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: fi_cntr_open gave `cntr` out, and the program has not closed it.
    unsafe { object::call::<Cntr, _>(cntr, 0, |cntr| cntr.poll().1) }
}

/// Changes the counts.
///
/// # Safety
/// A counter of ours that is open, or null.
unsafe fn change(cntr: *mut fid_cntr, how: impl FnOnce(&mut Counts)) -> c_int {
    let body = |cntr: &Cntr| {
        how(&mut cntr.counts.lock());
        cntr.waiter.ring();
        0
    };
    // SAFETY: `call` asks for the same.
    unsafe { object::call::<Cntr, _>(cntr, -FI_EIO, body) }
}

unsafe extern "C" fn add(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: fi_cntr_open gave `cntr` out, and the program has not closed it.
    unsafe { change(cntr, |c| c.done = c.done.wrapping_add(value)) }
}

unsafe extern "C" fn set(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: fi_cntr_open gave `cntr` out, and the program has not closed it.
    unsafe { change(cntr, |c| c.done = value) }
}

unsafe extern "C" fn adderr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: fi_cntr_open gave `cntr` out, and the program has not closed it.
    unsafe { change(cntr, |c| c.failed = c.failed.wrapping_add(value)) }
}

unsafe extern "C" fn seterr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: fi_cntr_open gave `cntr` out, and the program has not closed it.
    unsafe { change(cntr, |c| c.failed = value) }
}

unsafe extern "C" fn wait(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    let body = |cntr: &Cntr| {
        let until = wait::deadline(timeout);
        let failed_before = cntr.counts.lock().failed;
        loop {
            cntr.counts.lock().patience = Patience::FULL;
            let (mut sum, mut spins, begun) = (0, 0, Instant::now());
            while wait::reads_on(spins, begun, &cntr.endpoints) {
                let (done, failed) = cntr.poll();
                if done >= threshold {
                    return 0;
                }
                if failed != failed_before {
                    return -FI_EAVAIL;
                }
                sum = done.wrapping_add(failed);
                if timeout == 0 {
                    break;
                }
                spins += 1;
            }
            let left = wait::left(until);
            if left.is_zero() {
                return -FI_ETIMEDOUT;
            }
            cntr.waiter.sleep(&cntr.endpoints, left, || cntr.sum() != sum);
        }
    };
    // SAFETY: fi_cntr_open gave `cntr` out, and the program has not closed it.
    unsafe { object::call::<Cntr, _>(cntr, -FI_EIO, body) }
}
