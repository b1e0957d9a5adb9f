//! What `isthmus run` and `isthmus host` are told about the region that they make.

use isthmus_host::RegionOptions;
use isthmus_host::options::Source;

use crate::size;

#[derive(clap::Args)]
pub(crate) struct RegionArgs {
    /// Size of the region; by default 64M and 16M per rank, and --shared where it is more than an eighth of that, rounded up to
    /// a power of two
    #[arg(long, value_name = "SIZE", value_parser = size::parse_region)]
    region_size: Option<u64>,
    /// Take the region from the kernel's huge pages of this size (2M, 1G), or do not start; `no`: from ordinary pages
    #[arg(long, value_name = "SIZE", default_value = "no", value_parser = size::parse_huge_pages)]
    huge_pages: size::HugePages,
    /// Bytes of the region for named objects (segments, barriers, locks), which all processes write; by default an eighth, with --isolated none
    #[arg(long, value_name = "SIZE", value_parser = size::parse_or_none)]
    shared: Option<u64>,
    /// Most bytes of all named objects that were made in one VM, by root there too; those of the host are not counted
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    shared_quota_vm: Option<u64>,
    /// Memory that each process in a VM may grant to the others, which then copy long messages once, and read and write its windows of
    /// RMA themselves: the region has room for it; without SIZE 48M, which is more than the transport keeps of messages. Needs the guest
    /// driver; agents of VMs that you start have the same option (isthmus guest --grant)
    #[arg(long, value_name = "SIZE", default_value = "0", num_args = 0..=1, default_missing_value = "48M", value_parser = size::parse_or_none)]
    grant: u64,
    /// Make each process a peer, with a section that the others cannot write; one-sided operations then go by messages. Without
    /// VMs only
    #[arg(long)]
    separate_sections: bool,
    /// Let each VM write only its own section, which QEMU enforces: a VM that is broken or hostile cannot change what others have; it
    /// can still send garbage, slow others down, or make them wait, and read everything. 16 VMs at most. One-sided operations wait
    /// for their target, and there are no named objects (locks, barriers, System V IPC) but with --shared SIZE, which all can write
    #[arg(long)]
    isolated: bool,
    /// What VMs have the region as: `ivshmem`, the default, a PCI device; or `dax`, a memory device (NVDIMM), which stock kernels map
    /// write-back and in pages of 2 MiB without the guest driver. With VMs only; not with --isolated, --grant or --huge-pages 1G; never
    /// save or migrate such VMs. QEMU of `isthmus host` then runs as the service's user, or as root
    #[arg(
        long,
        value_name = "ivshmem|dax",
        default_value = "ivshmem",
        hide_possible_values = true,
        hide_default_value = true
    )]
    source: SourceArg,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum SourceArg {
    Ivshmem,
    Dax,
}

impl From<RegionArgs> for RegionOptions {
    fn from(args: RegionArgs) -> Self {
        Self {
            bytes: args.region_size,
            huge_pages: args.huge_pages.0,
            shared_bytes: args.shared,
            shared_quota_vm: args.shared_quota_vm,
            grant_bytes: args.grant,
            alloc_bytes: 0,
            separate_sections: args.separate_sections,
            isolated: args.isolated,
            source: match args.source {
                SourceArg::Ivshmem => Source::Ivshmem,
                SourceArg::Dax => Source::Dax,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        region: RegionArgs,
        #[arg(last = true)]
        program: Vec<String>,
    }

    #[test]
    fn what_processes_may_grant_has_a_size_of_its_own() {
        let grant = |words: &[&str]| {
            let line = Line::try_parse_from([&["isthmus"], words].concat()).ok()?;
            assert_eq!(line.program, ["program"]);
            Some(RegionOptions::from(line.region).grant_bytes)
        };
        assert_eq!(grant(&["--", "program"]), Some(0));
        assert_eq!(grant(&["--grant", "--", "program"]), Some(48 << 20));
        assert_eq!(grant(&["--grant", "--shared", "1M", "--", "program"]), Some(48 << 20));
        assert_eq!(grant(&["--grant", "1M", "--", "program"]), Some(1 << 20));
        assert_eq!(grant(&["--grant=0", "--", "program"]), Some(0));
        assert_eq!(grant(&["--grant", "much", "--", "program"]), None);
    }
}
