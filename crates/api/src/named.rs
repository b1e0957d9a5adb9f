//! Barriers, locks and semaphores, by name.

use std::ops::{Deref, DerefMut};

use isthmus_region::objects::{Kind, NewObject, Object};
use isthmus_sync::barrier::{self, Parameters};
use isthmus_sync::minitransaction::{self, Shape};
use isthmus_sync::{condvar, mutex, once, rwlock, semaphore};

use crate::attachment::Attachment;
use crate::error::{Error, Result};
use crate::space::Space;

/// A name by which a barrier, lock or the like is opened, or made if there is none. All processes must open it with the same
/// parameters.
#[derive(Debug, Clone)]
pub struct Named {
    here: Attachment,
    name: String,
    mode: u32,
    ends_with_creator: bool,
}

/// An object that this process has open; it dereferences to the object itself.
///
/// Its name lasts until it is unlinked ([`Attachment::unlink`]), its memory as long as some process has it open.
#[derive(Debug)]
pub struct Held<T> {
    // Dropped in this order.
    inner: T,
    object: Object,
}

/// A mutex with a name.
pub type Mutex = Held<isthmus_sync::Mutex>;
/// A condition variable with a name.
pub type Condvar = Held<isthmus_sync::Condvar>;
/// A semaphore with a name.
pub type Semaphore = Held<isthmus_sync::Semaphore>;
/// A reader-writer lock with a name.
pub type RwLock = Held<isthmus_sync::RwLock>;
/// Something that is initialised once, with a name.
pub type Once = Held<isthmus_sync::Once>;
/// A barrier with a name.
#[derive(Debug)]
pub struct Barrier(Held<isthmus_sync::Barrier>);

/// Types from which nothing can be had that outlives them: guards borrow them.
pub trait Borrowed {}

impl Borrowed for isthmus_sync::Mutex {}
impl Borrowed for isthmus_sync::Condvar {}
impl Borrowed for isthmus_sync::Semaphore {}
impl Borrowed for isthmus_sync::RwLock {}
impl Borrowed for isthmus_sync::Once {}

impl<T: Borrowed> Deref for Held<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> Held<T> {
    pub(crate) fn get(&self) -> &T {
        &self.inner
    }

    /// Whether this very call made it.
    pub fn is_new(&self) -> bool {
        self.object.is_new()
    }
}

impl Barrier {
    /// Takes a free seat, which keeps the barrier open.
    ///
    /// # Errors
    /// [`Error::Sync`] if living processes have all seats.
    pub fn participate(&self) -> Result<Participant> {
        Ok(Participant { seat: self.0.inner.join()?, _object: self.0.object.clone() })
    }

    /// Whether this very call made it.
    pub fn is_new(&self) -> bool {
        self.0.is_new()
    }

    /// Number of participants.
    pub fn parties(&self) -> u32 {
        self.0.inner.parties()
    }

    /// Whether it is broken.
    pub fn is_broken(&self) -> bool {
        self.0.inner.is_broken()
    }

    /// Breaks it, for all that wait now or later.
    pub fn give_up(&self) {
        self.0.inner.give_up();
    }

    /// Makes a broken barrier usable again, once no living process has a seat any more.
    ///
    /// # Errors
    /// [`Error::Sync`] while one has.
    pub fn reset(&self) -> Result<()> {
        Ok(self.0.inner.reset()?)
    }
}

/// A participant of a barrier: a seat that keeps the barrier open.
#[derive(Debug)]
pub struct Participant {
    // Dropped in this order.
    seat: barrier::Seat,
    _object: Object,
}

impl Deref for Participant {
    type Target = barrier::Seat;

    #[inline]
    fn deref(&self) -> &barrier::Seat {
        &self.seat
    }
}

impl DerefMut for Participant {
    #[inline]
    fn deref_mut(&mut self) -> &mut barrier::Seat {
        &mut self.seat
    }
}

impl Named {
    pub(crate) fn new(here: &Attachment, name: &str) -> Self {
        Self { here: here.clone(), name: name.into(), mode: 0o600, ends_with_creator: false }
    }

    /// The mode of an object that is made, as of a file: users that may read and write may use it; `0o600` by default.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Has its name removed when the process that makes it ends, in whatever way.
    #[must_use]
    pub fn ends_with_creator(mut self) -> Self {
        self.ends_with_creator = true;
        self
    }

