//! Endpoints on several threads that send to each other at random, and read, write and change each other's
//! memory: every message arrives once, whole and in order, and every byte that is read is what was written.
//! Also beside *rogues*, processes that write garbage into all of their own sections, while the others send
//! to them, receive from them and access their memory. Operations with rogues may end in any way; those of
//! the others among themselves are exact, and only rogues are named as faulty.
//!
//! STRESS_SCALE multiplies the number of messages (default 1), STRESS_SEED chooses them.

#![allow(clippy::disallowed_types)] // orderings of the test's own threads
#![allow(clippy::cast_possible_truncation)] // of small random numbers

mod common;
use common::*;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use isthmus_region::Section;
use isthmus_region::local::LocalBuf;
use isthmus_transport::types::RemoteAtomic;
use isthmus_transport::{
    Access, Address, Atomic, AtomicKind, Config, Endpoint, Memory, Op, PeerId, PostError, Posted, Receive,
    Rma, Selector, Send, Status, Ticket,
};

/// Kinds of streams between two endpoints: tagged for any sender, tagged and directed, untagged.
const KINDS: u64 = 3;
const LONGEST: usize = 200_000;
/// Flags of tickets of operations with rogues.
const ROGUE: u64 = 77;
/// Tag of messages from and to rogues.
const ROGUE_TAG: u64 = 9;
/// Most operations that an endpoint has under way with one rogue.
const MOST_WITH_ROGUE: usize = 24;
/// Flags of tickets of one-sided operations.
const REMOTE: u64 = 78;
/// Each endpoint's share of each window: this many bytes, and a word to count in.
const SHARE: usize = 40_000;
const WINDOW_KEY: u64 = 0x5eed_0451_77aa_0001;

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

/// The payload of message `sequence` of a stream.
fn text(len: usize, from: u64, to: u64, kind: u64, sequence: u64) -> Vec<u8> {
    pattern(len, from * 7919 + to * 104_729 + kind * 31_337 + sequence * 257)
}

/// Registered memory with a share for each endpoint: first all bytes, then all words.
struct Window {
    bytes: Mutex<LocalBuf>,
    key: u64,
}

impl Window {
    fn new(all: u64, key: u64) -> Box<Self> {
        Box::new(Self { bytes: Mutex::new(LocalBuf::leaked(vec![0; all as usize * (SHARE + 8)])), key })
    }
}

impl Memory for Window {
    fn find(&self, key: u64, addr: u64, len: u64, _: Access) -> Result<LocalBuf, Status> {
        let bytes = *self.bytes.lock().unwrap();
        if key != self.key {
            return Err(Status::NoKey);
        }
        match addr.checked_add(len) {
            Some(end) if end <= bytes.len() as u64 => Ok(bytes.part(addr as usize, len as usize)),
            _ => Err(Status::NoAccess),
        }
    }

    /// Adds words.
    fn atomic(&self, target: LocalBuf, what: &RemoteAtomic<'_>, before: &mut Vec<u8>) -> Result<(), Status> {
        if what.count != 1 || what.operand.len() != 8 || target.len() != 8 {
            return Err(Status::Unsupported);
        }
        *before = target.to_vec();
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        target.write(&word(before).wrapping_add(word(what.operand)).to_le_bytes());
        Ok(())
    }
}

/// An endpoint's one-sided operations: it writes its share of a window, reads it, counts in its word, then
/// does the same in the next window.
struct Remote {
    me: u64,
    all: u64,
    round: u64,
    step: u8,
    busy: bool,
    len: usize,
    out: Vec<u8>,
    back: Vec<u8>,
    one: [u8; 8],
    before: [u8; 8],
}

impl Remote {
    fn new(me: u64, all: u64) -> Self {
        let (out, back) = (vec![0; SHARE], vec![0; SHARE]);
        Self { me, all, round: 0, step: 0, busy: false, len: 0, out, back, one: [0; 8], before: [0; 8] }
    }

