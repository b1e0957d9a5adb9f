//! The libfabric that loaded the provider (the *core*): its log and its parameters, found by address, since a provider
//! must not be linked with it.
//!
//! A process may hold several copies of libfabric (an MPI's own and the system's). All of them get the same mapping of
//! this file, and each keeps what it knows of a provider in that provider's structure. So each core has a structure of
//! its own here, and entry points of its own, which tell from which core a call comes.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError, RwLock};

use isthmus_fabric_sys as fi;
use isthmus_transport::{Long, Replacement};

use crate::{fabric, info};

/// Our name, as `FI_PROVIDER` knows it.
pub(crate) const NAME: &CStr = c"isthmus";
/// The newest API that the provider claims to support. A core shows a provider only to programs that ask for no newer
/// one; what later versions add is optional for a provider, so this is higher than any of them.
const API: u32 = fi::fi_version(2, 99);
/// The provider's version, major and minor.
pub(crate) const VERSION: u32 = fi::fi_version(0, 1);
/// The provider's parameters: with the core's prefix they are `FI_ISTHMUS_SOCKET`, `FI_ISTHMUS_LONG` and `FI_ISTHMUS_REPLACEMENT`, or
/// lines of libfabric.conf.
const SOCKET: &CStr = c"socket";
const LONG: &CStr = c"long";
const REPLACEMENT: &CStr = c"replacement";
/// How many cores a process may hold at once; further ones share the last place.
const CORES: usize = 4;

/// One libfabric.
pub(crate) struct Core {
    /// Where it is mapped, by which it is recognised.
    base: usize,
    provider: std::cell::UnsafeCell<fi::fi_provider>,
    log: Option<fi::fi_log_fn>,
    log_enabled: Option<fi::fi_log_enabled_fn>,
    param_define: Option<fi::fi_param_define_fn>,
    param_get: Option<fi::fi_param_get_fn>,
}

// SAFETY: the function pointers are the core's, which may be called from any thread; the structure in the cell is
// written by the core alone, under its own lock, and never read here.
unsafe impl Send for Core {}
// SAFETY: as for Send; nothing else in it changes.
unsafe impl Sync for Core {}

static LIVE: [RwLock<Option<&'static Core>>; CORES] = [const { RwLock::new(None) }; CORES];

/// The core in a place.
pub(crate) fn core(place: usize) -> Option<&'static Core> {
    *LIVE[place].read().unwrap_or_else(PoisonError::into_inner)
}

/// Any core, for what concerns the whole process.
pub(crate) fn any() -> Option<&'static Core> {
    (0..CORES).find_map(core)
}

unsafe extern "C" fn getinfo_at<const PLACE: usize>(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi::fi_info,
    answer: *mut *mut fi::fi_info,
) -> c_int {
    // SAFETY: the core calls this as fi_getinfo(3) says, which is what `getinfo` asks.
    unsafe { info::getinfo(core(PLACE), version, node, service, flags, hints, answer) }
}

unsafe extern "C" fn fabric_at<const PLACE: usize>(
    attr: *mut fi::fi_fabric_attr,
    answer: *mut *mut fi::fid_fabric,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the core calls this as fi_fabric(3) says, which is what `open` asks.
    unsafe { fabric::open(core(PLACE), attr, answer, context) }
}

unsafe extern "C" fn cleanup_at<const PLACE: usize>() {
    *LIVE[PLACE].write().unwrap_or_else(PoisonError::into_inner) = None;
    if any().is_none() {
        crate::attachment::forget();
    }
}

const ENTRIES: [(fi::getinfo_fn, fi::fabric_fn, unsafe extern "C" fn()); CORES] = [
    (getinfo_at::<0>, fabric_at::<0>, cleanup_at::<0>),
    (getinfo_at::<1>, fabric_at::<1>, cleanup_at::<1>),
    (getinfo_at::<2>, fabric_at::<2>, cleanup_at::<2>),
    (getinfo_at::<3>, fabric_at::<3>, cleanup_at::<3>),
];

