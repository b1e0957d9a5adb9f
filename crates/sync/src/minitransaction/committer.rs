//! A thread's place in the machinery, from which it commits.

use std::fmt;
use std::sync::Arc;

use isthmus_lockfree::commit::{self, Phase, State};
use isthmus_lockfree::lock;

use isthmus_region::mapping::LineRef;

use super::contention::{Backoff, Wait};
use super::error::{Error, Result};
use super::fault::{Step, step};
use super::items::{Extent, Minitransaction, Outcome};
use super::one::Memories;
use super::space::{Segment, Shared};

/// A slot of the machinery. One thread at a time commits with it; threads that commit often have one each.
pub struct Committer {
    pub(super) shared: Arc<Shared>,
    pub(super) slot: u64,
    /// The line of its flight word.
    pub(super) flight: LineRef,
    pub(super) generation: u64,
    /// Whether a log is begun and its locks are not all free: only while a commit goes on.
    pub(super) is_busy: bool,
    /// Whether the slot is in the set of those that change single words.
    pub(super) is_flyer: bool,
    pub(super) segments: Vec<Segment>,
    pub(super) version: u64,
    /// Where the last segment was found.
    last: usize,
    pub(super) backoff: Backoff,
    /// What this thread knows of the words that it read lately.
    pub(super) memories: Memories,
    /// Failures until the committers are counted again.
    recount: u32,
    is_crowded: bool,
    /// Other committers that change words, by the last count.
    others: u32,
    processors: u64,
    /// Scratch: the locks of a transaction, and the segment of each of its items.
    pub(super) locks: Vec<u64>,
    pub(super) found: Vec<usize>,
}

