//! The memory files of a region, and how they are given out.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use isthmus_region::dax;
use isthmus_region::membership::Shape;
use isthmus_region::source::{Source, read_only};
use isthmus_region::{Error as RegionError, create};
use rustix::fs::Mode;
use rustix::io::Errno;

use crate::error::{Error, Result};

/// All files of a region, as this service has them: to be written. It writes the host section, the sections of the peers whose
/// local service it is, and those of the dead.
#[derive(Debug)]
pub(crate) struct Memfds {
    files: Vec<OwnedFd>,
    /// Bytes of the region in the first.
    bytes: u64,
    /// What a memory device begins with, if VMs have one.
    head: Option<Arc<dax::Head>>,
}

impl Memfds {
    /// Makes and fills a file of each length. If there are several, those that are given out for reading shall not be opened again
    /// for writing, which the owner of a file can only do once its mode says so: all but the one that is `opened` by others of this user
    /// to be written, if there is one.
    pub(crate) fn create(lengths: &[u64], opened: Option<u32>, huge_pages: Option<u64>) -> Result<Arc<Self>> {
        // All together, before the first takes any.
        create::check_room(lengths.iter().fold(0, |sum, bytes| bytes.saturating_add(sum)), huge_pages)?;
        let make = |(index, bytes): (u32, &u64)| {
            let file = create::memory_in(*bytes, huge_pages)?;
            if lengths.len() > 1 {
                let mode = if Some(index) == opened { Mode::RUSR | Mode::WUSR } else { Mode::RUSR };
                rustix::fs::fchmod(&file, mode).map_err(failed("close a file of the region"))?;
            }
            Ok(file)
        };
        let files = (0..).zip(lengths).map(make).collect::<Result<_>>()?;
        Ok(Arc::new(Self { files, bytes: lengths.first().copied().unwrap_or(0), head: None }))
    }

    /// The same of one file that VMs have as a memory device.
    pub(crate) fn create_for_dax(bytes: u64, uuid: [u64; 2], huge_pages: Option<u64>) -> Result<Arc<Self>> {
        let file = create::memory_for_dax(bytes, huge_pages)?;
        let head = dax::Head::write(file.as_fd(), bytes, uuid)?;
        Ok(Arc::new(Self { files: vec![file], bytes, head: Some(Arc::new(head)) }))
    }

    /// What a memory device begins with, if VMs have one.
    pub(crate) fn head(&self) -> Option<Arc<dax::Head>> {
        self.head.clone()
    }

    fn get(&self, index: u32) -> std::result::Result<&OwnedFd, RegionError> {
        let file = usize::try_from(index).ok().and_then(|index| self.files.get(index));
        file.ok_or(RegionError::NoFile { file: index, reason: "the region has fewer" })
    }

    /// The first file.
    pub(crate) fn first(&self) -> &OwnedFd {
        &self.files[0]
    }

    /// All of them, in order.
    pub(crate) fn all(&self) -> &[OwnedFd] {
        &self.files
    }
}

impl Source for Memfds {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn file(&self, index: u32) -> std::result::Result<OwnedFd, RegionError> {
        self.get(index)?.try_clone().map_err(|e| unavailable(index, Errno::from_io_error(&e)))
    }
}

/// The files as the processes of one peer get them: to be written where that peer's section or the shared one lies.
#[derive(Debug)]
pub(crate) struct View {
    all: Arc<Memfds>,
    own: u32,
    shared: Option<u32>,
}

impl View {
    /// For a peer whose section lies in file `own`.
    pub(crate) fn new(all: &Arc<Memfds>, shape: &Shape, own: u32) -> Self {
        let shared = (shape.shared_bytes > 0).then_some(shape.shared_file);
        Self { all: Arc::clone(all), own, shared }
    }
}

impl Source for View {
    fn bytes(&self) -> u64 {
        self.all.bytes
    }

    fn file(&self, index: u32) -> std::result::Result<OwnedFd, RegionError> {
        match index == self.own || Some(index) == self.shared {
            true => self.all.file(index),
            false => read_only(self.all.get(index)?).map_err(|e| unavailable(index, Some(e))),
        }
    }
}

fn unavailable(file: u32, errno: Option<Errno>) -> RegionError {
    let reason = match errno {
        Some(Errno::MFILE | Errno::NFILE) => "the service may not open more descriptors (its ulimit -n)",
        _ => "the service cannot open it",
    };
    RegionError::NoFile { file, reason }
}

fn failed(action: &'static str) -> impl Fn(Errno) -> Error {
    move |source| Error::System { action, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_do_not_fit_together_are_refused_together() {
        // Far more than there is anywhere, so that nothing is filled whoever looks at it.
        let lengths = [1 << 20, 1 << 61, 1 << 61];
        let refused = Memfds::create(&lengths, None, None).unwrap_err().to_string();
        let all = lengths.iter().sum::<u64>();
        assert!(refused.contains(&format!("a region of {all} bytes does not fit")), "{refused}");
        assert!(refused.contains("are available") && refused.contains("--region-size"), "{refused}");

        let lengths = [1 << 21, 1 << 45];
        match Memfds::create(&lengths, None, Some(1 << 21)).unwrap_err() {
            Error::Region(RegionError::NoHugePages { bytes, .. }) => {
                assert_eq!(bytes, lengths.iter().sum::<u64>())
            }
            // A machine without such pages.
            e => assert!(matches!(e, Error::Region(RegionError::NoSuchHugePages { .. })), "{e}"),
        }
    }
}
