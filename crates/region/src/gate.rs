//! Waiting at a word that many may change (P8, [`isthmus_lockfree::gate`]), by whichever [`Doorbell`] there is.
//!
//! A waiter reads the word itself, before and after: a sleep may end for no reason, and it ends by itself after
//! [`Doorbell::longest`], since a waker may be killed between its change and its ring.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use isthmus_lockfree::gate;
use isthmus_lockfree::sync::Word;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::doorbell::{self, Doorbell};
use crate::error::Result;
use crate::mapping::{LineRef, Section};
use crate::member::Member;
use crate::wake;

/// A word in a line of its own, and its sleepers.
#[derive(Debug, Clone)]
pub struct Gate {
    line: LineRef,
    /// Where the line is in the region, as a word.
    place: u64,
    member: Arc<Member>,
}

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
        })
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
            Doorbell::Service => self.sleep_by_service(seen, deaths, limit),
        }
    }

    fn sleep_by_service(&self, seen: u64, deaths: u64, limit: Duration) {
        self.sleep_at_bell(seen, deaths, limit, &mut |bell, limit| match bell {
            Some(bell) => {
                let limit = Timespec::try_from(limit).unwrap_or_default();
                let _ = rustix::event::poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&limit));
            }
            None => std::thread::sleep(limit),
        });
    }

    fn sleep_at_bell(
        &self,
        seen: u64,
        deaths: u64,
        limit: Duration,
        sleep: &mut dyn FnMut(Option<&OwnedFd>, Duration),
    ) {
        let Some(bell) = self.member.take_watch(self.place) else {
            // A service that cannot ring: the clock has to do.
            return sleep(None, limit.min(Duration::from_millis(1)));
        };
        doorbell::drain(bell.as_fd());
        gate::enter_peer(&self.line, self.member.peer());
        #[allow(clippy::cast_possible_truncation)] // the half that counts
        let same = self.word().get() as u32 == seen as u32;
        if same && self.member.own().deaths().get() == deaths {
            sleep(Some(&bell), limit);
        }
        self.member.leave_watch(self.place, bell);
    }

    /// As [`Gate::sleep`], always at a descriptor of the local service, by a function of the caller's that sleeps until it is
    /// readable or a time is up; it gets none where the service has none. For waits that signals may end.
    pub fn sleep_by(
        &self,
        seen: u64,
        known: &Deaths,
        limit: Duration,
        sleep: &mut dyn FnMut(Option<&OwnedFd>, Duration),
    ) {
        let limit = limit.min(Doorbell::Service.longest());
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
        if sleepers.native != 0 && !self.member.doorbell().ring(self.word(), count) {
            // Those at the futex are the host's own processes.
            peers |= gate::bit(0);
        }
        if peers != 0 {
            self.member.service().ring(peers, self.place);
        }
    }
}
