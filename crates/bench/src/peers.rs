//! `bench peers`: every promise about speed and size in one table, beside what was measured just now.
//!
//! A row that falls short is a result and not an error. A row whose way is not proved by counters, or that could not be
//! measured, says so and is neither.

use std::path::Path;

use isthmus_run::mpi::{self as launchers, Flavour, Mpi};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::mpi::{Comparison, mpi_name};
use crate::program::Block;
use crate::promise::{Promise, Row, Side, Verdict, at_least, at_most};
use crate::record::Record;
use crate::subject::Peers;
use crate::{lane, memory, mpi, program, promise, table};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Directories or names of MPIs; none stands for the one on the PATH.
    pub mpis: Vec<String>,
    /// How many times each subject is launched.
    pub rounds: u32,
    /// Fewer repetitions, and fewer ranks where there are many.
    pub quick: bool,
    /// Whether between two VMs, too.
    pub vms: bool,
    /// Accelerator of the VMs.
    pub accel: Option<String>,
    /// Message sizes of curves, which are measured besides; none for no curves.
    pub sizes: Vec<u64>,
}

/// The whole table.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// Its rows.
    pub rows: Vec<Row>,
    /// All that was measured for it.
    pub records: Vec<Record>,
    /// What curves are drawn from.
    #[serde(skip)]
    pub curves: Vec<Comparison>,
    /// Whether curves that were asked for are missing.
    #[serde(skip)]
    pub no_curves: bool,
    /// MPIs of which something is promised and that nobody named.
    #[serde(skip)]
    pub other_mpis: Vec<&'static str>,
}

/// A ratio that is promised, and how to find it among the records.
struct Wanted {
    what: String,
    promise: Promise,
    benchmark: &'static str,
    bytes: u64,
    /// The peer, or `None` for the best of all.
    peer: Option<&'static str>,
}

impl Wanted {
    fn new(
        what: impl Into<String>,
        promise: Promise,
        (benchmark, bytes): (&'static str, u64),
        peer: Option<&'static str>,
    ) -> Self {
        Self { what: what.into(), promise, benchmark, bytes, peer }
    }

    fn missing(&self, mpi: Option<&str>, why: &str) -> Row {
        Row {
            what: self.what.clone(),
            mpi: mpi.map(Into::into),
            promise: self.promise,
            measured: None,
            said: why.into(),
            verdict: Verdict::NotMeasured,
        }
    }

    /// The row that `records` of one comparison give.
    fn row(&self, records: &[Record]) -> Row {
        let mpi = records.iter().find_map(|record| record.mpi.as_deref());
        let of_row =
            |record: &&Record| record.benchmark == self.benchmark && record.bytes == Some(self.bytes);
        let value = |name: &str| {
            records.iter().filter(of_row).find(|record| record.subject == name && record.peer.is_none())
        };
        // All ratios of which the best peer is asked for are of metrics that count upwards.
        let best = records
            .iter()
            .filter(of_row)
            .filter(|record| record.subject == "isthmus" && record.ratio.is_some())
            .filter(|record| self.peer.is_none_or(|peer| record.peer.as_deref() == Some(peer)))
            .min_by(|a, b| a.ratio.unwrap_or(0.0).total_cmp(&b.ratio.unwrap_or(0.0)));
        let Some((ours, ratio)) = best.and_then(|record| Some((record, record.ratio?))) else {
            return self.missing(mpi, "nothing to compare with");
        };
        let peer = ours.peer.as_deref().unwrap_or_default();
        let amount = |value: f64| {
            let (value, unit) = table::amount(value, &ours.metric);
            format!("{value} {unit}")
        };
        let (said, peer_way) = match (value(peer), ours.line_us) {
            (Some(theirs), _) => (
                format!("{} : {} {peer}", amount(ours.value), amount(theirs.value)),
                Some((theirs.path.as_deref(), wanted_way(peer))),
            ),
            (None, Some(line)) => (format!("{} : {line:.3} us bare line", amount(ours.value)), None),
            (None, None) => (amount(ours.value), None),
        };
        let ours_proved = ours.path.as_deref() == Some("region");
        let proved = ours_proved && peer_way.is_none_or(|(way, wanted)| way == Some(wanted));
        let said = if proved {
            said
        } else {
            let ways = [ours.path.as_deref(), peer_way.and_then(|(way, _)| way)];
            format!("{said}; ways: {}", ways.map(|way| way.unwrap_or("unknown")).join(", "))
        };
        Row {
            what: self.what.clone(),
            mpi: mpi.map(Into::into),
            promise: self.promise,
            measured: Some(ratio),
            said,
            verdict: if proved { self.promise.verdict(ratio) } else { Verdict::Unproved },
        }
    }
}

/// The way that a peer's messages must have gone for its name to be true. Cross-memory attach is asked of none here: what
/// is compared is short, or copied twice.
fn wanted_way(peer: &str) -> &'static str {
    if crate::subject::is_tcp(peer) { "tcp" } else { "shm" }
}

