//! What a check finds: nothing in a sound region, the right fault where a field was changed, and in random bytes anything,
//! but never a panic and never an endless loop.

mod common;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use common::{REGION, WINDOW, job};
use isthmus_inspect::check::check;
use isthmus_inspect::explain;
use isthmus_inspect::survey::{Depth, look};
use isthmus_region::address::SystemId;
use isthmus_region::counters::Counter;
use isthmus_region::format::{
    accept, area, block, directory, endpoint, file, header, lane, object, peer, registration, registrations,
    slot,
};
use isthmus_region::grants::{PAGE, owner, table_bytes};
use isthmus_region::local::LocalBuf;
use isthmus_region::mapping::{Mapping, Section};
use isthmus_region::membership::Region;
use isthmus_region::objects::{Kind, NewObject, Object};
use isthmus_region::reader::Reader;
use isthmus_region::registrations::{MOST_PAGED, PAGES, READ, Range, Table};
use isthmus_sysv::{Caller, Ipc, ipc};
use isthmus_transport::types::Rma;
use isthmus_transport::{Endpoint, Posted, Ticket};

/// Memory with these bytes, and a view that writes it.
fn memory(bytes: &[u8]) -> (Reader, Section) {
    let fd = isthmus_region::create::memory(REGION).unwrap();
    let whole = Mapping::map(fd.as_fd(), REGION).unwrap().whole().unwrap();
    whole.fill_bytes("all", 0, bytes).unwrap();
    (Reader::new(fd).unwrap(), whole)
}

/// The same as a file, which is read by other means.
fn file(bytes: &[u8]) -> Reader {
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, bytes).unwrap();
    Reader::new(file.into()).unwrap()
}

#[test]
fn a_sound_region_is_shown_whole_and_without_fault() {
    let mut job = job(3);
    job.send(0, 1, 200, 8);
    job.send(0, 1, 5, 5000);
    job.send(1, 0, 3, 300_000);
    job.send(2, 0, 1, 8);
    let live = check(&job.reader()).unwrap();
    assert!(live.faults.is_empty(), "{:?}", live.faults);
    let survey = live.survey.unwrap();
    assert_eq!(survey.members.len(), 1);
    let member = &survey.members[0];
    assert_eq!((member.name.as_str(), member.kind, member.processes.len()), ("host", "host", 3));
    assert_eq!(member.counters.get(Counter::TxMessages), 209);
    assert_eq!(member.counters.get(Counter::RxBytes), 201 * 8 + 5 * 5000 + 3 * 300_000);
    assert!(member.heap_used > 0 && member.heap_used < member.heap_bytes);
    let first = &member.endpoints[0];
    // Answers to pipelined messages go from 0 to 1, too.
    let to: Vec<u32> = first.lanes.iter().map(|l| l.to).collect();
    assert_eq!(to, [member.endpoints[1].slot]);
    let lane = &first.lanes[0];
    assert!(lane.accepted && lane.receiver_lives && lane.slots == 64 && lane.data_bytes == 64 << 10);
    assert!(lane.slots_read + lane.slots_unread >= 205, "{lane:?}");
    let bytes = job.bytes();
    let dumped = check(&file(&bytes)).unwrap();
    assert!(dumped.faults.is_empty(), "{:?}", dumped.faults);
    assert_eq!(dumped.survey.unwrap().totals(), survey.totals());
}

