//! `bench peers`: every promise about speed and size in one table, beside what was measured just now.
//!
//! A row that falls short is a result and not an error. A row whose way is not proved by counters, or that could not be
//! measured, says so and is neither.

use std::path::Path;

use isthmus_run::mpi::{self as launchers, Flavour, Mpi};

use crate::error::{Error, Result};
use crate::mpi::{Comparison, mpi_name};
use crate::placement::{Crowd, Policy};
use crate::program::{BARE, Block, LATENCY};
use crate::promise::{Figure, Promise, Row, Side, Verdict, at_least, at_most};
use crate::record::{self, Record};
use crate::subject::Peers;
use crate::{lane, memory, mpi, program, promise, table};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Directories or names of MPIs; none stands for the one on the PATH.
    pub mpis: Vec<String>,
    /// How many rounds of which placement natively, for each of its tables.
    pub policy: Policy,
    /// How many rounds with VMs, which take long to boot.
    pub rounds_vms: u32,
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
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Its rows.
    pub rows: Vec<Row>,
    /// All that was measured for it; what a row is about has its promise.
    pub records: Vec<Record>,
    /// Placements that were looked for and not seen, with the table that looked for them.
    pub placed: Vec<String>,
    /// What curves are drawn from.
    pub curves: Vec<Comparison>,
    /// Whether one of its comparisons ended before its time.
    pub is_cut: bool,
    /// Whether curves that were asked for are missing.
    pub no_curves: bool,
    /// MPIs that have promises and were not named on the command line.
    pub other_mpis: Vec<&'static str>,
}

/// A ratio that is promised, and how to find it among the records.
pub(crate) struct Wanted {
    /// What is promised.
    pub what: String,
    /// What is required and aimed at.
    pub promise: Promise,
    /// Of which benchmark.
    pub benchmark: &'static str,
    /// Of how long messages.
    pub bytes: u64,
    /// In flight or in turn, where rows differ by that.
    pub depth: Option<u32>,
    /// The peer, or `None` for the best of all.
    pub peer: Option<&'static str>,
    /// Whose ratio it is.
    pub subject: &'static str,
}

impl Wanted {
    pub(crate) fn new(
        what: impl Into<String>,
        promise: Promise,
        (benchmark, bytes): (&'static str, u64),
        peer: Option<&'static str>,
    ) -> Self {
        Self { what: what.into(), promise, benchmark, bytes, depth: None, peer, subject: "isthmus" }
    }

    /// Of which figure it is: benchmark and bytes.
    #[cfg(test)]
    pub(crate) fn of(&self) -> (&'static str, u64) {
        (self.benchmark, self.bytes)
    }

    fn missing(&self, mpi: Option<&str>, why: &str) -> Row {
        Row::missing(&self.what, mpi, self.promise, why)
    }

    /// The way that a peer's messages must have gone for its name to be true.
    fn wanted_way(&self, peer: &str) -> &'static str {
        if crate::subject::is_tcp(peer) {
            "tcp"
        } else if crate::subject::is_region(peer) {
            "region"
        } else if peer == COPIES_ONCE && self.bytes >= COPIED_ONCE {
            "cma"
        } else {
            "shm"
        }
    }

