//! What POSIX has for processes that share memory: its barrier. The one place here with code that cannot be checked.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use isthmus::Segment;

use crate::error::{Error, Result};

/// `pthread_barrier_t` of all processes, in a segment.
#[derive(Clone, Debug)]
pub(super) struct Barrier {
    /// Keeps it mapped.
    _segment: Segment,
    at: *mut libc::pthread_barrier_t,
}

fn check(what: &str, status: i32) -> Result<()> {
    match status {
        0 | libc::PTHREAD_BARRIER_SERIAL_THREAD => Ok(()),
        error => Err(Error::Rank { what: format!("{what}: {}", std::io::Error::from_raw_os_error(error)) }),
    }
}

impl Barrier {
    /// The one at `offset`, a multiple of 64.
    pub(super) fn at(segment: &Segment, offset: u64) -> Result<Self> {
        let bytes = size_of::<libc::pthread_barrier_t>() as u64;
        let inside =
            offset.is_multiple_of(64) && offset.checked_add(bytes).is_some_and(|end| end <= segment.len());
        let base = segment.address().map_err(super::failed("find the board"))?;
        if !inside {
            return Err(Error::Rank { what: "place a barrier of POSIX threads".into() });
        }
        let at = std::ptr::with_exposed_provenance_mut(usize::try_from(base + offset).unwrap_or(0));
        Ok(Self { _segment: segment.clone(), at })
    }

    /// Makes it, for processes of one kernel. By one of them, before any other uses it.
    pub(super) fn make(&self, parties: u32) -> Result<()> {
        let mut shared = MaybeUninit::<libc::pthread_barrierattr_t>::uninit();
        // SAFETY: it is given room for what it writes.
        check("pthread_barrierattr_init", unsafe { libc::pthread_barrierattr_init(shared.as_mut_ptr()) })?;
        // SAFETY: it was made by the call above.
        let set = unsafe {
            libc::pthread_barrierattr_setpshared(shared.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED)
        };
        check("pthread_barrierattr_setpshared", set)?;
        // SAFETY: `at` lies inside the segment, which is mapped as long as we are, and is aligned; only the C library's
        // own functions, which are made for that, use these bytes.
        check("pthread_barrier_init", unsafe {
            libc::pthread_barrier_init(self.at, shared.as_ptr(), parties)
        })
    }

    /// Waits for all.
    pub(super) fn wait(&self) -> Result<()> {
        // SAFETY: as above; it was made by one of the processes before the others came here.
        check("pthread_barrier_wait", unsafe { libc::pthread_barrier_wait(self.at) })
    }
}
