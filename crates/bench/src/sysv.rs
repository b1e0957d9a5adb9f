//! `bench sysv`: System V IPC of the region beside the kernel's, by an ordinary program that knows of neither, and beside
//! sockets.
//!
//! The program is compiled once, and run as it is and with the library preloaded. A round natively is a launch of each; a round
//! in VMs is one launch with a process in each of two VMs, and one of the kernel's own beside it, natively. Which way a figure
//! went is proved by the objects that it used: those of a region are in the table that `isthmus ipcs` reads, the kernel's in
//! /proc/sysvipc. Sockets are proved by the kernels' counts of segments and datagrams.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::job::{Launch, accel_in, statistics};
use crate::objects::{Output, Pair, Place, Plan, Wanted, pair};
use crate::placement::Search;
use crate::promise::{Promise, at_least, at_most, within};
use crate::rank::{Sample, Start};
use crate::{program, subject, table};

/// The kernel's IPC natively, beside VMs: its records say that they are of none.
pub const NATIVE: &str = "kernel-native";
/// How many VMs there are.
pub const VMS: u32 = 2;

/// How long one launch may take.
const LIMIT: Duration = Duration::from_secs(600);
const SOURCES: [(&str, &str); 6] = [
    program::AWAIT,
    ("sysv.h", include_str!("../programs/sysv/sysv.h")),
    ("main.c", include_str!("../programs/sysv/main.c")),
    ("pair.c", include_str!("../programs/sysv/pair.c")),
    ("ipc.c", include_str!("../programs/sysv/ipc.c")),
    ("sockets.c", include_str!("../programs/sysv/sockets.c")),
];
const FLAGS: [&str; 6] = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-lm"];

/// Bytes of the buffer that turns are about, and of a larger one.
const TURN: u64 = 64;
const LONG_TURN: u64 = 4096;
const MESSAGE: u64 = 1024;
const SEGMENT: u64 = 65536;
const COPY: u64 = 1 << 20;
/// Work in a turn for which the other process sleeps, in microseconds.
const WORK_US: u64 = 40;

/// Of which subjects there are ratios.
pub(crate) const PAIRS: [Pair; 14] = [
    pair("sync", "turn_us", "isthmus", &["kernel"]),
    pair("sync", "turn_us", "isthmus", &[NATIVE]),
    pair("sync", "turn_us", "isthmus", &["tcp"]),
    pair("sync", "turn_us", "isthmus", &["udp"]),
    pair("sync", "turn_us", "isthmus", &["tcp-spin"]),
    pair("sync", "turn_us", "isthmus", &["udp-spin"]),
    pair("sync_work", "beyond_work_us", "isthmus", &["kernel"]),
    pair("sync_work", "beyond_work_us", "isthmus", &[NATIVE]),
    pair("semop", "pair_us", "isthmus", &["kernel"]),
    pair("semop_undo", "pair_us", "isthmus", &["kernel"]),
    pair("stream", "rate_Mps", "isthmus", &["kernel"]),
    pair("segment", "cycle_us", "isthmus", &["kernel"]),
    pair("copy", "bandwidth_MBps", "isthmus", &["malloc"]),
    pair("copy", "bandwidth_MBps", "isthmus", &["kernel"]),
];

/// What is promised.
pub(crate) fn wanted() -> Vec<Wanted> {
    let one = |what, (benchmark, metric), bytes, peer, vms, promise: Promise| Wanted {
        what,
        benchmark,
        metric,
        subject: "isthmus",
        peer,
        bytes,
        processes: 2,
        vms,
        promise,
        is_counted: true,
    };
    let turn = |what, peer, promise| one(what, ("sync", "turn_us"), Some(TURN), Some(peer), VMS, promise);
    let pair = |what, name, promise| one(what, (name, "pair_us"), None, Some("kernel"), 0, promise);
    let copy = |vms| {
        let what = "memcpy of 1 MB in a segment : in memory of one's own";
        one(what, ("copy", "bandwidth_MBps"), Some(COPY), Some("malloc"), vms, at_least(0.95, 1.0))
    };
    vec![
        pair("semop +1, -1 : the kernel's", "semop", at_most(1.0 / 3.0, 0.1)),
        pair("the same with SEM_UNDO : the kernel's", "semop_undo", at_most(0.5, 0.25)),
        one(
            "turn that sleeps, beyond its 40 us of work : the kernel's",
            ("sync_work", "beyond_work_us"),
            Some(TURN),
            Some("kernel"),
            0,
            at_most(1.0, 1.0 / 1.5),
        ),
        one(
            "messages of 1 KB in a stream : the kernel's",
            ("stream", "rate_Mps"),
            Some(MESSAGE),
            Some("kernel"),
            0,
            at_least(1.5, 4.0),
        ),
        one(
            "segment of 64 KB made, attached, detached, removed : the kernel's",
            ("segment", "cycle_us"),
            Some(SEGMENT),
            Some("kernel"),
            0,
            at_most(5.0, 2.0),
        ),
        copy(0),
        turn("turn : the kernel's, natively", NATIVE, at_most(1.0, 1.0 / 3.0)),
        turn("turn : TCP", "tcp", at_most(1.0 / 20.0, 1.0 / 56.0)),
        turn("turn : UDP", "udp", at_most(1.0 / 20.0, 1.0 / 56.0)),
        one(
            "segment of 64 KB made, attached, detached, removed in a VM",
            ("segment", "cycle_us"),
            Some(SEGMENT),
            None,
            VMS,
            within(3000.0, 1000.0),
        ),
        copy(VMS),
    ]
}

