//! semget(2), semop(2), semctl(2): pointers, and the structures of the man pages.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use isthmus_region::at_work::Own;
use isthmus_region::objects::{Kind, sysv};
use isthmus_region::signals::{Allocated, Blocked, Uncancelled};
use isthmus_sysv::caller::{ALTER, READ};
use isthmus_sysv::sem::{Awaited, Keeping, MOST, MOST_OF_SET, MOST_OPS, Op, Set, Stat, wanted};
use isthmus_sysv::{Ipc, ipc};
use rustix::io::Errno;

use crate::sleep::Signals;
use crate::{Result, answer, answer_blocked, credentials, here, int, kernel, keys, memory, shm};

/// Operations that are copied to the stack.
const FEW: usize = 8;
/// Sets that a thread finds without a lookup.
const NEAR: usize = 4;

/// A set that this thread has used lately, and what it was allowed.
struct Near {
    ipc: *const Ipc,
    id: c_int,
    set: Keeping,
    rights: [u64; 2],
    version: u64,
    /// [`READ`], [`ALTER`].
    may: u32,
}

impl Near {
    /// Whether the set may still be used so without another look.
    fn allows(&self, wanted: u32) -> bool {
        wanted & !self.may == 0
            && self.version == credentials::version()
            && self.rights == self.set.rights()
            && !self.set.is_removed()
    }
}

/// The sets that a thread has used lately.
struct Sets {
    /// Who looks whether the thread is at one of them.
    ipc: *const Ipc,
    near: [Option<Near>; NEAR],
}

thread_local! {
    /// Whether there has ever been one in `SETS`. Its first use registers a destructor, which allocates: with all signals blocked.
    static HAS_USED: Cell<bool> = const { Cell::new(false) };
    static SETS: Own<Sets> = const { Own::new(Sets { ipc: std::ptr::null(), near: [const { None }; NEAR] }) };
}

/// semget(2).
#[unsafe(no_mangle)]
pub extern "C" fn semget(key: libc::key_t, count: c_int, flags: c_int) -> c_int {
    answer_blocked(|| {
        if !keys::is_ours(key) {
            // SAFETY: numbers.
            return kernel(unsafe { libc::syscall(libc::SYS_semget, key, count, flags) }).map(int);
        }
        forget_removed();
        here::ruler()?.semget(key, count, flags, &credentials::caller())
    })
}

/// semop(2).
///
/// # Safety
/// `ops` are as many operations as `count` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn semop(id: c_int, ops: *mut libc::sembuf, count: libc::size_t) -> c_int {
    answer(|| {
        if !keys::is_our_id(id) {
            // SAFETY: numbers, and operations for which the caller vouches.
            return kernel(unsafe { libc::syscall(libc::SYS_semop, id, ops, count) }).map(int);
        }
        // SAFETY: the caller vouches for the operations.
        unsafe { operate(id, ops.cast(), count, None) }
    })
}

/// semtimedop(2).
///
/// # Safety
/// `ops` are as many operations as `count` says, and `limit` is null or a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn semtimedop(
    id: c_int,
    ops: *mut libc::sembuf,
    count: libc::size_t,
    limit: *const libc::timespec,
) -> c_int {
    answer(|| {
        if !keys::is_our_id(id) {
            // SAFETY: numbers, and operations and a time for which the caller vouches.
            return kernel(unsafe { libc::syscall(libc::SYS_semtimedop, id, ops, count, limit) }).map(int);
        }
        let limit = match limit.is_null() {
            true => None,
            false => {
                memory::check(limit.cast(), size_of::<libc::timespec>())?;
                // SAFETY: an address of the program, for which the caller vouches.
                let limit = unsafe { limit.read_unaligned() };
                let seconds = u64::try_from(limit.tv_sec).map_err(|_| Errno::INVAL)?;
                let nanos = u32::try_from(limit.tv_nsec).ok().filter(|n| *n < 1_000_000_000);
                Some(Duration::new(seconds, nanos.ok_or(Errno::INVAL)?))
            }
        };
        // SAFETY: the caller vouches for the operations.
        unsafe { operate(id, ops.cast(), count, limit) }
    })
}

/// Copies the operations, which other threads of the program may change, and carries them out.
///
/// # Safety
/// `ops` are as many operations as `count` says.
unsafe fn operate(id: c_int, ops: *const Op, count: usize, limit: Option<Duration>) -> Result<c_int> {
    match count {
        0 => return Err(Errno::INVAL),
        1..=MOST_OPS => memory::check(ops.cast(), count * size_of::<Op>())?,
        _ => return Err(Errno::TOOBIG),
    }
    if count == 1 {
        // SAFETY: an address of the program, for which the caller vouches.
        return run(id, &[unsafe { ops.read_unaligned() }], limit);
    }
    let mut few = [Op::default(); FEW];
    let mut many;
    let copy = match count {
        0..=FEW => &mut few[..count],
        _ => {
            many = Allocated::new(Op::default(), count);
            &mut many[..]
        }
    };
    // SAFETY: as many operations as there is room for; the copy is memory of this function's.
    unsafe { std::ptr::copy_nonoverlapping(ops.cast::<u8>(), copy.as_mut_ptr().cast(), size_of_val(copy)) };
    run(id, copy, limit)
}

