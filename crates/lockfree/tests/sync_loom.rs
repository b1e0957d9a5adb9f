//! Models for the checker loom of what processes synchronise with: `make loom`. As in `loom.rs`, sizes are tiny.
//!
//! A process that dies is a thread that stops; the service that publishes its death is the same thread's last store, since
//! a service learns of a death only after the last of the process's stores.
#![cfg(loom)]

use isthmus_lockfree::barrier::{self, Arrival};
use isthmus_lockfree::gate;
use isthmus_lockfree::lock::{self, Changes, Found, Refused};
use isthmus_lockfree::readers;
use isthmus_lockfree::sync::{Line, Word};
use loom::sync::Arc;
use loom::thread;

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

/// In the life of a process.
const DEAD: u64 = 1;

/// P9: a participant that passes a round sees what the other did before it arrived, in two rounds; none is a round ahead.
#[test]
fn exchange_of_two_lets_nobody_pass_early() {
    model(|| {
        let words = Arc::new([(Word::new(0), Word::new(0)), (Word::new(0), Word::new(0))]);
        let take_part = |words: &[(Word, Word); 2], me: usize| {
            let (mine, other) = (&words[me], &words[1 - me]);
            for round in 0..2 {
                mine.1.put(round + 1);
                barrier::advance(&mine.0, round + 1);
                while !barrier::has_reached(&other.0, round + 1, 1) {
                    thread::yield_now();
                }
                let seen = other.1.peek();
                assert!(seen == round + 1 || seen == round + 2, "{seen} in round {round}");
            }
        };
        let far = Arc::clone(&words);
        let other = thread::spawn(move || take_part(&far, 1));
        take_part(&words, 0);
        other.join().unwrap();
    });
}

/// P9, several steps: the first of three arrives and goes no further. The second passes since it finds all words there, and says
/// so; a participant that reads no more than that passes, too, and sees what all did.
#[test]
fn who_passes_since_all_have_arrived_lets_others_pass() {
    static PASSED: std::sync::Mutex<[bool; 2]> = std::sync::Mutex::new([false; 2]);
    model(|| {
        let words = Arc::new([(); 3].map(|()| (Word::new(0), Word::new(0))));
        let arrive = |words: &[(Word, Word); 3], me: usize| {
            words[me].1.put(1);
            barrier::advance(&words[me].0, 1);
        };
        let sees_all = |words: &[(Word, Word); 3]| words.iter().all(|word| word.1.peek() == 1);
        let (far, further) = (Arc::clone(&words), Arc::clone(&words));
        let second = thread::spawn(move || {
            arrive(&far, 1);
            let passes = far.iter().all(|word| barrier::has_reached(&word.0, 1, 2));
            if passes {
                assert!(sees_all(&far));
                barrier::advance(&far[1].0, 2);
            }
            passes
        });
        let third = thread::spawn(move || {
            arrive(&further, 2);
            let passes = barrier::has_reached(&further[1].0, 2, 2);
            assert!(!passes || sees_all(&further));
            passes
        });
        arrive(&words, 0);
        let passed = [second.join().unwrap(), third.join().unwrap()];
        let mut ever = PASSED.lock().unwrap();
        *ever = [ever[0] | passed[0], ever[1] | passed[1]];
    });
    assert_eq!(*PASSED.lock().unwrap(), [true, true], "either in some execution");
}

