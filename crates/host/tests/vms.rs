//! VMs as the host service sees them: a client that reads messages as QEMU does, and the guest's agent on the region
//! that it received.

use std::collections::BTreeMap;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use isthmus_attach::ring::{self, Frame};
use isthmus_guest::agent::{self, Agent};
use isthmus_guest::wakes::{Port, RECHECK};
use isthmus_host::{Config, Event, Service, Vm};
use isthmus_region::address::{Naming, SystemId};
use isthmus_region::counters::Counter;
use isthmus_region::directory;
use isthmus_region::error::ObjectProblem;
use isthmus_region::life::State;
use isthmus_region::mapping::Mapping;
use isthmus_region::member::Member;
use isthmus_region::membership::Region;
use isthmus_region::objects::{self, Access, Kind, NewObject, Object};
use isthmus_region::party::Party;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};

const SOON: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(10);

#[path = "vms/dax.rs"]
mod dax;
#[path = "vms/doorbells.rs"]
mod doorbells;
#[path = "vms/isolated.rs"]
mod isolated;
#[path = "vms/rules.rs"]
mod rules;

fn start(dir: &Path, names: &[&str]) -> (Service, Receiver<Event>) {
    start_with(dir, names, |_| {})
}

fn start_with(dir: &Path, names: &[&str], settle: impl FnOnce(&mut Config)) -> (Service, Receiver<Event>) {
    let (send, events) = channel();
    let send = Mutex::new(send);
    let mut config = Config { host_name: "host".into(), vectors: 2, ..Config::new(dir, 32 << 20) };
    config.vms = names.iter().map(|n| Vm { name: (*n).into(), ranks: 1 }).collect();
    settle(&mut config);
    let service = Service::start(config, Arc::new(move |e| drop(send.lock().unwrap().send(e.clone()))));
    (service.unwrap(), events)
}

fn await_event(events: &Receiver<Event>, mut fits: impl FnMut(&Event) -> bool) -> Event {
    let deadline = Instant::now() + SOON;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let event = events.recv_timeout(left).expect("the event comes in time");
        if fits(&event) {
            return event;
        }
    }
}

/// A client that reads as QEMU does: eight bytes at a time, with at most one descriptor.
struct Qemu {
    socket: OwnedFd,
    region: OwnedFd,
    /// The eventfds of each peer that were announced so far.
    peers: BTreeMap<i64, Vec<OwnedFd>>,
}

impl Qemu {
    fn plug(path: &Path) -> OwnedFd {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        socket
    }

    /// A message, or `None` at the end of the connection.
    fn message(socket: &OwnedFd) -> Option<(i64, Option<OwnedFd>)> {
        let mut poll = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
        let patience = rustix::event::Timespec { tv_sec: 2, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut poll, Some(&patience)), Ok(1), "the server is silent");
        let mut bytes = [0; 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let iov = &mut [IoSliceMut::new(&mut bytes)];
        let got = rustix::net::recvmsg(socket, iov, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
        if got.bytes == 0 {
            return None;
        }
        assert_eq!(got.bytes, 8);
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        assert!(fds.len() < 2, "QEMU drops all but one descriptor");
        Some((i64::from_le_bytes(bytes), fds.pop()))
    }

    fn connect(path: &Path) -> Self {
        let socket = Self::plug(path);
        let next = || Self::message(&socket).unwrap();
        assert!(matches!(next(), (0, None)), "the protocol's version");
        // Any other is refused by QEMU for a device that may migrate.
        assert!(matches!(next(), (0, None)), "its own id");
        let (shared, region) = next();
        assert_eq!(shared, -1);
        let mut qemu = Self { region: region.unwrap(), peers: BTreeMap::new(), socket };
        while qemu.peers.get(&0).is_none_or(|own| own.len() < 2) {
            qemu.learn();
        }
        qemu
    }

    /// Receives one message about a peer. Returns the peer if it is gone, otherwise -1.
    fn learn(&mut self) -> i64 {
        match Self::message(&self.socket).unwrap() {
            (peer, Some(fd)) => self.peers.entry(peer).or_default().push(fd),
            (peer, None) => {
                self.peers.remove(&peer).expect("a peer that leaves was announced");
                return peer;
            }
        }
        -1
    }

    fn region(&self) -> Region {
        let bytes = u64::try_from(rustix::fs::fstat(&self.region).unwrap().st_size).unwrap();
        Region::open(&Mapping::map(self.region.as_fd(), bytes).unwrap()).unwrap()
    }

    /// Starts the guest's agent on this VM's region, by the wake port at a socket.
    fn boot(&self, wake: &Path, socket: &Path) -> agent::Result<Agent> {
        self.boot_with(Port::from(Self::plug(wake)), socket)
    }

    /// As [`Qemu::boot`], with another wake port.
    fn boot_with(&self, port: Port, socket: &Path) -> agent::Result<Agent> {
        let config = agent::Config { socket: socket.into(), patience: SOON, ..agent::Config::default() };
        let region = self.region.try_clone().unwrap();
        Agent::start_with(&config, region, port, Box::new(|_| ()))
    }
}

fn open_endpoint(member: &Member) -> (u32, u64) {
    let block = member.take(64).unwrap();
    member.service().open_endpoint(block).unwrap()
}

#[test]
fn vms_learn_of_each_others_joining_and_end() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start(dir.path(), &["red", "blue"]);
    let mut red = Qemu::connect(&service.ivshmem_socket_of("red").unwrap());
    assert_eq!(red.peers[&1].len(), 2, "the host can be rung");
    let blue = Qemu::connect(&service.ivshmem_socket_of("blue").unwrap());
    assert_eq!((blue.peers[&1].len(), blue.peers[&2].len()), (2, 2));
    red.learn();
    red.learn();
    // The eventfds are the same at both ends.
    rustix::io::write(&red.peers[&2][1], &5_u64.to_ne_bytes()).unwrap();
    let mut count = [0; 8];
    rustix::io::read(&blue.peers[&0][1], &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 5);
    drop(blue);
    assert_eq!(red.learn(), 2, "a peer that leaves is named once, without a descriptor");
    for id in 3..23 {
        let again = Qemu::connect(&service.ivshmem_socket_of("blue").unwrap());
        let others: Vec<i64> = again.peers.keys().copied().collect();
        assert_eq!(others, [0, 1, 2], "ids are counted in each VM's own view");
        red.learn();
        red.learn();
        assert_eq!(red.peers[&id].len(), 2, "an id is never used again");
        drop(again);
        assert_eq!(red.learn(), id);
    }
    let known: Vec<i64> = red.peers.keys().copied().collect();
    assert_eq!(known, [0, 1]);
}

