//! The crates' errors as libfabric's. Every match is exhaustive, so that a new variant does not compile until it has its
//! number here.

use std::ffi::c_int;

use isthmus_attach::protocol::Code;
use isthmus_fabric_sys::*;
use isthmus_region::error::ObjectProblem;
use isthmus_transport::{PostError, Status};

/// For a post that was refused.
#[inline]
pub(crate) fn of_post(error: PostError) -> c_int {
    match error {
        PostError::Again => FI_EAGAIN,
        PostError::PeerGone => FI_ECONNRESET,
        PostError::NoPeer => FI_EINVAL,
        PostError::TooLong => FI_EMSGSIZE,
        PostError::Invalid => FI_EINVAL,
    }
}

/// For an operation that has ended; 0 if it succeeded.
pub(crate) fn of_status(status: Status) -> c_int {
    match status {
        Status::Ok => FI_SUCCESS,
        Status::Truncated { .. } => FI_ETRUNC,
        Status::Canceled => FI_ECANCELED,
        Status::NoMessage => FI_ENOMSG,
        Status::PeerGone => FI_ECONNRESET,
        Status::NoKey => FI_ENOKEY,
        Status::NoAccess => FI_EACCES,
        Status::Unsupported => FI_EOPNOTSUPP,
    }
}

/// For an error of the region.
pub(crate) fn of_region(error: &isthmus_region::Error) -> c_int {
    use isthmus_region::Error;
    match error {
        Error::Memory { .. } | Error::DoesNotFit { .. } | Error::NoHugePages { .. } => FI_ENOMEM,
        Error::BadSize { .. }
        | Error::NotAFile
        | Error::NoSuchHugePages { .. }
        | Error::NotHugePages { .. } => FI_EINVAL,
        Error::WrongSize { .. }
        | Error::Version { .. }
        | Error::Layout { .. }
        | Error::OutOfBounds { .. }
        | Error::NoFile { .. }
        | Error::Random(_)
        | Error::Invalid { .. } => FI_EIO,
        Error::ReadOnly => FI_EACCES,
        Error::NoSystem { .. } => FI_EHOSTUNREACH,
        Error::NoPeer { .. } => FI_ECONNRESET,
        Error::Service { .. } => FI_EIO,
        Error::Full { .. } => FI_ENOSPC,
        // The only objects that the provider uses are the names of endpoints.
        Error::Object { problem, .. } => match problem {
            ObjectProblem::Full => FI_ENOSPC,
            ObjectProblem::Denied => FI_EACCES,
            ObjectProblem::Invalid => FI_EINVAL,
            ObjectProblem::NotFound | ObjectProblem::Exists => FI_EIO,
        },
    }
}

/// For an error of an endpoint or an address.
pub(crate) fn of_transport(error: &isthmus_transport::Error) -> c_int {
    use isthmus_transport::Error;
    match error {
        Error::Region { source, .. } => of_region(source),
        Error::NotAnAddress => FI_EINVAL,
        Error::NoSystem => FI_EHOSTUNREACH,
    }
}

/// For an error of the attachment.
pub(crate) fn of_attach(error: &isthmus_attach::Error) -> c_int {
    use isthmus_attach::Error;
    match error {
        Error::NoSocket { .. } | Error::Connect { .. } => FI_ENODATA,
        Error::Socket { .. } | Error::InUse { .. } | Error::System { .. } => FI_EIO,
        Error::Refused { code, .. } => match code {
            Code::Full => FI_ENOSPC,
            Code::Version | Code::NotAllowed => FI_EACCES,
            Code::Invalid | Code::BadFrame | Code::Failed | Code::NotFound | Code::Exists | Code::Denied => {
                FI_EIO
            }
        },
        Error::TimedOut { .. } => FI_ETIMEDOUT,
        Error::Gone | Error::BadFrame { .. } => FI_EIO,
        Error::Forked => FI_EOPBADSTATE,
        Error::Region(source) => of_region(source),
    }
}
