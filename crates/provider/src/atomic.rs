//! Atomic operations, as in fi_atomic(3). [`crate::arithmetic`] does them, at the target.
//!
//! The nine posting calls are three kinds (plain, fetching, comparing) in three forms (one buffer, several, a message
//! structure); all describe themselves as a [`Call`].

use std::ffi::{c_int, c_void};

use isthmus_fabric_sys::*;
use isthmus_transport::AtomicKind;

use crate::arithmetic;
use crate::bufs::Bufs;
use crate::ep::{AtomicPost, Ep, How, State, with};

pub(crate) static OPS: fi_ops_atomic = fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write,
    writev,
    writemsg,
    inject,
    readwrite,
    readwritev,
    readwritemsg,
    compwrite,
    compwritev,
    compwritemsg,
    writevalid,
    readwritevalid,
    compwritevalid,
};

const EINVAL: isize = -(FI_EINVAL as isize);
const EOPNOTSUPP: isize = -(FI_EOPNOTSUPP as isize);

/// Buffers of elements: where the parts are described, and how many there are.
type Parts = (*const fi_ioc, usize);

const NONE: Parts = (std::ptr::null(), 0);

/// A posting call, whatever its form.
struct Call {
    remote: fi_addr_t,
    addr: u64,
    key: u64,
    kind: AtomicKind,
    datatype: u32,
    op: u32,
    /// Elements at the target.
    count: usize,
    operand: Parts,
    compare: Parts,
    result: Parts,
}

impl Call {
    /// A call of this kind on `count` elements at the target, with no buffers yet.
    fn new(
        kind: AtomicKind,
        (remote, addr, key): (fi_addr_t, u64, u64),
        (datatype, op): (u32, u32),
        count: usize,
    ) -> Self {
        Self { remote, addr, key, kind, datatype, op, count, operand: NONE, compare: NONE, result: NONE }
    }

    /// Posts it.
    ///
    /// # Safety
    /// `ep` is an endpoint of ours that is open, or null; the parts describe buffers that are lent until the operation
    /// completes, an inject's for this call.
    unsafe fn post(&self, ep: *mut fid_ep, how: impl Fn(&State) -> How) -> isize {
        let Some(size) = arithmetic::valid(self.datatype, self.op, self.kind) else { return EOPNOTSUPP };
        let bufs = |(at, count): Parts| {
            // SAFETY: the caller vouches for the parts and for what they describe.
            unsafe { Bufs::elements(at, count, size) }
        };
        // A read has no operand: what is given as one is ignored, and may be null with a count.
        let operand = if self.op == FI_ATOMIC_READ { NONE } else { self.operand };
        let (Some(operand), Some(compare), Some(result)) =
            (bufs(operand), bufs(self.compare), bufs(self.result))
        else {
            return EINVAL;
        };
        let what = AtomicPost {
            remote: self.remote,
            key: self.key,
            addr: self.addr,
            kind: self.kind,
            datatype: self.datatype,
            op: self.op,
            count: self.count,
            operand: operand.get(),
            compare: compare.get(),
            result: result.get(),
        };
        // SAFETY: the caller vouches for `ep`.
        unsafe { with(ep, |ep: &Ep| ep.atomic(&what, how)) }
    }

    /// The call that a message structure describes, without compare values and results.
    ///
    /// # Safety
    /// `msg` is null or a message as fi_atomic(3) asks for it, which lives for `'a`.
    unsafe fn of<'a>(msg: *const fi_msg_atomic, kind: AtomicKind) -> Option<(Self, &'a fi_msg_atomic)> {
        // SAFETY: the caller vouches for `msg`.
        let msg: &'a fi_msg_atomic = unsafe { isthmus_cabi::object(msg) }?;
        // SAFETY: the message names its remote parts and their count, for which the caller vouches.
        let parts = unsafe { isthmus_cabi::slice(msg.rma_iov, msg.rma_iov_count, 1) }?;
        let [target] = parts else { return None };
        let at = (msg.addr, target.addr, target.key);
        let call = Self::new(kind, at, (msg.datatype, msg.op), target.count);
        Some((Self { operand: (msg.msg_iov, msg.iov_count), ..call }, msg))
    }
}

/// Elements of several parts together.
///
/// # Safety
/// The address is null, or that of as many parts as it says.
unsafe fn elements(parts: Parts) -> Option<usize> {
    // SAFETY: the caller vouches for the array and its count.
    let parts = unsafe { isthmus_cabi::slice(parts.0, parts.1, crate::info::IOV_LIMIT) }?;
    parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.count))
}

fn part(at: *const c_void, count: usize) -> fi_ioc {
    fi_ioc { addr: at.cast_mut(), count }
}

/// How a call without a structure completes.
fn default_how(context: *mut c_void) -> impl Fn(&State) -> How {
    move |state| state.tx_how(context)
}

