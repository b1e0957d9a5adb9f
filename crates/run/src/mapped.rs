//! Files that MPICH makes under names of its own choice, and leaves behind if its ranks do not reach MPI_Finalize: after an
//! MPI_Abort, an exit, a kill. Ranks make theirs in /dev/shm, and the launcher's proxy (one per host) makes one in /tmp.
//!
//! Their names are `mpich_shm_W_N` and `mpich_vci_W_N`, where W is the job's number, which comes from random bits of its
//! launcher, and N is the number of a rank or host. Which job a W belongs to can be seen as long as one of its ranks has
//! a file of it mapped or open. So whenever such a file appears, and before ranks are told to end, the run's processes
//! are scanned, and each process once more before it is killed. Each W that they have is written into the run's directory.
//! The process that ends the run removes these files, once the run's processes are gone, unless another process has them
//! mapped. A W that was never seen with a process of the run belongs to another job, unless none was seen: its ranks may have ended
//! before they were looked at. Then those files go, too, that are as young as the run and that no process has.
//!
//! The proxy's file is `hydra_hwloc_xmlfile_XXXXXX`, the machine's topology for its ranks, which would otherwise each look
//! for it in hundreds of files of /sys. The proxy has it neither open nor mapped, but keeps its name, so the name is
//! looked for in the proxy's heap, at the same times. A proxy may have ended before it was looked at, when it falls over a rank that
//! dies early. So if none of a run's proxies was seen with a file, those go, too, that are as young as the run and that no proxy of the
//! machine has.
//!
//! Limit: processes of another PID namespace are not seen. In a container that shares /dev/shm or /tmp with another one, such files may be
//! those of a job of the same user there that is just starting.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use isthmus_guest::processes;
use rustix::fs::inotify;
use rustix::process::{Pid, getpid};

use crate::tree;

/// MPICH always puts them here.
const PLACE: &str = "/dev/shm";
/// How the names begin.
const PREFIXES: [&str; 2] = ["mpich_shm_", "mpich_vci_"];
/// How the path of a proxy's file begins. Six letters and digits follow.
const TOPOLOGY: &str = "/tmp/hydra_hwloc_xmlfile_";
/// What the kernel calls a proxy.
const PROXY: &str = "hydra_pmi_proxy";
/// How much of a proxy's heap is read: it takes some 130 KB, and more with the environments of many ranks.
const HEAP_LIMIT: u64 = 16 << 20;
/// The file in the run's directory that holds what was seen, in each line a W or the path of a proxy's file.
const LIST: &str = "mpich-files";
/// The file there that was made when the run began, to be watched: its time says which files are older.
const BEGUN: &str = "mpich-begun";
/// How long the run is scanned for a process that has a new file. The file's maker maps it within microseconds; if no
/// process of the run has it by then, it is another job's.
const SCAN_FOR: Duration = Duration::from_millis(50);
/// How long processes whose mappings cannot be read may hold up those who end them: all together, and one of them at least.
const HELD_UP: Duration = Duration::from_secs(1);
const HELD_UP_EACH: Duration = Duration::from_millis(20);
/// How often a proxy is looked at that names no file, in that time.
const LOOKS: u32 = 10;
/// How long it may take to read those of all processes of the machine.
const READING: Duration = Duration::from_secs(10);
/// How long a job that was not found in the run is not scanned for again: it makes a file for each of its ranks.
const REST: Duration = Duration::from_secs(1);

/// What was seen of a run.
#[derive(Debug)]
pub(crate) struct Mapped {
    dir: PathBuf,
    seen: Mutex<BTreeSet<String>>,
}

impl Mapped {
    /// Begins to watch for the run in directory `dir`, from a thread of its own.
    pub(crate) fn watch(dir: &Path) -> Arc<Self> {
        let mapped = Arc::new(Self { dir: dir.to_owned(), seen: Mutex::default() });
        // Without it no proxy's file is taken for the run's.
        let _ = fs::write(dir.join(BEGUN), "");
        let me = Arc::clone(&mapped);
        // Without a watch, the run is scanned only before ranks are told to end.
        if let Ok(made) = watch_place() {
            let _ = thread::Builder::new().name("mapped".into()).spawn(move || me.follow(made));
        }
        mapped
    }

