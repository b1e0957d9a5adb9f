//! Channels between contexts of several attachments, all in this process.

mod common;

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Random, SOON, World, await_that, check, fill, pair};
use isthmus_host::Config as HostConfig;
use isthmus_ivc::{Callbacks, Channel, Config, Context, Error, Event, Interest};
use rustix::event::{PollFd, PollFlags};

#[test]
fn bytes_go_both_ways_and_end() {
    let world = World::new();
    let (a, b) = (world.context(1), world.context(2));
    let peers = a.peers();
    assert_eq!(peers.len(), 1);
    assert_eq!((peers[0].client, &*peers[0].host, peers[0].address), (2, "host", b.address()));
    let (here, there) = pair(&a, &b);
    assert_eq!((here.peer().client, there.peer().client), (2, 1));
    assert_eq!(here.write(b"hello").unwrap(), 5);
    let mut into = [0; 16];
    assert_eq!(there.read(&mut into).unwrap(), 5);
    assert_eq!(&into[..5], b"hello");
    assert_eq!(there.read(&mut into).unwrap(), 0, "nothing is there, and it has not ended");
    there.write_all(b"and back", SOON).unwrap();
    here.read_exact(&mut into[..8], SOON).unwrap();
    assert_eq!(&into[..8], b"and back");
    here.write_all(b"last", SOON).unwrap();
    here.close();
    there.read_exact(&mut into[..4], SOON).unwrap();
    assert_eq!(&into[..4], b"last");
    let error = there.read(&mut into).unwrap_err();
    assert!(matches!(error, isthmus_ivc::Error::End { .. }), "{error}");
    let error = there.write(b"x").unwrap_err();
    assert!(matches!(error, isthmus_ivc::Error::Closed { .. }), "{error}");
}

fn by_service() -> Config {
    Config { by_service: true, ..Config::default() }
}

/// Sends `total` bytes in pieces of random size, by each way there is to write.
fn send_all(channel: &Channel, total: u64, most: u64, seed: u64) {
    let mut random = Random(seed | 1);
    let mut sent = 0;
    let mut bytes = vec![0; usize::try_from(most).unwrap()];
    while sent < total {
        let len = usize::try_from((1 + random.below(most)).min(total - sent)).unwrap();
        let bytes = &mut bytes[..len];
        fill(bytes, sent, seed);
        match random.below(4) {
            0 => channel.write_all(bytes, SOON).unwrap(),
            1 => {
                let mut done = 0;
                while done < len {
                    let middle = done + (len - done) / 2;
                    let slices = [IoSlice::new(&bytes[done..middle]), IoSlice::new(&bytes[middle..])];
                    done += channel.write_vectored(&slices).unwrap();
                    if done < len {
                        channel.wait_writable(1, SOON).unwrap();
                    }
                }
            }
            2 => {
                let mut done = 0;
                while done < len {
                    let pieces = channel.reserve(len - done).unwrap();
                    let mut put = 0;
                    for piece in &pieces {
                        put += piece.copy_from(0, &bytes[done + put..]);
                    }
                    assert_eq!(put, pieces.iter().map(|p| p.len()).sum::<usize>().min(len - done));
                    channel.commit(put).unwrap();
                    done += put;
                    if put == 0 {
                        channel.wait_writable(1, SOON).unwrap();
                    }
                }
            }
            _ => {
                let mut done = 0;
                while done < len {
                    done += channel.write(&bytes[done..]).unwrap();
                    if done < len {
                        std::thread::yield_now();
                    }
                }
            }
        }
        sent += len as u64;
    }
}

