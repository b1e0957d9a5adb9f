//! Processes attach natively, work, and die: with real processes, since that is what it is about.
//!
//! A test starts this program again as the test `child`, which does what `CHILD` says.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use isthmus_attach::server::{Ending, Event as Process};
use isthmus_host::{Config, Event, Service};
use isthmus_region::Error as RegionError;
use isthmus_region::counters::Counter;
use isthmus_region::member::Member;

const REGION: u64 = 16 << 20;

fn service(dir: &Path) -> (Service, Receiver<Event>) {
    let (send, events) = channel();
    let send = Mutex::new(send);
    let mut config = Config::new(dir, REGION);
    config.host_name = "host".into();
    let service = Service::start(config, Arc::new(move |e| drop(send.lock().unwrap().send(e.clone()))));
    (service.unwrap(), events)
}

/// Waits for an event that fits, for at most two seconds.
fn await_event<T>(events: &Receiver<Event>, fits: impl Fn(&Process) -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match events.recv_timeout(left).expect("the event comes in time") {
            Event::Process(p) => {
                if let Some(found) = fits(&p) {
                    return found;
                }
            }
            other => panic!("unexpected {other:?}"),
        }
    }
}

fn gone(event: &Process) -> Option<(Ending, Vec<u32>)> {
    match event {
        Process::Gone { ending, endpoints, .. } => Some((*ending, endpoints.clone())),
        _ => None,
    }
}

/// The other process of a test.
struct Other {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(role: &str, socket: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--include-ignored"])
            .env("CHILD", role)
            .env("ISTHMUS_SOCKET", socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut other = Self { child, input, output: BufReader::new(output) };
        other.await_line("ready");
        other
    }

    fn await_line(&mut self, wanted: &str) {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if line.contains(wanted) {
                return;
            }
            line.clear();
        }
        panic!("the other process ended before it said {wanted}");
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn open_endpoint(member: &Member) -> u32 {
    let block = member.take(64).unwrap();
    member.service().open_endpoint(block).unwrap().0
}

#[test]
#[ignore = "the other process of the tests here"]
fn child() {
    let Ok(role) = std::env::var("CHILD") else { return };
    let member = isthmus_attach::connect().unwrap();
    member.counters().add(Counter::TxBytes, 1000);
    open_endpoint(&member);
    // Its standard output is closed in the child that only holds the socket, so that a reader is not kept waiting.
    let held = (role == "forked").then(|| {
        // A child that inherits the socket: dup clears close-on-exec.
        use std::os::fd::AsFd;
        let copies: Vec<_> = std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .flatten()
            .filter(|e| {
                std::fs::read_link(e.path()).is_ok_and(|l| l.to_string_lossy().starts_with("socket:"))
            })
            .filter_map(|e| std::fs::File::open(e.path()).ok())
            .collect();
        drop(copies);
        let _ = std::io::stdout().as_fd();
    });
    drop(held);
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    match line.trim() {
        "detach" => drop(member),
        "exec" => {
            use std::os::unix::process::CommandExt;
            let _ = Command::new("sleep").arg("100").exec();
        }
        _ => {}
    }
    println!("done");
    std::io::stdin().read_line(&mut line).unwrap();
}

#[test]
fn two_processes_meet_in_the_region() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = service(dir.path());
    let mut other = Other::start("plain", service.attach_socket());
    let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    open_endpoint(&member);
    let (_, directory) = member.directory(0).unwrap();
    let found = directory.endpoints();
    assert_eq!(found.len(), 2);
    assert!(found.iter().any(|(_, e)| e.pid == u64::from(other.child.id())));
    assert_eq!(service.stats().totals().get(Counter::TxBytes), 1000);
    other.say("detach");
    assert_eq!(await_event(&events, gone).0, Ending::Detached);
    assert_eq!(directory.endpoints().len(), 1);
    assert_eq!(service.stats().totals().get(Counter::TxBytes), 1000, "what it counted stays");
}
