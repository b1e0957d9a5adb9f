//! `bench sph`: the fluid simulator of `examples/c`, with the same particles in one process, in two of one kernel, and in VMs.
//!
//! The source, its header and the library's are part of this program: what is measured is what people read. The checksum of the
//! result must be the same wherever it was computed, or nothing is reported.

use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::job::{self, Launch, accel_in, statistics};
use crate::placement::{self, Placement, Policy, Scale, Search, Sieve};
use crate::promise::{Figure, Promise, Row, Verdict, at_least};
use crate::record::Record;
use crate::{stats, subject, table};

const SOURCES: [(&str, &str); 3] = [
    ("sph.c", include_str!("../../../examples/c/sph.c")),
    ("film.h", include_str!("../../../examples/c/film.h")),
    ("isthmus.h", include_str!("../../../include/isthmus.h")),
];
const FLAGS: [&str; 3] = ["-std=c11", "-O2", "-I."];
const LIBRARY: &str = "libisthmus.so.0";
/// How long one launch may take.
const LIMIT: Duration = Duration::from_secs(1800);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many particles.
    pub particles: u32,
    /// Steps of a run natively; in VMs there are fewer, since they are slower.
    pub steps: u32,
    /// How many rounds of which placement; in each round each place is measured once.
    pub policy: Policy,
    /// Whether in VMs, too.
    pub vms: bool,
    /// The MPI whose launcher starts the processes.
    pub mpi: Option<String>,
    /// Accelerator of the VMs.
    pub accel: Option<String>,
}

/// Where it runs: the name in records, processes, VMs.
const PLACES: [(&str, u32, u32); 5] =
    [("native-1", 1, 0), ("native-2", 2, 0), ("one-vm-1", 1, 1), ("one-vm-2", 2, 1), ("two-vms", 2, 2)];

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// The measurements.
    pub records: Vec<Record>,
    /// What is promised of them.
    pub rows: Vec<Row>,
    /// Placements that were looked for and not seen, and what else must be known of them.
    pub placed: Vec<String>,
    /// Why there are fewer rounds than there should be.
    pub cut: Option<String>,
}

/// One run, as it says itself.
#[derive(Clone, Debug, PartialEq)]
struct Run {
    steps_per_s: f64,
    /// The greatest share of a process's time that it spent in barriers.
    waiting: f64,
    hosts: Vec<String>,
    checksum: String,
    accel: String,
    /// The line between the processors before and after it.
    lines: Option<[f64; 2]>,
}

