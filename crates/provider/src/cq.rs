//! Completion queues, as in fi_cq(3).
//!
//! Reading a queue makes the progress of the endpoints that are bound to it, in both directions, unless operations that completed in their
//! calls are there and progress can wait ([`Ep::can_wait`]); there is no other progress. A queue grows as needed: its size is a hint, and
//! it is never overrun.
//!
//! A completion that failed stays at the queue's front, and reads answer `-FI_EAVAIL`, until `fi_cq_readerr` takes it.
//!
//! An empty read returns at once and makes no system call, except as [`crate::wait`] says, which also has the blocking
//! calls.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::time::Instant;

use isthmus_cabi::Poison;
use isthmus_fabric_sys as fi;
use isthmus_fabric_sys::*;
use isthmus_transport::Short;

use crate::core::Core;
use crate::domain::Domain;
use crate::ep::Ep;
use crate::lock::Lock;
use crate::object::{self, Object};
use crate::unsupported;
use crate::wait::{self, Patience, Rest, Waiter};

/// Completions that a queue has room for without allocating.
const ROOM: usize = 1024;

/// A completion: one cache line.
#[repr(align(64))]
pub(crate) struct Entry {
    pub(crate) context: u64,
    pub(crate) flags: u64,
    pub(crate) len: u64,
    pub(crate) buf: u64,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    pub(crate) source: fi_addr_t,
    pub(crate) fault: Option<Box<Fault>>,
}

const _: () = assert!(size_of::<Entry>() == 64);
// What `Cq::copy` writes, in words.
const _: () = assert!(size_of::<fi_cq_entry>() == 8 && size_of::<fi_cq_msg_entry>() == 24);
const _: () = assert!(size_of::<fi_cq_data_entry>() == 40 && size_of::<fi_cq_tagged_entry>() == 48);

/// What a completion that failed has besides.
pub(crate) struct Fault {
    /// A positive `FI_E*`.
    pub(crate) error: c_int,
    /// Bytes cut off.
    pub(crate) cut: u64,
}

/// A completion queue.
#[repr(C)]
pub(crate) struct Cq {
    head: fid_cq,
    poison: Poison,
    pub(crate) domain: Arc<Domain>,
    entry_bytes: usize,
    endpoints: Lock<Vec<Arc<Ep>>>,
    queue: Lock<Queue>,
    waiter: Waiter,
}

struct Queue {
    ready: VecDeque<Entry>,
    patience: Patience,
    signaled: bool,
    /// Threads that are in a call which `fi_cq_signal` ends.
    callers: u32,
    /// The arrays of the read that is under way, into which entries go without passing through `ready`.
    open: Option<Destination>,
}

/// The arrays of a read, for as long as the call takes.
#[derive(Clone, Copy)]
pub(crate) struct Destination {
    buf: *mut u8,
    sources: *mut fi_addr_t,
    count: usize,
    taken: usize,
}

// SAFETY: used only while the call that lent the arrays has not returned, by its thread or under the queue's lock.
unsafe impl Send for Destination {}

impl Destination {
    /// How many entries there is room for.
    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        self.count - self.taken
    }

    /// Whether the read asks where messages come from.
    #[inline(always)]
    pub(crate) fn wants_source(&self) -> bool {
        !self.sources.is_null()
    }
}

/// The arrays of a read, lent to the queue until this is dropped, be it by a panic. Only where locks are left out: a
/// second thread that read meanwhile would get later entries before the earlier ones.
struct Lent<'a>(Option<&'a Cq>, usize);

impl<'a> Lent<'a> {
    fn new(cq: &'a Cq, to: Destination) -> Self {
        match cq.queue.without_lock() {
            Some(mut queue) if queue.ready.is_empty() => {
                queue.open = Some(to);
                Self(Some(cq), to.taken)
            }
            _ => Self(None, to.taken),
        }
    }

