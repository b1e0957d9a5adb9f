//! A mapped region and checked views of it.
//!
//! Rules:
//! 1. No Rust reference to bytes that a peer can write: words are atomics, bytes are copied in or out.
//! 2. A view is made by one of the functions here, which check offset, length and alignment against the mapping.
//!    After that, using it needs no check that could fail: indices are masked or compared with the checked length.
//! 3. Every view keeps the mapping alive.
//! 4. A view's type says whether it may be stored to. What this process, or all members, may write is a [`Section`]; what only
//!    others write is a [`PeerSection`], which has no function that stores, so that a store that would fault where the memory is
//!    mapped for reading does not compile.

mod inherit;
mod retire;
mod views;
mod windows;

use std::fmt::Debug;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use isthmus_lockfree::sync::{Line, ReadLine, ReadWord, Word};
use isthmus_lockfree::{LINE_BYTES, hint};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::dax;
use crate::error::{Error, Result};
use crate::local::LocalBuf;
use crate::place::Place;
use crate::source::Source;

pub use self::inherit::CopyForChild;
pub use self::retire::{Listed, ProgramMemory};
pub use self::views::{Bytes, LineRef, SlotRing};
use self::windows::Windows;

/// A region (or a part of one) in this process's address space, until the last view is gone.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: u64,
    owner: rustix::process::Pid,
    is_writable: bool,
    /// What the program itself stores to.
    list: retire::List,
    /// For device memory: what of it is mapped by now.
    windows: Option<Box<Windows>>,
}

/// What a view may be used for: [`ReadWrite`] or [`ReadOnly`].
pub trait Access: Clone + Copy + Debug + Send + Sync + sealed::Sealed + 'static {
    /// A word in such memory.
    type Word: Debug + 'static;
    /// A line in such memory.
    type Line: Debug + 'static;

    /// A word of a line.
    fn word(line: &Self::Line, index: usize) -> &Self::Word;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::ReadWrite {}
    impl Sealed for super::ReadOnly {}
}

/// Memory that this process may write: its own peer's section, or one that all members write.
#[derive(Debug, Clone, Copy)]
pub struct ReadWrite;

impl Access for ReadWrite {
    type Word = Word;
    type Line = Line;

    #[inline(always)] // an addition
    fn word(line: &Line, index: usize) -> &Word {
        &line.words[index]
    }
}

/// Memory that this process reads, and others write.
#[derive(Debug, Clone, Copy)]
pub struct ReadOnly;

impl Access for ReadOnly {
    type Word = ReadWord;
    type Line = ReadLine;

    #[inline(always)] // an addition
    fn word(line: &ReadLine, index: usize) -> &ReadWord {
        &line.words[index]
    }
}

