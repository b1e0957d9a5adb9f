//! Endpoints, as in fi_endpoint(3): binding, names, options, and what becomes of a transport's completions.
//!
//! [`crate::msg`], [`crate::tagged`], [`crate::rma`] and [`crate::atomic`] hold the calls that post; they all end in
//! one of the four posts here. An endpoint's state is behind one lock; the order of locks is endpoint, then completion
//! queue or counter, never the other way.

use std::ffi::{c_int, c_void};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, Weak};

use isthmus_cabi::{Poison, guard};
use isthmus_fabric_sys::*;
use isthmus_region::local::LocalBuf;
use isthmus_region::objects::endpoint;
use isthmus_transport::{
    Address, Asleep, Atomic, AtomicKind, Bell, Completion, Config, Endpoint, Name, Op, PeerId, Place,
    PostError, Posted, Receive, Rma, Selector, Send, Short, ShortReceived, ShortSink, Sink, Status, Ticket,
};

use crate::av::{self, Av};
use crate::cntr::Cntr;
use crate::core::{Core, log};
use crate::cq::{Cq, Destination, Entry, Fault, Progress};
use crate::domain::Domain;
use crate::info::INJECT_BYTES;
use crate::lock::Lock;
use crate::mr::Reach;
use crate::object::{self, Object};
use crate::{arithmetic, atomic, errno, msg, rma, tagged};

/// What is left at least of a multi-receive buffer, until `FI_OPT_MIN_MULTI_RECV` says otherwise.
const MIN_MULTI_RECV: u64 = 64;
/// A peer's number that is not known yet.
const UNKNOWN: u32 = u32::MAX;
/// Most addresses that are resolved in advance of their use, as a bound on the tables below.
const MOST_ADDRESSES: u64 = 1 << 26;

/// Which part of the machine's memory an endpoint's posts that wait for room may take, and what they may take at least.
const MEMORY_PART: u64 = 16;
const LEAST_QUEUED: u64 = 64 << 20;

/// Flags of sends that complete only when the message was taken, or matched.
const DELIVERED: u64 = FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE | FI_COMMIT_COMPLETE;

/// [`Ticket::flags`]: the caller wants an entry for success.
const ENTRY: u64 = 1;
/// [`Ticket::flags`]: a multi-receive.
const MULTI: u64 = 2;

/// An endpoint.
#[repr(C)]
pub(crate) struct Ep {
    head: fid_ep,
    poison: Poison,
    pub(crate) domain: Arc<Domain>,
    state: Lock<State>,
    bell: OnceLock<OwnedFd>,
}

/// The kinds of operations for which a queue or a counter is bound.
#[derive(Debug, Default, Clone, Copy)]
struct Bound {
    sends: bool,
    reads: bool,
    writes: bool,
    receives: bool,
}

/// Everything that changes.
pub(crate) struct State {
    core: Option<&'static Core>,
    transport: Option<Endpoint>,
    /// The service's name that it has, if it was opened under one.
    name: Option<endpoint::Name>,
    enabled: bool,
    /// Of which kinds of operations the end can be told.
    bound: Bound,
    /// Progress is under way; found by somebody who has the lock, it says that it ended in a panic.
    moving: bool,
    /// Sleeps that were not ended yet.
    sleepers: u32,
    /// The queue that receives complete to, if that is all they do: for [`Ep::poll_short`] to compare with.
    short: *const Cq,
    directed: bool,
    tx_flags: u64,
    rx_flags: u64,
    min_multi_recv: u64,
    /// Peers by number in the address vector.
    peers: Vec<u32>,
    ends: Ends,
}

/// Where completions go.
struct Ends {
    wants_source: bool,
    av: Option<Arc<Av>>,
    tx: Side,
    rx: Side,
    sends: Option<Arc<Cntr>>,
    receives: Option<Arc<Cntr>>,
    reads: Option<Arc<Cntr>>,
    writes: Option<Arc<Cntr>>,
    /// Numbers in the address vector by peer.
    numbers: Vec<fi_addr_t>,
}

/// Where completions of one direction go.
#[derive(Default)]
struct Side {
    cq: Option<Arc<Cq>>,
    selective: bool,
}

// SAFETY: the head is written when it is made and only read since; its pointers are C's.
unsafe impl std::marker::Send for Ep {}
// SAFETY: as above; the state is behind its lock.
unsafe impl Sync for Ep {}

impl Object for Ep {
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
    tx_ctx,
    rx_ctx,
    rx_size_left: size_left,
    tx_size_left: size_left,
};
static CM: fi_ops_cm = fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname,
    getname,
    getpeer,
    connect,
    listen,
    accept,
    reject,
    shutdown,
    join: None,
};

/// How a post is to complete.
#[derive(Debug, Clone, Copy)]
pub(crate) struct How {
    pub(crate) context: *mut c_void,
    /// Flags of the operation, the endpoint's own where the call has none.
    pub(crate) flags: u64,
    /// Whether success makes an entry.
    entry: bool,
}

impl How {
    fn ticket(self) -> Ticket {
        let flags = if self.entry { ENTRY } else { 0 };
        Ticket { context: self.context.expose_provenance() as u64, flags }
    }

    /// An inject call: no entry ever, and the buffer is the caller's on return.
    pub(crate) fn inject() -> Self {
        Self { context: std::ptr::null_mut(), flags: FI_INJECT, entry: false }
    }
}

fn failed(error: c_int) -> isize {
    -(error as isize)
}

