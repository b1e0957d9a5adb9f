//! `bench doorbell`: what it takes to wake a process that sleeps, by each way that there is: a futex and a pipe of the local
//! service natively, the agents' ports and the device's interrupts between two VMs. And what else differs between VMs without the
//! guest driver, *relay*, and with it, *doorbell*.
//!
//! Two processes take turns, and each sleeps until it is rung; before each ring there is a pause, so that the other is asleep. Half of
//! a turn, without the pauses, is a wake-up. What it costs in processor time is seen from outside, since agents, services and QEMU work
//! for it, too: two launches that differ in the number of turns alone.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_region::doorbell::{Doorbell, Sleeper};
use isthmus_region::error::with_causes;
use isthmus_region::format::GlobalSlot;
use isthmus_region::life::State;
use isthmus_region::mapping::PeerSection;
use isthmus_region::member::Member;
use isthmus_region::sync::ReadWord;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::job::{Launch, accel_in, statistics};
use crate::objects::{Output, Pair, Place, Plan, Wanted, pair};
use crate::placement::Search;
use crate::promise::{Promise, at_least, at_most};
use crate::rank::{Sample, Start};
use crate::{stats, subject, table};

mod others;

/// How many VMs there are.
pub const VMS: u32 = 2;
/// First argument that makes our program one of the processes.
pub const RANK_COMMAND: &str = "doorbell-rank";

const LIMIT: Duration = Duration::from_secs(600);
/// How often a launch is made, at most.
const LAUNCHES: u32 = 3;
/// In the second of two launches there are so many times as many turns.
const LONGER: u32 = 4;
/// Before a ring.
const PAUSE: Duration = Duration::from_micros(500);
/// A ring that is lost is seen as a turn of this length.
const LONGEST: Duration = Duration::from_secs(2);
/// How long the first process stays for the other one to see that it is done.
pub(crate) const PARTING: Duration = Duration::from_millis(200);
/// A shorter difference of processor time says nothing.
const LEAST_TIME: Duration = Duration::from_millis(300);
/// How long the processes look for each other.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// What an endpoint's block of these processes begins with, and the number of the process behind it.
pub(crate) const MARK: u64 = 0x6265_6c6c_0000_0000;

/// Of which subjects there are ratios.
pub(crate) const PAIRS: [Pair; 13] = [
    pair("doorbell", "latency_us", "service", &["futex"]),
    pair("doorbell", "latency_us", "doorbell", &["relay"]),
    pair("doorbell", "p99_us", "doorbell", &["relay"]),
    pair("doorbell", "cpu_us", "doorbell", &["relay"]),
    pair("doorbell", "beyond_work_us", "doorbell", &["relay"]),
    pair("barrier_sleep", "beyond_work_us", "doorbell", &["relay"]),
    pair("sync_work", "beyond_work_us", "doorbell", &["relay"]),
    pair("sync_work", "beyond_work_us", "doorbell", &[WAKE_UP]),
    pair("latency", "latency_us", "doorbell", &["relay"]),
    pair("bandwidth", "bandwidth_MBps", "doorbell", &["relay"]),
    pair("mapped", "touch_us", "doorbell", &["relay"]),
    pair("mapped", "again_us", "doorbell", &["relay"]),
    pair("mapped", "attach_us", "doorbell", &["relay"]),
];

/// The wake-up by the device that a turn of semaphores has, as it was timed in the same round: after the same work, since a
/// processor that was idle for longer takes longer to come back.
const WAKE_UP: &str = "wake-up";

