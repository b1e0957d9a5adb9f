//! Named objects: pieces of the shared section, which all members may write, and the table of their names.
//!
//! The host service alone writes the table; creation, and the permission to open, go through it. What an object's bytes mean
//! is its users' affair. They are zeros when it is made; its parameters stand in the table, where only the host
//! service writes.

pub mod call;
pub mod endpoint;
pub mod sysv;

use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_lockfree::life::{Life, State, unchanged};
use isthmus_lockfree::local::Flag;
use isthmus_lockfree::sync::{ReadWord, release_fence};

use crate::error::{Error, ObjectProblem, Result};
use crate::format::{header, object, reply};
use crate::mapping::{PeerSection, Section};
use crate::member::Member;
use crate::membership::{PeerInfo, Region};
use crate::party::Party;
use crate::text::padded;
use crate::waiting::{NAP, nap};

/// Longest name of an object, in bytes.
pub const MAX_NAME: usize = 127;
/// Flag: it ends with its creator.
pub const ENDS_WITH_CREATOR: u64 = 1;
/// Flag: its name is gone; it ends with the last process that has it open.
pub const UNLINKED: u64 = 2;
/// Flag: it is for processes of some peers alone ([`ObjectInfo::is_shared_with`]).
pub const LIMITED: u64 = 4;
/// All flags.
pub const FLAGS: u64 = ENDS_WITH_CREATOR | UNLINKED | LIMITED;
/// Peers with lower indexes can be among those to which an object is limited.
pub const MAX_ALLOWED: u32 = 256;
/// How long a reader waits for an entry that is being changed.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same once an entry has held this process up for so long, until one is done with after a wait.
const LITTLE: Duration = Duration::from_millis(5);
static IS_TIRED: Flag = Flag::new(false);
/// Looks at such an entry with yields between them; naps come then.
const YIELDS: u32 = 64;

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Kind {
    /// Bytes: a named segment.
    Segment = 1,
    /// A barrier. Parameters: participants, way of waiting.
    Barrier = 2,
    /// A mutex.
    Mutex = 3,
    /// A condition variable.
    Condition = 4,
    /// A counting semaphore. Parameters: value at first, highest value.
    Semaphore = 5,
    /// A reader-writer lock.
    RwLock = 6,
    /// Something that is done once.
    Once = 7,
    /// Locks and logs of minitransactions. Parameters: locks, logs.
    Space = 8,
    /// The name of an endpoint: see [`endpoint`]. Parameters: its number and its birth.
    Endpoint = 9,
    /// System V shared memory: see [`sysv`].
    SysvShm = 10,
    /// A set of System V semaphores.
    SysvSem = 11,
    /// A System V message queue.
    SysvMsg = 12,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Segment,
        Self::Barrier,
        Self::Mutex,
        Self::Condition,
        Self::Semaphore,
        Self::RwLock,
        Self::Once,
        Self::Space,
        Self::Endpoint,
        Self::SysvShm,
        Self::SysvSem,
        Self::SysvMsg,
    ];

    /// The kind with this number.
    pub fn of(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|k| *k as u32 == number)
    }

    /// In words, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Segment => "segment",
            Self::Barrier => "barrier",
            Self::Mutex => "mutex",
            Self::Condition => "condition",
            Self::Semaphore => "semaphore",
            Self::RwLock => "rwlock",
            Self::Once => "once",
            Self::Space => "space",
            Self::Endpoint => "endpoint",
            Self::SysvShm => "shm",
            Self::SysvSem => "sem",
            Self::SysvMsg => "msg",
        }
    }

    /// Whether it is an object of System V IPC ([`sysv`]).
    pub fn is_sysv(self) -> bool {
        matches!(self, Self::SysvShm | Self::SysvSem | Self::SysvMsg)
    }
}

/// What a process wants to do with an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Look at it.
    Read,
    /// Change it, too.
    Write,
}

