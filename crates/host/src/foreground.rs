//! The service as a program of its own, for VMs and launchers that people already have: `isthmus host`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use isthmus_attach::server::Allowed;
use isthmus_attach::socket;
use isthmus_region::create::default_bytes;

use crate::error::{Error, Result};
use crate::service::{Config, Event, Service, VECTORS, Vm};

/// QEMU's window for a device's memory has at least this size, so that every region fits some.
const LEAST_WINDOW: u64 = 1 << 30;

/// What `isthmus host` is told.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Where processes of the host attach; by default where they look: for root `/run/isthmus/socket`, else
    /// `$XDG_RUNTIME_DIR/isthmus/socket`. VMs connect at the same path with `.ivshmem` appended.
    pub socket: Option<PathBuf>,
    /// How many VMs may join.
    pub vms: u32,
    /// Their names, in the order in which they connect; `vm1`, `vm2` and so on where there are fewer names than VMs.
    pub names: Vec<String>,
    /// Processes expected in all; they decide the region's size if it is not given.
    pub ranks: Option<u32>,
    /// Bytes of the region.
    pub region_bytes: Option<u64>,
    /// Users that may attach and connect VMs, besides this one and root.
    pub users: Vec<u32>,
}

impl Options {
    /// The service that these options ask for.
    ///
    /// # Errors
    /// [`Error::NoFolder`] when there is no default place for the socket.
    pub fn config(&self) -> Result<Config> {
        let root = rustix::process::getuid().is_root();
        let default = || if root { Some(socket::SYSTEM_SOCKET.into()) } else { socket::user_socket() };
        let attach = self.socket.clone().or_else(default).ok_or(Error::NoFolder)?;
        let attach =
            std::path::absolute(&attach).map_err(|source| Error::Folder { path: attach.clone(), source })?;
        let dir = attach.parent().unwrap_or(Path::new("/")).to_path_buf();
        let members = self.vms + 1;
        let ranks = self.ranks.unwrap_or(4 * members);
        let each = ranks.div_ceil(members).max(1);
        let mut config = Config::new(dir, self.region_bytes.unwrap_or_else(|| default_bytes(ranks)));
        let mut ivshmem = attach.clone().into_os_string();
        ivshmem.push(".ivshmem");
        config.attach_socket = Some(attach);
        config.ivshmem_socket = Some(ivshmem.into());
        config.socket_per_vm = false;
        config.host_ranks = each;
        let name = |i: u32| {
            let given = usize::try_from(i).ok().and_then(|i| self.names.get(i)).cloned();
            given.unwrap_or_else(|| format!("vm{}", i + 1))
        };
        config.vms = (0..self.vms).map(|i| Vm { name: name(i), ranks: each }).collect();
        if !self.users.is_empty() {
            // Users are told apart by their ids when they connect; the file must let them come so far.
            config.mode = 0o666;
            let own = rustix::process::getuid().as_raw();
            config.allowed = Allowed::Users(self.users.iter().copied().chain([own]).collect());
        }
        Ok(config)
    }
}

/// Serves until the process is told to end by INT, TERM or HUP, and removes the sockets then. Standard output gets
/// what to do with the service, standard error one line for each thing that happens.
///
/// # Errors
/// Any of [`Service::start`].
pub fn run(options: &Options) -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|source| Error::Signals { source })?;
    let config = options.config()?;
    let service = Service::start(config, Arc::new(|event: &Event| eprintln!("isthmus: {event}")))?;
    print!("{}", instructions(&service, options.vms));
    // Whoever reads the instructions through a pipe gets them now.
    let _ = std::io::Write::flush(&mut std::io::stdout());
    let _: Option<i32> = signals.forever().next();
    service.stop();
    Ok(())
}

/// How processes and VMs reach the service.
pub fn instructions(service: &Service, vms: u32) -> String {
    let mut text = String::new();
    let attach = service.attach_socket().display();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "Processes of this host attach with:\n\n  export ISTHMUS_SOCKET={attach}\n");
    if vms > 0 {
        let path = service.ivshmem_socket().display();
        let window = service.region_bytes().max(LEAST_WINDOW);
        let _ = writeln!(
            text,
            "Each of {vms} VMs (machine type q35) gets, on QEMU's command line:\n\n  \
             -chardev socket,id=isthmus,path={path} \\\n  \
             -device pcie-root-port,id=isthmus-port,chassis=77,pref64-reserve={window} \\\n  \
             -device ivshmem-doorbell,chardev=isthmus,vectors={VECTORS},bus=isthmus-port\n\n\
             or, in libvirt's XML, among its devices:\n\n  \
             <shmem name='isthmus' role='peer'>\n    \
             <model type='ivshmem-doorbell'/>\n    \
             <server path='{path}'/>\n    \
             <msi vectors='{VECTORS}'/>\n  \
             </shmem>\n\n\
             and runs, as root, inside the VM:  isthmus guest"
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
        assert_eq!(config.region_bytes, 128 << 20);
        assert!(config.allowed.lets_in(64055) && !config.allowed.lets_in(64056));
    }
}
