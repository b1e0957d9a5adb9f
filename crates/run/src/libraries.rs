//! The libraries that programs load: the provider, which libfabric finds by its directory, and the one for System V IPC, which
//! the dynamic linker is told to load first.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// As installed, and as cargo calls it; libfabric takes whatever ends in `fi.so`.
const PROVIDER: [&str; 2] = ["libisthmus-fi.so", "libisthmus_fi.so"];
/// The same of the library for System V IPC.
const SYSV: [&str; 2] = ["libisthmus-sysv.so", "libisthmus_preload.so"];
/// The same of the library for large allocations.
const ALLOC: [&str; 2] = ["libisthmus-alloc.so", "libisthmus_alloc.so"];
/// How much of its large allocations a process may have in the region, as the library for that is told.
pub const ALLOC_VARIABLE: &str = "ISTHMUS_ALLOC";
/// What tells the dynamic linker which libraries come before all others.
pub const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
/// Bytes of a region for named objects where its programs use System V IPC.
pub const SYSV_BYTES: u64 = 256 << 20;

/// The directory that the user names, if any.
fn named() -> Option<PathBuf> {
    std::env::var_os("ISTHMUS_PROVIDER_PATH").map(PathBuf::from)
}

/// Beside this program, and where `make` and `make install` put libraries.
fn beside() -> Vec<PathBuf> {
    let program = std::env::current_exe().ok();
    let dir = program.as_deref().and_then(Path::parent);
    let places = ["../lib/isthmus", "lib/isthmus", "."];
    dir.into_iter().flat_map(|dir| places.map(|place| dir.join(place))).collect()
}

fn shown(places: &[PathBuf]) -> String {
    places.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn real(path: &Path) -> Result<PathBuf> {
    fs::canonicalize(path).map_err(|e| Error::io(path.display().to_string(), e))
}

/// The directory that holds `libisthmus-fi.so`: `ISTHMUS_PROVIDER_PATH`, else beside this program or where
/// `make install` puts it.
///
/// # Errors
/// [`Error::NoProvider`], [`Error::ProviderPath`].
pub fn provider_directory() -> Result<PathBuf> {
    let places = named().map_or_else(beside, |dir| vec![dir]);
    let found = places.iter().find(|dir| PROVIDER.iter().any(|name| dir.join(name).is_file()));
    found.map_or_else(
        || Err(Error::NoProvider { looked: shown(&places) }),
        |dir| real(dir).and_then(one_of_a_path),
    )
}

/// `directory`, if it can be one of a list with colons between, as libfabric takes `FI_PROVIDER_PATH`.
fn one_of_a_path(directory: PathBuf) -> Result<PathBuf> {
    match directory.as_os_str().as_encoded_bytes().contains(&b':') {
        true => Err(Error::ProviderPath { directory }),
        false => Ok(directory),
    }
}

/// `libisthmus-sysv.so`: in `ISTHMUS_PROVIDER_PATH`, else as the provider is found.
///
/// # Errors
/// [`Error::NoSysv`].
pub fn sysv() -> Result<PathBuf> {
    let places: Vec<PathBuf> = named().into_iter().chain(beside()).collect();
    let mut files = places.iter().flat_map(|dir| SYSV.map(|name| dir.join(name)));
    let found = files.find(|file| file.is_file());
    found.map_or_else(|| Err(Error::NoSysv { looked: shown(&places) }), |file| real(&file))
}

/// `libisthmus-alloc.so`: beside the provider, with which it works.
///
/// # Errors
/// [`Error::NoProvider`], [`Error::NoAlloc`].
pub fn alloc() -> Result<PathBuf> {
    let dir = provider_directory()?;
    let found = ALLOC.iter().map(|name| dir.join(name)).find(|file| file.is_file());
    found.ok_or_else(|| Error::NoAlloc { looked: dir.display().to_string() })
}

/// What makes the dynamic linker load `library` before `others`, which it was told before.
///
/// # Errors
/// [`Error::Preload`].
pub fn preload(library: &Path, others: Option<&OsStr>) -> Result<OsString> {
    // It takes blanks and colons for the end of a name, and knows no way to quote them.
    if library.as_os_str().as_encoded_bytes().iter().any(|b| b.is_ascii_whitespace() || *b == b':') {
        return Err(Error::Preload { library: library.to_owned() });
    }
    let mut value = library.as_os_str().to_owned();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        value.push(":");
        value.push(others);
    }
    Ok(value)
}

/// The same for several libraries, the last of which comes first; none if there is none.
///
/// # Errors
/// As [`preload`].
pub fn preload_all(libraries: &[PathBuf], others: Option<OsString>) -> Result<Option<OsString>> {
    let add = |others: Option<OsString>, library: &PathBuf| preload(library, others.as_deref()).map(Some);
    match libraries.is_empty() {
        true => Ok(None),
        false => libraries.iter().try_fold(others, add),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_before_what_is_there() {
        let of = |library: &str, others: Option<&str>| preload(Path::new(library), others.map(OsStr::new));
        assert_eq!(of("/lib/a.so", None).unwrap(), "/lib/a.so");
        assert_eq!(of("/lib/a.so", Some("")).unwrap(), "/lib/a.so");
        assert_eq!(of("/lib/a.so", Some("/x/b.so c.so")).unwrap(), "/lib/a.so:/x/b.so c.so");
        for bad in ["/my lib/a.so", "/lib:x/a.so"] {
            assert!(matches!(of(bad, None), Err(Error::Preload { .. })), "{bad}");
        }
    }

    #[test]
    fn a_directory_that_libfabric_would_take_for_two_is_refused() {
        assert_eq!(one_of_a_path("/my lib".into()).unwrap(), Path::new("/my lib"));
        let line = one_of_a_path("/lib:x".into()).unwrap_err().line();
        assert!(line.starts_with("/lib:x has a colon in its name") && line.contains("elsewhere"), "{line}");
    }
}
