//! The job: the process that does the run's work.
//!
//! It starts the host service, the VMs, the switch and the launcher, in this order, and waits for the first
//! of: the launcher's end, a lost VM, the time-out. It answers the front once and ends; the guardian sees
//! that, and ends and removes what is left.

mod boot;
mod launcher;
mod verdict;

use std::ffi::OsString;
use std::io::Read;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{getpid, set_child_subreaper};

use self::boot::{Parts, writable_directories};
use self::launcher::{LauncherEnd, may_be_root, warn_of_mpi, warn_of_other_mpi};
use crate::error::{Error, Result, tell};
use crate::front::{FromJob, ToJob};
use crate::guardian::{self, Start};
use crate::machines::{CONSOLE_LINES, Machine, StartMachines};
use crate::mapped::Mapped;
use crate::mpi::{self, Mpi};
use crate::service::StartService;
use crate::spec::{ExitCode, Launcher, Net, RunSpec};
use crate::starting::Starting;
use crate::stats::{self, Stats};
use crate::switch;
use crate::{descriptors, named, pass, rundir, terminal};

/// The parts of a run that are not decided here.
pub struct Platform {
    /// Starts VMs.
    pub machines: Box<dyn StartMachines>,
    /// Starts the host service.
    pub service: Box<dyn StartService>,
}

/// What the job waits for.
enum Event {
    /// The front sends the launcher a signal.
    Signal(i32),
    /// The launcher ended.
    Launcher(LauncherEnd),
    /// The launcher will never end: it does not reap this child of its own.
    Stuck(i32),
    /// News of the switch.
    Switch(switch::News),
}

/// A run while its job lasts: what was asked for, and the events that the job waits for.
struct Run<'a> {
    platform: &'a Platform,
    spec: RunSpec,
    start: Start,
    starting: Starting,
    /// When the run has lasted as long as it may.
    deadline: Option<Instant>,
    /// For the threads that see an event.
    sender: Sender<Event>,
    events: Receiver<Event>,
}

/// The job's whole life. Returns an exit status, which is not read.
pub fn main(platform: &Platform) -> i32 {
    terminal::let_stop();
    terminal::leave_signals_to_front();
    let Ok(guardian) = pass::take_stdin_socket() else { return 1 };
    let Ok(Some((start, fds))) = pass::receive::<Start>(&guardian) else { return 1 };
    let Ok([front, input]) = <[OwnedFd; 2]>::try_from(fds) else { return 1 };
    let front = UnixStream::from(front);
    if set_child_subreaper(Some(getpid())).is_err() {
        return 1;
    }
    descriptors::allow_many();
    let Ok(ending) = guardian.try_clone() else { return 1 };
    let (sender, events) = mpsc::channel();
    let Ok(Some((spec, _))) = pass::receive::<RunSpec>(&front) else { return 1 };
    let _ = pass::send(&front, &FromJob::Hello { pid: getpid().as_raw_nonzero().get() }, &[]);
    let (Ok(told), Ok(over)) = (front.try_clone(), guardian.try_clone()) else { return 1 };
    let starting = Starting::new(told, over);
    let deadline = spec.timeout_s.map(|s| Instant::now() + Duration::from_secs_f64(s));
    let run = Run { platform, spec, start, starting, deadline, sender, events };
    let watched = run.watch_guardian(guardian).and_then(|()| run.watch_front(&front));
    let outcome = watched.and_then(|()| run.carry_out(input));
    let (code, line) = match outcome {
        Ok(code) => (code, None),
        Err(e) => (e.exit_code(), Some(e.line())),
    };
    let _ = pass::send(&front, &FromJob::Done { code, line }, &[]);
    // The guardian takes this for the end, clears up, and ends this process last. Until then this process must live: if
    // front and guardian are killed now, its threads do what is left to do.
    let _ = ending.shutdown(Shutdown::Write);
    loop {
        thread::park();
    }
}

/// Ends everything, since guardian or front has ended and the other one may have, too.
fn abandon(start: &Start) -> ! {
    guardian::clear(start, None, &[]);
    std::process::exit(ExitCode::FAILURE)
}

/// Starts a thread, which is not joined.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = thread::Builder::new().name(name.into()).spawn(work);
    started.map(drop).map_err(|e| Error::io("cannot start a thread", e))
}

