//! Barriers: each of a known number of participants waits until all have arrived.
//!
//! A participant is a *seat*, claimed by [`Barrier::join`] in the name of its process; a process may have several, one for
//! each thread that takes part. An empty seat is waited for: a participant that joins late only holds the others up.
//!
//! **Breaking.** A seat whose process dies before it arrives *breaks* the barrier, for this round and all later ones: every
//! other participant gets [`Error::Broken`], those that wait now and those that come. A participant that dies after it
//! arrived does this round no harm, and breaks the next. (If it dies between its count and the word that says so, some may
//! get through the round and others not; none gets through before all have arrived.) A seat that is given up in the middle
//! of a round, and a call of [`Barrier::give_up`], break the barrier, too, for participants that have to wait; one that
//! finds that all have arrived already gets through, and fails once it has to wait.
//!
//! **After a break** the seats are of no use any more. Each participant drops its own; once no living process holds one,
//! [`Barrier::reset`] makes the barrier new, and participants join again.
//!
//! **Leaving** between two rounds is dropping the seat. The others then wait for the next participant that takes it, which
//! continues with the same round.
//!
//! **Time-outs** break nothing. A participant whose time is up has arrived all the same: the others get through that round
//! without it, and its next wait continues that round.
//!
//! # Layout
//! ```text
//! line 0    broken: 0, or the dead process, or all ones · parameters · the process that resets
//! line 1    arrivals, counted (central)
//! line 2    gate: rounds that have ended (central)
//! line 3..  seats: the process of each, eight to a line
//! then      a line for each seat, a gate: its progress, which its participant alone writes; words of sleepers
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_lockfree::barrier::{self, Arrival};
use isthmus_lockfree::sync::Word;
use isthmus_lockfree::{hint, lock};
use isthmus_region::gate::Gate;
use isthmus_region::mapping::{LineRef, Section};
use isthmus_region::member::Member;
use isthmus_region::party::Party;
use isthmus_region::waiting::nap;

use crate::error::{Error, Result};
use crate::wait::{self, Ended, Learned, Wait, Waiting};

/// Most participants of a barrier.
pub const MOST_PARTIES: u32 = 4096;

const LINE: u64 = 64;
const COUNT: u64 = LINE;
const GATE: u64 = 2 * LINE;
const SEATS: u64 = 3 * LINE;

/// Words of line 0.
const BROKEN: usize = 0;
const SHAPE: usize = 1;
const RESETTER: usize = 2;

/// Set in the word of the parameters once they are there.
const SHAPED: u64 = 1 << 63;
/// How long a living process may reset: after that it was stopped, or the word is garbage. A join takes no longer, either.
const RESETTING: Duration = Duration::from_secs(1);
/// A nap of those that wait for it.
const MOMENT: Duration = Duration::from_micros(100);
/// In the word of the break: no process died.
const GIVEN_UP: u64 = u64::MAX;

/// How participants learn of arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Chosen by the number of participants and how they wait: [`Algorithm::Scaling`] if they spin, and for two;
    /// [`Algorithm::Central`] for more that sleep, since one wake-up is enough there.
    Auto,
    /// All add to one count, and wait for one word.
    Central,
    /// Each writes a word of its own and reads those of up to seven others, in one step for up to 8 participants, two for up
    /// to 64, and so on. No locked instruction.
    Scaling,
}

/// The parameters of a barrier; all its users open it with the same ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Parameters {
    /// Number of participants, 1 to [`MOST_PARTIES`].
    pub parties: u32,
    /// How they wait.
    pub waiting: Waiting,
    /// How they learn of arrivals.
    pub algorithm: Algorithm,
}

impl Parameters {
    /// Parameters for this many participants that wait in this way.
    pub fn new(parties: u32, waiting: Waiting) -> Self {
        Self { parties, waiting, algorithm: Algorithm::Auto }
    }

    /// Bytes of the section that such a barrier takes.
    pub fn bytes(self) -> u64 {
        lines_of_seats(self.parties) + u64::from(self.parties) * LINE
    }

