//! Rounds in which all services hear what their processes have said by now and notice all deaths, so that what the table of named
//! objects says then is exact for who asked, wherever the others are.
//!
//! A round ends when all have answered, and in any case after [`PATIENCE`]: a VM may be paused, and its agent gone. One that did
//! not answer in time is asked in later rounds, too, but not waited for until it is heard again. What is lost on the way is asked
//! again.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a round takes at most.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// When a VM is asked again.
const AGAIN: Duration = Duration::from_millis(250);
/// Rounds at once; beyond them nobody is waited for.
const MOST: usize = 1024;
/// Those of one VM; what it asks for beyond them it asks for again.
const MOST_OF_VM: usize = 64;

/// What is called at the end of a round.
pub(crate) type Then = Box<dyn FnOnce() + Send>;

/// Who has asked for a round: a VM's agent, with some numbers, by which it may ask again.
pub(crate) type Origin = Option<(u32, BTreeSet<u32>)>;

struct Round {
    number: u32,
    origin: Origin,
    /// Peers whose services have not answered.
    missing: BTreeSet<u32>,
    until: Instant,
    again: Instant,
    then: Then,
}

#[derive(Default)]
struct State {
    rounds: Vec<Round>,
    last: u32,
    /// Peers that did not answer in time.
    silent: BTreeSet<u32>,
    /// Whether the thread that looks at the clock knows that there are rounds.
    is_watched: bool,
}

/// All rounds that are under way.
#[derive(Clone, Default)]
pub(crate) struct Rounds(Arc<Mutex<State>>);

/// What a round begins with.
pub(crate) enum Begun {
    /// It has this number. If so said, the clock has to be looked at.
    Round(u32, bool),
    /// Its asker has asked for all of it already, or for too many, which it asks for again.
    Known,
    /// Nobody is waited for.
    Over(Then),
}

/// What the clock says.
#[derive(Default)]
pub(crate) struct Due {
    /// When to look again; never, if there are no rounds.
    pub(crate) next: Option<Duration>,
    /// Peers to be asked again, each for a round.
    pub(crate) again: Vec<(u32, u32)>,
    /// Of rounds that took too long.
    pub(crate) over: Vec<Then>,
}

impl Rounds {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a round of these peers, each of which is then to be asked, the silent ones as well.
    pub(crate) fn begin(&self, origin: Origin, peers: &BTreeSet<u32>, now: Instant, then: Then) -> Begun {
        let mut state = self.state();
        if let Some((vm, asked)) = &origin {
            let own =
                state.rounds.iter().filter_map(|round| round.origin.as_ref().filter(|(by, _)| by == vm));
            let own: Vec<_> = own.map(|(_, numbers)| numbers).collect();
            let is_known = asked.iter().all(|number| own.iter().any(|numbers| numbers.contains(number)));
            if is_known || own.len() >= MOST_OF_VM {
                return Begun::Known;
            }
        }
        let missing: BTreeSet<u32> = peers.difference(&state.silent).copied().collect();
        if missing.is_empty() || state.rounds.len() >= MOST {
            return Begun::Over(then);
        }
        // 0 is no round's.
        state.last = state.last.checked_add(1).unwrap_or(1);
        let number = state.last;
        let (until, again) = (now + PATIENCE, now + AGAIN);
        state.rounds.push(Round { number, origin, missing, until, again, then });
        Begun::Round(number, !std::mem::replace(&mut state.is_watched, true))
    }

    /// A peer's service has answered. Gives what is to be called.
    pub(crate) fn answered(&self, peer: u32, number: u32) -> Option<Then> {
        let mut state = self.state();
        state.silent.remove(&peer);
        let at = state.rounds.iter().position(|round| round.number == number)?;
        state.rounds[at].missing.remove(&peer);
        state.rounds[at].missing.is_empty().then(|| state.rounds.swap_remove(at).then)
    }

    /// A peer answers no more. Gives what is to be called.
    pub(crate) fn lost(&self, peer: u32) -> Vec<Then> {
        let mut state = self.state();
        state.silent.remove(&peer);
        for round in &mut state.rounds {
            round.missing.remove(&peer);
        }
        let (over, rest) = std::mem::take(&mut state.rounds).into_iter().partition(|r| r.missing.is_empty());
        state.rounds = rest;
        let over: Vec<Round> = over;
        over.into_iter().map(|round| round.then).collect()
    }

