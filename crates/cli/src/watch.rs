//! `isthmus ps`, `isthmus top` and `isthmus explain`.

use std::path::PathBuf;
use std::time::Duration;

use isthmus_inspect::target::{Target, Wanted};
use isthmus_inspect::{Result, explain, ps, top};

use crate::report;

/// Which service is meant.
#[derive(clap::Args)]
pub(crate) struct Which {
    /// The service's socket; by default that of ISTHMUS_SOCKET, or of the one service or run of yours that is at work
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Which run, where there are several: the process number of `isthmus run`, or its directory
    #[arg(long, value_name = "RUN", conflicts_with = "socket")]
    run: Option<String>,
}

impl Which {
    pub(crate) fn find(self) -> Result<Target> {
        Target::find(&Wanted { socket: self.socket, run: self.run })
    }
}

/// Show who is in a region and what went through it
///
/// Members (the host and its VMs), their attached processes, endpoints and lanes, with the messages and bytes that each
/// has sent and received, and how often it stalled (a post found no room), slept and woke others; of a lane, what went from
/// the one endpoint to the other. Works on the host for all members, also while a job runs under `isthmus run`, and in a VM
/// through its agent.
///
/// A process tells its counters now and then while it communicates, and all of them when it goes. isthmus(1) explains each
/// column; K, M and G of bytes are multiples of 1024, k, M and G of other numbers multiples of 1000.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Ps {
    #[command(flatten)]
    which: Which,
    /// Every endpoint and lane, however many there are
    #[arg(long)]
    all: bool,
    /// All of it as JSON
    #[arg(long)]
    json: bool,
}

/// Watch a region at work: what `isthmus ps` counts, per second
///
/// Members, processes, and the lanes with most traffic.
///
/// Ends with q or Ctrl-C, and when the service ends. Where standard output is not a terminal, each table is printed below
/// the one before.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Top {
    #[command(flatten)]
    which: Which,
    /// Seconds from one table to the next
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    /// Tables to show before it ends
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// Say how messages of each pair of endpoints go, and why
///
/// Path, lane, how the receiver learns of a message, the protocols by length, and whether RMA and atomic operations go
/// directly or by messages, each with the reason why it was chosen.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Explain {
    #[command(flatten)]
    which: Which,
    /// Pairs that have no lane, too
    #[arg(long)]
    all: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.05..=86400.0).contains(&seconds) => Ok(seconds),
        _ => Err("from 0.05 to 86400 seconds".into()),
    }
}

/// The exit status of a command that inspects a region, after its error was printed.
pub(crate) fn status(outcome: Result<()>) -> i32 {
    let mistake = outcome.as_ref().is_err_and(isthmus_inspect::Error::is_mistake);
    let status = report::status(outcome);
    if mistake { report::USAGE } else { status }
}

/// Prints what was asked for.
pub(crate) fn print(text: &str) {
    isthmus_region::print::to_stdout(text);
}

/// Prints a value on one line.
pub(crate) fn print_json(value: &serde_json::Value) {
    print(&format!("{value}\n"));
}

impl Ps {
    pub(crate) fn run(self) -> i32 {
        status(self.show())
    }

    fn show(self) -> Result<()> {
        let target = self.which.find()?;
        let (survey, faults) = target.survey()?;
        if self.json {
            print_json(&ps::json(&target, &survey, &faults));
        } else {
            print(&ps::text(&target, &survey, &faults, self.all));
        }
        Ok(())
    }
}

impl Top {
    pub(crate) fn run(self) -> i32 {
        status(self.show())
    }

    fn show(self) -> Result<()> {
        let target = self.which.find()?;
        let options = top::Options { interval: Duration::from_secs_f64(self.interval), count: self.count };
        if let Some(why) = top::run(&target, options)? {
            isthmus_region::tell!("isthmus: {why}");
        }
        Ok(())
    }
}

impl Explain {
    pub(crate) fn run(self) -> i32 {
        status(self.show())
    }

    fn show(self) -> Result<()> {
        let target = self.which.find()?;
        let (survey, faults) = target.survey()?;
        if self.json {
            print_json(&explain::json(&survey, self.all));
        } else {
            print(&explain::text(&survey, self.all));
            isthmus_region::print::to_stderr(&ps::note(&faults));
        }
        Ok(())
    }
}
