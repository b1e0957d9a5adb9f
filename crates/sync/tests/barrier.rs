//! Barriers, between threads, between processes, and with deaths.

#![allow(clippy::disallowed_types)] // orderings of the test's own threads

mod common;

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::{Dice, LONG, TOLD, World, piece, read_line, told};
use isthmus_region::sync::Word;
use isthmus_sync::barrier::{Algorithm, Barrier, Parameters};
use isthmus_sync::{Error, Waiting};

const WAYS: [Waiting; 3] = [Waiting::Spin, Waiting::Block, Waiting::Hybrid];
const ALGORITHMS: [Algorithm; 3] = [Algorithm::Auto, Algorithm::Central, Algorithm::Scaling];

fn parameters(parties: u32, waiting: Waiting, algorithm: Algorithm) -> Parameters {
    Parameters { parties, waiting, algorithm }
}

/// Parameters as words of a command line; [`from_args`] is the inverse.
fn to_args(p: Parameters) -> String {
    let of = |waiting| WAYS.iter().position(|w| *w == waiting).unwrap();
    let algorithm = ALGORITHMS.iter().position(|a| *a == p.algorithm).unwrap();
    format!("{} {} {algorithm}", p.parties, of(p.waiting))
}

fn from_args(args: &[String]) -> Parameters {
    let number = |i: usize| args[i].parse::<usize>().unwrap();
    parameters(u32::try_from(number(0)).unwrap(), WAYS[number(1)], ALGORITHMS[number(2)])
}

/// Rounds in which each participant counts in a word of its own, and finds the others in the same round or one further.
fn rounds(barrier: &Barrier, counts: &[Word], rounds: u64) -> u64 {
    let mut seat = barrier.join().unwrap();
    let me = seat.index() as usize;
    let mut serial = 0;
    for round in 1..=rounds {
        counts[me].put(round);
        serial += u64::from(seat.wait_within(LONG).unwrap());
        for count in counts {
            let there = count.peek();
            assert!(there == round || there == round + 1, "{there} in round {round}");
        }
    }
    serial
}

#[test]
fn none_passes_before_all_have_arrived_and_one_is_told_so() {
    let world = World::new();
    for algorithm in ALGORITHMS {
        for waiting in WAYS {
            for parties in [1, 2, 3, 9] {
                let parameters = parameters(parties, waiting, algorithm);
                let (_, section) = world.piece(parameters.bytes());
                let barrier = Barrier::open(&world.member, &section, parameters).unwrap();
                let counts: Vec<_> = (0..parties).map(|_| Word::new(0)).collect();
                let serial = std::thread::scope(|scope| {
                    let threads: Vec<_> =
                        (0..parties).map(|_| scope.spawn(|| rounds(&barrier, &counts, 100))).collect();
                    threads.into_iter().map(|t| t.join().unwrap()).sum::<u64>()
                });
                assert_eq!(serial, 100, "{parameters:?}");
            }
        }
    }
}

#[test]
fn seats_are_limited_left_and_taken_again_in_the_same_round() {
    let world = World::new();
    for algorithm in [Algorithm::Central, Algorithm::Scaling] {
        let parameters = parameters(2, Waiting::Hybrid, algorithm);
        let (_, section) = world.piece(parameters.bytes());
        let barrier = Barrier::open(&world.member, &section, parameters).unwrap();
        let (mut first, mut second) = (barrier.join().unwrap(), barrier.join().unwrap());
        assert!(matches!(barrier.join(), Err(Error::Full { places: 2, .. })));
        for _ in 0..5 {
            assert!(matches!(first.wait_within(Duration::from_millis(1)), Err(Error::TimedOut)));
            second.wait().unwrap();
            first.wait().unwrap();
        }
        drop(second);
        assert!(matches!(first.wait_within(Duration::from_millis(1)), Err(Error::TimedOut)));
        let mut third = barrier.join().unwrap();
        third.wait_within(LONG).unwrap();
        first.wait_within(LONG).unwrap();
    }
}

