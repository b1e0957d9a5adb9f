//! Many byte streams over one connection: descriptors on this side, frames on the other.
//!
//! What is read from a *source* is sent; what is received is written to a *sink*. The mux handles data, credit and
//! ends; every other frame is for its owner. Nothing here blocks: a descriptor is read or written only when poll(2)
//! says so, and then no more than it takes without blocking.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::{Decoder, Frame, Kind, MAX_DATA, WINDOW, WireError};

/// A channel of a stream.
pub type Key = (u32, u8);

/// While more than this waits to be sent, no source is read.
const OUT_MARK: usize = 4 * MAX_DATA;
/// With more than this waiting, the connection is ended: sources stop long before, so these are answers to a side
/// that sends requests and does not read.
const OUT_LIMIT: usize = 4 << 20;
/// What a pipe takes without blocking when poll(2) says that it takes anything (pipe(7)).
const SURE_BYTES: usize = 4096;

#[derive(Debug)]
struct Source {
    fd: OwnedFd,
    credit: usize,
}

#[derive(Debug)]
struct Sink {
    /// `None` once its reader is gone; what comes is then dropped.
    fd: Option<OwnedFd>,
    waiting: VecDeque<u8>,
    ending: bool,
    /// Bytes that the sender may still send.
    granted: usize,
    /// Bytes that were passed on and not given back as credit yet.
    owed: usize,
}

/// One connection and its streams.
#[derive(Debug)]
pub struct Mux {
    port: OwnedFd,
    decoder: Decoder,
    greeted: bool,
    out: VecDeque<u8>,
    sources: BTreeMap<Key, Source>,
    sinks: BTreeMap<Key, Sink>,
}

/// What one [`Mux::wait`] brought.
#[derive(Debug, Default)]
pub struct Turn {
    /// A frame for the owner. What follows it is handled in the next turn, so that the owner can first add the
    /// streams that the frame opens.
    pub frame: Option<Frame>,
    /// The owner's descriptors that are ready, by index.
    pub ready: Vec<usize>,
}

/// Makes `fd` non-blocking. It must be this process's own end of a pipe or socket, since the flag is shared with all
/// copies.
///
/// # Errors
/// Those of fcntl(2).
pub fn set_nonblocking(fd: impl AsFd) -> io::Result<()> {
    let flags = fcntl_getfl(&fd)?;
    Ok(fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?)
}

impl Mux {
    /// A mux over `port`, which sends its hello.
    ///
    /// # Errors
    /// If the port cannot be made non-blocking.
    pub fn new(port: OwnedFd) -> io::Result<Self> {
        set_nonblocking(&port)?;
        let mut mux = Self {
            port,
            decoder: Decoder::default(),
            greeted: false,
            out: VecDeque::new(),
            sources: BTreeMap::new(),
            sinks: BTreeMap::new(),
        };
        mux.send(&Frame::hello());
        Ok(mux)
    }

    /// A mux over `port`, on which both sides have sent their hello.
    ///
    /// # Errors
    /// If the port cannot be made non-blocking.
    pub fn greeted_already(port: OwnedFd) -> io::Result<Self> {
        let mut mux = Self::new(port)?;
        mux.out.clear();
        mux.greeted = true;
        Ok(mux)
    }

    /// Whether the other side's hello was received.
    pub fn greeted(&self) -> bool {
        self.greeted
    }

    /// Queues a frame.
    pub fn send(&mut self, frame: &Frame) {
        self.out.extend(frame.bytes());
    }

    /// Sends what is read from `fd` on channel `key`.
    pub fn add_source(&mut self, key: Key, fd: OwnedFd) {
        self.sources.insert(key, Source { fd, credit: WINDOW });
    }

    /// Writes what is received on channel `key` to `fd`.
    pub fn add_sink(&mut self, key: Key, fd: OwnedFd) {
        let sink = Sink { fd: Some(fd), waiting: VecDeque::new(), ending: false, granted: WINDOW, owed: 0 };
        self.sinks.insert(key, sink);
    }

