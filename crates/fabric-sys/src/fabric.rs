//! `rdma/fabric.h`: capabilities, attributes, the head of every object, fabrics.

use std::ffi::{c_char, c_int, c_void};

use crate::domain::fid_domain;
use crate::eq::{fi_eq_attr, fid_eq};

/// `FI_VERSION(major, minor)`.
pub const fn fi_version(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

/// A number of a provider's own, in enumerations that allow such.
pub const FI_PROV_SPECIFIC: u32 = 1 << 31;

pub const FI_MSG: u64 = 1 << 1;
pub const FI_RMA: u64 = 1 << 2;
pub const FI_TAGGED: u64 = 1 << 3;
pub const FI_ATOMIC: u64 = 1 << 4;
pub const FI_MULTICAST: u64 = 1 << 5;
pub const FI_COLLECTIVE: u64 = 1 << 6;
pub const FI_READ: u64 = 1 << 8;
pub const FI_WRITE: u64 = 1 << 9;
pub const FI_RECV: u64 = 1 << 10;
pub const FI_SEND: u64 = 1 << 11;
pub const FI_TRANSMIT: u64 = FI_SEND;
pub const FI_REMOTE_READ: u64 = 1 << 12;
pub const FI_REMOTE_WRITE: u64 = 1 << 13;
pub const FI_MULTI_RECV: u64 = 1 << 16;
pub const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
pub const FI_MORE: u64 = 1 << 18;
pub const FI_PEEK: u64 = 1 << 19;
pub const FI_TRIGGER: u64 = 1 << 20;
pub const FI_FENCE: u64 = 1 << 21;
pub const FI_PRIORITY: u64 = 1 << 22;
pub const FI_COMPLETION: u64 = 1 << 24;
pub const FI_INJECT: u64 = 1 << 25;
pub const FI_INJECT_COMPLETE: u64 = 1 << 26;
pub const FI_TRANSMIT_COMPLETE: u64 = 1 << 27;
pub const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
pub const FI_AFFINITY: u64 = 1 << 29;
pub const FI_COMMIT_COMPLETE: u64 = 1 << 30;
pub const FI_MATCH_COMPLETE: u64 = 1 << 31;
pub const FI_HMEM: u64 = 1 << 47;
pub const FI_LOCAL_COMM: u64 = 1 << 51;
pub const FI_REMOTE_COMM: u64 = 1 << 52;
pub const FI_SHARED_AV: u64 = 1 << 53;
/// A flag of `fi_getinfo`.
pub const FI_PROV_ATTR_ONLY: u64 = 1 << 54;
/// A flag of `fi_getinfo`.
pub const FI_NUMERICHOST: u64 = 1 << 55;
pub const FI_RMA_EVENT: u64 = 1 << 56;
/// A capability, and a flag of `fi_getinfo`.
pub const FI_SOURCE: u64 = 1 << 57;
pub const FI_NAMED_RX_CTX: u64 = 1 << 58;
pub const FI_DIRECTED_RECV: u64 = 1 << 59;
/// A flag of receives; the bit is [`FI_DIRECTED_RECV`] among capabilities.
pub const FI_CLAIM: u64 = 1 << 59;
/// A flag of receives.
pub const FI_DISCARD: u64 = 1 << 58;
/// A flag of `fi_ep_bind` for completion queues.
pub const FI_SELECTIVE_COMPLETION: u64 = 1 << 59;

/// Mode bits.
pub const FI_CONTEXT: u64 = 1 << 59;
pub const FI_MSG_PREFIX: u64 = 1 << 58;
pub const FI_ASYNC_IOV: u64 = 1 << 57;
pub const FI_RX_CQ_DATA: u64 = 1 << 56;
pub const FI_LOCAL_MR: u64 = 1 << 55;
pub const FI_CONTEXT2: u64 = 1 << 52;

pub const FI_FORMAT_UNSPEC: u32 = 0;

/// An address of an address vector.
pub type fi_addr_t = u64;
pub const FI_ADDR_UNSPEC: fi_addr_t = u64::MAX;
pub const FI_ADDR_NOTAVAIL: fi_addr_t = u64::MAX;
pub const FI_SHARED_CONTEXT: usize = usize::MAX;

pub const FI_AV_UNSPEC: u32 = 0;
pub const FI_AV_MAP: u32 = 1;
pub const FI_AV_TABLE: u32 = 2;

pub const FI_MR_UNSPEC: c_int = 0;
pub const FI_MR_BASIC: c_int = 1 << 0;
pub const FI_MR_SCALABLE: c_int = 1 << 1;
pub const FI_MR_LOCAL: c_int = 1 << 2;
pub const FI_MR_RAW: c_int = 1 << 3;
pub const FI_MR_VIRT_ADDR: c_int = 1 << 4;
pub const FI_MR_ALLOCATED: c_int = 1 << 5;
pub const FI_MR_PROV_KEY: c_int = 1 << 6;
pub const FI_MR_MMU_NOTIFY: c_int = 1 << 7;
pub const FI_MR_RMA_EVENT: c_int = 1 << 8;
pub const FI_MR_ENDPOINT: c_int = 1 << 9;
pub const FI_MR_HMEM: c_int = 1 << 10;

pub const FI_PROGRESS_UNSPEC: u32 = 0;
pub const FI_PROGRESS_AUTO: u32 = 1;
pub const FI_PROGRESS_MANUAL: u32 = 2;
/// Since 2.0, in `control_progress`.
pub const FI_PROGRESS_CONTROL_UNIFIED: u32 = 3;

pub const FI_THREAD_UNSPEC: u32 = 0;
pub const FI_THREAD_SAFE: u32 = 1;
pub const FI_THREAD_FID: u32 = 2;
pub const FI_THREAD_DOMAIN: u32 = 3;
pub const FI_THREAD_COMPLETION: u32 = 4;
pub const FI_THREAD_ENDPOINT: u32 = 5;

pub const FI_RM_UNSPEC: u32 = 0;
pub const FI_RM_DISABLED: u32 = 1;
pub const FI_RM_ENABLED: u32 = 2;

pub const FI_ORDER_RAR: u64 = 1 << 0;
pub const FI_ORDER_RAW: u64 = 1 << 1;
pub const FI_ORDER_RAS: u64 = 1 << 2;
pub const FI_ORDER_WAR: u64 = 1 << 3;
pub const FI_ORDER_WAW: u64 = 1 << 4;
pub const FI_ORDER_WAS: u64 = 1 << 5;
pub const FI_ORDER_SAR: u64 = 1 << 6;
pub const FI_ORDER_SAW: u64 = 1 << 7;
pub const FI_ORDER_SAS: u64 = 1 << 8;
pub const FI_ORDER_RMA_RAR: u64 = 1 << 32;
pub const FI_ORDER_RMA_RAW: u64 = 1 << 33;
pub const FI_ORDER_RMA_WAR: u64 = 1 << 34;
pub const FI_ORDER_RMA_WAW: u64 = 1 << 35;
pub const FI_ORDER_ATOMIC_RAR: u64 = 1 << 36;
pub const FI_ORDER_ATOMIC_RAW: u64 = 1 << 37;
pub const FI_ORDER_ATOMIC_WAR: u64 = 1 << 38;
pub const FI_ORDER_ATOMIC_WAW: u64 = 1 << 39;

pub const FI_EP_UNSPEC: u32 = 0;
pub const FI_EP_MSG: u32 = 1;
pub const FI_EP_DGRAM: u32 = 2;
pub const FI_EP_RDM: u32 = 3;

pub const FI_PROTO_UNSPEC: u32 = 0;

pub const FI_TC_UNSPEC: u32 = 0;

/// Attributes of the sending side.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_tx_attr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
    pub iov_limit: usize,
    pub rma_iov_limit: usize,
    pub tclass: u32,
}

