//! Minitransactions between threads and between processes: outcomes, isolation, errors, damage.

#![allow(clippy::disallowed_types)] // orderings of the test's own threads

mod mini;
use mini::*;

use std::sync::atomic::{AtomicBool, Ordering};

use isthmus_sync::minitransaction::{
    Committer, Error, Exchange, Found, Minitransaction, Node, Outcome, SegmentId, Shape, Space,
};

const SMALL: Shape = Shape { slots: 8, locks: 64, log_bytes: 1024 };

#[test]
fn all_kinds_of_items_together() {
    let world = World::new(SMALL);
    let space = world.space();
    let mut own = space.committer().unwrap();
    let mut t = Minitransaction::new();
    assert_eq!(own.commit(&mut t).unwrap(), Outcome::Committed, "nothing is always so");
    // Unaligned, across lines, overlapping: reads see the bytes from before, the later write stays.
    let before = t.read(N, S, 60, 10);
    t.compare(N, S, 61, &[0; 100]);
    t.write(N, S, 60, &[1, 2, 3, 4, 5, 6, 7, 8]);
    t.write(N, S, 63, &[9, 9]);
    t.write(N, S, 1000, b"far away");
    t.compare(N, S, 3, &[]);
    assert_eq!(own.commit(&mut t).unwrap(), Outcome::Committed);
    assert_eq!(t.bytes(before), Some(&[0; 10][..]));
    assert_eq!(own.commit(&mut t).unwrap(), Outcome::CompareFailed, "the compares no longer hold");
    assert_eq!(t.bytes(before), Some(&[1, 2, 3, 9, 9, 6, 7, 8, 0, 0][..]), "the reads are filled");
    t.clear();
    let far = t.read(N, S, 1000, 8);
    let word = t.read(N, S, 1000, 8);
    assert_eq!(own.commit(&mut t).unwrap(), Outcome::Committed);
    assert_eq!(t.bytes(far), Some(&b"far away"[..]));
    assert_eq!(t.bytes(word), t.bytes(far));
    world.assert_unlocked();
}

#[test]
fn one_word_and_parts_of_it() {
    let world = World::new(SMALL);
    let space = world.space();
    let mut own = space.committer().unwrap();
    assert_eq!(exchange(&mut own, 8, 0, 0x1122_3344_5566_7788), Outcome::Committed);
    assert_eq!(exchange(&mut own, 8, 1, 2), Outcome::CompareFailed);
    let mut t = Minitransaction::new();
    t.compare(N, S, 12, &0x1122_3344_u32.to_le_bytes());
    t.write(N, S, 12, &7_u32.to_le_bytes());
    let read = t.read(N, S, 10, 4);
    assert_eq!(own.commit(&mut t).unwrap(), Outcome::Committed);
    assert_eq!(t.number(read), Some(0x3344_5566));
    assert_eq!(world.word(8), 0x0000_0007_5566_7788);
    assert_eq!(own.commit(&mut t).unwrap(), Outcome::CompareFailed);
    assert_eq!(t.number(read), Some(0x0007_5566));
    assert_eq!(world.word(0) | world.word(16), 0, "the neighbours are as they were");
}

#[test]
fn words_that_were_found_once() {
    let world = World::new(SMALL);
    let space = world.space();
    let mut own = space.committer().unwrap();
    let place = space.place(N, S, 640).unwrap();
    assert_eq!(own.exchange(&place, 0, 5).unwrap(), Exchange::Committed);
    assert_eq!(own.exchange(&place, 0, 6).unwrap(), Exchange::CompareFailed(5));
    assert_eq!(own.load(&place).unwrap(), Some(5));
    assert_eq!(load(&mut own, 640), 5);
    // With the space's own committers.
    assert_eq!(space.load(&place).unwrap(), Some(5));
    assert_eq!(space.exchange(&place, 4, 6).unwrap(), Exchange::CompareFailed(5));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let mut old = space.load(&place).unwrap().unwrap_or_default();
                    while let Exchange::CompareFailed(other) = space.exchange(&place, old, old + 1).unwrap() {
                        old = other;
                    }
                }
            });
        }
    });
    assert_eq!(space.load(&place).unwrap(), Some(605));
    assert_eq!(own.exchange(&place, 605, 5).unwrap(), Exchange::Committed);
    for offset in [SEGMENT, SEGMENT - 4, 4, u64::MAX, u64::MAX - 7] {
        assert!(matches!(space.place(N, S, offset), Err(Error::OutOfBounds { .. })), "{offset}");
    }
    assert!(matches!(space.place(N, SegmentId(9), 0), Err(Error::NoSegment { .. })));
    assert!(matches!(space.place(Node(9), S, 0), Err(Error::NotReachable { .. })));
    space.unregister(N, S);
    assert_eq!(own.exchange(&place, 5, 6).unwrap(), Exchange::Committed, "the memory is still there");
    assert!(matches!(space.place(N, S, 640), Err(Error::NoSegment { .. })));
}

