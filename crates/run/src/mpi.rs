//! Finding an MPI, its environment, its launcher line.
//!
//! Everything that a launcher must know of us goes through its environment and a host file: PRRTE and Hydra
//! read their agent, their host list and the MPI's own settings from there as well as from their command
//! line. So a full launcher line is executed exactly as it was written, with any number of application
//! contexts, and what the user writes on it wins.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Error, Result};
use crate::rundir;
use crate::spec::RunSpec;

/// Names under which a launcher may be called.
const LAUNCHER_NAMES: [&str; 8] = [
    "mpirun",
    "mpiexec",
    "prterun",
    "mpiexec.hydra",
    "mpirun.openmpi",
    "mpiexec.openmpi",
    "mpirun.mpich",
    "mpiexec.mpich",
];

/// Whether `path` is called like a launcher.
pub fn is_launcher_name(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|name| LAUNCHER_NAMES.contains(&name))
}

/// The MPIs whose launchers we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Open MPI 5: PRRTE.
    OpenMpi,
    /// MPICH: Hydra.
    Mpich,
}

impl Flavour {
    /// The name by which `--mpi` knows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "openmpi",
            Self::Mpich => "mpich",
        }
    }

    /// The flavour called `name`.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "openmpi" | "ompi" => Some(Self::OpenMpi),
            "mpich" => Some(Self::Mpich),
            _ => None,
        }
    }
}

/// A launcher that was found.
#[derive(Clone, Debug)]
pub struct Mpi {
    /// Whose it is.
    pub flavour: Flavour,
    /// Its version as it says it.
    pub version: String,
    /// Where it is.
    pub launcher: PathBuf,
}

/// Tells flavour and version from what `--version` printed.
fn parse_version(text: &str) -> Option<(Flavour, String)> {
    for line in text.lines() {
        if let Some((_, version)) = line.split_once("(Open MPI)") {
            let version = version.trim().to_owned();
            // Version 4 and older start ranks through ORTE, whose agent line and address syntax differ.
            let major: u32 = version.split('.').next()?.parse().ok()?;
            return (major >= 5).then_some((Flavour::OpenMpi, version));
        }
        if let Some((_, version)) = line.trim().split_once("Version:")
            && text.starts_with("HYDRA")
        {
            return Some((Flavour::Mpich, version.trim().to_owned()));
        }
    }
    None
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn identify(launcher: &Path) -> Result<Mpi> {
    let output = Command::new(launcher)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::io(format!("cannot run {} --version", launcher.display()), e))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Some((flavour, version)) = parse_version(&text) else {
        let said = text.lines().next().unwrap_or("it printed nothing").trim().to_owned();
        return Err(Error::UnknownMpi { launcher: launcher.to_owned(), said });
    };
    Ok(Mpi { flavour, version, launcher: launcher.to_owned() })
}

fn on_path(names: &[&str]) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .flat_map(|dir| names.iter().map(move |name| dir.join(name)).collect::<Vec<_>>())
        .filter(|file| is_executable(file))
        .collect()
}

/// Finds the launcher: that of `line` if it names one with a path, else the one that `--mpi` asks for, else
/// the first on the PATH.
///
/// # Errors
/// [`Error::NoMpi`], [`Error::UnknownMpi`].
pub fn find(mpi: Option<&str>, line: Option<&OsStr>) -> Result<Mpi> {
    if let Some(word) = line.filter(|word| word.as_encoded_bytes().contains(&b'/')) {
        return identify(Path::new(word));
    }
    let word = line.and_then(OsStr::to_str);
    let names = match word {
        Some(word) => vec![word],
        None => vec!["mpirun", "mpiexec"],
    };
    match mpi {
        None => {
            let found = on_path(&names);
            let first = found.first().ok_or_else(|| Error::NoMpi {
                looked: format!("there is no {} on the PATH", names.join(" or ")),
            })?;
            identify(first)
        }
        Some(name) => match Flavour::parse(name) {
            Some(flavour) => {
                // Debian installs several side by side under names with a suffix.
                let suffixed: Vec<String> = names.iter().map(|n| format!("{n}.{}", flavour.name())).collect();
                let all: Vec<&str> =
                    names.iter().copied().chain(suffixed.iter().map(String::as_str)).collect();
                on_path(&all)
                    .iter()
                    .filter_map(|file| identify(file).ok())
                    .find(|mpi| mpi.flavour == flavour)
                    .ok_or_else(|| Error::NoMpi {
                        looked: format!("no {} of {name} is on the PATH", names.join(" or ")),
                    })
            }
            None => {
                let dir = Path::new(name);
                let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
                let found = [absolute.join("bin"), absolute]
                    .iter()
                    .flat_map(|dir| names.iter().map(|name| dir.join(name)).collect::<Vec<_>>())
                    .find(|file| is_executable(file))
                    .ok_or_else(|| Error::NoMpi {
                        looked: format!("{name} holds no bin/{}", names.join(" or bin/")),
                    })?;
                identify(&found)
            }
        },
    }
}

