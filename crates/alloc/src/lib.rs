//! `libisthmus-alloc.so`: large allocations of unmodified programs in the region, by `LD_PRELOAD`.
//!
//! The functions of malloc(3) have their symbols here. Small allocations go to the C library's own, which has them under names
//! of its own, too; large ones of a rank to the provider beside this file, which libfabric loads later and then has once only:
//! so a process has one attachment, and what is registered within such memory is reached without messages.
//!
//! What may go wrong is decided where memory is taken: then it is the C library's. A block of either goes back to its giver,
//! which its address tells.

// The statics here are one word each, written once or moving one way.
#![allow(clippy::disallowed_types)]

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use isthmus_cabi::heap::{ENTRY, Ops};

/// What makes a process a rank.
const RANKS: [&str; 4] = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "ISTHMUS_RANK"];
/// Without it nothing goes to the region.
const MOST: &str = "ISTHMUS_ALLOC";
/// The provider as it is installed, and as cargo calls it.
const PROVIDER: [&str; 2] = ["libisthmus-fi.so", "libisthmus_fi.so"];
/// To which malloc(3) aligns.
const ALIGN: usize = 2 * size_of::<usize>();

unsafe extern "C" {
    fn __libc_malloc(bytes: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, bytes: usize) -> *mut c_void;
    fn __libc_realloc(at: *mut c_void, bytes: usize) -> *mut c_void;
    fn __libc_free(at: *mut c_void);
    fn __libc_memalign(align: usize, bytes: usize) -> *mut c_void;
    fn __libc_valloc(bytes: usize) -> *mut c_void;
    fn __libc_pvalloc(bytes: usize) -> *mut c_void;
    fn __fork() -> libc::pid_t;
}

/// From which size on the provider is asked; never before it is there.
static LEAST: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Its operations.
static OPS: AtomicPtr<Ops> = AtomicPtr::new(null_mut());
/// The addresses between which all of its blocks lie.
static LOW: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGH: AtomicUsize = AtomicUsize::new(0);
/// The C library's `malloc_usable_size`, which has no other name; sought when it is first needed.
static USABLE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

thread_local! {
    /// Whether this thread is in the provider: what that calls may allocate.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

fn ops() -> Option<&'static Ops> {
    // Acquire: the structure was written before its address.
    let at = OPS.load(Ordering::Acquire);
    // SAFETY: null, or the provider's structure, which stays as the provider does.
    unsafe { at.as_ref() }
}

