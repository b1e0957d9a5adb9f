//! What the thread of the ivshmem server is asked to do by the thread that relays wake-ups, which must not block.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use isthmus_attach::server::ring;
use rustix::event::EventfdFlags;

use crate::error::{Error, Result};

#[derive(Debug, Default)]
struct List {
    members: BTreeSet<u32>,
    sweep: bool,
}

/// A list of errands and the bell that says that there are some. However often a VM rings, it is on the list once.
#[derive(Debug, Clone)]
pub(crate) struct Errands {
    bell: Arc<OwnedFd>,
    list: Arc<Mutex<List>>,
}

impl Errands {
    /// An empty list.
    pub(crate) fn new() -> Result<Self> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|source| Error::System { action: "create an eventfd", source })?;
        Ok(Self { bell: Arc::new(bell), list: Arc::default() })
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Readable once there is something to do.
    pub(crate) fn bell(&self) -> &Arc<OwnedFd> {
        &self.bell
    }

    /// The section of a member is to be looked at.
    pub(crate) fn look_at(&self, member: u32) {
        self.list().members.insert(member);
        ring(&*self.bell);
    }

    /// A process of a VM is gone, and what it had open is to be closed.
    pub(crate) fn sweep(&self) {
        self.list().sweep = true;
        ring(&*self.bell);
    }

    /// The members to be looked at, and whether to sweep.
    pub(crate) fn take(&self) -> (BTreeSet<u32>, bool) {
        let List { members, sweep } = std::mem::take(&mut *self.list());
        (members, sweep)
    }
}
