//! Connecting: a member's offer, and what becomes of it.
//!
//! ```text
//! connects                                   accepts
//!   end: offer to you, my ring      ──────►    waits in the backlog
//!                                   ◄──────    end: answer to that offer, my ring
//!   reads and writes                           reads and writes
//! ```
//! Each side writes its own end only. An offer that is given up (time-out, drop) is closed like a channel. If it is answered
//! at that moment, the fences of P19 make sure that at least one side sees what the other did.

use std::sync::Arc;
use std::time::Duration;

use isthmus_lockfree::life::{Life, State as Living};
use isthmus_lockfree::sync::full_fence;
use isthmus_lockfree::{sleep, stream};
use isthmus_region::mapping::LineRef;
use isthmus_region::roster::Record;
use isthmus_region::{Bytes, PeerSection, ReadOnly};

use crate::channel::Channel;
use crate::context::{BACKLOG, Known, Lingering, Shared, State, VERSION};
use crate::error::{Error, Result, region};
use crate::link::{Link, STOPPED};
use crate::peer::{Address, Peer};
use crate::table::{Claim, End, at, claims};

/// A connection that was offered, until the member has answered. Dropping it withdraws the offer.
pub struct Connecting {
    shared: Arc<Shared>,
    peer: Peer,
    record: Record,
    section: PeerSection,
    block: LineRef<ReadOnly>,
    version_seen: Option<u64>,
    /// The own end; none once the offer was answered or withdrawn.
    offer: Option<OwnEnd>,
}

/// The end that makes the offer.
struct OwnEnd {
    number: u32,
    end: End,
    life: u64,
    ring: Bytes,
    ring_at: u64,
}