/// Reads until the end of the stream and checks every byte; returns their count.
fn receive_all(channel: &Channel, most: u64, seed: u64) -> u64 {
    let mut random = Random(seed.wrapping_mul(31) | 1);
    let mut got = 0;
    let mut bytes = vec![0; usize::try_from(most).unwrap()];
    loop {
        let len = usize::try_from(1 + random.below(most)).unwrap();
        let bytes = &mut bytes[..len];
        let count = match random.below(3) {
            0 => channel.read_some(bytes, SOON),
            1 => {
                let (first, second) = bytes.split_at_mut(len / 2);
                let mut slices = [IoSliceMut::new(first), IoSliceMut::new(second)];
                channel.read_vectored(&mut slices)
            }
            _ => channel.peek(len).and_then(|pieces| {
                let mut count = 0;
                for piece in &pieces {
                    count += piece.copy_to(0, &mut bytes[count..]);
                }
                channel.release(count).map(|()| count)
            }),
        };
        match count {
            Ok(0) => channel.wait_readable(SOON).unwrap(),
            Ok(count) => {
                check(&bytes[..count], got, seed);
                got += count as u64;
            }
            Err(Error::End { .. }) => return got,
            Err(e) => panic!("{e} after {got} bytes"),
        }
    }
}

#[test]
fn a_stream_keeps_every_byte_over_many_wraps() {
    let world = World::new();
    for (i, (ring_bytes, segment_bytes, most, service)) in [
        (256, 64, 700, false),
        (1024, 256, 100, false),
        (64 << 10, 64, 200_000, false),
        (1024, 64, 3000, true),
    ]
    .into_iter()
    .enumerate()
    {
        let config = Config { ring_bytes, segment_bytes, by_service: service, ..Config::default() };
        let (a, b) = (world.context_with(1, config), world.context_with(2, config));
        let (here, there) = pair(&a, &b);
        let total = if service { 60_000 } else { 40 * ring_bytes.max(10_000) };
        let seed = i as u64 + 1;
        std::thread::scope(|scope| {
            // Both directions at once, each by two threads.
            for (from, seed) in [(&here, seed), (&there, seed + 100)] {
                scope.spawn(move || {
                    send_all(from, total, most, seed);
                    from.shutdown_write();
                });
            }
            for (to, seed) in [(&there, seed), (&here, seed + 100)] {
                scope.spawn(move || assert_eq!(receive_all(to, most, seed), total));
            }
        });
    }
}

#[test]
fn a_full_ring_takes_no_more_and_single_bytes_arrive() {
    let world = World::new();
    let config = Config { ring_bytes: 1024, ..Config::default() };
    let (a, b) = (world.context_with(1, config), world.context(2));
    let (here, there) = pair(&a, &b);
    assert_eq!((here.ring_bytes(), there.ring_bytes()), ((1024, 64 << 10), (64 << 10, 1024)));
    let mut bytes = vec![0; 5000];
    fill(&mut bytes, 0, 3);
    assert_eq!(here.write(&bytes).unwrap(), 1024);
    assert_eq!(here.write(&bytes[1024..]).unwrap(), 0);
    assert!(matches!(here.wait_writable(1, Some(Duration::from_millis(20))), Err(Error::TimedOut { .. })));
    let error = here.write_all(b"more", Some(Duration::from_millis(20))).unwrap_err();
    assert!(matches!(error, Error::TimedOut { moved: 0, .. }), "{error}");
    let mut one = [0];
    for i in 0..1024 {
        assert_eq!(there.read(&mut one).unwrap(), 1);
        check(&one, i, 3);
    }
    assert_eq!(there.read(&mut one).unwrap(), 0);
    let error = there.read_exact(&mut [0; 8], Some(Duration::from_millis(20))).unwrap_err();
    assert!(matches!(error, Error::TimedOut { moved: 0, .. }), "{error}");
    here.write_all(&bytes[..3], SOON).unwrap();
    let error = there.read_exact(&mut [0; 8], Some(Duration::from_millis(20))).unwrap_err();
    assert!(matches!(error, Error::TimedOut { moved: 3, .. }), "{error}");
    here.flush(SOON).unwrap();
    assert_eq!(here.write(&[]).unwrap(), 0);
    assert_eq!(there.read(&mut []).unwrap(), 0);
}

