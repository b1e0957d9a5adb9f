//! A region on a memory device: an NVDIMM of QEMU's, which stock kernels give to programs as a character device (device-dax), write-back
//! and in pages of 2 MiB.
//!
//! The kernel makes such a device of an NVDIMM that has an information block, which says where its data begins. The host service
//! writes that block ([`Head::write`]) when it makes the region's file, so no VM has to convert anything. What the host has is the file, so
//! there the region begins behind the head; what a VM has is the device, where the head is not seen ([`begin`]).
//!
//! Sources: Linux, `drivers/nvdimm/pfn.h` and `pfn_devs.c` for the block, `drivers/dax/device.c` for mappings.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use isthmus_lockfree::sync::ReadWord;
use rustix::fs::{FileType, Mode, OFlags, SealFlags};

use crate::driver::{self, Driver};
use crate::error::{Error, Result};
use crate::format::{MAGIC, SECTION_MAGIC, header};
use crate::mapping::{Mapping, Section, is_device};
use crate::source::Source;

/// Bytes in front of the region in its file: a multiple of [`ALIGN`].
pub const HEAD_BYTES: u64 = 2 << 20;
/// Mappings of the device begin and end at multiples of this.
pub const ALIGN: u64 = 2 << 20;
/// The smallest region on such a device. Its file has a length by which it is known: that of a region in a file without a head
/// is a power of two.
pub const LEAST_BYTES: u64 = 4 << 20;
/// In place of a file's number: what has no memory, and rings sleepers of other VMs.
pub const BELL: u32 = u32::MAX;

/// Where the information block lies in the file, and its bytes.
const BLOCK: u64 = 4096;
const BLOCK_BYTES: usize = 4096;
/// Where the block's fields are.
mod field {
    pub(super) const SIGNATURE: usize = 0;
    pub(super) const UUID: usize = 16;
    pub(super) const MAJOR: usize = 52;
    pub(super) const MINOR: usize = 54;
    pub(super) const DATA: usize = 56;
    pub(super) const PAGES: usize = 64;
    pub(super) const MODE: usize = 72;
    pub(super) const ALIGN: usize = 84;
    pub(super) const PAGE_BYTES: usize = 88;
    pub(super) const PAGE_STRUCT_BYTES: usize = 92;
    pub(super) const CHECKSUM: usize = 4088;
}
const SIGNATURE: &[u8; 16] = b"NVDIMM_DAX_INFO\0";
/// What describes the pages lies in the VM's own memory.
const MODE_RAM: u32 = 1;
const PAGE: u64 = 4096;

/// The information block of a region with this identity.
fn block(region_bytes: u64, uuid: [u64; 2]) -> Vec<u8> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(field::SIGNATURE, SIGNATURE);
    put(field::UUID, &uuid[0].to_be_bytes());
    put(field::UUID + 8, &uuid[1].to_be_bytes());
    put(field::MAJOR, &1_u16.to_le_bytes());
    put(field::MINOR, &4_u16.to_le_bytes());
    put(field::DATA, &HEAD_BYTES.to_le_bytes());
    put(field::PAGES, &(region_bytes / PAGE).to_le_bytes());
    put(field::MODE, &MODE_RAM.to_le_bytes());
    put(field::ALIGN, &(2_u32 << 20).to_le_bytes());
    put(field::PAGE_BYTES, &4096_u32.to_le_bytes());
    put(field::PAGE_STRUCT_BYTES, &64_u16.to_le_bytes());
    let sum = checksum(&block);
    block[field::CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
    block
}

/// Fletcher's checksum of 64 bits, over halves of words.
fn checksum(bytes: &[u8]) -> u64 {
    let halves = bytes.chunks_exact(4).map(|half| u32::from_le_bytes(half.try_into().unwrap_or_default()));
    let (low, high) = halves.fold((0_u32, 0_u64), |(low, high), half| {
        let low = low.wrapping_add(half);
        (low, high.wrapping_add(low.into()))
    });
    (high << 32) | u64::from(low)
}

/// The head of a region's file, as the host service has it.
#[derive(Debug)]
pub struct Head {
    map: Arc<Mapping>,
    block: Vec<u8>,
}

