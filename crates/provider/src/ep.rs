//! Endpoints, as in fi_endpoint(3): opening, binding, names and options.
//!
//! - `post`: what the calls of [`crate::msg`], [`crate::tagged`], [`crate::rma`] and [`crate::atomic`] end in;
//! - `progress`: what moves an endpoint, and its sleep;
//! - `completion`: what becomes of the transport's completions;
//! - `close`: its end.
//!
//! An endpoint's state is behind one lock. The order of locks is endpoint, then completion queue or counter, never the
//! other way.

mod close;
mod completion;
mod post;
mod progress;

use std::ffi::{c_int, c_void};
use std::sync::{Arc, LazyLock, OnceLock};

use isthmus_cabi::Poison;
use isthmus_fabric_sys::*;
use isthmus_region::doorbell::Sleeper;
use isthmus_region::objects::endpoint;
use isthmus_transport::{Address, Config, Destination, Endpoint, Long, Name};

use self::close::close;
use self::completion::{Bindings, Side};
pub(crate) use self::post::{AtomicPost, How, Message, RmaPost, Single, SinglePlace};
use crate::av::{self, Av, Numbers, Remotes};
use crate::cntr::Cntr;
use crate::core::{Core, log};
use crate::cq::Cq;
use crate::domain::Domain;
use crate::info::INJECT_BYTES;
use crate::lock::Lock;
use crate::mr::Reach;
use crate::object::{self, Object};
use crate::{arithmetic, atomic, errno, msg, rma, tagged, unsupported};

/// The default of `FI_OPT_MIN_MULTI_RECV`: with less room than this left, a multi-receive buffer is released.
const MIN_MULTI_RECV: u64 = 64;

/// An endpoint's posts that wait for room may take one part in this many of the machine's memory.
const MEMORY_PART: u64 = 16;
/// They may always take this many bytes.
const LEAST_QUEUED: u64 = 64 << 20;

/// An endpoint.
#[repr(C)]
pub(crate) struct Ep {
    head: fid_ep,
    poison: Poison,
    pub(crate) domain: Arc<Domain>,
    state: Lock<State>,
    /// That of its endpoint, once it was asked for.
    sleeper: OnceLock<Arc<Sleeper>>,
}

/// The kinds of operations that may be posted: those whose completion goes somewhere.
#[derive(Debug, Default, Clone, Copy)]
struct Postable {
    sends: bool,
    reads: bool,
    writes: bool,
    receives: bool,
}

/// What of an endpoint changes.
pub(crate) struct State {
    core: Option<&'static Core>,
    /// None once it is closed.
    transport: Option<Endpoint>,
    /// The service's name under which it was opened, if any.
    name: Option<endpoint::Name>,
    enabled: bool,
    postable: Postable,
    /// Progress is under way. A thread that takes the lock and finds it set knows that progress ended in a panic.
    moving: bool,
    /// Successes of [`Ep::fall_asleep`] without their [`Ep::wake_up`] yet.
    sleepers: u32,
    /// The queue to which receives complete, if nothing counts them, else null. [`Ep::poll_short`] compares with it and
    /// never follows it.
    short: *const Cq,
    directed: bool,
    tx_flags: u64,
    rx_flags: u64,
    min_multi_recv: u64,
    remotes: Remotes,
    bindings: Bindings,
}

// SAFETY: the head is not written after `open`; its pointers are to static tables, and the program's own context, which
// is not followed. `State::short` is compared only.
unsafe impl std::marker::Send for Ep {}
// SAFETY: what changes is behind the state's lock or set once; the head and `State::short` as for Send.
unsafe impl Sync for Ep {}

// SAFETY: `repr(C)`, and the head is the first field.
unsafe impl Object for Ep {
    type Head = fid_ep;
    fn poison(&self) -> &Poison {
        &self.poison
    }
    fn core(&self) -> Option<&'static Core> {
        self.domain.core()
    }
}