    fn is_central(self) -> bool {
        match self.algorithm {
            Algorithm::Central => true,
            Algorithm::Scaling => false,
            Algorithm::Auto => self.waiting != Waiting::Spin && self.parties > 2,
        }
    }

    fn word(self) -> u64 {
        let waiting = match self.waiting {
            Waiting::Spin => 1,
            Waiting::Block => 2,
            Waiting::Hybrid => 3,
        };
        SHAPED | (u64::from(self.is_central()) << 40) | (waiting << 32) | u64::from(self.parties)
    }
}

/// Where the lines of progress begin.
fn lines_of_seats(parties: u32) -> u64 {
    SEATS + (u64::from(parties) * 8).next_multiple_of(LINE)
}

/// What the word of the break says.
fn not_broken(word: u64) -> Result<()> {
    match word {
        0 => Ok(()),
        word => Err(Error::Broken { dead: Party::named(word).filter(|_| word != GIVEN_UP) }),
    }
}

#[derive(Debug)]
struct Shared {
    member: Arc<Member>,
    section: Section,
    parameters: Parameters,
    head: LineRef,
    count: LineRef,
    gate: Gate,
}

/// A barrier, as one process has opened it. Cheap to clone; any thread may use it.
#[derive(Debug, Clone)]
pub struct Barrier(Arc<Shared>);

impl Barrier {
    /// Opens the barrier in `section`, which must be zeroed before it is opened for the first time.
    ///
    /// # Errors
    /// [`Error::BadParameter`]; [`Error::Memory`] if the section is smaller than [`Parameters::bytes`] or misaligned;
    /// [`Error::Mismatch`] if others opened it with other parameters.
    pub fn open(member: &Arc<Member>, section: &Section, parameters: Parameters) -> Result<Self> {
        if !(1..=MOST_PARTIES).contains(&parameters.parties) {
            return Err(Error::BadParameter {
                what: "the number of participants",
                value: parameters.parties.into(),
                limits: "there are 1 to 4096",
            });
        }
        let failed = Error::memory("a barrier");
        let section = section.part("barrier", 0, parameters.bytes()).map_err(&failed)?;
        let shared = Shared {
            head: section.line("barrier", 0).map_err(&failed)?,
            count: section.line("barrier", COUNT).map_err(&failed)?,
            gate: Gate::new(member, &section, GATE).map_err(&failed)?,
            member: Arc::clone(member),
            section,
            parameters,
        };
        match shared.head.words[SHAPE].replace(0, parameters.word()) {
            Err(other) if other != parameters.word() => Err(Error::Mismatch { what: "the barrier" }),
            _ => Ok(Self(Arc::new(shared))),
        }
    }

    /// Number of participants.
    pub fn parties(&self) -> u32 {
        self.0.parameters.parties
    }

    /// Takes a seat for one thread of this process.
    ///
    /// # Errors
    /// [`Error::Full`] if living processes have all seats; [`Error::Broken`], also if the only seats left are those of dead
    /// processes; [`Error::InUse`] if another process keeps the barrier busy for a second, or is stopped while it resets it;
    /// [`Error::Corrupt`].
    pub fn join(&self) -> Result<Seat> {
        let shared = &self.0;
        let me = shared.member.party().word();
        let until = Instant::now() + RESETTING;
        loop {
            shared.check_broken()?;
            for index in 0..self.parties() {
                let claim = shared.claim(index)?;
                if claim.peek() == 0
                    && let Some(broken) = barrier::sit_down(claim, me, &shared.head.words[BROKEN])
                {
                    // Only now read where the seat begins: a reset before this changed it.
                    let seat = not_broken(broken).and_then(|()| Seat::new(self, index));
                    if seat.is_err() {
                        lock::inherit(claim, me, 0);
                    }
                    return seat;
                }
            }
            if shared.dead_seat(|_| true)?.is_none() {
                return Err(Error::Full { what: "the barrier", places: self.parties().into() });
            }
            // Alone, so that no reset is under way: else this would break the new barrier for an old death.
            shared.alone(until, || match shared.dead_seat(|_| true)? {
                Some(dead) => Err(shared.break_up(dead)),
                None => Ok(()),
            })?;
        }
    }

