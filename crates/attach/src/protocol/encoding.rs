//! The bytes of the frames.

use isthmus_region::directory::AreaGrant;
use isthmus_region::extent::Extent;
use isthmus_region::objects::sysv::{Change, Sharing};
use isthmus_region::objects::{Access, Kind, MAX_NAME, NewObject, ObjectGrant};
use isthmus_region::text::cut;

use super::{Code, MAX_FRAME, MAX_TEXT, NAME_BYTES, Observed, Reply, Request, VERSION, Welcome};
use crate::error::{Error, Result};

const HEADER: usize = 16;

mod kind {
    pub(super) const HELLO: u32 = 1;
    pub(super) const GROW: u32 = 2;
    pub(super) const OPEN_ENDPOINT: u32 = 3;
    pub(super) const CLOSE_ENDPOINT: u32 = 4;
    pub(super) const DETACH: u32 = 5;
    pub(super) const OBSERVE: u32 = 6;
    pub(super) const WAKE: u32 = 8;
    pub(super) const BELL: u32 = 9;
    pub(super) const CREATE: u32 = 10;
    pub(super) const OPEN: u32 = 11;
    pub(super) const CLOSE: u32 = 12;
    pub(super) const SHRINK: u32 = 13;
    pub(super) const UNLINK: u32 = 14;
    pub(super) const WATCH: u32 = 15;
    pub(super) const RING: u32 = 16;
    pub(super) const FILE: u32 = 17;
    pub(super) const PROCESS: u32 = 18;
    pub(super) const HOLD: u32 = 19;
    pub(super) const RELEASE: u32 = 20;
    pub(super) const CHANGE: u32 = 21;
    pub(super) const REMOVE: u32 = 22;
    pub(super) const SETTLE: u32 = 23;
    pub(super) const ENTER: u32 = 24;
    pub(super) const REMOVED: u32 = 25;
    pub(super) const SHARE: u32 = 26;
    pub(super) const FORGET: u32 = 27;
    pub(super) const WELCOME: u32 = 0x81;
    pub(super) const EXTENT: u32 = 0x82;
    pub(super) const ENDPOINT: u32 = 0x83;
    pub(super) const DONE: u32 = 0x84;
    pub(super) const OBSERVED: u32 = 0x85;
    pub(super) const OBJECT: u32 = 0x86;
    pub(super) const LEN: u32 = 0x87;
    pub(super) const BELL_IS: u32 = 0x88;
    pub(super) const FILE_IS: u32 = 0x89;
    pub(super) const PROCESS_IS: u32 = 0x8a;
    pub(super) const REFUSED: u32 = 0xff;
}

impl Code {
    fn from_wire(code: u32) -> Self {
        match code {
            1 => Self::Version,
            2 => Self::NotAllowed,
            3 => Self::Full,
            4 => Self::Invalid,
            5 => Self::BadFrame,
            7 => Self::NotFound,
            8 => Self::Exists,
            9 => Self::Denied,
            _ => Self::Failed,
        }
    }
}

struct Put(Vec<u8>);

impl Put {
    fn new(kind: u32, sequence: u64) -> Self {
        Self(Vec::with_capacity(256)).u32(kind).u32(0).u64(sequence)
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn name(mut self, name: &str) -> Self {
        let start = self.0.len();
        self.0.extend_from_slice(cut(name, NAME_BYTES - 1).as_bytes());
        self.0.resize(start + NAME_BYTES, 0);
        self
    }

    fn object_name(mut self, name: &str) -> Self {
        let start = self.0.len();
        self.0.extend_from_slice(cut(name, MAX_NAME).as_bytes());
        self.0.resize(start + MAX_NAME + 1, 0);
        self
    }

    fn words(self, words: [u64; 4]) -> Self {
        words.into_iter().fold(self, Self::u64)
    }

    fn text(mut self, text: &str) -> Self {
        self.0.extend_from_slice(cut(text, MAX_TEXT).as_bytes());
        self
    }

    fn end(mut self) -> Vec<u8> {
        // No frame is longer than MAX_FRAME, so the length always fits.
        let len = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0[4..8].copy_from_slice(&len.to_le_bytes());
        self.0
    }
}

struct Take<'a>(&'a [u8]);

