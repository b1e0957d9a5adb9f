//! Semaphores: semget(2), semop(2), semctl(2).
//!
//! # How
//! - A semaphore is one word in a line of its own, which is the word of a [gate](isthmus_region::gate) (`words`). One operation
//!   without `SEM_UNDO` is one compare-and-swap.
//! - Several operations, or one with `SEM_UNDO`, are one change of several words by [`isthmus_lockfree::mcas`], whose slots lie in
//!   the set itself (`space`): semaphores and the caller's undo cells (`undo`). A thread never waits for another one's change that
//!   goes on, but calls it off, so a process that is killed or stopped at any instruction holds up nobody, and a signal handler may
//!   call semop while the thread is in semop.
//! - A thread that has to wait sleeps at the gate of the semaphore that blocks it. It says so in the word, so a change of a semaphore
//!   at which nobody sleeps has nothing more to do. A thread that waits for 0 is not passed by: the word counts how often
//!   that came.
//! - `SETVAL`, `SETALL` and `GETALL` are such changes, too.
//!
//! This is not [`isthmus_sync::minitransaction`], whose machinery is one for the region: there a change of one word needs two fences
//! besides, since locks are apart from the data, one of several some 20 locked instructions, and whoever meets a lock waits until its
//! holder goes on or is known to be dead.

mod control;
pub mod fault;
mod keeping;
mod space;
mod undo;
mod waiters;
mod words;

use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use isthmus_lockfree::at_work::AtWork;
use isthmus_lockfree::local::Count;
use isthmus_lockfree::mcas::{self, Change, Damage, Memory};
use isthmus_region::gate::Gate;
use isthmus_region::mapping::Section;
use isthmus_region::member::Member;
use isthmus_region::objects::{self, Kind, sysv};
use isthmus_region::party::Party;
use isthmus_region::signals::{Allocated, Blocked};
use isthmus_region::waiting::nap;
use isthmus_sync::wait::Learned;
use rustix::io::Errno;

pub use self::control::Stat;
pub use self::keeping::Keeping;
pub(crate) use self::keeping::Sets;
pub use self::space::USED;
pub use self::undo::{apply as apply_undo, apply_within as apply_undo_within};
pub use self::waiters::Awaited;
pub use self::words::MOST;

use self::fault::Step;
use self::space::Space;
use self::waiters::Record;
use crate::caller::{ALTER, READ};
use crate::ipc::{self, Ipc, NOWAIT, Used};
use crate::waiting::{self, Attempt, Heard, Sleep};
use crate::{Caller, Result};

/// Most semaphores of a set: SEMMSL.
pub const MOST_OF_SET: u32 = 32_000;
/// Most operations of one call: SEMOPM.
pub const MOST_OPS: usize = 500;
/// `SEM_UNDO`.
pub const UNDO: i16 = 0x1000;

#[allow(clippy::cast_possible_truncation)] // it fits
const NOWAIT_FLAG: i16 = NOWAIT as i16;
/// Operations for which no memory is allocated.
const FEW: usize = 8;
/// How often a slot is looked for where all are taken, at intervals of [`NAP`], before the call gives up.
const TRIES: u32 = 50_000;
const NAP: Duration = Duration::from_micros(100);

/// `struct sembuf`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Op {
    /// Number of the semaphore.
    pub num: u16,
    /// What is added, or 0 to wait for 0.
    pub op: i16,
    /// `IPC_NOWAIT`, [`UNDO`].
    pub flags: i16,
}

impl Op {
    fn has(&self, flag: i16) -> bool {
        self.flags & flag != 0
    }
}

/// The permission that operations need.
pub fn wanted(ops: &[Op]) -> u32 {
    if ops.iter().all(|op| op.op == 0) { READ } else { ALTER }
}

/// What stands in a set is nothing that its users write.
fn damage(_: Damage) -> Errno {
    Errno::IO
}

/// A number that other threads seldom have.
#[inline]
fn number() -> u64 {
    thread_local! {
        static NUMBER: u64 = u64::from(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
    }
    NUMBER.with(|number| *number)
}

/// The time in seconds, as exact as the system's own.
fn seconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    u64::try_from(now.tv_sec).unwrap_or(0)
}

