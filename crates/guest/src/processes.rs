//! Reads processes from `/proc`.

use std::{fs, io};

use rustix::io::Errno;

/// A process as `/proc/PID/stat` shows it (proc(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Its parent's.
    pub parent: i32,
    /// The process group it is in.
    pub group: i32,
    /// The session it is in.
    pub session: i32,
    /// Whether all its threads have ended and its parent has not waited for it. (The kernel's state is the first
    /// thread's.)
    pub zombie: bool,
}

/// Parses `/proc/PID/stat`. The name in it may hold anything, blanks and brackets included, so the fields are counted
/// from the last bracket.
fn parse_stat(stat: &str) -> Option<Process> {
    let pid = stat.split(' ').next()?.parse().ok()?;
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let zombie = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    let others_run =
        fields.nth(13).and_then(|threads| threads.parse().ok()).is_some_and(|threads: u32| threads > 1);
    Some(Process { pid, parent, group, session, zombie: zombie && !others_run })
}

/// All processes; those that end meanwhile may be missing.
///
/// # Errors
/// Those of opening and reading `/proc`, as when no descriptor is left.
pub fn all() -> io::Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit) {
            continue;
        }
        match fs::read(entry.path().join("stat")) {
            Ok(stat) => found.extend(parse_stat(&String::from_utf8_lossy(&stat))),
            // It has ended since.
            Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::NOENT | Errno::SRCH)) => {}
            // This user may not read it.
            Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::ACCESS | Errno::PERM)) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(found)
}

/// One process.
pub fn one(pid: i32) -> Option<Process> {
    parse_stat(&String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).ok()?))
}

/// Processor time of all threads of a process, in ticks of the system's clock.
pub fn processor_ticks(pid: i32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The fields utime and stime.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()?.wrapping_add(fields.next()?.parse().ok()?))
}

/// Children of a process, including those that have ended; none if the kernel does not list them
/// (`CONFIG_PROC_CHILDREN`).
pub fn children(pid: i32) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists =
        threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Those of `all` that are below any of `roots`, themselves excluded.
pub fn below(all: &[Process], roots: &[i32]) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    let mut queue = roots.to_vec();
    while let Some(parent) = queue.pop() {
        for process in all.iter().filter(|process| process.parent == parent) {
            // A number may be used again while `/proc` is read; no process is taken twice.
            if !roots.contains(&process.pid) && !found.iter().any(|seen| seen.pid == process.pid) {
                found.push(*process);
                queue.push(process.pid);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_brackets_and_blanks_are_parsed() {
        let process = parse_stat("12 (a) S 9 (b)) Z 7 12 11 0").unwrap();
        assert_eq!(process, Process { pid: 12, parent: 7, group: 12, session: 11, zombie: true });
        let first_thread_ended = "12 (a) Z 7 12 11 0 -1 4 0 0 0 0 0 0 0 0 20 0 2 0";
        assert!(!parse_stat(first_thread_ended).unwrap().zombie);
        let all_ended = "12 (a) Z 7 12 11 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0";
        assert!(parse_stat(all_ended).unwrap().zombie);
        assert_eq!(parse_stat("garbage"), None);
        assert_eq!(parse_stat("1 (x)"), None);
    }

    #[test]
    fn grandchildren_are_below_and_unrelated_processes_are_not() {
        let process = |pid, parent| Process { pid, parent, group: 1, session: 1, zombie: false };
        let all = [process(1, 0), process(2, 1), process(3, 2), process(4, 1), process(5, 3)];
        let mut pids: Vec<i32> = below(&all, &[2]).iter().map(|p| p.pid).collect();
        pids.sort_unstable();
        assert_eq!(pids, [3, 5]);
        // A loop, as numbers that were used again can make one.
        assert_eq!(below(&[process(2, 3), process(3, 2)], &[2]).len(), 1);
    }
}
