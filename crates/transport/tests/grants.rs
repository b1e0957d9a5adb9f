//! Long messages that their receiver copies from pages that their sender has granted: every shape of message, pages that cannot be
//! granted, grants that end meanwhile, senders and receivers that lie, and ends in the middle. The stand-in for the guest driver grants
//! memory that lies in the pool from the start, so each page of a granted buffer is the buffer's, as with the driver.

mod common;
use common::*;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use isthmus_region::address::Naming;
use isthmus_region::counters::Counter;
use isthmus_region::directory::Writer;
use isthmus_region::extent::Extent;
use isthmus_region::grants::{Granted, Outcome, PAGE, owner, table_bytes};
use isthmus_region::local::LocalBuf;
use isthmus_region::member::LocalService;
use isthmus_region::{Result, Section};
use isthmus_transport::types::NoMemory;
use isthmus_transport::wire::{flag, head, kind};
use isthmus_transport::{Config, Endpoint, Long, PeerId, Posted, Replacement, Send, Status};

const SECTION: u64 = 32 << 20;
const POOL: u64 = 8 << 20;
const LONG: usize = 300_000;

/// The guest driver of a peer, which all of its processes have.
#[derive(Debug)]
struct Driver {
    section: Section,
    owner: u64,
    /// Where the pool lies in this process: there the programs have their buffers.
    pool: Range<u64>,
    generation: u64,
    /// What is granted.
    granted: BTreeSet<u64>,
    /// Pages that cannot be.
    refused: BTreeSet<u64>,
    /// How many there is room for.
    room: usize,
    calls: u64,
}

impl Driver {
    fn set(&mut self, page: u64, owner: u64) -> u64 {
        self.generation += 1;
        let word = (self.generation << 24) | owner;
        let table = self.section.len() - POOL - table_bytes(POOL);
        self.section.word("table", table + page * 8).unwrap().set(word);
        word
    }

    /// The page of the pool at an address.
    fn page(&self, address: u64) -> Option<u64> {
        self.pool.contains(&address).then(|| (address - self.pool.start) / PAGE)
    }

    fn grant(&mut self, address: u64, into: &mut [Option<Granted>]) -> Outcome {
        self.calls += 1;
        let mut is_full = false;
        for (i, granted) in (0..).zip(&mut *into) {
            let page = self.page(address + i * PAGE).filter(|page| !self.refused.contains(page));
            let has_room = |page: &u64| self.granted.len() < self.room || self.granted.contains(page);
            let page = page.filter(|page| {
                is_full |= !has_room(page);
                has_room(page)
            });
            *granted = page.and_then(|page| {
                self.granted.insert(page);
                let word = self.set(page, self.owner);
                Granted::new(u32::try_from(page).unwrap(), word)
            });
        }
        Outcome { count: into.iter().flatten().count(), is_full }
    }

    /// What was granted is something else.
    fn change(&mut self, page: u64) {
        self.set(page, self.owner);
    }

    fn revoke(&mut self, address: u64, count: u32) -> usize {
        let pages: Vec<u64> = (0..u64::from(count)).filter_map(|i| self.page(address + i * PAGE)).collect();
        let granted: Vec<u64> = pages.into_iter().filter(|page| self.granted.remove(page)).collect();
        granted.iter().for_each(|page| _ = self.set(*page, 0));
        granted.len()
    }
}

struct Granting {
    service: Box<dyn LocalService>,
    driver: Arc<Mutex<Driver>>,
}

impl LocalService for Granting {
    fn grow(&self, bytes: u64) -> Result<Extent> {
        self.service.grow(bytes)
    }
    fn open_endpoint(&self, block: u64) -> Result<(u32, u64)> {
        self.service.open_endpoint(block)
    }
    fn close_endpoint(&self, slot: u32) -> Result<()> {
        self.service.close_endpoint(slot)
    }
    fn grant(&self, address: u64, into: &mut [Option<Granted>]) -> Result<Outcome> {
        Ok(self.driver.lock().unwrap().grant(address, into))
    }
    fn revoke(&self, address: u64, count: u32) -> Result<usize> {
        Ok(self.driver.lock().unwrap().revoke(address, count))
    }
}