static FID_OPS: fi_ops = object::ops(close, bind, control);
static OPS: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel,
    getopt,
    setopt,
    tx_ctx: unsupported::tx_ctx,
    rx_ctx: unsupported::rx_ctx,
    rx_size_left: unsupported::size_left,
    tx_size_left: unsupported::size_left,
};
static CM: fi_ops_cm = fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname: unsupported::setname,
    getname,
    getpeer: unsupported::getpeer,
    connect: unsupported::connect,
    listen: unsupported::listen,
    accept: unsupported::accept,
    reject: unsupported::reject,
    shutdown: unsupported::shutdown,
    join: None,
};

/// An error as posting calls return it.
fn failed(error: c_int) -> isize {
    -(error as isize)
}

impl Ep {
    pub(crate) fn open(
        domain: Arc<Domain>,
        info: *mut fi_info,
        context: *mut c_void,
    ) -> Result<Arc<Self>, c_int> {
        // SAFETY: null, or attributes that the program lends for this call, as `object` has it (here and for their parts).
        let info: &fi_info = unsafe { isthmus_cabi::object(info) }.ok_or(FI_EINVAL)?;
        // SAFETY: null or a part of `info`.
        let attr: Option<&fi_ep_attr> = unsafe { isthmus_cabi::object(info.ep_attr) };
        if attr.is_some_and(|a| !matches!(a.ep_type, FI_EP_UNSPEC | FI_EP_RDM)) || !domain.is_own() {
            return Err(FI_EINVAL);
        }
        // SAFETY: null or a part of `info`.
        let tx: Option<&fi_tx_attr> = unsafe { isthmus_cabi::object(info.tx_attr) };
        // SAFETY: null or a part of `info`.
        let rx: Option<&fi_rx_attr> = unsafe { isthmus_cabi::object(info.rx_attr) };
        let core = domain.core();
        let table = domain.store.table(&domain.member);
        let registrations = Arc::clone(&domain.registrations);
        let memory = Box::new(Reach { core, registrations, table, domain: Arc::downgrade(&domain) });
        let long = crate::core::long();
        if long == Long::Attach {
            // Who asks for this way wants it also where the system lets a process attach to its children alone.
            isthmus_region::attach::allow_all();
        }
        let replacement = crate::core::replacement();
        let config = Config { backlog_bytes: most_queued(), long, replacement, ..Config::default() };
        let transport = Endpoint::open(&domain.member, config, memory).map_err(|e| {
            log!(core, WARN, EP_CTRL, "cannot open an endpoint: {}", isthmus_region::error::with_causes(&e));
            errno::of_transport(&e)
        })?;
        if transport.inject_bytes() < INJECT_BYTES || transport.atomic_bytes() < arithmetic::MOST_BYTES {
            log!(core, WARN, EP_CTRL, "the region's lanes are too small for what fi_getinfo offered");
            return Err(FI_ENOSPC);
        }
        let name = own_name(&domain, info, &transport.address())?;
        log!(core, INFO, EP_CTRL, "opened {}", transport.address());
        let fid = object::head(FI_CLASS_EP, context, &FID_OPS);
        let head = fid_ep {
            fid,
            ops: &OPS,
            cm: &CM,
            msg: &msg::OPS,
            rma: &rma::OPS,
            tagged: &tagged::OPS,
            atomic: &atomic::OPS,
            collective: std::ptr::null(),
        };
        let state = State {
            core,
            transport: Some(transport),
            name,
            enabled: false,
            postable: Postable::default(),
            moving: false,
            sleepers: 0,
            short: std::ptr::null(),
            directed: info.caps & FI_DIRECTED_RECV != 0,
            tx_flags: tx.map_or(0, |t| t.op_flags),
            rx_flags: rx.map_or(0, |r| r.op_flags),
            min_multi_recv: MIN_MULTI_RECV,
            remotes: Remotes::default(),
            bindings: Bindings {
                wants_source: info.caps & FI_SOURCE != 0,
                av: None,
                tx: Side::default(),
                rx: Side::default(),
                sends: None,
                receives: None,
                reads: None,
                writes: None,
                numbers: Numbers::default(),
            },
        };
        let state = Lock::new(domain.locks, state);
        let ep = Arc::new(Self { head, poison: Poison::new(), domain, state, sleeper: OnceLock::new() });
        ep.domain.endpoints.lock().push(Arc::downgrade(&ep));
        Ok(ep)
    }