impl Ep {
    pub(crate) fn open(
        domain: Arc<Domain>,
        info: *mut fi_info,
        context: *mut c_void,
    ) -> Result<Arc<Self>, c_int> {
        // SAFETY: null or valid.
        let info: &fi_info = unsafe { isthmus_cabi::object(info) }.ok_or(FI_EINVAL)?;
        // SAFETY: null or valid.
        let attr: Option<&fi_ep_attr> = unsafe { isthmus_cabi::object(info.ep_attr) };
        if attr.is_some_and(|a| !matches!(a.ep_type, FI_EP_UNSPEC | FI_EP_RDM)) || !domain.is_own() {
            return Err(FI_EINVAL);
        }
        // SAFETY: null or valid.
        let tx: Option<&fi_tx_attr> = unsafe { isthmus_cabi::object(info.tx_attr) };
        // SAFETY: null or valid.
        let rx: Option<&fi_rx_attr> = unsafe { isthmus_cabi::object(info.rx_attr) };
        let core = domain.core();
        let table = domain.store.table(&domain.member);
        let memory = Box::new(Reach { core, registrations: Arc::clone(&domain.registrations), table });
        let config = Config { backlog_bytes: most_queued(), ..Config::default() };
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
            bound: Bound::default(),
            moving: false,
            sleepers: 0,
            short: std::ptr::null(),
            directed: info.caps & FI_DIRECTED_RECV != 0,
            tx_flags: tx.map_or(0, |t| t.op_flags),
            rx_flags: rx.map_or(0, |r| r.op_flags),
            min_multi_recv: MIN_MULTI_RECV,
            peers: Vec::new(),
            ends: Ends {
                wants_source: info.caps & FI_SOURCE != 0,
                av: None,
                tx: Side::default(),
                rx: Side::default(),
                sends: None,
                receives: None,
                reads: None,
                writes: None,
                numbers: Vec::new(),
            },
        };
        let state = Lock::new(domain.locks, state);
        let ep = Arc::new(Self { head, poison: Poison::new(), domain, state, bell: OnceLock::new() });
        ep.domain.endpoints.lock().push(Arc::downgrade(&ep));
        Ok(ep)
    }

    /// The short way of a poll for `cq`: short messages, or nothing; only where that can be told without a lock, and
    /// where what is received makes entries in that queue and nothing else. They go to `to`, as long as there is room.
    #[inline(always)]
    pub(crate) fn poll_short(&self, cq: &Cq, wait: bool, to: &mut Destination) -> Short {
        let Some(mut state) = self.state.unlocked() else { return Short::Other };
        if !std::ptr::eq(state.short, cq) || self.poison.is_set() {
            return Short::Other;
        }
        let State { transport, ends, moving, .. } = &mut *state;
        let Some(transport) = transport else { return Short::Other };
        *moving = true;
        // Exactly those that make no entry leave room.
        let found = transport.poll_short(to.room(), wait, &mut Straight { ends, cq, to });
        *moving = false;
        found
    }

    /// Moves everything, unless another thread is at it.
    pub(crate) fn progress(&self) -> Progress {
        let body = || {
            let Some(mut state) = self.state.try_lock() else { return Progress::Elsewhere };
            if state.moving {
                return Progress::Broken;
            }
            state.moving = true;
            let short = std::mem::replace(&mut state.short, std::ptr::null());
            state.advance();
            state.short = short;
            state.moving = false;
            Progress::Made
        };
        let report =
            |said: &str| log!(self.core(), WARN, EP_DATA, "internal error, the endpoint is closed: {said}");
        // Guarded by itself, so that a panic breaks this endpoint and not all others of a queue.
        guard(&self.poison, Progress::Broken, report, body)
    }

    /// Returns when the progress that another thread was making has ended.
    pub(crate) fn await_progress(&self) {
        drop(self.state.lock());
    }

    /// Whether any message can come or go without a lane being opened first.
    pub(crate) fn has_lanes(&self) -> bool {
        self.state.try_lock().is_none_or(|s| s.transport.as_ref().is_none_or(Endpoint::has_lanes))
    }

    /// Whether a thread can sleep on a futex here.
    pub(crate) fn has_futex(&self) -> bool {
        self.domain.member.has_futexes()
    }

    /// Whether there are more processes than processors.
    pub(crate) fn is_crowded(&self) -> bool {
        self.state.try_lock().is_some_and(|s| s.transport.as_ref().is_some_and(Endpoint::is_crowded))
    }

    /// Whether a message or an operation is under way with others, which may have an end soon.
    pub(crate) fn has_transfers(&self) -> bool {
        self.state.try_lock().is_some_and(|s| s.transport.as_ref().is_some_and(Endpoint::has_transfers))
    }

    /// The eventfd that is written when the endpoint sleeps and is rung; made when it is needed first.
    pub(crate) fn bell(&self) -> Option<&OwnedFd> {
        if self.bell.get().is_none() {
            let made = self.state.lock().transport.as_ref()?.bell().ok()?;
            // Another thread may be first, which is as well: the service rings all that it gave.
            let _ = self.bell.set(made);
        }
        self.bell.get()
    }

    /// Gets ready to sleep; nothing if there is something to do. Each success is followed by one [`Ep::wake_up`].
    pub(crate) fn fall_asleep(&self, bell: Bell) -> Option<Asleep> {
        let mut state = self.state.lock();
        if state.moving || self.poison.is_set() {
            return None;
        }
        let asleep = state.transport.as_mut()?.fall_asleep(bell)?;
        state.sleepers += 1;
        Some(asleep)
    }

    /// Ends a sleep. While others sleep on this endpoint it goes on to be rung for them; whoever finds something wakes them.
    pub(crate) fn wake_up(&self) {
        let mut state = self.state.lock();
        state.sleepers = state.sleepers.saturating_sub(1);
        if state.sleepers == 0
            && let Some(transport) = &mut state.transport
        {
            transport.wake_up();
        }
    }

    /// Runs a post, which waits for its turn, and again after progress if there was no room.
    #[inline]
    fn post(
        &self,
        is_bound: impl Fn(&State) -> bool,
        mut post: impl FnMut(&mut State) -> Result<(), c_int>,
    ) -> isize {
        let mut state = self.state.lock();
        if !is_bound(&state) || state.moving {
            return failed(match (state.moving, state.enabled) {
                (true, _) => FI_EIO,
                (false, false) => FI_EOPBADSTATE,
                (false, true) => FI_ENOCQ,
            });
        }
        let mut again = true;
        loop {
            match post(&mut state) {
                Ok(()) => return 0,
                Err(FI_EAGAIN) if again => {
                    again = false;
                    state.advance();
                }
                Err(error) => return failed(error),
            }
        }
    }

    /// Sends one buffer with the endpoint's own flags: the short way for what is short and usual.
    #[inline(always)]
    pub(crate) fn send_one(&self, what: One, data: Option<u64>, context: *mut c_void) -> isize {
        if let Some(mut state) = self.state.unlocked()
            && state.may_send()
            && !state.moving
            && state.tx_flags & DELIVERED == 0
            && let Some(to) = state.known(what.peer)
            && let Some(transport) = &mut state.transport
            && transport.send_at_once(to, what.tagged, what.tag, data, what.buf)
        {
            let ticket = state.tx_how(context).ticket();
            state.ends.sent(what.tagged, ticket);
            return 0;
        }
        self.send_one_otherwise(what, data, Some(context))
    }

    /// Injects one buffer.
    #[inline(always)]
    pub(crate) fn inject_one(&self, what: One, data: Option<u64>) -> isize {
        if let Some(mut state) = self.state.unlocked()
            && state.may_send()
            && !state.moving
            && let Some(to) = state.known(what.peer)
            && let Some(transport) = &mut state.transport
            && transport.send_at_once(to, what.tagged, what.tag, data, what.buf)
        {
            if let Some(counter) = &state.ends.sends {
                counter.count(true);
            }
            return 0;
        }
        self.send_one_otherwise(what, data, None)
    }

    #[inline(never)]
    fn send_one_otherwise(&self, what: One, data: Option<u64>, context: Option<*mut c_void>) -> isize {
        let One { peer, tagged, tag, buf } = what;
        let message = Message { peer, tagged, tag, data, bufs: &[buf] };
        self.send(&message, |s| context.map_or_else(How::inject, |context| s.tx_how(context)))
    }

    /// Posts a receive of one buffer with the endpoint's own flags: the short way for the usual.
    #[inline(always)]
    pub(crate) fn receive_one(&self, what: One, ignore: u64, context: *mut c_void) -> isize {
        if let Some(mut state) = self.state.unlocked()
            && state.may_receive()
            && !state.moving
            && state.rx_flags & (FI_PEEK | FI_CLAIM | FI_DISCARD | FI_MULTI_RECV) == 0
        {
            let any = !state.directed || what.peer == FI_ADDR_UNSPEC;
            let from = if any { None } else { state.known(what.peer) };
            let ticket = state.rx_how(context).ticket();
            let select = Selector { tagged: what.tagged, from, tag: what.tag, ignore };
            if (any || from.is_some())
                && let Some(transport) = &mut state.transport
                && transport.receive_at_once(select, what.buf, ticket)
            {
                return 0;
            }
        }
        self.receive_one_otherwise(what, ignore, context)
    }

    #[inline(never)]
    fn receive_one_otherwise(&self, what: One, ignore: u64, context: *mut c_void) -> isize {
        let One { peer, tagged, tag, buf } = what;
        let message = Message { peer, tagged, tag, data: None, bufs: &[buf] };
        self.receive(&message, ignore, |s| s.rx_how(context))
    }

    /// Sends a message.
    #[inline]
    pub(crate) fn send(&self, what: &Message<'_>, how: impl Fn(&State) -> How) -> isize {
        self.post(State::may_send, |state| {
            let how = how(state);
            let to = state.peer(what.peer)?;
            let inject = how.flags & FI_INJECT != 0;
            let matched = how.flags & FI_MATCH_COMPLETE != 0;
            let delivered = how.flags & DELIVERED != 0;
            let ticket = how.ticket();
            let send = Send {
                to,
                tagged: what.tagged,
                tag: what.tag,
                data: what.data,
                bufs: what.bufs,
                inject,
                delivered,
                ticket,
            };
            let transport = state.transport()?;
            let posted = if matched { transport.send_until_matched(&send) } else { transport.send(&send) };
            match posted.map_err(errno::of_post)? {
                Posted::Pending => {}
                Posted::Done => state.ends.sent(what.tagged, ticket),
            }
            Ok(())
        })
    }

    /// Posts a receive, a peek, or a claim.
    #[inline]
    pub(crate) fn receive(&self, what: &Message<'_>, ignore: u64, how: impl Fn(&State) -> How) -> isize {
        self.post(State::may_receive, |state| {
            let how = how(state);
            if how.flags & (FI_PEEK | FI_CLAIM | FI_DISCARD) != 0 {
                return state.look(what, ignore, how);
            }
            let mut ticket = how.ticket();
            let mut multi = None;
            if how.flags & FI_MULTI_RECV != 0 {
                ticket.flags |= MULTI;
                multi = Some(state.min_multi_recv);
            }
            let select = state.select(what, ignore)?;
            let receive = Receive { select, bufs: what.bufs, multi, ticket };
            state.transport()?.receive(&receive).map_err(errno::of_post)
        })
    }

    /// Reads or writes remote memory.
    #[inline]
    pub(crate) fn rma(&self, what: &Remote<'_>, write: bool, how: impl Fn(&State) -> How) -> isize {
        self.post(if write { State::may_write } else { State::may_read }, |state| {
            let how = how(state);
            let to = state.peer(what.peer)?;
            let inject = write && how.flags & FI_INJECT != 0;
            let (key, addr, bufs, data) = (what.key, what.addr, what.bufs, what.data);
            let rma = Rma { to, key, addr, bufs, data, inject, ticket: how.ticket() };
            let transport = state.transport()?;
            let posted = if write { transport.write(&rma) } else { transport.read(&rma) };
            state.posted(posted)
        })
    }

    /// Does an atomic operation on remote memory.
    #[inline]
    pub(crate) fn atomic(&self, what: &RemoteAtomic<'_>, how: impl Fn(&State) -> How) -> isize {
        let Some(size) = arithmetic::valid(what.datatype, what.op, what.kind) else {
            return failed(FI_EOPNOTSUPP);
        };
        let count = what.count;
        let bytes = count.saturating_mul(size);
        if bytes > arithmetic::MOST_BYTES {
            return failed(FI_EMSGSIZE);
        }
        // The results say nothing about operands that a read does not have.
        let operand = if what.op == FI_ATOMIC_READ { &[] } else { what.operand };
        let total = |bufs: &[LocalBuf]| bufs.iter().map(|b| b.len()).sum::<usize>();
        let fits = (operand.is_empty() && what.op == FI_ATOMIC_READ || total(operand) == bytes)
            && (what.kind != AtomicKind::Compare || total(what.compare) == bytes)
            && (what.kind == AtomicKind::Plain || total(what.result) == bytes);
        if !fits {
            return failed(FI_EINVAL);
        }
        let may = if what.kind == AtomicKind::Plain { State::may_write } else { State::may_read };
        self.post(may, |state| {
            let how = how(state);
            let atomic = Atomic {
                to: state.peer(what.peer)?,
                key: what.key,
                addr: what.addr,
                kind: what.kind,
                datatype: u8::try_from(what.datatype).map_err(|_| FI_EOPNOTSUPP)?,
                op: u8::try_from(what.op).map_err(|_| FI_EOPNOTSUPP)?,
                count: u32::try_from(count).map_err(|_| FI_EMSGSIZE)?,
                size: u32::try_from(size).map_err(|_| FI_EMSGSIZE)?,
                operand,
                compare: what.compare,
                result: what.result,
                inject: how.flags & FI_INJECT != 0,
                ticket: how.ticket(),
            };
            let posted = state.transport()?.atomic(&atomic);
            state.posted(posted)
        })
    }

    fn bind(this: &Arc<Self>, other: *mut fid, flags: u64) -> c_int {
        // SAFETY: an object of the caller's.
        let Some(class) = (unsafe { isthmus_cabi::object(other) }).map(|f| f.fclass) else {
            return -FI_EINVAL;
        };
        let mut state = this.state.lock();
        match class {
            FI_CLASS_AV => {
                // SAFETY: by its class an address vector, and ours if the domain is (checked next).
                let Some(av) = (unsafe { object::share::<Av>(other.cast()) }) else { return -FI_EINVAL };
                if !Arc::ptr_eq(&av.domain, &this.domain) {
                    return -FI_EINVAL;
                }
                av.enlist(this);
                state.ends.av = Some(av);
                0
            }
            FI_CLASS_CQ => {
                // SAFETY: as above.
                let Some(cq) = (unsafe { object::share::<Cq>(other.cast()) }) else { return -FI_EINVAL };
                if !Arc::ptr_eq(&cq.domain, &this.domain) || flags & (FI_TRANSMIT | FI_RECV) == 0 {
                    return -FI_EINVAL;
                }
                let selective = flags & FI_SELECTIVE_COMPLETION != 0;
                enlist(cq.endpoints(), this);
                if flags & FI_TRANSMIT != 0 {
                    state.ends.tx = Side { cq: Some(Arc::clone(&cq)), selective };
                }
                if flags & FI_RECV != 0 {
                    state.ends.rx = Side { cq: Some(cq), selective };
                }
                state.find_ends();
                0
            }
            FI_CLASS_CNTR => {
                // SAFETY: as above.
                let Some(cntr) = (unsafe { object::share::<Cntr>(other.cast()) }) else { return -FI_EINVAL };
                if !Arc::ptr_eq(&cntr.domain, &this.domain) {
                    return -FI_EINVAL;
                }
                // What others do to our memory is not counted: that is FI_RMA_EVENT, which is not offered.
                if flags & (FI_REMOTE_READ | FI_REMOTE_WRITE) != 0 {
                    return -FI_ENOSYS;
                }
                enlist(cntr.endpoints(), this);
                for (bit, place) in [FI_SEND, FI_RECV, FI_READ, FI_WRITE].into_iter().zip(state.counters()) {
                    if flags & bit != 0 {
                        *place = Some(Arc::clone(&cntr));
                    }
                }
                state.find_ends();
                0
            }
            // No event of ours goes to an event queue.
            FI_CLASS_EQ => 0,
            _ => -FI_ENOSYS,
        }
    }

    /// Forgets a number that was removed from the address vector.
    pub(crate) fn forget(&self, number: fi_addr_t) {
        let mut state = self.state.lock();
        let known = usize::try_from(number).ok().and_then(|n| state.peers.get_mut(n));
        let Some(peer) = known.map(|place| std::mem::replace(place, UNKNOWN)) else { return };
        if let Some(place) = state.ends.numbers.get_mut(peer as usize).filter(|n| **n == number) {
            *place = FI_ADDR_NOTAVAIL;
        }
    }

    fn enable(&self) -> c_int {
        let mut state = self.state.lock();
        if state.ends.av.is_none() {
            return -FI_ENOAV;
        }
        let counted = state.counters().into_iter().any(|c| c.is_some());
        if state.ends.tx.cq.is_none() && state.ends.rx.cq.is_none() && !counted {
            return -FI_ENOCQ;
        }
        state.enabled = true;
        state.find_ends();
        0
    }

    /// Takes the endpoint out of everything that knows it, and closes its transport.
    fn shut(this: &Arc<Self>) {
        let mut state = this.state.lock();
        let broken = state.moving;
        let transport = state.transport.take();
        let name = state.name.take();
        let mut cqs = vec![state.ends.tx.cq.take(), state.ends.rx.cq.take()];
        let mut counters: Vec<_> = state.counters().into_iter().map(Option::take).collect();
        state.ends.av = None;
        state.enabled = false;
        state.find_ends();
        drop(state);
        if this.domain.is_own() {
            drop(name);
        } else {
            // The parent's, which still has it.
            std::mem::forget(name);
        }
        for cq in cqs.drain(..).flatten() {
            cq.endpoints().lock().retain(|e| !Arc::ptr_eq(e, this));
        }
        for counter in counters.drain(..).flatten() {
            counter.endpoints().lock().retain(|e| !Arc::ptr_eq(e, this));
        }
        let others: Vec<_> = {
            let mut all = this.domain.endpoints.lock();
            all.retain(|e| e.strong_count() > 0 && !std::ptr::eq(e.as_ptr(), Arc::as_ptr(this)));
            all.iter().filter_map(Weak::upgrade).collect()
        };
        match transport {
            // What a panic left half changed is not moved any more, only taken out of the region.
            Some(transport) if this.domain.is_own() && (broken || this.poison.is_set()) => drop(transport),
            Some(transport) if this.domain.is_own() => {
                // Waits until what was sent has been taken by those that live.
                let mut closing = transport.begin_close(isthmus_transport::CLOSE_PATIENCE);
                let waiting = loop {
                    let turn = this.domain.closing.lock();
                    let end = closing.advance();
                    drop(turn);
                    if let Some(waiting) = end {
                        break waiting;
                    }
                    // What was sent to others of this domain is taken by nobody but this thread, and a broken one never
                    // takes anything.
                    if others.iter().any(|other| other.progress() == Progress::Broken) {
                        return;
                    }
                    closing.rest();
                };
                if waiting > 0 {
                    log!(
                        this.core(),
                        WARN,
                        EP_CTRL,
                        "closed with messages that {waiting} live receivers did not take for {} s; they are lost",
                        isthmus_transport::CLOSE_PATIENCE.as_secs()
                    );
                }
            }
            // In a forked child the region is not mapped.
            other => std::mem::forget(other),
        }
    }
}