/// A sender of peer 0 and a receiver of peer 1, each with a pool of its own.
struct Pair {
    world: World,
    drivers: Vec<Arc<Mutex<Driver>>>,
    a: Endpoint,
    b: Endpoint,
    to: PeerId,
}

fn pair(long: Long) -> Pair {
    pair_with(Config { long, ..Config::default() })
}

fn pair_with(config: Config) -> Pair {
    let mut world = World::new(2, SECTION);
    let mut drivers = Vec::new();
    let mut ends = Vec::new();
    for peer in 0..2 {
        let writer =
            Writer::create_with_pages(world.host.region(), peer, Naming::of_test(peer), POOL).unwrap();
        world.services[peer as usize] = Arc::new(Mutex::new(writer));
        let section = world.section_of(peer);
        let start = section.address(SECTION - POOL, POOL).unwrap();
        let driver = Arc::new(Mutex::new(Driver {
            section,
            owner: owner(0),
            pool: start..start + POOL,
            generation: 1,
            granted: BTreeSet::new(),
            refused: BTreeSet::new(),
            room: usize::MAX,
            calls: 0,
        }));
        let between = {
            let driver = Arc::clone(&driver);
            move |service| Box::new(Granting { service, driver }) as Box<dyn LocalService>
        };
        let (member, area) = world.attach_with(peer, between);
        assert_eq!(area, 0);
        ends.push(Endpoint::open(&member, config, Box::new(NoMemory)).unwrap());
        drivers.push(driver);
    }
    let (b, mut a) = (ends.pop().unwrap(), ends.pop().unwrap());
    let to = a.resolve(&b.address()).unwrap();
    Pair { world, drivers, a, b, to }
}

impl Pair {
    /// A buffer of the sender's in its pool.
    fn pooled(&self, at: u64, len: usize) -> LocalBuf {
        let start = self.drivers[0].lock().unwrap().pool.start;
        assert!(at + len as u64 <= POOL);
        // SAFETY: bytes of the mapping, which the world keeps.
        unsafe { LocalBuf::new((start + at) as *mut u8, len) }
    }

    /// Sends what is in a buffer, and receives it.
    fn exchange(&mut self, tag: u64, out: LocalBuf, early: bool) {
        let bytes = pattern(out.len(), tag);
        assert_eq!(out.write(&bytes), bytes.len());
        let mut back = vec![0; out.len()];
        let into = [buf(&mut back)];
        if early {
            self.b.receive(&receive(any(tag), &into)).unwrap();
        }
        let posted = self.a.send(&message(self.to, tag, &[out])).unwrap();
        if !early {
            (0..100).for_each(|_| _ = (self.b.progress(), self.a.progress()));
            self.b.receive(&receive(any(tag), &into)).unwrap();
        }
        let got = ok(wait(&mut self.b, &mut self.a));
        assert_eq!((got.len, got.tag), (bytes.len() as u64, tag));
        assert!(back == bytes, "{} bytes at {:#x}", bytes.len(), out.address());
        if posted == Posted::Pending {
            ok(wait(&mut self.a, &mut self.b));
        }
        assert!(self.a.pop().is_none() && self.b.pop().is_none());
    }

    /// Messages of the sender of which pages were read where they are, bytes in those, chunks, and grants that were stale.
    fn counts(&mut self) -> [u64; 4] {
        (0..600).for_each(|_| _ = (self.a.progress(), self.b.progress()));
        let totals = |peer: usize| self.world.services[peer].lock().unwrap().directory().totals().unwrap();
        let sent =
            [Counter::Granted, Counter::GrantedBytes, Counter::Chunks].map(|counter| totals(0).get(counter));
        [sent[0], sent[1], sent[2], totals(1).get(Counter::GrantsStale)]
    }
}

