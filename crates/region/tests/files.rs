//! A region whose sections lie in several files: which of them are mapped, when, and what is refused.

#![allow(clippy::disallowed_types)] // orderings of the test's own threads

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use isthmus_region::format::{SECTION_ALIGN, file, header, peer};
use isthmus_region::membership::{NewPeer, Region, Shape, Writer};
use isthmus_region::place::{Place, SHARED};
use isthmus_region::source::{OneFile, Source};
use isthmus_region::{Error, Mapping, Result};

const BYTES: u64 = 1 << 20;
/// The file of the shared section; those of peers follow.
const SHARED_FILE: u32 = 1;
const PEERS: u32 = 3;

/// Files by number, and how often each was asked for.
#[derive(Debug, Default)]
struct Given {
    files: Mutex<Vec<OwnedFd>>,
    asked: AtomicU32,
    reads_only: Option<u32>,
}

impl Source for Given {
    fn bytes(&self) -> u64 {
        BYTES
    }

    fn file(&self, index: u32) -> Result<OwnedFd> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let files = self.files.lock().unwrap();
        let fd = files.get(index as usize).ok_or(Error::NoFile { file: index, reason: "a test" })?;
        // Any but the own peer's and the shared one.
        Ok(match self.reads_only.is_some_and(|own| index != own && index != SHARED_FILE) {
            true => for_reading(fd),
            false => fd.try_clone().unwrap(),
        })
    }
}

fn for_reading(fd: &OwnedFd) -> OwnedFd {
    use std::os::fd::AsRawFd;
    std::fs::File::open(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap().into()
}

fn file_of(peer: u32) -> u32 {
    SHARED_FILE + 1 + peer
}

struct World {
    files: Vec<OwnedFd>,
    host: Writer,
}

impl World {
    fn new() -> Self {
        let files: Vec<OwnedFd> =
            (0..file_of(PEERS)).map(|_| isthmus_region::create::memory(BYTES).unwrap()).collect();
        let shape = Shape::new(BYTES, [1, 2], PEERS, 16).unwrap();
        let shape = shape.with_shared(4 * SECTION_ALIGN, 4).unwrap();
        let shape = shape.with_files(file_of(PEERS), SHARED_FILE).unwrap();
        let map = Mapping::map(files[0].as_fd(), BYTES).unwrap();
        let source = Given { files: Mutex::new(copies(&files)), ..Given::default() };
        let others = vec![BYTES; files.len() - 1];
        assert!(Writer::create_from(&map, &shape, 1, &others[1..], None).is_err(), "a length is missing");
        let mut host = Writer::create_from(&map, &shape, 1, &others, Some(Arc::new(source))).unwrap();
        for index in 0..PEERS {
            let (file, section_bytes) = (file_of(index), BYTES);
            host.add(index, &NewPeer { file, section: 0, section_bytes, is_vm: false, name: "peer" })
                .unwrap();
        }
        Self { files, host }
    }

    /// The region as a process of peer `own` has it: all but its own section and the shared one to read only.
    fn opened_by(&self, own: u32) -> (Region, Arc<Given>) {
        let source = Given {
            files: Mutex::new(copies(&self.files)),
            reads_only: Some(file_of(own)),
            ..Given::default()
        };
        let source = Arc::new(source);
        let map = Mapping::as_opened(for_reading(&self.files[0]).as_fd(), BYTES).unwrap();
        (Region::open_from(&map, Some(Arc::clone(&source) as Arc<dyn Source>)).unwrap(), source)
    }

    /// Changes a word of the first file.
    fn put(&self, at: u64, value: u64) {
        let map = Mapping::map(self.files[0].as_fd(), BYTES).unwrap();
        map.whole().unwrap().word("test", at).unwrap().set(value);
    }

    fn put_peer(&self, index: u32, field: u64, value: u64) {
        self.put(4096 + u64::from(index) * peer::BYTES + field, value);
    }
}

fn copies(files: &[OwnedFd]) -> Vec<OwnedFd> {
    files.iter().map(|fd| fd.try_clone().unwrap()).collect()
}

fn info(region: &Region, index: u32) -> isthmus_region::membership::PeerInfo {
    region.peer(index).unwrap().unwrap()
}

#[test]
fn a_device_says_no_length_and_is_as_long_as_it_can_be_mapped() {
    // As a DAX device, this one has a size of 0, and cannot become shorter.
    let device = OneFile::new(
        std::fs::File::options().read(true).write(true).open("/dev/zero").unwrap().into(),
        BYTES,
    );
    assert_eq!(Mapping::of(&device).unwrap().len(), BYTES);
    assert!(matches!(device.file(1), Err(Error::NoFile { file: 1, .. })));
    let empty =
        OneFile::new(rustix::fs::memfd_create("empty", rustix::fs::MemfdFlags::CLOEXEC).unwrap(), BYTES);
    assert!(matches!(Mapping::of(&empty), Err(Error::WrongSize { found: 0, .. })));
}

#[test]
fn each_file_is_mapped_once_and_when_it_is_first_used() {
    let world = World::new();
    let (region, source) = world.opened_by(0);
    assert_eq!(source.asked.load(Ordering::Relaxed), 0);
    let own = region.own_section(&info(&region, 0)).unwrap();
    own.word("test", 64).unwrap().set(7);
    let seen = world.host.region().section(&info(world.host.region(), 0)).unwrap();
    assert_eq!(seen.word("test", 64).unwrap().get(), 7);
    let again = region.clone();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| again.section(&info(&again, 1)).unwrap());
        }
    });
    assert_eq!(source.asked.load(Ordering::Relaxed), 2);
}

