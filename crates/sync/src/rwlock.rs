//! A lock for many readers or one writer. The death of either holds up no other.
//!
//! Readers are counted by process, each in a line of its own that the process has claimed, so reading in different
//! processes does not disturb each other, and the readers of a process that died are left out. The number of such lines is
//! a parameter: that many processes, or handles, use the lock at the same time.
//!
//! A writer that dies leaves its data suspect, unless it still waited for readers. If it is suspect, readers get
//! [`Error::OwnerDied`] and no lock; the next writer gets the lock, with [`WriteGuard::owner_died`], mends the data and
//! declares that with [`WriteGuard::mend`]. If it gives the lock back without, the lock is [`Error::NotRecoverable`].
//!
//! A writer keeps new readers out as soon as it waits for the old ones. So a thread that reads must not ask for the lock
//! again, not even for reading. A reader that finds a writer there four times in a row queues up with the writers.
//!
//! # Layout
//! ```text
//! line 0    the writers' lock, a gate (as a mutex)
//! line 1    number of lines · the process that claims or leaves one
//! line 2..  a line for each process, a gate: readers, two words of sleepers, the process
//! ```

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_lockfree::lock::{self, Changes, Found};
use isthmus_lockfree::readers;
use isthmus_lockfree::sync::Word;
use isthmus_region::gate::Gate;
use isthmus_region::mapping::{LineRef, Section};
use isthmus_region::member::Member;
use isthmus_region::waiting::nap;

use crate::error::{Error, Result};
use crate::raw::RawLock;
use crate::wait::{self, Ended, Wait, Waiting};

/// Most processes that use a lock at the same time.
pub const MOST_PROCESSES: u32 = 4096;

const LINE: u64 = 64;
const HEAD: u64 = LINE;
const LINES: u64 = 2 * LINE;

/// Words of the head.
const SHAPE: usize = 0;
const CLAIMER: usize = 1;
/// In a process's line: the process.
const PROCESS: u64 = 3 * 8;

/// How often a reader finds a writer before it queues up.
const PATIENCE: u32 = 4;
/// A nap of a process that finds another one claiming.
const MOMENT: Duration = Duration::from_micros(200);
/// How long a living process may take to claim, which takes no time: after that it was stopped, or the word is garbage.
const CLAIMS: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(10) };

/// Bytes of the section that a lock for this many processes takes.
pub fn bytes(processes: u32) -> u64 {
    LINES + u64::from(processes) * LINE
}

/// A reader-writer lock, as one process has opened it. Any thread may use it, several at once. Each handle takes one of
/// the lock's lines until it is dropped.
#[derive(Debug)]
pub struct RwLock {
    writer: RawLock,
    head: LineRef,
    section: Section,
    processes: u32,
    index: u32,
    own: Gate,
    all: Vec<Gate>,
}

impl RwLock {
    /// Opens the lock in `section`, which must be zeroed before it is opened for the first time. All open it with the same
    /// number of `processes`.
    ///
    /// # Errors
    /// [`Error::BadParameter`]; [`Error::Memory`] if the section is smaller than [`bytes`] says or misaligned;
    /// [`Error::Mismatch`]; [`Error::Full`] if as many handles are open as there may be, in processes that live;
    /// [`Error::TimedOut`] if another living process opens or closes it for ten seconds: it was stopped, or the lock was
    /// overwritten.
    pub fn open(member: &Arc<Member>, section: &Section, processes: u32) -> Result<Self> {
        if !(1..=MOST_PROCESSES).contains(&processes) {
            let (what, limits) = ("the number of processes", "there are 1 to 4096");
            return Err(Error::BadParameter { what, value: processes.into(), limits });
        }
        let what = "a reader-writer lock";
        let failed = Error::memory(what);
        let section = section.part(what, 0, bytes(processes)).map_err(&failed)?;
        let line = |index: u32| Gate::new(member, &section, LINES + u64::from(index) * LINE);
        let all = (0..processes).map(line).collect::<isthmus_region::Result<Vec<_>>>().map_err(&failed)?;
        let mut this = Self {
            writer: RawLock::new(what, member, &section, 0, u32::MAX, Changes::Later)?,
            head: section.line(what, HEAD).map_err(&failed)?,
            own: line(0).map_err(&failed)?,
            section,
            processes,
            index: 0,
            all,
        };
        match this.head.words[SHAPE].replace(0, u64::from(processes)) {
            Err(other) if other != u64::from(processes) => {
                // Nothing was claimed, and dropping `this` must not free another process's line.
                this.processes = 0;
                return Err(Error::Mismatch { what });
            }
            _ => {}
        }
        match this.while_claiming(|this| this.claim()) {
            Ok(Some(index)) => this.index = index,
            // Nothing was claimed, so dropping `this` must leave no line.
            other => {
                this.processes = 0;
                other?;
                return Err(Error::Full { what, places: processes.into() });
            }
        }
        this.own = this.all[this.index as usize].clone();
        Ok(this)
    }

