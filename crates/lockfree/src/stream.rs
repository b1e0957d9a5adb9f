//! Positions of a one-way ring of bytes.
//!
//! A position counts bytes since the start and never wraps; the place in the ring is the position masked. Each side keeps
//! its own position and publishes it in a word of its own; it looks at the other's word only when, by what it last saw,
//! the ring is full or empty. So a message that is as long as a line costs two lines: its own, and that of the write
//! position.
//!
//! ```text
//! writer: bytes (plain copies)         reader: write position (acquire, P17)
//!         write := p (release, P17)            bytes
//!         read position (acquire, P18)         read := q (release, P18)
//!         bytes again
//! ```
//! How a reader sleeps without missing bytes, and a writer without missing room, is [`crate::sleep`] with
//! [`crate::heat`]; how a ring that was offered is taken back, and no reader goes on reading it, is
//! [`publish_life`] (P19).

use crate::ring::BadPosition;
use crate::sync::{ReadWord, Word, full_fence};

/// A part of a ring: offset in the ring, and bytes.
pub type Piece = (u64, u64);

/// Where `len` bytes from `position` on lie in a ring of `capacity` bytes, a power of two: up to two pieces.
#[inline]
pub fn pieces(position: u64, len: u64, capacity: u64) -> [Piece; 2] {
    let at = position & (capacity - 1);
    let first = len.min(capacity - at);
    [(at, first), (0, len - first)]
}

/// The writer's end.
#[derive(Debug)]
pub struct Writer {
    write: u64,
    read_seen: u64,
    capacity: u64,
}

impl Writer {
    /// A writer of an empty ring of `capacity` bytes, a power of two.
    pub fn new(capacity: u64) -> Self {
        Self { write: 0, read_seen: 0, capacity }
    }

    /// Bytes of the ring.
    #[inline]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes published since the start.
    #[inline]
    pub fn written(&self) -> u64 {
        self.write
    }

    /// The read position that was seen last.
    #[inline]
    pub fn read_seen(&self) -> u64 {
        self.read_seen
    }

    /// Bytes that fit, by what is known without looking.
    #[inline]
    pub fn room(&self) -> u64 {
        self.capacity - (self.write - self.read_seen)
    }

    /// Looks at the reader's position.
    ///
    /// # Ordering
    /// Acquire. Pairs with the release in [`Reader::release`]: the reader's loads of these bytes are over before they are
    /// written again (P18).
    ///
    /// # Errors
    /// [`BadPosition`] when the word holds what no honest reader writes; nothing is changed then.
    #[inline]
    pub fn refresh(&mut self, read: &ReadWord) -> Result<(), BadPosition> {
        let found = read.get();
        if found < self.read_seen || found > self.write {
            return Err(BadPosition { found, low: self.read_seen, high: self.write });
        }
        self.read_seen = found;
        Ok(())
    }

    /// Publishes the next `len` bytes, which the caller has copied; never more than there was room for.
    ///
    /// # Ordering
    /// Release. Pairs with the acquire in [`Reader::refresh`], which then sees the bytes (P17).
    #[inline]
    pub fn publish(&mut self, write: &Word, len: u64) {
        debug_assert!(len <= self.room());
        self.write += len;
        write.set(self.write);
    }
}

/// The reader's end.
#[derive(Debug)]
pub struct Reader {
    read: u64,
    released: u64,
    write_seen: u64,
    capacity: u64,
}

impl Reader {
    /// A reader at the start of a ring of `capacity` bytes, a power of two.
    pub fn new(capacity: u64) -> Self {
        Self { read: 0, released: 0, write_seen: 0, capacity }
    }

    /// Bytes of the ring.
    #[inline]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes read since the start.
    #[inline]
    pub fn read(&self) -> u64 {
        self.read
    }

    /// The write position that was seen last.
    #[inline]
    pub fn write_seen(&self) -> u64 {
        self.write_seen
    }

    /// Bytes to be read, by what is known without looking.
    #[inline]
    pub fn available(&self) -> u64 {
        self.write_seen - self.read
    }

