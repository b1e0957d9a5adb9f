//! The kernel, memory and limits: the same on hosts and in VMs.

use isthmus_region::control_group;
use isthmus_region::create::default_bytes;
use isthmus_region::error::with_causes;
use isthmus_region::huge::{self, Pool};
use rustix::process::Resource;

use crate::Role;
use crate::finding::{Finding, Level};
use crate::system::{System, leading, mib};

/// The oldest kernel that has what isthmus needs: pidfds of running processes.
const LEAST_KERNEL: (u32, u32) = (5, 3);
/// The oldest kernel that was tried.
const TRIED_KERNEL: (u32, u32) = (6, 1);
/// Ranks that the size of the default region is computed for.
const RANKS: u32 = 4;
/// VMs that memory is computed for.
const VMS: u64 = 2;
/// What an MPI may use in `/dev/shm` itself.
const SHM_WANTED: u64 = 256 << 20;
/// What even a small job uses there.
const SHM_LEAST: u64 = 16 << 20;
/// More descriptors than a launcher or a rank needs.
const FILES_WANTED: u64 = 256;

/// Does the checks of this module.
pub fn examine(system: &System, role: Role) -> Vec<Finding> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut findings = vec![kernel(&release), region(), memory(system, role), shared_memory()];
    findings.extend(resource_limits());
    // A VM's region lies in its host's.
    if role == Role::Host {
        findings.push(huge_pages(system));
    }
    findings.push(run_directory());
    findings.push(secure_boot(system, role));
    findings
}

fn kernel(release: &str) -> Finding {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < LEAST_KERNEL {
        return Finding::bad(
            "kernel",
            Level::Stops,
            format!("Linux {release} has no pidfds, by which the death of a process is noticed"),
            format!("use Linux {}.{} or newer", LEAST_KERNEL.0, LEAST_KERNEL.1),
        );
    }
    let untried = if version < TRIED_KERNEL { ", older than any that was tried" } else { "" };
    Finding::fine("kernel", format!("Linux {release}{untried}"))
}

/// Whether a region can be made at all: tried with a small one.
fn region() -> Finding {
    match isthmus_region::create::memory(isthmus_region::format::LEAST_REGION_BYTES) {
        Ok(_) => Finding::fine("shared memory", "a sealed memfd can be made"),
        Err(e) => Finding::bad(
            "shared memory",
            Level::Stops,
            format!("no memory for a region can be made: {}", with_causes(&e)),
            "allow memfd_create and fallocate (a container's seccomp profile may forbid them), and memory",
        ),
    }
}

/// The control group with the least memory left, of those that have a limit.
fn group_limit(system: &System) -> Option<control_group::Limit> {
    control_group::limits(|file| system.read(file)).into_iter().min_by_key(control_group::Limit::left)
}

fn memory(system: &System, role: Role) -> Finding {
    let region = default_bytes(RANKS);
    let free = system.value("/proc/meminfo", "MemAvailable").and_then(|v| leading(&v)).map(|kib| kib << 10);
    let mut left = free.unwrap_or(u64::MAX);
    let mut limit = "in this machine".to_owned();
    if let Some(group) = group_limit(system)
        && group.left() < left
    {
        (left, limit) = (group.left(), format!("below the control group's limit ({})", group.file));
    }
    if role == Role::Guest {
        return Finding::fine("memory", format!("{} free {limit}", mib(left)));
    }
    let with_vms = region + VMS * isthmus_run::machines::MEMORY_BYTES;
    let fix = "free or allow more, or ask for less with --region-size and --memory";
    if left < region {
        let found =
            format!("{} are free {limit}; a region for {RANKS} ranks takes {}", mib(left), mib(region));
        Finding::bad("memory", Level::Stops, found, fix)
    } else if left < with_vms {
        let found = format!("{} are free {limit}; a region and {VMS} VMs take {}", mib(left), mib(with_vms));
        Finding::bad("memory", Level::Stops, found, fix)
    } else {
        let found = format!("{} are free {limit}; a region and {VMS} VMs take {}", mib(left), mib(with_vms));
        Finding::fine("memory", found)
    }
}

fn shared_memory() -> Finding {
    let fix = "mount a tmpfs there, or make it larger: mount -o remount,size=1G /dev/shm (containers: --shm-size=1g)";
    let room = rustix::fs::statvfs("/dev/shm").map(|s| s.f_bavail.saturating_mul(s.f_frsize));
    let writable = rustix::fs::access("/dev/shm", rustix::fs::Access::WRITE_OK).is_ok();
    shm_finding(room.ok().filter(|_| writable), fix)
}

