//! Models of the commit of minitransactions, for the checker loom: `make loom`. Two words of data, one lock or two, two slots.
//!
//! Loom remembers the last access to each word, and looks for other orders against that one alone. So the models do not read a
//! word just before they change it, where that would hide an access of another thread.
//!
//! A thread that dies just returns, and the word that says whether it lives is changed then, as a service does. A green model
//! does not prove everything: see `loom.rs`.
#![cfg(loom)]

use isthmus_lockfree::commit::{self, Phase, State};
use isthmus_lockfree::sync::Word;
use loom::sync::Arc;
use loom::thread;

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

/// The shared memory: a machinery and a segment of two words, each of which has a lock.
struct Space {
    locks: [Word; 2],
    data: [Word; 2],
    slots: [Slot; 3],
    /// Whether each of the processes 1 to 3 lives: 0 if so.
    dead: [Word; 4],
}

#[derive(Default)]
struct Slot {
    owner: Cell,
    state: Cell,
    flight: Cell,
    /// Two new values.
    log: [Cell; 2],
}

struct Cell(Word);

impl Default for Cell {
    fn default() -> Self {
        Self(Word::new(0))
    }
}

impl std::ops::Deref for Cell {
    type Target = Word;

    fn deref(&self) -> &Word {
        &self.0
    }
}

impl Space {
    fn new() -> Arc<Self> {
        let words = || [Word::new(0), Word::new(0)];
        let dead = [Word::new(0), Word::new(0), Word::new(0), Word::new(0)];
        let space = Self { locks: words(), data: words(), slots: Default::default(), dead };
        for (slot, owner) in space.slots.iter().zip(1..) {
            slot.owner.set(owner);
        }
        Arc::new(space)
    }

    fn die(&self, process: u64) {
        self.dead[process as usize].set(1);
    }

    fn is_dead(&self, process: u64) -> bool {
        process != 0 && self.dead[process as usize].get() != 0
    }

    /// Adds one to both words, in a transaction of slot `slot`; dies before step `death`. Gives whether it is done; waits
    /// for locks as long as it takes, or not at all.
    fn add_to_both(&self, slot: usize, generation: u64, patient: bool, death: u32) -> bool {
        let new = || [self.data[0].peek() + 1, self.data[1].peek() + 1];
        self.write_both(slot, generation, patient, death, new)
    }

    /// The same with any new values.
    fn write_both(
        &self,
        slot: usize,
        generation: u64,
        patient: bool,
        death: u32,
        new: impl FnOnce() -> [u64; 2],
    ) -> bool {
        let own = &self.slots[slot];
        let token = commit::token(slot as u64, generation);
        let mut left = death;
        let mut dies = || {
            left = left.wrapping_sub(1);
            left == 0
        };
        commit::before_log();
        commit::begin(&own.state, generation);
        if dies() {
            return false;
        }
        for (i, lock) in self.locks.iter().enumerate() {
            while let Err(other) = commit::take(lock, token) {
                if !patient {
                    commit::finish(&own.state, generation);
                    self.locks[..i].iter().for_each(commit::free);
                    return false;
                }
                self.recover(other);
                thread::yield_now();
            }
            if dies() {
                return false;
            }
        }
        commit::after_locks();
        for (i, other) in self.slots.iter().enumerate() {
            while i != slot && commit::in_flight(&other.flight).is_some() {
                if self.is_dead(other.owner.get()) {
                    break;
                }
                thread::yield_now();
            }
        }
        // The model's log can name new values only once the old ones are known; ours names them from the beginning.
        let new = new();
        own.log[0].put(new[0]);
        own.log[1].put(new[1]);
        if dies() {
            return false;
        }
        commit::commit(&own.state, generation);
        for (data, value) in self.data.iter().zip(new) {
            if dies() {
                return false;
            }
            data.put(value);
        }
        if dies() {
            return false;
        }
        commit::finish(&own.state, generation);
        for lock in &self.locks {
            if dies() {
                return false;
            }
            commit::free(lock);
        }
        true
    }

    /// Completes or undoes what a dead holder of a lock was at, as process 3 or, in a second life, 2.
    fn recover(&self, token: u64) {
        let (slot, _) = commit::holder(token).unwrap();
        self.recover_as(slot as usize, 3, 0);
    }

    /// The same; dies before step `death`. Gives whether it had the claim.
    fn recover_as(&self, slot: usize, process: u64, death: u32) -> bool {
        let own = &self.slots[slot];
        let claim = |dead: u64| self.is_dead(dead) && commit::claim(&own.owner, dead, process);
        if !(1..=2).any(claim) {
            return false;
        }
        let mut left = death;
        let mut dies = || {
            left = left.wrapping_sub(1);
            left == 0
        };
        if dies() {
            return true;
        }
        let State { generation, phase } = commit::inherit(&own.state);
        if phase == Phase::Committed {
            for (data, log) in self.data.iter().zip(&own.log) {
                data.put(log.peek());
                if dies() {
                    return true;
                }
            }
            commit::finish(&own.state, generation);
            if dies() {
                return true;
            }
        }
        for lock in &self.locks {
            commit::free_inherited(lock, commit::token(slot as u64, generation));
            if dies() {
                return true;
            }
        }
        commit::settle(&own.state, generation);
        commit::withdraw(&own.flight);
        if dies() {
            return true;
        }
        own.owner.set(0);
        true
    }