#[test]
fn the_common_socket_gives_places_in_order_and_refuses_so_that_qemu_gives_up() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start(dir.path(), &["red", "blue"]);
    let common = service.ivshmem_socket().to_owned();
    let red = Qemu::connect(&common);
    let _blue = Qemu::connect(&common);
    for path in [&common, &service.ivshmem_socket_of("red").unwrap()] {
        let surplus = Qemu::plug(path);
        assert!(matches!(Qemu::message(&surplus), Some((-1, None))), "a version that no QEMU accepts");
        assert!(Qemu::message(&surplus).is_none());
        await_event(&events, |e| matches!(e, Event::VmRefused { .. }));
    }
    drop(red);
    await_event(&events, |e| *e == Event::VmGone { name: "red".into(), member: 1 });
    Qemu::connect(&common);
}

/// One that starts while another stops: that one takes away its own names, and none of those that are its successor's by then.
#[test]
fn a_service_that_stops_leaves_its_successors_sockets() {
    let names: Vec<String> = (0..40).map(|number| format!("red{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for round in 0..10 {
        let dir = tempfile::tempdir().unwrap();
        let (service, _events) =
            start_with(dir.path(), &names, |config| config.region.bytes = Some(256 << 20));
        let sockets = [service.wake_socket(), service.ivshmem_socket()].map(Path::to_owned);
        let next = |path: &Path| loop {
            match isthmus_attach::socket::listen(path, SocketType::STREAM, 0o600, None) {
                Ok(listener) => return listener,
                Err(e) => assert!(matches!(e, isthmus_attach::Error::InUse { .. }), "{e}"),
            }
        };
        std::thread::scope(|threads| {
            let successors = sockets.each_ref().map(|path| threads.spawn(|| next(path)));
            drop(service);
            let _listeners = successors.map(|successor| successor.join().unwrap());
            for path in &sockets {
                assert!(path.exists(), "{} in round {round}", path.display());
            }
        });
    }
}

/// One that comes while another runs whose sockets somebody has removed.
#[test]
fn a_service_removes_no_sockets_but_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (old, _events) = start(dir.path(), &["red"]);
    let own = old.wake_socket_of("red").unwrap();
    let paths = [old.attach_socket(), old.wake_socket(), old.ivshmem_socket()].map(Path::to_owned);
    paths.iter().chain([&own]).for_each(|path| std::fs::remove_file(path).unwrap());
    let kind = SocketType::STREAM;
    let listen = |path: &std::path::PathBuf| isthmus_attach::socket::listen(path, kind, 0o600, None).unwrap();
    let _new = paths.each_ref().map(listen);
    let other = old.ivshmem_socket_of("red").unwrap();
    drop(old);
    for path in &paths {
        assert!(UnixStream::connect(path).is_ok(), "{}", path.display());
    }
    assert!(!own.exists() && !other.exists());
}

/// The sockets let all users connect, and the service looks who it is.
#[test]
fn a_stranger_who_comes_again_and_again_has_one_line() {
    use std::os::unix::fs::PermissionsExt;
    if !rustix::process::getuid().is_root() {
        // Not by println!, which the harness keeps to itself where a test passes.
        let _ =
            std::io::stderr().write_all(b"\nskipped: strangers at the sockets: only root can become one\n");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (service, events) = start_with(dir.path(), &["red"], |config| {
        config.mode = 0o666;
        config.allowed = isthmus_attach::server::Allowed::Users(Vec::new());
    });
    std::thread::scope(|threads| {
        threads.spawn(|| {
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65534)).unwrap();
            for _ in 0..300 {
                let refused = isthmus_attach::connect_at(service.attach_socket()).unwrap_err().to_string();
                assert!(refused.contains("user 65534 may not attach here"), "{refused}");
                let socket = Qemu::plug(service.ivshmem_socket());
                assert!(matches!(Qemu::message(&socket), Some((-1, None))));
                assert!(Qemu::message(&socket).is_none());
            }
        });
    });
    let _red = Qemu::connect(service.ivshmem_socket());
    let mut told = Vec::new();
    await_event(&events, |event| {
        told.push(event.to_string());
        matches!(event, Event::VmConnected { .. })
    });
    let of = |what: &str| told.iter().filter(|line| line.contains(what)).count();
    assert_eq!((of("65534 was turned away"), of("a VM was turned away"), told.len()), (1, 1, 3), "{told:?}");
}

