//! MPICH's launcher, kept from dying of SIGPIPE.
//!
//! Hydra's mpiexec passes the end of its standard input on to the proxy of rank 0, and neither ignores nor handles SIGPIPE: if
//! that proxy has already ended, as it has after a short job on a busy machine, the signal kills mpiexec, and with it what other
//! ranks still do. So the signal is ignored in mpiexec, and in nothing else. What mpiexec starts would inherit that, but it looks
//! for its proxy in the directory of its own name: it is started by a name in the run's directory, and beside that name stands
//! this program as the proxy, which gives the signal its default back and becomes the real one. In a VM, [`crate::rsh`] names
//! the real one.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result, tell};

/// The proxy's name, which is Hydra's.
pub const PROXY_NAME: &str = "hydra_pmi_proxy";
/// The directory below the run's.
const DIRECTORY: &str = "hydra";
/// The link to the real proxy, in the same directory.
const REAL: &str = "real";

/// The name by which to start `launcher`, with SIGPIPE ignored: an mpiexec of MPICH, in the run of directory `dir`. Without a proxy beside it, or as a
/// script, it is another Hydra, and is started as it is.
///
/// # Errors
/// [`Error::Io`]: the names cannot be made.
pub(crate) fn named(dir: &Path, launcher: &Path) -> Result<Option<PathBuf>> {
    let real = launcher.with_file_name(PROXY_NAME);
    let this = std::env::current_exe().ok().filter(|this| this.exists());
    let (Some(name), Some(this), true) = (launcher.file_name(), this, real.exists() && is_binary(launcher))
    else {
        return Ok(None);
    };
    let here = dir.join(DIRECTORY);
    let make = || {
        fs::create_dir(&here)?;
        let at = |path: &Path| std::path::absolute(path);
        symlink(this, here.join(PROXY_NAME))?;
        symlink(at(&real)?, here.join(REAL))?;
        symlink(at(launcher)?, here.join(name))
    };
    make().map_err(|e| Error::io(format!("cannot make {}", here.display()), e))?;
    Ok(Some(here.join(name)))
}

/// Whether the run of directory `dir` has a launcher of MPICH's that was started by such a name.
pub(crate) fn was_started(dir: &Path) -> bool {
    dir.join(DIRECTORY).exists()
}

/// Whether a launcher is a program itself: a script looks for one by the name that it has.
fn is_binary(launcher: &Path) -> bool {
    let mut magic = [0; 4];
    let read = fs::File::open(launcher).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"\x7fELF"
}

/// `command`, a proxy's, with the real proxy in place of the run's.
pub(crate) fn with_real_proxy(command: &str, dir: &Path) -> String {
    let here = dir.join(DIRECTORY);
    match (here.join(PROXY_NAME).to_str(), fs::read_link(here.join(REAL)).as_deref().map(Path::to_str)) {
        (Some(ours), Ok(Some(real))) => command.replace(ours, real),
        _ => command.to_owned(),
    }
}

/// Whether this program was started by the name of a proxy.
pub fn is_proxy(called: &OsStr) -> bool {
    Path::new(called).file_name() == Some(OsStr::new(PROXY_NAME))
}

/// `DIR/hydra/hydra_pmi_proxy ARGS...`. Returns only if there is no real proxy, with the status that a shell would use.
pub fn proxy_main(args: &[OsString]) -> i32 {
    let called = args.first().map(PathBuf::from).unwrap_or_default();
    let link = called.with_file_name(REAL);
    let real = fs::read_link(&link).unwrap_or(link);
    let error = Command::new(&real).args(args.iter().skip(1)).exec();
    tell!("cannot run {}: {error}", real.display());
    127
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_gets_a_proxy_of_ours_and_a_vm_the_real_one() {
        let dir = tempfile::tempdir().unwrap();
        let [run, bin] = ["run", "bin"].map(|name| dir.path().join(name));
        fs::create_dir(&run).unwrap();
        fs::create_dir(&bin).unwrap();
        let launcher = bin.join("mpirun");
        assert_eq!(named(&run, &launcher).unwrap(), None);
        fs::write(bin.join(PROXY_NAME), "").unwrap();
        fs::write(&launcher, "#!/bin/sh\n").unwrap();
        assert_eq!(named(&run, &launcher).unwrap(), None);
        fs::write(&launcher, "\x7fELF...").unwrap();
        assert_eq!(named(&run, &launcher).unwrap(), Some(run.join("hydra/mpirun")));
        assert_eq!(fs::read_link(run.join("hydra/mpirun")).unwrap(), launcher);
        let command = format!("\"{}\" --rmk user", run.join("hydra").join(PROXY_NAME).display());
        let real = format!("\"{}\" --rmk user", bin.join(PROXY_NAME).display());
        assert_eq!(with_real_proxy(&command, &run), real);
        assert_eq!(with_real_proxy(&command, &bin), command);
    }
}
