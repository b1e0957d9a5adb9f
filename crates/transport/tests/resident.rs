//! Long messages that lie in memory of the region: their receiver copies them from there, whichever peer's it is; senders that lie, and
//! that give up.

mod common;
use common::*;

use std::sync::{Arc, Mutex};

use isthmus_region::counters::Counter;
use isthmus_region::local::LocalBuf;
use isthmus_region::member::Member;
use isthmus_transport::types::{NoMemory, RemoteAtomic};
use isthmus_transport::wire::{flag, head, kind};
use isthmus_transport::{Access, Completion, Config, Endpoint, Long, Memory, PeerId, Posted, Status};

const LONG: usize = 300_000;
/// Words that an endpoint has for offers.
const WORDS: u64 = 128;

/// What a program has in the region: address, bytes and offset.
#[derive(Default, Clone)]
struct Held(Arc<Mutex<Vec<(u64, u64, u64)>>>);

impl Held {
    /// Takes memory of the region and fills it.
    fn take(&self, member: &Member, bytes: &[u8]) -> LocalBuf {
        let len = bytes.len() as u64;
        let offset = member.allocate(len, 64).unwrap();
        let at = member.section().address(offset, len).unwrap();
        self.0.lock().unwrap().push((at, len, offset));
        let place = usize::try_from(at).unwrap();
        // SAFETY: memory of the region that nobody else was given, for as long as the test's world lives.
        let buf = unsafe { LocalBuf::new(std::ptr::with_exposed_provenance_mut(place), bytes.len()) };
        buf.write(bytes);
        buf
    }
}

impl Memory for Held {
    fn find(&self, key: u64, addr: u64, len: u64, access: Access) -> Result<LocalBuf, Status> {
        NoMemory.find(key, addr, len, access)
    }

    fn atomic(&self, target: LocalBuf, what: &RemoteAtomic<'_>, before: &mut Vec<u8>) -> Result<(), Status> {
        NoMemory.atomic(target, what, before)
    }

    fn offset_of(&self, _: &Arc<Member>, bytes: LocalBuf) -> Option<u64> {
        let (start, len) = (bytes.address(), bytes.len() as u64);
        let held = self.0.lock().unwrap();
        let (at, _, offset) = held.iter().find(|(at, has, _)| start >= *at && start + len <= at + has)?;
        Some(offset + (start - at))
    }
}

/// A sender of peer 0, which has memory of the region, and a receiver of some peer.
struct Pair {
    world: World,
    member: Arc<Member>,
    held: Held,
    a: Endpoint,
    b: Endpoint,
    to: PeerId,
}

fn pair(receiver: u32, long: Long) -> Pair {
    let world = World::new(2, 32 << 20);
    let config = Config { long, ..Config::default() };
    let (member, held) = (world.attach(0).0, Held::default());
    let mut a = Endpoint::open(&member, config, Box::new(held.clone())).unwrap();
    let b = world.endpoint_with(receiver, config, Box::new(NoMemory));
    let to = a.resolve(&b.address()).unwrap();
    Pair { world, member, held, a, b, to }
}

impl Pair {
    fn exchange(&mut self, tag: u64, from: LocalBuf, early: bool, matched: bool) {
        let mut back = vec![0; from.len()];
        let (bufs, into) = ([from], [buf(&mut back)]);
        if early {
            self.b.receive(&receive(any(tag), &into)).unwrap();
        }
        let sent = message(self.to, tag, &bufs);
        let posted = if matched { self.a.send_until_matched(&sent) } else { self.a.send(&sent) };
        if !early {
            for _ in 0..600 {
                self.b.progress();
                self.a.progress();
            }
            assert!(self.a.pop().is_none(), "its receiver has not asked for it");
            self.b.receive(&receive(any(tag), &into)).unwrap();
        }
        let got = ok(wait(&mut self.b, &mut self.a));
        assert_eq!((got.len, got.tag, got.data), (from.len() as u64, tag, Some(tag + 1)));
        assert!(back == from.to_vec(), "{} bytes", from.len());
        assert_eq!(posted.unwrap(), Posted::Pending);
        ok(wait(&mut self.a, &mut self.b));
        assert!(self.a.pop().is_none() && self.b.pop().is_none());
    }

