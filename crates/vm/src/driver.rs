//! The guest driver (`driver/`), built for a guest's kernel on the host and kept in the user's cache. Where that cannot be done, one that
//! the kernel's own modules have is taken, as `isthmus-dkms` puts it there. It may be of another version, of which the agent checks the
//! interface's number alone.
//!
//! It needs that kernel's headers: those that are installed, or else Debian's packages, which are fetched as the kernel is and
//! unpacked into the cache. Their only absolute path, in the Makefile, is rewritten. Nothing is installed.

use crate::cache;
use crate::error::{Error, Result};
use crate::kernel::{self, Kernel};
use crate::programs;
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The driver's sources, by their names.
const SOURCES: [(&str, &str); 3] = [
    ("Kbuild", include_str!("../../../driver/Kbuild")),
    ("isthmus.c", include_str!("../../../driver/isthmus.c")),
    ("isthmus.h", include_str!("../../../driver/isthmus.h")),
];
/// Its module.
pub const MODULE: &str = "isthmus.ko";
/// How the names of unfinished folders begin; a process number follows.
const NEW: &str = ".new-";
/// A failure that is remembered, so that not every run waits for it.
struct Failure {
    file: &'static str,
    keep: Duration,
    while_kept: &'static str,
}
/// The driver does not compile.
const NOT_BUILT: Failure = Failure { file: "failure", keep: Duration::from_secs(3600), while_kept: "hour" };
/// The headers could not be had: the network may be there again soon.
const NO_HEADERS: Failure =
    Failure { file: "no-headers", keep: Duration::from_secs(300), while_kept: "five minutes" };

/// The driver for this kernel, from the cache or built now. `progress` gets a line before each step that takes time. A build that
/// failed a short while ago is tried again only with `again`.
///
/// # Errors
/// [`Error::NoDriver`] with the cause.
pub fn find(kernel: &Kernel, again: bool, progress: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    ours(kernel, again, progress).or_else(|why| {
        let own = kernel.own_driver().ok_or(why)?;
        progress(&format!("taking the guest driver that {} has among its own modules", kernel.release));
        Ok(own)
    })
}

/// One of this version's sources.
fn ours(kernel: &Kernel, again: bool, progress: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    let dir = cache::dir().map_err(none)?.join("drivers").join(key(kernel).map_err(none)?);
    let module = dir.join(MODULE);
    if module.is_file() {
        return Ok(module);
    }
    cache::make(&dir).map_err(none)?;
    let _lock = cache::lock(&dir, ".lock").map_err(none)?;
    // The process that held the lock may have built it.
    if module.is_file() {
        return Ok(module);
    }
    for failure in [NOT_BUILT, NO_HEADERS] {
        if !again && let Some(reason) = failure.remembered(&dir) {
            let when = failure.while_kept;
            return Err(no(format!(
                "{reason} (so it was within the last {when}; --driver require tries again)"
            )));
        }
    }
    clean_leftovers(&dir);
    build(kernel, &dir, progress).map(|()| module).map_err(none)
}

