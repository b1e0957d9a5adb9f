//! Installs and removes the agent in a VM without a package of it: `isthmus guest install` and `uninstall`.
//!
//! What is installed:
//!
//! | | |
//! |---|---|
//! | `PREFIX/bin/isthmus`, `PREFIX/lib/isthmus/*.so` | this program and its libraries, unless they run from there |
//! | `/etc/systemd/system/isthmus-guest.service`, `/etc/udev/rules.d/60-isthmus.rules` | the agent's unit, and what starts it |
//! | the group `isthmus` | its members may attach |
//! | `PREFIX/lib/isthmus/guest-installed` | the record: which of these were not there before |
//!
//! The record is written first, and `uninstall` removes only what is in it. So files of others stay, and an
//! installation that failed halfway can be undone.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The agent's unit, with a placeholder for the program's folder.
const UNIT: &str = include_str!("../../../packaging/isthmus-guest.service.in");
/// The rule that starts the unit when the device appears.
const RULE: &str = include_str!("../../../packaging/60-isthmus.rules");
const UNIT_NAME: &str = "isthmus-guest.service";
const UNIT_FILE: &str = "etc/systemd/system/isthmus-guest.service";
const RULE_FILE: &str = "etc/udev/rules.d/60-isthmus.rules";
const GROUP: &str = "isthmus";
/// Where packages put the unit.
const PACKAGED: [&str; 2] =
    ["usr/lib/systemd/system/isthmus-guest.service", "lib/systemd/system/isthmus-guest.service"];

/// What to install, and where.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The root of the system: `/`, or where the file system of a VM that does not run is mounted.
    pub root: PathBuf,
    /// Where the program goes, below the root.
    pub prefix: PathBuf,
    /// The program.
    pub program: PathBuf,
    /// The libraries that programs load, those that were found: the provider, and that for System V IPC.
    pub libraries: Vec<PathBuf>,
    /// Report the steps, and do nothing.
    pub dry_run: bool,
}

/// Why the agent cannot be installed or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The user is not root.
    #[error("this needs root; try it with sudo, or with --dry-run")]
    NotRoot,
    /// A package is there already.
    #[error("{} is there: the package isthmus-guest is installed already; there is nothing to do, or remove that first", path.display())]
    Packaged {
        /// The package's unit.
        path: PathBuf,
    },
    /// Nothing to remove.
    #[error("{} is not there, so `isthmus guest install` has installed nothing with this --prefix", path.display())]
    NotInstalled {
        /// The record.
        path: PathBuf,
    },
    /// A unit cannot name the program.
    #[error("--prefix {}: systemd's unit names the program there, so it must be an absolute path without blanks, quotes, % and \\", prefix.display())]
    BadPrefix {
        /// What was given.
        prefix: PathBuf,
    },
    /// No systemd.
    #[error("{} is no folder: the agent is started by systemd and udev; without them, have something start `isthmus guest` as root", path.display())]
    NoSystemd {
        /// The folder.
        path: PathBuf,
    },
    /// A file cannot be written or removed.
    #[error("cannot {what}")]
    Io {
        /// The operation and its object.
        what: String,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// A program of the system failed.
    #[error("`{line}` failed: {why}")]
    Command {
        /// Its words.
        line: String,
        /// What it printed, or how it ended.
        why: String,
    },
}

type Result<T> = std::result::Result<T, Error>;

fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    move |source| Error::Io { what, source }
}

/// A step of the installation.
enum Step {
    Copy { from: PathBuf, to: PathBuf },
    Write { to: PathBuf, text: String },
    Group,
    Run(&'static [&'static str]),
}

/// After files have changed: makes systemd and udev read them, and start the agent if the device is there.
const RELOAD: [&[&str]; 3] = [
    &["systemctl", "daemon-reload"],
    &["udevadm", "control", "--reload"],
    &["udevadm", "trigger", "--subsystem-match=pci", "--attr-match=vendor=0x1af4"],
];