#[test]
fn programs_work_in_the_ring_itself() {
    let world = World::new();
    let (a, b) = (world.context(1), world.context(2));
    let (here, there) = pair(&a, &b);
    // Move on to where the ring's end lies between two pieces.
    here.write_all(&[1; 60 << 10], SOON).unwrap();
    there.read_exact(&mut vec![0; 60 << 10], SOON).unwrap();
    let room = here.reserve(8 << 10).unwrap();
    assert_eq!(room.map(|p| p.len()), [4 << 10, 4 << 10]);
    assert_eq!(room[1].address() + (60 << 10), room[0].address());
    let mut bytes = vec![0; 8 << 10];
    fill(&mut bytes, 0, 9);
    assert_eq!(room[0].copy_from(0, &bytes), 4 << 10);
    assert_eq!(room[1].copy_from(0, &bytes[4 << 10..]), 4 << 10);
    assert_eq!(room[1].copy_from(4 << 10, &bytes), 0, "behind its end");
    let first = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(room[0].set(0, first) && room[0].set((4 << 10) - 2, [bytes[4094], bytes[4095]]));
    assert!(!room[0].set((4 << 10) - 7, 0_u64) && !room[0].set(usize::MAX, 0_u8), "nothing beyond its end");
    assert!(matches!(here.commit((8 << 10) + 1), Err(Error::Invalid { .. })));
    assert_eq!(there.peek(10).unwrap()[0].len(), 0, "nothing was published");
    here.commit(6 << 10).unwrap();
    assert!(matches!(here.commit(1), Err(Error::Invalid { .. })), "a reservation is committed once");
    let seen = there.peek(usize::MAX).unwrap();
    assert_eq!(seen.map(|p| p.len()), [4 << 10, 2 << 10]);
    assert_ne!(seen[0].address(), 0);
    let mut copy = vec![0; 6 << 10];
    assert_eq!(seen[0].copy_to(0, &mut copy), 4 << 10);
    assert_eq!(seen[1].copy_to(0, &mut copy[4 << 10..]), 2 << 10);
    check(&copy, 0, 9);
    assert_eq!(seen[0].get::<u64>(0), Some(first));
    assert_eq!(seen[1].get::<u8>((2 << 10) - 1), Some(copy[(6 << 10) - 1]));
    assert_eq!(seen[1].get::<u16>((2 << 10) - 1), None);
    assert!(matches!(there.release((6 << 10) + 1), Err(Error::Invalid { .. })));
    there.release(1).unwrap();
    assert_eq!(there.read(&mut copy).unwrap(), (6 << 10) - 1, "what was not released is read");
    check(&copy[..(6 << 10) - 1], 1, 9);
}

#[test]
fn groups_do_not_see_each_other() {
    let world = World::new();
    let member = world.member();
    // Two groups of three, some in one process.
    let contexts: Vec<Context> = (0..6)
        .map(|i| {
            let member = if i < 3 { member.clone() } else { world.member() };
            Context::register(&member, 100 + i % 2, i).unwrap()
        })
        .collect();
    for context in &contexts {
        let clients: Vec<u64> = context.peers().iter().map(|p| p.client).collect();
        let group = (0..6).filter(|c| c % 2 == context.client() % 2 && *c != context.client());
        assert_eq!(clients.len(), 2);
        assert!(group.into_iter().all(|c| clients.contains(&c)), "{clients:?}");
        let error = context.connect(context.address(), SOON).unwrap_err();
        assert!(matches!(error, Error::Oneself), "{error}");
        let stranger = contexts.iter().find(|c| c.magic() != context.magic()).unwrap();
        let error = context.connect(stranger.address(), SOON).unwrap_err();
        assert!(matches!(error, Error::NoPeer { .. }), "{error}");
    }
    let (here, there) = pair(&contexts[0], &contexts[2]);
    here.write_all(b"x", SOON).unwrap();
    there.read_exact(&mut [0], SOON).unwrap();
    assert!(contexts[1].try_accept().unwrap().is_none());
}

