//! VMs under QEMU, through `isthmus-vm`.

use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use isthmus_guest::wakes::WAKE_PORT;
use isthmus_guest::wire::{CONTROL_PORT, EXEC_PORT, RELAY_PORT, WIRE_PORT};
use isthmus_host::device::Device;
use isthmus_host::options::Source;
use isthmus_region::error::with_causes;
use isthmus_region::room;
use isthmus_vm::accel::{self, Choice};
use isthmus_vm::boot_config::{
    BootConfig, DriverChoice, GuestShare, HostEntry, Interface, InterfaceKind, ROOT_TAG,
};
use isthmus_vm::qemu::{Console, Share, Tap, Vm, VmConfig};
use isthmus_vm::slow::Slow;
use isthmus_vm::tap::{self, Netns};
use isthmus_vm::{driver, initramfs, kernel};
use rustix::process::Pid;

use super::{BOOT_STEPS, CONSOLE_LINES, Machine, Network, Plan, StartMachines, Started};
use crate::error::{Error, Result, tell};
use crate::leash;
use crate::spec::{Accelerator, BOOT_LIMIT_S, Net};

/// Memory of a VM by default: enough for a few Python ranks, and booted in no more time than less.
pub const MEMORY_BYTES: u64 = 1 << 30;
/// How long QEMU may take until it listens at its ports.
const PORT_LIMIT: Duration = Duration::from_secs(20);

/// QEMU, through `isthmus-vm`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Qemu;

fn boot(vm: &str, e: &dyn std::error::Error) -> Error {
    Error::Boot { vm: vm.to_owned(), why: with_causes(e) }
}

/// What all VMs of a run have in common.
struct Common {
    accel: accel::Accel,
    kernel: kernel::Kernel,
    base: PathBuf,
    /// The guest driver's module, if there is one.
    driver: Option<PathBuf>,
    netns: Option<Arc<Netns>>,
    hosts: Vec<HostEntry>,
}

/// The address of VM number `index`: its own, or the one on the tap network.
fn address(net: Net, index: usize) -> Ipv4Addr {
    let [high, low] = u16::try_from(index + 1).unwrap_or(u16::MAX).to_be_bytes();
    match net {
        Net::None => Ipv4Addr::new(10, 73, high, low),
        Net::Tap => Ipv4Addr::new(10, 77, high, low),
    }
}

impl Common {
    fn new(plan: &Plan<'_>) -> Result<Self> {
        let failed = |e: isthmus_vm::Error| boot(&plan.names.join(", "), &e);
        let slow = Slow::start("isthmus: getting the guests' kernel ready");
        let is_dax = plan.service.is_some() && plan.spec.region.source == Source::Dax;
        let chosen = plan.spec.vm.kernel.as_deref();
        let kernel = kernel::find(chosen, is_dax, &mut |line| tell!("{line}")).map_err(failed)?;
        drop(slow);
        let choice = match plan.spec.vm.accel {
            Accelerator::Auto => Choice::Auto,
            Accelerator::Kvm => Choice::Kvm,
            Accelerator::Tcg => Choice::Tcg,
        };
        let slow = Slow::start("isthmus: trying the accelerators");
        let decision = accel::choose(choice, &kernel.vmlinux).map_err(failed)?;
        drop(slow);
        if plan.spec.verbose {
            tell!("kernel {}, {} ({})", kernel.release, decision.accel, decision.reason);
        }
        if let Some(warning) = &decision.warning {
            tell!("warning: {warning}");
        }
        let slow =
            Slow::start("isthmus: making the guests' first file system (once for each kernel and build)");
        let base = initramfs::base(&kernel).map_err(failed)?;
        drop(slow);
        let driver = driver_for(plan, &kernel).map_err(failed)?;
        if plan.spec.region.alloc_bytes > 0 && driver.is_none() && !is_dax {
            return Err(Error::Usage(
                "--alloc needs the guest driver in VMs, and there is none (--driver require says why)".into(),
            ));
        }
        if plan.spec.region.grant_bytes > 0 && driver.is_none() {
            let fix = match plan.spec.vm.driver {
                DriverChoice::Off => "leave --driver off out",
                _ => "--driver require says why there is none",
            };
            tell!("warning: --grant does nothing without the guest driver; {fix}");
        }
        if plan.spec.verbose && plan.service.is_some() {
            match &driver {
                _ if is_dax => {
                    let by = if driver.is_some() { "interrupts, by the guest driver" } else { "the agents" };
                    tell!("VMs map the region as a memory device (DAX); their sleepers are woken by {by}");
                }
                Some(module) => tell!("VMs map the region by the guest driver, {}", module.display()),
                None => tell!("VMs map the region by sysfs"),
            }
        }
        let netns = match plan.spec.vm.net {
            Net::None => None,
            Net::Tap => Some(Arc::new(Netns::create(&tap::Plan::new(plan.names.len())).map_err(failed)?)),
        };
        let hosts = plan
            .names
            .iter()
            .enumerate()
            .map(|(index, name)| HostEntry { address: address(plan.spec.vm.net, index), name: name.clone() })
            .collect();
        Ok(Self { accel: decision.accel, kernel, base, driver, netns, hosts })
    }

