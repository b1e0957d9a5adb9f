//! Two endpoints: every size, both orders of send and receive, one section and two.

mod common;

use std::time::{Duration, Instant};

use common::*;
use isthmus_region::counters::Counter;
use isthmus_region::member::MOST_PIECE_BYTES;
use isthmus_transport::types::NoMemory;
use isthmus_transport::{
    Address, Config, Endpoint, PeerId, PostError, Posted, Receive, Selector, Send, Short, ShortReceived,
    ShortSink, Status, Ticket,
};

const SIZES: [usize; 14] =
    [0, 1, 8, 40, 41, 100, 1024, 4096, 16384, 16385, 65536, 100_000, 1 << 20, (1 << 20) + 13];

fn exchange(peers: u32, section_bytes: u64) {
    let world = World::new(peers, section_bytes);
    let mut a = world.endpoint(0);
    let mut b = world.endpoint(peers - 1);
    let to_b = a.resolve(&b.address()).unwrap();
    let to_a = b.resolve(&a.address()).unwrap();
    for (i, len) in SIZES.into_iter().enumerate() {
        for early in [true, false] {
            let tag = i as u64;
            let mut out = pattern(len, tag);
            let mut back = vec![0; len];
            let into = [buf(&mut back)];
            if early {
                b.receive(&receive(any(tag), &into)).unwrap();
            }
            let bufs = [buf(&mut out)];
            let posted = send(&mut a, &mut b, &message(to_b, tag, &bufs));
            if !early {
                for _ in 0..600 {
                    b.progress();
                    a.progress();
                }
                b.receive(&receive(any(tag), &into)).unwrap();
            }
            let got = ok(wait(&mut b, &mut a));
            assert_eq!(
                (got.len, got.tag, got.data, got.source),
                (len as u64, tag, Some(tag + 1), Some(to_a))
            );
            assert_eq!(back, pattern(len, tag), "{len} bytes");
            if posted == Posted::Pending {
                let sent = ok(wait(&mut a, &mut b));
                assert_eq!(sent.ticket.context, 1000 + tag);
            }
            assert!(a.pop().is_none() && b.pop().is_none());
        }
    }
    // The counters agree.
    for _ in 0..600 {
        a.progress();
    }
    let totals = world.services[0].lock().unwrap().directory().totals().unwrap();
    let expected = 2 * SIZES.iter().sum::<usize>() as u64;
    assert_eq!(totals.get(Counter::TxBytes), expected);
}

#[test]
fn every_size_arrives_within_a_peer() {
    exchange(1, 16 << 20);
}

#[test]
fn every_size_arrives_between_peers() {
    exchange(2, 8 << 20);
}

#[test]
fn a_region_with_hardly_any_room_slows_but_does_not_stop() {
    exchange(2, 448 << 10);
}

#[test]
fn a_post_that_finds_no_room_is_counted_as_a_stall() {
    let world = World::new(1, 8 << 20);
    let (mut a, b) = (world.endpoint(0), world.endpoint(0));
    let to_b = a.resolve(&b.address()).unwrap();
    let mut bytes = [1; 8];
    let out = buf(&mut bytes);
    let posted: Vec<_> = (0..1000).map(|tag| a.send(&message(to_b, tag, &[out]))).collect();
    let count = |wanted| posted.iter().filter(|p| **p == wanted).count();
    let (done, queued, refused) =
        (count(Ok(Posted::Done)), count(Ok(Posted::Pending)), count(Err(PostError::Again)));
    assert!(done == 64 && queued > 20 && refused > 700, "nothing is read: {done}, {queued}, {refused}");
    for _ in 0..600 {
        a.progress();
    }
    let totals = world.services[0].lock().unwrap().directory().totals().unwrap();
    assert_eq!(totals.get(Counter::Stalls), (queued + refused) as u64);
}

/// Lengths that go in-line, through the data ring and in pieces.
const MIXED: [usize; 5] = [8, 400, 40, 4000, 70_000];

