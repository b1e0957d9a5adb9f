//! Costs that are made up, and what is chosen for them.

use super::class::MOST_DOUBTS;
use super::cost::TRIALS;
use super::*;

const PAGES: Choice = Choice { len: 100_000, one_copy: Way::Pages, is_sending: false };

fn to_attach(len: u64) -> Choice {
    Choice { len, one_copy: Way::Attach, is_sending: false }
}

/// Sends messages of which each takes `ns` by its way, one after the other; gives how many were attached to.
fn run(ways: &mut Ways, count: u32, len: u64, ns: [u64; 2]) -> u32 {
    let mut now = ways.last_end.unwrap_or_else(Instant::now);
    let mut attached = 0;
    for _ in 0..count {
        // The program does something else first.
        now += Duration::from_nanos(ways.last_ns);
        let message = ways.begin_at(to_attach(len), now);
        now += Duration::from_nanos(ns[message.way.place()]);
        attached += u32::from(message.way == Way::Attach);
        ways.ended_at(message, false, None, now);
    }
    attached
}

#[test]
fn the_faster_way_is_taken_and_the_other_is_tried_again() {
    let mut ways = Ways::default();
    assert_eq!(run(&mut ways, 6 * TRIALS, 100_000, [100, 200]), 3 * TRIALS, "in turn");
    for count in [320, 4160] {
        assert_eq!(run(&mut ways, count, 100_000, [100, 200]), 64, "a trial, and the next much later");
    }
    // It has become the faster one, as where a process was moved to another processor.
    let attached = run(&mut ways, 8000, 100_000, [100, 50]);
    assert!(attached > 3000, "{attached}");
    assert!(run(&mut ways, 640, 100_000, [100, 50]) >= 640 - 64);
    assert_eq!(run(&mut ways, 4 * TRIALS, 1 << 20, [100, 300]), 2 * TRIALS, "another class");
    assert_eq!(run(&mut ways, 4096, 1 << 20, [100, 300]), 16, "given up early");
    assert!(run(&mut ways, 64, 70_000, [100, 50]) > 60, "the first class has kept its own");
}

/// Asks for `count` messages, and then they end one after the other; the n-th of them adds `ns` by its way. Gives how many were attached
/// to.
fn ask(ways: &mut Ways, count: u32, choice: Choice, mut ns: impl FnMut(u32, Way) -> u64) -> u32 {
    // The program does something else first.
    let mut now = ways.last_end.unwrap_or_else(Instant::now) + Duration::from_nanos(ways.last_ns);
    let messages: Vec<Measured> = (0..count).map(|_| ways.begin_at(choice, now)).collect();
    for (n, message) in (0..).zip(&messages) {
        now += Duration::from_nanos(ns(n, message.way));
        ways.ended_at(*message, false, None, now);
    }
    u32::try_from(messages.iter().filter(|message| message.way == Way::Attach).count()).unwrap()
}

#[test]
fn messages_that_overlap_are_measured_together() {
    // Eight at a time. By copy the first adds what all wait for, and each other less than by attach; all together more.
    let choice = to_attach(1 << 20);
    let window = |ways: &mut Ways, copy: u64| {
        ask(ways, 8, choice, |n, way| match (way, n) {
            (Way::Copy, 0) => copy,
            (Way::Copy, _) => 120_000,
            _ => 140_000,
        })
    };
    let mut ways = Ways::default();
    let attached = |ways: &mut Ways, copy: u64, windows: u32| -> u32 {
        (0..windows).map(|_| window(ways, copy)).sum::<u32>() * 100 / (8 * windows)
    };
    attached(&mut ways, 400_000, 6);
    assert!(attached(&mut ways, 400_000, 500) >= 97);
    // Now copies are faster altogether, and trials few.
    attached(&mut ways, 200_000, 600);
    assert!(attached(&mut ways, 200_000, 1000) <= 3);
}

#[test]
fn what_is_faster_for_one_at_a_time_may_be_slower_for_several() {
    let (mut ways, choice) = (Ways::default(), to_attach(1 << 20));
    let single = |ways: &mut Ways| ask(ways, 1, choice, |_, way| [90_000, 130_000][way.place()]);
    let window = |ways: &mut Ways| ask(ways, 8, choice, |_, way| [140_000, 120_000][way.place()]);
    for _ in 0..3 {
        (0..200).for_each(|_| _ = single(&mut ways));
        (0..200).for_each(|_| _ = window(&mut ways));
    }
    for _ in 0..3 {
        let attached = (0..200).map(|_| single(&mut ways)).sum::<u32>();
        assert!(attached <= 80, "{attached} of 200");
        let attached = (0..200).map(|_| window(&mut ways)).sum::<u32>();
        assert!(attached >= 1500, "{attached} of 1600");
    }
}

