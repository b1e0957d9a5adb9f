//! `rdma/fi_domain.h`: domains, address vectors, memory regions, datatypes and operations.

use std::ffi::{c_char, c_int, c_void};

use crate::atomic::fi_atomic_attr;
use crate::endpoint::fid_ep;
use crate::eq::{fi_cntr_attr, fi_cq_attr, fid_cntr, fid_cq};
use crate::fabric::{fi_addr_t, fi_info, fi_rx_attr, fi_tx_attr, fid, iovec};

/// Attributes of an address vector.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_av_attr {
    /// `type` in C: [`FI_AV_MAP`](crate::fabric::FI_AV_MAP), [`FI_AV_TABLE`](crate::fabric::FI_AV_TABLE), or either.
    pub av_type: u32,
    /// How many bits of an address name a receive context of a scalable endpoint.
    pub rx_ctx_bits: c_int,
    /// How many addresses are expected; a hint.
    pub count: usize,
    /// How many endpoints of a node are expected; a hint.
    pub ep_per_node: usize,
    /// Name of a vector that processes share, or null.
    pub name: *const c_char,
    /// Where a shared vector is to be mapped, or null.
    pub map_addr: *mut c_void,
    /// Flags of the open call.
    pub flags: u64,
}

/// A flag of `fi_av_insert`: the context is an array of errors.
pub const FI_SYNC_ERR: u64 = 1 << 58;

/// Operations of address vectors.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_av {
    /// Bytes of this structure, by which its reader knows what it has.
    pub size: usize,
    /// `fi_av_insert`: adds addresses.
    pub insert: unsafe extern "C" fn(
        av: *mut fid_av,
        addr: *const c_void,
        count: usize,
        fi_addr: *mut fi_addr_t,
        flags: u64,
        context: *mut c_void,
    ) -> c_int,
    /// `fi_av_insertsvc`: adds the address of a node and a service.
    pub insertsvc: unsafe extern "C" fn(
        av: *mut fid_av,
        node: *const c_char,
        service: *const c_char,
        fi_addr: *mut fi_addr_t,
        flags: u64,
        context: *mut c_void,
    ) -> c_int,
    /// `fi_av_insertsym`: adds the addresses of ranges of nodes and services.
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
    /// `fi_av_remove`: removes addresses.
    pub remove:
        unsafe extern "C" fn(av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize, flags: u64) -> c_int,
    /// `fi_av_lookup`: gives the address that was inserted under a number.
    pub lookup: unsafe extern "C" fn(
        av: *mut fid_av,
        fi_addr: fi_addr_t,
        addr: *mut c_void,
        addrlen: *mut usize,
    ) -> c_int,
    /// `fi_av_straddr`: writes an address as text.
    pub straddr: unsafe extern "C" fn(
        av: *mut fid_av,
        addr: *const c_void,
        buf: *mut c_char,
        len: *mut usize,
    ) -> *const c_char,
    /// `fi_av_set`: makes a set of addresses, for collective operations.
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
    /// The head.
    pub fid: fid,
    /// Its operations.
    pub ops: *const fi_ops_av,
}

/// A registered memory region.
#[repr(C)]
#[derive(Debug)]
pub struct fid_mr {
    /// The head.
    pub fid: fid,
    /// Descriptor that local operations pass (`fi_mr_desc`).
    pub mem_desc: *mut c_void,
    /// Key that initiators name (`fi_mr_key`).
    pub key: u64,
}

/// Ordinary memory, the only kind that the provider registers.
pub const FI_HMEM_SYSTEM: u32 = 0;

/// Attributes of a registration.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_mr_attr {
    /// The buffers.
    pub mr_iov: *const iovec,
    /// How many there are.
    pub iov_count: usize,
    /// Allowed operations: `FI_SEND`, `FI_REMOTE_READ` and so on.
    pub access: u64,
    /// Reserved: 0.
    pub offset: u64,
    /// The key that the program wants, where the provider does not choose.
    pub requested_key: u64,
    /// The program's own value.
    pub context: *mut c_void,
    /// Length of the authorization key.
    pub auth_key_size: usize,
    /// The authorization key, or null.
    pub auth_key: *mut u8,
    /// Kind of memory: [`FI_HMEM_SYSTEM`], or a device's.
    pub iface: u32,
    /// The device of a kind that is not ordinary memory; a union in C.
    pub device: u64,
    // Newer versions go on; nothing further is read.
}

/// Signed integer of 8 bits.
pub const FI_INT8: u32 = 0;
/// Unsigned integer of 8 bits.
pub const FI_UINT8: u32 = 1;
/// Signed integer of 16 bits.
pub const FI_INT16: u32 = 2;
/// Unsigned integer of 16 bits.
pub const FI_UINT16: u32 = 3;
/// Signed integer of 32 bits.
pub const FI_INT32: u32 = 4;
/// Unsigned integer of 32 bits.
pub const FI_UINT32: u32 = 5;
/// Signed integer of 64 bits.
pub const FI_INT64: u32 = 6;
/// Unsigned integer of 64 bits.
pub const FI_UINT64: u32 = 7;
/// C's `float`.
pub const FI_FLOAT: u32 = 8;
/// C's `double`.
pub const FI_DOUBLE: u32 = 9;
/// A pair of `float`: real and imaginary part.
pub const FI_FLOAT_COMPLEX: u32 = 10;
/// A pair of `double`: real and imaginary part.
pub const FI_DOUBLE_COMPLEX: u32 = 11;
/// C's `long double`.
pub const FI_LONG_DOUBLE: u32 = 12;
/// A pair of `long double`: real and imaginary part.
pub const FI_LONG_DOUBLE_COMPLEX: u32 = 13;
/// One more than the largest datatype here.
pub const FI_DATATYPE_LAST: u32 = 14;

