//! Sets of semaphores: what operations mean, who waits, who is woken, and that processes which are killed, and rubbish, harm nobody.

mod sets;

use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_lockfree::at_work::AtWork;
use isthmus_region::mapping::Section;
use isthmus_region::objects::{Kind, objects, section};
use isthmus_sysv::ipc::{CREAT, EXCL};
use isthmus_sysv::sem::{Awaited, Keeping, MOST, Set, apply_undo, apply_undo_within};
use isthmus_sysv::{Caller, Errno, Ipc};
use sets::*;

#[test]
fn operations_are_made_together_and_in_order_or_not_at_all() {
    let world = World::new();
    let (id, set) = world.set(&[1, 0, 5]);
    assert_eq!(semop(&set, &[op(0, -1), op(1, 3), op(0, 0), op(2, -2)]), Ok(()));
    assert_eq!(set.all(), Ok(vec![0, 3, 3]));
    // The first that cannot go on decides, by its own flags.
    assert_eq!(semop(&set, &[op(1, -3), op(1, 0), now(0, -1), op(2, -9)]), Err(Errno::AGAIN));
    let soon = Duration::from_millis(20);
    assert_eq!(semtimedop(&set, &[op(1, -3), op(0, -1), now(2, -9)], soon), Err(Errno::AGAIN));
    assert_eq!(semop(&set, &[op(1, 1), op(2, 32_765)]), Err(Errno::RANGE));
    assert_eq!(semop(&set, &[op(1, 32_764), op(1, 1)]), Err(Errno::RANGE));
    assert_eq!(semop(&set, &[op(1, 32_764), op(1, -1), op(1, 1), op(1, -32_764)]), Ok(()));
    assert_eq!(semop(&set, &[op(0, 1), op(3, 0)]), Err(Errno::FBIG));
    assert_eq!(set.all(), Ok(vec![0, 3, 3]));
    assert_eq!(set.last(1), Ok((0, std::process::id())));
    // More operations than are kept at hand.
    let many: Vec<_> = (0..500).map(|i| op(i % 3, if i % 2 == 0 { 1 } else { -1 })).collect();
    assert_eq!(semop(&set, &[&many[..], &[undone(1, 1)]].concat()), Ok(()));
    assert_eq!(set.all(), Ok(vec![1, 3, 3]));
    let info = |id| world.ipc.semstat(id, &Caller::current(), false);
    let stat = info(id).unwrap();
    assert!(stat.count == 3 && stat.used > 1_600_000_000 && stat.changed >= stat.info.params[2]);
    world.remove(id);
    assert_eq!(info(id).err(), Some(Errno::INVAL));
}

#[test]
fn sets_are_found_by_key_if_they_are_large_enough() {
    let world = World::new();
    let get = |key, count, flags| world.ipc.semget(key, count, flags, &Caller::current());
    assert_eq!(get(7, 1, 0), Err(Errno::NOENT));
    for count in [-1, 0, 32_001, i32::MIN] {
        assert_eq!(get(7, count, CREAT | 0o600), Err(Errno::INVAL), "{count}");
    }
    let id = get(7, 3, CREAT | 0o600).unwrap();
    assert_eq!((get(7, 3, 0), get(7, 0, CREAT), get(7, 1, 0o600)), (Ok(id), Ok(id), Ok(id)));
    assert_eq!((get(7, 4, CREAT), get(7, 3, CREAT | EXCL)), (Err(Errno::INVAL), Err(Errno::EXIST)));
    let set = open(&world.ipc, id);
    assert_eq!((set.len(), set.all()), (3, Ok(vec![0; 3])));
    for num in [3, u32::MAX] {
        assert_eq!((set.value(num), set.last(num)), (Err(Errno::INVAL), Err(Errno::INVAL)));
        assert_eq!(
            (set.set_value(num, 0), set.waiting(num, Awaited::Zero)),
            (Err(Errno::INVAL), Err(Errno::INVAL))
        );
    }
    for value in [-1, MOST + 1] {
        assert_eq!(set.set_value(0, value), Err(Errno::RANGE));
    }
    assert_eq!(set.set_all(&[0, 0, 32_768]), Err(Errno::RANGE));
    let most = get(0, 32_000, CREAT | 0o600).unwrap();
    let set = open(&world.ipc, most);
    let values: Vec<u16> = (0..32_000).collect();
    assert_eq!((set.set_all(&values), set.all()), (Ok(()), Ok(values)));
    assert_eq!(semop(&set, &[op(31_999, -31_999), op(0, 1)]), Ok(()));
    assert_eq!((set.value(31_999), set.value(0), set.value(31_998)), (Ok(0), Ok(1), Ok(31_998)));
    let third = Caller { uid: 1, gid: 1, groups: vec![], ..Caller::current() };
    assert_eq!(set.check(&third, 0o200), Err(Errno::ACCESS));
}