    /// One try to add `by` to word 0 by itself; dies before step `death`. Gives whether it was made.
    fn add_to_one(&self, slot: usize, by: u64, death: u32) -> bool {
        let flight = &self.slots[slot].flight;
        commit::announce(flight, 0);
        if death == 1 {
            return false;
        }
        let change = |old: u64| self.data[0].replace(old, old + by).is_ok();
        let is_made = self.locks[0].get() == 0 && (0..=1).any(change);
        if death == 2 {
            return is_made;
        }
        commit::withdraw(flight);
        is_made
    }

    fn values(&self) -> (u64, u64) {
        let read = |i: usize| commit::read(&self.data[i], &self.locks[i]).expect("no lock is left");
        (read(0), read(1))
    }
}

/// P14: a change of one word and a transaction over it: none of them is lost.
#[test]
fn a_change_of_one_word_does_not_get_into_a_transaction() {
    model(|| {
        let space = Space::new();
        let far = Arc::clone(&space);
        let one = thread::spawn(move || far.add_to_one(1, 10, 0));
        assert!(space.add_to_both(0, 1, true, 0));
        let added = if one.join().unwrap() { 10 } else { 0 };
        assert_eq!(space.values(), (1 + added, 1));
    });
}

/// P13: two transactions over the same words: none is lost, and what one wrote the other sees whole.
#[test]
fn transactions_come_one_after_the_other() {
    model(|| {
        let space = Space::new();
        let far = Arc::clone(&space);
        let other = thread::spawn(move || far.add_to_both(1, 1, false, 0));
        let done = u64::from(space.add_to_both(0, 1, false, 0));
        let done = done + u64::from(other.join().unwrap());
        assert_eq!(space.values(), (done, done));
        assert!(space.add_to_both(0, 2, false, 0), "all locks are free");
    });
}

/// P13: a reader of single words never sees the second older than the first.
#[test]
fn reads_of_one_word_see_nothing_half_done() {
    for order in [[0, 1], [1, 0]] {
        model(move || {
            let space = Space::new();
            let far = Arc::clone(&space);
            let writer = thread::spawn(move || far.write_both(0, 1, true, 0, || [1, 1]));
            let [first, second] = order.map(|i| commit::read(&space.data[i], &space.locks[i]).ok());
            if let (Some(first), Some(second)) = (first, second) {
                assert!(second >= first, "{second} after {first}");
            }
            writer.join().unwrap();
        });
    }
}

/// P15: the owner dies before each of its steps; of two that find that out at once, one completes or undoes it, while a third
/// reads; and the next transaction finds it all or not at all.
#[test]
fn what_the_dead_left_is_all_or_nothing() {
    for death in 1..=9 {
        model(move || {
            let space = Space::new();
            space.add_to_both(0, 1, true, death);
            space.die(1);
            let far = Arc::clone(&space);
            let other = thread::spawn(move || {
                far.recover_as(0, 2, 0);
                let first = commit::read(&far.data[0], &far.locks[0]).ok();
                let second = commit::read(&far.data[1], &far.locks[1]).ok();
                if let (Some(first), Some(second)) = (first, second) {
                    assert!(second >= first, "{second} after {first}");
                }
            });
            space.recover_as(0, 3, 0);
            other.join().unwrap();
            let expected = u64::from(death > 4);
            assert_eq!(space.values(), (expected, expected));
            assert!(space.add_to_both(2, 1, false, 0), "all locks are free");
        });
    }
}

/// P15: a death while another transaction waits for the locks, which recovers and goes on: nothing that it wrote is written
/// over.
#[test]
fn nothing_is_replayed_over_what_came_later() {
    for death in 1..=9 {
        model(move || {
            let space = Space::new();
            let far = Arc::clone(&space);
            let owner = thread::spawn(move || {
                far.add_to_both(0, 1, false, death);
                far.die(1);
            });
            let done = space.add_to_both(2, 1, false, 0);
            owner.join().unwrap();
            space.recover_as(0, 3, 0);
            let (a, b) = space.values();
            assert_eq!(a, b);
            assert!(a >= u64::from(done) && a <= 2, "{a}");
            assert!(space.add_to_both(2, 2, false, 0), "all locks are free");
        });
    }
}

