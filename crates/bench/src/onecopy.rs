//! `bench onecopy`: long messages in one copy beside the same in two, from buffers that come back, in pools of several sizes, both
//! ways at once, and from buffers that never come back. Between VMs one copy is made from pages that the sender's process grants,
//! natively by cross-memory attach.
//!
//! A pool of 40 buffers of 1 MiB is more than the transport keeps granted (8,192 pages, as in the paper's figure 12): with
//! replacement by age each would be gone when it comes back.

use isthmus_run::mpi::{Flavour, find};

use crate::error::{Error, Result};
use crate::mpi::{self, Comparison};
use crate::peers::Wanted;
use crate::program::Block;
use crate::promise::{Promise, Row, Verdict, at_least};
use crate::record::{self, Record};
use crate::subject::TWO_COPIES;

const MB: u64 = 1 << 20;
/// Buffers of the pools.
const FITS: u32 = 16;
const EXCEEDS: u32 = 40;

/// The blocks.
pub fn blocks(quick: bool) -> Vec<Block> {
    let mut all = vec![
        Block::Bare(MB, 1),
        Block::Pool(MB, 1),
        Block::BothWays(MB, 1),
        Block::Pool(MB, FITS),
        Block::Pool(MB, EXCEEDS),
        Block::Once(MB),
    ];
    if !quick {
        let more = [
            Block::Bare(4 * MB, 1),
            Block::Bare(MB, FITS),
            Block::Pool(65536, 1),
            Block::Pool(262_144, 1),
            Block::Pool(4 * MB, 1),
            Block::BothWays(MB, FITS),
            Block::BothWays(MB, EXCEEDS),
        ];
        all.extend(more);
    }
    all
}

/// What is promised, each of a block.
fn wanted(vms: u32, flavour: Flavour) -> Vec<(Block, Wanted)> {
    let of = |what: &str, promise, block: Block, peer| {
        let (benchmark, bytes) = match block {
            Block::BothWays(bytes, _) => ("both_ways", bytes),
            Block::Once(bytes) => ("once", bytes),
            Block::Pool(bytes, _) => ("pool", bytes),
            _ => ("bare_copy", MB),
        };
        let mut wanted = Wanted::new(what, promise, (benchmark, bytes), Some(peer));
        wanted.depth = block.depth();
        (block, wanted)
    };
    if vms == 0 {
        let own: &[(&str, &str)] = match flavour {
            Flavour::OpenMpi | Flavour::OpenMpi4 => &[("one-copy", "ompi-sm"), ("two-copy", "ompi-sm-nocma")],
            Flavour::Mpich | Flavour::Intel => &[],
        };
        let rows = own.iter().flat_map(|(copies, peer)| {
            [(MB, "1 MiB"), (4 * MB, "4 MiB")].map(|(bytes, size)| {
                let what = format!("{size}, same buffer : own, {copies}");
                of(&what, at_least(1.0, 1.2), Block::Pool(bytes, 1), *peer)
            })
        });
        return rows.collect();
    }
    vec![
        of("1 MiB, same buffer : two copies", BY_BARE, Block::Pool(MB, 1), TWO_COPIES),
        of("4 MiB, same buffer : two copies", BY_BARE, Block::Pool(4 * MB, 1), TWO_COPIES),
        of(
            "1 MiB both ways, same buffers : two copies",
            at_least(1.3, 1.9),
            Block::BothWays(MB, 1),
            TWO_COPIES,
        ),
        of(
            "1 MiB both ways, 16 buffers : two copies",
            at_least(1.2, 1.9),
            Block::BothWays(MB, FITS),
            TWO_COPIES,
        ),
        of("1 MiB, 40 buffers : two copies", at_least(0.95, 1.0), Block::Pool(MB, EXCEEDS), TWO_COPIES),
        of("1 MiB, each buffer once : two copies", at_least(0.95, 1.0), Block::Once(MB), TWO_COPIES),
    ]
}

/// What depends on how fast one rank can copy what the other has written: see [`by_bare_copy`].
const BY_BARE: Promise = at_least(LEAST, LEAST);
/// Never less than this of two copies.
const LEAST: f64 = 0.97;
/// Of the rate of a bare copy.
const SHARE: f64 = 0.85;

/// What a message in one copy must reach, as a ratio to two copies: so much of a bare copy between the same two processors.
fn by_bare_copy(bytes: u64, records: &[Record], placement: Option<&str>) -> Option<Promise> {
    let value = |benchmark: &str, depth, subject: &str| {
        let mut found = records.iter().filter(|record| {
            (record.benchmark.as_str(), record.subject.as_str(), record.bytes, record.depth)
                == (benchmark, subject, Some(bytes), depth)
                && record.placement.as_deref() == placement
        });
        found.next().map(|record| record.value)
    };
    let ratio = value("bare_copy", Some(1), TWO_COPIES)? / value("pool", Some(1), TWO_COPIES)?;
    ratio.is_finite().then(|| at_least(LEAST.max(SHARE * ratio), LEAST.max(ratio)))
}

/// A finished comparison with its promises.
#[derive(Debug)]
pub struct Done {
    /// What was measured; what a row is about has its promise.
    pub comparison: Comparison,
    /// The rows.
    pub rows: Vec<Row>,
}

/// Runs `plan`, telling `progress` what is going on.
///
/// # Errors
/// As [`mpi::run`].
pub fn run(plan: &mpi::Plan, progress: &mut dyn FnMut(&str)) -> Result<Done> {
    let flavour = find(plan.mpi.as_deref(), None).map_err(Error::Mpi)?.flavour;
    let mut comparison = mpi::run(plan, progress)?;
    let mut rows = Vec::new();
    let placements: Vec<String> = record::placements(&comparison.records).into_iter().flatten().collect();
    for (_, mut it) in wanted(plan.vms, flavour).into_iter().filter(|(block, _)| plan.blocks.contains(block))
    {
        let promise = it.promise;
        for placement in &placements {
            if promise == BY_BARE {
                it.promise =
                    by_bare_copy(it.bytes(), &comparison.records, Some(placement)).unwrap_or(BY_BARE);
            }
            let row = it.row(&mut comparison.records, Some(placement));
            if row.verdict == Verdict::NotMeasured {
                comparison.records.push(Record::of_missing(&row));
            }
            rows.push(row);
        }
    }
    Ok(Done { comparison, rows })
}