/// What is promised.
pub(crate) fn wanted() -> Vec<Wanted> {
    let one = |what, metric, promise: Promise| Wanted {
        what,
        benchmark: "doorbell",
        metric,
        subject: "doorbell",
        peer: Some("relay"),
        bytes: None,
        processes: VMS,
        vms: VMS,
        promise,
        // Each process of the turns checks that it slept at the kind of bell that its subject names. For the others the VMs do: with
        // `--driver require` none goes on without the driver, and with `off` none has it.
        is_counted: false,
    };
    let other = |what, (benchmark, metric), bytes, promise| Wanted {
        benchmark,
        bytes,
        is_counted: matches!(benchmark, "latency" | "bandwidth" | "sync_work"),
        ..one(what, metric, promise)
    };
    let time = |what, bytes| other(what, ("latency", "latency_us"), Some(bytes), at_most(1.0 / 0.9, 1.0));
    let turn = ("sync_work", "beyond_work_us");
    vec![
        one("wake-up by the device : by the agents", "latency_us", at_most(0.5, 1.0 / 3.0)),
        one("processor time of a wake-up by the device : by the agents", "cpu_us", at_most(0.5, 0.2)),
        other(
            "blocking barrier, all but one asleep, with the driver : without",
            ("barrier_sleep", "beyond_work_us"),
            None,
            at_most(1.0 / 1.5, 1.0 / 2.5),
        ),
        Wanted {
            peer: Some(WAKE_UP),
            ..other("turn by semaphores that sleeps : a wake-up", turn, Some(others::TURN), at_most(1.2, 1.0))
        },
        time("8 B with the driver : without", 8),
        time("1 KB with the driver : without", 1024),
        other(
            "1 MB, 8 in flight, with the driver : without",
            ("bandwidth", "bandwidth_MBps"),
            Some(1 << 20),
            at_least(0.9, 1.0),
        ),
        other(
            "64 MiB mapped and each page read, with the driver : without",
            ("mapped", "touch_us"),
            None,
            at_most(0.2, 0.05),
        ),
        other(
            "attach of a process, with the driver : without",
            ("mapped", "attach_us"),
            None,
            at_most(1.2, 1.0),
        ),
    ]
}

/// What a row of the table shows.
pub(crate) fn label(benchmark: &str, metric: &str, bytes: Option<u64>) -> String {
    let size = bytes.map(table::size).unwrap_or_default();
    match (benchmark, metric) {
        ("doorbell", "latency_us") => "wake-up, median".into(),
        ("doorbell", "p99_us") => "wake-up, 99 of 100".into(),
        ("doorbell", "beyond_work_us") => "wake-up after 2 ms of work".into(),
        ("barrier_sleep", "beyond_work_us") => "blocking barrier, one asleep: beyond the work".into(),
        ("barrier_sleep", _) => "blocking barrier: sleeps per round".into(),
        ("sync_work", "beyond_work_us") => "turn by semaphores, asleep: beyond the work".into(),
        ("sync_work", _) => format!("turn by semaphores: {}", metric.replace('_', " ")),
        ("latency", _) => format!("message of {size}"),
        ("bandwidth", _) => format!("messages of {size}, 8 in flight"),
        ("mapped", "touch_us") => "64 MiB mapped, each page read".into(),
        ("mapped", "again_us") => "the same pages read again".into(),
        ("mapped", _) => "attach of a process".into(),
        _ => "processor time of one".into(),
    }
}

/// By what a process is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Futex,
    Service,
    Relay,
    Doorbell,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Futex => "futex",
            Self::Service => "service",
            Self::Relay => "relay",
            Self::Doorbell => "doorbell",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Self::Futex, Self::Service, Self::Relay, Self::Doorbell].into_iter().find(|way| way.name() == name)
    }

    /// The kind of bell at which it sleeps.
    fn kind(self) -> Doorbell {
        match self {
            Self::Futex => Doorbell::Futex,
            Self::Service | Self::Relay => Doorbell::Service,
            Self::Doorbell => Doorbell::Interrupt,
        }
    }
}

