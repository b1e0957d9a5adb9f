//! `bench barrier`, `bench counter` and `bench ivc`: what programs of one's own synchronise and talk by, beside what they use
//! today, natively and between VMs.
//!
//! Each *place*, a number of processes in a number of VMs, is one launch of [`crate::rank`]'s processes; all subjects take turns
//! in it. Ratios are formed within a repetition.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::job::Launch;
use crate::promise::{Promise, Row, Verdict, at_least, at_most, below};
use crate::rank::{self, Sample, Start, What};
use crate::record::Record;
use crate::{stats, subject, table, waits};

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
    /// Repetitions in each place.
    pub reps: u32,
    /// How long each block shall take.
    pub budget_ms: u64,
    /// The MPI whose launcher starts the processes.
    pub mpi: Option<String>,
    /// Accelerator of the VMs.
    pub accel: Option<String>,
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
}

/// Two subjects that are compared.
struct Pair {
    benchmark: &'static str,
    metric: &'static str,
    subject: &'static str,
    /// The peer, or several of which the better one counts.
    peers: &'static [&'static str],
}

const fn pair(
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

/// What of a benchmark is promised, of which subject, against which peer, in which place.
struct Wanted {
    what: &'static str,
    benchmark: &'static str,
    metric: &'static str,
    subject: &'static str,
    /// None: the figure itself.
    peer: Option<&'static str>,
    bytes: Option<u64>,
    processes: u32,
    vms: u32,
    promise: Promise,
}

/// How often each of those must have slept in a round who are said to sleep.
const ASLEEP: f64 = 0.9;

/// The better of those that the hybrid barrier is measured against.
const BEST: &str = "best of spin-yield, isthmus-block";

/// All promises, by what they are about.
fn wanted(what: What) -> Vec<Wanted> {
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
                at_most(1.2, 1.0),
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
struct Output {
    start: Start,
    samples: Vec<Sample>,
    accel: String,
}

fn parse(text: &str, stats: Option<Value>) -> Result<Output> {
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
    let accel = stats.and_then(|stats| stats.get("accel")?.as_str().map(str::to_owned));
    Ok(Output { start, samples, accel: accel.unwrap_or_else(|| "native".into()) })
}

fn launch(plan: &Plan, place: Place, progress: &mut dyn FnMut(&str)) -> Result<Output> {
    if plan.what == What::Wait {
        let (samples, absent) = waits::run(plan)?;
        if !absent.is_empty() {
            progress(&format!("left out, since this libfabric has no such provider: {}", absent.join(", ")));
        }
        let start = Start { hosts: Vec::new(), processors: subject::processors() };
        return Ok(Output { start, samples, accel: "native".into() });
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
        reps: plan.reps,
        budget_ms: plan.budget_ms,
        folder: (place.vms == 0).then(|| PathBuf::from(folder.path())),
        wire,
    };
    args.extend(["--".into(), exe.clone().into()]);
    args.extend(of_rank.args());
    let text = Launch { program: exe, args, env: Vec::new() }.run("isthmus", LIMIT)?;
    let stats = std::fs::read_to_string(&stats).ok().and_then(|text| serde_json::from_str(&text).ok());
    parse(&text, stats)
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

fn values(samples: &[&Sample]) -> Vec<f64> {
    samples.iter().map(|sample| sample.value).collect()
}

fn records(output: &Output, plan: &Plan, place: Place, load: Option<f64>) -> Vec<Record> {
    let mut records = Vec::new();
    let line_us = output
        .samples
        .iter()
        .filter(|sample| sample.subject == "pingpong")
        .map(|sample| if sample.metric == "round_us" { sample.value / 2.0 } else { sample.value })
        .collect::<Vec<f64>>();
    let line_us = stats::median(&line_us);
    for ((benchmark, metric, bytes), subjects) in group(&output.samples) {
        let of =
            |name: &str| subjects.iter().find(|(subject, _)| *subject == name).map(|(_, all)| values(all));
        for (subject, samples) in &subjects {
            let all = values(samples);
            let Some(value) = stats::median(&all) else { continue };
            let cpu: Vec<f64> = samples.iter().filter_map(|sample| sample.cpu_us_per_op).collect();
            let same = samples.iter().all(|sample| sample.path == samples[0].path);
            let record = Record {
                benchmark: benchmark.into(),
                subject: (*subject).into(),
                peer: None,
                ratio: None,
                mpi: None,
                path: if same { samples[0].path.clone() } else { None },
                bytes,
                depth: None,
                metric: metric.into(),
                value,
                min: all.iter().copied().fold(f64::INFINITY, f64::min),
                max: all.iter().copied().fold(0.0, f64::max),
                reps: plan.reps,
                cpu_us_per_op: stats::median(&cpu),
                accel: output.accel.clone(),
                vms: place.vms,
                ranks: place.processes,
                load,
                line_us,
            };
            records.push(record.clone());
            for pair in &PAIRS {
                if (pair.benchmark, pair.metric, pair.subject) != (benchmark, metric, *subject) {
                    continue;
                }
                let peers: Vec<Vec<f64>> = pair.peers.iter().filter_map(|peer| of(peer)).collect();
                if peers.len() < pair.peers.len() {
                    continue;
                }
                // All metrics with several peers are times.
                let best: Vec<f64> = (0..all.len())
                    .map(|rep| {
                        peers.iter().filter_map(|peer| peer.get(rep)).copied().fold(f64::INFINITY, f64::min)
                    })
                    .collect();
                let peer = match pair.peers {
                    [one] => (*one).to_owned(),
                    several => format!("best of {}", several.join(", ")),
                };
                let ratio = stats::paired_ratio(&all, &best);
                records.push(Record { peer: Some(peer), ratio, ..record.clone() });
            }
        }
    }
    records
}

/// What a promise comes to with these records.
fn row(wanted: &Wanted, records: &[Record]) -> Row {
    let place = Place { processes: wanted.processes, vms: wanted.vms };
    let found = records.iter().find(|record| {
        record.benchmark == wanted.benchmark
            && record.metric == wanted.metric
            && record.subject == wanted.subject
            && record.peer.as_deref() == wanted.peer
            && record.bytes == wanted.bytes
            && (record.ranks, record.vms) == (wanted.processes, wanted.vms)
    });
    let what = format!("{}, {}", wanted.what, place.name());
    let figure =
        found.and_then(|record| if wanted.peer.is_some() { record.ratio } else { Some(record.value) });
    let (Some(record), Some(figure)) = (found, figure) else {
        let said = "this place was not measured".into();
        let promise = wanted.promise;
        return Row { what, mpi: None, promise, measured: None, said, verdict: Verdict::NotMeasured };
    };
    let amount = |record: &Record| {
        let (value, unit) = table::amount(record.value, &record.metric);
        format!("{value} {unit}").trim_end().to_owned()
    };
    let beside = |name: Option<&str>, metric: &str| {
        records.iter().find(|other| {
            other.peer.is_none()
                && Some(other.subject.as_str()) == name
                && (other.benchmark.as_str(), other.metric.as_str(), other.bytes)
                    == (&record.benchmark, metric, record.bytes)
                && (other.ranks, other.vms) == (record.ranks, record.vms)
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
    let mut proved =
        record.path.as_deref() == Some("region") && theirs.is_none_or(|theirs| theirs.path.is_some());
    if record.benchmark == "barrier_sleep" {
        let slept = |name: Option<&str>| beside(name, "sleeps_per_round").map_or(0.0, |sleeps| sleeps.value);
        let (ours, theirs) = (slept(Some(&record.subject)), slept(wanted.peer));
        said += &format!("; {ours:.2} : {theirs:.2} sleeps a round");
        proved &= ours >= ASLEEP * f64::from(wanted.processes - 1);
    }
    let verdict = if proved { wanted.promise.verdict(figure) } else { Verdict::Unproved };
    Row { what, mpi: None, promise: wanted.promise, measured: Some(figure), said, verdict }
}

/// Runs `plan`, telling `progress` what is going on.
///
/// # Errors
/// If no place at all could be measured.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Done> {
    let mut done = Done::default();
    let mut last = None;
    for place in &plan.places {
        progress(&format!("{}: {} repetitions", place.name(), plan.reps));
        let load = stats::load();
        match launch(plan, *place, progress) {
            Ok(output) => {
                let hosts: std::collections::BTreeSet<&String> = output.start.hosts.iter().collect();
                if place.vms > 0 && hosts.len() != place.vms as usize {
                    let what = format!("the processes are on {hosts:?}, not in {} VMs", place.vms);
                    return Err(Error::Output { subject: "isthmus".into(), what });
                }
                done.records.extend(records(&output, plan, *place, load));
            }
            Err(error @ Error::Interrupted { .. }) => return Err(error),
            Err(error) => {
                progress(&format!("{} are left out: {}", place.name(), error.chain()));
                done.left_out.push(format!("{}: {}", place.name(), error.chain()));
                last = Some(error);
            }
        }
    }
    if let (true, Some(error)) = (done.records.is_empty(), last) {
        return Err(error);
    }
    done.rows = wanted(plan.what)
        .iter()
        .filter(|wanted| plan.places.contains(&Place { processes: wanted.processes, vms: wanted.vms }))
        .map(|wanted| row(wanted, &done.records))
        .collect();
    Ok(done)
}

/// Names of subjects in the order in which tables have them.
const ORDER: [&str; 21] = [
    "isthmus",
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
];

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
    let mut head = vec!["place".to_owned(), String::new()];
    head.extend(subjects.iter().map(|name| (*name).to_owned()));
    let mut grid = vec![head];
    let mut rows: Vec<(u32, u32, &str, &str, Option<u64>)> = Vec::new();
    for record in records.iter().filter(shown) {
        let key = (record.ranks, record.vms, record.benchmark.as_str(), record.metric.as_str(), record.bytes);
        if !rows.contains(&key) {
            rows.push(key);
        }
    }
    for (ranks, vms, benchmark, metric, bytes) in rows {
        let of = |name: &str| {
            records.iter().filter(shown).find(|record| {
                (record.ranks, record.vms, record.benchmark.as_str(), record.metric.as_str(), record.bytes)
                    == (ranks, vms, benchmark, metric, bytes)
                    && record.subject == name
            })
        };
        let place = Place { processes: ranks, vms }.name();
        let cells = |label: String, show: &dyn Fn(&Record) -> String| {
            let mut row = vec![place.clone(), label];
            row.extend(subjects.iter().map(|name| of(name).map_or_else(|| "-".into(), show)));
            row
        };
        let amount = |record: &Record| {
            let (value, unit) = table::amount(record.value, &record.metric);
            let path = match &record.path {
                None => " (unproved)",
                Some(_) => "",
            };
            format!("{value} {unit}").trim_end().to_owned() + path
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
            path: Some("region".into()),
        }
    }

    fn output() -> Output {
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
        let start = Start { hosts: vec!["vm1".into(), "vm2".into()], processors: 1 };
        Output { start, samples, accel: "tcg".into() }
    }

    fn plan() -> Plan {
        Plan {
            what: What::Barrier,
            places: vec![Place { processes: 2, vms: 2 }],
            reps: 3,
            budget_ms: 1,
            mpi: None,
            accel: None,
        }
    }

    #[test]
    fn ratios_are_formed_within_repetitions_and_against_the_better_peer() {
        let records = records(&output(), &plan(), Place { processes: 2, vms: 2 }, None);
        let ratio = |subject: &str, peer: &str| {
            let found = records.iter().find(|r| r.subject == subject && r.peer.as_deref() == Some(peer));
            found.and_then(|r| r.ratio)
        };
        assert_eq!(ratio("isthmus-spin", "pingpong"), Some(0.5));
        assert_eq!(ratio("isthmus-hybrid", BEST), Some(1.2));
        assert_eq!(ratio("isthmus-block", "pthread"), None, "nobody measured that");
        let line = records.iter().find_map(|r| r.line_us);
        assert_eq!(line, Some(1.0));
    }

    #[test]
    fn promises_come_to_what_was_measured() {
        let records = records(&output(), &plan(), Place { processes: 2, vms: 2 }, None);
        let wanted = wanted(What::Barrier);
        let spin = row(&wanted[0], &records);
        assert_eq!((spin.measured, spin.verdict), (Some(0.5), Verdict::Aim));
        assert!(spin.said.ends_with(", TCG"), "{}", spin.said);
        assert_eq!(row(&wanted[1], &records).verdict, Verdict::NotMeasured);
        let unproved: Vec<Record> = records.iter().cloned().map(|r| Record { path: None, ..r }).collect();
        assert_eq!(row(&wanted[0], &unproved).verdict, Verdict::Unproved);
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
            let output = Output { samples, accel: "native".into(), ..output() };
            let place = Place { processes: 2, vms: 0 };
            let records = records(&output, &Plan { places: vec![place], ..plan() }, place, None);
            let wanted = wanted(What::Barrier);
            row(wanted.iter().find(|it| it.peer == Some("pthread")).unwrap(), &records)
        };
        let slept = round(0.97);
        assert_eq!((slept.measured, slept.verdict), (Some(0.5), Verdict::Aim));
        assert!(slept.said.ends_with("30.0 us : 60.0 us; 0.97 : 1.00 sleeps a round"), "{}", slept.said);
        assert_eq!(round(0.5).verdict, Verdict::Unproved);
    }

    #[test]
    fn the_table_has_a_column_for_each_subject() {
        let records = records(&output(), &plan(), Place { processes: 2, vms: 2 }, None);
        let grid = grid(What::Barrier, &records);
        assert_eq!(grid.len(), 3);
        assert_eq!(grid[0][2..4], ["isthmus-spin", "isthmus-block"]);
        assert_eq!(grid[2][2], "1.00e6");
    }

    #[test]
    fn an_output_that_breaks_off_is_refused() {
        let start = r#"{"hosts":["a","b"],"processors":2}"#;
        assert!(parse(start, None).is_err());
        assert!(parse("", None).is_err());
        assert!(parse(&format!("{start}\n{{\"benchmark\":1"), None).is_err());
    }
}
