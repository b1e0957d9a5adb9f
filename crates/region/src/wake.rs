//! Sleeping on a word of the region, and waking the sleepers, natively: a futex, which the kernel knows by the file and the
//! offset, so that processes with different mappings meet there. In a device's BAR there is no such thing (`EFAULT`).

use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, Timespec};

use crate::sync::{ReadWord, Word};

/// Sleeps until the word no longer has the value `seen`, [`wake`] is called, the time is up, or a signal comes.
pub fn wait(word: &ReadWord, seen: u64, limit: Duration) {
    let limit = Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    #[allow(clippy::cast_possible_truncation)] // the half that the futex is
    let seen = seen as u32;
    // All of its outcomes mean the same: look again.
    let _ = futex::wait(word.futex(), Flags::empty(), seen, Some(&limit));
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
