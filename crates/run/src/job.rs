//! The job: the process that does the run's work.
//!
//! It starts the host service, the VMs, the switch and the launcher, in this order, and waits for the first
//! of: the launcher's end, a lost VM, the time-out. It answers the front once and ends; the guardian sees
//! that, and ends and removes what is left.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use isthmus_guest::exec::exec_as;
use isthmus_guest::wire::Request;
use isthmus_region::room;
use isthmus_vm::slow::Slow;
use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group, set_child_subreaper};

use crate::error::{Error, Result, tell};
use crate::front::{FromJob, ToJob, status_of_signal};
use crate::guardian::{self, Start};
use crate::lost_files::LostFiles;
use crate::machines::{CONSOLE_LINES, Machine, Network, Plan, StartMachines};
use crate::mapped::Mapped;
use crate::mpi::{self, Flavour, Host, Mpi};
use crate::runs::Description;
use crate::service::{self, Service, StartService};
use crate::spec::{BOOT_LIMIT_S, ExitCode, Net, RunSpec};
use crate::starting::Starting;
use crate::stats::{self, Stats};
use crate::switch::{self, Switch};
use crate::{leash, named, pass, rsh, rundir, stuck, terminal, tree};

/// How long a launcher may take to end after it was asked to.
const LAUNCHER_GRACE: Duration = Duration::from_secs(3);
/// After a launcher's end, how long to wait for word that a VM's end was the reason.
const VM_NEWS: Duration = Duration::from_millis(300);
/// After a launcher's end with status 0, how long its daemons may take to end, too.
const DAEMON_GRACE: Duration = Duration::from_secs(2);
/// How long the VMs may take to list what they hold.
const CHANGES_LIMIT: Duration = Duration::from_secs(5);
/// How often adopted orphans are reaped.
const ORPHANS_EVERY: Duration = Duration::from_secs(5);

/// The parts of a run that are not decided here.
pub struct Platform {
    /// Starts VMs.
    pub machines: Box<dyn StartMachines>,
    /// Starts the host service.
    pub service: Box<dyn StartService>,
}

/// How the launcher ended.
#[derive(Clone, Copy)]
pub(crate) struct LauncherEnd {
    status: i32,
    signal: Option<i32>,
}

impl LauncherEnd {
    /// Names the cause when something killed the launcher; a signal that ends a job on request needs no comment.
    fn tell(self) {
        let asked = [Signal::INT, Signal::TERM, Signal::HUP];
        if let Some(signal) = self.signal.filter(|signal| !asked.iter().any(|s| s.as_raw() == *signal)) {
            tell!("the MPI's launcher was killed by signal {signal}; the job ends with it");
        }
    }
}

/// What the job waits for.
pub(crate) enum Event {
    /// The front sends the launcher a signal.
    Signal(i32),
    /// The launcher ended, with this status.
    Launcher(LauncherEnd),
    /// The launcher will never end: it does not ask for this child of its own.
    Stuck(i32),
    /// News of the switch.
    Switch(switch::News),
}

/// The job's whole life. Returns its exit status, which nobody reads.
pub fn main(platform: &Platform) -> i32 {
    terminal::let_stop();
    let Ok(guardian) = pass::take_stdin_socket() else { return 1 };
    let Ok(Some((start, fds))) = pass::receive::<Start>(&guardian) else { return 1 };
    let Ok([front, input]) = <[OwnedFd; 2]>::try_from(fds) else { return 1 };
    let front = UnixStream::from(front);
    if set_child_subreaper(Some(getpid())).is_err() {
        return 1;
    }
    let Ok(ending) = guardian.try_clone() else { return 1 };
    let (events_in, events) = mpsc::channel();
    let Ok(Some((spec, _))) = pass::receive::<RunSpec>(&front) else { return 1 };
    let _ = pass::send(&front, &FromJob::Hello { pid: getpid().as_raw_nonzero().get() }, &[]);
    let (Ok(told), Ok(over)) = (front.try_clone(), guardian.try_clone()) else { return 1 };
    let starting = Starting::new(told, over);
    let watched =
        watch_guardian(guardian, &start).and_then(|()| watch_front(&front, &start, &events_in, &starting));
    let outcome =
        watched.and_then(|()| carry_out(platform, &spec, &start, input, &starting, &events_in, &events));
    let (code, line) = match outcome {
        Ok(code) => (code, None),
        Err(e) => (e.exit_code(), Some(e.line())),
    };
    let _ = pass::send(&front, &FromJob::Done { code, line }, &[]);
    // The guardian takes this for the end, clears up, and ends this process last. Until then it must be there: if
    // both others are killed now, its threads do what is left to do.
    let _ = ending.shutdown(Shutdown::Write);
    loop {
        thread::park();
    }
}