    /// How many entries the arrays hold.
    fn taken(&self) -> usize {
        self.0.and_then(|cq| cq.queue.lock().open.map(|to| to.taken)).unwrap_or(self.1)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(cq) = self.0 {
            cq.queue.lock().open = None;
        }
    }
}

// SAFETY: the head is not written after `open`; its pointers are to static tables, and the program's own context, which
// is not followed.
unsafe impl Send for Cq {}
// SAFETY: what changes is behind locks; the head as for Send.
unsafe impl Sync for Cq {}

// SAFETY: `repr(C)`, and the head is the first field.
unsafe impl Object for Cq {
    type Head = fid_cq;
    fn poison(&self) -> &Poison {
        &self.poison
    }
    fn core(&self) -> Option<&'static Core> {
        self.domain.core()
    }
}

static FID_OPS: fi_ops = object::ops(close, unsupported::bind, control);
static OPS: fi_ops_cq = fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read,
    readfrom,
    readerr,
    sread,
    sreadfrom,
    signal,
    strerror: strerror_at,
};

const EAGAIN: isize = -(FI_EAGAIN as isize);
const EIO: isize = -(FI_EIO as isize);

impl Cq {
    pub(crate) fn open(
        domain: Arc<Domain>,
        attr: *mut fi_cq_attr,
        context: *mut c_void,
    ) -> Result<Arc<Self>, c_int> {
        // SAFETY: null, or attributes that the program lends for this call.
        let attr: Option<&fi_cq_attr> = unsafe { isthmus_cabi::object(attr) };
        let (format, wait) = attr.map_or((FI_CQ_FORMAT_UNSPEC, FI_WAIT_NONE), |a| (a.format, a.wait_obj));
        let entry_bytes = match format {
            FI_CQ_FORMAT_UNSPEC | FI_CQ_FORMAT_CONTEXT => size_of::<fi_cq_entry>(),
            FI_CQ_FORMAT_MSG => size_of::<fi_cq_msg_entry>(),
            FI_CQ_FORMAT_DATA => size_of::<fi_cq_data_entry>(),
            FI_CQ_FORMAT_TAGGED => size_of::<fi_cq_tagged_entry>(),
            _ => return Err(FI_ENOSYS),
        };
        let waiter = waiter(wait)?;
        let fid = object::head(FI_CLASS_CQ, context, &FID_OPS);
        let queue = Queue {
            ready: VecDeque::with_capacity(ROOM),
            patience: Patience::FULL,
            signaled: false,
            callers: 0,
            open: None,
        };
        Ok(Arc::new(Self {
            head: fid_cq { fid, ops: &OPS },
            poison: Poison::new(),
            entry_bytes,
            endpoints: Lock::new(domain.locks, Vec::new()),
            queue: Lock::new(domain.locks, queue),
            waiter,
            domain,
        }))
    }

    /// Endpoints whose progress this queue makes.
    pub(crate) fn endpoints(&self) -> &Lock<Vec<Arc<Ep>>> {
        &self.endpoints
    }

    /// Adds a completion.
    #[inline(always)]
    pub(crate) fn push(&self, entry: Entry) {
        let queue = &mut *self.queue.lock();
        match &mut queue.open {
            Some(to) if to.taken < to.count && queue.ready.is_empty() && entry.fault.is_none() => {
                // SAFETY: `taken` is below the count of the arrays of the read that is under way (`Lent`).
                unsafe { self.copy(&entry, to) };
            }
            _ => {
                keep(&mut queue.ready, entry);
                self.waiter.ring();
            }
        }
    }

    /// Adds the completion of an operation on remote memory that is over in its call, so in no read of this queue.
    #[inline(always)]
    pub(crate) fn push_operated(&self, context: u64, flags: u64, len: u64) {
        keep_operated(&mut self.queue.lock().ready, context, flags, len);
        self.waiter.ring();
    }

