//! What can go wrong while a region is inspected.

use std::path::PathBuf;

/// This crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Why nothing can be shown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No service answers.
    #[error(
        "no isthmus service runs here that this user may look at ({looked}); start `isthmus run` or `isthmus host`, or name a socket with --socket PATH or ISTHMUS_SOCKET"
    )]
    NoService {
        /// What was tried.
        looked: String,
    },
    /// The run that was named does not answer.
    #[error("there is no run {run}; there are: {others}")]
    NoRun {
        /// The name that was given.
        run: String,
        /// The runs that do answer, a line for each, or that there is none.
        others: String,
    },
    /// More than one service answers.
    #[error("several isthmus services run here; choose one:\n{list}")]
    Several {
        /// A line for each, with the option that chooses it.
        list: String,
    },
    /// The service did not let this process observe.
    #[error("cannot look at the region of the service at {}", path.display())]
    Observe {
        /// Its socket.
        path: PathBuf,
        /// Why not.
        #[source]
        source: isthmus_attach::Error,
    },
    /// The service did not let this process attach.
    #[error("cannot attach to the service at {}", path.display())]
    Attach {
        /// Its socket.
        path: PathBuf,
        /// Why not.
        #[source]
        source: isthmus_attach::Error,
    },
    /// A file cannot be opened or read.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// A file that was to be made is there already.
    #[error("{} is there already; --force replaces it", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The region, or the file, cannot be read.
    #[error("cannot read {what}")]
    Read {
        /// What was to be read.
        what: String,
        /// Why not.
        #[source]
        source: isthmus_region::Error,
    },
    /// What is there is not a region.
    #[error("{what} cannot be shown: {fault}; `isthmus region check` says more")]
    NotARegion {
        /// What was read.
        what: String,
        /// The first thing that is wrong.
        fault: String,
    },
    /// Its header was wrong in every look, and each time in another way.
    #[error(
        "{what} cannot be read: its header is wrong and keeps changing, as where a process or VM that may write it does so by mistake; look again, or end what has the region"
    )]
    Changing {
        /// What was read.
        what: String,
    },
    /// A terminal, a signal, a socket of the system failed.
    #[error("cannot {action}")]
    System {
        /// What was attempted.
        action: &'static str,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// Other machines can reach the address for metrics.
    #[error(
        "{address} can be reached from other machines, which would see what runs here; choose a loopback address such as 127.0.0.1:9464, or add --metrics-remote"
    )]
    Remote {
        /// The address asked for.
        address: std::net::SocketAddr,
    },
    /// The server could not be started at the address.
    #[error("cannot serve metrics at {address}")]
    Listen {
        /// The address asked for.
        address: String,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// Whether the command line is at fault.
    pub fn is_mistake(&self) -> bool {
        match self {
            Self::NoRun { .. } | Self::Several { .. } | Self::Exists { .. } | Self::Remote { .. } => true,
            Self::NoService { .. }
            | Self::Observe { .. }
            | Self::Attach { .. }
            | Self::File { .. }
            | Self::Read { .. }
            | Self::NotARegion { .. }
            | Self::Changing { .. }
            | Self::System { .. }
            | Self::Listen { .. } => false,
        }
    }
}
