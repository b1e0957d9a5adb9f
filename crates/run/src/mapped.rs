//! Files in /dev/shm that an MPI's ranks map under names of its own choice, and leave there when they are killed.
//!
//! Which of them are this run's can be seen as long as its ranks live, so that is looked at now and then, and before they
//! are told to end.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use rustix::process::getpid;

use crate::tree;

/// How MPICH's files begin; it takes no other place for them.
const PREFIX: &str = "/dev/shm/mpich_shm_";

/// The files that were seen.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    seen: Mutex<BTreeSet<PathBuf>>,
}

impl Mapped {
    /// Notes what the processes below this one have mapped.
    pub(crate) fn look(&self) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for pid in tree::descendants(getpid()).unwrap_or_default() {
            let maps = fs::read_to_string(format!("/proc/{}/maps", pid.as_raw_nonzero())).unwrap_or_default();
            seen.extend(files(&maps));
        }
    }

    /// Removes what is still there. The ranks have ended, or will not be heard of again.
    pub(crate) fn remove(&self) {
        for file in std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner)) {
            // Most often it is gone, as it should be.
            let _ = fs::remove_file(file);
        }
    }
}

/// The files of [`PREFIX`] among the mappings of a process, those apart that have lost their names.
fn files(maps: &str) -> impl Iterator<Item = PathBuf> {
    let paths = maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
    paths.filter(|path| path.starts_with(PREFIX) && !path.ends_with(" (deleted)")).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_an_mpi_that_have_a_name_are_noted() {
        let maps = "7f00-7f10 rw-s 00000000 00:1a 5  /dev/shm/mpich_shm_ab_0\n\
                    7f10-7f20 rw-s 00000000 00:1a 6  /dev/shm/mpich_shm_ab_1 (deleted)\n\
                    7f20-7f30 rw-s 00000000 00:1a 7  /dev/shm/other\n\
                    7f30-7f40 rw-p 00000000 00:00 0  [heap]\n";
        assert_eq!(files(maps).collect::<Vec<_>>(), [PathBuf::from("/dev/shm/mpich_shm_ab_0")]);
    }
}