impl Plan {
    fn below_root(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn record(&self) -> PathBuf {
        self.below_root(self.prefix.join("lib/isthmus/guest-installed"))
    }

    /// Whether the system below the root is the running one.
    fn runs(&self) -> bool {
        self.root == Path::new("/") && Path::new("/run/systemd/system").is_dir()
    }

    fn check(&self) -> Result<()> {
        if !self.dry_run && !rustix::process::geteuid().is_root() {
            return Err(Error::NotRoot);
        }
        Ok(())
    }

    fn check_prefix(&self) -> Result<()> {
        let plain = |text: &str| {
            !text.contains(|c: char| c.is_whitespace() || c.is_control() || "\"'%\\".contains(c))
        };
        if !self.prefix.is_absolute() || !self.prefix.to_str().is_some_and(plain) {
            return Err(Error::BadPrefix { prefix: self.prefix.clone() });
        }
        Ok(())
    }

    fn steps(&self) -> Result<Vec<Step>> {
        let mut steps = Vec::new();
        let bin = self.prefix.join("bin");
        let lib = self.prefix.join("lib/isthmus");
        let libraries =
            self.libraries.iter().filter_map(|from| Some((from.clone(), lib.join(from.file_name()?))));
        for (from, to) in [(self.program.clone(), bin.join("isthmus"))].into_iter().chain(libraries) {
            let to = self.below_root(to);
            if !same_file(&from, &to) {
                steps.push(Step::Copy { from, to });
            }
        }
        let text = UNIT.replace("@BINDIR@", &bin.to_string_lossy());
        steps.push(Step::Write { to: self.below_root(UNIT_FILE), text });
        steps.push(Step::Write { to: self.below_root(RULE_FILE), text: RULE.into() });
        if !self.has_group()? {
            steps.push(Step::Group);
        }
        if self.runs() {
            steps.extend(RELOAD.map(Step::Run));
        }
        Ok(steps)
    }

    fn has_group(&self) -> Result<bool> {
        let groups = fs::read_to_string(self.below_root("etc/group")).map_err(failed("read /etc/group"))?;
        Ok(groups.lines().any(|line| line.split(':').next() == Some(GROUP)))
    }

    /// Installs, and calls `say` with each step before it is done.
    ///
    /// # Errors
    /// Any of [`Error`] but `NotInstalled`; [`Plan::uninstall`] undoes the steps that were done.
    pub fn install(&self, say: &mut dyn FnMut(String)) -> Result<()> {
        self.check()?;
        self.check_prefix()?;
        for place in PACKAGED {
            let path = self.below_root(place);
            if path.exists() {
                return Err(Error::Packaged { path });
            }
        }
        for folder in ["etc/systemd/system", "etc/udev"] {
            let path = self.below_root(folder);
            if !path.is_dir() {
                return Err(Error::NoSystemd { path });
            }
        }
        let steps = self.steps()?;
        if !self.dry_run {
            self.write_record(&steps)?;
        }
        for step in &steps {
            say(self.told(step));
            if !self.dry_run {
                self.carry_out(step)?;
            }
        }
        Ok(())
    }

    fn told(&self, step: &Step) -> String {
        match step {
            Step::Copy { from, to } => format!("copy {} to {}", from.display(), to.display()),
            Step::Write { to, .. } => format!("write {}", to.display()),
            Step::Group => format!("add the system group {GROUP}"),
            Step::Run(words) => format!("run {}", words.join(" ")),
        }
    }

    /// Writes what is to be undone: what these steps make, and what an earlier installation has made.
    fn write_record(&self, steps: &[Step]) -> Result<()> {
        let path = self.record();
        let mut lines: Vec<String> =
            fs::read_to_string(&path).unwrap_or_default().lines().map(str::to_owned).collect();
        for step in steps {
            let line = match step {
                Step::Copy { to, .. } | Step::Write { to, .. } if !to.exists() => {
                    let below = to.strip_prefix(&self.root).unwrap_or(to);
                    format!("file /{}", below.display())
                }
                Step::Group => format!("group {GROUP}"),
                _ => continue,
            };
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        write(&path, text.as_bytes(), 0o644)
    }

    fn carry_out(&self, step: &Step) -> Result<()> {
        match step {
            Step::Copy { from, to } => {
                let bytes = fs::read(from).map_err(failed(format!("read {}", from.display())))?;
                write(to, &bytes, 0o755)
            }
            Step::Write { to, text } => write(to, text.as_bytes(), 0o644),
            Step::Group => run(&self.group_command("groupadd", &["--system"])),
            Step::Run(words) => run(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()),
        }
    }

    fn group_command(&self, program: &str, options: &[&str]) -> Vec<String> {
        let mut words = vec![program.to_owned()];
        words.extend(options.iter().map(|option| (*option).to_owned()));
        if self.root != Path::new("/") {
            words.extend(["--root".into(), self.root.display().to_string()]);
        }
        words.push(GROUP.into());
        words
    }

    /// Removes what [`Plan::install`] made, and calls `say` with each step before it is done.
    ///
    /// # Errors
    /// [`Error::NotRoot`], [`Error::NotInstalled`], [`Error::Io`], [`Error::Command`].
    pub fn uninstall(&self, say: &mut dyn FnMut(String)) -> Result<()> {
        self.check()?;
        let record = self.record();
        let Ok(text) = fs::read_to_string(&record) else {
            return Err(Error::NotInstalled { path: record });
        };
        let mut step = |told: String, action: &dyn Fn() -> Result<()>| {
            say(told);
            if self.dry_run { Ok(()) } else { action() }
        };
        // What an installation that failed has not come to is not there.
        if self.runs() && self.below_root(UNIT_FILE).exists() {
            let stop = ["systemctl", "stop", UNIT_NAME].map(str::to_owned);
            step(format!("run {}", stop.join(" ")), &|| run(&stop))?;
        }
        for line in text.lines().rev() {
            match line.split_once(' ') {
                Some(("file", path)) => {
                    let path = self.below_root(path);
                    step(format!("remove {}", path.display()), &|| remove(&path))?;
                }
                Some(("group", _)) if self.has_group()? => {
                    step(format!("remove the group {GROUP}"), &|| run(&self.group_command("groupdel", &[])))?;
                }
                _ => {}
            }
        }
        step(format!("remove {}", record.display()), &|| {
            remove(&record)?;
            // Fails, as it should, if other files are in the folder.
            let _ = record.parent().map(fs::remove_dir);
            Ok(())
        })?;
        if self.runs() {
            for words in &RELOAD[..2] {
                let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
                step(format!("run {}", words.join(" ")), &|| run(&words))?;
            }
        }
        Ok(())
    }
}

fn same_file(a: &Path, b: &Path) -> bool {
    matches!((fs::canonicalize(a), fs::canonicalize(b)), (Ok(a), Ok(b)) if a == b)
}

/// Writes a new file and puts it in place of the old: a running program can be replaced, but not written to.
fn write(to: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let cannot = || format!("write {}", to.display());
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(failed(format!("make {}", folder.display())))?;
    }
    let new = to.with_extension("isthmus-new");
    let done = fs::write(&new, bytes)
        .and_then(|()| fs::set_permissions(&new, fs::Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&new, to));
    done.map_err(|source| {
        // It is in no record.
        let _ = fs::remove_file(&new);
        failed(cannot())(source)
    })
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed(format!("remove {}", path.display()))(e)),
        _ => Ok(()),
    }
}

