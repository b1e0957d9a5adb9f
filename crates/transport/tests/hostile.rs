//! A remote endpoint that breaks the protocol: operations with it fail, cost little, and none waits for ever.
//!
//! The hostile endpoint guesses numbers of operations: an endpoint's first has index 0 and generation 1.

#![allow(clippy::disallowed_types)] // orderings of the test's own threads

mod common;
use common::*;

use isthmus_transport::wire::{flag, head, kind};
use std::sync::{Arc, Mutex};

use isthmus_region::PeerSection;
use isthmus_region::format::{activity, block, chunk, endpoint};
use isthmus_region::life::{Life, State};
use isthmus_region::local::LocalBuf;
use isthmus_transport::types::{RemoteAtomic, Rma};
use isthmus_transport::{
    Access, Completion, Config, Endpoint, Memory, PeerId, PostError, Posted, Receive, Selector, Status,
    Ticket,
};

/// The number of an endpoint's first operation.
const FIRST: u64 = 1 << 32;

fn polls(end: &mut Endpoint, count: u32) -> Vec<Completion> {
    let mut ends = Vec::new();
    for _ in 0..count {
        end.progress();
        ends.extend(end.pop());
    }
    ends
}

/// An endpoint that has announced a long message to a hostile one, the hostile one, and each one's number of
/// the other.
fn announced(world: &World, out: &mut [u8]) -> (Endpoint, Endpoint, PeerId, PeerId) {
    let (mut a, mut hostile) = (world.endpoint(0), world.endpoint(1));
    let to = a.resolve(&hostile.address()).unwrap();
    let back = hostile.resolve(&a.address()).unwrap();
    let bufs = [buf(out)];
    assert_eq!(send(&mut a, &mut hostile, &message(to, 4, &bufs)), Posted::Pending);
    (a, hostile, to, back)
}

/// After this answer the send fails, and the hostile endpoint counts as gone.
fn ends_with_its_peer(answer: [u64; 8]) {
    let world = World::new(2, 8 << 20);
    let mut out = pattern(300_000, 4);
    let (mut a, mut hostile, to, back) = announced(&world, &mut out);
    assert!(hostile.push_raw(back, &answer));
    let ends = polls(&mut a, 3000);
    assert_eq!(ends.iter().map(|e| e.status).collect::<Vec<_>>(), [Status::PeerGone]);
    let bufs = [buf(&mut out)];
    assert_eq!(a.send(&message(to, 4, &bufs)), Err(PostError::PeerGone));
    let who = a.take_faulty().expect("the sender is faulty");
    assert!(who.contains(&format!("process {} of 'peer1'", std::process::id())), "{who}");
    assert_eq!(a.take_faulty(), None, "named once");
}

#[test]
fn a_receiver_that_wants_more_than_there_is_ends_the_send() {
    ends_with_its_peer([head(kind::CLEAR, 0, 0), FIRST, 1 << 32, 300_001, 0, 0, 0, 0]);
}

