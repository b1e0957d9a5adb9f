//! The arguments of `isthmus bench`, and its exit status.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use isthmus_run::ExitCode;

use crate::error::{Error, Result};
use crate::program::Block;
use crate::subject::Peers;
use crate::{lane, mpi, record, show};

/// Rounds of a full comparison: fewer than seven scatter too much to compare.
const ROUNDS: u32 = 7;
const QUICK_ROUNDS: u32 = 3;

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
    /// How long an MPI takes to find a message among 10 to 10,000 posted receives or waiting messages.
    Matching(MatchingArgs),
    /// Barriers and sums per second of four ranks, which on two processors have to share them.
    Collectives(CollectivesArgs),
}

/// What all benchmarks take.
#[derive(Args, Debug)]
struct Common {
    /// The MPI: its directory, or `openmpi` or `mpich` on the PATH.
    #[arg(long, value_name = "DIR|NAME")]
    mpi: Option<String>,
    /// Fewer sizes and rounds: natively a minute or less for each MPI.
    #[arg(long)]
    quick: bool,
    /// Also write the measurements to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// How many times each subject is measured.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Accelerator of the VMs: auto, kvm or tcg.
    #[arg(long, value_name = "ACCEL")]
    accel: Option<String>,
}

impl Common {
    fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { QUICK_ROUNDS } else { ROUNDS })
    }

    /// A plan without blocks.
    fn plan(&self, ranks: u32, vms: u32, peers: Peers) -> mpi::Plan {
        mpi::Plan {
            ranks,
            vms,
            peers,
            mpi: self.mpi.clone(),
            rounds: self.rounds(),
            reps: if self.quick { 1 } else { 3 },
            budget_ms: 100,
            blocks: Vec::new(),
            run_args: self.accel.iter().flat_map(|accel| ["--accel".into(), accel.clone()]).collect(),
        }
    }

    fn finish(&self, records: &[record::Record]) -> Result<()> {
        if let Some(file) = &self.json {
            record::write(file, records)?;
            println!("written to {}", file.display());
        }
        Ok(())
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
    /// Also measure what copies twice, as isthmus does: Open MPI's shared memory without cross-memory attach.
    #[arg(long)]
    two_copy: bool,
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

/// Runs what was asked for and returns the exit status.
pub fn main(args: &BenchArgs) -> i32 {
    let done = match &args.what {
        What::Mpi(args) => bench_mpi(args),
        What::Lane(args) => bench_lane(args),
        What::Matching(args) => bench_matching(args),
        What::Collectives(args) => bench_collectives(args),
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("isthmus: {}", error.chain());
            if matches!(error, Error::Usage(_)) { ExitCode::USAGE } else { ExitCode::FAILURE }
        }
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
        reps: args.common.rounds(),
        quick: args.common.quick,
        accel: args.common.accel.clone(),
    };
    eprintln!(
        "bench lane: {} repetitions between two processes{}",
        plan.reps,
        match args.vms {
            0 => String::new(),
            vms => format!(" in {vms} VMs"),
        }
    );
    let records = lane::run(&plan)?;
    show::lane(&records)?;
    args.common.finish(&records)
}

fn bench_mpi(args: &MpiArgs) -> Result<()> {
    check_pair(args.vms)?;
    let peers = Peers { two_copy: args.two_copy, ..Peers::USUAL };
    let mut plan = args.common.plan(2, args.vms, peers);
    plan.blocks.extend([Block::Latency(8), Block::Latency(1024)]);
    if !args.common.quick {
        plan.blocks.push(Block::Latency(65536));
    }
    if args.two_copy {
        plan.blocks.extend([8192, 65536].map(Block::PingPong));
        plan.blocks.extend([8192, 65536].map(|bytes| Block::Window(bytes, 8)));
    }
    plan.blocks.extend([Block::PingPong(1 << 20), Block::Window(1 << 20, 8), Block::Rate(8, 64)]);
    plan.run_args.splice(0..0, args.run_arg.iter().cloned());
    compare(&plan, &args.common)
}

fn bench_matching(args: &MatchingArgs) -> Result<()> {
    check_pair(args.vms)?;
    let mut plan = args.common.plan(2, args.vms, Peers { tcp: false, ..Peers::USUAL });
    plan.blocks.push(Block::Latency(8));
    plan.blocks.extend(WAITING.map(Block::Posted));
    plan.blocks.extend(WAITING.map(Block::Unexpected));
    compare(&plan, &args.common)
}

fn bench_collectives(args: &CollectivesArgs) -> Result<()> {
    if args.vms > args.ranks {
        return Err(Error::Usage(format!("--vms {}: there are only {} ranks", args.vms, args.ranks)));
    }
    // Between VMs there is no shared memory of the MPI's own.
    let mut plan = args.common.plan(args.ranks, args.vms, Peers { shared: args.vms == 0, ..Peers::USUAL });
    plan.blocks.extend([Block::Barrier, Block::Allreduce(8)]);
    compare(&plan, &args.common)
}

fn compare(plan: &mpi::Plan, common: &Common) -> Result<()> {
    let done = mpi::run(plan, &mut |what| eprintln!("{what}"))?;
    show::comparison(plan, &done);
    common.finish(&done.records)
}