#[test]
fn a_stream_without_an_end_has_streaks() {
    // Sixteen messages are under way all the time. After one of the other way the next is quicker, whatever its own.
    for (ns, expected) in [([20_000, 10_000], 95..=100), ([10_000, 20_000], 0..=5)] {
        let (mut ways, mut now) = (Ways::default(), Instant::now());
        let mut queue = std::collections::VecDeque::new();
        let (mut attached, mut before) = (0, Way::Copy);
        for i in 0..60_000_u32 {
            queue.push_back(ways.begin_at(to_attach(64 << 10), now));
            if queue.len() < 16 {
                continue;
            }
            let message = queue.pop_front().unwrap();
            let changed = std::mem::replace(&mut before, message.way) != message.way;
            now += Duration::from_nanos(if changed { 1000 } else { ns[message.way.place()] });
            ways.ended_at(message, false, None, now);
            attached += u32::from(i >= 10_000 && message.way == Way::Attach);
        }
        let share = attached / 500;
        assert!(expected.contains(&share), "{ns:?}: {share} of 100");
    }
}

#[test]
fn much_may_be_under_way() {
    for (len, depth) in [(1 << 20, 32), (1 << 20, 128), (250_000, 128), (4 << 20, 64), (16 << 20, 32)] {
        let (mut ways, mut now) = (Ways::default(), Instant::now());
        let mut queue = std::collections::VecDeque::new();
        let mut attached = 0;
        for i in 0..10_000_u32 {
            queue.push_back(ways.begin_at(to_attach(len), now));
            if queue.len() < depth {
                continue;
            }
            let message = queue.pop_front().unwrap();
            now += Duration::from_nanos(len / [5, 10][message.way.place()]);
            ways.ended_at(message, false, None, now);
            attached += u32::from(i >= 5000 && message.way == Way::Attach);
        }
        assert!(attached > 4500, "{depth} of {len}: {attached} of 5000");
    }
}

#[test]
fn a_trial_may_wait_for_a_processor() {
    for one_of in [50, 20] {
        let (mut ways, mut number) = (Ways::default(), 0);
        let mut sent = |count: u32, attach: u64| -> u32 {
            (0..count)
                .map(|_| {
                    number += 1;
                    let waits = if number % one_of == 0 { 4_000_000 } else { 0 };
                    ask(&mut ways, 1, to_attach(100_000), |_, way| waits + [100_000, attach][way.place()])
                })
                .sum()
        };
        sent(1000, 150_000);
        sent(10_000, 50_000);
        let attached = sent(10_000, 50_000);
        assert!(attached > 9000, "one of {one_of} waits: {attached} of 10000");
    }
}

#[test]
fn what_keeps_the_next_message_back_counts() {
    // One at a time. In one copy each is faster, but its sender goes on after that only; with so much between them whatever the way.
    let share = |between: fn(u32) -> u64| -> u32 {
        let (mut ways, mut now, mut attached) = (Ways::default(), Instant::now(), 0);
        for i in 0..6000 {
            let message = ways.begin_at(to_attach(100_000), now);
            now += Duration::from_nanos([87_000, 67_000][message.way.place()]);
            ways.ended_at(message, false, None, now);
            attached += u32::from(i >= 3000 && message.way == Way::Attach);
            let most = [14_000, 63_000][message.way.place()];
            now += Duration::from_nanos(between(i).max(most));
        }
        attached / 30
    };
    let all = share(|_| 0);
    assert!(all < 5, "{all} of 100 where it is slower altogether");
    // Where the receiver comes late, or some of its messages do, that is hidden.
    let some: [fn(u32) -> u64; 4] = [
        |_| 10_000_000,
        |_| 100_000,
        |i| if i.is_multiple_of(2) { 10_000_000 } else { 70_000 },
        |i| if i.is_multiple_of(16) { 1_000_000 } else { 70_000 },
    ];
    for (n, between) in some.into_iter().enumerate() {
        let all = share(between);
        assert!(all > 95, "{n}: {all} of 100");
    }
}

#[test]
fn the_way_of_a_message_is_not_what_the_next_one_comes_by() {
    // After a copy the next one follows at once, after one copy it does not.
    let (mut ways, mut now, mut attached) = (Ways::default(), Instant::now(), 0);
    for i in 0..20_000 {
        let message = ways.begin_at(to_attach(100_000), now);
        now += Duration::from_nanos([87_000, 67_000][message.way.place()]);
        ways.ended_at(message, false, None, now);
        attached += u32::from(i >= 10_000 && message.way == Way::Attach);
        now += Duration::from_nanos([5_000, 63_000][message.way.place()]);
    }
    assert!(attached < 500, "{attached} of 10000");
    // Two lengths in turn.
    let mut attached = 0;
    for i in 0..20_000 {
        let len = [100_000, 1 << 20][i % 2];
        let message = ways.begin_at(to_attach(len), now);
        now += Duration::from_nanos([87_000, 67_000][message.way.place()] * len / 100_000);
        ways.ended_at(message, false, None, now);
        attached += u32::from(i >= 10_000 && message.way == Way::Attach);
        now += Duration::from_nanos([14_000, 63_000][message.way.place()] * len / 100_000);
    }
    assert!(attached < 500, "{attached} of 10000");
}

