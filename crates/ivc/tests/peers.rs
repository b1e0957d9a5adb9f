//! Contexts of several peers, like VMs and the host: a region in this process, with stand-ins for the local services.

mod common;

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{MAGIC, SOON, check, fill, pair};
use isthmus_ivc::{Context, Error, Event, Interest};
use isthmus_region::address::Naming;
use isthmus_region::directory::{self, Writer};
use isthmus_region::extent::Extent;
use isthmus_region::format::GlobalSlot;
use isthmus_region::life::State;
use isthmus_region::mapping::Mapping;
use isthmus_region::member::{LocalService, Member};
use isthmus_region::membership::{self, NewPeer, Shape};
use isthmus_region::{Result, wake};

const SECTION: u64 = 4 << 20;
const NAMES: [&str; 3] = ["host", "vm1", "vm2"];

struct Region {
    map: Arc<Mapping>,
    host: membership::Writer,
    services: Vec<Arc<Mutex<Writer>>>,
    boots: u32,
}

/// The service of one peer, for one process. It wakes any endpoint of the region, as services with a relay do.
struct Stub {
    services: Vec<Arc<Mutex<Writer>>>,
    peer: usize,
    area: u32,
}

impl LocalService for Stub {
    fn grow(&self, bytes: u64) -> Result<Extent> {
        self.services[self.peer].lock().unwrap().grow_area(self.area, bytes)
    }

    fn open_endpoint(&self, block: u64) -> Result<(u32, u64)> {
        self.services[self.peer].lock().unwrap().open_endpoint(self.area, block, 1)
    }

    fn close_endpoint(&self, slot: u32) -> Result<()> {
        self.services[self.peer].lock().unwrap().close_endpoint(self.area, slot)
    }

    fn wake(&self, slot: GlobalSlot) {
        let service = self.services[slot.peer(16) as usize].lock().unwrap();
        wake::wake(&service.directory().wake_line(slot.local(16)).unwrap().words[0]);
    }
}

impl Region {
    fn new() -> Self {
        let bytes = 16 << 20;
        let fd = isthmus_region::create::memory(bytes).unwrap();
        let map = Mapping::map(fd.as_fd(), bytes).unwrap();
        let shape = Shape::new(bytes, [7, 8], 3, 16).unwrap();
        let host = membership::Writer::create(&map, &shape, 1).unwrap();
        let mut region = Self { map, host, services: Vec::new(), boots: 0 };
        for i in 0..3 {
            let service = region.boot(i);
            region.services.push(Arc::new(Mutex::new(service)));
        }
        region
    }

    /// A peer begins a life.
    fn boot(&mut self, index: u32) -> Writer {
        self.boots += 1;
        let naming = Naming { former: self.boots, ..Naming::of_test(index) };
        let shape = *self.host.region().shape();
        let section = shape.host_bytes + u64::from(index) * SECTION;
        let new = NewPeer {
            file: 0,
            section,
            section_bytes: SECTION,
            is_vm: index > 0,
            name: NAMES[index as usize],
        };
        self.host.add(index, &new).unwrap();
        let writer = Writer::create(self.host.region(), index, naming).unwrap();
        self.host.activate(index, naming.system).unwrap();
        writer
    }

    /// A peer dies, as the host service publishes it.
    fn kill(&mut self, index: u32) {
        self.host.set_state(index, State::Dead).unwrap();
        let info = self.host.region().peer(index).unwrap().unwrap();
        let section = self.host.region().own_section(&info).unwrap();
        directory::bury(&section, self.host.region().shape()).unwrap();
        section.zero("section", 0, section.len()).unwrap();
    }

    fn context(&self, peer: usize, client: u64) -> Context {
        let grant = self.services[peer].lock().unwrap().open_area(64 << 10, 1, "test").unwrap();
        let stub = Stub { services: self.services.clone(), peer, area: grant.area };
        let member = Member::new(&self.map, u32::try_from(peer).unwrap(), grant, Box::new(stub)).unwrap();
        Context::register(&member, MAGIC, client).unwrap()
    }
}

