//! msgget(2), msgop(2), msgctl(2): the pointers and structures of the man pages.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_long, c_void};
use std::sync::{Arc, OnceLock, Weak};

use isthmus_region::local::LocalBuf;
use isthmus_region::objects::{Kind, UNLINKED};
use isthmus_region::shared_by_threads::Count;
use isthmus_region::signals::{Blocked, Uncancelled};
use isthmus_sysv::msg::{Limits, Open, Stat, Who, check_flags};
use isthmus_sysv::{Caller, Ipc, ipc};
use rustix::io::Errno;

use crate::credentials::next;
use crate::shm::{by_index, highest, number, permissions, seconds};
use crate::sleep::Signals;
use crate::{Result, answer, answer_blocked, credentials, here, int, kernel, keys, memory};

/// The largest limit that can be set.
const MOST: u32 = 1 << 26;
/// Bytes before a message's text: its type.
const TYPE: usize = size_of::<c_long>();

/// The limits: `ISTHMUS_SYSV_MSGMAX` and `ISTHMUS_SYSV_MSGMNB`, by default as Linux has them.
fn limits() -> &'static Limits {
    static LIMITS: OnceLock<Limits> = OnceLock::new();
    if let Some(limits) = LIMITS.get() {
        return limits;
    }
    let _blocked = Blocked::new();
    LIMITS.get_or_init(|| {
        let limit = |name: &str, default| {
            let Some(text) = std::env::var_os(name) else { return default };
            let number = text.to_str().and_then(|text| text.trim().parse().ok());
            number.filter(|number| (1..=MOST).contains(number)).unwrap_or_else(|| {
                here::say(
                    here::About::Settings,
                    &format!(
                        "{name}={} is no number of bytes from 1 to {MOST}; {default} is taken",
                        text.display()
                    ),
                );
                default
            })
        };
        let linux = Limits::default();
        Limits {
            message: limit("ISTHMUS_SYSV_MSGMAX", linux.message),
            queue: limit("ISTHMUS_SYSV_MSGMNB", linux.queue),
        }
    })
}

/// The calling thread's process.
struct Program;

impl Who for Program {
    fn version(&self) -> u64 {
        credentials::version()
    }

    fn caller(&self) -> Arc<Caller> {
        credentials::caller()
    }
}

/// A queue that a thread used last. It keeps nothing open.
struct Last {
    ipc: *const Ipc,
    id: c_int,
    open: Weak<Open>,
}

thread_local! {
    /// Whether there has ever been one in `LAST`. Its first use registers a destructor, which allocates: with all signals blocked.
    static HAS_USED: Cell<bool> = const { Cell::new(false) };
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// The queue with an id. `EINVAL` if there is none any more.
fn queue(id: c_int) -> Result<Arc<Open>> {
    let ipc = here::ipc()?;
    let lookup = |last: &RefCell<Option<Last>>| {
        let last = last.try_borrow().ok()?;
        let last = last.as_ref().filter(|last| last.id == id && std::ptr::eq(last.ipc, ipc))?;
        last.open.upgrade().filter(|open| !open.is_removed())
    };
    if HAS_USED.get()
        && let Ok(Some(open)) = LAST.try_with(lookup)
    {
        return Ok(open);
    }
    let _blocked = Blocked::new();
    let _uncancelled = Uncancelled::new();
    let open = ipc.queue(id)?;
    let last = Last { ipc, id, open: Arc::downgrade(&open) };
    HAS_USED.set(true);
    let _ = LAST.try_with(|known| known.try_borrow_mut().map(|mut known| *known = Some(last)));
    Ok(open)
}

/// msgget(2).
#[unsafe(no_mangle)]
pub extern "C" fn msgget(key: libc::key_t, flags: c_int) -> c_int {
    answer_blocked(|| {
        if !keys::is_ours(key) {
            // SAFETY: numbers.
            return kernel(unsafe { libc::syscall(libc::SYS_msgget, key, flags) }).map(int);
        }
        here::ruler()?.msgget(key, flags, &credentials::caller(), limits())
    })
}

/// Libc's own calls, for queues of the kernel's: they are points of cancellation, where pthread_cancel(3) unwinds the thread. It may unwind
/// a frame of ours that has nothing to drop, in a function that says so (`C-unwind`); not one that catches panics, as [`answer`] does. Such a
/// frame makes the call, and nothing else.
struct Own {
    send: Count,
    receive: Count,
}

static OWN: Own = Own { send: Count::new(0), receive: Count::new(0) };

type Send = unsafe extern "C-unwind" fn(c_int, *const c_void, libc::size_t, c_int) -> c_int;
type Receive = unsafe extern "C-unwind" fn(c_int, *mut c_void, libc::size_t, c_long, c_int) -> libc::ssize_t;

impl Own {
    /// The addresses, as soon as they are looked up, when this library is loaded; or at a call of a library that is loaded before.
    #[cold]
    fn find(&self) {
        let _blocked = Blocked::new();
        self.send.set(next(c"msgsnd") as u64);
        self.receive.set(next(c"msgrcv") as u64);
    }

    fn address(&self, of: &Count) -> *const () {
        if of.get() == 0 {
            self.find();
        }
        std::ptr::with_exposed_provenance(usize::try_from(of.get()).unwrap_or(0))
    }
}

/// Looks libc's own calls up.
pub(crate) fn find_own() {
    OWN.find();
}

/// msgsnd(2).
///
/// # Safety
/// `message` is a type and `size` bytes that can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn msgsnd(
    id: c_int,
    message: *const c_void,
    size: libc::size_t,
    flags: c_int,
) -> c_int {
    if !ipc::is_ours(id) {
        let own = OWN.address(&OWN.send);
        if !own.is_null() {
            // SAFETY: libc's function of this name has this type.
            let own = unsafe { std::mem::transmute::<*const (), Send>(own) };
            // SAFETY: the caller's arguments, for which it vouches.
            return unsafe { own(id, message, size, flags) };
        }
    }
    // SAFETY: the caller vouches for the message.
    unsafe { send(id, message, size, flags) }
}

