//! Loans: bytes that another member copies from where they are, granted or not; loans that end meanwhile, and lenders that lie. The
//! stand-in for the guest driver grants memory that lies in the pool from the start, so each page of a granted buffer is the buffer's.

mod common;
use common::*;

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use isthmus_ivc::{Config, Context, Error, MOST_LOAN_BYTES, Ticket};
use isthmus_region::Section;
use isthmus_region::address::Naming;
use isthmus_region::directory::Writer;
use isthmus_region::extent::Extent;
use isthmus_region::format::block;
use isthmus_region::grants::{Granted, Outcome, PAGE, owner, table_bytes};
use isthmus_region::local::LocalBuf;
use isthmus_region::mapping::Mapping;
use isthmus_region::member::{LocalService, Member};
use isthmus_region::membership::{self, NewPeer, Shape};

const SECTION: u64 = 32 << 20;
const POOL: u64 = 8 << 20;

/// The guest driver.
struct Driver {
    section: Section,
    /// Where the pool lies in this process: there the lender has its buffers.
    pool: u64,
    owner: u64,
    generation: u64,
    granted: BTreeSet<u64>,
    kept: BTreeSet<u64>,
    refused: BTreeSet<u64>,
    room: usize,
    calls: u64,
}

impl Driver {
    fn set(&mut self, page: u64, owner: u64) -> u64 {
        self.generation += 1;
        let word = (self.generation << 24) | owner;
        let table = SECTION - POOL - table_bytes(POOL);
        self.section.word("table", table + page * 8).unwrap().set(word);
        word
    }

    fn word(&self, page: u64) -> u64 {
        self.section.word("table", SECTION - POOL - table_bytes(POOL) + page * 8).unwrap().get()
    }

    fn page(&self, address: u64) -> Option<u64> {
        let page = address.checked_sub(self.pool)? / PAGE;
        (page < POOL / PAGE).then_some(page)
    }

    fn keep(&mut self, address: u64, into: &mut [Option<Granted>]) -> Outcome {
        self.calls += 1;
        let mut is_full = false;
        for (address, into) in (address..).step_by(4096).zip(&mut *into) {
            *into = None;
            let Some(page) = self.page(address).filter(|page| !self.refused.contains(page)) else { continue };
            if !self.granted.contains(&page) && self.granted.len() >= self.room {
                is_full = true;
                continue;
            }
            let number = u32::try_from(page).unwrap();
            let word = match self.granted.insert(page) {
                true => self.set(page, self.owner),
                false => self.word(page),
            };
            self.kept.insert(page);
            *into = Granted::new(number, word);
        }
        Outcome { count: into.iter().flatten().count(), is_full }
    }
}

struct Local {
    writer: Arc<Mutex<Writer>>,
    area: u32,
    driver: Option<Arc<Mutex<Driver>>>,
}

impl LocalService for Local {
    fn grow(&self, bytes: u64) -> isthmus_region::Result<Extent> {
        self.writer.lock().unwrap().grow_area(self.area, bytes)
    }
    fn open_endpoint(&self, block: u64) -> isthmus_region::Result<(u32, u64)> {
        self.writer.lock().unwrap().open_endpoint(self.area, block, 1)
    }
    fn close_endpoint(&self, slot: u32) -> isthmus_region::Result<()> {
        self.writer.lock().unwrap().close_endpoint(self.area, slot)
    }
    fn grant(&self, _: u64, _: &mut [Option<Granted>]) -> isthmus_region::Result<Outcome> {
        match self.driver {
            Some(_) => Ok(Outcome::default()),
            None => Err(isthmus_region::member::no_grants("none")),
        }
    }
    fn keep(&self, address: u64, into: &mut [Option<Granted>]) -> isthmus_region::Result<Outcome> {
        Ok(self.driver.as_ref().unwrap().lock().unwrap().keep(address, into))
    }
    fn release_kept(&self, pages: &[Granted]) {
        let Some(driver) = &self.driver else { return };
        let mut driver = driver.lock().unwrap();
        for page in pages.iter().map(|page| page.word() & 0xff_ffff) {
            assert!(driver.kept.remove(&page));
            if driver.word(page) & 0xff_ffff != driver.owner {
                driver.granted.remove(&page);
            }
        }
    }
    fn revoke(&self, address: u64, count: u32) -> isthmus_region::Result<usize> {
        let mut driver = self.driver.as_ref().unwrap().lock().unwrap();
        let mut revoked = 0;
        for address in (address..).step_by(4096).take(count as usize) {
            let Some(page) = driver.page(address) else { continue };
            // A page that is kept stays.
            if !driver.kept.contains(&page) && driver.granted.remove(&page) {
                driver.set(page, 0);
                revoked += 1;
            }
        }
        Ok(revoked)
    }
}

