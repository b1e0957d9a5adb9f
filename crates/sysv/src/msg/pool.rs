//! The blocks that messages are made of, and what stands in them.
//!
//! A message is one or more *pieces*, each a run of blocks of 32 bytes that follow each other: mostly one piece, more where
//! the free blocks are scattered. Blocks are known by their index. Block 0 belongs to no message, so that 0 means "none".
//!
//! ```text
//! first piece   0  next message (lower half), next piece (upper half)
//!               8  type; 0: it was taken
//!              16  bytes of the text (lower half), blocks of this piece (upper half)
//!              24  text
//! other piece   0  next piece (lower half), blocks of this piece (upper half)
//!               8  text
//! ```
//! Nothing of it is believed: a piece is used only after it was found to lie inside, and every chain ends where the text does.

use isthmus_lockfree::sync::Word;
use isthmus_region::local::LocalBuf;
use isthmus_region::mapping::Section;

/// Bytes of a block.
pub(crate) const BLOCK: u64 = BYTES as u64;
const BYTES: u32 = 32;
/// Bytes before the text of a first piece, and of another one.
const FIRST: u32 = 24;
const OTHER: u32 = 8;
const NEXT: u64 = 0;
const TYPE: u64 = 8;
const LEN: u64 = 16;

/// Something in the queue's memory cannot be right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rubbish;

impl From<isthmus_region::Error> for Rubbish {
    #[cold]
    fn from(_: isthmus_region::Error) -> Self {
        Self
    }
}

pub(crate) type Found<T> = std::result::Result<T, Rubbish>;

/// A run of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: u32,
    pub(crate) count: u32,
}

/// What the first piece of a message says, checked as far as that piece goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) index: u32,
    /// The message after it, 0 if it is the last.
    pub(crate) next: u32,
    /// Its second piece, 0 if it has one alone.
    piece: u32,
    /// Its type, or 0 if it was taken.
    pub(crate) kind: i64,
    pub(crate) len: u32,
    count: u32,
}

/// Blocks that hold `bytes`.
const fn blocks(bytes: u32) -> u32 {
    bytes.div_ceil(BYTES)
}

/// Blocks that a text of `len` bytes takes where no two free blocks follow each other.
pub(crate) const fn most_blocks(len: u32) -> u32 {
    match len.checked_sub(BYTES - FIRST) {
        None | Some(0) => 1,
        Some(rest) => 1 + rest.div_ceil(BYTES - OTHER),
    }
}

#[allow(clippy::cast_possible_truncation)] // the two halves
fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

fn both(low: u32, high: u32) -> u64 {
    u64::from(low) | (u64::from(high) << 32)
}

/// The blocks of a queue.
#[derive(Debug)]
pub(crate) struct Pool {
    memory: Section,
    count: u32,
}

