//! What was asked for: everything that `isthmus run` was told, and the checks that need no action. It is sent as JSON from
//! the front to the job.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use isthmus_host::RegionOptions;
use isthmus_host::options::Source;
use isthmus_host::service::MOST_ISOLATED;
use isthmus_region::dax::HEAD_BYTES;
use isthmus_vm::boot_config::DriverChoice;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::libraries::{self, PRELOAD_VARIABLE, SYSV_BYTES};
use crate::machines::MEMORY_BYTES;
use crate::mpi::{self, Flavour};
use crate::named;

/// Exit statuses of isthmus itself; all others are the launcher's.
pub struct ExitCode;

impl ExitCode {
    /// The command line made no sense.
    pub const USAGE: i32 = 2;
    /// `--timeout` ran out.
    pub const TIMEOUT: i32 = 124;
    /// isthmus itself failed.
    pub const FAILURE: i32 = 125;
    /// A VM was lost while the job ran.
    pub const LOST_VM: i32 = 126;
}

/// Bytes of memory that a VM has at least: with less the guest's kernel does not boot.
const LEAST_MEMORY: u64 = 128 << 20;

/// Which accelerator QEMU is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// KVM where it passes the probe, else TCG.
    #[default]
    Auto,
    /// Hardware virtualisation, or fail.
    Kvm,
    /// Software emulation.
    Tcg,
}

/// Which network the VMs get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Net {
    /// None at all: the launcher's control connections are relayed.
    #[default]
    None,
    /// virtio-net on a tap device and a bridge, in a network namespace of the run.
    Tap,
}

/// How ranks are dealt out to the VMs, and to the host where it takes part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Map {
    /// The first is filled, then the next.
    #[default]
    Block,
    /// One to each in turn.
    Cyclic,
}

/// What starts the job's processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Launcher {
    /// An MPI's launcher. With System V IPC, a program without an MPI needs none where there is none.
    #[default]
    Auto,
    /// isthmus itself: see [`crate::launch`].
    None,
}

/// Many times as long as a boot takes under emulation on a busy machine.
pub const BOOT_LIMIT_S: f64 = 120.0;

/// What is asked of a run's VMs, each of them or all together.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VmOptions {
    /// Virtual CPUs; by default one for each rank of the fullest VM.
    pub cpus: Option<u32>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// Bind each virtual CPU to a processor of its own.
    pub pin: bool,
    /// Accelerator for QEMU.
    pub accel: Accelerator,
    /// Kernel image to boot instead of the packaged one.
    pub kernel: Option<PathBuf>,
    /// Whether they use the guest driver.
    pub driver: DriverChoice,
    /// Share the working directory read-only.
    pub read_only: bool,
    /// Directories that they may write besides the working directory.
    pub writable: Vec<PathBuf>,
    /// Their network.
    pub net: Net,
    /// Join the first two by a virtio-serial port of each, `isthmus.wire`, to compare with it.
    pub wire: bool,
    /// Where their consoles are kept.
    pub console: Option<PathBuf>,
    /// Seconds that one may take until it is up; by default [`BOOT_LIMIT_S`].
    pub boot_timeout_s: Option<f64>,
}

/// One run, as asked for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunSpec {
    /// Number of VMs; 0 runs the whole job as plain processes.
    pub vms: u32,
    /// Number of ranks; `None` with a full launcher line.
    pub ranks: Option<u32>,
    /// Ranks per VM; by default they are spread evenly.
    pub ppn: Option<u32>,
    /// How many of the first ranks run on the host itself.
    pub host_ranks: u32,
    /// How ranks are dealt out.
    pub map: Map,
    /// What starts them.
    pub launcher: Launcher,
    /// Directory or name of the MPI; by default the one on the PATH.
    pub mpi: Option<String>,
    /// Further arguments for the launcher of the short form.
    pub mpi_args: Vec<OsString>,
    /// Whether the traffic between ranks of one host goes through the region, too; `None` as it is best for the MPI.
    pub through_region: Option<bool>,
    /// Have programs use System V IPC of the region.
    pub sysv: bool,
    /// Leave the MPI to its own transports, to compare with them.
    pub native_transport: bool,
    /// Where to write what the run counted, as JSON.
    pub stats: Option<PathBuf>,
    /// `NAME=VALUE`, or `NAME` for a variable that is passed on.
    pub env: Vec<OsString>,
    /// What is asked of the region.
    pub region: RegionOptions,
    /// What is asked of the VMs.
    pub vm: VmOptions,
    /// Leave the run directory behind.
    pub keep: bool,
    /// Say what is done.
    pub verbose: bool,
    /// Seconds after which the run is ended.
    pub timeout_s: Option<f64>,
    /// The program with its arguments, or a full launcher line.
    pub command: Vec<OsString>,
}