    /// Scans whenever a file is made.
    fn follow(&self, made: OwnedFd) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(made, &mut buffer);
        let mut others = Others::default();
        let user = rustix::process::geteuid().as_raw();
        while let Ok(event) = reader.next() {
            let name = event.file_name().and_then(|name| name.to_str().ok());
            let Some((name, trace)) = name.and_then(|name| Some((name, trace_of(name)?))) else { continue };
            // Others' are none of the run's: whoever makes such files without end would have it scanned as often.
            if !is_of(user, &path_of(name)) {
                continue;
            }
            let begin = Instant::now();
            if others.rest(&trace, begin) {
                continue;
            }
            // Once at least, however late this thread is.
            while !self.knows(&trace) {
                let start = Instant::now();
                self.scan();
                if begin.elapsed() >= SCAN_FOR {
                    break;
                }
                thread::sleep(start.elapsed().min(SCAN_FOR));
            }
            if !self.knows(&trace) {
                others.note(trace, Instant::now());
            }
        }
    }

    fn knows(&self, trace: &str) -> bool {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).contains(trace)
    }

    /// As [`Mapped::scan`], for whoever has more to do: processes whose mappings cannot be read hold it up for a second at most.
    pub(crate) fn scan_soon(self: &Arc<Self>) {
        let me = Arc::clone(self);
        let _ = within(HELD_UP, move || me.scan());
    }

    /// Notes whose files the processes below this one have.
    pub(crate) fn scan(&self) {
        let below = tree::descendants(getpid()).unwrap_or_default();
        let found: BTreeSet<String> =
            below.iter().flat_map(|pid| traces_of(&self.dir, pid.as_raw_nonzero().get())).collect();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for trace in found {
            if seen.contains(&trace) {
                continue;
            }
            write_down(&self.dir, &trace);
            seen.insert(trace);
        }
    }
}

/// What notes whose files processes have that are about to be killed.
///
/// A process's list of mappings is read with the lock of its memory, which a thread of it may hold for as long as a file system does not
/// answer. So other threads read, and a process is killed all the same where that takes too long.
pub(crate) struct Notes {
    dir: PathBuf,
    /// How long processes may hold this up yet, all together.
    left: Cell<Duration>,
    /// Those whose reading took too long, and goes on in a thread. They are not read again, however long they take to end.
    stuck: RefCell<HashSet<Pid>>,
}

impl Notes {
    /// For the run in `dir`.
    pub(crate) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), left: Cell::new(HELD_UP), stuck: RefCell::default() }
    }

    /// Notes whose files process `pid` has.
    pub(crate) fn note(&self, pid: Pid) {
        let dir = self.dir.clone();
        self.take(pid, move || traces_of(&dir, pid.as_raw_nonzero().get()));
    }

    fn take(&self, pid: Pid, traces: impl FnOnce() -> Vec<String> + Send + 'static) {
        if self.stuck.borrow().contains(&pid) {
            return;
        }
        let begun = Instant::now();
        let found = within(self.left.get().max(HELD_UP_EACH), traces);
        self.left.set(self.left.get().saturating_sub(begun.elapsed()));
        if found.is_none() {
            self.stuck.borrow_mut().insert(pid);
        }
        let found: BTreeSet<String> = found.into_iter().flatten().collect();
        found.iter().for_each(|trace| write_down(&self.dir, trace));
    }
}

/// What `look` finds, if that takes no longer than `limit`; else it goes on by itself, and nobody hears of it. None as well where no
/// thread can be had for it.
fn within<T: Send + 'static>(limit: Duration, look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (tell, found) = mpsc::sync_channel(1);
    let started = thread::Builder::new().name("maps".into()).spawn(move || {
        let _ = tell.send(look());
    });
    started.ok().and_then(|_| found.recv_timeout(limit).ok())
}