/// Bytes that a set of so many semaphores takes.
pub fn bytes(semaphores: u32) -> u64 {
    space::Layout::new(semaphores).bytes()
}

/// A set that this process has open.
#[derive(Debug)]
pub struct Set {
    /// None for one that is no object: for tests of what its memory may hold.
    used: Option<Arc<Used>>,
    /// Of its shares, those that threads keep.
    keepers: Count,
    member: Arc<Member>,
    space: Space,
    /// This process, as cells and records name it, and as semaphores do.
    me: u64,
    who: u32,
    own: undo::Own,
    gates: OnceLock<Box<[OnceLock<Gate>]>>,
    learned: Learned,
    /// How often it looks for a slot where all are taken.
    tries: u32,
}

/// How far a try came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tried {
    Done,
    /// The operation with this index cannot go on; its semaphore's word is this.
    Blocked(usize, u64),
}

/// A semaphore of a call, and what becomes of it.
#[derive(Debug, Clone, Copy, Default)]
struct Item {
    num: u32,
    is_undone: bool,
    before: u64,
    value: i32,
    cell: u32,
    cell_before: u64,
    adjustment: i32,
}

/// The semaphores of a call, in order.
fn gather(ops: &[Op], items: &mut [Item]) -> usize {
    let mut count = 0;
    for op in ops {
        let is_undone = op.has(UNDO) && op.op != 0;
        match items[..count].binary_search_by_key(&u32::from(op.num), |item| item.num) {
            Ok(at) => items[at].is_undone |= is_undone,
            Err(at) => {
                items.copy_within(at..count, at + 1);
                items[at] = Item { num: op.num.into(), is_undone, ..Item::default() };
                count += 1;
            }
        }
    }
    count
}

/// Carries the operations out on the items, in order; gives the first that cannot go on.
///
/// # Errors
/// `ERANGE`.
fn judge(ops: &[Op], items: &mut [Item]) -> Result<Option<usize>> {
    for (at, op) in ops.iter().enumerate() {
        let found = items.binary_search_by_key(&u32::from(op.num), |item| item.num);
        let Some(item) = found.ok().and_then(|found| items.get_mut(found)) else { return Err(Errno::FBIG) };
        let result = item.value + i32::from(op.op);
        if result < 0 || (op.op == 0 && item.value != 0) {
            return Ok(Some(at));
        }
        if result > MOST {
            return Err(Errno::RANGE);
        }
        if op.has(UNDO) {
            item.adjustment -= i32::from(op.op);
            if !(-MOST - 1..=MOST).contains(&item.adjustment) {
                return Err(Errno::RANGE);
            }
        }
        item.value = result;
    }
    Ok(None)
}

impl Set {
    fn new(ipc: &Ipc, used: Arc<Used>, pid: u32) -> Result<Self> {
        let space = Space::new(used.section(), used.info()?.params[sysv::SIZE])?;
        Ok(Self::with(ipc.member(), Some(used), space, pid))
    }

    /// A set in any memory, which waits for nobody: for tests of what its memory may hold.
    ///
    /// # Errors
    /// `EINVAL` if the section is too small.
    pub fn over(member: &Arc<Member>, section: &Section, semaphores: u32, pid: u32) -> Result<Self> {
        let space = Space::new(section, semaphores.into())?.impatient();
        Ok(Self { tries: 1, ..Self::with(member, None, space, pid) })
    }

    fn with(member: &Arc<Member>, used: Option<Arc<Used>>, space: Space, pid: u32) -> Self {
        Self {
            me: member.party().word(),
            who: words::who(pid, member.peer()),
            learned: Learned::new(member.doorbell()),
            used,
            keepers: Count::new(0),
            member: Arc::clone(member),
            space,
            own: undo::Own::default(),
            gates: OnceLock::new(),
            tries: TRIES,
        }
    }

    /// Words that change whenever owner or mode do, or whether it is for processes of this system.
    #[inline]
    pub fn rights(&self) -> [u64; 2] {
        self.used.as_ref().map_or([0; 2], |used| used.rights())
    }

    /// Whether it is removed.
    #[inline]
    pub fn is_removed(&self) -> bool {
        self.used.as_ref().is_some_and(|used| used.is_removed())
    }