#[test]
fn garbage_from_a_client_ends_that_client_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start(dir.path(), &["red", "blue"]);
    let mut red = Qemu::connect(&service.ivshmem_socket_of("red").unwrap());
    let blue = Qemu::connect(&service.ivshmem_socket_of("blue").unwrap());
    red.learn();
    red.learn();
    rustix::io::write(&blue.socket, b"garbage").unwrap();
    assert_eq!(red.learn(), 2);
    await_event(&events, |e| matches!(e, Event::VmGone { member: 2, .. }));
    // Connected, and gone before it has read anything.
    drop(Qemu::plug(&service.ivshmem_socket_of("blue").unwrap()));
    await_event(&events, |e| matches!(e, Event::VmGone { member: 2, .. }));
    Qemu::connect(&service.ivshmem_socket_of("blue").unwrap());
}

#[test]
fn a_client_that_does_not_read_does_not_block_others() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start(dir.path(), &["deaf", "busy"]);
    let deaf = Qemu::plug(&service.ivshmem_socket_of("deaf").unwrap());
    let path = &service.ivshmem_socket_of("busy").unwrap();
    // Far more messages than the socket of the deaf client holds.
    let rounds = 150;
    for _ in 0..rounds {
        Qemu::connect(path);
    }
    // It gets all of it once it reads: the greeting, and three messages for each round.
    let (mut greeting, mut others) = (0, 0);
    while others < 3 * rounds {
        match Qemu::message(&deaf).unwrap() {
            (0 | 1, _) | (-1, _) => greeting += 1,
            _ => others += 1,
        }
    }
    assert_eq!(greeting, 7);
}

#[test]
fn a_vm_joins_works_and_dies() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start(dir.path(), &["red", "blue"]);
    let host = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let red = Qemu::connect(&service.ivshmem_socket_of("red").unwrap());
    assert!(!service.is_ready("red"));
    assert!(host.directory(1).is_err(), "nothing is visible before its agent is ready");
    let agent = red.boot(&service.wake_socket_of("red").unwrap(), &dir.path().join("red")).unwrap();
    assert!(service.is_ready("red"));
    let rank = isthmus_attach::connect_at(agent.socket()).unwrap();
    assert_eq!((rank.peer(), agent.peer().name.as_str()), (1, "red"));
    rank.counters().add(Counter::TxBytes, 7);
    let (slot, incarnation) = open_endpoint(&rank);
    let (life, directory) = host.directory(1).unwrap();
    assert!(directory.endpoint(slot).unwrap().life.is_active(incarnation));
    assert_eq!(service.stats().peers["red"]["tx_bytes"], 7);

    // The VM dies, and nothing in it detaches.
    drop(red);
    await_event(&events, |e| *e == Event::VmGone { name: "red".into(), member: 1 });
    assert_eq!(service.members()[1].life.state, State::Dead);
    assert!(host.directory(1).is_err());
    assert!(!directory.endpoint(slot).unwrap().life.is_active(incarnation));
    assert_eq!(service.stats().peers["red"]["tx_bytes"], 7, "what it counted stays");
    assert!(matches!(agent.check(), Err(agent::Error::Ended { .. })));
    drop((agent, rank));

    // It is started again, with another incarnation and an empty section.
    let red = Qemu::connect(&service.ivshmem_socket_of("red").unwrap());
    let agent = red.boot(&service.wake_socket_of("red").unwrap(), &dir.path().join("red")).unwrap();
    let (again, directory) = host.directory(1).unwrap();
    assert!(again > life && directory.endpoints().is_empty());
    let rank = isthmus_attach::connect_at(agent.socket()).unwrap();
    let (_, other) = open_endpoint(&rank);
    assert_ne!(other, incarnation);
    rank.counters().add(Counter::TxBytes, 1);
    assert_eq!(service.stats().peers["red"]["tx_bytes"], 8);
    agent.check().unwrap();
}

/// A port to the service on which the first `lost` pieces of what the service says are lost.
fn lossy(service: &Service, mut lost: u32) -> Port {
    let (here, agents) = UnixStream::pair().unwrap();
    let there = UnixStream::from(Qemu::plug(service.wake_socket()));
    let (mut from, mut to) = (there.try_clone().unwrap(), here.try_clone().unwrap());
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if let Some(left) = lost.checked_sub(1) {
                lost = left;
            } else if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
    });
    std::thread::spawn(move || std::io::copy(&mut &here, &mut &there));
    OwnedFd::from(agents).into()
}

#[test]
fn each_step_of_joining_is_rung_for_and_a_lost_ring_costs_no_more_than_time() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start(dir.path(), &["red"]);
    let took = |boot: &dyn Fn(&Qemu) -> agent::Result<Agent>| {
        let red = Qemu::connect(service.ivshmem_socket());
        let begun = Instant::now();
        let agent = boot(&red).unwrap();
        let took = begun.elapsed();
        drop((agent, red));
        await_event(&events, |e| matches!(e, Event::VmGone { .. }));
        took
    };
    let socket = dir.path().join("red");
    // The best of some, as the machine may be busy.
    let rung = (0..5).map(|_| took(&|red| red.boot(service.wake_socket(), &socket))).min().unwrap();
    assert!(rung < RECHECK / 2, "nobody rang: it took {rung:?}");
    let lost = took(&|red| red.boot_with(lossy(&service, 1), &socket));
    assert!(lost >= RECHECK, "nothing was lost: it took {lost:?}");
}

