//! How a test says that this machine cannot run it.

use std::io::Write;

/// Whether everything that can be installed must be: in CI.
pub(crate) fn must_be_installed() -> bool {
    std::env::var_os("CI").is_some()
}

/// Says that a check is left out, in a line that `./test` counts; fails if the machine `could` have run it.
pub(crate) fn skipped(what: &str, could: bool) {
    assert!(!could, "left out, though this machine can, or is CI: {what}");
    // Not by println!, whose output the harness discards if a test passes.
    let _ = writeln!(std::io::stderr(), "\nskipped: {what}");
}
