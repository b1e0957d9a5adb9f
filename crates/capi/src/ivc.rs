//! IVC: contexts and channels.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use isthmus::Attachment;
use isthmus::ivc::{
    Address, Channel, Config, Context, Error as IvcError, Event, Interest, Loan, LocalBuf, Peer, Ticket,
};
use isthmus_cabi::{object, put, slice};

use crate::Handle;
use crate::attachment::hand_over;
use crate::errno::Failure;
use crate::sync::limit;

/// Most bytes of one call, so that the count fits what is returned.
const MOST_BYTES: usize = isize::MAX as usize;
/// Most pieces of a vectored call, as of readv(2).
const MOST_PIECES: usize = 1024;

/// As `struct isthmus_peer`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CPeer {
    client: u64,
    host: [c_char; 64],
    address: [u8; 32],
}

impl CPeer {
    fn new(peer: &Peer) -> Self {
        let mut host = [0; 64];
        // The last byte stays zero.
        for (to, from) in host.iter_mut().zip(peer.host.bytes().take(63)) {
            *to = c_char::from_ne_bytes([from]);
        }
        Self { client: peer.client, host, address: peer.address.to_bytes() }
    }
}

/// As `struct isthmus_ivc_options`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Options {
    ring_bytes: u64,
    segment_bytes: u64,
    linger_ns: u64,
    backlog: u32,
}

/// As `struct iovec`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    base: *mut c_void,
    len: usize,
}

/// As `struct isthmus_event`.
#[repr(C)]
#[derive(Debug)]
pub struct CEvent {
    kind: c_int,
    in_order: c_int,
    peer: CPeer,
    channel: u64,
    unread: *const c_void,
    unread_bytes: usize,
}

/// What is called for each event.
pub type Each = unsafe extern "C" fn(event: *const CEvent, arg: *mut c_void);

fn count(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// A buffer that C gave.
///
/// # Safety
/// `at` is null, or good for reading, and for writing where it is read into, `len` bytes during the call.
unsafe fn buffer(at: *mut c_void, len: usize) -> Result<LocalBuf, Failure> {
    if len > MOST_BYTES || (at.is_null() && len > 0) {
        return Err(Failure::invalid("the buffer is NULL, or longer than any"));
    }
    // SAFETY: checked for null; by this function's contract, `at` is `len` bytes to read, or to write, during the call.
    Ok(unsafe { LocalBuf::new(at.cast(), len) })
}

/// A loan's ticket, as C has it.
const TICKET_BYTES: usize = Ticket::BYTES;
const _: () = assert!(TICKET_BYTES == 48);

/// Runs a call that returns a number of bytes.
///
/// # Safety
/// As [`Handle::run`].
unsafe fn moving(
    channel: *const Handle<Channel>,
    body: impl FnOnce(&Channel) -> Result<usize, Failure>,
) -> i64 {
    let mut moved = 0;
    let body = |channel: &Channel| {
        moved = body(channel)?;
        Ok(())
    };
    // SAFETY: by this function's contract, `channel` is null or an open handle.
    match unsafe { Handle::run_fast(channel, body) } {
        0 => count(moved),
        failed => failed.into(),
    }
}

/// Becomes a member of a group.
///
/// # Safety
/// `here` is null or an attachment; `options` is null or good for reading; `ivc` is null or good for writing a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_ivc_register(
    here: *const Handle<Attachment>,
    magic: u64,
    client: u64,
    options: *const Options,
    ivc: *mut *mut Handle<Context>,
) -> c_int {
    let body = |attached: &Attachment| {
        let mut config = Config::default();
        // SAFETY: by this function's contract, `options` is null or options, which no thread writes during the call.
        if let Some(options) = unsafe { object(options) } {
            let given = |value: u64, usual: u64| if value == 0 { usual } else { value };
            config.ring_bytes = given(options.ring_bytes, config.ring_bytes);
            config.segment_bytes = given(options.segment_bytes, config.segment_bytes);
            config.backlog = if options.backlog == 0 { config.backlog } else { options.backlog };
            if options.linger_ns != 0 {
                config.linger = Duration::from_nanos(options.linger_ns);
            }
        }
        let context = attached.register_with(magic, client, config)?;
        // SAFETY: by this function's contract, `ivc` is null or a place for a pointer.
        unsafe { hand_over(ivc, context) }
    };
    // SAFETY: by this function's contract, `here` is null or an open handle.
    unsafe { Handle::run(here, body) }
}