    /// The row that `records` of one comparison give for one placement; the record it is about gets the promise.
    pub(crate) fn row(&self, records: &mut [Record], placement: Option<&str>) -> Row {
        let mpi = records.iter().find_map(|record| record.mpi.clone());
        let of_row = |record: &&Record| {
            record.benchmark == self.benchmark
                && record.bytes == Some(self.bytes)
                && (self.depth.is_none() || record.depth == self.depth)
                && record.placement.as_deref() == placement
        };
        let value = |name: &str| {
            records.iter().filter(of_row).find(|record| record.subject == name && record.peer.is_none())
        };
        // Another benchmark of the same processes.
        let beside = |name: &str, ours: &Record| {
            records.iter().find(|it| {
                (it.benchmark.as_str(), &it.subject, it.bytes, it.depth, &it.placement)
                    == (name, &ours.subject, ours.bytes, ours.depth, &ours.placement)
            })
        };
        // All ratios of which the best peer is asked for are of metrics that count upwards.
        let ratio = |at: &usize| records[*at].ratio.unwrap_or(0.0);
        let best = (0..records.len())
            .filter(|at| of_row(&&records[*at]))
            .filter(|at| records[*at].subject == self.subject && records[*at].ratio.is_some())
            .filter(|at| self.peer.is_none_or(|peer| records[*at].peer.as_deref() == Some(peer)))
            .min_by(|a, b| ratio(a).total_cmp(&ratio(b)));
        let missing =
            |why: &str| Row { placement: placement.map(Into::into), ..self.missing(mpi.as_deref(), why) };
        let Some(at) = best else { return missing("nothing to compare with") };
        let ours = &records[at];
        let peer = ours.peer.as_deref().unwrap_or_default();
        let amount = |value: f64| {
            let (value, unit) = table::amount(value, &ours.metric);
            format!("{value} {unit}")
        };
        let (said, peer_way) = match (value(peer), ours.line_us) {
            _ if [BARE, LATENCY].contains(&peer) => {
                let other = beside(peer, ours);
                let way = (peer == LATENCY).then(|| (other.and_then(|it| it.path.as_deref()), "region"));
                let value = other.map_or_else(|| "-".into(), |it| amount(it.value));
                (format!("{} : {value} {peer}", amount(ours.value)), way)
            }
            (Some(theirs), _) => (
                // Of a peer with several ways, the one that it was.
                format!(
                    "{} : {} {}",
                    amount(ours.value),
                    amount(theirs.value),
                    crate::subject::way(records, theirs).unwrap_or(peer)
                ),
                Some((theirs.path.as_deref(), self.wanted_way(peer))),
            ),
            (None, Some(line)) => (format!("{} : {line:.3} us bare line", amount(ours.value)), None),
            (None, None) => (amount(ours.value), None),
        };
        let said = said + &untouched(self, ours, records);
        let ours_proved = crate::path::is_providers(ours.path.as_deref());
        let proved = ours_proved && peer_way.is_none_or(|(way, wanted)| way == Some(wanted));
        let said = if proved {
            said
        } else {
            let ways = [ours.path.as_deref(), peer_way.and_then(|(way, _)| way)];
            format!("{said}; ways: {}", ways.map(|way| way.unwrap_or("unknown")).join(", "))
        };
        let figure = Figure::of(ours);
        let verdict = match (proved, placement) {
            (false, _) => Verdict::Unproved,
            (true, Some("near")) => Verdict::Beside,
            (true, Some("far")) => self.promise.verdict(&figure),
            // Promises are about processors that are far apart: what was not sorted is of those and of others.
            (true, _) => Verdict::Undecided,
        };
        let row = Row { figure: Some(figure), said, verdict, ..missing("") };
        records[at].promise = Some(row.judged());
        row
    }
}

/// The same with buffers that are never touched, where that was measured beside it.
fn untouched(wanted: &Wanted, ours: &Record, records: &[Record]) -> String {
    let name = format!("{}_untouched", wanted.benchmark);
    let of_row = |record: &&Record| {
        record.benchmark == name && record.bytes == Some(wanted.bytes) && record.placement == ours.placement
    };
    let found = |subject: &str, peer: Option<&str>| {
        let mut of_it = records.iter().filter(of_row);
        of_it.find(|record| record.subject == subject && record.peer.as_deref() == peer)
    };
    let peer = ours.peer.as_deref();
    let (Some(mine), Some(theirs)) = (found(wanted.subject, peer), peer.and_then(|peer| found(peer, None)))
    else {
        return String::new();
    };
    let ratio = mine.ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}x"));
    let (unit, value) =
        (table::amount(mine.value, &mine.metric).1, |it: &Record| table::amount(it.value, &it.metric).0);
    format!("; untouched {} : {} {unit}, {ratio}", value(mine), value(theirs))
}