#[test]
fn one_transaction_works_on_several_nodes_of_this_host() {
    let world = World::new(SMALL);
    let space = world.space();
    let half = |i| world.segment().part("half", i * SEGMENT / 2, SEGMENT / 2).unwrap();
    space.register(Node(5), S, &half(1)).unwrap();
    let mut own = space.committer().unwrap();
    let mut t = Minitransaction::new();
    t.write(N, S, 0, &[1]);
    t.write(Node(5), S, 0, &[2]);
    assert_eq!(own.commit(&mut t).unwrap(), Outcome::Committed);
    assert_eq!((world.word(0), world.word(SEGMENT / 2)), (1, 2));
    t.write(Node(6), S, 0, &[3]);
    let error = own.commit(&mut t).unwrap_err();
    assert!(matches!(error, Error::NotReachable { node: Node(6) }), "{error}");
    assert!(error.to_string().contains("node 6 is not reachable"), "{error}");
    t.clear();
    t.write(Node(5), SegmentId(77), 0, &[3]);
    assert!(matches!(own.commit(&mut t), Err(Error::NoSegment { .. })));
    // A finder makes both of them known from then on.
    let found = half(0);
    space.set_finder(move |node, segment| match node == Node(5) && segment == SegmentId(77) {
        true => Found::Here(found.clone()),
        false => Found::Unknown,
    });
    assert_eq!(own.commit(&mut t).unwrap(), Outcome::Committed);
    assert_eq!(world.word(0), 3);
    assert!(space.unregister(Node(5), S) && !space.unregister(Node(5), S));
    t.clear();
    t.write(Node(5), S, 0, &[3]);
    assert!(matches!(own.commit(&mut t), Err(Error::NoSegment { .. })));
    world.assert_unlocked();
}

#[test]
fn impossible_items_are_errors_and_change_nothing() {
    let world = World::new(SMALL);
    let space = world.space();
    let mut own = space.committer().unwrap();
    let bad: [fn(&mut Minitransaction); 7] = [
        |t| t.write(N, S, SEGMENT, &[1]),
        |t| t.write(N, S, SEGMENT - 4, &[1; 8]),
        |t| t.write(N, S, u64::MAX, &[1; 8]),
        |t| t.write(N, S, u64::MAX - 7, &[1; 8]),
        |t| t.write(N, S, u64::MAX - 7, &[]),
        |t| _ = t.read(N, S, SEGMENT - 1, 2),
        |t| t.compare(N, S, 1 << 63, &[1; 70]),
    ];
    for (i, item) in bad.into_iter().enumerate() {
        for with_other in [false, true] {
            let mut t = Minitransaction::new();
            if with_other {
                t.write(N, S, 0, &[1]);
            }
            item(&mut t);
            assert!(matches!(own.commit(&mut t), Err(Error::OutOfBounds { .. })), "{i}");
        }
    }
    let mut t = Minitransaction::new();
    t.write(N, S, 0, &[1; 1000]);
    let error = own.commit(&mut t).unwrap_err();
    assert!(matches!(error, Error::TooLarge { needed: 1160, limit: 1024, locks: 16 }), "{error:?}");
    assert!(world.member.section().part("s", 0, 8).is_ok());
    let part = |at, len| world.segment().part("test", at, len).unwrap();
    assert!(matches!(space.register(N, SegmentId(2), &part(4, 8)), Err(Error::BadSegment { .. })));
    assert!(matches!(space.register(N, SegmentId(2), &part(0, 12)), Err(Error::BadSegment { .. })));
    assert!(matches!(space.register(N, S, &part(0, 8)), Err(Error::Registered { .. })));
    let other = Shape { locks: 32, ..SMALL };
    assert!(matches!(Space::open(&world.member, &world.machinery(), other), Err(Error::OtherShape { .. })));
    let larger = Shape { locks: 128, ..SMALL };
    assert!(matches!(Space::open(&world.member, &world.machinery(), larger), Err(Error::TooSmall { .. })));
    let none = Shape { locks: 0, ..SMALL };
    assert!(matches!(Space::open(&world.member, &world.machinery(), none), Err(Error::BadShape { .. })));
    let mut all: Vec<_> = (0..7).map(|_| space.committer().unwrap()).collect();
    assert!(matches!(space.committer(), Err(Error::NoSlot { slots: 8 })));
    let mut look = Minitransaction::new();
    look.read(N, S, 0, 8);
    assert!(matches!(space.commit(&mut look), Err(Error::NoSlot { slots: 8 })));
    all.pop();
    // Each of many threads, one after the other, has the committer that the first has made.
    for _ in 0..40 {
        let in_a_thread = || {
            let mut look = Minitransaction::new();
            look.read(N, S, 0, 8);
            space.commit(&mut look).unwrap()
        };
        assert_eq!(std::thread::scope(|s| s.spawn(in_a_thread).join().unwrap()), Outcome::Committed);
    }
    assert!((0..SEGMENT / 8).all(|i| world.word(i * 8) == 0));
    world.assert_unlocked();
}