    fn process(&self, index: u32) -> Result<&Word> {
        let at = LINES + u64::from(index) * LINE + PROCESS;
        self.section.word("reader", at).map_err(Error::memory("a reader-writer lock"))
    }

    /// Claims a line that is free, or that of a dead process.
    fn claim(&self) -> Result<Option<u32>> {
        let me = self.writer.member().party().word();
        for (index, gate) in (0..self.processes).zip(&self.all) {
            let process = self.process(index)?;
            let word = process.get();
            if word == 0 || !self.writer.is_alive(word) {
                // A writer that waits for the dead process's readers finds them dead, or none, or this process's.
                gate.word().set(0);
                process.set(me);
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Does `work` while no other process claims or leaves a line.
    fn while_claiming<T>(&self, work: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        let me = self.writer.member().party().word();
        let claimer = &self.head.words[CLAIMER];
        let mut waits_for: Option<(u64, Instant)> = None;
        while let Err(other) = lock::claim(claimer, me) {
            if !self.writer.is_alive(other) && lock::inherit(claimer, other, me) {
                break;
            }
            match waits_for {
                Some((same, since)) if same == other && since.elapsed() > CLAIMS => {
                    return Err(Error::TimedOut);
                }
                Some((same, _)) if same == other => {}
                _ => waits_for = Some((other, Instant::now())),
            }
            nap(MOMENT);
        }
        let done = work(self);
        lock::let_go(claimer, me);
        done
    }

    /// Takes the lock for reading, waiting as long as it takes.
    ///
    /// # Errors
    /// [`Error::OwnerDied`], [`Error::NotRecoverable`], [`Error::Deadlock`] if this thread writes.
    #[inline]
    pub fn read(&self) -> Result<ReadGuard<'_>> {
        self.read_until(None)
    }

    /// As [`RwLock::read`], waiting for `limit` at most.
    ///
    /// # Errors
    /// As [`RwLock::read`], and [`Error::TimedOut`].
    pub fn read_within(&self, limit: Duration) -> Result<ReadGuard<'_>> {
        self.read_until(wait::deadline(Some(limit)))
    }

    /// Takes the lock for reading, if no writer has it or waits for it.
    ///
    /// # Errors
    /// As [`RwLock::read`], and [`Error::WouldBlock`].
    pub fn try_read(&self) -> Result<ReadGuard<'_>> {
        match self.enter()? {
            true => Ok(self.read_guard()),
            false if self.writer.is_alive(self.writer.owner().get()) => Err(Error::WouldBlock),
            // The writer is dead, or has just left.
            false => self.read_until(Some(Instant::now())).map_err(|error| match error {
                Error::TimedOut | Error::Deadlock => Error::WouldBlock,
                other => other,
            }),
        }
    }