#[test]
fn granted_pages_are_counted_for_their_processes() {
    let mut job = job(2);
    job.send(0, 1, 1, 300_000);
    let region = Region::open(&Mapping::map(job.service.region_fd().as_fd(), REGION).unwrap()).unwrap();
    let peer = region.peer(0).unwrap().unwrap();
    let (reader, whole) = memory(&job.bytes());
    let set = |at: u64, value| whole.word("t", at).unwrap().set(value);
    // A pool at the end of the section, as the driver leaves it.
    let pool = 16 * PAGE;
    let pages = peer.section_bytes - pool;
    let table = pages - table_bytes(pool);
    set(peer.section + directory::PAGES, pages);
    set(peer.section + directory::PAGES_BYTES, pool);
    let heap = isthmus_region::directory::places(region.shape()).heap;
    set(peer.section + directory::HEAP_BYTES, table - heap);
    // Two processes of which the second one has granted more, and a page that a process which is gone has left to a fork.
    for (page, area) in [(0, 0), (1, 1), (2, 1), (5, 9)] {
        set(peer.section + table + page * 8, (7 << 24) | owner(area));
    }
    set(peer.section + table + 3 * 8, 7 << 24);
    let found = check(&reader).unwrap();
    assert!(found.faults.is_empty(), "{:?}", found.faults);
    let survey = found.survey.unwrap();
    let member = &survey.members[0];
    assert_eq!((member.pages_bytes, member.pages_granted), (pool, 4 * PAGE));
    let granted: Vec<u64> = member.processes.iter().map(|process| process.pages_granted).collect();
    assert_eq!(granted, [PAGE, 2 * PAGE]);
    let json = serde_json::to_value(&survey).unwrap();
    assert_eq!(json["members"][0]["processes"][1]["pages_granted"], 2 * PAGE);
    // No area has this number.
    set(peer.section + table + 6 * 8, (7 << 24) | owner(5000));
    let found = check(&reader).unwrap();
    assert_eq!(found.faults.list.iter().map(|fault| fault.field).collect::<Vec<_>>(), ["grant table"]);
}

#[test]
fn a_member_that_is_no_system_is_named() {
    let job = job(1);
    let region = Region::open(&Mapping::map(job.service.region_fd().as_fd(), REGION).unwrap()).unwrap();
    assert_ne!(region.peer(0).unwrap().unwrap().system, SystemId::NONE);
    let mut bytes = job.bytes();
    let at = usize::try_from(4096 + peer::SYSTEM).unwrap();
    bytes[at..at + 16].fill(0);
    let found = check(&file(&bytes)).unwrap();
    assert!(found.faults.list.iter().any(|f| f.field == "peer.SYSTEM"), "{:?}", found.faults);
}