impl RunSpec {
    /// Whether `command` is a launcher line rather than a program.
    pub fn is_launcher_line(&self) -> bool {
        self.ranks.is_none()
            && self.command.first().is_some_and(|word| mpi::is_launcher_name(Path::new(word)))
    }

    /// The same with what `auto` and `sysv` leave open, and a line for the user where that is not what they may expect.
    #[must_use]
    pub fn settled(&self) -> (Self, Option<String>) {
        let mut spec = self.clone();
        let mut line = None;
        // What all VMs can write is there only if it is asked for.
        if spec.sysv && spec.region.shared_bytes.is_none() && !spec.region.isolated {
            spec.region.shared_bytes = Some(SYSV_BYTES);
        }
        let falls_back = spec.launcher == Launcher::Auto && spec.needs_no_mpi();
        if falls_back {
            spec.launcher = Launcher::None;
        }
        if spec.launcher == Launcher::None && spec.ranks.is_none() {
            let of_vms = spec.vms.saturating_mul(spec.ppn.unwrap_or(1));
            spec.ranks = Some(spec.host_ranks.saturating_add(of_vms).max(1));
        }
        if falls_back {
            let count = spec.ranks.unwrap_or(1);
            let processes = if count == 1 { "1 process".into() } else { format!("{count} processes") };
            line = Some(format!(
                "there is no MPI on the PATH, and isthmus itself starts {processes} (--launcher none)"
            ));
        }
        (spec, line)
    }

    /// The directories that VMs can write, as far as these are known before the VMs start. The root is none: that is refused later.
    pub(crate) fn shares(&self) -> Vec<PathBuf> {
        let own = std::env::current_dir().ok().filter(|_| !self.vm.read_only);
        let shares = self.vm.writable.iter().cloned().chain(own);
        let is_root = |dir: &PathBuf| std::fs::canonicalize(dir).is_ok_and(|dir| dir == Path::new("/"));
        shares.filter(|dir| self.vms > 0 && !is_root(dir)).collect()
    }

    /// Whether there is nothing to start the job's processes with, and a program that needs no MPI.
    fn needs_no_mpi(&self) -> bool {
        let Some(first) = self.command.first() else { return false };
        let of_an_mpi =
            || named::program(first, &self.path()).is_some_and(|bytes| named::mpi_of(&bytes).is_some());
        self.sysv
            && self.mpi.is_none()
            && self.mpi_args.is_empty()
            && !mpi::is_launcher_name(Path::new(first))
            && !mpi::is_on_path()
            && !of_an_mpi()
    }