/// Runs `wait` on another thread until `count` says that it waits, then `then`, and gives what the thread gave.
fn while_it_waits<T: Send>(
    wait: impl FnOnce() -> T + Send,
    is_waiting: impl Fn() -> bool,
    then: impl FnOnce(),
) -> T {
    std::thread::scope(|scope| {
        let waiter = scope.spawn(wait);
        eventually("the thread waits", is_waiting);
        then();
        waiter.join().unwrap()
    })
}

#[test]
fn those_that_wait_are_counted_and_woken() {
    let world = World::new();
    let (id, set) = world.set(&[0, 2]);
    let far = Ipc::new(&world.attach());
    let far = open(&far, id);
    // One that waits for more, one for 0; each is woken by what it waits for.
    let is_more = || far.waiting(0, Awaited::More) == Ok(1);
    let done = while_it_waits(
        || semop(&set, &[op(0, -3)]),
        is_more,
        || {
            assert_eq!(semop(&far, &[op(0, 2)]), Ok(()));
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!((far.value(0), far.waiting(0, Awaited::More)), (Ok(2), Ok(1)));
            assert_eq!(semop(&far, &[op(0, 2)]), Ok(()));
        },
    );
    assert_eq!((done, far.value(0), far.waiting(0, Awaited::More)), (Ok(()), Ok(1), Ok(0)));
    let is_zero = || far.waiting(1, Awaited::Zero) == Ok(1);
    let done = while_it_waits(
        || semop(&set, &[op(1, 0), op(1, 1)]),
        is_zero,
        || {
            assert_eq!(far.set_value(1, 0), Ok(()));
        },
    );
    assert_eq!((done, far.value(1)), (Ok(()), Ok(1)));
    // Who waits for 0 is not passed by, though it is 0 only for a moment.
    for _ in 0..20 {
        let done = while_it_waits(
            || semop(&set, &[op(1, 0)]),
            is_zero,
            || {
                assert_eq!(semop(&far, &[op(1, -1)]), Ok(()));
                assert_eq!(semop(&far, &[op(1, 1)]), Ok(()));
            },
        );
        assert_eq!(done, Ok(()));
    }
    // A time that is over.
    let begun = Instant::now();
    assert_eq!(semtimedop(&set, &[op(1, 0)], Duration::from_millis(30)), Err(Errno::AGAIN));
    assert!(begun.elapsed() >= Duration::from_millis(30));
    assert_eq!(far.waiting(1, Awaited::Zero), Ok(0));
    // The end of the set.
    let done = while_it_waits(|| semop(&set, &[op(1, 0)]), is_zero, || world.remove(id));
    assert_eq!(done, Err(Errno::IDRM));
    assert_eq!(semop(&far, &[op(1, 1), undone(1, 5)]), Ok(()), "its memory is its own while it is open");
    assert_eq!(world.ipc.set(id, 1).err(), Some(Errno::INVAL));
}

