//! All processes of a job meet at a barrier again and again, and check that none was ahead: each counts its rounds in a segment,
//! and after each barrier all counts are the same, or of a neighbour that is already in the next round.
//!
//! ```sh
//! isthmus run --vms 2 -n 4 -- target/release/barrier 4 hybrid
//! ```
#![forbid(unsafe_code)]

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};
use isthmus::{Attachment, Kind, Parameters, Waiting};

/// Each count has a cache line of its own.
const LINE: u64 = 64;

/// Meets others at a barrier, again and again.
#[derive(Parser)]
struct Options {
    /// How many processes take part.
    #[arg(default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    parties: u32,
    /// How they wait for each other.
    #[arg(default_value = "hybrid")]
    how: How,
    /// How often they meet.
    #[arg(default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum How {
    /// Spin: for short waits, with a processor for each process.
    Spin,
    /// Sleep.
    Block,
    /// Spin as long as that pays, then sleep.
    Hybrid,
}

fn main() -> Result<()> {
    let Options { parties, how, rounds } = Options::parse();
    let waiting = match how {
        How::Spin => Waiting::Spin,
        How::Block => Waiting::Block,
        How::Hybrid => Waiting::Hybrid,
    };
    let here = Attachment::open()?;
    let segment = here.segment("barrier").or_create(64 * LINE)?;
    let mut seat = here.named("barrier").barrier(Parameters::new(parties, waiting))?.participate()?;
    let me = seat.index();
    let counts =
        (0..parties).map(|other| segment.word(LINE * u64::from(other))).collect::<Result<Vec<_>, _>>()?;
    let mine = segment.word(LINE * u64::from(me))?;

    seat.wait()?;
    // All processes have them open, so their names are not needed any more.
    if me == 0 {
        here.unlink(Kind::Barrier, "barrier")?;
        here.unlink(Kind::Segment, "barrier")?;
    }
    let start = Instant::now();
    for round in 1..=rounds {
        mine.store(round);
        seat.wait()?;
        for (other, count) in counts.iter().enumerate() {
            let seen = count.load();
            ensure!(seen == round || seen == round + 1, "{other} is in round {seen}, and I am in {round}");
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    seat.wait()?;
    if me == 0 {
        let each = 1e6 * seconds / rounds as f64;
        println!("{parties} parties, {how:?}: {rounds} rounds, {each:.2} us each");
    }
    Ok(())
}