    /// Posts the next step, unless one is under way.
    fn go_on(&mut self, end: &mut Endpoint, ids: &[PeerId], random: &mut Random) {
        if self.busy {
            return;
        }
        let target = self.round % self.all;
        let (to, key, ticket) = (ids[target as usize], WINDOW_KEY, Ticket { context: 0, flags: REMOTE });
        let addr = self.me * SHARE as u64;
        if self.step == 0 {
            self.len = [1, 100, 4096, 4097, 16_000, SHARE][random.below(6) as usize];
            self.out[..self.len].copy_from_slice(&text(self.len, self.me, target, 5, self.round));
            self.back.fill(0);
        }
        let rma = |bufs| Rma { to, key, addr, bufs, data: None, inject: false, ticket };
        let posted = match self.step {
            0 => end.write(&rma(&[buf(&mut self.out[..self.len])])),
            1 => end.read(&rma(&[buf(&mut self.back[..self.len])])),
            _ => {
                self.one = 1_u64.to_le_bytes();
                end.atomic(&Atomic {
                    to,
                    key,
                    addr: self.all * SHARE as u64 + self.me * 8,
                    kind: AtomicKind::Fetch,
                    datatype: 0,
                    op: 0,
                    count: 1,
                    size: 8,
                    operand: &[buf(&mut self.one)],
                    compare: &[],
                    result: &[buf(&mut self.before)],
                    inject: false,
                    ticket,
                })
            }
        };
        match posted {
            Ok(Posted::Done) => self.ended(),
            Ok(Posted::Pending) => self.busy = true,
            Err(PostError::Again) => {}
            Err(e) => panic!("{} cannot access {target}'s memory: {e}", self.me),
        }
    }

    fn ended(&mut self) {
        self.busy = false;
        let turn = self.round / self.all;
        match self.step {
            1 => assert!(
                self.back[..self.len] == self.out[..self.len],
                "{} reads back something else",
                self.me
            ),
            2 => assert_eq!(u64::from_le_bytes(self.before), turn, "{} has counted so often", self.me),
            _ => {}
        }
        self.step = (self.step + 1) % 3;
        self.round += u64::from(self.step == 0);
    }
}

/// An endpoint's operations with one that is a rogue, or with one of a rogue's own. Their results may be
/// anything, but each operation ends once.
struct Dealings {
    id: PeerId,
    /// Operations under way, by number.
    open: Vec<u64>,
    gone: bool,
}

impl Dealings {
    /// Posts an operation. Its buffer is never freed: the other process may use it as long as it can.
    fn act(&mut self, end: &mut Endpoint, random: &mut Random, next: &mut u64, buffer: LocalBuf) {
        if self.gone || self.open.len() >= MOST_WITH_ROGUE {
            return;
        }
        *next += 1;
        let ticket = Ticket { context: *next, flags: ROGUE };
        let len = [0, 8, 40, 41, 3000, 16_000, 17_000, 100_000][random.below(8) as usize];
        let bufs = [buffer.part(0, len)];
        let to = self.id;
        let rma =
            Rma { to, key: 1 + random.below(2), addr: 0, bufs: &bufs, data: None, inject: false, ticket };
        let posted = match random.below(8) {
            0..3 => end.send(&Send {
                to,
                tagged: true,
                tag: ROGUE_TAG,
                data: None,
                bufs: &bufs,
                inject: false,
                delivered: random.below(2) == 0,
                ticket,
            }),
            3..5 => {
                let select = Selector { tagged: true, from: Some(to), tag: ROGUE_TAG, ignore: 0 };
                end.receive(&Receive { select, bufs: &bufs, multi: None, ticket }).map(|()| Posted::Pending)
            }
            5 => end.read(&rma),
            6 => end.write(&rma),
            _ => {
                let (operand, result) = ([buffer.part(0, 8)], [buffer.part(8, 8)]);
                end.atomic(&Atomic {
                    to,
                    key: rma.key,
                    addr: 0,
                    kind: AtomicKind::Fetch,
                    datatype: 0,
                    op: 0,
                    count: 1,
                    size: 8,
                    operand: &operand,
                    compare: &[],
                    result: &result,
                    inject: false,
                    ticket,
                })
            }
        };
        match posted {
            Ok(Posted::Pending) => self.open.push(ticket.context),
            Ok(Posted::Done) | Err(PostError::Again) => {}
            Err(PostError::PeerGone) => self.gone = true,
            Err(e) => panic!("refused with an unexpected reason: {e}"),
        }
    }
}

