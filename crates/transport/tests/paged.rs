//! RMA and atomics on memory of the target's own, of which it has granted pages and keeps them: initiators reach them without a message,
//! and by one what is not granted. The stand-in for the guest driver is the test, which writes the grant table; the program's memory is
//! contiguous, and lies in the pool, so that a page that is granted is the program's.

mod common;
use common::*;

use std::sync::{Arc, Mutex};

use isthmus_region::Section;
use isthmus_region::address::Naming;
use isthmus_region::counters::Counter;
use isthmus_region::directory::Writer;
use isthmus_region::grants::{Granted, PAGE, owner, table_bytes};
use isthmus_region::holds;
use isthmus_region::local::LocalBuf;
use isthmus_region::registrations::{ATOMIC, PAGES, READ, Range, Table, WRITE};
use isthmus_transport::types::{AtomicKind, NoMemory, RemoteAtomic};
use isthmus_transport::{
    Access, Atomic, Config, Endpoint, Long, Memory, PeerId, Posted, Rma, Status, Ticket,
};

const SECTION: u64 = 16 << 20;
const POOL: u64 = 4 << 20;
/// The window: where in the pool, and its bytes.
const BEGIN: u64 = 5 * PAGE + 48;
const LEN: u64 = 70 * PAGE;
const KEY: u64 = 9;
const BASE: u64 = 1 << 40;

/// What the target's program has registered.
struct Window {
    table: u64,
    memory: Mutex<LocalBuf>,
    reached: Arc<Mutex<Vec<(u64, u64)>>>,
}

fn add(section: &Section, offset: u64, what: &RemoteAtomic<'_>, before: &mut Vec<u8>) {
    let word = section.word("element", offset).unwrap();
    let operand = u64::from_le_bytes(what.operand.try_into().unwrap());
    *before = word.get().to_le_bytes().to_vec();
    word.set(word.get().wrapping_add(operand));
}

impl Memory for Window {
    fn published(&self) -> Option<u64> {
        Some(self.table)
    }

    fn is_atomic_here(&self, element_bytes: u64) -> bool {
        element_bytes <= 8
    }

    fn find(&self, key: u64, addr: u64, len: u64, _: Access) -> Result<LocalBuf, Status> {
        assert_eq!(key, KEY);
        Ok(self
            .memory
            .lock()
            .unwrap()
            .part(usize::try_from(addr - BASE).unwrap(), usize::try_from(len).unwrap()))
    }

    fn reached(&self, key: u64, found: LocalBuf) {
        assert_eq!(key, KEY, "the window's");
        self.reached
            .lock()
            .unwrap()
            .push((found.address() - self.memory.lock().unwrap().address(), found.len() as u64));
    }

    fn atomic(&self, target: LocalBuf, what: &RemoteAtomic<'_>, before: &mut Vec<u8>) -> Result<(), Status> {
        *before = target.to_vec();
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        target.write(&word(before).wrapping_add(word(what.operand)).to_le_bytes());
        Ok(())
    }
}

/// The initiator's side of atomics.
struct Adds;

impl Memory for Adds {
    fn is_atomic_here(&self, element_bytes: u64) -> bool {
        element_bytes <= 8
    }

    fn atomic_there(
        &self,
        section: &Section,
        offset: u64,
        _: u64,
        what: &RemoteAtomic<'_>,
        before: &mut Vec<u8>,
    ) -> Result<(), Status> {
        add(section, offset, what, before);
        Ok(())
    }

    fn find(&self, key: u64, addr: u64, len: u64, access: Access) -> Result<LocalBuf, Status> {
        NoMemory.find(key, addr, len, access)
    }

    fn atomic(&self, _: LocalBuf, _: &RemoteAtomic<'_>, _: &mut Vec<u8>) -> Result<(), Status> {
        Err(Status::Unsupported)
    }
}

