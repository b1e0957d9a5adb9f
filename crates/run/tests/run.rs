//! Whole runs, with real launchers and our own: natively, and with stand-ins for VMs (see `examples/bare.rs`), so that PRRTE's
//! and Hydra's daemons really start through the remote shell.
//!
//! The MPIs are those of `ISTHMUS_TEST_MPI` (directories, with colons between) or of `build/mpi`; without any, and for
//! stand-ins without root, a test says `skipped:` and why; in CI it fails.

#![allow(clippy::disallowed_types)] // orderings of the test's own threads

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use isthmus_guest::processes;
use isthmus_run::{Launcher, Map, Net, RunSpec, VmOptions, rundir, runs, tree};
use rustix::process::{Pid, Signal, kill_process};

const PROMPT: Duration = Duration::from_secs(5);
static RUNS: AtomicU32 = AtomicU32::new(0);

fn program() -> PathBuf {
    let mut dir = std::env::current_exe().unwrap();
    dir.pop();
    dir.pop();
    dir.join("examples/bare")
}

/// Prints that something is not tested, in a line of its own that the harness does not capture. In CI that is a failure.
fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped: {why}");
    let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("\nskipped: {why}\n").as_bytes());
}

fn mpis() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let named = std::env::var_os("ISTHMUS_TEST_MPI");
    let dirs: Vec<PathBuf> = match &named {
        Some(list) => std::env::split_paths(list).collect(),
        None => ["openmpi", "mpich"].iter().map(|name| root.join("build/mpi").join(name)).collect(),
    };
    let (found, missing): (Vec<_>, Vec<_>) =
        dirs.into_iter().partition(|dir| dir.join("bin/mpirun").exists());
    for dir in missing {
        assert!(named.is_none(), "ISTHMUS_TEST_MPI: {} holds no bin/mpirun", dir.display());
        skip(&format!("no MPI in {}; scripts/install-mpi makes it", dir.display()));
    }
    found
}

/// Stands for the directory of an MPI where there is none: our own launcher starts the processes.
const NO_MPI: &str = "none";

/// All launchers: those of the MPIs, and our own.
fn launchers() -> Vec<PathBuf> {
    mpis().into_iter().chain([NO_MPI.into()]).collect()
}

fn may_stand_in() -> bool {
    // A stand-in maps one user only, to root.
    if !rustix::process::geteuid().is_root() {
        skip("no stand-ins for VMs without root");
        return false;
    }
    let run = |words: &[&str]| Command::new("unshare").args(words).stdin(Stdio::null()).output();
    let said = |words: &[&str]| match run(words) {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(e) => Some(format!("unshare: {e}")),
    };
    if let Some(why) = said(&["-Urn", "--pid", "--fork", "--mount-proc", "true"]) {
        skip(&format!("no stand-ins for VMs without name spaces: {why}"));
        return false;
    }
    // Anything else that is missing could be installed.
    let bridge = said(&["-Urn", "ip", "link", "add", "x", "type", "bridge"]);
    assert!(bridge.is_none(), "stand-ins need `ip` and bridges: {}", bridge.unwrap_or_default());
    true
}

/// A run, and what would be left of it.
struct Run {
    child: Child,
    mark: String,
    home: tempfile::TempDir,
}

struct Ended {
    status: i32,
    stdout: String,
    stderr: String,
}

impl Run {
    fn start(mpi: &Path, spec: RunSpec, command: &[&str]) -> Self {
        Self::start_below(&[], mpi, spec, command)
    }

    /// As [`Run::start`], with the words of `prefix` before the run's.
    fn start_below(prefix: &[&str], mpi: &Path, spec: RunSpec, command: &[&str]) -> Self {
        Self::start_with(prefix, mpi, spec, command, Stdio::null())
    }

