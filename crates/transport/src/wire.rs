//! The messages that travel in slots.
//!
//! Word 0 is stamp (32 bits, the ring's), kind (8), flags (8) and in-line length (16). What the words 1 to 7 hold
//! depends on the kind. Offsets are offsets in the sender's section; operation ids name an entry of the receiver's
//! or sender's own table and carry that entry's generation.
//!
//! | kind | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
//! |---|---|---|---|---|---|---|---|
//! | `INLINE` | tag | data | payload | payload | payload | payload | payload |
//! | `EAGER` | tag | data | length | offset | sender's id, if `ACK` | | |
//! | `READY` | tag | data | length | sender's id | where the payload is, if `OFFER` | where the offer's word is | its value |
//! | `CLEAR` | sender's id | receiver's id | bytes wanted | | | | |
//! | `CHUNK` | receiver's id | position | length | offset | | | |
//! | `PAGES` | receiver's id | position | length | offset of the list of pages | first of the list | | |
//! | `AGAIN` | sender's id | position | | | | | |
//! | `DONE` | sender's id | status | | | | | |
//! | `READ` | sender's id | key | address | length | | | |
//! | `WRITE` | sender's id | key | address | length | offset | data | |
//! | `WRITE_READY` | sender's id | key | address | length | | data | |
//! | `ATOMIC` | sender's id | key | address | count, datatype, op, kind | offset | lengths | element bytes |
//! | `RESULT` | sender's id | status | length | offset | | | |
//!
//! ```text
//! eager        INLINE or EAGER ─────────►
//! pipelined    READY ───────────────────►   waits for its receive, then
//!              ◄─────────────────── CLEAR
//!              CHUNK CHUNK CHUNK … ─────►   copied out while the next is copied in; DONE if `ACK`
//! one copy     READY with OFFER ────────►   waits for its receive, which copies from where the sender has it, then
//!              ◄────────────────── DONE     or CLEAR, and so on as pipelined
//! granted      READY with PAGES ────────►   waits for its receive, then
//!              ◄─────── CLEAR with PAGES
//!              PAGES CHUNK PAGES … ─────►   copied out of the sender's own pages, and the rest as pipelined
//!              ◄────────────────── DONE     or AGAIN where a page was no longer granted, after which all comes in CHUNKs
//! ```

use isthmus_lockfree::slot::ReadSlot;

use crate::types::{AtomicKind, Status};

/// Kinds of messages; the table above describes them.
pub mod kind {
    pub const INLINE: u8 = 1;
    pub const EAGER: u8 = 2;
    pub const READY: u8 = 3;
    pub const CLEAR: u8 = 4;
    pub const CHUNK: u8 = 5;
    pub const DONE: u8 = 6;
    pub const READ: u8 = 7;
    pub const WRITE: u8 = 8;
    pub const WRITE_READY: u8 = 9;
    pub const ATOMIC: u8 = 10;
    pub const RESULT: u8 = 11;
    pub const PAGES: u8 = 12;
    pub const AGAIN: u8 = 13;
}

/// Whether messages of this kind exist.
pub fn is_known(kind: u8) -> bool {
    (kind::INLINE..=kind::AGAIN).contains(&kind)
}

/// Whether a program sent the message; the other kinds are RMA and the protocol's replies.
#[inline]
pub fn is_programs(kind: u8) -> bool {
    kind <= kind::READY
}

/// The word that holds the offset of the payload in the sender's section, in messages that have one.
pub fn offset_word(head: u64) -> usize {
    match kind_of(head) {
        kind::WRITE | kind::ATOMIC => 5,
        _ => 4,
    }
}

/// Flags of a message.
pub mod flag {
    /// A tagged message.
    pub const TAGGED: u8 = 1;
    /// Word 2 (or 6) holds data for the receiver's completion.
    pub const DATA: u8 = 2;
    /// The sender waits for `DONE`.
    pub const ACK: u8 = 4;
    /// The receiver may copy the payload from where the sender has it, and then answers with `DONE` alone.
    pub const OFFER: u8 = 8;
    /// Of `CLEAR`: the sender may have many chunks under way, and not the usual few.
    pub const DEEP: u8 = 128;
    /// Of an offer: its places are not addresses in the sender's process, but offsets in its section.
    pub const RESIDENT: u8 = 64;
    /// Of `READY`: the sender can grant pages. Of `CLEAR`: the receiver wants them, and answers with `DONE`.
    pub const PAGES: u8 = 16;
    /// Of `PAGES`: they have been granted just now, which takes longer than to name them.
    pub const FRESH: u8 = 32;
}

/// Bytes of payload in one slot.
pub const INLINE_BYTES: usize = 40;