    /// `fi_trywait`: whether the program may block on the descriptor now; none if the queue has no descriptor.
    pub(crate) fn arm(&self) -> Option<bool> {
        if progress(&self.endpoints) == Progress::Broken || self.is_there() {
            let descriptor = self.waiter.descriptor()?;
            // A signal ends one wait: this one, unless it is for a thread in fi_cq_sread.
            let mut queue = self.queue.lock();
            queue.signaled &= queue.callers > 0;
            return Some(descriptor).map(|_| false);
        }
        self.waiter.arm(&self.endpoints, || self.is_there())
    }

    /// Whether a read would return something without progress.
    fn is_there(&self) -> bool {
        let queue = self.queue.lock();
        !queue.ready.is_empty() || queue.signaled
    }

    /// Takes up to `count` completions.
    #[inline(always)]
    fn read(&self, buf: *mut c_void, count: usize, sources: *mut fi_addr_t) -> isize {
        let mut to = Destination { buf: buf.cast(), sources, count, taken: 0 };
        match self.read_short(&mut to) {
            Some(0) => EAGAIN,
            Some(taken) => taken.cast_signed(),
            None => self.read_on(to),
        }
    }

    /// The short way: one endpoint, locks left out, and nothing to take but short messages or operations. None if
    /// it is not like that, or no longer; what was taken until then is in `to`.
    #[inline(always)]
    fn read_short(&self, to: &mut Destination) -> Option<usize> {
        let (endpoints, mut queue) = (self.endpoints.without_lock()?, self.queue.without_lock()?);
        let [endpoint] = endpoints.as_slice() else { return None };
        if to.buf.is_null() || to.count == 0 {
            return None;
        }
        if !queue.ready.is_empty() {
            return self.read_operations(endpoint, &mut queue, to);
        }
        if queue.patience.ends() {
            return None;
        }
        loop {
            match endpoint.poll_short(self, queue.patience.may_spin(), to) {
                Short::Received => {
                    queue.patience = Patience::FULL;
                    if to.taken > 0 {
                        return Some(to.taken);
                    }
                }
                Short::Nothing => {
                    queue.patience.count();
                    return Some(0);
                }
                Short::Other => return None,
            }
        }
    }

    /// The short way of operations on remote memory, most of which completed in their calls: without progress, as long as that can wait.
    #[inline(never)]
    fn read_operations(&self, endpoint: &Ep, queue: &mut Queue, to: &mut Destination) -> Option<usize> {
        let first = queue.ready.front()?;
        let is_one = first.flags & (FI_RMA | FI_ATOMIC) != 0 && first.fault.is_none();
        if !is_one || !endpoint.can_wait() {
            return None;
        }
        self.waiter.disarm();
        // SAFETY: `read_short` has found room in the arrays of this read.
        unsafe { self.copy(first, to) };
        queue.ready.pop_front();
        if to.taken < to.count && !queue.ready.is_empty() {
            self.take_ready(queue, to);
        } else {
            queue.patience = Patience::FULL;
        }
        Some(to.taken)
    }

    #[inline(never)]
    fn read_on(&self, mut to: Destination) -> isize {
        if to.buf.is_null() && to.count > 0 {
            return -(FI_EINVAL as isize);
        }
        self.waiter.disarm();
        let lent = Lent::new(self, to);
        let progress = progress(&self.endpoints);
        to.taken = lent.taken();
        drop(lent);
        let mut queue = self.queue.lock();
        if queue.ready.is_empty() {
            if to.taken > 0 {
                queue.patience = Patience::FULL;
                return to.taken.cast_signed();
            }
            let rest = queue.patience.rest(progress, || is_crowded(&self.endpoints));
            if rest != Rest::None {
                let before = queue.patience;
                let mut patience = before;
                drop(queue);
                match rest {
                    Rest::Nap => patience.nap(&self.endpoints),
                    _ => patience.yield_now(),
                }
                // Unless another thread has changed it meanwhile.
                let now = &mut self.queue.lock().patience;
                if *now == before {
                    *now = patience;
                }
            }
            return if progress == Progress::Broken { EIO } else { EAGAIN };
        }
        self.take_ready(&mut queue, &mut to)
    }