    fn start_with(prefix: &[&str], mpi: &Path, spec: RunSpec, command: &[&str], input: Stdio) -> Self {
        let spec = match mpi.to_str().unwrap() {
            NO_MPI => RunSpec { launcher: Launcher::None, ..spec },
            mpi => RunSpec { mpi: Some(mpi.into()), ..spec },
        };
        // Relaxed: it is enough that no two are the same.
        let mark = format!("isthmus-test-{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
        let home = tempfile::Builder::new().prefix("isthmus-t").tempdir_in("/tmp").unwrap();
        let mut words: Vec<OsString> = prefix.iter().map(OsString::from).collect();
        words.push(program().into());
        let child = Command::new(&words[0])
            .args(&words[1..])
            .arg(serde_json::to_string(&spec).unwrap())
            .args(command)
            .env("ISTHMUS_TEST_MARK", &mark)
            .env("XDG_RUNTIME_DIR", home.path())
            .envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")])
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // As a shell with job control starts it: what stops can be continued.
            .process_group(0)
            .spawn()
            .unwrap();
        Self { child, mark, home }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn wait_for_line(&mut self, wanted: &str) {
        self.wait_for_lines(wanted, 1);
    }

    fn wait_for_lines(&mut self, wanted: &str, count: usize) {
        let mut lines = BufReader::new(self.child.stdout.take().unwrap()).lines();
        let found = lines.by_ref().filter(|line| line.as_ref().unwrap().contains(wanted)).take(count).count();
        assert!(found == count, "{wanted} came {found} times: {}", self.finish().stderr);
        // The pipe stays open: a launcher that cannot write would end for that reason.
        std::thread::spawn(move || lines.for_each(drop));
    }

    /// The process below this one with `word` in its command line.
    fn process(&self, word: &str) -> Pid {
        let start = Instant::now();
        loop {
            let found = tree::descendants(self.pid()).unwrap().into_iter().find(|pid| {
                let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
                line.split(|b| *b == 0).any(|part| part == word.as_bytes())
            });
            if let Some(pid) = found {
                return pid;
            }
            assert!(start.elapsed() < PROMPT, "no process {word}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn finish(&mut self) -> Ended {
        let read = |pipe: Option<&mut dyn Read>| {
            let mut text = Vec::new();
            if let Some(pipe) = pipe {
                pipe.read_to_end(&mut text).unwrap();
            }
            String::from_utf8_lossy(&text).into_owned()
        };
        let mut stdout = self.child.stdout.take();
        let mut stderr = self.child.stderr.take();
        let out = std::thread::spawn(move || read(stdout.as_mut().map(|p| p as &mut dyn Read)));
        let stderr = read(stderr.as_mut().map(|p| p as &mut dyn Read));
        let status = self.child.wait().unwrap();
        let status = status.code().unwrap_or(-1);
        Ended { status, stdout: out.join().unwrap(), stderr }
    }

    /// Processes that carry this run's mark, without zombies.
    fn living(&self) -> Vec<i32> {
        marked_processes(&self.mark)
    }

    /// The run's directory and its twin, as far as they exist.
    fn directories(&self) -> Vec<PathBuf> {
        let own = fs::read_dir(self.home.path()).unwrap().flatten().map(|entry| entry.path());
        let twins = own.flat_map(|dir| [rundir::shm_twin(&dir), dir]).filter(|dir| dir.exists());
        twins.collect()
    }

    fn assert_nothing_left(&self, case: &str) {
        let start = Instant::now();
        while !self.living().is_empty() || !self.directories().is_empty() {
            assert!(
                start.elapsed() < PROMPT,
                "{case}: left are processes {:?} and directories {:?}",
                self.living(),
                self.directories()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn marked_processes(mark: &str) -> Vec<i32> {
    let mark = format!("ISTHMUS_TEST_MARK={mark}").into_bytes();
    let marked = |pid: i32| {
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|env| env.split(|b| *b == 0).any(|variable| variable == mark))
    };
    processes::all().unwrap().iter().filter(|p| !p.zombie && marked(p.pid)).map(|p| p.pid).collect()
}

/// The processes of a run: their states, where in the kernel they wait, and their pending signals.
fn states(mark: &str) -> String {
    let state = |pid: &i32| {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let status = read("status");
        let wanted = ["Name", "State", "PPid", "SigPnd", "ShdPnd", "Threads"];
        let fields = status.lines().filter(|line| wanted.iter().any(|name| line.starts_with(name)));
        format!("{pid}: {} {}", fields.collect::<Vec<_>>().join(" ").replace('\t', " "), read("wchan"))
    };
    marked_processes(mark).iter().map(state).collect::<Vec<_>>().join("\n")
}

fn words(line: &[&str]) -> Vec<OsString> {
    line.iter().map(OsString::from).collect()
}

fn native(ranks: u32) -> RunSpec {
    RunSpec { ranks: Some(ranks), ..RunSpec::default() }
}

const WORK: [&str; 3] = ["sh", "-c", "echo ready; sleep 100 & sleep 100"];

#[test]
fn the_status_is_the_launchers_own() {
    for mpi in launchers() {
        for (script, expected) in [("exit 0", 0), ("exit 3", 3)] {
            let mut run = Run::start(&mpi, native(3), &["sh", "-c", script]);
            let ended = run.finish();
            assert_eq!(ended.status, expected, "{}", ended.stderr);
            run.assert_nothing_left(script);
        }
    }
}

#[test]
fn a_full_line_is_run_as_it_was_written() {
    for mpi in mpis() {
        let line = ["mpirun", "-n", "1", "echo", "first", ":", "-n", "1", "echo", "second"];
        let ended = Run::start(&mpi, RunSpec::default(), &line).finish();
        let count = |word| ended.stdout.lines().filter(|line| *line == word).count();
        assert_eq!((ended.status, count("first"), count("second")), (0, 1, 1), "{}", ended.stderr);
    }
}

#[test]
fn our_own_statuses_come_with_one_line() {
    for mpi in launchers() {
        let timed = RunSpec { timeout_s: Some(0.5), ..native(2) };
        let nowhere = RunSpec { vms: 0, mpi_args: words(&["-x"]), ..RunSpec::default() };
        for (spec, command, status) in
            [(timed, vec!["sleep", "100"], 124), (nowhere, vec!["mpirun", "true"], 2), (native(2), vec![], 2)]
        {
            let mut run = Run::start(&mpi, spec, &command);
            let ended = run.finish();
            assert_eq!(ended.status, status, "{}", ended.stderr);
            let lines = ended.stderr.lines().filter(|line| line.starts_with("isthmus: ")).count();
            assert_eq!(lines, 1, "{}", ended.stderr);
            run.assert_nothing_left("own status");
        }
    }
    let ended = Run::start(Path::new("/nowhere"), native(1), &["true"]).finish();
    assert_eq!(ended.status, 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("--mpi DIR"), "{}", ended.stderr);
}

#[test]
fn signals_reach_the_launcher_and_what_it_makes_of_them_is_its_own() {
    for mpi in launchers() {
        let script = "trap 'echo heard; exit 7' USR1; echo ready; while :; do sleep 0.05; done";
        let mut run = Run::start(&mpi, native(1), &["sh", "-c", script]);
        run.wait_for_line("ready");
        kill_process(run.pid(), Signal::USR1).unwrap();
        assert_eq!(run.finish().status, 7);
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            // Hydra passes an interrupt on to the ranks only, and a shell would wait for its child.
            let mut run = Run::start(&mpi, native(2), &["sh", "-c", "echo ready; exec sleep 100"]);
            // Both: Hydra forgets a signal that comes while it starts processes.
            run.wait_for_lines("ready", 2);
            let start = Instant::now();
            kill_process(run.pid(), signal).unwrap();
            let ended = run.finish();
            assert_ne!(ended.status, 0, "{signal:?}");
            let took = start.elapsed();
            assert!(took < PROMPT, "{}: {signal:?} took {took:?}: {}", mpi.display(), ended.stderr);
            run.assert_nothing_left("signal");
        }
    }
}

#[test]
fn a_second_interrupt_kills() {
    for mpi in launchers() {
        let stubborn = "trap '' INT TERM; echo ready; while :; do sleep 1; done";
        let mut run = Run::start(&mpi, native(1), &["sh", "-c", stubborn]);
        run.wait_for_line("ready");
        kill_process(run.pid(), Signal::INT).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let _ = kill_process(run.pid(), Signal::INT);
        let start = Instant::now();
        run.finish();
        assert!(start.elapsed() < PROMPT);
        run.assert_nothing_left("second interrupt");
    }
}

#[test]
fn stop_and_continue_leave_the_run_alive() {
    let state = |pid: Pid| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
        stat[stat.rfind(')').unwrap() + 2..].chars().next().unwrap()
    };
    for mpi in launchers() {
        let mut run = Run::start(&mpi, native(1), &["sh", "-c", "echo ready; sleep 1; exit 5"]);
        run.wait_for_line("ready");
        kill_process(run.pid(), Signal::TSTP).unwrap();
        let start = Instant::now();
        while state(run.pid()) != 'T' {
            assert!(start.elapsed() < PROMPT, "the front does not stop");
            std::thread::sleep(Duration::from_millis(10));
        }
        kill_process(run.pid(), Signal::CONT).unwrap();
        assert_eq!(run.finish().status, 5);
        run.assert_nothing_left("stopped and continued");
    }
}

#[test]
fn what_a_shell_started_before_it_became_the_run_is_left_alone() {
    let prefix = ["sh", "-c", "sleep 300 >/dev/null 2>&1 & exec \"$@\"", "sh"];
    let mut run =
        Run::start_below(&prefix, Path::new(NO_MPI), own(1), &["sh", "-c", "sleep 300 & echo done"]);
    let ended = run.finish();
    assert_eq!((ended.status, ended.stdout.as_str()), (0, "done\n"), "{}", ended.stderr);
    let left = run.living();
    for pid in &left {
        let _ = kill_process(Pid::from_raw(*pid).unwrap(), Signal::KILL);
    }
    assert_eq!(left.len(), 1, "the shell's, and none of the run's");
    run.assert_nothing_left("what was there before");
}

#[test]
fn what_a_process_of_before_leaves_behind_during_the_run_is_left_alone() {
    // The first shell is a child of what becomes the run, and its `sleep` an orphan by the end.
    let prefix = ["sh", "-c", "(sleep 0.3; sleep 300 & exit) >/dev/null 2>&1 & exec \"$@\"", "sh"];
    let mut run = Run::start_below(&prefix, Path::new(NO_MPI), own(1), &["sh", "-c", "sleep 1; echo done"]);
    let ended = run.finish();
    assert_eq!((ended.status, ended.stdout.as_str()), (0, "done\n"), "{}", ended.stderr);
    let left = run.living();
    for pid in &left {
        let _ = kill_process(Pid::from_raw(*pid).unwrap(), Signal::KILL);
    }
    assert_eq!(left.len(), 1, "the orphan");
    run.assert_nothing_left("what was left behind meanwhile");
}

#[test]
fn what_cannot_be_handed_on_is_refused_at_once() {
    use std::os::unix::ffi::OsStringExt;
    let odd = PathBuf::from(OsString::from_vec(b"/tmp/isthmus-\xff".to_vec()));
    let spec = RunSpec { stats: Some(odd), command: words(&["true"]), ..own(1) };
    assert!(spec.check().unwrap_err().line().contains("not UTF-8"));
}

/// Kills the processes that `victims` names, in this order and without a pause, and expects that nothing is left.
fn kill(mpi: &Path, spec: &RunSpec, victims: &[&str]) {
    let mut run = Run::start(mpi, spec.clone(), &WORK);
    run.wait_for_line("ready");
    let pids: Vec<Pid> =
        victims.iter().map(|name| if *name == "front" { run.pid() } else { run.process(name) }).collect();
    let case = format!("killed {victims:?}, {} VMs", spec.vms);
    let start = Instant::now();
    for pid in pids {
        kill_process(pid, Signal::KILL).unwrap();
    }
    let mark = run.mark.clone();
    let (ends, end) = mpsc::channel::<()>();
    // What is still alive when the run should have ended.
    let late = std::thread::spawn(move || {
        end.recv_timeout(PROMPT * 3)
            .is_err_and(|e| e == mpsc::RecvTimeoutError::Timeout)
            .then(|| states(&mark))
    });
    let ended = run.finish();
    drop(ends);
    let late = late.join().unwrap();
    assert!(late.is_none(), "{case} took {:?}, where these lived on:\n{}", start.elapsed(), late.unwrap());
    if !victims.contains(&"front") {
        assert_ne!(ended.status, 0, "{case}");
    }
    run.assert_nothing_left(&case);
}

#[test]
fn whichever_process_is_killed_nothing_stays_behind() {
    let stand_in = may_stand_in();
    for mpi in launchers() {
        let specs = [Some(native(2)), stand_in.then(|| RunSpec { vms: 2, ..native(2) })];
        for spec in specs.iter().flatten() {
            for victims in [
                &["front"][..],
                &["guardian"],
                &["job"],
                &["front", "guardian"],
                &["guardian", "front"],
                &["guardian", "job"],
                &["job", "front"],
            ] {
                kill(&mpi, spec, victims);
            }
        }
    }
}

#[test]
fn daemons_are_started_through_the_remote_shell() {
    if !may_stand_in() {
        return;
    }
    for mpi in launchers() {
        let spec = RunSpec { vms: 2, ..native(3) };
        let script =
            "echo host=$(hostname) dir=$PWD mark=$ISTHMUS_TEST_MARK mask=$(umask); echo to-err >&2; exit 0";
        let mut run = Run::start(&mpi, spec, &["sh", "-c", script]);
        let ended = run.finish();
        assert_eq!(ended.status, 0, "{}", ended.stderr);
        let here = std::env::current_dir().unwrap();
        let line = |host: &str| {
            ended.stdout.lines().filter(|line| line.starts_with(&format!("host={host} "))).count()
        };
        assert_eq!((line("vm0"), line("vm1")), (2, 1), "{}", ended.stdout);
        for line in ended.stdout.lines() {
            assert!(line.contains(&format!("dir={} mark={}", here.display(), run.mark)), "{line}");
        }
        assert_eq!(ended.stderr.lines().filter(|line| *line == "to-err").count(), 3);
        assert!(ended.stderr.contains("vm1:/srv/result (5 bytes)"), "{}", ended.stderr);
        run.assert_nothing_left("through the remote shell");
    }
}

#[test]
fn much_output_arrives_whole() {
    if !may_stand_in() {
        return;
    }
    for mpi in launchers() {
        let spec = RunSpec { vms: 2, ..native(2) };
        let mut run = Run::start(&mpi, spec, &["sh", "-c", "seq 1 300000"]);
        let ended = run.finish();
        // Lines of two ranks may be cut into each other, but no byte is lost or made.
        let count = |text: &str| {
            text.bytes().fold([0u64; 256], |mut counts, byte| {
                counts[usize::from(byte)] += 1;
                counts
            })
        };
        let expected = (1..=300_000).map(|i| format!("{i}\n")).collect::<String>().repeat(2);
        assert_eq!(ended.status, 0, "{}", ended.stderr);
        assert!(count(&ended.stdout) == count(&expected), "{} bytes came", ended.stdout.len());
    }
}

#[test]
fn output_waits_for_its_reader() {
    if !may_stand_in() {
        return;
    }
    // Of some of these lengths the last bytes are still in the process's pipe when it ends, and nobody reads.
    let start = |kib: usize| {
        let command = format!("head -c {} /dev/zero | tr '\\0' x", kib << 10);
        let spec = RunSpec { vms: 1, ..own(1) };
        (kib << 10, Run::start(Path::new(NO_MPI), spec, &["sh", "-c", &command]))
    };
    let runs: Vec<_> = (128..=208).step_by(16).map(start).collect();
    std::thread::sleep(Duration::from_secs(6));
    for (bytes, mut run) in runs {
        let ended = run.finish();
        assert_eq!((ended.status, ended.stdout.len()), (0, bytes), "{}", ended.stderr);
    }
}

/// Ranks of a short job: the first one stops the launcher until all have ended, and its input, too. The last one fails.
const ENDS_UNSEEN: &str = r#"
grep -q '^SigIgn:.*[13579bdf]...$' /proc/self/status && echo 'SIGPIPE is ignored'
[ "$PMI_RANK" = 39 ] && exit 3
[ "$PMI_RANK" = 38 ] && { tr '\0' '\n' </proc/$$/environ | grep -q '^ISTHMUS.TEST-WORD=kept$' || echo 'a variable is lost'; }
[ "$PMI_RANK" = 0 ] || exit 0
launcher=$(sed -n 's/^PPid:.//p' /proc/$PPID/status)
kill -STOP $launcher
setsid sh -c "sleep 0.7; kill -CONT $launcher" </dev/null >/dev/null 2>&1 &
"#;

#[test]
fn a_launcher_survives_a_proxy_that_ends_before_its_input() {
    for mpi in mpis().iter().filter(|mpi| mpi.join("bin/hydra_pmi_proxy").exists()) {
        // Not each round comes to it: without a remedy four of five did.
        for _ in 0..3 {
            let mut input = Command::new("sleep").arg("0.6").stdout(Stdio::piped()).spawn().unwrap();
            let stdin = Stdio::from(input.stdout.take().unwrap());
            // A name that no shell would hand on.
            let spec = RunSpec { env: vec!["ISTHMUS.TEST-WORD=kept".into()], ..native(40) };
            let mut run = Run::start_with(&[], mpi, spec, &["sh", "-c", ENDS_UNSEEN], stdin);
            let ended = run.finish();
            input.wait().unwrap();
            assert_eq!((ended.status, ended.stdout.as_str()), (3, ""), "{}", ended.stderr);
            run.assert_nothing_left("a short job");
        }
    }
}

#[test]
fn ranks_on_the_host_come_first() {
    if !may_stand_in() {
        return;
    }
    for mpi in launchers() {
        let spec = RunSpec { vms: 1, host_ranks: 1, ..native(2) };
        let script = "echo ${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-$ISTHMUS_RANK}}=$(hostname)";
        let ended = Run::start(&mpi, spec, &["sh", "-c", script]).finish();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let mut lines: Vec<&str> = ended.stdout.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, [format!("0={host}"), "1=vm0".into()], "{}", ended.stderr);
    }
}

#[test]
fn a_lost_vm_is_named_soon_and_ends_the_run() {
    if !may_stand_in() {
        return;
    }
    for mpi in launchers() {
        let mut run = Run::start(&mpi, RunSpec { vms: 2, ..native(2) }, &WORK);
        run.wait_for_line("ready");
        let start = Instant::now();
        // Its first process ends all of it, as QEMU's end ends a VM.
        kill_process(run.process("stand-in"), Signal::KILL).unwrap();
        let ended = run.finish();
        assert!(start.elapsed() < PROMPT, "took {:?}", start.elapsed());
        assert_eq!(ended.status, 126, "{}", ended.stderr);
        let named =
            ended.stderr.lines().any(|line| line.contains("isthmus: VM vm") && line.contains("was lost"));
        assert!(named && ended.stderr.contains("the last line"), "{}", ended.stderr);
        run.assert_nothing_left("lost VM");
    }
}

/// Begins a line that runs on a host whose only interface is the loopback one.
const LOOPBACK_ONLY: [&str; 6] = ["unshare", "--net", "sh", "-c", "ip link set lo up; exec \"$@\"", "sh"];

#[test]
fn a_host_without_a_network_is_host_enough() {
    if !may_stand_in() {
        return;
    }
    for mpi in launchers() {
        for spec in [RunSpec { vms: 2, ..native(2) }, RunSpec { vms: 2, host_ranks: 1, ..native(3) }] {
            let ranks = spec.ranks;
            let mut run = Run::start_below(&LOOPBACK_ONLY, &mpi, spec, &["sh", "-c", "echo on $(hostname)"]);
            let ended = run.finish();
            let came = ended.stdout.lines().filter(|line| line.starts_with("on ")).count();
            assert_eq!(
                (ended.status, u32::try_from(came).ok()),
                (0, ranks),
                "{}{}",
                ended.stdout,
                ended.stderr
            );
            for vm in ["on vm0", "on vm1"] {
                assert!(ended.stdout.lines().any(|line| line == vm), "{}", ended.stdout);
            }
            run.assert_nothing_left("loopback only");
        }
    }
}

/// An MPI whose launcher is `script`, which finds the remote shell in `$shell`.
fn launcher(script: &str) -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bin/mpirun");
    fs::create_dir(path.parent().unwrap()).unwrap();
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && {{ echo 'mpirun (Open MPI) 5.0.11'; exit; }}\n\
         shell=$PRTE_MCA_plm_ssh_agent\n{script}\n"
    );
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

#[test]
fn a_launcher_that_claims_success_is_not_believed_where_a_daemon_failed() {
    if !may_stand_in() {
        return;
    }
    for (script, status, says) in [
        ("$shell vm0 exit 0; exit 0", 0, ""),
        ("$shell vm0 exit 3; exit 5", 5, ""),
        ("$shell vm0 exit 3; exit 0", 125, "its daemon in VM vm0 ended with status 3"),
        ("$shell vm1 'kill -11 $$'; exit 0", 125, "its daemon in VM vm1 was killed by signal 11"),
        (
            "$shell vm1 sleep 100 & sleep 1; kill -9 $!; exit 0",
            125,
            "its daemon in VM vm1 lost its remote shell",
        ),
        (
            "$shell vm0 'sleep 0.3; exit 3' & sleep 0.1; exit 0",
            125,
            "its daemon in VM vm0 ended with status 3",
        ),
        (
            "$shell vm1 sleep 100 & first=$!; $shell vm0 'sleep 1; exit 3' & sleep 0.7; kill -9 $first; wait; exit 0",
            125,
            "its daemon in VM vm0 ended with status 3",
        ),
        ("$shell nowhere true; exit 0", 125, "no host called nowhere"),
        ("exit 0", 125, "no rank was started"),
    ] {
        let mpi = launcher(script);
        let mut run = Run::start(mpi.path(), RunSpec { vms: 2, ..native(2) }, &["true"]);
        let ended = run.finish();
        assert_eq!(ended.status, status, "{script}: {}", ended.stderr);
        let told: Vec<&str> = ended
            .stderr
            .lines()
            .filter(|line| line.starts_with("isthmus: the MPI's launcher ended with status 0"))
            .collect();
        assert_eq!(told.len(), usize::from(status == 125), "{script}: {}", ended.stderr);
        assert!(told.iter().all(|line| line.contains(says)), "{script}: {}", ended.stderr);
        run.assert_nothing_left(script);
    }
}

#[test]
fn a_launcher_may_be_asked_for_its_version() {
    if !may_stand_in() {
        return;
    }
    for mpi in mpis() {
        let ended =
            Run::start(&mpi, RunSpec { vms: 1, ..RunSpec::default() }, &["mpirun", "--version"]).finish();
        assert_eq!(ended.status, 0, "{}", ended.stderr);
    }
}

#[test]
fn with_a_network_the_launcher_and_the_ranks_on_the_host_are_in_it() {
    if !may_stand_in() {
        return;
    }
    let here = fs::read_link("/proc/self/ns/net").unwrap().to_string_lossy().into_owned();
    for mpi in launchers() {
        for net in [Net::None, Net::Tap] {
            let vm = VmOptions { net, ..VmOptions::default() };
            let spec = RunSpec { vms: 1, host_ranks: 2, vm, ..native(2) };
            let script = "echo $(readlink /proc/self/ns/net) $(readlink /proc/$PPID/ns/net)";
            let mut run = Run::start(&mpi, spec, &["sh", "-c", script]);
            let ended = run.finish();
            assert_eq!(ended.status, 0, "{}", ended.stderr);
            assert_eq!(ended.stdout.lines().count(), 2, "{}", ended.stderr);
            for line in ended.stdout.lines() {
                let (rank, launcher) = line.split_once(' ').unwrap();
                assert_eq!(rank, launcher);
                assert_eq!(rank == here, net == Net::None, "{line}");
            }
            run.assert_nothing_left("in a network");
        }
        let vm = VmOptions { net: Net::Tap, ..VmOptions::default() };
        kill(&mpi, &RunSpec { vms: 1, host_ranks: 2, vm, ..native(2) }, &["front", "guardian"]);
    }
}

#[test]
fn standard_input_reaches_the_first_rank() {
    if !may_stand_in() {
        return;
    }
    for mpi in launchers() {
        // No more than a launcher passes on to a rank on another host, and no end of file: Open MPI does not pass that on.
        let (read, mut write) = std::io::pipe().unwrap();
        let spec = RunSpec { vms: 2, timeout_s: Some(20.0), ..native(2) };
        let script = "[ ${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-$ISTHMUS_RANK}} = 0 ] && { read a; echo \"got $a\"; }; exit 0";
        let mut run = Run::start_with(&[], &mpi, spec, &["sh", "-c", script], read.into());
        std::io::Write::write_all(&mut write, b"a line\n").unwrap();
        let ended = run.finish();
        assert_eq!((ended.status, ended.stdout.as_str()), (0, "got a line\n"), "{}", ended.stderr);
    }
}

#[test]
fn a_signal_while_the_vms_start_ends_the_run() {
    if !may_stand_in() {
        return;
    }
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let spec = RunSpec { vms: 2, ..native(2) };
        let mpi = launcher("exit 0");
        // A stand-in that never answers, as a VM does for seconds.
        let mut run = Run::start_below(&["env", "ISTHMUS_TEST_SLOW=1"], mpi.path(), spec, &["true"]);
        run.process("stand-in");
        kill_process(run.pid(), signal).unwrap();
        let ended = run.finish();
        assert_eq!(ended.status, status, "{}", ended.stderr);
        assert!(ended.stderr.contains("while the VMs were starting"), "{}", ended.stderr);
        run.assert_nothing_left("while starting");
    }
}

#[test]
fn visitors_are_the_jobs_twins_and_leave_no_trace_in_it() {
    if !may_stand_in() {
        return;
    }
    for mpi in launchers() {
        let spec = RunSpec { vms: 1, env: words(&["TWIN=of the job"]), ..native(1) };
        let work = "umask 27; echo ready; while [ ! -e /dev/shm/let-go ]; do sleep 0.1; done";
        let mut run = Run::start(&mpi, spec, &["sh", "-c", work]);
        run.wait_for_line("ready");
        let dir = run.directories().into_iter().find(|dir| dir.join(runs::FILE).exists()).unwrap();
        let visit = |vm: &str, script: &str| {
            let mut visitor = Command::new(program());
            visitor.args(["exec".as_ref(), dir.as_os_str(), vm.as_ref()]).args(["sh", "-c", script]);
            visitor.current_dir("/").env("TWIN", "of the visitor").stdin(Stdio::null());
            visitor.output().unwrap()
        };
        let said = visit("vm0", "echo $(hostname) $TWIN in $PWD; echo err >&2; exit 3");
        let here = std::env::current_dir().unwrap();
        assert_eq!(said.status.code(), Some(3));
        assert_eq!(String::from_utf8_lossy(&said.stdout), format!("vm0 of the job in {}\n", here.display()));
        assert_eq!(said.stderr, b"err\n");
        assert_eq!(visit("vm0", "kill -9 $$").status.code(), Some(137));
        let nowhere = visit("vm1", "true");
        assert_eq!(nowhere.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&nowhere.stderr).contains("no VM is called vm1"));
        // Only the job's own daemons decide its exit status.
        assert_eq!(visit("vm0", "touch /dev/shm/let-go").status.code(), Some(0));
        let ended = run.finish();
        assert_eq!(ended.status, 0, "{}", ended.stderr);
        run.assert_nothing_left("visitors");
    }
}

/// As many processes of our own launcher.
fn own(ranks: u32) -> RunSpec {
    RunSpec { launcher: Launcher::None, ..native(ranks) }
}

#[test]
fn without_an_mpi_each_process_knows_its_number() {
    let stand_in = may_stand_in();
    let (spread, cyclic) =
        (RunSpec { vms: 2, ..own(5) }, RunSpec { vms: 2, host_ranks: 1, map: Map::Cyclic, ..own(5) });
    let one_each = RunSpec { vms: 2, ranks: None, ..own(0) };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for (spec, places) in [
        (own(3), vec!["", "", ""]),
        (spread, vec!["vm0", "vm0", "vm0", "vm1", "vm1"]),
        (cyclic, vec!["", "vm0", "vm1", "vm0", "vm1"]),
        (one_each, vec!["vm0", "vm1"]),
    ] {
        if spec.vms > 0 && !stand_in {
            continue;
        }
        // An argument is passed on as it is, whatever is in it.
        let script = "echo $ISTHMUS_RANK of $ISTHMUS_SIZE on $(hostname): \"$1\"";
        let mut run = Run::start(Path::new(NO_MPI), spec, &["sh", "-c", script, "sh", "a 'b' $c"]);
        let ended = run.finish();
        assert_eq!(ended.status, 0, "{}", ended.stderr);
        let mut lines: Vec<&str> = ended.stdout.lines().collect();
        lines.sort_unstable();
        let place = |place: &&str| if place.is_empty() { host.clone() } else { (*place).to_owned() };
        let expected = places.iter().enumerate();
        let expected =
            expected.map(|(rank, at)| format!("{rank} of {} on {}: a 'b' $c", places.len(), place(at)));
        assert_eq!(lines, expected.collect::<Vec<_>>());
        run.assert_nothing_left("numbers");
    }
}

#[test]
fn more_processes_than_the_callers_soft_limit_has_descriptors_for_have_that_limit_themselves() {
    if !may_stand_in() {
        return;
    }
    let lower = ["sh", "-c", "ulimit -Sn 100; exec \"$@\"", "sh"];
    let spec = RunSpec { timeout_s: Some(120.0), vms: 6, ..own(66) };
    // They go on together, so that the job has all their connections at once.
    let script = "ulimit -Sn; sleep 3";
    let mut run = Run::start_below(&lower, Path::new(NO_MPI), spec, &["sh", "-c", script]);
    let ended = run.finish();
    assert_eq!((ended.status, ended.stdout), (0, "100\n".repeat(66)), "{}", ended.stderr);
    run.assert_nothing_left("descriptors");
    // Where the limit cannot be raised, the line that says why comes once.
    let lower = ["sh", "-c", "ulimit -n 100; exec \"$@\"", "sh"];
    let spec = RunSpec { timeout_s: Some(10.0), vms: 6, ..own(66) };
    let mut run = Run::start_below(&lower, Path::new(NO_MPI), spec, &["sh", "-c", "sleep 30"]);
    let ended = run.finish();
    let told: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("cannot take in")).collect();
    let names_the_way_out = told.iter().all(|line| line.contains("raise the limit (ulimit -n)"));
    assert!(ended.status == 124 && told.len() == 1 && names_the_way_out, "{}", ended.stderr);
    run.assert_nothing_left("too few descriptors");
}

