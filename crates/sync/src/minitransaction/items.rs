//! Minitransactions as programs build them.

use std::fmt;

use isthmus_region::value::Value;

/// Where a segment's memory is. The number is one that the users of a space agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node(pub u32);

impl Node {
    /// The node of programs that have only one.
    pub const LOCAL: Self = Self(0);
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The name of a segment on its node. The number is one that the users of a space agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub u32);

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Node and segment in one word: logs hold it, and locks are chosen by it.
#[inline]
pub(crate) fn name(node: Node, segment: SegmentId) -> u64 {
    (u64::from(node.0) << 32) | u64::from(segment.0)
}

#[allow(clippy::cast_possible_truncation)] // the two halves
pub(crate) fn named(word: u64) -> (Node, SegmentId) {
    (Node((word >> 32) as u32), SegmentId(word as u32))
}

/// How a minitransaction ended. See paper section 3.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All compares were equal, all writes are made, all reads are filled.
    Committed,
    /// A compare was not equal: nothing is written, all reads are filled.
    CompareFailed,
    /// Others held locks for longer than the space's patience: nothing is written, no read is filled. Try again.
    LockFailed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Compare,
    Write,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Item {
    pub(crate) kind: Kind,
    /// Node and segment.
    pub(crate) name: u64,
    /// In bytes, in the segment.
    pub(crate) offset: u64,
    pub(crate) len: usize,
    /// Index of its bytes in the minitransaction's data, in words.
    pub(crate) at: usize,
}

impl Item {
    fn words(&self) -> std::ops::Range<usize> {
        self.at..self.at + self.len.div_ceil(8)
    }

    /// Its bytes.
    #[inline]
    pub(crate) fn bytes<'a>(&self, data: &'a [[u8; 8]]) -> &'a [u8] {
        data.get(self.words()).and_then(|words| words.as_flattened().get(..self.len)).unwrap_or_default()
    }

    /// The same, to fill them.
    pub(crate) fn bytes_mut<'a>(&self, data: &'a mut [[u8; 8]]) -> &'a mut [u8] {
        let words = data.get_mut(self.words()).map(|words| words.as_flattened_mut());
        words.and_then(|bytes| bytes.get_mut(..self.len)).unwrap_or_default()
    }
}

/// A read item of a minitransaction, for [`Minitransaction::bytes`] to find its result by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read(usize);

/// All items of a minitransaction that lies in one aligned word: what it compares and writes of that word, as masks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct One {
    pub(crate) name: u64,
    /// Of the word, in bytes.
    pub(crate) offset: u64,
    /// Bits that are compared, and with what.
    pub(crate) compare: (u64, u64),
    /// Whether two compares contradict each other.
    pub(crate) never: bool,
    /// Bits that are written, and what.
    pub(crate) write: (u64, u64),
}

impl One {
    #[inline]
    pub(crate) fn matches(&self, word: u64) -> bool {
        word & self.compare.0 == self.compare.1 && !self.never
    }

    #[inline]
    pub(crate) fn changed(&self, word: u64) -> u64 {
        (word & !self.write.0) | self.write.1
    }
}

/// What the items of a minitransaction lie in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    Nothing,
    /// One aligned word: [`Minitransaction::one`] has all of them in it.
    One,
    Several,
}

/// A list of items. Any committer can commit it, any number of times. Clearing it keeps its memory.
#[derive(Debug, Clone)]
pub struct Minitransaction {
    pub(crate) items: Vec<Item>,
    /// The bytes that are compared, written and read. Each item has whole words, so that short ones need no copying.
    pub(crate) data: Vec<[u8; 8]>,
    pub(crate) extent: Extent,
    pub(crate) one: One,
    pub(crate) is_filled: bool,
}

impl Default for Minitransaction {
    fn default() -> Self {
        Self::new()
    }
}

impl Minitransaction {
    /// A minitransaction without items; it commits.
    pub fn new() -> Self {
        let (items, data) = (Vec::new(), Vec::new());
        Self { items, data, extent: Extent::Nothing, one: One::default(), is_filled: false }
    }

    /// Removes all items.
    #[inline]
    pub fn clear(&mut self) {
        self.items.clear();
        self.data.clear();
        self.extent = Extent::Nothing;
        self.is_filled = false;
    }

    /// Reads `len` bytes at `offset` of a segment, as they are before the writes. This makes room for the result.
    #[inline]
    pub fn read(&mut self, node: Node, segment: SegmentId, offset: u64, len: usize) -> Read {
        self.fold(Kind::Read, name(node, segment), offset, len, 0);
        let at = self.data.len();
        match len {
            0..=8 => self.data.push([0; 8]),
            _ => self.data.resize(at + len.div_ceil(8), [0; 8]),
        }
        self.items.push(Item { kind: Kind::Read, name: name(node, segment), offset, len, at });
        Read(self.items.len() - 1)
    }