/// P10: the same for a count that three add to; one of them is the last in each round. A participant that finds a round not over yet does
/// not come back, since two that spin would keep the third from running for ever.
#[test]
fn central_barrier_of_three_lets_nobody_pass_early() {
    // Rounds that ended in some execution, so that the model is known to go so far.
    static ENDED: std::sync::Mutex<u64> = std::sync::Mutex::new(0);
    model(|| {
        // Count, gate, and a word of each participant.
        let shared = Arc::new((Word::new(0), Word::new(0), [Word::new(0), Word::new(0), Word::new(0)]));
        let take_part = |shared: &(Word, Word, [Word; 3]), me: usize| {
            let mut last = 0;
            for round in 0..2 {
                shared.2[me].put(round + 1);
                match barrier::arrive(&shared.0, round, 3) {
                    Arrival::Last => {
                        last += 1;
                        barrier::open(&shared.1, round);
                    }
                    Arrival::Early if barrier::is_open(&shared.1, round) => {}
                    Arrival::Early => break,
                    Arrival::Wrong => panic!("a count that cannot be"),
                }
                for word in &shared.2 {
                    let seen = word.peek();
                    assert!(seen == round + 1 || seen == round + 2, "{seen} in round {round}");
                }
            }
            last
        };
        let others: Vec<_> = (1..3)
            .map(|me| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || take_part(&shared, me))
            })
            .collect();
        let mine = take_part(&shared, 0);
        let all = mine + others.into_iter().map(|t| t.join().unwrap()).sum::<u64>();
        let mut ended = ENDED.lock().unwrap();
        *ended = all.max(*ended);
    });
    assert_eq!(*ENDED.lock().unwrap(), 2, "both rounds, one last participant of each");
}

/// P8 with P9: a participant that goes to sleep at the other's word sees the arrival, or is rung.
#[test]
fn nobody_sleeps_at_a_barrier_that_all_have_reached() {
    model(|| {
        let line = Arc::new(Line::new());
        let far = Arc::clone(&line);
        let sleeper = thread::spawn(move || {
            gate::enter(&far);
            !barrier::has_reached(&far.words[gate::WORD], 1, 1)
        });
        barrier::advance(&line.words[gate::WORD], 1);
        let rung = gate::sleepers(&line).native > 0;
        assert!(!sleeper.join().unwrap() || rung, "asleep, and not seen");
    });
}

fn acquire(line: &Line, me: u64) -> Found {
    loop {
        match lock::take(line, me, me, false) {
            Ok(found) => return found,
            Err(_) => thread::yield_now(),
        }
    }
}

/// P11: one owner at a time, and each sees what the last one did.
#[test]
fn a_lock_has_one_owner() {
    model(|| {
        let shared = Arc::new((Line::new(), Word::new(0)));
        let add = |shared: &(Line, Word), me: u64| {
            for _ in 0..2 {
                assert_eq!(acquire(&shared.0, me), Found::Sound);
                shared.1.bump(1);
                lock::give_back(&shared.0);
            }
        };
        let far = Arc::clone(&shared);
        let other = thread::spawn(move || add(&far, 2));
        add(&shared, 1);
        other.join().unwrap();
        assert_eq!(shared.1.peek(), 4);
    });
}

/// What a thread does that wants the lock of a process that may die: takes it when it is free, or takes it over.
fn acquire_from(line: &Line, life: &Word, me: u64) -> Found {
    loop {
        match lock::take(line, me, me, false) {
            Ok(found) => return found,
            Err(Refused::Held(1)) if life.get() == DEAD => {
                if let Some(found) = lock::take_over(line, 1, me, me, Changes::AtOnce) {
                    return found;
                }
            }
            Err(_) => thread::yield_now(),
        }
    }
}

/// P20: one breaks the barrier, one resets it, one sits down. Whose seat is good finds all words new if they were reset, and
/// keeps others from resetting them under it.
#[test]
fn who_sits_down_is_seen_by_a_reset_or_finds_it_done() {
    model(|| {
        // Broken, the claim, two words that are made new.
        let shared = Arc::new([Word::new(0), Word::new(0), Word::new(5), Word::new(5)]);
        let far = Arc::clone(&shared);
        let breaks = thread::spawn(move || drop(far[0].replace(0, 9)));
        let far = Arc::clone(&shared);
        let resets = thread::spawn(move || {
            if barrier::may_reset(&far[0]) && far[1].get() == 0 {
                far[2].put(0);
                far[3].put(0);
                far[0].set(0);
            }
        });
        let is_good = barrier::sit_down(&shared[1], 1, &shared[0]) == Some(0);
        let before = (shared[2].peek(), shared[3].peek());
        breaks.join().unwrap();
        resets.join().unwrap();
        if is_good {
            assert!(matches!(before, (5, 5) | (0, 0)), "{before:?}");
            assert_eq!(
                before,
                (shared[2].peek(), shared[3].peek()),
                "it is not reset under a seat that is good"
            );
        }
    });
}