#[test]
fn posts_without_room_are_queued_in_order_and_their_memory_is_given_back() {
    let world = World::new(2, 8 << 20);
    let (mut a, mut b) = (world.patient_endpoint(0), world.endpoint(1));
    let to_b = a.resolve(&b.address()).unwrap();
    let count = 5000_u64;
    let (mut pending, mut done) = (0, 0);
    let length = |i: u64| MIXED[usize::try_from(i % 5).unwrap()];
    let mut outs: Vec<Vec<u8>> = (0..count).map(|i| pattern(length(i), i)).collect();
    for (i, out) in (0..count).zip(&mut outs) {
        let (inject, delivered) = (out.len() <= 4096 && i % 3 == 0, i % 7 == 0);
        let bufs = [buf(out)];
        let send = Send { inject, delivered, ..message(to_b, i, &bufs) };
        match a.send(&send).unwrap() {
            Posted::Pending => pending += 1,
            Posted::Done => {}
        }
        if inject {
            out.fill(0xdd);
        }
    }
    assert!(pending > 3000 && a.backlog_bytes() > 2 << 20, "{pending}, {}", a.backlog_bytes());
    // Each receive takes the next message, whatever its tag: they come in the order in which they were posted.
    let mut back = vec![0; 70_000];
    let next = Selector { ignore: u64::MAX, ..any(0) };
    for i in 0..count {
        let into = [buf(&mut back)];
        b.receive(&receive(next, &into)).unwrap();
        let got = ok(wait(&mut b, &mut a));
        assert_eq!((got.tag, got.len), (i, length(i) as u64));
        assert!(back[..length(i)] == pattern(length(i), i), "message {i}");
        while let Some(sent) = a.pop() {
            ok(sent);
            done += 1;
        }
    }
    for _ in 0..1000 {
        b.progress();
        a.progress();
        done += std::iter::from_fn(|| a.pop()).count();
    }
    assert_eq!((done, a.backlog_bytes()), (pending, 0));
    let totals = world.services[0].lock().unwrap().directory().totals().unwrap();
    let bytes: usize = (0..count).map(length).sum();
    assert_eq!((totals.get(Counter::TxMessages), totals.get(Counter::TxBytes)), (count, bytes as u64));
}

#[test]
fn what_is_queued_for_a_peer_that_dies_ends_with_an_error() {
    let world = World::new(2, 8 << 20);
    let (member, area) = world.attach(1);
    let memory = Box::new(isthmus_transport::types::NoMemory);
    let b = isthmus_transport::Endpoint::open(&member, isthmus_transport::Config::default(), memory).unwrap();
    let mut a = world.patient_endpoint(0);
    let to_b = a.resolve(&b.address()).unwrap();
    let mut outs: Vec<Vec<u8>> = (0..500).map(|i| pattern(MIXED[i % 5], 0)).collect();
    let mut pending = 0;
    for (i, out) in (0..).zip(&mut outs) {
        let bufs = [buf(out)];
        let send = Send { delivered: i % 2 == 0, ..message(to_b, i, &bufs) };
        pending += usize::from(a.send(&send).unwrap() == Posted::Pending);
    }
    let queued = a.backlog_bytes();
    // As if its process was killed: the service publishes that.
    std::mem::forget(b);
    world.services[1].lock().unwrap().close_area(area).unwrap();
    for _ in 0..600 {
        a.progress();
    }
    let ends: Vec<_> = std::iter::from_fn(|| a.pop()).collect();
    assert!(ends.iter().all(|e| e.status == Status::PeerGone), "{ends:?}");
    assert!(queued > 0 && ends.len() == pending && a.backlog_bytes() == 0, "{queued}, {}", ends.len());
}

#[test]
fn the_pieces_of_long_messages_are_given_back_when_these_have_ended() {
    let world = World::new(2, 16 << 20);
    let (member, _) = world.attach(0);
    let mut a = Endpoint::open(&member, Config::default(), Box::new(NoMemory)).unwrap();
    let mut b = world.endpoint(1);
    let to_b = a.resolve(&b.address()).unwrap();
    let len = 1 << 20;
    for round in 0..3 {
        let (mut out, mut back) = (pattern(len, round), vec![0; len]);
        let (bufs, into) = ([buf(&mut out)], [buf(&mut back)]);
        b.receive(&receive(any(round), &into)).unwrap();
        send(&mut a, &mut b, &message(to_b, round, &bufs));
        ok(wait(&mut b, &mut a));
        assert_eq!(back, pattern(len, round));
        assert!(member.piece_bytes() > 0, "the next message would take them again");
        let begun = Instant::now();
        while member.piece_bytes() > 0 {
            a.progress();
            assert!(begun.elapsed() < Duration::from_secs(10), "{} bytes are kept", member.piece_bytes());
        }
    }
}