    /// Whether a channel is open, as a source or a sink.
    pub fn has(&self, key: Key) -> bool {
        self.sources.contains_key(&key) || self.sinks.contains_key(&key)
    }

    /// Whether a source is not read, since the other side has to take first what was sent.
    pub fn is_held_up(&self, key: Key) -> bool {
        let has_room = self.out.len() < OUT_MARK;
        self.sources.get(&key).is_some_and(|source| !has_room || source.credit == 0)
    }

    /// How many channels are open.
    pub fn channels(&self) -> usize {
        self.sources.len() + self.sinks.len()
    }

    /// Whether received bytes of a channel wait to be written.
    pub fn has_waiting(&self, key: Key) -> bool {
        self.sinks.get(&key).is_some_and(|sink| !sink.waiting.is_empty())
    }

    /// Once the connection has ended: polls a channel's reader, and writes what still waits for it as far as it takes that. Gives
    /// whether more waits.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn write_rest(&mut self, key: Key, timeout: &Timespec) -> io::Result<bool> {
        let Some(Sink { fd: Some(fd), .. }) = self.sinks.get(&key) else { return Ok(false) };
        let mut waits = [PollFd::new(fd, PollFlags::OUT)];
        match poll(&mut waits, Some(timeout)) {
            Err(Errno::INTR) | Ok(0) => {}
            Err(e) => return Err(e.into()),
            Ok(_) => self.write_sink(key),
        }
        Ok(self.has_waiting(key))
    }

    /// Drops all channels of a stream at once.
    pub fn drop_stream(&mut self, stream: u32) {
        self.sources.retain(|key, _| key.0 != stream);
        self.sinks.retain(|key, _| key.0 != stream);
    }

    /// Waits for an event on the connection, a stream, or a descriptor of the owner (which it polls for reading), and
    /// moves data of the streams as far as that goes.
    ///
    /// # Errors
    /// [`WireError::Closed`] when the other side is gone; any other error ends the connection as well.
    pub fn wait(&mut self, owners: &[BorrowedFd<'_>], timeout: Option<&Timespec>) -> Result<Turn, WireError> {
        if self.out.len() > OUT_LIMIT {
            return Err(WireError::Unread);
        }
        if let Some(frame) = self.take_frames()? {
            // The owner's descriptors wait for a later turn; the number of frames in one read is bounded.
            self.flush()?;
            return Ok(Turn { frame: Some(frame), ready: Vec::new() });
        }
        let room = self.out.len() < OUT_MARK;
        let mut port_events = PollFlags::IN;
        port_events.set(PollFlags::OUT, !self.out.is_empty());
        let readable: Vec<Key> = self
            .sources
            .iter()
            .filter(|(_, source)| room && source.credit > 0)
            .map(|(key, _)| *key)
            .collect();
        let writable: Vec<Key> =
            self.sinks.iter().filter(|(_, sink)| !sink.waiting.is_empty()).map(|(key, _)| *key).collect();
        let mut waits = vec![PollFd::new(&self.port, port_events)];
        waits.extend(owners.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
        waits.extend(readable.iter().map(|key| PollFd::new(&self.sources[key].fd, PollFlags::IN)));
        for key in &writable {
            if let Some(fd) = &self.sinks[key].fd {
                waits.push(PollFd::new(fd, PollFlags::OUT));
            }
        }
        match poll(&mut waits, timeout) {
            Err(Errno::INTR) => return Ok(Turn::default()),
            other => other.map_err(io::Error::from)?,
        };
        let events: Vec<PollFlags> = waits.iter().map(PollFd::revents).collect();
        drop(waits);
        let (port, rest) = (events[0], &events[1..]);
        let (owned, rest) = rest.split_at(owners.len());
        let (sources, sinks) = rest.split_at(readable.len());
        let mut turn = Turn::default();
        turn.ready.extend(owned.iter().enumerate().filter(|(_, e)| !e.is_empty()).map(|(i, _)| i));
        // A port whose other side is gone shows HUP, perhaps with IN, and then a read gives 0 bytes.
        if port.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) && !port.contains(PollFlags::IN)
        {
            return Err(WireError::Closed);
        }
        for (key, event) in writable.into_iter().zip(sinks) {
            if !event.is_empty() {
                self.write_sink(key);
            }
        }
        for (key, event) in readable.into_iter().zip(sources) {
            if !event.is_empty() {
                self.read_source(key);
            }
        }
        if port.contains(PollFlags::IN) {
            self.read_port()?;
            turn.frame = self.take_frames()?;
        }
        self.flush()?;
        Ok(turn)
    }

    fn flush(&mut self) -> Result<(), WireError> {
        while !self.out.is_empty() {
            match rustix::io::write(&self.port, self.out.as_slices().0) {
                Ok(written) => drop(self.out.drain(..written)),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                // The other side is gone. What it had sent before is read first, and then the end is.
                Err(Errno::PIPE | Errno::CONNRESET) => self.out.clear(),
                Err(e) => return Err(io::Error::from(e).into()),
            }
        }
        Ok(())
    }

    fn read_port(&mut self) -> Result<(), WireError> {
        let mut buffer = [0; 2 * MAX_DATA];
        match rustix::io::read(&self.port, &mut buffer) {
            Ok(0) | Err(Errno::CONNRESET) => return Err(WireError::Closed),
            Ok(got) => self.decoder.push(&buffer[..got]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(e) => return Err(io::Error::from(e).into()),
        }
        Ok(())
    }

    /// Handles received frames up to the first one for the owner, which is returned.
    fn take_frames(&mut self) -> Result<Option<Frame>, WireError> {
        while let Some(frame) = self.decoder.next_frame()? {
            if !self.greeted {
                frame.check_hello()?;
                self.greeted = true;
                continue;
            }
            match frame.kind {
                Kind::Data => self.received(&frame),
                Kind::Credit => {
                    let more = frame.number()? as usize;
                    if let Some(source) = self.sources.get_mut(&(frame.stream, frame.channel)) {
                        // At most a window: a wrong figure must not make this side send more.
                        source.credit = source.credit.saturating_add(more).min(WINDOW);
                    }
                }
                Kind::End => {
                    if let Some(sink) = self.sinks.get_mut(&(frame.stream, frame.channel)) {
                        sink.ending = true;
                        self.settle((frame.stream, frame.channel));
                    }
                }
                Kind::Stop => drop(self.sources.remove(&(frame.stream, frame.channel))),
                _ => return Ok(Some(frame)),
            }
        }
        Ok(None)
    }

    /// Data for a sink. What comes for a channel that has ended meanwhile is dropped.
    fn received(&mut self, frame: &Frame) {
        let key = (frame.stream, frame.channel);
        let Some(sink) = self.sinks.get_mut(&key) else { return };
        let Some(granted) = sink.granted.checked_sub(frame.payload.len()) else {
            // More than its credit: end the stream.
            self.drop_stream(frame.stream);
            self.send(&Frame::new(Kind::Refused, frame.stream, *b"data beyond the credit"));
            return;
        };
        sink.granted = granted;
        if sink.fd.is_some() {
            sink.waiting.extend(&frame.payload);
        }
    }

    fn read_source(&mut self, key: Key) {
        let Some(source) = self.sources.get_mut(&key) else { return };
        let mut buffer = [0; MAX_DATA];
        let len = source.credit.min(MAX_DATA);
        match rustix::io::read(&source.fd, &mut buffer[..len]) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            // A terminal or socket that fails has no more data, which is all that the other side needs to know.
            Ok(0) | Err(_) => {
                self.sources.remove(&key);
                self.send(&Frame::of_channel(Kind::End, key.0, key.1, []));
            }
            Ok(got) => {
                source.credit -= got;
                self.send(&Frame::of_channel(Kind::Data, key.0, key.1, &buffer[..got]));
            }
        }
    }

    fn write_sink(&mut self, key: Key) {
        let Some(sink) = self.sinks.get_mut(&key) else { return };
        let Some(fd) = &sink.fd else { return };
        let chunk = sink.waiting.as_slices().0;
        match rustix::io::write(fd, &chunk[..chunk.len().min(SURE_BYTES)]) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => {
                sink.fd = None;
                sink.waiting.clear();
                self.send(&Frame::of_channel(Kind::Stop, key.0, key.1, []));
            }
            Ok(written) => {
                sink.waiting.drain(..written);
                sink.owed += written;
                let owed = sink.owed;
                if owed >= WINDOW / 4 {
                    sink.owed = 0;
                    sink.granted += owed;
                    let owed = u32::try_from(owed).expect("no more than a window");
                    self.send(&Frame::of_channel(Kind::Credit, key.0, key.1, owed.to_le_bytes()));
                }
            }
        }
        self.settle(key);
    }

    /// Ends a sink that is ending and has written everything.
    fn settle(&mut self, key: Key) {
        let done = |sink: &Sink| sink.ending && sink.waiting.is_empty();
        if self.sinks.get(&key).is_some_and(done)
            && let Some(fd) = self.sinks.remove(&key).and_then(|sink| sink.fd)
        {
            // A socket may be shared with a source, so closing it would not do. For a pipe this fails, and closing it
            // does.
            let _ = rustix::net::shutdown(&fd, rustix::net::Shutdown::Write);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

    fn pair() -> (Mux, Mux) {
        let (a, b) = UnixStream::pair().unwrap();
        (Mux::new(a.into()).unwrap(), Mux::new(b.into()).unwrap())
    }

    fn turn_until(a: &mut Mux, b: &mut Mux, what: &str, mut done: impl FnMut(&Mux, &Mux) -> bool) {
        let start = Instant::now();
        while !done(a, b) {
            a.wait(&[], Some(&TICK)).unwrap();
            b.wait(&[], Some(&TICK)).unwrap();
            assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        }
    }

    #[test]
    fn bytes_and_their_end_arrive_in_order() {
        let (mut a, mut b) = pair();
        let (source, mut feed) = io::pipe().unwrap();
        let (mut drain, sink) = io::pipe().unwrap();
        a.add_source((1, 0), source.into());
        b.add_sink((1, 0), sink.into());
        let text: Vec<u8> = (0..3_000_000u32).map(|i| i.to_le_bytes()[i as usize % 3]).collect();
        let sent = text.clone();
        let writer = std::thread::spawn(move || feed.write_all(&sent).unwrap());
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            drain.read_to_end(&mut got).unwrap();
            got
        });
        turn_until(&mut a, &mut b, "the end comes", |a, b| !a.has((1, 0)) && !b.has((1, 0)));
        writer.join().unwrap();
        assert!(reader.join().unwrap() == text);
    }

    #[test]
    fn a_reader_that_does_not_read_stops_only_its_own_channel() {
        let (mut a, mut b) = pair();
        let (slow_source, mut slow_feed) = io::pipe().unwrap();
        let (_slow_drain, slow_sink) = io::pipe().unwrap();
        let (source, mut feed) = io::pipe().unwrap();
        let (mut drain, sink) = io::pipe().unwrap();
        a.add_source((1, 0), slow_source.into());
        b.add_sink((1, 0), slow_sink.into());
        a.add_source((2, 0), source.into());
        b.add_sink((2, 0), sink.into());
        std::thread::spawn(move || slow_feed.write_all(&[7; 4 << 20]));
        for _ in 0..200 {
            a.wait(&[], Some(&TICK)).unwrap();
            b.wait(&[], Some(&TICK)).unwrap();
        }
        assert_eq!(a.sources[&(1, 0)].credit, 0);
        assert!(b.sinks[&(1, 0)].waiting.len() <= WINDOW);
        feed.write_all(b"through").unwrap();
        drop(feed);
        turn_until(&mut a, &mut b, "the other channel goes on", |_, b| !b.has((2, 0)));
        let mut got = String::new();
        drain.read_to_string(&mut got).unwrap();
        assert_eq!(got, "through");
    }

    #[test]
    fn data_right_behind_the_frame_that_opens_its_stream_is_not_lost() {
        let (mut peer, end) = UnixStream::pair().unwrap();
        let mut mux = Mux::new(end.into()).unwrap();
        let mut bytes = Frame::hello().bytes();
        bytes.extend(Frame::new(Kind::Open, 1, [0, 0]).bytes());
        bytes.extend(Frame::of_channel(Kind::Data, 1, 0, *b"early").bytes());
        bytes.extend(Frame::of_channel(Kind::End, 1, 0, []).bytes());
        peer.write_all(&bytes).unwrap();
        let (mut drain, sink) = io::pipe().unwrap();
        let mut sink = Some(sink);
        while sink.is_some() || mux.has((1, 0)) {
            if mux.wait(&[], Some(&TICK)).unwrap().frame.is_some() {
                mux.add_sink((1, 0), sink.take().unwrap().into());
            }
        }
        let mut got = String::new();
        drain.read_to_string(&mut got).unwrap();
        assert_eq!(got, "early");
    }

    #[test]
    fn a_reader_that_is_gone_stops_the_source() {
        let (mut a, mut b) = pair();
        let (source, mut feed) = io::pipe().unwrap();
        let (drain, sink) = io::pipe().unwrap();
        a.add_source((1, 0), source.into());
        b.add_sink((1, 0), sink.into());
        drop(drain);
        feed.write_all(b"x").unwrap();
        turn_until(&mut a, &mut b, "the source is dropped", |a, _| !a.has((1, 0)));
        assert_eq!(feed.write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn data_beyond_the_credit_ends_the_stream_and_nothing_else() {
        let (mut liar, end) = UnixStream::pair().unwrap();
        let mut mux = Mux::new(end.into()).unwrap();
        let (_drain, sink) = io::pipe().unwrap();
        mux.add_sink((1, 0), sink.into());
        Frame::hello().write_to(&mut liar).unwrap();
        // The pipe behind the sink takes 64 KiB by itself, the window as much again.
        for _ in 0..3 * WINDOW / MAX_DATA {
            Frame::of_channel(Kind::Data, 1, 0, vec![0; MAX_DATA]).write_to(&mut liar).unwrap();
            mux.wait(&[], Some(&TICK)).unwrap();
        }
        for _ in 0..200 {
            mux.wait(&[], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        }
        assert!(!mux.has((1, 0)));
    }

    #[test]
    fn a_side_that_sends_requests_and_does_not_read_is_cut_off() {
        let (mut liar, end) = UnixStream::pair().unwrap();
        let mut mux = Mux::new(end.into()).unwrap();
        Frame::hello().write_to(&mut liar).unwrap();
        let asks: Vec<u8> = (0..1000).flat_map(|i| Frame::new(Kind::Open, i, [0, 0]).bytes()).collect();
        for _ in 0..1000 {
            liar.write_all(&asks).unwrap();
            for _ in 0..1000 {
                match mux.wait(&[], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
                    Ok(turn) => {
                        if let Some(asked) = turn.frame {
                            mux.send(&Frame::new(Kind::Refused, asked.stream, vec![b'n'; 100]));
                        }
                    }
                    Err(WireError::Unread) => return assert!(mux.out.len() < 2 * OUT_LIMIT),
                    Err(e) => panic!("{e}"),
                }
            }
        }
        panic!("{} bytes wait", mux.out.len());
    }

    #[test]
    fn the_other_side_must_say_hello_first() {
        let (mut liar, end) = UnixStream::pair().unwrap();
        let mut mux = Mux::new(end.into()).unwrap();
        Frame::new(Kind::Close, 1, []).write_to(&mut liar).unwrap();
        assert!(matches!(mux.wait(&[], Some(&TICK)), Err(WireError::BadHello)));
    }

    #[test]
    fn the_end_of_the_connection_is_reported() {
        let (mut a, b) = pair();
        a.wait(&[], Some(&TICK)).unwrap();
        drop(b);
        let end = loop {
            if let Err(e) = a.wait(&[], Some(&TICK)) {
                break e;
            }
        };
        assert!(matches!(end, WireError::Closed));
    }
}
