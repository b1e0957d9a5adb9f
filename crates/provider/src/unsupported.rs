//! Operations that libfabric's tables must name and this provider does not have: each answers `-FI_ENOSYS` and looks at
//! none of its arguments, so each may be called with any.
//!
//! [`crate::object`] puts the first three into the tables of objects that take no binding, no command, or have no
//! operations of their own; the others are for the one table that has a place of this name.

use std::ffi::{c_char, c_int, c_void};

use isthmus_fabric_sys::*;

/// `fi_bind`, where nothing can be bound.
pub(crate) unsafe extern "C" fn bind(_fid: *mut fid, _other: *mut fid, _flags: u64) -> c_int {
    -FI_ENOSYS
}

/// `fi_control`, where there are no commands.
pub(crate) unsafe extern "C" fn control(_fid: *mut fid, _command: c_int, _arg: *mut c_void) -> c_int {
    -FI_ENOSYS
}

/// `fi_open_ops`, where there are no further operations.
pub(crate) unsafe extern "C" fn ops_open(
    _fid: *mut fid,
    _name: *const c_char,
    _flags: u64,
    _ops: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

/// Fabrics: `fi_passive_ep`.
pub(crate) unsafe extern "C" fn passive_ep(
    _fabric: *mut fid_fabric,
    _info: *mut fi_info,
    _answer: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

/// Fabrics: `fi_wait_open`.
pub(crate) unsafe extern "C" fn wait_open(
    _fabric: *mut fid_fabric,
    _attr: *mut c_void,
    _answer: *mut *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

/// Domains: `fi_scalable_ep`.
pub(crate) unsafe extern "C" fn scalable_ep(
    _domain: *mut fid_domain,
    _info: *mut fi_info,
    _answer: *mut *mut fid_ep,
    _context: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

/// Domains: `fi_poll_open`.
pub(crate) unsafe extern "C" fn poll_open(
    _domain: *mut fid_domain,
    _attr: *mut c_void,
    _answer: *mut *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

/// Domains: `fi_stx_context`.
pub(crate) unsafe extern "C" fn stx_ctx(
    _domain: *mut fid_domain,
    _attr: *mut fi_tx_attr,
    _answer: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

/// Domains: `fi_srx_context`.
pub(crate) unsafe extern "C" fn srx_ctx(
    _domain: *mut fid_domain,
    _attr: *mut fi_rx_attr,
    _answer: *mut *mut fid_ep,
    _context: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

/// Address vectors: `fi_av_insertsym`.
pub(crate) unsafe extern "C" fn insertsym(
    _av: *mut fid_av,
    _node: *const c_char,
    _node_count: usize,
    _service: *const c_char,
    _service_count: usize,
    _numbers: *mut fi_addr_t,
    _flags: u64,
    _context: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

/// Endpoints: `fi_tx_context`.
pub(crate) unsafe extern "C" fn tx_ctx(
    _sep: *mut fid_ep,
    _index: c_int,
    _attr: *mut fi_tx_attr,
    _answer: *mut *mut fid_ep,
    _context: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

/// Endpoints: `fi_rx_context`.
pub(crate) unsafe extern "C" fn rx_ctx(
    _sep: *mut fid_ep,
    _index: c_int,
    _attr: *mut fi_rx_attr,
    _answer: *mut *mut fid_ep,
    _context: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

/// Endpoints: `fi_tx_size_left` and `fi_rx_size_left`. No number of posts is fixed: one for which there is no room
/// gives `-FI_EAGAIN`.
pub(crate) unsafe extern "C" fn size_left(_ep: *mut fid_ep) -> isize {
    -(FI_ENOSYS as isize)
}

/// Endpoints: `fi_setname`.
pub(crate) unsafe extern "C" fn setname(_fid: *mut fid, _addr: *mut c_void, _len: usize) -> c_int {
    -FI_ENOSYS
}

/// Endpoints: `fi_getpeer`, as there are no connections.
pub(crate) unsafe extern "C" fn getpeer(_ep: *mut fid_ep, _addr: *mut c_void, _len: *mut usize) -> c_int {
    -FI_ENOSYS
}

/// Endpoints: `fi_connect`.
pub(crate) unsafe extern "C" fn connect(
    _ep: *mut fid_ep,
    _addr: *const c_void,
    _param: *const c_void,
    _len: usize,
) -> c_int {
    -FI_ENOSYS
}

/// Endpoints: `fi_listen`.
pub(crate) unsafe extern "C" fn listen(_pep: *mut c_void) -> c_int {
    -FI_ENOSYS
}

/// Endpoints: `fi_accept`.
pub(crate) unsafe extern "C" fn accept(_ep: *mut fid_ep, _param: *const c_void, _len: usize) -> c_int {
    -FI_ENOSYS
}

/// Endpoints: `fi_reject`.
pub(crate) unsafe extern "C" fn reject(
    _pep: *mut c_void,
    _handle: *mut fid,
    _param: *const c_void,
    _len: usize,
) -> c_int {
    -FI_ENOSYS
}

/// Endpoints: `fi_shutdown`.
pub(crate) unsafe extern "C" fn shutdown(_ep: *mut fid_ep, _flags: u64) -> c_int {
    -FI_ENOSYS
}