/// What a row of the table shows.
pub(crate) fn label(benchmark: &str, metric: &str, bytes: Option<u64>) -> String {
    let size = bytes.map(table::size).unwrap_or_default();
    let what = match benchmark {
        "sync" => format!("turn, {size}"),
        "sync_work" => format!("turn with {WORK_US} us of work"),
        "semop" => "semop +1, -1".into(),
        "semop_undo" => "semop +1, -1, SEM_UNDO".into(),
        "stream" => format!("msgsnd, msgrcv, {size}"),
        "segment" => format!("segment of {size} made, attached, removed"),
        _ => format!("{benchmark}, {size}"),
    };
    match metric {
        "deviation_us" => format!("{what}: deviation"),
        "sleeps_per_turn" => format!("{what}: sleeps per turn"),
        "beyond_work_us" => format!("{what}: beyond it"),
        _ => what,
    }
}

/// Why there are no sockets between VMs, once that is known.
static NO_NETWORK: OnceLock<String> = OnceLock::new();

/// One round in a place.
///
/// # Errors
/// If the program cannot be compiled or does not do its part.
pub(crate) fn run(
    plan: &Plan,
    place: Place,
    search: &Search,
    progress: &mut dyn FnMut(&str),
) -> Result<Output> {
    let program = program()?;
    let exe = std::env::current_exe().map_err(Error::io("find this program"))?;
    let round = Round { plan, search, program, exe };
    if place.vms == 0 {
        return round.natively();
    }
    let mut output = round.in_vms(progress)?;
    let kernel = round.kernel(&turns(plan), NATIVE)?;
    output.samples.extend(kernel.samples);
    Ok(output)
}

/// The program, compiled if it is not there yet.
///
/// # Errors
/// If there is no compiler, or it fails.
pub(crate) fn program() -> Result<PathBuf> {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    program::build(Path::new(&compiler), "", "sysv", &SOURCES, &FLAGS)
}

/// Its arguments where a process of it in each VM makes one block, and `exe` is asked whose objects these are.
pub(crate) fn words(exe: &OsString, budget_ms: u64, block: &str) -> Vec<OsString> {
    vec!["--look".into(), exe.into(), key().to_string().into(), budget_ms.to_string().into(), block.into()]
}

/// Turns, which is what VMs are compared with the kernel by.
fn turns(plan: &Plan) -> Vec<String> {
    let mut blocks = vec![format!("sync:{TURN}")];
    if !plan.is_quick {
        blocks.push(format!("sync:{LONG_TURN}"));
    }
    blocks.push(format!("work:{TURN}:{WORK_US}"));
    blocks
}

/// What one process does alone, and streams; `copy` says where it copies.
fn others(copy: &str) -> Vec<String> {
    let sized = [format!("stream:{MESSAGE}"), format!("segment:{SEGMENT}"), format!("{copy}:{COPY}")];
    ["semop", "semop-undo"].map(str::to_owned).into_iter().chain(sized).collect()
}

fn sockets(plan: &Plan) -> Vec<String> {
    let mut blocks = ["tcp", "udp", "tcp-spin", "udp-spin"].map(|name| format!("{name}:{TURN}")).to_vec();
    if !plan.is_quick {
        blocks.extend(["tcp", "udp"].map(|name| format!("{name}:{LONG_TURN}")));
    }
    blocks
}

struct Round<'a> {
    plan: &'a Plan,
    search: &'a Search,
    program: PathBuf,
    exe: PathBuf,
}