#[test]
fn pauses_between_windows_are_those_of_no_way() {
    let share = |count: u32, pause: u64, copy: fn(u32) -> u64, attach: u64| -> u32 {
        let (mut ways, mut now, mut attached) = (Ways::default(), Instant::now(), 0);
        for i in 0..4000 {
            now += Duration::from_micros(pause);
            let messages: Vec<Measured> =
                (0..count).map(|_| ways.begin_at(to_attach(1 << 20), now)).collect();
            for (n, message) in (0..).zip(messages) {
                now += Duration::from_micros(if message.way == Way::Copy { copy(n) } else { attach });
                ways.ended_at(message, false, None, now);
                attached += u32::from(i >= 2000 && message.way == Way::Attach);
            }
        }
        attached / (20 * count)
    };
    // By copy the first one of a window adds what all wait for, and the others are short.
    let all = share(8, 1000, |n| if n == 0 { 400 } else { 80 }, 140);
    assert!(all <= 5, "{all} of 100");
    let all = share(2, 200, |n| [440, 20][n as usize], 160);
    assert!(all >= 95, "{all} of 100");
}

/// How long messages of 1 MiB take that come one at a time, beside the faster way for each; the n-th takes what `costs` says by each way.
fn beside_the_best(count: u32, costs: impl Fn(u32) -> [f64; 2]) -> f64 {
    let (mut ways, mut now, mut all, mut best) = (Ways::default(), Instant::now(), 0.0, 0.0);
    for number in 0..count {
        let message = ways.begin_at(to_attach(1 << 20), now);
        let costs = costs(number);
        let took = Duration::from_micros(200).mul_f64(costs[message.way.place()]);
        (all, best) = (all + costs[message.way.place()], best + costs[0].min(costs[1]));
        now += took;
        ways.ended_at(message, false, None, now);
        now += took / 2;
    }
    all / best
}

#[test]
fn a_way_that_becomes_much_slower_soon_after_a_trial_is_left_at_once() {
    let all = beside_the_best(2400, |number| [if number < 400 { 1.0 } else { 10.0 }, 1.1]);
    assert!(all < 1.2, "{all}");
}

#[test]
fn a_way_that_was_slow_for_a_while_is_the_usual_one_again() {
    let all = beside_the_best(20_000, |number| [if number % 3000 < 2940 { 1.0 } else { 5.0 }, 1.9]);
    assert!(all < 1.1, "{all}");
}

#[test]
fn messages_that_go_both_ways_at_once_are_others() {
    // In turn: 300 that come alone, faster in two copies, and 300 while others go the other way.
    let (mut ways, mut now, mut all, mut best) = (Ways::default(), Instant::now(), 0, 0);
    for number in 0..12_000 {
        let is_mutual = number / 300 % 2 == 1;
        if is_mutual {
            ways.sent();
        }
        let costs: [u64; 2] = if is_mutual { [480_000, 400_000] } else { [200_000, 280_000] };
        let message = ways.begin_at(to_attach(1 << 20), now);
        let took = costs[message.way.place()];
        (all, best) = (all + took, best + costs[0].min(costs[1]));
        now += Duration::from_nanos(took);
        ways.ended_at(message, false, None, now);
        now += Duration::from_nanos(took / 4);
    }
    assert!(all * 100 < best * 105, "{all} of {best}");
}

/// Two endpoints send to each other all the time, one of them since `before` messages that it had from elsewhere: each message takes its receiver a
/// copy, and the other one's, if that comes in two copies, another. Gives how many of the second half came in one copy, of either.
fn in_one_copy_both_ways(before: u32, is_sending: bool, filled: u64, copied: [u64; 2]) -> [u32; 2] {
    in_one_copy_of(2000..4000, before, is_sending, filled, copied)
}

