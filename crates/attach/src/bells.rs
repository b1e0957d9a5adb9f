//! Wakes the sleepers of a service's peer. All threads of the service share it: the thread that receives a wake-up
//! rings at once, without waking another thread first.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use isthmus_region::LINE_BYTES;
use isthmus_region::directory::{OwnDirectory, Writer};
use isthmus_region::doorbell::{Doorbell, ring};
use isthmus_region::driver::{Driver, vector_of_place, vector_of_slot};
use isthmus_region::life::State;
use isthmus_region::membership::Region;
use isthmus_region::place::Place;
use rustix::event::{PollFd, PollFlags, Timespec};

/// Most bells of one endpoint. A process needs one; several of its threads may ask at once.
const MOST_OF_ONE: usize = 8;

/// A client's number.
type Key = u64;

#[derive(Debug, Default)]
struct Table {
    /// Bells of endpoints that asked for one, by slot: the last few of each.
    endpoints: HashMap<u32, Vec<(Key, OwnedFd)>>,
    /// Bells for places of the region, one for each thread that has waited there.
    places: HashMap<u64, Vec<(Key, OwnedFd)>>,
}

/// The futexes and bells of a peer's sleepers.
#[derive(Debug)]
pub(crate) struct Bells {
    directory: OwnDirectory,
    region: Region,
    /// How processes of this peer sleep, unless they ask for a bell.
    doorbell: Doorbell,
    /// What rings them where they have descriptors of its own.
    driver: Option<Arc<Driver>>,
    table: Mutex<Table>,
}

impl Bells {
    pub(crate) fn new(writer: &Writer, driver: Option<Arc<Driver>>) -> Self {
        let word = writer.directory().wake_line(0);
        Self {
            doorbell: word.map_or(Doorbell::Service, |line| Doorbell::of(&line.words[0])),
            region: writer.region().clone(),
            directory: writer.directory().clone(),
            driver: driver.filter(|driver| driver.vectors() > 0),
            table: Mutex::default(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a gate can be at `place`.
    pub(crate) fn is_place(&self, place: u64) -> bool {
        let (line, place) = (LINE_BYTES as u64, Place::from_word(place));
        place.offset().is_multiple_of(line) && self.region.at("gate", place, line).is_ok()
    }

    /// Wakes the endpoint in that slot of the peer's table, by its futex and its bells.
    pub(crate) fn wake(&self, slot: u32) {
        if let Ok(line) = self.directory.wake_line(slot) {
            self.doorbell.ring_endpoint(&line.words[0]);
        }
        for (_, bell) in self.table().endpoints.get(&slot).into_iter().flatten() {
            ring(bell);
        }
        if let Some(driver) = &self.driver {
            driver.ring_own(vector_of_slot(slot, driver.vectors()));
        }
    }

    /// Wakes the endpoints of these slots.
    pub(crate) fn wake_those(&self, is_one: impl Fn(u32) -> bool) {
        let is_active =
            |slot: u32| self.directory.endpoint(slot).is_ok_and(|info| info.life.state == State::Active);
        let high = self.directory.endpoints_high();
        (0..high).filter(|slot| is_one(*slot) && is_active(*slot)).for_each(|slot| self.wake(slot));
    }

    /// The driver's descriptor for an endpoint; none if there is no driver.
    pub(crate) fn of_endpoint(&self, slot: u32) -> Option<rustix::io::Result<OwnedFd>> {
        self.driver.as_ref().map(|driver| driver.bell(vector_of_slot(slot, driver.vectors())))
    }

    /// The same for a place.
    pub(crate) fn of_place(&self, place: u64) -> Option<rustix::io::Result<OwnedFd>> {
        self.driver.as_ref().map(|driver| driver.bell(vector_of_place(place, driver.vectors())))
    }

    /// Wakes the waiters of this peer at a place, by their futex and their bells.
    pub(crate) fn ring(&self, place: u64) {
        if let Ok(line) = self.region.at("gate", Place::from_word(place), LINE_BYTES as u64)
            && let Ok(word) = line.word("gate", 0)
        {
            self.doorbell.ring(word, u32::MAX);
        }
        for (_, bell) in self.table().places.get(&place).into_iter().flatten() {
            ring(bell);
        }
        if let Some(driver) = &self.driver {
            driver.ring_own(vector_of_place(place, driver.vectors()));
        }
    }

    /// Wakes the sleepers of this peer, whatever they wait for: a process or a peer is gone, here or elsewhere, and that is
    /// published. Deaths are few, so all endpoints are rung: a context sleeps in more words than one.
    pub(crate) fn death(&self) {
        self.directory.count_death();
        for slot in 0..self.directory.endpoints_high() {
            if self.directory.endpoint(slot).is_ok_and(|info| info.life.state == State::Active) {
                self.wake(slot);
            }
        }
        for (_, bell) in self.table().places.values().flatten() {
            ring(bell);
        }
        if let Some(driver) = &self.driver {
            (1..driver.vectors()).for_each(|vector| driver.ring_own(vector));
        }
    }

    pub(crate) fn add_endpoint(&self, slot: u32, key: Key, bell: OwnedFd) {
        let mut table = self.table();
        let bells = table.endpoints.entry(slot).or_default();
        // Those of another client are of the endpoint that had the slot before.
        bells.retain(|(owner, _)| *owner == key);
        if bells.len() == MOST_OF_ONE {
            bells.remove(0);
        }
        bells.push((key, bell));
    }

    pub(crate) fn remove_endpoint(&self, slot: u32) {
        self.table().endpoints.remove(&slot);
    }

    pub(crate) fn add_place(&self, place: u64, key: Key, bell: OwnedFd) {
        self.table().places.entry(place).or_default().push((key, bell));
    }

    /// How many bells for places a client has.
    pub(crate) fn places_of(&self, key: Key) -> usize {
        self.table().places.values().flatten().filter(|(owner, _)| *owner == key).count()
    }

    /// Removes a client's bells for places whose other end it has closed.
    pub(crate) fn forget_closed(&self, key: Key) {
        let is_closed = |bell: &OwnedFd| {
            let mut poll = [PollFd::new(bell, PollFlags::empty())];
            let looked = rustix::event::poll(&mut poll, Some(&Timespec::default()));
            looked.is_ok() && poll[0].revents().contains(PollFlags::ERR)
        };
        self.table().places.retain(|_, bells| {
            bells.retain(|(owner, bell)| *owner != key || !is_closed(bell));
            !bells.is_empty()
        });
    }

    /// Removes all bells of a client that is gone.
    pub(crate) fn forget(&self, key: Key) {
        let mut table = self.table();
        table.endpoints.retain(|_, bells| {
            bells.retain(|(owner, _)| *owner != key);
            !bells.is_empty()
        });
        table.places.retain(|_, bells| {
            bells.retain(|(owner, _)| *owner != key);
            !bells.is_empty()
        });
    }
}

/// Gives the calling thread the highest priority, where that is allowed, since processes sleep until it has passed on
/// their wake-ups. Threads and processes that it starts inherit the priority.
pub fn be_urgent() {
    let _ = rustix::process::setpriority_process(None, -20);
}
