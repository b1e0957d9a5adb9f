//! Running as another user: this program, started again, takes the caller's ids, groups, limits, mask and directory,
//! and then becomes the real program. It has one thread, so setting ids for the thread sets them for the process.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::{FileType, Stat, fchown, fstat};
use rustix::process::{
    Gid, Resource, Rlimit, Uid, getgid, getgroups, getrlimit, getuid, ioctl_tiocsctty, setrlimit, setsid,
    umask,
};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::wire::{Limit, Request};

/// The hidden subcommand that runs [`main`].
pub const EXEC_AS_COMMAND: &str = "exec-as";
/// The argument that makes standard input the session's terminal.
const TERMINAL: &str = "terminal";
/// The limits that are passed on, by name.
const RESOURCES: [(&str, Resource); 15] = [
    ("cpu", Resource::Cpu),
    ("fsize", Resource::Fsize),
    ("data", Resource::Data),
    ("stack", Resource::Stack),
    ("core", Resource::Core),
    ("rss", Resource::Rss),
    ("nproc", Resource::Nproc),
    ("nofile", Resource::Nofile),
    ("memlock", Resource::Memlock),
    ("as", Resource::As),
    ("locks", Resource::Locks),
    ("sigpending", Resource::Sigpending),
    ("msgqueue", Resource::Msgqueue),
    ("nice", Resource::Nice),
    ("rtprio", Resource::Rtprio),
];

/// The limits of this process.
pub fn own_limits() -> Vec<Limit> {
    RESOURCES
        .iter()
        .map(|(name, resource)| {
            let limit = getrlimit(*resource);
            Limit { name: (*name).to_owned(), soft: limit.current, hard: limit.maximum }
        })
        .collect()
}

fn joined<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    items.join(",")
}

/// The command that carries out `request`, in the control group `cgroup`.
pub fn command(request: &Request, cgroup: Option<&Path>) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("isthmus").arg(EXEC_AS_COMMAND);
    command.arg(cgroup.map_or(OsStr::new(""), Path::as_os_str));
    command.args([request.uid.to_string(), request.gid.to_string(), joined(&request.groups)]);
    command.arg(format!("{:o}", request.umask)).arg(&request.cwd);
    let number = |limit: Option<u64>| limit.map_or_else(|| "-".to_owned(), |value| value.to_string());
    command.arg(joined(
        request
            .limits
            .iter()
            .map(|limit| format!("{}={}:{}", limit.name, number(limit.soft), number(limit.hard))),
    ));
    command.arg(if request.terminal.is_some() { TERMINAL } else { "" });
    command.arg(request.make_dirs.len().to_string()).args(&request.make_dirs).args(&request.argv);
    command.env_clear().envs(request.env.iter().map(|(name, value)| (name, value)));
    command
}

/// What could not be done.
struct Failure {
    what: String,
    why: io::Error,
}

fn failed<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Failure {
    let what = what.into();
    move |why| Failure { what, why: why.into() }
}

/// `isthmus exec-as ...`, with the arguments of [`command`]. Returns only if it failed, with the status that a shell
/// would use.
pub fn main(args: &[OsString]) -> i32 {
    match become_it(args) {
        Ok(never) => match never {},
        Err(Failure { what, why }) => {
            isthmus_region::tell!("isthmus: {what}: {why}");
            if why.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
        }
    }
}

enum Never {}

fn become_it(args: &[OsString]) -> Result<Never, Failure> {
    let malformed = || Failure { what: "exec-as".into(), why: io::ErrorKind::InvalidInput.into() };
    let [cgroup, uid, gid, groups, mask, cwd, limits, terminal, dirs, rest @ ..] = args else {
        return Err(malformed());
    };
    let number = |text: &OsStr| text.to_str().and_then(|text| text.parse::<u32>().ok()).ok_or_else(malformed);
    let (uid, gid, dirs) = (number(uid)?, number(gid)?, number(dirs)? as usize);
    let mask = mask.to_str().and_then(|text| u32::from_str_radix(text, 8).ok()).ok_or_else(malformed)?;
    let words = |text: &OsStr| text.to_str().map(str::to_owned).ok_or_else(malformed);
    let (make_dirs, argv) = rest.split_at_checked(dirs).ok_or_else(malformed)?;
    let (program, arguments) = argv.split_first().ok_or_else(malformed)?;
    let groups = words(groups)?
        .split(',')
        .filter(|group| !group.is_empty())
        .map(|group| number(OsStr::new(group)))
        .collect::<Result<Vec<u32>, _>>()?;

    if !cgroup.is_empty() {
        let procs = Path::new(cgroup).join("cgroup.procs");
        std::fs::write(&procs, "0").map_err(failed(format!("cannot enter {}", procs.display())))?;
    }
    // Fails for a leader of a process group, which is in a session of its own already.
    let _ = setsid();
    if terminal == TERMINAL {
        ioctl_tiocsctty(io::stdin()).map_err(failed("cannot take the terminal"))?;
    }
    for limit in words(limits)?.split(',').filter(|limit| !limit.is_empty()) {
        set_limit(limit).ok_or_else(malformed)?;
    }
    set_ids(uid, gid, &groups)?;
    umask(rustix::fs::Mode::from_raw_mode(mask));
    for dir in make_dirs {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(failed(format!("cannot make {}", dir.to_string_lossy())))?;
    }
    std::env::set_current_dir(cwd).map_err(failed(format!("cannot enter {}", cwd.to_string_lossy())))?;
    let why = Command::new(program).args(arguments).exec();
    Err(Failure { what: format!("cannot run {}", program.to_string_lossy()), why })
}

