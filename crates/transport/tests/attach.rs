//! Long messages that their receiver copies from the sender's memory: every shape of message, refusals, senders that lie, and
//! ends in the middle. Both endpoints are of this process, which may attach to itself everywhere.

#![allow(clippy::disallowed_types)] // orderings of the test's own counts

mod common;
use common::*;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use isthmus_region::Error;
use isthmus_region::counters::Counter;
use isthmus_region::extent::Extent;
use isthmus_region::local::LocalBuf;
use isthmus_region::member::LocalService;
use isthmus_transport::types::NoMemory;
use isthmus_transport::wire::{flag, head, kind};
use isthmus_transport::{
    Completion, Config, Endpoint, Long, Op, PeerId, Posted, Receive, Selector, Send, Status, Ticket,
};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

const LONG: usize = 300_000;

fn config(long: Long) -> Config {
    Config { long, ..Config::default() }
}

/// A sender and a receiver of peer 0, which numbers the other.
struct Pair {
    world: World,
    a: Endpoint,
    b: Endpoint,
    to: PeerId,
}

fn pair(sends: Long, receives: Long) -> Pair {
    let world = World::new(2, 8 << 20);
    let end = |long| world.endpoint_with(0, config(long), Box::new(NoMemory));
    let (mut a, b) = (end(sends), end(receives));
    let to = a.resolve(&b.address()).unwrap();
    Pair { world, a, b, to }
}

impl Pair {
    /// Sends a message and receives it, whole; both ends of it are well.
    fn exchange(&mut self, tag: u64, out: &mut [u8], early: bool, delivered: bool) {
        let mut back = vec![0; out.len()];
        let (bufs, into) = ([buf(out)], [buf(&mut back)]);
        if early {
            self.b.receive(&receive(any(tag), &into)).unwrap();
        }
        let sent = Send { delivered, ..message(self.to, tag, &bufs) };
        let posted = self.a.send(&sent).unwrap();
        if !early {
            for _ in 0..600 {
                self.b.progress();
                self.a.progress();
            }
            self.b.receive(&receive(any(tag), &into)).unwrap();
        }
        let got = ok(wait(&mut self.b, &mut self.a));
        assert_eq!((got.len, got.tag, got.data), (out.len() as u64, tag, Some(tag + 1)));
        assert!(back == out, "{} bytes", out.len());
        if posted == Posted::Pending {
            ok(wait(&mut self.a, &mut self.b));
        }
        assert!(self.a.pop().is_none() && self.b.pop().is_none());
    }

    /// Messages that were copied from their sender's memory, their bytes, and chunks of all others.
    fn counts(&mut self) -> [u64; 3] {
        counts(&self.world, [&mut self.a, &mut self.b])
    }

    /// Messages that were to be copied so, and could not; to be called after `counts`.
    fn refused(&self) -> u64 {
        self.world.services[0].lock().unwrap().directory().totals().unwrap().get(Counter::AttachRefused)
    }
}

fn counts(world: &World, ends: [&mut Endpoint; 2]) -> [u64; 3] {
    for end in ends {
        (0..600).for_each(|_| _ = end.progress());
    }
    let totals = world.services[0].lock().unwrap().directory().totals().unwrap();
    [Counter::Attached, Counter::AttachedBytes, Counter::Chunks].map(|counter| totals.get(counter))
}

#[test]
fn every_long_message_is_copied_once() {
    let mut pair = pair(Long::Attach, Long::Attach);
    let lens = [65_536, 65_537, LONG, 1 << 20, (1 << 20) + 1, (5 << 20) + 13];
    let mut bytes = 0;
    for (tag, len) in (0..).zip(lens) {
        for (early, delivered) in [(true, false), (false, false), (true, true), (false, true)] {
            pair.exchange(tag, &mut pattern(len, tag), early, delivered);
            bytes += len as u64;
        }
    }
    assert_eq!(pair.counts(), [4 * lens.len() as u64, bytes, 0]);
    pair.exchange(99, &mut pattern(65_535, 3), true, false);
    let [messages, _, chunks] = pair.counts();
    assert!(messages == 4 * lens.len() as u64 && chunks > 0, "a shorter one goes through the region");
}

