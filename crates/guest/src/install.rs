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
//!
//! The system may be one that is mounted here, from a disk that root of a VM has written. So its files are reached by way of
//! `Root` alone, no program is run in it, and of its record nothing is believed but what these steps can have made.

mod root;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use isthmus_region::text::printable;
use rustix::io::Errno;

use self::root::Root;

/// The agent's unit, with a placeholder for the program's folder.
const UNIT: &str = include_str!("../../../packaging/isthmus-guest.service.in");
/// The rule that starts the unit when the device appears.
const RULE: &str = include_str!("../../../packaging/60-isthmus.rules");
const UNIT_NAME: &str = "isthmus-guest.service";
const UNIT_FILE: &str = "etc/systemd/system/isthmus-guest.service";
const RULE_FILE: &str = "etc/udev/rules.d/60-isthmus.rules";
const GROUP: &str = "isthmus";
const GROUP_FILE: &str = "etc/group";
const SHADOW_FILE: &str = "etc/gshadow";
/// Numbers of groups of the system, the first to be taken last: as groupadd(8) takes them.
const GROUP_NUMBERS: std::ops::RangeInclusive<u32> = 100..=999;
/// The libraries that a program of any version installs.
const LIBRARIES: [&str; 3] = ["libisthmus-fi.so", "libisthmus-sysv.so", "libisthmus-alloc.so"];
/// Bytes of a file of the system, at most.
const LONGEST: u64 = 16 << 20;
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
    #[error("--prefix {}: systemd's unit names the program there, so it must be an absolute path without .., blanks, quotes, % and \\", prefix.display())]
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
    /// The record names what no installation makes.
    #[error("{} has a line that `isthmus guest install` does not write with this --prefix and --root: {line}; nothing was removed", path.display())]
    BadRecord {
        /// The record.
        path: PathBuf,
        /// The line, as a terminal may show it.
        line: String,
    },
    /// The kernel cannot keep paths below a folder.
    #[error("--root {}: this kernel (before Linux 5.6) cannot keep links in that system from leading out of it; do this in the running VM, or where the kernel is newer", root.display())]
    OldKernel {
        /// The system's root.
        root: PathBuf,
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

/// A step of the installation. What it makes is named as in the system.
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
    /// A path of the system, as this machine names it: for people.
    fn below_root(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn record(&self) -> PathBuf {
        self.prefix.join("lib/isthmus/guest-installed")
    }

    /// Whether the system below the root is the running one.
    fn runs(&self) -> bool {
        self.is_this() && Path::new("/run/systemd/system").is_dir()
    }

    /// Whether it is the one in which this program runs.
    fn is_this(&self) -> bool {
        self.root == Path::new("/")
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
        let goes_up = self.prefix.components().any(|part| part == std::path::Component::ParentDir);
        if goes_up || !self.prefix.is_absolute() || !self.prefix.to_str().is_some_and(plain) {
            return Err(Error::BadPrefix { prefix: self.prefix.clone() });
        }
        Ok(())
    }

    fn open(&self) -> Result<Root> {
        Root::open(&self.root).map_err(|source| match source.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOSYS) => Error::OldKernel { root: self.root.clone() },
            _ => failed(format!("open {}", self.root.display()))(source),
        })
    }

    /// What is copied, each with its place in the system.
    fn copies(&self) -> impl Iterator<Item = (PathBuf, PathBuf)> + '_ {
        let lib = self.prefix.join("lib/isthmus");
        let libraries =
            self.libraries.iter().filter_map(move |from| Some((from.clone(), lib.join(from.file_name()?))));
        [(self.program.clone(), self.prefix.join("bin/isthmus"))].into_iter().chain(libraries)
    }

    fn steps(&self, root: &Root) -> Result<Vec<Step>> {
        let mut steps = Vec::new();
        for (from, to) in self.copies() {
            if !is_same(&from, root, &to) {
                steps.push(Step::Copy { from, to });
            }
        }
        let text = UNIT.replace("@BINDIR@", &self.prefix.join("bin").to_string_lossy());
        steps.push(Step::Write { to: UNIT_FILE.into(), text });
        steps.push(Step::Write { to: RULE_FILE.into(), text: RULE.into() });
        if !self.has_group(root)? {
            steps.push(Step::Group);
        }
        if self.runs() {
            steps.extend(RELOAD.map(Step::Run));
        }
        Ok(steps)
    }

    /// Whether an installation to this prefix may have made a file: by this program, or by that of another version.
    fn makes(&self, path: &Path) -> bool {
        let lib = self.prefix.join("lib/isthmus");
        let mut all = self.copies().map(|(_, to)| to).chain(LIBRARIES.map(|name| lib.join(name)));
        let below = |path: &Path| path.strip_prefix("/").unwrap_or(path).to_owned();
        let path = below(path);
        path == Path::new(UNIT_FILE) || path == Path::new(RULE_FILE) || all.any(|made| below(&made) == path)
    }

    fn read(&self, root: &Root, path: &str) -> Result<Vec<u8>> {
        let bytes = root.read(Path::new(path), LONGEST);
        bytes.map_err(failed(format!("read {}", self.below_root(path).display())))
    }

    fn has_group(&self, root: &Root) -> Result<bool> {
        Ok(has_group(&self.read(root, GROUP_FILE)?))
    }

    /// Installs, and calls `say` with each step before it is done.
    ///
    /// # Errors
    /// Any of [`Error`] but `NotInstalled` and `BadRecord`; [`Plan::uninstall`] undoes the steps that were done.
    pub fn install(&self, say: &mut dyn FnMut(String)) -> Result<()> {
        self.check()?;
        self.check_prefix()?;
        let root = self.open()?;
        for place in PACKAGED {
            if root.status(Path::new(place)).is_ok() {
                return Err(Error::Packaged { path: self.below_root(place) });
            }
        }
        for folder in ["etc/systemd/system", "etc/udev"] {
            if !root.is_folder(Path::new(folder)) {
                return Err(Error::NoSystemd { path: self.below_root(folder) });
            }
        }
        let steps = self.steps(&root)?;
        if !self.dry_run {
            self.write_record(&root, &steps)?;
        }
        for step in &steps {
            say(self.told(step));
            if !self.dry_run {
                self.carry_out(&root, step)?;
            }
        }
        Ok(())
    }

    fn told(&self, step: &Step) -> String {
        match step {
            Step::Copy { from, to } => {
                format!("copy {} to {}", from.display(), self.below_root(to).display())
            }
            Step::Write { to, .. } => format!("write {}", self.below_root(to).display()),
            Step::Group => format!("add the system group {GROUP}"),
            Step::Run(words) => format!("run {}", words.join(" ")),
        }
    }

    /// Writes what is to be undone: what these steps make, and what an earlier installation has made.
    fn write_record(&self, root: &Root, steps: &[Step]) -> Result<()> {
        let path = self.record();
        let old = root.read(&path, LONGEST).unwrap_or_default();
        let mut lines: Vec<String> = String::from_utf8_lossy(&old).lines().map(str::to_owned).collect();
        for step in steps {
            let line = match step {
                Step::Copy { to, .. } | Step::Write { to, .. } if root.status(to).is_err() => {
                    format!("file /{}", to.strip_prefix("/").unwrap_or(to).display())
                }
                Step::Group => format!("group {GROUP}"),
                _ => continue,
            };
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        self.write(root, &path, text.as_bytes(), 0o644)
    }

    fn write(&self, root: &Root, to: &Path, bytes: &[u8], mode: u32) -> Result<()> {
        root.write(to, bytes, mode).map_err(failed(format!("write {}", self.below_root(to).display())))
    }

    fn carry_out(&self, root: &Root, step: &Step) -> Result<()> {
        match step {
            Step::Copy { from, to } => {
                let bytes = fs::read(from).map_err(failed(format!("read {}", from.display())))?;
                self.write(root, to, &bytes, 0o755)
            }
            Step::Write { to, text } => self.write(root, to, text.as_bytes(), 0o644),
            Step::Group if self.is_this() => run(&["groupadd", "--system", GROUP].map(str::to_owned)),
            Step::Group => self.add_group(root),
            Step::Run(words) => run(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()),
        }
    }

    /// Writes a file of the system anew, which keeps its owner and mode.
    fn replace(&self, root: &Root, path: &str, bytes: &[u8]) -> Result<()> {
        let done = root.replace(Path::new(path), bytes);
        done.map_err(failed(format!("write {}", self.below_root(path).display())))
    }

    /// The files of groups that the system has.
    fn group_files(root: &Root) -> impl Iterator<Item = &'static str> {
        let has = |path: &&str| *path == GROUP_FILE || root.status(Path::new(path)).is_ok();
        [SHADOW_FILE, GROUP_FILE].into_iter().filter(has)
    }

    /// Adds the group to a system that is mounted here. `groupadd --root` would load libraries of that system, and
    /// `--prefix` would follow its links.
    fn add_group(&self, root: &Root) -> Result<()> {
        let groups = self.read(root, GROUP_FILE)?;
        let number = |line: &[u8]| {
            let field = line.split(|b| *b == b':').nth(2)?;
            std::str::from_utf8(field).ok()?.parse::<u32>().ok()
        };
        let taken: Vec<u32> = lines(&groups).filter_map(number).collect();
        let free = GROUP_NUMBERS.rev().find(|number| !taken.contains(number));
        let number = free.ok_or_else(|| {
            failed(format!("add the group {GROUP}"))(io::Error::other("no number of a system group is free"))
        })?;
        for path in Self::group_files(root) {
            let mut bytes = self.read(root, path)?;
            if has_group(&bytes) {
                continue;
            }
            if bytes.last().is_some_and(|last| *last != b'\n') {
                bytes.push(b'\n');
            }
            let line = match path {
                GROUP_FILE => format!("{GROUP}:x:{number}:\n"),
                _ => format!("{GROUP}:!::\n"),
            };
            bytes.extend(line.into_bytes());
            self.replace(root, path, &bytes)?;
        }
        Ok(())
    }

    fn remove_group(&self, root: &Root) -> Result<()> {
        for path in Self::group_files(root) {
            let bytes = self.read(root, path)?;
            let others = lines(&bytes).filter(|line| !is_group(line));
            self.replace(root, path, &others.flatten().copied().collect::<Vec<u8>>())?;
        }
        Ok(())
    }

    /// Removes what [`Plan::install`] made, and calls `say` with each step before it is done.
    ///
    /// # Errors
    /// [`Error::NotRoot`], [`Error::NotInstalled`], [`Error::BadRecord`], [`Error::OldKernel`], [`Error::Io`],
    /// [`Error::Command`].
    pub fn uninstall(&self, say: &mut dyn FnMut(String)) -> Result<()> {
        self.check()?;
        let root = self.open()?;
        let record = self.record();
        let told = self.below_root(&record);
        let text = match root.read(&record, LONGEST) {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Err(Error::NotInstalled { path: told });
            }
            Err(e) => return Err(failed(format!("read {}", told.display()))(e)),
        };
        for line in text.lines() {
            let is_ours = match line.split_once(' ') {
                Some(("file", path)) => self.makes(Path::new(path)),
                Some(("group", name)) => name == GROUP,
                _ => false,
            };
            if !is_ours {
                return Err(Error::BadRecord { path: told, line: printable(line) });
            }
        }
        let mut step = |told: String, action: &dyn Fn() -> Result<()>| {
            say(told);
            if self.dry_run { Ok(()) } else { action() }
        };
        let remove = |path: &Path| {
            root.remove(path).map_err(failed(format!("remove {}", self.below_root(path).display())))
        };
        // What an installation that failed has not come to is not there.
        if self.runs() && root.status(Path::new(UNIT_FILE)).is_ok() {
            let stop = ["systemctl", "stop", UNIT_NAME].map(str::to_owned);
            step(format!("run {}", stop.join(" ")), &|| run(&stop))?;
        }
        for line in text.lines().rev() {
            match line.split_once(' ') {
                Some(("file", path)) => {
                    let path = Path::new(path);
                    step(format!("remove {}", self.below_root(path).display()), &|| remove(path))?;
                }
                Some(("group", _)) if self.has_group(&root)? => {
                    step(format!("remove the group {GROUP}"), &|| match self.is_this() {
                        true => run(&["groupdel", GROUP].map(str::to_owned)),
                        false => self.remove_group(&root),
                    })?;
                }
                _ => {}
            }
        }
        step(format!("remove {}", told.display()), &|| {
            remove(&record)?;
            // Fails, as it should, if other files are in the folder.
            let _ = record.parent().map(|folder| root.remove_folder(folder));
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

/// Whether a line of /etc/group, or of /etc/gshadow, is the group's.
fn is_group(line: &[u8]) -> bool {
    line.split(|b| *b == b':').next() == Some(GROUP.as_bytes())
}

/// Whether one of these lines is.
fn has_group(bytes: &[u8]) -> bool {
    lines(bytes).any(is_group)
}

/// The lines of a file, with their ends.
fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split_inclusive(|b| *b == b'\n')
}

/// Whether a file of this machine is that of the system.
fn is_same(file: &Path, root: &Root, path: &Path) -> bool {
    matches!((fs::metadata(file), root.status(path)), (Ok(a), Ok(b)) if (a.dev(), a.ino()) == (b.st_dev, b.st_ino))
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
