//! `isthmus host`.

use std::io::Write;
use std::path::PathBuf;

use clap::ValueEnum;
use isthmus_host::foreground::{self, Options};
use isthmus_host::names::Makers;

use crate::region_args::RegionArgs;
use crate::{metrics, report, size, user};

/// Serve a region to processes of this host and to VMs that you start yourself
///
/// Runs until it is told to end (INT, TERM or HUP). It prints what the VMs need on QEMU's command line or in
/// libvirt's XML, and then one line for each thing that happens. `isthmus run` needs none of this: it brings its
/// own.
///
/// As a service: packaging's isthmus-host.service, whose options stand in /etc/default/isthmus-host. A region belongs to
/// the life of its service: there is nothing to reload, and one that is started again makes a new region, which VMs
/// join with their device plugged in anew (with --isolated and --source dax: with their QEMU started again).
///
///     isthmus host --vms 2 --region-size 256M    in one terminal
///     isthmus guest --group isthmus              as root, inside each VM
///     eval "$(isthmus env --mpi openmpi)"        where your mpirun starts
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Where processes attach; by default where they and all commands look: at ISTHMUS_SOCKET, else for root at
    /// /run/isthmus/socket, else at $XDG_RUNTIME_DIR/isthmus/socket. VMs connect at the same path with
    /// .ivshmem and .wake appended, or at sockets of their own with -NAME after these
    #[arg(long, value_name = "PATH", overrides_with = "socket")]
    socket: Option<PathBuf>,
    /// VMs that may join
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1000))]
    vms: u32,
    /// The name of a VM, by default vm1, vm2 and so on; may be repeated. A VM that connects at the sockets of that name has it;
    /// those that connect at the sockets that all share get the names in that order, and new ones when all were given
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,
    /// Processes expected on the host and in all VMs; they decide the region's default size
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    ranks: Option<u32>,
    #[command(flatten)]
    region: RegionArgs,
    /// Most bytes of all named objects of one user together; root may have more
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    shared_quota: Option<u64>,
    /// Who may make named objects and those of System V IPC: user:NAME or group:NAME, the group that a process runs with; vm:NAME, or
    /// host for processes of the host; may be repeated. Where users or groups are named, a maker is to be one of them, or root; where
    /// VMs or the host are, in one of these, or root of the host. By default all may
    #[arg(long, value_name = "WHO", value_parser = maker)]
    create: Vec<Maker>,
    /// What becomes of named objects, and those of System V IPC, that were made in a VM which is gone: `keep` them, as the kernel keeps
    /// those of a process that is gone, or `remove` each once no process has it open
    #[arg(long, value_enum, value_name = "keep|remove", default_value_t = Orphans::Keep, hide_possible_values = true)]
    orphans: Orphans,
    /// Another user that may attach and connect VMs, by name or number (libvirt's QEMU is libvirt-qemu); may be
    /// repeated
    #[arg(long = "allow", value_name = "USER", value_parser = user::parse)]
    users: Vec<u32>,
    /// A group whose members may attach and connect VMs, by name or number: the sockets are the group's
    #[arg(long, value_name = "GROUP", value_parser = user::parse_group, conflicts_with = "users", overrides_with = "group")]
    group: Option<u32>,
    /// Serve counters for Prometheus (OpenMetrics) at http://ADDR/metrics, for instance at 127.0.0.1:9464
    #[arg(long, value_name = "ADDR")]
    metrics: Option<String>,
    /// Let --metrics listen at an address that other machines can reach; there is no password
    #[arg(long, requires = "metrics")]
    metrics_remote: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Orphans {
    Keep,
    Remove,
}

/// Who may make objects, as one --create says it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Maker {
    User(u32),
    Group(u32),
    Vm(String),
    Host,
}

fn maker(text: &str) -> Result<Maker, String> {
    match text.split_once(':') {
        Some(("user", name)) => user::parse(name).map(Maker::User),
        Some(("group", name)) => user::parse_group(name).map(Maker::Group),
        Some(("vm", name)) if !name.is_empty() => Ok(Maker::Vm(name.into())),
        None if text == "host" => Ok(Maker::Host),
        _ => Err(format!("`{text}` names nobody: write user:NAME, group:NAME, vm:NAME or host")),
    }
}

fn makers(told: Vec<Maker>) -> Makers {
    let mut makers = Makers::default();
    for maker in told {
        match maker {
            Maker::User(uid) => makers.users.push(uid),
            Maker::Group(gid) => makers.groups.push(gid),
            Maker::Vm(name) => makers.vms.push(name),
            Maker::Host => makers.host = true,
        }
    }
    makers
}

impl Args {
    pub(crate) fn run(self) -> i32 {
        if self.names.len() > usize::try_from(self.vms).unwrap_or(usize::MAX) {
            isthmus_region::tell!(
                "isthmus: {} names for {} VMs: raise --vms, or drop a --name",
                self.names.len(),
                self.vms
            );
            return report::USAGE;
        }
        let options = Options {
            socket: self.socket,
            vms: self.vms,
            names: self.names,
            ranks: self.ranks,
            region: self.region.into(),
            shared_quota: self.shared_quota,
            makers: makers(self.create),
            remove_orphans: self.orphans == Orphans::Remove,
            users: self.users,
            group: self.group,
        };
        let (metrics, remote) = (self.metrics, self.metrics_remote);
        let outcome = foreground::run(&options, |service| {
            let Some(address) = metrics else { return Ok(None) };
            let server = metrics::start(service, &address, remote)?;
            // If standard output is closed, the service goes on.
            let _ = writeln!(std::io::stdout(), "Prometheus finds counters at {}\n", server.url());
            Ok(Some(server))
        });
        let mistake = match &outcome {
            Err(isthmus_host::Error::Beside(why)) => {
                why.downcast_ref().is_some_and(isthmus_inspect::Error::is_mistake)
            }
            Err(error) => error.is_mistake(),
            Ok(()) => false,
        };
        let status = report::status(outcome);
        if mistake { report::USAGE } else { status }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makers_are_users_groups_vms_and_the_host() {
        let told = ["user:0", "group:7", "vm:red", "host"].map(|text| maker(text).unwrap());
        let makers = makers(told.into());
        assert_eq!((makers.users, makers.groups, makers.host), (vec![0], vec![7], true));
        assert_eq!(makers.vms, ["red"]);
        for bad in ["", "0", "user", "user:", "vm:", "red:", "hosts"] {
            assert!(maker(bad).is_err(), "{bad}");
        }
    }
}
