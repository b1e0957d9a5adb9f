//! Places of files on the host that lie, or may lie, in directories that VMs write.
//!
//! Root in a VM can put anything there, at any moment, and has a directory of its own choice as soon as a path is followed through a
//! symbolic link. So there are three rules where this process uses a path of the user's, which may lead through such a directory:
//! - no symbolic link that lies in one is followed, and the walk goes from descriptor to descriptor, so that none comes in between;
//! - what is opened there is a regular file, and is known to be one before it is opened: a pipe would be waited for, a device do as
//!   devices do;
//! - what is written for longer keeps its descriptor, and its name is not used again.
//!
//! Links elsewhere are the user's own, and are followed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// As many links as the kernel follows in one path.
const MOST_LINKS: u32 = 40;

/// Where a file is, or may be made.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    dir: OwnedFd,
    name: OsString,
    is_shared: bool,
}

/// The directories on the way to a place, and whether each is one that VMs write or lies in one.
struct Way {
    above: Vec<(OwnedFd, bool)>,
    shares: Vec<(u64, u64)>,
    was_shared: bool,
}

fn identity(dir: impl AsFd) -> rustix::io::Result<(u64, u64)> {
    rustix::fs::fstat(dir).map(|stat| (stat.st_dev, stat.st_ino))
}

const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Way {
    fn new(shares: &[PathBuf]) -> rustix::io::Result<Self> {
        let of = |share: &PathBuf| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(share, flags, Mode::empty()).and_then(identity)
        };
        let shares = shares.iter().map(of).collect::<rustix::io::Result<_>>()?;
        let mut way = Self { above: Vec::new(), shares, was_shared: false };
        let root = rustix::fs::openat(CWD, "/", DIRECTORY, Mode::empty())?;
        way.enter(root)?;
        Ok(way)
    }

    fn enter(&mut self, dir: OwnedFd) -> rustix::io::Result<()> {
        let is_shared = self.is_shared() || self.shares.contains(&identity(&dir)?);
        self.was_shared |= is_shared;
        self.above.push((dir, is_shared));
        Ok(())
    }

    fn is_shared(&self) -> bool {
        self.above.last().is_some_and(|(_, is_shared)| *is_shared)
    }

    /// The directory that it has led to so far.
    fn here(&self) -> rustix::io::Result<&OwnedFd> {
        self.above.last().map(|(dir, _)| dir).ok_or(Errno::NOENT)
    }

    /// Back to the root, or to the directory above.
    fn back_to(&mut self, root: bool) {
        let left = if root { 1 } else { self.above.len().saturating_sub(1).max(1) };
        self.above.truncate(left);
    }
}

/// The words of `path` that lead somewhere, in the order in which they are taken off the end.
fn words(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().rev().filter_map(|word| match word {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}

impl Place {
    /// The place that `path` leads to, if VMs write `shares`; with `make`, directories on the way are made.
    ///
    /// # Errors
    /// [`Error::Link`], and [`Error::Io`] where there is no such directory.
    pub fn find(path: &Path, shares: &[PathBuf], make: bool) -> Result<Self> {
        let failed = |e: io::Error| Error::io(format!("open {}", path.display()))(e);
        let absolute = std::path::absolute(path).map_err(failed)?;
        let mut way = Way::new(shares).map_err(|e| failed(e.into()))?;
        let mut todo: Vec<OsString> = words(&absolute).collect();
        let mut links = 0;
        while let Some(name) = todo.pop() {
            if name == ".." {
                way.back_to(false);
                continue;
            }
            let here = way.here().map_err(|e| failed(e.into()))?;
            let kind = rustix::fs::statat(here, &name, AtFlags::SYMLINK_NOFOLLOW)
                .map(|stat| FileType::from_raw_mode(stat.st_mode));
            if kind == Ok(FileType::Symlink) {
                let to = rustix::fs::readlinkat(here, &name, Vec::new()).map_err(|e| failed(e.into()))?;
                let to = PathBuf::from(<OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(to.as_bytes()));
                if way.is_shared() {
                    return Err(Error::Link { link: name.into(), to });
                }
                links += 1;
                if links > MOST_LINKS {
                    return Err(failed(Errno::LOOP.into()));
                }
                if to.is_absolute() {
                    way.back_to(true);
                }
                todo.extend(words(&to));
                continue;
            }
            if todo.is_empty() {
                let is_shared = way.was_shared;
                let (dir, _) = way.above.pop().ok_or_else(|| failed(Errno::NOENT.into()))?;
                return Ok(Self { path: path.to_owned(), dir, name, is_shared });
            }
            let entered =
                enter(here, &name, make && kind == Err(Errno::NOENT)).and_then(|next| way.enter(next));
            entered.map_err(|e| failed(e.into()))?;
        }
        Err(failed(io::ErrorKind::IsADirectory.into()))
    }

    /// Whether the way to it leads through a directory that VMs write.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Whether [`Place::open`] would find a regular file there, or none.
    ///
    /// # Errors
    /// [`Error::Io`]: there is something else.
    pub fn check(&self) -> Result<()> {
        self.found().map(drop)
    }

    fn failed(&self, e: impl Into<io::Error>) -> Error {
        Error::io(format!("open {}", self.path.display()))(e.into())
    }

    /// What is there, neither for reading nor for writing.
    fn found(&self) -> Result<Option<OwnedFd>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = match rustix::fs::openat(&self.dir, &self.name, flags, Mode::empty()) {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(self.failed(e)),
        };
        let stat = rustix::fs::fstat(&found).map_err(|e| self.failed(e))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            let what = "it is not a regular file: remove it, or name another one";
            return Err(self.failed(io::Error::new(io::ErrorKind::InvalidInput, what)));
        }
        Ok(Some(found))
    }

    /// The file there, opened for `access`, or a new one; and whether it is new. A file that was there keeps what is in it.
    ///
    /// # Errors
    /// [`Error::Io`]: it is no regular file, or the system says no.
    pub fn open(&self, access: OFlags) -> Result<(File, bool)> {
        let access = access | OFlags::CLOEXEC;
        let found = self.found()?;
        let file = match &found {
            Some(found) => {
                let itself = format!("/proc/self/fd/{}", found.as_raw_fd());
                rustix::fs::open(itself, access | OFlags::NONBLOCK, Mode::empty())
            }
            None => {
                let new = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
                rustix::fs::openat(&self.dir, &self.name, access | new, Mode::from_raw_mode(0o666))
            }
        };
        Ok((file.map_err(|e| self.failed(e))?.into(), found.is_none()))
    }

    /// Takes away the name of a file that [`Place::open`] has made.
    pub fn remove(&self) {
        // It is gone already where this fails, or cannot be helped.
        let _ = rustix::fs::unlinkat(&self.dir, &self.name, AtFlags::empty());
    }
}

