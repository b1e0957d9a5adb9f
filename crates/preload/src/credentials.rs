//! Who calls: effective user and groups, asked for once, and again after a call that changes them.

use std::ffi::{CStr, c_int, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use isthmus_region::shared_by_threads::Count;

use isthmus_sysv::Caller;

static KNOWN: Mutex<Option<Arc<Caller>>> = Mutex::new(None);
static VERSION: Count = Count::new(0);

/// The calling process's user and groups.
pub(crate) fn caller() -> Arc<Caller> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(known.get_or_insert_with(|| Arc::new(Caller::current())))
}

/// Changes whenever user or groups may have.
pub(crate) fn version() -> u64 {
    VERSION.peek()
}

/// The lock on what is known of them, which a fork holds.
pub(crate) type Locked = std::sync::MutexGuard<'static, Option<Arc<Caller>>>;

/// Locks what is known of them.
pub(crate) fn lock() -> Locked {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`forget`], for a holder of the lock.
pub(crate) fn forget_locked(known: &mut Locked) {
    VERSION.add(1);
    **known = None;
}

/// They may be others now.
pub(crate) fn forget() {
    VERSION.add(1);
    *KNOWN.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// The address of the next definition of a symbol: libc's own.
fn next(name: &CStr) -> usize {
    // SAFETY: a name that ends in a zero.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }.expose_provenance()
}

macro_rules! changes_them {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => { $(
        /// Libc's own, after which the caller is looked up anew.
        ///
        /// # Safety
        /// As libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            static NEXT: OnceLock<usize> = OnceLock::new();
            let name = CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()).unwrap_or_default();
            let found: *mut c_void = std::ptr::with_exposed_provenance_mut(*NEXT.get_or_init(|| next(name)));
            if found.is_null() {
                crate::set_errno(rustix::io::Errno::NOSYS);
                return -1;
            }
            // SAFETY: libc's function of this name has this type.
            let call: unsafe extern "C" fn($($type),*) -> c_int = unsafe { std::mem::transmute(found) };
            // SAFETY: the caller's arguments, for which it vouches.
            let done = unsafe { call($($arg),*) };
            forget();
            done
        }
    )* };
}

changes_them! {
    setuid(uid: libc::uid_t);
    seteuid(uid: libc::uid_t);
    setreuid(real: libc::uid_t, effective: libc::uid_t);
    setresuid(real: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t);
    setgid(gid: libc::gid_t);
    setegid(gid: libc::gid_t);
    setregid(real: libc::gid_t, effective: libc::gid_t);
    setresgid(real: libc::gid_t, effective: libc::gid_t, saved: libc::gid_t);
    setgroups(count: libc::size_t, groups: *const libc::gid_t);
    initgroups(user: *const libc::c_char, group: libc::gid_t);
}