#[test]
fn each_field_that_is_wrong_is_named() {
    let mut job = job(2);
    job.send(0, 1, 100, 8);
    job.send(1, 0, 100, 8);
    let new = |name: &str| NewObject {
        kind: Kind::Segment,
        name: name.into(),
        len: 100,
        mode: 0o600,
        ends_with_creator: false,
        params: [0; 4],
        or_open: false,
    };
    let named = isthmus_attach::connect_at(job.service.attach_socket()).unwrap();
    let _objects = ["one", "two"].map(|name| Object::create(&named, &new(name)).unwrap());
    let bytes = job.bytes();
    let (reader, whole) = memory(&bytes);
    let word = |at: u64| whole.word("t", at).unwrap();
    let region = Region::open(&Mapping::map(job.service.region_fd().as_fd(), REGION).unwrap()).unwrap();
    let section = region.peer(0).unwrap().unwrap().section;
    let places = isthmus_region::directory::places(region.shape());
    let table = 4096;
    let endpoint_at = section + places.endpoints;
    let area_at = section + places.areas;
    let block_at = section + word(endpoint_at + endpoint::BLOCK).get();
    let lane_at = section + word(block_at + block::LANES).get() + 64;
    let accept_at = section + word(block_at + block::ACCEPTS).get() + 64;
    let ring_at = section + word(lane_at + lane::RING).get();
    let table_at = section + word(block_at + block::REGISTRATIONS).get();
    let entry_at = section + word(table_at + registrations::FIRST).get() + 64;
    let window = word(entry_at + registration::OFFSET).get();
    // The other process's.
    let other_block = section + word(endpoint_at + endpoint::BYTES + endpoint::BLOCK).get();
    let other_table = word(other_block + block::REGISTRATIONS).get();
    let other_entry = section + word(section + other_table + registrations::FIRST).get() + 64;
    let other_window = word(other_entry + registration::OFFSET).get();
    let other_first = word(area_at + area::BYTES + area::FIRST).get();
    assert_eq!([window, other_window], [job.windows[0], job.windows[1]]);
    let object_at = region.shape().object_table();
    let cases: &[(u64, u64, &str)] = &[
        (header::SHARED_BYTES, REGION, "header.SHARED_BYTES"),
        (header::SHARED_BYTES, 77, "header.SHARED_BYTES"),
        (header::SECTION_ALIGN, 4096, "header.SECTION_ALIGN"),
        (header::SECTION_ALIGN, 3 << 18, "header.SECTION_ALIGN"),
        (header::SECTION_ALIGN, 4 << 20, "header.SECTION_ALIGN"),
        (header::SECTION_ALIGN, 2 << 20, "header.HOST_BYTES"),
        (header::OBJECTS, 1 << 31, "header.OBJECTS"),
        (header::OBJECTS, 5000, "header.HOST_BYTES"),
        (header::REPLY_TABLE, 64, "header.REPLY_TABLE"),
        (header::OBJECT_TABLE, u64::MAX, "header.OBJECT_TABLE"),
        (object_at + object::LIFE, 0x1ff, "object.LIFE"),
        (object_at + object::OFFSET, u64::MAX, "object.OFFSET"),
        (object_at + object::OFFSET, 4096 + 50, "object.OFFSET"),
        (object_at + object::LEN, 0, "object.OFFSET"),
        (object_at + object::LEN, u64::MAX, "object.OFFSET"),
        (object_at + object::KIND, 99, "object.KIND"),
        (object_at + object::KIND, 1 | (0o7777 << 32), "object.MODE"),
        (object_at + object::FLAGS, 8, "object.FLAGS"),
        (object_at + object::ALLOWED + 8, 1, "object.ALLOWED"),
        (object_at + object::NAME, u64::MAX, "object.NAME"),
        (header::MAGIC, 7, "header.MAGIC"),
        (header::VERSION, 9, "header.VERSION"),
        (header::REGION_BYTES, REGION * 2, "header.REGION_BYTES"),
        (header::PEERS, 0, "header.PEERS"),
        (header::PEERS, 5 << 40, "header.PEERS"),
        (header::PEER_TABLE, 64, "header.PEER_TABLE"),
        (header::HOST_BYTES, 100, "header.HOST_BYTES"),
        (header::SERVICE, 0x155, "header.SERVICE"),
        (header::LAYOUT, 0x155, "header.LAYOUT"),
        (table + peer::LIFE, 0x1ff, "peer.LIFE"),
        (table + peer::SECTION, 64, "peer.SECTION"),
        (table + peer::SECTION, u64::MAX - 65535, "peer.SECTION"),
        (table + peer::SECTION_BYTES, 4096, "peer.SECTION_BYTES"),
        (table + peer::SECTION_BYTES, u64::MAX, "peer.SECTION"),
        (table + peer::KIND, 77, "peer.KIND"),
        (table + peer::NAME, u64::MAX, "peer.NAME"),
        (section + directory::MAGIC, 0, "directory.MAGIC"),
        (section + directory::INCARNATION, 44, "directory.INCARNATION"),
        (section + directory::HEAP, 0, "directory.HEAP"),
        (section + directory::HEAP_BYTES, u64::MAX, "directory.HEAP_BYTES"),
        (section + directory::PAGES, 0, "directory.PAGES"),
        (section + directory::PAGES, 4096, "directory.PAGES"),
        (section + directory::PAGES_BYTES, 64 << 10, "directory.PAGES"),
        (section + directory::PAGES_BYTES, u64::MAX - 65535, "directory.PAGES"),
        (section + directory::HEAP_USED, 5, "directory.HEAP_USED"),
        (section + directory::HEAP_USED, 0, "directory.HEAP_USED"),
        (
            section + directory::ENDPOINTS_HIGH,
            u64::from(region.shape().endpoints) + 1,
            "directory.ENDPOINTS_HIGH",
        ),
        (section + directory::ENDPOINTS_HIGH, 0, "endpoint.LIFE"),
        (area_at + area::LIFE, 0x102, "area.LIFE"),
        (area_at + area::FIRST, 8, "area.FIRST"),
        (area_at + area::FIRST_BYTES, 0, "area.FIRST_BYTES"),
        (area_at + area::GRANTED, u64::MAX, "area.GRANTED"),
        (area_at + area::PROGRAM, 0xff, "area.PROGRAM"),
        (area_at + area::PROGRAM + 16, 0x61 << 56, "area.PROGRAM"),
        (endpoint_at + endpoint::AREA, 15, "endpoint.AREA"),
        (endpoint_at + endpoint::BLOCK, 8, "endpoint.BLOCK"),
        (block_at + block::LANES, 12345, "block.LANES"),
        (block_at + block::ACCEPTS, block_at - section, "block.ACCEPTS"),
        (block_at + block::SLEEP, 7, "block.SLEEP"),
        (block_at + block::REGISTRATIONS, 12345, "block.REGISTRATIONS"),
        (block_at + block::REGISTRATIONS, 64, "block.REGISTRATIONS"),
        (block_at + block::REGISTRATIONS, block_at - section, "block.REGISTRATIONS"),
        (other_block + block::REGISTRATIONS, table_at - section, "block.REGISTRATIONS"),
        // Peers and areas that are not in the tables; and one that is there and not in use.
        (block_at + block::HOLD, u64::MAX, "block.HOLD"),
        (block_at + block::HOLD, 1 << 20, "block.HOLD"),
        (block_at + block::HOLD, 10, "block.HOLD"),
        (table_at + registrations::FIRST, 7, "registrations.FIRST"),
        (table_at + registrations::FIRST, REGION, "registrations.FIRST"),
        (table_at + registrations::FIRST, lane_at - 64 - section, "registrations.FIRST"),
        (table_at + registrations::VERSION, 2, "registrations.VERSION"),
        (entry_at - 64, entry_at - 64 - section, "chunk.NEXT"),
        (entry_at + registration::LIFE, 0x177, "registration.LIFE"),
        (entry_at + registration::LIFE, 0x103, "registration.LIFE"),
        (entry_at + registration::LIFE, 0x002, "registration.LIFE"),
        (entry_at + registration::LIFE, 0x902, "registrations.VERSION"),
        (entry_at + registration::BYTES + registration::KEY, 7, "registration.KEY"),
        (entry_at + registration::OFFSET, 64, "registration.OFFSET"),
        (entry_at + registration::OFFSET, REGION, "registration.OFFSET"),
        (entry_at + registration::OFFSET, u64::MAX, "registration.OFFSET"),
        (entry_at + registration::OFFSET, ring_at - section, "registration.OFFSET"),
        (entry_at + registration::OFFSET, table_at - section - WINDOW + 1, "registration.OFFSET"),
        (entry_at + registration::OFFSET, other_first + 512, "registration.OFFSET"),
        (entry_at + registration::OFFSET, other_window + WINDOW - 1, "registration.OFFSET"),
        (other_entry + registration::OFFSET, window - WINDOW + 1, "registration.OFFSET"),
        (entry_at + registration::LENGTH, REGION, "registration.LENGTH"),
        (entry_at + registration::LENGTH, u64::MAX, "registration.LENGTH"),
        (entry_at + registration::ACCESS, 8, "registration.ACCESS"),
        (entry_at + registration::ACCESS, 0, "registration.ACCESS"),
        (entry_at + registration::BASE, u64::MAX - WINDOW + 1, "registration.BASE"),
        (lane_at - 64, lane_at - 64 - section, "chunk.NEXT"),
        (lane_at + lane::LIFE, 0x177, "lane.LIFE"),
        (lane_at + lane::TO, region.shape().slots().into(), "lane.TO"),
        (lane_at + lane::RING, 64, "lane.RING"),
        (lane_at + lane::SLOTS, 63, "lane.SLOTS"),
        (lane_at + lane::SLOTS, 1 << 31, "lane.SLOTS"),
        (lane_at + lane::DATA, ring_at - section, "lane.DATA"),
        (accept_at + accept::KEY, u64::MAX, "accept.KEY"),
        (accept_at + accept::KEY, (1 << 32) + 1 + 400, "accept.KEY"),
        (accept_at + accept::GENERATION, 4000, "accept.GENERATION"),
        (accept_at + accept::READ, 1 << 31, "accept.READ"),
        (ring_at + slot::BYTES + slot::STAMP, 77 | (1 << 32), "slot.STAMP"),
        (ring_at + slot::BYTES + slot::STAMP, 2 | (200 << 32), "slot.KIND"),
        (ring_at + slot::BYTES + slot::STAMP, 2 | (1 << 32) | (999 << 48), "slot.INLINE_LEN"),
    ];
    assert!(check(&reader).unwrap().faults.is_empty());
    for (at, value, field) in cases {
        let before = word(*at).get();
        word(*at).set(*value);
        // Nobody changes anything meanwhile: one look is enough.
        let found = look(&reader, Depth::Slots).unwrap().faults;
        word(*at).set(before);
        let named = found.list.iter().find(|f| f.field == *field);
        assert!(named.is_some(), "{field} at {at:#x} set to {value:#x}: {found:?}");
        let text = named.unwrap().to_string();
        assert!(text.contains(" at offset 0x") && text.contains("it must be "), "{text}");
    }
    assert!(check(&reader).unwrap().faults.is_empty(), "all is as before");
}

