//! Which subjects there are for an MPI, and how each is launched.
//!
//! Every setting goes through the environment, so that a subject reads the same whether its launcher is run
//! directly or by `isthmus run`.

use std::path::{Path, PathBuf};

use isthmus_run::mpi::{Flavour, Mpi};

use crate::job::Launch;
use crate::record::Record;
use crate::table;

/// What all subjects of a comparison share.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The `isthmus` binary.
    pub isthmus: PathBuf,
    /// The MPI.
    pub mpi: Mpi,
    /// How many ranks.
    pub ranks: u32,
    /// How many VMs the ranks of isthmus and TCP are in; 0 for plain processes.
    pub vms: u32,
    /// Whether the program asks for `MPI_THREAD_MULTIPLE`.
    pub multiple: bool,
    /// Further arguments for `isthmus run`, the same for every subject in VMs.
    pub run_args: Vec<String>,
    /// The processors of two ranks on this host, as `0,3`; otherwise the first that they may use.
    pub pair: Option<String>,
}

/// Whom isthmus is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peers {
    /// The MPI over TCP.
    pub tcp: bool,
    /// The MPI's own shared memory, within one operating system.
    pub shared: bool,
    /// The same without the kernel's help (cross-memory attach), so that long messages are copied twice as ours are. Open
    /// MPI only.
    pub two_copy: bool,
    /// Isthmus itself in two copies, and in one wherever that can be, beside what it chooses; between VMs each of its processes may
    /// grant pages. Also with large allocations in the region.
    pub one_copy: bool,
    /// Isthmus in one copy wherever that can be, by either rule of which granted pages make room for others, beside two copies and what it
    /// chooses.
    pub replacement: bool,
    /// Isthmus in one mode beside another, and no MPI's own transports.
    pub modes: Option<Modes>,
    /// All ways of Open MPI over TCP between VMs; else two of the four, which a first look is made with.
    pub every_way: bool,
}

impl Peers {
    /// What most people choose from.
    pub const USUAL: Self = Self {
        tcp: true,
        shared: true,
        two_copy: false,
        one_copy: false,
        replacement: false,
        modes: None,
        every_way: true,
    };
}

/// How a subject's ranks are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Via {
    /// The MPI's own launcher, on this host.
    Launcher,
    /// `isthmus run`, and the ranks use the region.
    Region,
    /// `isthmus run`, and the ranks use the MPI's own transports, over the VMs' network if there is one.
    Native { tap: bool },
}

/// One thing that is measured.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Its name in records.
    pub name: &'static str,
    /// How many VMs its ranks are in.
    pub vms: u32,
    via: Via,
    /// Whether it is one of those that isthmus is compared with.
    is_peer: bool,
    /// For `isthmus run`.
    args: &'static [&'static str],
    env: Vec<(&'static str, &'static str)>,
}

/// The peer that a subject is one way of: `tcp` of `tcp-ofi`, `mpich-shm` of `mpich-shm+messages`, and else itself.
pub fn family(name: &str) -> &str {
    if is_tcp(name) { "tcp" } else { name.split('+').next().unwrap_or(name) }
}

/// Whether a subject's name stands for one of an MPI's TCP paths.
pub fn is_tcp(name: &str) -> bool {
    name == "tcp" || name.starts_with("tcp-")
}

impl Subject {
    /// Whether it is isthmus as its users have it, of which the ratios are.
    pub fn is_isthmus(&self) -> bool {
        self.via == Via::Region && !self.is_peer
    }

    /// Whether it is launched by `isthmus run`, which leaves statistics.
    pub fn by_run(&self) -> bool {
        self.via != Via::Launcher
    }

    /// What it has in its environment besides what all have.
    pub fn env(&self) -> &[(&'static str, &'static str)] {
        &self.env
    }

    /// Whether its ranks have large allocations in the region.
    pub fn allocates(&self) -> bool {
        self.args.contains(&ALLOCATING[0])
    }

