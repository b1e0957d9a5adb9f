//! A hash map in a named segment: processes on the host and in VMs insert, look up and remove keys in it at the same time, without
//! a lock of their own, and check each other's work.
//!
//! ```sh
//! isthmus run --vms 2 -n 4 -- target/release/map 4
//! ```
//!
//! The one idea: decide on what was read, and commit only if that is still so. A key may lie in any of the [`REACH`] slots from
//! its home on; those are read at one moment, and a change of one of them compares them all. If anything there has changed
//! meanwhile, nothing is written, and the operation begins anew. So no key is ever in two slots, and a process that is
//! killed leaves no slot half written. The C example has the same map: both may work in one.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, ensure};
use clap::Parser;
use isthmus::sync::minitransaction::{Minitransaction, Node, Outcome, SegmentId, Shape};
use isthmus::{Attachment, Committer, Kind, Parameters, Segment, Value, Waiting};

const REACH: usize = 8;
const HOMES: u64 = 256;
const SLOTS: u64 = HOMES + REACH as u64 - 1;
const KEYS: u64 = 100;
/// One more, as a length: keys begin at 1.
const COUNTS: usize = 101;
const _: () = assert!(COUNTS as u64 == KEYS + 1);
/// Processes.
const MOST: u64 = 64;

/// Key and value; a key of 0: nothing is here.
type Slot = [u64; 2];
const FREE: Slot = [0, 0];
const SLOT_BYTES: u64 = Slot::BYTES as u64;

// The segment. A new one is all zeros: an empty map.
/// How many processes have come.
const CAME: u64 = SLOTS * SLOT_BYTES;
/// For each process, how often it has inserted each key, less how often it has removed it.
const HAS: u64 = CAME + 8;
const BYTES: u64 = HAS + MOST * (KEYS + 1) * 8;

/// Works on a hash map, beside other processes.
#[derive(Parser)]
struct Options {
    /// How many processes take part.
    #[arg(default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=i64::try_from(MOST).unwrap_or(1)))]
    parties: u32,
    /// How many operations each makes.
    #[arg(default_value_t = 20_000)]
    operations: u32,
}

/// Where the slots of a key begin, in bytes of the segment.
fn home(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15) / (u64::MAX / HOMES + 1) * SLOT_BYTES
}

/// Which of the slots has `key`.
fn slot_with(near: &[Slot; REACH], key: u64) -> Option<usize> {
    near.iter().position(|slot| slot[0] == key)
}

struct Map {
    committer: Committer,
    segment: SegmentId,
    again: u32,
}

impl Map {
    /// Reads all slots in which `key` may lie, as they are at one moment.
    fn near(&mut self, key: u64) -> Result<[Slot; REACH]> {
        let mut t = Minitransaction::new();
        let read = t.read(Node::LOCAL, self.segment, home(key), <[Slot; REACH]>::BYTES);
        while self.committer.commit(&mut t)? != Outcome::Committed {}
        t.value(read).context("what was committed was read")
    }

    /// Writes one of the slots of `key`, if all of them are what was read. Returns whether they were.
    fn change(&mut self, key: u64, near: [Slot; REACH], at: usize, to: Slot) -> Result<bool> {
        let mut t = Minitransaction::new();
        t.compare_value(Node::LOCAL, self.segment, home(key), near);
        t.write_value(Node::LOCAL, self.segment, home(key) + at as u64 * SLOT_BYTES, to);
        let is_done = self.committer.commit(&mut t)? == Outcome::Committed;
        self.again += u32::from(!is_done);
        Ok(is_done)
    }

    /// The value of a key.
    fn get(&mut self, key: u64) -> Result<Option<u64>> {
        let near = self.near(key)?;
        Ok(slot_with(&near, key).map(|at| near[at][1]))
    }

