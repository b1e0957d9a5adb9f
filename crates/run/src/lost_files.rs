//! Files that ranks wrote into a VM's own part of the file system and that vanish with it: listed when the run ends.

use std::path::{Path, PathBuf};

use isthmus_guest::control::Changes;
use isthmus_region::text::printable;

/// Most lines that name a file.
const MAX_LINES: usize = 20;
/// Where programs leave files that are not expected to stay.
const SCRATCH: [&str; 4] = ["/tmp", "/run", "/var", "/dev"];

/// What was lost in all VMs of a run.
#[derive(Debug, Default)]
pub struct LostFiles {
    named: Vec<(String, PathBuf, u64)>,
    scratch: u64,
    more: u64,
    errors: Vec<String>,
}

fn is_scratch(path: &Path) -> bool {
    // Open MPI's session directory is elsewhere if TMPDIR says so.
    let session = path.components().any(|part| {
        let name = part.as_os_str().as_encoded_bytes();
        name.starts_with(b"prte.") || name.starts_with(b"ompi.") || name.starts_with(b"pmix")
    });
    session || SCRATCH.iter().any(|dir| path.starts_with(dir))
}

impl LostFiles {
    /// Adds what VM `vm` listed.
    pub fn add(&mut self, vm: &str, changes: Changes) {
        for (path, bytes) in changes.files {
            if is_scratch(&path) {
                self.scratch += 1;
            } else {
                self.named.push((vm.to_owned(), path, bytes));
            }
        }
        self.more = self.more.saturating_add(changes.more);
        self.errors.extend(
            changes
                .error
                .map(|why| format!("{vm} cannot list the files that vanish with it: {}", printable(&why))),
        );
    }

    /// Notes that VM `vm` has not said in time what it would list.
    pub fn add_unknown(&mut self, vm: &str) {
        self.errors.push(format!(
            "{vm} did not say in time which files vanish with it: what its ranks wrote outside the shared directories is gone (--writable DIR keeps such files)"
        ));
    }

    /// The lines to print; none if nothing that matters was lost.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = self.errors.clone();
        if self.named.is_empty() && self.more == 0 {
            return lines;
        }
        lines.push(
            "written outside the shared directories and gone with the VMs (--writable DIR keeps such files):"
                .into(),
        );
        // One line of the twenty is for the count of the rest.
        let shown = if self.named.len() > MAX_LINES { MAX_LINES - 1 } else { self.named.len() };
        lines.extend(self.named[..shown].iter().map(|(vm, path, bytes)| {
            format!("  {vm}:{} ({bytes} bytes)", printable(&path.to_string_lossy()))
        }));
        let rest = self.more.saturating_add((self.named.len() - shown) as u64);
        if rest > 0 {
            lines.push(format!("  and {rest} more"));
        }
        if self.scratch > 0 {
            lines.push(format!("  and {} in /tmp, /run, /var and the MPI's session directory", self.scratch));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(paths: &[&str]) -> Changes {
        Changes { files: paths.iter().map(|path| (path.into(), 7)).collect(), ..Changes::default() }
    }

    #[test]
    fn scratch_files_alone_are_not_reported() {
        let mut lost = LostFiles::default();
        lost.add("vm0", changes(&["/tmp/a", "/var/log/b", "/home/u/prte.host.1/c"]));
        assert!(lost.lines().is_empty());
        lost.add("vm1", changes(&["/home/u/result"]));
        let lines = lost.lines();
        assert_eq!(
            lines[1..],
            ["  vm1:/home/u/result (7 bytes)", "  and 3 in /tmp, /run, /var and the MPI's session directory"]
        );
    }

    #[test]
    fn never_more_than_twenty_lines_of_files() {
        let mut lost = LostFiles::default();
        let paths: Vec<String> = (0..30).map(|i| format!("/home/u/{i}")).collect();
        lost.add("vm0", changes(&paths.iter().map(String::as_str).collect::<Vec<_>>()));
        let lines = lost.lines();
        assert_eq!(lines.len(), 1 + MAX_LINES);
        assert_eq!(lines.last().unwrap(), "  and 11 more");
    }
}
