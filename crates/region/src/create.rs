//! Making a region's memory, as the host service does.
//!
//! The memory is a memfd, filled by `fallocate` in a short-lived child: where the control group has no room left, the
//! kernel kills instead of returning an error, and so it is the child that dies and not the service. The child is
//! this program again, started with [`FILL_ARG`]; it makes itself the first choice of the out-of-memory killer.
//!
//! In huge pages it is the same: `fallocate` takes all of them from the kernel's pool, or fails. Nothing gives pages back
//! while the region lives (sections are cut once, and what processes give back serves the next ones), so that their size
//! matters to the kernel alone.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;

use crate::dax;
use crate::error::{Error, Result};
use crate::format::LEAST_REGION_BYTES;
use crate::huge;

/// First argument that makes our program call [`fill_main`].
pub const FILL_ARG: &str = "region-fill";

/// What so many ranks need: 64 MiB, and 16 MiB for each.
pub fn needed_bytes(ranks: u32) -> u64 {
    (64_u64 << 20) + (16_u64 << 20) * u64::from(ranks)
}

/// The default size: the next power of two of what they need.
pub fn default_bytes(ranks: u32) -> u64 {
    needed_bytes(ranks).next_power_of_two()
}

/// A default size for a region in pages of `huge_pages` bytes: at least one of them.
pub fn default_bytes_in(ranks: u32, huge_pages: Option<u64>) -> u64 {
    default_bytes(ranks).max(huge_pages.unwrap_or(0))
}

/// Whether a region can have this size: QEMU wants a power of two for a BAR.
///
/// # Errors
/// [`Error::BadSize`].
pub fn check_bytes(bytes: u64) -> Result<()> {
    if bytes.is_power_of_two() && bytes >= LEAST_REGION_BYTES {
        Ok(())
    } else {
        Err(Error::BadSize { bytes, least: LEAST_REGION_BYTES })
    }
}

/// Makes, fills and seals memory for a region of `bytes`, in ordinary pages.
///
/// # Errors
/// [`Error::BadSize`], [`Error::Memory`], [`Error::DoesNotFit`].
pub fn memory(bytes: u64) -> Result<OwnedFd> {
    memory_in(bytes, None)
}

/// As [`memory`], in huge pages of so many bytes where that is said.
///
/// # Errors
/// As [`memory`], and [`Error::NoSuchHugePages`], [`Error::NotHugePages`], [`Error::NoHugePages`].
pub fn memory_in(bytes: u64, huge_pages: Option<u64>) -> Result<OwnedFd> {
    check_bytes(bytes)?;
    make(bytes, huge_pages)
}

/// As [`memory_in`], with room in front of the region for what a memory device begins with ([`crate::dax`]).
///
/// # Errors
/// As [`memory_in`].
pub fn memory_for_dax(bytes: u64, huge_pages: Option<u64>) -> Result<OwnedFd> {
    check_bytes(bytes)?;
    if bytes < dax::LEAST_BYTES {
        return Err(Error::BadSize { bytes, least: dax::LEAST_BYTES });
    }
    make(bytes + dax::HEAD_BYTES, huge_pages)
}

/// Whether this machine has as much memory for a region now, at once and without taking any from others. Whoever makes several
/// files asks for all of them together first: each may fit where all do not.
///
/// # Errors
/// [`Error::DoesNotFit`], and for huge pages as [`huge::check`].
pub fn check_room(bytes: u64, huge_pages: Option<u64>) -> Result<()> {
    // Huge pages are a pool of their own.
    match (huge_pages, available()) {
        (Some(page_bytes), _) => huge::check(bytes, page_bytes),
        (None, Some(available)) if available < bytes => {
            let reason = format!("{} MiB of this machine's memory and swap are available", available >> 20);
            Err(Error::DoesNotFit { bytes, reason })
        }
        _ => Ok(()),
    }
}

fn make(bytes: u64, huge_pages: Option<u64>) -> Result<OwnedFd> {
    let failed = |action| move |source| Error::Memory { action, bytes, source };
    // Beyond that limit the next call but one is a signal, which would end the service.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if let Some(limit) = limit.filter(|limit| *limit < bytes) {
        let reason = format!("no file may have more than {limit} bytes here (file size limit, ulimit -f)");
        return Err(Error::DoesNotFit { bytes, reason });
    }
    check_room(bytes, huge_pages)?;
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if let Some(page_bytes) = huge_pages {
        flags |= huge::flags(page_bytes);
    }
    let fd =
        rustix::fs::memfd_create("isthmus-region", flags).map_err(|source| match (huge_pages, source) {
            (Some(page_bytes), Errno::NODEV | Errno::NOENT | Errno::INVAL | Errno::NOSYS) => {
                huge::no_such(page_bytes)
            }
            _ => failed("create")(source),
        })?;
    rustix::fs::ftruncate(&fd, bytes).map_err(failed("size"))?;
    if let Err(e) = fill(&fd, bytes) {
        // What was taken goes back before the rest is counted.
        drop(fd);
        return Err(match huge_pages {
            Some(page_bytes) => without_huge_pages(e, bytes, page_bytes),
            None => e,
        });
    }
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(failed("seal"))?;
    Ok(fd)
}