/// Adds a job or a path to the list. Files of which none can be written down stay behind, as without isthmus.
fn write_down(dir: &Path, trace: &str) {
    let list = fs::OpenOptions::new().append(true).create(true).open(dir.join(LIST));
    let _ = list.and_then(|mut list| list.write_all(format!("{trace}\n").as_bytes()));
}

/// Jobs and paths that no process of the run had, and when that was seen.
#[derive(Debug, Default)]
struct Others(BTreeMap<String, Instant>);

impl Others {
    fn note(&mut self, trace: String, now: Instant) {
        // Older notes have no effect any more.
        self.0.retain(|_, then| now.saturating_duration_since(*then) < REST);
        self.0.insert(trace, now);
    }

    /// Whether a scan for `trace` found nothing a moment ago.
    fn rest(&self, trace: &str, now: Instant) -> bool {
        self.0.get(trace).is_some_and(|then| now.saturating_duration_since(*then) < REST)
    }
}

fn watch_place() -> rustix::io::Result<OwnedFd> {
    let made = inotify::init(inotify::CreateFlags::CLOEXEC)?;
    inotify::add_watch(&made, PLACE, inotify::WatchFlags::CREATE)?;
    // Without this one, proxies' files are looked for when one of the others is made.
    let _ =
        Path::new(TOPOLOGY).parent().map(|tmp| inotify::add_watch(&made, tmp, inotify::WatchFlags::CREATE));
    Ok(made)
}

/// What is noted of a file of MPICH's with this name.
fn trace_of(name: &str) -> Option<String> {
    let topology = || Some(format!("/tmp/{name}")).filter(|path| is_topology(path));
    job_of(name).map(str::to_owned).or_else(topology)
}

/// Where a file with this name is, of which [`trace_of`] notes something.
fn path_of(name: &str) -> PathBuf {
    job_of(name).map_or_else(|| Path::new("/tmp").join(name), |_| Path::new(PLACE).join(name))
}

/// Whether there is such a file, and `user` has made it.
fn is_of(user: u32, path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.uid() == user)
}

fn is_topology(path: &str) -> bool {
    let letters = path.strip_prefix(TOPOLOGY).map(str::as_bytes);
    letters.is_some_and(|six| six.len() == 6 && six.iter().all(u8::is_ascii_alphanumeric) && six != b"XXXXXX")
}

/// The W in a name of MPICH's. In versions before 5, all that follows the prefix is random and differs for each file.
fn job_of(name: &str) -> Option<&str> {
    let rest = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))?;
    let (job, number) = rest.split_once('_').unwrap_or((rest, "0"));
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric());
    (plain(job) && plain(number)).then_some(job)
}

/// The names of files in [`PLACE`] that process `pid` has mapped or open, without those that were removed.
fn names_of(pid: i32) -> Vec<String> {
    let mut names = names_in(&fs::read(format!("/proc/{pid}/maps")).unwrap_or_default());
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    names.extend(
        open.filter_map(|entry| fs::read_link(entry.path()).ok())
            .filter_map(|to| name_in_place(to.as_os_str().as_bytes())),
    );
    names
}

/// The same of the text of a process's `maps`. The names of other mapped files may have any bytes.
fn names_in(maps: &[u8]) -> Vec<String> {
    let lines = maps.split(|byte| *byte == b'\n');
    lines.filter_map(|line| name_in_place(&line[line.iter().position(|byte| *byte == b'/')?..])).collect()
}

fn name_in_place(path: &[u8]) -> Option<String> {
    let name = path.strip_prefix(PLACE.as_bytes())?.strip_prefix(b"/")?;
    let name = std::str::from_utf8(name).ok()?;
    (!name.contains('/') && !name.ends_with(" (deleted)")).then(|| name.to_owned())
}

fn jobs_of(pid: i32) -> Vec<String> {
    names_of(pid).iter().filter_map(|name| job_of(name)).map(str::to_owned).collect()
}

