//! Launches of subjects: each by itself, or several in turn in the same VMs.

use std::fs;
use std::path::Path;
use std::time::Duration;

use isthmus_run::mpi::{Flavour, Mpi};
use serde::Deserialize;

use super::{Measured, Plan, Round};
use crate::error::{Error, Result};
use crate::placement::{self, Search};
use crate::program::{self, Output};
use crate::subject::{Setting, Subject};
use crate::turns;

/// How long one launch may take, boot included.
const LIMIT_NATIVE: Duration = Duration::from_secs(120);
const LIMIT_VMS: Duration = Duration::from_secs(150);

/// What `isthmus run --stats` leaves: only what is used here.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct RunStats {
    pub(super) accel: Option<String>,
    pub(super) boot_s: Option<f64>,
}

/// Which subjects are launched together: those that can take turns in the same VMs; with `is_apart` none. Each round begins with another subject. So
/// do turns, and once each has been the first, the order is reversed.
pub(super) fn groups(
    measured: &[Measured],
    (is_left_out, is_apart): (impl Fn(usize) -> bool, bool),
    setting: &Setting,
    round: u32,
) -> Vec<Vec<usize>> {
    let round = round as usize;
    // Intel MPI's mpirun is a script that finds the rest of it beside itself.
    let may_take_turns = !is_apart && setting.mpi.flavour != Flavour::Intel;
    let takes_turns = |at: usize| may_take_turns && measured[at].subject.takes_turns();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for at in (0..measured.len()).filter(|at| !is_left_out(*at)) {
        match groups.iter_mut().find(|group| takes_turns(at) && takes_turns(group[0])) {
            Some(group) => group.push(at),
            None => groups.push(vec![at]),
        }
    }
    for group in &mut groups {
        let count = group.len();
        if (round / count) % 2 == 1 {
            group.reverse();
        }
        group.rotate_left(round % count);
    }
    let count = groups.len().max(1);
    groups.rotate_left(round % count);
    groups
}

/// What all launches have in common.
pub(super) struct Launches<'a> {
    pub(super) setting: &'a Setting,
    pub(super) plan: &'a Plan,
    pub(super) program: &'a Path,
    pub(super) args: &'a [String],
    pub(super) scratch: &'a Path,
}

impl Launches<'_> {
    /// One round of each of `subjects`, which take turns if there are several.
    pub(super) fn of(&self, subjects: &[&Subject], search: &Search) -> Result<Vec<Round>> {
        let mut rounds = match subjects {
            [subject] => {
                let before = search.line();
                let mut round = placement::kept_to(search.kept(), || self.single(subject))?;
                round.lines = before.zip(search.line()).map(|(before, after)| [before, after]);
                vec![round]
            }
            _ => placement::kept_to(search.kept(), || self.in_turn(subjects, search))?,
        };
        if self.plan.vms > 0 && search.is_sorting() {
            rounds.iter_mut().for_each(Round::take_hosts_lines);
        }
        Ok(rounds)
    }

    fn single(&self, subject: &Subject) -> Result<Round> {
        let limit = if subject.vms == 0 { LIMIT_NATIVE } else { LIMIT_VMS };
        let (text, run) = self.run(self.setting, subject, subject.name, limit)?;
        Ok(Round { output: self.read(subject.name, &text)?, run, lines: None })
    }

    fn in_turn(&self, subjects: &[&Subject], search: &Search) -> Result<Vec<Round>> {
        let names: Vec<&str> = subjects.iter().map(|subject| subject.name).collect();
        let name = names.join(", ");
        let bad = |what: String| Error::Output { subject: name.clone(), what };
        let Setting { mpi, isthmus, .. } = self.setting;
        let line = search.pair.filter(|_| search.is_sorting());
        let launcher = turns::launcher(self.scratch, mpi, isthmus, line, subjects)?;
        let setting = Setting { mpi: Mpi { launcher, ..mpi.clone() }, ..self.setting.clone() };
        let together = Subject::together(subjects).ok_or_else(|| bad("no subject".into()))?;
        let limit = LIMIT_VMS * u32::try_from(subjects.len()).unwrap_or(1);
        let (text, run) = self.run(&setting, &together, &name, limit)?;
        let turns = turns::read(&text, &names).map_err(bad)?;
        let mut rounds = Vec::new();
        for (subject, turn) in subjects.iter().zip(&turns) {
            // There was one boot.
            let boot_s = run.boot_s.filter(|_| subject.is_isthmus() && !subject.allocates());
            let run = RunStats { boot_s, ..run.clone() };
            rounds.push(Round { output: self.read(subject.name, turn.text)?, run, lines: turn.lines });
        }
        Ok(rounds)
    }

    /// Launches a subject to its end; gives what it printed, and the run's statistics.
    fn run(
        &self,
        setting: &Setting,
        subject: &Subject,
        name: &str,
        limit: Duration,
    ) -> Result<(String, RunStats)> {
        let stats = self.scratch.join("stats.json");
        // Another run's figures must not be taken for this one's.
        let _ = fs::remove_file(&stats);
        let text = subject.launch(setting, self.program, self.args, &stats).run(name, limit)?;
        if !subject.by_run() {
            return Ok((text, RunStats::default()));
        }
        let bad = |error: serde_json::Error| Error::Output {
            subject: name.into(),
            what: format!("its statistics: {error}"),
        };
        let said = fs::read_to_string(&stats).map_err(Error::io("read the statistics of isthmus run"))?;
        Ok((text, serde_json::from_str(&said).map_err(bad)?))
    }

    fn read(&self, name: &str, text: &str) -> Result<Output> {
        let bad = |what: String| Error::Output { subject: name.into(), what };
        program::read(text, self.plan.blocks.len() * self.plan.reps as usize).map_err(bad)
    }
}
