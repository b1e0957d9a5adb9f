//! Shared memory: shmget(2), shmop(2), shmctl(2). Mapping a segment is the face's; this says where it is, and tells the service who has it
//! attached, once for each attachment.
//!
//! # Layout
//! The segment's pages, and one page before them, of which the first words are times and process numbers ([`Stat`]).

pub mod fault;

use isthmus_region::objects::sysv::segment::{self, ATTACHED, DETACHED, LAST};
use isthmus_region::objects::sysv::{self, Entry};
use isthmus_region::objects::{Kind, ObjectInfo};
use rustix::io::Errno;

use crate::ipc::{self, Ipc, New};
use crate::shm::fault::{Step, step};
use crate::{Caller, Result};

/// Bytes of a page, and of what lies before a segment.
pub const PAGE: u64 = segment::BYTES;
/// `SHM_RDONLY`.
pub const RDONLY: i32 = 0o10000;
/// `SHM_EXEC`.
pub const EXEC: i32 = 0o100_000;

/// A segment that this process has attached once: where its pages are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attached {
    /// Its place in the table.
    pub index: u32,
    /// Which of the objects that were there.
    pub incarnation: u64,
    /// File of the region.
    pub file: u32,
    /// Offset of the segment's first page there.
    pub offset: u64,
    /// Offset of its page of times in the shared section.
    pub head: u64,
    /// Bytes, as many as were asked for.
    pub size: u64,
}

impl Attached {
    /// Bytes of its pages.
    pub fn mapped(&self) -> u64 {
        self.size.next_multiple_of(PAGE)
    }
}

/// What shmctl(2) tells of a segment.
#[derive(Debug, Clone)]
pub struct Stat {
    /// The table's entry.
    pub info: ObjectInfo,
    /// Bytes.
    pub size: u64,
    /// Time of the last attach, and of the last detach, in seconds.
    pub attached: u64,
    /// See there.
    pub detached: u64,
    /// Peer and process number of the last one that did either.
    pub last: (u32, u32),
    /// How often it is attached.
    pub count: u64,
    /// Whether it is to be destroyed.
    pub is_removed: bool,
}

impl Ipc {
    /// shmget(2).
    ///
    /// # Errors
    /// As [`Ipc::get`]; `EINVAL` for a size that cannot be, or is more than an existing segment has.
    pub fn shmget(&self, key: i32, size: u64, flags: i32, caller: &Caller) -> Result<i32> {
        let fits = |info: &ObjectInfo| {
            if size > info.params[sysv::SIZE] { Err(Errno::INVAL) } else { Ok(()) }
        };
        let new = || {
            let pages = size.checked_next_multiple_of(PAGE).and_then(|bytes| bytes.checked_add(PAGE));
            let most = self.member().region().shape().shared_bytes;
            pages.filter(|_| (1..=most).contains(&size)).map(|len| New { len, size }).ok_or(Errno::INVAL)
        };
        self.get(Kind::SysvShm, key, flags, caller, fits, new).map(|(info, _)| ipc::id_of(&info))
    }

    /// shmat(2), but for the mapping: from now on it is attached once more.
    ///
    /// # Errors
    /// `EACCES`; `EINVAL`; `ENOSYS` where the service does not answer.
    pub fn attach(&self, id: i32, flags: i32, caller: &Caller) -> Result<Attached> {
        let info = self.look(Kind::SysvShm, id)?;
        let to_execute = if flags & EXEC == 0 { 0 } else { 0o100 };
        caller.check(&info, if flags & RDONLY == 0 { 0o600 } else { 0o400 } | to_execute)?;
        let (region, service) = (self.member().region(), self.member().service());
        let shape = region.shape();
        let attached = Attached {
            index: info.index,
            incarnation: info.life.incarnation,
            file: shape.shared_file,
            offset: shape.shared.saturating_add(info.offset).saturating_add(PAGE),
            head: info.offset,
            size: info.params[sysv::SIZE],
        };
        // The table is the service's, but its memory may be everybody's.
        let is_sound = attached.size > 0
            && attached
                .size
                .checked_next_multiple_of(PAGE)
                .is_some_and(|bytes| bytes <= info.len.saturating_sub(PAGE))
            && info.offset.checked_add(info.len).is_some_and(|end| end <= shape.shared_bytes)
            && info.offset.is_multiple_of(PAGE);
        let page = segment::page(region, info.offset).map_err(|_| Errno::INVAL)?;
        if !is_sound {
            return Err(Errno::INVAL);
        }
        let party = self.member().party();
        if segment::enter(&page, party) {
            step(Step::Entered);
            // The service frees the memory only if it finds nobody entering after it has published the end.
            if let Ok(entry) = Entry::of(region, &info)
                && entry.is_there()
            {
                // It may have been limited since it was looked at. The words of an entry do not change at once, so a whole look decides.
                if !entry.is_shared_with(self.member().peer()) && self.look(Kind::SysvShm, id).is_err() {
                    segment::entered(&page, party);
                    return Err(Errno::ACCESS);
                }
                if !service.enter_object(info.index, info.life.incarnation) {
                    segment::entered(&page, party);
                    return Err(Errno::NOSYS);
                }
            } else {
                segment::entered(&page, party);
                return Err(Errno::INVAL);
            }
        } else {
            let held = service.hold_object(info.index, info.life.incarnation);
            held.map_err(|e| match ipc::errno_at_opening(&e) {
                errno @ (Errno::ACCESS | Errno::INVAL) => errno,
                // As where the service cannot be told.
                _ => Errno::NOSYS,
            })?;
        }
        step(Step::Told);
        self.note(&attached, ATTACHED, caller);
        step(Step::Attached);
        Ok(attached)
    }

    /// A forked child has what its parent had attached. Gives whether the segment is still there.
    pub fn inherit(&self, attached: &Attached) -> bool {
        let service = self.member().service();
        service.hold_object(attached.index, attached.incarnation).is_ok()
    }

    /// shmdt(2), after the mapping is gone.
    pub fn detach(&self, attached: &Attached, caller: &Caller) {
        self.note(attached, DETACHED, caller);
        step(Step::Detaching);
        self.member().service().release_object(attached.index, attached.incarnation);
        step(Step::Detached);
    }

    /// Writes the time and who it was.
    fn note(&self, attached: &Attached, what: u64, caller: &Caller) {
        let Ok(head) = segment::page(self.member().region(), attached.head) else { return };
        if let (Ok(time), Ok(last)) = (head.word("times", what), head.word("times", LAST)) {
            time.set(ipc::now());
            last.set(sysv::both(caller.pid, self.member().peer()));
        }
    }

    /// `IPC_STAT` of shmctl(2).
    ///
    /// # Errors
    /// `EINVAL`; `EACCES`.
    pub fn shmstat(&self, id: i32, caller: &Caller, any: bool) -> Result<Stat> {
        self.settle();
        let info = self.look(Kind::SysvShm, id)?;
        if !any {
            caller.check(&info, 0o444)?;
        }
        let head = segment::page(self.member().region(), info.offset).map_err(|_| Errno::INVAL)?;
        let word = |offset| head.word("times", offset).map_or(0, |w| w.get());
        let last = word(LAST);
        Ok(Stat {
            size: info.params[sysv::SIZE],
            attached: word(ATTACHED),
            detached: word(DETACHED),
            #[allow(clippy::cast_possible_truncation)] // the two halves
            last: ((last >> 32) as u32, last as u32),
            count: info.opens,
            is_removed: sysv::is_removed(self.member().region(), &info),
            info,
        })
    }
}
