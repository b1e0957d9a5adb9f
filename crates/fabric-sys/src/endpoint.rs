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
    /// The buffers.
    pub msg_iov: *const iovec,
    /// Descriptors of the buffers' memory, or null.
    pub desc: *mut *mut c_void,
    /// How many buffers there are.
    pub iov_count: usize,
    /// Number in the address vector: the receiver's, or the sender's for a directed receive.
    pub addr: fi_addr_t,
    /// The program's own value, for the completion.
    pub context: *mut c_void,
    /// Data for the receiver's completion.
    pub data: u64,
}

/// The level of all options here.
pub const FI_OPT_ENDPOINT: c_int = 0;
/// With less room than this left, a multi-receive buffer is released.
pub const FI_OPT_MIN_MULTI_RECV: c_int = 0;
/// How much data a connection request may carry.
pub const FI_OPT_CM_DATA_SIZE: c_int = 1;
/// The shortest message that a buffered receive reports.
pub const FI_OPT_BUFFERED_MIN: c_int = 2;
/// The longest message that a buffered receive reports.
pub const FI_OPT_BUFFERED_LIMIT: c_int = 3;
/// The size of the transmit context.
pub const FI_OPT_TX_SIZE: c_int = 6;
/// The size of the receive context.
pub const FI_OPT_RX_SIZE: c_int = 7;
/// Whether device memory is transferred peer to peer.
pub const FI_OPT_FI_HMEM_P2P: c_int = 8;

/// Operations of endpoints on options and contexts.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_ep {
    /// Bytes of this structure, by which its reader knows what it has.
    pub size: usize,
    /// `fi_cancel`: cancels an operation.
    pub cancel: unsafe extern "C" fn(fid: *mut fid, context: *mut c_void) -> isize,
    /// `fi_getopt`: reads an option.
    pub getopt: unsafe extern "C" fn(
        fid: *mut fid,
        level: c_int,
        optname: c_int,
        optval: *mut c_void,
        optlen: *mut usize,
    ) -> c_int,
    /// `fi_setopt`: sets an option.
    pub setopt: unsafe extern "C" fn(
        fid: *mut fid,
        level: c_int,
        optname: c_int,
        optval: *const c_void,
        optlen: usize,
    ) -> c_int,
    /// `fi_tx_context`: opens a transmit context of a scalable endpoint.
    pub tx_ctx: unsafe extern "C" fn(
        sep: *mut fid_ep,
        index: c_int,
        attr: *mut fi_tx_attr,
        tx_ep: *mut *mut fid_ep,
        context: *mut c_void,
    ) -> c_int,
    /// `fi_rx_context`: opens a receive context of a scalable endpoint.
    pub rx_ctx: unsafe extern "C" fn(
        sep: *mut fid_ep,
        index: c_int,
        attr: *mut fi_rx_attr,
        rx_ep: *mut *mut fid_ep,
        context: *mut c_void,
    ) -> c_int,
    /// `fi_rx_size_left`: how many receives may still be posted.
    pub rx_size_left: unsafe extern "C" fn(ep: *mut fid_ep) -> isize,
    /// `fi_tx_size_left`: how many sends may still be posted.
    pub tx_size_left: unsafe extern "C" fn(ep: *mut fid_ep) -> isize,
}

/// Operations of endpoints: untagged messages.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_msg {
    /// Bytes of this structure, by which its reader knows what it has.
    pub size: usize,
    /// `fi_recv`: posts a receive of one buffer.
    pub recv: unsafe extern "C" fn(
        ep: *mut fid_ep,
        buf: *mut c_void,
        len: usize,
        desc: *mut c_void,
        src_addr: fi_addr_t,
        context: *mut c_void,
    ) -> isize,
    /// `fi_recvv`: posts a receive of several buffers.
    pub recvv: unsafe extern "C" fn(
        ep: *mut fid_ep,
        iov: *const iovec,
        desc: *mut *mut c_void,
        count: usize,
        src_addr: fi_addr_t,
        context: *mut c_void,
    ) -> isize,
    /// `fi_recvmsg`: posts a receive from a description, with flags.
    pub recvmsg: unsafe extern "C" fn(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize,
    /// `fi_send`: sends one buffer.
    pub send: unsafe extern "C" fn(
        ep: *mut fid_ep,
        buf: *const c_void,
        len: usize,
        desc: *mut c_void,
        dest_addr: fi_addr_t,
        context: *mut c_void,
    ) -> isize,
    /// `fi_sendv`: sends several buffers.
    pub sendv: unsafe extern "C" fn(
        ep: *mut fid_ep,
        iov: *const iovec,
        desc: *mut *mut c_void,
        count: usize,
        dest_addr: fi_addr_t,
        context: *mut c_void,
    ) -> isize,
    /// `fi_sendmsg`: sends from a description, with flags.
    pub sendmsg: unsafe extern "C" fn(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize,
    /// `fi_inject`: sends without a completion; the buffer is the program's again on return.
    pub inject:
        unsafe extern "C" fn(ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t) -> isize,
    /// `fi_senddata`: sends with data for the receiver's completion.
    pub senddata: unsafe extern "C" fn(
        ep: *mut fid_ep,
        buf: *const c_void,
        len: usize,
        desc: *mut c_void,
        data: u64,
        dest_addr: fi_addr_t,
        context: *mut c_void,
    ) -> isize,
    /// `fi_injectdata`: injects with data for the receiver's completion.
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
    /// The head.
    pub fid: fid,
    /// Its options and the like.
    pub ops: *const fi_ops_ep,
    /// Its names and connections.
    pub cm: *const fi_ops_cm,
    /// Untagged messages.
    pub msg: *const fi_ops_msg,
    /// Reads and writes of remote memory.
    pub rma: *const fi_ops_rma,
    /// Tagged messages.
    pub tagged: *const fi_ops_tagged,
    /// Atomic operations.
    pub atomic: *const fi_ops_atomic,
    /// Collective operations; not declared here.
    pub collective: *const c_void,
}
