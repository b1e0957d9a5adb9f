//! shmget(2), shmop(2), shmctl(2): mappings, and the structures of the man pages.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::os::fd::AsFd;

use isthmus_region::objects::{Kind, ObjectInfo, sysv};
use isthmus_region::{dax, huge};
use isthmus_sysv::shm::{Attached, EXEC, PAGE, RDONLY, Stat};
use isthmus_sysv::{Ipc, ipc};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::here::{For, State};
use crate::{Result, answer_blocked, credentials, here, int, kernel, keys, memory};

/// `SHM_RND`, `SHM_REMAP`.
const RND: i32 = 0o20000;
const REMAP: i32 = 0o40000;
/// Bits of a mode that say something of a segment's state.
const DEST: u32 = 0o1000;

/// What was mapped for a segment: more than its pages where the kernel maps nothing but large ones.
#[derive(Debug, Clone, Copy)]
struct Span {
    address: usize,
    bytes: usize,
    /// Offset of the segment's first page in the file.
    offset: u64,
}

type FileId = (u64, u64);

/// Where a segment is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Where the kernel likes.
    Any,
    /// At an address where nothing is.
    Free,
    /// Over what is at an address.
    Over,
    /// Over what keeps the address for it.
    Reserved,
}

/// A segment that is attached here.
#[derive(Debug)]
pub(crate) struct Mapped {
    address: usize,
    protection: ProtFlags,
    what: Attached,
    span: Span,
    /// Device and number of its file; none if the system does not say.
    file: Option<FileId>,
    /// Another segment lies over a part of it.
    is_cut: bool,
}

impl Mapped {
    fn bytes(&self) -> usize {
        usize::try_from(self.what.mapped()).unwrap_or(0)
    }
}

/// shmget(2).
#[unsafe(no_mangle)]
pub extern "C" fn shmget(key: libc::key_t, size: libc::size_t, flags: c_int) -> c_int {
    answer_blocked(|| {
        if !keys::is_ours(key) {
            // SAFETY: numbers.
            return kernel(unsafe { libc::syscall(libc::SYS_shmget, key, size, flags) }).map(int);
        }
        here::ruler()?.shmget(key, size as u64, flags, &credentials::caller())
    })
}

/// shmat(2).
///
/// # Safety
/// With `SHM_REMAP`, nothing else of the program is at the address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmat(id: c_int, address: *const c_void, flags: c_int) -> *mut c_void {
    let at: isize = answer_blocked(|| {
        if !keys::is_our_id(id) {
            // SAFETY: numbers, and an address for which the caller vouches.
            return kernel(unsafe { libc::syscall(libc::SYS_shmat, id, address, flags) })
                .map(|at| isize::try_from(at).unwrap_or(-1));
        }
        attach(id, address.addr(), flags).map(usize::cast_signed)
    });
    std::ptr::with_exposed_provenance_mut(at.cast_unsigned())
}

fn attach(id: i32, address: usize, flags: i32) -> Result<usize> {
    let ipc = here::ipc()?;
    let page = usize::try_from(PAGE).unwrap_or(4096);
    let address = match flags & RND {
        0 => address,
        _ => address / page * page,
    };
    if !address.is_multiple_of(page) || (address == 0 && flags & REMAP != 0) {
        return Err(Errno::INVAL);
    }
    let mut protection = ProtFlags::READ;
    if flags & RDONLY == 0 {
        protection |= ProtFlags::WRITE;
    }
    if flags & EXEC != 0 {
        // A device's memory cannot be executed, and a segment is one thing for all.
        if ipc.member().peer() != 0 {
            return Err(Errno::ACCESS);
        }
        protection |= ProtFlags::EXEC;
    }
    let caller = credentials::caller();
    let mut state = here::lock();
    let Some(state) = state.as_mut() else { return Err(Errno::IO) };
    let what = ipc.attach(id, flags, &caller)?;
    let file = state.file(ipc, what.file, needed_for(protection));
    let place = match (address, flags & REMAP) {
        (0, _) => Place::Any,
        (_, 0) => Place::Free,
        _ => Place::Over,
    };
    let mapped = file.and_then(|file| {
        map(&what, address, place, protection, file.as_fd()).map(|(at, span)| (at, span, file.identity()))
    });
    match mapped {
        Ok((address, span, file)) => {
            if flags & REMAP != 0 {
                forget_under(state, ipc, address, usize::try_from(what.mapped()).unwrap_or(0));
            }
            state.mapped.push(Mapped { address, protection, what, span, file, is_cut: false });
            state.keep_spare();
            Ok(address)
        }
        Err(e) => {
            ipc.detach(&what, &caller);
            Err(e)
        }
    }
}