/// P16: an heir dies before each of its steps, too, while another one is at it; the claim passes on.
#[test]
fn heirs_die_and_have_heirs() {
    for death in [2, 5, 6, 8, 9] {
        for second in 1..=8 {
            model(move || {
                let space = Space::new();
                space.add_to_both(0, 1, true, death);
                space.die(1);
                let far = Arc::clone(&space);
                let heir = thread::spawn(move || {
                    far.recover_as(0, 2, second);
                    far.die(2);
                });
                space.recover_as(0, 3, 0);
                heir.join().unwrap();
                space.recover_as(0, 3, 0);
                let expected = u64::from(death > 4);
                assert_eq!(space.values(), (expected, expected));
                assert!(space.add_to_both(2, 1, false, 0), "all locks are free");
            });
        }
    }
}

/// P14: a process that dies in a change of one word leaves it made or not made, and nothing waits for it.
#[test]
fn the_flight_of_the_dead_is_over() {
    for death in [1, 2] {
        model(move || {
            let space = Space::new();
            let far = Arc::clone(&space);
            let one = thread::spawn(move || {
                let is_made = far.add_to_one(1, 10, death);
                far.die(2);
                is_made
            });
            assert!(space.add_to_both(0, 1, true, 0));
            let added = if one.join().unwrap() { 10 } else { 0 };
            assert_eq!(space.values(), (1 + added, 1));
        });
    }
}

/// A clear of the last slot by its owner, while two claim it: one gets it (P16).
#[test]
fn a_free_slot_has_one_taker() {
    model(|| {
        let space = Space::new();
        let far = Arc::clone(&space);
        let other = thread::spawn(move || commit::claim(&far.slots[0].owner, 0, 2));
        space.slots[0].owner.set(0);
        let own = commit::claim(&space.slots[0].owner, 0, 3);
        let other = other.join().unwrap();
        assert!(!(own && other) && (own || other));
    });
}

/// P15: a lock that is free is not the dead owner's any more: a change under it is not undone by the heir, although it
/// still finds the other lock taken.
#[test]
fn a_change_under_a_freed_lock_stays() {
    model(|| {
        let space = Space::new();
        let far = Arc::clone(&space);
        let owner = thread::spawn(move || {
            far.write_both(0, 1, true, 9, || [1, 1]);
            far.die(1);
        });
        let is_made = space.add_to_one(1, 10, 0);
        space.recover_as(0, 3, 0);
        owner.join().unwrap();
        space.recover_as(0, 3, 0);
        let (a, b) = space.values();
        // A change before the transaction is written over by it, here, since its new values do not depend on the old.
        assert!((a == 1 || (is_made && a == 11)) && b == 1, "{a} {b}");
    });
    // And one that surely comes after the first lock was freed.
    model(|| {
        let space = Space::new();
        space.write_both(0, 1, true, 9, || [1, 1]);
        space.die(1);
        let far = Arc::clone(&space);
        let heir = thread::spawn(move || far.recover_as(0, 3, 0));
        assert!(space.add_to_one(1, 10, 0));
        assert!(heir.join().unwrap());
        assert_eq!(space.values(), (11, 1));
    });
}

/// P15: an heir frees the locks of the dead process, and no others.
#[test]
fn an_heir_frees_nothing_of_others() {
    for death in [1, 2] {
        model(move || {
            let space = Space::new();
            space.add_to_both(0, 1, true, death);
            space.die(1);
            let far = Arc::clone(&space);
            let other = thread::spawn(move || {
                far.recover_as(0, 2, 0);
                far.add_to_both(1, 1, false, 0)
            });
            let done = u64::from(space.add_to_both(2, 1, false, 0));
            let done = done + u64::from(other.join().unwrap());
            assert_eq!(space.values(), (done, done));
        });
    }
}

/// P13: a reader of a word that an heir wrote, which knows of no death, sees the dead owner's lock.
#[test]
fn what_an_heir_writes_is_not_read_too_early() {
    model(|| {
        let space = Space::new();
        let (far, near) = (Arc::clone(&space), Arc::clone(&space));
        let owner = thread::spawn(move || {
            far.write_both(0, 1, true, 5, || [1, 1]);
            far.die(1);
        });
        let heir = thread::spawn(move || near.recover_as(0, 3, 0));
        let [first, second] = [0, 1].map(|i| commit::read(&space.data[i], &space.locks[i]).ok());
        if let (Some(first), Some(second)) = (first, second) {
            assert!(second >= first, "{second} after {first}");
        }
        owner.join().unwrap();
        heir.join().unwrap();
    });
}

/// P15: while a lock is taken, its holder's slot is in the transaction that the lock names; a thread that finds it otherwise finds the
/// lock freed.
#[test]
fn a_lock_names_a_transaction_that_goes_on() {
    model(|| {
        let space = Space::new();
        let far = Arc::clone(&space);
        let writer = thread::spawn(move || {
            far.write_both(0, 1, true, 0, || [1, 1]);
            commit::before_log();
            commit::begin(&far.slots[0].state, 2);
        });
        let token = space.locks[1].get();
        if let Some((slot, generation)) = commit::holder(token) {
            let state = State::unpack(space.slots[slot as usize].state.get());
            if state.generation != generation || state.phase == Phase::Idle {
                assert_ne!(space.locks[1].get(), token);
            }
        }
        writer.join().unwrap();
    });
}
