//! Rare states: a full section, a service that is gone, a faulty peer that still runs.

#![allow(clippy::disallowed_types)] // orderings of the test's own threads

mod common;
use common::*;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use isthmus_region::extent::Extent;
use isthmus_region::format::{KIND_CHANNELS, block};
use isthmus_region::member::{LocalService, Member};
use isthmus_region::source::Source;
use isthmus_region::{Error, Result};
use isthmus_transport::types::NoMemory;
use isthmus_transport::wire::{head, kind};
use isthmus_transport::{CLOSE_PATIENCE, Config, Endpoint, PostError, Status, Ticket};

/// A process with an endpoint.
fn process(world: &World, peer: u32) -> (Arc<Member>, Endpoint) {
    let (member, _) = world.attach(peer);
    let end = Endpoint::open(&member, Config::default(), Box::new(NoMemory)).unwrap();
    (member, end)
}

/// Takes all memory that is left in a process's section; returns offset and bytes of the last large block.
fn fill(member: &Member) -> (u64, u64) {
    let (mut bytes, mut last) = (4 << 20, (0, 0));
    while bytes >= 64 {
        match member.take(bytes) {
            Ok(at) if bytes >= 4096 => last = (at, bytes),
            Ok(_) => {}
            Err(_) => bytes /= 2,
        }
    }
    last
}

fn polls(ends: &mut [&mut Endpoint], count: u32) {
    for _ in 0..count {
        for end in ends.iter_mut() {
            end.progress();
        }
    }
}

fn has_come(end: &mut Endpoint, tag: u64) -> bool {
    end.peek(&any(tag), false, false, Ticket::default());
    std::iter::from_fn(|| end.pop()).any(|c| c.status == Status::Ok)
}

#[test]
fn a_full_section_opens_the_lane_after_the_last_descriptor() {
    // Sixteen descriptors, all in use, and no memory for sixteen more: the reserve has a place and no
    // descriptor.
    for lanes in [16, 32] {
        let world = World::with_endpoints(2, 16 << 20, 64);
        let (member, mut a) = process(&world, 0);
        let mut others: Vec<Endpoint> = (0..=lanes).map(|_| world.endpoint(1)).collect();
        let ids: Vec<_> = others.iter().map(|o| a.resolve(&o.address()).unwrap()).collect();
        let mut out = [1; 8];
        let bufs = [buf(&mut out)];
        for (other, id) in others.iter_mut().zip(&ids).take(lanes) {
            send(&mut a, other, &message(*id, 1, &bufs));
            polls(&mut [&mut a, other], 600);
        }
        fill(&member);
        let mut sent = false;
        for _ in 0..20 {
            sent = sent || a.send(&message(ids[lanes], 1, &bufs)).is_ok();
            let mut all: Vec<&mut Endpoint> = others.iter_mut().chain([&mut a]).collect();
            polls(&mut all, 300);
        }
        assert!(sent, "with {lanes} lanes open");
        assert!(others.iter_mut().all(|o| has_come(o, 1)));
    }
}

#[test]
fn a_full_section_still_opens_and_accepts_first_lanes() {
    let world = World::new(2, 8 << 20);
    let ((from, mut a), (into, mut b)) = (process(&world, 0), process(&world, 1));
    fill(&from);
    fill(&into);
    let to = a.resolve(&b.address()).unwrap();
    let mut out = [1; 8];
    let bufs = [buf(&mut out)];
    assert!(a.send(&message(to, 1, &bufs)).is_ok());
    polls(&mut [&mut a, &mut b], 600);
    assert!(has_come(&mut b, 1));
}

#[test]
fn a_lane_that_found_no_room_is_accepted_once_there_is_some() {
    let world = World::new(2, 8 << 20);
    let (member, mut b) = process(&world, 1);
    let mut senders: Vec<Endpoint> = (0..17).map(|_| world.endpoint(0)).collect();
    let (at, bytes) = fill(&member);
    let mut out = [1; 8];
    let bufs = [buf(&mut out)];
    for (tag, sender) in (0..).zip(&mut senders) {
        let to = sender.resolve(&b.address()).unwrap();
        assert!(sender.send(&message(to, tag, &bufs)).is_ok());
    }
    polls(&mut [&mut b], 2000);
    let came = |b: &mut Endpoint| (0..17).filter(|tag| has_come(b, *tag)).count();
    assert_eq!(came(&mut b), 16);
    assert!(b.take_shortage() && !b.take_shortage(), "reported once");
    assert!(b.fall_asleep(false).is_some_and(|asleep| asleep.limit.as_millis() < 10), "nothing will ring");
    b.wake_up();
    member.give(at, bytes);
    polls(&mut [&mut b], 2000);
    assert_eq!(came(&mut b), 17, "its sender has announced nothing more");
    assert!(!b.take_shortage());
}

