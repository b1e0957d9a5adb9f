//! What each MPI and its launcher need set.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;

use super::find::path_beside;
use super::{Flavour, Mpi};
use crate::rundir;
use crate::spec::Map;

/// Variables in the order in which they are set.
pub type Environment = Vec<(OsString, OsString)>;

/// What an MPI needs set so that its ranks use isthmus's provider, whatever starts them.
///
/// `provider` is the directory of `libisthmus-fi.so`.
pub fn transport(flavour: Flavour, provider: &Path, through_region: bool) -> Environment {
    let mut env: Environment = vec![
        ("FI_PROVIDER_PATH".into(), provider.into()),
        // Named too, so that nothing falls back unseen to a provider that scores the same.
        ("FI_PROVIDER".into(), "isthmus".into()),
    ];
    let mut set = |name: &str, value: &str| env.push((name.into(), value.into()));
    match flavour {
        Flavour::OpenMpi => {
            set("OMPI_MCA_pml", "cm");
            set("OMPI_MCA_mtl", "ofi");
            // One-sided operations go through osc rdma over btl ofi; tcp would offer itself for them.
            set("OMPI_MCA_btl", if through_region { "self,ofi" } else { "^tcp" });
            if through_region {
                // Shared windows stay possible: only osc sm has them, whatever its priority.
                set("OMPI_MCA_osc_sm_priority", "0");
            }
        }
        Flavour::OpenMpi4 => {
            set("OMPI_MCA_pml", "cm");
            set("OMPI_MCA_mtl", "ofi");
            // Not ofi: only osc rdma would use it, and its end takes a second (it sleeps) out of each MPI_Finalize.
            set("OMPI_MCA_btl", if through_region { "self" } else { "self,vader" });
            set("OMPI_MCA_opal_common_ofi_provider_include", "isthmus");
            // Its osc rdma over any btl ofi dies of MPI_Compare_and_swap on a local target and of MPI_Accumulate with
            // most operations, so one-sided goes by messages, which is not for MPI_THREAD_MULTIPLE.
            set("OMPI_MCA_osc", "sm,pt2pt");
            if through_region {
                set("OMPI_MCA_osc_sm_priority", "0");
            }
        }
        Flavour::Mpich => {
            set("MPIR_CVAR_CH4_NETMOD", "ofi");
            if through_region {
                set("MPIR_CVAR_NOLOCAL", "1");
            }
        }
        Flavour::Intel => {
            set("I_MPI_OFI_PROVIDER", "isthmus");
            set("I_MPI_FABRICS", if through_region { "ofi" } else { "shm:ofi" });
            // For a provider that it does not know it takes the least: no CQ data, one-sided by messages.
            set("MPIR_CVAR_CH4_OFI_ENABLE_DATA", "1");
            set("MPIR_CVAR_CH4_OFI_ENABLE_RMA", "1");
            set("MPIR_CVAR_CH4_OFI_ENABLE_ATOMICS", "1");
        }
    }
    env
}

/// What an MPI needs set so that its launcher and its ranks find its own files; empty where they do anyway.
///
/// Intel's from PyPI has no script that sets its paths, and would take the system's libfabric.
pub fn home(mpi: &Mpi) -> Environment {
    let mut env = Environment::new();
    let bin = mpi.launcher.parent().and_then(Path::parent);
    let Some(root) = bin.filter(|_| mpi.flavour == Flavour::Intel) else { return env };
    env.push(("PATH".into(), path_beside(&mpi.launcher)));
    let lib = root.join("lib");
    if lib.join("libmpi.so.12").exists() {
        let mut path = lib.as_os_str().to_owned();
        if let Some(rest) = std::env::var_os("LD_LIBRARY_PATH").filter(|rest| !rest.is_empty()) {
            path.push(":");
            path.push(rest);
        }
        env.push(("LD_LIBRARY_PATH".into(), path));
    }
    // An installation of Intel's own has a script that sets more, which its mpirun runs if this is unset.
    let scripts = ["env/vars.sh", "setvars.sh", "bin/mpivars.sh"];
    if std::env::var_os("I_MPI_ROOT").is_none() && !scripts.iter().any(|script| root.join(script).exists()) {
        env.push(("I_MPI_ROOT".into(), root.into()));
    }
    let fabric = lib.join("libfabric.so.1");
    if std::env::var_os("I_MPI_OFI_LIBRARY").is_none() && fabric.exists() {
        env.push(("I_MPI_OFI_LIBRARY".into(), fabric.into()));
    }
    env
}

