//! Where an endpoint's completions go: the queues and counters that are bound to it, and the entries they get.

use std::sync::Arc;

use isthmus_fabric_sys::*;
use isthmus_transport::{
    Address, AtomicKind, Completion, Op, PeerId, ShortReceived, ShortSink, Sink, Status, Ticket,
};

use crate::av::{Av, Numbers};
use crate::cntr::Cntr;
use crate::cq::{Cq, Destination, Entry, Fault};
use crate::errno;

/// [`Ticket::flags`]: success makes an entry, too.
pub(super) const ENTRY: u64 = 1;
/// [`Ticket::flags`]: it is a multi-receive.
pub(super) const MULTI: u64 = 2;

/// What is bound to an endpoint, and the numbers that its remote endpoints have in entries.
pub(super) struct Bindings {
    /// Whether a sender without a number here is searched for in the address vector, for `FI_SOURCE`.
    pub(super) wants_source: bool,
    pub(super) av: Option<Arc<Av>>,
    pub(super) tx: Side,
    pub(super) rx: Side,
    pub(super) sends: Option<Arc<Cntr>>,
    pub(super) receives: Option<Arc<Cntr>>,
    pub(super) reads: Option<Arc<Cntr>>,
    pub(super) writes: Option<Arc<Cntr>>,
    pub(super) numbers: Numbers,
}

/// The queue for the completions of one direction.
#[derive(Default)]
pub(super) struct Side {
    pub(super) cq: Option<Arc<Cq>>,
    /// Success makes an entry only where `FI_COMPLETION` is set.
    pub(super) selective: bool,
}

/// Takes short messages directly into the arrays of the `fi_cq_read` that polls.
pub(super) struct ToReader<'a> {
    pub(super) bindings: &'a mut Bindings,
    pub(super) cq: &'a Cq,
    pub(super) to: &'a mut Destination,
}

impl ShortSink for ToReader<'_> {
    #[inline(always)]
    fn take(&mut self, got: &ShortReceived, from: &Address) {
        if got.ticket.flags & ENTRY != 0 {
            let source = if self.to.wants_source() {
                self.bindings.number(Some(got.source), Some(from))
            } else {
                FI_ADDR_NOTAVAIL
            };
            self.cq.place(&entry(got, source), self.to);
        }
    }
}

/// The entry of a short message from the remote endpoint with the number `source`. `complete` and `complete_other` write theirs out,
/// too: made by one function, the machine code of the short way was another.
#[inline(always)]
fn entry(got: &ShortReceived, source: fi_addr_t) -> Entry {
    let data = if got.data.is_some() { FI_REMOTE_CQ_DATA } else { 0 };
    Entry {
        context: got.ticket.context,
        flags: FI_RECV | message_flag(got.tagged) | data,
        len: got.len as u64,
        buf: got.buf,
        data: got.data.unwrap_or(0),
        tag: got.tag,
        source,
        fault: None,
    }
}

impl Sink for Bindings {
    #[inline]
    fn complete(&mut self, done: &Completion, source: Option<&Address>) {
        match done.op {
            // Nearly all completions are these.
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

impl Bindings {
    /// The number of a remote endpoint that sent something.
    #[inline]
    fn number(&mut self, remote: Option<PeerId>, address: Option<&Address>) -> fi_addr_t {
        let Some(remote) = remote else { return FI_ADDR_NOTAVAIL };
        match self.numbers.get(remote) {
            Some(number) if *number != FI_ADDR_NOTAVAIL => *number,
            _ if self.wants_source => self.find(remote, address),
            _ => FI_ADDR_NOTAVAIL,
        }
    }

    #[cold]
    fn find(&mut self, remote: PeerId, address: Option<&Address>) -> fi_addr_t {
        let found = address.and_then(|address| self.av.as_ref()?.number(address));
        if let Some(number) = found {
            self.numbers.set(remote, number);
        }
        found.unwrap_or(FI_ADDR_NOTAVAIL)
    }

    /// Completes a send in its call.
    #[inline]
    pub(super) fn sent(&mut self, tagged: bool, ticket: Ticket) {
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

    /// Completes an operation on remote memory in its call.
    #[inline(always)]
    pub(super) fn operated(&mut self, fetches: bool, flags: u64, len: u64, ticket: Ticket) {
        if let Some(counter) = if fetches { &self.reads } else { &self.writes } {
            counter.count(true);
        }
        if let Some(cq) = &self.tx.cq
            && ticket.flags & ENTRY != 0
        {
            cq.push_operated(ticket.context, flags, len);
        }
    }

    /// Counts a completion of any kind, and makes an entry where one is wanted.
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
        // A multi-receive buffer that is released without a message.
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

/// The flag that tells tagged from untagged messages.
#[inline]
fn message_flag(tagged: bool) -> u64 {
    if tagged { FI_TAGGED } else { FI_MSG }
}
