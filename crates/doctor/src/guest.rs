//! What a VM needs: the device, the right to map it, the agent.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use isthmus_attach::client::{View, observe_at};
use isthmus_region::error::with_causes;
use isthmus_region::format::LEAST_REGION_BYTES;
use isthmus_region::source::Ivshmem;
use isthmus_region::{dax, driver};
use isthmus_vm::ivshmem::MODEL;

use crate::finding::{Finding, Level};
use crate::memory;
use crate::system::{System, mib, name_of};

const DEVICE: &str = "device";
const AGENT: &str = "agent";
/// How long the agent may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// Below this firmware decides how memory is cached.
const LOW: u64 = 4 << 30;

/// The ivshmem devices of this machine.
pub fn devices(system: &System) -> Vec<Ivshmem> {
    Ivshmem::below(&system.path("/"))
}

/// Does the checks of this module.
pub fn examine(system: &System) -> Vec<Finding> {
    let view = observe();
    let is_dax = view.as_ref().is_ok_and(|(_, view)| dax::bytes(view.region.as_fd()).is_some());
    let mut findings: Vec<_> = devices(system).iter().map(|found| device(found, is_dax)).collect();
    // Beside one that can be used, others are of other programs.
    if findings.iter().any(|finding| finding.level != Level::Stops) {
        findings.retain(|finding| finding.level != Level::Stops);
    }
    if findings.is_empty() {
        findings.push(Finding::bad(
            DEVICE,
            Level::Stops,
            "this VM has no ivshmem device",
            "on the host: isthmus host --vms N, and what isthmus vm device prints, in the VM's definition",
        ));
    }
    findings.extend([accelerator(system, is_dax), processors(system)]);
    match view {
        Ok((socket, view)) => findings.extend([agent(&socket, &view), memory::examine(&view)]),
        Err(finding) => findings.push(finding),
    }
    findings
}

/// An ivshmem device of a VM whose region is a memory device, or not.
fn device(Ivshmem { folder, bytes, doorbell, slot: _ }: &Ivshmem, is_dax: bool) -> Finding {
    let check = DEVICE;
    let name = name_of(folder);
    let driver = driver_of(folder);
    if let Some(driver) = driver.as_deref().filter(|driver| *driver != driver::NAME) {
        return Finding::bad(
            check,
            Level::Stops,
            format!("{name} is bound to the driver {driver}, so its memory cannot be mapped from sysfs"),
            format!("as root: echo {name} > /sys/bus/pci/devices/{name}/driver/unbind"),
        );
    }
    if *bytes == 0 {
        return Finding::bad(
            check,
            Level::Stops,
            format!("{name} shows no memory: its BAR2 got no address"),
            "give the VM's PCI port a larger window (pref64-reserve), as isthmus vm device prints it",
        );
    }
    if !doorbell {
        return Finding::bad(
            check,
            Level::Stops,
            format!("{name} is an ivshmem-plain device, which no service can connect"),
            format!("use {MODEL}, connected to a socket of isthmus host"),
        );
    }
    if is_dax {
        let woken = if driver.is_some() { "interrupts wake sleepers" } else { "the agent wakes sleepers" };
        return Finding::fine(check, format!("{name}, for doorbells beside a memory device (DAX): {woken}"));
    }
    if *bytes == LEAST_REGION_BYTES {
        return Finding::bad(
            check,
            Level::Hint,
            format!(
                "{name} with {}, as it has where it is for doorbells beside a memory device (DAX)",
                mib(*bytes)
            ),
            "if the region is on one (isthmus host --source dax): ls /dev/dax*; if there is none, modprobe -a nfit nd_pmem dax_pmem device_dax, and see that QEMU has all lines that isthmus vm device prints, and -machine nvdimm=on",
        );
    }
    let way = if driver.is_some() { "mapped by the guest driver" } else { "mapped by sysfs" };
    let is = format!("{name} with {}, {way}", mib(*bytes));
    match memory_address(folder) {
        Some(address) if address < LOW => Finding::bad(
            check,
            Level::Hint,
            format!("{is}, at an address below 4 GiB, where firmware may have made it uncached"),
            "give the VM's PCI port a larger window (pref64-reserve), as isthmus vm device prints it",
        ),
        _ => Finding::fine(check, is),
    }
}

/// Where a device's memory begins, as the kernel's table of its resources says.
fn memory_address(folder: &Path) -> Option<u64> {
    let table = std::fs::read_to_string(folder.join("resource")).ok()?;
    let start = table.lines().nth(2)?.split_whitespace().next()?;
    u64::from_str_radix(start.strip_prefix("0x")?, 16).ok()
}

/// The driver that has a device.
fn driver_of(folder: &Path) -> Option<String> {
    std::fs::read_link(folder.join("driver")).ok().map(|link| name_of(&link).to_string())
}

fn is_emulated(system: &System) -> bool {
    system.value("/proc/cpuinfo", "model name").is_some_and(|model| model.contains("TCG"))
}

fn accelerator(system: &System, is_dax: bool) -> Finding {
    let check = "processor";
    let vendor = system.value("/proc/cpuinfo", "vendor_id").unwrap_or_else(|| "unknown".into());
    if is_emulated(system) {
        return Finding::bad(
            check,
            Level::Slow,
            "this VM is emulated (QEMU's TCG): its computing is 10 to 30 times slower",
            "run it under KVM; isthmus doctor on the host says what keeps it from that",
        );
    }
    let has_driver = devices(system).first().is_some_and(|device| driver_of(&device.folder).is_some());
    if vendor == "AuthenticAMD" && !has_driver && !is_dax {
        return Finding::bad(
            check,
            Level::Slow,
            "AMD under KVM: the region is uncached in this VM without the guest driver",
            "load the module isthmus and restart the agent (isthmus(4)), or take isthmus host --source dax",
        );
    }
    Finding::fine(check, format!("{vendor}: the region is cached"))
}

