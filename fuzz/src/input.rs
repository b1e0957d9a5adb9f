// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An input taken apart piece by piece; what is not there any more reads as zero.

/// What is left of an input.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub(crate) fn below(&mut self, limit: u8) -> u8 {
        self.byte() % limit
    }

    pub(crate) fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// A number of a size that is worth trying: small, round, near a border, or any.
    pub(crate) fn number(&mut self) -> u64 {
        match self.byte() {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << (self.byte() % 64),
            3 => (1 << (self.byte() % 64)) - 1,
            4 => u64::from(self.byte()) << 32 | 1,
            5 => u64::from(self.short()) * 64,
            6 => u64::from(self.short()) << 8,
            7 => u64::from(self.byte()) << (self.byte() % 64),
            8..=99 => self.byte().into(),
            _ => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    /// Up to `most` bytes, the count of which comes first.
    pub(crate) fn bytes(&mut self, most: usize) -> &'a [u8] {
        let count = usize::from(self.short()).min(most).min(self.0.len());
        let (head, rest) = self.0.split_at(count);
        self.0 = rest;
        head
    }
}
