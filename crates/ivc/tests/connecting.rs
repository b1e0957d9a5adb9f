//! Groups and connecting: members that join and leave, offers that are accepted, refused or given up, and what they leave behind.

mod common;

use std::time::Duration;

use common::{SOON, World, await_that, fill, pair, receive_all};
use isthmus_host::Config as HostConfig;
use isthmus_ivc::{Callbacks, Config, Context, Error, Event};

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
    let rings = || (0..2).map(|local| member.own().wake_line(local).unwrap().words[0].get()).sum::<u64>();
    // On a busy machine a reader may be late to sleep, and finds the end before.
    let mut was_rung = false;
    for asleep in std::iter::once(false).chain([true; 50]) {
        if was_rung {
            break;
        }
        let connecting = a.begin_connect(b.address()).unwrap();
        let there = b.accept(SOON).unwrap();
        let before = rings();
        std::thread::scope(|scope| {
            let (dropped, is_dropped) = std::sync::mpsc::channel();
            let there = &there;
            let reader = scope.spawn(move || {
                if asleep {
                    return there.read_some(&mut [0; 9], SOON);
                }
                is_dropped.recv().unwrap();
                there.read(&mut [0; 9])
            });
            std::thread::sleep(Duration::from_millis(if asleep { 20 } else { 0 }));
            drop(connecting);
            // A sleeping reader does not wait for this.
            let _ = dropped.send(());
            let end = reader.join().unwrap();
            assert!(matches!(end, Err(Error::End { .. })), "{end:?}");
        });
        // A sleeper is rung: it does not only find the end when its sleep is over.
        was_rung = rings() > before;
        assert!(asleep || !was_rung);
        assert!(matches!(there.write(b"x"), Err(Error::Closed { .. })));
    }
    assert!(was_rung);
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
