//! The lock under [`crate::mutex`] and [`crate::rwlock`]: [`isthmus_lockfree::lock`] with waiting, and checks of who lives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_lockfree::lock::{self, Changes, Found, Refused};
use isthmus_lockfree::sync::Word;
use isthmus_region::gate::Gate;
use isthmus_region::mapping::{LineRef, Section};
use isthmus_region::member::Member;
use isthmus_region::party::Party;

use crate::error::{Error, Result};
use crate::wait::{Ended, Learned, Wait, Waiting};

/// How often a waiter is overtaken before the lock is kept for it.
const PATIENCE: u32 = 4;
/// How long a lock is kept for a waiter that does not take it: that one was stopped, or the word is garbage.
const KEPT: Duration = Duration::from_millis(100);

/// The calling thread's name among all threads that use an object: the place of its process, and its number there.
pub(crate) fn thread(party: Party) -> u64 {
    thread_local! {
        static ID: u64 = u64::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap_or(0);
    }
    (party.word() >> 40 << 32) | ID.with(|id| *id)
}

/// A lock in a line.
#[derive(Debug)]
pub(crate) struct RawLock {
    member: Arc<Member>,
    party: Party,
    line: LineRef,
    gate: Gate,
    learned: Learned,
    /// How many sleepers are woken when the lock is free: all of them, if some may not be able to take it.
    wake: u32,
    changes: Changes,
}

impl RawLock {
    pub(crate) fn new(
        what: &'static str,
        member: &Arc<Member>,
        section: &Section,
        offset: u64,
        wake: u32,
        changes: Changes,
    ) -> Result<Self> {
        let learned = Learned::new(member.doorbell());
        Ok(Self {
            member: Arc::clone(member),
            party: member.party(),
            line: section.line(what, offset).map_err(Error::memory(what))?,
            gate: Gate::new(member, section, offset).map_err(Error::memory(what))?,
            learned,
            wake,
            changes,
        })
    }

    pub(crate) fn member(&self) -> &Arc<Member> {
        &self.member
    }

