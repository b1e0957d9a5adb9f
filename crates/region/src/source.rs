//! Where a region comes from. The only code that knows which hypervisor or device it is on.
//!
//! Whatever has the memory is a [`Source`]: the host's memfds, a device of a VM ([`Ivshmem::open`]), the local service of a process.
//! A source says how long the first file is, as the header, which says it for the others, is in it, and a device's file need not
//! have a length.

use std::fs::OpenOptions;
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

    /// The same file for the process with this area, which may grant pages where that is possible.
    ///
    /// # Errors
    /// As [`Source::file`].
    fn file_for_area(&self, index: u32, area: u32) -> Result<OwnedFd> {
        let _ = area;
        self.file(index)
    }

    /// A process that had this area is gone, and nobody writes any more to what it had: what was kept of its pages for that is let go.
    fn settle(&self, area: u32) {
        let _ = area;
    }

    /// The same file, open for reading only, whoever its user is.
    ///
    /// # Errors
    /// As [`Source::file`].
    fn file_for_reading(&self, index: u32) -> Result<OwnedFd> {
        read_only(&self.file(index)?).map_err(|source| Error::Service {
            action: "open the region for reading",
            reason: source.to_string(),
        })
    }
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
    /// Bytes of BAR2, the shared memory; 0 if it got no address.
    pub bytes: u64,
    /// Whether it has doorbells (BAR1 is present).
    pub doorbell: bool,
    /// The number of the slot that its root port has, where that can be read, which takes root. QEMU says it, and nothing that a
    /// VM writes changes it.
    pub slot: Option<u32>,
}

impl Ivshmem {
    /// All ivshmem devices, by PCI address. Changes nothing.
    pub fn find() -> Vec<Self> {
        Self::below(Path::new("/"))
    }