/// Guardian or front are gone: end everything, since the other may be gone too.
fn abandon(start: &Start) -> ! {
    guardian::clear(start, None);
    std::process::exit(ExitCode::FAILURE)
}

fn watch_guardian(guardian: UnixStream, start: &Start) -> Result<()> {
    let start = start.clone();
    let mut guardian = guardian;
    thread::Builder::new()
        .name("guardian".into())
        .spawn(move || {
            let _ = guardian.read(&mut [0]);
            abandon(&start)
        })
        .map(drop)
        .map_err(|e| Error::io("cannot start a thread", e))
}

fn watch_front(front: &UnixStream, start: &Start, events: &Sender<Event>, starting: &Starting) -> Result<()> {
    let front = front.try_clone().map_err(|e| Error::io("cannot duplicate a socket", e))?;
    let (start, events, starting) = (start.clone(), events.clone(), starting.clone());
    thread::Builder::new()
        .name("front".into())
        .spawn(move || {
            while let Ok(Some((ToJob::Signal(signal), _))) = pass::receive(&front) {
                if ends(signal) {
                    starting.end(&Error::Interrupted { signal });
                }
                let _ = events.send(Event::Signal(signal));
            }
            abandon(&start)
        })
        .map(drop)
        .map_err(|e| Error::io("cannot start a thread", e))
}

/// Everything of a run that lives while its launcher does. Fields are dropped in this order: VMs before the
/// service that they are connected to.
struct Parts {
    switch: Option<Switch>,
    machines: Vec<Machine>,
    /// Where the launcher runs, if not in the caller's network.
    network: Option<Network>,
    service: Option<Box<dyn Service>>,
    /// Virtual CPUs of each VM.
    cpus: u32,
}

/// Whether Open MPI's launcher will start, as far as that depends on who the user is: told before VMs are booted for it.
fn may_be_root(spec: &RunSpec) -> bool {
    let told = |name: &str| {
        [name.to_owned(), format!("{name}_CONFIRM")].iter().all(|name| std::env::var_os(name).is_some())
    };
    !rustix::process::geteuid().is_root()
        || told("OMPI_ALLOW_RUN_AS_ROOT")
        || told("PRTE_ALLOW_RUN_AS_ROOT")
        || spec.mpi_args.iter().chain(&spec.command).any(|word| word == "--allow-run-as-root")
}