impl Access {
    /// Whether a mode lets in a user that is (not) owner or of the group. Root may do all.
    pub fn is_granted(self, mode: u32, owner: (u32, u32), who: (u32, u32)) -> bool {
        let shift = match who {
            (0, _) => return true,
            (uid, _) if uid == owner.0 => 6,
            (_, gid) if gid == owner.1 => 3,
            _ => 0,
        };
        let wanted = match self {
            Self::Read => 4,
            Self::Write => 6,
        };
        (mode >> shift) & wanted == wanted
    }
}

/// An object as the table shows it at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Index in the table.
    pub index: u32,
    /// Incarnation and state.
    pub life: Life,
    /// Offset in the shared section.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Kind, as a number that may be none of [`Kind`]'s.
    pub kind: u32,
    /// Mode, as of a file.
    pub mode: u32,
    /// Owner: user and group.
    pub owner: (u32, u32),
    /// The process that made it.
    pub creator: Option<Party>,
    /// Flags.
    pub flags: u64,
    /// Processes that have it open; of System V IPC, how often living processes have it open.
    pub opens: u64,
    /// Parameters.
    pub params: [u64; 4],
    /// The peers to which it is limited, as bits.
    pub allowed: [u64; 4],
    /// Name.
    pub name: String,
}

impl ObjectInfo {
    /// Whether processes of a peer may use it, as far as its owner has limited it.
    pub fn is_shared_with(&self, peer: u32) -> bool {
        self.flags & LIMITED == 0 || is_among(peer, |word| self.allowed[word])
    }
}

/// Whether a peer's bit is set in the words.
fn is_among(peer: u32, word: impl Fn(usize) -> u64) -> bool {
    let at = usize::try_from(peer / 64).unwrap_or(usize::MAX);
    peer < MAX_ALLOWED && word(at) >> (peer % 64) & 1 == 1
}

/// These peers as bits, without those that have none.
pub fn allowed(peers: impl Iterator<Item = u32>) -> [u64; 4] {
    let mut bits = [0; 4];
    for peer in peers.filter(|peer| *peer < MAX_ALLOWED) {
        if let Some(word) = usize::try_from(peer / 64).ok().and_then(|at| bits.get_mut(at)) {
            *word |= 1 << (peer % 64);
        }
    }
    bits
}

/// Whether an object can have this name.
///
/// # Errors
/// [`Error::Object`]: it is empty, too long, or has a zero in it.
pub fn check_name(name: &str) -> Result<()> {
    if (1..=MAX_NAME).contains(&name.len()) && !name.contains('\0') {
        return Ok(());
    }
    let shown: String = name.chars().take(40).collect();
    let text = format!(
        "an object's name has 1 to {MAX_NAME} bytes and no zero among them, and '{}' has {}",
        shown.escape_default(),
        name.len()
    );
    Err(Error::Object { problem: ObjectProblem::Invalid, text })
}

/// An object that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewObject {
    /// What it is.
    pub kind: Kind,
    /// Its name, of 1 to [`MAX_NAME`] bytes.
    pub name: String,
    /// Bytes.
    pub len: u64,
    /// Who may read and write it, as of a file: `0o600`.
    pub mode: u32,
    /// Whether it ends with the process that makes it.
    pub ends_with_creator: bool,
    /// Parameters, by kind.
    pub params: [u64; 4],
    /// Whether one that is there already will do.
    pub or_open: bool,
}

/// An object that a process has open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectGrant {
    /// Index in the table.
    pub index: u32,
    /// Incarnation.
    pub incarnation: u64,
    /// Offset in the shared section.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Parameters, by kind.
    pub params: [u64; 4],
    /// Whether it was made by this very request.
    pub is_new: bool,
}

/// Where entry `index` begins in the host section.
fn entry(region: &Region, index: u32) -> Result<PeerSection> {
    if index >= region.shape().objects {
        return Err(Error::Invalid { what: "object", value: index.into() });
    }
    let at = region.shape().object_table() + u64::from(index) * object::BYTES;
    region.host()?.part("object table", at, object::BYTES)
}

/// The object in place `index`, if there is one.
///
/// # Errors
/// [`Error::Invalid`] beyond the table, or for an entry that never holds still.
pub fn object(region: &Region, index: u32) -> Result<Option<ObjectInfo>> {
    read(region, index, &mut Patience::default())
}