// SAFETY: the mapping is shared memory that other processes write at any time anyway; all access goes through
// atomics and copies, from whichever thread.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `fd`, or those behind a head ([`dax::begin`]), read-write and shared. A forked child does not inherit the mapping.
    ///
    /// # Errors
    /// [`Error::Memory`] with the system's answer.
    pub fn map(fd: BorrowedFd<'_>, len: u64) -> Result<Arc<Self>> {
        Self::map_as(fd, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// As [`Mapping::map`], but without write access: for [`crate::reader`], which hands out no view that writes.
    pub(crate) fn map_for_reading(fd: BorrowedFd<'_>, len: u64) -> Result<Arc<Self>> {
        Self::map_as(fd, len, ProtFlags::READ)
    }

    /// Maps the first file of a region.
    ///
    /// # Errors
    /// As [`Mapping::as_opened`], and as [`Source::file`].
    pub fn of(source: &dyn Source) -> Result<Arc<Self>> {
        Self::as_opened(source.file(0)?.as_fd(), source.bytes())
    }

    /// Maps the first `len` bytes of a file as its descriptor allows: to be written, or only read.
    ///
    /// # Errors
    /// [`Error::WrongSize`] for a file that is shorter: a load beyond its end would be a signal, not an error. [`Error::Memory`] with
    /// the system's answer.
    pub fn as_opened(fd: BorrowedFd<'_>, len: u64) -> Result<Arc<Self>> {
        let failed = |source| Error::Memory { action: "look at", bytes: len, source };
        let stat = rustix::fs::fstat(fd).map_err(failed)?;
        let found = u64::try_from(stat.st_size).unwrap_or(0);
        // A device says no length there, and refuses to map more than it has.
        if found < len && !is_device(&stat) {
            return Err(Error::WrongSize { found, expected: len });
        }
        let mode = rustix::fs::fcntl_getfl(fd).map_err(failed)? & OFlags::RWMODE;
        match mode == OFlags::RDWR {
            true => Self::map(fd, len),
            false => Self::map_for_reading(fd, len),
        }
    }

    fn map_as(fd: BorrowedFd<'_>, len: u64, access: ProtFlags) -> Result<Arc<Self>> {
        match is_bar(fd) {
            true => Self::map_in_windows(fd, len, access),
            false => Self::map_whole(fd, len, access),
        }
    }

    fn map_whole(fd: BorrowedFd<'_>, len: u64, access: ProtFlags) -> Result<Arc<Self>> {
        let failed = |source| Error::Memory { action: "map", bytes: len, source };
        let size = usize::try_from(len).map_err(|_| failed(Errno::NOMEM))?;
        let begin = dax::begin_of(fd, len);
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe { mmap(std::ptr::null_mut(), size, access, MapFlags::SHARED, fd, begin) }
            .map_err(failed)?;
        keep_from_children(base, size);
        let base = NonNull::new(base.cast()).ok_or_else(|| failed(Errno::NOMEM))?;
        Ok(Self::at(base, len, access, None))
    }

    /// As [`Mapping::map`], but as if it were device memory, in the tests of other crates.
    ///
    /// # Errors
    /// [`Error::Memory`] with the system's answer.
    #[doc(hidden)]
    pub fn map_as_device(fd: BorrowedFd<'_>, len: u64) -> Result<Arc<Self>> {
        Self::map_in_windows(fd, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps device memory, each window of it when it is first used.
    fn map_in_windows(fd: BorrowedFd<'_>, len: u64, access: ProtFlags) -> Result<Arc<Self>> {
        let failed = |source| Error::Memory { action: "map", bytes: len, source };
        let size = usize::try_from(len).map_err(|_| failed(Errno::NOMEM))?;
        let base = windows::reserve(size).map_err(failed)?;
        keep_from_children(base, size);
        let base: NonNull<u8> = NonNull::new(base.cast()).ok_or_else(|| failed(Errno::NOMEM))?;
        let windows = Windows::new(fd, len, access);
        let windows = windows.inspect_err(|_| {
            // SAFETY: the range that was just reserved, to which nothing refers.
            let _ = unsafe { munmap(base.as_ptr().cast(), size) };
        });
        Ok(Self::at(base, len, access, Some(Box::new(windows.map_err(failed)?))))
    }

    fn at(base: NonNull<u8>, len: u64, access: ProtFlags, windows: Option<Box<Windows>>) -> Arc<Self> {
        let is_writable = access.contains(ProtFlags::WRITE);
        let owner = rustix::process::getpid();
        Arc::new(Self { base, len, owner, is_writable, list: retire::List::default(), windows })
    }

    /// Sees to it that checked bytes are mapped.
    fn need(&self, at: u64, len: u64) -> Result<()> {
        match &self.windows {
            None => Ok(()),
            Some(windows) => windows.need(self, at, len),
        }
    }

    /// In a forked child, closes what it keeps open.
    pub(crate) fn abandon(&self) {
        if let Some(windows) = self.windows.as_ref().filter(|_| !self.is_own()) {
            windows.abandon();
        }
    }

    /// Whether this process has it; a forked child did not inherit it.
    fn is_own(&self) -> bool {
        rustix::process::getpid() == self.owner
    }

    /// Bytes mapped.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing is mapped; never so for a mapping that [`Mapping::map`] returned.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The whole mapping as one section that may be written.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] for one that was mapped for reading.
    pub fn whole(self: &Arc<Self>) -> Result<Section> {
        self.whole_for_reading().writable()
    }

    /// The whole mapping as one section that is read.
    pub fn whole_for_reading(self: &Arc<Self>) -> PeerSection {
        let ready = if self.windows.is_some() { 0 } else { self.len };
        Section {
            map: Arc::clone(self),
            base: 0,
            len: self.len,
            origin: Place::NOWHERE,
            ready,
            access: PhantomData,
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A forked child may have mapped something else there since.
        if !self.is_own() {
            return;
        }
        // The length came from a usize, so this conversion cannot fail.
        let size = usize::try_from(self.len).unwrap_or(0);
        // SAFETY: the range that `map` obtained; every view holds an Arc, so none is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), size) };
    }
}

/// Keeps a forked child from inheriting what was just mapped.
fn keep_from_children(base: *mut std::ffi::c_void, size: usize) {
    // SAFETY: a mapping of ours. A failure is harmless: a BAR's mapping may refuse advice.
    let _ = unsafe { madvise(base, size, Advice::LinuxDontFork) };
}

/// What `statfs` says of sysfs, where devices' BARs are.
const SYSFS_MAGIC: i64 = 0x6265_6572;

/// Whether a file is the BAR of a device.
pub(crate) fn is_bar(fd: BorrowedFd<'_>) -> bool {
    // The type of this field differs between architectures.
    #[allow(clippy::unnecessary_cast)]
    rustix::fs::fstatfs(fd).is_ok_and(|fs| fs.f_type as i64 == SYSFS_MAGIC)
}

/// Whether a file is a character device, as that of a driver or of persistent memory (DAX) is.
pub(crate) fn is_device(stat: &rustix::fs::Stat) -> bool {
    rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice
}

/// A checked part of a mapping. Offsets are relative to its start.
#[derive(Debug, Clone)]
pub struct Section<A: Access = ReadWrite> {
    map: Arc<Mapping>,
    base: u64,
    len: u64,
    /// The place of its first byte.
    origin: Place,
    /// Its length if all of it is mapped, else 0: then whatever has bytes goes the slow way.
    ready: u64,
    access: PhantomData<A>,
}

/// A part of a mapping that others write.
pub type PeerSection = Section<ReadOnly>;

impl<A: Access> Section<A> {
    /// Bytes of the section.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The place of the byte at `offset`, which is one of the section's.
    pub fn place(&self, offset: u64) -> Place {
        self.origin.plus(offset)
    }

    /// This part of the mapping as a section of a region that begins at `origin`.
    pub(crate) fn at(self, origin: Place) -> Self {
        Self { origin, ..self }
    }

    /// Whether a program may use it as any memory: it is no device's, mapped a window at a time and as the device says.
    pub fn is_plain(&self) -> bool {
        self.map.windows.is_none()
    }

    /// Whether the section has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a claim (offset, length, alignment) holds.
    fn bounds(&self, what: &'static str, offset: u64, len: u64, align: u64) -> Result<()> {
        let end = offset.checked_add(len);
        if end.is_none_or(|end| end > self.len) || !(self.base + offset).is_multiple_of(align) {
            return Err(Error::OutOfBounds { what, offset, len, limit: self.len });
        }
        Ok(())
    }

    /// The one place where a claim becomes an address, all bytes of which can be used.
    #[inline]
    fn check(&self, what: &'static str, offset: u64, len: u64, align: u64) -> Result<NonNull<u8>> {
        let end = offset.checked_add(len);
        if end.is_none_or(|end| end > self.ready) || !(self.base + offset).is_multiple_of(align) {
            self.prepare_or_refuse(what, offset, len, align)?;
        }
        // base + len <= map.len was established when the section was made, and map.len fits a usize.
        let at = usize::try_from(self.base + offset).map_err(|_| Error::Invalid { what, value: offset })?;
        // SAFETY: at <= map.len, so the result lies in, or one past, the mapping.
        Ok(unsafe { self.map.base.add(at) })
    }

    /// Maps what a claim needs, if it holds.
    #[cold]
    fn prepare_or_refuse(&self, what: &'static str, offset: u64, len: u64, align: u64) -> Result<()> {
        self.bounds(what, offset, len, align)?;
        self.map.need(self.base + offset, len)
    }

    /// A part of this section.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn part(&self, what: &'static str, offset: u64, len: u64) -> Result<Self> {
        self.bounds(what, offset, len, 1)?;
        let (base, origin) = (self.base + offset, self.origin.plus(offset));
        // Views of a small part are made often, and need no more tests then.
        let is_ready = self.ready == self.len || len <= windows::WINDOW_BYTES;
        if is_ready {
            self.map.need(base, len)?;
        }
        let ready = if is_ready { len } else { 0 };
        Ok(Self { map: Arc::clone(&self.map), base, len, origin, ready, access: PhantomData })
    }

    /// The same bytes, to be read.
    pub fn for_reading(&self) -> PeerSection {
        let Self { base, len, origin, ready, .. } = *self;
        Section { map: Arc::clone(&self.map), base, len, origin, ready, access: PhantomData }
    }

    /// The same bytes, to be written; for their writers, and for direct access to memory that its owner has opened to others.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] where they are mapped for reading.
    pub fn writable(&self) -> Result<Section> {
        if !self.map.is_writable {
            return Err(Error::ReadOnly);
        }
        let Self { base, len, origin, ready, .. } = *self;
        Ok(Section { map: Arc::clone(&self.map), base, len, origin, ready, access: PhantomData })
    }

    /// Whether the section has these bytes.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    #[inline]
    pub fn holds(&self, what: &'static str, offset: u64, len: u64) -> Result<()> {
        self.bounds(what, offset, len, 1)
    }

    /// Whether the section has these bytes, which are mapped from then on: what reads them afterwards does not fail.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::Memory`] where the system does not let them be mapped.
    #[inline]
    pub fn reach(&self, what: &'static str, offset: u64, len: u64) -> Result<()> {
        self.check(what, offset, len, 1).map(drop)
    }

    /// The word at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], also for a misaligned offset.
    #[inline]
    pub fn word(&self, what: &'static str, offset: u64) -> Result<&A::Word> {
        let at = self.check(what, offset, 8, 8)?;
        // SAFETY: eight aligned bytes inside the mapping, which lives as long as self; both kinds of word are an atomic, for
        // which any bytes are valid and concurrent writes by others are allowed.
        Ok(unsafe { at.cast::<A::Word>().as_ref() })
    }

    /// The `N` words from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], also for a misaligned offset.
    #[inline]
    pub fn words<const N: usize>(&self, what: &'static str, offset: u64) -> Result<&[A::Word; N]> {
        let at = self.check(what, offset, 8 * N as u64, 8)?;
        // SAFETY: as for `word`, N times.
        Ok(unsafe { at.cast::<[A::Word; N]>().as_ref() })
    }

    /// The word at `offset`, to be read.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], also for a misaligned offset.
    #[inline]
    pub fn read(&self, what: &'static str, offset: u64) -> Result<&ReadWord> {
        let at = self.check(what, offset, 8, 8)?;
        // SAFETY: as for `word`.
        Ok(unsafe { at.cast::<ReadWord>().as_ref() })
    }

    /// A 32-bit field, read once (the two halves of a word have one writer).
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn half(&self, what: &'static str, offset: u64) -> Result<u32> {
        let word = self.read(what, offset & !7)?.get();
        let shift = if offset % 8 == 4 { 32 } else { 0 };
        #[allow(clippy::cast_possible_truncation)] // the half that is wanted
        Ok((word >> shift) as u32)
    }

    /// An owned view of the line at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], also for a misaligned offset.
    pub fn line(&self, what: &'static str, offset: u64) -> Result<LineRef<A>> {
        let at = self.check(what, offset, LINE_BYTES as u64, LINE_BYTES as u64)?;
        Ok(LineRef { line: at.cast(), _map: Arc::clone(&self.map) })
    }

    /// A ring of `count` slots, a power of two.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::Invalid`] when `count` is not a power of two.
    pub fn ring(&self, what: &'static str, offset: u64, count: u64) -> Result<SlotRing<A>> {
        if !count.is_power_of_two() || count > 1 << 24 {
            return Err(Error::Invalid { what, value: count });
        }
        let at = self.check(what, offset, count * LINE_BYTES as u64, LINE_BYTES as u64)?;
        Ok(SlotRing { first: at.cast(), mask: count - 1, _map: Arc::clone(&self.map), access: PhantomData })
    }

    /// A range of plain bytes.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn bytes(&self, what: &'static str, offset: u64, len: u64) -> Result<Bytes<A>> {
        let at = self.check(what, offset, len, 1)?;
        Ok(Bytes { at, len, _map: Arc::clone(&self.map), access: PhantomData })
    }

    /// Copies `into.len()` bytes from `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; nothing is copied then.
    #[inline]
    pub fn drain(&self, what: &'static str, offset: u64, into: LocalBuf) -> Result<()> {
        let at = self.check(what, offset, into.len() as u64, 1)?;
        into.copy_from(at);
        Ok(())
    }

    /// As [`Section::drain`], the short way where the bytes lie in what is mapped already. Gives whether they were copied.
    #[inline(always)] // a few instructions of a short operation
    pub fn drain_short(&self, what: &'static str, offset: u64, into: LocalBuf) -> bool {
        let Some(at) = self.at_once(offset, into.len() as u64) else {
            return self.drain(what, offset, into).is_ok();
        };
        into.copy_short_from(at);
        true
    }

    /// The address of bytes that lie in what is mapped already.
    #[inline(always)] // as its callers
    fn at_once(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        offset.checked_add(len).filter(|end| *end <= self.ready)?;
        let at = usize::try_from(self.base + offset).ok()?;
        // SAFETY: as in `check`, base + ready <= map.len.
        Some(unsafe { self.map.base.add(at) })
    }

    /// Asks for the lines of a range that begins at a line's edge, ahead of reads from it. A hint: nothing is checked, and an address
    /// that is not mapped does nothing.
    #[inline]
    pub fn expect(&self, offset: u64, len: u64) {
        self.lines(offset, len, hint::expect, hint::expect_four);
    }

    /// Asks for each line of a range, or for what means nothing.
    #[inline(always)] // a few instructions for each line
    fn lines(&self, offset: u64, len: u64, one: impl Fn(*const u8), four: impl Fn(*const u8)) {
        let [base, offset, mut left] = [self.base, offset, len].map(|it| usize::try_from(it).unwrap_or(0));
        let mut at = self.map.base.as_ptr().cast_const().wrapping_add(base).wrapping_add(offset);
        while left > 3 * LINE_BYTES {
            four(at);
            at = at.wrapping_add(4 * LINE_BYTES);
            left = left.saturating_sub(4 * LINE_BYTES);
        }
        while left > 0 {
            one(at);
            at = at.wrapping_add(LINE_BYTES);
            left = left.saturating_sub(LINE_BYTES);
        }
    }

    /// Where in the section an address of this process lies.
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        let base = self.map.base.as_ptr().expose_provenance() as u64;
        address.checked_sub(base)?.checked_sub(self.base).filter(|offset| *offset < self.len)
    }

    /// The address in this process of `len` bytes of the section, as a number.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn address(&self, offset: u64, len: u64) -> Result<u64> {
        Ok(self.check("address", offset, len, 1)?.as_ptr().expose_provenance() as u64)
    }
}

