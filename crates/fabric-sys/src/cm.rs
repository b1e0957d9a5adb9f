//! `rdma/fi_cm.h`: names and connections.

use std::ffi::{c_int, c_void};

use crate::endpoint::fid_ep;
use crate::fabric::fid;

/// Operations of endpoints: names and connections.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_cm {
    /// Bytes of this structure, by which its reader knows what it has.
    pub size: usize,
    /// `fi_setname`: gives an endpoint an address.
    pub setname: unsafe extern "C" fn(fid: *mut fid, addr: *mut c_void, addrlen: usize) -> c_int,
    /// `fi_getname`: an endpoint's address.
    pub getname: unsafe extern "C" fn(fid: *mut fid, addr: *mut c_void, addrlen: *mut usize) -> c_int,
    /// `fi_getpeer`: the address to which an endpoint is connected.
    pub getpeer: unsafe extern "C" fn(ep: *mut fid_ep, addr: *mut c_void, addrlen: *mut usize) -> c_int,
    /// `fi_connect`: asks for a connection.
    pub connect: unsafe extern "C" fn(
        ep: *mut fid_ep,
        addr: *const c_void,
        param: *const c_void,
        paramlen: usize,
    ) -> c_int,
    /// `fi_listen`: takes connection requests at a passive endpoint.
    pub listen: unsafe extern "C" fn(pep: *mut c_void) -> c_int,
    /// `fi_accept`: accepts a connection request.
    pub accept: unsafe extern "C" fn(ep: *mut fid_ep, param: *const c_void, paramlen: usize) -> c_int,
    /// `fi_reject`: refuses a connection request.
    pub reject: unsafe extern "C" fn(
        pep: *mut c_void,
        handle: *mut fid,
        param: *const c_void,
        paramlen: usize,
    ) -> c_int,
    /// `fi_shutdown`: ends a connection.
    pub shutdown: unsafe extern "C" fn(ep: *mut fid_ep, flags: u64) -> c_int,
    /// `fi_join`: joins a multicast or collective group.
    pub join: Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            addr: *const c_void,
            flags: u64,
            mc: *mut *mut c_void,
            context: *mut c_void,
        ) -> c_int,
    >,
}
