//! The device by which a VM joins a region, as QEMU's options: the one description of it, for VMs that isthmus boots and
//! for those that people have.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// QEMU's name for the device.
pub const MODEL: &str = "ivshmem-doorbell";
/// The smallest prefetchable window of a root port: one that does not fit below 4 GiB, and that every region fits into or
/// exceeds.
const SMALLEST_WINDOW: u64 = 1 << 30;

/// An ivshmem-doorbell device.
#[derive(Clone, Debug)]
pub struct Ivshmem {
    /// The socket of its server.
    pub socket: PathBuf,
    /// The size of the shared memory: a power of two.
    pub region_bytes: u64,
    /// Interrupt vectors, 1 to 128.
    pub vectors: u32,
}

impl Ivshmem {
    /// Bytes of the window that the root port must have: a power of two that the region fits into.
    pub fn window(&self) -> u64 {
        self.region_bytes.max(SMALLEST_WINDOW)
    }

    /// QEMU's options, each with its value: a connection to the server, a root port with a window above 4 GiB, and the
    /// device there. `id` is the connection's name, and begins the port's and the device's.
    pub fn options(&self, id: &str, chassis: u32) -> [(&'static str, OsString); 3] {
        let (window, vectors) = (self.window(), self.vectors);
        [
            ("-chardev", with_path(&format!("socket,id={id},path="), &self.socket, "")),
            (
                "-device",
                format!("pcie-root-port,id={id}-port,chassis={chassis},pref64-reserve={window}").into(),
            ),
            // Without `master` QEMU lets no VM migrate that has the device.
            (
                "-device",
                format!("{MODEL},id={id}-device,chardev={id},vectors={vectors},master=on,bus={id}-port")
                    .into(),
            ),
        ]
    }
}

/// A path inside an option list, where a comma is written twice.
pub fn with_path(before: &str, path: &Path, after: &str) -> OsString {
    let mut bytes = before.as_bytes().to_vec();
    for &byte in path.as_os_str().as_bytes() {
        bytes.push(byte);
        if byte == b',' {
            bytes.push(byte);
        }
    }
    bytes.extend_from_slice(after.as_bytes());
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_region_sits_behind_a_port_with_a_window_above_4_gib() {
        let line = |region_bytes| {
            let device = Ivshmem { socket: "/a,b/s".into(), region_bytes, vectors: 2 };
            device.options("x", 7).map(|(_, value)| value.into_string().unwrap())
        };
        let small = line(64 << 20);
        assert_eq!(small[0], "socket,id=x,path=/a,,b/s");
        assert_eq!(small[1], "pcie-root-port,id=x-port,chassis=7,pref64-reserve=1073741824");
        assert_eq!(small[2], "ivshmem-doorbell,id=x-device,chardev=x,vectors=2,master=on,bus=x-port");
        assert!(line(4 << 30)[1].ends_with("pref64-reserve=4294967296"));
    }
}