/// One round in a place: each way there, in turn the one and the other first.
///
/// # Errors
/// If the processes do not do their part.
pub(crate) fn run(plan: &Plan, place: Place, search: &Search) -> Result<Output> {
    let mut ways = match place.vms {
        0 => [Way::Futex, Way::Service],
        _ => [Way::Relay, Way::Doorbell],
    };
    if search.made() % 2 == 1 {
        ways.reverse();
    }
    let mut output: Option<Output> = None;
    for way in ways {
        let mut one = measure(plan, place, search, way)?;
        if place.vms > 0 {
            let wake_up = after_work(plan, place, search, way)?;
            let beside = (way == Way::Doorbell).then_some(&wake_up);
            let (samples, left_out) = others::measure(plan, place, search, way, beside)?;
            one.samples.push(wake_up);
            one.samples.extend(samples);
            one.left_out.extend(left_out);
        }
        match &mut output {
            None => output = Some(one),
            Some(all) => {
                all.samples.extend(one.samples);
                all.left_out.extend(one.left_out);
            }
        }
    }
    output.ok_or_else(|| bad("there is no way"))
}

fn bad(what: impl Into<String>) -> Error {
    Error::Output { subject: "isthmus".into(), what: what.into() }
}

/// A wake-up between VMs by processes that work before they ring.
fn after_work(plan: &Plan, place: Place, search: &Search, way: Way) -> Result<Sample> {
    let turns = if plan.is_quick { 100 } else { 300 };
    let before = search.line();
    let (told, ..) = told(plan, place, search, way, turns, others::WORK_US)?;
    Ok(Sample {
        benchmark: "doorbell".into(),
        subject: way.name().into(),
        metric: "beyond_work_us".into(),
        bytes: None,
        value: told.latency_us,
        cpu_us_per_op: None,
        path: told.path,
        line_us: before.zip(search.line()).map(|(before, after)| [before, after]),
    })
}

fn measure(plan: &Plan, place: Place, search: &Search, way: Way) -> Result<Output> {
    let turns = if plan.is_quick { 200 } else { 1000 };
    let before = search.line();
    let (_, few_cpu, _) = launch(plan, place, search, way, turns, 0)?;
    let (told, many_cpu, accel) = told(plan, place, search, way, turns * LONGER, 0)?;
    let lines = before.zip(search.line()).map(|(before, after)| [before, after]);
    let more = 2 * turns * (LONGER - 1);
    let difference = many_cpu.saturating_sub(few_cpu);
    let cpu_us = difference.as_secs_f64() * 1e6 / f64::from(more);
    let sample = |metric: &str, value: f64| Sample {
        benchmark: "doorbell".into(),
        subject: way.name().into(),
        metric: metric.into(),
        bytes: None,
        value,
        cpu_us_per_op: Some(cpu_us),
        path: told.path.clone(),
        line_us: lines,
    };
    let mut samples = vec![sample("latency_us", told.latency_us), sample("p99_us", told.p99_us)];
    // Two launches differ by what booting takes, too, and the kernel counts in hundredths of a second: less says nothing, and keeps its
    // round's place.
    samples.push(sample("cpu_us", if difference >= LEAST_TIME { cpu_us } else { f64::NAN }));
    let start = Start { hosts: told.hosts, processors: subject::processors() };
    Ok(Output { start, samples, accel, left_out: Vec::new() })
}

/// Runs both processes, and gives their figures, the processor time of all that the launch took, and the VMs' accelerator. A launch of
/// processes that were awake too often, as where something else had their processor, is made again.
fn told(
    plan: &Plan,
    place: Place,
    search: &Search,
    way: Way,
    turns: u32,
    work_us: u64,
) -> Result<(Told, Duration, String)> {
    let mut left = LAUNCHES;
    loop {
        let (text, cpu, accel) = launch(plan, place, search, way, turns, work_us)?;
        left -= 1;
        match read(&text) {
            Err(_) if left > 0 => {}
            told => return Ok((told?, cpu, accel)),
        }
    }
}

/// Runs both processes, and gives what they print, the processor time of all that the launch took, and the VMs' accelerator.
fn launch(
    plan: &Plan,
    place: Place,
    search: &Search,
    way: Way,
    turns: u32,
    work_us: u64,
) -> Result<(String, Duration, String)> {
    let exe = std::env::current_exe().map_err(Error::io("find this program"))?;
    let words = [RANK_COMMAND, &turns.to_string(), way.name(), &work_us.to_string()].map(Into::into);
    let words = [vec![exe.into()], words.into()].concat();
    run_in(plan, place, search, way, &[], &words)
}