struct Plan {
    peers: u32,
    section: u64,
    hot: usize,
    messages: u64,
    seed: u64,
}

/// Messages that each sender has sent to each receiver in each kind, for the receivers to wait for.
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
    /// Addresses of the rogues.
    rogues: &'a [Address],
    /// Processes that were named as faulty.
    named: Mutex<Vec<String>>,
    /// Operations with rogues that ended well, and those that did not.
    with_rogues: [AtomicU64; 2],
    sent: Sent,
    gate: Barrier,
    /// Endpoints that have sent all, plus endpoints that have received all.
    ready: AtomicU64,
}

/// Runs one endpoint: sends its share, receives what others send, and checks it.
fn live(me: u64, mut end: Endpoint, ids: &[PeerId], shared: &Shared<'_>) {
    let Shared { plan, rogues, named, with_rogues, sent, gate, ready } = shared;
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
    let mut moved = Instant::now();
    let mut remote = Remote::new(me, all);
    let (mut next_rogue, buffer) = (0, LocalBuf::leaked(vec![1; 100_000]));
    let mut known: Vec<Dealings> = rogues
        .iter()
        .map(|a| Dealings { id: end.resolve(a).unwrap(), open: Vec::new(), gone: false })
        .collect();
    gate.wait();
    loop {
        for with in &mut known {
            with.act(&mut end, &mut random, &mut next_rogue, buffer);
        }
        if left > 0 || remote.step != 0 {
            remote.go_on(&mut end, ids, &mut random);
        }
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
                && end.send_at_once(ids[to as usize], kind != 2, tag, Some(sequence), whole, usize::MAX)
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
            if done.ticket.flags == ROGUE {
                let ended = known.iter_mut().find_map(|a| {
                    let at = a.open.iter().position(|number| *number == done.ticket.context)?;
                    a.open.swap_remove(at);
                    Some(())
                });
                assert!(ended.is_some(), "an operation ended twice: {done:?}");
                with_rogues[usize::from(done.status != Status::Ok)].fetch_add(1, Ordering::Relaxed);
                continue;
            }
            if done.op == Op::RemoteWrite {
                continue;
            }
            // A rogue's message may match any receive but a directed one.
            if done.source.is_some_and(|source| !ids.contains(&source)) {
                let (kind, _) = receiving.remove(&done.ticket.context).expect("a receive completes once");
                assert_ne!(kind, 1, "a directed receive got another sender's message");
                waiting[kind as usize] -= 1;
                continue;
            }
            assert_eq!(done.status, Status::Ok, "{me}: {done:?}");
            if done.ticket.flags == REMOTE {
                remote.ended();
                continue;
            }
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
                // Long messages may end after later ones; none arrives twice, and none is lost.
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
        while let Some(who) = end.take_faulty() {
            named.lock().unwrap().push(who);
        }
        if left == 0 && phase == 0 && remote.step == 0 && !remote.busy {
            phase = 1;
            ready.fetch_add(1, Ordering::SeqCst);
        }
        if ready.load(Ordering::SeqCst) >= all {
            let due = |from, kind| sent.at(from, me, kind).load(Ordering::SeqCst);
            let here = (0..all).all(|f| (0..KINDS).all(|k| seen[(f * KINDS + k) as usize] == due(f, k)));
            // An endpoint that has received all still makes progress until all have.
            if here && sending.is_empty() && phase == 1 {
                phase = 2;
                ready.fetch_add(1, Ordering::SeqCst);
            }
        }
        // The first rogue overwrites all of its section, and the last one sends bad messages: each endpoint
        // finds both gone.
        let is_over = [known.first(), known.last()].into_iter().flatten().all(|with| with.gone);
        if ready.load(Ordering::SeqCst) == 2 * all && is_over {
            break;
        }
        assert!(moved.elapsed() < Duration::from_secs(60), "{me} hangs: {seen:?}");
        std::thread::yield_now();
    }
    for context in known.iter().flat_map(|a| a.open.clone()) {
        end.cancel(context);
    }
    gate.wait();
    // Others may still write to these buffers.
    std::mem::forget(receiving);
}