/// PRRTE's setting `prte_strip_prefix`, as a variable.
pub const STRIP_VARIABLE: &str = "PRTE_MCA_prte_strip_prefix";

/// What to give PRRTE as `prte_strip_prefix` on a host without a network; `None` where it needs nothing.
///
/// PRRTE 3 leaves `localhost` out when it tells its daemons the other names of its own host. With nothing but a
/// loopback interface no name is left, and each daemon dies of a null pointer, whereupon mpirun ends with status 0.
/// Taking the first part of the host's name away makes what remains such a name. The daemons in VMs are not told.
pub fn alias_prefix() -> Option<String> {
    if std::env::var_os(STRIP_VARIABLE).is_some() {
        return None;
    }
    // Not /sys/class/net: that shows the network name space in which it was mounted.
    let routes = fs::read_to_string("/proc/self/net/route").ok()?;
    if has_network(&routes) {
        return None;
    }
    prefix_of(&rustix::system::uname().nodename().to_string_lossy())
}

/// Whether the kernel's table `routes` leads through any device but the loopback one.
fn has_network(routes: &str) -> bool {
    routes.lines().skip(1).filter_map(|line| line.split_whitespace().next()).any(|device| device != "lo")
}

/// All but the last character of `name`, which is not empty. A name with a domain has another name already.
fn prefix_of(name: &str) -> Option<String> {
    let (last, _) = name.char_indices().next_back()?;
    (last > 0 && !name.contains('.')).then(|| name[..last].to_owned())
}

/// The file of hints for ROMIO, in the run's twin directory, which is at one place on the host and in each VM.
pub const HINTS_NAME: &str = "romio-hints";
/// Its content. To write data that is not contiguous, ROMIO reads a stretch of the file, changes it and writes it back under
/// a lock. Locks do not reach from one VM to another, so what another VM wrote meanwhile would be lost.
pub const HINTS: &str = "romio_ds_write disable\n";

/// What MPI-IO needs set where ranks of several VMs write to one file; a caller's own hints are left alone.
pub fn files(flavour: Flavour, dir: &Path) -> Environment {
    let mut env = Environment::new();
    // Open MPI has ROMIO, too, if asked for it.
    if std::env::var_os("ROMIO_HINTS").is_none() {
        env.push(variable("ROMIO_HINTS", rundir::shm_twin(dir).join(HINTS_NAME)));
    }
    if flavour.is_open_mpi() {
        // OMPIO's own way to do the same.
        env.push(variable("OMPI_MCA_fbtl_posix_write_datasieving", "0"));
    }
    if flavour == Flavour::Intel {
        // Unless told to check, it takes every file system for NFS, whose driver always takes this path; and it does not
        // know the type of the shares.
        env.push(variable("I_MPI_FILESYSTEM", "on"));
        env.push(variable("I_MPI_FILESYSTEM_FORCE", "ufs"));
    }
    env
}

/// Where and how a launcher starts its ranks.
#[derive(Clone, Copy, Debug)]
pub struct Placement<'a> {
    /// The run's directory.
    pub dir: &'a Path,
    /// The remote shell; `None` where everything runs on this host.
    pub remote_shell: Option<&'a Path>,
    /// The host file; `None` where everything runs on this host and the line says how many.
    pub hosts: Option<&'a Path>,
    /// How many lines it has.
    pub host_count: usize,
    /// How ranks are dealt out to hosts.
    pub map: Map,
    /// Whether ranks run on this host beside others in VMs.
    pub mixed: bool,
    /// Whether some host has fewer processors than ranks.
    pub crowded: bool,
    /// The result of [`alias_prefix`].
    pub alias: Option<&'a str>,
}

