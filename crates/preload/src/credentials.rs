//! Who calls: effective user and groups, asked for once, and again after a call that changes them.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_int, c_void};
use std::sync::{Arc, OnceLock};

use isthmus_region::shared_by_threads::Count;
use isthmus_region::signals::Blocked;

use isthmus_sysv::Caller;

static VERSION: Count = Count::new(0);

thread_local! {
    /// Whether there has ever been anything in `KNOWN`. Its first use registers a destructor, which allocates: with all signals blocked.
    static HAS_ASKED: Cell<bool> = const { Cell::new(false) };
    /// What this thread knows, and the version that it was looked up for. No lock: a signal's handler may call, and a child be forked.
    static KNOWN: RefCell<Option<(u64, Arc<Caller>)>> = const { RefCell::new(None) };
}

/// The calling process's user and groups.
pub(crate) fn caller() -> Arc<Caller> {
    let version = VERSION.get();
    let lookup = |known: &RefCell<Option<(u64, Arc<Caller>)>>| {
        let known = known.try_borrow().ok()?;
        known.as_ref().filter(|(of, _)| *of == version).map(|(_, caller)| Arc::clone(caller))
    };
    let known = if HAS_ASKED.get() { KNOWN.try_with(lookup).ok().flatten() } else { None };
    known.unwrap_or_else(|| {
        let _blocked = Blocked::new();
        let caller = Arc::new(Caller::current());
        HAS_ASKED.set(true);
        let _ = KNOWN.try_with(|known| {
            if let Ok(mut known) = known.try_borrow_mut() {
                *known = Some((version, Arc::clone(&caller)));
            }
        });
        caller
    })
}

/// Changes whenever user or groups may have.
pub(crate) fn version() -> u64 {
    VERSION.peek()
}

/// They may be others now.
pub(crate) fn forget() {
    VERSION.add(1);
}

/// The address of the next definition of a symbol: libc's own.
pub(crate) fn next(name: &CStr) -> usize {
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