impl fmt::Debug for Committer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Committer").field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl Committer {
    pub(super) fn open(shared: &Arc<Shared>) -> Result<Self> {
        let me = shared.member().party().word();
        let slots = shared.machinery.slots();
        // First a free slot, then one of a dead process.
        let mut damage = None;
        let mut find = |clear: bool| -> Result<Option<u64>> {
            for slot in 0..slots {
                let owner = shared.machinery.owner(slot)?;
                if clear {
                    match shared.recover(slot) {
                        Ok(_) => {}
                        Err(e) => damage = Some(e),
                    }
                }
                if owner.get() == 0 && commit::claim(owner, 0, me) {
                    return Ok(Some(slot));
                }
            }
            Ok(None)
        };
        let found = match find(false)? {
            None => find(true)?,
            found => found,
        };
        let Some(slot) = found else {
            return Err(damage.unwrap_or(Error::NoSlot { slots: shared.machinery.shape().slots }));
        };
        step(Step::SlotClaimed);
        let State { generation, .. } = State::unpack(shared.machinery.state(slot)?.get());
        let (version, segments) = shared.snapshot();
        let member = shared.member();
        let processors = member.region().processors().or(member.processors()).unwrap_or(1);
        Ok(Self {
            shared: Arc::clone(shared),
            slot,
            flight: shared.machinery.flight_line(slot)?,
            generation,
            is_busy: false,
            is_flyer: false,
            segments,
            version,
            last: 0,
            backoff: Backoff::new(me ^ (slot << 56)),
            memories: Memories::default(),
            recount: 0,
            is_crowded: false,
            others: 1,
            processors,
            locks: Vec::new(),
            found: Vec::new(),
        })
    }

    /// Commits: all items at once, or nothing. Waits for locks of others for no longer than the space's patience, and for a
    /// contended word for about 0.1 ms at most.
    ///
    /// # Ordering
    /// Strictly serialisable. A thread whose minitransaction sees a write of this one sees all that this thread did before.
    ///
    /// # Errors
    /// [`Error::NotReachable`], [`Error::NoSegment`], [`Error::OutOfBounds`], [`Error::TooLarge`] for what is asked for;
    /// [`Error::Corrupt`] for what was found. [`Error::NoSegment`] and [`Error::NotReachable`] also if a lock is held by a
    /// dead process whose log names a segment that is not known here. Nothing was written.
    ///
    /// # Source
    /// Paper section 3.1, figure 3.2.
    #[inline]
    pub fn commit(&mut self, t: &mut Minitransaction) -> Result<Outcome> {
        t.is_filled = false;
        match t.extent {
            Extent::One => self.commit_one(t),
            Extent::Several => self.commit_several(t),
            Extent::Nothing => Ok(Outcome::Committed),
        }
    }

    /// Index of the segment of that name in the own list.
    #[inline]
    pub(super) fn segment(&mut self, name: u64) -> Result<usize> {
        if self.version == self.shared.version()
            && self.segments.get(self.last).is_some_and(|segment| segment.name == name)
        {
            return Ok(self.last);
        }
        self.search(name)
    }

    fn search(&mut self, name: u64) -> Result<usize> {
        let place = |list: &[Segment]| list.iter().position(|segment| segment.name == name);
        if self.version != self.shared.version() {
            (self.version, self.segments) = self.shared.snapshot();
        }
        let found = match place(&self.segments) {
            Some(found) => found,
            None => {
                self.shared.find(name)?;
                (self.version, self.segments) = self.shared.snapshot();
                // Unregistered at this moment: as if it had been before.
                place(&self.segments).ok_or_else(|| {
                    let (node, segment) = super::items::named(name);
                    Error::NoSegment { node, segment }
                })?
            }
        };
        self.last = found;
        Ok(found)
    }

    /// Another thread had changed a word: waits for a moment, longer the more often that happened.
    #[cold]
    pub(super) fn back_off(&mut self) -> Result<()> {
        if self.recount == 0 {
            self.recount = 256;
            let mut count = 0;
            for set in self.shared.machinery.flyers() {
                count += u64::from(set?.1.count_ones());
            }
            self.is_crowded = count > self.processors;
            self.others = u32::try_from(count).unwrap_or(u32::MAX).saturating_sub(1);
        }
        self.recount -= 1;
        self.backoff.failed(self.others, self.is_crowded);
        Ok(())
    }

    /// A lock is taken: lets some time pass, and recovers the holder's slot if the holder is dead. Returns whether to try
    /// again: after the end of the patience once, if the holder is another one by now.
    #[cold]
    pub(super) fn wait_for(&self, lock: u64, token: u64, wait: &mut Wait) -> Result<bool> {
        let goes_on = wait.round();
        let is_over = (!goes_on || wait.is_time_to_check()) && self.check_holder(lock, token)?;
        Ok(goes_on || is_over && wait.may_try_once_more())
    }

    /// Whether the lock was freed: by its holder, or here since the holder is dead.
    fn check_holder(&self, lock: u64, token: u64) -> Result<bool> {
        let machinery = &self.shared.machinery;
        let lock = machinery.lock(lock)?;
        let damage = Error::Corrupt { what: "a lock", value: token };
        let Some((slot, generation)) = commit::holder(token).filter(|(slot, _)| *slot < machinery.slots())
        else {
            return if lock.get() == token { Err(damage) } else { Ok(true) };
        };
        // While the lock is held, its slot has an owner and is in that very transaction. Otherwise the lock was freed
        // meanwhile; a thread that sees the newer state or owner sees that, too (P15).
        let state = State::unpack(machinery.state(slot)?.get());
        let owner = machinery.owner(slot)?.get();
        if owner == 0 || state.phase == Phase::Idle || state.generation != generation {
            return if lock.get() == token { Err(damage) } else { Ok(true) };
        }
        if self.shared.is_alive(owner) {
            return Ok(false);
        }
        self.shared.recover(slot)?;
        Ok(lock.get() != token)
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        // A commit that a panic ended is settled like that of a dead process. A slot that cannot be settled stays taken.
        let machinery = &self.shared.machinery;
        let me = self.shared.member().party().word();
        if !machinery.owner(self.slot).is_ok_and(|owner| owner.get() == me) {
            // Others have taken this process for dead, and the slot may be a living one's.
            return;
        }
        if self.is_busy && self.shared.settle(self.slot).is_err() {
            return;
        }
        let (Ok(owner), Ok(flight)) = (machinery.owner(self.slot), machinery.flight(self.slot)) else {
            return;
        };
        commit::withdraw(flight);
        if let Ok((flyers, bit)) = machinery.flyer(self.slot) {
            flyers.remove(bit);
        }
        lock::let_go(owner, me);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use isthmus_host::{Config, Service};

    use super::super::{Shape, Space};
    use super::*;

    #[test]
    fn a_lock_that_changes_all_the_time_is_tried_once_more_after_the_patience_and_then_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let service = Service::start(Config::new(dir.path(), 16 << 20), Arc::new(|_| ())).unwrap();
        let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
        let shape = Shape { slots: 8, locks: 64, log_bytes: 4096 };
        let at = member.allocate(shape.bytes(), 64).unwrap();
        let section = member.section().part("test", at, shape.bytes()).unwrap();
        section.zero("test", 0, shape.bytes()).unwrap();
        let space = Space::open(&member, &section, shape).unwrap();
        let own = space.committer().unwrap();
        let lock = own.shared.machinery.lock(0).unwrap();
        for patience in [0, 1] {
            let mut wait = Wait::new(Duration::from_millis(patience));
            let mut token = 0;
            // At each check the holder is another one than a moment ago.
            let mut goes_on = || {
                token += 1;
                lock.set(commit::token(7, token + 1));
                own.wait_for(0, commit::token(7, token), &mut wait).unwrap()
            };
            let tries = (0..100_000).take_while(|_| goes_on()).count();
            assert!(if patience == 0 { tries == 1 } else { (1..100_000).contains(&tries) }, "{tries}");
            wait.next_lock();
            assert!(own.wait_for(0, commit::token(7, 1), &mut wait).unwrap());
            assert!(!own.wait_for(0, commit::token(7, 1), &mut wait).unwrap());
        }
    }
}
