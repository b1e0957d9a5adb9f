//! The guest driver (isthmus(4)): an ivshmem device whose memory ordinary processes may map, write-back, as far as each descriptor
//! is allowed, and whose doorbells they may ring.
//!
//! Only root can open it, so this is the agent's side, but for [`Ringer`], which is that of whoever has a descriptor.

mod calls;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use self::calls::Range;
use crate::directory::{Directory, heap_end};
use crate::error::{Error, Result};
use crate::format::GlobalSlot;
use crate::gate_bits;
use crate::grants::{self, Granted, Outcome};
use crate::kept::Kept;
use crate::mapping::is_device;
use crate::membership::{Region, Shape, Spot};
use crate::source::{Ivshmem, Source};

/// The driver's name, and its module's.
pub const NAME: &str = "isthmus";
/// Version of the interface that this speaks, `driver/isthmus.h`.
pub const ABI: u32 = 3;
/// Most vectors of a device that are used.
pub const VECTORS: u32 = 8;
/// How long the device's node may take to appear.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

const READ: u32 = 1;
const WRITE: u32 = 2;
const FAULTS: u32 = 4;
const MAY_RING: u32 = 1;
const SPLIT: u32 = 1;
const KEEP: u32 = 2;
const FULL: u32 = 7;
const LIMIT: u32 = 8;
/// Most pages of a call.
pub const MOST_PAGES: usize = 512;
const PAGES: u32 = 1;
const LOW: u32 = 2;
const ALL: u32 = u32::MAX;
const NO_ID: u32 = 0x10000;
const OWN_ID: u32 = 0x20000;

/// What the driver says about its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// Bytes of its memory.
    pub bytes: u64,
    /// Vectors that can be rung.
    pub vectors: u32,
    /// Whether its memory has pages, so that `O_DIRECT` and mappings of 2 MiB work.
    pub has_pages: bool,
    /// Whether it lies below 4 GiB, where firmware may have made it uncached.
    pub is_low: bool,
    /// Mappings of all processes.
    pub mappings: u32,
    /// Rings of all vectors.
    pub rings: u64,
}

/// What the driver lets a descriptor be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    All,
    Reading,
}

/// A device that the driver has.
#[derive(Debug)]
pub struct Driver {
    node: PathBuf,
    /// Root's own descriptor, which maps nothing.
    admin: OwnedFd,
    info: Info,
    ranges: Vec<Range>,
    /// The member that this VM is.
    own: OnceLock<u32>,
    /// Most pages that a process may have granted at once.
    pages: Mutex<u64>,
}

/// Whether the driver is loaded in this system.
pub fn is_loaded() -> bool {
    Path::new("/sys/bus/pci/drivers").join(NAME).exists()
}

/// Takes a device from the driver. Processes that have its memory mapped find zeros. Needs root.
///
/// # Errors
/// [`Error::Service`] naming file and cause.
pub fn release(device: &Ivshmem) -> Result<()> {
    let (override_file, unbind) =
        (device.folder.join("driver_override"), device.folder.join("driver/unbind"));
    let name = device.folder.file_name().unwrap_or_default().as_encoded_bytes();
    let written = std::fs::write(&override_file, "\n").and_then(|()| std::fs::write(&unbind, name));
    written.map_err(|e| Error::Service {
        action: "take the shared memory device from the driver",
        reason: format!("{}: {e}", unbind.display()),
    })
}

