//! The run's directories: one for sockets, files and the MPI's session, and its twin in `/dev/shm` for what
//! an MPI maps. Both have mode 0700; the guardian makes them, and the run's last process
//! removes them.

use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use isthmus_attach::daemon::not_ignored;
use isthmus_region::room;
use signal_hook::consts::SIGHUP;

use crate::descriptors;
use crate::error::{Error, Result};

/// Longest base directory: a UNIX socket's path has at most 107 bytes, and those of the run's sockets must fit.
const MAX_BASE_BYTES: usize = 60;

/// How the names of run directories begin.
pub const PREFIX: &str = "isthmus-";

/// A file system with fewer bytes left is short of room for a run's files.
const LITTLE: u64 = 1 << 20;
/// The same for memory that MPIs share: Open MPI allocates so much at once.
const LITTLE_SHARED: u64 = 16 << 20;

/// A limit of open files below this is low for a launcher.
const FEW_FILES: u64 = 128;

/// The bit of a directory in which each user can make files of their own.
const STICKY: u32 = 0o1000;

/// How often a removal is tried, and how long to wait between.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(2);

/// Where twins are.
const SHARED: &str = "/dev/shm";

/// Where a run's directory may be: the first that can be used, and that VMs cannot write.
pub(crate) fn places() -> Vec<PathBuf> {
    let me = rustix::process::geteuid().as_raw();
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| is_usable(dir));
    own.into_iter().chain(["/tmp".into(), format!("/run/user/{me}").into(), "/var/tmp".into()]).collect()
}

/// Where login sessions of users have their directories, which logind removes, with all in them, when the user's last session ends.
const OF_SESSIONS: &str = "/run/user";

/// The same for a run that is to outlive its session, as one that was started to ignore HUP is: what ends with the session comes last.
fn lasting(mut places: Vec<PathBuf>) -> Vec<PathBuf> {
    places.sort_by_key(|dir| fs::canonicalize(dir).unwrap_or_else(|_| dir.clone()).starts_with(OF_SESSIONS));
    places
}

/// Chooses the path of a run directory that does not exist yet, in `$XDG_RUNTIME_DIR` or `/tmp`, as `lasting` has it where HUP is ignored. VMs can write the directories
/// `shares`. It is in none of these: the host executes what is in it, its root in a VM could replace it, and what hides it there, the
/// memory that the agent mounts over it, holds back no root.
///
/// # Errors
/// [`Error::Io`]: no randomness; [`Error::Share`].
pub fn choose(shares: &[PathBuf]) -> Result<PathBuf> {
    let mut seed = [0; 6];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut seed))
        .map_err(|e| Error::io("/dev/urandom", e))?;
    let name = seed.iter().fold(String::from(PREFIX), |name, byte| format!("{name}{byte:02x}"));
    let me = rustix::process::geteuid().as_raw();
    let is_there = |dir: &Path| {
        fs::metadata(dir).is_ok_and(|meta| meta.is_dir() && (meta.uid() == me || meta.mode() & STICKY != 0))
            && rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok()
    };
    let share_of = |dir: &Path| shares.iter().find(|share| is_inside(dir, share));
    let refused = |share: &PathBuf, place: &str, or| {
        Err(Error::Share { share: share.clone(), place: place.into(), or })
    };
    if let Some(share) = share_of(Path::new(SHARED)) {
        return refused(share, SHARED, "");
    }
    let places = if not_ignored(&[SIGHUP]).is_empty() { lasting(places()) } else { places() };
    let base = match places.iter().find(|place| is_there(place) && share_of(place).is_none()) {
        Some(place) => place.clone(),
        None => match shares.iter().find(|share| is_inside(Path::new("/tmp"), share)) {
            Some(share) => {
                let or = ", or set XDG_RUNTIME_DIR to a directory of yours elsewhere";
                return refused(share, "/tmp", or);
            }
            // The guardian says what is wrong with it.
            None => "/tmp".into(),
        },
    };
    Ok(base.join(name))
}

/// Whether all who are told of directories below `dir` can take the name: sockets, which are limited; Open MPI's launchers, for which a
/// blank or a colon ends the remote shell's name; and the run's own processes, which are told in JSON.
fn is_usable(dir: &Path) -> bool {
    let ends_a_name = |c: char| c.is_whitespace() || c.is_control() || c == ':';
    let name = dir.to_str().filter(|name| name.len() <= MAX_BASE_BYTES);
    dir.is_absolute() && name.is_some_and(|name| !name.contains(ends_a_name))
}

/// Whether `dir` is `share` or below it, by whatever name.
fn is_inside(dir: &Path, share: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let (Ok(real), Some(share)) = (fs::canonicalize(dir), identity(share)) else { return false };
    real.ancestors().any(|above| identity(above) == Some(share))
}

/// The twin of run directory `dir` in `/dev/shm`.
pub fn shm_twin(dir: &Path) -> PathBuf {
    Path::new(SHARED).join(dir.file_name().unwrap_or_default())
}

/// Makes both directories.
///
/// # Errors
/// [`Error::Io`], one that exists already included.
pub fn make(dir: &Path) -> Result<()> {
    let make_one = |path: &Path| {
        let made = DirBuilder::new().mode(0o700).create(path);
        made.map_err(|e| Error::io(format!("cannot make {}", path.display()), room::told(e, path)))
    };
    make_one(dir)?;
    // Without its twin the run ends here, and nobody else would remove the first.
    make_one(&shm_twin(dir)).inspect_err(|_| drop(fs::remove_dir(dir)))
}