#[test]
fn both_ways_are_tried_and_measured_unless_one_was_asked_for() {
    for (sends, receives, least, most) in [
        (Long::Auto, Long::Auto, 4, 60),
        (Long::Copy, Long::Auto, 0, 0),
        (Long::Copy, Long::Attach, 0, 0),
        (Long::Auto, Long::Copy, 0, 0),
        (Long::Auto, Long::Attach, 64, 64),
    ] {
        let mut pair = pair(sends, receives);
        for tag in 0..64 {
            pair.exchange(tag, &mut pattern(LONG, tag), true, tag % 2 == 0);
        }
        let [messages, bytes, _] = pair.counts();
        assert!((least..=most).contains(&messages), "{sends:?} to {receives:?}: {messages}");
        assert_eq!(bytes, messages * LONG as u64);
    }
}

#[test]
fn what_an_endpoint_sends_to_itself_goes_from_buffer_to_buffer_whatever_the_setting() {
    for long in [Long::Auto, Long::Attach, Long::Copy] {
        let world = World::new(1, 8 << 20);
        let mut a = world.endpoint_with(0, config(long), Box::new(NoMemory));
        let me = a.resolve(&a.address()).unwrap();
        let mut tag = 0;
        for len in [40_000, LONG, (3 << 20) + 5] {
            for (early, delivered, parts, room) in [
                (true, false, 1, len),
                (false, false, 1, len),
                (true, true, 3, len),
                (false, true, 2, len + 100),
                (true, false, 3, len - 7),
            ] {
                tag += 1;
                let (mut out, mut back) = (pattern(len, tag), vec![0; room]);
                let bufs: Vec<LocalBuf> = out.chunks_mut(len.div_ceil(parts)).map(buf).collect();
                let into: Vec<LocalBuf> = back.chunks_mut(room / 2 + 3).map(buf).collect();
                if early {
                    a.receive(&receive(any(tag), &into)).unwrap();
                }
                let sent = Send { delivered, ..message(me, tag, &bufs) };
                assert_eq!(a.send(&sent).unwrap(), Posted::Pending);
                if !early {
                    (0..600).for_each(|_| _ = a.progress());
                    a.receive(&receive(any(tag), &into)).unwrap();
                }
                let mut ends = Vec::new();
                for _ in 0..10_000 {
                    a.progress();
                    ends.extend(a.pop());
                }
                let of = |op| ends.iter().find(|end| end.op == op).map(|end| (end.status, end.len));
                let fit = len.min(room);
                let status =
                    if fit < len { Status::Truncated { cut: (len - fit) as u64 } } else { Status::Ok };
                assert_eq!(ends.len(), 2, "{long:?}");
                assert_eq!(of(Op::Receive { tagged: true }), Some((status, fit as u64)));
                assert_eq!(of(Op::Send { tagged: true }), Some((Status::Ok, len as u64)));
                assert!(back[..fit] == out[..fit], "{long:?}: {len} bytes in {parts}");
                assert!(back[fit..].iter().all(|byte| *byte == 0));
            }
        }
        let totals = world.services[0].lock().unwrap().directory().totals().unwrap();
        let counted = [Counter::TxMessages, Counter::Attached, Counter::AttachedBytes, Counter::Chunks];
        assert_eq!(counted.map(|counter| totals.get(counter)), [tag, 0, 0, 0], "{long:?}");
    }
}

#[test]
fn what_is_announced_in_an_endpoints_own_name_copies_nothing_but_its_own_messages() {
    // There is none, another one's number, and more bytes than there are.
    for (id, len) in [(77, LONG), (2 << 32, LONG), (1 << 32, 1 << 20)] {
        let world = World::new(1, 8 << 20);
        let mut a = world.endpoint_with(0, config(Long::Auto), Box::new(NoMemory));
        let me = a.resolve(&a.address()).unwrap();
        let mut out = pattern(LONG, 1);
        let bufs = [buf(&mut out)];
        a.send(&message(me, 1, &bufs)).unwrap();
        let mut back = vec![7; 1 << 20];
        let into = [buf(&mut back)];
        a.receive(&receive(any(9), &into)).unwrap();
        let address = out.as_ptr() as u64;
        let flags = flag::TAGGED | flag::OFFER;
        assert!(a.push_raw(me, &[head(kind::READY, flags, 0), 9, 0, len as u64, id, address, address, 5]));
        let mut ends = Vec::new();
        for _ in 0..3000 {
            a.progress();
            ends.extend(a.pop());
        }
        assert!(ends.iter().all(|end| end.status == Status::PeerGone), "{ends:?}");
        assert!(back[LONG..].iter().all(|byte| *byte == 7), "{id:x}");
    }
}