/// Sizes of short messages, with a latency each.
const SHORT: [u64; 4] = [64, 256, 1024, 4096];
/// Sizes of the bandwidths.
const LONG: [u64; 4] = [8192, 65536, 1 << 20, 4 << 20];
/// Open MPI's own shared memory copies messages of so many bytes once, by cross-memory attach, unless it may not.
const COPIED_ONCE: u64 = 4096;
/// Bandwidths from this size on are compared with that, too.
const LARGE: u64 = 65536;
/// The subject that does.
const COPIES_ONCE: &str = "ompi-sm";

/// What is promised of the transport itself.
fn lane_promise(place: &str) -> Wanted {
    let what = format!("lane latency 8 B, {place} : half a round of a bare line");
    Wanted::new(what, at_most(1.2, 1.05), ("latency", 8), Some("pingpong"))
}

/// What is promised of two ranks on this host.
fn pair_promises(flavour: Flavour) -> Vec<Wanted> {
    let latencies = |bytes: &[u64], promise, own| -> Vec<Wanted> {
        let what = |bytes| format!("latency {} : own shared memory", table::size(bytes));
        bytes.iter().map(|bytes| Wanted::new(what(*bytes), promise, ("latency", *bytes), own)).collect()
    };
    match flavour {
        Flavour::OpenMpi | Flavour::OpenMpi4 => {
            let own = Some(COPIES_ONCE);
            let mut all = latencies(&[8], at_most(0.95, 0.85), own);
            all.extend(latencies(&SHORT, at_most(1.0, 0.8), own));
            let what = "message rate 8 B : own shared memory";
            all.push(Wanted::new(what, at_least(0.9, 1.1), ("rate", 8), own));
            for (name, benchmark) in [("ping-pong", "bandwidth"), ("windowed", "bandwidth_windowed")] {
                for bytes in LONG {
                    let what = |copies| format!("bandwidth {}, {name} : own, {copies}", table::size(bytes));
                    let of = (benchmark, bytes);
                    all.push(Wanted::new(what("two-copy"), at_least(1.0, 1.5), of, Some("ompi-sm-nocma")));
                    if bytes >= LARGE {
                        all.push(Wanted::new(what("one-copy"), at_least(0.95, 1.2), of, own));
                    }
                }
            }
            all
        }
        Flavour::Mpich => {
            let own = Some("mpich-shm");
            let mut all = latencies(&[8], at_most(0.8, 0.65), own);
            all.extend(latencies(&SHORT, at_most(0.9, 0.7), own));
            let what = "message rate 8 B : own shared memory";
            all.push(Wanted::new(what, at_least(3.0, 4.0), ("rate", 8), own));
            all
        }
        // Nothing is promised.
        Flavour::Intel => Vec::new(),
    }
}

/// Of both thread levels: what an MPI takes for these calls depends on them.
fn collective_promises((ranks, processors): (u32, u32), multiple: bool) -> Vec<Wanted> {
    let (benchmarks, level) = match multiple {
        false => (["barrier", "allreduce"], ""),
        true => (["barrier_multiple", "allreduce_multiple"], ", MPI_THREAD_MULTIPLE"),
    };
    [("barrier", benchmarks[0], 0), ("allreduce", benchmarks[1], 8)]
        .map(|(name, benchmark, bytes)| {
            let what = format!("{name}, {ranks} ranks on {processors} processors{level} : best peer");
            Wanted::new(what, at_least(0.5, 1.5), (benchmark, bytes), None)
        })
        .into()
}