/// Removes what runs that were killed have left unfinished. The caller holds the lock.
fn clean_leftovers(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(NEW) {
            // Nothing reads it if it stays.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Removes this process's unfinished files, before it is ended in the middle of its work.
pub(crate) fn abandon() {
    let Ok(cache) = cache::dir() else { return };
    let own = format!("{NEW}{}", std::process::id());
    let drivers =
        fs::read_dir(cache.join("drivers")).into_iter().flatten().flatten().map(|entry| entry.path());
    for dir in drivers.chain([cache.join("headers")]) {
        let _ = fs::remove_dir_all(dir.join(&own));
    }
}

/// Any error, as the reason for which there is no driver.
fn none(e: Error) -> Error {
    match e {
        Error::NoDriver { .. } => e,
        Error::NoKernel { reason } => no(reason),
        other => no(isthmus_region::error::with_causes(&other)),
    }
}

fn no(reason: impl Into<String>) -> Error {
    Error::NoDriver { reason: reason.into() }
}

/// The name of a kernel's driver of this version.
fn key(kernel: &Kernel) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    SOURCES.hash(&mut hasher);
    // A kernel of a user's own may have the release of another.
    cache::file_key(&kernel.vmlinux, &mut hasher)?;
    Ok(format!("{}-{}", kernel.release, cache::key_text(&hasher)))
}

impl Failure {
    fn remembered(&self, dir: &Path) -> Option<String> {
        let file = dir.join(self.file);
        let age = fs::metadata(&file).ok()?.modified().ok()?.elapsed().ok()?;
        (age < self.keep).then(|| fs::read_to_string(file).ok())?
    }

    /// Remembers why there is no driver.
    fn remember(&self, dir: &Path, why: Error) -> Error {
        // A program that is missing is missed at once, and may be there at once.
        let is_quick = matches!(why, Error::NoProgram { .. });
        let told = none(why);
        if let Error::NoDriver { reason } = &told
            && !is_quick
        {
            // If it cannot be kept, the next run tries again.
            let _ = fs::write(dir.join(self.file), reason);
        }
        told
    }
}

fn build(kernel: &Kernel, dir: &Path, progress: &mut dyn FnMut(&str)) -> Result<()> {
    // With its folder: make looks for it on the PATH alone.
    let compiler = ["gcc-12", "gcc-14", "gcc"].into_iter().find_map(programs::find);
    let compiler = compiler.ok_or(Error::NoProgram { program: "gcc".into(), package: "gcc" })?;
    programs::need("make", "make")?;
    let headers = headers(&kernel.release, progress).map_err(|e| NO_HEADERS.remember(dir, e))?;
    progress(&format!("building the guest driver for {} (once)", kernel.release));
    let work = dir.join(format!("{NEW}{}", std::process::id()));
    let done = build_in(&work, &headers, &compiler, dir);
    // Nothing reads it if it stays.
    let _ = fs::remove_dir_all(&work);
    done.map_err(|e| NOT_BUILT.remember(dir, e))
}

fn build_in(work: &Path, headers: &Path, compiler: &Path, dir: &Path) -> Result<()> {
    cache::make(work)?;
    for (name, text) in SOURCES {
        cache::write(&work.join(name), text.as_bytes())?;
    }
    let set = |name: &str, value: &Path| {
        let mut word = OsString::from(format!("{name}="));
        word.push(value);
        word
    };
    let mut words = vec![OsString::from("-C"), headers.into(), set("M", work)];
    words.extend([set("CC", compiler), "V=0".into(), "modules".into()]);
    programs::output("make", "make", words).map_err(|e| in_short(e, dir))?;
    let module = work.join(MODULE);
    // Twenty times smaller without what debuggers read, and each guest gets it. It works with it, too.
    let _ = programs::output("strip", "binutils", [OsString::from("--strip-debug"), module.clone().into()]);
    let content = fs::read(&module).map_err(Error::io(format!("read {}", module.display())))?;
    cache::write_atomically(&dir.join(MODULE), &content)
}

/// What make said, in one line; all of it is kept in a file.
fn in_short(error: Error, dir: &Path) -> Error {
    let Error::ProgramFailed { command, status, stderr } = &error else { return error };
    let log = dir.join("log");
    // Without room for it, the line has to do.
    let _ = fs::write(&log, format!("{command}\n{status}\n{stderr}\n"));
    let is_cause = |line: &&str| line.contains("error:") || line.contains("not found");
    let cause = stderr.lines().find(is_cause).or(stderr.lines().last()).unwrap_or(status);
    no(format!("make failed: {cause} (all of it: {})", log.display()))
}

/// A folder in which modules for this kernel are built.
fn headers(release: &str, progress: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    let installed = [format!("/lib/modules/{release}/build"), format!("/usr/src/linux-headers-{release}")];
    if let Some(found) = installed.iter().map(PathBuf::from).find(|dir| dir.join("Module.symvers").is_file())
    {
        return Ok(found);
    }
    let all = cache::dir()?.join("headers");
    cache::make(&all)?;
    let _lock = cache::lock(&all, ".lock")?;
    let tree = all.join(release);
    let found = tree.join(format!("usr/src/linux-headers-{release}"));
    if found.is_dir() {
        return Ok(found);
    }
    clean_leftovers(&all);
    let work = all.join(format!("{NEW}{}", std::process::id()));
    let done = download(release, &work, &tree, progress);
    // Nothing reads it if it stays.
    let _ = fs::remove_dir_all(&work);
    done.map(|()| found)
}

fn download(release: &str, work: &Path, tree: &Path, progress: &mut dyn FnMut(&str)) -> Result<()> {
    let first = format!("linux-headers-{release}");
    kernel::fetch(std::slice::from_ref(&first), work, progress)?;
    let control = ["-f".into(), deb(work, &first)?.into_os_string(), "Depends".into()];
    let depends = programs::output("dpkg-deb", "dpkg", control)?;
    let others = needed(&String::from_utf8_lossy(&depends));
    kernel::fetch(&others, work, progress)?;
    let new = work.join("tree");
    for package in std::iter::once(&first).chain(&others) {
        let words = ["-x".into(), deb(work, package)?.into_os_string(), new.clone().into_os_string()];
        programs::output("dpkg-deb", "dpkg", words)?;
    }
    let makefile = new.join(format!("usr/src/{first}/Makefile"));
    let text = fs::read_to_string(&makefile).map_err(Error::io(format!("read {}", makefile.display())))?;
    let here = format!("{}/usr/src/", tree.display());
    cache::write(&makefile, text.replace("/usr/src/", &here).as_bytes())?;
    if tree.exists() {
        fs::remove_dir_all(tree).map_err(Error::io(format!("replace {}", tree.display())))?;
    }
    fs::rename(&new, tree).map_err(Error::io(format!("create {}", tree.display())))
}

/// The file of a package in a folder of downloads.
fn deb(work: &Path, package: &str) -> Result<PathBuf> {
    let begin = format!("{package}_");
    let entries = fs::read_dir(work).map_err(Error::io("read the download directory"))?;
    let found = entries.flatten().find(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with(&begin) && name.to_string_lossy().ends_with(".deb")
    });
    found.map(|entry| entry.path()).ok_or_else(|| no(format!("apt-get download {package} made no file")))
}