impl Round<'_> {
    /// The kernel's and ours, in turn the one and the other first.
    fn natively(&self) -> Result<Output> {
        let kernel =
            || self.kernel(&[turns(self.plan), sockets(self.plan), others("copy")].concat(), "kernel");
        let ours = || self.ours(&[turns(self.plan), others("copies")].concat());
        let (first, second) = match self.search.made() % 2 {
            0 => (ours()?, kernel()?),
            _ => (kernel()?, ours()?),
        };
        let samples = [first.samples, second.samples].concat();
        Ok(Output { samples, ..first })
    }

    fn kernel(&self, blocks: &[String], subject: &str) -> Result<Output> {
        // What the user's own environment preloads is not for these.
        let mut env = vec![("ISTHMUS_SYSV_KEYS".to_owned(), "none".to_owned())];
        env.extend(self.search.pair_text().map(|pair| (PIN.to_owned(), pair)));
        let launch = Launch { program: self.program.clone(), args: self.words(true, false, blocks), env };
        read(&launch.run(subject, LIMIT)?, subject, "native")
    }

    fn ours(&self, blocks: &[String]) -> Result<Output> {
        let mut args: Vec<OsString> = RUN.map(Into::into).into();
        args.extend(["--vms", "0", "-n", "1"].map(Into::into));
        if let Some(pair) = self.search.pair_text() {
            args.extend(["--env".into(), format!("{PIN}={pair}").into()]);
        }
        args.extend(["--".into(), self.program.clone().into()]);
        args.extend(self.words(true, true, blocks));
        let launch = Launch { program: self.exe.clone(), args, env: Vec::new() };
        read(&launch.run("isthmus", LIMIT)?, "isthmus", "native")
    }

    /// With a network between the VMs where there can be one.
    fn in_vms(&self, progress: &mut dyn FnMut(&str)) -> Result<Output> {
        if let Some(why) = NO_NETWORK.get() {
            let output = self.between(false)?;
            return Ok(Output { left_out: vec![format!("tcp, udp: {why}")], ..output });
        }
        match self.between(true) {
            Err(error @ Error::Job { .. }) if self.search.made() <= 1 => {
                let output = self.between(false)?;
                let why = error.chain();
                progress(&format!(
                    "tcp and udp are left out, since VMs without a network can be had alone: {why}"
                ));
                let left_out = vec![format!("tcp, udp: {}", NO_NETWORK.get_or_init(|| why))];
                Ok(Output { left_out, ..output })
            }
            output => output,
        }
    }

    fn between(&self, has_network: bool) -> Result<Output> {
        let folder = tempfile::tempdir().map_err(Error::io("make a temporary folder"))?;
        let stats = folder.path().join("stats.json");
        let mut args: Vec<OsString> = RUN.map(Into::into).into();
        args.extend(["--vms".into(), VMS.to_string().into(), "-n".into(), VMS.to_string().into()]);
        args.extend(["--stats".into(), stats.clone().into(), "--cpus".into(), "1".into()]);
        if VMS <= subject::processors() {
            args.push("--pin".into());
        }
        if has_network {
            args.extend(["--net".into(), "tap".into()]);
        }
        if let Some(accel) = &self.plan.accel {
            args.extend(["--accel".into(), accel.into()]);
        }
        args.extend(["--".into(), self.program.clone().into()]);
        let sockets = if has_network { sockets(self.plan) } else { Vec::new() };
        let blocks = [turns(self.plan), sockets, others("copies")].concat();
        args.extend(self.words(false, true, &blocks));
        let before = self.search.line();
        let launch = Launch { program: self.exe.clone(), args, env: Vec::new() };
        let text = launch.run("isthmus", LIMIT)?;
        let lines = before.zip(self.search.line()).map(|(before, after)| [before, after]);
        let mut output = read(&text, "isthmus", &accel_in(statistics(&stats).as_ref(), VMS))?;
        if self.search.is_sorting() {
            // The kernel's own beside it is native: what is emulated makes a guest's line longer, and one ruler must do for both.
            output.samples.iter_mut().for_each(|sample| sample.line_us = lines);
        }
        Ok(output)
    }

    /// The program's own arguments.
    fn words(&self, forks: bool, looks: bool, blocks: &[String]) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        if forks {
            words.push("--fork".into());
        }
        if looks {
            words.extend(["--look".into(), self.exe.clone().into()]);
        }
        words.extend([key().to_string().into(), self.plan.budget_ms.to_string().into()]);
        words.extend(blocks.iter().map(Into::into));
        words
    }
}

