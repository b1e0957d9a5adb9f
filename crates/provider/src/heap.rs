//! Large allocations of the program in the region, for `libisthmus-alloc.so`, which stands before malloc(3) and asks for them
//! here: so a process has one attachment, and the provider knows what lies in the region.
//!
//! What is registered within such memory is published as what lies in memory of [`crate::memory`] is. Otherwise it is the
//! program's own: it is listed, so that it outlives the service, and a forked child gets a copy at the same addresses, made by
//! its parent just before ([`before`]). A block begins and ends at a page, so that a child can have it without its neighbours.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, Once, OnceLock, TryLockError};

use isthmus_cabi::Poison;
use isthmus_cabi::heap::Ops;
use isthmus_region::error::with_causes;
use isthmus_region::grants::PAGE;
use isthmus_region::member::Member;
use isthmus_region::signals::{self, Guarded};
use isthmus_region::{CopyForChild, Listed};
use rustix::mm::{MprotectFlags, mprotect};

use crate::attachment;

/// How much of its memory a process may have in the region.
const MOST: &str = "ISTHMUS_ALLOC";
/// From which size on an allocation goes there.
const LEAST: &str = "ISTHMUS_ALLOC_LEAST";
/// How much of it a forked child may get copies of.
const FORK: &str = "ISTHMUS_ALLOC_FORK";
/// The values without these settings.
const USUAL_LEAST: usize = 64 << 10;
const USUAL_FORK: u64 = 1 << 30;
/// The least that [`LEAST`] may say: smaller ones share pages with others in malloc(3), and are many.
const SMALLEST: usize = 4096;
/// What is asked of the service at once, so that pieces adjoin.
const PIECE: u64 = 1 << 20;

/// The operations; null if this process has not been told to use them.
#[unsafe(no_mangle)]
extern "C" fn isthmus_heap() -> *const c_void {
    static OPS: std::sync::OnceLock<Option<Ops>> = std::sync::OnceLock::new();
    let made = OPS.get_or_init(|| {
        isthmus_cabi::keep_quiet();
        let settings = Settings::read();
        let least = settings.least;
        (settings.most > 0).then(|| {
            heap().settings = settings;
            crate::core::stay();
            watch_forks();
            Ops { size: size_of::<Ops>(), least, take, give, usable, may_fork }
        })
    });
    made.as_ref().map_or(std::ptr::null(), |ops| std::ptr::from_ref(ops).cast())
}

#[derive(Clone, Copy)]
struct Settings {
    most: u64,
    least: usize,
    fork: u64,
}

impl Settings {
    const NONE: Self = Self { most: 0, least: USUAL_LEAST, fork: USUAL_FORK };

    fn read() -> Self {
        let value = |name: &str, usual: u64| match std::env::var(name) {
            Ok(text) if !text.is_empty() => isthmus_region::text::size(&text).unwrap_or_else(|| {
                say(&format!("{name}={text} is no size, as 64K or 1G are: it is ignored"));
                usual
            }),
            _ => usual,
        };
        let least = usize::try_from(value(LEAST, USUAL_LEAST as u64)).unwrap_or(usize::MAX);
        Self { most: value(MOST, 0), least: least.max(SMALLEST), fork: value(FORK, USUAL_FORK) }
    }
}

/// A block of the program's.
struct Block {
    offset: u64,
    bytes: u64,
    /// None in a forked child, where it is a copy outside of the region.
    listed: Option<Listed>,
}

