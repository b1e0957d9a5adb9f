//! The service as a whole: one region, its membership table, the attach server and the ivshmem server.

use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use isthmus_attach::server::{self, Allowed, Wakeup};
use isthmus_region::dax::{HEAD_BYTES, LEAST_BYTES};
use isthmus_region::directory;
use isthmus_region::format::{DEVICE_SECTION_ALIGN, MAX_ENDPOINTS, SECTION_ALIGN};
use isthmus_region::life::State;
use isthmus_region::mapping::{Mapping, Section};
use isthmus_region::membership::{PeerInfo, Region, Shape};
use isthmus_region::source::Source;
use isthmus_region::text::cut;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::device::{BELL_BYTES, Device, File, What};
use crate::door::Door;
use crate::doorbells::Doorbells;
use crate::errands::Errands;
use crate::error::{Error, Result};
use crate::files::{Memfds, View};
use crate::ivshmem;
use crate::members::Members;
use crate::names::{self, Makers, Registry, Rules};
use crate::options::{self, RegionOptions};
use crate::plan::{self, Place, Plan};
use crate::stats::Stats;
use crate::wakes::{self, Router, Wakes};

/// Most VMs of an isolated region: each has a port for each file.
pub const MOST_ISOLATED: usize = 16;
/// Doorbell vectors of each VM's device; QEMU's `vectors=` must say the same.
pub const VECTORS: u16 = 8;
/// Endpoint slots of each peer, by default and at least.
pub const ENDPOINTS: u32 = 256;
/// Descriptors of a service, and of each peer of the host besides: its file twice, its socket, its bell and epoll descriptor, and its
/// process's connection and two pidfds.
const DESCRIPTORS: (u64, u64) = (64, 8);
/// Endpoint slots for each process that is expected at a peer: MPIs open one to three, MPICH one more for each of the
/// communication interfaces that it is told to use.
const ENDPOINTS_PER_PROCESS: u32 = 8;

/// What the service is started with.
#[derive(Debug, Clone)]
pub struct Config {
    /// Folder for the sockets. If it is not there it is made, for this user only, and removed at the end.
    pub dir: PathBuf,
    /// Where processes of the host attach; `socket` in the folder by default.
    pub attach_socket: Option<PathBuf>,
    /// Where any VM's device connects; `ivshmem` in the folder by default. A VM that connects there gets the first free place
    /// and a name that no VM has had. Each VM
    /// also has sockets of its own, at this path and the next with `-NAME` appended, and has its own name there.
    pub ivshmem_socket: Option<PathBuf>,
    /// Where the port for wake-ups of any VM connects; `wake` in the folder by default.
    pub wake_socket: Option<PathBuf>,
    /// What the links to the files of an isolated region are called, with `-NUMBER.WHAT` appended; `section` in the folder by default.
    pub section_links: Option<PathBuf>,
    /// What is asked of the region; its size is for the expected processes by default.
    pub region: RegionOptions,
    /// Per-user quota of named objects, in bytes; unlimited by default; root is exempt.
    pub shared_quota: Option<u64>,
    /// Who may make named objects; all by default.
    pub makers: Makers,
    /// Whether named objects end that were made in a VM which is gone, once no process has them open; they stay by default.
    pub remove_orphans: bool,
    /// Endpoint slots of each peer, at least; [`ENDPOINTS`] by default. The expected processes may need more.
    pub endpoints: u32,
    /// Name of the host, as members see it.
    pub host_name: String,
    /// Processes expected on the host; they decide how much of the region it gets.
    pub host_ranks: u32,
    /// The VMs that may join, in order.
    pub vms: Vec<Vm>,
    /// Users that may attach and connect VMs.
    pub allowed: Allowed,
    /// Mode of the sockets.
    pub mode: u32,
    /// Group of the sockets, if not this process's own.
    pub group: Option<u32>,
    /// Bytes of a process's area at attach.
    pub area_bytes: u64,
    /// Doorbell vectors of each VM's device.
    pub vectors: u16,
}

/// A VM that may join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vm {
    /// Its host name, no other member's.
    pub name: String,
    /// Processes expected there; they decide how much of the region it gets.
    pub ranks: u32,
}