#[test]
fn what_a_process_did_is_undone_when_it_ends() {
    let world = World::new();
    let (id, set) = world.set(&[5, 5, 5]);
    for end in ["ends", "is killed", "executes"] {
        let mut other = world.other("undone", &[&id, &u8::from(end == "executes")]);
        other.await_line("ready");
        assert_eq!(set.all(), Ok(vec![2, 9, 5]), "{end}");
        assert_eq!(semop(&set, &[now(0, -3)]), Err(Errno::AGAIN));
        if end == "is killed" {
            other.kill();
        } else {
            other.say("go");
            if end == "executes" {
                other.await_line("again");
                // Another program of the same process: it owes still, and more.
                assert_eq!(set.all(), Ok(vec![0, 9, 5]));
                other.say("go");
            }
            other.child.wait().unwrap();
        }
        assert_eq!(set.all(), Ok(vec![5, 5, 5]), "{end}");
        assert_eq!(set.last(1), Ok((0, other.child.id())));
    }
    // Values have bounds.
    let mut other = world.other("undone", &[&id, &0]);
    other.await_line("ready");
    assert_eq!(semop(&set, &[op(0, 32_764), op(1, -9)]), Ok(()));
    other.kill();
    assert_eq!(set.all(), Ok(vec![32_767, 0, 5]));
    // SETVAL and SETALL end all claims to what they set.
    set.set_all(&[5, 5, 5]).unwrap();
    for (is_all, values) in [(false, [7, 5, 5]), (true, [7, 8, 9])] {
        let mut other = world.other("undone", &[&id, &0]);
        other.await_line("ready");
        match is_all {
            false => set.set_value(0, 7).unwrap(),
            true => set.set_all(&values).unwrap(),
        }
        other.kill();
        assert_eq!(set.all(), Ok(values.to_vec()));
        set.set_all(&[5, 5, 5]).unwrap();
    }
    // A process that waits for what a dead one had goes on, and its own death is not waited for.
    let mut other = world.other("undone", &[&id, &0]);
    other.await_line("ready");
    let is_waiting = || set.waiting(0, Awaited::More) == Ok(1);
    let done = while_it_waits(|| semop(&set, &[op(0, -5)]), is_waiting, || other.kill());
    assert_eq!((done, set.all()), (Ok(()), Ok(vec![0, 5, 5])));
    let mut other = world.other("waits", &[&id]);
    other.await_line("ready");
    eventually("it waits", is_waiting);
    other.kill();
    assert_eq!(set.waiting(0, Awaited::More), Ok(0));
}

#[test]
fn many_processes_have_cells_and_get_those_of_the_dead() {
    let world = World::new();
    let (id, set) = world.set(&[0; 40]);
    // More than there are cells, one process after the other.
    for _ in 0..20 {
        let mut other = world.other("many", &[&id]);
        other.await_line("ready");
        assert_eq!(set.all(), Ok(vec![1; 40]));
        other.kill();
    }
    assert_eq!(set.all(), Ok(vec![0; 40]));
    // So many adjustments that SETALL takes the wide way, and SETVAL of one semaphore.
    let mut others: Vec<_> = (0..18).map(|_| world.other("many", &[&id])).collect();
    others.iter_mut().for_each(|other| drop(other.await_line("ready")));
    assert_eq!(set.all(), Ok(vec![18; 40]));
    assert_eq!(set.set_value(3, 100), Ok(()));
    others.pop().unwrap().kill();
    let mut values = vec![17; 40];
    values[3] = 100;
    assert_eq!(set.all(), Ok(values.clone()));
    assert_eq!(set.set_all(&values), Ok(()));
    drop(others);
    assert_eq!(set.all(), Ok(values));
}

/// A set's memory.
fn memory(world: &World, id: i32) -> Section {
    let region = world.ipc.member().region();
    let info = objects(region)
        .into_iter()
        .find(|i| i.kind == Kind::SysvSem as u32 && isthmus_sysv::ipc::id_of(i) == id);
    section(region, &info.unwrap()).unwrap()
}

#[test]
fn who_applies_what_is_owed_looks_so_often_and_no_more() {
    let world = World::new();
    let (id, set) = world.set(&[5; 3]);
    semop(&set, &[undone(0, -2)]).unwrap();
    let (memory, me) = (memory(&world, id), world.ipc.member().party());
    let word = |at: u64| memory.word("test", at).unwrap();
    // Semaphore 0 is in the middle of another change, in the first slot, that does not go on. 864 cells and 256 waiters are before that.
    let slot = 64 + 3 * 64 + (864 + 256) * 16;
    let semaphore = word(64);
    for (at, value) in [(0, me.word()), (8, 7 << 2 | 1), (16, 1), (64, 64), (72, semaphore.get()), (80, 0)] {
        word(slot + at).set(value);
    }
    semaphore.set(7 << 17 | 1 << 16);
    assert_eq!(apply_undo_within(&memory, 3, me, 100), Err(Errno::IO));
    assert_eq!(word(slot + 8).get(), 7 << 2 | 1, "it was not called off yet");
    assert_eq!(apply_undo(&memory, 3, me), Ok(true));
    assert_eq!(set.all(), Ok(vec![5; 3]));
}