#[test]
fn without_an_mpi_the_first_failure_is_the_status_and_others_go_on() {
    let vms = if may_stand_in() { &[0, 2][..] } else { &[0] };
    for vms in vms {
        let script = "case $ISTHMUS_RANK in 0) sleep 1; echo went on; exit 4;; 1) exit 3;; esac";
        let spec = RunSpec { vms: *vms, ..own(3) };
        let mut run = Run::start(Path::new(NO_MPI), spec.clone(), &["sh", "-c", script]);
        let ended = run.finish();
        assert_eq!((ended.status, ended.stdout.as_str()), (3, "went on\n"), "{}", ended.stderr);
        let told: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("process ")).collect();
        assert_eq!(told.len(), 1, "{}", ended.stderr);
        assert!(told[0].contains("process 1 on ") && told[0].contains("status 3"), "{}", told[0]);
        run.assert_nothing_left("first failure");
        let killed = Run::start(Path::new(NO_MPI), spec, &["sh", "-c", "kill -9 $$"]).finish();
        assert_eq!(killed.status, 137, "{}", killed.stderr);
    }
}

#[test]
fn where_a_process_cannot_be_started_those_that_ignore_signals_are_killed() {
    if !rustix::process::geteuid().is_root() {
        skip("needs root, to become a user without other processes");
        return;
    }
    // Where that user may execute it.
    let dir =
        tempfile::Builder::new().permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755)).tempdir();
    let own = dir.unwrap();
    let own = own.path().join("bare");
    fs::copy(program(), &own).unwrap();
    // The launcher, its thread, and the first process, which ignores TERM from its first moment on.
    let deaf = ["sh", "-c", "trap '' TERM; exec \"$@\"", "sh"];
    let begin = Instant::now();
    let launch = Command::new("timeout")
        .args(["-s", "KILL", "60"])
        .args(deaf)
        .args(["prlimit", "--nproc=3", "setpriv", "--reuid=54329", "--regid=54329", "--clear-groups"])
        .arg(&own)
        .args(["launch", "localhost,localhost", "sleep", "100"])
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&launch.stderr);
    assert_eq!(launch.status.code(), Some(126), "{said}");
    assert!(said.contains("cannot start process 1") && said.contains("ulimit -u"), "{said}");
    let took = begin.elapsed();
    assert!((Duration::from_secs(5)..Duration::from_secs(30)).contains(&took), "{took:?}");
}