#[test]
fn a_buffer_that_comes_back_is_copied_once() {
    for early in [true, false] {
        let mut pair = pair(Long::Attach);
        let out = pair.pooled(1 << 20, 1 << 20);
        pair.exchange(1, out, early);
        let [messages, bytes, chunks, _] = pair.counts();
        assert_eq!((messages, bytes), (0, 0), "the first time");
        assert!(chunks >= 32);
        for tag in 2..20 {
            pair.exchange(tag, out, early);
        }
        assert_eq!(pair.counts(), [18, 18 << 20, chunks, 0]);
        // Found again without a call.
        assert_eq!(pair.drivers[0].lock().unwrap().calls, 16 + 1);
    }
}

#[test]
fn edges_and_pages_that_cannot_be_granted_are_copied_between_the_others() {
    let mut pair = pair(Long::Attach);
    for (tag, (at, len)) in (0..).step_by(3).zip([
        (0, 65_536),
        (1, LONG),
        (4095, LONG),
        (4096, LONG + 4097),
        ((64 << 10) - 1, 70_001),
        ((128 << 10) + 4096, 64 << 10),
        (12_345, (2 << 20) + 77),
    ]) {
        let out = pair.pooled(at, len);
        (tag..tag + 3).for_each(|tag| pair.exchange(tag, out, true));
    }
    let [messages, bytes, _, stale] = pair.counts();
    assert!(messages >= 14 && bytes > 5 << 20 && stale == 0, "{messages} {bytes} {stale}");
    // Each third page, and the last of a chunk.
    pair.drivers[0].lock().unwrap().refused =
        (0..2048).filter(|page| page % 3 == 0 || page % 16 == 15).collect();
    let out = pair.pooled((4 << 20) + 100, LONG);
    (100..110).for_each(|tag| pair.exchange(tag, out, true));
    let [more, more_bytes, ..] = pair.counts();
    assert!(more > messages && more_bytes > bytes);
}

#[test]
fn what_is_no_longer_granted_is_copied_and_granted_again() {
    let mut pair = pair(Long::Attach);
    let out = pair.pooled(0, 1 << 20);
    (0..4).for_each(|tag| pair.exchange(tag, out, true));
    // Before it is sent, the sender finds out itself.
    let calls = pair.drivers[0].lock().unwrap().calls;
    pair.drivers[0].lock().unwrap().change(100);
    pair.exchange(10, out, true);
    assert_eq!(pair.counts()[3], 0);
    assert_eq!(pair.drivers[0].lock().unwrap().calls, calls + 1);
    // While it is under way, the receiver does.
    for (tag, page) in (20..).zip([0, 15, 16, 100, 255]) {
        let bytes = pattern(out.len(), tag);
        out.write(&bytes);
        let mut back = vec![0; out.len()];
        pair.b.receive(&receive(any(tag), &[buf(&mut back)])).unwrap();
        pair.a.send(&message(pair.to, tag, &[out])).unwrap();
        // The receiver asks, and the sender sends what it has granted.
        pair.b.progress();
        pair.a.progress();
        pair.drivers[0].lock().unwrap().change(page);
        ok(wait(&mut pair.b, &mut pair.a));
        ok(wait(&mut pair.a, &mut pair.b));
        assert!(back == bytes, "page {page}");
        assert!(pair.a.pop().is_none() && pair.b.pop().is_none());
    }
    assert_eq!(pair.counts()[3], 5);
    pair.exchange(30, out, true);
}

#[test]
fn both_ways_are_tried_and_the_faster_is_taken() {
    for (long, least, most) in [(Long::Auto, 2, 62), (Long::Copy, 0, 0), (Long::Attach, 63, 63)] {
        let mut pair = pair(long);
        let out = pair.pooled(0, LONG);
        (0..64).for_each(|tag| pair.exchange(tag, out, tag % 2 == 0));
        let messages = pair.counts()[0];
        assert!((least..=most).contains(&messages), "{long:?}: {messages}");
    }
}