impl Driver {
    /// Has the driver take a device, unless it has it already, and opens it. No process may have the device's memory mapped by
    /// sysfs: the kernel takes it away. Needs root.
    ///
    /// # Errors
    /// [`Error::Service`] naming file and cause.
    pub fn bind(device: &Ivshmem) -> Result<Self> {
        let failed = |action, path: &Path, e: &std::io::Error| Error::Service {
            action,
            reason: format!("{}: {e}", path.display()),
        };
        let override_file = device.folder.join("driver_override");
        let action = "give the shared memory device to the driver";
        std::fs::write(&override_file, NAME).map_err(|e| failed(action, &override_file, &e))?;
        if node_of(device).is_none() {
            let name = device.folder.file_name().unwrap_or_default().as_encoded_bytes();
            let probe = device.folder.join("subsystem/drivers_probe");
            std::fs::write(&probe, name).map_err(|e| failed(action, &probe, &e))?;
        }
        // Probing says nothing of why a driver did not take it.
        Self::of(device).unwrap_or_else(|| {
            // So that another driver can have it.
            let _ = std::fs::write(&override_file, "\n");
            let why = match is_loaded() {
                true => "it did not take it: dmesg says why",
                false => "the module isthmus is not loaded",
            };
            Err(Error::Service { action, reason: format!("{}: {why}", device.folder.display()) })
        })
    }

    /// Opens a device, if the driver has it.
    pub fn of(device: &Ivshmem) -> Option<Result<Self>> {
        node_of(device).map(|name| Self::open(&Path::new("/dev").join(name)))
    }

    /// Opens a device that the driver has.
    ///
    /// # Errors
    /// [`Error::Service`] naming file and cause.
    pub fn open(node: &Path) -> Result<Self> {
        let action = "open the driver's device";
        let failed = |e: Errno| Error::Service { action, reason: format!("{}: {e}", node.display()) };
        let until = Instant::now() + PATIENCE;
        let admin = loop {
            match rustix::fs::open(node, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
                Err(Errno::NOENT) if Instant::now() < until => std::thread::sleep(PAUSE),
                other => break other.map_err(failed)?,
            }
        };
        let (abi, info) = info(&admin).map_err(failed)?;
        if abi != ABI {
            let reason = format!(
                "the loaded module speaks version {abi} of its interface, this program {ABI}: load the one of this version"
            );
            return Err(Error::Service { action, reason });
        }
        let all = Range { offset: 0, bytes: info.bytes, flags: READ | WRITE, reserved: 0 };
        calls::allow(&admin, &[], MAY_RING, 0, 0).map_err(failed)?;
        Ok(Self {
            node: node.to_path_buf(),
            admin,
            info,
            ranges: vec![all],
            own: OnceLock::new(),
            pages: Mutex::new(0),
        })
    }

    /// What the driver says about its device.
    pub fn info(&self) -> Info {
        self.info
    }

    /// The same for the processes of a region: the shared section, in which programs have memory of their own, faults once the
    /// device is gone. Elsewhere they find pages of zeros then.
    #[must_use]
    pub fn for_region(mut self, shape: &Shape) -> Self {
        self.ranges = ranges(self.info.bytes, shape);
        self
    }

    /// The same for a device that has nothing but the shared section.
    #[must_use]
    pub(crate) fn faulting(mut self) -> Self {
        self.ranges =
            vec![Range { offset: 0, bytes: self.info.bytes, flags: READ | WRITE | FAULTS, reserved: 0 }];
        self
    }

    /// Says which member this VM is.
    ///
    /// # Errors
    /// The system's.
    pub fn join(&self, member: u32) -> rustix::io::Result<()> {
        // What an agent before this one knew may be wrong by now.
        calls::set_member(&self.admin, ALL, NO_ID)?;
        calls::set_member(&self.admin, member, OWN_ID)?;
        let _ = self.own.set(member);
        Ok(())
    }

    /// Says where the pages lie that processes may grant: the last `bytes` of the VM's section, which ends at `end` of the memory; none
    /// if `bytes` is 0; and how many bytes of them each process may have. Gives the bytes of the pool that there is now: of the last
    /// agent's as long as pages of that are in use.
    ///
    /// # Errors
    /// The system's: `EOPNOTSUPP` where the memory has no pages.
    pub fn place_pool(&self, end: u64, bytes: u64, each: u64) -> rustix::io::Result<u64> {
        let place = end.checked_sub(bytes).and_then(|at| Some((at, heap_end(at, bytes)?)));
        let (offset, table) = place.ok_or(Errno::INVAL)?;
        // Of processes of former agents; this VM is let in again once nobody writes to their memory.
        calls::settle(&self.admin, 0)?;
        let placed = match bytes {
            0 => calls::pool(&self.admin, 0, 0, 0),
            _ => calls::pool(&self.admin, offset, bytes, table),
        };
        let there = calls::info(&self.admin)?.pool;
        if there == 0 {
            placed?;
        }
        *self.pages.lock().unwrap_or_else(PoisonError::into_inner) = there.min(each / grants::PAGE);
        Ok(there * grants::PAGE)
    }

