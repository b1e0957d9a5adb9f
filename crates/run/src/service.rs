//! What a run needs of the host service, and no more.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use isthmus_attach::deaths::Deaths;
use isthmus_host::RegionOptions;
use isthmus_host::device::Device;
use isthmus_region::print::Aside;

use crate::error::{Error, Result};

/// What the service is started with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The run's directory; the service's sockets go there.
    pub dir: PathBuf,
    /// What is asked of the region.
    pub region: RegionOptions,
    /// Ranks that the region is made for where its size was not asked for.
    pub region_ranks: u32,
    /// Processes expected on the host.
    pub host_ranks: u32,
    /// The host names of the VMs that will join, in order, and the processes expected there.
    pub vms: Vec<(String, u32)>,
}

/// A service that runs. Dropping it ends it.
pub trait Service: Send {
    /// The socket at which processes of the host attach.
    fn attach_socket(&self) -> &Path;
    /// What VM `name` needs to join.
    ///
    /// # Errors
    /// [`Error::Service`]: there is no place for one of that name.
    fn device(&self, name: &str) -> Result<Device>;
    /// The job's counters so far, as JSON.
    fn counters(&self) -> String;
}

/// Takes a line for the user.
pub type Note = Box<dyn Fn(String) + Send + Sync>;

/// Starts the service of a run.
pub trait StartService {
    /// Starts it; when this returns, its sockets take connections. `note` gets what the user should know of its processes.
    ///
    /// # Errors
    /// [`Error::Service`].
    fn start(&self, config: &Config, verbose: bool, note: Note) -> Result<Option<Box<dyn Service>>>;
}

/// The service of `isthmus-host`, embedded in the job.
#[derive(Clone, Copy, Debug, Default)]
pub struct Embedded;

fn failed(e: &(dyn std::error::Error + 'static)) -> Error {
    Error::Service(isthmus_region::error::with_causes(e) + &isthmus_region::room::limit_told(e))
}

impl StartService for Embedded {
    fn start(&self, config: &Config, verbose: bool, note: Note) -> Result<Option<Box<dyn Service>>> {
        let mut host = isthmus_host::Config::of(
            &config.dir,
            config.region.sized(config.region_ranks, u32::try_from(config.vms.len()).unwrap_or(u32::MAX)),
        );
        host.host_ranks = config.host_ranks;
        host.vms = config
            .vms
            .iter()
            .map(|(name, ranks)| isthmus_host::Vm { name: name.clone(), ranks: *ranks })
            .collect();
        let deaths = Deaths::default();
        // On a thread of its own: the service must not wait for a reader of standard error.
        let lines = Aside::start().map_err(|e| Error::io("cannot start a thread", e))?;
        let observer = move |event: &isthmus_host::Event| {
            use isthmus_host::Event::{Process, Trouble, VmRefused};
            if let Process(event) = event
                && let Some(text) = deaths.hear(event)
            {
                note(text);
            }
            let is_trouble = matches!(
                event,
                Trouble { .. } | VmRefused { .. } | Process(isthmus_attach::server::Event::Trouble { .. })
            );
            if verbose || is_trouble {
                lines.tell(&format!("isthmus: {event}"));
            }
        };
        let service = isthmus_host::Service::start(host, Arc::new(observer)).map_err(|e| failed(&e))?;
        Ok(Some(Box::new(service)))
    }
}

impl Service for isthmus_host::Service {
    fn attach_socket(&self) -> &Path {
        self.attach_socket()
    }

    fn device(&self, name: &str) -> Result<Device> {
        self.device_of(name).map_err(|e| failed(&e))
    }

    fn counters(&self) -> String {
        self.stats().to_json()
    }
}

/// Ranks that a region is made for when their number is not known.
const RANKS: u32 = 16;

/// Ranks that a region is made for where its size was not asked for: all, or all places where their number is not known.
pub fn region_ranks(ranks: Option<u32>, places: u32) -> u32 {
    ranks.unwrap_or(RANKS.max(places))
}