/// The smaller of target and operand.
pub const FI_MIN: u32 = 0;
/// The larger of target and operand.
pub const FI_MAX: u32 = 1;
/// The sum.
pub const FI_SUM: u32 = 2;
/// The product.
pub const FI_PROD: u32 = 3;
/// Logical or: 1 or 0.
pub const FI_LOR: u32 = 4;
/// Logical and: 1 or 0.
pub const FI_LAND: u32 = 5;
/// Bitwise or.
pub const FI_BOR: u32 = 6;
/// Bitwise and.
pub const FI_BAND: u32 = 7;
/// Logical exclusive or: 1 or 0.
pub const FI_LXOR: u32 = 8;
/// Bitwise exclusive or.
pub const FI_BXOR: u32 = 9;
/// Reads the target; there is no operand.
pub const FI_ATOMIC_READ: u32 = 10;
/// Replaces the target by the operand.
pub const FI_ATOMIC_WRITE: u32 = 11;
/// Writes the operand if the compare value equals the target.
pub const FI_CSWAP: u32 = 12;
/// Writes the operand if the compare value differs from the target.
pub const FI_CSWAP_NE: u32 = 13;
/// Writes the operand if the compare value is at most the target.
pub const FI_CSWAP_LE: u32 = 14;
/// Writes the operand if the compare value is less than the target.
pub const FI_CSWAP_LT: u32 = 15;
/// Writes the operand if the compare value is at least the target.
pub const FI_CSWAP_GE: u32 = 16;
/// Writes the operand if the compare value is greater than the target.
pub const FI_CSWAP_GT: u32 = 17;
/// Takes the operand's bits where the compare value has ones, and keeps the target's elsewhere.
pub const FI_MSWAP: u32 = 18;
/// One more than the largest operation here.
pub const FI_ATOMIC_OP_LAST: u32 = 19;

/// Operations of domains.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_domain {
    /// Bytes of this structure, by which its reader knows what it has.
    pub size: usize,
    /// `fi_av_open`: opens an address vector.
    pub av_open: unsafe extern "C" fn(
        domain: *mut fid_domain,
        attr: *mut fi_av_attr,
        av: *mut *mut fid_av,
        context: *mut c_void,
    ) -> c_int,
    /// `fi_cq_open`: opens a completion queue.
    pub cq_open: unsafe extern "C" fn(
        domain: *mut fid_domain,
        attr: *mut fi_cq_attr,
        cq: *mut *mut fid_cq,
        context: *mut c_void,
    ) -> c_int,
    /// `fi_endpoint`: opens an endpoint.
    pub endpoint: unsafe extern "C" fn(
        domain: *mut fid_domain,
        info: *mut fi_info,
        ep: *mut *mut fid_ep,
        context: *mut c_void,
    ) -> c_int,
    /// `fi_scalable_ep`: opens an endpoint of several contexts.
    pub scalable_ep: unsafe extern "C" fn(
        domain: *mut fid_domain,
        info: *mut fi_info,
        sep: *mut *mut fid_ep,
        context: *mut c_void,
    ) -> c_int,
    /// `fi_cntr_open`: opens a counter.
    pub cntr_open: unsafe extern "C" fn(
        domain: *mut fid_domain,
        attr: *mut fi_cntr_attr,
        cntr: *mut *mut fid_cntr,
        context: *mut c_void,
    ) -> c_int,
    /// `fi_poll_open`: opens a set of queues and counters to poll.
    pub poll_open:
        unsafe extern "C" fn(domain: *mut fid_domain, attr: *mut c_void, pollset: *mut *mut c_void) -> c_int,
    /// `fi_stx_context`: opens a transmit context that endpoints share.
    pub stx_ctx: unsafe extern "C" fn(
        domain: *mut fid_domain,
        attr: *mut fi_tx_attr,
        stx: *mut *mut c_void,
        context: *mut c_void,
    ) -> c_int,
    /// `fi_srx_context`: opens a receive context that endpoints share.
    pub srx_ctx: unsafe extern "C" fn(
        domain: *mut fid_domain,
        attr: *mut fi_rx_attr,
        rx_ep: *mut *mut fid_ep,
        context: *mut c_void,
    ) -> c_int,
    /// `fi_query_atomic`: whether an atomic operation is supported for a datatype.
    pub query_atomic: Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            datatype: u32,
            op: u32,
            attr: *mut fi_atomic_attr,
            flags: u64,
        ) -> c_int,
    >,
    /// `fi_query_collective`: whether a collective operation is supported.
    pub query_collective: Option<
        unsafe extern "C" fn(domain: *mut fid_domain, coll: u32, attr: *mut c_void, flags: u64) -> c_int,
    >,
    /// `fi_endpoint2`: opens an endpoint, with flags.
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

/// Operations of domains on memory.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_mr {
    /// Bytes of this structure, by which its reader knows what it has.
    pub size: usize,
    /// `fi_mr_reg`: registers one buffer.
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
    /// `fi_mr_regv`: registers several buffers.
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
    /// `fi_mr_regattr`: registers what attributes describe.
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
    /// The head.
    pub fid: fid,
    /// Its operations.
    pub ops: *const fi_ops_domain,
    /// Its operations on memory.
    pub mr: *const fi_ops_mr,
}