/// Where the library is: beside this program, as it is built and as it is installed.
fn library() -> Result<PathBuf> {
    let exe = std::env::current_exe().map_err(Error::io("find this program"))?;
    let exe = fs::canonicalize(&exe).unwrap_or(exe);
    let mut places = exe.ancestors().skip(1).take(3).flat_map(|dir| {
        ["lib", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"].map(|lib| dir.join(lib).join(LIBRARY))
    });
    places.find(|path| path.is_file()).ok_or_else(|| Error::Io {
        what: format!("find {LIBRARY} near {}; `make` builds it", exe.display()),
        source: std::io::ErrorKind::NotFound.into(),
    })
}

/// Compiles it, or finds it compiled in the user's cache.
fn compile() -> Result<PathBuf> {
    let library = library()?;
    let mut key = DefaultHasher::new();
    (SOURCES, FLAGS, &library).hash(&mut key);
    let dir = isthmus_vm::cache::dir().map_err(Error::Cache)?.join("bench");
    let name = format!("sph-{:016x}", key.finish());
    let program = dir.join(&name);
    if program.is_file() {
        return Ok(program);
    }
    let build = dir.join(format!("{name}.build-{}", std::process::id()));
    let cannot = |path: &Path| Error::io(format!("write {}", path.display()));
    fs::create_dir_all(&build).map_err(cannot(&build))?;
    for (file, text) in SOURCES {
        fs::write(build.join(file), text).map_err(cannot(&build))?;
    }
    let folder = library.parent().unwrap_or(Path::new("/")).to_owned();
    let mut rpath = OsString::from("-Wl,-rpath,");
    rpath.push(&folder);
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(&compiler);
    command.current_dir(&build).args(FLAGS).args(["-o", &name, "sph.c"]).args([
        library.as_os_str(),
        &rpath,
        "-lm".as_ref(),
    ]);
    let compiled = job::compiled(&mut command).and_then(|()| {
        // Renamed into place, so that another benchmark at the same time never runs half a program.
        fs::rename(build.join(&name), &program).map_err(cannot(&program))
    });
    // Also where it failed: nothing there is of use.
    let removed = fs::remove_dir_all(&build);
    compiled?;
    removed.map_err(Error::io(format!("remove {}", build.display())))?;
    Ok(program)
}

fn launch(plan: &Plan, program: &Path, processes: u32, vms: u32) -> Result<Run> {
    let exe = std::env::current_exe().map_err(Error::io("find this program"))?;
    let folder = tempfile::tempdir().map_err(Error::io("make a temporary folder"))?;
    let stats = folder.path().join("stats.json");
    let mut args: Vec<OsString> = vec!["run".into(), "--vms".into(), vms.to_string().into()];
    args.extend(["-n".into(), processes.to_string().into(), "--stats".into(), stats.clone().into()]);
    if let Some(cpus) = processes.checked_div(vms) {
        args.extend(["--cpus".into(), cpus.to_string().into()]);
        if processes <= subject::processors() {
            args.push("--pin".into());
        }
    }
    if let Some(mpi) = &plan.mpi {
        args.extend(["--mpi".into(), mpi.into()]);
    }
    if let Some(accel) = &plan.accel {
        args.extend(["--accel".into(), accel.into()]);
    }
    args.extend(["--".into(), program.into(), "--check".into()]);
    args.extend(["--particles".into(), plan.particles.to_string().into()]);
    args.extend(["--steps".into(), plan.steps.to_string().into()]);
    let text = Launch { program: exe, args, env: Vec::new() }.run("sph", LIMIT)?;
    let run = read(&text, accel_in(statistics(&stats).as_ref(), vms))?;
    let mut hosts = run.hosts.clone();
    hosts.sort();
    hosts.dedup();
    if run.hosts.len() != processes as usize || hosts.len() != vms.max(1) as usize {
        let what = format!("{processes} processes in {vms} VMs said that they were on {:?}", run.hosts);
        return Err(Error::Output { subject: "sph".into(), what });
    }
    Ok(run)
}

fn read(text: &str, accel: String) -> Result<Run> {
    let bad = |what: &str| Error::Output { subject: "sph".into(), what: what.into() };
    let number = |text: &str| text.trim().parse::<f64>().ok();
    let steps_per_s = text
        .lines()
        .find_map(|line| number(line.strip_suffix(" steps per second")?.rsplit(' ').next()?))
        .ok_or_else(|| bad("no line with the steps per second"))?;
    let of_process = |line: &str| {
        let (host, rest) = line.strip_prefix("number ")?.split_once(" on ")?.1.split_once(": ")?;
        Some((host.to_owned(), number(rest.split_once(" %")?.0)?))
    };
    let processes: Vec<(String, f64)> = text.lines().filter_map(of_process).collect();
    let checksum =
        text.lines().find_map(|line| line.strip_prefix("checksum ")).ok_or_else(|| bad("no checksum"))?;
    Ok(Run {
        steps_per_s,
        waiting: processes.iter().map(|(_, waiting)| waiting / 100.0).fold(0.0, f64::max),
        hosts: processes.into_iter().map(|(host, _)| host).collect(),
        checksum: checksum.into(),
        accel,
        lines: None,
    })
}

/// Runs `plan`, telling `progress` what is going on.
///
/// # Errors
/// If the program cannot be compiled or run, or computes something else in another place.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Done> {
    let program = compile()?;
    let load = stats::load();
    let places: Vec<_> = PLACES.into_iter().filter(|(_, _, vms)| plan.vms || *vms == 0).collect();
    // The program does not choose its processors: where rounds are sorted, all it starts is kept to the two that are timed.
    let mut search = Search::new(plan.policy, 2, 0);
    let scale = search.scale;
    let mut go = |places: &[Place], at: usize, pair| {
        let (_, processes, vms) = places[at];
        placement::kept_to(pair, || launch(plan, &program, processes, vms))
    };
    let (runs, cut) = rounds(&places, &mut search, &mut go, progress)?;
    let (sieves, not_seen) = search.rows(|placement| least(&runs, &scale, placement));
    let mut done = Done { placed: search.said(&sieves, &not_seen), cut, ..Done::default() };
    for sieve in sieves {
        let takes = |run: &Run| sieve.takes(&scale, run.lines);
        let rates = |at: usize| -> Vec<Option<f64>> {
            runs[at].iter().map(|run| takes(run).then_some(run.steps_per_s)).collect()
        };
        let mut records = Vec::new();
        for (at, (name, processes, vms)) in places.iter().enumerate() {
            let taken: Vec<&Run> = runs[at].iter().filter(|run| takes(run)).collect();
            let all: Vec<f64> = taken.iter().map(|run| run.steps_per_s).collect();
            if all.is_empty() {
                continue;
            }
            let record = Record {
                benchmark: "sph".into(),
                subject: (*name).into(),
                placement: Some(sieve.name().into()),
                depth: Some(plan.particles),
                metric: "steps_per_s".into(),
                accel: taken[0].accel.clone(),
                vms: *vms,
                ranks: *processes,
                load,
                ..Record::default()
            };
            let record = record.with_lines(&taken.iter().filter_map(|run| run.lines).collect::<Vec<_>>());
            records.push(record.clone().with_values(&all));
            let waiting: Vec<f64> = taken.iter().map(|run| run.waiting).collect();
            let share = Record { metric: "barrier_share".into(), ..record.clone() };
            records.push(share.with_values(&waiting));
            for (subject, peer) in [
                ("native-2", "native-1"),
                ("one-vm-2", "one-vm-1"),
                ("two-vms", "one-vm-2"),
                ("two-vms", "one-vm-1"),
            ] {
                if subject == *name
                    && let Some(theirs) = places.iter().position(|place| place.0 == peer)
                {
                    let ratios = stats::pairs(&rates(at), &rates(theirs));
                    records.push(record.clone().with_values(&all).with_ratios(peer, &ratios));
                }
            }
        }
        if plan.vms {
            let row = promised(plan, &records, sieve);
            if let Some(record) = records.iter_mut().find(|record| is_promised(record)) {
                record.promise = Some(row.judged());
            }
            done.rows.push(row);
        }
        done.records.extend(records);
    }
    Ok(done)
}

