//! A channel, as programs use it: reading, writing, waiting, and working in the rings in place.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::Duration;

use isthmus_lockfree::stream::pieces;
use isthmus_region::local::LocalBuf;
use isthmus_region::waiting::nap;

use crate::error::{Error, Result};
use crate::event::ChannelId;
use crate::link::{Ended, Link, STOPPED, size};
use crate::peer::Peer;
use crate::piece::{ReadPiece, WritePiece};
use crate::table::at;
use crate::wait::{self, lock};

/// What a program that polls its context's descriptor waits for on a channel ([`Channel::watch`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interest {
    /// Bytes, or the end of the stream.
    pub read: bool,
    /// Room to write.
    pub write: bool,
}

/// A byte stream to another member of the group, and one from it.
///
/// The context at its other end is the *partner*. Any thread may use a channel at any time; one that reads and one that
/// writes do not hinder each other. Dropping it closes it: what was written is still delivered (see [`crate::Context`] for
/// the end of a process), then the partner reads the end of the stream, and what it writes from then on is refused.
///
/// # Source
/// The dissertation's `ivc_write` and `ivc_read`, 6.1.2.
pub struct Channel {
    link: Arc<Link>,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel")
            .field("id", &self.link.id)
            .field("peer", &self.link.peer)
            .finish_non_exhaustive()
    }
}

