//! The files of a system, reached from its root. Links in it lead where they lead in that system: never out of it, whoever has made
//! them, and also while they change. Only plain files are opened: a device's node would be a device of this machine.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid, XattrFlags};
use rustix::io::Errno;

/// How often a path is tried whose folders move meanwhile.
const TRIES: u32 = 64;
/// What SELinux knows a file by.
const LABEL: &str = "security.selinux";

/// The root of a system, by its descriptor.
pub(super) struct Root {
    folder: OwnedFd,
    /// It is this process's own root, and the kernel is older than [`rustix::fs::openat2`]. Nothing is outside of it.
    is_plain: bool,
}

impl Root {
    /// The system whose root is at `path`.
    ///
    /// # Errors
    /// The system's answer; `NOSYS` for a kernel that cannot keep paths below a folder.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty())?;
        let mut root = Self { folder, is_plain: false };
        match root.reach(Path::new(""), OFlags::DIRECTORY) {
            Err(Errno::NOSYS) if path == Path::new("/") => root.is_plain = true,
            other => drop(other?),
        }
        Ok(root)
    }

    /// A descriptor that stands for what is at a path, without opening it.
    fn reach(&self, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let below: PathBuf = Path::new(".").join(path.strip_prefix("/").unwrap_or(path));
        let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
        if self.is_plain {
            return rustix::fs::openat(&self.folder, below, flags, Mode::empty());
        }
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..TRIES {
            match rustix::fs::openat2(&self.folder, &below, flags, Mode::empty(), within) {
                // A folder was moved, so that it is not known whether `..` has led out of the root.
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return other,
            }
        }
        Err(Errno::AGAIN)
    }

    /// What is at a path.
    pub(super) fn status(&self, path: &Path) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(self.reach(path, OFlags::empty())?)?)
    }

    pub(super) fn is_folder(&self, path: &Path) -> bool {
        self.reach(path, OFlags::DIRECTORY).is_ok()
    }

    /// Opens a plain file for reading.
    fn file(&self, path: &Path) -> io::Result<File> {
        let place = self.reach(path, OFlags::empty())?;
        if FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it is no plain file"));
        }
        File::open(format!("/proc/self/fd/{}", place.as_raw_fd()))
    }

    /// The contents of a plain file of `longest` bytes at most.
    pub(super) fn read(&self, path: &Path, longest: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file(path)?.take(longest + 1).read_to_end(&mut bytes)?;
        match u64::try_from(bytes.len()) {
            Ok(len) if len <= longest => Ok(bytes),
            _ => Err(io::Error::other(format!("it has more than {longest} bytes"))),
        }
    }

    /// The folder of a path, and the name there.
    fn place<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a Path)> {
        let name = path.file_name().ok_or(Errno::INVAL)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Ok((self.reach(folder, OFlags::DIRECTORY)?, Path::new(name)))
    }

    /// Makes a folder and those that it is in, where they are not there.
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        if self.is_folder(path) {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            self.make_folder(parent)?;
        }
        let (folder, name) = self.place(path)?;
        match rustix::fs::mkdirat(&folder, name, Mode::from_raw_mode(0o777)) {
            Err(Errno::EXIST) | Ok(()) => drop(self.reach(path, OFlags::DIRECTORY)?),
            Err(e) => return Err(e.into()),
        }
        Ok(())
    }

    /// Writes a new file and puts it in place of the old: a running program can be replaced, but not written to.
    pub(super) fn write(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            self.make_folder(folder)?;
        }
        self.put(path, bytes, &|new| rustix::fs::fchmod(new, Mode::from_raw_mode(mode)))
    }

    /// The same for a file that is there, whose owner, mode and label the new one gets.
    pub(super) fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let old = self.file(path)?;
        let status = rustix::fs::fstat(&old)?;
        self.put(path, bytes, &|new| {
            let mut label = [0_u8; 256];
            if let Ok(len) = rustix::fs::fgetxattr(&old, LABEL, &mut label[..]) {
                rustix::fs::fsetxattr(new, LABEL, &label[..len], XattrFlags::empty())?;
            }
            let (user, group) = (Uid::from_raw(status.st_uid), Gid::from_raw(status.st_gid));
            rustix::fs::fchown(new, Some(user), Some(group))?;
            rustix::fs::fchmod(new, Mode::from_raw_mode(status.st_mode & 0o7777))
        })
    }

    fn put(
        &self,
        path: &Path,
        bytes: &[u8],
        prepare: &dyn Fn(&File) -> rustix::io::Result<()>,
    ) -> io::Result<()> {
        let (folder, name) = self.place(path)?;
        let new = name.with_extension("isthmus-new");
        let done = Self::make(&folder, &new, bytes, prepare)
            .and_then(|()| Ok(rustix::fs::renameat(&folder, &new, &folder, name)?));
        if done.is_err() {
            // It is in no record.
            let _ = rustix::fs::unlinkat(&folder, &new, AtFlags::empty());
        }
        done
    }

    /// Makes a file that was not there: nothing that is there has its name afterwards, or is written to.
    fn make(
        folder: impl AsFd,
        name: &Path,
        bytes: &[u8],
        prepare: &dyn Fn(&File) -> rustix::io::Result<()>,
    ) -> io::Result<()> {
        match rustix::fs::unlinkat(&folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(&folder, name, flags, Mode::from_raw_mode(0o600))?);
        file.write_all(bytes)?;
        Ok(prepare(&file)?)
    }

    /// Removes a file, or a link as such, if it is there.
    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        let removed = self
            .place(path)
            .and_then(|(folder, name)| Ok(rustix::fs::unlinkat(folder, name, AtFlags::empty())?));
        match removed {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Removes a folder that is empty.
    pub(super) fn remove_folder(&self, path: &Path) -> io::Result<()> {
        let (folder, name) = self.place(path)?;
        Ok(rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR)?)
    }
}