    fn bind(this: &Arc<Self>, other: *mut fid, flags: u64) -> c_int {
        // SAFETY: null, or an open object of the program's; all begin with this head.
        let Some(class) = (unsafe { isthmus_cabi::object(other) }).map(|f| f.fclass) else {
            return -FI_EINVAL;
        };
        let mut state = this.state.lock();
        match class {
            FI_CLASS_AV => {
                // SAFETY: an address vector by its class; ours, since fi_ep_bind asks for objects of one domain.
                let Some(av) = (unsafe { object::share::<Av>(other.cast()) }) else { return -FI_EINVAL };
                if !Arc::ptr_eq(&av.domain, &this.domain) {
                    return -FI_EINVAL;
                }
                av.enlist(this);
                state.bindings.av = Some(av);
                0
            }
            FI_CLASS_CQ => {
                // SAFETY: a completion queue by its class; ours, since fi_ep_bind asks for objects of one domain.
                let Some(cq) = (unsafe { object::share::<Cq>(other.cast()) }) else { return -FI_EINVAL };
                if !Arc::ptr_eq(&cq.domain, &this.domain) || flags & (FI_TRANSMIT | FI_RECV) == 0 {
                    return -FI_EINVAL;
                }
                let selective = flags & FI_SELECTIVE_COMPLETION != 0;
                enlist(cq.endpoints(), this);
                if flags & FI_TRANSMIT != 0 {
                    state.bindings.tx = Side { cq: Some(Arc::clone(&cq)), selective };
                }
                if flags & FI_RECV != 0 {
                    state.bindings.rx = Side { cq: Some(cq), selective };
                }
                state.update_postable();
                0
            }
            FI_CLASS_CNTR => {
                // SAFETY: a counter by its class; ours, since fi_ep_bind asks for objects of one domain.
                let Some(cntr) = (unsafe { object::share::<Cntr>(other.cast()) }) else { return -FI_EINVAL };
                if !Arc::ptr_eq(&cntr.domain, &this.domain) {
                    return -FI_EINVAL;
                }
                // Reads and writes of initiators are not counted: that is FI_RMA_EVENT, which is not supported.
                if flags & (FI_REMOTE_READ | FI_REMOTE_WRITE) != 0 {
                    return -FI_ENOSYS;
                }
                enlist(cntr.endpoints(), this);
                for (bit, place) in [FI_SEND, FI_RECV, FI_READ, FI_WRITE].into_iter().zip(state.counters()) {
                    if flags & bit != 0 {
                        *place = Some(Arc::clone(&cntr));
                    }
                }
                state.update_postable();
                0
            }
            // Nothing that an endpoint does is an event.
            FI_CLASS_EQ => 0,
            _ => -FI_ENOSYS,
        }
    }

    /// Forgets a number that was removed from the address vector.
    pub(crate) fn forget(&self, number: fi_addr_t) {
        let mut state = self.state.lock();
        state.remotes.forget(number);
        state.bindings.numbers.forget(number);
    }

    fn enable(&self) -> c_int {
        let mut state = self.state.lock();
        if state.bindings.av.is_none() {
            return -FI_ENOAV;
        }
        let counted = state.counters().into_iter().any(|c| c.is_some());
        if state.bindings.tx.cq.is_none() && state.bindings.rx.cq.is_none() && !counted {
            return -FI_ENOCQ;
        }
        state.enabled = true;
        state.update_postable();
        0
    }
}

/// How many bytes an endpoint's posts that wait for room may take; further ones are refused. A part of the memory that
/// the process may have, so that a program that sends without end to a process that stands still does not take all of it.
fn most_queued() -> u64 {
    static MEMORY: LazyLock<u64> = LazyLock::new(isthmus_region::control_group::memory);
    (*MEMORY / MEMORY_PART).max(LEAST_QUEUED)
}