#[test]
fn an_agent_hears_at_once_that_its_vm_is_no_member_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start(dir.path(), &["red", "blue"]);
    let heard = |agent: &Agent, end: &mut dyn FnMut()| {
        agent.check().unwrap();
        // What came until now is no news.
        agent.news().wait(Duration::ZERO);
        let begun = Instant::now();
        end();
        agent.news().wait(LONG);
        assert!(begun.elapsed() < LONG, "no word of it");
        agent.check().unwrap_err().to_string()
    };
    // Its device is gone, and it runs on.
    let mut red = Some(Qemu::connect(service.ivshmem_socket()));
    let agent = red.as_ref().unwrap().boot(service.wake_socket(), &dir.path().join("red")).unwrap();
    let why = heard(&agent, &mut || drop(red.take()));
    assert!(why.contains("published its death"), "{why}");
    // The service ends.
    let blue = Qemu::connect(service.ivshmem_socket());
    let agent = blue.boot(service.wake_socket(), &dir.path().join("blue")).unwrap();
    let mut service = Some(service);
    let why = heard(&agent, &mut || drop(service.take()));
    assert!(why.contains("the host service has ended"), "{why}");
}

#[test]
fn an_agent_that_is_started_anew_begins_a_new_life() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start(dir.path(), &["red"]);
    let red = Qemu::connect(service.ivshmem_socket());
    let socket = dir.path().join("red");
    let agent = red.boot(service.wake_socket(), &socket).unwrap();
    let second = red.boot(service.wake_socket(), &socket).unwrap_err().to_string();
    assert!(second.contains("another service is running"), "{second}");
    agent.check().unwrap();
    let rank = isthmus_attach::connect_at(&socket).unwrap();
    let (_, before) = open_endpoint(&rank);
    drop(agent);
    let host = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let deaths = host.own().deaths().get();
    let agent = red.boot(service.wake_socket(), &socket).unwrap();
    await_event(&events, |e| *e == Event::VmAgain { name: "red".into() });
    // All that were attached in its life before are dead, and sleepers hear of it.
    let deadline = Instant::now() + SOON;
    while host.own().deaths().get() == deaths {
        assert!(Instant::now() < deadline, "no ring for the end of a life");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(agent.peer().life.incarnation, 2);
    let rank = isthmus_attach::connect_at(&socket).unwrap();
    let (_, after) = open_endpoint(&rank);
    assert_ne!(before, after);
}

#[test]
fn sections_of_a_region_with_vms_begin_and_end_where_guests_can_take_them_over() {
    const MIB: u64 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start(dir.path(), &["red", "blue"]);
    let _vms = ["red", "blue"].map(|vm| Qemu::connect(&service.ivshmem_socket_of(vm).unwrap()));
    let region = service.region();
    let shape = region.shape();
    assert_eq!(shape.section_align, 2 * MIB);
    let peers = region.peers();
    let sections =
        peers.iter().map(|p| (p.section, p.section_bytes)).chain([(shape.shared, shape.shared_bytes)]);
    for (at, bytes) in sections.chain([(0, shape.host_bytes)]) {
        assert!(bytes > 0 && at.is_multiple_of(2 * MIB) && bytes.is_multiple_of(2 * MIB), "{at:#x}: {bytes}");
    }
    assert_eq!(peers.len(), 3);
    assert!(
        peers.iter().map(|p| p.section + p.section_bytes).max().unwrap() > 30 * MIB,
        "the region is used"
    );

    // The least size with VMs is named, and enough.
    let with_a_vm = |bytes| {
        let mut config = Config::new(dir.path().join("small"), bytes);
        config.vms = vec![Vm { name: "red".into(), ranks: 1 }];
        Service::start(config, Arc::new(|_: &Event| ()))
    };
    let error = with_a_vm(4 * MIB).unwrap_err().to_string();
    assert!(error.contains("need 6291456 bytes") && error.contains("one of 8 MiB or more"), "{error}");
    let small = with_a_vm(8 * MIB).unwrap();
    assert!(small.region().shape().section_align == 2 * MIB);
    // Without VMs smaller ones do.
    let native = Service::start(Config::new(dir.path().join("native"), MIB), Arc::new(|_| ())).unwrap();
    assert!(native.region().shape().section_align < MIB);
}

