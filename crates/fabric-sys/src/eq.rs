//! `rdma/fi_eq.h`: event queues, completion queues, counters.

use std::ffi::{c_char, c_int, c_void};

use crate::fabric::{fi_addr_t, fid};

/// Nothing waits.
pub const FI_WAIT_NONE: u32 = 0;
/// The provider chooses.
pub const FI_WAIT_UNSPEC: u32 = 1;
/// A wait set.
pub const FI_WAIT_SET: u32 = 2;
/// A file descriptor.
pub const FI_WAIT_FD: u32 = 3;
/// A mutex and a condition variable.
pub const FI_WAIT_MUTEX_COND: u32 = 4;
/// Waiting threads yield.
pub const FI_WAIT_YIELD: u32 = 5;
/// A list of file descriptors.
pub const FI_WAIT_POLLFD: u32 = 6;

/// Attributes of an event queue.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_eq_attr {
    /// How many events the queue holds at least.
    pub size: usize,
    /// Flags of the open call.
    pub flags: u64,
    /// What threads wait with.
    pub wait_obj: u32,
    /// The processor for interrupts.
    pub signaling_vector: c_int,
    /// The wait set, for [`FI_WAIT_SET`].
    pub wait_set: *mut c_void,
}

/// Flag of `fi_eq_open`: the program may write to the queue.
pub const FI_EQ_WRITE: u64 = crate::fabric::FI_WRITE;

/// An event.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_eq_entry {
    /// The object that the event is about.
    pub fid: *mut fid,
    /// The program's own value, from the operation.
    pub context: *mut c_void,
    /// Data of the event.
    pub data: u64,
}

/// An event about something that failed.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_eq_err_entry {
    /// The object that the event is about.
    pub fid: *mut fid,
    /// The program's own value, from the operation.
    pub context: *mut c_void,
    /// Data of the event.
    pub data: u64,
    /// What failed, as a positive error.
    pub err: c_int,
    /// The provider's own error.
    pub prov_errno: c_int,
    /// Further data of the provider's about it.
    pub err_data: *mut c_void,
    /// Length of these.
    pub err_data_size: usize,
}

/// Operations of event queues.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_eq {
    /// Bytes of this structure, by which its reader knows what it has.
    pub size: usize,
    /// `fi_eq_read`: takes an event.
    pub read: unsafe extern "C" fn(
        eq: *mut fid_eq,
        event: *mut u32,
        buf: *mut c_void,
        len: usize,
        flags: u64,
    ) -> isize,
    /// `fi_eq_readerr`: takes an event about something that failed.
    pub readerr: unsafe extern "C" fn(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> isize,
    /// `fi_eq_write`: adds an event.
    pub write: unsafe extern "C" fn(
        eq: *mut fid_eq,
        event: u32,
        buf: *const c_void,
        len: usize,
        flags: u64,
    ) -> isize,
    /// `fi_eq_sread`: takes an event, waiting for one.
    pub sread: unsafe extern "C" fn(
        eq: *mut fid_eq,
        event: *mut u32,
        buf: *mut c_void,
        len: usize,
        timeout: c_int,
        flags: u64,
    ) -> isize,
    /// `fi_eq_strerror`: text for a provider's error.
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
    /// The head.
    pub fid: fid,
    /// Its operations.
    pub ops: *const fi_ops_eq,
}

/// The provider chooses.
pub const FI_CQ_FORMAT_UNSPEC: u32 = 0;
/// [`fi_cq_entry`].
pub const FI_CQ_FORMAT_CONTEXT: u32 = 1;
/// [`fi_cq_msg_entry`].
pub const FI_CQ_FORMAT_MSG: u32 = 2;
/// [`fi_cq_data_entry`].
pub const FI_CQ_FORMAT_DATA: u32 = 3;
/// [`fi_cq_tagged_entry`].
pub const FI_CQ_FORMAT_TAGGED: u32 = 4;

/// A completion, format CONTEXT.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_cq_entry {
    /// The program's own value, from the operation.
    pub op_context: *mut c_void,
}

/// A completion, format MSG.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_cq_msg_entry {
    /// The program's own value, from the operation.
    pub op_context: *mut c_void,
    /// What completed: `FI_RECV | FI_TAGGED` and the like.
    pub flags: u64,
    /// Bytes received.
    pub len: usize,
}

/// A completion, format DATA.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_cq_data_entry {
    /// The program's own value, from the operation.
    pub op_context: *mut c_void,
    /// What completed: `FI_RECV | FI_TAGGED` and the like.
    pub flags: u64,
    /// Bytes received.
    pub len: usize,
    /// Where the message is in a multi-receive buffer.
    pub buf: *mut c_void,
    /// Data from the sender, if the flags have `FI_REMOTE_CQ_DATA`.
    pub data: u64,
}

/// A completion, format TAGGED. The other formats are its beginnings.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_cq_tagged_entry {
    /// The program's own value, from the operation.
    pub op_context: *mut c_void,
    /// What completed: `FI_RECV | FI_TAGGED` and the like.
    pub flags: u64,
    /// Bytes received.
    pub len: usize,
    /// Where the message is in a multi-receive buffer.
    pub buf: *mut c_void,
    /// Data from the sender, if the flags have `FI_REMOTE_CQ_DATA`.
    pub data: u64,
    /// The message's tag.
    pub tag: u64,
}

