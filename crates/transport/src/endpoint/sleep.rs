//! Going to sleep, and waking others.
//!
//! An endpoint that sleeps says so in its block, and a sender that announces a message to it rings, by whichever
//! doorbell there is ([`isthmus_region::doorbell`]). Before it sleeps it
//! cools its hot lanes, whose senders neither announce nor ring (`isthmus_lockfree::sleep` has the argument).
//! A sender that sleeps for want of room writes into its lane's descriptor at which read position it wants to
//! be woken, and announces that as it announces a message. The receiver finds the request where it finds
//! messages, and rings once it has read so far; it also rings when it accepts a lane. The services
//! ring for deaths. Nothing rings for a lane whose sender has not answered, or for memory of the region: these
//! are found by checks alone, so each sleep has a bound that fits what is open.

use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_lockfree::sleep::{self, Bell};
use isthmus_region::counters::{Counter, LaneCounter};
use isthmus_region::doorbell::Sleeper;
use isthmus_region::format::GlobalSlot;
use isthmus_region::roster::{Present, Record};

use super::{Berth, Core};
use crate::lane::{Asked, Outgoing, Request};
use crate::types::PeerId;

/// The longest sleep, if that of the doorbell is not longer: a process may be killed before it rings. As in a VM
/// wherever it is: programs leave endpoints asleep that wait for nothing in particular, and each look costs some.
pub(super) const LONGEST: Duration = Duration::from_millis(250);
/// The first sleep while something is open for which nothing rings. It doubles each time that nothing has
/// come, up to the second value.
const OPEN: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(2));
/// The first sleep while a sender has not answered that it announces again. It does at its next message, unless it
/// had just read the old heat. The next ones are as long as it has not answered: a message of a sender that stood still just then
/// is found as late again at most.
const UNANSWERED: Duration = Duration::from_millis(1);
/// The first sleep while messages are left on a lane for want of memory, and the longest: a sender without room announces nothing.
const LEFT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(64));

/// A sleep that may begin.
#[derive(Debug, Clone)]
pub struct Asleep {
    /// It must not last longer than this.
    pub limit: Duration,
    sleeper: Arc<Sleeper>,
    seen: u64,
}

impl Asleep {
    /// Sleeps until something rings, at most `limit` and [`Asleep::limit`]. The endpoint may be used by other threads
    /// meanwhile.
    pub fn wait(&self, limit: Duration) {
        self.sleeper.sleep(self.seen, limit.min(self.limit));
    }

    /// Whether the bell was rung: a wait would end at once.
    pub fn is_rung(&self) -> bool {
        self.sleeper.seen() != self.seen
    }

    /// Where it sleeps; other threads of this process can wake it there.
    pub fn sleeper(&self) -> &Arc<Sleeper> {
        &self.sleeper
    }
}

/// As [`super::Endpoint::can_wait`] says.
const MOST_WAITS: u32 = 16;
/// Polls for which [`super::Endpoint::has_transfers`] counts a long message that has ended.
pub(super) const RECENT: u64 = 2048;

fn bounded(range: (Duration, Duration), tries: u32) -> Duration {
    range.0.saturating_mul(1 << tries.min(16)).min(range.1)
}

impl Berth {
    /// As [`super::Endpoint::is_crowded`].
    #[inline]
    pub(super) fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// As [`super::Endpoint::wake_up`].
    pub(super) fn wake_up(&mut self) {
        self.asleep = None;
        sleep::announce_awake(&self.block.words[4]);
        self.next_activity = 0;
    }

    /// As [`super::Endpoint::wake_all`].
    #[cold]
    #[inline(never)]
    pub(super) fn wake_all(&mut self) {
        let bell = self.asleep;
        self.wake_up();
        self.sleeper.wake_all();
        if bell == Some(Bell::Service) {
            self.member.service().wake(self.slot);
        }
    }
}

impl Core {
    /// As [`super::Endpoint::has_transfers`].
    pub(super) fn has_transfers(&self, berth: &Berth) -> bool {
        let under_way = !self.busy.is_empty() || self.operations.has_any();
        !berth.crowded && (under_way || self.ticks < self.recent_until)
    }

    /// As [`super::Endpoint::can_wait`]. Each time counts as a tick, so that what is due now and then is not due later for it.
    pub(super) fn can_wait(&mut self, berth: &mut Berth) -> bool {
        let Berth { incoming, hot, cooling, .. } = &*berth;
        let arrived = |number: &u32| matches!(incoming.get(*number as usize), Some(Some(lane)) if lane.arrived().is_some());
        let mut can_wait = self.waited < MOST_WAITS
            && self.busy.is_empty()
            && !self.operations.has_any()
            && self.completions.is_empty()
            && berth.waiters.is_empty()
            && !hot.iter().any(arrived);
        // Beside hot lanes, others may wait for a few calls.
        if can_wait && (hot.is_empty() || self.waited.is_multiple_of(4)) {
            // A sender may not know yet that its lane is polled no more.
            let is_cooling = cooling.iter().any(arrived);
            if is_cooling || !berth.roster.peers().iter().all(Present::is_quiet) {
                // The progress that comes now looks there.
                berth.next_activity = 0;
                berth.next_slow = if is_cooling { 0 } else { berth.next_slow };
                can_wait = false;
            }
        }
        self.waited = if can_wait { self.waited + 1 } else { 0 };
        self.ticks = self.ticks.wrapping_add(can_wait.into());
        can_wait
    }

