//! Running apt-get while it downloads: progress is reported, and a download that stalls is ended.

use crate::error::{Error, Result};
use crate::programs;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How often progress is checked.
const EVERY: Duration = Duration::from_secs(1);
/// Checks from one report to the next.
const REPORT_EVERY: u32 = 15;
/// A download that gets less than [`LEAST`] in so many checks has stalled: at that rate a kernel would take a day.
const STILL: usize = 60;
/// In bytes.
const LEAST: u64 = 64 << 10;

/// Runs apt-get with `arguments` in `work`, where it writes; `what` names the download in messages. Returns what it said on
/// standard error.
///
/// # Errors
/// [`Error::ProgramFailed`]; [`Error::NoKernel`] if the download stalls.
pub(crate) fn watched(
    what: &str,
    arguments: &[OsString],
    work: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<String> {
    let mut command = Command::new(programs::need("apt-get", "apt")?);
    command.args(arguments).current_dir(work).env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let text = programs::describe(&command);
    let mut child = command.spawn().map_err(Error::io("run apt-get"))?;
    let said = child.stderr.take().map(|mut pipe| {
        thread::spawn(move || {
            let mut said = Vec::new();
            // Whatever could be read goes into the error.
            let _ = pipe.read_to_end(&mut said);
            String::from_utf8_lossy(&said).trim().to_owned()
        })
    });
    let status = follow(&mut child, what, work, progress);
    if status.is_err() {
        // This child was not waited for yet, so its number is still its own; its helpers end with it.
        let _ = child.kill();
        let _ = child.wait();
    }
    let status = status?;
    let stderr = said.and_then(|thread| thread.join().ok()).unwrap_or_default();
    if status.success() {
        return Ok(stderr);
    }
    Err(Error::ProgramFailed { command: text, status: status.to_string(), stderr })
}

fn follow(
    child: &mut Child,
    what: &str,
    work: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<std::process::ExitStatus> {
    let begin = Instant::now();
    let mut next = begin;
    let mut came = VecDeque::from([0]);
    let mut checks: u32 = 0;
    loop {
        // Polled often, so that a short download does not take a second.
        next += EVERY;
        while Instant::now() < next {
            if let Some(status) = child.try_wait().map_err(Error::io("wait for apt-get"))? {
                return Ok(status);
            }
            thread::sleep(EVERY / 20);
        }
        checks += 1;
        let bytes = size_of(work);
        came.push_back(bytes);
        let so_far = format!("{:.1} MB in {:.0} s", bytes as f64 / 1e6, begin.elapsed().as_secs_f64());
        if came.len() > STILL {
            let before = came.pop_front().unwrap_or(0);
            // Package lists are unpacked once all have come, and then there are fewer bytes than before.
            if bytes.abs_diff(before) < LEAST {
                return Err(Error::NoKernel {
                    reason: format!(
                        "the download of {what} stands still: {so_far} have come, and next to nothing in the last minute; see to the network (or apt's proxy) and try again"
                    ),
                });
            }
        }
        if checks.is_multiple_of(REPORT_EVERY) {
            progress(&format!("downloading {what}: {so_far}"));
        }
    }
}

/// Bytes of all files below `dir`.
fn size_of(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => size_of(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}