/// Why huge pages could not be had that seemed to be there.
fn without_huge_pages(e: Error, bytes: u64, page_bytes: u64) -> Error {
    match (e, huge::check(bytes, page_bytes)) {
        (_, Err(missing)) => missing,
        (Error::DoesNotFit { reason, .. }, Ok(())) => Error::DoesNotFit {
            bytes,
            reason: format!(
                "there are huge pages of {}, and yet: {reason}; the control group may limit them (hugetlb.*.max)",
                huge::name(page_bytes)
            ),
        },
        (e, Ok(())) => e,
    }
}

/// Bytes that can be had, as the kernel estimates them (`MemAvailable` and `SwapFree`, proc(5)).
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    };
    bytes("MemAvailable:")?.checked_add(bytes("SwapFree:").unwrap_or(0))
}

/// Has a child fill the memory, so that a limit that kills, kills the child.
fn fill(fd: &OwnedFd, bytes: u64) -> Result<()> {
    let unknown = |reason: String| Error::DoesNotFit { bytes, reason };
    let input = fd.try_clone().map_err(|e| unknown(e.to_string()))?;
    // A library user whose program is not ours fills in place: the error is then less kind, the memory the same.
    let Some(program) = filler() else {
        return allocate(fd, bytes).map_err(|e| unknown(e.to_string()));
    };
    let output = Command::new(program)
        .arg(FILL_ARG)
        .arg(bytes.to_string())
        .stdin(Stdio::from(input))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|e| unknown(format!("cannot start the process that fills it: {e}")))?;
    if output.status.success() {
        return Ok(());
    }
    use std::os::unix::process::ExitStatusExt;
    if output.status.signal().is_some_and(|signal| signal != KILL) {
        // As a key at the terminal sends it to all of them.
        return Err(Error::Memory { action: "fill", bytes, source: Errno::INTR });
    }
    Err(unknown(match output.status.signal() {
        Some(_) => {
            "the kernel killed the process that filled it: the memory control group or the machine is full"
                .into()
        }
        None => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    }))
}

/// What the kernel sends where memory is short.
const KILL: i32 = 9;

/// Our own program, if this is it: only it knows [`FILL_ARG`].
fn filler() -> Option<std::path::PathBuf> {
    let exe = std::env::current_exe().ok()?;
    (exe.file_name()?.to_str()? == "isthmus").then(|| "/proc/self/exe".into())
}

fn allocate(fd: impl AsFd, bytes: u64) -> rustix::io::Result<()> {
    loop {
        match rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// The child's whole life: fills the file on standard input. Gives the process's exit status.
pub fn fill_main(bytes: &str) -> u8 {
    let Ok(bytes) = bytes.parse::<u64>() else {
        eprintln!("{FILL_ARG}: not a size");
        return 2;
    };
    // Without this right the kill may hit another process; nothing better can be done about it here.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    match allocate(std::io::stdin(), bytes) {
        Ok(()) => 0,
        Err(Errno::NOSPC) => {
            eprintln!("the shared-memory file system is full (no space left on device)");
            1
        }
        Err(Errno::NOMEM) => {
            eprintln!("out of memory");
            1
        }
        Err(e) => {
            eprintln!("{e}");
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_no_bar_can_have_are_refused() {
        assert!(check_bytes(3 << 20).is_err());
        assert!(check_bytes(4096).is_err());
        assert!(check_bytes(64 << 20).is_ok());
    }

    #[test]
    fn huge_pages_are_there_or_an_error() {
        // Whether this machine has any is not ours to choose; more than there can be are missing anywhere.
        match memory_in(1 << 21, Some(1 << 21)) {
            Ok(fd) => assert_eq!(rustix::fs::fstat(&fd).unwrap().st_blocks * 512, 1 << 21),
            Err(e) => {
                assert!(matches!(e, Error::NoHugePages { .. } | Error::NoSuchHugePages { .. }), "{e}");
            }
        }
        let e = memory_in(1 << 45, Some(1 << 21)).unwrap_err();
        assert!(matches!(e, Error::NoHugePages { .. } | Error::NoSuchHugePages { .. }), "{e}");
        let e = memory_in(1 << 22, Some(1 << 13)).unwrap_err();
        assert!(matches!(e, Error::NoSuchHugePages { .. }), "{e}");
    }

    #[test]
    fn default_size_follows_the_ranks() {
        assert_eq!(default_bytes_in(2, Some(2 << 20)), 128 << 20);
        assert_eq!(default_bytes_in(2, Some(1 << 30)), 1 << 30);
        assert_eq!(default_bytes(2), 128 << 20);
        assert_eq!(default_bytes(4), 128 << 20);
        assert_eq!(default_bytes(5), 256 << 20);
    }
}
