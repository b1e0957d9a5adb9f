//! Bank transfers by minitransactions: processes on the host and in VMs move money between accounts, all at the same time and
//! without a lock of their own, and the sum never changes, whichever process is killed.
//!
//! ```sh
//! isthmus run --vms 2 -n 4 -- target/release/bank 4
//! ```
//!
//! A transfer reads two balances, and then writes both if they are still what it has read: all or nothing. The C example has
//! the same accounts: both may work in one bank.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, ensure};
use clap::Parser;
use isthmus::sync::minitransaction::{Minitransaction, Node, Outcome, SegmentId, Shape};
use isthmus::{Attachment, Committer, Kind, Parameters, Waiting};

const ACCOUNTS: usize = 16;
const EACH: u64 = 1000;
const SUM: u64 = ACCOUNTS as u64 * EACH;

/// Moves money between accounts, beside other processes.
#[derive(Parser)]
struct Options {
    /// How many processes take part.
    #[arg(default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    parties: u32,
    /// How many transfers each makes.
    #[arg(default_value_t = 5000)]
    transfers: u32,
}

/// Where an account is in the segment.
fn place(account: usize) -> u64 {
    account as u64 * 8
}

struct Bank {
    committer: Committer,
    accounts: SegmentId,
}

impl Bank {
    /// Reads the balances at one moment.
    fn balances<const N: usize>(&mut self, of: [usize; N]) -> Result<[u64; N]> {
        let mut t = Minitransaction::new();
        let reads = of.map(|account| t.read(Node::LOCAL, self.accounts, place(account), 8));
        // Other processes hold a lock for long only if one of them was stopped in the middle.
        while self.committer.commit(&mut t)? != Outcome::Committed {}
        Ok(reads.map(|read| t.number(read).unwrap_or_default()))
    }

    /// Adds all balances up.
    fn sum(&mut self) -> Result<u64> {
        Ok(self.balances(std::array::from_fn::<_, ACCOUNTS, _>(|account| account))?.iter().sum())
    }

    /// Changes two balances, if both are what they were.
    fn change(&mut self, of: [usize; 2], were: [u64; 2], shall: [u64; 2]) -> Result<Outcome> {
        let mut t = Minitransaction::new();
        for i in 0..2 {
            t.compare_value(Node::LOCAL, self.accounts, place(of[i]), were[i]);
            t.write_value(Node::LOCAL, self.accounts, place(of[i]), shall[i]);
        }
        Ok(self.committer.commit(&mut t)?)
    }
}

/// Numbers that look random: Knuth's MMIX.
fn random(seed: &mut u64, below: usize) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    usize::try_from(*seed >> 33).unwrap_or_default() % below
}

fn main() -> Result<()> {
    let Options { parties, transfers } = Options::parse();
    let here = Attachment::open()?;
    // The accounts, and behind them a count of the processes that have come.
    let segment = here.segment("bank").or_create(place(ACCOUNTS + 8))?;
    let space = here.named("bank").space(Shape::default())?;
    let mut bank = Bank { accounts: space.add(&segment)?, committer: space.committer()? };
    let meeting = here.named("bank").barrier(Parameters::new(parties, Waiting::Hybrid))?;
    let mut seat = meeting.participate().context("the bank is full")?;
    let me = segment.word(place(ACCOUNTS))?.fetch_add(1);
    if me == 0 {
        segment.set(0, [EACH; ACCOUNTS])?;
    }
    seat.wait()?;
    // All processes have them open, so their names are not needed any more.
    if me == 0 {
        for kind in [Kind::Segment, Kind::Space, Kind::Barrier] {
            here.unlink(kind, "bank")?;
        }
    }

    let (mut seed, mut done, mut failed, mut busy) = (me, 0, 0, 0);
    while done < transfers {
        let [from, to] = [(); 2].map(|()| random(&mut seed, ACCOUNTS));
        let amount = random(&mut seed, 10) as u64;
        let were = bank.balances([from, to])?;
        if from == to || were[0] < amount {
            continue;
        }
        match bank.change([from, to], were, [were[0] - amount, were[1] + amount])? {
            Outcome::Committed => done += 1,
            Outcome::CompareFailed => failed += 1,
            Outcome::LockFailed => busy += 1,
        }
        // An audit in the middle of the transfers.
        ensure!(done % 1000 != 0 || bank.sum()? == SUM, "money is lost");
    }
    seat.wait()?;
    let sum = bank.sum()?;
    println!(
        "party {me}: {transfers} transfers, {failed} tried again since a balance had changed, {busy} since others were in \
         the way; the sum is {sum}"
    );
    ensure!(sum == SUM, "money is lost");
    Ok(())
}
