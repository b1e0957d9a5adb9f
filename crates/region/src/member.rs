//! What a process holds once it has attached: the region, its place in it, and its local service.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use isthmus_lockfree::life::{Life, State};

use crate::address::{Address, SystemId};
use crate::area::Area;
use crate::attach::{Process, Processes};
use crate::counters::Counters;
use crate::directory::{AreaGrant, Directory, OwnDirectory};
use crate::doorbell::Doorbell;
use crate::driver;
use crate::error::{Error, Result};
use crate::extent::Extent;
use crate::format::GlobalSlot;
use crate::format::directory;
use crate::grants::{Granted, Keepers, KeptPages, Outcome};
use crate::kept::Kept;
use crate::mapping::{Mapping, Section};
use crate::membership::{Region, online_processors};
use crate::near::Bells;
use crate::objects::sysv::{Change, Sharing};
use crate::objects::{Access, Kind, NewObject, ObjectGrant};
use crate::party::Party;
use crate::pool::Pool;
use crate::shared_by_threads::Count;
use crate::signals::{Blocked, lock_soon};
use crate::source::Source;

/// What a process asks its local service for (the control path). Implemented by the attach protocol's client, and by
/// stand-ins in tests.
pub trait LocalService: Send + Sync {
    /// A file of the region other than the first, as this process may use it.
    ///
    /// # Errors
    /// [`Error::NoFile`]; [`Error::Service`] when the service is gone.
    fn file(&self, index: u32) -> Result<OwnedFd> {
        Err(Error::NoFile { file: index, reason: "this service has only the first" })
    }

    /// A further zeroed extent of at least `bytes`.
    ///
    /// # Errors
    /// [`Error::Full`], or [`Error::Service`] when the service is gone.
    fn grow(&self, bytes: u64) -> Result<Extent>;

    /// Publishes an endpoint whose block is written; gives its slot in the peer's table and its incarnation.
    ///
    /// # Errors
    /// [`Error::Full`], or [`Error::Service`] when the service is gone.
    fn open_endpoint(&self, block: u64) -> Result<(u32, u64)>;

    /// Publishes that an endpoint is gone.
    ///
    /// # Errors
    /// [`Error::Service`] when the service is gone or knows no such endpoint.
    fn close_endpoint(&self, slot: u32) -> Result<()>;

    /// Whether the service has gone, or ended this process's attachment: nothing can be asked of it any more.
    fn has_ended(&self) -> bool {
        false
    }

    /// Has the endpoint with this global slot woken, wherever it is. Says nothing of whether that came about: a
    /// sleeper wakes by itself now and then.
    fn wake(&self, slot: GlobalSlot) {
        let _ = slot;
    }

    /// A descriptor that becomes readable when the own endpoint in `slot` is to be woken; [`crate::doorbell::drain`] empties it.
    ///
    /// # Errors
    /// [`Error::Service`] when the service is gone, or has none.
    fn bell(&self, slot: u32) -> Result<OwnedFd> {
        let _ = slot;
        Err(Error::Service { action: "give a bell", reason: "this service has none".into() })
    }

    /// A pidfd of the process that has the endpoint in `slot` of the own peer, in this life of the endpoint; none if this
    /// process may have none.
    ///
    /// # Errors
    /// [`Error::Service`] when the service is gone, does not answer soon, or tells of no process.
    fn process(&self, slot: u32, incarnation: u64) -> Result<Option<OwnedFd>> {
        let _ = (slot, incarnation);
        Err(Error::Service { action: "tell of a process", reason: "this service does not".into() })
    }

    /// Makes a named object, or opens it if it is there and that will do.
    ///
    /// # Errors
    /// [`Error::Object`]; [`Error::Service`] when the service is gone, or has no names.
    fn create_object(&self, new: &NewObject) -> Result<ObjectGrant> {
        let _ = new;
        Err(no_names())
    }

    /// Opens a named object.
    ///
    /// # Errors
    /// As [`LocalService::create_object`].
    fn open_object(&self, kind: Kind, name: &str, access: Access) -> Result<ObjectGrant> {
        let _ = (kind, name, access);
        Err(no_names())
    }

