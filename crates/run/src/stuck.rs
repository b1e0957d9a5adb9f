//! A launcher that has deadlocked.
//!
//! Open MPI 4.1's mpirun may deadlock if a rank dies while it connects to it: mpirun waits for a mutex of its own PMIx
//! for ever, reaps none of its children, and does not handle SIGTERM. Only the process that started it can end the run
//! then. A launcher is taken to be stuck if several checks in a row find all of this: a child has ended and was not
//! reaped, the main thread waits on a futex and has used no processor time since the first check, and no thread writes.
//! A launcher that is stopped, traced or held up by its reader is not stuck. Other launchers are not watched: the main
//! thread of Open MPI 5's waits for threads of its own.

use std::fs;
use std::thread;
use std::time::Duration;

use isthmus_guest::processes::{self, Process};
use rustix::process::Pid;

const CHECK_EVERY: Duration = Duration::from_millis(500);
/// Checks that must have found the same, the first included.
const CHECKS: u32 = 5;

/// What the checks have found so far.
#[derive(Debug)]
struct Watch {
    launcher: i32,
    /// Children that had ended by the first of these checks.
    ended: Vec<i32>,
    ticks: u64,
    checks: u32,
}

impl Watch {
    const fn new(launcher: i32) -> Self {
        Self { launcher, ended: Vec::new(), ticks: 0, checks: 0 }
    }

    /// Checks once more; returns the child that the launcher does not reap, once that is certain.
    fn check(&mut self) -> Option<i32> {
        let ticks = processes::processor_ticks(self.launcher);
        let Some(ticks) = ticks.filter(|_| waits_on_futex(self.launcher) && !writes(self.launcher)) else {
            self.checks = 0;
            return None;
        };
        let ended = |pid: &i32| {
            let stat = processes::one(*pid);
            matches!(stat, Some(Process { zombie: true, parent, .. }) if parent == self.launcher)
        };
        if self.checks == 0 || ticks != self.ticks {
            self.ended = processes::children(self.launcher).into_iter().filter(ended).collect();
            (self.ticks, self.checks) = (ticks, 0);
        } else {
            self.ended.retain(ended);
        }
        let first = self.ended.first().copied();
        self.checks = if first.is_some() { self.checks + 1 } else { 0 };
        first.filter(|_| self.checks >= CHECKS)
    }
}

fn waits_on_futex(pid: i32) -> bool {
    place_of(&format!("/proc/{pid}")).starts_with("futex")
}

/// Where in the kernel a thread waits.
fn place_of(thread: &str) -> String {
    fs::read_to_string(format!("{thread}/wchan")).unwrap_or_default()
}

/// Whether a thread is held up in a write, for want of a reader: the main thread may then wait for that thread.
fn writes(pid: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.map(|thread| thread.path()).any(|thread| place_of(&thread.to_string_lossy()).contains("write"))
}

/// Watches the launcher from a thread of its own, for as long as it lives; calls `tell` at most once, with the child's
/// number.
pub(crate) fn watch(launcher: Pid, tell: impl FnOnce(i32) + Send + 'static) {
    let mut watch = Watch::new(launcher.as_raw_nonzero().get());
    let checks = move || {
        while processes::one(watch.launcher).is_some_and(|process| !process.zombie) {
            if let Some(child) = watch.check() {
                tell(child);
                return;
            }
            thread::sleep(CHECK_EVERY);
        }
    };
    // Without this thread, the user must end a run that is stuck.
    let _ = thread::Builder::new().name("stuck".into()).spawn(checks);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    fn checks_find(watch: &mut Watch, checks: u32) -> Option<i32> {
        (0..checks).find_map(|_| {
            thread::sleep(Duration::from_millis(20));
            watch.check()
        })
    }

    #[test]
    fn a_process_that_waits_for_its_input_is_not_stuck() {
        let mut child =
            Command::new("sh").args(["-c", "true & exec cat"]).stdin(Stdio::piped()).spawn().unwrap();
        let mut watch = Watch::new(i32::try_from(child.id()).unwrap());
        assert_eq!(checks_find(&mut watch, 3 * CHECKS), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// A process that waits for a lock of its own, beside a child that does `then` and a thread that does `beside`.
    fn locked(then: &str, beside: &str) -> Child {
        let line = format!(
            "import os, threading, time
if os.fork() == 0: {then}
def beside(): {beside}
threading.Thread(target=beside, daemon=True).start()
lock = threading.Lock()
lock.acquire()
os.write(2, b'ready\\n')
lock.acquire()"
        );
        let mut child = Command::new("python3");
        let mut child =
            child.args(["-c", &line]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(child.stderr.as_mut().unwrap(), &mut [0; 6]).unwrap();
        child
    }

    #[test]
    fn a_process_that_waits_for_a_lock_beside_living_children_or_for_its_reader_is_not_stuck() {
        for (then, beside) in [("time.sleep(20)", "pass"), ("os._exit(0)", "os.write(1, bytes(1 << 20))")] {
            let mut child = locked(then, beside);
            let mut watch = Watch::new(i32::try_from(child.id()).unwrap());
            assert_eq!(checks_find(&mut watch, 3 * CHECKS), None, "{then}, {beside}");
            for pid in processes::children(watch.launcher) {
                let _ =
                    rustix::process::kill_process(Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL);
            }
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_process_that_waits_for_its_own_lock_and_not_for_its_child_is_stuck() {
        let mut child = locked("os._exit(0)", "pass");
        let launcher = i32::try_from(child.id()).unwrap();
        let children = processes::children(launcher);
        assert_eq!(children.len(), 1);
        let mut watch = Watch::new(launcher);
        assert_eq!(checks_find(&mut watch, CHECKS - 1), None);
        // It may have used a little time at first.
        assert_eq!(checks_find(&mut watch, 3 * CHECKS), Some(children[0]));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
