//! Mutex, condition variable, semaphore, reader-writer lock and once: between threads, between processes, with deaths, and
//! with garbage in their memory.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Dice, LONG, TOLD, World, piece, read_line, told};
use isthmus_region::Section;
use isthmus_region::member::Member;
use isthmus_region::sync::Word;
use isthmus_sync::once::Begun;
use isthmus_sync::{Condvar, Error, Mutex, Once, RwLock, Semaphore, rwlock};

const MOMENT: Duration = Duration::from_millis(5);
/// Lines of the reader-writer lock here.
const PROCESSES: u32 = 6;

/// All of the objects, and two words that belong together, in one piece of memory.
struct Objects {
    mutex: Mutex,
    condvar: Condvar,
    semaphore: Semaphore,
    once: Once,
    rwlock: RwLock,
    data: Section,
}

const DATA: u64 = 4 * 64;
const RWLOCK: u64 = DATA + 64;

impl Objects {
    fn bytes() -> u64 {
        RWLOCK + rwlock::bytes(PROCESSES)
    }

    fn open(member: &Arc<Member>, section: &Section) -> Self {
        let part = |at, bytes| section.part("test", at, bytes).unwrap();
        Self {
            mutex: Mutex::open(member, &part(0, 64)).unwrap(),
            condvar: Condvar::open(member, &part(64, 64)).unwrap(),
            semaphore: Semaphore::open(member, &part(128, 64), 0).unwrap(),
            once: Once::open(member, &part(192, 64)).unwrap(),
            rwlock: RwLock::open(member, &part(RWLOCK, rwlock::bytes(PROCESSES)), PROCESSES).unwrap(),
            data: part(DATA, 64),
        }
    }

    fn word(&self, index: u64) -> &Word {
        self.data.word("test", index * 8).unwrap()
    }

    /// Adds one to both words, without an atomic instruction.
    fn add_one(&self) {
        self.word(0).bump(1);
        self.word(1).bump(1);
    }

    fn sum(&self) -> (u64, u64) {
        (self.word(0).peek(), self.word(1).peek())
    }
}

fn world() -> (World, u64, Objects) {
    let world = World::new();
    let (at, section) = world.piece(Objects::bytes());
    let objects = Objects::open(&world.member, &section);
    (world, at, objects)
}

#[test]
fn a_mutex_lets_one_at_a_time_in() {
    let (_world, _, objects) = world();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for i in 0..2000 {
                    let guard = match i % 3 {
                        0 => objects.mutex.lock_within(LONG).unwrap(),
                        1 => objects.mutex.lock().unwrap(),
                        _ => match objects.mutex.try_lock() {
                            Ok(guard) => guard,
                            Err(_) => objects.mutex.lock().unwrap(),
                        },
                    };
                    assert!(!guard.owner_died());
                    objects.add_one();
                }
            });
        }
    });
    assert_eq!(objects.sum(), (8000, 8000));
}

#[test]
fn a_mutex_knows_its_owner() {
    let (_world, _, objects) = world();
    let mutex = &objects.mutex;
    assert!(matches!(mutex.unlock(), Err(Error::NotOwner)));
    mutex.lock().unwrap().keep();
    assert!(matches!(mutex.lock(), Err(Error::Deadlock)));
    assert!(matches!(mutex.try_lock(), Err(Error::WouldBlock)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(matches!(mutex.unlock(), Err(Error::NotOwner)));
            assert!(matches!(mutex.try_lock(), Err(Error::WouldBlock)));
            assert!(matches!(mutex.lock_within(MOMENT), Err(Error::TimedOut)));
        });
    });
    mutex.unlock().unwrap();
    assert!(matches!(mutex.unlock(), Err(Error::NotOwner)));
    // Dropping a guard whose lock was given back already takes the lock from no other owner.
    let guard = mutex.lock().unwrap();
    mutex.unlock().unwrap();
    std::thread::scope(|scope| scope.spawn(|| mutex.lock().unwrap().keep()).join().unwrap());
    drop(guard);
    assert!(matches!(mutex.try_lock(), Err(Error::WouldBlock)));
}

