//! Who is there, as one endpoint sees it: the peers of the region that live, which of their endpoints came or went, and which
//! of them have announced something.
//!
//! Generations say when to look: the region's, when a peer joined, left or died; that of a peer's directory, when one of its
//! endpoints did. [`Roster::check`] compares them and says what changed; looking costs a load for each peer. Whether a certain
//! endpoint still lives is in its own record ([`Record`]), which decides: a generation is only a hint that comes later.
//!
//! Peers and services write all that is read here. A directory that is not written yet, or cannot be right, is tried again at
//! each check, and does not keep the others from being found.

use std::sync::Arc;

use isthmus_lockfree::activity::{self, Seen};
use isthmus_lockfree::life::{Life, State, unchanged};

use crate::address::{Address, SystemId};
use crate::directory::{Directory, EndpointInfo};
use crate::error::{Error, Result};
use crate::format::GlobalSlot;
use crate::mapping::{LineRef, ReadOnly};
use crate::member::Member;
use crate::membership::PeerInfo;

/// The directory of the peer that has this endpoint slot, and what it says of the slot now.
///
/// # Errors
/// As [`Member::directory`] and [`Directory::endpoint`].
pub fn endpoint(member: &Member, slot: GlobalSlot) -> Result<(Directory, EndpointInfo)> {
    let endpoints = member.region().shape().endpoints;
    let (_, directory) = member.directory(slot.peer(endpoints))?;
    let info = directory.endpoint(slot.local(endpoints))?;
    Ok((directory, info))
}

/// The record of an endpoint, for one of its lives: where an address leads in this region.
#[derive(Debug, Clone)]
pub struct Record {
    line: LineRef<ReadOnly>,
    /// Its first word, while the endpoint lives.
    alive: u64,
    slot: GlobalSlot,
}

impl Record {
    /// Of the endpoint in a slot of this directory's peer, for this incarnation.
    ///
    /// # Errors
    /// [`Error::Invalid`] beyond the table.
    pub fn of(directory: &Directory, slot: GlobalSlot, incarnation: u64) -> Result<Self> {
        let alive = Life { incarnation, state: State::Active }.pack();
        let local = slot.local(directory.shape().endpoints);
        Ok(Self { line: directory.endpoint_line(local)?, alive, slot })
    }

    /// Of the endpoint with an address, which may have been closed, as long as no other has its slot.
    ///
    /// # Errors
    /// As [`Member::directory_of`]; [`Error::Invalid`] where there is no such endpoint.
    pub fn find(member: &Member, address: &Address) -> Result<Self> {
        let (index, directory) = member.directory_of(address.system)?;
        let info = directory.endpoint(address.number)?;
        // Of one that is being opened the birth may still be the last one's.
        if info.birth != address.birth || info.life.state == State::Joining {
            return Err(Error::Invalid { what: "birth of an endpoint", value: address.birth });
        }
        Self::of(&directory, directory.shape().slot(index, address.number), info.life.incarnation)
    }

    /// The endpoint's slot.
    pub fn slot(&self) -> GlobalSlot {
        self.slot
    }

    /// The incarnation.
    pub fn incarnation(&self) -> u64 {
        Life::unpack(self.alive).incarnation
    }

    /// Whether the endpoint lives, as far as this process has seen.
    #[inline]
    pub fn lives(&self) -> bool {
        self.line.words[0].peek() == self.alive
    }

    /// The same, before what it published is read.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.line.words[0].get() == self.alive
    }

    /// Whether bytes that were copied out of its process's memory were its own (P5).
    #[inline]
    pub fn still_lives(&self) -> bool {
        unchanged(&self.line.words[0], self.alive)
    }

    /// Whether it was closed in good order, and did not die. Once another life has the slot, that is known until one of those that
    /// came later dies, or the system has another service; then it is false.
    pub fn took_leave(&self) -> bool {
        let (life, own) = (Life::unpack(self.line.words[0].get()), self.incarnation());
        if life.incarnation == own {
            return life.state == State::Free;
        }
        // Before the slot had another life, the death of this one was noted.
        let is_later = life.incarnation > own && life.incarnation >> 32 == own >> 32;
        is_later && self.line.words[5].get() < own
    }
}

/// Those of a peer's endpoints that may have announced something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Senders(u8);

impl Senders {
    /// All of them.
    pub const ALL: Self = Self(u8::MAX);

    /// Whether there is none.
    #[inline]
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether the endpoint in this slot of its peer's table is one.
    #[inline]
    pub fn has(self, local: u32) -> bool {
        self.0 & (1 << activity::group(local)) != 0
    }
}

