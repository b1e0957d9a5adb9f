//! Subjects that take turns in the same VMs: one boot, and in it a launch of the MPI for each subject, one after the other.
//!
//! Emulated VMs run the same code at one of several speeds from boot to boot, so that subjects with VMs of their own differ by as much as
//! what is compared. `isthmus run` starts one launcher, and tells it everything through its environment. So that launcher is a script that
//! starts the MPI's own once for each subject, with what that subject has in its environment, and times the host's line around each.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use isthmus_run::libraries::{ALLOC_VARIABLE, PRELOAD_VARIABLE};

use crate::error::{Error, Result};
use crate::job::quoted;
use crate::placement;
use crate::subject::Subject;

/// The hidden subcommand that times a line, as the script does.
pub const LINE_COMMAND: &str = "bench-line";
/// Begins a line of the script's own.
const MARK: &str = "isthmus-bench-turn";

/// `isthmus bench-line FIRST SECOND`: prints half a round of a bare line between the two processors, in microseconds.
pub fn line_main(args: &[std::ffi::OsString]) -> i32 {
    let cpu = |at: usize| args.get(at)?.to_str()?.parse().ok();
    match cpu(0).zip(cpu(1)).and_then(placement::line) {
        Some(line) => {
            println!("{line}");
            0
        }
        None => 1,
    }
}

/// What one subject's turn gave.
#[derive(Debug, PartialEq)]
pub struct Turn<'a> {
    /// What its ranks printed.
    pub text: &'a str,
    /// The host's line before and after it, if it was timed.
    pub lines: Option<[f64; 2]>,
}

/// Writes the launcher of `subjects`, in this order, below `dir`; gives its path. `launcher` is the MPI's own, and `line` the processors whose line
/// is timed, by the program `isthmus`.
///
/// # Errors
/// [`Error::Io`].
pub fn launcher(
    dir: &Path,
    launcher: &Path,
    isthmus: &Path,
    line: Option<(usize, usize)>,
    subjects: &[&Subject],
) -> Result<PathBuf> {
    let path = dir.join("turns/bin").join(launcher.file_name().unwrap_or_default());
    let text = script(launcher, isthmus, line, subjects, std::env::var(PRELOAD_VARIABLE).ok().as_deref());
    let write = || {
        fs::create_dir_all(path.parent().unwrap_or(dir))?;
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
    };
    write().map_err(Error::io(format!("write {}", path.display())))?;
    Ok(path)
}

/// `preloaded` is what this process's own programs load first.
fn script(
    launcher: &Path,
    isthmus: &Path,
    line: Option<(usize, usize)>,
    subjects: &[&Subject],
    preloaded: Option<&str>,
) -> String {
    let launcher = quoted(&launcher.to_string_lossy());
    let timed = line.map_or_else(
        || "echo".to_owned(),
        |(a, b)| format!("{} {LINE_COMMAND} {a} {b} || echo", quoted(&isthmus.to_string_lossy())),
    );
    // Whatever asks for the end is for the MPI's launcher, which the shell would not wait for then.
    let mut text = format!(
        r#"#!/bin/sh
[ "$1" = --version ] && exec {launcher} "$@"
child=
trap 'kill -s TERM $child' TERM
trap 'kill -s INT $child' INT
line() {{ printf '\n{MARK} %s ' "$1"; {timed}; }}
turn() {{
    "$@" &
    child=$!
    wait $child
    status=$?
    while kill -0 $child 2>/dev/null; do wait $child; status=$?; done
    child=
    [ $status -eq 0 ] || exit $status
}}
line begin
"#
    );
    for subject in subjects {
        let mut words = String::from("env");
        if !subject.allocates() {
            let _ = match preloaded {
                Some(preloaded) => {
                    write!(
                        words,
                        " -u {ALLOC_VARIABLE} {}",
                        quoted(&format!("{PRELOAD_VARIABLE}={preloaded}"))
                    )
                }
                None => write!(words, " -u {ALLOC_VARIABLE} -u {PRELOAD_VARIABLE}"),
            };
        }
        for (name, value) in subject.env() {
            let _ = write!(words, " {}", quoted(&format!("{name}={value}")));
        }
        let _ = writeln!(text, "turn {words} {launcher} \"$@\"\nline {}", quoted(subject.name));
    }
    text
}

