//! The process's side: connect, map, and ask.

mod connection;
mod place;
mod service;
mod shared;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use isthmus_region::dax;
use isthmus_region::driver::{self, Ringer};
use isthmus_region::mapping::Mapping;
use isthmus_region::member::Member;
use isthmus_region::membership::Region;
use rustix::process::PidfdFlags;

use self::connection::Connection;
pub use self::place::Place;
use self::service::Client;
pub use self::shared::{shared, shared_at};
use crate::error::{Error, Result};
use crate::protocol::{Observed, Reply, Request, VERSION, Welcome};
use crate::socket;

/// How long a process waits for an answer.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Attaches this process to its local service, wherever [`socket::find_socket`] finds it.
///
/// # Errors
/// [`Error::NoSocket`], or as [`connect_at`].
pub fn connect() -> Result<Arc<Member>> {
    connect_at(&socket::find_socket()?)
}

/// Attaches this process to the service that listens at `path`.
///
/// # Errors
/// [`Error::Connect`], [`Error::Refused`], [`Error::TimedOut`], [`Error::Gone`], or whatever is wrong with the region.
pub fn connect_at(path: &Path) -> Result<Arc<Member>> {
    let mut connection = Connection::open(path)?;
    let pid = rustix::process::getpid();
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())
        .map_err(|source| Error::System { action: "open a pidfd of this process", source })?;
    let name = std::env::current_exe().ok();
    let name = name.as_deref().and_then(Path::file_name).map(|n| n.to_string_lossy().into_owned());
    let hello = Request::Hello {
        version: VERSION,
        pid: u32::try_from(pid.as_raw_nonzero().get()).unwrap_or(0),
        name: name.unwrap_or_default(),
        image: isthmus_region::image::image(),
    };
    let (reply, fds) = connection.ask(&hello, Some(pidfd))?;
    let welcome = match reply {
        Reply::Welcome(welcome) => welcome,
        Reply::Refused { code, text } => return Err(Error::Refused { code, text }),
        _ => return Err(Error::BadFrame { what: "not the answer to Hello" }),
    };
    let [region]: [OwnedFd; 1] =
        fds.try_into().map_err(|_| Error::BadFrame { what: "not the one descriptor of a Welcome" })?;
    let (map, found) = map(&region, &welcome)?;
    let own = found.peer(welcome.peer)?.map_or(0, |peer| peer.file);
    // What rings, and grants pages, is the device with the own section. Where the driver has one it has all.
    let device = match own {
        // Beside a memory device there may be doorbells.
        0 if dax::may_be_dax(&region) => file_of(&mut connection, dax::BELL).ok(),
        0 => Some(region),
        file if driver::bytes(region.as_fd()).is_some() => Some(file_of(&mut connection, file)?),
        _ => None,
    };
    let ringer = device.and_then(|device| Ringer::of(device, &found));
    let client = Client::new(connection, path, welcome.former > 0, ringer);
    Ok(Member::new(&map, welcome.peer, welcome.grant, Box::new(client))?)
}

/// A file of the region other than the first, for a process that has been welcomed.
fn file_of(connection: &mut Connection, index: u32) -> Result<OwnedFd> {
    match connection.ask(&Request::File { index }, None)? {
        (Reply::File, fds) => {
            fds.into_iter().next().ok_or(Error::BadFrame { what: "no descriptor of a file" })
        }
        (Reply::Refused { code, text }, _) => Err(Error::Refused { code, text }),
        _ => Err(Error::BadFrame { what: "not the answer to File" }),
    }
}

/// A region as an observer gets it.
#[derive(Debug)]
pub struct View {
    /// The region's memory, for reading only.
    pub region: OwnedFd,
    /// What the service says about it, for the observer to check.
    pub said: Observed,
    /// The process that opened the service's socket.
    pub service: u32,
}

/// Asks the service that listens at `path`, within `patience`, for a descriptor of its region to read from. The
/// process gets no place in the region, and nothing of it is trusted or mapped here.
///
/// # Errors
/// [`Error::Connect`], [`Error::Refused`], [`Error::TimedOut`], [`Error::Gone`].
pub fn observe_at(path: &Path, patience: Duration) -> Result<View> {
    observe_file_at(path, 0, patience)
}

/// As [`observe_at`], for the file of the region with this number.
///
/// # Errors
/// As [`observe_at`].
pub fn observe_file_at(path: &Path, file: u32, patience: Duration) -> Result<View> {
    let mut connection = Connection::open_within(path, patience)?;
    let service = crate::socket::caller(&connection.socket)
        .map_err(|source| Error::System { action: "see whose the service is", source })?;
    let (reply, fds) = connection.ask(&Request::Observe { version: VERSION, file }, None)?;
    let said = match reply {
        Reply::Observed(said) => said,
        Reply::Refused { code, text } => return Err(Error::Refused { code, text }),
        _ => return Err(Error::BadFrame { what: "not the answer to Observe" }),
    };
    let [region]: [OwnedFd; 1] =
        fds.try_into().map_err(|_| Error::BadFrame { what: "not the one descriptor of an Observed" })?;
    let service = service.pid.map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs());
    Ok(View { region, said, service })
}

/// Maps the region's first file, as far as this process may use it.
fn map(fd: &OwnedFd, welcome: &Welcome) -> Result<(Arc<Mapping>, Region)> {
    let map = Mapping::as_opened(fd.as_fd(), welcome.region_bytes)?;
    let region = Region::open(&map)?;
    if region.shape().uuid != welcome.uuid {
        return Err(Error::BadFrame { what: "the region is not the one that was announced" });
    }
    Ok((map, region))
}
