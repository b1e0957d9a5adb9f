//! The device by which a VM joins a region, as QEMU's options: the one description of it, for VMs that isthmus boots and
//! for those that people have.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// QEMU's name for the device.
pub const MODEL: &str = "ivshmem-doorbell";
/// The same for one without doorbells.
pub const PLAIN: &str = "ivshmem-plain";
/// The smallest prefetchable window of a root port: one that does not fit below 4 GiB, and that every region fits into or
/// exceeds.
const SMALLEST_WINDOW: u64 = 1 << 30;

/// An ivshmem-doorbell device, and what belongs to it.
#[derive(Clone, Debug)]
pub struct Ivshmem {
    /// The socket of its server.
    pub socket: PathBuf,
    /// The size of its memory: a power of two.
    pub region_bytes: u64,
    /// Interrupt vectors, 1 to 128.
    pub vectors: u32,
    /// In isolated mode, the number of its port's slot, and the other files of the region.
    pub isolated: Option<(u32, Vec<Section>)>,
    /// The memory device that has the region, if there is one: this device is for doorbells then.
    pub dimm: Option<Dimm>,
}

/// An NVDIMM, of which guests' kernels make a memory device (DAX).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dimm {
    /// Its file.
    pub path: PathBuf,
    /// The file's bytes.
    pub bytes: u64,
}

/// How much more memory than it has a VM must have room for, to hold such a device: QEMU leaves a gap of up to 1 GiB before it.
pub fn dimm_room(bytes: u64) -> u64 {
    bytes.next_multiple_of(1 << 30).saturating_add(1 << 30)
}

/// A file of an isolated region that is a device of its own, without doorbells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The number of its port's slot, by which the guest knows it.
    pub slot: u32,
    /// The file.
    pub path: PathBuf,
    /// Its bytes: a power of two.
    pub bytes: u64,
    /// Whether the guest may write there; else what it writes vanishes.
    pub is_writable: bool,
}

/// Bytes of the window that a root port must have for a device: a power of two that its memory fits into.
fn window_of(bytes: u64) -> u64 {
    bytes.max(SMALLEST_WINDOW)
}

impl Ivshmem {
    /// Bytes of the window that the root port must have.
    pub fn window(&self) -> u64 {
        window_of(self.region_bytes)
    }

    /// Bytes of all of its memory.
    pub fn bytes(&self) -> u64 {
        let others = self.isolated.iter().flat_map(|(_, sections)| sections);
        let dimm = self.dimm.as_ref().map_or(0, |dimm| dimm.bytes);
        others.fold(self.region_bytes.saturating_add(dimm), |sum, section| sum.saturating_add(section.bytes))
    }

    /// QEMU's options, each with its value: a connection to the server, a root port with a window above 4 GiB, and the
    /// device there; then for each other file of an isolated region its memory, a port and a device. `id` is the connection's name, and
    /// begins the ports' and the devices'. An isolated region has a chassis for each port, from `chassis` on.
    pub fn options(&self, id: &str, chassis: u32) -> Vec<(&'static str, OsString)> {
        let (window, vectors) = (self.window(), self.vectors);
        let slot = self.isolated.as_ref().map_or_else(String::new, |(slot, _)| numbered(*slot));
        let mut all: Vec<(&'static str, OsString)> = vec![
            ("-chardev", with_path(&format!("socket,id={id},path="), &self.socket, "")),
            (
                "-device",
                format!("pcie-root-port,id={id}-port,chassis={chassis},pref64-reserve={window}{slot}").into(),
            ),
            // Without `master` QEMU lets no VM migrate that has the device.
            (
                "-device",
                format!("{MODEL},id={id}-device,chardev={id},vectors={vectors},master=on,bus={id}-port")
                    .into(),
            ),
        ];
        for section in self.isolated.iter().flat_map(|(_, sections)| sections) {
            let Section { slot, path, bytes, is_writable } = section;
            let (part, chassis) = (format!("{id}-{slot}"), chassis.saturating_add(*slot));
            let (window, numbered) = (window_of(*bytes), numbered(*slot));
            let access = if *is_writable { "" } else { ",readonly=on" };
            let memory = format!("memory-backend-file,id={part},size={bytes},share=on{access},mem-path=");
            all.extend([
                ("-object", with_path(&memory, path, "")),
                (
                    "-device",
                    format!(
                        "pcie-root-port,id={part}-port,chassis={chassis},pref64-reserve={window}{numbered}"
                    )
                    .into(),
                ),
                (
                    "-device",
                    format!("{PLAIN},id={part}-device,memdev={part},master=on,bus={part}-port").into(),
                ),
            ]);
        }
        if let Some(Dimm { path, bytes }) = &self.dimm {
            let memory = format!("memory-backend-file,id={id}-memory,size={bytes},share=on,mem-path=");
            all.extend([
                ("-object", with_path(&memory, path, "")),
                ("-device", format!("nvdimm,id={id}-dimm,memdev={id}-memory").into()),
            ]);
        }
        all
    }
}

/// What a root port has besides in isolated mode: its slot's number, and no window for the ports of the x86, of which there are
/// not enough for many.
fn numbered(slot: u32) -> String {
    format!(",slot={slot},io-reserve=0")
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
            let device =
                Ivshmem { socket: "/a,b/s".into(), region_bytes, vectors: 2, isolated: None, dimm: None };
            let options = device.options("x", 7).into_iter();
            options.map(|(_, value)| value.into_string().unwrap()).collect::<Vec<_>>()
        };
        let small = line(64 << 20);
        assert_eq!(small[0], "socket,id=x,path=/a,,b/s");
        assert_eq!(small[1], "pcie-root-port,id=x-port,chassis=7,pref64-reserve=1073741824");
        assert_eq!(small[2], "ivshmem-doorbell,id=x-device,chardev=x,vectors=2,master=on,bus=x-port");
        assert!(line(4 << 30)[1].ends_with("pref64-reserve=4294967296"));
    }

    #[test]
    fn the_files_of_others_are_devices_that_cannot_be_written() {
        let section =
            |slot, is_writable| Section { slot, path: "/a,b/s".into(), bytes: 2 << 30, is_writable };
        let device = Ivshmem {
            socket: "/s".into(),
            region_bytes: 1 << 21,
            vectors: 2,
            isolated: Some((3, vec![section(1, false), section(2, true)])),
            dimm: None,
        };
        assert_eq!(device.bytes(), (4 << 30) + (1 << 21));
        let options = device.options("x", 7).into_iter();
        let lines: Vec<_> = options.map(|(_, value)| value.into_string().unwrap()).collect();
        assert!(
            lines[1].ends_with("chassis=7,pref64-reserve=1073741824,slot=3,io-reserve=0"),
            "{}",
            lines[1]
        );
        assert_eq!(
            lines[3..6],
            [
                "memory-backend-file,id=x-1,size=2147483648,share=on,readonly=on,mem-path=/a,,b/s",
                "pcie-root-port,id=x-1-port,chassis=8,pref64-reserve=2147483648,slot=1,io-reserve=0",
                "ivshmem-plain,id=x-1-device,memdev=x-1,master=on,bus=x-1-port",
            ]
        );
        assert!(!lines[6].contains("readonly") && lines[7].contains("slot=2") && lines.len() == 9);
    }
}
