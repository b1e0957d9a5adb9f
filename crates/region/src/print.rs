//! Lines for people, on standard output and standard error: where these cannot be written, nothing panics.

use std::io::{ErrorKind, Write, stderr, stdout};

/// Exit status of a command whose reader has gone, as of one that the signal PIPE ended.
const READER_GONE: i32 = 141;
/// Exit status of one that could not write what it was asked for.
const LOST: i32 = 125;

/// Writes to standard error, in one piece. Where that cannot be written, nobody is left to be told.
pub fn to_stderr(text: &str) {
    let _ = stderr().lock().write_all(text.as_bytes());
}

/// Writes to standard output what a command was asked for. Where that fails the process ends: quietly if its reader has gone (as
/// `head` does), else with the reason. Not for services.
pub fn to_stdout(text: &str) {
    let mut out = stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::BrokenPipe => std::process::exit(READER_GONE),
        Err(e) => {
            to_stderr(&format!("isthmus: cannot write to standard output: {e}\n"));
            std::process::exit(LOST)
        }
    }
}

/// As `eprintln!`, by [`to_stderr`].
#[macro_export]
macro_rules! tell {
    ($($words:tt)*) => {
        $crate::print::to_stderr(&format!("{}\n", format_args!($($words)*)))
    };
}

/// As `println!`, by [`to_stdout`].
#[macro_export]
macro_rules! say {
    () => {
        $crate::print::to_stdout("\n")
    };
    ($($words:tt)*) => {
        $crate::print::to_stdout(&format!("{}\n", format_args!($($words)*)))
    };
}