#[test]
fn a_vm_is_the_same_system_as_long_as_it_runs_and_no_other_member_is() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start(dir.path(), &["red", "blue"]);
    let [red, blue] = ["red", "blue"].map(|name| Qemu::connect(&service.ivshmem_socket_of(name).unwrap()));
    let [of_red, of_blue] = ["red-agent", "blue-agent"].map(|name| dir.path().join(name));
    let [wake_red, wake_blue] = ["red", "blue"].map(|name| service.wake_socket_of(name).unwrap());
    let region = red.region();
    let system = |index| region.peer(index).unwrap().unwrap().system;
    let agent = red.boot(&wake_red, &of_red).unwrap();
    let member = isthmus_attach::connect_at(&of_red).unwrap();
    let first = member.address(open_endpoint(&member).0).unwrap();
    assert_eq!((member.system(), system(1)), (first.system, first.system));
    assert!(system(0) != system(1) && ![system(0), system(1)].contains(&SystemId::NONE));
    drop((member, agent));
    // Started anew, it is the same one, and its endpoints are others.
    let agent = red.boot(&wake_red, &of_red).unwrap();
    let member = isthmus_attach::connect_at(&of_red).unwrap();
    let again = member.address(open_endpoint(&member).0).unwrap();
    assert_eq!((again.system, again.number), (first.system, first.number));
    assert_ne!(again.birth, first.birth);
    // A copy of the VM, with its file, becomes another one.
    std::fs::copy(of_red.with_extension("system"), of_blue.with_extension("system")).unwrap();
    let copy = blue.boot(&wake_blue, &of_blue).unwrap();
    assert!(copy.peer().system != first.system && system(2) == copy.peer().system);
    assert_eq!((region.find(first.system), region.find(system(2))), (Some(1), Some(2)));
    drop(copy);
    // A VM that says that it is another, or none, is not taken in.
    let port = Qemu::plug(&wake_blue);
    let hello = || assert_eq!(rustix::io::write(&port, &ring::hello(false)), Ok(ring::hello(false).len()));
    let peer = || region.peer(2).unwrap().unwrap();
    for claim in [first.system, SystemId::NONE, system(0)] {
        std::thread::sleep(Duration::from_millis(500));
        let section = blue.region().own_section(&peer()).unwrap();
        section.word("directory", isthmus_region::format::directory::MAGIC).unwrap().set(0);
        hello();
        // The processes of the life before have a second; an agent says hello until it is heard.
        let begun = Instant::now();
        while !events.try_iter().any(|e| matches!(e, Event::VmAgain { name } if name == "blue")) {
            assert!(begun.elapsed() < Duration::from_secs(20), "it is not taken for a new life");
            hello();
            std::thread::sleep(Duration::from_millis(100));
        }
        directory::Writer::create(&blue.region(), 2, Naming::first(claim)).unwrap();
        hello();
        await_event(&events, |e| matches!(e, Event::VmRefused { reason } if reason.contains("'blue'")));
        assert_eq!(peer().life.state, State::Joining);
        assert_eq!(region.find(first.system), Some(1));
        // As what is no other's it may join.
        directory::Writer::create(&blue.region(), 2, Naming::first(SystemId([5, 5]))).unwrap();
        hello();
        await_event(&events, |e| matches!(e, Event::VmReady { name } if name == "blue"));
    }
    drop((member, agent));
}

#[test]
fn an_agent_without_its_host_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start(dir.path(), &["red"]);
    let red = Qemu::connect(service.ivshmem_socket());
    assert_eq!(red.region().peers().len(), 2);
    let port = Port::from(Qemu::plug(service.wake_socket()));
    service.stop();
    let started = red.boot_with(port, &dir.path().join("red")).unwrap_err().to_string();
    assert!(started.contains("port isthmus.wake is closed") && started.contains("isthmus host"), "{started}");
}

/// What a raw wake port hears, as far as it comes at once.
fn heard(port: &mut UnixStream) -> Vec<Frame> {
    port.set_read_timeout(Some(SOON)).unwrap();
    let mut bytes = vec![0; 64];
    let count = port.read(&mut bytes).unwrap();
    bytes.truncate(count);
    ring::take(&mut bytes).unwrap()
}

#[test]
fn a_wake_port_speaks_for_the_vm_whose_it_is_and_for_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start(dir.path(), &["red", "blue"]);
    let host = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let red = Qemu::connect(&service.ivshmem_socket_of("red").unwrap());
    let wake = |name| service.wake_socket_of(name).unwrap();
    let agent = red.boot(&wake("red"), &dir.path().join("red")).unwrap();
    // A port that has no device is nobody's, and says nothing that is heard.
    let mut stray = UnixStream::connect(wake("blue")).unwrap();
    let deaths = host.own().deaths().get();
    stray.write_all(&[&ring::hello(false)[..], &ring::death(1), &ring::hello(false)].concat()).unwrap();
    let region = service.region().shape().uuid[0];
    let nobody = Frame::Peer { peer: ring::NOBODY, region };
    assert_eq!(heard(&mut stray)[0], nobody);
    let event = await_event(&events, |e| matches!(e, Event::VmRefused { .. }));
    assert!(event.to_string().contains("wake-blue"), "{event}");
    assert_eq!(host.own().deaths().get(), deaths);
    let config =
        agent::Config { socket: dir.path().join("x"), patience: SOON / 4, ..agent::Config::default() };
    let port = Port::from(Qemu::plug(&wake("blue")));
    let refused = Agent::start_with(&config, red.region.try_clone().unwrap(), port, Box::new(|_| ()));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("no device that belongs to this VM's port"), "{refused}");
    // Whatever it says of another, it is its own VM that a death is told of.
    let blue = Qemu::connect(&service.ivshmem_socket_of("blue").unwrap());
    stray.write_all(&ring::hello(false)).unwrap();
    let said = std::iter::repeat_with(|| heard(&mut stray)).take(4).flatten().find(|said| *said != nobody);
    assert_eq!(said, Some(Frame::Peer { peer: 2, region }));
    stray.write_all(&ring::death(1)).unwrap();
    let deadline = Instant::now() + SOON;
    while host.own().deaths().get() == deaths {
        assert!(Instant::now() < deadline, "a death behind its port is told");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Its device is gone, and another VM has the place: the port is nobody's again.
    drop(blue);
    await_event(&events, |e| *e == Event::VmGone { name: "blue".into(), member: 2 });
    stray.write_all(&ring::hello(false)).unwrap();
    let said = std::iter::repeat_with(|| heard(&mut stray)).take(4).flatten().find(|said| *said == nobody);
    assert_eq!(said, Some(nobody));
    agent.check().unwrap();
}