#[test]
fn more_buffers_than_may_be_granted_do_not_drive_out_one_another() {
    let mut pair = pair(Long::Attach);
    // 128 chunks are all that the pool has; what is beyond it in the section is never granted.
    assert_eq!(POOL >> 16, 128);
    let mut tag = 0;
    let mut round = |pair: &mut Pair, chunks: Range<u64>| {
        for chunk in chunks {
            let out = pair.pooled(chunk << 16, 64 << 10);
            pair.exchange(tag, out, true);
            tag += 1;
        }
    };
    round(&mut pair, 0..128);
    round(&mut pair, 0..128);
    assert_eq!(pair.counts()[0], 128);
    // A buffer of other memory, in turn with them: it stays outside.
    let mut other = vec![0; 128 << 10];
    for _ in 0..3 {
        round(&mut pair, 0..128);
        pair.exchange(1 << 20, buf(&mut other), true);
    }
    assert_eq!(pair.counts()[0], 128 * 4);
    // If it is used more often than they are, it drives out the oldest.
    for tag in 0..140 {
        pair.exchange((1 << 20) + tag, buf(&mut other), true);
    }
    let before = pair.drivers[0].lock().unwrap().granted.len();
    assert!(before < 2048, "{before} pages are granted");
}

#[test]
fn by_age_more_buffers_than_may_be_granted_drive_out_one_another() {
    let config = Config { long: Long::Attach, replacement: Replacement::Age, ..Config::default() };
    let mut pair = pair_with(config);
    // For one less than there are.
    pair.drivers[0].lock().unwrap().room = 127 * 16;
    let turn = |pair: &mut Pair, tag: u64| {
        for chunk in 0..128 {
            let out = pair.pooled(chunk << 16, 64 << 10);
            pair.exchange(tag + chunk, out, true);
        }
    };
    (0..3).for_each(|round| turn(&mut pair, 1000 * round));
    let calls = pair.drivers[0].lock().unwrap().calls;
    (4..8).for_each(|round| turn(&mut pair, 1000 * round));
    // Each comes back when it has just gone, and is granted anew. By the other rule none is.
    let more = pair.drivers[0].lock().unwrap().calls - calls;
    assert!(more >= 4 * 128, "{more} calls of the driver in four turns of 128 buffers");
}

#[test]
fn the_chunk_that_was_used_longest_ago_makes_room_after_any_number_of_uses_of_others() {
    let mut pair = pair(Long::Attach);
    pair.drivers[0].lock().unwrap().room = 3 * 16;
    let chunk = |pair: &mut Pair, number: u64, tag: u64| {
        let out = pair.pooled(number << 16, 64 << 10);
        pair.exchange(tag, out, true);
    };
    let mut tags = 0..;
    let mut send = |pair: &mut Pair, number| chunk(pair, number, tags.next().unwrap());
    for number in [0, 1, 2, 0, 1, 2] {
        send(&mut pair, number);
    }
    // More often than uses are remembered.
    for _ in 0..100 {
        send(&mut pair, 1);
        send(&mut pair, 2);
    }
    let granted = |pair: &Pair| {
        let driver = pair.drivers[0].lock().unwrap();
        driver.granted.iter().map(|page| page / 16).collect::<BTreeSet<u64>>().into_iter().collect::<Vec<_>>()
    };
    assert_eq!(granted(&pair), [0, 1, 2]);
    for number in [3, 2, 1, 3] {
        send(&mut pair, number);
    }
    assert_eq!(granted(&pair), [1, 2, 3]);
    // It was away for longer than each of the others has been idle.
    for number in [0, 1, 2, 3, 1, 2, 3, 0] {
        send(&mut pair, number);
    }
    assert_eq!(granted(&pair), [1, 2, 3]);
}

