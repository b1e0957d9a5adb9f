// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A region of several files, whose sections this process may only read.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use isthmus_inspect::survey::{Depth, look};
use isthmus_region::address::Naming;
use isthmus_region::directory::{Directory, Writer};
use isthmus_region::mapping::Mapping;
use isthmus_region::membership::{self, NewPeer, Region, Shape};
use isthmus_region::reader::Reader;
use isthmus_region::source::{Source, read_only};
use isthmus_region::{Error, Result};

use crate::input::Input;

const BYTES: u64 = 1 << 20;
const PEERS: u32 = 2;
/// The first has the tables, the next the shared section, the others a peer's section each.
const FILES: u32 = 2 + PEERS;

/// The files, to be written by a service or only read.
#[derive(Debug)]
struct Files {
    all: Vec<OwnedFd>,
    writable: bool,
}

impl Source for Files {
    fn bytes(&self) -> u64 {
        BYTES
    }

    fn file(&self, index: u32) -> Result<OwnedFd> {
        let file = usize::try_from(index).ok().and_then(|index| self.all.get(index));
        let file = file.ok_or(Error::NoFile { file: index, reason: "there is none" })?;
        Ok(if self.writable { copy(file) } else { read_only(file).expect("it is memory") })
    }
}

fn copy(file: &OwnedFd) -> OwnedFd {
    file.try_clone().expect("a descriptor")
}

thread_local! {
    static FILES_OF_ALL: Vec<OwnedFd> =
        (0..FILES).map(|_| isthmus_region::create::memory(BYTES).expect("memory for a small file")).collect();
}

fn files(writable: bool) -> Arc<Files> {
    FILES_OF_ALL.with(|all| Arc::new(Files { all: all.iter().map(copy).collect(), writable }))
}

/// Anybody may have written the words of any file.
pub(crate) fn files_of_a_region(input: &mut Input<'_>) {
    let is_empty = input.is_empty();
    let own = files(true);
    let map = Mapping::map(own.all[0].as_fd(), BYTES).expect("it can be mapped");
    let shape = Shape::new(BYTES, [7, 8], PEERS, 16).and_then(|shape| shape.with_shared(1 << 18, 4));
    let shape = shape.and_then(|shape| shape.with_files(FILES, 1)).expect("a good shape");
    let lengths = [BYTES; FILES as usize - 1];
    let source = Arc::clone(&own) as Arc<dyn Source>;
    let mut host = membership::Writer::create_from(&map, &shape, 1, &lengths, Some(source)).expect("it fits");
    for (index, name) in (0..).zip(["one", "two"]) {
        let new = NewPeer { file: 2 + index, section: 0, section_bytes: BYTES, is_vm: false, name };
        host.add(index, &new).expect("there is a place");
        let mut writer =
            Writer::create(host.region(), index, Naming::of_test(index)).expect("it is large enough");
        writer.open_area(16 << 10, 1, "fuzz").expect("there is room");
        host.activate(index, Naming::of_test(index).system).expect("in the table");
    }
    let reads = files(false);
    let first = Mapping::as_opened(reads.file(0).expect("there is one").as_fd(), BYTES)
        .expect("it has so many bytes");
    let region =
        Region::open_from(&first, Some(Arc::clone(&reads) as Arc<dyn Source>)).expect("a good region");
    // Some views are there before anything is wrong.
    let early =
        region.peer(0).ok().flatten().and_then(|peer| region.section(&peer).ok()).expect("a good section");
    let views: Vec<_> = own
        .all
        .iter()
        .map(|file| Mapping::map(file.as_fd(), BYTES).and_then(|map| map.whole()).expect("it can be mapped"))
        .collect();
    while !input.is_empty() {
        let view = &views[usize::from(input.byte()) % views.len()];
        // The header and file table, the membership table, or anywhere.
        let base = match input.below(3) {
            0 => 0,
            1 => shape.file_table() & !0xff,
            _ => u64::from(input.short()) << 4,
        };
        let at = (base + u64::from(input.short() % 512) * 8) % BYTES;
        view.word("any", at).expect("inside").set(input.number());
    }
    let mut reader = Reader::new(reads.file(0).expect("there is one")).expect("it can be read");
    for index in 1..FILES {
        reader.add(reads.file(index).expect("there is one")).expect("it can be read");
    }
    let found = look(&reader, Depth::Slots).expect("memory can be read");
    if is_empty {
        assert!(found.faults.is_empty(), "{:?}", found.faults);
        assert!(found.survey.expect("it is a region").members.iter().all(|m| m.processes.len() == 1));
    }
    // The first file alone, as it may be found somewhere.
    let _ = look(&Reader::new(reads.file(0).expect("there is one")).expect("it can be read"), Depth::Slots);
    for region in
        [Ok(region.clone()), Region::open_from(&first, Some(reads as Arc<dyn Source>))].into_iter().flatten()
    {
        for peer in region.peers() {
            let Ok(section) = region.section(&peer) else { continue };
            assert!(section.len() <= BYTES);
            assert!(
                matches!(region.own_section(&peer), Err(Error::ReadOnly)),
                "memory that is mapped for reading"
            );
            if let Ok(directory) = Directory::open(&section, region.shape(), peer.life.incarnation) {
                let _ = (directory.totals(), directory.endpoints());
            }
        }
        assert!(region.shared().is_err(), "it is mapped for reading, too");
    }
    // From then on there is nothing, and nothing is mapped any more.
    region.retire().expect("there are pages");
    assert!(region.is_retired() && !region.is_still_there());
    assert_eq!(early.read("any", 0).expect("inside").get(), 0);
    assert!(region.peers().is_empty());
}
