//! Processes that use barriers and locks are killed at random moments and replaced. None hangs, what the locks protect
//! stays right, and the living learn of each death.

mod common;

use std::time::{Duration, Instant};

use common::{Dice, LONG, Other, Told, World, piece, told};
use isthmus_region::Section;
use isthmus_region::sync::Word;
use isthmus_sync::barrier::{Algorithm, Barrier, Parameters};
use isthmus_sync::{Error, Mutex, RwLock, Waiting, rwlock};

const WORKERS: u32 = 4;
/// Kills of each test.
const KILLS: u32 = 150;
const TOTAL: u64 = 1000;

/// Indices of the tests' own words, at the start of the memory.
const STOP: u64 = 0;
/// What a mutex protects: two balances, whether a process is inside, and what the balances were before a change.
const MONEY: u64 = 8;
/// What a reader-writer lock protects: two words that are equal.
const PAIR: u64 = 16;
/// What each worker has done.
const DONE: u64 = 24;
/// The round that each seat is in.
const ROUND: u64 = 32;
/// Offset of the objects, behind the words.
const OBJECTS: u64 = 64 * 8;

fn word(memory: &Section, index: u64) -> &Word {
    memory.word("test", index * 8).unwrap()
}

struct Locks {
    memory: Section,
    mutex: Mutex,
    rwlock: RwLock,
}

impl Locks {
    fn bytes() -> u64 {
        OBJECTS + 64 + rwlock::bytes(WORKERS + 2)
    }

    fn open(told: &Told) -> Self {
        let memory = piece(&told.member, told.at, Self::bytes());
        let part = |at, bytes| memory.part("test", at, bytes).unwrap();
        let mutex = Mutex::open(&told.member, &part(OBJECTS, 64)).unwrap();
        let lines = part(OBJECTS + 64, rwlock::bytes(WORKERS + 2));
        let rwlock = RwLock::open(&told.member, &lines, WORKERS + 2).unwrap();
        Self { memory, mutex, rwlock }
    }

    /// Moves money from one account to the other; the old balances are written down first.
    fn transfer(&self, dice: &mut Dice) {
        let at = |i| word(&self.memory, MONEY + i);
        let mut guard = self.mutex.lock_within(LONG).unwrap();
        if guard.owner_died() {
            if at(5).peek() != 0 {
                at(0).put(at(3).peek());
                at(1).put(at(4).peek());
                at(5).put(0);
            }
            at(2).put(0);
            guard.mend();
        }
        assert_eq!(at(2).swap(1), 0, "another process is inside");
        let (a, b) = (at(0).peek(), at(1).peek());
        assert_eq!(a + b, TOTAL);
        at(3).put(a);
        at(4).put(b);
        at(5).set(1);
        let amount = dice.below(a + 1);
        at(0).put(b + amount);
        at(1).set(a - amount);
        at(5).set(0);
        assert_eq!(at(2).swap(0), 1, "another process was inside");
    }

    fn write(&self) {
        let at = |i| word(&self.memory, PAIR + i);
        let mut guard = self.rwlock.write_within(LONG).unwrap();
        if guard.owner_died() {
            at(1).put(at(0).peek());
            guard.mend();
        }
        assert_eq!(at(0).peek(), at(1).peek());
        at(0).bump(1);
        at(1).bump(1);
    }