/// Where blocks come from.
enum Source {
    /// Nobody has asked yet.
    Unused,
    /// The region, until the process ends.
    Region(&'static Arc<Member>),
    /// Nowhere: there is no region that would do, or this is a forked child.
    None,
}

/// A block that only this thread knows yet.
struct Taken {
    member: &'static Arc<Member>,
    address: u64,
    offset: u64,
    len: u64,
}

struct Heap {
    settings: Settings,
    source: Source,
    /// By address.
    blocks: BTreeMap<u64, Block>,
    /// The region had no room for so much,
    too_much: u64,
    /// since when so many bytes were given back: as many as that may adjoin, whatever the sizes of their blocks were.
    given: u64,
    /// Address and length of registrations that were closed while operations of others were under way, which may be still.
    busy: Vec<(u64, u64)>,
    /// Offset and length of blocks that were freed there meanwhile.
    parked: Vec<(u64, u64)>,
}

static HEAP: Mutex<Heap> = Mutex::new(Heap {
    settings: Settings::NONE,
    source: Source::Unused,
    blocks: BTreeMap::new(),
    too_much: u64::MAX,
    given: 0,
    busy: Vec::new(),
    parked: Vec::new(),
});
static POISON: Poison = Poison::new();
/// Whether there may be blocks: without any, messages need not look, which takes two system calls.
static IS_USED: OnceLock<()> = OnceLock::new();

/// With signals blocked: a handler may allocate, or fork, which waits for this lock.
fn heap() -> Guarded<'static, Heap> {
    signals::lock(&HEAP)
}

