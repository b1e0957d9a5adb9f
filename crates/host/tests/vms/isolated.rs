//! Isolated regions: each VM is sent the file of its own section, and has the others to be read.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use isthmus_guest::agent::{self, Agent};
use isthmus_guest::wakes::Port;
use isthmus_host::device::{Device, File, What};
use isthmus_host::{Config, Service, Vm};
use isthmus_region::Error as RegionError;
use isthmus_region::format::{DEVICE_SECTION_ALIGN, SECTION_MAGIC};
use isthmus_region::mapping::Mapping;
use isthmus_region::objects::{Access, Kind, NewObject, Object};
use isthmus_region::source::Source;
use rustix::fs::{Mode, OFlags};

use super::{Qemu, SOON, start_with};

fn isolated(shared: Option<u64>) -> impl FnOnce(&mut Config) {
    move |config| {
        config.region.isolated = true;
        config.region.shared_bytes = shared;
    }
}

/// What QEMU makes of the lines for a VM: a device for each file.
#[derive(Debug)]
struct Devices {
    device: Device,
    own: OwnedFd,
}

impl Devices {
    fn of(service: &Service, name: &str, qemu: &Qemu) -> Self {
        Self { device: service.device_of(name).unwrap(), own: qemu.region.try_clone().unwrap() }
    }

    fn isolated(&self) -> &(u32, Vec<File>) {
        self.device.isolated.as_ref().unwrap()
    }
}

impl Source for Devices {
    fn bytes(&self) -> u64 {
        self.isolated().1.iter().find(|file| file.number == 0).unwrap().bytes
    }

    fn file(&self, index: u32) -> Result<OwnedFd, RegionError> {
        let (own, others) = self.isolated();
        if index == *own {
            return Ok(self.own.try_clone().unwrap());
        }
        let file = others.iter().find(|file| file.number == index);
        let file = file.ok_or(RegionError::NoFile { file: index, reason: "QEMU was not told" })?;
        let access = if file.what == What::Shared { OFlags::RDWR } else { OFlags::RDONLY };
        Ok(rustix::fs::open(&file.path, access | OFlags::CLOEXEC, Mode::empty()).unwrap())
    }
}

fn boot(service: &Service, name: &str, qemu: &Qemu, socket: PathBuf) -> Agent {
    let config = agent::Config { socket, patience: SOON, ..agent::Config::default() };
    let port = Port::from(Qemu::plug(&service.wake_socket_of(name).unwrap()));
    Agent::start_from(&config, Arc::new(Devices::of(service, name, qemu)), port, Box::new(|_| ())).unwrap()
}

fn segment() -> NewObject {
    NewObject {
        kind: Kind::Segment,
        name: "s".into(),
        len: 4096,
        mode: 0o600,
        ends_with_creator: false,
        params: [0; 4],
        or_open: false,
    }
}

/// Which file a descriptor is of.
fn inode(file: &OwnedFd) -> u64 {
    rustix::fs::fstat(file).unwrap().st_ino
}

#[test]
fn each_vm_is_sent_its_own_section_and_opens_the_others_by_links() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start_with(dir.path(), &["red", "of-red", "shared"], isolated(Some(1 << 20)));
    assert!(service.is_isolated());
    assert!(!service.ivshmem_socket().exists() && !service.wake_socket().exists(), "for VMs without a name");
    let mut own = Vec::new();
    for name in ["red", "of-red", "shared"] {
        let qemu = Qemu::connect(&service.ivshmem_socket_of(name).unwrap());
        let devices = Devices::of(&service, name, &qemu);
        let (number, others) = devices.isolated();
        assert_eq!(others.len(), 5, "{others:?}");
        assert!(others.iter().all(|file| file.number != *number && file.bytes.is_power_of_two()));
        assert!(others.iter().all(|file| std::fs::metadata(&file.path).unwrap().len() == file.bytes));
        let bytes = devices.device.region_bytes;
        assert!(bytes >= DEVICE_SECTION_ALIGN && bytes.is_power_of_two());
        let map = Mapping::map(qemu.region.as_fd(), bytes).unwrap();
        assert_eq!(map.whole().unwrap().word("mark", 0).unwrap().get(), SECTION_MAGIC);
        for file in others {
            let mode = std::fs::metadata(&file.path).unwrap().mode() & 0o777;
            // Whoever may write it all the same is root.
            assert_eq!(mode, if file.what == What::Shared { 0o600 } else { 0o400 }, "{file:?}");
            let readonly = file.what != What::Shared;
            let line =
                format!("size={},share=on{}", file.bytes, if readonly { ",readonly=on" } else { ",mem" });
            assert!(devices.device.qemu().contains(&line), "{line}");
        }
        own.push(inode(&qemu.region));
        let theirs = others.iter().map(|file| std::fs::metadata(&file.path).unwrap().ino());
        assert!(!theirs.collect::<Vec<_>>().contains(&inode(&qemu.region)));
    }
    own.dedup();
    assert_eq!(own.len(), 3);
    let links = service.device_of("red").unwrap().isolated.unwrap().1;
    drop(service);
    assert!(links.iter().all(|file| file.path.symlink_metadata().is_err()), "links are left");
}