    /// Says that this process no longer uses an object that it has opened; once for each time.
    ///
    /// # Errors
    /// As [`LocalService::create_object`].
    fn close_object(&self, index: u32, incarnation: u64) -> Result<()> {
        let _ = (index, incarnation);
        Err(no_names())
    }

    /// Makes an object smaller; gives what is left of it.
    ///
    /// # Errors
    /// As [`LocalService::create_object`].
    fn shrink_object(&self, index: u32, incarnation: u64, len: u64) -> Result<u64> {
        let _ = (index, incarnation, len);
        Err(no_names())
    }

    /// Takes a name away. The object ends with the last process that has it open.
    ///
    /// # Errors
    /// As [`LocalService::create_object`].
    fn unlink_object(&self, kind: Kind, name: &str) -> Result<()> {
        let _ = (kind, name);
        Err(no_names())
    }

    /// Opens an object by its place: System V IPC knows objects by that, also once their names are gone.
    ///
    /// # Errors
    /// As [`LocalService::create_object`].
    fn hold_object(&self, index: u32, incarnation: u64) -> Result<ObjectGrant> {
        let _ = (index, incarnation);
        Err(no_names())
    }

    /// Closes an object once, without waiting for the service to do so.
    fn release_object(&self, index: u32, incarnation: u64) {
        let _ = (index, incarnation);
    }

    /// As [`LocalService::hold_object`], once, for a process that has said so in the object (`segment::enter`): does not wait for the
    /// service. Gives whether the service was told.
    fn enter_object(&self, index: u32, incarnation: u64) -> bool {
        let _ = (index, incarnation);
        false
    }

    /// As [`LocalService::remove_object`], of an object that bears its removal itself: does not wait for the service.
    fn removed_object(&self, index: u32, incarnation: u64) {
        let _ = (index, incarnation);
    }

    /// Changes owner, mode and size of an object of System V IPC.
    ///
    /// # Errors
    /// As [`LocalService::create_object`].
    fn change_object(&self, index: u32, incarnation: u64, change: &Change) -> Result<()> {
        let _ = (index, incarnation, change);
        Err(no_names())
    }

    /// Limits an object of System V IPC to processes of some systems, or takes that back.
    ///
    /// # Errors
    /// As [`LocalService::create_object`].
    fn share_object(&self, index: u32, incarnation: u64, sharing: &Sharing) -> Result<()> {
        let _ = (index, incarnation, sharing);
        Err(no_names())
    }

    /// Takes the name of an object of System V IPC away, by its place.
    ///
    /// # Errors
    /// As [`LocalService::create_object`].
    fn remove_object(&self, index: u32, incarnation: u64) -> Result<()> {
        let _ = (index, incarnation);
        Err(no_names())
    }

    /// Has the services notice all deaths that have happened by now in this system, before this returns.
    ///
    /// # Errors
    /// [`Error::Service`].
    fn settle(&self) -> Result<()> {
        Err(no_names())
    }

    /// A descriptor that becomes readable when a process rings at `place`, a place of the region as a word;
    /// [`crate::doorbell::drain`] empties it. Waits no longer than `patience` for the service; one that answers later gives it to one
    /// that asks then.
    ///
    /// # Errors
    /// [`Error::Service`] when the service is gone, does not answer soon, or has none.
    fn watch(&self, place: u64, patience: Duration) -> Result<Kept> {
        let _ = (place, patience);
        Err(Error::Service { action: "give a bell", reason: "this service has none".into() })
    }

    /// Has the waiters at `place`, an offset in the region, woken in the peers that the bits name
    /// ([`isthmus_lockfree::gate::bit`]). Says nothing of whether that came about.
    fn ring(&self, peers: u64, place: u64) {
        let _ = (peers, place);
    }

    /// Has pages of this process's own memory granted ([`crate::grants`]): from an address on that is a multiple of a page. Gives of each
    /// whether it is, and how the grant table knows it.
    ///
    /// # Errors
    /// [`Error::Service`] where this process may grant none.
    fn grant(&self, address: u64, into: &mut [Option<Granted>]) -> Result<Outcome> {
        let _ = (address, into);
        Err(no_grants("this service has no driver"))
    }

