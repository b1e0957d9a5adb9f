//! Channels between contexts of several attachments, all in this process: streams, closing, waiting, suspending.

mod common;

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Random, SOON, World, check, fill, pair, receive_all};
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
    assert_eq!(there.peek(10).unwrap()[0].len(), 10);
    assert!(
        matches!(there.release(11), Err(Error::Invalid { .. })),
        "no more than was shown, though more is there"
    );
    there.release(1).unwrap();
    assert!(matches!(there.release(10), Err(Error::Invalid { .. })));
    assert_eq!(there.read(&mut copy).unwrap(), (6 << 10) - 1, "what was not released is read");
    check(&copy[..(6 << 10) - 1], 1, 9);
    // A read takes what was shown; what comes after that was not.
    here.write_all(&bytes[..20], SOON).unwrap();
    assert_eq!(there.peek(10).unwrap()[0].len(), 10);
    assert_eq!(there.read(&mut copy[..10]).unwrap(), 10);
    assert!(matches!(there.release(1), Err(Error::Invalid { .. })));
    assert_eq!(there.read(&mut copy).unwrap(), 10);
    check(&copy[..10], 10, 9);
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
fn a_program_that_polls_hears_of_the_end_until_it_was_told() {
    let world = World::new();
    let (a, b) = (world.context(1), world.context(2));
    a.events();
    a.descriptor().unwrap();
    let watched = || {
        let (here, there) = pair(&a, &b);
        here.watch(Interest { read: true, write: false });
        there.write_all(&[5], SOON).unwrap();
        assert!(!a.arm());
        assert_eq!(here.read(&mut [0]).unwrap(), 1);
        assert!(a.arm(), "nothing is there any more");
        (here, there)
    };
    type Tell = fn(&Channel) -> isthmus_ivc::Result<()>;
    let ways: [Tell; 3] = [|c| c.read(&mut [0]).map(drop), |c| c.peek(1).map(drop), |c| c.release(0)];
    for (tell, close) in ways.into_iter().zip([false, true, false]) {
        let (here, there) = watched();
        let _open = if close {
            there.close();
            None
        } else {
            there.shutdown_write();
            Some(there)
        };
        // Whoever looks first.
        a.progress();
        assert!(!a.arm() && !a.arm(), "it has ended, and no call has said so");
        assert!(matches!(tell(&here), Err(Error::End { .. })));
        assert!(a.arm(), "the program knows");
    }
    // A call that has moved bytes keeps the end back.
    let (here, there) = watched();
    there.write_all(b"last", SOON).unwrap();
    there.close();
    let (mut one, mut two) = ([0; 4], [0; 4]);
    let mut pieces = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
    assert_eq!(here.read_vectored(&mut pieces).unwrap(), 4);
    assert!(!a.arm(), "no call has said that it has ended");
    assert!(matches!(here.read_vectored(&mut pieces), Err(Error::End { .. })));
    assert!(a.arm());
    // The event of a channel that is suspended tells, and so does what the program itself does.
    let (here, there) = watched();
    b.suspend(Duration::from_millis(1));
    assert!(!a.arm());
    assert!(a.events().iter().any(|e| matches!(e, Event::Suspended { .. })));
    assert!(a.arm());
    drop((here, there));
    b.resume();
    let (here, _there) = watched();
    let (read, _write) = here.split();
    drop(read);
    a.events();
    assert!(a.arm());
}

#[test]
fn a_program_that_polls_for_room_hears_that_nobody_reads_until_it_was_told() {
    let world = World::new();
    let (a, b) = (world.context(1), world.context(2));
    a.events();
    a.descriptor().unwrap();
    let watched = || {
        let (here, there) = pair(&a, &b);
        here.watch(Interest { read: false, write: true });
        while here.write(&[5; 4096]).unwrap() > 0 {}
        a.events();
        assert!(a.arm(), "there is no room");
        (here, there)
    };
    type Tell = fn(&Channel) -> isthmus_ivc::Result<()>;
    let ways: [Tell; 4] =
        [|c| c.write(&[0]).map(drop), |c| c.reserve(1).map(drop), |c| c.commit(0), |c| c.flush(SOON)];
    for tell in ways {
        let (here, there) = watched();
        drop(there);
        // Whoever looks first, and says nothing.
        here.wait_writable(1, SOON).unwrap();
        assert!(!a.arm() && !a.arm(), "nobody reads, and no call has said so");
        assert!(matches!(tell(&here), Err(Error::Closed { .. })));
        assert!(a.arm(), "the program knows");
    }
    // What keeps an error back, as some bytes were moved before it.
    let (here, there) = watched();
    drop(there);
    assert!(matches!(here.write(&[0]), Err(Error::Closed { .. })));
    here.tell_write_again();
    assert!(!a.arm());
    // Another thread was told meanwhile.
    assert!((0..2).all(|_| here.write(&[0]).is_err()));
    here.tell_write_again();
    assert!(a.arm());
    drop(here);
    // The program itself ends it.
    let (here, _there) = watched();
    here.shutdown_write();
    assert!(a.arm());
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
    drop(there);
    for write in [Channel::write, |c: &Channel, from: &[u8]| c.write_all(from, SOON).map(|()| from.len())] {
        assert!(matches!(write(&here, b"x"), Err(Error::Closed { .. })), "nobody has the other end");
    }
    drop(here);
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
fn no_connection_comes_about_while_suspended() {
    let world = World::new();
    let (a, b) = (world.context(1), world.context(2));
    a.set_backlog(2);
    let mut offered = b.begin_connect(a.address()).unwrap();
    let mut offers = a.begin_connect(b.address()).unwrap();
    a.suspend(Duration::from_millis(1));
    assert!(a.try_accept().unwrap().is_none());
    assert!(matches!(offered.wait(SOON), Err(Error::Refused { .. })));
    let late = b.accept(SOON).unwrap();
    assert!(matches!(offers.wait(SOON), Err(Error::Suspended { .. })));
    assert!(matches!(late.read_some(&mut [0], SOON), Err(Error::End { .. })));
    a.resume();
    pair(&b, &a);
    // As many may wait as before.
    let mut waiting: Vec<_> = (0..3).map(|_| b.begin_connect(a.address()).unwrap()).collect();
    a.progress();
    assert!(matches!(waiting[1].poll(), Ok(None)));
    assert!(matches!(waiting[2].poll(), Err(Error::Refused { .. })));
}

#[test]
fn a_partner_that_reads_no_more_delays_no_end() {
    let world = World::new();
    let (a, b) = (world.context(1), world.context(2));
    let (here, there) = pair(&a, &b);
    here.write_all(b"never read", SOON).unwrap();
    let (read, _write) = there.split();
    drop(read);
    let begun = Instant::now();
    drop((here, a));
    assert!(begun.elapsed() < Config::default().linger / 2, "{:?}", begun.elapsed());
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