fn vm_promises(flavour: Flavour) -> Vec<Wanted> {
    let (own, required) = match flavour {
        Flavour::OpenMpi | Flavour::OpenMpi4 => ("ompi-sm", 1.1),
        Flavour::Mpich => ("mpich-shm", 1.0),
        Flavour::Intel => ("intel-shm", 1.1),
    };
    let own = Some(own);
    let latency = |bytes, required| {
        let what = format!("latency {}, 2 VMs : own shared memory in one VM", table::size(bytes));
        Wanted::new(what, at_most(required, 0.9), ("latency", bytes), own)
    };
    let mut all = vec![latency(8, 1.1), latency(1024, required)];
    if copies_twice(flavour) {
        let what = "message rate 8 B, 2 VMs : own shared memory in one VM";
        all.push(Wanted::new(what, at_least(1.0, 1.2), ("rate", 8), own));
    }
    all
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
    let mut table = Table { other_mpis, ..Table::default() };
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

impl Plan {
    fn policy(&self, vms: u32) -> Policy {
        let rounds = if vms == 0 { self.policy.rounds } else { self.rounds_vms };
        Policy { rounds, ..self.policy }
    }
}

/// A comparison of `mpi`'s paths without blocks yet.
fn comparison(plan: &Plan, mpi: &Mpi, ranks: u32, vms: u32, peers: Peers) -> mpi::Plan {
    mpi::Plan {
        ranks,
        vms,
        multiple: false,
        peers,
        // The launcher's own directory: what was found once shall not be found otherwise now.
        mpi: mpi.launcher.parent().map(|dir| dir.to_string_lossy().into_owned()),
        policy: plan.policy(vms),
        // Many short launches say more than a few long ones; VMs take long to boot.
        reps: if plan.quick || vms == 0 { 1 } else { 3 },
        budget_ms: 100,
        blocks: Vec::new(),
        run_args: plan.accel.iter().flat_map(|accel| ["--accel".into(), accel.clone()]).collect(),
    }
}

/// Says of a row that has no figure why: what was left out, or else that its placement was not seen. Gives its record.
pub(crate) fn missed(row: &mut Row, left_out: &[String]) -> Option<Record> {
    if row.verdict != Verdict::NotMeasured {
        return None;
    }
    if left_out.is_empty() {
        row.verdict = Verdict::NotSeen;
    } else {
        row.said = left_out.join("; ");
    }
    Some(Record::of_missing(row))
}

/// Adds the rows that `wanted` finds in `done`, for each placement that was seen, and what it was made of.
fn add(table: &mut Table, name: &str, wanted: &[Wanted], mpi: Option<&str>, done: Result<Comparison>) {
    match done {
        Ok(mut done) => {
            let placements = record::placements(&done.records).into_iter().flatten().collect::<Vec<String>>();
            for it in wanted {
                for placement in &placements {
                    let mut row = it.row(&mut done.records, Some(placement));
                    table.records.extend(missed(&mut row, &done.left_out));
                    table.rows.push(row);
                }
            }
            if done.is_cut {
                table.is_cut = true;
                table.placed.extend(done.left_out.iter().map(|why| format!("{name}: {why}")));
            }
            table.placed.extend(done.placed.iter().map(|said| format!("{name}: {said}")));
            table.records.extend(done.records);
        }
        Err(error) => {
            let why = error.chain();
            let rows: Vec<Row> = wanted.iter().map(|it| it.missing(mpi, &why)).collect();
            table.records.extend(rows.iter().map(Record::of_missing));
            table.rows.extend(rows);
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
            policy: plan.policy(vms),
            quick: plan.quick,
            accel: plan.accel.clone(),
        };
        let wanted = lane_promise(place);
        let done = lane::run(&lane, progress).map(|done| Comparison {
            records: done.records,
            placed: done.placed,
            is_cut: done.cut.is_some(),
            left_out: done.cut.into_iter().collect(),
            ..Comparison::default()
        });
        add(table, &format!("lanes, {place}"), &[wanted], None, done);
    }
}

fn pairs(plan: &Plan, mpi: &Mpi, table: &mut Table, progress: &mut dyn FnMut(&str)) {
    let two_copy = copies_twice(mpi.flavour);
    if pair_promises(mpi.flavour).is_empty() {
        return;
    }
    // Nothing is promised beside TCP: it is in the whole table for comparison.
    let mut pair = comparison(plan, mpi, 2, 0, Peers { tcp: !plan.quick, two_copy, ..Peers::USUAL });
    pair.blocks.push(Block::Latency(8));
    pair.blocks.extend(SHORT.map(Block::Latency));
    pair.blocks.push(Block::Rate(8, 64));
    if two_copy {
        pair.blocks.extend(LONG.map(Block::PingPong));
        pair.blocks.extend(LONG.map(|bytes| Block::Window(bytes, 8)));
        pair.blocks.extend(LONG.map(Block::PingPongUntouched));
        pair.blocks.extend(LONG.map(|bytes| Block::WindowUntouched(bytes, 8)));
    } else if !plan.quick {
        pair.blocks.extend([Block::PingPong(1 << 20), Block::Window(65536, 8), Block::Window(1 << 20, 8)]);
        pair.blocks.extend([Block::WindowUntouched(65536, 8), Block::WindowUntouched(1 << 20, 8)]);
    }
    let done = mpi::run(&pair, progress);
    add(
        table,
        &format!("{}, native", mpi_name(mpi)),
        &pair_promises(mpi.flavour),
        Some(&mpi_name(mpi)),
        done,
    );
}

fn collectives(plan: &Plan, mpi: &Mpi, table: &mut Table, progress: &mut dyn FnMut(&str)) {
    // On two processors four ranks; on more of them as many that each has to share its own, too. Where they are sorted, they are
    // kept to two.
    let is_kept = Crowd::here(plan.policy.choice, 4, 0) == Crowd::Kept;
    let processors = if is_kept { 2 } else { crate::subject::processors() };
    let ranks = (2 * processors).clamp(4, 16);
    let mut crowd = comparison(plan, mpi, ranks, 0, Peers::USUAL);
    crowd.blocks.extend([Block::Barrier, Block::Allreduce(8)]);
    for multiple in [false, true] {
        crowd.multiple = multiple;
        let done = mpi::run(&crowd, progress);
        let level = if multiple { ", MPI_THREAD_MULTIPLE" } else { "" };
        let name = format!("{}, {ranks} ranks{level}", mpi_name(mpi));
        add(table, &name, &collective_promises((ranks, processors), multiple), Some(&mpi_name(mpi)), done);
    }
}

fn between_vms(plan: &Plan, mpi: &Mpi, table: &mut Table, progress: &mut dyn FnMut(&str)) {
    let mut pair = comparison(plan, mpi, 2, 2, Peers { tcp: !plan.quick, ..Peers::USUAL });
    pair.blocks.extend([Block::Latency(8), Block::Latency(1024), Block::Rate(8, 64)]);
    if !plan.quick {
        pair.blocks.extend([Block::PingPong(1 << 20), Block::Window(1 << 20, 8)]);
        pair.blocks.push(Block::WindowUntouched(1 << 20, 8));
    }
    let done = mpi::run(&pair, progress);
    add(table, &format!("{}, 2 VMs", mpi_name(mpi)), &vm_promises(mpi.flavour), Some(&mpi_name(mpi)), done);
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
                table.is_cut |= done.is_cut;
                table.curves.push(done);
            }
            Err(error) => {
                progress(&format!("no curves: {}", error.chain()));
                table.no_curves = true;
            }
        }
    }
}

