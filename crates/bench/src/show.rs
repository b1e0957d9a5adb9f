//! What is printed of a finished benchmark: the subjects, the table, and what else must be known to read it.

use crate::error::{Error, Result};
use crate::mpi::{Comparison, Plan};
use crate::program::Block;
use crate::rank::What;
use crate::record::{self, Record};
use crate::{fluid, lane, objects, promise, subject, sysv, table};

/// A comparison of an MPI's paths.
pub fn comparison(plan: &Plan, done: &Comparison) {
    let first = &done.records[0];
    let place = match plan.vms {
        0 => "as plain processes".into(),
        vms => format!("in {vms} VMs ({})", first.accel),
    };
    isthmus_region::say!();
    isthmus_region::say!(
        "{}, {} ranks {place}, medians of {} rounds; load before: {}",
        first.mpi.as_deref().unwrap_or("MPI"),
        plan.ranks,
        rounds(&done.records),
        load(first)
    );
    isthmus_region::say!(
        "In brackets the way that counters prove. Ratios are medians over rounds, not quotients of the columns; in brackets \
         behind them where these medians lie, with 95 % (fewer than 6 rounds: the least and the greatest)."
    );
    explain(&done.records);
    isthmus_region::say!();
    isthmus_region::print::to_stdout(&table::render(&done.records));
    isthmus_region::say!();
    for placement in record::placements(&done.records).into_iter().flatten() {
        let records = record::placed(&done.records, Some(&placement));
        let head = if placement == "any" { String::new() } else { format!("{placement}: ") };
        if let Some(lines) = table::lines(&records) {
            isthmus_region::say!("{head}{lines}");
        }
        if let Some(text) = matches(&records) {
            isthmus_region::say!("{head}{text}");
        }
    }
    for said in &done.placed {
        isthmus_region::say!("{said}");
    }
    if plan.blocks.contains(&Block::Barrier) {
        isthmus_region::say!("{}", crowd(plan, done));
    }
    for (subject, line) in &done.lines {
        isthmus_region::say!("{subject}: {line}");
    }
    for peer in ["tcp", "mpich-shm"] {
        let chosen = subject::chosen(&done.records, peer);
        if !chosen.is_empty() {
            isthmus_region::say!("{peer} is, row by row, the best of its ways: {}.", chosen.join(", "));
        }
    }
    for what in reasons(&done.left_out) {
        isthmus_region::say!("left out: {what}");
    }
    if done.is_alone {
        isthmus_region::say!(
            "Nothing was left to compare isthmus with: no ratio was formed, and no promise is judged."
        );
    }
}

/// How many rounds ratios are made of, or figures where there is no ratio: `21`, or `4 to 21`.
fn rounds(records: &[Record]) -> String {
    let has_ratios = records.iter().any(|record| record.ratio.is_some());
    // Figures that were compared with nothing have rounds of their own; what a start takes is no table's figure.
    let counts = |record: &&Record| record.ratio.is_some() || !has_ratios && record.placement.is_some();
    let all = || records.iter().filter(counts).map(|record| record.rounds);
    match (all().min(), all().max()) {
        (Some(least), Some(most)) if least < most => format!("{least} to {most}"),
        (Some(least), _) => least.to_string(),
        _ => "no".into(),
    }
}

/// What near and far mean, where they are told apart.
fn explain(records: &[Record]) {
    let sorted = |record: &Record| matches!(record.placement.as_deref(), Some("near" | "far"));
    if records.iter().any(sorted) {
        isthmus_region::say!(
            "near, far: rounds on processors that share a core or a cache, and on such that do not; beside it half a round of a bare cache line, in us, \
             which agreed before and after each block."
        );
    }
}

