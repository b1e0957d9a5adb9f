//! The remote endpoints that an endpoint knows, and what ends when one of them is gone.

use std::collections::VecDeque;

use isthmus_lockfree::life::{Life, State};
use isthmus_region::format::{KIND_LANES, block};
use isthmus_region::roster::{self, Change, Record};
use rustix::io::Errno;

use super::depth::Depths;
use super::path::Path;
use super::table::Operation;
use super::tally::Sent;
use super::ways::Ways;
use super::{Berth, Core, Peer, attach, backlog, direct};
use crate::address::Address;
use crate::matching::Target;
use crate::types::{Error, Op, PeerId, Result, Status};

impl Peer {
    #[inline]
    pub(super) fn lives(&self) -> bool {
        !self.path.is_gone() && self.record.as_ref().is_some_and(Record::lives)
    }

    /// Whether bytes that were copied out of its memory were its own (P5).
    #[inline]
    pub(super) fn still_lives(&self) -> bool {
        self.record.as_ref().is_some_and(Record::still_lives)
    }

    /// Whether its record says that it was closed in good order.
    pub(super) fn took_leave(&self) -> bool {
        self.record.as_ref().is_some_and(Record::took_leave)
    }
}

/// That memory of other processes cannot be mapped.
#[derive(Debug, Default)]
pub(super) struct Unmapped {
    /// What is still to be told.
    pub(super) text: Option<String>,
    /// That messages wait was told, or is to be.
    waits_told: bool,
}

/// Why messages cannot be taken, and what helps.
fn unmapped_told(errno: Errno, stays: bool) -> String {
    let fix = match errno {
        Errno::NOMEM => {
            "raise the limit on addresses (ulimit -v), or the system's on mappings (sysctl vm.max_map_count)"
        }
        Errno::AGAIN => "raise the limit on locked memory (ulimit -l)",
        Errno::BADF => "the program must not close descriptors that it did not open",
        _ => "the device may be gone: see the kernel's log",
    };
    let then = match stays {
        true => "messages wait at their senders until it can be",
        false => "processes whose messages lie there are treated as gone",
    };
    format!("memory of the region cannot be mapped here: {errno}; {fix}; {then}")
}

impl Berth {
    /// Whether the endpoint with a record has lanes.
    ///
    /// # Errors
    /// What keeps its block from being looked at just now.
    fn takes_lanes(&self, record: &Record) -> isthmus_region::Result<bool> {
        let kind = roster::endpoint(&self.member, record.slot()).and_then(|(directory, info)| {
            let at = info.block.saturating_add(block::KIND);
            Ok(directory.section().word("block", at)?.get() == KIND_LANES)
        });
        kind.or_else(|e| if e.says_nothing() { Err(e) } else { Ok(false) })
    }
}

impl Core {
    /// As [`super::Endpoint::resolve`].
    pub(super) fn resolve(&mut self, berth: &mut Berth, address: &Address) -> Result<PeerId> {
        let id = self.meet(berth, address)?;
        self.peers[id.0 as usize].is_kept = true;
        Ok(id)
    }

    /// The remote endpoint with an address.
    fn meet(&mut self, berth: &mut Berth, address: &Address) -> Result<PeerId> {
        if let Some(known) = self.by_address.get(address) {
            return Ok(*known);
        }
        if berth.member.region().find(address.system).is_none() {
            return Err(Error::NoSystem);
        }
        let record = match Record::find(&berth.member, address) {
            Err(source) if source.says_nothing() => Err(source),
            found => Ok(found.ok()),
        };
        // It may live: nothing is kept of it, and the next call looks again.
        let unseen = |source| Error::Region { action: "look at the memory of a peer", source };
        record.and_then(|record| self.meet_at(berth, address, record)).map_err(unseen)
    }

    /// The same where it is known where the endpoint is. If it is a sender, its number may be used again once it is gone.
    ///
    /// # Errors
    /// What keeps it from being looked at just now.
    pub(super) fn meet_at(
        &mut self,
        berth: &Berth,
        address: &Address,
        record: Option<Record>,
    ) -> isthmus_region::Result<PeerId> {
        if let Some(known) = self.by_address.get(address) {
            return Ok(*known);
        }
        // A context of IVC accepts no lane: posts to it fail instead of waiting for ever.
        let active = record.as_ref().filter(|r| r.is_active());
        let gone = !active.map_or(Ok(false), |r| berth.takes_lanes(r))?;
        let is_near = berth.is_near(record.as_ref());
        let pool = berth.pool_of(record.as_ref());
        let mut peer = Peer {
            address: *address,
            record,
            path: Path::Closed,
            sent: Sent::default(),
            backlog: backlog::Backlog::default(),
            pushes: VecDeque::new(),
            is_busy: false,
            reach: direct::Reach::default(),
            is_own: *address == self.address,
            is_near,
            attach: attach::Reach::default(),
            pool,
            ways: Ways::default(),
            depths: Depths::default(),
            pulls: VecDeque::new(),
            section: None,
            is_kept: false,
            is_spare: false,
        };
        if gone {
            peer.path = Path::Gone { died: !peer.took_leave() };
        }
        let id = if let Some(id) = self.take_spare() {
            self.peers[id.0 as usize] = peer;
            id
        } else {
            self.peers.push(peer);
            PeerId(u32::try_from(self.peers.len() - 1).unwrap_or(u32::MAX))
        };
        self.by_address.insert(*address, id);
        Ok(id)
    }

