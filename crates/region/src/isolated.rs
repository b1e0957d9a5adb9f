//! The memory of a region in isolated mode, as a VM has it: each file of the region is a device of its own, and QEMU lets the VM
//! write to that with its own section, and to the shared one, if there is one. Stores to the others vanish.
//!
//! Which file a device has, the slot of its root port says: the first is in slot 1, the next in slot 2. The numbers stand on
//! QEMU's command line; nothing that a member writes takes part in that. The table of peers, in the first file, then says whose
//! section lies in which.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::driver::{self, Driver};
use crate::error::{Error, Result};
use crate::membership::Shape;
use crate::source::{Ivshmem, Source};

/// The slot of the region's first file.
const FIRST_SLOT: u32 = 1;

/// The slot of the device that has this file of the region.
pub fn slot_of(file: u32) -> u32 {
    file.saturating_add(FIRST_SLOT)
}

/// The devices of a VM that is a member of an isolated region.
#[derive(Debug)]
pub struct Isolated {
    /// The file of this VM's own section.
    own: u32,
    /// That of the shared section, if there is one.
    shared: Option<u32>,
    devices: BTreeMap<u32, Device>,
    /// A file that several devices are said to have.
    doubled: Option<u32>,
}

#[derive(Debug)]
struct Device {
    found: Ivshmem,
    driver: Option<Arc<Driver>>,
}

impl Isolated {
    /// The region to which `own`, a device with doorbells, belongs, of all devices of this VM. None if that region is not isolated:
    /// then `own` is behind a port without a number, or none has the region's first file.
    pub fn of(own: &Ivshmem, all: Vec<Ivshmem>) -> Option<Self> {
        let file_of = |device: &Ivshmem| device.slot?.checked_sub(FIRST_SLOT);
        let own_file = file_of(own).filter(|file| *file > 0)?;
        let (mut devices, mut doubled) = (BTreeMap::new(), None);
        for found in all {
            let is_own = found.folder == own.folder;
            // Another device with doorbells is another region's.
            let file = file_of(&found).filter(|file| is_own || (!found.doorbell && *file != own_file));
            if let Some(file) = file
                && devices.insert(file, Device { found, driver: None }).is_some()
            {
                doubled = Some(file);
            }
        }
        let is_whole = devices.contains_key(&0) && devices.contains_key(&own_file);
        is_whole.then_some(Self { own: own_file, shared: None, devices, doubled })
    }

    /// One whose memory got no address, if there is one.
    pub fn without_address(&self) -> Option<&Ivshmem> {
        self.devices.values().map(|device| &device.found).find(|found| found.bytes == 0)
    }

    /// Whether they are the devices of one region; a VM in two such regions would have some behind ports with the same number.
    ///
    /// # Errors
    /// [`Error::NoFile`].
    pub fn of_one_region(&self) -> Result<()> {
        self.doubled.map_or(Ok(()), |file| {
            let reason = "several devices of this VM are behind ports with the same number: it can be a member of one isolated region";
            Err(Error::NoFile { file, reason })
        })
    }

    /// Switches the memory of all of them on; needs root.
    ///
    /// # Errors
    /// [`Error::Service`] naming file and cause.
    pub fn switch_on(&self) -> Result<()> {
        self.devices.values().try_for_each(|device| device.found.switch_on())
    }

    /// Whether the guest driver has any of them, and whether processes have memory of any mapped by it.
    pub fn is_bound(&self) -> (bool, bool) {
        let drivers: Vec<_> = self.devices.values().filter_map(|device| Driver::of(&device.found)).collect();
        let is_mapped = drivers.iter().flatten().any(|driver| driver.info().mappings > 0);
        (!drivers.is_empty(), is_mapped)
    }

    /// Has the guest driver take all of them. No process may have any mapped by sysfs. Needs root.
    ///
    /// # Errors
    /// As [`Driver::bind`].
    pub fn bind(mut self) -> Result<Self> {
        for device in self.devices.values_mut() {
            device.driver = Some(Arc::new(Driver::bind(&device.found)?));
        }
        Ok(self)
    }

    /// Takes from the driver what it has of them. Needs root.
    ///
    /// # Errors
    /// As [`driver::release`].
    pub fn release(&self) -> Result<()> {
        let bound = self.devices.values().filter(|device| Driver::of(&device.found).is_some());
        bound.map(|device| driver::release(&device.found)).fold(Ok(()), Result::and)
    }

    /// The same with what the region's header says: how many files there are, and in which the shared section lies.
    ///
    /// # Errors
    /// [`Error::NoFile`] where this VM has no device for one of them; it may be plugged in later.
    pub fn for_region(mut self, shape: &Shape) -> Result<Self> {
        if let Some(file) = (0..shape.files).find(|file| !self.devices.contains_key(file)) {
            return Err(missing(file));
        }
        self.shared = (shape.shared_bytes > 0).then_some(shape.shared_file);
        if let Some(file) = self.shared {
            let device = self.devices.remove(&file).ok_or(missing(file))?;
            // Nobody else has it yet.
            let driver = device.driver.and_then(Arc::into_inner).map(|driver| Arc::new(driver.faulting()));
            self.devices.insert(file, Device { found: device.found, driver });
        }
        Ok(self)
    }

