//! The payload of a message that arrives, wherever it lies until it is placed.

use isthmus_region::PeerSection;
use isthmus_region::local::LocalBuf;

use super::poll::Stop;
use crate::lane::Size;
use crate::matching::Bufs;

/// What a handler gets beside the words of a message.
pub(super) enum Payload<'a> {
    /// In memory of this process: of an in-line message, which was copied out of its slot, or of one that was kept.
    Bytes(&'a [u8]),
    /// In memory that the sender writes. What was copied from there is believed once the sender's record was read again (P5).
    Section { section: &'a PeerSection, offset: u64, len: u64 },
}

impl<'a> Payload<'a> {
    /// What a message claims to have in its sender's section.
    ///
    /// # Errors
    /// [`Stop::Faulty`] if the section has no such bytes; [`Stop::Unmapped`] if they cannot be mapped.
    #[inline]
    pub(super) fn within(section: &'a PeerSection, offset: u64, len: u64) -> Result<Self, Stop> {
        section.reach("payload", offset, len).map_err(Stop::of)?;
        Ok(Self::Section { section, offset, len })
    }

    /// The same in a data ring. None of these is longer; without the limit a single slot could make us copy a whole section.
    ///
    /// # Errors
    /// [`Stop::Faulty`] if it is longer than any data ring; as [`Payload::within`].
    #[inline]
    pub(super) fn in_data_ring(section: &'a PeerSection, offset: u64, len: u64) -> Result<Self, Stop> {
        if len > Size::USUAL.data_bytes {
            return Err(Stop::Faulty);
        }
        Self::within(section, offset, len)
    }

    /// Bytes.
    #[inline]
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Section { len, .. } => *len,
        }
    }

    /// Whether what is copied may have been written by another than the sender.
    #[inline]
    pub(super) fn is_shared(&self) -> bool {
        matches!(self, Self::Section { .. })
    }

    /// Copies bytes from `at` on, as many as `into` has.
    ///
    /// # Errors
    /// [`Stop::Faulty`] if there are not as many.
    #[inline]
    pub(super) fn copy(&self, at: u64, into: LocalBuf) -> Result<(), Stop> {
        match self {
            Self::Bytes(bytes) => {
                let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..));
                let part = rest.and_then(|rest| rest.get(..into.len())).ok_or(Stop::Faulty)?;
                into.write(part);
                Ok(())
            }
            Self::Section { section, offset, len } => {
                let fits = at.checked_add(into.len() as u64).is_some_and(|end| end <= *len);
                let copied = fits.then(|| section.drain("payload", offset + at, into));
                copied.ok_or(Stop::Faulty)?.map_err(|_| Stop::Faulty)
            }
        }
    }

    /// Copies the first `len` bytes to `at` of `bufs`.
    ///
    /// # Errors
    /// As [`Payload::copy`].
    #[inline]
    pub(super) fn place(&self, len: u64, bufs: &Bufs, at: u64) -> Result<(), Stop> {
        bufs.pieces(at, len, |done, piece| self.copy(done, piece))
    }

    /// Copies all of it.
    ///
    /// # Errors
    /// [`Stop::Faulty`] if it is not as long as `into`.
    pub(super) fn read(&self, into: &mut [u8]) -> Result<(), Stop> {
        if self.len() != into.len() as u64 {
            return Err(Stop::Faulty);
        }
        match self {
            Self::Bytes(bytes) => into.copy_from_slice(bytes),
            Self::Section { section, offset, len } => {
                let bytes = section.bytes("payload", *offset, *len);
                bytes.and_then(|bytes| bytes.get(0, into)).map_err(|_| Stop::Faulty)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};

    use isthmus_region::mapping::Mapping;

    use super::*;

    #[test]
    fn a_payload_is_placed_alike_wherever_it_lies_and_goes_no_further() {
        let fd = isthmus_region::create::memory(1 << 20).unwrap();
        let map = Mapping::map(fd.as_fd(), 1 << 20).unwrap();
        let all: Vec<u8> = (0..100).collect();
        map.whole().unwrap().fill_bytes("payload", 500, &all).unwrap();
        let section = map.whole_for_reading();
        for payload in [Payload::Bytes(&all), Payload::within(&section, 500, 100).ok().unwrap()] {
            assert_eq!(payload.len(), 100);
            let [a, b] = [30, 90].map(|len| LocalBuf::leaked(vec![0; len]));
            let bufs = Bufs::new(&[a, b]);
            assert!(payload.place(100, &bufs, 10).is_ok());
            assert_eq!([&a.to_vec()[10..], &b.to_vec()[..80]].concat(), all);
            assert!(payload.copy(70, a).is_ok() && payload.copy(71, a).is_err());
            assert!(payload.copy(u64::MAX, a).is_err());
            assert!(payload.place(101, &bufs, 0).is_err());
            let mut whole = [0; 100];
            assert!(payload.read(&mut whole).is_ok() && payload.read(&mut [0; 101]).is_err());
            assert_eq!(whole[..], all);
        }
        for (offset, len) in [((1 << 20) - 99, 100), (u64::MAX, 1), (1, u64::MAX)] {
            assert!(matches!(Payload::within(&section, offset, len), Err(Stop::Faulty)));
        }
        let longest = Size::USUAL.data_bytes;
        assert!(Payload::in_data_ring(&section, 0, longest).is_ok());
        assert!(Payload::in_data_ring(&section, 0, longest + 1).is_err());
        assert!(Payload::within(&section, 0, 1).is_ok_and(|p| p.is_shared()));
    }

    #[test]
    fn what_cannot_be_mapped_is_no_fault_of_its_sender() {
        let fd = isthmus_region::create::memory(1 << 20).unwrap();
        // The system refuses to map this to be written.
        let read_only = std::fs::File::open(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
        let section = Mapping::map_as_device(read_only.as_fd(), 1 << 20).unwrap().whole_for_reading();
        let unmapped = Payload::within(&section, 500, 100);
        assert!(matches!(unmapped, Err(Stop::Unmapped(rustix::io::Errno::ACCESS))));
        assert!(matches!(Payload::within(&section, 1 << 20, 1), Err(Stop::Faulty)));
        let device = Mapping::map_as_device(fd.as_fd(), 1 << 20).unwrap().whole_for_reading();
        assert!(Payload::within(&device, 500, 100).is_ok());
    }
}