/// What a file is to be open for to be mapped so.
fn needed_for(protection: ProtFlags) -> For {
    if protection.contains(ProtFlags::WRITE) { For::Writing } else { For::Reading }
}

/// Maps a segment's pages: gives their address, and what was mapped.
fn map(
    what: &Attached,
    address: usize,
    place: Place,
    protection: ProtFlags,
    file: std::os::fd::BorrowedFd<'_>,
) -> Result<(usize, Span)> {
    let bytes = usize::try_from(what.mapped()).map_err(|_| Errno::NOMEM)?;
    let offset = what.offset + dax::begin(file);
    let unit = if dax::may_be_dax(file) { dax::ALIGN } else { huge::page_bytes(file).unwrap_or(PAGE) };
    let is_whole = [offset, what.mapped(), address as u64].iter().all(|value| value.is_multiple_of(unit));
    if is_whole {
        let at = map_at(address, bytes, place, protection, file, offset)?;
        return Ok((at, Span { address: at, bytes, offset }));
    }
    // A memory device, and a file of huge pages, map nothing but whole large pages, so what lies beside the segment comes along. The
    // kernel must not be asked for less of a device: it looks at addresses alone, and would map what lies before the segment.
    if place == Place::Over {
        return Err(Errno::INVAL);
    }
    let first = offset / unit * unit;
    let all = (offset + what.mapped()).next_multiple_of(unit) - first;
    let [before, all] = [offset - first, all].map(usize::try_from);
    let (before, all) = (before.map_err(|_| Errno::NOMEM)?, all.map_err(|_| Errno::NOMEM)?);
    let from = if address == 0 { 0 } else { address.checked_sub(before).ok_or(Errno::INVAL)? };
    if !(from as u64).is_multiple_of(unit) {
        return Err(Errno::INVAL);
    }
    let at = map_at(from, all, place, protection, file, first)?;
    Ok((at + before, Span { address: at, bytes: all, offset }))
}

fn map_at(
    address: usize,
    bytes: usize,
    place: Place,
    protection: ProtFlags,
    file: std::os::fd::BorrowedFd<'_>,
    offset: u64,
) -> Result<usize> {
    let place = match place {
        Place::Any => MapFlags::empty(),
        Place::Free => MapFlags::FIXED_NOREPLACE,
        Place::Over | Place::Reserved => MapFlags::FIXED,
    };
    let at = std::ptr::without_provenance_mut(address);
    // SAFETY: at an address of the kernel's choice, at one where nothing is, or at one that the program or `reserve` gives up.
    let at = unsafe { rustix::mm::mmap(at, bytes, protection, MapFlags::SHARED | place, file, offset) };
    // A child gets them by `inherit` alone, which counts them; one that libc does not know of has none.
    if let Ok(at) = at {
        // SAFETY: the range that was just mapped.
        let _ = unsafe { rustix::mm::madvise(at, bytes, rustix::mm::Advice::LinuxDontFork) };
    }
    at.map(|at| at.addr()).map_err(|e| match e {
        // Something is there already, or the address is none.
        Errno::EXIST | Errno::PERM => Errno::INVAL,
        Errno::NOMEM | Errno::AGAIN => Errno::NOMEM,
        _ => Errno::INVAL,
    })
}

/// Segments that another mapping has replaced are attached no more. Of those that it has replaced in part, the rest is.
fn forget_under(state: &mut State, ipc: &Ipc, address: usize, bytes: usize) {
    let caller = credentials::caller();
    let end = address.saturating_add(bytes);
    state.mapped.retain_mut(|m| {
        m.is_cut |= m.address < end && address < m.address.saturating_add(m.bytes());
        let is_under = m.address >= address && m.address.saturating_add(m.bytes()) <= end;
        if is_under {
            ipc.detach(&m.what, &caller);
        }
        !is_under
    });
}