    fn held<T, E>(
        &self,
        kind: Kind,
        len: u64,
        params: [u64; 4],
        open: impl FnOnce(&Object) -> std::result::Result<T, E>,
    ) -> Result<Held<T>>
    where
        Error: From<E>,
    {
        let new = NewObject {
            kind,
            name: self.name.clone(),
            len,
            mode: self.mode,
            ends_with_creator: self.ends_with_creator,
            params,
            or_open: true,
        };
        let object = Object::create(&self.here.0, &new)?;
        Ok(Held { inner: open(&object)?, object })
    }

    /// A barrier for participants as the parameters say.
    ///
    /// # Errors
    /// [`Error::Exists`] if there is one with other parameters; [`Error::Denied`]; [`Error::Full`]; [`Error::Sync`] for
    /// parameters that cannot be.
    pub fn barrier(&self, parameters: Parameters) -> Result<Barrier> {
        let params = [parameters.parties.into(), parameters.waiting as u64, parameters.algorithm as u64, 0];
        if !(1..=barrier::MOST_PARTIES).contains(&parameters.parties) {
            let (what, limits) = ("the number of participants", "there are 1 to 4096");
            let value = parameters.parties.into();
            return Err(Error::Sync(isthmus_sync::Error::BadParameter { what, value, limits }));
        }
        let held = self.held(Kind::Barrier, parameters.bytes(), params, |o| {
            isthmus_sync::Barrier::open(o.member(), o.section(), parameters)
        })?;
        Ok(Barrier(held))
    }

    /// A mutex.
    ///
    /// # Errors
    /// [`Error::Denied`]; [`Error::Full`].
    pub fn mutex(&self) -> Result<Mutex> {
        self.held(Kind::Mutex, mutex::BYTES, [0; 4], |o| isthmus_sync::Mutex::open(o.member(), o.section()))
    }

    /// A condition variable.
    ///
    /// # Errors
    /// [`Error::Denied`]; [`Error::Full`].
    pub fn condvar(&self) -> Result<Condvar> {
        self.held(Kind::Condition, condvar::BYTES, [0; 4], |o| {
            isthmus_sync::Condvar::open(o.member(), o.section())
        })
    }

    /// A semaphore that has the value `initial` when it is made.
    ///
    /// # Errors
    /// [`Error::Exists`] if there is one that was made with another value; [`Error::Denied`]; [`Error::Full`];
    /// [`Error::Sync`] for a value that cannot be.
    pub fn semaphore(&self, initial: u32) -> Result<Semaphore> {
        if initial > semaphore::MOST {
            let (what, limits) = ("the value of a semaphore", "it is at most 2147483647");
            let value = initial.into();
            return Err(Error::Sync(isthmus_sync::Error::BadParameter { what, value, limits }));
        }
        self.held(Kind::Semaphore, semaphore::BYTES, [initial.into(), 0, 0, 0], |o| {
            isthmus_sync::Semaphore::open(o.member(), o.section(), initial)
        })
    }

    /// A reader-writer lock that may be open `opens` times at once.
    ///
    /// # Errors
    /// [`Error::Exists`] if there is one made for another number; [`Error::Denied`]; [`Error::Full`]; [`Error::Sync`] when it
    /// is open so many times already.
    pub fn rwlock(&self, opens: u32) -> Result<RwLock> {
        if !(1..=rwlock::MOST_PROCESSES).contains(&opens) {
            let (what, limits) = ("the number of processes", "there are 1 to 4096");
            return Err(Error::Sync(isthmus_sync::Error::BadParameter { what, value: opens.into(), limits }));
        }
        self.held(Kind::RwLock, rwlock::bytes(opens), [opens.into(), 0, 0, 0], |o| {
            isthmus_sync::RwLock::open(o.member(), o.section(), opens)
        })
    }

    /// A space of minitransactions.
    ///
    /// # Errors
    /// [`Error::Exists`] if there is one of another shape; [`Error::Denied`]; [`Error::Full`]; [`Error::Transaction`] for a shape
    /// that cannot be.
    pub fn space(&self, shape: Shape) -> Result<Space> {
        let params = [shape.slots.into(), shape.locks.into(), shape.log_bytes.into(), 0];
        if !shape.is_sound() {
            let Shape { slots, locks, log_bytes } = shape;
            return Err(minitransaction::Error::BadShape { slots, locks, log_bytes }.into());
        }
        let held = self.held(Kind::Space, shape.bytes(), params, |o| {
            minitransaction::Space::open(o.member(), o.section(), shape)
        })?;
        Ok(Space::new(held))
    }

    /// Something that is initialised once.
    ///
    /// # Errors
    /// [`Error::Denied`]; [`Error::Full`].
    pub fn once(&self) -> Result<Once> {
        self.held(Kind::Once, once::BYTES, [0; 4], |o| isthmus_sync::Once::open(o.member(), o.section()))
    }
}