#[test]
fn a_shared_section_that_lies_nowhere_hides_nothing_else() {
    let mut job = job(2);
    job.send(0, 1, 1, 8);
    let named = isthmus_attach::connect_at(job.service.attach_socket()).unwrap();
    let ipc = Ipc::new(&named);
    ipc.shmget(5, 10_000, ipc::CREAT | 0o600, &Caller::current()).unwrap();
    let bytes = job.bytes();
    let (reader, whole) = memory(&bytes);
    let region = Region::open(&Mapping::map(job.service.region_fd().as_fd(), REGION).unwrap()).unwrap();
    let length = region.shape().file_table() + file::LENGTH;
    let [most, align] = [1 << 62, region.shape().section_align];
    for changes in [
        // All that reads objects would read behind the region's end.
        &[(length, most), (header::SHARED, REGION)][..],
        &[(length, most), (header::SHARED, most - align)],
        &[(length, u64::MAX), (header::SHARED, REGION - align)],
        &[(header::SHARED, REGION)],
        &[(header::SHARED_BYTES, REGION)],
        &[(length, 0), (header::SHARED_BYTES, align / 2)],
    ] {
        let before: Vec<(u64, u64)> =
            changes.iter().map(|(at, _)| (*at, whole.word("t", *at).unwrap().get())).collect();
        changes.iter().for_each(|(at, value)| whole.word("t", *at).unwrap().set(*value));
        let found = look(&reader, Depth::Slots).unwrap();
        before.iter().for_each(|(at, value)| whole.word("t", *at).unwrap().set(*value));
        assert!(found.faults.list.iter().any(|f| f.field.starts_with("header.SHARED")), "{:?}", found.faults);
        assert!(found.faults.list.iter().all(|f| f.place == "region"), "{:?}", found.faults);
        let survey = found.survey.unwrap();
        assert_eq!(survey.members[0].processes.len(), 3, "{changes:?}");
        assert_eq!(survey.objects.iter().map(|object| object.mode).collect::<Vec<_>>(), [0o600]);
    }
    assert!(look(&reader, Depth::Slots).unwrap().is_sound());
}