/// The same of those that are counted.
fn in_one_copy_of(
    counted: std::ops::Range<u32>,
    before: u32,
    is_sending: bool,
    filled: u64,
    copied: [u64; 2],
) -> [u32; 2] {
    let (mut ends, mut now, mut found) = ([Ways::default(), Ways::default()], [Instant::now(); 2], [0; 2]);
    let choice = Choice { len: 1 << 20, one_copy: Way::Resident, is_sending };
    let receive = |ways: &mut Ways, now: &mut Instant, message: Measured, fills: u64| {
        let copied = copied[message.way.place()];
        *now += Duration::from_nanos(fills + copied);
        let copies = copied * if message.way == Way::Copy { 2 } else { 1 };
        let own = message.is_watched.then_some(Own { copies, is_fresh: false, is_at_work: Some(false) });
        ways.ended_at(message, false, own, *now);
    };
    for _ in 0..before {
        ends[0].sent();
        let message = ends[0].begin_at(choice, now[0]);
        receive(&mut ends[0], &mut now[0], message, filled);
    }
    for number in 0..counted.end {
        let messages = [0, 1].map(|end| {
            ends[end].sent();
            ends[end].begin_at(choice, now[end])
        });
        for end in 0..2 {
            let fills = if messages[1 - end].way == Way::Copy { filled } else { 0 };
            receive(&mut ends[end], &mut now[end], messages[end], fills);
            found[end] += u32::from(counted.contains(&number) && messages[end].way != Way::Copy);
        }
    }
    found
}

#[test]
fn both_have_one_copy_at_once_while_both_send() {
    for before in [0, 100] {
        let found = in_one_copy_of(0..40, before, true, 80_000, [100_000, 110_000]);
        assert_eq!(found, [40; 2], "after {before}");
        // Until two copies are tried, and found to take less.
        let found = in_one_copy_of(0..1000, before, true, 80_000, [100_000, 260_000]);
        assert!(found.iter().all(|found| *found < 400), "{found:?} after {before}");
    }
}

#[test]
fn each_spares_the_other_a_copy_while_both_send() {
    for before in [0, 100] {
        // What a receiver sees is slower in one copy as long as the other's way stays: 190 beside 180 us, and 110 beside 100.
        let found = in_one_copy_both_ways(before, true, 80_000, [100_000, 110_000]);
        assert!(found.iter().all(|found| *found > 1800), "{found:?} after {before}");
        // Two copies take less altogether.
        let found = in_one_copy_both_ways(before, true, 80_000, [100_000, 260_000]);
        assert!(found.iter().all(|found| *found < 200), "{found:?} after {before}");
    }
}

#[test]
fn what_has_failed_is_not_begun_with() {
    let resident = Choice { len: 1 << 20, one_copy: Way::Resident, is_sending: false };
    for has_failed in [false, true] {
        let mut ways = Ways::default();
        if has_failed {
            ways.lengths(resident).waiting[1][0].costs[1] = Cost::of(f64::INFINITY);
        }
        let mut in_one = 0;
        let mut now = Instant::now();
        for _ in 0..1000 {
            ways.at_work = AT_WORK.1;
            let message = ways.begin_at(resident, now);
            now += Duration::from_micros(100);
            if message.way == Way::Copy || !has_failed {
                ways.ended_at(message, false, None, now);
            } else {
                ways.failed(message);
            }
            in_one += u32::from(message.way == Way::Resident);
        }
        assert!(if has_failed { (1..=8).contains(&in_one) } else { in_one > 800 }, "{in_one}");
    }
}

#[test]
fn messages_in_turn_are_judged_by_what_elapses() {
    // The sender fills while its receiver copies, and has nothing else to do.
    let found = in_one_copy_both_ways(0, false, 0, [100_000, 120_000]);
    assert!(found.iter().all(|found| *found < 200), "{found:?}");
    let found = in_one_copy_both_ways(0, true, 0, [100_000, 120_000]);
    assert!(found.iter().all(|found| *found > 1800), "{found:?}");
}

/// Messages of a program that works if `is_at_work` says so of their number; a copy takes so long by each way, and while the program
/// works a message takes as long as that does. Only in two copies can that be told. Gives how many of the last half were attached to, of those of
/// a program at work and of others.
fn attached_at_work(is_at_work: impl Fn(u32) -> bool, waiting: [u64; 2], copied: [u64; 2]) -> [u32; 2] {
    let (mut ways, mut now, mut attached) = (Ways::default(), Instant::now(), [0; 2]);
    for number in 0..8000 {
        let (at_work, message) = (is_at_work(number), ways.begin_at(to_attach(1 << 20), now));
        let place = message.way.place();
        now += Duration::from_nanos(if at_work { 1_000_000 } else { waiting[place] });
        let own = message.is_watched.then_some(Own {
            copies: [2 * copied[0], copied[1]][place],
            is_fresh: false,
            is_at_work: (message.way == Way::Copy).then_some(at_work),
        });
        ways.ended_at(message, false, own, now);
        now += Duration::from_nanos(100_000);
        attached[usize::from(at_work)] += u32::from(number >= 4000 && message.way == Way::Attach);
    }
    attached
}

