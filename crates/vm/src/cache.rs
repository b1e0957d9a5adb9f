//! The user's cache directory: kernels, initramfs images, the KVM verdict. Everything in it can be deleted at any time.

use crate::error::{Error, Result};
use isthmus_region::room;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// `$XDG_CACHE_HOME/isthmus`, else `~/.cache/isthmus`; created if need be.
pub fn dir() -> Result<PathBuf> {
    let base = absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .ok_or(Error::NoCacheDir)?;
    let dir = base.join("isthmus");
    make(&dir)?;
    Ok(dir)
}

/// The remedy if the cache cannot be written.
pub const ELSEWHERE: &str = "set XDG_CACHE_HOME to a directory elsewhere";

fn absolute(variable: &str) -> Option<PathBuf> {
    // By the XDG specification, a relative path is ignored.
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Creates a directory of the cache and its parents.
pub fn make(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)
        .map_err(|e| Error::io(format!("create the cache directory {}", dir.display()))(told(e, dir)))
}

/// As [`room::told`], with the remedy for a cache.
pub fn told(error: io::Error, path: &Path) -> io::Error {
    use io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    let kind = error.kind();
    let told = room::told(error, path);
    match kind {
        StorageFull | QuotaExceeded => io::Error::new(kind, format!("{told}, or {ELSEWHERE}")),
        ReadOnlyFilesystem | PermissionDenied => io::Error::new(kind, format!("{told}; {ELSEWHERE}")),
        _ => told,
    }
}

/// An exclusive lock on one part of the cache, held until dropped; the kernel drops it with a killed process.
pub struct Lock {
    _file: File,
}

/// Waits for the lock file `name` in `dir`.
pub fn lock(dir: &Path, name: &str) -> Result<Lock> {
    let path = dir.join(name);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|e| Error::io(format!("open {}", path.display()))(told(e, &path)))?;
    flock(&file, FlockOperation::LockExclusive)
        .map_err(|error| Error::io(format!("lock {}", path.display()))(error.into()))?;
    Ok(Lock { _file: file })
}

/// A key for "this very file": its path, size, modification time and inode.
pub fn file_key(path: &Path, into: &mut DefaultHasher) -> Result<()> {
    let meta = fs::metadata(path).map_err(Error::io(format!("read {}", path.display())))?;
    path.hash(into);
    meta.len().hash(into);
    meta.mtime().hash(into);
    meta.mtime_nsec().hash(into);
    meta.ino().hash(into);
    meta.dev().hash(into);
    Ok(())
}

/// Sixteen hexadecimal digits from a hasher. Not cryptographic: the cache belongs to the user alone.
pub fn key_text(hasher: &DefaultHasher) -> String {
    format!("{:016x}", hasher.finish())
}

/// Writes a file so that others see either nothing or all of it.
pub fn write_atomically(path: &Path, content: &[u8]) -> Result<()> {
    let temporary = path.with_extension(format!("tmp{}", std::process::id()));
    write(&temporary, content)?;
    fs::rename(&temporary, path).map_err(Error::io(format!("create {}", path.display())))
}

/// Writes a file and syncs it to disk: a file that is renamed into place must not lose its content if the machine stops. A
/// file that could not be written whole is removed.
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    File::create(path).and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all())).map_err(
        |e| {
            let e = told(e, path);
            // The error of the write is the one to report.
            let _ = fs::remove_file(path);
            Error::io(format!("write {}", path.display()))(e)
        },
    )
}
