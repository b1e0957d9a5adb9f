//! Message queues, as msgop(2) and msgctl(2) have them, in one process and between several.

mod queues;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use isthmus_sysv::ipc::{CREAT, NOWAIT};
use isthmus_sysv::msg::{EXCEPT, Limits, NOERROR, queue};
use isthmus_sysv::{Caller, Errno, Ipc};

use queues::{Dice, LONG, Queue, World, eventually, read_line, told};

/// Bytes of a queue, and of a message, at most.
const QUEUE: usize = 16384;
const MESSAGE: usize = 8192;

fn text(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i * 7 + seed) % 251).unwrap()).collect()
}

#[test]
fn messages_come_in_order_and_by_type() {
    let world = World::new();
    let (_, q) = world.queue();
    for kind in [3, 1, 2, 1, 5] {
        q.send(kind, &text(9 * usize::try_from(kind).unwrap(), 1), 0).unwrap();
    }
    let kind = |wanted, flags| q.receive(wanted, 100, NOWAIT | flags).map(|(kind, _)| kind);
    assert_eq!(kind(2, 0), Ok(2));
    assert_eq!(kind(4, 0), Err(Errno::NOMSG));
    assert_eq!(kind(-2, 0), Ok(1), "the lowest, though not the first");
    assert_eq!(kind(3, EXCEPT), Ok(1));
    assert_eq!(kind(i64::MIN, 0), Ok(3));
    assert_eq!(kind(-4, 0), Err(Errno::NOMSG));
    assert_eq!(kind(0, EXCEPT), Ok(5), "only a type can be excepted");
    assert_eq!(kind(0, 0), Err(Errno::NOMSG));
}

#[test]
fn what_is_too_long_stays_or_is_cut() {
    let world = World::new();
    let (id, q) = world.queue();
    q.send(1, &text(100, 0), 0).unwrap();
    assert_eq!(q.receive(0, 99, NOWAIT), Err(Errno::TOOBIG));
    let no_place = |_| Err(Errno::FAULT);
    let mut sleep = isthmus_sysv::waiting::Uninterrupted;
    assert_eq!(q.0.receive(0, 100, &no_place, NOWAIT, &queues::Me, &mut sleep), Err(Errno::FAULT));
    assert_eq!(q.receive(0, 10, NOWAIT | NOERROR), Ok((1, text(10, 0))));
    q.send(1, &[], 0).unwrap();
    assert_eq!(q.receive(0, 0, NOWAIT), Ok((1, vec![])));
    for kind in [0, -1, i64::MIN] {
        assert_eq!(q.send(kind, &[1], NOWAIT), Err(Errno::INVAL));
    }
    let caller = Caller::current();
    let stat = world.ipc.msgstat(id, &caller, false).unwrap();
    assert_eq!((stat.numbers.messages, stat.numbers.bytes, stat.most), (0, 0, QUEUE as u64));
    let me = u64::from(caller.pid);
    assert_eq!((stat.numbers.sender, stat.numbers.receiver), (me, me));
    assert!(stat.numbers.sent > 0 && stat.numbers.received >= stat.numbers.sent);
}

#[test]
fn a_queue_takes_as_much_as_its_limit_says_and_no_more() {
    let world = World::new();
    let (id, q) = world.queue();
    for round in 0..3 {
        for (len, count) in [(0, QUEUE), (1, QUEUE), (8, 2048), (9, 1820), (1000, 16), (MESSAGE, 2)] {
            assert_eq!(q.fill(len), count, "messages of {len} bytes, round {round}");
            assert_eq!(q.send(1, &text(len, 0), NOWAIT), Err(Errno::AGAIN));
            let stat = world.ipc.msgstat(id, &Caller::current(), false).unwrap();
            assert_eq!(stat.numbers.messages, count as u64);
            assert_eq!(stat.numbers.bytes, (len * count) as u64);
            assert!(q.drain().into_iter().all(|(_, text)| text == vec![7; len]));
        }
        // Where no two free blocks follow each other.
        assert_eq!(q.fill(1), QUEUE);
        let marked = |i: usize| if i.is_multiple_of(3) { 3 } else { 1 };
        q.drain();
        for i in 0..QUEUE / 2 {
            q.send(marked(i), &[7], 0).unwrap();
        }
        while q.receive(3, 1, NOWAIT).is_ok() {}
        let left = QUEUE - (QUEUE / 2 - QUEUE.div_ceil(6));
        assert_eq!(q.fill(1000), left / 1000);
        q.drain();
    }
}