#[test]
fn a_program_that_works_is_spared_copies() {
    // Two copies are faster for a receiver that waits, and less work for none.
    let (waiting, copied) = ([100_000, 150_000], [90_000, 150_000]);
    let [_, attached] = attached_at_work(|_| true, waiting, copied);
    assert!(attached > 3400, "{attached}");
    let [attached, _] = attached_at_work(|_| false, waiting, copied);
    assert!(attached < 200, "{attached}");
    // More work than that of both sides' copies.
    let [_, attached] = attached_at_work(|_| true, waiting, [90_000, 200_000]);
    assert!(attached < 200, "{attached}");
}

#[test]
fn a_message_that_waits_does_not_end_the_work() {
    let mut ways = Ways::default();
    let own = |is_at_work| Some(Own { copies: 1, is_fresh: false, is_at_work: Some(is_at_work) });
    (0..8).for_each(|_| ways.hear(own(true)));
    assert_eq!(ways.at_work, AT_WORK.1);
    for _ in 0..20 {
        ways.hear(own(false));
        ways.hear(own(true));
        assert_eq!(ways.at_work, AT_WORK.1);
    }
    // Two that wait for each one that works do, and so do eight.
    for _ in 0..16 {
        [false, false, true].into_iter().for_each(|it| ways.hear(own(it)));
    }
    assert!(ways.at_work <= AT_WORK.0, "{}", ways.at_work);
    (0..8).for_each(|_| ways.hear(own(true)));
    // A single one that works is no more than that.
    (0..8).for_each(|_| ways.hear(own(false)));
    assert_eq!(ways.at_work, 0);
    ways.hear(own(true));
    assert_eq!(ways.at_work, AT_WORK.0);
    ways.hear(own(false));
    assert_eq!(ways.at_work, 0);
}

/// Messages of a program that works, of which one in five by pages has none of these, or has them granted for it. Gives how many of the last half
/// came by pages.
fn by_pages_at_work(is_fresh: bool) -> u32 {
    let (mut ways, mut now, mut by_pages) = (Ways { at_work: 1, ..Ways::default() }, Instant::now(), 0);
    for number in 0..8000_u32 {
        let message = ways.begin_at(PAGES, now);
        let is_odd = message.way == Way::Pages && number.is_multiple_of(5);
        now += Duration::from_micros(3200);
        let copies = if message.way == Way::Copy || is_odd && !is_fresh { 200_000 } else { 100_000 };
        let own = Own { copies, is_fresh: is_odd && is_fresh, is_at_work: Some(true) };
        ways.ended_at(message, is_odd, Some(own), now);
        by_pages += u32::from(number >= 4000 && message.way == Way::Pages);
    }
    by_pages
}

#[test]
fn a_program_at_work_pays_for_pages_that_are_granted_and_not_for_such_that_are_not() {
    let by_pages = by_pages_at_work(false);
    assert!(by_pages > 3400, "{by_pages}");
    let by_pages = by_pages_at_work(true);
    assert!(by_pages < 400, "{by_pages}");
}

#[test]
fn whichever_message_of_each_step_is_watched_in_turn() {
    for period in 2..=16 {
        let mut ways = Ways::default();
        let mut seen = vec![false; period];
        for number in 0..64 * period {
            let message = ways.begin(to_attach(1 << 20));
            seen[number % period] |= message.is_watched;
            ways.ended(message, false, None);
        }
        assert!(seen.iter().all(|seen| *seen), "{seen:?}");
    }
}

#[test]
fn what_is_known_of_a_program_at_work_is_kept_apart() {
    // In turn 500 of each, of which the first are taken for such as before them.
    let attached = attached_at_work(|number| number / 500 % 2 == 1, [100_000, 150_000], [90_000, 150_000]);
    assert!(attached[0] < 500 && attached[1] > 1600, "{attached:?}");
}

#[test]
fn windows_both_ways_are_such_as_a_whole() {
    let mut ways = Ways::default();
    for window in 0..20 {
        (0..64).for_each(|_| ways.sent());
        let messages: Vec<_> = (0..64).map(|_| ways.begin(to_attach(1 << 20))).collect();
        assert!(messages.iter().all(|message| message.is_mutual), "window {window}");
        for message in messages {
            ways.ended(message, false, None);
        }
    }
    let after = (0..1000).filter(|_| {
        let message = ways.begin(to_attach(1 << 20));
        ways.ended(message, false, None);
        message.is_mutual
    });
    assert!(after.count() <= 256);
}