#[test]
fn members_of_an_isolated_region_reach_what_they_may() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start_with(dir.path(), &["red", "blue"], isolated(None));
    let vms = ["red", "blue"].map(|name| {
        let qemu = Qemu::connect(&service.ivshmem_socket_of(name).unwrap());
        let agent = boot(&service, name, &qemu, dir.path().join(format!("{name}-attach")));
        (qemu, agent)
    });
    let members = vms.each_ref().map(|(_, agent)| isthmus_attach::connect_at(agent.socket()).unwrap());
    let region = members[0].region();
    let other = region.peer(members[1].peer()).unwrap().unwrap();
    let seen = region.section(&other).unwrap();
    assert!(matches!(seen.writable(), Err(RegionError::ReadOnly)), "red writes blue's section");
    members[1].section().word("test", seen.len() - 8).unwrap().set(77);
    assert_eq!(seen.word("test", seen.len() - 8).unwrap().get(), 77, "red reads it");
    let host = region.peer(0).unwrap().unwrap();
    assert!(region.section(&host).unwrap().writable().is_err() && region.shared().is_err());
    let new = segment();
    let said = Object::create(&members[0], &new).unwrap_err().to_string();
    assert!(said.contains("--shared SIZE"), "{said}");
    // A new life of one of them, with its mark and its directory.
    let socket = vms[1].1.socket().to_owned();
    drop(members);
    let [_red, (qemu, agent)] = vms;
    drop(agent);
    std::thread::sleep(std::time::Duration::from_millis(600));
    let again = boot(&service, "blue", &qemu, socket);
    assert_eq!(again.peer().index, other.index);
    assert!(again.peer().life.incarnation > other.life.incarnation);
}

#[test]
fn named_objects_of_an_isolated_region_are_all_that_vms_share() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start_with(dir.path(), &["red"], isolated(Some(1 << 20)));
    let qemu = Qemu::connect(&service.ivshmem_socket_of("red").unwrap());
    let agent = boot(&service, "red", &qemu, dir.path().join("red-attach"));
    let there = isthmus_attach::connect_at(agent.socket()).unwrap();
    let here = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let new = segment();
    let made = Object::create(&there, &new).unwrap();
    made.section().word("test", 0).unwrap().set(5);
    let opened = Object::open(&here, Kind::Segment, "s", Access::Read).unwrap();
    assert_eq!(opened.section().word("test", 0).unwrap().get(), 5);
    // All of what was asked for can be had.
    drop((made, opened));
    here.service().unlink_object(Kind::Segment, "s").unwrap();
    assert!(Object::create(&there, &NewObject { len: here.region().shape().shared_bytes, ..new }).is_ok());
}

#[test]
fn what_cannot_be_isolated_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refusal = |vms: u32, separate| {
        let mut config = Config::new(dir.path(), 1 << 30);
        config.region.isolated = true;
        config.region.separate_sections = separate;
        config.vms = (0..vms).map(|vm| Vm { name: format!("vm{vm}"), ranks: 1 }).collect();
        Service::start(config, Arc::new(|_| ())).map(drop).unwrap_err().to_string()
    };
    assert!(refusal(0, false).contains("--vms"));
    assert!(refusal(17, false).contains("16 VMs at most"));
    assert!(refusal(1, true).contains("--separate-sections"));
    let mut config = Config::new(dir.path(), 16 << 20);
    config.region.isolated = true;
    config.vms = vec![Vm { name: "red".into(), ranks: 1 }];
    let small =
        Config { region: isthmus_host::RegionOptions { bytes: Some(4 << 20), ..config.region }, ..config };
    let said = Service::start(small, Arc::new(|_| ())).map(drop).unwrap_err().to_string();
    assert!(said.contains("too small") && said.contains("--region-size"), "{said}");
}
