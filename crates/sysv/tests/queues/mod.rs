//! A service, queues of its region, and other processes: this program again, as the test `child`, in a given role.
#![allow(dead_code, unreachable_pub)] // each test uses a part of it

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_host::{Config, Service};
use isthmus_region::local::LocalBuf;
use isthmus_sysv::ipc::{CREAT, NOWAIT};
use isthmus_sysv::msg::{Limits, Open, Who};
use isthmus_sysv::waiting::Uninterrupted;
use isthmus_sysv::{Caller, Ipc, Result};

/// Longer than anything takes, even on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);

/// A service, and this process's place in its region.
pub struct World {
    pub ipc: Ipc,
    service: Service,
    _dir: tempfile::TempDir,
}

impl World {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { host_name: "host".into(), ..Config::new(dir.path(), 32 << 20) };
        let service = Service::start(config, Arc::new(|_| ())).unwrap();
        let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
        Self { ipc: Ipc::new(&member), service, _dir: dir }
    }

    /// A new queue.
    pub fn queue(&self) -> (i32, Queue) {
        let id = self.ipc.msgget(0, CREAT | 0o600, &Caller::current(), &Limits::default()).unwrap();
        (id, Queue(self.ipc.queue(id).unwrap()))
    }

    pub fn remove(&self, id: i32) {
        self.ipc.msgremove(id, &Caller::current()).unwrap();
    }

    /// Starts another process in a role, with arguments.
    pub fn other(&self, role: &str, args: &[&dyn std::fmt::Display]) -> Other {
        let args: Vec<_> = args.iter().map(ToString::to_string).collect();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--include-ignored"])
            .env("ROLE", role)
            .env("ARGS", args.join(" "))
            .env("ISTHMUS_SOCKET", self.service.attach_socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Other { child, input, output: BufReader::new(output) }
    }
}

/// Another process.
pub struct Other {
    pub child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Other {
    /// The rest of the first line that has `wanted` in it, unless the process ends before that.
    pub fn line(&mut self, wanted: &str) -> Option<String> {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some(at) = line.find(wanted) {
                return Some(line[at + wanted.len()..].trim().to_owned());
            }
            line.clear();
        }
        None
    }

    pub fn await_line(&mut self, wanted: &str) -> String {
        self.line(wanted).unwrap_or_else(|| panic!("the other process ended before it said {wanted}"))
    }

    pub fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What this process is to do; none in the program that runs the tests.
pub struct Told {
    pub role: String,
    pub ipc: Ipc,
    pub args: Vec<i64>,
}

pub fn told() -> Option<Told> {
    let role = std::env::var("ROLE").ok()?;
    let socket = std::env::var_os("ISTHMUS_SOCKET")?;
    let member = isthmus_attach::connect_at(Path::new(&socket)).unwrap();
    let args = std::env::var("ARGS").ok()?.split_whitespace().map(|a| a.parse().unwrap()).collect();
    Some(Told { role, ipc: Ipc::new(&member), args })
}

impl Told {
    /// The queue whose id is the first argument.
    pub fn queue(&self) -> Queue {
        Queue(self.ipc.queue(i32::try_from(self.args[0]).unwrap()).unwrap())
    }
}

pub fn read_line() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// This process, which stays who it is.
pub struct Me;

impl Who for Me {
    fn version(&self) -> u64 {
        0
    }

    fn caller(&self) -> Arc<Caller> {
        Arc::new(Caller::current())
    }
}

/// A queue, with calls that take and give vectors.
#[derive(Clone)]
pub struct Queue(pub Arc<Open>);

impl Queue {
    pub fn send(&self, kind: i64, text: &[u8], flags: i32) -> Result<()> {
        let text = LocalBuf::leaked(text.to_vec());
        self.0.send(kind, text, flags, &Me, &mut Uninterrupted)
    }

    pub fn receive(&self, kind: i64, size: usize, flags: i32) -> Result<(i64, Vec<u8>)> {
        let room = LocalBuf::leaked(vec![0xee; size]);
        let place = |len| Ok(room.part(0, len));
        let (kind, count) = self.0.receive(kind, size, &place, flags, &Me, &mut Uninterrupted)?;
        Ok((kind, room.part(0, count).to_vec()))
    }

    /// All that is in it, in order.
    pub fn drain(&self) -> Vec<(i64, Vec<u8>)> {
        std::iter::from_fn(|| self.receive(0, 8192, NOWAIT).ok()).collect()
    }

    /// As many messages of `len` bytes as it takes.
    pub fn fill(&self, len: usize) -> usize {
        (0..).take_while(|_| self.send(1, &vec![7; len], NOWAIT).is_ok()).count()
    }
}

/// Waits until it is so.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "{what} never comes");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Small numbers that look random, the same ones each time.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}