#[test]
fn a_registration_in_granted_pages_has_a_list_in_its_process_s_memory() {
    let job = job(1);
    let member = isthmus_attach::connect_at(job.service.attach_socket()).unwrap();
    let mut table = Table::create(&member).unwrap();
    let list = member.take(64).unwrap();
    let range = Range { key: 5, offset: list, len: 7 * 4096, access: READ | PAGES, base: 0, skip: 100 };
    let number = table.publish(&range).unwrap();
    let memory = Box::new(common::Published(table.offset()));
    let _end = Endpoint::open(&member, isthmus_transport::Config::default(), memory).unwrap();
    let faults = || check(&job.reader()).unwrap().faults;
    assert!(faults().is_empty(), "{:?}", faults());
    table.withdraw(number).unwrap();
    let end = member.section().len();
    for (wrong, field) in [
        (Range { access: PAGES, ..range }, "registration.ACCESS"),
        (Range { access: READ | 16, ..range }, "registration.ACCESS"),
        (Range { skip: 4096, ..range }, "registration.SKIP"),
        (Range { access: READ, ..range }, "registration.SKIP"),
        (Range { offset: list + 4, ..range }, "registration.OFFSET"),
        (Range { offset: end - 8, ..range }, "registration.LENGTH"),
        (Range { len: MOST_PAGED + 1, ..range }, "registration.LENGTH"),
    ] {
        let number = table.publish(&wrong).unwrap();
        let found = faults();
        table.withdraw(number).unwrap();
        assert!(found.list.iter().any(|fault| fault.field == field), "{wrong:?}: {found:?}");
    }
    assert!(faults().is_empty());
}

