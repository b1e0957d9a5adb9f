//! What owners and operators settle about objects of System V IPC: who finds them, how many bytes a VM may take, who may make them, and
//! what becomes of those of a VM that is gone.

use std::sync::Arc;
use std::time::Instant;

use isthmus_guest::agent::Agent;
use isthmus_host::Service;
use isthmus_host::names::Makers;
use isthmus_region::local::LocalBuf;
use isthmus_region::member::Member;
use isthmus_region::objects::sysv::{Change, Sharing};
use isthmus_region::objects::{Kind, NewObject, sysv};
use isthmus_sysv::ipc::{CREAT, EXCL, NOWAIT, PRIVATE};
use isthmus_sysv::msg::{Limits, Who};
use isthmus_sysv::waiting::Uninterrupted;
use isthmus_sysv::{Caller, Errno, Ipc};
use tempfile::TempDir;

use super::{Event, Qemu, SOON, await_event, start_with};

const KEY: i32 = 0x77;
const MIB: u64 = 1 << 20;

/// A VM, and a process in it.
struct InVm {
    ipc: Ipc,
    _agent: Agent,
    qemu: Qemu,
}

fn vm(service: &Service, dir: &TempDir, name: &str) -> InVm {
    let qemu = Qemu::connect(&service.ivshmem_socket_of(name).unwrap());
    let socket = dir.path().join(format!("in-{name}"));
    let agent = qemu.boot(&service.wake_socket_of(name).unwrap(), &socket).unwrap();
    InVm { ipc: Ipc::new(&isthmus_attach::connect_at(&socket).unwrap()), _agent: agent, qemu }
}

fn on_host(service: &Service) -> Arc<Member> {
    isthmus_attach::connect_at(service.attach_socket()).unwrap()
}

fn get(ipc: &Ipc, key: i32, size: u64, flags: i32) -> Result<i32, Errno> {
    ipc.shmget(key, size, flags | 0o600, &Caller::current())
}

#[test]
fn an_object_that_is_limited_is_found_and_used_by_the_listed_systems_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start_with(dir.path(), &["red", "blue", "green"], |_| {});
    let [red, blue, green] = ["red", "blue", "green"].map(|name| vm(&service, &dir, name));
    let host = on_host(&service);
    let (on_host, caller) = (Ipc::new(&host), Caller::current());
    let id = get(&red.ipc, KEY, 100, CREAT).unwrap();
    let held = blue.ipc.attach(id, 0, &caller).unwrap();
    let info = red.ipc.look(Kind::SysvShm, id).unwrap();
    let place = (info.index, info.life.incarnation);

    red.ipc.share(&info, Some(&["green".into()])).unwrap();
    for ipc in [&red.ipc, &green.ipc] {
        assert_eq!(get(ipc, KEY, 0, 0), Ok(id));
        ipc.detach(&ipc.attach(id, 0, &caller).unwrap(), &caller);
    }
    for (name, ipc) in [("blue", &blue.ipc), ("host", &on_host)] {
        assert_eq!(get(ipc, KEY, 0, 0), Err(Errno::NOENT), "{name}");
        assert_eq!(get(ipc, KEY, 100, CREAT), Err(Errno::ACCESS), "{name}: the key is taken");
        assert_eq!(get(ipc, KEY, 100, CREAT | EXCL), Err(Errno::EXIST), "{name}");
        assert_eq!(ipc.attach(id, 0, &caller).map(drop), Err(Errno::ACCESS), "{name}");
        assert_eq!(ipc.shmstat(id, &caller, true).map(drop), Err(Errno::ACCESS), "{name}");
    }
    // The service refuses, whatever a library does.
    let service_of_blue = blue.ipc.member().service();
    let change = Change { owner: info.owner, mode: 0o666, size: 100, now: 1 };
    let refusals = [
        service_of_blue.hold_object(place.0, place.1).map(drop),
        service_of_blue.change_object(place.0, place.1, &change),
        service_of_blue.remove_object(place.0, place.1),
        service_of_blue.share_object(place.0, place.1, &Sharing::All),
        host.service().hold_object(place.0, place.1).map(drop),
    ];
    for refusal in refusals {
        let text = refusal.unwrap_err().to_string();
        assert!(text.contains("isthmus ipcshare"), "{text}");
    }
    service_of_blue.enter_object(place.0, place.1);
    service_of_blue.removed_object(place.0, place.1);
    blue.ipc.settle();
    let now = red.ipc.shmstat(id, &caller, false).unwrap();
    assert_eq!((now.count, now.is_removed, now.info.mode), (1, false, 0o600), "what blue has attached stays");
    blue.ipc.detach(&held, &caller);
    blue.ipc.settle();
    assert_eq!(red.ipc.shmstat(id, &caller, false).unwrap().count, 0);

    let unknown = red.ipc.share(&info, Some(&["grey".into()])).unwrap_err().to_string();
    assert!(unknown.contains("'grey'"), "{unknown}");
    red.ipc.share(&info, Some(&[])).unwrap();
    assert_eq!((get(&green.ipc, KEY, 0, 0), get(&red.ipc, KEY, 0, 0)), (Err(Errno::NOENT), Ok(id)));
    // On the host it can be taken back anyway.
    Ipc::to_rule(&host).share(&info, None).unwrap();
    assert_eq!((get(&blue.ipc, KEY, 0, 0), get(&on_host, KEY, 0, 0)), (Ok(id), Ok(id)));
    red.ipc.share(&info, Some(&["host".into(), "blue".into()])).unwrap();
    assert_eq!((get(&blue.ipc, KEY, 0, 0), get(&on_host, KEY, 0, 0)), (Ok(id), Ok(id)));
    assert_eq!(get(&green.ipc, KEY, 0, 0), Err(Errno::NOENT));
    red.ipc.share(&info, Some(&[])).unwrap();
    let operator = Ipc::to_rule(&host);
    operator.remove(&operator.look(Kind::SysvShm, id).unwrap(), &caller).unwrap();
    assert_eq!(get(&red.ipc, KEY, 0, 0), Err(Errno::NOENT));
}

