//! The system calls of `driver/isthmus.h`.

use std::ffi::c_void;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use rustix::io::Result;
use rustix::ioctl::{self, Ioctl, IoctlOutput, Opcode, opcode};

const GROUP: u8 = 0xb7;

/// `struct isthmus_info`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Info {
    pub(super) abi: u32,
    pub(super) flags: u32,
    pub(super) bytes: u64,
    pub(super) vectors: u32,
    pub(super) mappings: u32,
    pub(super) rings: u64,
    pub(super) pool: u64,
    pub(super) granted: u64,
    pub(super) splits: u64,
    pub(super) kept: u64,
}

/// `struct isthmus_range`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) flags: u32,
    pub(super) reserved: u32,
}

/// `struct isthmus_allow`.
#[repr(C)]
struct Allow {
    ranges: u64,
    count: u32,
    flags: u32,
    owner: u32,
    pages: u32,
}

/// `struct isthmus_member`.
#[repr(C)]
struct Member {
    member: u32,
    id: u32,
}

/// `struct isthmus_pool`.
#[repr(C)]
struct Pool {
    offset: u64,
    bytes: u64,
    table: u64,
}

/// `struct isthmus_page`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) word: u64,
    pub(super) page: u32,
    pub(super) why: u32,
}

/// `struct isthmus_pages`.
#[repr(C)]
struct Pages {
    address: u64,
    count: u32,
    flags: u32,
    results: u64,
}

/// A call that is given a record's address.
struct WithRecord<'a, T>(Opcode, &'a mut T);

// SAFETY: made by the functions below alone, each with the record that its call reads or writes, any bytes of which are valid.
unsafe impl<T> Ioctl for WithRecord<'_, T> {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.0
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.1).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> Result<()> {
        Ok(())
    }
}

/// The same of a call that gives a number.
struct Counted<'a, T>(Opcode, &'a mut T);

// SAFETY: as of `WithRecord`.
unsafe impl<T> Ioctl for Counted<'_, T> {
    type Output = usize;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.0
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.1).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> Result<usize> {
        Ok(usize::try_from(out).unwrap_or(0))
    }
}

/// A call that is given a number.
struct WithNumber(Opcode, usize);

// SAFETY: made by the functions below alone, for calls that read and write no memory.
unsafe impl Ioctl for WithNumber {
    type Output = i32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        self.0
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.1)
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> Result<i32> {
        Ok(out)
    }
}

/// `ISTHMUS_INFO`.
pub(super) fn info(file: impl AsFd) -> Result<Info> {
    let mut info = Info::default();
    let call = WithRecord(opcode::read::<Info>(GROUP, 0), &mut info);
    // SAFETY: it writes a struct isthmus_info, of which this is the layout; another driver's call of this number and size does no more.
    unsafe { ioctl::ioctl(file, call) }?;
    Ok(info)
}

/// `ISTHMUS_ALLOW`.
pub(super) fn allow(file: &OwnedFd, ranges: &[Range], flags: u32, owner: u32, pages: u32) -> Result<()> {
    let count = u32::try_from(ranges.len()).map_err(|_| rustix::io::Errno::INVAL)?;
    let ranges = ranges.as_ptr().expose_provenance() as u64;
    let mut allow = Allow { ranges, count, flags, owner, pages };
    let call = WithRecord(opcode::write::<Allow>(GROUP, 1), &mut allow);
    // SAFETY: it reads a struct isthmus_allow, of which this is the layout, and `count` ranges at `ranges`, which live until after it.
    unsafe { ioctl::ioctl(file, call) }
}

/// `ISTHMUS_MEMBER`.
pub(super) fn set_member(file: &OwnedFd, member: u32, id: u32) -> Result<()> {
    let mut record = Member { member, id };
    let call = WithRecord(opcode::write::<Member>(GROUP, 2), &mut record);
    // SAFETY: it reads a struct isthmus_member, of which this is the layout.
    unsafe { ioctl::ioctl(file, call) }
}