    /// Checks what can be checked without doing anything.
    ///
    /// # Errors
    /// [`Error::Usage`], with the flag to change.
    pub fn check(&self) -> Result<()> {
        let usage = |text: String| Err(Error::Usage(text));
        let Some(first) = self.command.first() else {
            return usage("nothing to run: give a program or an mpirun line after `--`".into());
        };
        // The run's processes hand it on as JSON.
        if serde_json::to_vec(self).is_err() {
            return usage("an option names a path that is not UTF-8, which the run's processes cannot be told of: give the file another name, or a link".into());
        }
        if self.vms > 0 && std::env::current_dir().is_ok_and(|here| here.to_str().is_none()) {
            return usage("the path of this directory is not UTF-8, and VMs could not be told of it: run this in another one".into());
        }
        if self.launcher == Launcher::None {
            self.check_without_mpi(first)?;
        } else if mpi::is_launcher_name(Path::new(first)) {
            if self.ranks.is_some() {
                return usage(format!(
                    "-n and a launcher line exclude each other: drop `-n`, or drop `{}` and its options",
                    first.to_string_lossy()
                ));
            }
            if !self.mpi_args.is_empty() {
                return usage(
                    "--mpi-arg is for the short form: write the argument into the launcher line".into(),
                );
            }
            if self.host_ranks > 0 && self.vms > 0 && self.ppn.is_none() {
                // The host's share of a line is a number of slots, and the VMs' share must be known beside it.
                return usage("--host-ranks with a launcher line needs --ppn, the ranks per VM".into());
            }
        } else if self.ranks.is_none() {
            return usage(
                "the number of ranks is missing: give -n N, or a full mpirun line after `--`, or --launcher none for a program without an MPI".into(),
            );
        }
        if self.ranks == Some(0) {
            return usage("-n 0: a job has at least one rank".into());
        }
        if self.ppn == Some(0) {
            return usage("--ppn 0: a VM has room for at least one rank".into());
        }
        if let Some(ranks) = self.ranks {
            if self.host_ranks > ranks {
                return usage(format!("--host-ranks {} is more than -n {ranks}", self.host_ranks));
            }
            let (guest_ranks, vms) = (u64::from(ranks - self.host_ranks), u64::from(self.vms));
            if vms > 0
                && let Some(ppn) = self.ppn
            {
                let room = vms * u64::from(ppn);
                if guest_ranks > room {
                    return usage(format!(
                        "{guest_ranks} ranks do not fit into {vms} VMs with --ppn {ppn} ({room} places): raise --vms or --ppn"
                    ));
                }
            }
        }
        if self.region.separate_sections && self.vms > 0 {
            return usage(
                "--separate-sections is for plain processes: drop it, or drop --vms (for VMs there is --isolated)".into(),
            );
        }
        if self.region.isolated && self.region.separate_sections {
            return usage(
                "--separate-sections is for plain processes, --isolated for VMs: drop one of them".into(),
            );
        }
        if self.region.isolated && self.vms == 0 {
            return usage(
                "--isolated is for VMs: drop it, or add --vms N (--separate-sections is the like for plain processes)".into(),
            );
        }
        if self.region.isolated && self.sysv && self.region.shared_bytes.is_none() {
            return usage(
                "--sysv needs memory that all VMs can write, which --isolated leaves out: add it with --shared 256M, or drop --isolated".into(),
            );
        }
        let most = MOST_ISOLATED;
        if self.region.isolated && usize::try_from(self.vms).is_ok_and(|vms| vms > most) {
            return usage(format!(
                "--isolated is for {most} VMs at most, since each VM has a device for every section"
            ));
        }
        if self.region.source == Source::Dax {
            if self.vms == 0 {
                return usage("--source dax is for VMs: drop it, or add --vms N".into());
            }
            if self.region.isolated {
                return usage(
                    "--source dax gives each VM the whole region to write, so it does not go with --isolated: drop the one or the other".into(),
                );
            }
            if self.region.grant_bytes > 0 {
                return usage(
                    "--grant needs the region's memory to be the guest driver's, and with --source dax it is a memory device: drop the one or the other (--alloc works there)".into(),
                );
            }
            if self.region.huge_pages.is_some_and(|bytes| bytes > HEAD_BYTES) {
                return usage("--source dax does not go with --huge-pages 1G, since the file has 2 MiB in front of the region: take 2M".into());
            }
        }
        if self.region.grant_bytes > 0 && self.vms == 0 {
            return usage("--grant is for processes in VMs: drop it, or add --vms N".into());
        }
        let is_sysfs = self.region.source == Source::Ivshmem && self.vm.driver == DriverChoice::Off;
        if self.region.alloc_bytes > 0 && self.vms > 0 && is_sysfs {
            return usage(
                "--alloc needs the guest driver in VMs, since memory that is mapped by sysfs is slow to use: drop it, or --driver off, or take --source dax".into(),
            );
        }
        if self.region.alloc_bytes > 0 && self.region.separate_sections {
            return usage(
                "--alloc is for memory that other ranks write, and with --separate-sections they cannot: drop the one or the other".into(),
            );
        }
        if self.region.alloc_bytes > 0 && self.native_transport {
            return usage("--alloc is for what isthmus carries: drop it, or --transport native".into());
        }
        if self.timeout_s.is_some_and(is_no_limit) {
            return usage("--timeout takes seconds greater than 0, and 1e9 at most".into());
        }
        if self.vm.boot_timeout_s.is_some_and(is_no_limit) {
            return usage("--boot-timeout takes seconds greater than 0, and 1e9 at most".into());
        }
        if self.vm.driver == DriverChoice::Require && self.vms == 0 {
            return usage("--driver require: there are no VMs to have it (--vms)".into());
        }
        if self.vm.cpus == Some(0) {
            return usage("--cpus 0: a VM has at least one".into());
        }
        if self.vm.memory_bytes.is_some_and(|bytes| bytes < LEAST_MEMORY) {
            return usage("--memory: a VM has at least 128M".into());
        }
        let (each, most) =
            (self.vm.memory_bytes.unwrap_or(MEMORY_BYTES), isthmus_region::control_group::memory());
        if u64::from(self.vms).saturating_mul(each) > most {
            return usage(format!(
                "{} VMs with {} MiB of memory each are more than the {} MiB that this machine or its control group has: ask for fewer VMs, or for less with --memory",
                self.vms,
                each >> 20,
                most >> 20
            ));
        }
        if let Some(kernel) = &self.vm.kernel
            && self.vms > 0
            && let Err(e) = std::fs::File::open(kernel)
        {
            return usage(format!("--kernel {}: {e}", kernel.display()));
        }
        for variable in &self.env {
            let name = variable.as_encoded_bytes().split(|b| *b == b'=').next().unwrap_or_default();
            if name.is_empty() || name.contains(&0) {
                return usage(format!("--env {}: NAME or NAME=VALUE", variable.to_string_lossy()));
            }
        }
        if let Some(file) = &self.stats
            && let Err(e) = named::may_write(file)
        {
            return usage(format!("--stats {}: {e}", file.display()));
        }
        // `yes` is a real program that never exits.
        if self.through_region == Some(true) && ["yes", "no"].iter().any(|word| first == word) {
            return usage(format!(
                "--through-region {0}: the answer belongs to the option: --through-region={0}",
                first.to_string_lossy()
            ));
        }
        if self.ranks.is_some()
            && !self.looks_elsewhere()
            && let Err(why) = named::is_program(first, &self.path())
        {
            return usage(why);
        }
        Ok(())
    }