#[test]
fn without_an_mpi_all_input_reaches_the_first_process_and_its_end_too() {
    let vms = if may_stand_in() { &[0, 2][..] } else { &[0] };
    for vms in vms {
        let (read, mut write) = std::io::pipe().unwrap();
        let spec = RunSpec { vms: *vms, timeout_s: Some(20.0), ..own(2) };
        let mut run = Run::start_with(&[], Path::new(NO_MPI), spec, &["sh", "-c", "wc -c"], read.into());
        std::io::Write::write_all(&mut write, &[b'x'; 100_000]).unwrap();
        drop(write);
        let ended = run.finish();
        let mut counts: Vec<&str> = ended.stdout.split_whitespace().collect();
        counts.sort_unstable();
        assert_eq!((ended.status, counts), (0, vec!["0", "100000"]), "{}", ended.stderr);
    }
}

#[test]
fn without_an_mpi_processes_in_vms_stop_and_go_on() {
    if !may_stand_in() {
        return;
    }
    let script = "i=0; while [ $i -lt 120 ]; do i=$((i+1)); echo $i; sleep 0.05; done; exit 5";
    let mut run = Run::start(Path::new(NO_MPI), RunSpec { vms: 1, ..own(1) }, &["sh", "-c", script]);
    let mut lines = BufReader::new(run.child.stdout.take().unwrap()).lines();
    let (came, news) = mpsc::channel();
    std::thread::spawn(move || while lines.next().is_some_and(|_| came.send(()).is_ok()) {});
    news.recv_timeout(PROMPT * 4).unwrap();
    kill_process(run.pid(), Signal::TSTP).unwrap();
    // It stops soon, and then nothing more comes of a process that does something every 50 ms.
    let begun = Instant::now();
    while news.recv_timeout(Duration::from_secs(1)).is_ok() {
        assert!(begun.elapsed() < PROMPT * 4, "it is not stopped");
    }
    kill_process(run.pid(), Signal::CONT).unwrap();
    news.recv_timeout(PROMPT).unwrap();
    assert_eq!(run.finish().status, 5);
    run.assert_nothing_left("stopped in a VM");
}

