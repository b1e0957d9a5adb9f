//! Saying what goes on where it takes longer than a moment: lines on standard error, none for what is quick.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long something may take without a word.
const FIRST: Duration = Duration::from_secs(2);
/// How often is told that it still goes on.
const AGAIN: Duration = Duration::from_secs(15);

/// Says what is done, from two seconds on until it is dropped.
#[derive(Debug)]
pub struct Slow {
    /// Its end is the thread's; both are there but for a drop.
    running: Option<(Sender<String>, JoinHandle<()>)>,
}

impl Slow {
    /// `line` is what is done, as the beginning of a line.
    pub fn start(line: impl Into<String>) -> Self {
        Self::with(line.into(), [FIRST, AGAIN], |line| {
            // In one piece: others print there, too.
            let line = format!("{line}\n");
            let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
        })
    }

    /// Something else is done now, or less of it: further lines say that.
    pub fn goes_on(&self, line: impl Into<String>) {
        if let Some((words, _)) = &self.running {
            // A thread that has ended has nothing to say any more.
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
        // Without a thread there are no words, and all else is done.
        let thread = thread::Builder::new().name("slow".into()).spawn(tell);
        Self { running: thread.ok().map(|thread| (words, thread)) }
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        if let Some((words, thread)) = self.running.take() {
            drop(words);
            // It has no reason to panic, and nothing is lost if it did.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn only_what_takes_long_is_told_and_then_again() {
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