#[test]
fn a_round_goes_on_without_participants_that_arrived_and_timed_out() {
    let world = World::new();
    for waiting in WAYS {
        for (algorithm, parties, polls) in [
            (Algorithm::Central, 9, vec![3]),
            (Algorithm::Scaling, 9, vec![3]),
            (Algorithm::Scaling, 9, vec![8, 3, 0]),
            (Algorithm::Scaling, 65, vec![1, 2, 9, 64]),
        ] {
            let parameters = parameters(parties, waiting, algorithm);
            let (at, section) = world.piece(parameters.bytes());
            let barrier = Barrier::open(&world.member, &section, parameters).unwrap();
            let mut seats: Vec<_> = (0..parties).map(|_| barrier.join().unwrap()).collect();
            for round in 0..3 {
                // These have a limit that is up before the others arrive, and wait again after that.
                for seat in &polls {
                    assert!(matches!(seats[*seat].wait_within(Duration::ZERO), Err(Error::TimedOut)));
                }
                std::thread::scope(|scope| {
                    for (index, seat) in seats.iter_mut().enumerate().filter(|(i, _)| !polls.contains(i)) {
                        scope.spawn(move || {
                            let serial = seat.wait_within(LONG).unwrap();
                            assert!(algorithm == Algorithm::Central || serial == (index == 0), "{round}");
                        });
                    }
                });
                // All have arrived, so there is nothing to wait for.
                for seat in &polls {
                    seats[*seat].wait_within(Duration::ZERO).unwrap();
                }
            }
            // Seats are left and taken between rounds as ever.
            drop(seats.swap_remove(1));
            seats.push(barrier.join().unwrap());
            std::thread::scope(|scope| {
                for seat in &mut seats {
                    scope.spawn(|| seat.wait_within(LONG).unwrap());
                }
            });
            drop(seats);
            world.member.release(at, parameters.bytes());
        }
    }
}

#[test]
fn a_death_after_arrival_breaks_the_next_round_and_not_this_one() {
    let world = World::new();
    for (algorithm, parties) in [(Algorithm::Central, 3), (Algorithm::Central, 9), (Algorithm::Scaling, 9)] {
        for waiting in WAYS {
            let parameters = parameters(parties, waiting, algorithm);
            let (at, section) = world.piece(parameters.bytes());
            let barrier = Barrier::open(&world.member, &section, parameters).unwrap();
            let mut seats: Vec<_> = (0..3).map(|_| barrier.join().unwrap()).collect();
            // The other process takes the fourth seat, or of three the third.
            if parties == 3 {
                seats.pop();
            }
            let mut other = world.other("arrives", at, &to_args(parameters));
            other.await_line("arrived");
            seats.extend((seats.len() + 1..parties as usize).map(|_| barrier.join().unwrap()));
            other.kill();
            // First participants that wait already, then one that arrives once the death is known.
            let last = seats.pop();
            std::thread::scope(|scope| {
                for seat in &mut seats {
                    scope.spawn(|| seat.wait_within(LONG).unwrap());
                }
                std::thread::sleep(Duration::from_millis(200));
                last.map(|mut seat| seat.wait_within(LONG).unwrap());
            });
            std::thread::scope(|scope| {
                for seat in &mut seats {
                    scope.spawn(|| {
                        let error = seat.wait_within(TOLD).unwrap_err();
                        assert!(matches!(error, Error::Broken { dead: Some(_) }), "{parameters:?}: {error}");
                    });
                }
            });
            drop(seats);
            world.member.release(at, parameters.bytes());
        }
    }
}

#[test]
fn a_wait_without_time_learns_of_a_death() {
    let world = World::new();
    for (algorithm, waiting) in ALGORITHMS.into_iter().flat_map(|a| WAYS.map(|w| (a, w))) {
        let parameters = parameters(2, waiting, algorithm);
        let (at, section) = world.piece(parameters.bytes());
        let mut other = world.other("steps", at, &to_args(parameters));
        other.await_line("ready");
        let barrier = Barrier::open(&world.member, &section, parameters).unwrap();
        let mut seat = barrier.join().unwrap();
        other.kill();
        let begun = Instant::now();
        loop {
            match seat.wait_within(Duration::ZERO) {
                Err(Error::TimedOut) => assert!(begun.elapsed() < TOLD, "{parameters:?}: not told"),
                Err(Error::Broken { dead: Some(_) }) => break,
                other => panic!("{parameters:?}: {other:?}"),
            }
        }
    }
}