/// What each of `subjects` gave, of all that such a launcher printed.
///
/// # Errors
/// What is missing.
pub fn read<'a>(text: &'a str, subjects: &[&str]) -> std::result::Result<Vec<Turn<'a>>, String> {
    let mut marks = text.split_inclusive('\n').scan(0, |at, line| {
        let begin = *at;
        *at += line.len();
        Some((begin, *at, line))
    });
    let mut next = |wanted: &str| {
        marks
            .find_map(|(begin, end, line)| {
                let (name, line) = line
                    .strip_prefix(MARK)?
                    .trim()
                    .split_once(' ')
                    .unwrap_or((line.strip_prefix(MARK)?.trim(), ""));
                (name == wanted).then(|| (begin, end, line.parse::<f64>().ok()))
            })
            .ok_or_else(|| format!("the turn of {wanted} did not end"))
    };
    let (_, mut from, mut before) = next("begin")?;
    let mut turns = Vec::new();
    for subject in subjects {
        let (begin, end, after) = next(subject)?;
        turns.push(Turn { text: &text[from..begin], lines: before.zip(after).map(|(a, b)| [a, b]) });
        (from, before) = (end, after);
    }
    Ok(turns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::{self, Peers, Setting};
    use isthmus_run::mpi::{Flavour, Mpi};
    use std::process::Command;

    fn subjects() -> Vec<Subject> {
        let mpi = Mpi { flavour: Flavour::OpenMpi, version: "5".into(), launcher: "/m/bin/mpirun".into() };
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

    /// The launcher of all subjects, with this one as the MPI's, run with `args`: what it printed, and its status.
    fn run(real: &str, line: Option<(usize, usize)>, args: &[&str]) -> (String, Option<i32>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mpirun");
        fs::write(&path, format!("#!/bin/sh\n{real}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        // In place of this program, which prints a line as `echo` prints its own words.
        let timer = Path::new("/bin/echo");
        let all = subjects();
        let all: Vec<&Subject> = all.iter().collect();
        let launcher = launcher(dir.path(), &path, timer, line, &all).unwrap();
        let out = Command::new(launcher)
            .args(args)
            .env(ALLOC_VARIABLE, "7")
            .env_remove(PRELOAD_VARIABLE)
            .output()
            .unwrap();
        (String::from_utf8(out.stdout).unwrap(), out.status.code())
    }

    #[test]
    fn each_subject_has_its_turn_with_its_own_environment() {
        let all = subjects();
        let names: Vec<&str> = all.iter().map(|it| it.name).collect();
        assert_eq!(names, ["isthmus", "isthmus-copy", "isthmus-attach", "isthmus-alloc"]);
        let (text, status) =
            run("printf '%s %s %s' \"$FI_ISTHMUS_LONG\" \"$ISTHMUS_ALLOC\" \"$2\"", None, &["-n", "2"]);
        assert_eq!(status, Some(0));
        let turns = read(&text, &names).unwrap();
        let said: Vec<&str> = turns.iter().map(|turn| turn.text.trim()).collect();
        assert_eq!(said, ["auto  2", "copy  2", "attach  2", "auto 7 2"]);
        assert!(turns.iter().all(|turn| turn.lines.is_none()));
    }

    #[test]
    fn the_version_is_the_mpis_own_and_a_turn_that_fails_is_the_last() {
        assert_eq!(run("echo v $1", None, &["--version"]), ("v --version\n".into(), Some(0)));
        let (text, status) = run("[ $FI_ISTHMUS_LONG = auto ] || exit 7", None, &[]);
        assert_eq!(status, Some(7));
        assert_eq!(read(&text, &["isthmus"]).map(|turns| turns.len()), Ok(1));
        let missing = read(&text, &["isthmus", "isthmus-copy"]);
        assert_eq!(missing, Err("the turn of isthmus-copy did not end".into()));
    }

    #[test]
    fn lines_stand_before_and_after_each_turn() {
        let text =
            "noise\nisthmus-bench-turn begin 0.1\nA\n\nisthmus-bench-turn a 0.2\nB\nisthmus-bench-turn b \n";
        let [a, b] = &read(text, &["a", "b"]).unwrap()[..] else { panic!("two turns") };
        assert_eq!((a.text.trim(), a.lines), ("A", Some([0.1, 0.2])));
        assert_eq!((b.text.trim(), b.lines), ("B", None), "one that could not be timed");
        // By this program's own command.
        let (text, _) = run("echo", Some((0, 1)), &[]);
        assert!(text.contains("isthmus-bench-turn begin bench-line 0 1\n"), "{text}");
    }

    #[test]
    fn what_asks_for_the_end_reaches_the_mpis_launcher() {
        let (text, status) =
            run("trap 'echo told; exit 3' TERM; kill -s TERM $PPID; sleep 5 & wait", None, &[]);
        assert!(text.contains("told"), "{text}");
        assert_eq!(status, Some(3));
    }
}