    /// Whether it may take turns with others in the same VMs: it differs from them in what its ranks find in their environment.
    pub fn takes_turns(&self) -> bool {
        self.vms > 0 && self.via == Via::Region && (self.args == GRANTING || self.args == ALLOCATING)
    }

    /// The run in which such subjects take turns.
    pub fn together(subjects: &[&Self]) -> Option<Self> {
        let first = *subjects.first()?;
        let args = if subjects.iter().any(|it| it.allocates()) { &TOGETHER[..] } else { &GRANTING };
        Some(Self { args, env: Vec::new(), ..first.clone() })
    }

    /// Intel MPI's mpirun is a script that looks for its launcher on the PATH.
    fn launchers_path(&self, setting: &Setting) -> Option<(String, String)> {
        let dir = setting.mpi.launcher.parent()?;
        let needed = self.via == Via::Launcher && setting.mpi.flavour == Flavour::Intel;
        let path = std::env::var("PATH").unwrap_or_default();
        needed.then(|| ("PATH".into(), format!("{}:{path}", dir.display())))
    }

    /// Its command line, for `program` with `args`; statistics of the run go to `stats`.
    pub fn launch(&self, setting: &Setting, program: &Path, args: &[String], stats: &Path) -> Launch {
        let pair = setting.pair.as_deref().filter(|_| setting.vms == 0);
        let mut env = vec![("ISTHMUS_BENCH_PIN", pair.unwrap_or("1"))];
        // The program binds its own main thread; a launcher's binding would hold helper threads there too. Open MPI refuses
        // more ranks than processors until it is told; that its ranks must then yield it knows itself.
        let crowd = self.via == Via::Launcher && setting.ranks > processors();
        match setting.mpi.flavour {
            Flavour::OpenMpi => {
                env.push(("PRTE_MCA_hwloc_default_binding_policy", "none"));
                if crowd {
                    env.push(("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"));
                }
            }
            Flavour::OpenMpi4 => {
                env.push(("OMPI_MCA_hwloc_base_binding_policy", "none"));
                if crowd {
                    env.push(("OMPI_MCA_rmaps_base_oversubscribe", "1"));
                }
            }
            Flavour::Intel => env.push(("I_MPI_PIN", "off")),
            Flavour::Mpich => {}
        }
        if setting.multiple {
            env.push(("ISTHMUS_BENCH_THREADS", "multiple"));
        }
        env.extend(self.env.iter().copied());
        let mut words: Vec<String> = Vec::new();
        if self.via == Via::Launcher {
            words.extend(["-n".into(), setting.ranks.to_string()]);
        } else {
            let mpi = setting.mpi.launcher.parent().unwrap_or(Path::new("."));
            let (vms, ranks) = (self.vms.to_string(), setting.ranks.to_string());
            words.extend(["run", "--vms", &vms, "-n", &ranks, "--mpi"].map(String::from));
            words.push(mpi.to_string_lossy().into_owned());
            match self.via {
                Via::Region | Via::Launcher => words.push("--through-region".into()),
                Via::Native { tap } => {
                    words.extend(["--transport", "native"].map(String::from));
                    if tap {
                        words.extend(["--net", "tap"].map(String::from));
                    }
                }
            }
            if self.vms > 0 {
                // As many virtual processors as ranks: a VM of its own has one, two ranks in one VM have two.
                let cpus = setting.ranks.div_ceil(self.vms);
                words.extend(["--cpus".into(), cpus.to_string()]);
                if cpus * self.vms <= processors() {
                    words.push("--pin".into());
                }
                words.extend(setting.run_args.iter().cloned());
            }
            words.extend(self.args.iter().map(|word| String::from(*word)));
            words.push("--stats".into());
            words.push(stats.to_string_lossy().into_owned());
            words.extend(env.drain(..).flat_map(|(name, value)| ["--env".into(), format!("{name}={value}")]));
            words.push("--".into());
        }
        words.push(program.to_string_lossy().into_owned());
        words.extend(args.iter().cloned());
        Launch {
            program: if self.by_run() { setting.isthmus.clone() } else { setting.mpi.launcher.clone() },
            args: words.into_iter().map(Into::into).collect(),
            env: env
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .chain(self.launchers_path(setting))
                .collect(),
        }
    }
}