    /// Breaks the barrier for all participants, as if one had died. A wait that is over at once does not notice.
    pub fn give_up(&self) {
        self.0.break_up(GIVEN_UP);
    }

    /// Whether the barrier is broken. A death that no participant has noticed yet has not broken it.
    pub fn is_broken(&self) -> bool {
        self.0.check_broken().is_err()
    }

    /// Makes a broken barrier new, with all seats empty. Does nothing to a barrier that is not broken. Any process may call
    /// this, also several at once; one of them does it.
    ///
    /// # Errors
    /// [`Error::InUse`] as long as a process has a seat that lives, or whose death is not known yet: try again later.
    /// [`Error::Corrupt`].
    pub fn reset(&self) -> Result<()> {
        self.0.alone(Instant::now() + RESETTING, || self.0.reset())
    }
}

impl Shared {
    /// Does `work` while no other process resets the barrier; fails if that takes until after `until`.
    fn alone<T>(&self, until: Instant, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let in_use = || Error::InUse { what: "the barrier" };
        if Instant::now() > until {
            return Err(in_use());
        }
        let me = self.member.party().word();
        let resetter = &self.head.words[RESETTER];
        // If the resetter is another thread of this process, it counts as alive, as it should.
        while let Err(other) = lock::claim(resetter, me) {
            if !self.is_alive(other) && lock::inherit(resetter, other, me) {
                break;
            }
            if Instant::now() > until {
                return Err(in_use());
            }
            nap(MOMENT);
        }
        let done = work();
        lock::let_go(resetter, me);
        done
    }

    fn claim(&self, index: u32) -> Result<&Word> {
        self.section.word("seat", SEATS + u64::from(index) * 8).map_err(Error::memory("a barrier"))
    }

    fn line_of_progress(&self, index: u32) -> u64 {
        lines_of_seats(self.parameters.parties) + u64::from(index) * LINE
    }

    fn progress(&self, index: u32) -> Result<Gate> {
        let at = self.line_of_progress(index);
        Gate::new(&self.member, &self.section, at).map_err(Error::memory("a barrier"))
    }

    /// The word of a seat's progress, without its gate.
    fn progress_word(&self, index: u32) -> Result<&Word> {
        self.section.word("progress", self.line_of_progress(index)).map_err(Error::memory("a barrier"))
    }

    fn steps(&self) -> u64 {
        match self.parameters.is_central() {
            true => 1,
            false => barrier::steps(self.parameters.parties.into()),
        }
    }

    fn is_alive(&self, word: u64) -> bool {
        Party::named(word).is_some_and(|party| self.member.is_alive(party))
    }

    fn check_broken(&self) -> Result<()> {
        not_broken(self.head.words[BROKEN].get())
    }

    /// Breaks the barrier, if it is not broken yet; returns the error that all participants get.
    fn break_up(&self, reason: u64) -> Error {
        if self.head.words[BROKEN].replace(0, reason).is_ok() {
            self.gate.ring(u32::MAX);
            for gate in (0..self.parameters.parties).filter_map(|index| self.progress(index).ok()) {
                gate.ring(u32::MAX);
            }
        }
        self.check_broken().err().unwrap_or(Error::Broken { dead: Party::named(reason) })
    }

    fn corrupt(&self, what: &'static str, value: u64) -> Error {
        self.break_up(GIVEN_UP);
        Error::Corrupt { what, value }
    }

    /// The first dead process with a seat for which `counts` returns true.
    fn dead_seat(&self, counts: impl Fn(u32) -> bool) -> Result<Option<u64>> {
        let mut alive = 0;
        for index in 0..self.parameters.parties {
            let word = self.claim(index)?.get();
            if word == 0 || word == alive || !counts(index) {
                continue;
            }
            if self.is_alive(word) {
                alive = word;
            } else if counts(index) {
                // Asked again: it may have arrived just before it died.
                return Ok(Some(word));
            }
        }
        Ok(None)
    }

