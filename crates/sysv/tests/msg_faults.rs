//! A process is killed at each step of sending and receiving, and of mending what another one left: a message is in the queue
//! or was taken, and all of the queue's memory is there.

mod queues;

use isthmus_sysv::ipc::NOWAIT;
use isthmus_sysv::msg::fault::{Step, arm};
use rustix::process::{Signal, getpid, kill_process};

use queues::{Queue, World, read_line, told};

const QUEUE: usize = 16384;

fn all_steps() -> impl Iterator<Item = Step> {
    Step::SEND.into_iter().chain(Step::RECEIVE).chain(Step::REPAIR)
}

#[test]
#[ignore = "the other process of the tests here"]
fn child() {
    let Some(told) = told() else { return };
    let q = told.queue();
    let step = all_steps().nth(usize::try_from(told.args[1]).unwrap()).unwrap();
    println!("ready");
    read_line();
    arm(step, 0, |_| kill_process(getpid(), Signal::KILL).unwrap());
    match told.role.as_str() {
        "send" => q.send(7, &[7; 100], NOWAIT).unwrap(),
        _ => drop(q.receive(told.args[2], 8192, NOWAIT).unwrap()),
    }
    println!("survived");
    read_line();
}

/// Has a process do it and be killed at a step; gives whether it came to that.
fn die(world: &World, role: &str, id: i32, step: Step, kind: i64) -> bool {
    let at = all_steps().position(|s| s == step).unwrap();
    let mut other = world.other(role, &[&id, &at, &kind]);
    other.await_line("ready");
    other.say("go");
    let is_dead = other.line("survived").is_none();
    other.kill();
    is_dead
}

/// Messages of five types, of which the second lies in several pieces.
fn filled(world: &World) -> (i32, Queue, Vec<(i64, Vec<u8>)>) {
    let (id, q) = world.queue();
    for kind in 1..200 {
        q.send(1 + kind % 2, &[1; 70], 0).unwrap();
    }
    while q.receive(2, 70, NOWAIT).is_ok() {}
    let messages: Vec<(i64, Vec<u8>)> =
        [(1, 10), (2, 5000), (3, 0), (4, 8), (5, 9)].map(|(kind, len)| (kind, vec![9; len])).into();
    for (kind, text) in &messages {
        q.send(*kind, text, 0).unwrap();
    }
    while q.receive(1, 70, NOWAIT).is_ok_and(|(_, text)| text.len() == 70) {}
    (id, q, messages[1..].to_vec())
}

fn check_all_is_there(q: &Queue) {
    for len in [1, 8192, 100] {
        assert_eq!(q.fill(len), QUEUE / len);
        assert!(q.drain().iter().all(|(_, text)| *text == vec![7; len]));
    }
}

#[test]
fn a_message_is_sent_or_not_wherever_its_sender_dies() {
    let world = World::new();
    let mut came = 0;
    for (i, step) in Step::SEND.into_iter().enumerate() {
        let (id, q, mut messages) = filled(&world);
        if step == Step::Reclaiming {
            // That is done where room is short.
            q.drain();
            messages.clear();
            q.fill(8192);
            q.receive(0, 8192, 0).unwrap();
            messages.push((1, vec![7; 8192]));
        }
        let is_dead = die(&world, "send", id, step, 0);
        assert!(is_dead, "{step:?} does not come");
        came += 1;
        let is_sent = i >= 4;
        assert_eq!(i >= 4, matches!(step, Step::Sent | Step::SentCounted | Step::SendUnlocked));
        if is_sent {
            messages.push((7, vec![7; 100]));
        }
        // Both sides find it, whichever comes first.
        if i % 2 == 0 {
            q.send(8, b"behind", 0).unwrap();
            messages.push((8, b"behind".to_vec()));
        }
        assert_eq!(q.drain(), messages, "{step:?}");
        check_all_is_there(&q);
        world.remove(id);
    }
    assert_eq!(came, Step::SEND.len());
}

#[test]
fn a_message_is_taken_or_not_wherever_its_receiver_dies() {
    let world = World::new();
    // The first, one in the middle, the last.
    for kind in [2, 3, 5] {
        for step in Step::RECEIVE {
            let (id, q, mut messages) = filled(&world);
            let is_dead = die(&world, "receive", id, step, kind);
            assert_eq!(is_dead, step != Step::Bypassed || kind == 3, "{step:?} of {kind}");
            let is_taken = !matches!(step, Step::ReceiveLocked | Step::Copied | Step::ReceiveBegun);
            if is_taken {
                messages.retain(|(k, _)| *k != kind);
            }
            if kind == 3 {
                q.send(8, b"behind", 0).unwrap();
                messages.push((8, b"behind".to_vec()));
            }
            assert_eq!(q.drain(), messages, "{step:?} of {kind}");
            check_all_is_there(&q);
            world.remove(id);
        }
    }
}

#[test]
fn who_mends_a_queue_may_die_too() {
    let world = World::new();
    for step in Step::REPAIR {
        for first in [Step::Sent, Step::Written] {
            let (id, q, mut messages) = filled(&world);
            assert!(die(&world, "send", id, first, 0));
            assert!(die(&world, "send", id, step, 0), "{step:?}");
            if first == Step::Sent {
                messages.push((7, vec![7; 100]));
            }
            q.send(8, b"behind", 0).unwrap();
            messages.push((8, b"behind".to_vec()));
            assert_eq!(q.drain(), messages, "{step:?}");
            check_all_is_there(&q);
            world.remove(id);
        }
        for first in [Step::Bypassed, Step::Taken] {
            let (id, q, mut messages) = filled(&world);
            assert!(die(&world, "receive", id, first, 3));
            assert!(die(&world, "receive", id, step, 0), "{step:?}");
            messages.retain(|(kind, _)| *kind != 3);
            assert_eq!(q.drain(), messages, "{step:?}");
            check_all_is_there(&q);
            world.remove(id);
        }
    }
}