#[test]
fn an_endpoint_waits_for_its_own_receive_and_fills_its_own_multi_receive() {
    let world = World::new(1, 8 << 20);
    let mut a = world.endpoint_with(0, config(Long::Auto), Box::new(NoMemory));
    let me = a.resolve(&a.address()).unwrap();
    let ends_of = |a: &mut Endpoint| {
        let mut ends = Vec::new();
        for _ in 0..3000 {
            a.progress();
            ends.extend(a.pop());
        }
        ends
    };
    for (tag, len) in (1..).zip([0, 1, 1000, 30_000, LONG]) {
        let (mut out, mut back) = (pattern(len, tag), vec![0; len]);
        let (bufs, into) = ([buf(&mut out)], [buf(&mut back)]);
        a.send_until_matched(&message(me, tag, &bufs)).unwrap();
        assert!(ends_of(&mut a).is_empty(), "{len}: nobody has asked for it");
        a.receive(&receive(any(tag), &into)).unwrap();
        let ends = ends_of(&mut a);
        assert_eq!(
            ends.iter().map(|end| (end.status, end.len)).collect::<Vec<_>>(),
            [(Status::Ok, len as u64); 2]
        );
        assert!(back == out, "{len}");
    }
    let mut room = vec![0; 2 * LONG];
    let into = [buf(&mut room)];
    let select = Selector { tagged: false, ..any(0) };
    a.receive(&Receive { multi: Some(LONG as u64), ..receive(select, &into) }).unwrap();
    for (number, seed) in (0..2).zip(0..) {
        let mut out = pattern(LONG, seed);
        let bufs = [buf(&mut out)];
        a.send(&Send { tagged: false, ..message(me, 0, &bufs) }).unwrap();
        let ends = ends_of(&mut a);
        let statuses: Vec<_> = ends.iter().map(|end| (end.status, end.len)).collect();
        assert_eq!(statuses, [(Status::Ok, LONG as u64); 2]);
        assert_eq!(ends.iter().any(|end| end.released), number == 1);
        assert!(room[number * LONG..][..LONG] == out[..]);
    }
}

#[test]
fn a_send_that_was_ended_in_an_endpoints_own_name_is_not_read_any_more() {
    // In front of the first piece or soon after it, and after the first of several.
    for pieces in [0, 1] {
        let world = World::new(1, 8 << 20);
        let mut a = world.endpoint_with(0, config(Long::Auto), Box::new(NoMemory));
        let me = a.resolve(&a.address()).unwrap();
        let mut out = pattern(3 << 20, 1);
        let mut back = vec![7; 3 << 20];
        let (bufs, into) = ([buf(&mut out)], [buf(&mut back)]);
        a.receive(&receive(any(1), &into)).unwrap();
        a.send(&message(me, 1, &bufs)).unwrap();
        let mut ends = Vec::new();
        let is_copied = |at: usize| into[0].part(at, 1).to_vec() != [7];
        let original = out.clone();
        let end_of_first = original[..1 << 20].iter().rposition(|byte| *byte != 7).unwrap();
        for _ in 0..1000 {
            if pieces == 0 || is_copied(end_of_first) {
                break;
            }
            a.progress();
        }
        assert_eq!(is_copied(end_of_first), pieces > 0);
        assert!(a.push_raw(me, &[head(kind::DONE, 0, 0), 1 << 32, 0, 0, 0, 0, 0, 0]));
        for _ in 0..3000 {
            a.progress();
            let end = a.pop();
            if end.as_ref().is_some_and(|end| matches!(end.op, Op::Send { .. })) {
                // The program has its buffer back.
                out.fill(9);
            }
            ends.extend(end);
        }
        let of = |wanted| ends.iter().find(|end| end.op == wanted).map(|end| end.status);
        assert_eq!(ends.len(), 2, "{ends:?}");
        assert_eq!(of(Op::Send { tagged: true }), Some(Status::Ok));
        assert_eq!(of(Op::Receive { tagged: true }), Some(Status::PeerGone));
        let came = back.iter().zip(&original).take_while(|(came, sent)| came == sent).count();
        assert!(came < back.len() && back[came..].iter().all(|byte| *byte == 7), "{came} bytes");
    }
}

