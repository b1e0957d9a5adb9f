//! A service and other processes: this program again, as the test `child`, in a given role.
#![allow(dead_code, unreachable_pub)] // each test uses a part of it

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_host::{Config, Service};
use isthmus_region::member::Member;
use isthmus_sysv::Ipc;

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
        let config = Config { host_name: "host".into(), ..Config::new(dir.path(), 128 << 20) };
        let service = Service::start(config, Arc::new(|_| ())).unwrap();
        let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
        Self { ipc: Ipc::new(&member), service, _dir: dir }
    }

    /// Another place in the region.
    pub fn attach(&self) -> Arc<Member> {
        isthmus_attach::connect_at(self.service.attach_socket()).unwrap()
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

/// Waits until something is so.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "{what}");
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

    /// Another index below `limit` than `but`.
    pub fn other(&mut self, limit: u16, but: u16) -> u16 {
        let found = u16::try_from(self.below(u64::from(limit) - 1)).unwrap();
        if found < but { found } else { found + 1 }
    }
}