    fn reset(&self) -> Result<()> {
        if !barrier::may_reset(&self.head.words[BROKEN]) {
            return Ok(());
        }
        for index in 0..self.parameters.parties {
            let claim = self.claim(index)?;
            let word = claim.get();
            if word != 0 && (self.is_alive(word) || !lock::inherit(claim, word, 0)) {
                return Err(Error::InUse { what: "the barrier" });
            }
        }
        // A process that joins from here on sees that the barrier is broken, or that it is new.
        let failed = Error::memory("a barrier");
        self.section.zero_words(COUNT, SEATS).map_err(&failed)?;
        self.section
            .zero_words(lines_of_seats(self.parameters.parties), self.section.len())
            .map_err(&failed)?;
        self.head.words[BROKEN].set(0);
        Ok(())
    }

    /// Whether there are more participants than processors for them.
    fn is_scarce(&self) -> bool {
        let (mut all, mut here) = (0_u64, 0_u64);
        for index in 0..self.parameters.parties {
            if let Some(party) = self.claim(index).ok().and_then(|word| Party::named(word.peek())) {
                all += 1;
                here += u64::from(party.peer() == self.member.peer());
            }
        }
        self.member.is_too_many(all, here) || self.member.is_crowded()
    }
}

/// Zeroing by words, while others may read them.
trait ZeroWords {
    fn zero_words(&self, from: u64, to: u64) -> isthmus_region::Result<()>;
}

impl ZeroWords for Section {
    fn zero_words(&self, from: u64, to: u64) -> isthmus_region::Result<()> {
        (from..to).step_by(8).try_for_each(|at| self.word("barrier", at).map(|word| word.put(0)))
    }
}

/// A participant's place at a barrier. One thread at a time uses it; it may be moved to another thread.
///
/// Dropping it between two rounds leaves the barrier; dropping it after a time-out breaks it.
#[derive(Debug)]
pub struct Seat {
    barrier: Barrier,
    index: u32,
    /// The round that is under way, or comes next.
    round: u64,
    steps: u64,
    /// The step of this round; none between two rounds.
    step: Option<u64>,
    own: Gate,
    /// The participants that are waited for, by step.
    partners: Vec<Vec<(u32, Gate)>>,
    /// How many seats, counted from the first, are known to have arrived in this round.
    arrived: Word,
    learned: Learned,
    broken: bool,
    /// Whether the next round may take the short way: it has one step, and the last round is over.
    is_short: bool,
    /// Whether other participants may sleep.
    rings: bool,
    hints: bool,
}

/// Polls of the short way, for each other participant.
const POLLS: u32 = 64;

impl Seat {
    fn new(barrier: &Barrier, index: u32) -> Result<Self> {
        let shared = &barrier.0;
        let (parties, steps, central) =
            (u64::from(shared.parameters.parties), shared.steps(), shared.parameters.is_central());
        let own = shared.progress(index)?;
        // Where the last participant in this seat left off, between two rounds.
        let round = if central { shared.gate.word().get() } else { own.word().get() / steps };
        if round > u64::MAX / 2 / parties.max(steps) || own.word().get() > round * steps {
            return Err(shared.corrupt("a seat's progress", own.word().get()));
        }
        let mut partners = Vec::new();
        for step in 0..if central { 0 } else { steps } {
            let of_step = barrier::partners(index.into(), step, parties);
            let with_gate = |partner: u64| {
                let partner = u32::try_from(partner).unwrap_or(0);
                Ok((partner, shared.progress(partner)?))
            };
            partners.push(of_step.into_iter().map(with_gate).collect::<Result<Vec<_>>>()?);
        }
        Ok(Self {
            barrier: barrier.clone(),
            index,
            round,
            steps,
            step: None,
            own,
            partners,
            arrived: Word::new(0),
            learned: Learned::new(shared.member.doorbell()),
            broken: false,
            is_short: !central && steps == 1,
            rings: shared.parameters.waiting != Waiting::Spin,
            hints: hint::is_cheap(),
        })
    }