/// Gives an endpoint the name that `info` has as its source address, if it has one.
fn own_name(domain: &Domain, info: &fi_info, address: &Address) -> Result<Option<endpoint::Name>, c_int> {
    if info.src_addr.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, so as many bytes as the program's `info` says.
    let bytes = unsafe { isthmus_cabi::slice(info.src_addr.cast::<u8>(), info.src_addrlen, 4096) };
    let Ok(name) = Name::from_bytes(bytes.ok_or(FI_EINVAL)?) else {
        log!(
            domain.core(),
            WARN,
            EP_CTRL,
            "the source address is no service's name, and nothing else can be chosen"
        );
        return Err(FI_EADDRNOTAVAIL);
    };
    if name.system != address.system {
        log!(domain.core(), WARN, EP_CTRL, "the source address {name} is not this host's or VM's");
        return Err(FI_EADDRNOTAVAIL);
    }
    if name.service().is_empty() {
        return Ok(None);
    }
    let given = endpoint::Name::give(&domain.member, name.service(), address);
    given.map(Some).map_err(|e| {
        let text = isthmus_region::error::with_causes(&e);
        log!(domain.core(), WARN, EP_CTRL, "cannot open an endpoint under the name {name}: {text}");
        if endpoint::is_taken(&e) { FI_EADDRINUSE } else { errno::of_region(&e) }
    })
}

/// Adds an endpoint to a list once.
fn enlist(endpoints: &Lock<Vec<Arc<Ep>>>, ep: &Arc<Ep>) {
    let mut endpoints = endpoints.lock();
    if !endpoints.iter().any(|e| Arc::ptr_eq(e, ep)) {
        endpoints.push(Arc::clone(ep));
    }
}

impl State {
    /// Derives from what is bound which operations may be posted, and whether receives have the short way.
    fn update_postable(&mut self) {
        let bindings = &self.bindings;
        let told = |side: &Option<Arc<Cq>>, counter: &Option<Arc<Cntr>>| {
            self.enabled && (side.is_some() || counter.is_some())
        };
        self.postable = Postable {
            sends: told(&bindings.tx.cq, &bindings.sends),
            reads: told(&bindings.tx.cq, &bindings.reads),
            writes: told(&bindings.tx.cq, &bindings.writes),
            receives: told(&bindings.rx.cq, &bindings.receives),
        };
        let cq = self.bindings.rx.cq.as_ref().filter(|_| self.enabled && self.bindings.receives.is_none());
        self.short = cq.map_or(std::ptr::null(), Arc::as_ptr);
    }

    fn counters(&mut self) -> [&mut Option<Arc<Cntr>>; 4] {
        let bindings = &mut self.bindings;
        [&mut bindings.sends, &mut bindings.receives, &mut bindings.reads, &mut bindings.writes]
    }
}

/// Runs a post on an endpoint, guarded.
///
/// # Safety
/// An endpoint of ours that is open, or null.
#[inline]
pub(crate) unsafe fn with(ep: *mut fid_ep, body: impl FnOnce(&Ep) -> isize) -> isize {
    // SAFETY: `call` asks for the same.
    unsafe { object::call::<Ep, _>(ep, failed(FI_EIO), body) }
}

unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: fi_endpoint gave `fid` out, and the program has not closed it.
    let Some(ep) = (unsafe { object::share::<Ep>(fid.cast()) }) else { return -FI_EINVAL };
    // SAFETY: fi_endpoint gave `fid` out, and the program has not closed it.
    unsafe { object::call::<Ep, _>(fid.cast(), -FI_EIO, |_| Ep::bind(&ep, other, flags)) }
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    let body = |ep: &Ep| match command {
        FI_ENABLE => ep.enable(),
        FI_GETOPSFLAG | FI_SETOPSFLAG if arg.is_null() => -FI_EINVAL,
        FI_GETOPSFLAG => {
            let state = ep.state.lock();
            // SAFETY: not null; the command has a word for flags there, by fi_control(3).
            let side = unsafe { arg.cast::<u64>().read() };
            let flags = if side & FI_TRANSMIT != 0 { state.tx_flags } else { state.rx_flags };
            // SAFETY: the same word, in which the program wants its answer.
            unsafe { arg.cast::<u64>().write(flags) };
            0
        }
        FI_SETOPSFLAG => {
            let mut state = ep.state.lock();
            // SAFETY: not null; the command has a word for flags there, by fi_control(3).
            let flags = unsafe { arg.cast::<u64>().read() };
            match flags & (FI_TRANSMIT | FI_RECV) {
                FI_TRANSMIT => state.tx_flags = flags & !FI_TRANSMIT,
                FI_RECV => state.rx_flags = flags & !FI_RECV,
                _ => return -FI_EINVAL,
            }
            0
        }
        _ => -FI_ENOSYS,
    };
    // SAFETY: fi_endpoint gave `fid` out, and the program has not closed it.
    unsafe { object::call::<Ep, _>(fid.cast(), -FI_EIO, body) }
}

unsafe extern "C" fn cancel(fid: *mut fid, context: *mut c_void) -> isize {
    let body = |ep: &Ep| {
        let mut state = ep.state.lock();
        // What is cancelled completes with an error; if nothing matches, nothing happens.
        if let Some(transport) = &mut state.transport {
            transport.cancel(context.expose_provenance() as u64);
        }
        state.drain();
        0
    };
    // SAFETY: fi_endpoint gave `fid` out, and the program has not closed it.
    unsafe { with(fid.cast(), body) }
}

unsafe extern "C" fn getopt(
    fid: *mut fid,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    let body = |ep: &Ep| {
        if level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV {
            return -FI_ENOPROTOOPT;
        }
        // SAFETY: null, or the length of the program's buffer.
        let Some(room) = (unsafe { isthmus_cabi::object(len) }).copied() else { return -FI_EINVAL };
        if value.is_null() || room < size_of::<usize>() {
            return -FI_ETOOSMALL;
        }
        let least = usize::try_from(ep.state.lock().min_multi_recv).unwrap_or(usize::MAX);
        // SAFETY: not null, and as long as `room`, which is enough.
        unsafe { value.cast::<usize>().write_unaligned(least) };
        // SAFETY: not null and aligned, or `object` would have given nothing; the program wants the length there.
        unsafe { len.write(size_of::<usize>()) };
        0
    };
    // SAFETY: fi_endpoint gave `fid` out, and the program has not closed it.
    unsafe { object::call::<Ep, _>(fid.cast(), -FI_EIO, body) }
}

unsafe extern "C" fn setopt(
    fid: *mut fid,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    let body = |ep: &Ep| {
        if level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV {
            return -FI_ENOPROTOOPT;
        }
        if value.is_null() || len != size_of::<usize>() {
            return -FI_EINVAL;
        }
        // SAFETY: not null, and the program says that it has this length.
        ep.state.lock().min_multi_recv = unsafe { value.cast::<usize>().read_unaligned() } as u64;
        0
    };
    // SAFETY: fi_endpoint gave `fid` out, and the program has not closed it.
    unsafe { object::call::<Ep, _>(fid.cast(), -FI_EIO, body) }
}

unsafe extern "C" fn getname(fid: *mut fid, addr: *mut c_void, len: *mut usize) -> c_int {
    let body = |ep: &Ep| {
        let state = ep.state.lock();
        let Some(transport) = &state.transport else { return -FI_EOPBADSTATE };
        if len.is_null() {
            return -FI_EINVAL;
        }
        // SAFETY: the program's buffer, and null or the place of its length.
        if unsafe { av::copy_name(&Destination::Endpoint(transport.address()), addr, len) } {
            0
        } else {
            -FI_ETOOSMALL
        }
    };
    // SAFETY: fi_endpoint gave `fid` out, and the program has not closed it.
    unsafe { object::call::<Ep, _>(fid.cast(), -FI_EIO, body) }
}