const PIN: &str = "ISTHMUS_BENCH_PIN";
const RUN: [&str; 4] = ["run", "--sysv", "--launcher", "none"];

/// A key that other programs of this machine hardly use, and no other launch.
fn key() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    0x4000_0000 | (u64::from(since.subsec_nanos()) ^ u64::from(std::process::id()) << 8) & 0x3fff_ffff
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Line {
    Start { hosts: Vec<String> },
    Objects(Objects),
    Look { ipcs: Table },
    Block(Block),
}

/// The objects that the program made, and which of them the kernel's own tables have.
#[derive(Default, Deserialize)]
struct Objects {
    shm: i64,
    sem: i64,
    msg: i64,
    made: i64,
    in_kernel: Vec<String>,
}

/// What `isthmus ipcs --json` says.
#[derive(Default, Deserialize)]
struct Table {
    #[serde(default)]
    shm: Vec<Entry>,
    #[serde(default)]
    sem: Vec<Entry>,
    #[serde(default)]
    msg: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    id: i64,
}

#[derive(Deserialize)]
struct Block {
    benchmark: String,
    subject: String,
    metric: String,
    needs: String,
    bytes: Option<f64>,
    value: f64,
    deviation: Option<f64>,
    sleeps_per_turn: Option<f64>,
    cpu_us_per_op: f64,
    packets: Option<f64>,
    seen: Option<f64>,
    made: Option<f64>,
    ours: Option<f64>,
    line_us: Option<[f64; 2]>,
}

/// The bit that ids of a region have.
const OURS: i64 = 1 << 30;

impl Objects {
    /// Which way the object called `name` went, if exactly one table has it.
    fn way(&self, table: &Table, name: &str) -> Option<&'static str> {
        let (id, entries) = match name {
            "shm" => (self.shm, &table.shm),
            "made" => (self.made, &table.shm),
            "sem" => (self.sem, &table.sem),
            "msg" => (self.msg, &table.msg),
            _ => return None,
        };
        let in_region = id & OURS != 0 && entries.iter().any(|entry| entry.id == id);
        match (in_region, self.in_kernel.iter().any(|other| other == name)) {
            (true, false) => Some("region"),
            (false, true) => Some("kernel"),
            _ => None,
        }
    }
}

impl Block {
    fn way(&self, objects: &Objects, table: &Table) -> Option<&'static str> {
        if self.subject != "sysv" {
            let is_seen = self.seen.zip(self.packets).is_some_and(|(seen, packets)| seen >= packets);
            let protocol = self.subject.split('-').next().filter(|_| is_seen);
            return ["tcp", "udp"].into_iter().find(|name| protocol == Some(*name));
        }
        let mut ways = self.needs.split_whitespace().map(|name| objects.way(table, name));
        let first = ways.next().flatten()?;
        let made = if first == "region" { self.made } else { self.made.map(|_| 0.0) };
        (ways.all(|way| way == Some(first)) && self.ours == made).then_some(first)
    }
}

