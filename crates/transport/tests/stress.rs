//! Many endpoints that send to each other at random, on several threads, with or without one that writes garbage into all
//! of its own section: every message between the others arrives once, whole and in order.
//!
//! STRESS_SCALE multiplies the messages (default 1), STRESS_SEED chooses them.

mod common;
use common::*;

use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use isthmus_region::local::LocalBuf;
use isthmus_transport::types::NoMemory;
use isthmus_transport::{
    Config, Endpoint, Op, PeerId, PostError, Posted, Receive, Selector, Send, Status, Ticket,
};

/// Kinds of streams between two endpoints: tagged for anybody, tagged and directed, untagged.
const KINDS: u64 = 3;
const LONGEST: usize = 200_000;
/// Of messages to the one that goes mad.
const GREETING: Ticket = Ticket { context: 0, flags: 77 };

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % limit
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |v| v.parse().unwrap())
}

/// What is in message `sequence` of a stream.
fn text(len: usize, from: u64, to: u64, kind: u64, sequence: u64) -> Vec<u8> {
    pattern(len, from * 7919 + to * 104_729 + kind * 31_337 + sequence * 257)
}

struct Plan {
    peers: u32,
    section: u64,
    hot: usize,
    messages: u64,
    seed: u64,
}

/// A sender's count of messages to each receiver in each kind, for the receivers to wait for.
struct Sent {
    counts: Vec<AtomicU64>,
    all: usize,
}

impl Sent {
    fn at(&self, from: u64, to: u64, kind: u64) -> &AtomicU64 {
        &self.counts[((from * self.all as u64 + to) * KINDS + kind) as usize]
    }
}

/// What all threads share.
struct Shared<'a> {
    plan: &'a Plan,
    /// Somebody writes garbage.
    mad: bool,
    sent: Sent,
    gate: Barrier,
    /// Those who have sent all, and those who have received all.
    ready: AtomicU64,
}