/// Most bytes of memory for posts of an endpoint that wait for room: a part of the machine's, so that one that sends without end to
/// a process that stands still does not take all of it. Beyond that posts are refused.
fn most_queued() -> u64 {
    let info = rustix::system::sysinfo();
    let memory = (info.totalram as u64).saturating_mul(info.mem_unit.into());
    (memory / MEMORY_PART).max(LEAST_QUEUED)
}

/// Gives an endpoint the name that `info` has as its source, if it has one.
fn own_name(domain: &Domain, info: &fi_info, address: &Address) -> Result<Option<endpoint::Name>, c_int> {
    if info.src_addr.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller vouches for `src_addrlen` bytes.
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
    if name.region != address.region || name.peer != domain.member.peer() {
        log!(domain.core(), WARN, EP_CTRL, "the source address {name} is not this host's or VM's");
        return Err(FI_EADDRNOTAVAIL);
    }
    if name.service().is_empty() {
        return Ok(None);
    }
    let given = endpoint::Name::give(&domain.member, name.service(), address.slot, address.incarnation);
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

/// A message of one buffer, or what a receive takes into one.
#[derive(Clone, Copy)]
pub(crate) struct One {
    /// Number in the address vector.
    pub(crate) peer: fi_addr_t,
    pub(crate) tagged: bool,
    pub(crate) tag: u64,
    pub(crate) buf: LocalBuf,
}

/// A message to be sent, or what a receive takes.
pub(crate) struct Message<'a> {
    /// Number in the address vector.
    pub(crate) peer: fi_addr_t,
    pub(crate) tagged: bool,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) bufs: &'a [LocalBuf],
}