#[test]
fn registrations_of_one_process_may_overlap_and_its_endpoints_may_share_them() {
    let job = job(1);
    let member = isthmus_attach::connect_at(job.service.attach_socket()).unwrap();
    let mut table = Table::create(&member).unwrap();
    let offset = member.allocate(WINDOW, 64).unwrap();
    let range = Range { key: 0, offset, len: WINDOW, access: READ, base: 0, skip: 0 };
    for key in 0..40 {
        table.publish(&Range { key, offset: offset + key, len: WINDOW - 2 * key, ..range }).unwrap();
    }
    let other = Table::create(&member).unwrap();
    let open = |table: &Table| {
        let memory = Box::new(common::Published(table.offset()));
        Endpoint::open(&member, isthmus_transport::Config::default(), memory).unwrap()
    };
    let ends = [open(&table), open(&table), open(&other)];
    let found = check(&job.reader()).unwrap();
    assert!(found.faults.is_empty(), "{:?}", found.faults);
    let survey = found.survey.unwrap();
    let member = &survey.members[0];
    let ranges = ends.each_ref().map(|end| {
        let slot = end.address().number;
        let end = member.endpoints.iter().find(|e| e.slot == slot).unwrap();
        member.registrations_of(end).unwrap().ranges.len()
    });
    assert_eq!((ranges, member.registrations.len()), ([40, 40, 0], 3));
    assert!(check(&file(&job.bytes())).unwrap().faults.is_empty());
}

#[test]
fn a_hold_on_memory_of_a_process_that_is_gone_is_named_until_it_ends() {
    let job = job(2);
    let (reader, whole) = memory(&job.bytes());
    let survey = check(&reader).unwrap().survey.unwrap();
    let [first, second] = [0, 1].map(|i| &survey.members[0].endpoints[i]);
    let hold = whole.word("t", survey.members[0].section + first.block + block::HOLD).unwrap();
    hold.set(u64::from(second.area) + 1);
    let held = check(&reader).unwrap();
    assert!(held.faults.is_empty(), "{:?}", held.faults);
    let holds = held.survey.unwrap().members[0].endpoints[0].holds.unwrap();
    assert_eq!((holds.member, holds.area), (0, second.area));
    // Its process ends, as its service says in the region.
    let region = Region::open(&Mapping::map(job.service.region_fd().as_fd(), REGION).unwrap()).unwrap();
    let (section, places) = (survey.members[0].section, isthmus_region::directory::places(region.shape()));
    let areas = section + places.areas + u64::from(second.area) * area::BYTES;
    let ends = section + places.endpoints + u64::from(second.local) * endpoint::BYTES;
    for at in [areas + area::LIFE, ends + endpoint::LIFE] {
        let life = whole.word("t", at).unwrap();
        life.set(life.get() | 3);
    }
    let found = check(&reader).unwrap().faults;
    assert_eq!(found.list.iter().map(|f| f.field).collect::<Vec<_>>(), ["block.HOLD"], "{found:?}");
    hold.set(0);
    assert!(check(&reader).unwrap().faults.is_empty());
}

#[test]
fn explain_says_which_memory_of_a_target_is_reached_without_messages() {
    let mut job = job(2);
    job.send(0, 1, 1, 8);
    let address = job.ends[1].address();
    let to = job.ends[0].resolve(&address).unwrap();
    let bufs = [LocalBuf::leaked(vec![7; 100])];
    let rma = Rma { to, key: 7, addr: 0, bufs: &bufs, data: None, inject: false, ticket: Ticket::default() };
    assert_eq!(job.ends[0].write(&rma), Ok(Posted::Done));
    for _ in 0..600 {
        job.ends[0].progress();
    }
    let survey = check(&job.reader()).unwrap().survey.unwrap();
    let pairs = explain::pairs(&survey, false);
    assert!(
        pairs[0].rma.what.starts_with("reads directly from 2 registrations of 12K"),
        "{:?}",
        pairs[0].rma
    );
    assert!(pairs[0].rma.what.contains("writes directly to 1 registration of 8192 B"), "{:?}", pairs[0].rma);
    assert!(pairs[0].rma.why.contains("did 1 of its 1 operations directly"), "{:?}", pairs[0].rma);
    assert!(pairs[0].atomics.what.starts_with("directly on 1 registration"), "{:?}", pairs[0].atomics);
    let text = explain::text(&survey, true);
    assert_eq!(text.matches("\n  atomics  ").count(), 4, "{text}");
    // Nothing registered, or nothing but for reads.
    let mut survey = survey;
    for range in &mut survey.members[0].registrations[1].ranges {
        range.access = isthmus_region::registrations::WRITE;
    }
    let pair = explain::pairs(&survey, false).remove(0);
    assert!(pair.rma.what.starts_with("writes directly") && pair.atomics.what == "by messages", "{pair:?}");
    assert!(pair.atomics.why.contains("the target does them alone"), "{pair:?}");
    survey.members[0].registrations[1].ranges.clear();
    let pair = explain::pairs(&survey, false).remove(0);
    assert!(pair.rma.what.starts_with("by messages") && pair.atomics.what.starts_with("by messages"));
    assert!(pair.rma.why.contains("none of the memory"), "{pair:?}");
}