/// What is noted of process `pid` of the run in `dir`.
fn traces_of(dir: &Path, pid: i32) -> Vec<String> {
    let mut traces = jobs_of(pid);
    traces.extend(topologies_of(dir, pid).unwrap_or_default());
    traces
}

/// The files of topologies that process `pid` has made, if it is a proxy whose memory may be read. Its heap has the
/// environment of its ranks, too, which may name an older file.
fn topologies_of(dir: &Path, pid: i32) -> Option<Vec<String>> {
    if !is_proxy(pid) {
        return None;
    }
    let begin = begun(dir)?;
    Some(topologies_in(&heap(pid)?).into_iter().filter(|path| is_since(path, begin)).collect())
}

fn is_proxy(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == PROXY)
}

/// When the run in `dir` began.
fn begun(dir: &Path) -> Option<SystemTime> {
    fs::metadata(dir.join(BEGUN)).ok()?.modified().ok()
}

fn is_since(path: &str, begin: SystemTime) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.modified().is_ok_and(|made| made >= begin))
}

/// The files of topologies that were made since the run in `dir` began, and that no proxy of the machine has, if the run's launcher is one
/// that has proxies. None if that is not known, for lack of a look at one of this user's proxies. Those of another PID namespace
/// that has the same /tmp are not seen.
fn ownerless(dir: &Path) -> Option<BTreeSet<String>> {
    if !crate::hydra::was_started(dir) {
        return None;
    }
    let begin = begun(dir)?;
    let (place, prefix) = TOPOLOGY.rsplit_once('/')?;
    let names = fs::read_dir(place).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let young: BTreeSet<String> = names
        .filter(|name| name.starts_with(prefix))
        .filter_map(|name| trace_of(&name))
        .filter(|path| is_since(path, begin))
        .collect();
    if young.is_empty() {
        return None;
    }
    let user = rustix::process::geteuid().as_raw();
    let proxies = processes::all().ok()?.into_iter().filter(|process| !process.zombie);
    // Another user's has files of that user.
    let ours = proxies.map(|process| process.pid).filter(|pid| is_proxy(*pid) && user_of(*pid) == Some(user));
    without_owners(young, ours.map(topologies_named_by))
}

/// Those of `young` that no proxy has; none if it is not known what one of them has.
fn without_owners(
    mut young: BTreeSet<String>,
    proxies: impl Iterator<Item = Option<Vec<String>>>,
) -> Option<BTreeSet<String>> {
    for paths in proxies {
        paths?.iter().for_each(|path| _ = young.remove(path));
    }
    Some(young)
}

/// What the heap of proxy `pid` names, after a moment if it has begun only now. None if it has a proxy's name and names no file: it may
/// keep the name elsewhere. One that has ended has none.
fn topologies_named_by(pid: i32) -> Option<Vec<String>> {
    for _ in 0..LOOKS {
        let found = heap(pid).map(|heap| topologies_in(&heap)).unwrap_or_default();
        if !found.is_empty() {
            return Some(found);
        }
        if !is_proxy(pid) || processes::one(pid).is_none_or(|process| process.zombie) {
            return Some(Vec::new());
        }
        thread::sleep(SCAN_FOR / LOOKS);
    }
    None
}

