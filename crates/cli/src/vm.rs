//! `isthmus vm`.

use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use isthmus_attach::client;
use isthmus_host::device::{self, Device, File};
use isthmus_host::{foreground, service};
use isthmus_region::error::with_causes;

use crate::{report, size};

/// How long a service may take to say how large its region is.
const PATIENCE: Duration = Duration::from_secs(2);

/// What VMs of your own need
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Device(DeviceArgs),
}

/// Print the device by which a VM joins the region of `isthmus host`
///
/// As options for QEMU, as XML for libvirt, and with it what else the VM needs. The service may be running or not; if it
/// is not, say with --region-size how large its region will be if that is more than 1G. Of an isolated region, and of
/// one on a memory device (isthmus host --isolated, --source dax), the service must be running, and this command must run as its user,
/// or as root; else the device of the default mode is printed. Each VM of an isolated region has devices of its own: --name says which.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
struct DeviceArgs {
    /// Where processes attach to the service; by default that of the service that they would find, and where there is none, of
    /// the one that `isthmus host` would be: ISTHMUS_SOCKET, /run/isthmus/socket, $XDG_RUNTIME_DIR/isthmus/socket
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The VM's name, one of those that the service is started with: the device of that VM alone, which has its name
    /// whenever it connects. Without a name the device is for any VM, which gets the first free place and a name that no VM has had
    #[arg(long, value_name = "NAME", value_parser = name)]
    name: Option<String>,
    /// Size of the region; by default that of the service which runs, else what fits 1G
    #[arg(long, value_name = "SIZE", value_parser = size::parse_region)]
    region_size: Option<u64>,
    /// Print one form alone, for programs: QEMU's options, libvirt's elements for `<devices>`, or its element for the end
    /// of `<domain>`
    #[arg(long, value_enum)]
    format: Option<Format>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Qemu,
    LibvirtDevices,
    LibvirtOverride,
}

fn name(text: &str) -> Result<String, &'static str> {
    service::check_name(text).map(|()| text.to_owned())
}

impl Args {
    pub(crate) fn run(self) -> i32 {
        match self.what {
            What::Device(args) => report::status(args.print()),
        }
    }
}

impl DeviceArgs {
    fn print(self) -> isthmus_host::Result<()> {
        // The service that a process would find, or else the place where one would be started.
        let found = self.socket.or_else(|| isthmus_attach::find_socket().ok());
        let attach = foreground::attach_socket(found.as_deref())?;
        // Without a service, or its answer, the VM's definition can be written all the same.
        let asked = client::observe_at(&attach, PATIENCE);
        let told = asked.as_ref().ok().map(|view| view.said.region_bytes);
        let region_bytes = self.region_size.or(told).unwrap_or(0);
        let own = |common: PathBuf| match &self.name {
            Some(name) => service::own_socket(&common, name),
            None => common,
        };
        let device = Device {
            socket: own(foreground::ivshmem_socket(&attach)),
            wake: own(foreground::wake_socket(&attach)),
            region_bytes: region_bytes.next_power_of_two(),
            vectors: service::VECTORS,
            isolated: None,
            dax: None,
        };
        if let Some(name) = &self.name {
            match &asked {
                Ok(_) if !device.socket.exists() => {
                    return Err(isthmus_host::Error::NoVm { name: name.clone() });
                }
                Ok(_) => (),
                Err(why) => {
                    let socket = attach.display();
                    let is_gone = |source: &std::io::ErrorKind| {
                        matches!(source, ErrorKind::NotFound | ErrorKind::ConnectionRefused)
                    };
                    let why = match why {
                        isthmus_attach::Error::Connect { source, .. } if is_gone(&source.kind()) => {
                            format!("no service answers at {socket}")
                        }
                        other => with_causes(other),
                    };
                    // If standard error is closed, there is no other place to say it.
                    let _ = writeln!(
                        std::io::stderr(),
                        "isthmus: {why}; these lines are for a service that runs at {socket} and has a VM '{name}'"
                    );
                }
            }
        }
        let files = File::beside(&foreground::section_links(&attach))?;
        let (memory, files): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|file| file.what == device::What::Dax);
        let device = match memory.into_iter().next() {
            Some(file) => device.beside_dax(file),
            None => device,
        };
        let device = match (&self.name, files.is_empty()) {
            (_, true) => device,
            // Of the host, too, there is a section, and no device.
            (Some(name), false) if !device.socket.exists() => {
                return Err(isthmus_host::Error::NoVm { name: name.clone() });
            }
            (Some(name), false) => device
                .isolated_as(name, files)
                .ok_or_else(|| isthmus_host::Error::NoVm { name: name.clone() })?,
            (None, false) => return Err(isthmus_host::Error::NoNameIsolated),
        };
        if matches!(self.format, Some(Format::LibvirtDevices | Format::LibvirtOverride))
            && device.isolated.is_some()
        {
            return Err(isthmus_host::Error::NoLibvirtIsolated);
        }
        if matches!(self.format, Some(Format::LibvirtDevices | Format::LibvirtOverride))
            && device.dax.is_some()
        {
            return Err(isthmus_host::Error::NoLibvirtDax);
        }
        let text = match self.format {
            None => device.text(),
            Some(Format::Qemu) => device.qemu(),
            Some(Format::LibvirtDevices) => device.libvirt_devices(),
            Some(Format::LibvirtOverride) => device.libvirt_override(),
        };
        isthmus_region::print::to_stdout(&text);
        Ok(())
    }
}