#[test]
fn a_lock_that_is_held_for_too_long_fails_the_commit() {
    let world = World::new(SMALL);
    let space = world.space();
    let mut own = space.committer().unwrap();
    let other = space.committer().unwrap();
    // What the words are while the other committer holds all locks, in its first transaction.
    let [_, state, ..] = world.slot(1);
    let machinery = world.machinery();
    machinery.word("state", state).unwrap().set((1 << 2) | 1);
    for lock in 0..64 {
        machinery.word("lock", 128 + lock * 64).unwrap().set((1 << 10) | 2);
    }
    for patience in [0, 20] {
        space.set_patience(std::time::Duration::from_millis(patience));
        let mut t = Minitransaction::new();
        let read = t.read(N, S, 0, 8);
        assert_eq!(own.commit(&mut t).unwrap(), Outcome::LockFailed);
        assert_eq!(t.bytes(read), None);
        t.write(N, S, 100, &[1]);
        assert_eq!(own.commit(&mut t).unwrap(), Outcome::LockFailed);
        assert_eq!(exchange(&mut own, 0, 0, 1), Outcome::LockFailed);
        let place = space.place(N, S, 0).unwrap();
        assert_eq!(own.load(&place).unwrap(), None);
        assert_eq!(own.exchange(&place, 0, 1).unwrap(), Exchange::LockFailed);
    }
    drop(other);
    assert_eq!(world.word(0), 0);
}

fn work(space: &Space, rounds: u64) {
    let mut own = space.committer().unwrap();
    let place = space.place(N, S, 0).unwrap();
    for i in 0..rounds {
        if i % 2 == 1 {
            add(&mut own, 0, 1);
        } else {
            let mut old = own.load(&place).unwrap().unwrap();
            while let Exchange::CompareFailed(other) = own.exchange(&place, old, old + 1).unwrap() {
                old = other;
            }
        }
        add(&mut own, 64 * (1 + i % 3), 1);
    }
}

/// Accounts, each in a line of its own: two amounts of 32 bits in a word.
const ACCOUNTS: u64 = 32;
const RICH: u64 = 1000;

fn account(i: u64) -> u64 {
    4096 + i % ACCOUNTS * 64
}

fn halves(word: u64) -> u64 {
    (word >> 32) + (word & 0xffff_ffff)
}

/// Moves amounts about, for ever: between accounts, and within one, which is a change of a single word.
fn transfer(space: &Space, seed: u64) {
    let mut own = space.committer().unwrap();
    let mut t = Minitransaction::new();
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    loop {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let (from, to) = (account(random >> 8), account(random >> 16));
        t.clear();
        if random.is_multiple_of(2) {
            let old = load(&mut own, from);
            let new = if old >> 32 > 0 { old - (1 << 32) + 1 } else { old.rotate_left(32) };
            exchange(&mut own, from, old, new);
        } else if from != to {
            let (a, b) = (t.read(N, S, from, 4), t.read(N, S, to, 4));
            if own.commit(&mut t).unwrap() != Outcome::Committed {
                continue;
            }
            let (a, b) = (t.number(a).unwrap(), t.number(b).unwrap());
            let amount = a.min(random >> 40 & 15);
            let bytes = |n: u64| u32::try_from(n).unwrap().to_le_bytes();
            t.clear();
            t.compare(N, S, from, &bytes(a));
            t.compare(N, S, to, &bytes(b));
            t.write(N, S, from, &bytes(a - amount));
            t.write(N, S, to, &bytes(b + amount));
            own.commit(&mut t).unwrap();
        }
    }
}