/// The provider structure for the core whose code contains `caller`.
pub(crate) fn register(caller: *const c_void) -> *mut fi::fi_provider {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let found = find(caller);
    let same = (0..CORES).find(|p| core(*p).is_some_and(|c| c.base == found.base && found.base != 0));
    let place = same.or_else(|| (0..CORES).find(|p| core(*p).is_none())).unwrap_or(CORES - 1);
    let (getinfo, fabric, cleanup) = ENTRIES[place];
    let provider = fi::fi_provider {
        version: VERSION,
        fi_version: API,
        context: fi::fi_context { internal: [null_mut(); 4] },
        name: NAME.as_ptr(),
        getinfo: Some(getinfo),
        fabric: Some(fabric),
        cleanup: Some(cleanup),
    };
    // Leaked: the core uses it until it is unloaded, and objects may log through it even later.
    let core: &'static Core =
        Box::leak(Box::new(Core { provider: std::cell::UnsafeCell::new(provider), ..found }));
    if let Some(define) = core.param_define {
        let parameters = [
            (SOCKET, c"Socket of the isthmus service (default: ISTHMUS_SOCKET, or where a service usually listens)"),
            (LONG, c"Long messages within a system: copy (through the region), attach (one copy by the kernel) or auto"),
            (REPLACEMENT, c"Which pages are granted, and which make room: idle (those of buffers that come back; those that were idle for longer than these were away) or, for benchmarks, age (all, and the oldest: LRU)"),
        ];
        for (name, help) in parameters {
            // SAFETY: the core's function, which providers may call here, with the structure for this core and C strings; the
            // help has no conversions. If it fails, the parameter is not found later.
            unsafe { define(core.provider.get(), name.as_ptr(), fi::FI_PARAM_STRING, help.as_ptr()) };
        }
    }
    *LIVE[place].write().unwrap_or_else(PoisonError::into_inner) = Some(core);
    core.provider.get()
}

/// The service's socket as a parameter of any core names it.
pub(crate) fn socket() -> Option<PathBuf> {
    own_parameter(SOCKET).map(PathBuf::from)
}

/// The way of long messages, as a parameter of any core names it.
pub(crate) fn long() -> Long {
    let Some(name) = own_parameter(LONG) else { return Long::Auto };
    match name.as_str() {
        "auto" => Long::Auto,
        "copy" => Long::Copy,
        "attach" => Long::Attach,
        _ => {
            log!(
                any(),
                WARN,
                CORE,
                "FI_ISTHMUS_LONG is '{name}'; it can be auto, copy or attach, and counts as auto"
            );
            Long::Auto
        }
    }
}

/// Which granted pages make room for others, as a parameter of any core names it.
pub(crate) fn replacement() -> Replacement {
    let Some(name) = own_parameter(REPLACEMENT) else { return Replacement::Idle };
    match name.as_str() {
        "idle" => Replacement::Idle,
        "age" => Replacement::Age,
        _ => {
            log!(
                any(),
                WARN,
                CORE,
                "FI_ISTHMUS_REPLACEMENT is '{name}'; it can be idle or age, and counts as idle"
            );
            Replacement::Idle
        }
    }
}

/// A parameter of the provider, from any core, if it is not empty.
fn own_parameter(name: &CStr) -> Option<String> {
    (0..CORES).find_map(|place| {
        let core = core(place)?;
        core.parameter(core.provider.get(), name).filter(|value| !value.is_empty())
    })
}

/// Finds the core's functions: in the file that contains `caller`, else in a libfabric that is loaded.
fn find(caller: *const c_void) -> Core {
    // SAFETY: plain data, for which zeros are a valid value.
    let mut place: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr takes any address, and writes to the structure above.
    let known = !caller.is_null() && unsafe { libc::dladdr(caller, &raw mut place) } != 0;
    let open = |name: *const c_char| {
        // SAFETY: a C string, the loader's or a literal; with RTLD_NOLOAD no code is loaded or run.
        unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) }
    };
    let mut handle = if known { open(place.dli_fname) } else { null_mut() };
    if lookup(handle, c"fi_log").is_null() {
        handle = open(c"libfabric.so.1".as_ptr());
    }
    let symbol =
        |name| if handle.is_null() { lookup(libc::RTLD_DEFAULT, name) } else { lookup(handle, name) };
    // SAFETY: null is None; else it is libfabric's function of this name, whose type never changed.
    let log = unsafe { std::mem::transmute::<*mut c_void, Option<fi::fi_log_fn>>(symbol(c"fi_log")) };
    // SAFETY: null is None; else it is libfabric's function of this name, whose type never changed.
    let log_enabled = unsafe {
        std::mem::transmute::<*mut c_void, Option<fi::fi_log_enabled_fn>>(symbol(c"fi_log_enabled"))
    };
    // SAFETY: null is None; else it is libfabric's function of this name, whose type never changed.
    let param_get =
        unsafe { std::mem::transmute::<*mut c_void, Option<fi::fi_param_get_fn>>(symbol(c"fi_param_get")) };
    // SAFETY: null is None; else it is libfabric's function of this name, whose type never changed.
    let param_define = unsafe {
        std::mem::transmute::<*mut c_void, Option<fi::fi_param_define_fn>>(symbol(c"fi_param_define"))
    };
    if !handle.is_null() {
        // The core stays without this reference, and must go when its user closes it.
        // SAFETY: the handle is from `open` above, and not used afterwards.
        unsafe { libc::dlclose(handle) };
    }
    let base = if known { place.dli_fbase as usize } else { 0 };
    let provider = fi::fi_provider {
        version: 0,
        fi_version: 0,
        context: fi::fi_context { internal: [null_mut(); 4] },
        name: null_mut(),
        getinfo: None,
        fabric: None,
        cleanup: None,
    };
    Core { base, provider: std::cell::UnsafeCell::new(provider), log, log_enabled, param_define, param_get }
}

