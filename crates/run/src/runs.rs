//! The runs of a user on this machine: their descriptions, and finding the one that a command means.
//!
//! A run that has VMs writes [`FILE`] into its directory once their ports are served. A directory in which no switch
//! accepts connections was left by a run that was killed or kept, and is ignored.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::rsh::RUN_VARIABLE;
use crate::rundir;
use crate::switch::AGENT_SOCKET;

/// The file in a run's directory that says what the run is.
pub const FILE: &str = "run.json";
/// How long a command line may be that is shown.
const MAX_SHOWN: usize = 60;

/// What a run says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The process of `isthmus run`.
    pub pid: u32,
    /// The host names of its VMs.
    pub vms: Vec<String>,
    /// Its working directory.
    pub directory: PathBuf,
    /// What it runs, for people.
    pub command: String,
}

/// A run that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its directory.
    pub dir: PathBuf,
    /// What it says of itself.
    pub is: Description,
}

impl Description {
    /// Writes this into run directory `dir`, whole or not at all.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        let new = dir.join(format!("{FILE}.new"));
        fs::write(&new, serde_json::to_vec(self)?)?;
        fs::rename(new, dir.join(FILE))
    }
}

impl Run {
    /// The run in `dir`, if there is one and it is `owner`'s.
    fn in_dir(dir: &Path, owner: u32) -> Option<Self> {
        let own = fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.uid() == owner);
        if !own || UnixStream::connect(dir.join(AGENT_SOCKET)).is_err() {
            return None;
        }
        let is = serde_json::from_slice(&fs::read(dir.join(FILE)).ok()?).ok()?;
        Some(Self { dir: dir.to_owned(), is })
    }

    /// One line for people.
    fn line(&self) -> String {
        let mut command: String = self.is.command.chars().take(MAX_SHOWN).collect();
        if command.len() < self.is.command.len() {
            command.push_str("...");
        }
        format!(
            "run {} (`{command}` in {}): {}",
            self.is.pid,
            self.is.directory.display(),
            self.is.vms.join(", ")
        )
    }
}

/// The user's own runs on this machine, the oldest first.
pub fn all() -> Vec<Run> {
    let me = rustix::process::geteuid().as_raw();
    let mut places = rundir::places();
    places.sort();
    places.dedup();
    let inside = places.iter().filter_map(|place| fs::read_dir(place).ok()).flatten().flatten();
    let named =
        inside.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(rundir::PREFIX.as_bytes()));
    let mut runs: Vec<Run> = named.filter_map(|entry| Run::in_dir(&entry.path(), me)).collect();
    let age = |run: &Run| fs::metadata(run.dir.join(FILE)).and_then(|meta| meta.modified()).ok();
    runs.sort_by_cached_key(|run| (age(run), run.is.pid));
    runs
}

/// The run that `named` means (its process number or its directory), or else one with a VM called `vm`; and that VM, or
/// the only one that there is.
///
/// # Errors
/// [`Error::Usage`], with the runs that there are.
pub fn find(named: Option<&str>, vm: Option<&str>) -> Result<(Run, String)> {
    let inside = std::env::var_os(RUN_VARIABLE).map(PathBuf::from);
    match named {
        Some(dir) if dir.contains('/') => {
            // Any owner will do: the user named the directory, and needs permission to enter it.
            let owner = fs::metadata(dir).map(|meta| meta.uid()).unwrap_or_default();
            let run = Run::in_dir(Path::new(dir), owner).ok_or_else(|| {
                Error::Usage(format!("--run {dir}: no run with VMs is at work in that directory"))
            })?;
            choose(&[run], None, vm)
        }
        Some(number) => choose(&all(), Some(number), vm),
        None => {
            let runs = all();
            // A process of a job means its own run.
            let own = runs.iter().find(|run| inside.as_deref() == Some(&run.dir)).cloned();
            choose(&own.map_or(runs, |run| vec![run]), None, vm)
        }
    }
}