/// What a rogue does.
#[derive(Clone, Copy, PartialEq)]
enum Misdeed {
    /// All of its section is one value when the others begin, and then garbage.
    AtOnce,
    /// Any word of its section gets a random value.
    Anywhere,
    /// A word in a used line gets another plausible value.
    Plausible,
    /// A used line is copied over another.
    Elsewhere,
    /// Its section is sound, but it sends messages that cannot be right.
    BadMessages,
}

/// Turns between two scans for used lines, and checks whether the rogue was named.
const SCAN_EVERY: u32 = 5_000;

/// A random word that is sometimes plausible.
fn garbage(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => random.below(1 << 20),
        1 => (random.below(256) << 8) | 2,
        2 => random.below(1 << 53) << 11,
        _ => 0,
    }
}

/// Writes garbage into a section until the test is over. Where lines change one by one, the directory is left
/// alone until its owner was named: otherwise others may find it dead before they find it faulty.
fn scribble(misdeed: Misdeed, section: &Section, seed: u64, over: &AtomicBool, is_named: impl Fn() -> bool) {
    let mut random = Random(seed);
    let word = |at: u64| section.word("any", at * 8).unwrap();
    let words = section.len() / 8;
    let directory = (64 << 10) / 8;
    // At first it is an honest member.
    if misdeed != Misdeed::AtOnce {
        std::thread::sleep(Duration::from_millis(20 + random.below(100)));
    }
    let mut used = Vec::new();
    for turn in 0_u32.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        if matches!(misdeed, Misdeed::AtOnce | Misdeed::Anywhere) {
            (0..1000).for_each(|_| word(random.below(words)).set(garbage(&mut random)));
            std::thread::yield_now();
            continue;
        }
        // Lines that are used.
        if turn.is_multiple_of(SCAN_EVERY) {
            let first = if is_named() { 0 } else { directory };
            let means = |at: &u64| (0..8).any(|i| word(at + i).peek() != 0);
            used = (first..words).step_by(8).filter(means).collect::<Vec<_>>();
        }
        let mut any = || used[random.below(used.len() as u64) as usize];
        let (from, to) = (any(), any());
        if misdeed == Misdeed::Elsewhere {
            (0..8).for_each(|i| word(to + i).set(word(from + i).peek()));
        } else {
            let at = to + random.below(8);
            let old = word(at).peek();
            word(at).set(match random.below(3) {
                0 => old.wrapping_add(1),
                1 => old ^ (1 << random.below(64)),
                _ => garbage(&mut random),
            });
        }
        std::thread::yield_now();
    }
}

/// Runs a rogue's own endpoint: it sends to all, and takes what they send, as long as its section allows.
fn talk(mut talker: Endpoint, addresses: &[Address], misdeed: Misdeed, seed: u64, over: &AtomicBool) {
    let mut random = Random(seed);
    let buffer = LocalBuf::leaked(vec![2; 100_000]);
    let ids: Vec<PeerId> = addresses.iter().map(|a| talker.resolve(a).unwrap()).collect();
    let mut next = 0;
    let mut others: Vec<_> =
        ids.iter().map(|id| Dealings { id: *id, open: Vec::new(), gone: false }).collect();
    for turn in 0_u32.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        for other in &mut others {
            other.act(&mut talker, &mut random, &mut next, buffer);
            if misdeed == Misdeed::BadMessages && turn > 100 {
                let mut message = [(); 8].map(|()| garbage(&mut random));
                message[0] =
                    isthmus_transport::wire::head(random.below(256) as u8, random.below(256) as u8, 0);
                talker.push_raw(other.id, &message);
            }
        }
        talker.progress();
        while let Some(done) = talker.pop() {
            others.iter_mut().for_each(|o| o.open.retain(|number| *number != done.ticket.context));
        }
        std::thread::yield_now();
    }
    // Its memory cannot be returned: the section holds garbage.
    std::mem::forget(talker);
}