/// shmdt(2).
///
/// # Safety
/// The program does not use the segment any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmdt(address: *const c_void) -> c_int {
    answer_blocked(|| {
        if here::is_attached() {
            let ipc = here::ipc()?;
            let mut state = here::lock();
            let all = state.as_mut().map(|s| &mut s.mapped);
            if let Some((all, at)) =
                all.and_then(|all| all.iter().rposition(|m| m.address == address.addr()).map(|at| (all, at)))
            {
                // As long as it is mapped, it is attached.
                unmap(&all[at])?;
                let gone = all.remove(at);
                ipc.detach(&gone.what, &credentials::caller());
                return Ok(0);
            }
        }
        // SAFETY: an address, for which the caller vouches.
        kernel(unsafe { libc::syscall(libc::SYS_shmdt, address) }).map(int)
    })
}

/// Unmaps a segment, or what is left of it.
fn unmap(gone: &Mapped) -> Result<()> {
    let unmap = |at: usize, bytes: usize| {
        // SAFETY: a mapping of ours, which the program uses no more.
        unsafe { rustix::mm::munmap(std::ptr::without_provenance_mut(at), bytes) }
    };
    if !gone.is_cut {
        return unmap(gone.span.address, gone.span.bytes);
    }
    let maps = memory::mappings().map_err(|_| Errno::NOMEM)?;
    let end = gone.address.saturating_add(gone.bytes());
    // A file's name need not be UTF-8.
    for line in String::from_utf8_lossy(&maps).lines().filter_map(shared) {
        let (from, to) = (line.low.max(gone.address), line.high.min(end));
        // Another segment has another place in the file, and what else the program maps there another file.
        let is_it = gone.file.is_none_or(|file| file == line.file)
            && (line.offset + from as u64).checked_sub(line.low as u64)
                == Some(gone.span.offset + (from - gone.address.min(from)) as u64);
        if from < to && is_it {
            unmap(from, to - from)?;
        }
    }
    Ok(())
}

/// A shared mapping, as proc_pid_maps(5) has it.
#[derive(Debug, PartialEq, Eq)]
struct Shared {
    low: usize,
    high: usize,
    offset: u64,
    file: FileId,
}

/// What a line of proc_pid_maps(5) says, if that is of a shared mapping.
fn shared(line: &str) -> Option<Shared> {
    let mut words = line.split_ascii_whitespace();
    let (low, high) = words.next()?.split_once('-')?;
    words.next().filter(|access| access.ends_with('s'))?;
    let offset = u64::from_str_radix(words.next()?, 16).ok()?;
    let (major, minor) = words.next()?.split_once(':')?;
    let device =
        rustix::fs::makedev(u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let [low, high] = [low, high].map(|at| usize::from_str_radix(at, 16).ok());
    Some(Shared { low: low?, high: high?, offset, file: (device, words.next()?.parse().ok()?) })
}

/// In a forked child, before it maps anything: keeps the addresses of its parent's segments, where nothing is now. Gives for each
/// whether all of them are kept: not where the program has something else by now.
pub(crate) fn reserve(state: &State) -> Vec<bool> {
    let kept_for = |segment: &Mapped, kept: &mut Vec<Range<usize>>| {
        let (mut at, end) = (segment.span.address, segment.span.address + segment.span.bytes);
        let mut is_all = true;
        while at < end {
            // A segment may lie over a part of another one.
            if let Some(of_another) = kept.iter().find(|range| range.contains(&at)) {
                at = of_another.end;
                continue;
            }
            let next = kept.iter().map(|range| range.start).filter(|start| *start > at).fold(end, usize::min);
            if keep(at, next - at) {
                kept.push(at..next);
            } else {
                is_all = false;
            }
            at = next;
        }
        is_all
    };
    let mut kept = Vec::new();
    state.mapped.iter().map(|segment| kept_for(segment, &mut kept)).collect()
}

/// Has nothing at an address, and nothing come there.
fn keep(address: usize, bytes: usize) -> bool {
    let place = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    let at = std::ptr::without_provenance_mut(address);
    // SAFETY: where nothing is.
    unsafe { rustix::mm::mmap_anonymous(at, bytes, ProtFlags::empty(), place) }.is_ok()
}

/// In a forked child: each segment is attached once more, at its address, which is `kept` for it or not. One that is gone since, because
/// the parent was killed, cannot be touched.
pub(crate) fn inherit(state: &mut State, kept: &[bool], ipc: &Ipc) {
    let mapped = std::mem::take(&mut state.mapped);
    for (segment, is_kept) in mapped.into_iter().zip(kept) {
        let is_there = ipc.inherit(&segment.what);
        // In the parent's order, so that one which lies over a part of another does so here.
        let place = if *is_kept { Place::Reserved } else { Place::Free };
        let file = is_there
            .then(|| state.file(ipc, segment.what.file, needed_for(segment.protection)).ok())
            .flatten();
        let again = file.and_then(|file| {
            map(&segment.what, segment.address, place, segment.protection, file.as_fd()).ok()
        });
        match again {
            Some((_, span)) => state.mapped.push(Mapped { span, ..segment }),
            None => {
                if is_there {
                    ipc.member().service().release_object(segment.what.index, segment.what.incarnation);
                }
                lose(&segment);
            }
        }
    }
}

/// In a forked child that has no service, or one of another region: none of its segments may be others'.
pub(crate) fn lose_all(state: &mut State) {
    for mapped in std::mem::take(&mut state.mapped) {
        lose(&mapped);
    }
}

/// Keeps a segment's place, where nothing can be read or written: wrong data would be worse than a signal.
fn lose(mapped: &Mapped) {
    here::say(here::About::Segment, "a segment that the parent has attached cannot be had here");
    // It may be kept already.
    let _ = keep(mapped.address, mapped.bytes());
}

/// shmctl(2).
///
/// # Safety
/// `buffer` is what the command wants.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmctl(id: c_int, command: c_int, buffer: *mut libc::shmid_ds) -> c_int {
    answer_blocked(|| {
        let is_info =
            matches!(command, libc::IPC_INFO | SHM_INFO | SHM_STAT | SHM_STAT_ANY) && keys::is_ours(1);
        if !keys::is_our_id(id) && !is_info {
            // SAFETY: numbers, and a buffer for which the caller vouches.
            return kernel(unsafe { libc::syscall(libc::SYS_shmctl, id, command, buffer) }).map(int);
        }
        control(id, command, buffer)
    })
}