    /// Number of semaphores.
    pub fn len(&self) -> u32 {
        self.space.layout.semaphores
    }

    /// Whether there are none; never so.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether all operations are on semaphores that there are.
    ///
    /// # Errors
    /// `EFBIG`.
    #[inline]
    pub fn check_numbers(&self, ops: &[Op]) -> Result<()> {
        let are_there = ops.iter().all(|op| u32::from(op.num) < self.len());
        if are_there { Ok(()) } else { Err(Errno::FBIG) }
    }

    /// Whether the caller may do what `wanted` says.
    ///
    /// # Errors
    /// `EACCES`; `EIDRM` if the set is gone.
    pub fn check(&self, caller: &Caller, wanted: u32) -> Result<()> {
        self.used.as_ref().ok_or(Errno::INVAL)?.check(caller, wanted).map(drop)
    }

    /// semop(2) and semtimedop(2), for a caller that may do it.
    ///
    /// # Errors
    /// `EAGAIN`, also once `limit` is over; `EFBIG`, `EIDRM`, `EINTR`, `ENOMEM`, `ERANGE`; `EIO` for a damaged set, or where the service does not answer.
    #[inline]
    pub fn operate(&self, ops: &[Op], sleep: &mut dyn Sleep, limit: Option<Duration>) -> Result<()> {
        self.check_numbers(ops)?;
        match self.attempt(ops)? {
            Tried::Done => Ok(()),
            Tried::Blocked(at, seen) => self.operate_on(ops, at, seen, sleep, limit),
        }
    }

    /// As [`Set::operate`], without waiting: gives whether it is done. If not, nothing is decided: [`Set::operate`] says whether it has
    /// to wait or fails.
    ///
    /// # Errors
    /// As [`Set::operate`], but for those of a wait.
    #[inline]
    pub fn operate_at_once(&self, ops: &[Op]) -> Result<bool> {
        self.check_numbers(ops)?;
        Ok(self.attempt(ops)? == Tried::Done)
    }

    #[inline]
    fn attempt(&self, ops: &[Op]) -> Result<Tried> {
        match ops {
            [op] if !op.has(UNDO) || op.op == 0 => self.alone(*op),
            [op] => self.undone(*op),
            _ => self.several(ops),
        }
    }

    /// One operation that is not undone.
    #[inline]
    fn alone(&self, op: Op) -> Result<Tried> {
        let num = u32::from(op.num);
        let word = self.space.semaphore(num)?;
        loop {
            let seen = mcas::read(&self.space, self.space.layout.semaphore(num)).map_err(damage)?;
            let value = words::value(seen);
            let result = value + i32::from(op.op);
            if result < 0 || (op.op == 0 && value != 0) {
                return Ok(Tried::Blocked(0, seen));
            }
            if result > MOST {
                return Err(Errno::RANGE);
            }
            let after = words::changed(seen, result, self.who);
            if word.replace(seen, after).is_ok() {
                self.step(Step::Changed);
                self.used_now()?;
                self.ring_after(num, seen, after)?;
                return Ok(Tried::Done);
            }
        }
    }

    /// One operation that is undone when the process ends.
    #[inline]
    fn undone(&self, op: Op) -> Result<Tried> {
        let (num, by) = (u32::from(op.num), i32::from(op.op));
        let layout = &self.space.layout;
        loop {
            // A look, so that those who have to wait disturb nobody.
            let seen = mcas::read(&self.space, layout.semaphore(num)).map_err(damage)?;
            if words::value(seen) + by < 0 {
                return Ok(Tried::Blocked(0, seen));
            }
            let index = self.own_cell(num)?;
            let mut change = self.begin(2)?;
            let before = change.take(layout.semaphore(num)).map_err(damage)?;
            let cell = change.take(layout.cell(index)).map_err(damage)?;
            if !self.check_cell(index, cell, num)? {
                continue;
            }
            let (result, adjustment) = (words::value(before) + by, words::adjustment(cell) - by);
            if result < 0 {
                return Ok(Tried::Blocked(0, before));
            }
            if result > MOST || !(-MOST - 1..=MOST).contains(&adjustment) {
                return Err(Errno::RANGE);
            }
            let after = words::changed(before, result, self.who);
            change.set(0, after);
            change.set(1, words::adjusted(cell, adjustment));
            if change.commit() {
                self.used_now()?;
                self.ring_after(num, before, after)?;
                return Ok(Tried::Done);
            }
        }
    }