fn shm_finding(room: Option<u64>, fix: &str) -> Finding {
    let check = "/dev/shm";
    match room {
        None => {
            Finding::bad(check, Level::Stops, "it cannot be written; MPIs and runs keep files there", fix)
        }
        Some(room) if room < SHM_LEAST => {
            Finding::bad(check, Level::Stops, format!("only {} are free; MPIs fail without", mib(room)), fix)
        }
        Some(room) if room < SHM_WANTED => {
            let found = format!(
                "{} are free; ranks on one host may run out of it (a region lies elsewhere)",
                mib(room)
            );
            Finding::bad(check, Level::Slow, found, fix)
        }
        Some(room) => Finding::fine(check, format!("{} are free (a region lies elsewhere)", mib(room))),
    }
}

fn resource_limits() -> Vec<Finding> {
    let soft = |resource| rustix::process::getrlimit(resource).current;
    vec![
        files_limit(soft(Resource::Nofile)),
        size_limit("limit on files' size", "ulimit -f", soft(Resource::Fsize), default_bytes(RANKS)),
        size_limit("limit on addresses", "ulimit -v", soft(Resource::As), 8 << 30),
        memlock(soft(Resource::Memlock)),
    ]
}

fn files_limit(most: Option<u64>) -> Finding {
    match most {
        Some(most) if most < FILES_WANTED => Finding::bad(
            "open files",
            Level::Slow,
            format!("a process may have {most} files open; launchers of many ranks need more"),
            "ulimit -n 4096, or nofile in /etc/security/limits.conf",
        ),
        most => Finding::fine(
            "open files",
            most.map_or_else(|| "no limit".into(), |n| format!("{n} for each process")),
        ),
    }
}

fn size_limit(check: &'static str, how: &str, most: Option<u64>, wanted: u64) -> Finding {
    match most {
        Some(most) if most < wanted => Finding::bad(
            check,
            Level::Stops,
            format!("{}, where {} are needed for a region or a VM", mib(most), mib(wanted)),
            format!("{how} unlimited"),
        ),
        most => Finding::fine(check, most.map_or_else(|| "none".into(), mib)),
    }
}

fn memlock(most: Option<u64>) -> Finding {
    let limit = most.map_or_else(|| "none".into(), mib);
    Finding::fine("limit on locked memory", format!("{limit}; isthmus locks none"))
}

/// Ordinary regions may get huge pages by themselves, and `--huge-pages` takes them from the kernel's pools.
fn huge_pages(system: &System) -> Finding {
    const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let check = "huge pages";
    let pools = Pool::all(&system.path(huge::POOLS));
    let free: Vec<String> = pools
        .iter()
        .filter(|pool| pool.available > 0)
        .map(|pool| {
            let name = huge::name(pool.page_bytes);
            format!("{} of {name} are free for --huge-pages {name}", pool.available)
        })
        .collect();
    let beside = if free.is_empty() { String::new() } else { format!("; {}", free.join(", ")) };
    let setting = system.read(SETTING).unwrap_or_default();
    let chosen = setting.split_whitespace().find_map(|w| w.strip_prefix('[')?.strip_suffix(']'));
    match chosen {
        Some(how @ ("always" | "within_size" | "force")) => {
            Finding::fine(check, format!("the kernel takes them for shared memory ({how}){beside}"))
        }
        _ if !free.is_empty() => Finding::fine(check, free.join(", ")),
        Some(how) => {
            let reserve = pools.first().map_or_else(String::new, |pool| {
                let (name, setting) = (huge::name(pool.page_bytes), huge::setting(pool.page_bytes));
                let count = default_bytes(RANKS).div_ceil(pool.page_bytes);
                format!("; or echo {count} > {setting}, and use --huge-pages {name}")
            });
            Finding::bad(
                check,
                Level::Hint,
                format!(
                    "a region lies in pages of 4 KiB (shmem_enabled is {how}, and none are reserved); large messages may gain from huge ones"
                ),
                format!("as root: echo within_size > {SETTING}{reserve}"),
            )
        }
        None => Finding::fine(check, "this kernel has none for shared memory; pages of 4 KiB are used"),
    }
}

/// Where runs keep their sockets.
fn run_directory() -> Finding {
    let check = "run directory";
    let place =
        isthmus_run::rundir::choose(&[]).ok().and_then(|dir| dir.parent().map(std::path::Path::to_path_buf));
    let place = place.unwrap_or_else(|| "/tmp".into());
    if rustix::fs::access(&place, rustix::fs::Access::WRITE_OK).is_ok() {
        Finding::fine(check, format!("runs keep their sockets in {}", place.display()))
    } else {
        Finding::bad(
            check,
            Level::Stops,
            format!("{} cannot be written; a run keeps its sockets there", place.display()),
            "make it writable, or set XDG_RUNTIME_DIR to a short path of your own",
        )
    }
}

