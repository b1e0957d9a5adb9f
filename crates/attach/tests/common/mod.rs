//! A service over a region of one peer, for tests of what it answers.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use isthmus_attach::server::{Allowed, Config, Event, Relay, Server};
use isthmus_region::address::Naming;
use isthmus_region::membership::{self, NewPeer, Shape};
use isthmus_region::source::{OneFile, Source};
use isthmus_region::{Mapping, directory};

const BYTES: u64 = 16 << 20;

/// Serves at `path`, and tells `tell` what happens.
pub(crate) fn serve(path: &Path, allowed: Allowed, tell: impl Fn(&Event) + Send + Sync + 'static) -> Server {
    let memory = isthmus_region::create::memory(BYTES).unwrap();
    let shape = Shape::new(BYTES, [1, 2], 1, 16).unwrap();
    let map = Mapping::map(memory.as_fd(), BYTES).unwrap();
    let mut host = membership::Writer::create(&map, &shape, 1).unwrap();
    let new =
        NewPeer { file: 0, section: shape.first_section(), section_bytes: 8 << 20, is_vm: false, name: "p" };
    host.add(0, &new).unwrap();
    host.activate(0, Naming::of_test(0).system).unwrap();
    let source: Arc<dyn Source> = Arc::new(OneFile::new(memory, BYTES));
    let config = Config {
        path: path.to_path_buf(),
        mode: 0o666,
        group: None,
        allowed,
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
    Server::start(config, writer, Box::new(tell)).unwrap()
}
