//! Short reads and writes of published memory in one step: what takes it, and what is left to the long way, which takes messages or says
//! what is wrong.

mod common;
use common::*;

use isthmus_region::Section;
use isthmus_region::counters::Counter;
use isthmus_region::holds;
use isthmus_region::local::LocalBuf;
use isthmus_region::registrations::{READ, Range, Table, WRITE};
use isthmus_transport::types::RemoteAtomic;
use isthmus_transport::{Access, Config, Endpoint, Memory, PeerId, Posted, Rma, Status, Ticket};

const LEN: u64 = 4096;
const KEY: u64 = 9;
const BASE: u64 = 1 << 40;

/// The target's table, and nothing that messages reach.
struct Published(u64);

impl Memory for Published {
    fn published(&self) -> Option<u64> {
        Some(self.0)
    }

    fn find(&self, _: u64, _: u64, _: u64, _: Access) -> Result<LocalBuf, Status> {
        Err(Status::NoKey)
    }

    fn atomic(&self, _: LocalBuf, _: &RemoteAtomic<'_>, _: &mut Vec<u8>) -> Result<(), Status> {
        Err(Status::Unsupported)
    }
}

struct Pair {
    world: World,
    a: Endpoint,
    b: Endpoint,
    to: PeerId,
    table: Table,
    section: Section,
    area: u32,
    /// Two places of [`LEN`] bytes in the target's section.
    places: [u64; 2],
}

fn pair() -> Pair {
    let world = World::new(2, 4 << 20);
    let (member, area) = world.attach(1);
    let section = world.section_of(1);
    let places = [(); 2].map(|()| member.take(LEN).unwrap());
    let table = Table::create(&member).unwrap();
    let b = Endpoint::open(&member, Config::default(), Box::new(Published(table.offset()))).unwrap();
    let mut a = world.patient_endpoint(0);
    let to = a.resolve(&b.address()).unwrap();
    Pair { world, a, b, to, table, section, area, places }
}

impl Pair {
    fn publish(&mut self, key: u64, place: usize, access: u64) -> u32 {
        let offset = self.places[place];
        self.table.publish(&Range { key, offset, len: LEN, access, base: BASE, skip: 0 }).unwrap()
    }

    /// Has the long way find the range.
    fn find(&mut self, key: u64) -> Posted {
        let mut byte = [0];
        let ticket = Ticket { context: 0, flags: 0 };
        let bufs = [buf(&mut byte)];
        let rma = Rma { to: self.to, key, addr: BASE, bufs: &bufs, data: None, inject: false, ticket };
        self.a.read(&rma).unwrap()
    }

    fn write(&mut self, key: u64, at: u64, bytes: &[u8]) -> bool {
        let mut bytes = bytes.to_vec();
        let done = self.a.write_at_once(self.to, key, at, buf(&mut bytes));
        assert!(!holds::are_on(self.world.host.region(), 1, Some(self.area)));
        done
    }

    fn read(&mut self, key: u64, at: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0xee; len];
        self.a.read_at_once(self.to, key, at, buf(&mut bytes)).then_some(bytes)
    }

    fn memory(&self, place: usize) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(LEN).unwrap()];
        self.section.drain("place", self.places[place], buf(&mut bytes)).unwrap();
        bytes
    }

    fn fill(&self, place: usize, seed: u64) -> Vec<u8> {
        let mut bytes = pattern(usize::try_from(LEN).unwrap(), seed);
        self.section.fill("place", self.places[place], buf(&mut bytes)).unwrap();
        bytes
    }
}

#[test]
fn what_was_used_last_is_reached_in_one_step_and_counted() {
    let mut pair = pair();
    pair.publish(KEY, 0, READ | WRITE);
    assert!(!pair.write(KEY, BASE, b"unknown!") && pair.read(KEY, BASE, 8).is_none(), "not looked for yet");
    assert_eq!(pair.find(KEY), Posted::Done);
    let mut model = pair.fill(0, 1);
    let mut bytes = 1;
    for (seed, len) in (2..).zip([0, 1, 7, 8, 9, 16, 40, 1000]) {
        for at in [0, 1, 8, 100] {
            let written = pattern(len, seed + at);
            assert!(pair.write(KEY, BASE + at, &written), "{len} bytes at {at}");
            let at = usize::try_from(at).unwrap();
            model[at..at + len].copy_from_slice(&written);
            assert!(pair.memory(0) == model, "{len} bytes at {at}");
            assert_eq!(pair.read(KEY, BASE + at as u64, len).as_ref(), Some(&written));
            bytes += 2 * len as u64;
        }
    }
    (0..600).for_each(|_| _ = (pair.a.progress(), pair.b.progress()));
    let totals = pair.world.services[0].lock().unwrap().directory().totals().unwrap();
    let counts = [Counter::Rma, Counter::Direct, Counter::DirectBytes].map(|counter| totals.get(counter));
    assert_eq!(counts, [65, 65, bytes]);
}

