//! Checks of the files that a command line names, made before the work: an error about a missing file must not come
//! minutes later.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use isthmus_region::room;
use isthmus_vm::places::Place;
use rustix::fs::{Access, OFlags, access};

/// Whether `file` can be written, or made where it is; nothing is changed.
///
/// # Errors
/// Why not.
pub fn may_write(file: &Path) -> io::Result<()> {
    match fs::metadata(file) {
        Ok(meta) if meta.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(_) => Ok(access(file, Access::WRITE_OK)?),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let folder = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            if file.file_name().is_none() {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            Ok(access(folder, Access::WRITE_OK | Access::EXEC_OK)?)
        }
        Err(e) => Err(e),
    }
}

/// Writes a file, or into a named pipe, without waiting: a pipe without a reader is an error. A file that did not exist
/// before and cannot be written whole is removed.
///
/// # Errors
/// Why not.
pub fn write(file: &Path, text: &str) -> io::Result<()> {
    let was_there = fs::symlink_metadata(file).is_ok();
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).custom_flags(flags);
    let mut open = options.open(file).map_err(|e| match e.raw_os_error() {
        Some(code) if code == rustix::io::Errno::NXIO.raw_os_error() => {
            io::Error::new(io::ErrorKind::BrokenPipe, "nobody reads this pipe")
        }
        _ => room::told(e, file),
    })?;
    open.write_all(text.as_bytes()).map_err(|e| {
        room::give_up(&open, file, was_there);
        room::told(e, file)
    })
}

fn as_io(error: isthmus_vm::Error) -> io::Error {
    match error {
        isthmus_vm::Error::Io { source, .. } => source,
        other => io::Error::new(io::ErrorKind::InvalidInput, other),
    }
}

/// Whether [`write_beside`] would write `file`; nothing is changed.
///
/// # Errors
/// Why not.
pub fn may_write_beside(file: &Path, shares: &[PathBuf]) -> io::Result<()> {
    let place = Place::find(file, shares, false).map_err(as_io)?;
    if place.is_shared() { place.check().map_err(as_io) } else { Ok(()) }
}

/// As [`write()`], beside VMs that write the directories `shares`. What lies in one of these is written if it is a regular file, and no
/// link that lies there is followed, whatever the VMs have made of it meanwhile.
///
/// # Errors
/// Why not.
pub fn write_beside(file: &Path, shares: &[PathBuf], text: &str) -> io::Result<()> {
    if shares.is_empty() {
        return write(file, text);
    }
    let place = Place::find(file, shares, false).map_err(as_io)?;
    if !place.is_shared() {
        return write(file, text);
    }
    let (mut open, is_new) = place.open(OFlags::WRONLY).map_err(|e| room::told(as_io(e), file))?;
    let written = open.set_len(0).and_then(|()| open.write_all(text.as_bytes()));
    written.map_err(|e| {
        // The error that led here is what counts.
        let _ = open.set_len(0);
        if is_new {
            place.remove();
        }
        room::told(e, file)
    })
}

/// Whether a launcher finds the program that `word` names: at that path, or for a bare name on `path` or in the working
/// directory, which some launchers search, too.
///
/// # Errors
/// What is wrong, in words.
pub fn is_program(word: &OsStr, path: &OsStr) -> Result<(), String> {
    let shown = word.to_string_lossy();
    if word.as_encoded_bytes().contains(&b'/') {
        return match fs::metadata(word) {
            Ok(meta) if meta.is_dir() => Err(format!("{shown} is a directory, not a program")),
            Ok(_) if access(word, Access::EXEC_OK).is_err() => {
                Err(format!("{shown} may not be executed: is it a program, and is `chmod +x` missing?"))
            }
            Ok(_) => Ok(()),
            Err(e) => Err(format!("there is no program {shown}: {e}")),
        };
    }
    if is_on_path(word, path) || may_execute(&Path::new(".").join(word)) {
        Ok(())
    } else {
        Err(format!("there is no program {shown} on the PATH, nor in this directory"))
    }
}

fn may_execute(file: &Path) -> bool {
    file.is_file() && access(file, Access::EXEC_OK).is_ok()
}

/// Whether a directory of `path` has a program of this name.
pub(crate) fn is_on_path(word: &OsStr, path: &OsStr) -> bool {
    std::env::split_paths(path).any(|dir| may_execute(&dir.join(word)))
}

/// The libraries that programs of the MPIs are linked to, and the MPIs' names.
const MPI_LIBRARIES: [(&str, &str); 3] = [
    ("libmpi.so.40", "Open MPI"),
    ("libmpi.so.12", "MPICH or Intel MPI"),
    // Debian's.
    ("libmpich.so.12", "MPICH"),
];
/// Larger programs are not searched.
const MOST_SEARCHED: u64 = 64 << 20;