/// P11: the owner dies with its work half done. Of two that want the lock one takes it over, sees all that was done, and
/// is the only one that has to mend it.
#[test]
fn a_lock_of_the_dead_is_taken_over_once() {
    model(|| {
        // Lock, life of process 1, two words that belong together, how many had to mend.
        let shared = Arc::new((Line::new(), Word::new(0), Word::new(0), Word::new(0), Word::new(0)));
        let far = Arc::clone(&shared);
        let dies = thread::spawn(move || {
            assert_eq!(lock::take(&far.0, 1, 1, false), Ok(Found::Sound));
            far.2.put(1);
            far.1.set(DEAD);
        });
        dies.join().unwrap();
        let work = |s: &(Line, Word, Word, Word, Word), me: u64| {
            match acquire_from(&s.0, &s.1, me) {
                Found::Sound => {}
                Found::Suspect => {
                    assert_eq!((s.2.peek(), s.3.peek()), (1, 0), "what the dead one did is visible");
                    s.3.put(1);
                    s.4.bump(1);
                    lock::mend(&s.0);
                }
                Found::Lost => panic!("it was mended"),
            }
            assert_eq!(s.2.peek(), s.3.peek());
            s.2.bump(1);
            s.3.bump(1);
            lock::give_back(&s.0);
        };
        let far = Arc::clone(&shared);
        let other = thread::spawn(move || work(&far, 2));
        work(&shared, 3);
        other.join().unwrap();
        assert_eq!((shared.2.peek(), shared.3.peek(), shared.4.peek()), (3, 3, 1));
    });
}

/// P11: the death comes while another waits: whether the owner gave the lock back before it died or not, all that it did
/// is visible, and only in one of the cases the data is suspect.
#[test]
fn a_death_and_a_return_are_told_apart() {
    for gives_back in [true, false] {
        model(move || {
            let shared = Arc::new((Line::new(), Word::new(0), Word::new(0)));
            assert!(lock::take(&shared.0, 1, 1, false).is_ok());
            let far = Arc::clone(&shared);
            let owner = thread::spawn(move || {
                far.2.put(7);
                if gives_back {
                    lock::give_back(&far.0);
                }
                far.1.set(DEAD);
            });
            let found = acquire_from(&shared.0, &shared.1, 2);
            assert_eq!(shared.2.peek(), 7);
            assert_eq!(found, if gives_back { Found::Sound } else { Found::Suspect });
            owner.join().unwrap();
        });
    }
}

/// P11: a process that takes over and dies before it has said so is taken over in turn, and the next one is told.
#[test]
fn a_heir_that_dies_leaves_the_data_suspect() {
    model(|| {
        let shared = Arc::new((Line::new(), Word::new(0)));
        assert!(lock::take(&shared.0, 1, 1, false).is_ok());
        let far = Arc::clone(&shared);
        let heir = thread::spawn(move || {
            // Dies right after the compare-and-swap.
            assert!(lock::inherit(&far.0.words[lock::OWNER], 1, 2));
            far.1.set(DEAD);
        });
        let found = loop {
            match lock::take(&shared.0, 3, 3, false) {
                Err(Refused::Held(2)) if shared.1.get() == DEAD => {
                    break lock::take_over(&shared.0, 2, 3, 3, Changes::AtOnce);
                }
                Err(_) => thread::yield_now(),
                Ok(_) => panic!("it was not given back"),
            }
        };
        assert_eq!(found, Some(Found::Suspect));
        lock::give_back(&shared.0);
        assert_eq!(lock::take(&shared.0, 3, 3, false), Ok(Found::Lost), "it was not mended");
        heir.join().unwrap();
    });
}

