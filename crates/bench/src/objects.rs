//! `bench barrier`, `bench counter`, `bench ivc` and `bench sysv`: what programs synchronise and talk by, beside what they use
//! today, natively and between VMs.
//!
//! Each *place*, a number of processes in a number of VMs, is one launch of [`crate::rank`]'s processes; all subjects take turns
//! in it. Ratios are formed within a launch, which is a round.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::job::{Launch, accel_in, statistics};
use crate::placement::{self, Placement, Policy, Scale, Search, Sieve};
use crate::promise::{Figure, Promise, Row, Verdict, at_least, at_most, below};
use crate::rank::{self, Sample, Start, What};
use crate::record::Record;
use crate::{doorbell, stats, subject, sysv, table, waits};

/// How long one launch may take: many processes on few processors are slow, and emulated ones are slower.
const LIMIT: Duration = Duration::from_secs(1800);

/// Where the processes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// How many there are.
    pub processes: u32,
    /// VMs, one for each; 0 runs plain processes on this host.
    pub vms: u32,
}

impl Place {
    /// As people read it.
    pub fn name(self) -> String {
        match self.vms {
            0 => format!("{} processes", self.processes),
            vms => format!("{vms} VMs"),
        }
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What of it.
    pub what: What,
    /// Where, one after the other.
    pub places: Vec<Place>,
    /// How many rounds of which placement in each place of this host; a launch is a round.
    pub policy: Policy,
    /// How many rounds in VMs.
    pub rounds_vms: u32,
    /// How long each block shall take.
    pub budget_ms: u64,
    /// The MPI whose launcher starts the processes.
    pub mpi: Option<String>,
    /// Accelerator of the VMs.
    pub accel: Option<String>,
    /// Fewer sizes.
    pub is_quick: bool,
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// The measurements.
    pub records: Vec<Record>,
    /// What is promised of them.
    pub rows: Vec<Row>,
    /// Places that could not be measured, and why.
    pub left_out: Vec<String>,
    /// Placements that were looked for and not seen, and what else must be known of them.
    pub placed: Vec<String>,
}

/// Two subjects that are compared.
pub(crate) struct Pair {
    benchmark: &'static str,
    metric: &'static str,
    subject: &'static str,
    /// The peer, or several of which the better one counts.
    peers: &'static [&'static str],
}

pub(crate) const fn pair(
    benchmark: &'static str,
    metric: &'static str,
    subject: &'static str,
    peers: &'static [&'static str],
) -> Pair {
    Pair { benchmark, metric, subject, peers }
}

/// Of which subjects there are ratios.
const PAIRS: [Pair; 29] = [
    pair("barrier", "round_us", "isthmus-spin", &["pingpong"]),
    pair("barrier", "round_us", "isthmus-spin", &["naive"]),
    pair("barrier", "round_us", "isthmus-central", &["naive"]),
    pair("barrier", "round_us", "isthmus-block", &["pthread"]),
    pair("barrier", "round_us", "isthmus-block", &["virtio-serial"]),
    pair("barrier", "round_us", "isthmus-hybrid", &["spin-yield", "isthmus-block"]),
    pair("barrier", "round_us", "isthmus-hybrid", &["pthread"]),
    pair("barrier_work", "round_us", "isthmus-spin", &["naive"]),
    pair("barrier_work", "round_us", "isthmus-block", &["pthread"]),
    pair("barrier_work", "round_us", "isthmus-hybrid", &["spin-yield", "isthmus-block"]),
    pair("counter_no", "rate_Mps", "isthmus-items", &["spinlock"]),
    pair("counter_no", "rate_Mps", "isthmus-word", &["spinlock"]),
    pair("counter_medium", "rate_Mps", "isthmus-items", &["spinlock"]),
    pair("counter_medium", "rate_Mps", "isthmus-word", &["spinlock"]),
    pair("counter_high", "rate_Mps", "isthmus-items", &["spinlock"]),
    pair("counter_high", "rate_Mps", "isthmus-word", &["spinlock"]),
    pair("latency", "latency_us", "isthmus", &["unix"]),
    pair("latency", "latency_us", "isthmus", &["tcp"]),
    pair("stream", "bandwidth_MBps", "isthmus", &["unix"]),
    pair("stream", "bandwidth_MBps", "isthmus", &["tcp"]),
    pair("latency", "latency_us", "isthmus", &["unix-spin"]),
    pair("latency", "latency_us", "isthmus", &["tcp-spin"]),
    pair("stream", "bandwidth_MBps", "isthmus", &["unix-spin"]),
    pair("stream", "bandwidth_MBps", "isthmus", &["tcp-spin"]),
    pair("wait", "latency_us", "isthmus-sread", &["isthmus-spin"]),
    pair("wait", "latency_us", "isthmus-sread", &["shm-sread"]),
    // Rounds in which all but the late one sleep.
    pair("barrier_sleep", "beyond_work_us", "isthmus-block", &["pthread"]),
    pair("barrier_sleep", "beyond_work_us", "isthmus-block", &["virtio-serial"]),
    pair("barrier_sleep", "beyond_work_us", "isthmus-block", &["virtio-serial-both"]),
];

fn pairs() -> impl Iterator<Item = &'static Pair> {
    PAIRS.iter().chain(&sysv::PAIRS).chain(&doorbell::PAIRS)
}

