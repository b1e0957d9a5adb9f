// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fixed tables: header, membership, directories, areas, counters.

use std::os::fd::AsFd;
use std::sync::Arc;

use isthmus_inspect::survey::{Depth, look};
use isthmus_region::address::Naming;
use isthmus_region::counters::Counters;
use isthmus_region::directory::{Directory, Writer, bury};
use isthmus_region::extent::Heap;
use isthmus_region::format::{SECTION_ALIGN, block, counters, registration, registrations};
use isthmus_region::life::{Life, State};
use isthmus_region::mapping::{Mapping, Section};
use isthmus_region::membership::{self, NewPeer, Region, Shape};
use isthmus_region::reader::Reader;
use isthmus_region::registrations::{READ, WRITE};

use crate::files::files_of_a_region;
use crate::input::Input;

const BYTES: u64 = 2 << 20;
const SECTION: u64 = 512 << 10;

thread_local! {
    /// Made once: what costs is the system call, not the writing.
    static MEMORY: (Arc<Mapping>, Reader) = {
        let fd = isthmus_region::create::memory(BYTES).expect("memory for a small region");
        let map = Mapping::map(fd.as_fd(), BYTES).expect("the memory can be mapped");
        (map, Reader::new(fd).expect("the memory can be read"))
    };
}

/// An endpoint's block at `at`, and behind it what others reach without messages.
fn register(section: &Section, at: u64) -> isthmus_region::Result<()> {
    let (table, chunk, window) = (at + 128, at + 192, at + 4096);
    let put = |at, value| section.word("any", at).map(|w| w.set(value));
    put(at + block::REGISTRATIONS, table)?;
    put(table + registrations::FIRST, chunk)?;
    put(table + registrations::VERSION, 2)?;
    for number in 0..2 {
        let entry = chunk + 64 + number * registration::BYTES;
        put(entry + registration::KEY, number)?;
        put(entry + registration::OFFSET, window + 256 * number)?;
        put(entry + registration::LENGTH, 512)?;
        put(entry + registration::ACCESS, READ | WRITE)?;
        put(entry + registration::LIFE, Life { incarnation: 1, state: State::Active }.pack())?;
    }
    Ok(())
}