impl<'a> Take<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let (head, rest) =
            self.0.split_at_checked(count).ok_or(Error::BadFrame { what: "it is too short" })?;
        self.0 = rest;
        Ok(head)
    }

    fn u32(&mut self) -> Result<u32> {
        self.bytes(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from(self.u32()?) | (u64::from(self.u32()?) << 32))
    }

    fn name(&mut self) -> Result<String> {
        let bytes = self.bytes(NAME_BYTES)?;
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    fn object_name(&mut self) -> Result<String> {
        self.exact_name(MAX_NAME + 1, "an object's name is not UTF-8")
    }

    /// A name that must be another one's as it is.
    fn exact_name(&mut self, room: usize, what: &'static str) -> Result<String> {
        let bytes = self.bytes(room)?;
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        String::from_utf8(bytes[..end].to_vec()).map_err(|_| Error::BadFrame { what })
    }

    fn kind(&mut self) -> Result<Kind> {
        Kind::of(self.u32()?).ok_or(Error::BadFrame { what: "an object of an unknown kind" })
    }

    fn words(&mut self) -> Result<[u64; 4]> {
        Ok([self.u64()?, self.u64()?, self.u64()?, self.u64()?])
    }

    fn text(&mut self) -> String {
        String::from_utf8_lossy(std::mem::take(&mut self.0)).into_owned()
    }

    fn end(&self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Error::BadFrame { what: "it is too long" }) }
    }
}

/// Splits a frame into kind, sequence number and body.
fn open(frame: &[u8]) -> Result<(u32, u64, Take<'_>)> {
    let mut take = Take(frame);
    let kind = take.u32()?;
    let len = take.u32()?;
    let sequence = take.u64()?;
    if usize::try_from(len).ok() != Some(frame.len()) || frame.len() > MAX_FRAME {
        return Err(Error::BadFrame { what: "its length is not what it says" });
    }
    Ok((kind, sequence, take))
}

/// The sequence number of a frame, or 0 if it is too short for one; for the reply to a frame that is otherwise wrong.
pub fn sequence_of(frame: &[u8]) -> u64 {
    let mut take = Take(frame.get(8..HEADER).unwrap_or(&[]));
    take.u64().unwrap_or(0)
}

