//! The job's descriptors: two for each process in a VM, some twenty for each VM, and two for each process that is attached. Many
//! callers may have 1024 and ask for far more, so the job raises its own limit; what it starts has the caller's.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The caller's limit, once this process has raised its own.
static CALLERS: OnceLock<Option<u64>> = OnceLock::new();

/// Raises this process's limit as far as the caller could: not beyond, since a lower one may be meant.
pub(crate) fn allow_many() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok() {
        let _ = CALLERS.set(current);
    }
}

/// The caller's limit where this process has raised its own; `None` inside is no limit.
pub(crate) fn of_caller() -> Option<Option<u64>> {
    CALLERS.get().copied()
}

/// The limit of what this process starts; `None` is no limit.
pub(crate) fn of_started() -> Option<u64> {
    of_caller().unwrap_or_else(|| getrlimit(Resource::Nofile).current)
}

/// Gives this process, which is about to execute another program, the limit that the caller had.
pub(crate) fn restore(current: Option<u64>) -> rustix::io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current, maximum })
}
