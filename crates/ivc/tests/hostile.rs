//! A member that writes anything into its own area: errors name it, its own channels die, and nothing else happens.

#![allow(clippy::disallowed_types)] // orderings of the test's own threads

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{MAGIC, Random, SOON, World, check, fill, pair};
use isthmus_ivc::{Channel, Config, Context, Error};
use isthmus_region::format::{CHANNEL_ENTRIES, MOST_CHANNEL_CHUNKS, block, channel};
use isthmus_region::member::Member;
use isthmus_region::sync::Word;

const RING: u64 = 4096;

/// A member that breaks the protocol: a context, and its memory.
struct Bad {
    member: Arc<Member>,
    context: Context,
    block: u64,
}

impl Bad {
    fn new(world: &World) -> Self {
        let member = world.member();
        let config = Config { ring_bytes: RING, ..Config::default() };
        let context = Context::register_with(&member, MAGIC, 666, config).unwrap();
        let (_, directory) = member.directory(0).unwrap();
        let is_ours = |block: u64| member.section().word("b", block + block::CLIENT).unwrap().get() == 666;
        let found = directory.endpoints().into_iter().map(|(_, e)| e.block).find(|b| is_ours(*b));
        Self { member, context, block: found.unwrap() }
    }

    fn word(&self, at: u64) -> &Word {
        self.member.section().word("bad", at).unwrap()
    }

    /// A field of the end with this number.
    fn end(&self, number: u64, field: u64) -> &Word {
        let chunk = self.word(self.block + block::CHANNELS).get();
        self.word(chunk + 64 + number * channel::BYTES + field)
    }

    /// Changes the version, so that others read its ends again.
    fn changed(&self) {
        self.word(self.block + block::CHANNELS_VERSION).add(1);
    }
}

fn works(here: &Channel, there: &Channel) {
    here.write_all(b"still", SOON).unwrap();
    let mut bytes = [0; 5];
    there.read_exact(&mut bytes, SOON).unwrap();
    assert_eq!(&bytes, b"still");
}

#[test]
fn impossible_positions_end_that_channel_alone() {
    let world = World::new();
    let (a, b) = (world.context(1), world.context(2));
    let (here, there) = pair(&a, &b);
    let reads: &[(u64, u64, &str)] = &[
        (channel::WRITE, RING + 501, "channel.WRITE"),
        (channel::WRITE, 99, "channel.WRITE"),
        (channel::WRITE, u64::MAX, "channel.WRITE"),
        (channel::END, 7, "channel.END"),
        (channel::END, u64::MAX, "channel.END"),
    ];
    for (field, value, named) in reads {
        let bad = Bad::new(&world);
        let (to_bad, of_bad) = pair(&a, &bad.context);
        of_bad.write_all(&[1; 100], SOON).unwrap();
        to_bad.read_exact(&mut [0; 100], SOON).unwrap();
        bad.end(0, *field).set(*value);
        let error = to_bad.read_some(&mut [0; 8], SOON).unwrap_err();
        let Error::Faulty { what, ref peer, .. } = error else { panic!("{error}") };
        assert_eq!((what, peer.client), (*named, 666));
        assert!(error.is_final() && error.to_string().contains("client 666 on 'host'"), "{error}");
        assert!(matches!(to_bad.write(b"x"), Err(Error::Faulty { .. })), "in both directions");
        assert!(matches!(to_bad.peek(1), Err(Error::Faulty { .. })));
        works(&here, &there);
    }
    for value in [5, 1001, u64::MAX] {
        let bad = Bad::new(&world);
        let (to_bad, of_bad) = pair(&a, &bad.context);
        to_bad.write_all(&[1; 1000], SOON).unwrap();
        of_bad.read_exact(&mut [0; 1000], SOON).unwrap();
        to_bad.flush(SOON).unwrap();
        bad.end(0, channel::READ).set(value);
        let error = to_bad.write_all(&vec![1; 100_000], SOON).unwrap_err();
        assert!(matches!(error, Error::Faulty { what: "channel.READ", .. }), "{error}");
        works(&there, &here);
    }
}