fn secure_boot(system: &System, role: Role) -> Finding {
    let check = "secure boot";
    let variable = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
    // Four bytes of attributes, then the value.
    let on = std::fs::read(system.path(variable)).ok().and_then(|bytes| bytes.get(4).copied()) == Some(1);
    let lockdown = system.read("/sys/kernel/security/lockdown").unwrap_or_default();
    let locked = lockdown.split_whitespace().find_map(|w| w.strip_prefix('[')?.strip_suffix(']'));
    let state = match (on, locked) {
        (_, Some(how @ ("integrity" | "confidentiality"))) => format!("the kernel is locked down ({how})"),
        (true, _) => "on, and the kernel is not locked down".into(),
        (false, _) => "off, and the kernel is not locked down".into(),
    };
    match locked {
        Some("integrity" | "confidentiality") if role == Role::Guest => Finding::bad(
            check,
            Level::Stops,
            format!("{state}: it forbids to map the device's memory from sysfs"),
            "switch Secure Boot off in this VM's firmware, or boot it with lockdown=none",
        ),
        Some("integrity" | "confidentiality") => {
            Finding::fine(check, format!("{state}, which does not matter on a host"))
        }
        _ => Finding::fine(check, state),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_kernels_are_known_by_their_version() {
        assert_eq!(kernel("5.2.99-generic").level, Level::Stops);
        assert!(kernel("5.10.0-28-amd64").found.contains("older than any"));
        assert_eq!(kernel("6.18.4").found, "Linux 6.18.4");
        assert_eq!(kernel("nonsense").level, Level::Stops);
    }

    #[test]
    fn the_tightest_control_group_counts() {
        let (_dir, system) = System::of(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:   67108864 kB\n"),
            ("sys/fs/cgroup/a/memory.max", "209715200\n"),
            ("sys/fs/cgroup/a/memory.current", "104857600\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
        ]);
        assert_eq!(group_limit(&system).unwrap().left(), 100 << 20);
        let found = memory(&system, Role::Host);
        assert!(found.level == Level::Stops && found.found.contains("a/memory.max"), "{found:?}");
        let (_dir, system) = System::of(&[
            ("proc/self/cgroup", "4:memory:/x\n1:cpu:/\n"),
            ("proc/meminfo", "MemAvailable:   67108864 kB\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        assert_eq!((group_limit(&system), memory(&system, Role::Host).level), (None, Level::Fine));
    }

    #[test]
    fn little_shared_memory_slows_and_none_stops() {
        assert_eq!(shm_finding(None, "").level, Level::Stops);
        assert_eq!(shm_finding(Some(1 << 20), "").level, Level::Stops);
        assert_eq!(shm_finding(Some(64 << 20), "").level, Level::Slow);
        assert_eq!(shm_finding(Some(1 << 30), "").level, Level::Fine);
    }

    #[test]
    fn limits_that_are_too_low_are_named_with_their_fix() {
        assert_eq!(files_limit(Some(64)).level, Level::Slow);
        assert_eq!(files_limit(None).level, Level::Fine);
        let low = size_limit("x", "ulimit -f", Some(1 << 20), 1 << 30);
        assert_eq!((low.level, low.fix.as_deref()), (Level::Stops, Some("ulimit -f unlimited")));
        assert_eq!(size_limit("x", "", None, 1).level, Level::Fine);
    }

    #[test]
    fn lockdown_matters_in_guests_only() {
        let (_dir, system) =
            System::of(&[("sys/kernel/security/lockdown", "none [integrity] confidentiality\n")]);
        assert_eq!(secure_boot(&system, Role::Guest).level, Level::Stops);
        assert_eq!(secure_boot(&system, Role::Host).level, Level::Fine);
        let (_dir, system) = System::of(&[]);
        assert_eq!(secure_boot(&system, Role::Guest).level, Level::Fine);
    }

    #[test]
    fn huge_pages_are_a_hint() {
        let setting = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
        let (_dir, system) = System::of(&[(setting, "always within_size advise [never] deny force\n")]);
        assert_eq!(huge_pages(&system).level, Level::Hint);
        let (_dir, system) = System::of(&[(setting, "always [within_size] advise never deny force\n")]);
        assert_eq!(huge_pages(&system).level, Level::Fine);
        let pool = |free| {
            let of = |name: &str| format!("sys/kernel/mm/hugepages/hugepages-2048kB/{name}");
            let (total, left) = (of("nr_hugepages"), of("free_hugepages"));
            System::of(&[(setting, "[never]\n"), (&total, "64\n"), (&left, free)])
        };
        let (_dir, system) = pool("60\n");
        let found = huge_pages(&system);
        assert_eq!(found.level, Level::Fine);
        assert!(found.found.contains("60 of 2M"), "{}", found.found);
        let (_dir, system) = pool("0\n");
        assert!(huge_pages(&system).fix.unwrap().contains("nr_hugepages, and use --huge-pages 2M"));
    }

    #[test]
    fn this_machine_can_be_checked() {
        for role in [Role::Host, Role::Guest] {
            assert!(examine(&System::real(), role).iter().all(|f| !f.found.is_empty()));
        }
    }
}