#[test]
fn a_waiter_gets_a_mutex_that_another_takes_again_at_once() {
    let (_world, _, objects) = world();
    let done = Word::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Gives the mutex back and takes it again at once.
            while done.peek() == 0 {
                let _guard = objects.mutex.lock().unwrap();
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        std::thread::sleep(MOMENT);
        for _ in 0..10 {
            drop(objects.mutex.lock_within(LONG).unwrap());
        }
        done.put(1);
    });
}

#[test]
fn a_mutex_kept_for_a_waiter_that_never_comes_is_free_again() {
    let (world, at, objects) = world();
    let section = piece(&world.member, at, 64);
    // The heir word of a waiter that was stopped, or garbage that looks like one.
    section.word("test", 4 * 8).unwrap().set(world.member.party().word());
    assert!(matches!(objects.mutex.try_lock(), Err(Error::WouldBlock)));
    drop(objects.mutex.lock_within(LONG).unwrap());
    drop(objects.mutex.try_lock().unwrap());
}

#[test]
fn waits_for_a_condition_end_by_notification_or_in_time() {
    let (_world, _, objects) = world();
    let begun = Instant::now();
    let guard = objects.mutex.lock().unwrap();
    let (guard, notified) = objects.condvar.wait_within(guard, MOMENT).unwrap();
    assert!(!notified && begun.elapsed() >= MOMENT);
    drop(guard);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let mut guard = objects.mutex.lock().unwrap();
                    while objects.word(2).peek() == 0 {
                        guard = objects.condvar.wait(guard).unwrap();
                    }
                    objects.word(2).put(objects.word(2).peek() - 1);
                }
            });
        }
        for i in 0..300 {
            let guard = objects.mutex.lock().unwrap();
            objects.word(2).bump(1);
            drop(guard);
            match i % 2 {
                0 => objects.condvar.notify_one(),
                _ => objects.condvar.notify_all(),
            }
        }
    });
    assert_eq!(objects.word(2).peek(), 0);
}

#[test]
fn a_semaphore_counts() {
    let (world, _, objects) = world();
    let semaphore = &objects.semaphore;
    assert!(matches!(semaphore.try_wait(), Err(Error::WouldBlock)));
    assert!(matches!(semaphore.wait_within(MOMENT), Err(Error::TimedOut)));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..500).for_each(|_| semaphore.wait_within(LONG).unwrap()));
        }
        (0..1500).for_each(|_| semaphore.post().unwrap());
    });
    assert_eq!(semaphore.value().unwrap(), 0);
    let (_, section) = world.piece(64);
    let full = Semaphore::open(&world.member, &section, isthmus_sync::semaphore::MOST).unwrap();
    assert!(matches!(full.post(), Err(Error::Overflow { .. })));
    full.try_wait().unwrap();
    full.post().unwrap();
    let again = Semaphore::open(&world.member, &section, 5).unwrap();
    assert_eq!(again.value().unwrap(), isthmus_sync::semaphore::MOST, "the first one's value counts");
    section.word("test", 0).unwrap().set(77);
    assert!(matches!(full.wait(), Err(Error::Corrupt { value: 77, .. })));
    assert!(matches!(full.post(), Err(Error::Corrupt { .. })));
}

