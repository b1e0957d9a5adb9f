//! `rdma/fi_errno.h`: errors, as positive numbers. Those below 256 are Linux's, on the architectures that we support.

use std::ffi::c_int;

/// No error.
pub const FI_SUCCESS: c_int = 0;
/// Not permitted.
pub const FI_EPERM: c_int = 1;
/// No such entry.
pub const FI_ENOENT: c_int = 2;
/// Interrupted.
pub const FI_EINTR: c_int = 4;
/// Input or output failed.
pub const FI_EIO: c_int = 5;
/// No room, or nothing there: try again after progress.
pub const FI_EAGAIN: c_int = 11;
/// No memory.
pub const FI_ENOMEM: c_int = 12;
/// No right to this access.
pub const FI_EACCES: c_int = 13;
/// Bad address.
pub const FI_EFAULT: c_int = 14;
/// In use.
pub const FI_EBUSY: c_int = 16;
/// No such device.
pub const FI_ENODEV: c_int = 19;
/// Bad argument.
pub const FI_EINVAL: c_int = 22;
/// No space.
pub const FI_ENOSPC: c_int = 28;
/// Not supported.
pub const FI_ENOSYS: c_int = 38;
/// No such message.
pub const FI_ENOMSG: c_int = 42;
/// No data; of `fi_getinfo`: nothing fits.
pub const FI_ENODATA: c_int = 61;
/// Message too long.
pub const FI_EMSGSIZE: c_int = 90;
/// No such option.
pub const FI_ENOPROTOOPT: c_int = 92;
/// Operation not supported.
pub const FI_EOPNOTSUPP: c_int = 95;
/// Address in use.
pub const FI_EADDRINUSE: c_int = 98;
/// Address not available.
pub const FI_EADDRNOTAVAIL: c_int = 99;
/// The remote endpoint ended the connection, or is gone.
pub const FI_ECONNRESET: c_int = 104;
/// Timed out.
pub const FI_ETIMEDOUT: c_int = 110;
/// Host not reachable.
pub const FI_EHOSTUNREACH: c_int = 113;
/// Cancelled.
pub const FI_ECANCELED: c_int = 125;
/// An error that has no number.
pub const FI_EOTHER: c_int = 256;
/// The buffer is too small.
pub const FI_ETOOSMALL: c_int = 257;
/// Not possible in this state.
pub const FI_EOPBADSTATE: c_int = 258;
/// An error waits to be read.
pub const FI_EAVAIL: c_int = 259;
/// Flags not supported.
pub const FI_EBADFLAGS: c_int = 260;
/// An event queue is missing.
pub const FI_ENOEQ: c_int = 261;
/// The objects are of different domains.
pub const FI_EDOMAIN: c_int = 262;
/// A completion queue is missing.
pub const FI_ENOCQ: c_int = 263;
/// The message was longer than its buffer.
pub const FI_ETRUNC: c_int = 265;
/// No such key, or it is taken.
pub const FI_ENOKEY: c_int = 266;
/// An address vector is missing.
pub const FI_ENOAV: c_int = 267;
/// A queue overflowed.
pub const FI_EOVERRUN: c_int = 268;
