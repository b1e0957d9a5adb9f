//! Loads the kernel modules that the launcher put into the initramfs, in the order of its list.

use super::{Result, cannot};
use isthmus_vm::boot_config::MODULES;
use rustix::io::Errno;
use std::fs;
use std::path::Path;

/// Loads all modules of the group `base`, those of the group `net` if `network` is set, and those of `dax` if `dax` is.
pub(super) fn load(network: bool, dax: bool) -> Result<()> {
    let dir = Path::new(MODULES);
    let order = dir.join("order");
    let text = fs::read_to_string(&order).map_err(cannot(format!("read {}", order.display())))?;
    for file in wanted(&text, network, dax) {
        let path = dir.join(file);
        let module = fs::File::open(&path).map_err(cannot(format!("open {}", path.display())))?;
        match rustix::system::finit_module(&module, c"", 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(cannot(format!("load the kernel module {file}"))(error)),
        }
    }
    Ok(())
}

/// Loads the guest driver, if the launcher has put it there. Without it the agent goes the other way, so a failure is only told.
pub(super) fn load_driver() {
    let path = Path::new(MODULES).join(isthmus_vm::driver::MODULE);
    let Ok(module) = fs::File::open(&path) else { return };
    if let Err(error) = rustix::system::finit_module(&module, c"", 0) {
        super::console(&format!("isthmus: cannot load the guest driver: {error}"));
    }
}

/// The files to load from lines of `GROUP FILE`.
fn wanted(order: &str, network: bool, dax: bool) -> impl Iterator<Item = &str> {
    order
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(move |(group, _)| {
            *group == "base" || (*group == "net" && network) || (*group == "dax" && dax)
        })
        .map(|(_, file)| file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_of_devices_are_loaded_only_for_those() {
        let order = "base a.ko\nnet b.ko\nbase c.ko\nlater d.ko\ndax e.ko\n";
        assert_eq!(wanted(order, false, false).collect::<Vec<_>>(), ["a.ko", "c.ko"]);
        assert_eq!(wanted(order, true, false).collect::<Vec<_>>(), ["a.ko", "b.ko", "c.ko"]);
        assert_eq!(wanted(order, false, true).collect::<Vec<_>>(), ["a.ko", "c.ko", "e.ko"]);
    }
}