    #[inline]
    fn read_until(&self, deadline: Option<Instant>) -> Result<ReadGuard<'_>> {
        match self.enter()? {
            true => Ok(self.read_guard()),
            false => self.read_slowly(deadline),
        }
    }

    fn read_guard(&self) -> ReadGuard<'_> {
        ReadGuard { lock: self, _of_this_thread: PhantomData }
    }

    /// Counts this thread as a reader, unless there is a writer; returns whether it is counted (P12).
    #[inline]
    fn enter(&self) -> Result<bool> {
        readers::enter(self.own.word());
        if self.writer.owner().get() == 0 {
            match self.writer.found() {
                Found::Sound => return Ok(true),
                Found::Suspect => {
                    self.leave();
                    return Err(Error::OwnerDied);
                }
                Found::Lost => {
                    self.leave();
                    return Err(Error::NotRecoverable);
                }
            }
        }
        self.leave();
        Ok(false)
    }

    fn leave(&self) {
        readers::leave(self.own.word());
        self.own.ring(u32::MAX);
    }

    #[cold]
    fn read_slowly(&self, deadline: Option<Instant>) -> Result<ReadGuard<'_>> {
        if self.writer.is_mine() {
            return Err(Error::Deadlock);
        }
        let owner = self.writer.owner();
        for _ in 0..PATIENCE {
            let ready = || owner.peek() == 0;
            let check = || {
                let seen = owner.get();
                Ok(seen != 0 && !self.writer.is_alive(seen) && owner.get() == seen)
            };
            let gate = self.writer.gate();
            let deaths = gate.deaths();
            let sleep = |limit| match owner.peek() {
                0 => {}
                seen => gate.sleep(seen, &deaths, limit),
            };
            let wait = Wait { how: Waiting::Hybrid, learned: self.writer.learned(), deadline };
            match wait.until(ready, check, sleep)? {
                // It may have changed nothing, which the next owner finds.
                Ended::Stopped => break,
                Ended::TimedOut => return Err(Error::TimedOut),
                Ended::Ready if self.enter()? => return Ok(self.read_guard()),
                Ended::Ready => {}
            }
        }
        // Take the writers' lock and turn it into a reader's, without waiting for other readers.
        match self.writer.lock(deadline)? {
            Found::Sound => {
                readers::enter(self.own.word());
                self.writer.unlock();
                Ok(self.read_guard())
            }
            Found::Suspect => {
                self.writer.pass_on();
                Err(Error::OwnerDied)
            }
            Found::Lost => {
                self.writer.unlock();
                Err(Error::NotRecoverable)
            }
        }
    }

    /// Takes the lock for writing, waiting as long as it takes.
    ///
    /// # Errors
    /// [`Error::Deadlock`] if this thread writes already; [`Error::NotRecoverable`]; [`Error::Corrupt`].
    pub fn write(&self) -> Result<WriteGuard<'_>> {
        self.write_until(None)
    }

    /// As [`RwLock::write`], waiting for `limit` at most.
    ///
    /// # Errors
    /// As [`RwLock::write`], and [`Error::TimedOut`].
    pub fn write_within(&self, limit: Duration) -> Result<WriteGuard<'_>> {
        self.write_until(wait::deadline(Some(limit)))
    }

    /// Takes the lock for writing, if no writer and no reader has it.
    ///
    /// # Errors
    /// As [`RwLock::write`], and [`Error::WouldBlock`].
    pub fn try_write(&self) -> Result<WriteGuard<'_>> {
        let found = self.writer.try_lock()?;
        self.drain(found, Some(Instant::now())).map_err(|error| match error {
            Error::TimedOut => Error::WouldBlock,
            other => other,
        })
    }

    /// The writer's guard that this thread [kept](WriteGuard::keep).
    ///
    /// # Errors
    /// [`Error::NotOwner`].
    pub fn kept(&self) -> Result<WriteGuard<'_>> {
        if !self.writer.is_mine() {
            return Err(Error::NotOwner);
        }
        let owner_died = self.writer.found() == Found::Suspect;
        Ok(WriteGuard { lock: self, owner_died, _of_this_thread: PhantomData })
    }

    /// Gives back the lock whose guard this thread kept, for writing or for reading.
    ///
    /// # Errors
    /// [`Error::NotOwner`] if this thread does not write and no thread reads by this handle. The lock does not tell readers
    /// apart: the caller must know that it is this thread that reads.
    pub fn unlock(&self) -> Result<()> {
        if self.writer.is_mine() {
            self.writer.unlock();
        } else if readers::count(self.own.word()) == 0 {
            return Err(Error::NotOwner);
        } else {
            self.leave();
        }
        Ok(())
    }

    fn write_until(&self, deadline: Option<Instant>) -> Result<WriteGuard<'_>> {
        let found = self.writer.lock(deadline)?;
        self.drain(found, deadline)
    }

    /// With the writers' lock taken: waits until no living process reads (P12).
    fn drain(&self, found: Found, deadline: Option<Instant>) -> Result<WriteGuard<'_>> {
        if found == Found::Lost {
            self.writer.unlock();
            return Err(Error::NotRecoverable);
        }
        readers::bar();
        for (index, gate) in (0..self.processes).zip(&self.all) {
            if readers::count(gate.word()) == 0 {
                continue;
            }
            if let Err(error) = self.await_readers(index, gate, deadline) {
                // Nothing was changed, so the data is as sound as it was.
                self.writer.pass_on();
                return Err(error);
            }
        }
        self.writer.change();
        Ok(WriteGuard { lock: self, owner_died: found == Found::Suspect, _of_this_thread: PhantomData })
    }

    #[cold]
    fn await_readers(&self, index: u32, gate: &Gate, deadline: Option<Instant>) -> Result<()> {
        let process = self.process(index)?;
        let is_dead = || match process.get() {
            0 => true,
            word => !self.writer.is_alive(word) && process.get() == word,
        };
        let deaths = gate.deaths();
        if is_dead() {
            return Ok(());
        }
        let ready = || readers::count(gate.word()) == 0;
        let check = || match readers::count(gate.word()) {
            count if count > readers::MOST => {
                Err(Error::Corrupt { what: "a count of readers", value: count })
            }
            _ => Ok(is_dead()),
        };
        let sleep = |limit| match readers::count(gate.word()) {
            0 => {}
            seen => gate.sleep(seen, &deaths, limit),
        };
        let wait = Wait { how: Waiting::Hybrid, learned: self.writer.learned(), deadline };
        match wait.until(ready, check, sleep)? {
            Ended::Ready | Ended::Stopped => Ok(()),
            Ended::TimedOut => Err(Error::TimedOut),
        }
    }
}

