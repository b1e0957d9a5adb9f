//! How a command that failed says so: one line with the whole chain of causes and status 125; or status 2 for a mistake
//! on the command line.

use std::error::Error;

/// Exit status of isthmus's own failures.
const FAILED: i32 = 125;

/// Exit status of a mistake on the command line.
pub(crate) const USAGE: i32 = 2;

/// What the argument parser says, in our words.
pub(crate) fn mistake(said: &str) -> String {
    format!("isthmus: {}", said.strip_prefix("error: ").unwrap_or(said))
}

/// The exit status of a command, after its error was printed.
pub(crate) fn status<E: Error + 'static>(outcome: Result<(), E>) -> i32 {
    let Err(error) = outcome else { return 0 };
    eprintln!("isthmus: {}", isthmus_region::error::with_causes(&error));
    FAILED
}

#[cfg(test)]
mod tests {
    #[test]
    fn mistakes_begin_as_all_errors_do() {
        assert_eq!(super::mistake("error: no such option\n"), "isthmus: no such option\n");
        assert_eq!(super::mistake("else"), "isthmus: else");
    }
}