    /// Number of the seat, below the number of participants.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Arrives, and waits until all have. Exactly one participant of each round gets `true`.
    ///
    /// # Errors
    /// [`Error::Broken`], for this and every later wait; [`Error::Corrupt`], which breaks the barrier for the others.
    #[inline]
    pub fn wait(&mut self) -> Result<bool> {
        if self.is_short {
            // The common case of `exchange`: reads nothing but the words of progress.
            let target = self.round + 1;
            let own = self.own.word();
            barrier::advance(own, target);
            if self.rings {
                self.own.ring(u32::MAX);
            }
            for (_, gate) in self.partners.first().map_or(&[][..], |first| first) {
                let word = gate.word();
                let mut polls = 0;
                while !barrier::has_reached(word, target, 1) {
                    polls += 1;
                    if polls > POLLS {
                        return self.go_on();
                    }
                    if self.hints {
                        std::hint::spin_loop();
                    }
                }
            }
            self.round = target;
            return Ok(self.index == 0);
        }
        self.wait_until(None)
    }

    /// The rest of a round that began the short way.
    #[cold]
    fn go_on(&mut self) -> Result<bool> {
        self.step = Some(0);
        self.wait_until(None)
    }

    /// As [`Seat::wait`], for `limit` at most.
    ///
    /// # Errors
    /// As [`Seat::wait`]; [`Error::TimedOut`], after which the next wait continues this round.
    pub fn wait_within(&mut self, limit: Duration) -> Result<bool> {
        self.wait_until(wait::deadline(Some(limit)))
    }

    fn wait_until(&mut self, deadline: Option<Instant>) -> Result<bool> {
        if self.broken {
            self.barrier.0.check_broken()?;
            return Err(Error::Broken { dead: None });
        }
        let done = match self.partners.is_empty() {
            true => self.wait_centrally(deadline),
            false => self.exchange(deadline),
        };
        match done {
            Ok(serial) => {
                self.round += 1;
                self.step = None;
                self.arrived.put(0);
                self.is_short = !self.partners.is_empty() && self.steps == 1;
                Ok(serial)
            }
            Err(error) => {
                self.is_short = false;
                self.broken = !matches!(error, Error::TimedOut);
                Err(error)
            }
        }
    }

    /// Publishes this seat's progress (P9).
    #[inline]
    fn advance(&self, to: u64) {
        barrier::advance(self.own.word(), to);
        if self.rings {
            self.own.ring(u32::MAX);
        }
    }

    #[inline]
    fn exchange(&mut self, deadline: Option<Instant>) -> Result<bool> {
        let begin = self.round * self.steps;
        let mut step = self.step.unwrap_or_else(|| {
            self.advance(begin + 1);
            0
        });
        self.step = Some(step);
        while let Some(partners) = self.partners.get(usize::try_from(step).unwrap_or(usize::MAX)) {
            for (partner, gate) in partners {
                if !barrier::has_reached(gate.word(), begin + step + 1, self.steps)
                    && self.await_partner(*partner, gate, step, deadline)? == Ended::Stopped
                {
                    // All have arrived, though the partner did not finish its steps. Others wait for this seat's last step.
                    self.advance(begin + self.steps);
                    return Ok(self.index == 0);
                }
            }
            step += 1;
            self.step = Some(step);
            if step < self.steps {
                self.advance(begin + step + 1);
            }
        }
        Ok(self.index == 0)
    }

    /// Waits until a partner has done `step`, or ([`Ended::Stopped`]) until all have arrived: a partner whose time is up, or
    /// that died after it arrived, does no further steps.
    fn await_partner(
        &self,
        partner: u32,
        gate: &Gate,
        step: u64,
        deadline: Option<Instant>,
    ) -> Result<Ended> {
        let shared = &*self.barrier.0;
        let arrival = self.round * self.steps + 1;
        let target = arrival + step;
        let ready = || barrier::has_reached(gate.word(), target, self.steps);
        let check = || {
            // Read before the arrivals: the participant that broke it may have got through this round.
            let broken = shared.check_broken();
            let dead = if step == 0 {
                let claim = shared.claim(partner)?.get();
                Some(claim).filter(|word| *word != 0 && !shared.is_alive(*word) && !ready())
            } else {
                if self.all_have_arrived(arrival)? {
                    return Ok(true);
                }
                let arrived = |index| {
                    shared
                        .progress_word(index)
                        .is_ok_and(|word| barrier::has_reached(word, arrival, self.steps))
                };
                shared.dead_seat(|index| !arrived(index))?
            };
            if let Some(dead) = dead {
                return Err(shared.break_up(dead));
            }
            if !barrier::is_plausible(gate.word(), target, self.steps) {
                return Err(shared.corrupt("a participant's progress", gate.word().peek()));
            }
            if ready() { Ok(false) } else { broken.map(|()| false) }
        };
        self.await_word(ready, check, gate, deadline)
    }

