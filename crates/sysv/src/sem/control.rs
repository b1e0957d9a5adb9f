//! semctl(2).

use std::sync::Arc;

use isthmus_lockfree::mcas::{self, Change, Memory};
use isthmus_region::objects::{Kind, ObjectInfo, UNLINKED, sysv};
use rustix::io::Errno;

use super::space::{SMALL_ENTRIES, Space};
use super::waiters::{self, Awaited};
use super::{MOST, Set, damage, words};
use crate::ipc::Ipc;
use crate::{Caller, Result};

/// What semctl(2) tells of a set.
#[derive(Debug, Clone)]
pub struct Stat {
    /// The table's entry.
    pub info: ObjectInfo,
    /// Time of the last operation, in seconds, and of the last change by semctl.
    pub used: u64,
    /// See there.
    pub changed: u64,
    /// Number of semaphores.
    pub count: u32,
}

impl Set {
    fn word(&self, num: u32) -> Result<u64> {
        if num >= self.len() {
            return Err(Errno::INVAL);
        }
        self.settle()?;
        mcas::read(&self.space, self.space.layout.semaphore(num)).map_err(damage)
    }

    /// `GETVAL`.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn value(&self, num: u32) -> Result<i32> {
        self.word(num).map(words::value)
    }

    /// `GETPID`: peer and number of the process that operated on it last; both 0 if none has.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn last(&self, num: u32) -> Result<(u32, u32)> {
        self.word(num).map(|word| words::peer_and_pid(words::who_of(word)))
    }

    /// `GETNCNT` and `GETZCNT`.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn waiting(&self, num: u32, awaited: Awaited) -> Result<u32> {
        if num >= self.len() {
            return Err(Errno::INVAL);
        }
        let _ = self.member.service().settle();
        waiters::count(&self.space, &self.member, num, awaited)
    }

    /// `SETVAL`. Clears all processes' undo adjustments of that semaphore.
    ///
    /// # Errors
    /// `EINVAL`, `ERANGE`.
    pub fn set_value(&self, num: u32, value: i32) -> Result<()> {
        if !(0..=MOST).contains(&value) {
            return Err(Errno::RANGE);
        }
        if num >= self.len() {
            return Err(Errno::INVAL);
        }
        self.set_from(num, &[u16::try_from(value).unwrap_or(0)])
    }

    /// `SETALL`, of as many values as there are semaphores.
    ///
    /// # Errors
    /// `EINVAL`, `ERANGE`.
    pub fn set_all(&self, values: &[u16]) -> Result<()> {
        if values.iter().any(|value| i32::from(*value) > MOST) {
            return Err(Errno::RANGE);
        }
        if values.len() != self.len() as usize {
            return Err(Errno::INVAL);
        }
        self.set_from(0, values)
    }

    /// Sets semaphores from `first` on.
    fn set_from(&self, first: u32, values: &[u16]) -> Result<()> {
        let layout = &self.space.layout;
        let numbers = first..first + u32::try_from(values.len()).unwrap_or(0);
        let adjusted = |cell| words::adjustment(cell) != 0 && numbers.contains(&words::semaphore(cell));
        let read = |index| mcas::read(&self.space, layout.cell(index)).map_err(damage);
        let mut before = vec![0; values.len()];
        // One more try with a wide slot, if there are more adjustments than it looked like.
        let mut room = values.len();
        loop {
            for index in 0..self.space.high() {
                room += usize::from(adjusted(read(index)?));
            }
            let mut change = self.begin(room)?;
            for (num, before) in numbers.clone().zip(&mut before) {
                *before = change.take(layout.semaphore(num)).map_err(damage)?;
            }
            // These adjustments change no more.
            let mut next = values.len() as u64;
            let mut is_full = false;
            for index in 0..self.space.high() {
                let cell = read(index)?;
                if adjusted(cell) {
                    is_full = room as u64 <= SMALL_ENTRIES && next == SMALL_ENTRIES;
                    if is_full {
                        break;
                    }
                    let cell = change.take(layout.cell(index)).map_err(damage)?;
                    change.set(next, words::adjusted(cell, 0));
                    next += 1;
                }
            }
            if is_full {
                room = usize::try_from(SMALL_ENTRIES).unwrap_or(0) + 1;
                continue;
            }
            let after = |before, value: u16| words::changed(before, value.into(), self.who);
            for ((before, value), index) in before.iter().zip(values).zip(0..) {
                change.set(index, after(*before, *value));
            }
            if change.commit() {
                self.space.changed()?.set(super::seconds());
                for ((before, value), num) in before.iter().zip(values).zip(numbers) {
                    self.ring_after(num, *before, after(*before, *value))?;
                }
                return Ok(());
            }
            room = values.len();
        }
    }

    /// `GETALL`: all values at one moment.
    ///
    /// # Errors
    /// `EIO` for a damaged set.
    pub fn all(&self) -> Result<Vec<u16>> {
        self.settle()?;
        let count = self.len();
        if count == 1 {
            let word = mcas::read(&self.space, self.space.layout.semaphore(0)).map_err(damage)?;
            return Ok(vec![u16::try_from(words::value(word)).unwrap_or(0)]);
        }
        loop {
            let mut change: Change<'_, Space> = self.begin(count as usize)?;
            let mut values = Vec::with_capacity(count as usize);
            for num in 0..count {
                let word = change.take(self.space.layout.semaphore(num)).map_err(damage)?;
                values.push(u16::try_from(words::value(word)).unwrap_or(0));
            }
            if !change.is_called_off() {
                return Ok(values);
            }
        }
    }

    /// Wakes all that wait, since the set was removed.
    fn wake_all(&self) -> Result<()> {
        for num in 0..self.len() {
            let place = self.space.layout.semaphore(num);
            let word = self.space.word(place).ok_or(Errno::IO)?;
            loop {
                let seen = mcas::read(&self.space, place).map_err(damage)?;
                let after = words::stirred(seen);
                if word.replace(seen, after).is_ok() {
                    self.ring_after(num, seen, after)?;
                    break;
                }
            }
        }
        Ok(())
    }
}

