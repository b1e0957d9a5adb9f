//! Messages for which this process has no memory left.
//!
//! A message without a receive is kept in the process's own memory, and senders decide how many there are.
//! Where an address space limit or strict accounting refuses the memory, the message stays in its lane. The
//! lane fills, and its sender finds no room until receives are posted; the process does not abort. So that
//! the program, and small allocations of this library, find memory meanwhile, a *cushion* is reserved with
//! the first kept message, and freed when an allocation fails. Until it can be reserved again, a message is
//! kept only if it is *awaited*: an operation with its sender is pending behind it, or it is the only one of
//! its sender, which the program may wait for. Awaited messages leave a little memory free, too.

use std::collections::TryReserveError;

/// Bytes of the cushion. Nothing is written to them, so they cost address space alone.
const CUSHION: usize = 1 << 20;
/// What awaited messages leave to the program and to small allocations: so many pieces of so many bytes,
/// since freed memory lies in pieces.
const LAST: (usize, usize) = (16, 1 << 14);
/// Tries that are skipped after one that failed, since each costs a system call that would fail.
const SKIPPED: u32 = 16;

/// There is no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoMemoryLeft;

impl From<TryReserveError> for NoMemoryLeft {
    fn from(_: TryReserveError) -> Self {
        Self
    }
}

/// `len` zeroed bytes.
pub(super) fn zeroed(len: u64) -> Result<Vec<u8>, NoMemoryLeft> {
    let len = usize::try_from(len).map_err(|_| NoMemoryLeft)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len)?;
    bytes.resize(len, 0);
    Ok(bytes)
}

/// The memory in reserve.
#[derive(Debug, Default)]
pub(super) struct Cushion {
    held: Vec<u8>,
    /// An allocation has failed; `told`: that was reported.
    seen: bool,
    told: bool,
    /// Tries still to be skipped.
    to_skip: u32,
}

impl Cushion {
    /// Takes memory for a message that is kept `within` something, for an unbounded time: with `take(..,
    /// false)` if the cushion is there, too; else with `take(.., true)`, if the message `is_awaited`.
    pub(super) fn keep<W, T, E>(
        &mut self,
        within: &mut W,
        is_awaited: impl FnOnce(&W) -> bool,
        mut take: impl FnMut(&mut W, bool) -> Result<T, E>,
    ) -> Result<T, NoMemoryLeft> {
        if self.to_skip > 0 {
            self.to_skip -= 1;
        } else {
            let held = self.held.capacity() >= CUSHION || self.held.try_reserve_exact(CUSHION).is_ok();
            if held && let Ok(taken) = take(within, false) {
                return Ok(taken);
            }
            self.give_up();
        }
        if !is_awaited(within) {
            return Err(NoMemoryLeft);
        }
        // The next allocation that must not fail finds this much.
        let mut last = [const { Vec::<u8>::new() }; LAST.0];
        last.iter_mut().try_for_each(|piece| piece.try_reserve_exact(LAST.1))?;
        let taken = take(within, true);
        // The compiler must not free it earlier.
        std::hint::black_box(&last);
        taken.map_err(|_| NoMemoryLeft)
    }

    /// A kept message has gone: try again.
    #[inline]
    pub(super) fn try_again(&mut self) {
        self.to_skip = 0;
    }

    /// Takes memory for a moment: with `take`, if need be after freeing the cushion.
    pub(super) fn borrow<T>(
        &mut self,
        take: impl Fn() -> Result<T, NoMemoryLeft>,
    ) -> Result<T, NoMemoryLeft> {
        take().or_else(|_| {
            self.give_up();
            take()
        })
    }

    fn give_up(&mut self) {
        self.held = Vec::new();
        self.seen = true;
        self.to_skip = SKIPPED;
    }

    /// Whether an allocation has failed; true once.
    #[inline]
    pub(super) fn take_shortage(&mut self) -> bool {
        self.seen && !std::mem::replace(&mut self.told, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_allocation_frees_the_cushion_and_is_reported_once() {
        let (no, yes) = (|_: &()| false, |_: &()| true);
        let mut cushion = Cushion::default();
        assert_eq!(cushion.keep(&mut (), no, |(), _| zeroed(3)), Ok(vec![0; 3]));
        assert!(cushion.held.capacity() >= CUSHION && !cushion.take_shortage());
        assert_eq!(cushion.keep(&mut (), no, |(), _| zeroed(1 << 62)), Err(NoMemoryLeft));
        assert!(cushion.held.capacity() == 0 && cushion.take_shortage() && !cushion.take_shortage());
        // Only an awaited message gets a second try, from the freed cushion.
        for (is_awaited, expected) in [(no as fn(&()) -> bool, Err(NoMemoryLeft)), (yes, Ok(2))] {
            let mut tries = 0;
            let second = |(): &mut (), awaited| {
                tries += 1;
                if awaited { Ok(tries) } else { Err(()) }
            };
            cushion.try_again();
            assert_eq!(cushion.keep(&mut (), is_awaited, second), expected);
            assert!(cushion.held.capacity() == 0);
        }
        assert_eq!(cushion.borrow(|| zeroed(u64::MAX)), Err(NoMemoryLeft));
        // After a failure tries are skipped, but for awaited messages.
        let mut left_out = 0;
        while cushion.keep(&mut (), no, |(), _| zeroed(0)).is_err() {
            assert_eq!(cushion.keep(&mut (), yes, |(), awaited| zeroed(u64::from(awaited))), Ok(vec![0]));
            left_out += 2;
        }
        assert_eq!(left_out, SKIPPED);
        assert!(cushion.held.capacity() >= CUSHION && !cushion.take_shortage());
    }
}
