//! `rdma/fi_rma.h`: reads and writes of remote memory.

use std::ffi::c_void;

use crate::endpoint::fid_ep;
use crate::fabric::{fi_addr_t, iovec};

/// A part of remote memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_rma_iov {
    /// Its address at the target, or offset in the registration.
    pub addr: u64,
    /// Its bytes.
    pub len: usize,
    /// Key of the registration.
    pub key: u64,
}

/// A part of remote memory, in elements.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_rma_ioc {
    /// Its address at the target, or offset in the registration.
    pub addr: u64,
    /// Its elements.
    pub count: usize,
    /// Key of the registration.
    pub key: u64,
}

/// A read or write.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_msg_rma {
    /// The local buffers.
    pub msg_iov: *const iovec,
    /// Descriptors of their memory, or null.
    pub desc: *mut *mut c_void,
    /// How many local buffers there are.
    pub iov_count: usize,
    /// The target's number in the address vector.
    pub addr: fi_addr_t,
    /// The parts of the target's memory.
    pub rma_iov: *const fi_rma_iov,
    /// How many parts there are.
    pub rma_iov_count: usize,
    /// The program's own value, for the completion.
    pub context: *mut c_void,
    /// Data for the target's completion.
    pub data: u64,
}

/// Operations of endpoints: reads and writes of remote memory.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_rma {
    /// Bytes of this structure, by which its reader knows what it has.
    pub size: usize,
    /// `fi_read`: reads into one buffer.
    pub read: unsafe extern "C" fn(
        ep: *mut fid_ep,
        buf: *mut c_void,
        len: usize,
        desc: *mut c_void,
        src_addr: fi_addr_t,
        addr: u64,
        key: u64,
        context: *mut c_void,
    ) -> isize,
    /// `fi_readv`: reads into several buffers.
    pub readv: unsafe extern "C" fn(
        ep: *mut fid_ep,
        iov: *const iovec,
        desc: *mut *mut c_void,
        count: usize,
        src_addr: fi_addr_t,
        addr: u64,
        key: u64,
        context: *mut c_void,
    ) -> isize,
    /// `fi_readmsg`: reads from a description, with flags.
    pub readmsg: unsafe extern "C" fn(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize,
    /// `fi_write`: writes from one buffer.
    pub write: unsafe extern "C" fn(
        ep: *mut fid_ep,
        buf: *const c_void,
        len: usize,
        desc: *mut c_void,
        dest_addr: fi_addr_t,
        addr: u64,
        key: u64,
        context: *mut c_void,
    ) -> isize,
    /// `fi_writev`: writes from several buffers.
    pub writev: unsafe extern "C" fn(
        ep: *mut fid_ep,
        iov: *const iovec,
        desc: *mut *mut c_void,
        count: usize,
        dest_addr: fi_addr_t,
        addr: u64,
        key: u64,
        context: *mut c_void,
    ) -> isize,
    /// `fi_writemsg`: writes from a description, with flags.
    pub writemsg: unsafe extern "C" fn(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize,
    /// `fi_inject_write`: writes without a completion; the buffer is the program's again on return.
    pub inject: unsafe extern "C" fn(
        ep: *mut fid_ep,
        buf: *const c_void,
        len: usize,
        dest_addr: fi_addr_t,
        addr: u64,
        key: u64,
    ) -> isize,
    /// `fi_writedata`: writes, with data for the target's completion.
    pub writedata: unsafe extern "C" fn(
        ep: *mut fid_ep,
        buf: *const c_void,
        len: usize,
        desc: *mut c_void,
        data: u64,
        dest_addr: fi_addr_t,
        addr: u64,
        key: u64,
        context: *mut c_void,
    ) -> isize,
    /// `fi_inject_writedata`: injects a write with data for the target's completion.
    pub injectdata: unsafe extern "C" fn(
        ep: *mut fid_ep,
        buf: *const c_void,
        len: usize,
        data: u64,
        dest_addr: fi_addr_t,
        addr: u64,
        key: u64,
    ) -> isize,
}