    /// Any operations.
    fn several(&self, ops: &[Op]) -> Result<Tried> {
        if ops.len() <= FEW {
            let mut items = [Item::default(); FEW];
            let count = gather(ops, &mut items);
            return self.change(ops, &mut items[..count]);
        }
        let mut items = Allocated::new(Item::default(), ops.len());
        let count = gather(ops, &mut items);
        self.change(ops, &mut items[..count])
    }

    fn change(&self, ops: &[Op], items: &mut [Item]) -> Result<Tried> {
        let layout = &self.space.layout;
        let blocked = |at: usize, items: &[Item]| {
            let num = u32::from(ops[at].num);
            let item = items.binary_search_by_key(&num, |item| item.num).ok().and_then(|i| items.get(i));
            Tried::Blocked(at, item.map_or(0, |item| item.before))
        };
        let undone = items.iter().filter(|item| item.is_undone).count();
        loop {
            // A look, so that those who have to wait disturb nobody.
            for item in &mut *items {
                item.before = mcas::read(&self.space, layout.semaphore(item.num)).map_err(damage)?;
                item.value = words::value(item.before);
                let cell = if item.is_undone { self.known_cell(item.num) } else { None };
                let cell = cell.map(|index| mcas::read(&self.space, layout.cell(index)).map_err(damage));
                item.adjustment = cell.transpose()?.map_or(0, words::adjustment);
            }
            if let Some(at) = judge(ops, items)? {
                return Ok(blocked(at, items));
            }
            for item in items.iter_mut().filter(|item| item.is_undone) {
                item.cell = self.own_cell(item.num)?;
            }
            let mut change = self.begin(items.len() + undone)?;
            let mut are_own = true;
            for item in &mut *items {
                item.before = change.take(layout.semaphore(item.num)).map_err(damage)?;
                item.value = words::value(item.before);
            }
            for item in items.iter_mut().filter(|item| item.is_undone) {
                item.cell_before = change.take(layout.cell(item.cell)).map_err(damage)?;
                item.adjustment = words::adjustment(item.cell_before);
                are_own &= self.check_cell(item.cell, item.cell_before, item.num)?;
            }
            if !are_own {
                continue;
            }
            if let Some(at) = judge(ops, items)? {
                return Ok(blocked(at, items));
            }
            let mut next = 0..;
            for (item, index) in items.iter().zip(&mut next) {
                change.set(index, words::changed(item.before, item.value, self.who));
            }
            for (item, index) in items.iter().filter(|item| item.is_undone).zip(next) {
                change.set(index, words::adjusted(item.cell_before, item.adjustment));
            }
            if change.commit() {
                self.used_now()?;
                for item in &*items {
                    self.ring_after(
                        item.num,
                        item.before,
                        words::changed(item.before, item.value, self.who),
                    )?;
                }
                return Ok(Tried::Done);
            }
        }
    }

