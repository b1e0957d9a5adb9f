//! `bench mpi`: rounds of subjects, and what is made of them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use isthmus_run::mpi::{self, Mpi};
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::path;
use crate::program::{self, Block, Output};
use crate::record::Record;
use crate::stats::{self, median, paired_ratio};
use crate::subject::{self, Peers, Setting, Subject};

/// How long one launch may take, boot included.
const LIMIT_NATIVE: Duration = Duration::from_secs(120);
const LIMIT_VMS: Duration = Duration::from_secs(150);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many ranks.
    pub ranks: u32,
    /// How many VMs; 0 for plain processes.
    pub vms: u32,
    /// Whether the program asks for `MPI_THREAD_MULTIPLE`.
    pub multiple: bool,
    /// Whom isthmus is compared with.
    pub peers: Peers,
    /// Directory or name of the MPI; by default the one on the PATH.
    pub mpi: Option<String>,
    /// How many times each subject is launched.
    pub rounds: u32,
    /// How many times each launch goes through the blocks.
    pub reps: u32,
    /// Milliseconds for each block.
    pub budget_ms: u32,
    /// The blocks.
    pub blocks: Vec<Block>,
    /// Further arguments for `isthmus run`.
    pub run_args: Vec<String>,
}

/// The blocks of curves over `sizes`: latency, and bandwidth with 8 in flight.
pub fn curve_blocks(sizes: &[u64]) -> Vec<Block> {
    let latencies = sizes.iter().map(|bytes| Block::Latency(*bytes));
    latencies.chain(sizes.iter().map(|bytes| Block::Window(*bytes, 8))).collect()
}

/// A finished comparison.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// One for each measurement, in the order of the blocks.
    pub records: Vec<Record>,
    /// How each subject was launched, for those who want to do it again.
    pub lines: Vec<(String, String)>,
    /// What was asked for and could not be measured, with the reason.
    pub left_out: Vec<String>,
    /// Of each subject whose MPI has a switch for it, whether its ranks yielded their processor while they waited.
    pub yields: Vec<(String, bool)>,
}

impl Comparison {
    /// Adds what was measured of the same subjects in another way, called `how`.
    pub fn add(&mut self, other: Self, how: &str) {
        self.records.extend(other.records.into_iter().filter(|record| record.benchmark != "startup"));
        self.lines.extend(other.lines.into_iter().map(|(name, line)| (format!("{name}, {how}"), line)));
        self.left_out.extend(other.left_out.into_iter().map(|why| format!("{why} ({how})")));
    }
}

/// What `isthmus run --stats` leaves: only what is used here.
#[derive(Clone, Debug, Default, Deserialize)]
struct RunStats {
    accel: Option<String>,
    boot_s: Option<f64>,
}

/// What one launch gave.
struct Round {
    output: Output,
    run: RunStats,
}

/// One block of one launch: medians over its repetitions.
struct BlockOfRound {
    value: f64,
    cpu_us_per_op: f64,
    line_us: Option<f64>,
    way: Option<&'static str>,
}

impl Round {
    fn block(&self, at: usize, blocks: usize) -> BlockOfRound {
        let reps: Vec<_> = self.output.samples.iter().skip(at).step_by(blocks).collect();
        let values: Vec<f64> = reps.iter().map(|sample| sample.value).collect();
        let cpu: Vec<f64> = reps.iter().map(|sample| sample.cpu_us_per_op).collect();
        let lines: Vec<f64> = reps.iter().filter_map(|sample| sample.line_us).flatten().collect();
        let ways: Vec<_> = reps.iter().map(|sample| sample.moved().way(self.one_host())).collect();
        BlockOfRound {
            value: median(&values).unwrap_or(f64::NAN),
            cpu_us_per_op: median(&cpu).unwrap_or(f64::NAN),
            line_us: median(&lines),
            way: path::common(&ways),
        }
    }

    fn one_host(&self) -> bool {
        self.output.start.hosts.windows(2).all(|pair| pair[0] == pair[1])
    }
}

/// A subject with all its rounds; empty if it was left out.
struct Measured {
    subject: Subject,
    rounds: Vec<Round>,
}

