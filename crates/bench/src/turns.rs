//! Subjects that take turns in the same VMs: one boot, and in it a launch of the MPI for each subject, one after the other.
//!
//! That saves a boot for each subject but the first, and what differs from boot to boot is in none of the ratios. `isthmus run` starts one launcher,
//! and tells it everything through its environment. So that launcher is this program, which starts the MPI's own once for each subject, with what that
//! subject has in its environment, and times the host's line around each. Before the first turn the blocks run once, shortly, and do not count: what is
//! cold after a boot would be so for one subject alone.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use isthmus_attach::daemon::not_ignored;
use isthmus_run::leash;
use isthmus_run::libraries::{ALLOC_VARIABLE, PRELOAD_VARIABLE};
use isthmus_run::mpi::{Flavour, Mpi};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::error::{Error, Result};
use crate::job::quoted;
use crate::placement;
use crate::subject::Subject;

/// The hidden subcommand that has the turns.
pub const TURNS_COMMAND: &str = "bench-turns";
/// Begins a line of its own on standard output.
const MARK: &str = "isthmus-bench-turn";
/// How the benchmark's program is told how long to take, and what it is told before the first turn.
const SHORTLY: [(&str, &str); 2] = [("--budget-ms", "1"), ("--reps", "1")];

/// What the launcher that has the turns is told.
#[derive(Debug, Serialize, Deserialize)]
struct Plan {
    /// The MPI's own launcher.
    launcher: PathBuf,
    /// Whether SIGPIPE is ignored in it, as it must be in MPICH's (`isthmus_run::hydra`).
    is_deaf: bool,
    /// The processors whose line is timed.
    line: Option<(usize, usize)>,
    /// What the benchmark's own process loads before other libraries.
    preloaded: Option<Vec<u8>>,
    turns: Vec<Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    name: String,
    /// Whether it has what `isthmus run --alloc` sets.
    allocates: bool,
    env: Vec<(String, String)>,
}

/// What one subject's turn gave.
#[derive(Debug, PartialEq)]
pub struct Turn<'a> {
    /// What its ranks printed.
    pub text: &'a str,
    /// The host's line before and after it, if it was timed.
    pub lines: Option<[f64; 2]>,
}

/// Writes the launcher of `subjects`, in this order, below `dir`, for an MPI; gives its path. `line` is the processors whose line
/// is timed. `isthmus` is this program.
///
/// # Errors
/// [`Error::Io`].
pub fn launcher(
    dir: &Path,
    mpi: &Mpi,
    isthmus: &Path,
    line: Option<(usize, usize)>,
    subjects: &[&Subject],
) -> Result<PathBuf> {
    let turn = |subject: &&Subject| Entry {
        name: subject.name.into(),
        allocates: subject.allocates(),
        env: subject.env().iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
    };
    let plan = Plan {
        launcher: mpi.launcher.clone(),
        is_deaf: mpi.flavour == Flavour::Mpich,
        line,
        preloaded: std::env::var_os(PRELOAD_VARIABLE).map(OsString::into_vec),
        turns: subjects.iter().map(turn).collect(),
    };
    let file = dir.join("turns/plan");
    // By a name that is found whatever the MPI's is.
    let path = dir.join("turns/bin/mpirun");
    let words = [isthmus.as_os_str(), OsStr::new(TURNS_COMMAND), file.as_os_str()];
    let words = words.map(|word| quoted(&word.to_string_lossy()));
    let write = || {
        fs::create_dir_all(dir.join("turns/bin"))?;
        fs::write(&file, serde_json::to_vec(&plan)?)?;
        fs::write(&path, format!("#!/bin/sh\nexec {} \"$@\"\n", words.join(" ")))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
    };
    write().map_err(Error::io(format!("write {}", path.display())))?;
    Ok(path)
}