    /// As [`super::Endpoint::fall_asleep`].
    pub(super) fn fall_asleep(&mut self, berth: &mut Berth, by_service: bool) -> Option<Asleep> {
        if !self.completions.is_empty() {
            return None;
        }
        // Read first: a ring from here on changes it.
        let (sleeper, seen) = (Arc::clone(&berth.sleeper), berth.sleeper.seen());
        let mut is_cooled = false;
        for number in std::mem::take(&mut berth.hot) {
            if let Some(Some(lane)) = berth.incoming.get_mut(number as usize) {
                lane.cool();
                berth.cooling.push(number);
                is_cooled = true;
            }
        }
        if is_cooled {
            berth.cooled = Some(Instant::now());
        }
        berth.sleeps += 1;
        // The service also wakes threads that sleep on the futex.
        let by_service = by_service || berth.asleep == Some(Bell::Service);
        let bell = if by_service { Bell::Service } else { sleeper.doorbell().bell() };
        sleep::announce_sleep(&berth.block.words[4], berth.sleeps, bell);
        let unasked = self.ask_for_room(berth);
        // The check that decides: of everything.
        (berth.next_activity, berth.next_slow) = (0, 0);
        if self.progress(berth) || !self.completions.is_empty() || !berth.hot.is_empty() {
            if berth.asleep.is_some() {
                // Another thread sleeps, which nobody would ring for once the word says that all are awake.
                berth.wake_all();
            } else {
                sleep::announce_awake(&berth.block.words[4]);
            }
            berth.naps = 0;
            return None;
        }
        berth.asleep = Some(bell);
        self.watch.sleep();
        self.tally.add(Counter::Sleeps, 1);
        let retry = berth.roster.is_incomplete() || berth.retry_lanes;
        let open = !berth.closing.is_empty() || retry || self.refused || unasked;
        self.refused = false;
        let limit = if open {
            bounded(OPEN, berth.naps)
        } else if !berth.cooling.is_empty() {
            if berth.cooling.iter().any(|number| berth.is_left(*number)) {
                bounded(LEFT, berth.naps)
            } else {
                let since = berth.cooled.map_or(Duration::ZERO, |at| at.elapsed());
                since.clamp(UNANSWERED, berth.sleeper.most())
            }
        } else {
            berth.sleeper.most()
        };
        berth.naps += 1;
        Some(Asleep { limit, sleeper, seen })
    }

    /// Asks the receivers of all that waits for room to ring when there is some. Returns whether something
    /// waits for which nothing will ring. Comes before the check that decides.
    fn ask_for_room(&mut self, berth: &mut Berth) -> bool {
        let mut unasked = false;
        for k in 0..self.busy.len() {
            let to = self.busy[k];
            self.check_accept(berth, to);
            let peer = &mut self.peers[to.0 as usize];
            // After the fence of the sleep word: what the receiver had read before it could see that word is
            // seen here, so the position asked for lies ahead of it (P21).
            if peer.path.lane_mut().is_some_and(|out| out.refresh().is_err()) {
                // The check that decides finds this, too.
                unasked = true;
                continue;
            }
            match peer.path.lane_mut().map_or(Asked::No, Outgoing::ask_for_room) {
                Asked::Before => {}
                Asked::Now => self.ring_receiver(berth, to),
                Asked::No => unasked = true,
            }
        }
        unasked
    }

    /// After a message was announced to `to`: rings, if it sleeps.
    #[cold]
    #[inline(never)]
    pub(super) fn ring_receiver(&mut self, berth: &mut Berth, to: PeerId) {
        self.tally.add(Counter::Announced, 1);
        let Some(peer) = self.peers.get_mut(to.0 as usize) else { return };
        peer.sent.add(LaneCounter::Announced, 1);
        let Some(bell) = peer.path.lane_mut().and_then(crate::lane::Outgoing::bell_to_ring) else { return };
        let Some(slot) = peer.record.as_ref().map(Record::slot) else { return };
        self.ring(berth, to, bell, slot);
    }

    /// Checks whether the sender of a lane waits for room, and wakes it if there is some.
    pub(super) fn take_request(&mut self, berth: &mut Berth, number: u32) {
        let Some(Some(lane)) = berth.incoming.get_mut(number as usize) else { return };
        match lane.request() {
            Request::None => {}
            Request::Now => self.wake_sender(berth, number),
            Request::Later => {
                if !berth.waiters.contains(&number) {
                    berth.waiters.push(number);
                }
            }
        }
    }

    /// The same for all senders that asked for more room than there was.
    #[cold]
    pub(super) fn take_requests(&mut self, berth: &mut Berth) {
        for number in std::mem::take(&mut berth.waiters) {
            self.take_request(berth, number);
        }
    }

    /// Wakes the sender of a lane, if it sleeps.
    pub(super) fn wake_sender(&mut self, berth: &mut Berth, number: u32) {
        let Some(Some(lane)) = berth.incoming.get_mut(number as usize) else { return };
        let (Some(bell), from) = (lane.bell_to_ring(), lane.peer) else { return };
        let Some(peer) = self.peers.get(from.0 as usize) else { return };
        let Some(slot) = peer.record.as_ref().map(Record::slot) else { return };
        self.ring(berth, from, bell, slot);
    }

    /// Rings a remote endpoint that sleeps.
    pub(super) fn ring(&mut self, berth: &mut Berth, to: PeerId, bell: Bell, slot: GlobalSlot) {
        self.peers[to.0 as usize].sent.add(LaneCounter::Wakeups, 1);
        self.tally.add(Counter::Wakeups, 1);
        berth.member.ring(slot, bell);
    }
}