#[test]
fn a_vm_that_spoils_its_entry_and_rings_without_end_has_one_line_and_wakes_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start(dir.path(), &["red"]);
    let host = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let red = Qemu::connect(&service.ivshmem_socket_of("red").unwrap());
    let mut port = UnixStream::connect(service.wake_socket_of("red").unwrap()).unwrap();
    // The place of its section.
    let entry = 4096 + isthmus_region::format::peer::BYTES;
    let section = entry + isthmus_region::format::peer::SECTION;
    let mut was = [0; 8];
    rustix::io::pread(&red.region, &mut was, section).unwrap();
    rustix::io::pwrite(&red.region, &1_u64.to_le_bytes(), section).unwrap();
    let deaths = host.own().deaths().get();
    for _ in 0..1000 {
        port.write_all(&ring::hello(false)).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    rustix::io::pwrite(&red.region, &was, section).unwrap();
    // It still joins.
    drop(port);
    let agent = red.boot(&service.wake_socket_of("red").unwrap(), &dir.path().join("red")).unwrap();
    let mut lines = 0;
    await_event(&events, |event| {
        lines += usize::from(matches!(event, Event::Trouble { .. }));
        matches!(event, Event::VmReady { .. })
    });
    assert_eq!(lines, 1);
    assert!(host.own().deaths().get() <= deaths + 1, "{}", host.own().deaths().get() - deaths);
    drop(agent);
}

#[test]
fn an_agent_takes_no_port_of_another_service() {
    let (dir, other_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (service, _events) = start(dir.path(), &["red"]);
    let (other, _events) = start(other_dir.path(), &["red"]);
    let red = Qemu::connect(&service.ivshmem_socket_of("red").unwrap());
    let refused = red.boot(&other.wake_socket_of("red").unwrap(), &dir.path().join("red"));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("another host service than its device"), "{refused}");
}

fn mutex(name: &str) -> NewObject {
    NewObject {
        kind: Kind::Mutex,
        name: name.into(),
        len: 64,
        mode: 0o666,
        ends_with_creator: false,
        params: [5, 6, 7, 8],
        or_open: false,
    }
}

#[test]
fn processes_of_vms_share_named_objects_with_those_of_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start(dir.path(), &["red", "blue"]);
    let (at_red, at_blue) = (dir.path().join("in-red"), dir.path().join("in-blue"));
    let red = Qemu::connect(&service.ivshmem_socket_of("red").unwrap());
    let blue = Qemu::connect(&service.ivshmem_socket_of("blue").unwrap());
    let _agent_of_red = red.boot(&service.wake_socket_of("red").unwrap(), &at_red).unwrap();
    let agent_of_blue = blue.boot(&service.wake_socket_of("blue").unwrap(), &at_blue).unwrap();
    let in_red = isthmus_attach::connect_at(&at_red).unwrap();
    let in_blue = isthmus_attach::connect_at(&at_blue).unwrap();
    let on_host = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let made = Object::create(&in_red, &mutex("m")).unwrap();
    assert!(made.is_new() && made.params() == [5, 6, 7, 8]);
    let [there, here] =
        [&in_blue, &on_host].map(|m| Object::open(m, Kind::Mutex, "m", Access::Write).unwrap());
    made.section().word("test", 0).unwrap().set(in_red.party().word());
    let seen = there.section().word("test", 0).unwrap().get();
    let party = Party::named(seen).unwrap();
    assert!(party == in_red.party() && in_blue.is_alive(party) && on_host.is_alive(party));
    assert_eq!(here.info().unwrap().opens, 3);
    let refusal = Object::create(&in_blue, &mutex("m")).unwrap_err();
    assert!(matches!(refusal, isthmus_region::Error::Object { problem: ObjectProblem::Exists, .. }));
    // Requests of one VM at the same time wait for one another, and no longer.
    std::thread::scope(|scope| {
        for name in ["x", "y", "z"] {
            let member = &in_blue;
            scope.spawn(move || assert!(Object::create(member, &mutex(name)).unwrap().is_new()));
        }
    });
    // A VM that is gone has nothing open.
    in_blue.service().unlink_object(Kind::Mutex, "m").unwrap();
    drop((there, agent_of_blue));
    drop(blue);
    drop(here);
    drop(made);
    let deadline = Instant::now() + 2 * SOON;
    while objects::objects(&service.region()).iter().any(|o| o.name == "m") {
        assert!(Instant::now() < deadline, "it ends with its last user");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Says that it is over, however it ends.
struct Ends<'a>(&'a Mutex<bool>);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        *self.0.lock().unwrap() = true;
    }
}