const SHM_LOCK: c_int = 11;
const SHM_UNLOCK: c_int = 12;
const SHM_STAT: c_int = 13;
const SHM_INFO: c_int = 14;
const SHM_STAT_ANY: c_int = 15;

/// `struct shminfo`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Limits {
    most_bytes: u64,
    least_bytes: u64,
    segments: u64,
    of_a_process: u64,
    most_pages: u64,
    unused: [u64; 4],
}

/// `struct shm_info`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Usage {
    segments: c_int,
    pages: u64,
    resident: u64,
    swapped: u64,
    unused: [u64; 2],
}

fn control(id: i32, command: c_int, buffer: *mut libc::shmid_ds) -> Result<c_int> {
    let (ipc, caller) = (here::for_command(command)?, credentials::caller());
    match command {
        libc::IPC_STAT => {
            let stat = ipc.shmstat(id, &caller, false)?;
            memory::put(buffer, filled(ipc, &stat)).map(|()| 0)
        }
        SHM_STAT | SHM_STAT_ANY => {
            let info = by_index(ipc, Kind::SysvShm, id)?;
            let stat = ipc.shmstat(ipc::id_of(&info), &caller, command == SHM_STAT_ANY)?;
            memory::put(buffer, filled(ipc, &stat))?;
            Ok(ipc::id_of(&info))
        }
        libc::IPC_SET => {
            let info = ipc.look(Kind::SysvShm, id)?;
            let new = memory::get(buffer)?.shm_perm;
            ipc.change(&info, &caller, (new.uid, new.gid), new.mode.into(), info.params[sysv::SIZE])
                .map(|()| 0)
        }
        libc::IPC_RMID => {
            let info = ipc.look(Kind::SysvShm, id)?;
            ipc.remove(&info, &caller).map(|()| 0)
        }
        SHM_LOCK | SHM_UNLOCK => {
            let info = ipc.look(Kind::SysvShm, id)?;
            caller.check_rule(&info).map(|()| 0)
        }
        libc::IPC_INFO => {
            let bytes = ipc.member().region().shape().shared_bytes;
            let objects = ipc.member().region().shape().objects.into();
            let limits = Limits {
                most_bytes: bytes,
                least_bytes: 1,
                segments: objects,
                of_a_process: objects,
                most_pages: bytes / PAGE,
                unused: [0; 4],
            };
            memory::put(buffer.cast(), limits).map(|()| highest(&ipc.all(Kind::SysvShm)))
        }
        SHM_INFO => {
            let all = ipc.all(Kind::SysvShm);
            let pages = all.iter().map(|i| i.params[sysv::SIZE].div_ceil(PAGE)).sum();
            let segments = c_int::try_from(all.len()).unwrap_or(c_int::MAX);
            let usage = Usage { segments, pages, resident: pages, swapped: 0, unused: [0; 2] };
            memory::put(buffer.cast(), usage).map(|()| highest(&all))
        }
        _ => Err(Errno::INVAL),
    }
}