    /// A number for use again: that of a sender that is gone and was never reported to the program.
    fn take_spare(&mut self) -> Option<PeerId> {
        while let Some(id) = self.strangers.pop() {
            let peer = &mut self.peers[id.0 as usize];
            peer.is_spare = false;
            if !peer.is_kept {
                self.by_address.remove(&peer.address);
                return Some(id);
            }
        }
        None
    }

    /// Lets the number of a remote endpoint that is gone be used again, unless the program may know it.
    pub(super) fn spare(&mut self, id: PeerId) {
        let peer = &mut self.peers[id.0 as usize];
        if peer.path.is_gone() && !peer.is_kept && !peer.is_spare {
            peer.is_spare = true;
            self.strangers.push(id);
        }
    }

    /// As [`super::Endpoint::peer_address`].
    pub(super) fn peer_address(&self, peer: PeerId) -> Option<Address> {
        self.peers.get(peer.0 as usize).map(|p| p.address)
    }

    /// As [`super::Endpoint::take_faulty`].
    pub(super) fn take_faulty(&mut self, berth: &mut Berth) -> Option<String> {
        let peer = self.peers.get(self.faulty.pop()?.0 as usize)?;
        let (address, slot) = (peer.address, peer.record.as_ref()?.slot());
        let index = slot.peer(berth.member.region().shape().endpoints);
        let info = berth.member.region().peer(index).ok().flatten();
        // The section of a faulty endpoint may hold garbage, too.
        let found = roster::endpoint(&berth.member, slot);
        let process = found.map_or_else(|_| "a process".to_owned(), |(_, e)| format!("process {}", e.pid));
        let name = info.map_or_else(|| format!("peer {index}"), |i| format!("'{}'", i.name));
        Some(format!("{process} of {name} ({address})"))
    }

    /// Checks which peers and endpoints joined, left or died, if a generation says that something changed.
    pub(super) fn check_region(&mut self, berth: &mut Berth) {
        let changes = berth.roster.check(&berth.member, berth.slot);
        if changes.is_empty() {
            return;
        }
        for change in changes {
            match change {
                Change::Gone(index) => self.lose_all(berth, index),
                // An endpoint of the new incarnation may be known already, by its address.
                Change::Replaced(index) => self.lose_dead(berth, index),
                Change::Endpoints(at) => self.lose_dead(berth, berth.roster.peers()[at].index),
            }
        }
        berth.crowded = berth.member.is_crowded();
    }

    /// Ends everything with those endpoints of a peer that are gone.
    fn lose_dead(&mut self, berth: &mut Berth, index: u32) {
        self.lose_of(berth, index, |peer| !peer.lives());
    }

    /// Ends everything with all endpoints of a peer that is gone. Their records say so only a moment later,
    /// when they are no longer checked.
    fn lose_all(&mut self, berth: &mut Berth, index: u32) {
        self.lose_of(berth, index, |_| true);
    }

    /// Ends everything with those endpoints of a peer that `is_lost` selects.
    fn lose_of(&mut self, berth: &mut Berth, index: u32, is_lost: impl Fn(&Peer) -> bool) {
        let endpoints = berth.member.region().shape().endpoints;
        for i in 0..self.peers.len() {
            let peer = &self.peers[i];
            let is_there = peer.record.as_ref().is_some_and(|r| r.slot().peer(endpoints) == index);
            if is_there && !peer.path.is_gone() && is_lost(peer) {
                // An endpoint that was closed did not die: directed receives stay posted.
                let died = !peer.took_leave();
                self.lose(berth, PeerId(u32::try_from(i).unwrap_or(u32::MAX)), died);
            }
        }
    }

