//! The arguments of `isthmus bench`, and its exit status.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use isthmus_run::{ExitCode, named};

use crate::error::{Error, Result};
use crate::objects::Place;
use crate::page::Page;
use crate::placement::{Choice, Policy};
use crate::program::Block;
use crate::rank::What as Objects;
use crate::subject::{Modes, Peers};
use crate::{fluid, lane, modes, mpi, objects, onecopy, peers, placement, promise, rank, record, show, sysv};

const QUICK_ROUNDS: u32 = 3;

/// How long a block of synchronisation and channels takes, in milliseconds.
const BLOCK_MS: u64 = 250;
const QUICK_BLOCK_MS: u64 = 60;

/// How long a table goes on for a placement that lacks rounds, in minutes.
const WAIT: f64 = 20.0;
const QUICK_WAIT: f64 = 0.5;

/// Message sizes of curves.
const SIZES: [u64; 12] = [1, 4, 16, 64, 256, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22];
const QUICK_SIZES: [u64; 5] = [1, 64, 4096, 1 << 18, 1 << 22];

/// How many sizes there may be: the program takes 96 blocks, two for each size and at most sixteen others.
const MOST_SIZES: usize = 27;

/// How many receives are posted, or messages wait, in `bench matching`.
const WAITING: [u32; 3] = [10, 1_000, 10_000];

/// Measure, side by side with what else there is.
#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Latency, bandwidth and message rate of an MPI over isthmus, over TCP, and over its own shared memory.
    Mpi(MpiArgs),
    /// Latency and bandwidth of the transport itself, beside a bare cache line; an MPI only starts the processes.
    Lane(LaneArgs),
    /// Long messages in one copy beside two: from buffers that come back, in pools of several sizes, and from such that never do.
    Onecopy(OnecopyArgs),
    /// What it costs that each VM writes only its own section (run's --isolated): messages, and the boot of 2 and 8 VMs.
    Isolated(ModesArgs),
    /// Messages of a region on a memory device (run's --source dax), beside one whose memory is mapped by sysfs.
    Dax(ModesArgs),
    /// How long an MPI takes to find a message among 10 to 10,000 posted receives or waiting messages.
    Matching(MatchingArgs),
    /// All that is promised of speed and size, in one table beside what is measured now.
    Peers(PeersArgs),
    /// Barriers between processes and between VMs, beside a naive one, POSIX threads' and a bare cache line.
    Barrier(ObjectArgs),
    /// Counters by minitransactions, beside a spin lock, at no, medium and high contention.
    Counter(ObjectArgs),
    /// Channels beside Unix-domain sockets and TCP.
    Ivc(ObjectArgs),
    /// Completions that a process sleeps for, beside spinning: of the libfabric provider itself, and of libfabric's own.
    Wait(WaitArgs),
    /// System V IPC of a region beside the kernel's, TCP and UDP: turns of two processes, semaphores, messages, segments.
    Sysv(SysvArgs),
    /// What it takes to wake a process that sleeps: by a futex, by the local service, between VMs by the agents and by the device.
    Doorbell(SysvArgs),
    /// The fluid simulator of the examples, in two processes of one VM and in two VMs.
    Sph(SphArgs),
    /// Barriers and sums per second of four ranks, which on two processors have to share them.
    Collectives(CollectivesArgs),
}

impl What {
    /// What is measured for minutes must have a place in the end.
    fn check_files(&self) -> Result<()> {
        let (json, report) = match self {
            Self::Mpi(args) => (&args.common.json, &args.curves.report),
            Self::Peers(args) => (&args.json, &args.curves.report),
            Self::Sysv(args) | Self::Doorbell(args) => (&args.json, &None),
            Self::Lane(LaneArgs { common, .. })
            | Self::Matching(MatchingArgs { common, .. })
            | Self::Barrier(ObjectArgs { common, .. })
            | Self::Counter(ObjectArgs { common, .. })
            | Self::Ivc(ObjectArgs { common, .. })
            | Self::Onecopy(OnecopyArgs { common, .. })
            | Self::Isolated(ModesArgs { common })
            | Self::Dax(ModesArgs { common })
            | Self::Wait(WaitArgs { common })
            | Self::Sph(SphArgs { common, .. })
            | Self::Collectives(CollectivesArgs { common, .. }) => (&common.json, &None),
        };
        for (option, file) in [("--json", json), ("--report", report)] {
            if let Some(file) = file {
                named::may_write(file)
                    .map_err(|e| Error::Usage(format!("{option} {}: {e}", file.display())))?;
            }
        }
        Ok(())
    }
}

