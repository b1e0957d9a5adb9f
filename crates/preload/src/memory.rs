//! The program's pointers. Those of the calls that are not in a hurry are read and written by the kernel (process_vm_readv(2),
//! process_vm_writev(2)), so that a wrong one is `EFAULT` and no signal; of those of semop, msgsnd and msgrcv each thread asks the kernel
//! once for each page, and remembers some. So one to memory that the program has used in such a call before, and has unmapped since, may
//! be a signal.

use std::cell::Cell;
use std::ffi::c_void;
use std::mem::MaybeUninit;

use isthmus_region::signals::{Blocked, Uncancelled};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::Result;

/// The lowest address that a program can have anything at, and the first that none has.
const ADDRESSES: std::ops::Range<usize> = 4096..1 << 47;
const PAGE: usize = 4096;
/// Pages that a thread remembers.
const KNOWN: usize = 64;

thread_local! {
    /// Numbers of pages, doubled, with one more for those that can be written; each at the place of its lower bits.
    static PAGES: [Cell<usize>; KNOWN] = const { [const { Cell::new(0) }; KNOWN] };
}

/// Whether `bytes` at an address are the program's to be read.
pub(crate) fn check(at: *const c_void, bytes: usize) -> Result<()> {
    check_pages(at.addr(), bytes, false)
}

/// Whether `bytes` at an address are the program's to be written.
pub(crate) fn check_room(at: *const c_void, bytes: usize) -> Result<()> {
    check_pages(at.addr(), bytes, true)
}

#[inline]
fn check_pages(begin: usize, bytes: usize, to_write: bool) -> Result<()> {
    let end = begin.checked_add(bytes).filter(|end| *end <= ADDRESSES.end).ok_or(Errno::FAULT)?;
    if begin < ADDRESSES.start {
        return Err(Errno::FAULT);
    }
    for page in begin / PAGE..end.div_ceil(PAGE) {
        let known = PAGES.with(|pages| pages[page % KNOWN].get());
        // One that can be written can be read.
        if known / 2 != page || (to_write && known.is_multiple_of(2)) {
            ask(page, to_write)?;
        }
    }
    Ok(())
}

#[cold]
fn ask(page: usize, to_write: bool) -> Result<()> {
    /// `MADV_POPULATE_READ`, `MADV_POPULATE_WRITE`.
    const POPULATE: [libc::c_int; 2] = [22, 23];
    let at = std::ptr::without_provenance_mut::<c_void>(page * PAGE);
    // SAFETY: this changes nothing that the program could read.
    let done = unsafe { libc::madvise(at, PAGE, POPULATE[usize::from(to_write)]) };
    // A device's memory, and an older kernel, have no such thing.
    if done == -1 && !is_mapped(page * PAGE, to_write) {
        return Err(Errno::FAULT);
    }
    PAGES.with(|pages| pages[page % KNOWN].set(page * 2 + usize::from(to_write)));
    Ok(())
}

/// The kernel's list of mappings. Signals are to be blocked, as this allocates.
///
/// # Errors
/// The system's: there is no descriptor, or no `/proc`.
pub(crate) fn mappings() -> Result<Vec<u8>> {
    let mut list = Vec::new();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(c"/proc/self/maps", flags, Mode::empty())?;
    let mut piece = [0; 4096];
    loop {
        match rustix::io::read(&file, &mut piece)? {
            0 => return Ok(list),
            some => list.extend_from_slice(&piece[..some]),
        }
    }
}

/// Whether the kernel's list of mappings says that an address can be read, or written.
fn is_mapped(address: usize, to_write: bool) -> bool {
    // A handler that allocates could find malloc's lock taken by this thread, also where the list is freed.
    let (_uncancelled, _blocked) = (Uncancelled::new(), Blocked::new());
    let maps = mappings().unwrap_or_default();
    String::from_utf8_lossy(&maps).lines().any(|line| {
        let mut words = line.split(' ');
        let range = words.next().and_then(|range| range.split_once('-'));
        let number = |text: &str| usize::from_str_radix(text, 16).unwrap_or(0);
        let is_it = range.is_some_and(|(low, high)| (number(low)..number(high)).contains(&address));
        let wanted = if to_write { "rw" } else { "r" };
        is_it && words.next().is_some_and(|access| access.starts_with(wanted))
    })
}

/// Reads a value from an address of the program.
pub(crate) fn get<T: Copy>(at: *const T) -> Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    copy(value.as_mut_ptr().cast(), at.cast_mut().cast(), size_of::<T>(), false)?;
    // SAFETY: all its bytes were read, or the copy failed; callers read plain structures of numbers.
    Ok(unsafe { value.assume_init() })
}

/// Writes a value to an address of the program.
pub(crate) fn put<T: Copy>(at: *mut T, mut value: T) -> Result<()> {
    copy((&raw mut value).cast(), at.cast(), size_of::<T>(), true)
}

/// Reads as many values as `into` has.
pub(crate) fn get_all<T: Copy>(at: *const T, into: &mut [T]) -> Result<()> {
    copy(into.as_mut_ptr().cast(), at.cast_mut().cast(), size_of_val(into), false)
}

/// Writes all values of `from`.
pub(crate) fn put_all<T: Copy>(at: *mut T, from: &[T]) -> Result<()> {
    copy(from.as_ptr().cast_mut().cast(), at.cast(), size_of_val(from), true)
}

/// Copies between memory of ours and an address of the program, by the kernel. It has to find the pages of the memory that it takes for
/// another process's, which those of a device do not have: so that is ours.
fn copy(ours: *mut c_void, theirs: *mut c_void, bytes: usize, to_them: bool) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let ours = libc::iovec { iov_base: ours, iov_len: bytes };
    let theirs = libc::iovec { iov_base: theirs, iov_len: bytes };
    // SAFETY: no arguments.
    let own = unsafe { libc::getpid() };
    let done = match to_them {
        // SAFETY: `ours` is memory of the caller's; the kernel checks the other address.
        true => unsafe { libc::process_vm_readv(own, &raw const theirs, 1, &raw const ours, 1, 0) },
        // SAFETY: as above.
        false => unsafe { libc::process_vm_writev(own, &raw const theirs, 1, &raw const ours, 1, 0) },
    };
    if usize::try_from(done) == Ok(bytes) { Ok(()) } else { Err(Errno::FAULT) }
}