/// `isthmus bench-turns PLAN ARGS...`, with the arguments of the MPI's launcher. The status is that of the first turn that failed, or 0.
pub fn main(args: &[OsString]) -> i32 {
    let [file, args @ ..] = args else { return 125 };
    let plan = fs::read(file).and_then(|text| Ok(serde_json::from_slice::<Plan>(&text)?));
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("isthmus: cannot read {}: {error}", file.display());
            return 125;
        }
    };
    // The thread that starts a process on a leash must live as long as that may.
    have_turns(&plan, args, |launcher| leash::command_in(&[], launcher, plan.is_deaf))
}

fn have_turns(plan: &Plan, args: &[OsString], command: impl Fn(&Path) -> std::io::Result<Command>) -> i32 {
    if args.iter().any(|arg| arg == "--version") {
        eprintln!("{}: {}", plan.launcher.display(), Command::new(&plan.launcher).args(args).exec());
        return 126;
    }
    let Ok(asked) = Asked::listen() else { return 125 };
    let launch = |entry: &Entry, args: &[OsString]| {
        let Ok(mut command) = command(&plan.launcher) else { return 125 };
        command.args(args).envs(entry.env.iter().map(|(name, value)| (name, value)));
        if !entry.allocates {
            command.env_remove(ALLOC_VARIABLE);
            match &plan.preloaded {
                Some(libraries) => command.env(PRELOAD_VARIABLE, OsStr::from_bytes(libraries)),
                None => command.env_remove(PRELOAD_VARIABLE),
            };
        }
        asked.run(&mut command)
    };
    let mark = |what: &str, entry: &Entry| {
        let line = plan.line.and_then(placement::line).map_or_else(String::new, |line| line.to_string());
        // Apart from what a rank has left of its last line.
        println!("\n{MARK} {what} {} {line}", entry.name);
        let _ = std::io::stdout().flush();
    };
    let first = plan.turns.first().map_or(0, |entry| launch(entry, &shortly(args)));
    if first != 0 {
        return first;
    }
    for entry in &plan.turns {
        mark("begin", entry);
        let status = launch(entry, args);
        if status != 0 {
            return status;
        }
        mark("end", entry);
    }
    0
}

/// The same arguments for blocks that take as little time as they can.
fn shortly(args: &[OsString]) -> Vec<OsString> {
    let mut args = args.to_vec();
    for (option, value) in SHORTLY {
        if let Some(given) = args.iter().position(|arg| arg == option).and_then(|at| args.get_mut(at + 1)) {
            *given = value.into();
        }
    }
    args
}

/// The signal that asks for the end, which the MPI's launcher is to have as well, as it has others that `isthmus run` hands on.
#[derive(Default)]
struct Asked {
    signal: Option<i32>,
    child: Option<Pid>,
}

/// The same, shared with the thread that hears of signals.
struct Shared(Arc<Mutex<Asked>>);

impl Asked {
    fn listen() -> std::io::Result<Shared> {
        let mut signals = Signals::new(not_ignored(&[SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGCONT]))?;
        let shared = Arc::new(Mutex::new(Self::default()));
        let heard = Arc::clone(&shared);
        thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in signals.forever() {
                let mut asked = heard.lock().unwrap_or_else(PoisonError::into_inner);
                if [SIGTERM, SIGINT, SIGHUP].contains(&signal) {
                    asked.signal = Some(signal);
                }
                if let (Some(child), Some(signal)) = (asked.child, Signal::from_named_raw(signal)) {
                    let _ = kill_process(child, signal);
                }
            }
        })?;
        Ok(Shared(shared))
    }
}

impl Shared {
    /// Runs a command to its end, and gives its status as a shell would; not 0 if a signal has asked for the end.
    fn run(&self, command: &mut Command) -> i32 {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut child = {
            let mut asked = lock();
            if let Some(signal) = asked.signal {
                return 128 + signal;
            }
            match command.spawn() {
                Ok(child) => {
                    asked.child = Some(Pid::from_child(&child));
                    child
                }
                Err(error) => {
                    eprintln!("isthmus: cannot start {}: {error}", command.get_program().display());
                    return 126;
                }
            }
        };
        // It keeps its number until nobody signals it any more.
        let over = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while waitid(WaitId::Pid(Pid::from_child(&child)), over).is_err_and(|errno| errno == Errno::INTR) {}
        let signal = {
            let mut asked = lock();
            asked.child = None;
            asked.signal
        };
        let status = child.wait().ok();
        let code = status.and_then(|status| status.code().or(status.signal().map(|signal| 128 + signal)));
        match (code.unwrap_or(125), signal) {
            (0, Some(signal)) => 128 + signal,
            (code, _) => code,
        }
    }
}