/// A random generator that is determined by its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }
}

#[test]
fn no_bytes_make_a_survey_panic_or_loop() {
    let mut job = job(4);
    for (from, to) in [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)] {
        job.send(from, to, 70, 8);
        job.send(from, to, 2, 100_000);
    }
    let bytes = job.bytes();
    let (reader, whole) = memory(&bytes);
    let used: Vec<u64> =
        (0..REGION / 8).map(|i| i * 8).filter(|at| whole.word("t", *at).unwrap().get() != 0).collect();
    let seed = 0x1234_5678_9abc_def1;
    let mut random = Random(seed);
    let mut detected = 0;
    let limit = Instant::now() + Duration::from_secs(20);
    let mut rounds = 0;
    while rounds < 2000 && Instant::now() < limit {
        rounds += 1;
        // A few words, most of them plausible; or a whole line of noise.
        let mut changed = Vec::new();
        for _ in 0..=random.below(4) {
            let at = match random.below(8) {
                0 => random.below(REGION / 8) * 8,
                1 => random.below(1024) * 8,
                _ => used[usize::try_from(random.below(used.len() as u64)).unwrap()],
            };
            let old = whole.word("t", at).unwrap().get();
            let new = match random.below(5) {
                0 => random.next(),
                1 => old ^ (1 << random.below(64)),
                2 => old.wrapping_add(64),
                3 => whole
                    .word("t", used[usize::try_from(random.below(used.len() as u64)).unwrap()])
                    .unwrap()
                    .get(),
                _ => random.next() % REGION,
            };
            whole.word("t", at).unwrap().set(new);
            changed.push((at, old));
        }
        let begin = Instant::now();
        let found = look(&reader, Depth::Slots).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(60), "seed {seed:#x}, round {rounds}");
        detected += u32::from(!found.faults.is_empty());
        for (at, old) in changed.into_iter().rev() {
            whole.word("t", at).unwrap().set(old);
        }
    }
    assert!(rounds > 200 && detected > rounds / 20, "{detected} of {rounds} were noticed");
    assert!(look(&reader, Depth::Slots).unwrap().faults.is_empty());
    // All bytes at once, except those that identify a region.
    for fill in 0..20 {
        for at in (64..REGION / 8).map(|i| i * 8) {
            let value = if fill < 10 { random.next() } else { random.next() % REGION / 64 * 64 };
            whole.word("t", at).unwrap().put(value);
        }
        let begin = Instant::now();
        look(&reader, Depth::Slots).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(20), "seed {seed:#x}, fill {fill}");
    }
}

#[test]
fn a_file_that_was_cut_or_is_something_else_is_an_error() {
    let job = job(1);
    let bytes = job.bytes();
    for len in [0, 1, 127, 4096, 1 << 20, bytes.len() / 2, bytes.len() - 1] {
        let found = check(&file(&bytes[..len])).unwrap();
        assert!(!found.faults.is_empty(), "{len} bytes");
    }
    let found = check(&file(&vec![b'x'; 2 << 20])).unwrap();
    assert_eq!(found.faults.list[0].field, "header.MAGIC");
    // Cut while it is being read: an error, not a signal.
    let cut = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(cut.path(), &bytes).unwrap();
    let reader = Reader::new(std::fs::File::open(cut.path()).unwrap().into()).unwrap();
    cut.as_file().set_len(8192).unwrap();
    assert!(check(&reader).is_err());
}
