//! The little of ELF that packing a program needs: where its loadable part ends, its interpreter, its library name.
//!
//! After the System V gABI, chapters 4 and 5, and the x86-64 supplement (64-bit, little-endian only).

use crate::error::{Error, Result};
use std::path::Path;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_STRTAB: u64 = 5;
const DT_SONAME: u64 = 14;

/// What was read from one file.
#[derive(Debug, PartialEq, Eq)]
pub struct Elf {
    /// The dynamic loader that the program asks for.
    pub interpreter: Option<String>,
    /// The name by which programs ask the loader for this library.
    pub soname: Option<String>,
    /// The end of what is loaded; debug information and section tables lie behind it.
    pub loaded_bytes: usize,
}

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    file_size: u64,
}

/// Reads the headers of an ELF file that lies in `image`.
pub fn parse(path: &Path, image: &[u8]) -> Result<Elf> {
    let bad = |reason| Error::BadElf { path: path.to_owned(), reason };
    if image.get(..6) != Some(b"\x7fELF\x02\x01") {
        return Err(bad("its magic number is another"));
    }
    let cut = || bad("it is cut short");
    let table = usize_of(u64_at(image, 32).ok_or_else(cut)?);
    let entry_size = usize::from(u16_at(image, 54).ok_or_else(cut)?);
    let count = usize::from(u16_at(image, 56).ok_or_else(cut)?);
    let mut segments = Vec::new();
    for index in 0..count {
        let at = table.saturating_add(index * entry_size);
        let segment = (|| {
            Some(Segment {
                kind: u32_at(image, at)?,
                offset: u64_at(image, at.checked_add(8)?)?,
                address: u64_at(image, at.checked_add(16)?)?,
                file_size: u64_at(image, at.checked_add(32)?)?,
            })
        })();
        segments.push(segment.ok_or_else(cut)?);
    }
    let loaded = segments
        .iter()
        .filter(|segment| segment.kind == PT_LOAD)
        .map(|segment| segment.offset.saturating_add(segment.file_size))
        .max()
        .ok_or_else(|| bad("it has nothing to load"))?;
    let loaded_bytes = usize_of(loaded);
    if loaded_bytes > image.len() {
        return Err(cut());
    }
    let interpreter = segments
        .iter()
        .find(|segment| segment.kind == PT_INTERP)
        .and_then(|segment| string_at(image, usize_of(segment.offset)));
    Ok(Elf { interpreter, soname: soname(image, &segments), loaded_bytes })
}

fn soname(image: &[u8], segments: &[Segment]) -> Option<String> {
    let dynamic = segments.iter().find(|segment| segment.kind == PT_DYNAMIC)?;
    let entries = (0..dynamic.file_size / 16).map_while(|index| {
        let at = usize_of(dynamic.offset + index * 16);
        let tag = u64_at(image, at)?;
        (tag != 0).then_some((tag, u64_at(image, at + 8)?))
    });
    let (mut name, mut strings) = (None, None);
    for (tag, value) in entries {
        match tag {
            DT_SONAME => name = Some(value),
            DT_STRTAB => strings = Some(value),
            _ => {}
        }
    }
    let address = strings?;
    let holder = segments.iter().find(|segment| {
        segment.kind == PT_LOAD
            && (segment.address..segment.address.saturating_add(segment.file_size)).contains(&address)
    })?;
    let at = address - holder.address + holder.offset + name?;
    string_at(image, usize_of(at))
}

/// The file without what is never loaded. A debug build shrinks to a tenth by this, and it boots that much sooner.
pub fn strip(path: &Path, mut image: Vec<u8>) -> Result<Vec<u8>> {
    let elf = parse(path, &image)?;
    image.truncate(elf.loaded_bytes.max(64));
    // The section table is gone, so the header must not point at it: its offset, entry size, count and name index.
    image[40..48].fill(0);
    image[58..64].fill(0);
    Ok(image)
}

fn usize_of(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

fn bytes_at<const N: usize>(image: &[u8], at: usize) -> Option<[u8; N]> {
    image.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_at(image: &[u8], at: usize) -> Option<u16> {
    bytes_at(image, at).map(u16::from_le_bytes)
}

fn u32_at(image: &[u8], at: usize) -> Option<u32> {
    bytes_at(image, at).map(u32::from_le_bytes)
}

fn u64_at(image: &[u8], at: usize) -> Option<u64> {
    bytes_at(image, at).map(u64::from_le_bytes)
}

fn string_at(image: &[u8], at: usize) -> Option<String> {
    let rest = image.get(at..)?;
    let end = rest.iter().position(|&byte| byte == 0)?;
    String::from_utf8(rest[..end].to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_executable_is_understood_and_still_runs_when_stripped() {
        let exe = std::env::current_exe().unwrap();
        let image = std::fs::read(&exe).unwrap();
        let elf = parse(&exe, &image).unwrap();
        assert!(elf.interpreter.unwrap().contains("ld-linux"));
        assert!(elf.loaded_bytes <= image.len());
        let small = strip(&exe, image).unwrap();
        let copy = std::env::temp_dir().join(format!("isthmus-elf-{}", std::process::id()));
        std::fs::write(&copy, small).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&copy, mode).unwrap();
        let run =
            || std::process::Command::new(&copy).arg("--list").stdout(std::process::Stdio::null()).status();
        let mut status = run();
        // A child that another test has forked holds the file open for writing until it executes its program.
        while status.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::ExecutableFileBusy) {
            std::thread::sleep(std::time::Duration::from_millis(5));
            status = run();
        }
        std::fs::remove_file(&copy).unwrap();
        assert!(status.unwrap().success());
    }

    #[test]
    fn garbage_is_refused() {
        let path = Path::new("x");
        assert!(parse(path, b"not an elf file").is_err());
        assert!(parse(path, b"\x7fELF\x02\x01").is_err());
    }

    #[test]
    fn the_c_library_knows_its_name() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps
            .lines()
            .filter_map(|line| line.split_whitespace().nth(5))
            .find(|path| path.contains("libc.so") || path.contains("libc-"))
            .unwrap();
        let image = std::fs::read(libc).unwrap();
        let elf = parse(Path::new(libc), &image).unwrap();
        assert_eq!(elf.soname.as_deref(), Some("libc.so.6"));
    }
}