fn carry_out(
    platform: &Platform,
    spec: &RunSpec,
    start: &Start,
    input: OwnedFd,
    starting: &Starting,
    events_in: &Sender<Event>,
    events: &Receiver<Event>,
) -> Result<i32> {
    let dir = start.dir.as_path();
    let deadline = spec.timeout_s.map(|s| Instant::now() + Duration::from_secs_f64(s));
    let line = spec.is_launcher_line().then(|| spec.command[0].as_os_str());
    let mpi = mpi::find(spec.mpi.as_deref(), line)?;
    say(spec, || format!("{} {} at {}", mpi.flavour.name(), mpi.version, mpi.launcher.display()));
    if mpi.flavour.is_open_mpi() && !may_be_root(spec) {
        return Err(Error::Root { launcher: mpi.launcher });
    }
    let writable = writable_directories(spec)?;
    let begin = Instant::now();
    let late = timed_out(spec, "\nthe run was still being made ready".into());
    let mut parts =
        starting.busy(deadline, || late, || start_parts(platform, spec, dir, &writable, events_in))?;
    if let Some(switch) = &parts.switch {
        describe(spec, start, &parts.machines)?;
        let names: Vec<&str> = parts.machines.iter().map(|m| m.name.as_str()).collect();
        wait_for_agents(switch, &names, events, deadline, spec, &parts.machines)?;
    }
    let boot_s = begin.elapsed().as_secs_f64();
    let accel = stats::accelerator(&parts.machines);
    warn_of_other_mpi(spec, &mpi);
    let mapped = Mapped::watch(dir);
    let mut child = start_launcher(spec, &mpi, dir, &parts, input)?;
    let outcome =
        follow(spec, mpi.flavour, &mut child, &mapped, events_in, events, deadline, &parts.machines);
    if !matches!(outcome, Ok(0) | Err(Error::Timeout { .. } | Error::LostVm { .. })) {
        // Before anything is removed.
        for line in rundir::short_of_room(dir) {
            tell!("{line}");
        }
    }
    let net_bytes = if spec.net == Net::Tap { stats::sent_over_network(&parts.machines) } else { None };
    if let (Ok(_), Some(switch)) = (&outcome, &parts.switch) {
        report_lost_files(switch, &parts.machines, events);
    }
    if let Some(service) = &parts.service {
        say(spec, || service.counters());
        if let Some(file) = &spec.stats {
            // The job has ended as it has, whatever becomes of its figures.
            let around = Stats { accel, boot_s, net_bytes };
            if let Err(e) = around.write(file, &service.counters()) {
                tell!("{}", e.line());
            }
        }
    }
    parts.switch = None;
    outcome
}

/// Tells those who look for runs what this one is.
fn describe(spec: &RunSpec, start: &Start, machines: &[Machine]) -> Result<()> {
    let words: Vec<_> = spec.command.iter().map(|word| word.to_string_lossy()).collect();
    let description = Description {
        pid: start.front,
        vms: machines.iter().map(|machine| machine.name.clone()).collect(),
        directory: std::env::current_dir().map_err(|e| Error::io("cannot tell the working directory", e))?,
        command: words.join(" "),
    };
    description.write(&start.dir).map_err(|e| {
        Error::io(format!("cannot write into {}", start.dir.display()), room::told(e, &start.dir))
    })
}

fn say(spec: &RunSpec, text: impl FnOnce() -> String) {
    if spec.verbose {
        tell!("{}", text());
    }
}

/// The directories that the VMs may write.
fn writable_directories(spec: &RunSpec) -> Result<Vec<PathBuf>> {
    if spec.vms == 0 {
        return Ok(Vec::new());
    }
    let may_write = |dir: &Path| rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok();
    let mut writable = Vec::new();
    for dir in &spec.writable {
        let failed = |why: String| Error::Writable { directory: dir.clone(), why };
        let real = fs::canonicalize(dir).map_err(|e| failed(e.to_string()))?;
        if !real.is_dir() {
            return Err(failed("not a directory".into()));
        }
        if real == Path::new("/") {
            return Err(failed("the whole file system cannot be shared writable".into()));
        }
        if !may_write(&real) {
            return Err(failed("you may not write there yourself".into()));
        }
        writable.push(real);
    }
    if !spec.read_only {
        let directory =
            std::env::current_dir().map_err(|e| Error::io("cannot tell the working directory", e))?;
        let fault = if directory == Path::new("/") {
            Some("is the root of the file system and cannot be shared writable")
        } else if !may_write(&directory) {
            Some("is not writable by you, so what ranks write there would be lost")
        } else {
            None
        };
        match fault {
            None => writable.insert(0, directory),
            // Whoever names a place for the results knows about the working directory.
            Some(_) if !writable.is_empty() => {}
            Some(why) => return Err(Error::WorkingDirectory { directory, why }),
        }
    }
    // A directory inside another one is that one's already.
    writable.sort();
    writable.dedup_by(|inner, outer| inner.starts_with(outer));
    Ok(writable)
}

/// How many ranks run in VMs; `None` where the line leaves it open.
fn guest_ranks(spec: &RunSpec) -> Option<u32> {
    let ranks =
        spec.ranks.or_else(|| spec.is_launcher_line().then(|| mpi::ranks_of_line(&spec.command)).flatten());
    ranks.map(|ranks| ranks.saturating_sub(spec.host_ranks))
}