/// The file of the program that `word` names, as [`is_program`] finds it.
pub fn file(word: &OsStr, path: &OsStr) -> Option<PathBuf> {
    if word.as_encoded_bytes().contains(&b'/') {
        return Some(word.into());
    }
    let mut places = std::env::split_paths(path).chain([".".into()]).map(|dir| dir.join(word));
    places.find(|file| may_execute(file))
}

/// The bytes of the program that `word` names, if it is one for this system.
pub fn program(word: &OsStr, path: &OsStr) -> Option<Vec<u8>> {
    let file = file(word, path)?;
    if fs::metadata(&file).ok()?.len() > MOST_SEARCHED {
        return None;
    }
    fs::read(file).ok().filter(|bytes| bytes.starts_with(b"\x7fELF"))
}

/// Whether a file has this word alone in its table of strings. In programs that only know the word, such as this one, others stand
/// beside it.
fn has(bytes: &[u8], name: &str) -> bool {
    let end = name.len() + 1;
    bytes.windows(end + 1).any(|w| w[0] == 0 && w[end] == 0 && w[1..end] == *name.as_bytes())
}

/// The MPI of a program, if its file shows it and it is not the launcher's: then each rank would be alone in a world of
/// its own, and nothing would fail.
pub fn other_mpi(bytes: &[u8], is_open_mpi: bool) -> Option<&'static str> {
    match MPI_LIBRARIES.map(|(name, _)| has(bytes, name)) {
        [true, false, false] if !is_open_mpi => Some(MPI_LIBRARIES[0].1),
        [false, true, _] if is_open_mpi => Some(MPI_LIBRARIES[1].1),
        [false, false, true] if is_open_mpi => Some(MPI_LIBRARIES[2].1),
        _ => None,
    }
}

/// The MPI whose library a program is linked to, as its file shows it.
pub fn mpi_of(bytes: &[u8]) -> Option<&'static str> {
    MPI_LIBRARIES.iter().find(|(name, _)| has(bytes, name)).map(|(_, whose)| *whose)
}