/// Runs `plan`, telling `progress` what is going on.
///
/// # Errors
/// Any of this crate's: a launch of isthmus that fails, or one of a peer that fails twice after its first round.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Comparison> {
    let mpi = mpi::find(plan.mpi.as_deref(), None).map_err(Error::Mpi)?;
    let isthmus = std::env::current_exe().map_err(Error::io("find the isthmus binary"))?;
    progress(&format!(
        "compiling the benchmark program with {}",
        mpi.launcher.with_file_name("mpicc").display()
    ));
    let program = program::compile(&mpi)?;
    let setting = Setting {
        isthmus,
        mpi,
        ranks: plan.ranks,
        vms: plan.vms,
        multiple: plan.multiple,
        run_args: plan.run_args.clone(),
    };
    let load = stats::load();
    let scratch = tempfile::tempdir().map_err(Error::io("make a temporary directory"))?;
    let stats_file = scratch.path().join("stats.json");
    let args = arguments(plan);

    let mut measured: Vec<Measured> = subject::subjects(&setting, plan.peers)
        .into_iter()
        .map(|subject| Measured { subject, rounds: Vec::new() })
        .collect();
    let mut left_out = Vec::new();
    for round in 0..plan.rounds {
        // Each round begins with another subject, so that none always runs after the same one.
        let shift = round as usize % measured.len();
        for place in 0..measured.len() {
            let at = (place + shift) % measured.len();
            let (subject, name) = (measured[at].subject.clone(), measured[at].subject.name);
            if left_out.iter().any(|(left, _)| *left == name) {
                continue;
            }
            let once = || launch(&setting, &subject, plan, &program, &args, &stats_file);
            let outcome = match once() {
                // A peer's own troubles shall not cost all that was measured. Isthmus has no second try, and what fails
                // in the first round is left out.
                Err(error) if at > 0 && round > 0 && !matches!(error, Error::Interrupted { .. }) => {
                    progress(&format!("{name}: tried once more after: {}", error.chain()));
                    once()
                }
                outcome => outcome,
            };
            match outcome {
                Ok(it) => {
                    progress(&format!(
                        "round {} of {}: {}",
                        round + 1,
                        plan.rounds,
                        summary(name, &it, plan)
                    ));
                    measured[at].rounds.push(it);
                }
                Err(error @ Error::Interrupted { .. }) => return Err(error),
                Err(error) if at > 0 && round == 0 => {
                    progress(&format!("{name} is left out: {}", error.chain()));
                    left_out.push((name, error.chain()));
                }
                Err(error) => return Err(error),
            }
        }
    }
    measured.retain(|it| !it.rounds.is_empty());
    let lines = measured
        .iter()
        .map(|it| {
            (it.subject.name.into(), it.subject.launch(&setting, &program, &args, Path::new("STATS")).line())
        })
        .collect();
    let yields = measured
        .iter()
        .filter_map(|it| Some((it.subject.name.into(), it.rounds[0].output.start.yields?)))
        .collect();
    let mut records = Vec::new();
    for block in 0..plan.blocks.len() {
        records.extend(block_records(&measured, block, plan, &setting, load));
    }
    records.extend(startup_records(&measured, &setting, load));
    let left_out = left_out.into_iter().map(|(name, why)| format!("{name}: {why}")).collect();
    Ok(Comparison { records, lines, left_out, yields })
}

fn arguments(plan: &Plan) -> Vec<String> {
    let mut args =
        vec!["--reps".into(), plan.reps.to_string(), "--budget-ms".into(), plan.budget_ms.to_string()];
    args.extend(plan.blocks.iter().map(|block| block.argument()));
    args
}

fn launch(
    setting: &Setting,
    subject: &Subject,
    plan: &Plan,
    program: &Path,
    args: &[String],
    stats_file: &Path,
) -> Result<Round> {
    let limit = if subject.vms == 0 { LIMIT_NATIVE } else { LIMIT_VMS };
    let text = subject.launch(setting, program, args, stats_file).run(subject.name, limit)?;
    let bad = |what: String| Error::Output { subject: subject.name.into(), what };
    let output = program::read(&text, plan.blocks.len() * plan.reps as usize).map_err(bad)?;
    let run = if subject.by_run() {
        let text = fs::read_to_string(stats_file).map_err(Error::io("read the statistics of isthmus run"))?;
        // Another run's figures must not be taken for the next one's.
        fs::remove_file(stats_file).map_err(Error::io("remove the statistics of isthmus run"))?;
        serde_json::from_str(&text).map_err(|error| bad(format!("its statistics: {error}")))?
    } else {
        RunStats::default()
    };
    Ok(Round { output, run })
}

fn summary(name: &str, round: &Round, plan: &Plan) -> String {
    let first = round.block(0, plan.blocks.len());
    let sample = &round.output.samples[0];
    let (value, unit) = crate::table::amount(first.value, &sample.metric);
    format!("{name}: {} of {} B {value} {unit}", sample.benchmark, sample.bytes)
}