/// Curves over the message size.
#[derive(Args, Debug)]
struct Curves {
    /// Also write a page with curves of latency and bandwidth over the message size, in one HTML file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Message sizes of the curves, in bytes or with K or M behind them; without --report rows of the table.
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', value_parser = size)]
    sizes: Vec<u64>,
}

impl Curves {
    /// The sizes that were asked for, in order; those of a report if it alone was.
    fn sizes(&self, quick: bool) -> Result<Vec<u64>> {
        let mut sizes = self.sizes.clone();
        if sizes.is_empty() && self.report.is_some() {
            sizes = if quick { QUICK_SIZES.into() } else { SIZES.into() };
        }
        sizes.sort_unstable();
        sizes.dedup();
        if sizes.len() > MOST_SIZES {
            return Err(Error::Usage(format!("--sizes: {} sizes; there may be {MOST_SIZES}", sizes.len())));
        }
        Ok(sizes)
    }

    /// Writes the report, if one was asked for, with what `draw` puts into it.
    fn keep(&self, title: &str, draw: impl FnOnce(&mut Page) -> Result<()>) -> Result<()> {
        let Some(file) = &self.report else { return Ok(()) };
        let mut page = Page::new(title);
        draw(&mut page)?;
        page.write(file)
    }

    /// Says where it is, after the table was shown.
    fn say_where(&self) {
        if let Some(file) = &self.report {
            isthmus_region::say!("report: {}", file.display());
        }
    }
}

/// A message size: 1 B to 64 MB.
fn size(text: &str) -> std::result::Result<u64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(unit));
    bytes
        .filter(|bytes| (1..=64 << 20).contains(bytes))
        .ok_or_else(|| format!("{text} is no size from 1 to 64M"))
}

/// What all benchmarks take.
#[derive(Args, Debug)]
struct Common {
    /// The MPI: its directory, or `openmpi`, `openmpi4`, `openmpi5`, `mpich` or `intel` on the PATH.
    #[arg(long, value_name = "DIR|NAME")]
    mpi: Option<String>,
    /// Fewer sizes and rounds: natively a minute or less for each MPI.
    #[arg(long)]
    quick: bool,
    /// Also write the measurements to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    sorting: Sorting,
    /// Accelerator of the VMs.
    #[arg(long, value_name = "ACCEL", value_parser = ["auto", "kvm", "tcg"])]
    accel: Option<String>,
}

/// How many rounds are made, and how they are sorted by the processors' placement.
#[derive(Args, Debug)]
struct Sorting {
    /// How many rounds of each placement; a round measures each subject once. Otherwise 21 (7 with VMs, 3 with --quick):
    /// with fewer than 21 (7) a promise stays undecided.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Which rounds are kept: those with processors that share a core or a cache (near), that share none (far), both as rows of
    /// their own, or any.
    ///
    /// A virtual machine's host moves its processors about, and figures of the one placement say nothing about the other. So a
    /// bare cache line is timed before and after each block or launch: half a round of less than 0.08 us is near, 0.1 us and more is far, and
    /// what lies between or changed meanwhile is measured again; where the topology names threads of one core, the bound is measured. Two processes of this host are put on a pair of processors that is so placed, and
    /// more of them are kept to such a pair; with `any` they have all processors, and no promise is decided.
    #[arg(long, value_enum, default_value_t = Choice::Both, value_name = "PLACEMENT")]
    placement: Choice,
    /// For how many minutes each table goes on while a placement lacks rounds; then it is `not seen`, which is no failure.
    /// Otherwise 20, and with --quick half a minute. Where a placement never comes, all tables together wait as long as one.
    #[arg(long, value_name = "MINUTES", value_parser = minutes)]
    wait: Option<f64>,
}

