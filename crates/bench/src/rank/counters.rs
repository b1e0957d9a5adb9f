//! Counters as in section 3.3.3 of the paper: as many as processes. Without contention each process has its own; at medium
//! contention each goes round all of them; at high contention all use one. The lock is one for all counters (figure 3.9).
//!
//! By words, an increment is a load and an exchange. By items it is one minitransaction that compares and writes, after another one
//! that reads where another has changed the counter since.

use std::time::Instant;

use isthmus::sync::minitransaction::{self, Exchange, Minitransaction, Node, Outcome, SegmentId, Shape};
use isthmus::{Committer, Segment, Space};

use super::{COUNTERS, DONE, FAILED, GO, LOCK, Meeting, Plan, Sample, failed, real};
use crate::error::{Error, Result};

const KINDS: [&str; 3] = ["isthmus-items", "isthmus-word", "spinlock"];
const CONTENTIONS: [&str; 3] = ["counter_no", "counter_medium", "counter_high"];
/// Spins after which the lock yields.
const SPINS: u32 = 1000;
/// Increments between two looks at the clock.
const CLOCK: u64 = 64;

/// What a process does in one block.
struct Block<'a> {
    board: &'a Segment,
    index: usize,
    parties: usize,
    contention: usize,
    /// The block's number stands at [`GO`] while it lasts.
    go: u64,
    /// Of the first one: when to end it.
    end: Option<Instant>,
    done: u64,
    failed: u64,
}

/// Something is wrong; what, is kept elsewhere, so that the loop has little to look at.
struct Stop;

type Tight<T> = std::result::Result<T, Stop>;

impl Block<'_> {
    fn words(&self) -> Result<Vec<isthmus::Word<'_>>> {
        (0..self.parties).map(|i| self.board.word(place(i)).map_err(failed("use the board"))).collect()
    }

    /// Increments until the time is up. `increment` gives whether it did, of the counter with that number.
    #[inline(always)] // one tight loop for each kind
    fn run(&mut self, mut increment: impl FnMut(usize) -> Tight<bool>) -> Result<()> {
        let go = self.board.word(GO).map_err(failed("use the board"))?;
        let mut counter = if self.contention == 2 { 0 } else { self.index };
        let step = usize::from(self.contention == 1);
        let (mut done, mut failed) = (0, 0);
        while go.load() == self.go {
            match increment(counter) {
                Ok(true) => {
                    done += 1;
                    counter += step;
                    if counter == self.parties {
                        counter = 0;
                    }
                }
                Ok(false) => failed += 1,
                Err(Stop) => break,
            }
            if let Some(end) = self.end
                && (done + failed) % CLOCK == 0
                && Instant::now() >= end
            {
                go.store(self.go + 1);
            }
        }
        (self.done, self.failed) = (done, failed);
        Ok(())
    }
}

/// Where a counter is: they have lines of their own.
fn place(counter: usize) -> u64 {
    COUNTERS + 64 * counter as u64
}

/// What a commit brought, or [`Stop`] with the error put aside.
#[inline]
fn or_stop<T>(result: minitransaction::Result<T>, stopped: &mut Option<minitransaction::Error>) -> Tight<T> {
    result.map_err(|error| {
        *stopped = Some(error);
        Stop
    })
}

/// The error that was put aside, if there is one.
fn sound(stopped: Option<minitransaction::Error>) -> Result<()> {
    match stopped {
        None => Ok(()),
        Some(error) => Err(Error::Rank { what: format!("commit: {error}") }),
    }
}

/// What a process remembers of a counter.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// What it left there, or read.
    value: u64,
    /// Whether no other process had changed it last time. Then it compares with what it left, and need not read first.
    is_own: bool,
}

fn items(block: &mut Block<'_>, own: &mut Committer, segment: SegmentId) -> Result<()> {
    let mut t = Minitransaction::new();
    let mut seen = vec![Seen::default(); block.parties];
    let mut stopped = None;
    block.run(|counter| {
        let at = place(counter);
        let seen = &mut seen[counter];
        if !seen.is_own {
            t.clear();
            let read = t.read(Node::LOCAL, segment, at, 8);
            let outcome = or_stop(own.commit(&mut t), &mut stopped)?;
            let Some(value) = t.number(read).filter(|_| outcome == Outcome::Committed) else {
                return Ok(false);
            };
            *seen = Seen { value, is_own: value == seen.value };
        }
        t.clear();
        t.compare(Node::LOCAL, segment, at, &seen.value.to_le_bytes());
        t.write(Node::LOCAL, segment, at, &(seen.value + 1).to_le_bytes());
        let done = or_stop(own.commit(&mut t), &mut stopped)? == Outcome::Committed;
        match done {
            true => seen.value += 1,
            false => seen.is_own = false,
        }
        Ok(done)
    })?;
    sound(stopped)
}

