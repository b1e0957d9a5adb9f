//! What becomes of messages for which this process has no memory left.
//!
//! A message that nobody receives yet is kept in the process's own memory, and how many of them come is up to others. Where
//! an address space limit or strict accounting refuses the memory, the message stays in its lane, which fills, so that its
//! sender finds no room: the process waits with it for its own receives, instead of being ended. So that the program and
//! the small things of this library find memory meanwhile, a *cushion* is held as long as messages are kept, and given up
//! once there is no more: no message is kept before it is there again, but such as are in the way of what was begun.

use std::collections::TryReserveError;

/// Bytes of the cushion. Nothing is written to them, so they cost address space alone.
const CUSHION: usize = 1 << 20;

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
}

impl Cushion {
    /// Takes memory for a message that is kept, for as long as it pleases others: with `take`, and only beside the
    /// cushion, unless `is_awaited`: what this process has begun with the sender may end by something that is behind the
    /// message in its lane.
    pub(super) fn keep<T, E>(
        &mut self,
        is_awaited: impl FnOnce() -> bool,
        mut take: impl FnMut() -> Result<T, E>,
    ) -> Result<T, NoMemoryLeft> {
        let held = self.held.capacity() >= CUSHION || self.held.try_reserve_exact(CUSHION).is_ok();
        if held && let Ok(taken) = take() {
            return Ok(taken);
        }
        self.give_up();
        if is_awaited() { take().map_err(|_| NoMemoryLeft) } else { Err(NoMemoryLeft) }
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
        let (no, yes) = (|| false, || true);
        let mut cushion = Cushion::default();
        assert_eq!(cushion.keep(no, || zeroed(3)), Ok(vec![0; 3]));
        assert!(cushion.held.capacity() >= CUSHION && !cushion.take_shortage());
        assert_eq!(cushion.keep(no, || zeroed(1 << 62)), Err(NoMemoryLeft));
        assert!(cushion.held.capacity() == 0 && cushion.take_shortage() && !cushion.take_shortage());
        // Only where something is awaited is there a second try, from what the cushion left.
        for (is_awaited, expected) in [(no as fn() -> bool, Err(NoMemoryLeft)), (yes, Ok(2))] {
            let mut tries = 0;
            let second = || {
                tries += 1;
                if tries == 2 { Ok(tries) } else { Err(()) }
            };
            assert_eq!(cushion.keep(is_awaited, second), expected);
        }
        assert_eq!(cushion.borrow(|| zeroed(u64::MAX)), Err(NoMemoryLeft));
        assert_eq!(cushion.keep(no, || zeroed(0)), Ok(vec![]));
        assert!(cushion.held.capacity() >= CUSHION && !cushion.take_shortage());
    }
}