/// Sizes of the two-copy bandwidths.
const LONG: [u64; 3] = [8192, 65536, 1 << 20];

/// What is promised of two ranks on this host.
fn pair_promises(flavour: Flavour) -> Vec<Wanted> {
    match flavour {
        Flavour::OpenMpi | Flavour::OpenMpi4 => {
            let own = Some("ompi-sm");
            let mut all = vec![
                Wanted::new("latency 8 B : own shared memory", at_most(1.0, 0.85), ("latency", 8), own),
                Wanted::new("latency 1 KB : own shared memory", at_most(1.1, 1.0), ("latency", 1024), own),
                Wanted::new("message rate 8 B : own shared memory", at_least(0.85, 1.3), ("rate", 8), own),
            ];
            for (name, benchmark) in [("ping-pong", "bandwidth"), ("windowed", "bandwidth_windowed")] {
                all.extend(LONG.map(|bytes| {
                    let what = format!("bandwidth {}, {name} : own, two-copy", table::size(bytes));
                    Wanted::new(what, at_least(0.9, 1.1), (benchmark, bytes), Some("ompi-sm-nocma"))
                }));
            }
            all
        }
        Flavour::Mpich => {
            let own = Some("mpich-shm");
            vec![
                Wanted::new("latency 8 B : own shared memory", at_most(0.8, 0.65), ("latency", 8), own),
                Wanted::new("message rate 8 B : own shared memory", at_least(2.0, 4.0), ("rate", 8), own),
            ]
        }
        // Nothing is promised.
        Flavour::Intel => Vec::new(),
    }
}

fn collective_promises(ranks: u32) -> Vec<Wanted> {
    let processors = crate::subject::processors();
    [("barrier", 0), ("allreduce", 8)]
        .map(|(name, bytes)| {
            let what = format!("{name}, {ranks} ranks on {processors} processors : best peer");
            Wanted::new(what, at_least(0.5, 1.5), (name, bytes), None)
        })
        .into()
}

fn vm_promises(flavour: Flavour) -> Vec<Wanted> {
    let own = match flavour {
        Flavour::OpenMpi | Flavour::OpenMpi4 => "ompi-sm",
        Flavour::Mpich => "mpich-shm",
        Flavour::Intel => "intel-shm",
    };
    let what = "latency 8 B, 2 VMs : own shared memory in one VM";
    vec![Wanted::new(what, at_most(1.1, 0.9), ("latency", 8), Some(own))]
}