#[test]
fn joins_and_leaves_are_reported() {
    let world = World::new();
    let (a, b) = (world.context(1), world.context(2));
    assert_eq!(a.events().len(), 1, "it came later");
    assert!(b.events().is_empty(), "it was there before");
    assert_eq!(a.wait_peers(0, SOON).unwrap().len(), 1);
    let error = a.wait_peers(2, Some(Duration::from_millis(10))).unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    let (waited, c) = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| a.wait_peers(2, SOON).unwrap());
        let c = world.context(3);
        (waiting.join().unwrap(), c)
    });
    assert_eq!(waited.iter().map(|p| p.client).collect::<Vec<_>>(), [2, 3]);
    for context in [&a, &b] {
        let events = context.wait_events(SOON);
        assert!(matches!(&events[..], [Event::Joined(p)] if p.client == 3), "{events:?}");
    }
    let address = c.address();
    drop(c);
    for context in [&a, &b] {
        let events = context.wait_events(SOON);
        let [Event::Left { peer, in_order: true }] = &events[..] else { panic!("{events:?}") };
        assert_eq!((peer.client, peer.address), (3, address));
        assert_eq!(context.peers().len(), 1);
    }
    assert!(matches!(a.connect(address, SOON), Err(Error::NoPeer { .. })));
    assert!(a.wait_events(Some(Duration::from_millis(10))).is_empty());
    // Through call-backs, which take the events from the queue.
    let (send, calls) = std::sync::mpsc::channel();
    let gone = send.clone();
    a.set_callbacks(Callbacks {
        on_reachable: Some(Box::new(move |peers| send.send(format!("new {}", peers[0].client)).unwrap())),
        on_gone: Some(Box::new(move |channel| gone.send(format!("gone {channel}")).unwrap())),
        on_suspended: None,
    });
    let d = world.context(4);
    let (here, there) = pair(&a, &d);
    await_that("the call", || {
        a.progress();
        calls.try_recv().is_ok_and(|call| call == "new 4")
    });
    drop((there, d));
    await_that("the call", || {
        a.progress();
        calls.try_recv().is_ok_and(|call| call == format!("gone {}", here.id()))
    });
    let events = a.events();
    assert!(matches!(&events[..], [Event::Left { .. }]), "{events:?}");
}

#[test]
fn a_refused_connection_is_reported() {
    let world = World::new();
    let a = world.context(1);
    let deaf = world.context_with(2, Config { backlog: 0, ..Config::default() });
    let error = a.connect(deaf.address(), SOON).unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(error.to_string().contains("client 2 on 'host'"), "{error}");
    let busy = world.context_with(3, Config { backlog: 2, ..Config::default() });
    let mut waiting: Vec<_> = (0..5).map(|_| a.begin_connect(busy.address()).unwrap()).collect();
    let first = busy.try_accept().unwrap().expect("two wait");
    let answers: Vec<_> = waiting.iter_mut().map(|c| c.poll()).collect();
    assert!(matches!(answers[0], Ok(Some(_))) && matches!(answers[1], Ok(None)));
    for answer in &answers[2..] {
        assert!(matches!(answer, Err(Error::Refused { .. })), "{answer:?}");
    }
    // There is room again. An offer that was given up is not accepted.
    let again = a.begin_connect(busy.address()).unwrap();
    drop(waiting);
    drop(again);
    assert!(busy.try_accept().unwrap().is_none());
    drop(first);
    let error = a.connect(busy.address(), Some(Duration::from_millis(30))).unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    let error = busy.accept(Some(Duration::from_millis(30))).unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    // A context that leaves refuses the connections that wait.
    let mut connecting = a.begin_connect(busy.address()).unwrap();
    assert!(busy.peers().len() > 1);
    drop(busy);
    let error = connecting.wait(SOON).unwrap_err();
    assert!(matches!(error, Error::Refused { .. } | Error::PeerDied { .. }), "{error}");
}

