//! Named objects: their names, memory and ends, and the gates in them.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_host::Config;
use isthmus_region::Error as RegionError;
use isthmus_region::doorbell::{Doorbell, Sleeper};
use isthmus_region::error::ObjectProblem;
use isthmus_region::gate::Gate;
use isthmus_region::member::Member;
use isthmus_region::objects::{self, Access, Kind, NewObject, Object, UNLINKED, sysv};
use isthmus_region::place::{self, Place};

use super::{Other, SOON, config, open_endpoint, start};

fn with_shared(dir: &Path, bytes: u64) -> Config {
    let mut config = config(dir);
    config.region.shared_bytes = Some(bytes);
    config
}

pub(super) fn segment(
    member: &Arc<Member>,
    name: &str,
    len: u64,
    ends: bool,
) -> isthmus_region::Result<Object> {
    let new = NewObject {
        kind: Kind::Segment,
        name: name.into(),
        len,
        mode: 0o640,
        ends_with_creator: ends,
        params: [0; 4],
        or_open: false,
    };
    Object::create(member, &new)
}

fn problem<T: std::fmt::Debug>(outcome: isthmus_region::Result<T>) -> ObjectProblem {
    match outcome.unwrap_err() {
        RegionError::Object { problem, .. } => problem,
        other => panic!("another error: {other}"),
    }
}

/// Polls until `holds`.
fn await_that(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_named_segment_is_one_memory_for_all_until_its_name_and_users_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start(config(dir.path()));
    let one = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let two = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let region = service.region();
    assert_eq!(problem(Object::open(&two, Kind::Segment, "a", Access::Read)), ObjectProblem::NotFound);
    let made = segment(&one, "a", 10_000, false).unwrap();
    assert!(made.is_new() && made.section().len() == 10_000);
    assert_eq!(problem(segment(&two, "a", 10_000, false)), ObjectProblem::Exists);
    let opened = Object::open(&two, Kind::Segment, "a", Access::Write).unwrap();
    opened.section().fill_bytes("test", 9_990, b"0123456789").unwrap();
    assert_eq!(made.section().bytes("test", 0, 10_000).unwrap().to_vec(9_990, 10).unwrap(), b"0123456789");
    let info = objects::objects(&region);
    assert_eq!((info.len(), info[0].name.as_str(), info[0].opens), (1, "a", 2));
    assert_eq!(info[0].creator, Some(one.party()));
    // Each kind has names of its own.
    assert_eq!(problem(Object::open(&two, Kind::Mutex, "a", Access::Write)), ObjectProblem::NotFound);
    // Smaller, not larger; users that have it open keep what they have mapped.
    assert_eq!(problem(opened.shrink(10_001)), ObjectProblem::Invalid);
    assert_eq!(opened.shrink(5000).unwrap(), 5000);
    assert_eq!(Object::open(&one, Kind::Segment, "a", Access::Read).unwrap().section().len(), 5000);
    // The name goes, the memory stays, and a new one of that name is another.
    one.service().unlink_object(Kind::Segment, "a").unwrap();
    assert_eq!(problem(Object::open(&two, Kind::Segment, "a", Access::Read)), ObjectProblem::NotFound);
    let other = segment(&two, "a", 8, false).unwrap();
    other.section().word("test", 0).unwrap().set(7);
    assert_eq!(made.section().word("test", 0).unwrap().get(), 0);
    let old = made.info().unwrap();
    drop((made, opened));
    await_that("the old one ends", || !objects::is_there(&region, old.index, old.life.incarnation));
    // Closed by all, and still there under its name.
    drop(other);
    let again = Object::open(&one, Kind::Segment, "a", Access::Read).unwrap();
    assert_eq!(again.section().word("test", 0).unwrap().get(), 7);
    // Its memory is zeroed before it serves again.
    one.service().unlink_object(Kind::Segment, "a").unwrap();
    drop(again);
    let fresh = segment(&one, "b", 1 << 20, false).unwrap();
    let bytes = fresh.section().bytes("test", 0, 1 << 20).unwrap().to_vec(0, 1 << 20).unwrap();
    assert!(bytes.iter().all(|b| *b == 0));
}