    /// What says something to an MPI's launcher makes no sense without one.
    fn check_without_mpi(&self, first: &OsStr) -> Result<()> {
        let other = match self {
            _ if mpi::is_launcher_name(Path::new(first)) => first.to_string_lossy().into_owned(),
            Self { mpi: Some(_), .. } => "--mpi".into(),
            Self { mpi_args, .. } if !mpi_args.is_empty() => "--mpi-arg".into(),
            Self { through_region: Some(_), .. } => "--through-region".into(),
            _ => return Ok(()),
        };
        Err(Error::Usage(format!(
            "--launcher none starts processes without an MPI, and {other} is for one: drop the one or the other"
        )))
    }

    /// Whether the launcher is told to work in, or to search, another directory.
    fn looks_elsewhere(&self) -> bool {
        let words = self.mpi_args.iter().map(|word| word.to_string_lossy());
        words.into_iter().any(|word| ["dir", "path", "-wd", "prefix"].iter().any(|part| word.contains(part)))
    }

    /// The job's PATH.
    pub(crate) fn path(&self) -> OsString {
        self.variable("PATH").unwrap_or_default()
    }

    /// What the job's programs are to load first, of libraries; none if there is nothing for them.
    ///
    /// # Errors
    /// [`Error::NoSysv`], [`Error::NoAlloc`], [`Error::Preload`].
    pub(crate) fn preload(&self) -> Result<Option<OsString>> {
        let mut wanted = Vec::new();
        if self.region.alloc_bytes > 0 {
            wanted.push(libraries::alloc()?);
        }
        if self.sysv {
            wanted.push(libraries::sysv()?);
        }
        libraries::preload_all(&wanted, self.variable(PRELOAD_VARIABLE))
    }

    /// A variable of the job's environment, before isthmus adds to it.
    fn variable(&self, name: &str) -> Option<OsString> {
        let told = self.env.iter().rev().find_map(|variable| {
            let value = variable.as_bytes().strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            Some(OsStr::from_bytes(value).to_owned())
        });
        told.or_else(|| std::env::var_os(name))
    }

    /// Whether ranks of one host send through the region what `flavour` could send through memory of its own.
    ///
    /// Natively, nothing would go through the region otherwise. Open MPI's messages go through it anyway; its windows stay in
    /// its own memory, which is faster.
    pub fn sends_all_through_region(&self, flavour: Flavour) -> bool {
        self.through_region.unwrap_or(self.vms == 0 && !flavour.is_open_mpi())
    }

