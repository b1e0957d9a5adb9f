//! Process 1 inherits every orphan and must wait for it, or the process table fills up.
//!
//! It must not take the exit status of the agent's own children from the threads that wait for them, and no system
//! call waits for "any child but these". So children that the agent may wait for late are registered with [`own`];
//! any other process that is dead at two checks in a row is an orphan, and is reaped.

use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions};
use std::collections::BTreeSet;
use std::fs;
use std::sync::Mutex;
use std::time::Duration;

/// Between two checks. Threads that wait for a child without [`own`] do so well within this time.
const PAUSE: Duration = Duration::from_secs(2);

static OWNED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Keeps the reaper from a child until this is dropped. Take it right after the spawn.
#[must_use]
pub struct Owned {
    pid: u32,
}

/// Registers a child that its parent will wait for, however late.
pub fn own(pid: u32) -> Owned {
    owned().insert(pid);
    Owned { pid }
}

impl Drop for Owned {
    fn drop(&mut self) {
        owned().remove(&self.pid);
    }
}

fn owned() -> std::sync::MutexGuard<'static, BTreeSet<u32>> {
    // A set of numbers is whole even if a holder panicked.
    OWNED.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Starts the thread that reaps orphans.
pub(super) fn start() {
    std::thread::spawn(|| {
        let mut before = BTreeSet::new();
        loop {
            std::thread::sleep(PAUSE);
            before = reap(&before);
        }
    });
}

/// Reaps the children that were dead at the last check, too. Returns those that are dead now.
fn reap(before: &BTreeSet<u32>) -> BTreeSet<u32> {
    // One cheap call while no child is dead.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if !matches!(rustix::process::waitid(WaitId::All, options), Ok(Some(_))) {
        return BTreeSet::new();
    }
    let dead = dead_children();
    let owned = owned().clone();
    for &pid in dead.intersection(before).filter(|pid| !owned.contains(pid)) {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        // Fails if another thread has waited for it just now.
        let _ = rustix::process::waitpid(pid, WaitOptions::NOHANG);
    }
    dead
}

fn dead_children() -> BTreeSet<u32> {
    let me = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            (state_and_parent(&stat)? == ('Z', me)).then_some(pid)
        })
        .collect()
}

/// From `/proc/PID/stat` (proc(5)): the program's name is in brackets and may hold anything, brackets included.
fn state_and_parent(stat: &str) -> Option<(char, u32)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_and_parent_survive_odd_names() {
        assert_eq!(state_and_parent("12 (a) Z 3) Z 1 12 0"), Some(('Z', 1)));
        assert_eq!(state_and_parent("rubbish"), None);
    }

    #[test]
    fn dead_children_are_reaped_at_the_second_check_unless_owned() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let owned = own(child.id());
        let pid = child.id();
        while !dead_children().contains(&pid) {
            std::thread::yield_now();
        }
        let before = reap(&BTreeSet::new());
        assert!(before.contains(&pid));
        let again = reap(&before);
        assert!(again.contains(&pid), "an owned child was taken");
        drop(owned);
        assert!(child.wait().unwrap().success());
        let mut orphan = std::process::Command::new("true").spawn().unwrap();
        let pid = orphan.id();
        while !dead_children().contains(&pid) {
            std::thread::yield_now();
        }
        let _ = reap(&BTreeSet::from([pid]));
        assert!(!dead_children().contains(&pid));
        assert!(orphan.wait().is_err());
    }
}