/// A read or write.
pub(crate) struct Remote<'a> {
    pub(crate) peer: fi_addr_t,
    pub(crate) key: u64,
    pub(crate) addr: u64,
    pub(crate) data: Option<u64>,
    pub(crate) bufs: &'a [LocalBuf],
}

/// An atomic operation.
pub(crate) struct RemoteAtomic<'a> {
    pub(crate) peer: fi_addr_t,
    pub(crate) key: u64,
    pub(crate) addr: u64,
    pub(crate) kind: AtomicKind,
    pub(crate) datatype: u32,
    pub(crate) op: u32,
    pub(crate) count: usize,
    pub(crate) operand: &'a [LocalBuf],
    pub(crate) compare: &'a [LocalBuf],
    pub(crate) result: &'a [LocalBuf],
}

impl State {
    /// How a call without flags completes, on the sending side.
    #[inline]
    pub(crate) fn tx_how(&self, context: *mut c_void) -> How {
        self.tx_how_with(context, self.tx_flags)
    }

    /// How a call with flags of its own completes, on the sending side.
    #[inline]
    pub(crate) fn tx_how_with(&self, context: *mut c_void, flags: u64) -> How {
        How { context, flags, entry: !self.ends.tx.selective || flags & FI_COMPLETION != 0 }
    }

