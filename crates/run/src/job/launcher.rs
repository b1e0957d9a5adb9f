//! The MPI's launcher: whether it will start, its environment and command line, its signals, its end.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use isthmus_guest::exec::exec_as;
use isthmus_guest::wire::Request;
use isthmus_region::room;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::boot::Parts;
use super::{Event, Run, spawn};
use crate::error::{Error, Result, tell};
use crate::front::status_of_signal;
use crate::launch::HERE;
use crate::libraries::{ALLOC_VARIABLE, PRELOAD_VARIABLE};
use crate::mpi::{self, Flavour, Host, Mpi};
use crate::spec::{ExitCode, RunSpec};
use crate::{descriptors, hydra, launch, leash, named, rsh, rundir};

/// How long a launcher may take to end after it was asked to.
const LAUNCHER_GRACE: Duration = Duration::from_secs(3);

/// How the launcher ended.
#[derive(Clone, Copy)]
pub(super) struct LauncherEnd {
    pub(super) status: i32,
    signal: Option<i32>,
}

impl LauncherEnd {
    /// Prints the signal that killed the launcher, as `name` calls it, except those that end a job on request.
    pub(super) fn tell(self, name: &str) {
        let asked = [Signal::INT, Signal::TERM, Signal::HUP];
        if let Some(signal) = self.signal.filter(|signal| !asked.iter().any(|s| s.as_raw() == *signal)) {
            tell!("{name} was killed by signal {signal}; the job ends with it");
        }
    }
}

/// Whether Open MPI's launcher will start for this user: it refuses root. Checked before VMs are booted for it.
pub(super) fn may_be_root(spec: &RunSpec) -> bool {
    let told = |name: &str| {
        [name.to_owned(), format!("{name}_CONFIRM")].iter().all(|name| std::env::var_os(name).is_some())
    };
    !rustix::process::geteuid().is_root()
        || told("OMPI_ALLOW_RUN_AS_ROOT")
        || told("PRTE_ALLOW_RUN_AS_ROOT")
        || spec.mpi_args.iter().chain(&spec.command).any(|word| word == "--allow-run-as-root")
}

fn write_file(path: &Path, content: &str) -> Result<()> {
    fs::write(path, content)
        .map_err(|e| Error::io(format!("cannot write {}", path.display()), room::told(e, path)))
}

/// Warns if the program was built with another MPI, or another installation of it, than it is launched with.
pub(super) fn warn_of_other_mpi(spec: &RunSpec, mpi: &Mpi) {
    let Some(program) = spec.ranks.and(spec.command.first()) else { return };
    let Some(bytes) = named::program(program, &spec.path()) else { return };
    let is_open_mpi = matches!(mpi.flavour, Flavour::OpenMpi | Flavour::OpenMpi4);
    let whose = named::other_mpi(&bytes, is_open_mpi);
    if whose.is_none()
        && let Some(home) = named::other_installation(&bytes, &mpi.launcher)
    {
        tell!(
            "warning: {} was linked with the MPI in {}, and {} is of another installation; if it fails in MPI_Init, name its own with --mpi {}",
            Path::new(program).display(),
            home.display(),
            mpi.launcher.display(),
            home.display()
        );
    }
    if let Some(whose) = whose {
        // Where several MPIs share a directory, their programs differ in a suffix.
        let name = mpi.launcher.file_name().unwrap_or_default().to_string_lossy();
        let suffix = name.split_once('.').map(|(_, suffix)| format!(".{suffix}")).unwrap_or_default();
        let compiler = mpi.launcher.with_file_name(format!("mpicc{suffix}"));
        tell!(
            "{} was built with {whose}, and {} is not of it: its ranks will not find each other; build it with {}, or name its MPI with --mpi",
            Path::new(program).display(),
            mpi.launcher.display(),
            compiler.display()
        );
    }
}

/// Warns if the program was built with an MPI and is launched without one.
pub(super) fn warn_of_mpi(spec: &RunSpec) {
    let Some(program) = spec.command.first() else { return };
    let bytes = named::program(program, &spec.path());
    if let Some(whose) = bytes.as_deref().and_then(named::mpi_of) {
        tell!(
            "warning: {} was built with {whose}, and without its launcher each process is the only rank of a job of its own",
            Path::new(program).display()
        );
    }
}

/// A launcher that runs, or has run.
#[derive(Clone, Copy)]
pub(super) struct Launcher {
    pub(super) pid: Pid,
    /// Whose it is; ours where there is no MPI.
    pub(super) flavour: Option<Flavour>,
}

