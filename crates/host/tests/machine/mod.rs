//! VMs whose first process is the test itself, with an agent and a port for the test's own messages.
#![allow(dead_code, unreachable_pub)] // each test uses a part of it

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use isthmus_guest::wakes::WAKE_PORT;
use isthmus_host::Service;
use isthmus_vm::accel::{self, Accel, Choice};
use isthmus_vm::boot_config::{BootConfig, ROOT_TAG};
use isthmus_vm::initramfs;
use isthmus_vm::kernel::{self, Kernel};
use isthmus_vm::qemu::{Console, Share, Vm, VmConfig};

pub type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// The port for the test's own messages.
pub const PORT: &str = "test";

/// What all VMs of a test begin with.
pub struct Guests {
    kernel: Kernel,
    base: PathBuf,
    accel: Accel,
}

impl Guests {
    pub fn find() -> Outcome<Self> {
        let kernel = kernel::find(None, false, &mut |line| println!("{line}"))?;
        let base = initramfs::base(&kernel)?;
        let accel = accel::choose(Choice::Auto, &kernel.vmlinux)?.accel;
        Ok(Self { kernel, base, accel })
    }

    /// Starts a VM of the service, with its files in a folder of `dir`.
    pub fn start(
        &self,
        service: &Service,
        dir: &Path,
        name: &str,
        vcpus: u32,
        extra: BTreeMap<String, serde_json::Value>,
    ) -> Outcome<Vm> {
        let own = dir.join(name);
        fs::create_dir_all(&own)?;
        let boot = BootConfig {
            name: name.into(),
            ports: vec![PORT.into(), WAKE_PORT.into()],
            ivshmem: true,
            dax: service.device().dax.is_some(),
            extra,
            ..BootConfig::default()
        };
        let image = own.join("initramfs");
        initramfs::for_vm(&self.base, &boot, None, &image)?;
        Ok(Vm::start(&VmConfig {
            name: name.into(),
            vcpus,
            memory_mib: 512,
            accel: self.accel,
            kernel: self.kernel.vmlinux.clone(),
            initramfs: image,
            ports: vec![(PORT.into(), own.join("test.sock"))],
            calling_ports: vec![(WAKE_PORT.into(), service.wake_socket_of(name)?)],
            shares: vec![Share { tag: ROOT_TAG.into(), path: "/".into(), read_only: true }],
            ivshmem: Some(service.device_of(name)?.ivshmem()),
            tap: None,
            console: Console::create(&own.join("console"), &[])?,
            qmp: own.join("qmp.sock"),
            extra_append: String::new(),
            prefix: Vec::new(),
        })?)
    }
}

/// The host's side of a VM's port.
pub fn port(vm: &Vm, dir: &Path) -> Outcome<UnixStream> {
    let path = dir.join(vm.name()).join("test.sock");
    let deadline = Instant::now() + Duration::from_secs(60);
    let socket = loop {
        match UnixStream::connect(&path) {
            Ok(socket) => break socket,
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(format!("{error}: {:?}", vm.console_tail(30)).into()),
        }
    };
    socket.set_read_timeout(Some(Duration::from_secs(240)))?;
    Ok(socket)
}