/// A time that a user would wait.
fn minutes(text: &str) -> std::result::Result<f64, String> {
    let minutes = text.parse::<f64>().ok().filter(|minutes| (0.0..=10_000.0).contains(minutes));
    minutes.ok_or_else(|| format!("{text} is no number of minutes from 0 to 10000"))
}

impl Sorting {
    fn policy(&self, quick: bool, vms: u32) -> Result<Policy> {
        placement::check(self.placement)?;
        let usual = match (quick, vms) {
            (true, _) => QUICK_ROUNDS,
            (false, 0) => promise::ROUNDS,
            (false, _) => promise::ROUNDS_VMS,
        };
        let wait = self.wait.unwrap_or(if quick { QUICK_WAIT } else { WAIT });
        Ok(Policy {
            choice: self.placement,
            rounds: self.rounds.unwrap_or(usual),
            patience: Duration::from_secs_f64(wait * 60.0),
        })
    }
}

impl Common {
    fn policy(&self, vms: u32) -> Result<Policy> {
        self.sorting.policy(self.quick, vms)
    }

    /// A plan without blocks.
    fn plan(&self, ranks: u32, vms: u32, peers: Peers) -> Result<mpi::Plan> {
        Ok(mpi::Plan {
            ranks,
            vms,
            multiple: false,
            peers,
            mpi: self.mpi.clone(),
            policy: self.policy(vms)?,
            // Many short launches say more than a few long ones; VMs take long to boot.
            reps: if self.quick || vms == 0 { 1 } else { 3 },
            budget_ms: 100,
            blocks: Vec::new(),
            run_args: self.accel.iter().flat_map(|accel| ["--accel".into(), accel.clone()]).collect(),
        })
    }

    /// Keeps what was measured, before it is shown: standard output may have no reader.
    fn keep(&self, records: &[record::Record]) -> Result<()> {
        self.json.as_ref().map_or(Ok(()), |file| record::write(file, records))
    }

    /// Says where it is kept, after it was shown.
    fn say_where(&self) {
        if let Some(file) = &self.json {
            isthmus_region::say!("written to {}", file.display());
        }
    }
}