#[test]
fn other_impossible_words_do_no_harm() {
    let world = World::new();
    let (a, b) = (world.context(1), world.context(2));
    let (here, there) = pair(&a, &b);
    for field in [channel::ROOM, channel::ANSWER, channel::HEAT, channel::SLEEP, channel::LIFE, channel::TO] {
        for value in [0, 1, 2, 3, u64::MAX] {
            let bad = Bad::new(&world);
            let (to_bad, of_bad) = pair(&a, &bad.context);
            bad.end(0, field).set(value);
            bad.changed();
            a.progress();
            to_bad.write_all(&[1; 64], SOON).unwrap();
            of_bad.read_exact(&mut [0; 64], SOON).unwrap();
            works(&here, &there);
        }
    }
    for (value, closed) in [(1, true), (77, true), (2, false)] {
        let bad = Bad::new(&world);
        let (to_bad, _of_bad) = pair(&a, &bad.context);
        bad.end(0, channel::STOPPED).set(value);
        match to_bad.write(b"x") {
            Ok(0) => assert!(!closed),
            Err(Error::Closed { .. }) => assert!(closed),
            other => panic!("{other:?}"),
        }
    }
    let bad = Bad::new(&world);
    let (to_bad, _of_bad) = pair(&a, &bad.context);
    bad.end(0, channel::PAUSED).set(u64::MAX);
    assert!(matches!(to_bad.read(&mut [0]), Err(Error::Suspended { .. })));
    a.progress();
    assert_eq!(to_bad.write(b"x").unwrap(), 0);
    works(&here, &there);
}