#[test]
fn all_endpoints_of_a_process_have_a_bounded_number_of_pieces_and_none_starves() {
    const LEN: usize = 4 << 20;
    let world = World::new(2, 64 << 20);
    let (member, _) = world.attach(0);
    let config = || Config { chunk_bytes: 256 << 10, ..Config::default() };
    let open = || Endpoint::open(&member, config(), Box::new(NoMemory)).unwrap();
    let mut from = [open(), open(), open()];
    let mut to = [world.endpoint(1), world.endpoint(1), world.endpoint(1)];
    let mut out: Vec<_> = (0..3).map(|tag| pattern(LEN, tag)).collect();
    let mut back = vec![vec![0; LEN]; 3];
    for i in 0..3 {
        let (bufs, into) = ([buf(&mut out[i])], [buf(&mut back[i])]);
        let peer = from[i].resolve(&to[i].address()).unwrap();
        to[i].receive(&receive(any(i as u64), &into)).unwrap();
        send(&mut from[i], &mut to[i], &message(peer, i as u64, &bufs));
    }
    // The senders fill their pipelines, in turn, before a receiver takes anything.
    for _ in 0..100 {
        to.iter_mut().for_each(|end| _ = end.progress());
        from.iter_mut().for_each(|end| _ = end.progress());
        if member.piece_bytes() == MOST_PIECE_BYTES {
            break;
        }
        (0..100).for_each(|_| from.iter_mut().for_each(|end| _ = end.progress()));
    }
    assert_eq!(member.piece_bytes(), MOST_PIECE_BYTES, "two have eight each, and the third has none");
    let begun = Instant::now();
    let mut came = 0;
    while came < 3 {
        for (a, b) in from.iter_mut().zip(&mut to) {
            a.progress();
            b.progress();
            came += usize::from(b.pop().is_some());
            a.pop();
        }
        assert!(member.piece_bytes() <= MOST_PIECE_BYTES);
        assert!(begun.elapsed() < Duration::from_secs(20), "{came} came");
    }
    assert!((0..3).all(|i| back[i] == pattern(LEN, i as u64)));
    while member.piece_bytes() > 0 {
        from.iter_mut().for_each(|end| _ = end.progress());
        assert!(begun.elapsed() < Duration::from_secs(20), "{} bytes are kept", member.piece_bytes());
    }
}

#[test]
fn a_sender_that_sleeps_for_room_is_woken_when_half_of_it_is_there() {
    for len in [8, 4000, 1 << 20] {
        let world = World::new(1, 8 << 20);
        let (mut a, mut b) = (world.patient_endpoint(0), world.endpoint(0));
        let (to_b, to_a) = (a.resolve(&b.address()).unwrap(), b.resolve(&a.address()).unwrap());
        let mut back = vec![0; len];
        let into = [buf(&mut back)];
        let mut out = pattern(len, 1);
        let bufs = [buf(&mut out)];
        // Both lanes are open and accepted.
        send(&mut b, &mut a, &message(to_a, 1, &[]));
        for _ in 0..600 {
            a.progress();
            b.progress();
        }
        for tag in 0..200 {
            b.receive(&receive(any(tag), &into)).unwrap();
            assert!(a.send(&message(to_b, tag, &bufs)).is_ok());
        }
        // The receiver polls now and then; the sender sleeps whenever it has nothing to do.
        let (mut received, mut slept, mut polls) = (0, 0, 0);
        while received < 200 {
            a.progress();
            while a.pop().is_some() {}
            let Some(asleep) = a.fall_asleep(false) else { continue };
            slept += 1;
            // A limit below a millisecond would be for what nothing rings for.
            assert!(asleep.limit.as_millis() >= 1, "{len}: the receiver rings: {:?}", asleep.limit);
            let woken = || asleep.is_rung();
            while !woken() && received < 200 {
                polls += 1;
                assert!(
                    polls < 100_000,
                    "{len}: the sender is not rung: {received} received, {slept} sleeps, {} queued",
                    a.backlog_bytes()
                );
                b.progress();
                received += std::iter::from_fn(|| b.pop()).count();
            }
            a.wake_up();
        }
        assert!(slept > 2, "{len}: {slept} sleeps");
    }
}

#[test]
fn an_endpoint_can_send_to_itself() {
    let world = World::new(1, 8 << 20);
    let mut a = world.endpoint(0);
    let me = a.resolve(&a.address()).unwrap();
    for len in [5, 5000, 500_000] {
        let mut out = pattern(len, 1);
        let mut back = vec![0; len];
        let bufs = [buf(&mut out)];
        a.send(&message(me, 1, &bufs)).unwrap();
        let into = [buf(&mut back)];
        a.receive(&receive(any(1), &into)).unwrap();
        let mut done = 0;
        while done < if len > 100_000 { 2 } else { 1 } {
            a.progress();
            done += usize::from(a.pop().map(ok).is_some());
        }
        assert_eq!(back, out);
    }
}

#[test]
fn messages_are_matched_in_the_order_sent_whatever_their_size() {
    let world = World::new(2, 8 << 20);
    let mut a = world.endpoint(0);
    let mut b = world.endpoint(1);
    let to_b = a.resolve(&b.address()).unwrap();
    let mut parts: Vec<Vec<u8>> = (0..200).map(|i| pattern([8, 70_000, 300, 0][i % 4], i as u64)).collect();
    let mut pending = 0;
    let bufs: Vec<_> = parts.iter_mut().map(|p| [buf(p)]).collect();
    for part in &bufs {
        pending += usize::from(send(&mut a, &mut b, &message(to_b, 5, part)) == Posted::Pending);
    }
    for part in &parts {
        let mut back = vec![0; part.len()];
        let into = [buf(&mut back)];
        b.receive(&receive(any(5), &into)).unwrap();
        ok(wait(&mut b, &mut a));
        assert_eq!(&back, part);
    }
    while pending > 0 {
        ok(wait(&mut a, &mut b));
        pending -= 1;
    }
}