    /// Whether the words of all participants are at `arrival` or further (P9).
    fn all_have_arrived(&self, arrival: u64) -> Result<bool> {
        let shared = &*self.barrier.0;
        for index in self.arrived.peek()..shared.parameters.parties.into() {
            let word = shared.progress_word(u32::try_from(index).unwrap_or(u32::MAX))?;
            if !barrier::has_reached(word, arrival, self.steps) {
                return Ok(false);
            }
            self.arrived.put(index + 1);
        }
        Ok(true)
    }

    fn wait_centrally(&mut self, deadline: Option<Instant>) -> Result<bool> {
        let shared = &*self.barrier.0;
        let (round, parties) = (self.round, u64::from(shared.parameters.parties));
        if self.step.is_none() {
            let arrival = barrier::arrive(&shared.count.words[0], round, parties);
            self.step = Some(0);
            match arrival {
                Arrival::Wrong => {
                    return Err(shared.corrupt("the count of arrivals", shared.count.words[0].peek()));
                }
                Arrival::Last => {
                    // A participant may have noticed a death in the middle of an arrival, and broken the barrier.
                    shared.check_broken()?;
                    barrier::open(shared.gate.word(), round);
                    self.own.word().put(round + 1);
                    if shared.parameters.waiting != Waiting::Spin {
                        shared.gate.ring(u32::MAX);
                    }
                    return Ok(true);
                }
                // Read only by a participant that finds this process dead: it had arrived.
                Arrival::Early => self.own.word().set(round + 1),
            }
        }
        let gate = &shared.gate;
        let ready = || barrier::is_open(gate.word(), round);
        let check = || {
            // Read before the gate: the participant that broke it may have got through this round.
            let broken = shared.check_broken();
            let arrived = |index: u32| {
                shared.progress_word(index).is_ok_and(|word| word.get() == round.wrapping_add(1))
            };
            let dead = shared.dead_seat(|index| !arrived(index))?;
            let seen = gate.word().get();
            if seen == round.wrapping_add(1) {
                return Ok(false);
            }
            if let Some(dead) = dead {
                return Err(shared.break_up(dead));
            }
            if seen != round {
                return Err(shared.corrupt("the count of rounds", seen));
            }
            broken.map(|()| false)
        };
        self.await_word(ready, check, gate, deadline)?;
        Ok(false)
    }

    #[cold]
    fn await_word(
        &self,
        ready: impl Fn() -> bool,
        check: impl Fn() -> Result<bool>,
        gate: &Gate,
        deadline: Option<Instant>,
    ) -> Result<Ended> {
        if self.learned.must_recheck() {
            self.learned.set_scarce(self.barrier.0.is_scarce());
        }
        let deaths = gate.deaths();
        let sleep = |limit| {
            let seen = gate.word().get();
            if !ready() {
                gate.sleep(seen, &deaths, limit);
            }
        };
        let wait = Wait { how: self.barrier.0.parameters.waiting, learned: &self.learned, deadline };
        match wait.until(&ready, check, sleep)? {
            Ended::TimedOut => Err(Error::TimedOut),
            ended => Ok(ended),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let shared = &self.barrier.0;
        if self.step.is_some() && !self.broken {
            shared.break_up(GIVEN_UP);
        }
        if let Ok(claim) = shared.claim(self.index) {
            lock::inherit(claim, shared.member.party().word(), 0);
        }
    }
}
