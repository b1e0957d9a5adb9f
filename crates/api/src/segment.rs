//! Named segments: bytes that all processes see that open the same name.

use std::sync::Arc;

use isthmus_region::Listed;
use isthmus_region::objects::{Access, Kind, NewObject, Object};
use isthmus_region::value::Value;

use crate::attachment::Attachment;
use crate::error::{Error, Result};

/// Bytes that are copied at once when values are converted to bytes and back.
const CHUNK_BYTES: usize = 4096;

/// How a segment is opened or made.
#[derive(Debug, Clone)]
pub struct SegmentOptions {
    here: Attachment,
    name: String,
    mode: u32,
    ends_with_creator: bool,
}

impl SegmentOptions {
    pub(crate) fn new(here: &Attachment, name: &str) -> Self {
        Self { here: here.clone(), name: name.into(), mode: 0o600, ends_with_creator: false }
    }

    /// The mode of a segment that is made, as of a file; `0o600` by default.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Has its name removed when the process that makes it ends, in whatever way. By default the name lasts until it is unlinked
    /// or the region ends.
    #[must_use]
    pub fn ends_with_creator(mut self) -> Self {
        self.ends_with_creator = true;
        self
    }

    fn made(&self, len: u64, or_open: bool) -> Result<Segment> {
        let new = NewObject {
            kind: Kind::Segment,
            name: self.name.clone(),
            len,
            mode: self.mode,
            ends_with_creator: self.ends_with_creator,
            params: [0; 4],
            or_open,
        };
        let object = Object::create(&self.here.0, &new)?;
        Segment::new(object, &self.name)
    }

    /// Makes it, with `len` bytes, all zeros.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::Full`]; [`Error::Invalid`] for a name or length that cannot be.
    pub fn create(&self, len: u64) -> Result<Segment> {
        self.made(len, false)
    }

    /// Opens it, or makes it with `len` bytes if there is none. An existing segment keeps its length, which may differ.
    ///
    /// # Errors
    /// As [`SegmentOptions::create`] and [`SegmentOptions::open`].
    pub fn or_create(&self, len: u64) -> Result<Segment> {
        self.made(len, true)
    }

    /// Opens it for reading and writing.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Denied`].
    pub fn open(&self) -> Result<Segment> {
        self.opened(Access::Write)
    }

    /// Opens it for reading.
    ///
    /// # Errors
    /// As [`SegmentOptions::open`].
    pub fn open_to_read(&self) -> Result<Segment> {
        self.opened(Access::Read)
    }

    fn opened(&self, access: Access) -> Result<Segment> {
        let object = Object::open(&self.here.0, Kind::Segment, &self.name, access)?;
        Segment::new(object, &self.name)
    }
}

/// A segment that this process has open, until the last clone is dropped.
///
/// Only words ([`Segment::word`]), locks and the like order one process's writes with another one's reads: copies are plain
/// copies, and may see a half-written one.
#[derive(Debug, Clone)]
pub struct Segment {
    object: Object,
    name: String,
    _listed: Arc<Listed>,
}

impl Segment {
    fn new(object: Object, name: &str) -> Result<Self> {
        let section = object.section();
        let listed = Arc::new(section.list("segment", 0, section.len())?);
        Ok(Self { object, name: name.into(), _listed: listed })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes, as many as there were when it was opened.
    pub fn len(&self) -> u64 {
        self.object.section().len()
    }

    /// Whether there are none: never, as a segment has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether this very call made it.
    pub fn is_new(&self) -> bool {
        self.object.is_new()
    }

    fn outside(&self, e: isthmus_region::Error) -> Error {
        match e {
            isthmus_region::Error::OutOfBounds { offset, len, limit, .. } => {
                Error::OutOfBounds { name: self.name.clone(), offset, len, limit }
            }
            other => other.into(),
        }
    }

    fn inside(&self, offset: u64, len: u64) -> Result<()> {
        self.object.section().holds("values", offset, len).map_err(|e| self.outside(e))
    }

    fn writable(&self) -> Result<()> {
        match self.object.access() {
            Access::Write => Ok(()),
            Access::Read => Err(Error::ReadOnly { name: self.name.clone() }),
        }
    }

    pub(crate) fn writable_object(&self) -> Result<&Object> {
        self.writable().map(|()| &self.object)
    }

    /// Copies a value out.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    #[inline]
    pub fn get<T: Value>(&self, offset: u64) -> Result<T> {
        self.object.section().get(offset).map_err(|e| self.outside(e))
    }

    /// Copies a value in.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::ReadOnly`].
    #[inline]
    pub fn set<T: Value>(&self, offset: u64, value: T) -> Result<()> {
        self.writable()?;
        self.object.section().set(offset, value).map_err(|e| self.outside(e))
    }

    /// Copies all bytes of `into` out, from `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; nothing is copied then.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.object.section().copy_out(offset, into).map_err(|e| self.outside(e))
    }