/// A lender that grants pages, and another member.
struct Pair {
    lender: Context,
    other: Context,
    driver: Arc<Mutex<Driver>>,
    member: Arc<Member>,
}

fn pair_with_driver() -> Pair {
    let all = 64 << 20;
    let fd = isthmus_region::create::memory(all).unwrap();
    let map = Mapping::map(fd.as_fd(), all).unwrap();
    let shape = Shape::new(all, [1, 2], 1, 16).unwrap();
    let mut host = membership::Writer::create(&map, &shape, 1).unwrap();
    let new =
        NewPeer { file: 0, section: shape.host_bytes, section_bytes: SECTION, is_vm: false, name: "host" };
    host.add(0, &new).unwrap();
    host.activate(0, Naming::of_test(0).system).unwrap();
    let writer = Writer::create_with_pages(host.region(), 0, Naming::of_test(0), POOL).unwrap();
    let writer = Arc::new(Mutex::new(writer));
    let section = host.region().own_section(&host.region().peer(0).unwrap().unwrap()).unwrap();
    let mut members = [true, false].map(|grants| {
        let grant = writer.lock().unwrap().open_area(64 << 10, 1, "test").unwrap();
        let driver = grants.then(|| {
            Arc::new(Mutex::new(Driver {
                section: section.clone(),
                pool: section.address(SECTION - POOL, POOL).unwrap(),
                owner: owner(grant.area),
                generation: 1,
                granted: BTreeSet::new(),
                kept: BTreeSet::new(),
                refused: BTreeSet::new(),
                room: usize::MAX,
                calls: 0,
            }))
        });
        let service = Local { writer: Arc::clone(&writer), area: grant.area, driver: driver.clone() };
        (Member::new(&map, 0, grant, Box::new(service)).unwrap(), driver)
    });
    let [lender, other] = [0, 1].map(|i| Context::register(&members[i].0, MAGIC, i as u64).unwrap());
    let driver = members[0].1.take().unwrap();
    let [(member, _), _] = members;
    Pair { lender, other, driver, member }
}

impl Pair {
    /// Bytes of the pool that the lender has as its own memory.
    fn buffer(&self, at: u64, len: usize, seed: u64) -> LocalBuf {
        let section = self.member.section();
        let mut bytes = vec![0; len];
        fill(&mut bytes, 0, seed);
        section.fill_bytes("pool", SECTION - POOL + at, &bytes).unwrap();
        // SAFETY: of the section, which the pair keeps.
        unsafe { section.lend("pool", SECTION - POOL + at, len as u64).unwrap() }
    }

    fn fetch(&self, ticket: &Ticket, at: u64, len: usize, seed: u64) {
        let mut into = vec![0xee; len];
        self.other.fetch(ticket, at, &mut into).unwrap();
        let mut expected = vec![0; len];
        fill(&mut expected, at, seed);
        assert!(into == expected, "{len} bytes at {at}");
    }
}

#[test]
fn a_ticket_survives_as_bytes() {
    let world = World::new();
    let context = world.context(1);
    let ticket = Ticket { lender: context.address(), key: 7, bytes: u64::MAX - 1 };
    assert_eq!(Ticket::from_bytes(&ticket.to_bytes()), ticket);
}

#[test]
fn what_is_lent_can_be_fetched_as_often_as_wanted_and_by_all() {
    let world = World::new();
    let (a, b, c) = (world.context(1), world.context(2), world.context(3));
    let before = world.heap_used();
    let mut bytes = vec![0; 1_000_001];
    fill(&mut bytes, 0, 5);
    for _ in 0..20 {
        let loan = a.lend(&bytes).unwrap();
        let other = a.lend(&bytes[..100]).unwrap();
        assert_eq!((loan.in_place(), loan.ticket().bytes), (0, 1_000_001), "there is no driver");
        for reader in [&b, &c, &b] {
            let mut into = vec![0; bytes.len()];
            reader.fetch(&loan.ticket(), 0, &mut into).unwrap();
            assert!(into == bytes);
            let mut part = [0; 4097];
            reader.fetch(&loan.ticket(), 4095, &mut part).unwrap();
            assert_eq!(part, bytes[4095..8192]);
            let mut into = vec![0; 100];
            reader.fetch(&other.ticket(), 0, &mut into).unwrap();
            assert_eq!(into, bytes[..100]);
            reader.fetch(&other.ticket(), 100, &mut []).unwrap();
        }
    }
    // Its memory is used again.
    assert!(world.heap_used() < before + (4 << 20), "{} bytes more", world.heap_used() - before);
}