#[test]
fn what_slows_both_ways_down_changes_none() {
    // Nearly as fast as each other, and both slower for a tenth of all messages; the first messages after a change take longer.
    let (mut ways, mut now) = (Ways::default(), Instant::now());
    let (mut last, mut changes, mut since) = (None, 0, 0);
    for number in 0..8000 {
        let message = ways.begin_at(to_attach(1 << 20), now);
        if last.replace(message.way) != Some(message.way) {
            (changes, since) = (changes + 1, 0);
        }
        since += 1;
        let slow = if number % 500 < 50 { 2 } else { 1 };
        let ns = [200_000, 205_000][message.way.place()] * slow * if since <= 8 { 2 } else { 1 };
        now += Duration::from_nanos(ns);
        ways.ended_at(message, false, None, now);
        now += Duration::from_nanos(ns / 4);
    }
    // Those at first, and two for each of the trials, of which there are regular ones and some in vain.
    let trials = 2 + u64::from(MOST_DOUBTS);
    assert!(changes <= u64::from(TRIALS) + 2 * trials, "{changes}");
}

#[test]
fn a_way_that_has_become_slow_is_soon_left() {
    for ns in [200_000, 1_000_000, 5_000_000] {
        let mut ways = Ways::default();
        run(&mut ways, 2000, 100_000, [100_000, 50_000]);
        let attached = run(&mut ways, 1000, 100_000, [100_000, ns]);
        assert!(attached < 250, "{ns}: {attached}");
    }
}

#[test]
fn dear_odd_messages_count_in_full() {
    // One at a time: one of 20 is odd and takes 4 ms.
    let (mut ways, mut now, mut pages, mut last) = (Ways::default(), Instant::now(), 0_u32, 0);
    for i in 0..60_000 {
        now += Duration::from_micros(50);
        let message = ways.begin_at(PAGES, now);
        let is_pages = message.way == Way::Pages;
        pages += u32::from(is_pages);
        let is_odd = is_pages && pages.is_multiple_of(20);
        let ns = if is_odd { 4_000_000 } else { [100_000, 60_000][message.way.place()] };
        now += Duration::from_nanos(ns);
        ways.ended_at(message, is_odd, None, now);
        last += u32::from(i >= 50_000 && is_pages);
    }
    assert!(last < 500, "{last} of 10000");
}

#[test]
fn odd_messages_that_come_together_are_part_of_the_mean() {
    // Where 20 of 400 cost five times a copy and the others a fifth of one, pages are the better way by far.
    let mut ways = Ways::default();
    let odd = |i: u32, _: u32| if i % 400 < 20 { (true, 500_000) } else { (false, 20_000) };
    by_pages(&mut ways, 60_000, odd);
    let (all, _) = by_pages(&mut ways, 40_000, odd);
    assert!(all > 36_000, "{all}");
}

#[test]
fn a_message_that_stalls_counts_as_much_by_either_way() {
    // One of 200 stalls for 4 ms.
    for (attach, expected) in [(26_000, 0..=5), (15_000, 95..=100)] {
        let (mut ways, mut number, mut attached) = (Ways::default(), 0, 0);
        for i in 0..8000 {
            let all = ask(&mut ways, 8, to_attach(64 << 10), |_, way| {
                number += 1;
                let stalls = if number % 200 == 0 { 4_000_000 } else { 0 };
                stalls + [20_000, attach][way.place()]
            });
            attached += if i >= 4000 { all } else { 0 };
        }
        let share = attached / 320;
        assert!(expected.contains(&share), "{attach}: {share} of 100");
    }
}

#[test]
fn one_message_that_waits_for_a_processor_changes_nothing() {
    let mut ways = Ways::default();
    run(&mut ways, 100, 100_000, [100, 200]);
    let mut attached = 0;
    for _ in 0..20 {
        attached += run(&mut ways, 1, 100_000, [4_000_000, 4_000_000]);
        attached += run(&mut ways, 20, 100_000, [100, 200]);
    }
    assert!((1..=64).contains(&attached), "the trial in 420 messages: {attached}");
}

#[test]
fn a_message_that_waited_for_another_counts_from_the_end_of_that() {
    let (mut ways, len) = (Ways::default(), attach::LEAST);
    let mut now = Instant::now();
    for _ in 0..6 {
        let messages: Vec<Measured> = (0..50).map(|_| ways.begin_at(to_attach(len), now)).collect();
        for message in messages {
            now += Duration::from_nanos(len);
            ways.ended_at(message, false, None, now);
        }
    }
    assert_eq!(ways.lengths(to_attach(len)).waiting[0][1].costs[0].each(), Some(1.0));
}

