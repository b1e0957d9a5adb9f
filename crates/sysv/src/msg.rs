//! Message queues: msgget(2), msgop(2), msgctl(2).
//!
//! - [`queue`]: a queue in its memory. `pool`: the blocks that messages are made of; `space`: which of them are free.
//!   `repair`: what is done after a death. [`fault`]: what tests do to it.
//!
//! Differences to Linux: `MSG_COPY` is `ENOSYS`. A queue's memory is as large as its limit asked for when it was made. If
//! `IPC_SET` sets a higher one, the queue is full where its memory is: its default holds any 16384 bytes, in up to 16384
//! messages, and up to about 550 KB of long ones. A message that was to be received into memory that is none stays in the
//! queue. The calls are not for handlers of signals: one that interrupts a call on the same queue fails with `EDEADLK`.

pub mod fault;
mod pool;
pub mod queue;
mod repair;
mod space;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use isthmus_region::local::LocalBuf;
use isthmus_region::objects::{Kind, ObjectInfo, sysv};
use isthmus_region::shared_by_threads::Count;
use isthmus_region::signals::{self, Blocked, Guarded};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

use self::queue::{Call, Numbers, Queue, Room, Selection};
use crate::caller::{ALTER, READ};
use crate::ipc::{self, Ipc, NOWAIT, New};
use crate::waiting::Sleep;
use crate::{Caller, Result, Used};

/// `MSG_NOERROR`.
pub const NOERROR: i32 = 0o10000;
/// `MSG_EXCEPT`.
pub const EXCEPT: i32 = 0o20000;
/// `MSG_COPY`.
pub const COPY: i32 = 0o40000;

/// What queues and messages may be at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a message (`MSGMAX`).
    pub message: u32,
    /// Bytes of a queue that is made, and the most that a user may set (`MSGMNB`).
    pub queue: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { message: 8192, queue: 16384 }
    }
}

/// Who makes a call that is in a hurry.
pub trait Who {
    /// Changes whenever user or groups may have.
    fn version(&self) -> u64;

    /// User and groups.
    fn caller(&self) -> Arc<Caller>;
}

/// Whether the process may have queues of any size (`CAP_SYS_RESOURCE`).
fn may_exceed(caller: &Caller) -> bool {
    let may = |sets: CapabilitySets| sets.effective.contains(CapabilitySet::SYS_RESOURCE);
    rustix::thread::capabilities(None).map_or(caller.uid == 0, may)
}

/// What msgctl(2) tells of a queue.
#[derive(Debug, Clone)]
pub struct Stat {
    /// The table's entry.
    pub info: ObjectInfo,
    /// Most bytes of it.
    pub most: u64,
    /// Its numbers.
    pub numbers: Numbers,
}

/// The queues that a process has open, by id.
#[derive(Debug, Default)]
pub(crate) struct Queues(Mutex<HashMap<i32, Arc<Open>>>);

impl Queues {
    fn lock(&self) -> Guarded<'_, HashMap<i32, Arc<Open>>> {
        signals::lock(&self.0)
    }

    /// Takes out what was removed.
    pub(crate) fn take_removed(&self) -> Vec<(i32, Arc<Open>)> {
        self.lock().extract_if(|_, queue| queue.is_removed()).collect()
    }
}

/// Rights with which a call was let in, so that the next one need not look them up. Written by the owner of one of the queue's
/// locks.
#[derive(Debug, Default)]
struct Known {
    rights: [Count; 2],
    /// One more than the caller's version.
    version: Count,
}

impl Known {
    #[inline]
    fn is(&self, rights: [u64; 2], version: u64) -> bool {
        let [a, b] = &self.rights;
        self.version.peek() == version.wrapping_add(1) && [a.peek(), b.peek()] == rights
    }

    fn set(&self, rights: [u64; 2], version: u64) {
        self.version.set(0);
        self.rights.iter().zip(rights).for_each(|(known, word)| known.set(word));
        self.version.set(version.wrapping_add(1));
    }
}

/// A queue that this process has open.
#[derive(Debug)]
pub struct Open {
    used: Arc<Used>,
    queue: Queue,
    may_send: Known,
    may_receive: Known,
}

impl Open {
    /// Whether it was removed.
    #[inline]
    pub fn is_removed(&self) -> bool {
        self.used.is_removed()
    }

    /// Whether the caller may do it; gives the most bytes that the queue may hold.
    #[inline]
    fn admit(&self, known: &Known, who: &impl Who, wanted: u32) -> Result<u64> {
        if self.used.is_removed() {
            return Err(Errno::IDRM);
        }
        if !known.is(self.used.rights(), who.version()) {
            self.look_up(known, who, wanted)?;
        }
        Ok(self.used.size())
    }

    #[cold]
    fn look_up(&self, known: &Known, who: &impl Who, wanted: u32) -> Result<()> {
        // What is read of the entry is allocated.
        let _blocked = Blocked::new();
        let version = who.version();
        let info = self.used.check(&who.caller(), wanted)?;
        known.set(sysv::rights(&info, self.used.peer()), version);
        Ok(())
    }

    /// msgsnd(2).
    ///
    /// # Errors
    /// `EACCES`, `EAGAIN`, `EIDRM`, `EINTR`, `EINVAL`; `EIO`, `EDEADLK` where it cannot be used.
    #[inline]
    pub fn send(
        &self,
        kind: i64,
        text: LocalBuf,
        flags: i32,
        who: &impl Who,
        sleep: &mut dyn Sleep,
    ) -> Result<()> {
        let admit = || self.admit(&self.may_send, who, ALTER);
        self.queue.send(kind, text, Call { admit: &admit, no_wait: flags & NOWAIT != 0, sleep })
    }

