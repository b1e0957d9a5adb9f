//! The service as a program of its own, for VMs and launchers that people already have: `isthmus host`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use isthmus_attach::server::Allowed;
use isthmus_attach::{daemon, notify, socket};

use crate::error::{Error, Result};
use crate::names::Makers;
use crate::options::RegionOptions;
use crate::service::{Config, Event, Service, Vm};

/// What was started beside a service, or why it cannot be.
pub type BesideResult<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The options of `isthmus host`.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Where processes of the host attach; by default [`socket::own_socket`], which they find by themselves. VMs
    /// connect at the same path with `.ivshmem` and `.wake` appended, or with `-NAME` after these at sockets of their own.
    pub socket: Option<PathBuf>,
    /// How many VMs may join.
    pub vms: u32,
    /// Their names, in the order in which they connect at the sockets that all share; `vm1`, `vm2` and so on where there are fewer names than VMs.
    pub names: Vec<String>,
    /// Processes expected in all; where the region has no size they decide the region's size.
    pub ranks: Option<u32>,
    /// What is asked of the region.
    pub region: RegionOptions,
    /// Per-user quota of named objects, in bytes; unlimited by default.
    pub shared_quota: Option<u64>,
    /// Who may make named objects; all by default.
    pub makers: Makers,
    /// Whether named objects end that were made in a VM which is gone, once no process has them open.
    pub remove_orphans: bool,
    /// Users that may attach and connect VMs, besides this one and root.
    pub users: Vec<u32>,
    /// A group whose members may attach and connect VMs. The sockets belong to it, and no other check is made.
    pub group: Option<u32>,
}

impl Options {
    /// The service that these options ask for.
    ///
    /// # Errors
    /// [`Error::NoFolder`] when there is no default place for the socket.
    pub fn config(&self) -> Result<Config> {
        let attach = attach_socket(self.socket.as_deref())?;
        let dir = attach.parent().unwrap_or(Path::new("/")).to_path_buf();
        let members = self.vms + 1;
        let ranks = self.ranks.unwrap_or(4 * members);
        let each = ranks.div_ceil(members).max(1);
        let mut config = Config::of(dir, self.region.sized(ranks, self.vms));
        config.shared_quota = self.shared_quota;
        config.makers = self.makers.clone();
        config.remove_orphans = self.remove_orphans;
        config.ivshmem_socket = Some(ivshmem_socket(&attach));
        config.wake_socket = Some(wake_socket(&attach));
        config.section_links = Some(section_links(&attach));
        config.attach_socket = Some(attach);
        config.host_ranks = each;
        let name = |i: u32| {
            let given = usize::try_from(i).ok().and_then(|i| self.names.get(i)).cloned();
            given.unwrap_or_else(|| format!("vm{}", i + 1))
        };
        config.vms = (0..self.vms).map(|i| Vm { name: name(i), ranks: each }).collect();
        if self.group.is_some() {
            // The kernel checks the group at every connection; no other check is needed.
            config.group = self.group;
            config.mode = 0o660;
            config.allowed = Allowed::Everybody;
        } else if !self.users.is_empty() {
            // Users are checked by their ids once they have connected, so the socket's mode must let them connect.
            config.mode = 0o666;
            let own = rustix::process::getuid().as_raw();
            config.allowed = Allowed::Users(self.users.iter().copied().chain([own]).collect());
        }
        Ok(config)
    }
}

/// Where processes of the host attach: at `chosen`, or at [`socket::own_socket`].
///
/// # Errors
/// [`Error::NoFolder`] when there is no default place for the socket.
pub fn attach_socket(chosen: Option<&Path>) -> Result<PathBuf> {
    let path = chosen.map(Path::to_owned).or_else(socket::own_socket).ok_or(Error::NoFolder)?;
    std::path::absolute(&path).map_err(|source| Error::Folder { path: path.clone(), source })
}

/// Where VMs connect to the service that has this `attach` socket.
pub fn ivshmem_socket(attach: &Path) -> PathBuf {
    let mut path = attach.as_os_str().to_owned();
    path.push(".ivshmem");
    path.into()
}

