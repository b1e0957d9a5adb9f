//! Lines for people, on standard output and standard error: where these cannot be written, nothing panics.

use std::io::{ErrorKind, Write, stderr, stdout};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::shared_by_threads::Count;

/// Exit status of a command whose reader has gone, as of one that the signal PIPE ended.
const READER_GONE: i32 = 141;
/// Exit status of one that could not write what it was asked for.
const LOST: i32 = 125;

/// Writes to standard error, in one piece. Where that cannot be written, there is no reader left to tell.
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

/// Lines for standard error that may be read late or never: the thread that gives them does not wait. A thread writes them; while it
/// cannot, up to a thousand wait, and of what comes then only the number is told, later.
#[derive(Debug)]
pub struct Aside {
    lines: Option<SyncSender<String>>,
    /// Hangs up when the last line is written.
    written: Mutex<Receiver<()>>,
    lost: Arc<Count>,
}

/// Lines that wait for their reader at most.
const WAITING_LINES: usize = 1000;
/// How long the end waits for the last ones.
const LAST_WORDS: Duration = Duration::from_millis(500);

impl Aside {
    /// Lines for standard error.
    ///
    /// # Errors
    /// Without a thread.
    pub fn start() -> std::io::Result<Self> {
        Self::through(to_stderr)
    }

    fn through(write: impl Fn(&str) + Send + 'static) -> std::io::Result<Self> {
        let (lines, waiting) = sync_channel::<String>(WAITING_LINES);
        let (end, written) = sync_channel(0);
        let lost = Arc::new(Count::new(0));
        let missing = Arc::clone(&lost);
        std::thread::Builder::new().name("lines".into()).spawn(move || {
            let _end = end;
            for line in waiting {
                write(&line);
                let lost = missing.take();
                if lost > 0 {
                    write(&format!("isthmus: {lost} lines are lost: nobody read them in time\n"));
                }
            }
        })?;
        Ok(Self { lines: Some(lines), written: Mutex::new(written), lost })
    }

    /// One more line, without its end.
    pub fn tell(&self, line: &str) {
        if let Some(lines) = &self.lines
            && lines.try_send(format!("{line}\n")).is_err()
        {
            self.lost.add(1);
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.lines = None;
        let _ = self.written.get_mut().map(|written| written.recv_timeout(LAST_WORDS));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_tells_does_not_wait_for_the_reader_and_what_is_lost_is_counted() {
        let (read, pipe) = std::io::pipe().unwrap();
        let pipe = Mutex::new(Some(pipe));
        let aside = Aside::through(move |text| {
            let pipe = pipe.lock().unwrap();
            pipe.as_ref().unwrap().write_all(text.as_bytes()).unwrap();
        })
        .unwrap();
        // More than a pipe and the waiting lines hold; a reader would come after all of it only.
        let line = "x".repeat(1023);
        let told = 3 * WAITING_LINES;
        (0..told).for_each(|_| aside.tell(&line));
        let reader = std::thread::spawn(move || std::io::read_to_string(read).unwrap());
        drop(aside);
        let text = reader.join().unwrap();
        let lost: usize = text
            .lines()
            .filter_map(|l| l.strip_prefix("isthmus: ")?.split(' ').next()?.parse::<usize>().ok())
            .sum();
        let written = text.lines().filter(|l| **l == line).count();
        assert!(lost > 0, "{written} of {told} were written");
        assert_eq!(written + lost, told);
    }
}