#[test]
fn system_v_ipc_is_loaded_before_all_else_and_found_beside_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().canonicalize().unwrap().join("libisthmus-sysv.so");
    let place = ["env", &format!("ISTHMUS_PROVIDER_PATH={}", dir.path().display()), "ISTHMUS_SYSV_KEYS=none"];
    let script = "echo \"$LD_PRELOAD $ISTHMUS_SYSV_KEYS\"";
    let spec = RunSpec { sysv: true, env: words(&["LD_PRELOAD=other.so"]), ..own(2) };
    // The linker complains of what is no library, and goes on.
    fs::write(&library, "").unwrap();
    let mut run = Run::start_below(&place, Path::new(NO_MPI), spec.clone(), &["sh", "-c", script]);
    let ended = run.finish();
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    assert_eq!(ended.stdout, format!("{}:other.so none\n", library.display()).repeat(2));
    // Without the option nothing changes.
    let plain = RunSpec { sysv: false, ..spec };
    let ended = Run::start_below(&place, Path::new(NO_MPI), plain, &["sh", "-c", script]).finish();
    assert_eq!(ended.stdout, "other.so none\n".repeat(2), "{}", ended.stderr);
}

#[test]
fn what_is_sent_to_all_processes_of_a_run_ends_no_vm() {
    let words = isthmus_run::leash::words_of_vm();
    let mut vm = Command::new(program())
        .args(&words[1..])
        .args(["/bin/sh", "-c", "echo; exec sleep 300"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    vm.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    let pid = Pid::from_child(&vm);
    for signal in [Signal::HUP, Signal::INT, Signal::TERM, Signal::QUIT, Signal::USR2] {
        kill_process(pid, signal).unwrap();
    }
    std::thread::sleep(Duration::from_millis(200));
    assert!(vm.try_wait().unwrap().is_none(), "a signal has ended it");
    kill_process(pid, Signal::KILL).unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&vm.wait().unwrap()), Some(9));
}