impl Config {
    /// A service of this user alone, with its sockets in `dir`, for a region of `region_bytes` and no VMs.
    pub fn new(dir: impl Into<PathBuf>, region_bytes: u64) -> Self {
        Self::of(dir, RegionOptions { bytes: Some(region_bytes), ..RegionOptions::default() })
    }

    /// The same for a region of which something is asked.
    pub fn of(dir: impl Into<PathBuf>, region: RegionOptions) -> Self {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        // As the region has it, and as others say it.
        let name = cut(&name, NAME_BYTES).to_owned();
        Self {
            dir: dir.into(),
            attach_socket: None,
            ivshmem_socket: None,
            wake_socket: None,
            section_links: None,
            region,
            shared_quota: None,
            makers: Makers::default(),
            remove_orphans: false,
            endpoints: ENDPOINTS,
            host_name: name,
            host_ranks: 1,
            vms: Vec::new(),
            allowed: Allowed::Users(vec![rustix::process::getuid().as_raw()]),
            mode: OWNER_ONLY,
            group: None,
            area_bytes: server::AREA_BYTES,
            vectors: VECTORS,
        }
    }
}

/// Endpoint slots of each peer: enough for the one with the most processes.
fn endpoints_for(config: &Config) -> u32 {
    if config.region.separate_sections {
        return ENDPOINTS;
    }
    let most = config.vms.iter().map(|vm| vm.ranks).chain([config.host_ranks]).max().unwrap_or(1);
    let slots = most.saturating_mul(ENDPOINTS_PER_PROCESS).max(ENDPOINTS);
    slots.checked_next_power_of_two().unwrap_or(MAX_ENDPOINTS).min(MAX_ENDPOINTS)
}

/// Bytes of the shared section of a region by default.
pub fn default_shared_bytes(region_bytes: u64) -> u64 {
    region_bytes / 8
}

/// Places for named objects: enough for many small ones, and only a small part of a small region.
fn objects_for(shared_bytes: u64) -> u32 {
    match shared_bytes {
        0 => 0,
        bytes => u32::try_from(bytes / (16 << 10)).unwrap_or(u32::MAX).clamp(16, 4096),
    }
}

/// What happens at the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A process of the host attached, is gone, or was turned away.
    Process(server::Event),
    /// A VM's QEMU has connected.
    VmConnected {
        /// Its name.
        name: String,
        /// Its number in the membership table.
        member: u32,
    },
    /// The agent in a VM has written its directory; processes can attach there.
    VmReady {
        /// The VM.
        name: String,
    },
    /// The agent in a VM begins a new life.
    VmAgain {
        /// The VM.
        name: String,
    },
    /// A VM's QEMU is gone; its death is published already.
    VmGone {
        /// The VM.
        name: String,
        /// Its number in the membership table.
        member: u32,
    },
    /// A VM was turned away.
    VmRefused {
        /// Why.
        reason: String,
    },
    /// Something failed in the service.
    Trouble {
        /// What.
        reason: String,
    },
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Process(event) => write!(f, "{event}"),
            Self::VmConnected { name, member } => write!(f, "VM '{name}' is connected: member {member}"),
            Self::VmReady { name } => write!(f, "VM '{name}' is ready: processes can attach there"),
            Self::VmAgain { name } => {
                write!(f, "VM '{name}' begins a new life: its service was started anew")
            }
            Self::VmGone { name, .. } => write!(f, "VM '{name}' is gone"),
            Self::VmRefused { reason } => write!(f, "a VM was turned away: {reason}"),
            Self::Trouble { reason } => f.write_str(reason),
        }
    }
}

/// Called with each event, on a thread of the service; it must neither block nor call the service.
pub type Observer = Arc<dyn Fn(&Event) + Send + Sync>;

