//! Which systems' processes an object of System V IPC is for: those of the host or VM where it was made, and of others that its owner
//! names. A guard against mistakes, as modes are: all members map the whole region.

use isthmus_attach::protocol::{Code, Reply};
use isthmus_attach::server::Asker;
use isthmus_region::membership::{PeerInfo, Region};
use isthmus_region::objects::sysv::{self, Sharing, segment};
use isthmus_region::objects::{self, Kind, LIMITED};

use super::{Answered, Home, Object, Refusal, Registry};

/// A member of the region, as this service knows it. What the region's table says, each member may have written.
#[derive(Debug, Clone)]
pub(super) struct Known {
    index: u32,
    name: String,
    is_vm: bool,
}

impl Known {
    /// Those that are there before any of them can have written anything.
    pub(super) fn all(region: &Region) -> Vec<Self> {
        let known = |peer: PeerInfo| Self { index: peer.index, name: peer.name, is_vm: peer.is_vm };
        region.peers().into_iter().map(known).collect()
    }

    fn home(&self) -> Home {
        if self.is_vm { Home::Vm(self.name.clone()) } else { Home::Host }
    }
}

impl Object {
    /// Writes down which of the peers that there are now it is for. Gives whether that has changed.
    fn list(&mut self, peers: &[Known]) -> bool {
        let before = (self.info.flags, self.info.allowed);
        match &self.shared_with {
            None => (self.info.flags, self.info.allowed) = (before.0 & !LIMITED, [0; 4]),
            Some(names) => {
                let host = peers.iter().any(|p| !p.is_vm && names.contains(&p.name));
                let is_for = |peer: &&Known| match peer.home() {
                    home if home == self.home => true,
                    Home::Host => host,
                    Home::Vm(name) => names.contains(&name),
                };
                self.info.allowed = objects::allowed(peers.iter().filter(is_for).map(|peer| peer.index));
                self.info.flags |= LIMITED;
            }
        }
        before != (self.info.flags, self.info.allowed)
    }
}

impl Registry {
    /// The system that a peer is, or is processes of. One that nobody knows is a VM without a name.
    pub(super) fn home_of(&self, peer: u32) -> Home {
        let known = self.members.iter().find(|known| known.index == peer);
        known.map_or(Home::Vm(String::new()), Known::home)
    }

    /// A peer has joined, perhaps in a place that was another's.
    pub fn joined(&mut self, index: u32, name: &str, is_vm: bool) {
        let new = Known { index, name: name.to_owned(), is_vm };
        let home = new.home();
        self.members.retain(|known| known.index != index);
        self.members.push(new);
        for at in 0..self.high {
            if let Some(object) = self.entries[at].object.as_mut().filter(|o| o.home == home) {
                // The VM is back.
                object.is_orphan = false;
            }
            let limited = self.entries[at].object.as_mut().filter(|o| o.shared_with.is_some());
            if limited.is_some_and(|object| object.list(&self.members)) {
                self.publish(at);
            }
        }
    }

    /// A VM is gone, with all of its processes.
    pub fn vm_gone(&mut self, vm: &str) {
        for known in self.members.iter().filter(|known| known.is_vm && known.name == vm) {
            self.since.remove(&known.index);
        }
        for object in self.entries[..self.high].iter_mut().filter_map(|e| e.object.as_mut()) {
            object.is_orphan |= object.home.vm() == Some(vm);
        }
        self.sweep();
    }

    /// Whether the asker's system is one that an object is for.
    pub(super) fn may_meet(&self, asker: Asker, at: usize) -> std::result::Result<(), Refusal> {
        let Some(object) = self.entries[at].object.as_ref() else { return Ok(()) };
        if object.info.is_shared_with(asker.party.peer()) {
            return Ok(());
        }
        let text =
            format!("'{}' is limited to processes of other systems (isthmus ipcshare)", object.info.name);
        Err(Refusal(Code::Denied, text))
    }

    /// Processes that have begun to attach a segment before it was limited have it attached, though the word of that is still on its way.
    fn note_entering(&mut self, at: usize) {
        let Some(object) = self.entries[at].object.as_mut() else { return };
        if sysv::is(&object.info, Kind::SysvShm)
            && let Ok(page) = segment::page(&self.region, object.info.offset)
        {
            // Those of an earlier limit that have not said so yet are still there.
            object.entering = segment::entering(&page);
        }
    }

    /// Whether the asker may say that it has attached an object.
    pub(super) fn may_enter(&mut self, asker: Asker, at: usize) -> std::result::Result<(), Refusal> {
        let allowed = self.may_meet(asker, at);
        let Some(object) = self.entries[at].object.as_mut().filter(|_| allowed.is_err()) else {
            return allowed;
        };
        match object.entering.iter().position(|party| *party == asker.party) {
            Some(noted) => {
                object.entering.swap_remove(noted);
                Ok(())
            }
            None => allowed,
        }
    }

    /// As `may_meet`; but on the host always: else nobody could take an object away whose VMs are gone.
    pub(super) fn may_meet_or_is_on_host(&self, asker: Asker, at: usize) -> std::result::Result<(), Refusal> {
        match self.home_of(asker.party.peer()) {
            Home::Host => Ok(()),
            Home::Vm(_) => self.may_meet(asker, at),
        }
    }

    /// Whether there is a member of this name, there was, or one was announced.
    fn knows(&self, name: &str) -> bool {
        self.announced.iter().any(|known| known == name)
            || self.members.iter().any(|known| known.name == name)
    }

    /// Limits an object, or takes that back.
    pub(super) fn share(
        &mut self,
        asker: Asker,
        index: u32,
        incarnation: u64,
        sharing: &Sharing,
    ) -> Answered {
        let at = self.sysv(index, incarnation)?;
        self.may_meet_or_is_on_host(asker, at)?;
        self.may_rule(asker, at, "share")?;
        if let Sharing::With(name) | Sharing::Also(name) | Sharing::Next(name) = sharing
            && !self.knows(name)
        {
            let text = format!("no host or VM is called '{name}' here: isthmus ps has their names");
            return Err(Refusal(Code::Invalid, text));
        }
        let Some(object) = self.entries[at].object.as_mut() else { return Ok(Reply::Done) };
        match sharing {
            Sharing::All => object.shared_with = None,
            Sharing::Own => object.shared_with = Some(Vec::new()),
            Sharing::With(name) => {
                let next = object.next.take_if(|(party, _)| *party == asker.party);
                let mut names = next.map_or_else(Vec::new, |(_, names)| names);
                names.push(name.clone());
                object.shared_with = Some(names);
            }
            Sharing::Also(name) => {
                if let Some(names) = object.shared_with.as_mut().filter(|names| !names.contains(name)) {
                    names.push(name.clone());
                }
            }
            Sharing::Next(name) => {
                // One list at a time: who finds that another's has taken its place still names all with `Also`.
                object.next.take_if(|(party, _)| *party != asker.party);
                let (_, names) = object.next.get_or_insert_with(|| (asker.party, Vec::new()));
                if !names.contains(name) {
                    names.push(name.clone());
                }
                return Ok(Reply::Done);
            }
        }
        object.list(&self.members);
        self.publish(at);
        self.note_entering(at);
        Ok(Reply::Done)
    }
}
