//! What can go wrong in the host service.

use std::path::PathBuf;

/// This crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the host service cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The members do not fit into the region.
    #[error(
        "a region of {bytes} bytes is too small for its {peers} members, which need {needed} bytes; ask for a larger one with --region-size"
    )]
    TooSmall {
        /// Bytes of the region.
        bytes: u64,
        /// Members: the host and the VMs.
        peers: usize,
        /// Least bytes for them.
        needed: u64,
    },
    /// Two VMs have one name, or a name cannot be used.
    #[error("'{name}' cannot be a VM's name: {reason}")]
    BadName {
        /// The name.
        name: String,
        /// Why.
        reason: &'static str,
    },
    /// No such VM was announced.
    #[error("no VM named '{name}' was announced")]
    NoVm {
        /// The name.
        name: String,
    },
    /// Every VM that was announced is connected already.
    #[error("{reason}")]
    NoPlace {
        /// Which place is taken, or that all are.
        reason: String,
    },
    /// A folder for sockets cannot be made.
    #[error("cannot create the folder {}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The folder for the socket is not there, nor the one that it would be in.
    #[error("no folder {} for the service's socket: make it, or name another with --socket", path.display())]
    MissingFolder {
        /// The folder.
        path: PathBuf,
    },
    /// There is no default place for the socket.
    #[error(
        "no place for the service's socket: neither ISTHMUS_SOCKET nor XDG_RUNTIME_DIR is set; name one with --socket"
    )]
    NoFolder,
    /// Signals cannot be received.
    #[error("cannot wait for signals")]
    Signals {
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// A system call failed that should not.
    #[error("cannot {action}")]
    System {
        /// What was attempted.
        action: &'static str,
        /// The system's answer.
        #[source]
        source: rustix::io::Errno,
    },
    /// What should run beside the service does not.
    #[error(transparent)]
    Beside(Box<dyn std::error::Error + Send + Sync>),
    /// Something about the region.
    #[error(transparent)]
    Region(#[from] isthmus_region::Error),
    /// Something about the attach service.
    #[error(transparent)]
    Attach(#[from] isthmus_attach::Error),
}
