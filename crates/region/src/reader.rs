//! A region that is only looked at: live memory or a file, read and never written.
//!
//! Memory that cannot shrink (a sealed memfd, the BAR of a device) is mapped for reading. Every other file is read with
//! system calls, since a load beyond the end of one that was cut meanwhile would be a signal instead of an error.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use crate::dax;
use crate::driver;
use crate::error::{Error, Result};
use crate::files::cannot_shrink;
use crate::mapping::{Mapping, PeerSection};

/// Read access to what may be a region, or to all of its files one after the other. Nothing about its contents is known.
#[derive(Debug)]
pub struct Reader {
    /// The files, in order.
    parts: Vec<Part>,
    len: u64,
}

#[derive(Debug)]
struct Part {
    source: Source,
    /// Offset of its first byte among all.
    base: u64,
    len: u64,
    /// Whether it is a memory device, or the file of one.
    is_dax: bool,
}

#[derive(Debug)]
enum Source {
    /// Mapped without write access: nothing here hands out a word that could be stored to.
    Memory(PeerSection),
    /// With where the region begins there.
    File(File, u64),
}

impl Reader {
    /// Takes a descriptor that is open for reading.
    ///
    /// # Errors
    /// [`Error::Memory`] with the system's answer; [`Error::NotAFile`].
    pub fn new(fd: OwnedFd) -> Result<Self> {
        let mut reader = Self { parts: Vec::new(), len: 0 };
        reader.add(fd)?;
        Ok(reader)
    }

    /// Takes the next file of the same region.
    ///
    /// # Errors
    /// As [`Reader::new`]; [`Error::Invalid`] behind a file that does not end with a whole word.
    pub fn add(&mut self, fd: OwnedFd) -> Result<()> {
        let failed = |source| Error::Memory { action: "look at", bytes: 0, source };
        let stat = rustix::fs::fstat(&fd).map_err(failed)?;
        let is_memory = cannot_shrink(fd.as_fd());
        let file = File::from(fd);
        let begin = if is_memory { dax::begin(file.as_fd()) } else { dax::begin_in_copy(&file) };
        let (len, is_dax) = match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
            rustix::fs::FileType::RegularFile => {
                (u64::try_from(stat.st_size).unwrap_or(0) - begin, begin > 0)
            }
            _ => {
                let of_driver = driver::bytes(file.as_fd()).map(|len| (len, false));
                let of_dax = || dax::bytes(file.as_fd()).map(|len| (len, true));
                of_driver.or_else(of_dax).ok_or(Error::NotAFile)?
            }
        };
        let base = self.len;
        let all = base.checked_add(len).filter(|_| base.is_multiple_of(8));
        let all = all.ok_or(Error::Invalid { what: "length of a file of the region", value: base })?;
        let source = if len > 0 && is_memory {
            Source::Memory(Mapping::map_for_reading(file.as_fd(), len)?.whole_for_reading())
        } else {
            Source::File(file, begin)
        };
        self.parts.push(Part { source, base, len, is_dax });
        self.len = all;
        Ok(())
    }

    /// Bytes that there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether VMs have it as a memory device ([`crate::dax`]).
    pub fn is_dax(&self) -> bool {
        self.parts.first().is_some_and(|part| part.is_dax)
    }

    /// Whether this is memory that others may be writing, and not a file.
    pub fn is_memory(&self) -> bool {
        self.parts.iter().all(|part| matches!(part.source, Source::Memory(_)))
    }

    /// The part that has the byte at `offset`, or that ends there.
    fn part(&self, what: &'static str, offset: u64, len: u64) -> Result<&Part> {
        let behind = self.parts.partition_point(|part| part.base <= offset);
        let part = behind.checked_sub(1).and_then(|index| self.parts.get(index));
        part.ok_or(Error::OutOfBounds { what, offset, len, limit: self.len })
    }

    /// Reads words, each once and whole where this is memory. `offset` is a multiple of eight.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::Memory`] when the file cannot be read.
    pub fn words(&self, what: &'static str, offset: u64, into: &mut [u64]) -> Result<()> {
        let (mut offset, mut left) = (offset, into);
        while !left.is_empty() {
            let part = self.part(what, offset, left.len() as u64 * 8)?;
            // The words up to the part's end, where others follow; a part that others follow has whole words.
            let here = (part.base + part.len).saturating_sub(offset) / 8;
            let count = match part.base + part.len == self.len {
                true => left.len(),
                false => usize::try_from(here).unwrap_or(usize::MAX).min(left.len()),
            };
            let (now, then) = left.split_at_mut(count);
            part.words(what, offset - part.base, now)?;
            offset = offset.saturating_add(count as u64 * 8);
            left = then;
        }
        Ok(())
    }

    /// Copies bytes.
    ///
    /// # Errors
    /// As [`Reader::words`].
    pub fn bytes(&self, what: &'static str, offset: u64, into: &mut [u8]) -> Result<()> {
        let len = into.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::OutOfBounds { what, offset, len, limit: self.len });
        }
        let (mut offset, mut left) = (offset, into);
        while !left.is_empty() {
            let part = self.part(what, offset, left.len() as u64)?;
            let here = usize::try_from(part.base + part.len - offset).unwrap_or(usize::MAX);
            let (now, then) = left.split_at_mut(here.min(left.len()));
            part.bytes(what, offset - part.base, now)?;
            offset += now.len() as u64;
            left = then;
        }
        Ok(())
    }
}

