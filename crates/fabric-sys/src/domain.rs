//! `rdma/fi_domain.h`: domains, address vectors, memory regions, datatypes and operations.

use std::ffi::{c_char, c_int, c_void};

use crate::atomic::fi_atomic_attr;
use crate::endpoint::fid_ep;
use crate::eq::{fi_cntr_attr, fi_cq_attr, fid_cntr, fid_cq};
use crate::fabric::{fi_addr_t, fi_info, fi_rx_attr, fi_tx_attr, fid, iovec};

/// How an address vector shall be.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_av_attr {
    pub av_type: u32,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

/// A flag of `fi_av_insert`: the context is an array of errors.
pub const FI_SYNC_ERR: u64 = 1 << 58;

/// What an address vector can do.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_av {
    pub size: usize,
    pub insert: unsafe extern "C" fn(
        av: *mut fid_av,
        addr: *const c_void,
        count: usize,
        fi_addr: *mut fi_addr_t,
        flags: u64,
        context: *mut c_void,
    ) -> c_int,
    pub insertsvc: unsafe extern "C" fn(
        av: *mut fid_av,
        node: *const c_char,
        service: *const c_char,
        fi_addr: *mut fi_addr_t,
        flags: u64,
        context: *mut c_void,
    ) -> c_int,
    pub insertsym: unsafe extern "C" fn(
        av: *mut fid_av,
        node: *const c_char,
        nodecnt: usize,
        service: *const c_char,
        svccnt: usize,
        fi_addr: *mut fi_addr_t,
        flags: u64,
        context: *mut c_void,
    ) -> c_int,
    pub remove:
        unsafe extern "C" fn(av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize, flags: u64) -> c_int,
    pub lookup: unsafe extern "C" fn(
        av: *mut fid_av,
        fi_addr: fi_addr_t,
        addr: *mut c_void,
        addrlen: *mut usize,
    ) -> c_int,
    pub straddr: unsafe extern "C" fn(
        av: *mut fid_av,
        addr: *const c_void,
        buf: *mut c_char,
        len: *mut usize,
    ) -> *const c_char,
    pub av_set: Option<
        unsafe extern "C" fn(
            av: *mut fid_av,
            attr: *mut c_void,
            set: *mut *mut c_void,
            context: *mut c_void,
        ) -> c_int,
    >,
    /// Since 1.20.
    pub insert_auth_key: Option<unsafe extern "C" fn()>,
    /// Since 1.20.
    pub lookup_auth_key: Option<unsafe extern "C" fn()>,
    /// Since 1.20.
    pub set_user_id: Option<unsafe extern "C" fn()>,
}

/// An address vector.
#[repr(C)]
#[derive(Debug)]
pub struct fid_av {
    pub fid: fid,
    pub ops: *const fi_ops_av,
}

/// A registered memory region.
#[repr(C)]
#[derive(Debug)]
pub struct fid_mr {
    pub fid: fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

/// Ordinary memory, the only kind that we take.
pub const FI_HMEM_SYSTEM: u32 = 0;

/// How memory shall be registered.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_mr_attr {
    pub mr_iov: *const iovec,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
    pub iface: u32,
    pub device: u64,
    // Newer versions go on; nothing further is read.
}

pub const FI_INT8: u32 = 0;
pub const FI_UINT8: u32 = 1;
pub const FI_INT16: u32 = 2;
pub const FI_UINT16: u32 = 3;
pub const FI_INT32: u32 = 4;
pub const FI_UINT32: u32 = 5;
pub const FI_INT64: u32 = 6;
pub const FI_UINT64: u32 = 7;
pub const FI_FLOAT: u32 = 8;
pub const FI_DOUBLE: u32 = 9;
pub const FI_FLOAT_COMPLEX: u32 = 10;
pub const FI_DOUBLE_COMPLEX: u32 = 11;
pub const FI_LONG_DOUBLE: u32 = 12;
pub const FI_LONG_DOUBLE_COMPLEX: u32 = 13;
pub const FI_DATATYPE_LAST: u32 = 14;