#[test]
fn threads_that_are_idle_keep_no_memory_of_sets_that_are_removed() {
    let world = World::new();
    let there = |id| world.ipc.all(Kind::SysvSem).iter().any(|info| isthmus_sysv::ipc::id_of(info) == id);
    let (id, set) = world.set(&[1; 3]);
    let (thread, kept) = (Arc::new(AtWork::new()), Keeping::new(&set));
    world.ipc.add_thread(&thread);
    drop(set);
    let working = thread.begin().unwrap();
    world.remove(id);
    let (other, _) = world.set(&[1]);
    assert!(there(id), "a thread may be at it");
    drop(working);
    world.remove(other);
    eventually("it is gone", || !there(id) && !there(other));
    assert!(kept.is_removed());
    // Nor where a call goes on after its mark is taken back, until that is over.
    let (id, set) = world.set(&[1; 3]);
    let again = Keeping::new(&set);
    world.remove(id);
    world.remove(world.set(&[1]).0);
    assert!(there(id), "a call goes on");
    drop(set);
    world.remove(world.set(&[1]).0);
    eventually("it is gone", || !there(id));
    drop((kept, again));
}

const SEMAPHORES: u16 = 6;
const EACH: u16 = 50;

/// Moves some from one semaphore to another, in changes of two to six words, and changes one alone, back and forth.
fn transfer(set: &Set, dice: &mut Dice) {
    let from = u16::try_from(dice.below(SEMAPHORES.into())).unwrap();
    let to = dice.other(SEMAPHORES, from);
    let some = i16::try_from(dice.below(3) + 1).unwrap();
    let made = match dice.below(4) {
        0 => semop(set, &[now(from, -some), op(to, some)]),
        1 => semop(set, &[now(from, -some), undone(to, some), undone(to, -some), op(to, some)]),
        2 => {
            let third = dice.other(SEMAPHORES, to);
            semop(set, &[now(from, -2), op(to, 1), op(third, 1)])
        }
        _ => {
            let taken = semop(set, &[undone_now(from, -some)]);
            if taken.is_ok() {
                assert_eq!(semop(set, &[undone(from, some)]), Ok(()));
            }
            taken
        }
    };
    assert!(matches!(made, Ok(()) | Err(Errno::AGAIN)), "{made:?}");
}

#[test]
fn transfers_between_threads_and_processes_keep_the_sum() {
    let world = World::new();
    let (id, set) = world.set(&[EACH; SEMAPHORES as usize]);
    let sum = || set.all().unwrap().into_iter().map(u32::from).sum::<u32>();
    let all = u32::from(EACH) * u32::from(SEMAPHORES);
    let mut others: Vec<_> = (0..3).map(|i| world.other("transfers", &[&id, &i])).collect();
    others.iter_mut().for_each(|other| drop(other.await_line("ready")));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let set = &set;
            scope.spawn(move || {
                let mut dice = Dice(seed);
                while begun.elapsed() < Duration::from_secs(2) {
                    transfer(set, &mut dice);
                }
            });
        }
        while begun.elapsed() < Duration::from_secs(2) {
            // What is taken with undo, and not given back yet, is missing: 3 at most for each of five.
            let now = sum();
            assert!(now <= all && now + 15 >= all, "{now}");
        }
    });
    others.iter_mut().for_each(Other::kill);
    assert_eq!(sum(), all);
}

#[test]
fn processes_that_are_killed_at_any_moment_leave_the_sum_as_it_was() {
    let world = World::new();
    let (id, set) = world.set(&[EACH; SEMAPHORES as usize]);
    let mut dice = Dice(9);
    let start = |seed: u64| {
        let mut other = world.other("transfers", &[&id, &seed]);
        other.await_line("ready");
        other
    };
    let mut others: Vec<_> = (0..3).map(start).collect();
    for kill in 0..120 {
        std::thread::sleep(Duration::from_micros(dice.below(4000)));
        let victim = usize::try_from(dice.below(3)).unwrap();
        assert!(others[victim].child.try_wait().unwrap().is_none(), "it ended by itself");
        others[victim].kill();
        others[victim] = start(kill);
        transfer(&set, &mut dice);
    }
    others.iter_mut().for_each(Other::kill);
    let sum: u32 = set.all().unwrap().into_iter().map(u32::from).sum();
    assert_eq!(sum, u32::from(EACH) * u32::from(SEMAPHORES));
    assert_eq!(set.set_all(&[1; SEMAPHORES as usize]), Ok(()));
    assert_eq!(semop(&set, &[op(0, -1), op(5, -1)]), Ok(()));
}

