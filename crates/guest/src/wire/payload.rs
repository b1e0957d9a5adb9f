//! Payloads with fields: the request to start a process, the size of its terminal, its exit.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::WireError;

/// A request to start a process: everything that makes it run as its caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// Its whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// Its working directory.
    pub cwd: PathBuf,
    /// File mode creation mask.
    pub umask: u32,
    /// User, group and supplementary groups.
    pub uid: u32,
    /// See `uid`.
    pub gid: u32,
    /// See `uid`.
    pub groups: Vec<u32>,
    /// Resource limits by their name, soft and hard; `None` is unlimited.
    pub limits: Vec<Limit>,
    /// Directories to make first, by the caller, with mode 0700.
    pub make_dirs: Vec<PathBuf>,
    /// A terminal of its own, with a window of this size, in place of the three pipes.
    pub terminal: Option<Window>,
}

/// The size of a terminal's window (ioctl_tty(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
    /// Its width in pixels, or 0.
    pub width: u16,
    /// Its height in pixels, or 0.
    pub height: u16,
}

impl Window {
    /// The size as a payload.
    pub fn encode(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        let fields = [self.rows, self.columns, self.width, self.height];
        for (place, field) in bytes.chunks_exact_mut(2).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Reads a size.
    ///
    /// # Errors
    /// [`WireError::BadPayload`] if it has another length.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let [a, b, c, d, e, f, g, h] =
            *<&[u8; 8]>::try_from(bytes).map_err(|_| WireError::BadPayload { what: "window" })?;
        let field = |low, high| u16::from_le_bytes([low, high]);
        Ok(Self { rows: field(a, b), columns: field(c, d), width: field(e, f), height: field(g, h) })
    }
}

/// A resource limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// As `prlimit` calls it, in lower case: `nofile`.
    pub name: String,
    /// What is enforced.
    pub soft: Option<u64>,
    /// The most to which the process may raise it.
    pub hard: Option<u64>,
}

impl Request {
    /// The request as a payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.list(&self.argv, |out, word| out.bytes(word.as_bytes()));
        out.list(&self.env, |out, (name, value)| {
            out.bytes(name.as_bytes());
            out.bytes(value.as_bytes());
        });
        out.bytes(self.cwd.as_os_str().as_bytes());
        out.u32(self.umask);
        out.u32(self.uid);
        out.u32(self.gid);
        out.list(&self.groups, |out, group| out.u32(*group));
        out.list(&self.limits, |out, limit| {
            out.bytes(limit.name.as_bytes());
            out.u64(limit.soft.unwrap_or(u64::MAX));
            out.u64(limit.hard.unwrap_or(u64::MAX));
        });
        out.list(&self.make_dirs, |out, dir| out.bytes(dir.as_os_str().as_bytes()));
        out.list(self.terminal.as_slice(), |out, window| out.bytes(&window.encode()));
        out.0
    }

    /// Reads a request.
    ///
    /// # Errors
    /// [`WireError::BadPayload`].
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader(bytes);
        reader.request().filter(|_| reader.0.is_empty()).ok_or(WireError::BadPayload { what: "request" })
    }
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    fn count(&mut self, count: usize) {
        // A list longer than u32::MAX does not fit into a frame, which the sender checks.
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.extend(bytes);
    }

    fn list<T>(&mut self, items: &[T], each: impl Fn(&mut Self, &T)) {
        self.count(items.len());
        for item in items {
            each(self, item);
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn u32(&mut self) -> Option<u32> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*value))
    }

    fn u64(&mut self) -> Option<u64> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*value))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn os_string(&mut self) -> Option<OsString> {
        // A system call would stop at a zero byte, and `Command` refuses it.
        self.bytes().filter(|bytes| !bytes.contains(&0)).map(|bytes| OsString::from_vec(bytes.to_vec()))
    }

    fn list<T>(&mut self, each: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        // The count is a claim, so no memory is reserved for it.
        let count = self.u32()?;
        (0..count).map(|_| each(self)).collect()
    }

    fn request(&mut self) -> Option<Request> {
        let limit = |value: u64| (value != u64::MAX).then_some(value);
        Some(Request {
            argv: self.list(Self::os_string)?,
            env: self.list(|r| Some((r.os_string()?, r.os_string()?)))?,
            cwd: self.os_string()?.into(),
            umask: self.u32()?,
            uid: self.u32()?,
            gid: self.u32()?,
            groups: self.list(Self::u32)?,
            limits: self.list(|r| {
                let name = String::from_utf8(r.bytes()?.to_vec()).ok()?;
                Some(Limit { name, soft: limit(r.u64()?), hard: limit(r.u64()?) })
            })?,
            make_dirs: self.list(|r| r.os_string().map(PathBuf::from))?,
            terminal: match self.list(|r| Window::decode(r.bytes()?).ok())?.as_slice() {
                [] => None,
                [window] => Some(*window),
                _ => return None,
            },
        })
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With this status.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Exit {
    /// The exit as a payload.
    pub fn encode(self) -> [u8; 5] {
        let (kind, value) = match self {
            Self::Code(code) => (0, code),
            Self::Signal(signal) => (1, signal),
        };
        let [a, b, c, d] = value.to_le_bytes();
        [kind, a, b, c, d]
    }

    /// Reads an exit.
    ///
    /// # Errors
    /// [`WireError::BadPayload`].
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let value = |rest: &[u8; 4]| i32::from_le_bytes(*rest);
        match bytes.split_first_chunk() {
            Some((rest, _)) if bytes.len() == 5 => {
                let [kind, a, b, c] = *rest;
                let value = value(&[a, b, c, bytes[4]]);
                match kind {
                    0 => Ok(Self::Code(value)),
                    1 => Ok(Self::Signal(value)),
                    _ => Err(WireError::BadPayload { what: "exit status" }),
                }
            }
            _ => Err(WireError::BadPayload { what: "exit status" }),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::wire) fn request() -> Request {
        Request {
            argv: vec!["/bin/sh".into(), "-c".into(), OsString::from_vec(vec![0xff, 0x20])],
            env: vec![("A".into(), "b=c".into())],
            cwd: "/tmp".into(),
            umask: 0o27,
            uid: 1000,
            gid: 100,
            groups: vec![4, 27],
            limits: vec![Limit { name: "nofile".into(), soft: Some(1024), hard: None }],
            make_dirs: vec!["/dev/shm/x".into()],
            terminal: Some(Window { rows: 24, columns: 80, width: 0, height: 600 }),
        }
    }

    #[test]
    fn requests_are_read_back_and_those_of_a_wrong_length_refused() {
        let bytes = request().encode();
        assert_eq!(Request::decode(&bytes).unwrap(), request());
        for len in 0..bytes.len() {
            assert!(Request::decode(&bytes[..len]).is_err());
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(Request::decode(&longer).is_err());
        // A count far beyond what follows.
        assert!(Request::decode(&u32::MAX.to_le_bytes()).is_err());
    }

    #[test]
    fn every_exit_is_read_back() {
        for exit in [Exit::Code(0), Exit::Code(-1), Exit::Signal(9)] {
            assert_eq!(Exit::decode(&exit.encode()).unwrap(), exit);
        }
        assert!(Exit::decode(&[2, 0, 0, 0, 0]).is_err());
        assert!(Exit::decode(&[0, 0]).is_err());
    }
}