/// Runs when this library is loaded, before `main`, or before that by libisthmus-sysv.so.
#[unsafe(no_mangle)]
pub extern "C" fn isthmus_alloc_start() {
    static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
    // Relaxed: libraries are loaded by one thread.
    if HAS_BEGUN.swap(true, Ordering::Relaxed) {
        return;
    }
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if !is_set(MOST) || !RANKS.iter().any(|name| is_set(name)) {
        return;
    }
    match provider() {
        Ok(None) => {}
        Ok(Some(found)) => {
            OPS.store(std::ptr::from_ref(found).cast_mut(), Ordering::Release);
            // Release: whoever sees the size finds the operations.
            LEAST.store(found.least, Ordering::Release);
        }
        Err(why) => eprintln!("isthmus: large allocations stay outside of the region: {why}"),
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = isthmus_alloc_start;

/// The directory of this file.
fn directory() -> Option<PathBuf> {
    // SAFETY: plain data, for which zeros are a valid value.
    let mut place: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr takes any address, and writes to the structure above.
    if unsafe { libc::dladdr(isthmus_alloc_start as *const c_void, &raw mut place) } == 0
        || place.dli_fname.is_null()
    {
        return None;
    }
    // SAFETY: the loader's C string for this file, which it keeps.
    let name = unsafe { CStr::from_ptr(place.dli_fname) };
    Path::new(name.to_str().ok()?).parent().map(Path::to_owned)
}

/// Loads the provider. None if it wants nothing of this process.
fn provider() -> Result<Option<&'static Ops>, String> {
    let dir = directory().ok_or("its library cannot tell where it is")?;
    let files = PROVIDER.map(|name| dir.join(name));
    let found = files.iter().find(|file| file.is_file());
    let file = found.ok_or_else(|| {
        format!("there is no {} beside libisthmus-alloc.so in {}", PROVIDER[0], dir.display())
    })?;
    let path = CString::new(file.as_os_str().as_encoded_bytes()).map_err(|_| "a path has a zero")?;
    // SAFETY: a C string, and a library whose constructors are safe to run.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NODELETE) };
    if handle.is_null() {
        return Err(error());
    }
    // SAFETY: a handle of dlopen's, and a C string.
    let entry = unsafe { libc::dlsym(handle, ENTRY.as_ptr()) };
    if entry.is_null() {
        return Err(format!("{} is of another version", file.display()));
    }
    // SAFETY: the provider's function of this name is such a one.
    let entry: extern "C" fn() -> *const Ops = unsafe { std::mem::transmute(entry) };
    // SAFETY: null, or a structure that stays as long as the provider, which is not unloaded.
    let ops = unsafe { entry().as_ref() };
    if ops.is_some_and(|ops| ops.size < size_of::<Ops>()) {
        return Err(format!("{} is of another version", file.display()));
    }
    Ok(ops)
}

/// What dlerror(3) says.
fn error() -> String {
    // SAFETY: takes nothing.
    let text: *const c_char = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the provider cannot be loaded".into();
    }
    // SAFETY: not null, so a C string that stays until the next call of this thread.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A block of the region; null where the C library is to be asked.
#[cold]
fn place(bytes: usize, align: usize, zeroed: bool) -> *mut c_void {
    let Some(ops) = ops().filter(|_| !INSIDE.get()) else { return null_mut() };
    let before = errno();
    INSIDE.set(true);
    let at = (ops.take)(bytes, align, c_int::from(zeroed));
    INSIDE.set(false);
    set_errno(before);
    if !at.is_null() {
        let address = at.expose_provenance();
        // Relaxed: a thread that has the block has it from this one, or from one that has it from this one.
        LOW.fetch_min(address, Ordering::Relaxed);
        HIGH.fetch_max(address, Ordering::Relaxed);
    }
    at
}

/// The provider's operations, if the block may be one of its own.
#[inline]
fn giver(at: *mut c_void) -> Option<&'static Ops> {
    let address = at.addr();
    // Relaxed: as in `place`.
    if address < LOW.load(Ordering::Relaxed) || address > HIGH.load(Ordering::Relaxed) {
        return None;
    }
    ops()
}

/// The C library's `malloc_usable_size`, whatever other library has one.
fn usable_of_libc() -> *mut c_void {
    let known = USABLE.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a C string; with RTLD_NOLOAD no code is loaded or run.
    let libc = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if libc.is_null() {
        return null_mut();
    }
    // SAFETY: a handle of dlopen's, and a C string.
    let found = unsafe { libc::dlsym(libc, c"malloc_usable_size".as_ptr()) };
    // Release: with it, nothing else is needed.
    USABLE.store(found, Ordering::Release);
    found
}

/// What the provider says once something in it has failed, and it does not know its blocks any more.
const UNKNOWN: usize = usize::MAX;

/// The bytes of a block of the provider's, or [`UNKNOWN`]; none if it is not one.
fn usable_there(at: *mut c_void) -> Option<usize> {
    let ops = giver(at).filter(|_| !INSIDE.get())?;
    let bytes = (ops.usable)(at);
    (bytes > 0).then_some(bytes)
}

fn errno() -> c_int {
    // SAFETY: glibc's errno of this thread, which is always there.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *place }
}

fn set_errno(value: c_int) {
    // SAFETY: glibc's errno of this thread, which is always there.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above; nobody else writes it meanwhile.
    unsafe { *place = value };
}

/// Whether the provider is asked for so many bytes.
#[inline]
fn is_large(bytes: usize) -> bool {
    // Acquire: with the size, its operations are there.
    bytes >= LEAST.load(Ordering::Acquire)
}

/// malloc(3).
#[unsafe(no_mangle)]
pub extern "C" fn malloc(bytes: usize) -> *mut c_void {
    if is_large(bytes) {
        let at = place(bytes, ALIGN, false);
        if !at.is_null() {
            return at;
        }
    }
    // SAFETY: the C library's function.
    unsafe { __libc_malloc(bytes) }
}

/// calloc(3).
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    if let Some(all) = count.checked_mul(bytes).filter(|all| is_large(*all)) {
        let at = place(all, ALIGN, true);
        if !at.is_null() {
            return at;
        }
    }
    // SAFETY: the C library's function.
    unsafe { __libc_calloc(count, bytes) }
}