/// What the launcher needs set: its remote shell and host list, and where it may leave files.
pub fn launcher(flavour: Flavour, place: &Placement) -> Environment {
    match flavour {
        Flavour::OpenMpi => prrte(place),
        Flavour::OpenMpi4 => orte(place),
        Flavour::Mpich => hydra(place),
        Flavour::Intel => intel_hydra(place),
    }
}

fn variable(name: &str, value: impl AsRef<OsStr>) -> (OsString, OsString) {
    (name.into(), value.as_ref().to_owned())
}

/// The policy `by node`, with the qualifiers that the caller's own setting has, for instance `:oversubscribe`.
/// `None` where the caller has chosen a policy.
fn by_node(own: Option<&str>) -> Option<String> {
    match own {
        Some(own) if own.starts_with(':') => Some(format!("node{own}")),
        Some(own) if !own.is_empty() => None,
        _ => Some("node".into()),
    }
}

/// Whether the launcher may count fewer places than it is to start ranks. The host file has a place for each rank of the
/// short form, but on the host itself an allocation (as Slurm's) takes precedence over that file.
fn may_oversubscribe(place: &Placement) -> bool {
    place.crowded && place.remote_shell.is_none()
}

/// PRRTE's mapping policy; `None` to leave it as it is.
fn policy(place: &Placement, own: Option<&str>) -> Option<String> {
    const OVERSUBSCRIBE: &str = ":oversubscribe";
    match place.map {
        Map::Cyclic => by_node(own.or(may_oversubscribe(place).then_some(OVERSUBSCRIBE))),
        Map::Block if may_oversubscribe(place) && own.is_none_or(str::is_empty) => Some(OVERSUBSCRIBE.into()),
        Map::Block => None,
    }
}

/// Open MPI's shared files are mapped, as they are by default. Another component that may be asked makes a file `/dev/shm/open_mpi.NNNN` to try
/// whether it can, and a rank that is killed then leaves it.
const SHMEM: (&str, &str) = ("OMPI_MCA_shmem", "mmap");

/// How many threads besides its main one a launcher's daemon uses to fork ranks.
///
/// With such threads (PRRTE's daemons by default, ORTE's and both launchers themselves from 32 ranks on), one thread learns
/// of a rank's start and another one of its end. The end of a rank that lives for milliseconds can come first: then the
/// launcher misses one of the two events, and waits for it for ever. In one thread the start comes first.
const FORKS_IN_THREADS: &str = "0";

/// A setting that gives way to the caller's own.
fn unless_set(name: &str, value: &str) -> Option<(OsString, OsString)> {
    std::env::var_os(name).is_none().then(|| variable(name, value))
}

fn prrte(place: &Placement) -> Environment {
    let mut env = Environment::new();
    if let Some(shell) = place.remote_shell {
        env.push(variable("PRTE_MCA_plm_ssh_agent", shell));
        // Daemons that start daemons would need the remote shell in a VM.
        env.push(variable("PRTE_MCA_plm_ssh_no_tree_spawn", "1"));
        // Its daemons map files there, which a directory that is shared with the host does not allow.
        env.push(variable("PRTE_MCA_prte_remote_tmpdir_base", "/dev/shm"));
        if let Some(prefix) = place.alias {
            env.push(variable(STRIP_VARIABLE, prefix));
        }
    }
    if let Some(hosts) = place.hosts {
        env.push(variable("PRTE_MCA_prte_default_hostfile", hosts));
    }
    env.extend(unless_set("PRTE_MCA_odls_base_max_threads", FORKS_IN_THREADS));
    env.extend(unless_set(SHMEM.0, SHMEM.1));
    const POLICY: &str = "PRTE_MCA_rmaps_default_mapping_policy";
    if let Some(policy) = policy(place, std::env::var(POLICY).ok().as_deref()) {
        env.push(variable(POLICY, policy));
    }
    if place.crowded {
        // Its default binding would fail, and ranks that share a processor must not spin for long.
        env.push(variable("PRTE_MCA_hwloc_default_binding_policy", "none"));
        env.push(variable("OMPI_MCA_mpi_yield_when_idle", "1"));
    }
    // A killed job leaves its session directory and its mapped files behind: put them into the run's directories.
    let shm = rundir::shm_twin(place.dir);
    env.push(variable("PRTE_MCA_prte_local_tmpdir_base", place.dir));
    for component in ["btl_sm", "osc_sm", "osc_rdma"] {
        env.push(variable(&format!("OMPI_MCA_{component}_backing_directory"), &shm));
    }
    env
}

