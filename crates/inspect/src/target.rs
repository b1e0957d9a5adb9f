//! Which region to read: a service that is named or found, a descriptor, a dump.
//!
//! A service is found where programs find it (`ISTHMUS_SOCKET`, then the usual places) and, since each `isthmus run` has
//! one of its own, in the directories of this user's runs.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use isthmus_attach::client::{View, observe_at, observe_file_at};
use isthmus_attach::socket::{SOCKET_VARIABLE, SYSTEM_SOCKET, places, user_socket};
use isthmus_region::error::with_causes;
use isthmus_region::format::{MAGIC, MAX_FILES, VERSION, header};
use isthmus_region::reader::Reader;
use isthmus_region::text::printable;
use rustix::io::Errno;

use crate::check;
use crate::error::{Error, Result};
use crate::fault::Faults;
use crate::model::Survey;
use crate::survey::{Depth, Look};

/// How long a service may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same for a service that was only found, and not named.
const SHORT_PATIENCE: Duration = Duration::from_secs(1);
/// Most characters of a command line that are shown.
const MOST_OF_A_LINE: usize = 70;

/// The service of a region.
#[derive(Debug, Clone)]
pub struct Service {
    /// Its socket.
    pub socket: PathBuf,
    /// Its process; 0 if that cannot be seen from here.
    pub pid: u32,
    /// What the user started: this process, or the `isthmus run` above it.
    pub front: u32,
}

/// A region to be read.
#[derive(Debug)]
pub struct Target {
    /// Its memory, or a file.
    pub reader: Reader,
    /// What it is, for messages.
    pub name: String,
    /// The service that it was reached through, if any.
    pub service: Option<Service>,
}

/// How the user named a service.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// A socket.
    pub socket: Option<PathBuf>,
    /// A run: the process number of `isthmus run`, or its directory.
    pub run: Option<String>,
}

impl Target {
    /// The region of the service that is named, or of the only one that runs.
    ///
    /// # Errors
    /// [`Error::NoService`], [`Error::Several`], [`Error::Observe`], [`Error::Read`].
    pub fn find(wanted: &Wanted) -> Result<Self> {
        if let Some(path) = &wanted.socket {
            return Self::served(path, PATIENCE);
        }
        match wanted.run.as_deref() {
            Some(dir) if dir.contains('/') => return Self::served(&Path::new(dir).join("socket"), PATIENCE),
            Some(_) => {}
            None => {
                let named = std::env::var_os(SOCKET_VARIABLE).filter(|p| !p.is_empty());
                if let Some(path) = named {
                    return Self::served(Path::new(&path), PATIENCE);
                }
            }
        }
        let (mut found, mut silent) = (Vec::new(), Vec::new());
        let candidates = candidates();
        for path in &candidates {
            match Self::served(path, SHORT_PATIENCE) {
                Ok(target) => found.push(target),
                Err(e) => silent.push(left_over(path, &e).unwrap_or_else(|| with_causes(&e))),
            }
        }
        if let Some(number) = &wanted.run {
            let is = |t: &Self| {
                t.service.as_ref().is_some_and(|s| [s.pid, s.front].iter().any(|p| p.to_string() == *number))
            };
            let all: Vec<String> = found.iter().map(|t| format!("\n  {}", t.choice())).collect();
            found.retain(is);
            if found.is_empty() {
                let all = if all.is_empty() { "none".into() } else { all.concat() };
                return Err(Error::NoRun { run: number.clone(), others: all });
            }
        }
        // A service can be reached by two names.
        found.dedup_by(|a, b| {
            let pid = |t: &Self| t.service.as_ref().map(|s| s.pid).filter(|pid| *pid != 0);
            pid(a).is_some() && pid(a) == pid(b)
        });
        if found.len() > 1 {
            let list: Vec<String> = found.iter().map(|t| format!("  {}", t.choice())).collect();
            return Err(Error::Several { list: list.join("\n") });
        }
        found.pop().ok_or_else(|| Error::NoService {
            looked: if silent.is_empty() {
                format!("{}, and no run of this user's is in {}", places(), run_folders().join(", "))
            } else {
                silent.join("; ")
            },
        })
    }

    fn served(path: &Path, patience: Duration) -> Result<Self> {
        let failed = |source| Error::Observe { path: path.to_path_buf(), source };
        let View { region, service, .. } = observe_at(path, patience).map_err(failed)?;
        let name = format!("the region of the service at {}", path.display());
        let unread = |source| Error::Read { what: name.clone(), source };
        let mut reader = Reader::new(region).map_err(unread)?;
        for file in 1..files_of(&reader) {
            let View { region, .. } = observe_file_at(path, file, patience).map_err(failed)?;
            reader.add(region).map_err(unread)?;
        }
        let service = Service { socket: path.to_path_buf(), pid: service, front: front(service) };
        Ok(Self { reader, name, service: Some(service) })
    }

