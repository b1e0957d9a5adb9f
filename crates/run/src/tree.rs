//! The processes of a run: everything below a subreaper, found through `/proc` and ended.
//!
//! A process can fork between the look and the kill, so this looks again until nothing is left. Nothing can
//! leave the tree: a subreaper adopts whatever loses its parent.

use std::collections::HashMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};

/// A process as `/proc/PID/stat` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    pid: i32,
    parent: i32,
    zombie: bool,
}

/// Reads one line of `/proc/PID/stat`. The name in it may hold anything, blanks and brackets included, so
/// the fields are counted from its last bracket.
fn parse_stat(stat: &str) -> Option<Entry> {
    let pid = stat.split(' ').next()?.parse().ok()?;
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let zombie = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    Some(Entry { pid, parent, zombie })
}

fn processes() -> Vec<Entry> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit))
        .filter_map(|entry| parse_stat(&String::from_utf8_lossy(&fs::read(entry.path().join("stat")).ok()?)))
        .collect()
}

/// All living processes below `root`, itself excluded, zombies excluded.
pub fn descendants(root: Pid) -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<Entry>> = HashMap::new();
    for entry in processes() {
        children.entry(entry.parent).or_default().push(entry);
    }
    let mut found = Vec::new();
    let mut queue = vec![root.as_raw_nonzero().get()];
    while let Some(parent) = queue.pop() {
        for entry in children.remove(&parent).unwrap_or_default() {
            queue.push(entry.pid);
            if !entry.zombie {
                found.extend(Pid::from_raw(entry.pid));
            }
        }
    }
    found
}

/// Reaps whatever children have ended. Only for processes that wait for no child of theirs in another way.
pub fn reap() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// Ends everything below this process and returns what could not be ended within `limit`.
pub fn kill_descendants(limit: Duration) -> Vec<Pid> {
    let start = Instant::now();
    loop {
        let left = descendants(getpid());
        if left.is_empty() {
            reap();
            return left;
        }
        for pid in &left {
            // It may have ended by itself since; one that may not be signalled is reported in the end.
            let _ = kill_process(*pid, Signal::KILL);
        }
        reap();
        if start.elapsed() > limit {
            return descendants(getpid());
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Children of this process that have ended, that nobody in `keep` claims, and that were already so when
/// `seen` was filled: adopted orphans. Reaps them, and notes the new ones in `seen`.
pub fn reap_orphans(keep: &[Pid], seen: &mut Vec<i32>) {
    let me = getpid().as_raw_nonzero().get();
    let zombies: Vec<i32> = processes()
        .into_iter()
        .filter(|entry| entry.parent == me && entry.zombie)
        .map(|entry| entry.pid)
        .filter(|pid| !keep.iter().any(|kept| kept.as_raw_nonzero().get() == *pid))
        .collect();
    for pid in &zombies {
        if seen.contains(pid) {
            let _ = rustix::process::waitpid(Pid::from_raw(*pid), WaitOptions::NOHANG);
        }
    }
    *seen = zombies;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_name_with_brackets_and_blanks_does_not_confuse() {
        let entry = parse_stat("12 (a) S 9 (b)) Z 7 12 12 0").unwrap();
        assert_eq!(entry, Entry { pid: 12, parent: 7, zombie: true });
        assert_eq!(parse_stat("garbage"), None);
        assert_eq!(parse_stat("1 (x)"), None);
    }

    #[test]
    fn grandchildren_are_descendants() {
        let mut shell = Command::new("sh").args(["-c", "sleep 30 & sleep 30; true"]).spawn().unwrap();
        let root = Pid::from_child(&shell);
        let start = Instant::now();
        while descendants(root).len() < 2 && start.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(5));
        }
        let below = descendants(root);
        assert_eq!(below.len(), 2);
        for pid in below {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = shell.kill();
        shell.wait().unwrap();
    }
}
