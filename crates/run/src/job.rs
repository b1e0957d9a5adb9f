//! The job: the process that does the run's work.
//!
//! It starts the host service, the VMs, the switch and the launcher, in this order, and waits for the first
//! of: the launcher's end, a lost VM, the time-out. It answers the front once and ends; the guardian sees
//! that, and ends and removes what is left.

mod boot;
mod launcher;
mod verdict;

use std::io::Read;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{getpid, set_child_subreaper};

use self::boot::{describe, start_parts, wait_for_agents, writable_directories};
use self::launcher::{LauncherEnd, may_be_root, start_launcher, warn_of_other_mpi};
use self::verdict::{follow, report_lost_files};
use crate::error::{Error, Result, tell};
use crate::front::{FromJob, ToJob};
use crate::guardian::{self, Start};
use crate::machines::{CONSOLE_LINES, Machine, StartMachines};
use crate::mapped::Mapped;
use crate::mpi;
use crate::service::StartService;
use crate::spec::{ExitCode, Net, RunSpec};
use crate::starting::Starting;
use crate::stats::{self, Stats};
use crate::switch;
use crate::{pass, rundir, terminal};

/// The parts of a run that are not decided here.
pub struct Platform {
    /// Starts VMs.
    pub machines: Box<dyn StartMachines>,
    /// Starts the host service.
    pub service: Box<dyn StartService>,
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

fn say(spec: &RunSpec, text: impl FnOnce() -> String) {
    if spec.verbose {
        tell!("{}", text());
    }
}

/// How many ranks run in VMs; `None` where the line leaves it open.
fn guest_ranks(spec: &RunSpec) -> Option<u32> {
    let ranks =
        spec.ranks.or_else(|| spec.is_launcher_line().then(|| mpi::ranks_of_line(&spec.command)).flatten());
    ranks.map(|ranks| ranks.saturating_sub(spec.host_ranks))
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