    /// The same of pages that others may write to: whatever the process does with their addresses, they are nobody else's until
    /// [`LocalService::release_kept`], or until the process is gone and nobody holds its area ([`crate::holds`]).
    ///
    /// # Errors
    /// As [`LocalService::grant`].
    fn keep(&self, address: u64, into: &mut [Option<Granted>]) -> Result<Outcome> {
        let _ = (address, into);
        Err(no_grants("this service has no driver"))
    }

    /// Nobody writes any more to these pages that were kept.
    fn release_kept(&self, pages: &[Granted]) {
        let _ = pages;
    }

    /// Takes pages back that were granted, those that can be.
    ///
    /// # Errors
    /// As [`LocalService::grant`].
    fn revoke(&self, address: u64, count: u32) -> Result<usize> {
        let _ = (address, count);
        Err(no_grants("this service has no driver"))
    }

    /// Whether the service keeps memory that this process had before it executed its program.
    fn has_former(&self) -> bool {
        false
    }

    /// Takes that memory back, and what was open in its name is closed: the process has taken over what was to stay.
    ///
    /// # Errors
    /// [`Error::Service`] when the service is gone.
    fn forget_former(&self) -> Result<()> {
        Ok(())
    }

    /// In a forked child, closes what it has of its parent's connection.
    fn abandon(&self) {}
}

/// Bells for places at which nobody sleeps just now: the last few that served, each with what it is kept by.
#[derive(Debug)]
struct Watches(VecDeque<(u64, Kept)>);

impl Watches {
    /// Each is a descriptor here and one of the service, which gives a process 256, and takes back those that are closed here.
    const MOST: usize = 192;

    /// With room for all: nothing is allocated where the handler of a signal may come in between.
    fn new() -> Self {
        Self(VecDeque::with_capacity(Self::MOST))
    }

    fn take(&mut self, by: u64) -> Option<Kept> {
        let at = self.0.iter().rposition(|(kept_by, _)| *kept_by == by)?;
        self.0.remove(at).map(|(_, watch)| watch)
    }

    /// Gives the one that goes for it, if there are too many.
    fn leave(&mut self, by: u64, watch: Kept) -> Option<Kept> {
        let oldest = if self.0.len() >= Self::MOST { self.0.pop_front() } else { None };
        self.0.push_back((by, watch));
        oldest.map(|(_, watch)| watch)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why no page is granted.
pub fn no_grants(reason: &str) -> Error {
    Error::Service { action: "grant pages", reason: reason.into() }
}

fn no_names() -> Error {
    Error::Service { action: "look after named objects", reason: "this service has none".into() }
}

/// The files of a region as a process's local service gives them, as long as the process is attached.
struct Served {
    service: Weak<dyn LocalService>,
    bytes: u64,
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Served").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Source for Served {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn file(&self, index: u32) -> Result<OwnedFd> {
        // Weak, since views of a region may outlive the attachment, which ends with its last member.
        let service = self.service.upgrade();
        service.ok_or(Error::NoFile { file: index, reason: "this process has detached" })?.file(index)
    }
}

/// Most bytes of the pieces that the long messages of a process lie in.
pub const MOST_PIECE_BYTES: u64 = 4 << 20;
/// How long [`Member::take_unless_refused`] asks a service for nothing that had no more, or did not answer.
const FULL_PAUSE: Duration = Duration::from_millis(5);
const SILENT_PAUSE: Duration = Duration::from_secs(1);

/// How long a thread that is about to sleep waits for a bell of its service, which mostly answers in a tenth of a millisecond.
const WATCH_PATIENCE: Duration = Duration::from_millis(5);

/// An attached process.
pub struct Member {
    region: Region,
    peer: u32,
    incarnation: u64,
    system: SystemId,
    section: Section,
    own: OwnDirectory,
    grant: AreaGrant,
    area: Mutex<Area>,
    /// Bytes of the area in which long messages' pieces lie.
    piece_bytes: Count,
    /// Until when what can do without is not asked for, since the service has refused, and of how many bytes on.
    refused_until: Mutex<Option<(Instant, u64)>>,
    pool: Mutex<Pool>,
    counters: Counters,
    service: Arc<dyn LocalService>,
    directories: Mutex<HashMap<u32, (u64, Directory)>>,
    /// Bells for places of the region at which no thread waits now. Objects come and go, and their places come back.
    watches: Mutex<Watches>,
    /// Bells by which processes of the own peer ring this one's threads.
    near: Bells,
    /// Processes of the own peer from which this one may copy.
    processes: Processes,
    /// How many registrations keep which pages.
    keepers: Mutex<Keepers>,
    doorbell: Doorbell,
    processors: u64,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").field("peer", &self.peer).field("grant", &self.grant).finish_non_exhaustive()
    }
}