    /// Compares: nothing is written unless the bytes at `offset` of a segment are these, before the writes.
    #[inline]
    pub fn compare(&mut self, node: Node, segment: SegmentId, offset: u64, bytes: &[u8]) {
        self.push(Kind::Compare, name(node, segment), offset, bytes);
    }

    /// Writes these bytes at `offset` of a segment, over what earlier write items wrote there.
    #[inline]
    pub fn write(&mut self, node: Node, segment: SegmentId, offset: u64, bytes: &[u8]) {
        self.push(Kind::Write, name(node, segment), offset, bytes);
    }

    /// [`Minitransaction::compare`] with a value's little-endian bytes.
    #[inline]
    pub fn compare_value<T: Value>(&mut self, node: Node, segment: SegmentId, offset: u64, value: T) {
        self.push_value(Kind::Compare, name(node, segment), offset, value);
    }

    /// [`Minitransaction::write`] with a value's little-endian bytes.
    #[inline]
    pub fn write_value<T: Value>(&mut self, node: Node, segment: SegmentId, offset: u64, value: T) {
        self.push_value(Kind::Write, name(node, segment), offset, value);
    }

    /// [`Minitransaction::bytes`] as a value, if the read was of as many bytes as the value has.
    #[inline]
    pub fn value<T: Value>(&self, read: Read) -> Option<T> {
        self.bytes(read).filter(|bytes| bytes.len() == T::BYTES).map(T::take)
    }

    /// What a read item of this minitransaction found at the last commit; `None` if there was none, or it filled no reads.
    #[inline]
    pub fn bytes(&self, read: Read) -> Option<&[u8]> {
        Some(self.read_item(read)?.bytes(&self.data))
    }

    #[inline]
    fn read_item(&self, read: Read) -> Option<&Item> {
        self.items.get(read.0).filter(|item| self.is_filled && item.kind == Kind::Read)
    }

    /// [`Minitransaction::bytes`] as a little-endian number, of a read of up to 8 bytes.
    #[inline]
    pub fn number(&self, read: Read) -> Option<u64> {
        let item = self.read_item(read).filter(|item| item.len <= 8)?;
        // The rest of the item's word was never filled, so it is 0.
        self.data.get(item.at).map(|word| u64::from_le_bytes(*word))
    }

    #[inline]
    fn push(&mut self, kind: Kind, name: u64, offset: u64, bytes: &[u8]) {
        let (at, len) = (self.data.len(), bytes.len());
        let first = number(bytes);
        self.fold(kind, name, offset, len, first);
        match len {
            0..=8 => self.data.push(first.to_le_bytes()),
            _ => self.data.extend(bytes.chunks(8).map(|word| number(word).to_le_bytes())),
        }
        self.items.push(Item { kind, name, offset, len, at });
    }

    #[inline]
    fn push_value<T: Value>(&mut self, kind: Kind, name: u64, offset: u64, value: T) {
        let at = self.data.len();
        self.data.resize(at + T::BYTES.div_ceil(8), [0; 8]);
        if let Some(bytes) = self.data.get_mut(at..).and_then(|d| d.as_flattened_mut().get_mut(..T::BYTES)) {
            value.put(bytes);
        }
        let first = self.data.get(at).map_or(0, |word| u64::from_le_bytes(*word));
        self.fold(kind, name, offset, T::BYTES, first);
        self.items.push(Item { kind, name, offset, len: T::BYTES, at });
    }

    /// Adds an item to the masks of [`One`], as long as all items lie in one word. `value` is its bytes.
    #[inline]
    fn fold(&mut self, kind: Kind, name: u64, offset: u64, len: usize, value: u64) {
        self.is_filled = false;
        let shift = offset % 8;
        let (one, place) = (&mut self.one, offset - shift);
        let is_one = match self.extent {
            Extent::Several => false,
            Extent::Nothing => true,
            Extent::One => one.name == name && one.offset == place,
        };
        if !is_one || len == 0 || len > 8 || shift + len as u64 > 8 {
            self.extent = Extent::Several;
            return;
        }
        if self.extent == Extent::Nothing {
            self.extent = Extent::One;
            (one.name, one.offset, one.never) = (name, place, false);
            (one.compare, one.write) = ((0, 0), (0, 0));
        }
        let mask = (u64::MAX >> (64 - 8 * len)) << (8 * shift);
        let value = value << (8 * shift);
        match kind {
            Kind::Read => {}
            Kind::Compare => {
                let both = one.compare.0 & mask;
                one.never |= one.compare.1 & both != value & both;
                one.compare.0 |= mask;
                one.compare.1 |= value;
            }
            Kind::Write => {
                one.write.0 |= mask;
                one.write.1 = (one.write.1 & !mask) | value;
            }
        }
    }

