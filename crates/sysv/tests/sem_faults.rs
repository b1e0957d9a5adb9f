//! A process is killed, or stopped, at each step of its operations: the others go on at once, and find all of a change or nothing.

mod sets;

use std::time::{Duration, Instant};

use isthmus_lockfree::mcas;
use isthmus_region::objects::{Kind, section};
use isthmus_sysv::sem::fault::{Step, arm, disarm};
use isthmus_sysv::sem::{Awaited, Set};
use isthmus_sysv::{Caller, Errno};
use rustix::process::{Pid, Signal, getpid, kill_process};
use sets::*;

/// What the processes that are killed are at: the number of each is their argument.
const WORKS: [&str; 7] = ["alone", "transfer", "undone", "undone twice", "many", "set", "waits"];
/// The values at first.
const VALUES: [u16; 4] = [10, 0, 5, 20];
/// What a call takes at most while another process is stopped in the middle of one: a patience, and time slices of a busy machine.
const SOON: Duration = Duration::from_secs(5);

fn work(set: &Set, which: &str) {
    match which {
        "alone" => semop(set, &[op(0, -1)]).unwrap(),
        "transfer" => semop(set, &[op(0, -1), op(1, 1)]).unwrap(),
        "undone" => semop(set, &[undone(0, -1)]).unwrap(),
        // The first one claims a cell, the second has one; then it has two.
        "undone twice" => {
            semop(set, &[undone(0, -2)]).unwrap();
            semop(set, &[undone(0, 1), undone(2, 3)]).unwrap();
        }
        "many" => {
            let many: Vec<_> = (0..304).map(|i| op(i % 4, if i % 8 < 4 { 1 } else { -1 })).collect();
            semop(set, &[&many[..], &[op(0, -1), op(1, 1)]].concat()).unwrap();
        }
        "set" => {
            set.set_value(3, 20).unwrap();
            set.set_all(&VALUES).unwrap();
            assert_eq!(set.all().map(|all| all.len()), Ok(4));
        }
        "waits" => {
            assert_eq!(semtimedop(set, &[op(2, 0)], Duration::from_millis(5)), Err(Errno::AGAIN));
        }
        other => panic!("{other}"),
    }
}