#[test]
fn impossible_offers_and_answers_are_refused() {
    let world = World::new();
    let (a, b) = (world.context(1), world.context(2));
    for (field, value) in [
        (channel::RING, 64 << 20),
        (channel::RING, u64::MAX),
        (channel::RING_BYTES, 4097 | (64 << 32)),
        (channel::RING_BYTES, (1 << 31) | (64 << 32)),
        (channel::RING_BYTES, RING | (RING << 32)),
        (channel::RING_BYTES, 0),
    ] {
        let bad = Bad::new(&world);
        let _offer = bad.context.begin_connect(a.address()).unwrap();
        bad.end(0, field).set(value);
        bad.changed();
        assert!(a.try_accept().unwrap().is_none(), "{field} of {value:#x}");
        let (here, there) = pair(&a, &b);
        works(&here, &there);
        // The same as an answer, which is there when the other context reads the table for the first time.
        let mut connecting = a.begin_connect(bad.context.address()).unwrap();
        let of_bad = bad.context.accept(SOON).unwrap();
        bad.end(1, field).set(value);
        match connecting.wait(Some(Duration::from_millis(20))) {
            Err(Error::Faulty { what: "channel.RING", .. } | Error::TimedOut { .. }) => {}
            other => panic!("{field} of {value:#x}: {other:?}"),
        }
        drop(of_bad);
    }
    // Tables whose chunks form a loop, or lead out of the section.
    for value in [None, Some(u64::MAX), Some(7), Some(0), Some(64)] {
        let bad = Bad::new(&world);
        let _offer = bad.context.begin_connect(a.address()).unwrap();
        let chunk = bad.word(bad.block + block::CHANNELS).get();
        bad.word(chunk).set(value.unwrap_or(chunk));
        bad.changed();
        let begun = Instant::now();
        assert!(a.try_accept().unwrap().is_some(), "the first chunk is sound");
        bad.word(bad.block + block::CHANNELS).set(value.unwrap_or(1));
        bad.changed();
        assert!(a.try_accept().unwrap().is_none());
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn refused_offers_that_stand_for_ever_leave_room_for_others() {
    let world = World::with(32 << 20, |config| config);
    let a = world.context_with(1, Config { backlog: 1, ring_bytes: RING, ..Config::default() });
    let others = [2, 3].map(|client| world.context(client));
    // All entries of one context, and one of another: the first waits to be accepted, the others are refused.
    let small = Config { ring_bytes: 256, ..Config::default() };
    let bad = [4, 5].map(|client| world.context_with(client, small));
    let most = MOST_CHANNEL_CHUNKS * CHANNEL_ENTRIES;
    let mut offers: Vec<_> = (0..most).map(|_| bad[0].begin_connect(a.address()).unwrap()).collect();
    a.progress();
    offers.push(bad[1].begin_connect(a.address()).unwrap());
    let error = bad[0].begin_connect(a.address()).unwrap_err();
    assert!(matches!(error, Error::Region { .. }), "{error}");
    a.progress();
    // It connects, accepts, and refuses; the last refusal can still be read.
    let (here, there) = pair(&a, &others[0]);
    works(&here, &there);
    let first = a.accept(SOON).unwrap();
    let (there, here) = pair(&others[1], &a);
    works(&here, &there);
    let waiting = others[0].begin_connect(a.address()).unwrap();
    let mut refused = others[1].begin_connect(a.address()).unwrap();
    a.progress();
    assert!(matches!(refused.wait(SOON), Err(Error::Refused { .. })));
    let last = offers.last_mut().unwrap();
    assert!(matches!(last.wait(SOON), Err(Error::Refused { .. })));
    drop((first, waiting));
}

#[test]
fn whatever_one_member_writes_others_go_on() {
    let world = World::new();
    let (a, b) = (world.context(1), world.context(2));
    let (here, there) = pair(&a, &b);
    let done = AtomicBool::new(false);
    let mut random = Random(0xbad_5eed);
    std::thread::scope(|scope| {
        // Two honest members, whose contexts deal with the bad one as well.
        scope.spawn(|| {
            let (mut sent, mut bytes) = (0, [0; 700]);
            while !done.load(Ordering::Relaxed) {
                fill(&mut bytes, sent, 4);
                here.write_all(&bytes, SOON).unwrap();
                sent += 700;
            }
            here.shutdown_write();
        });
        scope.spawn(|| {
            let (mut got, mut bytes) = (0, [0; 900]);
            while let Ok(count) = there.read_some(&mut bytes, SOON) {
                check(&bytes[..count], got, 4);
                got += count as u64;
            }
            assert!(got > 0);
        });
        let begun = Instant::now();
        let mut rounds = 0;
        while begun.elapsed() < Duration::from_secs(4) || rounds < 20 {
            rounds += 1;
            let bad = Bad::new(&world);
            let (to_bad, of_bad) = pair(&a, &bad.context);
            let _offer = bad.context.begin_connect(b.address());
            for _ in 0..60 {
                let value = match random.below(4) {
                    0 => random.below(u64::MAX),
                    1 => random.below(RING * 2),
                    2 => random.below(5),
                    _ => bad.block + 64 * random.below(200),
                };
                match random.below(3) {
                    0 => bad.word(bad.block + 8 * random.below(16)).set(value),
                    // Any word of its table, but not LANES_VERSION and the like, which its own library uses.
                    _ => {
                        let chunk = bad.word(bad.block + block::CHANNELS).get();
                        let at = chunk.wrapping_add(64 + 8 * random.below(64)) & !7;
                        if let Ok(word) = bad.member.section().word("bad", at)
                            && at >= bad.member.grant().first.offset + isthmus_region::format::counters::BYTES
                            && at < bad.member.grant().first.offset + bad.member.grant().first.bytes
                        {
                            word.set(value);
                        }
                    }
                }
                bad.changed();
                let _ = to_bad.write(&[3; 200]);
                let _ = to_bad.read(&mut [0; 300]);
                let _ = to_bad.peek(50).map(|p| p[0].copy_to(0, &mut [0; 50]));
                let _ = of_bad.write(&[4; 100]);
                a.events();
                b.peers();
                drop(b.try_accept());
            }
            drop((to_bad, of_bad));
        }
        done.store(true, Ordering::Relaxed);
    });
    let (here, there) = pair(&a, &b);
    works(&here, &there);
}