/// Runs `all` endpoints over a plan, beside one rogue for each misdeed, in a section of its own.
fn run(all: u64, plan: &Plan, misdeeds: &[Misdeed]) {
    let world = World::new(plan.peers + misdeeds.len() as u32, plan.section);
    let config = Config { hot_lanes: plan.hot, ..Config::default() };
    let mut ends: Vec<Endpoint> = (0..all)
        .map(|i| {
            world.endpoint_with((i % u64::from(plan.peers)) as u32, config, Window::new(all, WINDOW_KEY))
        })
        .collect();
    let addresses: Vec<_> = ends.iter().map(Endpoint::address).collect();
    let ids: Vec<Vec<PeerId>> =
        ends.iter_mut().map(|e| addresses.iter().map(|a| e.resolve(a).unwrap()).collect()).collect();
    let talkers: Vec<Endpoint> = (plan.peers..)
        .zip(misdeeds)
        .map(|(peer, _)| world.endpoint_with(peer, Config::default(), Window::new(1, 1)))
        .collect();
    let rogues: Vec<Address> = talkers.iter().map(Endpoint::address).collect();
    let shared = Shared {
        plan,
        rogues: &rogues,
        named: Mutex::default(),
        with_rogues: Default::default(),
        sent: Sent { counts: (0..all * all * KINDS).map(|_| AtomicU64::new(0)).collect(), all: ids.len() },
        gate: Barrier::new(ids.len()),
        ready: AtomicU64::new(0),
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for ((peer, misdeed), talker) in (plan.peers..).zip(misdeeds).zip(talkers) {
            let info = world.host.region().peer(peer).unwrap().unwrap();
            let section = world.host.region().own_section(&info).unwrap();
            let (over, addresses, named) = (&over, &addresses, &shared.named);
            let seed = plan.seed + 99 + u64::from(peer);
            if *misdeed == Misdeed::AtOnce {
                (0..section.len() / 8).for_each(|w| section.word("any", w * 8).unwrap().set(u64::MAX / 3));
                std::mem::forget(talker);
            } else {
                // A rogue may panic over its own garbage; the others must not.
                scope.spawn(move || {
                    let talk = std::panic::AssertUnwindSafe(|| talk(talker, addresses, *misdeed, seed, over));
                    drop(std::panic::catch_unwind(talk));
                });
            }
            let is_named = move || {
                let name = format!("'peer{peer}'");
                named.lock().unwrap().iter().any(|who| who.contains(&name))
            };
            if *misdeed != Misdeed::BadMessages {
                scope.spawn(move || scribble(*misdeed, &section, seed, over, is_named));
            }
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
    let named = shared.named.into_inner().unwrap();
    let is_rogue =
        |name: &String| (plan.peers..).zip(misdeeds).any(|(i, _)| name.contains(&format!("'peer{i}'")));
    assert!(named.iter().all(is_rogue), "an honest process was named as faulty: {named:?}");
    if !misdeeds.is_empty() {
        let [well, badly] = shared.with_rogues.map(AtomicU64::into_inner);
        println!("with the rogues: {well} ended well, {badly} otherwise; named {} times", named.len());
        // A receiver of bad messages names their sender. Other rogues may be found dead first.
        let sender_of_bad = format!("'peer{}'", plan.peers as usize + misdeeds.len() - 1);
        let by = named.iter().filter(|who| who.contains(&sender_of_bad)).count() as u64;
        assert_eq!(by, all, "not all have named the sender of bad messages: {named:?}");
        assert!(
            well > 0 && badly > 0,
            "too little was done with the rogues: {well} ended well, {badly} did not"
        );
    }
}

fn plan(peers: u32, hot: usize, messages: u64, section: u64) -> Plan {
    let messages = messages * number("STRESS_SCALE", 1);
    Plan { peers, section, hot, messages, seed: number("STRESS_SEED", 1) }
}

#[test]
fn two_with_room() {
    run(2, &plan(2, 8, 2000, 16 << 20), &[]);
}

#[test]
fn four_with_one_hot_lane_each() {
    run(4, &plan(2, 1, 700, 16 << 20), &[]);
}

#[test]
fn six_in_a_tight_region() {
    run(6, &plan(2, 2, 300, 2 << 20), &[]);
}

#[test]
fn four_beside_five_that_write_garbage() {
    let misdeeds =
        [Misdeed::AtOnce, Misdeed::Anywhere, Misdeed::Plausible, Misdeed::Elsewhere, Misdeed::BadMessages];
    run(4, &plan(2, 2, 700, 16 << 20), &misdeeds);
}