/// Sets `name=soft:hard`. A hard limit that this system does not allow is left as it is. `None` if `text` is no limit.
fn set_limit(text: &str) -> Option<()> {
    let (name, values) = text.split_once('=')?;
    let (soft, hard) = values.split_once(':')?;
    let value = |text: &str| if text == "-" { Some(None) } else { text.parse().ok().map(Some) };
    let wanted = Rlimit { current: value(soft)?, maximum: value(hard)? };
    let resource = RESOURCES.iter().find(|(known, _)| *known == name)?.1;
    if setrlimit(resource, wanted).is_err() {
        let maximum = getrlimit(resource).maximum;
        let least = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        let _ = setrlimit(resource, Rlimit { current: least(wanted.current, maximum), maximum });
    }
    Some(())
}

fn set_ids(uid: u32, gid: u32, groups: &[u32]) -> Result<(), Failure> {
    let sorted = |mut groups: Vec<u32>| {
        groups.sort_unstable();
        groups.dedup();
        groups
    };
    let current = getgroups().map_err(failed("cannot tell the groups"))?;
    // What is right already is not set, since without root that may not be allowed.
    if sorted(current.iter().map(|group| group.as_raw()).collect()) != sorted(groups.to_vec()) {
        let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
        set_thread_groups(&groups).map_err(failed("cannot set the supplementary groups"))?;
    }
    if getgid().as_raw() != gid {
        let gid = Gid::from_raw(gid);
        set_thread_res_gid(gid, gid, gid).map_err(failed("cannot set the group"))?;
    }
    if getuid().as_raw() != uid {
        let uid = Uid::from_raw(uid);
        give_pipes(uid);
        set_thread_res_uid(uid, uid, uid).map_err(failed("cannot set the user"))?;
    }
    Ok(())
}

/// Makes the standard streams the user's where they are pipes, which programs open anew as /dev/stderr. It works without, but for that.
fn give_pipes(uid: Uid) {
    let (input, output, errors) = (io::stdin(), io::stdout(), io::stderr());
    for stream in [input.as_fd(), output.as_fd(), errors.as_fd()] {
        let is_pipe = |stat: Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo;
        if fstat(stream).is_ok_and(is_pipe) {
            let _ = fchown(stream, Some(uid), None);
        }
    }
}

/// A request for a process with the ids, limits, environment and directories of this one.
///
/// # Errors
/// Those of getgroups(2) and getcwd(2).
pub fn own_request(argv: Vec<OsString>) -> io::Result<Request> {
    let mask = umask(rustix::fs::Mode::empty());
    umask(mask);
    Ok(Request {
        argv,
        env: std::env::vars_os().filter(|(name, value)| fit(name) && fit(value)).collect(),
        cwd: std::env::current_dir()?,
        umask: mask.as_raw_mode(),
        uid: getuid().as_raw(),
        gid: getgid().as_raw(),
        groups: getgroups()?.iter().map(|group| group.as_raw()).collect(),
        limits: own_limits(),
        make_dirs: Vec::new(),
        terminal: None,
    })
}

fn fit(text: &OsStr) -> bool {
    !text.as_bytes().contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_and_rubbish_is_refused() {
        let soft = getrlimit(Resource::Core).maximum;
        let text = soft.map_or_else(|| "-".to_owned(), |value| value.to_string());
        assert!(set_limit(&format!("core=0:{text}")).is_some());
        assert_eq!(getrlimit(Resource::Core).current, Some(0));
        for bad in ["core", "core=1", "core=x:1", "nothing=1:1"] {
            assert!(set_limit(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn missing_and_malformed_arguments_are_refused() {
        assert_eq!(main(&[]), 126);
        let args: Vec<OsString> =
            ["", "x", "0", "", "22", "/", "", "", "0", "true"].map(OsString::from).into();
        assert_eq!(main(&args), 126);
    }
}
