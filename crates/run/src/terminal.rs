//! The terminal that the caller sits at: reading it without being stopped for it.
//!
//! A process that reads a terminal from outside of the foreground process group has SIGTTIN sent to its whole group, which
//! stops. A run in the background (`&`, below `timeout`, after Ctrl-Z and `bg`) must go on instead, and read when it
//! comes to the foreground. So the terminal is read from the foreground only, and with SIGTTIN blocked: if the
//! foreground is lost between the check and the read, the read fails and no process is stopped.

use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use isthmus_attach::daemon::not_ignored;
use isthmus_guest::processes::{self, Process};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{getpgrp, getpid, kill_process};
use rustix::termios::tcgetpgrp;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

/// How often a run in the background checks whether it is in the foreground again. A shell does not notify it.
const CHECK_EVERY: Duration = Duration::from_millis(200);

/// The signals by which a terminal stops the processes at it.
fn stops() -> SigSet {
    [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU].into_iter().collect()
}

/// Does `action` while no terminal can stop this thread, nor a process that `action` starts, which inherits the blocked
/// signals: it must call [`let_stop`].
///
/// A child that shares its parent's memory until exec holds the parent up. If it were stopped at that time, when it
/// already has a process group of its own, no process would ever continue it.
pub(crate) fn unstopped<T>(action: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = stops().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let done = action();
    before.thread_set_mask()?;
    done
}

/// Undoes what [`unstopped`] has done to this process, and discards pending stop signals, which were meant for its parent's
/// process group: this process has one of its own. To be called while there is one thread.
pub(crate) fn let_stop() {
    // SIGCONT discards pending stop signals.
    let _ = kill_process(getpid(), rustix::process::Signal::CONT);
    let _ = stops().thread_unblock();
}

/// Has this process do nothing about signals that are sent to all processes of a run, as some batch systems and systemd do: its front
/// has them, too, and says what is to be done. What is executed gets the default back.
pub(crate) fn leave_signals_to_front() {
    for signal in not_ignored(&[SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2]) {
        let _ = signal_hook::flag::register(signal, Arc::default());
    }
}

/// Whether this process's session has a terminal, whose keys stop its processes. A batch system stops them in another way, and continues them.
pub(crate) fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// Whether another process can continue this process group if it stops: a parent of one of its processes that is of another group in
/// the same session, as a shell with job control is. The kernel stops no others by a key, either.
pub(crate) fn has_job_control() -> bool {
    let me = getpid().as_raw_nonzero().get();
    let all = processes::all().unwrap_or_default();
    let with = |pid: i32| all.iter().find(|process| process.pid == pid);
    let Some(own) = with(me) else { return false };
    let is_shell = |other: &Process| other.session == own.session && other.group != own.group;
    // A session that began outside of this PID namespace: whoever can continue it is there, too.
    own.session == 0
        || all.iter().any(|process| process.group == own.group && with(process.parent).is_some_and(is_shell))
}

/// Whether a read of standard input would stop this process group.
fn in_background() -> rustix::io::Result<bool> {
    match tcgetpgrp(io::stdin()) {
        Ok(foreground) => Ok(foreground != getpgrp()),
        // A terminal, but not the controlling one: any process may read it.
        Err(Errno::NOTTY) => Ok(false),
        // No process group is in the foreground.
        Err(Errno::OPNOTSUPP) => Ok(true),
        // The session at the terminal has ended.
        Err(e) => Err(e),
    }
}

/// Copies the terminal that is standard input to `to`, until it or the reader ends, or the terminal is gone.
fn copy_input(mut to: impl Write) {
    if SigSet::from(Signal::SIGTTIN).thread_block().is_err() {
        return;
    }
    let stdin = io::stdin();
    let mut buffer = [0; 4096];
    loop {
        match in_background() {
            Ok(true) => {
                thread::sleep(CHECK_EVERY);
                continue;
            }
            Ok(false) => {}
            Err(_) => return,
        }
        // A process that waits in a read when it loses the foreground takes input meant for the next one.
        match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], None) {
            Err(Errno::INTR) => continue,
            Err(_) => return,
            Ok(_) if in_background() != Ok(false) => continue,
            Ok(_) => {}
        }
        // Not through the buffer of standard input, which poll knows nothing of.
        match rustix::io::read(&stdin, &mut buffer) {
            Ok(0) => return,
            Ok(n) if to.write_all(&buffer[..n]).is_err() => return,
            Ok(_) | Err(Errno::INTR) => {}
            // Lost the foreground just now.
            Err(_) if in_background() == Ok(true) => {}
            Err(_) => return,
        }
    }
}

/// Standard input for a process that is not in the terminal's foreground: ours, unless it is a terminal. That is copied
/// into a pipe by a thread of its own.
pub(crate) fn input() -> io::Result<OwnedFd> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return stdin.as_fd().try_clone_to_owned();
    }
    let (read, write) = io::pipe()?;
    thread::Builder::new().name("terminal".into()).spawn(move || copy_input(write))?;
    Ok(read.into())
}
