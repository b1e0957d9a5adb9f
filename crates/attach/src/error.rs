//! What can go wrong between a process and its local service.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::protocol::Code;

/// This crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// What a user can do when `connect` to the socket at `path` fails with `answer`.
fn remedy(path: &Path, answer: Errno) -> String {
    match (answer, std::fs::metadata(path)) {
        (Errno::ACCESS | Errno::PERM, Ok(socket)) if socket.mode() & 0o060 == 0o060 => {
            let group = socket.gid();
            format!(
                "; members of its group may attach: `adduser NAME {0}` or `usermod -aG {0} NAME` as root, then log in anew",
                group_name(group).unwrap_or(group.to_string())
            )
        }
        (Errno::ACCESS | Errno::PERM, Ok(socket)) => format!(
            "; it is for user {} alone: `isthmus host --group GROUP` or `--allow USER` lets others in",
            socket.uid()
        ),
        (Errno::ACCESS | Errno::PERM, Err(_)) => {
            "; this user may not enter its directory, as that of another user's service".into()
        }
        (Errno::NOENT | Errno::NOTDIR, _) => {
            "; nothing is there: start the service, or name another socket with --socket or ISTHMUS_SOCKET"
                .into()
        }
        (Errno::CONNREFUSED, _) => "; nobody listens there any more: start the service again".into(),
        _ => String::new(),
    }
}

/// The name of a group.
fn group_name(group: u32) -> Option<String> {
    let groups = std::fs::read_to_string("/etc/group").ok()?;
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(group)).then(|| name.to_owned())
    })
}

/// Why a process cannot attach, or a service cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No service was found.
    #[error(
        "no isthmus service found: {tried}; start the program with `isthmus run`, or start `isthmus host` (in a VM: `isthmus guest`), or set ISTHMUS_SOCKET"
    )]
    NoSocket {
        /// The places that were tried.
        tried: String,
    },
    /// The socket cannot be connected to.
    #[error("cannot reach the isthmus service at {}{}", path.display(), remedy(path, *source))]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: rustix::io::Errno,
    },
    /// A socket cannot be made.
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
    /// A system call failed unexpectedly.
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
    /// No answer came in time.
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
    /// An error of the region itself.
    #[error(transparent)]
    Region(#[from] isthmus_region::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_connect_says_which_users_may_attach_and_what_helps() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let text = |source| Error::Connect { path: path.clone(), source }.to_string();
        assert!(text(Errno::NOENT).contains("nothing is there"), "{}", text(Errno::NOENT));
        std::fs::write(&path, "").unwrap();
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o660);
        let group = std::fs::metadata(&path).unwrap().gid();
        let name = group_name(group).unwrap_or(group.to_string());
        assert!(text(Errno::ACCESS).contains(&format!("adduser NAME {name}")), "{}", text(Errno::ACCESS));
        mode(0o600);
        assert!(text(Errno::ACCESS).contains("--group"), "{}", text(Errno::ACCESS));
        assert!(text(Errno::CONNREFUSED).contains("nobody listens"));
    }
}