/// What of a benchmark is promised, of which subject, against which peer, in which place.
pub(crate) struct Wanted {
    pub(crate) what: &'static str,
    pub(crate) benchmark: &'static str,
    pub(crate) metric: &'static str,
    pub(crate) subject: &'static str,
    /// None: the figure itself.
    pub(crate) peer: Option<&'static str>,
    pub(crate) bytes: Option<u64>,
    pub(crate) processes: u32,
    pub(crate) vms: u32,
    pub(crate) promise: Promise,
    /// Whether counters prove which way it went; nothing counts what passes at a barrier.
    pub(crate) is_counted: bool,
}

/// Of a round that counts, how often each that waits must have slept in it.
const ASLEEP: f64 = 0.9;

/// The better of those that the hybrid barrier is measured against.
const BEST: &str = "best of spin-yield, isthmus-block";

/// All promises, by what they are about.
pub(crate) fn wanted(what: What) -> Vec<Wanted> {
    let barrier = |what, subject, peer, (processes, vms), promise| Wanted {
        what,
        benchmark: "barrier",
        metric: "round_us",
        subject,
        peer: Some(peer),
        bytes: None,
        processes,
        vms,
        promise,
        is_counted: false,
    };
    // What is promised of sleepers is judged where they sleep.
    let asleep = |what, peer, place, promise| Wanted {
        benchmark: "barrier_sleep",
        metric: "beyond_work_us",
        ..barrier(what, "isthmus-block", peer, place, promise)
    };
    let naive = at_most(1.0, 1.0 / 1.2);
    let hybrid = at_most(1.5, 1.0);
    match what {
        What::Sysv => sysv::wanted(),
        What::Doorbell => doorbell::wanted(),
        What::Barrier => vec![
            barrier("spin barrier : bare round", "isthmus-spin", "pingpong", (2, 2), at_most(0.8, 0.6)),
            barrier("spin barrier : naive one", "isthmus-spin", "naive", (2, 0), naive),
            barrier("spin barrier : naive one, over-subscribed", "isthmus-spin", "naive", (4, 0), naive),
            barrier("spin barrier : naive one, over-subscribed", "isthmus-spin", "naive", (8, 0), naive),
            asleep(
                "blocking barrier, all but one asleep : pthread's",
                "pthread",
                (2, 0),
                at_most(1.0, 1.0 / 1.5),
            ),
            asleep(
                "blocking barrier, all but one asleep : echo over virtio-serial",
                "virtio-serial",
                (2, 2),
                at_most(1.0, 0.5),
            ),
            barrier(
                "hybrid barrier : better of spin-yield, blocking",
                "isthmus-hybrid",
                BEST,
                (2, 0),
                hybrid,
            ),
            barrier(
                "hybrid barrier : better of spin-yield, blocking",
                "isthmus-hybrid",
                BEST,
                (4, 0),
                hybrid,
            ),
            barrier(
                "hybrid barrier : better of spin-yield, blocking",
                "isthmus-hybrid",
                BEST,
                (8, 0),
                hybrid,
            ),
            barrier(
                "hybrid barrier : better of spin-yield, blocking",
                "isthmus-hybrid",
                BEST,
                (4, 4),
                hybrid,
            ),
            Wanted {
                benchmark: "barrier_work",
                ..barrier("the same with work between", "isthmus-hybrid", BEST, (2, 0), hybrid)
            },
            Wanted {
                benchmark: "barrier_work",
                ..barrier("the same with work between", "isthmus-hybrid", BEST, (4, 0), hybrid)
            },
            Wanted {
                benchmark: "barrier_work",
                ..barrier("the same with work between", "isthmus-hybrid", BEST, (8, 0), hybrid)
            },
            late(2, 0),
            late(4, 0),
            late(8, 0),
            late(4, 4),
        ],
        What::Counter => [("isthmus-word", "by words"), ("isthmus-items", "by items")]
            .into_iter()
            .flat_map(|(subject, _)| counters(subject))
            .collect(),
        What::Wait => [("fi_cq_sread, 64 KB : spinning", 65536), ("fi_cq_sread, 1 MB : spinning", 1 << 20)]
            .map(|(what, bytes)| Wanted {
                bytes: Some(bytes),
                metric: "latency_us",
                benchmark: "wait",
                is_counted: true,
                ..barrier(what, "isthmus-sread", "isthmus-spin", (2, 0), at_most(1.5, 1.1))
            })
            .into(),
        What::Ivc => {
            let channel = |what, peer, (processes, vms), promise| Wanted {
                what,
                benchmark: "latency",
                metric: "latency_us",
                subject: "isthmus",
                peer: Some(peer),
                bytes: Some(64),
                processes,
                vms,
                promise,
                is_counted: true,
            };
            vec![
                channel("64 B : Unix-domain socket that blocks", "unix", (2, 0), at_most(0.1, 0.05)),
                channel("64 B : Unix-domain socket that spins", "unix-spin", (2, 0), at_most(0.1, 0.05)),
                channel("64 B : TCP that blocks", "tcp", (2, 2), at_most(0.05, 0.01)),
                channel("64 B : TCP that spins", "tcp-spin", (2, 2), at_most(0.05, 0.01)),
            ]
        }
    }
}

fn late(processes: u32, vms: u32) -> Wanted {
    Wanted {
        // A wake-up takes what it takes (a read and a write of a port, 50 us under emulation): long waits show the rest.
        what: "hybrid barrier: sleepers' share of a processor, one 10 ms late",
        benchmark: "barrier_late_10",
        metric: "sleeper_share",
        subject: "isthmus-hybrid",
        peer: None,
        bytes: None,
        processes,
        vms,
        promise: below(0.02, 0.01),
        is_counted: false,
    }
}

