//! Our own launcher, for programs without an MPI (`--launcher none`).
//!
//! It takes an MPI's launcher's place in a run, and does what is common to all of them: it starts each process where it
//! belongs, on this host by itself and in a VM through a stand-in ([`crate::rsh::on_main`]), gives standard input to the first
//! one, passes signals on, and ends when all have ended, with the status of the first that failed. One that fails does not end
//! the others.
//!
//! A process knows its number and how many there are from `ISTHMUS_RANK` and `ISTHMUS_SIZE`; isthmus itself does not read them.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use isthmus_attach::daemon::not_ignored;
use isthmus_region::room::limit_told;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, wait};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGSTOP, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::error::tell;
use crate::front::status_of_signal;
use crate::mpi::{self, Host};
use crate::named;
use crate::rsh::ON_COMMAND;
use crate::spec::{ExitCode, Map};

/// The hidden subcommand that runs [`main`].
pub const LAUNCH_COMMAND: &str = "launch";
/// The variable that tells a process its number, from 0 on.
pub const RANK_VARIABLE: &str = "ISTHMUS_RANK";
/// The variable that tells it how many there are.
pub const SIZE_VARIABLE: &str = "ISTHMUS_SIZE";
/// This host, among hosts.
pub const HERE: &str = "localhost";

/// How long the others may take to end where one cannot be started.
const GRACE: Duration = Duration::from_secs(5);
/// How often to look for that.
const TICK: Duration = Duration::from_millis(20);

/// The host of each of so many processes.
fn places(hosts: &[Host], map: Map, count: u32) -> Vec<String> {
    let dealt = match map {
        Map::Block => hosts.to_vec(),
        Map::Cyclic => mpi::dealt(hosts),
    };
    let names = dealt.iter().flat_map(|host| (0..host.slots).map(|_| host.name.clone()));
    names.take(usize::try_from(count).unwrap_or(usize::MAX)).collect()
}

/// The arguments of the launcher, by which [`main`] knows what to start where.
pub fn arguments(hosts: &[Host], map: Map, count: u32, command: &[OsString]) -> Vec<OsString> {
    let words = [LAUNCH_COMMAND.into(), places(hosts, map, count).join(",").into()];
    words.into_iter().chain(command.iter().cloned()).collect()
}

/// A process of the job.
struct Process {
    pid: Pid,
    /// Whether it stands for one in a VM.
    stands_in: bool,
    has_ended: bool,
}

impl Process {
    fn signal(&self, signal: i32) {
        if self.has_ended {
            return;
        }
        // So that all stop, whatever they have made of TSTP.
        let signal = if signal == SIGTSTP && !self.stands_in { SIGSTOP } else { signal };
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        // What it has started is meant, too. A stand-in sees to that in its VM.
        let _ = if self.stands_in {
            kill_process(self.pid, signal)
        } else {
            kill_process_group(self.pid, signal)
        };
    }
}

/// The job's processes.
#[derive(Default)]
struct Processes(Mutex<List>);

#[derive(Default)]
struct List {
    all: Vec<Process>,
    /// A signal that has asked for the end: deaths are no news then, and none is started any more.
    asked: Option<i32>,
}

impl Processes {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal(&self, signal: i32) {
        let mut list = self.lock();
        if matches!(signal, SIGINT | SIGTERM | SIGHUP) {
            list.asked.get_or_insert(signal);
        }
        list.all.iter().for_each(|process| process.signal(signal));
    }
}

/// `isthmus launch HOST,HOST,... PROGRAM ARGS...`: one process for each of the hosts. `args` begins with the hosts. Returns an
/// exit status.
pub fn main(args: &[OsString]) -> i32 {
    let [hosts, program, rest @ ..] = args else { return ExitCode::USAGE };
    let hosts = hosts.to_string_lossy();
    let hosts: Vec<&str> = hosts.split(',').collect();
    let processes = Arc::new(Processes::default());
    if let Err(e) = pass_signals_on(&processes) {
        tell!("cannot watch signals: {e}");
        return ExitCode::FAILURE;
    }
    let program = beside(program);
    let (mut first_bad, mut patience) = (None, None);
    for (rank, host) in hosts.iter().enumerate() {
        match start(rank, hosts.len(), host, &program, rest, &processes) {
            Ok(true) => {}
            // Those that run have the signal, and this one would never get it.
            Ok(false) => break,
            Err((status, why)) => {
                tell!("cannot start process {rank} on {host}: {why}{}", limit_told(&why));
                first_bad.get_or_insert(status);
                // Without one of them the job makes no sense.
                processes.signal(SIGTERM);
                patience = Some(Instant::now() + GRACE);
                break;
            }
        }
    }
    wait_for_all(&processes, &hosts, first_bad, patience)
}