    /// msgrcv(2), with a type as that call has it, for up to `size` bytes. `place` gives the memory for as many as the message
    /// has; if there is none, the message stays. Gives the message's type, and how much of its text was copied.
    ///
    /// # Errors
    /// `E2BIG`, `EACCES`, `EIDRM`, `EINTR`, `ENOMSG`; those of `place`; `EIO`, `EDEADLK` where it cannot be used.
    #[inline]
    pub fn receive(
        &self,
        kind: i64,
        size: usize,
        place: &dyn Fn(usize) -> Result<LocalBuf>,
        flags: i32,
        who: &impl Who,
        sleep: &mut dyn Sleep,
    ) -> Result<(i64, usize)> {
        let selection = match kind {
            0 => Selection::Any,
            // The lowest number has no counterpart.
            ..0 => Selection::UpTo(kind.checked_neg().unwrap_or(i64::MAX)),
            _ if flags & EXCEPT != 0 => Selection::Except(kind),
            _ => Selection::Type(kind),
        };
        let admit = || self.admit(&self.may_receive, who, READ);
        let call = Call { admit: &admit, no_wait: flags & NOWAIT != 0, sleep };
        self.queue.receive(selection, &Room { size, cut: flags & NOERROR != 0, place }, call)
    }
}

/// Whether msgrcv(2) may have these flags.
///
/// # Errors
/// `EINVAL`; `ENOSYS`.
pub fn check_flags(flags: i32) -> Result<()> {
    match flags & COPY != 0 {
        false => Ok(()),
        true if flags & EXCEPT != 0 || flags & NOWAIT == 0 => Err(Errno::INVAL),
        true => Err(Errno::NOSYS),
    }
}

impl Ipc {
    /// msgget(2).
    ///
    /// # Errors
    /// As [`Ipc::get`].
    pub fn msgget(&self, key: i32, flags: i32, caller: &Caller, limits: &Limits) -> Result<i32> {
        let new = || {
            let most = limits.queue.into();
            Ok(New { len: queue::bytes(most, limits.message), size: most })
        };
        self.get(Kind::SysvMsg, key, flags, caller, |_| Ok(()), new).map(|(info, _)| ipc::id_of(&info))
    }

    /// The queue with an id, opened for use if it is not open yet.
    ///
    /// # Errors
    /// `EINVAL`, `ENOMEM`, `EIO`.
    pub fn queue(&self, id: i32) -> Result<Arc<Open>> {
        let known = self.queues.lock().get(&id).cloned();
        if let Some(open) = known {
            if !open.is_removed() {
                return Ok(open);
            }
            self.queues.lock().remove(&id);
        }
        let used = self.open(Kind::SysvMsg, id)?;
        let me = sysv::both(Caller::current().pid, self.member().peer());
        let queue = Queue::open(self.member(), used.section(), me)?;
        let open = Open { used, queue, may_send: Known::default(), may_receive: Known::default() };
        // Two threads may have opened it; the first one's stays.
        Ok(Arc::clone(self.queues.lock().entry(id).or_insert(Arc::new(open))))
    }

    /// `IPC_STAT` of msgctl(2), and with `any` what needs no permission.
    ///
    /// # Errors
    /// `EINVAL`; `EACCES`.
    pub fn msgstat(&self, id: i32, caller: &Caller, any: bool) -> Result<Stat> {
        let info = self.look_alive(Kind::SysvMsg, id)?;
        if !any {
            caller.check(&info, READ)?;
        }
        let numbers = self.queue(id)?.queue.numbers();
        Ok(Stat { most: info.params[sysv::SIZE], numbers, info })
    }

    /// `IPC_SET` of msgctl(2).
    ///
    /// # Errors
    /// `EINVAL`; `EPERM`, also for more bytes than `limits` have, without `CAP_SYS_RESOURCE`.
    pub fn msgset(
        &self,
        id: i32,
        caller: &Caller,
        owner: (u32, u32),
        mode: u32,
        most: u64,
        limits: &Limits,
    ) -> Result<()> {
        let info = self.look_alive(Kind::SysvMsg, id)?;
        caller.check_rule(&info)?;
        if most > limits.queue.into() && !may_exceed(caller) {
            return Err(Errno::PERM);
        }
        // No user and no group has this number.
        if owner.0 == u32::MAX || owner.1 == u32::MAX {
            return Err(Errno::INVAL);
        }
        self.change(&info, caller, owner, mode, most)?;
        // Those that wait may have room now, or no permission any more.
        if let Ok(open) = self.queue(id) {
            open.queue.wake();
        }
        Ok(())
    }

    /// `IPC_RMID` of msgctl(2).
    ///
    /// # Errors
    /// `EINVAL`; `EPERM`.
    pub fn msgremove(&self, id: i32, caller: &Caller) -> Result<()> {
        let info = self.look_alive(Kind::SysvMsg, id)?;
        caller.check_rule(&info)?;
        let open = self.queue(id);
        self.remove(&info, caller)?;
        self.queues.lock().remove(&id);
        if let Ok(open) = open {
            open.queue.wake();
        }
        Ok(())
    }
}