#[test]
fn members_of_all_peers_are_equal() {
    let region = Region::new();
    let contexts: Vec<Context> =
        (0..6_u64).map(|i| region.context(usize::try_from(i % 3).unwrap(), i)).collect();
    for context in &contexts {
        let mut peers: Vec<(u64, String)> =
            context.peers().iter().map(|p| (p.client, p.host.to_string())).collect();
        peers.sort();
        let all = (0..6).filter(|i| *i != context.client());
        let right: Vec<_> = all.map(|i| (i, NAMES[usize::try_from(i % 3).unwrap()].to_owned())).collect();
        assert_eq!(peers, right);
    }
    for (from, to) in [(0, 1), (1, 2), (2, 0), (1, 4), (5, 0)] {
        let (here, there) = pair(&contexts[from], &contexts[to]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut bytes = vec![0; 300_000];
                fill(&mut bytes, 0, 2);
                here.write_all(&bytes, SOON).unwrap();
            });
            let mut bytes = vec![0; 300_000];
            there.read_exact(&mut bytes, SOON).unwrap();
            check(&bytes, 0, 2);
        });
        there.write_all(b"back", SOON).unwrap();
        here.read_exact(&mut [0; 4], SOON).unwrap();
    }
}

#[test]
fn a_suspended_writer_hears_that_its_partner_has_died() {
    let mut region = Region::new();
    let (a, b) = (region.context(0, 1), region.context(1, 2));
    let (here, _there) = pair(&a, &b);
    here.watch(Interest { read: false, write: true });
    assert_eq!(a.suspend(Duration::from_millis(1)), 1);
    a.events();
    assert_eq!(here.write(b"x").unwrap(), 0);
    assert!(a.arm());
    region.kill(1);
    assert!(!a.arm());
    assert!(a.events().iter().any(|e| matches!(e, Event::Gone { channel, .. } if *channel == here.id())));
    assert!(!a.arm(), "no call has said that nobody reads");
    assert!(matches!(here.write(b"x"), Err(Error::PeerDied { .. })));
    assert!(a.arm());
    assert!(matches!(here.check_suspended(), Ok(())));
}

#[test]
fn a_vm_that_dies_takes_its_channels_along_and_may_come_back() {
    let mut region = Region::new();
    let (a, b, c) = (region.context(0, 1), region.context(1, 2), region.context(2, 3));
    let (here, old) = pair(&a, &b);
    let (to_c, of_c) = pair(&a, &c);
    a.events();
    old.write_all(b"arrived", SOON).unwrap();
    let mut connecting = a.begin_connect(b.address()).unwrap();
    here.read_exact(&mut [0; 3], SOON).unwrap();
    region.kill(1);
    let error = here.read(&mut [0; 7]).unwrap_err();
    assert!(matches!(error, Error::PeerDied { .. }), "{error}: what is zeroed now is not delivered");
    assert!(error.to_string().contains("'vm1'"), "{error}");
    assert!(matches!(here.write(b"x"), Err(Error::PeerDied { .. })));
    assert!(matches!(connecting.poll(), Err(Error::PeerDied { .. })));
    let events = a.events();
    assert!(events.iter().any(|e| matches!(e, Event::Left { peer, in_order: false } if peer.client == 2)));
    assert!(events.iter().any(|e| matches!(e, Event::Gone { channel, .. } if *channel == here.id())));
    of_c.write_all(b"others go on", SOON).unwrap();
    to_c.read_exact(&mut [0; 12], SOON).unwrap();
    let service = region.boot(1);
    *region.services[1].lock().unwrap() = service;
    let again = region.context(1, 2);
    assert!(matches!(&a.wait_events(SOON)[..], [Event::Joined(p)] if p.client == 2 && &*p.host == "vm1"));
    assert_ne!(again.address(), b.address());
    assert!(matches!(a.connect(b.address(), SOON), Err(Error::NoPeer { .. })));
    let (here, there) = pair(&again, &a);
    here.write_all(b"x", SOON).unwrap();
    there.read_exact(&mut [0], SOON).unwrap();
    // The former life ended with its VM, so its handles are never dropped.
    std::mem::forget((b, old));
}