fn counters(subject: &'static str) -> Vec<Wanted> {
    let rate = |what, benchmark, processes, promise| Wanted {
        what,
        benchmark,
        metric: "rate_Mps",
        subject,
        peer: Some("spinlock"),
        bytes: None,
        processes,
        vms: 0,
        promise,
        is_counted: true,
    };
    let is_word = subject == "isthmus-word";
    let name = |word, items| if is_word { word } else { items };
    vec![
        rate(
            name("no contention, by words : spin lock", "no contention, by items : spin lock"),
            "counter_no",
            2,
            at_least(2.0, 4.0),
        ),
        rate(
            name("medium contention, by words : spin lock", "medium contention, by items : spin lock"),
            "counter_medium",
            2,
            at_least(1.5, 3.0),
        ),
        rate(
            name("high contention, by words : spin lock", "high contention, by items : spin lock"),
            "counter_high",
            2,
            at_least(1.0, 1.5),
        ),
        rate(
            name("high contention, by words : spin lock", "high contention, by items : spin lock"),
            "counter_high",
            8,
            at_least(1.0, 2.0),
        ),
        Wanted {
            metric: "failures_per_increment",
            peer: None,
            ..rate(
                name("failed commits per increment, by words", "failed commits per increment, by items"),
                "counter_high",
                8,
                below(1.0, 0.1),
            )
        },
    ]
}

/// What a launch printed.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) start: Start,
    pub(crate) samples: Vec<Sample>,
    pub(crate) accel: String,
    /// What could not be measured, and why.
    pub(crate) left_out: Vec<String>,
}

pub(crate) fn parse(text: &str, stats: Option<Value>, vms: u32) -> Result<Output> {
    let bad = |what: String| Error::Output { subject: "isthmus".into(), what };
    let mut lines = text.lines().filter(|line| line.starts_with('{'));
    let first = lines.next().ok_or_else(|| bad("it printed nothing".into()))?;
    let start = serde_json::from_str(first).map_err(|e| bad(format!("its first line: {e}")))?;
    let samples = lines
        .map(|line| serde_json::from_str(line).map_err(|e| bad(format!("a line of it: {e}"))))
        .collect::<Result<Vec<Sample>>>()?;
    if samples.is_empty() {
        return Err(bad("it has no figures".into()));
    }
    let accel = accel_in(stats.as_ref(), vms);
    Ok(Output { start, samples, accel, left_out: Vec::new() })
}

/// Repetitions of one launch: each round has a launch of its own, since an interval takes the rounds for independent.
const REPS: u32 = 1;

fn launch(plan: &Plan, place: Place, search: &Search, progress: &mut dyn FnMut(&str)) -> Result<Output> {
    if plan.what == What::Wait {
        let (samples, absent) = waits::run(plan, REPS, search.pair_text())?;
        if !absent.is_empty() {
            progress(&format!("left out, since this libfabric has no such provider: {}", absent.join(", ")));
        }
        let start = Start { hosts: Vec::new(), processors: subject::processors() };
        return Ok(Output { start, samples, accel: "native".into(), left_out: Vec::new() });
    }
    if plan.what == What::Sysv {
        return sysv::run(plan, place, search, progress);
    }
    if plan.what == What::Doorbell {
        return doorbell::run(plan, place, search);
    }
    let exe = std::env::current_exe().map_err(Error::io("find this program"))?;
    let folder = tempfile::tempdir().map_err(Error::io("make a temporary folder"))?;
    let stats = folder.path().join("stats.json");
    let mut args: Vec<OsString> = vec!["run".into(), "--vms".into(), place.vms.to_string().into()];
    args.extend(["-n".into(), place.processes.to_string().into(), "--stats".into(), stats.clone().into()]);
    let wire = plan.what == What::Barrier && place.vms == 2;
    if place.vms > 0 {
        args.extend(["--cpus".into(), "1".into()]);
        if place.vms <= subject::processors() {
            args.push("--pin".into());
        }
        if wire {
            args.push("--wire".into());
        }
        if plan.what == What::Ivc {
            args.extend(["--net".into(), "tap".into()]);
        }
    }
    if let Some(mpi) = &plan.mpi {
        args.extend(["--mpi".into(), mpi.into()]);
    }
    if let Some(accel) = &plan.accel {
        args.extend(["--accel".into(), accel.into()]);
    }
    let of_rank = rank::Plan {
        what: plan.what,
        parties: place.processes,
        reps: REPS,
        budget_ms: plan.budget_ms,
        folder: (place.vms == 0).then(|| PathBuf::from(folder.path())),
        wire,
        asleep: false,
        on: search
            .pair
            .filter(|_| place.processes == 2 && place.vms == 0)
            .map_or_else(Vec::new, |(a, b)| vec![a, b]),
    };
    args.extend(["--".into(), exe.clone().into()]);
    args.extend(of_rank.args());
    let text = Launch { program: exe, args, env: Vec::new() }.run("isthmus", LIMIT)?;
    parse(&text, statistics(&stats), place.vms)
}

/// What was measured: benchmark, metric, bytes.
type Thing<'a> = (&'a str, &'a str, Option<u64>);
/// The samples of each thing, in the order in which they were first seen, by subject and in the order of repetitions.
type Grouped<'a> = Vec<(Thing<'a>, Vec<(&'a str, Vec<&'a Sample>)>)>;

