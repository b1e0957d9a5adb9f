//! A process gets the files of a region from its service, each when it first uses it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use isthmus_attach::client;
use isthmus_attach::server::{Allowed, Config, Relay, Server};
use isthmus_region::address::Naming;
use isthmus_region::holds::{Hold, Owner};
use isthmus_region::membership::{self, NewPeer, Region, Shape};
use isthmus_region::source::{Source, read_only};
use isthmus_region::{Error, Mapping, Result, directory};

const PEERS: u32 = 1024;
const FIRST: u64 = 16 << 20;
const OTHER: u64 = 1 << 20;

/// The first file, and one memfd in place of the files of all peers but the first.
#[derive(Debug)]
struct Files {
    first: OwnedFd,
    others: OwnedFd,
    /// Areas of which nobody writes to the pages any more.
    settled: Mutex<Vec<u32>>,
}

impl Source for Files {
    fn settle(&self, area: u32) {
        self.settled.lock().unwrap().push(area);
    }

    fn bytes(&self) -> u64 {
        FIRST
    }

    fn file(&self, index: u32) -> Result<OwnedFd> {
        if index == 0 {
            return Ok(self.first.try_clone().unwrap());
        }
        let missing = Error::NoFile { file: index, reason: "a test" };
        (1..PEERS).contains(&index).then(|| read_only(&self.others).unwrap()).ok_or(missing)
    }
}

struct World {
    dir: tempfile::TempDir,
    _server: Server,
    files: Arc<Files>,
}

impl World {
    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }
}

/// A region whose peer 0 has its section in the first file, and each other peer in one of its own.
fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    let first = isthmus_region::create::memory(FIRST).unwrap();
    let others = isthmus_region::create::memory(OTHER).unwrap();
    let shape = Shape::new(FIRST, [1, 2], PEERS, 16).unwrap().with_files(PEERS, 0).unwrap();
    let map = Mapping::map(first.as_fd(), FIRST).unwrap();
    let lengths = vec![OTHER; PEERS as usize - 1];
    let files = Arc::new(Files { first, others, settled: Mutex::default() });
    let source = Arc::clone(&files) as Arc<dyn Source>;
    let mut host = membership::Writer::create_from(&map, &shape, 1, &lengths, None).unwrap();
    for index in 0..PEERS {
        let (section, section_bytes) = match index {
            0 => (shape.first_section(), 8 << 20),
            _ => (0, OTHER),
        };
        host.add(index, &NewPeer { file: index, section, section_bytes, is_vm: false, name: "p" }).unwrap();
        host.activate(index, Naming::of_test(index).system).unwrap();
    }
    let config = Config {
        path: dir.path().join("socket"),
        mode: 0o600,
        group: None,
        allowed: Allowed::Users(vec![rustix::process::getuid().as_raw()]),
        source,
        uuid: shape.uuid,
        peer: 0,
        incarnation: 1,
        host_name: "p".into(),
        area_bytes: 64 << 10,
        relay: Relay::default(),
        names: None,
        door: None,
        driver: None,
        is_urgent: false,
    };
    let writer = directory::Writer::create(host.region(), 0, Naming::of_test(0)).unwrap();
    let server = Server::start(config, writer, Box::new(|_| {})).unwrap();
    World { dir, _server: server, files }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn read(region: &Region, index: u32) -> Result<u64> {
    let section = region.section(&region.peer(index)?.unwrap())?;
    Ok(section.word("test", 64)?.get())
}

/// One after the other: both count the descriptors of this process.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: OnceLock<Mutex<()>> = OnceLock::new();
    ALONE.get_or_init(Mutex::default).lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn sections_of_a_thousand_peers_cost_no_descriptors_and_cannot_be_written() {
    let _alone = alone();
    let world = world();
    let others = Mapping::map(world.files.others.as_fd(), OTHER).unwrap();
    others.whole().unwrap().word("test", 64).unwrap().set(99);
    let member = client::connect_at(&world.socket()).unwrap();
    let region = member.region();
    let before = descriptors();
    for index in 1..PEERS {
        assert_eq!(read(region, index).unwrap(), 99);
    }
    // The service is of this process, too, and closes its copy of the last file a moment after it has sent it.
    let until = Instant::now() + Duration::from_secs(10);
    while descriptors() > before && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(descriptors(), before);
    let peer = region.peer(7).unwrap().unwrap();
    assert!(matches!(region.own_section(&peer), Err(Error::ReadOnly)));
    assert!(region.own_section(&region.peer(0).unwrap().unwrap()).is_ok());
}

#[test]
fn a_process_that_has_detached_keeps_what_it_mapped_and_gets_no_more() {
    let _alone = alone();
    let world = world();
    let member = client::connect_at(&world.socket()).unwrap();
    let region = member.region().clone();
    read(&region, 1).unwrap();
    drop(member);
    assert_eq!(read(&region, 1).unwrap(), 0);
    assert!(matches!(read(&region, 2), Err(Error::NoFile { file: 2, .. })));
}

#[test]
fn pages_that_a_process_kept_are_let_go_once_nobody_is_at_work_in_its_memory() {
    let _alone = alone();
    let world = world();
    let [gone, other] = [(); 2].map(|()| client::connect_at(&world.socket()).unwrap());
    let block = other.take(128).unwrap();
    other.section().zero("block", block, 128).unwrap();
    other.service().open_endpoint(block).unwrap();
    let hold = Hold::of(other.section(), block).unwrap();
    let area = gone.grant().area;
    let settled = || world.files.settled.lock().unwrap().clone();
    hold.take(Owner::new(0, area));
    drop(gone);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(settled(), [], "a process is writing there");
    hold.release();
    let until = Instant::now() + Duration::from_secs(10);
    while settled().is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(settled(), [area]);
}

#[test]
fn observers_get_each_file_to_read() {
    let _alone = alone();
    let world = world();
    let observe = |file| client::observe_file_at(&world.socket(), file, Duration::from_secs(10));
    for (file, bytes) in [(0, FIRST), (1, OTHER), (PEERS - 1, OTHER)] {
        let fd = observe(file).unwrap().region;
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_size, i64::try_from(bytes).unwrap());
        assert!(Mapping::map(fd.as_fd(), bytes).is_err(), "it can be written");
    }
    assert!(matches!(observe(PEERS), Err(isthmus_attach::Error::Refused { .. })));
}