/// Where the wake-up ports of VMs connect to that service.
pub fn wake_socket(attach: &Path) -> PathBuf {
    let mut path = attach.as_os_str().to_owned();
    path.push(".wake");
    path.into()
}

/// What the links to the files of that service's region begin with, if it is isolated.
pub fn section_links(attach: &Path) -> PathBuf {
    let mut path = attach.as_os_str().to_owned();
    path.push(".section");
    path.into()
}

/// Serves until the process gets INT, TERM or HUP, and then removes the sockets. Prints instructions to standard
/// output and a line for each event to standard error. Tells systemd when the sockets take connections, and when the
/// service ends. `beside` starts what is to live as long as the service.
///
/// # Errors
/// Any of [`Service::start`]; [`Error::Beside`].
pub fn run<T>(options: &Options, beside: impl FnOnce(&Service) -> BesideResult<T>) -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new(daemon::not_ignored(&[SIGINT, SIGTERM, SIGHUP]))
        .map_err(|source| Error::Signals { source })?;
    let config = options.config()?;
    daemon::allow_many_descriptors();
    // On a thread of its own: the service must not block because standard error is not read.
    let lines = isthmus_region::print::Aside::start().map_err(|e| Error::System {
        action: "start a thread",
        source: rustix::io::Errno::from_io_error(&e).unwrap_or(rustix::io::Errno::IO),
    })?;
    let service =
        Service::start(config, Arc::new(move |event: &Event| lines.tell(&format!("isthmus: {event}"))))?;
    let beside = beside(&service).map_err(Error::Beside)?;
    // Flushed now for a reader at a pipe; a reader that is gone is no reason to end.
    let mut out = std::io::stdout();
    let _ = out.write_all(instructions(&service).as_bytes()).and_then(|()| out.flush());
    let mib = service.total_bytes() >> 20;
    notify::ready(&format!(
        "a region of {mib} MiB for this host and {} VMs, at {}",
        options.vms,
        service.attach_socket().display()
    ));
    let _: Option<i32> = signals.forever().next();
    notify::stopping();
    drop(beside);
    service.stop();
    Ok(())
}

/// How processes and VMs reach the service.
pub fn instructions(service: &Service) -> String {
    let mut text = String::new();
    let attach = service.attach_socket().display();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "Processes of this host attach with:\n\n  export ISTHMUS_SOCKET={attach}\n");
    if let [first, others @ ..] = service.vms()
        && let Ok(device) = service.device_of(first)
    {
        let _ = if others.is_empty() {
            writeln!(text, "The VM '{first}' gets this device.")
        } else if service.is_isolated() {
            let others = others.join(", ");
            writeln!(
                text,
                "The VM '{first}' gets these devices; those of the others, `isthmus vm device --name NAME` prints: {others}."
            )
        } else {
            let others = others.join(", ");
            writeln!(
                text,
                "Each VM gets this device, with its own name in place of {first} in the paths of both sockets: {others}."
            )
        };
        if service.is_isolated() {
            let _ = writeln!(text, "\n{}", device.text());
            return text;
        }
        let common = service.device();
        let _ = writeln!(
            text,
            "A VM at {} and {} instead is a new one for each QEMU: it gets the first free place, and a name\nthat no VM has had; one QEMU must connect to both.\n\n{}",
            common.socket.display(),
            common.wake.display(),
            device.text()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_name_sockets_and_members() {
        let options = Options {
            socket: Some("/x/s".into()),
            vms: 3,
            names: vec!["red".into()],
            ranks: Some(4),
            users: vec![64055],
            ..Options::default()
        };
        let config = options.config().unwrap();
        assert_eq!(config.ivshmem_socket.unwrap(), Path::new("/x/s.ivshmem"));
        let names: Vec<&str> = config.vms.iter().map(|vm| vm.name.as_str()).collect();
        assert_eq!(names, ["red", "vm2", "vm3"]);
        assert_eq!(config.region.bytes, Some(128 << 20));
        assert!(config.allowed.lets_in(64055) && !config.allowed.lets_in(64056));
        let config = Options { group: Some(7), ..options }.config().unwrap();
        assert_eq!((config.mode, config.group), (0o660, Some(7)));
    }
}