impl Member {
    /// A process in the place that its service granted: area `grant` of peer `peer`.
    ///
    /// # Errors
    /// Whatever is wrong with the region, or [`Error::NoPeer`] when the peer is not active.
    pub fn new(
        map: &Arc<Mapping>,
        peer: u32,
        grant: AreaGrant,
        service: Box<dyn LocalService>,
    ) -> Result<Arc<Self>> {
        Self::with_doorbell(map, peer, grant, service, None)
    }

    /// As [`Member::new`], with a doorbell of the caller's choice: [`Doorbell::Service`] works wherever the service rings.
    ///
    /// # Errors
    /// As [`Member::new`].
    pub fn with_doorbell(
        map: &Arc<Mapping>,
        peer: u32,
        grant: AreaGrant,
        service: Box<dyn LocalService>,
        doorbell: Option<Doorbell>,
    ) -> Result<Arc<Self>> {
        crate::wake::find_clocks();
        let service: Arc<dyn LocalService> = service.into();
        let region = Region::open_from(
            map,
            Some(Arc::new(Served { service: Arc::downgrade(&service), bytes: map.len() })),
        )?;
        let info = region.peer(peer)?.ok_or(Error::NoPeer { peer })?;
        let section = region.own_section(&info)?;
        let counters = Counters::at(&section, grant.first.offset)?;
        section.part("first extent", grant.first.offset, grant.first.bytes)?;
        let area = Mutex::new(Area::new(grant.first));
        let incarnation = info.life.incarnation;
        let directories = Mutex::default();
        let own = OwnDirectory::open(&section, region.shape(), incarnation)?;
        let word = section.read("directory", directory::HEAP_BYTES)?;
        // Others ring a VM by its driver or its agent, also where its memory has futexes, as that of a memory device has.
        let doorbell = doorbell.unwrap_or_else(|| match (info.is_vm, own.vectors()) {
            (false, _) => Doorbell::of(word),
            (true, 0) => Doorbell::Service,
            (true, _) => Doorbell::Interrupt,
        });
        let uuid = region.shape().uuid;
        Ok(Arc::new(Self {
            region,
            peer,
            incarnation,
            system: info.system,
            section,
            own,
            grant,
            area,
            piece_bytes: Count::new(0),
            refused_until: Mutex::default(),
            pool: Mutex::default(),
            counters,
            service,
            directories,
            watches: Mutex::new(Watches::new()),
            near: Bells::new(Party::new(peer, grant.area, grant.incarnation), uuid),
            processes: Processes::default(),
            keepers: Mutex::default(),
            doorbell,
            processors: online_processors(),
        }))
    }

    /// The region.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Index of the own peer.
    pub fn peer(&self) -> u32 {
        self.peer
    }

    /// The own peer's incarnation.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The own system.
    pub fn system(&self) -> SystemId {
        self.system
    }

    /// The address of an endpoint of the own peer, which is open.
    ///
    /// # Errors
    /// [`Error::Invalid`] beyond the table.
    pub fn address(&self, number: u32) -> Result<Address> {
        Ok(Address { system: self.system, number, birth: self.own.endpoint(number)?.birth })
    }

    /// The own peer's section.
    pub fn section(&self) -> &Section {
        &self.section
    }

    /// The place in the area table.
    pub fn grant(&self) -> AreaGrant {
        self.grant
    }

    /// This process, as words of shared memory name it.
    pub fn party(&self) -> Party {
        Party::new(self.peer, self.grant.area, self.grant.incarnation)
    }

    /// Whether a process lives, as far as the services have published: also one that its service has dropped, as long as it
    /// may still be at what it was at.
    pub fn is_alive(&self, party: Party) -> bool {
        party.may_write(&self.region)
    }

