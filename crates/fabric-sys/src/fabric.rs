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

/// Capability: untagged messages. Completions: of such a message.
pub const FI_MSG: u64 = 1 << 1;
/// Capability: reads and writes of remote memory. Completions: of one.
pub const FI_RMA: u64 = 1 << 2;
/// Capability: tagged messages. Completions: of such a message.
pub const FI_TAGGED: u64 = 1 << 3;
/// Capability: atomic operations. Completions: of one.
pub const FI_ATOMIC: u64 = 1 << 4;
/// Capability: multicast messages.
pub const FI_MULTICAST: u64 = 1 << 5;
/// Capability: collective operations.
pub const FI_COLLECTIVE: u64 = 1 << 6;
/// Capability: initiates reads. Completions: of one.
pub const FI_READ: u64 = 1 << 8;
/// Capability: initiates writes. Completions: of one.
pub const FI_WRITE: u64 = 1 << 9;
/// Capability: receives messages. Completions: of a receive.
pub const FI_RECV: u64 = 1 << 10;
/// Capability: sends messages. Completions: of a send.
pub const FI_SEND: u64 = 1 << 11;
/// [`FI_SEND`] where it stands for all that an endpoint initiates, as in `fi_ep_bind`.
pub const FI_TRANSMIT: u64 = FI_SEND;
/// Capability and access: the target of reads.
pub const FI_REMOTE_READ: u64 = 1 << 12;
/// Capability and access: the target of writes. Completions: of a remote write with data.
pub const FI_REMOTE_WRITE: u64 = 1 << 13;
/// Capability and flag: one buffer receives several messages. Completions: the buffer is released.
pub const FI_MULTI_RECV: u64 = 1 << 16;
/// Flag: the operation carries data for the remote completion. Completions: there are such data.
pub const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
/// Flag: further operations follow at once.
pub const FI_MORE: u64 = 1 << 18;
/// Flag: asks whether a message is there, without receiving it.
pub const FI_PEEK: u64 = 1 << 19;
/// Capability and flag: operations that counters trigger.
pub const FI_TRIGGER: u64 = 1 << 20;
/// Capability and flag: waits for the operations before it.
pub const FI_FENCE: u64 = 1 << 21;
/// Flag: of high priority.
pub const FI_PRIORITY: u64 = 1 << 22;
/// Flag: success makes an entry, even where completions are selective.
pub const FI_COMPLETION: u64 = 1 << 24;
/// Flag: the buffer is the program's again on return.
pub const FI_INJECT: u64 = 1 << 25;
/// Flag: complete when the buffer may be reused.
pub const FI_INJECT_COMPLETE: u64 = 1 << 26;
/// Flag: complete when the message does not depend on this process any more.
pub const FI_TRANSMIT_COMPLETE: u64 = 1 << 27;
/// Flag: complete when the target has processed the operation.
pub const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
/// Flag: of `fi_eq_open` and `fi_cq_open`; the signaling vector is set.
pub const FI_AFFINITY: u64 = 1 << 29;
/// Flag: complete when the data are in persistent memory.
pub const FI_COMMIT_COMPLETE: u64 = 1 << 30;
/// Flag: complete when the message has found its receive.
pub const FI_MATCH_COMPLETE: u64 = 1 << 31;
/// Capability: device memory.
pub const FI_HMEM: u64 = 1 << 47;
/// Capability: endpoints of the same host.
pub const FI_LOCAL_COMM: u64 = 1 << 51;
/// Capability: endpoints of other hosts.
pub const FI_REMOTE_COMM: u64 = 1 << 52;
/// Capability: address vectors that processes share.
pub const FI_SHARED_AV: u64 = 1 << 53;
/// Flag of `fi_getinfo`: answer what the provider supports, without looking up addresses.
pub const FI_PROV_ATTR_ONLY: u64 = 1 << 54;
/// Flag of `fi_getinfo`: the node is an address, and no name.
pub const FI_NUMERICHOST: u64 = 1 << 55;
/// Capability: counters at the target for remote reads and writes.
pub const FI_RMA_EVENT: u64 = 1 << 56;
/// Capability: completions tell the sender. Flag of `fi_getinfo`: node and service are the source's.
pub const FI_SOURCE: u64 = 1 << 57;
/// Capability: addresses of single receive contexts.
pub const FI_NAMED_RX_CTX: u64 = 1 << 58;
/// Capability: receives from one sender.
pub const FI_DIRECTED_RECV: u64 = 1 << 59;
/// Flag of receives: the message that was peeked at with this context. Among capabilities, [`FI_DIRECTED_RECV`].
pub const FI_CLAIM: u64 = 1 << 59;
/// Flag of receives: drops the message that was peeked at.
pub const FI_DISCARD: u64 = 1 << 58;
/// Flag of `fi_ep_bind`: success makes an entry only where [`FI_COMPLETION`] is set.
pub const FI_SELECTIVE_COMPLETION: u64 = 1 << 59;