#[test]
fn both_send_much_before_either_receives() {
    let world = World::new(2, 4 << 20);
    let mut a = world.endpoint(0);
    let mut b = world.endpoint(1);
    let to_b = a.resolve(&b.address()).unwrap();
    let to_a = b.resolve(&a.address()).unwrap();
    let mut out = pattern(9000, 3);
    let bufs = [buf(&mut out)];
    for i in 0..2000 {
        send(&mut a, &mut b, &message(to_b, i, &bufs));
        send(&mut b, &mut a, &message(to_a, i, &bufs));
    }
    for i in (0..2000).rev() {
        let mut back = vec![0; 9000];
        let into = [buf(&mut back)];
        b.receive(&receive(any(i), &into)).unwrap();
        ok(wait_received(&mut b, &mut a));
        assert!(back == out);
        back.fill(0);
        a.receive(&receive(any(i), &into)).unwrap();
        ok(wait_received(&mut a, &mut b));
        assert!(back == out);
    }
}

#[test]
fn a_message_that_is_too_long_is_cut_and_nothing_else_is_touched() {
    let world = World::new(2, 8 << 20);
    let mut a = world.endpoint(0);
    let mut b = world.endpoint(1);
    let to_b = a.resolve(&b.address()).unwrap();
    for (len, room) in [(30, 10), (5000, 100), (200_000, 70_000), (200_000, 0)] {
        let mut out = pattern(len, 9);
        let bufs = [buf(&mut out)];
        let posted = send(&mut a, &mut b, &message(to_b, 2, &bufs));
        let mut back = vec![0xee; room + 50];
        let into = [buf(&mut back[..room])];
        b.receive(&receive(any(2), &into)).unwrap();
        let got = wait(&mut b, &mut a);
        assert_eq!(got.status, Status::Truncated { cut: (len - room) as u64 });
        assert_eq!(back[..room], out[..room]);
        assert!(back[room..].iter().all(|b| *b == 0xee));
        if posted == Posted::Pending {
            ok(wait(&mut a, &mut b));
        }
    }
}

#[test]
fn a_delivered_send_completes_when_it_was_taken() {
    let world = World::new(2, 8 << 20);
    let mut a = world.endpoint(0);
    let mut b = world.endpoint(1);
    let to_b = a.resolve(&b.address()).unwrap();
    for len in [8, 5000, 200_000] {
        let mut out = pattern(len, 9);
        let bufs = [buf(&mut out)];
        let mut request = message(to_b, 2, &bufs);
        request.delivered = true;
        assert_eq!(send(&mut a, &mut b, &request), Posted::Pending);
        for _ in 0..100 {
            a.progress();
        }
        assert!(a.pop().is_none(), "it was not taken yet");
        let mut back = vec![0; len];
        let into = [buf(&mut back)];
        b.receive(&receive(any(2), &into)).unwrap();
        ok(wait(&mut b, &mut a));
        ok(wait(&mut a, &mut b));
        assert_eq!(back, out);
    }
}

#[test]
fn a_matched_send_completes_when_it_was_received_and_not_when_it_was_kept() {
    let world = World::new(2, 8 << 20);
    let mut a = world.endpoint(0);
    let mut b = world.endpoint(1);
    let to_b = a.resolve(&b.address()).unwrap();
    for len in [0, 8, 5000, 200_000] {
        let mut out = pattern(len, 9);
        let bufs = [buf(&mut out)];
        let request = message(to_b, 2, &bufs);
        assert_eq!(a.send_until_matched(&request), Ok(Posted::Pending));
        for _ in 0..100 {
            a.progress();
            b.progress();
        }
        assert!(a.pop().is_none(), "it arrived, and has no receive");
        let mut back = vec![0; len];
        let into = [buf(&mut back)];
        b.receive(&receive(any(2), &into)).unwrap();
        ok(wait(&mut b, &mut a));
        ok(wait(&mut a, &mut b));
        assert_eq!(back, out);
        let injected = Send { inject: true, ..message(to_b, 2, &bufs) };
        assert_eq!(a.send_until_matched(&injected), Err(PostError::Invalid));
    }
}

#[test]
fn an_injected_delivered_send_completes_when_it_was_taken() {
    let world = World::new(2, 8 << 20);
    let mut a = world.endpoint(0);
    let mut b = world.endpoint(1);
    let to_b = a.resolve(&b.address()).unwrap();
    for len in [0, 8, 4096] {
        let mut out = pattern(len, 9);
        let bufs = [buf(&mut out)];
        let request = Send { inject: true, delivered: true, ..message(to_b, 2, &bufs) };
        assert_eq!(send(&mut a, &mut b, &request), Posted::Pending);
        out.fill(0);
        for _ in 0..100 {
            a.progress();
        }
        assert!(a.pop().is_none(), "it was not taken yet");
        let mut back = vec![0; len];
        let into = [buf(&mut back)];
        b.receive(&receive(any(2), &into)).unwrap();
        ok(wait(&mut b, &mut a));
        ok(wait(&mut a, &mut b));
        assert_eq!(back, pattern(len, 9));
    }
}

