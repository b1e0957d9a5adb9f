//! What the launcher tells a VM's first process: one JSON file, `/isthmus.json`, in the VM's initramfs.
//!
//! The format is defined here, where it is written; `isthmus-guest` reads it. The program packs itself into the initramfs, so
//! writer and reader are always of one build, and the format needs no version.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;

/// Where the file lies in the initramfs.
pub const PATH: &str = "/isthmus.json";
/// How lines on the console begin that report a boot's progress.
pub const STEP: &str = "isthmus: booted: ";
/// The directory of the modules in the initramfs.
pub const MODULES: &str = "/modules";
/// The tag of the host's root file system.
pub const ROOT_TAG: &str = "root";

/// Whether VMs use the guest driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DriverChoice {
    /// Where it can be had, else the device's memory by sysfs.
    #[default]
    Auto,
    /// No.
    Off,
    /// Yes, or nothing.
    Require,
}

/// Everything that differs between one VM and the next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootConfig {
    /// The VM's host name.
    pub name: String,
    /// Names and addresses of all VMs of the run; they go to `/etc/hosts`.
    #[serde(default)]
    pub hosts: Vec<HostEntry>,
    /// Directories that are the host's own, mounted over the root at their own paths, in this order.
    #[serde(default)]
    pub shares: Vec<GuestShare>,
    /// Network interfaces besides the loopback.
    #[serde(default)]
    pub interfaces: Vec<Interface>,
    /// Names of the virtio-serial ports to wait for.
    #[serde(default)]
    pub ports: Vec<String>,
    /// Whether to wait for an ivshmem device.
    #[serde(default)]
    pub ivshmem: bool,
    /// Whether it has a memory device (DAX) with the region.
    #[serde(default)]
    pub dax: bool,
    /// Print how long each step of the boot took.
    #[serde(default)]
    pub verbose: bool,
    /// Settings for the agent's other parts, by their names; the boot does not read them.
    #[serde(default)]
    pub extra: BTreeMap<String, serde_json::Value>,
}

/// One line of `/etc/hosts`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostEntry {
    /// The address.
    pub address: Ipv4Addr,
    /// The host name.
    pub name: String,
}

/// A 9p share and where to mount it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestShare {
    /// The tag that QEMU gives it.
    pub tag: String,
    /// The absolute path in the guest, the same as on the host.
    pub path: PathBuf,
    /// Mount it read-only.
    pub read_only: bool,
    /// Options for the 9p client instead of `cache=none`, for instance `cache=mmap`.
    #[serde(default)]
    pub options: Option<String>,
}

/// A network interface and its address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Which one.
    pub kind: InterfaceKind,
    /// Its address.
    pub address: Ipv4Addr,
    /// The length of its network prefix.
    pub prefix: u8,
}

/// Which interface it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InterfaceKind {
    /// Leads nowhere; MPI launchers need an interface that is not the loopback.
    Dummy,
    /// The virtio-net device with this hardware address.
    VirtioNet {
        /// Six hexadecimal bytes with colons, lower case.
        mac: String,
    },
}

impl BootConfig {
    /// The file's content.
    ///
    /// # Errors
    /// A path that is not UTF-8.
    pub fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec_pretty(self)
    }

    /// Whether the guest needs the modules for a network.
    pub fn wants_network(&self) -> bool {
        self.interfaces.iter().any(|interface| matches!(interface.kind, InterfaceKind::VirtioNet { .. }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_survives_the_round_trip() {
        let config = BootConfig {
            name: "vm1".into(),
            hosts: vec![HostEntry { address: Ipv4Addr::new(10, 1, 2, 3), name: "vm1".into() }],
            shares: vec![GuestShare {
                tag: "share0".into(),
                path: "/home/user/work".into(),
                read_only: false,
                options: None,
            }],
            interfaces: vec![
                Interface { kind: InterfaceKind::Dummy, address: Ipv4Addr::new(10, 1, 2, 3), prefix: 24 },
                Interface {
                    kind: InterfaceKind::VirtioNet { mac: "52:54:00:00:00:01".into() },
                    address: Ipv4Addr::new(10, 77, 0, 1),
                    prefix: 24,
                },
            ],
            ports: vec!["exec".into()],
            ivshmem: true,
            dax: false,
            verbose: true,
            extra: BTreeMap::from([("agent".to_owned(), serde_json::json!({"uid": 1000}))]),
        };
        let back: BootConfig = serde_json::from_slice(&config.to_json().unwrap()).unwrap();
        assert_eq!(back, config);
        assert!(back.wants_network());
    }

    #[test]
    fn a_path_that_is_not_utf_8_is_an_error() {
        use std::os::unix::ffi::OsStrExt;
        let path = std::ffi::OsStr::from_bytes(b"/home/\xff").into();
        let share = GuestShare { tag: "share0".into(), path, read_only: false, options: None };
        let config = BootConfig { shares: vec![share], ..BootConfig::default() };
        assert!(config.to_json().is_err());
    }

    #[test]
    fn a_name_alone_is_a_config() {
        let config: BootConfig = serde_json::from_str(r#"{"name":"a"}"#).unwrap();
        assert!(!config.wants_network() && config.ports.is_empty());
    }
}
