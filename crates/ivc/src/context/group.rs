//! The group: which of its members live. They are found in the directories of the region's peers, whose generations say
//! when to read them again.

use std::collections::HashMap;
use std::sync::Arc;

use isthmus_lockfree::life::State as Living;
use isthmus_region::directory::EndpointInfo;
use isthmus_region::format::{GlobalSlot, KIND_CHANNELS, block};
use isthmus_region::mapping::LineRef;
use isthmus_region::roster::{Change, Present, Record};
use isthmus_region::{PeerSection, ReadOnly};

use super::{CLIENT, KIND, MAGIC, Shared, State};
use crate::event::Event;
use crate::peer::{Address, Peer};

/// Endpoints of a peer of the region that are no members of this group: their incarnations, by slot.
pub(super) type Strangers = HashMap<u32, u64>;

/// Another member of the group.
pub(crate) struct Known {
    pub(crate) peer: Peer,
    pub(crate) record: Record,
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
        self.record.lives()
    }
}

impl Shared {
    /// Finds members that joined or left.
    pub(super) fn refresh_group(&self, state: &mut State) {
        let changes = state.roster.check(&self.member, self.own.slot());
        if changes.is_empty() {
            return;
        }
        for change in changes {
            match change {
                Change::Gone(index) | Change::Replaced(index) => {
                    let slots: Vec<u32> = state.known.range(self.slots_of(index)).map(|(s, _)| *s).collect();
                    slots.into_iter().for_each(|slot| self.lose(state, slot, false));
                }
                Change::Endpoints(at) => self.scan(state, at),
            }
        }
        self.crowded.put(self.member.is_crowded().into());
    }

    pub(super) fn slots_of(&self, index: u32) -> std::ops::Range<u32> {
        let shape = self.member.region().shape();
        let first = shape.slot(index, 0).0;
        first..first + shape.endpoints
    }

    pub(super) fn local_of(&self, slot: u32) -> u32 {
        GlobalSlot(slot).local(self.member.region().shape().endpoints)
    }

    /// Reads the endpoint table of a peer.
    fn scan(&self, state: &mut State, at: usize) {
        let peer = &state.roster.peers()[at];
        let (index, directory) = (peer.index, peer.directory.clone());
        let shape = *self.member.region().shape();
        for local in 0..directory.endpoints_high() {
            let slot = shape.slot(index, local).0;
            if slot == self.own.slot().0 {
                continue;
            }
            let Ok(info) = directory.endpoint(local) else { continue };
            if let Some(known) = state.known.get(&slot) {
                if info.life.is_active(known.record.incarnation()) {
                    continue;
                }
                let left = info.life.incarnation == known.record.incarnation();
                self.lose(state, slot, left && info.life.state == Living::Free);
            }
            let peer = &mut state.roster.peers_mut()[at];
            if info.life.state != Living::Active || peer.kept.get(&local) == Some(&info.life.incarnation) {
                continue;
            }
            match self.meet(peer, slot, local, &info) {
                Some(known) => {
                    state.tell(Event::Joined(known.peer.clone()));
                    state.known.insert(slot, known);
                    self.find_offers(state, slot);
                }
                None => drop(peer.kept.insert(local, info.life.incarnation)),
            }
        }
    }

    /// The member at an endpoint that was not there before, if it is a context of this group.
    fn meet(&self, peer: &Present<Strangers>, slot: u32, local: u32, info: &EndpointInfo) -> Option<Known> {
        let directory = &peer.directory;
        let record = Record::of(directory, GlobalSlot(slot), info.life.incarnation).ok()?;
        let section = directory.section();
        let block = section.line("block", info.block).ok()?;
        let facts = section.line("block", info.block.checked_add(block::HOLD)?).ok()?;
        let [kind, magic, client] = [KIND, MAGIC, CLIENT].map(|word| facts.words[word].get());
        if kind != KIND_CHANNELS || magic != self.magic || !record.still_lives() {
            return None;
        }
        let address = Address { system: peer.system, number: local, birth: info.birth };
        Some(Known {
            peer: Peer { client, host: Arc::clone(&peer.name), address },
            record,
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