/// If a VM can never have more than one virtual CPU, QEMU's emulation leaves out what keeps memory coherent between VMs.
fn processors(system: &System) -> Finding {
    let check = "virtual CPUs";
    let possible = system.read("/sys/devices/system/cpu/possible").unwrap_or_default();
    if is_emulated(system) && possible == "0" {
        return Finding::bad(
            check,
            Level::Stops,
            "this emulated VM can only ever have one, for which QEMU leaves out barriers and locked instructions",
            "start it with -smp 1,maxcpus=2 or more",
        );
    }
    Finding::fine(check, format!("numbers {possible} are possible"))
}

/// The agent's socket, and what it shows an observer; or whatever keeps this user from attaching.
fn observe() -> Result<(PathBuf, View), Finding> {
    let stops = |found: String| {
        let start =
            "as root: isthmus guest, or systemctl enable --now isthmus-guest; --allow USER lets a user in";
        Finding::bad(AGENT, Level::Stops, found, start)
    };
    let socket = isthmus_attach::find_socket().map_err(|e| stops(e.to_string()))?;
    let view = observe_at(&socket, PATIENCE).map_err(|e| stops(with_causes(&e)))?;
    Ok((socket, view))
}

fn agent(socket: &Path, view: &View) -> Finding {
    let (peer, name) = (view.said.peer, &view.said.host_name);
    Finding::fine(AGENT, format!("this VM is member {peer} ('{name}'), at {}", socket.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const AT: &str = "sys/bus/pci/devices/0000:01:00.0";

    #[test]
    fn a_device_that_cannot_be_used_is_named_with_the_reason() {
        let (dir, system) = System::of(&[]);
        assert!(examine(&system)[0].found.contains("no ivshmem device"));
        let device = |system: &System| {
            let all = devices(system);
            assert_eq!(all.len(), 1);
            super::device(&all[0], false)
        };
        let put = |name: &str, text: &str| {
            fs::create_dir_all(dir.path().join(AT)).unwrap();
            fs::write(dir.path().join(AT).join(name), text).unwrap();
        };
        put("vendor", "0x1af4\n");
        put("device", "0x1110\n");
        assert!(device(&system).found.contains("BAR2 got no address"));
        put("resource2", "x");
        assert!(device(&system).found.contains("ivshmem-plain"));
        put("resource1", "x");
        let found = device(&system);
        assert!(found.level == Level::Fine && found.found.ends_with("mapped by sysfs"), "{}", found.found);
        let row = |start: u64| format!("{start:#018x} {:#018x} 0x000000000014220c\n", start + 0xffff);
        put("resource", &[row(0xfe80_0000), row(0), row(0xfd00_0000)].concat());
        let found = device(&system);
        assert!(found.level == Level::Hint && found.found.contains("below 4 GiB"), "{}", found.found);
        put("resource", &[row(0xfe80_0000), row(0), row(0x70_0000_0000)].concat());
        assert_eq!(device(&system).level, Level::Fine);
        let bar = std::fs::File::options().write(true).open(dir.path().join(AT).join("resource2")).unwrap();
        bar.set_len(LEAST_REGION_BYTES).unwrap();
        let found = device(&system);
        assert!(found.level == Level::Hint && found.found.contains("doorbells"), "{}", found.found);
        bar.set_len(1).unwrap();
        let link = dir.path().join(AT).join("driver");
        std::os::unix::fs::symlink("../../drivers/isthmus", &link).unwrap();
        let found = device(&system);
        assert!(
            found.level == Level::Fine && found.found.ends_with("by the guest driver"),
            "{}",
            found.found
        );
        // Which is what a VM on an AMD processor needs.
        fs::create_dir_all(dir.path().join("proc")).unwrap();
        fs::write(dir.path().join("proc/cpuinfo"), "vendor_id\t: AuthenticAMD\nmodel name\t: EPYC\n")
            .unwrap();
        assert_eq!(accelerator(&system, false).level, Level::Fine);
        fs::remove_file(&link).unwrap();
        assert_eq!(accelerator(&system, false).level, Level::Slow);
        // So is a memory device.
        assert_eq!(accelerator(&system, true).level, Level::Fine);
        let found = super::device(&devices(&system)[0], true).found;
        assert!(found.contains("DAX") && found.ends_with("the agent wakes sleepers"), "{found}");
        std::os::unix::fs::symlink("../../drivers/vfio-pci", dir.path().join(AT).join("driver")).unwrap();
        assert!(device(&system).found.contains("vfio-pci"));
    }

    #[test]
    fn emulation_is_slow_and_stops_with_one_processor() {
        let (_dir, system) = System::of(&[
            ("proc/cpuinfo", "vendor_id\t: AuthenticAMD\nmodel name\t: QEMU TCG CPU version 2.5+\n"),
            ("sys/devices/system/cpu/possible", "0\n"),
        ]);
        assert_eq!(
            (accelerator(&system, false).level, processors(&system).level),
            (Level::Slow, Level::Stops)
        );
        let (_dir, system) = System::of(&[
            ("proc/cpuinfo", "vendor_id\t: GenuineIntel\nmodel name\t: Intel Xeon\n"),
            ("sys/devices/system/cpu/possible", "0\n"),
        ]);
        assert_eq!(
            (accelerator(&system, false).level, processors(&system).level),
            (Level::Fine, Level::Fine)
        );
    }
}
