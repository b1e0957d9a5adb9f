//! How threads sleep until something happens to their context, and how a context wakes those of others.

use std::sync::Arc;
use std::time::Duration;

use isthmus_lockfree::activity;
use isthmus_lockfree::sleep::{self, Bell};
use isthmus_region::format::GlobalSlot;

use super::{SLEEP, Shared, State, VERSION};
use crate::wait::{self, lock};

/// The threads of this context that sleep until something happens to it.
#[derive(Default)]
pub(super) struct Sleeping {
    count: u64,
    sleepers: u32,
    /// Whether the program may be polling the descriptor.
    armed: bool,
}

impl Shared {
    /// Announces that the program is about to poll the descriptor.
    pub(super) fn arm(&self) {
        let mut sleeping = lock(&self.sleeping);
        sleeping.armed = true;
        sleeping.count += 1;
        sleep::announce_sleep(&self.block.words[SLEEP], sleeping.count, Bell::Service);
    }

    /// Takes that back: the program was told not to poll.
    pub(super) fn disarm(&self) {
        let mut sleeping = lock(&self.sleeping);
        sleeping.armed = false;
        if sleeping.sleepers == 0 {
            sleep::announce_awake(&self.block.words[SLEEP]);
        }
    }

    /// Announces to a member of the group that one of the own ends changed, and rings it if it sleeps.
    pub(crate) fn announce(&self, state: &mut State, slot: u32) {
        let version = &self.block.words[VERSION];
        version.set(version.peek().wrapping_add(1));
        if let Ok(line) = self.member.own().announcements(slot) {
            activity::announce(&line, self.local);
        }
        if let Some(known) = state.known.get_mut(&slot)
            && let Some(bell) = sleep::who_to_ring(&known.block.words[SLEEP], &mut known.rung)
        {
            self.ring(slot, bell);
        }
    }

    /// Rings a member of the group, if it sleeps until something happens to its context.
    pub(crate) fn ring_context(&self, slot: u32) {
        let mut state = lock(&self.state);
        if let Some(known) = state.known.get_mut(&slot)
            && let Some(bell) = sleep::who_to_ring(&known.block.words[SLEEP], &mut known.rung)
        {
            self.ring(slot, bell);
        }
    }

    /// Rings all members of the group that sleep: this one has joined, or leaves.
    pub(super) fn ring_group(&self, state: &mut State) {
        for (slot, known) in &mut state.known {
            if let Some(bell) = sleep::who_to_ring(&known.block.words[SLEEP], &mut known.rung) {
                self.ring(*slot, bell);
            }
        }
    }

    /// Rings the bell of another context: its futex where that can be reached, otherwise by the service.
    #[cold]
    #[inline(never)]
    pub(crate) fn ring(&self, slot: u32, bell: Bell) {
        self.member.ring(GlobalSlot(slot), bell);
    }

    /// Waits until `done` returns true, at most `limit`, or for ever; calls it whenever something may have happened. Returns
    /// whether it did.
    pub(crate) fn wait_for(
        self: &Arc<Self>,
        limit: Option<Duration>,
        mut done: impl FnMut(&Arc<Self>, &mut State) -> bool,
    ) -> bool {
        let deadline = wait::deadline(limit);
        let mut check = || {
            let links = self.progress();
            let mut state = lock(&self.state);
            self.refresh(&mut state);
            let is_done = done(self, &mut state);
            drop(state);
            drop(links);
            is_done
        };
        // Few, since such a check costs more than a poll of one word.
        for _ in 0..4 {
            if check() {
                return true;
            }
            std::thread::yield_now();
        }
        loop {
            let seen = self.sleeper.seen();
            {
                let mut sleeping = lock(&self.sleeping);
                sleeping.count += 1;
                sleeping.sleepers += 1;
                let bell = if sleeping.armed { Bell::Service } else { self.sleeper.doorbell().bell() };
                sleep::announce_sleep(&self.block.words[SLEEP], sleeping.count, bell);
            }
            let found = check();
            let left = wait::left(deadline);
            if !found && !left.is_zero() {
                self.sleeper.sleep(seen, left);
            }
            {
                let mut sleeping = lock(&self.sleeping);
                sleeping.sleepers -= 1;
                if sleeping.sleepers == 0 && !sleeping.armed {
                    sleep::announce_awake(&self.block.words[SLEEP]);
                }
            }
            if found || left.is_zero() {
                return found;
            }
        }
    }
}