/// The processes of a VM live on, and may write, when its agent is started anew.
#[test]
fn memory_is_given_to_no_other_object_while_a_vm_lives_whose_agent_was_started_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start(dir.path(), &["red"]);
    let red = Qemu::connect(&service.ivshmem_socket_of("red").unwrap());
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    let agent = red.boot(&service.wake_socket_of("red").unwrap(), &first).unwrap();
    let process = isthmus_attach::connect_at(&first).unwrap();
    let held = Object::create(&process, &mutex("m")).unwrap();
    process.service().unlink_object(Kind::Mutex, "m").unwrap();
    let region = service.region();
    let is_there = || objects::objects(&region).iter().any(|o| o.name == "m");
    // A life must last a moment before the next may begin.
    std::thread::sleep(Duration::from_millis(600));
    drop(agent);
    let (on_host, is_again) =
        (isthmus_attach::connect_at(service.attach_socket()).unwrap(), Mutex::new(false));
    // The old life is over a second before the next one begins.
    let _agent = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !*is_again.lock().unwrap() {
                let _ = Object::open(&on_host, Kind::Mutex, "none", Access::Read);
                assert!(is_there(), "its memory is given to others while its VM's next agent waits");
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        // Also if this fails: the thread ends with it.
        let _ends = Ends(&is_again);
        let agent = red.boot(&service.wake_socket_of("red").unwrap(), &second).unwrap();
        await_event(&events, |e| matches!(e, Event::VmAgain { .. }));
        agent
    });
    let other = isthmus_attach::connect_at(&second).unwrap();
    let until = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < until {
        // Makes the service check for dead holders.
        let _ = Object::open(&other, Kind::Mutex, "none", Access::Read);
        assert!(is_there(), "its memory is given to others while it may be written to");
    }
    held.section().word("test", 0).unwrap().set(1);
    drop(red);
    let deadline = Instant::now() + 2 * SOON;
    while is_there() {
        assert!(Instant::now() < deadline, "the VM is gone, and all that wrote there");
        std::thread::sleep(Duration::from_millis(5));
        let host = isthmus_attach::connect_at(service.attach_socket()).unwrap();
        let _ = Object::open(&host, Kind::Mutex, "none", Access::Read);
    }
}

/// What a process has mapped is not its own any more when its VM has a new life.
#[test]
fn a_process_of_an_earlier_life_lets_go_of_the_region_and_keeps_its_programs_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start(dir.path(), &["red"]);
    let red = Qemu::connect(&service.ivshmem_socket_of("red").unwrap());
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    let agent = red.boot(&service.wake_socket_of("red").unwrap(), &first).unwrap();
    let process = isthmus_attach::connect_at(&first).unwrap();
    let at = process.take(192).unwrap();
    let (section, there) = (process.section(), red.region());
    let word =
        |offset| there.section(&there.peer(1).unwrap().unwrap()).unwrap().word("test", offset).unwrap().get();
    let listed = section.list("test", at, 64).unwrap();
    assert_eq!(process.region().program_memory()[0].len, 64);
    section.word("test", at).unwrap().set(5);
    section.word("test", at + 64).unwrap().set(6);
    assert!(word(at) == 5 && !process.retire_if_over());
    std::thread::sleep(Duration::from_millis(600));
    drop(agent);
    assert!(!process.retire_if_over() && word(at) == 5, "the end of its service is no reason");
    let wake = service.wake_socket_of("red").unwrap();
    let _agent = std::thread::scope(|scope| {
        // As a process that polls or sleeps does: it has a second for that from the start of the next life.
        let lets_go = scope.spawn(|| {
            while !process.retire_if_over() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let agent = red.boot(&wake, &second).unwrap();
        lets_go.join().unwrap();
        agent
    });
    await_event(&events, |e| matches!(e, Event::VmAgain { .. }));
    assert!(process.region().is_retired() && word(at) == 0, "it is another's now");
    let found = [at, at + 64].map(|at| section.word("test", at).unwrap().get());
    assert_eq!(found, [5, 0], "what is listed keeps its contents, and all else reads as zeros");
    section.word("test", at + 128).unwrap().set(8);
    assert_eq!(word(at + 128), 0, "it reaches nobody");
    drop(listed);
}

/// The memory of a device that was unplugged reads as zeros, until it is another device's.
#[test]
fn agent_and_processes_let_go_of_a_device_that_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start(dir.path(), &["red"]);
    let red = Qemu::connect(service.ivshmem_socket());
    let agent = red.boot(service.wake_socket(), &dir.path().join("red")).unwrap();
    let process = isthmus_attach::connect_at(agent.socket()).unwrap();
    open_endpoint(&process);
    let bytes = u64::try_from(rustix::fs::fstat(&red.region).unwrap().st_size).unwrap();
    let map = Mapping::map(red.region.as_fd(), bytes).unwrap();
    // The host service's mapping is of the same memory, so it must not look any more.
    service.stop();
    map.whole().unwrap().zero("all", 0, bytes).unwrap();
    let said = agent.check().unwrap_err().to_string();
    assert!(said.contains("its device was unplugged") && agent.region().is_retired(), "{said}");
    assert!(process.retire_if_over() && process.region().is_retired());
    map.whole()
        .unwrap()
        .fill_bytes("another device", 0, &vec![0x55; usize::try_from(bytes).unwrap()])
        .unwrap();
    drop((agent, process));
    let left = map.whole().unwrap().bytes("another device", 0, bytes).unwrap().to_vec(0, bytes).unwrap();
    assert!(left.iter().all(|byte| *byte == 0x55), "neither has written to it");
}