/// What each of `subjects` gave, of all that such a launcher printed.
///
/// # Errors
/// What is missing.
pub fn read<'a>(text: &'a str, subjects: &[&str]) -> std::result::Result<Vec<Turn<'a>>, String> {
    let mut at = 0;
    let mut next = |what: &str, name: &str| {
        while let Some(line) = text[at..].split_inclusive('\n').next() {
            let begin = at;
            at += line.len();
            let mut words = line.split_whitespace();
            if [words.next(), words.next(), words.next()] == [Some(MARK), Some(what), Some(name)] {
                return Ok((begin, at, words.next().and_then(|line| line.parse().ok())));
            }
        }
        Err(format!("the turn of {name} did not {what}"))
    };
    let turn = |name: &&str| {
        let (_, from, before): (_, _, Option<f64>) = next("begin", name)?;
        let (to, _, after) = next("end", name)?;
        Ok(Turn { text: &text[from..to], lines: before.zip(after).map(|(before, after)| [before, after]) })
    };
    subjects.iter().map(turn).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::{self, Peers, Setting};
    use std::process::Output;

    /// In the process that a test starts as the launcher that has the turns: where the plan is.
    const PLAN: &str = "ISTHMUS_TEST_PLAN";

    fn mpi(launcher: &Path) -> Mpi {
        Mpi { flavour: Flavour::OpenMpi, version: "5".into(), launcher: launcher.into() }
    }

    fn subjects() -> Vec<Subject> {
        let mpi = mpi(Path::new("/m/bin/mpirun"));
        let setting = Setting {
            isthmus: "/isthmus".into(),
            mpi,
            ranks: 2,
            vms: 2,
            multiple: false,
            run_args: Vec::new(),
            pair: None,
        };
        let peers = Peers { tcp: false, shared: false, one_copy: true, ..Peers::USUAL };
        subject::subjects(&setting, peers)
    }

    fn in_a_process_of_its_own() {
        let plan = std::env::var_os(PLAN).unwrap();
        let args: Vec<OsString> =
            ["-n", "2", "prog", "--reps", "3", "--budget-ms", "100"].map(Into::into).into();
        let plan = serde_json::from_slice(&fs::read(plan).unwrap()).unwrap();
        std::process::exit(have_turns(&plan, &args, |path| Ok(Command::new(path))));
    }

    /// All subjects' turns with a launcher of the MPI's that does `real`, in a process of their own, which runs the test `name`.
    fn turns(name: &str, real: &str, line: Option<(usize, usize)>) -> Output {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mpi run");
        fs::write(&path, format!("#!/bin/sh\n{real}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let all = subjects();
        let all: Vec<&Subject> = all.iter().collect();
        launcher(dir.path(), &mpi(&path), Path::new("/isthmus"), line, &all).unwrap();
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("turns::tests::{name}"), "--nocapture"])
            .env(PLAN, dir.path().join("turns/plan"))
            .env(ALLOC_VARIABLE, "7")
            .env_remove(PRELOAD_VARIABLE)
            .output()
            .unwrap()
    }

    fn text(output: &Output) -> String {
        String::from_utf8(output.stdout.clone()).unwrap()
    }

    #[test]
    fn each_subject_has_its_turn_with_its_own_environment() {
        if std::env::var_os(PLAN).is_some() {
            in_a_process_of_its_own();
        }
        let names: Vec<&str> = subjects().iter().map(|it| it.name).collect();
        assert_eq!(names, ["isthmus", "isthmus-copy", "isthmus-attach", "isthmus-alloc"]);
        let name = "each_subject_has_its_turn_with_its_own_environment";
        let real = "printf '%s,%s,%s,%s,%s' \"$FI_ISTHMUS_LONG\" \"$ISTHMUS_ALLOC\" \"$2\" \"$5\" \"$7\"";
        let pair = <[usize; 2]>::try_from(placement::processors()).ok().map(|[a, b]| (a, b));
        let output = turns(name, real, pair);
        assert_eq!(output.status.code(), Some(0));
        let text = text(&output);
        let turns = read(&text, &names).unwrap();
        let said: Vec<&str> = turns.iter().map(|turn| turn.text.trim()).collect();
        assert_eq!(said, ["auto,,2,3,100", "copy,,2,3,100", "attach,,2,3,100", "auto,7,2,3,100"]);
        assert!(turns.iter().all(|turn| turn.lines.is_some() == pair.is_some()));
        assert!(text.contains("auto,,2,1,1\n"), "once before, shortly: {text}");
    }

    #[test]
    fn a_turn_that_fails_is_the_last() {
        if std::env::var_os(PLAN).is_some() {
            in_a_process_of_its_own();
        }
        let output = turns("a_turn_that_fails_is_the_last", "[ $FI_ISTHMUS_LONG = auto ] || exit 7", None);
        assert_eq!(output.status.code(), Some(7));
        let text = text(&output);
        assert_eq!(read(&text, &["isthmus"]).map(|turns| turns.len()), Ok(1));
        let missing = read(&text, &["isthmus", "isthmus-copy"]);
        assert_eq!(missing, Err("the turn of isthmus-copy did not end".into()));
    }

    #[test]
    fn what_asks_for_the_end_reaches_the_mpis_launcher_and_is_no_success() {
        if std::env::var_os(PLAN).is_some() {
            in_a_process_of_its_own();
        }
        let name = "what_asks_for_the_end_reaches_the_mpis_launcher_and_is_no_success";
        // One that says how it ends, and one that ends as if nothing had been.
        for (real, status) in [
            ("trap 'kill $!; echo told; exit 3' TERM; kill -s TERM $PPID; sleep 10 & wait", 3),
            ("trap 'kill $!; exit 0' HUP; kill -s HUP $PPID; sleep 10 & wait", 129),
        ] {
            let output = turns(name, real, None);
            let text = text(&output);
            assert_eq!(output.status.code(), Some(status), "{real}: {text}");
            assert_eq!(text.contains("told"), status == 3);
            assert!(!text.contains(MARK), "{text}");
        }
    }

    #[test]
    fn nothing_is_started_once_the_end_was_asked_for() {
        let run = |signal| {
            let asked = Shared(Arc::new(Mutex::new(Asked { signal, child: None })));
            asked.run(Command::new("/bin/sh").args(["-c", "exit 7"]))
        };
        assert_eq!((run(None), run(Some(SIGTERM))), (7, 143));
    }

    #[test]
    fn lines_stand_before_and_after_each_turn() {
        let text = "noise\nisthmus-bench-turn begin a 0.1\nA\n\nisthmus-bench-turn end a 0.2\n\
                    isthmus-bench-turn begin ab 0.3\nB\nisthmus-bench-turn end ab \n";
        let [a, b] = &read(text, &["a", "ab"]).unwrap()[..] else { panic!("two turns") };
        assert_eq!((a.text.trim(), a.lines), ("A", Some([0.1, 0.2])));
        assert_eq!((b.text.trim(), b.lines), ("B", None), "one that could not be timed");
        assert!(read(text, &["b"]).is_err());
    }

    #[test]
    fn the_launcher_starts_this_program_with_its_plan() {
        let dir = tempfile::tempdir().unwrap();
        let all = subjects();
        // In place of this program.
        let path = launcher(
            dir.path(),
            &mpi(Path::new("/m/mpiexec.hydra")),
            Path::new("/bin/echo"),
            None,
            &[&all[0]],
        );
        let path = path.unwrap();
        assert_eq!(path, dir.path().join("turns/bin/mpirun"));
        let output = Command::new(&path).args(["-n", "a b"]).output().unwrap();
        let plan = dir.path().join("turns/plan");
        assert_eq!(text(&output), format!("bench-turns {} -n a b\n", plan.display()));
    }
}