/// Whether little is left of the memory that the ranks of run directory `dir` share.
pub fn is_short_of_shared(dir: &Path) -> bool {
    room::left(&shm_twin(dir)).is_some_and(|(bytes, _)| bytes < LITTLE_SHARED)
}

/// Lines about full directories and a low limit, after a job that failed: launchers and ranks map files there, and if there
/// is no room left for one, they die without a message.
pub(crate) fn short_of_room(dir: &Path) -> Vec<String> {
    let twin = shm_twin(dir);
    let places = [
        (dir, LITTLE, "make room there, or set XDG_RUNTIME_DIR to a directory of yours elsewhere"),
        (&twin, LITTLE_SHARED, "make room there, or mount it larger (a container's --shm-size)"),
    ];
    let few = descriptors::of_started().filter(|most| *most < FEW_FILES);
    let few = few.map(|most| {
        format!("a process may have only {most} files open here: if that is why the job failed, raise the limit (ulimit -n)")
    });
    let short = places.into_iter().filter_map(|(place, least, way_out)| {
        let (bytes, mount) = room::left(place).filter(|(bytes, _)| *bytes < least)?;
        Some(format!(
            "the file system at {} has {} KiB left, and the MPI keeps files of the job there, in {}: if that is why it failed, {way_out}",
            mount.display(),
            bytes >> 10,
            place.display()
        ))
    });
    short.chain(few).collect()
}

/// Removes both directories and all that is in them; `keep` leaves the first.
///
/// # Errors
/// The last one, if something cannot be removed.
pub fn remove(dir: &Path, keep: bool) -> io::Result<()> {
    let twin = remove_all(&shm_twin(dir));
    if keep { twin } else { twin.and(remove_all(dir)) }
}

/// Removes a directory, while others may do the same or a dying process still adds to it.
fn remove_all(dir: &Path) -> io::Result<()> {
    let mut last = Ok(());
    for _ in 0..ATTEMPTS {
        last = fs::remove_dir_all(dir);
        if last.is_ok() || !dir.exists() {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_private_and_removed_whole() {
        let dir = choose(&[]).unwrap();
        make(&dir).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        assert!(make(&dir).is_err());
        fs::create_dir_all(dir.join("a/b")).unwrap();
        fs::write(dir.join("a/b/c"), "x").unwrap();
        remove(&dir, false).unwrap();
        assert!(!dir.exists() && !shm_twin(&dir).exists());
        remove(&dir, false).unwrap();
    }

    #[test]
    fn the_directory_is_in_no_share() {
        let below = |shares: &[&str]| {
            let shares: Vec<PathBuf> = shares.iter().map(PathBuf::from).collect();
            choose(&shares)
                .map(|dir| dir.parent().map(Path::to_owned).unwrap_or_default())
                .map_err(|e| e.line())
        };
        let place = below(&["/tmp"]).unwrap();
        assert!(!place.starts_with("/tmp") && places().contains(&place), "{}", place.display());
        assert_eq!(below(&["/home", "/no/such"]), below(&[]));
        for (shares, named) in
            [(vec!["/dev/shm"], "/dev/shm"), (vec!["/dev"], "/dev"), (vec!["/tmp", "/run", "/var"], "/tmp")]
        {
            let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
            if named == "/tmp" && own.is_some_and(|own| !shares.iter().any(|share| own.starts_with(share))) {
                continue;
            }
            let line = below(&shares).unwrap_err();
            assert!(line.contains(&format!("the VMs could write {named},")), "{line}");
        }
        // By another name, as through a link.
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/tmp", dir.path().join("link")).unwrap();
        assert!(is_inside(Path::new("/tmp"), &dir.path().join("link")));
        assert!(!is_inside(Path::new("/tmp"), dir.path()));
    }

    #[test]
    fn a_run_that_outlives_its_session_is_not_where_the_session_was() {
        let all = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(
            lasting(all(&["/run/user/1000", "/tmp", "/run/user/1000", "/var/tmp"])),
            all(&["/tmp", "/var/tmp", "/run/user/1000", "/run/user/1000"])
        );
        // A directory of the user's choice.
        let chosen = all(&["/home/ann/run", "/tmp", "/run/user/1000", "/var/tmp"]);
        assert_eq!(lasting(chosen)[0], Path::new("/home/ann/run"));
    }

    #[test]
    fn a_base_that_launchers_could_not_be_told_of_is_none() {
        use std::os::unix::ffi::OsStrExt;
        assert!(is_usable(Path::new("/run/user/1000")));
        assert!(!is_usable(&Path::new("/").join("x".repeat(MAX_BASE_BYTES))));
        for bad in ["run/user", "/run/my user", "/run/user:1", "/run/a\tb"] {
            assert!(!is_usable(Path::new(bad)), "{bad}");
        }
        assert!(!is_usable(Path::new(std::ffi::OsStr::from_bytes(b"/run/\xff"))));
    }

    #[test]
    fn where_the_twin_cannot_be_made_nothing_stays_but_what_was_there() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join(choose(&[]).unwrap().file_name().unwrap());
        fs::create_dir(shm_twin(&dir)).unwrap();
        assert!(make(&dir).is_err());
        assert!(!dir.exists());
        fs::remove_dir(shm_twin(&dir)).unwrap();
    }
}