/// Processors that this process may use.
pub fn processors() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}

/// The subjects for `setting`, isthmus first, then those of `peers`: each MPI with what its users can set for the place.
///
/// Where settings differ little, or differ from machine to machine, all of them are measured and the best counts; where one is
/// slower by far, only the better one is. `docs/performance.md` says what was found, and how.
pub fn subjects(setting: &Setting, peers: Peers) -> Vec<Subject> {
    let granting: &[&str] = if peers.one_copy && setting.vms > 0 { &GRANTING } else { &[] };
    let ours =
        |name, is_peer, args, env| Subject { name, vms: setting.vms, via: Via::Region, is_peer, args, env };
    if let Some(modes) = peers.modes {
        let of = |name, is_peer| ours(name, is_peer, modes.args(is_peer), Vec::new());
        return vec![of(modes.names().0, false), of(modes.names().1, true)];
    }
    if peers.replacement {
        let of = |name, is_peer, long, rule| {
            ours(name, is_peer, &GRANTING, vec![("FI_ISTHMUS_LONG", long), ("FI_ISTHMUS_REPLACEMENT", rule)])
        };
        return vec![
            of("isthmus", false, "auto", "idle"),
            of(ONE_COPY, false, "attach", "idle"),
            of(BY_AGE, false, "attach", "age"),
            of(TWO_COPIES, true, "copy", "idle"),
        ];
    }
    // Told to choose, whatever this process's own environment says, where others are told not to.
    let choice = if peers.one_copy { vec![("FI_ISTHMUS_LONG", "auto")] } else { Vec::new() };
    let mut all = vec![ours("isthmus", false, granting, choice.clone())];
    if peers.one_copy {
        all.push(ours(TWO_COPIES, true, granting, vec![("FI_ISTHMUS_LONG", "copy")]));
        all.push(ours(ONE_COPY, true, granting, vec![("FI_ISTHMUS_LONG", "attach")]));
        let args = if setting.vms > 0 { &ALLOCATING[..] } else { &ALLOCATING[..1] };
        all.push(ours(ALLOCATIONS, false, args, choice));
    }
    let flavour = setting.mpi.flavour;
    if peers.tcp {
        let mut ways = match flavour {
            Flavour::OpenMpi | Flavour::OpenMpi4 => openmpi_tcp(setting),
            Flavour::Mpich => mpich_tcp(setting),
            Flavour::Intel => intel_tcp(setting),
        };
        if !peers.every_way && ways.len() > FIRST_LOOK.len() {
            ways.retain(|way| FIRST_LOOK.contains(&way.name));
        }
        all.extend(ways);
    }
    if peers.shared || peers.two_copy {
        let ways = match flavour {
            Flavour::OpenMpi | Flavour::OpenMpi4 => openmpi_shared(setting, peers),
            Flavour::Mpich if peers.shared => mpich_shared(setting),
            Flavour::Intel if peers.shared => intel_shared(setting),
            Flavour::Mpich | Flavour::Intel => Vec::new(),
        };
        all.extend(ways);
    }
    all
}

/// The ways over TCP that are best most often, with short messages and with long ones.
const FIRST_LOOK: [&str; 2] = ["tcp-btl+yield", "tcp-ofi"];

/// Two modes of VMs' regions that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modes {
    /// Each VM can write only its own section, beside the default.
    Isolated,
    /// A memory device (DAX), beside an ivshmem device's memory that is mapped by sysfs, both without the guest driver.
    Dax,
}