/// Mode: the context of an operation is a [`fi_context`], for the provider's use until it completes.
pub const FI_CONTEXT: u64 = 1 << 59;
/// Mode: room before each message.
pub const FI_MSG_PREFIX: u64 = 1 << 58;
/// Mode: arrays of buffers stay until the operation completes.
pub const FI_ASYNC_IOV: u64 = 1 << 57;
/// Mode: a receive is used up by remote data.
pub const FI_RX_CQ_DATA: u64 = 1 << 56;
/// Mode: local buffers are registered; before 1.5.
pub const FI_LOCAL_MR: u64 = 1 << 55;
/// Mode: the same with a structure of twice the room.
pub const FI_CONTEXT2: u64 = 1 << 52;

/// Any format of addresses.
pub const FI_FORMAT_UNSPEC: u32 = 0;

/// The number or value that stands for an address in an address vector.
pub type fi_addr_t = u64;
/// No address in particular: any sender.
pub const FI_ADDR_UNSPEC: fi_addr_t = u64::MAX;
/// There is no such address.
pub const FI_ADDR_NOTAVAIL: fi_addr_t = u64::MAX;
/// A count of contexts that says that they are shared.
pub const FI_SHARED_CONTEXT: usize = usize::MAX;

/// Either type of address vector.
pub const FI_AV_UNSPEC: u32 = 0;
/// The provider chooses the values that stand for addresses.
pub const FI_AV_MAP: u32 = 1;
/// Addresses are numbered in the order of their insertion.
pub const FI_AV_TABLE: u32 = 2;

/// No mode; with an old API, the provider's choice.
pub const FI_MR_UNSPEC: c_int = 0;
/// Old mode: the provider's keys, the target's addresses, allocated memory.
pub const FI_MR_BASIC: c_int = 1 << 0;
/// Old mode: the program's keys, offsets.
pub const FI_MR_SCALABLE: c_int = 1 << 1;
/// Local buffers must be registered.
pub const FI_MR_LOCAL: c_int = 1 << 2;
/// Keys are longer than 64 bits, and are mapped.
pub const FI_MR_RAW: c_int = 1 << 3;
/// Remote memory is named by the target's addresses.
pub const FI_MR_VIRT_ADDR: c_int = 1 << 4;
/// What is registered must be allocated.
pub const FI_MR_ALLOCATED: c_int = 1 << 5;
/// The provider chooses the keys.
pub const FI_MR_PROV_KEY: c_int = 1 << 6;
/// The program tells of changed mappings.
pub const FI_MR_MMU_NOTIFY: c_int = 1 << 7;
/// Registrations are bound to counters before use.
pub const FI_MR_RMA_EVENT: c_int = 1 << 8;
/// Registrations are bound to endpoints before use.
pub const FI_MR_ENDPOINT: c_int = 1 << 9;
/// Device memory must be registered.
pub const FI_MR_HMEM: c_int = 1 << 10;

/// Either kind of progress.
pub const FI_PROGRESS_UNSPEC: u32 = 0;
/// Progress without calls of the program.
pub const FI_PROGRESS_AUTO: u32 = 1;
/// Progress in calls of the program.
pub const FI_PROGRESS_MANUAL: u32 = 2;
/// Since 2.0, in `control_progress`.
pub const FI_PROGRESS_CONTROL_UNIFIED: u32 = 3;

/// Any level.
pub const FI_THREAD_UNSPEC: u32 = 0;
/// Threads may use all objects at once.
pub const FI_THREAD_SAFE: u32 = 1;
/// One thread at a time uses an object.
pub const FI_THREAD_FID: u32 = 2;
/// One thread at a time uses a domain and all objects in it.
pub const FI_THREAD_DOMAIN: u32 = 3;
/// One thread at a time uses what shares a queue or counter.
pub const FI_THREAD_COMPLETION: u32 = 4;
/// One thread at a time uses an endpoint.
pub const FI_THREAD_ENDPOINT: u32 = 5;

/// Either.
pub const FI_RM_UNSPEC: u32 = 0;
/// The program keeps queues from overflowing.
pub const FI_RM_DISABLED: u32 = 1;
/// The provider keeps queues from overflowing.
pub const FI_RM_ENABLED: u32 = 2;