fn group(samples: &[Sample]) -> Grouped<'_> {
    let mut groups: Grouped<'_> = Vec::new();
    for sample in samples {
        let thing: Thing<'_> = (&sample.benchmark, &sample.metric, sample.bytes);
        let at = groups.iter().position(|(other, _)| *other == thing).unwrap_or_else(|| {
            groups.push((thing, Vec::new()));
            groups.len() - 1
        });
        let group = &mut groups[at].1;
        match group.iter_mut().find(|(subject, _)| *subject == sample.subject) {
            Some((_, samples)) => samples.push(sample),
            None => group.push((&sample.subject, vec![sample])),
        }
    }
    groups
}

/// The rounds of one subject that a sieve takes; what it leaves out is none, so that rounds stay side by side, and so is what says nothing.
fn values(samples: &[&Sample], scale: &Scale, sieve: Sieve) -> Vec<Option<f64>> {
    samples.iter().map(|sample| takes(sample, scale, sieve).then_some(sample.value)).collect()
}

fn takes(sample: &Sample, scale: &Scale, sieve: Sieve) -> bool {
    sample.value.is_finite() && sieve.takes(scale, sample.line_us)
}

/// The rounds of the best of `peers`; all metrics with several peers are times. None if one of them was not measured.
fn best_of(
    pair: &Pair,
    of: impl Fn(&str) -> Option<Vec<Option<f64>>>,
    rounds: usize,
) -> Option<Vec<Option<f64>>> {
    let peers: Vec<Vec<Option<f64>>> = pair.peers.iter().filter_map(|peer| of(peer)).collect();
    if peers.len() < pair.peers.len() {
        return None;
    }
    let best = |round: usize| {
        let all: Option<Vec<f64>> = peers.iter().map(|peer| peer.get(round).copied().flatten()).collect();
        all.map(|all| all.into_iter().fold(f64::INFINITY, f64::min))
    };
    Some((0..rounds).map(best).collect())
}

/// In how many rounds both of a pair have a placement, of the pair that has it least often.
fn least(samples: &[Sample], scale: &Scale, placement: Placement) -> u32 {
    let sieve = Sieve::Of(placement);
    let mut least = None;
    for ((benchmark, metric, _), subjects) in group(samples) {
        let of = |name: &str| {
            let found = subjects.iter().find(|(subject, _)| *subject == name);
            found.map(|(_, all)| values(all, scale, sieve))
        };
        for pair in pairs().filter(|pair| (pair.benchmark, pair.metric) == (benchmark, metric)) {
            let Some(ours) = of(pair.subject) else { continue };
            let Some(best) = best_of(pair, of, ours.len()) else { continue };
            let count = stats::pairs(&ours, &best).len();
            least = Some(least.map_or(count, |least: usize| least.min(count)));
        }
    }
    u32::try_from(least.unwrap_or(0)).unwrap_or(u32::MAX)
}

/// Whether a subject of a place with VMs runs natively beside them.
fn is_native_peer(subject: &str) -> bool {
    subject == sysv::NATIVE
}

/// The VMs of the place that a record belongs to.
fn vms_of_place(record: &Record) -> u32 {
    if is_native_peer(&record.subject) { sysv::VMS } else { record.vms }
}

/// What all records of a place share.
struct Here<'a> {
    place: Place,
    accel: &'a str,
    load: Option<f64>,
    scale: Scale,
    sieve: Sieve,
}

fn records(samples: &[Sample], here: &Here<'_>) -> Vec<Record> {
    let mut records = Vec::new();
    let Here { place, scale, sieve, .. } = here;
    for ((benchmark, metric, bytes), subjects) in group(samples) {
        let of = |name: &str| {
            let found = subjects.iter().find(|(subject, _)| *subject == name);
            found.map(|(_, all)| values(all, scale, *sieve))
        };
        for (subject, samples) in &subjects {
            let all = values(samples, scale, *sieve);
            let taken: Vec<&&Sample> = samples.iter().filter(|sample| takes(sample, scale, *sieve)).collect();
            let Some(first) = taken.first() else { continue };
            let cpu: Vec<f64> = taken.iter().filter_map(|sample| sample.cpu_us_per_op).collect();
            let same = taken.iter().all(|sample| sample.path == first.path);
            let record = Record {
                benchmark: benchmark.into(),
                subject: (*subject).into(),
                placement: Some(sieve.name().into()),
                path: if same { first.path.clone() } else { None },
                bytes,
                metric: metric.into(),
                cpu_us_per_op: stats::median(&cpu),
                accel: if is_native_peer(subject) { "native" } else { here.accel }.into(),
                vms: if is_native_peer(subject) { 0 } else { place.vms },
                ranks: place.processes,
                load: here.load,
                ..Record::default()
            };
            let lines: Vec<[f64; 2]> = taken.iter().filter_map(|sample| sample.line_us).collect();
            let record =
                record.with_values(&all.iter().flatten().copied().collect::<Vec<f64>>()).with_lines(&lines);
            records.push(record.clone());
            let compared =
                |pair: &&Pair| (pair.benchmark, pair.metric, pair.subject) == (benchmark, metric, *subject);
            for pair in pairs().filter(compared) {
                let Some(best) = best_of(pair, of, all.len()) else { continue };
                let peer = match pair.peers {
                    [one] => (*one).to_owned(),
                    several => format!("best of {}", several.join(", ")),
                };
                records.push(record.clone().with_ratios(&peer, &stats::pairs(&all, &best)));
            }
        }
    }
    records
}