    fn read(&self) {
        let at = |i| word(&self.memory, PAIR + i);
        match self.rwlock.read_within(LONG) {
            Ok(_guard) => assert_eq!(at(0).peek(), at(1).peek()),
            Err(Error::OwnerDied) => self.write(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn use_locks(told: &Told) {
    let locks = Locks::open(told);
    let me: u64 = told.args[0].parse().unwrap();
    let mut dice = Dice(u64::from(std::process::id()));
    println!("ready");
    while word(&locks.memory, STOP).peek() == 0 {
        locks.transfer(&mut dice);
        match dice.below(4) {
            0 => locks.write(),
            _ => locks.read(),
        }
        word(&locks.memory, DONE + me).bump(1);
    }
}

fn barrier_of(told: &Told) -> Parameters {
    let waiting = [Waiting::Spin, Waiting::Block, Waiting::Hybrid][told.args[1].parse::<usize>().unwrap()];
    let algorithm = [Algorithm::Central, Algorithm::Scaling][told.args[2].parse::<usize>().unwrap()];
    Parameters { parties: WORKERS, waiting, algorithm }
}

fn use_barrier(told: &Told) {
    let parameters = barrier_of(told);
    let memory = piece(&told.member, told.at, OBJECTS + parameters.bytes());
    let part = memory.part("test", OBJECTS, parameters.bytes()).unwrap();
    let barrier = Barrier::open(&told.member, &part, parameters).unwrap();
    let me: u64 = told.args[0].parse().unwrap();
    println!("ready");
    while word(&memory, STOP).peek() == 0 {
        let mut seat = match barrier.join() {
            Ok(seat) => seat,
            Err(Error::Broken { .. } | Error::Full { .. }) => {
                match barrier.reset() {
                    Ok(()) => {}
                    Err(Error::InUse { .. }) => std::thread::sleep(Duration::from_millis(1)),
                    Err(error) => panic!("{error}"),
                }
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        for round in 1.. {
            word(&memory, ROUND + u64::from(seat.index())).put(round);
            match seat.wait_within(LONG) {
                Ok(_) => {}
                Err(Error::Broken { .. }) => break,
                Err(error) => panic!("{error}"),
            }
            for other in 0..u64::from(WORKERS) {
                let there = word(&memory, ROUND + other).peek();
                assert!(there == round || there == round + 1, "{there} in round {round}");
            }
            word(&memory, DONE + me).bump(1);
        }
        assert!(matches!(seat.wait(), Err(Error::Broken { .. })), "once broken, broken for good");
    }
}

#[test]
#[ignore = "the other process of the tests here"]
fn child() {
    let Some(told) = told() else { return };
    match told.role.as_str() {
        "locks" => use_locks(&told),
        "barrier" => use_barrier(&told),
        role => panic!("no role {role}"),
    }
}

fn workers(start: impl Fn(u32) -> Other) -> Vec<Other> {
    let mut workers: Vec<_> = (0..WORKERS).map(start).collect();
    for worker in &mut workers {
        worker.await_line("ready");
    }
    workers
}

/// Waits until each worker has made progress.
fn await_progress(memory: &Section, workers: &mut [Other]) {
    let begun = Instant::now();
    let done = || (0..u64::from(WORKERS)).map(|i| word(memory, DONE + i).peek()).collect::<Vec<_>>();
    let before = done();
    while done().iter().zip(&before).any(|(now, before)| now == before) {
        for worker in &mut *workers {
            assert!(worker.child.try_wait().unwrap().is_none(), "a worker ended by itself");
        }
        assert!(begun.elapsed() < LONG, "a hang: {before:?}, {:?}", done());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Kills workers at random moments, and replaces them.
fn kill_some(memory: &Section, workers: &mut [Other], kills: u32, start: impl Fn(u32) -> Other) {
    let mut dice = Dice(5);
    for kill in 0..kills {
        std::thread::sleep(Duration::from_micros(dice.below(8000)));
        let victim = u32::try_from(dice.below(WORKERS.into())).unwrap();
        let slot = &mut workers[victim as usize];
        assert!(slot.child.try_wait().unwrap().is_none(), "a worker ended by itself");
        slot.kill();
        *slot = start(victim);
        slot.await_line("ready");
        if kill % 16 == 0 {
            await_progress(memory, workers);
        }
    }
    await_progress(memory, workers);
}

fn end(workers: Vec<Other>) {
    for mut worker in workers {
        assert!(worker.child.wait().unwrap().success());
    }
}

#[test]
fn locks_outlive_their_users() {
    let world = World::new();
    let (at, memory) = world.piece(Locks::bytes());
    word(&memory, MONEY).put(TOTAL);
    let start = |slot: u32| world.other("locks", at, &slot.to_string());
    let mut all = workers(start);
    kill_some(&memory, &mut all, KILLS, start);
    word(&memory, STOP).put(1);
    end(all);
    assert_eq!(word(&memory, MONEY).peek() + word(&memory, MONEY + 1).peek(), TOTAL);
    assert_eq!(word(&memory, PAIR).peek(), word(&memory, PAIR + 1).peek());
}

#[test]
fn barriers_break_and_are_made_new() {
    let world = World::new();
    for (waiting, algorithm) in [(0, 1), (1, 0), (2, 0), (2, 1)] {
        let waiting_as = [Waiting::Spin, Waiting::Block, Waiting::Hybrid][waiting];
        let algorithm_as = [Algorithm::Central, Algorithm::Scaling][algorithm];
        let parameters = Parameters { parties: WORKERS, waiting: waiting_as, algorithm: algorithm_as };
        let (at, memory) = world.piece(OBJECTS + parameters.bytes());
        let start = |slot: u32| world.other("barrier", at, &format!("{slot} {waiting} {algorithm}"));
        let mut all = workers(start);
        kill_some(&memory, &mut all, KILLS / 4, start);
        word(&memory, STOP).put(1);
        let part = memory.part("test", OBJECTS, parameters.bytes()).unwrap();
        let barrier = Barrier::open(&world.member, &part, parameters).unwrap();
        // A death ends the round for all.
        all.pop().unwrap().kill();
        end(all);
        assert!(barrier.is_broken());
    }
}
