//! The user on whose behalf a call is made, and what an object's mode lets it do.

use isthmus_region::objects::{ObjectInfo, sysv};
use rustix::io::Errno;

use crate::Result;

/// Permission to read, as the lowest three bits of a mode have it.
pub const READ: u32 = 4;
/// Permission to change.
pub const ALTER: u32 = 2;

/// Effective user, group, and supplementary groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// The process's number in its system.
    pub pid: u32,
}

impl Caller {
    /// The calling process's.
    pub fn current() -> Self {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
            pid: rustix::process::getpid().as_raw_nonzero().get().unsigned_abs(),
        }
    }

    fn is_of(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }

    /// Whether the mode allows what `wanted` has as any of its three triples of bits: those of the owner count for the owner and for
    /// who made it, else those of the group, else those of the others. Root may do all. See svipc(7).
    ///
    /// # Errors
    /// `EACCES`.
    pub fn check(&self, info: &ObjectInfo, wanted: u32) -> Result<()> {
        let wanted = (wanted | wanted >> 3 | wanted >> 6) & 7;
        let made = sysv::creator(info);
        let granted = if self.uid == info.owner.0 || self.uid == made.0 {
            info.mode >> 6
        } else if self.is_of(info.owner.1) || self.is_of(made.1) {
            info.mode >> 3
        } else {
            info.mode
        };
        if wanted & !granted == 0 || self.uid == 0 { Ok(()) } else { Err(Errno::ACCESS) }
    }

    /// Whether it may change and remove the object.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn check_rule(&self, info: &ObjectInfo) -> Result<()> {
        let may = self.uid == 0 || self.uid == info.owner.0 || self.uid == sysv::creator(info).0;
        if may { Ok(()) } else { Err(Errno::PERM) }
    }
}