#[test]
fn memory_is_used_again_at_once_and_is_zero_whatever_was_written_beside_objects() {
    const ALL: u64 = 4 << 20;
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start(with_shared(dir.path(), ALL));
    let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let shared = member.region().shared().unwrap();
    for round in 0..10 {
        // Nothing stops a member from writing where no object is.
        (0..ALL).step_by(4096).for_each(|at| shared.word("test", at).unwrap().put(u64::MAX));
        let small = segment(&member, "small", 5000, false).unwrap();
        assert_eq!(small.section().word("test", 0).unwrap().get(), 0, "round {round}");
        member.service().unlink_object(Kind::Segment, "small").unwrap();
        drop(small);
        let name = format!("whole {round}");
        let whole = segment(&member, &name, ALL, false).unwrap_or_else(|e| panic!("round {round}: {e}"));
        let bytes = whole.section().bytes("test", 0, ALL).unwrap();
        assert!(bytes.to_vec(0, ALL).unwrap().iter().all(|b| *b == 0), "round {round}");
        member.service().unlink_object(Kind::Segment, &name).unwrap();
    }
}

#[test]
fn what_cannot_be_an_object_is_refused_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start(with_shared(dir.path(), 1 << 20));
    let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    assert_eq!(problem(segment(&member, "", 8, false)), ObjectProblem::Invalid);
    assert_eq!(problem(segment(&member, "a", 0, false)), ObjectProblem::Invalid);
    assert_eq!(problem(segment(&member, "a", u64::MAX, false)), ObjectProblem::Full);
    assert_eq!(problem(segment(&member, "a", (1 << 20) + 1, false)), ObjectProblem::Full);
    let all = segment(&member, "a", 1 << 20, false).unwrap();
    let text = segment(&member, "b", 1, false).unwrap_err().to_string();
    assert!(text.contains("--shared"), "{text}");
    member.service().unlink_object(Kind::Segment, "a").unwrap();
    drop(all);
    // There are 64 places, and no more.
    let many: Vec<_> = (0..64).map(|i| segment(&member, &format!("s{i}"), 1, false).unwrap()).collect();
    assert_eq!(problem(segment(&member, "more", 1, false)), ObjectProblem::Full);
    let mut barrier = NewObject {
        kind: Kind::Barrier,
        name: "b".into(),
        len: 64,
        mode: 0o600,
        ends_with_creator: false,
        params: [2, 0, 0, 0],
        or_open: true,
    };
    drop(many);
    member.service().unlink_object(Kind::Segment, "s0").unwrap();
    assert!(Object::create(&member, &barrier).unwrap().is_new());
    let again = Object::create(&member, &barrier).unwrap();
    assert!(!again.is_new() && again.params() == [2, 0, 0, 0]);
    barrier.params[0] = 3;
    assert_eq!(problem(Object::create(&member, &barrier)), ObjectProblem::Exists);
    assert_eq!(problem(again.shrink(8)), ObjectProblem::Invalid);
}

#[test]
fn objects_of_dead_processes_end_or_stay_as_their_creators_asked() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start(config(dir.path()));
    let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let mut other = Other::start("holder", service.attach_socket());
    let own = Object::open(&member, Kind::Segment, "own", Access::Write).unwrap();
    other.child.kill().unwrap();
    other.child.wait().unwrap();
    let flags = || own.info().map(|i| (i.flags & UNLINKED, i.opens));
    await_that("its name is gone with its creator", || flags() == Some((UNLINKED, 1)));
    assert_eq!(
        own.section().word("test", 0).unwrap().get(),
        2,
        "and its memory is not, while a process has it open"
    );
    assert_eq!(problem(Object::open(&member, Kind::Segment, "own", Access::Read)), ObjectProblem::NotFound);
    let kept = Object::open(&member, Kind::Segment, "kept", Access::Read).unwrap();
    assert_eq!((kept.section().word("test", 0).unwrap().get(), kept.info().unwrap().opens), (1, 1));
}

