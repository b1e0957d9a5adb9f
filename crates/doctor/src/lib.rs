//! What on this machine would stop or slow isthmus, and what helps: `isthmus doctor`; and what would keep a program's System V
//! IPC from a region: `isthmus doctor --sysv`.
//!
//! - [`finding`]: what a check has found, and the report.
//! - [`system`]: where checks read the machine: its files, or a stand-in's.
//! - [`limits`]: memory, files, `/dev/shm`, huge pages, the kernel, permissions; the same on hosts and in VMs.
//! - [`vms`]: what a host needs for VMs: KVM, QEMU, a kernel for them.
//! - [`guest`]: what a VM needs: the device, the right to map it, the agent; `memory`: how fast it reads the region.
//! - [`sysv`]: whether a program can have System V IPC of a region; [`program`]: what its file says.
//! - [`mpis`]: MPIs, libfabrics, and whether isthmus's provider loads there.
//!
//! Checks change nothing. A check tries whether a thing works, if it can.

#![forbid(unsafe_code)]

use std::ffi::OsStr;

pub mod finding;
pub mod guest;
pub mod limits;
mod memory;
pub mod mpis;
pub mod program;
pub mod system;
pub mod sysv;
pub mod vms;

pub use finding::{About, Finding, Level, Report};
pub use system::System;

/// What this machine is for isthmus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It runs processes, and VMs with QEMU.
    Host,
    /// It is a VM with the device of a region.
    Guest,
}

/// Does all checks; without a role, a machine with an ivshmem device is a guest.
pub fn examine(role: Option<Role>) -> Report {
    let system = System::real();
    let role = role.unwrap_or(if guest::devices(&system).is_empty() { Role::Host } else { Role::Guest });
    let mut findings = limits::examine(&system, role);
    match role {
        Role::Host => findings.extend(vms::examine(&system)),
        Role::Guest => findings.extend(guest::examine(&system)),
    }
    findings.extend(mpis::examine());
    Report::new(About::Machine { role }, findings)
}

/// Does all checks of a program that shall use System V IPC of a region.
pub fn examine_program(program: &OsStr) -> Report {
    let findings = sysv::examine(program);
    Report::new(About::Program { program: program.to_string_lossy().into_owned() }, findings)
}