    /// Says by which id the device knows another member of the region; none takes it back.
    ///
    /// # Errors
    /// The system's.
    pub fn set_member(&self, member: u32, id: Option<u16>) -> rustix::io::Result<()> {
        if self.own.get() == Some(&member) {
            return Ok(());
        }
        calls::set_member(&self.admin, member, id.map_or(NO_ID, u32::from))
    }

    /// By how many vectors this VM's sleepers are rung; 0 if it has too few.
    pub fn vectors(&self) -> u32 {
        if self.info.vectors >= 2 { self.info.vectors } else { 0 }
    }

    /// Rings a vector of this VM itself.
    pub fn ring_own(&self, vector: u32) {
        if let Some(own) = self.own.get() {
            // It fails only once the device is gone, which rings by itself.
            let _ = calls::ring(&self.admin, *own, vector);
        }
    }

    /// A descriptor that a vector makes readable.
    ///
    /// # Errors
    /// The system's.
    pub fn bell(&self, vector: u32) -> rustix::io::Result<OwnedFd> {
        calls::bell(&self.admin, vector)
    }

    fn allowed(&self, usage: Use, area: Option<u32>) -> rustix::io::Result<OwnedFd> {
        let (access, mask, flags) = match usage {
            Use::All => (OFlags::RDWR, READ | WRITE | FAULTS, MAY_RING),
            Use::Reading => (OFlags::RDONLY, READ | FAULTS, 0),
        };
        let file = rustix::fs::open(&self.node, access | OFlags::CLOEXEC, Mode::empty())?;
        let ranges: Vec<Range> =
            self.ranges.iter().map(|range| Range { flags: range.flags & mask, ..*range }).collect();
        let pages = *self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let (owner, pages) = area.map_or((0, 0), |area| (grants::owner(area), pages));
        let [owner, pages] = [owner, pages].map(|value| u32::try_from(value).unwrap_or(0));
        calls::allow(&file, &ranges, flags, owner, pages)?;
        Ok(file)
    }

    /// A descriptor that maps nothing, and rings other members' sleepers.
    ///
    /// # Errors
    /// [`Error::Service`].
    pub(crate) fn bell_only(&self) -> Result<OwnedFd> {
        let opened = rustix::fs::open(&self.node, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let allowed = opened.and_then(|file| calls::allow(&file, &[], MAY_RING, 0, 0).map(|()| file));
        allowed.map_err(|e| Error::Service {
            action: "open the doorbells to a process",
            reason: format!("{}: {e}", self.node.display()),
        })
    }

    fn file_as(&self, index: u32, usage: Use, area: Option<u32>) -> Result<OwnedFd> {
        if index != 0 {
            return Err(Error::NoFile { file: index, reason: "all sections lie in the first" });
        }
        self.allowed(usage, area).map_err(|e| Error::Service {
            action: "open the region's memory to a process",
            reason: format!("{}: {e}", self.node.display()),
        })
    }
}

impl Source for Driver {
    fn settle(&self, area: u32) {
        // 0 would be all owners.
        if let Some(owner) = u32::try_from(grants::owner(area)).ok().filter(|owner| *owner > 0) {
            // It fails only once the device is gone, whose driver keeps nothing.
            let _ = calls::settle(&self.admin, owner);
        }
    }

    fn bytes(&self) -> u64 {
        self.info.bytes
    }

    fn file(&self, index: u32) -> Result<OwnedFd> {
        self.file_as(index, Use::All, None)
    }

    fn file_for_area(&self, index: u32, area: u32) -> Result<OwnedFd> {
        self.file_as(index, Use::All, Some(area))
    }