#[test]
fn receives_of_several_buffers_and_shorter_ones_get_what_is_theirs() {
    let mut pair = pair(Long::Attach, Long::Attach);
    let mut out = pattern(LONG, 7);
    let bufs = [buf(&mut out)];
    for (parts, total) in
        [(vec![100, 70_000, 1, LONG], LONG), (vec![LONG - 1], LONG - 1), (vec![10, 0, 90_000], 90_010)]
    {
        let mut room: Vec<Vec<u8>> = parts.iter().map(|len| vec![0; *len]).collect();
        let into: Vec<LocalBuf> = room.iter_mut().map(|part| buf(part)).collect();
        pair.b.receive(&receive(any(1), &into)).unwrap();
        pair.a.send(&message(pair.to, 1, &bufs)).unwrap();
        let got = wait(&mut pair.b, &mut pair.a);
        ok(wait(&mut pair.a, &mut pair.b));
        let cut = (LONG - total) as u64;
        let status = if cut == 0 { Status::Ok } else { Status::Truncated { cut } };
        assert_eq!((got.status, got.len), (status, total as u64));
        assert!(room.concat()[..total] == out[..total]);
    }
    // A receive of nothing is asked for nothing.
    pair.b.receive(&receive(any(1), &[])).unwrap();
    pair.a.send(&message(pair.to, 1, &bufs)).unwrap();
    assert_eq!(wait(&mut pair.b, &mut pair.a).status, Status::Truncated { cut: LONG as u64 });
    ok(wait(&mut pair.a, &mut pair.b));
    assert_eq!(pair.counts(), [3, 3 * LONG as u64, 0]);
    // A message of several buffers is not offered.
    let halves = [bufs[0].part(0, LONG / 2), bufs[0].part(LONG / 2, LONG)];
    let mut back = vec![0; LONG];
    let into = [buf(&mut back)];
    pair.b.receive(&receive(any(1), &into)).unwrap();
    pair.a.send(&message(pair.to, 1, &halves)).unwrap();
    ok(wait(&mut pair.b, &mut pair.a));
    assert!(back == out);
    assert_eq!(pair.counts()[0], 3);
}

#[test]
fn a_multi_receive_takes_several_and_is_released_once() {
    let mut pair = pair(Long::Attach, Long::Attach);
    let mut room = vec![0; 3 * LONG];
    let into = [buf(&mut room)];
    let select = Selector { tagged: false, from: None, tag: 0, ignore: 0 };
    let ticket = Ticket { context: 9, flags: 0 };
    pair.b.receive(&Receive { select, bufs: &into, multi: Some(100), ticket }).unwrap();
    let mut outs: Vec<Vec<u8>> = (0..3).map(|seed| pattern(LONG, seed)).collect();
    for out in &mut outs {
        let bufs = [buf(out)];
        pair.a.send(&Send { tagged: false, ..message(pair.to, 0, &bufs) }).unwrap();
    }
    let ends = polls([&mut pair.a, &mut pair.b], 2000);
    let received: Vec<_> = ends.iter().filter(|e| matches!(e.op, Op::Receive { .. })).collect();
    assert_eq!(received.iter().map(|e| e.len).sum::<u64>(), 3 * LONG as u64);
    assert_eq!(received.iter().filter(|e| e.released).count(), 1);
    assert!(room == outs.concat());
    assert_eq!(pair.counts()[0], 3);
}

/// What a service says of a process.
enum Says {
    Nobody,
    Nothing,
    This(Pid),
}

struct Service {
    inner: Box<dyn LocalService>,
    says: Says,
    asked: Arc<AtomicU32>,
}

impl LocalService for Service {
    fn grow(&self, bytes: u64) -> isthmus_region::Result<Extent> {
        self.inner.grow(bytes)
    }

    fn open_endpoint(&self, block: u64) -> isthmus_region::Result<(u32, u64)> {
        self.inner.open_endpoint(block)
    }

    fn close_endpoint(&self, _: u32) -> isthmus_region::Result<()> {
        Err(Error::Service { action: "close an endpoint", reason: "a test".into() })
    }

    fn process(&self, _: u32, _: u64) -> isthmus_region::Result<Option<OwnedFd>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match self.says {
            Says::Nobody => Ok(None),
            Says::Nothing => Err(Error::Service { action: "tell of a process", reason: "a test".into() }),
            Says::This(pid) => Ok(Some(pidfd_open(pid, PidfdFlags::empty()).unwrap())),
        }
    }
}