/// An initiator of peer 0, and a target of peer 1 with a window.
struct Pair {
    world: World,
    a: Endpoint,
    b: Endpoint,
    to: PeerId,
    table: Table,
    list: u64,
    section: Section,
    area: u32,
    memory: LocalBuf,
    reached: Arc<Mutex<Vec<(u64, u64)>>>,
    generation: u64,
    /// What the window should have.
    model: Vec<u8>,
}

fn pair_with(long: Long, access: u64) -> Pair {
    let mut world = World::new(2, SECTION);
    let writer = Writer::create_with_pages(world.host.region(), 1, Naming::of_test(1), POOL).unwrap();
    world.services[1] = Arc::new(Mutex::new(writer));
    let (member, area) = world.attach(1);
    let section = world.section_of(1);
    // SAFETY: the world keeps the mapping.
    let memory = unsafe { section.lend("window", SECTION - POOL + BEGIN, LEN) }.unwrap();
    let model = pattern(memory.len(), 3);
    memory.write(&model);
    let mut table = Table::create(&member).unwrap();
    let count = Range::pages(BEGIN % PAGE, LEN);
    let list = member.take(count * 8).unwrap();
    section.zero("list", list, count * 8).unwrap();
    let range =
        Range { key: KEY, offset: list, len: LEN, access: access | PAGES, base: BASE, skip: BEGIN % PAGE };
    table.publish(&range).unwrap();
    let reached = Arc::default();
    let window = Window { table: table.offset(), memory: Mutex::new(memory), reached: Arc::clone(&reached) };
    let config = || Config { long, ..Config::default() };
    let b = Endpoint::open(&member, config(), Box::new(window)).unwrap();
    let mut a = Endpoint::open(&world.attach(0).0, config(), Box::new(Adds)).unwrap();
    let to = a.resolve(&b.address()).unwrap();
    Pair { world, a, b, to, table, list, section, area, memory, reached, generation: 100, model }
}

fn pair() -> Pair {
    pair_with(Long::Attach, READ | WRITE | ATOMIC)
}

impl Pair {
    fn grant_table(&self, page: u64) -> u64 {
        SECTION - POOL - table_bytes(POOL) + page * 8
    }

    /// Grants a page of the window, which is then where the program has it.
    fn grant(&mut self, page: u64) {
        self.generation += 1;
        let (at, word) = (BEGIN / PAGE + page, (self.generation << 24) | owner(self.area));
        self.section.word("table", self.grant_table(at)).unwrap().set(word);
        let granted = Granted::new(u32::try_from(at).unwrap(), word).unwrap();
        self.section.word("list", self.list + page * 8).unwrap().set(granted.word());
    }

    fn grant_all(&mut self) {
        // The first and the last page are others', too.
        (1..Range::pages(BEGIN % PAGE, LEN) - 1).for_each(|page| self.grant(page));
    }

    /// What was granted is something else.
    fn change(&mut self, page: u64) {
        self.generation += 1;
        let at = self.grant_table(BEGIN / PAGE + page);
        self.section.word("table", at).unwrap().set((self.generation << 24) | owner(self.area));
    }

