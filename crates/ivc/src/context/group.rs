//! The group: which of its members live. They are found in the directories of the region's peers, whose generations say
//! when to read them again.

use std::collections::HashMap;
use std::sync::Arc;

use isthmus_lockfree::activity::Seen;
use isthmus_lockfree::life::{State as Living, unchanged};
use isthmus_region::directory::{Directory, EndpointInfo};
use isthmus_region::format::{GlobalSlot, KIND_CHANNELS, block};
use isthmus_region::mapping::LineRef;
use isthmus_region::{PeerSection, ReadOnly};

use super::{CLIENT, KIND, MAGIC, Shared, State};
use crate::event::Event;
use crate::peer::{Address, Peer};

/// A peer of the region (a VM, or the host), and what of it was read so far.
pub(super) struct RegionPeer {
    pub(super) index: u32,
    incarnation: u64,
    host: Arc<str>,
    directory: Directory,
    generation_seen: Option<u64>,
    pub(super) activity: LineRef<ReadOnly>,
    pub(super) seen: Seen,
    /// Endpoints that are no members of this group: their incarnations, by slot.
    strangers: HashMap<u32, u64>,
}

/// Another member of the group.
pub(crate) struct Known {
    pub(crate) peer: Peer,
    pub(crate) life: LineRef<ReadOnly>,
    pub(crate) alive: u64,
    pub(crate) section: PeerSection,
    pub(crate) block: LineRef<ReadOnly>,
    pub(crate) facts: LineRef<ReadOnly>,
    pub(super) version_seen: Option<u64>,
    /// Offers that were queued, accepted or refused: generations, by number.
    pub(super) handled: HashMap<u32, u64>,
    pub(super) rung: u64,
}

impl Known {
    pub(crate) fn lives(&self) -> bool {
        self.life.words[0].peek() == self.alive
    }
}

impl Shared {
    /// Finds members that joined or left.
    pub(super) fn refresh_group(&self, state: &mut State) {
        let generation = self.member.region().generation();
        let mut changed = false;
        if state.region_seen != Some(generation) || state.retry {
            state.region_seen = Some(generation);
            self.member.retire_if_over();
            self.refresh_peers(state);
            changed = true;
        }
        for p in 0..state.peers.len() {
            let generation = Some(state.peers[p].directory.generation());
            if state.peers[p].generation_seen != generation {
                state.peers[p].generation_seen = generation;
                self.scan(state, p);
                changed = true;
            }
        }
        if changed {
            self.crowded.put(self.member.is_crowded().into());
        }
    }

    pub(super) fn slots_of(&self, index: u32) -> std::ops::Range<u32> {
        let shape = self.member.region().shape();
        let first = shape.slot(index, 0).0;
        first..first + shape.endpoints
    }

    pub(super) fn local_of(&self, slot: u32) -> u32 {
        GlobalSlot(slot).local(self.member.region().shape().endpoints)
    }

    fn refresh_peers(&self, state: &mut State) {
        state.retry = false;
        for info in self.member.region().peers() {
            let active = info.life.state == Living::Active;
            if let Some(at) = state.peers.iter().position(|p| p.index == info.index) {
                if active && state.peers[at].incarnation == info.life.incarnation {
                    continue;
                }
                state.peers.swap_remove(at);
                let slots: Vec<u32> = state.known.range(self.slots_of(info.index)).map(|(s, _)| *s).collect();
                slots.into_iter().for_each(|slot| self.lose(state, slot, false));
            }
            if !active {
                continue;
            }
            // The peer's service may not have written its directory yet.
            let found = self.member.directory(info.index);
            match found.and_then(|(i, d)| Ok((i, d.activity(self.address.slot)?, d))) {
                Ok((incarnation, activity, directory)) => state.peers.push(RegionPeer {
                    index: info.index,
                    incarnation,
                    host: info.name.into(),
                    directory,
                    generation_seen: None,
                    activity,
                    seen: Seen::new(),
                    strangers: HashMap::new(),
                }),
                Err(_) => state.retry = true,
            }
        }
    }

    /// Reads the endpoint table of a peer.
    fn scan(&self, state: &mut State, p: usize) {
        let (index, directory) = (state.peers[p].index, state.peers[p].directory.clone());
        let shape = *self.member.region().shape();
        for local in 0..directory.endpoints_high() {
            let slot = shape.slot(index, local).0;
            if slot == self.address.slot {
                continue;
            }
            let Ok(info) = directory.endpoint(local) else { continue };
            if let Some(known) = state.known.get(&slot) {
                if info.life.is_active(known.peer.address.incarnation) {
                    continue;
                }
                let left = info.life.incarnation == known.peer.address.incarnation;
                self.lose(state, slot, left && info.life.state == Living::Free);
            }
            if info.life.state != Living::Active
                || state.peers[p].strangers.get(&local) == Some(&info.life.incarnation)
            {
                continue;
            }
            match self.meet(&state.peers[p], slot, local, &info) {
                Some(known) => {
                    state.tell(Event::Joined(known.peer.clone()));
                    state.known.insert(slot, known);
                    self.find_offers(state, slot);
                }
                None => drop(state.peers[p].strangers.insert(local, info.life.incarnation)),
            }
        }
    }

    /// The member at an endpoint that was not there before, if it is a context of this group.
    fn meet(&self, peer: &RegionPeer, slot: u32, local: u32, info: &EndpointInfo) -> Option<Known> {
        let directory = &peer.directory;
        let life = directory.endpoint_line(local).ok()?;
        let section = directory.section();
        let block = section.line("block", info.block).ok()?;
        let facts = section.line("block", info.block.checked_add(block::HOLD)?).ok()?;
        let [kind, magic, client] = [KIND, MAGIC, CLIENT].map(|word| facts.words[word].get());
        let alive = info.life.pack();
        if kind != KIND_CHANNELS || magic != self.magic || !unchanged(&life.words[0], alive) {
            return None;
        }
        let address = Address { slot, incarnation: info.life.incarnation };
        Some(Known {
            peer: Peer { client, host: Arc::clone(&peer.host), address },
            life,
            alive,
            section: section.clone(),
            block,
            facts,
            version_seen: None,
            handled: HashMap::new(),
            rung: 0,
        })
    }

    fn lose(&self, state: &mut State, slot: u32, in_order: bool) {
        let Some(known) = state.known.remove(&slot) else { return };
        state.offers.retain(|offer| offer.peer.address != known.peer.address);
        state.tell(Event::Left { peer: known.peer, in_order });
    }
}