impl Request {
    /// The request as a frame.
    pub fn encode(&self, sequence: u64) -> Vec<u8> {
        match self {
            Self::Hello { version, pid, name, image } => {
                Put::new(kind::HELLO, sequence).u32(*version).u32(*pid).name(name).u64(*image).end()
            }
            Self::Grow { bytes } => Put::new(kind::GROW, sequence).u64(*bytes).end(),
            Self::OpenEndpoint { block } => Put::new(kind::OPEN_ENDPOINT, sequence).u64(*block).end(),
            Self::CloseEndpoint { slot } => Put::new(kind::CLOSE_ENDPOINT, sequence).u32(*slot).u32(0).end(),
            Self::Detach => Put::new(kind::DETACH, sequence).end(),
            Self::Observe { version, file } => {
                Put::new(kind::OBSERVE, sequence).u32(*version).u32(*file).end()
            }
            Self::Wake { slot } => Put::new(kind::WAKE, sequence).u32(*slot).u32(0).end(),
            Self::Bell { slot } => Put::new(kind::BELL, sequence).u32(*slot).u32(0).end(),
            Self::Create(new) => Put::new(kind::CREATE, sequence)
                .u32(new.kind as u32)
                .u32(new.mode)
                .u32(u32::from(new.ends_with_creator))
                .u32(u32::from(new.or_open))
                .u64(new.len)
                .words(new.params)
                .object_name(&new.name)
                .end(),
            Self::Open { kind, name, access } => Put::new(kind::OPEN, sequence)
                .u32(*kind as u32)
                .u32(u32::from(*access == Access::Write))
                .object_name(name)
                .end(),
            Self::Close { index, incarnation } => {
                Put::new(kind::CLOSE, sequence).u32(*index).u32(0).u64(*incarnation).end()
            }
            Self::Shrink { index, incarnation, len } => {
                Put::new(kind::SHRINK, sequence).u32(*index).u32(0).u64(*incarnation).u64(*len).end()
            }
            Self::Unlink { kind, name } => {
                Put::new(kind::UNLINK, sequence).u32(*kind as u32).u32(0).object_name(name).end()
            }
            Self::Hold { index, incarnation } => {
                Put::new(kind::HOLD, sequence).u32(*index).u32(0).u64(*incarnation).end()
            }
            Self::Release { index, incarnation } => {
                Put::new(kind::RELEASE, sequence).u32(*index).u32(0).u64(*incarnation).end()
            }
            Self::Change { index, incarnation, change } => Put::new(kind::CHANGE, sequence)
                .u32(*index)
                .u32(change.mode)
                .u64(*incarnation)
                .u32(change.owner.0)
                .u32(change.owner.1)
                .u64(change.size)
                .u64(change.now)
                .end(),
            Self::Remove { index, incarnation } => {
                Put::new(kind::REMOVE, sequence).u32(*index).u32(0).u64(*incarnation).end()
            }
            Self::Enter { index, incarnation } => {
                Put::new(kind::ENTER, sequence).u32(*index).u32(0).u64(*incarnation).end()
            }
            Self::Removed { index, incarnation } => {
                Put::new(kind::REMOVED, sequence).u32(*index).u32(0).u64(*incarnation).end()
            }
            Self::Share { index, incarnation, sharing } => {
                let (how, name) = match sharing {
                    Sharing::All => (0, ""),
                    Sharing::Own => (1, ""),
                    Sharing::With(name) => (2, name.as_str()),
                    Sharing::Also(name) => (3, name.as_str()),
                    Sharing::Next(name) => (4, name.as_str()),
                };
                Put::new(kind::SHARE, sequence).u32(*index).u32(how).u64(*incarnation).name(name).end()
            }
            Self::Settle => Put::new(kind::SETTLE, sequence).end(),
            Self::Forget => Put::new(kind::FORGET, sequence).end(),
            Self::Watch { place } => Put::new(kind::WATCH, sequence).u64(*place).end(),
            Self::Ring { peers, place } => Put::new(kind::RING, sequence).u64(*peers).u64(*place).end(),
            Self::File { index } => Put::new(kind::FILE, sequence).u32(*index).u32(0).end(),
            Self::Process { slot, incarnation } => {
                Put::new(kind::PROCESS, sequence).u32(*slot).u32(0).u64(*incarnation).end()
            }
        }
    }