/// How much later a message comes that has to be found among others, of each subject: a whole round beside them less one
/// beside none, since only one of the two ranks has them.
fn matches(records: &[Record]) -> Option<String> {
    let mut subjects: Vec<&str> = Vec::new();
    for record in records.iter().filter(|r| r.benchmark == "posted" || r.benchmark == "unexpected") {
        if !subjects.contains(&record.subject.as_str()) {
            subjects.push(&record.subject);
        }
    }
    let mut text = String::new();
    for benchmark in ["posted", "unexpected"] {
        for subject in &subjects {
            let alone = records
                .iter()
                .find(|r| r.benchmark == "latency" && r.bytes == Some(8) && r.subject == *subject)?;
            let mut seen = Vec::new();
            let mut said = Vec::new();
            for record in records.iter().filter(|r| r.benchmark == benchmark && r.subject == *subject) {
                if !seen.contains(&record.depth) {
                    seen.push(record.depth);
                    let (value, unit) = table::amount(2.0 * (record.value - alone.value), "match_us");
                    said.push(format!(
                        "{value} {unit} among {}",
                        table::thousands(record.depth.unwrap_or_default())
                    ));
                }
            }
            if !said.is_empty() {
                text.push_str(&format!("A match takes {subject} {} {benchmark} more.\n", said.join(", ")));
            }
        }
    }
    (!text.is_empty()).then(|| text.trim_end().to_owned())
}

/// Whether ranks had processors enough, and what they do while they wait.
fn crowd(plan: &Plan, done: &Comparison) -> String {
    let processors = subject::processors();
    let mut text = format!("{} ranks on {processors} processors. ", plan.ranks);
    if done.yields.is_empty() {
        text.push_str("What makes ranks yield while they wait stands in the lines below.");
    } else {
        let said: Vec<String> = done
            .yields
            .iter()
            .map(|(subject, yields)| format!("{subject} {}", if *yields { "on" } else { "off" }))
            .collect();
        text.push_str(&format!("mpi_yield_when_idle, as the ranks found it: {}.", said.join(", ")));
    }
    text
}

/// The transport beside the bare line.
///
/// # Errors
/// If nothing was measured.
pub fn lane(done: &lane::Done) -> Result<()> {
    let records = &done.records;
    let first = records.first().ok_or_else(|| Error::Lane { what: "find any block in the output".into() })?;
    isthmus_region::say!();
    isthmus_region::say!(
        "2 processes ({}, {} VMs), medians of {} rounds; load before: {}",
        first.accel,
        first.vms,
        rounds(records),
        load(first)
    );
    isthmus_region::say!(
        "line: half a round of one bare cache line, in us, timed before and after each block in the same processes."
    );
    explain(records);
    isthmus_region::say!();
    let head = ["benchmark", "bytes", "line", "median", "x bare line", "95 % of it", "rounds", "path"];
    let mut grid = vec![head.map(str::to_owned).to_vec()];
    for record in records {
        let (value, unit) = table::amount(record.value, &record.metric);
        let interval = record.ratio.and(record.low.zip(record.high));
        grid.push(vec![
            record.benchmark.clone(),
            record.bytes.unwrap_or(0).to_string(),
            table::line(record),
            format!("{value} {unit}"),
            record.ratio.map_or_else(|| "-".into(), |r| format!("{r:.2}")),
            interval.map_or_else(String::new, |(low, high)| format!("{low:.2} to {high:.2}")),
            record.rounds.to_string(),
            record.path.clone().unwrap_or_else(|| "unknown".into()),
        ]);
    }
    isthmus_region::print::to_stdout(&table::columns(&grid));
    for said in &done.placed {
        isthmus_region::say!("{said}");
    }
    Ok(())
}