/// What a promise comes to with these records, of one placement.
fn row(wanted: &Wanted, records: &mut [Record], sieve: Sieve) -> Row {
    let place = Place { processes: wanted.processes, vms: wanted.vms };
    let what = format!("{}, {}", wanted.what, place.name());
    let why =
        if records.is_empty() { "this place was not measured" } else { "it was left out in this place" };
    let missing =
        Row { placement: Some(sieve.name().into()), ..Row::missing(&what, None, wanted.promise, why) };
    let Some(at) = records.iter().position(|record| {
        record.benchmark == wanted.benchmark
            && record.metric == wanted.metric
            && record.subject == wanted.subject
            && record.peer.as_deref() == wanted.peer
            && record.bytes == wanted.bytes
            && record.placement.as_deref() == Some(sieve.name())
            && (record.ranks, record.vms) == (wanted.processes, wanted.vms)
    }) else {
        return missing;
    };
    let record = &records[at];
    if wanted.peer.is_some() && record.ratio.is_none() {
        return Row {
            said: "no round has both in this placement".into(),
            verdict: Verdict::NotSeen,
            ..missing
        };
    }
    let amount = |record: &Record| {
        let (value, unit) = table::amount(record.value, &record.metric);
        format!("{value} {unit}").trim_end().to_owned()
    };
    let beside = |name: Option<&str>, metric: &str| {
        records.iter().find(|other| {
            other.peer.is_none()
                && Some(other.subject.as_str()) == name
                && (other.benchmark.as_str(), other.metric.as_str(), other.bytes, &other.placement)
                    == (&record.benchmark, metric, record.bytes, &record.placement)
                && (other.ranks, vms_of_place(other)) == (record.ranks, record.vms)
        })
    };
    let theirs = beside(wanted.peer, &record.metric);
    let accel = if record.vms > 0 { format!(", {}", record.accel.to_uppercase()) } else { String::new() };
    // Of several peers the best, by name.
    let best = wanted.peer.and_then(|peer| peer.strip_prefix("best of ")).and_then(|names| {
        let all = names.split(", ").filter_map(|name| beside(Some(name), &record.metric));
        all.min_by(|a, b| a.value.total_cmp(&b.value))
    });
    let mut said = match (theirs, best) {
        (Some(theirs), _) => format!("{} : {}{accel}", amount(record), amount(theirs)),
        (None, Some(best)) => format!("{} : {} {}{accel}", amount(record), amount(best), best.subject),
        (None, None) => format!("{}{accel}", amount(record)),
    };
    let mut is_proved = !wanted.is_counted || crate::path::is_providers(record.path.as_deref());
    // So is a peer's way over a network.
    for family in ["tcp", "udp"] {
        let is_one = wanted.is_counted && wanted.peer.is_some_and(|peer| peer.starts_with(family));
        let way = theirs.and_then(|theirs| theirs.path.as_deref());
        is_proved &= !is_one || way == Some(family);
    }
    // What is about sleepers: how often each round or turn must have some.
    let sleepers = match record.benchmark.as_str() {
        "barrier_sleep" => Some(("round", "sleeps_per_round", f64::from(wanted.processes - 1))),
        "sync_work" => Some(("turn", "sleeps_per_turn", 1.0)),
        _ => None,
    };
    if let Some((each, metric, least)) = sleepers {
        let slept = |name: Option<&str>| beside(name, metric).map(|sleeps| sleeps.value);
        let ours = slept(Some(&record.subject)).unwrap_or(0.0);
        let theirs = slept(wanted.peer).map(|theirs| format!(" : {theirs:.2}")).unwrap_or_default();
        said += &format!("; {ours:.2}{theirs} sleeps a {each}");
        is_proved &= ours >= ASLEEP * least;
    }
    if let Some(sleeps) =
        beside(Some(&record.subject), "sleeps_per_round").filter(|_| record.benchmark == "wait")
    {
        // The call polls before it sleeps, and answers to long messages come while it does.
        said += &format!("; {:.3} sleeps a round", sleeps.value);
    }
    let figure = Figure::of(record);
    let verdict = if is_proved { wanted.promise.judge(&figure, sieve) } else { Verdict::Unproved };
    let row = Row { figure: Some(figure), said, verdict, ..missing };
    records[at].promise = Some(row.judged());
    row
}

/// Runs `plan`, telling `progress` what is going on.
///
/// # Errors
/// If no place at all could be measured.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Done> {
    let mut done = Done::default();
    let mut last = None;
    for place in &plan.places {
        match measure(plan, *place, progress) {
            Ok((records, rows, placed, left_out)) => {
                done.left_out.extend(left_out);
                done.records.extend(records);
                done.rows.extend(rows);
                done.placed.extend(placed);
            }
            Err(error @ Error::Interrupted { .. }) => return Err(error),
            Err(error) => {
                progress(&format!("{} are left out: {}", place.name(), error.chain()));
                done.left_out.push(format!("{}: {}", place.name(), error.chain()));
                for wanted in wanted(plan.what).iter().filter(|wanted| wanted.is_at(*place)) {
                    done.rows.push(row(wanted, &mut [], Sieve::Any));
                }
                last = Some(error);
            }
        }
    }
    match (done.records.is_empty(), last) {
        (true, Some(error)) => Err(error),
        _ => Ok(done),
    }
}

impl Wanted {
    fn is_at(&self, place: Place) -> bool {
        (self.processes, self.vms) == (place.processes, place.vms)
    }
}

/// Records, rows, what is said of placements, and why something is missing, or there are fewer rounds than there should be.
type Measured = (Vec<Record>, Vec<Row>, Vec<String>, Vec<String>);