fn run(id: c_int, ops: &[Op], limit: Option<Duration>) -> Result<c_int> {
    let ipc = here::ipc()?;
    let wanted = wanted(ops);
    // Nothing waits while the thread's sets are borrowed, since the handler of a signal may need them.
    // The thread says that it is at its sets before it looks whether one is removed: another thread lets go of it otherwise.
    let lookup = |sets: &Sets| {
        let near = sets.near.iter().flatten().find(|near| near.id == id && std::ptr::eq(near.ipc, ipc))?;
        if !near.allows(wanted) {
            return None;
        }
        Some(match near.set.operate_at_once(ops) {
            Ok(false) => Err(near.set.share()),
            done => Ok(done),
        })
    };
    let near = if HAS_USED.get() { SETS.try_with(|sets| sets.read(lookup).flatten()) } else { Ok(None) };
    match near {
        Ok(Some(Ok(done))) => done.map(|_| 0),
        Ok(Some(Err(set))) => wait(set, ops, limit),
        _ => wait(find(ipc, id, ops, wanted)?, ops, limit),
    }
}

#[cold]
fn wait(set: Arc<Set>, ops: &[Op], limit: Option<Duration>) -> Result<c_int> {
    let mut signals = Signals::new();
    let done = set.operate(ops, &mut signals, limit);
    // It may have been removed, and forgotten by all others.
    signals.let_go(set);
    done.map(|()| 0)
}

/// In a forked child: the sets of this thread are its parent's, and their memory is not here.
pub(crate) fn forget() {
    if !HAS_USED.get() {
        return;
    }
    let _ = SETS.try_with(|sets| {
        sets.change(|sets| sets.near.iter_mut().for_each(|place| std::mem::forget(place.take())))
    });
}

/// Lets go of the sets of this thread that are no use any more.
fn forget_removed() {
    if !HAS_USED.get() {
        return;
    }
    let is_ours = |near: &Near| here::ipc().is_ok_and(|ipc| std::ptr::eq(near.ipc, ipc));
    // Those of a process that this one was forked from are not this one's to close, and their memory is not here.
    let take = |place: &mut Option<Near>| place.take_if(|near| is_ours(near) && near.set.is_removed());
    let _ =
        SETS.try_with(|sets| sets.change(|sets| sets.near.iter_mut().for_each(|place| drop(take(place)))));
}

/// A set that the thread has not used lately.
#[cold]
fn find(ipc: &'static Ipc, id: c_int, ops: &[Op], wanted: u32) -> Result<Arc<Set>> {
    let _blocked = Blocked::new();
    let _uncancelled = Uncancelled::new();
    let caller = credentials::caller();
    let set = ipc.set(id, caller.pid)?;
    set.check_numbers(ops)?;
    let version = credentials::version();
    let rights = set.rights();
    let may: u32 = [READ, ALTER].into_iter().filter(|may| set.check(&caller, *may).is_ok()).sum();
    if wanted & !may != 0 {
        // Says what is missing.
        set.check(&caller, wanted)?;
    }
    let near = Near { ipc, id, set: Keeping::new(&set), rights, version, may };
    HAS_USED.set(true);
    let _ = SETS.try_with(|own| {
        let mark = own.mark();
        own.change(|sets| {
            if !std::ptr::eq(sets.ipc, ipc) {
                sets.ipc = ipc;
                ipc.add_thread(mark);
            }
            keep(&mut sets.near, near);
        })
    });
    Ok(set)
}

/// Keeps a set for the next time, in place of the oldest one, or of one that is no use any more. Nothing is allocated.
fn keep(sets: &mut [Option<Near>; NEAR], new: Near) {
    for place in sets.iter_mut() {
        // Those of a process that this one was forked from are not this one's to close.
        if place.as_ref().is_some_and(|near| !std::ptr::eq(near.ipc, new.ipc)) {
            std::mem::forget(place.take());
        }
        if place.as_ref().is_some_and(|near| near.id == new.id || near.set.is_removed()) {
            *place = None;
        }
    }
    // The newest one stands last.
    let at = sets.iter().position(Option::is_none).unwrap_or(0);
    sets[at] = Some(new);
    sets[at..].rotate_left(1);
}

const GETPID: c_int = 11;
const GETVAL: c_int = 12;
const GETALL: c_int = 13;
const GETNCNT: c_int = 14;
const GETZCNT: c_int = 15;
const SETVAL: c_int = 16;
const SETALL: c_int = 17;
const SEM_STAT: c_int = 18;
const SEM_INFO: c_int = 19;
const SEM_STAT_ANY: c_int = 20;

/// `struct seminfo`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Limits {
    map: c_int,
    sets: c_int,
    semaphores: c_int,
    undo: c_int,
    of_a_set: c_int,
    operations: c_int,
    undo_of_a_process: c_int,
    size: c_int,
    most: c_int,
    most_adjustment: c_int,
}