#[test]
fn a_set_and_a_queue_that_are_open_are_of_no_more_use_where_they_are_not_shared() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start_with(dir.path(), &["red", "blue"], |_| {});
    let (red, blue, caller) = (vm(&service, &dir, "red"), vm(&service, &dir, "blue"), Caller::current());
    let id = red.ipc.semget(KEY, 1, CREAT | 0o600, &caller).unwrap();
    let set = blue.ipc.set(id, caller.pid).unwrap();
    set.check(&caller, 2).unwrap();
    let before = set.rights();
    let info = red.ipc.look(Kind::SysvSem, id).unwrap();
    red.ipc.share(&info, Some(&[])).unwrap();
    assert_ne!(set.rights(), before, "who was let in is looked up again");
    assert_eq!(set.check(&caller, 2), Err(Errno::ACCESS));
    assert_eq!(blue.ipc.semget(KEY, 1, 0o600, &caller), Err(Errno::NOENT));
    red.ipc.share(&info, None).unwrap();
    assert_eq!((set.rights(), set.check(&caller, 2)), (before, Ok(())));

    let id = red.ipc.msgget(KEY, CREAT | 0o600, &caller, &Limits::default()).unwrap();
    let queue = blue.ipc.queue(id).unwrap();
    let send = || queue.send(1, LocalBuf::leaked(vec![7]), NOWAIT, &Me, &mut Uninterrupted);
    send().unwrap();
    let info = red.ipc.look(Kind::SysvMsg, id).unwrap();
    red.ipc.share(&info, Some(&[])).unwrap();
    assert_eq!(send(), Err(Errno::ACCESS));
    assert_eq!(blue.ipc.msgstat(id, &caller, true).map(drop), Err(Errno::ACCESS));
    red.ipc.share(&info, Some(&["blue".into()])).unwrap();
    assert_eq!((send(), red.ipc.msgstat(id, &caller, true).unwrap().numbers.messages), (Ok(()), 2));
}

struct Me;

impl Who for Me {
    fn version(&self) -> u64 {
        0
    }

    fn caller(&self) -> Arc<Caller> {
        Arc::new(Caller::current())
    }
}

#[test]
fn a_vm_that_is_named_finds_an_object_when_it_comes() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start_with(dir.path(), &["red", "blue"], |_| {});
    let red = vm(&service, &dir, "red");
    let id = get(&red.ipc, KEY, 100, CREAT).unwrap();
    // Before it is there.
    red.ipc.share(&red.ipc.look(Kind::SysvShm, id).unwrap(), Some(&["blue".into()])).unwrap();
    let blue = vm(&service, &dir, "blue");
    assert_eq!(get(&blue.ipc, KEY, 0, 0), Ok(id));
    let InVm { ipc, _agent, qemu } = blue;
    drop((ipc, _agent, qemu));
    await_event(&events, |e| matches!(e, Event::VmGone { .. }));
    let blue = vm(&service, &dir, "blue");
    assert_eq!(get(&blue.ipc, KEY, 0, 0), Ok(id), "when it comes again");
}

