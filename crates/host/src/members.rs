//! The membership table and the sections behind it. The one place that writes the host section.
//!
//! A VM's place passes through these states; each pass has a new incarnation:
//!
//! ```text
//!          QEMU connects           the agent has                    QEMU is gone
//!  Free ───────────────► Joining ──────────────────────► Active ──────────────────► Dead
//!                           ▲      written its directory   │                         │
//!                           │                              │ its directory is gone   │ QEMU connects;
//!                           ├──────────────────────────────┘ (agent started anew)    │ section zeroed
//!                           └────────────────────────────────────────────────────────┘
//! ```
//!
//! A VM tells the host service something through its own section, and rings by its wake port once it has: a member is
//! Active once its directory carries its incarnation. An agent that finds its member Active already (the agent was
//! restarted, or the VM was reset under a running QEMU) clears the directory's magic word. This service then ends the
//! old life and zeroes the section, and the guest joins anew, so that no number of the old life is used again.
//!
//! Nothing here is done now and then. An agent that waits for a step rings again until it sees the step.

use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_region::counters::Totals;
use isthmus_region::directory::{self, Directory};
use isthmus_region::life::State;
use isthmus_region::mapping::{Mapping, Section};
use isthmus_region::membership::{NewPeer, PeerInfo, Region, Shape, Writer};
use isthmus_region::source::Source;

use crate::error::{Error, Result};
use crate::names;
use crate::plan::Place;

/// How long to wait for operations of others on the memory of a member that is gone.
const HOLDS: Duration = Duration::from_millis(500);
/// An agent cannot make this service zero its section more often than this.
const LEAST_LIFE: Duration = Duration::from_millis(500);

/// What [`Members::look_at`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The member's agent is ready.
    Active(u32),
    /// The member's agent begins a new life.
    Again(u32),
}

/// The members of a region.
#[derive(Debug)]
pub struct Members {
    writer: Writer,
    slots: Vec<Slot>,
    /// Named objects, whose holders are checked together with the members.
    names: Option<names::Shared>,
}

#[derive(Debug)]
struct Slot {
    name: String,
    place: Place,
    /// When the present life began; `None` if the place is free.
    since: Option<Instant>,
    /// Whether its memory may not be zero.
    used: bool,
    /// Counters of former lives.
    retired: Totals,
}