    /// How a call without flags completes, on the receiving side.
    #[inline]
    pub(crate) fn rx_how(&self, context: *mut c_void) -> How {
        self.rx_how_with(context, self.rx_flags)
    }

    /// How a call with flags of its own completes, on the receiving side.
    #[inline]
    pub(crate) fn rx_how_with(&self, context: *mut c_void, flags: u64) -> How {
        How { context, flags, entry: !self.ends.rx.selective || flags & FI_COMPLETION != 0 }
    }

    #[inline]
    fn transport(&mut self) -> Result<&mut Endpoint, c_int> {
        self.transport.as_mut().ok_or(FI_EOPBADSTATE)
    }

    /// Sets what follows from what is bound.
    fn find_ends(&mut self) {
        let ends = &self.ends;
        let told = |side: &Option<Arc<Cq>>, counter: &Option<Arc<Cntr>>| {
            self.enabled && (side.is_some() || counter.is_some())
        };
        self.bound = Bound {
            sends: told(&ends.tx.cq, &ends.sends),
            reads: told(&ends.tx.cq, &ends.reads),
            writes: told(&ends.tx.cq, &ends.writes),
            receives: told(&ends.rx.cq, &ends.receives),
        };
        let cq = self.ends.rx.cq.as_ref().filter(|_| self.enabled && self.ends.receives.is_none());
        self.short = cq.map_or(std::ptr::null(), Arc::as_ptr);
    }