/// The same for any program: `run` with these options more, and the program with its arguments.
fn run_in(
    plan: &Plan,
    place: Place,
    search: &Search,
    way: Way,
    options: &[&str],
    program: &[OsString],
) -> Result<(String, Duration, String)> {
    let folder = tempfile::tempdir().map_err(Error::io("make a temporary folder"))?;
    let stats = folder.path().join("stats.json");
    let exe = std::env::current_exe().map_err(Error::io("find this program"))?;
    let mut args: Vec<OsString> = ["run", "--launcher", "none", "-n", "2"].map(Into::into).into();
    args.extend(options.iter().map(Into::into));
    args.extend(["--vms".into(), place.vms.to_string().into(), "--stats".into(), stats.clone().into()]);
    if place.vms > 0 {
        let driver = if way == Way::Doorbell { "require" } else { "off" };
        args.extend(["--driver", driver, "--cpus", "1"].map(Into::into));
        if place.vms <= subject::processors() {
            args.push("--pin".into());
        }
        if let Some(accel) = &plan.accel {
            args.extend(["--accel".into(), accel.into()]);
        }
    } else if let Some(pair) = search.pair_text() {
        args.extend(["--env".into(), format!("{PIN}={pair}").into()]);
    }
    args.push("--".into());
    args.extend(program.iter().cloned());
    let before = children();
    let text = Launch { program: exe, args, env: Vec::new() }.run(way.name(), LIMIT)?;
    let took = children().saturating_sub(before);
    Ok((text, took, accel_in(statistics(&stats).as_ref(), place.vms)))
}

const PIN: &str = "ISTHMUS_BENCH_PIN";

/// Processor time of the processes that this one has waited for, and of those that these have.
fn children() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name, which may have blanks: proc(5), fields 16 and 17.
    let fields: Vec<&str> = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let rate = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_secs(ticks(13) + ticks(14)).div_f64(rate as f64)
}

/// What a process prints.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    isthmus_bench: u32,
    kind: String,
    host: String,
    rank: u64,
    /// Half of each turn, beyond the work in it: of the first process alone.
    latency_us: Option<f64>,
    p99_us: Option<f64>,
    turns: u64,
    sleeps: u64,
    /// Of the device's interrupts during the turns.
    interrupts: u64,
}

struct Told {
    hosts: Vec<String>,
    latency_us: f64,
    p99_us: f64,
    path: Option<String>,
}

fn read(text: &str) -> Result<Told> {
    let lines = text.lines().filter(|line| line.starts_with("{\"isthmus_bench\":1,"));
    let lines: Vec<Line> = lines
        .map(|line| serde_json::from_str(line).map_err(|e| bad(format!("{e} in {line}"))))
        .collect::<Result<_>>()?;
    if lines.len() != 2 {
        return Err(bad("it has not the lines of two processes"));
    }
    let first = lines.iter().find(|line| line.rank == 0).ok_or_else(|| bad("no first process"))?;
    let (Some(latency_us), Some(p99_us)) = (first.latency_us, first.p99_us) else {
        return Err(bad("the first process has no figures"));
    };
    // A process that finds its turn before it sleeps is not woken.
    for line in &lines {
        if line.sleeps * 10 < line.turns * 9 {
            return Err(bad(format!(
                "process {} slept in {} of {} turns",
                line.rank, line.sleeps, line.turns
            )));
        }
    }
    let is_rung = |line: &Line| line.interrupts * 10 >= line.turns * 9;
    let path = match first.kind.as_str() {
        "doorbell" if !lines.iter().all(is_rung) => {
            return Err(bad("the device did not interrupt for each wake-up"));
        }
        "doorbell" => Some("interrupts".to_owned()),
        _ => None,
    };
    Ok(Told { hosts: lines.iter().map(|line| line.host.clone()).collect(), latency_us, p99_us, path })
}

