//! A leash: a process must not outlive the one that started it. This program, started again, asks the kernel to be killed
//! on its parent's death, and executes the real program. It is the last resort if front, guardian and job all die at once.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

use crate::error::tell;

/// The hidden subcommand that runs [`main`].
pub const LEASH_COMMAND: &str = "leash";

/// The words to put before those of a program on a leash. The signal comes when the *thread* that spawns it ends,
/// so that must be one that lives as long as the run.
pub fn words() -> Vec<OsString> {
    let parent = getpid().as_raw_nonzero().to_string();
    vec!["/proc/self/exe".into(), LEASH_COMMAND.into(), parent.into()]
}

/// As [`command`], after the words of `prefix`, which run a program elsewhere. The leash comes after the prefix: a process
/// that enters a user name space loses it.
///
/// # Errors
/// If this program cannot be found any more.
pub fn command_in(prefix: &[OsString], program: &Path) -> io::Result<Command> {
    let [first, rest @ ..] = prefix else { return Ok(command(program)) };
    let mut leash = words();
    // After the prefix, /proc/self/exe would be another program.
    leash[0] = std::env::current_exe()?.into();
    let mut command = Command::new(first);
    command.args(rest).args(leash).arg(program);
    Ok(command)
}

/// A command that runs `program` on a leash.
pub fn command(program: &Path) -> Command {
    let words = words();
    let mut command = Command::new(&words[0]);
    command.arg0("isthmus").args(&words[1..]).arg(program);
    command
}

/// `isthmus leash PARENT PROGRAM ARGS...`. Returns only if the program cannot be executed, with the status
/// that a shell would use.
pub fn main(args: &[OsString]) -> i32 {
    let [parent, program, rest @ ..] = args else { return 125 };
    let leashed = set_parent_process_death_signal(Some(Signal::KILL));
    let alive = getppid().is_some_and(|pid| parent.to_str() == Some(&pid.as_raw_nonzero().to_string()));
    if leashed.is_err() || !alive {
        return 125;
    }
    let error = Command::new(program).args(rest).exec();
    tell!("cannot run {}: {error}", program.to_string_lossy());
    if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}
