//! A process is killed at each step of a commit and of a recovery: the others find all of its writes or none, and go on.

#![allow(clippy::disallowed_types)] // orderings of the test's own threads

mod mini;
use mini::*;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use isthmus_region::member::Member;
use isthmus_region::objects::{Access, Kind, NewObject, Object};
use isthmus_sync::minitransaction::fault::{Step, arm, disarm};
use isthmus_sync::minitransaction::{Committer, Error, Found, Minitransaction, Outcome, Shape, Space};
use rustix::process::{Signal, getpid, kill_process};

const SHAPE: Shape = Shape { slots: 16, locks: 64, log_bytes: 1024 };
/// Words in three lines. [`ALONE`], the second, is also changed alone.
const WORDS: [u64; 3] = [0, 640, 1280];
const ALONE: u64 = 640;
/// The time within which deaths are seen, as `include/isthmus.h` promises; a recovery takes less.
const SOON: Duration = Duration::from_secs(5);

/// Adds one to all three words.
fn add_to_all(own: &mut Committer) {
    loop {
        let old = WORDS.map(|at| load(own, at));
        let mut t = Minitransaction::new();
        for (at, old) in WORDS.into_iter().zip(old) {
            t.compare(N, S, at, &old.to_le_bytes());
            t.write(N, S, at, &(old + 1).to_le_bytes());
        }
        if own.commit(&mut t).unwrap() == Outcome::Committed {
            return;
        }
    }
}

fn all_steps() -> impl Iterator<Item = Step> {
    Step::SEVERAL.into_iter().chain(Step::ONE).chain(Step::RECOVERY)
}