    /// Sequence number and request of a frame that any process may have sent.
    ///
    /// # Errors
    /// [`Error::BadFrame`].
    pub fn decode(frame: &[u8]) -> Result<(u64, Self)> {
        let (kind, sequence, mut take) = open(frame)?;
        let request = match kind {
            kind::HELLO => {
                let (version, pid) = (take.u32()?, take.u32()?);
                let name = take.name()?;
                // Another version's Hello may be shorter or longer; it is answered with the version spoken here.
                if version != VERSION {
                    return Ok((sequence, Self::Hello { version, pid, name, image: 0 }));
                }
                Self::Hello { version, pid, name, image: take.u64()? }
            }
            kind::GROW => Self::Grow { bytes: take.u64()? },
            kind::OPEN_ENDPOINT => Self::OpenEndpoint { block: take.u64()? },
            kind::CLOSE_ENDPOINT | kind::WAKE | kind::BELL | kind::FILE => {
                let slot = take.u32()?;
                take.u32()?;
                match kind {
                    kind::FILE => Self::File { index: slot },
                    kind::WAKE => Self::Wake { slot },
                    kind::BELL => Self::Bell { slot },
                    _ => Self::CloseEndpoint { slot },
                }
            }
            kind::DETACH => Self::Detach,
            kind::OBSERVE => Self::Observe { version: take.u32()?, file: take.u32()? },
            kind::CREATE => {
                let (kind, mode) = (take.kind()?, take.u32()?);
                let (ends_with_creator, or_open) = (take.u32()? != 0, take.u32()? != 0);
                let (len, params) = (take.u64()?, take.words()?);
                let name = take.object_name()?;
                Self::Create(NewObject { kind, name, len, mode, ends_with_creator, params, or_open })
            }
            kind::OPEN => {
                let kind = take.kind()?;
                let access = if take.u32()? == 0 { Access::Read } else { Access::Write };
                Self::Open { kind, name: take.object_name()?, access }
            }
            kind::CLOSE
            | kind::SHRINK
            | kind::PROCESS
            | kind::HOLD
            | kind::RELEASE
            | kind::REMOVE
            | kind::ENTER
            | kind::REMOVED => {
                let index = take.u32()?;
                take.u32()?;
                let incarnation = take.u64()?;
                match kind {
                    kind::PROCESS => Self::Process { slot: index, incarnation },
                    kind::CLOSE => Self::Close { index, incarnation },
                    kind::HOLD => Self::Hold { index, incarnation },
                    kind::RELEASE => Self::Release { index, incarnation },
                    kind::REMOVE => Self::Remove { index, incarnation },
                    kind::ENTER => Self::Enter { index, incarnation },
                    kind::REMOVED => Self::Removed { index, incarnation },
                    _ => Self::Shrink { index, incarnation, len: take.u64()? },
                }
            }
            kind::UNLINK => {
                let kind = take.kind()?;
                take.u32()?;
                Self::Unlink { kind, name: take.object_name()? }
            }
            kind::CHANGE => {
                let (index, mode, incarnation) = (take.u32()?, take.u32()?, take.u64()?);
                let owner = (take.u32()?, take.u32()?);
                let (size, now) = (take.u64()?, take.u64()?);
                Self::Change { index, incarnation, change: Change { owner, mode, size, now } }
            }
            kind::SHARE => {
                let (index, how, incarnation) = (take.u32()?, take.u32()?, take.u64()?);
                let name = take.exact_name(NAME_BYTES, "a system's name is not UTF-8")?;
                let sharing = match how {
                    0 => Sharing::All,
                    1 => Sharing::Own,
                    2 => Sharing::With(name),
                    3 => Sharing::Also(name),
                    4 => Sharing::Next(name),
                    _ => return Err(Error::BadFrame { what: "an object is to be shared in an unknown way" }),
                };
                Self::Share { index, incarnation, sharing }
            }
            kind::SETTLE => Self::Settle,
            kind::FORGET => Self::Forget,
            kind::WATCH => Self::Watch { place: take.u64()? },
            kind::RING => Self::Ring { peers: take.u64()?, place: take.u64()? },
            _ => return Err(Error::BadFrame { what: "its kind is unknown" }),
        };
        take.end()?;
        Ok((sequence, request))
    }
}

impl Reply {
    /// The reply as a frame.
    pub fn encode(&self, sequence: u64) -> Vec<u8> {
        match self {
            Self::Welcome(w) => Put::new(kind::WELCOME, sequence)
                .u32(w.version)
                .u32(w.peer)
                .u64(w.incarnation)
                .u64(w.region_bytes)
                .u64(w.uuid[0])
                .u64(w.uuid[1])
                .u32(w.grant.area)
                .u32(w.former)
                .u64(w.grant.incarnation)
                .u64(w.grant.first.offset)
                .u64(w.grant.first.bytes)
                .name(&w.host_name)
                .end(),
            Self::Extent(e) => Put::new(kind::EXTENT, sequence).u64(e.offset).u64(e.bytes).end(),
            Self::Endpoint { slot, incarnation } => {
                Put::new(kind::ENDPOINT, sequence).u32(*slot).u32(0).u64(*incarnation).end()
            }
            Self::Done => Put::new(kind::DONE, sequence).end(),
            Self::Observed(o) => Put::new(kind::OBSERVED, sequence)
                .u32(o.version)
                .u32(o.peer)
                .u64(o.region_bytes)
                .u64(o.uuid[0])
                .u64(o.uuid[1])
                .name(&o.host_name)
                .end(),
            Self::Object(o) => Put::new(kind::OBJECT, sequence)
                .u32(o.index)
                .u32(u32::from(o.is_new))
                .u64(o.incarnation)
                .u64(o.offset)
                .u64(o.len)
                .words(o.params)
                .end(),
            Self::Len(len) => Put::new(kind::LEN, sequence).u64(*len).end(),
            Self::Bell => Put::new(kind::BELL_IS, sequence).end(),
            Self::File => Put::new(kind::FILE_IS, sequence).end(),
            Self::Process => Put::new(kind::PROCESS_IS, sequence).end(),
            Self::Refused { code, text } => {
                Put::new(kind::REFUSED, sequence).u32(*code as u32).text(text).end()
            }
        }
    }