#[test]
fn what_cannot_be_lent_or_fetched_is_refused() {
    let world = World::new();
    let (a, b, stranger) = (world.context(1), world.context(2), {
        let member = world.member();
        Context::register(&member, MAGIC + 1, 3).unwrap()
    });
    assert!(matches!(a.lend(&[]), Err(Error::Invalid { value: 0, .. })));
    let bytes = vec![3; 1000];
    let loan = a.lend(&bytes).unwrap();
    let ticket = loan.ticket();
    let mut into = [0; 100];
    let mut fails = |reader: &Context, ticket: Ticket, at| reader.fetch(&ticket, at, &mut into).unwrap_err();
    assert!(matches!(fails(&b, ticket, 901), Error::Invalid { value: 1001, .. }));
    assert!(matches!(fails(&b, ticket, u64::MAX - 7), Error::Invalid { .. }));
    // A ticket that was not given so.
    for wrong in [
        Ticket { bytes: 1001, ..ticket },
        Ticket { bytes: 999, ..ticket },
        Ticket { bytes: MOST_LOAN_BYTES, ..ticket },
        Ticket { key: ticket.key + 1, ..ticket },
        Ticket { key: 0, ..ticket },
        Ticket { lender: b.address(), ..ticket },
        Ticket { bytes: u64::MAX, ..ticket },
        Ticket::from_bytes(&[0xff; Ticket::BYTES]),
    ] {
        let e = fails(&b, wrong, 0);
        assert!(matches!(e, Error::LoanOver { .. } | Error::NoPeer { .. } | Error::Invalid { .. }), "{e}");
    }
    assert!(matches!(fails(&stranger, ticket, 0), Error::NoPeer { .. }), "another group");
    assert!(matches!(fails(&a, ticket, 0), Error::NoPeer { .. }), "oneself");
    b.fetch(&ticket, 900, &mut into).unwrap();
    drop(loan);
    assert!(matches!(b.fetch(&ticket, 0, &mut into), Err(Error::LoanOver { .. })));
    // The next one at the same place is another.
    let next = a.lend(&bytes).unwrap();
    assert!(matches!(b.fetch(&ticket, 0, &mut into), Err(Error::LoanOver { .. })));
    // A loan outlives its context's handle, and goes with it.
    let ticket = next.ticket();
    drop(a);
    b.fetch(&ticket, 0, &mut into).unwrap();
    drop(next);
    assert!(matches!(b.fetch(&ticket, 0, &mut into), Err(Error::NoPeer { .. } | Error::PeerDied { .. })));
}

#[test]
fn a_context_whose_bytes_nobody_reads_ends_with_its_attachment() {
    let world = World::new();
    let b = world.context(2);
    let member = world.member();
    let config = Config { linger: std::time::Duration::from_millis(1), ..Config::default() };
    let a = Context::register_with(&member, MAGIC, 1, config).unwrap();
    let (to, from) = pair(&a, &b);
    drop(a.lend(&[1; 100]).unwrap());
    to.write_all(&[1; 100], SOON).unwrap();
    drop((to, a));
    assert!(
        b.peers().iter().any(|peer| peer.client == 1),
        "it has closed its endpoint with bytes that nobody read"
    );
    drop(member);
    await_that("its end", || b.peers().iter().all(|peer| peer.client != 1));
    assert!(matches!(from.read(&mut [0; 200]), Err(Error::PeerDied { .. })));
}

#[test]
fn a_region_without_room_refuses_a_loan_and_keeps_nothing_of_it() {
    let world = World::new();
    let (a, b) = (world.context(1), world.context(2));
    let bytes = vec![1; 64 << 20];
    for _ in 0..3 {
        assert!(matches!(a.lend(&bytes), Err(Error::Region { .. })));
    }
    let loan = a.lend(&bytes[..1 << 20]).unwrap();
    b.fetch(&loan.ticket(), 0, &mut vec![0; 1 << 20]).unwrap();
}