    fn file_for_reading(&self, index: u32) -> Result<OwnedFd> {
        self.file_as(index, Use::Reading, None)
    }
}

/// The device's name in `/dev`, if the driver has it.
fn node_of(device: &Ivshmem) -> Option<String> {
    let entries = std::fs::read_dir(device.folder.join("misc")).ok()?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.into_iter().find(|name| name.starts_with(NAME))
}

fn ranges(bytes: u64, shape: &Shape) -> Vec<Range> {
    let shared = if shape.shared_file == 0 { shape.shared_bytes } else { 0 };
    let (begin, end) = (shape.shared.min(bytes), shape.shared.saturating_add(shared).min(bytes));
    let range = |from, to, flags| Range { offset: from, bytes: to - from, flags, reserved: 0 };
    let usual = READ | WRITE;
    let parts = match shared {
        0 => vec![range(0, bytes, usual)],
        _ => vec![range(0, begin, usual), range(begin, end, usual | FAULTS), range(end, bytes, usual)],
    };
    parts.into_iter().filter(|range| range.bytes > 0).collect()
}

fn info(file: impl AsFd) -> rustix::io::Result<(u32, Info)> {
    let raw = calls::info(file)?;
    let info = Info {
        bytes: raw.bytes,
        vectors: raw.vectors.min(VECTORS),
        has_pages: raw.flags & PAGES != 0,
        is_low: raw.flags & LOW != 0,
        mappings: raw.mappings,
        rings: raw.rings,
    };
    Ok((raw.abi, info))
}

/// Bytes of the memory behind a descriptor of the driver's; none if it is of another file.
pub fn bytes(file: BorrowedFd<'_>) -> Option<u64> {
    info(file).ok().map(|(_, info)| info.bytes)
}

/// How many vectors a peer says that it has, which may be anything: 0 where it has too few to be rung by.
pub fn vectors(said: u64) -> u32 {
    u32::try_from(said).ok().filter(|vectors| (2..=VECTORS).contains(vectors)).unwrap_or(0)
}

/// The vector by which the sleepers of an endpoint are rung, of a peer with so many vectors: at least 2.
pub fn vector_of_slot(slot: u32, vectors: u32) -> u32 {
    1 + slot % (vectors - 1)
}

/// The same for those that wait at a place of the region.
pub fn vector_of_place(place: u64, vectors: u32) -> u32 {
    // The upper bits of the product depend on all of the place's.
    let mixed = place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    u32::try_from(mixed % u64::from(vectors - 1)).map_or(1, |class| 1 + class)
}

/// Whether a descriptor is of the guest driver's device.
pub(crate) fn is_node(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| is_device(&stat)) && info(file).is_ok()
}

/// By how many vectors the sleepers of a peer are rung; 0 if by none.
pub fn vectors_of(region: &Region, peer: u32) -> u32 {
    region.spot(peer).ok().flatten().map_or(0, |spot| vectors_at(region, &spot))
}

fn vectors_at(region: &Region, spot: &Spot) -> u32 {
    let section = region.section_at(spot);
    section.map_or(0, |section| Directory::vectors_in(&section, spot.life.incarnation))
}

/// A process's way to ring: a descriptor that is allowed it.
#[derive(Debug)]
pub struct Ringer {
    file: Kept,
    region: Region,
}

impl Ringer {
    /// With the file of the VM's own section, if that is the driver's.
    pub fn of(file: OwnedFd, region: &Region) -> Option<Self> {
        info(&file).ok()?;
        Some(Self { file: Kept::new(file), region: region.clone() })
    }

    /// Whether the descriptor is this process's, and still what it was.
    fn is_usable(&self) -> bool {
        self.file.is_own() && self.file.is_there()
    }

    /// Rings the sleepers of an endpoint. Gives whether that could be done.
    ///
    /// Whether the descriptor still is what it was is not asked: that would be two system calls more, and the kernel refuses this one
    /// for any other file. Of all drivers nsfs alone knows its number (`NS_GET_OWNER_UID`), and fails, since the argument is no address.
    pub fn endpoint(&self, slot: GlobalSlot) -> bool {
        let endpoints = self.region.shape().endpoints;
        let peer = slot.peer(endpoints);
        let vectors = vectors_of(&self.region, peer);
        vectors > 0 && calls::ring(&self.file, peer, vector_of_slot(slot.local(endpoints), vectors)).is_ok()
    }