#[test]
fn a_way_that_fails_is_not_taken_until_it_works() {
    let (mut ways, choice) = (Ways::default(), to_attach(100_000));
    let several = |ways: &mut Ways, count: u32| -> u32 {
        (0..count / 4).map(|_| ask(ways, 4, choice, |_, way| [100_000, 50_000][way.place()])).sum()
    };
    several(&mut ways, 200);
    let mut now = ways.last_end.unwrap();
    let [message, second, late] = [0; 3].map(|_| ways.begin_at(choice, now));
    assert_eq!([message, second, late].map(|message| message.way), [Way::Attach; 3]);
    ways.failed(message);
    now += Duration::from_micros(100);
    ways.ended_at(late, false, None, now);
    assert_eq!(several(&mut ways, 64), 64, "one buffer can be different");
    let late = ways.begin_at(choice, ways.last_end.unwrap());
    ways.failed(second);
    let third = ways.begin_at(choice, ways.last_end.unwrap());
    ways.failed(third);
    now = ways.last_end.unwrap();
    ways.ended_at(late, false, None, now);
    assert_eq!(several(&mut ways, 60), 0, "what was asked for before says nothing");
    assert!(several(&mut ways, 4096) > 50, "tried again");
    assert!(several(&mut ways, 64) > 60, "and it works");
}

/// Sends messages that may come by pages, the n-th of those odd or not, in so many nanoseconds; by copy in 100,000. Gives how many came by
/// pages, and the mean of all in nanoseconds.
fn by_pages(ways: &mut Ways, count: u32, mut pages: impl FnMut(u32, u32) -> (bool, u64)) -> (u32, u64) {
    let (mut now, mut all, mut sum) = (ways.last_end.unwrap_or_else(Instant::now), 0, 0);
    for i in 0..count {
        let message = ways.begin_at(PAGES, now);
        let way = message.way;
        let (is_odd, ns) = if way == Way::Pages { pages(i, all) } else { (false, 100_000) };
        all += u32::from(way == Way::Pages);
        sum += ns;
        now += Duration::from_nanos(ns);
        ways.ended_at(message, is_odd, None, now);
    }
    (all, sum / u64::from(count))
}

/// A pool of buffers, each of which is odd the first two times that it comes by pages.
fn pool(buffers: usize) -> impl FnMut(u32, u32) -> (bool, u64) {
    let mut seen = vec![0; buffers];
    move |i, _| {
        let seen = &mut seen[i as usize % buffers];
        *seen += 1;
        [(true, 100_000), (true, 300_000), (false, 60_000)][usize::min(*seen, 3) - 1]
    }
}

#[test]
fn what_it_takes_to_grant_pages_once_does_not_count() {
    let mut ways = Ways::default();
    assert!(by_pages(&mut ways, 400, pool(1)).0 > 300);
    // Other buffers, more of them.
    for buffers in [16, 40] {
        let (all, _) = by_pages(&mut ways, 2000, pool(buffers));
        assert!(all >= 2000 - 64, "{all}: all but a trial of two copies");
    }
    // Tried until a buffer has come back.
    let (all, _) = by_pages(&mut Ways::default(), 1000, pool(5));
    assert!(all > 850, "{all}");
}

#[test]
fn pages_that_must_be_granted_again_and_again_cost_what_they_cost() {
    // One message of so many is odd, and takes so long; after those of the beginning all is hardly slower than by copy.
    for (one_of, ns) in
        [(1, 150_000), (1, 2_000_000), (2, 500_000), (3, 2_000_000), (4, 500_000), (8, 800_000)]
    {
        let mut ways = Ways::default();
        by_pages(&mut ways, 1000, pool(1));
        let odd = |_: u32, n: u32| if n.is_multiple_of(one_of) { (true, ns) } else { (false, 60_000) };
        by_pages(&mut ways, 3000, odd);
        let (all, mean) = by_pages(&mut ways, 50_000, odd);
        assert!(mean < 125_000, "1 of {one_of} in {ns}: {all} by pages, {mean} ns");
        // A buffer that comes back is found again.
        let (all, _) = by_pages(&mut ways, 60_000, pool(4));
        assert!(all > 30_000, "1 of {one_of} in {ns}: {all}");
    }
    // Two of three.
    let mut ways = Ways::default();
    by_pages(&mut ways, 1000, pool(1));
    let odd = |_: u32, n: u32| if n.is_multiple_of(3) { (false, 60_000) } else { (true, 500_000) };
    by_pages(&mut ways, 3000, odd);
    let (all, mean) = by_pages(&mut ways, 50_000, odd);
    assert!(mean < 125_000, "{all} by pages, {mean} ns");
    // Of few the grants are paid by the others, and worth it.
    let mut ways = Ways::default();
    let odd = |_: u32, n: u32| if n.is_multiple_of(40) { (true, 500_000) } else { (false, 60_000) };
    assert!(by_pages(&mut ways, 10_000, odd).0 > 9_700);
}

#[test]
fn a_large_pool_stays_although_some_messages_wait_for_a_processor() {
    let mut ways = Ways::default();
    let mut new = pool(200);
    by_pages(&mut ways, 4000, &mut new);
    let (all, _) =
        by_pages(&mut ways, 16_000, |i, n| if n % 200 == 199 { (false, 3_000_000) } else { new(i, n) });
    assert!(all > 10_000, "{all}");
}

