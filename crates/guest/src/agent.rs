//! The agent: finds the region behind an ivshmem device, becomes a member's local service, and lets the VM's processes
//! attach, so that none of them needs root.
//!
//! It needs root itself, to map the device. Which member it is the host service tells it by the VM's wake port: nothing in
//! the device says so. It tells the host service something only through its own section: the
//! directory that it writes makes the member Active. If its member is Active already, an agent ran here before (this
//! one was restarted, or the VM was reset under a running QEMU). Then it clears the directory's magic word, which
//! asks the host service for a new life, with a zeroed section and numbers that were not used before.
//!
//! After each of these steps it rings the host service by the wake port, and is rung when the service has done its
//! own. The words in the region are the truth; the side that waits looks at them again every now and then ([`RECHECK`]).

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use isthmus_attach::daemon;
use isthmus_attach::deaths::Deaths;
use isthmus_attach::ring;
use isthmus_attach::server::{self, Allowed, Observer};
use isthmus_region::Error as RegionError;
use isthmus_region::dax::{self, Dax};
use isthmus_region::directory::{self, Directory};
use isthmus_region::driver::{self, Driver};
use isthmus_region::error::with_causes;
use isthmus_region::format;
use isthmus_region::isolated::Isolated;
use isthmus_region::life::{Life, State};
use isthmus_region::mapping::Mapping;
use isthmus_region::membership::{PeerInfo, Region};
use isthmus_region::source::{Ivshmem, OneFile, Source};
use isthmus_vm::boot_config::DriverChoice;

use crate::boot;
use crate::identity;
use crate::names::Forwarder;
use crate::wakes::{Heard, Port, RECHECK, Reader, WAKE_PORT};

/// Between the first two looks for a device that is not there yet.
const PAUSE: Duration = Duration::from_millis(20);
/// Between two later ones, which may each bind the driver and let it go again.
const LONGEST_PAUSE: Duration = Duration::from_millis(320);
/// How long to wait for the wake port, which may appear a moment after the region's device.
const PORT_PATIENCE: Duration = Duration::from_secs(2);
/// A year, which can be added to any time.
const MOST_PATIENCE: Duration = Duration::from_secs(365 * 24 * 3600);

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
    /// Whether to use the guest driver.
    pub driver: DriverChoice,
    /// Bytes that each process may grant; only with the driver.
    pub grant_each: u64,
    /// Bytes of the VM's section for pages that processes grant, at most.
    pub grant_bytes: u64,
    /// The wake port; found by its name by default.
    pub wake_port: Option<PathBuf>,
    /// How long to wait for the device and the region, and then for the host service.
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
            driver: DriverChoice::Auto,
            grant_each: 0,
            grant_bytes: u64::MAX,
            wake_port: None,
            patience: Duration::from_secs(30),
            area_bytes: server::AREA_BYTES,
        }
    }
}