    fn rma<'a>(&self, at: u64, bufs: &'a [LocalBuf]) -> Rma<'a> {
        let ticket = Ticket { context: at, flags: 0 };
        Rma { to: self.to, key: KEY, addr: BASE + at, bufs, data: None, inject: false, ticket }
    }

    fn end(&mut self, posted: Posted) -> bool {
        if posted == Posted::Pending {
            ok(wait(&mut self.a, &mut self.b));
        }
        assert!(self.a.pop().is_none());
        posted == Posted::Done
    }

    /// Writes, and gives whether that took no message.
    fn write(&mut self, at: u64, bytes: &[u8]) -> bool {
        let mut bytes = bytes.to_vec();
        let third = bytes.len() / 3;
        let (one, two) = bytes.split_at_mut(third);
        let (one, two) = (buf(one), buf(two));
        let posted = self.a.write(&self.rma(at, &[one, two])).unwrap();
        let direct = self.end(posted);
        let at = usize::try_from(at).unwrap();
        self.model[at..at + bytes.len()].copy_from_slice(&bytes);
        assert!(self.memory.to_vec() == self.model, "{} bytes at {at}", bytes.len());
        assert!(!holds::are_on(self.world.host.region(), 1, Some(self.area)));
        direct
    }

    fn read(&mut self, at: u64, len: usize) -> bool {
        let mut bytes = vec![0; len];
        let (one, two) = bytes.split_at_mut(len / 3);
        let (one, two) = (buf(one), buf(two));
        let posted = self.a.read(&self.rma(at, &[one, two])).unwrap();
        let direct = self.end(posted);
        let at = usize::try_from(at).unwrap();
        assert!(bytes == self.model[at..at + len], "{len} bytes at {at}");
        direct
    }

    fn add(&mut self, at: u64, value: u64) -> bool {
        let mut operand = value.to_le_bytes();
        let mut result = [0; 8];
        let (operand, into) = (buf(&mut operand), buf(&mut result));
        let atomic = Atomic {
            to: self.to,
            key: KEY,
            addr: BASE + at,
            kind: AtomicKind::Fetch,
            datatype: 0,
            op: 0,
            count: 1,
            size: 8,
            operand: &[operand],
            compare: &[],
            result: &[into],
            inject: false,
            ticket: Ticket { context: at, flags: 0 },
        };
        let posted = self.a.atomic(&atomic).unwrap();
        let direct = self.end(posted);
        let at = usize::try_from(at).unwrap();
        assert_eq!(result, self.model[at..at + 8]);
        let sum = u64::from_le_bytes(result).wrapping_add(value);
        self.model[at..at + 8].copy_from_slice(&sum.to_le_bytes());
        assert!(self.memory.to_vec() == self.model);
        direct
    }

    fn reached(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut *self.reached.lock().unwrap())
    }

    /// Operations that the initiator did itself, and all.
    fn counts(&mut self) -> [u64; 2] {
        (0..600).for_each(|_| _ = (self.a.progress(), self.b.progress()));
        let totals = self.world.services[0].lock().unwrap().directory().totals().unwrap();
        [Counter::Direct, Counter::Rma].map(|counter| totals.get(counter))
    }
}

#[test]
fn what_is_granted_takes_no_message_and_the_rest_one() {
    let mut pair = pair();
    // Nothing is granted yet.
    assert!(!pair.write(8, b"nothing") && !pair.read(5000, 300));
    assert_eq!(pair.reached(), [(8, 7), (5000, 300)]);
    pair.grant_all();
    let page = PAGE - BEGIN % PAGE;
    let whole = LEN / PAGE * PAGE - PAGE;
    let cases = [
        (page, 1),
        (page, PAGE),
        (page + 1, 3 * PAGE),
        (page + 4095, 2),
        (page + 7, 20 * PAGE + 3),
        (page, whole),
        (page + 16 * PAGE - 1, 16 * PAGE + 2),
        (page + whole - 5, 5),
    ];
    for (seed, (at, len)) in (7..).zip(cases) {
        let bytes = pattern(usize::try_from(len).unwrap(), seed);
        assert!(pair.write(at, &bytes) && pair.read(at, bytes.len()), "{len} bytes at {at}");
    }
    assert_eq!((pair.reached(), pair.counts()), (vec![], [16, 18]));
    // Of the first page and the last only the window is the window's.
    for (at, len) in [(page - 1, 2), (0, 9000), (page + whole - 1, 2), (LEN - 1, 1)] {
        let bytes = pattern(usize::try_from(len).unwrap(), at);
        assert!(!pair.write(at, &bytes) && !pair.read(at, bytes.len()), "{len} bytes at {at}");
    }
    assert_eq!(pair.reached().len(), 8);
    // Nothing is at the end, nor behind it.
    assert!(pair.read(LEN, 0) && pair.write(page, &[]));
}