/// A peer that lives. `T` is what the roster's owner keeps for it.
#[derive(Debug)]
pub struct Present<T> {
    /// Its index.
    pub index: u32,
    /// The name of the VM, or of the host.
    pub name: Arc<str>,
    /// The system that it is.
    pub system: SystemId,
    /// Its directory.
    pub directory: Directory,
    /// What the roster's owner keeps for it, from the default on.
    pub kept: T,
    incarnation: u64,
    generation: Option<u64>,
    activity: LineRef<ReadOnly>,
    seen: Seen,
}

impl<T> Present<T> {
    /// Whether no endpoint has announced anything since the last [`Present::announced`].
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.seen.is_current(&self.activity)
    }

    /// Those that have announced something since the last call. The caller looks at what they have **after** the call (P3).
    #[inline]
    pub fn announced(&mut self) -> Senders {
        Senders(self.seen.changed(&self.activity))
    }
}

/// What has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// No peer with this index lives: all endpoints that it had are gone, whatever their records say. Told again whenever the
    /// region changes.
    Gone(u32),
    /// The peer with this index lives, but is another incarnation than before: endpoints of before are gone, as their records
    /// say.
    Replaced(u32),
    /// Endpoints of the peer at this place of [`Roster::peers`] were opened or closed, or died. Also told of a peer that has
    /// just been found.
    Endpoints(usize),
}

/// The peers that live, as one endpoint sees them.
#[derive(Debug)]
pub struct Roster<T> {
    generation: Option<u64>,
    incomplete: bool,
    peers: Vec<Present<T>>,
}

impl<T> Default for Roster<T> {
    fn default() -> Self {
        Self { generation: None, incomplete: false, peers: Vec::new() }
    }
}

impl<T: Default> Roster<T> {
    /// Looks for what has changed since the last call, for the endpoint `us`. Peers come first; their places stay as they are
    /// until the next call.
    pub fn check(&mut self, member: &Member, us: GlobalSlot) -> Vec<Change> {
        let mut changes = Vec::new();
        let generation = Some(member.region().generation());
        if self.generation != generation || self.incomplete {
            self.generation = generation;
            member.retire_if_over();
            self.check_peers(member, us, &mut changes);
        }
        for (at, peer) in self.peers.iter_mut().enumerate() {
            // Read before the records are: what changes after that changes it again.
            let generation = Some(peer.directory.generation());
            if peer.generation != generation {
                peer.generation = generation;
                changes.push(Change::Endpoints(at));
            }
        }
        changes
    }

    fn check_peers(&mut self, member: &Member, us: GlobalSlot, changes: &mut Vec<Change>) {
        self.incomplete = false;
        let infos = member.region().peers();
        self.peers.retain(|peer| {
            let at = infos.binary_search_by_key(&peer.index, |info| info.index);
            let life = at.ok().map(|at| infos[at].life);
            let stays = life.is_some_and(|life| life.is_active(peer.incarnation));
            match life {
                Some(life) if life.state == State::Active && !stays => {
                    changes.push(Change::Replaced(peer.index));
                }
                None => changes.push(Change::Gone(peer.index)),
                _ => {}
            }
            stays
        });
        for info in infos {
            if info.life.state != State::Active {
                changes.push(Change::Gone(info.index));
            } else if self.peers.iter().all(|peer| peer.index != info.index) {
                match open(member, us, info) {
                    Ok(peer) => self.peers.push(peer),
                    // Its own service may not have written its directory yet.
                    Err(_) => self.incomplete = true,
                }
            }
        }
    }
}

impl<T> Roster<T> {
    /// The peers that live.
    #[inline]
    pub fn peers(&self) -> &[Present<T>] {
        &self.peers
    }

    /// The same, to be changed.
    #[inline]
    pub fn peers_mut(&mut self) -> &mut [Present<T>] {
        &mut self.peers
    }

    /// Whether the directory of a peer could not be opened yet. Nothing rings once it can be.
    pub fn is_incomplete(&self) -> bool {
        self.incomplete
    }
}