impl Head {
    /// Writes it.
    ///
    /// # Errors
    /// [`Error::Memory`] with the system's answer.
    pub fn write(file: BorrowedFd<'_>, region_bytes: u64, uuid: [u64; 2]) -> Result<Self> {
        let head = Self { map: Mapping::map(file, HEAD_BYTES)?, block: block(region_bytes, uuid) };
        head.renew()?;
        Ok(head)
    }

    /// Writes it once more: every VM can change it, and the next one that boots reads it.
    ///
    /// # Errors
    /// None that can happen, since the mapping is as long as the head.
    pub fn renew(&self) -> Result<()> {
        let whole = self.map.whole()?;
        whole.bytes("head", BLOCK, BLOCK_BYTES as u64)?.put(0, &self.block)?;
        // There, too, the kernel looks for signatures.
        let zeros = vec![0; BLOCK_BYTES];
        let others = (0..HEAD_BYTES).step_by(BLOCK_BYTES).filter(|at| *at != BLOCK);
        others.into_iter().try_for_each(|at| whole.bytes("head", at, BLOCK_BYTES as u64)?.put(0, &zeros))
    }
}

/// Says in the memory of devices that are for doorbells alone whose they are: by the mark of a section, for which the guest driver looks,
/// and the region's identity.
///
/// # Errors
/// [`Error::OutOfBounds`] for memory of less than two words.
pub fn mark_bells(memory: &Section, uuid: [u64; 2]) -> Result<()> {
    memory.word("identity", 8)?.set(uuid[0]);
    memory.word("mark", 0)?.set(SECTION_MAGIC);
    Ok(())
}

/// The first half of the identity of the region whose doorbells a device has with this memory; none if that is something else.
pub fn of_bells(memory: &Arc<Mapping>) -> Option<u64> {
    let whole = memory.whole_for_reading();
    let word = |at| whole.word("mark", at).map(ReadWord::get).ok();
    (word(0)? == SECTION_MAGIC).then(|| word(8)).flatten()
}

/// Where a region of `len` bytes begins in its first file.
pub(crate) fn begin_of(file: BorrowedFd<'_>, len: u64) -> u64 {
    if begin(file) == HEAD_BYTES && length(file).is_some_and(|all| all == len + HEAD_BYTES) {
        HEAD_BYTES
    } else {
        0
    }
}

/// Where a region begins in its first file: behind a head, if the length of a file that keeps it says that there is one. Copies of
/// regions may have any length.
pub fn begin(file: BorrowedFd<'_>) -> u64 {
    let is_kept = || rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    if length(file).is_some_and(has_head) && is_kept() { HEAD_BYTES } else { 0 }
}

/// The same in a copy: what is there must say so, too.
pub(crate) fn begin_in_copy(file: &File) -> u64 {
    let is_region = |at| {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, at).is_ok() && u64::from_le_bytes(word) == MAGIC
    };
    let has_one = length(file.as_fd()).is_some_and(has_head) && is_region(HEAD_BYTES) && !is_region(0);
    if has_one { HEAD_BYTES } else { 0 }
}

/// Whether a file of so many bytes is longer by a head than one without it can be.
fn has_head(all: u64) -> bool {
    let region = all.saturating_sub(HEAD_BYTES);
    region >= LEAST_BYTES && region.is_power_of_two()
}

fn length(file: BorrowedFd<'_>) -> Option<u64> {
    let stat = rustix::fs::fstat(file).ok()?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    u64::try_from(stat.st_size).ok().filter(|_| is_file)
}

/// A memory device that this system's programs can map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its file, `/dev/dax...`.
    pub node: PathBuf,
    /// Its bytes.
    pub bytes: u64,
}

impl Device {
    /// All of them, by name. Changes nothing.
    pub fn find() -> Vec<Self> {
        Self::below(Path::new("/"))
    }

    /// As [`Device::find`], in the files below `root`.
    pub fn below(root: &Path) -> Vec<Self> {
        let entries = std::fs::read_dir(root.join("sys/bus/dax/devices"));
        let of = |entry: std::fs::DirEntry| {
            let node = root.join("dev").join(entry.file_name());
            Some(Self { bytes: size_in(&entry.path())?, node })
        };
        let mut found: Vec<_> = entries.into_iter().flatten().flatten().filter_map(of).collect();
        found.sort_by(|a, b| a.node.cmp(&b.node));
        found
    }