#[test]
fn done_before_anything_was_asked_for_ends_the_send() {
    ends_with_its_peer([head(kind::DONE, 0, 0), FIRST, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_payload_longer_than_any_data_ring_is_not_kept() {
    let world = World::new(2, 32 << 20);
    let (mut a, mut hostile) = (world.endpoint(0), world.endpoint(1));
    let back = hostile.resolve(&a.address()).unwrap();
    for kind in [kind::EAGER, kind::WRITE] {
        let words = if kind == kind::EAGER { [9, 0, 1 << 20, 0] } else { [1, 2, 3, 1 << 20] };
        let [tag, data, len, offset] = words;
        hostile.push_raw(back, &[head(kind, flag::TAGGED, 0), tag, data, len, offset, 0, 0, 0]);
    }
    polls(&mut a, 1000);
    a.peek(&any(9), false, false, Ticket::default());
    assert_eq!(a.pop().unwrap().status, Status::NoMessage);
}

#[test]
fn a_result_for_a_message_does_not_cost_the_receive() {
    let world = World::new(2, 8 << 20);
    let (mut hostile, mut b) = (world.endpoint(0), world.endpoint(1));
    let to = hostile.resolve(&b.address()).unwrap();
    let select = Selector { tagged: false, from: None, tag: 0, ignore: 0 };
    let mut room = vec![0; 300_000];
    let into = [buf(&mut room)];
    let ticket = Ticket { context: 9, flags: 0 };
    b.receive(&Receive { select, bufs: &into, multi: Some(1), ticket }).unwrap();
    assert!(hostile.push_raw(to, &[head(kind::READY, 0, 0), 0, 0, 300_000, 77, 0, 0, 0]));
    let mut ends = polls(&mut b, 1000);
    assert!(hostile.push_raw(to, &[head(kind::RESULT, 0, 0), FIRST, 1, 0, 0, 0, 0, 0]));
    ends.extend(polls(&mut b, 3000));
    assert!(ends.iter().any(|e| e.released), "the buffer comes back: {ends:?}");
}

#[test]
fn a_directed_receive_that_comes_after_the_death_ends_too() {
    let world = World::new(2, 8 << 20);
    let mut a = world.endpoint(0);
    let (member, area) = world.attach(1);
    let memory = Box::new(isthmus_transport::types::NoMemory);
    let b = Endpoint::open(&member, isthmus_transport::Config::default(), memory).unwrap();
    let address = b.address();
    let known = a.resolve(&address).unwrap();
    world.services[1].lock().unwrap().close_area(area).unwrap();
    polls(&mut a, 2000);
    // One endpoint knew the peer before it died, one resolves it only now.
    let mut late = world.endpoint(0);
    let stranger = late.resolve(&address).unwrap();
    for (end, peer) in [(&mut a, known), (&mut late, stranger)] {
        let mut back = [0; 8];
        let into = [buf(&mut back)];
        let select = Selector { from: Some(peer), ..any(9) };
        let taken = end.receive_at_once(select, into[0], Ticket::default());
        assert!(!taken, "the short way refuses a dead sender");
        end.receive(&receive(select, &into)).unwrap();
        let ends = polls(end, 100);
        assert_eq!(ends.iter().map(|e| e.status).collect::<Vec<_>>(), [Status::PeerGone]);
    }
    // Its process is dead: its destructor must not run.
    std::mem::forget(b);
}

#[test]
fn a_cold_sender_is_noticed_soon() {
    let world = World::new(2, 8 << 20);
    let (mut a, mut b, mut c) = (world.endpoint(0), world.endpoint(1), world.endpoint(0));
    let (to, cold) = (a.resolve(&b.address()).unwrap(), c.resolve(&b.address()).unwrap());
    let (mut out, mut back) = ([1_u8; 8], [0_u8; 8]);
    let (bufs, into) = ([buf(&mut out)], [buf(&mut back)]);
    b.receive(&receive(any(1), &into)).unwrap();
    a.send(&message(to, 1, &bufs)).unwrap();
    ok(wait(&mut b, &mut a));
    polls(&mut b, 200);
    b.receive_at_once(any(2), into[0], Ticket::default());
    c.send(&message(cold, 2, &bufs)).unwrap();
    assert_eq!(polls(&mut b, 9).len(), 1, "within nine polls");
    c.send(&message(cold, 3, &bufs)).unwrap();
    b.peek(&any(3), false, false, Ticket::default());
    assert_eq!(b.pop().unwrap().status, Status::Ok, "and at once by a peek");
}

#[test]
fn a_directed_multi_receive_that_comes_after_the_death_ends_and_gives_its_buffer_back() {
    let world = World::new(2, 8 << 20);
    let mut a = world.endpoint(0);
    let (member, area) = world.attach(1);
    let memory = Box::new(isthmus_transport::types::NoMemory);
    let mut b = Endpoint::open(&member, isthmus_transport::Config::default(), memory).unwrap();
    let (known, back) = (a.resolve(&b.address()).unwrap(), b.resolve(&a.address()).unwrap());
    // A message that it sent whole before its death is still received.
    let mut out = pattern(10, 1);
    let bufs = [buf(&mut out)];
    b.send(&message(back, 5, &bufs)).unwrap();
    polls(&mut a, 100);
    world.services[1].lock().unwrap().close_area(area).unwrap();
    polls(&mut a, 2000);
    let mut room = [0; 100];
    let into = [buf(&mut room)];
    let select = Selector { from: Some(known), ..any(5) };
    let ticket = Ticket { context: 9, flags: 0 };
    a.receive(&Receive { select, bufs: &into, multi: Some(8), ticket }).unwrap();
    let ends = polls(&mut a, 100);
    let told: Vec<_> = ends.iter().map(|e| (e.status, e.len, e.released)).collect();
    assert_eq!(told, [(Status::Ok, 10, false), (Status::PeerGone, 0, true)]);
    assert!(!a.cancel(9), "nothing of it is left");
    std::mem::forget(b);
}

#[test]
fn a_close_gives_up_on_a_receiver_that_takes_nothing() {
    use std::time::{Duration, Instant};
    let world = World::new(2, 8 << 20);
    let (mut a, b, mut c) = (world.endpoint(0), world.endpoint(1), world.endpoint(1));
    let (idle, busy) = (a.resolve(&b.address()).unwrap(), a.resolve(&c.address()).unwrap());
    let mut out = [1; 8];
    let bufs = [buf(&mut out)];
    a.send(&message(idle, 1, &bufs)).unwrap();
    a.send(&message(busy, 1, &bufs)).unwrap();
    let begin = Instant::now();
    let waiting = std::thread::scope(|s| {
        let closing = s.spawn(move || a.close(Duration::from_millis(200)));
        while !closing.is_finished() {
            c.progress();
        }
        closing.join().unwrap()
    });
    assert_eq!(waiting, 1, "one of two took what it was sent");
    assert!(begin.elapsed() >= Duration::from_millis(200) && begin.elapsed() < Duration::from_secs(20));
}

#[test]
fn done_while_the_payload_is_still_being_read_ends_the_send() {
    let world = World::new(2, 8 << 20);
    let (mut a, mut hostile) = (world.endpoint(0), world.endpoint(1));
    let to = a.resolve(&hostile.address()).unwrap();
    let back = hostile.resolve(&a.address()).unwrap();
    let mut out = pattern(1 << 20, 4);
    let bufs = [buf(&mut out)];
    let message = isthmus_transport::Send { delivered: true, ..message(to, 4, &bufs) };
    assert_eq!(a.send(&message), Ok(Posted::Pending));
    assert!(hostile.push_raw(back, &[head(kind::CLEAR, 0, 0), FIRST, 1 << 32, 1 << 20, 0, 0, 0, 0]));
    assert!(hostile.push_raw(back, &[head(kind::DONE, 0, 0), FIRST, 0, 0, 0, 0, 0, 0]));
    let ends = polls(&mut a, 1000);
    // From now on the program may free the buffer.
    assert_eq!(ends.iter().map(|e| e.status).collect::<Vec<_>>(), [Status::PeerGone]);
    assert!(a.take_faulty().is_some() && !a.is_flushing(), "nothing more is read from the buffer");
}

/// A registration that its program can end.
#[derive(Clone)]
struct Window(Arc<Mutex<Option<LocalBuf>>>);

impl Memory for Window {
    fn find(&self, _: u64, addr: u64, len: u64, _: Access) -> Result<LocalBuf, Status> {
        let whole = self.0.lock().unwrap().ok_or(Status::NoKey)?;
        Ok(whole.part(addr.try_into().unwrap(), len.try_into().unwrap()))
    }

    fn atomic(&self, _: LocalBuf, _: &RemoteAtomic<'_>, _: &mut Vec<u8>) -> Result<(), Status> {
        Err(Status::Unsupported)
    }
}

fn window(world: &World, peer: u32, memory: &mut [u8]) -> (Endpoint, Window) {
    let window = Window(Arc::new(Mutex::new(Some(buf(memory)))));
    (world.endpoint_with(peer, Config::default(), Box::new(window.clone())), window)
}

fn rma(to: PeerId, bufs: &[LocalBuf]) -> Rma<'_> {
    Rma { to, key: 1, addr: 0, bufs, data: None, inject: false, ticket: Ticket::default() }
}

#[test]
fn a_write_goes_nowhere_once_its_registration_has_ended() {
    let world = World::new(2, 8 << 20);
    let mut memory = vec![7; 1 << 20];
    let (mut b, registered) = window(&world, 0, &mut memory);
    let mut hostile = world.endpoint(1);
    let to = hostile.resolve(&b.address()).unwrap();
    assert!(hostile.push_raw(to, &[head(kind::WRITE_READY, 0, 0), 77, 1, 0, 1 << 20, 0, 0, 0]));
    polls(&mut b, 1000);
    // The program ends the registration, and uses the memory for something else.
    *registered.0.lock().unwrap() = None;
    assert!(hostile.push_raw(to, &[head(kind::CHUNK, 0, 0), FIRST, 0, 4096, 0, 0, 0, 0]));
    polls(&mut b, 1000);
    assert!(memory.iter().all(|byte| *byte == 7), "nothing of it was written");
    assert!(b.take_faulty().is_none());
}

#[test]
fn writes_and_reads_end_with_an_error_when_the_registration_ends_before_them() {
    for writes in [true, false] {
        let world = World::new(2, 8 << 20);
        let (mut memory, mut local) = (vec![7; 4 << 20], vec![9; 4 << 20]);
        let (mut b, registered) = window(&world, 0, &mut memory);
        let mut a = world.endpoint(1);
        let (to, bufs) = (a.resolve(&b.address()).unwrap(), [buf(&mut local)]);
        let posted = if writes { a.write(&rma(to, &bufs)) } else { a.read(&rma(to, &bufs)) };
        assert_eq!(posted, Ok(Posted::Pending));
        for _ in 0..4 {
            b.progress();
            a.progress();
        }
        assert!(a.pop().is_none(), "it is under way");
        *registered.0.lock().unwrap() = None;
        let end = wait(&mut a, &mut b);
        assert_eq!(end.status, Status::NoKey);
        polls(&mut a, 1000);
        polls(&mut b, 1000);
        assert!(!a.is_flushing() && !b.is_flushing());
        assert!(a.take_faulty().is_none() && b.take_faulty().is_none(), "neither is faulty");
        // The next operation is served as usual.
        *registered.0.lock().unwrap() = Some(buf(&mut memory));
        let posted = if writes { a.write(&rma(to, &bufs)) } else { a.read(&rma(to, &bufs)) };
        assert_eq!(posted, Ok(Posted::Pending));
        ok(wait(&mut a, &mut b));
        assert_eq!(memory, local);
    }
}

#[test]
fn a_close_ends_while_an_initiator_keeps_reading() {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};
    let world = World::new(2, 8 << 20);
    let mut memory = vec![7; 1 << 20];
    let (b, _registered) = window(&world, 0, &mut memory);
    let mut a = world.endpoint(1);
    let to = a.resolve(&b.address()).unwrap();
    let closed = AtomicBool::new(false);
    let begin = Instant::now();
    std::thread::scope(|s| {
        let (closed, a) = (&closed, &mut a);
        s.spawn(move || {
            // Endless reads, many at a time: an answer is always under way.
            let mut local = vec![9; 64 << 10];
            let bufs = [buf(&mut local)];
            while !closed.load(Ordering::Relaxed) && begin.elapsed() < Duration::from_secs(30) {
                let _ = (0..1000).find(|_| a.read(&rma(to, &bufs)).is_err());
                a.progress();
                while a.pop().is_some() {}
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        b.close(Duration::from_secs(20));
        closed.store(true, Ordering::Relaxed);
    });
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
}

#[test]
fn the_death_of_a_vm_that_is_seen_before_that_of_its_endpoints_ends_what_waits_for_them() {
    let mut world = World::new(2, 8 << 20);
    let mut a = world.endpoint(0);
    let b = world.endpoint(1);
    let from = a.resolve(&b.address()).unwrap();
    let mut back = [0; 8];
    let into = [buf(&mut back)];
    a.receive(&receive(Selector { from: Some(from), ..any(9) }, &into)).unwrap();
    assert!(polls(&mut a, 1000).is_empty());
    // The host service publishes first that the VM is dead, and that each of its endpoints is a moment later.
    world.host.set_state(1, isthmus_region::life::State::Dead).unwrap();
    let mut ends = polls(&mut a, 1000);
    let region = world.host.region();
    let section = region.own_section(&region.peer(1).unwrap().unwrap()).unwrap();
    isthmus_region::directory::bury(&section, region.shape()).unwrap();
    ends.extend(polls(&mut a, 1000));
    assert_eq!(ends.iter().map(|e| e.status).collect::<Vec<_>>(), [Status::PeerGone]);
    std::mem::forget(b);
}

#[test]
fn a_close_ends_while_others_keep_sending() {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};
    let world = World::new(2, 8 << 20);
    let b = world.endpoint(0);
    let address = b.address();
    let closed = AtomicBool::new(false);
    let begin = Instant::now();
    std::thread::scope(|s| {
        for _ in 0..4 {
            let mut a = world.endpoint(1);
            let closed = &closed;
            s.spawn(move || {
                // Each message is to be confirmed: a confirmation is always under way.
                let to = a.resolve(&address).unwrap();
                let mut out = vec![9; 64];
                let bufs = [buf(&mut out)];
                while !closed.load(Ordering::Relaxed) && begin.elapsed() < Duration::from_secs(30) {
                    let message = isthmus_transport::Send { delivered: true, ..message(to, 4, &bufs) };
                    let _ = (0..1000).find(|_| a.send(&message).is_err());
                    a.progress();
                    while a.pop().is_some() {}
                }
            });
        }
        std::thread::sleep(Duration::from_millis(50));
        b.close(Duration::from_secs(20));
        closed.store(true, Ordering::Relaxed);
    });
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}

/// Accept entries that an endpoint has room for.
fn accept_entries(section: &PeerSection, block_at: u64) -> usize {
    let next = |at: u64| section.word("link", at).unwrap().get();
    let first = next(block_at + block::ACCEPTS);
    std::iter::successors(Some(first), |at| Some(next(at + chunk::NEXT))).take_while(|at| *at != 0).count()
        * 16
}

#[test]
fn an_incarnation_that_keeps_changing_costs_no_memory() {
    let world = World::new(3, 8 << 20);
    let (mut a, mut hostile, late) = (world.endpoint(0), world.endpoint(1), world.endpoint(2));
    let to = hostile.resolve(&a.address()).unwrap();
    let mut out = pattern(8, 1);
    send(&mut hostile, &mut a, &message(to, 1, &[buf(&mut out)]));
    polls(&mut a, 600);
    // Its lane stays, and has no message from now on.
    let (member, _) = world.attach(2);
    let theirs = world.section_of(1);
    let (_, directory) = member.directory(1).unwrap();
    let (_, mine) = member.directory(0).unwrap();
    let slot = hostile.address().number;
    let places = isthmus_region::directory::places(member.region().shape());
    let record = theirs.line("endpoint", places.endpoints + u64::from(slot) * endpoint::BYTES).unwrap();
    let isthmus_region::directory::EndpointInfo { block: block_at, life: first, .. } =
        directory.endpoint(slot).unwrap();
    let lanes = theirs.word("block", block_at + block::LANES).unwrap().get();
    let lane = theirs.line("lane", lanes + 64).unwrap();
    let (described, version) = (lane.words[0].peek(), theirs.word("block", block_at + 8).unwrap());
    let ring = lane.words[3].peek();
    theirs.line("slot", ring).unwrap().words[0].set(0);
    let activity = places.activity + u64::from(a.address().number) * activity::BYTES;
    let activity = theirs.line("activity", activity).unwrap();
    let my_block = mine.endpoint(a.address().number).unwrap().block;
    let entries = accept_entries(mine.section(), my_block);
    let used = mine.heap_used();
    for incarnation in 1..20_000_u64 {
        let incarnation = first.incarnation + incarnation;
        record.words[0].set(Life { incarnation, state: State::Active }.pack());
        isthmus_lockfree::activity::announce(&activity, slot);
        polls(&mut a, 10);
        if incarnation % 2 == 0 {
            // It closes its lane, so that its next incarnation has none open.
            lane.words[0].set(Life { state: State::Dead, ..Life::unpack(described) }.pack());
            version.set(version.peek() + 1);
            isthmus_lockfree::activity::announce(&activity, slot);
            polls(&mut a, 10);
            lane.words[0].set(described);
        }
    }
    assert_eq!(accept_entries(mine.section(), my_block), entries);
    assert_eq!(mine.heap_used(), used);
    // Numbers of senders that were never reported are used again.
    let number = a.resolve(&late.address()).unwrap().0;
    assert!(number < 8, "{number} numbers of peers");
}

#[test]
fn a_post_that_waits_for_room_is_not_ended_by_its_target_while_its_buffer_is_lent() {
    for (code, expected) in [(0, Status::PeerGone), (1, Status::NoKey)] {
        let world = World::new(2, 8 << 20);
        let (mut a, mut b) = (world.patient_endpoint(0), world.endpoint(1));
        let (to_b, to_a) = (a.resolve(&b.address()).unwrap(), b.resolve(&a.address()).unwrap());
        let (mut short, mut long) = (vec![1; 8], vec![7; 1000]);
        let (short, bufs) = ([buf(&mut short)], [buf(&mut long)]);
        for tag in 0..64 {
            assert_eq!(a.send(&message(to_b, tag, &short)), Ok(Posted::Done));
        }
        let last = isthmus_transport::Send { delivered: true, ..message(to_b, 99, &bufs) };
        assert_eq!(a.send(&last), Ok(Posted::Pending));
        assert!(b.push_raw(to_a, &[head(kind::DONE, 0, 0), FIRST, code, 0, 0, 0, 0, 0]));
        let mut ends = polls(&mut a, 1000);
        assert_eq!(ends.pop().map(|end| (end.ticket.context, end.status)), Some((1099, expected)), "{code}");
        assert!(ends.is_empty() && a.backlog_bytes() == 0);
        // The program has its buffer back: what it writes now must not be sent.
        long.fill(0xee);
        let mut back = vec![0; 1000];
        let into = [buf(&mut back)];
        b.receive(&receive(any(99), &into)).unwrap();
        for _ in 0..2000 {
            b.progress();
            a.progress();
        }
        assert!(b.pop().is_none_or(|end| end.status != Status::Ok), "it was sent nevertheless");
        assert!(a.pop().is_none());
    }
}

#[test]
fn an_impossible_read_position_ends_all_that_waits_for_room() {
    let world = World::new(2, 8 << 20);
    let (mut a, b) = (world.patient_endpoint(0), world.endpoint(1));
    let mut b = b;
    let to_b = a.resolve(&b.address()).unwrap();
    let mut out = vec![1; 8];
    let bufs = [buf(&mut out)];
    assert!(a.send(&message(to_b, 0, &bufs)).is_ok());
    for _ in 0..600 {
        b.progress();
        a.progress();
    }
    // As many posts as are queued before a further one waits.
    let mut pending = 0;
    for tag in 0..5000 {
        pending += usize::from(a.send(&message(to_b, tag, &bufs)) == Ok(Posted::Pending));
    }
    assert!(pending > 4096);
    // The receiver's read position.
    let (member, _) = world.attach(0);
    let theirs = world.section_of(1);
    let block_at = member.directory(1).unwrap().1.endpoint(b.address().number).unwrap().block;
    let accepts = theirs.word("block", block_at + block::ACCEPTS).unwrap().get();
    let read = theirs.word("read", accepts + 64 + isthmus_region::format::accept::READ).unwrap();
    assert_eq!(read.get(), 1);
    read.set(1 << 40);
    let refused = a.send(&message(to_b, 1, &bufs));
    let ends = polls(&mut a, 8000);
    assert!(ends.iter().all(|end| end.status == Status::PeerGone));
    let expected = pending + usize::from(refused == Ok(Posted::Pending));
    assert_eq!((ends.len(), a.backlog_bytes()), (expected, 0), "{refused:?}");
    std::mem::forget(b);
}
