//! `bench mpi`: rounds of subjects, and what is made of them.

use std::collections::VecDeque;
use std::path::Path;

use isthmus_run::mpi::{self, Mpi};

use crate::error::{Error, Result};
use crate::path;
use crate::placement::{self, Placement, Policy, Scale, Search, Sieve};
use crate::program::{self, Block, Output};
use crate::record::Record;
use crate::stats::{self, median, pairs};
use crate::subject::{self, Peers, Setting, Subject};

mod launches;

use launches::{Launches, RunStats, groups};

/// So many launches in turn may fail; after that each subject is launched by itself.
const MOST_FAILED: usize = 2;

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
    /// How many rounds of which placement; in each round each subject is launched once.
    pub policy: Policy,
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
    /// How each subject was launched, so that it can be repeated.
    pub lines: Vec<(String, String)>,
    /// What was asked for and could not be measured, with the reason.
    pub left_out: Vec<String>,
    /// Whether a launch failed after others had gone well: there are fewer rounds than there should be.
    pub is_cut: bool,
    /// Whether all that isthmus should be compared with was left out: its own figures have no ratio, and no promise is judged.
    pub is_alone: bool,
    /// Placements that were looked for and not seen, and what else must be known of them.
    pub placed: Vec<String>,
    /// Of each subject whose MPI has a switch for it, whether its ranks yielded their processor while they waited.
    pub yields: Vec<(String, bool)>,
}

impl Comparison {
    /// Adds what was measured of the same subjects in another way, called `how`.
    pub fn add(&mut self, other: Self, how: &str) {
        self.records.extend(other.records.into_iter().filter(|record| record.benchmark != "startup"));
        self.lines.extend(other.lines.into_iter().map(|(name, line)| (format!("{name}, {how}"), line)));
        self.placed.extend(other.placed.into_iter().map(|said| format!("{said} ({how})")));
        self.left_out.extend(other.left_out.into_iter().map(|why| format!("{why} ({how})")));
        self.is_cut |= other.is_cut;
        self.is_alone |= other.is_alone;
    }
}

/// What one launch gave.
struct Round {
    output: Output,
    run: RunStats,
    /// The line on the processors of the launch before and after it, for ranks that cannot time one themselves.
    lines: Option<[f64; 2]>,
}

/// One block of one launch: medians over its repetitions.
struct BlockOfRound {
    value: f64,
    cpu_us_per_op: f64,
    lines: Vec<[f64; 2]>,
    way: Option<&'static str>,
}

impl Round {
    /// The repetitions of a block that `sieve` takes; none if it takes none.
    fn block(&self, at: usize, blocks: usize, scale: &Scale, sieve: Sieve) -> Option<BlockOfRound> {
        let reps: Vec<_> = self
            .output
            .samples
            .iter()
            .skip(at)
            .step_by(blocks)
            .filter(|sample| sieve.takes(scale, sample.line_us.or(self.lines)))
            .collect();
        let values: Vec<f64> = reps.iter().map(|sample| sample.value).collect();
        let cpu: Vec<f64> = reps.iter().map(|sample| sample.cpu_us_per_op).collect();
        let ways: Vec<_> = reps.iter().map(|sample| sample.moved().way(self.one_host())).collect();
        Some(BlockOfRound {
            value: median(&values)?,
            cpu_us_per_op: median(&cpu)?,
            lines: reps.iter().filter_map(|sample| sample.line_us.or(self.lines)).collect(),
            way: path::common(&ways),
        })
    }