#[test]
fn giving_up_in_the_middle_of_a_round_breaks_the_barrier_until_it_is_reset() {
    let world = World::new();
    for algorithm in [Algorithm::Central, Algorithm::Scaling] {
        let parameters = parameters(3, Waiting::Hybrid, algorithm);
        let (_, section) = world.piece(parameters.bytes());
        let barrier = Barrier::open(&world.member, &section, parameters).unwrap();
        let mut seats: Vec<_> = (0..3).map(|_| barrier.join().unwrap()).collect();
        assert!(matches!(seats[0].wait_within(Duration::from_millis(1)), Err(Error::TimedOut)));
        drop(seats.remove(0));
        // It had arrived, so the last of the others may get through this round, and through no other.
        assert!(matches!(seats[0].wait(), Err(Error::Broken { dead: None })));
        let _ = seats[1].wait();
        for _ in 0..2 {
            for seat in &mut seats {
                assert!(matches!(seat.wait(), Err(Error::Broken { dead: None })));
            }
        }
        assert!(matches!(barrier.join(), Err(Error::Broken { .. })));
        seats.pop();
        assert!(matches!(barrier.reset(), Err(Error::InUse { .. })));
        seats.pop();
        barrier.reset().unwrap();
        let counts: Vec<_> = (0..3).map(|_| Word::new(0)).collect();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| rounds(&barrier, &counts, 10));
            }
        });
    }
}

#[test]
fn other_parameters_and_impossible_ones_are_refused() {
    let world = World::new();
    let (_, section) = world.piece(4096);
    let right = Parameters::new(4, Waiting::Spin);
    Barrier::open(&world.member, &section, right).unwrap();
    for wrong in [Parameters { parties: 5, ..right }, Parameters { waiting: Waiting::Block, ..right }] {
        let error = Barrier::open(&world.member, &section, wrong).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    }
    for parties in [0, 4097] {
        let error = Barrier::open(&world.member, &section, Parameters { parties, ..right }).unwrap_err();
        assert!(matches!(error, Error::BadParameter { .. }), "{error}");
    }
    let error = Barrier::open(&world.member, &section, Parameters { parties: 4096, ..right }).unwrap_err();
    assert!(matches!(error, Error::Memory { .. }), "{error}");
}

#[test]
fn garbage_in_any_word_is_an_error_or_harmless_and_never_a_hang() {
    let world = World::new();
    let mut dice = Dice(7);
    for (algorithm, waiting) in [
        (Algorithm::Central, Waiting::Hybrid),
        (Algorithm::Scaling, Waiting::Hybrid),
        (Algorithm::Scaling, Waiting::Spin),
    ] {
        let parameters = parameters(3, waiting, algorithm);
        for word in 0..parameters.bytes() / 8 {
            let (at, section) = world.piece(parameters.bytes());
            let barrier = Barrier::open(&world.member, &section, parameters).unwrap();
            let seats: Vec<_> = (0..3).map(|_| barrier.join().unwrap()).collect();
            std::thread::scope(|scope| {
                for mut seat in seats {
                    scope.spawn(move || {
                        // Each comes to an end: with an error, or after all its rounds.
                        for _ in 0..50 {
                            match seat.wait_within(LONG) {
                                Ok(_) => {}
                                Err(Error::TimedOut) => panic!("a hang, by word {word}"),
                                Err(_) => return,
                            }
                        }
                    });
                }
                let value =
                    [u64::MAX, 1 << 63, 12345, dice.below(u64::MAX)][usize::try_from(dice.below(4)).unwrap()];
                section.word("test", word * 8).unwrap().set(value);
            });
            let _ = (barrier.reset(), barrier.join().map(drop));
            world.member.release(at, parameters.bytes());
        }
    }
}

#[test]
fn joining_during_a_reset_gives_a_new_seat_or_none() {
    let world = World::new();
    for (waiting, algorithm) in WAYS.into_iter().flat_map(|w| ALGORITHMS[1..].iter().map(move |a| (w, *a))) {
        let parameters = parameters(2, waiting, algorithm);
        let (at, section) = world.piece(parameters.bytes());
        let barrier = Barrier::open(&world.member, &section, parameters).unwrap();
        let begun = [0, 1].map(|_| AtomicU64::new(0));
        let (lives, rounds) = (AtomicU64::new(0), AtomicU64::new(0));
        let end = Instant::now() + Duration::from_millis(700);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (barrier, begun, lives, rounds) = (&barrier, &begun, &lives, &rounds);
                scope.spawn(move || {
                    let mut dice = Dice(thread + 1);
                    // On a busy machine a round may take long; all threads see it alike.
                    let are_few = || lives.load(SeqCst) <= 5 || rounds.load(SeqCst) <= 5;
                    while Instant::now() < end || (are_few() && Instant::now() < end + LONG) {
                        let mut seat = match barrier.join() {
                            Ok(seat) => seat,
                            Err(Error::Full { .. }) => {
                                std::thread::yield_now();
                                continue;
                            }
                            Err(Error::Broken { .. }) => {
                                match barrier.reset() {
                                    Ok(()) => drop(lives.fetch_add(1, SeqCst)),
                                    Err(Error::InUse { .. }) => {}
                                    Err(error) => panic!("{parameters:?}: {error}"),
                                }
                                continue;
                            }
                            Err(error) => panic!("{parameters:?}: {error}"),
                        };
                        let mine = seat.index() as usize;
                        begun[mine].store(0, SeqCst);
                        for round in 1..=dice.below(4) {
                            begun[mine].store(round, SeqCst);
                            match seat.wait_within(LONG) {
                                Ok(_) => {
                                    let there = begun[1 - mine].load(SeqCst);
                                    assert!(there >= round, "{parameters:?}: {there} in round {round}");
                                    rounds.fetch_add(1, SeqCst);
                                }
                                Err(Error::Broken { .. }) => break,
                                Err(error) => panic!("{parameters:?}: {error}"),
                            }
                        }
                        // While a participant has a seat, no other can reset the barrier: so all see this.
                        barrier.give_up();
                    }
                    barrier.give_up();
                });
            }
        });
        assert!(lives.load(SeqCst) > 5 && rounds.load(SeqCst) > 5, "{lives:?} lives, {rounds:?} rounds");
        world.member.release(at, parameters.bytes());
    }
}