#[derive(Args, Debug)]
struct LaneArgs {
    /// VMs that the two processes are in; 0 runs plain processes on this host.
    #[arg(long, default_value_t = 2, value_name = "N")]
    vms: u32,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct MpiArgs {
    /// VMs that the two ranks are in; 0 runs plain processes on this host.
    #[arg(long, default_value_t = 2, value_name = "N")]
    vms: u32,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    curves: Curves,
    /// Also measure what copies twice, as isthmus does: Open MPI's shared memory without cross-memory attach.
    #[arg(long)]
    two_copy: bool,
    /// Leave out TCP.
    #[arg(long)]
    no_tcp: bool,
    /// Further argument for `isthmus run`, the same for all that runs in VMs; may be repeated.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    run_arg: Vec<String>,
}

#[derive(Args, Debug)]
struct MatchingArgs {
    /// VMs that the two ranks are in, 2 or 0; its own shared memory has both of them in one VM.
    #[arg(long, default_value_t = 0, value_name = "N")]
    vms: u32,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct OnecopyArgs {
    /// VMs that the two ranks are in, which grant pages of their buffers; 0 runs plain processes on this host, of which the kernel copies.
    #[arg(long, default_value_t = 2, value_name = "N")]
    vms: u32,
    /// Only these benchmarks, with what they are compared with; otherwise all, what a page costs, and the rules of replacement.
    #[arg(long, value_name = "BENCHMARK,...", value_delimiter = ',', value_parser = onecopy::ALONE)]
    only: Vec<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct ModesArgs {
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct PeersArgs {
    /// An MPI: its directory, or its name on the PATH; may be repeated.
    #[arg(long, value_name = "DIR|NAME")]
    mpi: Vec<String>,
    /// VMs besides plain processes: 2, or 0 for none. Otherwise 2 where QEMU is there.
    #[arg(long, value_name = "N")]
    vms: Option<u32>,
    /// Fewer rounds, and fewer ranks where there are many.
    #[arg(long)]
    quick: bool,
    /// Also write all measurements to FILE as JSON, those that something is promised of with what became of it.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    sorting: Sorting,
    /// Accelerator of the VMs.
    #[arg(long, value_name = "ACCEL", value_parser = ["auto", "kvm", "tcg"])]
    accel: Option<String>,
    #[command(flatten)]
    curves: Curves,
}

#[derive(Args, Debug)]
struct CollectivesArgs {
    /// VMs that the ranks are in, with TCP between them to compare with; 0 runs plain processes on this host.
    #[arg(long, default_value_t = 0, value_name = "N")]
    vms: u32,
    /// How many ranks.
    #[arg(short = 'n', long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=64))]
    ranks: u32,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct ObjectArgs {
    /// How many processes on this host; may be several, 0 for none. Otherwise 2, 4 and 8 (channels: 2).
    #[arg(short = 'n', long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(0..=i64::from(rank::MOST_PARTIES)))]
    processes: Vec<u32>,
    /// How many VMs, with a process in each; may be several, 0 for none. Otherwise 2 and 4 (channels: 2) where QEMU is there.
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(0..=i64::from(rank::MOST_PARTIES)))]
    vms: Vec<u32>,
    #[command(flatten)]
    common: Common,
}

impl ObjectArgs {
    fn places(&self, what: Objects) -> Result<Vec<Place>> {
        let pairs_only = what == Objects::Ivc;
        let pick = |asked: &[u32], usual: &[u32]| -> Vec<u32> {
            let all: Vec<u32> = if asked.is_empty() { usual.into() } else { asked.into() };
            all.into_iter().filter(|n| *n > 0).collect()
        };
        let has_qemu = isthmus_vm::qemu::program().is_ok();
        let processes = pick(&self.processes, if pairs_only { &[2] } else { &[2, 4, 8] });
        let usual: &[u32] = match (has_qemu, pairs_only) {
            (false, _) => &[],
            (true, true) => &[2],
            (true, false) => &[2, 4],
        };
        let vms = pick(&self.vms, usual);
        let mut places: Vec<Place> = processes.into_iter().map(|n| Place { processes: n, vms: 0 }).collect();
        places.extend(vms.into_iter().map(|n| Place { processes: n, vms: n }));
        for place in &places {
            if place.processes < 2 || (pairs_only && place.processes != 2) {
                let so = if pairs_only { "channels have two ends" } else { "there must be two at least" };
                return Err(Error::Usage(format!("{} processes: {so}", place.processes)));
            }
        }
        match places.is_empty() {
            true => Err(Error::Usage("neither processes nor VMs: nothing would be measured".into())),
            false => Ok(places),
        }
    }
}

#[derive(Args, Debug)]
struct WaitArgs {
    #[command(flatten)]
    common: Common,
}

/// Without an MPI: `isthmus run` starts the processes itself.
#[derive(Args, Debug)]
struct SysvArgs {
    /// VMs besides plain processes: 2, or 0 for none. Otherwise 2 where QEMU is there.
    #[arg(long, value_name = "N")]
    vms: Option<u32>,
    /// Fewer sizes and rounds.
    #[arg(long)]
    quick: bool,
    /// Also write the measurements to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    sorting: Sorting,
    /// Accelerator of the VMs.
    #[arg(long, value_name = "ACCEL", value_parser = ["auto", "kvm", "tcg"])]
    accel: Option<String>,
}

#[derive(Args, Debug)]
struct SphArgs {
    /// How many particles.
    #[arg(long, default_value_t = 65_536, value_name = "N", value_parser = clap::value_parser!(u32).range(16..=1 << 24))]
    particles: u32,
    /// How many steps each run makes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    steps: Option<u32>,
    /// In VMs, too: 2, or 0 for none. Otherwise where QEMU is there.
    #[arg(long, value_name = "N")]
    vms: Option<u32>,
    #[command(flatten)]
    common: Common,
}

/// Runs what was asked for and returns the exit status.
pub fn main(args: &BenchArgs) -> i32 {
    let signals = crate::job::end_by_signals();
    let done = signals.and_then(|()| args.what.check_files()).and_then(|()| match &args.what {
        What::Mpi(args) => bench_mpi(args),
        What::Lane(args) => bench_lane(args),
        What::Onecopy(args) => bench_onecopy(args),
        What::Isolated(args) => bench_modes(args, Modes::Isolated),
        What::Dax(args) => bench_modes(args, Modes::Dax),
        What::Matching(args) => bench_matching(args),
        What::Collectives(args) => bench_collectives(args),
        What::Peers(args) => bench_peers(args),
        What::Barrier(args) => bench_objects(args, Objects::Barrier),
        What::Counter(args) => bench_objects(args, Objects::Counter),
        What::Ivc(args) => bench_objects(args, Objects::Ivc),
        What::Wait(args) => bench_wait(args),
        What::Sysv(args) => bench_sysv(args, Objects::Sysv),
        What::Doorbell(args) => bench_sysv(args, Objects::Doorbell),
        What::Sph(args) => bench_sph(args),
    });
    match done {
        Ok(()) => 0,
        Err(error) => {
            isthmus_region::tell!("isthmus: {}", error.chain());
            match error {
                Error::Usage(_) => ExitCode::USAGE,
                Error::Interrupted { signal } => 128 + signal,
                Error::Mpi(error) => error.exit_code(),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// Whether there are VMs besides plain processes: as asked, or where QEMU is there.
fn has_vms(asked: Option<u32>) -> Result<bool> {
    match asked {
        None => Ok(isthmus_vm::qemu::program().is_ok()),
        Some(0) => Ok(false),
        Some(2) => Ok(true),
        Some(other) => Err(Error::Usage(format!("--vms {other}: 2, or 0 for plain processes alone"))),
    }
}

/// Two processes are in two VMs, or in none.
fn check_pair(vms: u32) -> Result<()> {
    match vms {
        0 | 2 => Ok(()),
        _ => Err(Error::Usage(format!("--vms {vms}: the two ranks are in 2 VMs, or in 0"))),
    }
}

fn bench_lane(args: &LaneArgs) -> Result<()> {
    check_pair(args.vms)?;
    let plan = lane::Plan {
        vms: args.vms,
        mpi: args.common.mpi.clone(),
        policy: args.common.policy(args.vms)?,
        quick: args.common.quick,
        accel: args.common.accel.clone(),
    };
    isthmus_region::tell!(
        "bench lane: {} rounds between two processes{}",
        plan.policy.rounds,
        match args.vms {
            0 => String::new(),
            vms => format!(" in {vms} VMs"),
        }
    );
    let done = lane::run(&plan, &mut |what| isthmus_region::tell!("{what}"))?;
    let kept = args.common.keep(&done.records);
    show::lane(&done)?;
    kept?;
    args.common.say_where();
    if let Some(why) = &done.cut {
        isthmus_region::say!("{why}");
        return Err(Error::Incomplete);
    }
    Ok(())
}

fn bench_objects(args: &ObjectArgs, what: Objects) -> Result<()> {
    objects_in(&args.common, what, args.places(what)?)
}

fn bench_wait(args: &WaitArgs) -> Result<()> {
    objects_in(&args.common, Objects::Wait, vec![Place { processes: 2, vms: 0 }])
}

fn objects_in(common: &Common, what: Objects, places: Vec<Place>) -> Result<()> {
    let plan = objects::Plan {
        what,
        places,
        policy: common.policy(0)?,
        rounds_vms: common.policy(2)?.rounds,
        budget_ms: if common.quick { QUICK_BLOCK_MS } else { BLOCK_MS },
        mpi: common.mpi.clone(),
        accel: common.accel.clone(),
        is_quick: common.quick,
    };
    finish_objects(&plan, common.json.as_deref())
}

fn finish_objects(plan: &objects::Plan, json: Option<&Path>) -> Result<()> {
    let done = objects::run(plan, &mut |what| isthmus_region::tell!("{what}"))?;
    // Kept before it is shown: standard output may have no reader.
    let kept = json.map_or(Ok(()), |file| record::write(file, &done.records));
    show::objects(plan, &done);
    kept?;
    if let Some(file) = json {
        isthmus_region::say!("written to {}", file.display());
    }
    if done.left_out.is_empty() { Ok(()) } else { Err(Error::Incomplete) }
}

fn bench_sysv(args: &SysvArgs, what: Objects) -> Result<()> {
    let mut places = vec![Place { processes: 2, vms: 0 }];
    if has_vms(args.vms)? {
        places.push(Place { processes: sysv::VMS, vms: sysv::VMS });
    }
    let plan = objects::Plan {
        what,
        places,
        policy: args.sorting.policy(args.quick, 0)?,
        rounds_vms: args.sorting.policy(args.quick, 2)?.rounds,
        budget_ms: if args.quick { QUICK_BLOCK_MS } else { BLOCK_MS },
        mpi: None,
        accel: args.accel.clone(),
        is_quick: args.quick,
    };
    finish_objects(&plan, args.json.as_deref())
}

fn bench_sph(args: &SphArgs) -> Result<()> {
    let vms = has_vms(args.vms)?;
    let plan = fluid::Plan {
        particles: args.particles,
        steps: args.steps.unwrap_or(if args.common.quick { 5 } else { 20 }),
        policy: args.common.policy(u32::from(vms))?,
        vms,
        mpi: args.common.mpi.clone(),
        accel: args.common.accel.clone(),
    };
    let done = fluid::run(&plan, &mut |what| isthmus_region::tell!("{what}"))?;
    let kept = args.common.keep(&done.records);
    show::fluid(&plan, &done);
    kept?;
    args.common.say_where();
    if let Some(why) = &done.cut {
        isthmus_region::say!("{why}");
        return Err(Error::Incomplete);
    }
    Ok(())
}

fn bench_mpi(args: &MpiArgs) -> Result<()> {
    check_pair(args.vms)?;
    let every_way = !args.common.quick;
    let peers = Peers { two_copy: args.two_copy, tcp: !args.no_tcp, every_way, ..Peers::USUAL };
    let mut plan = args.common.plan(2, args.vms, peers)?;
    let sizes = args.curves.sizes(args.common.quick)?;
    plan.blocks = mpi_blocks(args.common.quick, args.two_copy, &sizes);
    plan.run_args.splice(0..0, args.run_arg.iter().cloned());
    let done = mpi::run(&plan, &mut |what| isthmus_region::tell!("{what}"))?;
    let kept = args.common.keep(&done.records);
    let drawn = args.curves.keep("isthmus bench mpi", |page| page.comparison(&done));
    show::comparison(&plan, &done);
    kept?;
    drawn?;
    args.common.say_where();
    args.curves.say_where();
    whole(&done)
}

/// The blocks of `bench mpi`: those of its table, and those of curves over `sizes` among them, each once.
fn mpi_blocks(quick: bool, two_copy: bool, sizes: &[u64]) -> Vec<Block> {
    let mut latencies = vec![8, 1024];
    let (mut pingpongs, mut windows) = (vec![1 << 20], vec![1 << 20]);
    if !quick {
        latencies.push(65536);
    }
    if two_copy {
        pingpongs.extend([8192, 65536]);
        windows.extend([8192, 65536]);
    }
    // Beside each bandwidth of the table; curves have the one that programs see.
    let untouched = pingpongs.clone();
    latencies.extend(sizes);
    windows.extend(sizes);
    for sizes in [&mut latencies, &mut pingpongs, &mut windows] {
        sizes.sort_unstable();
        sizes.dedup();
    }
    let mut blocks: Vec<Block> = latencies.into_iter().map(Block::Latency).collect();
    blocks.extend(pingpongs.into_iter().map(Block::PingPong));
    blocks.extend(windows.into_iter().map(|bytes| Block::Window(bytes, 8)));
    blocks.extend(untouched.iter().copied().map(Block::PingPongUntouched));
    blocks.extend(untouched.into_iter().map(|bytes| Block::WindowUntouched(bytes, 8)));
    blocks.push(Block::Rate(8, 64));
    blocks
}

fn bench_peers(args: &PeersArgs) -> Result<()> {
    let vms = has_vms(args.vms)?;
    let plan = peers::Plan {
        mpis: args.mpi.clone(),
        policy: args.sorting.policy(args.quick, 0)?,
        rounds_vms: args.sorting.policy(args.quick, 2)?.rounds,
        quick: args.quick,
        vms,
        accel: args.accel.clone(),
        sizes: args.curves.sizes(args.quick)?,
    };
    let load = crate::stats::load();
    let table = peers::run(&plan, &mut |what| isthmus_region::tell!("{what}"))?;
    let kept = args.json.as_ref().map_or(Ok(()), |file| record::write(file, &table.records));
    let drawn = args.curves.keep("isthmus bench peers", |page| {
        page.promises(&table);
        table.curves.iter().try_for_each(|done| page.comparison(done))
    });
    isthmus_region::say!();
    isthmus_region::say!(
        "Medians of {} rounds ({} with VMs) where they could be had, of ratios within a round; load before: {}{}",
        plan.policy.rounds,
        plan.rounds_vms,
        load.map_or_else(|| "unknown".into(), |load| format!("{load:.2}")),
        if plan.vms { "" } else { "; nothing in VMs was measured" }
    );
    isthmus_region::say!(
        "Each MPI has the settings that are best for ranks that share processors; of several the best row by row."
    );
    isthmus_region::say!();
    isthmus_region::say!("{}", table.text().trim_end());
    kept?;
    drawn?;
    if let Some(file) = &args.json {
        isthmus_region::say!("written to {}", file.display());
    }
    args.curves.say_where();
    if table.is_whole() { Ok(()) } else { Err(Error::Incomplete) }
}

fn bench_matching(args: &MatchingArgs) -> Result<()> {
    check_pair(args.vms)?;
    let mut plan = args.common.plan(2, args.vms, Peers { tcp: false, ..Peers::USUAL })?;
    plan.blocks.push(Block::Latency(8));
    plan.blocks.extend(WAITING.map(Block::Posted));
    plan.blocks.extend(WAITING.map(Block::Unexpected));
    compare(&plan, &args.common)
}

fn bench_onecopy(args: &OnecopyArgs) -> Result<()> {
    check_pair(args.vms)?;
    let peers = Peers { tcp: false, two_copy: true, one_copy: true, ..Peers::USUAL };
    let mut plan = args.common.plan(2, args.vms, peers)?;
    plan.reps = 1;
    plan.blocks = onecopy::blocks(args.common.quick, &args.only);
    let is_missing = |name: &&String| onecopy::blocks(args.common.quick, &[name.to_string()]).is_empty();
    if let Some(name) = args.only.iter().find(is_missing) {
        return Err(Error::Usage(format!("--only {name}: --quick leaves it out")));
    }
    let (is_quick, is_all) = (args.common.quick, args.only.is_empty());
    let done = onecopy::run(&plan, is_quick, is_all, &mut |what| isthmus_region::tell!("{what}"))?;
    let kept = args.common.keep(&[&done.comparison.records[..], &done.pages].concat());
    show::comparison(&plan, &done.comparison);
    show::promises(&done.rows);
    if !done.pages.is_empty() {
        isthmus_region::say!("\nEach of 1,024 pages, so many at once, in one launch:\n");
        isthmus_region::print::to_stdout(&onecopy::pages::text(&done.pages));
    }
    kept?;
    args.common.say_where();
    if done.is_whole() { Ok(()) } else { Err(Error::Incomplete) }
}

fn bench_modes(args: &ModesArgs, modes: Modes) -> Result<()> {
    let mut plan = args.common.plan(2, 2, Peers { modes: Some(modes), ..Peers::USUAL })?;
    plan.blocks = modes::blocks();
    let done = modes::run(modes, &plan, args.common.quick, &mut |what| isthmus_region::tell!("{what}"))?;
    let kept = args.common.keep(&done.comparison.records);
    show::comparison(&plan, &done.comparison);
    show::promises(&done.rows);
    kept?;
    args.common.say_where();
    if done.is_whole() { Ok(()) } else { Err(Error::Incomplete) }
}

fn bench_collectives(args: &CollectivesArgs) -> Result<()> {
    if args.vms > args.ranks {
        return Err(Error::Usage(format!("--vms {}: there are only {} ranks", args.vms, args.ranks)));
    }
    // Between VMs there is no shared memory of the MPI's own.
    let mut plan = args.common.plan(args.ranks, args.vms, Peers { shared: args.vms == 0, ..Peers::USUAL })?;
    plan.blocks.extend([Block::Barrier, Block::Allreduce(8)]);
    let tell = &mut |what: &str| isthmus_region::tell!("{what}");
    let mut done = mpi::run(&plan, tell)?;
    // What an MPI takes for these depends on whether its threads may call it, too.
    match mpi::run(&mpi::Plan { multiple: true, ..plan.clone() }, tell) {
        Ok(multiple) => done.add(multiple, "MPI_THREAD_MULTIPLE"),
        Err(error @ Error::Interrupted { .. }) => return Err(error),
        Err(error) => {
            done.left_out.push(format!("MPI_THREAD_MULTIPLE: {}", error.chain()));
            done.is_cut = true;
        }
    }
    finish(&plan, &args.common, &done)
}

fn compare(plan: &mpi::Plan, common: &Common) -> Result<()> {
    let done = mpi::run(plan, &mut |what| isthmus_region::tell!("{what}"))?;
    finish(plan, common, &done)
}

fn finish(plan: &mpi::Plan, common: &Common, done: &mpi::Comparison) -> Result<()> {
    let kept = common.keep(&done.records);
    show::comparison(plan, done);
    kept?;
    common.say_where();
    whole(done)
}

/// What ended before its time, or has nothing to be compared with, has a table, and a status that says so.
fn whole(done: &mpi::Comparison) -> Result<()> {
    if done.is_cut || done.is_alone { Err(Error::Incomplete) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_units_and_within_bounds() {
        assert_eq!((size("1"), size("4K"), size("64M")), (Ok(1), Ok(4096), Ok(64 << 20)));
        for bad in ["0", "65M", "", "K", "x", "-1", "1G"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_was_compared_with_nothing_is_not_whole() {
        let done = mpi::Comparison::default();
        assert!(whole(&done).is_ok());
        let alone = mpi::Comparison { is_alone: true, ..mpi::Comparison::default() };
        assert!(matches!(whole(&alone), Err(Error::Incomplete)));
        let mut both = done;
        both.add(alone, "MPI_THREAD_MULTIPLE");
        assert!(matches!(whole(&both), Err(Error::Incomplete)));
    }

    #[test]
    fn a_report_has_sizes_of_its_own_and_each_block_once() {
        let curves = Curves { report: Some("x".into()), sizes: Vec::new() };
        let blocks = mpi_blocks(false, true, &curves.sizes(false).unwrap());
        for (at, block) in blocks.iter().enumerate() {
            assert!(!blocks[..at].contains(block), "{block:?} twice");
        }
        assert!(blocks.contains(&Block::Latency(8)) && blocks.contains(&Block::Window(1 << 22, 8)));
        let most = Curves { report: None, sizes: (100..127).collect() };
        assert!(mpi_blocks(false, true, &most.sizes(false).unwrap()).len() <= 96);
        let more = Curves { report: None, sizes: (1..=28).collect() };
        assert!(matches!(more.sizes(false), Err(Error::Usage(_))));
    }
}