#[test]
fn a_limit_can_be_set() {
    let world = World::new();
    let (id, q) = world.queue();
    let caller = Caller::current();
    let owner = (caller.uid, caller.gid);
    let set = |most| world.ipc.msgset(id, &caller, owner, 0o600, most, &Limits::default());
    set(10).unwrap();
    assert_eq!(q.fill(0), 10);
    q.drain();
    assert_eq!(q.fill(3), 3);
    set(8).unwrap();
    assert_eq!(q.send(1, &[], NOWAIT), Err(Errno::AGAIN), "more is in it than may be");
    q.receive(0, 3, 0).unwrap();
    q.receive(0, 3, 0).unwrap();
    q.send(1, &[1; 5], NOWAIT).unwrap();
    assert_eq!(q.send(1, &[1], NOWAIT), Err(Errno::AGAIN));
    q.drain();
    // Beyond what there is memory for, it is full where that is.
    let high = Limits { queue: u32::MAX, ..Limits::default() };
    world.ipc.msgset(id, &caller, owner, 0o600, 1 << 30, &high).unwrap();
    let count = q.fill(MESSAGE);
    assert!((500 * 1024 / MESSAGE..560 * 1024 / MESSAGE).contains(&count), "{count}");
    assert_eq!(q.drain().len(), count);
    assert!(q.fill(0) >= QUEUE);
    q.drain();
    assert_eq!(q.fill(MESSAGE), count);
    let bad = (u32::MAX, caller.gid);
    assert_eq!(world.ipc.msgset(id, &caller, bad, 0o600, 1, &Limits::default()), Err(Errno::INVAL));
}

#[test]
fn modes_are_heeded_at_once_when_they_change() {
    let world = World::new();
    let (id, q) = world.queue();
    let root = Caller::current();
    if root.uid != 0 {
        return;
    }
    /// Somebody else, since the beginning.
    struct Other;
    impl isthmus_sysv::msg::Who for Other {
        fn version(&self) -> u64 {
            1
        }
        fn caller(&self) -> std::sync::Arc<Caller> {
            std::sync::Arc::new(Caller { uid: 1234, gid: 1234, groups: vec![], pid: 1 })
        }
    }
    let buf = isthmus_region::local::LocalBuf::leaked(vec![1]);
    let mut sleep = isthmus_sysv::waiting::Uninterrupted;
    let mut send = || q.0.send(1, buf, NOWAIT, &Other, &mut sleep);
    let set = |mode| world.ipc.msgset(id, &root, (0, 0), mode, 16384, &Limits::default()).unwrap();
    assert_eq!(send(), Err(Errno::ACCESS));
    set(0o602);
    assert_eq!(send(), Ok(()));
    assert_eq!(send(), Ok(()));
    set(0o604);
    assert_eq!(send(), Err(Errno::ACCESS));
    let mut sleep = isthmus_sysv::waiting::Uninterrupted;
    let place = |_| Ok(buf);
    let mut receive = || q.0.receive(0, 1, &place, NOWAIT, &Other, &mut sleep);
    assert_eq!(receive(), Ok((1, 1)));
    set(0o600);
    assert_eq!(receive(), Err(Errno::ACCESS));
    q.send(1, &[1], 0).unwrap();
}

/// A queue as the man page has it.
#[derive(Default)]
struct Model(VecDeque<(i64, Vec<u8>)>);

impl Model {
    fn bytes(&self) -> usize {
        self.0.iter().map(|(_, text)| text.len()).sum()
    }

    fn send(&mut self, kind: i64, text: &[u8]) -> Result<(), Errno> {
        if self.bytes() + text.len() > QUEUE || self.0.len() + 1 > QUEUE {
            return Err(Errno::AGAIN);
        }
        self.0.push_back((kind, text.to_vec()));
        Ok(())
    }

    fn receive(&mut self, kind: i64, size: usize, flags: i32) -> Result<(i64, Vec<u8>), Errno> {
        let lowest = self.0.iter().map(|m| m.0).filter(|k| *k <= -kind).min();
        let at = self.0.iter().position(|m| match kind {
            0 => true,
            ..0 => Some(m.0) == lowest,
            _ if flags & EXCEPT != 0 => m.0 != kind,
            _ => m.0 == kind,
        });
        let at = at.ok_or(Errno::NOMSG)?;
        if self.0[at].1.len() > size && flags & NOERROR == 0 {
            return Err(Errno::TOOBIG);
        }
        let (kind, mut text) = self.0.remove(at).unwrap();
        text.truncate(size);
        Ok((kind, text))
    }
}

