//! `bench onecopy`: long messages in one copy beside the same in two, from buffers that come back, in pools of several sizes, both
//! ways at once, and from buffers that never come back. Between VMs one copy is made from pages that the sender's process grants,
//! natively by cross-memory attach, and in both by programs whose large allocations lie in the region (`--alloc`). Beside them one-sided
//! operations in windows of the program's memory (MPI_Win_create), which in such pages and such memory take no message, and four kernels that
//! communicate as NAS Parallel Benchmarks do, with the columns of the paper's table I.
//!
//! A pool of 40 buffers of 1 MiB is more than the transport keeps granted (8,192 pages, as in the paper's figure 12): with
//! replacement by age each would be gone when it comes back.

use isthmus_run::mpi::{Flavour, find};

use crate::error::{Error, Result};
use crate::mpi::{self, Comparison};
use crate::peers::{Wanted, missed};
use crate::program::{BARE, Block, Kernel, LATENCY};
use crate::promise::{Row, Verdict, at_least, at_most};
use crate::record::{self, Record};
use crate::subject::{ALLOCATIONS, Peers, TWO_COPIES};

pub mod pages;

const MB: u64 = 1 << 20;
/// Buffers of the pools.
const FITS: u32 = 16;
const EXCEEDS: u32 = 40;

/// Benchmarks that can be measured alone.
pub const ALONE: [&str; 10] = ["pool", "both_ways", "overhead", "put", "get", "is", "ft", "mg", "lu", "once"];

/// The blocks of these benchmarks, with those that they are compared with; all if none is named.
pub fn blocks(quick: bool, only: &[String]) -> Vec<Block> {
    let mut all = all_blocks(quick);
    if !only.is_empty() {
        let named: Vec<Block> =
            all.iter().copied().filter(|block| only.iter().any(|it| it == benchmark(*block).0)).collect();
        let beside: Vec<Block> = named.iter().filter_map(|block| block.beside()).map(|(it, _)| it).collect();
        all.retain(|block| named.contains(block) || beside.contains(block));
    }
    all
}

/// What a block's records are of: the name and the length.
fn benchmark(block: Block) -> (&'static str, u64) {
    match block {
        Block::BothWays(bytes, _) => ("both_ways", bytes),
        Block::Once(bytes) => ("once", bytes),
        Block::Overhead(bytes, _) => ("overhead", bytes),
        Block::Put(bytes) => ("put", bytes),
        Block::Get(bytes) => ("get", bytes),
        Block::Pool(bytes, _) => ("pool", bytes),
        Block::Kernel(kernel) => (kernel.name(), kernel.bytes()),
        Block::Latency(bytes) => (LATENCY, bytes),
        _ => (BARE, MB),
    }
}

fn all_blocks(quick: bool) -> Vec<Block> {
    let mut all = vec![
        Block::Bare(MB, 1),
        Block::Pool(MB, 1),
        Block::BothWays(MB, 1),
        Block::Pool(MB, FITS),
        Block::Pool(MB, EXCEEDS),
        Block::Overhead(MB, 1),
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
            Block::Overhead(4 * MB, 1),
            Block::Overhead(MB, FITS),
        ];
        all.extend(more);
    }
    all.extend([Block::Latency(8), Block::Put(8), Block::Get(8)]);
    if !quick {
        all.extend([Block::Put(65536), Block::Get(65536)]);
    }
    let kernels = if quick { &Kernel::ALL[..1] } else { &Kernel::ALL };
    all.extend(kernels.iter().map(|kernel| Block::Kernel(*kernel)));
    // The last: what never comes back makes the transport give pages up for a while.
    all.push(Block::Once(MB));
    all
}