/// A running service. Dropping it ends it and removes its sockets; members go on exchanging messages.
#[derive(Debug)]
pub struct Service {
    // Ended in this order: first no new members, then no new processes, then the region says that the service has
    // ended, and then the wake ports close, by which agents learn of it.
    ivshmem: Option<ivshmem::Server>,
    /// One for each peer that is processes of the host, the first last.
    attach: Vec<server::Server>,
    wakes: Option<Wakes>,
    members: Arc<Mutex<Members>>,
    attach_socket: PathBuf,
    ivshmem_socket: PathBuf,
    wake_socket: PathBuf,
    /// The VMs that have sockets of their own.
    vms: Vec<String>,
    files: Arc<Memfds>,
    total_bytes: u64,
    vectors: u16,
    is_isolated: bool,
    /// Of a region whose files QEMU opens.
    links: Option<Links>,
    /// Dropped last.
    _made: Option<MadeFolder>,
}

/// A folder that this service has made and removes at its end.
#[derive(Debug)]
struct MadeFolder(PathBuf);

impl Drop for MadeFolder {
    fn drop(&mut self) {
        // Fails, as it should, if others have put something there.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Mode of sockets that nobody else may use.
const OWNER_ONLY: u32 = 0o600;
/// Most bytes of the name of a host or VM.
const NAME_BYTES: usize = 63;

/// Links by which QEMU opens the files of an isolated region, or that of a memory device. They are removed at the end.
#[derive(Debug)]
struct Links(Vec<(File, PathBuf)>);

impl Links {
    /// For files with these contents.
    fn make(common: &Path, files: &Memfds, contents: &[What], lengths: &[u64]) -> Result<Self> {
        let mut made = Self(Vec::new());
        for ((number, file), (what, bytes)) in (0..).zip(files.all()).zip(contents.iter().zip(lengths)) {
            let path = File::link(common, number, what);
            std::os::unix::fs::symlink(Self::target(file), &path)
                .map_err(|source| Error::Folder { path: path.clone(), source })?;
            made.0.push((File { number, what: what.clone(), path, bytes: *bytes }, Self::target(file)));
        }
        Ok(made)
    }

    /// Removes what is there.
    fn clear(common: &Path) {
        for (_, _, path) in File::links(common) {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Where a file can be opened, as long as this process lives.
    fn target(file: &OwnedFd) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into()
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        for (file, target) in &self.0 {
            // Another service may have made its own there since.
            if std::fs::read_link(&file.path).is_ok_and(|found| found == *target) {
                let _ = std::fs::remove_file(&file.path);
            }
        }
    }
}

impl Service {
    /// Makes a region and serves it; when this returns, all sockets take connections.
    ///
    /// # Errors
    /// [`Error::Region`] when the memory cannot be had, [`Error::TooSmall`], [`Error::BadName`], [`Error::Folder`],
    /// [`Error::MissingFolder`], [`Error::Attach`] for a socket that cannot be made.
    pub fn start(config: Config, observer: Observer) -> Result<Self> {
        check_names(&config)?;
        check_isolated(&config)?;
        check_dax(&config)?;
        if let Some(name) =
            config.makers.vms.iter().find(|name| config.vms.iter().all(|vm| vm.name != **name))
        {
            return Err(Error::NoVm { name: name.clone() });
        }
        let own = own_peers(&config)?;
        let ranks = config.vms.iter().fold(config.host_ranks, |sum, vm| sum.saturating_add(vm.ranks));
        let region_bytes = config.region.bytes_for(ranks);
        let plan = plan(&config, region_bytes, own.len())?;
        check_folder(&config.dir)?;
        let shared = (plan.shape.shared_bytes > 0).then_some(plan.shape.shared_file);
        // Opened by QEMU, which has no descriptor of it.
        let opened = shared.filter(|_| config.region.isolated);
        let dax = config.region.source == options::Source::Dax;
        let files = match dax {
            true => Memfds::create_for_dax(region_bytes, plan.shape.uuid, config.region.huge_pages)?,
            false => Memfds::create(&plan.lengths, opened, config.region.huge_pages)?,
        };
        let map = Mapping::of(&*files)?;
        let names = own.iter().cloned().chain(config.vms.iter().map(|vm| vm.name.clone()));
        let named: Vec<_> = names.zip(plan.places.iter().copied()).collect();
        let contents = if dax { vec![What::Dax] } else { contents(&plan, &named) };
        let source = Arc::clone(&files) as Arc<dyn Source>;
        let mut members = Members::create(&map, &plan.shape, &plan.lengths[1..], source, named)?;
        let hosts = (0..).zip(&own).map(|(index, _)| members.add_host(index)).collect::<Result<Vec<_>>>()?;
        let rules = Rules {
            quota: config.shared_quota,
            quota_vm: config.region.shared_quota_vm,
            makers: config.makers.clone(),
            remove_orphans: config.remove_orphans,
        };
        let names = names::Shared::new(Registry::new(members.region().clone(), rules));
        names.with(|r| r.announce(config.vms.iter().map(|vm| vm.name.clone()).collect()));
        members.set_names(names.clone());
        let members = Arc::new(Mutex::new(members));

        // Not earlier: if starting fails after this, the folder is removed again.
        let made =
            make_folder(&config.dir, config.mode != OWNER_ONLY)?.then(|| MadeFolder(config.dir.clone()));
        let attach_socket = config.attach_socket.unwrap_or_else(|| config.dir.join("socket"));
        let ivshmem_socket = config.ivshmem_socket.unwrap_or_else(|| config.dir.join("ivshmem"));
        let wake_socket = config.wake_socket.unwrap_or_else(|| config.dir.join("wake"));
        let errands = Errands::new()?;
        let region = lock(&members).region().clone();
        let doorbells = Doorbells::new(region.clone(), config.vectors)?;
        let own_vectors = doorbells.own_vectors();
        let router = Router::new(region, names.clone(), errands.clone(), doorbells)?;
        let mut attach = Vec::new();
        // The first comes last: it hands processes on to the others.
        for ((index, name), (incarnation, writer)) in (0..plan.shape.peers).zip(own).zip(hosts).rev() {
            writer.set_vectors(own_vectors)?;
            let place = plan.places[index as usize];
            let view = View::new(&files, &plan.shape, place.file);
            let server = server::Config {
                path: match index {
                    0 => attach_socket.clone(),
                    _ => own_socket(&attach_socket, &index.to_string()),
                },
                mode: config.mode,
                group: config.group,
                allowed: config.allowed.clone(),
                source: Arc::new(view),
                uuid: plan.shape.uuid,
                peer: index,
                incarnation,
                host_name: name,
                area_bytes: config.area_bytes,
                relay: {
                    let router = router.clone();
                    server::Relay::new(move |wakeup| match wakeup {
                        Wakeup::Endpoint(slot) => router.wake(slot),
                        Wakeup::Gate { peers, place } => router.ring(peers, place),
                        Wakeup::Death => router.death(index),
                    })
                },
                names: Some(Box::new(names::Local::new(names.clone(), router.clone()))),
                door: (index == 0 && !attach.is_empty()).then(|| {
                    let others = attach.iter().rev().map(server::Server::adopter).collect();
                    Box::new(Door::new(others)) as Box<dyn server::Door>
                }),
                driver: None,
                is_urgent: false,
            };
            let processes = Arc::clone(&observer);
            attach.push(server::Server::start(
                server,
                writer,
                Box::new(move |event| processes(&Event::Process(event.clone()))),
            )?);
        }
        router.set_settlers(attach.iter().rev().map(server::Server::settler).collect());
        router.set_wakers(attach.iter().rev().map(server::Server::waker).collect());
        // Not before the attach sockets are this service's: another one may be at work there, with links of the same names.
        let common = config.section_links.unwrap_or_else(|| config.dir.join("section"));
        // Those of an isolated service that was killed here would mislead, whatever this one is.
        Links::clear(&common);
        let lengths = if dax { vec![region_bytes + HEAD_BYTES] } else { plan.lengths.clone() };
        let is_opened = config.region.isolated || dax;
        let links = is_opened.then(|| Links::make(&common, &files, &contents, &lengths));
        let links = links.transpose()?;
        let vms: Vec<String> = config.vms.into_iter().map(|vm| vm.name).collect();
        // The device of a VM that has no name says nothing of the section that it would get.
        let sockets = |common: &Path| {
            let all = sockets(common, &vms);
            let own = |(_, vm): &(PathBuf, Option<u32>)| vm.is_some() || !config.region.isolated;
            all.into_iter().filter(own).collect::<Vec<_>>()
        };
        let wakes = match vms.is_empty() {
            true => None,
            false => {
                let relay = wakes::Config {
                    sockets: sockets(&wake_socket),
                    allowed: config.allowed.clone(),
                    mode: config.mode,
                    group: config.group,
                    router: router.clone(),
                };
                Some(Wakes::start(relay, Arc::clone(&observer))?)
            }
        };
        let bells = if dax { Some(bells()?) } else { None };
        let ivshmem = ivshmem::Config {
            sockets: if vms.is_empty() { Vec::new() } else { sockets(&ivshmem_socket) },
            allowed: config.allowed,
            mode: config.mode,
            group: config.group,
            memory: {
                let of = |place: &Place| match &bells {
                    Some((file, _)) => Ok(Arc::clone(file)),
                    None => files.file(place.file).map(Arc::new),
                };
                plan.places.iter().map(of).collect::<std::result::Result<_, isthmus_region::Error>>()?
            },
            bells: bells.map(|(_, section)| section),
            head: files.head(),
            vectors: config.vectors,
            router: router.clone(),
            errands,
        };
        let ivshmem = ivshmem::Server::start(ivshmem, Arc::clone(&members), observer)?;
        Ok(Self {
            ivshmem: Some(ivshmem),
            attach,
            wakes,
            members,
            attach_socket,
            ivshmem_socket,
            wake_socket,
            vms,
            files,
            total_bytes: lengths.iter().sum(),
            is_isolated: config.region.isolated,
            vectors: config.vectors,
            links,
            _made: made,
        })
    }

    /// The device by which the VM with this name joins.
    ///
    /// # Errors
    /// [`Error::NoVm`].
    pub fn device_of(&self, name: &str) -> Result<Device> {
        let device = Device {
            socket: self.ivshmem_socket_of(name)?,
            wake: self.wake_socket_of(name)?,
            ..self.device()
        };
        match &self.links {
            None => Ok(device),
            Some(_) if !self.is_isolated => Ok(device),
            Some(Links(files)) => device
                .isolated_as(name, files.iter().map(|(file, _)| file.clone()).collect())
                .ok_or_else(|| Error::NoVm { name: name.to_owned() }),
        }
    }

    /// The device by which any VM joins, unless the region is isolated.
    pub fn device(&self) -> Device {
        let device = Device {
            socket: self.ivshmem_socket.clone(),
            wake: self.wake_socket.clone(),
            region_bytes: self.region_bytes(),
            vectors: self.vectors,
            isolated: None,
            dax: None,
        };
        let file = self.links.as_ref().and_then(|Links(files)| files.first()).filter(|_| !self.is_isolated);
        match file {
            Some((file, _)) => device.beside_dax(file.clone()),
            None => device,
        }
    }

    /// Whether each VM can write only its own section.
    pub fn is_isolated(&self) -> bool {
        self.is_isolated
    }

    /// The names of the VMs that may join, in order.
    pub fn vms(&self) -> &[String] {
        &self.vms
    }

    /// Where processes of the host attach: the value of `ISTHMUS_SOCKET` for them.
    pub fn attach_socket(&self) -> &Path {
        &self.attach_socket
    }

    /// Where any VM's device connects; it gets the first free place. Only there if VMs were announced.
    pub fn ivshmem_socket(&self) -> &Path {
        &self.ivshmem_socket
    }

    /// Where the port for wake-ups of any VM connects. Only there if VMs were announced.
    pub fn wake_socket(&self) -> &Path {
        &self.wake_socket
    }

    /// Where the device of the VM with this name connects.
    ///
    /// # Errors
    /// [`Error::NoVm`].
    pub fn ivshmem_socket_of(&self, name: &str) -> Result<PathBuf> {
        self.own(&self.ivshmem_socket, name)
    }

    /// Where the port for wake-ups of the VM with this name connects.
    ///
    /// # Errors
    /// [`Error::NoVm`].
    pub fn wake_socket_of(&self, name: &str) -> Result<PathBuf> {
        self.own(&self.wake_socket, name)
    }

    fn own(&self, common: &Path, name: &str) -> Result<PathBuf> {
        match self.vms.iter().any(|vm| vm == name) {
            true => Ok(own_socket(common, name)),
            false => Err(Error::NoVm { name: name.to_owned() }),
        }
    }

    /// The descriptor of the region's first file, to map it in this process.
    pub fn region_fd(&self) -> &OwnedFd {
        self.files.first()
    }

    /// The region's files, which this process may write.
    pub fn files(&self) -> Arc<dyn Source> {
        Arc::clone(&self.files) as Arc<dyn Source>
    }

    /// Bytes of all files.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Bytes of the region's first file.
    pub fn region_bytes(&self) -> u64 {
        self.files.bytes()
    }

    /// The region as members read it.
    pub fn region(&self) -> Region {
        self.members_lock().region().clone()
    }

    /// The membership table.
    pub fn members(&self) -> Vec<PeerInfo> {
        self.members_lock().peers()
    }

    /// Whether processes can attach in the VM with this name.
    pub fn is_ready(&self, name: &str) -> bool {
        self.members().iter().any(|p| p.is_vm && p.name == name && p.life.state == State::Active)
    }

    /// What went through the region so far, by peer.
    pub fn stats(&self) -> Stats {
        Stats::new(self.members_lock().stats())
    }

    fn members_lock(&self) -> MutexGuard<'_, Members> {
        lock(&self.members)
    }

    /// Ends the service; the same as dropping it.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.links = None;
        self.ivshmem = None;
        // The door first.
        while self.attach.pop().is_some() {}
        self.members_lock().end();
        self.wakes = None;
    }
}

fn lock(members: &Mutex<Members>) -> MutexGuard<'_, Members> {
    members.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The socket of one VM, or of one of the host's own peers, beside that which all share.
pub fn own_socket(common: &Path, name: &str) -> PathBuf {
    let mut path = common.as_os_str().to_owned();
    path.push("-");
    path.push(name);
    path.into()
}

/// All sockets for devices, or for wake ports: each with the number of its VM, and first that which all share.
fn sockets(common: &Path, vms: &[String]) -> Vec<(PathBuf, Option<u32>)> {
    let own = vms.iter().zip(1_u32..).map(|(name, number)| (own_socket(common, name), Some(number)));
    std::iter::once((common.to_owned(), None)).chain(own).collect()
}

/// What is in each file of a region.
fn contents(plan: &Plan, members: &[(String, Place)]) -> Vec<What> {
    let named = |file| members.iter().find(|(_, place)| place.file == file).map(|(name, _)| name.clone());
    let what = |file| match named(file) {
        _ if file == 0 => What::Region,
        Some(name) => What::Of(name),
        None => What::Shared,
    };
    (0..plan.shape.files).map(what).collect()
}

fn check_isolated(config: &Config) -> Result<()> {
    let vms = config.vms.len();
    match config.region.isolated {
        false => Ok(()),
        true if config.region.separate_sections => Err(Error::SeparateIsolated),
        true if vms == 0 => Err(Error::IsolatedAlone),
        true if vms > MOST_ISOLATED => Err(Error::IsolatedMany { vms, most: MOST_ISOLATED }),
        true => Ok(()),
    }
}

fn check_dax(config: &Config) -> Result<()> {
    let region = &config.region;
    match region.source {
        options::Source::Ivshmem => Ok(()),
        options::Source::Dax if region.isolated || region.separate_sections => Err(Error::DaxIsolated),
        options::Source::Dax if region.grant_bytes > 0 => Err(Error::DaxGrant),
        options::Source::Dax if config.vms.is_empty() => Err(Error::DaxAlone),
        options::Source::Dax if region.huge_pages.is_some_and(|bytes| bytes > HEAD_BYTES) => {
            Err(Error::DaxHuge)
        }
        options::Source::Dax if region.bytes.is_some_and(|bytes| bytes < LEAST_BYTES) => Err(Error::DaxSmall),
        options::Source::Dax => Ok(()),
    }
}

/// The memory of ivshmem devices that are for doorbells alone.
fn bells() -> Result<(Arc<OwnedFd>, Section)> {
    let file = isthmus_region::create::memory(BELL_BYTES)?;
    let whole = Mapping::map(file.as_fd(), BELL_BYTES)?.whole()?;
    Ok((Arc::new(file), whole))
}

/// Checks that a VM's sockets can be named for it.
///
/// # Errors
/// What is wrong, for people.
pub fn check_name(name: &str) -> std::result::Result<(), &'static str> {
    if name.is_empty() || name.len() > NAME_BYTES {
        return Err("it must have 1 to 63 bytes");
    }
    match name.contains(['/', '\0']) {
        true => Err("it must not contain a slash"),
        false => Ok(()),
    }
}