/// How long a reader waits for entries that are being changed: all of those that it reads together. Their writer may have lost its
/// processor in between; but entries that never hold still shall keep nobody for long, nor again and again.
#[derive(Debug, Default)]
pub struct Patience {
    looks: u32,
    begun: Option<Instant>,
}

impl Patience {
    /// Waits a little before the next look; gives false once it is used up.
    pub fn wait(&mut self) -> bool {
        self.looks += 1;
        if self.looks <= YIELDS {
            std::thread::yield_now();
            return true;
        }
        let patience = if IS_TIRED.is_set() { LITTLE } else { PATIENCE };
        if self.begun.get_or_insert_with(Instant::now).elapsed() >= patience {
            IS_TIRED.set();
            return false;
        }
        nap(NAP);
        true
    }

    /// An entry was read after a wait for it: waits are worth it.
    fn is_rewarded(&self) {
        if self.begun.is_some() {
            IS_TIRED.clear();
        }
    }
}

/// As [`object()`], of several.
fn read(region: &Region, index: u32, patience: &mut Patience) -> Result<Option<ObjectInfo>> {
    let at = entry(region, index)?;
    let life = at.word("object", object::LIFE)?;
    let mut has_waited = false;
    loop {
        let seen = life.get();
        match Life::unpack(seen).state {
            State::Active => {}
            State::Joining if patience.wait() => {
                has_waited = true;
                continue;
            }
            State::Joining => break,
            State::Free | State::Dead => return Ok(None),
        }
        let word = |offset| at.word("object", offset).map(ReadWord::peek);
        let half = |offset| at.half("object", offset);
        let name = at.bytes("object", object::NAME, MAX_NAME as u64 + 1)?.to_vec(0, MAX_NAME as u64 + 1)?;
        let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
        let info = ObjectInfo {
            index,
            life: Life::unpack(seen),
            offset: word(object::OFFSET)?,
            len: word(object::LEN)?,
            kind: half(object::KIND)?,
            mode: half(object::MODE)?,
            owner: (half(object::UID)?, half(object::GID)?),
            creator: Party::named(word(object::CREATOR)?),
            flags: word(object::FLAGS)?,
            opens: word(object::OPENS)?,
            params: [
                word(object::PARAMS)?,
                word(object::PARAMS + 8)?,
                word(object::PARAMS + 16)?,
                word(object::PARAMS + 24)?,
            ],
            allowed: [
                word(object::ALLOWED)?,
                word(object::ALLOWED + 8)?,
                word(object::ALLOWED + 16)?,
                word(object::ALLOWED + 24)?,
            ],
            name: String::from_utf8_lossy(&name[..end]).into_owned(),
        };
        if unchanged(life, seen) {
            if has_waited {
                patience.is_rewarded();
            }
            return Ok(Some(info));
        }
        if !patience.wait() {
            break;
        }
        has_waited = true;
    }
    Err(Error::Invalid { what: "object entry, which keeps changing", value: index.into() })
}

/// Where the table's entries that are in use end.
pub fn high(region: &Region) -> u32 {
    let high = region.host().and_then(|host| host.word("header", header::OBJECTS_HIGH).map(ReadWord::get));
    let all = region.shape().objects;
    high.map_or(all, |high| u32::try_from(high).unwrap_or(all).min(all))
}

/// Says where the table's entries that are in use end, which [`publish`] does for one beyond; for the host service alone.
///
/// # Errors
/// [`Error::ReadOnly`].
pub fn set_high(region: &Region, high: u32) -> Result<()> {
    region.host()?.writable()?.word("header", header::OBJECTS_HIGH)?.set(high.into());
    Ok(())
}

/// All objects that there are.
pub fn objects(region: &Region) -> Vec<ObjectInfo> {
    let mut patience = Patience::default();
    (0..high(region)).filter_map(|i| read(region, i, &mut patience).ok().flatten()).collect()
}

