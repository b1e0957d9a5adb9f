//! A service, members of its region, and other processes: this program again, as the test `child`, in a given role.
#![allow(dead_code, unreachable_pub)] // each test uses a part of it

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use isthmus_host::{Config, Service};
use isthmus_region::Section;
use isthmus_region::member::Member;

/// Longer than anything takes, even on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);
/// What `include/isthmus.h` promises: a thread that waits for a process learns of its end within this time.
pub const TOLD: Duration = Duration::from_secs(5);

/// A service and this process's place in its region.
pub struct World {
    pub member: Arc<Member>,
    service: Service,
    _dir: tempfile::TempDir,
}

impl World {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { host_name: "host".into(), ..Config::new(dir.path(), 16 << 20) };
        let service = Service::start(config, Arc::new(|_| ())).unwrap();
        let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
        Self { member, service, _dir: dir }
    }

    pub fn socket(&self) -> &Path {
        self.service.attach_socket()
    }

    /// A zeroed piece of shared memory, and where it is in the section.
    pub fn piece(&self, bytes: u64) -> (u64, Section) {
        let at = self.member.allocate(bytes, 4096).unwrap();
        self.member.section().zero("test", at, bytes).unwrap();
        (at, piece(&self.member, at, bytes))
    }

    /// Starts another process in a role, with the place of its memory and arguments.
    pub fn other(&self, role: &str, at: u64, args: &str) -> Other {
        Other::start(role, self.socket(), at, args)
    }
}

/// The piece that [`World::piece`] returned, in any process of the host.
pub fn piece(member: &Arc<Member>, at: u64, bytes: u64) -> Section {
    member.section().part("test", at, bytes).unwrap()
}

pub struct Other {
    pub child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(role: &str, socket: &Path, at: u64, args: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--include-ignored"])
            .env("ROLE", role)
            .env("ISTHMUS_SOCKET", socket)
            .env("AT", at.to_string())
            .env("ARGS", args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output) }
    }

    /// The rest of the first line that has `wanted` in it.
    pub fn await_line(&mut self, wanted: &str) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some(at) = line.find(wanted) {
                return line[at + wanted.len()..].trim().to_owned();
            }
            line.clear();
        }
        panic!("the other process ended before it said {wanted}");
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

/// What a process is to do: its member, its role, where its memory is, further arguments.
pub struct Told {
    pub member: Arc<Member>,
    pub role: String,
    pub at: u64,
    pub args: Vec<String>,
}

/// What this process is to do; none in the program that runs the tests.
pub fn told() -> Option<Told> {
    let role = std::env::var("ROLE").ok()?;
    let socket = std::env::var_os("ISTHMUS_SOCKET")?;
    let member = isthmus_attach::connect_at(Path::new(&socket)).unwrap();
    let at = std::env::var("AT").ok()?.parse().ok()?;
    let args = std::env::var("ARGS").ok()?.split_whitespace().map(str::to_owned).collect();
    Some(Told { member, role, at, args })
}

pub fn read_line() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Small numbers that look random, the same ones each time.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}
