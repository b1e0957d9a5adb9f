//! What a VM needs to join: the device, as QEMU's options and as libvirt's XML, and the conditions around it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

use isthmus_attach::ring::PORT;
use isthmus_region::isolated::slot_of;
use isthmus_region::text::quoted;
use isthmus_vm::ivshmem::{Dimm, Ivshmem, MODEL, Section, with_path};

/// What the parts' names begin with, and the root port's number, which no other of the VM's should have.
const ID: &str = "isthmus";
const CHASSIS: u32 = 77;
/// Bytes of the ivshmem device's memory where it is for doorbells alone.
pub(crate) const BELL_BYTES: u64 = isthmus_region::format::LEAST_REGION_BYTES;
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
    /// In isolated mode, which file of the region the device has, and all others.
    pub isolated: Option<(u32, Vec<File>)>,
    /// The file of a memory device that has the region; the ivshmem device is for doorbells alone then.
    pub dax: Option<File>,
}

/// A file of a region that a VM gets as a device of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its number.
    pub number: u32,
    /// What is in it.
    pub what: What,
    /// Where it can be opened.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: u64,
}

/// What is in such a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The header and the tables, which the host service writes.
    Region,
    /// What all members write.
    Shared,
    /// The section of the member with this name.
    Of(String),
    /// The whole region, behind what a memory device begins with.
    Dax,
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Region => f.write_str("region"),
            Self::Shared => f.write_str("shared"),
            Self::Of(name) => write!(f, "of-{name}"),
            Self::Dax => f.write_str("dax"),
        }
    }
}

impl What {
    fn of(text: &str) -> Option<Self> {
        match text {
            "region" => Some(Self::Region),
            "shared" => Some(Self::Shared),
            "dax" => Some(Self::Dax),
            _ => text.strip_prefix("of-").map(|name| Self::Of(name.to_owned())),
        }
    }
}

impl File {
    /// The name of its link.
    pub(crate) fn link(common: &Path, number: u32, what: &What) -> PathBuf {
        let mut path = common.as_os_str().to_owned();
        path.push(format!("-{number}.{what}"));
        path.into()
    }

    /// The links that a service has made to the files of an isolated region, or to that of a memory device, in order: `COMMON-NUMBER.WHAT`.
    pub(crate) fn links(common: &Path) -> Vec<(u32, What, PathBuf)> {
        let prefix = common.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let parsed = |path: PathBuf| {
            path.symlink_metadata().ok().filter(std::fs::Metadata::is_symlink)?;
            let name = path.file_name()?.to_str()?;
            let (number, what) = name.strip_prefix(prefix)?.strip_prefix('-')?.split_once('.')?;
            Some((number.parse().ok()?, What::of(what)?, path))
        };
        let entries = common.parent().and_then(|folder| std::fs::read_dir(folder).ok());
        let entries = entries.into_iter().flatten().flatten();
        let mut all: Vec<_> = entries.filter_map(|entry| parsed(entry.path())).collect();
        all.sort_by_key(|(number, ..)| *number);
        all
    }

    /// All files of the region whose links begin with `common`, in order. None if QEMU opens none of that region.
    ///
    /// # Errors
    /// [`Error::Link`]: the service is gone, or its files are not for this user.
    pub fn beside(common: &Path) -> Result<Vec<Self>> {
        let of_link = |(number, what, path): (u32, What, PathBuf)| match std::fs::metadata(&path) {
            Ok(found) => Ok(Self { number, what, path, bytes: found.len() }),
            Err(source) => Err(Error::Link { path, source }),
        };
        Self::links(common).into_iter().map(of_link).collect()
    }
}

impl Device {
    /// The same device in an isolated region that has these files, for the VM with this name; none if it has no section there.
    pub fn isolated_as(self, name: &str, files: Vec<File>) -> Option<Self> {
        let is_own = |file: &File| file.what == What::Of(name.to_owned());
        let (own, others): (Vec<_>, Vec<_>) = files.into_iter().partition(is_own);
        let own = own.into_iter().next()?;
        Some(Self { region_bytes: own.bytes, isolated: Some((own.number, others)), ..self })
    }

    /// The same device beside a memory device with this file.
    #[must_use]
    pub fn beside_dax(self, file: File) -> Self {
        Self { region_bytes: BELL_BYTES, dax: Some(file), ..self }
    }

    /// For QEMU's command line.
    pub fn ivshmem(&self) -> Ivshmem {
        let section = |file: &File| Section {
            slot: slot_of(file.number),
            path: file.path.clone(),
            bytes: file.bytes,
            is_writable: file.what == What::Shared,
        };
        let isolated = self.isolated.as_ref();
        Ivshmem {
            socket: self.socket.clone(),
            region_bytes: self.region_bytes,
            vectors: self.vectors.into(),
            isolated: isolated.map(|(own, files)| (slot_of(*own), files.iter().map(section).collect())),
            dimm: self.dax.as_ref().map(|file| Dimm { path: file.path.clone(), bytes: file.bytes }),
        }
    }

