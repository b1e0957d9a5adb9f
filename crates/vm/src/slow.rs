//! Reports of steps that take longer than a moment: lines on standard error, none for a quick step.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a step may take without a report.
const FIRST: Duration = Duration::from_secs(2);
/// How often a step that goes on is reported again.
const AGAIN: Duration = Duration::from_secs(15);

/// Reports a step, from two seconds on until this is dropped.
#[derive(Debug)]
pub struct Slow {
    /// The thread ends when the sender is dropped. None if no thread could be started, or during the drop.
    running: Option<(Sender<String>, JoinHandle<()>)>,
}

impl Slow {
    /// `line` names the step; the time so far is appended to it.
    pub fn start(line: impl Into<String>) -> Self {
        Self::with(line.into(), [FIRST, AGAIN], |line| {
            // In one piece, since other processes print there, too.
            let line = format!("{line}\n");
            let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
        })
    }

    /// Changes the line for further reports.
    pub fn goes_on(&self, line: impl Into<String>) {
        if let Some((words, _)) = &self.running {
            // If the thread has ended, there are no further reports.
            let _ = words.send(line.into());
        }
    }

    fn with(
        mut line: String,
        [first, again]: [Duration; 2],
        mut say: impl FnMut(&str) + Send + 'static,
    ) -> Self {
        let (words, told) = mpsc::channel::<String>();
        let begin = Instant::now();
        let tell = move || {
            let mut next = begin + first;
            let mut so_far = String::new();
            loop {
                match told.recv_timeout(next.saturating_duration_since(Instant::now())) {
                    Ok(other) => line = other,
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        say(&format!("{line}{so_far}"));
                        next = Instant::now() + again;
                        so_far = format!(": {:.0} s so far", (next - begin).as_secs_f64());
                    }
                }
            }
        };
        // Without a thread there are no reports; the step itself goes on.
        let thread = thread::Builder::new().name("slow".into()).spawn(tell);
        Self { running: thread.ok().map(|thread| (words, thread)) }
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        if let Some((words, thread)) = self.running.take() {
            drop(words);
            // A panic there would lose nothing but reports.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn only_a_long_step_is_reported_and_then_again() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let begin = |first| {
            let said = Arc::clone(&said);
            Slow::with(
                "boots".into(),
                [Duration::from_millis(first), Duration::from_millis(20)],
                move |line| {
                    said.lock().unwrap().push(line.to_owned());
                },
            )
        };
        drop(begin(60_000));
        assert!(said.lock().unwrap().is_empty());
        let slow = begin(1);
        while said.lock().unwrap().len() < 2 {
            thread::sleep(Duration::from_millis(1));
        }
        drop(slow);
        assert_eq!(said.lock().unwrap()[..2], ["boots", "boots: 0 s so far"]);
        let slow = begin(1);
        slow.goes_on("runs");
        while !said.lock().unwrap().iter().any(|line| line.starts_with("runs")) {
            thread::sleep(Duration::from_millis(1));
        }
        drop(slow);
    }
}
