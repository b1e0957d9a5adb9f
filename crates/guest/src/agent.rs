//! The agent: finds the region behind an ivshmem device, becomes a member's local service, and lets the VM's processes
//! attach, so that none of them needs root.
//!
//! It needs root itself, to map the device. It tells the host service something only through its own section: the
//! directory that it writes makes the member Active. If its member is Active already, an agent ran here before (this
//! one was restarted, or the VM was reset under a running QEMU). Then it clears the directory's magic word, which
//! asks the host service for a new life, with a zeroed section and numbers that were not used before.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_attach::deaths::Deaths;
use isthmus_attach::server::{self, Allowed, Observer};
use isthmus_region::Error as RegionError;
use isthmus_region::directory::{self, Directory};
use isthmus_region::format;
use isthmus_region::life::{Life, State};
use isthmus_region::mapping::Mapping;
use isthmus_region::membership::{PeerInfo, Region};
use isthmus_region::source::Ivshmem;

use crate::names::Forwarder;
use crate::{boot, wakes};

/// Between two polls of the region while waiting for the host service.
const PAUSE: Duration = Duration::from_millis(2);

/// What the agent is started with.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where processes attach; its folder is made if it is not there.
    pub socket: PathBuf,
    /// Users that may attach. They are trusted with the whole region.
    pub allowed: Allowed,
    /// Mode of the socket.
    pub mode: u32,
    /// Group of the socket, if not root's.
    pub group: Option<u32>,
    /// The device's folder in sysfs; the first that holds a region by default.
    pub device: Option<PathBuf>,
    /// The virtio-serial port for wake-ups; found by its name by default.
    pub wake_port: Option<PathBuf>,
    /// How long to wait for the device, the region and the host service.
    pub patience: Duration,
    /// Bytes of a process's area at attach.
    pub area_bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: isthmus_attach::socket::SYSTEM_SOCKET.into(),
            allowed: Allowed::Users(Vec::new()),
            // Users are checked by their ids; the socket's mode must not be a second, different rule.
            mode: 0o666,
            group: None,
            device: None,
            wake_port: None,
            patience: Duration::from_secs(30),
            area_bytes: server::AREA_BYTES,
        }
    }
}

impl Config {
    /// The default with the settings that a launcher wrote: `{"socket": PATH, "users": [UID, ...]}`, each optional.
    #[must_use]
    pub fn with(settings: &serde_json::Value) -> Self {
        let mut config = Self::default();
        if let Some(path) = settings["socket"].as_str() {
            config.socket = path.into();
        }
        let users = settings["users"].as_array().into_iter().flatten();
        let users = users.filter_map(|u| u.as_u64().and_then(|u| u32::try_from(u).ok())).collect();
        config.allowed = Allowed::Users(users);
        config
    }
}

