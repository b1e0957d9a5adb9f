//! What can go wrong between a request for a VM and a running one.

use std::io;
use std::path::PathBuf;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the VM launcher. Each text names what was attempted and, if there is one, the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or socket operation failed.
    #[error("cannot {what}")]
    Io {
        /// The operation and its object, to be read after "cannot".
        what: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A link that a VM may have made.
    #[error(
        "{} is a symbolic link in a directory that the VMs may write, so one of them may have made it: name the place that it leads to ({})",
        link.display(), to.display()
    )]
    Link {
        /// Its name.
        link: PathBuf,
        /// Where it leads.
        to: PathBuf,
    },
    /// No directory to cache kernels in.
    #[error("no cache directory: set XDG_CACHE_HOME or HOME to a directory that you may write")]
    NoCacheDir,
    /// A helper program is not installed.
    #[error("the program {program} is not installed; install the package {package}")]
    NoProgram {
        /// Its name.
        program: String,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// A helper program ended with an error.
    #[error("{command} failed ({status}): {stderr}")]
    ProgramFailed {
        /// The command line.
        command: String,
        /// Its exit status in words.
        status: String,
        /// The end of what it printed.
        stderr: String,
    },
    /// No kernel could be had.
    #[error("no guest kernel: {reason}; --kernel PATH takes one that you have")]
    NoKernel {
        /// What was tried.
        reason: String,
    },
    /// A kernel file is not one that can be used.
    #[error("{} is not a usable kernel: {reason}", path.display())]
    BadKernel {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A module is missing that every guest needs.
    #[error(
        "the kernel in {} has no module {module}; use Debian's generic kernel (linux-image-amd64, not cloud)",
        path.display()
    )]
    NoModule {
        /// The directory that was searched for modules.
        path: PathBuf,
        /// The module's name.
        module: String,
    },
    /// Modules for memory devices are missing.
    #[error(
        "the kernel {release} has no modules {modules}, which --source dax needs; use Debian's generic kernel (linux-image-amd64, not cloud), or do without --source dax"
    )]
    NoDax {
        /// The kernel's release.
        release: String,
        /// The modules' names.
        modules: String,
    },
    /// An executable or library is not what the initramfs builder understands.
    #[error("{} is not a 64-bit little-endian ELF file: {reason}", path.display())]
    BadElf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A setting of the VM that QEMU would refuse or misread.
    #[error("VM {vm}: {reason}")]
    BadConfig {
        /// The VM's name.
        vm: String,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// The guest driver cannot be built.
    #[error("no guest driver: {reason}")]
    NoDriver {
        /// Why, and the remedy.
        reason: String,
    },
    /// KVM was asked for by name and does not work.
    #[error("KVM was asked for but is not usable here: {reason}; take --accel auto or tcg")]
    NoKvm {
        /// Which probe failed.
        reason: String,
    },
    /// QEMU's monitor answered with an error, or not in time.
    #[error("QEMU's monitor: {command}: {reason}")]
    Qmp {
        /// The command.
        command: String,
        /// QEMU's text, or this crate's.
        reason: String,
    },
    /// The network namespace could not be made.
    #[error("no private network: {reason}")]
    Network {
        /// What failed, and the remedy.
        reason: String,
    },
}

impl Error {
    /// Wraps an I/O error with what was attempted ("cannot WHAT").
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }
}