/// What a lock guards, if no other thread has it.
pub(crate) fn at_once<G>(tried: std::sync::TryLockResult<G>) -> Option<G> {
    match tried {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// A line on standard error, past the lock on it, which a forked child may find held.
fn say(text: &str) {
    let line = format!("isthmus: {text}\n");
    let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
}

fn guarded<R>(broken: R, body: impl FnOnce() -> R) -> R {
    isthmus_cabi::guard(&POISON, broken, |what| say(&format!("memory in the region: {what}")), body)
}

impl Heap {
    /// The attachment; made when it is first needed.
    fn member(&mut self) -> Option<&'static Arc<Member>> {
        if let Source::Unused = self.source {
            self.source = match attach() {
                // The program's memory must stay as long as the program.
                Ok(member) => {
                    let _ = IS_USED.set(());
                    Source::Region(Box::leak(Box::new(member)))
                }
                Err(why) => {
                    say(&format!("large allocations stay outside of the region: {why}"));
                    Source::None
                }
            };
        }
        match self.source {
            Source::Region(member) if !member.region().is_retired() => Some(member),
            _ => None,
        }
    }

    fn take(&mut self, bytes: usize, align: usize) -> Option<Taken> {
        let len = (bytes as u64).checked_next_multiple_of(PAGE)?;
        if len >= self.too_much || align as u64 > PAGE || len > self.settings.most {
            return None;
        }
        let member = self.member()?;
        let offset = match member.allocate_within(len, PAGE, PIECE, self.settings.most) {
            Ok(offset) => offset,
            Err(isthmus_region::Error::Full { .. }) => {
                self.refuse(len);
                return None;
            }
            Err(e) => {
                // Asking again would hold up all threads as long again.
                say(&format!("further large allocations stay outside of the region: {}", with_causes(&e)));
                self.settings.most = 0;
                return None;
            }
        };
        let section = member.section();
        let made = || Ok((section.address(offset, len)?, section.list("heap", offset, len)?));
        let made: isthmus_region::Result<_> = made();
        let Ok((address, listed)) = made else {
            member.release(offset, len);
            self.refuse(len);
            return None;
        };
        self.blocks.insert(address, Block { offset, bytes: len, listed: Some(listed) });
        Some(Taken { member, address, offset, len })
    }

    /// So much is not asked for again before as much was given back.
    fn refuse(&mut self, len: u64) {
        (self.too_much, self.given) = (len, 0);
    }

    /// Takes a block back; gives whether it was one.
    fn give(&mut self, address: u64) -> bool {
        let Some(Block { offset, bytes, listed }) = self.blocks.remove(&address) else { return false };
        self.given = self.given.saturating_add(bytes);
        if self.given >= self.too_much {
            self.too_much = u64::MAX;
        }
        let size = usize::try_from(bytes).unwrap_or(0);
        let Some(listed) = listed else {
            // SAFETY: a child's copy, of which the program says that it does not use it any more.
            let _ = unsafe { rustix::mm::munmap(crate::cq::pointer(address), size) };
            return true;
        };
        drop(listed);
        // What the program has protected, as guards of stacks are, serves others next.
        let all = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: a block of ours, of which the program says that it does not use it any more.
        if unsafe { mprotect(crate::cq::pointer(address), size, all) }.is_err() {
            return true;
        }
        if is_any_in(&self.busy, address, bytes) {
            self.parked.push((offset, bytes));
        } else if let Source::Region(member) = self.source {
            member.release(offset, bytes);
        }
        true
    }

    /// As [`find`].
    fn find(&self, member: &Arc<Member>, start: u64, len: u64) -> Option<u64> {
        if len == 0 {
            return None;
        }
        let Source::Region(ours) = self.source else { return None };
        if !Arc::ptr_eq(ours, member) {
            return None;
        }
        let (first, block) = self.blocks.range(..=start).next_back()?;
        let (end, mut covered) = (start.checked_add(len)?, first + block.bytes);
        for (at, next) in self.blocks.range(start.saturating_add(1)..end) {
            if *at != covered {
                return None;
            }
            covered += next.bytes;
        }
        (end <= covered && start < covered).then_some(block.offset + (start - first))
    }
}

/// The attachment to the region, if its memory is as any other.
fn attach() -> Result<Arc<Member>, String> {
    // No libfabric is there yet that would know its own variable.
    let named =
        std::env::var_os("FI_ISTHMUS_SOCKET").filter(|name| !name.is_empty() && crate::core::any().is_none());
    let member = match named {
        Some(socket) => isthmus_attach::shared_at(socket.as_ref()),
        None => attachment::shared(),
    };
    let member = member.map_err(|e| with_causes(&e))?;
    if member.section().is_plain() {
        Ok(member)
    } else {
        Err("this VM maps it through sysfs, which is slow to use; the guest driver would do (isthmus run --driver require)".into())
    }
}

/// Where `len` bytes at `start` lie in the region to which `member` is an attachment; none if they are not all in blocks. An MPI may
/// register neighbours together.
pub(crate) fn find(member: &Arc<Member>, start: u64, len: u64) -> Option<u64> {
    heap().find(member, start, len)
}

/// The same for a message, which need not be found: none, too, while another thread has the lock, which may ask the service, or fork.
pub(crate) fn find_now(member: &Arc<Member>, start: u64, len: u64) -> Option<u64> {
    IS_USED.get()?;
    let _blocked = signals::Blocked::new();
    at_once(HEAP.try_lock())?.find(member, start, len)
}

/// Operations of others may still be under way in `len` bytes at `start`, although their registration was closed: blocks there that the
/// program frees are not used again before [`settle`].
pub(crate) fn disturb(start: u64, len: u64) {
    heap().busy.push((start, len));
}

/// They are over.
pub(crate) fn settle(start: u64, len: u64) {
    let mut heap = heap();
    if let Some(at) = heap.busy.iter().position(|busy| *busy == (start, len)) {
        heap.busy.swap_remove(at);
    }
    if let Source::Region(member) = heap.source {
        let Heap { busy, parked, .. } = &mut *heap;
        // What the program has freed keeps its address, at which nothing else is.
        parked.retain(|(offset, bytes)| {
            let Ok(address) = member.section().address(*offset, *bytes) else { return true };
            let is_busy = is_any_in(busy, address, *bytes);
            if !is_busy {
                member.release(*offset, *bytes);
            }
            is_busy
        });
    }
}

/// Whether one of these ranges has bytes of that one.
fn is_any_in(busy: &[(u64, u64)], address: u64, bytes: u64) -> bool {
    busy.iter().any(|(start, len)| *start < address + bytes && address < start + len)
}

/// Whether an address lies in a block.
fn is_in_block(heap: &Heap, address: u64) -> bool {
    heap.blocks.range(..=address).next_back().is_some_and(|(at, block)| address - at < block.bytes)
}

extern "C" fn take(bytes: usize, align: usize, zeroed: c_int) -> *mut c_void {
    let taken = guarded(None, || {
        if is_forking() {
            return None;
        }
        let taken = heap().take(bytes, align)?;
        // All of a region has memory, so nothing is lost by that. Without the lock, which others would wait for.
        if zeroed != 0 && taken.member.section().zero("heap", taken.offset, taken.len).is_err() {
            heap().give(taken.address);
            return None;
        }
        Some(taken.address)
    });
    taken.map_or(std::ptr::null_mut(), crate::cq::pointer)
}

/// 0, or -1 if it is no block. Once this has failed, nothing is given back any more.
extern "C" fn give(at: *mut c_void) -> c_int {
    // In a fork it stays taken.
    let given = guarded(true, || is_forking() || heap().give(at.expose_provenance() as u64));
    if given { 0 } else { -1 }
}

/// The bytes of a block; 0 if it is none, and the most there are if that is not known since something has failed.
extern "C" fn usable(at: *mut c_void) -> usize {
    let address = at.expose_provenance() as u64;
    let of = |heap: &Heap| heap.blocks.get(&address).map(|block| block.bytes);
    let bytes = guarded(Some(u64::MAX), || match is_forking() {
        true => FORKS.with(|forks| forks.try_borrow().ok()?.as_ref().and_then(|fork| of(&fork.heap))),
        false => of(&heap()),
    });
    bytes.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0)
}

