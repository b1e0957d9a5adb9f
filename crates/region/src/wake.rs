//! Sleeping on a word of the region, and waking the sleepers, natively: a futex, which the kernel knows by the file and the
//! offset, so that processes with different mappings meet there. In a device's BAR there is no such thing (`EFAULT`).

use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, Timespec, Wait, WaitFlags, WaitPtr, WaitvFlags};
use rustix::time::ClockId;

use crate::shared_by_threads::Flag;
use crate::sync::{ReadWord, Word};

/// Sleeps until the word no longer has the value `seen`, [`wake`] is called, the time is up, or a signal comes.
pub fn wait(word: &ReadWord, seen: u64, limit: Duration) {
    let limit = Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    #[allow(clippy::cast_possible_truncation)] // the half that the futex is
    let seen = seen as u32;
    // All of its outcomes mean the same: poll again.
    let _ = futex::wait(word.futex(), Flags::empty(), seen, Some(&limit));
}

/// As [`wait`], at two words at once: a ring at either ends the sleep. Where the kernel lacks this (before Linux 5.16), or a
/// filter of system calls refuses it, as container runtimes do, only the first is slept at.
pub fn wait_either(words: [(&ReadWord, u64); 2], limit: Duration) {
    static IS_THERE: Flag = Flag::new(true);
    if !IS_THERE.is_set() {
        return wait(words[0].0, words[0].1, limit);
    }
    let waiters = words.map(|(word, seen)| {
        let mut wait = Wait::new();
        wait.val = seen & u64::from(u32::MAX);
        wait.uaddr = WaitPtr::new(std::ptr::from_ref(word.futex()).cast_mut().cast());
        wait.flags = WaitFlags::SIZE_U32;
        wait
    });
    // This call takes a point in time.
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    let until = Timespec::try_from(limit.min(Duration::from_secs(86_400)))
        .ok()
        .and_then(|limit| now.checked_add(limit));
    match futex::waitv(&waiters, WaitvFlags::empty(), until.as_ref(), ClockId::Monotonic) {
        Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
        // Whatever the refusal is: a caller must sleep, not come back at once for ever.
        Err(_) => {
            IS_THERE.clear();
            wait(words[0].0, words[0].1, limit);
        }
    }
}

/// Finds the system's clocks. Before Linux 6.4 the first look at one reads a file, and allocates for that: not in a call that signals may
/// interrupt, nor one that is no point of cancellation.
pub(crate) fn find_clocks() {
    let _ = rustix::time::clock_gettime(ClockId::Monotonic);
}

/// Adds one to the word and wakes all that sleep on it.
pub fn wake(word: &Word) {
    word.add(1);
    let _ = futex::wake(word.futex(), Flags::empty(), i32::MAX as u32);
}

/// Wakes up to `count` of the sleepers on the word, which was changed already.
pub fn ring(word: &ReadWord, count: u32) {
    let _ = futex::wake(word.futex(), Flags::empty(), count.min(i32::MAX as u32));
}

/// Whether one can sleep on this word at all.
pub fn works(word: &ReadWord) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 1 };
    #[allow(clippy::cast_possible_truncation)] // any other value will do
    let other = !(word.peek() as u32);
    !matches!(
        futex::wait(word.futex(), Flags::empty(), other, Some(&at_once)),
        Err(Errno::FAULT | Errno::NOSYS)
    )
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Instant;

    use super::*;
    use crate::mapping::Mapping;

    #[test]
    fn a_sleeper_is_woken_through_another_mapping() {
        let fd = crate::create::memory(1 << 20).unwrap();
        let (here, there) = (
            Mapping::map(fd.as_fd(), 1 << 20).unwrap().whole().unwrap(),
            Mapping::map(fd.as_fd(), 1 << 20).unwrap().whole().unwrap(),
        );
        let word = here.word("test", 64).unwrap();
        assert!(works(word));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                wake(there.word("test", 64).unwrap());
            });
            let begun = Instant::now();
            while word.get() == 0 {
                wait(word, 0, Duration::from_secs(20));
            }
            assert!(begun.elapsed() < Duration::from_secs(15), "woken, not timed out");
        });
    }

    #[test]
    fn a_word_that_has_changed_already_is_not_slept_on() {
        let word = Word::new(5);
        let begun = Instant::now();
        wait(&word, 4, Duration::from_secs(20));
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
