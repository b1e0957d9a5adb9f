//! One launch: started, watched, ended.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use isthmus_attach::daemon::not_ignored;
use isthmus_vm::slow::Slow;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::error::{Error, Result};
use crate::placement;

/// How often a running job is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// How long a job may take to end after it was asked to.
const GRACE: Duration = Duration::from_secs(10);

/// The signal that has asked for the end; 0 while there is none.
static SIGNAL: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// From now on INT, TERM and HUP end the launch that runs, and with it the benchmark, so that nothing is left behind. A second
/// one ends this process at once. What this process was started to ignore (`nohup`, a shell's background job) it goes on ignoring.
///
/// # Errors
/// [`Error::Io`].
pub fn end_by_signals() -> Result<()> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in not_ignored(&[SIGINT, SIGTERM, SIGHUP]) {
        let number = usize::try_from(signal).unwrap_or(0);
        // In this order: what a signal does depends on the ones before it.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&asked))
            .and_then(|_| signal_hook::flag::register_usize(signal, Arc::clone(&SIGNAL), number))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&asked)))
            .map_err(Error::io("wait for signals"))?;
    }
    Ok(())
}

/// Whether a signal has asked for the end.
///
/// # Errors
/// [`Error::Interrupted`].
pub fn check_signals() -> Result<()> {
    #[allow(clippy::disallowed_types)] // signal-hook's handler writes a word of the standard library
    let signal = SIGNAL.load(std::sync::atomic::Ordering::Relaxed);
    match i32::try_from(signal) {
        Ok(signal @ 1..) => Err(Error::Interrupted { signal }),
        _ => Ok(()),
    }
}

/// How VMs were run, as a run's statistics say; what is not known is no figure of this host's.
pub(crate) fn accel_in(stats: Option<&serde_json::Value>, vms: u32) -> String {
    let told = stats.and_then(|stats| stats.get("accel")?.as_str().map(str::to_owned));
    told.unwrap_or_else(|| if vms > 0 { "unknown" } else { "native" }.into())
}

/// The statistics that `isthmus run --stats` has written.
pub(crate) fn statistics(file: &Path) -> Option<serde_json::Value> {
    std::fs::read_to_string(file).ok().and_then(|text| serde_json::from_str(&text).ok())
}

/// A command line with what it needs in its environment.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Set for it, besides what is set here.
    pub env: Vec<(String, String)>,
}

impl Launch {
    /// As a line that can be pasted into a shell.
    pub fn line(&self) -> String {
        let mut words: Vec<String> =
            self.env.iter().map(|(name, value)| format!("{name}={}", quoted(value))).collect();
        words.push(quoted(&self.program.to_string_lossy()));
        words.extend(self.args.iter().map(|word| quoted(&word.to_string_lossy())));
        words.join(" ")
    }

    /// Runs it to its end and returns what it printed on standard output.
    ///
    /// # Errors
    /// [`Error::Job`] if it could not be started, took longer than `limit`, or ended badly.
    pub fn run(&self, subject: &str, limit: Duration) -> Result<String> {
        let fail =
            |how: String, said: String| Error::Job { subject: subject.into(), line: self.line(), how, said };
        check_signals()?;
        let _slow = Slow::start(format!("running {subject}"));
        let mut child = Command::new(&self.program)
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .envs(placement::awaited())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| fail(format!("did not start: {error}"), String::new()))?;
        let output = drain(child.stdout.take());
        let errors = drain(child.stderr.take());
        let status = wait(&mut child, limit).map_err(Error::io("wait for a job"))?;
        let (output, errors) = (collect(output), collect(errors));
        check_signals()?;
        match status {
            Some(status) if status.success() => Ok(output),
            Some(status) => Err(fail(format!("ended with {status}"), tail(&format!("{output}{errors}"), 15))),
            None => Err(fail(
                format!("took longer than {} s", limit.as_secs()),
                tail(&format!("{output}{errors}"), 15),
            )),
        }
    }
}

/// How long a compiler may take.
const COMPILED: Duration = Duration::from_secs(600);

/// Runs a compiler to its end. A signal that asks for the end is the cause also where the compiler has had it, too, and failed.
///
/// # Errors
/// [`Error::Interrupted`]; [`Error::Compile`]; [`Error::Io`] if there is none.
pub(crate) fn compiled(command: &mut Command) -> Result<()> {
    check_signals()?;
    let compiler = PathBuf::from(command.get_program());
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Error::io(format!("run the compiler {}", compiler.display())))?;
    let (output, errors) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let status = wait(&mut child, COMPILED).map_err(Error::io("wait for the compiler"))?;
    // What it has started may hold its pipes for longer than somebody who wants the end should wait.
    check_signals()?;
    let said = collect(errors);
    drop(output);
    check_signals()?;
    match status {
        Some(status) if status.success() => Ok(()),
        Some(_) => Err(Error::Compile { compiler, said: tail(&said, 12) }),
        None => {
            let said = format!("it took longer than {} s\n{}", COMPILED.as_secs(), tail(&said, 12));
            Err(Error::Compile { compiler, said })
        }
    }
}

/// The last `lines` lines of `text`.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,@%+^".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

type Drain = Option<thread::JoinHandle<String>>;

fn drain(pipe: Option<impl Read + Send + 'static>) -> Drain {
    pipe.map(|mut pipe| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            // What came before an error is still worth showing.
            let _ = pipe.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        })
    })
}

fn collect(drain: Drain) -> String {
    drain.and_then(|thread| thread.join().ok()).unwrap_or_default()
}

/// `None` if the job had to be ended. It is asked first, since a launcher takes its ranks along only then.
fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let mut end = Instant::now() + limit;
    let mut asked = false;
    loop {
        if check_signals().is_err() && !asked {
            end = end.min(Instant::now());
        }
        if let Some(status) = child.try_wait()? {
            return Ok((!asked).then_some(status));
        }
        if Instant::now() >= end + GRACE {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        if Instant::now() >= end && !asked {
            asked = true;
            if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                // Gone already is as good.
                let _ = kill_process(pid, Signal::TERM);
            }
        }
        thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Launch {
        Launch {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            env: vec![("A".into(), "b".into())],
        }
    }

    #[test]
    fn output_comes_back_and_a_bad_end_is_an_error_with_its_last_words() {
        assert_eq!(shell("echo $A").run("x", Duration::from_secs(5)).unwrap(), "b\n");
        let error = shell("echo why >&2; exit 3").run("x", Duration::from_secs(5)).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("why"), "{error}");
    }

    #[test]
    fn a_job_that_takes_too_long_is_ended() {
        let begin = Instant::now();
        let error = shell("exec sleep 60").run("x", Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.contains("took longer"), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_line_can_be_pasted() {
        assert_eq!(shell("echo it's").line(), r"A=b /bin/sh -c 'echo it'\''s'");
    }
}