/// One endpoint's life: sends its share, receives what others send, and checks it.
fn live(me: u64, mut end: Endpoint, ids: &[PeerId], shared: &Shared<'_>) {
    let Shared { plan, mad, sent, gate, ready } = shared;
    let all = ids.len() as u64;
    let mut random = Random(plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (me + 1));
    let mut sequences = vec![0_u64; (all * KINDS) as usize];
    let mut seen = sequences.clone();
    let mut early: HashMap<(u64, u64), Vec<u64>> = HashMap::new();
    let mut sending: HashMap<u64, Vec<u8>> = HashMap::new();
    let mut receiving: HashMap<u64, (u64, Vec<u8>)> = HashMap::new();
    let mut waiting = vec![0_u32; KINDS as usize];
    let mut directed = vec![false; all as usize];
    let (mut ticket, mut left, mut phase) = (0, plan.messages, 0);
    let (mut moved, mut lost) = (Instant::now(), false);
    gate.wait();
    loop {
        let mut post = |end: &mut Endpoint, kind: u64, from: Option<PeerId>| {
            ticket += 1;
            let mut room = vec![0xee; LONGEST + 8];
            let bufs = [buf(&mut room[..LONGEST])];
            let tag = if kind == 2 { 0 } else { kind };
            let select = Selector { tagged: kind != 2, from, tag, ignore: 0 };
            let ticket = Ticket { context: ticket, flags: 0 };
            end.receive(&Receive { select, bufs: &bufs, multi: None, ticket }).unwrap();
            receiving.insert(ticket.context, (kind, room));
        };
        for kind in [0, 2] {
            while waiting[kind as usize] < 3 {
                waiting[kind as usize] += 1;
                post(&mut end, kind, None);
            }
        }
        for (from, posted) in directed.iter_mut().enumerate() {
            if !std::mem::replace(posted, true) {
                post(&mut end, 1, Some(ids[from]));
            }
        }
        for _ in 0..random.below(8).min(left) {
            let (to, kind) = (random.below(all), random.below(KINDS));
            let len = match random.below(100) {
                0..70 => random.below(41),
                70..90 => random.below(6000),
                90..97 => random.below(17_000),
                _ => random.below(LONGEST as u64),
            } as usize;
            let sequence = sequences[(to * KINDS + kind) as usize];
            let mut out = text(len, me, to, kind, sequence);
            let whole = buf(&mut out);
            let tag = if kind == 2 { 0 } else { kind };
            let half = random.below(len as u64 + 1) as usize;
            let bufs = [whole.part(0, half), whole.part(half, usize::MAX)];
            ticket += 1;
            let message = Send {
                to: ids[to as usize],
                tagged: kind != 2,
                tag,
                data: Some(sequence),
                bufs: &bufs,
                inject: len <= 4096 && random.below(5) == 0,
                delivered: random.below(8) == 0,
                ticket: Ticket { context: ticket, flags: 1 },
            };
            if random.below(4) != 0
                && end.send_at_once(ids[to as usize], kind != 2, tag, Some(sequence), whole)
            {
                out.fill(0xdd);
            } else {
                match end.send(&message) {
                    Ok(Posted::Done) => out.fill(0xdd),
                    Ok(Posted::Pending) => drop(sending.insert(ticket, out)),
                    Err(PostError::Again) => break,
                    Err(e) => panic!("{me} cannot send to {to}: {e}"),
                }
            }
            sequences[(to * KINDS + kind) as usize] += 1;
            sent.at(me, to, kind).fetch_add(1, Ordering::SeqCst);
            left -= 1;
        }
        end.progress();
        while let Some(done) = end.pop() {
            moved = Instant::now();
            if done.ticket == GREETING {
                assert_eq!(done.status, Status::PeerGone, "the mad one never asked for its message");
                lost = true;
                continue;
            }
            assert_eq!(done.status, Status::Ok, "{me}: {done:?}");
            if let Op::Receive { .. } = done.op {
                let (kind, room) = receiving.remove(&done.ticket.context).expect("a receive completes once");
                let from = ids.iter().position(|id| Some(*id) == done.source).unwrap() as u64;
                let sequence = done.data.unwrap();
                let len = usize::try_from(done.len).unwrap();
                assert!(
                    room[..len] == text(len, from, me, kind, sequence),
                    "{from} to {me}, {kind}, {sequence}"
                );
                assert!(room[len..].iter().all(|b| *b == 0xee), "beyond the message");
                // Long ones may end late, so that others end before them; none comes twice, and none is lost.
                let next = &mut seen[(from * KINDS + kind) as usize];
                let ahead = early.entry((from, kind)).or_default();
                assert!(sequence >= *next && !ahead.contains(&sequence), "{from} to {me}: {sequence} again");
                ahead.push(sequence);
                while let Some(at) = ahead.iter().position(|s| *s == *next) {
                    ahead.swap_remove(at);
                    *next += 1;
                }
                match kind {
                    1 => directed[from as usize] = false,
                    _ => waiting[kind as usize] -= 1,
                }
            } else {
                sending.remove(&done.ticket.context).expect("a send completes once");
            }
        }
        if left == 0 && phase == 0 {
            phase = 1;
            ready.fetch_add(1, Ordering::SeqCst);
        }
        if ready.load(Ordering::SeqCst) >= all {
            let due = |from, kind| sent.at(from, me, kind).load(Ordering::SeqCst);
            let here = (0..all).all(|f| (0..KINDS).all(|k| seen[(f * KINDS + k) as usize] == due(f, k)));
            // Who has all still moves the others' messages on, until everybody has.
            if here && sending.is_empty() && phase == 1 {
                phase = 2;
                ready.fetch_add(1, Ordering::SeqCst);
            }
        }
        if ready.load(Ordering::SeqCst) == 2 * all && (lost || !*mad) {
            break;
        }
        assert!(moved.elapsed() < Duration::from_secs(60), "{me} hangs, lost {lost}: {seen:?}");
        std::thread::yield_now();
    }
    gate.wait();
    // What others left in our buffers is gone with them.
    std::mem::forget(receiving);
}

