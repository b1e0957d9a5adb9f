//! The protocol on the virtio-serial ports between the launcher's side ("host") and a VM's agent ("guest").
//!
//! A VM has three ports, so that one kind of traffic cannot stall another: [`EXEC_PORT`] starts processes and carries
//! their standard streams, [`RELAY_PORT`] carries TCP connections, [`CONTROL_PORT`] the rest. All three, and the
//! remote shells that connect to a run from the host, use the same frames:
//!
//! ```text
//!  offset  0        4      5         6           8        12
//!          | len    | kind | channel | 0         | stream | payload, len bytes
//!          | u32 LE | u8   | u8      | u16       | u32 LE |
//! ```
//!
//! Rules:
//! - Both sides begin with [`Kind::Hello`]; any other first frame is an error.
//! - A stream has channels (for a process: 0 in, 1 out, 2 err; for a connection: 0 from the guest, 1 from the
//!   host). Each channel starts with [`WINDOW`] bytes of credit; a receiver gives back with [`Kind::Credit`] what
//!   it has passed on. So what a receiver must buffer is bounded, whatever the sender does.
//! - A frame of an unknown kind, or of a length that its kind does not allow, ends the connection with an error; data
//!   beyond the credit ends the stream. Neither makes the receiver buffer more.

pub mod mux;
mod payload;

use std::io::{self, Read, Write};

pub use self::payload::{Exit, Limit, Request, Window};

/// The port for execution.
pub const EXEC_PORT: &str = "isthmus.exec";
/// The port for relayed connections.
pub const RELAY_PORT: &str = "isthmus.relay";
/// The port for everything else.
pub const CONTROL_PORT: &str = "isthmus.control";
/// A port that joins two VMs, for programs that measure how fast such a port is.
pub const WIRE_PORT: &str = "isthmus.wire";

/// Bytes that may be in flight on one channel.
pub const WINDOW: usize = 64 << 10;
/// Longest payload of a data frame.
pub const MAX_DATA: usize = 16 << 10;
/// Longest payload of any other frame but a request.
const MAX_TEXT: usize = 1 << 20;
/// Longest payload of a request: more than execve(2) takes.
const MAX_REQUEST: usize = 8 << 20;
/// Longest text of the other side that people are shown, in bytes: a line.
pub const MAX_LINE: usize = 1024;
/// Bytes before the payload.
pub const HEADER_BYTES: usize = 12;
/// The payload of a hello: a magic and the version of the protocol.
const HELLO: [u8; 12] = *b"isthmus\0\x02\0\0\0";

/// Standard input of a process; what the guest sends of a connection.
pub const CHANNEL_IN: u8 = 0;
/// Standard output of a process; what the host sends of a connection.
pub const CHANNEL_OUT: u8 = 1;
/// Standard error of a process.
pub const CHANNEL_ERR: u8 = 2;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The other side is gone.
    #[error("the other side closed the connection")]
    Closed,
    /// A frame that neither side may send.
    #[error("a frame of kind {kind} with {len} bytes is not allowed here")]
    BadFrame {
        /// Its kind.
        kind: u8,
        /// Its length.
        len: usize,
    },
    /// The first frame is not a hello of this version.
    #[error("the other side does not speak this version of the protocol; both must be the same isthmus")]
    BadHello,
    /// A payload that cannot be decoded.
    #[error("a {what} that cannot be read")]
    BadPayload {
        /// What it should have been.
        what: &'static str,
    },
    /// The other side sends requests and does not read the answers.
    #[error("the other side asks for answers and does not read them")]
    Unread,
    /// The port or socket failed.
    #[error("the connection failed")]
    Io(#[from] io::Error),
}

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The first frame, in both directions.
    Hello = 1,
    /// Start a process; the payload is a [`Request`]. From the host, which chooses the stream.
    Start = 2,
    /// Bytes of a channel.
    Data = 3,
    /// The receiver of a channel has passed on this many bytes (u32).
    Credit = 4,
    /// No more bytes on a channel.
    End = 5,
    /// The receiver of a channel wants no more.
    Stop = 6,
    /// A signal (i32) for a process. From the host.
    Signal = 7,
    /// A process has ended; the payload is an [`Exit`]. From the guest, last on its stream.
    Exited = 8,
    /// The stream could not be opened, or ended badly; the payload says why.
    Refused = 9,
    /// The stream is gone.
    Close = 10,
    /// Take connections at a port (u16). From the host.
    Listen = 11,
    /// Connections to a port (u16) are taken at another (u16). From the guest.
    Listening = 12,
    /// A connection came in at a port (u16), as announced. From the guest, which chooses the stream.
    Open = 13,
    /// A control message in JSON.
    Control = 14,
    /// A remote shell names a VM and the ports that its command needs, in JSON. To the run.
    Announce = 15,
    /// Where those ports are in the VM, in JSON. From the run to a remote shell.
    Announced = 16,
    /// The window of a process's terminal has another size; the payload is a [`Window`]. From the host.
    Resize = 17,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        use Kind::{
            Announce, Announced, Close, Control, Credit, Data, End, Exited, Hello, Listen, Listening, Open,
            Refused, Resize, Signal, Start, Stop,
        };
        [
            Hello, Start, Data, Credit, End, Stop, Signal, Exited, Refused, Close, Listen, Listening, Open,
            Control, Announce, Announced, Resize,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }

    fn allows(self, len: usize) -> bool {
        match self {
            Self::Hello => len == HELLO.len(),
            Self::Start => len <= MAX_REQUEST,
            Self::Data => (1..=MAX_DATA).contains(&len),
            Self::Credit | Self::Signal | Self::Listening => len == 4,
            Self::End | Self::Stop | Self::Close => len == 0,
            Self::Exited => len == 5,
            Self::Resize => len == 8,
            Self::Listen | Self::Open => len == 2,
            Self::Refused | Self::Control | Self::Announce | Self::Announced => len <= MAX_TEXT,
        }
    }
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it says.
    pub kind: Kind,
    /// Of which channel; 0 where there is none.
    pub channel: u8,
    /// Of which stream; 0 where there is none.
    pub stream: u32,
    /// The rest.
    pub payload: Vec<u8>,
}