    /// Has its blocks sorted by the host's line. Ranks that share memory time one themselves, in one VM as well, and ranks that
    /// talk by TCP cannot: two rulers would sort the sides of one ratio, and what is emulated makes a guest's line longer.
    fn take_hosts_lines(&mut self) {
        self.output.samples.iter_mut().for_each(|sample| sample.line_us = self.lines);
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

/// What becomes of a comparison when a launch fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// There is none.
    Fail,
    /// It goes on without that peer.
    LeaveOut,
    /// It ends there, and what was measured before is kept.
    Stop,
}

impl After {
    fn of(error: &Error, is_isthmus: bool, round: u32) -> Self {
        match (error, is_isthmus, round) {
            (Error::Interrupted { .. }, ..) | (_, true, 0) => Self::Fail,
            (_, false, 0) => Self::LeaveOut,
            _ => Self::Stop,
        }
    }
}

/// Runs `plan`, telling `progress` what is going on.
///
/// # Errors
/// Any of this crate's: a launch of isthmus that fails in the first round, or a signal. A launch that fails later ends the rounds:
/// the comparison has what was measured before, and [`Comparison::is_cut`].
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
        pair: None,
    };
    let load = stats::load();
    let scratch = tempfile::tempdir().map_err(Error::io("make a temporary directory"))?;
    let args = arguments(plan);

    // Two ranks on this host go where they are told, more of them to the same two processors; VMs have the first processors. What
    // an MPI is told depends on how many processors its ranks have.
    let mut search = Search::new(plan.policy, plan.ranks, plan.vms);
    let scale = search.scale;
    let subjects = placement::kept_to(search.kept(), || subject::subjects(&setting, plan.peers));
    let mut measured: Vec<Measured> =
        subjects.into_iter().map(|subject| Measured { subject, rounds: Vec::new() }).collect();
    let mut left_out: Vec<(usize, String)> = Vec::new();
    let mut is_cut = false;
    // Rounds whose launch in turn has failed.
    let mut apart: Vec<String> = Vec::new();
    'rounds: while search.go_on(|placement| least(&measured, plan, &scale, placement), progress)? {
        let round = search.made() - 1;
        let setting = Setting { pair: search.pair_text().filter(|_| plan.ranks == 2), ..setting.clone() };
        let launches =
            Launches { setting: &setting, plan, program: &program, args: &args, scratch: scratch.path() };
        let is_left_out = |at: usize| left_out.iter().any(|(left, _)| *left == at);
        let mut to_do =
            VecDeque::from(groups(&measured, (is_left_out, apart.len() >= MOST_FAILED), &setting, round));
        while let Some(group) = to_do.pop_front() {
            let subjects: Vec<&Subject> = group.iter().map(|at| &measured[*at].subject).collect();
            let name = subjects.iter().map(|subject| subject.name).collect::<Vec<_>>().join(", ");
            let once = || launches.of(&subjects, &search);
            let is_ours = group[0] == 0;
            let outcome = match once() {
                Err(error) if group.len() > 1 && !matches!(error, Error::Interrupted { .. }) => {
                    let why = format!(
                        "round {}: {name}: each by itself, since in turn: {}",
                        round + 1,
                        error.chain()
                    );
                    progress(&why);
                    apart.push(why);
                    group.iter().rev().for_each(|at| to_do.push_front(vec![*at]));
                    continue;
                }
                // A peer's own troubles shall not cost all that was measured. By itself isthmus has no second try, and what
                // fails in the first round is left out.
                Err(error) if !is_ours && round > 0 && !matches!(error, Error::Interrupted { .. }) => {
                    progress(&format!("{name}: tried once more after: {}", error.chain()));
                    once()
                }
                outcome => outcome,
            };
            match outcome {
                Ok(rounds) => {
                    for (at, it) in group.into_iter().zip(rounds) {
                        let of = &mut measured[at];
                        progress(&format!("round {}: {}", round + 1, summary(of.subject.name, &it)));
                        of.rounds.push(it);
                    }
                }
                Err(error) => match After::of(&error, is_ours, round) {
                    After::Fail => return Err(error),
                    After::LeaveOut => {
                        progress(&format!("{name} is left out: {}", error.chain()));
                        left_out.push((group[0], error.chain()));
                    }
                    After::Stop => {
                        let why =
                            format!("failed in round {}, which was the last: {}", round + 1, error.chain());
                        progress(&format!("{name} {why}"));
                        left_out.push((group[0], why));
                        is_cut = true;
                        break 'rounds;
                    }
                },
            }
        }
    }
    let left_out =
        left_out.into_iter().map(|(at, why)| format!("{}: {why}", measured[at].subject.name)).collect();
    let is_asked_for_peers = has_peer(&measured);
    measured.retain(|it| !it.rounds.is_empty());
    let is_alone = is_asked_for_peers && !has_peer(&measured);
    if is_alone {
        progress("isthmus has nothing to be compared with: its own figures follow, without a ratio");
    }
    let have = |placement| least(&measured, plan, &scale, placement);
    progress(&format!("rounds: {}", search.counts(have)));
    let (sieves, not_seen) = search.rows(have);
    let mut placed = search.said(&sieves, &not_seen);
    placed.extend(apart);
    let line_of = |it: &Measured| it.subject.launch(&setting, &program, &args, Path::new("STATS")).line();
    let mut lines: Vec<(String, String)> = placement::kept_to(search.kept(), || {
        measured.iter().map(|it| (it.subject.name.into(), line_of(it))).collect()
    });
    for group in groups(&measured, (|_| false, false), &setting, 0).iter().filter(|group| group.len() > 1) {
        let subjects: Vec<&Subject> = group.iter().map(|at| &measured[*at].subject).collect();
        let names: Vec<&str> = subjects.iter().map(|subject| subject.name).collect();
        let line = Subject::together(&subjects)
            .map(|it| it.launch(&setting, Path::new("EACH"), &[], Path::new("STATS")).line());
        lines.extend(line.map(|line| (format!("in turn, {}", names.join(", ")), line)));
    }
    let yields = measured
        .iter()
        .filter_map(|it| Some((it.subject.name.into(), it.rounds[0].output.start.yields?)))
        .collect();
    let mut records = Vec::new();
    for block in 0..plan.blocks.len() {
        for sieve in &sieves {
            records.extend(block_records(&measured, block, plan, &setting, load, (&scale, *sieve)));
        }
    }
    records.extend(startup_records(&measured, &setting, load));
    Ok(Comparison { records, lines, left_out, is_cut, is_alone, placed, yields })
}