/// A place that runs are made in: its name, how many processes, in how many VMs.
type Place = (&'static str, u32, u32);

/// Makes a run in one of the places, kept to these processors.
type Go<'a> = dyn FnMut(&[Place], usize, Option<(usize, usize)>) -> Result<Run> + 'a;

/// Makes rounds of one run in each place with `go`, until there are enough of them. Gives the runs of each place and, where one
/// failed after whole rounds, why there are no more.
fn rounds(
    places: &[Place],
    search: &mut Search,
    go: &mut Go<'_>,
    progress: &mut dyn FnMut(&str),
) -> Result<(Vec<Vec<Run>>, Option<String>)> {
    let scale = search.scale;
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); places.len()];
    let mut launches = 0;
    while search.go_on(|placement| least(&runs, &scale, placement), progress)? {
        let round = search.made();
        // Each round begins with another place, so that none always runs after the same one.
        let shift = (round - 1) as usize % places.len();
        let mut of_round: Vec<Option<Run>> = vec![None; places.len()];
        for at in (0..places.len()).map(|at| (at + shift) % places.len()) {
            let name = places[at].0;
            let before = search.line();
            let run = match go(places, at, search.pair.filter(|_| search.is_sorting())) {
                Ok(run) => run,
                // Places are compared within a round, so only whole ones count.
                Err(error) if runs[0].is_empty() => return Err(error),
                Err(error) => {
                    let why = error.after(launches)?;
                    progress(&why);
                    return Ok((runs, Some(why)));
                }
            };
            launches += 1;
            let run = Run { lines: before.zip(search.line()).map(|(before, after)| [before, after]), ..run };
            progress(&format!(
                "round {round}: {name}: {:.1} steps per second, {:.1} % of them in barriers",
                run.steps_per_s,
                run.waiting * 100.0
            ));
            let others = runs.iter().flatten().chain(of_round.iter().flatten());
            if let Some(other) = others.into_iter().find(|other| other.checksum != run.checksum) {
                let what = format!("{name} computed {}, and not {}", run.checksum, other.checksum);
                return Err(Error::Output { subject: "sph".into(), what });
            }
            of_round[at] = Some(run);
        }
        runs.iter_mut().zip(of_round).for_each(|(runs, run)| runs.extend(run));
    }
    Ok((runs, None))
}

/// How many rounds all places have of a placement.
fn least(runs: &[Vec<Run>], scale: &Scale, placement: Placement) -> u32 {
    let sieve = Sieve::Of(placement);
    let rounds = runs.iter().map(Vec::len).min().unwrap_or(0);
    let whole = (0..rounds).filter(|round| runs.iter().all(|runs| sieve.takes(scale, runs[*round].lines)));
    u32::try_from(whole.count()).unwrap_or(u32::MAX)
}

fn is_promised(record: &Record) -> bool {
    record.subject == "two-vms" && record.peer.as_deref() == Some("one-vm-2")
}

/// What is promised of two VMs.
pub(crate) const PROMISE: Promise = at_least(0.9, 1.0);

pub(crate) fn promise_of(particles: u32) -> String {
    format!("{} particles, 2 VMs : 2 processes of one VM", table::thousands(particles))
}

