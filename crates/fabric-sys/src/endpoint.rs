//! `rdma/fi_endpoint.h`: endpoints and untagged messages.

use std::ffi::{c_int, c_void};

use crate::atomic::fi_ops_atomic;
use crate::cm::fi_ops_cm;
use crate::fabric::{fi_addr_t, fi_rx_attr, fi_tx_attr, fid, iovec};
use crate::rma::fi_ops_rma;
use crate::tagged::fi_ops_tagged;

/// An untagged message.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_msg {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: fi_addr_t,
    pub context: *mut c_void,
    pub data: u64,
}

pub const FI_OPT_ENDPOINT: c_int = 0;
pub const FI_OPT_MIN_MULTI_RECV: c_int = 0;
pub const FI_OPT_CM_DATA_SIZE: c_int = 1;
pub const FI_OPT_BUFFERED_MIN: c_int = 2;
pub const FI_OPT_BUFFERED_LIMIT: c_int = 3;
pub const FI_OPT_TX_SIZE: c_int = 6;
pub const FI_OPT_RX_SIZE: c_int = 7;
pub const FI_OPT_FI_HMEM_P2P: c_int = 8;

/// Endpoint options and the like.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_ep {
    pub size: usize,
    pub cancel: unsafe extern "C" fn(fid: *mut fid, context: *mut c_void) -> isize,
    pub getopt: unsafe extern "C" fn(
        fid: *mut fid,
        level: c_int,
        optname: c_int,
        optval: *mut c_void,
        optlen: *mut usize,
    ) -> c_int,
    pub setopt: unsafe extern "C" fn(
        fid: *mut fid,
        level: c_int,
        optname: c_int,
        optval: *const c_void,
        optlen: usize,
    ) -> c_int,
    pub tx_ctx: unsafe extern "C" fn(
        sep: *mut fid_ep,
        index: c_int,
        attr: *mut fi_tx_attr,
        tx_ep: *mut *mut fid_ep,
        context: *mut c_void,
    ) -> c_int,
    pub rx_ctx: unsafe extern "C" fn(
        sep: *mut fid_ep,
        index: c_int,
        attr: *mut fi_rx_attr,
        rx_ep: *mut *mut fid_ep,
        context: *mut c_void,
    ) -> c_int,
    pub rx_size_left: unsafe extern "C" fn(ep: *mut fid_ep) -> isize,
    pub tx_size_left: unsafe extern "C" fn(ep: *mut fid_ep) -> isize,
}

/// Untagged messages.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_msg {
    pub size: usize,
    pub recv: unsafe extern "C" fn(
        ep: *mut fid_ep,
        buf: *mut c_void,
        len: usize,
        desc: *mut c_void,
        src_addr: fi_addr_t,
        context: *mut c_void,
    ) -> isize,
    pub recvv: unsafe extern "C" fn(
        ep: *mut fid_ep,
        iov: *const iovec,
        desc: *mut *mut c_void,
        count: usize,
        src_addr: fi_addr_t,
        context: *mut c_void,
    ) -> isize,
    pub recvmsg: unsafe extern "C" fn(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize,
    pub send: unsafe extern "C" fn(
        ep: *mut fid_ep,
        buf: *const c_void,
        len: usize,
        desc: *mut c_void,
        dest_addr: fi_addr_t,
        context: *mut c_void,
    ) -> isize,
    pub sendv: unsafe extern "C" fn(
        ep: *mut fid_ep,
        iov: *const iovec,
        desc: *mut *mut c_void,
        count: usize,
        dest_addr: fi_addr_t,
        context: *mut c_void,
    ) -> isize,
    pub sendmsg: unsafe extern "C" fn(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize,
    pub inject:
        unsafe extern "C" fn(ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t) -> isize,
    pub senddata: unsafe extern "C" fn(
        ep: *mut fid_ep,
        buf: *const c_void,
        len: usize,
        desc: *mut c_void,
        data: u64,
        dest_addr: fi_addr_t,
        context: *mut c_void,
    ) -> isize,
    pub injectdata: unsafe extern "C" fn(
        ep: *mut fid_ep,
        buf: *const c_void,
        len: usize,
        data: u64,
        dest_addr: fi_addr_t,
    ) -> isize,
}

/// An endpoint.
#[repr(C)]
#[derive(Debug)]
pub struct fid_ep {
    pub fid: fid,
    pub ops: *const fi_ops_ep,
    pub cm: *const fi_ops_cm,
    pub msg: *const fi_ops_msg,
    pub rma: *const fi_ops_rma,
    pub tagged: *const fi_ops_tagged,
    pub atomic: *const fi_ops_atomic,
    pub collective: *const c_void,
}