#[test]
fn a_multi_receive_is_filled_and_released_after_its_last_message() {
    let world = World::new(2, 8 << 20);
    let mut a = world.endpoint(0);
    let mut b = world.endpoint(1);
    let to_b = a.resolve(&b.address()).unwrap();
    let select = Selector { tagged: false, from: None, tag: 0, ignore: 0 };
    let mut room = vec![0; 100_000];
    let into = [buf(&mut room)];
    let ticket = Ticket { context: 77, flags: 0 };
    b.receive(&Receive { select, bufs: &into, multi: Some(10_000), ticket }).unwrap();
    let mut at = into[0].address();
    let mut released = false;
    for (i, len) in [100, 40_000, 8, 30_000, 25_000].into_iter().enumerate() {
        let mut out = pattern(len, i as u64);
        let bufs = [buf(&mut out)];
        let mut request = message(to_b, 0, &bufs);
        request.tagged = false;
        let posted = send(&mut a, &mut b, &request);
        let got = ok(wait(&mut b, &mut a));
        assert_eq!((got.buf, got.len, got.ticket), (at, len as u64, ticket));
        assert!(!released);
        released = got.released;
        at += len as u64;
        if posted == Posted::Pending {
            ok(wait(&mut a, &mut b));
        }
    }
    assert!(released, "95,108 of 100,000 bytes leave less than 10,000");
    assert!(!b.cancel(77));
}

#[test]
fn cancel_takes_what_has_not_matched_and_nothing_else() {
    let world = World::new(1, 8 << 20);
    let mut a = world.endpoint(0);
    let mut back = vec![0; 8];
    let into = [buf(&mut back)];
    a.receive(&receive(any(1), &into)).unwrap();
    assert!(!a.cancel(2));
    assert!(a.cancel(1));
    assert_eq!(a.pop().unwrap().status, Status::Canceled);
    let select = Selector { tagged: false, from: None, tag: 0, ignore: 0 };
    let ticket = Ticket { context: 9, flags: 0 };
    a.receive(&Receive { select, bufs: &into, multi: Some(1), ticket }).unwrap();
    assert!(a.cancel(9));
    let end = a.pop().unwrap();
    assert_eq!((end.status, end.released), (Status::Canceled, true));
}

#[test]
fn a_multi_receive_cancelled_while_a_message_arrives_ends_after_it_as_cancelled() {
    let world = World::new(2, 8 << 20);
    let mut a = world.endpoint(0);
    let mut b = world.endpoint(1);
    let to_b = a.resolve(&b.address()).unwrap();
    let select = Selector { tagged: false, from: None, tag: 0, ignore: 0 };
    let mut room = vec![0; 400_000];
    let into = [buf(&mut room)];
    let ticket = Ticket { context: 9, flags: 0 };
    b.receive(&Receive { select, bufs: &into, multi: Some(1), ticket }).unwrap();
    let mut out = pattern(300_000, 4);
    let bufs = [buf(&mut out)];
    let mut request = message(to_b, 0, &bufs);
    request.tagged = false;
    assert_eq!(send(&mut a, &mut b, &request), Posted::Pending);
    // The announcement is taken, and nothing of the payload yet.
    for _ in 0..600 {
        b.progress();
    }
    assert!(b.cancel(9));
    assert!(b.pop().is_none());
    let first = ok(wait(&mut b, &mut a));
    assert_eq!((first.len, first.released), (300_000, false));
    let last = wait(&mut b, &mut a);
    assert_eq!((last.status, last.released), (Status::Canceled, true));
    assert_eq!(room[..300_000], out[..]);
}

#[test]
fn a_claimed_message_whose_sender_is_gone_ends_as_lost_and_not_as_a_mistake() {
    let world = World::new(2, 16 << 20);
    for discard in [false, true] {
        let (mut a, mut b) = (world.endpoint(0), world.endpoint(1));
        let to = a.resolve(&b.address()).unwrap();
        let mut out = pattern(1 << 20, 1);
        a.send(&message(to, 1, &[buf(&mut out)])).unwrap();
        let ticket = Ticket { context: 7, flags: 0 };
        for _ in 0..600 {
            b.progress();
            a.progress();
        }
        b.peek(&any(1), true, false, ticket);
        let found = b.pop().unwrap();
        assert_eq!((found.status, found.len), (Status::Ok, 1 << 20));
        drop(a);
        assert!(alone(&mut b).is_empty());
        let mut into = vec![0; 1 << 20];
        match discard {
            true => b.discard_claimed(7, ticket).unwrap(),
            false => b.receive_claimed(7, &[buf(&mut into)], ticket).unwrap(),
        }
        let ends: Vec<_> = alone(&mut b).iter().map(|e| (e.status, e.len, e.tag, e.ticket.context)).collect();
        let status = if discard { Status::Ok } else { Status::PeerGone };
        assert_eq!(ends, [(status, 0, 1, 7)]);
    }
}