fn segment(key: i32) -> NewObject {
    let name = objects::sysv::name_of(key);
    let params = [objects::sysv::both(key.cast_unsigned(), 1), 0, 0, 0];
    NewObject { kind: Kind::SysvShm, name, len: 8192, ends_with_creator: false, params, ..mutex("") }
}

/// What the test `as_a_process_of_a_vm` is to attach to, and which object of the table it is to open.
const ATTACH_TO: &str = "ISTHMUS_TEST_ATTACH_TO";

/// Nothing by itself: it is the other process of the next test.
#[test]
fn as_a_process_of_a_vm() {
    let Ok(socket) = std::env::var(ATTACH_TO) else { return };
    let member = isthmus_attach::connect_at(Path::new(&socket)).unwrap();
    let info = objects::objects(member.region()).remove(0);
    member.service().hold_object(info.index, info.life.incarnation).unwrap();
    member.service().hold_object(info.index, info.life.incarnation).unwrap();
    println!("holds");
    std::io::stdout().flush().unwrap();
    std::thread::sleep(6 * LONG);
}

#[test]
fn a_segments_count_is_exact_for_all_also_right_after_what_processes_of_another_vm_did() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start(dir.path(), &["red", "blue"]);
    let vms = ["red", "blue"].map(|name| {
        let vm = Qemu::connect(&service.ivshmem_socket_of(name).unwrap());
        let agent = vm.boot(&service.wake_socket_of(name).unwrap(), &dir.path().join(format!("in-{name}")));
        (vm, agent.unwrap())
    });
    let [in_red, in_blue] =
        vms.each_ref().map(|(_, agent)| isthmus_attach::connect_at(agent.socket()).unwrap());
    let on_host = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let made = on_host.service().create_object(&segment(5)).unwrap();
    let (index, incarnation) = (made.index, made.incarnation);
    let region = service.region();
    let count = |asker: &Member| {
        asker.service().settle().unwrap();
        objects::object(&region, index).unwrap().unwrap().opens
    };
    let all = [&in_red, &in_blue, &on_host];
    // None of them waits when it lets go.
    for turn in 0..300 {
        let (who, asker) = (all[turn % 3], all[(turn / 3) % 3]);
        who.service().hold_object(index, incarnation).unwrap();
        assert_eq!(count(asker), 1, "turn {turn}");
        who.service().release_object(index, incarnation);
        assert_eq!(count(asker), 0, "turn {turn}: it was released");
    }
    // A process that was killed, and waited for.
    for turn in 0..60 {
        let sockets = [vms[0].1.socket(), vms[1].1.socket(), service.attach_socket()];
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "as_a_process_of_a_vm", "--nocapture"])
            .env(ATTACH_TO, sockets[turn % 3])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let said = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        assert!(said.map_while(Result::ok).any(|line| line.ends_with("holds")));
        let asker = all[(turn / 3) % 3];
        assert_eq!(count(asker), 2, "turn {turn}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(count(asker), 0, "turn {turn}: it was killed");
    }
    // All at once: none waits for another that waits for it.
    std::thread::scope(|scope| {
        for asker in all {
            scope.spawn(move || (0..200).for_each(|_| asker.service().settle().unwrap()));
        }
    });
}

#[test]
fn an_agent_that_does_not_answer_holds_up_one_question_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start(dir.path(), &["red", "blue"]);
    let on_host = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let red = Qemu::connect(&service.ivshmem_socket_of("red").unwrap());
    let agent = red.boot(&service.wake_socket_of("red").unwrap(), &dir.path().join("in-red")).unwrap();
    let in_red = isthmus_attach::connect_at(agent.socket()).unwrap();
    let took = |asker: &Member| {
        let begun = Instant::now();
        asker.service().settle().unwrap();
        begun.elapsed()
    };
    took(&on_host);
    let _blue = Qemu::connect(&service.ivshmem_socket_of("blue").unwrap());
    let mut port = UnixStream::connect(service.wake_socket_of("blue").unwrap()).unwrap();
    port.write_all(&ring::hello(false)).unwrap();
    assert!(heard(&mut port).iter().any(|said| matches!(said, Frame::Peer { peer: 2, .. })));
    let bound = Duration::from_secs(2);
    let first = took(&on_host);
    assert!(first >= bound && first < 2 * bound, "{first:?}");
    for asker in [&in_red, &on_host, &in_red] {
        let next = took(asker);
        assert!(next < bound / 2, "{next:?}");
    }
    // It is there again.
    let number = heard(&mut port).iter().find_map(|said| match said {
        Frame::Settle { number } => Some(*number),
        _ => None,
    });
    port.write_all(&ring::settled(number.unwrap())).unwrap();
    let until = Instant::now() + 5 * LONG;
    while took(&in_red) < bound / 2 {
        assert!(Instant::now() < until, "nobody waits for it");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Its port is closed while somebody waits.
    port.write_all(&ring::settled(number.unwrap())).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| took(&on_host));
        std::thread::sleep(Duration::from_millis(100));
        drop(port);
        let gone = waits.join().unwrap();
        assert!(gone < bound / 2, "{gone:?}");
    });
}
