//! Finding the launcher of an MPI, and which MPI it belongs to.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::elsewhere::{elsewhere, hint};
use super::{Flavour, Mpi};
use crate::error::{Error, Result};

/// Flavour and version, from what `--version` printed.
fn parse_version(text: &str) -> Option<(Flavour, String)> {
    for line in text.lines() {
        if let Some((_, version)) = line.split_once("(Open MPI)") {
            let version = version.trim().to_owned();
            let flavour = match version.split('.').next()?.parse::<u32>().ok()? {
                5.. => Flavour::OpenMpi,
                4 => Flavour::OpenMpi4,
                _ => return None,
            };
            return Some((flavour, version));
        }
        if line.starts_with("Intel(R) MPI Library")
            && let Some((_, rest)) = line.split_once("Version ")
        {
            return Some((Flavour::Intel, rest.split_whitespace().next()?.to_owned()));
        }
        if let Some((_, version)) = line.trim().split_once("Version:")
            && text.starts_with("HYDRA")
        {
            return Some((Flavour::Mpich, version.trim().to_owned()));
        }
    }
    None
}

/// The caller's PATH with the launcher's own directory first: Intel's mpirun is a script that finds its Hydra there.
pub(super) fn path_beside(launcher: &Path) -> OsString {
    let mut path = launcher.parent().unwrap_or(Path::new(".")).as_os_str().to_owned();
    if let Some(rest) = std::env::var_os("PATH").filter(|rest| !rest.is_empty()) {
        path.push(":");
        path.push(rest);
    }
    path
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Where `/bin` is a link to `/usr/bin`, a launcher found there by the first name believes its prefix to be `/`, which Open
/// MPI 4 refuses.
fn below_a_prefix(launcher: &Path) -> PathBuf {
    let folder = launcher.parent().filter(|folder| folder.parent() == Some(Path::new("/")));
    match (folder.and_then(|folder| folder.canonicalize().ok()), launcher.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => launcher.to_owned(),
    }
}

fn identify(launcher: &Path) -> Result<Mpi> {
    let output = Command::new(launcher)
        .arg("--version")
        .env("PATH", path_beside(launcher))
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::io(format!("cannot run {} --version", launcher.display()), e))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Some((flavour, version)) = parse_version(&text) else {
        // A launcher that fails says why on standard error: Open MPI without HOME, for instance.
        let errors = String::from_utf8_lossy(&output.stderr);
        let said = text.lines().chain(errors.lines()).map(str::trim).find(|line| !line.is_empty());
        let said = match (said, output.status.success()) {
            (Some(said), true) => said.to_owned(),
            (said, _) => {
                format!("--version ended with {}: {}", output.status, said.unwrap_or("it printed nothing"))
            }
        };
        return Err(Error::UnknownMpi { launcher: launcher.to_owned(), said });
    };
    Ok(Mpi { flavour, version, launcher: below_a_prefix(launcher) })
}

fn on_path(names: &[&str]) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .flat_map(|dir| names.iter().map(move |name| dir.join(name)).collect::<Vec<_>>())
        .filter(|file| is_executable(file))
        .collect()
}

/// The names by which a launcher is looked for.
const USUAL_NAMES: [&str; 2] = ["mpirun", "mpiexec"];

/// Whether there is any launcher on the PATH.
pub fn is_on_path() -> bool {
    !on_path(&USUAL_NAMES).is_empty()
}

/// Finds the launcher: that of `line` if it names one with a path, else the one that `--mpi` asks for, else
/// the first on the PATH.
///
/// # Errors
/// [`Error::NoMpi`], [`Error::UnknownMpi`].
pub fn find(mpi: Option<&str>, line: Option<&OsStr>) -> Result<Mpi> {
    if let Some(word) = line.filter(|word| word.as_encoded_bytes().contains(&b'/')) {
        return identify(Path::new(word));
    }
    let word = line.and_then(OsStr::to_str);
    let names = match word {
        Some(word) => vec![word],
        None => USUAL_NAMES.to_vec(),
    };
    match mpi {
        None => {
            let found = on_path(&names);
            let first = found.first().ok_or_else(|| Error::NoMpi {
                looked: format!("there is no {} on the PATH", names.join(" or ")),
                named: false,
                elsewhere: hint(&elsewhere(None)),
            })?;
            identify(first)
        }
        Some(name) => match Flavour::named(name) {
            Some(flavours) => {
                // Debian installs several side by side under names with a suffix.
                let suffixed: Vec<String> = names
                    .iter()
                    .flat_map(|name| ["openmpi", "mpich"].map(|suffix| format!("{name}.{suffix}")))
                    .collect();
                let all: Vec<&str> =
                    names.iter().copied().chain(suffixed.iter().map(String::as_str)).collect();
                on_path(&all)
                    .iter()
                    .filter_map(|file| identify(file).ok())
                    .find(|mpi| flavours.contains(&mpi.flavour))
                    .ok_or_else(|| Error::NoMpi {
                        looked: format!("no {} of {name} is on the PATH", names.join(" or ")),
                        named: true,
                        elsewhere: hint(&elsewhere(Some(flavours))),
                    })
            }
            None => {
                let dir = Path::new(name);
                let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
                let found = [absolute.join("bin"), absolute]
                    .iter()
                    .flat_map(|dir| names.iter().map(|name| dir.join(name)).collect::<Vec<_>>())
                    .find(|file| is_executable(file))
                    .ok_or_else(|| match dir.is_dir() {
                        true => Error::NoMpi {
                            looked: format!("{name} holds no bin/{}", names.join(" or bin/")),
                            named: true,
                            elsewhere: String::new(),
                        },
                        false => Error::NoMpi {
                            looked: format!(
                                "{name} is no directory, and not openmpi, openmpi4, openmpi5, mpich or intel"
                            ),
                            named: true,
                            elsewhere: hint(&elsewhere(None)),
                        },
                    })?;
                identify(&found)
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_tell_the_mpi() {
        let ompi = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n";
        assert_eq!(parse_version(ompi), Some((Flavour::OpenMpi, "5.0.11".into())));
        let hydra = "HYDRA build details:\n    Version:                                 5.0.2\n    CC: cc\n";
        assert_eq!(parse_version(hydra), Some((Flavour::Mpich, "5.0.2".into())));
        assert_eq!(parse_version("mpirun (Open MPI) 4.1.4\n"), Some((Flavour::OpenMpi4, "4.1.4".into())));
        assert_eq!(parse_version("mpirun (Open MPI) 3.1.3\n"), None);
        let intel = "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)\n\
                     Copyright 2003-2026, Intel Corporation.\n";
        assert_eq!(parse_version(intel), Some((Flavour::Intel, "2021.18.1".into())));
        assert_eq!(parse_version(""), None);
    }

    #[test]
    fn a_launcher_directly_below_the_root_has_its_real_folder() {
        let bin = fs::canonicalize("/bin").unwrap();
        assert_eq!(below_a_prefix(Path::new("/bin/mpirun")), bin.join("mpirun"));
        assert_eq!(below_a_prefix(Path::new("/opt/x/bin/mpirun")), Path::new("/opt/x/bin/mpirun"));
        assert_eq!(below_a_prefix(Path::new("/no such folder/mpirun")), Path::new("/no such folder/mpirun"));
    }

    #[test]
    fn a_launcher_finds_its_own_directory_first() {
        let path = path_beside(Path::new("/opt/impi/bin/mpirun"));
        assert_eq!(std::env::split_paths(&path).next().as_deref(), Some(Path::new("/opt/impi/bin")));
    }
}