    /// Copies entries from `ready`.
    #[inline(never)]
    fn take_ready(&self, queue: &mut Queue, to: &mut Destination) -> isize {
        queue.patience = Patience::FULL;
        while to.taken < to.count {
            match queue.ready.front() {
                Some(entry) if entry.fault.is_none() => {
                    // SAFETY: `taken` is below the count of this read's arrays.
                    unsafe { self.copy(entry, to) };
                }
                _ => break,
            }
            queue.ready.pop_front();
        }
        match to.taken {
            // Nothing was asked for, or the first completion failed.
            0 if to.count == 0 => EAGAIN,
            0 => -(FI_EAVAIL as isize),
            taken => taken.cast_signed(),
        }
    }

    /// Copies an entry into the arrays of a read, if they have room.
    #[inline(always)]
    pub(crate) fn place(&self, entry: &Entry, to: &mut Destination) {
        if to.taken < to.count {
            // SAFETY: `taken` is below the count of the read's arrays, which the read still holds.
            unsafe { self.copy(entry, to) };
        }
    }

    /// Copies an entry in the queue's format.
    ///
    /// # Safety
    /// The arrays have room for an entry of the queue's format, and for a source, at `to.taken`.
    #[inline]
    unsafe fn copy(&self, entry: &Entry, to: &mut Destination) {
        let bytes = self.entry_bytes;
        let at = to.buf.wrapping_add(to.taken * bytes).cast::<u64>();
        let words = [entry.context, entry.flags, entry.len, entry.buf, entry.data, entry.tag];
        let put = |i: usize| {
            // SAFETY: word `i` lies in the entry's `bytes`, for which the caller vouches; the array may be misaligned.
            unsafe { at.wrapping_add(i).write_unaligned(words[i]) };
        };
        // The formats are beginnings of each other: 8, 24, 40 or 48 bytes.
        put(0);
        if bytes > 8 {
            put(1);
            put(2);
        }
        if bytes > 24 {
            put(3);
            put(4);
        }
        if bytes > 40 {
            put(5);
        }
        if !to.sources.is_null() {
            // SAFETY: not null, and the caller vouches for a place at `taken`.
            unsafe { to.sources.wrapping_add(to.taken).write(entry.source) };
        }
        to.taken += 1;
    }

    /// Takes a completion that failed.
    fn read_error(&self, to: *mut fi_cq_err_entry) -> isize {
        if to.is_null() {
            return -(FI_EINVAL as isize);
        }
        let mut queue = self.queue.lock();
        if queue.ready.front().is_none_or(|e| e.fault.is_none()) {
            return EAGAIN;
        }
        let Some(entry) = queue.ready.pop_front() else { return EAGAIN };
        drop(queue);
        let fault = entry.fault.unwrap_or(Box::new(Fault { error: FI_EOTHER, cut: 0 }));
        // Programs that ask for an API older than 1.20 have no room for the source; those older than 1.5 give no buffer
        // for error data, of which there is none in any case, and have no room for its length.
        let api = self.domain.fabric.api;
        macro_rules! set {
            ($($field:ident = $value:expr),* $(,)?) => {$(
                // SAFETY: not null, and the program's structure has this member in the API version that it asked for.
                unsafe { (&raw mut (*to).$field).write($value) };
            )*};
        }
        set! {
            op_context = pointer(entry.context),
            flags = entry.flags,
            len = usize::try_from(entry.len).unwrap_or(usize::MAX),
            buf = pointer(entry.buf),
            data = entry.data,
            tag = entry.tag,
            olen = usize::try_from(fault.cut).unwrap_or(usize::MAX),
            err = fault.error,
            prov_errno = fault.error,
        }
        let mut own_buffer = false;
        if api >= fi::fi_version(1, 5) {
            // SAFETY: not null, and from API 1.5 on the structure has this member.
            let room = unsafe { &raw const (*to).err_data_size };
            // SAFETY: the program has set it.
            own_buffer = unsafe { room.read() } != 0;
            set! { err_data_size = 0 }
        }
        if !own_buffer {
            set! { err_data = std::ptr::null_mut() }
        }
        if api >= fi::fi_version(1, 20) {
            set! { src_addr = entry.source }
        }
        1
    }

