//! What a run needs of the host service, and nothing more of it.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// What the service is started with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The run's directory; the service's sockets go there.
    pub dir: PathBuf,
    /// Bytes of the region; a power of two.
    pub region_bytes: u64,
    /// The host names of the VMs that will join, in order.
    pub peers: Vec<String>,
}

/// A service that runs. Dropping it ends it.
pub trait Service: Send {
    /// The socket for QEMU's ivshmem devices.
    fn ivshmem_socket(&self) -> &Path;
    /// The socket at which processes of the host attach.
    fn attach_socket(&self) -> &Path;
    /// The job's counters so far, one line each, for `--verbose`.
    fn counters(&self) -> Vec<String>;
}

/// Starts the service of a run.
pub trait StartService {
    /// Starts it; when this returns, both sockets take connections.
    ///
    /// # Errors
    /// [`Error::Service`].
    fn start(&self, config: &Config) -> Result<Option<Box<dyn Service>>>;
}

impl fmt::Debug for dyn Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "service at {}", self.attach_socket().display())
    }
}

/// The service of `isthmus-host`, embedded in the job.
#[derive(Clone, Copy, Debug, Default)]
pub struct Embedded;

impl StartService for Embedded {
    fn start(&self, config: &Config) -> Result<Option<Box<dyn Service>>> {
        let _ = config;
        Err(Error::Service("this build has none yet".into()))
    }
}

/// Bytes of a region that was not asked for by size: the next power of two of 64 MiB and 16 MiB per rank.
pub fn default_region_bytes(ranks: Option<u32>) -> u64 {
    const MIB: u64 = 1 << 20;
    (64 * MIB + 16 * MIB * u64::from(ranks.unwrap_or(16))).next_power_of_two()
}