impl Pool {
    /// The blocks in a section, which is as long as they are.
    pub(crate) fn new(memory: Section) -> Self {
        let count = u32::try_from(memory.len() / BLOCK).unwrap_or(u32::MAX);
        Self { memory, count }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    #[inline]
    fn word(&self, block: u32, offset: u64) -> Found<&Word> {
        Ok(self.memory.word("message", u64::from(block) * BLOCK + offset)?)
    }

    /// Whether a run lies inside.
    fn check(&self, run: Run) -> Found<Run> {
        let is_inside =
            run.start > 0 && run.count > 0 && run.start < self.count && run.count <= self.count - run.start;
        if is_inside { Ok(run) } else { Err(Rubbish) }
    }

    /// The message after another one, also after block 0 and after one that was taken.
    #[inline]
    pub(crate) fn next(&self, index: u32) -> Found<u32> {
        Ok(halves(self.word(index, NEXT)?.get()).0)
    }

    /// The message after one, and the type of that one, 0 if it was taken. Nothing else of it is looked at.
    #[inline]
    pub(crate) fn next_and_kind(&self, index: u32) -> Found<(u32, i64)> {
        let words = self.memory.words::<2>("message", u64::from(index) * BLOCK + NEXT)?;
        Ok((halves(words[0].get()).0, words[1].peek().cast_signed()))
    }

    /// The message that begins at a block.
    #[inline]
    pub(crate) fn message(&self, index: u32) -> Found<Message> {
        let words = self.memory.words::<3>("message", u64::from(index) * BLOCK + NEXT)?;
        let (next, piece) = halves(words[0].get());
        let kind = words[1].peek().cast_signed();
        let (len, count) = halves(words[2].peek());
        self.check(Run { start: index, count })?;
        let room = u64::from(count) * BLOCK - u64::from(FIRST);
        // One piece holds all of it, or it is filled and others follow.
        if kind < 0 || u64::from(len) > self.memory.len() || (piece == 0) != (u64::from(len) <= room) {
            return Err(Rubbish);
        }
        Ok(Message { index, next, piece, kind, len, count })
    }

    /// Calls `each` with the pieces of a message: the run, where its text begins in the pool, and how much of the text it has.
    #[inline]
    fn pieces(&self, message: &Message, mut each: impl FnMut(Run, u64, u32) -> Found<()>) -> Found<()> {
        let mut run = Run { start: message.index, count: message.count };
        let (mut head, mut piece, mut left) = (FIRST, message.piece, message.len);
        loop {
            let room = u64::from(run.count) * BLOCK - u64::from(head);
            let part = u32::try_from(room).unwrap_or(u32::MAX).min(left);
            each(run, u64::from(run.start) * BLOCK + u64::from(head), part)?;
            left -= part;
            if left == 0 {
                return Ok(());
            }
            // Each of them takes at least 24 bytes off, so this ends.
            let (next, count) = halves(self.word(piece, NEXT)?.peek());
            run = self.check(Run { start: piece, count })?;
            (head, piece) = (OTHER, next);
        }
    }

    /// Copies the text of a message, as much of it as fits.
    #[inline]
    pub(crate) fn copy_out(&self, message: &Message, into: LocalBuf) -> Found<usize> {
        let mut done = 0;
        self.pieces(message, |_, at, part| {
            let target = into.part(done, part as usize);
            self.memory.drain("message", at, target)?;
            done += target.len();
            Ok(())
        })?;
        Ok(done)
    }

    /// Calls `each` with the runs of a message.
    pub(crate) fn runs(&self, message: &Message, mut each: impl FnMut(Run) -> Found<()>) -> Found<()> {
        self.pieces(message, |run, _, _| each(run))
    }

    /// Writes a message that no other knows of yet into blocks that `take` gives: at most as many as it is asked for, that
    /// follow each other. Gives its first block.
    #[inline]
    pub(crate) fn write(
        &self,
        kind: i64,
        text: LocalBuf,
        mut take: impl FnMut(u32) -> Found<Run>,
    ) -> Found<u32> {
        let len = u32::try_from(text.len()).map_err(|_| Rubbish)?;
        let first = self.check(take(blocks(FIRST + len))?)?;
        self.word(first.start, TYPE)?.put(kind.cast_unsigned());
        self.word(first.start, LEN)?.put(both(len, first.count));
        let mut done = self.fill(first, FIRST, text, 0)?;
        if done == len {
            self.word(first.start, NEXT)?.put(0);
            return Ok(first.start);
        }
        self.write_more(first.start, text, &mut done, &mut take)?;
        Ok(first.start)
    }

    /// The rest of a message, in more pieces.
    #[cold]
    fn write_more(
        &self,
        first: u32,
        text: LocalBuf,
        done: &mut u32,
        take: &mut impl FnMut(u32) -> Found<Run>,
    ) -> Found<()> {
        let len = u32::try_from(text.len()).map_err(|_| Rubbish)?;
        let mut last: Option<Run> = None;
        while *done < len {
            let run = self.check(take(blocks(OTHER + len - *done))?)?;
            *done += self.fill(run, OTHER, text, *done)?;
            match last {
                None => self.word(first, NEXT)?.put(both(0, run.start)),
                Some(last) => self.word(last.start, NEXT)?.put(both(run.start, last.count)),
            }
            self.word(run.start, NEXT)?.put(both(0, run.count));
            last = Some(run);
        }
        Ok(())
    }

    /// Fills a piece with the text from `done` on; gives how much of it that was.
    #[inline]
    fn fill(&self, run: Run, head: u32, text: LocalBuf, done: u32) -> Found<u32> {
        let room = (u64::from(run.count) * BLOCK).saturating_sub(head.into());
        let part = text.part(done as usize, usize::try_from(room).unwrap_or(usize::MAX));
        let at = u64::from(run.start) * BLOCK + u64::from(head);
        self.memory.fill("message", at, part)?;
        u32::try_from(part.len()).map_err(|_| Rubbish)
    }

    /// Has `next` follow `index`, in one store.
    #[inline]
    pub(crate) fn link(&self, index: u32, next: u32) -> Found<()> {
        let word = self.word(index, NEXT)?;
        // Its own pieces stay as they are.
        word.set(both(next, halves(word.peek()).1));
        Ok(())
    }

    /// Marks a message as taken, in one store.
    pub(crate) fn mark(&self, index: u32) -> Found<()> {
        self.word(index, TYPE)?.set(0);
        Ok(())
    }

    /// Makes a message that was taken one of no text and one block, since its other blocks are free.
    pub(crate) fn shorten(&self, index: u32) -> Found<()> {
        self.word(index, NEXT)?.set(both(self.next(index)?, 0));
        self.word(index, LEN)?.set(both(0, 1));
        Ok(())
    }
}