    /// The first half of the identity of the region that it holds, if it holds one. Needs root.
    pub fn region(&self) -> Option<u64> {
        let file = self.open(OFlags::RDONLY).ok()?;
        let whole = Mapping::as_opened(file.as_fd(), self.bytes).ok()?.whole_for_reading();
        let word = |at| whole.word("header", at).map(ReadWord::get).ok();
        (word(header::MAGIC)? == MAGIC).then(|| word(header::UUID)).flatten()
    }

    fn open(&self, access: OFlags) -> Result<OwnedFd> {
        rustix::fs::open(&self.node, access | OFlags::CLOEXEC, Mode::empty()).map_err(|e| Error::Service {
            action: "open the memory device",
            reason: format!("{}: {e}", self.node.display()),
        })
    }
}

fn size_in(folder: &Path) -> Option<u64> {
    std::fs::read_to_string(folder.join("size")).ok()?.trim().parse().ok()
}

/// Bytes of the memory device behind a descriptor; none if it is of another file.
pub fn bytes(file: BorrowedFd<'_>) -> Option<u64> {
    let stat = rustix::fs::fstat(file).ok().filter(is_device)?;
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let folder = PathBuf::from(format!("/sys/dev/char/{major}:{minor}"));
    let bus = std::fs::canonicalize(folder.join("subsystem")).ok()?;
    bus.ends_with("dax").then(|| size_in(&folder)).flatten()
}

/// A region on a memory device of this VM, whose doorbells are those of an ivshmem device, if there is a driver for that.
#[derive(Debug)]
pub struct Dax {
    device: Device,
    driver: Option<Arc<Driver>>,
}

impl Dax {
    /// A device that has a region, and the driver of the ivshmem device beside it.
    pub fn new(device: Device, driver: Option<Arc<Driver>>) -> Self {
        Self { device, driver }
    }
}

impl Source for Dax {
    fn bytes(&self) -> u64 {
        self.device.bytes
    }

    fn file(&self, index: u32) -> Result<OwnedFd> {
        match (index, &self.driver) {
            (0, _) => self.device.open(OFlags::RDWR),
            (BELL, Some(driver)) => driver.bell_only(),
            (BELL, None) => Err(Error::NoFile { file: index, reason: "the guest driver is not there" }),
            _ => Err(Error::NoFile { file: index, reason: "all sections lie in the first" }),
        }
    }

    fn file_for_reading(&self, index: u32) -> Result<OwnedFd> {
        match index {
            0 => self.device.open(OFlags::RDONLY),
            // Who only looks rings nobody.
            _ => Err(Error::NoFile { file: index, reason: "all sections lie in the first" }),
        }
    }
}

/// Whether a descriptor may be one of such a device, of which mappings begin and end at multiples of [`ALIGN`]: it is of a
/// character device, and not of the driver's.
pub fn may_be_dax(file: impl AsFd) -> bool {
    rustix::fs::fstat(&file).is_ok_and(|stat| is_device(&stat)) && driver::bytes(file.as_fd()).is_none()
}

#[cfg(test)]
mod tests {
    use rustix::fs::MemfdFlags;

    use super::*;

    fn file(bytes: u64) -> OwnedFd {
        let file = rustix::fs::memfd_create("dax", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, bytes).unwrap();
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        file
    }

    #[test]
    fn the_block_is_as_the_kernel_reads_it() {
        let block = block(64 << 20, [0x0102_0304_0506_0708, 0x090a_0b0c_0d0e_0f10]);
        assert_eq!(&block[..16], b"NVDIMM_DAX_INFO\0");
        assert_eq!(block[16..32], (1..=16).collect::<Vec<u8>>());
        let half = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
        // Version 1.4; data behind 2 MiB; 16384 pages.
        assert_eq!((half(52), half(56), half(60), half(64)), (0x0004_0001, 2 << 20, 0, 16384));
        // The mode is RAM; nothing is cut off; pages of 2 MiB are mapped, of 4 KiB counted, each described by 64 bytes.
        assert_eq!(
            [half(72), half(76), half(80), half(84), half(88), half(92)],
            [1, 0, 0, 2 << 20, 4096, 64]
        );
        let (body, sum) = block.split_at(4088);
        let without = [body, &[0; 8]].concat();
        assert_eq!(u64::from_le_bytes(sum.try_into().unwrap()), checksum(&without));
    }

