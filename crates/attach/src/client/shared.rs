//! The attachments of this process that all of its users share: one for each service, so that a process may be in several
//! regions.
//!
//! A service is known by the canonical path of its socket. An attachment ends with its last user. Its service may end
//! before that, and another one come at the same path: then there is a new attachment beside the old one, which its users
//! keep. A forked child has no part in those of its parent.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use isthmus_region::member::Member;
use rustix::process::Pid;

use super::connect_at;
use crate::error::Result;
use crate::socket;

/// The attachment to one service. Locked while a thread attaches, so that others that want the same one wait for it, and
/// nobody else does.
type Slot = Arc<Mutex<Weak<Member>>>;

/// What one process has.
struct Attachments {
    pid: Pid,
    by_service: HashMap<PathBuf, Slot>,
}

static ATTACHMENTS: Mutex<Option<Attachments>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The attachment to the local service, wherever [`socket::find_socket`] finds it, that all users in this process share: the
/// present one while anything holds it, else a new one. A forked child that asks gets one of its own.
///
/// # Errors
/// As [`super::connect`].
pub fn shared() -> Result<Arc<Member>> {
    shared_at(&socket::find_socket()?)
}

/// As [`shared`], to the service that listens at `path`. Another path, also to the same region, is another attachment; a link
/// to a path is the same one. An attachment whose service has ended is not given any more.
///
/// # Errors
/// As [`connect_at`].
pub fn shared_at(path: &Path) -> Result<Arc<Member>> {
    let slot = slot(service_of(path));
    let mut known = lock(&slot);
    if let Some(member) = known.upgrade() {
        if !member.service().has_ended() {
            return Ok(member);
        }
        member.retire_if_over();
    }
    let member = connect_at(path)?;
    *known = Arc::downgrade(&member);
    Ok(member)
}

/// The name by which a service is known. One whose socket is gone has no canonical path; it can only be asked for as it was
/// named.
fn service_of(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_path_buf())
}

fn slot(service: PathBuf) -> Slot {
    let pid = rustix::process::getpid();
    let mut all = lock(&ATTACHMENTS);
    // Those of a parent are dropped unlocked, since one of its threads may have held them locked: they are weak.
    let own = match all.take() {
        Some(own) if own.pid == pid => own,
        _ => Attachments { pid, by_service: HashMap::new() },
    };
    let own = all.insert(own);
    own.by_service.retain(|_, slot| Arc::strong_count(slot) > 1 || lock(slot).strong_count() > 0);
    Arc::clone(own.by_service.entry(service).or_default())
}
