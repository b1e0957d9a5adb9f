//! Running helper programs (apt, dpkg-deb, xz, ip) and saying which package a missing one is in.

use crate::error::{Error, Result};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// How much of a failed program's output goes into the error.
const ERROR_TEXT_BYTES: usize = 2000;

/// Finds `name` on the PATH, or in the system directories that an ordinary user's PATH often lacks.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Like [`find`], or the error that names the package.
pub fn need(name: &str, package: &'static str) -> Result<PathBuf> {
    find(name).ok_or_else(|| Error::NoProgram { program: name.to_owned(), package })
}

/// Runs a program to its end and returns its standard output.
pub fn output<I, S>(name: &str, package: &'static str, args: I) -> Result<Vec<u8>>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut command = Command::new(need(name, package)?);
    command
        .args(args)
        // Their messages are parsed or shown in an error, so they must not depend on the user's language.
        .env("LC_ALL", "C")
        .stdin(Stdio::null());
    run(command, None)
}

/// Runs a filter: feeds `input` to the program and returns what it prints.
pub fn filter<I, S>(name: &str, package: &'static str, args: I, input: &[u8]) -> Result<Vec<u8>>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut command = Command::new(need(name, package)?);
    command.args(args).env("LC_ALL", "C").stdin(Stdio::piped());
    run(command, Some(input))
}

fn run(mut command: Command, input: Option<&[u8]>) -> Result<Vec<u8>> {
    let text = describe(&command);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = command.spawn().map_err(Error::io(format!("run {text}")))?;
    let output = feed(started, input).map_err(Error::io(format!("talk to {text}")))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stderr = stderr.trim();
    let cut = stderr.len().saturating_sub(ERROR_TEXT_BYTES);
    let cut = (cut..=stderr.len()).find(|&at| stderr.is_char_boundary(at)).unwrap_or(stderr.len());
    Err(Error::ProgramFailed {
        command: text,
        status: output.status.to_string(),
        stderr: stderr[cut..].to_owned(),
    })
}

fn feed(mut child: std::process::Child, input: Option<&[u8]>) -> io::Result<Output> {
    let Some(input) = input else {
        return child.wait_with_output();
    };
    let stdin = child.stdin.take();
    std::thread::scope(|scope| {
        // In a thread of its own: a filter that writes while it reads would fill both pipes and block for ever.
        let writer = scope.spawn(move || match stdin {
            Some(mut stdin) => stdin.write_all(input),
            None => Ok(()),
        });
        let output = child.wait_with_output()?;
        match writer.join() {
            // A filter may stop reading early; its exit status decides.
            Ok(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => Ok(output),
        }
    })
}

/// The command line for messages.
pub fn describe(command: &Command) -> String {
    let words: Vec<OsString> =
        std::iter::once(command.get_program()).chain(command.get_args()).map(OsStr::to_os_string).collect();
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_answers_while_it_reads_does_not_hang() {
        let input = vec![b'x'; 1 << 20];
        let out = filter("cat", "coreutils", [] as [&str; 0], &input).unwrap();
        assert_eq!(out.len(), input.len());
    }

    #[test]
    fn failure_carries_status_and_text() {
        let error = output("sh", "dash", ["-c", "echo wrong >&2; exit 3"]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("exit status: 3") && text.contains("wrong"), "{text}");
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let error = need("no-such-program-here", "some-package").unwrap_err();
        assert!(error.to_string().contains("install the package some-package"));
    }
}