    /// Fills the reads of a minitransaction that lies in one word.
    #[inline]
    pub(crate) fn fill_from(&mut self, word: u64) {
        for item in &self.items {
            if item.kind != Kind::Read {
                continue;
            }
            let value = (word >> (8 * (item.offset % 8))) & (u64::MAX >> (64 - 8 * item.len));
            if let Some(word) = self.data.get_mut(item.at) {
                *word = value.to_le_bytes();
            }
        }
        self.is_filled = true;
    }
}

/// Up to 8 bytes as a little-endian number.
#[inline]
pub(crate) fn number(bytes: &[u8]) -> u64 {
    match bytes.try_into() {
        Ok(whole) => u64::from_le_bytes(whole),
        Err(_) => bytes.iter().take(8).rev().fold(0, |n, byte| (n << 8) | u64::from(*byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: Node = Node::LOCAL;
    const S: SegmentId = SegmentId(3);

    fn one(t: &Minitransaction) -> One {
        assert_eq!(t.extent, Extent::One);
        t.one
    }

    #[test]
    fn items_of_one_word_become_masks() {
        let mut t = Minitransaction::new();
        t.compare(N, S, 20, &[1, 2, 3, 4]);
        t.write(N, S, 16, &[9; 8]);
        t.write(N, S, 18, &[5, 6]);
        let read = t.read(N, S, 17, 3);
        let one = one(&t);
        assert_eq!((one.name, one.offset), (name(N, S), 16));
        assert!(one.matches(0x0403_0201_ffff_ffff) && !one.matches(0x0403_0200_ffff_ffff));
        assert_eq!(one.changed(7), 0x0909_0909_0605_0909);
        assert_eq!(t.bytes(read), None, "not before it is committed");
        t.fill_from(0x8877_6655_4433_2211);
        assert_eq!(t.bytes(read), Some(&[0x22, 0x33, 0x44][..]));
        assert_eq!(t.number(read), Some(0x44_3322));
        assert_eq!(named(one.name), (N, S));
    }

    #[test]
    fn values_are_their_bytes() {
        let (mut bytes, mut values) = (Minitransaction::new(), Minitransaction::new());
        bytes.compare(N, S, 20, &[1, 2, 0, 0]);
        values.compare_value(N, S, 20, 0x0201_u32);
        bytes.write(N, S, 17, &[7, 8, 9]);
        values.write_value(N, S, 17, [7_u8, 8, 9]);
        assert_eq!(format!("{bytes:?}"), format!("{values:?}"), "in one word");
        bytes.write(N, S, 64, &[1, 0, 2, 0, 3, 0, 4, 0, 5, 0]);
        values.write_value(N, S, 64, [1_u16, 2, 3, 4, 5]);
        assert_eq!(format!("{bytes:?}"), format!("{values:?}"), "in several");
        values.clear();
        let read = values.read(N, S, 16, 4);
        values.fill_from(0x8877_6655_4433_2211);
        assert_eq!(values.value(read), Some([0x2211_u16, 0x4433]));
        assert_eq!(values.value::<u64>(read), None, "another length");
    }

    #[test]
    fn compares_that_contradict_each_other_never_match() {
        let mut t = Minitransaction::new();
        t.compare(N, S, 0, &[1, 2]);
        t.compare(N, S, 1, &[2, 3]);
        assert!(one(&t).matches(0x03_0201));
        t.compare(N, S, 2, &[4]);
        assert!((0..1 << 24).all(|w| !one(&t).matches(w)));
    }

    #[test]
    fn what_lies_in_two_words_is_several() {
        let in_two: [fn(&mut Minitransaction); 6] = [
            |t| t.compare(N, S, 5, &[0; 4]),
            |t| t.write(N, S, 0, &[0; 9]),
            |t| t.write(N, S, 8, &[0]),
            |t| t.write(N, SegmentId(4), 0, &[0]),
            |t| t.write(Node(1), S, 0, &[0]),
            |t| t.write(N, S, 0, &[]),
        ];
        for more in in_two {
            let mut t = Minitransaction::new();
            t.compare(N, S, 0, &[0; 8]);
            more(&mut t);
            assert!(matches!(t.extent, Extent::Several));
            t.read(N, S, 0, 8);
            assert!(matches!(t.extent, Extent::Several), "and stays so");
            t.clear();
            t.read(N, S, 0, 8);
            one(&t);
        }
    }
}
