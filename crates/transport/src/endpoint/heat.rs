//! Hot lanes: polled directly, and not announced by their senders.

use super::Endpoint;
use super::poll::Keep;
use crate::fault::{Step, step};

impl Endpoint {
    /// Makes a lane hot; cools the one that was idle longest if there are too many.
    pub(super) fn warm(&mut self, number: u32) {
        if self.berth.hot.contains(&number) {
            return;
        }
        let Some(Some(lane)) = self.berth.incoming.get_mut(number as usize) else { return };
        lane.warm();
        step(Step::Warmed);
        lane.last = self.core.ticks;
        self.berth.cooling.retain(|n| *n != number);
        self.berth.hot.push(number);
        if self.berth.hot.len() > self.core.config.hot_lanes {
            let last = |n: &u32| match self.berth.incoming.get(*n as usize) {
                Some(Some(l)) => l.last,
                _ => 0,
            };
            let oldest = (0..self.berth.hot.len() - 1).min_by_key(|k| last(&self.berth.hot[*k]));
            if let Some(k) = oldest {
                let cold = self.berth.hot.remove(k);
                if let Some(Some(lane)) = self.berth.incoming.get_mut(cold as usize) {
                    lane.cool();
                    step(Step::CoolAsked);
                    self.berth.cooling.push(cold);
                }
            }
        }
    }

    /// Polls lanes that were asked to cool, until their senders have answered that they announce again.
    pub(super) fn cool_down(&mut self) {
        let mut k = 0;
        while let Some(number) = self.berth.cooling.get(k).copied() {
            let settled = match self.berth.incoming.get_mut(number as usize) {
                Some(Some(lane)) => lane.settled(),
                _ => true,
            };
            // Once more after the answer, since what was published before it was not announced (P4). A sender
            // that fills the lane as fast as we empty it must not keep us here: the lane is polled again next
            // time.
            let drained = (0..64).any(|_| !self.poll(number, &mut Keep));
            if settled && drained && !self.is_left(number) && self.berth.cooling.get(k) == Some(&number) {
                self.berth.cooling.remove(k);
            } else {
                k += 1;
            }
        }
    }
}