#[test]
fn a_directed_receive_stays_posted_when_its_sender_was_closed_and_another_has_its_slot() {
    let world = World::new(2, 16 << 20);
    let (mut a, b) = (world.endpoint(0), world.endpoint(1));
    let from = a.resolve(&b.address()).unwrap();
    let mut into = [0; 8];
    a.receive(&receive(Selector { from: Some(from), ..any(1) }, &[buf(&mut into)])).unwrap();
    drop(b);
    let c = world.endpoint(1);
    assert!(alone(&mut a).is_empty(), "closed in good order");
    assert!(a.cancel(receive(any(1), &[]).ticket.context));
    drop(c);
}

#[test]
fn peek_and_claim_find_a_message_once() {
    let world = World::new(2, 8 << 20);
    let mut a = world.endpoint(0);
    let mut b = world.endpoint(1);
    let to_b = a.resolve(&b.address()).unwrap();
    let ticket = |context| Ticket { context, flags: 0 };
    b.peek(&any(4), false, false, ticket(1));
    assert_eq!(b.pop().unwrap().status, Status::NoMessage);
    for len in [10, 9000, 90_000] {
        let mut out = pattern(len, 4);
        let bufs = [buf(&mut out)];
        let posted = send(&mut a, &mut b, &message(to_b, 4, &bufs));
        for _ in 0..600 {
            b.progress();
        }
        b.peek(&any(4), false, false, ticket(2));
        assert_eq!(ok(b.pop().unwrap()).len, len as u64);
        b.peek(&any(4), true, false, ticket(3));
        assert_eq!(ok(b.pop().unwrap()).len, len as u64);
        b.peek(&any(4), false, false, ticket(2));
        assert_eq!(b.pop().unwrap().status, Status::NoMessage);
        let mut back = vec![0; len];
        let into = [buf(&mut back)];
        b.receive_claimed(3, &into, ticket(3)).unwrap();
        ok(wait(&mut b, &mut a));
        assert_eq!(back, out);
        assert_eq!(b.receive_claimed(3, &into, ticket(3)), Err(PostError::Invalid));
        if posted == Posted::Pending {
            ok(wait(&mut a, &mut b));
        }
    }
}

#[test]
fn the_death_of_a_peer_ends_what_waits_for_it() {
    let world = World::new(2, 8 << 20);
    let mut a = world.endpoint(0);
    let (member, area) = world.attach(1);
    let memory = Box::new(isthmus_transport::types::NoMemory);
    let mut b =
        isthmus_transport::Endpoint::open(&member, isthmus_transport::Config::default(), memory).unwrap();
    let to_b = a.resolve(&b.address()).unwrap();
    let mut out = pattern(300_000, 4);
    let bufs = [buf(&mut out)];
    assert_eq!(send(&mut a, &mut b, &message(to_b, 4, &bufs)), Posted::Pending);
    let mut back = vec![0; 8];
    let into = [buf(&mut back)];
    a.receive(&receive(Selector { from: Some(to_b), ..any(9) }, &into)).unwrap();
    // A general receive goes on waiting.
    a.receive(&receive(any(10), &into)).unwrap();
    world.services[1].lock().unwrap().close_area(area).unwrap();
    let mut ends = Vec::new();
    for _ in 0..2000 {
        a.progress();
        ends.extend(a.pop());
    }
    assert_eq!(ends.len(), 2);
    assert!(ends.iter().all(|e| e.status == Status::PeerGone));
    assert_eq!(a.send(&message(to_b, 4, &bufs)), Err(PostError::PeerGone));
    // Its memory is used for another endpoint, which is reached as usual.
    let mut c = world.endpoint(1);
    let to_c = a.resolve(&c.address()).unwrap();
    assert_ne!(to_b, to_c);
    send(&mut a, &mut c, &message(to_c, 1, &[]));
    c.receive(&receive(any(1), &[])).unwrap();
    ok(wait(&mut c, &mut a));
}

#[test]
fn what_was_sent_before_a_close_arrives_after_it() {
    let world = World::new(2, 8 << 20);
    let mut a = world.endpoint(0);
    let mut b = world.endpoint(1);
    let to_b = a.resolve(&b.address()).unwrap();
    let mut out = pattern(4000, 4);
    let bufs = [buf(&mut out)];
    for i in 0..5 {
        a.send(&message(to_b, i, &bufs)).unwrap();
    }
    std::thread::scope(|s| {
        s.spawn(move || a.close(isthmus_transport::CLOSE_PATIENCE));
        std::thread::sleep(std::time::Duration::from_millis(20));
        for i in 0..5 {
            let mut back = vec![0; 4000];
            let into = [buf(&mut back)];
            b.receive(&receive(any(i), &into)).unwrap();
            loop {
                b.progress();
                if let Some(c) = b.pop() {
                    ok(c);
                    break;
                }
            }
            assert_eq!(back, pattern(4000, 4));
        }
    });
}