#[test]
fn memory_that_comes_back_is_granted_and_only_what_is_not_is_copied() {
    let pair = pair_with_driver();
    let len = 300_000;
    for (at, first) in [(0, 0), (1 << 20, 0), ((2 << 20) + 100, 100), ((3 << 20) + 4095, 4095)] {
        let buf = pair.buffer(at, len, at);
        let whole = (first + len as u64) / PAGE - first.div_ceil(PAGE);
        for round in 0..4 {
            let loan = pair.lender.lend_buf(buf).unwrap();
            assert_eq!(loan.in_place(), if round == 0 { 0 } else { whole * PAGE }, "round {round} at {at}");
            pair.fetch(&loan.ticket(), 0, len, at);
            for (from, bytes) in
                [(0, 1), (4095, 2), (4096, 4096), (70_001, 100_000), (len as u64 - 5000, 5000)]
            {
                pair.fetch(&loan.ticket(), from, bytes, at);
            }
        }
    }
    // Kept for the next time.
    let driver = pair.driver.lock().unwrap();
    assert!(driver.kept == driver.granted && driver.granted.len() > 280);
    assert!(driver.calls < 30, "{} calls", driver.calls);
    drop(driver);
    let Pair { lender, other, driver, .. } = pair;
    drop((lender, other));
    let driver = driver.lock().unwrap();
    assert!(driver.granted.is_empty() && driver.kept.is_empty(), "the program has its pages back");
}

#[test]
fn what_is_lent_in_turn_is_granted_whatever_lies_beside_it() {
    let pair = pair_with_driver();
    let all = pair.buffer(0, 1 << 16, 7);
    let (one, two) = (all.part(0, 1 << 15), all.part(1 << 15, 1 << 15));
    for round in 0..3 {
        for half in [one, two] {
            let loan = pair.lender.lend_buf(half).unwrap();
            assert_eq!(loan.in_place(), if round == 0 { 0 } else { 1 << 15 });
        }
    }
    // What one of them loses does not concern the other.
    let loan = pair.lender.lend_buf(two).unwrap();
    pair.driver.lock().unwrap().set(3, 0);
    pair.driver.lock().unwrap().granted.remove(&3);
    for round in 0..4 {
        let other = pair.lender.lend_buf(one).unwrap();
        assert_eq!(other.in_place(), if round < 3 { 7 * PAGE } else { 8 * PAGE }, "round {round}");
        pair.fetch(&other.ticket(), 0, 1 << 15, 7);
        let mut into = vec![0; 1 << 15];
        pair.other.fetch(&loan.ticket(), 0, &mut into).unwrap();
    }
    let driver = pair.driver.lock().unwrap();
    assert!(driver.kept == driver.granted && driver.kept.len() == 16);
}

#[test]
fn pages_that_cannot_be_granted_come_as_a_copy() {
    let pair = pair_with_driver();
    let len = 64 * 4096;
    let buf = pair.buffer(0, len, 9);
    pair.driver
        .lock()
        .unwrap()
        .refused
        .extend([0, 5, 6, 7, 33, 63].iter().chain(&(16..32).collect::<Vec<u64>>()));
    drop(pair.lender.lend_buf(buf).unwrap());
    let loan = pair.lender.lend_buf(buf).unwrap();
    assert_eq!(loan.in_place(), (64 - 6 - 16) * PAGE);
    for at in [0, 1, 4000, 5 * 4096 - 1, 8 * 4096, 15 * 4096 + 5, 31 * 4096 + 4095, 40 * 4096, 63 * 4096] {
        for bytes in [1, 4096, 5000, 30_000, len - at] {
            let bytes = bytes.min(len - at);
            pair.fetch(&loan.ticket(), at as u64, bytes, 9);
        }
    }
    // What never can is asked for ever more seldom.
    drop(loan);
    let before = pair.driver.lock().unwrap().calls;
    (0..1000).for_each(|_| drop(pair.lender.lend_buf(buf).unwrap()));
    let calls = pair.driver.lock().unwrap().calls - before;
    assert!((27..=36).contains(&calls), "{calls} calls");
}