#[test]
fn only_the_own_section_and_the_shared_one_can_be_written() {
    let world = World::new();
    let (region, _) = world.opened_by(1);
    assert!(region.own_section(&info(&region, 1)).is_ok());
    assert!(matches!(region.own_section(&info(&region, 0)), Err(Error::ReadOnly)));
    region.shared().unwrap().word("test", 8).unwrap().set(5);
    let place = Place::new(SHARED, 8).unwrap();
    assert_eq!(world.host.region().at("test", place, 8).unwrap().word("test", 0).unwrap().get(), 5);
    let place = Place::of_peer(2).unwrap();
    assert!(matches!(region.at("test", place, 8).unwrap().writable(), Err(Error::ReadOnly)));
}

#[test]
fn sections_outside_of_their_file_are_refused() {
    let world = World::new();
    let (region, source) = world.opened_by(0);
    let fails = |index| region.section(&info(&region, index)).unwrap_err();
    world.put_peer(1, peer::FILE, file_of(PEERS).into());
    assert!(matches!(fails(1), Error::Invalid { what: "file", .. }));
    world.put_peer(1, peer::FILE, file_of(1).into());
    world.put_peer(1, peer::SECTION, 64);
    assert!(matches!(fails(1), Error::Invalid { what: "section offset", .. }));
    world.put_peer(1, peer::SECTION, SECTION_ALIGN);
    assert!(matches!(fails(1), Error::OutOfBounds { .. }));
    world.put_peer(1, peer::SECTION, u64::MAX - SECTION_ALIGN + 1);
    assert!(matches!(fails(1), Error::OutOfBounds { .. }));
    world.put_peer(1, peer::SECTION, 0);
    world.put_peer(1, peer::SECTION_BYTES, BYTES - 4096);
    assert!(matches!(fails(1), Error::Invalid { what: "bytes of a section", .. }));
    world.put_peer(1, peer::SECTION_BYTES, BYTES);
    // Where the host section is, and where the shared one is.
    world.put_peer(1, peer::SECTION, 0);
    for file in [0, SHARED_FILE] {
        world.put_peer(1, peer::FILE, file.into());
        assert!(matches!(fails(1), Error::Invalid { what: "section offset", .. }));
    }
    // A length that the file does not have, and none.
    let at = region.shape().file_table() + u64::from(file_of(2)) * file::BYTES + file::LENGTH;
    world.put(at, 2 * BYTES);
    assert!(matches!(fails(2), Error::WrongSize { found: BYTES, expected } if expected == 2 * BYTES));
    world.put(at, 0);
    assert!(matches!(fails(2), Error::NoFile { .. }));
    // What failed can be tried again.
    world.put(at, BYTES);
    assert!(region.section(&info(&region, 2)).is_ok());
    // A file that could become shorter under the mapping.
    source.files.lock().unwrap()[file_of(0) as usize] = tempfile::tempfile().unwrap().into();
    assert!(matches!(fails(0), Error::NoFile { .. }));
}

#[test]
fn headers_that_place_the_shared_section_or_the_files_wrongly_are_refused() {
    let world = World::new();
    let map = Mapping::map(world.files[0].as_fd(), BYTES).unwrap();
    let files = u64::from(file_of(PEERS));
    for (at, value, good) in [
        (header::FILES, 0, files | 1 << 32),
        (header::FILES, files, files | 1 << 32),
        (header::FILES, files | files << 32, files | 1 << 32),
        (header::FILE_TABLE, 4096, world.host.region().shape().file_table()),
        (header::SHARED, 64, 0),
        (header::SHARED_BYTES, 4096, 4 * SECTION_ALIGN),
        (header::SECTION_ALIGN, 0, SECTION_ALIGN),
        (header::SECTION_ALIGN, SECTION_ALIGN / 2, SECTION_ALIGN),
        (header::SECTION_ALIGN, SECTION_ALIGN * 3, SECTION_ALIGN),
        (header::SECTION_ALIGN, 4 << 20, SECTION_ALIGN),
        // Good by itself, and the host section ends at no multiple of it.
        (header::SECTION_ALIGN, 2 << 20, SECTION_ALIGN),
    ] {
        assert!(Region::open(&map).is_ok());
        world.put(at, value);
        let opened = Region::open(&map);
        assert!(opened.is_err(), "{at}: {value:#x}");
        world.put(at, good);
    }
    // Without a source, what lies in the first file can be read.
    let region = Region::open(&map).unwrap();
    assert!(matches!(region.section(&info(&region, 0)), Err(Error::NoFile { .. })));
    assert!(matches!(region.shared(), Err(Error::NoFile { .. })));
}

#[test]
fn a_region_that_is_retired_reads_as_zeros_in_every_file_and_maps_no_other() {
    let world = World::new();
    let (region, source) = world.opened_by(0);
    let own = region.own_section(&info(&region, 0)).unwrap();
    let other = region.section(&info(&region, 1)).unwrap();
    let last = info(&region, 2);
    let first = region.peer(0).unwrap().unwrap();
    assert_eq!(first.index, 0);
    own.word("test", 64).unwrap().set(7);
    let theirs = world.host.region().section(&info(world.host.region(), 1)).unwrap();
    theirs.writable().unwrap().word("test", 64).unwrap().set(8);
    assert_eq!(other.word("test", 64).unwrap().get(), 8);
    let asked = source.asked.load(Ordering::Relaxed);
    region.retire().unwrap();
    assert_eq!([own.word("test", 64).unwrap().get(), other.word("test", 64).unwrap().get()], [0, 0]);
    own.word("test", 64).unwrap().set(9);
    assert_eq!(
        world.host.region().section(&info(world.host.region(), 0)).unwrap().word("test", 64).unwrap().get(),
        7
    );
    assert!(matches!(region.section(&last), Err(Error::NoFile { .. })));
    assert_eq!(source.asked.load(Ordering::Relaxed), asked);
}
