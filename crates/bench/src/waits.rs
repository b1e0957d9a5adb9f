//! `bench wait`: completions that a process sleeps for, beside those that it looks for again and again: of the provider itself,
//! without an MPI, and of libfabric's own provider for one host.
//!
//! MPIs never sleep in libfabric; what does (storage, key-value stores, Charm++ and the like) waits by `fi_cq_sread` or by a
//! descriptor, and each piece of a long message that is waited for so is one more sleep that somebody has to end.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::job::Launch;
use crate::objects::Plan;
use crate::program;
use crate::rank::Sample;

/// How long one launch may take.
const LIMIT: Duration = Duration::from_secs(300);
/// Bytes of a message.
pub const SIZES: [u64; 4] = [8, 4096, 65536, 1 << 20];

const SOURCE: (&str, &str) = ("waits.c", include_str!("../programs/waits/waits.c"));
const FLAGS: [&str; 6] = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-ldl"];

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Line {
    Wait(Wait),
    Absent { subject: String },
}

/// A block, as the program prints it.
#[derive(Deserialize)]
struct Wait {
    subject: String,
    bytes: u64,
    latency_us: f64,
    sleeps_per_round: f64,
    cpu_us_per_op: f64,
    payload_bytes: u64,
    region_bytes: u64,
    /// None where both processes share a processor.
    line_us: Option<[f64; 2]>,
}

fn compile() -> Result<PathBuf> {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let compiled = program::build(Path::new(&compiler), "", "waits", &[program::AWAIT, SOURCE], &FLAGS);
    compiled.map_err(|error| match error {
        Error::Compile { compiler, said } if said.contains("rdma/") => {
            let said = format!("{said}\nlibfabric's headers are needed (Debian: libfabric-dev)");
            Error::Compile { compiler, said }
        }
        other => other,
    })
}

/// Runs both processes of all ways on a `pair` of processors, and reads what they print; tells which providers are not there.
///
/// # Errors
/// If the program cannot be compiled (it takes libfabric's headers) or does not do its part.
pub fn run(plan: &Plan, reps: u32, pair: Option<String>) -> Result<(Vec<Sample>, Vec<String>)> {
    let program = compile()?;
    let exe = std::env::current_exe().map_err(Error::io("find this program"))?;
    let args = arguments(plan, reps, pair.as_deref(), &program);
    read(&Launch { program: exe, args, env: Vec::new() }.run("waits", LIMIT)?)
}

fn arguments(plan: &Plan, reps: u32, pair: Option<&str>, program: &Path) -> Vec<OsString> {
    // One rank, which makes the second process itself: they need no MPI, only what its ranks have in their environment.
    let mut args: Vec<OsString> = ["run", "--vms", "0", "-n", "1"].map(Into::into).into();
    if let Some(mpi) = &plan.mpi {
        args.extend(["--mpi".into(), mpi.into()]);
    }
    if let Some(pair) = pair {
        args.extend(["--env".into(), format!("ISTHMUS_BENCH_PIN={pair}").into()]);
    }
    args.extend(["--".into(), program.into(), reps.to_string().into(), plan.budget_ms.to_string().into()]);
    args.extend(SIZES.map(|bytes| bytes.to_string().into()));
    args
}

fn read(text: &str) -> Result<(Vec<Sample>, Vec<String>)> {
    let bad = |what: String| Error::Output { subject: "waits".into(), what };
    let (mut samples, mut absent) = (Vec::new(), Vec::new());
    for line in text.lines().filter(|line| line.starts_with("{\"isthmus_bench\":1,")) {
        let block = match serde_json::from_str(line).map_err(|error| bad(format!("{error} in {line}")))? {
            Line::Absent { subject } => {
                absent.push(subject);
                continue;
            }
            Line::Wait(block) => block,
        };
        let whole = block.region_bytes >= block.payload_bytes;
        let sample = |metric: &str, value: f64| Sample {
            benchmark: "wait".into(),
            subject: block.subject.clone(),
            metric: metric.into(),
            bytes: Some(block.bytes),
            value,
            cpu_us_per_op: Some(block.cpu_us_per_op),
            // Nothing counts libfabric's own.
            path: (whole && !block.subject.starts_with("shm")).then(|| "region".into()),
            line_us: block.line_us,
        };
        samples.push(sample("latency_us", block.latency_us));
        samples.push(sample("sleeps_per_round", block.sleeps_per_round));
    }
    match samples.is_empty() {
        true => Err(bad("it has no figures".into())),
        false => Ok((samples, absent)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::{Choice, Policy};

    #[test]
    fn its_processes_run_where_the_search_looked() {
        let plan = Plan {
            what: crate::rank::What::Wait,
            places: Vec::new(),
            policy: Policy { choice: Choice::Far, rounds: 1, patience: Duration::ZERO },
            rounds_vms: 1,
            budget_ms: 10,
            mpi: None,
            accel: None,
            is_quick: false,
        };
        let args = arguments(&plan, 1, Some("2,5"), Path::new("/waits"));
        let at = args.iter().position(|arg| arg == "--env").unwrap();
        assert_eq!(args[at + 1], "ISTHMUS_BENCH_PIN=2,5");
        assert!(args[at + 2] == "--", "it is for the processes, not for isthmus run: {args:?}");
    }

    #[test]
    fn blocks_are_read_and_proved_by_the_regions_bytes() {
        let line = |subject: &str, region: u64| {
            format!(
                "{{\"isthmus_bench\":1,\"kind\":\"wait\",\"subject\":\"{subject}\",\"bytes\":8,\"latency_us\":1.5,\
                 \"sleeps_per_round\":2,\"cpu_us_per_op\":1,\"payload_bytes\":80,\"region_bytes\":{region},\
                 \"line_us\":[0.2,0.3]}}\n"
            )
        };
        let absent = "{\"isthmus_bench\":1,\"kind\":\"absent\",\"subject\":\"shm-spin\"}\n";
        let text =
            [line("isthmus-sread", 80), line("isthmus-spin", 79), "x\n".into(), absent.into()].concat();
        let (samples, absent) = read(&text).unwrap();
        let paths: Vec<_> = samples.iter().map(|sample| sample.path.as_deref()).collect();
        assert_eq!(paths, [Some("region"), Some("region"), None, None]);
        assert_eq!((samples[0].value, samples[1].value, absent), (1.5, 2.0, vec!["shm-spin".to_owned()]));
        assert_eq!(samples[0].line_us, Some([0.2, 0.3]));
        assert!(read("x\n").is_err());
    }
}
