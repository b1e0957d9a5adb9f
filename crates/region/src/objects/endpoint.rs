//! Names of endpoints, by which a process finds another's endpoint without having been told its address: a service's name
//! at a system, as a port at a host. Such an object's bytes are not used.
//!
//! Names are the table's, which the host service alone writes: it notes their maker, and takes none whose system is not
//! the asker's own. So no process can be named by those of another system.

use super::{Arc, Error, Kind, Member, NewObject, Patience, Region, Result, UNLINKED, read};
use crate::address::{Address, SystemId};

/// Longest name of a service, in bytes.
pub const MAX_SERVICE: usize = 32;

/// The object's name of a service at a system.
pub fn name_of(system: SystemId, service: &str) -> String {
    format!("{system}:{service}")
}

/// Whether processes of `peer` may make such an object: it names their system, and an endpoint there, and goes with its
/// creator.
pub fn may_make(region: &Region, peer: u32, new: &NewObject) -> bool {
    let system = region.peer(peer).ok().flatten().map(|p| p.system);
    let system = system.filter(|system| *system != SystemId::NONE);
    let service = system.and_then(|system| new.name.strip_prefix(&name_of(system, "")));
    service.is_some_and(|s| (1..=MAX_SERVICE).contains(&s.len()))
        && new.params[0] < region.shape().endpoints.into()
        && !new.or_open
        && new.ends_with_creator
        && new.len == 1
}

/// A name that this process has given to an endpoint of its own, until this is dropped.
pub struct Name {
    member: Arc<Member>,
    name: String,
    place: (u32, u64),
}

impl Name {
    /// Gives the service's name at this system to an endpoint of this process.
    ///
    /// # Errors
    /// [`Error::Object`]: the name is taken, or there is no room for it; [`Error::Service`] without a service.
    pub fn give(member: &Arc<Member>, service: &str, address: &Address) -> Result<Self> {
        let name = name_of(address.system, service);
        let new = NewObject {
            kind: Kind::Endpoint,
            name: name.clone(),
            len: 1,
            mode: 0o600,
            ends_with_creator: true,
            params: [address.number.into(), address.birth, 0, 0],
            or_open: false,
        };
        let grant = member.service().create_object(&new)?;
        Ok(Self { member: Arc::clone(member), name, place: (grant.index, grant.incarnation) })
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Name").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        // A service that is gone has nothing to be told.
        let _ = self.member.service().unlink_object(Kind::Endpoint, &self.name);
        let _ = self.member.service().close_object(self.place.0, self.place.1);
    }
}

/// The endpoint that has a service's name at a system, if there is one.
///
/// # Errors
/// [`Error::Invalid`] for a table that never holds still; as [`Member::directory_of`].
pub fn find(member: &Member, system: SystemId, service: &str) -> Result<Option<Address>> {
    let region = member.region();
    let name = name_of(system, service);
    let mut patience = Patience::default();
    for index in 0..super::high(region) {
        let Some(info) = read(region, index, &mut patience)? else { continue };
        if info.kind != Kind::Endpoint as u32 || info.flags & UNLINKED != 0 || info.name != name {
            continue;
        }
        let (peer, directory) = member.directory_of(system)?;
        // It names an endpoint of the process that made it, or nothing.
        let Some(creator) = info.creator.filter(|c| c.peer() == peer && c.is_alive(region)) else {
            continue;
        };
        let Ok(number) = u32::try_from(info.params[0]) else { continue };
        let Ok(there) = directory.endpoint(number) else { continue };
        let lives = there.life.state == super::State::Active && there.birth == info.params[1];
        if lives && there.area == u64::from(creator.area()) {
            return Ok(Some(Address { system, number, birth: there.birth }));
        }
    }
    Ok(None)
}

/// Whether a refusal says that the name is taken.
pub fn is_taken(error: &Error) -> bool {
    matches!(error, Error::Object { problem: super::ObjectProblem::Exists, .. })
}
