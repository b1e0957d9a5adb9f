//! A host service with endpoints that have exchanged messages, all in this process.

// Each test program uses a part of it.
#![allow(dead_code, unreachable_pub)]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use isthmus_attach::client::observe_at;
use isthmus_host::{Config, Service};
use isthmus_region::local::LocalBuf;
use isthmus_region::member::Member;
use isthmus_region::reader::Reader;
use isthmus_region::registrations::{ATOMIC, READ, Range, Table, WRITE};
use isthmus_transport::types::{Access, Memory, RemoteAtomic, Status};
use isthmus_transport::{Endpoint, Posted, Receive, Selector, Send, Ticket};

pub const REGION: u64 = 4 << 20;

pub struct Job {
    pub service: Service,
    pub ends: Vec<Endpoint>,
    /// Of each, what initiators reach without messages: a range of [`WINDOW`] bytes with key 7, and its first half with key 8.
    pub tables: Vec<Table>,
    pub windows: Vec<u64>,
    pub dir: tempfile::TempDir,
}

/// Bytes of memory that each process lets initiators reach.
pub const WINDOW: u64 = 8192;

/// A table that names a window and its first half, and the window's offset.
fn published(member: &Arc<Member>) -> (Table, u64) {
    let mut table = Table::create(member).unwrap();
    let offset = member.allocate(WINDOW, 64).unwrap();
    let range = Range { key: 7, offset, len: WINDOW, access: READ | WRITE | ATOMIC, base: 0, skip: 0 };
    table.publish(&range).unwrap();
    // A registration that is withdrawn, and one that is published after it.
    let number = table.publish(&Range { key: 9, ..range }).unwrap();
    table.withdraw(number).unwrap();
    table.publish(&Range { key: 8, len: WINDOW / 2, access: READ, ..range }).unwrap();
    (table, offset)
}

/// What is published, and nothing that goes by messages.
pub struct Published(pub u64);

impl Memory for Published {
    fn published(&self) -> Option<u64> {
        Some(self.0)
    }

    fn find(&self, _: u64, _: u64, _: u64, _: Access) -> Result<LocalBuf, Status> {
        Err(Status::NoKey)
    }

    fn atomic(&self, _: LocalBuf, _: &RemoteAtomic<'_>, _: &mut Vec<u8>) -> Result<(), Status> {
        Err(Status::Unsupported)
    }
}

/// A service and `count` endpoints, each of a process of its own as far as the region knows.
pub fn job(count: usize) -> Job {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { host_name: "host".into(), endpoints: 16, ..Config::new(dir.path(), REGION) };
    job_of(config, dir, &vec!["socket"; count])
}

/// The same with an endpoint of each of `count` peers, which cannot write each other's sections.
pub fn separate_job(count: u32) -> Job {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config { host_name: "host".into(), ..Config::new(dir.path(), 16 << 20) };
    config.region.separate_sections = true;
    config.host_ranks = count;
    let sockets: Vec<String> = (1..count).map(|peer| format!("socket-{peer}")).collect();
    let sockets: Vec<&str> = ["socket"].into_iter().chain(sockets.iter().map(String::as_str)).collect();
    job_of(config, dir, &sockets)
}

fn job_of(config: Config, dir: tempfile::TempDir, sockets: &[&str]) -> Job {
    let service = Service::start(config, Arc::new(|_| ())).unwrap();
    let mut job = Job { service, ends: Vec::new(), tables: Vec::new(), windows: Vec::new(), dir };
    for socket in sockets {
        let member = isthmus_attach::connect_at(&job.dir.path().join(socket)).unwrap();
        let (table, window) = published(&member);
        let memory = Box::new(Published(table.offset()));
        job.ends.push(Endpoint::open(&member, isthmus_transport::Config::default(), memory).unwrap());
        job.tables.push(table);
        job.windows.push(window);
    }
    job
}

impl Job {
    /// `count` messages of `len` zeros from one endpoint to another, received.
    pub fn send(&mut self, from: usize, to: usize, count: usize, len: usize) {
        let address = self.ends[to].address();
        let target = self.ends[from].resolve(&address).unwrap();
        let out = LocalBuf::leaked(vec![0; len]);
        let into = LocalBuf::leaked(vec![0; len]);
        for _ in 0..count {
            let select = Selector { tagged: true, from: None, tag: 1, ignore: 0 };
            let receive = Receive { select, bufs: &[into], multi: None, ticket: Ticket::default() };
            self.ends[to].receive(&receive).unwrap();
            let bufs = [out];
            let ticket = Ticket::default();
            let send = Send {
                to: target,
                tagged: true,
                tag: 1,
                data: None,
                bufs: &bufs,
                inject: false,
                delivered: false,
                ticket,
            };
            while !matches!(self.ends[from].send(&send), Ok(Posted::Done | Posted::Pending)) {
                self.ends[to].progress();
            }
            for _ in 0..100_000 {
                self.ends[from].progress();
                self.ends[to].progress();
                let _ = self.ends[from].pop();
                if self.ends[to].pop().is_some() {
                    break;
                }
            }
        }
        // Enough for an endpoint's periodic work: publishing counters, completing the opening of lanes.
        for _ in 0..2000 {
            self.ends[from].progress();
            self.ends[to].progress();
        }
    }

    pub fn fd(&self) -> OwnedFd {
        observe_at(self.service.attach_socket(), Duration::from_secs(2)).unwrap().region
    }

    pub fn reader(&self) -> Reader {
        Reader::new(self.fd()).unwrap()
    }

    /// All bytes of the region.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(REGION).unwrap()];
        self.reader().bytes("all", 0, &mut bytes).unwrap();
        bytes
    }
}
