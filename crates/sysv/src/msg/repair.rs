//! Mending a queue that a process has left half changed, or in which anything stands that cannot be right.

use isthmus_lockfree::sync::release_fence;

use super::fault::{Step, step};
use super::pool::{Found, Message, Rubbish, Run};
use super::queue::{
    BYTES, CHANGING, END, KNOWN_BYTES, KNOWN_MESSAGES, LIST, MESSAGES, Queue, RECLAIMED, SOUND, STATE, Stop,
    change, index,
};

impl Queue {
    /// Makes the queue sound, if it is not.
    #[cold]
    pub(super) fn repair(&self) -> std::result::Result<(), Stop> {
        self.repair_if(|| Ok(true)).map(drop)
    }

    /// Makes the queue sound, if a receiver has left it half changed, or it is full although nothing is in it: a message of
    /// `len` bytes does not fit into `most`. Gives whether it was so.
    #[cold]
    pub(super) fn repair_if_wrong(&self, len: u64, most: u64) -> std::result::Result<bool, Stop> {
        self.repair_if(|| {
            let (senders, receivers) = (&self.senders_own.words, &self.receivers_own.words);
            if senders[STATE].get() != SOUND || receivers[STATE].get() != 0 {
                return Ok(true);
            }
            senders[STATE].put(CHANGING);
            release_fence();
            self.reclaim()?;
            senders[STATE].set(SOUND);
            Ok(self.is_wrongly_full(len, most) && !self.fits(len, most)?)
        })
    }

    fn repair_if(&self, is_wrong: impl FnOnce() -> Found<bool>) -> std::result::Result<bool, Stop> {
        // In this order always; who has the receivers' lock alone gives it back first.
        let senders = self.lock(&self.send_lock)?;
        let receivers = self.lock(&self.receive_lock)?;
        if !is_wrong().unwrap_or(true) {
            return Ok(false);
        }
        self.rebuild()?;
        change(&self.receivers);
        change(&self.senders);
        drop(receivers);
        drop(senders);
        self.receivers.ring(u32::MAX);
        self.senders.ring(u32::MAX);
        Ok(true)
    }

    /// Makes all anew that the chain tells, and ends the chain where it does not go on with a sound message. Both locks are
    /// the caller's.
    fn rebuild(&self) -> Found<()> {
        let (sent, taken) = (&self.sent.words, &self.taken.words);
        let (senders, receivers) = (&self.senders_own.words, &self.receivers_own.words);
        senders[STATE].put(CHANGING);
        receivers[STATE].put(CHANGING);
        release_fence();
        self.space.reset()?;
        step(Step::Reset);
        let mut head = index(&taken[END]);
        if head >= self.pool.count() {
            head = 0;
            self.pool.link(0, 0)?;
            taken[END].set(0);
        }
        if head != 0 {
            self.pool.shorten(head)?;
            self.space.mark(Run { start: head, count: 1 })?;
        }
        let (mut messages, mut bytes, mut tail) = (0_u64, 0_u64, head);
        let mut at = self.pool.next(head)?;
        while at != 0 {
            let Ok(message) = self.keep(at) else {
                self.pool.link(tail, 0)?;
                break;
            };
            step(Step::Kept);
            // Each of them has blocks that no other has, so this ends.
            messages += 1;
            bytes += u64::from(message.len);
            (tail, at) = (at, message.next);
            if message.kind == 0 {
                messages -= 1;
                bytes -= u64::from(message.len);
            }
        }
        sent[END].put(tail.into());
        sent[MESSAGES].put(taken[MESSAGES].peek().wrapping_add(messages));
        sent[BYTES].put(taken[BYTES].peek().wrapping_add(bytes));
        senders[KNOWN_MESSAGES].put(taken[MESSAGES].peek());
        senders[KNOWN_BYTES].put(taken[BYTES].peek());
        senders[RECLAIMED].put(head.into());
        receivers[LIST].put(0);
        step(Step::Rebuilt);
        receivers[STATE].set(0);
        senders[STATE].set(SOUND);
        Ok(())
    }

    /// Marks the blocks of a message as used, if it is sound and they are not used yet.
    fn keep(&self, at: u32) -> Found<Message> {
        let message = self.pool.message(at)?;
        let mut kept = 0;
        let done = self.pool.runs(&message, |run| {
            if !self.space.is_free(run)? {
                return Err(Rubbish);
            }
            kept += 1;
            self.space.mark(run)
        });
        if let Err(rubbish) = done {
            let mut left = kept;
            // As far as that came. It may read otherwise by now, and then blocks are lost until the next time.
            let _ = self.pool.runs(&message, |run| {
                if left == 0 {
                    return Err(Rubbish);
                }
                left -= 1;
                self.space.give(run)
            });
            return Err(rubbish);
        }
        Ok(message)
    }
}