/// A completion of something that failed.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_cq_err_entry {
    /// The program's own value, from the operation.
    pub op_context: *mut c_void,
    /// What completed: `FI_RECV | FI_TAGGED` and the like.
    pub flags: u64,
    /// Bytes received.
    pub len: usize,
    /// Where the message is in a multi-receive buffer.
    pub buf: *mut c_void,
    /// Data from the sender, if the flags have `FI_REMOTE_CQ_DATA`.
    pub data: u64,
    /// The message's tag.
    pub tag: u64,
    /// Bytes of the message that did not fit.
    pub olen: usize,
    /// What failed, as a positive error.
    pub err: c_int,
    /// The provider's own error.
    pub prov_errno: c_int,
    /// Further data of the provider's about it.
    pub err_data: *mut c_void,
    /// Length of these, or of the program's buffer for them.
    pub err_data_size: usize,
    /// The sender's address. Since 1.20: only programs that asked for that API or a newer one have room for it.
    pub src_addr: fi_addr_t,
}

/// A blocking read waits for any completion.
pub const FI_CQ_COND_NONE: u32 = 0;
/// A blocking read waits for a number of completions.
pub const FI_CQ_COND_THRESHOLD: u32 = 1;

/// Attributes of a completion queue.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_cq_attr {
    /// How many completions the queue holds at least.
    pub size: usize,
    /// Flags of the open call.
    pub flags: u64,
    /// What a completion looks like.
    pub format: u32,
    /// What threads wait with.
    pub wait_obj: u32,
    /// The processor for interrupts.
    pub signaling_vector: c_int,
    /// What blocking reads wait for.
    pub wait_cond: u32,
    /// The wait set, for [`FI_WAIT_SET`].
    pub wait_set: *mut c_void,
}

/// Operations of completion queues.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_cq {
    /// Bytes of this structure, by which its reader knows what it has.
    pub size: usize,
    /// `fi_cq_read`: takes completions.
    pub read: unsafe extern "C" fn(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize,
    /// `fi_cq_readfrom`: takes completions, with the senders' numbers.
    pub readfrom: unsafe extern "C" fn(
        cq: *mut fid_cq,
        buf: *mut c_void,
        count: usize,
        src_addr: *mut fi_addr_t,
    ) -> isize,
    /// `fi_cq_readerr`: takes the completion of something that failed.
    pub readerr: unsafe extern "C" fn(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, flags: u64) -> isize,
    /// `fi_cq_sread`: takes completions, waiting for one.
    pub sread: unsafe extern "C" fn(
        cq: *mut fid_cq,
        buf: *mut c_void,
        count: usize,
        cond: *const c_void,
        timeout: c_int,
    ) -> isize,
    /// `fi_cq_sreadfrom`: takes completions with the senders' numbers, waiting for one.
    pub sreadfrom: unsafe extern "C" fn(
        cq: *mut fid_cq,
        buf: *mut c_void,
        count: usize,
        src_addr: *mut fi_addr_t,
        cond: *const c_void,
        timeout: c_int,
    ) -> isize,
    /// `fi_cq_signal`: ends the waiting of blocking reads.
    pub signal: unsafe extern "C" fn(cq: *mut fid_cq) -> c_int,
    /// `fi_cq_strerror`: text for a provider's error.
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
    /// The head.
    pub fid: fid,
    /// Its operations.
    pub ops: *const fi_ops_cq,
}

/// Completions are counted; the only kind of counter until 2.5.
pub const FI_CNTR_EVENTS_COMP: u32 = 0;

/// Attributes of a counter.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fi_cntr_attr {
    /// What is counted.
    pub events: u32,
    /// What threads wait with.
    pub wait_obj: u32,
    /// The wait set, for [`FI_WAIT_SET`].
    pub wait_set: *mut c_void,
    /// Flags of the open call.
    pub flags: u64,
}

/// Operations of counters.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_cntr {
    /// Bytes of this structure, by which its reader knows what it has.
    pub size: usize,
    /// `fi_cntr_read`: how many operations succeeded.
    pub read: unsafe extern "C" fn(cntr: *mut fid_cntr) -> u64,
    /// `fi_cntr_readerr`: how many operations failed.
    pub readerr: unsafe extern "C" fn(cntr: *mut fid_cntr) -> u64,
    /// `fi_cntr_add`: adds to the successes.
    pub add: unsafe extern "C" fn(cntr: *mut fid_cntr, value: u64) -> c_int,
    /// `fi_cntr_set`: sets the successes.
    pub set: unsafe extern "C" fn(cntr: *mut fid_cntr, value: u64) -> c_int,
    /// `fi_cntr_wait`: waits for a number of successes, or a failure.
    pub wait: unsafe extern "C" fn(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int,
    /// `fi_cntr_adderr`: adds to the failures.
    pub adderr: Option<unsafe extern "C" fn(cntr: *mut fid_cntr, value: u64) -> c_int>,
    /// `fi_cntr_seterr`: sets the failures.
    pub seterr: Option<unsafe extern "C" fn(cntr: *mut fid_cntr, value: u64) -> c_int>,
}

/// A counter.
#[repr(C)]
#[derive(Debug)]
pub struct fid_cntr {
    /// The head.
    pub fid: fid,
    /// Its operations.
    pub ops: *const fi_ops_cntr,
}