impl Section {
    /// Asks for the lines of a range that begins at a line's edge, ahead of writes to it. A hint, as [`Section::expect`].
    #[inline]
    pub fn prepare(&self, offset: u64, len: u64) {
        self.lines(offset, len, hint::prepare, hint::prepare_four);
    }

    /// Copies all of `from` to `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; nothing is copied then.
    #[inline]
    pub fn fill(&self, what: &'static str, offset: u64, from: LocalBuf) -> Result<()> {
        let at = self.check(what, offset, from.len() as u64, 1)?;
        from.copy_to(at);
        Ok(())
    }

    /// As [`Section::fill`], the short way where the bytes lie in what is mapped already. Gives whether they were copied.
    #[inline(always)] // a few instructions of a short operation
    pub fn fill_short(&self, what: &'static str, offset: u64, from: LocalBuf) -> bool {
        let Some(at) = self.at_once(offset, from.len() as u64) else {
            return self.fill(what, offset, from).is_ok();
        };
        from.copy_short_to(at);
        true
    }

    /// Copies a slice to `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; nothing is copied then.
    pub fn fill_bytes(&self, what: &'static str, offset: u64, from: &[u8]) -> Result<()> {
        let at = self.check(what, offset, from.len() as u64, 1)?;
        // SAFETY: the target range was checked; a slice of ours cannot overlap with bytes that no slice may name.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), at.as_ptr(), from.len()) };
        Ok(())
    }

    /// Bytes as a buffer, for accesses that the views here do not have: atomic operations of a program's own kinds.
    ///
    /// # Safety
    /// The buffer must not outlive the section. All that may reach these bytes at the same time must do so by copies or
    /// by atomic accesses of the same size, as [`LocalBuf`]'s user does.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub unsafe fn lend(&self, what: &'static str, offset: u64, len: u64) -> Result<LocalBuf> {
        let at = self.check(what, offset, len, 1)?;
        let size = usize::try_from(len).map_err(|_| Error::Invalid { what, value: len })?;
        // SAFETY: the range was checked; the caller keeps the mapping.
        Ok(unsafe { LocalBuf::new(at.as_ptr(), size) })
    }

    /// Zeroes a range.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn zero(&self, what: &'static str, offset: u64, len: u64) -> Result<()> {
        let at = self.check(what, offset, len, 1)?;
        let size = usize::try_from(len).map_err(|_| Error::Invalid { what, value: len })?;
        // SAFETY: the range was checked to lie inside the mapping; no reference to plain bytes of it exists.
        unsafe { std::ptr::write_bytes(at.as_ptr(), 0, size) };
        Ok(())
    }
}
