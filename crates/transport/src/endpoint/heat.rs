//! Hot lanes: polled directly, and not announced by their senders.

use std::time::Instant;

use super::poll::Keep;
use super::{Berth, Core};
use crate::fault::{Step, step};

impl Core {
    /// Makes a lane hot; cools the one that was idle longest if there are too many.
    pub(super) fn warm(&mut self, berth: &mut Berth, number: u32) {
        if berth.hot.contains(&number) {
            return;
        }
        let Some(Some(lane)) = berth.incoming.get_mut(number as usize) else { return };
        lane.warm();
        step(Step::Warmed);
        lane.last = self.ticks;
        berth.cooling.retain(|n| *n != number);
        berth.hot.push(number);
        if berth.hot.len() > self.config.hot_lanes {
            let last = |n: &u32| match berth.incoming.get(*n as usize) {
                Some(Some(l)) => l.last,
                _ => 0,
            };
            let oldest = (0..berth.hot.len() - 1).min_by_key(|k| last(&berth.hot[*k]));
            if let Some(k) = oldest {
                let cold = berth.hot.remove(k);
                if let Some(Some(lane)) = berth.incoming.get_mut(cold as usize) {
                    lane.cool();
                    step(Step::CoolAsked);
                    berth.cooling.push(cold);
                    berth.cooled = Some(Instant::now());
                }
            }
        }
    }

    /// Polls lanes that were asked to cool, until their senders have answered that they announce again.
    pub(super) fn cool_down(&mut self, berth: &mut Berth) {
        let mut k = 0;
        while let Some(number) = berth.cooling.get(k).copied() {
            let settled = match berth.incoming.get_mut(number as usize) {
                Some(Some(lane)) => lane.settled(),
                _ => true,
            };
            // Once more after the answer, since what was published before it was not announced (P4). A sender
            // that fills the lane as fast as we empty it must not keep us here: the lane is polled again next
            // time.
            let drained = (0..64).any(|_| !self.poll(berth, number, &mut Keep));
            if settled && drained && !berth.is_left(number) && berth.cooling.get(k) == Some(&number) {
                berth.cooling.remove(k);
            } else {
                k += 1;
            }
        }
    }
}