impl Part {
    fn words(&self, what: &'static str, offset: u64, into: &mut [u64]) -> Result<()> {
        match &self.source {
            Source::Memory(section) => {
                for (at, word) in (0_u64..).zip(into) {
                    let place = offset.saturating_add(at * 8);
                    *word = section.word(what, place)?.get();
                }
                Ok(())
            }
            Source::File(..) => {
                let mut bytes = vec![0; into.len() * 8];
                self.bytes(what, offset, &mut bytes)?;
                for (word, chunk) in into.iter_mut().zip(bytes.chunks_exact(8)) {
                    *word = u64::from_le_bytes(chunk.try_into().unwrap_or_default());
                }
                Ok(())
            }
        }
    }

    fn bytes(&self, what: &'static str, offset: u64, into: &mut [u8]) -> Result<()> {
        let len = into.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::OutOfBounds { what, offset, len, limit: self.len });
        }
        match &self.source {
            Source::Memory(section) => {
                into.copy_from_slice(&section.bytes(what, offset, len)?.to_vec(0, len)?);
                Ok(())
            }
            Source::File(file, begin) => {
                file.read_exact_at(into, begin + offset).map_err(|e| Error::Memory {
                    action: "read",
                    bytes: self.len,
                    source: rustix::io::Errno::from_io_error(&e).unwrap_or(rustix::io::Errno::IO),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn memory_and_file_read_alike_and_no_further_than_they_reach() {
        let memory = crate::create::memory(1 << 20).unwrap();
        let map = Mapping::map(memory.as_fd(), 1 << 20).unwrap();
        map.whole().unwrap().word("t", 4096).unwrap().set(77);
        let path = std::env::temp_dir().join(format!("isthmus-reader-{}", std::process::id()));
        let mut file = File::create(&path).unwrap();
        file.write_all(&map.whole().unwrap().bytes("t", 0, 1 << 20).unwrap().to_vec(0, 1 << 20).unwrap())
            .unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let readers = [Reader::new(memory).unwrap(), Reader::new(file.into()).unwrap()];
        assert!(readers[0].is_memory() && !readers[1].is_memory());
        for reader in readers {
            let (mut words, mut bytes) = ([0; 2], [0; 8]);
            reader.words("t", 4096, &mut words).unwrap();
            reader.bytes("t", 4096, &mut bytes).unwrap();
            assert_eq!((words, bytes[0], reader.len()), ([77, 0], 77, 1 << 20));
            assert!(reader.words("t", (1 << 20) - 8, &mut words).is_err());
            assert!(reader.bytes("t", u64::MAX, &mut bytes).is_err());
        }
    }

    #[test]
    fn files_of_a_region_are_read_one_after_the_other() {
        let memory = || crate::create::memory(1 << 20).unwrap();
        let (first, second) = (memory(), memory());
        let views = [&first, &second].map(|fd| Mapping::map(fd.as_fd(), 1 << 20).unwrap().whole().unwrap());
        views[0].word("t", (1 << 20) - 8).unwrap().set(1);
        views[1].word("t", 0).unwrap().set(2);
        let mut reader = Reader::new(first).unwrap();
        reader.add(second).unwrap();
        assert!(reader.is_memory() && reader.len() == 2 << 20);
        let (mut words, mut bytes) = ([0; 2], [0; 16]);
        reader.words("t", (1 << 20) - 8, &mut words).unwrap();
        reader.bytes("t", (1 << 20) - 8, &mut bytes).unwrap();
        assert_eq!((words, bytes[0], bytes[8]), ([1, 2], 1, 2));
        assert!(reader.words("t", (2 << 20) - 8, &mut words).is_err());
        assert!(reader.bytes("t", 2 << 20, &mut bytes).is_err());
        assert!(reader.words("t", u64::MAX - 7, &mut words).is_err());
        // Words have one place.
        let mut odd = File::from(rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        odd.write_all(b"odd").unwrap();
        let mut reader = Reader::new(odd.into()).unwrap();
        assert!(matches!(reader.add(memory()), Err(Error::Invalid { .. })));
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let (read, _write) = std::io::pipe().unwrap();
        assert!(matches!(Reader::new(read.into()), Err(Error::NotAFile)));
    }
}