/// Waits until no process changes memory of a member's former life any more, which takes a moment. Gives up on a
/// process that has stopped in the middle of it.
fn wait_for_holds(region: &Region, index: u32, name: &str) -> Result<()> {
    let until = Instant::now() + HOLDS;
    while isthmus_region::holds::are_on(region, index, None) {
        if Instant::now() >= until {
            let reason = format!(
                "a process that stands still, perhaps in a VM that is paused, is at work in the memory that VM '{name}' had; let it go on, or end it"
            );
            return Err(Error::NoPlace { reason });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

impl Members {
    /// Writes the header of a fresh region whose members have these names and places; the first is the host. Its files but the
    /// first, which is mapped, have the lengths `others` and come from `source`.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub fn create(
        map: &Arc<Mapping>,
        shape: &Shape,
        others: &[u64],
        source: Arc<dyn Source>,
        members: Vec<(String, Place)>,
    ) -> Result<Self> {
        let writer = Writer::create_from(map, shape, 1, others, Some(source))?;
        let slot = |(name, place)| Slot { name, place, since: None, used: false, retired: Totals::default() };
        Ok(Self { writer, slots: members.into_iter().map(slot).collect(), names: None })
    }

    /// Connects the registry of named objects.
    pub fn set_names(&mut self, names: names::Shared) {
        self.names = Some(names);
    }

    /// The region as its members read it.
    pub fn region(&self) -> &Region {
        self.writer.region()
    }

    /// The name of a member.
    pub fn name(&self, index: u32) -> &str {
        self.slots.get(index as usize).map_or("", |s| &s.name)
    }

    /// The number of the VM with this name.
    pub fn find(&self, name: &str) -> Option<u32> {
        self.slots.iter().skip(1).position(|s| s.name == name).and_then(|i| u32::try_from(i + 1).ok())
    }

    /// Makes the host's own processes, or some of them, the member `index`: gives its incarnation and the writer of its section.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub fn add_host(&mut self, index: u32) -> Result<(u64, directory::Writer)> {
        let incarnation = self.join(index, false)?;
        let writer = directory::Writer::create(self.region(), index)?;
        self.writer.set_state(index, State::Active)?;
        Ok((incarnation, writer))
    }

    /// Lets a VM join at place `wanted`, or at the first that is free.
    ///
    /// # Errors
    /// [`Error::NoPlace`]; [`Error::Region`].
    pub fn add_vm(&mut self, wanted: Option<u32>) -> Result<u32> {
        let index = match wanted {
            Some(index) if self.slots.get(index as usize).is_some_and(|s| s.since.is_none()) => index,
            Some(index) => {
                let name = self.name(index);
                return Err(Error::NoPlace { reason: format!("VM '{name}' is connected already") });
            }
            None => {
                let free = self.slots.iter().skip(1).position(|s| s.since.is_none());
                let all = self.slots.len() - 1;
                let none = || Error::NoPlace {
                    reason: format!("all {all} VMs that the region has room for are connected already"),
                };
                free.and_then(|i| u32::try_from(i + 1).ok()).ok_or_else(none)?
            }
        };
        let incarnation = self.join(index, true)?;
        if let Some(names) = &self.names {
            names.with(|r| r.connected(index, incarnation));
        }
        Ok(index)
    }

    fn join(&mut self, index: u32, is_vm: bool) -> Result<u64> {
        let slot = &mut self.slots[index as usize];
        let Place { file, section, bytes } = slot.place;
        if slot.used {
            wait_for_holds(self.writer.region(), index, &slot.name)?;
            let whole =
                self.writer.region().peer(index)?.ok_or(isthmus_region::Error::NoPeer { peer: index })?;
            self.writer.region().own_section(&whole)?.zero("section", 0, bytes)?;
        }
        slot.used = true;
        slot.since = Some(Instant::now());
        if let Some(names) = &self.names {
            names.with(|r| r.forget(index));
        }
        let new = NewPeer { file, section, section_bytes: bytes, is_vm, name: &slot.name };
        Ok(self.writer.add(index, &new)?)
    }

    fn info(&self, index: u32) -> Result<PeerInfo> {
        Ok(self.region().peer(index)?.ok_or(isthmus_region::Error::NoPeer { peer: index })?)
    }

    /// The section of a member, to be written: once it is dead, or asked to begin anew.
    fn own_section(&self, index: u32) -> Result<Section> {
        Ok(self.region().own_section(&self.info(index)?)?)
    }

    /// Publishes that a member is gone, and keeps the sums of its counters.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub fn remove(&mut self, index: u32) -> Result<()> {
        let gone = self.totals(index);
        self.writer.set_state(index, State::Dead)?;
        let slot = &mut self.slots[index as usize];
        slot.since = None;
        slot.retired.add(&gone);
        directory::bury(&self.own_section(index)?, self.region().shape())?;
        Ok(())
    }

    /// The counters of a member's present life. A section may hold anything; what cannot be read counts as zero.
    fn totals(&self, index: u32) -> Totals {
        let read = || {
            let info = self.info(index)?;
            let section = self.region().section(&info)?;
            let directory = Directory::open(&section, self.region().shape(), info.life.incarnation)?;
            Ok::<_, Error>(directory.totals()?)
        };
        read().unwrap_or_default()
    }

    /// Looks at the section of a VM: whether it is ready, or begins a new life.
    ///
    /// # Errors
    /// [`Error::Region`]; [`Error::NoPlace`] if its memory cannot be cleared.
    pub fn look_at(&mut self, index: u32) -> Result<Option<Change>> {
        let slot = self.slots.get(index as usize).filter(|_| index != 0);
        let Some(since) = slot.and_then(|s| s.since) else { return Ok(None) };
        let info = self.info(index)?;
        let section = self.region().section(&info)?;
        let open = Directory::open(&section, self.region().shape(), info.life.incarnation);
        match (info.life.state, open) {
            (State::Joining, Ok(_)) => {
                self.writer.set_state(index, State::Active)?;
                Ok(Some(Change::Active(index)))
            }
            (State::Active, Err(_)) if since.elapsed() >= LEAST_LIFE => {
                self.remove(index)?;
                self.join(index, true)?;
                Ok(Some(Change::Again(index)))
            }
            _ => Ok(None),
        }
    }

    /// All members, present and past.
    pub fn peers(&self) -> Vec<PeerInfo> {
        self.region().peers()
    }

    /// Counters of each member, former lives included.
    pub fn stats(&self) -> Vec<(String, Totals)> {
        let all = self.slots.iter().zip(0_u32..);
        all.map(|(slot, index)| {
            let mut sum = slot.retired;
            if slot.since.is_some() {
                sum.add(&self.totals(index));
            }
            (slot.name.clone(), sum)
        })
        .collect()
    }

    /// Publishes that the service ends.
    pub fn end(&mut self) {
        self.writer.end();
    }
}
