//! The guardian: made before anything else, subreaper of all that the run starts.
//!
//! It holds a socket to the front and one to the job. When either closes, it ends all processes below itself and
//! removes the run's directories. It does nothing else, so there is little that can fail.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, getpid, set_child_subreaper};
use serde::{Deserialize, Serialize};

use crate::error::tell;
use crate::{mapped, pass, rundir, terminal, tree};

/// The hidden subcommand that runs [`main`].
pub const GUARDIAN_COMMAND: &str = "guardian";
/// The hidden subcommand that runs the job.
pub const JOB_COMMAND: &str = "job";
/// How long processes may take to die of SIGKILL: a process that waits for a disk dies only after that.
pub const KILL_LIMIT: Duration = Duration::from_secs(20);

/// What guardian and job are started with. With it come two descriptors: the job's socket to the front, and
/// the standard input for the launcher.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Start {
    /// The run's directory, which the guardian makes.
    pub dir: PathBuf,
    /// Leave it behind.
    pub keep: bool,
    /// The front's process, by which people name the run.
    pub front: u32,
}

/// Starts this program again as `subcommand`, with one end of a new socket as its standard input, in a
/// process group of its own, and sends it `start` and `fds`.
pub(crate) fn spawn(
    subcommand: &str,
    start: &Start,
    fds: &[BorrowedFd<'_>],
) -> io::Result<(std::process::Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("isthmus").arg(subcommand).stdin(Stdio::from(OwnedFd::from(theirs))).process_group(0);
    let child = terminal::unstopped(|| command.spawn())?;
    pass::send(&ours, start, fds)?;
    Ok((child, ours))
}

/// Its exit status after a line for the user.
pub(crate) const SAID_WHY: i32 = 3;

/// The guardian's whole life. Returns an exit status: `SAID_WHY` or 0; after both, what it had started has been ended, as far as that can be.
pub fn main() -> i32 {
    terminal::let_stop();
    terminal::leave_signals_to_front();
    match guard() {
        Ok(status) => status,
        Err(e) => {
            tell!("guardian: {e}{}", isthmus_region::room::limit_told(&e));
            SAID_WHY
        }
    }
}

fn guard() -> io::Result<i32> {
    set_child_subreaper(Some(getpid()))?;
    let front = pass::take_stdin_socket()?;
    let Some((start, fds)) = pass::receive::<Start>(&front)? else { return Ok(0) };
    if let Err(e) = rundir::make(&start.dir) {
        tell!("{}", e.line());
        return Ok(SAID_WHY);
    }
    let mut job = None;
    let result = watch(&front, &start, fds, &mut job);
    for line in clear(&start, job, &[]) {
        tell!("{line}");
    }
    result.map(|()| 0)
}

/// Ends everything below this process and removes the run's directories. Front, guardian and job all do this when
/// another one is gone, and the job, which watches both others, is ended last: so it is done even if two of them are
/// killed meanwhile. Returns lines for the user.
///
/// `others` are children that this process had before it started anything, as it has them where a shell becomes it by exec; they and
/// what is below them are left alone.
pub(crate) fn clear(start: &Start, job: Option<Pid>, others: &[i32]) -> Vec<String> {
    let mut lines = Vec::new();
    let notes = mapped::Notes::new(&start.dir);
    match tree::kill_descendants(job, others, KILL_LIMIT, |pid| notes.note(pid)) {
        Ok(left) => {
            if !mapped::remove(&start.dir, &left) {
                lines.push(
                    "files of MPICH's in /dev/shm stay there, since a process keeps its memory locked and may use them: remove mpich_shm_* and mpich_vci_* of ended jobs"
                        .to_owned(),
                );
            }
            lines.extend(
                left.iter()
                    .map(|pid| format!("process {} of this run cannot be ended", pid.as_raw_nonzero())),
            );
        }
        Err(e) => lines.push(format!("cannot see whether processes of this run are left: /proc: {e}")),
    }
    if let Err(e) = rundir::remove(&start.dir, start.keep) {
        lines.push(format!("cannot remove {}: {e}", start.dir.display()));
    }
    let _ = tree::kill_descendants(None, others, KILL_LIMIT, |_| ());
    lines
}

/// Returns when the front or the job is gone.
fn watch(front: &UnixStream, start: &Start, fds: Vec<OwnedFd>, job: &mut Option<Pid>) -> io::Result<()> {
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let (child, job_socket) = spawn(JOB_COMMAND, start, &borrowed)?;
    *job = Some(Pid::from_child(&child));
    // The job has its own copies; with these, its socket to the front and the caller's input would stay open when it ends.
    // Standard output and error are for messages only.
    drop(fds);
    let (woken, waker) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGCHLD, waker)?;
    woken.set_nonblocking(true)?;
    loop {
        let mut waits = [
            PollFd::new(front, PollFlags::IN),
            PollFd::new(&job_socket, PollFlags::IN),
            PollFd::new(&woken, PollFlags::IN),
        ];
        match poll(&mut waits, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        // Neither sends anything: readable means gone.
        if !waits[0].revents().is_empty() || !waits[1].revents().is_empty() {
            return Ok(());
        }
        let mut drained = [0; 64];
        while (&woken).read(&mut drained).is_ok_and(|n| n > 0) {}
        tree::reap();
    }
}
