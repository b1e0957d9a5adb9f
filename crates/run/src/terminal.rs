//! The terminal that the caller sits at: reading it without being stopped for it.
//!
//! Whoever reads a terminal from outside of its foreground process group gets SIGTTIN, and so does all of that group, which
//! stands still then. A run in the background (`&`, below `timeout`, after Ctrl-Z and `bg`) shall go on instead, and
//! read when it comes to the foreground. So the terminal is read from the foreground only, and with SIGTTIN blocked:
//! where the foreground is lost between the look and the read, the read fails and nobody is stopped.

use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{getpgrp, getpid, kill_process};
use rustix::termios::tcgetpgrp;

/// How often a run in the background looks whether it is in the foreground again. A shell tells nobody.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The signals by which a terminal stops the processes at it.
fn stops() -> SigSet {
    [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU].into_iter().collect()
}

/// Does `action` while no terminal can stop this thread, nor a process that `action` starts, which begins its life so: it
/// must call [`let_stop`].
///
/// A child that shares its parent's memory until it is another program holds the parent up. If it were stopped at that
/// time, in a process group of its own already, nobody would ever continue it.
pub(crate) fn unstopped<T>(action: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = stops().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let done = action();
    before.thread_set_mask()?;
    done
}

/// Undoes what [`unstopped`] has done to this process, which has a process group of its own: what was meant for its
/// parent's is forgotten. To be called while there is one thread.
pub(crate) fn let_stop() {
    // A continuation takes away the stops that wait.
    let _ = kill_process(getpid(), rustix::process::Signal::CONT);
    let _ = stops().thread_unblock();
}

/// Whether a read of standard input would stop this process group.
fn in_background() -> rustix::io::Result<bool> {
    match tcgetpgrp(io::stdin()) {
        Ok(foreground) => Ok(foreground != getpgrp()),
        // A terminal, but not the one that governs this session: anybody may read it.
        Err(Errno::NOTTY) => Ok(false),
        // Nobody is in the foreground.
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
                thread::sleep(LOOK_EVERY);
                continue;
            }
            Ok(false) => {}
            Err(_) => return,
        }
        // Whoever waits in a read when the foreground is lost takes the next one's input.
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
