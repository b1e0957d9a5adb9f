//! Sleeping: how a receiver stops polling without missing a message.
//!
//! A receiver that is about to sleep says so in its *sleep* word, and then looks once more at everything that could
//! have arrived; a sender that has announced a message then reads that word. A full fence stands between the store and
//! the load on each side, so at least one of them sees the other (P6):
//!
//! ```text
//! receiver: sleep := on (release)         sender: publish the slot, add to the activity word (release)
//!           full fence                            full fence
//!           look at the activity words            read the sleep word: on? then ring
//!           nothing there: wait for the bell
//! ```
//! Hot rings are cooled first ([`crate::heat`]), since their senders neither announce nor look. A sender that has not
//! answered yet may publish without ringing; until it has, the receiver sleeps for a bounded time only.
//!
//! The word counts the sleeps, so that a sender rings once for each, however much it sends meanwhile.

use crate::sync::{ReadWord, Word, full_fence};

/// How a sleeper is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bell {
    /// Its wake word is a futex for the processes of its own peer.
    Futex,
    /// Its local service rings it, by a pipe.
    Service,
}

const MODE_BITS: u32 = 2;

/// Says that the receiver is going to sleep for the `count`th time. The look that decides comes after this.
pub fn announce_sleep(sleep: &Word, count: u64, bell: Bell) {
    let mode = match bell {
        Bell::Futex => 1,
        Bell::Service => 2,
    };
    sleep.set((count << MODE_BITS) | mode);
    full_fence();
}

/// Says that the receiver is awake.
pub fn announce_awake(sleep: &Word) {
    sleep.set(0);
}

/// Whether a thread sleeps there, for tools.
pub fn is_asleep(sleep: &ReadWord) -> bool {
    sleep.peek() != 0
}

/// After something was announced: how its receiver wants to be woken, if it sleeps and was not rung for this sleep yet.
#[inline]
pub fn who_to_ring(sleep: &ReadWord, rung: &mut u64) -> Option<Bell> {
    full_fence();
    let word = sleep.peek();
    if word == 0 || word == *rung {
        return None;
    }
    *rung = word;
    match word % (1 << MODE_BITS) {
        1 => Some(Bell::Futex),
        2 => Some(Bell::Service),
        _ => None,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_sleep_is_rung_once_and_by_its_own_bell() {
        let (sleep, mut rung) = (Word::new(0), 0);
        assert!(!is_asleep(&sleep));
        assert_eq!(who_to_ring(&sleep, &mut rung), None, "there was no sleep yet");
        for count in 1..9 {
            // The same bell again, so that only the count tells one sleep from the one before.
            let bell = if count < 5 { Bell::Futex } else { Bell::Service };
            announce_sleep(&sleep, count, bell);
            assert!(is_asleep(&sleep));
            assert_eq!(who_to_ring(&sleep, &mut rung), Some(bell), "sleep {count}");
            assert_eq!(who_to_ring(&sleep, &mut rung), None, "sleep {count} was rung");
        }
        announce_sleep(&sleep, 9, Bell::Futex);
        announce_awake(&sleep);
        assert!(!is_asleep(&sleep));
        assert_eq!(who_to_ring(&sleep, &mut rung), None, "it is awake");
    }
}
