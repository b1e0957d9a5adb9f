//! What a forked child has of a mapping: nothing, but for copies of what the program itself stores to, if that is wanted.
//!
//! Such memory is the program's own, as any other that it has allocated, so a child must find at the same addresses what the
//! parent had there, and must not share it. The parent makes copies elsewhere just before it forks ([`Section::copy_for_child`]); the
//! child moves its own to where they belong ([`CopyForChild::put_in_place`]), and the parent drops them.

use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed, munmap};

use super::Section;
use crate::error::{Error, Result};
use crate::grants::PAGE;

/// [`PAGE`], as lengths in memory are counted.
const PAGE_BYTES: usize = 4096;

/// A copy of a part of a mapping, in pages of their own.
#[derive(Debug)]
pub struct CopyForChild {
    pages: NonNull<u8>,
    bytes: usize,
    /// Where it belongs.
    place: NonNull<u8>,
}

// SAFETY: the pages belong to this alone.
unsafe impl Send for CopyForChild {}

/// Copies `len` bytes, page by page without those that must not be read, as guards of stacks are: a load there would be a fault. The
/// source may change meanwhile, by stores of the program, as in any copy out of a region.
///
/// # Safety
/// Both have so many bytes, apart, and nobody else knows the target.
pub(super) unsafe fn copy_readable(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    let mut done = 0;
    while done < len {
        // SAFETY: done < len.
        let from = unsafe { from.add(done) };
        // SAFETY: as above.
        let to = unsafe { to.add(done) };
        let page = PAGE_BYTES.min(len - done);
        // From the process to itself, since it is from the writer's own memory that the kernel reads a device's, too.
        done += match write_to_self(from, to, len - done).or_else(|_| write_to_self(from, to, page)) {
            Ok(copied) if copied > 0 => copied,
            Ok(_) | Err(Errno::FAULT) => page,
            Err(_) => {
                // The kernel does not do it here.
                // SAFETY: the rest of both.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), len - done) };
                return;
            }
        };
    }
}

fn write_to_self(from: NonNull<u8>, to: NonNull<u8>, len: usize) -> rustix::io::Result<usize> {
    let part = |base: NonNull<u8>| libc::iovec { iov_base: base.as_ptr().cast(), iov_len: len };
    let (local, remote) = (part(from), part(to));
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: the kernel checks both; `copy_readable` vouches for the target.
    let copied = unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(copied)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

impl Section {
    /// Copies `len` bytes for a child that is about to be forked.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::Memory`] if there is none for the copy.
    pub fn copy_for_child(&self, offset: u64, len: u64) -> Result<CopyForChild> {
        let place = self.check("pages", offset, len, PAGE)?;
        let failed = |source| Error::Memory { action: "copy", bytes: len, source };
        let bytes = usize::try_from(len).map_err(|_| failed(Errno::NOMEM))?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
        let pages = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE) };
        let pages = NonNull::new(pages.map_err(failed)?.cast()).ok_or_else(|| failed(Errno::NOMEM))?;
        let copy = CopyForChild { pages, bytes, place };
        // SAFETY: the source is a checked range of the mapping; the target are fresh pages of the same size.
        unsafe { copy_readable(place, pages, bytes) };
        Ok(copy)
    }
}

impl CopyForChild {
    /// In the child, moves it to where its parent had the original. It may be unmapped there.
    ///
    /// # Errors
    /// [`Error::Memory`]; also if anything is there.
    pub fn put_in_place(self) -> Result<()> {
        let failed = |source| Error::Memory { action: "move", bytes: self.bytes as u64, source };
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: nothing is replaced, by this flag.
        let taken =
            unsafe { mmap_anonymous(self.place.as_ptr().cast(), self.bytes, ProtFlags::empty(), flags) };
        if taken.map_err(failed)? != self.place.as_ptr().cast() {
            return Err(failed(Errno::EXIST));
        }
        let (from, to) = (self.pages.as_ptr().cast(), self.place.as_ptr().cast());
        // SAFETY: from pages that this alone has, to those that were mapped just above.
        let moved = unsafe { mremap_fixed(from, self.bytes, self.bytes, MremapFlags::MAYMOVE, to) };
        moved.map_err(failed)?;
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for CopyForChild {
    fn drop(&mut self) {
        // SAFETY: pages that this alone has.
        let _ = unsafe { munmap(self.pages.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::super::Mapping;
    use super::PAGE;

    #[test]
    fn copies_are_of_whole_pages_without_those_that_must_not_be_read() {
        let fd = crate::create::memory(1 << 20).unwrap();
        let map = Mapping::map(fd.as_fd(), 8 * PAGE).unwrap();
        let whole = map.whole().unwrap();
        whole.word("word", PAGE).unwrap().set(7);
        assert!(
            whole.copy_for_child(PAGE / 2, PAGE).is_err()
                && whole.copy_for_child(7 * PAGE, 2 * PAGE).is_err()
        );
        let copy = whole.copy_for_child(PAGE, 2 * PAGE).unwrap();
        assert_eq!(
            (copy.bytes as u64, copy.place.as_ptr().addr() as u64),
            (2 * PAGE, whole.address(PAGE, 1).unwrap())
        );
        // SAFETY: pages of the copy's, to which nobody else writes.
        assert_eq!(unsafe { copy.pages.cast::<u64>().read() }, 7);
        assert!(copy.put_in_place().is_err(), "the original is there");
        let (guard, size) = (whole.address(2 * PAGE, 1).unwrap(), usize::try_from(PAGE).unwrap());
        let protect = |access| {
            let at = std::ptr::with_exposed_provenance_mut(usize::try_from(guard).unwrap());
            // SAFETY: a page of the mapping's, which nobody uses meanwhile.
            unsafe { rustix::mm::mprotect(at, size, access) }.unwrap();
        };
        whole.word("word", 3 * PAGE).unwrap().set(9);
        protect(rustix::mm::MprotectFlags::empty());
        let copy = whole.copy_for_child(PAGE, 3 * PAGE).unwrap();
        protect(rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE);
        // SAFETY: pages of the copy's, as above.
        let words =
            [0, 2].map(|page| unsafe { copy.pages.as_ptr().wrapping_add(page * size).cast::<u64>().read() });
        assert_eq!(words, [7, 9]);
    }
}