    /// Sequence number and reply of a frame.
    ///
    /// # Errors
    /// [`Error::BadFrame`].
    pub fn decode(frame: &[u8]) -> Result<(u64, Self)> {
        let (kind, sequence, mut take) = open(frame)?;
        let reply = match kind {
            kind::WELCOME => {
                let (version, peer, incarnation) = (take.u32()?, take.u32()?, take.u64()?);
                let (region_bytes, uuid) = (take.u64()?, [take.u64()?, take.u64()?]);
                let (area, former) = (take.u32()?, take.u32()?);
                let lives = take.u64()?;
                let first = Extent { offset: take.u64()?, bytes: take.u64()? };
                let grant = AreaGrant { area, incarnation: lives, first };
                let host_name = take.name()?;
                let welcome =
                    Welcome { version, peer, incarnation, region_bytes, uuid, grant, host_name, former };
                Self::Welcome(welcome)
            }
            kind::EXTENT => Self::Extent(Extent { offset: take.u64()?, bytes: take.u64()? }),
            kind::ENDPOINT => {
                let slot = take.u32()?;
                take.u32()?;
                Self::Endpoint { slot, incarnation: take.u64()? }
            }
            kind::DONE => Self::Done,
            kind::OBSERVED => Self::Observed(Observed {
                version: take.u32()?,
                peer: take.u32()?,
                region_bytes: take.u64()?,
                uuid: [take.u64()?, take.u64()?],
                host_name: take.name()?,
            }),
            kind::OBJECT => {
                let (index, is_new) = (take.u32()?, take.u32()? != 0);
                let (incarnation, offset, len) = (take.u64()?, take.u64()?, take.u64()?);
                Self::Object(ObjectGrant { index, incarnation, offset, len, params: take.words()?, is_new })
            }
            kind::LEN => Self::Len(take.u64()?),
            kind::BELL_IS => Self::Bell,
            kind::FILE_IS => Self::File,
            kind::PROCESS_IS => Self::Process,
            kind::REFUSED => {
                let code = Code::from_wire(take.u32()?);
                Self::Refused { code, text: take.text() }
            }
            _ => return Err(Error::BadFrame { what: "its kind is unknown" }),
        };
        take.end()?;
        Ok((sequence, reply))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests() -> Vec<Request> {
        vec![
            Request::Hello { version: VERSION, pid: 7, name: "a.out".into(), image: 11 },
            Request::Grow { bytes: u64::MAX },
            Request::OpenEndpoint { block: 4096 },
            Request::CloseEndpoint { slot: 3 },
            Request::Detach,
            Request::Observe { version: VERSION, file: 3 },
            Request::Create(NewObject {
                kind: Kind::Barrier,
                name: "é".repeat(63),
                len: 4096,
                mode: 0o640,
                ends_with_creator: true,
                params: [1, 2, 3, u64::MAX],
                or_open: false,
            }),
            Request::Open { kind: Kind::Segment, name: "a".into(), access: Access::Read },
            Request::Close { index: 1, incarnation: 2 },
            Request::Shrink { index: 1, incarnation: 2, len: 3 },
            Request::Unlink { kind: Kind::Space, name: "b".into() },
            Request::Watch { place: 1 << 40 },
            Request::Ring { peers: 5, place: 64 },
            Request::File { index: 1025 },
            Request::Hold { index: 1, incarnation: 1 << 33 },
            Request::Release { index: 1, incarnation: 2 },
            Request::Change {
                index: 1,
                incarnation: 2,
                change: Change { owner: (3, 4), mode: 0o640, size: 1 << 33, now: 1 << 34 },
            },
            Request::Remove { index: 1, incarnation: 2 },
            Request::Enter { index: 3, incarnation: 2 },
            Request::Removed { index: 4, incarnation: 2 },
            Request::Share { index: 5, incarnation: 2, sharing: Sharing::All },
            Request::Share { index: 5, incarnation: 2, sharing: Sharing::Own },
            Request::Share { index: 5, incarnation: 2, sharing: Sharing::With("vm1".into()) },
            Request::Share { index: 5, incarnation: 2, sharing: Sharing::Also("vm2".into()) },
            Request::Share { index: 5, incarnation: 2, sharing: Sharing::Next("vm3".into()) },
            Request::Settle,
            Request::Forget,
            Request::Process { slot: 3, incarnation: 1 << 33 },
        ]
    }

    fn replies() -> Vec<Reply> {
        let first = Extent { offset: 1, bytes: 2 };
        vec![
            Reply::Welcome(Welcome {
                version: VERSION,
                peer: 3,
                incarnation: 9,
                region_bytes: 1 << 30,
                uuid: [5, 6],
                grant: AreaGrant { area: 8, incarnation: 1 << 40, first },
                host_name: "vm1".into(),
                former: 5,
            }),
            Reply::Extent(first),
            Reply::Endpoint { slot: 1, incarnation: 2 },
            Reply::Done,
            Reply::Observed(Observed {
                version: VERSION,
                peer: 2,
                region_bytes: 1 << 30,
                uuid: [5, 6],
                host_name: "vm1".into(),
            }),
            Reply::Object(ObjectGrant {
                index: 3,
                incarnation: 4,
                offset: 5,
                len: 6,
                params: [7, 8, 9, 10],
                is_new: true,
            }),
            Reply::Len(1 << 33),
            Reply::File,
            Reply::Process,
            Reply::Refused { code: Code::Full, text: "no".into() },
            Reply::Refused { code: Code::Denied, text: "no".into() },
        ]
    }

    #[test]
    fn frames_are_decoded_to_what_was_encoded() {
        for (i, request) in (100_u64..).zip(requests()) {
            assert_eq!(Request::decode(&request.encode(i)).unwrap(), (i, request));
        }
        for (i, reply) in (100_u64..).zip(replies()) {
            assert_eq!(Reply::decode(&reply.encode(i)).unwrap(), (i, reply));
        }
    }

    #[test]
    fn frames_of_a_wrong_length_are_refused() {
        let frames = requests().iter().map(|r| r.encode(1)).collect::<Vec<_>>();
        for frame in &frames {
            for len in 0..frame.len() {
                assert!(Request::decode(&frame[..len]).is_err());
            }
            let mut long = frame.clone();
            long.push(0);
            assert!(Request::decode(&long).is_err());
            let len = u32::try_from(long.len()).unwrap();
            long[4..8].copy_from_slice(&len.to_le_bytes());
            assert!(Request::decode(&long).is_err());
        }
    }

    #[test]
    fn unknown_kinds_and_names_that_are_not_text_are_refused() {
        let mut frame = Request::Open { kind: Kind::Once, name: "a".into(), access: Access::Write }.encode(1);
        frame[16] = 99;
        assert!(Request::decode(&frame).is_err(), "an unknown kind");
        frame[16] = 7;
        assert!(Request::decode(&frame).is_ok());
        frame[24] = 0xff;
        assert!(Request::decode(&frame).is_err(), "a name that is no text");
    }

    #[test]
    fn long_names_and_texts_are_cut_at_a_character() {
        let name = "ü".repeat(100);
        let named = |name| Request::Hello { version: VERSION, pid: 1, name, image: 2 };
        let (_, hello) = Request::decode(&named(name).encode(0)).unwrap();
        assert_eq!(hello, named("ü".repeat(31)));
        let frame = Reply::Refused { code: Code::Failed, text: "ü".repeat(5000) }.encode(0);
        assert!(frame.len() <= MAX_FRAME && Reply::decode(&frame).is_ok());
    }
}