/// Reads what the program printed; what it did by System V IPC is `subject`'s.
pub(crate) fn read(text: &str, subject: &str, accel: &str) -> Result<Output> {
    let bad = |what: String| Error::Output { subject: subject.into(), what };
    let (mut start, mut objects, mut table, mut blocks) = (None, None, Table::default(), Vec::new());
    for line in text.lines().filter(|line| line.starts_with("{\"isthmus_bench\":1,")) {
        match serde_json::from_str(line).map_err(|error| bad(format!("{error} in {line}")))? {
            Line::Start { hosts } => start = Some(hosts),
            Line::Objects(it) => objects = Some(it),
            Line::Look { ipcs } => table = ipcs,
            Line::Block(block) => blocks.push(block),
        }
    }
    let hosts = start.ok_or_else(|| bad("its first line is missing".into()))?;
    let objects = objects.ok_or_else(|| bad("it does not say which objects it made".into()))?;
    let mut samples = Vec::new();
    for block in &blocks {
        let of = |metric: &str, value: f64| Sample {
            benchmark: block.benchmark.clone(),
            subject: if block.subject == "sysv" { subject.into() } else { block.subject.clone() },
            metric: metric.into(),
            bytes: block.bytes.map(whole),
            value,
            cpu_us_per_op: Some(block.cpu_us_per_op),
            path: block.way(&objects, &table).map(Into::into),
            line_us: block.line_us,
        };
        samples.push(of(&block.metric, block.value));
        samples.extend(block.deviation.map(|deviation| of("deviation_us", deviation)));
        samples.extend(block.sleeps_per_turn.map(|sleeps| of("sleeps_per_turn", sleeps)));
    }
    match samples.is_empty() {
        true => Err(bad("it has no figures".into())),
        false => Ok(Output {
            start: Start { hosts, processors: subject::processors() },
            samples,
            accel: accel.into(),
            left_out: Vec::new(),
        }),
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // sizes of buffers
fn whole(bytes: f64) -> u64 {
    bytes as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = r#"{"isthmus_bench":1,"kind":"start","hosts":["vm0","vm1"]}"#;

    fn objects(in_kernel: &str) -> String {
        format!(
            "{{\"isthmus_bench\":1,\"kind\":\"objects\",\"shm\":1073741825,\"sem\":1073741826,\"msg\":3,\"made\":1073741827,\
             \"in_kernel\":[\"\"{in_kernel}]}}"
        )
    }

    fn look(sem: i64) -> String {
        format!(
            "{{\"isthmus_bench\":1,\"kind\":\"look\",\"ipcs\":{{\"shm\":[{{\"id\":1073741825,\"key\":7}},{{\"id\":1073741827}}],\
             \"sem\":[{{\"id\":{sem}}}],\"socket\":null}}}}"
        )
    }

    fn block(subject: &str, needs: &str, counts: &str) -> String {
        format!(
            "{{\"isthmus_bench\":1,\"kind\":\"block\",\"benchmark\":\"sync\",\"subject\":\"{subject}\",\"metric\":\"turn_us\",\
             \"needs\":\"{needs}\",\"bytes\":64,\"value\":2,\"deviation\":0.5,\"sleeps_per_turn\":1,\"cpu_us_per_op\":1,{counts}\
             \"line_us\":[0.2,0.3]}}"
        )
    }

    fn path_of(lines: &[String]) -> Option<String> {
        let text = [&[START.to_owned(), "noise".to_owned()], lines].concat().join("\n");
        read(&text, "isthmus", "tcg").unwrap().samples.remove(0).path
    }

    #[test]
    fn a_figure_is_proved_by_the_one_table_that_has_its_objects() {
        let of = |in_kernel: &str, sem: i64, needs: &str| {
            path_of(&[objects(in_kernel), look(sem), block("sysv", needs, "")])
        };
        assert_eq!(of("", 1_073_741_826, "shm sem").as_deref(), Some("region"));
        assert_eq!(of("", 1, "shm sem"), None, "the region does not have these semaphores");
        assert_eq!(of(",\"sem\"", 1, "sem").as_deref(), Some("kernel"));
        assert_eq!(of(",\"sem\"", 1, "shm sem"), None, "one of each");
        assert_eq!(of(",\"sem\"", 1_073_741_826, "sem"), None, "both say that it is theirs");
        assert_eq!(path_of(&[objects(""), block("sysv", "shm", "")]), None, "nobody looked");
    }

    #[test]
    fn segments_that_come_and_go_are_all_of_the_same_table() {
        let of = |counts: &str| path_of(&[objects(""), look(1), block("sysv", "made", counts)]);
        assert_eq!(of("\"made\":9,\"ours\":9,").as_deref(), Some("region"));
        assert_eq!(of("\"made\":9,\"ours\":8,"), None);
    }

    #[test]
    fn sockets_are_proved_by_what_the_kernels_count() {
        let of = |seen: u32| {
            let counts = format!("\"packets\":8,\"seen\":{seen},");
            path_of(&[objects(""), block("udp-spin", "", &counts)])
        };
        assert_eq!((of(8).as_deref(), of(7)), (Some("udp"), None));
        assert_eq!(path_of(&[objects(""), block("malloc", "", "")]), None);
    }

    #[test]
    fn a_block_is_a_figure_with_its_deviation_and_sleeps() {
        let text = [START.to_owned(), objects(""), block("tcp", "", "")].join("\n");
        let output = read(&text, "kernel", "native").unwrap();
        let of: Vec<_> = output.samples.iter().map(|s| (s.metric.as_str(), s.value, s.bytes)).collect();
        assert_eq!(
            of,
            [("turn_us", 2.0, Some(64)), ("deviation_us", 0.5, Some(64)), ("sleeps_per_turn", 1.0, Some(64))]
        );
        assert_eq!((output.start.hosts.len(), output.samples[0].line_us), (2, Some([0.2, 0.3])));
        assert!(read(START, "kernel", "native").is_err());
        assert!(read(&[START.to_owned(), objects("")].join("\n"), "kernel", "native").is_err());
    }
}