/// Runs `all` endpoints over a plan; with `mad`, one more writes garbage into its section, which is nobody else's.
fn run(all: u64, plan: &Plan, mad: bool) {
    let world = World::new(plan.peers + u32::from(mad), plan.section);
    let config = Config { hot_lanes: plan.hot, ..Config::default() };
    let mut ends: Vec<Endpoint> = (0..all)
        .map(|i| world.endpoint_with((i % u64::from(plan.peers)) as u32, config, Box::new(NoMemory)))
        .collect();
    let addresses: Vec<_> = ends.iter().map(Endpoint::address).collect();
    let ids: Vec<Vec<PeerId>> =
        ends.iter_mut().map(|e| addresses.iter().map(|a| e.resolve(a).unwrap()).collect()).collect();
    let shared = Shared {
        plan,
        mad,
        sent: Sent { counts: (0..all * all * KINDS).map(|_| AtomicU64::new(0)).collect(), all: ids.len() },
        gate: Barrier::new(ids.len()),
        ready: AtomicU64::new(0),
    };
    let over = AtomicBool::new(false);
    // The mad one greets everybody, so that each has a lane from it, and one to it.
    let mut talker = mad.then(|| world.endpoint(plan.peers));
    if let Some(talker) = &mut talker {
        for (end, address) in ends.iter_mut().zip(&addresses) {
            let (to, from) = (talker.resolve(address).unwrap(), end.resolve(&talker.address()).unwrap());
            let bufs = [LocalBuf::leaked(vec![1; 30_000])];
            for len in [8, 5000, 30_000] {
                let bufs = [bufs[0].part(0, len)];
                let ticket = GREETING;
                let message = |to| Send {
                    to,
                    tagged: true,
                    tag: 9,
                    data: None,
                    bufs: &bufs,
                    inject: false,
                    delivered: false,
                    ticket,
                };
                talker.send(&message(to)).unwrap();
                end.send(&message(from)).unwrap();
            }
        }
        let info = world.host.region().peer(plan.peers).unwrap().unwrap();
        let section = world.host.region().section(&info).unwrap();
        for (i, end) in ends.iter_mut().enumerate() {
            for _ in 0..50 {
                end.progress();
            }
            talker.progress();
            // One after the other finds it mad: some before, some while the others are at work.
            if i == 0 {
                (0..section.len() / 8).for_each(|w| section.word("any", w * 8).unwrap().set(u64::MAX / 3));
            }
        }
    }
    std::thread::scope(|scope| {
        if mad {
            let info = world.host.region().peer(plan.peers).unwrap().unwrap();
            let section = world.host.region().section(&info).unwrap();
            let (over, seed) = (&over, plan.seed);
            scope.spawn(move || {
                let mut random = Random(seed + 99);
                while !over.load(Ordering::Relaxed) {
                    for _ in 0..1000 {
                        let at = random.below(section.len() / 8) * 8;
                        let value = match random.below(4) {
                            0 => random.below(1 << 20),
                            1 => (random.below(256) << 8) | 2,
                            2 => random.below(1 << 53) << 11,
                            _ => 0,
                        };
                        section.word("any", at).unwrap().set(value);
                    }
                    std::thread::yield_now();
                }
            });
        }
        let workers: Vec<_> = ends
            .into_iter()
            .zip(&ids)
            .zip(0..)
            .map(|((end, ids), me)| {
                let shared = &shared;
                scope.spawn(move || live(me, end, ids, shared))
            })
            .collect();
        let bad = workers.into_iter().map(|w| w.join()).filter(Result::is_err).count();
        over.store(true, Ordering::Relaxed);
        assert_eq!(bad, 0, "seed {}", plan.seed);
    });
    std::mem::forget(talker);
}

fn plan(peers: u32, hot: usize, messages: u64, section: u64) -> Plan {
    let messages = messages * number("STRESS_SCALE", 1);
    Plan { peers, section, hot, messages, seed: number("STRESS_SEED", 1) }
}

#[test]
fn two_with_room() {
    run(2, &plan(2, 8, 2000, 16 << 20), false);
}

#[test]
fn four_with_one_hot_lane_each() {
    run(4, &plan(2, 1, 700, 16 << 20), false);
}

#[test]
fn six_in_a_tight_region() {
    run(6, &plan(2, 2, 300, 2 << 20), false);
}

#[test]
fn four_beside_one_that_writes_garbage() {
    run(4, &plan(2, 2, 700, 16 << 20), true);
}