    /// Retires the region's memory in this process if the process's place there is no more: its peer is dead or lives anew, so that
    /// others get that memory, or the device is unplugged. The end of a service alone is no reason: the memory stays as it is.
    /// Gives whether the place is no more. To be called whenever the region's generation has changed; what is read after that
    /// is nobody's.
    pub fn retire_if_over(&self) -> bool {
        let life = self.region.life_line(self.peer).map(|line| Life::unpack(line.words[0].get()));
        if life.is_ok_and(|life| life.is_active(self.incarnation)) {
            return false;
        }
        // If the system has no pages for that, the next change of the generation is another occasion.
        let _ = self.region.retire();
        true
    }

    /// To be called in a forked child, which can use nothing of this: closes the descriptors that it inherited, so that a chain of
    /// children does not collect them. Does nothing in the process that attached.
    pub fn abandon(&self) {
        self.service.abandon();
        self.region.abandon();
        self.near.abandon();
        // A thread of the parent may have had it locked.
        if let Ok(mut watches) = self.watches.try_lock() {
            watches.0.clear();
        }
    }

    /// The process's counters. Several endpoints of a process add to them from several threads: such sums may lose
    /// an increment; each endpoint therefore keeps its own and writes the sum under its lock.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How threads of this process sleep.
    pub fn doorbell(&self) -> Doorbell {
        self.doorbell
    }

    /// Bells by which processes of the own peer ring this one's threads.
    pub(crate) fn near(&self) -> &Bells {
        &self.near
    }

    /// A bell for a place of the region, for one thread at a time: one that was left here, or a new one. For that a thread which is to
    /// sleep for `limit` waits a few milliseconds at most: meanwhile it hears neither signals nor who rings it without the service.
    pub(crate) fn take_watch(&self, place: u64, limit: Duration) -> Option<Kept> {
        let left = lock_soon(&self.watches).and_then(|mut watches| watches.take(self.watch_of(place)));
        // The program may have closed all that it did not open.
        left.filter(Kept::is_there).or_else(|| {
            // A handler of a signal would wait for the answer to this thread's own request.
            let _blocked = Blocked::new();
            self.service.watch(place, limit.min(WATCH_PATIENCE)).ok()
        })
    }

    pub(crate) fn leave_watch(&self, place: u64, watch: Kept) {
        let too_many = match lock_soon(&self.watches) {
            Some(mut watches) => watches.leave(self.watch_of(place), watch),
            None => Some(watch),
        };
        drop(too_many);
    }

    /// What a bell for a place is kept by: the guest driver's is that of all places of a vector.
    fn watch_of(&self, place: u64) -> u64 {
        match (self.doorbell, self.own.vectors()) {
            (Doorbell::Interrupt, vectors @ 2..) => driver::vector_of_place(place, vectors).into(),
            _ => place,
        }
    }

    /// Processors of this system, also those that this very process may not use; none if that cannot be found out.
    pub fn processors(&self) -> Option<u64> {
        Some(self.processors).filter(|count| *count > 0)
    }

    /// Has pages of this process's own memory granted, from an address on that is a multiple of a page: moved, with their contents and
    /// for all threads, to where all members of the region can read them ([`crate::grants`]). Gives of each whether it is, and how the
    /// grant table knows it.
    ///
    /// # Errors
    /// As [`LocalService::grant`].
    pub fn grant_pages(&self, address: u64, into: &mut [Option<Granted>]) -> Result<Outcome> {
        self.service.grant(address, into)
    }

    /// As [`LocalService::keep`], for one of the process's registrations, of which several may have the same page.
    ///
    /// # Errors
    /// As [`LocalService::grant`].
    pub fn keep_pages(
        &self,
        address: u64,
        into: &mut [Option<Granted>],
        kept: &mut KeptPages,
    ) -> Result<Outcome> {
        // Held so that no page is let go between.
        let mut keepers = lock(&self.keepers);
        let outcome = self.service.keep(address, into)?;
        into.iter().flatten().filter(|page| kept.add(**page)).for_each(|page| keepers.add(*page));
        Ok(outcome)
    }