/// One place: launches until both placements have their rounds.
fn measure(plan: &Plan, place: Place, progress: &mut dyn FnMut(&str)) -> Result<Measured> {
    let rounds = if place.vms == 0 { plan.policy.rounds } else { plan.rounds_vms };
    progress(&format!("{}: {rounds} rounds", place.name()));
    let load = stats::load();
    let mut search = Search::new(Policy { rounds, ..plan.policy }, place.processes, place.vms);
    let scale = search.scale;
    let mut samples: Vec<Sample> = Vec::new();
    let mut accel = "native".to_owned();
    let (mut launches, mut left_out) = (0, Vec::new());
    while search.go_on(|placement| least(&samples, &scale, placement), progress)? {
        let launched = placement::kept_to(search.kept(), || launch(plan, place, &search, progress));
        let output = match launched {
            Ok(output) => output,
            Err(error) => {
                let why = format!("{}: {}", place.name(), error.after(launches)?);
                progress(&why);
                left_out.push(why);
                break;
            }
        };
        launches += 1;
        let hosts: std::collections::BTreeSet<&String> = output.start.hosts.iter().collect();
        if place.vms > 0 && hosts.len() != place.vms as usize {
            let what = format!("the processes are on {hosts:?}, not in {} VMs", place.vms);
            return Err(Error::Output { subject: "isthmus".into(), what });
        }
        samples.extend(output.samples);
        accel = output.accel;
        left_out.extend(output.left_out.into_iter().map(|why| format!("{}: {why}", place.name())));
        left_out.dedup();
        let counts = search.counts(|placement| least(&samples, &scale, placement));
        progress(&format!("{}: rounds: {counts}", place.name()));
    }
    let (sieves, not_seen) = search.rows(|placement| least(&samples, &scale, placement));
    let placed = search.said(&sieves, &not_seen);
    let placed = placed.into_iter().map(|said| format!("{}: {said}", place.name())).collect();
    let (mut all, mut rows) = (Vec::new(), Vec::new());
    for sieve in sieves {
        let mut records = records(&samples, &Here { place, accel: &accel, load, scale, sieve });
        let wanted = wanted(plan.what);
        rows.extend(
            wanted.iter().filter(|wanted| wanted.is_at(place)).map(|it| row(it, &mut records, sieve)),
        );
        all.extend(records);
    }
    Ok((all, rows, placed, left_out))
}

/// Names of subjects in the order in which tables have them.
const ORDER: [&str; 31] = [
    "isthmus",
    "kernel",
    sysv::NATIVE,
    "isthmus-spin",
    "isthmus-central",
    "isthmus-block",
    "isthmus-hybrid",
    "isthmus-sread",
    "shm-spin",
    "shm-sread",
    "isthmus-word",
    "isthmus-items",
    "spinlock",
    "naive",
    "spin-yield",
    "pthread",
    "virtio-serial",
    "virtio-serial-both",
    "pingpong",
    "unix",
    "unix-spin",
    "tcp",
    "tcp-spin",
    "udp",
    "udp-spin",
    "malloc",
    "futex",
    "service",
    "relay",
    "doorbell",
    "wake-up",
];

/// What makes a row of the table: processes, VMs, placement, benchmark, metric, bytes.
type Key<'a> = (u32, u32, Option<&'a str>, &'a str, &'a str, Option<u64>);

fn key(record: &Record) -> Key<'_> {
    let (ranks, vms, placement) = (record.ranks, vms_of_place(record), record.placement.as_deref());
    (ranks, vms, placement, &record.benchmark, &record.metric, record.bytes)
}