    /// The driver of the VM's own device, by which others are rung and pages are granted.
    pub fn own_driver(&self) -> Option<&Arc<Driver>> {
        self.devices.get(&self.own)?.driver.as_ref()
    }

    fn device(&self, file: u32) -> Result<&Device> {
        self.devices.get(&file).ok_or(missing(file))
    }
}

fn missing(file: u32) -> Error {
    Error::NoFile {
        file,
        reason: "this VM has no device for it, behind a port whose slot has the next higher number (isthmus vm device prints them)",
    }
}

impl Source for Isolated {
    fn bytes(&self) -> u64 {
        self.devices.get(&0).map_or(0, |device| device.found.bytes)
    }

    fn file(&self, index: u32) -> Result<OwnedFd> {
        if index != self.own && Some(index) != self.shared {
            return self.file_for_reading(index);
        }
        let Device { found, driver } = self.device(index)?;
        driver.as_ref().map_or_else(|| found.memory(true), |driver| driver.file(0))
    }

    fn file_for_area(&self, index: u32, area: u32) -> Result<OwnedFd> {
        match self.own_driver().filter(|_| index == self.own) {
            Some(driver) => driver.file_for_area(0, area),
            None => self.file(index),
        }
    }

    fn file_for_reading(&self, index: u32) -> Result<OwnedFd> {
        let Device { found, driver } = self.device(index)?;
        driver.as_ref().map_or_else(|| found.memory(false), |driver| driver.file_for_reading(0))
    }

    fn settle(&self, area: u32) {
        if let Some(driver) = self.own_driver() {
            driver.settle(area);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::path::Path;

    use rustix::fs::OFlags;

    use super::*;

    fn device(folder: &Path, name: &str, slot: Option<u32>, doorbell: bool) -> Ivshmem {
        let folder = folder.join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("resource2"), vec![0; 4096]).unwrap();
        Ivshmem { folder, bytes: 4096, doorbell, slot }
    }

    fn may_write(fd: impl AsFd) -> bool {
        rustix::fs::fcntl_getfl(fd).unwrap() & OFlags::RWMODE == OFlags::RDWR
    }

    #[test]
    fn a_vm_writes_to_its_own_section_and_to_the_shared_one() {
        let dir = tempfile::tempdir().unwrap();
        let own = device(dir.path(), "own", Some(4), true);
        let all = [("region", 1), ("shared", 2), ("host", 3), ("other", 5)]
            .map(|(name, slot)| device(dir.path(), name, Some(slot), false));
        let all: Vec<_> = all.into_iter().chain([own.clone()]).collect();
        let shape = Shape::new(4096, [1, 2], 3, 16).unwrap().with_files(5, 1).unwrap();
        let alone = Isolated::of(&own, all.clone()).unwrap().for_region(&shape).unwrap();
        let shared = Shape { shared_bytes: 4096, ..shape };
        let shared = Isolated::of(&own, all).unwrap().for_region(&shared).unwrap();
        assert_eq!(shared.bytes(), 4096);
        for file in 0..5 {
            assert_eq!(may_write(alone.file(file).unwrap()), file == 3, "{file}");
            assert_eq!(may_write(shared.file(file).unwrap()), file == 3 || file == 1, "{file}");
            assert_eq!(may_write(alone.file_for_area(file, 7).unwrap()), file == 3, "{file}");
            assert!(!may_write(shared.file_for_reading(file).unwrap()));
        }
        assert!(matches!(alone.file(5), Err(Error::NoFile { file: 5, .. })));
        let more = Shape { files: 6, ..shape };
        assert!(
            matches!(alone.for_region(&more), Err(Error::NoFile { file: 5, .. })),
            "not all are there yet"
        );
    }

    #[test]
    fn other_devices_are_no_part_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let first = device(dir.path(), "region", Some(1), false);
        let own = device(dir.path(), "own", Some(3), true);
        let unnumbered = Ivshmem { slot: None, ..own.clone() };
        let zero = Ivshmem { slot: Some(0), ..own.clone() };
        let is = |own: &Ivshmem, others: &[&Ivshmem]| {
            let all = others.iter().map(|device| (*device).clone()).chain([own.clone()]).collect();
            Isolated::of(own, all)
        };
        assert!(is(&own, &[&first]).is_some());
        // As by default: one device behind a port without a number.
        assert!(is(&unnumbered, &[&first]).is_none() && is(&zero, &[&first]).is_none());
        assert!(is(&own, &[]).is_none(), "no first file");
        let doorbell = Ivshmem { doorbell: true, ..first.clone() };
        assert!(is(&own, &[&doorbell]).is_none(), "another region's device");
        // One that claims the own device's place is not taken for it.
        let liar = device(dir.path(), "liar", Some(3), false);
        let found = is(&own, &[&liar, &first]).unwrap();
        assert_eq!(found.devices[&2].found.folder, own.folder);
        // Nor is it known which of two is the region's.
        found.of_one_region().unwrap();
        let other = Ivshmem { folder: dir.path().join("other"), ..first.clone() };
        let several = is(&own, &[&first, &other]).unwrap();
        assert!(matches!(several.of_one_region(), Err(Error::NoFile { file: 0, .. })));
    }
}