impl Frame {
    /// A frame of `stream`.
    pub fn new(kind: Kind, stream: u32, payload: impl Into<Vec<u8>>) -> Self {
        Self { kind, channel: 0, stream, payload: payload.into() }
    }

    /// A frame of a channel of `stream`.
    pub fn of_channel(kind: Kind, stream: u32, channel: u8, payload: impl Into<Vec<u8>>) -> Self {
        Self { kind, channel, stream, payload: payload.into() }
    }

    /// The hello of this version.
    pub fn hello() -> Self {
        Self::new(Kind::Hello, 0, HELLO)
    }

    /// The frame's bytes.
    ///
    /// # Panics
    /// If the kind does not allow a payload of this length, which is a bug of the caller.
    pub fn bytes(&self) -> Vec<u8> {
        assert!(
            self.kind.allows(self.payload.len()),
            "a {:?} frame of {} bytes",
            self.kind,
            self.payload.len()
        );
        let len = u32::try_from(self.payload.len()).expect("bounded by the line above");
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.payload.len());
        bytes.extend(len.to_le_bytes());
        bytes.extend([self.kind as u8, self.channel, 0, 0]);
        bytes.extend(self.stream.to_le_bytes());
        bytes.extend(&self.payload);
        bytes
    }

    /// Whether a payload of `len` bytes may travel in a frame of this kind.
    pub fn fits(kind: Kind, len: usize) -> bool {
        kind.allows(len)
    }

    /// Writes the frame to a blocking connection.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn write_to(&self, mut to: impl Write) -> Result<(), WireError> {
        Ok(to.write_all(&self.bytes())?)
    }

    /// Reads one frame from a blocking connection.
    ///
    /// # Errors
    /// [`WireError::Closed`] at the end of the stream between two frames, [`WireError::BadFrame`], and those of the
    /// connection.
    pub fn read_from(mut from: impl Read) -> Result<Self, WireError> {
        let mut header = [0; HEADER_BYTES];
        let first = loop {
            match from.read(&mut header) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        if first == 0 {
            return Err(WireError::Closed);
        }
        from.read_exact(&mut header[first..])?;
        let (mut frame, len) = Self::parse_header(&header)?;
        frame.payload.resize(len, 0);
        from.read_exact(&mut frame.payload)?;
        Ok(frame)
    }

    /// The frame without its payload, and the payload's length.
    fn parse_header(header: &[u8; HEADER_BYTES]) -> Result<(Self, usize), WireError> {
        let [l0, l1, l2, l3, kind, channel, zero0, zero1, s0, s1, s2, s3] = *header;
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let bad = WireError::BadFrame { kind, len };
        match Kind::from_byte(kind) {
            Some(known) if known.allows(len) && zero0 == 0 && zero1 == 0 => {
                let stream = u32::from_le_bytes([s0, s1, s2, s3]);
                Ok((Self { kind: known, channel, stream, payload: Vec::new() }, len))
            }
            _ => Err(bad),
        }
    }

    /// The payload as a u32.
    ///
    /// # Errors
    /// [`WireError::BadPayload`] if it has another length.
    pub fn number(&self) -> Result<u32, WireError> {
        let bytes = <[u8; 4]>::try_from(self.payload.as_slice());
        bytes.map(u32::from_le_bytes).map_err(|_| WireError::BadPayload { what: "number" })
    }

    /// The payload as a port number.
    ///
    /// # Errors
    /// [`WireError::BadPayload`] if it has another length.
    pub fn port(&self) -> Result<u16, WireError> {
        let bytes = <[u8; 2]>::try_from(self.payload.as_slice());
        bytes.map(u16::from_le_bytes).map_err(|_| WireError::BadPayload { what: "port" })
    }

    /// The payload as text for people, of at most [`MAX_LINE`] bytes.
    pub fn text(&self) -> String {
        line(&String::from_utf8_lossy(&self.payload))
    }

    /// Fails unless this is a hello of this version.
    ///
    /// # Errors
    /// [`WireError::BadHello`].
    pub fn check_hello(&self) -> Result<(), WireError> {
        if self.kind == Kind::Hello && self.payload == HELLO { Ok(()) } else { Err(WireError::BadHello) }
    }
}

