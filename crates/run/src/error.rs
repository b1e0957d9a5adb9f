//! What can go wrong in a run, and the exit status that it means.

use std::io::{self, Write};
use std::path::PathBuf;

use crate::spec::ExitCode;

/// Prints a line that begins with `isthmus:` on standard error, in one piece: the launcher and all ranks print there, too.
macro_rules! tell {
    ($($words:tt)*) => {
        $crate::error::tell_line(&format!($($words)*))
    };
}
pub(crate) use tell;

/// What the macro does.
pub(crate) fn tell_line(line: &str) {
    // If standard error is closed, there is no other place to report to.
    let _ = io::stderr().lock().write_all(format!("isthmus: {line}\n").as_bytes());
}

/// The result of anything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a run. Its text names the cause and, where there is one, the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line made no sense.
    #[error("{0}")]
    Usage(String),
    /// No MPI was found.
    #[error(
        "no MPI found: {looked}; give --mpi DIR (the directory that holds bin/mpirun) or put its bin directory on the PATH{elsewhere}"
    )]
    NoMpi {
        /// What was searched, and for what.
        looked: String,
        /// Whether the command line named it.
        named: bool,
        /// The MPIs that are elsewhere, each with the line that would use it.
        elsewhere: String,
    },
    /// A launcher that isthmus cannot start ranks with.
    #[error("{}: not a launcher that isthmus knows ({said}); it knows Open MPI 4 and 5, MPICH 4 and 5, and Intel MPI", .launcher.display())]
    UnknownMpi {
        /// The launcher.
        launcher: PathBuf,
        /// The first line of what it printed for `--version`.
        said: String,
    },
    /// Open MPI starts nothing as root unless it is told to.
    #[error(
        "{} runs nothing as root unless it is told to: export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1, or run as another user", .launcher.display()
    )]
    Root {
        /// The launcher.
        launcher: PathBuf,
    },
    /// The working directory cannot be shared writable.
    #[error("the working directory {} {why}: change to another one, name one that the VMs may write with --writable DIR, or run with --read-only", .directory.display())]
    WorkingDirectory {
        /// The working directory.
        directory: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A `--writable` directory cannot be shared.
    #[error("--writable {}: {why}", .directory.display())]
    Writable {
        /// The directory.
        directory: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The VMs could write the run's own directories.
    #[error(
        "the VMs could write {}, and in it {}, where this run would keep what the host executes or maps: share a directory below it instead (without --read-only the working directory is shared, too){or}", .share.display(), .place.display()
    )]
    Share {
        /// What they could write.
        share: PathBuf,
        /// Where the run's directory, or its twin, would be.
        place: PathBuf,
        /// Another way out, if there is one.
        or: &'static str,
    },
    /// The provider library is not where it belongs.
    #[error(
        "libisthmus-fi.so not found (looked in {looked}); build it with `cargo build --release`, or name its directory in ISTHMUS_PROVIDER_PATH"
    )]
    NoProvider {
        /// The directories that were searched.
        looked: String,
    },
    /// The library for System V IPC is not where it belongs.
    #[error(
        "--sysv: libisthmus-sysv.so not found (looked in {looked}); build it with `make`, or name its directory in ISTHMUS_PROVIDER_PATH"
    )]
    NoSysv {
        /// The directories that were searched.
        looked: String,
    },
    /// The library for large allocations is nowhere.
    #[error(
        "--alloc: there is no libisthmus-alloc.so beside the provider in {looked}; build both with `make`, or name their directory in ISTHMUS_PROVIDER_PATH"
    )]
    NoAlloc {
        /// The provider's directory.
        looked: String,
    },
    /// The dynamic linker cannot be told the library's name.
    #[error(
        "{} has a blank or a colon in its name, which ends a name in LD_PRELOAD: install isthmus elsewhere", .library.display()
    )]
    Preload {
        /// The library.
        library: PathBuf,
    },
    /// libfabric cannot be told the provider's directory.
    #[error(
        "{} has a colon in its name, which ends a name in FI_PROVIDER_PATH: install isthmus elsewhere, or name another directory in ISTHMUS_PROVIDER_PATH", .directory.display()
    )]
    ProviderPath {
        /// The directory.
        directory: PathBuf,
    },
    /// The host service did not start.
    #[error("the host service did not start: {0}")]
    Service(String),
    /// A VM did not start.
    #[error("VM {vm} did not start: {why}")]
    Boot {
        /// Its host name.
        vm: String,
        /// What is wrong with it.
        why: String,
    },
    /// A VM ended while the job ran.
    #[error(
        "VM {vm} was lost, and with it the list of files that its ranks wrote outside of the writable directories: {why}"
    )]
    LostVm {
        /// Its host name.
        vm: String,
        /// What is known of it.
        why: String,
    },
    /// A VM that was up ended before the job began.
    #[error("VM {vm} was lost before the job began, while {others} had yet to come up: {why}")]
    LostBefore {
        /// Its host name.
        vm: String,
        /// The VMs that were waited for.
        others: String,
        /// What is known of it.
        why: String,
    },
    /// The launcher claims success, but one of its daemons failed.
    #[error(
        "the MPI's launcher ended with status 0, but its daemon in VM {vm} {how}, so its ranks there did not run to their end: what the launcher printed above says more; let it say all with {ask}"
    )]
    Daemon {
        /// The VM's host name.
        vm: String,
        /// How it ended.
        how: String,
        /// What makes the launcher talk.
        ask: &'static str,
    },
    /// The launcher claims success, but has started nothing.
    #[error(
        "the MPI's launcher ended with status 0, but no rank was started in a VM{why}: see that nothing on its line or in its own configuration chooses other hosts or another remote shell; let it say all with {ask}"
    )]
    NothingRan {
        /// Why a remote shell was turned away, after a colon, if one was.
        why: String,
        /// What makes the launcher talk.
        ask: &'static str,
    },
    /// The launcher claims success, but has asked for a daemon where there is none.
    #[error(
        "the MPI's launcher ended with status 0, but a remote shell of it was turned away, so not all ranks ran: {why}: see that nothing on its line or in its own configuration chooses other hosts; let it say all with {ask}"
    )]
    TurnedAway {
        /// Why it was turned away.
        why: String,
        /// What makes the launcher talk.
        ask: &'static str,
    },
    /// The job took longer than it was given.
    #[error("timed out after {seconds} s (--timeout){meanwhile}")]
    Timeout {
        /// The time given.
        seconds: f64,
        /// What it waited for where it had not begun, each in lines of its own.
        meanwhile: String,
    },
    /// The launcher has deadlocked.
    #[error(
        "the MPI's launcher hangs: process {child} of its own has ended, and it sleeps on a lock of its own instead of asking how; the run was ended. Open MPI 4.1's does that now and then where a rank dies while it starts: see above why the rank ended"
    )]
    Stuck {
        /// The process that has ended.
        child: i32,
    },
    /// A signal came before there was a launcher that it could go to.
    #[error("ended by signal {signal} while the VMs were starting")]
    Interrupted {
        /// The signal.
        signal: i32,
    },
    /// A command could not be run in a VM, or ended with it.
    #[error("{vm}: {why}")]
    Visit {
        /// The VM's host name.
        vm: String,
        /// Why.
        why: String,
    },
    /// A process of the run itself ended before its time.
    #[error("{0}")]
    Broken(String),
    /// A call to the system failed.
    #[error("{what}")]
    Io {
        /// What was attempted.
        what: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Wraps a failed system call.
    pub fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { what: what.into(), source: source.into() }
    }

    /// The exit status that this error means.
    pub fn exit_code(&self) -> i32 {
        match self {
            // What the caller can correct on the command line, or by changing the directory first.
            Self::Usage(_) | Self::WorkingDirectory { .. } | Self::Writable { .. } | Self::Share { .. } => {
                ExitCode::USAGE
            }
            Self::Timeout { .. } => ExitCode::TIMEOUT,
            Self::LostVm { .. } | Self::LostBefore { .. } => ExitCode::LOST_VM,
            Self::Interrupted { signal } => crate::front::status_of_signal(*signal),
            Self::NoMpi { named: true, .. } => ExitCode::USAGE,
            Self::NoMpi { named: false, .. }
            | Self::UnknownMpi { .. }
            | Self::Root { .. }
            | Self::NoProvider { .. }
            | Self::NoSysv { .. }
            | Self::NoAlloc { .. }
            | Self::Preload { .. }
            | Self::ProviderPath { .. }
            | Self::Service(_)
            | Self::Boot { .. }
            | Self::Daemon { .. }
            | Self::NothingRan { .. }
            | Self::TurnedAway { .. }
            | Self::Stuck { .. }
            | Self::Visit { .. }
            | Self::Broken(_)
            | Self::Io { .. } => ExitCode::FAILURE,
        }
    }

    /// The text with its causes, on one line.
    pub fn line(&self) -> String {
        isthmus_region::error::with_causes(self) + &isthmus_region::room::limit_told(self)
    }
}