/// The packages with the rest of a kernel's headers, of those that the first depends on.
fn needed(depends: &str) -> Vec<String> {
    let names = depends.split(',').filter_map(|word| word.split_whitespace().next());
    let wanted = |name: &&str| {
        (name.starts_with("linux-headers-") && name.ends_with("-common")) || name.starts_with("linux-kbuild-")
    };
    names.filter(wanted).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_the_headers_is_found_in_what_the_package_depends_on() {
        let twelve = "linux-headers-6.1.0-56-common (= 6.1.192-2), linux-kbuild-6.1 (>= 6.1.192-2), linux-compiler-gcc-12-x86";
        assert_eq!(needed(twelve), ["linux-headers-6.1.0-56-common", "linux-kbuild-6.1"]);
        let thirteen = "linux-image-6.12.38+deb13-amd64 | linux-image-6.12.38+deb13-amd64-unsigned, linux-headers-6.12.38+deb13-common (= 6.12.38-1), linux-kbuild-6.12.38+deb13, gcc-14-for-host";
        assert_eq!(needed(thirteen), ["linux-headers-6.12.38+deb13-common", "linux-kbuild-6.12.38+deb13"]);
        assert!(needed("").is_empty());
    }

    #[test]
    fn what_make_says_is_one_line_with_the_cause() {
        let dir = std::env::temp_dir().join(format!("isthmus-make-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let failed = |stderr: &str| Error::ProgramFailed {
            command: "make".into(),
            status: "exit status: 2".into(),
            stderr: stderr.into(),
        };
        let short = |stderr| in_short(failed(stderr), &dir).to_string();
        assert!(
            short("/bin/sh: gcc: not found\nmake[1]: x\nmake: y")
                .contains("make failed: /bin/sh: gcc: not found (all")
        );
        assert!(short("one\ntwo").contains("make failed: two (all"));
        assert!(short("").contains("make failed: exit status: 2 (all"));
        assert!(fs::read_to_string(dir.join("log")).unwrap().starts_with("make\n"));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_failure_is_remembered_for_a_while() {
        let dir = std::env::temp_dir().join(format!("isthmus-driver-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for failure in [NOT_BUILT, NO_HEADERS] {
            assert!(failure.remembered(&dir).is_none());
            let told = failure.remember(&dir, no("no compiler"));
            assert_eq!(told.to_string(), "no guest driver: no compiler");
            assert_eq!(failure.remembered(&dir).as_deref(), Some("no compiler"));
            let long_ago = std::time::SystemTime::now() - failure.keep - Duration::from_secs(1);
            let file = fs::File::options().write(true).open(dir.join(failure.file)).unwrap();
            file.set_modified(long_ago).unwrap();
            assert!(failure.remembered(&dir).is_none());
        }
        fs::create_dir(dir.join(".new-1")).unwrap();
        clean_leftovers(&dir);
        assert!(!dir.join(".new-1").exists() && dir.join(NOT_BUILT.file).exists());
        fs::remove_dir_all(&dir).unwrap();
    }
}