/// Reads after reads.
pub const FI_ORDER_RAR: u64 = 1 << 0;
/// Reads after writes.
pub const FI_ORDER_RAW: u64 = 1 << 1;
/// Reads after sends.
pub const FI_ORDER_RAS: u64 = 1 << 2;
/// Writes after reads.
pub const FI_ORDER_WAR: u64 = 1 << 3;
/// Writes after writes.
pub const FI_ORDER_WAW: u64 = 1 << 4;
/// Writes after sends.
pub const FI_ORDER_WAS: u64 = 1 << 5;
/// Sends after reads.
pub const FI_ORDER_SAR: u64 = 1 << 6;
/// Sends after writes.
pub const FI_ORDER_SAW: u64 = 1 << 7;
/// Sends after sends.
pub const FI_ORDER_SAS: u64 = 1 << 8;
/// RMA reads after RMA reads.
pub const FI_ORDER_RMA_RAR: u64 = 1 << 32;
/// RMA reads after RMA writes.
pub const FI_ORDER_RMA_RAW: u64 = 1 << 33;
/// RMA writes after RMA reads.
pub const FI_ORDER_RMA_WAR: u64 = 1 << 34;
/// RMA writes after RMA writes.
pub const FI_ORDER_RMA_WAW: u64 = 1 << 35;
/// Fetching atomics after fetching atomics.
pub const FI_ORDER_ATOMIC_RAR: u64 = 1 << 36;
/// Fetching atomics after changing ones.
pub const FI_ORDER_ATOMIC_RAW: u64 = 1 << 37;
/// Changing atomics after fetching ones.
pub const FI_ORDER_ATOMIC_WAR: u64 = 1 << 38;
/// Changing atomics after changing ones.
pub const FI_ORDER_ATOMIC_WAW: u64 = 1 << 39;

/// Any type of endpoint.
pub const FI_EP_UNSPEC: u32 = 0;
/// Connected, reliable.
pub const FI_EP_MSG: u32 = 1;
/// Unconnected, unreliable.
pub const FI_EP_DGRAM: u32 = 2;
/// Unconnected, reliable.
pub const FI_EP_RDM: u32 = 3;

/// Any protocol.
pub const FI_PROTO_UNSPEC: u32 = 0;

/// No traffic class.
pub const FI_TC_UNSPEC: u32 = 0;

/// Attributes of the sending side.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_tx_attr {
    /// Capabilities of this side.
    pub caps: u64,
    /// Mode bits of this side.
    pub mode: u64,
    /// Flags of operations without flags of their own.
    pub op_flags: u64,
    /// Orders that hold between operations: [`FI_ORDER_SAS`] and the like.
    pub msg_order: u64,
    /// The order of completions.
    pub comp_order: u64,
    /// Length of the longest message that may be injected.
    pub inject_size: usize,
    /// How many operations may be outstanding.
    pub size: usize,
    /// How many buffers an operation may have.
    pub iov_limit: usize,
    /// How many parts of remote memory an operation may have.
    pub rma_iov_limit: usize,
    /// Traffic class.
    pub tclass: u32,
}

/// Attributes of the receiving side.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_rx_attr {
    /// Capabilities of this side.
    pub caps: u64,
    /// Mode bits of this side.
    pub mode: u64,
    /// Flags of operations without flags of their own.
    pub op_flags: u64,
    /// Orders that hold between operations: [`FI_ORDER_SAS`] and the like.
    pub msg_order: u64,
    /// The order of completions.
    pub comp_order: u64,
    /// Bytes of messages without a receive that are buffered at least.
    pub total_buffered_recv: usize,
    /// How many operations may be outstanding.
    pub size: usize,
    /// How many buffers an operation may have.
    pub iov_limit: usize,
}

/// Attributes of an endpoint.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_ep_attr {
    /// `type` in C: [`FI_EP_RDM`] and the like.
    pub ep_type: u32,
    /// The protocol between endpoints; a provider's own has [`FI_PROV_SPECIFIC`].
    pub protocol: u32,
    /// Its version.
    pub protocol_version: u32,
    /// Length of the longest message.
    pub max_msg_size: usize,
    /// Room before each message, for [`FI_MSG_PREFIX`].
    pub msg_prefix_size: usize,
    /// Longest read that is ordered after a write.
    pub max_order_raw_size: usize,
    /// Longest write that is ordered after a read.
    pub max_order_war_size: usize,
    /// Longest write that is ordered after a write.
    pub max_order_waw_size: usize,
    /// Which bits of a tag may be used, as a pattern.
    pub mem_tag_format: u64,
    /// How many transmit contexts.
    pub tx_ctx_cnt: usize,
    /// How many receive contexts.
    pub rx_ctx_cnt: usize,
    /// Length of the authorization key.
    pub auth_key_size: usize,
    /// The authorization key, or null.
    pub auth_key: *mut u8,
}