impl Modes {
    /// The names of the two as subjects.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Isolated => ("isthmus-isolated", "isthmus"),
            Self::Dax => ("isthmus-dax", "isthmus-sysfs"),
        }
    }

    /// The same in the words of a table's row.
    pub fn row(self) -> &'static str {
        match self {
            Self::Isolated => "isolated : default",
            Self::Dax => "dax : sysfs",
        }
    }

    /// The words of `isthmus run` for one of them.
    pub fn args(self, is_second: bool) -> &'static [&'static str] {
        match (self, is_second) {
            (Self::Isolated, false) => &["--isolated"],
            (Self::Isolated, true) => &[],
            (Self::Dax, false) => &["--source", "dax", "--driver", "off"],
            (Self::Dax, true) => &["--driver", "off"],
        }
    }

    /// VMs whose boot is timed in both, if that is promised.
    pub fn boots(self, is_quick: bool) -> &'static [(u32, u32)] {
        match (self, is_quick) {
            (Self::Isolated, false) => &[(2, BOOTS), (8, BOOTS)],
            (Self::Isolated, true) => &[(2, 1)],
            (Self::Dax, _) => &[],
        }
    }
}

/// Rounds of boots.
const BOOTS: u32 = 7;

/// Whether a peer's messages go through the region, too.
pub fn is_region(peer: &str) -> bool {
    let of_modes = [Modes::Isolated, Modes::Dax].map(|modes| modes.names().1);
    peer == TWO_COPIES || of_modes.contains(&peer)
}

/// Isthmus with long messages in two copies, and in one copy wherever that can be.
pub const TWO_COPIES: &str = "isthmus-copy";
/// See [`TWO_COPIES`].
pub const ONE_COPY: &str = "isthmus-attach";

/// The same as [`ONE_COPY`] where the oldest granted pages make room (LRU).
pub const BY_AGE: &str = "isthmus-lru";

/// Isthmus with the program's large allocations in the region. It is compared with the peers as isthmus is.
pub const ALLOCATIONS: &str = "isthmus-alloc";

/// What that is run with, natively the first alone: room for all buffers of the largest pool, both ways.
const ALLOCATING: [&str; 3] = ["--alloc=128M", "--driver", "require"];

/// What the others and isthmus are run with, so that nothing but the way differs: more pages than the transport has granted at the
/// same time.
pub(crate) const GRANTING: [&str; 4] = ["--driver", "require", "--grant", "48M"];

/// What they are run with where they take turns in the same VMs.
const TOGETHER: [&str; 5] = [GRANTING[0], GRANTING[1], GRANTING[2], GRANTING[3], ALLOCATING[0]];

type Env = Vec<(&'static str, &'static str)>;

impl Setting {
    /// Whether ranks share processors, where an MPI whose ranks never yield waits for the end of a time slice. (A VM has a
    /// virtual processor for each of its ranks.)
    fn crowded(&self) -> bool {
        self.vms == 0 && self.ranks > processors()
    }

    /// Over the network between VMs, or natively over loopback.
    fn between(&self, name: &'static str, env: Env) -> Subject {
        let via = if self.vms == 0 { Via::Launcher } else { Via::Native { tap: true } };
        Subject { name, vms: self.vms, via, is_peer: true, args: &[], env }
    }

    /// Ranks that share one kernel: on this host, or in one VM, which is what VMs are fairly compared with.
    fn together(&self, name: &'static str, env: Env) -> Subject {
        let via = if self.vms == 0 { Via::Launcher } else { Via::Native { tap: false } };
        Subject { name, vms: self.vms.min(1), via, is_peer: true, args: &[], env }
    }
}

const OPENMPI_YIELDS: (&str, &str) = ("OMPI_MCA_mpi_yield_when_idle", "1");

