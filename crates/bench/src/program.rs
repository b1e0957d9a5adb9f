//! The MPI program in `programs/`: compiled with the MPI's own wrapper, and its output read.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use isthmus_run::mpi::Mpi;
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::path::Moved;

/// What all of the programs have.
pub const AWAIT: (&str, &str) = ("await.h", include_str!("../programs/await.h"));

const SOURCES: [(&str, &str); 14] = [
    AWAIT,
    ("bench.h", include_str!("../programs/bench.h")),
    ("main.c", include_str!("../programs/main.c")),
    ("blocks.c", include_str!("../programs/blocks.c")),
    ("touch.c", include_str!("../programs/touch.c")),
    ("waiting.c", include_str!("../programs/waiting.c")),
    ("collective.c", include_str!("../programs/collective.c")),
    ("pool.c", include_str!("../programs/pool.c")),
    ("window.c", include_str!("../programs/window.c")),
    ("kernels.c", include_str!("../programs/kernels.c")),
    ("neighbours.c", include_str!("../programs/neighbours.c")),
    ("counters.c", include_str!("../programs/counters.c")),
    ("line.c", include_str!("../programs/line.c")),
    ("provider.c", include_str!("../programs/provider.c")),
];

/// `-rdynamic`, so that the MPI library finds the program's counting stand-ins (`counters.c`).
const FLAGS: [&str; 7] = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-rdynamic", "-lm"];

/// Compiles the program for `mpi`, or finds it compiled in the user's cache; returns its path.
///
/// # Errors
/// [`Error::Cache`], [`Error::Compile`], [`Error::Interrupted`], [`Error::Io`].
pub fn compile(mpi: &Mpi) -> Result<PathBuf> {
    let name = format!("mpi-bench-{}", mpi.flavour.name());
    build(&mpi.launcher.with_file_name("mpicc"), &mpi.version, &name, &SOURCES, &FLAGS)
}

/// Compiles `sources` with `compiler`, of which `version` is all that is known, to a program whose name begins with `name`; or
/// finds it compiled in the user's cache.
///
/// # Errors
/// [`Error::Cache`], [`Error::Compile`], [`Error::Interrupted`], [`Error::Io`].
pub fn build(
    compiler: &Path,
    version: &str,
    name: &str,
    sources: &[(&str, &str)],
    flags: &[&str],
) -> Result<PathBuf> {
    let mut key = DefaultHasher::new();
    (sources, flags, compiler, version).hash(&mut key);
    let dir = isthmus_vm::cache::dir().map_err(Error::Cache)?.join("bench");
    let name = format!("{name}-{:016x}", key.finish());
    let program = dir.join(&name);
    if program.is_file() {
        return Ok(program);
    }
    let build = dir.join(format!("{name}.build-{}", std::process::id()));
    let compiled = compile_in(&build, compiler, &name, &program, sources, flags);
    // Also where it failed: nothing there is of use.
    let removed = fs::remove_dir_all(&build);
    compiled?;
    removed.map_err(Error::io(format!("remove {}", build.display())))?;
    Ok(program)
}

fn compile_in(
    build: &Path,
    compiler: &Path,
    name: &str,
    program: &Path,
    sources: &[(&str, &str)],
    flags: &[&str],
) -> Result<()> {
    let cannot = |path: &Path| {
        let path = path.to_owned();
        move |e| Error::io(format!("write {}", path.display()))(isthmus_vm::cache::told(e, &path))
    };
    fs::create_dir_all(build).map_err(cannot(build))?;
    for (file, text) in sources {
        fs::write(build.join(file), text).map_err(cannot(&build.join(file)))?;
    }
    let mut command = Command::new(compiler);
    command
        .current_dir(build)
        .args(["-o", name])
        .args(sources.iter().map(|(file, _)| file).filter(|file| file.ends_with(".c")))
        // Libraries among them come after what needs them.
        .args(flags);
    crate::job::compiled(&mut command)?;
    // Renamed into place, so that another benchmark at the same time never runs half a program.
    fs::rename(build.join(name), program).map_err(cannot(program))
}

