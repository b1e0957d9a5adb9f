//! The first process of a VM that isthmus boots: from the kernel to a guest that looks like the host.
//!
//! What programs in the guest see:
//!
//! | path | what |
//! |---|---|
//! | `/` | the host's root, read-only over 9p, under an overlay whose changes vanish with the VM |
//! | the shares | directories of the host at their own paths, written through at once |
//! | `/proc`, `/sys`, `/dev`, `/dev/pts` | the guest's own |
//! | `/dev/shm`, `/run` | empty and in memory |
//! | `/tmp`, `/var` | part of the overlay: what the host has there can be read |
//! | `/etc/hosts`, `/etc/hostname` | the host's, with the names of this run's VMs |
//!
//! This needs no other program: modules, mounts and addresses are system calls, so the initramfs holds this program
//! alone. The agent's main loop gets a [`Booted`] and runs as process 1; when it returns, panics or fails, the
//! machine powers off, since a VM without its agent is useless.
//!
//! Nothing here depends on a kernel version, except that the modules named by `isthmus-vm` must exist.

mod changes;
mod devices;
mod modules;
mod mounts;
mod netlink;
pub mod reaper;

pub use changes::Change;
pub use devices::wait_for_host;

use isthmus_region::source::Ivshmem;
use isthmus_vm::boot_config::{self, BootConfig, InterfaceKind};
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long an interface may take to get its link.
const RUNNING_LIMIT: Duration = Duration::from_secs(5);

/// Whether this process is the first of a VM that isthmus booted. Then it must call `init_main` at once.
pub fn is_init() -> bool {
    let named_init = || {
        let name = std::env::args_os().next()?;
        Some(PathBuf::from(name).file_name()? == "init")
    };
    std::process::id() == 1 && named_init() == Some(true)
}

/// A guest that is ready for its agent.
pub struct Booted {
    /// The launcher's config for this VM.
    pub config: BootConfig,
    /// The device of each virtio-serial port of the config, by its name. Reads return 0 until the host has connected:
    /// see [`wait_for_host`].
    pub ports: BTreeMap<String, PathBuf>,
    /// The region's device, if the config asked for it.
    pub ivshmem: Option<Ivshmem>,
    /// The overlay's upper directory, which has no path in the new root.
    upper: OwnedFd,
}

impl Booted {
    /// The regular files that were made or changed in the guest's root and vanish with it, but not those that
    /// the boot itself wrote, sorted by path. Files in the shares are not among them: they are the host's.
    ///
    /// # Errors
    /// Only if the overlay itself cannot be read; files that vanish meanwhile are left out.
    pub fn overlay_changes(&self) -> io::Result<Vec<Change>> {
        changes::in_upper(&self.upper)
    }
}

/// What keeps a guest from booting. It is printed on the console and the machine powers off.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// A system call or file operation failed.
    #[error("cannot {what}")]
    Io {
        /// The operation and its object, to be read after "cannot".
        what: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The launcher's config is missing or not readable.
    #[error("the config {} of this VM cannot be used", boot_config::PATH)]
    Config(#[source] serde_json::Error),
    /// The region's device cannot be used.
    #[error("cannot use the device of the region")]
    Region(#[source] isthmus_region::Error),
    /// A device did not appear.
    #[error("{what} did not appear within {seconds} s")]
    NoDevice {
        /// Which one.
        what: String,
        /// How long the boot waited for it.
        seconds: u64,
    },
}

pub(crate) type Result<T> = std::result::Result<T, BootError>;

/// Wraps an error with what was attempted ("cannot WHAT").
pub(crate) fn cannot<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> BootError {
    let what = what.into();
    move |source| BootError::Io { what, source: source.into() }
}

/// Boots, runs `main` with the result, and powers off when it returns, fails or panics.
pub fn run(main: impl FnOnce(Booted)) -> ! {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let booted = boot()?;
        reaper::start();
        main(booted);
        Ok::<(), BootError>(())
    }));
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            console(&format!("isthmus: this VM cannot boot: {}", isthmus_region::error::with_causes(&error)));
        }
        // The panic's own text is on the console already.
        Err(_) => console("isthmus: the guest agent panicked; this VM ends"),
    }
    power_off()
}

/// Ends the machine; QEMU ends with status 0.
pub fn power_off() -> ! {
    rustix::fs::sync();
    let error = rustix::system::reboot(rustix::system::RebootCommand::PowerOff);
    console(&format!("isthmus: cannot power off: {error:?}"));
    // The end of process 1 panics the kernel, which ends QEMU too.
    std::process::exit(1)
}

