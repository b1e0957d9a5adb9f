//! Which blocks are free, as the senders keep it: a bit for each block, set while it is used.
//!
//! Only the owner of the senders' lock reads or writes any of this. It is a copy of what the chain of messages says, and made
//! anew from that after a death.

use isthmus_lockfree::sync::Word;
use isthmus_region::mapping::{LineRef, Section};

use super::pool::{Found, Rubbish, Run};

/// Words of the line.
const FREE: usize = 4;
const LOW: usize = 5;

/// Words of bits that are looked at for one run that is long enough, before several will do.
const LOOK: u32 = 64;

/// The free blocks of a queue.
#[derive(Debug)]
pub(crate) struct Space {
    line: LineRef,
    bits: Section,
    words: u32,
}

/// The bits of a word that belong to a run, which begins at bit `from` and has `count` bits left.
fn mask(from: u32, count: u32) -> u64 {
    let count = count.min(64 - from);
    (u64::MAX >> (64 - count)) << from
}

impl Space {
    /// The bits in a section, and a line of which two words are this one's.
    pub(crate) fn new(line: LineRef, bits: Section) -> Self {
        let words = u32::try_from(bits.len() / 8).unwrap_or(0);
        Self { line, bits, words }
    }

    #[inline]
    fn word(&self, index: u32) -> Found<&Word> {
        Ok(self.bits.word("bits of blocks", u64::from(index) * 8)?)
    }

    /// How many blocks are free.
    #[inline]
    pub(crate) fn free(&self) -> u64 {
        self.line.words[FREE].peek()
    }

    fn set_free(&self, count: u64) {
        self.line.words[FREE].put(count);
    }

    /// The first word that may have a free block.
    fn low(&self) -> u32 {
        u32::try_from(self.line.words[LOW].peek()).unwrap_or(0).min(self.words)
    }

    fn set_low(&self, word: u32) {
        self.line.words[LOW].put(word.into());
    }

    /// All blocks are free, but for block 0.
    pub(crate) fn reset(&self) -> Found<()> {
        for index in 0..self.words {
            self.word(index)?.put(u64::from(index == 0));
        }
        self.set_free((u64::from(self.words) * 64).saturating_sub(1));
        self.set_low(0);
        Ok(())
    }

    /// Takes up to `need` free blocks that follow each other: as many, if a look around finds that, else the longest run that
    /// it found.
    #[inline]
    pub(crate) fn take(&self, need: u32) -> Found<Run> {
        let run = self.find(need)?;
        self.mark(run)?;
        Ok(run)
    }

    fn find(&self, need: u32) -> Found<Run> {
        let mut best = Run { start: 0, count: 0 };
        // The run that goes on at the end of what was looked at.
        let mut open = Run { start: 0, count: 0 };
        let mut first = None;
        let low = self.low();
        let mut index = low;
        while index < self.words {
            let free = !self.word(index)?.peek();
            if free != 0 && first.is_none() {
                first = Some(index);
                self.set_low(index);
            }
            let mut at = 0;
            while at < 64 {
                let used = (free >> at).trailing_zeros().min(64 - at);
                if used > 0 {
                    open.count = 0;
                }
                at += used;
                if at == 64 {
                    break;
                }
                let count = (!(free >> at)).trailing_zeros().min(64 - at);
                if open.count == 0 {
                    open.start = index * 64 + at;
                }
                open.count += count;
                at += count;
                if open.count > best.count {
                    best = open;
                }
                if best.count >= need {
                    return Ok(Run { start: best.start, count: need });
                }
            }
            if best.count > 0 && first.is_some_and(|first| index - first >= LOOK) {
                break;
            }
            index += 1;
        }
        // There were to be as many as the caller counted on.
        if best.count == 0 { Err(Rubbish) } else { Ok(best) }
    }

    /// Calls `change` with each word that has bits of a run.
    #[inline]
    fn each(&self, run: Run, mut change: impl FnMut(&Word, u64)) -> Found<()> {
        let (mut at, mut left) = (run.start, run.count);
        while left > 0 {
            let bits = mask(at % 64, left);
            change(self.word(at / 64)?, bits);
            at += bits.count_ones();
            left -= bits.count_ones();
        }
        Ok(())
    }

    /// Marks a free run as used.
    pub(crate) fn mark(&self, run: Run) -> Found<()> {
        let mut count = 0;
        self.each(run, |word, bits| {
            let old = word.peek();
            count += u64::from((bits & !old).count_ones());
            word.put(old | bits);
        })?;
        self.set_free(self.free().wrapping_sub(count));
        Ok(())
    }

    /// Whether all of a run is free.
    pub(crate) fn is_free(&self, run: Run) -> Found<bool> {
        let mut is_free = true;
        self.each(run, |word, bits| is_free &= word.peek() & bits == 0)?;
        Ok(is_free)
    }

    /// Gives a run back, all of which is used: so nothing goes on for ever that gives runs back.
    #[inline]
    pub(crate) fn give(&self, run: Run) -> Found<()> {
        let mut is_used = true;
        self.each(run, |word, bits| {
            let old = word.peek();
            is_used &= old & bits == bits;
            word.put(old & !bits);
        })?;
        if !is_used {
            return Err(Rubbish);
        }
        self.set_free(self.free().wrapping_add(run.count.into()));
        if run.start / 64 < self.low() {
            self.set_low(run.start / 64);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use isthmus_region::mapping::Mapping;

    use super::*;

    fn space(blocks: u64) -> Space {
        let fd = isthmus_region::create::memory(1 << 20).unwrap();
        let whole = Mapping::map(fd.as_fd(), 1 << 20).unwrap().whole().unwrap();
        let space = Space::new(whole.line("line", 0).unwrap(), whole.part("bits", 64, blocks / 8).unwrap());
        space.reset().unwrap();
        space
    }

    fn run(start: u32, count: u32) -> Run {
        Run { start, count }
    }

    #[test]
    fn runs_are_the_lowest_that_are_long_enough_and_come_back() {
        let space = space(256);
        assert_eq!(space.free(), 255);
        assert_eq!(space.take(70), Ok(run(1, 70)));
        assert_eq!(space.take(33), Ok(run(71, 33)));
        assert_eq!(space.take(1), Ok(run(104, 1)));
        space.give(run(71, 33)).unwrap();
        assert_eq!(space.take(34), Ok(run(105, 34)), "not the hole, which is too short");
        assert_eq!(space.take(33), Ok(run(71, 33)));
        assert_eq!(space.free(), 255 - 70 - 33 - 1 - 34);
        space.give(run(1, 70)).unwrap();
        assert_eq!(space.take(500), Ok(run(139, 117)), "the longest there is");
        assert_eq!(space.take(500), Ok(run(1, 70)));
        assert_eq!((space.free(), space.take(1)), (0, Err(Rubbish)));
    }

    #[test]
    fn a_free_block_is_found_wherever_it_is() {
        let space = space(20_032);
        let mut taken = 0;
        while space.free() > 0 {
            taken += space.take(64).unwrap().count;
        }
        assert_eq!(taken, 20_031);
        for start in [20_031, 1, 12_800, 63, 64] {
            space.give(run(start, 1)).unwrap();
            assert!(space.is_free(run(start, 1)).unwrap());
            assert_eq!(space.take(3).unwrap(), run(start, 1));
        }
        space.give(run(5, 1)).unwrap();
        assert_eq!(space.give(run(4, 2)), Err(Rubbish), "twice");
    }
}