/// The benchmark of copies without messages.
pub const BARE: &str = "bare_copy";
/// The benchmark of half the time of a ping-pong.
pub const LATENCY: &str = "latency";

/// A small program that communicates as one of the NAS Parallel Benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// A sort of integers.
    Is,
    /// A Fourier transform in three dimensions.
    Ft,
    /// A multigrid solver.
    Mg,
    /// Sweeps of a solver of coupled fields, whose planes the ranks go through one after the other.
    Lu,
}

impl Kernel {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Is, Self::Ft, Self::Mg, Self::Lu];

    /// The benchmark.
    pub fn name(self) -> &'static str {
        match self {
            Self::Is => "is",
            Self::Ft => "ft",
            Self::Mg => "mg",
            Self::Lu => "lu",
        }
    }

    /// What one of two ranks has: 2^20 keys, and half a grid of an edge of 64, 96 and 32.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Is => 4 << 20,
            Self::Ft => 64 * 64 * 64 * 16 / 2,
            Self::Mg => 96 * 96 * 96 * 8 / 2,
            Self::Lu => 32 * 32 * 32 * 40 / 2,
        }
    }
}

/// One block of the program's plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// Half the time of a ping-pong.
    Latency(u64),
    /// Bandwidth of a ping-pong, each message written before it is sent and read after it was received.
    PingPong(u64),
    /// Bandwidth with that many messages in flight, each written and read likewise.
    Window(u64, u32),
    /// Bandwidth of a ping-pong of buffers that are neither written nor read meanwhile.
    PingPongUntouched(u64),
    /// Bandwidth with that many such messages in flight.
    WindowUntouched(u64, u32),
    /// Messages a second, with that many in flight.
    Rate(u64, u32),
    /// A ping-pong of 8 bytes while that many receives are posted before its own, and stay.
    Posted(u32),
    /// A ping-pong of 8 bytes while that many messages wait that are never received.
    Unexpected(u32),
    /// Bandwidth one way of messages one after the other, from that many buffers in turn, each written and read.
    Pool(u64, u32),
    /// The same, of two that are under way in both directions at the same time: the sum of both.
    BothWays(u64, u32),
    /// The same one way, each message from memory that nothing was sent from before.
    Once(u64),
    /// The time that the MPI's calls for one of those messages take, both ranks together, while these have work of their own.
    Overhead(u64, u32),
    /// The same without an MPI: what one rank has written is copied by the other from memory that both have.
    Bare(u64, u32),
    /// Time of an MPI_Put and its flush, with a target that waits.
    Put(u64),
    /// The same of an MPI_Get.
    Get(u64),
    /// Loops of a kernel.
    Kernel(Kernel),
    /// Barriers, of any number of ranks.
    Barrier,
    /// Sums over all ranks, of any number of them.
    Allreduce(u64),
}

impl Block {
    /// As the program takes it.
    pub fn argument(self) -> String {
        match self {
            Self::Latency(bytes) => format!("latency:{bytes}"),
            Self::PingPong(bytes) => format!("pingpong:{bytes}"),
            Self::Window(bytes, depth) => format!("window:{bytes}:{depth}"),
            Self::PingPongUntouched(bytes) => format!("pingpong:{bytes}:untouched"),
            Self::WindowUntouched(bytes, depth) => format!("window:{bytes}:{depth}:untouched"),
            Self::Rate(bytes, depth) => format!("rate:{bytes}:{depth}"),
            Self::Posted(count) => format!("posted:8:{count}"),
            Self::Unexpected(count) => format!("unexpected:8:{count}"),
            Self::Pool(bytes, buffers) => format!("pool:{bytes}:{buffers}"),
            Self::BothWays(bytes, buffers) => format!("both:{bytes}:{buffers}"),
            Self::Once(bytes) => format!("once:{bytes}"),
            Self::Overhead(bytes, buffers) => format!("overhead:{bytes}:{buffers}"),
            Self::Bare(bytes, buffers) => format!("bare:{bytes}:{buffers}"),
            Self::Put(bytes) => format!("put:{bytes}"),
            Self::Get(bytes) => format!("get:{bytes}"),
            Self::Kernel(kernel) => format!("{}:{}", kernel.name(), kernel.bytes()),
            Self::Barrier => "barrier".into(),
            Self::Allreduce(bytes) => format!("allreduce:{bytes}"),
        }
    }