fn run(words: &[String]) -> Result<()> {
    let line = words.join(" ");
    let bad = |why: String| Err(Error::Command { line: line.clone(), why });
    match Command::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            bad(said.lines().next().map_or_else(|| output.status.to_string(), str::to_owned))
        }
        Err(e) => bad(e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(root: &Path) -> Plan {
        for folder in ["etc/systemd/system", "etc/udev/rules.d"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        // The group is there already, so that no program of the system is run.
        fs::write(root.join("etc/group"), "root:x:0:\nisthmus:x:990:\n").unwrap();
        fs::write(root.join("program"), "p").unwrap();
        fs::write(root.join("libx.so"), "l").unwrap();
        Plan {
            root: root.into(),
            prefix: "/usr/local".into(),
            program: root.join("program"),
            libraries: vec![root.join("libx.so")],
            dry_run: false,
        }
    }

    fn files(root: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().flatten() {
                if entry.path().is_dir() { folders.push(entry.path()) } else { found.push(entry.path()) }
            }
        }
        found.sort();
        found
    }

    /// Whether this process may install. If not, prints a line that `./test` counts.
    fn may_install() -> bool {
        let may = rustix::process::geteuid().is_root();
        if !may {
            // Not by println!, which the harness keeps to itself where a test passes.
            let _ = std::io::Write::write_all(&mut std::io::stderr(), b"\nskipped: only root may install\n");
        }
        may
    }

    #[test]
    fn uninstall_leaves_what_was_there_before() {
        if !may_install() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let plan = plan(dir.path());
        let before = files(dir.path());
        let (mut would, mut did) = (Vec::new(), Vec::new());
        Plan { dry_run: true, ..plan.clone() }.install(&mut |line| would.push(line)).unwrap();
        assert_eq!(files(dir.path()), before);
        plan.install(&mut |line| did.push(line)).unwrap();
        assert_eq!(would, did);
        let unit = fs::read_to_string(dir.path().join(UNIT_FILE)).unwrap();
        assert!(unit.contains("\nExecStart=/usr/local/bin/isthmus guest "), "{unit}");
        assert_eq!(fs::read(dir.path().join("usr/local/bin/isthmus")).unwrap(), b"p");
        assert_eq!(fs::read(dir.path().join("usr/local/lib/isthmus/libx.so")).unwrap(), b"l");
        // Installing twice is the same as once.
        plan.install(&mut |_| ()).unwrap();
        plan.uninstall(&mut |_| ()).unwrap();
        assert_eq!(files(dir.path()), before);
        assert!(matches!(plan.uninstall(&mut |_| ()), Err(Error::NotInstalled { .. })));
    }

    #[test]
    fn what_failed_halfway_is_undone_and_a_unit_can_name_the_program() {
        if !may_install() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let plan = plan(dir.path());
        let before = files(dir.path());
        fs::write(dir.path().join("etc/group"), "root:x:0:\n").unwrap();
        // A folder of this name cannot be replaced by the program.
        fs::create_dir_all(dir.path().join("usr/local/bin/isthmus/x")).unwrap();
        assert!(matches!(plan.install(&mut |_| ()), Err(Error::Io { .. })));
        fs::remove_dir_all(dir.path().join("usr/local/bin")).unwrap();
        plan.uninstall(&mut |_| ()).unwrap();
        assert_eq!(files(dir.path()), before);
        for prefix in ["opt/isthmus", "/opt/my apps", "/opt/100%"] {
            let bad = Plan { prefix: prefix.into(), ..plan.clone() };
            assert!(matches!(bad.install(&mut |_| ()), Err(Error::BadPrefix { .. })), "{prefix}");
        }
    }

    #[test]
    fn files_of_others_stay() {
        if !may_install() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let plan = plan(dir.path());
        fs::create_dir_all(dir.path().join("usr/local/bin")).unwrap();
        fs::write(dir.path().join("usr/local/bin/isthmus"), "older").unwrap();
        plan.install(&mut |_| ()).unwrap();
        plan.uninstall(&mut |_| ()).unwrap();
        assert!(dir.path().join("usr/local/bin/isthmus").exists());
    }

    #[test]
    fn a_package_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let plan = Plan { dry_run: true, ..plan(dir.path()) };
        fs::create_dir_all(dir.path().join("lib/systemd/system")).unwrap();
        fs::write(dir.path().join(PACKAGED[1]), "").unwrap();
        assert!(matches!(plan.install(&mut |_| ()), Err(Error::Packaged { .. })));
    }
}