/// Why the agent cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No device at all.
    #[error(
        "this VM has no ivshmem device; add `-device ivshmem-doorbell` as `isthmus host` prints it to the VM's QEMU line"
    )]
    NoDevice,
    /// The device is there, the region is not.
    #[error(
        "the ivshmem device {} holds no isthmus region{why}; was its VM connected to a socket of `isthmus host` or `isthmus run`?",
        device.display()
    )]
    NoRegion {
        /// The device's folder in sysfs.
        device: PathBuf,
        /// What is wrong, after a colon, if it is known.
        why: String,
    },
    /// The region has no member for this VM.
    #[error(
        "the region has no member with this VM's ivshmem id {id}: the host service has ended, or has given the place to another VM; connect the device anew"
    )]
    NoMember {
        /// The id that the device shows.
        id: u32,
    },
    /// The host service does not respond.
    #[error(
        "the host service did not {what} within {seconds} s; is it still running? A region outlives its service, but takes no new members then"
    )]
    NoAnswer {
        /// What it should do.
        what: &'static str,
        /// How long the agent waited.
        seconds: u64,
    },
    /// The life of this member ended while the agent ran.
    #[error("this VM is no longer a member of the region: {why}")]
    Ended {
        /// What happened.
        why: &'static str,
    },
    /// The socket's folder cannot be made.
    #[error("cannot create the folder {}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// Signals cannot be received.
    #[error("cannot wait for signals")]
    Signals {
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// An error of the region.
    #[error(transparent)]
    Region(#[from] isthmus_region::Error),
    /// An error of the attach service.
    #[error(transparent)]
    Attach(#[from] isthmus_attach::Error),
}

/// This module's result.
pub type Result<T> = std::result::Result<T, Error>;

/// A region as a VM finds it.
#[derive(Debug)]
struct Found {
    fd: OwnedFd,
    map: Arc<Mapping>,
    region: Region,
    id: u32,
}

/// A running agent. Dropping it ends the service; attached processes go on without it.
#[derive(Debug)]
pub struct Agent {
    server: server::Server,
    region: Region,
    peer: PeerInfo,
}

impl Agent {
    /// Finds the region, joins it and serves; when this returns, processes can attach.
    ///
    /// # Errors
    /// Each variant of [`Error`] but `Ended`.
    pub fn start(config: &Config, observer: Observer) -> Result<Self> {
        let deadline = Instant::now() + config.patience;
        let found = find(config, deadline)?;
        let path = config.wake_port.clone().or_else(wakes::Port::find);
        let port = path.and_then(|path| match wakes::Port::open(&path) {
            Ok(port) => Some(port),
            Err(e) => {
                let reason =
                    format!("cannot open {}, so wake-ups from outside this VM are lost: {e}", path.display());
                observer(&server::Event::Trouble { reason });
                None
            }
        });
        Self::serve(config, found, deadline, observer, port)
    }

    /// As [`Agent::start`], for a region that the caller has found: its descriptor, and the ivshmem id by which the
    /// host service knows this member. Needs neither root nor a VM.
    ///
    /// # Errors
    /// As [`Agent::start`].
    pub fn start_with(config: &Config, fd: OwnedFd, id: u32, observer: Observer) -> Result<Self> {
        let stat = rustix::fs::fstat(&fd).map_err(|source| isthmus_region::Error::Memory {
            action: "look at",
            bytes: 0,
            source,
        })?;
        let map = Mapping::map(fd.as_fd(), u64::try_from(stat.st_size).unwrap_or(0))?;
        let found = Found { region: Region::open(&map)?, fd, map, id };
        Self::serve(config, found, Instant::now() + config.patience, observer, None)
    }

    fn serve(
        config: &Config,
        found: Found,
        deadline: Instant,
        observer: Observer,
        port: Option<wakes::Port>,
    ) -> Result<Self> {
        let folder = config.socket.parent().filter(|p| !p.as_os_str().is_empty());
        if let Some(path) = folder {
            make_folder(path)?;
        }
        // Before joining, which would end the life of an agent that runs already.
        isthmus_attach::socket::check_free(&config.socket)?;
        let Found { fd, map, region, id } = found;
        let patience = config.patience;
        let (peer, writer) = join(&region, id, deadline, patience)?;
        let section = writer.directory().own_section().clone();
        let (names, answered) = Forwarder::start(region.clone(), peer.clone(), section, port.clone());
        let server = server::Config {
            path: config.socket.clone(),
            mode: config.mode,
            group: config.group,
            allowed: config.allowed.clone(),
            region: fd,
            region_bytes: map.len(),
            uuid: region.shape().uuid,
            peer: peer.index,
            incarnation: peer.life.incarnation,
            host_name: peer.name.clone(),
            area_bytes: config.area_bytes,
            relay: port.as_ref().map(|port| port.relay(peer.index)).unwrap_or_default(),
            names: Some(Box::new(names)),
            is_urgent: true,
        };
        let server = server::Server::start(server, writer, observer)?;
        if let Some(port) = port {
            let (endpoints, waker) = (region.shape().endpoints, server.waker());
            port.serve(id, peer.index, endpoints, waker, move || answered.ring());
        }
        Ok(Self { server, region, peer })
    }

    /// Where processes attach.
    pub fn socket(&self) -> &Path {
        self.server.path()
    }

    /// The member that this VM is.
    pub fn peer(&self) -> &PeerInfo {
        &self.peer
    }

    /// The region.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The VM's own section.
    pub fn directory(&self) -> &Directory {
        self.server.directory()
    }

    /// Checks that the VM is still the member that it was at the start.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub fn check(&self) -> Result<()> {
        let life = self.region.peer(self.peer.index)?.map(|p| p.life);
        if self.region.service().state != State::Active {
            return Err(Error::Ended { why: "the host service has ended" });
        }
        match life {
            Some(life) if life.is_active(self.peer.life.incarnation) => Ok(()),
            Some(Life { state: State::Dead, .. }) => {
                Err(Error::Ended { why: "the host service has published its death" })
            }
            _ => Err(Error::Ended { why: "another service in this VM has begun a new life" }),
        }
    }
}

/// The agent of a VM that isthmus booted, if it has a region: configured by `agent` in the launcher's config, with
/// its messages on the console, where the launcher finds them.
///
/// # Errors
/// As [`Agent::start`].
pub fn of_boot(booted: &boot::Booted) -> Result<Option<Agent>> {
    of_boot_telling(booted, |_| ())
}

/// As [`of_boot`]; the first process that dies with an endpoint open is also reported to `tell`, since a launcher may
/// report only the consequences of that death.
///
/// # Errors
/// As [`Agent::start`].
pub fn of_boot_telling(
    booted: &boot::Booted,
    tell: impl Fn(String) + Send + Sync + 'static,
) -> Result<Option<Agent>> {
    let Some(device) = &booted.ivshmem else { return Ok(None) };
    let mut config = Config::with(booted.config.extra.get("agent").unwrap_or(&serde_json::Value::Null));
    config.device = Some(device.sysfs.clone());
    config.wake_port = booted.ports.get(wakes::WAKE_PORT).cloned();
    if let Some(folder) = config.socket.parent() {
        boot::private_folder(folder).map_err(|e| Error::Folder {
            path: folder.to_path_buf(),
            source: std::io::Error::other(e.to_string()),
        })?;
    }
    let verbose = booted.config.verbose;
    let deaths = Deaths::default();
    let observer = move |event: &server::Event| {
        if let Some(text) = deaths.hear(event) {
            tell(text);
        }
        if verbose || matches!(event, server::Event::Refused { .. } | server::Event::Trouble { .. }) {
            boot::console(&format!("isthmus: {event}"));
        }
    };
    Agent::start(&config, Box::new(observer)).map(Some)
}

fn make_folder(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(|source| Error::Folder { path: path.to_path_buf(), source })
}

/// The region behind the device, as soon as there is one.
fn find(config: &Config, deadline: Instant) -> Result<Found> {
    loop {
        let mut problem = Error::NoDevice;
        for device in Ivshmem::find() {
            if config.device.as_ref().is_some_and(|wanted| *wanted != device.folder) {
                continue;
            }
            match open(&device) {
                Ok(found) => return Ok(found),
                // The magic word is written last, so waiting will not help.
                Err(e @ Error::Region(RegionError::Version { .. } | RegionError::Layout { .. })) => {
                    return Err(e);
                }
                Err(e) => problem = e,
            }
        }
        if Instant::now() >= deadline {
            return Err(problem);
        }
        std::thread::sleep(PAUSE);
    }
}

fn open(device: &Ivshmem) -> Result<Found> {
    let nothing = |why| Error::NoRegion { device: device.folder.clone(), why };
    if !device.doorbell {
        return Err(nothing(": it is an ivshmem-plain device, which has no identity".into()));
    }
    let fd = device.open()?;
    let map = Mapping::map(fd.as_fd(), device.bytes)?;
    if !Region::is_there(&map) {
        return Err(nothing(String::new()));
    }
    let region = Region::open(&map)?;
    Ok(Found { fd, region, map, id: device.position()? })
}

/// The member with this ivshmem id, if it lives.
fn member(region: &Region, id: u32) -> Option<PeerInfo> {
    let lives = |p: &PeerInfo| matches!(p.life.state, State::Joining | State::Active);
    region.peers().into_iter().find(|p| p.ivshmem_id == Some(id) && lives(p))
}

/// Becomes the local service of the member with this ivshmem id: writes its directory, and waits until the member is
/// Active.
fn join(
    region: &Region,
    id: u32,
    deadline: Instant,
    patience: Duration,
) -> Result<(PeerInfo, directory::Writer)> {
    let mut asked_of = None;
    let late = |what| Error::NoAnswer { what, seconds: patience.as_secs() };
    let mut ready: Option<(u64, directory::Writer)> = None;
    loop {
        // QEMU shows the id a moment before the host service has entered it into the table.
        let Some(peer) = member(region, id) else {
            if Instant::now() >= deadline {
                return Err(Error::NoMember { id });
            }
            std::thread::sleep(PAUSE);
            continue;
        };
        let life = peer.life;
        let written = ready.as_ref().is_some_and(|(incarnation, _)| *incarnation == life.incarnation);
        match (life.state, written) {
            (State::Active, true) => {
                if let Some((_, writer)) = ready.take() {
                    return Ok((peer, writer));
                }
            }
            (State::Joining, false) => {
                let writer = directory::Writer::create(region, peer.index)?;
                ready = Some((writer.incarnation(), writer));
            }
            (State::Active, false) if asked_of != Some(life.incarnation) => {
                let section = region.own_section(&peer)?;
                section.word("directory", format::directory::MAGIC)?.set(0);
                asked_of = Some(life.incarnation);
            }
            _ => {}
        }
        if Instant::now() >= deadline {
            return Err(late(if written { "take this VM in" } else { "begin a new life of this VM" }));
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device of files, as sysfs shows one of QEMU's.
    fn device(folder: &Path, bytes: u64) -> Ivshmem {
        for (name, len) in [("resource0", 4096), ("resource2", bytes)] {
            std::fs::File::create(folder.join(name)).unwrap().set_len(len).unwrap();
        }
        Ivshmem { folder: folder.to_path_buf(), bytes, doorbell: true }
    }

    fn complaint(device: &Ivshmem) -> String {
        let mut text = String::new();
        let found = open(device).err().unwrap();
        let mut cause: Option<&dyn std::error::Error> = Some(&found);
        while let Some(e) = cause {
            text += &format!("{e}: ");
            cause = e.source();
        }
        text
    }

    #[test]
    fn a_wrong_device_is_refused_with_the_reason() {
        use isthmus_region::membership::{Shape, Writer};
        let dir = tempfile::tempdir().unwrap();
        let bytes = 1 << 20;
        let good = device(dir.path(), bytes);
        let plain = Ivshmem { doorbell: false, ..good.clone() };
        assert!(complaint(&plain).contains("ivshmem-plain"));
        assert!(complaint(&good).contains("holds no isthmus region"), "zeros");
        let map = Mapping::map(good.open().unwrap().as_fd(), bytes).unwrap();
        let shape = Shape::new(bytes, [1, 2], 2, 4).unwrap();
        Writer::create(&map, &shape, 1).unwrap();
        let found = open(&good).unwrap();
        assert!(member(&found.region, found.id).is_none(), "a region without a member for this VM");
        let whole = map.whole().unwrap();
        let version = whole.word("header", 8).unwrap();
        let was = version.get();
        version.set(was + 1);
        assert!(complaint(&good).contains("use the same isthmus version on host and guests"));
        version.set(was);
        whole.word("header", 16).unwrap().set(bytes * 2);
        assert!(!complaint(&good).is_empty(), "a region that is larger than the device");
        let gone = Ivshmem { folder: dir.path().join("gone"), ..good };
        assert!(complaint(&gone).contains("open the shared memory device"));
    }

    #[test]
    fn the_launchers_settings_are_used() {
        let config = Config::with(&serde_json::json!({"socket": "/x/y", "users": [1000, 7]}));
        assert_eq!(config.socket, Path::new("/x/y"));
        assert_eq!(config.allowed, Allowed::Users(vec![1000, 7]));
        let config = Config::with(&serde_json::Value::Null);
        assert_eq!(config.allowed, Allowed::Users(vec![]), "root only");
    }
}