    fn start(&self, plan: &Plan<'_>, index: usize, console: Console) -> Result<Vm> {
        let name = &plan.names[index];
        let failed = |e: isthmus_vm::Error| boot(name, &e);
        let own = plan.dir.join(name);
        let mac = format!("52:54:00:69:{:02x}:{:02x}", (index >> 8) & 0xff, index & 0xff);
        let address = address(plan.spec.vm.net, index);
        let kind = match plan.spec.vm.net {
            Net::None => InterfaceKind::Dummy,
            Net::Tap => InterfaceKind::VirtioNet { mac: mac.clone() },
        };
        let share = |index: usize| format!("share{index}");
        let limit_s = plan.spec.vm.boot_timeout_s.unwrap_or(BOOT_LIMIT_S);
        let agent = plan.service.map(|service| {
            let users = [rustix::process::getuid().as_raw()];
            let grant = plan.spec.region.grant_bytes;
            let grant = [grant, grant.saturating_mul(plan.cpus.into())];
            serde_json::json!({
                "socket": service.attach_socket(),
                "users": users,
                "driver": plan.spec.vm.driver,
                "grant": grant,
                "patience": limit_s,
            })
        });
        let config = BootConfig {
            name: name.clone(),
            hosts: self.hosts.clone(),
            shares: plan
                .writable
                .iter()
                .enumerate()
                .map(|(i, path)| GuestShare {
                    tag: share(i),
                    path: path.clone(),
                    read_only: false,
                    options: None,
                })
                .collect(),
            interfaces: vec![Interface { kind, address, prefix: 16 }],
            ports: [EXEC_PORT, RELAY_PORT, CONTROL_PORT]
                .into_iter()
                .chain(plan.service.map(|_| WAKE_PORT))
                .chain(wire_of(plan, index).map(|_| WIRE_PORT))
                .map(String::from)
                .collect(),
            ivshmem: plan.service.is_some(),
            dax: plan.service.is_some() && plan.spec.region.source == Source::Dax,
            verbose: plan.spec.verbose,
            extra: agent.into_iter().map(|agent| ("agent".to_owned(), agent)).collect(),
        };
        let image = own.join(super::IMAGE);
        initramfs::for_vm(&self.base, &config, self.driver.as_deref(), &image).map_err(failed)?;
        let mut shares = vec![Share { tag: ROOT_TAG.into(), path: "/".into(), read_only: true }];
        shares.extend(plan.writable.iter().enumerate().map(|(i, path)| Share {
            tag: share(i),
            path: path.clone(),
            read_only: false,
        }));
        let device = plan.service.map(|service| service.device(name)).transpose()?;
        let ivshmem = device.as_ref().map(Device::ivshmem);
        let mut ports = [EXEC_PORT, RELAY_PORT, CONTROL_PORT]
            .map(|port| (port.to_owned(), socket_of(&own, port)))
            .to_vec();
        let mut calling_ports: Vec<(String, PathBuf)> = Vec::new();
        if let Some(device) = &device {
            calling_ports.push((WAKE_PORT.to_owned(), device.wake.clone()));
        }
        if let Some(wire) = wire_of(plan, index) {
            let wire = (WIRE_PORT.to_owned(), wire);
            if index == 0 {
                ports.push(wire);
            } else {
                // The VM that connects must not come before the one that listens.
                let deadline = Instant::now() + PORT_LIMIT;
                while !wire.1.exists() && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(5));
                }
                calling_ports.push(wire);
            }
        }
        // What the driver's pages for the region take, or a memory device's: 64 bytes for each 4 KiB.
        let pages = match &ivshmem {
            Some(ivshmem) if self.driver.is_some() || ivshmem.dimm.is_some() => ivshmem.bytes() / 64,
            _ => 0,
        };
        let mut prefix = leash::words_of_vm();
        prefix.extend(self.netns.iter().flat_map(|netns| netns.prefix()));
        Vm::start(&VmConfig {
            name: name.clone(),
            vcpus: plan.cpus,
            memory_mib: (plan.spec.vm.memory_bytes.unwrap_or(MEMORY_BYTES) + pages).div_ceil(1 << 20),
            accel: self.accel,
            kernel: self.kernel.vmlinux.clone(),
            initramfs: image,
            ports,
            calling_ports,
            shares,
            ivshmem,
            tap: self.netns.as_ref().map(|_| Tap { ifname: format!("tap{index}"), mac }),
            console,
            qmp: own.join("qmp"),
            extra_append: String::new(),
            prefix,
        })
        .map_err(failed)
    }
}