/// Measures all of it, telling `progress` what is going on.
///
/// # Errors
/// Only if there is no MPI, its program cannot be compiled, or a signal asked for the end. What fails later makes rows that say
/// so.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Table> {
    let isthmus = std::env::current_exe().map_err(Error::io("find the isthmus binary"))?;
    let names: Vec<Option<&str>> = if plan.mpis.is_empty() {
        vec![None]
    } else {
        plan.mpis.iter().map(|name| Some(name.as_str())).collect()
    };
    let mut mpis = Vec::new();
    for name in names {
        let found = launchers::find(name, None).map_err(Error::Mpi)?;
        let program = program::compile(&found)?;
        mpis.push((found, program));
    }
    let named = |wanted: fn(Flavour) -> bool| mpis.iter().any(|(mpi, _)| wanted(mpi.flavour));
    let mut other_mpis = Vec::new();
    if !named(copies_twice) {
        other_mpis.push("Open MPI");
    }
    if !named(|flavour| flavour == Flavour::Mpich) {
        other_mpis.push("MPICH");
    }
    let mut table =
        Table { rows: Vec::new(), records: Vec::new(), curves: Vec::new(), no_curves: false, other_mpis };
    lanes(plan, &mpis[0].0, &mut table, progress);
    for (mpi, _) in &mpis {
        pairs(plan, mpi, &mut table, progress);
    }
    for (mpi, _) in &mpis {
        collectives(plan, mpi, &mut table, progress);
    }
    if plan.vms {
        for (mpi, _) in &mpis {
            between_vms(plan, mpi, &mut table, progress);
        }
    }
    memories(plan, &isthmus, &mpis[0], &mut table, progress);
    if !plan.sizes.is_empty() {
        for (mpi, _) in &mpis {
            curves(plan, mpi, &mut table, progress);
        }
    }
    // A table of rows that a signal kept from being measured is none.
    crate::job::check_signals()?;
    Ok(table)
}

/// A comparison of `mpi`'s paths without blocks yet.
fn comparison(plan: &Plan, mpi: &Mpi, ranks: u32, vms: u32, peers: Peers) -> mpi::Plan {
    mpi::Plan {
        ranks,
        vms,
        peers,
        // The launcher's own directory: what was found once shall not be found otherwise now.
        mpi: mpi.launcher.parent().map(|dir| dir.to_string_lossy().into_owned()),
        rounds: plan.rounds,
        reps: if plan.quick { 1 } else { 3 },
        budget_ms: 100,
        blocks: Vec::new(),
        run_args: plan.accel.iter().flat_map(|accel| ["--accel".into(), accel.clone()]).collect(),
    }
}

/// Adds the rows that `wanted` finds in `done`, and what it was made of.
fn add(table: &mut Table, wanted: &[Wanted], mpi: Option<&str>, done: Result<Comparison>) {
    match done {
        Ok(done) => {
            table.rows.extend(wanted.iter().map(|it| {
                let mut row = it.row(&done.records);
                if row.verdict == Verdict::NotMeasured && !done.left_out.is_empty() {
                    row.said = done.left_out.join("; ");
                }
                row
            }));
            table.records.extend(done.records);
        }
        Err(error) => {
            let why = error.chain();
            table.rows.extend(wanted.iter().map(|it| it.missing(mpi, &why)));
        }
    }
}

fn lanes(plan: &Plan, mpi: &Mpi, table: &mut Table, progress: &mut dyn FnMut(&str)) {
    for vms in if plan.vms { vec![0, 2] } else { vec![0] } {
        let (place, called) = if vms == 0 { ("native", "natively") } else { ("2 VMs", "between 2 VMs") };
        progress(&format!("lanes, {called}"));
        let lane = lane::Plan {
            vms,
            mpi: mpi.launcher.parent().map(|dir| dir.to_string_lossy().into_owned()),
            reps: plan.rounds,
            quick: plan.quick,
            accel: plan.accel.clone(),
        };
        let what = format!("lane latency 8 B, {place} : half a round of a bare line");
        let wanted = Wanted::new(what, at_most(1.2, 1.05), ("latency", 8), Some("pingpong"));
        let done = lane::run(&lane).map(|records| Comparison { records, ..Comparison::default() });
        add(table, &[wanted], None, done);
    }
}

fn pairs(plan: &Plan, mpi: &Mpi, table: &mut Table, progress: &mut dyn FnMut(&str)) {
    let two_copy = copies_twice(mpi.flavour);
    if pair_promises(mpi.flavour).is_empty() {
        return;
    }
    let mut pair = comparison(plan, mpi, 2, 0, Peers { tcp: false, shared: true, two_copy });
    pair.blocks.extend([Block::Latency(8), Block::Latency(1024), Block::Rate(8, 64)]);
    if two_copy {
        pair.blocks.extend(LONG.map(Block::PingPong));
        pair.blocks.extend(LONG.map(|bytes| Block::Window(bytes, 8)));
    }
    let done = mpi::run(&pair, progress);
    add(table, &pair_promises(mpi.flavour), Some(&mpi_name(mpi)), done);
}

