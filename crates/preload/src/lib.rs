//! `libisthmus-sysv.so`: System V IPC for unmodified programs, by `LD_PRELOAD`.
//!
//! The calls of svipc(7) have their symbols here. A key that `ISTHMUS_SYSV_KEYS` names (`keys`) belongs to a region, and so do the ids
//! that come from it; all others go to the kernel. What the calls mean is `isthmus-sysv`'s; here are pointers, errno, signals,
//! mappings and fork(2):
//!
//! - `here`: this process's attachment, made when it is first needed.
//! - `shm`, `sem`, `msg`, `key`: the calls.
//! - `fork`: what a child inherits. `credentials`: who calls. `sleep`: signals. `memory`: pointers of the program.

pub mod credentials;
mod fork;
mod here;
pub mod key;
mod keys;
mod memory;
pub mod msg;
pub mod sem;
pub mod shm;
mod sleep;

use std::ffi::{c_int, c_long};

use isthmus_cabi::Poison;
use isthmus_region::shared_by_threads::Flag;
use isthmus_region::signals::{Blocked, Uncancelled};
use rustix::io::Errno;

type Result<T> = std::result::Result<T, Errno>;

static POISON: Poison = Poison::new();

/// Has panics be kept for a report. Called when this library is loaded, too, which comes later than the first call of a library that is
/// loaded before it. It is done once, with all signals blocked: a handler that came in the middle and made a call would wait for itself.
fn keep_quiet() {
    static IS_QUIET: Flag = Flag::new(false);
    if !IS_QUIET.is_set() {
        let _blocked = Blocked::new();
        isthmus_cabi::keep_quiet();
        IS_QUIET.set();
    }
}

/// Runs a call's body; sets errno and gives -1 if it fails. A panic is `EIO`, then and ever after.
fn answer<T: From<i8>>(body: impl FnOnce() -> Result<T>) -> T {
    keep_quiet();
    let report =
        |said: &str| here::say(here::About::Fault, &format!("a call failed inside the library: {said}"));
    let done = isthmus_cabi::guard(&POISON, Err(Errno::IO), report, body);
    done.unwrap_or_else(|errno| {
        if matches!(errno, Errno::NOSPC | Errno::ACCESS) {
            here::say_why(errno);
        }
        set_errno(errno);
        T::from(-1)
    })
}

/// As [`answer`], with all signals blocked: for calls that do not wait, and that lock and allocate. The others block signals, and keep from
/// being cancelled, where they come to that.
fn answer_blocked<T: From<i8>>(body: impl FnOnce() -> Result<T>) -> T {
    let _blocked = Blocked::new();
    let _uncancelled = Uncancelled::new();
    answer(body)
}

fn set_errno(errno: Errno) {
    // SAFETY: glibc's errno of this thread, which is always there.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above; nobody else writes it meanwhile.
    unsafe { *place = errno.raw_os_error() };
}

/// What the kernel answers to a call that is not for us.
fn kernel(answer: c_long) -> Result<c_long> {
    // The call has set errno.
    if answer == -1 { Err(errno()) } else { Ok(answer) }
}

fn errno() -> Errno {
    // SAFETY: glibc's errno of this thread, which is always there.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    Errno::from_raw_os_error(unsafe { *place })
}

fn int(value: c_long) -> c_int {
    c_int::try_from(value).unwrap_or(-1)
}