/// Writes a line to the console, where the launcher finds it in the VM's log. Never fails.
pub fn console(text: &str) {
    // If this fails, there is no other place to report it.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Mounts memory of the VM's own over `path`, which may be in a directory that is shared with the host, so that
/// sockets can be bound there.
///
/// # Errors
/// Those of making the directory and of mount(2).
pub fn private_folder(path: &Path) -> Result<()> {
    mounts::private_folder(path)
}

/// Does all of it, in order.
fn boot() -> Result<Booted> {
    let text = fs::read(boot_config::PATH).map_err(cannot(format!("read {}", boot_config::PATH)))?;
    let config: BootConfig = serde_json::from_slice(&text).map_err(BootError::Config)?;
    step("the kernel");
    modules::load(config.wants_network(), config.dax)?;
    modules::load_driver();
    step("modules");
    let upper = mounts::root(&config)?;
    step("the root file system");
    rustix::system::sethostname(config.name.as_bytes()).map_err(cannot("set the host name"))?;
    let interfaces = network(&config)?;
    step("the network");
    let ports = devices::ports(&config.ports)?;
    if let Some(wire) = ports.get(crate::wire::WIRE_PORT) {
        // For the job's processes, of whichever user.
        std::fs::set_permissions(wire, std::os::unix::fs::PermissionsExt::from_mode(0o666))
            .map_err(cannot(format!("let the job use {}", wire.display())))?;
    }
    let ivshmem = if config.ivshmem { Some(devices::ivshmem()?) } else { None };
    step("devices");
    processors()?;
    step("processors");
    interfaces.iter().for_each(|name| wait_until_running(name));
    step("the network runs");
    Ok(Booted { config, ports, ivshmem, upper })
}

/// Brings up the processors that the kernel was told to leave offline: see `isthmus-vm`'s kernel arguments.
fn processors() -> Result<()> {
    for number in 1.. {
        let online = format!("/sys/devices/system/cpu/cpu{number}/online");
        match fs::read_to_string(&online) {
            Ok(text) if text.trim() == "0" => {
                fs::write(&online, "1").map_err(cannot(format!("bring up processor {number}")))?;
            }
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => break,
            Err(e) => return Err(cannot(format!("read {online}"))(e)),
        }
    }
    Ok(())
}

/// Sets the network up. Returns the names of the interfaces that have a link.
fn network(config: &BootConfig) -> Result<Vec<String>> {
    let mut netlink = netlink::Netlink::open()?;
    netlink.up("lo")?;
    let mut linked = Vec::new();
    for interface in &config.interfaces {
        let name = match &interface.kind {
            InterfaceKind::Dummy => "dummy0".to_owned(),
            InterfaceKind::VirtioNet { mac } => devices::network_interface(mac)?,
        };
        netlink.address(&name, interface.address, interface.prefix)?;
        netlink.up(&name)?;
        if matches!(interface.kind, InterfaceKind::VirtioNet { .. }) {
            linked.push(name);
        }
    }
    Ok(linked)
}

/// Waits until the kernel calls an interface running, which is up to a second after the interface is up. Until then,
/// libraries that enumerate interfaces, as libfabric and UCX do when a rank starts, skip it.
fn wait_until_running(name: &str) {
    let state = format!("/sys/class/net/{name}/operstate");
    let end = Instant::now() + RUNNING_LIMIT;
    while Instant::now() < end {
        match fs::read_to_string(&state) {
            Ok(text) if matches!(text.trim(), "down" | "dormant" | "lowerlayerdown") => {
                std::thread::sleep(Duration::from_millis(10));
            }
            _ => return,
        }
    }
    console(&format!("isthmus: {name} has no link after {} s", RUNNING_LIMIT.as_secs()));
}

/// Writes to the console what is done, and when, so that a boot that hangs shows where.
pub fn step(what: &str) {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let hundredths = now.tv_nsec / 10_000_000;
    console(&format!("{}{what} at {}.{hundredths:02} s", boot_config::STEP, now.tv_sec));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_process_is_not_init() {
        assert!(!is_init());
    }

    #[test]
    fn errors_name_what_was_attempted() {
        let error: BootError = cannot("mount it")(io::Error::from_raw_os_error(13));
        assert_eq!(error.to_string(), "cannot mount it");
    }
}
