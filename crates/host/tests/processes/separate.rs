//! Processes that are peers of their own: each writes its own section alone.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_attach::client::observe_file_at;
use isthmus_attach::protocol::Code;
use isthmus_host::{Config, Error, Vm};
use isthmus_region::counters::Counter;
use isthmus_region::life::State;
use isthmus_region::member::Member;
use isthmus_region::objects::{Access, Kind, Object};
use rustix::fs::OFlags;

use super::objects::segment;
use super::{Ending, Other, SOON, await_event, config, gone, open_endpoint, start};

fn separate(dir: &Path, processes: u32) -> Config {
    let mut config = config(dir);
    config.region.separate_sections = true;
    config.host_ranks = processes;
    config
}

/// The peer of a process that has an endpoint.
fn peer_of(member: &Arc<Member>, pid: u32) -> u32 {
    let has = |peer: &u32| {
        let (_, directory) = member.directory(*peer).unwrap();
        directory.endpoints().iter().any(|(_, endpoint)| endpoint.pid == u64::from(pid))
    };
    (0..member.region().shape().peers).find(has).expect("the process has an endpoint")
}

fn is_writable(member: &Member, peer: u32) -> bool {
    let info = member.region().peer(peer).unwrap().unwrap();
    member.region().section(&info).unwrap().writable().is_ok()
}

#[test]
fn each_process_is_a_peer_and_can_write_its_own_section_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start(separate(dir.path(), 3));
    let socket = service.attach_socket();
    let names: Vec<String> = service.members().into_iter().map(|peer| peer.name).collect();
    assert_eq!(names, ["host.0", "host.1", "host.2"]);
    let member = isthmus_attach::connect_at(socket).unwrap();
    open_endpoint(&member);
    let mut others = [(); 2].map(|()| Other::start("plain", socket));
    let mut peers: Vec<u32> = others.iter().map(|other| peer_of(&member, other.child.id())).collect();
    for peer in &peers {
        assert!(!is_writable(&member, *peer));
    }
    peers.push(member.peer());
    peers.sort_unstable();
    assert_eq!(peers, [0, 1, 2]);
    assert!(is_writable(&member, member.peer()));
    assert!(!member.may_attach(), "one that shares its section is kept from its memory, too");
    // The host section is the service's alone, and the shared one everybody's.
    let entry = isthmus_region::place::Place::new(isthmus_region::place::HOST, 4096).unwrap();
    assert!(member.region().at("test", entry, 64).unwrap().writable().is_err());
    segment(&member, "all", 4096, false).unwrap().section().word("test", 0).unwrap().set(7);
    assert_eq!(service.stats().totals().get(Counter::TxBytes), 2000);

    // A process that comes again is the same peer, and one more than was expected joins another.
    let peer = member.peer();
    drop(member);
    let member = isthmus_attach::connect_at(socket).unwrap();
    assert_eq!(member.peer(), peer);
    let mut fourth = Other::start("plain", socket);
    let with = peer_of(&member, fourth.child.id());
    fourth.say("detach");
    await_event(&events, |event| gone(event).filter(|(_, pid, _)| *pid == fourth.child.id()));
    fourth.child.kill().unwrap();
    fourth.child.wait().unwrap();

    // The peer of a process that is dead is the next one's.
    let freed = peer_of(&member, others[1].child.id());
    let deaths = member.own().deaths().get();
    others[1].child.kill().unwrap();
    others[1].child.wait().unwrap();
    let died = await_event(&events, |event| gone(event).filter(|(_, pid, _)| *pid == others[1].child.id()));
    assert_eq!((died.0, died.2.len()), (Ending::Died, 1));
    let (_, directory) = member.directory(freed).unwrap();
    assert!(!directory.endpoints().iter().any(|(_, e)| e.pid == u64::from(others[1].child.id())));
    let deadline = Instant::now() + SOON;
    while member.own().deaths().get() == deaths {
        assert!(Instant::now() < deadline, "the other peers hear of a death");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(service.members().iter().all(|peer| peer.life.state == State::Active));
    let next = Other::start("plain", socket);
    assert_eq!(peer_of(&member, next.child.id()), freed, "not {with}, which has a process");
}

#[test]
fn a_named_object_is_shared_by_processes_of_several_peers() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start(separate(dir.path(), 2));
    let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let mut holder = Other::start("holder", service.attach_socket());
    let kept = Object::open(&member, Kind::Segment, "kept", Access::Write).unwrap();
    assert_eq!(kept.section().word("test", 0).unwrap().get(), 1);
    assert!(Object::open(&member, Kind::Segment, "own", Access::Read).is_ok());
    holder.child.kill().unwrap();
    holder.child.wait().unwrap();
    let deadline = Instant::now() + SOON;
    while Object::open(&member, Kind::Segment, "own", Access::Read).is_ok() {
        assert!(Instant::now() < deadline, "it ends with its creator");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn two_services_in_one_folder_have_sockets_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let of = |name| Config { attach_socket: Some(dir.path().join(name)), ..separate(dir.path(), 2) };
    let services = ["red", "blue"].map(|name| start(of(name)).0);
    for (name, service) in ["red-1", "blue-1"].into_iter().zip(&services) {
        let view = observe_file_at(&dir.path().join(name), 0, SOON).unwrap();
        let ino = |fd| rustix::fs::fstat(fd).unwrap().st_ino;
        assert_eq!(ino(view.region.as_fd()), ino(service.region_fd().as_fd()), "{name}");
    }
}

#[test]
fn every_file_is_given_to_observers_for_reading() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start(separate(dir.path(), 2));
    for file in 0..4 {
        let view = observe_file_at(service.attach_socket(), file, SOON).unwrap();
        assert_eq!(rustix::fs::fcntl_getfl(&view.region).unwrap() & OFlags::RWMODE, OFlags::RDONLY);
        assert_eq!(rustix::fs::fstat(&view.region).unwrap().st_mode & 0o777, 0o400);
    }
    let refused = observe_file_at(service.attach_socket(), 4, SOON).unwrap_err();
    assert!(matches!(refused, isthmus_attach::Error::Refused { code: Code::Invalid, .. }), "{refused}");
}

#[test]
fn separate_sections_with_vms_or_without_room_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refusal = |config| isthmus_host::Service::start(config, Arc::new(|_| ())).unwrap_err();
    let vms = vec![Vm { name: "vm1".into(), ranks: 1 }];
    assert!(matches!(refusal(Config { vms, ..separate(dir.path(), 2) }), Error::SeparateVms));
    assert!(matches!(refusal(separate(dir.path(), 100)), Error::TooSmall { peers: 100, .. }));
}
