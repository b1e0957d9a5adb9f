//! What a page costs: to grant it, to read it from another VM, and to take it back, in pieces of 1 to 64 pages (the paper's figure 3).
//! Beside it stands a copy of a page within the reader's own memory.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_region::error::with_causes;
use isthmus_region::grants::{self, Granted, PAGE, Pool};
use isthmus_region::local::LocalBuf;
use isthmus_region::sync::{ReadWord, Word};
use serde::{Deserialize, Serialize};

use crate::doorbell::{MARK, Other, PARTING, PATIENCE, find};
use crate::error::{Error, Result};
use crate::job::Launch;
use crate::record::Record;
use crate::{mpi, placement, subject, table};

/// First argument that makes our program one of the two processes.
pub const RANK_COMMAND: &str = "pages-rank";

/// Pages of a piece.
const PIECES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Pages in all, and how often they are granted and taken back.
const PAGES: usize = 1024;
const REPS: u64 = 7;
const REPS_QUICK: u64 = 3;
const LIMIT: Duration = Duration::from_secs(200);
/// Bytes of a page, as lengths in memory have it.
const BYTES: usize = 4096;
/// Words of a process's block: how far it has come, and where its list of granted pages is.
const TURN: u64 = 8;
const LIST: u64 = 16;

/// What a process prints: microseconds for each page, one for each time.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    isthmus_bench: u32,
    what: String,
    pages: u32,
    us: Vec<f64>,
}

/// Measures it in two VMs.
///
/// # Errors
/// If the processes do not do their part.
pub(super) fn run(plan: &mpi::Plan, is_quick: bool, accel: &str) -> Result<Vec<Record>> {
    let exe = std::env::current_exe().map_err(Error::io("find this program"))?;
    let mut args: Vec<OsString> =
        ["run", "--launcher", "none", "-n", "2", "--vms", "2", "--cpus", "1"].map(Into::into).into();
    args.extend(subject::GRANTING.map(Into::into));
    if subject::processors() >= 2 {
        args.push("--pin".into());
    }
    args.extend(plan.run_args.iter().map(Into::into));
    let reps = if is_quick { REPS_QUICK } else { REPS };
    args.extend(["--".into(), exe.clone().into(), RANK_COMMAND.into(), reps.to_string().into()]);
    let line = || match placement::processors()[..] {
        [first, second, ..] => placement::line((first, second)),
        _ => None,
    };
    let before = line();
    let text = Launch { program: exe, args, env: Vec::new() }.run("pages", LIMIT)?;
    let lines = before.zip(line()).map(|(before, after)| [before, after]);
    let bad = |what: String| Error::Output { subject: "pages".into(), what };
    let mut records = Vec::new();
    for text in text.lines().filter(|line| line.starts_with("{\"isthmus_bench\":1,")) {
        let told: Line = serde_json::from_str(text).map_err(|e| bad(format!("{e} in {text}")))?;
        let record = Record {
            benchmark: told.what,
            subject: "isthmus".into(),
            bytes: Some(PAGE),
            depth: Some(told.pages),
            metric: "page_us".into(),
            accel: accel.into(),
            vms: 2,
            ranks: 2,
            ..Record::default()
        };
        records.push(record.with_values(&told.us).with_lines(&lines.into_iter().collect::<Vec<_>>()));
    }
    match records.len() == 4 * PIECES.len() {
        true => Ok(records),
        false => Err(bad(format!("{} figures of {}", records.len(), 4 * PIECES.len()))),
    }
}

/// For people: a row for each size of a piece.
pub fn text(records: &[Record]) -> String {
    let columns = ["page_grant", "page_read", "page_revoke", "page_copy"];
    let mut grid = vec![
        ["pages at once", "granted", "read by the other", "taken back", "copied by itself"]
            .map(String::from)
            .to_vec(),
    ];
    for pages in PIECES {
        let mut row = vec![pages.to_string()];
        for benchmark in columns {
            let found =
                records.iter().find(|r| r.benchmark == benchmark && r.depth == u32::try_from(pages).ok());
            row.push(found.map_or_else(|| "-".into(), |r| format!("{:.2} us", r.value)));
        }
        grid.push(row);
    }
    table::columns(&grid)
}

/// One of the processes: `TIMES`, with its number in `ISTHMUS_RANK`.
pub fn rank_command(args: &[OsString]) -> i32 {
    let reps = args.first().and_then(|arg| arg.to_str()).and_then(|text| text.parse().ok());
    let rank = std::env::var("ISTHMUS_RANK").ok().and_then(|text| text.parse::<u64>().ok());
    let (Some(reps), Some(rank @ 0..2)) = (reps, rank) else { return 2 };
    match rank_pages(reps, rank) {
        Ok(()) => 0,
        Err(e) => {
            isthmus_region::tell!("isthmus: pages: {e}");
            125
        }
    }
}

type Told<T> = std::result::Result<T, String>;