impl Config {
    /// The default with the settings that a launcher wrote: `{"socket": PATH, "users": [UID, ...], "driver": "auto", "grant": [EACH, ALL],
    /// "patience": SECONDS}`, each optional; of `grant`, bytes that each process may grant, and all together.
    #[must_use]
    pub fn with(settings: &serde_json::Value) -> Self {
        let mut config = Self::default();
        if let Some(path) = settings["socket"].as_str() {
            config.socket = path.into();
        }
        config.driver = serde_json::from_value(settings["driver"].clone()).unwrap_or_default();
        let granted = [0, 1].map(|at| settings["grant"][at].as_u64().unwrap_or(0));
        [config.grant_each, config.grant_bytes] = granted;
        let patience = settings["patience"].as_f64().and_then(|s| Duration::try_from_secs_f64(s).ok());
        config.patience = patience.unwrap_or(config.patience).min(MOST_PATIENCE);
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
    /// The device is for doorbells, or one section, and the region is not there.
    #[error("the ivshmem device {} is not enough to join a region: {why}", device.display())]
    PartAlone {
        /// The device's folder in sysfs.
        device: PathBuf,
        /// What it is, and what is missing.
        why: String,
    },
    /// There is no wake port.
    #[error(
        "this VM has no virtio-serial port named {WAKE_PORT}, by which an agent joins a region; add the port to the VM as `isthmus vm device` prints it: the lines with virtio-serial-pci, isthmus-wake and virtserialport, or libvirt's <channel>"
    )]
    NoWakePort,
    /// The wake port cannot be used.
    #[error("cannot open {}, the port by which an agent joins a region", path.display())]
    WakePort {
        /// The port.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The wake port fails while this VM joins.
    #[error("this VM's port {WAKE_PORT} failed")]
    PortFailed(#[source] std::io::Error),
    /// The other side of the wake port is closed.
    #[error(
        "the other side of this VM's port {WAKE_PORT} is closed: is its chardev connected to the wake socket of the same `isthmus host` as the region's device, and was it plugged in anew with it?"
    )]
    PortClosed,
    /// The host service knows no device that belongs to the wake port.
    #[error(
        "the host service knows no device that belongs to this VM's port {WAKE_PORT}: connect both to the VM's own sockets, as `isthmus vm device --name NAME` prints them, or plug the device in anew; the service says what it has found"
    )]
    NoMember,
    /// The wake port is that of another region than the device's.
    #[error(
        "this VM's port {WAKE_PORT} is connected to another host service than its device; connect both to sockets of the same `isthmus host` (with a memory device, --source dax, start the VM's QEMU again after the service was started again)"
    )]
    OtherRegion,
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
    /// The file that says which system the VM is.
    #[error("cannot keep in {} which member this VM is", path.display())]
    Identity {
        /// The file.
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
    source: Arc<dyn Source>,
    region: Region,
    driver: Option<Arc<Driver>>,
    /// Whether the driver's device has this VM's section, whose pages it can give out then.
    is_drivers: bool,
    /// Whether it is on a memory device.
    is_dax: bool,
}

/// A running agent. Dropping it ends the service; attached processes go on without it.
#[derive(Debug)]
pub struct Agent {
    server: server::Server,
    region: Region,
    peer: PeerInfo,
    news: Arc<News>,
}

/// Wakes the thread that watches over an agent: the host service has changed something about this VM, or it is time to
/// end.
#[derive(Debug, Default)]
pub struct News {
    came: Mutex<bool>,
    bell: Condvar,
}

impl News {
    /// There is something to look at.
    pub fn tell(&self) {
        *self.came.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.notify_all();
    }