/// Segments of System V IPC that are attached, detached and removed; of the last one's removal the service is not told.
pub(super) fn make_and_remove_segments(member: &Member) {
    let service = member.service();
    let made = [1, 2, 3, 4, 5, 6, 7, 8].map(|number| {
        let mut params = [0; 4];
        params[sysv::SIZE] = 4096;
        let new = NewObject {
            kind: Kind::SysvShm,
            name: sysv::private_name(member.party(), number),
            len: 8192,
            mode: 0o600,
            ends_with_creator: false,
            params,
            or_open: false,
        };
        service.create_object(&new).unwrap()
    });
    for (i, grant) in made.iter().enumerate() {
        let page = sysv::segment::page(member.region(), grant.offset).unwrap();
        assert!(sysv::segment::enter(&page, member.party()));
        service.enter_object(grant.index, grant.incarnation);
        service.release_object(grant.index, grant.incarnation);
        assert!(sysv::segment::remove(&page));
        if i + 1 < made.len() {
            service.removed_object(grant.index, grant.incarnation);
        }
    }
}

#[test]
fn what_a_process_said_last_counts_and_so_does_what_it_could_not_say_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start(config(dir.path()));
    let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    for _ in 0..20 {
        let mut other = Other::start("remover", service.attach_socket());
        other.child.wait().unwrap();
        // Nobody asks the service for anything meanwhile.
        await_that("segments stay that were removed", || objects::objects(member.region()).is_empty());
    }
}

#[test]
fn a_sleeper_at_a_gate_is_woken_by_another_member() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start(config(dir.path()));
    let one = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let two = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let object = segment(&one, "gate", 4096, false).unwrap();
    let far = Object::open(&two, Kind::Segment, "gate", Access::Write).unwrap();
    let gate = Gate::new(&one, object.section(), 0).unwrap();
    let opener = Gate::new(&two, far.section(), 0).unwrap();
    let back = Gate::new(&one, object.section(), 64).unwrap();
    let returns = Gate::new(&two, far.section(), 64).unwrap();
    let begun = Instant::now();
    let pass = |from: &Gate, to: &Gate, first: bool| {
        for round in 1..=200 {
            if first {
                to.word().set(round);
                to.ring(1);
            }
            while from.word().get() < round {
                from.sleep(round - 1, &from.deaths(), Duration::from_secs(5));
            }
            if !first {
                to.word().set(round);
                to.ring(1);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| pass(&gate, &back, false));
        pass(&returns, &opener, true);
    });
    // Without rings, each of these 400 sleeps takes 50 ms.
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // By the service, as in a VM: rung by place.
    let place = Place::new(place::SHARED, object.info().unwrap().offset).unwrap().word();
    let patience = Duration::from_secs(10);
    let watch = one.service().watch(place, patience).unwrap();
    two.service().ring(1, place);
    let mut poll = [rustix::event::PollFd::new(&watch, rustix::event::PollFlags::IN)];
    let soon = rustix::event::Timespec { tv_sec: 2, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut poll, Some(&soon)), Ok(1));
    assert!(one.service().watch(place + 8, patience).is_err(), "no line");
    for nowhere in [1 << 50, Place::new(place::SHARED, 1 << 40).unwrap().word(), u64::MAX] {
        assert!(one.service().watch(nowhere, patience).is_err(), "no place of the region");
        two.service().ring(u64::MAX, nowhere);
    }
}

#[test]
fn a_death_wakes_the_sleepers_of_other_processes() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start(config(dir.path()));
    let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let object = segment(&member, "gate", 4096, false).unwrap();
    let gate = Gate::new(&member, object.section(), 0).unwrap();
    let bell = open_endpoint(&member);
    let sleeper = Sleeper::new(&member, bell, false).unwrap();
    let limit = Doorbell::Futex.longest();
    // Most of the sleeps end early: one by one they may lose to a slow machine.
    let mut early = [0, 0];
    for _ in 0..10 {
        let mut other = Other::start("plain", service.attach_socket());
        let slept = std::thread::scope(|scope| {
            let at_gate = scope.spawn(|| {
                let begun = Instant::now();
                gate.sleep(0, &gate.deaths(), limit * 100);
                begun.elapsed()
            });
            let at_bell = scope.spawn(|| {
                let (seen, begun) = (sleeper.seen(), Instant::now());
                sleeper.sleep(seen, limit * 100);
                begun.elapsed()
            });
            std::thread::sleep(Duration::from_millis(5));
            other.child.kill().unwrap();
            [at_gate.join().unwrap(), at_bell.join().unwrap()]
        });
        for (early, slept) in early.iter_mut().zip(slept) {
            *early += u32::from(slept < limit * 3 / 4);
        }
    }
    assert!(early.iter().all(|early| *early >= 6), "{early:?} of 10 sleeps ended with a death");
}