#[test]
fn a_vm_makes_no_more_bytes_than_its_quota() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start_with(dir.path(), &["red", "blue"], |config| {
        config.region.shared_quota_vm = Some(MIB);
    });
    let (red, blue) = (vm(&service, &dir, "red"), vm(&service, &dir, "blue"));
    let half = MIB / 2;
    let first = get(&red.ipc, KEY, half, CREAT).unwrap();
    assert_eq!(get(&red.ipc, PRIVATE, half, 0), Err(Errno::NOSPC), "each takes a page more");
    let why = red.ipc.take_refusal().unwrap();
    assert!(why.contains("--shared-quota-vm") && why.contains("'red'"), "{why}");
    // Those of others, and what another VM opens, are not its own.
    get(&blue.ipc, PRIVATE, half, 0).unwrap();
    assert_eq!(get(&blue.ipc, KEY, half, 0), Ok(first));
    get(&Ipc::new(&on_host(&service)), PRIVATE, 2 * MIB, 0).unwrap();
    // Nor is it free of them when it comes again.
    let InVm { ipc, _agent, qemu } = red;
    drop((ipc, _agent, qemu));
    await_event(&events, |e| matches!(e, Event::VmGone { .. }));
    let red = vm(&service, &dir, "red");
    assert_eq!(get(&red.ipc, PRIVATE, half, 0), Err(Errno::NOSPC));
    red.ipc.remove(&red.ipc.look(Kind::SysvShm, first).unwrap(), &Caller::current()).unwrap();
    red.ipc.settle();
    get(&red.ipc, PRIVATE, half, 0).unwrap();
}

#[test]
fn objects_are_made_by_those_who_may_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start_with(dir.path(), &["red", "blue"], |config| {
        config.makers = Makers { vms: vec!["red".into()], ..Makers::default() };
    });
    let (red, blue) = (vm(&service, &dir, "red"), vm(&service, &dir, "blue"));
    assert_eq!(get(&blue.ipc, KEY, 100, CREAT), Err(Errno::ACCESS));
    let why = blue.ipc.take_refusal().unwrap();
    assert!(why.contains("--create") && why.contains("'blue'"), "{why}");
    let id = get(&red.ipc, KEY, 100, CREAT).unwrap();
    assert_eq!(get(&blue.ipc, KEY, 100, CREAT), Ok(id), "one that is there is no new one");
}

#[test]
fn only_vms_that_are_announced_can_be_makers() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = isthmus_host::Config::new(dir.path(), 32 << 20);
    config.makers = Makers { vms: vec!["red".into()], ..Makers::default() };
    let refused = Service::start(config, Arc::new(|_| {})).unwrap_err().to_string();
    assert!(refused.contains("'red'"), "{refused}");
}

#[test]
fn objects_of_a_vm_that_is_gone_stay_or_end_once_no_process_has_them_open() {
    for remove_orphans in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (service, events) =
            start_with(dir.path(), &["red", "blue"], |config| config.remove_orphans = remove_orphans);
        let (red, blue, caller) = (vm(&service, &dir, "red"), vm(&service, &dir, "blue"), Caller::current());
        let [held, _left] = [KEY, KEY + 1].map(|key| get(&red.ipc, key, 100, CREAT).unwrap());
        red.ipc.semget(KEY, 1, CREAT | 0o600, &caller).unwrap();
        let own = get(&blue.ipc, KEY + 2, 100, CREAT).unwrap();
        let new = NewObject {
            kind: Kind::Segment,
            name: "named".into(),
            len: 100,
            mode: 0o600,
            ends_with_creator: false,
            params: [0; 4],
            or_open: false,
        };
        red.ipc.member().service().create_object(&new).unwrap();
        red.ipc.attach(held, 0, &caller).unwrap();
        let attached = blue.ipc.attach(held, 0, &caller).unwrap();
        blue.ipc.settle();
        drop(red.qemu);
        await_event(&events, |e| matches!(e, Event::VmGone { .. }));
        let region = service.region();
        let names = || {
            let mut names: Vec<_> =
                isthmus_region::objects::objects(&region).into_iter().map(|o| (o.kind, o.name)).collect();
            names.sort();
            names
        };
        let named = |kind: Kind, key| (kind as u32, sysv::name_of(key));
        let all = [
            (Kind::Segment as u32, "named".to_owned()),
            named(Kind::SysvShm, KEY),
            named(Kind::SysvShm, KEY + 1),
            named(Kind::SysvShm, KEY + 2),
            named(Kind::SysvSem, KEY),
        ];
        let deadline = Instant::now() + SOON;
        let wanted = if remove_orphans { vec![all[1].clone(), all[3].clone()] } else { all.to_vec() };
        while names() != wanted {
            assert!(Instant::now() < deadline, "{:?} and not {wanted:?}", names());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(get(&blue.ipc, KEY, 0, 0), Ok(held), "still attached");
        blue.ipc.detach(&attached, &caller);
        blue.ipc.settle();
        let after = get(&blue.ipc, KEY, 0, 0);
        assert_eq!(after, if remove_orphans { Err(Errno::NOENT) } else { Ok(held) });
        assert_eq!(get(&blue.ipc, KEY + 2, 0, 0), Ok(own));
    }
}