    /// Nobody writes any more to what was kept for a registration; what is kept for others, too, stays.
    pub fn release_kept(&self, kept: KeptPages) {
        let mut keepers = lock(&self.keepers);
        let last: Vec<Granted> = kept.into_pages().filter(|page| keepers.remove(*page)).collect();
        self.service.release_kept(&last);
    }

    /// Takes pages back that were granted, those that can be.
    ///
    /// # Errors
    /// As [`LocalService::grant`].
    pub fn revoke_pages(&self, address: u64, count: u32) -> Result<usize> {
        self.service.revoke(address, count)
    }

    /// Whether processes of the own peer may copy from each other's memory, as far as the region goes: not where each is to be
    /// kept from what the others have, in a section of its own.
    pub fn may_attach(&self) -> bool {
        self.region.peer(self.peer).ok().flatten().is_some_and(|own| own.file == 0)
    }

    /// The process that has the endpoint in `slot` of the own peer, in this life of the endpoint; none if this process cannot
    /// have it, or has as many as it may.
    ///
    /// # Errors
    /// As [`LocalService::process`].
    pub fn process_of(&self, slot: u32, incarnation: u64) -> Result<Option<Arc<Process>>> {
        Ok(self.service.process(slot, incarnation)?.and_then(|pidfd| self.processes.add(pidfd)))
    }

    /// The local service.
    pub fn service(&self) -> &dyn LocalService {
        &*self.service
    }

    /// Takes `bytes` of the area, asking the service for more where needed.
    ///
    /// # Errors
    /// [`Error::Full`] when the section is full; [`Error::Service`].
    pub fn take(&self, bytes: u64) -> Result<u64> {
        let mut area = lock(&self.area);
        match area.take(bytes) {
            Err(Error::Full { .. }) => {}
            other => return other,
        }
        // Ask for a quarter of what there is already, within reason, so that asking stays rare and little of it stays unused.
        let wish = bytes.next_power_of_two().max((area.bytes() / 4).min(1 << 20)).max(64 << 10);
        let extent = self.grow(wish, bytes.next_power_of_two()).inspect_err(|e| {
            let pause = if matches!(e, Error::Full { .. }) { FULL_PAUSE } else { SILENT_PAUSE };
            // A smaller one may be there.
            let refused = if matches!(e, Error::Full { .. }) { bytes.next_power_of_two() } else { 0 };
            *lock(&self.refused_until) = Some((Instant::now() + pause, refused));
        })?;
        self.section.part("extent", extent.offset, extent.bytes)?;
        area.add(extent);
        area.take(bytes)
    }

    /// More memory of the service: `wish` bytes, or `least` where there are no more.
    fn grow(&self, wish: u64, least: u64) -> Result<Extent> {
        match self.service.grow(wish) {
            // A service that does not answer would have the caller wait once more.
            Err(Error::Full { .. }) if wish > least => self.service.grow(least),
            other => other,
        }
    }

    /// As [`Member::take`], for what can do without: while the service has refused as much just now, it is not asked again.
    ///
    /// # Errors
    /// As [`Member::take`].
    pub fn take_unless_refused(&self, bytes: u64) -> Result<u64> {
        if let Ok(at) = lock(&self.area).take(bytes) {
            return Ok(at);
        }
        let is_refused = |(until, refused): (Instant, u64)| bytes >= refused && Instant::now() < until;
        if lock(&self.refused_until).is_some_and(is_refused) {
            return Err(Error::Full { bytes });
        }
        self.take(bytes)
    }

    /// Gives back what [`Member::take`] gave for `bytes`.
    pub fn give(&self, at: u64, bytes: u64) {
        lock(&self.area).give(at, bytes);
    }

    /// As [`Member::take_unless_refused`], for a piece of a long message, in shared memory for as long as such messages are under way.
    ///
    /// # Errors
    /// As [`Member::take_unless_refused`]; [`Error::Full`] where the process's pieces together would have more than [`MOST_PIECE_BYTES`].
    pub fn take_piece(&self, bytes: u64) -> Result<u64> {
        let there = self.piece_bytes.add(bytes);
        let taken = match there.saturating_add(bytes) <= MOST_PIECE_BYTES {
            true => self.take_unless_refused(bytes),
            false => Err(Error::Full { bytes }),
        };
        taken.inspect_err(|_| _ = self.piece_bytes.sub(bytes))
    }

