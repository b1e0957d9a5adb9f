//! The arguments of `isthmus bench`, and its exit status.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use isthmus_run::ExitCode;

use crate::error::{Error, Result};
use crate::program::Block;
use crate::record;
use crate::{lane, mpi, table};

/// Rounds of a full comparison: fewer than seven scatter too much to compare.
const ROUNDS: u32 = 7;
const QUICK_ROUNDS: u32 = 3;

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
}

#[derive(Args, Debug)]
struct LaneArgs {
    /// VMs that the two processes are in; 0 runs plain processes on this host.
    #[arg(long, default_value_t = 2, value_name = "N")]
    vms: u32,
    /// The MPI whose launcher starts them: its directory, or `openmpi` or `mpich` on the PATH.
    #[arg(long, value_name = "DIR|NAME")]
    mpi: Option<String>,
    /// Fewer sizes and repetitions: under a minute natively.
    #[arg(long)]
    quick: bool,
    /// Also write the measurements to FILE as a JSON array.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// How many times each block is timed.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Accelerator of the VMs: auto, kvm or tcg.
    #[arg(long, value_name = "ACCEL")]
    accel: Option<String>,
}

#[derive(Args, Debug)]
struct MpiArgs {
    /// VMs that the two ranks are in; 0 runs plain processes on this host.
    #[arg(long, default_value_t = 2, value_name = "N")]
    vms: u32,
    /// The MPI: its directory, or `openmpi` or `mpich` on the PATH.
    #[arg(long, value_name = "DIR|NAME")]
    mpi: Option<String>,
    /// Fewer sizes and rounds: under a minute natively.
    #[arg(long)]
    quick: bool,
    /// Also write the measurements to FILE as a JSON array.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// How many times each subject is launched.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Accelerator of the VMs: auto, kvm or tcg.
    #[arg(long, value_name = "ACCEL")]
    accel: Option<String>,
    /// Further argument for `isthmus run`, the same for all that runs in VMs; may be repeated.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    run_arg: Vec<String>,
}

/// Runs what was asked for and returns the exit status.
pub fn main(args: &BenchArgs) -> i32 {
    let done = match &args.what {
        What::Mpi(args) => bench_mpi(args),
        What::Lane(args) => bench_lane(args),
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("isthmus: {}", error.chain());
            if matches!(error, Error::Usage(_)) { ExitCode::USAGE } else { ExitCode::FAILURE }
        }
    }
}

fn bench_lane(args: &LaneArgs) -> Result<()> {
    if args.vms == 1 || args.vms > 2 {
        return Err(Error::Usage(format!("--vms {}: the two processes are in 2 VMs, or in 0", args.vms)));
    }
    let plan = lane::Plan {
        vms: args.vms,
        mpi: args.mpi.clone(),
        reps: args.rounds.unwrap_or(if args.quick { QUICK_ROUNDS } else { ROUNDS }),
        quick: args.quick,
        accel: args.accel.clone(),
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
    let first = records.first().ok_or_else(|| Error::Lane { what: "find any block in the output".into() })?;
    println!();
    println!(
        "2 processes ({}, {} VMs), medians of {}; load before: {}",
        first.accel,
        first.vms,
        first.reps,
        first.load.map_or_else(|| "unknown".into(), |load| format!("{load:.2}"))
    );
    println!("line: half a round of one bare cache line, timed just before in the same processes.");
    println!();
    println!(
        "{:<10} {:>9} {:>12} {:>10} {:>12}  path",
        "benchmark", "bytes", "median", "line us", "x bare line"
    );
    for record in &records {
        let (value, unit) = table::amount(record.value, &record.metric);
        println!(
            "{:<10} {:>9} {:>12} {:>10.3} {:>12}  {}",
            record.benchmark,
            record.bytes.unwrap_or(0),
            format!("{value} {unit}"),
            record.line_us.unwrap_or(0.0),
            record.ratio.map_or_else(|| "-".into(), |r| format!("{r:.2}")),
            record.path.as_deref().unwrap_or("unknown"),
        );
    }
    if let Some(file) = &args.json {
        record::write(file, &records)?;
        println!("written to {}", file.display());
    }
    Ok(())
}

fn bench_mpi(args: &MpiArgs) -> Result<()> {
    if args.vms == 1 || args.vms > 2 {
        return Err(Error::Usage(format!("--vms {}: the two ranks are in 2 VMs, or in 0", args.vms)));
    }
    let mut blocks = vec![Block::Latency(8), Block::Latency(1024)];
    if !args.quick {
        blocks.push(Block::Latency(65536));
    }
    blocks.extend([Block::PingPong(1 << 20), Block::Window(1 << 20, 8), Block::Rate(8, 64)]);
    let mut run_args = args.run_arg.clone();
    if let Some(accel) = &args.accel {
        run_args.extend(["--accel".into(), accel.clone()]);
    }
    let plan = mpi::Plan {
        vms: args.vms,
        mpi: args.mpi.clone(),
        rounds: args.rounds.unwrap_or(if args.quick { QUICK_ROUNDS } else { ROUNDS }),
        reps: if args.quick { 1 } else { 3 },
        budget_ms: 100,
        blocks,
        run_args,
    };
    let done = mpi::run(&plan, &mut |what| eprintln!("{what}"))?;
    let first = &done.records[0];
    let place = match args.vms {
        0 => "as plain processes".into(),
        vms => format!("in {vms} VMs ({})", first.accel),
    };
    println!();
    println!(
        "{}, 2 ranks {place}, medians of {} rounds; load before: {}",
        first.mpi.as_deref().unwrap_or("MPI"),
        plan.rounds,
        first.load.map_or_else(|| "unknown".into(), |load| format!("{load:.2}"))
    );
    println!(
        "In brackets the way that counters prove. Ratios are medians over rounds, not quotients of the columns."
    );
    println!();
    print!("{}", table::render(&done.records));
    println!();
    if let Some(lines) = table::lines(&done.records) {
        println!("{lines}");
    }
    for (subject, line) in &done.lines {
        println!("{subject}: {line}");
    }
    if done.lines.iter().filter(|(subject, _)| crate::subject::is_tcp(subject)).count() > 1 {
        println!("tcp is, row by row, the better of these two.");
    }
    for what in &done.left_out {
        println!("left out: {what}");
    }
    if let Some(file) = &args.json {
        record::write(file, &done.records)?;
        println!("written to {}", file.display());
    }
    Ok(())
}