fn check_names(config: &Config) -> Result<()> {
    let mut seen = HashSet::from([config.host_name.as_str()]);
    for Vm { name, .. } in &config.vms {
        let bad = |reason| Err(Error::BadName { name: name.clone(), reason });
        if let Err(reason) = check_name(name) {
            return bad(reason);
        }
        if !seen.insert(name) {
            return bad("another member has the same");
        }
    }
    Ok(())
}

/// The names of the members that are processes of the host: one, or one for each process that is expected.
fn own_peers(config: &Config) -> Result<Vec<String>> {
    if !config.region.separate_sections {
        return Ok(vec![config.host_name.clone()]);
    }
    if !config.vms.is_empty() {
        return Err(Error::SeparateVms);
    }
    enough_descriptors(config.host_ranks)?;
    // With room for the number.
    let name = cut(&config.host_name, 56);
    Ok((0..config.host_ranks.max(1)).map(|index| format!("{name}.{index}")).collect())
}

/// Whether this process may have the descriptors that so many peers of the host, with a process each, take.
fn enough_descriptors(peers: u32) -> Result<()> {
    let needed = DESCRIPTORS.0 + DESCRIPTORS.1 * u64::from(peers);
    match getrlimit(Resource::Nofile).current {
        Some(allowed) if allowed < needed => Err(Error::FewDescriptors { peers, allowed, needed }),
        _ => Ok(()),
    }
}

