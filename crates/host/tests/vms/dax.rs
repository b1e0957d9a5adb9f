//! Regions on a memory device: QEMU opens the file, which has a head, and the ivshmem device is for doorbells.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use isthmus_guest::agent::{self, Agent};
use isthmus_guest::wakes::Port;
use isthmus_host::options::Source;
use isthmus_host::{Config, Error};
use isthmus_region::dax::HEAD_BYTES;
use isthmus_region::format::{LEAST_REGION_BYTES, SECTION_MAGIC};
use isthmus_region::mapping::Mapping;
use rustix::fs::{Mode, OFlags};

use super::{Qemu, SOON, start_with};

fn on_dax(config: &mut Config) {
    config.region.source = Source::Dax;
}

#[test]
fn a_vm_gets_the_region_behind_a_head_and_doorbells_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start_with(dir.path(), &["red", "blue"], on_dax);
    assert!(!service.is_isolated());
    let device = service.device_of("red").unwrap();
    let file = device.dax.clone().unwrap();
    assert_eq!(file.bytes, service.region_bytes() + HEAD_BYTES);
    assert_eq!(
        (std::fs::metadata(&file.path).unwrap().len(), service.total_bytes()),
        (file.bytes, file.bytes)
    );
    let lines = device.qemu();
    for part in
        [format!("size={},share=on,mem-path=", file.bytes), "nvdimm,id=".into(), "ivshmem-doorbell".into()]
    {
        assert_eq!(lines.matches(&part).count(), 1, "{part}: {lines}");
    }
    assert!(device.text().contains("nvdimm=on") && device.text().contains("slots=1,maxmem="));
    // As a VM may leave it for the next one.
    let memory = std::fs::File::options().read(true).write(true).open(&file.path).unwrap();
    let mut head = vec![0; usize::try_from(HEAD_BYTES).unwrap()];
    memory.read_exact_at(&mut head, 0).unwrap();
    assert_eq!(&head[4096..4112], b"NVDIMM_DAX_INFO\0");
    memory.write_all_at(&vec![0xee; head.len()], 0).unwrap();
    let qemu = Qemu::connect(&service.ivshmem_socket_of("red").unwrap());
    let mut again = vec![0; head.len()];
    memory.read_exact_at(&mut again, 0).unwrap();
    assert!(head == again, "the head is written once more when a VM connects");
    // The guest driver takes the device by its mark.
    let bells = Mapping::map(qemu.region.as_fd(), LEAST_REGION_BYTES).unwrap();
    assert_eq!(bells.whole().unwrap().word("mark", 0).unwrap().get(), SECTION_MAGIC);
    assert_eq!(rustix::fs::fstat(&qemu.region).unwrap().st_size, i64::try_from(LEAST_REGION_BYTES).unwrap());
    drop(service);
    assert!(file.path.symlink_metadata().is_err(), "the link is left");
}

#[test]
fn members_of_a_region_behind_a_head_reach_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start_with(dir.path(), &["red"], on_dax);
    let qemu = Qemu::connect(&service.ivshmem_socket_of("red").unwrap());
    let path = service.device_of("red").unwrap().dax.unwrap().path;
    let memory: OwnedFd = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let config =
        agent::Config { socket: dir.path().join("red-attach"), patience: SOON, ..agent::Config::default() };
    let port = Port::from(Qemu::plug(&service.wake_socket_of("red").unwrap()));
    let agent = Agent::start_with(&config, memory, port, Box::new(|_| ())).unwrap();
    let inside = isthmus_attach::connect_at(agent.socket()).unwrap();
    let outside = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let seen = outside.region().section(&outside.region().peer(inside.peer()).unwrap().unwrap()).unwrap();
    inside.section().word("test", seen.len() - 8).unwrap().set(77);
    assert_eq!(seen.word("test", seen.len() - 8).unwrap().get(), 77);
    // In the file it is behind the head.
    let place = outside.region().peer(inside.peer()).unwrap().unwrap().section + seen.len() - 8;
    let mut word = [0; 8];
    std::fs::File::open(&path).unwrap().read_exact_at(&mut word, HEAD_BYTES + place).unwrap();
    assert_eq!(u64::from_le_bytes(word), 77);
    // An observer finds the region, too, and what VMs have it as.
    let view = isthmus_attach::client::observe_at(service.attach_socket(), SOON).unwrap();
    let reader = isthmus_region::reader::Reader::new(view.region).unwrap();
    assert_eq!((reader.len(), reader.is_dax()), (service.region_bytes(), true));
    drop(qemu);
}

#[test]
fn what_does_not_go_with_a_memory_device_is_refused() {
    let refused = |change: fn(&mut Config)| {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new(dir.path().join("run"), 64 << 20);
        config.vms = vec![isthmus_host::Vm { name: "red".into(), ranks: 1 }];
        on_dax(&mut config);
        change(&mut config);
        isthmus_host::Service::start(config, std::sync::Arc::new(|_| ())).err()
    };
    assert!(matches!(refused(|config| config.region.isolated = true), Some(Error::DaxIsolated)));
    assert!(matches!(refused(|config| config.region.grant_bytes = 1 << 20), Some(Error::DaxGrant)));
    assert!(matches!(refused(|config| config.vms.clear()), Some(Error::DaxAlone)));
    assert!(matches!(refused(|config| config.region.huge_pages = Some(1 << 30)), Some(Error::DaxHuge)));
    assert!(refused(|_| ()).is_none());
    // A file of 2 MiB and 2 MiB would look like one of 4 MiB without a head.
    assert!(matches!(refused(|config| config.region.bytes = Some(2 << 20)), Some(Error::DaxSmall)));
}