/// ORTE is PRRTE's forebear: the same settings under older names.
fn orte(place: &Placement) -> Environment {
    let mut env = Environment::new();
    if let Some(shell) = place.remote_shell {
        env.push(variable("OMPI_MCA_plm_rsh_agent", shell));
        env.push(variable("OMPI_MCA_plm_rsh_no_tree_spawn", "1"));
        // From this number on, daemons would send messages through other daemons, and no relay carries those.
        env.push(variable("OMPI_MCA_routed_radix_children", (place.host_count + 1).to_string()));
    }
    if let Some(hosts) = place.hosts {
        env.push(variable("OMPI_MCA_orte_default_hostfile", hosts));
    }
    env.extend(unless_set("OMPI_MCA_odls_base_num_threads", FORKS_IN_THREADS));
    env.extend(unless_set(SHMEM.0, SHMEM.1));
    const POLICY: &str = "OMPI_MCA_rmaps_base_mapping_policy";
    if let Some(policy) =
        (place.map == Map::Cyclic).then(|| by_node(std::env::var(POLICY).ok().as_deref())).flatten()
    {
        env.push(variable(POLICY, policy));
    }
    const OVERSUBSCRIBE: &str = "OMPI_MCA_rmaps_base_oversubscribe";
    if may_oversubscribe(place) && std::env::var_os(OVERSUBSCRIBE).is_none() {
        env.push(variable(OVERSUBSCRIBE, "1"));
    }
    if place.crowded {
        env.push(variable("OMPI_MCA_hwloc_base_binding_policy", "none"));
        env.push(variable("OMPI_MCA_mpi_yield_when_idle", "1"));
    }
    let shm = rundir::shm_twin(place.dir);
    // One for all hosts: ORTE passes a single base on to its ranks, which refuse a second one.
    env.push(variable("OMPI_MCA_orte_tmpdir_base", &shm));
    for component in ["btl_vader", "osc_sm", "osc_rdma"] {
        env.push(variable(&format!("OMPI_MCA_{component}_backing_directory"), &shm));
    }
    if rundir::is_short_of_shared(place.dir) {
        // Its PMIx keeps what ranks tell one another in two files of 4 MiB there. Without room for them the launcher either
        // dies or waits for ever for ranks that wait for it; this way has no files.
        env.extend(unless_set("PMIX_MCA_gds", "hash"));
    }
    env
}

fn hydra(place: &Placement) -> Environment {
    let mut env = Environment::new();
    if let Some(shell) = place.remote_shell {
        env.push(variable("HYDRA_LAUNCHER", "ssh"));
        env.push(variable("HYDRA_LAUNCHER_EXEC", shell));
    }
    if let Some(hosts) = place.hosts {
        env.push(variable("HYDRA_HOST_FILE", hosts));
    }
    env
}