    /// Inserts a key unless it is there. Returns whether it did.
    fn insert(&mut self, key: u64, value: u64) -> Result<bool> {
        loop {
            let near = self.near(key)?;
            if slot_with(&near, key).is_some() {
                return Ok(false);
            }
            let free = slot_with(&near, FREE[0]).with_context(|| format!("no room for key {key}"))?;
            if self.change(key, near, free, [key, value])? {
                return Ok(true);
            }
        }
    }

    /// Removes a key. Returns the value that it had.
    fn remove(&mut self, key: u64) -> Result<Option<u64>> {
        loop {
            let near = self.near(key)?;
            let Some(at) = slot_with(&near, key) else { return Ok(None) };
            if self.change(key, near, at, FREE)? {
                return Ok(Some(near[at][1]));
            }
        }
    }
}

/// Does all operations in turn. Returns how often each key was inserted, less how often it was removed.
fn work(map: &mut Map, me: u64, parties: u32, operations: u32) -> Result<[i64; COUNTS]> {
    // A value names its key and the process that inserted it, so that a reader sees whether it is whole.
    let check = |key: u64, value: u64| {
        let is_whole = value / MOST == key && value % MOST < parties.into();
        ensure!(is_whole, "key {key} has the value {value}, which was never inserted");
        Ok(())
    };
    let mut has = [0; COUNTS];
    let mut seed = me + 1;
    for _ in 0..operations {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = 1 + (seed >> 33) % KEYS;
        let own = &mut has[usize::try_from(key)?];
        match (seed >> 60) % 3 {
            0 => map.get(key)?.map_or(Ok(()), |value| check(key, value))?,
            1 => *own += i64::from(map.insert(key, key * MOST + me)?),
            _ => {
                if let Some(value) = map.remove(key)? {
                    check(key, value)?;
                    *own -= 1;
                }
            }
        }
    }
    Ok(has)
}

/// When all are done: what has been inserted and not been removed is there, once, and nothing else.
fn count(map: &mut Map, segment: &Segment, parties: u32) -> Result<u64> {
    let has = |process: u32, key| segment.get::<i64>(HAS + (u64::from(process) * (KEYS + 1) + key) * 8);
    let mut there = 0;
    for key in 1..=KEYS {
        let expected = (0..parties).map(|process| has(process, key)).sum::<Result<i64, _>>()?;
        let is_there = map.get(key)?.is_some();
        let found = if is_there { "there" } else { "not there" };
        ensure!(
            i64::from(is_there) == expected,
            "key {key} was inserted {expected} times more than removed, and is {found}"
        );
        there += u64::from(is_there);
    }
    let mut taken = 0;
    for slot in 0..SLOTS {
        taken += u64::from(segment.get::<Slot>(slot * SLOT_BYTES)?[0] != 0);
    }
    ensure!(taken == there, "{taken} slots are taken by {there} keys");
    Ok(there)
}

fn main() -> Result<()> {
    let Options { parties, operations } = Options::parse();
    let here = Attachment::open()?;
    let segment = here.segment("map").or_create(BYTES)?;
    let space = here.named("map").space(Shape::default())?;
    let mut map = Map { segment: space.add(&segment)?, committer: space.committer()?, again: 0 };
    let mut seat = here.named("map").barrier(Parameters::new(parties, Waiting::Hybrid))?.participate()?;
    let me = segment.word(CAME)?.fetch_add(1);

    seat.wait()?;
    // All processes have them open, so their names are not needed any more.
    if me == 0 {
        for kind in [Kind::Segment, Kind::Space, Kind::Barrier] {
            here.unlink(kind, "map")?;
        }
    }
    let has = work(&mut map, me, parties, operations)?;
    segment.set_all(HAS + me * (KEYS + 1) * 8, &has)?;
    seat.wait()?;
    let (keys, again) = (count(&mut map, &segment, parties)?, map.again);
    println!(
        "process {me}: {operations} operations, {again} changes tried again; {keys} keys are there, as all have counted"
    );
    Ok(())
}
