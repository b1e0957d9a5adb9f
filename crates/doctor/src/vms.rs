//! What a host needs for VMs: an accelerator, QEMU, a kernel for guests.

use std::process::{Command, Stdio};

use isthmus_region::error::with_causes;
use isthmus_vm::accel::{self, Kvm};
use isthmus_vm::{ivshmem, kernel, qemu};

use crate::finding::{Finding, Level};
use crate::system::System;

/// The oldest QEMU that was tried.
const TRIED_QEMU: (u32, u32) = (7, 2);
/// Devices that each VM of isthmus's has.
const DEVICES: [(&str, &str); 3] = [
    (ivshmem::MODEL, "the region"),
    ("virtio-9p-pci", "the host's files"),
    ("virtio-serial-pci", "the way to the agent"),
];

/// Does the checks of this module.
pub fn examine(system: &System) -> Vec<Finding> {
    if std::env::consts::ARCH != "x86_64" {
        return vec![Finding::bad(
            "architecture",
            Level::Stops,
            format!("VMs are for x86-64 only, this machine is {}", std::env::consts::ARCH),
            "run plain processes (--vms 0), which the region itself does not keep from other machines",
        )];
    }
    let qemu = qemu();
    let runs = qemu.level == Level::Fine;
    let mut findings = vec![qemu];
    let kernel = kernel::at_hand();
    if runs {
        findings.push(match accel::examine(kernel.as_ref().map(|k| k.vmlinux.as_path())) {
            Kvm::Works => Finding::fine("KVM", "a trial guest ran"),
            Kvm::Untried => Finding::bad(
                "KVM",
                Level::Hint,
                "/dev/kvm opens; whether a guest really runs was not tried yet, since no kernel is at hand",
                "isthmus run --vms 1 -n 1 -- true fetches one and tries",
            ),
            Kvm::Fails(why) => Finding::bad("KVM", Level::Slow, emulated(&why), kvm_fix(system, &why)),
        });
    }
    findings.push(amd(system, accel::is_uncached_under_kvm()));
    findings.push(match kernel {
        Some(kernel) => Finding::fine("guest kernel", format!("{} is at hand", kernel.release)),
        None => Finding::bad(
            "guest kernel",
            Level::Hint,
            "none is at hand; the first run with VMs fetches Debian's, which needs apt and a network",
            "run it once with a network, or give one with --kernel",
        ),
    });
    findings.push(tun());
    findings
}

fn emulated(why: &str) -> String {
    format!(
        "{why}: guests are emulated, whose computing is 10 to 30 times slower (plain processes are not affected)"
    )
}

fn kvm_fix(system: &System, why: &str) -> String {
    if why.contains("cannot be opened") {
        if system.path("/dev/kvm").exists() {
            return "let the user in: usermod -aG kvm USER, and log in anew".into();
        }
        return "load the module: modprobe kvm_intel, or kvm_amd".into();
    }
    if why.contains("vmx") {
        return "switch virtualisation on in the firmware; in a cloud, take a machine with nested virtualisation".into();
    }
    "a KVM that cannot run a guest is that of some containers and clouds; take another machine".into()
}

fn amd(system: &System, uncached: bool) -> Finding {
    let vendor = system.value("/proc/cpuinfo", "vendor_id").unwrap_or_else(|| "unknown".into());
    if uncached {
        Finding::bad(
            "processor",
            Level::Slow,
            format!(
                "{vendor}: under KVM guests see the region uncached without the guest driver, which isthmus run builds"
            ),
            "have make and gcc here for it; in VMs of your own, the package isthmus-dkms",
        )
    } else {
        Finding::fine("processor", format!("{vendor}: guests see the region cached"))
    }
}

fn qemu() -> Finding {
    let check = "QEMU";
    let install = "Debian: apt install qemu-system-x86 (or set ISTHMUS_QEMU)";
    let program = match qemu::program() {
        Ok(program) => program,
        Err(e) => {
            return Finding::bad(
                check,
                Level::Stops,
                format!("no VMs without it: {}", with_causes(&e)),
                install,
            );
        }
    };
    let shown = program.display();
    let ask = |words: &[&str]| {
        let output = Command::new(&program).args(words).stdin(Stdio::null()).stderr(Stdio::null()).output();
        output.ok().filter(|o| o.status.success()).map(|o| String::from_utf8_lossy(&o.stdout).into_owned())
    };
    let Some(version) = ask(&["--version"]) else {
        return Finding::bad(check, Level::Stops, format!("{shown} does not tell its version"), install);
    };
    let number = version.split_whitespace().skip_while(|w| *w != "version").nth(1).unwrap_or("?").to_owned();
    for (device, what) in DEVICES {
        if ask(&["-device", &format!("{device},help")]).is_none() {
            let found = format!("{shown} ({number}) has no {device}, which is {what}");
            return Finding::bad(
                check,
                Level::Stops,
                found,
                "use a QEMU that was built with it, as Debian's is",
            );
        }
    }
    let mut parts = number.split('.').map_while(|p| p.parse::<u32>().ok());
    let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let untried = if found < TRIED_QEMU { ", older than any that was tried" } else { "" };
    Finding::fine(check, format!("{shown}, {number}{untried}"))
}

fn tun() -> Finding {
    let check = "network for VMs";
    match std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        Ok(_) => Finding::fine(check, "/dev/net/tun opens, for --net tap"),
        Err(e) => Finding::bad(
            check,
            Level::Hint,
            format!("/dev/net/tun: {e}; --net tap needs it, the default does not"),
            "modprobe tun, and let the user open it",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_lead_to_remedies() {
        let dir = tempfile::tempdir().unwrap();
        let system = System::below(dir.path());
        assert!(kvm_fix(&system, "/dev/kvm cannot be opened: x").contains("modprobe"));
        std::fs::create_dir(dir.path().join("dev")).unwrap();
        std::fs::write(dir.path().join("dev/kvm"), "").unwrap();
        assert!(kvm_fix(&system, "/dev/kvm cannot be opened: x").contains("usermod"));
        assert!(kvm_fix(&system, "the processor shows neither vmx nor svm").contains("firmware"));
        assert!(
            kvm_fix(&system, "a trial guest under KVM printed nothing in 10 s").contains("another machine")
        );
    }

    #[test]
    fn amd_is_slow_under_kvm() {
        let system = System::real();
        assert_eq!(amd(&system, true).level, Level::Slow);
        assert_eq!(amd(&system, false).level, Level::Fine);
    }
}