/// Attributes of the receiving side.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_rx_attr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: usize,
    pub size: usize,
    pub iov_limit: usize,
}

/// Attributes of an endpoint.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_ep_attr {
    pub ep_type: u32,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    pub msg_prefix_size: usize,
    pub max_order_raw_size: usize,
    pub max_order_war_size: usize,
    pub max_order_waw_size: usize,
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
}

/// Attributes of a domain.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_domain_attr {
    pub domain: *mut fid_domain,
    pub name: *mut c_char,
    pub threading: u32,
    pub control_progress: u32,
    /// `progress` since 2.0.
    pub data_progress: u32,
    pub resource_mgmt: u32,
    pub av_type: u32,
    pub mr_mode: c_int,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
    pub cq_cnt: usize,
    pub ep_cnt: usize,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub max_ep_tx_ctx: usize,
    pub max_ep_rx_ctx: usize,
    pub max_ep_stx_ctx: usize,
    pub max_ep_srx_ctx: usize,
    pub cntr_cnt: usize,
    pub mr_iov_limit: usize,
    pub caps: u64,
    pub mode: u64,
    pub auth_key: *mut u8,
    pub auth_key_size: usize,
    pub max_err_data: usize,
    pub mr_cnt: usize,
    pub tclass: u32,
    /// Since 1.20.
    pub max_ep_auth_key: usize,
    /// Since 2.0.
    pub max_group_id: u32,
    /// Since 2.5.
    pub max_cntr_value: u64,
    /// Since 2.5.
    pub max_err_cntr_value: u64,
}