    /// Bytes that the writer cannot use yet, as far as is known here.
    #[inline]
    pub fn held(&self) -> u64 {
        self.write_seen - self.released
    }

    /// Whether the write position has changed since it was seen last: a look only.
    #[inline(always)] // one load and a comparison, in the loop of a waiter
    pub fn is_current(&self, write: &ReadWord) -> bool {
        write.peek() == self.write_seen
    }

    /// Looks at the writer's position.
    ///
    /// # Ordering
    /// Acquire. Pairs with the release in [`Writer::publish`]: all bytes up to there are visible (P17).
    ///
    /// # Errors
    /// [`BadPosition`] when the word holds what no honest writer writes; nothing is changed then.
    #[inline]
    pub fn refresh(&mut self, write: &ReadWord) -> Result<(), BadPosition> {
        let found = write.get();
        // Room is what was released, so this is as far as an honest writer gets.
        let high = self.released.saturating_add(self.capacity);
        if found < self.write_seen || found > high {
            return Err(BadPosition { found, low: self.write_seen, high });
        }
        self.write_seen = found;
        Ok(())
    }

    /// Counts `len` bytes as read; never more than are available.
    #[inline]
    pub fn advance(&mut self, len: u64) {
        debug_assert!(len <= self.available());
        self.read += len;
    }

    /// Gives back what was read, if that reaches across the end of a segment (`segment` is a power of two) or nothing else
    /// is there. Gives whether it did.
    ///
    /// # Ordering
    /// Release. Pairs with the acquire in [`Writer::refresh`] (P18).
    #[inline]
    pub fn release(&mut self, read: &Word, segment: u64) -> bool {
        let whole = (self.read ^ self.released) & !(segment - 1) != 0;
        if self.read == self.released || !(whole || self.read == self.write_seen) {
            return false;
        }
        self.released = self.read;
        read.set(self.read);
        true
    }
}

/// Publishes a life of one's own end of a channel. What the other end's life is comes after this.
///
/// # Ordering
/// Release, and a full fence behind it. An end that opens reads the other's ring from then on; an end that closes uses its
/// ring's memory again. Each publishes its own life first and looks at the other's after this, so at least one of them sees
/// the other: a ring is either not read any more, or kept until the other end has closed, too (P19).
#[inline]
pub fn publish_life(life: &Word, value: u64) {
    life.set(value);
    full_fence();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn pieces_go_round_the_end() {
        assert_eq!(pieces(0, 16, 16), [(0, 16), (0, 0)]);
        assert_eq!(pieces(18, 16, 16), [(2, 14), (0, 2)]);
        assert_eq!(pieces(31, 1, 16), [(15, 1), (0, 0)]);
        assert_eq!(pieces(u64::MAX, 2, 16), [(15, 1), (0, 1)]);
        assert_eq!(pieces(5, 0, 16), [(5, 0), (0, 0)]);
    }

    #[test]
    fn positions_that_nobody_honest_writes_change_nothing() {
        let (write, read) = (Word::new(0), Word::new(0));
        let mut writer = Writer::new(64);
        let mut reader = Reader::new(64);
        writer.publish(&write, 40);
        reader.refresh(&write).unwrap();
        for found in [39, 65, u64::MAX] {
            write.set(found);
            assert_eq!(reader.refresh(&write), Err(BadPosition { found, low: 40, high: 64 }));
        }
        write.set(40);
        assert_eq!(reader.available(), 40);
        reader.advance(10);
        assert!(!reader.release(&read, 64), "not a segment yet");
        reader.advance(30);
        assert!(reader.release(&read, 64), "all that there is");
        writer.refresh(&read).unwrap();
        assert_eq!(writer.room(), 64);
        for found in [39, 41, u64::MAX] {
            read.set(found);
            assert_eq!(writer.refresh(&read), Err(BadPosition { found, low: 40, high: 40 }));
        }
        writer.publish(&write, 64);
        reader.refresh(&write).unwrap();
        reader.advance(24);
        assert!(reader.release(&read, 64), "across the end of a segment");
        assert_eq!((reader.held(), reader.available()), (40, 40));
    }
}