/// Names the VMs that are booted for nothing.
fn tell_of_idle(spec: &RunSpec, names: &[String]) {
    let Some(ranks @ 1..) = guest_ranks(spec) else { return };
    let slots = spec.slots(Some(ranks));
    let idle: Vec<&str> =
        names.iter().zip(slots).filter(|(_, n)| *n == 0).map(|(name, _)| name.as_str()).collect();
    if !idle.is_empty() {
        tell!("with {ranks} of the ranks for {} VMs, none runs in {}", spec.vms, idle.join(", "));
    }
}

fn start_parts(
    platform: &Platform,
    spec: &RunSpec,
    dir: &Path,
    writable: &[PathBuf],
    events: &Sender<Event>,
) -> Result<Parts> {
    let names: Vec<String> = (0..spec.vms).map(|vm| format!("vm{vm}")).collect();
    let ranks = spec.ranks.or_else(|| guest_ranks(spec));
    tell_of_idle(spec, &names);
    let slots = spec.slots(guest_ranks(spec));
    let places = spec.host_ranks.saturating_add(slots.iter().fold(0, |sum, n| sum.saturating_add(*n)));
    let config = service::Config {
        dir: dir.to_owned(),
        region_bytes: spec
            .region_bytes
            .unwrap_or_else(|| service::default_region_bytes(ranks, places, spec.huge_pages)),
        huge_pages: spec.huge_pages,
        shared_bytes: spec.shared_bytes,
        host_ranks: if spec.vms == 0 { ranks.unwrap_or(1) } else { spec.host_ranks },
        vms: names.iter().cloned().zip(slots).collect(),
    };
    let slow = Slow::start("isthmus: making the region");
    let notes = events.clone();
    let note = move |text| {
        let _ = notes.send(Event::Switch(switch::News::Note { text }));
    };
    let service = platform.service.start(&config, spec.verbose, Box::new(note))?;
    drop(slow);
    // At least one, also where all ranks are on the host.
    let cpus = spec.cpus.unwrap_or_else(|| spec.slots(guest_ranks(spec)).into_iter().fold(1, u32::max));
    let mut parts = Parts { switch: None, machines: Vec::new(), network: None, service, cpus };
    if spec.vms == 0 {
        return Ok(parts);
    }
    let plan = Plan { spec, dir, names: &names, cpus, writable, service: parts.service.as_deref() };
    let started = platform.machines.start(&plan)?;
    (parts.machines, parts.network) = (started.machines, started.network);
    let ports = parts
        .machines
        .iter()
        .map(|machine| switch::Ports::of(machine).map_err(|e| Error::io("cannot use the ports of a VM", e)))
        .collect::<Result<Vec<_>>>()?;
    let events = events.clone();
    let report = move |news| {
        let _ = events.send(Event::Switch(news));
    };
    parts.switch = Some(Switch::start(dir, ports, parts.network.as_ref().map(|n| n.host), report)?);
    Ok(parts)
}