impl Launcher {
    /// What to call it.
    pub(super) fn name(self) -> &'static str {
        if self.flavour.is_some() { "the MPI's launcher" } else { "the launcher" }
    }

    pub(super) fn signal(self, signal: i32) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            // Intel's mpirun is a script that handles a signal only after its Hydra has ended: both are in the
            // launcher's group.
            let _ = match self.flavour {
                Some(Flavour::Intel) => kill_process_group(self.pid, signal),
                Some(Flavour::OpenMpi | Flavour::OpenMpi4 | Flavour::Mpich) | None => {
                    kill_process(self.pid, signal)
                }
            };
        }
    }

    /// Reports the launcher's end, from a thread of its own. It waits for the process rather than for the [`Child`], which
    /// one thread cannot wait for while another one signals it.
    ///
    /// [`Child`]: std::process::Child
    pub(super) fn watch(self, run: &Run<'_>) -> Result<()> {
        let events = run.sender.clone();
        spawn("launcher", move || {
            let end = loop {
                match rustix::process::waitpid(Some(self.pid), rustix::process::WaitOptions::empty()) {
                    Ok(Some((_, status))) => {
                        let signal = status.terminating_signal();
                        if let Some(status) = status.exit_status().or(signal.map(status_of_signal)) {
                            break LauncherEnd { status, signal };
                        }
                    }
                    Ok(None) | Err(rustix::io::Errno::INTR) => {}
                    Err(_) => break LauncherEnd { status: ExitCode::FAILURE, signal: None },
                }
            };
            let _ = events.send(Event::Launcher(end));
        })
    }

    /// Asks the launcher to end, and gives it a little time to do so; the guardian ends what is left.
    pub(super) fn end(self, run: &Run<'_>) {
        self.signal(signal_hook::consts::SIGTERM);
        // A stopped launcher handles no signal.
        self.signal(signal_hook::consts::SIGCONT);
        let deadline = Instant::now() + LAUNCHER_GRACE;
        while let Ok(event) = run.next(Some(deadline)) {
            if matches!(event, Event::Launcher(_)) {
                return;
            }
        }
    }
}