fn has_peer(measured: &[Measured]) -> bool {
    measured.iter().any(|it| !it.subject.is_isthmus())
}

/// In how many rounds isthmus and a peer have a block of that placement, of the pair and block that have it least often; isthmus
/// alone, where no peer could be measured.
fn least(measured: &[Measured], plan: &Plan, scale: &Scale, placement: Placement) -> u32 {
    let blocks = plan.blocks.len();
    let has = |round: &Round, block| round.block(block, blocks, scale, Sieve::Of(placement)).is_some();
    let ours = &measured[0].rounds;
    let mut peers = measured[1..].iter().filter(|peer| !peer.rounds.is_empty()).peekable();
    if peers.peek().is_none() {
        let counted = (0..blocks).map(|block| ours.iter().filter(|round| has(round, block)).count());
        return u32::try_from(counted.min().unwrap_or(0)).unwrap_or(u32::MAX);
    }
    let pairs = peers.flat_map(|peer| (0..blocks).map(|block| (&peer.rounds, block)));
    let counted = pairs.map(|(theirs, block)| {
        ours.iter().zip(theirs).filter(|(ours, theirs)| has(ours, block) && has(theirs, block)).count()
    });
    u32::try_from(counted.min().unwrap_or(0)).unwrap_or(u32::MAX)
}

fn arguments(plan: &Plan) -> Vec<String> {
    let mut args =
        vec!["--reps".into(), plan.reps.to_string(), "--budget-ms".into(), plan.budget_ms.to_string()];
    args.extend(plan.blocks.iter().map(|block| block.argument()));
    args
}