#[test]
fn more_peers_than_hot_lanes_all_get_through() {
    let world = World::new(2, 16 << 20);
    let mut b = world.endpoint(1);
    let mut senders: Vec<_> = (0..20).map(|_| world.endpoint(0)).collect();
    for round in 0..30_u64 {
        for (i, a) in senders.iter_mut().enumerate() {
            let to_b = a.resolve(&b.address()).unwrap();
            let mut out = round.to_le_bytes();
            let bufs = [buf(&mut out)];
            // Every third sender pauses now and then, so that lanes cool and warm.
            if !(round / 7 + i as u64).is_multiple_of(3) {
                send(a, &mut b, &message(to_b, i as u64, &bufs));
            }
            a.progress();
        }
        for (i, a) in senders.iter_mut().enumerate() {
            if !(round / 7 + i as u64).is_multiple_of(3) {
                let mut back = [0; 8];
                let into = [buf(&mut back)];
                b.receive(&receive(any(i as u64), &into)).unwrap();
                ok(wait(&mut b, a));
                assert_eq!(u64::from_le_bytes(back), round);
            }
        }
    }
}

struct Sources(Vec<PeerId>);

impl ShortSink for Sources {
    fn take(&mut self, got: &ShortReceived, _: &Address) {
        self.0.push(got.source);
    }
}

#[test]
fn short_polls_take_turns_between_lanes() {
    let world = World::new(2, 16 << 20);
    let mut b = world.endpoint(1);
    let mut senders: Vec<_> = (0..3).map(|_| world.endpoint(0)).collect();
    let mut into = [0; 8];
    let into = [buf(&mut into)];
    let mut out = [1; 8];
    let out = [buf(&mut out)];
    let to: Vec<_> = senders.iter_mut().map(|a| a.resolve(&b.address()).unwrap()).collect();
    // Until all three lanes are hot.
    for _ in 0..300 {
        for (a, to) in senders.iter_mut().zip(&to) {
            b.receive(&receive(any(5), &into)).unwrap();
            send(a, &mut b, &message(*to, 5, &out));
            a.progress();
            wait(&mut b, a);
            while a.pop().is_some() {}
        }
    }
    for _ in 0..30 {
        b.receive(&receive(any(5), &into)).unwrap();
    }
    for (a, to) in senders.iter_mut().zip(&to) {
        for _ in 0..20 {
            assert!(a.send(&message(*to, 5, &out)).is_ok());
        }
    }
    let mut taken = Sources(Vec::new());
    for _ in 0..10_000 {
        if taken.0.len() < 30 && matches!(b.poll_short(1, false, &mut taken), Short::Other) {
            panic!("all that is there is short, and receives wait for it: {:?}", taken.0.len());
        }
    }
    let of = |i: u32| taken.0.iter().filter(|p| p.0 == i).count();
    assert_eq!([of(0), of(1), of(2)], [10, 10, 10]);
}

/// What short polls took: lengths and tags.
struct Lengths(Vec<(usize, u64)>);

impl ShortSink for Lengths {
    fn take(&mut self, got: &ShortReceived, _: &Address) {
        self.0.push((got.len, got.tag));
    }
}

