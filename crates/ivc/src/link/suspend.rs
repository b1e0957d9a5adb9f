//! Suspending a channel, as before a migration: both sides stop writing and hand over what they have not read.

use super::writer::Writer;
use super::{Ended, Link, SUSPENDING, size};
use crate::event::Event;
use crate::table::at;
use crate::wait::lock;

impl Link {
    /// Writes no more; gives whether it did until now.
    pub(super) fn pause_writing(&self, core: &mut Writer) -> bool {
        let is_news = !core.paused;
        if is_news {
            core.paused = true;
            core.reserved = 0;
            core.ended.get_or_insert(Ended::Suspended);
            self.own.writer(at::PAUSED).set(core.positions.written() + 1);
            lock(&self.state).pausing = true;
        }
        is_news
    }

    /// Stops writing, and asks the partner to stop.
    pub(crate) fn pause(&self) {
        let mut is_news = self.pause_writing(&mut lock(&self.writer));
        let stopped = self.own.reader(at::STOPPED);
        {
            let _core = lock(&self.reader);
            if stopped.peek() == 0 {
                stopped.set(SUSPENDING);
                is_news = true;
            }
        }
        // Both ends come here as long as they have the channel: they must not wake each other for ever.
        if is_news {
            self.ring_both();
            self.shared.ring_context(self.record.slot().0);
        }
    }

    /// Whether the partner writes no more.
    pub(crate) fn is_settled(&self) -> bool {
        let silent = [at::PAUSED, at::END].iter().any(|w| self.partner.writer(*w).get() != 0);
        silent || !self.is_alive() || lock(&self.state).handed_over
    }

    /// Takes all unread bytes, hands them to the program, and ends both directions.
    pub(crate) fn hand_over(&self) {
        if std::mem::replace(&mut lock(&self.state).handed_over, true) {
            return;
        }
        let mut unread = Vec::new();
        {
            let mut core = lock(&self.reader);
            // The caller has seen the pause, so what was written before it is visible (P17): a ring full at most.
            while core.ended.is_none() {
                let start = unread.len();
                let Ok(()) = self.poll(&mut core) else { break };
                let len = core.positions.available();
                if len == 0 || unread.len() >= size(core.positions.capacity()) {
                    break;
                }
                unread.resize(start + size(len), 0);
                let target = &mut unread[start..];
                let got = self.read_with(&mut core, len, |from, to, len| {
                    // Cannot fail: the ring is as long as the capacity, and the target has room for `len` bytes.
                    let _ = self.partner_ring.get(from, &mut target[size(to)..size(to + len)]);
                });
                unread.truncate(start + size(got.unwrap_or(0)));
            }
            if core.ended.is_none() {
                core.ended = Some(Ended::Suspended);
            }
            // By the event.
            core.told = core.told.saturating_add(1);
        }
        self.alarm.set(1);
        self.shared.sleeper.wake_all();
        self.shared.tell(Event::Suspended { channel: self.id, peer: self.peer.clone(), unread });
    }
}