fn summary(name: &str, round: &Round) -> String {
    let sample = &round.output.samples[0];
    let (value, unit) = crate::table::amount(sample.value, &sample.metric);
    let line = sample.line_us.or(round.lines).map_or_else(String::new, |[before, after]| {
        format!(", bare line {before:.3} us before and {after:.3} us after it")
    });
    format!("{name}: {} of {} B {value} {unit}{line}", sample.benchmark, sample.bytes)
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

/// The records of one block in one placement: isthmus once against each peer, or without a ratio where there is none, then the peers.
fn block_records(
    measured: &[Measured],
    block: usize,
    plan: &Plan,
    setting: &Setting,
    load: Option<f64>,
    (scale, sieve): (&Scale, Sieve),
) -> Vec<Record> {
    let series: Vec<Vec<Option<BlockOfRound>>> = measured
        .iter()
        .map(|it| it.rounds.iter().map(|round| round.block(block, plan.blocks.len(), scale, sieve)).collect())
        .collect();
    let values: Vec<Vec<Option<f64>>> = series
        .iter()
        .map(|rounds| rounds.iter().map(|round| round.as_ref().map(|it| it.value)).collect())
        .collect();
    let all = |at: usize| values[at].iter().flatten().copied().collect::<Vec<f64>>();
    let sample = &measured[0].rounds[0].output.samples[block];
    let lower_is_better = matches!(sample.metric.as_str(), "latency_us" | "overhead_us");
    let better = |a: &f64, b: &f64| if lower_is_better { a < b } else { a > b };
    // Of a peer's ways, as of an MPI's TCP paths, the best is the peer: it stands there under both names.
    let family = |at: usize| subject::family(measured[at].subject.name);
    let best_of = |family_name: &str| {
        let all_ways = (0..measured.len()).filter(|at| family(*at) == family_name);
        all_ways
            .filter_map(|at| Some((at, median(&all(at))?)))
            .reduce(|best, other| if better(&other.1, &best.1) { other } else { best })
            .map(|(at, _)| at)
    };
    let record = |at: usize, name: &str, peer: Option<usize>| {
        let it = &measured[at];
        let taken = || series[at].iter().flatten();
        taken().next()?;
        let ways: Vec<_> = taken().map(|block| block.way).collect();
        let lines: Vec<[f64; 2]> = taken().flat_map(|block| block.lines.iter().copied()).collect();
        let record = Record {
            benchmark: sample.benchmark.clone(),
            subject: name.to_owned(),
            placement: Some(sieve.name().into()),
            mpi: Some(mpi_name(&setting.mpi)),
            path: path::common(&ways).map(str::to_owned),
            bytes: Some(sample.bytes),
            depth: plan.blocks[block].depth(),
            metric: sample.metric.clone(),
            cpu_us_per_op: median(&taken().map(|round| round.cpu_us_per_op).collect::<Vec<_>>()),
            accel: accel(it),
            vms: it.subject.vms,
            ranks: setting.ranks,
            load,
            ..Record::default()
        };
        let record = record.with_values(&all(at)).with_lines(&lines);
        Some(match peer {
            Some(peer) => record.with_ratios(family(peer), &pairs(&values[at], &values[peer])),
            None => record,
        })
    };
    let peers: Vec<usize> = (0..measured.len()).filter(|at| !measured[*at].subject.is_isthmus()).collect();
    // A slower way than the best is no peer, only a record.
    let compared: Vec<usize> = peers.iter().copied().filter(|at| best_of(family(*at)) == Some(*at)).collect();
    let mut records = Vec::new();
    for at in (0..measured.len()).filter(|at| measured[*at].subject.is_isthmus()) {
        records.extend(compared.iter().filter_map(|peer| record(at, measured[at].subject.name, Some(*peer))));
        if compared.is_empty() {
            records.extend(record(at, measured[at].subject.name, None));
        }
        // Beside what no message can beat, or a message, as the same processes measured it.
        let find = |wanted: Block| plan.blocks.iter().position(|block| *block == wanted);
        if let Some((beside, name)) =
            plan.blocks[block].beside().and_then(|(block, name)| Some((find(block)?, name)))
        {
            let beside: Vec<Option<f64>> = measured[at]
                .rounds
                .iter()
                .map(|round| Some(round.block(beside, plan.blocks.len(), scale, sieve)?.value))
                .collect();
            let ratios = pairs(&values[at], &beside);
            let ours = record(at, measured[at].subject.name, None);
            records.extend(ours.filter(|_| !ratios.is_empty()).map(|it| it.with_ratios(name, &ratios)));
        }
    }
    // What the ranks' processors do for a message, both sides together.
    let two_copies = peers.iter().copied().find(|at| measured[*at].subject.name == subject::TWO_COPIES);
    if let (Some(two), Block::Pool(..) | Block::BothWays(..)) = (two_copies, plan.blocks[block]) {
        let of_round = |round: &Option<BlockOfRound>| round.as_ref().map(|it| it.cpu_us_per_op);
        let cpu: Vec<Vec<Option<f64>>> =
            series.iter().map(|rounds| rounds.iter().map(of_round).collect()).collect();
        let spent = |at: usize| {
            let of = record(at, measured[at].subject.name, None)?;
            let benchmark = format!("{}_cpu", of.benchmark);
            let values: Vec<f64> = cpu[at].iter().flatten().copied().collect();
            let of = Record { benchmark, metric: "cpu_us".into(), cpu_us_per_op: None, ..of };
            Some(of.with_values(&values))
        };
        for at in (0..measured.len()).filter(|at| measured[*at].subject.is_isthmus()) {
            let ratios = pairs(&cpu[at], &cpu[two]);
            records.extend(spent(at).map(|it| it.with_ratios(subject::TWO_COPIES, &ratios)));
        }
        records.extend(spent(two));
    }
    // How a kernel communicates is the same whatever its messages go by, but for the rate.
    let ours = &measured[0];
    let sampled = |of: &dyn Fn(&program::Sample) -> Option<f64>| -> Vec<f64> {
        let of_round = |round: &Round| {
            let samples = round.output.samples.iter().skip(block).step_by(plan.blocks.len());
            let taken = samples.filter(|sample| sieve.takes(scale, sample.line_us.or(round.lines)));
            median(&taken.filter_map(of).collect::<Vec<_>>())
        };
        ours.rounds.iter().filter_map(of_round).collect()
    };
    for (what, metric, values) in [
        ("large_messages", "share_pct", sampled(&|it| it.large_messages.map(|share| 100.0 * share))),
        ("large_bytes", "share_pct", sampled(&|it| it.large_bytes.map(|share| 100.0 * share))),
        ("sent", "rate_MBps", sampled(&|it| it.sent)),
    ] {
        if let (false, Some(of)) = (values.is_empty(), record(0, ours.subject.name, None)) {
            let benchmark = format!("{}_{what}", of.benchmark);
            records.push(
                Record { benchmark, metric: metric.into(), cpu_us_per_op: None, ..of }.with_values(&values),
            );
        }
    }
    for at in peers {
        let own = measured[at].subject.name;
        if compared.contains(&at) {
            records.extend(record(at, family(at), None));
        }
        if own != family(at) {
            records.extend(record(at, own, None));
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
            if values.is_empty() || (metric == "boot_s" && it.subject.vms == 0) {
                continue;
            }
            let record = Record {
                benchmark: "startup".into(),
                subject: it.subject.name.into(),
                mpi: Some(mpi_name(&setting.mpi)),
                metric: metric.into(),
                accel: accel(it),
                vms: it.subject.vms,
                ranks: setting.ranks,
                load,
                ..Record::default()
            };
            records.push(record.with_values(&values));
        }
    }
    records
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::Choice;
    use std::time::Duration;

    const SCALE: Scale = Scale { near_below: 0.1, far_from: 0.15, busy_from: 1.5 };

    fn plan() -> Plan {
        Plan {
            ranks: 2,
            vms: 0,
            multiple: false,
            peers: Peers::USUAL,
            mpi: None,
            policy: Policy { choice: Choice::Any, rounds: 2, patience: Duration::ZERO },
            reps: 1,
            budget_ms: 10,
            blocks: vec![Block::Latency(8)],
            run_args: Vec::new(),
        }
    }

    fn setting() -> Setting {
        let mpi =
            Mpi { flavour: mpi::Flavour::Mpich, version: "5.0.2".into(), launcher: "/m/bin/mpirun".into() };
        Setting {
            isthmus: "/isthmus".into(),
            mpi,
            ranks: 2,
            vms: 0,
            multiple: false,
            run_args: Vec::new(),
            pair: None,
        }
    }

    #[test]
    fn subjects_of_the_same_vms_take_turns_and_each_begins_once() {
        let of = |vms, flavour, peers| {
            let mpi = Mpi { flavour, ..setting().mpi };
            let setting = Setting { vms, mpi, ..setting() };
            let all = subject::subjects(&setting, peers).into_iter();
            let measured: Vec<_> = all.map(|subject| Measured { subject, rounds: Vec::new() }).collect();
            [0, 1, 5, 9].map(|round| groups(&measured, (|at| at == 1 && round == 9, false), &setting, round))
        };
        let peers = Peers { tcp: false, two_copy: true, one_copy: true, ..Peers::USUAL };
        let flavour = mpi::Flavour::OpenMpi;
        let [first, second, later, left] = of(2, flavour, peers);
        assert_eq!(first, [vec![0, 1, 2, 3], vec![4], vec![5]]);
        assert_eq!(second, [vec![4], vec![5], vec![1, 2, 3, 0]]);
        assert_eq!(later, [vec![5], vec![2, 1, 0, 3], vec![4]], "the second time the other way round");
        assert_eq!(left, [vec![3, 2, 0], vec![4], vec![5]], "without one that is left out");
        // Natively there is no boot to share, and nothing but isthmus itself is to be compared with that.
        assert!(of(0, flavour, peers).iter().flatten().all(|group| group.len() == 1));
        assert!(of(2, flavour, Peers::USUAL).iter().flatten().all(|group| group.len() == 1));
        assert!(of(2, mpi::Flavour::Intel, peers).iter().flatten().all(|group| group.len() == 1));
    }

    fn round(value: f64, network: u64, region: u64) -> Round {
        placed_round(value, network, region, [0.1, 0.3])
    }

    fn placed_round(value: f64, network: u64, region: u64, [before, after]: [f64; 2]) -> Round {
        let text = format!(
            "{{\"isthmus_bench\":1,\"kind\":\"start\",\"mpi\":\"x\",\"hosts\":[\"a\",\"a\"],\"init_s\":0.5}}\n\
             {{\"isthmus_bench\":1,\"kind\":\"block\",\"benchmark\":\"latency\",\"metric\":\"latency_us\",\"bytes\":8,\
             \"value\":{value},\"messages\":100,\"cpu_us_per_op\":1.0,\"line_us\":[{before},{after}],\"payload_bytes\":800,\
             \"region_bytes\":{region},\"region_messages\":100,\"net_bytes\":0,\"loopback_bytes\":{network},\
             \"cma_bytes\":0}}\n"
        );
        Round { output: program::read(&text, 1).unwrap(), run: RunStats::default(), lines: None }
    }

    fn measure(rounds: [[Round; 2]; 4]) -> Vec<Record> {
        sieved(&measured(rounds), Sieve::Any)
    }

    fn measured(rounds: [impl Into<Vec<Round>>; 4]) -> Vec<Measured> {
        subject::subjects(&setting(), Peers::USUAL)
            .into_iter()
            .zip(rounds)
            .map(|(subject, rounds)| Measured { subject, rounds: rounds.into() })
            .collect()
    }

    fn sieved(measured: &[Measured], sieve: Sieve) -> Vec<Record> {
        block_records(measured, 0, &plan(), &setting(), Some(0.5), (&SCALE, sieve))
    }

    #[test]
    fn rounds_are_sorted_by_the_lines_beside_their_blocks() {
        let (near, far, mixed) = ([0.05, 0.06], [0.2, 0.3], [0.05, 0.3]);
        let of = |value, lines| placed_round(value, 0, 900, lines);
        let peer = |value, lines| placed_round(value, 2000, 0, lines);
        let all = measured([
            [of(1.0, near), of(3.0, far), of(9.0, mixed), of(4.0, far)],
            [peer(10.0, near), peer(10.0, far), peer(10.0, far), peer(10.0, far)],
            [peer(20.0, near), peer(20.0, far), peer(20.0, far), peer(20.0, far)],
            [of(2.0, near), of(2.0, near), of(2.0, far), of(2.0, far)],
        ]);
        // Of four rounds, one is near for all; two are far for isthmus and TCP, and one of those for shared memory, too.
        assert_eq!(least(&all, &plan(), &SCALE, Placement::Near), 1);
        assert_eq!(least(&all, &plan(), &SCALE, Placement::Far), 1);
        let far = sieved(&all, Sieve::Of(Placement::Far));
        let brief = |r: &Record| (r.peer.clone().unwrap_or_default(), r.value, r.ratio, r.rounds);
        assert_eq!(brief(&far[0]), ("tcp".into(), 3.5, Some(0.35), 2));
        assert_eq!(brief(&far[1]), ("mpich-shm".into(), 3.5, Some(2.0), 1));
        assert!(
            far.iter().all(|r| r.placement.as_deref() == Some("far") && r.line_us == Some(0.25)),
            "{far:?}"
        );
        let near = sieved(&all, Sieve::Of(Placement::Near));
        assert_eq!(
            (near[1].ratio, near[1].line_before_us, near[1].line_after_us),
            (Some(0.5), Some(0.05), Some(0.06))
        );
    }

    #[test]
    fn without_a_peer_isthmus_has_its_own_rows_as_soon_as_they_are_there() {
        let (near, far) = ([0.05, 0.06], [0.2, 0.3]);
        let ours = vec![
            placed_round(1.0, 0, 900, near),
            placed_round(3.0, 0, 900, far),
            placed_round(4.0, 0, 900, far),
        ];
        let mut all = measured([ours, Vec::new(), Vec::new(), Vec::new()]);
        let counts = |all: &[Measured]| {
            [Placement::Near, Placement::Far].map(|placement| least(all, &plan(), &SCALE, placement))
        };
        assert_eq!(counts(&all), [1, 2], "a search goes on for what lacks rounds");
        // So it is where none was asked for, and as the run leaves it in the end.
        all.truncate(1);
        assert!(!has_peer(&all));
        assert_eq!(counts(&all), [1, 2]);
        let far = sieved(&all, Sieve::Of(Placement::Far));
        let brief: Vec<_> =
            far.iter().map(|r| (r.subject.as_str(), r.peer.as_deref(), r.ratio, r.value, r.rounds)).collect();
        assert_eq!(brief, [("isthmus", None, None, 3.5, 2)]);
    }

    #[test]
    fn in_vms_the_hosts_line_sorts_all_subjects() {
        let mut round = placed_round(1.0, 0, 900, [0.05, 0.06]);
        round.lines = Some([0.2, 0.3]);
        let far = Sieve::Of(Placement::Far);
        assert!(round.block(0, 1, &SCALE, far).is_none());
        round.take_hosts_lines();
        assert_eq!(round.block(0, 1, &SCALE, far).map(|block| block.lines), Some(vec![[0.2, 0.3]]));
        round.lines = None;
        round.take_hosts_lines();
        assert!(round.block(0, 1, &SCALE, far).is_none(), "a guest's line is no stand-in");
    }

    #[test]
    fn a_launch_that_fails_late_keeps_what_was_measured_before() {
        let bad = Error::Output { subject: "tcp".into(), what: "nothing".into() };
        assert_eq!(After::of(&bad, true, 0), After::Fail);
        assert_eq!(After::of(&bad, false, 0), After::LeaveOut);
        assert_eq!((After::of(&bad, true, 1), After::of(&bad, false, 20)), (After::Stop, After::Stop));
        assert_eq!(After::of(&Error::Interrupted { signal: 15 }, false, 20), After::Fail);
        // The last round has the first subject's block alone.
        let all = measured([
            vec![round(1.0, 0, 900), round(1.0, 0, 900), round(1.0, 0, 900)],
            vec![round(10.0, 2000, 0), round(10.0, 2000, 0)],
            vec![round(20.0, 2000, 0), round(20.0, 2000, 0)],
            vec![round(2.0, 0, 0), round(2.0, 0, 0)],
        ]);
        assert_eq!(sieved(&all, Sieve::Any)[0].rounds, 2);
        let mut first = Comparison::default();
        first.add(Comparison { is_cut: true, ..Comparison::default() }, "again");
        assert!(first.is_cut);
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