#[test]
fn messages_up_to_the_eager_limit_go_and_come_the_short_way() {
    const LARGEST: usize = 16 << 10;
    let world = World::new(2, 16 << 20);
    let (mut a, mut b) = (world.endpoint(0), world.endpoint(1));
    let to = a.resolve(&b.address()).unwrap();
    let mut byte = [1];
    let bufs = [buf(&mut byte)];
    let mut back = [0];
    let into = [buf(&mut back)];
    // Until the lane is hot.
    for _ in 0..300 {
        b.receive(&receive(any(5), &into)).unwrap();
        send(&mut a, &mut b, &message(to, 5, &bufs));
        wait(&mut b, &mut a);
        while a.pop().is_some() {}
    }
    let mut out: Vec<u8> = (0..=LARGEST).map(|i| u8::try_from(i % 251).unwrap()).collect();
    let mut got = vec![0; LARGEST];
    let (out, got) = (buf(&mut out), buf(&mut got));
    let mut otherwise = 0;
    let mut short = |a: &mut Endpoint, b: &mut Endpoint, len: usize, round: u64| {
        let select = Selector { tagged: true, from: None, tag: round, ignore: 0 };
        got.write(&vec![0xee; LARGEST]);
        assert!(b.receive_at_once(select, got, Ticket::default()));
        // The sender learns of room in the general way only.
        if !a.send_at_once(to, true, round, None, out.part(0, len), usize::MAX) {
            let bufs = [out.part(0, len)];
            send(a, b, &message(to, round, &bufs));
            while a.pop().is_some() {}
        }
        let mut taken = Lengths(Vec::new());
        for _ in 0..1000 {
            match b.poll_short(4, round.is_multiple_of(2), &mut taken) {
                Short::Received => break,
                Short::Nothing => {}
                // Its turn comes now and then, whatever is there.
                Short::Other => {
                    b.progress();
                    if let Some(done) = b.pop() {
                        otherwise += 1;
                        taken.0.push((usize::try_from(ok(done).len).unwrap(), done.tag));
                        break;
                    }
                }
            }
        }
        assert_eq!(taken.0, [(len, round)]);
        let got = got.to_vec();
        assert!(got[..len] == out.to_vec()[..len] && got[len..].iter().all(|b| *b == 0xee), "{len} bytes");
    };
    let lengths = (0..600).chain((600..LARGEST).step_by(491)).chain([LARGEST]);
    for (round, len) in lengths.clone().chain(lengths).enumerate() {
        short(&mut a, &mut b, len, u64::try_from(round).unwrap());
    }
    assert!(otherwise < 100, "{otherwise} messages came the general way");
    // Longer than the caller lets it be, than the lane lets it be, and without room.
    assert!(!a.send_at_once(to, true, 1, None, out.part(0, 41), 40));
    assert!(!a.send_at_once(to, true, 1, None, out, usize::MAX));
    let sent = (0..100).take_while(|i| a.send_at_once(to, true, *i, None, out.part(0, 4096), 4096)).count();
    assert!((8..=16).contains(&sent), "64 KiB of data hold {sent} messages of 4 KiB");
    for i in 0..sent {
        let bufs = [got];
        b.receive(&receive(any(u64::try_from(i).unwrap()), &bufs)).unwrap();
        ok(wait(&mut b, &mut a));
        assert_eq!(got.to_vec()[..4096], out.to_vec()[..4096]);
    }
}

#[test]
fn an_announced_message_is_whole_however_much_of_it_came_at_once() {
    let world = World::new(2, 16 << 20);
    let (mut a, mut b) = (world.endpoint(0), world.endpoint(1));
    let to = a.resolve(&b.address()).unwrap();
    const LONG: usize = 40_000;
    let mut out: Vec<u8> = (0..LONG).map(|i| u8::try_from(i % 251).unwrap()).collect();
    let mut got = vec![0; LONG];
    let (out, got) = (buf(&mut out), buf(&mut got));
    let parts = [out.part(0, 7), out.part(7, 0), out.part(7, 20_000), out.part(20_007, LONG)];
    let mut tag = 0;
    // The data ring has room for the first bytes of some of them, for a part of the last, and for none.
    for filled in [0, 1, 3, 14, 15, 16] {
        for room in [0, 1, 10_000, 16_384, 16_385, LONG] {
            for (early, delivered) in [(false, false), (true, false), (false, true), (true, true)] {
                let fill = |tag| message(to, tag, &parts[2..3]);
                let fillers = (0..filled).map(|i| (1 << 32) + i);
                got.write(&vec![0xee; LONG]);
                let into = [got.part(0, room / 3), got.part(room / 3, room - room / 3)];
                tag += 1;
                if early {
                    b.receive(&receive(any(tag), &into)).unwrap();
                }
                for filler in fillers.clone() {
                    let small = [out.part(0, 4000)];
                    assert!(a.send(&Send { bufs: &small, ..fill(filler) }).is_ok());
                }
                let sent = Send { delivered, ..message(to, tag, &parts) };
                assert_eq!(a.send(&sent), Ok(Posted::Pending));
                if !early {
                    polls(&mut a, &mut b);
                    assert_eq!(a.pop(), None, "it is not received yet");
                    b.receive(&receive(any(tag), &into)).unwrap();
                }
                let done = wait(&mut b, &mut a);
                let cut = u64::try_from(LONG - room).unwrap();
                let expected = if cut == 0 { Status::Ok } else { Status::Truncated { cut } };
                assert_eq!((done.status, done.tag, done.len), (expected, tag, u64::try_from(room).unwrap()));
                let got = got.to_vec();
                assert!(got[..room] == out.to_vec()[..room], "{filled} {room} {early} {delivered}");
                assert!(got[room..].iter().all(|b| *b == 0xee));
                ok(wait(&mut a, &mut b));
                for filler in fillers {
                    let mut small = vec![0; 4000];
                    let small = [buf(&mut small)];
                    b.receive(&receive(any(filler), &small)).unwrap();
                    ok(wait(&mut b, &mut a));
                }
                while a.pop().is_some() {}
            }
        }
    }
}

fn polls(a: &mut Endpoint, b: &mut Endpoint) {
    for _ in 0..50 {
        a.progress();
        b.progress();
    }
}
