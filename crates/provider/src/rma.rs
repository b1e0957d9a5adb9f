//! Reads and writes of remote memory, as in fi_rma(3). An operation completes, and is counted, when it is visible at the
//! target; so is an injected one, which makes no entry.

use std::ffi::c_void;

use isthmus_fabric_sys::*;

use crate::bufs::{Bufs, one};
use crate::ep::{How, RmaPost, SinglePlace, with};

pub(crate) static OPS: fi_ops_rma = fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read,
    readv,
    readmsg,
    write,
    writev,
    writemsg,
    inject,
    writedata,
    injectdata,
};

const EINVAL: isize = -(FI_EINVAL as isize);

/// The address and key that a message structure names: exactly one part, as long as the local buffers. None otherwise.
///
/// # Safety
/// `msg.rma_iov` is null or has `msg.rma_iov_count` parts.
unsafe fn rma_part(msg: &fi_msg_rma, len: usize) -> Option<(u64, u64)> {
    // SAFETY: the caller vouches for the array and its count.
    let parts = unsafe { isthmus_cabi::slice(msg.rma_iov, msg.rma_iov_count, 1) }?;
    match parts {
        [part] if part.len == len => Some((part.addr, part.key)),
        _ => None,
    }
}

unsafe extern "C" fn read(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    remote: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the program lends the buffer until the operation completes.
    let Some(buf) = (unsafe { one(buf, len) }) else { return EINVAL };
    let what = SinglePlace { remote, key, addr, buf };
    // SAFETY: fi_endpoint gave `ep` out, and the program has not closed it.
    unsafe { with(ep, |ep| ep.rma_one(what, false, |s| s.tx_how(context))) }
}

unsafe extern "C" fn readv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    remote: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the program lends the array for this call, and its buffers until the operation completes.
    let Some(bufs) = (unsafe { Bufs::of(iov, count) }) else { return EINVAL };
    let what = RmaPost { remote, key, addr, data: None, bufs: bufs.get() };
    // SAFETY: fi_endpoint gave `ep` out, and the program has not closed it.
    unsafe { with(ep, |ep| ep.rma(&what, false, |s| s.tx_how(context))) }
}

unsafe extern "C" fn readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: fi_endpoint gave `ep` out, the program has not closed it, and `msg` is as fi_rma(3) asks.
    unsafe { message(ep, msg, flags, false) }
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: fi_endpoint gave `ep` out, the program has not closed it, and `msg` is as fi_rma(3) asks.
    unsafe { message(ep, msg, flags, true) }
}

/// A call with a message structure.
///
/// # Safety
/// An endpoint of ours that is open, or null; a message as fi_rma(3) asks for it, or null.
unsafe fn message(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64, write: bool) -> isize {
    // SAFETY: null, or a description that the program lends for this call.
    let Some(msg) = (unsafe { isthmus_cabi::object(msg) }) else { return EINVAL };
    let data = (write && flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
    if msg.iov_count == 1 && data.is_none() {
        // SAFETY: null, or the one part that the program lends for this call.
        let Some(part) = (unsafe { isthmus_cabi::object(msg.msg_iov) }) else { return EINVAL };
        // SAFETY: the program lends the buffer until the operation completes.
        let Some(buf) = (unsafe { one(part.iov_base, part.iov_len) }) else { return EINVAL };
        // SAFETY: the message names its remote parts and their count, by fi_rma(3).
        let Some((addr, key)) = (unsafe { rma_part(msg, buf.len()) }) else { return EINVAL };
        let what = SinglePlace { remote: msg.addr, key, addr, buf };
        // SAFETY: fi_endpoint gave `ep` out, and the program has not closed it.
        return unsafe { with(ep, |ep| ep.rma_one(what, write, |s| s.tx_how_with(msg.context, flags))) };
    }
    // SAFETY: the program lends the array for this call, and its buffers until the operation completes.
    let Some(bufs) = (unsafe { Bufs::of(msg.msg_iov, msg.iov_count) }) else { return EINVAL };
    // SAFETY: the message names its remote parts and their count, by fi_rma(3).
    let Some((addr, key)) = (unsafe { rma_part(msg, bufs.len()) }) else { return EINVAL };
    let what = RmaPost { remote: msg.addr, key, addr, data, bufs: bufs.get() };
    // SAFETY: fi_endpoint gave `ep` out, and the program has not closed it.
    unsafe { with(ep, |ep| ep.rma(&what, write, |s| s.tx_how_with(msg.context, flags))) }
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    remote: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the program lends the buffer until the operation completes.
    let Some(buf) = (unsafe { one(buf, len) }) else { return EINVAL };
    let what = SinglePlace { remote, key, addr, buf };
    // SAFETY: fi_endpoint gave `ep` out, and the program has not closed it.
    unsafe { with(ep, |ep| ep.rma_one(what, true, |s| s.tx_how(context))) }
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    remote: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the program lends the array for this call, and its buffers until the operation completes.
    let Some(bufs) = (unsafe { Bufs::of(iov, count) }) else { return EINVAL };
    let what = RmaPost { remote, key, addr, data: None, bufs: bufs.get() };
    // SAFETY: fi_endpoint gave `ep` out, and the program has not closed it.
    unsafe { with(ep, |ep| ep.rma(&what, true, |s| s.tx_how(context))) }
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    remote: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    // SAFETY: the program lends the buffer for this call.
    let Some(buf) = (unsafe { one(buf, len) }) else { return EINVAL };
    let what = SinglePlace { remote, key, addr, buf };
    // SAFETY: fi_endpoint gave `ep` out, and the program has not closed it.
    unsafe { with(ep, |ep| ep.rma_one(what, true, |_| How::inject())) }
}

unsafe extern "C" fn writedata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    remote: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the program lends the buffer until the operation completes.
    let Some(buf) = (unsafe { one(buf, len) }) else { return EINVAL };
    let what = RmaPost { remote, key, addr, data: Some(data), bufs: &[buf] };
    // SAFETY: fi_endpoint gave `ep` out, and the program has not closed it.
    unsafe { with(ep, |ep| ep.rma(&what, true, |s| s.tx_how(context))) }
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    remote: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    // SAFETY: the program lends the buffer for this call.
    let Some(buf) = (unsafe { one(buf, len) }) else { return EINVAL };
    let what = RmaPost { remote, key, addr, data: Some(data), bufs: &[buf] };
    // SAFETY: fi_endpoint gave `ep` out, and the program has not closed it.
    unsafe { with(ep, |ep| ep.rma(&what, true, |_| How::inject())) }
}
