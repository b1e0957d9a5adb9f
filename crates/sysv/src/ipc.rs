//! What shared memory, semaphores and queues have in common: ids, keys, modes, removal.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use isthmus_lockfree::local::{Count, Flag};
use isthmus_region::error::ObjectProblem;
use isthmus_region::mapping::Section;
use isthmus_region::member::Member;
use isthmus_region::objects::sysv::{self, Change, Entry, Sharing, segment};
use isthmus_region::objects::{self, Kind, NewObject, ObjectInfo, UNLINKED};
use isthmus_region::signals::lock;
use rustix::io::Errno;

use crate::msg::Queues;
use crate::sem::Sets;
use crate::shm::fault::{Step, step};
use crate::{Caller, Result};

/// `IPC_CREAT`.
pub const CREAT: i32 = 0o1000;
/// `IPC_EXCL`.
pub const EXCL: i32 = 0o2000;
/// `IPC_NOWAIT`.
pub const NOWAIT: i32 = 0o4000;
/// The key of an object without a key.
pub const PRIVATE: i32 = 0;

/// The bit that ids of ours have and those of the kernel have not, before it has made and removed some two million objects of the kind.
const OURS: i32 = 1 << 30;
const LIFE_BITS: u32 = 14;
const INDEX_BITS: u32 = 16;
/// How often an object is looked for and made by turns, while others make and remove it.
const MOST_TRIES: u32 = 1000;

/// Whether an id is one of ours.
pub fn is_ours(id: i32) -> bool {
    id > 0 && id & OURS != 0
}

/// The id of an object: its place in the table, and which of the objects that were there.
pub fn id_of(info: &ObjectInfo) -> i32 {
    id(info.index, info.life.incarnation)
}

