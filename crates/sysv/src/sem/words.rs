//! What stands in the words of a set.
//!
//! ```text
//! a semaphore   0-14 value    15 waiters        16 mark    17-31 zeros     32-53 process    54-63 peer
//! an undo cell  0-15 adjustment                 16 mark    17-31 semaphore 32-53 process    54-63 peer
//! ```
//! *Waiters* is set by a thread that is about to sleep, and cleared by one that changes the value, which then rings. *Zeros* counts
//! how often the value has become 0, so that a thread that waits for that cannot miss it. Process and peer are those of the last
//! change, or of the cell's owner. A word with the mark bit is a mark of [`isthmus_lockfree::mcas`]; each other word is a value, and
//! so is zeroed memory.

/// The highest value: SEMVMX.
pub const MOST: i32 = 32767;

/// Whether a thread may sleep.
pub(super) const WAITERS: u64 = 1 << 15;

const VALUE: u64 = 0x7fff;
const ZERO: u64 = 1 << 17;
const ZEROS: u64 = 0x7fff << 17;
const WHO_SHIFT: u32 = 32;
const PID_BITS: u32 = 22;

/// A process's number and peer.
pub(super) fn who(pid: u32, peer: u32) -> u32 {
    (pid & ((1 << PID_BITS) - 1)) | (peer << PID_BITS)
}

/// Peer and process number.
pub(super) fn peer_and_pid(who: u32) -> (u32, u32) {
    (who >> PID_BITS, who & ((1 << PID_BITS) - 1))
}

/// The last process, or a cell's owner.
#[allow(clippy::cast_possible_truncation)] // the upper half
pub(super) fn who_of(word: u64) -> u32 {
    (word >> WHO_SHIFT) as u32
}

/// A semaphore's value.
#[inline]
#[allow(clippy::cast_possible_truncation)] // 15 bits
pub(super) fn value(word: u64) -> i32 {
    (word & VALUE) as i32
}

/// How often the value has become 0.
pub(super) fn zeros(word: u64) -> u64 {
    word & ZEROS
}

/// The word after a process has given the semaphore a value from 0 to [`MOST`].
#[inline]
pub(super) fn changed(word: u64, new: i32, who: u32) -> u64 {
    let mut kept = word & (ZEROS | WAITERS);
    if value(word) != new {
        kept &= ZEROS;
        if new == 0 {
            kept = kept.wrapping_add(ZERO) & ZEROS;
        }
    }
    kept | u64::from(new.unsigned_abs()) & VALUE | u64::from(who) << WHO_SHIFT
}

/// The word of a semaphore whose sleepers are to look again, though its value is the same.
pub(super) fn stirred(word: u64) -> u64 {
    (word & !(ZEROS | WAITERS)) | (zeros(word).wrapping_add(ZERO) & ZEROS)
}

/// Whether somebody must be rung after a change.
#[inline]
pub(super) fn must_ring(before: u64, after: u64) -> bool {
    before & WAITERS != 0 && after & WAITERS == 0
}

/// A cell's word.
pub(super) fn cell(num: u32, adjustment: i32, who: u32) -> u64 {
    #[allow(clippy::cast_possible_truncation)] // from -32768 to 32767
    let adjustment = adjustment as i16;
    u64::from(adjustment.cast_unsigned()) | u64::from(num & 0x7fff) << 17 | u64::from(who) << WHO_SHIFT
}

/// A cell's adjustment.
#[inline]
pub(super) fn adjustment(cell: u64) -> i32 {
    #[allow(clippy::cast_possible_truncation)] // the 16 bits
    let low = cell as u16;
    low.cast_signed().into()
}

/// A cell with another adjustment, from -32768 to 32767.
#[inline]
pub(super) fn adjusted(cell: u64, adjustment: i32) -> u64 {
    #[allow(clippy::cast_possible_truncation)] // the 16 bits
    let low = (adjustment as i16).cast_unsigned();
    (cell & !0xffff) | u64::from(low)
}

/// A cell's semaphore.
#[allow(clippy::cast_possible_truncation)] // 15 bits
pub(super) fn semaphore(cell: u64) -> u32 {
    (cell >> 17) as u32 & 0x7fff
}

#[cfg(test)]
mod tests {
    use isthmus_lockfree::mcas::is_mark;

    use super::*;

    #[test]
    fn words_keep_their_parts_and_are_no_marks() {
        let me = who(4_194_303, 1023);
        assert_eq!(peer_and_pid(me), (1023, 4_194_303));
        let mut word = 0;
        for (new, is_zero) in
            [(0, false), (7, false), (MOST, false), (0, true), (0, false), (1, false), (0, true)]
        {
            let before = word | WAITERS;
            word = changed(before, new, me);
            assert_eq!((value(word), who_of(word), is_mark(word)), (new, me, false));
            assert_eq!(zeros(word) != zeros(before), is_zero);
            assert_eq!(must_ring(before, word), value(before) != new);
        }
        let full = word | ZEROS | WAITERS;
        assert_eq!(
            changed(changed(full, 1, me), 0, me),
            u64::from(me) << 32,
            "it wraps, and spills into nothing"
        );
        assert_eq!(stirred(full), u64::from(me) << 32);
        for (num, value) in [(0, 0), (31_999, -32_768), (32_767, 32_767), (5, -1)] {
            let cell = cell(num, value, me);
            assert_eq!(
                (semaphore(cell), adjustment(cell), who_of(cell), is_mark(cell)),
                (num, value, me, false)
            );
            let other = adjusted(cell, -7);
            assert_eq!(
                (semaphore(other), adjustment(other), who_of(other), is_mark(other)),
                (num, -7, me, false)
            );
        }
    }
}