/// Which files the region has, and what lies where. There is room for the processes that are expected, which need more once they talk to
/// each other.
fn plan(config: &Config, region_bytes: u64, own: usize) -> Result<Plan> {
    let weights: Vec<u64> = std::iter::once(config.host_ranks)
        .chain(config.vms.iter().map(|vm| vm.ranks))
        .map(u64::from)
        .collect();
    let has_room = |plan: &Plan| {
        let tables = directory::places(&plan.shape).heap;
        let expected = |index: usize| if config.region.separate_sections { 1 } else { weights[index] };
        plan.places.iter().enumerate().all(|(index, place)| {
            place.bytes.saturating_sub(tables) / config.area_bytes.max(1) >= expected(index)
        })
    };
    let plan = plan_of_members(config, region_bytes, own);
    let enough = || {
        (1..u64::BITS)
            .map_while(|bits| region_bytes.checked_mul(1 << bits))
            .take_while(|bytes| isthmus_region::create::check_bytes(*bytes).is_ok())
            .find(|bytes| plan_of_members(config, *bytes, own).is_ok_and(|plan| has_room(&plan)))
    };
    match plan {
        Ok(plan) if has_room(&plan) => Ok(plan),
        Ok(_) => Err(Error::FewBytes {
            bytes: region_bytes,
            processes: weights.iter().sum(),
            each: config.area_bytes,
            needed: enough().unwrap_or(u64::MAX),
        }),
        Err(Error::TooSmall { bytes, peers, needed }) => {
            // The size that the error advises has room for the processes, too.
            let needed = match enough() {
                Some(enough) if enough > needed.next_power_of_two() => enough,
                _ => needed,
            };
            Err(Error::TooSmall { bytes, peers, needed })
        }
        Err(e) => Err(e),
    }
}

