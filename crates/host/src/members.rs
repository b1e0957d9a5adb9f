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
//! old life and zeroes the section but for the pool of pages, which are those of the VM's programs; and the guest joins anew, so that no
//! number of the old life is used again.
//!
//! A name is the VM's and not the place's. At its own sockets a VM has its own name, and its own place if that is free. At the
//! sockets that all share, a VM gets the first name that no VM has had yet, and the first free place if the one meant for that
//! name is taken; a QEMU that comes again has the name that it had. Any other VM is a new one, with a name that no VM has had: it
//! would otherwise be taken for the one that is gone.
//!
//! Nothing here is done now and then. An agent that waits for a step rings again until it sees the step.

use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_region::address::{Naming, SystemId};
use isthmus_region::counters::Totals;
use isthmus_region::directory::{self, Directory};
use isthmus_region::format;
use isthmus_region::life::State;
use isthmus_region::mapping::{Mapping, PeerSection, Section};
use isthmus_region::membership::{NewPeer, PeerInfo, Region, Shape, Writer};
use isthmus_region::source::Source;

use crate::error::{Error, Result};
use crate::names;
use crate::plan::Place;
use crate::ports::{Caller, Process};

/// How long to wait for operations of others on the memory of a member that is gone.
const HOLDS: Duration = Duration::from_millis(500);
/// An agent cannot make this service zero its section more often than this.
const LEAST_LIFE: Duration = Duration::from_millis(500);

/// How long processes of a member's former life have, once it is published that this is over, to let go of its memory: then that is zeroed,
/// and given to others.
const LETTING_GO: Duration = Duration::from_secs(1);

/// What [`Members::look_at`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The member's agent is ready.
    Active(u32),
    /// The member's agent wants a new life: its former one is over.
    Over(u32),
    /// The member's agent begins a new life.
    Again(u32),
    /// The member is not taken in: it says that it is no system, or one that another member is.
    Impostor(u32),
}

/// The members of a region.
#[derive(Debug)]
pub struct Members {
    writer: Writer,
    slots: Vec<Slot>,
    /// First the host, then the VMs that were announced, in the order of their places, then others that came.
    known: Vec<Known>,
    /// Named objects, whose holders are checked together with the members.
    names: Option<names::Shared>,
}

/// A place in the region, and the one that has it or had it last.
#[derive(Debug)]
struct Slot {
    holder: usize,
    place: Place,
    /// When the present life began; `None` if the place is free.
    since: Option<Instant>,
    /// The system that the VM was when it was active last: its own while it is connected, also when its agent begins anew.
    system: Option<SystemId>,
    /// Whether it was told in this life that the member is not taken in.
    refused: bool,
    /// Whether its memory may not be zero.
    used: bool,
    /// Where the pool of pages begins that the VM had when it was active last; none if it had none.
    pool: Option<u64>,
}

/// The host or a VM, wherever its place is.
#[derive(Debug)]
struct Known {
    name: String,
    /// Whether a VM has had the name.
    is_given: bool,
    /// The QEMU that had it last.
    process: Option<Process>,
    /// Counters of former lives.
    retired: Totals,
}

impl Known {
    fn new(name: String) -> Self {
        Self { name, is_given: false, process: None, retired: Totals::default() }
    }
}

/// What of a member's memory the next life finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begins {
    /// Zeros.
    Anew,
    /// The pool of pages as it is, since the VM is the same.
    WithPages,
}

/// Where the pool of pages of a member begins; none if it has none. A VM that lies there keeps memory of its own.
fn pool_at(section: &PeerSection, shape: &Shape) -> Option<u64> {
    let word = |at| section.word("directory", at).map(|word| word.get()).ok();
    let (pages, bytes) = (word(format::directory::PAGES)?, word(format::directory::PAGES_BYTES)?);
    (bytes > 0 && directory::pages_fit(shape, section.len(), pages, bytes)).then_some(pages)
}