    /// Gives back what [`Member::take_piece`] gave for `bytes`.
    pub fn give_piece(&self, at: u64, bytes: u64) {
        self.give(at, bytes);
        self.piece_bytes.sub(bytes);
    }

    /// Bytes of the pieces that this process has.
    pub fn piece_bytes(&self) -> u64 {
        self.piece_bytes.get()
    }

    /// Takes `bytes` of the region for the program itself, at a multiple of `align` (a power of two, at most 4096). Gives
    /// the offset in the section. Nothing is said of what they hold.
    ///
    /// # Errors
    /// [`Error::Full`] when the section is full; [`Error::Service`]; [`Error::Invalid`] for an alignment that is none.
    pub fn allocate(&self, bytes: u64, align: u64) -> Result<u64> {
        self.allocate_within(bytes, align, 0, u64::MAX)
    }

    /// As [`Member::allocate`], with at most `most` bytes that the service has granted for the program altogether, and in pieces of at
    /// least `piece` as long as there are so many.
    ///
    /// # Errors
    /// As [`Member::allocate`]; [`Error::Full`] beyond `most`.
    pub fn allocate_within(&self, bytes: u64, align: u64, piece: u64, most: u64) -> Result<u64> {
        if !align.is_power_of_two() || align > 4096 {
            return Err(Error::Invalid { what: "alignment", value: align });
        }
        let mut pool = lock(&self.pool);
        if let Some(at) = pool.take(bytes, align) {
            return Ok(at);
        }
        // Extents are aligned to less than a page.
        let wish = Pool::rounded(bytes).and_then(|b| b.checked_add(align)).ok_or(Error::Full { bytes })?;
        let left = most.saturating_sub(pool.granted());
        if wish > left {
            return Err(Error::Full { bytes });
        }
        let extent = match wish.max(piece).min(left) {
            more if more > wish => self.grow(more, wish),
            _ => self.grow(wish, wish),
        }?;
        self.section.part("extent", extent.offset, extent.bytes)?;
        pool.add(extent);
        pool.take(bytes, align).ok_or(Error::Full { bytes })
    }

    /// Gives back what [`Member::allocate`] gave for `bytes`.
    pub fn release(&self, at: u64, bytes: u64) {
        let bytes = Pool::rounded(bytes).unwrap_or(0);
        let mut pool = lock(&self.pool);
        pool.give(Extent { offset: at, bytes });
    }

    /// The own peer's directory, with the words that its processes write.
    pub fn own(&self) -> &OwnDirectory {
        &self.own
    }

    /// The directory of an active peer; kept, and opened anew for a new incarnation.
    ///
    /// # Errors
    /// [`Error::NoPeer`] when the peer is not active; what is wrong with its directory.
    pub fn directory(&self, peer: u32) -> Result<(u64, Directory)> {
        let info = self.region.peer(peer)?.ok_or(Error::NoPeer { peer })?;
        if info.life.state != State::Active {
            return Err(Error::NoPeer { peer });
        }
        let mut known = lock(&self.directories);
        if let Some((incarnation, directory)) = known.get(&peer)
            && *incarnation == info.life.incarnation
        {
            return Ok((*incarnation, directory.clone()));
        }
        let directory =
            Directory::open(&self.region.section(&info)?, self.region.shape(), info.life.incarnation)?;
        known.insert(peer, (info.life.incarnation, directory.clone()));
        Ok((info.life.incarnation, directory))
    }

    /// The index and the directory of the peer that a system is now.
    ///
    /// # Errors
    /// [`Error::NoSystem`] when no peer is or was it last; as [`Member::directory`].
    pub fn directory_of(&self, system: SystemId) -> Result<(u32, Directory)> {
        let peer = self.region.find(system).ok_or(Error::NoSystem { system })?;
        let (incarnation, directory) = self.directory(peer)?;
        // Another system may have taken the place meanwhile, and its endpoints may have the same numbers and births.
        let there = self.region.peer(peer)?.filter(|p| p.system == system && p.life.is_active(incarnation));
        there.map(|_| (peer, directory)).ok_or(Error::NoPeer { peer })
    }
}