#[test]
fn giving_up_after_a_refusal_leaves_nothing_to_wait_for() {
    let world = World::new();
    let patient = Config { linger: Duration::from_secs(3600), ..Config::default() };
    let a = world.context_with(1, patient);
    let busy = world.context_with(2, Config { backlog: 1, ..Config::default() });
    let mut asked: Vec<_> = (0..4).map(|_| a.begin_connect(busy.address()).unwrap()).collect();
    busy.progress();
    for refused in &mut asked[1..] {
        assert!(matches!(refused.poll(), Err(Error::Refused { .. })));
    }
    drop(asked);
    // It does not wait until the other context uses these entries again, which it may never do.
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(a);
        let _ = done.send(());
    });
    is_done.recv_timeout(Duration::from_secs(30)).expect("it leaves at once");
}

#[test]
fn many_connect_at_once_and_leave_nothing_behind() {
    let world = World::new();
    let before = world.heap_used();
    let server = world.context_with(0, Config { backlog: 8, ring_bytes: 1024, ..Config::default() });
    let config = Config { ring_bytes: 1024, ..Config::default() };
    let clients: Vec<Context> = (1..5).map(|i| world.context_with(i, config)).collect();
    const EACH: u64 = 60;
    let mut heap = 0;
    for round in 0..3 {
        std::thread::scope(|scope| {
            for client in &clients {
                let server = server.address();
                scope.spawn(move || {
                    for i in 0..EACH {
                        let channel = loop {
                            match client.connect(server, SOON) {
                                Ok(channel) => break channel,
                                Err(Error::Refused { .. }) => std::thread::yield_now(),
                                Err(e) => panic!("{e}"),
                            }
                        };
                        channel.write_all(&i.to_le_bytes(), SOON).unwrap();
                        let mut back = [0; 8];
                        channel.read_exact(&mut back, SOON).unwrap();
                        assert_eq!(back, i.to_le_bytes());
                    }
                });
            }
            // Two threads accept.
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..2 * EACH {
                        let channel = server.accept(SOON).unwrap();
                        let mut bytes = [0; 8];
                        channel.read_exact(&mut bytes, SOON).unwrap();
                        channel.write_all(&bytes, SOON).unwrap();
                        channel.flush(SOON).ok();
                    }
                });
            }
        });
        let used = world.heap_used();
        assert!(round == 0 || used <= heap + (1 << 20), "{used} of {heap}");
        heap = used;
    }
    drop((clients, server));
    await_that("all memory back", || world.heap_used() <= before);
}

#[test]
fn what_was_written_before_a_close_is_delivered() {
    let world = World::new();
    let b = world.context(2);
    for round in 0..20 {
        let a = world.context(1);
        let (here, there) = pair(&a, &b);
        let len = 1 + 3000 * round;
        let mut bytes = vec![0; len];
        fill(&mut bytes, 0, 5);
        here.write_all(&bytes, SOON).unwrap();
        std::thread::scope(|scope| {
            // The context and its attachment go, too: they wait for the reader.
            scope.spawn(move || drop((here, a)));
            if round % 2 == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(receive_all(&there, 5000, 5), len as u64);
        });
        assert!(matches!(there.read(&mut [0]), Err(Error::End { .. })));
        assert!(matches!(there.write(&[0]), Err(Error::Closed { .. })));
    }
}

#[test]
fn a_channel_that_is_closed_at_once_is_delivered() {
    let world = World::new();
    let (a, b) = (world.context(1), world.context(2));
    for len in [0, 5, 60_000] {
        let mut connecting = a.begin_connect(b.address()).unwrap();
        let there = b.accept(SOON).unwrap();
        let mut bytes = vec![0; len];
        fill(&mut bytes, 0, 6);
        there.write_all(&bytes, SOON).unwrap();
        drop(there);
        let here = connecting.poll().unwrap().expect("it was accepted, and closed since");
        assert_eq!(receive_all(&here, 1000, 6), len as u64);
        assert!(matches!(here.write(b"x"), Err(Error::Closed { .. })));
    }
    // A connection that is given up meanwhile leaves nothing behind.
    for _ in 0..300 {
        let connecting = a.begin_connect(b.address()).unwrap();
        drop(b.accept(SOON).unwrap());
        drop(connecting);
    }
    assert!(world.heap_used() < 8 << 20);
}