fn collectives(plan: &Plan, mpi: &Mpi, table: &mut Table, progress: &mut dyn FnMut(&str)) {
    let mut four = comparison(plan, mpi, 4, 0, Peers::USUAL);
    four.blocks.extend([Block::Barrier, Block::Allreduce(8)]);
    let done = mpi::run(&four, progress);
    add(table, &collective_promises(four.ranks), Some(&mpi_name(mpi)), done);
}

fn between_vms(plan: &Plan, mpi: &Mpi, table: &mut Table, progress: &mut dyn FnMut(&str)) {
    let mut pair = comparison(plan, mpi, 2, 2, Peers { tcp: false, ..Peers::USUAL });
    pair.blocks.push(Block::Latency(8));
    let done = mpi::run(&pair, progress);
    add(table, &vm_promises(mpi.flavour), Some(&mpi_name(mpi)), done);
}

/// Whether the MPI's own shared memory can be told to copy twice.
fn copies_twice(flavour: Flavour) -> bool {
    matches!(flavour, Flavour::OpenMpi | Flavour::OpenMpi4)
}

fn curves(plan: &Plan, mpi: &Mpi, table: &mut Table, progress: &mut dyn FnMut(&str)) {
    for vms in if plan.vms { vec![0, 2] } else { vec![0] } {
        let mut pair = comparison(
            plan,
            mpi,
            2,
            vms,
            Peers { two_copy: vms == 0 && copies_twice(mpi.flavour), ..Peers::USUAL },
        );
        pair.reps = 1;
        pair.blocks = mpi::curve_blocks(&plan.sizes);
        match mpi::run(&pair, progress) {
            Ok(done) => {
                table.records.extend(done.records.iter().cloned());
                table.curves.push(done);
            }
            Err(error) => {
                progress(&format!("no curves: {}", error.chain()));
                table.no_curves = true;
            }
        }
    }
}

fn memories(
    plan: &Plan,
    isthmus: &Path,
    (mpi, program): &(Mpi, std::path::PathBuf),
    table: &mut Table,
    progress: &mut dyn FnMut(&str),
) {
    let ranks = if plan.quick { 16 } else { 64 };
    for (neighbours, required) in [(Some(6), 2.0), (None, 16.0)] {
        let whom = neighbours.map_or_else(|| "all".into(), |count| format!("{count} neighbours"));
        progress(&format!("memory of {ranks} ranks, each talking to {whom}"));
        let promise = Promise { side: Side::Under, required, aim: required / 2.0 };
        let mut row = Row {
            what: format!("memory for each of {ranks} ranks, talking to {whom}"),
            mpi: Some(mpi_name(mpi)),
            promise,
            measured: None,
            said: String::new(),
            verdict: Verdict::NotMeasured,
        };
        match memory::run(&memory::Plan { ranks, neighbours }, isthmus, mpi, program) {
            Ok(record) => {
                // The promise is to each of them, not to their mean.
                row.measured = Some(record.max);
                row.verdict = promise.verdict(record.max);
                row.said = format!("mean {:.2} MB, greatest {:.2} MB", record.value, record.max);
                table.records.push(record);
            }
            Err(error) => row.said = error.chain(),
        }
        table.rows.push(row);
    }
}

impl Table {
    /// Whether all was measured that was asked for, however it came out.
    pub fn is_whole(&self) -> bool {
        !self.no_curves && self.rows.iter().all(|row| row.verdict != Verdict::NotMeasured)
    }

    /// Its cells, a row of headings first.
    pub fn grid(&self) -> Vec<Vec<String>> {
        promise::grid(&self.rows)
    }

    /// What is said below it: how many rows came to what, and why some have no figure.
    pub fn summary(&self) -> String {
        let mut text = promise::summary(&self.rows);
        for mpi in &self.other_mpis {
            text += &format!("What is promised of {mpi} is not in this table: name one, too, with --mpi.\n");
        }
        text
    }

    /// For people.
    pub fn text(&self) -> String {
        format!("{}\n{}", table::columns(&self.grid()), self.summary())
    }