/// What is promised, each of a block.
pub(crate) fn wanted(vms: u32, flavour: Flavour) -> Vec<(Block, Wanted)> {
    let of = |what: &str, promise, block: Block, peer| {
        let mut wanted = Wanted::new(what, promise, benchmark(block), Some(peer));
        wanted.depth = block.depth();
        (block, wanted)
    };
    let allocating = |what: &str, promise, block, peer| {
        let (block, mut wanted) = of(&format!("{what} (--alloc)"), promise, block, peer);
        wanted.subject = ALLOCATIONS;
        (block, wanted)
    };
    let one_sided = [
        ("MPI_Put and flush, 8 B : 8 B latency", Block::Put(8)),
        ("MPI_Get and flush, 8 B : 8 B latency", Block::Get(8)),
    ];
    if vms == 0 {
        let own: &[(&str, &str)] = match flavour {
            Flavour::OpenMpi | Flavour::OpenMpi4 => {
                &[("own, one-copy", "ompi-sm"), ("own, two-copy", "ompi-sm-nocma")]
            }
            Flavour::Mpich => &[("own shared memory", "mpich-shm")],
            Flavour::Intel => &[],
        };
        let mut rows = Vec::new();
        for (copies, peer) in own {
            for (bytes, size) in [(MB, "1 MiB"), (4 * MB, "4 MiB")] {
                let (what, block) = (format!("{size}, same buffer : {copies}"), Block::Pool(bytes, 1));
                if flavour != Flavour::Mpich {
                    rows.push(of(&what, at_least(1.0, 1.2), block, *peer));
                }
                rows.push(allocating(&what, at_least(1.0, 1.2), block, *peer));
            }
        }
        // Open MPI 4 does them by messages of its own.
        if flavour != Flavour::OpenMpi4 {
            rows.extend(one_sided.map(|(what, block)| allocating(what, at_most(1.0, 0.5), block, LATENCY)));
        }
        return rows;
    }
    let mut rows = vec![
        of(
            "1 MiB both ways, 16 buffers : two copies",
            at_least(1.2, 1.9),
            Block::BothWays(MB, FITS),
            TWO_COPIES,
        ),
        of("1 MiB, 40 buffers : two copies", at_least(0.95, 1.0), Block::Pool(MB, EXCEEDS), TWO_COPIES),
        of("1 MiB, each buffer once : two copies", at_least(0.95, 1.0), Block::Once(MB), TWO_COPIES),
    ];
    // Of ranks that work meanwhile: one that waits polls, which takes a processor whatever else it does.
    for (what, less, block) in [
        ("1 MiB, same buffer", 1.5, Block::Overhead(MB, 1)),
        ("4 MiB, same buffer", 1.5, Block::Overhead(4 * MB, 1)),
        ("1 MiB, 16 buffers", 1.4, Block::Overhead(MB, FITS)),
    ] {
        let what = format!("time in the MPI's calls for a message, ranks at work, {what} : two copies");
        let promise = || at_most(1.0 / less, 1.0 / 1.9);
        rows.extend([
            of(&what, promise(), block, TWO_COPIES),
            allocating(&what, promise(), block, TWO_COPIES),
        ]);
    }
    let one_way = at_least(0.97, 1.2);
    for (what, promise, block, peer) in [
        ("1 MiB, same buffer : bare copy", at_least(0.85, 1.0), Block::Pool(MB, 1), BARE),
        ("1 MiB, same buffer : two copies", one_way, Block::Pool(MB, 1), TWO_COPIES),
        ("4 MiB, same buffer : bare copy", at_least(0.85, 1.0), Block::Pool(4 * MB, 1), BARE),
        ("4 MiB, same buffer : two copies", one_way, Block::Pool(4 * MB, 1), TWO_COPIES),
        (
            "1 MiB both ways, same buffers : two copies",
            at_least(1.3, 1.9),
            Block::BothWays(MB, 1),
            TWO_COPIES,
        ),
    ] {
        rows.extend([of(what, promise, block, peer), allocating(what, promise, block, peer)]);
    }
    // Nothing has to come back.
    let what = "1 MiB, 40 buffers : two copies";
    rows.push(allocating(what, at_least(1.0, 1.2), Block::Pool(MB, EXCEEDS), TWO_COPIES));
    // Open MPI 4 does them by messages of its own.
    let one_sided: &[_] = if flavour == Flavour::OpenMpi4 { &[] } else { &one_sided };
    for (what, block) in one_sided {
        let promise = at_most(1.0, 0.5);
        rows.extend([of(what, promise, *block, LATENCY), allocating(what, promise, *block, LATENCY)]);
    }
    for kernel in Kernel::ALL {
        let (what, block) = (format!("{} : two copies", kernel.name().to_uppercase()), Block::Kernel(kernel));
        rows.push(of(&what, at_least(1.0, 1.1), block, TWO_COPIES));
        rows.push(allocating(&what, at_least(1.0, 1.1), block, TWO_COPIES));
    }
    rows
}