impl Run<'_> {
    fn dir(&self) -> &Path {
        &self.start.dir
    }

    fn watch_guardian(&self, mut guardian: UnixStream) -> Result<()> {
        let start = self.start.clone();
        spawn("guardian", move || {
            let _ = guardian.read(&mut [0]);
            abandon(&start)
        })
    }

    fn watch_front(&self, front: &UnixStream) -> Result<()> {
        let front = front.try_clone().map_err(|e| Error::io("cannot duplicate a socket", e))?;
        let (start, events, starting) = (self.start.clone(), self.sender.clone(), self.starting.clone());
        spawn("front", move || {
            while let Ok(Some((ToJob::Signal(signal), _))) = pass::receive(&front) {
                if ends(signal) {
                    starting.end(&Error::Interrupted { signal });
                }
                let _ = events.send(Event::Signal(signal));
            }
            abandon(&start)
        })
    }

    fn carry_out(&self, input: OwnedFd) -> Result<i32> {
        let spec = &self.spec;
        let late = self.timed_out("\nthe run was still being made ready".into());
        let (mpi, preload, begin, mut parts) =
            self.starting.busy(self.deadline, || late, || self.make_ready())?;
        if parts.switch.is_some() {
            self.describe(&parts.machines)?;
            self.wait_for_agents(&parts.machines)?;
        }
        let boot_s = begin.elapsed().as_secs_f64();
        let accel = stats::accelerator(&parts.machines);
        match &mpi {
            Some(mpi) => warn_of_other_mpi(spec, mpi),
            None => warn_of_mpi(spec),
        }
        let mapped = Mapped::watch(self.dir());
        let launcher = self.start_launcher(mpi.as_ref(), preload.as_deref(), &parts, input)?;
        let outcome = self.follow(&launcher, &parts.machines, &mapped);
        let is_plain = matches!(outcome, Ok(0) | Err(Error::Timeout { .. } | Error::LostVm { .. }));
        if !is_plain && mpi.is_some() {
            // Before anything is removed.
            for line in rundir::short_of_room(self.dir()) {
                tell!("{line}");
            }
        }
        let net_bytes =
            if spec.vm.net == Net::Tap { stats::sent_over_network(&parts.machines) } else { None };
        if let (Ok(_), Some(switch)) = (&outcome, &parts.switch) {
            self.report_lost_files(switch, &parts.machines);
        }
        if let Some(service) = &parts.service {
            self.say(|| service.counters());
            if let Some(file) = &spec.stats {
                // Figures that cannot be written do not change the job's outcome.
                let around = Stats { accel, boot_s, net_bytes };
                if let Err(e) = around.write(file, &parts.writable, &service.counters()) {
                    tell!("{}", e.line());
                }
            }
        }
        parts.switch = None;
        outcome
    }

    /// All that comes before the launcher: the MPI, what is preloaded, and the parts of the run, with the time at which these were begun.
    fn make_ready(&self) -> Result<(Option<Mpi>, Option<OsString>, Instant, Parts)> {
        let spec = &self.spec;
        let mpi = match spec.launcher {
            Launcher::Auto => Some(self.find_mpi()?),
            Launcher::None => None,
        };
        let preload = spec.preload()?;
        let writable = writable_directories(spec)?;
        if let Some(file) = spec.stats.as_ref().filter(|_| !writable.is_empty()) {
            named::may_write_beside(file, &writable)
                .map_err(|e| Error::Usage(format!("--stats {}: {e}", file.display())))?;
        }
        let begin = Instant::now();
        Ok((mpi, preload, begin, self.start_parts(writable)?))
    }

    /// The launcher of the MPI, which will start for this user.
    fn find_mpi(&self) -> Result<Mpi> {
        let spec = &self.spec;
        let line = spec.is_launcher_line().then(|| spec.command[0].as_os_str());
        let mpi = mpi::find(spec.mpi.as_deref(), line)?;
        self.say(|| format!("{} {} at {}", mpi.flavour.name(), mpi.version, mpi.launcher.display()));
        if mpi.flavour.is_open_mpi() && !may_be_root(spec) {
            return Err(Error::Root { launcher: mpi.launcher });
        }
        Ok(mpi)
    }

    /// Says what is done, if the user asked for that.
    fn say(&self, text: impl FnOnce() -> String) {
        if self.spec.verbose {
            tell!("{}", text());
        }
    }

    fn timed_out(&self, meanwhile: String) -> Error {
        Error::Timeout { seconds: self.spec.timeout_s.unwrap_or_default(), meanwhile }
    }

    /// The next event, or a time-out at `until`.
    fn next(&self, until: Option<Instant>) -> std::result::Result<Event, RecvTimeoutError> {
        match until {
            None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(until) => self.events.recv_timeout(until.saturating_duration_since(Instant::now())),
        }
    }
}

fn ends(signal: i32) -> bool {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    matches!(signal, SIGINT | SIGTERM | SIGHUP)
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