/// A text of the other side, for people.
pub fn line(text: &str) -> String {
    isthmus_region::text::printable(isthmus_region::text::cut(text, MAX_LINE))
}

/// Assembles frames from bytes as they come.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    read: usize,
}

impl Decoder {
    /// Takes in what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.read > 0 {
            self.bytes.drain(..self.read);
            self.read = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame, if there is one.
    ///
    /// # Errors
    /// [`WireError::BadFrame`]; then nothing that follows can be decoded.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, WireError> {
        let rest = &self.bytes[self.read..];
        let Some(header) = rest.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let (mut frame, len) = Frame::parse_header(header)?;
        let Some(payload) = rest.get(HEADER_BYTES..HEADER_BYTES + len) else { return Ok(None) };
        frame.payload.extend_from_slice(payload);
        self.read += HEADER_BYTES + len;
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::payload::tests::request;
    use super::*;

    #[test]
    fn frames_are_read_back_however_the_stream_is_cut() {
        let frames = [
            Frame::hello(),
            Frame::new(Kind::Start, 7, request().encode()),
            Frame::of_channel(Kind::Data, u32::MAX, CHANNEL_ERR, vec![1; MAX_DATA]),
            Frame::of_channel(Kind::End, 7, CHANNEL_OUT, []),
        ];
        let bytes: Vec<u8> = frames.iter().flat_map(Frame::bytes).collect();
        for step in [1, 5, 4096, bytes.len()] {
            let mut decoder = Decoder::default();
            let mut got = Vec::new();
            for piece in bytes.chunks(step) {
                decoder.push(piece);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    got.push(frame);
                }
            }
            assert_eq!(got, frames);
        }
        let mut reader = bytes.as_slice();
        for frame in &frames {
            assert_eq!(&Frame::read_from(&mut reader).unwrap(), frame);
        }
        assert!(matches!(Frame::read_from(&mut reader), Err(WireError::Closed)));
    }

    #[test]
    fn a_text_for_people_is_a_line_that_fits_into_a_frame() {
        // One byte of these becomes a character of three.
        let refused = Frame::new(Kind::Refused, 1, vec![0xff; MAX_TEXT]);
        let text = refused.text();
        assert!((1..=MAX_LINE).contains(&text.len()) && Frame::fits(Kind::Refused, text.len()));
        assert_eq!(Frame::new(Kind::Refused, 1, *b"no\x1b").text(), "no?");
    }

    #[test]
    fn bad_frames_are_refused_from_their_header_alone() {
        let header = |len: u32, kind: u8, zero: u8| {
            let mut bytes = len.to_le_bytes().to_vec();
            bytes.extend([kind, 0, zero, 0, 0, 0, 0, 0]);
            bytes
        };
        for bad in [
            header(0, 0, 0),
            header(0, 200, 0),
            header(u32::MAX, Kind::Start as u8, 0),
            header(u32::try_from(MAX_DATA).unwrap() + 1, Kind::Data as u8, 0),
            header(0, Kind::Data as u8, 0),
            header(3, Kind::Credit as u8, 0),
            header(0, Kind::Close as u8, 1),
        ] {
            let mut decoder = Decoder::default();
            decoder.push(&bad);
            assert!(matches!(decoder.next_frame(), Err(WireError::BadFrame { .. })), "{bad:?}");
            assert!(matches!(Frame::read_from(bad.as_slice()), Err(WireError::BadFrame { .. })), "{bad:?}");
        }
    }
}
