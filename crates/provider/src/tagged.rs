//! Tagged messages, as in fi_tagged(3).

use std::ffi::c_void;

use isthmus_fabric_sys::*;
use isthmus_region::local::LocalBuf;

use crate::bufs::{Bufs, one};
use crate::ep::{Message, Single, State, with};

pub(crate) static OPS: fi_ops_tagged = fi_ops_tagged {
    size: size_of::<fi_ops_tagged>(),
    recv,
    recvv,
    recvmsg,
    send,
    sendv,
    sendmsg,
    inject,
    senddata,
    injectdata,
};

const EINVAL: isize = -(FI_EINVAL as isize);

fn message(remote: fi_addr_t, tag: u64, data: Option<u64>, bufs: &[LocalBuf]) -> Message<'_> {
    Message { remote, tagged: true, tag, data, bufs }
}

fn single(remote: fi_addr_t, tag: u64, buf: LocalBuf) -> Single {
    Single { remote, tagged: true, tag, buf }
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    remote: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the program lends the buffer until the operation completes.
    let Some(buf) = (unsafe { one(buf, len) }) else { return EINVAL };
    // SAFETY: fi_endpoint gave `ep` out, and the program has not closed it.
    unsafe { with(ep, |ep| ep.receive_one(single(remote, tag, buf), ignore, context)) }
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    remote: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the program lends the array for this call, and its buffers until the operation completes.
    let Some(bufs) = (unsafe { Bufs::of(iov, count) }) else { return EINVAL };
    // SAFETY: fi_endpoint gave `ep` out, and the program has not closed it.
    unsafe {
        with(ep, |ep| ep.receive(&message(remote, tag, None, bufs.get()), ignore, |s| s.rx_how(context)))
    }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: null, or a description that the program lends for this call.
    let Some(msg) = (unsafe { isthmus_cabi::object(msg) }) else { return EINVAL };
    if flags & FI_MULTI_RECV != 0 {
        return -(FI_EBADFLAGS as isize);
    }
    // SAFETY: the program lends the array for this call, and its buffers until the operation completes.
    let Some(bufs) = (unsafe { Bufs::of(msg.msg_iov, msg.iov_count) }) else { return EINVAL };
    // SAFETY: fi_endpoint gave `ep` out, and the program has not closed it.
    unsafe {
        with(ep, |ep| {
            let how = |s: &State| s.rx_how_with(msg.context, flags);
            ep.receive(&message(msg.addr, msg.tag, None, bufs.get()), msg.ignore, how)
        })
    }
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    remote: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the program lends the buffer until the operation completes.
    let Some(buf) = (unsafe { one(buf, len) }) else { return EINVAL };
    // SAFETY: fi_endpoint gave `ep` out, and the program has not closed it.
    unsafe { with(ep, |ep| ep.send_one(single(remote, tag, buf), None, context)) }
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    remote: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the program lends the array for this call, and its buffers until the operation completes.
    let Some(bufs) = (unsafe { Bufs::of(iov, count) }) else { return EINVAL };
    // SAFETY: fi_endpoint gave `ep` out, and the program has not closed it.
    unsafe { with(ep, |ep| ep.send(&message(remote, tag, None, bufs.get()), |s| s.tx_how(context))) }
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: null, or a description that the program lends for this call.
    let Some(msg) = (unsafe { isthmus_cabi::object(msg) }) else { return EINVAL };
    // SAFETY: the program lends the array for this call, and its buffers until the operation completes.
    let Some(bufs) = (unsafe { Bufs::of(msg.msg_iov, msg.iov_count) }) else { return EINVAL };
    let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
    // SAFETY: fi_endpoint gave `ep` out, and the program has not closed it.
    unsafe {
        with(ep, |ep| {
            let how = |s: &State| s.tx_how_with(msg.context, flags);
            ep.send(&message(msg.addr, msg.tag, data, bufs.get()), how)
        })
    }
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    remote: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: the program lends the buffer for this call.
    let Some(buf) = (unsafe { one(buf, len) }) else { return EINVAL };
    // SAFETY: fi_endpoint gave `ep` out, and the program has not closed it.
    unsafe { with(ep, |ep| ep.inject_one(single(remote, tag, buf), None)) }
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    remote: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the program lends the buffer until the operation completes.
    let Some(buf) = (unsafe { one(buf, len) }) else { return EINVAL };
    // SAFETY: fi_endpoint gave `ep` out, and the program has not closed it.
    unsafe { with(ep, |ep| ep.send_one(single(remote, tag, buf), Some(data), context)) }
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    remote: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: the program lends the buffer for this call.
    let Some(buf) = (unsafe { one(buf, len) }) else { return EINVAL };
    // SAFETY: fi_endpoint gave `ep` out, and the program has not closed it.
    unsafe { with(ep, |ep| ep.inject_one(single(remote, tag, buf), Some(data))) }
}