    fn counters(&mut self) -> [&mut Option<Arc<Cntr>>; 4] {
        let ends = &mut self.ends;
        [&mut ends.sends, &mut ends.receives, &mut ends.reads, &mut ends.writes]
    }

    /// Moves everything, and hands out what completed.
    fn advance(&mut self) {
        if let Some(transport) = &mut self.transport {
            transport.progress_into(&mut self.ends);
            while let Some(who) = transport.take_faulty() {
                log!(self.core, WARN, EP_DATA, "{who} broke the protocol; it is treated as gone");
            }
            if transport.take_shortage() {
                log!(
                    self.core,
                    WARN,
                    EP_DATA,
                    "the region is full: there are processes whose messages wait until this host or VM gives memory of it \
                     back; a larger one (--region-size) has room for them"
                );
            }
            if transport.take_memory_shortage() {
                log!(
                    self.core,
                    WARN,
                    EP_DATA,
                    "this process has no memory left (ulimit -v?) for messages that it has no receive for yet: they wait at \
                     their senders until it receives what it has"
                );
            }
        }
    }

    /// Ends a one-sided post: one that is over has its completion at once.
    fn posted(&mut self, posted: Result<Posted, PostError>) -> Result<(), c_int> {
        if posted.map_err(errno::of_post)? == Posted::Done {
            self.drain();
        }
        Ok(())
    }

    /// Hands out what completed.
    fn drain(&mut self) {
        if let Some(transport) = &mut self.transport {
            transport.drain_into(&mut self.ends);
        }
    }

    /// Whether sends are taken.
    #[inline]
    fn may_send(&self) -> bool {
        self.bound.sends
    }

    /// Whether what fetches is taken.
    fn may_read(&self) -> bool {
        self.bound.reads
    }

    /// Whether what only changes is taken.
    fn may_write(&self) -> bool {
        self.bound.writes
    }

    /// Whether receives are taken.
    #[inline]
    fn may_receive(&self) -> bool {
        self.bound.receives
    }

    /// The transport's number of a peer that was used before.
    #[inline]
    fn known(&self, number: fi_addr_t) -> Option<PeerId> {
        let peer = usize::try_from(number).ok().and_then(|n| self.peers.get(n)).copied();
        peer.filter(|peer| *peer != UNKNOWN).map(PeerId)
    }

    /// The transport's number of a peer.
    #[inline]
    fn peer(&mut self, number: fi_addr_t) -> Result<PeerId, c_int> {
        self.known(number).map_or_else(|| self.resolve(number), Ok)
    }

    /// The same of a peer that was not.
    #[cold]
    fn resolve(&mut self, number: fi_addr_t) -> Result<PeerId, c_int> {
        if number >= MOST_ADDRESSES {
            return Err(FI_EINVAL);
        }
        let address = self.ends.av.as_ref().ok_or(FI_EINVAL)?.address(number)?;
        let peer = self.transport()?.resolve(&address).map_err(|e| {
            log!(
                self.core,
                WARN,
                EP_DATA,
                "cannot use {address}: {}",
                isthmus_region::error::with_causes(&e)
            );
            errno::of_transport(&e)
        })?;
        set(&mut self.peers, number, UNKNOWN, peer.0);
        let place = u64::from(peer.0);
        // Of an address that was inserted twice the first number stands.
        if self.ends.numbers.get(peer.0 as usize).is_none_or(|n| *n == FI_ADDR_NOTAVAIL) {
            set(&mut self.ends.numbers, place, FI_ADDR_NOTAVAIL, number);
        }
        Ok(peer)
    }

    #[inline]
    fn select(&mut self, what: &Message<'_>, ignore: u64) -> Result<Selector, c_int> {
        let any = !self.directed || what.peer == FI_ADDR_UNSPEC;
        let from = if any { None } else { Some(self.peer(what.peer)?) };
        Ok(Selector { tagged: what.tagged, from, tag: what.tag, ignore })
    }

    /// A receive with `FI_PEEK`, `FI_CLAIM` or `FI_DISCARD`.
    #[cold]
    fn look(&mut self, what: &Message<'_>, ignore: u64, how: How) -> Result<(), c_int> {
        let ticket = how.ticket();
        let has = |flag: u64| how.flags & flag != 0;
        if has(FI_PEEK) {
            // Whoever peeks waits for the answer, in whatever mode completions are.
            let ticket = Ticket { flags: ticket.flags | ENTRY, ..ticket };
            let select = self.select(what, ignore)?;
            self.transport()?.peek(&select, has(FI_CLAIM), has(FI_DISCARD) && !has(FI_CLAIM), ticket);
        } else if !has(FI_CLAIM) {
            return Err(FI_EINVAL);
        } else if has(FI_DISCARD) {
            self.transport()?.discard_claimed(ticket.context, ticket).map_err(errno::of_post)?;
        } else {
            // The context alone says which message: callers give all kinds of addresses here.
            self.transport()?.receive_claimed(ticket.context, what.bufs, ticket).map_err(errno::of_post)?;
        }
        self.drain();
        Ok(())
    }
}

