//! What the VM is called in the addresses of its endpoints: 128 random bits, and a count of the agents that had them.
//!
//! They are kept in a file beside the agent's socket, so an agent that is started anew is the same system as the one before, and
//! the count tells its endpoints from those of its forerunners. The kernel's own `boot_id` would not do: two agents of a VM,
//! each in a region of its own, must be two systems, and so must a VM and its copy. But it tells whether the file is of this boot.
//! A VM that is moved takes the file along, as it takes the agent.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use isthmus_region::address::{Naming, SystemId};

use crate::agent::{Error, Result};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The file of the agent with this socket.
fn file_of(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".system");
    name.into()
}

/// What an agent that starts now is called, with its socket at `socket`.
pub(crate) fn take(socket: &Path) -> Result<Naming> {
    let path = file_of(socket);
    let failed = |source| Error::Identity { path: path.clone(), source };
    let boot = std::fs::read_to_string(BOOT_ID).map_err(failed)?;
    let naming = match std::fs::read_to_string(&path) {
        Ok(text) => next(&text, boot.trim()),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) => return Err(failed(e)),
    };
    let naming = naming.map_or_else(|| SystemId::random().map(Naming::first), Ok)?;
    // Not before it is written: no other agent may use the same count.
    let text = format!("{} {} {}\n", naming.system, naming.former, boot.trim());
    write(&path, text.as_bytes()).map_err(failed)?;
    Ok(naming)
}

/// Puts a new file in the place of the one that is there, whole. The folder may be others' as well, so no link is followed.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let new = path.with_extension("new");
    match std::fs::remove_file(&new) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    std::fs::rename(&new, path)
}

/// The same as another system than before: that of the file is another member's.
pub(crate) fn renew(socket: &Path) -> Result<Naming> {
    let path = file_of(socket);
    match std::fs::remove_file(&path) {
        Err(source) if source.kind() != ErrorKind::NotFound => Err(Error::Identity { path, source }),
        _ => take(socket),
    }
}

/// The name after the one in the file, if that is of this boot.
fn next(text: &str, boot: &str) -> Option<Naming> {
    let [system, former, of] = text.split_whitespace().collect::<Vec<_>>().try_into().ok()?;
    let system = SystemId::parse(system).filter(|system| *system != SystemId::NONE && of == boot)?;
    Some(Naming { system, former: former.parse::<u32>().ok()?.checked_add(1)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_of_a_boot_are_one_system_and_count_on() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, other) = (dir.path().join("socket"), dir.path().join("other"));
        let first = take(&socket).unwrap();
        assert_eq!(first.former, 0);
        assert_eq!(take(&socket).unwrap(), Naming { former: 1, ..first });
        let planted = dir.path().join("planted");
        std::os::unix::fs::symlink(&planted, file_of(&socket).with_extension("new")).unwrap();
        assert_eq!(take(&socket).unwrap(), Naming { former: 2, ..first });
        assert!(!planted.exists(), "a link that another user has made is not followed");
        assert_ne!(take(&other).unwrap().system, first.system, "another region's agent");
        let again = renew(&socket).unwrap();
        assert!(again.system != first.system && again.former == 0);
        assert_eq!(take(&socket).unwrap(), Naming { former: 1, ..again });
    }

    #[test]
    fn what_is_not_of_this_boot_or_cannot_be_right_is_another_system() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let first = take(&socket).unwrap().system;
        let boot = std::fs::read_to_string(BOOT_ID).unwrap();
        let boot = boot.trim();
        for text in [
            format!("{first} 3 00000000-0000-0000-0000-000000000000"),
            format!("{first} {} {boot}", u32::MAX),
            format!("{first} -1 {boot}"),
            format!("{} 3 {boot}", SystemId::NONE),
            format!("{first} 3"),
            String::new(),
        ] {
            std::fs::write(file_of(&socket), &text).unwrap();
            let naming = take(&socket).unwrap();
            assert!(naming.system != first && naming.former == 0, "{text}");
        }
        std::fs::write(file_of(&socket), format!("{first} 3 {boot}")).unwrap();
        assert_eq!(take(&socket).unwrap(), Naming { system: first, former: 4 });
    }
}
