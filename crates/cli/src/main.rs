//! The one binary, `isthmus`: flags, output, exit status; no work of its own.
//!
//! The same file is also the first process of a VM, the guardian and the job of a run, and the agent that an
//! MPI's launcher starts in place of ssh. Those are told apart by name or first argument before any flag is
//! parsed; they are not commands for people, so the help does not know them.

#![forbid(unsafe_code)]

mod env;
mod guest;
mod hidden;
mod host;
mod report;
mod run;
mod size;
mod user;

use clap::{Parser, Subcommand};

/// MPI and shared memory across virtual machines of one host.
///
/// isthmus joins VMs (and plain processes) through memory that they share. MPI programs, libraries and guest
/// kernels stay as they are.
///
/// The first thing to try:
///
///     isthmus run --vms 2 -n 2 -- ./prog args
#[derive(Parser)]
#[command(name = "isthmus", version, max_term_width = 100, verbatim_doc_comment)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
    Env(env::Args),
    Bench(isthmus_bench::cli::BenchArgs),
    Host(host::Args),
    Guest(guest::Args),
}

fn main() {
    // In a VM that we booted, this program is the first process.
    if isthmus_guest::boot::is_init() {
        isthmus_guest::init_main()
    }
    let status = hidden::dispatch().unwrap_or_else(|| match Cli::parse().command {
        Command::Run(args) => args.run(),
        Command::Env(args) => args.run(),
        Command::Bench(args) => isthmus_bench::cli::main(&args),
        Command::Host(args) => args.run(),
        Command::Guest(args) => args.run(),
    });
    std::process::exit(status);
}