#[test]
fn random_calls_do_what_a_model_does() {
    let world = World::new();
    let (id, q) = world.queue();
    let mut model = Model::default();
    let mut dice = Dice(7);
    let begun = Instant::now();
    let mut calls = 0;
    while begun.elapsed() < Duration::from_secs(4) {
        calls += 1;
        // Sizes and the balance of sending and receiving change from time to time.
        let phase = calls / 500;
        let longest = [40, 3000, 200, 8192, 1][phase % 5];
        if dice.below(10) < [5, 6, 4][phase % 3] {
            let kind = 1 + i64::try_from(dice.below(6)).unwrap();
            let text = text(usize::try_from(dice.below(longest + 1)).unwrap(), calls);
            assert_eq!(q.send(kind, &text, NOWAIT), model.send(kind, &text), "call {calls}");
        } else {
            let kind = i64::try_from(dice.below(14)).unwrap() - 7;
            let flags = [0, EXCEPT, NOERROR, 0][usize::try_from(dice.below(4)).unwrap()];
            let size = usize::try_from(dice.below(2 * longest)).unwrap();
            let got = q.receive(kind, size, NOWAIT | flags);
            assert_eq!(got, model.receive(kind, size, flags), "call {calls}");
        }
        if calls % 64 == 0 {
            let stat = world.ipc.msgstat(id, &Caller::current(), false).unwrap();
            assert_eq!(stat.numbers.messages, model.0.len() as u64);
            assert_eq!(stat.numbers.bytes, model.bytes() as u64);
        }
    }
    assert!(calls > 2000, "{calls}");
    assert_eq!(q.drain(), Vec::from(model.0));
}

/// Sends numbers to those that receive, from two processes to two, by types, and asks whether each came once and in order.
#[test]
fn each_message_comes_once_and_those_of_a_sender_in_order() {
    const EACH: i64 = 20_000;
    let world = World::new();
    let (id, _q) = world.queue();
    let mut receivers: Vec<_> =
        (1..3).map(|kind| world.other("receive", &[&id, &kind, &(2 * EACH)])).collect();
    let mut senders: Vec<_> = (0..2).map(|me| world.other("send", &[&id, &me, &EACH])).collect();
    for other in receivers.iter_mut().chain(&mut senders) {
        other.await_line("ready");
    }
    for other in receivers.iter_mut().chain(&mut senders) {
        other.say("go");
    }
    for other in senders.iter_mut().chain(&mut receivers) {
        other.await_line("done");
    }
}

/// Sends `count` messages of each of two types.
fn send_role(q: &Queue, me: i64, count: i64) {
    for i in 0..count {
        for kind in [1, 2] {
            let len = usize::try_from(16 + (i * 31) % 200).unwrap();
            let mut bytes = text(len, usize::try_from(i).unwrap());
            bytes[..8].copy_from_slice(&me.to_le_bytes());
            bytes[8..16].copy_from_slice(&i.to_le_bytes());
            q.send(kind, &bytes, 0).unwrap();
        }
    }
}

fn receive_role(q: &Queue, kind: i64, count: i64) {
    let mut next = [0, 0];
    for _ in 0..count {
        let (_, bytes) = q.receive(kind, 8192, 0).unwrap();
        let word = |at: usize| i64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let (from, number) = (usize::try_from(word(0)).unwrap(), word(8));
        assert_eq!(number, next[from], "of sender {from}");
        assert_eq!(bytes.len(), usize::try_from(16 + (number * 31) % 200).unwrap());
        assert_eq!(bytes[16..], text(bytes.len(), usize::try_from(number).unwrap())[16..]);
        next[from] += 1;
    }
}

