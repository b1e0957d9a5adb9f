//! The one binary, `isthmus`: flags, output, exit status; no work of its own.
//!
//! The same file is also the first process of a VM, the guardian and the job of a run, and the remote shell that an
//! MPI's launcher starts in place of ssh. Their names or first arguments are checked before any flag is
//! parsed; they are not commands for people, so the help does not list them.

#![forbid(unsafe_code)]
// Flags are documented for a terminal: indented lines are command lines, and not Rust.
#![allow(rustdoc::invalid_rust_codeblocks)]

mod completions;
mod doctor;
mod env;
mod guest;
mod help;
mod hidden;
mod host;
mod ipcs;
mod metrics;
mod region;
mod region_args;
mod report;
mod run;
mod size;
mod user;
mod visit;
mod vm;
mod watch;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

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
    Exec(visit::Exec),
    Shell(visit::Shell),
    Env(env::Args),
    Bench(isthmus_bench::cli::BenchArgs),
    Host(host::Args),
    Vm(vm::Args),
    Guest(guest::Args),
    Completions(completions::Args),
    Ps(watch::Ps),
    Top(watch::Top),
    Explain(watch::Explain),
    Ipcs(ipcs::Ipcs),
    Ipcrm(ipcs::Ipcrm),
    Ipcshare(ipcs::Ipcshare),
    Region(region::Args),
    Doctor(doctor::Args),
}

/// All commands and options, with help that fits any terminal.
fn command() -> clap::Command {
    with_negative(help::reflow(Cli::command()))
}

/// Takes a negative number after an option for its value, which says what is wrong with it.
fn with_negative(command: clap::Command) -> clap::Command {
    let option = |arg: clap::Arg| {
        let takes = arg.get_action().takes_values() && !arg.is_positional();
        arg.allow_negative_numbers(takes)
    };
    command.mut_args(option).mut_subcommands(with_negative)
}

/// The command line; a mistake is reported as all errors are, with "isthmus:", and is status 2.
fn parse() -> Cli {
    let mut command = command();
    let matches = command.try_get_matches_from_mut(std::env::args_os());
    let parsed = matches.and_then(|found| Cli::from_arg_matches(&found).map_err(|e| e.format(&mut command)));
    parsed.unwrap_or_else(|mut e| {
        report::drop_far_suggestion(&mut e);
        // Help and version are not mistakes.
        if !e.use_stderr() || e.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            e.exit();
        }
        isthmus_region::print::to_stderr(&report::mistake(&e));
        std::process::exit(report::USAGE)
    })
}

fn main() {
    // In a VM that isthmus booted, this program is the first process.
    if isthmus_guest::boot::is_init() {
        isthmus_guest::init_main()
    }
    // A write past a limit on file sizes is then an error with a text, and not a silent death. Programs that are executed get
    // the default back.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, std::sync::Arc::default());
    let status = hidden::dispatch().unwrap_or_else(|| match parse().command {
        Command::Run(args) => args.run(),
        Command::Exec(args) => args.run(),
        Command::Shell(args) => args.run(),
        Command::Env(args) => args.run(),
        Command::Bench(args) => isthmus_bench::cli::main(&args),
        Command::Host(args) => args.run(),
        Command::Vm(args) => args.run(),
        Command::Guest(args) => args.run(),
        Command::Completions(args) => args.run(),
        Command::Ps(args) => args.run(),
        Command::Top(args) => args.run(),
        Command::Explain(args) => args.run(),
        Command::Ipcs(args) => args.run(),
        Command::Ipcrm(args) => args.run(),
        Command::Ipcshare(args) => args.run(),
        Command::Region(args) => args.run(),
        Command::Doctor(args) => args.run(),
    });
    std::process::exit(status);
}
