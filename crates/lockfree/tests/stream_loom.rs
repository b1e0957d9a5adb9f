//! Models of the byte stream for the checker loom: `make loom`. As in `loom.rs`, sizes are tiny so that rare paths are
//! common. The bytes are cells whose plain accesses loom watches, so that a pair of accesses without an order is an error
//! even where no interleaving would show it.
#![cfg(loom)]

use isthmus_lockfree::heat::{Thermostat, must_announce};
use isthmus_lockfree::life::{Life, State};
use isthmus_lockfree::sleep::{Bell, announce_awake, announce_sleep, who_to_ring};
use isthmus_lockfree::stream::{Reader, Writer, pieces, publish_life};
use isthmus_lockfree::sync::Word;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

struct Stream {
    bytes: Vec<UnsafeCell<u8>>,
    write: Word,
    read: Word,
}

// SAFETY: the cells are what the models are about; loom reports accesses without an order.
unsafe impl Sync for Stream {}
// SAFETY: as for Sync.
unsafe impl Send for Stream {}

impl Stream {
    fn new(capacity: usize) -> Self {
        let bytes = (0..capacity).map(|_| UnsafeCell::new(0)).collect();
        Self { bytes, write: Word::new(0), read: Word::new(0) }
    }

    fn capacity(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn put(&self, position: u64, len: u64, first: u8) {
        let mut value = first;
        for (at, len) in pieces(position, len, self.capacity()) {
            for i in at..at + len {
                // SAFETY: loom checks that no other thread is at it.
                self.bytes[i as usize].with_mut(|b| unsafe { *b = value });
                value += 1;
            }
        }
    }

    fn get(&self, position: u64, len: u64, first: u8) {
        let mut value = first;
        for (at, len) in pieces(position, len, self.capacity()) {
            for i in at..at + len {
                // SAFETY: loom checks that no thread writes it.
                assert_eq!(self.bytes[i as usize].with(|b| unsafe { *b }), value);
                value += 1;
            }
        }
    }
}

fn write_all(stream: &Stream, count: u64) {
    let mut writer = Writer::new(stream.capacity());
    while writer.written() < count {
        if writer.room() == 0 {
            writer.refresh(&stream.read).unwrap();
        }
        let len = writer.room().min(count - writer.written());
        if len == 0 {
            thread::yield_now();
            continue;
        }
        stream.put(writer.written(), len, writer.written() as u8);
        writer.publish(&stream.write, len);
    }
}

fn read_all(stream: &Stream, count: u64) {
    let mut reader = Reader::new(stream.capacity());
    while reader.read() < count {
        reader.refresh(&stream.write).unwrap();
        let len = reader.available();
        if len == 0 {
            thread::yield_now();
            continue;
        }
        stream.get(reader.read(), len, reader.read() as u8);
        reader.advance(len);
        reader.release(&stream.read, 1);
    }
}

/// P17 and P18: bytes are whole and in order over a wrap of a ring that is full on the way.
#[test]
fn stream_keeps_bytes_over_a_wrap_and_when_full() {
    model(|| {
        let stream = Arc::new(Stream::new(2));
        let far = Arc::clone(&stream);
        let writer = thread::spawn(move || write_all(&far, 3));
        read_all(&stream, 3);
        writer.join().unwrap();
    });
}

/// P18: a byte is written again only after it was read.
#[test]
fn byte_is_reused_only_after_it_was_read() {
    model(|| {
        let stream = Arc::new(Stream::new(1));
        let far = Arc::clone(&stream);
        let writer = thread::spawn(move || write_all(&far, 2));
        read_all(&stream, 2);
        writer.join().unwrap();
    });
}

/// P6 with P17, and P4: a reader that goes to sleep sees the bytes, or is rung; of a writer that has not answered that it
/// rings, its sleep is bounded, which the model says by not calling it a sleep.
#[test]
fn no_reader_sleeps_over_bytes() {
    for hot in [false, true] {
        model(move || {
            let stream = Arc::new(Stream::new(2));
            // Heat, answer, sleep, bell.
            let words = Arc::new([Word::new(0), Word::new(0), Word::new(0), Word::new(0)]);
            let mut thermostat = Thermostat::default();
            if hot {
                thermostat.warm(&words[0]);
            }
            let (far, far_words) = (Arc::clone(&stream), Arc::clone(&words));
            let writer = thread::spawn(move || {
                let (mut writer, mut answered, mut rung) = (Writer::new(2), 0, 0);
                for i in 0..2 {
                    let announce = must_announce(&far_words[0], &far_words[1], &mut answered);
                    far.put(i, 1, i as u8);
                    writer.publish(&far.write, 1);
                    if announce && who_to_ring(&far_words[2], &mut rung) == Some(Bell::Futex) {
                        far_words[3].add(1);
                    }
                }
            });
            let mut reader = Reader::new(2);
            thermostat.cool(&words[0]);
            announce_sleep(&words[2], 1, Bell::Futex);
            let settled = thermostat.settled(&words[1]);
            reader.refresh(&stream.write).unwrap();
            let seen = reader.available();
            stream.get(0, seen, 0);
            if seen > 0 {
                announce_awake(&words[2]);
            }
            writer.join().unwrap();
            assert!(!settled || seen > 0 || words[3].get() > 0, "asleep for ever with bytes in the ring");
        });
    }
}

/// P6 with P18: a writer that waits for room sees it, or is rung by the reader that made it.
#[test]
fn no_writer_sleeps_over_room() {
    model(|| {
        let stream = Arc::new(Stream::new(1));
        let words = Arc::new([Word::new(0), Word::new(0)]);
        let mut writer = Writer::new(1);
        stream.put(0, 1, 0);
        writer.publish(&stream.write, 1);
        let (far, far_words) = (Arc::clone(&stream), Arc::clone(&words));
        let reader = thread::spawn(move || {
            let mut reader = Reader::new(1);
            reader.refresh(&far.write).unwrap();
            far.get(0, 1, 0);
            reader.advance(1);
            assert!(reader.release(&far.read, 1));
            if who_to_ring(&far_words[0], &mut 0).is_some() {
                far_words[1].add(1);
            }
        });
        announce_sleep(&words[0], 1, Bell::Futex);
        writer.refresh(&stream.read).unwrap();
        let room = writer.room() > 0;
        if room {
            announce_awake(&words[0]);
            stream.put(1, 1, 1);
        }
        reader.join().unwrap();
        assert!(room || words[1].get() == 1, "asleep for ever beside an empty ring");
    });
}

/// P19: a ring that was offered and is taken back while the other side accepts it is not read after its memory was used
/// for something else.
#[test]
fn an_offer_that_is_withdrawn_is_read_by_nobody() {
    model(|| {
        let life = |state| Life { incarnation: 1, state }.pack();
        let offer = Arc::new((Word::new(life(State::Active)), Word::new(0)));
        let stream = Arc::new(Stream::new(1));
        let (far, far_stream) = (Arc::clone(&offer), Arc::clone(&stream));
        let acceptor = thread::spawn(move || {
            publish_life(&far.1, life(State::Active));
            if far.0.get() == life(State::Active) {
                far_stream.get(0, 1, 0);
            }
            far.1.set(life(State::Dead));
        });
        publish_life(&offer.0, life(State::Dead));
        // Zero: never opened. Dead: let go.
        let held = Life::unpack(offer.1.get()).state == State::Active;
        if !held {
            stream.put(0, 1, 9);
        }
        acceptor.join().unwrap();
    });
}