    /// Messages that were copied from the region, their bytes, and those that came otherwise.
    fn counts(&mut self) -> [u64; 3] {
        for end in [&mut self.a, &mut self.b] {
            (0..600).for_each(|_| _ = end.progress());
        }
        let count = |counter| {
            let of = |service: &Arc<Mutex<isthmus_region::directory::Writer>>| {
                service.lock().unwrap().directory().totals().unwrap().get(counter)
            };
            self.world.services.iter().map(of).sum::<u64>()
        };
        let others = count(Counter::Chunks) + count(Counter::Attached) + count(Counter::Granted);
        [count(Counter::Resident), count(Counter::ResidentBytes), others]
    }
}

#[test]
fn what_lies_in_the_region_is_copied_from_there_once_to_any_peer() {
    for receiver in [0, 1] {
        let mut pair = pair(receiver, Long::Attach);
        let (mut messages, mut bytes) = (0, 0);
        for (tag, len) in (0..).zip([16_385, 65_535, 65_536, LONG, 1 << 20, (1 << 20) + 1, (5 << 20) + 13]) {
            let memory = pair.held.take(&pair.member, &pattern(len, tag));
            // Whole, and from the middle on.
            for from in [memory, memory.part(len / 2, len)] {
                if from.len() <= 16 << 10 {
                    continue;
                }
                for (early, matched) in [(true, false), (false, false), (true, true), (false, true)] {
                    pair.exchange(tag, from, early, matched);
                    (messages, bytes) = (messages + 1, bytes + from.len() as u64);
                }
            }
        }
        // Short ones whose sender waits for the receive.
        for len in [1, 8, 4096, 16 << 10] {
            let memory = pair.held.take(&pair.member, &pattern(len, 3));
            pair.exchange(50, memory, true, true);
            pair.exchange(51, memory, false, true);
            (messages, bytes) = (messages + 2, bytes + 2 * len as u64);
        }
        assert_eq!(pair.counts(), [messages, bytes, 0], "to peer {receiver}");
        // Not what only begins there.
        let mut outside = pattern(LONG, 9);
        pair.exchange(70, buf(&mut outside), true, false);
        assert_eq!(pair.counts()[..2], [messages, bytes]);
    }
}

#[test]
fn both_ways_are_measured_unless_one_was_asked_for() {
    for (long, least, most) in [(Long::Auto, 4, 62), (Long::Copy, 0, 0), (Long::Attach, 64, 64)] {
        for receiver in [0, 1] {
            let mut pair = pair(receiver, long);
            let memory = pair.held.take(&pair.member, &pattern(LONG, 5));
            for tag in 0..64 {
                pair.exchange(tag, memory, true, false);
            }
            let [messages, bytes, _] = pair.counts();
            assert!((least..=most).contains(&messages), "{long:?} to peer {receiver}: {messages}");
            assert_eq!(bytes, messages * LONG as u64);
        }
    }
}

#[test]
fn more_messages_than_words_come_whole_and_the_words_come_back() {
    let mut pair = pair(1, Long::Attach);
    for round in 0..3 {
        let count = 2 * WORDS;
        let memory = pair.held.take(&pair.member, &pattern(20_000, round));
        let bufs = [memory];
        for tag in 0..count {
            assert_eq!(pair.a.send(&message(pair.to, tag, &bufs)).unwrap(), Posted::Pending);
        }
        let mut rooms = vec![vec![0; 20_000]; usize::try_from(count).unwrap()];
        for (tag, room) in (0..).zip(&mut rooms) {
            let into = [buf(room)];
            pair.b.receive(&receive(any(tag), &into)).unwrap();
        }
        let done = polls([&mut pair.a, &mut pair.b], 20_000);
        assert_eq!(done.iter().filter(|end| end.status == Status::Ok).count(), 2 * rooms.len());
        assert!(rooms.iter().all(|room| *room == memory.to_vec()));
        assert_eq!(pair.counts()[0], (round + 1) * WORDS);
    }
}