/// Waits until every VM's agent has said hello.
fn wait_for_agents(
    _switch: &Switch,
    names: &[&str],
    events: &Receiver<Event>,
    deadline: Option<Instant>,
    spec: &RunSpec,
    machines: &[Machine],
) -> Result<()> {
    let start = Instant::now();
    let how = match stats::accelerator(machines) {
        Some("tcg") => " under emulation (no KVM)",
        _ => "",
    };
    let line = |waiting: &[&str]| format!("isthmus: waiting for {} to boot{how}", waiting.join(", "));
    let slow = Slow::start(line(names));
    let mut waiting: Vec<&str> = names.to_vec();
    let limit = spec.boot_timeout_s.unwrap_or(BOOT_LIMIT_S);
    let up_by = start + Duration::try_from_secs_f64(limit).unwrap_or(Duration::MAX / 4);
    while let Some(first) = waiting.first().copied() {
        match next(events, Some(deadline.map_or(up_by, |d| d.min(up_by)))) {
            Ok(Event::Switch(switch::News::Up { vm })) => {
                waiting.retain(|name| *name != names[vm]);
                slow.goes_on(line(&waiting));
                say(spec, || format!("{} is up after {:.1} s", names[vm], start.elapsed().as_secs_f64()));
            }
            Ok(Event::Switch(switch::News::Lost { vm, why })) if !waiting.contains(&names[vm]) => {
                return Err(Error::LostBefore {
                    vm: names[vm].to_owned(),
                    others: waiting.join(", "),
                    why: with_console(&machines[vm], &why, false),
                });
            }
            Ok(Event::Switch(switch::News::Lost { vm, why })) => {
                return Err(Error::Boot {
                    vm: names[vm].to_owned(),
                    why: with_console(&machines[vm], &why, true),
                });
            }
            Ok(Event::Signal(signal)) if ends(signal) => return Err(Error::Interrupted { signal }),
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => {
                let of = |name: &str, why: String| {
                    let machine = names.iter().zip(machines).find(|(other, _)| **other == name);
                    machine.map_or(why.clone(), |(_, machine)| with_console(machine, &why, true))
                };
                if deadline.is_none_or(|d| up_by < d) {
                    let why = of(first, format!("it did not come up within {limit} s (--boot-timeout)"));
                    return Err(Error::Boot { vm: first.to_owned(), why });
                }
                let each =
                    waiting.iter().map(|name| of(name, format!("\n{name} was still booting"))).collect();
                return Err(timed_out(spec, each));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::Broken("the job's threads ended".into()));
            }
        }
    }
    Ok(())
}

fn ends(signal: i32) -> bool {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    matches!(signal, SIGINT | SIGTERM | SIGHUP)
}

fn timed_out(spec: &RunSpec, meanwhile: String) -> Error {
    Error::Timeout { seconds: spec.timeout_s.unwrap_or_default(), meanwhile }
}

fn with_console(machine: &Machine, why: &str, booting: bool) -> String {
    let mut lines = (machine.console)();
    if !booting {
        lines.retain(|line| !line.starts_with(isthmus_vm::boot_config::STEP));
    }
    let lines = lines.split_off(lines.len().saturating_sub(CONSOLE_LINES));
    if lines.is_empty() {
        why.to_owned()
    } else {
        format!("{why}; its console ended with:\n{}", lines.join("\n"))
    }
}

fn next(events: &Receiver<Event>, deadline: Option<Instant>) -> std::result::Result<Event, RecvTimeoutError> {
    match deadline {
        None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
        Some(deadline) => events.recv_timeout(deadline.saturating_duration_since(Instant::now())),
    }
}

fn write_file(path: &Path, content: &str) -> Result<()> {
    fs::write(path, content)
        .map_err(|e| Error::io(format!("cannot write {}", path.display()), room::told(e, path)))
}

