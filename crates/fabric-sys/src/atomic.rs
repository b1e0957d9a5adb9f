//! `rdma/fi_atomic.h`: atomic operations on remote memory.

use std::ffi::{c_int, c_void};

use crate::endpoint::fid_ep;
use crate::fabric::{fi_addr_t, fi_ioc};
use crate::rma::fi_rma_ioc;

/// Flag of `fi_query_atomic`: asks about fetching operations.
pub const FI_FETCH_ATOMIC: u64 = 1 << 58;
/// Flag of `fi_query_atomic`: asks about comparing operations.
pub const FI_COMPARE_ATOMIC: u64 = 1 << 59;

/// The answer of `fi_query_atomic`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_atomic_attr {
    /// How many elements one call may have.
    pub count: usize,
    /// Bytes of an element.
    pub size: usize,
}

/// An atomic operation.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_msg_atomic {
    /// The operands.
    pub msg_iov: *const fi_ioc,
    /// Descriptors of the operands' memory, or null.
    pub desc: *mut *mut c_void,
    /// How many parts the operands have.
    pub iov_count: usize,
    /// The target's number in the address vector.
    pub addr: fi_addr_t,
    /// The elements at the target.
    pub rma_iov: *const fi_rma_ioc,
    /// How many parts these have.
    pub rma_iov_count: usize,
    /// Datatype of all elements: [`FI_INT8`](crate::domain::FI_INT8) and so on.
    pub datatype: u32,
    /// Operation: [`FI_MIN`](crate::domain::FI_MIN) and so on.
    pub op: u32,
    /// The program's own value, for the completion.
    pub context: *mut c_void,
    /// Data for the target's completion.
    pub data: u64,
}

type Valid = unsafe extern "C" fn(ep: *mut fid_ep, datatype: u32, op: u32, count: *mut usize) -> c_int;

/// Operations of endpoints: atomic operations on remote memory.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_atomic {
    /// Bytes of this structure, by which its reader knows what it has.
    pub size: usize,
    /// `fi_atomic`: changes elements at the target.
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
    /// `fi_atomicv`: the same with operands in several parts.
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
    /// `fi_atomicmsg`: the same from a description, with flags.
    pub writemsg: unsafe extern "C" fn(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize,
    /// `fi_inject_atomic`: the same without a completion; the operands are the program's again on return.
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
    /// `fi_fetch_atomic`: changes elements, and gives their former values.
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
    /// `fi_fetch_atomicv`: the same with buffers in several parts.
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
    /// `fi_fetch_atomicmsg`: the same from a description, with flags.
    pub readwritemsg: unsafe extern "C" fn(
        ep: *mut fid_ep,
        msg: *const fi_msg_atomic,
        resultv: *mut fi_ioc,
        result_desc: *mut *mut c_void,
        result_count: usize,
        flags: u64,
    ) -> isize,
    /// `fi_compare_atomic`: changes elements depending on compare values, and gives their former values.
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
    /// `fi_compare_atomicv`: the same with buffers in several parts.
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
    /// `fi_compare_atomicmsg`: the same from a description, with flags.
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
    /// `fi_atomicvalid`: how many elements `write` takes.
    pub writevalid: Valid,
    /// `fi_fetch_atomicvalid`: how many elements `readwrite` takes.
    pub readwritevalid: Valid,
    /// `fi_compare_atomicvalid`: how many elements `compwrite` takes.
    pub compwritevalid: Valid,
}