    /// The options for QEMU's command line, one a line, as a shell reads them.
    pub fn qemu(&self) -> String {
        let mut lines = self.ivshmem().options(ID, CHASSIS);
        let bus = format!("{ID}-serial");
        lines.extend([
            ("-device", format!("virtio-serial-pci,id={bus}").into()),
            ("-chardev", with_path(&format!("socket,id={ID}-wake,path="), &self.wake, "")),
            ("-device", format!("virtserialport,bus={bus}.0,chardev={ID}-wake,name={PORT}").into()),
        ]);
        let lines: Vec<_> = lines
            .into_iter()
            .map(|(option, value)| format!("{option} {}", quoted(&value.to_string_lossy())))
            .collect();
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
        let memory = self.dax.as_ref().map(|file| {
            format!(
                "room for the memory device: -machine q35,nvdimm=on, and -m SIZE,slots=1,maxmem=MORE, where MORE is SIZE and {} more at least, \
                 and slots counts the VM's other memory devices, too. Inside, a kernel with the modules nfit, nd_pmem, dax_pmem and device_dax \
                 (Debian's generic one has them, and udev loads them), which takes {} of SIZE to describe the region's pages.",
                mib(isthmus_vm::ivshmem::dimm_room(file.bytes)),
                mib((file.bytes / 64).max(1 << 20))
            )
        });
        let right = if self.isolated.is_some() || self.dax.is_some() {
            "the right to connect to both sockets, and to open the files that the lines with memory-backend-file name: QEMU runs as the \
             service's user, or as root; --allow and --group do not help."
        } else {
            "the right to connect to both sockets: QEMU runs as you, or its user is let in by `isthmus host --allow USER`, or \
             is in the group of --group (libvirt's QEMU is libvirt-qemu)."
        };
        let again = if self.dax.is_some() {
            "its QEMU started again after `isthmus host` was started again; a reboot inside is not enough."
        } else {
            "its place anew after `isthmus host` was started again: unplug the device and plug it in, or restart the VM. \
             Neither works with a chardev or a server connection that was used before."
        };
        let saved = if self.dax.is_some() {
            "no snapshot, saving or migration at all: QEMU would write what it saved over the region that all members use, and the memory \
             device cannot be unplugged (docs/threat-model.md)."
        } else {
            "no snapshot, saving or migration by QEMU or libvirt alone while the device is plugged in: QEMU would take the whole region \
             along and write it over the one that all members use then. Unplug the device before, or switch QEMU's capability \
             x-ignore-shared on, on both sides (docs/threat-model.md)."
        };
        let usual = [
            "machine type q35. The root port with its 64-bit window puts the region's memory above 4 GiB; below, \
             firmware makes it uncacheable.",
            "without KVM: -smp N,maxcpus=2 or more (libvirt: <vcpu current='1'>2</vcpu>), since QEMU emulates a machine \
             that can only ever have one CPU without atomic instructions, and counts get lost.",
            "a host name of its own: MPIs take equal names for one host.",
            right,
            "the agent, as root inside: `isthmus guest install`, or `isthmus guest` by hand.",
            again,
            saved,
        ];
        usual.map(String::from).into_iter().chain(memory).collect()
    }

    /// All of it as text for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "On QEMU's command line:\n\n{}", indented(&self.qemu()));
        let _ = match (&self.isolated, &self.dax) {
            (Some(_), _) => writeln!(
                text,
                "libvirt has no element for memory that a VM cannot write; its <qemu:commandline> takes the options above, for a QEMU \
                 that runs as the service's user.\n"
            ),
            (None, Some(_)) => writeln!(
                text,
                "libvirt makes no memory device of a file under /proc; its <qemu:commandline> takes the options above, for a QEMU that \
                 runs as the service's user.\n"
            ),
            (None, None) => writeln!(
                text,
                "or in libvirt's XML, among the <devices>:\n\n{}\n\
             and, as the last element of <domain> (libvirt 8.2 or newer):\n\n{}",
                indented(&self.libvirt_devices()),
                indented(&self.libvirt_override())
            ),
        };
        let _ = writeln!(text, "What else the VM needs:\n");
        for need in self.needs() {
            let _ = writeln!(text, "  - {need}");
        }
        text
    }
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
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
        Device {
            socket: socket.into(),
            wake: "/w".into(),
            region_bytes,
            vectors: 1,
            isolated: None,
            dax: None,
        }
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
        assert!(odd.qemu().contains(r"path=/a,,b/it'\''s&<' "));
        assert!(odd.libvirt_devices().contains("path='/a,b/it&apos;s&amp;&lt;'"));
    }

    #[test]
    fn a_vm_of_an_isolated_region_gets_its_own_file_and_reads_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let common = dir.path().join("s.section");
        let of = |name: &str| What::Of(name.to_owned());
        // A VM may have any name.
        let files = [
            (What::Region, 4096),
            (What::Shared, 8192),
            (of("host"), 4096),
            (of("red"), 16384),
            (of("shared"), 16384),
        ];
        for (number, (what, bytes)) in (0..).zip(files) {
            let file = dir.path().join(number.to_string());
            std::fs::write(&file, vec![0; bytes]).unwrap();
            std::os::unix::fs::symlink(&file, File::link(&common, number, &what)).unwrap();
        }
        std::fs::write(dir.path().join("s.section-x.y"), "").unwrap();
        let found = File::beside(&common).unwrap();
        assert_eq!(found.len(), 5);
        assert!(File::beside(&dir.path().join("other")).unwrap().is_empty());
        let is = |name| device("/s", 1).isolated_as(name, found.clone());
        assert!(is("green").is_none() && is("region").is_none());
        let lines = is("red").unwrap().qemu();
        for part in ["slot=4", "slot=1", "slot=2", "slot=3", "slot=5"] {
            assert_eq!(lines.matches(part).count(), 1, "{part}: {lines}");
        }
        assert_eq!(
            (lines.matches("readonly=on").count(), lines.matches("memory-backend-file").count()),
            (3, 4)
        );
        assert!(lines.contains("size=8192,share=on,mem-path="), "the shared one is written: {lines}");
        assert!(is("red").unwrap().text().contains("qemu:commandline"));
        // As a service leaves them that was killed.
        std::os::unix::fs::symlink("/nowhere", File::link(&common, 5, &of("gone"))).unwrap();
        let said = File::beside(&common).unwrap_err().to_string();
        assert!(said.contains("s.section-5.of-gone"), "{said}");
    }
}