/// As [`msgsnd`], with panics caught: in a frame of its own, which is not unwound by others.
///
/// # Safety
/// As there.
#[inline(never)]
unsafe fn send(id: c_int, message: *const c_void, size: libc::size_t, flags: c_int) -> c_int {
    answer(|| {
        if !keys::is_our_id(id) {
            // SAFETY: numbers, and a message for which the caller vouches.
            return kernel(unsafe { libc::syscall(libc::SYS_msgsnd, id, message, size, flags) }).map(int);
        }
        memory::check(message, TYPE)?;
        // SAFETY: a type, for which the caller vouches; maybe at an odd address.
        let kind = unsafe { message.cast::<c_long>().read_unaligned() };
        if kind < 1 || size > limits().message as usize {
            return Err(Errno::INVAL);
        }
        memory::check(message, TYPE + size)?;
        let text = message.cast::<u8>().cast_mut().wrapping_add(TYPE);
        // SAFETY: bytes that can be read, for which the caller vouches; the call is over before the buffer is.
        let text = unsafe { LocalBuf::new(text, size) };
        let queue = queue(id)?;
        let mut signals = Signals::new();
        let sent = queue.send(kind, text, flags, &Program, &mut signals);
        signals.let_go(queue);
        sent.map(|()| 0)
    })
}

/// msgrcv(2).
///
/// # Safety
/// `message` has room for a type and `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn msgrcv(
    id: c_int,
    message: *mut c_void,
    size: libc::size_t,
    kind: c_long,
    flags: c_int,
) -> libc::ssize_t {
    if !ipc::is_ours(id) {
        let own = OWN.address(&OWN.receive);
        if !own.is_null() {
            // SAFETY: libc's function of this name has this type.
            let own = unsafe { std::mem::transmute::<*const (), Receive>(own) };
            // SAFETY: the caller's arguments, for which it vouches.
            return unsafe { own(id, message, size, kind, flags) };
        }
    }
    // SAFETY: the caller vouches for the room.
    unsafe { receive(id, message, size, kind, flags) }
}

/// As [`msgrcv`], likewise.
///
/// # Safety
/// As there.
#[inline(never)]
unsafe fn receive(
    id: c_int,
    message: *mut c_void,
    size: libc::size_t,
    kind: c_long,
    flags: c_int,
) -> libc::ssize_t {
    answer(|| {
        if !keys::is_our_id(id) {
            // SAFETY: numbers, and room for which the caller vouches.
            let count = unsafe { libc::syscall(libc::SYS_msgrcv, id, message, size, kind, flags) };
            return kernel(count).map(|count| libc::ssize_t::try_from(count).unwrap_or(-1));
        }
        if isize::try_from(size).is_err() {
            return Err(Errno::INVAL);
        }
        check_flags(flags)?;
        // It is looked at only once there is a message for it.
        let place = |len: usize| {
            memory::check_room(message, TYPE + len)?;
            let text = message.cast::<u8>().wrapping_add(TYPE);
            // SAFETY: room that can be written, for which the caller vouches; the call is over before the buffer is.
            Ok(unsafe { LocalBuf::new(text, len) })
        };
        let queue = queue(id)?;
        let mut signals = Signals::new();
        let received = queue.receive(kind, size, &place, flags, &Program, &mut signals);
        signals.let_go(queue);
        let (kind, count) = received?;
        // SAFETY: room for a type, which was looked at; maybe at an odd address.
        unsafe { message.cast::<c_long>().write_unaligned(kind) };
        Ok(libc::ssize_t::try_from(count).unwrap_or(-1))
    })
}