#[test]
fn a_grant_that_has_ended_is_seen_and_nothing_of_a_page_that_others_have_now() {
    let mut pair = pair();
    pair.grant_all();
    let at = |page: u64| page * PAGE - BEGIN % PAGE;
    for page in [1, 16, 17, 40, 69] {
        assert!(pair.write(at(page), &[1; 8]) && pair.read(at(page) + 8, 8));
        pair.change(page);
        assert!(!pair.write(at(page), &[2; 8]) && !pair.read(at(page), 8));
        // Some of the pages of a longer one are granted.
        assert!(
            !pair.write(at(page) - 8, &[3; 16]) && !pair.read(at(page) - 8, 16) && !pair.add(at(page), 5)
        );
        pair.grant(page);
        assert!(pair.write(at(page), &[4; 8]) && pair.read(at(page), 8) && pair.add(at(page), 6));
        // It is no page of the list any more.
        let section = pair.section.clone();
        let word = section.word("list", pair.list + page * 8).unwrap();
        let named = word.get();
        word.set(0);
        assert!(!pair.write(at(page), &[5; 8]));
        word.set(named);
        assert!(pair.write(at(page), &[6; 8]));
    }
}

/// Pages that are lost, used by others, and granted again, while they are read: whatever was read without a message is the program's.
#[test]
fn nothing_is_read_of_a_page_that_is_lost_meanwhile() {
    const CHANGES: u64 = 50_000;
    let mut pair = pair();
    pair.grant_all();
    let (first, pages) = (7, 3);
    let at = first * PAGE - BEGIN % PAGE;
    assert!(pair.write(at, &[5; 8]), "the table is known from now on");
    let [short, long] = [PAGE, pages * PAGE].map(|bytes| usize::try_from(bytes).unwrap());
    let from = usize::try_from(at).unwrap();
    let own = pair.model[from..from + long].to_vec();
    let (section, list, owner) = (pair.section.clone(), pair.list, owner(pair.area));
    let (memory, mut generation) = (pair.memory.part(from, long), pair.generation);
    let driver = std::thread::spawn(move || {
        let others = vec![0xee; short];
        let a_moment =
            |of: u64| (0..of.wrapping_mul(0x9e37_79b9) % 1024).for_each(|_| std::hint::spin_loop());
        for change in 0..CHANGES {
            let page = change % pages;
            let number = BEGIN / PAGE + first + page;
            let table = SECTION - POOL - table_bytes(POOL) + number * 8;
            let (word, listed) = (
                section.word("table", table).unwrap(),
                section.word("list", list + (first + page) * 8).unwrap(),
            );
            let mut next = || {
                generation += 1;
                (generation << 24) | owner
            };
            // As the driver does: the word first, then what is in the page.
            word.set(next());
            let begin = usize::try_from(page).unwrap() * short;
            memory.part(begin, short).write(&others);
            a_moment(change + 1);
            memory.part(begin, short).write(&own[begin..begin + short]);
            let granted = next();
            word.set(granted);
            listed.set(Granted::new(u32::try_from(number).unwrap(), granted).unwrap().word());
            // It stays as it is for some microseconds, granted or not.
            a_moment(change);
        }
    });
    let (mut seen, mut direct) = (vec![0; long], [0; 2]);
    while !driver.is_finished() {
        for (kind, len) in [short, long].into_iter().enumerate() {
            seen.fill(0);
            let into = buf(&mut seen[..len]);
            let is_done = if kind == 0 {
                pair.a.read_at_once(pair.to, KEY, BASE + at, into)
            } else if let Posted::Done = pair.a.read(&pair.rma(at, &[into])).unwrap() {
                true
            } else {
                ok(wait(&mut pair.a, &mut pair.b));
                false
            };
            if is_done {
                direct[kind] += 1;
                assert!(
                    seen[..len] == pair.model[from..from + len],
                    "{len} bytes: read {} of the program's",
                    direct[kind]
                );
            }
        }
    }
    driver.join().unwrap();
    assert!(direct.iter().all(|count| *count > 0), "{direct:?}");
}

