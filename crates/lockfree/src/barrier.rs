//! Barriers: words from which it follows that all have arrived.
//!
//! **Exchange** (P9). Each participant has one word, its *progress*, which it alone writes and which only grows: a round
//! of `n` participants takes `steps` steps, and a participant that has done step `k` of round `r` writes `r * steps + k + 1`. In step
//! `k` it waits for [`FAN`] - 1 others, at distances of `1, 2, ... FAN - 1` times `FAN` to the power of `k`; what they say
//! covers all that they have waited for in earlier steps, so after the last step all have arrived. With up to
//! [`FAN`] participants that is one step: each writes its own word and reads those of the others. There is no locked
//! instruction, and no fence. Since words only grow, nothing is ever set back, and one that is ahead is as good as one
//! that has just come. A participant whose partner does not go on, since its time was up or it died on the way, polls
//! all words itself: once each says step 0 of the round, all have arrived, and the participant that saw that may write the
//! last step of the round. (The scheme is the dissemination barrier of Hensgen, Finkel and Manber, 1988, with a larger fan
//! and counts in place of flags.)
//!
//! **Central** (P10). All add to one count; the participant that completes a round says so in another word, at which
//! the others wait.
//! Both only grow, too.
//!
//! **Seats and resets** (P20). Each participant claims a seat. Once a barrier is broken and all claims are gone, one process
//! makes its words new. A claim that comes meanwhile either finds the barrier broken, or is seen by the process that resets it.

use crate::sync::{ReadWord, Word, full_fence};

/// One more than the number of others whose words a participant waits for in one step.
pub const FAN: u64 = 8;

/// Steps of a round among `parties`.
pub fn steps(parties: u64) -> u64 {
    let (mut steps, mut reach) = (1, FAN);
    while reach < parties {
        steps += 1;
        reach = reach.saturating_mul(FAN);
    }
    steps
}

/// Those whose words `seat` waits for in step `step` of each round.
pub fn partners(seat: u64, step: u64, parties: u64) -> Vec<u64> {
    let distance = (0..step).fold(1_u64, |d, _| d.saturating_mul(FAN));
    let far = (1..FAN).map(|i| i.saturating_mul(distance)).take_while(|d| *d < parties);
    far.map(|d| (seat + parties - d) % parties).collect()
}

/// Says how far the caller has come (P9, the writing end).
#[inline]
pub fn advance(own: &Word, to: u64) {
    own.set(to);
}

/// Whether another participant has come as far as `target` (P9, the reading end). A word that cannot be right is not
/// taken for an arrival.
#[inline]
pub fn has_reached(other: &ReadWord, target: u64, steps: u64) -> bool {
    other.get().wrapping_sub(target) <= 2 * steps
}

/// Whether a word that is compared with `target` can be right: no participant is further ahead or behind than a round. Progress
/// begins at 0 and never wraps, so 2^64 - 1 is not one behind 0.
pub fn is_plausible(other: &ReadWord, target: u64, steps: u64) -> bool {
    other.peek().abs_diff(target) <= 2 * steps
}

/// Claims a seat for `me`, if it is free (P20). Gives what the barrier is broken by since: if that is nothing the seat is
/// good, and what a reset wrote before is visible; else the claim is to be given back.
pub fn sit_down(claim: &Word, me: u64, broken: &ReadWord) -> Option<u64> {
    claim.replace(0, me).ok()?;
    full_fence();
    Some(broken.get())
}

/// Whether a barrier is broken, before the claims are looked at for a reset (P20).
pub fn may_reset(broken: &ReadWord) -> bool {
    let is_broken = broken.get() != 0;
    full_fence();
    is_broken
}

/// How an arrival was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Others are still to come.
    Early,
    /// The last one: now is the time for [`open`].
    Last,
    /// The count cannot be right.
    Wrong,
}

/// Counts the caller's arrival in `round` (P10). All that was done before arrivals is visible to the last one.
#[inline]
pub fn arrive(count: &Word, round: u64, parties: u64) -> Arrival {
    match count.add(1).wrapping_sub(round.wrapping_mul(parties)) {
        before if before == parties.wrapping_sub(1) => Arrival::Last,
        before if before < parties => Arrival::Early,
        _ => Arrival::Wrong,
    }
}

/// Lets all waiters for the end of `round` go on (P10, the writing end).
#[inline]
pub fn open(gate: &Word, round: u64) {
    gate.set(round.wrapping_add(1));
}

/// Whether `round` has ended (P10, the reading end).
#[inline]
pub fn is_open(gate: &ReadWord, round: u64) -> bool {
    gate.get() == round.wrapping_add(1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn after_the_last_step_everybody_has_heard_of_everybody() {
        for parties in (1..40).chain([63, 64, 65, 100, 511, 512, 513]) {
            // Those of whose arrival each participant knows.
            let mut known: Vec<Vec<bool>> =
                (0..parties).map(|i| (0..parties).map(|j| i == j).collect()).collect();
            for step in 0..steps(parties) {
                let before = known.clone();
                for seat in 0..parties {
                    for partner in partners(seat, step, parties) {
                        assert_ne!(partner, seat);
                        let [to, from] = [seat, partner].map(|seat| usize::try_from(seat).unwrap());
                        for (mine, theirs) in known[to].iter_mut().zip(&before[from]) {
                            *mine |= theirs;
                        }
                    }
                }
            }
            assert!(known.iter().flatten().all(|k| *k), "{parties} parties");
        }
        assert_eq!((steps(2), steps(8), steps(9), steps(64), steps(65)), (1, 1, 2, 2, 3));
    }

    #[test]
    fn a_count_that_cannot_be_right_is_no_arrival() {
        let count = Word::new(0);
        assert_eq!(arrive(&count, 0, 2), Arrival::Early);
        assert_eq!(arrive(&count, 0, 2), Arrival::Last);
        assert_eq!(arrive(&count, 0, 2), Arrival::Wrong);
        count.put(u64::MAX - 5);
        assert_eq!(arrive(&count, 1, 2), Arrival::Wrong);
        count.put(1 << 40);
        assert_eq!(arrive(&count, 1, 1), Arrival::Wrong);
        count.put(1);
        assert_eq!(arrive(&count, 1, 2), Arrival::Wrong, "one short of the round's first");
    }

    #[test]
    fn a_word_that_cannot_be_right_is_neither_an_arrival_nor_believed() {
        for (value, reached, plausible) in [
            (10, true, true),
            (11, true, true),
            (9, false, true),
            (8, false, true),
            (13, false, false),
            (5, false, false),
            (u64::MAX, false, false),
            (1 << 63, false, false),
        ] {
            let word = Word::new(value);
            assert_eq!(has_reached(&word, 10, 1), reached, "{value}");
            assert_eq!(is_plausible(&word, 10, 1), plausible, "{value}");
        }
    }

    #[test]
    fn progress_is_plausible_within_a_round_and_never_below_its_beginning() {
        let plausible = |seen: u64, target: u64| is_plausible(&Word::new(seen), target, 2);
        for (seen, target) in [(0, 1), (0, 4), (5, 1), (96, 100), (104, 100)] {
            assert!(plausible(seen, target), "{seen} beside {target}");
        }
        for (seen, target) in [(0, 5), (6, 1), (95, 100), (105, 100), (12345, 100), (1 << 63, 1)] {
            assert!(!plausible(seen, target), "{seen} beside {target}");
        }
        // Believed to be behind, it would be waited for by those whom its participant waits for in the next round.
        for target in 1..=5 {
            assert!(!plausible(u64::MAX, target) && !plausible(u64::MAX - 2, target), "beside {target}");
        }
    }
}