    /// Rings those that wait at a place, in the peers that the bits name, as [`Ringer::endpoint`] does. Gives those for which it could
    /// not be done.
    pub fn gate(&self, peers: u64, place: u64) -> u64 {
        // The last bit stands for many peers, and the host's own processes wait at futexes, of which it must be told the place.
        let could = |peer: u32| {
            let vm = self.region.spot(peer).ok().flatten().filter(|spot| spot.is_vm);
            let vectors = vm.map_or(0, |spot| vectors_at(&self.region, &spot));
            vectors > 0 && calls::ring(&self.file, peer, vector_of_place(place, vectors)).is_ok()
        };
        let rung = (0..63).filter(|peer| peers & gate_bits::bit(*peer) != 0 && could(*peer));
        peers & !rung.fold(0, |bits, peer| bits | gate_bits::bit(peer))
    }

    /// Moves pages of this process's own memory, from an address on that is a multiple of a page, into the pool, `MOST_PAGES` at most:
    /// each stays at its address, with its contents, for all threads. Gives of each page whether it is there now, and how the grant
    /// table knows it. With `keep`, others may write to them until [`Ringer::release`].
    ///
    /// # Errors
    /// The system's: `EACCES` or `EOPNOTSUPP` where this process may grant none.
    pub fn grant(
        &self,
        address: u64,
        may_split: bool,
        keep: bool,
        into: &mut [Option<Granted>],
    ) -> rustix::io::Result<Outcome> {
        if !self.is_usable() {
            return Err(Errno::BADF);
        }
        let mut results = [calls::Page::default(); MOST_PAGES];
        let results = results.get_mut(..into.len()).ok_or(Errno::INVAL)?;
        let flags = if may_split { SPLIT } else { 0 } | if keep { KEEP } else { 0 };
        // A signal may come before the first.
        let count = rustix::io::retry_on_intr(|| calls::grant(&self.file, address, flags, results))?;
        let is_full = results.iter().any(|result| matches!(result.why, FULL | LIMIT));
        for (result, into) in results.iter().zip(into) {
            *into = if result.why == 0 { Granted::new(result.page, result.word) } else { None };
        }
        Ok(Outcome { count, is_full })
    }

    /// Moves pages back, those that can be. Gives how many there were in the pool and are no more.
    ///
    /// # Errors
    /// As [`Ringer::grant`].
    pub fn revoke(&self, address: u64, count: u32) -> rustix::io::Result<usize> {
        if !self.is_usable() {
            return Err(Errno::BADF);
        }
        rustix::io::retry_on_intr(|| calls::revoke(&self.file, address, count))
    }

    /// Nobody writes any more to pages that were kept.
    ///
    /// # Errors
    /// The system's.
    pub fn release(&self, pages: &[Granted]) -> rustix::io::Result<()> {
        if !self.is_usable() {
            return Err(Errno::BADF);
        }
        let mut all = Ok(());
        for pages in pages.chunks(MOST_PAGES) {
            let mut named = [calls::Page::default(); MOST_PAGES];
            let named = named.get_mut(..pages.len()).ok_or(Errno::INVAL)?;
            for (named, page) in named.iter_mut().zip(pages) {
                named.page = page.page();
            }
            // One that fails keeps no other from being let go.
            all = all.and(calls::release(&self.file, named).map(drop));
        }
        all
    }