/// Ends a membership.
///
/// # Safety
/// `ivc` is null, or came from `isthmus_ivc_register` and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_ivc_close(ivc: *mut Handle<Context>) {
    // SAFETY: by this function's contract, `ivc` is null or an open handle, and this call is its last use.
    unsafe { Handle::close(ivc) };
}

/// Lists the other members.
///
/// # Safety
/// `ivc` is null or a context; `peers` is null or good for writing `most` peers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_ivc_peers(
    ivc: *const Handle<Context>,
    peers: *mut CPeer,
    most: usize,
) -> c_int {
    let mut found = 0;
    let body = |context: &Context| {
        if peers.is_null() && most > 0 {
            return Err(Failure::invalid("there is no place for the peers"));
        }
        let all = context.peers();
        for (i, peer) in all.iter().enumerate().take(most) {
            // SAFETY: by this function's contract, `peers` has room for `most` peers, and i < most.
            unsafe { put(peers.wrapping_add(i), CPeer::new(peer)) };
        }
        found = c_int::try_from(all.len()).unwrap_or(c_int::MAX);
        Ok(())
    };
    // SAFETY: by this function's contract, `ivc` is null or an open handle.
    match unsafe { Handle::run(ivc, body) } {
        0 => found,
        failed => failed,
    }
}

/// Connects to a member.
///
/// # Safety
/// `ivc` is null or a context; `peer` is null or good for reading; `channel` is null or good for writing a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_ivc_connect(
    ivc: *const Handle<Context>,
    peer: *const CPeer,
    timeout_ns: u64,
    channel: *mut *mut Handle<Channel>,
) -> c_int {
    let body = |context: &Context| {
        // SAFETY: by this function's contract, `peer` is null or a peer, which no thread writes during the call.
        let peer = unsafe { object(peer) }.ok_or_else(|| Failure::invalid("the peer is NULL"))?;
        let connected = context.connect(Address::from_bytes(peer.address), limit(timeout_ns))?;
        // SAFETY: by this function's contract, `channel` is null or a place for a pointer.
        unsafe { hand_over(channel, connected) }
    };
    // SAFETY: by this function's contract, `ivc` is null or an open handle.
    unsafe { Handle::run(ivc, body) }
}

/// Accepts a connection.
///
/// # Safety
/// `ivc` is null or a context; `channel` is null or good for writing a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_ivc_accept(
    ivc: *const Handle<Context>,
    timeout_ns: u64,
    channel: *mut *mut Handle<Channel>,
) -> c_int {
    let body = |context: &Context| {
        let accepted = match timeout_ns {
            0 => context.try_accept()?.ok_or(isthmus::sync::Error::WouldBlock)?,
            _ => context.accept(limit(timeout_ns))?,
        };
        // SAFETY: by this function's contract, `channel` is null or a place for a pointer.
        unsafe { hand_over(channel, accepted) }
    };
    // SAFETY: by this function's contract, `ivc` is null or an open handle.
    unsafe { Handle::run(ivc, body) }
}

/// Lends bytes to the other members.
///
/// # Safety
/// `ivc` is null or a context; `bytes` is null or good for reading `len` bytes until the loan ends, and nothing writes there meanwhile;
/// `ticket` is null or good for writing the bytes of a ticket, and `loan` for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_ivc_lend(
    ivc: *const Handle<Context>,
    bytes: *const c_void,
    len: usize,
    ticket: *mut [u8; TICKET_BYTES],
    loan: *mut *mut Handle<Loan<'static>>,
) -> c_int {
    let body = |context: &Context| {
        // SAFETY: by this function's contract, `bytes` is null or good for reading `len` bytes until the loan ends.
        let lent = context.lend_buf(unsafe { buffer(bytes.cast_mut(), len) }?)?;
        // SAFETY: by this function's contract, `ticket` is null or good for writing a ticket.
        if !unsafe { put(ticket, lent.ticket().to_bytes()) } {
            return Err(Failure::invalid("the place for the ticket is NULL"));
        }
        // SAFETY: by this function's contract, `loan` is null or a place for a pointer.
        unsafe { hand_over(loan, lent) }
    };
    // SAFETY: by this function's contract, `ivc` is null or an open handle.
    unsafe { Handle::run(ivc, body) }
}

