//! How a command that failed says so: one line with the whole chain of causes, and status 125.

use std::error::Error;

/// Exit status of isthmus's own failures.
const FAILED: i32 = 125;

/// The exit status of a command, after its error was printed.
pub(crate) fn status<E: Error>(outcome: Result<(), E>) -> i32 {
    let Err(error) = outcome else { return 0 };
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        text = format!("{text}: {e}");
        cause = e.source();
    }
    eprintln!("isthmus: {text}");
    FAILED
}