/// 0, or -1 after a line that says why not.
extern "C" fn may_fork() -> c_int {
    guarded(-1, || {
        let heap = heap();
        let here = 0_u8;
        if matches!(heap.source, Source::Region(_))
            && is_in_block(&heap, (&raw const here).expose_provenance() as u64)
        {
            say("fork: this thread's stack lies in the region, which a child does not inherit");
            return -1;
        }
        let needed: u64 = heap.blocks.values().filter(|b| b.listed.is_some()).map(|b| b.bytes).sum();
        if needed <= heap.settings.fork {
            return 0;
        }
        let Settings { fork, .. } = heap.settings;
        say(&format!(
            "fork: the child would need copies of {needed} bytes of memory that lies in the region, and {FORK} allows {fork}"
        ));
        -1
    })
}

/// What a thread that forks keeps meanwhile.
struct Fork {
    heap: Guarded<'static, Heap>,
    /// By the address of the block; an error where there was no memory.
    copies: Vec<isthmus_region::Result<CopyForChild>>,
}

thread_local! {
    // Without a destructor: exit(3) runs those before handlers that may fork.
    static FORKS: RefCell<ManuallyDrop<Option<Fork>>> = const { RefCell::new(ManuallyDrop::new(None)) };
}

/// Whether this thread is in a fork, and has the lock: other handlers of a fork may allocate.
fn is_forking() -> bool {
    FORKS.with(|forks| forks.try_borrow().is_ok_and(|forks| forks.is_some()))
}

/// Called before `main`, and so before nearly all others watch forks: this is done last before a fork, when the program's own handlers
/// have its locks, and first after it, before they allocate, or map anything in the child.
fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: three functions that stay, since this library is never unloaded once its heap is used.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

extern "C" fn before() {
    guarded((), || {
        // Before the lock: it may have to be made.
        FORKS.with(|_| ());
        // Also where there is nothing to copy: the child must not find it locked by a thread that it has not.
        let heap = heap();
        let copies = match heap.source {
            Source::Region(member) => {
                let blocks = heap.blocks.values().filter(|block| block.listed.is_some());
                blocks.map(|block| member.section().copy_for_child(block.offset, block.bytes)).collect()
            }
            _ => Vec::new(),
        };
        FORKS.with(|forks| **forks.borrow_mut() = Some(Fork { heap, copies }));
    });
}

extern "C" fn in_parent() {
    guarded((), || drop(FORKS.with(|forks| forks.borrow_mut().take())));
}