#[test]
fn what_does_not_lie_there_or_is_not_allowed_is_left_alone() {
    let mut pair = pair();
    pair.publish(KEY, 0, READ);
    pair.publish(KEY + 1, 1, WRITE);
    let models = [pair.fill(0, 1), pair.fill(1, 2)];
    assert_eq!(pair.find(KEY), Posted::Done);
    assert!(!pair.write(KEY, BASE, &[1; 8]), "only to be read");
    for (at, len) in
        [(BASE + LEN - 7, 8), (BASE + LEN, 1), (BASE - 1, 1), (0, 8), (u64::MAX, 8), (BASE - 8, 16)]
    {
        assert_eq!(pair.read(KEY, at, len), None, "{len} bytes at {at}");
    }
    assert_eq!(pair.read(KEY + 1, BASE, 8), None, "another one was used last");
    // The long way says that it may not be read, and has found it.
    assert_eq!(pair.find(KEY + 1), Posted::Pending);
    assert_eq!(pair.a.pop().map(|done| done.status), Some(Status::NoAccess));
    assert_eq!(pair.read(KEY + 1, BASE, 8), None, "only to be written");
    for (at, len) in [(BASE + LEN - 7, 8), (BASE + LEN, 1), (BASE - 1, 1), (u64::MAX - 3, 8)] {
        assert!(!pair.write(KEY + 1, at, &vec![1; len]), "{len} bytes at {at}");
    }
    assert!([0, 1].map(|place| pair.memory(place)) == models);
    assert!(pair.write(KEY + 1, BASE + LEN - 8, &[1; 8]) && pair.read(KEY, BASE, 8).is_none());
}

#[test]
fn a_registration_that_has_ended_is_not_used_and_the_next_one_with_its_key_is_found() {
    let mut pair = pair();
    let number = pair.publish(KEY, 0, READ | WRITE);
    assert_eq!(pair.find(KEY), Posted::Done);
    assert!(pair.write(KEY, BASE, &[1; 8]));
    pair.table.withdraw(number).unwrap();
    let models = [pair.fill(0, 1), pair.fill(1, 2)];
    assert!(!pair.write(KEY, BASE, &[2; 8]) && pair.read(KEY, BASE, 8).is_none());
    // It takes the same entry, and means other memory.
    assert_eq!(pair.publish(KEY, 1, READ | WRITE), number);
    assert!(!pair.write(KEY, BASE, &[3; 8]) && pair.read(KEY, BASE, 8).is_none());
    assert!([0, 1].map(|place| pair.memory(place)) == models);
    assert_eq!(pair.find(KEY), Posted::Done);
    assert!(pair.write(KEY, BASE, &[4; 8]) && pair.read(KEY, BASE, 8) == Some(vec![4; 8]));
    assert!(pair.memory(0) == models[0] && pair.memory(1)[..8] == [4; 8]);
}

#[test]
fn memory_of_a_target_that_has_died_is_not_touched() {
    let mut pair = pair();
    pair.publish(KEY, 0, READ | WRITE);
    assert_eq!(pair.find(KEY), Posted::Done);
    assert!(pair.write(KEY, BASE, &[1; 8]));
    // Its registrations look as before, as to an initiator that comes before the service has done with the memory.
    let mut all = vec![0; 48 << 10];
    pair.section.drain("area", pair.places[0], buf(&mut all)).unwrap();
    pair.world.services[1].lock().unwrap().close_area(pair.area).unwrap();
    pair.section.fill("area", pair.places[0], buf(&mut all)).unwrap();
    let model = pair.memory(0);
    assert!(!pair.write(KEY, BASE, &[2; 8]) && pair.read(KEY, BASE, 8).is_none());
    assert!(pair.memory(0) == model);
}

#[test]
fn progress_cannot_wait_once_something_has_come() {
    let world = World::new(2, 4 << 20);
    let (mut a, mut b) = (world.patient_endpoint(0), world.patient_endpoint(1));
    let to = b.resolve(&a.address()).unwrap();
    let mut got = 0;
    let mut send = |a: &mut Endpoint, b: &mut Endpoint, tag| {
        let mut bytes = [7; 8];
        let bufs = [buf(&mut bytes)];
        assert_eq!(b.send(&message(to, tag, &bufs)), Ok(Posted::Done));
        assert!(!a.can_wait(), "message {tag} has come");
        // What said so is looked at by the progress that comes next.
        a.progress();
        got += 1;
        let mut into = [0; 8];
        a.receive(&receive(any(tag), &[buf(&mut into)])).unwrap();
        assert_eq!(alone(a).len(), 1, "message {tag}");
    };
    // The lane is new.
    let mut bytes = [7; 8];
    let _ = b.send(&message(to, 1, &[buf(&mut bytes)])).unwrap();
    assert!(!a.can_wait());
    let mut into = [0; 8];
    a.receive(&receive(any(1), &[buf(&mut into)])).unwrap();
    ok(wait_received(&mut a, &mut b));
    (0..600).for_each(|_| _ = (a.progress(), b.progress()));
    // It is polled.
    send(&mut a, &mut b, 2);
    for _ in 0..3 {
        assert!((0..16).all(|_| a.can_wait()) && !a.can_wait(), "16 times in a row");
    }
    // It is polled no more, and what comes is announced.
    for tag in 3..6 {
        if a.fall_asleep(false).is_some() {
            a.wake_up();
        }
        (3..tag).for_each(|_| assert!(a.can_wait()));
        send(&mut a, &mut b, tag);
    }
}