/// The measurements as the paper has them: a column for each subject, and for each place two rows or more.
pub fn grid(what: What, records: &[Record]) -> Vec<Vec<String>> {
    let shown = |record: &&Record| record.peer.is_none();
    let mut subjects: Vec<&str> = Vec::new();
    for record in records.iter().filter(shown) {
        if !subjects.contains(&record.subject.as_str()) {
            subjects.push(&record.subject);
        }
    }
    subjects.sort_by_key(|name| ORDER.iter().position(|other| other == name).unwrap_or(ORDER.len()));
    let mut head = vec!["place".to_owned(), "line".to_owned(), String::new()];
    head.extend(subjects.iter().map(|name| (*name).to_owned()));
    let mut grid = vec![head];
    let mut rows: Vec<Key<'_>> = Vec::new();
    for record in records.iter().filter(shown) {
        let key = key(record);
        if !rows.contains(&key) {
            rows.push(key);
        }
    }
    for row in rows {
        let (ranks, vms, _, benchmark, metric, bytes) = row;
        let of = |name: &str| {
            records.iter().filter(shown).find(|record| key(record) == row && record.subject == name)
        };
        let line = records.iter().filter(shown).find(|record| key(record) == row).map(table::line);
        let place = Place { processes: ranks, vms }.name();
        let cells = |label: String, show: &dyn Fn(&Record) -> String| {
            let mut row = vec![place.clone(), line.clone().unwrap_or_default(), label];
            row.extend(subjects.iter().map(|name| of(name).map_or_else(|| "-".into(), show)));
            row
        };
        let amount = |record: &Record| {
            let (value, unit) = table::amount(record.value, &record.metric);
            // Nothing counts barriers, bare lines and Unix-domain sockets.
            let is_counted = match what {
                What::Ivc => matches!(record.subject.as_str(), "isthmus" | "tcp" | "tcp-spin"),
                What::Wait => record.subject.starts_with("isthmus"),
                What::Sysv => record.subject != "malloc",
                What::Barrier | What::Counter | What::Doorbell => false,
            };
            let path = match record.path.as_deref() {
                None if is_counted => " (unproved)".to_owned(),
                // Ours that went another way.
                Some(other)
                    if record.subject.starts_with("isthmus") && !crate::path::is_providers(Some(other)) =>
                {
                    format!(" ({other})")
                }
                _ => String::new(),
            };
            format!("{value} {unit}").trim_end().to_owned() + &path
        };
        match (what, metric) {
            (What::Barrier, "round_us") => {
                let work = if benchmark == "barrier_work" { ", work between" } else { "" };
                grid.push(cells(format!("time of one{work}"), &amount));
                grid.push(cells(format!("barriers per second{work}"), &|record| {
                    per_second(1e6 / record.value)
                }));
            }
            (What::Barrier, "beyond_work_us") => {
                grid.push(cells("all but one asleep: beyond the work".into(), &amount));
            }
            (What::Barrier, "sleeps_per_round") => {
                let sleeps = |record: &Record| format!("{:.2}", record.value);
                grid.push(cells("all but one asleep: sleeps per round".into(), &sleeps));
            }
            (What::Barrier, _) => {
                let ms = if benchmark == "barrier_late" { 2 } else { 10 };
                grid.push(cells(format!("sleepers' share of a processor, one {ms} ms late"), &|record| {
                    format!("{:.2} %", record.value * 100.0)
                }));
            }
            (What::Counter, _) => {
                let contention = benchmark.trim_start_matches("counter_");
                let label = match metric {
                    "rate_Mps" => "increments per microsecond",
                    "failures_per_increment" => "failed commits per increment",
                    _ => "slowest process : fastest",
                };
                grid.push(cells(format!("{contention} contention: {label}"), &|record| match metric {
                    "rate_Mps" => format!("{:.2}", record.value),
                    _ => format!("{:.3}", record.value),
                }));
            }
            (What::Wait, "sleeps_per_round") => {
                let size = bytes.map(table::size).unwrap_or_default();
                let sleeps = |record: &Record| format!("{:.2}", record.value);
                grid.push(cells(format!("{size}: sleeps per round"), &sleeps));
            }
            (What::Sysv, _) => {
                let label = sysv::label(benchmark, metric, bytes);
                grid.push(cells(label, &|record| match metric {
                    "sleeps_per_turn" => format!("{:.2}", record.value),
                    _ => amount(record),
                }));
            }
            (What::Doorbell, _) => {
                let label = doorbell::label(benchmark, metric, bytes);
                grid.push(cells(label, &|record| match metric {
                    "sleeps_per_turn" | "sleeps_per_round" => format!("{:.2}", record.value),
                    _ => amount(record),
                }));
            }
            (What::Ivc | What::Wait, _) => {
                let size = bytes.map(table::size).unwrap_or_default();
                grid.push(cells(format!("{benchmark} {size}").trim_end().to_owned(), &amount));
            }
        }
    }
    grid
}

