//! `rdma/fi_cm.h`: names and connections.

use std::ffi::{c_int, c_void};

use crate::endpoint::fid_ep;
use crate::fabric::fid;

/// Names and connections.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_cm {
    pub size: usize,
    pub setname: unsafe extern "C" fn(fid: *mut fid, addr: *mut c_void, addrlen: usize) -> c_int,
    pub getname: unsafe extern "C" fn(fid: *mut fid, addr: *mut c_void, addrlen: *mut usize) -> c_int,
    pub getpeer: unsafe extern "C" fn(ep: *mut fid_ep, addr: *mut c_void, addrlen: *mut usize) -> c_int,
    pub connect: unsafe extern "C" fn(
        ep: *mut fid_ep,
        addr: *const c_void,
        param: *const c_void,
        paramlen: usize,
    ) -> c_int,
    pub listen: unsafe extern "C" fn(pep: *mut c_void) -> c_int,
    pub accept: unsafe extern "C" fn(ep: *mut fid_ep, param: *const c_void, paramlen: usize) -> c_int,
    pub reject: unsafe extern "C" fn(
        pep: *mut c_void,
        handle: *mut fid,
        param: *const c_void,
        paramlen: usize,
    ) -> c_int,
    pub shutdown: unsafe extern "C" fn(ep: *mut fid_ep, flags: u64) -> c_int,
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