/// Who runs process `pid`. The owner of its files in /proc is another where it may not be read.
fn user_of(pid: i32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// What process `pid` has in its heap.
fn heap(pid: i32) -> Option<Vec<u8>> {
    let maps = fs::read(format!("/proc/{pid}/maps")).ok()?;
    let line = maps.split(|byte| *byte == b'\n').find(|line| line.ends_with(b" [heap]"))?;
    let (from, to) = std::str::from_utf8(line.split(|byte| *byte == b' ').next()?).ok()?.split_once('-')?;
    let (from, to) = (u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?);
    let mut bytes = vec![0; usize::try_from(to.checked_sub(from)?.min(HEAP_LIMIT)).ok()?];
    fs::File::open(format!("/proc/{pid}/mem")).ok()?.read_exact_at(&mut bytes, from).ok()?;
    Some(bytes)
}

/// The paths of topologies among the strings in `heap`.
fn topologies_in(heap: &[u8]) -> Vec<String> {
    let strings = heap.split(|byte| *byte == 0).filter(|text| text.len() == TOPOLOGY.len() + 6);
    strings
        .filter_map(|text| std::str::from_utf8(text).ok())
        .filter(|text| is_topology(text))
        .map(str::to_owned)
        .collect()
}

/// Removes what the run in `dir` has left. Its processes have ended, except `own`, which cannot be ended. Gives false if it is not known
/// whether others use what it has left in /dev/shm.
pub(crate) fn remove(dir: &Path, own: &[Pid]) -> bool {
    remove_within(dir, own, READING)
}

/// The jobs whose files processes have, other than `own`. Processes that cannot be read are another user's, as their files are.
fn jobs_of_others(own: &[i32]) -> BTreeSet<String> {
    let all = processes::all().unwrap_or_default().into_iter();
    let others = all.filter(|process| !process.zombie && !own.contains(&process.pid));
    others.flat_map(|process| jobs_of(process.pid)).collect()
}

fn remove_within(dir: &Path, own: &[Pid], limit: Duration) -> bool {
    let list = fs::read_to_string(dir.join(LIST)).unwrap_or_default();
    let (mut topologies, jobs): (BTreeSet<String>, _) =
        list.lines().map(str::to_owned).partition(|trace| is_topology(trace));
    if topologies.is_empty() {
        let dir = dir.to_owned();
        topologies = within(limit.min(HELD_UP), move || ownerless(&dir)).flatten().unwrap_or_default();
    }
    let user = rustix::process::geteuid().as_raw();
    for path in topologies {
        // Only a file: what else may have got that name meanwhile is not the proxy's.
        if fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file() && meta.uid() == user) {
            let _ = fs::remove_file(path);
        }
    }
    // As with topologies: where no rank was seen with a file.
    let begin = begun(dir).filter(|_| jobs.is_empty() && crate::hydra::was_started(dir));
    let is_ours = |entry: &fs::DirEntry| {
        let (name, Ok(meta)) = (entry.file_name(), entry.metadata()) else { return false };
        let Some(job) = name.to_str().and_then(job_of) else { return false };
        let is_young = || begin.is_some_and(|begin| meta.modified().is_ok_and(|made| made >= begin));
        meta.is_file() && meta.uid() == user && (jobs.contains(job) || is_young())
    };
    let place = fs::read_dir(PLACE).into_iter().flatten().flatten();
    let left: Vec<PathBuf> = place.filter(is_ours).map(|entry| entry.path()).collect();
    if left.is_empty() {
        return true;
    }
    // Another job with the same number is unlikely: the number has 32 bits.
    let own: Vec<i32> = own.iter().map(|pid| pid.as_raw_nonzero().get()).collect();
    let read = move || {
        let mut used = jobs_of_others(&own);
        if begin.is_some() {
            // A rank of another job may have been about to map the file that it had just made.
            thread::sleep(SCAN_FOR);
            used.extend(jobs_of_others(&own));
        }
        used
    };
    // Where one of them cannot be read, it may use them: then they stay.
    let Some(used) = within(limit, read) else { return false };
    for file in left {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if job_of(name).is_some_and(|job| !used.contains(job)) {
            let _ = fs::remove_file(file);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_job_is_told_by_its_number() {
        assert_eq!(job_of("mpich_shm_6444c360_0"), Some("6444c360"));
        assert_eq!(job_of("mpich_vci_a_12"), Some("a"));
        assert_eq!(job_of("mpich_shm_Xa3f0Q"), Some("Xa3f0Q"));
        for name in ["mpich_shm_", "mpich_shm__0", "mpich_shm_a_", "mpich_shm_a_0_1", "other_a_0"] {
            assert_eq!(job_of(name), None, "{name}");
        }
    }

    #[test]
    fn files_of_other_users_are_not_looked_for() {
        for (name, path) in [
            ("mpich_shm_ab_0", "/dev/shm/mpich_shm_ab_0"),
            ("hydra_hwloc_xmlfile_a1B2c3", "/tmp/hydra_hwloc_xmlfile_a1B2c3"),
        ] {
            assert_eq!(path_of(name), Path::new(path));
        }
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "").unwrap();
        let user = rustix::process::geteuid().as_raw();
        assert!(is_of(user, &file) && !is_of(user + 1, &file) && !is_of(user, &dir.path().join("gone")));
        // By what is there, not by what it leads to: anybody may make a link to a file of this user's.
        std::os::unix::fs::symlink("/proc/1/comm", &link).unwrap();
        assert!(is_of(user, &link));
    }

    #[test]
    fn only_files_that_have_a_name_there_count() {
        assert_eq!(name_in_place(b"/dev/shm/mpich_shm_ab_0").as_deref(), Some("mpich_shm_ab_0"));
        for path in ["/dev/shm/mpich_shm_ab_1 (deleted)", "/dev/shm/a/mpich_shm_ab_1", "/tmp/mpich_shm_ab_1"]
        {
            assert_eq!(name_in_place(path.as_bytes()), None, "{path}");
        }
    }

    #[test]
    fn a_mapped_file_counts_beside_one_whose_name_is_not_utf8() {
        let maps = b"7f00-7f01 r--p 00000000 08:01 1  /home/ann/caf\xe9/libx.so\n\
            7f01-7f02 rw-s 00000000 00:15 2  /dev/shm/mpich_shm_ab_0\n\
            7f02-7f03 rw-p 00000000 00:00 0  [stack]\n\
            7f03-7f04 rw-s 00000000 00:15 3  /dev/shm/caf\xe9\n";
        assert_eq!(names_in(maps), ["mpich_shm_ab_0"]);
    }

    #[test]
    fn a_proxys_file_is_found_among_its_strings() {
        let heap =
            b"\0/tmp/hydra_hwloc_xmlfile_a1B2c3\0A=/tmp/hydra_hwloc_xmlfile_d4E5f6\0\x21\0\0\0\0\0\0\0\
            /tmp/hydra_hwloc_xmlfile_XXXXXX\0/tmp/hydra_hwloc_xmlfile_../../\0/tmp/hydra_hwloc_xmlfile_g7";
        assert_eq!(topologies_in(heap), ["/tmp/hydra_hwloc_xmlfile_a1B2c3"]);
        assert_eq!(
            trace_of("hydra_hwloc_xmlfile_a1B2c3").as_deref(),
            Some("/tmp/hydra_hwloc_xmlfile_a1B2c3")
        );
        assert_eq!(trace_of("hydra_hwloc_xmlfile_a1B2c"), None);
    }

    #[test]
    fn another_job_is_scanned_for_once_a_second() {
        let (mut others, begin) = (Others::default(), Instant::now());
        let after = |ms| begin + Duration::from_millis(ms);
        assert!(!others.rest("a", begin));
        others.note("a".into(), begin);
        assert!(others.rest("a", after(900)) && !others.rest("b", after(900)));
        assert!(!others.rest("a", after(1000)));
        others.note("b".into(), after(1500));
        assert_eq!(others.0.keys().collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn a_file_that_no_proxy_was_seen_with_is_nobodys_if_all_could_be_looked_at() {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let of = |proxies: &[Option<&[&str]>]| {
            let young = names(&["own", "other"]).into_iter().collect();
            let proxies = proxies.iter().map(|paths| paths.map(names));
            without_owners(young, proxies).map(|left| left.into_iter().collect::<Vec<_>>())
        };
        assert_eq!(of(&[]), Some(names(&["other", "own"])));
        assert_eq!(of(&[Some(&["older"]), Some(&["other"])]), Some(names(&["own"])));
        assert_eq!(of(&[Some(&["other"]), None]), None);
    }

    /// As a proxy, whose program is called so, has the name of its file in its heap: there a shell has what it was given.
    #[test]
    fn a_proxy_is_looked_at_until_it_names_a_file_or_ends() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join(PROXY);
        std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
        let path = format!("{TOPOLOGY}a1B2c3");
        let begin = |given: &str| {
            let mut command = std::process::Command::new(&program);
            let mut proxy = command
                .args(["-c", "set -- \"$1\"; echo; read end", "sh", given])
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            proxy.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
            let pid = i32::try_from(proxy.id()).unwrap();
            assert!(is_proxy(pid) && user_of(pid) == Some(rustix::process::geteuid().as_raw()));
            (proxy, pid)
        };
        let (mut named, pid) = begin(&path);
        assert_eq!(topologies_named_by(pid), Some(vec![path.clone()]));
        named.kill().unwrap();
        named.wait().unwrap();
        assert_eq!(topologies_named_by(pid), Some(Vec::new()), "it has ended");
        let (mut other, pid) = begin("nothing");
        assert_eq!(topologies_named_by(pid), None);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    /// Processes whose mappings cannot be read, as those of one that a file system keeps waiting, are ended all the same; of the others it is
    /// seen what they have.
    #[test]
    fn a_process_that_cannot_be_read_holds_up_its_end_for_a_moment() {
        let dir = tempfile::tempdir().unwrap();
        let (notes, begun) = (Notes::new(dir.path()), Instant::now());
        let pid = |number| Pid::from_raw(number).unwrap();
        for number in 1..=20 {
            notes.take(pid(number), || {
                loop {
                    thread::park();
                }
            });
            notes.take(pid(100 + number), move || vec![format!("a{number}")]);
        }
        assert!(begun.elapsed() >= HELD_UP && begun.elapsed() < 5 * HELD_UP, "{:?}", begun.elapsed());
        let list = fs::read_to_string(dir.path().join(LIST)).unwrap();
        assert_eq!(list.lines().count(), 20, "{list}");
        // Nor does it have a thread each time that it is looked at.
        notes.take(pid(1), || vec!["b".to_owned()]);
        assert_eq!(fs::read_to_string(dir.path().join(LIST)).unwrap(), list);
    }

    /// A number that no other test or job has at this moment.
    fn number() -> String {
        let nanos = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
        format!("{:x}", nanos ^ std::process::id().rotate_left(16))
    }

    #[test]
    fn what_the_run_made_goes_and_what_others_have_stays() {
        let dir = tempfile::tempdir().unwrap();
        let mapped = Mapped::watch(dir.path());
        let (own, other) = (number(), format!("{}0", &number()[..7.min(number().len())]));
        let path = |job: &str, rank: u32| Path::new(PLACE).join(format!("mpich_shm_{job}_{rank}"));
        // Another job's: no process of the run ever had it.
        fs::write(path(&other, 0), "").unwrap();
        // A process of the run has the first file open; the second is known by its number.
        let script =
            format!("exec 3>{}; : >{}; exec sleep 60", path(&own, 0).display(), path(&own, 1).display());
        let mut rank = std::process::Command::new("sh").args(["-c", &script]).spawn().unwrap();
        let begin = Instant::now();
        while !mapped.knows(&own) {
            assert!(begin.elapsed() < Duration::from_secs(20), "the run's own file was not seen");
            thread::sleep(Duration::from_millis(5));
        }
        // Still in use.
        remove(dir.path(), &[]);
        assert!(path(&own, 0).exists());
        rank.kill().unwrap();
        rank.wait().unwrap();
        assert!(!remove_within(dir.path(), &[], Duration::ZERO), "not known in time");
        assert!(path(&own, 0).exists());
        assert!(remove(dir.path(), &[]));
        let left = [path(&own, 0), path(&own, 1), path(&other, 0)].map(|path| path.exists());
        let _ = fs::remove_file(path(&other, 0));
        assert_eq!(left, [false, false, true]);
        assert!(!mapped.knows(&other));
    }
}