    /// Begins a change with so many words.
    #[inline]
    fn begin(&self, words: usize) -> Result<Change<'_, Space>> {
        let slots = self.space.layout.slots(words);
        // Their number is a power of two.
        let (first, mask) = (slots.start, slots.end - slots.start - 1);
        for i in 0..=mask {
            let slot = first + (number().wrapping_add(i) & mask);
            if mcas::claim(&self.space, slot, 0, self.me) {
                return Change::begin(&self.space, slot).map_err(damage);
            }
        }
        self.begin_later(first..=first + mask)
    }

    /// All slots are taken: waits for one, or inherits one.
    #[cold]
    fn begin_later(&self, slots: std::ops::RangeInclusive<u64>) -> Result<Change<'_, Space>> {
        for _ in 0..self.tries {
            for slot in slots.clone() {
                let owner = self.space.slot(slot).map_or(0, |s| s.owner.get());
                let is_free = Party::named(owner).is_none_or(|party| !self.member.is_alive(party));
                if is_free && mcas::claim(&self.space, slot, owner, self.me) {
                    return Change::begin(&self.space, slot).map_err(damage);
                }
            }
            nap(NAP);
        }
        Err(Errno::NOMEM)
    }

    /// What operations cannot do at once.
    #[cold]
    fn operate_on(
        &self,
        ops: &[Op],
        at: usize,
        seen: u64,
        sleep: &mut dyn Sleep,
        limit: Option<Duration>,
    ) -> Result<()> {
        let done = match ops[at].has(NOWAIT_FLAG) {
            true => Err(Errno::AGAIN),
            false => self.wait(ops, words::zeros(seen), sleep, limit),
        };
        // Before it fails for good, what the dead owe is taken into account.
        if done == Err(Errno::AGAIN) && self.settle()? && self.attempt(ops)? == Tried::Done {
            return Ok(());
        }
        done
    }

    /// Waits until the operations are done. `zeros` is how often the blocking semaphore had become 0 at first.
    fn wait(&self, ops: &[Op], zeros: u64, sleep: &mut dyn Sleep, limit: Option<Duration>) -> Result<()> {
        let is_asleep = Cell::new(false);
        let mut sleep = Noting { sleep, is_asleep: &is_asleep };
        let record = RefCell::new(None);
        let attempt = || loop {
            self.check_there()?;
            let (at, seen) = match self.attempt(ops)? {
                Tried::Done => return Ok(Attempt::Done(())),
                Tried::Blocked(at, seen) => (at, seen),
            };
            let op = ops[at];
            if ops.len() == 1 && op.op == 0 && words::zeros(seen) != zeros {
                // It was 0 meanwhile; or the set was removed.
                return self.check_there().map(Attempt::Done);
            }
            if op.has(NOWAIT_FLAG) {
                return Err(Errno::AGAIN);
            }
            let num = u32::from(op.num);
            let gate = self.gate(num)?;
            if !is_asleep.get() {
                return Ok(Attempt::Blocked(gate, seen));
            }
            let announced = seen | words::WAITERS;
            if announced != seen && gate.word().replace(seen, announced).is_err() {
                continue;
            }
            self.step(Step::Announced);
            // Who removes the set changes the word after that.
            self.check_there()?;
            let mut record = record.borrow_mut();
            if let Some(record) = record.get_or_insert_with(|| Record::new(&self.space, &self.member)) {
                record.say(num, if op.op == 0 { Awaited::Zero } else { Awaited::More });
                self.step(Step::Recorded);
            }
            return Ok(Attempt::Blocked(gate, announced));
        };
        let let_go = |is_here: bool| match is_here {
            true => drop(record.take()),
            // It is the parent's.
            false => std::mem::forget(record.take()),
        };
        waiting::until(&mut sleep, &self.learned, waiting::deadline(limit), attempt, let_go)
    }

    fn check_there(&self) -> Result<()> {
        if self.is_removed() { Err(Errno::IDRM) } else { Ok(()) }
    }

    fn gate(&self, num: u32) -> Result<&Gate> {
        let all = match self.gates.get() {
            Some(all) => all,
            None => {
                let _blocked = Blocked::new();
                self.gates.get_or_init(|| (0..self.len()).map(|_| OnceLock::new()).collect())
            }
        };
        let gate = all.get(num as usize).ok_or(Errno::IO)?;
        if let Some(gate) = gate.get() {
            return Ok(gate);
        }
        let _blocked = Blocked::new();
        let place = self.space.layout.semaphore(num);
        let new = Gate::with_near(&self.member, self.space.section(), place).map_err(|_| Errno::IO)?;
        Ok(gate.get_or_init(|| new))
    }

    /// Wakes those that a change may let go on.
    #[inline]
    fn ring_after(&self, num: u32, before: u64, after: u64) -> Result<()> {
        if words::must_ring(before, after) {
            self.gate(num)?.ring(u32::MAX);
        }
        Ok(())
    }

    /// An operation is done. The time is the set's, whose line stays with all processors as long as it is the same second.
    #[inline]
    fn used_now(&self) -> Result<()> {
        let (used, now) = (self.space.used()?, seconds());
        if used.peek() != now {
            used.put(now);
        }
        Ok(())
    }

    #[inline(always)] // nothing
    fn step(&self, step: Step) {
        fault::step(step);
    }
}

