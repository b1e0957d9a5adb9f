//! Where there is no room left for a file: which file system that is, and files that are whole or not there.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes that an ordinary user may still write in the file system of `path`, and where that is mounted.
pub fn left(path: &Path) -> Option<(u64, PathBuf)> {
    let there = path.ancestors().map(|p| if p.as_os_str().is_empty() { Path::new(".") } else { p });
    let there = there.into_iter().find_map(|p| fs::canonicalize(p).ok())?;
    let stat = rustix::fs::statvfs(&there).ok()?;
    let device = fs::metadata(&there).ok()?.dev();
    let mount =
        there.ancestors().take_while(|p| fs::metadata(p).is_ok_and(|meta| meta.dev() == device)).last()?;
    // A file system may have room and no place for another file's name.
    let bytes =
        if stat.f_files > 0 && stat.f_favail == 0 { 0 } else { stat.f_bavail.saturating_mul(stat.f_frsize) };
    Some((bytes, mount.to_owned()))
}

/// The same error; one that says that there is no room for what was to be written at `path` also names the file system and
/// the way out.
pub fn told(error: io::Error, path: &Path) -> io::Error {
    let more = match error.kind() {
        ErrorKind::StorageFull => match left(path) {
            Some((bytes, mount)) => {
                format!(
                    "the file system at {} has {} KiB left: make room there",
                    mount.display(),
                    bytes >> 10
                )
            }
            None => "make room there".to_owned(),
        },
        ErrorKind::QuotaExceeded => {
            let mount = left(path).map_or_else(|| path.to_owned(), |(_, mount)| mount);
            format!(
                "your quota in the file system at {} is used up: remove files of yours there",
                mount.display()
            )
        }
        ErrorKind::FileTooLarge => {
            "larger than this process may make a file: raise the limit (ulimit -f)".to_owned()
        }
        _ => return error,
    };
    io::Error::new(error.kind(), format!("{error}; {more}"))
}

/// What to do about an error whose cause is one of this process's or user's limits, as the end of its line.
pub fn limit_told(error: &(dyn std::error::Error + 'static)) -> String {
    use rustix::io::Errno;
    use rustix::process::{Resource, getrlimit};
    let mut next = Some(error);
    while let Some(cause) = next {
        let most =
            |what| getrlimit(what).current.map_or_else(|| "so many".to_owned(), |most| most.to_string());
        let of_io = || cause.downcast_ref::<io::Error>()?.raw_os_error().map(Errno::from_raw_os_error);
        match cause.downcast_ref::<Errno>().copied().or_else(of_io) {
            Some(Errno::MFILE) => {
                return format!(
                    "; a process may have {} open here: raise the limit (ulimit -n)",
                    most(Resource::Nofile)
                );
            }
            Some(Errno::AGAIN) => {
                return format!(
                    "; you may have {} processes and threads here: end some, or raise the limit (ulimit -u, or the container's)",
                    most(Resource::Nproc)
                );
            }
            _ => next = cause.source(),
        }
    }
    String::new()
}

/// Writes a file of which nothing stays where not all of it could be written.
///
/// # Errors
/// As [`told`].
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    let was_there = fs::symlink_metadata(path).is_ok();
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).open(path).map_err(|e| told(e, path))?;
    file.write_all(content.as_ref()).map_err(|e| {
        give_up(&file, path, was_there);
        told(e, path)
    })
}

/// Takes back what was written of a file that did not become whole: half of it might be believed later.
pub fn give_up(file: &fs::File, path: &Path, was_there: bool) {
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return;
    }
    // The error that led here is what counts.
    let _ = file.set_len(0);
    if !was_there {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_system_is_named_and_other_errors_are_left_alone() {
        let full = io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
        let text = told(full, Path::new("/proc/no/such/file")).to_string();
        assert!(text.contains("at /proc has 0 KiB left: make room there"), "{text}");
        let other = io::Error::from_raw_os_error(rustix::io::Errno::ACCESS.raw_os_error());
        assert_eq!(
            told(other, Path::new("/")).raw_os_error(),
            Some(rustix::io::Errno::ACCESS.raw_os_error())
        );
    }

    #[test]
    fn limits_are_named() {
        let open = io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error());
        assert!(limit_told(&open).contains("ulimit -n"));
        let outer = crate::Error::Memory { action: "map", bytes: 1, source: rustix::io::Errno::NOMEM };
        assert_eq!(limit_told(&outer), "");
        let outer = crate::Error::Memory { action: "map", bytes: 1, source: rustix::io::Errno::MFILE };
        assert!(limit_told(&outer).contains("ulimit -n"));
    }

    #[test]
    fn a_file_that_finds_no_room_is_not_left_behind() {
        // Takes any name, and no byte.
        let error = write(Path::new("/dev/full"), "x").unwrap_err();
        assert!(error.to_string().contains("make room"), "{error}");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        write(&file, "whole").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"whole");
        let open = OpenOptions::new().write(true).open(&file).unwrap();
        give_up(&open, &file, true);
        assert_eq!(fs::metadata(&file).unwrap().len(), 0);
        give_up(&open, &file, false);
        assert!(!file.exists());
    }
}