#[test]
fn earlier_uses_of_a_chunk_do_not_make_it_old() {
    let mut pair = pair(Long::Attach);
    pair.drivers[0].lock().unwrap().room = 3 * 16;
    let mut tags = 0..;
    let mut send = |pair: &mut Pair, numbers: &[u64]| {
        for number in numbers {
            let out = pair.pooled(number << 16, 64 << 10);
            pair.exchange(tags.next().unwrap(), out, true);
        }
    };
    // 3 finds no room.
    send(&mut pair, &[0, 1, 2, 0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 0]);
    (0..10).for_each(|_| send(&mut pair, &[1, 2]));
    // At its last use 3 was away for four uses: what was idle for longer are earlier uses of the others.
    send(&mut pair, &[3, 1, 2, 0, 3]);
    let driver = pair.drivers[0].lock().unwrap();
    assert_eq!(
        driver.granted.iter().map(|page| page / 16).collect::<BTreeSet<u64>>(),
        BTreeSet::from([0, 1, 2])
    );
}

#[test]
fn with_half_of_the_room_half_of_the_buffers_stay_granted() {
    let mut pair = pair(Long::Attach);
    pair.drivers[0].lock().unwrap().room = 64 * 16;
    let turn = |pair: &mut Pair, tag: u64| {
        for chunk in 0..128 {
            let out = pair.pooled(chunk << 16, 64 << 10);
            pair.exchange(tag + chunk, out, true);
        }
    };
    (0..3).for_each(|round| turn(&mut pair, 1000 * round));
    let (before, granted) = (pair.counts()[0], {
        let driver = pair.drivers[0].lock().unwrap();
        (driver.calls, driver.granted.clone())
    });
    (4..8).for_each(|round| turn(&mut pair, 1000 * round));
    let driver = pair.drivers[0].lock().unwrap();
    assert_eq!(driver.calls, granted.0, "the driver is not asked in vain");
    assert!(driver.granted == granted.1, "some drove out others");
    drop(driver);
    assert_eq!(pair.counts()[0] - before, 4 * 64);
}

#[test]
fn buffers_that_cannot_be_granted_take_no_room() {
    let mut pair = pair(Long::Attach);
    let mut others = vec![vec![0; 128 << 10]; 40];
    let mut turn = |pair: &mut Pair, tag: u64| {
        for chunk in 0..124 {
            let out = pair.pooled(chunk << 16, 64 << 10);
            pair.exchange(tag + chunk, out, true);
        }
        for (other, tag) in others.iter_mut().zip(tag + 200..) {
            pair.exchange(tag, buf(other), true);
        }
    };
    (0..3).for_each(|round| turn(&mut pair, 1000 * round));
    let (before, calls) = (pair.counts()[0], pair.drivers[0].lock().unwrap().calls);
    (4..7).for_each(|round| turn(&mut pair, 1000 * round));
    assert_eq!(pair.counts()[0] - before, 3 * 124);
    let more = pair.drivers[0].lock().unwrap().calls - calls;
    assert!(more <= 40 * 3, "{more} calls of the driver for 40 buffers that it never takes");
}

#[test]
fn where_others_have_the_rest_of_the_pool_old_buffers_make_room() {
    let mut pair = pair(Long::Attach);
    pair.drivers[0].lock().unwrap().room = 40;
    let (old, new) = (pair.pooled(0, 128 << 10), pair.pooled(1 << 20, 128 << 10));
    (0..4).for_each(|tag| pair.exchange(tag, old, true));
    assert_eq!(pair.counts()[0], 3);
    (10..60).for_each(|tag| pair.exchange(tag, new, true));
    let [messages, bytes, _, stale] = pair.counts();
    assert!(messages > 40 && stale == 0, "{messages} {stale}");
    // And the other way round, both ways early.
    (60..120).for_each(|tag| pair.exchange(tag, old, true));
    let [more, more_bytes, _, stale] = pair.counts();
    assert!(more > messages + 30 && more_bytes > bytes && stale == 0, "{more} {stale}");
    assert!(pair.drivers[0].lock().unwrap().granted.len() <= 40);
}