    #[test]
    fn the_checksum_is_fletchers() {
        // By hand: low 1, 3, 2; high 1 + 3 + 2, where the third half takes one away from the low sum.
        let bytes: Vec<u8> = [1_u32, 2, u32::MAX].iter().flat_map(|half| half.to_le_bytes()).collect();
        assert_eq!(checksum(&bytes), (6 << 32) | 2);
    }

    #[test]
    fn a_head_is_written_again_over_whatever_is_there() {
        let file = file(HEAD_BYTES + LEAST_BYTES);
        let head = Head::write(file.as_fd(), LEAST_BYTES, [1, 2]).unwrap();
        let read = |at| {
            let mut bytes = vec![0; 4096];
            rustix::io::pread(&file, &mut bytes, at).unwrap();
            bytes
        };
        let good = block(LEAST_BYTES, [1, 2]);
        assert_eq!(read(4096), good);
        for at in [0, 4096, 8192] {
            rustix::io::pwrite(&file, b"nonsense", at).unwrap();
        }
        rustix::io::pwrite(&file, b"region", HEAD_BYTES).unwrap();
        head.renew().unwrap();
        assert_eq!((read(4096), read(0), read(8192)), (good, vec![0; 4096], vec![0; 4096]));
        assert_eq!(read(HEAD_BYTES)[..6], *b"region");
    }

    #[test]
    fn a_region_begins_behind_its_head() {
        for region in [LEAST_BYTES, 64 << 20] {
            let with = file(HEAD_BYTES + region);
            assert_eq!((begin(with.as_fd()), begin_of(with.as_fd(), region)), (HEAD_BYTES, HEAD_BYTES));
            assert_eq!(begin_of(with.as_fd(), HEAD_BYTES), 0, "the head itself");
            assert_eq!(begin(file(region).as_fd()), 0);
            rustix::io::pwrite(&with, b"first", HEAD_BYTES).unwrap();
            let map = Mapping::as_opened(with.as_fd(), region).unwrap();
            let first = map.whole().unwrap().bytes("region", 0, 5).unwrap().to_vec(0, 5).unwrap();
            assert_eq!((first.as_slice(), map.len()), (&b"first"[..], region));
        }
        // Two 2 MiB are a region of 4 MiB without a head.
        assert_eq!(begin(file(2 * HEAD_BYTES).as_fd()), 0);
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!((begin(null.as_fd()), bytes(null.as_fd())), (0, None));
    }

    #[test]
    fn in_a_copy_the_contents_say_whether_there_is_a_head() {
        let copy = tempfile::tempfile().unwrap();
        copy.set_len(HEAD_BYTES + 64 * LEAST_BYTES).unwrap();
        let put = |at, word: u64| copy.write_all_at(&word.to_le_bytes(), at).unwrap();
        assert_eq!((begin(copy.as_fd()), begin_in_copy(&copy)), (0, 0), "it may be cut");
        put(HEAD_BYTES, MAGIC);
        assert_eq!(begin_in_copy(&copy), HEAD_BYTES);
        // The files of an isolated region, one after the other, may have such a length.
        put(0, MAGIC);
        assert_eq!(begin_in_copy(&copy), 0);
    }

    #[test]
    fn doorbells_say_whose_they_are() {
        let file = file(1 << 20);
        let map = Mapping::map(file.as_fd(), 1 << 20).unwrap();
        assert_eq!(of_bells(&map), None);
        mark_bells(&map.whole().unwrap(), [7, 8]).unwrap();
        assert_eq!(of_bells(&map), Some(7));
    }

    #[test]
    fn devices_are_found_with_their_sizes() {
        let root = tempfile::tempdir().unwrap();
        for (name, size) in [("dax1.0", "8388608\n"), ("dax0.0", "4194304\n"), ("dax2.0", "?\n")] {
            let folder = root.path().join("sys/bus/dax/devices").join(name);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("size"), size).unwrap();
        }
        let found = Device::below(root.path());
        let names: Vec<_> =
            found.iter().map(|d| (d.node.file_name().unwrap().to_str().unwrap(), d.bytes)).collect();
        assert_eq!(names, [("dax0.0", 4 << 20), ("dax1.0", 8 << 20)]);
    }
}
