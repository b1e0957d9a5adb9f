//! Functions for benchmarks, in the provider that their MPI has loaded: bare lines that two processes share, and this
//! process's counters. `isthmus bench mpi` finds them by name; no MPI calls them.
//!
//! They use the process's attachment, and keep it until the process ends, so that what they gave stays mapped.

use std::ffi::c_int;
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, PoisonError};

use isthmus_cabi::Poison;
use isthmus_fabric_sys::{FI_EHOSTUNREACH, FI_EINVAL, FI_EIO};
use isthmus_region::ReadOnly;
use isthmus_region::counters::WORDS;
use isthmus_region::mapping::LineRef;
use isthmus_region::member::Member;

use crate::errno;

/// Where lines are, for the other process: the region's identity (two words), the peer's index, the offset in its section.
type Place = [u64; 4];

/// What is kept until the process ends: its attachment, and a view of the first of the lines that were given.
struct Held {
    pid: u32,
    member: Arc<Member>,
    lines: Vec<LineRef>,
    peer_lines: Vec<LineRef<ReadOnly>>,
}

impl Held {
    /// The line's first word, which C uses as a C11 atomic of 64 bits.
    fn keep(&mut self, line: LineRef) -> *mut u64 {
        let word = (&raw const line.words[0]).cast_mut().cast();
        self.lines.push(line);
        word
    }

    /// The same of another process's line, to be read.
    fn keep_peer(&mut self, line: LineRef<ReadOnly>) -> *const u64 {
        let word = (&raw const line.words[0]).cast();
        self.peer_lines.push(line);
        word
    }
}

/// Runs `body` with the process's attachment; errors and panics become an errno.
fn with<R>(body: impl FnOnce(&mut Held) -> Result<R, c_int>) -> Result<R, c_int> {
    static POISON: Poison = Poison::new();
    static HELD: Mutex<Option<Held>> = Mutex::new(None);
    let report = |said: &str| eprintln!("isthmus: a call of the benchmark failed: {said}");
    isthmus_cabi::guard(&POISON, Err(FI_EIO), report, || {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = std::process::id();
        if held.as_ref().is_some_and(|h| h.pid != pid) {
            // The parent's: its memory is not mapped in a forked child, and must not be unmapped either.
            std::mem::forget(held.take());
        }
        if held.is_none() {
            let member = crate::attachment::shared().map_err(|e| errno::of_attach(&e))?;
            *held = Some(Held { pid, member, lines: Vec::new(), peer_lines: Vec::new() });
        }
        body(held.as_mut().ok_or(FI_EIO)?)
    })
}

/// Takes `bytes` in zeroed lines of this process's memory in the region, which only this process may write. Gives the first word, and
/// at `place` what the other process needs to find them; null where there is no region, or not so much memory.
///
/// # Safety
/// `place` must be null or good for writing four words.
#[unsafe(no_mangle)]
unsafe extern "C" fn isthmus_line_open(place: *mut Place, bytes: u64) -> *mut u64 {
    let opened = with(|held| {
        let region = |e| errno::of_region(&e);
        let member = &held.member;
        let bytes = bytes.checked_next_multiple_of(64).filter(|bytes| *bytes > 0).ok_or(FI_EINVAL)?;
        let at = member.take(bytes).map_err(region)?;
        member.section().zero("lines", at, bytes).map_err(region)?;
        let line = member.section().line("line", at).map_err(region)?;
        let [first, second] = member.region().shape().uuid;
        let here = [first, second, u64::from(member.peer()), at];
        // SAFETY: null, or good for writing, for which the caller vouches.
        if !unsafe { isthmus_cabi::put(place, here) } {
            return Err(FI_EINVAL);
        }
        Ok(held.keep(line))
    });
    opened.unwrap_or(null_mut())
}

/// The first word of another process's lines of `bytes`, to be read only; null if `place` is not one in the same region.
///
/// # Safety
/// `place` must be null or point to four words.
#[unsafe(no_mangle)]
unsafe extern "C" fn isthmus_line_peer(place: *const Place, bytes: u64) -> *const u64 {
    // SAFETY: null, or four words, for which the caller vouches.
    let Some(&[first, second, peer, at]) = (unsafe { isthmus_cabi::object(place) }) else { return null() };
    let found = with(|held| {
        let region = |e| errno::of_region(&e);
        if held.member.region().shape().uuid != [first, second] {
            return Err(FI_EHOSTUNREACH);
        }
        let peer = u32::try_from(peer).map_err(|_| FI_EINVAL)?;
        let (_, directory) = held.member.directory(peer).map_err(region)?;
        // All of them are mapped, since the caller reads them.
        directory.section().address(at, bytes).map_err(region)?;
        let line = directory.section().line("line", at).map_err(region)?;
        Ok(held.keep_peer(line))
    });
    found.unwrap_or(null())
}

/// Writes the first `count` counters of this process to `out`, in the order of `counters` in docs/region-format.md.
/// Endpoints add what they counted every few hundred calls of progress. Gives 0, or a negative errno.
///
/// # Safety
/// `out` must be null or good for writing `count` words.
#[unsafe(no_mangle)]
unsafe extern "C" fn isthmus_counters(out: *mut u64, count: usize) -> c_int {
    let read = with(|held| {
        if count > WORDS {
            return Err(FI_EINVAL);
        }
        let counters = held.member.counters().read();
        // Words that are not counters yet read as zero.
        let values = counters.named().map(|(_, value)| value).chain(std::iter::repeat(0));
        for (i, value) in values.take(count).enumerate() {
            // SAFETY: null is refused, and word `i` is one of the `count` for which the caller vouches.
            if !unsafe { isthmus_cabi::put(out.wrapping_add(i), value) } {
                return Err(FI_EINVAL);
            }
        }
        Ok(())
    });
    read.map_or_else(|errno| -errno, |()| 0)
}