    /// What is due now, for the thread that looks at the clock.
    pub(crate) fn due(&self, now: Instant) -> Due {
        let mut state = self.state();
        let (late, rest): (Vec<Round>, _) =
            std::mem::take(&mut state.rounds).into_iter().partition(|round| now >= round.until);
        state.rounds = rest;
        let mut due = Due::default();
        for round in late {
            state.silent.extend(round.missing);
            due.over.push(round.then);
        }
        for round in &mut state.rounds {
            if now >= round.again {
                round.again = now + AGAIN;
                due.again.extend(round.missing.iter().map(|peer| (*peer, round.number)));
            }
        }
        let next = state.rounds.iter().map(|round| round.again.min(round.until)).min();
        due.next = next.map(|next| next.saturating_duration_since(now));
        state.is_watched = next.is_some();
        due
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A round of these peers, and what its end is said to.
    fn begin(rounds: &Rounds, peers: &[u32], now: Instant) -> (Begun, mpsc::Receiver<()>) {
        let (say, said) = mpsc::channel();
        let then = Box::new(move || say.send(()).unwrap());
        (rounds.begin(None, &peers.iter().copied().collect(), now, then), said)
    }

    fn number(begun: &Begun) -> u32 {
        let Begun::Round(number, _) = begun else { panic!("nobody is waited for") };
        *number
    }

    #[test]
    fn a_round_ends_when_all_have_answered() {
        let (rounds, now) = (Rounds::default(), Instant::now());
        let (one, said) = begin(&rounds, &[1, 2], now);
        let (other, _said) = begin(&rounds, &[1], now);
        assert!(matches!((&one, &other), (Begun::Round(_, true), Begun::Round(_, false))));
        assert!(rounds.answered(1, number(&one)).is_none());
        assert!(rounds.answered(1, number(&one)).is_none(), "once more");
        assert!(rounds.answered(2, number(&other)).is_none(), "it was not asked");
        rounds.answered(2, number(&one)).unwrap()();
        said.try_recv().unwrap();
        assert!(rounds.answered(2, number(&one)).is_none(), "it is over");
        rounds.answered(1, number(&other)).unwrap()();
        assert!(rounds.due(now).next.is_none());
        assert!(matches!(begin(&rounds, &[], now).0, Begun::Over(_)));
    }

    #[test]
    fn who_does_not_answer_holds_up_one_round_and_counts_again_once_it_is_heard() {
        let (rounds, now) = (Rounds::default(), Instant::now());
        let (first, said) = begin(&rounds, &[1, 2], now);
        let due = rounds.due(now);
        assert!(due.next == Some(AGAIN) && due.again.is_empty() && due.over.is_empty());
        assert!(rounds.answered(1, number(&first)).is_none());
        assert_eq!(rounds.due(now + AGAIN).again, [(2, number(&first))], "it may have been lost");
        assert!(rounds.due(now + AGAIN).again.is_empty());
        let due = rounds.due(now + PATIENCE);
        assert!(due.next.is_none() && due.over.len() == 1);
        due.over.into_iter().for_each(|then| then());
        said.try_recv().unwrap();
        assert!(matches!(begin(&rounds, &[2], now).0, Begun::Over(_)));
        assert!(rounds.answered(2, number(&first)).is_none());
        let (later, _said) = begin(&rounds, &[2], now);
        assert!(rounds.answered(2, number(&later)).is_some());
    }

    #[test]
    fn who_is_gone_is_not_waited_for_and_who_asks_again_begins_no_second_round() {
        let (rounds, now) = (Rounds::default(), Instant::now());
        let (_one, _said) = begin(&rounds, &[1], now);
        let (_other, _said) = begin(&rounds, &[1, 2], now);
        assert_eq!(rounds.lost(1).len(), 1);
        assert_eq!(rounds.lost(2).len(), 1);
        let ask = |numbers: &[u32]| {
            let origin = Some((3, numbers.iter().copied().collect()));
            rounds.begin(origin, &BTreeSet::from([1]), now, Box::new(|| ()))
        };
        assert!(matches!(ask(&[7]), Begun::Round(..)));
        assert!(matches!(ask(&[7]), Begun::Known));
        // What comes with it is not lost.
        assert!(matches!(ask(&[7, 8]), Begun::Round(..)));
        assert!(matches!(ask(&[8]), Begun::Known) && matches!(ask(&[7, 8]), Begun::Known));
    }

    #[test]
    fn a_vm_that_asks_for_ever_more_takes_no_others_rounds() {
        let (rounds, now, peers) = (Rounds::default(), Instant::now(), BTreeSet::from([1]));
        let ask =
            |vm, number| rounds.begin(Some((vm, BTreeSet::from([number]))), &peers, now, Box::new(|| ()));
        let begun = (0..2000).filter(|number| matches!(ask(3, *number), Begun::Round(..))).count();
        assert_eq!(begun, MOST_OF_VM);
        assert!(matches!(ask(4, 1), Begun::Round(..)));
    }
}