#[test]
fn accepting_an_offer_that_is_given_up_gives_an_ended_channel() {
    let world = World::new();
    let (a, b) = (world.context(1), world.context(2));
    let member = world.member();
    let rings = || {
        let directory = member.directory(member.peer()).unwrap().1;
        (0..2).map(|local| directory.wake_line(local).unwrap().words[0].get()).sum::<u64>()
    };
    for asleep in [false, true] {
        let connecting = a.begin_connect(b.address()).unwrap();
        let there = b.accept(SOON).unwrap();
        let before = rings();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                if asleep {
                    return there.read_some(&mut [0; 9], SOON);
                }
                std::thread::sleep(Duration::from_millis(20));
                there.read(&mut [0; 9])
            });
            std::thread::sleep(Duration::from_millis(if asleep { 20 } else { 0 }));
            drop(connecting);
            let end = reader.join().unwrap();
            assert!(matches!(end, Err(Error::End { .. })), "{end:?}");
        });
        // A sleeper is rung: it does not only find the end when its sleep is over.
        assert_eq!(rings() > before, asleep);
        assert!(matches!(there.write(b"x"), Err(Error::Closed { .. })));
    }
}

#[test]
fn each_direction_ends_by_itself() {
    let world = World::new();
    let (a, b) = (world.context(1), world.context(2));
    let (here, there) = pair(&a, &b);
    here.write_all(b"question", SOON).unwrap();
    here.shutdown_write();
    assert!(matches!(here.write(b"x"), Err(Error::Closed { .. })));
    let mut bytes = [0; 8];
    there.read_exact(&mut bytes, SOON).unwrap();
    assert!(matches!(there.read_some(&mut bytes, SOON), Err(Error::End { .. })));
    there.write_all(b"answer", SOON).unwrap();
    here.read_exact(&mut bytes[..6], SOON).unwrap();
    // Halves: dropping the reader refuses writes, dropping the writer ends the stream.
    let (reader, mut writer) = there.split();
    drop(reader);
    writer.write_all(b"still", SOON).unwrap();
    here.read_exact(&mut bytes[..5], SOON).unwrap();
    drop(writer);
    assert!(matches!(here.read_some(&mut bytes, SOON), Err(Error::End { .. })));
    let (here, there) = pair(&a, &b);
    let (reader, writer) = there.split();
    drop(reader);
    assert!(matches!(here.write(b"x"), Err(Error::Closed { .. })));
    drop(writer);
}