#[test]
#[ignore = "the other process of the tests here"]
fn child() {
    let Ok(role) = std::env::var("ROLE") else { return };
    let [work, step, passes] = role.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let at = all_steps().find(|s| format!("{s:?}") == step).unwrap();
    let space = open_in_child(SHAPE);
    let named = (work == "named").then(|| with_named(&space));
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    arm(at, passes.parse().unwrap(), |_| {
        kill_process(getpid(), Signal::KILL).unwrap();
    });
    match work {
        "several" => add_to_all(&mut space.committer().unwrap()),
        "one" => drop(add(&mut space.committer().unwrap(), ALONE, 1)),
        "named" => write_around_the_cut(&mut space.committer().unwrap()),
        // Repeated, since a death is published a moment after it happened.
        _ => while space.recover().unwrap() == 0 {},
    }
    disarm();
    drop(named);
    println!("survived");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Makes a process do `work` until it is killed at a step, or has done it; returns whether it was killed.
fn die(world: &World, work: &str, at: Step, passes: u32) -> bool {
    let mut other = world.child(&format!("{work} {at:?} {passes}"));
    other.await_line("ready");
    other.say("go");
    let is_dead = other.line("survived").is_none();
    other.kill();
    is_dead
}

/// Checks that survivors find all or nothing, and locks that they can take.
fn check(world: &World, told: &str, expected: Option<u64>) {
    let space = world.space();
    let begun = Instant::now();
    let mut own = space.committer().unwrap();
    // One change of a single word, then one of all three.
    add(&mut own, ALONE, 1);
    let mut t = Minitransaction::new();
    let reads = WORDS.map(|at| t.read(N, S, at, 8));
    assert_eq!(own.commit(&mut t).unwrap(), Outcome::Committed, "{told}");
    let [a, b, c] = reads.map(|read| t.number(read).unwrap());
    assert_eq!((a, c), (b - 1, b - 1), "all or nothing: {told}");
    if let Some(expected) = expected {
        assert_eq!(a, expected, "{told}");
    }
    add_to_all(&mut own);
    assert!(begun.elapsed() < SOON, "{told}");
    // The killed process holds nothing, and its slot is recovered.
    let deadline = Instant::now() + SOON;
    loop {
        space.recover().unwrap();
        let owners =
            (0..16).filter(|slot| world.machinery().word("owner", world.slot(*slot)[0]).unwrap().get() != 0);
        if owners.count() == 1 {
            break;
        }
        assert!(Instant::now() < deadline, "a slot of a dead process stays taken: {told}");
        std::thread::sleep(Duration::from_millis(2));
    }
    world.assert_unlocked();
}

/// Whether a commit that is killed at this step is completed.
fn is_decided(at: Step) -> bool {
    let place = |step| Step::SEVERAL.iter().position(|s| *s == step);
    place(at) >= place(Step::Committed)
}

#[test]
fn a_commit_that_is_killed_at_any_step_is_all_or_nothing() {
    for at in Step::SEVERAL.into_iter().chain([Step::SlotClaimed]) {
        for passes in 0..4 {
            let world = World::new(SHAPE);
            let is_dead = die(&world, "several", at, passes);
            check(&world, &format!("{at:?} {passes}"), Some(u64::from(!is_dead || is_decided(at))));
            if !is_dead {
                // There are three locks and three words; all other steps come once.
                let often = matches!(at, Step::Locked | Step::Wrote | Step::Freed);
                assert_eq!(passes, if often { 3 } else { 1 }, "{at:?}");
                break;
            }
        }
    }
}

#[test]
fn a_change_of_one_word_that_is_killed_at_any_step_is_made_or_not() {
    for at in Step::ONE {
        let world = World::new(SHAPE);
        assert!(die(&world, "one", at, 0), "{at:?}");
        // Its flight does not hold up a transaction that takes the lock.
        let space = world.space();
        let mut own = space.committer().unwrap();
        let mut t = Minitransaction::new();
        let reads = WORDS.map(|at| t.read(N, S, at, 8));
        assert_eq!(own.commit(&mut t).unwrap(), Outcome::Committed);
        let made = matches!(at, Step::Changed | Step::Withdrawn);
        assert_eq!(reads.map(|read| t.number(read).unwrap()), [0, u64::from(made), 0], "{at:?}");
        add_to_all(&mut own);
        world.assert_unlocked();
    }
}

#[test]
fn a_recovery_that_is_killed_at_any_step_is_recovered() {
    for died in [Step::LogHalf, Step::AllLocked, Step::Committed, Step::Wrote, Step::Finished, Step::Freed] {
        for at in Step::RECOVERY {
            for passes in 0..3 {
                let world = World::new(SHAPE);
                assert!(die(&world, "several", died, 0));
                let is_dead = die(&world, "recover", at, passes);
                let told = format!("{died:?}, then {at:?} {passes}");
                check(&world, &told, Some(u64::from(is_decided(died))));
                let comes_by = match at {
                    Step::Rewrote | Step::Replayed | Step::ReplayTold => {
                        matches!(died, Step::Committed | Step::Wrote)
                    }
                    Step::FreedInherited => died != Step::LogHalf,
                    _ => true,
                };
                assert!(passes > 0 || is_dead == comes_by, "{told}: {is_dead}");
                if !is_dead {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_process_that_lacks_a_segment_leaves_the_log_to_others() {
    let world = World::new(SHAPE);
    assert!(die(&world, "several", Step::Committed, 0));
    let stranger = Space::open(&world.member, &world.machinery(), SHAPE).unwrap();
    let deadline = Instant::now() + SOON;
    let error = loop {
        match stranger.recover() {
            Err(e) => break e,
            Ok(_) => assert!(Instant::now() < deadline),
        }
    };
    assert!(matches!(error, Error::NoSegment { segment: S, .. }), "{error}");
    check(&world, "left by a stranger", Some(1));
}

#[test]
fn a_log_that_names_a_segment_which_is_gone_holds_up_no_other() {
    let world = World::new(SHAPE);
    assert!(die(&world, "several", Step::Committed, 0));
    let heir = Space::open(&world.member, &world.machinery(), SHAPE).unwrap();
    heir.set_finder(|_, _| Found::Gone);
    let deadline = Instant::now() + SOON;
    while heir.recover().unwrap() == 0 {
        assert!(Instant::now() < deadline);
    }
    // Nothing of the log is written, and all its locks are free.
    assert!(WORDS.iter().all(|at| world.word(*at) == 0));
    world.assert_unlocked();
}

/// A named segment, since only those can be made smaller, and where it is cut off.
const NAMED: &str = "cut";
const CUT: u64 = 32;

fn named_segment(member: &Arc<Member>) -> Object {
    Object::open(member, Kind::Segment, NAMED, Access::Write).unwrap()
}

/// Registers the named segment in place of the space's own, as long as it is now.
fn with_named(space: &Space) -> Object {
    let object = named_segment(space.member());
    assert!(space.unregister(N, S));
    space.register(N, S, object.section()).unwrap();
    object
}

/// Writes before the cut, across it, and behind it.
fn write_around_the_cut(own: &mut Committer) {
    let mut t = Minitransaction::new();
    t.write(N, S, 0, &[1; 8]);
    t.write(N, S, CUT - 12, &[2; 30]);
    t.write(N, S, 200, &[3; 8]);
    assert_eq!(own.commit(&mut t).unwrap(), Outcome::Committed);
}

#[test]
fn writes_to_what_was_cut_off_are_left_out_and_others_outside_are_damage() {
    let world = World::new(SHAPE);
    let new = NewObject {
        kind: Kind::Segment,
        name: NAMED.into(),
        len: 4096,
        mode: 0o600,
        ends_with_creator: false,
        params: [0; 4],
        or_open: false,
    };
    let whole = Object::create(&world.member, &new).unwrap();
    assert!(die(&world, "named", Step::Committed, 0));
    whole.shrink(CUT).unwrap();
    let space = world.space();
    let cut = with_named(&space);
    assert_eq!(cut.section().len(), CUT);
    let recovered = || {
        let deadline = Instant::now() + SOON;
        loop {
            match space.recover() {
                Ok(0) => assert!(Instant::now() < deadline, "the death is not seen"),
                other => return other,
            }
        }
    };
    // The log: three locks, then the first write's segment and offset. No segment of the shared section reaches this far.
    let at =
        (0..16).map(|slot| world.slot(slot)).find(|s| world.machinery().word("w", s[0]).unwrap().get() != 0);
    let log = at.unwrap()[3];
    let counts = world.machinery().word("counts", log).unwrap().get();
    assert_eq!(counts >> 32, 3, "writes");
    let place = log + 8 + 8 * (counts & 0xffff_ffff) + 8;
    let machinery = world.machinery();
    let offset = machinery.word("offset", place).unwrap();
    let right = offset.get();
    let shared = world.member.region().shape().shared_bytes;
    for wrong in [u64::MAX, u64::MAX - 7, 1 << 40, shared] {
        offset.set(wrong);
        let error = recovered().unwrap_err();
        assert!(matches!(error, Error::Corrupt { value, .. } if value == wrong), "{error}");
    }
    offset.set(right);
    assert_eq!(recovered().unwrap(), 1);
    world.assert_unlocked();
    let byte = |at| whole.section().get::<u8>(at).unwrap();
    let is = |range: std::ops::Range<u64>, value| range.into_iter().all(|at| byte(at) == value);
    assert!(is(0..8, 1) && is(8..CUT - 12, 0) && is(CUT - 12..CUT, 2) && is(CUT..4096, 0));
    // The locks are free again.
    let mut t = Minitransaction::new();
    t.write(N, S, 0, &[4; 16]);
    assert_eq!(space.commit(&mut t).unwrap(), Outcome::Committed);
}

#[test]
fn a_commit_that_a_panic_ends_is_settled_when_its_committer_is_dropped() {
    // Its process lives on, so no other could recover the slot.
    let panics = |space: &Space, at: Step, work: fn(&mut Committer)| {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut own = space.committer().unwrap();
            arm(at, 0, |at| std::panic::resume_unwind(Box::new(at)));
            work(&mut own);
        }));
        disarm();
        assert_eq!(ended.unwrap_err().downcast_ref(), Some(&at));
    };
    for at in Step::SEVERAL {
        let world = World::new(SHAPE);
        let space = world.space();
        panics(&space, at, add_to_all);
        world.assert_unlocked();
        let made = u64::from(is_decided(at));
        assert_eq!(WORDS.map(|at| world.word(at)), [made; 3], "{at:?}");
        add_to_all(&mut space.committer().unwrap());
        assert_eq!(WORDS.map(|at| world.word(at)), [made + 1; 3], "{at:?}");
    }
    for at in [Step::Matched, Step::Announced, Step::Unlocked, Step::Changed, Step::Withdrawn] {
        let world = World::new(SHAPE);
        let space = world.space();
        panics(&space, at, |own| {
            add(own, ALONE, 1);
        });
        let made = u64::from(matches!(at, Step::Changed | Step::Withdrawn));
        assert_eq!(world.word(ALONE), made, "{at:?}");
        // No flight is left over. Flights are read only in slots that change single words, so one is changed first.
        let mut next = space.committer().unwrap();
        add(&mut next, ALONE, 1);
        let mut other = space.committer().unwrap();
        let mut t = Minitransaction::new();
        t.write(N, S, ALONE, &9_u64.to_le_bytes());
        t.write(N, S, 0, &9_u64.to_le_bytes());
        assert_eq!(other.commit(&mut t).unwrap(), Outcome::Committed, "{at:?}");
    }
}

static REACHED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
/// Whether the change of one word is over.
static OVER: AtomicBool = AtomicBool::new(false);

/// Stays at a step until the other thread has reached its own; or for 300 ms, if it cannot reach that.
fn meet(own: usize) {
    let begun = Instant::now();
    REACHED[own].store(true, Ordering::SeqCst);
    while !REACHED[1 - own].load(Ordering::SeqCst) && begun.elapsed() < Duration::from_millis(300) {
        std::thread::yield_now();
    }
}

/// One thread compares and changes a word under its lock, another one changes the word alone. Whichever of them is stopped
/// where the other could come in between, one of them fails.
#[test]
fn a_change_of_one_word_and_a_transaction_exclude_each_other() {
    // The second begins only once the first has stopped at its step.
    for (at, one_first) in
        [(Step::Unlocked, true), (Step::Announced, true), (Step::Matched, true), (Step::Matched, false)]
    {
        let world = World::new(SHAPE);
        let space = world.space();
        world.set(ALONE, 1);
        REACHED.iter().chain([&OVER]).for_each(|r| r.store(false, Ordering::SeqCst));
        let await_other = |is_first: bool, own: usize| {
            while !is_first && !REACHED[1 - own].load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        };
        let (one, several) = std::thread::scope(|scope| {
            let one = scope.spawn(|| {
                let mut own = space.committer().unwrap();
                await_other(one_first, 0);
                arm(at, 0, |_| meet(0));
                let outcome = exchange(&mut own, ALONE, 1, 7);
                OVER.store(true, Ordering::SeqCst);
                disarm();
                outcome
            });
            let several = scope.spawn(|| {
                let mut own = space.committer().unwrap();
                await_other(!one_first, 1);
                arm(Step::Compared, 0, |_| {
                    meet(1);
                    // Stay between the compare and the writes for longer than the other thread takes if nothing holds it up.
                    // If the lock holds it up, as it should, it waits until this is over.
                    let begun = Instant::now();
                    while !OVER.load(Ordering::SeqCst) && begun.elapsed() < Duration::from_millis(500) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                });
                let mut t = Minitransaction::new();
                t.compare(N, S, ALONE, &1_u64.to_le_bytes());
                t.write(N, S, ALONE, &9_u64.to_le_bytes());
                t.write(N, S, 0, &9_u64.to_le_bytes());
                let outcome = own.commit(&mut t).unwrap();
                disarm();
                outcome
            });
            (one.join().unwrap(), several.join().unwrap())
        });
        let told = format!("{at:?} {one_first}: {one:?}, {several:?}");
        match world.word(ALONE) {
            7 => assert_eq!((one, several), (Outcome::Committed, Outcome::CompareFailed), "{told}"),
            9 => assert_eq!((one, several), (Outcome::CompareFailed, Outcome::Committed), "{told}"),
            other => panic!("{other}: {told}"),
        }
    }
}