    /// How many ranks run in VMs; `None` where the line leaves it open.
    pub(crate) fn guest_ranks(&self) -> Option<u32> {
        let ranks = self
            .ranks
            .or_else(|| self.is_launcher_line().then(|| mpi::ranks_of_line(&self.command)).flatten());
        ranks.map(|ranks| ranks.saturating_sub(self.host_ranks))
    }

    /// How many ranks each VM takes, whatever the map: if they do not divide evenly, the first VMs take one more.
    ///
    /// `guest_ranks` is the number of ranks that do not run on the host; `None` if a launcher line does not
    /// say.
    pub fn slots(&self, guest_ranks: Option<u32>) -> Vec<u32> {
        let vms = self.vms as usize;
        if let Some(ppn) = self.ppn {
            return vec![ppn; vms];
        }
        let Some(ranks) = guest_ranks else { return vec![1; vms] };
        (0..self.vms).map(|vm| ranks / self.vms + u32::from(vm < ranks % self.vms)).collect()
    }
}

/// Whether so many seconds are no limit that a clock can have: 0 and less, or more than some 30 years.
fn is_no_limit(seconds: f64) -> bool {
    !(seconds > 0.0 && seconds <= 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(vms: u32, ranks: Option<u32>, command: &[&str]) -> RunSpec {
        RunSpec { vms, ranks, command: command.iter().map(OsString::from).collect(), ..RunSpec::default() }
    }

    #[test]
    fn ranks_are_spread_in_blocks_and_all_of_them() {
        assert_eq!(spec(3, Some(7), &["a"]).slots(Some(7)), [3, 2, 2]);
        assert_eq!(spec(2, None, &["mpirun"]).slots(None), [1, 1]);
        assert_eq!(RunSpec { ppn: Some(4), ..spec(2, Some(5), &["a"]) }.slots(Some(5)), [4, 4]);
    }

    #[test]
    fn natively_messages_go_through_the_region_unless_told_otherwise() {
        let of = |vms, told, flavour| {
            RunSpec { through_region: told, ..spec(vms, Some(2), &["a"]) }.sends_all_through_region(flavour)
        };
        for flavour in [Flavour::Mpich, Flavour::Intel] {
            assert!(of(0, None, flavour) && !of(2, None, flavour));
        }
        assert!(!of(0, None, Flavour::OpenMpi) && !of(2, None, Flavour::OpenMpi4));
        assert!(of(2, Some(true), Flavour::Mpich) && !of(0, Some(false), Flavour::Mpich));
    }

    #[test]
    fn without_an_mpi_there_is_one_process_for_each_vm() {
        let of = |vms, host_ranks, ppn, ranks| {
            let spec = RunSpec { launcher: Launcher::None, host_ranks, ppn, ..spec(vms, ranks, &["true"]) };
            spec.settled().0.ranks
        };
        assert_eq!(
            (of(0, 0, None, None), of(3, 0, None, None), of(3, 0, None, Some(7))),
            (Some(1), Some(3), Some(7))
        );
        assert_eq!((of(2, 1, None, None), of(2, 1, Some(4), None)), (Some(3), Some(9)));
        // Without that option, and without System V IPC, nothing is settled.
        let plain = spec(2, None, &["true"]);
        assert_eq!(plain.settled().0.ranks, None);
        assert!(plain.settled().1.is_none() && plain.settled().0.region.shared_bytes.is_none());
    }

    #[test]
    fn system_v_ipc_has_room_unless_it_is_told_how_much() {
        let of = |shared_bytes| {
            let region = RegionOptions { shared_bytes, ..RegionOptions::default() };
            RunSpec { sysv: true, region, ..spec(2, Some(2), &["true"]) }.settled().0.region.shared_bytes
        };
        assert_eq!((of(None), of(Some(1 << 20))), (Some(SYSV_BYTES), Some(1 << 20)));
    }

    #[test]
    fn a_memory_device_is_for_vms_that_write_all_of_the_region() {
        let of = |vms, change: fn(&mut RunSpec)| {
            let region = RegionOptions { source: Source::Dax, ..RegionOptions::default() };
            let mut spec = RunSpec { region, ..spec(vms, Some(2), &["true"]) };
            change(&mut spec);
            spec.check().map_err(|e| e.to_string())
        };
        let said = |vms, change| of(vms, change).unwrap_err();
        assert!(of(2, |_| ()).is_ok());
        assert!(said(0, |_| ()).contains("--vms"));
        assert!(said(2, |spec| spec.region.isolated = true).contains("--isolated"));
        assert!(said(2, |spec| spec.region.grant_bytes = 1 << 20).contains("--alloc works"));
        assert!(said(2, |spec| spec.region.huge_pages = Some(1 << 30)).contains("2M"));
        // Large allocations need no driver there.
        let allocating = |spec: &mut RunSpec| {
            spec.region.alloc_bytes = 1 << 20;
            spec.vm.driver = DriverChoice::Off;
        };
        assert!(of(2, allocating).is_ok());
        let by_sysfs = |spec: &mut RunSpec| {
            spec.region.alloc_bytes = 1 << 20;
            spec.vm.driver = DriverChoice::Off;
            spec.region.source = Source::Ivshmem;
        };
        assert!(said(2, by_sysfs).contains("--source dax"));
    }

    #[test]
    fn contradictions_are_usage_errors() {
        let vm = |vm| RunSpec { vm, ..spec(1, Some(3), &["true"]) };
        let isolated = |vms, shared_bytes| RunSpec {
            region: RegionOptions { isolated: true, shared_bytes, ..RegionOptions::default() },
            sysv: true,
            ..spec(vms, Some(2), &["true"])
        };
        assert!(isolated(2, Some(1 << 20)).check().is_ok());
        for bad in [
            isolated(2, None),
            isolated(0, Some(1 << 20)),
            isolated(17, Some(1 << 20)),
            spec(1, Some(1), &[]),
            spec(1, None, &["./prog"]),
            spec(1, Some(2), &["mpirun", "-n", "2", "./a"]),
            spec(1, Some(0), &["true"]),
            spec(1_000_000, Some(2_000_000), &["true"]),
            RunSpec { host_ranks: 3, ..spec(1, Some(2), &["true"]) },
            RunSpec { ppn: Some(1), ..spec(2, Some(3), &["true"]) },
            RunSpec { timeout_s: Some(-1.0), ..spec(2, Some(3), &["true"]) },
            RunSpec { timeout_s: Some(1e300), ..spec(2, Some(3), &["true"]) },
            RunSpec { timeout_s: Some(f64::NAN), ..spec(2, Some(3), &["true"]) },
            vm(VmOptions { boot_timeout_s: Some(0.0), ..VmOptions::default() }),
            RunSpec { env: vec!["=x".into()], ..spec(2, Some(3), &["true"]) },
            vm(VmOptions { memory_bytes: Some(1), ..VmOptions::default() }),
            vm(VmOptions { kernel: Some("/none/of/these".into()), ..VmOptions::default() }),
            RunSpec { stats: Some("/none/of/these/x".into()), ..spec(2, Some(3), &["true"]) },
            RunSpec { env: vec!["PATH=/none/of/these".into()], ..spec(2, Some(4), &["true"]) },
            spec(2, Some(4), &["./no-such-program"]),
            RunSpec { through_region: Some(true), ..spec(0, Some(2), &["yes", "true"]) },
            RunSpec {
                region: RegionOptions { separate_sections: true, ..RegionOptions::default() },
                ..spec(1, Some(2), &["true"])
            },
            RunSpec {
                region: RegionOptions { grant_bytes: 1 << 20, ..RegionOptions::default() },
                ..spec(0, Some(2), &["true"])
            },
        ] {
            assert!(matches!(bad.check(), Err(Error::Usage(_))), "{bad:?}");
        }
        spec(2, None, &["/opt/x/bin/mpirun", "-n", "4", "./a"]).check().unwrap();
        spec(2, Some(4), &["true"]).check().unwrap();
        let none = RunSpec { launcher: Launcher::None, ..spec(2, Some(4), &["true"]) };
        none.check().unwrap();
        for bad in [
            RunSpec { command: vec!["mpirun".into(), "./a".into()], ranks: None, ..none.clone() },
            RunSpec { mpi: Some("mpich".into()), ..none.clone() },
            RunSpec { mpi_args: vec!["-x".into()], ..none.clone() },
            RunSpec { through_region: Some(false), ..none.clone() },
            RunSpec { command: vec!["./no-such-program".into()], ..none },
        ] {
            assert!(matches!(bad.check(), Err(Error::Usage(_))), "{bad:?}");
        }
        let elsewhere = RunSpec { mpi_args: vec!["-wdir".into(), "/x".into()], ..spec(2, Some(4), &["./a"]) };
        elsewhere.check().unwrap();
    }
}