#[test]
fn readers_share_and_writers_do_not() {
    let (world, _, objects) = world();
    let lock = &objects.rwlock;
    let (first, second) = (lock.read().unwrap(), lock.try_read().unwrap());
    assert!(matches!(lock.try_write(), Err(Error::WouldBlock)));
    assert!(matches!(lock.write_within(MOMENT), Err(Error::TimedOut)));
    drop((first, second));
    let writer = lock.write().unwrap();
    assert!(matches!(lock.read(), Err(Error::Deadlock)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(matches!(lock.try_read(), Err(Error::WouldBlock)));
            assert!(matches!(lock.read_within(MOMENT), Err(Error::TimedOut)));
            assert!(matches!(lock.try_write(), Err(Error::WouldBlock)));
        });
    });
    drop(writer);
    std::thread::scope(|scope| {
        for i in 0..4 {
            let objects = &objects;
            scope.spawn(move || {
                for j in 0..1000 {
                    if (i + j) % 4 == 0 {
                        let _guard = objects.rwlock.write().unwrap();
                        objects.add_one();
                    } else {
                        let _guard = objects.rwlock.read().unwrap();
                        let (a, b) = objects.sum();
                        assert_eq!(a, b);
                    }
                }
            });
        }
    });
    assert_eq!(objects.sum(), (1000, 1000));
    // With guards that are kept.
    assert!(matches!(lock.unlock(), Err(Error::NotOwner)));
    lock.read().unwrap().keep();
    assert!(matches!(lock.try_write(), Err(Error::WouldBlock)));
    lock.unlock().unwrap();
    lock.write().unwrap().keep();
    lock.kept().unwrap().keep();
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(matches!(lock.kept(), Err(Error::NotOwner))));
        scope.spawn(|| assert!(matches!(lock.unlock(), Err(Error::NotOwner))));
    });
    lock.unlock().unwrap();
    assert!(matches!(lock.kept(), Err(Error::NotOwner)));
    // There are as many handles as lines, and dropping one frees a line.
    let (_, section) = world.piece(rwlock::bytes(2));
    let open = || RwLock::open(&world.member, &section, 2);
    let (first, second) = (open().unwrap(), open().unwrap());
    assert!(matches!(open(), Err(Error::Full { places: 2, .. })));
    // A wrong number leaves the others' lines as they are.
    let reading = first.read().unwrap();
    assert!(matches!(RwLock::open(&world.member, &section, 1), Err(Error::Mismatch { .. })));
    assert!(matches!(second.try_write(), Err(Error::WouldBlock)));
    drop(reading);
    drop(first);
    open().unwrap();
}

#[test]
fn something_is_made_once() {
    let (_world, _, objects) = world();
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        objects.once.call(|_| panic!("as planned"));
    }));
    assert!(refused.is_err() && !objects.once.is_done());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                objects.once.call(|taken_over| {
                    assert!(!taken_over);
                    std::thread::sleep(MOMENT);
                    objects.add_one();
                });
                assert_eq!(objects.sum(), (1, 1));
            });
        }
    });
    assert!(matches!(objects.once.begin(None).unwrap(), Begun::Done));
}

#[test]
#[ignore = "the other process of the tests here"]
fn child() {
    let Some(told) = told() else { return };
    let section = piece(&told.member, told.at, Objects::bytes());
    let objects = Objects::open(&told.member, &section);
    match told.role.as_str() {
        "own mutex" => objects.mutex.lock().unwrap().keep(),
        "wait for mutex" => {
            println!("ready");
            let guard = objects.mutex.lock();
            return println!("got {:?}", guard.map(|g| g.owner_died()).map_err(|e| e.to_string()));
        }
        "write" => std::mem::forget(objects.rwlock.write().unwrap()),
        "wait for readers" => {
            println!("ready");
            let _guard = objects.rwlock.write().unwrap();
            panic!("the reader is still there");
        }
        "read" => std::mem::forget(objects.rwlock.read().unwrap()),
        "make" => std::mem::forget(objects.once.begin(None).unwrap()),
        "wait for notification" => {
            println!("ready");
            let guard = objects.mutex.lock().unwrap();
            objects.word(3).put(1);
            drop(objects.condvar.wait(guard).unwrap());
        }
        role => panic!("no role {role}"),
    }
    println!("ready");
    read_line();
}