    /// Reads until there is something, `timeout` milliseconds have passed (never, if negative), or a signal comes.
    fn wait(&self, buf: *mut c_void, count: usize, sources: *mut fi_addr_t, timeout: c_int) -> isize {
        self.queue.lock().callers += 1;
        let got = self.wait_on(buf, count, sources, timeout);
        self.queue.lock().callers -= 1;
        got
    }

    fn wait_on(&self, buf: *mut c_void, count: usize, sources: *mut fi_addr_t, timeout: c_int) -> isize {
        let until = wait::deadline(timeout);
        loop {
            self.queue.lock().patience = Patience::FULL;
            let (mut spins, begun) = (0, Instant::now());
            while wait::reads_on(spins, begun, &self.endpoints) {
                let got = self.read(buf, count, sources);
                if got != EAGAIN {
                    return got;
                }
                if timeout == 0 {
                    break;
                }
                spins += 1;
            }
            let left = wait::left(until);
            if std::mem::take(&mut self.queue.lock().signaled) || left.is_zero() {
                return EAGAIN;
            }
            self.waiter.sleep(&self.endpoints, left, || self.is_there());
        }
    }
}

// The rest is constant: the entry is made in its place.
#[inline(never)]
fn keep_operated(ready: &mut VecDeque<Entry>, context: u64, flags: u64, len: u64) {
    let source = FI_ADDR_NOTAVAIL;
    ready.push_back(Entry { context, flags, len, buf: 0, data: 0, tag: 0, source, fault: None });
}

#[inline(never)]
fn keep(ready: &mut VecDeque<Entry>, entry: Entry) {
    ready.push_back(entry);
}

/// The program's pointer, which went through a completion as a number.
pub(crate) fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0))
}

/// What came of an attempt to make progress.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It was made.
    Made,
    /// Another thread is making it; waiting for that thread would only take the processor from it.
    Elsewhere,
    /// An endpoint is broken.
    Broken,
}

/// Makes the progress of these endpoints.
pub(crate) fn progress(endpoints: &Lock<Vec<Arc<Ep>>>) -> Progress {
    let Some(endpoints) = endpoints.try_lock() else { return Progress::Elsewhere };
    let mut result = Progress::Made;
    for endpoint in endpoints.iter() {
        match endpoint.progress() {
            Progress::Made => {}
            other => result = other,
        }
    }
    result
}

/// Whether one of these endpoints says that there are too few processors.
pub(crate) fn is_crowded(endpoints: &Lock<Vec<Arc<Ep>>>) -> bool {
    endpoints.try_lock().is_some_and(|all| all.iter().any(|ep| ep.is_crowded()))
}

/// What threads wait with for a queue or counter with this wait object.
pub(crate) fn waiter(wait: u32) -> Result<Waiter, c_int> {
    match wait {
        FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_YIELD => Ok(Waiter::default()),
        FI_WAIT_FD => Waiter::with_descriptor().map_err(|e| e.raw_os_error()),
        _ => Err(FI_ENOSYS),
    }
}