#[test]
fn a_receiver_that_ends_gives_the_sender_its_buffer_back() {
    let mut pair = pair(Long::Attach);
    let out = pair.pooled(0, 1 << 20);
    (0..3).for_each(|tag| pair.exchange(tag, out, true));
    let mut back = vec![0; out.len()];
    pair.b.receive(&receive(any(9), &[buf(&mut back)])).unwrap();
    pair.a.send(&Send { delivered: true, ..message(pair.to, 9, &[out]) }).unwrap();
    pair.b.progress();
    pair.a.progress();
    let granted = pair.drivers[0].lock().unwrap().granted.len();
    assert_eq!(granted, 256);
    pair.world.services[1].lock().unwrap().end_area(0).unwrap();
    let mut done = None;
    for _ in 0..2000 {
        pair.a.progress();
        done = done.or_else(|| pair.a.pop());
    }
    assert_eq!(done.map(|done| done.status), Some(Status::PeerGone));
    // Nobody can read them any more: what the receiver does from here on it does not believe.
    assert_eq!(pair.drivers[0].lock().unwrap().granted.len(), 0);
}

/// What the hostile end says instead of what its own endpoint would.
fn lies(pair: &mut Pair, said: &[[u64; 8]]) -> bool {
    let back = pair.a.resolve(&pair.b.address()).unwrap();
    for message in said {
        assert!(pair.a.push_raw(back, message));
    }
    (0..200).for_each(|_| _ = pair.b.progress());
    pair.b.take_faulty().is_some()
}

#[test]
fn a_sender_that_lies_is_found_out() {
    let list = SECTION - POOL - table_bytes(POOL);
    for (id, at, len, list, from) in [
        // Not whole pages, none, more than a chunk has, beyond the chunk.
        (1 << 32, 0, 100, list, 0),
        (1 << 32, 0, 0, list, 0),
        (1 << 32, 0, 17 * PAGE, list, 0),
        (1 << 32, 0, 2 * PAGE, list, 15),
        (1 << 32, 0, PAGE, list, u64::MAX),
        // A list that is not in its section.
        (1 << 32, 0, PAGE, SECTION - 64, 0),
        (1 << 32, 0, PAGE, u64::MAX - 8, 0),
    ] {
        let mut pair = pair(Long::Attach);
        let pages = [head(kind::PAGES, 0, 0), id, at, len, list, from, 0, 0];
        assert!(lies(&mut pair, &[pages]), "{pages:?}");
    }
    // Pages for a message of which none were asked for.
    let mut pair = pair(Long::Copy);
    let mut back = vec![0; LONG];
    pair.b.receive(&receive(any(3), &[buf(&mut back)])).unwrap();
    let flags = flag::TAGGED;
    let announced = [head(kind::READY, flags, 0), 3, 0, LONG as u64, 77, 0, 0, 0];
    let pages = [head(kind::PAGES, 0, 0), 1 << 32, 0, PAGE, list, 0, 0, 0];
    assert!(lies(&mut pair, &[announced, pages]));
}

#[test]
fn a_list_of_rubbish_gives_no_bytes() {
    let mut pair = pair(Long::Attach);
    let list = SECTION - POOL - table_bytes(POOL);
    let mut back = vec![0; LONG];
    pair.b.receive(&receive(any(3), &[buf(&mut back)])).unwrap();
    let announced = [head(kind::READY, flag::TAGGED | flag::PAGES, 0), 3, 0, LONG as u64, 77, 0, 0, 0];
    let pages = [head(kind::PAGES, 0, 0), 1 << 32, 0, PAGE, list, 0, 0, 0];
    // No word there is that of a page, or the table has another.
    assert!(
        !lies(&mut pair, &[announced, pages]),
        "it asks again, as an honest sender may have lost the page"
    );
    assert_eq!(pair.counts()[3], 1);
    assert!(back.iter().all(|byte| *byte == 0));
}

