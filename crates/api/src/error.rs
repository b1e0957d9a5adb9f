//! What can go wrong.

use isthmus_region::error::ObjectProblem;

/// This crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no service to attach to, or it refused this process.
    #[error(transparent)]
    Attach(isthmus_attach::Error),
    /// There is no object with that name and kind.
    #[error("{0}")]
    NotFound(String),
    /// There is such an object already, or one with other parameters.
    #[error("{0}")]
    Exists(String),
    /// Its mode or its owner does not let this user do that.
    #[error("{0}")]
    Denied(String),
    /// No memory, no place, or no quota is left.
    #[error("{0}")]
    Full(String),
    /// A value is wrong.
    #[error("{0}")]
    Invalid(String),
    /// A segment that was opened to be read was written to.
    #[error("segment '{name}' was opened for reading only")]
    ReadOnly {
        /// Its name.
        name: String,
    },
    /// An offset or length that is not inside a segment.
    #[error("{len} bytes at offset {offset} are not inside the {limit} bytes of segment '{name}'")]
    OutOfBounds {
        /// The segment's name.
        name: String,
        /// The offset.
        offset: u64,
        /// The length.
        len: u64,
        /// Bytes of the segment.
        limit: u64,
    },
    /// A barrier, lock or the like could not do what was asked.
    #[error(transparent)]
    Sync(#[from] isthmus_sync::Error),
    /// A minitransaction, or its space, could not be used.
    #[error(transparent)]
    Transaction(#[from] isthmus_sync::minitransaction::Error),
    /// A context or channel of IVC could not do what was asked.
    #[error(transparent)]
    Ivc(#[from] isthmus_ivc::Error),
    /// The service has ended, or cannot do that.
    #[error(transparent)]
    Service(isthmus_region::Error),
    /// The region is corrupt, or cannot be used.
    #[error(transparent)]
    Region(isthmus_region::Error),
}

impl From<isthmus_attach::Error> for Error {
    fn from(e: isthmus_attach::Error) -> Self {
        Self::Attach(e)
    }
}

impl From<isthmus_region::Error> for Error {
    fn from(e: isthmus_region::Error) -> Self {
        match e {
            isthmus_region::Error::Object { problem, text } => match problem {
                ObjectProblem::NotFound => Self::NotFound(text),
                ObjectProblem::Exists => Self::Exists(text),
                ObjectProblem::Denied => Self::Denied(text),
                ObjectProblem::Full => Self::Full(text),
                ObjectProblem::Invalid => Self::Invalid(text),
            },
            service @ isthmus_region::Error::Service { .. } => Self::Service(service),
            other => Self::Region(other),
        }
    }
}