/// A pair whose receiver's service says this of the sender.
fn pair_told(says: Says) -> (Pair, Arc<AtomicU32>) {
    let world = World::new(2, 8 << 20);
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    let (sender, _) = world.attach(0);
    let mut a = Endpoint::open(&sender, config(Long::Attach), Box::new(NoMemory)).unwrap();
    let (member, _) = world.attach_with(0, |inner| Box::new(Service { inner, says, asked: count }));
    let b = Endpoint::open(&member, config(Long::Attach), Box::new(NoMemory)).unwrap();
    let to = a.resolve(&b.address()).unwrap();
    (Pair { world, a, b, to }, asked)
}

#[test]
fn what_the_service_refuses_goes_the_other_way_and_is_not_asked_for_again_and_again() {
    for (says, most) in [(Says::Nobody, 1), (Says::Nothing, 101)] {
        let (mut pair, asked) = pair_told(says);
        for tag in 0..150 {
            pair.exchange(tag, &mut pattern(LONG, tag), tag % 2 == 0, tag % 3 == 0);
        }
        let [messages, _, chunks] = pair.counts();
        assert!(messages == 0 && chunks > 0);
        assert_eq!(asked.load(Ordering::Relaxed), most);
        assert_eq!(pair.refused(), most.into());
    }
}

#[test]
fn another_process_than_the_one_that_is_meant_gives_nothing_away() {
    let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    let (mut pair, asked) = pair_told(Says::This(Pid::from_child(&child)));
    // There is no such memory in that process: each message goes the other way, whole.
    for tag in 0..4 {
        pair.exchange(tag, &mut pattern(LONG, tag), true, false);
    }
    assert_eq!((pair.counts()[0], asked.load(Ordering::Relaxed)), (0, 1));
    assert_eq!(pair.refused(), 4);
    // It ends, and its number may be another's: nothing of that is taken either.
    child.kill().unwrap();
    child.wait().unwrap();
    for tag in 4..8 {
        pair.exchange(tag, &mut pattern(LONG, tag), true, false);
    }
    assert_eq!((pair.counts()[0], asked.load(Ordering::Relaxed)), (0, 1));
}

#[test]
fn an_offer_ends_before_its_buffer_is_the_programs_again() {
    // The sender gives its receiver up, which it takes for faulty; or goes, and its service cannot be told.
    for goes in [false, true] {
        let world = World::new(2, 8 << 20);
        let says = |inner| Service { inner, says: Says::Nobody, asked: Arc::default() };
        let (sender, _) = world.attach_with(0, |inner| Box::new(says(inner)));
        let mut a = Endpoint::open(&sender, config(Long::Attach), Box::new(NoMemory)).unwrap();
        let mut b = world.endpoint_with(0, config(Long::Attach), Box::new(NoMemory));
        let to = a.resolve(&b.address()).unwrap();
        let mut out = vec![1; LONG];
        let bufs = [buf(&mut out)];
        a.send(&message(to, 7, &bufs)).unwrap();
        polls([&mut a, &mut b], 500);
        if goes {
            drop(a);
        } else {
            let back = b.resolve(&a.address()).unwrap();
            assert!(b.push_raw(back, &[head(200, 0, 0), 0, 0, 0, 0, 0, 0, 0]));
            assert_eq!(alone(&mut a).iter().map(|e| e.status).collect::<Vec<_>>(), [Status::PeerGone]);
            std::mem::forget(a);
        }
        out.fill(99);
        let mut room = vec![7; LONG];
        let into = [buf(&mut room)];
        b.receive(&receive(any(7), &into)).unwrap();
        assert_eq!(alone(&mut b), [], "nothing has come, and nothing is believed");
    }
}

/// What an announcement that is pushed as it is leads to, and what the receive says once its sender is closed. The offer's word is
/// at `word` and should have `value`.
fn offered(from: u32, len: u64, address: u64, [word, value]: [u64; 2]) -> (Vec<Completion>, Vec<Completion>) {
    let world = World::new(2, 32 << 20);
    let mut hostile = world.endpoint_with(from, config(Long::Copy), Box::new(NoMemory));
    let mut b = world.endpoint_with(0, config(Long::Attach), Box::new(NoMemory));
    let to = hostile.resolve(&b.address()).unwrap();
    let mut room = vec![7; usize::try_from(len.min(9 << 20)).unwrap()];
    let into = [buf(&mut room)];
    b.receive(&receive(any(3), &into)).unwrap();
    let flags = flag::TAGGED | flag::OFFER;
    assert!(hostile.push_raw(to, &[head(kind::READY, flags, 0), 3, 0, len, 77, address, word, value]));
    let mut before = Vec::new();
    for _ in 0..2000 {
        b.progress();
        before.extend(b.pop());
    }
    drop(hostile);
    let mut after = Vec::new();
    for _ in 0..2000 {
        b.progress();
        after.extend(b.pop());
    }
    assert!(b.take_faulty().is_none(), "it has broken no rule of the wire");
    (before, after)
}

