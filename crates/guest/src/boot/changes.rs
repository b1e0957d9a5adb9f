//! Lists the files that were written into the overlay and vanish with the VM.

use rustix::fd::{AsFd, AsRawFd};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Files that the boot itself writes.
const OURS: [&str; 2] = ["/etc/hosts", "/etc/hostname"];

/// A file in the overlay.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    /// Its absolute path in the guest.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

/// The regular files below the overlay's upper directory.
pub(super) fn in_upper(upper: &impl AsFd) -> io::Result<Vec<Change>> {
    // The directory has no path in this root, but its descriptor has.
    let root = PathBuf::from(format!("/proc/self/fd/{}", upper.as_fd().as_raw_fd()));
    let mut found = Vec::new();
    for entry in fs::read_dir(&root)? {
        visit(&entry?, Path::new("/"), &mut found);
    }
    found.retain(|change| !OURS.iter().any(|path| change.path == Path::new(path)));
    found.sort();
    Ok(found)
}

fn visit(entry: &fs::DirEntry, parent: &Path, found: &mut Vec<Change>) {
    let path = parent.join(entry.file_name());
    // The entry's own metadata, without following links: whiteouts (devices), links and sockets are left out.
    let Ok(meta) = entry.metadata() else { return };
    if meta.is_file() {
        found.push(Change { path, bytes: meta.len() });
    } else if meta.is_dir() {
        for inner in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            visit(&inner, &path, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_files_are_listed_with_their_paths_in_the_guest() {
        let dir = std::env::temp_dir().join(format!("isthmus-upper-{}", std::process::id()));
        fs::create_dir_all(dir.join("home/user")).unwrap();
        fs::create_dir_all(dir.join("etc")).unwrap();
        fs::write(dir.join("home/user/result"), "12345").unwrap();
        fs::write(dir.join("etc/hosts"), "ours").unwrap();
        std::os::unix::fs::symlink("/nowhere", dir.join("link")).unwrap();
        let upper = fs::File::open(&dir).unwrap();
        let found = in_upper(&upper);
        fs::remove_dir_all(&dir).unwrap();
        let expected = Change { path: "/home/user/result".into(), bytes: 5 };
        assert_eq!(found.unwrap(), [expected]);
    }
}