impl Run<'_> {
    /// The launcher's hosts and their places; none where it is left to find its own.
    fn hosts(&self, parts: &Parts) -> Vec<Host> {
        let spec = &self.spec;
        let here = |slots| Host { name: HERE.into(), slots };
        if spec.vms == 0 {
            // The short form has as many places as ranks, whatever the number of processors.
            return spec.ranks.map(here).into_iter().collect();
        }
        let vms = parts.machines.iter().zip(spec.slots(spec.guest_ranks()));
        (spec.host_ranks > 0)
            .then(|| here(spec.host_ranks))
            .into_iter()
            .chain(
                vms.map(|(machine, slots)| Host { name: machine.name.clone(), slots })
                    .filter(|vm| vm.slots > 0),
            )
            .collect()
    }

    /// Starts the MPI's launcher, or our own where there is no MPI. `preload` is what programs are to load first, of libraries.
    pub(super) fn start_launcher(
        &self,
        mpi: Option<&Mpi>,
        preload: Option<&OsStr>,
        parts: &Parts,
        input: OwnedFd,
    ) -> Result<Launcher> {
        let (spec, dir) = (&self.spec, self.dir());
        let hosts = self.hosts(parts);
        // The leash, which becomes the launcher, is this program.
        let program = mpi.map_or(Path::new("/proc/self/exe"), |mpi| &mpi.launcher);
        let prefix = parts.network.as_ref().map(|network| network.prefix.as_slice()).unwrap_or_default();
        let is_mpich = mpi.is_some_and(|mpi| mpi.flavour == Flavour::Mpich);
        let named = if is_mpich { hydra::named(dir, program)? } else { None };
        let mut command = leash::command_in(prefix, named.as_deref().unwrap_or(program), named.is_some())
            .map_err(|e| Error::io("cannot tell where this program is", e))?;
        let arguments = match mpi {
            Some(mpi) => self.set_up(&mut command, mpi, parts, &hosts)?,
            None => launch::arguments(&hosts, spec.map, spec.ranks.unwrap_or(1), &spec.command),
        };
        let uses_region = !spec.native_transport || spec.sysv || mpi.is_none();
        if let Some(service) = parts.service.as_ref().filter(|_| uses_region) {
            command.env("ISTHMUS_SOCKET", service.attach_socket());
        }
        command.env(rsh::RUN_VARIABLE, dir);
        for variable in &spec.env {
            set_variable(&mut command, variable);
        }
        if let Some(preload) = preload {
            command.env(PRELOAD_VARIABLE, preload);
        }
        if spec.region.alloc_bytes > 0 {
            command.env(ALLOC_VARIABLE, spec.region.alloc_bytes.to_string());
        }
        if let Some(switch) = &parts.switch {
            switch.admit_visitors(twin(&command, dir)?);
        }
        command.args(&arguments).stdin(Stdio::from(input)).process_group(0);
        self.say(|| {
            let words: Vec<_> = arguments.iter().map(|w| w.to_string_lossy().into_owned()).collect();
            let shown = mpi.map_or("isthmus".into(), |mpi| mpi.launcher.display().to_string());
            format!("{shown} {}", words.join(" "))
        });
        let child =
            command.spawn().map_err(|e| Error::io(format!("cannot start {}", program.display()), e))?;
        Ok(Launcher { pid: Pid::from_child(&child), flavour: mpi.map(|mpi| mpi.flavour) })
    }

    /// What an MPI's launcher must know goes into its environment and the run's directory. Gives its arguments.
    fn set_up(
        &self,
        command: &mut std::process::Command,
        mpi: &Mpi,
        parts: &Parts,
        hosts: &[Host],
    ) -> Result<Vec<OsString>> {
        let (spec, dir) = (&self.spec, self.dir());
        let here = thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX));
        let crowded = hosts.iter().any(|host| host.slots > if host.name == HERE { here } else { parts.cpus });
        let host_file = dir.join("hosts");
        if !hosts.is_empty() {
            write_file(&host_file, &mpi::host_file(mpi.flavour, hosts, spec.map))?;
        }
        let host_file = (!hosts.is_empty()).then_some(host_file.as_path());
        let remote_shell = dir.join(rsh::REMOTE_SHELL_NAME);
        if spec.vms > 0 {
            let program =
                std::env::current_exe().map_err(|e| Error::io("cannot tell where this program is", e))?;
            symlink(program, &remote_shell)
                .map_err(|e| Error::io(format!("cannot make {}", remote_shell.display()), e))?;
        }
        let needs_alias = spec.vms > 0 && parts.network.is_none() && mpi.flavour == Flavour::OpenMpi;
        let alias = if needs_alias { mpi::alias_prefix() } else { None };
        let placement = mpi::Placement {
            dir,
            remote_shell: (spec.vms > 0).then_some(remote_shell.as_path()),
            hosts: host_file,
            host_count: hosts.len(),
            map: spec.map,
            mixed: spec.vms > 0 && spec.host_ranks > 0,
            crowded,
            alias: alias.as_deref(),
        };
        command.envs(mpi::home(mpi)).envs(mpi::launcher(mpi.flavour, &placement));
        if parts.service.is_some() && !spec.native_transport {
            let through_region = spec.sends_all_through_region(mpi.flavour);
            command.envs(mpi::transport(mpi.flavour, &mpi::provider_directory()?, through_region));
        }
        if spec.vms > 0 {
            write_file(&rundir::shm_twin(dir).join(mpi::HINTS_NAME), mpi::HINTS)?;
            command.envs(mpi::files(mpi.flavour, dir));
        }
        Ok(mpi::arguments(spec, mpi.flavour, host_file))
    }
}

/// What visitors' processes have in common with the launcher that `command` starts, and so with the ranks.
fn twin(command: &std::process::Command, dir: &Path) -> Result<Request> {
    let mut twin =
        exec_as::own_request(Vec::new()).map_err(|e| Error::io("cannot tell what this process is", e))?;
    for limit in twin.limits.iter_mut().filter(|limit| limit.name == "nofile") {
        limit.soft = descriptors::of_started();
    }
    for (name, value) in command.get_envs() {
        twin.env.retain(|(known, _)| known != name);
        if let Some(value) = value.filter(|_| rsh::for_guests(name)) {
            twin.env.push((name.to_owned(), value.to_owned()));
        }
    }
    twin.make_dirs.push(rundir::shm_twin(dir));
    Ok(twin)
}

/// `NAME=VALUE` sets a variable. `NAME` alone passes it on, which happens anyway.
fn set_variable(command: &mut std::process::Command, variable: &std::ffi::OsStr) {
    use std::os::unix::ffi::OsStrExt;
    let bytes = variable.as_bytes();
    if let Some(at) = bytes.iter().position(|b| *b == b'=') {
        command.env(std::ffi::OsStr::from_bytes(&bytes[..at]), std::ffi::OsStr::from_bytes(&bytes[at + 1..]));
    }
}
