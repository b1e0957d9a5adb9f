//! `isthmus region check` and `isthmus region dump`.

use std::path::PathBuf;

use isthmus_inspect::target::Target;
use isthmus_inspect::{Result, dump};

use crate::report;
use crate::watch::{Which, print, print_json, status};

/// Check a region, or keep a copy of one
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Check(Check),
    Dump(Dump),
}

/// Check a region and name what is wrong with it
///
/// FILE is a dump, the socket of a service, or a descriptor of a region's memory (/proc/PID/fd/N); without one the
/// service is found as `isthmus ps` finds it. Each fault is a line: where it is, the field as docs/region-format.md names
/// it, its offset, what was found and what would be right. A region at work is looked at several times, and only what
/// stays wrong is told.
///
/// Exit status: 0 nothing is wrong, 1 something is, 2 it cannot be checked.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
struct Check {
    #[command(flatten)]
    which: Which,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// A dump, a socket, or a descriptor of a region's memory
    #[arg(value_name = "FILE", conflicts_with_all = ["socket", "run"])]
    file: Option<PathBuf>,
}

/// Copy a region's memory into a file
///
/// The file has the region's size, with holes where there is nothing, and only its owner may read it: messages may be in
/// it. Members go on writing while it is made. It is there once it is whole; until then it is FILE.PID.part, which an error,
/// or a signal such as Ctrl-C, removes.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
struct Dump {
    #[command(flatten)]
    which: Which,
    /// Replace FILE if it is there
    #[arg(long)]
    force: bool,
    /// The file to be made
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// The region cannot be checked.
const UNCHECKED: i32 = 2;

impl Args {
    pub(crate) fn run(self) -> i32 {
        match self.command {
            Command::Check(check) => check.run().unwrap_or_else(|e| {
                report::status(Err(e));
                UNCHECKED
            }),
            Command::Dump(dump) => status(dump.run()),
        }
    }
}

impl Check {
    fn run(self) -> Result<i32> {
        let target = match &self.file {
            Some(file) => Target::file(file)?,
            None => self.which.find()?,
        };
        let found = target.check()?;
        let (faults, more) = (&found.faults.list, found.faults.more);
        if self.json {
            print_json(&serde_json::json!({"region": target.name, "faults": faults, "more": more}));
        } else {
            for fault in faults {
                print(&format!("{fault}\n"));
            }
            // By the names that the peer table has for them.
            for member in found.survey.iter().flat_map(|survey| &survey.members) {
                let its = format!("peer {}", member.index);
                let is_its = |place: &str| place == its || place.starts_with(&format!("{its},"));
                if faults.iter().any(|fault| is_its(&fault.place)) {
                    print(&format!("{its} is '{}'\n", member.name));
                }
            }
            let summary = match (&found.survey, faults.len() as u64 + more) {
                (Some(survey), 0) => {
                    let endpoints: usize = survey.members.iter().map(|m| m.endpoints.len()).sum();
                    let lanes: usize = survey.members.iter().map(|m| m.lanes()).sum();
                    let members = survey.members.len();
                    format!("sound: {members} members, {endpoints} endpoints, {lanes} lanes")
                }
                (_, count) => {
                    let faults = if count == 1 { "fault" } else { "faults" };
                    format!(
                        "{count} {faults}{}",
                        if more > 0 { ", of which the first are shown" } else { "" }
                    )
                }
            };
            print(&format!("{}: {summary}\n", target.name));
        }
        Ok(i32::from(!found.is_sound()))
    }
}

impl Dump {
    fn run(self) -> Result<()> {
        let target = self.which.find()?;
        let written = dump::write(&target.reader, &target.name, &self.file, self.force)?;
        isthmus_region::say!(
            "{}: {} bytes, {} of them not holes",
            self.file.display(),
            written.bytes,
            written.data
        );
        if !written.consistent {
            isthmus_region::tell!(
                "isthmus: members came and went all the time; tables of the copy may not be of one moment"
            );
        }
        Ok(())
    }
}