/// Starts another process, waits until it has done what its role says, and kills it.
fn killed(world: &World, role: &str, at: u64) {
    let mut other = world.other(role, at, "");
    other.await_line("ready");
    other.kill();
}

#[test]
fn the_next_owner_learns_of_a_death_and_mends_or_loses_the_mutex() {
    let (world, at, objects) = world();
    killed(&world, "own mutex", at);
    let mut guard = objects.mutex.lock_within(TOLD).unwrap();
    assert!(guard.owner_died());
    guard.mend();
    assert!(!guard.owner_died());
    drop(guard);
    assert!(!objects.mutex.lock().unwrap().owner_died());
    // While others wait: one of them learns of the death, and the other that the data was not mended.
    let mut owner = world.other("own mutex", at, "");
    owner.await_line("ready");
    let mut waiters: Vec<_> = (0..2).map(|_| world.other("wait for mutex", at, "")).collect();
    waiters.iter_mut().for_each(|w| drop(w.await_line("ready")));
    owner.kill();
    let begun = Instant::now();
    let mut got: Vec<_> = waiters.iter_mut().map(|w| w.await_line("got ")).collect();
    assert!(begun.elapsed() < TOLD, "told only after {:?}", begun.elapsed());
    got.sort();
    assert!(got[0].contains("cannot be used") && got[1] == "Ok(true)", "{got:?}");
    for _ in 0..2 {
        assert!(matches!(objects.mutex.lock(), Err(Error::NotRecoverable)));
        assert!(matches!(objects.mutex.try_lock(), Err(Error::NotRecoverable)));
    }
}

#[test]
fn try_lock_finds_a_dead_owner_too() {
    let (world, at, objects) = world();
    killed(&world, "own mutex", at);
    let begun = Instant::now();
    let guard = loop {
        match objects.mutex.try_lock() {
            Ok(guard) => break guard,
            Err(error) => assert!(matches!(error, Error::WouldBlock) && begun.elapsed() < TOLD),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(guard.owner_died());
}

#[test]
fn a_dead_reader_holds_up_no_writer() {
    let (world, at, objects) = world();
    for _ in 0..2 * PROCESSES {
        // Once all lines have been used, each takes that of a dead process.
        killed(&world, "read", at);
    }
    let mut other = world.other("read", at, "");
    other.await_line("ready");
    assert!(matches!(objects.rwlock.write_within(MOMENT), Err(Error::TimedOut)));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| objects.rwlock.write_within(TOLD + MOMENT).unwrap().owner_died());
        std::thread::sleep(MOMENT);
        other.kill();
        assert!(!writer.join().unwrap(), "a dead reader leaves the data sound");
    });
    drop(objects.rwlock.read().unwrap());
}

#[test]
fn a_reader_that_leaves_wakes_the_writer() {
    let (_world, _at, objects) = world();
    // The writer sleeps for 50 ms at a time, so without a bell it would go on some 35 ms later. A busy machine makes that
    // longer, never shorter, so the quickest time counts.
    let quickest = (0..9).map(|_| {
        let guard = objects.rwlock.read().unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                drop(objects.rwlock.write_within(LONG).unwrap());
                Instant::now()
            });
            std::thread::sleep(Duration::from_millis(15));
            let left = Instant::now();
            drop(guard);
            writer.join().unwrap().saturating_duration_since(left)
        })
    });
    let quickest = quickest.min().unwrap();
    assert!(quickest < Duration::from_millis(20), "woken only after {quickest:?}");
}

#[test]
fn readers_and_the_next_writer_learn_of_a_dead_writer() {
    let (world, at, objects) = world();
    killed(&world, "write", at);
    for _ in 0..2 {
        assert!(matches!(objects.rwlock.read_within(TOLD), Err(Error::OwnerDied)));
    }
    let mut guard = objects.rwlock.write_within(TOLD).unwrap();
    assert!(guard.owner_died());
    guard.mend();
    drop(guard);
    drop(objects.rwlock.read().unwrap());
    killed(&world, "write", at);
    assert!(objects.rwlock.write_within(TOLD).unwrap().owner_died());
    assert!(matches!(objects.rwlock.read(), Err(Error::NotRecoverable)));
    assert!(matches!(objects.rwlock.write(), Err(Error::NotRecoverable)));
}

