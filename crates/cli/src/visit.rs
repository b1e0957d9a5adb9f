//! `isthmus exec` and `isthmus shell`.

use std::ffi::OsString;

use isthmus_run::visit::{self, Visit};
use isthmus_run::{Error, runs};

/// Run a command in a VM of a job that runs
///
/// The command runs beside the job, as you, in the job's working directory and with its environment. Standard input,
/// output and error are yours, INT, TERM, HUP, QUIT, USR1 and USR2 are passed on (the second INT, TERM or HUP kills),
/// and whatever the command started ends with it.
///
///     isthmus exec vm0 -- ps aux
///     isthmus exec -t vm1 -- top
///
/// Exit status: the command's own, 128+N where signal N killed it; 2 a mistake on the command line, 125 isthmus
/// itself failed or the run has ended, 126 the command cannot be run, 127 there is no such command.
#[derive(clap::Args)]
#[command(verbatim_doc_comment, override_usage = "isthmus exec [OPTIONS] VM -- COMMAND...")]
pub(crate) struct Exec {
    /// Which run, where several have a VM of that name: the process number of `isthmus run`, or its directory
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// Give the command a terminal, in place of the one that is its standard input
    #[arg(short = 't', long)]
    tty: bool,
    /// The VM: vm0, vm1 and so on
    #[arg(value_name = "VM")]
    vm: Option<String>,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Open a shell in a VM of a job that runs
///
/// Your $SHELL, as `isthmus exec -t VM -- $SHELL` runs it; without a terminal it reads its commands from standard input.
/// The VM need not be named where there is only one.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Shell {
    /// Which run, where several have a VM of that name: the process number of `isthmus run`, or its directory
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// The VM: vm0, vm1 and so on
    #[arg(value_name = "VM")]
    vm: Option<String>,
}

impl Exec {
    pub(crate) fn run(self) -> i32 {
        let Self { run, tty, vm, command } = self;
        if command.is_empty() {
            // First, an error that lists the VMs: it is of more use than that no command was given.
            let found = runs::find(run.as_deref(), vm.as_deref());
            return told(found.and_then(|(_, vm)| {
                Err(Error::Usage(format!("no command given for {vm}: isthmus exec {vm} -- COMMAND")))
            }));
        }
        go(&Visit { run, vm, command, terminal: tty })
    }
}

impl Shell {
    pub(crate) fn run(self) -> i32 {
        let Self { run, vm } = self;
        go(&Visit { run, vm, command: Vec::new(), terminal: isthmus_run::session::window().is_some() })
    }
}

fn go(visit: &Visit) -> i32 {
    told(visit::run(visit))
}

fn told(outcome: isthmus_run::Result<i32>) -> i32 {
    outcome.unwrap_or_else(|e| {
        isthmus_region::tell!("isthmus: {}", e.line());
        e.exit_code()
    })
}
