//! What can go wrong in the host service.

use std::path::PathBuf;

/// This crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the host service cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The members do not fit into the region.
    #[error(
        "a region of {bytes} bytes is too small for its {peers} members, which need {needed} bytes; ask for one of {} MiB or more with --region-size", mib_for(*.needed)
    )]
    TooSmall {
        /// Bytes of the region.
        bytes: u64,
        /// Members: the host and the VMs.
        peers: usize,
        /// Least bytes for them.
        needed: u64,
    },
    /// The members fit into the region, and the processes that are expected there do not.
    #[error(
        "a region of {bytes} bytes is too small for {processes} processes, which begin with {each} bytes each; ask for one of {} MiB or more with --region-size", mib_for(*.needed)
    )]
    FewBytes {
        /// Bytes of the region.
        bytes: u64,
        /// Processes that are expected.
        processes: u64,
        /// Bytes that each has from the start.
        each: u64,
        /// Least bytes for them.
        needed: u64,
    },
    /// Separate sections, and VMs.
    #[error("separate sections are for processes of the host alone: drop --separate-sections, or the VMs")]
    SeparateVms,
    /// Separate sections, and an isolated region.
    #[error("--separate-sections is for processes of the host, --isolated for VMs: drop one of them")]
    SeparateIsolated,
    /// An isolated region without VMs.
    #[error("--isolated is for VMs: say how many may join (--vms)")]
    IsolatedAlone,
    /// An isolated region for more VMs than there are ports for.
    #[error(
        "an isolated region is for {most} VMs at most, since each VM has a device for every section; {vms} are too many"
    )]
    IsolatedMany {
        /// VMs that may join.
        vms: usize,
        /// Most of them.
        most: usize,
    },
    /// A memory device, and no VMs.
    #[error("--source dax is for VMs: say how many may join (--vms)")]
    DaxAlone,
    /// A memory device for a region that is too small.
    #[error("--source dax needs a larger region: 8M at least (--region-size)")]
    DaxSmall,
    /// A memory device for an isolated region.
    #[error(
        "--source dax gives each VM the whole region to write, so it does not go with --isolated or --separate-sections: drop --source dax, or that option"
    )]
    DaxIsolated,
    /// A memory device, and pages that are granted.
    #[error(
        "--grant needs the region's memory to be the guest driver's, and with --source dax it is a memory device: drop the one or the other (--alloc works there)"
    )]
    DaxGrant,
    /// A memory device, and pages of 1 GiB.
    #[error(
        "--source dax does not go with --huge-pages 1G, since the file has 2 MiB in front of the region: take 2M"
    )]
    DaxHuge,
    /// A file of an isolated region, or of a memory device, cannot be looked at.
    #[error("cannot look at {}, a file of the region that QEMU opens: run this as the service's user, or as root; if the service has ended, start it again", path.display())]
    Link {
        /// Its link.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// A device of an isolated region for no VM in particular.
    #[error("the region is isolated, so each VM has devices of its own: say which VM with --name")]
    NoNameIsolated,
    /// libvirt's elements for a memory device.
    #[error(
        "libvirt has no element for this memory device, whose file another process has: put what --format qemu prints into <qemu:commandline>, with -machine nvdimm=on, and give the domain <maxMemory slots='1'> and a NUMA cell (not tried)"
    )]
    NoLibvirtDax,
    /// libvirt's elements for an isolated region.
    #[error(
        "libvirt has no element for memory that a VM cannot write: use --format qemu in its <qemu:commandline>"
    )]
    NoLibvirtIsolated,
    /// Separate sections take more descriptors than there may be.
    #[error(
        "separate sections of {peers} processes take some {needed} descriptors, and this process may have {allowed}: raise the limit (ulimit -n {needed})"
    )]
    FewDescriptors {
        /// Processes that are expected.
        peers: u32,
        /// Descriptors that there may be.
        allowed: u64,
        /// How many are needed.
        needed: u64,
    },
    /// Two VMs have the same name, or a name cannot be used.
    #[error("'{name}' cannot be a VM's name: {reason}")]
    BadName {
        /// The name.
        name: String,
        /// Why.
        reason: &'static str,
    },
    /// No such VM was announced.
    #[error("the service has no VM named '{name}'; isthmus host --vms N has vm1 to vmN")]
    NoVm {
        /// The name.
        name: String,
    },
    /// There is no free place for a VM.
    #[error("{reason}")]
    NoPlace {
        /// Why: its place is taken, all are, or its memory is still in use.
        reason: String,
    },
    /// A folder for sockets cannot be made.
    #[error("cannot create the folder {}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// Neither the folder for the socket nor its parent is there.
    #[error("no folder {} for the service's socket: make it, or name another with --socket", path.display())]
    MissingFolder {
        /// The folder.
        path: PathBuf,
    },
    /// There is no default place for the socket.
    #[error(
        "no place for the service's socket: neither ISTHMUS_SOCKET nor XDG_RUNTIME_DIR is set; name one with --socket"
    )]
    NoFolder,
    /// Signals cannot be received.
    #[error("cannot wait for signals")]
    Signals {
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// A system call failed unexpectedly.
    #[error("cannot {action}")]
    System {
        /// What was attempted.
        action: &'static str,
        /// The system's answer.
        #[source]
        source: rustix::io::Errno,
    },
    /// What should run beside the service could not be started.
    #[error(transparent)]
    Beside(Box<dyn std::error::Error + Send + Sync>),
    /// An error of the region.
    #[error(transparent)]
    Region(#[from] isthmus_region::Error),
    /// An error of the attach service.
    #[error(transparent)]
    Attach(#[from] isthmus_attach::Error),
}

impl Error {
    /// Whether it is a mistake on the service's command line.
    pub fn is_mistake(&self) -> bool {
        matches!(
            self,
            Self::TooSmall { .. }
                | Self::FewBytes { .. }
                | Self::SeparateVms
                | Self::SeparateIsolated
                | Self::IsolatedAlone
                | Self::IsolatedMany { .. }
                | Self::DaxAlone
                | Self::DaxSmall
                | Self::DaxIsolated
                | Self::DaxGrant
                | Self::DaxHuge
                | Self::BadName { .. }
        )
    }
}

/// The size of the smallest region that has so many bytes, in MiB.
fn mib_for(bytes: u64) -> u64 {
    bytes.checked_next_power_of_two().unwrap_or(1 << 63).div_ceil(1 << 20)
}