fn id(index: u32, incarnation: u64) -> i32 {
    let life = u32::try_from(incarnation & ((1 << LIFE_BITS) - 1)).unwrap_or(0);
    OURS | (life << INDEX_BITS | (index & ((1 << INDEX_BITS) - 1))).cast_signed()
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// System V IPC as one process has it.
#[derive(Debug)]
pub struct Ipc {
    member: Arc<Member>,
    made: Count,
    /// Semaphores and queues that this process has open, by id.
    used: Mutex<HashMap<i32, Arc<Used>>>,
    refusal: Mutex<Option<String>>,
    /// The attachment by which objects are made, changed and removed, if that is another one.
    ruler: Mutex<Option<Arc<Member>>>,
    /// Whether what is for processes of other systems is found, too, and the service is left to refuse what is asked of it.
    finds_all: bool,
    pub(crate) queues: Queues,
    pub(crate) sets: Sets,
}

/// An object that this process has open.
#[derive(Debug)]
pub struct Used {
    member: Arc<Member>,
    index: u32,
    incarnation: u64,
    entry: Entry,
    section: Section,
    id: i32,
    is_kept: Flag,
    is_let_go: Flag,
}

impl Used {
    /// Its bytes.
    pub fn section(&self) -> &Section {
        &self.section
    }

    /// Its id.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// The peer of this process.
    pub(crate) fn peer(&self) -> u32 {
        self.member.peer()
    }

    /// Whether it was removed.
    #[inline]
    pub fn is_removed(&self) -> bool {
        self.entry.is_removed()
    }

    /// What the table says of it now.
    ///
    /// # Errors
    /// `EIDRM` if it is gone, `EINVAL` if the table cannot be read.
    pub fn info(&self) -> Result<ObjectInfo> {
        let info = objects::object(self.member.region(), self.index).map_err(|_| Errno::INVAL)?;
        info.filter(|i| i.life.incarnation == self.incarnation).ok_or(Errno::IDRM)
    }

    /// Words that change whenever owner or mode do, or whether it is for processes of this system: a caller that was let in once need
    /// not be looked up again.
    #[inline]
    pub fn rights(&self) -> [u64; 2] {
        self.entry.rights(self.member.peer())
    }

    /// Whether the caller may do what `wanted` says.
    ///
    /// # Errors
    /// `EACCES`; `EIDRM` if it is gone.
    pub(crate) fn check(&self, caller: &Caller, wanted: u32) -> Result<ObjectInfo> {
        let info = self.info()?;
        if !info.is_shared_with(self.member.peer()) {
            return Err(Errno::ACCESS);
        }
        caller.check(&info, wanted).map(|()| info)
    }

    /// Its size in its own terms, as the table has it now: of a queue, the most bytes that it may hold.
    #[inline]
    pub fn size(&self) -> u64 {
        self.entry.size()
    }

    /// Has this process have it open until it ends, or until the object is removed, whatever is dropped before.
    pub(crate) fn keep(&self) -> Result<()> {
        if self.is_kept.is_set() {
            return Ok(());
        }
        let service = self.member.service();
        let held = service.hold_object(self.index, self.incarnation);
        held.map_err(|e| match errno_at_opening(&e) {
            Errno::INVAL => Errno::IDRM,
            errno => errno,
        })?;
        if self.is_kept.set() {
            // Another thread did so.
            service.release_object(self.index, self.incarnation);
        }
        Ok(())
    }
}

impl Used {
    /// Tells the service that this process has it open no more: the caller knows that nobody is going to touch its bytes.
    pub(crate) fn let_go(&self) {
        if self.is_let_go.set() {
            return;
        }
        if self.is_kept.is_set() && self.is_removed() {
            self.member.service().release_object(self.index, self.incarnation);
        }
        self.member.service().release_object(self.index, self.incarnation);
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// The errno for what the service says.
fn errno(error: &isthmus_region::Error) -> Errno {
    match error {
        isthmus_region::Error::Object { problem, .. } => match problem {
            ObjectProblem::NotFound => Errno::INVAL,
            ObjectProblem::Exists => Errno::EXIST,
            ObjectProblem::Denied => Errno::PERM,
            ObjectProblem::Full => Errno::NOSPC,
            ObjectProblem::Invalid => Errno::INVAL,
        },
        isthmus_region::Error::Full { .. } => Errno::NOSPC,
        _ => Errno::IO,
    }
}

/// The errno where an object cannot be opened or made.
pub(crate) fn errno_at_opening(error: &isthmus_region::Error) -> Errno {
    match errno(error) {
        Errno::PERM => Errno::ACCESS,
        errno => errno,
    }
}

/// An object that is to be made if there is none.
#[derive(Debug, Clone, Copy)]
pub struct New {
    /// Bytes of the shared section.
    pub len: u64,
    /// Its size in its own terms ([`sysv::SIZE`]).
    pub size: u64,
}

impl Ipc {
    /// For an attached process.
    pub fn new(member: &Arc<Member>) -> Self {
        Self {
            member: Arc::clone(member),
            made: Count::new(0),
            used: Mutex::default(),
            refusal: Mutex::default(),
            ruler: Mutex::default(),
            finds_all: false,
            queues: Queues::default(),
            sets: Sets::default(),
        }
    }

    /// For a process that rules objects, and uses none: it finds those that are for processes of other systems, too.
    pub fn to_rule(member: &Arc<Member>) -> Self {
        Self { finds_all: true, ..Self::new(member) }
    }

    /// Whether an object is for processes of this system.
    fn is_for_us(&self, info: &ObjectInfo) -> bool {
        self.finds_all || info.is_shared_with(self.member.peer())
    }

    /// The attachment.
    pub fn member(&self) -> &Arc<Member> {
        &self.member
    }

    /// Objects are made, changed and removed by this attachment from now on. The service knows users by their connections, so a
    /// process whose effective user or group is another one now attaches once more for that.
    pub fn rule_by(&self, member: Arc<Member>) {
        *lock(&self.ruler) = Some(member);
    }

    /// To be called in a forked child, which can use nothing of this: see [`Member::abandon`].
    pub fn abandon(&self) {
        self.member.abandon();
        // A thread of the parent may have had it locked.
        if let Some(ruler) = self.ruler.try_lock().ok().and_then(|ruler| ruler.clone()) {
            ruler.abandon();
        }
    }

    /// The attachment by which objects are made, changed and removed.
    fn ruler(&self) -> Arc<Member> {
        lock(&self.ruler).as_ref().map_or_else(|| Arc::clone(&self.member), Arc::clone)
    }

    /// The object with a key.
    pub fn find(&self, kind: Kind, key: i32) -> Option<ObjectInfo> {
        sysv::find(self.member.region(), kind, key)
    }

    /// shmget(2), semget(2), msgget(2): the object with a key, or a new one. `fits` says whether one that is there will do; `new` what
    /// is to be made. Gives whether it was made now.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT`, `EACCES`, `ENOSPC`; those of `fits` and `new`.
    pub fn get(
        &self,
        kind: Kind,
        key: i32,
        flags: i32,
        caller: &Caller,
        fits: impl Fn(&ObjectInfo) -> Result<()>,
        new: impl Fn() -> Result<New>,
    ) -> Result<(ObjectInfo, bool)> {
        let mode = flags.cast_unsigned() & 0o777;
        if key == PRIVATE {
            let count = self.made.add(1);
            let name = sysv::private_name(self.member.party(), count);
            return self.make(kind, key, name, mode, caller, new()?).map(|info| (info, true));
        }
        for _ in 0..MOST_TRIES {
            if let Some(info) = self.find(kind, key) {
                if flags & CREAT != 0 && flags & EXCL != 0 {
                    return Err(Errno::EXIST);
                }
                if !self.is_for_us(&info) {
                    // It is not found; but its key is taken.
                    return Err(if flags & CREAT == 0 { Errno::NOENT } else { Errno::ACCESS });
                }
                fits(&info)?;
                caller.check(&info, mode)?;
                return Ok((info, false));
            }
            if flags & CREAT == 0 {
                return Err(Errno::NOENT);
            }
            match self.make(kind, key, sysv::name_of(key), mode, caller, new()?) {
                // Another process was faster.
                Err(Errno::EXIST) => {}
                made => return made.map(|info| (info, true)),
            }
        }
        // The table is written over.
        Err(Errno::IO)
    }

    fn make(
        &self,
        kind: Kind,
        key: i32,
        name: String,
        mode: u32,
        caller: &Caller,
        new: New,
    ) -> Result<ObjectInfo> {
        self.forget_removed();
        let mut params = [0; 4];
        params[sysv::KEY] = sysv::both(key.cast_unsigned(), caller.pid);
        params[sysv::CHANGED] = now();
        params[sysv::SIZE] = new.size;
        let new =
            NewObject { kind, name, len: new.len, mode, ends_with_creator: false, params, or_open: false };
        let grant = self.ruler().service().create_object(&new).map_err(|e| self.refused(&e))?;
        let info = objects::object(self.member.region(), grant.index).ok().flatten();
        info.filter(|i| i.life.incarnation == grant.incarnation).ok_or(Errno::IDRM)
    }

    /// The errno for what the service says, whose words are kept if there is no room, or this user or system may make none.
    fn refused(&self, error: &isthmus_region::Error) -> Errno {
        let errno = errno_at_opening(error);
        if matches!(errno, Errno::NOSPC | Errno::ACCESS) {
            *lock(&self.refusal) = Some(error.to_string());
        }
        errno
    }

    /// Why the service made no object lately, and which setting decides that; once for each time.
    pub fn take_refusal(&self) -> Option<String> {
        lock(&self.refusal).take()
    }

    /// The object with an id; one that is removed and still in use, too.
    ///
    /// # Errors
    /// `EINVAL`: there is no such object of this kind. `EACCES`: it is for processes of other systems.
    pub fn look(&self, kind: Kind, id: i32) -> Result<ObjectInfo> {
        let info = self.look_anywhere(kind, id)?;
        if self.is_for_us(&info) { Ok(info) } else { Err(Errno::ACCESS) }
    }

    fn look_anywhere(&self, kind: Kind, id: i32) -> Result<ObjectInfo> {
        if !is_ours(id) {
            return Err(Errno::INVAL);
        }
        let index = id.cast_unsigned() & ((1 << INDEX_BITS) - 1);
        let read = || objects::object(self.member.region(), index).ok().flatten();
        let again = || {
            self.settle();
            read()
        };
        // A segment that is removed and attached at the same time is gone for a moment: the service knows then.
        let gone = || objects::last_gone(self.member.region(), index);
        let was_it = || kind == Kind::SysvShm && gone().is_some_and(|life| self::id(index, life) == id);
        let once_more = || if was_it() { again() } else { None };
        let info = read().or_else(once_more).ok_or(Errno::INVAL)?;
        if !sysv::is(&info, kind) {
            return Err(Errno::INVAL);
        }
        if id_of(&info) != id {
            return Err(Errno::INVAL);
        }
        // A process that was dropped alive may keep the memory of one that is removed, though it has it attached no more.
        if info.opens > 0 || !sysv::is_removed(self.member.region(), &info) {
            return Ok(info);
        }
        // The service may not have heard yet of those that attach it.
        again().filter(|info| id_of(info) == id && info.opens > 0).ok_or(Errno::INVAL)
    }

    /// As [`Ipc::look`], for one that is not removed.
    ///
    /// # Errors
    /// As [`Ipc::look`].
    pub fn look_alive(&self, kind: Kind, id: i32) -> Result<ObjectInfo> {
        let info = self.look(kind, id)?;
        if info.flags & UNLINKED == 0 { Ok(info) } else { Err(Errno::INVAL) }
    }

    /// The object with an id, opened for use if it is not open yet.
    ///
    /// # Errors
    /// `EINVAL`, `ENOMEM`, `EIO`.
    pub fn open(&self, kind: Kind, id: i32) -> Result<Arc<Used>> {
        let known = lock(&self.used).get(&id).cloned();
        if let Some(used) = known {
            if !used.is_removed() {
                return Ok(used);
            }
            lock(&self.used).remove(&id);
            return Err(Errno::INVAL);
        }
        let info = self.look_alive(kind, id)?;
        self.forget_removed();
        let used = Arc::new(self.hold(&info)?);
        // Two threads may have opened it; the first one's stays.
        Ok(Arc::clone(lock(&self.used).entry(id).or_insert(used)))
    }

    /// Forgets what was removed since this process has used it: its memory serves nobody else as long as it is open here.
    pub(crate) fn forget_removed(&self) {
        let used: Vec<_> = lock(&self.used).extract_if(|_, used| used.is_removed()).collect();
        let queues = self.queues.take_removed();
        // Dropped with no lock held: the last user tells the service.
        drop((queues, used));
        self.sets.forget_removed();
    }

    /// Opens an object.
    pub(crate) fn hold(&self, info: &ObjectInfo) -> Result<Used> {
        let (index, incarnation) = (info.index, info.life.incarnation);
        let grant =
            self.member.service().hold_object(index, incarnation).map_err(|e| errno_at_opening(&e))?;
        let region = self.member.region();
        let release = |e| {
            self.member.service().release_object(index, incarnation);
            e
        };
        let section = region
            .shared()
            .and_then(|s| s.part("object", grant.offset, grant.len))
            .map_err(|_| release(Errno::IO))?;
        let entry = Entry::of(region, info).map_err(|_| release(Errno::IO))?;
        Ok(Used {
            member: Arc::clone(&self.member),
            index,
            incarnation,
            entry,
            section,
            id: id_of(info),
            is_kept: Flag::default(),
            is_let_go: Flag::default(),
        })
    }

    /// `IPC_SET`: changes owner and mode, and a queue's size.
    ///
    /// # Errors
    /// `EPERM`, `EINVAL`.
    pub fn change(
        &self,
        info: &ObjectInfo,
        caller: &Caller,
        owner: (u32, u32),
        mode: u32,
        size: u64,
    ) -> Result<()> {
        caller.check_rule(info)?;
        // No user and no group has this number (chown(2)).
        if owner.0 == u32::MAX || owner.1 == u32::MAX {
            return Err(Errno::INVAL);
        }
        let change = Change { owner, mode, size, now: now() };
        let ruler = self.ruler();
        let service = ruler.service();
        service.change_object(info.index, info.life.incarnation, &change).map_err(|e| errno(&e))
    }

    /// `IPC_RMID`. The caller wakes those that wait.
    ///
    /// # Errors
    /// `EPERM`, `EINVAL`.
    pub fn remove(&self, info: &ObjectInfo, caller: &Caller) -> Result<()> {
        caller.check_rule(info)?;
        lock(&self.used).remove(&id_of(info));
        let (ruler, region) = (self.ruler(), self.member.region());
        let service = ruler.service();
        if sysv::is(info, Kind::SysvShm)
            && !self.finds_all
            && let Ok(page) = segment::page(region, info.offset)
        {
            let party = self.member.party();
            if segment::enter(&page, party) {
                // The page stays this segment's meanwhile.
                let is_there = Entry::of(region, info).is_ok_and(|entry| entry.is_there());
                let is_first = is_there && segment::remove(&page);
                segment::entered(&page, party);
                if is_first {
                    step(Step::Removed);
                    // All see it at once, and the service is told.
                    service.removed_object(info.index, info.life.incarnation);
                    return Ok(());
                }
                // Another process was faster. As long as it is attached it may be removed again.
                return self.look(Kind::SysvShm, id_of(info)).map(drop);
            }
        }
        service.remove_object(info.index, info.life.incarnation).map_err(|e| errno(&e))
    }

    /// Limits an object to processes of the system where it was made and of those with these names; or, without a list, gives it back
    /// to all. The service says who may.
    ///
    /// # Errors
    /// Those of the service.
    pub fn share(&self, info: &ObjectInfo, with: Option<&[String]>) -> isthmus_region::Result<()> {
        let ask = |sharing: &Sharing| {
            self.ruler().service().share_object(info.index, info.life.incarnation, sharing)
        };
        steps(with).iter().try_for_each(ask)
    }

    /// Has the services notice all deaths that have happened by now in this system.
    pub fn settle(&self) {
        let _ = self.member.service().settle();
    }

    /// All objects of a kind that there are.
    pub fn all(&self, kind: Kind) -> Vec<ObjectInfo> {
        objects::objects(self.member.region()).into_iter().filter(|info| sysv::is(info, kind)).collect()
    }
}

/// What makes a list of names the one that counts. A system that was on the list before and is on it afterwards is on it at each
/// moment between: its processes would else get `EACCES` for an object that is theirs to use.
fn steps(with: Option<&[String]>) -> Vec<Sharing> {
    match with {
        None => vec![Sharing::All],
        Some([]) => vec![Sharing::Own],
        Some([first, others @ ..]) => {
            let next = others.iter().cloned().map(Sharing::Next);
            // Mostly nothing new: another process may have begun a list meanwhile, and the service knows one at a time.
            let also = others.iter().cloned().map(Sharing::Also);
            next.chain([Sharing::With(first.clone())]).chain(also).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_name_is_missing_between_two_lists() {
        use super::{Sharing, steps};
        let [one, two] = ["one", "two"].map(str::to_owned);
        let expected = [Sharing::Next(two.clone()), Sharing::With(one.clone()), Sharing::Also(two.clone())];
        assert_eq!(steps(Some(&[one.clone(), two])), expected);
        assert_eq!(steps(Some(std::slice::from_ref(&one))), [Sharing::With(one)]);
    }

    use isthmus_region::life::{Life, State};

    use super::*;

    #[test]
    fn ids_are_positive_and_tell_objects_of_one_place_apart() {
        let info = |index, incarnation| ObjectInfo {
            index,
            life: Life { incarnation, state: State::Active },
            offset: 0,
            len: 0,
            kind: Kind::SysvShm as u32,
            mode: 0,
            owner: (0, 0),
            creator: None,
            flags: 0,
            opens: 0,
            params: [0; 4],
            allowed: [0; 4],
            name: String::new(),
        };
        let ids = [(0, 1), (0, 2), (65535, 1), (65535, 16383)].map(|(i, life)| id_of(&info(i, life)));
        for (i, id) in ids.iter().enumerate() {
            assert!(is_ours(*id) && *id > 0);
            assert!(!ids[..i].contains(id));
        }
        assert!(!is_ours(0) && !is_ours(-1) && !is_ours(32768));
    }
}
