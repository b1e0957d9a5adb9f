//! What can go wrong between a process and its local service.

use std::path::PathBuf;

use crate::protocol::Code;

/// This crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a process could not attach, or a service not serve.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no service to be found.
    #[error(
        "no isthmus service found: {tried}; start the program with `isthmus run`, or start `isthmus host` (in a VM: `isthmus guest`), or set ISTHMUS_SOCKET"
    )]
    NoSocket {
        /// The places looked at.
        tried: String,
    },
    /// The socket is there but nobody answers.
    #[error("cannot reach the isthmus service at {}; is it still running, and may this user attach?", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: rustix::io::Errno,
    },
    /// A socket could not be made.
    #[error("cannot {action} the socket {}", path.display())]
    Socket {
        /// What was attempted.
        action: &'static str,
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: rustix::io::Errno,
    },
    /// Another service answers at the socket.
    #[error("another service is running at {}; stop it, or choose another socket", path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
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
    /// The service refused.
    #[error("the isthmus service refused ({code:?}): {text}")]
    Refused {
        /// The reason as a code.
        code: Code,
        /// The reason in words.
        text: String,
    },
    /// No answer came.
    #[error("the isthmus service did not answer within {seconds} s; it is stopped or overloaded")]
    TimedOut {
        /// Seconds waited.
        seconds: u64,
    },
    /// The connection ended.
    #[error(
        "the isthmus service closed the connection: it has ended or was killed; messages between attached processes go on, but nothing new can be granted"
    )]
    Gone,
    /// The attachment belongs to the parent process.
    #[error("this process was forked after its parent attached; it must attach for itself")]
    Forked,
    /// A frame that the protocol does not know.
    #[error("the frame is not of the attach protocol: {what}")]
    BadFrame {
        /// What is wrong with it.
        what: &'static str,
    },
    /// Something about the region itself.
    #[error(transparent)]
    Region(#[from] isthmus_region::Error),
}