/// Says so where the program was built with another MPI than it is launched with.
fn warn_of_other_mpi(spec: &RunSpec, mpi: &Mpi) {
    let Some(program) = spec.ranks.and(spec.command.first()) else { return };
    let is_open_mpi = matches!(mpi.flavour, Flavour::OpenMpi | Flavour::OpenMpi4);
    if let Some(whose) = named::other_mpi(program, &spec.path(), is_open_mpi) {
        // Where several MPIs share a directory they tell their programs apart by what follows the name.
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

fn start_launcher(spec: &RunSpec, mpi: &Mpi, dir: &Path, parts: &Parts, input: OwnedFd) -> Result<Child> {
    let mut hosts = Vec::new();
    let here = thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX));
    if spec.vms == 0 {
        // The short form has as many places as ranks, whatever the number of processors.
        hosts.extend(spec.ranks.map(|slots| Host { name: "localhost".into(), slots }));
    } else {
        if spec.host_ranks > 0 {
            hosts.push(Host { name: "localhost".into(), slots: spec.host_ranks });
        }
        let slots = spec.slots(guest_ranks(spec));
        hosts.extend(
            parts
                .machines
                .iter()
                .zip(slots)
                .filter(|(_, slots)| *slots > 0)
                .map(|(machine, slots)| Host { name: machine.name.clone(), slots }),
        );
    }
    let crowded =
        hosts.iter().any(|host| host.slots > if host.name == "localhost" { here } else { parts.cpus });
    let prefix = parts.network.as_ref().map(|network| network.prefix.as_slice()).unwrap_or_default();
    let mut command = leash::command_in(prefix, &mpi.launcher)
        .map_err(|e| Error::io("cannot tell where this program is", e))?;
    let host_file = dir.join("hosts");
    if !hosts.is_empty() {
        write_file(&host_file, &mpi::host_file(mpi.flavour, &hosts, spec.map))?;
    }
    let host_file = (!hosts.is_empty()).then_some(host_file.as_path());
    let agent = dir.join(rsh::AGENT_NAME);
    if spec.vms > 0 {
        let program =
            std::env::current_exe().map_err(|e| Error::io("cannot tell where this program is", e))?;
        symlink(program, &agent).map_err(|e| Error::io(format!("cannot make {}", agent.display()), e))?;
    }
    let needs_alias = spec.vms > 0 && parts.network.is_none() && mpi.flavour == Flavour::OpenMpi;
    let alias = if needs_alias { mpi::alias_prefix() } else { None };
    let placement = mpi::Placement {
        dir,
        agent: (spec.vms > 0).then_some(agent.as_path()),
        hosts: host_file,
        host_count: hosts.len(),
        map: spec.map,
        mixed: spec.vms > 0 && spec.host_ranks > 0,
        crowded,
        alias: alias.as_deref(),
    };
    command.envs(mpi::home(mpi)).envs(mpi::launcher(mpi.flavour, &placement));
    if let Some(service) = parts.service.as_ref().filter(|_| !spec.native_transport) {
        let through_region = spec.sends_all_through_region(mpi.flavour);
        command.envs(mpi::transport(mpi.flavour, &mpi::provider_directory()?, through_region));
        command.env("ISTHMUS_SOCKET", service.attach_socket());
    }
    if spec.vms > 0 {
        write_file(&rundir::shm_twin(dir).join(mpi::HINTS_NAME), mpi::HINTS)?;
        command.envs(mpi::files(mpi.flavour, dir));
    }
    command.env(rsh::RUN_VARIABLE, dir);
    for variable in &spec.env {
        set_variable(&mut command, variable);
    }
    if let Some(switch) = &parts.switch {
        switch.admit_visitors(twin(&command, dir)?);
    }
    let arguments = mpi::arguments(spec, mpi.flavour, host_file);
    command.args(&arguments).stdin(Stdio::from(input)).process_group(0);
    say(spec, || {
        let words: Vec<_> = arguments.iter().map(|w| w.to_string_lossy().into_owned()).collect();
        format!("{} {}", mpi.launcher.display(), words.join(" "))
    });
    command.spawn().map_err(|e| Error::io(format!("cannot start {}", mpi.launcher.display()), e))
}

/// What the processes of visitors have in common with the launcher that `command` is, and so with the ranks.
fn twin(command: &std::process::Command, dir: &Path) -> Result<Request> {
    let mut twin =
        exec_as::own_request(Vec::new()).map_err(|e| Error::io("cannot tell what this process is", e))?;
    for (name, value) in command.get_envs() {
        twin.env.retain(|(known, _)| known != name);
        if let Some(value) = value.filter(|_| rsh::for_guests(name)) {
            twin.env.push((name.to_owned(), value.to_owned()));
        }
    }
    twin.make_dirs.push(rundir::shm_twin(dir));
    Ok(twin)
}

/// `NAME=VALUE` sets; `NAME` alone is passed on, which it is anyway wherever we start the processes.
fn set_variable(command: &mut std::process::Command, variable: &std::ffi::OsStr) {
    use std::os::unix::ffi::OsStrExt;
    let bytes = variable.as_bytes();
    if let Some(at) = bytes.iter().position(|b| *b == b'=') {
        command.env(std::ffi::OsStr::from_bytes(&bytes[..at]), std::ffi::OsStr::from_bytes(&bytes[at + 1..]));
    }
}