/// Variables in the order in which they are set.
pub type Environment = Vec<(OsString, OsString)>;

/// What an MPI needs set so that its ranks use our provider, whoever starts them.
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
        Flavour::Mpich => {
            set("MPIR_CVAR_CH4_NETMOD", "ofi");
            if through_region {
                set("MPIR_CVAR_NOLOCAL", "1");
            }
        }
    }
    env
}

/// One line of the host list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// How many ranks it takes.
    pub slots: u32,
}

/// The text of the host file.
pub fn host_file(flavour: Flavour, hosts: &[Host]) -> String {
    hosts
        .iter()
        .map(|host| match flavour {
            Flavour::OpenMpi => format!("{} slots={}\n", host.name, host.slots),
            Flavour::Mpich => format!("{}:{}\n", host.name, host.slots),
        })
        .collect()
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
    // Not /sys/class/net: that shows the network name space of whoever mounted it.
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

/// What the launcher needs set: its agent and host list, and where it may leave files.
///
/// `agent` and `hosts` are paths; both `None` where everything runs on this host and the line says how many.
/// `crowded` says that some host has fewer processors than ranks; `alias` is that of [`alias_prefix`].
pub fn launcher(
    flavour: Flavour,
    dir: &Path,
    agent: Option<&Path>,
    hosts: Option<&Path>,
    crowded: bool,
    alias: Option<&str>,
) -> Environment {
    let mut env: Environment = Vec::new();
    let mut set = |name: &str, value: &OsStr| env.push((name.into(), value.into()));
    match flavour {
        Flavour::OpenMpi => {
            if let Some(agent) = agent {
                set("PRTE_MCA_plm_ssh_agent", agent.as_os_str());
                // Daemons that start daemons would look for our agent in a VM.
                set("PRTE_MCA_plm_ssh_no_tree_spawn", OsStr::new("1"));
                // Its daemons map files there, which a directory that is shared with the host does not allow.
                set("PRTE_MCA_prte_remote_tmpdir_base", OsStr::new("/dev/shm"));
                if let Some(prefix) = alias {
                    set(STRIP_VARIABLE, OsStr::new(prefix));
                }
            }
            if let Some(hosts) = hosts {
                set("PRTE_MCA_prte_default_hostfile", hosts.as_os_str());
            }
            if crowded {
                // Its default binding would refuse, and ranks that share a processor must not spin for long.
                set("PRTE_MCA_hwloc_default_binding_policy", OsStr::new("none"));
                set("OMPI_MCA_mpi_yield_when_idle", OsStr::new("1"));
            }
            // A killed job leaves its session directory and its mapped files behind: let it be in ours.
            let shm = rundir::shm_twin(dir);
            set("PRTE_MCA_prte_local_tmpdir_base", dir.as_os_str());
            for component in ["btl_sm", "osc_sm", "osc_rdma"] {
                set(&format!("OMPI_MCA_{component}_backing_directory"), shm.as_os_str());
            }
        }
        Flavour::Mpich => {
            if let Some(agent) = agent {
                set("HYDRA_LAUNCHER", OsStr::new("ssh"));
                set("HYDRA_LAUNCHER_EXEC", agent.as_os_str());
            }
            if let Some(hosts) = hosts {
                set("HYDRA_HOST_FILE", hosts.as_os_str());
            }
        }
    }
    env
}

/// The arguments of the launcher, itself excluded.
pub fn arguments(spec: &RunSpec) -> Vec<OsString> {
    match spec.ranks {
        None => spec.command[1..].to_vec(),
        Some(ranks) => {
            let mut line = spec.mpi_args.clone();
            line.extend(["-n".into(), ranks.to_string().into()]);
            line.extend(spec.command.iter().cloned());
            line
        }
    }
}

/// How many ranks a full launcher line asks for: the sum over its application contexts, `None` if one of
/// them leaves it open.
pub fn ranks_of_line(line: &[OsString]) -> Option<u32> {
    let mut total = 0u32;
    for context in line.get(1..)?.split(|word| word == ":") {
        let at = context
            .iter()
            .position(|word| matches!(word.to_str(), Some("-n" | "--n" | "-np" | "--np" | "-c")))?;
        total = total.checked_add(context.get(at + 1)?.to_str()?.parse().ok()?)?;
    }
    Some(total)
}

/// The directory that holds `libisthmus-fi.so`: `ISTHMUS_PROVIDER_PATH`, else beside this program or where
/// `make install` puts it.
///
/// # Errors
/// [`Error::NoProvider`].
pub fn provider_directory() -> Result<PathBuf> {
    // As installed, and as cargo calls it; libfabric takes whatever ends in `fi.so`.
    const NAMES: [&str; 2] = ["libisthmus-fi.so", "libisthmus_fi.so"];
    let mut places = Vec::new();
    if let Some(dir) = std::env::var_os("ISTHMUS_PROVIDER_PATH") {
        places.push(PathBuf::from(dir));
    } else if let Some(dir) = std::env::current_exe().ok().as_deref().and_then(Path::parent) {
        places.extend(["../lib/isthmus", "lib/isthmus", "."].map(|place| dir.join(place)));
    }
    let found = places.iter().find(|dir| NAMES.iter().any(|name| dir.join(name).is_file()));
    match found {
        Some(dir) => fs::canonicalize(dir).map_err(|e| Error::io(dir.display().to_string(), e)),
        None => Err(Error::NoProvider {
            looked: places.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", "),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn versions_tell_the_mpi() {
        let ompi = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n";
        assert_eq!(parse_version(ompi), Some((Flavour::OpenMpi, "5.0.11".into())));
        let hydra = "HYDRA build details:\n    Version:                                 5.0.2\n    CC: cc\n";
        assert_eq!(parse_version(hydra), Some((Flavour::Mpich, "5.0.2".into())));
        assert_eq!(parse_version("mpirun (Open MPI) 4.1.4\n"), None);
        assert_eq!(parse_version("Intel(R) MPI Library for Linux* OS, Version 2021.18"), None);
        assert_eq!(parse_version(""), None);
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

    #[test]
    fn ranks_of_a_line_are_those_of_all_its_contexts() {
        assert_eq!(ranks_of_line(&words("mpirun -n 4 --mca a b ./a : -np 2 ./b")), Some(6));
        assert_eq!(ranks_of_line(&words("mpirun -n 4 ./a : ./b")), None);
        assert_eq!(ranks_of_line(&words("mpirun -n x ./a")), None);
    }

    #[test]
    fn a_full_line_is_taken_as_it_is() {
        let command = words("mpirun -n 4 --mca a b ./a : -n 2 ./b");
        let spec = RunSpec { command: command.clone(), ..RunSpec::default() };
        assert!(spec.is_launcher_line());
        assert_eq!(arguments(&spec), command[1..]);
        let short = RunSpec {
            ranks: Some(2),
            mpi_args: words("--tag-output"),
            command: words("./a b"),
            ..RunSpec::default()
        };
        assert_eq!(arguments(&short), words("--tag-output -n 2 ./a b"));
    }
}
