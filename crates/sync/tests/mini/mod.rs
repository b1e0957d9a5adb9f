//! What the tests of minitransactions share: a service, a machinery and a segment that one member of the region lends, and
//! other members, in this process or in others.
#![allow(dead_code, unreachable_pub)] // each test uses some of it

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use isthmus_host::{Config, Service};
use isthmus_region::Section;
use isthmus_region::member::Member;
use isthmus_sync::minitransaction::{Committer, Minitransaction, Node, Outcome, SegmentId, Shape, Space};

pub const N: Node = Node::LOCAL;
pub const S: SegmentId = SegmentId(1);
pub const SEGMENT: u64 = 64 << 10;

/// A service and the member that lends the memory. It lives as long as the test.
pub struct World {
    pub member: Arc<Member>,
    pub service: Service,
    pub shape: Shape,
    /// Offsets of machinery and segment in the member's section.
    pub at: (u64, u64),
    _dir: tempfile::TempDir,
}

impl World {
    pub fn new(shape: Shape) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { host_name: "host".into(), ..Config::new(dir.path(), 16 << 20) };
        let service = Service::start(config, Arc::new(|_| ())).unwrap();
        let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
        let at = [shape.bytes(), SEGMENT].map(|bytes| {
            let at = member.allocate(bytes, 4096).unwrap();
            member.section().zero("test", at, bytes).unwrap();
            at
        });
        Self { member, service, shape, at: (at[0], at[1]), _dir: dir }
    }

    pub fn socket(&self) -> PathBuf {
        self.service.attach_socket().to_path_buf()
    }

    pub fn attach(&self) -> Arc<Member> {
        isthmus_attach::connect_at(self.service.attach_socket()).unwrap()
    }

    pub fn machinery(&self) -> Section {
        self.member.section().part("machinery", self.at.0, self.shape.bytes()).unwrap()
    }

    pub fn segment(&self) -> Section {
        self.member.section().part("segment", self.at.1, SEGMENT).unwrap()
    }

    pub fn space(&self) -> Space {
        open(&self.member, self.shape, self.at)
    }

    /// The space as another member sees it, which dies when the space and its committers are dropped.
    pub fn other(&self) -> Space {
        open(&self.attach(), self.shape, self.at)
    }

    pub fn word(&self, offset: u64) -> u64 {
        self.segment().word("test", offset).unwrap().get()
    }

    pub fn set(&self, offset: u64, value: u64) {
        self.segment().word("test", offset).unwrap().set(value);
    }

    /// Checks that no lock is held.
    pub fn assert_unlocked(&self) {
        let machinery = self.machinery();
        for lock in 0..u64::from(self.shape.locks) {
            assert_eq!(machinery.word("lock", 128 + lock * 64).unwrap().get(), 0, "lock {lock}");
        }
    }

    /// Places of a slot's words: owner, state, flight, log.
    pub fn slot(&self, slot: u64) -> [u64; 4] {
        let at = 128 + u64::from(self.shape.locks) * 64 + slot * (128 + u64::from(self.shape.log_bytes));
        [at, at + 8, at + 64, at + 128]
    }

    /// Starts a child of the test that does what `role` says.
    pub fn child(&self, role: &str) -> Other {
        Other::start(role, &self.socket(), &format!("{},{}", self.at.0, self.at.1))
    }
}

/// Opens the space as a member; all members here are of the host.
pub fn open(member: &Arc<Member>, shape: Shape, at: (u64, u64)) -> Space {
    let part = |at, bytes| member.section().part("test", at, bytes).unwrap();
    let space = Space::open(member, &part(at.0, shape.bytes()), shape).unwrap();
    space.register(N, S, &part(at.1, SEGMENT)).unwrap();
    space.set_patience(Duration::from_secs(20));
    space
}

/// In a child: its member and the space.
pub fn open_in_child(shape: Shape) -> Space {
    let socket = PathBuf::from(std::env::var_os("ISTHMUS_SOCKET").unwrap());
    let at = std::env::var("MINI_AT").unwrap();
    let (machinery, segment) = at.split_once(',').unwrap();
    let at = (machinery.parse().unwrap(), segment.parse().unwrap());
    open(&isthmus_attach::connect_at(&socket).unwrap(), shape, at)
}

/// Reads a word with a minitransaction.
pub fn load(committer: &mut Committer, offset: u64) -> u64 {
    let mut t = Minitransaction::new();
    let read = t.read(N, S, offset, 8);
    loop {
        if committer.commit(&mut t).unwrap() == Outcome::Committed {
            return t.number(read).unwrap();
        }
    }
}

/// One try to change a word from `old` to `new`.
pub fn exchange(committer: &mut Committer, offset: u64, old: u64, new: u64) -> Outcome {
    let mut t = Minitransaction::new();
    t.compare(N, S, offset, &old.to_le_bytes());
    t.write(N, S, offset, &new.to_le_bytes());
    committer.commit(&mut t).unwrap()
}

/// Adds to a word; returns how many tries failed.
pub fn add(committer: &mut Committer, offset: u64, by: u64) -> u64 {
    let mut failures = 0;
    loop {
        let old = load(committer, offset);
        if exchange(committer, offset, old, old.wrapping_add(by)) == Outcome::Committed {
            return failures;
        }
        failures += 1;
    }
}

/// The other process of a test.
pub struct Other {
    pub child: Child,
    pub input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(role: &str, socket: &Path, at: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--include-ignored"])
            .env("ROLE", role)
            .env("ISTHMUS_SOCKET", socket)
            .env("MINI_AT", at)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output) }
    }

    /// The rest of the first line that has `wanted` in it; `None` if the process ended before.
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
        let _ = writeln!(self.input, "{line}");
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
