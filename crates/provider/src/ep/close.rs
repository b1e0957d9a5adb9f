//! Closing an endpoint: it leaves all that knows it, and waits until what it sent was taken.

use std::ffi::c_int;
use std::sync::{Arc, Weak};

use isthmus_fabric_sys::*;

use super::Ep;
use crate::core::log;
use crate::cq::Progress;
use crate::object::{self, Object};

pub(super) unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    let last = |ep: &Arc<Ep>| {
        Ep::shut(ep);
        0
    };
    // SAFETY: fi_endpoint gave `fid` out, and this is the one fi_close of it.
    unsafe { object::close::<Ep>(fid.cast(), last) }
}

impl Ep {
    /// Takes the endpoint out of everything that knows it, and closes its transport. Messages that live receivers do not
    /// take within [`isthmus_transport::CLOSE_PATIENCE`] are lost.
    fn shut(this: &Arc<Self>) {
        let mut state = this.state.lock();
        let broken = state.moving;
        let transport = state.transport.take();
        let name = state.name.take();
        let mut cqs = vec![state.bindings.tx.cq.take(), state.bindings.rx.cq.take()];
        let mut counters: Vec<_> = state.counters().into_iter().map(Option::take).collect();
        state.bindings.av = None;
        state.enabled = false;
        state.update_postable();
        drop(state);
        if this.domain.is_own() {
            drop(name);
        } else {
            // In a forked child: the name is the parent's, which still uses it.
            std::mem::forget(name);
        }
        for cq in cqs.drain(..).flatten() {
            cq.endpoints().lock().retain(|e| !Arc::ptr_eq(e, this));
        }
        for counter in counters.drain(..).flatten() {
            counter.endpoints().lock().retain(|e| !Arc::ptr_eq(e, this));
        }
        let others: Vec<_> = {
            let mut all = this.domain.endpoints.lock();
            all.retain(|e| e.strong_count() > 0 && !std::ptr::eq(e.as_ptr(), Arc::as_ptr(this)));
            all.iter().filter_map(Weak::upgrade).collect()
        };
        match transport {
            // After a panic it may be half changed: it is taken out of the region, without progress.
            Some(transport) if this.domain.is_own() && (broken || this.poison.is_set()) => drop(transport),
            Some(transport) if this.domain.is_own() => {
                // Waits until live receivers have taken what was sent.
                let mut closing = transport.begin_close(isthmus_transport::CLOSE_PATIENCE);
                let waiting = loop {
                    let turn = this.domain.closing.lock();
                    let end = closing.advance();
                    drop(turn);
                    if let Some(waiting) = end {
                        break waiting;
                    }
                    // This thread alone makes the progress of this domain's other endpoints, which may be the receivers;
                    // one that is broken takes nothing any more.
                    if others.iter().any(|other| other.progress() == Progress::Broken) {
                        return;
                    }
                    closing.rest();
                };
                if waiting > 0 {
                    log!(
                        this.core(),
                        WARN,
                        EP_CTRL,
                        "closed with messages that {waiting} live receivers did not take for {} s; they are lost",
                        isthmus_transport::CLOSE_PATIENCE.as_secs()
                    );
                }
            }
            // In a forked child the region is not mapped, so nothing may touch it.
            other => std::mem::forget(other),
        }
    }
}
