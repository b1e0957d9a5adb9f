//! A session: one process that was asked for, and all its descendants.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::{
    Pid, PidfdFlags, Signal, Uid, kill_process, kill_process_group, pidfd_open, pidfd_send_signal,
};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::exec_as;
use crate::processes;
use crate::wire::{Exit, Request, Window};

/// How long output may keep coming after everything in a session was killed, without the time in which its reader holds it up or this
/// process has no processor.
const OUTPUT_GRACE: Duration = Duration::from_secs(2);
/// What counts of that at most between two looks.
const LOOK: Duration = Duration::from_millis(40);

/// Our ends of a process's standard streams.
pub(super) enum Streams {
    Pipes {
        stdin: OwnedFd,
        stdout: OwnedFd,
        stderr: OwnedFd,
    },
    /// One terminal for both directions.
    Terminal {
        master: OwnedFd,
    },
}

pub(super) struct Session {
    /// The first process; also the number of the session and of its process group.
    first: Pid,
    /// The same process, whoever has its number once it has ended.
    handle: OwnedFd,
    cgroup: Option<PathBuf>,
    /// How it ended, how much of [`OUTPUT_GRACE`] is used up, and when that was looked at last.
    exit: Option<(Exit, Duration, Instant)>,
    killed: bool,
    /// The terminal's master, to set its size.
    terminal: Option<OwnedFd>,
}

/// A new terminal that belongs to `request`'s user: our end, and the process's.
fn terminal(request: &Request, window: Window) -> io::Result<(OwnedFd, OwnedFd)> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let name = ptsname(&master, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let slave = rustix::fs::open(name, flags, Mode::empty())?;
    // Programs open it anew, as /dev/tty or by its name. Fails without root, and then it is the user's already.
    let _ = rustix::fs::fchown(&slave, Some(Uid::from_raw(request.uid)), None);
    set_window(&master, window)?;
    Ok((master, slave))
}

fn set_window(terminal: &OwnedFd, window: Window) -> io::Result<()> {
    let Window { rows, columns, width, height } = window;
    Ok(tcsetwinsize(
        terminal,
        Winsize { ws_row: rows, ws_col: columns, ws_xpixel: width, ws_ypixel: height },
    )?)
}

/// How a process ended; status 255 if that is unknown.
pub(super) fn exit_of(status: io::Result<ExitStatus>) -> Exit {
    match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, Some(signal)) => Exit::Signal(signal),
            (None, None) => Exit::Code(255),
        },
        Err(_) => Exit::Code(255),
    }
}

