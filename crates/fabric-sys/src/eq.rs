//! `rdma/fi_eq.h`: event queues, completion queues, counters.

use std::ffi::{c_char, c_int, c_void};

use crate::fabric::{fi_addr_t, fid};

pub const FI_WAIT_NONE: u32 = 0;
pub const FI_WAIT_UNSPEC: u32 = 1;
pub const FI_WAIT_SET: u32 = 2;
pub const FI_WAIT_FD: u32 = 3;
pub const FI_WAIT_MUTEX_COND: u32 = 4;
pub const FI_WAIT_YIELD: u32 = 5;
pub const FI_WAIT_POLLFD: u32 = 6;

/// How an event queue shall be.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_eq_attr {
    pub size: usize,
    pub flags: u64,
    pub wait_obj: u32,
    pub signaling_vector: c_int,
    pub wait_set: *mut c_void,
}

/// A flag of `fi_eq_open` and of the queue: the caller may write to it.
pub const FI_EQ_WRITE: u64 = crate::fabric::FI_WRITE;

/// An event.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_eq_entry {
    pub fid: *mut fid,
    pub context: *mut c_void,
    pub data: u64,
}

/// An event about something that failed.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_eq_err_entry {
    pub fid: *mut fid,
    pub context: *mut c_void,
    pub data: u64,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

/// What an event queue can do.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_eq {
    pub size: usize,
    pub read: unsafe extern "C" fn(
        eq: *mut fid_eq,
        event: *mut u32,
        buf: *mut c_void,
        len: usize,
        flags: u64,
    ) -> isize,
    pub readerr: unsafe extern "C" fn(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> isize,
    pub write: unsafe extern "C" fn(
        eq: *mut fid_eq,
        event: u32,
        buf: *const c_void,
        len: usize,
        flags: u64,
    ) -> isize,
    pub sread: unsafe extern "C" fn(
        eq: *mut fid_eq,
        event: *mut u32,
        buf: *mut c_void,
        len: usize,
        timeout: c_int,
        flags: u64,
    ) -> isize,
    pub strerror: unsafe extern "C" fn(
        eq: *mut fid_eq,
        prov_errno: c_int,
        err_data: *const c_void,
        buf: *mut c_char,
        len: usize,
    ) -> *const c_char,
}

/// An event queue.
#[repr(C)]
#[derive(Debug)]
pub struct fid_eq {
    pub fid: fid,
    pub ops: *const fi_ops_eq,
}

pub const FI_CQ_FORMAT_UNSPEC: u32 = 0;
pub const FI_CQ_FORMAT_CONTEXT: u32 = 1;
pub const FI_CQ_FORMAT_MSG: u32 = 2;
pub const FI_CQ_FORMAT_DATA: u32 = 3;
pub const FI_CQ_FORMAT_TAGGED: u32 = 4;

/// A completion, format CONTEXT.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_cq_entry {
    pub op_context: *mut c_void,
}

/// A completion, format MSG.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_cq_msg_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
}

/// A completion, format DATA.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_cq_data_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
}

/// A completion, format TAGGED. The other formats are its beginnings.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_cq_tagged_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
}

/// A completion of something that failed.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_cq_err_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
    /// Since 1.20: only callers that opened the fabric with that version or a newer one have room for it.
    pub src_addr: fi_addr_t,
}

pub const FI_CQ_COND_NONE: u32 = 0;
pub const FI_CQ_COND_THRESHOLD: u32 = 1;

/// How a completion queue shall be.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_cq_attr {
    pub size: usize,
    pub flags: u64,
    pub format: u32,
    pub wait_obj: u32,
    pub signaling_vector: c_int,
    pub wait_cond: u32,
    pub wait_set: *mut c_void,
}

/// What a completion queue can do.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_cq {
    pub size: usize,
    pub read: unsafe extern "C" fn(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize,
    pub readfrom: unsafe extern "C" fn(
        cq: *mut fid_cq,
        buf: *mut c_void,
        count: usize,
        src_addr: *mut fi_addr_t,
    ) -> isize,
    pub readerr: unsafe extern "C" fn(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, flags: u64) -> isize,
    pub sread: unsafe extern "C" fn(
        cq: *mut fid_cq,
        buf: *mut c_void,
        count: usize,
        cond: *const c_void,
        timeout: c_int,
    ) -> isize,
    pub sreadfrom: unsafe extern "C" fn(
        cq: *mut fid_cq,
        buf: *mut c_void,
        count: usize,
        src_addr: *mut fi_addr_t,
        cond: *const c_void,
        timeout: c_int,
    ) -> isize,
    pub signal: unsafe extern "C" fn(cq: *mut fid_cq) -> c_int,
    pub strerror: unsafe extern "C" fn(
        cq: *mut fid_cq,
        prov_errno: c_int,
        err_data: *const c_void,
        buf: *mut c_char,
        len: usize,
    ) -> *const c_char,
}

/// A completion queue.
#[repr(C)]
#[derive(Debug)]
pub struct fid_cq {
    pub fid: fid,
    pub ops: *const fi_ops_cq,
}

/// The only kind of counter events until 2.5.
pub const FI_CNTR_EVENTS_COMP: u32 = 0;

/// How a counter shall be.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_cntr_attr {
    pub events: u32,
    pub wait_obj: u32,
    pub wait_set: *mut c_void,
    pub flags: u64,
}

/// What a counter can do.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_cntr {
    pub size: usize,
    pub read: unsafe extern "C" fn(cntr: *mut fid_cntr) -> u64,
    pub readerr: unsafe extern "C" fn(cntr: *mut fid_cntr) -> u64,
    pub add: unsafe extern "C" fn(cntr: *mut fid_cntr, value: u64) -> c_int,
    pub set: unsafe extern "C" fn(cntr: *mut fid_cntr, value: u64) -> c_int,
    pub wait: unsafe extern "C" fn(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int,
    pub adderr: Option<unsafe extern "C" fn(cntr: *mut fid_cntr, value: u64) -> c_int>,
    pub seterr: Option<unsafe extern "C" fn(cntr: *mut fid_cntr, value: u64) -> c_int>,
}

/// A counter.
#[repr(C)]
#[derive(Debug)]
pub struct fid_cntr {
    pub fid: fid,
    pub ops: *const fi_ops_cntr,
}