    /// The region at `path`: a dump, a descriptor of a live region under `/proc`, or a service's socket.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Observe`], [`Error::Read`].
    pub fn file(path: &Path) -> Result<Self> {
        let failed = |action| move |source| Error::File { action, path: path.to_path_buf(), source };
        if fs::metadata(path).map_err(failed("look at"))?.file_type().is_socket() {
            return Self::served(path, PATIENCE);
        }
        // So that a pipe without a writer does not block.
        let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
        let file =
            fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed("open"))?;
        let name = path.display().to_string();
        let reader = Reader::new(file.into()).map_err(|source| Error::Read { what: name.clone(), source })?;
        Ok(Self { reader, name, service: None })
    }

    /// Surveys the region; again if there are faults, which may be changes that are half made.
    ///
    /// # Errors
    /// [`Error::NotARegion`], [`Error::Changing`], [`Error::Read`].
    pub fn survey(&self) -> Result<(Survey, Faults)> {
        let failed = |source| Error::Read { what: self.name.clone(), source };
        let found = check::survey(&self.reader, Depth::Tables).map_err(failed)?;
        let survey = found.survey.ok_or_else(|| match found.faults.list.first() {
            Some(fault) => Error::NotARegion { what: self.name.clone(), fault: fault.to_string() },
            None => Error::Changing { what: self.name.clone() },
        })?;
        Ok((survey, found.faults))
    }

    /// Checks the region as a whole: what it has, and what is wrong with it. One that could not be read has at least one fault.
    ///
    /// # Errors
    /// [`Error::Changing`], [`Error::Read`].
    pub fn check(&self) -> Result<Look> {
        let failed = |source| Error::Read { what: self.name.clone(), source };
        let found = check::check(&self.reader).map_err(failed)?;
        if found.survey.is_none() && found.faults.is_empty() {
            return Err(Error::Changing { what: self.name.clone() });
        }
        Ok(found)
    }

    /// Whether the service still runs, as far as can be seen: a killed service cannot say so in its region.
    pub fn is_served(&self) -> bool {
        let Some(service) = &self.service else { return true };
        let state = fs::read_to_string(format!("/proc/{}/stat", service.pid));
        // The state follows the name, which may contain brackets itself; Z is a zombie.
        let state =
            state.as_ref().ok().and_then(|s| s.rsplit_once(") ")).and_then(|(_, rest)| rest.chars().next());
        service.pid == 0 || state.is_some_and(|s| s != 'Z')
    }

    /// The option that chooses this service, and a description of it.
    fn choice(&self) -> String {
        let Some(service) = &self.service else { return self.name.clone() };
        let members =
            self.survey().map(|(s, _)| s.members.iter().map(|m| m.name.clone()).collect::<Vec<_>>());
        let members = members.unwrap_or_default().join(", ");
        format!("--socket {}    {}; members: {members}", service.socket.display(), describe(service.front))
    }

    /// The line that names the region.
    pub fn headline(&self) -> String {
        match &self.service {
            Some(service) => format!("{} at {}", describe(service.front), service.socket.display()),
            None => self.name.clone(),
        }
    }
}

/// How many files the region says that it has, if it is one; a survey says what is wrong if it is none.
fn files_of(reader: &Reader) -> u32 {
    let half = |offset: u64| {
        let mut word = [0];
        let read = reader.words("header", offset & !7, &mut word);
        read.map_or(0, |()| (word[0] >> if offset % 8 == 4 { 32 } else { 0 }) & 0xffff_ffff)
    };
    let mut magic = [0];
    let is_region = reader.words("header", header::MAGIC, &mut magic).is_ok()
        && magic[0] == MAGIC
        && half(header::VERSION) == u64::from(VERSION);
    let count = u32::try_from(half(header::FILES)).unwrap_or(1).min(MAX_FILES);
    if is_region { count } else { 1 }
}

/// Where the directories of this user's runs are.
fn run_folders() -> Vec<String> {
    let own = format!("/run/user/{}", rustix::process::geteuid().as_raw());
    let mut folders = vec!["/tmp".to_owned(), own, "/var/tmp".to_owned()];
    if let Some(named) =
        std::env::var("XDG_RUNTIME_DIR").ok().filter(|p| !p.is_empty() && !folders.contains(p))
    {
        folders.push(named);
    }
    folders
}