/// Its host file is an argument: see [`super::arguments`].
fn intel_hydra(place: &Placement) -> Environment {
    let mut env = Environment::new();
    if let Some(shell) = place.remote_shell {
        env.push(variable("I_MPI_HYDRA_BOOTSTRAP", "ssh"));
        env.push(variable("I_MPI_HYDRA_BOOTSTRAP_EXEC", shell));
        // Proxies that start proxies would need the remote shell in a VM.
        env.push(variable("I_MPI_HYDRA_BRANCH_COUNT", (place.host_count + 1).to_string()));
    }
    if place.crowded {
        env.push(variable("I_MPI_PIN", "off"));
    }
    if place.mixed {
        // Each rank would choose its collectives' algorithms by its own processor, and a VM's differs from the host's.
        env.push(variable("I_MPI_PLATFORM", "generic"));
    }
    // The files that it maps go where they are removed with the run.
    env.push(variable("I_MPI_SHM_FILE_PREFIX_4K", rundir::shm_twin(place.dir)));
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_mpi_reads_before_it_writes_where_locks_do_not_reach() {
        let names = |flavour| -> Vec<_> {
            files(flavour, Path::new("/tmp/isthmus-x")).into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names(Flavour::Mpich), ["ROMIO_HINTS"]);
        assert_eq!(names(Flavour::Intel), ["ROMIO_HINTS", "I_MPI_FILESYSTEM", "I_MPI_FILESYSTEM_FORCE"]);
        for flavour in [Flavour::OpenMpi, Flavour::OpenMpi4] {
            assert_eq!(names(flavour), ["ROMIO_HINTS", "OMPI_MCA_fbtl_posix_write_datasieving"]);
        }
    }

    #[test]
    fn more_ranks_than_processors_are_no_mistake_on_the_host() {
        let of = |map, crowded, remote_shell, own| {
            let place = Placement {
                dir: Path::new("/d"),
                remote_shell,
                hosts: None,
                host_count: 1,
                map,
                mixed: false,
                crowded,
                alias: None,
            };
            policy(&place, own)
        };
        assert_eq!(of(Map::Block, true, None, None).as_deref(), Some(":oversubscribe"));
        assert_eq!(of(Map::Cyclic, true, None, None).as_deref(), Some("node:oversubscribe"));
        assert_eq!(of(Map::Block, true, None, Some("core")), None);
        assert_eq!(of(Map::Block, false, None, None), None);
        assert_eq!(of(Map::Block, true, Some(Path::new("/a")), None), None);
        assert_eq!(of(Map::Cyclic, true, None, Some(":pe=2")).as_deref(), Some("node:pe=2"));
        assert_eq!(of(Map::Cyclic, false, None, Some("slot")), None);
    }

    #[test]
    fn no_launcher_forks_ranks_in_threads_and_no_rank_tries_files() {
        let place = Placement {
            dir: Path::new("/d"),
            remote_shell: None,
            hosts: None,
            host_count: 1,
            map: Map::Block,
            mixed: false,
            crowded: false,
            alias: None,
        };
        for (flavour, name) in [
            (Flavour::OpenMpi, "PRTE_MCA_odls_base_max_threads"),
            (Flavour::OpenMpi4, "OMPI_MCA_odls_base_num_threads"),
        ] {
            let set = launcher(flavour, &place);
            assert_eq!(set.iter().find(|(known, _)| known == name), Some(&variable(name, "0")));
            // And no rank makes a file to try whether it can.
            let shmem = set.iter().find(|(known, _)| known == "OMPI_MCA_shmem");
            assert_eq!(shmem, Some(&variable("OMPI_MCA_shmem", "mmap")));
        }
    }

    #[test]
    fn a_host_with_loopback_only_gets_another_name() {
        let head = "Iface\tDestination\tGateway\n";
        assert!(!has_network(head));
        assert!(!has_network(&format!("{head}lo\t0000007F\t00000000\n")));
        assert!(has_network(&format!("{head}eth0\t00000000\t010200C0\n")));
        assert_eq!(prefix_of("node1").as_deref(), Some("node"));
        assert_eq!(prefix_of("node1.example"), None);
        assert_eq!(prefix_of("x"), None);
    }
}