pub const FI_MIN: u32 = 0;
pub const FI_MAX: u32 = 1;
pub const FI_SUM: u32 = 2;
pub const FI_PROD: u32 = 3;
pub const FI_LOR: u32 = 4;
pub const FI_LAND: u32 = 5;
pub const FI_BOR: u32 = 6;
pub const FI_BAND: u32 = 7;
pub const FI_LXOR: u32 = 8;
pub const FI_BXOR: u32 = 9;
pub const FI_ATOMIC_READ: u32 = 10;
pub const FI_ATOMIC_WRITE: u32 = 11;
pub const FI_CSWAP: u32 = 12;
pub const FI_CSWAP_NE: u32 = 13;
pub const FI_CSWAP_LE: u32 = 14;
pub const FI_CSWAP_LT: u32 = 15;
pub const FI_CSWAP_GE: u32 = 16;
pub const FI_CSWAP_GT: u32 = 17;
pub const FI_MSWAP: u32 = 18;
pub const FI_ATOMIC_OP_LAST: u32 = 19;

/// What a domain can do.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_domain {
    pub size: usize,
    pub av_open: unsafe extern "C" fn(
        domain: *mut fid_domain,
        attr: *mut fi_av_attr,
        av: *mut *mut fid_av,
        context: *mut c_void,
    ) -> c_int,
    pub cq_open: unsafe extern "C" fn(
        domain: *mut fid_domain,
        attr: *mut fi_cq_attr,
        cq: *mut *mut fid_cq,
        context: *mut c_void,
    ) -> c_int,
    pub endpoint: unsafe extern "C" fn(
        domain: *mut fid_domain,
        info: *mut fi_info,
        ep: *mut *mut fid_ep,
        context: *mut c_void,
    ) -> c_int,
    pub scalable_ep: unsafe extern "C" fn(
        domain: *mut fid_domain,
        info: *mut fi_info,
        sep: *mut *mut fid_ep,
        context: *mut c_void,
    ) -> c_int,
    pub cntr_open: unsafe extern "C" fn(
        domain: *mut fid_domain,
        attr: *mut fi_cntr_attr,
        cntr: *mut *mut fid_cntr,
        context: *mut c_void,
    ) -> c_int,
    pub poll_open:
        unsafe extern "C" fn(domain: *mut fid_domain, attr: *mut c_void, pollset: *mut *mut c_void) -> c_int,
    pub stx_ctx: unsafe extern "C" fn(
        domain: *mut fid_domain,
        attr: *mut fi_tx_attr,
        stx: *mut *mut c_void,
        context: *mut c_void,
    ) -> c_int,
    pub srx_ctx: unsafe extern "C" fn(
        domain: *mut fid_domain,
        attr: *mut fi_rx_attr,
        rx_ep: *mut *mut fid_ep,
        context: *mut c_void,
    ) -> c_int,
    pub query_atomic: Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            datatype: u32,
            op: u32,
            attr: *mut fi_atomic_attr,
            flags: u64,
        ) -> c_int,
    >,
    pub query_collective: Option<
        unsafe extern "C" fn(domain: *mut fid_domain, coll: u32, attr: *mut c_void, flags: u64) -> c_int,
    >,
    pub endpoint2: Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            info: *mut fi_info,
            ep: *mut *mut fid_ep,
            flags: u64,
            context: *mut c_void,
        ) -> c_int,
    >,
}

/// How a domain registers memory.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_mr {
    pub size: usize,
    pub reg: unsafe extern "C" fn(
        fid: *mut fid,
        buf: *const c_void,
        len: usize,
        access: u64,
        offset: u64,
        requested_key: u64,
        flags: u64,
        mr: *mut *mut fid_mr,
        context: *mut c_void,
    ) -> c_int,
    pub regv: unsafe extern "C" fn(
        fid: *mut fid,
        iov: *const iovec,
        count: usize,
        access: u64,
        offset: u64,
        requested_key: u64,
        flags: u64,
        mr: *mut *mut fid_mr,
        context: *mut c_void,
    ) -> c_int,
    pub regattr: unsafe extern "C" fn(
        fid: *mut fid,
        attr: *const fi_mr_attr,
        flags: u64,
        mr: *mut *mut fid_mr,
    ) -> c_int,
}

/// A domain.
#[repr(C)]
#[derive(Debug)]
pub struct fid_domain {
    pub fid: fid,
    pub ops: *const fi_ops_domain,
    pub mr: *const fi_ops_mr,
}
