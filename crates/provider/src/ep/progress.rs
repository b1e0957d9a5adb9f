//! An endpoint's progress, and its sleep while there is none to make.

use std::os::fd::OwnedFd;

use isthmus_cabi::guard;
use isthmus_transport::{Asleep, Bell, Endpoint, Short};

use super::completion::Straight;
use super::{Ep, State};
use crate::core::log;
use crate::cq::{Cq, Destination, Progress};
use crate::object::Object;

impl Ep {
    /// The short way of a poll for `cq`: short messages, or nothing; only where that can be told without a lock, and
    /// where what is received makes entries in that queue and nothing else. They go to `to`, as long as there is room.
    #[inline(always)]
    pub(crate) fn poll_short(&self, cq: &Cq, wait: bool, to: &mut Destination) -> Short {
        let Some(mut state) = self.state.without_lock() else { return Short::Other };
        if !std::ptr::eq(state.short, cq) || self.poison.is_set() {
            return Short::Other;
        }
        let State { transport, ends, moving, .. } = &mut *state;
        let Some(transport) = transport else { return Short::Other };
        *moving = true;
        // Exactly those that make no entry leave room.
        let found = transport.poll_short(to.room(), wait, &mut Straight { ends, cq, to });
        *moving = false;
        found
    }

    /// Moves everything, unless another thread is at it.
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
        // Guarded by itself, so that a panic breaks this endpoint and not all others of a queue.
        guard(&self.poison, Progress::Broken, report, body)
    }

    /// Returns when the progress that another thread was making has ended.
    pub(crate) fn await_progress(&self) {
        drop(self.state.lock());
    }

    /// Whether any message can come or go without a lane being opened first.
    pub(crate) fn has_lanes(&self) -> bool {
        self.state.try_lock().is_none_or(|s| s.transport.as_ref().is_none_or(Endpoint::has_lanes))
    }

    /// Whether a thread can sleep on a futex here.
    pub(crate) fn has_futex(&self) -> bool {
        self.domain.member.has_futexes()
    }

    /// Whether there are more processes than processors.
    pub(crate) fn is_crowded(&self) -> bool {
        self.state.try_lock().is_some_and(|s| s.transport.as_ref().is_some_and(Endpoint::is_crowded))
    }

    /// Whether a message or an operation is under way with others, which may have an end soon.
    pub(crate) fn has_transfers(&self) -> bool {
        self.state.try_lock().is_some_and(|s| s.transport.as_ref().is_some_and(Endpoint::has_transfers))
    }

    /// The eventfd that is written when the endpoint sleeps and is rung; made when it is needed first.
    pub(crate) fn bell(&self) -> Option<&OwnedFd> {
        if self.bell.get().is_none() {
            let made = self.state.lock().transport.as_ref()?.bell().ok()?;
            // Another thread may be first, which is as well: the service rings all that it gave.
            let _ = self.bell.set(made);
        }
        self.bell.get()
    }

    /// Gets ready to sleep; nothing if there is something to do. Each success is followed by one [`Ep::wake_up`].
    pub(crate) fn fall_asleep(&self, bell: Bell) -> Option<Asleep> {
        let mut state = self.state.lock();
        if state.moving || self.poison.is_set() {
            return None;
        }
        let asleep = state.transport.as_mut()?.fall_asleep(bell)?;
        state.sleepers += 1;
        Some(asleep)
    }

    /// Ends a sleep. While others sleep on this endpoint it goes on to be rung for them; whoever finds something wakes them.
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
    /// Moves everything, and hands out what completed.
    pub(super) fn advance(&mut self) {
        if let Some(transport) = &mut self.transport {
            transport.progress_into(&mut self.ends);
            while let Some(who) = transport.take_faulty() {
                log!(self.core, WARN, EP_DATA, "{who} broke the protocol; it is treated as gone");
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

    /// Hands out what completed.
    pub(super) fn drain(&mut self) {
        if let Some(transport) = &mut self.transport {
            transport.drain_into(&mut self.ends);
        }
    }
}