#[test]
fn a_faulty_sender_is_not_read_again() {
    let world = World::new(2, 8 << 20);
    let (mut a, mut hostile) = (world.endpoint(0), world.endpoint(1));
    // Another endpoint that announces by the same counter, so that the hostile one's lanes are polled again.
    let mut others: Vec<Endpoint> = (0..8).map(|_| world.endpoint(1)).collect();
    let same = others.last_mut().unwrap();
    let back = hostile.resolve(&a.address()).unwrap();
    let mut out = [1; 8];
    let bufs = [buf(&mut out)];
    assert!(hostile.send(&message(back, 5, &bufs)).is_ok());
    polls(&mut [&mut a], 600);
    let discard = |a: &mut Endpoint| {
        a.peek(&any(5), false, true, Ticket::default());
        a.pop().unwrap().status
    };
    assert_eq!(discard(&mut a), Status::Ok);
    assert!(hostile.push_raw(back, &[head(kind::DONE, 0, 0), 1 << 32, 0, 0, 0, 0, 0, 0]));
    polls(&mut [&mut a], 600);
    assert!(a.take_faulty().is_some());
    let third = world.endpoint(1);
    let elsewhere = hostile.resolve(&third.address()).unwrap();
    assert!(hostile.push_raw(elsewhere, &[head(kind::DONE, 0, 0), 1 << 32, 0, 0, 0, 0, 0, 0]));
    let to = same.resolve(&a.address()).unwrap();
    assert!(same.send(&message(to, 1, &bufs)).is_ok());
    polls(&mut [&mut a, same], 600);
    assert!(has_come(&mut a, 1));
    assert_eq!(discard(&mut a), Status::NoMessage, "its lane is not read again from the start");
    assert!((0..1000).any(|_| !a.progress()), "there is nothing to do");
}

/// A local service that gives the region's files; its own peer's alone where no descriptor is left.
struct Gives {
    inner: Box<dyn LocalService>,
    own: u32,
    files: Arc<Files>,
    is_out: Arc<AtomicBool>,
}

impl LocalService for Gives {
    fn file(&self, index: u32) -> Result<OwnedFd> {
        match self.is_out.load(Relaxed) && index != self.own {
            true => Err(Error::NoFile { file: index, reason: "no descriptor is left for it" }),
            false => self.files.file(index),
        }
    }
    fn grow(&self, bytes: u64) -> Result<Extent> {
        self.inner.grow(bytes)
    }
    fn open_endpoint(&self, block: u64) -> Result<(u32, u64)> {
        self.inner.open_endpoint(block)
    }
    fn close_endpoint(&self, slot: u32) -> Result<()> {
        self.inner.close_endpoint(slot)
    }
}

#[test]
fn an_endpoint_whose_memory_cannot_be_mapped_now_is_not_taken_for_gone() {
    let (world, files) = World::in_files(2, 8 << 20);
    let is_out = Arc::new(AtomicBool::new(true));
    let open = |peer| {
        let between = |inner| {
            let (files, is_out) = (Arc::clone(&files), Arc::clone(&is_out));
            Box::new(Gives { inner, own: peer + 1, files, is_out }) as Box<dyn LocalService>
        };
        let (member, _) = world.attach_with(peer, between);
        Endpoint::open(&member, Config::default(), Box::new(NoMemory)).unwrap()
    };
    let (mut a, mut b) = (open(0), open(1));
    for _ in 0..2 {
        let refused = a.resolve(&b.address()).unwrap_err();
        assert!(matches!(refused, isthmus_transport::Error::Region { .. }), "{refused}");
        a.progress();
    }
    is_out.store(false, Relaxed);
    let to = a.resolve(&b.address()).unwrap();
    let mut out = [1; 8];
    a.send(&message(to, 1, &[buf(&mut out)])).unwrap();
    polls(&mut [&mut b, &mut a], 600);
    assert!(has_come(&mut b, 1));
}