/// Opens the directory `name` in `here`, which is made first if it is to be.
fn enter(here: &OwnedFd, name: &OsStr, make: bool) -> rustix::io::Result<OwnedFd> {
    if make {
        match rustix::fs::mkdirat(here, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
    }
    rustix::fs::openat(here, name, DIRECTORY, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A folder that VMs write, and one beside it with a file of the user's.
    struct Folders(PathBuf);

    impl Folders {
        fn new(name: &str) -> Self {
            let base = std::env::temp_dir().join(format!("isthmus-places-{name}-{}", std::process::id()));
            fs::create_dir_all(base.join("share/sub")).unwrap();
            fs::create_dir_all(base.join("home")).unwrap();
            fs::write(base.join("home/file"), "the user's").unwrap();
            Self(base)
        }

        fn find(&self, path: &str) -> Result<Place> {
            Place::find(&self.0.join(path), &[self.0.join("share")], true)
        }

        fn refusal(&self, path: &str) -> String {
            isthmus_region::error::with_causes(&self.find(path).unwrap_err())
        }
    }

    impl Drop for Folders {
        fn drop(&mut self) {
            assert_eq!(fs::read_to_string(self.0.join("home/file")).unwrap(), "the user's");
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn no_link_is_followed_that_vms_may_have_made() {
        let t = Folders::new("links");
        symlink(t.0.join("home"), t.0.join("share/dir")).unwrap();
        symlink("../home/file", t.0.join("share/file")).unwrap();
        // The user's own, into the share and out of it.
        symlink("share/sub", t.0.join("in")).unwrap();
        symlink(t.0.join("home"), t.0.join("out")).unwrap();
        symlink(t.0.join("share/file"), t.0.join("indirect")).unwrap();
        for bad in
            ["share/file", "share/dir/file", "share/dir", "in/../file", "home/../share/dir/x", "indirect"]
        {
            let text = t.refusal(bad);
            assert!(text.contains("symbolic link") && text.contains("home"), "{bad}: {text}");
        }
        for (good, is_shared) in
            [("share/new", true), ("in/new", true), ("out/file", false), ("share/../home/file", true)]
        {
            assert_eq!(t.find(good).unwrap().is_shared(), is_shared, "{good}");
        }
        assert!(t.refusal("share/sub/..").contains("directory"));
        assert!(t.refusal("home/file/x").contains("ot a directory"));
    }

    #[test]
    fn a_place_is_that_of_the_folder_that_was_found() {
        let t = Folders::new("moved");
        let place = t.find("share/sub/new").unwrap();
        fs::rename(t.0.join("share/sub"), t.0.join("share/moved")).unwrap();
        symlink(t.0.join("home"), t.0.join("share/sub")).unwrap();
        let (_, is_new) = place.open(OFlags::WRONLY).unwrap();
        assert!(is_new && t.0.join("share/moved/new").exists() && !t.0.join("home/new").exists());
        place.remove();
        assert!(!t.0.join("share/moved/new").exists());
        // A link that has come since is not followed, whether it leads anywhere or not.
        for to in ["home/file", "home/none"] {
            symlink(t.0.join(to), t.0.join("share/moved/new")).unwrap();
            assert!(place.open(OFlags::WRONLY).is_err());
            place.remove();
        }
        assert!(!t.0.join("home/none").exists());
    }

    #[test]
    fn pipes_are_neither_opened_nor_waited_for() {
        let t = Folders::new("pipes");
        let pipe = t.0.join("share/pipe");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let e = t.find("share/pipe").unwrap().open(OFlags::WRONLY).unwrap_err();
        assert!(isthmus_region::error::with_causes(&e).contains("not a regular file"), "{e}");
        let (_, is_new) = t.find("share/made/here/file").unwrap().open(OFlags::RDWR).unwrap();
        let (_, again) = t.find("share/made/here/file").unwrap().open(OFlags::RDWR).unwrap();
        assert!(is_new && !again);
    }
}
