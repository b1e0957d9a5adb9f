//! Which subjects there are for an MPI, and how each is launched.
//!
//! Every setting goes through the environment, so that a subject reads the same whether its launcher is run
//! directly or by `isthmus run`.

use std::path::{Path, PathBuf};

use isthmus_run::mpi::{Flavour, Mpi};

use crate::job::Launch;

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
}

impl Peers {
    /// What most people choose from.
    pub const USUAL: Self = Self { tcp: true, shared: true, two_copy: false };
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
    env: Vec<(&'static str, &'static str)>,
}

/// Whether a subject's name stands for one of an MPI's TCP paths.
pub fn is_tcp(name: &str) -> bool {
    name == "tcp" || name.starts_with("tcp-")
}

impl Subject {
    /// Whether isthmus itself counts what went through its region.
    pub fn is_isthmus(&self) -> bool {
        self.via == Via::Region
    }

    /// Whether it is launched by `isthmus run`, which leaves statistics.
    pub fn by_run(&self) -> bool {
        self.via != Via::Launcher
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
            env: env.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        }
    }
}

/// Processors that this process may use.
pub fn processors() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}

/// The subjects for `setting`, isthmus first, then those of `peers`.
pub fn subjects(setting: &Setting, peers: Peers) -> Vec<Subject> {
    let vms = setting.vms;
    let between = |name, env: &[(&'static str, &'static str)]| Subject {
        name,
        vms,
        via: if vms == 0 { Via::Launcher } else { Via::Native { tap: true } },
        env: env.to_vec(),
    };
    // Ranks that share one kernel: on this host, or in one VM, which is what VMs are fairly compared with.
    let together = |name, env: &[(&'static str, &'static str)]| Subject {
        name,
        vms: vms.min(1),
        via: if vms == 0 { Via::Launcher } else { Via::Native { tap: false } },
        env: env.to_vec(),
    };
    let mut all = vec![Subject { name: "isthmus", vms, via: Via::Region, env: Vec::new() }];
    match setting.mpi.flavour {
        Flavour::OpenMpi | Flavour::OpenMpi4 => {
            // Natively, over loopback and not over whatever other interface there may be.
            let interface = if vms == 0 {
                ("OMPI_MCA_btl_tcp_if_include", "lo")
            } else {
                ("OMPI_MCA_btl_tcp_if_exclude", "lo,dummy0")
            };
            let five = setting.mpi.flavour == Flavour::OpenMpi;
            let shared =
                [("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", if five { "sm,self" } else { "vader,self" })];
            if peers.tcp {
                let tcp = [("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", "tcp,self"), interface];
                all.push(between("tcp", &tcp));
            }
            if peers.shared {
                all.push(together("ompi-sm", &shared));
            }
            if peers.two_copy {
                let without = if five {
                    ("OMPI_MCA_smsc", "^cma,xpmem,knem")
                } else {
                    ("OMPI_MCA_btl_vader_single_copy_mechanism", "none")
                };
                all.push(together("ompi-sm-nocma", &[shared[0], shared[1], without]));
            }
        }
        Flavour::Mpich => {
            // Which of its two TCP paths is the faster depends on size and machine: both are measured.
            let nolocal = ("MPIR_CVAR_NOLOCAL", "1");
            let ofi = between("tcp-ofi", &[("MPIR_CVAR_CH4_NETMOD", "ofi"), ("FI_PROVIDER", "tcp"), nolocal]);
            let ucx =
                between("tcp-ucx", &[("MPIR_CVAR_CH4_NETMOD", "ucx"), ("UCX_TLS", "tcp,self"), nolocal]);
            if peers.tcp {
                all.extend([ofi, ucx]);
            }
            if peers.shared {
                all.push(together("mpich-shm", &[]));
            }
        }
        Flavour::Intel => {
            if peers.tcp {
                all.push(between("tcp", &[("I_MPI_FABRICS", "ofi"), ("FI_PROVIDER", "tcp")]));
            }
            if peers.shared {
                all.push(together("intel-shm", &[("I_MPI_FABRICS", "shm")]));
            }
        }
    }
    all
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
        assert_eq!(
            lines[0].1,
            "/isthmus run --vms 0 -n 2 --mpi /mpi/bin --through-region --stats /s --env ISTHMUS_BENCH_PIN=1 \
             --env PRTE_MCA_hwloc_default_binding_policy=none -- /p x"
        );
        assert_eq!(
            lines[2].1,
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
        let setting = setting(Flavour::OpenMpi, 0);
        let names: Vec<_> = subjects(&setting, Peers::USUAL).iter().map(|s| s.name).collect();
        assert_eq!(names, ["isthmus", "tcp", "ompi-sm"]);
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