/// One of the processes: `TURNS WAY WORK`, with its number in `ISTHMUS_RANK`. Both work for so many microseconds before they ring; with
/// none the first one pauses before each turn, so that the other is asleep.
pub fn rank_command(args: &[OsString]) -> i32 {
    let words: Vec<&str> = args.iter().filter_map(|arg| arg.to_str()).collect();
    if let Some(status) = others::rank_command(&words) {
        return status;
    }
    let rank = std::env::var("ISTHMUS_RANK").ok().and_then(|text| text.parse::<u64>().ok());
    let [turns, way, work] = words[..] else { return 2 };
    let (Ok(turns), Some(way), Ok(work)) = (turns.parse::<u64>(), Way::named(way), work.parse::<u64>())
    else {
        return 2;
    };
    let Some(rank @ 0..2) = rank else { return 2 };
    match rank_turns(turns, way, Duration::from_micros(work), rank) {
        Ok(()) => 0,
        Err(e) => {
            isthmus_region::tell!("isthmus: doorbell: {e}");
            125
        }
    }
}

/// The other process: its endpoint, and the word in which it counts its turns.
pub(crate) struct Other {
    slot: GlobalSlot,
    /// The section of its member.
    pub(crate) section: PeerSection,
    /// Its endpoint's block there.
    pub(crate) block: u64,
    /// Its area.
    pub(crate) area: u32,
}

impl Other {
    fn word(&self, at: u64) -> std::result::Result<&ReadWord, String> {
        self.section.word("block", self.block + at).map_err(|e| e.to_string())
    }
}