/// Builds word 0.
#[inline]
pub fn head(kind: u8, flags: u8, inline_len: usize) -> u64 {
    (u64::from(kind) << 32) | (u64::from(flags) << 40) | ((inline_len as u64) << 48)
}

/// The kind in word 0.
#[inline]
pub fn kind_of(head: u64) -> u8 {
    head.to_le_bytes()[4]
}

/// The flags in word 0.
#[inline]
pub fn flags_of(head: u64) -> u8 {
    head.to_le_bytes()[5]
}

/// The in-line length in word 0, which a hostile sender may have made too large.
#[inline]
pub fn inline_len(head: u64) -> usize {
    usize::from(u16::from_le_bytes([head.to_le_bytes()[6], head.to_le_bytes()[7]]))
}

/// Words of payload in one slot: 3 to 7.
pub const INLINE_WORDS: usize = INLINE_BYTES / 8;

/// An `INLINE` message in its slot. Each word is read when it is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inline<'a> {
    pub(crate) slot: &'a ReadSlot,
    /// Word 0.
    pub(crate) head: u64,
}

impl Inline<'_> {
    /// Bytes of payload, as the sender says.
    #[inline(always)] // on the way of a short message, as all of these
    pub(crate) fn len(self) -> usize {
        inline_len(self.head)
    }

    #[inline(always)]
    pub(crate) fn tagged(self) -> bool {
        flags_of(self.head) & flag::TAGGED != 0
    }

    #[inline(always)]
    pub(crate) fn tag(self) -> u64 {
        self.slot.word(1)
    }

    #[inline(always)]
    pub(crate) fn data(self) -> Option<u64> {
        if flags_of(self.head) & flag::DATA != 0 { Some(self.slot.word(2)) } else { None }
    }

    /// Word `number` of the payload, from 0 on.
    #[inline(always)]
    pub(crate) fn payload(self, number: usize) -> u64 {
        self.slot.word(3 + number)
    }
}

/// The bytes of payload words.
pub fn bytes(words: &[u64; INLINE_WORDS]) -> [u8; INLINE_BYTES] {
    let mut bytes = [0; INLINE_BYTES];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The words of payload bytes.
pub fn words(bytes: &[u8; INLINE_BYTES]) -> [u64; INLINE_WORDS] {
    let mut words = [0; INLINE_WORDS];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(chunk.try_into().unwrap_or_default());
    }
    words
}

/// The code of a status.
pub fn status_code(status: Status) -> u64 {
    match status {
        Status::Ok => 0,
        Status::NoKey => 1,
        Status::NoAccess => 2,
        Status::Unsupported => 3,
        Status::PeerGone | Status::Truncated { .. } | Status::Canceled | Status::NoMessage => 4,
    }
}

/// The status of a code; a code that no honest peer sends is [`Status::PeerGone`].
pub fn status_of(code: u64) -> Status {
    match code {
        0 => Status::Ok,
        1 => Status::NoKey,
        2 => Status::NoAccess,
        3 => Status::Unsupported,
        _ => Status::PeerGone,
    }
}

/// Word 4 of an `ATOMIC` message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicWord {
    /// Elements.
    pub count: u32,
    /// Datatype.
    pub datatype: u8,
    /// Operation.
    pub op: u8,
    /// Kind.
    pub kind: AtomicKind,
}

impl AtomicWord {
    /// Packs it.
    pub fn pack(self) -> u64 {
        let kind = match self.kind {
            AtomicKind::Plain => 0,
            AtomicKind::Fetch => 1_u64,
            AtomicKind::Compare => 2,
        };
        u64::from(self.count) | (u64::from(self.datatype) << 32) | (u64::from(self.op) << 40) | (kind << 48)
    }

    /// Unpacks a word that any peer may have sent.
    pub fn unpack(word: u64) -> Option<Self> {
        let bytes = word.to_le_bytes();
        let kind = match bytes[6] {
            0 => AtomicKind::Plain,
            1 => AtomicKind::Fetch,
            2 => AtomicKind::Compare,
            _ => return None,
        };
        let count = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Some(Self { count, datatype: bytes[4], op: bytes[5], kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_as_they_were_packed() {
        let h = head(kind::EAGER, flag::TAGGED | flag::ACK, 40);
        assert_eq!((kind_of(h), flags_of(h), inline_len(h)), (kind::EAGER, 5, 40));
        let a = AtomicWord { count: 7, datatype: 3, op: 9, kind: AtomicKind::Compare };
        assert_eq!(AtomicWord::unpack(a.pack()), Some(a));
        assert_eq!(AtomicWord::unpack(9 << 48), None);
        let bytes: [u8; INLINE_BYTES] = std::array::from_fn(|i| u8::try_from(i).unwrap());
        assert_eq!(super::bytes(&words(&bytes)), bytes);
    }
}