/// With how many others a rank talks whose memory is looked at; none stands for all of them.
const NEIGHBOURS: [Option<u32>; 2] = [Some(6), None];

/// What is promised of a rank's memory.
fn memory_promise(ranks: u32, neighbours: Option<u32>) -> (String, Promise) {
    let whom = neighbours.map_or_else(|| "all".into(), |count| format!("{count} neighbours"));
    let required = if neighbours.is_some() { 2.0 } else { 16.0 };
    let what = format!("memory for each of {ranks} ranks, talking to {whom}");
    (what, Promise { side: Side::Under, required, aim: required / 2.0 })
}

/// All promises of an MPI, and how many VMs there are.
#[cfg(test)]
pub(crate) fn promises_of(flavour: Flavour) -> Vec<(Wanted, u32)> {
    let native =
        [pair_promises(flavour), collective_promises((4, 2), false), collective_promises((4, 2), true)];
    let native = native.into_iter().flatten().map(|it| (it, 0));
    native.chain(vm_promises(flavour).into_iter().map(|it| (it, 2))).collect()
}

/// Those of no MPI, or of whichever there is: of lanes and of memory.
#[cfg(test)]
pub(crate) fn promises_of_none() -> (Vec<Wanted>, Vec<(String, Promise)>) {
    (
        vec![lane_promise("native"), lane_promise("2 VMs")],
        NEIGHBOURS.map(|neighbours| memory_promise(64, neighbours)).into(),
    )
}