impl Drop for RwLock {
    fn drop(&mut self) {
        if self.index < self.processes {
            // Guards borrow the handle, so no readers are left. The line may be another's, where this process counted as dead.
            let me = self.writer.member().party().word();
            let _ = self.while_claiming(|this| this.process(this.index).map(|word| lock::let_go(word, me)));
        }
    }
}

/// The lock, taken for reading. Dropping it gives it back; it stays with the thread that took it.
#[derive(Debug)]
#[must_use = "the lock is given back at once"]
pub struct ReadGuard<'a> {
    lock: &'a RwLock,
    _of_this_thread: PhantomData<*const ()>,
}

impl ReadGuard<'_> {
    /// Leaves the lock taken, until this thread calls [`RwLock::unlock`].
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for ReadGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lock.leave();
    }
}

/// The lock, taken for writing. Dropping it gives it back; it stays with the thread that took it.
#[derive(Debug)]
#[must_use = "the lock is given back at once"]
pub struct WriteGuard<'a> {
    lock: &'a RwLock,
    owner_died: bool,
    _of_this_thread: PhantomData<*const ()>,
}

impl WriteGuard<'_> {
    /// Whether a writer died and no later one has mended the data.
    pub fn owner_died(&self) -> bool {
        self.owner_died
    }

    /// Declares the data sound again.
    pub fn mend(&mut self) {
        self.lock.writer.mend();
        self.owner_died = false;
    }

    /// Leaves the lock taken, until this thread calls [`RwLock::unlock`].
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        self.lock.writer.unlock();
    }
}

#[cfg(test)]
mod tests {
    use isthmus_host::{Config, Service};

    use super::*;

    #[test]
    fn a_claim_of_a_living_process_is_waited_for_with_a_bound() {
        let dir = tempfile::tempdir().unwrap();
        let service = Service::start(Config::new(dir.path(), 16 << 20), Arc::new(|_| ())).unwrap();
        let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
        let at = member.allocate(bytes(4), 64).unwrap();
        let section = member.section().part("test", at, bytes(4)).unwrap();
        section.zero("test", 0, bytes(4)).unwrap();
        let lock = RwLock::open(&member, &section, 4).unwrap();
        lock.head.words[CLAIMER].set(member.party().word());
        assert!(matches!(RwLock::open(&member, &section, 4), Err(Error::TimedOut)));
        assert!(lock.try_write().is_ok(), "a handle that is open goes on");
        drop(lock);
        section.word("test", HEAD + CLAIMER as u64 * 8).unwrap().set(0);
        assert!(RwLock::open(&member, &section, 4).is_ok());
    }
}