/// Name and version, as records have it.
pub fn mpi_name(mpi: &Mpi) -> String {
    format!("{} {}", mpi.flavour.title(), mpi.version)
}

fn accel(it: &Measured) -> String {
    if it.subject.vms == 0 {
        return "native".into();
    }
    it.rounds[0].run.accel.clone().unwrap_or_else(|| "unknown".into())
}

/// The records of one block: isthmus once against each peer, then the peers.
fn block_records(
    measured: &[Measured],
    block: usize,
    plan: &Plan,
    setting: &Setting,
    load: Option<f64>,
) -> Vec<Record> {
    let series: Vec<Vec<BlockOfRound>> = measured
        .iter()
        .map(|it| it.rounds.iter().map(|round| round.block(block, plan.blocks.len())).collect())
        .collect();
    let values: Vec<Vec<f64>> =
        series.iter().map(|rounds| rounds.iter().map(|round| round.value).collect()).collect();
    let sample = &measured[0].rounds[0].output.samples[block];
    let lower_is_better = sample.metric == "latency_us";
    let better = |a: &f64, b: &f64| if lower_is_better { a < b } else { a > b };
    // Of a peer's ways, as of an MPI's TCP paths, the best is the peer: it stands there under both names.
    let family = |at: usize| subject::family(measured[at].subject.name);
    let best_of = |family_name: &str| {
        let all = (0..measured.len()).filter(|at| family(*at) == family_name);
        all.filter_map(|at| Some((at, median(&values[at])?)))
            .reduce(|best, other| if better(&other.1, &best.1) { other } else { best })
            .map(|(at, _)| at)
    };
    let record = |at: usize, name: &str, peer: Option<usize>| {
        let it = &measured[at];
        let ways: Vec<_> = series[at].iter().map(|block| block.way).collect();
        Record {
            benchmark: sample.benchmark.clone(),
            subject: name.to_owned(),
            peer: peer.map(|peer| family(peer).to_owned()),
            ratio: peer.and_then(|peer| paired_ratio(&values[at], &values[peer])),
            mpi: Some(mpi_name(&setting.mpi)),
            path: path::common(&ways).map(str::to_owned),
            bytes: Some(sample.bytes),
            depth: plan.blocks[block].depth(),
            metric: sample.metric.clone(),
            value: median(&values[at]).unwrap_or(f64::NAN),
            min: values[at].iter().copied().fold(f64::INFINITY, f64::min),
            max: values[at].iter().copied().fold(f64::NEG_INFINITY, f64::max),
            reps: u32::try_from(values[at].len()).unwrap_or(u32::MAX),
            cpu_us_per_op: median(&series[at].iter().map(|round| round.cpu_us_per_op).collect::<Vec<_>>()),
            accel: accel(it),
            vms: it.subject.vms,
            ranks: setting.ranks,
            load,
            line_us: median(&series[at].iter().filter_map(|round| round.line_us).collect::<Vec<_>>()),
        }
    };
    let peers: Vec<usize> = (0..measured.len()).filter(|at| !measured[*at].subject.is_isthmus()).collect();
    // A slower way than the best is no peer, only a record.
    let compared: Vec<usize> = peers.iter().copied().filter(|at| best_of(family(*at)) == Some(*at)).collect();
    let mut records = Vec::new();
    for at in (0..measured.len()).filter(|at| measured[*at].subject.is_isthmus()) {
        records.extend(compared.iter().map(|peer| record(at, measured[at].subject.name, Some(*peer))));
    }
    for at in peers {
        let own = measured[at].subject.name;
        if compared.contains(&at) {
            records.push(record(at, family(at), None));
        }
        if own != family(at) {
            records.push(record(at, own, None));
        }
    }
    records
}