fn plan_of_members(config: &Config, region_bytes: u64, own: usize) -> Result<Plan> {
    isthmus_region::create::check_bytes(region_bytes)?;
    let options = &config.region;
    let peers = u32::try_from(config.vms.len() + own).unwrap_or(u32::MAX);
    let endpoints = config.endpoints.max(endpoints_for(config));
    let align = if config.vms.is_empty() { SECTION_ALIGN } else { DEVICE_SECTION_ALIGN };
    let bare = Shape::new(region_bytes, uuid()?, peers, endpoints)?.with_section_align(align)?;
    let weights: Vec<u32> =
        std::iter::once(config.host_ranks).chain(config.vms.iter().map(|vm| vm.ranks)).collect();
    let cut = |shape| match options.separate_sections {
        true => plan::separate(shape, &vec![1; own], options.huge_pages.unwrap_or(0)),
        false if options.isolated => plan::separate(shape, &weights, options.huge_pages.unwrap_or(0)),
        false => plan::together(shape, &weights),
    };
    let with = |bytes| bare.with_shared(bytes, objects_for(bytes)).map_err(Error::from).and_then(cut);
    match options.shared_bytes {
        Some(bytes) => with(bytes),
        None if options.isolated => cut(bare),
        // By default, a region that is only just large enough for its members has no named objects.
        None => with(default_shared_bytes(region_bytes)).or_else(|_| cut(bare)),
    }
}

