//! `isthmus run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ValueEnum;
use isthmus_host::RegionOptions;
use isthmus_run::{Accelerator, DriverChoice, Launcher, Map, Net, RunSpec, VmOptions, front};

use crate::region_args::RegionArgs;
use crate::size;

/// Boot VMs and run a job across them, of an MPI or of other programs
///
/// The VMs see this machine's files, and the working directory writable; the job runs as you. Everything ends
/// with the job: nothing is installed, and nothing stays behind but a cache in ~/.cache/isthmus.
///
/// Examples:
///
///     isthmus run --vms 2 -n 4 -- ./prog args              the short form
///     isthmus run --vms 2 -n 2 -- python3 script.py        scripts too
///     isthmus run --vms 2 -- mpirun -n 4 ./a : -n 2 ./b    a launcher's line
///     isthmus run --vms 1 --host-ranks 1 -n 2 -- ./prog    a rank on the host
///     isthmus run --vms 0 -n 4 -- ./prog                   plain processes
///     isthmus run --sysv --launcher none --vms 2 -- ./prog System V, no MPI
///
/// A launcher's line is taken as it is.
///
/// Exit status: the launcher's own; 2 a mistake on the command line, 124 timed out, 125 isthmus itself failed,
/// 126 a VM was lost, 128+N signal N came before the launcher began (130 for Ctrl-C); with --launcher none also 126
/// the program cannot be run, 127 it was not found. Advisory file locks do not reach from one VM to another.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Number of VMs; 0 runs the job as plain processes on this host
    #[arg(long, value_name = "N", default_value_t = 0)]
    vms: u32,
    /// Number of ranks; left out with a full launcher line, or with --launcher none for one in each VM
    #[arg(short = 'n', long = "np", value_name = "N")]
    ranks: Option<u32>,
    /// Ranks per VM; by default they are spread evenly
    #[arg(long, value_name = "N")]
    ppn: Option<u32>,
    /// Put the first K ranks on the host itself, in the same job and region
    #[arg(long, value_name = "K", default_value_t = 0)]
    host_ranks: u32,
    /// How ranks are dealt out: fill each VM in turn, or one rank to each VM in turn
    #[arg(long, value_enum, default_value_t = MapArg::Block)]
    map: MapArg,
    /// What starts the processes: an MPI's launcher; or with `none`, for programs without an MPI, isthmus itself: one in each
    /// VM, or -n N of them as ranks are. Each finds its number in ISTHMUS_RANK and how many there are in ISTHMUS_SIZE
    #[arg(long, value_enum, default_value_t = LauncherArg::Auto)]
    launcher: LauncherArg,
    /// Have the processes' System V IPC (shared memory, semaphores, message queues) go through the region, and so reach across
    /// VMs: preloads libisthmus-sysv.so. Implies --shared 256M (with --isolated, which has none by itself, give it). For a program without an MPI, also --launcher none
    #[arg(long)]
    sysv: bool,
    /// Put large allocations of the processes (malloc(3), from 64 KiB on) into the region, up to SIZE of each: windows of RMA there are
    /// read and written without messages, also natively, and the region has room for them. Without SIZE 64M. Preloads
    /// libisthmus-alloc.so (fi_isthmus(7)). In VMs it needs the guest driver, or --source dax
    #[arg(long, value_name = "SIZE", default_value = "0", num_args = 0..=1, default_missing_value = "64M", value_parser = size::parse_or_none)]
    alloc: u64,
    /// openmpi, openmpi4, openmpi5, mpich, intel, or the directory of an MPI; by default the mpirun on the PATH
    #[arg(long, value_name = "NAME|DIR")]
    mpi: Option<String>,
    /// One more argument for the MPI's launcher (short form); may be repeated
    #[arg(long = "mpi-arg", value_name = "ARG", allow_hyphen_values = true)]
    mpi_args: Vec<OsString>,
    /// Send what goes between ranks of one host or VM through the region, too: by default with --vms 0, where MPICH and Intel
    /// MPI would send nothing through it otherwise; Open MPI does so with all messages anyway, and with
    /// windows of MPI_Win_create. With `no`, or in VMs, MPICH's ranks of one host have shared windows
    #[arg(long, value_name = "yes|no", num_args = 0..=1, require_equals = true, default_missing_value = "yes", hide_possible_values = true)]
    through_region: Option<YesNo>,
    /// What carries the messages: isthmus, or what the MPI has of its own
    #[arg(long, value_enum, default_value_t = TransportArg::Isthmus)]
    transport: TransportArg,
    /// Write to FILE, as JSON, what went through the region, how the VMs ran, and what they sent over a network of --net tap
    /// (net_bytes: whole frames, the launcher's and the guests' own among them)
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Set a variable for the job; may be repeated (your environment is handed on anyway)
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<OsString>,
    /// Virtual CPUs per VM; by default one per rank of the fullest VM
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,
    /// Bind each virtual CPU to a processor of its own, for figures that do not scatter
    #[arg(long)]
    pin: bool,
    /// Memory per VM, for instance 1G
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    memory: Option<u64>,
    #[command(flatten)]
    region: RegionArgs,
    /// Hardware virtualisation or emulation; auto takes KVM where it really works
    #[arg(long, value_enum, default_value_t = AcceleratorArg::Auto)]
    accel: AcceleratorArg,
    /// Kernel to boot instead of Debian's packaged one
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// Map the region by the guest driver, write-back and with pages of 2 MiB, and be woken by interrupts: auto where it can be
    /// built, else by sysfs; it is built once for each kernel. With --source dax it wakes only
    #[arg(long, value_enum, default_value_t = DriverArg::Auto)]
    driver: DriverArg,
    /// Do not let the VMs write into the working directory
    #[arg(long)]
    read_only: bool,
    /// Let the VMs write into this directory too; may be repeated
    #[arg(long, value_name = "DIR")]
    writable: Vec<PathBuf>,
    /// Network of the VMs; without one the launcher's connections are relayed
    #[arg(long, value_enum, default_value_t = NetArg::None)]
    net: NetArg,
    /// Join the first two VMs by a virtio-serial port of each, to measure beside it
    #[arg(long, hide = true)]
    wire: bool,
    /// End the run after this many seconds, with status 124
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// Give up a VM that is not up after this many seconds [default: 120]
    #[arg(long, value_name = "SECONDS")]
    boot_timeout: Option<f64>,
    /// Keep what the VMs' consoles print in this directory
    #[arg(long, value_name = "DIR")]
    console: Option<PathBuf>,
    /// Leave the run's directory behind, and say where it is
    #[arg(long)]
    keep: bool,
    /// Say what is done, and why
    #[arg(short, long)]
    verbose: bool,
    /// The program and its arguments, or a full mpirun line
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
enum AcceleratorArg {
    Auto,
    Kvm,
    Tcg,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum DriverArg {
    Auto,
    Off,
    Require,
}

impl From<DriverArg> for DriverChoice {
    fn from(arg: DriverArg) -> Self {
        match arg {
            DriverArg::Auto => Self::Auto,
            DriverArg::Off => Self::Off,
            DriverArg::Require => Self::Require,
        }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum YesNo {
    Yes,
    No,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum MapArg {
    Block,
    Cyclic,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum LauncherArg {
    Auto,
    None,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum TransportArg {
    Isthmus,
    Native,
}

#[derive(Clone, Copy, ValueEnum)]
enum NetArg {
    None,
    Tap,
}

impl Args {
    pub(crate) fn run(self) -> i32 {
        front::run(&self.into_spec())
    }

    fn into_spec(self) -> RunSpec {
        RunSpec {
            vms: self.vms,
            ranks: self.ranks,
            ppn: self.ppn,
            host_ranks: self.host_ranks,
            map: if self.map == MapArg::Cyclic { Map::Cyclic } else { Map::Block },
            launcher: if self.launcher == LauncherArg::None { Launcher::None } else { Launcher::Auto },
            sysv: self.sysv,
            mpi: self.mpi,
            mpi_args: self.mpi_args,
            through_region: self.through_region.map(|told| told == YesNo::Yes),
            native_transport: self.transport == TransportArg::Native,
            stats: self.stats,
            env: self.env,
            region: RegionOptions { alloc_bytes: self.alloc, ..self.region.into() },
            vm: VmOptions {
                cpus: self.cpus,
                memory_bytes: self.memory,
                pin: self.pin,
                accel: match self.accel {
                    AcceleratorArg::Auto => Accelerator::Auto,
                    AcceleratorArg::Kvm => Accelerator::Kvm,
                    AcceleratorArg::Tcg => Accelerator::Tcg,
                },
                kernel: self.kernel,
                driver: self.driver.into(),
                read_only: self.read_only,
                writable: self.writable,
                net: match self.net {
                    NetArg::None => Net::None,
                    NetArg::Tap => Net::Tap,
                },
                wire: self.wire,
                console: self.console,
                boot_timeout_s: self.boot_timeout,
            },
            keep: self.keep,
            verbose: self.verbose,
            timeout_s: self.timeout,
            command: self.command,
        }
    }
}