impl std::fmt::Debug for Connecting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connecting").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Connecting {
    pub(crate) fn begin(shared: &Arc<Shared>, to: Address) -> Result<Self> {
        if to == shared.address {
            return Err(Error::Oneself);
        }
        let mut state = shared.state();
        shared.refresh(&mut state);
        let known = state.known.values().find(|k| k.peer.address == to && k.lives());
        let Some(Known { peer, record, section, block, facts, .. }) = known else {
            return Err(Error::NoPeer { address: to });
        };
        let (peer, facts) = (peer.clone(), facts.clone());
        if state.suspended {
            return Err(Error::Suspended { peer });
        }
        if facts.words[BACKLOG].get() == 0 {
            return Err(Error::Refused { peer });
        }
        let mut connecting = Self {
            shared: Arc::clone(shared),
            peer,
            record: record.clone(),
            section: section.clone(),
            block: block.clone(),
            version_seen: None,
            offer: None,
        };
        let (number, end, life, ring_at) = shared.describe(&mut state, &connecting.record, None)?;
        let ring = shared.member.section().bytes("ring", ring_at, shared.config.ring_bytes);
        let ring = ring.map_err(region("find a channel's ring"))?;
        stream::publish_life(end.life(), life);
        connecting.offer = Some(OwnEnd { number, end, life, ring, ring_at });
        shared.announce(&mut state, connecting.record.slot().0);
        // A member that stops accepting at this moment finds the offer, or is found here to have stopped (P19).
        full_fence();
        if facts.words[BACKLOG].get() == 0 {
            connecting.withdraw(&mut state);
            return Err(Error::Refused { peer: connecting.peer.clone() });
        }
        drop(state);
        Ok(connecting)
    }

    /// The member that was asked.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Returns the channel, if the member has accepted by now. After that, and after an error, further calls return
    /// [`Error::NoPeer`].
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::PeerDied`], [`Error::Suspended`], [`Error::Faulty`].
    pub fn poll(&mut self) -> Result<Option<Channel>> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        shared.refresh(&mut state);
        self.poll_within(&mut state)
    }

    /// Waits for the answer, at most `limit` or for ever. After a time-out the offer stands, until this is dropped.
    ///
    /// # Errors
    /// [`Error::TimedOut`], and as [`Connecting::poll`].
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<Channel> {
        let shared = Arc::clone(&self.shared);
        let mut found = None;
        shared.wait_for(limit, |_, state| {
            found = match self.poll_within(state) {
                Ok(None) => None,
                Ok(Some(channel)) => Some(Ok(channel)),
                Err(e) => Some(Err(e)),
            };
            found.is_some()
        });
        found.unwrap_or_else(|| {
            let limit = limit.unwrap_or(Duration::MAX);
            Err(Error::TimedOut { action: "waiting for a connection to be accepted", limit, moved: 0 })
        })
    }

    fn poll_within(&mut self, state: &mut State) -> Result<Option<Channel>> {
        if self.offer.is_none() {
            return Err(Error::NoPeer { address: self.peer.address });
        }
        if !self.record.is_active() {
            self.withdraw(state);
            return Err(Error::PeerDied { peer: self.peer.clone() });
        }
        let version = self.block.words[VERSION].get();
        if self.version_seen == Some(version) {
            return Ok(None);
        }
        self.version_seen = Some(version);
        let Some(claim) = self.find_answer() else { return Ok(None) };
        if claim.refused {
            self.withdraw(state);
            return Err(Error::Refused { peer: self.peer.clone() });
        }
        if state.suspended {
            self.withdraw(state);
            return Err(Error::Suspended { peer: self.peer.clone() });
        }
        let Some(partner_ring) = Shared::ring_of(&self.section, &claim) else {
            self.withdraw(state);
            let (found, high) = (claim.ring, self.section.len().saturating_sub(claim.ring_bytes));
            return Err(Error::Faulty { peer: self.peer.clone(), what: "channel.RING", found, low: 0, high });
        };
        let Some(made) = self.offer.take() else { return Ok(None) };
        let link = Link::new(
            &self.shared,
            self.peer.clone(),
            (made.number, made.end, made.life),
            (made.ring, made.ring_at),
            &claim,
            partner_ring,
            self.record.clone(),
        );
        state.links.push(Arc::downgrade(&link));
        Ok(Some(Channel::new(link)))
    }

    /// The member's end that answers the offer.
    fn find_answer(&self) -> Option<Claim> {
        let made = self.offer.as_ref()?;
        let key = Some((made.number, Life::unpack(made.life).incarnation));
        claims(&self.section, &self.block, &self.shared.own).into_iter().find(|c| c.answers == key)
    }

    fn withdraw(&mut self, state: &mut State) {
        let answer = {
            let Some(made) = &self.offer else { return };
            // A member that has accepted already gets a channel that is closed.
            made.end.writer(at::END).set(1);
            made.end.reader(at::STOPPED).set(STOPPED);
            let dead = Life { state: Living::Dead, ..Life::unpack(made.life) }.pack();
            stream::publish_life(made.end.life(), dead);
            // After the fence: a member that answers from here on sees that the offer is gone (P19).
            self.find_answer()
        };
        let Some(made) = self.offer.take() else { return };
        let bytes = self.shared.config.ring_bytes;
        match answer {
            Some(claim) => {
                for word in [claim.end.reader(at::SLEEP), claim.end.writer(at::ROOM)] {
                    if let Some(bell) = sleep::who_to_ring(word, &mut 0) {
                        self.shared.ring(self.record.slot().0, bell);
                    }
                }
                let lingering = Lingering {
                    number: made.number,
                    ring: Some((made.ring_at, bytes)),
                    last: u64::MAX,
                    partner: claim.end,
                    partner_life: claim.life,
                    record: self.record.clone(),
                    refused: false,
                };
                self.shared.let_go(state, lingering);
            }
            None => {
                self.shared.member.give(made.ring_at, bytes);
                state.table.give(made.number);
            }
        }
        self.shared.announce(state, self.record.slot().0);
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        // If `begin` failed, this is dropped under the lock, without an offer.
        if self.offer.is_none() || !self.shared.is_ours() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        self.withdraw(&mut state);
    }
}