/// The object at a place of the table.
pub(crate) fn by_index(ipc: &Ipc, kind: Kind, index: i32) -> Result<ObjectInfo> {
    let index = u32::try_from(index).map_err(|_| Errno::INVAL)?;
    let info = isthmus_region::objects::object(ipc.member().region(), index).ok().flatten();
    info.filter(|info| sysv::is(info, kind)).ok_or(Errno::INVAL)
}

/// The highest place of an object in the table, 0 if there is none.
pub(crate) fn highest(all: &[ObjectInfo]) -> c_int {
    all.iter().map(|i| i.index).max().map_or(0, |index| c_int::try_from(index).unwrap_or(0))
}

/// `struct ipc_perm`.
pub(crate) fn permissions(info: &ObjectInfo, flags: u32) -> libc::ipc_perm {
    // SAFETY: a structure of numbers, for which zeros are values.
    let mut perm: libc::ipc_perm = unsafe { std::mem::zeroed() };
    let made = sysv::creator(info);
    perm.__key = sysv::key_and_maker(info).0;
    (perm.uid, perm.gid) = info.owner;
    (perm.cuid, perm.cgid) = made;
    // Of another width on each architecture.
    perm.mode = (info.mode & 0o777 | flags).try_into().unwrap_or(0);
    perm.__seq = u16::try_from(info.life.incarnation & 0x3fff).unwrap_or(0);
    perm
}

/// A process's number, as this system knows it: that of a process of another one is 0.
pub(crate) fn number(ipc: &Ipc, peer: u32, pid: u32) -> libc::pid_t {
    if peer == ipc.member().peer() { libc::pid_t::try_from(pid).unwrap_or(0) } else { 0 }
}

pub(crate) fn seconds(time: u64) -> libc::time_t {
    libc::time_t::try_from(time).unwrap_or(0)
}

/// `struct shmid_ds`.
fn filled(ipc: &Ipc, stat: &Stat) -> libc::shmid_ds {
    // SAFETY: a structure of numbers, for which zeros are values.
    let mut ds: libc::shmid_ds = unsafe { std::mem::zeroed() };
    let info = &stat.info;
    ds.shm_perm = permissions(info, if stat.is_removed { DEST } else { 0 });
    if stat.is_removed {
        ds.shm_perm.__key = 0;
    }
    ds.shm_segsz = usize::try_from(stat.size).unwrap_or(usize::MAX);
    ds.shm_atime = seconds(stat.attached);
    ds.shm_dtime = seconds(stat.detached);
    ds.shm_ctime = seconds(info.params[sysv::CHANGED]);
    let maker = info.creator.map_or(0, isthmus_region::party::Party::peer);
    ds.shm_cpid = number(ipc, maker, sysv::key_and_maker(info).1);
    ds.shm_lpid = number(ipc, stat.last.0, stat.last.1);
    ds.shm_nattch = stat.count;
    ds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_mappings_are_told_by_their_files() {
        let line =
            "7f0a2000-7f0a5000 rw-s 00003000 00:01 1027                       /memfd:\u{fffd} (deleted)";
        let file = (rustix::fs::makedev(0, 1), 1027);
        assert_eq!(shared(line), Some(Shared { low: 0x7f0a_2000, high: 0x7f0a_5000, offset: 0x3000, file }));
        let others = [&line.replace("rw-s", "rw-p"), "", "7f0a2000-7f0a5000 rw-s 00003000 00:01"];
        others.into_iter().for_each(|line| assert_eq!(shared(line), None));
    }
}