/// Attributes of a domain.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_domain_attr {
    /// An open domain, or null.
    pub domain: *mut fid_domain,
    /// The domain's name.
    pub name: *mut c_char,
    /// Promise on threads: [`FI_THREAD_SAFE`] and the like.
    pub threading: u32,
    /// How control operations make progress.
    pub control_progress: u32,
    /// `progress` since 2.0.
    pub data_progress: u32,
    /// Whether the provider keeps queues from overflowing: [`FI_RM_ENABLED`] and the like.
    pub resource_mgmt: u32,
    /// Type of address vectors.
    pub av_type: u32,
    /// Bits of what memory registration needs, or one of the two old modes.
    pub mr_mode: c_int,
    /// Bytes of a key.
    pub mr_key_size: usize,
    /// Bytes of the data that an operation may carry.
    pub cq_data_size: usize,
    /// How many completion queues may be open.
    pub cq_cnt: usize,
    /// How many endpoints may be open.
    pub ep_cnt: usize,
    /// How many transmit contexts may be open.
    pub tx_ctx_cnt: usize,
    /// How many receive contexts may be open.
    pub rx_ctx_cnt: usize,
    /// How many transmit contexts an endpoint may have.
    pub max_ep_tx_ctx: usize,
    /// How many receive contexts an endpoint may have.
    pub max_ep_rx_ctx: usize,
    /// How many endpoints may share a transmit context.
    pub max_ep_stx_ctx: usize,
    /// How many endpoints may share a receive context.
    pub max_ep_srx_ctx: usize,
    /// How many counters may be open.
    pub cntr_cnt: usize,
    /// How many buffers a registration may have.
    pub mr_iov_limit: usize,
    /// Capabilities of the domain.
    pub caps: u64,
    /// Mode bits of the domain.
    pub mode: u64,
    /// The authorization key, or null.
    pub auth_key: *mut u8,
    /// Length of the authorization key.
    pub auth_key_size: usize,
    /// Most data about an error.
    pub max_err_data: usize,
    /// How many registrations may be open.
    pub mr_cnt: usize,
    /// Traffic class.
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
    /// An open fabric, or null.
    pub fabric: *mut fid_fabric,
    /// The fabric's name.
    pub name: *mut c_char,
    /// The provider's name, set by the core.
    pub prov_name: *mut c_char,
    /// The provider's version.
    pub prov_version: u32,
    /// The API version that the program asked for.
    pub api_version: u32,
}

/// What a provider offers, or what a caller wants.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_info {
    /// The next entry of the list, or null.
    pub next: *mut fi_info,
    /// Capabilities.
    pub caps: u64,
    /// Mode bits: what the program must do.
    pub mode: u64,
    /// Format of addresses.
    pub addr_format: u32,
    /// Length of the source address.
    pub src_addrlen: usize,
    /// Length of the destination address.
    pub dest_addrlen: usize,
    /// The source address, or null.
    pub src_addr: *mut c_void,
    /// The destination address, or null.
    pub dest_addr: *mut c_void,
    /// The connection request that this came with, or null.
    pub handle: *mut fid,
    /// Attributes of the sending side.
    pub tx_attr: *mut fi_tx_attr,
    /// Attributes of the receiving side.
    pub rx_attr: *mut fi_rx_attr,
    /// Attributes of the endpoint.
    pub ep_attr: *mut fi_ep_attr,
    /// Attributes of the domain.
    pub domain_attr: *mut fi_domain_attr,
    /// Attributes of the fabric.
    pub fabric_attr: *mut fi_fabric_attr,
    /// The network interface, or null; not declared here.
    pub nic: *mut c_void,
}

/// No class.
pub const FI_CLASS_UNSPEC: usize = 0;
/// A fabric.
pub const FI_CLASS_FABRIC: usize = 1;
/// A domain.
pub const FI_CLASS_DOMAIN: usize = 2;
/// An endpoint.
pub const FI_CLASS_EP: usize = 3;
/// An address vector.
pub const FI_CLASS_AV: usize = 11;
/// A memory region.
pub const FI_CLASS_MR: usize = 12;
/// An event queue.
pub const FI_CLASS_EQ: usize = 13;
/// A completion queue.
pub const FI_CLASS_CQ: usize = 14;
/// A counter.
pub const FI_CLASS_CNTR: usize = 15;