/// An object's bytes.
///
/// # Errors
/// [`Error::OutOfBounds`] when the table claims bytes outside of the shared section.
pub fn section(region: &Region, info: &ObjectInfo) -> Result<Section> {
    region.shared()?.part("object", info.offset, info.len)
}

/// Whether the object that was seen in place `index` is still there.
pub fn is_there(region: &Region, index: u32, incarnation: u64) -> bool {
    entry(region, index).is_ok_and(|at| lives(&at, incarnation))
}

/// Whether the last object that was in place `index` is gone; gives which one that was.
pub fn last_gone(region: &Region, index: u32) -> Option<u64> {
    let at = entry(region, index).ok()?;
    let life = Life::unpack(at.word("object", object::LIFE).ok()?.get());
    (life.state == State::Dead).then_some(life.incarnation)
}

/// Whether an entry is that of this object, if it is being changed, too.
fn lives(entry: &PeerSection, incarnation: u64) -> bool {
    let life = entry.word("object", object::LIFE).map_or(0, ReadWord::get);
    let life = Life::unpack(life);
    life.incarnation == incarnation && matches!(life.state, State::Active | State::Joining)
}

/// Writes an entry, all but its name's life; for the host service alone.
///
/// # Errors
/// [`Error::Invalid`] beyond the table, or for a name that is too long.
pub fn publish(region: &Region, info: &ObjectInfo) -> Result<()> {
    let at = entry(region, info.index)?.writable()?;
    if info.name.len() > MAX_NAME {
        return Err(Error::Invalid { what: "bytes of a name", value: info.name.len() as u64 });
    }
    if info.index >= high(region) {
        set_high(region, info.index + 1)?;
    }
    let life = at.word("object", object::LIFE)?;
    life.set(Life { state: State::Joining, ..info.life }.pack());
    // No reader takes the old life together with the new words (P5).
    release_fence();
    let put = |offset, value| at.word("object", offset).map(|w| w.put(value));
    let pair = |low: u32, high: u32| u64::from(low) | (u64::from(high) << 32);
    put(object::OFFSET, info.offset)?;
    put(object::LEN, info.len)?;
    put(object::KIND, pair(info.kind, info.mode))?;
    put(object::UID, pair(info.owner.0, info.owner.1))?;
    put(object::CREATOR, info.creator.map_or(0, Party::word))?;
    put(object::FLAGS, info.flags)?;
    put(object::OPENS, info.opens)?;
    for (i, param) in (0_u64..).zip(info.params) {
        put(object::PARAMS + 8 * i, param)?;
    }
    for (i, bits) in (0_u64..).zip(info.allowed) {
        put(object::ALLOWED + 8 * i, bits)?;
    }
    at.fill_bytes("object", object::NAME, &padded::<{ MAX_NAME + 1 }>(&info.name))?;
    life.set(Life { state: State::Active, ..info.life }.pack());
    Ok(())
}

/// Publishes that an object is no more; for the host service alone. Its memory may be given away after this.
///
/// # Errors
/// [`Error::Invalid`] beyond the table.
pub fn retire(region: &Region, index: u32, incarnation: u64) -> Result<()> {
    let life = Life { incarnation, state: State::Dead };
    entry(region, index)?.writable()?.word("object", object::LIFE)?.set(life.pack());
    release_fence();
    Ok(())
}

/// A named object that this process has open, until the last copy of this is dropped.
#[derive(Debug, Clone)]
pub struct Object(Arc<Open>);

struct Open {
    member: Arc<Member>,
    kind: Kind,
    access: Access,
    grant: ObjectGrant,
    section: Section,
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open").field("kind", &self.kind).field("grant", &self.grant).finish_non_exhaustive()
    }
}

impl Object {
    /// Makes an object, or opens it where that will do.
    ///
    /// # Errors
    /// [`Error::Object`] when the service refuses; [`Error::Service`] when there is none.
    pub fn create(member: &Arc<Member>, new: &NewObject) -> Result<Self> {
        check_name(&new.name)?;
        let grant = member.service().create_object(new)?;
        Self::granted(member, new.kind, Access::Write, grant)
    }