    /// The block of the same processes that this one is compared with, and its benchmark: one without messages, or their latency.
    pub fn beside(self) -> Option<(Self, &'static str)> {
        match self {
            Self::Pool(bytes, buffers) => Some((Self::Bare(bytes, buffers), BARE)),
            Self::Put(bytes) | Self::Get(bytes) => Some((Self::Latency(bytes), LATENCY)),
            _ => None,
        }
    }

    /// How many messages are in flight or wait, where that is more than one, or buffers that are sent in turn.
    pub fn depth(self) -> Option<u32> {
        match self {
            Self::Window(_, depth) | Self::WindowUntouched(_, depth) | Self::Rate(_, depth) => Some(depth),
            Self::Posted(count) | Self::Unexpected(count) => Some(count),
            Self::Pool(_, buffers)
            | Self::BothWays(_, buffers)
            | Self::Overhead(_, buffers)
            | Self::Bare(_, buffers) => Some(buffers),
            Self::Latency(_)
            | Self::PingPong(_)
            | Self::PingPongUntouched(_)
            | Self::Once(_)
            | Self::Put(_)
            | Self::Get(_)
            | Self::Kernel(_)
            | Self::Barrier
            | Self::Allreduce(_) => None,
        }
    }
}

/// The program's first line.
#[derive(Clone, Debug, Deserialize)]
pub struct Start {
    /// What the MPI library calls itself.
    pub mpi: String,
    /// The ranks' host names.
    pub hosts: Vec<String>,
    /// Whether ranks yield their processor while they wait, where the MPI has a switch for that.
    #[serde(default)]
    pub yields: Option<bool>,
    /// Seconds that MPI_Init took, in the slower rank.
    pub init_s: f64,
}

/// One repetition of a block.
#[derive(Clone, Debug, Deserialize)]
pub struct Sample {
    /// Name of the benchmark, as in a record.
    pub benchmark: String,
    /// Its metric.
    pub metric: String,
    /// Bytes of a message.
    pub bytes: u64,
    /// The median of the batches.
    pub value: f64,
    /// Processor time of all ranks for one message, or one loop of a collective call.
    pub cpu_us_per_op: f64,
    /// The bare line, before and after.
    pub line_us: Option<[f64; 2]>,
    /// Of a kernel's messages, and of their bytes, the share that is in such of more than 64 KiB; and the bytes that it sends in a second,
    /// in MB/s.
    pub large_messages: Option<f64>,
    pub large_bytes: Option<f64>,
    #[serde(rename = "sent_MBps")]
    pub sent: Option<f64>,
    messages: u64,
    payload_bytes: u64,
    // Both are null where a rank has no region.
    region_bytes: Option<u64>,
    region_messages: Option<u64>,
    #[serde(default)]
    page_bytes: u64,
    #[serde(default)]
    resident_bytes: u64,
    #[serde(default)]
    direct_bytes: u64,
    net_bytes: u64,
    loopback_bytes: u64,
    cma_bytes: u64,
}

impl Sample {
    /// What the counters saw of it.
    pub fn moved(&self) -> Moved {
        Moved {
            messages: self.messages,
            payload: self.payload_bytes,
            region: self.region_messages.zip(self.region_bytes),
            pages: self.page_bytes,
            resident: self.resident_bytes,
            direct: self.direct_bytes,
            cma: self.cma_bytes,
            network: self.net_bytes + self.loopback_bytes,
        }
    }
}