/// msgctl(2).
///
/// # Safety
/// `buffer` is what the command wants.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msgctl(id: c_int, command: c_int, buffer: *mut libc::msqid_ds) -> c_int {
    answer_blocked(|| {
        let is_info =
            matches!(command, libc::IPC_INFO | MSG_INFO | MSG_STAT | MSG_STAT_ANY) && keys::is_ours(1);
        if !keys::is_our_id(id) && !is_info {
            // SAFETY: numbers, and a buffer for which the caller vouches.
            return kernel(unsafe { libc::syscall(libc::SYS_msgctl, id, command, buffer) }).map(int);
        }
        control(id, command, buffer)
    })
}

const MSG_STAT: c_int = 11;
const MSG_INFO: c_int = 12;
const MSG_STAT_ANY: c_int = 13;

/// Bytes of a segment of the kernel's, which only `struct msginfo` knows.
const SEGMENT: u64 = 16;

/// `struct msginfo`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    pool: c_int,
    map: c_int,
    message: c_int,
    queue: c_int,
    queues: c_int,
    segment: c_int,
    headers: c_int,
    segments: u16,
}

fn control(id: i32, command: c_int, buffer: *mut libc::msqid_ds) -> Result<c_int> {
    let (ipc, caller) = (here::for_command(command)?, credentials::caller());
    match command {
        libc::IPC_STAT => {
            let stat = ipc.msgstat(id, &caller, false)?;
            memory::put(buffer, filled(ipc, &stat)).map(|()| 0)
        }
        MSG_STAT | MSG_STAT_ANY => {
            let info = by_index(ipc, Kind::SysvMsg, id)?;
            let stat = ipc.msgstat(ipc::id_of(&info), &caller, command == MSG_STAT_ANY)?;
            memory::put(buffer, filled(ipc, &stat))?;
            Ok(ipc::id_of(&info))
        }
        libc::IPC_SET => {
            let new = memory::get(buffer)?;
            let (owner, mode) = ((new.msg_perm.uid, new.msg_perm.gid), new.msg_perm.mode.into());
            ipc.msgset(id, &caller, owner, mode, new.msg_qbytes, limits()).map(|()| 0)
        }
        libc::IPC_RMID => ipc.msgremove(id, &caller).map(|()| 0),
        libc::IPC_INFO | MSG_INFO => {
            let all = ipc.all(Kind::SysvMsg);
            memory::put(buffer.cast(), info(ipc, command == MSG_INFO, &caller))?;
            Ok(highest(&all))
        }
        _ => Err(Errno::INVAL),
    }
}

/// `struct msginfo`: limits, or, with `usage`, three of its fields say what there is.
fn info(ipc: &Ipc, usage: bool, caller: &Caller) -> Info {
    let limits = limits();
    let whole = |number: u64| c_int::try_from(number).unwrap_or(c_int::MAX);
    let queues = u64::from(ipc.member().region().shape().objects);
    let pool = queues * u64::from(limits.queue) / 1024;
    let mut info = Info {
        pool: whole(pool),
        map: whole(limits.queue.into()),
        message: whole(limits.message.into()),
        queue: whole(limits.queue.into()),
        queues: whole(queues),
        segment: whole(SEGMENT),
        headers: whole(limits.queue.into()),
        segments: u16::try_from(pool * 1024 / SEGMENT).unwrap_or(u16::MAX),
    };
    if usage {
        let all = ipc.all(Kind::SysvMsg).into_iter().filter(|info| info.flags & UNLINKED == 0);
        let stats: Vec<_> = all.filter_map(|i| ipc.msgstat(ipc::id_of(&i), caller, true).ok()).collect();
        info.pool = whole(stats.len() as u64);
        info.map = whole(stats.iter().map(|s| s.numbers.messages).sum());
        info.headers = whole(stats.iter().map(|s| s.numbers.bytes).sum());
    }
    info
}

/// `struct msqid_ds`.
fn filled(ipc: &Ipc, stat: &Stat) -> libc::msqid_ds {
    // SAFETY: a structure of numbers, for which zeros are values.
    let mut ds: libc::msqid_ds = unsafe { std::mem::zeroed() };
    let (info, numbers) = (&stat.info, &stat.numbers);
    #[allow(clippy::cast_possible_truncation)] // the two halves
    let process = |word: u64| number(ipc, (word >> 32) as u32, word as u32);
    ds.msg_perm = permissions(info, 0);
    ds.msg_stime = seconds(numbers.sent);
    ds.msg_rtime = seconds(numbers.received);
    ds.msg_ctime = seconds(info.params[isthmus_region::objects::sysv::CHANGED]);
    ds.__msg_cbytes = numbers.bytes;
    ds.msg_qnum = numbers.messages;
    ds.msg_qbytes = stat.most;
    ds.msg_lspid = process(numbers.sender);
    ds.msg_lrpid = process(numbers.receiver);
    ds
}
