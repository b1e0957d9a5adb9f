//! Models of the guest driver's bells for the checker loom: `make loom`. What `driver/isthmus.c` does in C stands here once more, as
//! small as it can be: a vector counts its rings and has a queue of sleepers, and each bell remembers how many of them it has seen.
//! A sleep that nothing ends is a deadlock, which loom reports.
//!
//! The kernel's queue of sleepers is a lock and a condition here: a thread that polls is put into the queue under its lock and then
//! looks at the count, and a ring counts and then takes that lock, sleepers or not.
#![cfg(loom)]

use isthmus_lockfree::sleep::{Bell as Kind, announce_awake, announce_sleep, who_to_ring};
use isthmus_lockfree::sync::Word;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

/// `struct vector`.
struct Vector {
    rings: AtomicU64,
    queue: Mutex<()>,
    sleepers: Condvar,
    /// Whether interrupts are held back after a storm. Those that come meanwhile are lost here, which is more than a device does.
    is_masked: AtomicBool,
}

impl Vector {
    fn new() -> Self {
        let (queue, sleepers) = (Mutex::new(()), Condvar::new());
        Self { rings: AtomicU64::new(0), queue, sleepers, is_masked: AtomicBool::new(false) }
    }

    /// `vector_ring`.
    fn ring(&self) {
        self.rings.fetch_add(1, Ordering::Relaxed);
        self.wake();
    }

    fn wake(&self) {
        drop(self.queue.lock().unwrap());
        self.sleepers.notify_all();
    }

    /// `vector_interrupt`, for which a single one is a storm. Gives whether a pause begins.
    fn interrupt(&self) -> bool {
        if self.is_masked.load(Ordering::SeqCst) {
            return false;
        }
        self.is_masked.store(true, Ordering::SeqCst);
        self.ring();
        true
    }

    /// `vector_resume`.
    fn resume(&self) {
        self.is_masked.store(false, Ordering::SeqCst);
        self.ring();
    }
}

/// `struct bell`.
struct Bell {
    vector: Arc<Vector>,
    seen: AtomicU64,
}

impl Bell {
    /// `bell_make`.
    fn new(vector: &Arc<Vector>) -> Self {
        Self { vector: Arc::clone(vector), seen: AtomicU64::new(vector.rings.load(Ordering::Relaxed)) }
    }

    fn is_readable(&self) -> bool {
        self.vector.rings.load(Ordering::Relaxed) != self.seen.load(Ordering::Relaxed)
    }

    /// `bell_poll` without end: until it is readable, or `is_enough`.
    fn poll(&self, is_enough: impl Fn() -> bool) {
        let mut queue = self.vector.queue.lock().unwrap();
        while !self.is_readable() && !is_enough() {
            queue = self.vector.sleepers.wait(queue).unwrap();
        }
    }

    /// `bell_read` without blocking. Gives whether there was anything.
    fn read(&self) -> bool {
        loop {
            let seen = self.seen.load(Ordering::Relaxed);
            let rings = self.vector.rings.load(Ordering::Relaxed);
            if rings == seen {
                return false;
            }
            if self.seen.compare_exchange(seen, rings, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                return true;
            }
        }
    }
}

/// An endpoint: how much has come for it, and its sleep word.
struct Endpoint {
    messages: Word,
    sleep: Word,
}

impl Endpoint {
    fn new() -> Self {
        Self { messages: Word::new(0), sleep: Word::new(0) }
    }

    /// The sender's side.
    fn send(&self, rung: &mut u64, ring: impl FnOnce()) {
        self.messages.add(1);
        if who_to_ring(&self.sleep, rung).is_some() {
            ring();
        }
    }

    /// Sleeps at `bell` until `count` messages have come.
    fn receive(&self, count: u64, bell: &Bell) {
        for sleeps in 1.. {
            announce_sleep(&self.sleep, sleeps, Kind::Service);
            if self.messages.get() >= count {
                break;
            }
            bell.poll(|| false);
            bell.read();
        }
        announce_awake(&self.sleep);
    }
}

/// One ring of a vector is for all who sleep at it: each process has a bell of its own.
#[test]
fn a_ring_reaches_every_process_of_a_vector() {
    model(|| {
        let vector = Arc::new(Vector::new());
        let ends = Arc::new((Endpoint::new(), Endpoint::new()));
        let bells = (Bell::new(&vector), Bell::new(&vector));
        let far = Arc::clone(&ends);
        let sleeper = thread::spawn(move || far.0.receive(1, &bells.0));
        let (far, rings) = (Arc::clone(&ends), Arc::clone(&vector));
        let sender = thread::spawn(move || {
            far.0.send(&mut 0, || rings.ring());
            far.1.send(&mut 0, || rings.ring());
        });
        ends.1.receive(1, &bells.1);
        sender.join().unwrap();
        sleeper.join().unwrap();
    });
}