impl Ipc {
    /// `IPC_STAT`, `SEM_STAT`, and with `any` `SEM_STAT_ANY`.
    ///
    /// # Errors
    /// `EINVAL`; `EACCES`.
    pub fn semstat(&self, id: i32, caller: &Caller, any: bool) -> Result<Stat> {
        let info = self.look_alive(Kind::SysvSem, id)?;
        if !any {
            caller.check(&info, 0o444)?;
        }
        let set = self.set(id, caller.pid)?;
        set.settle()?;
        let used = set.space.used()?.get();
        let changed = set.space.changed()?.get().max(info.params[sysv::CHANGED]);
        Ok(Stat { used, changed, count: set.len(), info })
    }

    /// `IPC_RMID`.
    ///
    /// # Errors
    /// `EPERM`, `EINVAL`.
    pub fn semrm(&self, id: i32, caller: &Caller) -> Result<()> {
        let info = self.look_alive(Kind::SysvSem, id)?;
        caller.check_rule(&info)?;
        // Held, so that its memory is its own until all are woken. One that cannot be opened can be removed all the same.
        let set: Option<Arc<Set>> = self.set(id, caller.pid).ok();
        self.remove(&info, caller)?;
        self.sets.forget(id);
        if let Some(set) = set {
            let _ = set.wake_all();
        }
        // Threads that keep it may not come here again.
        self.forget_removed();
        Ok(())
    }

    /// `IPC_SET`.
    ///
    /// # Errors
    /// `EPERM`, `EINVAL`.
    pub fn semset(&self, id: i32, caller: &Caller, owner: (u32, u32), mode: u32) -> Result<()> {
        let info = self.look_alive(Kind::SysvSem, id)?;
        self.change(&info, caller, owner, mode, info.params[sysv::SIZE])
    }

    /// All sets that are not removed, and the number of their semaphores.
    pub fn semsets(&self) -> (Vec<ObjectInfo>, u64) {
        let mut all = self.all(Kind::SysvSem);
        all.retain(|info| info.flags & UNLINKED == 0);
        let count = all.iter().map(|info| info.params[sysv::SIZE].min(super::MOST_OF_SET.into())).sum();
        (all, count)
    }
}
