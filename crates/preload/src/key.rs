//! ftok(3), from the path: each VM has device numbers of its own, so those of one file differ between VMs that share it.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::Errno;

use crate::{answer_blocked, keys};

/// The key for a file and a number from 1 to 255: the number in the upper eight bits, and 24 bits that stand for the file's path
/// without links. Where no key is ours, libc's key.
///
/// # Safety
/// `path` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ftok(path: *const c_char, project: c_int) -> libc::key_t {
    answer_blocked(|| {
        if path.is_null() {
            return Err(Errno::FAULT);
        }
        // SAFETY: not null, so a string, for which the caller vouches.
        let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
        let system = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::NOENT);
        let low = match keys::any() {
            true => hash(std::fs::canonicalize(path).map_err(system)?.as_os_str().as_bytes()),
            false => {
                use std::os::unix::fs::MetadataExt;
                let stat = std::fs::metadata(path).map_err(system)?;
                u32::try_from((stat.ino() & 0xffff) | ((stat.dev() & 0xff) << 16)).unwrap_or(0)
            }
        };
        Ok(((project.cast_unsigned() & 0xff) << 24 | low).cast_signed())
    })
}

/// 24 bits of a path (FNV-1a, folded).
fn hash(path: &[u8]) -> u32 {
    let all = path.iter().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
    (all ^ (all >> 24)) & 0x00ff_ffff
}
