//! Posts: what a call asks for, and how it is handed to the transport.
//!
//! Messages of one buffer have a short way, which is inlined into the call and taken where locks are left out.

use std::ffi::{c_int, c_void};

use isthmus_fabric_sys::*;
use isthmus_region::local::LocalBuf;
use isthmus_transport::{Atomic, AtomicKind, Endpoint, PeerId, Posted, Receive, Rma, Selector, Send, Ticket};

use super::completion::{ENTRY, MULTI};
use super::{Ep, State, failed};
use crate::av::MOST_ADDRESSES;
use crate::core::log;
use crate::info::INJECT_BYTES;
use crate::{arithmetic, errno};

/// Flags of sends that complete only when the receiver has taken the message, or matched it.
const DELIVERED: u64 = FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE | FI_COMMIT_COMPLETE;

/// Flags of receives that look only at messages which have arrived.
const FROM_ARRIVED: u64 = FI_PEEK | FI_CLAIM | FI_DISCARD;

/// How a post completes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct How {
    pub(crate) context: *mut c_void,
    /// The call's flags, or the endpoint's where the call has none.
    pub(crate) flags: u64,
    /// Success makes an entry.
    entry: bool,
}

impl How {
    fn ticket(self) -> Ticket {
        let flags = if self.entry { ENTRY } else { 0 };
        Ticket { context: self.context.expose_provenance() as u64, flags }
    }

    /// An inject: no entry, and the buffer is the program's again on return.
    pub(crate) fn inject() -> Self {
        Self { context: std::ptr::null_mut(), flags: FI_INJECT, entry: false }
    }
}

/// A message of one buffer, or what a receive takes into one buffer.
#[derive(Clone, Copy)]
pub(crate) struct Single {
    /// Number in the address vector.
    pub(crate) remote: fi_addr_t,
    pub(crate) tagged: bool,
    pub(crate) tag: u64,
    pub(crate) buf: LocalBuf,
}

/// Remote memory that one buffer is written to, or read from.
#[derive(Clone, Copy)]
pub(crate) struct SinglePlace {
    /// Number in the address vector.
    pub(crate) remote: fi_addr_t,
    pub(crate) key: u64,
    pub(crate) addr: u64,
    pub(crate) buf: LocalBuf,
}

/// A message to be sent, or what a receive takes.
pub(crate) struct Message<'a> {
    /// Number in the address vector.
    pub(crate) remote: fi_addr_t,
    pub(crate) tagged: bool,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) bufs: &'a [LocalBuf],
}

/// A read or write of remote memory.
pub(crate) struct RmaPost<'a> {
    /// Number in the address vector.
    pub(crate) remote: fi_addr_t,
    pub(crate) key: u64,
    pub(crate) addr: u64,
    pub(crate) data: Option<u64>,
    pub(crate) bufs: &'a [LocalBuf],
}

/// An atomic operation on remote memory.
pub(crate) struct AtomicPost<'a> {
    /// Number in the address vector.
    pub(crate) remote: fi_addr_t,
    pub(crate) key: u64,
    pub(crate) addr: u64,
    pub(crate) kind: AtomicKind,
    pub(crate) datatype: u32,
    pub(crate) op: u32,
    /// Elements at the target.
    pub(crate) count: usize,
    pub(crate) operand: &'a [LocalBuf],
    pub(crate) compare: &'a [LocalBuf],
    pub(crate) result: &'a [LocalBuf],
}