#[test]
fn an_operation_of_which_a_page_is_missing_writes_nothing_itself() {
    let mut pair = pair();
    pair.grant_all();
    pair.change(60);
    let mut bytes = vec![9; usize::try_from(62 * PAGE).unwrap()];
    let posted = pair.a.write(&pair.rma(PAGE, &[buf(&mut bytes)])).unwrap();
    assert_eq!(posted, Posted::Pending);
    assert!(pair.memory.to_vec() == pair.model, "before its message has come");
    ok(wait(&mut pair.a, &mut pair.b));
    let at = usize::try_from(PAGE).unwrap();
    pair.model[at..at + bytes.len()].fill(9);
    assert!(pair.memory.to_vec() == pair.model);
}

#[test]
fn nothing_overtakes_what_is_under_way() {
    let mut pair = pair();
    let mut first = [7; 64];
    let posted = pair.a.write(&pair.rma(PAGE, &[buf(&mut first)])).unwrap();
    assert_eq!(posted, Posted::Pending);
    pair.grant_all();
    let mut second = [8; 64];
    let mut seen = [0; 64];
    assert_eq!(pair.a.write(&pair.rma(PAGE, &[buf(&mut second)])).unwrap(), Posted::Pending);
    assert_eq!(pair.a.read(&pair.rma(PAGE, &[buf(&mut seen)])).unwrap(), Posted::Pending);
    (0..3).for_each(|_| _ = ok(wait(&mut pair.a, &mut pair.b)));
    assert_eq!(seen, [8; 64]);
    pair.model[4096..4160].fill(8);
    assert!(pair.write(PAGE, &[9; 64]) && pair.read(PAGE, 64));
}

#[test]
fn short_operations_in_a_page_that_is_granted_take_one_step() {
    let mut pair = pair();
    pair.grant_all();
    let at = |page: u64| page * PAGE - BEGIN % PAGE;
    let memory = pair.memory;
    let once = |pair: &mut Pair, at: u64, len: usize| {
        let before = memory.to_vec();
        let mut bytes = pattern(len, pair.generation);
        let from = usize::try_from(at).unwrap();
        pair.generation += 1;
        let written = pair.a.write_at_once(pair.to, KEY, BASE + at, buf(&mut bytes));
        assert!(!holds::are_on(pair.world.host.region(), 1, Some(pair.area)));
        if written {
            pair.model[from..from + len].copy_from_slice(&bytes);
        }
        assert!(memory.to_vec() == if written { &*pair.model } else { &*before }, "{len} bytes at {at}");
        let mut seen = vec![0; len];
        let read = pair.a.read_at_once(pair.to, KEY, BASE + at, buf(&mut seen));
        assert!(!read || seen == pair.model[from..from + len], "{len} bytes at {at}");
        (written, read)
    };
    assert_eq!(once(&mut pair, at(1), 8), (false, false), "not looked for yet");
    assert!(pair.write(at(1), &[1; 8]));
    for (at, len) in
        [(at(1), 8), (at(1) + 1, 13), (at(2) - 8, 8), (at(7), 4096), (at(69) - 1, 1), (at(30), 1)]
    {
        assert_eq!(once(&mut pair, at, len), (true, true), "{len} bytes at {at}");
    }
    // Of two pages, of one that is others', too, and of the last.
    for (at, len) in [(at(2) - 4, 8), (at(3) - 4095, 4097), (at(1) - 8, 8), (LEN - 8, 8)] {
        assert_eq!(once(&mut pair, at, len), (false, false), "{len} bytes at {at}");
    }
    // It is something else now; and it is no page of the list.
    pair.change(5);
    assert_eq!(once(&mut pair, at(5), 8), (false, false));
    let section = pair.section.clone();
    section.word("list", pair.list + 6 * 8).unwrap().set(0);
    assert_eq!(once(&mut pair, at(6), 8), (false, false));
    assert_eq!(once(&mut pair, at(7), 8), (true, true));
    // Nothing overtakes what goes by a message.
    let mut first = [7; 64];
    assert_eq!(pair.a.write(&pair.rma(at(5), &[buf(&mut first)])).unwrap(), Posted::Pending);
    assert_eq!(once(&mut pair, at(7), 8), (false, false));
    ok(wait(&mut pair.a, &mut pair.b));
    pair.model = memory.to_vec();
    assert_eq!(once(&mut pair, at(7), 8), (true, true));
}