/// Sockets that services may listen at, each once.
fn candidates() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        [Some(PathBuf::from(SYSTEM_SOCKET)), user_socket()].into_iter().flatten().collect();
    let me = rustix::process::geteuid();
    let mut folders: Vec<PathBuf> = run_folders().into_iter().map(PathBuf::from).collect();
    if me.is_root() {
        for folder in fs::read_dir("/run/user").into_iter().flatten().flatten() {
            found.push(folder.path().join("isthmus/socket"));
            folders.push(folder.path());
        }
    }
    for folder in folders {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            // A directory of another user is not taken for a run; root may read every user's.
            let owned =
                entry.metadata().is_ok_and(|m| m.is_dir() && (m.uid() == me.as_raw() || me.is_root()));
            if owned && entry.file_name().to_str().is_some_and(is_run_directory) {
                found.push(entry.path().join("socket"));
            }
        }
    }
    found.sort();
    found.dedup();
    found.retain(|path| fs::metadata(path).is_ok_and(|m| m.file_type().is_socket()));
    found
}

/// A line about the directory of a run that does not answer: mostly all its processes were killed, which would have
/// removed the directory.
fn left_over(socket: &Path, error: &Error) -> Option<String> {
    let Error::Observe { source: isthmus_attach::Error::Connect { source: Errno::CONNREFUSED, .. }, .. } =
        error
    else {
        return None;
    };
    let folder = socket.parent()?;
    let is_run = folder.file_name()?.to_str().is_some_and(is_run_directory);
    is_run
        .then(|| format!("nobody listens in {}; if its run was killed, it can be removed", folder.display()))
}

/// Whether a directory has a name like those of `isthmus run`.
fn is_run_directory(name: &str) -> bool {
    name.strip_prefix("isthmus-")
        .is_some_and(|rest| rest.len() == 12 && rest.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// The words of a process's command line.
fn command_line(pid: u32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = bytes.split(|b| *b == 0).filter(|w| !w.is_empty());
    words.map(|w| printable(&String::from_utf8_lossy(w))).collect()
}

/// What the user started: the process itself, or the `isthmus run` that started it as its job.
fn front(pid: u32) -> u32 {
    let words = command_line(pid);
    // The job's parent is the guardian, and the guardian's is what the user started.
    let above = (words.len() == 2 && words[1] == "job").then(|| parent(pid).and_then(parent)).flatten();
    above.filter(|front| command_line(*front).len() > 2).unwrap_or(pid)
}

/// What process `pid` is, for people.
fn describe(pid: u32) -> String {
    let mut words = command_line(pid);
    if let Some(program) = words.first_mut() {
        *program =
            Path::new(program).file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    }
    let mut text = words.join(" ");
    if text.chars().count() > MOST_OF_A_LINE {
        text = text.chars().take(MOST_OF_A_LINE - 1).chain(['…']).collect();
    }
    if text.is_empty() { "service".to_owned() } else { format!("{text} (process {pid})") }
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|l| l.strip_prefix("PPid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_of_a_run_that_does_not_answer_is_named() {
        let dir = tempfile::tempdir().unwrap();
        for (name, is_run) in [("isthmus-0123456789ab", true), ("service", false)] {
            let socket = dir.path().join(name).join("socket");
            fs::create_dir(socket.parent().unwrap()).unwrap();
            drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
            let error = Target::served(&socket, SHORT_PATIENCE).unwrap_err();
            let said = left_over(&socket, &error);
            assert_eq!(said.is_some(), is_run, "{name}: {error:?}");
        }
    }

    #[test]
    fn only_directories_of_this_user_are_taken_for_runs() {
        assert!(is_run_directory("isthmus-0123456789ab"));
        for other in ["isthmus", "isthmus-0123456789a", "isthmus-0123456789abc", "isthmus-0123456789ag", "x"]
        {
            assert!(!is_run_directory(other), "{other}");
        }
    }

    #[test]
    fn a_file_that_is_no_region_is_an_error_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "hello").unwrap();
        let text = Target::file(&path).unwrap().survey().unwrap_err().to_string();
        assert!(text.contains("cannot be shown") && text.contains("must be at least 1048576"), "{text}");
        assert!(matches!(Target::file(&dir.path().join("none")), Err(Error::File { .. })));
        assert!(matches!(Target::file(dir.path()), Err(Error::Read { .. })));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.path().join("pipe"),
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
        assert!(matches!(Target::file(&dir.path().join("pipe")), Err(Error::Read { .. })));
    }
}
