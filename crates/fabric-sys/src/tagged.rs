//! `rdma/fi_tagged.h`: tagged messages.

use std::ffi::c_void;

use crate::endpoint::fid_ep;
use crate::fabric::{fi_addr_t, iovec};

/// A tagged message.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_msg_tagged {
    /// The buffers.
    pub msg_iov: *const iovec,
    /// Descriptors of the buffers' memory, or null.
    pub desc: *mut *mut c_void,
    /// How many buffers there are.
    pub iov_count: usize,
    /// Number in the address vector: the receiver's, or the sender's for a directed receive.
    pub addr: fi_addr_t,
    /// The message's tag, or the one that a receive matches.
    pub tag: u64,
    /// Bits of the tag that a receive ignores.
    pub ignore: u64,
    /// The program's own value, for the completion.
    pub context: *mut c_void,
    /// Data for the receiver's completion.
    pub data: u64,
}

/// Operations of endpoints: tagged messages.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_tagged {
    /// Bytes of this structure, by which its reader knows what it has.
    pub size: usize,
    /// `fi_trecv`: posts a receive of one buffer.
    pub recv: unsafe extern "C" fn(
        ep: *mut fid_ep,
        buf: *mut c_void,
        len: usize,
        desc: *mut c_void,
        src_addr: fi_addr_t,
        tag: u64,
        ignore: u64,
        context: *mut c_void,
    ) -> isize,
    /// `fi_trecvv`: posts a receive of several buffers.
    pub recvv: unsafe extern "C" fn(
        ep: *mut fid_ep,
        iov: *const iovec,
        desc: *mut *mut c_void,
        count: usize,
        src_addr: fi_addr_t,
        tag: u64,
        ignore: u64,
        context: *mut c_void,
    ) -> isize,
    /// `fi_trecvmsg`: posts a receive from a description, with flags; peeks and claims, too.
    pub recvmsg: unsafe extern "C" fn(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize,
    /// `fi_tsend`: sends one buffer.
    pub send: unsafe extern "C" fn(
        ep: *mut fid_ep,
        buf: *const c_void,
        len: usize,
        desc: *mut c_void,
        dest_addr: fi_addr_t,
        tag: u64,
        context: *mut c_void,
    ) -> isize,
    /// `fi_tsendv`: sends several buffers.
    pub sendv: unsafe extern "C" fn(
        ep: *mut fid_ep,
        iov: *const iovec,
        desc: *mut *mut c_void,
        count: usize,
        dest_addr: fi_addr_t,
        tag: u64,
        context: *mut c_void,
    ) -> isize,
    /// `fi_tsendmsg`: sends from a description, with flags.
    pub sendmsg: unsafe extern "C" fn(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize,
    /// `fi_tinject`: sends without a completion; the buffer is the program's again on return.
    pub inject: unsafe extern "C" fn(
        ep: *mut fid_ep,
        buf: *const c_void,
        len: usize,
        dest_addr: fi_addr_t,
        tag: u64,
    ) -> isize,
    /// `fi_tsenddata`: sends with data for the receiver's completion.
    pub senddata: unsafe extern "C" fn(
        ep: *mut fid_ep,
        buf: *const c_void,
        len: usize,
        desc: *mut c_void,
        data: u64,
        dest_addr: fi_addr_t,
        tag: u64,
        context: *mut c_void,
    ) -> isize,
    /// `fi_tinjectdata`: injects with data for the receiver's completion.
    pub injectdata: unsafe extern "C" fn(
        ep: *mut fid_ep,
        buf: *const c_void,
        len: usize,
        data: u64,
        dest_addr: fi_addr_t,
        tag: u64,
    ) -> isize,
}
