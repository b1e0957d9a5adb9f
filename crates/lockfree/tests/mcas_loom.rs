//! Models of changes of several words at once, for the checker loom: `make loom`. Two words, two or three slots.
//!
//! A thread that dies leaves its change where it was, and never comes back. A green model does not prove everything: see `loom.rs`.
#![cfg(loom)]

use isthmus_lockfree::mcas::{self, Change, Entry, Memory, Phase, Slot, State};
use isthmus_lockfree::sync::Word;
use loom::sync::Arc;
use loom::thread;

fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(f);
}

struct Words {
    words: [Word; 2],
    slots: [[Word; 9]; 2],
    /// How many looks at a mark of each slot there may be.
    patience: [u32; 2],
}

impl Words {
    fn new(patience: [u32; 2]) -> Arc<Self> {
        let word = |_| Word::new(0);
        let slot = |_| std::array::from_fn(word);
        Arc::new(Self { words: std::array::from_fn(word), slots: std::array::from_fn(slot), patience })
    }

    fn value(&self, place: u64) -> u64 {
        mcas::read(self, place).unwrap()
    }

    fn add_alone(&self, place: u64) {
        loop {
            let value = self.value(place);
            if self.words[place as usize].replace(value, value + 1).is_ok() {
                return;
            }
        }
    }
}

impl Memory for Words {
    fn word(&self, place: u64) -> Option<&Word> {
        self.words.get(place as usize)
    }

    fn slot(&self, slot: u64) -> Option<Slot<'_>> {
        let [owner, state, count, ..] = self.slots.get(slot as usize)?;
        Some(Slot { owner, state, count })
    }

    fn entry(&self, slot: u64, index: u64) -> Option<Entry<'_>> {
        match self.slots.get(slot as usize)?.get(3 + 3 * index as usize..)? {
            [place, old, new, ..] => Some(Entry { place, old, new }),
            _ => None,
        }
    }

    fn patience(&self, slot: u64) -> u32 {
        self.patience[slot as usize]
    }
}

/// One try to add one to both words; goes away for ever before `death` (0: never). Gives whether it is made.
fn try_add(words: &Words, slot: u64, death: u32) -> bool {
    let mut left = death;
    let mut dies = || {
        left = left.wrapping_sub(1);
        left == 0
    };
    let mut change = Change::begin(words, slot).unwrap();
    for index in 0..2 {
        if dies() {
            std::mem::forget(change);
            return false;
        }
        let old = change.take(index).unwrap();
        change.set(index, old + 1);
    }
    if dies() {
        std::mem::forget(change);
        return false;
    }
    change.commit()
}

/// The same as process 1 or 2, until it is made.
fn add(words: &Words, slot: u64) {
    while !mcas::claim(words, slot, 0, slot + 1) {
        thread::yield_now();
    }
    while !try_add(words, slot, 0) {
        while !mcas::claim(words, slot, 0, slot + 1) {
            thread::yield_now();
        }
    }
}

/// P22: two changes of the same words, of which one calls the other off, or completes it: both are made, once.
#[test]
fn changes_come_one_after_the_other() {
    for patience in [[0, 0], [1, 0]] {
        model(2, move || {
            let words = Words::new(patience);
            let far = Arc::clone(&words);
            let other = thread::spawn(move || add(&far, 1));
            add(&words, 0);
            other.join().unwrap();
            assert_eq!([words.value(0), words.value(1)], [2, 2]);
        });
    }
}

/// P24: two threads that use the same slot, one after the other.
#[test]
fn a_slot_has_one_owner_who_sees_all_of_the_last_one() {
    model(2, || {
        let words = Words::new([0, 0]);
        let far = Arc::clone(&words);
        let other = thread::spawn(move || mcas::claim(&*far, 0, 0, 2) && try_add(&far, 0, 0));
        let done = u64::from(mcas::claim(&*words, 0, 0, 1) && try_add(&words, 0, 0));
        let done = done + u64::from(other.join().unwrap());
        assert!(done > 0);
        assert_eq!([words.value(0), words.value(1)], [done, done]);
    });
}

/// P22: a word that is changed alone, meanwhile.
#[test]
fn a_change_of_one_word_is_not_lost() {
    for place in [0, 1] {
        model(3, move || {
            let words = Words::new([0, 0]);
            let far = Arc::clone(&words);
            let other = thread::spawn(move || far.add_alone(place));
            add(&words, 0);
            other.join().unwrap();
            assert_eq!(words.value(place), 2);
            assert_eq!(words.value(1 - place), 1);
        });
    }
}

/// P22: a reader of both words never sees the second without the first.
#[test]
fn a_reader_sees_nothing_half_done() {
    for [first, second] in [[0, 1], [1, 0]] {
        model(3, move || {
            let words = Words::new([0, 0]);
            let far = Arc::clone(&words);
            let other = thread::spawn(move || add(&far, 0));
            let before = words.value(first);
            let after = words.value(second);
            assert!(after >= before, "{after} after {before}");
            other.join().unwrap();
        });
    }
}

/// P23: a thread that helps is late: the slot makes its next change meanwhile.
#[test]
fn a_late_helper_does_no_harm() {
    model(3, || {
        let words = Words::new([0, 0]);
        let far = Arc::clone(&words);
        let other = thread::spawn(move || far.value(1));
        let mut done = 0;
        for _ in 0..2 {
            assert!(mcas::claim(&*words, 0, 0, 1));
            done += u64::from(try_add(&words, 0, 0));
        }
        assert!(other.join().unwrap() <= done);
        assert_eq!([words.value(0), words.value(1)], [done, done]);
    });
}

/// P24: a thread dies before each of its steps; two others meet what it left, one of them as heir of its slot.
#[test]
fn what_the_dead_left_is_all_or_nothing() {
    for death in 1..=3 {
        model(2, move || {
            let words = Words::new([0, 0]);
            assert!(mcas::claim(&*words, 0, 0, 1));
            try_add(&words, 0, death);
            let far = Arc::clone(&words);
            let heir = thread::spawn(move || {
                // Process 1 is dead.
                assert!(mcas::claim(&*far, 0, 1, 3));
                try_add(&far, 0, 0)
            });
            words.add_alone(0);
            let done = u64::from(heir.join().unwrap());
            assert_eq!([words.value(0), words.value(1)], [done + 1, done]);
        });
    }
}

/// P22, P24: a decided change is completed, whoever comes.
#[test]
fn what_the_dead_had_decided_is_completed() {
    model(2, || {
        let words = Words::new([0, 0]);
        assert!(mcas::claim(&*words, 0, 0, 1));
        // As far as the marks, and the decision without the rest.
        let mut change = Change::begin(&*words, 0).unwrap();
        for index in 0..2 {
            let old = change.take(index).unwrap();
            change.set(index, old + 1);
        }
        std::mem::forget(change);
        let state = &words.slots[0][1];
        let now = State::unpack(state.get());
        state.set(State { phase: Phase::Committed, ..now }.pack());
        let far = Arc::clone(&words);
        let heir = thread::spawn(move || {
            assert!(mcas::claim(&*far, 0, 1, 3));
            try_add(&far, 0, 0)
        });
        let (first, second) = (words.value(0), words.value(1));
        assert!(first >= 1 && second >= first);
        let done = u64::from(heir.join().unwrap());
        assert_eq!([words.value(0), words.value(1)], [done + 1, done + 1]);
    });
}
