//! What a check has found, and the report.

use std::fmt::Write;

use serde::Serialize;

use crate::Role;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// All is well.
    Fine,
    /// Something could be better, or matters in some cases only.
    Hint,
    /// It works, but slower than it could.
    Slow,
    /// Something does not work at all.
    Stops,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Hint => "hint",
            Self::Slow => "slow",
            Self::Stops => "STOPS",
        }
    }
}

/// The outcome of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was checked.
    pub check: &'static str,
    /// How bad it is.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    /// All is well.
    pub fn fine(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, level: Level::Fine, found: found.into(), fix: None }
    }

    /// Something is not well, and this helps.
    pub fn bad(check: &'static str, level: Level, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, level, found: found.into(), fix: Some(fix.into()) }
    }
}

/// What was checked.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum About {
    /// A machine.
    Machine {
        /// What it is for isthmus.
        role: Role,
    },
    /// A program.
    Program {
        /// As the user names it.
        program: String,
    },
}

/// The outcome of all checks.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What was checked.
    #[serde(flatten)]
    pub about: About,
    /// The worst level.
    pub worst: Level,
    /// The outcomes, the worst first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Sorts findings into a report.
    pub fn new(about: About, mut findings: Vec<Finding>) -> Self {
        findings.sort_by_key(|f| std::cmp::Reverse(f.level));
        let worst = findings.first().map_or(Level::Fine, |f| f.level);
        Self { about, worst, findings }
    }

    /// 0 all is well, 1 something is slow, 2 something stops.
    pub fn exit_status(&self) -> i32 {
        match self.worst {
            Level::Fine | Level::Hint => 0,
            Level::Slow => 1,
            Level::Stops => 2,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let width = self.findings.iter().map(|f| f.check.len()).max().unwrap_or(0);
        for Finding { check, level, found, fix } in &self.findings {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{:<5}  {check:<width$}  {found}", level.name());
            if let Some(fix) = fix {
                let _ = writeln!(out, "{:<5}  {:<width$}  -> {fix}", "", "");
            }
        }
        let count = |level| self.findings.iter().filter(|f| f.level == level).count();
        let some = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let (stops, hints) = (some(count(Level::Stops), "thing"), some(count(Level::Hint), "hint"));
        let (slow, fine) = (count(Level::Slow), count(Level::Fine));
        let _ = match &self.about {
            About::Machine { role } => {
                let place = if *role == Role::Host { "as a host" } else { "as a guest" };
                writeln!(
                    out,
                    "\nthis machine {place}: {stops} would stop isthmus, {slow} slow it, {hints}, {fine} fine"
                )
            }
            About::Program { program } => writeln!(
                out,
                "\n{program}: {stops} would keep its System V IPC from a region, {hints}, {fine} fine"
            ),
        };
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_comes_first_and_decides_the_status() {
        let fine = || Finding::fine("a", "x");
        let bad = |level| Finding::bad("b", level, "y", "do z");
        let host = || About::Machine { role: Role::Host };
        let status = |list: Vec<Finding>| Report::new(host(), list).exit_status();
        assert_eq!(status(vec![fine()]), 0);
        assert_eq!(status(vec![fine(), bad(Level::Hint)]), 0);
        assert_eq!(status(vec![bad(Level::Slow), fine()]), 1);
        let guest = About::Machine { role: Role::Guest };
        let report = Report::new(guest, vec![fine(), bad(Level::Slow), bad(Level::Stops)]);
        assert_eq!(report.exit_status(), 2);
        let text = report.text();
        assert!(text.starts_with("STOPS  b  y\n          -> do z\nslow "), "{text}");
        assert!(text.ends_with("as a guest: 1 thing would stop isthmus, 1 slow it, 0 hints, 1 fine\n"));
        let program = Report::new(About::Program { program: "./a".into() }, vec![fine()]);
        assert!(
            program
                .text()
                .ends_with("./a: 0 things would keep its System V IPC from a region, 0 hints, 1 fine\n")
        );
        let keys = serde_json::to_value((&report, &program)).unwrap();
        assert_eq!((&keys[0]["role"], &keys[1]["program"]), (&"guest".into(), &"./a".into()));
    }
}