/// A finished comparison with its promises.
#[derive(Debug)]
pub struct Done {
    /// What was measured; what a row is about has its promise.
    pub comparison: Comparison,
    /// The rows.
    pub rows: Vec<Row>,
    /// What a page costs, between VMs.
    pub pages: Vec<Record>,
}

/// Runs `plan`, telling `progress` what is going on. Without `is_all` its blocks are all that is measured.
///
/// # Errors
/// As [`mpi::run`].
pub fn run(plan: &mpi::Plan, is_quick: bool, is_all: bool, progress: &mut dyn FnMut(&str)) -> Result<Done> {
    let flavour = find(plan.mpi.as_deref(), None).map_err(Error::Mpi)?.flavour;
    let mut comparison = mpi::run(plan, progress)?;
    let mut pages = Vec::new();
    if plan.vms > 0 && is_all {
        progress("what a page costs to grant and to read");
        let accel = comparison.records.first().map_or_else(String::new, |record| record.accel.clone());
        match pages::run(plan, is_quick, &accel) {
            Ok(records) => pages = records,
            Err(error @ Error::Interrupted { .. }) => return Err(error),
            Err(error) => comparison.left_out.push(format!("what a page costs: {}", error.chain())),
        }
    }
    let placements: Vec<String> = record::placements(&comparison.records).into_iter().flatten().collect();
    if plan.vms > 0 && is_all && !is_quick {
        progress("which granted pages make room for others, in a pool of more than there may be");
        match replacement(plan, progress) {
            Ok(done) => comparison.add(done, "replacement"),
            Err(error @ Error::Interrupted { .. }) => return Err(error),
            Err(error) => comparison.left_out.push(format!("replacement: {}", error.chain())),
        }
    }
    let mut rows = Vec::new();
    for (_, wanted) in wanted(plan.vms, flavour).into_iter().filter(|(block, _)| plan.blocks.contains(block))
    {
        for placement in &placements {
            let mut row = wanted.row(&mut comparison.records, Some(placement));
            let record = missed(&mut row, &comparison.left_out);
            comparison.records.extend(record);
            rows.push(row);
        }
    }
    Ok(Done { comparison, rows, pages })
}

/// The pool that exceeds what may be granted, by both rules of replacement: the paper's figure 12.
fn replacement(plan: &mpi::Plan, progress: &mut dyn FnMut(&str)) -> Result<Comparison> {
    let peers = Peers { replacement: true, ..plan.peers };
    let mut done =
        mpi::run(&mpi::Plan { peers, blocks: vec![Block::Pool(MB, EXCEEDS)], ..plan.clone() }, progress)?;
    done.records.retain(|record| record.benchmark == "pool");
    done.records.iter_mut().for_each(|record| record.benchmark = "replacement".into());
    Ok(done)
}

