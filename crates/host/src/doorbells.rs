//! Doorbells of the VMs' devices, and of the host among them: eventfds that QEMU, or KVM, signals when a VM rings, and that
//! interrupt a VM when they are signalled. The server of the devices tells each QEMU of them ([`crate::ivshmem`]).
//!
//! A VM is rung so once its agent has said that it rings by the device itself, which is where the guest driver is; else by its wake port.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use isthmus_attach::server::ring;
use isthmus_region::driver::{self, vector_of_place, vector_of_slot, vectors_of};
use isthmus_region::membership::Region;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::error::{Error, Result};

/// The vector of deaths; the others are the sleepers'.
const DEATHS: u32 = 0;

#[derive(Debug, Default)]
struct Vm {
    vectors: Vec<Arc<OwnedFd>>,
    /// Whether its agent rings by the device.
    rings: bool,
}

/// All of them.
#[derive(Debug, Clone)]
pub(crate) struct Doorbells {
    region: Region,
    vms: Arc<Mutex<HashMap<u32, Vm>>>,
    /// The host's own, which VMs ring.
    own: Arc<[Arc<OwnedFd>]>,
}

/// An eventfd that does not block.
///
/// # Errors
/// [`Error::System`]: no descriptor is left.
pub(crate) fn eventfd() -> Result<OwnedFd> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|source| Error::System { action: "create an eventfd", source })
}

fn ring_one(fd: &OwnedFd) {
    // One that is full is readable already. QEMU has it, too, and could have it block.
    let mut poll = [PollFd::new(fd, PollFlags::OUT)];
    if rustix::event::poll(&mut poll, Some(&Timespec::default())) == Ok(1) {
        ring(fd);
    }
}

impl Doorbells {
    /// Those of a host, without VMs yet, each of which has `vectors` vectors.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(crate) fn new(region: Region, vectors: u16) -> Result<Self> {
        let count = u32::from(vectors).min(driver::VECTORS);
        let own = (0..count).map(|_| eventfd().map(Arc::new)).collect::<Result<Vec<_>>>()?;
        Ok(Self { region, vms: Arc::default(), own: own.into() })
    }

    fn vms(&self) -> MutexGuard<'_, HashMap<u32, Vm>> {
        self.vms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The host's own, by vector.
    pub(crate) fn own(&self) -> &[Arc<OwnedFd>] {
        &self.own
    }

    /// By how many vectors the host's sleepers are rung; 0 if by none.
    pub(crate) fn own_vectors(&self) -> u32 {
        u32::try_from(self.own.len()).ok().filter(|count| *count >= 2).unwrap_or(0)
    }

    /// A VM's device has connected, with these.
    pub(crate) fn plugged(&self, member: u32, vectors: Vec<Arc<OwnedFd>>) {
        self.vms().insert(member, Vm { vectors, rings: false });
    }

    /// It is gone.
    pub(crate) fn unplugged(&self, member: u32) {
        self.vms().remove(&member);
    }

    /// A VM's agent has said whether it rings by the device.
    pub(crate) fn said(&self, member: u32, rings: bool) {
        if let Some(vm) = self.vms().get_mut(&member) {
            vm.rings = rings;
        }
    }

    /// The VMs that have a device.
    pub(crate) fn members(&self) -> Vec<u32> {
        self.vms().keys().copied().collect()
    }

    /// Whether it does.
    pub(crate) fn rings(&self, member: u32) -> bool {
        self.vms().get(&member).is_some_and(|vm| vm.rings)
    }

    fn ring(&self, member: u32, vector: impl FnOnce() -> Option<u32>) -> bool {
        let vms = self.vms();
        let Some(vm) = vms.get(&member).filter(|vm| vm.rings) else { return false };
        let vector = vector().and_then(|vector| usize::try_from(vector).ok());
        let Some(fd) = vector.and_then(|vector| vm.vectors.get(vector)) else { return false };
        let fd = Arc::clone(fd);
        drop(vms);
        ring_one(&fd);
        true
    }

    /// Rings all sleepers of a VM, whatever its agent has said.
    pub(crate) fn all_sleepers(&self, member: u32) {
        let vectors = self.vms().get(&member).map(|vm| vm.vectors.clone()).unwrap_or_default();
        vectors.iter().skip(1).for_each(|fd| ring_one(fd));
    }

    fn sleepers(&self, member: u32, vector: impl FnOnce(u32) -> u32) -> bool {
        let vectors = || Some(vectors_of(&self.region, member)).filter(|vectors| *vectors > 0);
        self.ring(member, || vectors().map(vector))
    }

    /// Rings the sleepers of an endpoint of a VM. Gives whether that could be done.
    pub(crate) fn endpoint(&self, member: u32, slot: u32) -> bool {
        self.sleepers(member, |vectors| vector_of_slot(slot, vectors))
    }

    /// Rings those of a VM that wait at a place. Gives whether that could be done.
    pub(crate) fn gate(&self, member: u32, place: u64) -> bool {
        self.sleepers(member, |vectors| vector_of_place(place, vectors))
    }

    /// Tells a VM's agent of a death. Gives whether that could be done.
    pub(crate) fn death(&self, member: u32) -> bool {
        self.ring(member, || Some(DEATHS))
    }
}