    /// As JSON: an object of `rows` and `records`, of which the latter have the shape of every benchmark's.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string(self)
            .map_err(|error| Error::Io { what: "turn the table into JSON".into(), source: error.into() })?;
        isthmus_region::room::write(path, text + "\n").map_err(Error::io(format!("write {}", path.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(subject: &str, peer: Option<&str>, ratio: Option<f64>, value: f64, path: &str) -> Record {
        Record {
            benchmark: "barrier".into(),
            subject: subject.into(),
            peer: peer.map(Into::into),
            ratio,
            mpi: Some("MPICH 5".into()),
            path: Some(path.into()),
            bytes: Some(0),
            depth: None,
            metric: "loops_per_s".into(),
            value,
            min: value,
            max: value,
            reps: 1,
            cpu_us_per_op: None,
            accel: "native".into(),
            vms: 0,
            ranks: 4,
            load: None,
            line_us: None,
        }
    }

    fn records(peer_path: &str) -> Vec<Record> {
        vec![
            record("isthmus", Some("tcp"), Some(9.0), 900.0, "region"),
            record("isthmus", Some("mpich-shm"), Some(0.6), 900.0, "region"),
            record("tcp", None, None, 100.0, "tcp"),
            record("mpich-shm", None, None, 1500.0, peer_path),
        ]
    }

    #[test]
    fn the_best_peer_is_the_one_that_counts() {
        let row = collective_promises(4)[0].row(&records("shm"));
        assert_eq!((row.measured, row.verdict), (Some(0.6), Verdict::Pass));
        assert_eq!(row.said, "900 /s : 1500 /s mpich-shm");
    }

    #[test]
    fn a_figure_of_another_way_proves_nothing() {
        let row = collective_promises(4)[0].row(&records("mixed"));
        assert_eq!((row.measured, row.verdict), (Some(0.6), Verdict::Unproved));
        assert!(row.said.ends_with("ways: region, mixed"), "{}", row.said);
    }

    #[test]
    fn what_was_not_measured_is_said_below_the_table() {
        let missing = collective_promises(4)[1].row(&records("shm"));
        assert_eq!(missing.verdict, Verdict::NotMeasured);
        let again = Row { what: "another row".into(), ..missing.clone() };
        let rows = vec![missing, again];
        let text =
            Table { rows, records: Vec::new(), curves: Vec::new(), no_curves: false, other_mpis: Vec::new() }
                .text();
        assert!(text.contains("2 were not measured"), "{text}");
        assert!(text.contains("not measured: allreduce"), "{text}");
        assert_eq!(text.matches("not measured: ").count(), 1, "{text}");
        assert!(text.contains("; another row"), "{text}");
    }

    #[test]
    fn promises_of_an_mpi_that_nobody_named_are_told() {
        let table = |other_mpis| Table {
            rows: Vec::new(),
            records: Vec::new(),
            curves: Vec::new(),
            no_curves: false,
            other_mpis,
        };
        assert!(table(vec!["MPICH"]).summary().contains("promised of MPICH is not in this table"));
        assert!(!table(Vec::new()).summary().contains("--mpi"));
    }

    #[test]
    fn a_peer_that_was_left_out_leaves_its_reason() {
        let none = || Table {
            rows: Vec::new(),
            records: Vec::new(),
            curves: Vec::new(),
            no_curves: false,
            other_mpis: Vec::new(),
        };
        let done = |records, left_out: &[&str]| {
            let left_out = left_out.iter().map(|why| (*why).to_owned()).collect();
            Ok(Comparison { records, left_out, ..Comparison::default() })
        };
        let mut table = none();
        add(&mut table, &collective_promises(4)[..1], None, done(records("shm"), &[]));
        assert!(table.is_whole());
        let alone = vec![record("isthmus", None, None, 900.0, "region")];
        add(&mut table, &collective_promises(4)[..1], None, done(alone, &["tcp: no tap"]));
        assert_eq!(
            (table.rows[1].verdict, table.rows[1].said.as_str()),
            (Verdict::NotMeasured, "tcp: no tap")
        );
        assert!(!table.is_whole());
    }
}
