//! What a run needs of its VMs: three channels into each, news of its end, and a way to end it.

mod qemu;

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

use crate::error::Result;
use crate::service::Service;
use crate::spec::RunSpec;

pub use qemu::{MEMORY_BYTES, Qemu};

/// The first file system of a VM, in its folder of the run's directory.
pub(crate) const IMAGE: &str = "initramfs";
/// Lines of the console that tell why a VM was lost.
pub const CONSOLE_LINES: usize = 12;
/// Lines kept in addition: at least as many as a guest prints while it boots, which do not explain its end.
const BOOT_STEPS: usize = 12;

/// What the VMs are started with.
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    /// What the user asked for.
    pub spec: &'a RunSpec,
    /// The run's directory.
    pub dir: &'a Path,
    /// Host names, one per VM.
    pub names: &'a [String],
    /// Virtual CPUs of each VM.
    pub cpus: u32,
    /// Directories that the VMs may write.
    pub writable: &'a [PathBuf],
    /// The host service, where there is a region.
    pub service: Option<&'a dyn Service>,
}

/// A VM that runs.
pub struct Machine {
    /// Its host name.
    pub name: String,
    /// Its address, by which its own processes reach the relay.
    pub address: Ipv4Addr,
    /// The port for execution.
    pub exec: UnixStream,
    /// The port for relayed connections.
    pub relay: UnixStream,
    /// The port for the agent.
    pub control: UnixStream,
    /// Its process.
    pub pid: Pid,
    /// The last lines of its console, for when it is lost.
    pub console: Box<dyn Fn() -> Vec<String> + Send>,
    /// Dropped to end the VM.
    pub keep: Box<dyn Send>,
}

/// A network of the VMs that the launcher and the ranks on the host share.
#[derive(Clone, Debug)]
pub struct Network {
    /// Words to put before a program's own to run it there.
    pub prefix: Vec<OsString>,
    /// The host's address there.
    pub host: Ipv4Addr,
}

/// The VMs of a run.
pub struct Started {
    /// All of them, in order.
    pub machines: Vec<Machine>,
    /// Where the launcher shall run; without one it stays in the caller's network, and its connections are relayed.
    pub network: Option<Network>,
}

/// Starts the VMs of a run.
pub trait StartMachines {
    /// Starts all of them, side by side, and returns when their processes run; the guests may still boot.
    ///
    /// # Errors
    /// [`crate::Error::Boot`], naming the VM.
    fn start(&self, plan: &Plan<'_>) -> Result<Started>;
}
