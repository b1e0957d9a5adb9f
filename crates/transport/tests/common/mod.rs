//! A region in this process, with a stand-in for the local services.

// Each test program uses a part of it.
#![allow(dead_code, unreachable_pub)]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use isthmus_region::Result;
use isthmus_region::address::Naming;
use isthmus_region::directory::Writer;
use isthmus_region::extent::Extent;
use isthmus_region::local::LocalBuf;
use isthmus_region::mapping::Mapping;
use isthmus_region::member::{LocalService, Member};
use isthmus_region::membership::{self, NewPeer, Shape};
use isthmus_region::source::Source;
use isthmus_transport::{
    Completion, Config, Endpoint, Memory, Op, PeerId, PostError, Posted, Receive, Selector, Send, Status,
    Ticket,
};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

pub struct World {
    pub fd: OwnedFd,
    pub map: Arc<Mapping>,
    pub host: membership::Writer,
    pub services: Vec<Arc<Mutex<Writer>>>,
}

/// The files of a region.
#[derive(Debug)]
pub struct Files(Vec<OwnedFd>);

impl Source for Files {
    fn bytes(&self) -> u64 {
        1 << 20
    }

    fn file(&self, index: u32) -> Result<OwnedFd> {
        Ok(self.0[index as usize].try_clone().unwrap())
    }
}

struct Stub {
    writer: Arc<Mutex<Writer>>,
    area: u32,
}

impl LocalService for Stub {
    fn grow(&self, bytes: u64) -> Result<Extent> {
        self.writer.lock().unwrap().grow_area(self.area, bytes)
    }

    fn open_endpoint(&self, block: u64) -> Result<(u32, u64)> {
        self.writer.lock().unwrap().open_endpoint(self.area, block, std::process::id())
    }

    fn close_endpoint(&self, slot: u32) -> Result<()> {
        self.writer.lock().unwrap().close_endpoint(self.area, slot)
    }

    fn process(&self, slot: u32, incarnation: u64) -> Result<Option<OwnedFd>> {
        let owner = self.writer.lock().unwrap().owner(slot, incarnation);
        Ok(owner.map(|_| pidfd_open(getpid(), PidfdFlags::empty()).unwrap()))
    }
}

impl World {
    pub fn new(peers: u32, section_bytes: u64) -> Self {
        Self::with_endpoints(peers, section_bytes, 32)
    }

    pub fn with_endpoints(peers: u32, section_bytes: u64, endpoints: u32) -> Self {
        let shape_bytes = (u64::from(peers) * section_bytes + (1 << 20)).next_power_of_two();
        let fd = isthmus_region::create::memory(shape_bytes).unwrap();
        let map = Mapping::map(fd.as_fd(), shape_bytes).unwrap();
        let shape = Shape::new(shape_bytes, [7, 8], peers, endpoints).unwrap();
        let mut host = membership::Writer::create(&map, &shape, 1).unwrap();
        let mut services = Vec::new();
        for i in 0..peers {
            let section = shape.host_bytes + u64::from(i) * section_bytes;
            let name = format!("peer{i}");
            let new = NewPeer { file: 0, section, section_bytes, is_vm: false, name: &name };
            host.add(i, &new).unwrap();
            let writer = Writer::create(host.region(), i, Naming::of_test(i)).unwrap();
            services.push(Arc::new(Mutex::new(writer)));
            host.activate(i, Naming::of_test(i).system).unwrap();
        }
        Self { fd, map, host, services }
    }

    /// A region in which each peer's section is a file of its own; [`World::attach_with`] needs a service that gives them.
    pub fn in_files(peers: u32, section_bytes: u64) -> (Self, Arc<Files>) {
        let bytes = 1 << 20;
        let memory = |bytes| isthmus_region::create::memory(bytes).unwrap();
        let fd = memory(bytes);
        let others: Vec<OwnedFd> = (0..peers).map(|_| memory(section_bytes)).collect();
        let given = std::iter::once(&fd).chain(&others).map(|fd| fd.try_clone().unwrap()).collect();
        let files = Arc::new(Files(given));
        let map = Mapping::map(fd.as_fd(), bytes).unwrap();
        let shape = Shape::new(bytes, [7, 8], peers, 32).unwrap().with_files(peers + 1, 0).unwrap();
        let lengths = vec![section_bytes; peers as usize];
        let source = Arc::clone(&files) as Arc<dyn Source>;
        let mut host = membership::Writer::create_from(&map, &shape, 1, &lengths, Some(source)).unwrap();
        let mut services = Vec::new();
        for i in 0..peers {
            let new = NewPeer { file: i + 1, section: 0, section_bytes, is_vm: false, name: "peer" };
            host.add(i, &new).unwrap();
            let writer = Writer::create(host.region(), i, Naming::of_test(i)).unwrap();
            services.push(Arc::new(Mutex::new(writer)));
            host.activate(i, Naming::of_test(i).system).unwrap();
        }
        (Self { fd, map, host, services }, files)
    }

