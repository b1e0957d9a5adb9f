//! `bench isolated` and `bench dax`: the same messages in two modes of VMs' regions, and where that is promised how long VMs take to
//! boot in them.

use std::ffi::OsString;
use std::fs;
use std::time::Duration;

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::job::Launch;
use crate::mpi::{self, Comparison};
use crate::peers::{Wanted, missed};
use crate::program::Block;
use crate::promise::{Figure, Promise, Row, Verdict, at_least, at_most};
use crate::record::{self, Record};
use crate::stats;
use crate::subject::Modes;

const MB: u64 = 1 << 20;
/// How long VMs may take to boot, run `true` and end.
const LIMIT: Duration = Duration::from_secs(300);

/// The blocks.
pub fn blocks() -> Vec<Block> {
    vec![
        Block::Latency(8),
        Block::Latency(1024),
        Block::PingPong(MB),
        Block::Window(MB, 8),
        Block::Rate(8, 64),
    ]
}

/// What is promised of a boot.
pub(crate) const BOOT: Promise = at_most(1.3, 1.1);

pub(crate) fn boot_promise(modes: Modes, vms: u32) -> String {
    format!("boot of {vms} VMs, {}", modes.row())
}

/// What is promised of messages.
pub(crate) fn wanted(modes: Modes) -> Vec<Wanted> {
    let (first, second) = modes.names();
    let of = |what: &str, promise, benchmark, bytes| {
        let what = format!("{what}, {}", modes.row());
        let mut wanted = Wanted::new(what, promise, (benchmark, bytes), Some(second));
        wanted.subject = first;
        wanted
    };
    let (time, speed) = (at_most(1.0 / 0.9, 1.0), at_least(0.9, 1.0));
    vec![
        of("latency 8 B", time, "latency", 8),
        of("latency 1 KB", time, "latency", 1024),
        of("1 MB, ping-pong", speed, "bandwidth", MB),
        of("1 MB, 8 in flight", speed, "bandwidth_windowed", MB),
        of("messages of 8 B", speed, "rate", 8),
    ]
}

/// A finished comparison with its promises.
#[derive(Debug)]
pub struct Done {
    /// What was measured; what a row is about has its promise.
    pub comparison: Comparison,
    /// The rows.
    pub rows: Vec<Row>,
}

impl Done {
    /// Whether all was measured that was asked for, however it came out.
    pub fn is_whole(&self) -> bool {
        !self.comparison.is_cut
            && self.comparison.left_out.is_empty()
            && self.rows.iter().all(|row| row.verdict != Verdict::NotMeasured)
    }
}

/// Runs `plan`, which compares these modes, telling `progress` what is going on.
///
/// # Errors
/// As [`mpi::run`], and for VMs that do not boot.
pub fn run(modes: Modes, plan: &mpi::Plan, is_quick: bool, progress: &mut dyn FnMut(&str)) -> Result<Done> {
    let mut comparison = mpi::run(plan, progress)?;
    let mut rows = Vec::new();
    let placements: Vec<String> = record::placements(&comparison.records).into_iter().flatten().collect();
    for wanted in wanted(modes) {
        for placement in &placements {
            let mut row = wanted.row(&mut comparison.records, Some(placement));
            let record = missed(&mut row, &comparison.left_out);
            comparison.records.extend(record);
            rows.push(row);
        }
    }
    let accel = comparison.records.first().map_or_else(String::new, |record| record.accel.clone());
    for (vms, rounds) in modes.boots(is_quick) {
        let (records, row) = boots(modes, plan, (*vms, *rounds), &accel, progress)?;
        comparison.records.extend(records);
        rows.push(row);
    }
    Ok(Done { comparison, rows })
}

/// Of `isthmus run --stats`.
#[derive(Deserialize)]
struct Stats {
    boot_s: f64,
}

/// Boots so many VMs so often, in both modes in turn.
fn boots(
    modes: Modes,
    plan: &mpi::Plan,
    (vms, rounds): (u32, u32),
    accel: &str,
    progress: &mut dyn FnMut(&str),
) -> Result<(Vec<Record>, Row)> {
    let exe = std::env::current_exe().map_err(Error::io("find the isthmus binary"))?;
    let scratch = tempfile::tempdir().map_err(Error::io("make a temporary directory"))?;
    let file = scratch.path().join("stats.json");
    let load = stats::load();
    let (first, second) = modes.names();
    let boot = |is_second: bool| -> Result<f64> {
        let count = vms.to_string();
        let mut words = vec!["run", "--vms", &count, "-n", &count, "--memory", "384M", "--launcher", "none"];
        words.extend(modes.args(is_second));
        words.extend(plan.run_args.iter().map(String::as_str));
        words.push("--stats");
        let mut args: Vec<OsString> = words.into_iter().map(Into::into).collect();
        args.extend([file.clone().into(), "--".into(), "true".into()]);
        let name = if is_second { second } else { first };
        Launch { program: exe.clone(), args, env: Vec::new() }.run(name, LIMIT)?;
        let text = fs::read_to_string(&file).map_err(Error::io("read the statistics of isthmus run"))?;
        let told: Stats = serde_json::from_str(&text)
            .map_err(|e| Error::Output { subject: name.into(), what: format!("its statistics: {e}") })?;
        Ok(told.boot_s)
    };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        progress(&format!("boots of {vms} VMs: round {} of {rounds}", round + 1));
        // Each comes first in every other round.
        for is_second in [round % 2 != 0, round % 2 == 0] {
            let seconds = boot(is_second)?;
            if is_second { &mut theirs } else { &mut ours }.push(seconds);
        }
    }
    let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
    let record = |subject: &str, values: &[f64]| {
        let record = Record {
            benchmark: "boot".into(),
            subject: subject.into(),
            metric: "boot_s".into(),
            accel: accel.into(),
            vms,
            ranks: vms,
            load,
            ..Record::default()
        };
        record.with_values(values)
    };
    let mut of_ours = record(first, &ours).with_ratios(second, &ratios);
    let promise = BOOT;
    let figure = Figure::of(&of_ours);
    let of_theirs = record(second, &theirs);
    let row = Row {
        figure: Some(figure),
        said: format!("{:.2} s : {:.2} s {second}", of_ours.value, of_theirs.value),
        verdict: promise.verdict(&figure),
        ..Row::missing(&boot_promise(modes, vms), None, promise, "")
    };
    of_ours.promise = Some(row.judged());
    Ok((vec![of_ours, of_theirs], row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_promise_is_of_a_block() {
        let of = |block: &Block| match block {
            Block::Latency(bytes) => ("latency", *bytes),
            Block::PingPong(bytes) => ("bandwidth", *bytes),
            Block::Window(bytes, _) => ("bandwidth_windowed", *bytes),
            Block::Rate(bytes, _) => ("rate", *bytes),
            _ => ("", 0),
        };
        let blocks: Vec<_> = blocks().iter().map(of).collect();
        for modes in [Modes::Isolated, Modes::Dax] {
            let wanted = wanted(modes);
            assert_eq!(wanted.len(), blocks.len());
            assert!(wanted.iter().all(|wanted| blocks.contains(&wanted.of())));
        }
    }
}
