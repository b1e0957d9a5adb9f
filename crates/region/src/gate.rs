//! Waiting at a word that many may change (P8, [`isthmus_lockfree::gate`]), by whichever [`Doorbell`] there is.
//!
//! A waiter reads the word itself, before and after: a sleep may end for no reason, and it ends by itself after
//! [`Doorbell::longest`], since a waker may be killed between its change and its ring.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use isthmus_lockfree::gate;
use isthmus_lockfree::sync::Word;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::doorbell::{self, Doorbell};
use crate::error::Result;
use crate::mapping::{LineRef, Section};
use crate::member::Member;
use crate::signals::{Blocked, Uncancelled};
use crate::{near, wake};

/// A word in a line of its own, and its sleepers.
#[derive(Debug, Clone)]
pub struct Gate {
    line: LineRef,
    /// Where the line is in the region, as a word.
    place: u64,
    member: Arc<Member>,
    /// Whether its line has words for near sleepers.
    has_near: bool,
}

/// A sleep of the caller's: until a descriptor is readable, or a time is up. Gives whether this still is the process that went to sleep: the
/// handler of a signal may have forked, and its child have returned here, which has nothing of the region.
pub type Nap<'a> = dyn FnMut(&[BorrowedFd<'_>], Duration) -> bool + 'a;

/// The deaths that a waiter has taken into account: those counted before it checked who lives.
#[derive(Debug)]
pub struct Deaths(Cell<u64>);

impl Gate {
    /// The gate in the line at `offset` of a section.
    ///
    /// # Errors
    /// [`crate::Error::OutOfBounds`], also for a misaligned offset.
    pub fn new(member: &Arc<Member>, section: &Section, offset: u64) -> Result<Self> {
        Ok(Self {
            line: section.line("gate", offset)?,
            place: section.place(offset).word(),
            member: Arc::clone(member),
            has_near: false,
        })
    }

    /// As [`Gate::new`], with near sleepers ([`Gate::sleep_by`]), which use all words of the line but the first. All users of the line
    /// have it so.
    ///
    /// # Errors
    /// As [`Gate::new`].
    pub fn with_near(member: &Arc<Member>, section: &Section, offset: u64) -> Result<Self> {
        Ok(Self { has_near: true, ..Self::new(member, section, offset)? })
    }

    /// The deaths so far; to be read before the first check of who lives, once for each wait.
    pub fn deaths(&self) -> Deaths {
        Deaths(Cell::new(self.member.own().deaths().get()))
    }

    /// The word.
    #[inline]
    pub fn word(&self) -> &Word {
        &self.line.words[gate::WORD]
    }

    /// Sleeps while the word's lower half is that of `seen`, until a ring, a death, until `limit` is up, or for no reason. After
    /// it the caller checks anew who lives.
    ///
    /// # Ordering
    /// A full fence before the look that decides (P8). What the caller then finds in the word, it reads itself.
    pub fn sleep(&self, seen: u64, known: &Deaths, limit: Duration) {
        let limit = limit.min(self.member.doorbell().longest());
        // A death that is not known may have come after the caller's check of who lives, and nothing rings for it again.
        let deaths = self.member.own().deaths().get();
        if known.0.replace(deaths) != deaths {
            return;
        }
        match self.member.doorbell() {
            Doorbell::Futex => {
                gate::enter(&self.line);
                wake::wait_either([(self.word(), seen), (self.member.own().deaths(), deaths)], limit);
                gate::leave(&self.line);
            }
            Doorbell::Service | Doorbell::Interrupt => self.sleep_by_service(seen, deaths, limit),
        }
    }

    /// As [`Gate::sleep`], if that is at a futex; otherwise there is no sleep, and it gives false.
    pub fn sleep_at_futex(&self, seen: u64, known: &Deaths, limit: Duration) -> bool {
        let has_futex = self.member.doorbell() == Doorbell::Futex;
        if has_futex {
            self.sleep(seen, known, limit);
        }
        has_futex
    }

    fn sleep_by_service(&self, seen: u64, deaths: u64, limit: Duration) {
        // Bells that nobody keeps are closed.
        let _uncancelled = Uncancelled::new();
        self.sleep_at_bell(seen, deaths, limit, &mut poll);
    }