/// How many bytes of a loan are copied once.
///
/// # Safety
/// `loan` is null or a loan that has not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_loan_in_place(loan: *const Handle<Loan<'static>>) -> u64 {
    // SAFETY: by this function's contract, `loan` is null or an open handle.
    unsafe { Handle::ask(loan, 0, Loan::in_place) }
}

/// Ends a loan.
///
/// # Safety
/// `loan` is null, or came from `isthmus_ivc_lend` and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_loan_end(loan: *mut Handle<Loan<'static>>) {
    // SAFETY: by this function's contract, `loan` is null or an open handle, and this call is its last use.
    unsafe { Handle::close(loan) };
}

/// Copies bytes of a loan.
///
/// # Safety
/// `ivc` is null or a context; `ticket` is null or good for reading the bytes of a ticket; `into` is null or good for writing `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_ivc_fetch(
    ivc: *const Handle<Context>,
    ticket: *const [u8; TICKET_BYTES],
    at: u64,
    into: *mut c_void,
    len: usize,
) -> c_int {
    let body = |context: &Context| {
        // SAFETY: by this function's contract, `ticket` is null or good for reading a ticket.
        let ticket = unsafe { object(ticket) }.ok_or_else(|| Failure::invalid("the ticket is NULL"))?;
        // SAFETY: by this function's contract, `into` is null or good for writing `len` bytes.
        let into = unsafe { buffer(into, len) }?;
        Ok(context.fetch_buf(&Ticket::from_bytes(ticket), at, into)?)
    };
    // SAFETY: by this function's contract, `ivc` is null or an open handle.
    unsafe { Handle::run(ivc, body) }
}

/// A descriptor for poll(2).
///
/// # Safety
/// `ivc` is null or a context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_ivc_descriptor(ivc: *const Handle<Context>) -> c_int {
    let mut fd = -1;
    let body = |context: &Context| {
        fd = context.descriptor()?.as_raw_fd();
        Ok(())
    };
    // SAFETY: by this function's contract, `ivc` is null or an open handle.
    match unsafe { Handle::run(ivc, body) } {
        0 => fd,
        failed => failed,
    }
}

/// Prepares to sleep on the descriptor.
///
/// # Safety
/// `ivc` is null or a context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_ivc_arm(ivc: *const Handle<Context>) -> c_int {
    let mut may = false;
    let body = |context: &Context| {
        may = context.arm();
        Ok(())
    };
    // SAFETY: by this function's contract, `ivc` is null or an open handle.
    match unsafe { Handle::run(ivc, body) } {
        0 => may.into(),
        failed => failed,
    }
}

/// Calls a function for each event.
///
/// # Safety
/// `ivc` is null or a context; `each` is null or a function that may be called with `arg`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_ivc_events(
    ivc: *const Handle<Context>,
    timeout_ns: u64,
    each: Option<Each>,
    arg: *mut c_void,
) -> c_int {
    let mut told = 0;
    let body = |context: &Context| {
        let each = each.ok_or_else(|| Failure::invalid("there is no function to call"))?;
        let events = match timeout_ns {
            0 => {
                context.progress();
                context.events()
            }
            _ => context.wait_events(limit(timeout_ns)),
        };
        for event in &events {
            let nothing: &[u8] = &[];
            let (kind, in_order, peer, channel, unread) = match event {
                Event::Joined(peer) => (1, false, peer, 0, nothing),
                Event::Left { peer, in_order } => (2, *in_order, peer, 0, nothing),
                Event::Suspended { channel, peer, unread } => (3, false, peer, *channel, unread.as_slice()),
                Event::Gone { channel, peer } => (4, false, peer, *channel, nothing),
            };
            let event = CEvent {
                kind,
                in_order: in_order.into(),
                peer: CPeer::new(peer),
                channel,
                unread: unread.as_ptr().cast(),
                unread_bytes: unread.len(),
            };
            // SAFETY: by this function's contract, `each` may be called with `arg`; `event` and its bytes live as long
            // as the call.
            unsafe { each(&raw const event, arg) };
        }
        told = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
        Ok(())
    };
    // SAFETY: by this function's contract, `ivc` is null or an open handle.
    match unsafe { Handle::run(ivc, body) } {
        0 => told,
        failed => failed,
    }
}