/// Says at the beginning of a file other than the first, where a section begins, that it is a region's: the guest driver takes no
/// other device.
pub(crate) fn mark(file: u32, section: &Section) -> Result<()> {
    if file > 0 {
        section.word("section", 0)?.set(format::SECTION_MAGIC);
    }
    Ok(())
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
        let (known, places): (Vec<_>, Vec<_>) = members.into_iter().unzip();
        let slot = |(holder, place)| Slot {
            holder,
            place,
            since: None,
            system: None,
            refused: false,
            used: false,
            pool: None,
        };
        Ok(Self {
            writer,
            slots: places.into_iter().enumerate().map(slot).collect(),
            known: known.into_iter().map(Known::new).collect(),
            names: None,
        })
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
        self.slots.get(index as usize).map_or("", |s| &self.known[s.holder].name)
    }

    /// The place of the host or a VM, if it is connected.
    fn slot_of(&self, holder: usize) -> Option<usize> {
        self.slots.iter().position(|s| s.since.is_some() && s.holder == holder)
    }

    /// The VM that has connected at a socket that all share; one that was not known before is added.
    fn arriving(&mut self, process: Option<&Process>) -> usize {
        // One that has ended comes no more, and its descriptor is not kept.
        for known in &mut self.known {
            if known.process.as_ref().is_some_and(Process::has_ended) {
                known.process = None;
            }
        }
        let had = |known: &Known| known.process.as_ref().zip(process).is_some_and(|(had, now)| had.is(now));
        let vms = || self.known.iter().enumerate().skip(1);
        let again = vms().find(|(vm, known)| had(known) && self.slot_of(*vm).is_none());
        if let Some((vm, _)) = again.or_else(|| vms().find(|(_, known)| !known.is_given)) {
            return vm;
        }
        let taken = |name: &String| self.known.iter().any(|known| known.name == *name);
        // There are more numbers than names.
        let new = (self.known.len()..).map(|number| format!("vm{number}")).find(|name| !taken(name));
        self.known.push(Known::new(new.unwrap_or_default()));
        self.known.len() - 1
    }

    /// Makes the host's own processes, or some of them, the member `index`: gives its incarnation and the writer of its section.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub fn add_host(&mut self, index: u32) -> Result<(u64, directory::Writer)> {
        let incarnation = self.join(index, self.slots[index as usize].holder, false, Begins::Anew)?;
        let naming = Naming::first(SystemId::random()?);
        let writer = directory::Writer::create(self.region(), index, naming)?;
        self.activate(index, naming.system)?;
        Ok((incarnation, writer))
    }

    /// Lets a VM join.
    ///
    /// # Errors
    /// [`Error::NoPlace`]; [`Error::Region`].
    pub(crate) fn add_vm(&mut self, caller: &Caller) -> Result<u32> {
        let own = caller.vm.and_then(|vm| usize::try_from(vm).ok());
        if let Some(vm) = own.filter(|vm| self.slot_of(*vm).is_some()) {
            let name = &self.known[vm].name;
            return Err(Error::NoPlace { reason: format!("VM '{name}' is connected already") });
        }
        let is_free = |slot: &&Slot| slot.since.is_none();
        let Some(first) = self.slots.iter().skip(1).position(|s| is_free(&s)) else {
            let all = self.slots.len() - 1;
            let reason = format!("all {all} VMs that the region has room for are connected already");
            return Err(Error::NoPlace { reason });
        };
        let vm = own.unwrap_or_else(|| self.arriving(caller.process.as_ref()));
        let slot = if self.slots.get(vm).is_some_and(|s| is_free(&s)) { vm } else { first + 1 };
        let index = u32::try_from(slot).unwrap_or(u32::MAX);
        let incarnation = self.join(index, vm, true, Begins::Anew)?;
        self.known[vm].is_given = true;
        self.known[vm].process.clone_from(&caller.process);
        self.slots[slot].system = None;
        self.slots[slot].pool = None;
        if let Some(names) = &self.names {
            names.with(|r| r.connected(index, incarnation));
        }
        Ok(index)
    }

    fn join(&mut self, index: u32, holder: usize, is_vm: bool, begins: Begins) -> Result<u64> {
        let slot = &mut self.slots[index as usize];
        let Place { file, section, bytes } = slot.place;
        let is_first = !slot.used;
        if slot.used {
            // Of the one that had the place last.
            wait_for_holds(self.writer.region(), index, &self.known[slot.holder].name)?;
            let whole =
                self.writer.region().peer(index)?.ok_or(isthmus_region::Error::NoPeer { peer: index })?;
            let section = self.writer.region().own_section(&whole)?;
            let bytes = match begins {
                Begins::Anew => bytes,
                // The pages in the pool are those of the VM's programs, which go on.
                Begins::WithPages => slot.pool.unwrap_or(bytes),
            };
            section.zero("section", 0, bytes)?;
            // Before the member sees that it may begin.
            mark(file, &section)?;
        }
        slot.holder = holder;
        slot.used = true;
        slot.refused = false;
        slot.since = Some(Instant::now());
        if let Some(names) = &self.names {
            names.with(|r| r.forget(index));
        }
        let name = &self.known[holder].name;
        let new = NewPeer { file, section, section_bytes: bytes, is_vm, name };
        let incarnation = self.writer.add(index, &new)?;
        if is_first {
            // Nobody is there yet.
            mark(file, &self.own_section(index)?)?;
        }
        if let Some(names) = &self.names {
            let name = self.name(index).to_owned();
            names.with(|r| r.joined(index, &name, is_vm));
        }
        Ok(incarnation)
    }

    /// Notes the pool of a VM that becomes active, and zeroes what its last life had of another one.
    fn take_pool(&mut self, index: u32, section_bytes: u64, pool: Option<u64>) -> Result<()> {
        let former = std::mem::replace(&mut self.slots[index as usize].pool, pool);
        let end = pool.unwrap_or(section_bytes);
        if let Some(begin) = former.filter(|begin| *begin < end) {
            // No process of it has memory yet.
            self.own_section(index)?.zero("former pool of pages", begin, end - begin)?;
        }
        Ok(())
    }

    fn activate(&mut self, index: u32, system: SystemId) -> Result<()> {
        self.writer.activate(index, system)?;
        self.slots[index as usize].system = Some(system);
        Ok(())
    }

    /// Whether a member may be this system. What a VM says of itself is compared with what this service has noted of the others
    /// that are connected, whatever the region's table says now.
    fn may_be(&self, index: u32, system: SystemId) -> bool {
        let others = (0_u32..).zip(&self.slots).filter(|(i, slot)| *i != index && slot.since.is_some());
        system != SystemId::NONE && others.into_iter().all(|(_, slot)| slot.system != Some(system))
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
        self.known[slot.holder].retired.add(&gone);
        directory::bury(&self.own_section(index)?, self.region().shape())?;
        Ok(())
    }

    /// As [`Members::remove`], of a VM whose QEMU is gone.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub(crate) fn remove_vm(&mut self, index: u32) -> Result<()> {
        let removed = self.remove(index);
        if let Some(names) = &self.names {
            let vm = self.name(index).to_owned();
            names.with(|r| r.vm_gone(&vm));
        }
        removed
    }

    /// The counters of a member's present life, also once its agent has asked for another one; zero once that life is over, since
    /// they are among those of former lives then. A section may hold anything; what cannot be read counts as zero.
    fn totals(&self, index: u32) -> Totals {
        let read = || {
            let info = self.info(index)?;
            if info.life.state == State::Dead {
                return Ok(Totals::default());
            }
            let section = self.region().section(&info)?;
            Ok::<_, Error>(directory::totals_in(&section, self.region().shape(), info.life.incarnation)?)
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
            (State::Joining, Ok(directory)) => {
                let system = directory.system();
                if self.may_be(index, system) {
                    self.take_pool(index, info.section_bytes, pool_at(&section, self.region().shape()))?;
                    self.activate(index, system)?;
                    return Ok(Some(Change::Active(index)));
                }
                // Its agent rings again and again.
                let told = std::mem::replace(&mut self.slots[index as usize].refused, true);
                Ok((!told).then_some(Change::Impostor(index)))
            }
            (State::Active, Err(_)) if since.elapsed() >= LEAST_LIFE => {
                self.remove(index)?;
                // The place stays this VM's, whose device is connected.
                self.slots[index as usize].since = Some(Instant::now());
                Ok(Some(Change::Over(index)))
            }
            // Its agent asks again and again. Others may still be at work in its memory.
            (State::Dead, _)
                if since.elapsed() >= LETTING_GO
                    && !isthmus_region::holds::are_on(self.region(), index, None) =>
            {
                self.join(index, self.slots[index as usize].holder, true, Begins::WithPages)?;
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
        let all = self.known.iter().enumerate();
        all.map(|(holder, known)| {
            let mut sum = known.retired;
            if let Some(index) = self.slot_of(holder).and_then(|slot| u32::try_from(slot).ok()) {
                sum.add(&self.totals(index));
            }
            (known.name.clone(), sum)
        })
        .collect()
    }

    /// Publishes that the service ends.
    pub fn end(&mut self) {
        self.writer.end();
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::{Child, Command};

    use rustix::process::Pid;

    use super::*;

    fn members(names: &[&str]) -> Members {
        let bytes = 16 << 20;
        let shape = Shape::new(bytes, [1, 2], u32::try_from(names.len()).unwrap(), 64).unwrap();
        let shape = shape.with_shared(1 << 20, 16).unwrap();
        let plan = crate::plan::together(shape, &vec![1; names.len()]).unwrap();
        let files = crate::files::Memfds::create(&plan.lengths, None, None).unwrap();
        let map = Mapping::map(files.first().as_fd(), bytes).unwrap();
        let names = names.iter().map(|name| (*name).to_owned());
        Members::create(&map, &plan.shape, &[], files, names.zip(plan.places).collect()).unwrap()
    }

    /// Another VM's QEMU at the sockets that all share.
    fn qemu() -> (Child, Caller) {
        let child = Command::new("sleep").arg("100").spawn().unwrap();
        let process = Process::with(Pid::from_child(&child));
        (child, Caller { vm: None, process })
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// VMs 'red' and 'blue': a process of the second is at work in the memory of the first, until the hold is released.
    fn one_at_work_in_anothers_memory() -> (Members, Vec<directory::Writer>, isthmus_region::holds::Hold) {
        use isthmus_region::holds::{Hold, Owner};
        let mut members = members(&["host", "red", "blue"]);
        let mut writers = Vec::new();
        for vm in [1, 2] {
            assert_eq!(members.add_vm(&Caller { vm: Some(vm), process: None }).unwrap(), vm);
            let naming = Naming::first(SystemId::random().unwrap());
            writers.push(directory::Writer::create(members.region(), vm, naming).unwrap());
            assert_eq!(members.look_at(vm).unwrap(), Some(Change::Active(vm)));
        }
        let blue = &mut writers[1];
        let area = blue.open_area(64 << 10, 1, "").unwrap();
        let block = area.first.offset + 4096;
        blue.open_endpoint(area.area, block, 1).unwrap();
        let hold = Hold::of(blue.directory().own_section(), block).unwrap();
        hold.take(Owner::new(1, 0));
        (members, writers, hold)
    }

    #[test]
    fn a_vm_that_begins_anew_keeps_its_place_while_others_are_at_work_in_its_memory() {
        let (mut members, _writers, hold) = one_at_work_in_anothers_memory();
        // The agent of the first asks for a new life.
        let info = members.region().peer(1).unwrap().unwrap();
        let section = members.region().own_section(&info).unwrap();
        section.word("directory", isthmus_region::format::directory::MAGIC).unwrap().set(0);
        std::thread::sleep(LEAST_LIFE);
        assert_eq!(members.look_at(1).unwrap(), Some(Change::Over(1)));
        assert_eq!(members.look_at(1).unwrap(), None, "its processes have a moment to let go");
        std::thread::sleep(LETTING_GO);
        assert_eq!(members.look_at(1).unwrap(), None, "still at work there");
        let taken = members.add_vm(&Caller { vm: Some(1), process: None }).unwrap_err().to_string();
        assert!(taken.contains("'red' is connected already"), "{taken}");
        let (child, stranger) = qemu();
        assert!(members.add_vm(&stranger).is_err(), "its place is nobody else's");
        end(child);
        hold.release();
        assert_eq!(members.look_at(1).unwrap(), Some(Change::Again(1)));
        assert_eq!(members.region().peer(1).unwrap().unwrap().life.state, State::Joining);
    }

    #[test]
    fn a_newcomer_is_told_whose_memory_is_still_in_use() {
        let (mut members, _writers, hold) = one_at_work_in_anothers_memory();
        members.remove_vm(1).unwrap();
        let (child, stranger) = qemu();
        for _ in 0..2 {
            let refused = members.add_vm(&stranger).unwrap_err().to_string();
            assert!(refused.contains("the memory that VM 'red' had"), "{refused}");
        }
        assert_eq!(members.name(1), "red", "nobody has come in its place");
        hold.release();
        assert_eq!(members.add_vm(&stranger).unwrap(), 1);
        assert_eq!(members.name(1), "vm3");
        end(child);
    }

    #[test]
    fn what_a_life_has_counted_stays_when_its_agent_begins_anew() {
        use isthmus_region::counters::{Counter, Counters};
        let mut members = members(&["host", "red"]);
        let own = Caller { vm: Some(1), process: None };
        assert_eq!(members.add_vm(&own).unwrap(), 1);
        let count = |members: &Members| members.stats()[1].1.get(Counter::TxBytes);
        let life = |members: &mut Members, bytes| {
            let naming = Naming::first(SystemId::random().unwrap());
            let mut writer = directory::Writer::create(members.region(), 1, naming).unwrap();
            assert_eq!(members.look_at(1).unwrap(), Some(Change::Active(1)));
            // Of a process that is gone by then, and of one that is not.
            for ends in [true, false] {
                let area = writer.open_area(64 << 10, 1, "").unwrap();
                let section = writer.directory().own_section();
                Counters::at(section, area.first.offset).unwrap().add(Counter::TxBytes, bytes);
                if ends {
                    writer.close_area(area.area).unwrap();
                }
            }
            writer.directory().own_section().clone()
        };
        let say = |section: Section, magic| {
            section.word("directory", format::directory::MAGIC).unwrap().set(magic);
            section
        };
        say(life(&mut members, 10), 0);
        assert_eq!(count(&members), 20, "asked for a new life, which has not begun");
        std::thread::sleep(LEAST_LIFE);
        assert_eq!(members.look_at(1).unwrap(), Some(Change::Over(1)));
        assert_eq!(count(&members), 20);
        std::thread::sleep(LETTING_GO);
        assert_eq!(members.look_at(1).unwrap(), Some(Change::Again(1)));
        assert_eq!(count(&members), 20);
        let section = life(&mut members, 100);
        assert_eq!(count(&members), 220);
        let section = say(section, 0);
        std::thread::sleep(LEAST_LIFE);
        assert_eq!(members.look_at(1).unwrap(), Some(Change::Over(1)));
        say(section, format::DIRECTORY_MAGIC);
        assert_eq!(count(&members), 220, "a life that is over is counted once");
        members.remove_vm(1).unwrap();
        assert_eq!(count(&members), 220);
    }

    #[test]
    fn pages_of_a_vms_programs_stay_when_its_agent_begins_anew_and_go_with_the_vm() {
        let mut members = members(&["host", "red"]);
        let own = Caller { vm: Some(1), process: None };
        assert_eq!(members.add_vm(&own).unwrap(), 1);
        let section = members.own_section(1).unwrap();
        let (align, len) = (members.region().shape().section_align, section.len());
        let places = [len - 2 * align, len - align, len - 64];
        let left = || places.map(|at| section.word("page", at).unwrap().get());
        let life = |members: &mut Members, pages, found| {
            let naming = Naming::first(SystemId::random().unwrap());
            directory::Writer::create_with_pages(members.region(), 1, naming, pages).unwrap();
            assert_eq!(members.look_at(1).unwrap(), Some(Change::Active(1)));
            assert_eq!(left(), found);
            places.iter().for_each(|at| section.word("page", *at).unwrap().set(7));
        };
        let again = |members: &mut Members| {
            section.word("directory", format::directory::MAGIC).unwrap().set(0);
            std::thread::sleep(LEAST_LIFE);
            assert_eq!(members.look_at(1).unwrap(), Some(Change::Over(1)));
            std::thread::sleep(LETTING_GO);
            assert_eq!(members.look_at(1).unwrap(), Some(Change::Again(1)));
        };
        life(&mut members, align, [0; 3]);
        again(&mut members);
        assert_eq!(left(), [0, 7, 7], "all but the pool is zeroed");
        // Where the next life has a smaller pool or none, nothing is left of the last one's.
        life(&mut members, 0, [0; 3]);
        again(&mut members);
        assert_eq!(left(), [0; 3], "without a pool, everything");
        life(&mut members, 2 * align, [0; 3]);
        again(&mut members);
        life(&mut members, align, [0, 7, 7]);
        // What somebody writes there later changes nothing.
        section.word("directory", format::directory::PAGES).unwrap().set(len);
        section.word("directory", format::directory::PAGES_BYTES).unwrap().set(0);
        again(&mut members);
        assert_eq!(left(), [0, 7, 7]);
        life(&mut members, align, [0, 7, 7]);
        members.remove_vm(1).unwrap();
        assert_eq!(members.add_vm(&own).unwrap(), 1);
        assert_eq!(left(), [0, 0, 0], "another VM finds nothing");
    }

    #[test]
    fn an_object_is_limited_to_names_of_vms_and_not_to_their_places() {
        use isthmus_attach::protocol::{Reply, Request};
        use isthmus_attach::server::Asker;
        use isthmus_region::objects::sysv::{Sharing, name_of};
        use isthmus_region::objects::{Access, Kind, NewObject, object};
        use isthmus_region::party::Party;
        let mut members = members(&["host", "red", "blue"]);
        let names =
            names::Shared::new(names::Registry::new(members.region().clone(), names::Rules::default()));
        members.set_names(names.clone());
        members.add_host(0).unwrap();
        let ((one, red), (two, blue), (three, green)) = (qemu(), qemu(), qemu());
        assert_eq!((members.add_vm(&red).unwrap(), members.add_vm(&blue).unwrap()), (1, 2));
        let new = NewObject {
            kind: Kind::SysvShm,
            name: name_of(7),
            len: 8192,
            mode: 0o600,
            ends_with_creator: false,
            params: [7, 0, 0, 4096],
            or_open: false,
        };
        let ask = |peer, request| {
            names.with(|r| r.answer(Asker { party: Party::new(peer, 1, 1), user: (5, 5) }, &request))
        };
        let Reply::Object(made) = ask(1, Request::Create(new)) else { panic!("it is not made") };
        let (index, incarnation) = (made.index, made.incarnation);
        let share = |sharing| Request::Share { index, incarnation, sharing };
        assert_eq!(ask(1, share(Sharing::With("blue".into()))), Reply::Done);
        let finds = |members: &Members| {
            let info = object(members.region(), index).unwrap().unwrap();
            [0, 1, 2].map(|peer| info.is_shared_with(peer))
        };
        assert_eq!(finds(&members), [false, true, true]);
        // Another list, on which it is as well, is there at once.
        assert_eq!(ask(1, share(Sharing::Next("blue".into()))), Reply::Done);
        assert_eq!(finds(&members), [false, true, true]);
        assert_eq!(ask(1, share(Sharing::With("host".into()))), Reply::Done);
        assert_eq!(finds(&members), [true, true, true]);
        // What was named for it, and by another process, counts no longer.
        assert_eq!(ask(2, share(Sharing::Next("host".into()))), Reply::Done);
        assert_eq!(ask(1, share(Sharing::With("blue".into()))), Reply::Done);
        assert_eq!(finds(&members), [false, true, true]);
        // Another VM in the place of the one that is named, and that one in the place of the one that has made it.
        members.remove_vm(2).unwrap();
        assert_eq!(members.add_vm(&green).unwrap(), 2);
        assert_eq!((name(&members, 2), finds(&members)), ("vm3".into(), [false, true, false]));
        let refused = ask(2, Request::Hold { index, incarnation });
        assert!(matches!(&refused, Reply::Refused { text, .. } if text.contains("ipcshare")), "{refused:?}");
        let (kind, of) = (Kind::SysvShm, name_of(7));
        for peer in [1, 2] {
            let by_name = [
                Request::Open { kind, name: of.clone(), access: Access::Read },
                Request::Unlink { kind, name: of.clone() },
            ];
            for request in by_name {
                let refused = ask(peer, request);
                assert!(
                    matches!(&refused, Reply::Refused { text, .. } if text.contains("by name")),
                    "{refused:?}"
                );
            }
        }
        assert_eq!(finds(&members), [false, true, false], "it is still there, as it was");
        members.remove_vm(1).unwrap();
        assert_eq!(members.add_vm(&blue).unwrap(), 1);
        assert_eq!((name(&members, 1), finds(&members)), ("blue".into(), [false, true, false]));
        [one, two, three].into_iter().for_each(end);
    }

    fn name(members: &Members, index: u32) -> String {
        members.region().peer(index).unwrap().unwrap().name
    }

    #[test]
    fn a_vm_in_anothers_place_does_not_get_its_name() {
        let mut members = members(&["host", "red", "blue"]);
        let ((one, red), (two, blue), (three, green)) = (qemu(), qemu(), qemu());
        assert_eq!((members.add_vm(&red).unwrap(), members.add_vm(&blue).unwrap()), (1, 2));
        assert_eq!((name(&members, 1), name(&members, 2)), ("red".into(), "blue".into()));
        assert!(members.add_vm(&green).is_err(), "no place");
        members.remove(1).unwrap();
        members.remove(2).unwrap();
        // The same QEMU has its name again, and its place.
        assert_eq!(members.add_vm(&blue).unwrap(), 2);
        assert_eq!(members.add_vm(&green).unwrap(), 1);
        assert_eq!((name(&members, 1), name(&members, 2)), ("vm3".into(), "blue".into()));
        members.remove(2).unwrap();
        // Its own place is taken, not its name.
        assert_eq!(members.add_vm(&red).unwrap(), 2);
        assert_eq!(name(&members, 2), "red");
        let names: Vec<String> = members.stats().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["host", "red", "blue", "vm3"], "what each has counted stays its own");
        [one, two, three].into_iter().for_each(end);
    }

    #[test]
    fn a_vm_at_its_own_socket_has_its_name_wherever_its_place_is() {
        let mut members = members(&["host", "vm1", "vm4"]);
        let own = |vm| Caller { vm: Some(vm), process: None };
        let (child, stranger) = qemu();
        assert_eq!(members.add_vm(&own(1)).unwrap(), 1);
        assert_eq!(members.add_vm(&stranger).unwrap(), 2);
        assert_eq!(name(&members, 2), "vm4");
        let taken = members.add_vm(&own(2)).unwrap_err().to_string();
        assert!(taken.contains("'vm4' is connected already"), "{taken}");
        members.remove(1).unwrap();
        members.remove(2).unwrap();
        end(child);
        // That QEMU has ended, so this is another VM; all names were given.
        let (child, stranger) = qemu();
        assert_eq!(members.add_vm(&stranger).unwrap(), 1);
        assert_eq!(name(&members, 1), "vm3");
        assert_eq!(members.add_vm(&own(1)).unwrap(), 2);
        assert_eq!(name(&members, 2), "vm1");
        end(child);
    }
}