/// Where another installation of the launcher's MPI is that a program was linked with, as the search path in its file
/// shows: ranks and launcher of two versions seldom understand each other.
pub fn other_installation(bytes: &[u8], launcher: &Path) -> Option<PathBuf> {
    let own = launcher.canonicalize().ok()?.parent()?.parent()?.to_owned();
    // Once for the whole file, which may be large and have thousands of words that look like a path.
    let names = MPI_LIBRARIES.iter().map(|(name, _)| name);
    let needed: Vec<&OsStr> = names.filter(|name| has(bytes, name)).map(OsStr::new).collect();
    if needed.is_empty() {
        return None;
    }
    let strings = bytes.split(|byte| *byte == 0).filter(|s| s.starts_with(b"/") && s.len() < 4096);
    let library = strings.flat_map(|s| s.split(|byte| *byte == b':')).find_map(|folder| {
        let folder = Path::new(OsStr::from_bytes(folder));
        needed.iter().find_map(|name| folder.join(name).canonicalize().ok())
    })?;
    let home = library.parent()?.parent()?;
    (!library.starts_with(&own)).then(|| home.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_program_of_another_mpi_is_recognised() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("program");
        let other = |content: &[u8], is_open_mpi| {
            fs::write(&file, content).unwrap();
            other_mpi(&program(file.as_os_str(), OsStr::new(""))?, is_open_mpi)
        };
        let (open, mpich) = (b"\x7fELF\0libc.so.6\0libmpi.so.40\0", b"\x7fELF\0libmpi.so.12\0");
        assert_eq!((mpi_of(open), mpi_of(mpich)), (Some("Open MPI"), Some("MPICH or Intel MPI")));
        assert_eq!(mpi_of(b"\x7fELF\0libc.so.6\0"), None);
        assert_eq!((other(open, true), other(mpich, false)), (None, None));
        assert_eq!((other(open, false), other(mpich, true)), (Some("Open MPI"), Some("MPICH or Intel MPI")));
        assert_eq!(other(b"\x7fELF\0libmpich.so.12\0", true), Some("MPICH"));
        // A script, one without an MPI, one that has both.
        let both = [open.as_slice(), mpich].concat();
        for content in [b"#! \0libmpi.so.40\0".as_slice(), b"\x7fELF\0libc.so.6\0", &both] {
            assert_eq!((other(content, true), other(content, false)), (None, None));
        }
    }

    #[test]
    fn a_program_of_another_installation_is_recognised() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        for (file, text) in [
            ("one/lib/libmpi.so.40", ""),
            ("one/bin/mpirun", ""),
            ("two/bin/mpirun", ""),
            ("two/lib/libmpi.so.40", ""),
        ] {
            fs::create_dir_all(dir.join(file).parent().unwrap()).unwrap();
            fs::write(dir.join(file), text).unwrap();
        }
        let launchers = ["one/bin/mpirun", "two/bin/mpirun", "none/bin/mpirun"].map(|name| dir.join(name));
        let found = |path: &str| {
            let program = format!("\x7fELF\0libmpi.so.40\0/etc/hosts\0{path}\0");
            launchers.each_ref().map(|launcher| other_installation(program.as_bytes(), launcher))
        };
        let own = format!("/none:{}", dir.join("one/lib").display());
        assert_eq!(found(&own), [None, Some(dir.join("one")), None]);
        assert_eq!(found("/none:/usr"), [None, None, None]);
    }

    #[test]
    fn a_large_program_is_searched_once() {
        let dir = tempfile::tempdir().unwrap();
        let launcher = dir.path().join("mpirun");
        fs::write(&launcher, "").unwrap();
        let large = "/no such folder\0".repeat(200_000);
        let begun = std::time::Instant::now();
        for library in ["libc.so.6", "libmpi.so.40"] {
            let program = format!("\x7fELF\0{library}\0{large}");
            assert_eq!(other_installation(program.as_bytes(), &launcher), None);
        }
        // Searched for each of the words it takes hours.
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    }

    #[test]
    fn a_pipe_without_a_reader_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let e = write(&pipe, "x").unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::BrokenPipe);
        // Opened for reading and writing, so that this open does not wait either.
        let mut reader = fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
        write(&pipe, "figures").unwrap();
        let mut read = [0; 7];
        io::Read::read_exact(&mut reader, &mut read).unwrap();
        assert_eq!(&read, b"figures");
        let plain = dir.path().join("plain");
        write(&plain, "longer").unwrap();
        write(&plain, "short").unwrap();
        assert_eq!(fs::read_to_string(plain).unwrap(), "short");
    }

    #[test]
    fn what_vms_have_put_in_a_files_place_is_left_alone() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("share/sub")).unwrap();
        fs::write(at("users"), "the user's").unwrap();
        fs::create_dir(at("home")).unwrap();
        let shares = [at("share")];
        let write = |name: &str| write_beside(&at(name), &shares, "figures");
        for good in ["share/stats", "share/sub/stats", "stats"] {
            may_write_beside(&at(good), &shares).unwrap();
            fs::write(at(good), "longer than that").unwrap();
            write(good).unwrap();
            assert_eq!(fs::read_to_string(at(good)).unwrap(), "figures");
            fs::remove_file(at(good)).unwrap();
            write(good).unwrap();
        }
        fs::remove_file(at("share/stats")).unwrap();
        symlink("../users", at("share/stats")).unwrap();
        fs::rename(at("share/sub"), at("share/other")).unwrap();
        symlink("../home", at("share/sub")).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, at("share/pipe"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for bad in ["share/stats", "share/sub/stats", "share/pipe", "share/none/stats"] {
            assert!(write(bad).is_err() && may_write_beside(&at(bad), &shares).is_err(), "{bad}");
        }
        assert_eq!(fs::read_to_string(at("users")).unwrap(), "the user's");
        assert!(fs::read_dir(at("home")).unwrap().next().is_none());
        // Elsewhere links are the user's, and pipes have readers.
        symlink("home/stats", at("link")).unwrap();
        write("link").unwrap();
        assert_eq!(fs::read_to_string(at("home/stats")).unwrap(), "figures");
        write_beside(Path::new("/dev/null"), &shares, "figures").unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_written_is_known_before() {
        let dir = tempfile::tempdir().unwrap();
        may_write(&dir.path().join("new")).unwrap();
        assert!(!dir.path().join("new").exists());
        may_write(Path::new("new-in-the-working-directory")).unwrap();
        fs::write(dir.path().join("old"), "x").unwrap();
        may_write(&dir.path().join("old")).unwrap();
        may_write(Path::new("/dev/null")).unwrap();
        for bad in [dir.path().to_owned(), dir.path().join("none/new"), dir.path().join("old/new")] {
            assert!(may_write(&bad).is_err(), "{}", bad.display());
        }
    }

    #[test]
    fn programs_are_searched_where_launchers_do() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("prog");
        let path = dir.path().as_os_str();
        assert!(is_program(file.as_os_str(), path).unwrap_err().contains("no program"));
        fs::write(&file, "#!/bin/sh\n").unwrap();
        assert!(is_program(file.as_os_str(), path).unwrap_err().contains("chmod +x"));
        assert!(is_program(OsStr::new("prog"), path).unwrap_err().contains("PATH"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        is_program(file.as_os_str(), OsStr::new("")).unwrap();
        is_program(OsStr::new("prog"), path).unwrap();
        assert!(is_program(path, path).unwrap_err().contains("directory"));
    }
}