    /// The section of a peer, as its processes and those that want to harm others write it.
    #[allow(dead_code)] // not by all tests
    pub fn section_of(&self, peer: u32) -> isthmus_region::Section {
        let region = self.host.region();
        region.own_section(&region.peer(peer).unwrap().unwrap()).unwrap()
    }

    /// A process of peer `peer`, and its area.
    pub fn attach(&self, peer: u32) -> (Arc<Member>, u32) {
        self.attach_with(peer, |service| service)
    }

    /// As [`World::attach`], with something between the process and its service.
    pub fn attach_with(
        &self,
        peer: u32,
        between: impl FnOnce(Box<dyn LocalService>) -> Box<dyn LocalService>,
    ) -> (Arc<Member>, u32) {
        self.attach_on(&self.map, peer, between)
    }

    /// As [`World::attach_with`], on a mapping that may be the process's own.
    pub fn attach_on(
        &self,
        map: &Arc<Mapping>,
        peer: u32,
        between: impl FnOnce(Box<dyn LocalService>) -> Box<dyn LocalService>,
    ) -> (Arc<Member>, u32) {
        let writer = Arc::clone(&self.services[peer as usize]);
        let grant = writer.lock().unwrap().open_area(64 << 10, 1, "test").unwrap();
        let stub = Box::new(Stub { writer, area: grant.area });
        (Member::new(map, peer, grant, between(stub)).unwrap(), grant.area)
    }

    /// An endpoint whose queue of posts is soon full.
    pub fn endpoint(&self, peer: u32) -> Endpoint {
        let config = Config { backlog_bytes: 16 << 10, ..Config::default() };
        self.endpoint_with(peer, config, Box::new(isthmus_transport::types::NoMemory))
    }

    /// An endpoint whose queue of posts is bounded by memory alone.
    pub fn patient_endpoint(&self, peer: u32) -> Endpoint {
        self.endpoint_with(peer, Config::default(), Box::new(isthmus_transport::types::NoMemory))
    }

    pub fn endpoint_with(&self, peer: u32, config: Config, memory: Box<dyn Memory>) -> Endpoint {
        Endpoint::open(&self.attach(peer).0, config, memory).unwrap()
    }
}

pub fn buf(bytes: &mut [u8]) -> LocalBuf {
    // SAFETY: the tests keep the bytes in place until the operation has completed.
    unsafe { LocalBuf::of(bytes) }
}

pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(31).wrapping_add(seed) >> 3).to_le_bytes()[0]).collect()
}

pub fn message<'a>(to: PeerId, tag: u64, bufs: &'a [LocalBuf]) -> Send<'a> {
    let ticket = Ticket { context: 1000 + tag, flags: 0 };
    Send { to, tagged: true, tag, data: Some(tag + 1), bufs, inject: false, delivered: false, ticket }
}

pub fn any(tag: u64) -> Selector {
    Selector { tagged: true, from: None, tag, ignore: 0 }
}

pub fn receive<'a>(select: Selector, bufs: &'a [LocalBuf]) -> Receive<'a> {
    Receive { select, bufs, multi: None, ticket: Ticket { context: select.tag, flags: 0 } }
}

/// Sends, making progress on both ends while there is no room.
pub fn send(from: &mut Endpoint, other: &mut Endpoint, send: &Send<'_>) -> Posted {
    for _ in 0..1_000_000 {
        match from.send(send) {
            Ok(posted) => return posted,
            Err(PostError::Again) => {
                other.progress();
                from.progress();
            }
            Err(e) => panic!("{e}"),
        }
    }
    panic!("no room for a very long time");
}

/// Makes progress on both until `end` has a completion.
pub fn wait(end: &mut Endpoint, other: &mut Endpoint) -> Completion {
    for _ in 0..1_000_000 {
        end.progress();
        other.progress();
        if let Some(completion) = end.pop() {
            return completion;
        }
    }
    panic!("no completion for a very long time");
}

/// The same until a receive has ended; sends must have ended well.
pub fn wait_received(end: &mut Endpoint, other: &mut Endpoint) -> Completion {
    loop {
        let done = wait(end, other);
        match done.op {
            Op::Receive { .. } => return done,
            _ => assert_eq!(done.status, Status::Ok),
        }
    }
}

pub fn ok(completion: Completion) -> Completion {
    assert_eq!(completion.status, Status::Ok);
    completion
}

/// Progress of both, so often, and what ends there.
pub fn polls(ends: [&mut Endpoint; 2], count: u32) -> Vec<Completion> {
    let mut done = Vec::new();
    let [a, b] = ends;
    for _ in 0..count {
        for end in [&mut *a, &mut *b] {
            end.progress();
            done.extend(end.pop());
        }
    }
    done
}

/// Progress of one endpoint, and what ends there.
pub fn alone(end: &mut Endpoint) -> Vec<Completion> {
    (0..2000).flat_map(|_| [end.progress().then(|| end.pop()), Some(end.pop())]).flatten().flatten().collect()
}
