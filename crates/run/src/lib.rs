//! One job: its VMs, the launcher of its MPI, guardian, remote shell, relay, standard I/O, exit status.
//!
//! This is the only place that knows how an MPI is started, and how programs are without one. A run is three processes of the
//! one binary, each the child of the one before and each a subreaper, so that if any two of them are killed, in any order, the
//! third finds everything that was started below itself and ends it:
//!
//! ```text
//!  isthmus run      front:    the caller's own child; standard input of a terminal, signals, exit status
//!    └ guardian     guardian: made before anything else; ends and removes what is left of the run
//!        └ job      job:      the host service, the VMs, the switch between remote shells and VMs
//!            ├ mpirun  └ isthmus-rsh (rsh): one per host name, started by the MPI itself
//!            └ qemu ...
//! ```
//!
//! | Module | Holds |
//! |---|---|
//! | [`spec`] | what was asked for, and the exit codes |
//! | [`front`], [`guardian`], [`job`] | the three processes |
//! | [`named`] | checks of files that the command line names, before the work |
//! | `mapped` | files that killed ranks would leave in /dev/shm |
//! | [`mpi`] | finding an MPI, its environment, its launcher line |
//! | [`launch`] | our own launcher, for programs without an MPI |
//! | [`libraries`] | the libraries that programs load |
//! | [`hydra`] | what keeps MPICH's launcher from dying of SIGPIPE |
//! | [`rsh`] | the remote shell: what an MPI's launcher starts in place of ssh |
//! | [`runs`], [`visit`] | the runs of a user; commands in their VMs beside the job |
//! | `terminal` | reading the caller's terminal, if in its foreground |
//! | [`session`] | what remote shell and visitor share: standing for a process in a VM |
//! | [`switch`] | frames between remote shells, visitors and VMs; the host side of the relay |
//! | `client` | the sending side of its clients, which waits for none of them |
//! | [`service`] | what a run needs of the host service |
//! | [`machines`], [`lost_files`] | what a run needs of its VMs; what is lost with them |
//! | `stuck` | a launcher that has deadlocked |
//! | `stats` | what --stats reports of a run |
//! | [`leash`] | processes that must not outlive the job |
//! | `descriptors` | the job's limit on descriptors, and that of what it starts |
//! | `starting` | ending a run whose VMs are still being started |
//! | [`rundir`], [`tree`], [`pass`] | the run's directories, its processes, descriptors over sockets |

#![forbid(unsafe_code)]

mod client;
mod descriptors;
pub mod error;
pub mod front;
pub mod guardian;
pub mod hydra;
pub mod job;
pub mod launch;
pub mod leash;
pub mod libraries;
pub mod lost_files;
pub mod machines;
mod mapped;
pub mod mpi;
pub mod named;
pub mod pass;
pub mod rsh;
pub mod rundir;
pub mod runs;
pub mod service;
pub mod session;
pub mod spec;
mod starting;
mod stats;
mod stuck;
pub mod switch;
mod terminal;
pub mod tree;
pub mod visit;

pub use error::{Error, Result};
pub use isthmus_vm::boot_config::DriverChoice;
pub use spec::{Accelerator, ExitCode, Launcher, Map, Net, RunSpec, VmOptions};
