//! What a VM needs to join: the device, as QEMU's options and as libvirt's XML, and the conditions around it.

use std::fmt::Write as _;
use std::path::PathBuf;

use isthmus_attach::ring::PORT;
use isthmus_vm::ivshmem::{Ivshmem, MODEL, with_path};

/// What the parts' names begin with, and the root port's number, which no other of the VM's should have.
const ID: &str = "isthmus";
const CHASSIS: u32 = 77;
/// The PCI controller's index in libvirt's XML: just beyond those that virt-install makes, since libvirt fills gaps
/// with root ports.
const LIBVIRT_INDEX: u32 = 16;

/// The device by which a VM joins a region.
#[derive(Debug, Clone)]
pub struct Device {
    /// The ivshmem socket of the service.
    pub socket: PathBuf,
    /// The service's wake socket.
    pub wake: PathBuf,
    /// Bytes of the region.
    pub region_bytes: u64,
    /// Doorbell vectors.
    pub vectors: u16,
}

impl Device {
    fn ivshmem(&self) -> Ivshmem {
        Ivshmem { socket: self.socket.clone(), region_bytes: self.region_bytes, vectors: self.vectors.into() }
    }

    /// The options for QEMU's command line, one a line.
    pub fn qemu(&self) -> String {
        let [chardev, port, device] = self.ivshmem().options(ID, CHASSIS);
        let bus = format!("{ID}-serial");
        let serial = ("-device", format!("virtio-serial-pci,id={bus}").into());
        let wake = ("-chardev", with_path(&format!("socket,id={ID}-wake,path="), &self.wake, ""));
        let end = ("-device", format!("virtserialport,bus={bus}.0,chardev={ID}-wake,name={PORT}").into());
        let lines = [chardev, port, device, serial, wake, end];
        let lines = lines.map(|(option, value)| format!("{option} {}", value.display()));
        lines.join(" \\\n") + "\n"
    }

    /// The elements for libvirt's `<devices>`.
    pub fn libvirt_devices(&self) -> String {
        let (path, vectors) = (escaped(&self.socket.display().to_string()), self.vectors);
        let wake = escaped(&self.wake.display().to_string());
        format!(
            "<controller type='pci' index='{LIBVIRT_INDEX}' model='pcie-root-port'/>\n\
             <shmem name='isthmus' role='master'>\n  \
               <model type='{MODEL}'/>\n  \
               <server path='{path}'/>\n  \
               <msi vectors='{vectors}'/>\n  \
               <address type='pci' domain='0x0000' bus='0x{LIBVIRT_INDEX:02x}' slot='0x00' function='0x0'/>\n\
             </shmem>\n\
             <channel type='unix'>\n  \
               <source mode='connect' path='{wake}'/>\n  \
               <target type='virtio' name='{PORT}'/>\n\
             </channel>\n"
        )
    }

    /// The element for the end of libvirt's `<domain>`, which gives the root port its window; libvirt has no element
    /// of its own for that.
    pub fn libvirt_override(&self) -> String {
        format!(
            "<override xmlns='http://libvirt.org/schemas/domain/qemu/1.0'>\n  \
               <device alias='pci.{LIBVIRT_INDEX}'>\n    \
                 <frontend>\n      \
                   <property name='pref64-reserve' type='unsigned' value='{}'/>\n    \
                 </frontend>\n  \
               </device>\n\
             </override>\n",
            self.ivshmem().window()
        )
    }

    /// What else such a VM needs, one item each.
    pub fn needs(&self) -> Vec<String> {
        vec![
            "machine type q35. The root port with its 64-bit window puts the region's memory above 4 GiB; below, \
             firmware makes it uncacheable."
                .into(),
            "without KVM: -smp N,maxcpus=2 or more (libvirt: <vcpu current='1'>2</vcpu>), since QEMU emulates a machine \
             that can only ever have one CPU without atomic instructions, and counts get lost."
                .into(),
            "a host name of its own: MPIs take equal names for one host.".into(),
            "the right to connect to both sockets: QEMU runs as you, or its user is let in by `isthmus host --allow USER`, or \
             is in the group of --group (libvirt's QEMU is libvirt-qemu)."
                .into(),
            "the agent, as root inside: `isthmus guest install`, or `isthmus guest` by hand.".into(),
            "its place anew after `isthmus host` was started again: unplug the device and plug it in, or restart the VM. \
             Neither works with a chardev or a server connection that was used before."
                .into(),
            "no snapshot, saving or migration by QEMU or libvirt alone while the device is plugged in: QEMU would take the whole region \
             along and write it over the one that all members use then. Unplug the device before, or switch QEMU's capability \
             x-ignore-shared on, on both sides (docs/threat-model.md)."
                .into(),
        ]
    }

    /// All of it as text for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "On QEMU's command line:\n\n{}", indented(&self.qemu()));
        let _ = writeln!(
            text,
            "or in libvirt's XML, among the <devices>:\n\n{}\n\
             and, as the last element of <domain> (libvirt 8.2 or newer):\n\n{}",
            indented(&self.libvirt_devices()),
            indented(&self.libvirt_override())
        );
        let _ = writeln!(text, "What else the VM needs:\n");
        for need in self.needs() {
            let _ = writeln!(text, "  - {need}");
        }
        text
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

/// `text` as it may stand between single quotes in XML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(socket: &str, region_bytes: u64) -> Device {
        Device { socket: socket.into(), wake: "/w".into(), region_bytes, vectors: 1 }
    }

    #[test]
    fn the_window_holds_the_region() {
        assert!(device("/s", 64 << 20).qemu().contains("pref64-reserve=1073741824 "));
        assert!(device("/s", 8 << 30).qemu().contains("pref64-reserve=8589934592 "));
        assert!(device("/s", 8 << 30).libvirt_override().contains("value='8589934592'"));
    }

    #[test]
    fn odd_paths_are_escaped_for_qemu_and_for_xml() {
        let odd = device("/a,b/it's&<", 1);
        assert!(odd.qemu().contains("path=/a,,b/it's&< "));
        assert!(odd.libvirt_devices().contains("path='/a,b/it&apos;s&amp;&lt;'"));
    }
}
