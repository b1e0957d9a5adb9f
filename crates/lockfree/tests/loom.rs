//! Models for the checker loom: `make loom`. Sizes are tiny so that rare paths are common.
//!
//! A green model does not prove everything: loom explores interleavings and most reorderings of two or three threads
//! of one process, and knows nothing of a second mapping of the same memory.
#![cfg(loom)]

use isthmus_lockfree::activity::{self, Seen};
use isthmus_lockfree::gate;
use isthmus_lockfree::heat::{Heat, Thermostat, must_announce};
use isthmus_lockfree::hold;
use isthmus_lockfree::life::{Life, State, unchanged};
use isthmus_lockfree::ring::{Consumer, Producer, ReadSlots, Slots};
use isthmus_lockfree::sleep::{Bell, announce_awake, announce_sleep, who_to_ring};
use isthmus_lockfree::slot::{ReadSlot, Slot};
use isthmus_lockfree::sync::{Line, Word, release_fence};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

struct Ring {
    slots: Vec<Slot>,
    read: Word,
}

impl Ring {
    fn new(capacity: usize) -> Self {
        Self { slots: (0..capacity).map(|_| Slot::new()).collect(), read: Word::new(0) }
    }
}

impl ReadSlots for Ring {
    fn read_slot(&self, position: u64) -> &ReadSlot {
        self.slot(position)
    }

    fn capacity(&self) -> u64 {
        self.slots.len() as u64
    }
}

impl Slots for Ring {
    fn slot(&self, position: u64) -> &Slot {
        &self.slots[position as usize % self.slots.len()]
    }
}

/// Bytes that are no atomics, as those of a data ring: loom reports accesses to them that nothing orders.
struct Bytes(UnsafeCell<u64>);

// SAFETY: what orders the accesses is what the models are about.
unsafe impl Sync for Bytes {}
// SAFETY: as for Sync.
unsafe impl Send for Bytes {}

impl Bytes {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    fn put(&self, value: u64) {
        // SAFETY: loom checks that no other thread is at it.
        self.0.with_mut(|at| unsafe { *at = value });
    }

