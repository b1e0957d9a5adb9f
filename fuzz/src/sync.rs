// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Barriers, locks, semaphores and the like, any word of which anybody may have written at any moment.

use std::sync::Arc;
use std::time::Duration;

use isthmus_region::Section;
use isthmus_region::member::Member;
use isthmus_region::party::Party;
use isthmus_sync::barrier::{Algorithm, Barrier, Parameters, Seat};
use isthmus_sync::once::Begun;
use isthmus_sync::{Condvar, Mutex, Once, RwLock, Semaphore, Waiting};

use crate::input::Input;
use crate::world::{World, fresh};

/// How long anything is waited for.
const SOON: Duration = Duration::from_micros(100);
const PAGE: u64 = 4096;
/// Where each object begins in its page, and what is theirs of it.
const RWLOCK: u64 = 1024;
const MUTEX: u64 = 2048;
const SEMAPHORE: u64 = MUTEX + 64;
const CONDVAR: u64 = SEMAPHORE + 64;
const ONCE: u64 = CONDVAR + 64;
const END: u64 = ONCE + 64;
/// The word of a reader-writer lock by which a living process keeps others from opening it: they wait for that one.
const CLAIMER: u64 = RWLOCK + 64 + 8;
const READERS: u32 = 4;

/// A page that may be written, between two of which nobody is to write anything.
pub(crate) struct Guarded {
    around: Section,
    bytes: u64,
}

impl Guarded {
    const MARK: u64 = 0x5a5a_a5a5_5a5a_a5a5;

    /// Somewhere in the section of one of the members; all is zero inside.
    pub(crate) fn new(world: &World, bytes: u64) -> Self {
        let bytes = bytes.next_multiple_of(PAGE);
        let at = world.members[2].allocate(bytes + 2 * PAGE, PAGE).expect("there is room");
        let around = world.members[2].section().part("guarded", at, bytes + 2 * PAGE).expect("inside");
        let this = Self { around, bytes };
        this.marks().for_each(|at| this.around.word("mark", at).expect("inside").put(Self::MARK));
        this.zero();
        this
    }

    fn marks(&self) -> impl Iterator<Item = u64> + use<> {
        let behind = PAGE + self.bytes;
        (0..PAGE).chain(behind..behind + PAGE).step_by(8)
    }

    pub(crate) fn zero(&self) {
        self.around.zero("inside", PAGE, self.bytes).expect("inside");
    }

    pub(crate) fn part(&self, at: u64, bytes: u64) -> Section {
        self.around.part("object", PAGE + at, bytes).expect("inside")
    }

    /// Writes a word.
    pub(crate) fn set(&self, at: u64, value: u64) {
        self.part(0, self.bytes).word("any", at).expect("inside").set(value);
    }

    pub(crate) fn assert_untouched(&self) {
        let is_marked = |at| self.around.word("mark", at).expect("inside").get() == Self::MARK;
        assert!(self.marks().all(is_marked), "memory beside the objects was written");
    }
}

/// A word that names a process which lives, or one that does not, or anything.
pub(crate) fn word(world: &World, input: &mut Input<'_>) -> u64 {
    let party = world.members[usize::from(input.below(2))].party();
    match input.below(4) {
        0 => party.word(),
        1 => Party::new(party.peer(), party.area(), (1 << 33) | u64::from(input.byte())).word(),
        _ => input.number(),
    }
}

/// What one process has open.
struct User {
    member: Arc<Member>,
    barrier: Option<Barrier>,
    seats: Vec<Seat>,
    mutex: Mutex,
    rwlock: Option<RwLock>,
    semaphore: Semaphore,
    condvar: Condvar,
    once: Once,
}

impl User {
    fn new(world: &World, index: usize, page: &Guarded, parameters: Parameters) -> Self {
        let member = &world.members[index];
        Self {
            member: Arc::clone(member),
            barrier: Barrier::open(member, &page.part(0, parameters.bytes()), parameters).ok(),
            seats: Vec::new(),
            mutex: Mutex::open(member, &page.part(MUTEX, 64)).expect("a line"),
            rwlock: None,
            semaphore: Semaphore::open(member, &page.part(SEMAPHORE, 64), 1).expect("a line"),
            condvar: Condvar::open(member, &page.part(CONDVAR, 64)).expect("a line"),
            once: Once::open(member, &page.part(ONCE, 64)).expect("a line"),
        }
    }

    fn open(&mut self, page: &Guarded, parameters: Parameters) {
        self.barrier = Barrier::open(&self.member, &page.part(0, parameters.bytes()), parameters).ok();
        let lines = page.part(RWLOCK, isthmus_sync::rwlock::bytes(READERS));
        // The one before gives its line back first.
        self.rwlock = None;
        self.rwlock = RwLock::open(&self.member, &lines, READERS).ok();
    }