/// A local service that fails to close an endpoint, as if it were gone.
struct Leaves(Box<dyn LocalService>);

impl LocalService for Leaves {
    fn grow(&self, bytes: u64) -> Result<Extent> {
        self.0.grow(bytes)
    }
    fn open_endpoint(&self, block: u64) -> Result<(u32, u64)> {
        self.0.open_endpoint(block)
    }
    fn close_endpoint(&self, _: u32) -> Result<()> {
        Err(Error::Service { action: "close an endpoint", reason: "it is gone".into() })
    }
}

#[test]
fn an_endpoint_whose_close_was_not_published_returns_no_memory() {
    let world = World::new(2, 8 << 20);
    let (member, _) = world.attach_with(0, |service| Box::new(Leaves(service)));
    let open = || Endpoint::open(&member, Config::default(), Box::new(NoMemory)).unwrap();
    let (mut first, mut second) = (open(), open());
    let (mut b, mut c) = (world.endpoint(1), [(); 4].map(|()| world.endpoint(1)));
    let to = first.resolve(&b.address()).unwrap();
    let mut out = [1; 8];
    let bufs = [buf(&mut out)];
    first.send(&message(to, 1, &bufs)).unwrap();
    polls(&mut [&mut b, &mut first], 600);
    assert!(has_come(&mut b, 1));
    let other = second.resolve(&c[0].address()).unwrap();
    second.send(&message(other, 1, &bufs)).unwrap();
    drop(first);
    // If its lane's memory were used again for lanes to others, the receiver would read their messages.
    for c in &mut c {
        let to = second.resolve(&c.address()).unwrap();
        for tag in 10..13 {
            assert!(second.send(&message(to, tag, &bufs)).is_ok());
            polls(&mut [&mut b, c, &mut second], 600);
            assert!(has_come(c, tag));
        }
    }
    assert!((10..13).all(|tag| !has_come(&mut b, tag)), "these were sent to others");
}

#[test]
fn posts_to_an_endpoint_without_lanes_fail() {
    let world = World::new(2, 4 << 20);
    let (_, mut a) = process(&world, 0);
    let (member, _) = world.attach(1);
    let at = member.take(block::BYTES).unwrap();
    member.section().zero("block", at, block::BYTES).unwrap();
    member.section().word("block", at + block::KIND).unwrap().put(KIND_CHANNELS);
    let (number, _) = member.service().open_endpoint(at).unwrap();
    let address = member.address(number).unwrap();
    let id = a.resolve(&address).unwrap();
    let mut out = [1; 8];
    let bufs = [buf(&mut out)];
    assert_eq!(a.send(&message(id, 1, &bufs)), Err(PostError::PeerGone));
}

#[test]
fn an_endpoint_without_a_berth_refuses_what_must_go_somewhere_and_moves_nothing() {
    let world = World::new(1, 8 << 20);
    let (mut a, mut b) = (world.endpoint(0), world.endpoint(0));
    let to_b = a.resolve(&b.address()).unwrap();
    let to_a = b.resolve(&a.address()).unwrap();
    let (mut out, mut into) = ([1; 8], [0; 8]);
    let (out, into) = ([buf(&mut out)], [buf(&mut into)]);
    a.receive(&receive(any(9), &into)).unwrap();
    a.send(&message(to_b, 1, &out)).unwrap();
    let address = a.address();
    a.leave();
    assert_eq!(a.send(&message(to_b, 1, &out)).err(), Some(PostError::Again));
    assert!(!a.send_at_once(to_b, true, 1, None, out[0], usize::MAX));
    a.receive(&receive(any(9), &into)).unwrap();
    assert!(a.resolve(&b.address()).is_err() && a.sleeper().is_none());
    assert!(!a.progress() && !a.has_lanes() && !a.is_crowded());
    assert_eq!((a.address(), a.pop()), (address, None));
    // What it said before, and whether it is there, others learn from its record.
    assert_eq!(b.send(&message(to_a, 1, &out)), Err(PostError::PeerGone));
    assert_eq!(a.close(CLOSE_PATIENCE), 0);
}
