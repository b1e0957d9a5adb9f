//! An endpoint whose place in the region is no more: the region's memory is retired under it.

mod common;

use std::os::fd::AsFd;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use common::*;
use isthmus_region::Mapping;
use isthmus_region::life::State;
use isthmus_region::member::Member;
use isthmus_transport::types::NoMemory;
use isthmus_transport::{Config, Endpoint, Op, PostError, Status};

/// A process of peer 0 with a mapping of its own, as each process has one, and its endpoint.
fn process(world: &World) -> (Arc<Member>, Endpoint) {
    let map = Mapping::map(world.fd.as_fd(), world.map.len()).unwrap();
    let (member, _) = world.attach_on(&map, 0, |service| service);
    let end = Endpoint::open(&member, Config::default(), Box::new(NoMemory)).unwrap();
    (member, end)
}

#[test]
fn what_is_under_way_ends_and_nothing_reaches_the_region_any_more() {
    let mut world = World::new(2, 8 << 20);
    let (member, mut a) = process(&world);
    let mut b = world.endpoint(1);
    let to = a.resolve(&b.address()).unwrap();
    let (mut short, mut long, mut back) = (pattern(8, 1), pattern(1 << 20, 2), vec![0; 1 << 20]);
    let into = [buf(&mut back)];
    b.receive(&receive(any(1), &into)).unwrap();
    send(&mut a, &mut b, &message(to, 1, &[buf(&mut short)]));
    ok(wait_received(&mut b, &mut a));
    // A long one that nobody receives, and a receive from the other.
    a.send(&message(to, 2, &[buf(&mut long)])).unwrap();
    let from = isthmus_transport::Selector { from: Some(to), ..any(3) };
    let mut other = vec![0; 8];
    a.receive(&receive(from, &[buf(&mut other)])).unwrap();
    assert!(!member.region().is_retired());
    world.host.set_state(0, State::Dead).unwrap();
    let (mut ended, until) = (Vec::new(), Instant::now() + Duration::from_secs(20));
    while ended.len() < 2 {
        assert!(Instant::now() < until, "{ended:?}");
        a.progress();
        ended.extend(std::iter::from_fn(|| a.pop()).map(|c| c.status));
    }
    assert!(ended.iter().all(|status| *status == Status::PeerGone), "{ended:?}");
    assert!(member.region().is_retired());
    // What is now in its section belongs to others.
    let section = world.section_of(0);
    let (at, bytes) = (member.grant().first.offset, member.grant().first.bytes);
    section.fill_bytes("others", at, &vec![0x77; usize::try_from(bytes).unwrap()]).unwrap();
    for tag in 0..100 {
        let answer = a.send(&message(to, tag, &[buf(&mut short)]));
        assert!(matches!(answer, Err(PostError::PeerGone)), "{answer:?}");
        a.progress();
    }
    a.close(Duration::from_millis(10));
    drop(member);
    let left = section.bytes("others", at, bytes).unwrap().to_vec(0, bytes).unwrap();
    assert!(left.iter().all(|byte| *byte == 0x77), "something was stored there");
}

/// Messages of all kinds are under way when the memory goes, at no moment in particular.
#[test]
fn no_message_is_made_of_what_a_retired_mapping_holds() {
    const SIZES: [usize; 5] = [8, 40, 1000, 20_000, 300_000];
    let mut all = 0;
    for round in 0..60_u64 {
        // Buffers of what is posted are the endpoints' until they are closed: dropped after these.
        let kept = Mutex::new(Vec::new());
        let world = World::new(2, 8 << 20);
        let (member, mut a) = process(&world);
        let mut b = world.endpoint(1);
        let (to_b, to_a) = (a.resolve(&b.address()).unwrap(), b.resolve(&a.address()).unwrap());
        let region = member.region().clone();
        let until = Instant::now() + Duration::from_secs(30);
        // Time counts once both ends have their messages: to make these takes longer than all rounds wait.
        let ready = Barrier::new(3);
        // Both send and receive; a message is a pattern that its tag tells.
        let exchange = |end: &mut Endpoint, to, is_over: &dyn Fn() -> bool| {
            let mut out: Vec<Vec<u8>> = (0..).zip(SIZES).map(|(i, len)| pattern(len, i)).collect();
            let mut into: Vec<Vec<u8>> = SIZES.map(|len| vec![0; len]).into();
            let mut received = 0;
            let post = |end: &mut Endpoint, into: &mut Vec<u8>, i| {
                end.receive(&receive(any(i), &[buf(into)])).unwrap();
            };
            (0..).zip(&mut into).for_each(|(i, into)| post(end, into, i));
            ready.wait();
            while !is_over() && Instant::now() < until {
                for (i, out) in (0..).zip(&mut out) {
                    let _ = end.send(&message(to, i, &[buf(out)]));
                }
                end.progress();
                while let Some(done) = end.pop() {
                    if let (Op::Receive { .. }, Status::Ok) = (&done.op, done.status) {
                        let i = usize::try_from(done.tag).unwrap();
                        assert!(into[i] == pattern(SIZES[i], done.tag), "round {round}: {} bytes", SIZES[i]);
                        into[i].fill(0);
                        received += 1;
                        post(end, &mut into[i], done.tag);
                    }
                }
            }
            kept.lock().unwrap().push((out, into));
            received
        };
        std::thread::scope(|scope| {
            let (b, over) = (&mut b, region.clone());
            let there = scope.spawn(move || exchange(b, to_a, &|| over.is_retired()));
            let retires = region.clone();
            let ready = &ready;
            scope.spawn(move || {
                ready.wait();
                std::thread::sleep(Duration::from_micros(round * 150));
                retires.retire().unwrap();
            });
            // On for a while after the end.
            let last = std::cell::Cell::new(0);
            all += exchange(&mut a, to_b, &|| {
                last.set(last.get() + u32::from(region.is_retired()));
                last.get() > 200
            });
            all += there.join().unwrap();
        });
        assert!(region.is_retired());
        a.close(Duration::ZERO);
        b.close(Duration::ZERO);
    }
    assert!(all > 0, "nothing was received at all");
}
