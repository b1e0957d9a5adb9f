//! Whether System V IPC of a program can go through a region: what would keep the dynamic linker from loading our library into
//! it, or the library from seeing its calls.
//!
//! Where it can be tried it is: the dynamic linker is asked what it would load. The program itself is not run.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use isthmus_run::{libraries, named};

use crate::finding::{Finding, Level};
use crate::program::Program;

/// The calls that the library takes.
const CALLS: [&str; 13] = [
    "shmget",
    "shmat",
    "shmdt",
    "shmctl",
    "semget",
    "semop",
    "semtimedop",
    "semctl",
    "msgget",
    "msgsnd",
    "msgrcv",
    "msgctl",
    "ftok",
];
/// The same by their numbers in x86-64's kernel.
const NUMBERS: [(u32, &str); 12] = [
    (29, "shmget"),
    (30, "shmat"),
    (31, "shmctl"),
    (64, "semget"),
    (65, "semop"),
    (66, "semctl"),
    (67, "shmdt"),
    (68, "msgget"),
    (69, "msgsnd"),
    (70, "msgrcv"),
    (71, "msgctl"),
    (220, "semtimedop"),
];
/// Functions that make a lock or barrier one for several processes.
const SHARED_LOCKS: [&str; 4] = [
    "pthread_mutexattr_setpshared",
    "pthread_condattr_setpshared",
    "pthread_barrierattr_setpshared",
    "pthread_rwlockattr_setpshared",
];
/// What helps a program of Go.
const CGO: &str = "call the C library's functions, by cgo, and link dynamically";
/// Larger programs are not read.
const MOST_BYTES: u64 = 1 << 30;
/// How many scripts may interpret each other.
const MOST_SCRIPTS: usize = 4;

/// Does all checks of the program that `word` names, as a shell would find it.
pub fn examine(word: &OsStr) -> Vec<Finding> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let (mut findings, library) = match libraries::sysv() {
        Ok(library) => (vec![Finding::fine("library", library.display().to_string())], Some(library)),
        Err(e) => {
            let fix = "make, or make install; or set ISTHMUS_PROVIDER_PATH to its directory";
            (vec![Finding::bad("library", Level::Stops, e.to_string(), fix)], None)
        }
    };
    findings.extend(program(word, &path, library.as_deref(), MOST_SCRIPTS));
    findings
}

/// What a file can do for one who executes it.
fn program(word: &OsStr, path: &OsStr, library: Option<&Path>, scripts: usize) -> Vec<Finding> {
    let check = "program";
    let stops = |found: String, fix: &str| vec![Finding::bad(check, Level::Stops, found, fix)];
    if let Err(why) = named::is_program(word, path) {
        return stops(why, "name a program, by its path or by a name that is on the PATH");
    }
    let Some(file) = named::file(word, path) else {
        return stops(format!("{} is not found", Path::new(word).display()), "name it by its path");
    };
    let shown = file.display();
    let image = match std::fs::metadata(&file)
        .and_then(|meta| (meta.len() <= MOST_BYTES).then(|| std::fs::read(&file)).transpose())
    {
        Ok(Some(image)) => image,
        Ok(None) => {
            return vec![Finding::bad(
                check,
                Level::Hint,
                format!("{shown} is too large to be read"),
                "try it",
            )];
        }
        Err(e) => {
            let found = format!("{shown} cannot be read: {e}");
            return vec![Finding::bad(check, Level::Hint, found, "run this as a user that may read it")];
        }
    };
    if let Some(line) = image.strip_prefix(b"#!") {
        let line = line.split(|b| *b == b'\n').next().unwrap_or_default();
        let words: Vec<&OsStr> =
            line.split(|b| b" \t".contains(b)).filter(|w| !w.is_empty()).map(OsStr::from_bytes).collect();
        let Some(interpreter) = interpreter_of(&words).filter(|_| scripts > 0) else {
            return stops(format!("{shown} is a script without an interpreter"), "see its first line");
        };
        let found = format!("{shown} is a script for {}", Path::new(interpreter).display());
        let mut findings = vec![Finding::fine("script", found)];
        findings.extend(program(interpreter, path, library, scripts - 1));
        return findings;
    }
    let Some(program) = Program::parse(&image) else {
        return stops(format!("{shown} is no ELF program and no script"), "name the program itself");
    };
    let mut findings = Vec::new();
    findings.extend(privileged(&file));
    if let Some(other) = other_machine(&program) {
        let found = format!("{shown} is {other}, and libisthmus-sysv.so is not");
        findings.push(Finding::bad(
            check,
            Level::Stops,
            found,
            "build it for this machine, with 64-bit addresses",
        ));
        return findings;
    }
    findings.extend(unreachable(&program, &shown.to_string()));
    if findings.iter().all(|finding| finding.level != Level::Stops) {
        findings.push(Finding::fine(check, format!("{shown} is linked dynamically, with glibc")));
        let loaded = load(&file, &program, library, &mut findings);
        findings.push(calls(&program, &loaded));
    }
    findings.extend(own_calls(&program, &image));
    if program.names.iter().any(|name| SHARED_LOCKS.contains(&name.as_str())) {
        findings.push(Finding::bad(
            "locks",
            Level::Hint,
            "it makes locks of POSIX threads that processes share: in a segment they work between processes of one \
             kernel, and not between VMs, nor in a VM",
            "between VMs take semaphores of System V, or the locks of isthmus(3)",
        ));
    }
    findings
}