#[test]
fn an_offer_ends_before_its_buffer_is_the_programs_again() {
    // The sender gives its receiver up, which it takes for faulty; or goes, and its memory serves others.
    for goes in [false, true] {
        let Pair { member, held, mut a, mut b, to, .. } = pair(1, Long::Attach);
        let memory = held.take(&member, &pattern(LONG, 1));
        let bufs = [memory];
        a.send(&message(to, 7, &bufs)).unwrap();
        assert!(polls([&mut a, &mut b], 500).is_empty());
        if goes {
            drop(a);
            // The words of its offers are among it.
            while let Ok(at) = member.take(1024) {
                for word in 0..128 {
                    member.section().word("other memory", at + 8 * word).unwrap().put(1);
                }
            }
        } else {
            let back = b.resolve(&a.address()).unwrap();
            assert!(b.push_raw(back, &[head(200, 0, 0), 0, 0, 0, 0, 0, 0, 0]));
            assert_eq!(alone(&mut a).iter().map(|e| e.status).collect::<Vec<_>>(), [Status::PeerGone]);
            std::mem::forget(a);
        }
        memory.write(&[99; LONG]);
        let mut room = vec![7; LONG];
        let into = [buf(&mut room)];
        b.receive(&receive(any(7), &into)).unwrap();
        let ends: Vec<_> = alone(&mut b).iter().map(|e| (e.status, e.len)).collect();
        let expected: &[_] = if goes { &[(Status::PeerGone, 0)] } else { &[] };
        assert_eq!(ends, expected, "nothing has come, and nothing is believed");
    }
}

/// What an announcement that is pushed as it is leads to, and whether its sender is taken for faulty.
fn offered(len: u64, places: [u64; 3]) -> (Vec<Completion>, bool) {
    let Pair { mut a, mut b, to, .. } = pair(1, Long::Attach);
    let mut room = vec![7; usize::try_from(len.min(9 << 20)).unwrap()];
    let into = [buf(&mut room)];
    b.receive(&receive(any(3), &into)).unwrap();
    let flags = flag::TAGGED | flag::OFFER | flag::RESIDENT;
    let [payload, word, value] = places;
    assert!(a.push_raw(to, &[head(kind::READY, flags, 0), 3, 0, len, 77, payload, word, value]));
    let mut done = Vec::new();
    for _ in 0..2000 {
        b.progress();
        done.extend(b.pop());
    }
    let is_faulty = b.take_faulty().is_some();
    drop(a);
    (done, is_faulty)
}

#[test]
fn a_place_that_the_senders_section_does_not_have_makes_it_faulty() {
    let (section, long) = (32 << 20, LONG as u64);
    for (len, payload, word) in [
        (long, section, 0),
        (long, section - long + 1, 0),
        (long, u64::MAX, 0),
        (long, u64::MAX - long + 1, 0),
        (section + 1, 0, 0),
        (1 << 46, 0, 0),
        (long, 0, section),
        (long, 0, section - 4),
        (long, 0, u64::MAX - 7),
        (long, 0, 12),
    ] {
        let (done, is_faulty) = offered(len, [payload, word, 1]);
        assert!(done.is_empty() && is_faulty, "{len} bytes at {payload:x}, word {word:x}: {done:?}");
    }
    // Its own first word is no offer's.
    let (done, is_faulty) = offered(long, [0, 0, 1]);
    assert!(done.is_empty() && !is_faulty, "{done:?}");
    // What it says of its own section is what its message is.
    let magic = u64::from_le_bytes(*b"PEERDIR1");
    let (done, is_faulty) = offered(long, [section - long, 0, magic]);
    assert_eq!(done.iter().map(|e| (e.status, e.len)).collect::<Vec<_>>(), [(Status::Ok, long)]);
    assert!(!is_faulty);
}