#[test]
fn waiters_learn_that_a_queue_is_removed() {
    let world = World::new();
    let (empty, q) = world.queue();
    let (full, _) = world.queue();
    Queue(world.ipc.queue(full).unwrap()).fill(1024);
    let mut others: Vec<_> = (0..2).map(|_| world.other("wait_for_message", &[&empty])).collect();
    others.extend((0..2).map(|_| world.other("wait_for_room", &[&full])));
    others.iter_mut().for_each(|other| drop(other.await_line("ready")));
    std::thread::sleep(Duration::from_millis(300));
    let begun = Instant::now();
    for id in [empty, full] {
        world.ipc.msgremove(id, &Caller::current()).unwrap();
    }
    for other in &mut others {
        assert_eq!(other.await_line("ended:"), format!("{}", Errno::IDRM));
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(q.receive(0, 1, NOWAIT), Err(Errno::IDRM));
    assert_eq!(world.ipc.queue(empty).err(), Some(Errno::INVAL));
    assert_eq!(world.ipc.msgstat(empty, &Caller::current(), true).err(), Some(Errno::INVAL));
}

#[test]
fn a_queue_that_was_removed_leaves_its_memory_to_others() {
    let (world, me) = (World::new(), Caller::current());
    let client = Ipc::new(&world.attach());
    for round in 0..100 {
        let id = client.msgget(0, CREAT | 0o600, &me, &Limits::default());
        let id = id.unwrap_or_else(|e| panic!("queue {round}: {e}"));
        // A server answers, and never looks at the queue again.
        Queue(world.ipc.queue(id).unwrap()).send(1, b"answer", 0).unwrap();
        assert_eq!(Queue(client.queue(id).unwrap()).drain().len(), 1);
        client.msgremove(id, &me).unwrap();
    }
}

/// How long it takes a process that has gone to sleep to go on after `act`; the best of a few, since the machine may be busy.
fn time_to_wake(
    world: &World,
    role: &str,
    id: i32,
    mut prepare: impl FnMut(),
    mut act: impl FnMut(),
) -> Duration {
    let rounds = (0..5).map(|_| {
        prepare();
        let mut other = world.other(role, &[&id]);
        other.await_line("ready");
        std::thread::sleep(Duration::from_millis(300));
        let begun = Instant::now();
        act();
        assert_eq!(other.await_line("ended:"), "Ok");
        begun.elapsed()
    });
    rounds.min().unwrap()
}

#[test]
fn waiters_go_on_when_they_can() {
    /// A sleep that nobody ends lasts 250 ms.
    const SOON: Duration = Duration::from_millis(100);
    let world = World::new();
    let (id, q) = world.queue();
    // One of another type wakes nobody for good.
    let prepare = || drop(q.drain());
    let took = time_to_wake(&world, "wait_for_message", id, prepare, || {
        q.send(9, b"of another type", 0).unwrap();
        q.send(5, b"now", 0).unwrap();
    });
    assert!(took < SOON, "{took:?}");
    let prepare = || assert!(q.fill(1024) > 0);
    q.drain();
    let took = time_to_wake(&world, "wait_for_room", id, prepare, || {
        q.receive(0, 1024, 0).unwrap();
        // The other process has filled it again.
        while q.receive(0, 1024, NOWAIT).is_err() {}
    });
    assert!(took < SOON, "{took:?}");
    let (caller, high) = (Caller::current(), Limits { queue: 1 << 20, ..Limits::default() });
    let set = |most| world.ipc.msgset(id, &caller, (caller.uid, caller.gid), 0o600, most, &high).unwrap();
    let prepare = || {
        set(16384);
        q.drain();
        q.fill(1024);
    };
    let took = time_to_wake(&world, "wait_for_room", id, prepare, || set(20_000));
    assert!(took < SOON, "{took:?}");
}

#[test]
fn memory_is_enough_for_every_limit() {
    for most in [1, 10, 16384, 65536, 1 << 20, 1 << 30] {
        let bytes = queue::bytes(most, 8192);
        assert!(bytes > 2 * most.min(1 << 20) && bytes < 40 * most + 64 * 1024, "{most}: {bytes}");
    }
    assert!(queue::bytes(16384, 8192) < 600 << 10);
}

const KILLS: u32 = 200;
const WORKERS: usize = 4;

/// Two processes send numbers, two receive them and say which, and some are killed. What a dead process had in its hands may
/// be lost.
#[test]
fn nothing_comes_twice_or_half_whoever_is_killed() {
    let world = World::new();
    let (id, q) = world.queue();
    let mut dice = Dice(3);
    let role = |i: usize| if i < 2 { "send_numbers" } else { "receive_numbers" };
    let (results, result_queue) = world.queue();
    let start = |i: usize, life: u32| {
        let mut other = world.other(role(i), &[&id, &results, &life]);
        other.await_line("ready");
        other
    };
    let mut lives = 0;
    let mut workers: Vec<_> = (0..WORKERS)
        .map(|i| {
            lives += 1;
            start(i, lives)
        })
        .collect();
    // What came, of each life of a sender: the numbers, in order.
    let mut came: Vec<Vec<i64>> = vec![Vec::new(); 2 * KILLS as usize];
    let note = |came: &mut Vec<Vec<i64>>, (_, bytes): (i64, Vec<u8>)| {
        let word = |at: usize| i64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        came[usize::try_from(word(0)).unwrap()].push(word(8));
    };
    for _ in 0..KILLS {
        let until = Instant::now() + Duration::from_micros(dice.below(10_000));
        while Instant::now() < until {
            while let Ok(result) = result_queue.receive(0, 64, NOWAIT) {
                note(&mut came, result);
            }
        }
        let victim = usize::try_from(dice.below(WORKERS as u64)).unwrap();
        assert!(workers[victim].child.try_wait().unwrap().is_none(), "a worker ended by itself");
        workers[victim].kill();
        lives += 1;
        workers[victim] = start(victim, lives);
    }
    // All go on.
    let before: usize = came.iter().map(Vec::len).sum();
    let begun = Instant::now();
    while came.iter().map(Vec::len).sum::<usize>() < before + 2000 {
        assert!(begun.elapsed() < LONG, "no worker goes on");
        if let Ok(result) = result_queue.receive(0, 64, NOWAIT) {
            note(&mut came, result);
        }
    }
    for sender in &mut workers[..2] {
        sender.kill();
    }
    eventually("an empty queue", || {
        while let Ok(result) = result_queue.receive(0, 64, NOWAIT) {
            note(&mut came, result);
        }
        world.ipc.msgstat(id, &Caller::current(), true).unwrap().numbers.messages == 0
    });
    std::thread::sleep(Duration::from_millis(300));
    for result in result_queue.drain() {
        note(&mut came, result);
    }
    for receiver in &mut workers[2..] {
        receiver.kill();
    }
    let (mut total, mut lost) = (0, 0);
    for numbers in &mut came {
        // Two receivers tell in an order of their own.
        numbers.sort_unstable();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "a number came twice: {numbers:?}");
        total += numbers.len();
        lost += numbers.last().map_or(0, |last| usize::try_from(*last).unwrap() + 1 - numbers.len());
    }
    println!("{total} messages came, {lost} were lost, {KILLS} processes were killed");
    assert!(lost <= KILLS as usize + 2, "{lost}");
    assert!(total > 5000, "{total}");
    // Nothing is left of it, and all of the memory is there.
    assert_eq!(q.drain(), []);
    for len in [1, 8192] {
        assert_eq!(q.fill(len), QUEUE / len);
        q.drain();
    }
}