/// A rate as the paper has it.
fn per_second(rate: f64) -> String {
    format!("{rate:.2e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(subject: &str, value: f64) -> Sample {
        Sample {
            benchmark: "barrier".into(),
            subject: subject.into(),
            metric: "round_us".into(),
            bytes: None,
            value,
            cpu_us_per_op: Some(1.0),
            path: None,
            line_us: Some([0.2, 0.3]),
        }
    }

    fn samples() -> Vec<Sample> {
        let mut samples = Vec::new();
        for rep in [1.0, 2.0, 4.0] {
            samples.extend([
                sample("pingpong", 1.0 * rep),
                sample("isthmus-spin", 0.5 * rep),
                sample("isthmus-block", 4.0 * rep),
                sample("spin-yield", 2.0 * rep),
                sample("isthmus-hybrid", 2.4 * rep),
            ]);
        }
        samples
    }

    const SCALE: Scale = Scale { near_below: 0.1, far_from: 0.15, busy_from: 1.5 };
    const FAR: Sieve = Sieve::Of(Placement::Far);

    fn of_two_vms(samples: &[Sample], sieve: Sieve) -> Vec<Record> {
        let place = Place { processes: 2, vms: 2 };
        records(samples, &Here { place, accel: "tcg", load: None, scale: SCALE, sieve })
    }

    #[test]
    fn ratios_are_formed_within_repetitions_and_against_the_better_peer() {
        let records = of_two_vms(&samples(), FAR);
        let ratio = |subject: &str, peer: &str| {
            let found = records.iter().find(|r| r.subject == subject && r.peer.as_deref() == Some(peer));
            found.and_then(|r| r.ratio)
        };
        assert_eq!(ratio("isthmus-spin", "pingpong"), Some(0.5));
        assert_eq!(ratio("isthmus-hybrid", BEST), Some(1.2));
        assert_eq!(ratio("isthmus-block", "pthread"), None, "nobody measured that");
        assert!(records.iter().all(|r| r.line_us == Some(0.25) && r.placement.as_deref() == Some("far")));
        assert!(records.iter().all(|r| r.path.is_none()), "nothing counts what passes at a barrier");
    }

    #[test]
    fn rounds_of_another_placement_are_left_out() {
        let mut samples = samples();
        samples[5].line_us = Some([0.2, 0.05]);
        samples[10].line_us = Some([0.05, 0.05]);
        // The second pingpong is mixed and the third near, so one pair is left.
        let far = of_two_vms(&samples, FAR);
        let pair = far.iter().find(|r| r.peer.as_deref() == Some("pingpong")).unwrap();
        assert_eq!((pair.ratio, pair.rounds), (Some(0.5), 1));
        assert_eq!(least(&samples, &SCALE, Placement::Far), 1);
        assert_eq!(least(&samples, &SCALE, Placement::Near), 0);
    }

    #[test]
    fn promises_come_to_what_was_measured() {
        let wanted = wanted(What::Barrier);
        let many: Vec<Sample> = std::iter::repeat_n(samples(), 3).flatten().collect();
        let mut far = of_two_vms(&many, FAR);
        let spin = row(&wanted[0], &mut far, FAR);
        assert_eq!((spin.figure.map(|figure| figure.value), spin.verdict), (Some(0.5), Verdict::Aim));
        assert!(spin.said.ends_with(", TCG"), "{}", spin.said);
        assert_eq!(far.iter().filter(|r| r.promise.is_some()).count(), 1, "its record says so, too");
        assert_eq!(row(&wanted[1], &mut far, FAR).verdict, Verdict::NotMeasured);
        let mut few = of_two_vms(&samples(), FAR);
        assert_eq!(row(&wanted[0], &mut few, FAR).verdict, Verdict::Undecided, "three rounds of seven");
        let counter = Wanted { is_counted: true, ..self::wanted(What::Barrier).remove(0) };
        assert_eq!(row(&counter, &mut far, FAR).verdict, Verdict::Unproved);
    }

    #[test]
    fn sleepers_are_judged_only_where_they_slept() {
        let round = |sleeps: f64| {
            let of = |subject: &str, metric: &str, value| Sample {
                benchmark: "barrier_sleep".into(),
                metric: metric.into(),
                ..sample(subject, value)
            };
            let samples = vec![
                of("isthmus-block", "beyond_work_us", 30.0),
                of("isthmus-block", "sleeps_per_round", sleeps),
                of("pthread", "beyond_work_us", 60.0),
                of("pthread", "sleeps_per_round", 1.0),
            ];
            let samples: Vec<Sample> = std::iter::repeat_n(samples, 21).flatten().collect();
            let place = Place { processes: 2, vms: 0 };
            let here = Here { place, accel: "native", load: None, scale: SCALE, sieve: FAR };
            let mut records = records(&samples, &here);
            let wanted = wanted(What::Barrier);
            row(wanted.iter().find(|it| it.peer == Some("pthread")).unwrap(), &mut records, FAR)
        };
        let slept = round(0.97);
        assert_eq!((slept.figure.map(|figure| figure.value), slept.verdict), (Some(0.5), Verdict::Aim));
        assert!(slept.said.ends_with("30.0 us : 60.0 us; 0.97 : 1.00 sleeps a round"), "{}", slept.said);
        assert_eq!(round(0.5).verdict, Verdict::Unproved);
    }

    #[test]
    fn what_is_promised_beside_a_peer_is_compared_with_it() {
        for what in [What::Barrier, What::Counter, What::Ivc, What::Wait, What::Sysv, What::Doorbell] {
            for wanted in wanted(what).iter().filter(|wanted| wanted.peer.is_some()) {
                let is_pair = |pair: &&Pair| {
                    (pair.benchmark, pair.metric, pair.subject)
                        == (wanted.benchmark, wanted.metric, wanted.subject)
                        && wanted.peer.is_some_and(|peer| peer == pair.peers.join(", ") || peer == BEST)
                };
                assert!(pairs().any(|pair| is_pair(&pair)), "{}: {:?}", wanted.what, wanted.peer);
            }
        }
    }

    #[test]
    fn a_native_peer_of_vms_stands_beside_them_and_says_that_it_is_native() {
        let turn = |subject: &str, value, path: &str| Sample {
            benchmark: "sync".into(),
            metric: "turn_us".into(),
            bytes: Some(64),
            path: Some(path.into()),
            ..sample(subject, value)
        };
        let round = [turn("isthmus", 1.0, "region"), turn(sysv::NATIVE, 4.0, "kernel")];
        let samples: Vec<Sample> = std::iter::repeat_n(round, 7).flatten().collect();
        let mut records = of_two_vms(&samples, FAR);
        let native = records.iter().find(|record| record.subject == sysv::NATIVE).unwrap();
        assert_eq!((native.vms, native.accel.as_str()), (0, "native"));
        assert_eq!(grid(What::Sysv, &records)[1][3..], ["1.00 us", "4.00 us"], "they have one row");
        let wanted = wanted(What::Sysv);
        let wanted = wanted.iter().find(|wanted| wanted.peer == Some(sysv::NATIVE)).unwrap();
        let row = row(wanted, &mut records, FAR);
        assert_eq!((row.verdict, row.said.as_str()), (Verdict::Aim, "1.00 us : 4.00 us, TCG"));
    }

    #[test]
    fn the_table_has_a_column_for_each_subject() {
        let grid = grid(What::Barrier, &of_two_vms(&samples(), FAR));
        assert_eq!(grid.len(), 3);
        assert_eq!(grid[0][3..5], ["isthmus-spin", "isthmus-block"]);
        assert_eq!((grid[2][1].as_str(), grid[2][3].as_str()), ("far 0.250", "1.00e6"));
    }

    #[test]
    fn an_output_that_breaks_off_is_refused() {
        let start = r#"{"hosts":["a","b"],"processors":2}"#;
        assert!(parse(start, None, 0).is_err());
        assert!(parse("", None, 0).is_err());
        assert!(parse(&format!("{start}\n{{\"benchmark\":1"), None, 0).is_err());
    }
}