#[test]
fn sleepers_are_woken() {
    let world = World::new();
    for config in [Config::default(), by_service()] {
        let config = Config { ring_bytes: 4096, ..config };
        let (a, b) = (world.context_with(1, config), world.context_with(2, config));
        let (here, there) = pair(&a, &b);
        std::thread::scope(|scope| {
            // A reader.
            let reader = scope.spawn(|| {
                let mut byte = [0];
                for _ in 0..20 {
                    there.read_exact(&mut byte, SOON).unwrap();
                    there.write_all(&byte, SOON).unwrap();
                }
                cpu_time()
            });
            for i in 0..20 {
                std::thread::sleep(Duration::from_millis(if i == 0 { 1000 } else { 20 }));
                here.write_all(&[i], SOON).unwrap();
                let mut byte = [0];
                here.read_exact(&mut byte, SOON).unwrap();
                assert_eq!(byte, [i]);
            }
            let used = reader.join().unwrap();
            assert!(used < Duration::from_millis(300), "a sleeper of more than a second took {used:?}");
            // The write wakes it: by itself it would wake 35 ms later, or more with a service. In the first rounds the writer
            // has not said yet that it rings. A busy machine makes rounds longer, never shorter, so the quickest one counts.
            const ROUNDS: usize = 12;
            let reader = scope.spawn(|| {
                let read = |_| {
                    there.read_exact(&mut [0], SOON).unwrap();
                    Instant::now()
                };
                (0..ROUNDS).map(read).collect::<Vec<_>>()
            });
            let written: Vec<_> = (0..ROUNDS)
                .map(|_| {
                    std::thread::sleep(Duration::from_millis(15));
                    let now = Instant::now();
                    here.write_all(&[1], SOON).unwrap();
                    now
                })
                .collect();
            let read = reader.join().unwrap();
            let late = read.iter().zip(&written).skip(4).map(|(r, w)| r.saturating_duration_since(*w));
            let quickest = late.min().unwrap();
            assert!(quickest < Duration::from_millis(15), "the reader woke only after {quickest:?}");
            // A writer.
            let writer = scope.spawn(|| here.write_all(&[7; 40_000], SOON).unwrap());
            std::thread::sleep(Duration::from_millis(100));
            there.read_exact(&mut [0; 40_000], SOON).unwrap();
            writer.join().unwrap();
            // A wait for a connection, and one for its acceptance.
            let accepting = scope.spawn(|| a.accept(SOON).unwrap());
            std::thread::sleep(Duration::from_millis(100));
            let channel = b.connect(a.address(), SOON).unwrap();
            drop(accepting.join().unwrap());
            assert!(matches!(channel.read_some(&mut [0], SOON), Err(Error::End { .. })));
        });
    }
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

/// Polls a descriptor; returns whether it became readable.
fn poll(context: &Context, limit: Duration) -> bool {
    let fd = context.descriptor().unwrap();
    let limit = rustix::event::Timespec::try_from(limit).unwrap();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&limit)).unwrap() > 0
}

/// Arms and polls until there is something to do.
fn poll_until(context: &Context, mut done: impl FnMut() -> bool) -> u32 {
    let mut polls = 0;
    let begun = Instant::now();
    loop {
        let may_poll = context.arm();
        if done() {
            return polls;
        }
        assert!(begun.elapsed() < Duration::from_secs(30));
        if may_poll {
            poll(context, Duration::from_secs(20));
            polls += 1;
        }
    }
}

#[test]
fn a_program_polls_one_descriptor() {
    let world = World::new();
    for config in [Config::default(), by_service()] {
        let (a, b) = (world.context_with(1, config), world.context(2));
        a.events();
        assert!(a.descriptor().is_ok());
        assert!(a.arm(), "nothing is there");
        // Connections.
        let mut channel = None;
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(70));
                b.connect(a.address(), SOON).unwrap()
            });
            let polls = poll_until(&a, || {
                channel = a.try_accept().unwrap();
                channel.is_some()
            });
            assert!(polls >= 1);
            let there = Arc::new(connecting.join().unwrap());
            let here = channel.as_ref().unwrap();
            // Bytes, of a channel that is watched.
            here.watch(Interest { read: true, write: false });
            let mut byte = [0];
            for _ in 0..3 {
                let there = Arc::clone(&there);
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(10));
                    there.write_all(&[5], SOON).unwrap();
                });
                poll_until(&a, || here.read(&mut byte).unwrap() == 1);
            }
            there.write_all(&[6], SOON).unwrap();
            assert!(!a.arm(), "it is there already");
            assert_eq!(here.read(&mut byte).unwrap(), 1);
            // Room.
            while here.write(&[1; 4096]).unwrap() > 0 {}
            here.watch(Interest { read: false, write: true });
            assert!(a.arm(), "no room");
            let reader = Arc::clone(&there);
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(10));
                reader.read_exact(&mut [0; 8192], SOON).unwrap();
            });
            poll_until(&a, || here.write(&[2; 64]).unwrap() > 0);
            here.watch(Interest::default());
            // Events, and a death, which rings no bell.
            scope.spawn(|| {
                let other = world.context(9);
                std::thread::sleep(Duration::from_millis(200));
                drop(other);
            });
            poll_until(&a, || a.events().iter().any(|e| matches!(e, Event::Left { .. })));
        });
    }
}