extern "C" fn in_child() {
    guarded((), || {
        let Some(Fork { mut heap, copies }) = FORKS.with(|forks| forks.borrow_mut().take()) else { return };
        for copy in copies {
            if let Err(e) = copy.and_then(CopyForChild::put_in_place) {
                say(&format!(
                    "fork: there is no copy of memory that lies in the region, and so the child ends: {}",
                    with_causes(&e)
                ));
                // SAFETY: it ends the process at once.
                unsafe { libc::_exit(125) };
            }
        }
        for block in heap.blocks.values_mut() {
            // The list is the parent's.
            std::mem::forget(block.listed.take());
        }
        if let Source::Region(_) = heap.source {
            heap.source = Source::None;
        }
    });
}

/// The allocator of this library's own code: its large allocations must not come here, where the locks may be its own.
struct Own;

unsafe extern "C" {
    fn __libc_malloc(bytes: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, bytes: usize) -> *mut c_void;
    fn __libc_realloc(at: *mut c_void, bytes: usize) -> *mut c_void;
    fn __libc_free(at: *mut c_void);
    fn __libc_memalign(align: usize, bytes: usize) -> *mut c_void;
}

/// To which malloc(3) aligns.
const USUAL_ALIGN: usize = 2 * size_of::<usize>();

#[global_allocator]
static OWN: Own = Own;

impl Own {
    fn is_large(layout: Layout) -> bool {
        layout.size() >= SMALLEST
    }
}

// SAFETY: each block goes back to the allocator that gave it, which its size tells; both are malloc(3)'s.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !Self::is_large(layout) {
            // SAFETY: the caller's layout.
            return unsafe { System.alloc(layout) };
        }
        if layout.align() > USUAL_ALIGN {
            // SAFETY: a power of two, as every layout's, and the C library's function.
            return unsafe { __libc_memalign(layout.align(), layout.size()) }.cast();
        }
        // SAFETY: the C library's function.
        unsafe { __libc_malloc(layout.size()) }.cast()
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !Self::is_large(layout) {
            // SAFETY: the caller's layout.
            return unsafe { System.alloc_zeroed(layout) };
        }
        if layout.align() > USUAL_ALIGN {
            // SAFETY: the caller's layout.
            let at = unsafe { self.alloc(layout) };
            if !at.is_null() {
                // SAFETY: as many bytes as were just taken.
                unsafe { at.write_bytes(0, layout.size()) };
            }
            return at;
        }
        // SAFETY: the C library's function.
        unsafe { __libc_calloc(1, layout.size()) }.cast()
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller vouches that the new size is one of a layout.
        let wanted = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        match (Self::is_large(layout), Self::is_large(wanted)) {
            // SAFETY: from `System`, by its size, and to stay there.
            (false, false) => unsafe { System.realloc(at, layout, bytes) },
            (true, true) if layout.align() <= USUAL_ALIGN => {
                // SAFETY: from the C library's function, by its size, and to stay there.
                unsafe { __libc_realloc(at.cast(), bytes) }.cast()
            }
            _ => {
                // SAFETY: a layout, as above.
                let moved = unsafe { self.alloc(wanted) };
                if !moved.is_null() {
                    let both = layout.size().min(bytes);
                    // SAFETY: both have so many bytes, and are not the same.
                    unsafe { std::ptr::copy_nonoverlapping(at, moved, both) };
                    // SAFETY: the caller gives it up.
                    unsafe { self.dealloc(at, layout) };
                }
                moved
            }
        }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if Self::is_large(layout) {
            // SAFETY: from one of the two above, by its size.
            unsafe { __libc_free(at.cast()) }
        } else {
            // SAFETY: from `System`, by its size.
            unsafe { System.dealloc(at, layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn memory_of_our_own_is_whole_whatever_its_size() {
        let mut grown: Vec<u64> = Vec::new();
        for word in 0..100_000 {
            grown.push(word);
        }
        assert!(grown.iter().copied().eq(0..100_000));
        grown.truncate(3);
        grown.shrink_to_fit();
        assert_eq!(grown, [0, 1, 2]);
    }
}