/// Waits for the launcher's end, handing it signals meanwhile.
#[allow(clippy::too_many_arguments)]
fn follow(
    spec: &RunSpec,
    flavour: Flavour,
    child: &mut Child,
    mapped: &Arc<Mapped>,
    events_in: &Sender<Event>,
    events: &Receiver<Event>,
    deadline: Option<Instant>,
    machines: &[Machine],
) -> Result<i32> {
    let pid = Pid::from_child(child);
    watch_launcher(pid, events_in)?;
    let stuck = events_in.clone();
    if flavour == Flavour::OpenMpi4 {
        stuck::watch(pid, move |child| {
            let _ = stuck.send(Event::Stuck(child));
        });
    }
    let claimed: Vec<Pid> = machines.iter().map(|m| m.pid).chain([pid]).collect();
    let looker = Arc::clone(mapped);
    let _ = thread::Builder::new().name("orphans".into()).spawn(move || {
        let mut seen = Vec::new();
        loop {
            thread::sleep(ORPHANS_EVERY);
            tree::reap_orphans(&claimed, &mut seen);
            looker.look();
        }
    });
    let mut daemons = Daemons::default();
    loop {
        match next(events, deadline) {
            Ok(Event::Signal(signal)) => {
                daemons.asked |= ends(signal);
                if ends(signal) {
                    mapped.look();
                }
                signal_launcher(pid, flavour, signal);
            }
            Ok(Event::Launcher(end)) => {
                end.tell();
                daemons.wait(end.status, events, machines)?;
                // A full line may ask the launcher for its version only.
                let expected = spec.ranks.is_some() && guest_ranks(spec) > Some(0) && !machines.is_empty();
                return if end.status == 0 {
                    daemons.judge(expected, flavour, machines)
                } else {
                    Ok(end.status)
                };
            }
            Ok(Event::Stuck(child)) => {
                mapped.look();
                // What the service has said of ranks is the cause.
                while let Ok(event) = events.try_recv() {
                    if let Event::Switch(news) = event {
                        daemons.hear(news);
                    }
                }
                // It hears no signal; whatever is left is the guardian's.
                return Err(Error::Stuck { child });
            }
            Ok(Event::Switch(switch::News::Lost { vm, why })) => {
                let error = lost(&machines[vm], &why);
                // mpirun would end by itself, with status 0, but its other ranks might not.
                end_launcher(pid, flavour, events);
                return Err(error);
            }
            Ok(Event::Switch(news)) => {
                if matches!(news, switch::News::Note { .. }) {
                    // One has died; the others are about to.
                    mapped.look();
                }
                daemons.hear(news);
            }
            Err(RecvTimeoutError::Timeout) => {
                mapped.look();
                end_launcher(pid, flavour, events);
                return Err(timed_out(spec, String::new()));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::Broken("the job's threads ended".into()));
            }
        }
    }
}

fn signal_launcher(pid: Pid, flavour: Flavour, signal: i32) {
    if let Some(signal) = Signal::from_named_raw(signal) {
        // Intel's mpirun is a script, which waits for its Hydra before it looks at a signal: both are in the launcher's group.
        let _ = match flavour {
            Flavour::Intel => kill_process_group(pid, signal),
            Flavour::OpenMpi | Flavour::OpenMpi4 | Flavour::Mpich => kill_process(pid, signal),
        };
    }
}

fn lost(machine: &Machine, why: &str) -> Error {
    Error::LostVm { vm: machine.name.clone(), why: with_console(machine, why, false) }
}