/// Whatever stands in a set: calls end soon, with an errno or without, and nothing outside of the set is touched.
#[test]
fn rubbish_in_a_set_neither_hangs_nor_crashes() {
    let world = World::new();
    let (_, before) = world.set(&[1; 3]);
    let (id, set) = world.set(&[2; 3]);
    let (_, behind) = world.set(&[3; 3]);
    let memory = memory(&world, id);
    let words = memory.len() / 8;
    let mut dice = Dice(3);
    let (begun, mut longest, mut ends) = (Instant::now(), Duration::ZERO, [0_u32; 2]);
    while begun.elapsed() < Duration::from_secs(4) {
        // Words here and there, or a run of them.
        let at = dice.below(words);
        let run = if dice.below(8) == 0 { dice.below(400) } else { dice.below(3) + 1 };
        for index in (at..at + run).filter(|i| *i < words) {
            // Those of the head and of the semaphores more often.
            let index = if dice.below(3) == 0 { dice.below(40) } else { index };
            let random = dice.below(u64::MAX >> 33) << 33 ^ dice.below(u64::MAX) ^ dice.below(4) << 62;
            let value = match dice.below(6) {
                0 => random,
                1 => 0,
                2 => u64::MAX,
                // A mark of some slot, and a state.
                3 => 1 << 16 | dice.below(36) | dice.below(4) << 17,
                4 => dice.below(16),
                _ => world.ipc.member().party().word(),
            };
            memory.word("test", index * 8).unwrap().set(value);
        }
        let num = u16::try_from(dice.below(3)).unwrap();
        let call = Instant::now();
        let soon = Duration::from_millis(1);
        let made = match dice.below(9) {
            0 => semtimedop(&set, &[op(num, 1)], soon),
            1 => semtimedop(&set, &[now(num, -1)], soon),
            2 => semtimedop(&set, &[undone(num, 1)], soon),
            3 => semtimedop(&set, &[op(0, -1), undone(1, 1), op(2, 0)], soon),
            4 => semtimedop(&set, &[op(num, 0)], soon),
            5 => set.set_value(num.into(), 2),
            6 => set.set_all(&[1, 2, 3]),
            7 => set.all().map(drop),
            _ => set.waiting(num.into(), Awaited::More).map(drop),
        };
        ends[usize::from(made.is_ok())] += 1;
        longest = longest.max(call.elapsed());
        // As if a process had died that used the set.
        if dice.below(50) == 0 {
            let _ = apply_undo(&memory, 3, world.ipc.member().party());
        }
    }
    assert!(longest < LONG, "{longest:?}");
    assert!(ends.iter().all(|n| *n > 100), "{ends:?}");
    assert_eq!((before.all(), behind.all()), (Ok(vec![1; 3]), Ok(vec![3; 3])));
    // Zeros are a set again.
    memory.zero("test", 0, memory.len()).unwrap();
    assert_eq!(semop(&set, &[op(0, 1), undone(1, 1)]), Ok(()));
    assert_eq!(set.all(), Ok(vec![1, 1, 0]));
}

fn use_undo(told: &Told) {
    let set = told.set();
    match told.args[1] {
        // Executes itself, and takes more.
        1 => {
            assert_eq!(semop(&set, &[undone(0, -3), undone(1, 4)]), Ok(()));
            Told::rendezvous();
            use std::os::unix::process::CommandExt;
            let args: Vec<_> = std::env::args_os().skip(1).collect();
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            let failed = again.args(args).env("ARGS", format!("{} 3", told.args[0])).exec();
            panic!("{failed}");
        }
        3 => {
            assert_eq!(semop(&set, &[undone(0, -2)]), Ok(()));
            println!("again");
            std::io::stdin().read_line(&mut String::new()).unwrap();
        }
        _ => {
            assert_eq!(semop(&set, &[undone(0, -2)]), Ok(()));
            assert_eq!(semop(&set, &[undone(1, 1)]), Ok(()));
            assert_eq!(semop(&set, &[undone(0, -1), undone(1, 3), undone(2, 1), undone(2, -1)]), Ok(()));
            Told::rendezvous();
        }
    }
}

#[test]
#[ignore = "the other process of the tests here"]
fn child() {
    let Some(told) = told() else { return };
    match told.role.as_str() {
        "undone" => use_undo(&told),
        "waits" => {
            println!("ready");
            semop(&told.set(), &[op(0, -9)]).unwrap();
        }
        "many" => {
            let all: Vec<_> = (0..40).map(|num| undone(num, 1)).collect();
            semop(&told.set(), &all).unwrap();
            Told::rendezvous();
        }
        "transfers" => {
            let (set, mut dice) = (told.set(), Dice(told.args[1].unsigned_abs() * 77));
            println!("ready");
            loop {
                transfer(&set, &mut dice);
            }
        }
        role => panic!("no role {role}"),
    }
}