    /// Sleeps until there is, or until `limit` has passed.
    pub fn wait(&self, limit: Duration) {
        let came = self.came.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.bell.wait_timeout_while(came, limit, |came| !*came);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

impl Agent {
    /// Finds the region, joins it and serves; when this returns, processes can attach.
    ///
    /// # Errors
    /// Each variant of [`Error`] but `Ended`.
    pub fn start(config: &Config, observer: Observer) -> Result<Self> {
        prepare_socket(config)?;
        let found = find(config, Instant::now() + config.patience)?;
        // From now on, however long the device has taken: where the machine is busy, to bind the driver alone may take that long.
        let joined = join(config, &found, Instant::now() + config.patience)?;
        Self::serve(config, found, joined, observer)
    }

    /// As [`Agent::start`], for a region and a wake port that the caller has found: the region's descriptor and the
    /// port. Needs neither root nor a VM.
    ///
    /// # Errors
    /// As [`Agent::start`].
    pub fn start_with(config: &Config, fd: OwnedFd, port: Port, observer: Observer) -> Result<Self> {
        let stat = rustix::fs::fstat(&fd).map_err(|source| isthmus_region::Error::Memory {
            action: "look at",
            bytes: 0,
            source,
        })?;
        let bytes = u64::try_from(stat.st_size).unwrap_or(0);
        let begin = dax::begin(fd.as_fd());
        let source = OneFile::new(fd, bytes - begin);
        Self::start_from(config, Arc::new(source), port, observer)
    }

    /// As [`Agent::start_with`], for a region that may have several files.
    ///
    /// # Errors
    /// As [`Agent::start`].
    pub fn start_from(
        config: &Config,
        source: Arc<dyn Source>,
        port: Port,
        observer: Observer,
    ) -> Result<Self> {
        prepare_socket(config)?;
        let region = Region::open_from(&Mapping::of(&*source)?, Some(Arc::clone(&source)))?;
        let found = Found { source, region, driver: None, is_drivers: false, is_dax: false };
        let joined = Joined::at(config, &found, port, Instant::now() + config.patience, config.patience)?;
        Self::serve(config, found, joined, observer)
    }

    fn serve(config: &Config, found: Found, joined: Joined, observer: Observer) -> Result<Self> {
        daemon::allow_many_descriptors();
        let Found { source, region, driver, .. } = found;
        let Joined { peer, writer, port, reader } = joined;
        if let Some(driver) = &driver {
            driver.join(peer.index).map_err(|e| isthmus_region::Error::Service {
                action: "say to the driver which member this VM is",
                reason: e.to_string(),
            })?;
            writer.set_vectors(driver.vectors())?;
            // Processes of the life before, whose agent is gone, look who lives.
            (1..driver.vectors()).for_each(|vector| driver.ring_own(vector));
        }
        let section = writer.directory().own_section().clone();
        let (names, answered) = Forwarder::start(region.clone(), peer.clone(), section, port.clone());
        let server = server::Config {
            path: config.socket.clone(),
            mode: config.mode,
            group: config.group,
            allowed: config.allowed.clone(),
            source,
            uuid: region.shape().uuid,
            peer: peer.index,
            incarnation: peer.life.incarnation,
            host_name: peer.name.clone(),
            area_bytes: config.area_bytes,
            relay: port.relay(&region, peer.index),
            names: Some(Box::new(names)),
            door: None,
            driver: driver.clone(),
            is_urgent: true,
        };
        let server = server::Server::start(server, writer, observer)?;
        let news = Arc::new(News::default());
        let changed = Arc::clone(&news);
        let (endpoints, waker) = (region.shape().endpoints, server.waker());
        let (settler, done) = (server.settler(), answered.clone());
        let settle = move |number| {
            // Behind what the processes have said.
            let done = done.clone();
            settler.settle(move || done.tell(number));
        };
        let answered = move |number: Option<u32>| match number {
            Some(number) => answered.settled(number),
            None => answered.ring(),
        };
        let reader = reader.with_driver(driver);
        reader.serve(peer.index, endpoints, waker, answered, settle, move || changed.tell());
        Ok(Self { server, region, peer, news })
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

    /// What tells that [`Agent::check`] is worth calling.
    pub fn news(&self) -> &Arc<News> {
        &self.news
    }

    /// Checks that the VM is still the member that it was at the start.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub fn check(&self) -> Result<()> {
        if !self.region.is_still_there() {
            return Err(self.ended("its device was unplugged"));
        }
        let life = self.region.peer(self.peer.index)?.map(|p| p.life);
        if self.region.service().state != State::Active {
            return Err(Error::Ended { why: "the host service has ended" });
        }
        match life {
            Some(life) if life.is_active(self.peer.life.incarnation) => Ok(()),
            Some(Life { state: State::Dead, .. }) => {
                Err(self.ended("the host service has published its death"))
            }
            _ => Err(self.ended("another service in this VM has begun a new life")),
        }
    }

    /// The memory is this member's no more, or there is none: it may be another device's by now. So nothing that the agent does
    /// until it ends may reach it.
    fn ended(&self, why: &'static str) -> Error {
        // If the system has no pages for that, the agent's own end is near all the same.
        let _ = self.region.retire();
        Error::Ended { why }
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
    config.device = Some(device.folder.clone());
    config.wake_port = booted.ports.get(WAKE_PORT).cloned();
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

/// Joins by whichever wake port is of the region's own service.
fn join(config: &Config, found: &Found, deadline: Instant) -> Result<Joined> {
    let mut of_others = Vec::new();
    loop {
        let (path, port) = open_port(config, &of_others)?;
        match Joined::at(config, found, port, deadline, config.patience) {
            Err(Error::OtherRegion) => of_others.push(path),
            other => return other,
        }
    }
}

/// Makes the socket's folder, and checks that no agent serves there: before joining, which would end its life.
fn prepare_socket(config: &Config) -> Result<()> {
    if let Some(path) = config.socket.parent().filter(|p| !p.as_os_str().is_empty()) {
        std::fs::create_dir_all(path).map_err(|source| Error::Folder { path: path.to_path_buf(), source })?;
    }
    Ok(isthmus_attach::socket::check_free(&config.socket)?)
}

/// The wake port, as soon as there is one: not among those `of_others`, which are of other regions. One that another agent
/// has open is of another region, too.
fn open_port(config: &Config, of_others: &[PathBuf]) -> Result<(PathBuf, Port)> {
    let deadline = Instant::now() + PORT_PATIENCE.min(config.patience);
    loop {
        let paths = config.wake_port.clone().map_or_else(Port::find, |path| vec![path]);
        let mut problem = if of_others.is_empty() { Error::NoWakePort } else { Error::OtherRegion };
        for path in paths.into_iter().filter(|path| !of_others.contains(path)) {
            match Port::open(&path) {
                Ok(port) => return Ok((path, port)),
                Err(source) => problem = Error::WakePort { path, source },
            }
        }
        if Instant::now() >= deadline {
            return Err(problem);
        }
        std::thread::sleep(PAUSE);
    }
}

/// The region behind the device, as soon as there is one.
fn find(config: &Config, deadline: Instant) -> Result<Found> {
    let mut pause = PAUSE;
    loop {
        let mut problem = Error::NoDevice;
        let devices = Ivshmem::find();
        // Of several, one may be another agent's, which the driver would take away. Those without doorbells belong to one that has them.
        let doorbells = devices.iter().filter(|device| device.doorbell).count();
        let may_bind = config.device.is_some() || doorbells == 1;
        let is_wanted = |device: &&Ivshmem| match &config.device {
            Some(wanted) => *wanted == device.folder,
            None => device.doorbell || doorbells == 0,
        };
        for device in devices.iter().filter(is_wanted) {
            let opened = match Isolated::of(device, devices.clone()) {
                // The port may have a number for other reasons, beside another program's device in slot 1.
                Some(isolated) => match open_isolated(isolated, device, config.driver, may_bind) {
                    Err(Error::NoRegion { .. } | Error::PartAlone { .. }) => {
                        open(device, config.driver, may_bind)
                    }
                    opened => opened,
                },
                None => open(device, config.driver, may_bind),
            };
            let is_part = match &opened {
                Err(Error::PartAlone { .. }) => true,
                Err(Error::Region(RegionError::Version { magic, .. })) => *magic == format::SECTION_MAGIC,
                _ => false,
            };
            // Its memory is for doorbells alone where the region is on a memory device.
            let memory = if is_part { memory_beside(device) } else { None };
            let opened = match memory {
                Some(memory) => open_dax(memory, device, config.driver, may_bind),
                None => opened,
            };
            match opened {
                Ok(found) => return Ok(found),
                // The driver has it already, and the memory device is not there yet.
                Err(Error::Region(RegionError::Version { magic, .. })) if magic == format::SECTION_MAGIC => {
                    problem = part_alone(device);
                }
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
        std::thread::sleep(pause);
        // What is not there at boot may come in an hour, and what is refused is refused again.
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn open(device: &Ivshmem, choice: DriverChoice, may_bind: bool) -> Result<Found> {
    let nothing = |why| Error::NoRegion { device: device.folder.clone(), why };
    if !device.doorbell {
        return Err(nothing(": it is an ivshmem-plain device, which no service can connect".into()));
    }
    if device.bytes == 0 {
        return Err(nothing(
            ": its memory got no address, for which its PCI port needs a larger window".into(),
        ));
    }
    // Where that fails, opening it fails, too, and says why.
    let _ = device.switch_on();
    let with_driver = |driver: Driver| {
        let region = Region::open(&Mapping::of(&driver)?)?;
        let driver = Arc::new(driver.for_region(region.shape()));
        let source = Arc::clone(&driver) as Arc<dyn Source>;
        Ok(Found { source, region, driver: Some(driver), is_drivers: true, is_dax: false })
    };
    match Driver::of(device) {
        Some(Ok(driver)) if choice != DriverChoice::Off => return with_driver(driver),
        Some(Ok(driver)) if driver.info().mappings > 0 => {
            return Err(nothing(
                " that --driver off can take: processes have it mapped by the driver; end them and their agent".into(),
            ));
        }
        // As long as the driver has the device, there is no other way.
        Some(Ok(_)) => driver::release(device)?,
        Some(Err(e)) => return Err(e.into()),
        None => {}
    }
    let source = device.open()?;
    let map = Mapping::of(&source)?;
    if !Region::is_there(&map) {
        let first = map.whole_for_reading().word("header", 0)?.get();
        return Err(if first == format::SECTION_MAGIC { part_alone(device) } else { nothing(String::new()) });
    }
    let region = Region::open(&map)?;
    let is_wanted = match choice {
        DriverChoice::Off => false,
        DriverChoice::Auto => may_bind && driver::is_loaded(),
        DriverChoice::Require if !may_bind => {
            return Err(nothing(
                " for the driver: there are several devices, so name one with --device".into(),
            ));
        }
        DriverChoice::Require => true,
    };
    if is_wanted {
        // The driver takes the memory away from those who have it by sysfs.
        drop((region, map, source));
        match Driver::bind(device) {
            Ok(driver) => return with_driver(driver),
            Err(e) if choice == DriverChoice::Require => return Err(e.into()),
            Err(e) => boot::console(&format!("isthmus: {e}; the region is mapped by sysfs")),
        }
        if Driver::of(device).is_some() {
            driver::release(device)?;
        }
        return open(device, DriverChoice::Off, false);
    }
    Ok(Found { source: Arc::new(source), region, driver: None, is_drivers: false, is_dax: false })
}

/// The error for a device whose memory is a part of a region, or for doorbells, where the region itself is missing.
fn part_alone(device: &Ivshmem) -> Error {
    let folder = device.folder.clone();
    if device.slot.is_some_and(|slot| slot > 0) {
        return Error::PartAlone { device: folder, why: ALONE_ISOLATED.into() };
    }
    let opened = |memory: &dax::Device| Dax::new(memory.clone(), None).file(0).err();
    let why = match dax::Device::find().iter().find_map(opened) {
        Some(refused) => format!("{} (under systemd it takes DeviceAllow=char-dax)", with_causes(&refused)),
        None if Path::new("/sys/bus/acpi/devices/ACPI0012:00").exists() => ALONE_UNUSABLE.into(),
        None => ALONE_ABSENT.into(),
    };
    Error::PartAlone { device: folder, why }
}

const ALONE_ISOLATED: &str = "it is one section of an isolated region, and the devices of the others are not there: start QEMU with all lines that isthmus vm device --name NAME prints";
const ALONE_UNUSABLE: &str = "it has the doorbells of a region on a memory device (NVDIMM), of which this VM's kernel has made no /dev/dax*, or one that holds no region: modprobe -a nfit nd_pmem dax_pmem device_dax; if these are loaded, dmesg says why (the kernel takes 1.6 % of the region's size from this VM's memory for it), and starting QEMU again writes what the kernel looks for";
const ALONE_ABSENT: &str = "it has the doorbells of a region on a memory device (NVDIMM), and this kernel shows none: start QEMU with all lines that isthmus vm device prints, with memory-backend-file and nvdimm, and with -machine nvdimm=on; in the VM, modprobe -a nfit nd_pmem dax_pmem device_dax";

/// The memory device with the region whose doorbells this device has.
fn memory_beside(bells: &Ivshmem) -> Option<dax::Device> {
    let map = match Driver::of(bells) {
        Some(driver) => Mapping::of(&driver.ok()?),
        None => Mapping::of(&bells.open().ok()?),
    };
    let uuid = dax::of_bells(&map.ok()?)?;
    dax::Device::find().into_iter().find(|memory| memory.region() == Some(uuid))
}

/// The region on a memory device. The ivshmem device beside it is for doorbells, which take the driver.
fn open_dax(memory: dax::Device, bells: &Ivshmem, choice: DriverChoice, may_bind: bool) -> Result<Found> {
    let driver = match (choice, Driver::of(bells)) {
        // Of several, it may be another agent's.
        (DriverChoice::Require, _) if !may_bind => {
            return Err(Error::NoRegion {
                device: bells.folder.clone(),
                why: " for the driver: there are several devices, so name one with --device".into(),
            });
        }
        _ if !may_bind => None,
        (DriverChoice::Off, Some(_)) => {
            driver::release(bells)?;
            None
        }
        (DriverChoice::Off, None) => None,
        (_, Some(driver)) => Some(driver?),
        (DriverChoice::Auto, None) if !driver::is_loaded() => None,
        (DriverChoice::Auto | DriverChoice::Require, None) => match Driver::bind(bells) {
            Ok(driver) => Some(driver),
            Err(e) if choice == DriverChoice::Require => return Err(e.into()),
            Err(e) => {
                boot::console(&format!("isthmus: {e}; sleepers are woken by the agents"));
                None
            }
        },
    };
    let driver = driver.map(Arc::new);
    let source: Arc<dyn Source> = Arc::new(Dax::new(memory, driver.clone()));
    let region = Region::open_from(&Mapping::of(&*source)?, Some(Arc::clone(&source)))?;
    Ok(Found { source, region, driver, is_drivers: false, is_dax: true })
}

/// As [`open`], of an isolated region.
fn open_isolated(
    isolated: Isolated,
    device: &Ivshmem,
    choice: DriverChoice,
    may_bind: bool,
) -> Result<Found> {
    let nothing = |why: &str| Error::NoRegion { device: device.folder.clone(), why: why.into() };
    // Before the driver takes any of them.
    isolated.of_one_region()?;
    if let Some(device) = isolated.without_address() {
        return Err(Error::NoRegion {
            device: device.folder.clone(),
            why: ": its memory got no address, for which its PCI port needs a larger window".into(),
        });
    }
    // Where that fails, opening fails, too, and says why.
    let _ = isolated.switch_on();
    let (is_bound, is_mapped) = isolated.is_bound();
    let with_driver = match choice {
        DriverChoice::Off if is_mapped => {
            return Err(nothing(
                " that --driver off can take: processes have it mapped by the driver; end them and their agent",
            ));
        }
        DriverChoice::Off => false,
        DriverChoice::Auto => is_bound || (may_bind && driver::is_loaded()),
        DriverChoice::Require if !may_bind && !is_bound => {
            return Err(nothing(" for the driver: there are several devices, so name one with --device"));
        }
        DriverChoice::Require => true,
    };
    if !is_bound && !Region::is_there(&Mapping::of(&isolated)?) {
        return Err(nothing(""));
    }
    if !with_driver {
        if is_bound {
            isolated.release()?;
        }
        return found_in(isolated);
    }
    match isolated.bind() {
        Ok(isolated) => return found_in(isolated),
        // As long as processes have some of them by the driver, there is no other way.
        Err(e) if choice == DriverChoice::Require || is_mapped => return Err(e.into()),
        Err(e) => boot::console(&format!("isthmus: {e}; the region is mapped by sysfs")),
    }
    let again = Isolated::of(device, Ivshmem::find()).ok_or_else(|| nothing(""))?;
    again.release()?;
    found_in(again)
}

/// The region whose devices these are.
fn found_in(isolated: Isolated) -> Result<Found> {
    let shape = *Region::open(&Mapping::of(&isolated)?)?.shape();
    let isolated = isolated.for_region(&shape)?;
    let driver = isolated.own_driver().cloned();
    let source: Arc<dyn Source> = Arc::new(isolated);
    let region = Region::open_from(&Mapping::of(&*source)?, Some(Arc::clone(&source)))?;
    let is_drivers = driver.is_some();
    Ok(Found { source, region, driver, is_drivers, is_dax: false })
}

/// Has the driver make the pool of pages in the section of this VM; gives its bytes, none where there is no driver or no room.
fn place_pool(config: &Config, found: &Found, own: &PeerInfo) -> u64 {
    if config.grant_each > 0 && found.is_dax {
        boot::console(
            "isthmus: no process of this VM can grant pages: the region is on a memory device (DAX), and not the guest driver's",
        );
    }
    let driver = found.driver.as_ref().filter(|driver| found.is_drivers && driver.info().has_pages);
    let Some(driver) = driver else { return 0 };
    let shape = found.region.shape();
    let align = shape.section_align;
    // The heap keeps at least a quarter of what there is.
    let room = own.section_bytes.saturating_sub(directory::least_section_bytes(shape)) / 4 * 3;
    let wanted = if config.grant_each == 0 { 0 } else { config.grant_bytes };
    let bytes = wanted.checked_next_multiple_of(align).unwrap_or(u64::MAX).min(room / align * align);
    match driver.place_pool(own.section.saturating_add(own.section_bytes), bytes, config.grant_each) {
        Ok(bytes) => {
            if bytes < wanted && wanted < u64::MAX {
                let (bytes, wanted) = (bytes >> 20, wanted >> 20);
                boot::console(&format!(
                    "isthmus: the processes of this VM can grant {bytes} MiB together, not {wanted}: the region is too small"
                ));
            }
            bytes
        }
        Err(e) => {
            if bytes > 0 {
                boot::console(&format!("isthmus: no process of this VM can grant pages: {e}"));
            }
            0
        }
    }
}

/// The member with this number, if it lives.
fn living(region: &Region, index: u32) -> Option<PeerInfo> {
    let lives = |p: &PeerInfo| matches!(p.life.state, State::Joining | State::Active);
    region.peer(index).ok().flatten().filter(lives)
}

/// A member of a region.
struct Joined {
    peer: PeerInfo,
    writer: directory::Writer,
    port: Port,
    reader: Reader,
}

impl Joined {
    /// Becomes the local service of the member whose wake port this is: asks the host service which that is, writes its
    /// directory, and waits until it is Active.
    fn at(config: &Config, found: &Found, port: Port, deadline: Instant, patience: Duration) -> Result<Self> {
        let region = &found.region;
        let mut naming = identity::take(&config.socket)?;
        let mut reader = port.reader();
        let mut told = None;
        let mut asked_of = None;
        let mut ready: Option<(u64, directory::Writer)> = None;
        let mut due = Instant::now();
        // Before the first look at the port nothing is known of its other side.
        let mut has_looked = false;
        loop {
            let peer = told.and_then(|index| living(region, index));
            let life = peer.as_ref().map(|p| p.life);
            // Of a VM and its copy the second is another system. It has no endpoints yet.
            let is_other = |p: &PeerInfo| peer.as_ref().is_some_and(|own| own.index != p.index);
            let is_taken = region
                .peers()
                .iter()
                .any(|p| is_other(p) && p.life.state == State::Active && p.system == naming.system);
            if is_taken {
                naming = identity::renew(&config.socket)?;
                ready = None;
            }
            // What was written may have been read while it changed: then this life is another system's.
            let is_us = peer.as_ref().is_some_and(|p| p.system == naming.system);
            let written = life.is_some_and(|l| ready.as_ref().is_some_and(|(of, _)| *of == l.incarnation));
            match (peer, life.map(|l| l.state), written) {
                (Some(peer), Some(State::Active), true) if is_us => {
                    if let Some((_, writer)) = ready.take() {
                        return Ok(Self { peer, writer, port, reader });
                    }
                }
                (Some(peer), Some(State::Joining), false) => {
                    let pages = place_pool(config, found, &peer);
                    let writer = directory::Writer::create_with_pages(region, peer.index, naming, pages)?;
                    ready = Some((writer.incarnation(), writer));
                    due = Instant::now();
                }
                (Some(peer), Some(State::Active), _) if asked_of != Some(peer.life.incarnation) => {
                    let section = region.own_section(&peer)?;
                    // What the driver knows a section by that is a device of its own.
                    section.word("directory", format::directory::MAGIC)?.set(format::SECTION_MAGIC);
                    asked_of = Some(peer.life.incarnation);
                    due = Instant::now();
                }
                _ => {}
            }
            let now = Instant::now();
            if now >= deadline && has_looked {
                let no_answer = |what| Error::NoAnswer { what, seconds: patience.as_secs() };
                return Err(match (told, life) {
                    _ if !reader.is_open() => Error::PortClosed,
                    (None, _) => no_answer("say which member this VM is"),
                    (Some(_), None) => Error::NoMember,
                    (Some(_), Some(_)) if written => no_answer("take this VM in"),
                    (Some(_), Some(_)) => no_answer("begin a new life of this VM"),
                });
            }
            if due <= now {
                // Before the other side is open, this is for the sake of the limit alone.
                if reader.is_open() {
                    port.hello(false);
                }
                due = now + RECHECK;
            }
            has_looked = true;
            match reader.next(Some(due.min(deadline))) {
                // Whatever is behind the port from now on, it has not said which member this is.
                Ok(Heard::Opened) => (told, due) = (None, Instant::now()),
                Ok(Heard::Frames(frames)) => {
                    for frame in frames {
                        let ring::Frame::Peer { peer, region: of } = frame else { continue };
                        if of != region.shape().uuid[0] {
                            return Err(Error::OtherRegion);
                        }
                        told = Some(peer);
                    }
                }
                Ok(Heard::Closed | Heard::Nothing | Heard::Rung | Heard::Unplugged) => {}
                Err(e) => return Err(Error::PortFailed(e.into())),
            }
        }
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
        Ivshmem { folder: folder.to_path_buf(), bytes, doorbell: true, slot: None }
    }

    fn complaint(device: &Ivshmem) -> String {
        let mut text = String::new();
        let found = open(device, DriverChoice::Off, false).err().unwrap();
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
        let map = Mapping::of(&good.open().unwrap()).unwrap();
        map.whole().unwrap().word("section", 0).unwrap().set(format::SECTION_MAGIC);
        assert!(complaint(&good).contains("memory device (NVDIMM)"), "doorbells alone");
        let section = Ivshmem { slot: Some(3), ..good.clone() };
        assert!(complaint(&section).contains("one section of an isolated region"));
        let shape = Shape::new(bytes, [1, 2], 2, 4).unwrap();
        Writer::create(&map, &shape, 1).unwrap();
        let found = open(&good, DriverChoice::Off, false).unwrap();
        assert!(living(&found.region, 1).is_none(), "a region without a member for this VM");
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
        let patience = |seconds: f64| Config::with(&serde_json::json!({"patience": seconds})).patience;
        assert_eq!(patience(600.0), Duration::from_secs(600));
        let _ = Instant::now() + patience(1e300) + patience(1e18);
        assert_eq!(patience(-1.0), Config::default().patience);
        let config = Config::with(&serde_json::Value::Null);
        assert_eq!(config.allowed, Allowed::Users(vec![]), "root only");
    }

    /// Binding a driver on a busy machine may have used up all the time before the first look at the port.
    #[test]
    fn a_port_is_looked_at_before_it_is_called_closed() {
        use isthmus_region::membership::{Shape, Writer};
        let dir = tempfile::tempdir().unwrap();
        let region = rustix::fs::memfd_create("region", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&region, 1 << 20).unwrap();
        let map = Mapping::of(&OneFile::new(region.try_clone().unwrap(), 1 << 20)).unwrap();
        Writer::create(&map, &Shape::new(1 << 20, [1, 2], 2, 4).unwrap(), 1).unwrap();
        let (port, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let config =
            Config { socket: dir.path().join("socket"), patience: Duration::ZERO, ..Config::default() };
        let failure = |region: OwnedFd, port: std::os::unix::net::UnixStream| {
            let port = Port::from(OwnedFd::from(port));
            Agent::start_with(&config, region, port, Box::new(|_| ())).map(drop).unwrap_err()
        };
        let said = failure(region.try_clone().unwrap(), port.try_clone().unwrap());
        assert!(matches!(said, Error::NoAnswer { .. }), "{said}");
        drop(other);
        let said = failure(region, port);
        assert!(matches!(said, Error::PortClosed), "{said}");
    }
}