    /// Copies all bytes of `from` in, to `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::ReadOnly`]. Nothing is copied then.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.writable()?;
        self.object.section().fill_bytes("segment", offset, from).map_err(|e| self.outside(e))
    }

    /// Fills all of `into` with values that lie one behind the other from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; nothing is copied then.
    pub fn get_all<T: Value>(&self, offset: u64, into: &mut [T]) -> Result<()> {
        self.inside(offset, size_of_all(into))?;
        let mut bytes = chunk::<T>();
        let mut at = offset;
        for values in into.chunks_mut(bytes.len() / T::BYTES.max(1)) {
            let bytes = &mut bytes[..values.len() * T::BYTES];
            self.read(at, bytes)?;
            for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(T::BYTES.max(1))) {
                *value = T::take(bytes);
            }
            at += bytes.len() as u64;
        }
        Ok(())
    }

    /// Copies all values of `from` in, one behind the other from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::ReadOnly`]. Nothing is copied then.
    pub fn set_all<T: Value>(&self, offset: u64, from: &[T]) -> Result<()> {
        self.writable()?;
        self.inside(offset, size_of_all(from))?;
        let mut bytes = chunk::<T>();
        let mut at = offset;
        for values in from.chunks(bytes.len() / T::BYTES.max(1)) {
            let bytes = &mut bytes[..values.len() * T::BYTES];
            for (value, bytes) in values.iter().zip(bytes.chunks_exact_mut(T::BYTES.max(1))) {
                value.put(bytes);
            }
            self.write(at, bytes)?;
            at += bytes.len() as u64;
        }
        Ok(())
    }

    /// An atomic word of eight bytes, at a multiple of eight.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], also for another offset; [`Error::ReadOnly`].
    pub fn word(&self, offset: u64) -> Result<Word<'_>> {
        self.writable()?;
        let word = self.object.section().word("word", offset).map_err(|e| self.outside(e))?;
        Ok(Word(word))
    }

    /// The address of its first byte in this process, to share the memory with C.
    ///
    /// # Errors
    /// Never for a segment that is open.
    pub fn address(&self) -> Result<u64> {
        let section = self.object.section();
        Ok(section.address(0, section.len())?)
    }

    /// Makes it smaller; returns the new length. A process that has it open already still sees all of it. If a process died in a
    /// minitransaction, a process that opened the segment later may complete it, and then only in what is left.
    ///
    /// # Errors
    /// [`Error::Invalid`] for none, or for more than it has; [`Error::Denied`].
    pub fn shrink(&self, len: u64) -> Result<u64> {
        Ok(self.object.shrink(len)?)
    }
}

fn size_of_all<T: Value>(values: &[T]) -> u64 {
    values.len() as u64 * T::BYTES as u64
}

/// Room for at least one value; as much as fits well.
fn chunk<T: Value>() -> Vec<u8> {
    let size = T::BYTES.max(1);
    vec![0; size * (CHUNK_BYTES / size).max(1)]
}

/// An atomic word of a segment: a load acquires, a store releases, the rest does both.
#[derive(Debug, Clone, Copy)]
pub struct Word<'a>(&'a isthmus_region::sync::Word);

impl Word<'_> {
    /// Reads it, with acquire.
    #[inline]
    pub fn load(self) -> u64 {
        self.0.get()
    }

    /// Writes it, with release.
    #[inline]
    pub fn store(self, value: u64) {
        self.0.set(value);
    }

    /// Adds to it and returns the former value, with acquire and release; wraps around.
    #[inline]
    pub fn fetch_add(self, by: u64) -> u64 {
        self.0.add(by)
    }

    /// Exchanges it and returns the former value, with acquire and release.
    #[inline]
    pub fn swap(self, value: u64) -> u64 {
        self.0.swap(value)
    }

    /// Stores `new` if the value is `old`, with acquire and release.
    ///
    /// # Errors
    /// The value, if it is another one.
    #[inline]
    pub fn compare_exchange(self, old: u64, new: u64) -> std::result::Result<(), u64> {
        self.0.replace(old, new)
    }
}