/// A ring that comes between a look at the messages and the sleep, or while another ring is being read, ends that sleep.
#[test]
fn no_ring_is_lost_while_a_bell_is_read() {
    model(|| {
        let vector = Arc::new(Vector::new());
        let end = Arc::new(Endpoint::new());
        let bell = Bell::new(&vector);
        let far = Arc::clone(&end);
        let sender = thread::spawn(move || {
            let mut rung = 0;
            (0..2).for_each(|_| far.send(&mut rung, || vector.ring()));
        });
        end.receive(2, &bell);
        sender.join().unwrap();
    });
}

/// A bell that was made after the look that decides has not seen the rings before it: there is no sleep at it yet.
#[test]
fn no_ring_is_lost_before_there_is_a_bell() {
    model(|| {
        let vector = Arc::new(Vector::new());
        let end = Arc::new(Endpoint::new());
        let (far, rings) = (Arc::clone(&end), Arc::clone(&vector));
        let sender = thread::spawn(move || far.send(&mut 0, || rings.ring()));
        let mut bell = None;
        for sleeps in 1.. {
            announce_sleep(&end.sleep, sleeps, Kind::Service);
            if end.messages.get() == 1 {
                break;
            }
            match &bell {
                None => bell = Some(Bell::new(&vector)),
                Some(bell) => {
                    bell.poll(|| false);
                    bell.read();
                }
            }
        }
        sender.join().unwrap();
    });
}

/// Interrupts that are lost during the pause after a storm are made up for at its end.
#[test]
fn no_ring_is_lost_in_a_pause() {
    model(|| {
        let vector = Arc::new(Vector::new());
        let end = Arc::new(Endpoint::new());
        let bell = Bell::new(&vector);
        let (far, rings) = (Arc::clone(&end), Arc::clone(&vector));
        let sender = thread::spawn(move || {
            let (mut rung, mut timers) = (0, Vec::new());
            for _ in 0..2 {
                far.send(&mut rung, || {
                    if rings.interrupt() {
                        let paused = Arc::clone(&rings);
                        timers.push(thread::spawn(move || paused.resume()));
                    }
                });
            }
            timers.into_iter().for_each(|timer| timer.join().unwrap());
        });
        end.receive(2, &bell);
        sender.join().unwrap();
    });
}

/// `Sleeper` of crates/region: a thread of the process sleeps at the bell while another takes what is in it, for `poll(2)`. The ring
/// that it takes still ends the sleep.
#[test]
fn a_ring_that_another_thread_takes_ends_the_sleep() {
    model(|| {
        let vector = Arc::new(Vector::new());
        let end = Arc::new(Endpoint::new());
        // The bell; the count of rings that were taken from it; the eventfd of the process; whether a thread sleeps.
        let shared = Arc::new((Bell::new(&vector), Word::new(0), AtomicBool::new(false), Mutex::new(false)));
        let far = Arc::clone(&end);
        let sender = thread::spawn(move || far.send(&mut 0, || vector.ring()));
        let (far, mine) = (Arc::clone(&shared), Arc::clone(&end));
        let sleeper = thread::spawn(move || {
            let (bell, counted, own, is_taken) = &*far;
            for sleeps in 1.. {
                let seen = counted.get();
                announce_sleep(&mine.sleep, sleeps, Kind::Service);
                if mine.messages.get() == 1 {
                    break;
                }
                *is_taken.lock().unwrap() = true;
                if counted.get() == seen {
                    bell.poll(|| own.load(Ordering::Relaxed));
                }
                own.store(false, Ordering::Relaxed);
                if bell.read() {
                    counted.add(1);
                }
                *is_taken.lock().unwrap() = false;
            }
        });
        // `Sleeper::drain_bell`.
        let (bell, counted, own, is_taken) = &*shared;
        if bell.read() {
            counted.add(1);
            if *is_taken.lock().unwrap() {
                own.store(true, Ordering::Relaxed);
                bell.vector.wake();
            }
        }
        sender.join().unwrap();
        sleeper.join().unwrap();
    });
}

/// An unplugged device ends every sleep.
#[test]
fn the_end_of_a_device_reaches_who_falls_asleep() {
    model(|| {
        let vector = Arc::new(Vector::new());
        let is_over = Arc::new(AtomicBool::new(false));
        let bell = Bell::new(&vector);
        let ends = Arc::clone(&is_over);
        // `isthmus_remove`.
        let remover = thread::spawn(move || {
            ends.store(true, Ordering::Relaxed);
            vector.wake();
        });
        bell.poll(|| is_over.load(Ordering::Relaxed));
        remover.join().unwrap();
    });
}