#[test]
fn pages_are_copied_wherever_they_lie_in_the_pool() {
    let count = POOL / PAGE;
    let (numbers, generation) = ([5, 4, 6, 7, 9, 8, 10, count - 1, 0, 1, 2, 3], 77 << 24);
    // The last case names another process's page, the one before one that the pool has not.
    for (other, at, expected) in [(None, 0, 12), (Some(count), 6, 0), (None, 6, 6)] {
        let mut pair = pair(Long::Attach);
        let section = pair.world.section_of(0);
        let set = |at: u64, word| section.word("t", at).unwrap().set(word);
        // In a page of the pool that nobody names.
        let (pages, list) = (SECTION - POOL, SECTION - POOL + 100 * PAGE);
        for (place, page) in (0..).zip(numbers) {
            set(pages - table_bytes(POOL) + page * 8, generation | owner(0));
            section.fill_bytes("t", pages + page * PAGE, &pattern(4096, page)).unwrap();
            set(list + place * 8, generation | page);
        }
        if let Some(other) = other {
            set(list + at * 8, generation | other);
        } else if at > 0 {
            set(pages - table_bytes(POOL) + numbers[6] * 8, generation | owner(1));
        }
        let mut back = vec![0; LONG];
        pair.b.receive(&receive(any(3), &[buf(&mut back)])).unwrap();
        let announced = [head(kind::READY, flag::TAGGED | flag::PAGES, 0), 3, 0, LONG as u64, 77, 0, 0, 0];
        let message = [head(kind::PAGES, flag::FRESH, 0), 1 << 32, 0, 12 * PAGE, list, 0, 0, 0];
        assert_eq!(lies(&mut pair, &[announced, message]), other.is_some());
        for (place, page) in numbers.into_iter().enumerate().take(expected) {
            assert!(back[place * 4096..][..4096] == pattern(4096, page), "page {page}");
        }
        assert!(back[12 * 4096..].iter().all(|byte| *byte == 0));
        if other.is_none() {
            assert_eq!(pair.counts()[3], u64::from(at > 0), "asked again");
        }
    }
}

#[test]
fn a_receiver_that_asks_again_and_again_is_found_out() {
    let mut pair = pair(Long::Attach);
    let out = pair.pooled(0, LONG);
    (0..3).for_each(|tag| pair.exchange(tag, out, true));
    pair.a.send(&message(pair.to, 9, &[out])).unwrap();
    // Its receive is never posted; what its receiver says is said here. The number of the sender's operation comes after those of
    // the messages before.
    let theirs = 4_u64 << 32;
    let to = pair.b.resolve(&pair.a.address()).unwrap();
    let mut say = |message: [u64; 8]| {
        assert!(pair.b.push_raw(to, &message));
        (0..200).for_each(|_| _ = pair.a.progress());
        pair.a.take_faulty().is_some()
    };
    let again = |at| [head(kind::AGAIN, 0, 0), theirs, at, 0, 0, 0, 0, 0];
    assert!(!say([head(kind::CLEAR, flag::PAGES, 0), theirs, 5, LONG as u64, 0, 0, 0, 0]));
    assert!(!say(again(4096)), "once is right");
    assert!(say(again(4096)));
    assert_eq!(pair.a.pop().map(|done| done.status), Some(Status::PeerGone));
}

#[test]
fn a_receiver_that_asks_for_what_there_is_not_is_found_out() {
    for (theirs, at) in [(4 << 32, LONG as u64), (4 << 32, u64::MAX), (5 << 32, 0), (7, 0)] {
        let mut pair = pair(Long::Attach);
        let out = pair.pooled(0, LONG);
        (0..3).for_each(|tag| pair.exchange(tag, out, true));
        pair.a.send(&message(pair.to, 9, &[out])).unwrap();
        let to = pair.b.resolve(&pair.a.address()).unwrap();
        let clear = [head(kind::CLEAR, flag::PAGES, 0), 4 << 32, 5, LONG as u64, 0, 0, 0, 0];
        assert!(pair.b.push_raw(to, &clear));
        assert!(pair.b.push_raw(to, &[head(kind::AGAIN, 0, 0), theirs, at, 0, 0, 0, 0, 0]));
        (0..200).for_each(|_| _ = pair.a.progress());
        assert!(pair.a.take_faulty().is_some(), "{theirs:#x} {at}");
    }
}
