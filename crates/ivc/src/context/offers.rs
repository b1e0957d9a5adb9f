//! Connections that others offer: accepting or refusing them, and own ends that are closed but may still be read.

use std::sync::Arc;

use isthmus_lockfree::life::{Life, State as Living};
use isthmus_lockfree::stream;
use isthmus_lockfree::sync::full_fence;
use isthmus_region::member::Member;
use isthmus_region::roster::Record;
use isthmus_region::{Bytes, PeerSection, ReadOnly};

use super::group::Known;
use super::{BACKLOG, Shared, State, VERSION};
use crate::channel::Channel;
use crate::error::{Result, region};
use crate::link::{Link, STOPPED};
use crate::peer::Peer;
use crate::table::{Claim, End, Table, Terms, at, claims};

/// A connection that waits to be accepted.
pub(crate) struct Offer {
    pub(crate) peer: Peer,
    /// The slot of its endpoint.
    pub(crate) slot: u32,
    pub(crate) claim: Claim,
}

/// An own end that is closed, while its partner may still read it.
pub(crate) struct Lingering {
    pub(crate) number: u32,
    /// The ring, until it was read: offset and bytes. `last` is the read position then.
    pub(crate) ring: Option<(u64, u64)>,
    pub(crate) last: u64,
    pub(crate) partner: End<ReadOnly>,
    pub(crate) partner_life: u64,
    pub(crate) record: Record,
    /// Whether it refuses an offer, and never was an end of a channel.
    pub(crate) refused: bool,
}

impl Lingering {
    /// Gives back what the partner reads no more; returns whether that is all.
    fn settle(&mut self, member: &Member) -> bool {
        let gone = !self.record.is_active() || self.partner.life().get() != self.partner_life;
        let is_deaf = self.partner.reader(at::STOPPED).get() == STOPPED;
        if (gone || is_deaf || self.partner.read().get() == self.last)
            && let Some((at, bytes)) = self.ring.take()
        {
            member.give(at, bytes);
        }
        gone
    }
}

impl Shared {
    /// Reads the tables of members that have announced something.
    pub(super) fn poll_activity(&self, state: &mut State) {
        for at in 0..state.roster.peers().len() {
            let peer = &mut state.roster.peers_mut()[at];
            let announced = peer.announced();
            if announced.is_none() {
                continue;
            }
            let slots = self.slots_of(peer.index);
            let senders: Vec<u32> = state
                .known
                .range(slots)
                .map(|(slot, _)| *slot)
                .filter(|slot| announced.has(self.local_of(*slot)))
                .collect();
            senders.into_iter().for_each(|slot| self.find_offers(state, slot));
        }
    }

    /// Gives back ends that no partner reads any more.
    pub(super) fn settle(&self, state: &mut State) {
        let member = &self.member;
        let table = &mut state.table;
        state.lingering.retain_mut(|lingering| {
            let done = lingering.settle(member);
            if done {
                table.give(lingering.number);
            }
            !done
        });
    }

    /// Forgets offers that were withdrawn.
    pub(crate) fn prune(&self, state: &mut State) {
        let known = &state.known;
        state.offers.retain(|offer| {
            let lives = known.get(&offer.slot).is_some_and(Known::lives);
            lives && offer.claim.end.life().get() == offer.claim.life
        });
    }

    /// Finds new offers of a member: queues them, or refuses those beyond the backlog.
    pub(super) fn find_offers(&self, state: &mut State, slot: u32) {
        let Some(known) = state.known.get_mut(&slot) else { return };
        let version = known.block.words[VERSION].get();
        if known.version_seen == Some(version) {
            return;
        }
        known.version_seen = Some(version);
        let peer = known.peer.clone();
        let mut fresh = claims(&known.section, &known.block, &self.own);
        fresh.retain(|claim| {
            let offered = claim.answers.is_none() && !claim.refused;
            offered && known.handled.insert(claim.number, claim.generation()) != Some(claim.generation())
        });
        if fresh.is_empty() {
            return;
        }
        self.prune(state);
        for claim in fresh {
            let waiting = state.offers.len() as u64;
            if waiting < self.facts.words[BACKLOG].peek() {
                state.offers.push_back(Offer { peer: peer.clone(), slot, claim });
            } else {
                self.refuse(state, slot, &claim);
            }
        }
    }

    /// Accepts the oldest offer that still stands.
    pub(super) fn accept_one(self: &Arc<Self>, state: &mut State) -> Result<Option<Channel>> {
        if state.suspended {
            return Ok(None);
        }
        self.prune(state);
        while let Some(offer) = state.offers.pop_front() {
            match self.accept_offer(state, &offer) {
                Ok(None) => {}
                Ok(Some(channel)) => return Ok(Some(channel)),
                Err(e) => {
                    state.offers.push_front(offer);
                    return Err(e);
                }
            }
        }
        Ok(None)
    }