#[test]
fn atomics_are_on_one_page_and_aligned() {
    let mut pair = pair();
    pair.grant_all();
    let page = PAGE - BEGIN % PAGE;
    assert!(pair.add(page, 1) && pair.add(page + PAGE - 8, u64::MAX));
    assert!(!pair.add(page + 4, 1) && !pair.add(page - 4, 1) && !pair.add(page + PAGE - 4, 3));
    assert!(pair.add(page + 2 * PAGE, 9));
}

#[test]
fn rights_are_those_of_the_registration_and_it_ends() {
    let mut pair = pair_with(Long::Attach, READ);
    pair.grant_all();
    assert!(pair.read(PAGE, 100));
    let mut bytes = [1; 8];
    let posted = pair.a.write(&pair.rma(PAGE, &[buf(&mut bytes)])).unwrap();
    assert_eq!((posted, pair.a.pop().unwrap().status), (Posted::Pending, Status::NoAccess));
    let posted = pair.a.read(&pair.rma(LEN - 4, &[buf(&mut bytes)])).unwrap();
    assert_eq!((posted, pair.a.pop().unwrap().status), (Posted::Pending, Status::NoAccess));
    pair.table.withdraw(0).unwrap();
    assert!(!pair.read(PAGE, 100));
}

#[test]
fn a_target_that_lies_leads_nowhere_outside_its_pool() {
    let mut pair = pair();
    pair.grant_all();
    let others = |pair: &Pair| {
        let at = SECTION - POOL + BEGIN + LEN;
        pair.section.bytes("others", at, SECTION - at).unwrap().to_vec(0, SECTION - at).unwrap()
    };
    // Pages that the pool does not have, and such as say that they stand.
    for page in [POOL / PAGE, (1 << 24) - 1, 2000] {
        let word = (pair.generation << 24) | page;
        pair.section.word("list", pair.list + 8).unwrap().set(word);
        // Where the word of such a page would be there are pages of the pool, in which the target writes what it likes.
        let at = pair.grant_table(page);
        if at + 8 <= SECTION {
            let forged = (pair.generation << 24) | owner(pair.area);
            pair.section.word("forged", at).unwrap().set(forged);
            pair.model = pair.memory.to_vec();
        }
        let before = others(&pair);
        assert!(!pair.write(PAGE, &[1; 8]) && !pair.read(PAGE, 8));
        let mut bytes = [2; 8];
        assert!(!pair.a.write_at_once(pair.to, KEY, BASE + PAGE, buf(&mut bytes)));
        assert!(!pair.a.read_at_once(pair.to, KEY, BASE + PAGE, buf(&mut bytes)));
        assert!(others(&pair) == before);
    }
}

#[test]
fn who_wants_two_copies_grants_nothing() {
    let mut pair = pair_with(Long::Copy, READ | WRITE);
    assert!(!pair.write(PAGE, &[1; 8]) && !pair.read(PAGE, 8));
    assert_eq!(pair.reached(), []);
}
