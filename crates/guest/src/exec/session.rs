//! One process that was asked for, and everything that comes of it.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::exec_as;
use crate::processes;
use crate::wire::{Exit, Request};

/// How long output may keep coming after everything in a session was killed.
const OUTPUT_GRACE: Duration = Duration::from_secs(2);

pub(super) struct Pipes {
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

pub(super) struct Session {
    /// The first process; also the number of the session and of its process group.
    first: Pid,
    cgroup: Option<PathBuf>,
    exit: Option<(Exit, Instant)>,
    killed: bool,
}

/// How a process ended, or that it could not be told.
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

impl Session {
    pub(super) fn start(
        stream: u32,
        request: &Request,
        cgroups: Option<&Path>,
    ) -> Result<(Self, Pipes, Child), String> {
        let cgroup = match cgroups {
            None => None,
            Some(parent) => {
                let group = parent.join(format!("session-{stream}"));
                fs::create_dir(&group).map_err(|e| format!("cannot make {}: {e}", group.display()))?;
                Some(group)
            }
        };
        let mut command = exec_as::command(request, cgroup.as_deref());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let remove = |cgroup: &Option<PathBuf>| cgroup.as_ref().map(fs::remove_dir);
        let mut child = command.spawn().map_err(|e| {
            remove(&cgroup);
            format!("cannot start a process: {e}")
        })?;
        let pipes = match (child.stdin.take(), child.stdout.take(), child.stderr.take()) {
            (Some(stdin), Some(stdout), Some(stderr)) => {
                Pipes { stdin: stdin.into(), stdout: stdout.into(), stderr: stderr.into() }
            }
            _ => return Err("a process without its pipes".into()),
        };
        let first = Pid::from_child(&child);
        Ok((Self { first, cgroup, exit: None, killed: false }, pipes, child))
    }

    /// Sends a signal to the first process and those that stayed in its group.
    pub(super) fn signal(&self, signal: u32) {
        let signal = i32::try_from(signal).ok().and_then(Signal::from_named_raw);
        if let (Some(signal), None) = (signal, self.exit) {
            // Until it has made its session, the group does not exist.
            if kill_process_group(self.first, signal).is_err() {
                let _ = kill_process(self.first, signal);
            }
        }
    }

    /// Kills everything in the session.
    pub(super) fn kill(&mut self) {
        self.killed = true;
        if let Some(group) = &self.cgroup
            && fs::write(group.join("cgroup.kill"), "1").is_ok()
        {
            return;
        }
        let first = self.first.as_raw_nonzero().get();
        // What forks while we look is found the next time.
        for _ in 0..50 {
            let all = processes::all();
            let mut roots: Vec<i32> = all.iter().filter(|p| p.session == first).map(|p| p.pid).collect();
            roots.push(first);
            let mut members = processes::below(&all, &roots);
            members.extend(all.iter().filter(|p| roots.contains(&p.pid)));
            members.retain(|p| !p.zombie);
            // Once the first is reaped its number may be another's.
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

    /// The first process has ended, so the session does.
    pub(super) fn first_ended(&mut self, exit: Exit) {
        self.exit = Some((exit, Instant::now()));
        self.kill();
    }

    pub(super) fn is_ending(&self) -> bool {
        self.exit.is_some()
    }

    /// Whether all is said: it has ended, and its output too, or has had time enough.
    pub(super) fn is_over(&self, output_open: bool) -> bool {
        self.exit.is_some_and(|(_, since)| !output_open || since.elapsed() > OUTPUT_GRACE)
    }

    pub(super) fn exit(&self) -> Option<Exit> {
        self.exit.map(|(exit, _)| exit)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.killed {
            self.kill();
        }
        if let Some(group) = &self.cgroup {
            // What was killed takes a moment to leave; an empty group left behind costs nothing.
            let _ = fs::remove_dir(group);
        }
    }
}
