//! How a thread waits before it sleeps: one policy, and what those that wait differ in.
//!
//! A wait passes through stages, each only as long as it pays: polls, yields (`sched_yield`), naps, and then the sleep at a
//! doorbell ([`crate::doorbell`]). How long each of them lasts is a [`Pace`].
//!
//! - *Polls* pay while the wait is shorter than going to sleep and being woken ([`crate::doorbell::Doorbell::cost`]), and while no
//!   other thread needs the processor: the event may need that very one.
//! - *Scarce processors* are known from counts, [`Member::is_crowded`] for what any process may end and the participants of an
//!   object for what they do among themselves, and seen from what yields cost ([`Crowd`], [`LONG_YIELD`]).
//! - *Yields* pay while another thread uses them and then ends the wait. One that costs a whole slice of time went to a thread
//!   that has nothing to do with it.
//! - *Yields without end do harm.* Linux (6.6 and later, seen with 6.18) adds a slice of virtual time to a thread with each
//!   `sched_yield`. Where little else but such threads ran, it has let other threads that were ready to run wait for minutes,
//!   among them killed processes that had still to exit. So yields become rare where no other thread uses them, and where one
//!   does there are *naps*.
//! - *Naps* help nobody where what is awaited comes another way: then they delay it and nothing ends them early.
//!
//! What was measured, on 2 processors: a hybrid barrier of four threads on a machine with much other work took 690 us a round with
//! polls and yields without regard to what they cost, and 21 us with. A blocking barrier of two threads on a loaded machine took
//! 20 us where each wait polled for half a microsecond that never helped, and 6 to 8 us without. Four ranks of MPICH that
//! talk through its own shared memory made 3,600 barriers a second with naps, and 75,000 with yields in place of them; where
//! such yields became rarer after 16 that no other thread used, a quarter to a half fewer than where they do after 256.

use std::time::{Duration, Instant};

use crate::member::Member;
use crate::signals::Blocked;
use crate::sync::Word;

/// How long one kind of wait stays at its stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Polls before a yield.
    pub polls: u32,
    /// The same where processors are scarce.
    pub crowded_polls: u32,
    /// Yields before a nap or a sleep.
    pub yields: u32,
}

impl Pace {
    /// Reads of a completion queue. Each is a call of an MPI, which reads on whatever it is told, and takes time of its own
    /// between two reads. The yield that comes with the check for scarce processors is not counted.
    pub const READS: Self = Self { polls: 2000, crowded_polls: 200, yields: 4 };
    /// Waits for bytes or room of a channel, which end in sleep: no nap comes between, so there are some more yields.
    pub const CHANNELS: Self = Self { polls: 2000, crowded_polls: 100, yields: 8 };
    /// Waits at an object of a shared section, of which each lasts about as long as the last ones: the polls are those
    /// between two yields, and the number of yields is learned, up to this one.
    pub const OBJECTS: Self = Self { polls: 1000, crowded_polls: 16, yields: 16 };
    /// Waits for a lock of a minitransaction, which is held for less than a microsecond: a poll is a quarter of one, in which
    /// the lock's line is left to its holder. Yields are many, since a holder that has lost its processor needs no more than one.
    pub const LOCKS: Self = Self { polls: 64, crowded_polls: 64, yields: 64 };

    /// Polls before a yield.
    #[inline]
    pub fn polls(self, is_crowded: bool) -> u32 {
        if is_crowded { self.crowded_polls } else { self.polls }
    }

    /// Polls `news`, then yields between polls. Gives whether it returned true; if not, it is time to sleep.
    #[inline]
    pub fn spin(self, is_crowded: bool, mut news: impl FnMut() -> bool) -> bool {
        for i in 0..self.polls(is_crowded) {
            if news() {
                return true;
            }
            if i % 8 == 7 {
                std::hint::spin_loop();
            }
        }
        for _ in 0..self.yields {
            std::thread::yield_now();
            if news() {
                return true;
            }
        }
        false
    }
}

/// A nap between two polls, of endpoints and objects.
pub const NAP: Duration = Duration::from_micros(100);
/// In a yield that took longer than this another thread ran, if only one that polls, too. For waits that keep no account of
/// what their yields cost; [`Crowd`] does.
pub const SWITCHED: Duration = Duration::from_nanos(1500);
/// After a yield that took longer than this, another thread needs the processor.
pub const LONG_YIELD: Duration = Duration::from_micros(100);
/// A yield that takes longer than this went to a thread that works, not to one that waits. Longer than [`LONG_YIELD`]: a wrong
/// answer to that question ends the polls of one wait, one to this leaves many waits without yields.
pub const SLICE: Duration = Duration::from_micros(200);

/// Yields; gives how long this took.
#[inline]
pub fn yield_now() -> Duration {
    let begun = Instant::now();
    std::thread::yield_now();
    begun.elapsed()
}