fn openmpi_tcp(setting: &Setting) -> Vec<Subject> {
    // Natively, over loopback and not over whatever other interface there may be.
    let interface = match setting.vms {
        0 => ("OMPI_MCA_btl_tcp_if_include", "lo"),
        _ => ("OMPI_MCA_btl_tcp_if_exclude", "lo,dummy0"),
    };
    let btl: Env = vec![("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", "tcp,self"), interface];
    // Open MPI leaves this provider out unless it is named.
    let ofi: Env = vec![
        ("OMPI_MCA_pml", "cm"),
        ("OMPI_MCA_mtl", "ofi"),
        ("OMPI_MCA_opal_common_ofi_provider_include", "tcp"),
        ("FI_PROVIDER", "tcp"),
    ];
    let ucx: Env = vec![
        ("OMPI_MCA_pml", "ucx"),
        ("OMPI_MCA_pml_ucx_tls", "any"),
        ("OMPI_MCA_pml_ucx_devices", "any"),
        ("UCX_TLS", "tcp,self"),
    ];
    let yields = |env: &Env| [env.as_slice(), &[OPENMPI_YIELDS]].concat();
    if setting.vms == 0 {
        // Over loopback libfabric's is slower than UCX's by far, with short messages and long ones.
        let for_place = |env: Env| if setting.crowded() { yields(&env) } else { env };
        return vec![setting.between("tcp-btl", for_place(btl)), setting.between("tcp-ucx", for_place(ucx))];
    }
    vec![
        setting.between("tcp-btl", btl.clone()),
        // A rank that polls takes the processor from the QEMU that would bring it the packet.
        setting.between("tcp-btl+yield", yields(&btl)),
        setting.between("tcp-ofi", ofi),
        setting.between("tcp-ucx", ucx),
    ]
}

fn openmpi_shared(setting: &Setting, peers: Peers) -> Vec<Subject> {
    let five = setting.mpi.flavour == Flavour::OpenMpi;
    let mut env: Env =
        vec![("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", if five { "sm,self" } else { "vader,self" })];
    if setting.crowded() {
        env.push(OPENMPI_YIELDS);
    }
    let mut ways = Vec::new();
    if peers.shared {
        ways.push(setting.together("ompi-sm", env.clone()));
    }
    if peers.two_copy {
        env.push(match five {
            true => ("OMPI_MCA_smsc", "^cma,xpmem,knem"),
            false => ("OMPI_MCA_btl_vader_single_copy_mechanism", "none"),
        });
        ways.push(setting.together("ompi-sm-nocma", env));
    }
    ways
}

fn mpich_tcp(setting: &Setting) -> Vec<Subject> {
    let nolocal = ("MPIR_CVAR_NOLOCAL", "1");
    let ofi = vec![("MPIR_CVAR_CH4_NETMOD", "ofi"), ("FI_PROVIDER", "tcp"), nolocal];
    let ucx = vec![("MPIR_CVAR_CH4_NETMOD", "ucx"), ("UCX_TLS", "tcp,self"), nolocal];
    vec![setting.between("tcp-ofi", ofi), setting.between("tcp-ucx", ucx)]
}

fn mpich_shared(setting: &Setting) -> Vec<Subject> {
    if !setting.crowded() {
        return vec![setting.together("mpich-shm", Vec::new())];
    }
    // Its own algorithm for one node hardly yields; those that are made of messages yield in each wait.
    vec![
        setting.together("mpich-shm+default", Vec::new()),
        setting.together("mpich-shm+messages", vec![("MPIR_CVAR_DEVICE_COLLECTIVES", "none")]),
    ]
}

const INTEL_WAITS: (&str, &str) = ("I_MPI_WAIT_MODE", "1");

fn intel_tcp(setting: &Setting) -> Vec<Subject> {
    let mut env = vec![("I_MPI_FABRICS", "ofi"), ("FI_PROVIDER", "tcp")];
    if setting.crowded() {
        env.push(INTEL_WAITS);
    }
    vec![setting.between("tcp", env)]
}

fn intel_shared(setting: &Setting) -> Vec<Subject> {
    let mut env = vec![("I_MPI_FABRICS", "shm")];
    if setting.crowded() {
        env.push(INTEL_WAITS);
    }
    vec![setting.together("intel-shm", env)]
}