/// What it takes before the first message: MPI_Init, and the VMs' boot.
fn startup_records(measured: &[Measured], setting: &Setting, load: Option<f64>) -> Vec<Record> {
    let mut records = Vec::new();
    for it in measured {
        let init: Vec<f64> = it.rounds.iter().map(|round| round.output.start.init_s).collect();
        let boot: Vec<f64> = it.rounds.iter().filter_map(|round| round.run.boot_s).collect();
        for (metric, values) in [("init_s", init), ("boot_s", boot)] {
            let Some(value) = median(&values) else { continue };
            if metric == "boot_s" && it.subject.vms == 0 {
                continue;
            }
            records.push(Record {
                benchmark: "startup".into(),
                subject: it.subject.name.into(),
                peer: None,
                ratio: None,
                mpi: Some(mpi_name(&setting.mpi)),
                path: None,
                bytes: None,
                depth: None,
                metric: metric.into(),
                value,
                min: values.iter().copied().fold(f64::INFINITY, f64::min),
                max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                reps: u32::try_from(values.len()).unwrap_or(u32::MAX),
                cpu_us_per_op: None,
                accel: accel(it),
                vms: it.subject.vms,
                ranks: setting.ranks,
                load,
                line_us: None,
            });
        }
    }
    records
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            ranks: 2,
            vms: 0,
            multiple: false,
            peers: Peers::USUAL,
            mpi: None,
            rounds: 2,
            reps: 1,
            budget_ms: 10,
            blocks: vec![Block::Latency(8)],
            run_args: Vec::new(),
        }
    }

    fn setting() -> Setting {
        let mpi =
            Mpi { flavour: mpi::Flavour::Mpich, version: "5.0.2".into(), launcher: "/m/bin/mpirun".into() };
        Setting { isthmus: "/isthmus".into(), mpi, ranks: 2, vms: 0, multiple: false, run_args: Vec::new() }
    }

    fn round(value: f64, network: u64, region: u64) -> Round {
        let text = format!(
            "{{\"isthmus_bench\":1,\"kind\":\"start\",\"mpi\":\"x\",\"hosts\":[\"a\",\"a\"],\"init_s\":0.5}}\n\
             {{\"isthmus_bench\":1,\"kind\":\"block\",\"benchmark\":\"latency\",\"metric\":\"latency_us\",\"bytes\":8,\
             \"value\":{value},\"messages\":100,\"cpu_us_per_op\":1.0,\"line_us\":[0.1,0.3],\"payload_bytes\":800,\
             \"region_bytes\":{region},\"region_messages\":100,\"net_bytes\":0,\"loopback_bytes\":{network},\
             \"cma_bytes\":0}}\n"
        );
        Round { output: program::read(&text, 1).unwrap(), run: RunStats::default() }
    }

    fn measure(rounds: [[Round; 2]; 4]) -> Vec<Record> {
        let measured: Vec<Measured> = subject::subjects(&setting(), Peers::USUAL)
            .into_iter()
            .zip(rounds)
            .map(|(subject, rounds)| Measured { subject, rounds: rounds.into() })
            .collect();
        block_records(&measured, 0, &plan(), &setting(), Some(0.5))
    }

    #[test]
    fn isthmus_is_compared_with_the_fastest_tcp_and_with_shared_memory() {
        let records = measure([
            [round(1.0, 0, 900), round(1.0, 0, 900)],
            [round(50.0, 2000, 0), round(60.0, 2000, 0)],
            [round(16.0, 2000, 0), round(8.0, 2000, 0)],
            [round(2.0, 0, 0), round(2.0, 0, 0)],
        ]);
        let brief: Vec<_> = records
            .iter()
            .map(|r| (r.subject.as_str(), r.peer.as_deref(), r.ratio, r.path.as_deref(), r.value))
            .collect();
        assert_eq!(
            brief,
            [
                ("isthmus", Some("tcp"), Some(0.09375), Some("region"), 1.0),
                ("isthmus", Some("mpich-shm"), Some(0.5), Some("region"), 1.0),
                ("tcp-ofi", None, None, Some("tcp"), 55.0),
                ("tcp", None, None, Some("tcp"), 12.0),
                ("tcp-ucx", None, None, Some("tcp"), 12.0),
                ("mpich-shm", None, None, Some("shm"), 2.0),
            ]
        );
        assert_eq!(subject::chosen(&records, "tcp"), ["latency 8 B tcp-ucx"]);
        assert!(subject::chosen(&records, "mpich-shm").is_empty());
        assert_eq!(records[0].line_us, Some(0.2));
        assert_eq!(records[0].mpi.as_deref(), Some("MPICH 5.0.2"));
    }

    #[test]
    fn a_path_that_changed_between_rounds_is_mixed() {
        let records = measure([
            [round(1.0, 0, 900), round(1.0, 900, 0)],
            [round(50.0, 2000, 0), round(60.0, 2000, 0)],
            [round(20.0, 2000, 0), round(10.0, 2000, 0)],
            [round(2.0, 0, 0), round(2.0, 0, 0)],
        ]);
        assert_eq!(records[0].path.as_deref(), Some("mixed"));
    }
}