pub(crate) fn find(member: &Member, rank: u64) -> std::result::Result<Other, String> {
    let until = Instant::now() + PATIENCE;
    let endpoints = member.region().shape().endpoints;
    while Instant::now() < until {
        for peer in member.region().peers().iter().filter(|peer| peer.life.state == State::Active) {
            let Ok((_, directory)) = member.directory(peer.index) else { continue };
            for (slot, info) in directory.endpoints() {
                let mark = directory.section().word("block", info.block).map(ReadWord::get);
                if mark.is_ok_and(|mark| mark == MARK | rank) {
                    let slot = GlobalSlot(peer.index * endpoints + slot);
                    let area = u32::try_from(info.area).unwrap_or(u32::MAX);
                    return Ok(Other { slot, section: directory.section().clone(), block: info.block, area });
                }
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(format!("process {rank} did not come"))
}

fn rank_turns(turns: u64, way: Way, work: Duration, rank: u64) -> std::result::Result<(), String> {
    let text = |e: isthmus_region::Error| with_causes(&e);
    let member = isthmus_attach::connect().map_err(|e| with_causes(&e))?;
    pin(rank);
    let block = member.take(64).map_err(text)?;
    let own = |at| member.section().word("block", block + at).map_err(text);
    own(8)?.set(0);
    own(0)?.set(MARK | rank);
    let (slot, _) = member.service().open_endpoint(block).map_err(text)?;
    let sleeper = Sleeper::new(&Arc::clone(&member), slot, way == Way::Service).map_err(text)?;
    let sleeper = sleeper.with_longest(LONGEST);
    if sleeper.doorbell() != way.kind() {
        return Err(format!("a sleeper has {:?} here, not {:?}", sleeper.doorbell(), way.kind()));
    }
    let other = find(&member, 1 - rank)?;
    let bell = sleeper.doorbell().bell();
    let (theirs, theirs_awake) = (other.word(8)?, other.word(16)?);
    let mut sleeps = 0;
    let mut wait = |turn: u64| -> std::result::Result<(), String> {
        let until = Instant::now() + PATIENCE;
        let mut has_slept = false;
        loop {
            let seen = sleeper.seen();
            if theirs.get() >= turn {
                sleeps += u64::from(has_slept);
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(format!("turn {turn} did not come"));
            }
            has_slept = true;
            sleeper.sleep(seen, LONGEST);
        }
    };
    let before = interrupts();
    let mut halves = Vec::new();
    for turn in 1..=turns {
        if rank != 0 {
            wait(turn)?;
        }
        let mut begun = Instant::now();
        match work.is_zero() {
            true => std::thread::sleep(PAUSE),
            false => {
                while begun.elapsed() < work {
                    std::hint::spin_loop();
                }
            }
        }
        if rank == 0 && work.is_zero() {
            // Its own pause is before the turn, the other's within.
            begun = Instant::now();
        }
        own(16)?.set(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(0));
        own(8)?.set(turn);
        member.ring(other.slot, bell);
        if rank == 0 {
            wait(turn)?;
            let not_awaited = own(16)?.get() + theirs_awake.get();
            halves.push((begun.elapsed().as_secs_f64() - not_awaited as f64 / 1e9) / 2.0 * 1e6);
        }
    }
    let interrupts = interrupts().saturating_sub(before);
    // The memory of a process that ends is zeroed, so neither goes before the other has seen its last turn.
    if rank == 0 {
        own(8)?.set(turns + 1);
        member.ring(other.slot, bell);
        std::thread::sleep(PARTING);
    } else {
        wait(turns + 1)?;
    }
    halves.sort_by(f64::total_cmp);
    let p99 = halves.get(halves.len() * 99 / 100).copied();
    let line = Line {
        isthmus_bench: 1,
        kind: way.name().into(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        rank,
        latency_us: stats::median(&halves),
        p99_us: p99,
        turns,
        sleeps,
        interrupts,
    };
    isthmus_region::say!("{}", serde_json::to_string(&line).map_err(|e| e.to_string())?);
    Ok(())
}

/// On the processor that the search for a placement looked at.
fn pin(rank: u64) {
    let Ok(pair) = std::env::var(PIN) else { return };
    let cpus: Vec<usize> = pair.split(',').filter_map(|text| text.parse().ok()).collect();
    if let Some(cpu) = usize::try_from(rank).ok().and_then(|rank| cpus.get(rank)) {
        let mut set = rustix::thread::CpuSet::new();
        set.set(*cpu);
        // It only makes figures scatter less.
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

/// Interrupts of devices that the guest driver has, in this system so far.
fn interrupts() -> u64 {
    let text = std::fs::read_to_string("/proc/interrupts").unwrap_or_default();
    let ours = text.lines().filter(|line| line.contains(isthmus_region::driver::NAME));
    let counts = ours.flat_map(|line| {
        let words = line.split_whitespace().skip(1);
        words.map_while(|word| word.parse::<u64>().ok())
    });
    counts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(rank: u64, kind: &str, sleeps: u64, interrupts: u64) -> String {
        let figure = if rank == 0 { "7.5" } else { "null" };
        format!(
            "{{\"isthmus_bench\":1,\"kind\":\"{kind}\",\"host\":\"vm{rank}\",\"rank\":{rank},\"latency_us\":{figure},\
             \"p99_us\":{figure},\"turns\":100,\"sleeps\":{sleeps},\"interrupts\":{interrupts}}}\n"
        )
    }

    #[test]
    fn a_figure_is_of_processes_that_slept_and_were_interrupted() {
        let both = |kind, sleeps, interrupts| {
            read(&[line(1, kind, sleeps, interrupts), "x\n".into(), line(0, kind, 99, 99)].concat())
        };
        let told = both("doorbell", 95, 95).unwrap();
        assert_eq!((told.latency_us, told.path.as_deref(), told.hosts.len()), (7.5, Some("interrupts"), 2));
        assert!(both("doorbell", 95, 80).is_err(), "something else woke it");
        assert!(both("relay", 80, 0).is_err(), "it was awake");
        assert_eq!(both("relay", 95, 0).unwrap().path, None);
        assert!(read(&line(0, "relay", 99, 0)).is_err());
    }

    #[test]
    fn time_of_children_grows_with_what_they_do() {
        let before = children();
        let mut spun = std::process::Command::new("sh");
        spun.args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]);
        assert!(spun.status().unwrap().success());
        assert!(children() > before);
    }
}