    fn sleep_at_bell(&self, seen: u64, deaths: u64, limit: Duration, sleep: &mut Nap<'_>) {
        let near = if self.has_near { self.member.near().take() } else { None };
        // Before the look at the word: whatever is rung while the service is asked has changed it by then.
        let watch = self.member.take_watch(self.place, limit);
        // A service that cannot ring: the clock has to do.
        let limit = if watch.is_some() { limit } else { limit.min(Duration::from_millis(1)) };
        match &near {
            Some(bell) => _ = gate::enter_near(&self.line, self.member.peer(), bell.word),
            // The word of the others is of use at a gate with near sleepers only.
            None if self.has_near => _ = gate::enter_near(&self.line, self.member.peer(), 0),
            None => gate::enter_peer(&self.line, self.member.peer()),
        }
        #[allow(clippy::cast_possible_truncation)] // the half that counts
        let same = self.word().get() as u32 == seen as u32;
        if same && self.member.own().deaths().get() == deaths {
            let bells = [near.as_ref().map(|bell| bell.socket.as_fd()), watch.as_ref().map(AsFd::as_fd)];
            let bells: Vec<_> = bells.into_iter().flatten().collect();
            if !sleep(&bells, limit) {
                // The line is not there. The descriptors are copies of this process's own, and are closed.
                return;
            }
        }
        // Of rings that come after this the next sleep ends at once. The service's is looked at where it may have been that.
        let was_near = near.as_ref().is_some_and(near::drain);
        if !was_near && let Some(watch) = &watch {
            doorbell::drain(watch.as_fd());
        }
        if let Some(bell) = near {
            gate::leave_near(&self.line, bell.word);
            self.member.near().leave(bell);
        }
        if let Some(watch) = watch {
            self.member.leave_watch(self.place, watch);
        }
    }

    /// As [`Gate::sleep`], always at descriptors, by a function of the caller's that sleeps until one of them is readable or a time is
    /// up: that of the local service, if that has one, and at a gate with near sleepers the thread's own. For waits that signals
    /// may end. In a child that its function says has returned from it, nothing is touched after that.
    pub fn sleep_by(&self, seen: u64, known: &Deaths, limit: Duration, sleep: &mut Nap<'_>) {
        let kind = match self.member.doorbell() {
            Doorbell::Futex => Doorbell::Service,
            other => other,
        };
        let limit = limit.min(kind.longest());
        let deaths = self.member.own().deaths().get();
        if known.0.replace(deaths) == deaths {
            self.sleep_at_bell(seen, deaths, limit, sleep);
        }
    }

    /// After the word was changed: wakes up to `count` of the threads that sleep at the futex, and all others.
    ///
    /// # Ordering
    /// A full fence before the look at the sleepers (P8); the change itself must be a release.
    #[inline]
    pub fn ring(&self, count: u32) {
        let sleepers = gate::sleepers(&self.line);
        if sleepers.native != 0 || sleepers.peers != 0 {
            self.ring_these(sleepers, count);
        }
    }

    #[cold]
    fn ring_these(&self, sleepers: gate::Sleepers, count: u32) {
        let mut peers = sleepers.peers;
        // A handler of signals may ring, too, while this thread has a lock.
        let _blocked = (peers != 0).then(Blocked::new);
        let own = gate::bit(self.member.peer());
        // The last bit stands for further peers, too.
        if self.has_near && peers & own != 0 && own != gate::bit(u32::MAX) {
            let peer = self.member.peer();
            let names = gate::take_near(&self.line, |word| near::is_of(word, peer));
            // All are rung, also after one that cannot be.
            let missed = names.filter(|name| !self.member.near().ring(*name)).count();
            if missed == 0 && !gate::take_far(&self.line, peer) {
                peers &= !own;
            }
        }
        if sleepers.native != 0 && !self.member.doorbell().ring(self.word(), count) {
            // Those at the futex are the host's own processes.
            peers |= gate::bit(0);
        }
        if peers != 0 {
            self.member.service().ring(peers, self.place);
        }
    }
}

/// Sleeps until one of the descriptors is readable, `limit` is up, or for no reason; as a [`Nap`], for threads whose handlers do not fork.
pub fn poll(bells: &[BorrowedFd<'_>], limit: Duration) -> bool {
    let mut bells: Vec<_> = bells.iter().map(|b| PollFd::from_borrowed_fd(*b, PollFlags::IN)).collect();
    let limit = Timespec::try_from(limit).unwrap_or_default();
    let _ = rustix::event::poll(&mut bells, Some(&limit));
    true
}