fn wait(word: &ReadWord, turn: u64) -> Told<()> {
    let until = Instant::now() + PATIENCE;
    while word.get() < turn {
        if Instant::now() >= until {
            return Err(format!("turn {turn} did not come"));
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// Microseconds for each of all pages.
fn each(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e6 / PAGES as f64
}

/// What a page has in each round.
fn contents(turn: u64, page: usize) -> [u8; 8] {
    (turn << 32 | page as u64).to_le_bytes()
}

fn rank_pages(reps: u64, rank: u64) -> Told<()> {
    let text = |e: isthmus_region::Error| with_causes(&e);
    // A kernel thread would look at the new memory, try to make huge pages of it, and so end grants in the middle of a turn.
    rustix::thread::disable_transparent_huge_pages(true).map_err(|e| e.to_string())?;
    let member = isthmus_attach::connect().map_err(|e| with_causes(&e))?;
    let (block, list) = (member.take(64).map_err(text)?, member.take(PAGES as u64 * 8).map_err(text)?);
    let section = member.section();
    let word = |at| section.word("block", at).map_err(text);
    word(block + TURN)?.set(0);
    word(block + LIST)?.set(list);
    word(block)?.set(MARK | rank);
    member.service().open_endpoint(block).map_err(text)?;
    let member = Arc::clone(&member);
    let other = find(&member, 1 - rank)?;
    let theirs = other.section.word("block", other.block + TURN).map_err(text)?;
    let own: &Word = word(block + TURN)?;
    // Whole chunks of it, as the transport grants them and the driver moves them.
    let memory = LocalBuf::leaked(vec![0; (PAGES + 16) * BYTES]);
    let edge = usize::try_from(memory.address().next_multiple_of(16 * PAGE) - memory.address()).unwrap_or(0);
    let memory = memory.part(edge, PAGES * BYTES);
    let copy = LocalBuf::leaked(vec![1; PAGES * BYTES]);
    let mut found: Vec<(&str, usize, Vec<f64>)> = Vec::new();
    let mut add = |what, pieces, us| match found.iter_mut().find(|it| (it.0, it.1) == (what, pieces)) {
        Some((.., all)) => all.push(us),
        None => found.push((what, pieces, vec![us])),
    };
    let mut turn = 0;
    for _ in 0..reps {
        for pieces in PIECES {
            turn += 1;
            if rank == 0 {
                (0..PAGES).for_each(|page| _ = memory.part(page * BYTES, 8).write(&contents(turn, page)));
                let mut pages: Vec<Option<Granted>> = vec![None; PAGES];
                let begun = Instant::now();
                for (piece, into) in pages.chunks_mut(pieces).enumerate() {
                    member
                        .grant_pages(memory.address() + (piece * pieces) as u64 * PAGE, into)
                        .map_err(text)?;
                }
                add("page_grant", pieces, each(begun));
                for (page, granted) in (0..).zip(&pages) {
                    let granted = granted.ok_or_else(|| format!("page {page} was not granted"))?;
                    word(list + page * 8)?.set(granted.word());
                }
                own.set(turn);
                wait(theirs, turn)?;
                let begun = Instant::now();
                let mut back = 0;
                for piece in 0..PAGES / pieces {
                    let at = memory.address() + (piece * pieces) as u64 * PAGE;
                    back += member.revoke_pages(at, u32::try_from(pieces).unwrap_or(1)).map_err(text)?;
                }
                if back != PAGES {
                    return Err(format!("{back} of {PAGES} pages came back"));
                }
                add("page_revoke", pieces, each(begun));
            } else {
                wait(theirs, turn)?;
                read(&other, pieces, [memory, copy], turn, &mut add)?;
                own.set(turn);
            }
        }
    }
    // The memory of a process that ends is zeroed, so neither goes before the other has seen its last turn.
    if rank == 0 {
        own.set(turn + 1);
        std::thread::sleep(PARTING);
    } else {
        wait(theirs, turn + 1)?;
    }
    for (what, pages, us) in found {
        let line = Line { isthmus_bench: 1, what: what.into(), pages: u32::try_from(pages).unwrap_or(0), us };
        isthmus_region::say!("{}", serde_json::to_string(&line).map_err(|e| e.to_string())?);
    }
    Ok(())
}

/// Reads all pages that the other process has granted, as a receiver does, and copies as many within its own memory.
fn read(
    other: &Other,
    pieces: usize,
    [memory, copy]: [LocalBuf; 2],
    turn: u64,
    add: &mut dyn FnMut(&'static str, usize, f64),
) -> Told<()> {
    let text = |e: isthmus_region::Error| with_causes(&e);
    let section = &other.section;
    let list = section.read("block", other.block + LIST).map_err(text)?.get();
    let pool = Pool::of(section).ok_or("the other VM has no pool of pages")?;
    let mut pages = Vec::new();
    for page in 0..PAGES as u64 {
        pages.push(Granted::of_word(section.read("list", list + page * 8).map_err(text)?.get()));
    }
    let owner = grants::owner(other.area);
    // The first look at a page of the pool is a fault, which a receiver has once.
    for first in pages.iter().flatten() {
        pool.copy(*first, 0, memory.part(0, 8)).map_err(text)?;
    }
    let begun = Instant::now();
    for (piece, named) in pages.chunks(pieces).enumerate() {
        let mut rest = named;
        while let [Some(first), ..] = rest {
            let run = pool.run(rest);
            let at = piece * pieces + named.len() - rest.len();
            if run == 0 {
                return Err("a page is not of the pool".into());
            }
            pool.copy(*first, 0, memory.part(at * BYTES, run * BYTES)).map_err(text)?;
            rest = &rest[run..];
        }
        if pool.standing(owner, named) != named.len() {
            return Err("a page is no longer granted".into());
        }
    }
    add("page_read", pieces, each(begun));
    for page in 0..PAGES {
        let mut first = [0; 8];
        memory.part(page * BYTES, 8).read(&mut first);
        if first != contents(turn, page) {
            return Err(format!("page {page} has something else than what was granted"));
        }
    }
    let begun = Instant::now();
    for at in (0..PAGES * BYTES).step_by(pieces * BYTES) {
        memory.part(at, pieces * BYTES).copy(copy.part(at, pieces * BYTES));
    }
    add("page_copy", pieces, each(begun));
    Ok(())
}