/// Attributes of a fabric.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_fabric_attr {
    pub fabric: *mut fid_fabric,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    pub api_version: u32,
}

/// What a provider offers, or what a caller wants.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_info {
    pub next: *mut fi_info,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: *mut fid,
    pub tx_attr: *mut fi_tx_attr,
    pub rx_attr: *mut fi_rx_attr,
    pub ep_attr: *mut fi_ep_attr,
    pub domain_attr: *mut fi_domain_attr,
    pub fabric_attr: *mut fi_fabric_attr,
    pub nic: *mut c_void,
}

pub const FI_CLASS_UNSPEC: usize = 0;
pub const FI_CLASS_FABRIC: usize = 1;
pub const FI_CLASS_DOMAIN: usize = 2;
pub const FI_CLASS_EP: usize = 3;
pub const FI_CLASS_AV: usize = 11;
pub const FI_CLASS_MR: usize = 12;
pub const FI_CLASS_EQ: usize = 13;
pub const FI_CLASS_CQ: usize = 14;
pub const FI_CLASS_CNTR: usize = 15;

/// What every object can do.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops {
    pub size: usize,
    pub close: unsafe extern "C" fn(fid: *mut fid) -> c_int,
    pub bind: unsafe extern "C" fn(fid: *mut fid, bfid: *mut fid, flags: u64) -> c_int,
    pub control: unsafe extern "C" fn(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int,
    pub ops_open: unsafe extern "C" fn(
        fid: *mut fid,
        name: *const c_char,
        flags: u64,
        ops: *mut *mut c_void,
        context: *mut c_void,
    ) -> c_int,
    pub tostr: Option<unsafe extern "C" fn(fid: *const fid, buf: *mut c_char, len: usize) -> c_int>,
    pub ops_set: Option<
        unsafe extern "C" fn(
            fid: *mut fid,
            name: *const c_char,
            flags: u64,
            ops: *mut c_void,
            context: *mut c_void,
        ) -> c_int,
    >,
}

/// The head of every object.
#[repr(C)]
#[derive(Debug)]
pub struct fid {
    pub fclass: usize,
    pub context: *mut c_void,
    pub ops: *const fi_ops,
}

/// What a fabric can do.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_fabric {
    pub size: usize,
    pub domain: unsafe extern "C" fn(
        fabric: *mut fid_fabric,
        info: *mut fi_info,
        dom: *mut *mut fid_domain,
        context: *mut c_void,
    ) -> c_int,
    pub passive_ep: unsafe extern "C" fn(
        fabric: *mut fid_fabric,
        info: *mut fi_info,
        pep: *mut *mut c_void,
        context: *mut c_void,
    ) -> c_int,
    pub eq_open: unsafe extern "C" fn(
        fabric: *mut fid_fabric,
        attr: *mut fi_eq_attr,
        eq: *mut *mut fid_eq,
        context: *mut c_void,
    ) -> c_int,
    pub wait_open:
        unsafe extern "C" fn(fabric: *mut fid_fabric, attr: *mut c_void, waitset: *mut *mut c_void) -> c_int,
    pub trywait: unsafe extern "C" fn(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int,
    pub domain2: Option<
        unsafe extern "C" fn(
            fabric: *mut fid_fabric,
            info: *mut fi_info,
            dom: *mut *mut fid_domain,
            flags: u64,
            context: *mut c_void,
        ) -> c_int,
    >,
}

/// A fabric.
#[repr(C)]
#[derive(Debug)]
pub struct fid_fabric {
    pub fid: fid,
    pub ops: *const fi_ops_fabric,
    pub api_version: u32,
}

pub const FI_GETFIDFLAG: c_int = 0;
pub const FI_SETFIDFLAG: c_int = 1;
pub const FI_GETOPSFLAG: c_int = 2;
pub const FI_SETOPSFLAG: c_int = 3;
pub const FI_ALIAS: c_int = 4;
pub const FI_GETWAIT: c_int = 5;
pub const FI_ENABLE: c_int = 6;
pub const FI_REFRESH: c_int = 14;
pub const FI_GETWAITOBJ: c_int = 16;

pub const FI_PARAM_STRING: c_int = 0;
pub const FI_PARAM_INT: c_int = 1;
pub const FI_PARAM_BOOL: c_int = 2;
pub const FI_PARAM_SIZE_T: c_int = 3;

/// Room for a provider's use.
#[repr(C)]
#[derive(Debug)]
pub struct fi_context {
    pub internal: [*mut c_void; 4],
}

/// Elements of a datatype in memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_ioc {
    pub addr: *mut c_void,
    pub count: usize,
}

/// `struct iovec`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct iovec {
    pub iov_base: *mut c_void,
    pub iov_len: usize,
}
