//! Objects of System V IPC: they stay until they are removed, and are known by their place. See svipc(7).

use isthmus_attach::protocol::{Code, Reply};
use isthmus_attach::server::Asker;
use isthmus_region::membership::Region;
use isthmus_region::objects::sysv::{self, CHANGED, CREATOR, Change, KEY, SIZE, segment};
use isthmus_region::objects::{self, Kind, NewObject, ObjectInfo, UNLINKED};
use isthmus_region::party::Party;

use super::{Answered, Refusal, Registry, grant};

/// A new object, whose creator and owner is this user.
pub(super) fn made(mut info: ObjectInfo, user: (u32, u32)) -> ObjectInfo {
    info.params[CREATOR] = sysv::both(user.0, user.1);
    info
}

/// An object that has no name any more has no key.
pub(super) fn take_key(info: &mut ObjectInfo) {
    info.params[KEY] &= !u64::from(u32::MAX);
}

/// Whether a process is about to attach a segment whose end is published.
pub(super) fn is_entered(region: &Region, info: &ObjectInfo, may_live: impl FnMut(Party) -> bool) -> bool {
    let page = sysv::is(info, Kind::SysvShm).then(|| segment::page(region, info.offset).ok()).flatten();
    page.is_some_and(|page| segment::is_entered(&page, may_live))
}

/// A segment that bears its removal is nameless, also if who removed it has died before it could say so.
pub(super) fn note_removal(region: &Region, info: &mut ObjectInfo) {
    if info.flags & UNLINKED == 0 && sysv::is(info, Kind::SysvShm) && sysv::is_removed(region, info) {
        info.flags |= UNLINKED;
        take_key(info);
        let _ = objects::publish(region, info);
    }
}

/// A process is dead, and attaches nothing any more.
pub(super) fn left(region: &Region, info: &ObjectInfo, dead: Party) {
    if sysv::is(info, Kind::SysvShm)
        && let Ok(page) = segment::page(region, info.offset)
    {
        segment::left(&page, dead);
    }
}

/// Applies what a dead process owes to the semaphores of a set; gives whether there was anything.
pub(super) fn undo(region: &Region, info: &ObjectInfo, dead: Party) -> bool {
    if !sysv::is(info, Kind::SysvSem) || info.flags & UNLINKED != 0 {
        return false;
    }
    let section = objects::section(region, info);
    // A set that is damaged is its users' affair.
    section.is_ok_and(|section| {
        isthmus_sysv::sem::apply_undo(&section, info.params[SIZE], dead).unwrap_or(false)
    })
}

impl Registry {
    /// Takes the name from an object that bears its removal, of which the word is still on its way.
    pub(super) fn take_removed_name(&mut self, new: &NewObject) {
        if new.kind == Kind::SysvShm
            && let Some(at) = self.find(new.kind, &new.name)
        {
            if let Some(object) = self.entries[at].object.as_mut() {
                note_removal(&self.region, &mut object.info);
            }
            self.end_if_over(at);
        }
    }

    /// As `hold`, for a process that has said so in the segment.
    pub(super) fn enter(&mut self, asker: Asker, index: u32, incarnation: u64) -> Answered {
        let at = self.sysv(index, incarnation)?;
        self.may_enter(asker, at)?;
        let reply = self.take(asker, at)?;
        if let Some(object) = self.entries[at].object.as_ref()
            && sysv::is(&object.info, Kind::SysvShm)
            && let Ok(page) = segment::page(&self.region, object.info.offset)
        {
            segment::entered(&page, asker.party);
        }
        Ok(reply)
    }

    /// The place of an object of System V IPC.
    pub(super) fn sysv(&self, index: u32, incarnation: u64) -> std::result::Result<usize, Refusal> {
        let at = usize::try_from(index).unwrap_or(usize::MAX);
        let object = self.entries.get(at).and_then(|e| e.object.as_ref());
        let is_it = object.is_some_and(|o| {
            o.info.life.incarnation == incarnation && Kind::of(o.info.kind).is_some_and(Kind::is_sysv)
        });
        is_it.then_some(at).ok_or_else(|| {
            Refusal(Code::NotFound, format!("there is no object of System V IPC at place {index}"))
        })
    }

    /// Opens an object. Whether its mode allows that is the process's to check, which knows all of its groups; all members map the
    /// whole region anyway.
    pub(super) fn hold(&mut self, asker: Asker, index: u32, incarnation: u64) -> Answered {
        let at = self.sysv(index, incarnation)?;
        self.may_meet(asker, at)?;
        self.take(asker, at)
    }

    fn take(&mut self, asker: Asker, at: usize) -> Answered {
        let Some(object) = self.entries[at].object.as_mut() else {
            return Err(Refusal(Code::NotFound, "it is gone".into()));
        };
        let count = object.holders.entry(asker.party).or_default();
        *count = count.saturating_add(1);
        object.count(&self.region);
        let reply = Reply::Object(grant(&object.info, false));
        self.publish(at);
        Ok(reply)
    }

    /// Whether a user may change or remove an object: its owner, who made it, and root.
    pub(super) fn may_rule(&self, asker: Asker, at: usize, what: &str) -> std::result::Result<(), Refusal> {
        let uid = asker.user.0;
        let Some(info) = self.entries[at].object.as_ref().map(|o| &o.info) else { return Ok(()) };
        if uid == 0 || uid == info.owner.0 || uid == sysv::creator(info).0 {
            return Ok(());
        }
        let text = format!(
            "'{}' belongs to user {} and was made by user {}; user {uid} may not {what} it",
            info.name,
            info.owner.0,
            sysv::creator(info).0
        );
        Err(Refusal(Code::Denied, text))
    }

    /// `IPC_SET`.
    pub(super) fn change(&mut self, asker: Asker, index: u32, incarnation: u64, change: &Change) -> Answered {
        let at = self.sysv(index, incarnation)?;
        self.may_meet(asker, at)?;
        self.may_rule(asker, at, "change")?;
        if let Some(object) = self.entries[at].object.as_mut() {
            let info = &mut object.info;
            info.owner = change.owner;
            info.mode = change.mode & 0o777;
            info.params[CHANGED] = change.now;
            if info.kind == Kind::SysvMsg as u32 {
                info.params[SIZE] = change.size;
            }
        }
        self.publish(at);
        Ok(Reply::Done)
    }

    /// `IPC_RMID`. The key is free at once.
    pub(super) fn remove(&mut self, asker: Asker, index: u32, incarnation: u64) -> Answered {
        let at = self.sysv(index, incarnation)?;
        self.may_meet_or_is_on_host(asker, at)?;
        self.may_rule(asker, at, "remove")?;
        // A segment may be removed as often as somebody asks while it is attached; a set or queue is gone at once.
        let is_gone = |o: &super::Object| o.info.flags & UNLINKED != 0 && !sysv::is(&o.info, Kind::SysvShm);
        if self.entries[at].object.as_ref().is_some_and(is_gone) {
            return Err(Refusal(Code::NotFound, "it is removed already".into()));
        }
        self.sweep_now_and_then();
        if let Some(object) = self.entries[at].object.as_mut() {
            object.info.flags |= UNLINKED;
            take_key(&mut object.info);
        }
        self.publish(at);
        self.end_if_over(at);
        Ok(Reply::Done)
    }
}