/// Suspends all channels of a context.
///
/// # Safety
/// `ivc` is null or a context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_ivc_suspend(ivc: *const Handle<Context>, timeout_ns: u64) -> c_int {
    let mut left = 0;
    let body = |context: &Context| {
        let patience = limit(timeout_ns).unwrap_or(Duration::from_secs(u64::from(c_uint::MAX)));
        left = c_int::try_from(context.suspend(patience)).unwrap_or(c_int::MAX);
        Ok(())
    };
    // SAFETY: by this function's contract, `ivc` is null or an open handle.
    match unsafe { Handle::run(ivc, body) } {
        0 => left,
        failed => failed,
    }
}

/// Lets a context make new channels after a suspension.
///
/// # Safety
/// `ivc` is null or a context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_ivc_resume(ivc: *const Handle<Context>) -> c_int {
    let body = |context: &Context| {
        context.resume();
        Ok(())
    };
    // SAFETY: by this function's contract, `ivc` is null or an open handle.
    unsafe { Handle::run(ivc, body) }
}

/// The partner of a channel.
///
/// # Safety
/// `channel` is null or a channel; `peer` is null or good for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_channel_peer(channel: *const Handle<Channel>, peer: *mut CPeer) -> c_int {
    let body = |channel: &Channel| {
        // SAFETY: by this function's contract, `peer` is null or a place for a peer.
        let there = unsafe { put(peer, CPeer::new(channel.peer())) };
        if there { Ok(()) } else { Err(Failure::invalid("there is no place for the peer")) }
    };
    // SAFETY: by this function's contract, `channel` is null or an open handle.
    unsafe { Handle::run_fast(channel, body) }
}

/// A channel's number in events.
///
/// # Safety
/// `channel` is null or a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_channel_id(channel: *const Handle<Channel>) -> u64 {
    // SAFETY: by this function's contract, `channel` is null or an open handle.
    unsafe { Handle::ask(channel, 0, Channel::id) }
}

/// Reads what is there.
///
/// # Safety
/// `channel` is null or a channel; `into` is null or good for writing `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_channel_read(
    channel: *mut Handle<Channel>,
    into: *mut c_void,
    len: usize,
) -> i64 {
    // SAFETY: by this function's contract, `into` is null or good for writing `len` bytes.
    let body = |channel: &Channel| Ok(channel.read_buf(unsafe { buffer(into, len) }?)?);
    // SAFETY: by this function's contract, `channel` is null or an open handle.
    unsafe { moving(channel, body) }
}

/// Writes as much as there is room for.
///
/// # Safety
/// `channel` is null or a channel; `from` is null or good for reading `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_channel_write(
    channel: *mut Handle<Channel>,
    from: *const c_void,
    len: usize,
) -> i64 {
    // SAFETY: by this function's contract, `from` is null or good for reading `len` bytes, and nothing writes through it.
    let body = |channel: &Channel| Ok(channel.write_buf(unsafe { buffer(from.cast_mut(), len) }?)?);
    // SAFETY: by this function's contract, `channel` is null or an open handle.
    unsafe { moving(channel, body) }
}