#[test]
fn a_suspended_channel_hands_its_unread_bytes_over() {
    let world = World::new();
    let (a, b) = (world.context(1), world.context(2));
    let (here, there) = pair(&a, &b);
    a.events();
    here.write_all(b"to there", SOON).unwrap();
    there.write_all(b"to here", SOON).unwrap();
    let mut two = [0; 2];
    here.read_exact(&mut two, SOON).unwrap();
    let (send, calls) = std::sync::mpsc::channel();
    a.set_callbacks(Callbacks {
        on_suspended: Some(Box::new(move |channel, unread| send.send((channel, unread)).unwrap())),
        ..Callbacks::default()
    });
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut all = Vec::new();
            loop {
                all.extend(b.wait_events(SOON));
                let suspended = all.iter().find_map(|e| match e {
                    Event::Suspended { channel, unread, .. } => Some((*channel, unread.clone())),
                    _ => None,
                });
                if let Some(suspended) = suspended {
                    return suspended;
                }
            }
        });
        assert_eq!(a.suspend(Duration::from_secs(20)), 0, "the partner answers");
        assert_eq!(other.join().unwrap(), (there.id(), b"to there".to_vec()));
    });
    assert_eq!(calls.try_recv().unwrap(), (here.id(), b" here".to_vec()));
    for channel in [&here, &there] {
        assert_eq!(channel.write(b"x").unwrap(), 0);
        assert!(matches!(channel.write_all(b"x", SOON), Err(Error::Suspended { .. })));
        assert!(matches!(channel.read(&mut two), Err(Error::Suspended { .. })));
        assert!(matches!(channel.commit(0), Err(Error::Suspended { .. })));
    }
    assert!(matches!(b.connect(a.address(), SOON), Err(Error::Refused { .. })));
    assert!(matches!(a.connect(b.address(), SOON), Err(Error::Suspended { .. })));
    a.resume();
    assert!(a.events().iter().any(|e| matches!(e, Event::Joined(p) if p.client == 2)));
    drop((here, there));
    let (here, there) = pair(&a, &b);
    here.write_all(b"anew", SOON).unwrap();
    there.read_exact(&mut [0; 4], SOON).unwrap();
    // A partner that does not answer: what has arrived is handed over all the same, and a sleeping reader wakes.
    there.write_all(b"rest", SOON).unwrap();
    assert_eq!(a.suspend(Duration::from_millis(20)), 1);
    assert_eq!(calls.try_recv().unwrap(), (here.id(), b"rest".to_vec()));
    assert!(matches!(there.read_some(&mut [0; 9], SOON), Err(Error::Suspended { .. })));
}

#[test]
fn a_full_region_refuses_and_goes_on() {
    let world = World::with(2 << 20, |config| HostConfig { endpoints: 16, ..config });
    let (a, b) = (world.context(1), world.context(2));
    let mut channels = Vec::new();
    let error = loop {
        match a.begin_connect(b.address()) {
            Ok(mut connecting) => match b.try_accept() {
                Ok(there) => channels.push((connecting.wait(SOON).unwrap(), there.unwrap())),
                Err(e) => break e,
            },
            Err(e) => break e,
        }
        assert!(channels.len() < 1000);
    };
    assert!(matches!(error, Error::Region { .. }), "{error}");
    assert!(channels.len() > 3, "{}", channels.len());
    for (here, there) in &channels {
        here.write_all(b"x", SOON).unwrap();
        there.read_exact(&mut [0], SOON).unwrap();
    }
    let count = channels.len();
    drop(channels);
    let again: Vec<_> = (0..count).map(|_| pair(&a, &b)).collect();
    assert_eq!(again.len(), count);
}

#[test]
fn any_thread_may_use_what_a_program_holds() {
    fn shared<T: Send + Sync>() {}
    shared::<Context>();
    shared::<Channel>();
    shared::<isthmus_ivc::ReadHalf>();
    shared::<isthmus_ivc::WriteHalf>();
    shared::<isthmus_ivc::Connecting>();
}
