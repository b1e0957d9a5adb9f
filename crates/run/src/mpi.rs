//! Finding an MPI, its environment, its launcher line.
//!
//! Everything that a launcher must know of isthmus goes through its environment and a host file: PRRTE and Hydra
//! read their remote shell, their host list and the MPI's own settings from there as well as from their command
//! line. So a full launcher line is executed exactly as it was written, with any number of application
//! contexts, and what the user writes on it wins. Intel's Hydra alone gets its host list in front of the line.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::named;
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
    let contexts = line.get(1..)?.split(|word| word == ":");
    contexts.map(ranks_of_context).try_fold(0u32, |total, ranks| total.checked_add(ranks?))
}

/// The same of one context. It ends with its program: what follows is that one's, and `-n` means anything there.
fn ranks_of_context(mut words: &[OsString]) -> Option<u32> {
    while let [word, rest @ ..] = words {
        let option = word.to_str()?.strip_prefix('-')?;
        let name = option.strip_prefix('-').unwrap_or(option);
        let values = match name.split_once('=') {
            Some((name, ranks)) if COUNTS.contains(&name) => return ranks.parse().ok(),
            Some(_) => 0,
            None if COUNTS.contains(&name) => return rest.first()?.to_str()?.parse().ok(),
            None => values_of(option, name, rest),
        };
        words = rest.get(values..)?;
    }
    None
}

/// The options that say how many ranks there are, without their dashes.
const COUNTS: [&str; 4] = ["n", "np", "c", "nprocs"];

/// Options with two values.
#[rustfmt::skip]
const TWO_VALUES: [&str; 12] = [
    "mca", "omca", "gmca", "pmca", "prtemca", "pmixmca", "gpmixmca", "gprtemca", "append-env", "prepend-env", "env", "genv",
];

/// Options with one value: of PRRTE and ORTE, of Hydra, and of Intel's.
#[rustfmt::skip]
const ONE_VALUE: [&str; 122] = [
    "add-host", "add-hostfile", "am", "app", "appfile", "bind-to", "cartofile", "cf", "cpu-list", "cpu-set", "cpus-per-proc",
    "cpus-per-rank", "debugger", "default-hostfile", "display", "dvm", "dvm-uri", "forward-signals", "fwd-environment",
    "gpu-support", "H", "hnp", "host", "hostfile", "initial-errhandler", "keepalive", "launch-agent", "machinefile", "map-by",
    "max-restarts", "max-vm-size", "mem-limit", "memory-limit", "N", "namespace", "npernode", "npersocket", "num-connect-retries",
    "ompi-server", "output", "output-directory", "output-filename", "path", "personality", "pid", "ppr", "prefix",
    "preload-files", "pset", "rank-by", "rankfile", "report-events", "report-pid", "report-uri", "rf", "rtos", "runtime-options",
    "server-wait-time", "slot-list", "stdin", "timeout", "tmpdir", "unset-env", "wd", "wdir", "with-ft", "x", "xml-file", "xterm",
    "arch", "binding", "bootstrap", "bootstrap-exec", "bootstrap-exec-args", "branch-count", "ckpoint-interval", "ckpoint-num",
    "ckpoint-prefix", "ckpointlib", "configfile", "demux", "envexcl", "envlist", "errfile", "errfile-pattern", "f", "file",
    "genvexcl", "genvlist", "gpath", "gpus-per-proc", "grr", "gtool", "gtoolfile", "gumask", "gwdir", "hostlist", "hosts",
    "hosts-group", "iface", "launcher", "launcher-exec", "localhost", "logfile", "membind", "memory-alloc-kinds", "nameserver",
    "nodelist", "order-nodes", "outfile", "outfile-pattern", "perhost", "pmi-port-range", "port", "ppn", "prepend-pattern",
    "rankmap", "rmk", "soft", "topolib", "umask", "usize",
];

/// How many values the option called `name` has, of the words that come after it. `option` is it with its second dash, if it has one.
fn values_of(option: &str, name: &str, rest: &[OsString]) -> usize {
    let next = rest.first().and_then(|word| word.to_str()).unwrap_or_default();
    match name {
        // Hydra takes both in one word, too.
        "env" | "genv" if next.contains('=') => 1,
        _ if TWO_VALUES.contains(&name) => 2,
        _ if ONE_VALUE.contains(&name) => 1,
        // With one dash Intel's value may be missing.
        "tune" => usize::from(option.starts_with('-') || !is_no_value(next)),
        // Whose input goes where, with Hydra; with Open MPI it has no value.
        "s" => usize::from(matches!(next, "all" | "none") || is_number(next)),
        // No program is called like a number.
        _ => usize::from(is_number(next) || !is_no_value(next)),
    }
}

/// Whether a word, after an option that is not known here, cannot be that option's value: there is none, it is an option itself, or it
/// may be the program. A path may be one even if nothing is there yet, but not if a file is there that may not be executed.
fn is_no_value(word: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_program = named::is_program(word.as_ref(), &path).is_ok();
    word.is_empty()
        || word.starts_with('-')
        || is_program
        || (word.contains('/') && !Path::new(word).is_file())
}

fn is_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
        && !word.contains(|c: char| c.is_ascii_alphabetic() || c == '/')
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
    fn a_programs_own_options_say_nothing_of_ranks() {
        for (line, ranks) in [
            ("mpirun ./heat -n 100", None),
            ("mpirun -n 2 ./heat -n 100", Some(2)),
            ("mpirun -n 2 ./heat -n 100 : -np 3 ./heat -np 7 -c 5", Some(5)),
            ("mpirun -n 2 ./heat : ./heat -n 100", None),
            // Values before the program, which is not one of them.
            ("mpirun --mca btl self,tcp --map-by node -x PATH ./heat -n 100", None),
            ("mpirun --mca btl self,tcp --map-by node -x PATH -n 4 ./heat -n 100", Some(4)),
            ("mpirun --host vm0:2,vm1:2 --oversubscribe -np 4 ./heat", Some(4)),
            ("mpiexec -genv A 1 -genv B=2 -f hosts -ppn 2 -l -n 8 ./heat -n 1", Some(8)),
            ("mpiexec -genv A=1 ./heat -n 1", None),
            ("mpiexec -s all -n 3 ./heat", Some(3)),
            ("mpirun --tag-output --timeout 30 --np=6 ./heat", Some(6)),
            ("mpirun --new-option 7 -n 3 ./heat", Some(3)),
            ("mpirun --new-option ./heat -n 3", None),
            ("mpirun --new-option my.conf -n 3 ./heat", Some(3)),
            ("mpirun --new-option /etc/passwd -n 3 ./heat", Some(3)),
            ("mpirun --new-option env -n 3 ./heat", None),
            ("mpirun -tune my.conf -n 8 ./heat", Some(8)),
            ("mpirun --oversubscribe -n 8 ./heat", Some(8)),
            ("mpirun --prepend-env A b -outfile o -n 8 ./heat", Some(8)),
            // What starts the program is a program, too.
            ("mpirun -n 4 env A=b ./heat -n 100", Some(4)),
            ("mpirun numactl -N 0 taskset -c 3 ./heat", None),
            ("mpirun -n", None),
            ("mpirun", None),
            ("mpirun --version", None),
        ] {
            assert_eq!(ranks_of_line(&words(line)), ranks, "{line}");
        }
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