/// Short messages on their way straight into a reader's arrays.
struct Straight<'a> {
    ends: &'a mut Ends,
    cq: &'a Cq,
    to: &'a mut Destination,
}

impl ShortSink for Straight<'_> {
    #[inline(always)]
    fn take(&mut self, got: &ShortReceived, from: &Address) {
        if got.ticket.flags & ENTRY != 0 {
            self.cq.place(&self.ends.entry(got, from), self.to);
        }
    }
}

impl Sink for Ends {
    #[inline]
    fn complete(&mut self, done: &Completion, source: Option<&Address>) {
        match done.op {
            // What nearly all completions are.
            Op::Receive { tagged } if done.status == Status::Ok && !done.released => {
                if let Some(counter) = &self.receives {
                    counter.count(true);
                }
                if done.ticket.flags & ENTRY == 0 {
                    return;
                }
                let number = self.number(done.source, source);
                let Some(cq) = &self.rx.cq else { return };
                let data = if done.data.is_some() { FI_REMOTE_CQ_DATA } else { 0 };
                cq.push(Entry {
                    context: done.ticket.context,
                    flags: FI_RECV | message_flag(tagged) | data,
                    len: done.len,
                    buf: done.buf,
                    data: done.data.unwrap_or(0),
                    tag: done.tag,
                    source: number,
                    fault: None,
                });
            }
            _ => self.complete_other(done, source),
        }
    }
}

impl Ends {
    /// The number in the address vector of a peer that sent something.
    #[inline]
    fn number(&mut self, peer: Option<PeerId>, address: Option<&Address>) -> fi_addr_t {
        let Some(peer) = peer else { return FI_ADDR_NOTAVAIL };
        match self.numbers.get(peer.0 as usize) {
            Some(number) if *number != FI_ADDR_NOTAVAIL => *number,
            _ if self.wants_source => self.find(peer, address),
            _ => FI_ADDR_NOTAVAIL,
        }
    }

    /// The entry of a short message.
    #[inline(always)]
    fn entry(&mut self, got: &ShortReceived, from: &Address) -> Entry {
        let data = if got.data.is_some() { FI_REMOTE_CQ_DATA } else { 0 };
        Entry {
            context: got.ticket.context,
            flags: FI_RECV | message_flag(got.tagged) | data,
            len: got.len as u64,
            buf: got.buf,
            data: got.data.unwrap_or(0),
            tag: got.tag,
            source: self.number(Some(got.source), Some(from)),
            fault: None,
        }
    }

    #[cold]
    fn find(&mut self, peer: PeerId, address: Option<&Address>) -> fi_addr_t {
        let found = address.and_then(|address| self.av.as_ref()?.number(address));
        if let Some(number) = found {
            set(&mut self.numbers, u64::from(peer.0), FI_ADDR_NOTAVAIL, number);
        }
        found.unwrap_or(FI_ADDR_NOTAVAIL)
    }

    /// A send that completed in its call.
    #[inline]
    fn sent(&mut self, tagged: bool, ticket: Ticket) {
        if let Some(counter) = &self.sends {
            counter.count(true);
        }
        if let Some(cq) = &self.tx.cq
            && ticket.flags & ENTRY != 0
        {
            cq.push(Entry {
                context: ticket.context,
                flags: FI_SEND | message_flag(tagged),
                len: 0,
                buf: 0,
                data: 0,
                tag: 0,
                source: FI_ADDR_NOTAVAIL,
                fault: None,
            });
        }
    }

    /// Counts a completion and makes an entry of it where one is wanted.
    #[inline(never)]
    fn complete_other(&mut self, done: &Completion, source: Option<&Address>) {
        let ok = done.status == Status::Ok;
        let mut flags = match done.op {
            Op::Send { tagged } => FI_SEND | message_flag(tagged),
            Op::Receive { tagged } | Op::Peek { tagged } => FI_RECV | message_flag(tagged),
            Op::Read => FI_RMA | FI_READ,
            Op::Write => FI_RMA | FI_WRITE,
            Op::Atomic(AtomicKind::Plain) => FI_ATOMIC | FI_WRITE,
            Op::Atomic(AtomicKind::Fetch | AtomicKind::Compare) => FI_ATOMIC | FI_READ,
            Op::RemoteWrite => FI_RMA | FI_REMOTE_WRITE,
        };
        // A buffer that is given back without a message.
        let bare = done.released && done.source.is_none() && ok;
        let counter = match done.op {
            Op::Send { .. } => &self.sends,
            Op::Receive { .. } if !bare => &self.receives,
            Op::Receive { .. } | Op::Peek { .. } | Op::RemoteWrite => &None,
            Op::Read | Op::Atomic(AtomicKind::Fetch | AtomicKind::Compare) => &self.reads,
            Op::Write | Op::Atomic(AtomicKind::Plain) => &self.writes,
        };
        if let Some(counter) = counter {
            counter.count(ok);
        }
        let incoming = matches!(done.op, Op::Receive { .. } | Op::Peek { .. } | Op::RemoteWrite);
        let always = done.op == Op::RemoteWrite || done.released || !ok;
        if done.ticket.flags & ENTRY == 0 && !always {
            return;
        }
        if done.data.is_some() && incoming {
            flags |= FI_REMOTE_CQ_DATA;
        }
        if bare {
            flags = FI_MULTI_RECV;
        } else if done.released || (done.status == Status::Canceled && done.ticket.flags & MULTI != 0) {
            flags |= FI_MULTI_RECV;
        }
        let fault = if ok {
            None
        } else {
            let cut = if let Status::Truncated { cut } = done.status { cut } else { 0 };
            Some(Box::new(Fault { error: errno::of_status(done.status), cut }))
        };
        let entry = Entry {
            context: done.ticket.context,
            flags,
            len: done.len,
            buf: done.buf,
            data: done.data.unwrap_or(0),
            tag: done.tag,
            source: self.number(done.source, source),
            fault,
        };
        let side = if incoming { &self.rx } else { &self.tx };
        if let Some(cq) = &side.cq {
            cq.push(entry);
        }
    }
}