#[test]
fn what_was_not_lent_for_longest_makes_room() {
    let pair = pair_with_driver();
    pair.driver.lock().unwrap().room = 40;
    let bufs: Vec<LocalBuf> = (0..4).map(|i| pair.buffer(i << 16, 1 << 16, i)).collect();
    let lend = |i: usize| pair.lender.lend_buf(bufs[i]).unwrap();
    for i in [0, 1, 2, 3, 0, 1] {
        drop(lend(i));
    }
    let granted = |i: u64| pair.driver.lock().unwrap().granted.range(16 * i..16 * i + 16).count();
    assert_eq!([0, 1, 2, 3].map(granted), [16, 16, 0, 0]);
    // Not at once: two that are lent in turn would take each other's.
    drop(lend(2));
    assert_eq!([0, 1, 2, 3].map(granted), [16, 16, 8, 0]);
    (0..10).for_each(|_| drop((lend(1), lend(2))));
    assert_eq!([0, 1, 2, 3].map(granted), [0, 16, 16, 0]);
    let one = lend(1);
    let two = lend(2);
    assert_eq!([0, 1, 2, 3].map(granted), [0, 16, 16, 0]);
    assert_eq!((one.in_place(), two.in_place()), (1 << 16, 1 << 16));
    // Those that are lent stay, so this one gets what is left.
    let three = lend(3);
    assert_eq!((three.in_place(), granted(3)), (8 * PAGE, 8));
    for (i, loan) in [(1, &one), (2, &two), (3, &three)] {
        pair.fetch(&loan.ticket(), 0, 1 << 16, i);
    }
}

#[test]
fn more_than_there_is_room_for_goes_round_and_some_of_it_stays() {
    for (count, room) in [(16_u64, 8), (40, 8), (9, 8)] {
        let pair = pair_with_driver();
        pair.driver.lock().unwrap().room = room * 16;
        let bufs: Vec<LocalBuf> = (0..count).map(|i| pair.buffer(i << 16, 1 << 16, i)).collect();
        let round = |lent: &[LocalBuf]| {
            lent.iter().map(|buf| pair.lender.lend_buf(*buf).unwrap().in_place()).sum::<u64>() >> 16
        };
        (0..200).for_each(|_| _ = round(&bufs));
        let before = pair.driver.lock().unwrap().generation;
        let in_place = (0..100).map(|_| round(&bufs)).sum::<u64>();
        let moved = pair.driver.lock().unwrap().generation - before;
        println!(
            "{count} chunks, room for {room}: {in_place} of {} in place, {moved} pages moved",
            100 * count
        );
        // A page that is moved must have served more than once.
        assert!(
            in_place >= 85 * room as u64 && moved < 16 * 100 * count / 50,
            "{count}: {in_place}, {moved}"
        );
        // Others that come in their place are granted soon.
        let others: Vec<LocalBuf> = (50..54).map(|i| pair.buffer(i << 16, 1 << 16, i)).collect();
        let rounds = (1..1000).find(|_| round(&others) == 4).unwrap();
        assert!(rounds <= 64, "{rounds} rounds");
    }
}

#[test]
fn what_the_program_frees_makes_room_at_once() {
    let pair = pair_with_driver();
    pair.driver.lock().unwrap().room = 32;
    let bufs: Vec<LocalBuf> = (0..4).map(|i| pair.buffer(i << 16, 1 << 16, i)).collect();
    let lend = |i: usize| pair.lender.lend_buf(bufs[i]).unwrap().in_place();
    for i in [0, 1, 0, 1] {
        lend(i);
    }
    // It unmaps them: they are nobody's, but the driver keeps them until they are released.
    for page in 0..32 {
        pair.driver.lock().unwrap().set(page, 0);
    }
    assert_eq!([lend(2), lend(3), lend(2), lend(3)], [0, 0, 1 << 16, 1 << 16]);
    // A life in which it was lent often does not count against the next one's.
    for life in 0..10 {
        (0..100).for_each(|_| _ = lend(2));
        assert_eq!(lend(2), 1 << 16, "life {life}");
        (32..48).for_each(|page| _ = pair.driver.lock().unwrap().set(page, 0));
        assert_eq!([lend(2), lend(2)], [0, 1 << 16], "life {life}");
    }
}

