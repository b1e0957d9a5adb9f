//! Finding an MPI, its environment, its launcher line.
//!
//! Everything that a launcher must know of isthmus goes through its environment and a host file: PRRTE and Hydra
//! read their remote shell, their host list and the MPI's own settings from there as well as from their command
//! line. So a full launcher line is executed exactly as it was written, with any number of application
//! contexts, and what the user writes on it wins. Intel's Hydra alone gets its host list in front of the line.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::spec::{Map, RunSpec};

mod elsewhere;
mod find;
mod settings;

pub use crate::libraries::provider_directory;
pub use find::{find, is_on_path};
pub use settings::{
    Environment, HINTS, HINTS_NAME, Placement, STRIP_VARIABLE, alias_prefix, files, home, launcher, transport,
};

/// Names under which a launcher may be called.
pub const LAUNCHER_NAMES: [&str; 9] = [
    "mpirun",
    "mpiexec",
    "prterun",
    "orterun",
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

/// The MPIs whose launchers isthmus knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Open MPI 5: PRRTE.
    OpenMpi,
    /// Open MPI 4: ORTE.
    OpenMpi4,
    /// MPICH: Hydra.
    Mpich,
    /// Intel MPI: a Hydra of its own.
    Intel,
}

impl Flavour {
    /// Its name, by which `--mpi` knows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "openmpi",
            Self::OpenMpi4 => "openmpi4",
            Self::Mpich => "mpich",
            Self::Intel => "intel",
        }
    }

    /// Its name as its makers write it.
    pub fn title(self) -> &'static str {
        match self {
            Self::OpenMpi | Self::OpenMpi4 => "Open MPI",
            Self::Mpich => "MPICH",
            Self::Intel => "Intel MPI",
        }
    }

    /// Whether it is an Open MPI, of whatever version.
    pub fn is_open_mpi(self) -> bool {
        matches!(self, Self::OpenMpi | Self::OpenMpi4)
    }

    /// The flavours that `name` may mean, the usual one first; `None` if it is not the name of an MPI.
    pub fn named(name: &str) -> Option<&'static [Self]> {
        match name {
            "openmpi" | "ompi" => Some(&[Self::OpenMpi, Self::OpenMpi4]),
            "openmpi5" => Some(&[Self::OpenMpi]),
            "openmpi4" => Some(&[Self::OpenMpi4]),
            "mpich" => Some(&[Self::Mpich]),
            "intel" | "impi" | "intelmpi" => Some(&[Self::Intel]),
            _ => None,
        }
    }
}

/// A launcher that was found.
#[derive(Clone, Debug)]
pub struct Mpi {
    /// Which MPI it belongs to.
    pub flavour: Flavour,
    /// Its version as it says it.
    pub version: String,
    /// Where it is.
    pub launcher: PathBuf,
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
///
/// Both Hydras fill their hosts in the order of the file, so a cyclic map is written out for them; Open MPI's launchers
/// are told the map (see [`launcher`]).
pub fn host_file(flavour: Flavour, hosts: &[Host], map: Map) -> String {
    let colon = |host: &Host| format!("{}:{}\n", host.name, host.slots);
    match (flavour, map) {
        (Flavour::OpenMpi | Flavour::OpenMpi4, _) => {
            hosts.iter().map(|host| format!("{} slots={}\n", host.name, host.slots)).collect()
        }
        (Flavour::Mpich | Flavour::Intel, Map::Block) => hosts.iter().map(colon).collect(),
        (Flavour::Mpich | Flavour::Intel, Map::Cyclic) => dealt(hosts).iter().map(colon).collect(),
    }
}

/// The places of `hosts` dealt out one by one in rounds, as long as a host has any left.
pub(crate) fn dealt(hosts: &[Host]) -> Vec<Host> {
    let rounds = hosts.iter().map(|host| host.slots).max().unwrap_or(0);
    (0..rounds)
        .flat_map(|round| hosts.iter().filter(move |host| host.slots > round))
        .map(|host| Host { name: host.name.clone(), slots: 1 })
        .collect()
}

/// The arguments of the launcher, itself excluded; `hosts` is the host file.
pub fn arguments(spec: &RunSpec, flavour: Flavour, hosts: Option<&Path>) -> Vec<OsString> {
    let mut line = Vec::new();
    // Intel's Hydra takes this from its command line only: its variable for a host file ignores how many ranks each
    // host takes.
    if let Some(hosts) = hosts.filter(|_| flavour == Flavour::Intel) {
        line.extend(["-machinefile".into(), hosts.into()]);
    }
    match spec.ranks {
        None => line.extend_from_slice(&spec.command[1..]),
        Some(ranks) => {
            line.extend(spec.mpi_args.iter().cloned());
            line.extend(["-n".into(), ranks.to_string().into()]);
            line.extend(spec.command.iter().cloned());
        }
    }
    line
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

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
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
        assert_eq!(arguments(&spec, Flavour::OpenMpi, None), command[1..]);
        let short = RunSpec {
            ranks: Some(2),
            mpi_args: words("--tag-output"),
            command: words("./a b"),
            ..RunSpec::default()
        };
        let hosts = Path::new("/h");
        let of = |flavour| arguments(&short, flavour, Some(hosts));
        assert_eq!(of(Flavour::Mpich), words("--tag-output -n 2 ./a b"));
        assert_eq!(of(Flavour::Intel), words("-machinefile /h --tag-output -n 2 ./a b"));
    }

    #[test]
    fn every_name_leads_back_to_its_mpi() {
        for flavour in [Flavour::OpenMpi, Flavour::OpenMpi4, Flavour::Mpich, Flavour::Intel] {
            assert_eq!(Flavour::named(flavour.name()).and_then(<[_]>::first), Some(&flavour));
        }
        assert_eq!(Flavour::named("/opt/mpi"), None);
    }

    #[test]
    fn a_cyclic_map_deals_all_places_in_rounds() {
        let hosts = [("a", 3), ("b", 1), ("c", 2)].map(|(name, slots)| Host { name: name.into(), slots });
        assert_eq!(host_file(Flavour::Intel, &hosts, Map::Cyclic), "a:1\nb:1\nc:1\na:1\nc:1\na:1\n");
        assert_eq!(host_file(Flavour::Intel, &hosts, Map::Block), "a:3\nb:1\nc:2\n");
        assert_eq!(host_file(Flavour::OpenMpi4, &hosts, Map::Cyclic), "a slots=3\nb slots=1\nc slots=2\n");
    }
}