impl Channel {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self { link }
    }

    /// The channel's name in events of its context.
    pub fn id(&self) -> ChannelId {
        self.link.id
    }

    /// The partner: the member of the group at the other end.
    pub fn peer(&self) -> &Peer {
        &self.link.peer
    }

    /// Bytes of both rings: of the own, which is written here, and of the partner's, which is read.
    pub fn ring_bytes(&self) -> (usize, usize) {
        (size(self.link.ring.len()), size(self.link.partner_ring.len()))
    }

    /// Bytes that this side has read and written since the channel began: the positions of both rings.
    pub fn moved(&self) -> (u64, u64) {
        let read = lock(&self.link.reader).positions.read();
        (read, lock(&self.link.writer).positions.written())
    }

    /// Reads what has come, at most `into.len()` bytes, without waiting. Returns 0 if nothing is there now (or `into` is
    /// empty).
    ///
    /// # Ordering
    /// Bytes come in the order in which they were written; what the writer did before it wrote them is visible (P17).
    ///
    /// # Errors
    /// After all bytes: [`Error::End`], [`Error::PeerDied`], [`Error::Suspended`]. At once: [`Error::Faulty`], and
    /// [`Error::Closed`] once reading was stopped here.
    #[inline]
    pub fn read(&self, into: &mut [u8]) -> Result<usize> {
        let link = &*self.link;
        let mut core = lock(&link.reader);
        let got = link.read_with(&mut core, into.len() as u64, |from, to, len| {
            // Cannot fail: `pieces` gives parts of a ring as long as the capacity.
            let _ = link.partner_ring.get(from, &mut into[size(to)..size(to + len)]);
        });
        core.tell(got).map(size)
    }

    /// As [`Channel::read`], into a buffer given by its address.
    ///
    /// # Errors
    /// As [`Channel::read`].
    pub fn read_buf(&self, into: LocalBuf) -> Result<usize> {
        let link = &*self.link;
        let mut core = lock(&link.reader);
        let got = link.read_with(&mut core, into.len() as u64, |from, to, len| {
            let _ = link.partner_ring.drain(from, into.part(size(to), size(len)));
        });
        core.tell(got).map(size)
    }

    /// As [`Channel::read`], into one buffer after the other.
    ///
    /// # Errors
    /// As [`Channel::read`], if nothing was read before.
    pub fn read_vectored(&self, into: &mut [IoSliceMut<'_>]) -> Result<usize> {
        let mut done = 0;
        for buf in into {
            match self.read(buf) {
                Ok(count) => {
                    done += count;
                    if count < buf.len() {
                        break;
                    }
                }
                Err(_) if done > 0 => {
                    self.tell_read_again();
                    break;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// For a caller that did not pass on the error of its last read: [`crate::Context::arm`] reports the end of reading until one is.
    pub fn tell_read_again(&self) {
        let mut core = lock(&self.link.reader);
        core.told = core.told.saturating_sub(1);
    }

    /// Writes as much of `from` as there is room for, without waiting. Returns 0 if there is no room now, or the channel is
    /// suspended and its partner still has it (or `from` is empty).
    ///
    /// # Errors
    /// [`Error::Closed`]: writing was shut down here, or the partner reads no more. [`Error::PeerDied`],
    /// [`Error::Faulty`].
    #[inline]
    pub fn write(&self, from: &[u8]) -> Result<usize> {
        let link = &*self.link;
        let mut core = lock(&link.writer);
        let put = link.write_with(&mut core, from.len() as u64, |to, at, len| {
            // Cannot fail, as in `read`.
            let _ = link.ring.put(to, &from[size(at)..size(at + len)]);
        });
        core.tell(put).map(size)
    }

    /// As [`Channel::write`], from a buffer given by its address.
    ///
    /// # Errors
    /// As [`Channel::write`].
    pub fn write_buf(&self, from: LocalBuf) -> Result<usize> {
        let link = &*self.link;
        let mut core = lock(&link.writer);
        let put = link.write_with(&mut core, from.len() as u64, |to, at, len| {
            let _ = link.ring.fill(to, from.part(size(at), size(len)));
        });
        core.tell(put).map(size)
    }

    /// As [`Channel::write`], from one buffer after the other.
    ///
    /// # Errors
    /// As [`Channel::write`], if nothing was written before.
    pub fn write_vectored(&self, from: &[IoSlice<'_>]) -> Result<usize> {
        let mut done = 0;
        for buf in from {
            match self.write(buf) {
                Ok(count) => {
                    done += count;
                    if count < buf.len() {
                        break;
                    }
                }
                Err(_) if done > 0 => {
                    self.tell_write_again();
                    break;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// For a caller that did not pass on the error of its last write: [`crate::Context::arm`] reports the end of writing until one is.
    pub fn tell_write_again(&self) {
        let mut core = lock(&self.link.writer);
        core.told = core.told.saturating_sub(1);
    }

    /// Reads at least one byte, waiting at most `limit`, or for ever: spins, then yields, then sleeps.
    ///
    /// # Errors
    /// [`Error::TimedOut`], and as [`Channel::read`].
    pub fn read_some(&self, into: &mut [u8], limit: Option<Duration>) -> Result<usize> {
        let mut got = self.read(into)?;
        if got == 0 && !into.is_empty() {
            let deadline = wait::deadline(limit);
            while got == 0 {
                if !self.link.wait_readable(deadline) {
                    return Err(timed_out("reading from a channel", limit, 0));
                }
                got = self.read(into)?;
            }
        }
        Ok(got)
    }

    /// Fills all of `into`, waiting at most `limit` in all, or for ever.
    ///
    /// # Errors
    /// [`Error::TimedOut`] with the count of bytes that were read, which are in `into`; as [`Channel::read`], whose errors
    /// have no such count: bytes that came before are in `into`.
    pub fn read_exact(&self, into: &mut [u8], limit: Option<Duration>) -> Result<()> {
        let mut done = self.read(into)?;
        if done == into.len() {
            return Ok(());
        }
        let deadline = wait::deadline(limit);
        while done < into.len() {
            if !self.link.wait_readable(deadline) {
                return Err(timed_out("reading from a channel", limit, done));
            }
            done += self.read(&mut into[done..])?;
        }
        Ok(())
    }

    /// Writes all of `from`, waiting for room at most `limit` in all, or for ever. `from` may be longer than the ring.
    ///
    /// # Errors
    /// [`Error::TimedOut`] with the count of bytes that were written; as [`Channel::write`], and [`Error::Suspended`].
    pub fn write_all(&self, from: &[u8], limit: Option<Duration>) -> Result<()> {
        let mut done = self.write(from)?;
        if done == from.len() {
            return Ok(());
        }
        let deadline = wait::deadline(limit);
        while done < from.len() {
            if !self.link.wait_writable(1, deadline) {
                return Err(timed_out("writing to a channel", limit, done));
            }
            done += self.write(&from[done..])?;
            self.check_suspended()?;
        }
        Ok(())
    }

    /// Fails if writing is suspended, which a write of 0 bytes does not tell from a lack of room.
    ///
    /// # Errors
    /// [`Error::Suspended`].
    pub fn check_suspended(&self) -> Result<()> {
        match lock(&self.link.writer).ended {
            Some(Ended::Suspended) => Err(self.link.error(Ended::Suspended)),
            _ => Ok(()),
        }
    }

    /// Waits until there are bytes to read, or reading has ended: at most `limit`, or for ever.
    ///
    /// # Errors
    /// [`Error::TimedOut`].
    pub fn wait_readable(&self, limit: Option<Duration>) -> Result<()> {
        match self.link.wait_readable(wait::deadline(limit)) {
            true => Ok(()),
            false => Err(timed_out("waiting for bytes on a channel", limit, 0)),
        }
    }

    /// Waits until `len` bytes can be written (at most a ring full), or writing has ended: at most `limit`, or for ever.
    ///
    /// # Errors
    /// [`Error::TimedOut`].
    pub fn wait_writable(&self, len: usize, limit: Option<Duration>) -> Result<()> {
        match self.link.wait_writable(len as u64, wait::deadline(limit)) {
            true => Ok(()),
            false => Err(timed_out("waiting for room on a channel", limit, 0)),
        }
    }

    /// Returns up to `most` bytes of the own ring to be written in place, in the order of the stream: two pieces if the
    /// ring's end lies between them, both empty if there is no room. Nothing is published before [`Channel::commit`];
    /// another write or reservation replaces this one.
    ///
    /// # Errors
    /// As [`Channel::write`].
    pub fn reserve(&self, most: usize) -> Result<[WritePiece<'_>; 2]> {
        let link = &*self.link;
        let mut core = lock(&link.writer);
        let most = most as u64;
        let room = match link.may_write(&mut core) {
            Ok(true) => link.make_room(&mut core, most).map(|room| room.min(most)),
            other => other.map(|_| 0),
        };
        let len = core.tell(room)?;
        core.reserved = len;
        let bytes = &link.ring;
        Ok(pieces(core.positions.written(), len, bytes.len()).map(|(at, len)| WritePiece { bytes, at, len }))
    }

    /// Publishes the first `len` bytes of what [`Channel::reserve`] gave, as [`Channel::write`] would.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than were reserved; otherwise as [`Channel::write`], and [`Error::Suspended`]. Nothing is
    /// published then.
    pub fn commit(&self, len: usize) -> Result<()> {
        let link = &*self.link;
        let mut core = lock(&link.writer);
        let may = link.may_write(&mut core);
        if !core.tell(may)? {
            return Err(link.error(Ended::Suspended));
        }
        let value = len as u64;
        if value > core.reserved {
            let allowed = "no more than was reserved last";
            return Err(Error::Invalid { what: "bytes to commit", value, allowed });
        }
        if value > 0 {
            link.publish(&mut core, value);
        }
        Ok(())
    }

    /// Returns up to `most` bytes that have come, in the ring: two pieces if the ring's end lies between them, both empty if
    /// nothing is there. They stay until [`Channel::release`] or a read; another call replaces what this one showed.
    ///
    /// # Errors
    /// As [`Channel::read`].
    pub fn peek(&self, most: usize) -> Result<[ReadPiece<'_>; 2]> {
        let link = &*self.link;
        let mut core = lock(&link.reader);
        let most = most as u64;
        if core.positions.available() < most || core.ended.is_some() {
            let polled = link.poll(&mut core);
            core.tell(polled)?;
        }
        let len = core.positions.available().min(most);
        core.shown = len;
        let bytes = &link.partner_ring;
        let all = pieces(core.positions.read(), len, core.positions.capacity());
        Ok(all.map(|(at, len)| ReadPiece { bytes, at, len }))
    }

    /// Gives the first `len` bytes that [`Channel::peek`] showed back to the writer. Only if this succeeds were they the
    /// partner's own: a program that acts on what it saw in place acts after this.
    ///
    /// # Errors
    /// [`Error::PeerDied`] and the like: what was seen may be anything. [`Error::Invalid`] for more than was shown last
    /// and is there still: nothing is given back then.
    pub fn release(&self, len: usize) -> Result<()> {
        let link = &*self.link;
        let mut core = lock(&link.reader);
        if let Some(ended) = core.ended {
            return core.tell(Err(link.error(ended)));
        }
        let value = len as u64;
        if value > core.shown {
            let allowed = "no more than was shown last";
            return Err(Error::Invalid { what: "bytes to release", value, allowed });
        }
        if value > 0 {
            let consumed = link.consume(&mut core, value);
            core.tell(consumed)?;
        }
        Ok(())
    }

    /// Sets what [`crate::Context::arm`] checks on this channel and its descriptor reports. Nothing at first.
    pub fn watch(&self, interest: Interest) {
        lock(&self.link.state).interest = interest;
    }

    /// Shuts the own direction down: the partner reads what was written, and then the end of the stream. Reading here goes
    /// on.
    pub fn shutdown_write(&self) {
        self.link.shut_write();
    }

    /// Waits until the partner has read everything that was written: at most `limit`, or for ever.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::PeerDied`] or [`Error::Closed`] if it never will.
    pub fn flush(&self, limit: Option<Duration>) -> Result<()> {
        let deadline = wait::deadline(limit);
        let mut tries = 0;
        loop {
            let unread = match self.link.unread() {
                Ok(0) => return Ok(()),
                Ok(_) if self.link.partner.reader(at::STOPPED).get() == STOPPED => {
                    Err(self.link.error(Ended::Closed))
                }
                unread => unread,
            };
            if unread.is_err() {
                return lock(&self.link.writer).tell(unread.map(drop));
            }
            let left = wait::left(deadline);
            if left.is_zero() {
                return Err(timed_out("waiting for the other side to read", limit, 0));
            }
            // Flushing is rare and its latency uncritical, so the reader rings no bell for it.
            nap(Duration::from_micros(20).saturating_mul(1 << u32::min(tries, 6)).min(left));
            tries += 1;
        }
    }

    /// Closes the channel, as dropping it does.
    pub fn close(self) {}

    /// Splits the channel into its two directions, one for a thread each. Dropping one closes that direction; the channel
    /// is closed once both are dropped.
    pub fn split(self) -> (ReadHalf, WriteHalf) {
        let other = Channel { link: Arc::clone(&self.link) };
        (ReadHalf { channel: self }, WriteHalf { channel: other })
    }
}

fn timed_out(action: &'static str, limit: Option<Duration>, moved: usize) -> Error {
    Error::TimedOut { action, limit: limit.unwrap_or(Duration::MAX), moved }
}

/// The direction that is read. Dropping it refuses what the partner writes from then on.
#[derive(Debug)]
pub struct ReadHalf {
    channel: Channel,
}

/// The direction that is written. Dropping it ends the stream after what was written.
#[derive(Debug)]
pub struct WriteHalf {
    channel: Channel,
}

impl Drop for ReadHalf {
    fn drop(&mut self) {
        if !self.channel.link.shared.is_ours() {
            return;
        }
        self.channel.link.stop_reading();
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        if !self.channel.link.shared.is_ours() {
            return;
        }
        self.channel.link.shut_write();
    }
}

impl ReadHalf {
    /// The channel, for those of its functions that read.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// As [`Channel::read`].
    ///
    /// # Errors
    /// As [`Channel::read`].
    #[inline]
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        self.channel.read(into)
    }

    /// As [`Channel::read_some`].
    ///
    /// # Errors
    /// As [`Channel::read_some`].
    pub fn read_some(&mut self, into: &mut [u8], limit: Option<Duration>) -> Result<usize> {
        self.channel.read_some(into, limit)
    }

    /// As [`Channel::read_exact`].
    ///
    /// # Errors
    /// As [`Channel::read_exact`].
    pub fn read_exact(&mut self, into: &mut [u8], limit: Option<Duration>) -> Result<()> {
        self.channel.read_exact(into, limit)
    }
}

impl WriteHalf {
    /// The channel, for those of its functions that write.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// As [`Channel::write`].
    ///
    /// # Errors
    /// As [`Channel::write`].
    #[inline]
    pub fn write(&mut self, from: &[u8]) -> Result<usize> {
        self.channel.write(from)
    }

    /// As [`Channel::write_all`].
    ///
    /// # Errors
    /// As [`Channel::write_all`].
    pub fn write_all(&mut self, from: &[u8], limit: Option<Duration>) -> Result<()> {
        self.channel.write_all(from, limit)
    }
}
