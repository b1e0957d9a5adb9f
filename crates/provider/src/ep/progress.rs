//! An endpoint's progress, and its sleep while there is none to make.

use std::sync::Arc;

use isthmus_cabi::guard;
use isthmus_region::doorbell::{Doorbell, Sleeper};
use isthmus_transport::{Asleep, Endpoint, Short};

use super::completion::ToReader;
use super::{Ep, State};
use crate::core::log;
use crate::cq::{Cq, Destination, Progress};
use crate::object::Object;

impl Ep {
    /// The short way of a poll for `cq`: takes short messages, whose entries go to `to` as long as that has room. Only
    /// where locks are left out, and where receives make entries in that queue and do nothing else.
    #[inline(always)]
    pub(crate) fn poll_short(&self, cq: &Cq, wait: bool, to: &mut Destination) -> Short {
        let Some(mut state) = self.state.without_lock() else { return Short::Other };
        if !std::ptr::eq(state.short, cq) || self.poison.is_set() {
            return Short::Other;
        }
        let State { transport, bindings, moving, .. } = &mut *state;
        let Some(transport) = transport else { return Short::Other };
        *moving = true;
        // A message makes one entry at most, so each of as many as there is room for has a place.
        let found = transport.poll_short(to.room(), wait, &mut ToReader { bindings, cq, to });
        *moving = false;
        found
    }

    /// Moves everything, unless another thread is doing so.
    pub(crate) fn progress(&self) -> Progress {
        let body = || {
            let Some(mut state) = self.state.try_lock() else { return Progress::Elsewhere };
            if state.moving {
                return Progress::Broken;
            }
            state.moving = true;
            let short = std::mem::replace(&mut state.short, std::ptr::null());
            state.advance();
            state.short = short;
            state.moving = false;
            Progress::Made
        };
        let report =
            |said: &str| log!(self.core(), WARN, EP_DATA, "internal error, the endpoint is closed: {said}");
        // A guard of its own, so that a panic breaks this endpoint, and not the queue with all its endpoints.
        guard(&self.poison, Progress::Broken, report, body)
    }

    /// Returns when the progress that another thread is making has ended.
    pub(crate) fn await_progress(&self) {
        drop(self.state.lock());
    }

    /// Whether it has lanes, so that a message can come or go without opening one.
    pub(crate) fn has_lanes(&self) -> bool {
        self.state.try_lock().is_none_or(|s| s.transport.as_ref().is_none_or(Endpoint::has_lanes))
    }

    /// How threads sleep here.
    pub(crate) fn doorbell(&self) -> Doorbell {
        self.domain.member.doorbell()
    }

    /// Whether there are more processes than processors.
    pub(crate) fn is_crowded(&self) -> bool {
        self.state.try_lock().is_some_and(|s| s.transport.as_ref().is_some_and(Endpoint::is_crowded))
    }

    /// Whether a call that has something to tell already may leave progress to the next one ([`Endpoint::can_wait`]). Only where locks are
    /// left out.
    #[inline]
    pub(crate) fn can_wait(&self) -> bool {
        let Some(mut state) = self.state.without_lock() else { return false };
        !state.moving && state.transport.as_mut().is_some_and(Endpoint::can_wait)
    }

    /// Whether a long message or an operation is under way, which may complete soon.
    pub(crate) fn has_transfers(&self) -> bool {
        self.state.try_lock().is_some_and(|s| s.transport.as_ref().is_some_and(Endpoint::has_transfers))
    }

    /// Where threads sleep that wait for it; none before it is enabled.
    pub(crate) fn sleeper(&self) -> Option<&Arc<Sleeper>> {
        if self.sleeper.get().is_none() {
            let sleeper = Arc::clone(self.state.lock().transport.as_ref()?.sleeper()?);
            let _ = self.sleeper.set(sleeper);
        }
        self.sleeper.get()
    }

    /// Gets ready to sleep, as [`Endpoint::fall_asleep`]; none if there is something to do. Each success must be followed by
    /// one [`Ep::wake_up`].
    pub(crate) fn fall_asleep(&self, by_service: bool) -> Option<Asleep> {
        let mut state = self.state.lock();
        if state.moving || self.poison.is_set() {
            return None;
        }
        let asleep = state.transport.as_mut()?.fall_asleep(by_service)?;
        state.sleepers += 1;
        Some(asleep)
    }

    /// Ends a sleep. While other threads sleep on this endpoint it goes on to be rung; the thread that finds something
    /// wakes them.
    pub(crate) fn wake_up(&self) {
        let mut state = self.state.lock();
        state.sleepers = state.sleepers.saturating_sub(1);
        if state.sleepers == 0
            && let Some(transport) = &mut state.transport
        {
            transport.wake_up();
        }
    }
}

impl State {
    /// Moves everything, and hands what completed to its queues and counters.
    pub(super) fn advance(&mut self) {
        if let Some(transport) = &mut self.transport {
            transport.progress_into(&mut self.bindings);
            while let Some(remote) = transport.take_faulty() {
                log!(self.core, WARN, EP_DATA, "{remote} broke the protocol; it is treated as gone");
            }
            if let Some(why) = transport.take_unmapped() {
                log!(self.core, WARN, EP_DATA, "{why}");
            }
            if transport.take_shortage() {
                log!(
                    self.core,
                    WARN,
                    EP_DATA,
                    "the region is full: there are processes whose messages wait until this host or VM gives memory of it \
                     back; a larger one (--region-size) has room for them"
                );
            }
            if transport.take_memory_shortage() {
                log!(
                    self.core,
                    WARN,
                    EP_DATA,
                    "this process has no memory left (ulimit -v?) for messages that it has no receive for yet: they wait at \
                     their senders until it receives what it has"
                );
            }
        }
    }

    /// Hands what completed to its queues and counters.
    pub(super) fn drain(&mut self) {
        if let Some(transport) = &mut self.transport {
            transport.drain_into(&mut self.bindings);
        }
    }
}