/// Which of a peer's ways it was that stands under the peer's name in each row, where it has several:
/// `latency 8 B tcp-btl`. Its record is there under both names.
pub fn chosen(records: &[Record], peer: &str) -> Vec<String> {
    let mut said = Vec::new();
    for record in records.iter().filter(|record| record.subject == peer && record.peer.is_none()) {
        if let Some(way) = way(records, record) {
            let size = record.bytes.filter(|bytes| *bytes > 0).map(table::size).unwrap_or_default();
            said.push([&record.benchmark, size.as_str(), way].join(" ").replace("  ", " "));
        }
    }
    said
}

/// The way that stands in `record` under its peer's name.
pub fn way<'a>(records: &'a [Record], record: &Record) -> Option<&'a str> {
    let of_row = |other: &&Record| {
        (&other.benchmark, other.bytes, other.depth, &other.metric, &other.placement)
            == (&record.benchmark, record.bytes, record.depth, &record.metric, &record.placement)
    };
    let same =
        |other: &&Record| (other.value, other.min, other.max) == (record.value, record.min, record.max);
    let is_way =
        |other: &&Record| other.subject != record.subject && family(&other.subject) == record.subject;
    records.iter().filter(of_row).filter(is_way).find(same).map(|other| other.subject.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(flavour: Flavour, vms: u32) -> Setting {
        let mpi = Mpi { flavour, version: "5".into(), launcher: "/mpi/bin/mpirun".into() };
        Setting {
            isthmus: "/isthmus".into(),
            mpi,
            ranks: 2,
            vms,
            multiple: false,
            run_args: vec!["--accel".into(), "tcg".into()],
            pair: None,
        }
    }

    fn lines(flavour: Flavour, vms: u32) -> Vec<(String, String)> {
        let setting = setting(flavour, vms);
        subjects(&setting, Peers { two_copy: true, ..Peers::USUAL })
            .iter()
            .map(|s| {
                (s.name.into(), s.launch(&setting, Path::new("/p"), &["x".into()], Path::new("/s")).line())
            })
            .collect()
    }

    #[test]
    fn native_peers_are_launched_by_the_mpi_itself() {
        let lines = lines(Flavour::OpenMpi, 0);
        let shared = lines.iter().find(|(name, _)| name == "ompi-sm").unwrap();
        assert_eq!(
            lines[0].1,
            "/isthmus run --vms 0 -n 2 --mpi /mpi/bin --through-region --stats /s --env ISTHMUS_BENCH_PIN=1 \
             --env PRTE_MCA_hwloc_default_binding_policy=none -- /p x"
        );
        assert_eq!(
            shared.1,
            "ISTHMUS_BENCH_PIN=1 PRTE_MCA_hwloc_default_binding_policy=none OMPI_MCA_pml=ob1 OMPI_MCA_btl=sm,self \
             /mpi/bin/mpirun -n 2 /p x"
        );
    }

    #[test]
    fn the_kernels_copying_is_left_out_on_request_only() {
        let without = "OMPI_MCA_smsc=^cma,xpmem,knem";
        assert!(
            lines(Flavour::OpenMpi, 0)
                .iter()
                .all(|(name, line)| line.contains(without) == (name == "ompi-sm-nocma"))
        );
        let few = Peers { every_way: false, ..Peers::USUAL };
        let names: Vec<_> = subjects(&setting(Flavour::OpenMpi, 2), few).iter().map(|s| s.name).collect();
        assert_eq!(names, ["isthmus", "tcp-btl+yield", "tcp-ofi", "ompi-sm"]);
        let setting = setting(Flavour::OpenMpi, 0);
        let names: Vec<_> = subjects(&setting, Peers::USUAL).iter().map(|s| s.name).collect();
        assert_eq!(names, ["isthmus", "tcp-btl", "tcp-ucx", "ompi-sm"]);
        let two_copy = Peers { tcp: false, shared: false, two_copy: true, ..Peers::USUAL };
        let names: Vec<_> = subjects(&setting, two_copy).iter().map(|s| s.name).collect();
        assert_eq!(names, ["isthmus", "ompi-sm-nocma"]);
    }

    #[test]
    fn modes_differ_in_nothing_else() {
        let setting = setting(Flavour::OpenMpi, 2);
        for (modes, words) in [(Modes::Isolated, " --isolated"), (Modes::Dax, " --source dax")] {
            let all = subjects(&setting, Peers { modes: Some(modes), ..Peers::USUAL });
            assert!(all[0].is_isthmus() && !all[1].is_isthmus() && all.len() == 2);
            let line = |at: usize| all[at].launch(&setting, Path::new("/p"), &[], Path::new("/s")).line();
            assert!(line(0).contains(words) && !line(1).contains(words));
            assert_eq!(line(0).replace(words, ""), line(1));
            assert_eq!(line(0).contains(" --driver off"), modes == Modes::Dax);
        }
    }

    #[test]
    fn more_ranks_than_processors_are_allowed() {
        let crowd = Setting { ranks: processors() + 1, ..setting(Flavour::OpenMpi, 0) };
        for subject in subjects(&crowd, Peers::USUAL) {
            let line = subject.launch(&crowd, Path::new("/p"), &[], Path::new("/s")).line();
            assert_eq!(line.contains(":oversubscribe"), !subject.by_run(), "{line}");
            assert!(line.contains(&format!("-n {}", crowd.ranks)), "{line}");
        }
    }

    /// What each waits by while its processor is another's, too.
    #[test]
    fn ranks_that_share_processors_are_told_to_yield() {
        for (flavour, setting_of_it) in [
            (Flavour::OpenMpi, "OMPI_MCA_mpi_yield_when_idle=1"),
            (Flavour::OpenMpi4, "OMPI_MCA_mpi_yield_when_idle=1"),
            (Flavour::Mpich, "MPIR_CVAR_DEVICE_COLLECTIVES=none"),
            (Flavour::Intel, "I_MPI_WAIT_MODE=1"),
        ] {
            let alone = setting(flavour, 0);
            let crowd = Setting { ranks: processors() + 1, multiple: true, ..alone.clone() };
            for (setting, wanted) in [(&alone, false), (&crowd, true)] {
                let lines = subjects(setting, Peers::USUAL).into_iter().map(|subject| {
                    (subject.name, subject.launch(setting, Path::new("/p"), &[], Path::new("/s")).line())
                });
                for (name, line) in lines {
                    let is_own =
                        name.starts_with("ompi-sm") || name == "mpich-shm+messages" || name == "intel-shm";
                    assert!(!is_own || line.contains(setting_of_it) == wanted, "{name}: {line}");
                    assert_eq!(line.contains("ISTHMUS_BENCH_THREADS=multiple"), wanted, "{name}: {line}");
                }
            }
        }
    }

    #[test]
    fn ways_belong_to_a_peer() {
        let of = ["tcp", "tcp-btl+yield", "mpich-shm+default", "ompi-sm", "ompi-sm-nocma"].map(family);
        assert_eq!(of, ["tcp", "tcp", "mpich-shm", "ompi-sm", "ompi-sm-nocma"]);
    }

    #[test]
    fn all_sides_in_vms_get_the_same_settings() {
        for flavour in [Flavour::OpenMpi, Flavour::Mpich] {
            for (name, line) in lines(flavour, 2) {
                assert!(line.contains("--accel tcg"), "{name}: {line}");
                assert_eq!(line.contains("--pin"), processors() >= 2, "{name}: {line}");
                let shared = name.starts_with("ompi-sm") || name.ends_with("-shm");
                assert!(line.contains(if shared { "--vms 1" } else { "--vms 2" }), "{name}: {line}");
                assert!(line.contains(if shared { "--cpus 2" } else { "--cpus 1" }), "{name}: {line}");
                assert_eq!(line.contains("--net tap"), is_tcp(&name), "{name}: {line}");
                assert_eq!(line.contains("--transport native"), name != "isthmus", "{name}: {line}");
            }
        }
    }
}
