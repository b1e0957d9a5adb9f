//! Objects of System V IPC as `ipcs` shows them, and that nothing in their memory is believed.

use isthmus_attach::connect_at;
use isthmus_host::{Config, Service};
use isthmus_inspect::ipcs::{self, Format, Kind};
use isthmus_inspect::model::{Survey, Usage};
use isthmus_inspect::target::{Target, Wanted};
use isthmus_region::objects::{self, Kind as Object, section};
use isthmus_sysv::{Caller, Ipc, ipc};

const MIB: u64 = 1 << 20;

fn survey(target: &Target) -> Survey {
    let (survey, faults) = target.survey().unwrap();
    assert!(faults.is_empty(), "{:?}", faults.list);
    survey
}

#[test]
fn objects_are_shown_as_programs_see_them_and_rubbish_in_them_does_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config { host_name: "host".into(), endpoints: 16, ..Config::new(dir.path(), 16 * MIB) };
    config.region.shared_bytes = Some(4 * MIB);
    let service = Service::start(config, std::sync::Arc::new(|_| ())).unwrap();
    let member = connect_at(service.attach_socket()).unwrap();
    let (ipc, caller) = (Ipc::new(&member), Caller::current());
    let id = ipc.shmget(0x77, 10_000, ipc::CREAT | 0o751, &caller).unwrap();
    let private = ipc.shmget(ipc::PRIVATE, 1, 0o600, &caller).unwrap();
    let attached = ipc.attach(id, 0, &caller).unwrap();
    let wanted = Wanted { socket: Some(service.attach_socket().to_owned()), run: None };
    let target = Target::find(&wanted).unwrap();

    let users = |uid| (uid == caller.uid).then(|| "ann".to_owned());
    let shown = |survey: &Survey, format| ipcs::text(survey, &[Kind::Shm], format, &users);
    let found = survey(&target);
    let lines: Vec<Vec<String>> = shown(&found, Format::Usual)
        .lines()
        .map(|line| line.split_whitespace().map(str::to_owned).collect())
        .collect();
    let maker = format!("host:{}", caller.pid);
    assert_eq!(lines[2], ["key", "shmid", "owner", "perms", "bytes", "nattch", "creator", "status"]);
    assert_eq!(lines[3], ["0x00000077", &id.to_string(), "ann", "751", "10000", "1", &maker]);
    assert_eq!(lines[4], ["0x00000000", &private.to_string(), "ann", "600", "1", "0", &maker]);
    let Usage::Shm { attached: Some(when), detached: Some(0), last: Some(last) } =
        found.objects[0].sysv.as_ref().unwrap().usage
    else {
        panic!("{:?}", found.objects[0]);
    };
    assert!(ipc::now() - when < 60 && last.pid == caller.pid);
    for (format, heading) in [
        (Format::Times, "attached"),
        (Format::Creators, "cuid"),
        (Format::Processes, "lpid"),
        (Format::Limits, "max seg size (kbytes) = 4096"),
        (Format::Summary, "pages allocated 4"),
    ] {
        assert!(shown(&found, format).contains(heading), "{}", shown(&found, format));
    }
    let one = ipcs::details(&found, Kind::Shm, id, &users).unwrap();
    assert!(one.contains("nattch=1") && one.contains("mode=0751"), "{one}");
    assert!(ipcs::details(&found, Kind::Shm, id + 2, &users).is_none());
    assert!(ipcs::details(&found, Kind::Sem, id, &users).is_none());
    let json = ipcs::json(&target, &found, &[Kind::Shm, Kind::Msg]);
    assert_eq!(json["shm"][0]["id"], id);
    assert_eq!(json["shm"][0]["maker"]["member"], "host");
    assert_eq!((json["msg"].as_array().map(Vec::len), json.get("sem")), (Some(0), None));

    // Once removed it has no key, and is there as long as it is attached.
    let info = ipc.look(Object::SysvShm, id).unwrap();
    ipc.remove(&info, &caller).unwrap();
    // The table has it once the service has heard of it.
    ipc.settle();
    assert!(shown(&survey(&target), Format::Usual).contains(&format!("0x00000000 {id}")));
    assert!(shown(&survey(&target), Format::Usual).contains("dest"));

    // Any process may write what it likes into the page of times.
    let head = section(member.region(), &info).unwrap();
    for word in [u64::MAX, 1 << 63, 253_402_300_800, 0xffff_ffff] {
        for offset in [0, 8, 16] {
            head.word("t", offset).unwrap().set(word);
        }
        let found = survey(&target);
        for format in [Format::Usual, Format::Times, Format::Processes] {
            assert!(shown(&found, format).contains(&id.to_string()));
        }
        assert!(ipcs::details(&found, Kind::Shm, id, &users).is_some());
    }
    ipc.detach(&attached, &caller);
    ipc.settle();
    assert!(!shown(&survey(&target), Format::Usual).contains(&id.to_string()));

    // A table that claims bytes outside of the shared section is a fault, and not read.
    let mut lie = ipc.look(Object::SysvShm, private).unwrap();
    lie.offset = 1 << 60;
    objects::publish(&service.region(), &lie).unwrap();
    let (found, faults) = target.survey().unwrap();
    assert!(faults.list.iter().any(|fault| fault.field == "object.OFFSET"), "{:?}", faults.list);
    assert!(shown(&found, Format::Times).contains(&format!("{private} ")));
}
