//! Where a region comes from. The only code that knows which hypervisor or device it is on.
//!
//! Whatever has the memory is a [`Source`]: the host's memfds, a device of a VM ([`Ivshmem::open`]), the local service of a process.
//! A source says how long the first file is, as the header, which says it for the others, is in it, and a device's file need not
//! have a length.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::error::{Error, Result};

/// Where the files of a region come from. The first is mapped before there is a region to ask for more.
pub trait Source: Send + Sync + std::fmt::Debug {
    /// Bytes of the first file.
    fn bytes(&self) -> u64;

    /// The region's file with this number, the first with 0: open for reading, or for writing too where its user may write it.
    ///
    /// # Errors
    /// [`Error::NoFile`]; [`Error::Service`] when the service is gone.
    fn file(&self, index: u32) -> Result<OwnedFd>;
}

/// A region in one file.
#[derive(Debug)]
pub struct OneFile {
    file: OwnedFd,
    bytes: u64,
}

impl OneFile {
    /// A file that has so many bytes.
    pub fn new(file: OwnedFd, bytes: u64) -> Self {
        Self { file, bytes }
    }
}

impl Source for OneFile {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn file(&self, index: u32) -> Result<OwnedFd> {
        if index != 0 {
            return Err(Error::NoFile { file: index, reason: "all sections lie in the first" });
        }
        self.file
            .try_clone()
            .map_err(|_| Error::NoFile { file: index, reason: "no descriptor is left for it" })
    }
}

/// Opens the same memory anew, for reading only.
///
/// # Errors
/// The system's answer.
pub fn read_only(file: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// PCI vendor of ivshmem devices.
const VENDOR: &str = "0x1af4";
/// PCI device of ivshmem devices.
const DEVICE: &str = "0x1110";

/// An ivshmem device of this VM, found in sysfs.
#[derive(Debug, Clone)]
pub struct Ivshmem {
    /// Its folder, `/sys/bus/pci/devices/...`.
    pub folder: PathBuf,
    /// Bytes of BAR2, the shared memory.
    pub bytes: u64,
    /// Whether it has doorbells (BAR1 is present).
    pub doorbell: bool,
}

/// Whether a folder of sysfs is that of an ivshmem device (QEMU, `docs/specs/ivshmem-spec`).
pub fn is_ivshmem(folder: &Path) -> bool {
    let is = |name: &str, value: &str| {
        std::fs::read_to_string(folder.join(name)).is_ok_and(|text| text.trim() == value)
    };
    is("vendor", VENDOR) && is("device", DEVICE)
}

impl Ivshmem {
    /// All ivshmem devices, by PCI address, with memory decoding switched on where that is allowed.
    pub fn find() -> Vec<Self> {
        let mut found: Vec<Self> = std::fs::read_dir("/sys/bus/pci/devices")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| Self::at(&entry.path()))
            .collect();
        found.sort_by(|a, b| a.folder.cmp(&b.folder));
        found
    }

    fn at(folder: &Path) -> Option<Self> {
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
        if !is_ivshmem(folder) {
            return None;
        }
        // A hot-plugged device has memory decoding off; switching it on twice would count twice.
        if read("enable").is_some_and(|v| v.trim() == "0") {
            let _ = std::fs::write(folder.join("enable"), "1");
        }
        let size = |name: &str| std::fs::metadata(folder.join(name)).map(|m| m.len()).ok();
        Some(Self {
            folder: folder.to_path_buf(),
            bytes: size("resource2")?,
            doorbell: size("resource1").is_some(),
        })
    }

    /// Opens the shared memory, read-write; needs root.
    ///
    /// # Errors
    /// [`Error::Service`] naming file and cause.
    pub fn open(&self) -> Result<OneFile> {
        open(&self.folder.join("resource2")).map(|file| OneFile::new(file.into(), self.bytes))
    }
}

fn open(path: &Path) -> Result<File> {
    OpenOptions::new().read(true).write(true).open(path).map_err(|e| Error::Service {
        action: "open the shared memory device",
        reason: format!("{}: {e}", path.display()),
    })
}