/// `FI_GETWAIT` and `FI_GETWAITOBJ`.
///
/// # Safety
/// `arg` is null or has room for an `int`.
pub(crate) unsafe fn get_wait(waiter: &Waiter, command: c_int, arg: *mut c_void) -> c_int {
    let value = match (command, waiter.descriptor()) {
        (FI_GETWAIT, Some(fd)) => fd,
        (FI_GETWAITOBJ, Some(_)) => FI_WAIT_FD.cast_signed(),
        (FI_GETWAITOBJ, None) => FI_WAIT_UNSPEC.cast_signed(),
        _ => return -FI_ENOSYS,
    };
    if arg.is_null() {
        return -FI_EINVAL;
    }
    // SAFETY: not null, so it has room for an int, for which the caller vouches.
    unsafe { arg.cast::<c_int>().write(value) };
    0
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    let body = |cq: &Cq| {
        // SAFETY: `arg` is null or has room for an int, by fi_cq(3).
        unsafe { get_wait(&cq.waiter, command, arg) }
    };
    // SAFETY: fi_cq_open gave `fid` out, and the program has not closed it.
    unsafe { object::call::<Cq, _>(fid.cast(), -FI_EIO, body) }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: fi_cq_open gave `fid` out, and this is the one fi_close of it.
    unsafe { object::close::<Cq>(fid.cast(), object::unless_busy) }
}

unsafe extern "C" fn read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: fi_cq_open gave `cq` out, and the program has not closed it.
    unsafe { object::call::<Cq, _>(cq, EIO, |cq| cq.read(buf, count, std::ptr::null_mut())) }
}

unsafe extern "C" fn readfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
) -> isize {
    // SAFETY: fi_cq_open gave `cq` out, and the program has not closed it.
    unsafe { object::call::<Cq, _>(cq, EIO, |cq| cq.read(buf, count, sources)) }
}

unsafe extern "C" fn readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, _flags: u64) -> isize {
    // SAFETY: fi_cq_open gave `cq` out, and the program has not closed it.
    unsafe { object::call::<Cq, _>(cq, EIO, |cq| cq.read_error(buf)) }
}

unsafe extern "C" fn sread(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    _condition: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: fi_cq_open gave `cq` out, and the program has not closed it.
    unsafe { object::call::<Cq, _>(cq, EIO, |cq| cq.wait(buf, count, std::ptr::null_mut(), timeout)) }
}

unsafe extern "C" fn sreadfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
    _condition: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: fi_cq_open gave `cq` out, and the program has not closed it.
    unsafe { object::call::<Cq, _>(cq, EIO, |cq| cq.wait(buf, count, sources, timeout)) }
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    let body = |cq: &Cq| {
        cq.queue.lock().signaled = true;
        cq.waiter.ring();
        0
    };
    // SAFETY: fi_cq_open gave `cq` out, and the program has not closed it.
    unsafe { object::call::<Cq, _>(cq, -FI_EIO, body) }
}

unsafe extern "C" fn strerror_at(
    _cq: *mut fid_cq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    let text = match prov_errno.checked_abs().unwrap_or(0) {
        0 => c"success",
        FI_ETRUNC => c"the message was longer than the receive",
        FI_ECANCELED => c"the operation was cancelled",
        FI_ENOMSG => c"no message matches",
        FI_ECONNRESET => c"the remote endpoint is gone, or faulty",
        FI_ENOKEY => c"the target knows no such key",
        FI_EACCES => c"the target's registration does not allow this access or range",
        FI_EOPNOTSUPP => c"the target does not have this operation",
        FI_EIO => c"internal error of the isthmus provider",
        _ => c"unknown error",
    };
    let bytes = text.to_bytes_with_nul();
    if !buf.is_null() && len > 0 {
        let count = len.min(bytes.len());
        // SAFETY: not null, and `count` is at most the length of the program's buffer and of the text.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast::<c_char>(), buf, count) };
        // SAFETY: `count` is at least 1, and the buffer has as many; a text that was cut ends here.
        unsafe { buf.wrapping_add(count - 1).write(0) };
    }
    text.as_ptr()
}
