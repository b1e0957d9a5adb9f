//! The front: the process that the caller started.
//!
//! It starts the guardian, passes signals on to the job, copies a terminal's input, and ends with the job's
//! status when everything is gone. Guardian, job and launcher are in process groups of their own, so a key
//! pressed at a terminal reaches the launcher once, through here.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use isthmus_attach::daemon::not_ignored;
use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::error::{Error, Result, tell};
use crate::guardian::{self, Start};
use crate::spec::{ExitCode, RunSpec};
use crate::{pass, rundir, terminal};

/// Two interrupts closer than this are one: `timeout -s INT` signals a process and its group at once.
const SAME_INTERRUPT: Duration = Duration::from_millis(150);
/// How long to wait for the job's last message once everything has ended.
const LATE: Duration = Duration::from_secs(1);

/// From the front to the job, after the [`RunSpec`].
#[derive(Debug, Serialize, Deserialize)]
pub enum ToJob {
    /// A signal for the launcher.
    Signal(i32),
}

/// From the job to the front.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromJob {
    /// First of all: the job's process.
    Hello {
        /// Its number.
        pid: i32,
    },
    /// The run is over.
    Done {
        /// The exit status.
        code: i32,
        /// What to print after `isthmus: `.
        line: Option<String>,
    },
}

enum Event {
    Signal(i32),
    Job(FromJob),
    /// It has closed its socket: nothing more comes.
    JobSilent,
    /// It has ended, with this status.
    GuardianGone(Option<i32>),
}

/// Runs `spec` and returns the exit status of the whole.
pub fn run(spec: &RunSpec) -> i32 {
    let (spec, settled) = spec.settled();
    let outcome = spec.check().and_then(|()| {
        if let Some(line) = settled {
            tell!("{line}");
        }
        carry_out(&spec)
    });
    match outcome {
        Ok((code, line)) => {
            if let Some(line) = line {
                tell!("{line}");
            }
            code
        }
        Err(e) => {
            tell!("{}", e.line());
            e.exit_code()
        }
    }
}

fn in_background(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = thread::Builder::new().name(name.into()).spawn(work);
    started.map(drop).map_err(|e| Error::io("cannot start a thread", e))
}

fn watch_signals(events: Sender<Event>) -> Result<()> {
    let wanted = not_ignored(&[SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT]);
    let mut signals = Signals::new(wanted).map_err(|e| Error::io("cannot watch signals", e))?;
    in_background("signals", move || {
        for signal in signals.forever() {
            if events.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    })
}

fn carry_out(spec: &RunSpec) -> Result<(i32, Option<String>)> {
    // As a shell's `monitor & exec isthmus run` leaves them.
    let others = isthmus_guest::processes::children(getpid().as_raw_nonzero().get());
    // If the guardian dies, this process adopts what was below it.
    set_child_subreaper(Some(getpid())).map_err(|e| Error::io("cannot become a subreaper", e))?;
    let (send, events) = mpsc::channel();
    watch_signals(send.clone())?;
    let start = Start { dir: rundir::choose(&spec.shares())?, keep: spec.keep, front: std::process::id() };
    let (job, job_end) = UnixStream::pair().map_err(|e| Error::io("cannot make a socket", e))?;
    let input = terminal::input().map_err(|e| Error::io("cannot pass on standard input", e))?;
    let (child, guardian) =
        guardian::spawn(guardian::GUARDIAN_COMMAND, &start, &[job_end.as_fd(), input.as_fd()])
            .map_err(|e| Error::io("cannot start the guardian", e))?;
    drop((job_end, input));
    // A job that has ended already shows that by the end of its stream.
    let _ = pass::send(&job, spec, &[]);
    watch_processes(&job, child, send)?;
    let mut job_pid = None;
    let mut cleared = false;
    let outcome = follow(&job, guardian, &events, &mut job_pid, &mut cleared);
    // Only if the guardian was killed: processes that others of this process's children left to it are taken for the run's then.
    if !cleared {
        for line in guardian::clear(&start, job_pid, &others) {
            tell!("{line}");
        }
    }
    if spec.keep && start.dir.exists() {
        tell!("kept {}", start.dir.display());
    }
    outcome
}

fn watch_processes(job: &UnixStream, mut guardian: Child, events: Sender<Event>) -> Result<()> {
    let job = job.try_clone().map_err(|e| Error::io("cannot duplicate a socket", e))?;
    let send = events.clone();
    in_background("job", move || {
        while let Ok(Some((message, _))) = pass::receive(&job) {
            if send.send(Event::Job(message)).is_err() {
                return;
            }
        }
        let _ = send.send(Event::JobSilent);
    })?;
    in_background("guardian", move || {
        let status = guardian.wait().ok().and_then(|status| status.code());
        let _ = events.send(Event::GuardianGone(status));
    })
}

/// Until the guardian has ended; says in `cleared` whether it has ended everything else before.
fn follow(
    job: &UnixStream,
    guardian: UnixStream,
    events: &Receiver<Event>,
    job_pid: &mut Option<Pid>,
    cleared: &mut bool,
) -> Result<(i32, Option<String>)> {
    let mut guardian = Some(guardian);
    let mut done = None;
    let mut interrupted: Option<Instant> = None;
    let mut ending = false;
    let mut silent = false;
    loop {
        match events.recv() {
            Ok(Event::Job(FromJob::Hello { pid })) => *job_pid = Pid::from_raw(pid),
            Ok(Event::Job(FromJob::Done { code, line })) => {
                done.get_or_insert((code, line));
            }
            Ok(Event::JobSilent) => silent = true,
            Ok(Event::GuardianGone(status)) => {
                *cleared = matches!(status, Some(0 | guardian::SAID_WHY));
                if status == Some(guardian::SAID_WHY) {
                    done.get_or_insert((ExitCode::FAILURE, None));
                }
                break;
            }
            Err(_) => break,
            Ok(Event::Signal(signal)) => {
                match signal {
                    SIGINT => match interrupted {
                        Some(first) if first.elapsed() < SAME_INTERRUPT => continue,
                        Some(_) => {
                            // The guardian ends everything when this socket is closed.
                            guardian = None;
                            done.get_or_insert((
                                130,
                                Some("interrupted twice: everything was killed".into()),
                            ));
                            continue;
                        }
                        None => interrupted = Some(Instant::now()),
                    },
                    // A second one would make a launcher skip its own clearing up.
                    SIGTERM | SIGHUP if ending => continue,
                    SIGTERM | SIGHUP => ending = true,
                    // Nobody would continue it.
                    SIGTSTP if terminal::has_terminal() && !terminal::has_job_control() => continue,
                    _ => {}
                }
                let _ = pass::send(job, &ToJob::Signal(signal), &[]);
                if signal == SIGTSTP {
                    let _ = kill_process(getpid(), Signal::STOP);
                }
            }
        }
    }
    drop(guardian);
    done.ok_or_else(|| {
        Error::Broken("the run was killed from outside; everything that it had started was ended".into())
    })
    // The job's last message came before the guardian's end, but another thread reads it, perhaps later.
    .or_else(|broken| {
        let until = Instant::now() + LATE;
        while !silent && let Ok(event) = events.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            match event {
                Event::Job(FromJob::Done { code, line }) => return Ok((code, line)),
                Event::JobSilent => silent = true,
                _ => {}
            }
        }
        Err(broken)
    })
}

/// The status with which a shell would report `signal`.
pub fn status_of_signal(signal: i32) -> i32 {
    128_i32.checked_add(signal).unwrap_or(ExitCode::FAILURE)
}