fn memories(
    plan: &Plan,
    isthmus: &Path,
    (mpi, program): &(Mpi, std::path::PathBuf),
    table: &mut Table,
    progress: &mut dyn FnMut(&str),
) {
    let ranks = if plan.quick { 16 } else { 64 };
    for neighbours in NEIGHBOURS {
        let (what, promise) = memory_promise(ranks, neighbours);
        progress(&what);
        let mut row = Row::missing(&what, Some(&mpi_name(mpi)), promise, "");
        match memory::run(&memory::Plan { ranks, neighbours }, isthmus, mpi, program) {
            Ok(record) => {
                // The promise is to each of them, not to their mean. What a rank is granted does not change with the round.
                let figure = Figure::exact(record.max);
                row.figure = Some(figure);
                row.verdict = promise.verdict(&figure);
                row.said = format!("mean {:.2} MB, greatest {:.2} MB", record.value, record.max);
                table.records.push(Record { promise: Some(row.judged()), ..record });
            }
            Err(error) => {
                row.said = error.chain();
                table.records.push(Record::of_missing(&row));
            }
        }
        table.rows.push(row);
    }
}

impl Table {
    /// Whether all was measured that was asked for, however it came out.
    pub fn is_whole(&self) -> bool {
        !self.no_curves && !self.is_cut && self.rows.iter().all(|row| row.verdict != Verdict::NotMeasured)
    }

    /// Its cells, a row of headings first.
    pub fn grid(&self) -> Vec<Vec<String>> {
        promise::grid(&self.rows)
    }

    /// What is said below it: how many rows came to what, and why some have no figure.
    pub fn summary(&self) -> String {
        let mut text = promise::summary(&self.rows);
        for said in &self.placed {
            text += &format!("{said}\n");
        }
        for mpi in &self.other_mpis {
            text += &format!("What is promised of {mpi} is not in this table: name one, too, with --mpi.\n");
        }
        text
    }

    /// For people.
    pub fn text(&self) -> String {
        format!("{}\n{}", table::columns(&self.grid()), self.summary())
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
            low: ratio.map(|ratio| ratio * 0.97),
            high: ratio.map(|ratio| ratio * 1.03),
            rounds: 21,
            placement: Some("far".into()),
            mpi: Some("MPICH 5".into()),
            path: Some(path.into()),
            bytes: Some(0),
            metric: "loops_per_s".into(),
            value,
            accel: "native".into(),
            ranks: 4,
            ..Record::default()
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
        let mut records = records("shm");
        let row = collective_promises((4, 2), false)[0].row(&mut records, Some("far"));
        assert_eq!((row.figure.map(|it| it.value), row.verdict), (Some(0.6), Verdict::Holds));
        assert_eq!(row.said, "900 /s : 1500 /s mpich-shm");
        let promised: Vec<_> = records.iter().filter_map(|record| record.promise.as_ref()).collect();
        assert_eq!((promised.len(), promised[0].verdict), (1, Verdict::Holds));
        assert_eq!(records[1].promise.as_ref(), Some(promised[0]).cloned().as_ref());
    }

