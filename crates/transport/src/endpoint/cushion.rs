//! What becomes of messages for which this process has no memory left.
//!
//! A message that nobody receives yet is kept in the process's own memory, and how many of them come is up to others. Where
//! an address space limit or strict accounting refuses the memory, the message stays in its lane, which fills, so that its
//! sender finds no room: the process waits with it for its own receives, instead of being ended. So that the program and
//! the small things of this library find memory meanwhile, a *cushion* is held from the first such message on, and given up
//! once there is no more: no message is kept before it is there again, but such as are *awaited*. Those are in the way of what
//! was begun with their sender, or the only ones of their sender, which a program may look for. They leave a little, too.

use std::collections::TryReserveError;

/// Bytes of the cushion. Nothing is written to them, so they cost address space alone.
const CUSHION: usize = 1 << 20;
/// What is left to the program, and to what is small here, whatever is awaited: so many pieces of so many bytes, since memory
/// that was given back lies in pieces.
const LAST: (usize, usize) = (16, 1 << 14);
/// Tries that are left out after one that failed, since each asks the system in vain.
const SKIPPED: u32 = 16;

/// There is no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoMemoryLeft;

impl From<TryReserveError> for NoMemoryLeft {
    fn from(_: TryReserveError) -> Self {
        Self
    }
}

/// So many zeroed bytes.
pub(super) fn zeroed(len: u64) -> Result<Vec<u8>, NoMemoryLeft> {
    let len = usize::try_from(len).map_err(|_| NoMemoryLeft)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len)?;
    bytes.resize(len, 0);
    Ok(bytes)
}

/// Memory in reserve.
#[derive(Debug, Default)]
pub(super) struct Cushion {
    held: Vec<u8>,
    /// There ever was no memory, and who asks was not told.
    seen: bool,
    told: bool,
    /// Tries yet to be left out.
    to_skip: u32,
}

impl Cushion {
    /// Takes memory for a message that is kept `within` something, for as long as it pleases others: with `take(.., false)`,
    /// and only beside the cushion, unless it `is_awaited`: then with `take(.., true)`.
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
        // Whoever asks for memory next, and cannot do without, finds this much.
        let mut last = [const { Vec::<u8>::new() }; LAST.0];
        last.iter_mut().try_for_each(|piece| piece.try_reserve_exact(LAST.1))?;
        let taken = take(within, true);
        // Held until here, which a compiler could not know.
        std::hint::black_box(&last);
        taken.map_err(|_| NoMemoryLeft)
    }

    /// Something that was kept has gone: it is worth a try again.
    #[inline]
    pub(super) fn try_again(&mut self) {
        self.to_skip = 0;
    }

    /// Takes memory for a moment: with `take`, if need be from the cushion.
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

    /// Whether there was no memory, which is said once.
    #[inline]
    pub(super) fn take_shortage(&mut self) -> bool {
        self.seen && !std::mem::replace(&mut self.told, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_gives_up_the_cushion_and_is_said_once() {
        let (no, yes) = (|_: &()| false, |_: &()| true);
        let mut cushion = Cushion::default();
        assert_eq!(cushion.keep(&mut (), no, |(), _| zeroed(3)), Ok(vec![0; 3]));
        assert!(cushion.held.capacity() >= CUSHION && !cushion.take_shortage());
        assert_eq!(cushion.keep(&mut (), no, |(), _| zeroed(1 << 62)), Err(NoMemoryLeft));
        assert!(cushion.held.capacity() == 0 && cushion.take_shortage() && !cushion.take_shortage());
        // Only where something is awaited is there a second try, from what the cushion left.
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
        // What failed is not tried at once again, but for what is awaited.
        let mut left_out = 0;
        while cushion.keep(&mut (), no, |(), _| zeroed(0)).is_err() {
            assert_eq!(cushion.keep(&mut (), yes, |(), awaited| zeroed(u64::from(awaited))), Ok(vec![0]));
            left_out += 2;
        }
        assert_eq!(left_out, SKIPPED);
        assert!(cushion.held.capacity() >= CUSHION && !cushion.take_shortage());
    }
}