/// A region of two peers, the words of which anybody may have written.
pub fn region(data: &[u8]) {
    let map = MEMORY.with(|(map, _)| Arc::clone(map));
    let mut input = Input(data);
    let shape = Shape::new(BYTES, [7, 8], 2, 16).expect("a good shape");
    let mut host = membership::Writer::create(&map, &shape, 1).expect("the region is large enough");
    let mut writers = Vec::new();
    for i in 0..2 {
        let section = shape.host_bytes.next_multiple_of(SECTION) + u64::from(i) * SECTION;
        let new = NewPeer { file: 0, section, section_bytes: SECTION, is_vm: false, name: "peer" };
        host.add(i, &new).expect("there is a place");
        let info = host.region().peer(i).expect("in the table").expect("just added");
        let section = host.region().own_section(&info).expect("in the region");
        // The second has a pool of pages, too.
        let pages = u64::from(i) * SECTION_ALIGN;
        let mut writer =
            Writer::create_with_pages(host.region(), i, Naming::of_test(i), pages).expect("large enough");
        let area = writer.open_area(16 << 10, 1, "fuzz").expect("there is room");
        let at = area.first.offset + counters::BYTES;
        writer.open_endpoint(area.area, at, 1).expect("there is a slot");
        register(&section, at).expect("the area is large enough");
        host.activate(i, Naming::of_test(i).system).expect("in the table");
        writers.push((writer, section, area));
    }
    let whole = map.whole().expect("mapped to be written");
    while !input.is_empty() {
        // The header, the membership table, the sections' first tables, or anywhere.
        let base = match input.below(4) {
            0 => 0,
            1 => 4096,
            2 => SECTION * (1 + u64::from(input.below(2))),
            _ => u64::from(input.short()) << 4,
        };
        let at = (base + u64::from(input.short() % 8192) * 8) % BYTES;
        let value = input.number();
        whole.word("any", at).expect("inside").set(value);
    }
    // Who looks from outside finds faults, and nothing else.
    let found = MEMORY.with(|(_, reader)| look(reader, Depth::Slots).expect("memory can be read"));
    if data.is_empty() {
        // As it is made, but that both peers have one name.
        assert!(found.faults.list.iter().all(|f| f.field == "peer.NAME"), "{:?}", found.faults);
        let survey = found.survey.expect("it is a region");
        assert!(survey.members.iter().all(|m| m.registrations.iter().all(|r| r.ranges.len() == 2)));
        assert!(survey.members.iter().all(|m| m.registrations.len() == 1));
    }
    // Readers: every answer is allowed that is one.
    if let Ok(region) = Region::open(&map) {
        let _ = (region.generation(), region.service(), Region::is_there(&map));
        for peer in region.peers() {
            let Ok(section) = region.section(&peer) else { continue };
            let own = region.own_section(&peer).expect("mapped to be written");
            assert!(section.len() <= BYTES && own.zero("all", 0, 0).is_ok());
            let _ = region.life_line(peer.index);
            if let Ok(directory) = Directory::open(&section, region.shape(), peer.life.incarnation) {
                let _ = (directory.generation(), directory.heap_used(), directory.totals());
                assert!(directory.endpoints_high() <= region.shape().endpoints);
                for (_, endpoint) in directory.endpoints() {
                    let _ = section.line("block", endpoint.block);
                    let _ = Counters::at(&own, endpoint.area);
                }
                let _ = directory.activity(u32::try_from(input.number() & 0xffff_ffff).unwrap_or(0));
            }
            let _ = bury(&own, region.shape());
        }
    }
    // Writers trust what they keep for themselves, and nothing that they wrote.
    for (i, (writer, section, area)) in (0..).zip(&mut writers) {
        let used = writer.directory().section().len();
        assert_eq!(used, section.len());
        let heap_end = used - i * SECTION_ALIGN;
        let grown = writer.grow_area(area.area, 16 << 10);
        if let Ok(extent) = grown {
            assert!(extent.offset + extent.bytes <= heap_end, "an extent beyond the heap");
        }
        let gone = writer.close_area(area.area).expect("the area is granted");
        assert_eq!(gone, [0]);
        let again = writer.open_area(16 << 10, 2, "fuzz").expect("there is room again");
        // An area that somebody claims to be writing to is not used again yet; another one has lives of its own.
        let same = again.area == area.area;
        assert!(!same || again.incarnation > area.incarnation, "an incarnation came back");
    }
    heap(&mut Input(data));
    files_of_a_region(&mut Input(data));
}

/// The heap, asked for anything: it never grants twice what is granted, nor anything outside of it.
fn heap(input: &mut Input<'_>) {
    let mut heap = Heap::new(64 << 10, 1 << 20, u64::from(input.byte()));
    let mut granted: Vec<isthmus_region::extent::Extent> = Vec::new();
    for _ in 0..64 {
        if input.below(3) == 0 && !granted.is_empty() {
            let at = usize::from(input.byte()) % granted.len();
            heap.give(granted.swap_remove(at));
        } else if let Some(new) = heap.take(input.number()) {
            assert!(new.offset >= 64 << 10 && new.offset + new.bytes <= (64 << 10) + (1 << 20), "outside");
            for old in &granted {
                let apart = new.offset + new.bytes <= old.offset || old.offset + old.bytes <= new.offset;
                assert!(apart || new.bytes == 0 || old.bytes == 0, "granted twice");
            }
            granted.push(new);
        }
    }
    for extent in granted {
        heap.give(extent);
    }
    assert_eq!(heap.used(), 0, "something of the heap is lost");
}