/// Checks that [`make_folder`] can make the folder later.
fn check_folder(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if path.is_dir() || parent.is_none_or(Path::is_dir) {
        Ok(())
    } else {
        Err(Error::MissingFolder { path: path.to_path_buf() })
    }
}

/// Makes the folder, but not its parent: a missing parent is probably a misspelt path. Other users can pass through it, but not list
/// it, where some of them are let in at its sockets (`is_passable`). Returns whether it was made.
fn make_folder(path: &Path, is_passable: bool) -> Result<bool> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {
            if is_passable {
                // By itself, since the umask may take it away.
                let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o711));
            }
            Ok(true)
        }
        Err(_) if path.is_dir() => Ok(false),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            Err(Error::MissingFolder { path: path.to_path_buf() })
        }
        Err(source) => Err(Error::Folder { path: path.to_path_buf(), source }),
    }
}

/// A random identity, from the kernel.
fn uuid() -> Result<[u64; 2]> {
    let failed =
        |source| Error::System { action: "read a random identity from /proc/sys/kernel/random", source };
    let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid")
        .map_err(|e| failed(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let half =
        |range| digits.get(range).and_then(|d| u64::from_str_radix(d, 16).ok()).ok_or(failed(Errno::INVAL));
    Ok([half(0..16)?, half(16..32)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_has_room_for_all_expected_processes() {
        let mut config = Config::new("/nowhere", 1 << 20);
        config.host_ranks = 64;
        let Err(Error::FewBytes { processes: 64, needed, .. }) = plan(&config, 1 << 20, 1) else {
            panic!("64 processes in 1 MiB");
        };
        assert!(needed > 64 * config.area_bytes && plan(&config, needed, 1).is_ok(), "{needed}");
        assert!(plan(&config, needed / 2, 1).is_err());
        config.host_ranks = 1;
        assert!(plan(&config, 1 << 20, 1).is_ok());
        config.vms = vec![Vm { name: "a".into(), ranks: 1 }, Vm { name: "b".into(), ranks: 200 }];
        // The members' own tables fit.
        let told = plan(&config, 32 << 20, 1).map(|plan| plan.places).unwrap_err();
        let needed = 64 << 20;
        assert!(matches!(told, Error::FewBytes { processes: 202, needed: n, .. } if n == needed), "{told}");
        assert!(plan(&config, needed, 1).is_ok());
    }

    #[test]
    fn there_are_endpoint_slots_for_all_expected_processes() {
        let mut config = Config::new("/nowhere", 64 << 20);
        assert_eq!(endpoints_for(&config), ENDPOINTS);
        config.vms = vec![Vm { name: "a".into(), ranks: 100 }, Vm { name: "b".into(), ranks: 2 }];
        assert_eq!(endpoints_for(&config), 1024);
        config.host_ranks = 256;
        assert_eq!(endpoints_for(&config), 2048);
        config.host_ranks = u32::MAX;
        assert_eq!(endpoints_for(&config), MAX_ENDPOINTS);
    }
}