impl Ep {
    /// Runs a post under the lock; if there is no room, once more after progress.
    #[inline]
    fn post(
        &self,
        may: impl Fn(&State) -> bool,
        mut post: impl FnMut(&mut State) -> Result<(), c_int>,
    ) -> isize {
        let mut state = self.state.lock();
        if !may(&state) || state.moving {
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

    /// Sends one buffer with the endpoint's flags: the short way, if the transport takes it at once.
    #[inline(always)]
    pub(crate) fn send_one(&self, what: Single, data: Option<u64>, context: *mut c_void) -> isize {
        if let Some(mut state) = self.state.without_lock()
            && state.may_send()
            && !state.moving
            && state.tx_flags & DELIVERED == 0
            && let Some(to) = state.remotes.likely(what.remote)
            && let Some(transport) = &mut state.transport
            && transport.send_at_once(to, what.tagged, what.tag, data, what.buf, usize::MAX)
        {
            let ticket = state.tx_how(context).ticket();
            state.bindings.sent(what.tagged, ticket);
            return 0;
        }
        self.send_one_otherwise(what, data, Some(context))
    }

    /// Injects one buffer: the short way, if the transport takes it at once.
    #[inline(always)]
    pub(crate) fn inject_one(&self, what: Single, data: Option<u64>) -> isize {
        if let Some(mut state) = self.state.without_lock()
            && state.may_send()
            && !state.moving
            && let Some(to) = state.remotes.likely(what.remote)
            && let Some(transport) = &mut state.transport
            && transport.send_at_once(to, what.tagged, what.tag, data, what.buf, INJECT_BYTES)
        {
            if let Some(counter) = &state.bindings.sends {
                counter.count(true);
            }
            return 0;
        }
        self.send_one_otherwise(what, data, None)
    }

    #[inline(never)]
    fn send_one_otherwise(&self, what: Single, data: Option<u64>, context: Option<*mut c_void>) -> isize {
        let Single { remote, tagged, tag, buf } = what;
        let message = Message { remote, tagged, tag, data, bufs: &[buf] };
        self.send(&message, |s| context.map_or_else(How::inject, |context| s.tx_how(context)))
    }

    /// Posts a receive of one buffer with the endpoint's flags: the short way, if the transport takes it at once.
    #[inline(always)]
    pub(crate) fn receive_one(&self, what: Single, ignore: u64, context: *mut c_void) -> isize {
        if let Some(mut state) = self.state.without_lock()
            && state.may_receive()
            && !state.moving
            && state.rx_flags & if what.tagged { FROM_ARRIVED } else { FROM_ARRIVED | FI_MULTI_RECV } == 0
        {
            let any = !state.directed || what.remote == FI_ADDR_UNSPEC;
            let from = if any { None } else { state.remotes.likely(what.remote) };
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
    fn receive_one_otherwise(&self, what: Single, ignore: u64, context: *mut c_void) -> isize {
        let Single { remote, tagged, tag, buf } = what;
        let message = Message { remote, tagged, tag, data: None, bufs: &[buf] };
        self.receive(&message, ignore, |s| s.rx_how(context))
    }

    /// Sends a message.
    #[inline]
    pub(crate) fn send(&self, what: &Message<'_>, how: impl Fn(&State) -> How) -> isize {
        self.post(State::may_send, |state| {
            let how = how(state);
            let to = state.remote(what.remote)?;
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
                Posted::Done => state.bindings.sent(what.tagged, ticket),
            }
            Ok(())
        })
    }

    /// Posts a receive, peeks, or claims.
    #[inline]
    pub(crate) fn receive(&self, what: &Message<'_>, ignore: u64, how: impl Fn(&State) -> How) -> isize {
        self.post(State::may_receive, |state| {
            let how = how(state);
            if how.flags & FROM_ARRIVED != 0 {
                return state.peek_or_claim(what, ignore, how);
            }
            let mut ticket = how.ticket();
            let mut multi = None;
            // By the endpoint's flags; a call for a tagged message has none of its own (fi_tagged(3)).
            if how.flags & FI_MULTI_RECV != 0 && !what.tagged {
                ticket.flags |= MULTI;
                multi = Some(state.min_multi_recv);
            }
            let select = state.select(what, ignore)?;
            let receive = Receive { select, bufs: what.bufs, multi, ticket };
            state.transport()?.receive(&receive).map_err(errno::of_post)?;
            // A message that was there already: nobody else tells a thread that sleeps.
            state.drain();
            Ok(())
        })
    }

    /// Writes one buffer to remote memory, or reads into one: the short way, if the transport does that at once.
    #[inline(always)]
    pub(crate) fn rma_one(&self, what: SinglePlace, write: bool, how: impl Fn(&State) -> How) -> isize {
        if let Some(mut state) = self.state.without_lock() {
            let how = how(&state);
            if state.rma_at_once(what, write, how.flags) {
                let flags = FI_RMA | if write { FI_WRITE } else { FI_READ };
                state.bindings.operated(!write, flags, what.buf.len() as u64, how.ticket());
                return 0;
            }
        }
        self.rma_otherwise(what, write, how)
    }

    #[inline(never)]
    fn rma_otherwise(&self, what: SinglePlace, write: bool, how: impl Fn(&State) -> How) -> isize {
        let SinglePlace { remote, key, addr, buf } = what;
        self.rma(&RmaPost { remote, key, addr, data: None, bufs: &[buf] }, write, how)
    }

    /// Reads or writes remote memory.
    #[inline]
    pub(crate) fn rma(&self, what: &RmaPost<'_>, write: bool, how: impl Fn(&State) -> How) -> isize {
        self.post(if write { State::may_write } else { State::may_read }, |state| {
            let how = how(state);
            let to = state.remote(what.remote)?;
            let inject = write && how.flags & FI_INJECT != 0;
            let (key, addr, bufs, data) = (what.key, what.addr, what.bufs, what.data);
            let ticket = how.ticket();
            let rma = Rma { to, key, addr, bufs, data, inject, ticket };
            let transport = state.transport()?;
            let posted = if write { transport.write(&rma) } else { transport.read(&rma) };
            match posted.map_err(errno::of_post)? {
                // Where it has failed already, nobody else tells a thread that sleeps.
                Posted::Pending => state.drain(),
                Posted::Done => {
                    let flags = FI_RMA | if write { FI_WRITE } else { FI_READ };
                    state.bindings.operated(
                        !write,
                        flags,
                        bufs.iter().map(|buf| buf.len() as u64).sum(),
                        ticket,
                    );
                }
            }
            Ok(())
        })
    }

    /// Does an atomic operation on remote memory.
    #[inline]
    pub(crate) fn atomic(&self, what: &AtomicPost<'_>, how: impl Fn(&State) -> How) -> isize {
        let Some(size) = arithmetic::valid(what.datatype, what.op, what.kind) else {
            return failed(FI_EOPNOTSUPP);
        };
        let count = what.count;
        let bytes = count.saturating_mul(size);
        if bytes > arithmetic::MOST_BYTES {
            return failed(FI_EMSGSIZE);
        }
        // A read has no operand: one that is given is ignored.
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
                to: state.remote(what.remote)?,
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
            let ticket = atomic.ticket;
            match state.transport()?.atomic(&atomic).map_err(errno::of_post)? {
                // Where it has failed already, nobody else tells a thread that sleeps.
                Posted::Pending => state.drain(),
                Posted::Done => {
                    let fetches = what.kind != AtomicKind::Plain;
                    let flags = FI_ATOMIC | if fetches { FI_READ } else { FI_WRITE };
                    state.bindings.operated(fetches, flags, bytes as u64, ticket);
                }
            }
            Ok(())
        })
    }
}

impl State {
    /// How a send, RMA or atomic operation without flags completes.
    #[inline]
    pub(crate) fn tx_how(&self, context: *mut c_void) -> How {
        self.tx_how_with(context, self.tx_flags)
    }

