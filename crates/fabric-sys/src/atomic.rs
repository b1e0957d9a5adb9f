//! `rdma/fi_atomic.h`: atomic operations on remote memory.

use std::ffi::{c_int, c_void};

use crate::endpoint::fid_ep;
use crate::fabric::{fi_addr_t, fi_ioc};
use crate::rma::fi_rma_ioc;

/// A flag of `fi_query_atomic`.
pub const FI_FETCH_ATOMIC: u64 = 1 << 58;
/// A flag of `fi_query_atomic`.
pub const FI_COMPARE_ATOMIC: u64 = 1 << 59;

/// An answer of `fi_query_atomic`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_atomic_attr {
    pub count: usize,
    pub size: usize,
}

/// An atomic operation.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_msg_atomic {
    pub msg_iov: *const fi_ioc,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: fi_addr_t,
    pub rma_iov: *const fi_rma_ioc,
    pub rma_iov_count: usize,
    pub datatype: u32,
    pub op: u32,
    pub context: *mut c_void,
    pub data: u64,
}

type Valid = unsafe extern "C" fn(ep: *mut fid_ep, datatype: u32, op: u32, count: *mut usize) -> c_int;

/// Atomic operations on remote memory.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_atomic {
    pub size: usize,
    pub write: unsafe extern "C" fn(
        ep: *mut fid_ep,
        buf: *const c_void,
        count: usize,
        desc: *mut c_void,
        dest_addr: fi_addr_t,
        addr: u64,
        key: u64,
        datatype: u32,
        op: u32,
        context: *mut c_void,
    ) -> isize,
    pub writev: unsafe extern "C" fn(
        ep: *mut fid_ep,
        iov: *const fi_ioc,
        desc: *mut *mut c_void,
        count: usize,
        dest_addr: fi_addr_t,
        addr: u64,
        key: u64,
        datatype: u32,
        op: u32,
        context: *mut c_void,
    ) -> isize,
    pub writemsg: unsafe extern "C" fn(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize,
    pub inject: unsafe extern "C" fn(
        ep: *mut fid_ep,
        buf: *const c_void,
        count: usize,
        dest_addr: fi_addr_t,
        addr: u64,
        key: u64,
        datatype: u32,
        op: u32,
    ) -> isize,
    pub readwrite: unsafe extern "C" fn(
        ep: *mut fid_ep,
        buf: *const c_void,
        count: usize,
        desc: *mut c_void,
        result: *mut c_void,
        result_desc: *mut c_void,
        dest_addr: fi_addr_t,
        addr: u64,
        key: u64,
        datatype: u32,
        op: u32,
        context: *mut c_void,
    ) -> isize,
    pub readwritev: unsafe extern "C" fn(
        ep: *mut fid_ep,
        iov: *const fi_ioc,
        desc: *mut *mut c_void,
        count: usize,
        resultv: *mut fi_ioc,
        result_desc: *mut *mut c_void,
        result_count: usize,
        dest_addr: fi_addr_t,
        addr: u64,
        key: u64,
        datatype: u32,
        op: u32,
        context: *mut c_void,
    ) -> isize,
    pub readwritemsg: unsafe extern "C" fn(
        ep: *mut fid_ep,
        msg: *const fi_msg_atomic,
        resultv: *mut fi_ioc,
        result_desc: *mut *mut c_void,
        result_count: usize,
        flags: u64,
    ) -> isize,
    pub compwrite: unsafe extern "C" fn(
        ep: *mut fid_ep,
        buf: *const c_void,
        count: usize,
        desc: *mut c_void,
        compare: *const c_void,
        compare_desc: *mut c_void,
        result: *mut c_void,
        result_desc: *mut c_void,
        dest_addr: fi_addr_t,
        addr: u64,
        key: u64,
        datatype: u32,
        op: u32,
        context: *mut c_void,
    ) -> isize,
    pub compwritev: unsafe extern "C" fn(
        ep: *mut fid_ep,
        iov: *const fi_ioc,
        desc: *mut *mut c_void,
        count: usize,
        comparev: *const fi_ioc,
        compare_desc: *mut *mut c_void,
        compare_count: usize,
        resultv: *mut fi_ioc,
        result_desc: *mut *mut c_void,
        result_count: usize,
        dest_addr: fi_addr_t,
        addr: u64,
        key: u64,
        datatype: u32,
        op: u32,
        context: *mut c_void,
    ) -> isize,
    pub compwritemsg: unsafe extern "C" fn(
        ep: *mut fid_ep,
        msg: *const fi_msg_atomic,
        comparev: *const fi_ioc,
        compare_desc: *mut *mut c_void,
        compare_count: usize,
        resultv: *mut fi_ioc,
        result_desc: *mut *mut c_void,
        result_count: usize,
        flags: u64,
    ) -> isize,
    pub writevalid: Valid,
    pub readwritevalid: Valid,
    pub compwritevalid: Valid,
}
