//! What a service needs of the process that it is.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that a service asks for where it may raise its own limit: a process may have 256 watches, and 8 bells for each endpoint.
const DESCRIPTORS: u64 = 1 << 16;

/// Those of `wanted` that this process was not started to ignore, as under nohup(1) or in the background of a script: the others stay
/// ignored.
pub fn not_ignored(wanted: &[i32]) -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored_in(&status);
    wanted.iter().copied().filter(|signal| !is_in(ignored, *signal)).collect()
}

/// The signals that `/proc/self/status` says are ignored, bit 0 for signal 1 (proc(5)).
fn ignored_in(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn is_in(mask: u64, signal: i32) -> bool {
    signal
        .checked_sub(1)
        .and_then(|bit| u32::try_from(bit).ok())
        .and_then(|bit| mask.checked_shr(bit))
        .is_some_and(|rest| rest & 1 != 0)
}

/// Raises the limit on descriptors as far as this process may.
pub fn allow_many_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Only root may raise the second.
    let more = Some(maximum.map_or(u64::MAX, |most| most.max(DESCRIPTORS)));
    if maximum.is_some_and(|most| most < DESCRIPTORS)
        && setrlimit(Resource::Nofile, Rlimit { current: more, maximum: more }).is_ok()
    {
        return;
    }
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_read_from_the_mask() {
        let ignored = ignored_in("Name:\tisthmus\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001003\n");
        let is = |signal| is_in(ignored, signal);
        assert!(is(1) && is(2) && is(13) && !is(15) && !is(64) && !is(0) && !is(65));
        assert_eq!(ignored_in("garbage"), 0);
        // A Rust program ignores PIPE, and this test's nothing else of these.
        assert_eq!(not_ignored(&[13]), [0; 0]);
    }
}