/// Waits for the process itself, so that its end is told with its status. The [`Child`] is not used for it:
/// it cannot be waited for by one thread and signalled by another.
fn watch_launcher(pid: Pid, events: &Sender<Event>) -> Result<()> {
    let events = events.clone();
    thread::Builder::new()
        .name("launcher".into())
        .spawn(move || {
            let end = loop {
                match rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()) {
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
        .map(drop)
        .map_err(|e| Error::io("cannot start a thread", e))
}

/// Asks the launcher to end, and gives it a little time to do it well; whatever is left is the guardian's.
fn end_launcher(pid: Pid, flavour: Flavour, events: &Receiver<Event>) {
    signal_launcher(pid, flavour, signal_hook::consts::SIGTERM);
    // A stopped launcher would not hear of it.
    signal_launcher(pid, flavour, signal_hook::consts::SIGCONT);
    let deadline = Instant::now() + LAUNCHER_GRACE;
    while let Ok(event) = next(events, Some(deadline)) {
        if matches!(event, Event::Launcher(_)) {
            return;
        }
    }
}

/// What is known of the launcher's daemons in the VMs.
#[derive(Default)]
struct Daemons {
    /// VM and stream of each that runs.
    running: BTreeSet<(usize, u32)>,
    started: bool,
    /// The first that ended badly by itself, or the last to lose its agent; and how.
    bad: Option<(usize, String)>,
    /// Whether a signal has asked for the end, so that deaths are no news.
    asked: bool,
    /// Why the first agent was turned away.
    turned_away: Option<String>,
}

impl Daemons {
    fn hear(&mut self, news: switch::News) {
        match news {
            switch::News::Started { vm, stream } => {
                self.started = true;
                self.running.insert((vm, stream));
            }
            switch::News::Ended { vm, stream, bad } => {
                self.running.remove(&(vm, stream));
                // A launcher that loses one daemon kills the agents of the others: that is not the cause.
                let better =
                    bad.is_some() && self.bad.as_ref().is_none_or(|(_, how)| how == switch::LEFT_BEHIND);
                if let (true, Some(how)) = (better, bad) {
                    self.bad = Some((vm, how));
                }
            }
            switch::News::TurnedAway { why } => {
                self.turned_away.get_or_insert(why);
            }
            switch::News::Note { text } => {
                if !self.asked {
                    tell!("{text}");
                }
            }
            switch::News::Up { .. } | switch::News::Lost { .. } | switch::News::Changes { .. } => {}
        }
    }

    /// The launcher has ended, perhaps because it lost a VM or a daemon, and then with status 0: gives that news a
    /// little time to come.
    fn wait(&mut self, status: i32, events: &Receiver<Event>, machines: &[Machine]) -> Result<()> {
        if machines.is_empty() {
            // What the service has said of ranks is the cause of a bad end.
            while let Ok(event) = events.try_recv() {
                if let Event::Switch(news) = event {
                    self.hear(news);
                }
            }
            return Ok(());
        }
        let deadline = Instant::now() + if status == 0 { DAEMON_GRACE } else { VM_NEWS };
        // Where all have ended in good order, no VM was lost before.
        while status != 0 || self.bad.is_some() || !self.running.is_empty() || !self.started {
            // The VM may be what took a daemon away.
            let until = if status == 0 && self.running.is_empty() {
                deadline.min(Instant::now() + VM_NEWS)
            } else {
                deadline
            };
            match next(events, Some(until)) {
                Ok(Event::Switch(switch::News::Lost { vm, why })) => return Err(lost(&machines[vm], &why)),
                Ok(Event::Switch(news)) => self.hear(news),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// What a launcher's status 0 is worth. Where a signal asked for the end, daemons end as they like: what the launcher
    /// makes of that counts.
    fn judge(self, expected: bool, flavour: Flavour, machines: &[Machine]) -> Result<i32> {
        let ask = match flavour {
            Flavour::OpenMpi | Flavour::OpenMpi4 => "--mpi-arg --debug-daemons",
            Flavour::Mpich | Flavour::Intel => "--mpi-arg -verbose",
        };
        match self.bad {
            _ if self.asked => Ok(0),
            Some((vm, how)) => Err(Error::Daemon { vm: machines[vm].name.clone(), how, ask }),
            None if expected && !self.started => {
                let why = self.turned_away.map(|why| format!(": {why}")).unwrap_or_default();
                Err(Error::NothingRan { why, ask })
            }
            None => Ok(0),
        }
    }
}

/// Asks the agents which files vanish with their VMs, and prints that.
fn report_lost_files(switch: &Switch, machines: &[Machine], events: &Receiver<Event>) {
    (0..machines.len()).for_each(|vm| switch.ask_changes(vm));
    let deadline = Instant::now() + CHANGES_LIMIT;
    let mut missing = machines.len();
    let mut lost = LostFiles::default();
    while missing > 0 {
        match next(events, Some(deadline)) {
            Ok(Event::Switch(switch::News::Changes { vm, changes })) => {
                missing -= 1;
                lost.add(&machines[vm].name, changes);
            }
            Ok(Event::Switch(switch::News::Lost { .. })) => missing -= 1,
            Ok(_) => {}
            Err(_) => break,
        }
    }
    for line in lost.lines() {
        tell!("{line}");
    }
}