/// All accounts at one moment.
fn total(own: &mut Committer) -> Option<u64> {
    let mut t = Minitransaction::new();
    let reads: Vec<_> = (0..ACCOUNTS).map(|i| t.read(N, S, account(i), 8)).collect();
    let outcome = own.commit(&mut t).unwrap();
    (outcome == Outcome::Committed).then(|| reads.iter().map(|read| halves(t.number(*read).unwrap())).sum())
}

#[test]
fn the_bank_has_all_its_money_whichever_process_is_killed() {
    const KILLS: u32 = 300;
    let world = World::new(SMALL);
    (0..ACCOUNTS).for_each(|i| world.set(account(i), RICH));
    let space = world.space();
    let mut own = space.committer().unwrap();
    let start = |i| {
        let mut other = world.child(&format!("bank {i}"));
        other.await_line("ready");
        other
    };
    let mut others: Vec<_> = (0..3).map(start).collect();
    let begun = std::time::Instant::now();
    let mut random = 99_u64;
    let mut kills = 0;
    while kills < KILLS && begun.elapsed() < std::time::Duration::from_secs(15) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        std::thread::sleep(std::time::Duration::from_micros(random % 4000));
        others[kills as usize % 3].kill();
        // The death is not published yet.
        let looked = std::time::Instant::now();
        assert_eq!(
            total(&mut own).expect("no lock is held for long"),
            ACCOUNTS * RICH,
            "after {kills} kills"
        );
        assert!(looked.elapsed() < std::time::Duration::from_secs(5), "{:?}", looked.elapsed());
        kills += 1;
        others[kills as usize % 3] = start(kills);
    }
    others.iter_mut().for_each(Other::kill);
    assert!(kills > 20, "{kills} kills");
    // `include/isthmus.h` promises that deaths are seen within this time.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while (0..8)
        .filter(|slot| world.machinery().word("owner", world.slot(*slot)[0]).unwrap().get() != 0)
        .count()
        > 1
    {
        assert!(std::time::Instant::now() < deadline, "slots of dead processes stay taken");
        space.recover().unwrap();
    }
    world.assert_unlocked();
    assert_eq!(total(&mut own), Some(ACCOUNTS * RICH));
    println!("{kills} kills in {:?}", begun.elapsed());
}

#[test]
#[ignore = "the other process of the tests here"]
fn child() {
    let Ok(role) = std::env::var("ROLE") else { return };
    let space = open_in_child(SMALL);
    println!("ready");
    if let Some(seed) = role.strip_prefix("bank ") {
        transfer(&space, seed.parse::<u64>().unwrap() + 1);
    }
    std::io::stdin().read_line(&mut String::new()).unwrap();
    work(&space, 5000);
    println!("done");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn no_increment_is_lost_between_processes_and_threads() {
    let world = World::new(SMALL);
    let mut others: Vec<_> = (0..2).map(|_| world.child("adder")).collect();
    others.iter_mut().for_each(|o| drop(o.await_line("ready")));
    others.iter_mut().for_each(|o| o.say("go"));
    let space = world.space();
    std::thread::scope(|scope| {
        scope.spawn(|| work(&space, 5000));
        // The same words under locks, two at a time.
        scope.spawn(|| {
            let mut t = Minitransaction::new();
            for _ in 0..5000 {
                loop {
                    t.clear();
                    let (a, b) = (t.read(N, S, 0, 8), t.read(N, S, 64, 8));
                    assert_eq!(space.commit(&mut t).unwrap(), Outcome::Committed);
                    let (a, b) = (t.number(a).unwrap(), t.number(b).unwrap());
                    t.clear();
                    t.compare(N, S, 0, &a.to_le_bytes());
                    t.compare(N, S, 64, &b.to_le_bytes());
                    t.write(N, S, 0, &(a + 1).to_le_bytes());
                    t.write(N, S, 64, &(b + 1).to_le_bytes());
                    if space.commit(&mut t).unwrap() == Outcome::Committed {
                        break;
                    }
                }
            }
        });
    });
    others.iter_mut().for_each(|o| drop(o.await_line("done")));
    assert_eq!(world.word(0), 4 * 5000);
    assert_eq!(world.word(64) + world.word(128) + world.word(192), 4 * 5000);
    world.assert_unlocked();
}

/// Two words change together; a thread that reads one after the other sees the second at least as new as the first.
#[test]
fn reads_of_one_word_see_nothing_half_done() {
    let world = World::new(SMALL);
    let space = world.space();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut own = space.committer().unwrap();
            let mut t = Minitransaction::new();
            for i in 1..=20_000_u64 {
                t.clear();
                t.write(N, S, 0, &i.to_le_bytes());
                t.write(N, S, 4096, &i.to_le_bytes());
                assert_eq!(own.commit(&mut t).unwrap(), Outcome::Committed);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        for (first, second) in [(0, 4096), (4096, 0)] {
            let (space, is_over) = (&space, &is_over);
            scope.spawn(move || {
                let mut own = space.committer().unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    let a = load(&mut own, first);
                    let b = load(&mut own, second);
                    assert!(b >= a, "{b} was read after {a}");
                }
            });
        }
    });
}