    #[test]
    fn near_rows_stand_beside_far_ones_and_what_was_not_seen_is_said() {
        let mut both = records("shm");
        both.extend(records("shm").into_iter().map(|r| Record { placement: Some("near".into()), ..r }));
        let mut table = Table::default();
        let placed = vec!["near: not seen within 1200 s".to_owned()];
        let done = Comparison { records: both, placed, ..Comparison::default() };
        add(&mut table, "MPICH 5, 4 ranks", &collective_promises((4, 2), false)[..1], None, Ok(done));
        let brief: Vec<_> = table.rows.iter().map(|row| (row.placement.as_deref(), row.verdict)).collect();
        assert_eq!(brief, [(Some("far"), Verdict::Holds), (Some("near"), Verdict::Beside)]);
        assert!(table.text().contains("MPICH 5, 4 ranks: near: not seen"), "{}", table.text());
        assert!(table.is_whole(), "what was not seen is no failure");
    }

    #[test]
    fn a_row_of_rounds_that_nobody_sorted_is_undecided() {
        let mut any = records("shm");
        any.iter_mut().for_each(|record| record.placement = Some("any".into()));
        let row = collective_promises((4, 2), false)[0].row(&mut any, Some("any"));
        assert_eq!((row.figure.map(|it| it.value), row.verdict), (Some(0.6), Verdict::Undecided));
    }

    #[test]
    fn a_figure_of_another_way_proves_nothing() {
        let row = collective_promises((4, 2), false)[0].row(&mut records("mixed"), Some("far"));
        assert_eq!((row.figure.map(|it| it.value), row.verdict), (Some(0.6), Verdict::Unproved));
        assert!(row.said.ends_with("ways: region, mixed"), "{}", row.said);
    }

    #[test]
    fn what_was_not_measured_is_said_below_the_table() {
        let missing = collective_promises((4, 2), false)[1].row(&mut records("shm"), Some("far"));
        assert_eq!(missing.verdict, Verdict::NotMeasured);
        let again = Row { what: "another row".into(), ..missing.clone() };
        let text = Table { rows: vec![missing, again], ..Table::default() }.text();
        assert!(text.contains("2 were not measured"), "{text}");
        assert!(text.contains("not measured: allreduce"), "{text}");
        assert_eq!(text.matches("not measured: ").count(), 1, "{text}");
        assert!(text.contains("; another row"), "{text}");
    }

    #[test]
    fn promises_of_an_mpi_that_nobody_named_are_told() {
        let table = |other_mpis| Table { other_mpis, ..Table::default() };
        assert!(table(vec!["MPICH"]).summary().contains("promised of MPICH is not in this table"));
        assert!(!table(Vec::new()).summary().contains("--mpi"));
    }

    #[test]
    fn a_peer_that_was_left_out_leaves_its_reason() {
        let done = |records, left_out: &[&str]| {
            let left_out = left_out.iter().map(|why| (*why).to_owned()).collect();
            Ok::<_, Error>(Comparison { records, left_out, ..Comparison::default() })
        };
        let mut table = Table::default();
        add(&mut table, "x", &collective_promises((4, 2), false)[..1], None, done(records("shm"), &[]));
        assert!(table.is_whole());
        let alone = vec![record("isthmus", None, None, 900.0, "region")];
        add(&mut table, "x", &collective_promises((4, 2), false)[..1], None, done(alone, &["tcp: no tap"]));
        assert_eq!(
            (table.rows[1].verdict, table.rows[1].said.as_str()),
            (Verdict::NotMeasured, "tcp: no tap")
        );
        assert!(!table.is_whole());
        let told =
            table.records.iter().filter(|it| it.benchmark == "promise" && it.promise.is_some()).count();
        assert_eq!(told, 1, "the promise is in the JSON, too, and not judged");

        let mut table = Table::default();
        let cut = Comparison { is_cut: true, ..done(records("shm"), &["tcp failed"]).unwrap() };
        add(&mut table, "x", &collective_promises((4, 2), false)[..1], None, Ok(cut));
        assert_eq!(table.rows[0].verdict, Verdict::Holds, "what was measured stays");
        assert!(!table.is_whole() && table.text().contains("x: tcp failed"), "{}", table.text());
    }
}