/// The guest driver's module for these VMs; none if they have no region, or there is none and they may go without.
fn driver_for(plan: &Plan<'_>, kernel: &kernel::Kernel) -> isthmus_vm::Result<Option<PathBuf>> {
    let choice = plan.spec.vm.driver;
    if plan.service.is_none() || choice == DriverChoice::Off {
        return Ok(None);
    }
    let slow = Slow::start("isthmus: getting the guest driver ready");
    let found = driver::find(kernel, choice == DriverChoice::Require, &mut |line| tell!("{line}"));
    drop(slow);
    match found {
        Ok(module) => Ok(Some(module)),
        Err(e) if choice == DriverChoice::Auto => {
            let instead = match plan.spec.region.source {
                Source::Ivshmem => "VMs map the region by sysfs, and their sleepers are woken by the agents",
                Source::Dax => "the VMs' sleepers are woken by the agents",
            };
            tell!("{}; {instead}", with_causes(&e));
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// The socket of the wire between the first two VMs, for one of them.
fn wire_of(plan: &Plan<'_>, index: usize) -> Option<PathBuf> {
    (plan.spec.vm.wire && plan.names.len() > 1 && index < 2).then(|| plan.dir.join("wire"))
}

/// The host's processors for the virtual ones of VM number `index`, in order, of those that this process may use.
fn processors(index: usize, cpus: u32) -> Vec<usize> {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    let all: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let first = index * usize::try_from(cpus).unwrap_or(1);
    let mut order = all.clone();
    if !order.is_empty() {
        order.rotate_left(first % all.len());
    }
    order
}

/// Where QEMU listens for `port`: a short name, since a socket's path is limited.
fn socket_of(own: &Path, port: &str) -> PathBuf {
    own.join(port.rsplit('.').next().unwrap_or(port))
}

/// Connects to a port as soon as QEMU listens there.
fn connect(vm: &Mutex<Vm>, own: &Path, port: &str) -> Result<UnixStream> {
    let path = socket_of(own, port);
    let deadline = Instant::now() + PORT_LIMIT;
    loop {
        let error = match UnixStream::connect(&path) {
            Ok(socket) => return Ok(socket),
            Err(e) => e,
        };
        let mut vm = vm.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let ended = vm.exited();
        if ended.is_some() || Instant::now() > deadline {
            let said = vm.console_tail(CONSOLE_LINES).join("\n");
            let why = match ended {
                Some(status) => format!("QEMU ended ({status}):\n{said}"),
                None => format!("QEMU does not listen at {}: {error}\n{said}", path.display()),
            };
            return Err(Error::Boot { vm: vm.name().to_owned(), why });
        }
        drop(vm);
        thread::sleep(Duration::from_millis(5));
    }
}

/// Where the launcher runs: with the VMs, unless it would lose the caller's groups there.
fn network(netns: &Netns, plan: &Plan<'_>) -> Option<Network> {
    let host = tap::Plan::new(plan.names.len()).host;
    let network = netns.keeps_groups().then(|| Network { prefix: netns.prefix(), host });
    if network.is_none() && plan.spec.verbose {
        tell!(
            "the launcher and the ranks on the host stay outside of the VMs' network, and are relayed, since \
             your supplementary groups would be lost in a user name space"
        );
    }
    network
}

/// What lives as long as a VM does; the VM goes before its network.
struct Keep {
    _vm: Arc<Mutex<Vm>>,
    _netns: Option<Arc<Netns>>,
}

impl Drop for Keep {
    fn drop(&mut self) {
        self._vm.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).kill();
    }
}

/// Each VM's console, in the order of the VMs, and its folder in the run's directory. They are made before any VM runs.
fn consoles(plan: &Plan<'_>) -> Result<Vec<Console>> {
    let of = |name: &String| {
        let own = plan.dir.join(name);
        std::fs::create_dir(&own)
            .map_err(|e| Error::io(format!("cannot make {}", own.display()), room::told(e, &own)))?;
        let Some(dir) = &plan.spec.vm.console else {
            return Console::create(&own.join("console"), &[]).map_err(|e| boot(name, &e));
        };
        Console::create(&dir.join(format!("{name}.console")), plan.writable).map_err(|e| match e {
            isthmus_vm::Error::Link { .. } => Error::Usage(format!("--console {}: {e}", dir.display())),
            e => boot(name, &e),
        })
    };
    plan.names.iter().map(of).collect()
}

impl StartMachines for Qemu {
    fn start(&self, plan: &Plan<'_>) -> Result<Started> {
        let consoles = consoles(plan)?;
        let common = Common::new(plan)?;
        // All are started before any is waited for; and from this thread, since a leashed process is killed when the
        // thread that spawned it ends.
        let vms = consoles
            .into_iter()
            .enumerate()
            .map(|(index, console)| common.start(plan, index, console).map(|vm| Arc::new(Mutex::new(vm))))
            .collect::<Result<Vec<_>>>()?;
        let mut machines = Vec::new();
        for (index, vm) in vms.into_iter().enumerate() {
            let name = plan.names[index].clone();
            let own = plan.dir.join(&name);
            let id = vm.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pid();
            let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
            let console = Arc::clone(&vm);
            let sockets = (
                connect(&vm, &own, EXEC_PORT)?,
                connect(&vm, &own, RELAY_PORT)?,
                connect(&vm, &own, CONTROL_PORT)?,
            );
            if plan.spec.vm.pin {
                let vm = vm.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                vm.pin(&processors(index, plan.cpus)).map_err(|e| boot(&name, &e))?;
            }
            machines.push(Machine {
                address: address(plan.spec.vm.net, index),
                exec: sockets.0,
                relay: sockets.1,
                control: sockets.2,
                pid: pid.ok_or_else(|| Error::Broken(format!("QEMU of {name} has no process id")))?,
                console: Box::new(move || {
                    console
                        .lock()
                        .unwrap_or_else(|poisoned| poisoned.into_inner())
                        .console_tail(CONSOLE_LINES + BOOT_STEPS)
                }),
                keep: Box::new(Keep { _vm: vm, _netns: common.netns.clone() }),
                name,
            });
        }
        Ok(Started { machines, network: common.netns.as_deref().and_then(|netns| network(netns, plan)) })
    }
}