#[test]
fn a_page_that_is_not_granted_any_more_is_not_believed() {
    let pair = pair_with_driver();
    let buf = pair.buffer(100, 100_000, 4);
    drop(pair.lender.lend_buf(buf).unwrap());
    let loan = pair.lender.lend_buf(buf).unwrap();
    pair.fetch(&loan.ticket(), 0, 100_000, 4);
    // As when the program unmaps it.
    pair.driver.lock().unwrap().set(10, 0);
    let mut into = vec![0; 100_000];
    assert!(matches!(pair.other.fetch(&loan.ticket(), 0, &mut into), Err(Error::LoanOver { .. })));
    pair.fetch(&loan.ticket(), 0, 9 * 4096, 4);
    pair.fetch(&loan.ticket(), 11 * 4096, 30_000, 4);
    // Whatever has its address now is granted anew.
    drop(loan);
    pair.driver.lock().unwrap().granted.remove(&10);
    for round in 0..4 {
        let loan = pair.lender.lend_buf(buf).unwrap();
        assert_eq!(loan.in_place(), if round < 3 { 22 * PAGE } else { 23 * PAGE }, "round {round}");
        pair.fetch(&loan.ticket(), 0, 100_000, 4);
    }
}

#[test]
fn a_lender_that_lies_leads_nobody_outside() {
    let pair = pair_with_driver();
    let buf = pair.buffer(0, 100_000, 4);
    drop(pair.lender.lend_buf(buf).unwrap());
    let loan = pair.lender.lend_buf(buf).unwrap();
    let section = pair.member.section();
    let number = pair.lender.address().number;
    let (_, directory) = pair.member.directory(0).unwrap();
    let at = directory.endpoint(number).unwrap().block;
    let table = section.word("block", at + block::REGISTRATIONS).unwrap().get();
    let chunk = section.word("table", table).unwrap().get();
    // All words of the table, one after the other, and of the list.
    let mut words: Vec<u64> = (0..3 * 8).map(|i| chunk + i * 8).collect();
    for entry in [chunk + 64, chunk + 128] {
        let list = section.word("entry", entry + 16).unwrap().get();
        words.extend((0..25).map(|i| list + i * 8));
    }
    words.push(table);
    let mut into = vec![0; 100_000];
    for at in words {
        let word = section.word("word", at).unwrap();
        let before = word.get();
        for value in [
            0,
            1,
            7,
            PAGE,
            SECTION - 8,
            SECTION,
            u64::MAX,
            before ^ (1 << 63),
            before + 1,
            before.wrapping_mul(3),
        ] {
            word.set(value);
            for (from, len) in [(0, 100_000), (50_000, 10), (99_999, 1)] {
                match pair.other.fetch(&loan.ticket(), from, &mut into[..len]) {
                    Ok(()) | Err(Error::LoanOver { .. }) => {}
                    Err(e) => panic!("{e} for {value:#x} at {at:#x}"),
                }
            }
        }
        word.set(before);
    }
    pair.fetch(&loan.ticket(), 0, 100_000, 4);
}

#[test]
fn who_fetches_while_loans_end_and_others_begin_gets_its_bytes_or_an_error() {
    const LEN: usize = 65_536;
    let pair = pair_with_driver();
    let current = Mutex::new((pair.lender.lend_buf(pair.buffer(0, LEN, 0)).unwrap().ticket(), 0));
    let (mut good, mut over) = (0, 0);
    std::thread::scope(|scope| {
        let lender = scope.spawn(|| {
            for seed in 1..6000_u64 {
                let byte = seed.to_le_bytes()[0];
                // Of one of three places, each of which has other bytes in each round; every second loan has pages that are copied.
                let at = SECTION - POOL + ((seed % 3) << 16);
                let section = pair.member.section();
                section.fill_bytes("pool", at, &vec![byte; LEN]).unwrap();
                // SAFETY: of the section, which the pair keeps.
                let buf = unsafe { section.lend("pool", at, LEN as u64).unwrap() };
                let skip = if seed % 2 == 0 { 0 } else { 100 };
                let loan = pair.lender.lend_buf(buf.part(skip, LEN - 100)).unwrap();
                *current.lock().unwrap() = (loan.ticket(), byte);
                let begun = std::time::Instant::now();
                while begun.elapsed() < std::time::Duration::from_micros(seed % 120) {
                    std::hint::spin_loop();
                }
            }
        });
        let mut into = vec![0; LEN - 100];
        while !lender.is_finished() {
            let (ticket, seed) = *current.lock().unwrap();
            match pair.other.fetch(&ticket, 0, &mut into) {
                Ok(()) => {
                    assert!(into == vec![seed; LEN - 100], "of another loan");
                    good += 1;
                }
                Err(Error::LoanOver { .. }) => over += 1,
                Err(e) => panic!("{e}"),
            }
        }
    });
    println!("{good} fetched, {over} over");
    assert!(good > 100 && over > 100, "{good} fetched, {over} over");
}
