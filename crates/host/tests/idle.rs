//! A host service with nothing to do does nothing. Alone in its program, as it counts what threads do.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use isthmus_host::{Config, Service, Vm};

/// How often each thread of this program has slept, by its number and name.
fn sleeps() -> BTreeMap<String, u64> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let of = |folder: std::path::PathBuf| {
        let status = fs::read_to_string(folder.join("status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name))?;
            Some(line.split_whitespace().nth(1)?.to_owned())
        };
        let count = field("voluntary_ctxt_switches:")?.parse().ok()?;
        Some((format!("{} {}", field("Pid:")?, field("Name:")?), count))
    };
    tasks.filter_map(|task| of(task.path())).collect()
}

#[test]
fn an_idle_service_sleeps() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config { host_name: "host".into(), ..Config::new(dir.path(), 16 << 20) };
    config.vms = ["red", "blue"].map(|name| Vm { name: name.into(), ranks: 1 }).into();
    let service = Service::start(config, Arc::new(|_| ())).unwrap();
    // One VM boots and takes its time, the other never comes. A process of the host is attached.
    let _device = UnixStream::connect(service.ivshmem_socket()).unwrap();
    let _port = OwnedFd::from(UnixStream::connect(service.wake_socket()).unwrap());
    let _process = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    // Until all is done that these began.
    let mut before = sleeps();
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(200));
        let last = std::mem::replace(&mut before, sleeps());
        let of_service = |counts: &BTreeMap<String, u64>| -> Vec<_> {
            counts.clone().into_iter().filter(|(thread, _)| thread.contains("isthmus")).collect()
        };
        if of_service(&last) == of_service(&before) {
            break;
        }
    }
    std::thread::sleep(Duration::from_secs(2));
    let after = sleeps();
    let mut services = 0;
    for (thread, count) in &after {
        if thread.contains("isthmus") {
            services += 1;
            assert_eq!(Some(count), before.get(thread), "{thread} had something to do: {after:?}");
        }
    }
    assert!(services >= 3, "{after:?}");
}
