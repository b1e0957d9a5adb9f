//! A service that may open no more descriptors. It has a process of its own, since others would find none either.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isthmus_host::{Config, Event, Service, Vm};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn a_vm_that_finds_no_descriptor_is_told_which_limit_that_is() {
    let dir = tempfile::tempdir().unwrap();
    let (send, events) = std::sync::mpsc::channel();
    let send = Mutex::new(send);
    let config = Config {
        vectors: 2,
        vms: vec![Vm { name: "red".into(), ranks: 1 }],
        ..Config::new(dir.path(), 32 << 20)
    };
    let service = Service::start(config, Arc::new(move |e| drop(send.lock().unwrap().send(e.clone()))));
    let service = service.unwrap();
    let socket = || {
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
    };
    let qemus = [socket(), socket()];
    // All lower numbers are taken, so that the limit says how many are left.
    let last = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let last = last.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()).max().unwrap();
    let mut taken: Vec<OwnedFd> = Vec::new();
    while taken.last().is_none_or(|fd| fd.as_raw_fd() <= last) {
        taken.push(socket());
    }
    let most = u64::try_from(taken.last().unwrap().as_raw_fd()).unwrap() + 1;
    let before = getrlimit(Resource::Nofile);
    let at = SocketAddrUnix::new(service.ivshmem_socket_of("red").unwrap()).unwrap();
    // One is for the connection, and none for its bells; then there is none even for that.
    for (left, what) in [(1, "cannot create an eventfd"), (0, "cannot accept a VM")] {
        setrlimit(Resource::Nofile, Rlimit { current: Some(most + left), ..before }).unwrap();
        rustix::net::connect(&qemus[usize::try_from(left).unwrap()], &at).unwrap();
        let event = events.recv_timeout(Duration::from_secs(2));
        setrlimit(Resource::Nofile, before).unwrap();
        let (Event::VmRefused { reason } | Event::Trouble { reason }) = event.unwrap() else {
            panic!("it is let in");
        };
        assert!(reason.contains(what) && reason.contains("Too many open files"), "{reason}");
        assert!(reason.contains("raise the limit (ulimit -n)"), "{reason}");
    }
}
