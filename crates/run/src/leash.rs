//! A leash: a process must not outlive the one that started it. This program, started again, asks the kernel to be killed
//! on its parent's death, and executes the real program. It is the last resort if front, guardian and job all die at once.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

use crate::descriptors;
use crate::error::tell;

/// The hidden subcommand that runs [`main`].
pub const LEASH_COMMAND: &str = "leash";

/// The words to put before those of a program on a leash. The signal comes when the *thread* that spawns it ends,
/// so that must be one that lives as long as the run.
pub fn words() -> Vec<OsString> {
    let parent = getpid().as_raw_nonzero().to_string();
    let mut words: Vec<OsString> = vec!["/proc/self/exe".into(), LEASH_COMMAND.into()];
    if let Some(limit) = descriptors::of_caller() {
        let limit = limit.map_or_else(|| NO_LIMIT.to_owned(), |limit| limit.to_string());
        words.extend([DESCRIPTORS.into(), limit.into()]);
    }
    words.push(parent.into());
    words
}

/// What the leash is told, and the number behind it, where the program is to have a lower limit on descriptors than the one that
/// starts it.
const DESCRIPTORS: &str = "--descriptors";
/// The number, where there is no limit.
const NO_LIMIT: &str = "unlimited";

/// What the leash is told, before all else, where the program is to have SIGPIPE ignored: `execve` leaves that as it is.
const DEAF: &str = "--ignore-sigpipe";

/// What the leash is told, before all else, where the program is to end by SIGKILL alone.
const STAYS: &str = "--stays";

/// Signals that whoever ends or warns a whole job sends to each of its processes (systemd's units, Slurm's `--signal`). The run's front
/// hears them and decides what they mean; a VM that ended of them would take the launcher's own answer with it.
const TO_ALL: [NixSignal; 5] =
    [NixSignal::SIGHUP, NixSignal::SIGINT, NixSignal::SIGTERM, NixSignal::SIGQUIT, NixSignal::SIGUSR2];

/// As [`words`], for a VM: no signal ends it that is sent to all processes of the run, but SIGKILL.
pub fn words_of_vm() -> Vec<OsString> {
    let mut words = words();
    words.insert(2, STAYS.into());
    words
}

/// As [`command`], after the words of `prefix`, which run a program elsewhere. The leash comes after the prefix: a process
/// that enters a user name space loses it.
///
/// # Errors
/// If this program cannot be found any more.
pub fn command_in(prefix: &[OsString], program: &Path, is_deaf: bool) -> io::Result<Command> {
    let mut leash = words();
    if is_deaf {
        leash.insert(2, DEAF.into());
    }
    let [first, rest @ ..] = prefix else { return Ok(command_of(&leash, program)) };
    // After the prefix, /proc/self/exe would be another program.
    leash[0] = std::env::current_exe()?.into();
    let mut command = Command::new(first);
    command.args(rest).args(leash).arg(program);
    Ok(command)
}

/// A command that runs `program` on a leash.
pub fn command(program: &Path) -> Command {
    command_of(&words(), program)
}

fn command_of(words: &[OsString], program: &Path) -> Command {
    let mut command = Command::new(&words[0]);
    command.arg0("isthmus").args(&words[1..]).arg(program);
    command
}

/// `isthmus leash [--stays] [--ignore-sigpipe] [--descriptors N] PARENT PROGRAM ARGS...`. Returns only if the program cannot be executed, with
/// the status that a shell would use.
pub fn main(args: &[OsString]) -> i32 {
    let stays = args.first().is_some_and(|first| first == STAYS);
    let args = &args[usize::from(stays)..];
    // `execve` leaves the mask as it is, and so does QEMU.
    if stays && SigSet::from_iter(TO_ALL).thread_block().is_err() {
        return 125;
    }
    let is_deaf = args.first().is_some_and(|first| first == DEAF);
    let args = &args[usize::from(is_deaf)..];
    let args = match args {
        [option, limit, rest @ ..] if option == DESCRIPTORS => {
            let limit =
                limit.to_str().filter(|limit| *limit != NO_LIMIT).and_then(|limit| limit.parse().ok());
            if descriptors::restore(limit).is_err() {
                return 125;
            }
            rest
        }
        _ => args,
    };
    let [parent, program, rest @ ..] = args else { return 125 };
    let leashed = set_parent_process_death_signal(Some(Signal::KILL));
    let alive = getppid().is_some_and(|pid| parent.to_str() == Some(&pid.as_raw_nonzero().to_string()));
    if leashed.is_err() || !alive {
        return 125;
    }
    let error = if is_deaf { exec_deaf(&args[1..]) } else { Command::new(program).args(rest).exec() };
    tell!("cannot run {}: {error}", program.to_string_lossy());
    if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}

/// Executes a program and its arguments with SIGPIPE as it is here: ignored, as Rust has it in a program of its own. [`Command`] would
/// give the signal its default back.
fn exec_deaf(words: &[OsString]) -> io::Error {
    let words: Result<Vec<_>, _> = words.iter().map(|word| CString::new(word.as_bytes())).collect();
    let words = match words {
        Ok(words) => words,
        Err(e) => return e.into(),
    };
    match nix::unistd::execv(&words[0], &words) {
        Ok(never) => match never {},
        Err(errno) => errno.into(),
    }
}