    /// As [`Ivshmem::find`], in the files below `root`.
    pub fn below(root: &Path) -> Vec<Self> {
        let mut found: Vec<Self> = std::fs::read_dir(root.join("sys/bus/pci/devices"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| Self::at(&entry.path()))
            .collect();
        found.sort_by(|a, b| a.folder.cmp(&b.folder));
        found
    }

    /// The device with this folder, if it is one (QEMU, `docs/specs/ivshmem-spec`).
    fn at(folder: &Path) -> Option<Self> {
        let is = |name: &str, value: &str| {
            std::fs::read_to_string(folder.join(name)).is_ok_and(|text| text.trim() == value)
        };
        if !is("vendor", VENDOR) || !is("device", DEVICE) {
            return None;
        }
        let size = |name: &str| std::fs::metadata(folder.join(name)).map(|m| m.len()).ok();
        Some(Self {
            folder: folder.to_path_buf(),
            bytes: size("resource2").unwrap_or(0),
            doorbell: size("resource1").is_some(),
            slot: port_of(folder).and_then(|port| slot_in(&std::fs::read(port.join("config")).ok()?)),
        })
    }

    /// Switches memory decoding on; needs root. Firmware does that for a device that is there at power-on, but not after a
    /// direct kernel start, and nobody does it for one that is plugged in later.
    ///
    /// # Errors
    /// [`Error::Service`] naming file and cause.
    pub fn switch_on(&self) -> Result<()> {
        let enable = self.folder.join("enable");
        let failed = |e| failed("switch the shared memory device on", &enable, &e);
        // Switching it on twice would count twice.
        match std::fs::read_to_string(&enable).map_err(failed)?.trim() {
            "0" => std::fs::write(&enable, "1").map_err(failed),
            _ => Ok(()),
        }
    }

    /// Opens the shared memory, read-write; needs root.
    ///
    /// # Errors
    /// [`Error::Service`] naming file and cause.
    pub fn open(&self) -> Result<OneFile> {
        Ok(OneFile::new(self.memory(true)?, self.bytes))
    }

    /// A descriptor of the shared memory; needs root.
    ///
    /// # Errors
    /// [`Error::Service`] naming file and cause.
    pub(crate) fn memory(&self, to_write: bool) -> Result<OwnedFd> {
        let path = self.folder.join("resource2");
        let file = OpenOptions::new().read(true).write(to_write).open(&path);
        Ok(file.map_err(|e| failed("open the shared memory device", &path, &e))?.into())
    }
}

/// The folder of the port that a device is behind.
fn port_of(folder: &Path) -> Option<PathBuf> {
    std::fs::canonicalize(folder).ok()?.parent().map(Path::to_path_buf)
}

/// The number of a port's slot, as its configuration space says (PCI Express Base Specification, 7.5.3: the Slot Implemented bit
/// of the capabilities register, and the Physical Slot Number of the slot capabilities); none for what is no port with a slot.
fn slot_in(config: &[u8]) -> Option<u32> {
    const STATUS: usize = 0x06;
    const HAS_LIST: u8 = 0x10;
    const LIST: usize = 0x34;
    const EXPRESS: u8 = 0x10;
    /// A list has no more entries than fit into the space; one that goes round in a circle ends here.
    const MOST: usize = 48;
    let byte = |at: usize| config.get(at).copied();
    if byte(STATUS)? & HAS_LIST == 0 {
        return None;
    }
    let mut at = usize::from(byte(LIST)? & 0xfc);
    for _ in 0..MOST {
        if at == 0 {
            break;
        }
        if byte(at)? == EXPRESS {
            let has_slot = byte(at + 3)? & 1 != 0;
            let word = config.get(at + 0x14..at + 0x18)?;
            let number = u32::from_le_bytes(word.try_into().ok()?) >> 19;
            return has_slot.then_some(number);
        }
        at = usize::from(byte(at + 1)? & 0xfc);
    }
    None
}

fn failed(action: &'static str, path: &Path, e: &std::io::Error) -> Error {
    Error::Service { action, reason: format!("{}: {e}", path.display()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ivshmem_devices_are_told_from_virtio_devices_of_the_same_vendor() {
        let root = tempfile::tempdir().unwrap();
        let put = |device: &str, file: &str, text: &str| {
            let folder = root.path().join("sys/bus/pci/devices").join(device);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(file), text).unwrap();
        };
        for (at, device) in
            [("0000:00:01.0", "0x1009\n"), ("0000:02:00.0", "0x1110\n"), ("0000:01:00.0", "0x1110\n")]
        {
            put(at, "vendor", "0x1af4\n");
            put(at, "device", device);
        }
        put("0000:02:00.0", "resource1", "");
        put("0000:02:00.0", "resource2", "12345678");
        put("0000:02:00.0", "enable", "0\n");
        // Both are behind a folder that is no port.
        assert!(Ivshmem::below(root.path()).iter().all(|device| device.slot.is_none()));
        let [first, second] = <[Ivshmem; 2]>::try_from(Ivshmem::below(root.path())).unwrap();
        assert!(first.folder.ends_with("0000:01:00.0") && first.bytes == 0 && !first.doorbell);
        assert!(second.folder.ends_with("0000:02:00.0") && second.bytes == 8 && second.doorbell);
        let enable = second.folder.join("enable");
        assert_eq!(std::fs::read_to_string(&enable).unwrap(), "0\n", "looking changes nothing");
        second.switch_on().unwrap();
        assert_eq!(std::fs::read_to_string(&enable).unwrap(), "1");
    }

    #[test]
    fn a_ports_slot_is_read_from_its_configuration() {
        let mut config = [0_u8; 256];
        assert_eq!(slot_in(&config), None);
        config[0x06] = 0x10;
        config[0x34] = 0x40;
        // Another capability first.
        (config[0x40], config[0x41]) = (0x05, 0x60);
        (config[0x60], config[0x63]) = (0x10, 0x01);
        config[0x74..0x78].copy_from_slice(&((37_u32 << 19) | 0x7b).to_le_bytes());
        assert_eq!(slot_in(&config), Some(37));
        assert_eq!(slot_in(&config[..64]), None, "what anybody may read");
        config[0x63] = 0;
        assert_eq!(slot_in(&config), None, "a port without a slot");
        (config[0x60], config[0x61]) = (0x05, 0x40);
        assert_eq!(slot_in(&config), None, "a list that has no end");
    }

    #[test]
    fn a_device_has_the_slot_of_its_port() {
        let root = tempfile::tempdir().unwrap();
        let real = root.path().join("sys/devices/pci0000:00/0000:00:04.0/0000:01:00.0");
        std::fs::create_dir_all(&real).unwrap();
        std::fs::write(real.join("vendor"), "0x1af4\n").unwrap();
        std::fs::write(real.join("device"), "0x1110\n").unwrap();
        let mut config = [0_u8; 256];
        (config[0x06], config[0x34]) = (0x10, 0x40);
        (config[0x40], config[0x43]) = (0x10, 0x01);
        config[0x54..0x58].copy_from_slice(&(3_u32 << 19).to_le_bytes());
        std::fs::write(real.parent().unwrap().join("config"), config).unwrap();
        let links = root.path().join("sys/bus/pci/devices");
        std::fs::create_dir_all(&links).unwrap();
        std::os::unix::fs::symlink(&real, links.join("0000:01:00.0")).unwrap();
        assert_eq!(Ivshmem::below(root.path())[0].slot, Some(3));
    }
}