    /// Something; every answer is allowed that is one. `clean` tells whether nobody wrote into the mutex.
    fn act(&mut self, clean: bool, input: &mut Input<'_>) {
        match input.below(12) {
            0 => self
                .seats
                .extend(self.barrier.as_ref().filter(|_| self.seats.len() < 4).and_then(|b| b.join().ok())),
            1 | 2 => {
                let index = usize::from(input.byte());
                let count = self.seats.len();
                if let Some(seat) = self.seats.get_mut(index % count.max(1)) {
                    let _ = seat.wait_within(SOON);
                }
            }
            3 => drop(self.seats.pop()),
            4 => {
                if let Some(barrier) = &self.barrier {
                    match input.below(4) {
                        0 => barrier.give_up(),
                        _ => drop(barrier.reset()),
                    }
                }
            }
            5 => match self.mutex.lock_within(SOON) {
                Ok(mut guard) => {
                    if guard.owner_died() && input.below(2) == 0 {
                        guard.mend();
                    }
                    if input.below(3) == 0 {
                        guard.keep();
                    }
                }
                Err(_) => drop(self.mutex.unlock()),
            },
            6 => drop(self.mutex.try_lock()),
            7 => match (&self.rwlock, input.below(4)) {
                (Some(lock), 0) => drop(lock.read_within(SOON)),
                (Some(lock), 1) => drop(lock.try_read().map(isthmus_sync::rwlock::ReadGuard::keep)),
                (Some(lock), 2) => drop(lock.unlock()),
                (Some(lock), _) => drop(lock.try_write()),
                (None, _) => {}
            },
            8 => {
                if let Some(Ok(mut guard)) = self.rwlock.as_ref().map(|lock| lock.write_within(SOON))
                    && input.below(2) == 0
                {
                    guard.mend();
                }
            }
            9 => match input.below(3) {
                0 => drop(self.semaphore.post()),
                1 => drop(self.semaphore.wait_within(SOON)),
                _ => drop(self.semaphore.value()),
            },
            10 => match self.once.begin(Some(SOON)) {
                Ok(Begun::Yours(turn)) if input.below(2) == 0 => turn.finish(),
                _ => {}
            },
            _ => {
                self.condvar.notify_all();
                // After the wait the mutex is waited for without a limit.
                if let Ok(guard) = self.mutex.try_lock()
                    && clean
                {
                    drop(self.condvar.wait_within(guard, SOON));
                }
            }
        }
    }
}

/// Two processes that use objects of which somebody overwrites any word.
pub fn sync(data: &[u8]) {
    let world = fresh();
    let mut input = Input(data);
    let page = Guarded::new(&world, PAGE);
    let waiting = [Waiting::Spin, Waiting::Block, Waiting::Hybrid][usize::from(input.below(3))];
    let algorithm = [Algorithm::Auto, Algorithm::Central, Algorithm::Scaling][usize::from(input.below(3))];
    let parameters = Parameters { parties: 1 + u32::from(input.below(9)), waiting, algorithm };
    let mut users = [0, 1].map(|index| User::new(&world, index, &page, parameters));
    users.iter_mut().for_each(|user| user.open(&page, parameters));
    let mut clean = true;
    let mut steps = 0;
    while !input.is_empty() && steps < 48 {
        steps += 1;
        let user = usize::from(input.below(2));
        match input.below(8) {
            0..=2 => {
                let at = match input.below(8) {
                    0 => MUTEX,
                    1 => SEMAPHORE,
                    2 => CONDVAR,
                    3 => ONCE,
                    4 | 5 => RWLOCK + 64 * u64::from(input.below(6)),
                    _ => 64 * u64::from(input.below(16)),
                } + 8 * u64::from(input.below(8));
                let value = word(&world, &mut input);
                let lives = Party::named(value).is_some_and(|party| world.members[0].is_alive(party));
                if at != CLAIMER || !lives {
                    page.set(at % END, value);
                }
                clean &= !(MUTEX..SEMAPHORE).contains(&at);
            }
            3 if input.below(4) == 0 => users[user].open(&page, parameters),
            _ => users[user].act(clean, &mut input),
        }
    }
    drop(users);
    page.assert_untouched();
    // Whatever they were, their memory serves again once it is zeroed.
    page.zero();
    let mut users = [0, 1].map(|index| User::new(&world, index, &page, parameters));
    for user in &mut users {
        user.open(&page, parameters);
        assert!(user.mutex.try_lock().is_ok_and(|guard| !guard.owner_died()), "a fresh mutex is not free");
        assert!(
            user.rwlock.as_ref().is_some_and(|lock| lock.try_write().is_ok()),
            "a fresh lock is not free"
        );
        user.semaphore.post().expect("a fresh semaphore");
        user.seats.push(user.barrier.as_ref().expect("a fresh barrier").join().expect("seats"));
        if parameters.parties == 1 {
            user.seats[0].wait().expect("alone");
            user.seats.clear();
        }
    }
    assert_eq!(users[0].semaphore.value().ok(), Some(3));
}
