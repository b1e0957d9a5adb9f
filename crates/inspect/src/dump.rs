//! `isthmus region dump`: a copy of a region in a file, to be read later or elsewhere. The files of a region that has several stand
//! in it one after the other.
//!
//! Members write while it is copied, so distant parts are not of one moment. The tables are copied again until neither the
//! membership nor a directory has changed meanwhile, as their generations show.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use isthmus_attach::daemon::not_ignored;
use isthmus_region::directory::places;
use isthmus_region::format::{directory, header};
use isthmus_region::membership::Shape;
use isthmus_region::reader::Reader;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::{Error, Result};
use crate::survey::{Depth, look};

/// Bytes copied at a time; blocks of zeros stay holes in the file.
const BLOCK: u64 = 64 << 10;
/// Copies of the tables, at most.
const TRIES: u32 = 8;

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes that are not holes.
    pub data: u64,
    /// Whether membership and directories are of one moment.
    pub consistent: bool,
}

/// Copies a region into a new file that only its owner may read: messages may be in it. The file is there once it is whole; until
/// then its name is FILE.PID.part, and an error or a signal removes it.
///
/// # Errors
/// [`Error::Exists`] unless `replace`; [`Error::File`], [`Error::Read`].
pub fn write(reader: &Reader, what: &str, path: &Path, replace: bool) -> Result<Written> {
    let failed = |action| move |source| Error::File { action, path: path.to_path_buf(), source };
    let is_there = || Error::Exists { path: path.to_path_buf() };
    if !replace && fs::symlink_metadata(path).is_ok() {
        return Err(is_there());
    }
    let mut part = path.as_os_str().to_owned();
    part.push(format!(".{}.part", std::process::id()));
    let part = PathBuf::from(part);
    // Left by a process that was killed and had this number.
    let _ = fs::remove_file(&part);
    // Signals that come before the file is made wait for the thread that removes it.
    let signals = Signals::new(not_ignored(&[SIGINT, SIGTERM, SIGHUP]));
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part);
    if let Ok(signals) = signals {
        remove_at_a_signal(part.clone(), signals);
    }
    let file = opened.map_err(failed("create"))?;
    let written = copy(reader, &file, what, (path, &part)).and_then(|written| {
        // A process that has the former file open keeps it.
        let renamed = match renameat_with(CWD, &part, CWD, path, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST | Errno::INVAL | Errno::NOSYS) if replace => rustix::fs::rename(&part, path),
            // A file system without this (NFS, 9p).
            Err(Errno::INVAL | Errno::NOSYS) if fs::symlink_metadata(path).is_ok() => Err(Errno::EXIST),
            Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::rename(&part, path),
            renamed => renamed,
        };
        match renamed {
            Err(Errno::EXIST) => Err(is_there()),
            renamed => renamed.map_err(|e| failed("create")(e.into())),
        }
        .map(|()| written)
    });
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

/// For as long as the process lives: signals that nobody takes would have no effect any more.
fn remove_at_a_signal(part: PathBuf, mut signals: Signals) {
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let _ = fs::remove_file(part);
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    });
}

/// `path` is what the file will be, and `part` what it is.
fn copy(reader: &Reader, file: &File, what: &str, (path, part): (&Path, &Path)) -> Result<Written> {
    let unread = |source| Error::Read { what: what.to_owned(), source };
    let unwritten = |e| Error::File {
        action: "write",
        path: path.to_path_buf(),
        source: isthmus_region::room::told(e, part),
    };
    file.set_len(reader.len()).map_err(unwritten)?;
    let mut data = 0;
    let mut buffer = vec![0; usize::try_from(BLOCK).unwrap_or(4096)];
    let mut range = |from: u64, to: u64, again: bool| -> Result<u64> {
        let (mut at, mut data) = (from, 0);
        while at < to {
            let len = (to - at).min(BLOCK);
            let block = &mut buffer[..usize::try_from(len).unwrap_or(0)];
            reader.bytes("region", at, block).map_err(unread)?;
            if again || block.iter().any(|b| *b != 0) {
                file.write_all_at(block, at).map_err(unwritten)?;
                data += len;
            }
            at += len;
        }
        Ok(data)
    };
    data += range(0, reader.len(), false)?;
    for _ in 0..TRIES {
        let before = generations(reader);
        for (from, to) in &before.tables {
            range(*from, *to, true)?;
        }
        if generations(reader) == before {
            return Ok(Written { bytes: reader.len(), data, consistent: true });
        }
    }
    Ok(Written { bytes: reader.len(), data, consistent: false })
}

/// The generations of a region and its members, and where the tables are that they belong to.
#[derive(PartialEq)]
struct Generations {
    values: Vec<u64>,
    tables: Vec<(u64, u64)>,
}

/// Empty if the bytes are not a region that can be understood: they are copied as they are.
fn generations(reader: &Reader) -> Generations {
    let mut found = Generations { values: Vec::new(), tables: Vec::new() };
    let word = |at| {
        let mut words = [0];
        reader.words("generation", at, &mut words).map_or(0, |()| words[0])
    };
    let Some(survey) = look(reader, Depth::Tables).ok().and_then(|l| l.survey) else { return found };
    found.values.push(word(header::GENERATION));
    let (peers, endpoints) = (survey.region.places, survey.region.endpoints_per_member);
    let (shared, objects) = (survey.region.shared_bytes, survey.region.object_places);
    let shape =
        Shape::new(reader.len(), [0; 2], peers, endpoints).and_then(|s| s.with_shared(shared, objects));
    let shape = shape.and_then(|s| s.with_files(survey.region.files, 0));
    let Ok(shape) = shape else { return found };
    found.tables.push((0, shape.host_bytes.min(reader.len())));
    for member in survey.members.iter().filter(|m| m.heap_bytes > 0) {
        found.values.push(word(member.section + directory::GENERATION));
        found.tables.push((member.section, member.section + places(&shape).heap.min(member.section_bytes)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_has_the_same_bytes_holes_and_one_reader() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let mut bytes = vec![0; 300_000];
        bytes[200_000] = 9;
        fs::write(&from, &bytes).unwrap();
        let reader = Reader::new(File::open(&from).unwrap().into()).unwrap();
        let written = write(&reader, "it", &to, false).unwrap();
        assert_eq!((written.bytes, written.data), (300_000, BLOCK));
        assert_eq!(fs::read(&to).unwrap(), bytes);
        assert_eq!(fs::metadata(&to).unwrap().mode() & 0o777, 0o600);
        assert!(
            matches!(write(&reader, "it", &to, false), Err(Error::Exists { .. })),
            "nothing is overwritten unasked"
        );
        write(&reader, "it", &to, true).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing else is left");
    }
}
