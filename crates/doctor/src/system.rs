//! Where checks read the machine: its files, below a root that tests choose.

use std::fs;
use std::path::{Path, PathBuf};

/// A machine's files.
#[derive(Debug, Clone)]
pub struct System {
    root: PathBuf,
}

impl System {
    /// This machine.
    pub fn real() -> Self {
        Self { root: "/".into() }
    }

    /// A stand-in whose files lie below `root`.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// A stand-in with these files, which exist as long as their folder does.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> (tempfile::TempDir, Self) {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let system = Self::below(dir.path());
        (dir, system)
    }

    /// The place of a file that is named from `/` on.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name.trim_start_matches('/'))
    }

    /// A small file's text without white space at its end; none if it cannot be read.
    pub fn read(&self, name: &str) -> Option<String> {
        let bytes = fs::read(self.path(name)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\0', ' ']).to_owned())
    }

    /// A file that holds one number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.read(name)?.trim().parse().ok()
    }

    /// What a folder has, sorted.
    pub fn list(&self, name: &str) -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> =
            fs::read_dir(self.path(name)).into_iter().flatten().flatten().map(|e| e.path()).collect();
        all.sort();
        all
    }

    /// The value of `key` in a file of lines `key: value`, as `/proc/cpuinfo` and `/proc/meminfo` are.
    pub fn value(&self, name: &str, key: &str) -> Option<String> {
        let text = self.read(name)?;
        let line = text.lines().find(|l| l.split(':').next().is_some_and(|k| k.trim() == key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    }
}

/// The number in front of a text, as in `16384 kB`.
pub fn leading(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// Bytes as people write them.
pub fn mib(bytes: u64) -> String {
    if bytes >= 10 << 30 { format!("{} GiB", bytes >> 30) } else { format!("{} MiB", bytes >> 20) }
}

/// The last part of a path, for people.
pub fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
}