/// What yields showed lately: whether other threads use them. The words are this process's own; a lost update does no harm.
#[derive(Debug)]
pub struct Crowd {
    /// Grows with each yield that another thread used, and shrinks with each other.
    level: Word,
    /// The shortest yield: no other thread used it.
    idle_ns: Word,
    /// How long yields took since the last nap.
    yielded_ns: Word,
}

impl Default for Crowd {
    fn default() -> Self {
        Self { level: Word::new(0), idle_ns: Word::new(u64::MAX), yielded_ns: Word::new(0) }
    }
}

/// Most of [`Crowd::level`], what a yield adds that was used, and from where on there is a crowd.
const LEVEL: (u64, u64, u64) = (64, 4, 8);

impl Crowd {
    /// Whether other threads used yields lately.
    #[inline]
    pub fn is_there(&self) -> bool {
        self.level.peek() >= LEVEL.2
    }

    /// Yields; gives how long this took, and whether another thread used it.
    pub fn yield_now(&self) -> (Duration, bool) {
        let took = yield_now();
        (took, self.note(took))
    }

    /// Notes a yield that took so long; gives whether another thread used it.
    pub fn note(&self, took: Duration) -> bool {
        let (ns, idle) = (nanos(took).max(1), self.idle_ns.peek());
        if ns < idle {
            self.idle_ns.put(ns);
        }
        self.yielded_ns.put(self.yielded_ns.peek().saturating_add(ns));
        let was_used = ns > idle.saturating_mul(3).saturating_add(1000);
        match was_used {
            true => self.level.put((self.level.peek() + LEVEL.1).min(LEVEL.0)),
            false => self.shrink(1),
        }
        was_used
    }

    /// As if there had been so many yields that no other thread used.
    pub fn shrink(&self, by: u64) {
        self.level.put(self.level.peek().saturating_sub(by));
    }

    /// How long yields took since the last nap.
    #[inline]
    pub fn yielded(&self) -> Duration {
        Duration::from_nanos(self.yielded_ns.peek())
    }

    /// Naps for at most `limit`.
    pub fn nap(&self, limit: Duration) {
        nap(NAP.min(limit));
        self.yielded_ns.put(0);
    }
}

/// Does nothing for so long. By the system call: libc's function, and so the standard library's, is a point of cancellation
/// ([`crate::signals::Uncancelled`]).
pub fn nap(time: Duration) {
    use rustix::thread::{NanosleepRelativeResult, Timespec};
    let mut left = Timespec::try_from(time).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
    while let NanosleepRelativeResult::Interrupted(rest) = rustix::thread::nanosleep(&left) {
        left = rest;
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Member {
    /// Whether more processes have endpoints than there are processors for them: in the whole region, or at this
    /// peer. Looks at every directory.
    pub fn is_crowded(&self) -> bool {
        // A handler may come here again, and directories are kept behind a lock.
        let _blocked = Blocked::new();
        let (mut all, mut here) = (0, 0);
        for info in self.region().peers() {
            let count = self.directory(info.index).map_or(0, |(_, d)| d.processes()) as u64;
            all += count;
            if info.index == self.peer() {
                here = count;
            }
        }
        self.is_too_many(all, here)
    }

    /// Whether `all` threads, `here` of them of this system, are more than there are processors for them.
    pub fn is_too_many(&self, all: u64, here: u64) -> bool {
        self.region().processors().is_some_and(|count| all > count)
            || self.processors().is_some_and(|count| here > count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_come_before_yields_and_both_end() {
        for (is_crowded, polls) in [(false, 2000), (true, 100)] {
            let mut count = 0;
            assert!(!Pace::CHANNELS.spin(is_crowded, || {
                count += 1;
                false
            }));
            assert_eq!(count, polls + 8);
            assert!(
                Pace::CHANNELS.spin(is_crowded, || {
                    count -= 1;
                    count == 0
                }),
                "found at the last poll"
            );
        }
    }

    #[test]
    fn a_crowd_is_seen_by_what_yields_cost_beside_the_shortest() {
        let crowd = Crowd::default();
        let (idle, used) = (Duration::from_nanos(400), Duration::from_micros(5));
        assert!(!crowd.note(used), "there is nothing to compare the first one with");
        assert!(!crowd.note(idle) && !crowd.is_there());
        assert!(crowd.note(used) && !crowd.is_there());
        assert!(crowd.note(used) && crowd.is_there());
        assert_eq!(crowd.yielded(), idle + 3 * used);
        // An emulated processor takes longer for everything.
        let slow = Crowd::default();
        assert!(!slow.note(used) && !slow.note(2 * used) && slow.note(4 * used));
        for _ in 0..100 {
            crowd.note(used);
        }
        for _ in 0..57 {
            crowd.note(idle);
        }
        assert!(!crowd.is_there(), "64 is the most");
        crowd.nap(Duration::ZERO);
        assert_eq!(crowd.yielded(), Duration::ZERO);
    }
}