    pub(crate) fn learned(&self) -> &Learned {
        &self.learned
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The word that names the owner.
    pub(crate) fn owner(&self) -> &Word {
        &self.line.words[lock::OWNER]
    }

    /// What is known of the protected data, as a thread sees it that does not own the lock.
    pub(crate) fn found(&self) -> Found {
        lock::found(&self.line)
    }

    pub(crate) fn is_alive(&self, word: u64) -> bool {
        Party::named(word).is_some_and(|party| self.member.is_alive(party))
    }

    /// Whether this thread owns the lock.
    pub(crate) fn is_mine(&self) -> bool {
        self.owner().peek() == self.party.word() && self.line.words[lock::THREAD].peek() == thread(self.party)
    }

    /// Whether the lock is this process's, and no thread's of it: one is just taking it, or giving it back.
    pub(crate) fn is_between(&self) -> bool {
        self.owner().peek() == self.party.word() && self.line.words[lock::THREAD].peek() == 0
    }

    /// Takes the lock if that can be done at once: it is free, or its owner is dead.
    pub(crate) fn try_lock(&self) -> Result<Found> {
        let (me, thread) = (self.party.word(), thread(self.party));
        match lock::take(&self.line, me, thread, false) {
            Ok(found) => Ok(found),
            Err(Refused::Held(owner)) if owner != 0 && !self.is_alive(owner) => {
                lock::take_over(&self.line, owner, me, thread, self.changes).ok_or(Error::WouldBlock)
            }
            Err(Refused::Kept(heir)) if !self.is_alive(heir) => {
                lock::keep_no_more(&self.line, heir);
                lock::take(&self.line, me, thread, false).map_err(|_| Error::WouldBlock)
            }
            Err(_) => Err(Error::WouldBlock),
        }
    }

    /// Takes the lock, at once or by waiting until `deadline`.
    #[inline]
    pub(crate) fn lock(&self, deadline: Option<Instant>) -> Result<Found> {
        let thread = thread(self.party);
        match lock::take(&self.line, self.party.word(), thread, false) {
            Ok(found) => Ok(found),
            Err(_) => self.lock_slowly(thread, deadline),
        }
    }

    #[cold]
    fn lock_slowly(&self, thread: u64, deadline: Option<Instant>) -> Result<Found> {
        if self.is_mine() {
            return Err(Error::Deadlock);
        }
        if self.learned.must_recheck() {
            self.learned.set_scarce(self.member.is_crowded());
        }
        let mut heir = false;
        let done = self.contend(thread, deadline, &mut heir);
        if heir {
            lock::keep_no_more(&self.line, self.party.word());
            if done.is_err() {
                // Waiters may sleep because the lock was kept.
                self.gate.ring(u32::MAX);
            }
        }
        done
    }

    fn contend(&self, thread: u64, deadline: Option<Instant>, heir: &mut bool) -> Result<Found> {
        let me = self.party.word();
        let (owner, kept) = (&self.line.words[lock::OWNER], &self.line.words[lock::HEIR]);
        let mut failed = 0;
        // The heir for which the free lock was found kept, and since when.
        let mut waits_for: Option<(u64, Instant)> = None;
        loop {
            let is_heir = *heir;
            match lock::take(&self.line, me, thread, is_heir) {
                Ok(found) => return Ok(found),
                Err(Refused::Held(0) | Refused::Kept(_)) => {}
                Err(Refused::Held(dead)) if failed > 0 && !self.is_alive(dead) => {
                    if let Some(found) = lock::take_over(&self.line, dead, me, thread, self.changes) {
                        return Ok(found);
                    }
                }
                Err(Refused::Held(_)) => {}
            }
            failed += 1;
            if failed > PATIENCE && !is_heir {
                *heir = lock::keep(&self.line, me);
            }
            let is_heir = *heir;
            let ready = || owner.peek() == 0 && (is_heir || kept.peek() == 0);
            let check = || {
                match (owner.peek(), kept.peek()) {
                    (0, heir) if heir != 0 && !is_heir => {
                        let since = match waits_for {
                            Some((same, since)) if same == heir => since,
                            _ => Instant::now(),
                        };
                        waits_for = Some((heir, since));
                        if since.elapsed() > KEPT || !self.is_alive(heir) {
                            lock::keep_no_more(&self.line, heir);
                        }
                    }
                    (owner, _) if owner != 0 && !self.is_alive(owner) => return Ok(true),
                    _ => waits_for = None,
                }
                Ok(false)
            };
            let deaths = self.gate.deaths();
            let sleep = |limit| {
                let seen = owner.peek();
                if !ready() {
                    // Nothing rings for the end of that time.
                    let limit = if seen == 0 { KEPT.min(limit) } else { limit };
                    self.gate.sleep(seen, &deaths, limit);
                }
            };
            let wait = Wait { how: Waiting::Hybrid, learned: &self.learned, deadline };
            if wait.until(ready, check, sleep)? == Ended::TimedOut {
                // This thread may have used up a wake-up, so it tries once more before it gives up.
                return self.try_lock().map_err(|_| Error::TimedOut);
            }
        }
    }

    /// Whether this thread, which took the lock, still has it. It has not if the words name another thread of this process,
    /// or none yet. If they name a thread of another process, which cannot be right, it has: otherwise the lock would stay
    /// taken for ever.
    #[inline]
    fn is_still_mine(&self) -> bool {
        let (named, mine) = (self.line.words[lock::THREAD].peek(), thread(self.party));
        let of_this_process = named >> 32 == mine >> 32 || named == 0;
        self.owner().peek() == self.party.word() && (named == mine || !of_this_process)
    }

    /// Says, as the owner, that what is protected is changed from now on, if [`Changes::Later`].
    pub(crate) fn change(&self) {
        lock::change(&self.line);
    }

    /// Gives the lock back, if it was not given back already, or taken over after it was overwritten.
    #[inline]
    pub(crate) fn unlock(&self) {
        if self.is_still_mine() {
            lock::give_back(&self.line);
            self.ring();
        }
    }

    /// Gives the lock back without declaring suspect data lost.
    pub(crate) fn pass_on(&self) {
        if self.is_still_mine() {
            lock::pass_on(&self.line);
            self.ring();
        }
    }

    #[inline]
    fn ring(&self) {
        self.gate.ring(self.wake);
        // After the fence in `ring`: the heir may sleep, and not be the one that was woken.
        if self.line.words[lock::HEIR].peek() != 0 {
            self.gate.ring(u32::MAX);
        }
    }

    /// Declares the data sound, as the owner.
    pub(crate) fn mend(&self) {
        lock::mend(&self.line);
    }
}