#[test]
#[ignore = "the other process of the tests here"]
fn child() {
    let Some(told) = told() else { return };
    let set = told.set();
    let [which, step, passes] = [1, 2, 3].map(|i| usize::try_from(told.args[i]).unwrap());
    let at = Step::all().nth(step).unwrap();
    let passes = u32::try_from(passes).unwrap();
    Told::rendezvous();
    match told.role.as_str() {
        "dies" => arm(at, passes, |_| kill_process(getpid(), Signal::KILL).unwrap()),
        _ => arm(at, passes, |_| kill_process(getpid(), Signal::STOP).unwrap()),
    }
    work(&set, WORKS[which]);
    let survived = disarm();
    println!("survived {survived}");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// What a process that was killed at this may leave.
fn is_sound(which: &str, values: &[u16]) -> bool {
    match which {
        "alone" => values[1..] == VALUES[1..] && [9, 10].contains(&values[0]),
        "transfer" | "many" => {
            values[2..] == VALUES[2..] && [[10, 0], [9, 1]].iter().any(|v| values[..2] == v[..])
        }
        _ => values == VALUES,
    }
}

/// All kinds of calls.
fn use_all(set: &Set) {
    let before = set.all().unwrap();
    let begun = Instant::now();
    semop(set, &[op(0, 1)]).unwrap();
    semop(set, &[op(0, -1), op(1, 1), op(2, 1), op(3, 1)]).unwrap();
    semop(set, &[undone(1, -1), undone(2, -1)]).unwrap();
    semop(set, &[undone(3, -1)]).unwrap();
    semop(set, &[undone(3, -1), undone(2, 1), undone(1, 1)]).unwrap();
    semop(set, &[undone(3, 2), undone(2, -1), undone(1, -1)]).unwrap();
    semop(set, &[undone(3, -1), undone(2, 1), undone(1, 1)]).unwrap();
    semop(set, &[op(2, -1), op(1, -1)]).unwrap();
    assert_eq!(semtimedop(set, &[op(2, -30_000)], Duration::from_millis(1)), Err(Errno::AGAIN));
    assert_eq!(set.all(), Ok(before.clone()));
    set.set_value(1, before[1].into()).unwrap();
    set.set_all(&before).unwrap();
    assert_eq!(set.waiting(2, Awaited::Zero), Ok(0));
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

#[test]
fn a_process_that_is_killed_at_any_step_leaves_a_set_that_others_can_use() {
    let world = World::new();
    let mut deaths = 0;
    for (which, name) in WORKS.into_iter().enumerate() {
        for (number, step) in Step::all().enumerate() {
            for passes in 0.. {
                let (id, set) = world.set(&VALUES);
                let mut other = world.other("dies", &[&id, &which, &number, &passes]);
                other.await_line("ready");
                other.say("go");
                let is_dead = other.line("survived").is_none();
                deaths += u32::from(is_dead);
                other.kill();
                let told = format!("{name}: {step:?}, {passes}");
                let values = set.all().unwrap();
                assert!(is_sound(name, &values), "{told}: {values:?}");
                use_all(&set);
                world.remove(id);
                // Some steps come often.
                if !is_dead || passes == 12 {
                    break;
                }
            }
        }
    }
    assert!(deaths > 80, "{deaths}");
}

/// It is the first cell of the set, and nobody has taken one after it.
#[test]
fn a_cell_whose_process_is_killed_as_it_takes_it_is_free_again() {
    let world = World::new();
    let (id, set) = world.set(&VALUES);
    let info = world.ipc.all(Kind::SysvSem).into_iter().find(|info| isthmus_sysv::ipc::id_of(info) == id);
    let memory = section(world.ipc.member().region(), &info.unwrap()).unwrap();
    let party = memory.word("test", 64 + 64 * VALUES.len() as u64).unwrap();
    let number = Step::all().position(|step| step == Step::CellTaken).unwrap();
    let which = WORKS.iter().position(|work| *work == "undone").unwrap();
    let mut other = world.other("dies", &[&id, &which, &number, &0]);
    other.await_line("ready");
    other.say("go");
    assert_eq!(other.line("survived"), None);
    // The service may have heard of its end already.
    other.kill();
    eventually("the cell is free", || party.get() == 0);
    assert_eq!(set.all(), Ok(VALUES.to_vec()));
    // It is this process's now.
    semop(&set, &[undone(0, 1)]).unwrap();
    assert_ne!(party.get(), 0);
    semop(&set, &[undone(0, -1)]).unwrap();
    assert_eq!(set.all(), Ok(VALUES.to_vec()));
}

/// So is one that is stopped; and when it goes on, it does what it was at, once.
#[test]
fn a_process_that_is_stopped_at_any_step_holds_up_nobody() {
    let world = World::new();
    let mut stops = 0;
    for (which, name) in WORKS.into_iter().enumerate().filter(|(_, name)| *name != "set") {
        for (number, step) in Step::all().enumerate() {
            for passes in 0..3 {
                let (id, set) = world.set(&VALUES);
                let mut other = world.other("stops", &[&id, &which, &number, &passes]);
                let pid = Pid::from_child(&other.child);
                other.await_line("ready");
                other.say("go");
                let is_stopped = has_stopped(&mut other, pid);
                stops += u32::from(is_stopped);
                let told = format!("{name}: {step:?}, {passes}");
                let begun = Instant::now();
                semop(&set, &[op(0, 1)]).unwrap();
                semop(&set, &[op(0, -1), op(3, 1)]).unwrap();
                semop(&set, &[undone(0, 1), undone(1, 1)]).unwrap();
                semop(&set, &[undone(0, -1), undone(1, -1), op(3, -1)]).unwrap();
                assert!(begun.elapsed() < SOON, "{told}: {:?}", begun.elapsed());
                if is_stopped {
                    kill_process(pid, Signal::CONT).unwrap();
                    other.await_line("survived");
                }
                let values = set.all().unwrap();
                let expected = match name {
                    "alone" | "undone" => [9, 0, 5, 20],
                    "transfer" | "many" => [9, 1, 5, 20],
                    "undone twice" => [9, 0, 8, 20],
                    _ => VALUES,
                };
                assert_eq!(values, expected, "{told}");
                other.kill();
                assert!(name.starts_with("undone") <= (set.all() == Ok(VALUES.to_vec())), "{told}");
                world.remove(id);
                if !is_stopped {
                    break;
                }
            }
        }
    }
    assert!(stops > 60, "{stops}");
    eventually("the sets are gone", || world.ipc.all(Kind::SysvSem).is_empty());
    assert_eq!(world.ipc.semrm(1 << 30, &Caller::current()), Err(Errno::INVAL));
}

/// Waits until a process is stopped, or has said that it is done.
fn has_stopped(other: &mut Other, pid: Pid) -> bool {
    let state = || {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
    };
    let begun = Instant::now();
    loop {
        match state() {
            Some('T') => return true,
            // It waits for its next line, or has ended: it has said so.
            Some('S') | None if begun.elapsed() > Duration::from_millis(30) => {
                other.await_line("survived");
                return false;
            }
            _ => assert!(begun.elapsed() < LONG),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A process meets another one's change that was stopped, and is killed as it calls that off, or completes it.
#[test]
fn who_helps_may_die_of_it() {
    let world = World::new();
    let all: Vec<_> = Step::all().collect();
    let number = |step| all.iter().position(|s| *s == Step::Words(step)).unwrap();
    let transfer = WORKS.iter().position(|w| *w == "transfer").unwrap();
    for stopped in [mcas::Step::Marked, mcas::Step::Decided, mcas::Step::Replaced] {
        for helps in [mcas::Step::CalledOff, mcas::Step::Helped] {
            for (work, name) in WORKS
                .into_iter()
                .enumerate()
                .filter(|(_, w)| ["alone", "transfer", "undone", "set"].contains(w))
            {
                let (id, set) = world.set(&VALUES);
                let mut first = world.other("stops", &[&id, &transfer, &number(stopped), &0]);
                let pid = Pid::from_child(&first.child);
                first.await_line("ready");
                first.say("go");
                assert!(has_stopped(&mut first, pid));
                let mut second = world.other("dies", &[&id, &work, &number(helps), &0]);
                second.await_line("ready");
                second.say("go");
                let _ = second.line("survived");
                second.kill();
                use_all(&set);
                kill_process(pid, Signal::CONT).unwrap();
                first.await_line("survived");
                first.kill();
                let told = format!("{stopped:?}, {helps:?}, {name}: {:?}", set.all());
                let sum: u16 = set.all().unwrap().iter().sum();
                let whole = VALUES.iter().sum::<u16>();
                let is_sound = match name {
                    "alone" => sum == whole || sum + 1 == whole,
                    _ => sum == whole,
                };
                assert!(is_sound, "{told}");
                use_all(&set);
                world.remove(id);
            }
        }
    }
}