#[test]
fn buffers_that_never_come_back_end_their_trials() {
    let mut ways = Ways::default();
    let (all, _) = by_pages(&mut ways, 10_000, |_, _| (true, 105_000));
    assert!(all < 1200, "{all}");
    // Nor do those that came back once keep others on their way.
    let mut ways = Ways::default();
    by_pages(&mut ways, 1000, pool(1));
    let (all, _) = by_pages(&mut ways, 20_000, |_, _| (true, 120_000));
    assert!(all < 2000, "{all}");
}

#[test]
fn odd_messages_are_not_charged_to_those_that_follow_them() {
    // Eight at a time, of which the first is odd at first: its pages are granted then.
    let (mut ways, mut now) = (Ways::default(), Instant::now());
    let mut window = |ways: &mut Ways, is_granted: bool| -> usize {
        let messages: Vec<Measured> = (0..8).map(|_| ways.begin_at(PAGES, now)).collect();
        for (n, message) in messages.iter().enumerate() {
            let is_odd = !is_granted && n == 0 && message.way == Way::Pages;
            let ns = if is_odd { 5_000_000 } else { [100_000, 60_000][message.way.place()] };
            now += Duration::from_nanos(ns);
            ways.ended_at(*message, is_odd, None, now);
        }
        messages.iter().filter(|message| message.way == Way::Pages).count()
    };
    (0..20).for_each(|_| _ = window(&mut ways, false));
    assert_eq!((0..10).map(|_| window(&mut ways, true)).sum::<usize>(), 80);
}

#[test]
fn a_message_between_others_of_the_other_way_says_nothing_of_its_own() {
    // One that comes by another way than the one before takes longer, as where caches or the sender are not prepared for it.
    for (ns, expected) in [([100_000, 120_000], 0..=6), ([100_000, 80_000], 94..=100)] {
        for depth in [1, 8] {
            let (mut ways, mut now, mut before, mut paged) = (Ways::default(), Instant::now(), Way::Copy, 0);
            for i in 0..4000 {
                now += Duration::from_micros(50);
                let messages: Vec<Measured> = (0..depth).map(|_| ways.begin_at(PAGES, now)).collect();
                for message in messages {
                    let changed = std::mem::replace(&mut before, message.way) != message.way;
                    now += Duration::from_nanos(ns[message.way.place()] + if changed { 60_000 } else { 0 });
                    ways.ended_at(message, false, None, now);
                    paged += usize::from(i >= 2000 && message.way == Way::Pages);
                }
            }
            let share = paged / depth / 20;
            assert!(expected.contains(&share), "{ns:?}, {depth} at a time: {share} of 100");
        }
    }
}

#[test]
fn pages_may_take_a_little_longer_since_their_sender_does_not_copy() {
    for (ns, expected) in [(102_000, true), (105_000, false)] {
        let (mut ways, now, mut by_pages) = (Ways::default(), Instant::now(), 0);
        for _ in 0..200 {
            let message = ways.begin_at(PAGES, now);
            let way = message.way;
            let ns = if way == Way::Pages { ns } else { 100_000 };
            by_pages += u32::from(way == Way::Pages);
            ways.last_end = None;
            ways.ended_at(message, false, None, now + Duration::from_nanos(ns));
        }
        assert_eq!(by_pages > 100, expected, "{ns}: {by_pages}");
    }
}

#[test]
fn what_lies_in_the_region_is_measured_by_itself() {
    let (mut ways, mut now) = (Ways::default(), Instant::now());
    let resident = Choice { len: 100_000, one_copy: Way::Resident, is_sending: false };
    for i in 0..300 {
        for (choice, [copy, one_copy]) in
            [(resident, [100_000, 50_000]), (to_attach(100_000), [100_000, 200_000])]
        {
            now += Duration::from_millis(1);
            let message = ways.begin_at(choice, now);
            let way = message.way;
            let took = if way == Way::Copy { copy } else { one_copy };
            ways.last_end = None;
            ways.ended_at(message, false, None, now + Duration::from_nanos(took));
            if i >= 6 * TRIALS {
                let faster = if choice.one_copy == Way::Resident { Way::Resident } else { Way::Copy };
                assert_eq!(way, faster, "message {i}");
            }
        }
    }
}

#[test]
fn classes_are_powers_of_four() {
    let lens = [1, (1 << 16) - 1, 1 << 16, (1 << 18) - 1, 1 << 18, 1 << 20, 1 << 22, 1 << 40, u64::MAX];
    assert_eq!(lens.map(class_of), [0, 0, 1, 1, 2, 3, 4, 8, 8]);
}