/// The program that runs a script, of the words of its first line; that of `env` where that is to find it.
fn interpreter_of<'a>(words: &[&'a OsStr]) -> Option<&'a OsStr> {
    let (first, rest) = words.split_first()?;
    if Path::new(first).file_name() != Some(OsStr::new("env")) {
        return Some(first);
    }
    let is_word = |word: &&&OsStr| !word.as_bytes().starts_with(b"-") && !word.as_bytes().contains(&b'=');
    rest.iter().find(is_word).copied().or(Some(first))
}

/// What raises the caller's rights, so that the dynamic linker takes no library from the environment.
fn privileged(file: &Path) -> Option<Finding> {
    let meta = std::fs::metadata(file).ok()?;
    let (me, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut capability = [0_u8; 64];
    let has_capability = rustix::fs::getxattr(file, "security.capability", &mut capability[..]).is_ok();
    let what = match meta.mode() {
        mode if mode & 0o4000 != 0 => (format!("setuid, to user {}", meta.uid()), meta.uid() != me),
        mode if mode & 0o2010 == 0o2010 => (format!("setgid, to group {}", meta.gid()), meta.gid() != group),
        _ if has_capability => ("given capabilities by its file (setcap)".to_owned(), me != 0),
        _ => return None,
    };
    let (what, is_for_this_user) = what;
    Some(Finding::bad(
        "rights",
        if is_for_this_user { Level::Stops } else { Level::Hint },
        format!(
            "{} is {what}: for users that get more rights by it, the dynamic linker ignores LD_PRELOAD",
            file.display()
        ),
        "run a copy of it that has no such rights",
    ))
}

/// What kind of program it is, if not one for this machine.
fn other_machine(program: &Program) -> Option<String> {
    let own = std::fs::read("/proc/self/exe").ok().and_then(|image| Program::parse(&image));
    let name = match program.machine {
        3 | 62 => "x86".to_owned(),
        40 => "ARM".to_owned(),
        183 => "AArch64".to_owned(),
        243 => "RISC-V".to_owned(),
        number => format!("processor number {number} of ELF's"),
    };
    if !program.is_64_bit {
        return Some(format!("a 32-bit program (for {name})"));
    }
    own.filter(|own| own.machine != program.machine).map(|_| format!("for another processor ({name})"))
}

/// Why nothing can be loaded into it.
fn unreachable(program: &Program, shown: &str) -> Option<Finding> {
    let check = "program";
    let go = if program.is_go { ", by Go, whose programs make their system calls themselves" } else { "" };
    let Some(interpreter) = &program.interpreter else {
        let found =
            format!("{shown} is linked statically{go}: no dynamic linker is there that would load a library");
        let fix = if program.is_go { CGO } else { "link it dynamically, without -static" };
        return Some(Finding::bad(check, Level::Stops, found, fix));
    };
    let name =
        Path::new(interpreter).file_name().map(OsStr::to_string_lossy).unwrap_or_default().into_owned();
    if name.starts_with("ld-musl") {
        let found =
            format!("{shown} uses another C library (musl, by {interpreter}): the library needs glibc");
        return Some(Finding::bad(check, Level::Stops, found, "build it with glibc"));
    }
    if !name.starts_with("ld-linux") && !name.starts_with("ld64") {
        let found = format!("{shown} asks for the dynamic linker {interpreter}, which is not glibc's");
        return Some(Finding::bad(check, Level::Stops, found, "build it with glibc"));
    }
    if !Path::new(interpreter).exists() {
        let found = format!("{shown} asks for {interpreter}, which is not there");
        return Some(Finding::bad(
            check,
            Level::Stops,
            found,
            "install the C library that it was built with",
        ));
    }
    let is_caller = program.names.iter().any(|name| CALLS.contains(&name.as_str()));
    (program.is_go && !is_caller).then(|| {
        let found =
            format!("{shown} is a program of Go, which makes its system calls itself, without the C library");
        Finding::bad(check, Level::Stops, found, CGO)
    })
}

/// Has the dynamic linker say what it would load; gives the libraries.
fn load(file: &Path, program: &Program, library: Option<&Path>, findings: &mut Vec<Finding>) -> Vec<PathBuf> {
    let check = "loading";
    let Some(library) = library else { return Vec::new() };
    let own = std::fs::read("/proc/self/exe").ok().and_then(|image| Program::parse(&image)?.interpreter);
    let real = |name: &Option<String>| name.as_ref().and_then(|name| std::fs::canonicalize(name).ok());
    let (Some(linker), true) = (real(&program.interpreter), real(&program.interpreter) == real(&own)) else {
        findings.push(Finding::bad(
            check,
            Level::Hint,
            format!("it has a glibc of its own, by {}", program.interpreter.as_deref().unwrap_or_default()),
            "if that is older than this machine's, the library does not load there: build both with the older one",
        ));
        return Vec::new();
    };
    let file = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let asked = Command::new(linker)
        .arg("--preload")
        .arg(library)
        .arg("--list")
        .arg(file)
        .stdin(Stdio::null())
        .output();
    let said = match asked {
        Ok(said) => said,
        Err(e) => {
            findings.push(Finding::bad(
                check,
                Level::Hint,
                format!("it could not be tried: {e}"),
                "try the program itself",
            ));
            return Vec::new();
        }
    };
    let (text, errors) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    let loaded: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect();
    if loaded.iter().any(|file| file == library) {
        findings.push(Finding::fine(check, "the dynamic linker loads the library into it (tried)"));
    } else {
        let why = errors.lines().chain(text.lines()).next().unwrap_or("it says nothing").trim().to_owned();
        let fix = "build both on the machine with the older glibc";
        findings.push(Finding::bad(
            check,
            Level::Stops,
            format!("the dynamic linker does not load it: {why}"),
            fix,
        ));
    }
    loaded.into_iter().filter(|file| file != library).collect()
}

/// Which calls the program, and its libraries, make through the C library.
fn calls(program: &Program, loaded: &[PathBuf]) -> Finding {
    let check = "calls";
    let of = |names: &[String]| -> Vec<&str> {
        CALLS.into_iter().filter(|call| names.iter().any(|name| name == call)).collect()
    };
    let mut users = Vec::new();
    let own = of(&program.names);
    if !own.is_empty() {
        users.push(own.join(", "));
    }
    for file in loaded {
        let name = file.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        // It has all of them.
        if name.starts_with("libc.so") || name.starts_with("ld-") {
            continue;
        }
        let names = std::fs::read(file).ok().and_then(|image| Program::parse(&image)).map(|p| p.names);
        let found = names.map(|names| of(&names).join(", ")).filter(|found| !found.is_empty());
        users.extend(found.map(|found| format!("{name}: {found}")));
    }
    if users.is_empty() {
        let found = "neither the program nor a library of it names a call of System V IPC";
        let fix = "a program that it starts, or a library that it opens later, may; name that";
        return Finding::bad(check, Level::Hint, found, fix);
    }
    Finding::fine(check, format!("it uses {}", users.join("; ")))
}

/// Calls that pass by the C library, as far as can be guessed.
fn own_calls(program: &Program, image: &[u8]) -> Option<Finding> {
    let numbers = NUMBERS.map(|(number, _)| number);
    let found = program.direct_calls(image, &numbers);
    let names: Vec<&str> =
        NUMBERS.iter().filter(|(number, _)| found.contains(number)).map(|(_, name)| *name).collect();
    // A static program has the C library's own.
    (!names.is_empty() && program.interpreter.is_some()).then(|| {
        let found = format!(
            "it seems to make system calls itself, which no library sees (a guess, by its code): {}",
            names.join(", ")
        );
        Finding::bad(
            "direct calls",
            Level::Hint,
            found,
            "if that is so, have it call the C library's functions",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn levels(findings: &[Finding], check: &str) -> Vec<Level> {
        findings.iter().filter(|f| f.check == check).map(|f| f.level).collect()
    }

    fn look(file: &Path) -> Vec<Finding> {
        program(file.as_os_str(), OsStr::new("/usr/bin:/bin"), None, MOST_SCRIPTS)
    }

    #[test]
    fn scripts_are_judged_by_what_runs_them() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("script");
        let of = |first: &str| {
            std::fs::write(&file, format!("{first}\nexit\n")).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
            look(&file)
        };
        for first in ["#!/bin/sh", "#! /bin/sh -e", "#!/usr/bin/env sh", "#!/usr/bin/env -S A=b sh -x"] {
            let found = of(first);
            assert_eq!(levels(&found, "script"), [Level::Fine], "{first}: {found:?}");
            assert_eq!(levels(&found, "program"), [Level::Fine], "{first}: {found:?}");
        }
        assert_eq!(levels(&of("#!/no/such/thing"), "program"), [Level::Stops]);
        assert_eq!(levels(&of("#!"), "program"), [Level::Stops]);
        // One that is its own interpreter ends, too.
        assert_eq!(levels(&of(&format!("#!{}", file.display())), "program"), [Level::Stops]);
        assert_eq!(levels(&of("no script"), "program"), [Level::Stops]);
        assert_eq!(levels(&look(dir.path()), "program"), [Level::Stops]);
    }

    #[test]
    fn programs_that_nothing_can_be_loaded_into_are_named() {
        let mut program = Program::parse(&std::fs::read("/proc/self/exe").unwrap()).unwrap();
        assert_eq!(unreachable(&program, "x"), None);
        let mut said = |interpreter: Option<&str>| {
            program.interpreter = interpreter.map(str::to_owned);
            unreachable(&program, "x").unwrap().found
        };
        assert!(said(None).contains("linked statically"));
        assert!(said(Some("/lib/ld-musl-x86_64.so.1")).contains("musl"));
        assert!(said(Some("/system/bin/linker64")).contains("not glibc's"));
        assert!(said(Some("/nowhere/ld-linux-x86-64.so.2")).contains("not there"));
        let mut go = Program::parse(&std::fs::read("/proc/self/exe").unwrap()).unwrap();
        go.is_go = true;
        assert!(unreachable(&go, "x").unwrap().found.contains("a program of Go"));
        go.names.push("shmget".into());
        assert_eq!(unreachable(&go, "x"), None);
        go.machine = 183;
        assert!(
            other_machine(&go).is_some_and(|what| what.contains("AArch64")) || cfg!(target_arch = "aarch64")
        );
        go.is_64_bit = false;
        assert!(other_machine(&go).unwrap().contains("32-bit"));
    }

    #[test]
    fn rights_that_a_file_gives_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("prog");
        std::fs::write(&file, "").unwrap();
        let of = |mode| {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            privileged(&file)
        };
        assert_eq!(of(0o755), None);
        // To the caller's own ids: nothing changes by that.
        assert_eq!(of(0o4755).map(|f| f.level), Some(Level::Hint));
        assert_eq!(of(0o2755).map(|f| f.level), Some(Level::Hint));
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(1), Some(1)).unwrap();
            assert_eq!(of(0o4755).map(|f| f.level), Some(Level::Stops));
            assert_eq!(of(0o2755).map(|f| f.level), Some(Level::Stops));
        }
    }
}