/// All that the program printed.
#[derive(Clone, Debug)]
pub struct Output {
    /// Its first line.
    pub start: Start,
    /// Its blocks, in order.
    pub samples: Vec<Sample>,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Line {
    Start(Start),
    Block(Sample),
}

/// Reads what the program printed; lines that are not its own (a launcher's warnings) are passed over.
///
/// # Errors
/// What is wrong with it: a line that is no JSON, no first line, or fewer than `blocks` blocks.
pub fn read(text: &str, blocks: usize) -> std::result::Result<Output, String> {
    let mut start = None;
    let mut samples = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("{\"isthmus_bench\":1,")) {
        match serde_json::from_str(line).map_err(|error| format!("{error} in {line}"))? {
            Line::Start(it) => start = Some(it),
            Line::Block(it) => samples.push(it),
        }
    }
    let start = start.ok_or("its first line is missing")?;
    if samples.len() != blocks {
        return Err(format!("{} blocks of {blocks}", samples.len()));
    }
    Ok(Output { start, samples })
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = r#"{"isthmus_bench":1,"kind":"start","mpi":"Open MPI v5","hosts":["a","b"],"cpus":[0,1],"init_s":0.04}"#;
    const BLOCK: &str = r#"{"isthmus_bench":1,"kind":"block","benchmark":"latency","metric":"latency_us","bytes":8,"rep":0,"value":3.8,"min":0.8,"max":5.8,"messages":163840,"cpu_us_per_op":2.1,"line_us":null,"region_bytes":1310725,"region_messages":163850,"payload_bytes":1310720,"net_bytes":3,"loopback_bytes":104,"cma_bytes":0}"#;

    #[test]
    fn output_is_read_among_other_lines() {
        let output = read(&format!("warning: x\n{START}\n{BLOCK}\n\n"), 1).unwrap();
        assert_eq!(output.start.hosts, ["a", "b"]);
        assert_eq!(
            output.samples[0].moved(),
            Moved {
                messages: 163_840,
                payload: 1_310_720,
                region: Some((163_850, 1_310_725)),
                pages: 0,
                resident: 0,
                direct: 0,
                cma: 0,
                network: 107
            }
        );
    }

    #[test]
    fn output_that_breaks_off_is_refused() {
        assert!(read(START, 1).is_err());
        assert!(read(BLOCK, 1).is_err());
        assert!(read(&format!("{START}\n{}", &BLOCK[..60]), 1).is_err());
    }

    /// In the process that the next test starts: with a compiler that `COMPILER` names.
    const COMPILER: &str = "ISTHMUS_TEST_COMPILER";

    fn end_of_build(compiler: &Path) -> i32 {
        crate::job::end_by_signals().unwrap();
        match build(compiler, "", "interrupted", &[("x.c", "")], &[]) {
            Err(Error::Interrupted { signal }) => 100 + signal,
            other => {
                println!("{other:?}");
                1
            }
        }
    }

    #[test]
    fn a_signal_while_a_program_is_compiled_is_no_failure_of_the_compiler() {
        use std::os::unix::fs::PermissionsExt;
        use std::time::{Duration, Instant};
        if let Some(compiler) = std::env::var_os(COMPILER) {
            std::process::exit(end_of_build(Path::new(&compiler)));
        }
        // One goes on until it is ended; the other has had the signal of the terminal as well, and fails.
        for (name, rest) in [("slow", "exec sleep 60"), ("fails", "trap '' TERM; sleep 1; exit 1")] {
            let folder = tempfile::tempdir().unwrap();
            let compiler = folder.path().join(name);
            let begun = folder.path().join("begun");
            fs::write(&compiler, format!("#!/bin/sh\n: >{}\n{rest}\n", begun.display())).unwrap();
            fs::set_permissions(&compiler, fs::Permissions::from_mode(0o755)).unwrap();
            let this = "program::tests::a_signal_while_a_program_is_compiled_is_no_failure_of_the_compiler";
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", this, "--nocapture"])
                .env(COMPILER, &compiler)
                .env("XDG_CACHE_HOME", folder.path())
                .spawn()
                .unwrap();
            let since = Instant::now();
            while !begun.exists() {
                assert!(since.elapsed() < Duration::from_secs(60), "{name}: it did not begin");
                std::thread::sleep(Duration::from_millis(10));
            }
            let pid = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
            assert_eq!(child.wait().unwrap().code(), Some(102), "{name}");
            assert!(since.elapsed() < Duration::from_secs(30), "{name}: it was waited for");
            let left = fs::read_dir(folder.path().join("isthmus/bench")).unwrap().count();
            assert_eq!(left, 0, "{name}: a directory is left");
        }
    }
}
