//! `rdma/providers/fi_prov.h` and `fi_log.h`: what a provider gives to the core, and which functions of it it may call.

use std::ffi::{c_char, c_int, c_void};

use crate::fabric::{fi_context, fi_fabric_attr, fi_info, fid_fabric};

/// `fi_getinfo` of a provider.
pub type getinfo_fn = unsafe extern "C" fn(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int;
/// `fi_fabric` of a provider.
pub type fabric_fn = unsafe extern "C" fn(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int;

/// What `fi_prov_ini` returns. The core writes into `context`.
#[repr(C)]
#[derive(Debug)]
pub struct fi_provider {
    /// The provider's version.
    pub version: u32,
    /// The newest API that the provider supports.
    pub fi_version: u32,
    /// The core's, about this provider.
    pub context: fi_context,
    /// Its name, as `FI_PROVIDER` has it.
    pub name: *const c_char,
    /// `fi_getinfo`: what it offers.
    pub getinfo: Option<getinfo_fn>,
    /// `fi_fabric`: opens a fabric.
    pub fabric: Option<fabric_fn>,
    /// Called when the core unloads the provider.
    pub cleanup: Option<unsafe extern "C" fn()>,
}

/// Subsystem: the core and what fits no other.
pub const FI_LOG_CORE: c_int = 0;
/// Subsystem: fabrics.
pub const FI_LOG_FABRIC: c_int = 1;
/// Subsystem: domains.
pub const FI_LOG_DOMAIN: c_int = 2;
/// Subsystem: opening, binding and closing endpoints.
pub const FI_LOG_EP_CTRL: c_int = 3;
/// Subsystem: operations of endpoints.
pub const FI_LOG_EP_DATA: c_int = 4;
/// Subsystem: address vectors.
pub const FI_LOG_AV: c_int = 5;
/// Subsystem: completion queues.
pub const FI_LOG_CQ: c_int = 6;
/// Subsystem: event queues.
pub const FI_LOG_EQ: c_int = 7;
/// Subsystem: memory registration.
pub const FI_LOG_MR: c_int = 8;
/// Subsystem: counters.
pub const FI_LOG_CNTR: c_int = 9;

/// Level: warnings.
pub const FI_LOG_WARN: c_int = 0;
/// Level: traces.
pub const FI_LOG_TRACE: c_int = 1;
/// Level: information.
pub const FI_LOG_INFO: c_int = 2;
/// Level: debugging.
pub const FI_LOG_DEBUG: c_int = 3;

/// `fi_log_enabled` of the core.
pub type fi_log_enabled_fn =
    unsafe extern "C" fn(prov: *const fi_provider, level: c_int, subsys: c_int) -> c_int;
/// `fi_log` of the core.
pub type fi_log_fn = unsafe extern "C" fn(
    prov: *const fi_provider,
    level: c_int,
    subsys: c_int,
    func: *const c_char,
    line: c_int,
    fmt: *const c_char,
    ...
);
/// `fi_param_define` of the core.
pub type fi_param_define_fn = unsafe extern "C" fn(
    prov: *const fi_provider,
    param_name: *const c_char,
    param_type: c_int,
    help_string_fmt: *const c_char,
    ...
) -> c_int;
/// `fi_param_get` of the core.
pub type fi_param_get_fn =
    unsafe extern "C" fn(prov: *mut fi_provider, param_name: *const c_char, value: *mut c_void) -> c_int;
