//! Mapping device memory a window at a time, when it is first used.
//!
//! The kernel fills in the pages of a file when they are touched, and those of a device's memory all at once, when it is mapped:
//! for each GiB 262,144 entries and 2 MiB of tables, in each process. A process uses its own section, the shared one and those of its
//! peers, so only the addresses of the whole are taken at first.
//!
//! [`super::Section::check`], through which each address goes, is where a window is mapped, and `part` for small sections. Prefetching
//! goes past it, and does nothing where nothing is mapped.

use std::os::fd::BorrowedFd;
use std::sync::Mutex;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap, mmap_anonymous, mremap_fixed, munmap};

use super::{Mapping, keep_from_children};
use crate::error::{Error, Result};
use crate::kept::Kept;
use crate::shared_by_threads::Flag;
use crate::signals;

/// Bytes of a window, a power of two: some 50 us to map under TCG, and few enough for the system's limit of mappings.
pub(super) const WINDOW_BYTES: u64 = 4 << 20;

/// The windows of a mapping.
#[derive(Debug)]
pub(super) struct Windows {
    file: Kept,
    access: ProtFlags,
    /// By window: whether it is mapped. Never unset.
    mapped: Box<[Flag]>,
    /// Held while a window is mapped and while all of them are given up: whether they were.
    given_up: Mutex<bool>,
}

/// Takes addresses for `size` bytes, where any access is a fault.
pub(super) fn reserve(size: usize) -> rustix::io::Result<*mut std::ffi::c_void> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
    unsafe { mmap_anonymous(std::ptr::null_mut(), size, ProtFlags::empty(), flags) }
}

impl Windows {
    /// Windows of the first `len` bytes of a file, none of which is mapped yet.
    pub(super) fn new(fd: BorrowedFd<'_>, len: u64, access: ProtFlags) -> rustix::io::Result<Self> {
        let fd = rustix::io::fcntl_dupfd_cloexec(fd, 0)?;
        let count = usize::try_from(len.div_ceil(WINDOW_BYTES)).map_err(|_| Errno::NOMEM)?;
        let mapped = (0..count).map(|_| Flag::new(false)).collect();
        Ok(Self { file: Kept::new(fd), access, mapped, given_up: Mutex::new(false) })
    }

    /// Closes the file, in a forked child.
    pub(super) fn abandon(&self) {
        self.file.abandon();
    }

    /// Sees to it that `len` bytes from `at` on, which lie in `map`, whose windows these are, can be used.
    pub(super) fn need(&self, map: &Mapping, at: u64, len: u64) -> Result<()> {
        let (first, last) = (at / WINDOW_BYTES, (at + len.max(1) - 1) / WINDOW_BYTES);
        if len == 0 || (first..=last).all(|window| self.is_mapped(window)) {
            return Ok(());
        }
        self.map(map, first, last)
    }

    #[inline]
    fn is_mapped(&self, window: u64) -> bool {
        usize::try_from(window).ok().and_then(|at| self.mapped.get(at)).is_some_and(Flag::is_set)
    }

    #[cold]
    fn map(&self, map: &Mapping, first: u64, last: u64) -> Result<()> {
        let refused = Error::Memory { action: "map", bytes: map.len, source: Errno::BADF };
        // In a forked child something else may be at these addresses, and a thread of its parent may have had the lock.
        if !map.is_own() {
            return Err(refused);
        }
        // A handler of the program's may come here as well.
        let given_up = signals::lock(&self.given_up);
        if *given_up {
            return Ok(());
        }
        // The program may have closed all that it did not open, and opened another file under the number.
        if !self.file.is_there() {
            return Err(refused);
        }
        for window in (first..=last).filter(|window| !self.is_mapped(*window)) {
            let begin = window * WINDOW_BYTES;
            let bytes = WINDOW_BYTES.min(map.len - begin);
            let failed = |source| Error::Memory { action: "map", bytes, source };
            let cell = usize::try_from(window).ok().and_then(|at| self.mapped.get(at));
            let (Some(cell), Ok(at), Ok(size)) = (cell, usize::try_from(begin), usize::try_from(bytes))
            else {
                return Err(failed(Errno::INVAL));
            };
            // Made elsewhere and moved: a mapping that fails at fixed addresses would leave a hole, for others to take.
            // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
            let made =
                unsafe { mmap(std::ptr::null_mut(), size, self.access, MapFlags::SHARED, &self.file, begin) };
            let made = made.map_err(failed)?;
            keep_from_children(made, size);
            let to = map.base.as_ptr().wrapping_add(at).cast();
            // SAFETY: from the range that was just mapped, to which nothing refers, to a part of the addresses that `reserve` took, which
            // the mapping has until it ends, and where nothing was yet: the cell says so, and the lock is held.
            if let Err(source) = unsafe { mremap_fixed(made, size, size, MremapFlags::MAYMOVE, to) } {
                // SAFETY: the range mapped above, to which nothing refers.
                let _ = unsafe { munmap(made, size) };
                // What was there may be gone; nobody else is to have these addresses.
                let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
                // SAFETY: where nothing is, or else it fails.
                let _ = unsafe { mmap_anonymous(to, size, ProtFlags::empty(), flags) };
                return Err(failed(source));
            }
            cell.set();
        }
        Ok(())
    }