#[test]
fn an_address_that_is_none_costs_the_sender_its_own_message() {
    // With nothing behind it.
    // SAFETY: a new mapping at a place that the kernel chooses; it stays until the test's process ends.
    let space =
        unsafe { mmap_anonymous(std::ptr::null_mut(), 16 << 20, ProtFlags::empty(), MapFlags::PRIVATE) };
    let space = space.unwrap();
    // SAFETY: the beginning of that mapping, which nothing else knows of.
    unsafe { mprotect(space, LONG.next_multiple_of(4096), MprotectFlags::READ) }.unwrap();
    let at = space as u64;
    let nowhere = [0, 1, 1 << 46, (1 << 47) - 4096, 1 << 63, u64::MAX - 70_000, u64::MAX];
    for (from, len, address) in nowhere.map(|address| (0, LONG as u64, address)).into_iter().chain([
        // Longer than an address space, and of another peer, in which there is nothing to copy from.
        (0, 1 << 40, at),
        (1, LONG as u64, at),
    ]) {
        let (before, after) = offered(from, len, address, [at, 0]);
        assert!(before.is_empty(), "it waits for the payload: {before:?}");
        assert_eq!(after.iter().map(|e| e.status).collect::<Vec<_>>(), [Status::PeerGone], "{address:x}");
    }
    // An address in the sender's process is what the sender says that its message is.
    for word in [[at, 1], [0, 0], [u64::MAX, 0], [(1 << 47) - 4, 0]] {
        assert!(offered(0, LONG as u64, at, word).0.is_empty(), "the offer does not stand");
    }
    let (before, _) = offered(0, LONG as u64, at, [at, 0]);
    assert_eq!(before.iter().map(|e| (e.status, e.len)).collect::<Vec<_>>(), [(Status::Ok, LONG as u64)]);
}

#[test]
fn either_end_may_close_in_the_middle() {
    let len = 40 << 20;
    for (sender_ends, rounds) in [(true, 3), (false, 3), (true, 0), (false, 0), (true, 20), (false, 20)] {
        let Pair { world, mut a, mut b, to } = pair(Long::Attach, Long::Attach);
        let (mut out, mut back) = (pattern(len, 1), vec![0; len]);
        let (bufs, into) = ([buf(&mut out)], [buf(&mut back)]);
        b.receive(&receive(any(1), &into)).unwrap();
        a.send(&message(to, 1, &bufs)).unwrap();
        // The lane is opened and found first.
        for _ in 0..10_000 {
            a.progress();
            if b.progress() && back[100] != 0 {
                break;
            }
        }
        for _ in 0..rounds {
            b.progress();
        }
        assert!(b.pop().is_none(), "it takes forty rounds");
        let mut left = if sender_ends {
            drop(a);
            b
        } else {
            drop(b);
            a
        };
        let mut ends = Vec::new();
        for _ in 0..3000 {
            left.progress();
            ends.extend(left.pop());
        }
        assert_eq!(ends.iter().map(|e| e.status).collect::<Vec<_>>(), [Status::PeerGone]);
        drop(world);
    }
}

#[test]
fn others_are_served_while_a_huge_message_is_copied() {
    let mut pair = pair(Long::Attach, Long::Attach);
    let (mut out, mut back) = (pattern(40 << 20, 1), vec![0; 40 << 20]);
    let (mut short, mut room) = ([3_u8; 8], [0_u8; 8]);
    let (bufs, into) = ([buf(&mut out)], [buf(&mut back)]);
    let (little, place) = ([buf(&mut short)], [buf(&mut room)]);
    pair.b.receive(&receive(any(1), &into)).unwrap();
    pair.b.receive(&receive(any(2), &place)).unwrap();
    pair.a.send(&message(pair.to, 1, &bufs)).unwrap();
    pair.a.send(&message(pair.to, 2, &little)).unwrap();
    let first = ok(wait(&mut pair.b, &mut pair.a));
    assert_eq!(first.tag, 2, "the short one does not wait for the long one");
    assert_eq!(ok(wait(&mut pair.b, &mut pair.a)).tag, 1);
    assert!(back == out);
}