    /// How a send, RMA or atomic operation with flags completes.
    #[inline]
    pub(crate) fn tx_how_with(&self, context: *mut c_void, flags: u64) -> How {
        How { context, flags, entry: !self.bindings.tx.selective || flags & FI_COMPLETION != 0 }
    }

    /// How a receive without flags completes.
    #[inline]
    pub(crate) fn rx_how(&self, context: *mut c_void) -> How {
        self.rx_how_with(context, self.rx_flags)
    }

    /// How a receive with flags completes.
    #[inline]
    pub(crate) fn rx_how_with(&self, context: *mut c_void, flags: u64) -> How {
        How { context, flags, entry: !self.bindings.rx.selective || flags & FI_COMPLETION != 0 }
    }

    /// Whether the transport does it at once. An inject that is too long is refused elsewhere.
    #[inline(always)]
    fn rma_at_once(&mut self, what: SinglePlace, write: bool, flags: u64) -> bool {
        let SinglePlace { remote, key, addr, buf } = what;
        let may = if write { self.may_write() } else { self.may_read() };
        if !may || self.moving || write && flags & FI_INJECT != 0 && buf.len() > INJECT_BYTES {
            return false;
        }
        let Some(to) = self.remotes.likely(remote) else { return false };
        let Some(transport) = &mut self.transport else { return false };
        if write {
            transport.write_at_once(to, key, addr, buf)
        } else {
            transport.read_at_once(to, key, addr, buf)
        }
    }

