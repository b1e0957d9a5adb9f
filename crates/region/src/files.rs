//! The files that a region's sections lie in.
//!
//! The first begins with the header and is mapped before anything is known. The others are mapped when a section in them is
//! first used: a region of 1,024 peers, each with a file, costs no descriptor, and a process maps only what it reaches.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::fs::SealFlags;

use crate::error::{Error, Result};
use crate::mapping::{Mapping, PeerSection, is_bar, is_device};
use crate::signals;
use crate::source::Source;

/// Files of a region in this process's address space.
#[derive(Debug)]
pub(crate) struct Files {
    first: PeerSection,
    others: Box<[OnceLock<PeerSection>]>,
    /// Held while a file is fetched, so that threads that come to it together fetch it once: with signals blocked, since a handler
    /// that interrupts its holder may come to the same file.
    fetching: Mutex<()>,
    source: Option<Arc<dyn Source>>,
}

impl Files {
    /// The first file of a region that has `count` (at least one), and where the others come from.
    pub(crate) fn new(first: PeerSection, count: u32, source: Option<Arc<dyn Source>>) -> Self {
        let others = (1..count).map(|_| OnceLock::new()).collect();
        Self { first, others, fetching: Mutex::default(), source }
    }

    /// A file; one that is not mapped yet has as many bytes as `bytes` says.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a file that the region does not have; [`Error::NoFile`], also for one that may become
    /// shorter; [`Error::WrongSize`] for one that is shorter than it should be; [`Error::Memory`]; what the source fails with.
    #[inline]
    pub(crate) fn get(&self, index: u32, bytes: impl FnOnce() -> Result<u64>) -> Result<&PeerSection> {
        if index == 0 {
            return Ok(&self.first);
        }
        let cell = usize::try_from(index - 1).ok().and_then(|at| self.others.get(at));
        let cell = cell.ok_or(Error::Invalid { what: "file", value: index.into() })?;
        match cell.get() {
            Some(file) => Ok(file),
            None => self.fetch(index, cell, bytes),
        }
    }

    /// Those that are mapped.
    pub(crate) fn mapped(&self) -> Vec<&PeerSection> {
        let others = self.others.iter().filter_map(OnceLock::get);
        std::iter::once(&self.first).chain(others).collect()
    }

    /// Retires the mapping of each, and maps none from then on.
    ///
    /// # Errors
    /// As [`Mapping::retire`]; the others are retired all the same.
    pub(crate) fn retire(&self) -> Result<()> {
        // A fetch that is under way ends first, and is seen here.
        let _one = signals::lock(&self.fetching);
        let done: Vec<_> = self.mapped().into_iter().map(|file| file.mapping().retire()).collect();
        done.into_iter().collect()
    }

    /// In a forked child, closes what their mappings keep open.
    pub(crate) fn abandon(&self) {
        let others = self.others.iter().filter_map(OnceLock::get);
        std::iter::once(&self.first).chain(others).for_each(|file| file.mapping().abandon());
    }

    #[cold]
    fn fetch<'a>(
        &self,
        index: u32,
        cell: &'a OnceLock<PeerSection>,
        bytes: impl FnOnce() -> Result<u64>,
    ) -> Result<&'a PeerSection> {
        let _one = signals::lock(&self.fetching);
        if let Some(file) = cell.get() {
            return Ok(file);
        }
        let bytes = bytes()?;
        let unusable = |reason| Error::NoFile { file: index, reason };
        if self.first.mapping().is_retired() {
            return Err(unusable("the region was retired in this process"));
        }
        if bytes == 0 {
            return Err(unusable("there is none"));
        }
        let source = self.source.as_ref().ok_or(unusable("there is no service to give its descriptor"))?;
        let fd = source.file(index)?;
        // The length that the table gives bounds all views, so a file that became shorter would be a signal later.
        if !cannot_shrink(fd.as_fd()) {
            return Err(unusable("it may become shorter while it is mapped"));
        }
        let map = Mapping::as_opened(fd.as_fd(), bytes)?;
        Ok(cell.get_or_init(|| map.whole_for_reading()))
    }
}

/// Whether a file keeps its length as long as it is mapped: a sealed memfd, a BAR, or a device of its own.
pub(crate) fn cannot_shrink(fd: BorrowedFd<'_>) -> bool {
    let sealed = rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    sealed || is_bar(fd) || rustix::fs::fstat(fd).is_ok_and(|stat| is_device(&stat))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::create;
    use crate::signals::Blocked;
    use crate::source::OneFile;

    fn is_open() -> bool {
        Blocked::new().added() & (1 << (libc::SIGUSR1 - 1)) != 0
    }

    /// A source that is asked with all signals blocked, as it was when it gave a file.
    #[derive(Debug)]
    struct Asked(OneFile);

    impl Source for Asked {
        fn bytes(&self) -> u64 {
            self.0.bytes()
        }

        fn file(&self, _: u32) -> Result<OwnedFd> {
            assert!(!is_open(), "a handler would wait here for the thread that it has interrupted");
            self.0.file(0)
        }
    }

    #[test]
    fn no_handler_comes_in_while_a_file_is_fetched() {
        let bytes = 1 << 20;
        let file = OneFile::new(create::memory(bytes).unwrap(), bytes);
        let first = Mapping::of(&file).unwrap().whole_for_reading();
        let files = Files::new(first, 2, Some(Arc::new(Asked(file))));
        assert_eq!(files.get(1, || Ok(bytes)).unwrap().len(), bytes);
        assert!(is_open());
        files.retire().unwrap();
        assert!(is_open());
    }
}