#[test]
fn threads_find_committers_of_the_space() {
    let world = World::new(Shape { slots: 20, ..SMALL });
    let space = world.space();
    std::thread::scope(|scope| {
        for i in 0..20_u64 {
            let space = &space;
            scope.spawn(move || {
                let mut t = Minitransaction::new();
                t.write(N, S, i * 8, &i.to_le_bytes());
                (0..100).for_each(|_| assert_eq!(space.commit(&mut t).unwrap(), Outcome::Committed));
            });
        }
    });
    assert!((0..20).all(|i| world.word(i * 8) == i));
    let (machinery, owner) = (world.machinery(), |slot| world.slot(slot)[0]);
    drop(space);
    assert!(
        (0..20).all(|slot| machinery.word("owner", owner(slot)).unwrap().get() == 0),
        "all slots are free"
    );
}

/// Whatever the machinery holds, a commit ends with an outcome or an error and without a panic, and changes nothing outside of
/// machinery and segment.
#[test]
fn garbage_in_the_machinery_gives_errors() {
    let world = World::new(SMALL);
    let (space, machinery) = (world.space(), world.machinery());
    space.set_patience(std::time::Duration::from_millis(1));
    let mut random = 12345_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let (mut errors, mut outcomes) = (0, 0);
    let tokens = |r: u64| match r % 6 {
        0 => r,
        1 => r % 5000,
        2 => ((r % 8) << 10) | ((r >> 8) % 9),
        3 => u64::MAX,
        4 => world.member.party().word(),
        _ => 0,
    };
    for round in 0..400 {
        let mut own = space.committer();
        for word in 0..SMALL.bytes() / 8 {
            // Not the mark. The owner of the own slot is a process that lives.
            if word > 0 && (round % 3 == 0 || next() % 4 == 0) {
                let r = next();
                machinery.word("garbage", word * 8).unwrap().put(tokens(r));
            }
        }
        let mut t = Minitransaction::new();
        for done in [
            own.as_mut().map_or(Ok(Outcome::LockFailed), |own| own.commit(&mut t)),
            {
                t.write(N, S, next() % SEGMENT / 2, &[1; 8]);
                space.commit(&mut t)
            },
            {
                t.write(N, S, next() % SEGMENT / 2, &[1; 80]);
                t.read(N, S, next() % SEGMENT / 2, 100);
                space.commit(&mut t)
            },
            space.recover().map(|_| Outcome::Committed),
            space.committer().map(|_| Outcome::Committed),
        ] {
            match done {
                Ok(_) => outcomes += 1,
                Err(
                    Error::Corrupt { .. }
                    | Error::NoSlot { .. }
                    | Error::NoSegment { .. }
                    | Error::NotReachable { .. },
                ) => errors += 1,
                Err(other) => panic!("{other:?}"),
            }
        }
    }
    assert!(errors > 100 && outcomes > 100, "{errors} errors, {outcomes} outcomes");
}