fn open<T: Default>(member: &Member, us: GlobalSlot, info: PeerInfo) -> Result<Present<T>> {
    let (incarnation, directory) = member.directory(info.index)?;
    if incarnation != info.life.incarnation {
        // What was read of the entry may be of either life.
        return Err(Error::NoPeer { peer: info.index });
    }
    let activity = directory.activity(us.0)?;
    Ok(Present {
        index: info.index,
        name: info.name.into(),
        system: info.system,
        directory,
        kept: T::default(),
        incarnation,
        generation: None,
        activity,
        seen: Seen::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Naming;
    use crate::directory;
    use crate::directory::AreaGrant;
    use crate::testing::{Place, SLOTS};

    /// The endpoint that looks, in its own process's first slot.
    const US: GlobalSlot = GlobalSlot(0);

    fn at(roster: &Roster<u32>, index: u32) -> usize {
        roster.peers().iter().position(|peer| peer.index == index).unwrap()
    }

    #[test]
    fn peers_and_their_endpoints_are_told_once() {
        let mut place = Place::new();
        let mut roster = Roster::<u32>::default();
        assert_eq!(roster.check(&place.member, US), [Change::Endpoints(0)]);
        assert_eq!(&*roster.peers()[0].name, "host");
        let mut vm = place.boot(1);
        assert_eq!(roster.check(&place.member, US), [Change::Endpoints(1)]);
        assert_eq!(roster.check(&place.member, US), []);
        roster.peers_mut()[1].kept = 7;
        let area = vm.open_area(64 << 10, 1, "test").unwrap();
        assert_eq!(roster.check(&place.member, US), [Change::Endpoints(1)]);
        vm.open_endpoint(area.area, area.first.offset, 1).unwrap();
        assert_eq!(roster.check(&place.member, US), [Change::Endpoints(1)]);
        assert_eq!(roster.check(&place.member, US), []);
        assert_eq!(roster.peers()[1].kept, 7);
    }

    #[test]
    fn a_peer_that_dies_is_gone_and_may_be_replaced() {
        let mut place = Place::new();
        place.boot(1);
        place.boot(2);
        let mut roster = Roster::<u32>::default();
        roster.check(&place.member, US);
        roster.peers_mut().iter_mut().for_each(|peer| peer.kept = peer.index);
        place.kill(1);
        assert_eq!(roster.check(&place.member, US), [Change::Gone(1)]);
        assert_eq!(roster.peers().iter().map(|peer| peer.kept).collect::<Vec<_>>(), [0, 2]);
        place.boot(1);
        assert_eq!(roster.check(&place.member, US), [Change::Endpoints(2)]);
        // Death and new life between two checks.
        roster.peers_mut()[2].kept = 7;
        place.kill(1);
        place.boot(1);
        assert_eq!(roster.check(&place.member, US), [Change::Replaced(1), Change::Endpoints(2)]);
        assert_eq!(roster.peers()[2].kept, 0, "of the former incarnation");
    }

    #[test]
    fn a_directory_that_is_not_right_is_tried_again_and_hides_nobody() {
        let mut place = Place::new();
        place.announce(1);
        place.boot(2);
        let mut roster = Roster::<u32>::default();
        assert_eq!(roster.check(&place.member, US), [Change::Endpoints(0), Change::Endpoints(1)]);
        assert!(roster.is_incomplete());
        assert_eq!(at(&roster, 2), 1);
        assert_eq!(roster.check(&place.member, US), []);
        assert!(roster.is_incomplete());
        let writer = directory::Writer::create(place.host.region(), 1, Naming::of_test(1)).unwrap();
        assert_eq!(roster.check(&place.member, US), [Change::Endpoints(2)]);
        assert!(!roster.is_incomplete());
        // A service that writes anything over its directory is believed neither more nor less.
        for word in 0..16 {
            writer.directory().own_section().word("directory", 8 * word).unwrap().set(u64::MAX);
            roster.check(&place.member, US);
            assert_eq!(roster.peers().len(), 3);
            assert!(roster.peers()[2].directory.endpoints_high() <= SLOTS);
        }
        assert!(endpoint(&place.member, GlobalSlot(u32::MAX)).is_err());
        for number in [SLOTS, u32::MAX] {
            let far = Address { system: Naming::of_test(1).system, number, birth: 1 };
            assert!(Record::find(&place.member, &far).is_err());
        }
    }

    #[test]
    fn announcements_lead_to_their_senders() {
        let mut place = Place::new();
        let vm = place.boot(1);
        let mut roster = Roster::<u32>::default();
        roster.check(&place.member, US);
        let peer = &mut roster.peers_mut()[1];
        assert!(peer.is_quiet() && peer.announced().is_none());
        for local in [3, 12] {
            activity::announce(&vm.directory().announcements(US.0).unwrap(), local);
        }
        activity::announce(&vm.directory().announcements(US.0 + 1).unwrap(), 5);
        assert!(!peer.is_quiet());
        let senders = peer.announced();
        assert_eq!((0..8).filter(|local| senders.has(*local)).collect::<Vec<_>>(), [3, 4]);
        assert!(peer.is_quiet() && peer.announced().is_none());
        assert!((0..SLOTS).all(|local| Senders::ALL.has(local)));
    }

    #[test]
    fn a_record_tells_a_close_from_a_death() {
        let mut place = Place::new();
        let mut vm = place.boot(1);
        let area = vm.open_area(64 << 10, 1, "test").unwrap();
        let mut open = || vm.open_endpoint(area.area, area.first.offset, 1).unwrap();
        let (local, incarnation) = open();
        let (other, other_incarnation) = open();
        let system = Naming::of_test(1).system;
        let find = |number, birth| Record::find(&place.member, &Address { system, number, birth });
        let record = find(local, 1).unwrap();
        let stale = Record::of(vm.directory(), record.slot(), incarnation + 1).unwrap();
        let dies = find(other, 2).unwrap();
        assert_eq!((record.incarnation(), dies.incarnation()), (incarnation, other_incarnation));
        assert_eq!(record.slot(), place.member.region().shape().slot(1, local));
        assert!(find(local, 2).is_err() && find(other, 1).is_err(), "of others that had the number");
        assert!(record.lives() && record.is_active() && record.still_lives() && !record.took_leave());
        assert!(!stale.lives() && !stale.took_leave());
        assert_eq!(endpoint(&place.member, record.slot()).unwrap().1.block, area.first.offset);
        vm.close_endpoint(area.area, local).unwrap();
        assert!(find(local, 1).unwrap().took_leave(), "as long as its slot is free");
        assert!(!record.lives() && !record.is_active() && !record.still_lives() && record.took_leave());
        assert!(!stale.took_leave());
        let (again, later) = vm.open_endpoint(area.area, area.first.offset, 1).unwrap();
        assert!(again == local && later > incarnation);
        assert!(record.took_leave() && !dies.took_leave(), "another life has its slot");
        vm.close_endpoint(area.area, local).unwrap();
        assert!(record.took_leave());
        place.kill(1);
        assert!(!dies.lives() && !dies.took_leave() && !record.took_leave());
    }

    #[test]
    fn who_died_is_known_until_a_later_one_dies() {
        let mut place = Place::new();
        let mut vm = place.boot(1);
        let area = vm.open_area(64 << 10, 1, "test").unwrap();
        let record = |vm: &mut directory::Writer, area: &AreaGrant| {
            let (local, incarnation) = vm.open_endpoint(area.area, area.first.offset, 1).unwrap();
            let slot = place.member.region().shape().slot(1, local);
            Record::of(vm.directory(), slot, incarnation).unwrap()
        };
        let left = record(&mut vm, &area);
        vm.close_endpoint(area.area, 0).unwrap();
        let died = record(&mut vm, &area);
        assert_eq!(left.slot(), died.slot());
        vm.close_area(area.area).unwrap();
        let area = vm.open_area(64 << 10, 1, "test").unwrap();
        let later = record(&mut vm, &area);
        assert_eq!(died.slot(), later.slot());
        assert!(!died.took_leave() && later.lives() && !left.took_leave());
        vm.close_endpoint(area.area, 0).unwrap();
        let last = record(&mut vm, &area);
        assert_eq!(last.slot(), later.slot());
        assert!(later.took_leave() && !died.took_leave());
    }

    #[test]
    fn an_address_leads_to_its_system_wherever_that_is() {
        let mut place = Place::new();
        let mut vm = place.boot(1);
        let area = vm.open_area(64 << 10, 1, "test").unwrap();
        let (number, _) = vm.open_endpoint(area.area, area.first.offset, 1).unwrap();
        let birth = vm.directory().endpoint(number).unwrap().birth;
        let address = Address { system: Naming::of_test(1).system, number, birth };
        assert_eq!(Record::find(&place.member, &address).unwrap().slot().peer(SLOTS), 1);
        let unknown = Address { system: Naming::of_test(2).system, ..address };
        assert!(matches!(Record::find(&place.member, &unknown), Err(Error::NoSystem { .. })));
        place.kill(1);
        assert!(
            matches!(Record::find(&place.member, &address), Err(Error::NoPeer { peer: 1 })),
            "it is known"
        );
        // Its agent starts anew, at another place: the same numbers, and other births.
        let naming = Naming { former: 1, ..Naming::of_test(1) };
        let mut vm = place.boot_as(2, naming);
        let area = vm.open_area(64 << 10, 1, "test").unwrap();
        assert_eq!(vm.open_endpoint(area.area, area.first.offset, 1).unwrap().0, number);
        assert!(matches!(Record::find(&place.member, &address), Err(Error::Invalid { .. })));
        let birth = vm.directory().endpoint(number).unwrap().birth;
        let again = Address { birth, ..address };
        assert_eq!(Record::find(&place.member, &again).unwrap().slot().peer(SLOTS), 2);
        // The place that it left has another system, with an endpoint of the same number and birth.
        let mut other = place.boot_as(1, Naming { system: SystemId([9, 9]), ..naming });
        let area = other.open_area(64 << 10, 1, "test").unwrap();
        other.open_endpoint(area.area, area.first.offset, 1).unwrap();
        assert_eq!(other.directory().endpoint(number).unwrap().birth, birth);
        assert_eq!(Record::find(&place.member, &again).unwrap().slot().peer(SLOTS), 2);
    }
}