/// Starts the first process of a session.
fn begin(request: &Request, cgroup: Option<&Path>) -> Result<(Streams, Child), String> {
    let mut command = exec_as::command(request, cgroup);
    let failed = |e: io::Error| format!("cannot start a process: {e}");
    if let Some(window) = request.terminal {
        let no_terminal = |e: io::Error| format!("cannot make a terminal: {e}");
        let (master, slave) = terminal(request, window).map_err(no_terminal)?;
        let copy = || slave.try_clone().map(Stdio::from).map_err(no_terminal);
        command.stdin(copy()?).stdout(copy()?).stderr(slave);
        return Ok((Streams::Terminal { master }, command.spawn().map_err(failed)?));
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    match (child.stdin.take(), child.stdout.take(), child.stderr.take()) {
        (Some(stdin), Some(stdout), Some(stderr)) => {
            Ok((Streams::Pipes { stdin: stdin.into(), stdout: stdout.into(), stderr: stderr.into() }, child))
        }
        _ => Err("a process without its pipes".into()),
    }
}

impl Session {
    pub(super) fn start(
        stream: u32,
        request: &Request,
        cgroups: Option<&Path>,
    ) -> Result<(Self, Streams, Child), String> {
        let cgroup = match cgroups {
            None => None,
            Some(parent) => {
                let group = parent.join(format!("session-{stream}"));
                fs::create_dir(&group).map_err(|e| format!("cannot make {}: {e}", group.display()))?;
                Some(group)
            }
        };
        let begun = begin(request, cgroup.as_deref()).and_then(|(streams, mut child)| {
            let first = Pid::from_child(&child);
            let both = pidfd_open(first, PidfdFlags::empty()).map_err(io::Error::from).and_then(|handle| {
                let terminal = match &streams {
                    Streams::Terminal { master } => Some(master.try_clone()?),
                    Streams::Pipes { .. } => None,
                };
                Ok((handle, terminal))
            });
            let (handle, terminal) = both.map_err(|e| {
                // It has no descendants yet, or they end with its streams.
                let _ = child.kill();
                format!("cannot hold on to a process: {e}")
            })?;
            Ok((first, handle, terminal, streams, child))
        });
        let (first, handle, terminal, streams, child) = begun.inspect_err(|_| {
            cgroup.as_ref().map(fs::remove_dir);
        })?;
        Ok((Self { first, handle, cgroup, exit: None, killed: false, terminal }, streams, child))
    }

    /// Sets the size of the session's terminal, if it has one; the kernel signals that to its processes.
    pub(super) fn resize(&self, window: Window) {
        if let Some(terminal) = &self.terminal {
            let _ = set_window(terminal, window);
        }
    }

    /// Sends a signal to the first process and its process group.
    pub(super) fn signal(&self, signal: u32) {
        let signal = i32::try_from(signal).ok().and_then(Signal::from_named_raw);
        if let (Some(signal), None) = (signal, self.exit) {
            // The group does not exist before the process has made its session.
            if kill_process_group(self.first, signal).is_err() {
                let _ = kill_process(self.first, signal);
            }
        }
    }

    /// Kills everything in the session.
    pub(super) fn kill(&mut self) {
        self.killed = true;
        if let Some(group) = &self.cgroup {
            let kill_group = || fs::write(group.join("cgroup.kill"), "1").is_ok();
            if kill_group() {
                // The first process enters the group by itself, perhaps only now: it is killed wherever it is, and what it may have
                // started meanwhile is in the group.
                let _ = pidfd_send_signal(&self.handle, Signal::KILL);
                kill_group();
                return;
            }
        }
        let first = self.first.as_raw_nonzero().get();
        // Processes that fork meanwhile are found in the next round.
        for _ in 0..50 {
            // A failure to read `/proc` may be gone in the next round.
            let Ok(all) = processes::all() else { continue };
            let mut roots: Vec<i32> = all.iter().filter(|p| p.session == first).map(|p| p.pid).collect();
            roots.push(first);
            let mut members = processes::below(&all, &roots);
            members.extend(all.iter().filter(|p| roots.contains(&p.pid)));
            members.retain(|p| !p.zombie);
            // Once the first process is reaped, its number may be another process's.
            if self.exit.is_some() {
                members.retain(|p| p.pid != first);
            }
            if members.is_empty() {
                return;
            }
            for member in members {
                if let Some(pid) = Pid::from_raw(member.pid) {
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
        }
    }

    /// Ends the session, since its first process has ended.
    pub(super) fn first_ended(&mut self, exit: Exit) {
        self.exit = Some((exit, Duration::ZERO, Instant::now()));
        self.kill();
    }

    pub(super) fn is_ending(&self) -> bool {
        self.exit.is_some()
    }

    /// Whether the session and its output have ended, or the output has had time enough. What waits for its reader is not lost.
    pub(super) fn is_over(&mut self, output_open: bool, is_held_up: bool) -> bool {
        self.exit.as_mut().is_some_and(|(_, used, looked)| {
            let passed = std::mem::replace(looked, Instant::now()).elapsed().min(LOOK);
            *used += if is_held_up { Duration::ZERO } else { passed };
            !output_open || *used > OUTPUT_GRACE
        })
    }

    pub(super) fn exit(&self) -> Option<Exit> {
        self.exit.map(|(exit, ..)| exit)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.killed {
            self.kill();
        }
        if let Some(group) = &self.cgroup {
            // Fails while killed processes are still leaving; an empty group left behind costs nothing.
            let _ = fs::remove_dir(group);
        }
    }
}