/// A message of this worker's: which life, which number, and bytes that must fit to both.
fn numbered(life: i64, number: i64) -> Vec<u8> {
    let len = 16 + usize::try_from((number * 37) % 1500).unwrap();
    let mut bytes = text(len, usize::try_from(life + number).unwrap());
    bytes[..8].copy_from_slice(&life.to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes
}

#[test]
#[ignore = "the other process of the tests here"]
fn child() {
    let Some(told) = told() else { return };
    let q = told.queue();
    match told.role.as_str() {
        "send" | "receive" => {
            println!("ready");
            read_line();
            match told.role.as_str() {
                "send" => send_role(&q, told.args[1], told.args[2]),
                _ => receive_role(&q, told.args[1], told.args[2]),
            }
            println!("done");
        }
        "wait_for_message" | "wait_for_room" => {
            println!("ready");
            let done = match told.role.as_str() {
                "wait_for_message" => q.receive(5, 100, 0).map(drop),
                _ => q.send(1, &[7; 1024], 0),
            };
            println!("ended: {}", done.map_or_else(|e| e.to_string(), |()| "Ok".into()));
        }
        "send_numbers" => {
            println!("ready");
            let life = told.args[2];
            for number in 0.. {
                let text = numbered(life, number);
                // One type or the other, so that messages are taken from the middle, too.
                q.send(1 + number % 2, &text, 0).unwrap();
            }
        }
        "receive_numbers" => {
            let results = Queue(told.ipc.queue(i32::try_from(told.args[1]).unwrap()).unwrap());
            println!("ready");
            for turn in 0.. {
                let kind = [0, -2, 2, 1][turn % 4];
                let found = match q.receive(kind, 8192, NOWAIT) {
                    Err(Errno::NOMSG) => q.receive(0, 8192, 0),
                    other => other,
                };
                let (_, bytes) = found.unwrap();
                let word = |at: usize| i64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                assert_eq!(bytes, numbered(word(0), word(8)), "half a message");
                results.send(1, &bytes[..16], 0).unwrap();
            }
        }
        role => panic!("no role {role}"),
    }
}