#[test]
fn a_writer_that_dies_while_it_waits_for_readers_leaves_the_data_sound() {
    let (world, at, objects) = world();
    for reads in [true, false] {
        let guard = objects.rwlock.read().unwrap();
        let mut other = world.other("wait for readers", at, "");
        other.await_line("ready");
        std::thread::scope(|scope| {
            // It is there once a reader finds it.
            while objects.rwlock.try_read().is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let next = scope.spawn(|| match reads {
                true => objects.rwlock.read_within(LONG).map(|_guard| false),
                false => objects.rwlock.write_within(LONG).map(|guard| guard.owner_died()),
            });
            std::thread::sleep(MOMENT);
            other.kill();
            if reads {
                assert!(matches!(next.join().unwrap(), Ok(false)), "beside the reader that is there");
                drop(guard);
            } else {
                drop(guard);
                assert!(matches!(next.join().unwrap(), Ok(false)));
            }
        });
        assert!(!objects.rwlock.write().unwrap().owner_died());
    }
}

#[test]
fn what_a_dead_process_was_making_is_made_by_the_next() {
    let (world, at, objects) = world();
    killed(&world, "make", at);
    let mut told = None;
    objects.once.call(|taken_over| told = Some(taken_over));
    assert_eq!(told, Some(true));
    assert!(objects.once.is_done());
}

#[test]
fn a_waiter_that_dies_takes_no_notification_with_it() {
    let (world, at, objects) = world();
    let mut other = world.other("wait for notification", at, "");
    other.await_line("ready");
    while objects.word(3).peek() == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut guard = objects.mutex.lock().unwrap();
            objects.word(4).put(1);
            while objects.word(2).peek() == 0 {
                guard = objects.condvar.wait(guard).unwrap();
            }
        });
        while objects.word(4).peek() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let guard = objects.mutex.lock().unwrap();
        other.kill();
        objects.word(2).put(1);
        drop(guard);
        objects.condvar.notify_one();
    });
}

#[test]
fn garbage_in_any_word_is_an_error_or_harmless_and_never_a_hang() {
    let world = World::new();
    let mut dice = Dice(11);
    for word in (0..Objects::bytes() / 8).filter(|word| word * 8 / 64 != DATA / 64) {
        let (at, section) = world.piece(Objects::bytes());
        let objects = Objects::open(&world.member, &section);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                // Each of these ends, with any result: a lock whose words name a living process counts as held, and is
                // waited for.
                scope.spawn(|| {
                    for _ in 0..20 {
                        let _ = objects.mutex.lock_within(LONG).map(|mut guard| guard.mend());
                        let _ = objects.rwlock.write_within(LONG).map(|mut guard| guard.mend());
                        let _ = objects.rwlock.read_within(LONG);
                        let _ = objects.semaphore.post();
                        let _ = objects.semaphore.wait_within(MOMENT);
                        if let Ok(guard) = objects.mutex.lock_within(LONG) {
                            let _ = objects.condvar.wait_within(guard, Duration::from_micros(10));
                        }
                        objects.condvar.notify_all();
                        objects.once.call(|_| ());
                    }
                });
            }
            // No value that could be right: a possible count of readers, or the name of a living process.
            let value = [u64::MAX, 1 << 63, 12345 << 32, dice.below(1 << 31) << 24]
                [usize::try_from(dice.below(4)).unwrap()];
            section.word("test", word * 8).unwrap().set(value);
        });
        assert!(begun.elapsed() < LONG, "word {word}");
        drop(objects);
        world.member.release(at, Objects::bytes());
    }
}