/// A sleep that says whether it has begun.
struct Noting<'a> {
    sleep: &'a mut dyn Sleep,
    is_asleep: &'a Cell<bool>,
}

impl Sleep for Noting<'_> {
    fn begin(&mut self) {
        self.sleep.begin();
        self.is_asleep.set(true);
    }

    fn sleep(&mut self, bells: &[BorrowedFd<'_>], limit: Duration) -> Heard {
        self.sleep.sleep(bells, limit)
    }

    fn is_here(&self) -> bool {
        self.sleep.is_here()
    }

    fn is_told(&self) -> bool {
        self.sleep.is_told()
    }

    fn handle(&mut self) -> bool {
        self.sleep.handle()
    }

    fn end(&mut self) {
        self.sleep.end();
    }
}

impl Ipc {
    /// semget(2).
    ///
    /// # Errors
    /// As [`Ipc::get`]; `EINVAL` for a number of semaphores that cannot be, or is more than an existing set has.
    pub fn semget(&self, key: i32, count: i32, flags: i32, caller: &Caller) -> Result<i32> {
        let count = u32::try_from(count).ok().filter(|n| *n <= MOST_OF_SET).ok_or(Errno::INVAL)?;
        let fits = |info: &isthmus_region::objects::ObjectInfo| {
            if u64::from(count) > info.params[sysv::SIZE] { Err(Errno::INVAL) } else { Ok(()) }
        };
        let new = || match count {
            0 => Err(Errno::INVAL),
            _ => Ok(crate::ipc::New { len: bytes(count), size: count.into() }),
        };
        self.get(Kind::SysvSem, key, flags, caller, fits, new).map(|(info, _)| crate::ipc::id_of(&info))
    }

    /// The set with an id, open for use. `pid` is this process's number.
    ///
    /// # Errors
    /// `EINVAL`, `ENOMEM`, `EIO`.
    pub fn set(&self, id: i32, pid: u32) -> Result<Arc<Set>> {
        let known = self.sets.lock().get(&id).cloned();
        if let Some(set) = known {
            if !set.is_removed() {
                return Ok(set);
            }
            self.sets.forget(id);
        }
        let set = Arc::new(Set::new(self, self.open(Kind::SysvSem, id)?, pid)?);
        // Two threads may have opened it; the first one's stays.
        Ok(Arc::clone(self.sets.lock().entry(id).or_insert(set)))
    }

    /// Takes over what this process, which has the number `pid`, owes to semaphores since before it executed its program. Gives whether
    /// that was all, as far as can be told: what is in a set that cannot be read, or is not for this process, stays.
    pub fn take_over(&self, pid: u32) -> bool {
        let region = self.member().region();
        let mut is_all = true;
        for index in 0..objects::high(region) {
            let taken = self.take_over_in(index, pid);
            // A set that is gone meanwhile has nothing to undo.
            is_all &=
                taken.unwrap_or_else(|of| of.is_some_and(|life| !objects::is_there(region, index, life)));
        }
        is_all
    }

    /// The same for the object in one place; on failure its incarnation, if that is known.
    fn take_over_in(&self, index: u32, pid: u32) -> std::result::Result<bool, Option<u64>> {
        let region = self.member().region();
        let read = objects::object(region, index).map_err(|_| None)?;
        let Some(info) = read.filter(|info| sysv::is(info, Kind::SysvSem)) else {
            return Ok(true);
        };
        let failed = Some(info.life.incarnation);
        let section = objects::section(region, &info).map_err(|_| failed)?;
        if undo::has_former(self.member(), &section, info.params[sysv::SIZE]).map_err(|_| failed)? {
            let set = self.set(ipc::id_of(&info), pid).map_err(|_| failed)?;
            set.take_over().map_err(|_| failed)?;
        }
        Ok(true)
    }

    /// This is the mark of a thread that is going to keep sets: see [`Keeping`].
    pub fn add_thread(&self, mark: &Arc<AtWork>) {
        self.sets.add_thread(mark);
    }
}
