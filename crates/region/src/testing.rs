//! A process in a region of its own, for unit tests.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use isthmus_lockfree::life::State;

use crate::address::Naming;
use crate::directory::{self, Writer};
use crate::error::Result;
use crate::extent::Extent;
use crate::mapping::Mapping;
use crate::member::{LocalService, Member};
use crate::membership::{self, NewPeer, Shape};

/// Bytes of a peer's section.
const SECTION: u64 = 1 << 20;
/// Peers that the region has room for, and endpoint slots of each.
pub(crate) const PEERS: u32 = 3;
pub(crate) const SLOTS: u32 = 16;

struct Stub(Arc<Mutex<Writer>>);

impl LocalService for Stub {
    fn grow(&self, bytes: u64) -> Result<Extent> {
        self.0.lock().unwrap().grow_area(0, bytes)
    }
    fn open_endpoint(&self, block: u64) -> Result<(u32, u64)> {
        self.0.lock().unwrap().open_endpoint(0, block, 1)
    }
    fn close_endpoint(&self, slot: u32) -> Result<()> {
        self.0.lock().unwrap().close_endpoint(0, slot)
    }
}

/// The process, of peer 0; and the services of all peers.
pub(crate) struct Place {
    pub(crate) host: membership::Writer,
    pub(crate) member: Arc<Member>,
}

impl Place {
    pub(crate) fn new() -> Self {
        let bytes = 8 << 20;
        let fd = crate::create::memory(bytes).unwrap();
        let map = Mapping::map(fd.as_fd(), bytes).unwrap();
        let shape = Shape::new(bytes, [1, 2], PEERS, SLOTS).unwrap();
        let mut host = membership::Writer::create(&map, &shape, 1).unwrap();
        let mut writer = boot(&mut host, 0, Naming::of_test(0));
        let grant = writer.open_area(64 << 10, 1, "test").unwrap();
        let member = Member::new(&map, 0, grant, Box::new(Stub(Arc::new(Mutex::new(writer))))).unwrap();
        Self { host, member }
    }

    /// A further peer begins a life.
    pub(crate) fn boot(&mut self, index: u32) -> Writer {
        self.boot_as(index, Naming::of_test(index))
    }

    /// The same of a certain system.
    pub(crate) fn boot_as(&mut self, index: u32, naming: Naming) -> Writer {
        boot(&mut self.host, index, naming)
    }

    /// Publishes a peer before its service has written its directory.
    pub(crate) fn announce(&mut self, index: u32) {
        announce(&mut self.host, index);
        self.host.activate(index, Naming::of_test(index).system).unwrap();
    }

    /// A peer dies, as the host service publishes it.
    pub(crate) fn kill(&mut self, index: u32) {
        self.host.set_state(index, State::Dead).unwrap();
        let info = self.host.region().peer(index).unwrap().unwrap();
        let section = self.host.region().own_section(&info).unwrap();
        directory::bury(&section, self.host.region().shape()).unwrap();
        section.zero("section", 0, section.len()).unwrap();
    }

    /// Takes all memory that the process can have.
    pub(crate) fn fill(&self) {
        for bytes in (6..=16).rev().map(|bits| 1 << bits) {
            while self.member.take(bytes).is_ok() {}
        }
    }
}

fn announce(host: &mut membership::Writer, index: u32) {
    let section = host.region().shape().host_bytes + u64::from(index) * SECTION;
    let name = ["host", "vm1", "vm2"][index as usize];
    host.add(index, &NewPeer { file: 0, section, section_bytes: SECTION, is_vm: index > 0, name }).unwrap();
}

fn boot(host: &mut membership::Writer, index: u32, naming: Naming) -> Writer {
    announce(host, index);
    let writer = Writer::create(host.region(), index, naming).unwrap();
    host.activate(index, naming.system).unwrap();
    writer
}