#[inline]
fn message_flag(tagged: bool) -> u64 {
    if tagged { FI_TAGGED } else { FI_MSG }
}

/// Writes into a table that grows.
fn set<T: Copy>(table: &mut Vec<T>, at: u64, empty: T, value: T) {
    let Ok(at) = usize::try_from(at) else { return };
    if table.len() <= at {
        table.resize(at + 1, empty);
    }
    table[at] = value;
}

/// Runs a post on an endpoint.
///
/// # Safety
/// Our endpoint, or null.
#[inline]
pub(crate) unsafe fn with(ep: *mut fid_ep, body: impl FnOnce(&Ep) -> isize) -> isize {
    // SAFETY: passed on.
    unsafe { object::call::<Ep, _>(ep, failed(FI_EIO), body) }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    let last = |ep: &Arc<Ep>| {
        Ep::shut(ep);
        0
    };
    // SAFETY: our endpoint, closed once.
    unsafe { object::close::<Ep>(fid.cast(), last) }
}

unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: our endpoint.
    let Some(ep) = (unsafe { object::share::<Ep>(fid.cast()) }) else { return -FI_EINVAL };
    // SAFETY: as above.
    unsafe { object::call::<Ep, _>(fid.cast(), -FI_EIO, |_| Ep::bind(&ep, other, flags)) }
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    let body = |ep: &Ep| match command {
        FI_ENABLE => ep.enable(),
        FI_GETOPSFLAG | FI_SETOPSFLAG if arg.is_null() => -FI_EINVAL,
        FI_GETOPSFLAG => {
            let state = ep.state.lock();
            // SAFETY: not null; a flags word, by the command.
            let side = unsafe { arg.cast::<u64>().read() };
            let flags = if side & FI_TRANSMIT != 0 { state.tx_flags } else { state.rx_flags };
            // SAFETY: as above.
            unsafe { arg.cast::<u64>().write(flags) };
            0
        }
        FI_SETOPSFLAG => {
            let mut state = ep.state.lock();
            // SAFETY: as above.
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
    // SAFETY: our endpoint.
    unsafe { object::call::<Ep, _>(fid.cast(), -FI_EIO, body) }
}

unsafe extern "C" fn cancel(fid: *mut fid, context: *mut c_void) -> isize {
    let body = |ep: &Ep| {
        let mut state = ep.state.lock();
        // Whether or not anything matches, the answer comes as a completion or not at all.
        if let Some(transport) = &mut state.transport {
            transport.cancel(context.expose_provenance() as u64);
        }
        state.drain();
        0
    };
    // SAFETY: our endpoint.
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
        // SAFETY: null or the caller's length.
        let Some(room) = (unsafe { isthmus_cabi::object(len) }).copied() else { return -FI_EINVAL };
        if value.is_null() || room < size_of::<usize>() {
            return -FI_ETOOSMALL;
        }
        let least = usize::try_from(ep.state.lock().min_multi_recv).unwrap_or(usize::MAX);
        // SAFETY: not null, and long enough.
        unsafe { value.cast::<usize>().write_unaligned(least) };
        // SAFETY: checked above.
        unsafe { len.write(size_of::<usize>()) };
        0
    };
    // SAFETY: our endpoint.
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
        // SAFETY: not null, and of this length.
        ep.state.lock().min_multi_recv = unsafe { value.cast::<usize>().read_unaligned() } as u64;
        0
    };
    // SAFETY: our endpoint.
    unsafe { object::call::<Ep, _>(fid.cast(), -FI_EIO, body) }
}

unsafe extern "C" fn tx_ctx(
    _sep: *mut fid_ep,
    _index: c_int,
    _attr: *mut fi_tx_attr,
    _answer: *mut *mut fid_ep,
    _context: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn rx_ctx(
    _sep: *mut fid_ep,
    _index: c_int,
    _attr: *mut fi_rx_attr,
    _answer: *mut *mut fid_ep,
    _context: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn size_left(_ep: *mut fid_ep) -> isize {
    // There is no fixed number; a post says -FI_EAGAIN when there is no room.
    failed(FI_ENOSYS)
}

unsafe extern "C" fn setname(_fid: *mut fid, _addr: *mut c_void, _len: usize) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn getname(fid: *mut fid, addr: *mut c_void, len: *mut usize) -> c_int {
    let body = |ep: &Ep| {
        let state = ep.state.lock();
        let Some(transport) = &state.transport else { return -FI_EOPBADSTATE };
        if len.is_null() {
            return -FI_EINVAL;
        }
        // SAFETY: the caller's buffer and its length.
        if unsafe { av::copy_name(&Place::Endpoint(transport.address()), addr, len) } {
            0
        } else {
            -FI_ETOOSMALL
        }
    };
    // SAFETY: our endpoint.
    unsafe { object::call::<Ep, _>(fid.cast(), -FI_EIO, body) }
}

unsafe extern "C" fn getpeer(_ep: *mut fid_ep, _addr: *mut c_void, _len: *mut usize) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn connect(
    _ep: *mut fid_ep,
    _addr: *const c_void,
    _param: *const c_void,
    _len: usize,
) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn listen(_pep: *mut c_void) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn accept(_ep: *mut fid_ep, _param: *const c_void, _len: usize) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn reject(
    _pep: *mut c_void,
    _handle: *mut fid,
    _param: *const c_void,
    _len: usize,
) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn shutdown(_ep: *mut fid_ep, _flags: u64) -> c_int {
    -FI_ENOSYS
}
