//! Finds the devices that the launcher announced, in sysfs, since the guest has no udev.

use super::{BootError, Result, cannot};
use isthmus_region::source::Ivshmem;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::AsFd;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Devices are there within tens of milliseconds; a host that is overloaded may need longer.
const LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(3);

/// Waits for the virtio-serial ports of these names and returns their devices.
pub(super) fn ports(names: &[String]) -> Result<BTreeMap<String, PathBuf>> {
    let missing = |found: &BTreeMap<String, PathBuf>| {
        let names: Vec<_> = names.iter().filter(|name| !found.contains_key(*name)).collect();
        format!("virtio-serial port {names:?}")
    };
    let mut found = BTreeMap::new();
    let all = wait(|| {
        found = ports_below(Path::new("/sys/class/virtio-ports"));
        names.iter().all(|name| found.get(name).is_some_and(|device| device.exists())).then_some(())
    });
    match all {
        Some(()) => {
            found.retain(|name, _| names.contains(name));
            Ok(found)
        }
        None => Err(absent(missing(&found))),
    }
}

/// Waits until the host's side of a virtio-serial port is open. Returns false if `limit` has passed.
///
/// Until then reads return 0, as they do after the host has closed it: an agent that took that for the end would
/// leave before its launcher came. The kernel shows a missing host by POLLHUP alone, whose end is no event to wait
/// for, so this polls.
pub fn wait_for_host(port: impl AsFd, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        let mut fds = [PollFd::new(&port, PollFlags::OUT)];
        let now = Timespec::default();
        let polled = rustix::event::poll(&mut fds, Some(&now));
        if polled.is_ok() && !fds[0].revents().contains(PollFlags::HUP) {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
}

fn ports_below(class: &Path) -> BTreeMap<String, PathBuf> {
    let entries = fs::read_dir(class).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let name = fs::read_to_string(entry.path().join("name")).ok()?;
            Some((name.trim().to_owned(), Path::new("/dev").join(entry.file_name())))
        })
        .collect()
}

/// Finds the ivshmem device and switches its memory on.
pub(super) fn ivshmem() -> Result<Ivshmem> {
    // Of an isolated region there are others, without doorbells.
    let found = wait(|| Ivshmem::find().into_iter().find(|device| device.doorbell));
    let device = found.ok_or_else(|| absent("the ivshmem device".to_owned()))?;
    device.switch_on().map_err(BootError::Region)?;
    match device.bytes {
        0 => {
            let none = std::io::Error::from(std::io::ErrorKind::NotFound);
            Err(cannot("find the memory of the ivshmem device (has it an address?)")(none))
        }
        _ => Ok(device),
    }
}

/// The name of the network interface with this hardware address.
pub(super) fn network_interface(mac: &str) -> Result<String> {
    wait(|| interface_below(Path::new("/sys/class/net"), mac))
        .ok_or_else(|| absent(format!("the network interface {mac}")))
}

fn interface_below(class: &Path, mac: &str) -> Option<String> {
    let entries = fs::read_dir(class).ok()?.flatten();
    entries
        .filter(|entry| {
            fs::read_to_string(entry.path().join("address"))
                .is_ok_and(|text| text.trim().eq_ignore_ascii_case(mac))
        })
        .find_map(|entry| entry.file_name().into_string().ok())
}

fn wait<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let found = look();
        if found.is_some() || Instant::now() > deadline {
            return found;
        }
        std::thread::sleep(PAUSE);
    }
}

fn absent(what: String) -> BootError {
    BootError::NoDevice { what, seconds: LIMIT.as_secs() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> PathBuf {
        static NEXT: isthmus_region::shared_by_threads::Count =
            isthmus_region::shared_by_threads::Count::new(0);
        let number = NEXT.add(1);
        let root = std::env::temp_dir().join(format!("isthmus-sysfs-{}-{number}", std::process::id()));
        for (path, content) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    #[test]
    fn ports_are_found_by_name() {
        let class = tree(&[("vport1p1/name", "exec\n"), ("vport1p2/name", "relay\n")]);
        let found = ports_below(&class);
        fs::remove_dir_all(&class).unwrap();
        assert_eq!(found["relay"], Path::new("/dev/vport1p2"));
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn interfaces_are_found_by_address() {
        let class = tree(&[("lo/address", "00:00:00:00:00:00\n"), ("eth0/address", "52:54:00:00:00:0a\n")]);
        let found = interface_below(&class, "52:54:00:00:00:0A");
        fs::remove_dir_all(&class).unwrap();
        assert_eq!(found.as_deref(), Some("eth0"));
    }
}