    /// Calls `replace`, which puts something else at all of their addresses, and maps none from then on.
    pub(super) fn give_up<T, E>(
        &self,
        replace: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut given_up = signals::lock(&self.given_up);
        let done = replace()?;
        *given_up = true;
        self.mapped.iter().for_each(|window| {
            window.set();
        });
        Ok(done)
    }

    /// How many are mapped.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.mapped.iter().filter(|window| window.is_set()).count()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd, OwnedFd};
    use std::sync::{Arc, Barrier};

    use super::*;

    /// Four windows, the last of one page.
    const BYTES: u64 = 3 * WINDOW_BYTES + 4096;
    const ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

    fn memory() -> OwnedFd {
        let fd = rustix::fs::memfd_create("windows", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, BYTES).unwrap();
        fd
    }

    fn mapped() -> (OwnedFd, Arc<Mapping>, Arc<Mapping>) {
        let fd = memory();
        let one = Mapping::map_in_windows(fd.as_fd(), BYTES, ACCESS).unwrap();
        let two = Mapping::map(fd.as_fd(), BYTES).unwrap();
        (fd, one, two)
    }

    fn count(map: &Mapping) -> usize {
        map.windows.as_ref().unwrap().count()
    }

    #[test]
    fn a_window_is_mapped_when_it_is_first_used() {
        let (_fd, map, other) = mapped();
        let whole = map.whole().unwrap();
        let part = whole.part("part", WINDOW_BYTES, BYTES - WINDOW_BYTES).unwrap();
        let last = BYTES - 4096;
        assert!(whole.holds("bytes", 0, BYTES).is_ok());
        assert!(whole.word("word", BYTES).is_err() && whole.bytes("bytes", 1, BYTES).is_err());
        assert!(whole.bytes("bytes", 5, 0).is_ok());
        whole.expect(0, 4096);
        assert_eq!(count(&map), 0);
        part.word("word", 8).unwrap().set(7);
        assert_eq!(count(&map), 1);
        assert_eq!(other.whole().unwrap().word("word", WINDOW_BYTES + 8).unwrap().get(), 7);
        part.word("word", 16).unwrap().set(8);
        assert_eq!(count(&map), 1);
        // The last byte of one and the first of the next, which is short.
        whole.fill_bytes("bytes", 3 * WINDOW_BYTES - 1, &[1, 2]).unwrap();
        assert_eq!(count(&map), 3);
        whole.word("word", BYTES - 8).unwrap().set(9);
        assert_eq!(count(&map), 3);
        assert_eq!(
            part.part("small", last - WINDOW_BYTES, 4096).unwrap().word("word", 4088).unwrap().get(),
            9
        );
        let all = whole.bytes("bytes", 0, BYTES).unwrap();
        assert_eq!(count(&map), 4);
        assert!(
            all.to_vec(0, BYTES).unwrap()
                == other.whole().unwrap().bytes("bytes", 0, BYTES).unwrap().to_vec(0, BYTES).unwrap()
        );
    }

    #[test]
    fn no_window_is_mapped_of_a_file_whose_descriptor_is_another_ones() {
        let (_fd, map, _other) = mapped();
        let whole = map.whole().unwrap();
        whole.word("word", 0).unwrap().set(1);
        let number = map.windows.as_ref().unwrap().file.as_fd().as_raw_fd();
        let stranger = memory();
        // SAFETY: the program's, which does not know what it closes.
        assert_eq!(unsafe { libc::dup2(stranger.as_raw_fd(), number) }, number);
        assert!(matches!(whole.word("word", WINDOW_BYTES), Err(Error::Memory { source: Errno::BADF, .. })));
        assert_eq!(whole.word("word", 0).unwrap().get(), 1);
        drop((whole, map));
        // SAFETY: as above; it is still open.
        assert_eq!(unsafe { libc::close(number) }, 0);
    }

    /// Threads that use each window for the first time while all of it is retired.
    #[test]
    fn what_is_first_used_while_the_mapping_is_retired_does_not_fault() {
        let (fd, _map, other) = mapped();
        let there = other.whole().unwrap();
        for round in 0..500 {
            let map = Mapping::map_in_windows(fd.as_fd(), BYTES, ACCESS).unwrap();
            let start = Barrier::new(3);
            let uses = |order: [u64; 4]| {
                let whole = map.whole().unwrap();
                start.wait();
                for window in order {
                    whole.word("word", window * WINDOW_BYTES).unwrap().set(round + 1);
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(|| uses([0, 1, 2, 3]));
                scope.spawn(|| uses([3, 2, 1, 0]));
                start.wait();
                for _ in 0..round % 50 * 20 {
                    std::hint::spin_loop();
                }
                map.retire().unwrap();
            });
            assert_eq!(count(&map), 4);
            let whole = map.whole().unwrap();
            for at in (0..4).map(|window| window * WINDOW_BYTES) {
                let before = there.word("word", at).unwrap().get();
                whole.word("word", at).unwrap().set(u64::MAX);
                assert_eq!(there.word("word", at).unwrap().get(), before);
            }
        }
    }
}
