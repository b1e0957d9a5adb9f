//! Minitransactions of several words: under locks, with a log.

use isthmus_lockfree::commit;

use super::committer::Committer;
use super::contention::Wait;
use super::error::{Error, Result};
use super::fault::{Step, step};
use super::items::{Kind, Minitransaction, Outcome, number};
use super::recovery::{read_bytes, write_bytes};

impl Committer {
    pub(super) fn commit_several(&mut self, t: &mut Minitransaction) -> Result<Outcome> {
        self.plan(t)?;
        if self.locks.is_empty() {
            // Items without bytes.
            t.is_filled = true;
            return Ok(Outcome::Committed);
        }
        self.write_log(t)?;
        let state = self.shared.machinery.state(self.slot)?;
        commit::begin(state, self.generation);
        self.is_busy = true;
        step(Step::Begun);
        let mut held = 0;
        let outcome = self.under_locks(t, &mut held);
        let machinery = &self.shared.machinery;
        commit::finish(machinery.state(self.slot)?, self.generation);
        step(Step::Finished);
        for index in &self.locks[..held] {
            commit::free(machinery.lock(*index)?);
            step(Step::Freed);
        }
        self.is_busy = false;
        step(Step::AllFreed);
        outcome
    }

    /// Finds segments and locks of all items, and checks that the items are inside.
    fn plan(&mut self, t: &Minitransaction) -> Result<()> {
        // What is found are indices in a list, which a later item may have replaced.
        loop {
            let version = self.version;
            self.plan_once(t)?;
            if self.version == version {
                return Ok(());
            }
        }
    }

    fn plan_once(&mut self, t: &Minitransaction) -> Result<()> {
        self.found.clear();
        self.locks.clear();
        let bound = self.shared.machinery.log_words();
        for item in &t.items {
            let segment = self.segment(item.name)?;
            let len = item.len as u64;
            self.segments[segment].check(item.offset, len)?;
            self.found.push(segment);
            if len == 0 {
                continue;
            }
            let (first, last) = (item.offset / 64, (item.offset + len - 1) / 64);
            // An item with more lines than the table has locks takes all locks.
            let last = last.min(first + u64::from(self.shared.machinery.shape().locks));
            for line in first..=last {
                let lock = self.shared.machinery.lock_of(item.name, line);
                if self.locks.last() != Some(&lock) {
                    self.locks.push(lock);
                }
            }
        }
        self.locks.sort_unstable();
        self.locks.dedup();
        let writes = t.items.iter().filter(|item| item.kind == Kind::Write);
        let needed =
            1 + self.locks.len() as u64 + writes.map(|item| 3 + item.len.div_ceil(8) as u64).sum::<u64>();
        if needed > bound {
            return Err(Error::TooLarge { needed: needed * 8, limit: bound * 8, locks: self.locks.len() });
        }
        Ok(())
    }

    fn write_log(&mut self, t: &Minitransaction) -> Result<()> {
        self.generation = self.generation.wrapping_add(1);
        let machinery = &self.shared.machinery;
        commit::before_log();
        let mut at = 0;
        let mut put = |value: u64| -> Result<()> {
            machinery.log(self.slot, at)?.put(value);
            at += 1;
            Ok(())
        };
        let writes = || t.items.iter().filter(|item| item.kind == Kind::Write);
        put(self.locks.len() as u64 | ((writes().count() as u64) << 32))?;
        for index in &self.locks {
            put(*index)?;
        }
        step(Step::LogHalf);
        for item in writes() {
            put(item.name)?;
            put(item.offset)?;
            put(item.len as u64)?;
            for word in item.bytes(&t.data).chunks(8) {
                put(number(word))?;
            }
        }
        step(Step::LogWhole);
        Ok(())
    }

    /// Takes the locks, and compares, reads and writes under them. `held` is how many are held at the end.
    fn under_locks(&self, t: &mut Minitransaction, held: &mut usize) -> Result<Outcome> {
        let machinery = &self.shared.machinery;
        let token = commit::token(self.slot, self.generation);
        let mut wait = Wait::new(self.shared.patience());
        for index in &self.locks {
            let lock = machinery.lock(*index)?;
            while let Err(other) = commit::take(lock, token) {
                if !self.wait_for(*index, other, &mut wait)? {
                    return Ok(Outcome::LockFailed);
                }
            }
            *held += 1;
            wait.next_lock();
            step(Step::Locked);
        }
        step(Step::AllLocked);
        commit::after_locks();
        if !self.flights_are_over(&mut wait)? {
            return Ok(Outcome::LockFailed);
        }
        step(Step::FlightsOver);
        let mut is_equal = true;
        let mut buffer = [0; 64];
        for (item, segment) in t.items.iter().zip(&self.found) {
            let segment = &self.segments[*segment];
            let bytes = item.bytes_mut(&mut t.data);
            match item.kind {
                Kind::Read => read_bytes(segment, item.offset, bytes)?,
                Kind::Compare => {
                    for (part, at) in bytes.chunks(buffer.len()).zip((item.offset..).step_by(buffer.len())) {
                        let there = &mut buffer[..part.len()];
                        read_bytes(segment, at, there)?;
                        is_equal &= there == part;
                    }
                }
                Kind::Write => {}
            }
        }
        t.is_filled = true;
        step(Step::Compared);
        if !is_equal {
            return Ok(Outcome::CompareFailed);
        }
        let mut writes =
            t.items.iter().zip(&self.found).filter(|(item, _)| item.kind == Kind::Write).peekable();
        if writes.peek().is_some() {
            commit::commit(machinery.state(self.slot)?, self.generation);
            step(Step::Committed);
            for (item, segment) in writes {
                let bytes = item.bytes(&t.data);
                write_bytes(&self.segments[*segment], item.offset, bytes, Step::Wrote)?;
            }
            step(Step::AllWritten);
        }
        Ok(Outcome::Committed)
    }

    /// With all locks taken: waits until no living process changes a single word under one of them. Returns whether that
    /// happened in time.
    fn flights_are_over(&self, wait: &mut Wait) -> Result<bool> {
        let machinery = &self.shared.machinery;
        for set in machinery.flyers() {
            let (first, mut set) = set?;
            while set != 0 {
                let slot = first + u64::from(set.trailing_zeros());
                set &= set - 1;
                let flight = machinery.flight(slot)?;
                while commit::in_flight(flight).is_some_and(|lock| self.locks.binary_search(&lock).is_ok()) {
                    let goes_on = wait.round();
                    if !goes_on || wait.is_time_to_check() {
                        let owner = machinery.owner(slot)?.get();
                        if owner == 0 || !self.shared.is_alive(owner) {
                            // A dead process changes nothing any more. Recover its slot, so that others need not check it; a
                            // failure of that does not matter here.
                            let _ = self.shared.recover(slot);
                            break;
                        }
                    }
                    if !goes_on {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }
}