/// Barriers, counters or channels in all places.
pub fn objects(plan: &objects::Plan, done: &objects::Done) {
    isthmus_region::say!();
    isthmus_region::say!(
        "Medians of {} rounds, of ratios within a round; load before: {}; {} processors here.",
        rounds(&done.records),
        done.records.first().map_or_else(|| "unknown".into(), load),
        subject::processors()
    );
    explain(&done.records);
    if plan.what == What::Barrier {
        isthmus_region::say!("Nothing counts what passes at a barrier: no way is claimed for these.");
    }
    if plan.what == What::Sysv {
        isthmus_region::say!(
            "A turn: wait for the own semaphore (P), write the buffer, signal the other's (V); over sockets, a packet of as many \
             bytes. Its deviation is the standard deviation of turns, each the mean of 16. {} is the kernel's IPC between two \
             processes of this host.",
            sysv::NATIVE
        );
    }
    if plan.what == What::Doorbell {
        isthmus_region::say!(
            "A wake-up: half of a turn of two processes, each of which sleeps until it is rung. futex and service are natively, a futex \
             and a pipe of the local service; between VMs relay is by both agents and the host service, doorbell by interrupts, which \
             are counted. Processor time is that of all processes of the host, by launches of more and of fewer turns. All other rows \
             are of VMs without the guest driver (relay) and with it (doorbell); wake-up is that of the same round, which a \
             turn by semaphores has, too."
        );
    }
    if let Some(record) = done.records.iter().find(|record| record.vms > 0) {
        isthmus_region::say!("Figures of VMs are under {}.", record.accel.to_uppercase());
    }
    for place in plan.places.iter().filter(|place| place.processes > subject::processors()) {
        isthmus_region::say!("{} are over-subscribed: they share processors.", place.name());
    }
    isthmus_region::say!();
    isthmus_region::print::to_stdout(&table::columns(&objects::grid(plan.what, &done.records)));
    isthmus_region::say!();
    promises(&done.rows);
    for said in &done.placed {
        isthmus_region::say!("{said}");
    }
    for what in reasons(&done.left_out) {
        isthmus_region::say!("left out: {what}");
    }
}

/// The fluid simulator.
pub fn fluid(plan: &fluid::Plan, done: &fluid::Done) {
    isthmus_region::say!();
    isthmus_region::say!(
        "{} particles, {} steps, medians of {} rounds, of ratios within a round; load before: {}. All computed the same.",
        table::thousands(plan.particles),
        plan.steps,
        rounds(&done.records),
        done.records.first().map_or_else(|| "unknown".into(), load)
    );
    isthmus_region::say!();
    explain(&done.records);
    isthmus_region::print::to_stdout(&table::columns(&fluid::grid(&done.records)));
    isthmus_region::say!();
    promises(&done.rows);
    for said in &done.placed {
        isthmus_region::say!("{said}");
    }
}

/// What is promised, with what became of it.
pub fn promises(rows: &[promise::Row]) {
    if !rows.is_empty() {
        isthmus_region::say!("{}", table::columns(&promise::short_grid(rows)));
        isthmus_region::print::to_stdout(&promise::summary(rows));
    }
}

fn load(record: &Record) -> String {
    record.load.map_or_else(|| "unknown".into(), |load| format!("{load:.2}"))
}

/// What was left out and why, each reason once and without the launcher's line: the progress had that.
fn reasons(left_out: &[String]) -> Vec<String> {
    let mut all: Vec<(String, &str)> = Vec::new();
    for what in left_out {
        let said = what.split("\nthe line was:").next().unwrap_or(what);
        let (name, why) = said.split_once(": ").unwrap_or((said, ""));
        match all.iter_mut().find(|(_, known)| *known == why && !why.is_empty()) {
            Some((names, _)) => *names = format!("{names}, {name}"),
            None => all.push((name.into(), why)),
        }
    }
    let whole = |(names, why): (String, &str)| if why.is_empty() { names } else { format!("{names}: {why}") };
    all.into_iter().map(whole).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_out_for_the_same_reason_is_named_together() {
        let tcp =
            |name: &str| format!("{name}: the launch of {name}'s VMs\nthe line was: isthmus run --net tap");
        let same = |name: &str| format!("{name}: no /dev/net/tun: load it\nthe line was: isthmus run {name}");
        let left_out =
            [same("tcp"), "mpich-shm: it hangs".into(), same("tcp-vhost"), tcp("x"), "alone".into()];
        assert_eq!(
            reasons(&left_out),
            [
                "tcp, tcp-vhost: no /dev/net/tun: load it",
                "mpich-shm: it hangs",
                "x: the launch of x's VMs",
                "alone"
            ]
        );
    }
}
