//! Waiting at a word that many may change (P8, [`isthmus_lockfree::gate`]): one interface over the futex, where there is one,
//! and the local service's eventfd, where there is not.
//!
//! Whoever waits looks at the word himself, before and after: a sleep may end for no reason, and it ends by itself
//! after [`LONGEST`], since a waker may be killed between its change and its ring, and deaths are seen only by looking.

use std::sync::Arc;
use std::time::Duration;

use isthmus_lockfree::gate;
use isthmus_lockfree::sync::Word;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::error::Result;
use crate::mapping::{LineRef, Section};
use crate::member::Member;
use crate::wake;

/// No sleep at a gate is longer where there are futexes: so late at most is a death seen.
pub const LONGEST: Duration = Duration::from_millis(50);
/// The same where a service rings, which is where looking costs more.
pub const LONGEST_BY_SERVICE: Duration = Duration::from_millis(250);

/// A word in a line of its own, and those who sleep at it.
#[derive(Debug, Clone)]
pub struct Gate {
    line: LineRef,
    /// Where the line is in the region.
    place: u64,
    member: Arc<Member>,
}

impl Gate {
    /// The gate in the line at `offset` of a section.
    ///
    /// # Errors
    /// [`crate::Error::OutOfBounds`], also for a misaligned offset.
    pub fn new(member: &Arc<Member>, section: &Section, offset: u64) -> Result<Self> {
        Ok(Self {
            line: section.line("gate", offset)?,
            place: section.start() + offset,
            member: Arc::clone(member),
        })
    }

    /// The word.
    #[inline]
    pub fn word(&self) -> &Word {
        &self.line.words[gate::WORD]
    }

    /// Sleeps while the word's lower half is that of `seen`, until somebody rings, `limit` is up, or for no reason.
    ///
    /// # Ordering
    /// A full fence before the look that decides (P8). What the caller then finds in the word, it reads itself.
    pub fn sleep(&self, seen: u64, limit: Duration) {
        if self.member.has_futexes() {
            gate::enter(&self.line);
            wake::wait(self.word(), seen, limit.min(LONGEST));
            gate::leave(&self.line);
            return;
        }
        let Some(bell) = self.member.take_watch(self.place) else {
            // A service that cannot ring: the clock has to do.
            return std::thread::sleep(limit.min(Duration::from_millis(1)));
        };
        let _ = rustix::io::read(&bell, &mut [0_u8; 8]);
        gate::enter_peer(&self.line, self.member.peer());
        #[allow(clippy::cast_possible_truncation)] // the half that counts
        let same = self.word().get() as u32 == seen as u32;
        if same {
            let limit = Timespec::try_from(limit.min(LONGEST_BY_SERVICE)).unwrap_or_default();
            let _ = rustix::event::poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&limit));
        }
        self.member.leave_watch(self.place, bell);
    }

    /// After the word was changed: wakes up to `count` of the threads that sleep at the futex, and all others.
    ///
    /// # Ordering
    /// A full fence before the look at who sleeps (P8); the change itself must be a release.
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
        if sleepers.native != 0 {
            match self.member.has_futexes() {
                true => wake::ring(self.word(), count),
                // Those at the futex are the host's own processes.
                false => peers |= gate::bit(0),
            }
        }
        if peers != 0 {
            self.member.service().ring(peers, self.place);
        }
    }
}