    /// Ends everything with a peer that broke the protocol, and notes it for [`super::Endpoint::take_faulty`].
    #[cold]
    pub(super) fn lose_faulty(&mut self, berth: &mut Berth, id: PeerId) {
        if !self.still_lives(id) {
            // What was read may have been written by another, which has its memory now (P5).
            let died = !self.peers[id.0 as usize].took_leave();
            return self.lose(berth, id, died);
        }
        if !self.peers[id.0 as usize].path.is_gone() {
            self.faulty.push(id);
        }
        self.peers[id.0 as usize].is_kept = true;
        self.lose(berth, id, true);
    }

    /// Notes that the system has refused to map what a message lies in; whether the message stays in its lane: not where no later try
    /// can succeed.
    #[cold]
    pub(super) fn leave_unmapped(&mut self, errno: Errno) -> bool {
        let stays = matches!(errno, Errno::NOMEM | Errno::AGAIN);
        let unmapped = &mut self.unmapped;
        if stays && std::mem::replace(&mut unmapped.waits_told, true) {
            return stays;
        }
        unmapped.text = Some(unmapped_told(errno, stays));
        stays
    }

    /// Ends everything with a peer whose memory this process can never map again.
    #[cold]
    pub(super) fn lose_unmapped(&mut self, berth: &mut Berth, id: PeerId) {
        self.peers[id.0 as usize].is_kept = true;
        self.lose(berth, id, true);
    }

    /// Ends everything with a peer that is gone, or faulty.
    pub(super) fn lose(&mut self, berth: &mut Berth, id: PeerId, died: bool) {
        let peer = &mut self.peers[id.0 as usize];
        if peer.path.is_gone() {
            return;
        }
        let pushes = std::mem::take(&mut peer.pushes);
        (peer.pulls, peer.attach) = (VecDeque::new(), attach::Reach::Never);
        let posts = self.take_backlog(id);
        let lane = self.take_lane(id);
        self.peers[id.0 as usize].path = Path::Gone { died };
        if let Some(mut out) = lane {
            berth.open_lanes -= 1;
            berth.chunk_pool.extend(out.all_chunks());
            let at = berth.lanes.at(out.number);
            if let Ok(life) = at.and_then(|at| berth.member.section().word("lane", at)) {
                life.set(Life { state: State::Dead, ..Life::unpack(life.peek()) }.pack());
            }
            berth.lanes.give(out.number);
            berth.give_place(out.place);
        }
        for push in &pushes {
            berth.withdraw(&push.pins);
        }
        for mut then in pushes.into_iter().filter_map(|push| push.then).chain(posts) {
            (then.status, then.source) = (Status::PeerGone, Some(id));
            self.completions.push_back(then);
        }
        for operation in self.operations.take_all(id) {
            if let Operation::Lent { pins, .. } = &operation {
                berth.withdraw(pins);
            }
            match operation {
                Operation::Announced { mut then, .. }
                | Operation::Lent { mut then, .. }
                | Operation::Await { mut then, .. } => {
                    (then.status, then.source) = (Status::PeerGone, Some(id));
                    self.completions.push_back(then);
                }
                Operation::Incoming { mut then, multi, measured, .. } => {
                    measured.and_then(|message| message.watched).iter().for_each(|_| self.watch.forget());
                    (then.status, then.source) = (Status::PeerGone, Some(id));
                    then.len = 0;
                    if then.op != Op::RemoteWrite {
                        self.completions.push_back(then);
                    }
                    self.end_multi_message(multi);
                }
            }
        }
        self.matching.forget(id);
        if died {
            for waiting in self.matching.take_directed(id) {
                let mut completion =
                    self.template(waiting.ticket, Op::Receive { tagged: waiting.select.tagged }, 0);
                completion.status = Status::PeerGone;
                completion.tag = waiting.select.tag;
                completion.source = Some(id);
                if let Target::Multi(number) = waiting.target {
                    self.multis.remove(&number);
                    completion.released = true;
                }
                self.completions.push_back(completion);
            }
        }
        for number in 0..berth.incoming.len() {
            if berth.incoming[number].as_ref().is_some_and(|l| l.peer == id) {
                self.drop_incoming(berth, u32::try_from(number).unwrap_or(u32::MAX));
            }
        }
        self.spare(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_cannot_be_mapped_is_told_with_what_helps() {
        for (errno, stays, needed) in [
            (Errno::NOMEM, true, ["ulimit -v", "vm.max_map_count", "wait at their senders"]),
            (Errno::AGAIN, true, ["ulimit -l", "cannot be mapped here", "wait"]),
            (Errno::BADF, false, ["close descriptors", "cannot be mapped here", "treated as gone"]),
        ] {
            let told = unmapped_told(errno, stays);
            assert!(needed.iter().all(|needed| told.contains(needed)), "{told}");
        }
    }
}