fn choose(runs: &[Run], named: Option<&str>, vm: Option<&str>) -> Result<(Run, String)> {
    let usage = |text: String| Err(Error::Usage(text));
    let list = |runs: &[&Run]| runs.iter().map(|run| format!("\n  {}", run.line())).collect::<String>();
    if runs.is_empty() {
        return usage(
            "none of your `isthmus run` has VMs at the moment; VMs of `isthmus host` are reached by your own means, as ssh"
                .into(),
        );
    }
    let everything: Vec<&Run> = runs.iter().collect();
    let meant: Vec<&Run> = match named {
        None => everything.clone(),
        Some(number) => runs.iter().filter(|run| number == run.is.pid.to_string()).collect(),
    };
    if meant.is_empty() {
        let named = named.unwrap_or_default();
        return usage(format!("--run {named}: no such run; there are:{}", list(&everything)));
    }
    let fits = |name: &&String| vm.is_none_or(|vm| vm == *name);
    let fitting: Vec<(&Run, &String)> =
        meant.iter().flat_map(|run| run.is.vms.iter().filter(fits).map(|name| (*run, name))).collect();
    match (fitting.as_slice(), vm) {
        ([(run, name)], _) => Ok(((*run).clone(), (*name).clone())),
        (_, None) => usage(format!("which VM? There are:{}", list(&meant))),
        ([], Some(vm)) => usage(format!("no VM is called {vm}; there are:{}", list(&meant))),
        (several, Some(vm)) => {
            let runs: Vec<&Run> = several.iter().map(|(run, _)| *run).collect();
            usage(format!(
                "{} runs have a VM called {vm}; choose one with --run NUMBER:{}",
                runs.len(),
                list(&runs)
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn run(pid: u32, vms: &[&str]) -> Run {
        let vms = vms.iter().map(|vm| (*vm).to_owned()).collect();
        let is = Description { pid, vms, directory: "/home/ann".into(), command: "./a".into() };
        Run { dir: format!("/tmp/isthmus-{pid}").into(), is }
    }

    fn refused(runs: &[Run], named: Option<&str>, vm: &str) -> String {
        choose(runs, named, Some(vm)).unwrap_err().to_string()
    }

    #[test]
    fn a_run_that_fits_is_taken_and_others_are_listed() {
        let runs = [run(10, &["vm0"]), run(20, &["vm0", "vm1"])];
        assert_eq!(choose(&runs, None, Some("vm1")).unwrap(), (runs[1].clone(), "vm1".into()));
        assert_eq!(choose(&runs, Some("10"), None).unwrap(), (runs[0].clone(), "vm0".into()));
        assert!(choose(&runs, None, None).unwrap_err().to_string().contains("which VM?"));
        let two = refused(&runs, None, "vm0");
        assert!(
            two.contains("--run NUMBER") && two.contains("run 20 (`./a` in /home/ann): vm0, vm1"),
            "{two}"
        );
        let none = refused(&runs, Some("10"), "vm1");
        assert!(none.contains("no VM is called vm1") && none.contains("run 10") && !none.contains("run 20"));
        assert!(refused(&runs, Some("30"), "vm0").contains("no such run"));
        assert!(refused(&[], None, "vm0").contains("isthmus run"));
    }

    #[test]
    fn the_remains_of_a_run_are_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let me = rustix::process::geteuid().as_raw();
        run(10, &["vm0"]).is.write(dir.path()).unwrap();
        let socket = UnixListener::bind(dir.path().join(AGENT_SOCKET)).unwrap();
        assert_eq!(Run::in_dir(dir.path(), me).unwrap().is, run(10, &["vm0"]).is);
        assert_eq!(Run::in_dir(dir.path(), me + 1), None);
        drop(socket);
        assert_eq!(Run::in_dir(dir.path(), me), None);
    }
}