/// `ISTHMUS_BELL`.
pub(super) fn bell(file: &OwnedFd, vector: u32) -> Result<OwnedFd> {
    let call = WithNumber(opcode::none(GROUP, 3), vector as usize);
    // SAFETY: it takes a number; `file` is one of the driver's, as its opening has shown.
    let made = unsafe { ioctl::ioctl(file, call) }?;
    // SAFETY: the call succeeded, so this is a new descriptor, which nobody has yet.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// `ISTHMUS_RING`.
pub(super) fn ring(file: impl AsFd, member: u32, vector: u32) -> Result<()> {
    let argument = (member as usize) << 8 | (vector & 0xff) as usize;
    let call = WithNumber(opcode::none(GROUP, 4), argument);
    // SAFETY: it takes a number.
    unsafe { ioctl::ioctl(file, call) }.map(drop)
}

/// `ISTHMUS_POOL`.
pub(super) fn pool(file: &OwnedFd, offset: u64, bytes: u64, table: u64) -> Result<()> {
    let mut pool = Pool { offset, bytes, table };
    let call = WithRecord(opcode::write::<Pool>(GROUP, 5), &mut pool);
    // SAFETY: it reads a struct isthmus_pool, of which this is the layout.
    unsafe { ioctl::ioctl(file, call) }
}

/// `ISTHMUS_GRANT`.
pub(super) fn grant(file: impl AsFd, address: u64, flags: u32, results: &mut [Page]) -> Result<usize> {
    let count = u32::try_from(results.len()).map_err(|_| rustix::io::Errno::INVAL)?;
    let results = results.as_mut_ptr().expose_provenance() as u64;
    let mut pages = Pages { address, count, flags, results };
    let call = Counted(opcode::write::<Pages>(GROUP, 6), &mut pages);
    // SAFETY: it reads a struct isthmus_pages and writes `count` struct isthmus_page to `results`, of which these are the layouts. What is
    // at `address` keeps its contents, for all threads of the process.
    unsafe { ioctl::ioctl(file, call) }
}

/// `ISTHMUS_RELEASE`.
pub(super) fn release(file: impl AsFd, named: &mut [Page]) -> Result<usize> {
    let count = u32::try_from(named.len()).map_err(|_| rustix::io::Errno::INVAL)?;
    let results = named.as_mut_ptr().expose_provenance() as u64;
    let mut pages = Pages { address: 0, count, flags: 0, results };
    let call = Counted(opcode::write::<Pages>(GROUP, 8), &mut pages);
    // SAFETY: it reads a struct isthmus_pages, and `count` struct isthmus_page at `results`, of which these are the layouts.
    unsafe { ioctl::ioctl(file, call) }
}

/// `ISTHMUS_SETTLE`.
pub(super) fn settle(file: &OwnedFd, owner: u32) -> Result<()> {
    let call = WithNumber(opcode::none(GROUP, 9), owner as usize);
    // SAFETY: it takes a number.
    unsafe { ioctl::ioctl(file, call) }.map(drop)
}

/// `ISTHMUS_REVOKE`.
pub(super) fn revoke(file: impl AsFd, address: u64, count: u32) -> Result<usize> {
    let mut pages = Pages { address, count, flags: 0, results: 0 };
    let call = Counted(opcode::write::<Pages>(GROUP, 7), &mut pages);
    // SAFETY: it reads a struct isthmus_pages. What is at `address` keeps its contents.
    unsafe { ioctl::ioctl(file, call) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_the_sizes_of_the_header() {
        let sizes = [
            size_of::<Info>(),
            size_of::<Range>(),
            size_of::<Allow>(),
            size_of::<Member>(),
            size_of::<Pool>(),
            size_of::<Page>(),
            size_of::<Pages>(),
        ];
        assert_eq!(sizes, [64, 24, 24, 8, 24, 16, 24]);
    }
}