/// A bare name that is not on the PATH is a program of this directory, as MPIs' launchers have it.
fn beside(program: &OsStr) -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_bare = !program.as_encoded_bytes().contains(&b'/');
    match Path::new(".").join(program) {
        here if is_bare && !named::is_on_path(program, &path) && here.is_file() => here.into(),
        _ => program.to_owned(),
    }
}

fn start(
    rank: usize,
    size: usize,
    host: &str,
    program: &OsStr,
    args: &[OsString],
    processes: &Processes,
) -> Result<bool, (i32, io::Error)> {
    let stands_in = host != HERE;
    let mut command = if stands_in {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("isthmus").args([ON_COMMAND, host]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.args(args).env(RANK_VARIABLE, rank.to_string()).env(SIZE_VARIABLE, size.to_string());
    if rank > 0 {
        command.stdin(Stdio::null());
    }
    // No signal is missed: they are passed on under this lock.
    let mut processes = processes.lock();
    if processes.asked.is_some() {
        return Ok(false);
    }
    let child = command.process_group(0).spawn().map_err(|e| {
        let status = if e.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
        (status, e)
    })?;
    processes.all.push(Process { pid: Pid::from_child(&child), stands_in, has_ended: false });
    Ok(true)
}

/// Passes signals on to the processes, but for those that this one was started to ignore: so the processes do.
fn pass_signals_on(processes: &Arc<Processes>) -> io::Result<()> {
    let mut signals =
        Signals::new(not_ignored(&[SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT]))?;
    let processes = Arc::clone(processes);
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                processes.signal(signal);
            }
        })
        .map(drop)
}

/// Returns once all have ended: 0, or the status of the first that failed. Those that live at `patience` are killed.
fn wait_for_all(
    processes: &Processes,
    hosts: &[&str],
    bad_already: Option<i32>,
    mut patience: Option<Instant>,
) -> i32 {
    let mut first_bad = bad_already;
    let (mut left, is_whole) = {
        let list = processes.lock();
        // What a signal kept from being started has its status.
        let is_whole = list.all.len() == hosts.len() || first_bad.is_some();
        (list.all.len(), is_whole)
    };
    while left > 0 {
        if patience.take_if(|until| Instant::now() >= *until).is_some() {
            processes.signal(SIGKILL);
        }
        let options = if patience.is_some() { WaitOptions::NOHANG } else { WaitOptions::empty() };
        let (pid, ended) = match wait(options) {
            Ok(Some(ended)) => ended,
            // No thread sees to it, since there may be none left to be had.
            Ok(None) if patience.is_some() => {
                thread::sleep(TICK);
                continue;
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return first_bad.unwrap_or(ExitCode::FAILURE),
        };
        let signal = ended.terminating_signal();
        let Some(status) = ended.exit_status().or(signal.map(status_of_signal)) else { continue };
        let mut list = processes.lock();
        let Some(rank) = list.all.iter().position(|process| process.pid == pid) else { continue };
        list.all[rank].has_ended = true;
        left -= 1;
        if status != 0 && first_bad.is_none() {
            first_bad = Some(status);
            // Of one process, the status says all.
            if list.all.len() > 1 && list.asked.is_none() {
                let how = match signal {
                    Some(signal) => format!("was killed by signal {signal}"),
                    None => format!("ended with status {status}"),
                };
                tell!("process {rank} on {} {how}, the first to fail", hosts.get(rank).unwrap_or(&HERE));
            }
        }
    }
    let kept = processes.lock().asked.filter(|_| !is_whole).map(status_of_signal);
    first_bad.or(kept).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_spread_as_ranks_are() {
        let hosts = [("localhost", 1), ("vm0", 2), ("vm1", 2)];
        let hosts = hosts.map(|(name, slots)| Host { name: name.into(), slots });
        assert_eq!(places(&hosts, Map::Block, 4), ["localhost", "vm0", "vm0", "vm1"]);
        assert_eq!(places(&hosts, Map::Cyclic, 5), ["localhost", "vm0", "vm1", "vm0", "vm1"]);
        let words = arguments(&hosts, Map::Block, 2, &["./a".into(), "b c".into()]);
        assert_eq!(words, ["launch", "localhost,vm0", "./a", "b c"]);
    }
}
