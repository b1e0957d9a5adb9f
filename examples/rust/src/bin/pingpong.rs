//! Two processes throw a ball to and fro over a channel, wherever they run: on the host, or in two VMs.
//!
//! ```sh
//! isthmus run --vms 2 -n 2 -- target/release/pingpong
//! ```
//!
//! The ball is the number of the round, so that each side sees that none is lost, and none comes twice.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;
use isthmus::Attachment;

/// Contexts that register with the same number are in one group.
const GROUP: u64 = 0x7069_6e67;
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

/// Throws a ball between two processes over a channel.
#[derive(Parser)]
struct Options {
    /// How often it goes there and back.
    #[arg(default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
}

fn main() -> Result<()> {
    let Options { rounds } = Options::parse();
    let here = Attachment::open()?;
    let group = here.register(GROUP, 0)?;
    let others = group.wait_peers(1, PATIENCE)?;
    ensure!(others.len() == 1, "two play already");

    // The process with the lower address connects and begins.
    let begins = group.address() < others[0].address;
    let channel =
        if begins { group.connect(others[0].address, PATIENCE)? } else { group.accept(PATIENCE)? };
    let catch = |round: u64| -> Result<()> {
        let mut ball = [0; 8];
        channel.read_exact(&mut ball, PATIENCE)?;
        let caught = u64::from_le_bytes(ball);
        ensure!(caught == round, "the ball says {caught} in round {round}");
        Ok(())
    };
    let start = Instant::now();
    for round in 1..=rounds {
        if !begins {
            catch(round)?;
        }
        channel.write_all(&round.to_le_bytes(), PATIENCE)?;
        if begins {
            catch(round)?;
        }
    }
    let half = start.elapsed().as_secs_f64() * 1e6 / rounds as f64 / 2.0;
    println!("player on {}: {rounds} rounds, {half:.3} us for half a round", here.member()?.name);
    Ok(())
}