/// A symbol's default version, which is its newest; null if there is none.
fn lookup(handle: *mut c_void, name: &CStr) -> *mut c_void {
    if handle.is_null() && libc::RTLD_DEFAULT != handle {
        return null_mut();
    }
    // SAFETY: a handle from dlopen or the pseudo handle, and a C string.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

/// Keeps this file mapped until the process ends.
///
/// Some MPIs unmap libfabric and its providers in `MPI_Finalize`. This one leaves no thread and no handler behind, but the
/// runtime of the language has thread-local values whose destructors, code of this file, run when a thread ends.
pub(crate) fn stay() {
    // SAFETY: plain data, for which zeros are a valid value.
    let mut place: libc::Dl_info = unsafe { std::mem::zeroed() };
    let here = stay as *const c_void;
    // SAFETY: dladdr takes any address, and writes to the structure above.
    if unsafe { libc::dladdr(here, &raw mut place) } != 0 {
        // SAFETY: the loader's C string for this file; with RTLD_NOLOAD no code is loaded or run. The handle is not closed,
        // so that the file stays.
        unsafe { libc::dlopen(place.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
    }
}

impl Core {
    /// Whether a message of this level would be printed.
    pub(crate) fn logs(&self, level: c_int, subsys: c_int) -> bool {
        let Some(enabled) = self.log_enabled else { return false };
        // SAFETY: the core's function, with the structure that this core got from `register`.
        unsafe { enabled(self.provider.get(), level, subsys) != 0 }
    }

    /// Logs a line through libfabric.
    pub(crate) fn log(&self, level: c_int, subsys: c_int, place: &CStr, line: u32, text: &str) {
        let Some(log) = self.log else { return };
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
        let line = c_int::try_from(line).unwrap_or(0);
        // SAFETY: the core's function, with the structure that it got, C strings, and one argument for the one conversion.
        unsafe {
            log(self.provider.get(), level, subsys, place.as_ptr(), line, c"%s\n".as_ptr(), text.as_ptr());
        }
    }

    /// The core's own `provider` parameter, `FI_PROVIDER`, wherever it was set.
    pub(crate) fn filter(&self) -> Option<String> {
        self.parameter(null_mut(), c"provider")
    }

    /// A text parameter of a provider, or of the core itself where that is null.
    fn parameter(&self, of: *mut fi::fi_provider, name: &CStr) -> Option<String> {
        let get = self.param_get?;
        let mut value: *const c_char = null_mut();
        // SAFETY: the core's function, with the structure that it got or null, and a place for the text's address.
        let set = unsafe { get(of, name.as_ptr(), (&raw mut value).cast()) };
        // SAFETY: null, or a C string that the core keeps for as long as it is loaded.
        if set == 0 { unsafe { isthmus_cabi::text(value) }.map(str::to_owned) } else { None }
    }
}

/// Logs through the given core, if there is one that would print it: `log!(core, WARN, EP_CTRL, "...")`.
macro_rules! log {
    ($core:expr, $level:ident, $subsys:ident, $($text:tt)+) => {
        if let Some(core) = $core {
            let core: &$crate::core::Core = core;
            $crate::core::log_at(
                core,
                $crate::core::levels::$level,
                $crate::core::subsystems::$subsys,
                (concat!(module_path!(), "\0"), line!()),
                &|| format!($($text)+),
            );
        }
    };
}
pub(crate) use log;

/// What [`log!`] calls. The text is made only if it will be printed.
#[cold]
pub(crate) fn log_at(
    core: &Core,
    level: c_int,
    subsys: c_int,
    place: (&'static str, u32),
    text: &dyn Fn() -> String,
) {
    if core.logs(level, subsys) {
        let module = CStr::from_bytes_until_nul(place.0.as_bytes()).unwrap_or_default();
        core.log(level, subsys, module, place.1, &text());
    }
}

/// The levels of [`log!`].
pub(crate) mod levels {
    pub(crate) use isthmus_fabric_sys::{FI_LOG_INFO as INFO, FI_LOG_WARN as WARN};
}

/// The subsystems of [`log!`].
pub(crate) mod subsystems {
    pub(crate) use isthmus_fabric_sys::{
        FI_LOG_AV as AV, FI_LOG_CORE as CORE, FI_LOG_DOMAIN as DOMAIN, FI_LOG_EP_CTRL as EP_CTRL,
        FI_LOG_EP_DATA as EP_DATA, FI_LOG_FABRIC as FABRIC, FI_LOG_MR as MR,
    };
}