    fn get(&self) -> u64 {
        // SAFETY: loom checks that no other thread writes there.
        self.0.with(|at| unsafe { *at })
    }
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

fn push_all(ring: &Ring, count: u64, before: impl Fn(u64)) {
    let mut producer = Producer::new(ring.capacity());
    for i in 0..count {
        while !producer.has_room() {
            producer.refresh(&ring.read).unwrap();
            if !producer.has_room() {
                thread::yield_now();
            }
        }
        before(i);
        producer.push(ring, &[0, i, i + 100, 0, 0, 0, 0, 0], 3);
    }
}

fn pop_all(ring: &Ring, count: u64, check: impl Fn(u64)) {
    let mut consumer = Consumer::new();
    for i in 0..count {
        let message = loop {
            match consumer.peek(ring) {
                Some(message) => break message,
                None => thread::yield_now(),
            }
        };
        assert_eq!((message[1], message[2]), (i, i + 100), "payload belongs to its stamp");
        check(i);
        consumer.advance();
        consumer.release(&ring.read);
    }
    assert!(consumer.peek(ring).is_none());
}

/// P1 and P2: payloads are whole, nothing is lost or doubled, over two and a half laps of a ring that is full on the way.
#[test]
fn ring_keeps_order_and_payload_over_a_wrap_and_when_full() {
    model(|| {
        let ring = Arc::new(Ring::new(2));
        let far = Arc::clone(&ring);
        let producer = thread::spawn(move || push_all(&far, 5, |_| ()));
        pop_all(&ring, 5, |_| ());
        producer.join().unwrap();
    });
}

/// P2: a slot, and the bytes in the data ring that go with it, are written again only after the consumer's loads of them are over.
#[test]
fn slot_is_reused_only_after_it_was_read() {
    model(|| {
        let shared = Arc::new((Ring::new(1), Bytes::new()));
        let far = Arc::clone(&shared);
        let producer = thread::spawn(move || push_all(&far.0, 3, |i| far.1.put(i + 200)));
        pop_all(&shared.0, 3, |i| assert_eq!(shared.1.get(), i + 200));
        producer.join().unwrap();
    });
}

/// P3: a receiver that sees the count sees the slot; a scan that misses it is followed by another change.
#[test]
fn no_announced_message_is_missed() {
    model(|| {
        let rings = Arc::new([Ring::new(1), Ring::new(1)]);
        let line = Arc::new(Line::new());
        let senders: Vec<_> = (0..2)
            .map(|i| {
                let (rings, line) = (Arc::clone(&rings), Arc::clone(&line));
                thread::spawn(move || {
                    Producer::new(1).push(&rings[i], &[0, 7, 0, 0, 0, 0, 0, 0], 2);
                    activity::announce(&line, i as u32);
                })
            })
            .collect();
        let mut seen = Seen::new();
        let mut found = [false; 2];
        let scan = |seen: &mut Seen, found: &mut [bool; 2]| {
            let groups = seen.changed(&line);
            for (i, f) in found.iter_mut().enumerate() {
                if groups & (1 << activity::group(i as u32)) != 0 {
                    let message = Consumer::new().peek(&rings[i]);
                    assert!(message.is_some(), "the count was seen, the slot was not");
                    *f = true;
                }
            }
        };
        scan(&mut seen, &mut found);
        for sender in senders {
            sender.join().unwrap();
        }
        scan(&mut seen, &mut found);
        assert_eq!(found, [true; 2]);
    });
}

/// P4: a lane that cools loses no message: each one was announced, or published before the answer.
#[test]
fn cooling_loses_no_message() {
    model(|| {
        let ring = Arc::new(Ring::new(4));
        let words = Arc::new((Word::new(0), Word::new(0)));
        let line = Arc::new(Line::new());
        let mut thermostat = Thermostat::default();
        thermostat.warm(&words.0);
        let sender = {
            let (ring, words, line) = (Arc::clone(&ring), Arc::clone(&words), Arc::clone(&line));
            thread::spawn(move || {
                let mut producer = Producer::new(4);
                let mut answered = 0;
                for i in 0..2 {
                    let announce = must_announce(&words.0, &words.1, &mut answered);
                    producer.push(&*ring, &[0, i, 0, 0, 0, 0, 0, 0], 2);
                    if announce {
                        activity::announce(&line, 0);
                    }
                }
            })
        };
        let mut consumer = Consumer::new();
        let mut seen = Seen::new();
        let take = |consumer: &mut Consumer| {
            while consumer.peek(&*ring).is_some() {
                consumer.advance();
            }
        };
        thermostat.cool(&words.0);
        let settled = thermostat.settled(&words.1);
        // The look after the answer; from here on a settled lane is looked at only where an announcement points.
        take(&mut consumer);
        sender.join().unwrap();
        if settled {
            assert_eq!(thermostat.heat(), Heat::Cold);
            if seen.changed(&line) != 0 {
                take(&mut consumer);
            }
        } else {
            take(&mut consumer);
        }
        assert_eq!(consumer.read(), 2);
    });
}

/// P5: a copy that saw anything of the next owner's bytes is followed by a changed record.
#[test]
fn copy_of_a_dead_owners_memory_is_noticed() {
    model(|| {
        let alive = Life { incarnation: 1, state: State::Active }.pack();
        let shared = Arc::new((Word::new(alive), Word::new(5)));
        let far = Arc::clone(&shared);
        let service = thread::spawn(move || {
            far.0.set(Life { incarnation: 1, state: State::Dead }.pack());
            release_fence();
            far.1.put(0);
        });
        let copy = shared.1.peek();
        if unchanged(&shared.0, alive) {
            assert_eq!(copy, 5, "the record still shows the owner whose bytes these were");
        }
        service.join().unwrap();
    });
}

/// P5: the word of an offer serves the next one with another value; a copy of the first one's buffer that saw what the program, or the
/// next message, put there is followed by a changed word.
#[test]
fn copy_of_a_buffer_that_serves_again_is_noticed() {
    model(|| {
        let shared = Arc::new((Word::new(1), Word::new(5)));
        let far = Arc::clone(&shared);
        let sender = thread::spawn(move || {
            far.0.put(0);
            release_fence();
            far.1.put(6);
            far.0.put(2);
        });
        let copy = shared.1.peek();
        if unchanged(&shared.0, 1) {
            assert_eq!(copy, 5, "the first offer stands, whose message this was");
        }
        sender.join().unwrap();
    });
}

/// A sender that dies after any of its steps before the last has sent nothing, in a slot that held a message of each lap
/// before; after the last it has sent all.
#[test]
fn death_while_publishing_leaves_nothing_half_said() {
    const STEPS: u64 = 4;
    for survived in 0..=STEPS {
        model(move || {
            let ring = Arc::new(Ring::new(1));
            let (mut producer, mut consumer) = (Producer::new(1), Consumer::new());
            for lap in 0..2 {
                producer.push(&*ring, &[0, lap, lap, 0, 0, 0, 0, 0], 3);
                assert_eq!(consumer.peek(&*ring).map(|m| (m[1], m[2])), Some((lap, lap)));
                consumer.advance();
                consumer.release(&ring.read);
                producer.refresh(&ring.read).unwrap();
            }
            let far = Arc::clone(&ring);
            let sender = thread::spawn(move || {
                for step in 0..survived {
                    match step {
                        0 => producer.begin(&*far).put(1, 8),
                        1 => producer.begin(&*far).put(2, 9),
                        // Of a word that this message does not use.
                        2 => producer.begin(&*far).put(7, 1),
                        _ => producer.publish(producer.begin(&*far), 5 << 32),
                    }
                }
            });
            let seen = |message: Option<[u64; 8]>| {
                assert!(message.is_none() || survived == STEPS, "half said");
                assert!(message.is_none_or(|m| (m[0] >> 32, m[1], m[2]) == (5, 8, 9)), "{message:?}");
                message.is_some()
            };
            seen(consumer.peek(&*ring));
            sender.join().unwrap();
            assert_eq!(seen(consumer.peek(&*ring)), survived == STEPS, "said, and not heard");
        });
    }
}

/// P6: a receiver that goes to sleep sees the message, or is rung.
#[test]
fn no_sleeper_is_missed() {
    model(|| {
        let ring = Arc::new(Ring::new(1));
        let line = Arc::new(Line::new());
        let sleep = Arc::new(Word::new(0));
        let bell = Arc::new(Word::new(0));
        let (far, far_line) = (Arc::clone(&ring), Arc::clone(&line));
        let (far_sleep, far_bell) = (Arc::clone(&sleep), Arc::clone(&bell));
        let sender = thread::spawn(move || {
            Producer::new(1).push(&*far, &[0, 7, 0, 0, 0, 0, 0, 0], 2);
            activity::announce(&far_line, 0);
            if who_to_ring(&far_sleep, &mut 0) == Some(Bell::Futex) {
                far_bell.add(1);
            }
        });
        let mut seen = Seen::new();
        announce_sleep(&sleep, 1, Bell::Futex);
        let found = seen.changed(&line) != 0;
        if found {
            announce_awake(&sleep);
            assert!(Consumer::new().peek(&*ring).is_some(), "announced, and not there");
        }
        sender.join().unwrap();
        assert!(found || bell.get() == 1, "asleep for ever");
    });
}

/// P21: a sender that goes to sleep for want of room finds some, or its receiver rings: it looks for the request where an
/// announcement leads it, and later where it had not read so far.
#[test]
fn no_sender_sleeps_over_room() {
    model(|| {
        let ring = Arc::new(Ring::new(1));
        let line = Arc::new(Line::new());
        let words = Arc::new((Word::new(0), Word::new(0), Word::new(0))); // sleep, room, bell
        let (far, far_line, far_words) = (Arc::clone(&ring), Arc::clone(&line), Arc::clone(&words));
        let sender = thread::spawn(move || {
            let mut producer = Producer::new(1);
            producer.push(&*far, &[0, 7, 0, 0, 0, 0, 0, 0], 2);
            activity::announce(&far_line, 0);
            announce_sleep(&far_words.0, 1, Bell::Futex);
            far_words.1.set(producer.written());
            activity::announce(&far_line, 0);
            producer.refresh(&far.read).unwrap();
            let found = producer.has_room();
            if found {
                announce_awake(&far_words.0);
            }
            found
        });
        let (mut seen, mut consumer, mut later, mut rung) = (Seen::new(), Consumer::new(), false, 0);
        let mut look = || {
            if seen.changed(&line) == 0 && !later {
                return;
            }
            if consumer.peek(&*ring).is_some() {
                consumer.advance();
                consumer.release(&ring.read);
            }
            let asked = words.1.get();
            later = asked > consumer.released();
            if asked > 0 && !later && who_to_ring(&words.0, &mut rung).is_some() {
                words.2.add(1);
            }
        };
        look();
        let found = sender.join().unwrap();
        // A receiver goes on looking.
        look();
        look();
        assert!(found || words.2.get() == 1, "asleep for ever");
    });
}

/// P4 with P6: the last look of a receiver that sleeps sees what a sender published before its answer; without an
/// answer the sleep is bounded, which the model says by not calling it a sleep.
#[test]
fn a_hot_ring_is_not_slept_over() {
    model(|| {
        let ring = Arc::new(Ring::new(2));
        let words = Arc::new((Word::new(0), Word::new(0), Word::new(0), Word::new(0)));
        let line = Arc::new(Line::new());
        let mut thermostat = Thermostat::default();
        thermostat.warm(&words.0);
        let (far, far_words, far_line) = (Arc::clone(&ring), Arc::clone(&words), Arc::clone(&line));
        let sender = thread::spawn(move || {
            let (mut producer, mut answered, mut rung) = (Producer::new(2), 0, 0);
            for i in 0..2 {
                let announce = must_announce(&far_words.0, &far_words.1, &mut answered);
                producer.push(&*far, &[0, i, 0, 0, 0, 0, 0, 0], 2);
                if announce {
                    activity::announce(&far_line, 0);
                    if who_to_ring(&far_words.2, &mut rung).is_some() {
                        far_words.3.add(1);
                    }
                }
            }
        });
        let (mut seen, mut consumer) = (Seen::new(), Consumer::new());
        thermostat.cool(&words.0);
        announce_sleep(&words.2, 1, Bell::Futex);
        let _ = seen.changed(&line);
        let settled = thermostat.settled(&words.1);
        while consumer.peek(&*ring).is_some() {
            consumer.advance();
        }
        sender.join().unwrap();
        let all = consumer.read() == 2;
        assert!(!settled || all || words.3.get() > 0, "asleep for ever with a message in the ring");
    });
}

/// P7: memory that was taken from a dead process is not changed any more by those that held it.
#[test]
fn held_memory_is_not_given_away() {
    model(|| {
        let alive = Life { incarnation: 1, state: State::Active }.pack();
        // The owner's life, its memory, the hold of the one that changes it.
        let shared = Arc::new((Word::new(alive), Bytes::new(), Word::new(0)));
        let far = Arc::clone(&shared);
        let changer = thread::spawn(move || {
            hold::take(&far.2, 7);
            if far.0.peek() == alive {
                far.1.put(5);
            }
            hold::release(&far.2);
        });
        shared.0.set(Life { incarnation: 1, state: State::Dead }.pack());
        hold::after_death();
        let taken = !hold::is_on(&shared.2, 7);
        if taken {
            shared.1.put(9);
        }
        changer.join().unwrap();
        assert!(!taken || shared.1.get() == 9, "changed after it was given away");
    });
}

/// P8: a word that was changed is seen by the thread that goes to sleep at it, or its changer sees the sleeper: at the futex, and
/// in a peer.
#[test]
fn nobody_sleeps_at_a_gate_that_was_opened() {
    for native in [true, false] {
        model(move || {
            let line = Arc::new(Line::new());
            let far = Arc::clone(&line);
            let sleeper = thread::spawn(move || {
                match native {
                    true => gate::enter(&far),
                    false => gate::enter_peer(&far, 3),
                }
                far.words[gate::WORD].peek() == 0
            });
            line.words[gate::WORD].set(1);
            let seen = gate::sleepers(&line);
            let rung = if native { seen.native > 0 } else { seen.peers & gate::bit(3) != 0 };
            let sleeps = sleeper.join().unwrap();
            assert!(!sleeps || rung, "asleep, and not seen");
        });
    }
}

/// P8: of two wakers one takes the set of peers, and it rings after its own change; the other's change is seen then, too.
#[test]
fn a_set_of_sleepers_is_taken_once() {
    model(|| {
        let line = Arc::new(Line::new());
        gate::enter_peer(&line, 0);
        let far = Arc::clone(&line);
        let other = thread::spawn(move || {
            far.words[gate::WORD].add(1);
            gate::sleepers(&far).peers
        });
        line.words[gate::WORD].add(1);
        let mine = gate::sleepers(&line).peers;
        let theirs = other.join().unwrap();
        assert_eq!(mine | theirs, gate::bit(0), "one of them rings");
        assert_eq!(mine & theirs, 0, "and only once");
    });
}

/// P8: a waker that finds the sleeper's peer finds the name under which it sleeps, or that there was no room for it.
#[test]
fn a_near_sleeper_is_found_by_its_name() {
    for has_room in [true, false] {
        model(move || {
            let line = Arc::new(Line::new());
            if !has_room {
                for taken in gate::NEAR {
                    line.words[taken].put(99);
                }
            }
            let far = Arc::clone(&line);
            let sleeper = thread::spawn(move || {
                let is_near = gate::enter_near(&far, 0, 5);
                (is_near, far.words[gate::WORD].peek() == 0)
            });
            line.words[gate::WORD].set(1);
            let mut rung = (false, false);
            if gate::sleepers(&line).peers & gate::bit(0) != 0 {
                rung.0 = gate::take_near(&line, |name| name == 5).count() == 1;
                rung.1 = gate::take_far(&line, 0);
            }
            let (is_near, sleeps) = sleeper.join().unwrap();
            assert_eq!(is_near, has_room);
            assert!(!sleeps || if is_near { rung.0 } else { rung.1 }, "asleep, and not found");
        });
    }
}