/// How a call with a structure completes.
fn how_with(context: *mut c_void, flags: u64) -> impl Fn(&State) -> How {
    move |state| state.tx_how_with(context, flags)
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    remote: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    let operand = part(buf, count);
    let call = Call::new(AtomicKind::Plain, (remote, addr, key), (datatype, op), count);
    let call = Call { operand: (&raw const operand, 1), ..call };
    // SAFETY: fi_endpoint gave `ep` out, and it is open; the buffer is lent until the operation completes.
    unsafe { call.post(ep, default_how(context)) }
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    remote: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    let operand = (iov, count);
    // SAFETY: the program lends an array of this count.
    let Some(count) = (unsafe { elements(operand) }) else { return EINVAL };
    let call = Call::new(AtomicKind::Plain, (remote, addr, key), (datatype, op), count);
    let call = Call { operand, ..call };
    // SAFETY: fi_endpoint gave `ep` out, and it is open; the buffers are lent until the operation completes.
    unsafe { call.post(ep, default_how(context)) }
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize {
    // SAFETY: null, or a message that the program lends for this call, by fi_atomic(3).
    let Some((call, msg)) = (unsafe { Call::of(msg, AtomicKind::Plain) }) else { return EINVAL };
    // SAFETY: fi_endpoint gave `ep` out, and it is open; the buffers are lent until the operation completes.
    unsafe { call.post(ep, how_with(msg.context, flags)) }
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    remote: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
) -> isize {
    let operand = part(buf, count);
    let call = Call::new(AtomicKind::Plain, (remote, addr, key), (datatype, op), count);
    let call = Call { operand: (&raw const operand, 1), ..call };
    // SAFETY: fi_endpoint gave `ep` out, and it is open; the buffer is lent for this call.
    unsafe { call.post(ep, |_| How::inject()) }
}

unsafe extern "C" fn readwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    remote: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    let operand = part(buf, count);
    let result = part(result, count);
    let call = Call::new(AtomicKind::Fetch, (remote, addr, key), (datatype, op), count);
    let call = Call { operand: (&raw const operand, 1), result: (&raw const result, 1), ..call };
    // SAFETY: fi_endpoint gave `ep` out, and it is open; the buffers are lent until the operation completes.
    unsafe { call.post(ep, default_how(context)) }
}

unsafe extern "C" fn readwritev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    remote: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    let (operand, result) = ((iov, count), (resultv.cast_const(), result_count));
    // The results tell the number of elements, since a read may have no operand.
    // SAFETY: the program lends an array of this count.
    let Some(count) = (unsafe { elements(result) }) else { return EINVAL };
    let call = Call::new(AtomicKind::Fetch, (remote, addr, key), (datatype, op), count);
    let call = Call { operand, result, ..call };
    // SAFETY: fi_endpoint gave `ep` out, and it is open; the buffers are lent until the operation completes.
    unsafe { call.post(ep, default_how(context)) }
}

unsafe extern "C" fn readwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: null, or a message that the program lends for this call, by fi_atomic(3).
    let Some((call, msg)) = (unsafe { Call::of(msg, AtomicKind::Fetch) }) else { return EINVAL };
    let call = Call { result: (resultv, result_count), ..call };
    // SAFETY: fi_endpoint gave `ep` out, and it is open; the buffers are lent until the operation completes.
    unsafe { call.post(ep, how_with(msg.context, flags)) }
}

unsafe extern "C" fn compwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    compare: *const c_void,
    _compare_desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    remote: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    let operand = part(buf, count);
    let compare = part(compare, count);
    let result = part(result, count);
    let call = Call::new(AtomicKind::Compare, (remote, addr, key), (datatype, op), count);
    let call = Call {
        operand: (&raw const operand, 1),
        compare: (&raw const compare, 1),
        result: (&raw const result, 1),
        ..call
    };
    // SAFETY: fi_endpoint gave `ep` out, and it is open; the buffers are lent until the operation completes.
    unsafe { call.post(ep, default_how(context)) }
}

unsafe extern "C" fn compwritev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    comparev: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    remote: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    let operand = (iov, count);
    let compare = (comparev, compare_count);
    let result = (resultv.cast_const(), result_count);
    // SAFETY: the program lends an array of this count.
    let Some(count) = (unsafe { elements(operand) }) else { return EINVAL };
    let call = Call::new(AtomicKind::Compare, (remote, addr, key), (datatype, op), count);
    let call = Call { operand, compare, result, ..call };
    // SAFETY: fi_endpoint gave `ep` out, and it is open; the buffers are lent until the operation completes.
    unsafe { call.post(ep, default_how(context)) }
}

unsafe extern "C" fn compwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    comparev: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: null, or a message that the program lends for this call, by fi_atomic(3).
    let Some((call, msg)) = (unsafe { Call::of(msg, AtomicKind::Compare) }) else { return EINVAL };
    let call = Call { compare: (comparev, compare_count), result: (resultv, result_count), ..call };
    // SAFETY: fi_endpoint gave `ep` out, and it is open; the buffers are lent until the operation completes.
    unsafe { call.post(ep, how_with(msg.context, flags)) }
}

/// Whether an operation is supported for a datatype, and with how many elements in one call.
///
/// # Safety
/// `count` is null or may be written.
unsafe fn query(datatype: u32, op: u32, kind: AtomicKind, count: *mut usize) -> c_int {
    let Some(size) = arithmetic::valid(datatype, op, kind) else { return -FI_EOPNOTSUPP };
    // SAFETY: the caller vouches for `count`.
    if unsafe { isthmus_cabi::put(count, arithmetic::MOST_BYTES / size) } { 0 } else { -FI_EINVAL }
}

unsafe extern "C" fn writevalid(_ep: *mut fid_ep, datatype: u32, op: u32, count: *mut usize) -> c_int {
    // SAFETY: null, or the program's place for the number.
    unsafe { query(datatype, op, AtomicKind::Plain, count) }
}

unsafe extern "C" fn readwritevalid(_ep: *mut fid_ep, datatype: u32, op: u32, count: *mut usize) -> c_int {
    // SAFETY: null, or the program's place for the number.
    unsafe { query(datatype, op, AtomicKind::Fetch, count) }
}

unsafe extern "C" fn compwritevalid(_ep: *mut fid_ep, datatype: u32, op: u32, count: *mut usize) -> c_int {
    // SAFETY: null, or the program's place for the number.
    unsafe { query(datatype, op, AtomicKind::Compare, count) }
}