fn words(block: &mut Block<'_>, own: &mut Committer, space: &Space, segment: SegmentId) -> Result<()> {
    let places = (0..block.parties)
        .map(|i| space.place(Node::LOCAL, segment, place(i)).map_err(failed("find a word")))
        .collect::<Result<Vec<_>>>()?;
    let mut stopped = None;
    block.run(|counter| {
        let place = &places[counter];
        let Some(old) = or_stop(own.load(place), &mut stopped)? else { return Ok(false) };
        Ok(or_stop(own.exchange(place, old, old + 1), &mut stopped)? == Exchange::Committed)
    })?;
    sound(stopped)
}

fn spinlock(block: &mut Block<'_>) -> Result<()> {
    let board = block.board;
    let lock = board.word(LOCK).map_err(failed("use the board"))?;
    let counters: Vec<isthmus::Word<'_>> = (0..block.parties)
        .map(|i| board.word(place(i)).map_err(failed("use the board")))
        .collect::<Result<_>>()?;
    block.run(|counter| {
        let counter = counters[counter];
        let mut spins = 0;
        while lock.load() != 0 || lock.compare_exchange(0, 1).is_err() {
            std::hint::spin_loop();
            spins += 1;
            if spins == SPINS {
                spins = 0;
                std::thread::yield_now();
            }
        }
        counter.store(counter.load() + 1);
        lock.store(0);
        Ok(true)
    })
}

pub(super) fn run(meeting: &mut Meeting, plan: &Plan) -> Result<()> {
    let board = meeting.board.clone();
    let space = meeting.here.named("bench").space(Shape::default()).map_err(failed("open a space"))?;
    let segment = space.add(&board).map_err(failed("put the board into the space"))?;
    let mut own = space.committer().map_err(failed("take a slot"))?;
    let mut go = 2;
    for rep in 0..=plan.reps {
        for (contention, benchmark) in CONTENTIONS.into_iter().enumerate() {
            for kind in KINDS {
                let line = meeting.before()?;
                let mut block = Block {
                    board: &board,
                    index: meeting.index as usize,
                    parties: plan.parties as usize,
                    contention,
                    go,
                    end: None,
                    done: 0,
                    failed: 0,
                };
                let before: u64 = block.words()?.iter().map(|word| word.load()).sum();
                if meeting.is_first() {
                    meeting.word(GO)?.store(go);
                }
                meeting.sync()?;
                let begun = Instant::now();
                // The first round warms up.
                let budget = if rep == 0 { meeting.budget / 10 } else { meeting.budget };
                block.end = meeting.is_first().then(|| begun + budget);
                match kind {
                    "isthmus-items" => items(&mut block, &mut own, segment)?,
                    "isthmus-word" => words(&mut block, &mut own, &space, segment)?,
                    _ => spinlock(&mut block)?,
                }
                let took = begun.elapsed().as_secs_f64() * 1e6;
                meeting.own(DONE)?.store(block.done);
                meeting.own(FAILED)?.store(block.failed);
                meeting.sync()?;
                go += 2;
                let done = meeting.sum(DONE)?;
                let after: u64 = block.words()?.iter().map(|word| word.load()).sum();
                if after.wrapping_sub(before) != done {
                    return Err(Error::Rank {
                        what: format!(
                            "{kind}: {done} increments were made, and {} are there",
                            after.wrapping_sub(before)
                        ),
                    });
                }
                meeting.after(line)?;
                if rep > 0 {
                    print(meeting, benchmark, kind, real(done) / took, after.wrapping_sub(before) == done)?;
                }
                meeting.sync()?;
            }
        }
    }
    Ok(())
}

/// `found`: the region's words, which all processes see, have grown by as much as all of them counted.
fn print(meeting: &Meeting, benchmark: &str, kind: &str, rate: f64, found: bool) -> Result<()> {
    let all = (0..meeting.parties)
        .map(|rank| Ok(meeting.of_rank(rank, DONE)?.load()))
        .collect::<Result<Vec<u64>>>()?;
    let done = all.iter().sum::<u64>().max(1);
    let sample = |metric: &str, value: f64| Sample {
        path: found.then(|| "region".into()),
        ..Sample::new(benchmark, kind, metric, value)
    };
    meeting.tell(&sample("rate_Mps", rate))?;
    if kind != "spinlock" {
        meeting.tell(&sample("failures_per_increment", real(meeting.sum(FAILED)?) / real(done)))?;
    }
    let (least, most) = (all.iter().min().copied().unwrap_or(0), all.iter().max().copied().unwrap_or(1));
    meeting.tell(&sample("least_by_most", real(least) / real(most.max(1))))
}