    /// In a forked child, closes what it has of its parent's.
    pub fn abandon(&self) {
        self.file.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shared_section_faults_and_nothing_is_left_out() {
        let shape = Shape::new(64 << 20, [1, 2], 4, 16).unwrap().with_shared(8 << 20, 16).unwrap();
        let parts = ranges(64 << 20, &shape);
        let mut end = 0;
        for part in &parts {
            assert_eq!(part.offset, end);
            assert_eq!(part.flags & FAULTS != 0, part.offset == shape.shared);
            end += part.bytes;
        }
        assert_eq!((parts.len(), end), (3, 64 << 20));
        let none = Shape::new(64 << 20, [1, 2], 4, 16).unwrap();
        assert_eq!(ranges(64 << 20, &none).len(), 1);
        // A header that says too much grants no more than there is.
        let wrong = Shape { shared: 60 << 20, shared_bytes: u64::MAX, ..shape };
        assert_eq!(ranges(64 << 20, &wrong).iter().map(|part| part.bytes).sum::<u64>(), 64 << 20);
    }

    #[test]
    fn numbers_are_those_of_the_header() {
        let header = include_str!("../../../driver/isthmus.h");
        for (name, value) in [
            ("ISTHMUS_ABI", ABI.to_string()),
            ("ISTHMUS_PAGES", "(1u << 0)".into()),
            ("ISTHMUS_LOW", "(1u << 1)".into()),
            ("ISTHMUS_READ", "(1u << 0)".into()),
            ("ISTHMUS_WRITE", "(1u << 1)".into()),
            ("ISTHMUS_FAULTS", "(1u << 2)".into()),
            ("ISTHMUS_MAY_RING", "(1u << 0)".into()),
            ("ISTHMUS_ALL", format!("{ALL:#x}u")),
            ("ISTHMUS_NO_ID", format!("{NO_ID:#x}u")),
            ("ISTHMUS_OWN_ID", format!("{OWN_ID:#x}u")),
            ("ISTHMUS_INFO", "_IOR(0xb7, 0, struct isthmus_info)".into()),
            ("ISTHMUS_ALLOW", "_IOW(0xb7, 1, struct isthmus_allow)".into()),
            ("ISTHMUS_MEMBER", "_IOW(0xb7, 2, struct isthmus_member)".into()),
            ("ISTHMUS_BELL", "_IO(0xb7, 3)".into()),
            ("ISTHMUS_RING", "_IO(0xb7, 4)".into()),
            ("ISTHMUS_POOL", "_IOW(0xb7, 5, struct isthmus_pool)".into()),
            ("ISTHMUS_GRANT", "_IOW(0xb7, 6, struct isthmus_pages)".into()),
            ("ISTHMUS_REVOKE", "_IOW(0xb7, 7, struct isthmus_pages)".into()),
            ("ISTHMUS_RELEASE", "_IOW(0xb7, 8, struct isthmus_pages)".into()),
            ("ISTHMUS_SETTLE", "_IO(0xb7, 9)".into()),
            ("ISTHMUS_SPLIT", "(1u << 0)".into()),
            ("ISTHMUS_KEEP", "(1u << 1)".into()),
            ("ISTHMUS_MOST_PAGES", MOST_PAGES.to_string()),
            ("ISTHMUS_GRANTED", "0".into()),
            ("ISTHMUS_FULL", FULL.to_string()),
            ("ISTHMUS_LIMIT", LIMIT.to_string()),
        ] {
            assert!(header.contains(&format!("#define {name} {value}")), "{name} is {value} here");
        }
        assert_eq!((PAGES, LOW, READ, WRITE, FAULTS, MAY_RING, SPLIT, KEEP), (1, 2, 1, 2, 4, 1, 1, 2));
    }

    #[test]
    fn every_vector_but_the_first_has_its_sleepers() {
        for vectors in 2..=VECTORS {
            let all: std::collections::BTreeSet<u32> = (1..vectors).collect();
            let slots = (0..64).map(|slot| vector_of_slot(slot, vectors)).collect();
            let places = (0..512).map(|line| vector_of_place(line * 64, vectors)).collect();
            assert_eq!([&all, &all], [&slots, &places]);
        }
    }

    #[test]
    fn another_file_is_not_rung() {
        let other = crate::create::memory(1 << 20).unwrap();
        assert_eq!(calls::ring(&other, 1, 1), Err(Errno::NOTTY));
    }
}