    /// Opens an object.
    ///
    /// # Errors
    /// As [`Object::create`].
    pub fn open(member: &Arc<Member>, kind: Kind, name: &str, access: Access) -> Result<Self> {
        check_name(name)?;
        let grant = member.service().open_object(kind, name, access)?;
        Self::granted(member, kind, access, grant)
    }

    fn granted(member: &Arc<Member>, kind: Kind, access: Access, grant: ObjectGrant) -> Result<Self> {
        let shared = member.region().shared()?;
        match shared.part("object", grant.offset, grant.len) {
            Ok(section) => {
                Ok(Self(Arc::new(Open { member: Arc::clone(member), kind, access, grant, section })))
            }
            Err(e) => {
                let _ = member.service().close_object(grant.index, grant.incarnation);
                Err(e)
            }
        }
    }

    /// The attachment that it was opened by.
    pub fn member(&self) -> &Arc<Member> {
        &self.0.member
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// What it was opened for.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// Its bytes, as many as there were when it was opened.
    pub fn section(&self) -> &Section {
        &self.0.section
    }

    /// Its parameters.
    pub fn params(&self) -> [u64; 4] {
        self.0.grant.params
    }

    /// Its index in the table, and its incarnation.
    pub fn place(&self) -> (u32, u64) {
        (self.0.grant.index, self.0.grant.incarnation)
    }

    /// Whether it was made by the call that opened it.
    pub fn is_new(&self) -> bool {
        self.0.grant.is_new
    }

    /// What the table says of it now; nothing if the service has ended it, which it does not while it is open.
    pub fn info(&self) -> Option<ObjectInfo> {
        let info = object(self.0.member.region(), self.0.grant.index).ok().flatten();
        info.filter(|i| i.life.incarnation == self.0.grant.incarnation)
    }

    /// Makes a segment smaller. A process that has it open already keeps seeing its old bytes, which are not given away meanwhile.
    ///
    /// # Errors
    /// As [`Object::create`].
    pub fn shrink(&self, len: u64) -> Result<u64> {
        self.0.member.service().shrink_object(self.0.grant.index, self.0.grant.incarnation, len)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // A service that is gone has nothing to be told.
        let _ = self.member.service().close_object(self.grant.index, self.grant.incarnation);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::mapping::Mapping;
    use crate::membership::{Shape, Writer};

    fn region() -> Region {
        let fd = crate::create::memory(4 << 20).unwrap();
        let map = Mapping::map(fd.as_fd(), 4 << 20).unwrap();
        let shape = Shape::new(4 << 20, [1, 2], 2, 16).unwrap().with_shared(1 << 20, 8).unwrap();
        assert!(shape.host_bytes >= shape.object_table() + 8 * object::BYTES);
        Writer::create(&map, &shape, 1).unwrap().region().clone()
    }

    fn info(name: &str) -> ObjectInfo {
        ObjectInfo {
            index: 3,
            life: Life { incarnation: 7, state: State::Active },
            offset: 4096,
            len: 100,
            kind: Kind::Barrier as u32,
            mode: 0o640,
            owner: (1000, 100),
            creator: Some(Party::new(1, 2, 3)),
            flags: ENDS_WITH_CREATOR,
            opens: 1,
            params: [4, 3, 2, 1],
            allowed: allowed([0, 70, 255, 256].into_iter()),
            name: name.into(),
        }
    }

    #[test]
    fn an_object_is_read_as_it_was_published_until_it_is_retired() {
        let region = region();
        assert_eq!(objects(&region), []);
        for name in ["a", &"n".repeat(MAX_NAME)] {
            publish(&region, &info(name)).unwrap();
            assert_eq!(objects(&region), [info(name)]);
        }
        assert!(is_there(&region, 3, 7) && !is_there(&region, 3, 6) && !is_there(&region, 2, 7));
        assert_eq!(section(&region, &info("a")).unwrap().len(), 100);
        assert!(section(&region, &ObjectInfo { offset: 1 << 20, ..info("a") }).is_err());
        retire(&region, 3, 7).unwrap();
        assert_eq!(object(&region, 3).unwrap(), None);
        assert!(object(&region, 8).is_err());
        assert!(publish(&region, &info(&"n".repeat(MAX_NAME + 1))).is_err());
    }

    #[test]
    fn a_reader_outlasts_a_writer_that_loses_its_processor() {
        let region = region();
        publish(&region, &info("a")).unwrap();
        let life = entry(&region, 3).unwrap().writable().unwrap();
        let life = life.word("object", object::LIFE).unwrap();
        let changing = |incarnation| Life { incarnation, state: State::Joining }.pack();
        life.set(changing(7));
        assert!(is_there(&region, 3, 7) && !is_there(&region, 3, 6));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| object(&region, 3).unwrap());
            std::thread::sleep(PATIENCE / 5);
            life.set(info("a").life.pack());
            assert_eq!(reader.join().unwrap(), Some(info("a")));
        });
        // One that never comes back keeps nobody for long, however many entries it has left so, and not for so long again.
        for index in 0..8 {
            publish(&region, &ObjectInfo { index, ..info("a") }).unwrap();
            let entry = entry(&region, index).unwrap().writable().unwrap();
            entry.word("object", object::LIFE).unwrap().set(changing(7));
        }
        let begun = Instant::now();
        assert_eq!(objects(&region), []);
        let took = begun.elapsed();
        assert!(took >= PATIENCE && took < 4 * PATIENCE, "{took:?}");
        let begun = Instant::now();
        retire(&region, 1, 7).unwrap();
        publish(&region, &ObjectInfo { index: 2, ..info("a") }).unwrap();
        assert_eq!(objects(&region).len(), 1);
        assert!((3..8).all(|index| object(&region, index).is_err()));
        assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        IS_TIRED.clear();
    }

    #[test]
    fn a_mode_lets_in_whom_it_names() {
        let owner = (1000, 100);
        let may = |access: Access, who| access.is_granted(0o640, owner, who);
        assert!(may(Access::Write, (1000, 1)) && may(Access::Write, (0, 0)));
        assert!(may(Access::Read, (1, 100)) && !may(Access::Write, (1, 100)));
        assert!(!may(Access::Read, (1, 1)));
        assert!(!Access::Read.is_granted(0o060, owner, (1000, 100)), "the owner is not of the group");
    }

    #[test]
    fn a_limited_object_is_for_the_peers_that_are_listed() {
        let region = region();
        let free = ObjectInfo { kind: Kind::SysvSem as u32, ..info("a") };
        let limited = ObjectInfo { flags: LIMITED, ..free.clone() };
        for (info, hears) in [(&free, [true; 5]), (&limited, [true, false, true, true, false])] {
            publish(&region, info).unwrap();
            let entry = sysv::Entry::of(&region, info).unwrap();
            for (peer, hears) in [0, 1, 70, 255, 256].into_iter().zip(hears) {
                assert_eq!((info.is_shared_with(peer), entry.is_shared_with(peer)), (hears, hears), "{peer}");
                assert_eq!(entry.rights(peer), sysv::rights(info, peer));
            }
        }
        assert_eq!(sysv::rights(&limited, 70), sysv::rights(&free, 70));
        assert_ne!(sysv::rights(&limited, 1), sysv::rights(&free, 1));
    }

    #[test]
    fn a_call_is_heard_once_and_its_answer_found() {
        let region = region();
        let section = region.shared().unwrap();
        let call = call::Call { number: 5, party: 9, user: (1, 2), frame: vec![7; 300] };
        assert_eq!(call::heard(&section.for_reading(), 0).unwrap(), None);
        call::ask(&section, &call).unwrap();
        assert_eq!(call::heard(&section.for_reading(), 4).unwrap(), Some(call.clone()));
        assert_eq!(call::heard(&section.for_reading(), 5).unwrap(), None);
        assert!(call::ask(&section, &call::Call { frame: vec![0; 513], ..call }).is_err());
        section.word("call", crate::format::directory::CALL_LEN).unwrap().set(u64::MAX);
        assert!(call::heard(&section.for_reading(), 4).is_err());
    }
}
