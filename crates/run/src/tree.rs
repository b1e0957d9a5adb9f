//! The processes of a run: everything below a subreaper, found through `/proc` and ended.
//!
//! A process can fork between the scan and the kill, so scans are repeated until nothing is left. No process can leave
//! the tree: a subreaper adopts those that lose their parents.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use isthmus_guest::processes;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait, waitpid};

/// All living processes below `root`, itself excluded, zombies excluded.
///
/// # Errors
/// As [`processes::all`].
pub fn descendants(root: Pid) -> io::Result<Vec<Pid>> {
    descendants_but(root, &[])
}

/// The same without `others`, and without what is below them.
fn descendants_but(root: Pid, others: &[i32]) -> io::Result<Vec<Pid>> {
    let mut all = processes::all()?;
    all.retain(|process| !others.contains(&process.pid));
    let below = processes::below(&all, &[root.as_raw_nonzero().get()]);
    Ok(below
        .iter()
        .filter(|process| !process.zombie)
        .filter_map(|process| Pid::from_raw(process.pid))
        .collect())
}

/// Reaps all children that have ended. Only for processes that wait for no child of theirs in another way.
pub fn reap() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// Ends everything below this process but `spared`, and `others` with all that is below them, and returns what could not be ended
/// within `limit`. Each process is stopped and handed to `before` first.
///
/// Children are killed before their parents: if this process is killed meanwhile, what is left is below another process
/// of the run, which does the same.
///
/// # Errors
/// As [`descendants`], if it fails until the limit.
pub fn kill_descendants(
    spared: Option<Pid>,
    others: &[i32],
    limit: Duration,
    before: impl Fn(Pid),
) -> io::Result<Vec<Pid>> {
    let scan = || {
        reap();
        let mut left = descendants_but(getpid(), others)?;
        left.retain(|pid| Some(*pid) != spared);
        Ok(left)
    };
    let end = |pid| {
        // So that it makes nothing more while `before` looks at it.
        let _ = kill_process(pid, Signal::STOP);
        before(pid);
        // It may have ended by itself since; one that may not be signalled is reported in the end.
        let _ = kill_process(pid, Signal::KILL);
    };
    until_none(scan, end, limit)
}

/// Ends what `scan` finds, the last first, until it has found nothing twice, and returns what is left at `limit`.
///
/// Twice, because process numbers are read in order. A process can have a lower number than its parent, once the
/// system's numbers have wrapped. If its parent ends after the process was read and before the parent is, the process
/// seems to be outside of the tree. The next scan finds it below the subreaper.
fn until_none(
    mut scan: impl FnMut() -> io::Result<Vec<Pid>>,
    mut end: impl FnMut(Pid),
    limit: Duration,
) -> io::Result<Vec<Pid>> {
    let start = Instant::now();
    let mut empty = 0;
    loop {
        let left = scan();
        left.iter().flatten().rev().for_each(|pid| end(*pid));
        empty = if left.as_ref().is_ok_and(Vec::is_empty) { empty + 1 } else { 0 };
        if empty == 2 || start.elapsed() > limit {
            return left;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Reaps adopted orphans: children of this process that have ended, are not in `keep`, and had ended already when `seen`
/// was filled. Notes those that have ended since in `seen`.
pub fn reap_orphans(keep: &[Pid], seen: &mut Vec<i32>) {
    let me = getpid().as_raw_nonzero().get();
    let claimed = |pid: i32| keep.iter().any(|kept| kept.as_raw_nonzero().get() == pid);
    let Ok(mut zombies) = processes::all() else { return };
    zombies.retain(|process| process.parent == me && process.zombie && !claimed(process.pid));
    for process in zombies.iter().filter(|process| seen.contains(&process.pid)) {
        let _ = waitpid(Pid::from_raw(process.pid), WaitOptions::NOHANG);
    }
    *seen = zombies.iter().map(|process| process.pid).collect();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_that_one_scan_missed_is_ended() {
        let pid = |n| Pid::from_raw(n).unwrap();
        let failed = || Err(io::Error::from(io::ErrorKind::Other));
        let mut scans = vec![
            Ok(vec![pid(7), pid(9)]),
            Ok(vec![]),
            Ok(vec![pid(8)]),
            Ok(vec![]),
            failed(),
            Ok(vec![]),
            Ok(vec![]),
        ]
        .into_iter();
        let mut ended = Vec::new();
        let left = until_none(|| scans.next().unwrap(), |pid| ended.push(pid), Duration::from_secs(60));
        assert_eq!((left.unwrap(), ended), (vec![], vec![pid(9), pid(7), pid(8)]));
        assert!(scans.next().is_none());
        // A process that does not end is returned, and a scan that fails is an error.
        assert_eq!(until_none(|| Ok(vec![pid(7)]), drop, Duration::ZERO).unwrap(), [pid(7)]);
        assert!(until_none(failed, drop, Duration::ZERO).is_err());
    }

    #[test]
    fn grandchildren_are_descendants() {
        let mut shell = Command::new("sh").args(["-c", "sleep 30 & sleep 30; true"]).spawn().unwrap();
        let root = Pid::from_child(&shell);
        let start = Instant::now();
        while descendants(root).unwrap().len() < 2 && start.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(5));
        }
        let below = descendants(root).unwrap();
        assert_eq!(below.len(), 2);
        for pid in below {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = shell.kill();
        shell.wait().unwrap();
    }

    #[test]
    fn what_was_there_before_is_no_part_of_the_tree() {
        let mut before = Command::new("sh").args(["-c", "sleep 30; true"]).spawn().unwrap();
        let number = Pid::from_child(&before).as_raw_nonzero().get();
        let start = Instant::now();
        while descendants(Pid::from_child(&before)).unwrap().is_empty()
            && start.elapsed() < Duration::from_secs(5)
        {
            thread::sleep(Duration::from_millis(5));
        }
        let with = descendants(getpid()).unwrap();
        let without = descendants_but(getpid(), &[number]).unwrap();
        let below = descendants(Pid::from_child(&before)).unwrap();
        assert!(!below.is_empty() && below.iter().all(|pid| with.contains(pid) && !without.contains(pid)));
        assert!(!without.contains(&Pid::from_child(&before)));
        for pid in below {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = before.kill();
        before.wait().unwrap();
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_lives() {
        let script = "import ctypes, threading, time\n\
            threading.Thread(target=time.sleep, args=(30,)).start()\n\
            ctypes.CDLL(None).pthread_exit(None)";
        let mut python = Command::new("python3").args(["-c", script]).spawn().unwrap();
        let pid = Pid::from_child(&python);
        let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
        let start = Instant::now();
        while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
            assert!(start.elapsed() < Duration::from_secs(20), "the first thread goes on");
            thread::sleep(Duration::from_millis(5));
        }
        let found = descendants(getpid()).unwrap().contains(&pid);
        python.kill().unwrap();
        python.wait().unwrap();
        assert!(found);
    }
}