/// free(3).
///
/// # Safety
/// Null, or a block that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(at: *mut c_void) {
    if let Some(ops) = giver(at) {
        if INSIDE.get() {
            // What the provider calls gives back something that may be a block, and the provider is locked: it stays taken.
            return;
        }
        let before = errno();
        INSIDE.set(true);
        let given = (ops.give)(at) == 0;
        INSIDE.set(false);
        set_errno(before);
        if given {
            return;
        }
    }
    // SAFETY: a block of the C library's.
    unsafe { __libc_free(at) }
}

/// realloc(3). A block stays with its giver, but for one of the provider's that becomes larger than there is room.
///
/// # Safety
/// Null, or a block that is not used any more if this gives another one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(at: *mut c_void, bytes: usize) -> *mut c_void {
    if at.is_null() {
        return malloc(bytes);
    }
    let Some(has) = usable_there(at) else {
        if INSIDE.get() && giver(at).is_some() {
            // It may be a block, and the provider is locked.
            set_errno(libc::ENOMEM);
            return null_mut();
        }
        // SAFETY: a block of the C library's.
        return unsafe { __libc_realloc(at, bytes) };
    };
    if has == UNKNOWN {
        // It may be the C library's or not, so neither can move it.
        set_errno(libc::ENOMEM);
        return null_mut();
    }
    if bytes == 0 {
        // SAFETY: the caller gives it up.
        unsafe { free(at) };
        return null_mut();
    }
    if bytes <= has && bytes >= has / 2 {
        return at;
    }
    // One that grows may grow again, if there is room for that in the region.
    let roomy = bytes.saturating_add(bytes / 8);
    let mut moved = if bytes > has && is_large(roomy) { place(roomy, ALIGN, false) } else { null_mut() };
    if moved.is_null() {
        moved = malloc(bytes);
    }
    if moved.is_null() && bytes <= has {
        return at;
    }
    if !moved.is_null() {
        // SAFETY: both have so many bytes, and are not the same block.
        unsafe { std::ptr::copy_nonoverlapping(at.cast::<u8>(), moved.cast(), has.min(bytes)) };
        // SAFETY: the caller has another one now.
        unsafe { free(at) };
    }
    moved
}

/// reallocarray(3).
///
/// # Safety
/// As [`realloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(at: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    let Some(all) = count.checked_mul(bytes) else {
        set_errno(libc::ENOMEM);
        return null_mut();
    };
    // SAFETY: the caller's block.
    unsafe { realloc(at, all) }
}

/// memalign(3).
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: usize, bytes: usize) -> *mut c_void {
    if is_large(bytes) && align.is_power_of_two() {
        let at = place(bytes, align, false);
        if !at.is_null() {
            return at;
        }
    }
    // SAFETY: the C library's function.
    unsafe { __libc_memalign(align, bytes) }
}

/// valloc(3): from the C library, since [`free`] gives it back there, whatever other library has one.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(bytes: usize) -> *mut c_void {
    // SAFETY: the C library's function.
    unsafe { __libc_valloc(bytes) }
}

/// pvalloc(3), for the same reason.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(bytes: usize) -> *mut c_void {
    // SAFETY: the C library's function.
    unsafe { __libc_pvalloc(bytes) }
}

/// aligned_alloc(3).
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, bytes: usize) -> *mut c_void {
    if align.is_power_of_two() {
        return memalign(align, bytes);
    }
    set_errno(libc::EINVAL);
    null_mut()
}

/// posix_memalign(3).
///
/// # Safety
/// `place` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(place: *mut *mut c_void, align: usize, bytes: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    let before = errno();
    let at = memalign(align, bytes);
    set_errno(before);
    if at.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's place for it.
    unsafe { place.write(at) };
    0
}

/// malloc_usable_size(3).
///
/// # Safety
/// Null, or a block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(at: *mut c_void) -> usize {
    if let Some(bytes) = usable_there(at) {
        return if bytes == UNKNOWN { 0 } else { bytes };
    }
    let usable = usable_of_libc();
    if usable.is_null() {
        return 0;
    }
    // SAFETY: the C library's function of this name, which is such a one.
    let usable: unsafe extern "C" fn(*mut c_void) -> usize = unsafe { std::mem::transmute(usable) };
    // SAFETY: null, or a block of the C library's.
    unsafe { usable(at) }
}

/// fork(2): fails with ENOMEM where the child would need copies of more memory than the settings allow.
#[unsafe(no_mangle)]
pub extern "C" fn fork() -> libc::pid_t {
    if let Some(ops) = ops()
        && (ops.may_fork)() != 0
    {
        set_errno(libc::ENOMEM);
        return -1;
    }
    // SAFETY: the C library's function, which runs what was registered for a fork.
    unsafe { __fork() }
}
