//! The cpio archive ("newc" format) that Linux unpacks as its first root file system.
//!
//! Layout per entry, after `Documentation/driver-api/early-userspace/buffer-format.rst` of Linux: a header of 110 ASCII
//! characters, the name with its NUL, padding to 4 bytes, the data, padding to 4 bytes. The entry `TRAILER!!!` ends an
//! archive; further archives may follow, and later entries replace earlier ones.

/// Writes one archive into memory.
#[derive(Default)]
pub struct Writer {
    out: Vec<u8>,
    next_inode: u32,
}

const DIRECTORY: u32 = 0o040_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
const REGULAR_FILE: u32 = 0o100_000;
const SYMBOLIC_LINK: u32 = 0o120_000;

impl Writer {
    /// An empty archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a directory. Parents are not made by themselves: add them first.
    pub fn directory(&mut self, name: &str, mode: u32) {
        self.entry(name, DIRECTORY | mode, &[], (0, 0));
    }

    /// Adds a regular file.
    pub fn file(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.entry(name, REGULAR_FILE | mode, data, (0, 0));
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, name: &str, target: &str) {
        self.entry(name, SYMBOLIC_LINK | 0o777, target.as_bytes(), (0, 0));
    }

    /// Adds a character device node.
    pub fn character_device(&mut self, name: &str, mode: u32, major: u32, minor: u32) {
        self.entry(name, CHARACTER_DEVICE | mode, &[], (major, minor));
    }

    /// Ends the archive and returns it, padded so that another one can be appended.
    pub fn finish(mut self) -> Vec<u8> {
        self.next_inode = 0;
        self.entry("TRAILER!!!", 0, &[], (0, 0));
        self.out
    }

    fn entry(&mut self, name: &str, mode: u32, data: &[u8], device: (u32, u32)) {
        let name = name.trim_start_matches('/');
        let inode = self.next_inode;
        self.next_inode += 1;
        let links = if mode & DIRECTORY != 0 { 2 } else { 1 };
        let size = u32::try_from(data.len()).expect("files in an initramfs are below 4 GiB");
        let name_size = u32::try_from(name.len() + 1).expect("names are short");
        // uid, gid and the modification time stay 0: the same input gives the same archive.
        let fields = [inode, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name_size, 0];
        self.out.extend_from_slice(b"070701");
        for field in fields {
            self.out.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.out.extend_from_slice(name.as_bytes());
        self.out.push(0);
        self.pad();
        self.out.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.out.resize(self.out.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_the_documented_layout() {
        let mut writer = Writer::new();
        writer.directory(".", 0o755);
        writer.file("/init", 0o755, b"hello");
        let archive = writer.finish();
        assert_eq!(&archive[..6], b"070701");
        assert_eq!(&archive[14..22], b"000041ED");
        // The root entry: 110 bytes of header, ".\0", no data.
        assert_eq!(&archive[110..112], b".\0");
        let second = &archive[112..];
        assert_eq!(&second[..6], b"070701");
        assert_eq!(&second[54..62], b"00000005", "file size");
        assert_eq!(&second[94..102], b"00000005", "name size");
        assert_eq!(&second[110..115], b"init\0");
        // 110 + 5 is padded to 116.
        assert_eq!(&second[116..121], b"hello");
        assert_eq!(archive.len() % 4, 0);
    }

    #[test]
    fn device_nodes_carry_their_numbers() {
        let mut writer = Writer::new();
        writer.character_device("dev/console", 0o600, 5, 1);
        let archive = writer.finish();
        assert_eq!(&archive[14..22], b"00002180");
        assert_eq!(&archive[78..86], b"00000005");
        assert_eq!(&archive[86..94], b"00000001");
    }

    #[test]
    fn archives_can_be_read_by_the_system_tool() {
        if crate::programs::find("cpio").is_none() {
            let what = "cpio reads our archives: it is not there (Debian: cpio)";
            return crate::skipped::skipped(what, crate::skipped::must_be_installed());
        }
        let mut writer = Writer::new();
        writer.directory(".", 0o755);
        writer.directory("a", 0o755);
        writer.file("a/b", 0o644, b"text");
        writer.symlink("l", "a/b");
        let listing = crate::programs::filter("cpio", "cpio", ["-t", "--quiet"], &writer.finish()).unwrap();
        assert_eq!(String::from_utf8(listing).unwrap(), ".\na\na/b\nl\n");
    }
}
