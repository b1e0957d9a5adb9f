//! A small client of QEMU's monitor (QMP, `docs/interop/qmp-spec.rst` of QEMU): JSON lines over a UNIX socket.
//!
//! Everything has a time limit: while QEMU waits for an ivshmem server inside a command, it does not answer.

use crate::error::{Error, Result};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a command may take by default.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a socket is tried that QEMU has not made yet.
const CONNECT_PAUSE: Duration = Duration::from_millis(10);

/// A connection to one QEMU.
pub struct Qmp {
    socket: UnixStream,
    buffer: Vec<u8>,
    events: VecDeque<Value>,
}

impl Qmp {
    /// Connects, waiting up to `timeout` for QEMU to make the socket, and reads the greeting.
    pub fn connect(path: &Path, timeout: Duration) -> Result<Qmp> {
        let deadline = Instant::now() + timeout;
        let socket = loop {
            match UnixStream::connect(path) {
                Ok(socket) => break socket,
                Err(error)
                    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
                        && Instant::now() < deadline =>
                {
                    std::thread::sleep(CONNECT_PAUSE);
                }
                Err(error) => {
                    return Err(Error::io(format!("connect to {}", path.display()))(error));
                }
            }
        };
        let mut qmp = Qmp { socket, buffer: Vec::new(), events: VecDeque::new() };
        let left = deadline.saturating_duration_since(Instant::now());
        let deadline = Instant::now() + left.max(CONNECT_PAUSE);
        loop {
            let message = qmp.message("greeting", deadline)?;
            if message.get("QMP").is_some() {
                break;
            }
            // What happens while QEMU accepts the connection is told ahead of its greeting.
            if message.get("event").is_none() {
                return Err(failed("greeting", format!("{message} instead of a greeting")));
            }
            qmp.events.push_back(message);
        }
        qmp.execute("qmp_capabilities", Value::Null)?;
        Ok(qmp)
    }

    /// Runs a command and returns its result. `arguments` is an object, or null for none.
    ///
    /// # Errors
    /// [`Error::Qmp`] with QEMU's own description if it refused, or if it took more than [`ANSWER_TIMEOUT`].
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let mut request = json!({ "execute": command });
        if !arguments.is_null() {
            request["arguments"] = arguments;
        }
        let mut line = request.to_string();
        line.push('\n');
        self.socket
            .write_all(line.as_bytes())
            .map_err(Error::io(format!("send {command} to QEMU's monitor")))?;
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            let mut message = self.message(command, deadline)?;
            if let Some(error) = message.get("error") {
                let text = error["desc"].as_str().unwrap_or("refused without a description");
                return Err(failed(command, text.to_owned()));
            }
            if let Some(value) = message.get_mut("return") {
                return Ok(value.take());
            }
            self.events.push_back(message);
        }
    }

    /// Waits for an event of this name for which `wanted` holds, and returns its data. Other events are dropped.
    pub fn wait_event(
        &mut self,
        name: &str,
        timeout: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let deadline = Instant::now() + timeout;
        loop {
            let mut event = match self.events.pop_front() {
                Some(event) => event,
                None => self.message(name, deadline)?,
            };
            if event["event"] == name && wanted(&event["data"]) {
                return Ok(event["data"].take());
            }
        }
    }

    /// Ends QEMU at once, as if the power had gone.
    pub fn quit(&mut self) -> Result<()> {
        self.execute("quit", Value::Null).map(drop)
    }

    /// The host's thread of each virtual CPU, by CPU index; pin these.
    pub fn cpu_threads(&mut self) -> Result<Vec<i32>> {
        let cpus = self.execute("query-cpus-fast", Value::Null)?;
        let mut threads: Vec<(i64, i32)> = cpus
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|cpu| {
                let index = cpu["cpu-index"].as_i64()?;
                let thread = i32::try_from(cpu["thread-id"].as_i64()?).ok()?;
                Some((index, thread))
            })
            .collect();
        threads.sort_unstable();
        Ok(threads.into_iter().map(|(_, thread)| thread).collect())
    }

    /// The next message, whatever it is. `what` names the wait in errors.
    fn message(&mut self, what: &str, deadline: Instant) -> Result<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return serde_json::from_slice(&line)
                    .map_err(|error| failed(what, format!("sent no JSON: {error}")));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(failed(what, "no answer in time".to_owned()));
            }
            let reading = || Error::io("read from QEMU's monitor".to_owned());
            self.socket.set_read_timeout(Some(left)).map_err(reading())?;
            let mut chunk = [0; 4096];
            match self.socket.read(&mut chunk) {
                Ok(0) => return Err(failed(what, "QEMU has ended".to_owned())),
                Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(reading()(error)),
            }
        }
    }
}

fn failed(command: &str, reason: String) -> Error {
    Error::Qmp { command: command.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    /// A monitor that answers each request with the next of `answers`.
    fn monitor(name: &str, answers: &'static [&'static str]) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("isthmus-qmp-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            writeln!(socket, r#"{{"event": "RESUME"}}"#).unwrap();
            writeln!(socket, r#"{{"QMP": {{"version": {{}}}}}}"#).unwrap();
            let mut requests = BufReader::new(socket.try_clone().unwrap()).lines();
            requests.next();
            writeln!(socket, r#"{{"return": {{}}}}"#).unwrap();
            for answer in answers {
                requests.next();
                writeln!(socket, "{answer}").unwrap();
            }
            requests.next();
        });
        path
    }

    #[test]
    fn answers_and_events_are_told_apart() {
        let path = monitor(
            "events",
            &[concat!(
                r#"{"event": "OTHER", "data": {}}"#,
                "\n",
                r#"{"event": "DEVICE_DELETED", "data": {"device": "x"}}"#,
                "\n",
                r#"{"return": [{"cpu-index": 1, "thread-id": 12}, {"cpu-index": 0, "thread-id": 11}]}"#
            )],
        );
        let mut qmp = Qmp::connect(&path, Duration::from_secs(5)).unwrap();
        assert_eq!(qmp.cpu_threads().unwrap(), [11, 12]);
        qmp.wait_event("RESUME", Duration::from_secs(5), |_| true).unwrap();
        let data =
            qmp.wait_event("DEVICE_DELETED", Duration::from_secs(5), |data| data["device"] == "x").unwrap();
        assert_eq!(data["device"], "x");
        let late = qmp.wait_event("NEVER", Duration::from_millis(20), |_| true);
        assert!(late.unwrap_err().to_string().contains("no answer in time"));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn refusals_carry_the_text_of_qemu() {
        let path = monitor("errors", &[r#"{"error": {"class": "GenericError", "desc": "no such device"}}"#]);
        let mut qmp = Qmp::connect(&path, Duration::from_secs(5)).unwrap();
        let error = qmp.execute("device_del", json!({"id": "x"})).unwrap_err();
        assert!(error.to_string().contains("no such device"));
        std::fs::remove_file(path).unwrap();
    }
}
