//! `rdma/fi_rma.h`: one-sided reads and writes.

use std::ffi::c_void;

use crate::endpoint::fid_ep;
use crate::fabric::{fi_addr_t, iovec};

/// A part of remote memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_rma_iov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

/// A part of remote memory, in elements.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_rma_ioc {
    pub addr: u64,
    pub count: usize,
    pub key: u64,
}

/// A read or write.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_msg_rma {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: fi_addr_t,
    pub rma_iov: *const fi_rma_iov,
    pub rma_iov_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}

/// One-sided reads and writes.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_rma {
    pub size: usize,
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
    pub readmsg: unsafe extern "C" fn(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize,
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
    pub writemsg: unsafe extern "C" fn(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize,
    pub inject: unsafe extern "C" fn(
        ep: *mut fid_ep,
        buf: *const c_void,
        len: usize,
        dest_addr: fi_addr_t,
        addr: u64,
        key: u64,
    ) -> isize,
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