    /// The ring that a claim names, in its owner's section.
    pub(crate) fn ring_of(section: &PeerSection, claim: &Claim) -> Option<Bytes<ReadOnly>> {
        section.bytes("ring", claim.ring, claim.ring_bytes).ok()
    }

    /// Takes an entry of the table for an own end. If there is none, takes that of the oldest refusal: its partner has had
    /// time to read it, or gets a time-out instead.
    fn take_entry(&self, state: &mut State) -> isthmus_region::Result<u32> {
        state.table.take(&self.member, self.block_at).or_else(|full| {
            let oldest = state.lingering.iter().position(|l| l.refused).ok_or(full)?;
            Ok(state.lingering.remove(oldest).number)
        })
    }

    /// Writes an own end; returns its number, the end, the life that the caller publishes, and its ring.
    pub(crate) fn describe(
        &self,
        state: &mut State,
        to: &Record,
        answers: Option<(u32, u64)>,
    ) -> Result<(u32, End, u64, u64)> {
        let failed = region("take memory for a channel");
        let bytes = self.config.ring_bytes;
        let ring = self.member.take(bytes).map_err(&failed)?;
        let number = match self.take_entry(state) {
            Ok(number) => number,
            Err(source) => {
                self.member.give(ring, bytes);
                return Err(failed(source));
            }
        };
        let end = state.table.end(&self.member, number).map_err(&failed)?;
        let segment_bytes = self.config.segment_bytes;
        let terms = Terms { to, ring, ring_bytes: bytes, segment_bytes, answers, refused: false };
        let life = Table::describe(&end, &terms);
        Ok((number, end, life, ring))
    }

    fn accept_offer(self: &Arc<Self>, state: &mut State, offer: &Offer) -> Result<Option<Channel>> {
        let Some(known) = state.known.get(&offer.slot) else { return Ok(None) };
        let Some(partner_ring) = Self::ring_of(&known.section, &offer.claim) else {
            // The claim cannot be right. It gets no answer, so its sender's time-out has to do.
            return Ok(None);
        };
        let record = known.record.clone();
        let answers = Some((offer.claim.number, offer.claim.generation()));
        let (number, end, life, ring_at) = self.describe(state, &record, answers)?;
        stream::publish_life(end.life(), life);
        // After the fence: a member that withdraws its offer from here on finds this answer (P19).
        if offer.claim.end.life().get() != offer.claim.life {
            end.life().set(Life { state: Living::Dead, ..Life::unpack(life) }.pack());
            state.table.give(number);
            self.member.give(ring_at, self.config.ring_bytes);
            return Ok(None);
        }
        let ring = self.member.section().bytes("ring", ring_at, self.config.ring_bytes);
        let ring = ring.map_err(region("find a channel's ring"))?;
        let link = Link::new(
            self,
            offer.peer.clone(),
            (number, end, life),
            (ring, ring_at),
            &offer.claim,
            partner_ring,
            record,
        );
        state.links.push(Arc::downgrade(&link));
        self.announce(state, offer.slot);
        Ok(Some(Channel::new(link)))
    }

    /// Accepts nothing from now on, and refuses what waits. A member that has not seen that yet, and offers a connection, looks again
    /// once it has announced it.
    pub(super) fn shut(&self, state: &mut State) {
        self.facts.words[BACKLOG].set(0);
        full_fence();
        self.refresh(state);
        for offer in std::mem::take(&mut state.offers) {
            self.refuse(state, offer.slot, &offer.claim);
        }
    }

    /// Refuses an offer. Without memory for the refusal, its sender's time-out has to do.
    pub(super) fn refuse(&self, state: &mut State, to: u32, claim: &Claim) {
        let Some(known) = state.known.get(&to) else { return };
        let record = known.record.clone();
        let Ok(number) = self.take_entry(state) else { return };
        let Ok(end) = state.table.end(&self.member, number) else { return };
        let answers = Some((claim.number, claim.generation()));
        let terms = Terms { to: &record, ring: 0, ring_bytes: 0, segment_bytes: 0, answers, refused: true };
        let own = Table::describe(&end, &terms);
        // Closed from the start, so that a member that withdraws its offer need not wait until this is given back.
        stream::publish_life(end.life(), Life { state: Living::Dead, ..Life::unpack(own) }.pack());
        state.lingering.push(Lingering {
            number,
            ring: None,
            last: 0,
            partner: claim.end.clone(),
            partner_life: claim.life,
            record,
            refused: true,
        });
        self.announce(state, to);
    }

    /// Keeps an end that was closed until its partner reads it no more.
    pub(crate) fn let_go(&self, state: &mut State, lingering: Lingering) {
        state.lingering.push(lingering);
        self.refresh(state);
    }
}