fn promised(plan: &Plan, records: &[Record], sieve: Sieve) -> Row {
    let promise = PROMISE;
    let found = records.iter().find(|record| is_promised(record));
    let value = |name: &str| {
        let of = |r: &&Record| r.subject == name && r.peer.is_none() && r.metric == "steps_per_s";
        records.iter().find(of).map_or(0.0, |record| record.value)
    };
    let accel = found.map_or_else(String::new, |record| record.accel.to_uppercase());
    let figure = found.filter(|record| record.ratio.is_some()).map(Figure::of);
    let what = promise_of(plan.particles);
    Row {
        placement: Some(sieve.name().into()),
        figure,
        said: format!("{:.1} : {:.1} steps/s, {accel}", value("two-vms"), value("one-vm-2")),
        // Nothing counts what passes through a segment: there is no way to prove, and none to doubt.
        verdict: figure.map_or(Verdict::NotMeasured, |figure| promise.judge(&figure, sieve)),
        ..Row::missing(&what, None, promise, "")
    }
}

/// The measurements as a table: a row for each place.
pub fn grid(records: &[Record]) -> Vec<Vec<String>> {
    let head =
        ["where", "processes", "VMs", "line", "steps per second", "least", "most", "in barriers", "compared"];
    let mut grid = vec![head.map(str::to_owned).to_vec()];
    for record in records.iter().filter(|r| r.peer.is_none() && r.metric == "steps_per_s") {
        let of_place = || {
            let same =
                |other: &&Record| (&other.subject, &other.placement) == (&record.subject, &record.placement);
            records.iter().filter(same)
        };
        let waiting =
            of_place().find(|other| other.metric == "barrier_share").map_or(0.0, |other| other.value);
        let ratios: Vec<String> = of_place()
            .filter_map(|other| Some(format!("{:.2}x {}", other.ratio?, other.peer.as_deref()?)))
            .collect();
        let vms = match record.vms {
            0 => "-".into(),
            vms => format!("{vms} ({})", record.accel),
        };
        let rate = |value: f64| table::amount(value, "").0;
        grid.push(vec![
            record.subject.clone(),
            record.ranks.to_string(),
            vms,
            table::line(record),
            rate(record.value),
            rate(record.min),
            rate(record.max),
            format!("{:.1} %", waiting * 100.0),
            ratios.join(", "),
        ]);
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::Choice;

    const TEXT: &str = "65536 particles, 2 processes: 40 steps, 12.5 steps per second\n\
                        number 0 on vm1: 1.5 % of the time in barriers\nnumber 1 on vm2: 3.0 % of the time in barriers\n\
                        checksum 0123456789abcdef\n";

    #[test]
    fn what_a_run_prints_is_read() {
        let run = read(TEXT, "tcg".into()).unwrap();
        assert_eq!((run.steps_per_s, run.waiting), (12.5, 0.03));
        assert_eq!(
            (run.hosts, run.checksum.as_str()),
            (vec!["vm1".to_owned(), "vm2".to_owned()], "0123456789abcdef")
        );
    }

    #[test]
    fn what_breaks_off_is_refused() {
        assert!(read("", "tcg".into()).is_err());
        assert!(read(&TEXT[..TEXT.len() - 30], "tcg".into()).is_err());
    }

    /// Rounds of two places, of which the launch with this number fails.
    fn failing(at_launch: usize) -> Result<(Vec<Vec<Run>>, Option<String>)> {
        let policy = Policy { choice: Choice::Any, rounds: 3, patience: Duration::ZERO };
        let mut launches = 0;
        let mut go = |_: &[Place], _: usize, _: Option<(usize, usize)>| {
            launches += 1;
            match launches == at_launch {
                true => Err(Error::Output { subject: "sph".into(), what: "it crashed".into() }),
                false => read(TEXT, "native".into()),
            }
        };
        let places = [("one", 1, 0), ("two", 2, 0)];
        rounds(&places, &mut Search::new(policy, 2, 0), &mut go, &mut |_| ())
    }

    #[test]
    fn whole_rounds_outlive_a_launch_that_fails() {
        let (runs, cut) = failing(6).unwrap();
        assert_eq!([runs[0].len(), runs[1].len()], [2, 2], "the third round is not whole");
        assert!(cut.is_some_and(|why| why.starts_with("launch 6 failed") && why.contains("it crashed")));
        let (runs, cut) = failing(7).unwrap();
        assert_eq!(([runs[0].len(), runs[1].len()], cut), ([3, 3], None));
        assert!(failing(2).is_err(), "nothing was measured");
    }
}