/// Runs `one` on each of the pieces of a vectored call until one is not done whole. `kept_back` is called for an error that the caller
/// does not get, as some bytes were moved before.
///
/// # Safety
/// Each piece is null or good for reading, and for writing where it is read into, during the call.
unsafe fn vectored(
    pieces: &[Piece],
    mut one: impl FnMut(LocalBuf) -> Result<usize, Failure>,
    kept_back: impl FnOnce(),
) -> Result<usize, Failure> {
    let mut done = 0;
    for piece in pieces {
        // SAFETY: by this function's contract, each piece is null or good for its bytes.
        let outcome = unsafe { buffer(piece.base, piece.len) }.and_then(&mut one);
        match outcome {
            Ok(moved) => {
                done += moved;
                if moved < piece.len {
                    break;
                }
            }
            Err(_) if done > 0 => {
                kept_back();
                break;
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(done)
}

/// The pieces that C gave.
///
/// # Safety
/// `pieces` is null or good for reading `count` of them.
unsafe fn given<'a>(pieces: *const Piece, count: c_int) -> Result<&'a [Piece], Failure> {
    let count = usize::try_from(count).map_err(|_| Failure::invalid("a negative number of pieces"))?;
    // SAFETY: by this function's contract, `pieces` is null or `count` pieces, which no thread writes during the call.
    unsafe { slice(pieces, count, MOST_PIECES) }
        .ok_or_else(|| Failure::invalid("the pieces are NULL, or more than 1024"))
}

/// Reads into one piece after the other.
///
/// # Safety
/// `channel` is null or a channel; `pieces` is null or `count` pieces that are good for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_channel_readv(
    channel: *mut Handle<Channel>,
    pieces: *const Piece,
    count: c_int,
) -> i64 {
    let body = |channel: &Channel| {
        // SAFETY: by this function's contract, `pieces` is null or `count` pieces, which no thread writes during the call.
        let pieces = unsafe { given(pieces, count) }?;
        // SAFETY: by this function's contract, the pieces are null or good for writing their bytes.
        unsafe { vectored(pieces, |buf| Ok(channel.read_buf(buf)?), || channel.tell_read_again()) }
    };
    // SAFETY: by this function's contract, `channel` is null or an open handle.
    unsafe { moving(channel, body) }
}

/// Writes one piece after the other.
///
/// # Safety
/// `channel` is null or a channel; `pieces` is null or `count` pieces that are good for reading.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_channel_writev(
    channel: *mut Handle<Channel>,
    pieces: *const Piece,
    count: c_int,
) -> i64 {
    let body = |channel: &Channel| {
        // SAFETY: by this function's contract, `pieces` is null or `count` pieces, which no thread writes during the call.
        let pieces = unsafe { given(pieces, count) }?;
        // SAFETY: by this function's contract, the pieces are null or good for reading their bytes.
        unsafe { vectored(pieces, |buf| Ok(channel.write_buf(buf)?), || channel.tell_write_again()) }
    };
    // SAFETY: by this function's contract, `channel` is null or an open handle.
    unsafe { moving(channel, body) }
}

fn deadline(timeout_ns: u64) -> Option<Instant> {
    limit(timeout_ns).and_then(|limit| Instant::now().checked_add(limit))
}

fn left(deadline: Option<Instant>) -> Option<Duration> {
    deadline.map(|at| at.saturating_duration_since(Instant::now()))
}

/// The outcome of a wait for the rest of some bytes, stated for all of them.
fn of_all(waited: isthmus::ivc::Result<()>, done: usize, timeout_ns: u64) -> isthmus::ivc::Result<()> {
    waited.map_err(|error| match error {
        IvcError::TimedOut { action, .. } => {
            IvcError::TimedOut { action, limit: Duration::from_nanos(timeout_ns), moved: done }
        }
        other => other,
    })
}

/// Reads all of `len` bytes.
///
/// # Safety
/// As `isthmus_channel_read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_channel_read_all(
    channel: *mut Handle<Channel>,
    into: *mut c_void,
    len: usize,
    timeout_ns: u64,
) -> c_int {
    let body = |channel: &Channel| {
        // SAFETY: by this function's contract, `into` is null or good for writing `len` bytes.
        let into = unsafe { buffer(into, len) }?;
        let deadline = deadline(timeout_ns);
        let mut done = 0;
        while done < len {
            match channel.read_buf(into.part(done, len - done))? {
                0 => of_all(channel.wait_readable(left(deadline)), done, timeout_ns)?,
                moved => done += moved,
            }
        }
        Ok(())
    };
    // SAFETY: by this function's contract, `channel` is null or an open handle.
    unsafe { Handle::run_fast(channel, body) }
}

/// Writes all of `len` bytes.
///
/// # Safety
/// As `isthmus_channel_write`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_channel_write_all(
    channel: *mut Handle<Channel>,
    from: *const c_void,
    len: usize,
    timeout_ns: u64,
) -> c_int {
    let body = |channel: &Channel| {
        // SAFETY: by this function's contract, `from` is null or good for reading `len` bytes, and nothing writes
        // through it.
        let from = unsafe { buffer(from.cast_mut(), len) }?;
        let deadline = deadline(timeout_ns);
        let mut done = 0;
        while done < len {
            match channel.write_buf(from.part(done, len - done))? {
                0 => {
                    of_all(channel.wait_writable(1, left(deadline)), done, timeout_ns)?;
                    channel.check_suspended()?;
                }
                moved => done += moved,
            }
        }
        Ok(())
    };
    // SAFETY: by this function's contract, `channel` is null or an open handle.
    unsafe { Handle::run_fast(channel, body) }
}