impl Done {
    /// Whether all was measured that was asked for, however it came out.
    pub fn is_whole(&self) -> bool {
        !self.comparison.is_cut
            && self.comparison.left_out.is_empty()
            && self.rows.iter().all(|row| row.verdict != Verdict::NotMeasured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(
        benchmark: &str,
        depth: Option<u32>,
        peer: Option<&str>,
        ratio: Option<f64>,
        value: f64,
    ) -> Record {
        Record {
            benchmark: benchmark.into(),
            subject: "isthmus".into(),
            peer: peer.map(Into::into),
            ratio,
            low: ratio,
            high: ratio,
            rounds: 7,
            vms: 2,
            placement: Some("far".into()),
            path: Some(if benchmark == "bare_copy" { "" } else { "region+pages" }.into())
                .filter(|path: &String| !path.is_empty()),
            bytes: Some(MB),
            depth,
            metric: "bandwidth_MBps".into(),
            value,
            line_us: Some(0.3),
            ..Record::default()
        }
    }

    #[test]
    fn a_message_is_judged_beside_the_bare_copy_of_as_many_buffers() {
        let copies = |depth, value| Record {
            subject: TWO_COPIES.into(),
            path: Some("region".into()),
            ..record("pool", depth, None, None, value)
        };
        let mut all = vec![
            record("bare_copy", Some(16), Some(TWO_COPIES), Some(1.0), 2000.0),
            record("bare_copy", Some(1), Some(TWO_COPIES), Some(1.0), 1000.0),
            record("pool", Some(16), Some(BARE), Some(0.5), 500.0),
            record("pool", Some(1), Some(BARE), Some(0.9), 900.0),
            record("pool", Some(1), Some(TWO_COPIES), Some(1.5), 900.0),
            record("pool", Some(EXCEEDS), Some(TWO_COPIES), Some(0.9), 450.0),
            copies(Some(1), 600.0),
            copies(Some(EXCEEDS), 500.0),
        ];
        let mut row = |what: &str| {
            let wanted = wanted(2, Flavour::OpenMpi);
            let of_it = wanted.iter().map(|(_, wanted)| wanted.row(&mut all, Some("far")));
            of_it.into_iter().find(|row| row.what.starts_with(what)).map(|row| (row.verdict, row.said))
        };
        let said = |verdict, said: &str| Some((verdict, said.to_owned()));
        assert_eq!(row("1 MiB, same buffer : bare"), said(Verdict::Holds, "900 MB/s : 1000 MB/s bare_copy"));
        assert_eq!(row("1 MiB, same buffer : two"), said(Verdict::Aim, "900 MB/s : 600 MB/s isthmus-copy"));
        assert_eq!(row("1 MiB, 40 buffers"), said(Verdict::Short, "450 MB/s : 500 MB/s isthmus-copy"));
        assert_eq!(row("4 MiB, same buffer : bare").map(|row| row.0), Some(Verdict::NotMeasured));
    }

    #[test]
    fn a_benchmark_is_measured_alone_with_what_it_is_compared_with() {
        let only =
            |names: &[&str]| blocks(false, &names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        let (put, get) = ([Block::Put(8), Block::Put(65536)], [Block::Get(8), Block::Get(65536)]);
        assert_eq!(only(&["put"]), [&[Block::Latency(8)][..], &put].concat());
        assert_eq!(only(&["get", "put"]), [Block::Latency(8), put[0], get[0], put[1], get[1]]);
        assert_eq!(only(&["once"]), [Block::Once(MB)]);
        let each = ALONE.map(|name| only(&[name]));
        assert!(blocks(false, &[]).iter().all(|block| each.iter().any(|blocks| blocks.contains(block))));
    }

    #[test]
    fn each_promise_is_of_a_block() {
        for (vms, flavour) in
            [(0, Flavour::OpenMpi), (0, Flavour::Mpich), (2, Flavour::OpenMpi), (2, Flavour::Mpich)]
        {
            assert!(wanted(vms, flavour).iter().all(|(block, _)| blocks(false, &[]).contains(block)));
        }
        let beside = blocks(true, &[]).into_iter().filter_map(Block::beside).map(|(block, _)| block);
        assert_eq!(beside.filter(|block| blocks(true, &[]).contains(block)).count(), 3);
    }
}