/// Operations of every object.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops {
    /// Bytes of this structure, by which its reader knows what it has.
    pub size: usize,
    /// `fi_close`: closes the object.
    pub close: unsafe extern "C" fn(fid: *mut fid) -> c_int,
    /// `fi_ep_bind` and the like: binds another object to it.
    pub bind: unsafe extern "C" fn(fid: *mut fid, bfid: *mut fid, flags: u64) -> c_int,
    /// `fi_control`: [`FI_ENABLE`] and other commands.
    pub control: unsafe extern "C" fn(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int,
    /// `fi_open_ops`: gives the provider's further operations of a name.
    pub ops_open: unsafe extern "C" fn(
        fid: *mut fid,
        name: *const c_char,
        flags: u64,
        ops: *mut *mut c_void,
        context: *mut c_void,
    ) -> c_int,
    /// `fi_tostr`: the object as text.
    pub tostr: Option<unsafe extern "C" fn(fid: *const fid, buf: *mut c_char, len: usize) -> c_int>,
    /// `fi_set_ops`: replaces operations.
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
    /// Class of the object: [`FI_CLASS_EP`] and the like.
    pub fclass: usize,
    /// The program's own value.
    pub context: *mut c_void,
    /// Its operations.
    pub ops: *const fi_ops,
}

/// Operations of fabrics.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_fabric {
    /// Bytes of this structure, by which its reader knows what it has.
    pub size: usize,
    /// `fi_domain`: opens a domain.
    pub domain: unsafe extern "C" fn(
        fabric: *mut fid_fabric,
        info: *mut fi_info,
        dom: *mut *mut fid_domain,
        context: *mut c_void,
    ) -> c_int,
    /// `fi_passive_ep`: opens an endpoint that takes connection requests.
    pub passive_ep: unsafe extern "C" fn(
        fabric: *mut fid_fabric,
        info: *mut fi_info,
        pep: *mut *mut c_void,
        context: *mut c_void,
    ) -> c_int,
    /// `fi_eq_open`: opens an event queue.
    pub eq_open: unsafe extern "C" fn(
        fabric: *mut fid_fabric,
        attr: *mut fi_eq_attr,
        eq: *mut *mut fid_eq,
        context: *mut c_void,
    ) -> c_int,
    /// `fi_wait_open`: opens a wait set.
    pub wait_open:
        unsafe extern "C" fn(fabric: *mut fid_fabric, attr: *mut c_void, waitset: *mut *mut c_void) -> c_int,
    /// `fi_trywait`: whether the program may block on queues' and counters' descriptors now.
    pub trywait: unsafe extern "C" fn(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int,
    /// `fi_domain2`: opens a domain, with flags.
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
    /// The head.
    pub fid: fid,
    /// Its operations.
    pub ops: *const fi_ops_fabric,
    /// The API version that the program asked for.
    pub api_version: u32,
}

/// Command: reads the object's flags.
pub const FI_GETFIDFLAG: c_int = 0;
/// Command: sets the object's flags.
pub const FI_SETFIDFLAG: c_int = 1;
/// Command: reads the flags of operations without flags of their own.
pub const FI_GETOPSFLAG: c_int = 2;
/// Command: sets these.
pub const FI_SETOPSFLAG: c_int = 3;
/// Command: opens an alias of an endpoint.
pub const FI_ALIAS: c_int = 4;
/// Command: gives what threads wait with, such as the descriptor.
pub const FI_GETWAIT: c_int = 5;
/// Command: an endpoint, or a registration, may be used from now on.
pub const FI_ENABLE: c_int = 6;
/// Command: memory of a registration has changed.
pub const FI_REFRESH: c_int = 14;
/// Command: gives the kind of what threads wait with.
pub const FI_GETWAITOBJ: c_int = 16;

/// A text.
pub const FI_PARAM_STRING: c_int = 0;
/// A number.
pub const FI_PARAM_INT: c_int = 1;
/// Yes or no.
pub const FI_PARAM_BOOL: c_int = 2;
/// A size.
pub const FI_PARAM_SIZE_T: c_int = 3;

/// Room for a provider's use, in an operation's context.
#[repr(C)]
#[derive(Debug)]
pub struct fi_context {
    /// The provider's, or the core's in [`fi_provider`](crate::prov::fi_provider).
    pub internal: [*mut c_void; 4],
}

/// Elements of a datatype in memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_ioc {
    /// Where they are.
    pub addr: *mut c_void,
    /// How many there are.
    pub count: usize,
}

/// `struct iovec`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct iovec {
    /// Where it is.
    pub iov_base: *mut c_void,
    /// Bytes.
    pub iov_len: usize,
}
