//! A process is killed, or stopped, at each step of attaching, detaching and removing a segment: the others can use it, its count is
//! right, and its memory is given back.

mod processes;

use std::time::{Duration, Instant};

use isthmus_region::objects::Kind;
use isthmus_sysv::ipc::CREAT;
use isthmus_sysv::shm::fault::{Step, arm, disarm};
use isthmus_sysv::{Caller, Errno, Ipc, Result};
use processes::*;
use rustix::process::{Pid, Signal, getpid, kill_process};

const BYTES: u64 = 1 << 20;
/// What a call takes at most while another process is stopped in the middle of one, on a busy machine.
const SOON: Duration = Duration::from_secs(5);

fn new(ipc: &Ipc, key: i32) -> i32 {
    ipc.shmget(key, BYTES, CREAT | 0o600, &Caller::current()).unwrap()
}

/// Attaches, detaches and removes; gives what the attach has come to.
fn work(ipc: &Ipc, id: i32) -> Result<()> {
    let me = Caller::current();
    let attached = ipc.attach(id, 0, &me)?;
    ipc.detach(&attached, &me);
    ipc.remove(&ipc.look(Kind::SysvShm, id)?, &me)
}

fn count(ipc: &Ipc, id: i32) -> u64 {
    ipc.shmstat(id, &Caller::current(), false).unwrap().count
}

#[test]
#[ignore = "the other process of the tests here"]
fn child() {
    let Some(told) = told() else { return };
    let id = i32::try_from(told.args[0]).unwrap();
    let at = Step::ALL[usize::try_from(told.args[1]).unwrap()];
    match told.role.as_str() {
        "dies" => arm(at, 0, |_| kill_process(getpid(), Signal::KILL).unwrap()),
        _ => arm(at, 0, |_| {
            kill_process(getpid(), Signal::STOP).unwrap();
            // Another thread may have taken the signal, and this one is stopped a moment later.
            std::thread::sleep(Duration::from_millis(100));
        }),
    }
    let done = work(&told.ipc, id);
    println!("done {done:?}, survived {}", disarm());
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// That segments can be had as before, and their memory, too.
fn use_all(world: &World, key: i32) {
    let (ipc, me) = (&world.ipc, Caller::current());
    let begun = Instant::now();
    let id = new(ipc, key);
    let attached = [(); 6].map(|()| ipc.attach(id, 0, &me).unwrap());
    assert_eq!(count(ipc, id), 6);
    attached.iter().for_each(|one| ipc.detach(one, &me));
    assert_eq!(count(ipc, id), 0);
    ipc.remove(&ipc.look(Kind::SysvShm, id).unwrap(), &me).unwrap();
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

#[test]
fn a_process_that_is_killed_at_any_step_leaves_a_segment_that_others_can_use() {
    let world = World::new();
    let (ipc, me) = (&world.ipc, Caller::current());
    for (number, step) in Step::ALL.into_iter().enumerate() {
        // More of them than there are places to say that one attaches.
        let id = new(ipc, 7);
        let own = ipc.attach(id, 0, &me).unwrap();
        for round in 0..6 {
            let mut other = world.other("dies", &[&id, &number]);
            assert_eq!(other.line("survived"), None, "{step:?}");
            other.kill();
            if step == Step::Removed {
                assert_eq!(ipc.shmget(7, 0, 0, &me), Err(Errno::NOENT), "{step:?}");
                break;
            }
            assert_eq!(count(ipc, id), 1, "{step:?}, {round}");
            let again = ipc.attach(id, 0, &me).unwrap();
            assert_eq!(count(ipc, id), 2, "{step:?}, {round}");
            ipc.detach(&again, &me);
        }
        if step != Step::Removed {
            ipc.remove(&ipc.look(Kind::SysvShm, id).unwrap(), &me).unwrap();
        }
        assert_eq!(count(ipc, id), 1, "{step:?}");
        ipc.detach(&own, &me);
        eventually("the memory is given back", || ipc.all(Kind::SysvShm).is_empty());
        use_all(&world, 7);
    }
}

/// So is one that is stopped, but for the memory that it attaches; and when it goes on, it has the segment or is told that it is gone.
#[test]
fn a_process_that_is_stopped_at_any_step_holds_up_nobody() {
    let world = World::new();
    let (ipc, me) = (&world.ipc, Caller::current());
    for (number, step) in Step::ALL.into_iter().enumerate() {
        let id = new(ipc, 7);
        let mut other = world.other("stops", &[&id, &number]);
        let pid = Pid::from_child(&other.child);
        eventually("it stops", || is_stopped(pid));
        let begun = Instant::now();
        let has_it = matches!(step, Step::Told | Step::Attached | Step::Detaching);
        if step != Step::Removed {
            assert_eq!(count(ipc, id), u64::from(has_it), "{step:?}");
            let own = ipc.attach(id, 0, &me).unwrap();
            ipc.detach(&own, &me);
            ipc.remove(&ipc.look(Kind::SysvShm, id).unwrap(), &me).unwrap();
        }
        assert_eq!(ipc.shmget(7, 0, 0, &me), Err(Errno::NOENT), "{step:?}");
        use_all(&world, 7);
        assert!(begun.elapsed() < SOON, "{step:?}: {:?}", begun.elapsed());
        kill_process(pid, Signal::CONT).unwrap();
        let done = other.await_line("done");
        // It had it or not; where it was to be removed, somebody else has done that.
        assert!(done.ends_with("survived false"), "{step:?}: {done}");
        let may_be_gone = done.starts_with("Err(Os { code: 22") || done.starts_with("Err(Os { code: 43");
        assert!(done.starts_with("Ok") || may_be_gone, "{step:?}: {done}");
        eventually("the memory is given back", || ipc.all(Kind::SysvShm).is_empty());
    }
}

fn is_stopped(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}