/// Writes two pieces to where C wants them; returns the sum of their bytes.
///
/// # Safety
/// `pieces` is null or good for writing two pieces.
unsafe fn show(pieces: *mut Piece, found: [(u64, usize); 2]) -> Result<usize, Failure> {
    for (i, (address, len)) in found.into_iter().enumerate() {
        let base = std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0));
        // SAFETY: by this function's contract, `pieces` is null or a place for two pieces, and i < 2.
        if !unsafe { put(pieces.wrapping_add(i), Piece { base, len }) } {
            return Err(Failure::invalid("there is no place for the pieces"));
        }
    }
    Ok(found[0].1 + found[1].1)
}

/// Room to write in place.
///
/// # Safety
/// `channel` is null or a channel; `pieces` is null or good for writing two pieces.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_channel_reserve(
    channel: *mut Handle<Channel>,
    most: usize,
    pieces: *mut Piece,
) -> i64 {
    let body = |channel: &Channel| {
        let found = channel.reserve(most)?.map(|piece| (piece.address(), piece.len()));
        // SAFETY: by this function's contract, `pieces` is null or a place for two pieces.
        unsafe { show(pieces, found) }
    };
    // SAFETY: by this function's contract, `channel` is null or an open handle.
    unsafe { moving(channel, body) }
}

/// Publishes what was written in place.
///
/// # Safety
/// `channel` is null or a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_channel_commit(channel: *mut Handle<Channel>, len: usize) -> c_int {
    // SAFETY: by this function's contract, `channel` is null or an open handle.
    unsafe { Handle::run_fast(channel, |c| Ok(c.commit(len)?)) }
}

/// Bytes that have arrived, in place.
///
/// # Safety
/// `channel` is null or a channel; `pieces` is null or good for writing two pieces.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_channel_peek(
    channel: *mut Handle<Channel>,
    most: usize,
    pieces: *mut Piece,
) -> i64 {
    let body = |channel: &Channel| {
        let found = channel.peek(most)?.map(|piece| (piece.address(), piece.len()));
        // SAFETY: by this function's contract, `pieces` is null or a place for two pieces.
        unsafe { show(pieces, found) }
    };
    // SAFETY: by this function's contract, `channel` is null or an open handle.
    unsafe { moving(channel, body) }
}

/// Releases bytes that were read in place.
///
/// # Safety
/// `channel` is null or a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_channel_release(channel: *mut Handle<Channel>, len: usize) -> c_int {
    // SAFETY: by this function's contract, `channel` is null or an open handle.
    unsafe { Handle::run_fast(channel, |c| Ok(c.release(len)?)) }
}

/// Chooses what of this channel the context's descriptor reports.
///
/// # Safety
/// `channel` is null or a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_channel_watch(
    channel: *mut Handle<Channel>,
    read: c_int,
    write: c_int,
) -> c_int {
    let body = |channel: &Channel| {
        channel.watch(Interest { read: read != 0, write: write != 0 });
        Ok(())
    };
    // SAFETY: by this function's contract, `channel` is null or an open handle.
    unsafe { Handle::run_fast(channel, body) }
}

/// Shuts down this end's direction.
///
/// # Safety
/// `channel` is null or a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_channel_shutdown(channel: *mut Handle<Channel>) -> c_int {
    let body = |channel: &Channel| {
        channel.shutdown_write();
        Ok(())
    };
    // SAFETY: by this function's contract, `channel` is null or an open handle.
    unsafe { Handle::run(channel, body) }
}

/// Waits until the partner has read everything.
///
/// # Safety
/// `channel` is null or a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_channel_flush(channel: *mut Handle<Channel>, timeout_ns: u64) -> c_int {
    // SAFETY: by this function's contract, `channel` is null or an open handle.
    unsafe { Handle::run(channel, |c| Ok(c.flush(limit(timeout_ns))?)) }
}

/// Closes a channel.
///
/// # Safety
/// `channel` is null, or came from `isthmus_ivc_connect` or `isthmus_ivc_accept` and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_channel_close(channel: *mut Handle<Channel>) {
    // SAFETY: by this function's contract, `channel` is null or an open handle, and this call is its last use.
    unsafe { Handle::close(channel) };
}