#[test]
fn a_round_copies_a_mebibyte_of_however_many_messages() {
    const LEN: usize = 100_000;
    // Those of a sender that lies, whose offers do not stand, are copied for nothing.
    for stands in [true, false] {
        let Pair { world: _world, member, held, mut a, mut b, to } = pair(1, Long::Attach);
        let memory = held.take(&member, &[3; LEN]);
        let offset = held.0.lock().unwrap()[0].2;
        let mut rooms = vec![vec![7; LEN]; 40];
        for room in &mut rooms {
            let into = [buf(room)];
            b.receive(&receive(any(3), &into)).unwrap();
        }
        for _ in 0..rooms.len() {
            if stands {
                assert_eq!(a.send(&message(to, 3, &[memory])).unwrap(), Posted::Pending);
            } else {
                let head = head(kind::READY, flag::TAGGED | flag::OFFER | flag::RESIDENT, 0);
                while !a.push_raw(to, &[head, 3, 0, LEN as u64, 77, offset, 0, 1]) {
                    a.progress();
                }
            }
        }
        // To every tenth part of a message.
        let copied = |rooms: &[Vec<u8>]| {
            let parts = rooms.iter().flat_map(|room| room.iter().skip(LEN / 10 - 1).step_by(LEN / 10));
            parts.filter(|byte| **byte == 3).count() * LEN / 10
        };
        let (mut before, mut most) = (0, 0);
        for _ in 0..400 {
            b.progress();
            a.progress();
            let now = copied(&rooms);
            (before, most) = (now, most.max(now - before));
        }
        assert_eq!(before, 40 * LEN, "all were copied");
        assert!(most > 3 * LEN && most <= (1 << 20) + LEN, "{most} bytes in a round");
    }
}

#[test]
fn what_others_write_into_words_of_offers_ends_no_more_than_those_offers() {
    for value in [0, u64::MAX] {
        let mut pair = pair(1, Long::Attach);
        let memory = pair.held.take(&pair.member, &pattern(LONG, 4));
        pair.exchange(1, memory, true, false);
        // Its word, by a member that means harm: it begins a line of the sender's area, and its announcement names what it has.
        let section = pair.world.section_of(0);
        let start = pair.member.grant().first.offset;
        let now = |at: &u64| section.word("any", *at).unwrap().peek();
        let zeros: Vec<u64> = (start..start + (1 << 20)).step_by(8).filter(|at| now(at) == 0).collect();
        assert_eq!(pair.a.send(&message(pair.to, 500, &[memory])).unwrap(), Posted::Pending);
        let changed: Vec<u64> = zeros.into_iter().filter(|at| now(at) != 0).collect();
        let is_named = |at: &u64| changed.iter().any(|other| other != at && now(other) == now(at));
        let word = changed.iter().find(|at| at.is_multiple_of(64) && is_named(at)).unwrap();
        section.word("any", *word).unwrap().put(value);
        let mut back = vec![0; LONG];
        let into = [buf(&mut back)];
        pair.b.receive(&receive(any(500), &into)).unwrap();
        // It comes the other way, and the next ones from the region again.
        ok(wait(&mut pair.b, &mut pair.a));
        ok(wait(&mut pair.a, &mut pair.b));
        assert!(back == pattern(LONG, 4));
        for tag in 3..200 {
            pair.exchange(tag, memory, true, false);
        }
        assert_eq!(pair.counts()[0], 198);
    }
}

#[test]
fn either_end_may_close_in_the_middle() {
    let len = 20 << 20;
    for (sender_ends, rounds) in [(true, 3), (false, 3), (true, 0), (false, 0), (true, 15), (false, 15)] {
        let Pair { world, member, held, mut a, mut b, to } = pair(1, Long::Attach);
        let memory = held.take(&member, &pattern(len, 1));
        let mut back = vec![0; len];
        let (bufs, into) = ([memory], [buf(&mut back)]);
        b.receive(&receive(any(1), &into)).unwrap();
        a.send(&message(to, 1, &bufs)).unwrap();
        for _ in 0..10_000 {
            a.progress();
            if b.progress() && back[100] != 0 {
                break;
            }
        }
        for _ in 0..rounds {
            b.progress();
        }
        assert!(b.pop().is_none(), "it takes twenty rounds");
        let mut left = if sender_ends {
            drop(a);
            b
        } else {
            drop(b);
            a
        };
        let ends = alone(&mut left);
        assert_eq!(ends.iter().map(|e| e.status).collect::<Vec<_>>(), [Status::PeerGone]);
        drop(world);
    }
}