/// semctl(2). In C the last argument is one of a variable number, and may be missing where the command needs none; in these calling
/// conventions it is where it would be as a fourth one, 8 bytes wide.
///
/// # Safety
/// `argument` is what the command wants.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn semctl(id: c_int, num: c_int, command: c_int, argument: *mut c_void) -> c_int {
    answer_blocked(|| {
        let is_info =
            matches!(command, libc::IPC_INFO | SEM_INFO | SEM_STAT | SEM_STAT_ANY) && keys::is_ours(1);
        if !keys::is_our_id(id) && !is_info {
            // SAFETY: numbers, and an argument for which the caller vouches.
            return kernel(unsafe { libc::syscall(libc::SYS_semctl, id, num, command, argument) }).map(int);
        }
        control(id, num, command, argument)
    })
}

fn control(id: c_int, num: c_int, command: c_int, argument: *mut c_void) -> Result<c_int> {
    let (ipc, caller) = (here::for_command(command)?, credentials::caller());
    let open = |wanted| {
        let set = ipc.set(id, caller.pid)?;
        set.check(&caller, wanted).map(|()| set)
    };
    let semaphore = || u32::try_from(num).map_err(|_| Errno::INVAL);
    let count = |it: u32| Ok(c_int::try_from(it).unwrap_or(c_int::MAX));
    match command {
        GETVAL => open(READ)?.value(semaphore()?),
        GETPID => open(READ)?.last(semaphore()?).map(|(peer, pid)| shm::number(ipc, peer, pid)),
        GETNCNT => open(READ)?.waiting(semaphore()?, Awaited::More).and_then(count),
        GETZCNT => open(READ)?.waiting(semaphore()?, Awaited::Zero).and_then(count),
        GETALL => memory::put_all(argument.cast(), &open(READ)?.all()?).map(|()| 0),
        SETVAL => {
            #[allow(clippy::cast_possible_truncation)] // a C int
            let value = argument.addr() as u32;
            let value = value.cast_signed();
            // The man page's order of errors.
            if !(0..=MOST).contains(&value) {
                return Err(Errno::RANGE);
            }
            let set = ipc.set(id, caller.pid)?;
            let num = semaphore()?;
            if num >= set.len() {
                return Err(Errno::INVAL);
            }
            set.check(&caller, ALTER)?;
            set.set_value(num, value).map(|()| 0)
        }
        SETALL => {
            let set = open(ALTER)?;
            let mut values = vec![0; usize::try_from(set.len()).unwrap_or(0)];
            memory::get_all(argument.cast_const().cast(), &mut values)?;
            set.set_all(&values).map(|()| 0)
        }
        libc::IPC_STAT => {
            let stat = ipc.semstat(id, &caller, false)?;
            memory::put(argument.cast(), filled(&stat)).map(|()| 0)
        }
        SEM_STAT | SEM_STAT_ANY => {
            let id = ipc::id_of(&shm::by_index(ipc, Kind::SysvSem, id)?);
            let stat = ipc.semstat(id, &caller, command == SEM_STAT_ANY)?;
            memory::put(argument.cast(), filled(&stat)).map(|()| id)
        }
        libc::IPC_SET => {
            let new = memory::get(argument.cast::<libc::semid_ds>())?.sem_perm;
            ipc.semset(id, &caller, (new.uid, new.gid), new.mode.into()).map(|()| 0)
        }
        libc::IPC_RMID => {
            ipc.semrm(id, &caller)?;
            forget_removed();
            Ok(0)
        }
        libc::IPC_INFO | SEM_INFO => {
            let (all, semaphores) = ipc.semsets();
            let objects = c_int::try_from(ipc.member().region().shape().objects).unwrap_or(c_int::MAX);
            let of_a_set = c_int::try_from(MOST_OF_SET).unwrap_or(c_int::MAX);
            let operations = c_int::try_from(MOST_OPS).unwrap_or(c_int::MAX);
            let total = objects.saturating_mul(of_a_set);
            // With SEM_INFO, two of them say what there is.
            let (size, most_adjustment) = match command {
                SEM_INFO => (int_of(all.len() as u64), int_of(semaphores)),
                _ => (20, MOST),
            };
            let limits = Limits {
                map: total,
                sets: objects,
                semaphores: total,
                undo: total,
                of_a_set,
                operations,
                undo_of_a_process: operations,
                size,
                most: MOST,
                most_adjustment,
            };
            memory::put(argument.cast(), limits).map(|()| shm::highest(&all))
        }
        _ => Err(Errno::INVAL),
    }
}

fn int_of(count: u64) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

/// `struct semid_ds`.
fn filled(stat: &Stat) -> libc::semid_ds {
    // SAFETY: a structure of numbers, for which zeros are values.
    let mut ds: libc::semid_ds = unsafe { std::mem::zeroed() };
    ds.sem_perm = shm::permissions(&stat.info, 0);
    ds.sem_otime = shm::seconds(stat.used);
    ds.sem_ctime = shm::seconds(stat.changed.max(stat.info.params[sysv::CHANGED]));
    ds.sem_nsems = stat.count.into();
    ds
}