    #[inline]
    fn transport(&mut self) -> Result<&mut Endpoint, c_int> {
        self.transport.as_mut().ok_or(FI_EOPBADSTATE)
    }

    /// Whether sends may be posted.
    #[inline]
    fn may_send(&self) -> bool {
        self.postable.sends
    }

    /// Whether operations that fetch may be posted.
    fn may_read(&self) -> bool {
        self.postable.reads
    }

    /// Whether operations that only change may be posted.
    fn may_write(&self) -> bool {
        self.postable.writes
    }

    /// Whether receives may be posted.
    #[inline]
    fn may_receive(&self) -> bool {
        self.postable.receives
    }

    /// The remote endpoint with a number of the address vector.
    #[inline]
    fn remote(&mut self, number: fi_addr_t) -> Result<PeerId, c_int> {
        self.remotes.known(number).map_or_else(|| self.resolve(number), Ok)
    }

    /// The same for a number that is used for the first time.
    #[cold]
    fn resolve(&mut self, number: fi_addr_t) -> Result<PeerId, c_int> {
        if number >= MOST_ADDRESSES {
            return Err(FI_EINVAL);
        }
        let address = self.bindings.av.as_ref().ok_or(FI_EINVAL)?.address(number)?;
        let remote = self.transport()?.resolve(&address).map_err(|e| {
            log!(
                self.core,
                WARN,
                EP_DATA,
                "cannot use {address}: {}",
                isthmus_region::error::with_causes(&e)
            );
            errno::of_transport(&e)
        })?;
        self.remotes.set(number, remote);
        // An address that was inserted twice goes back by its first number.
        if self.bindings.numbers.get(remote).is_none_or(|n| *n == FI_ADDR_NOTAVAIL) {
            self.bindings.numbers.set(remote, number);
        }
        Ok(remote)
    }

    #[inline]
    fn select(&mut self, what: &Message<'_>, ignore: u64) -> Result<Selector, c_int> {
        let any = !self.directed || what.remote == FI_ADDR_UNSPEC;
        let from = if any { None } else { Some(self.remote(what.remote)?) };
        Ok(Selector { tagged: what.tagged, from, tag: what.tag, ignore })
    }

    /// A receive with `FI_PEEK`, `FI_CLAIM` or `FI_DISCARD`.
    #[cold]
    fn peek_or_claim(&mut self, what: &Message<'_>, ignore: u64, how: How) -> Result<(), c_int> {
        let ticket = how.ticket();
        let has = |flag: u64| how.flags & flag != 0;
        if has(FI_PEEK) {
            // The program waits for the answer, so it makes an entry even where completions are selective.
            let ticket = Ticket { flags: ticket.flags | ENTRY, ..ticket };
            let select = self.select(what, ignore)?;
            self.transport()?.peek(&select, has(FI_CLAIM), has(FI_DISCARD) && !has(FI_CLAIM), ticket);
        } else if !has(FI_CLAIM) {
            return Err(FI_EINVAL);
        } else if has(FI_DISCARD) {
            self.transport()?.discard_claimed(ticket.context, ticket).map_err(errno::of_post)?;
        } else {
            // The context alone names the message: programs give any address here.
            self.transport()?.receive_claimed(ticket.context, what.bufs, ticket).map_err(errno::of_post)?;
        }
        self.drain();
        Ok(())
    }
}