#[test]
#[ignore = "the other process of the tests here"]
fn child() {
    let Some(told) = told() else { return };
    let parameters = from_args(&told.args);
    let section = piece(&told.member, told.at, parameters.bytes());
    let barrier = Barrier::open(&told.member, &section, parameters).unwrap();
    let mut seat = barrier.join().unwrap();
    if told.role == "arrives" {
        assert!(matches!(seat.wait_within(Duration::from_millis(1)), Err(Error::TimedOut)));
        println!("arrived");
        read_line();
        return;
    }
    println!("ready");
    let mut passed = 0_u64;
    if told.role == "steps" {
        while read_line() == "wait" {
            println!("passed {}", seat.wait().is_ok());
        }
        return;
    }
    let error = loop {
        match seat.wait() {
            Ok(_) => passed += 1,
            Err(error) => break error,
        }
    };
    // Every later wait fails, too, and at once.
    let again = seat.wait();
    assert!(matches!(again, Err(Error::Broken { .. })), "{again:?}");
    let kind = if matches!(error, Error::Broken { dead: Some(_) }) { "broken" } else { "other" };
    println!("{kind} {passed}");
}

#[test]
fn processes_meet() {
    let world = World::new();
    for algorithm in ALGORITHMS {
        let parameters = parameters(2, Waiting::Hybrid, algorithm);
        let (at, section) = world.piece(parameters.bytes());
        let mut other = world.other("steps", at, &to_args(parameters));
        other.await_line("ready");
        let barrier = Barrier::open(&world.member, &section, parameters).unwrap();
        let mut seat = barrier.join().unwrap();
        for _ in 0..10 {
            assert!(matches!(seat.wait_within(Duration::from_millis(2)), Err(Error::TimedOut)));
            other.say("wait");
            seat.wait_within(LONG).unwrap();
            assert_eq!(other.await_line("passed "), "true");
        }
    }
}

/// Processes run rounds as fast as they can, and one of them is killed: all others get the same error.
fn kill_one(world: &World, parameters: Parameters, after: Duration) {
    let (at, section) = world.piece(parameters.bytes());
    let mut others: Vec<_> =
        (0..parameters.parties).map(|_| world.other("rounds", at, &to_args(parameters))).collect();
    for other in &mut others {
        other.await_line("ready");
    }
    std::thread::sleep(after);
    let mut victim = others.swap_remove(0);
    victim.kill();
    let killed = Instant::now();
    for other in &mut others {
        other.await_line("broken ");
    }
    assert!(killed.elapsed() < TOLD, "told only after {:?}", killed.elapsed());
    for mut other in others {
        assert!(other.child.wait().unwrap().success());
    }
    let barrier = Barrier::open(&world.member, &section, parameters).unwrap();
    barrier.reset().unwrap();
    barrier.join().unwrap();
    drop(barrier);
    world.member.release(at, parameters.bytes());
}

#[test]
fn a_death_breaks_the_barrier_for_all_others() {
    let world = World::new();
    let mut dice = Dice(3);
    for algorithm in [Algorithm::Central, Algorithm::Scaling] {
        for waiting in WAYS {
            for parties in [2, 3] {
                let after = Duration::from_micros(dice.below(20_000));
                kill_one(&world, parameters(parties, waiting, algorithm), after);
            }
        }
    }
}
