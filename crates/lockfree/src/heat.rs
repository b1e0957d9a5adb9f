//! Hot lanes: the handshake by which a ring leaves the set that its receiver polls directly.
//!
//! The receiver writes the *heat* word: odd means hot ("I poll this ring, do not announce"), even means cold
//! ("announce"). It only counts up. The sender reads it before each message and, when it finds a new even value,
//! writes it to its *answer* word. A receiver that cools a ring goes on looking at it now and then until the answer
//! equals the heat word, and once more after that. No fence is needed on either side:
//!
//! ```text
//! receiver: heat := 2k (cold)                         sender: h := heat
//!           ... looks at the ring now and then ...            h even and new: answer := h (release)
//!           answer == 2k (acquire): look once more            publish the slot; h even: announce
//! ```
//! A slot published without an announcement was published by a sender that had not answered yet, so it precedes
//! the answer, and the last look sees it (P4). A ring that turned hot while the sender still announces costs an
//! announcement too many, nothing else.

use crate::sync::{ReadWord, Word};

/// The receiver's side of one ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heat {
    /// Polled directly; the sender is told not to announce.
    Hot,
    /// Asked to cool; the sender has not answered.
    Cooling,
    /// The sender announces every message.
    Cold,
}

/// What the receiver keeps for one ring. A fresh ring is cold: a zero heat word says so.
#[derive(Debug)]
pub struct Thermostat {
    value: u64,
    answered: bool,
}

impl Default for Thermostat {
    fn default() -> Self {
        Self { value: 0, answered: true }
    }
}

impl Thermostat {
    /// The ring's state.
    pub fn heat(&self) -> Heat {
        match (self.value % 2 == 1, self.answered) {
            (true, _) => Heat::Hot,
            (false, true) => Heat::Cold,
            (false, false) => Heat::Cooling,
        }
    }

    /// Makes the ring hot. From here on the caller polls it.
    pub fn warm(&mut self, heat: &Word) {
        if self.value.is_multiple_of(2) {
            self.value += 1;
            heat.set(self.value);
        }
    }

    /// Asks the sender to announce again. The caller goes on looking until [`Thermostat::settled`].
    pub fn cool(&mut self, heat: &Word) {
        if self.value % 2 == 1 {
            self.value += 1;
            self.answered = false;
            heat.set(self.value);
        }
    }

    /// Whether the sender has answered. On the first `true` the caller looks at the ring once more (P4).
    pub fn settled(&mut self, answer: &ReadWord) -> bool {
        if !self.answered && answer.get() == self.value {
            self.answered = true;
        }
        self.answered
    }
}

/// The sender's side: must the message that is about to be published be announced?
///
/// # Ordering
/// Called **before** the slot is published. The answer is a release store after all earlier slots; it pairs with
/// the acquire in [`Thermostat::settled`] (P4). The heat word itself may be read relaxed: an old value is safe.
#[inline]
pub fn must_announce(heat: &ReadWord, answer: &Word, answered: &mut u64) -> bool {
    let value = heat.peek();
    if value % 2 == 1 {
        return false;
    }
    if value != *answered {
        *answered = value;
        answer.set(value);
    }
    true
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_hot_until_its_sender_has_answered_that_it_is_cold() {
        let (heat, answer, mut answered) = (Word::new(0), Word::new(0), 0);
        let mut thermostat = Thermostat::default();
        assert!(must_announce(&heat, &answer, &mut answered), "cold to begin with");
        for _ in 0..3 {
            thermostat.cool(&heat);
            assert_eq!(thermostat.heat(), Heat::Cold, "it is cold already");
            thermostat.warm(&heat);
            let hot = heat.get();
            thermostat.warm(&heat);
            assert_eq!((thermostat.heat(), heat.get()), (Heat::Hot, hot), "once");
            assert!(!must_announce(&heat, &answer, &mut answered), "it is polled");
            thermostat.cool(&heat);
            assert_eq!(thermostat.heat(), Heat::Cooling);
            assert!(!thermostat.settled(&answer), "the sender does not know");
            assert!(must_announce(&heat, &answer, &mut answered));
            assert_eq!(thermostat.heat(), Heat::Cooling, "the answer was not read yet");
            assert!(thermostat.settled(&answer));
            assert_eq!(thermostat.heat(), Heat::Cold);
        }
    }
}
