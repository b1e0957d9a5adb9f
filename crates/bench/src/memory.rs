//! How much of a region each rank takes: many ranks exchange messages with their neighbours and hold still, and somebody
//! looks at what their processes were granted.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use isthmus_run::mpi::Mpi;
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::job::Launch;
use crate::mpi::mpi_name;
use crate::record::Record;
use crate::stats;

/// How long a job may take that has far more ranks than processors.
const LIMIT: Duration = Duration::from_secs(240);

/// What to measure, natively.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many ranks.
    pub ranks: u32,
    /// With how many others each talks; `None` stands for all of them.
    pub neighbours: Option<u32>,
}

/// What `isthmus ps --json` shows: only what is used here.
#[derive(Deserialize)]
struct Seen {
    members: Vec<Member>,
}

#[derive(Deserialize)]
struct Member {
    processes: Vec<Process>,
}

#[derive(Deserialize)]
struct Process {
    program: String,
    memory_bytes: u64,
    #[serde(default)]
    counters: BTreeMap<String, u64>,
}

/// Runs `plan` with the compiled benchmark `program`. The record's value is the mean of the ranks, in megabytes of 2^20.
///
/// # Errors
/// [`Error::Job`] or [`Error::Memory`], if the job fails or cannot be looked at.
pub fn run(plan: &Plan, isthmus: &Path, mpi: &Mpi, program: &Path) -> Result<Record> {
    let load = stats::load();
    let folder = tempfile::tempdir().map_err(Error::io("make a temporary directory"))?;
    let launch = launch(plan, isthmus, mpi, program, folder.path());
    let seen = thread::scope(|scope| {
        let job = scope.spawn(|| launch.run("isthmus", LIMIT));
        while !job.is_finished() && !all_hold(folder.path(), plan.ranks) {
            thread::sleep(Duration::from_millis(50));
        }
        let seen = if job.is_finished() { None } else { Some(look(isthmus, folder.path())) };
        // Whatever was seen, the ranks shall end.
        let told = fs::write(folder.path().join("end"), "").map_err(Error::io("tell the ranks to end"));
        job.join().map_err(|_| Error::Memory { what: "watch the job".into() })??;
        told?;
        seen.ok_or_else(|| Error::Memory { what: "look at the ranks: they ended before".into() })?
    })?;
    let megabytes = megabytes(&seen, program, plan.ranks, plan.neighbours.unwrap_or(plan.ranks - 1))?;
    // Counts of ranks are small.
    let mean = megabytes.iter().sum::<f64>() / megabytes.len() as f64;
    let record = Record {
        benchmark: "memory".into(),
        subject: "isthmus".into(),
        mpi: Some(mpi_name(mpi)),
        depth: Some(plan.neighbours.unwrap_or(plan.ranks - 1)),
        metric: "per_rank_MB".into(),
        accel: "native".into(),
        ranks: plan.ranks,
        load,
        ..Record::default()
    };
    // One round; the least and the greatest are those of the ranks.
    let record = record.with_values(&megabytes);
    Ok(Record { value: mean, low: None, high: None, rounds: 1, ..record })
}

fn launch(plan: &Plan, isthmus: &Path, mpi: &Mpi, program: &Path, folder: &Path) -> Launch {
    let mut args: Vec<OsString> = ["run", "--vms", "0", "-n"].map(Into::into).into();
    args.extend([plan.ranks.to_string().into(), "--mpi".into()]);
    args.push(mpi.launcher.parent().unwrap_or(Path::new(".")).into());
    args.extend(["--through-region", "--"].map(Into::into));
    args.extend([program.into(), "--neighbours".into()]);
    args.push(plan.neighbours.map_or_else(|| "all".into(), |count| count.to_string()).into());
    args.push(folder.into());
    Launch { program: isthmus.into(), args, env: Vec::new() }
}

fn all_hold(folder: &Path, ranks: u32) -> bool {
    (0..ranks).all(|rank| folder.join(rank.to_string()).exists())
}

/// Asks for what `isthmus ps` shows of the run that the first rank says it belongs to.
fn look(isthmus: &Path, folder: &Path) -> Result<String> {
    let first = folder.join("0");
    let text = fs::read_to_string(&first).map_err(Error::io(format!("read {}", first.display())))?;
    let run = PathBuf::from(text.trim());
    let shown = Command::new(isthmus)
        .args(["ps", "--json", "--run"])
        .arg(&run)
        .stdin(Stdio::null())
        .output()
        .map_err(Error::io("run isthmus ps"))?;
    if !shown.status.success() {
        let said = String::from_utf8_lossy(&shown.stderr).trim().to_owned();
        return Err(Error::Memory { what: format!("look at the run in {}: {said}", run.display()) });
    }
    Ok(String::from_utf8_lossy(&shown.stdout).into_owned())
}

/// What each process of the benchmark was granted, each of which must have opened a lane to all of its neighbours.
fn megabytes(text: &str, program: &Path, ranks: u32, neighbours: u32) -> Result<Vec<f64>> {
    let seen: Seen = serde_json::from_str(text)
        .map_err(|error| Error::Memory { what: format!("read what isthmus ps shows: {error}") })?;
    let name = program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let found: Vec<f64> = seen
        .members
        .iter()
        .flat_map(|member| &member.processes)
        // The region keeps the first 24 bytes of a program's name.
        .filter(|process| !process.program.is_empty() && name.starts_with(&process.program))
        .filter(|process| process.counters.get("lanes_opened").is_some_and(|n| *n >= u64::from(neighbours)))
        // Regions are far below 2^53 bytes.
        .map(|process| process.memory_bytes as f64 / f64::from(1 << 20))
        .collect();
    if found.len() != ranks as usize {
        return Err(Error::Memory {
            what: format!(
                "find {ranks} ranks in the region with {neighbours} lanes each: {} are there",
                found.len()
            ),
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_told_from_other_processes() {
        let text = r#"{"region":{},"members":[{"name":"a","processes":[
            {"pid":1,"program":"mpi-bench-openmpi-00","memory_bytes":2097152,"area":0,"counters":{"lanes_opened":6}},
            {"pid":2,"program":"top","memory_bytes":131072},
            {"pid":3,"program":"mpi-bench-openmpi-00","memory_bytes":4194304,"counters":{"lanes_opened":7}},
            {"pid":4,"program":"","memory_bytes":8}]}]}"#;
        let program = Path::new("/c/mpi-bench-openmpi-00ff");
        assert_eq!(megabytes(text, program, 2, 6).unwrap(), [2.0, 4.0]);
        assert!(matches!(megabytes(text, program, 2, 7), Err(Error::Memory { .. })));
        assert!(matches!(megabytes(text, program, 3, 6), Err(Error::Memory { .. })));
        assert!(matches!(megabytes("{}", program, 2, 6), Err(Error::Memory { .. })));
    }
}