/// P8 with P11: a thread that goes to sleep at a lock sees that it is free, or is rung; also the one that has it kept for itself,
/// which must be seen by the thread that decides how many are rung.
#[test]
fn nobody_sleeps_at_a_lock_that_was_given_back() {
    model(|| {
        let line = Arc::new(Line::new());
        assert!(lock::take(&line, 1, 1, false).is_ok());
        let far = Arc::clone(&line);
        let sleeper = thread::spawn(move || {
            assert!(lock::keep(&far, 2));
            match lock::take(&far, 2, 2, true) {
                Ok(_) => false,
                Err(_) => {
                    gate::enter(&far);
                    far.words[lock::OWNER].peek() != 0
                }
            }
        });
        lock::give_back(&line);
        let rung = gate::sleepers(&line).native > 0;
        let knows = line.words[lock::HEIR].peek() == 2;
        assert!(!sleeper.join().unwrap() || (rung && knows), "asleep, and not seen");
    });
}

/// P11: of a lock whose owners say when they begin to change what it protects: an owner that dies before leaves it sound, one that
/// dies later does not, and what it did is visible.
#[test]
fn what_a_dead_owner_had_not_begun_to_change_is_sound() {
    for steps in 0..4 {
        model(move || {
            let shared = Arc::new((Line::new(), Word::new(0), Word::new(0)));
            assert!(lock::take(&shared.0, 1, 1, false).is_ok());
            let far = Arc::clone(&shared);
            let owner = thread::spawn(move || {
                let does: [&dyn Fn(); 3] =
                    [&|| lock::change(&far.0), &|| far.2.put(7), &|| lock::give_back(&far.0)];
                does[..steps].iter().for_each(|step| step());
                far.1.set(DEAD);
            });
            let found = loop {
                match lock::take(&shared.0, 2, 2, false) {
                    Ok(found) => break found,
                    Err(Refused::Held(1)) if shared.1.get() == DEAD => {
                        if let Some(found) = lock::take_over(&shared.0, 1, 2, 2, Changes::Later) {
                            break found;
                        }
                    }
                    Err(_) => thread::yield_now(),
                }
            };
            assert_eq!(found, if (1..3).contains(&steps) { Found::Suspect } else { Found::Sound });
            assert_eq!(shared.2.peek(), if steps < 2 { 0 } else { 7 });
            owner.join().unwrap();
        });
    }
}

/// P12: a reader and a writer are never in at the same time, and each sees what the other did before it.
#[test]
fn a_reader_and_a_writer_keep_each_other_out() {
    model(|| {
        // Lock, readers of the one process, two words that belong together, what a reader leaves.
        let shared = Arc::new((Line::new(), Word::new(0), Word::new(0), Word::new(0), Word::new(0)));
        let far = Arc::clone(&shared);
        let reader = thread::spawn(move || {
            readers::enter(&far.1);
            let mut came_first = false;
            if far.0.words[lock::OWNER].get() == 0 {
                let (a, b) = (far.2.peek(), far.3.peek());
                assert_eq!(a, b, "in the middle of a change");
                far.4.put(1);
                came_first = a == 0;
            }
            readers::leave(&far.1);
            came_first
        });
        assert!(lock::take(&shared.0, 1, 1, false).is_ok());
        readers::bar();
        while readers::count(&shared.1) != 0 {
            thread::yield_now();
        }
        let left = shared.4.peek();
        shared.2.put(1);
        shared.3.put(1);
        lock::give_back(&shared.0);
        assert!(!reader.join().unwrap() || left == 1, "what a reader did that was in before is visible");
    });
}
