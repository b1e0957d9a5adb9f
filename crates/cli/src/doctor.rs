//! `isthmus doctor`.

use std::ffi::OsString;

use isthmus_doctor::{Role, examine, examine_program};

use crate::watch::{print, print_json};

/// Say what on this machine would stop or slow isthmus, and what helps
///
/// On a host: the kernel, memory and limits, shared memory, huge pages, QEMU, KVM (a guest is tried), the processor, MPIs,
/// and whether the provider loads into each libfabric (tried, too). In a VM: the device, Secure Boot, emulation and the
/// agent in place of QEMU and KVM, and, through the agent, how fast the region is read. Nothing is changed.
///
/// With --sysv, about a program instead: what would keep its System V IPC from a region, since no library can be loaded into
/// it, or the library does not see its calls. The program is not run.
///
/// Exit status: 0 all is well, 1 something slows isthmus, 2 something stops it (or a part of it, such as VMs).
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Take this machine for a host, though it has the device of a region
    #[arg(long, conflicts_with = "guest")]
    host: bool,
    /// Take this machine for a VM that shall be a member of a region
    #[arg(long)]
    guest: bool,
    /// Look at a program that shall run with `isthmus run --sysv`, and not at this machine
    #[arg(long, value_name = "PROG", conflicts_with_all = ["host", "guest"])]
    sysv: Option<OsString>,
}

impl Args {
    pub(crate) fn run(self) -> i32 {
        let role = match (self.host, self.guest) {
            (true, _) => Some(Role::Host),
            (_, true) => Some(Role::Guest),
            _ => None,
        };
        let report = self.sysv.as_deref().map_or_else(|| examine(role), examine_program);
        if self.json {
            // Strings, which cannot fail to serialise.
            print_json(&serde_json::to_value(&report).unwrap_or_default());
        } else {
            print(&report.text());
        }
        report.exit_status()
    }
}
