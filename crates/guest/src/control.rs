//! The control port: the launcher's requests to a guest, and the guest's messages to the launcher.
//!
//! Messages are JSON in [`Kind::Control`] frames. They are few, and carry no data of programs.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};

use serde::{Deserialize, Serialize};

use crate::wire::mux::{Mux, set_nonblocking};
use crate::wire::{Frame, Kind, WireError};

/// Most files that are listed by name, and most bytes of their paths, which must fit into a frame; the others are counted.
const MAX_FILES: usize = 1000;
const MAX_PATH_BYTES: usize = 128 << 10;

/// From the launcher's side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToGuest {
    /// Which files vanish with this VM?
    Changes,
}

/// From the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToHost {
    /// Everything is up: processes can be started, and attach.
    Ready,
    /// Something makes the VM useless.
    Broken {
        /// What.
        why: String,
    },
    /// Something that may be worth a line to the user.
    Note {
        /// The line.
        text: String,
    },
    /// The answer to [`ToGuest::Changes`].
    Changes(Changes),
}

/// Files that ranks wrote and that vanish with the VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// Path and size of each, at most 1000. What is no UTF-8 in a path is replaced.
    pub files: Vec<(PathBuf, u64)>,
    /// How many more there are.
    pub more: u64,
    /// Why the list could not be made.
    pub error: Option<String>,
}

impl Changes {
    /// The changes of a VM that isthmus booted.
    pub fn of(changes: std::io::Result<Vec<crate::boot::Change>>) -> Self {
        match changes {
            Ok(all) => {
                let mut room = MAX_PATH_BYTES;
                let fits = |c: &&crate::boot::Change| {
                    let bytes = c.path.as_os_str().len();
                    let does = bytes <= room;
                    room = room.saturating_sub(bytes);
                    does
                };
                let named = all.iter().take(MAX_FILES).take_while(fits);
                let files: Vec<_> =
                    named.map(|c| (c.path.to_string_lossy().into_owned().into(), c.bytes)).collect();
                Self { more: (all.len() - files.len()) as u64, files, error: None }
            }
            Err(e) => Self { error: Some(e.to_string()), ..Self::default() },
        }
    }
}

/// Sends messages to the launcher's side, from any thread.
#[derive(Clone, Debug)]
pub struct Teller {
    messages: Sender<ToHost>,
    waker: std::sync::Arc<UnixStream>,
}

impl Teller {
    /// Sends a message. If the port has ended, the message is lost.
    pub fn tell(&self, message: ToHost) {
        let _ = self.messages.send(message);
        let _ = (&*self.waker).write(&[1]);
    }
}

/// The guest's side of the port.
#[derive(Debug)]
pub struct Control {
    messages: Receiver<ToHost>,
    woken: UnixStream,
}

/// A control port that is not connected yet, and what sends messages through it.
///
/// # Errors
/// If there are no more descriptors.
pub fn new() -> std::io::Result<(Control, Teller)> {
    let (waker, woken) = UnixStream::pair()?;
    set_nonblocking(&woken)?;
    set_nonblocking(&waker)?;
    let (send, messages) = mpsc::channel();
    Ok((Control { messages, woken }, Teller { messages: send, waker: std::sync::Arc::new(waker) }))
}

impl Control {
    /// Serves one connection until it ends, answering with what `changes` says.
    ///
    /// # Errors
    /// [`WireError::Closed`] when the other side is gone, which is the normal end; otherwise what is wrong with it.
    pub fn serve(&mut self, port: OwnedFd, changes: impl Fn() -> Changes) -> Result<(), WireError> {
        let mut mux = Mux::new(port)?;
        loop {
            let turn = mux.wait(&[self.woken.as_fd()], None)?;
            if !turn.ready.is_empty() {
                let mut drained = [0; 64];
                while self.woken.read(&mut drained).is_ok_and(|n| n > 0) {}
            }
            if let Some(frame) = turn.frame.filter(|frame| frame.kind == Kind::Control) {
                match serde_json::from_slice(&frame.payload) {
                    Ok(ToGuest::Changes) => mux.send(&encode(&ToHost::Changes(changes()))),
                    Err(e) => mux.send(&encode(&ToHost::Note { text: format!("not understood: {e}") })),
                }
            }
            while let Ok(message) = self.messages.try_recv() {
                mux.send(&encode(&message));
            }
        }
    }
}

/// A control message as it travels.
pub fn encode<T: Serialize>(message: &T) -> Frame {
    let payload = serde_json::to_vec(message).unwrap_or_default();
    if Frame::fits(Kind::Control, payload.len()) {
        Frame::new(Kind::Control, 0, payload)
    } else {
        let note = ToHost::Note { text: "a message that was too long was dropped".into() };
        Frame::new(Kind::Control, 0, serde_json::to_vec(&note).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_names_reach_the_list_and_what_does_not_fit_is_counted() {
        use std::os::unix::ffi::OsStrExt;
        let change =
            |path: &[u8]| crate::boot::Change { path: std::ffi::OsStr::from_bytes(path).into(), bytes: 7 };
        let list = |all: Vec<crate::boot::Change>| {
            let encoded = encode(&ToHost::Changes(Changes::of(Ok(all))));
            match serde_json::from_slice(&encoded.payload).unwrap() {
                ToHost::Changes(changes) => changes,
                other => panic!("{other:?}"),
            }
        };
        let odd = list(vec![change(b"/home/caf\xe9"), change(b"/home/b")]);
        assert_eq!(odd.files, [("/home/caf\u{fffd}".into(), 7), ("/home/b".into(), 7)]);
        // Each character of these is six in JSON.
        let long = list((0..1001).map(|_| change(&[1; 4095])).collect());
        assert_eq!(long.files.len() as u64 + long.more, 1001);
        assert!(long.files.len() >= 30);
    }

    #[test]
    fn requests_are_answered_and_messages_sent() {
        let (mut host, guest) = UnixStream::pair().unwrap();
        let (mut control, teller) = new().unwrap();
        teller.tell(ToHost::Ready);
        let answer = Changes { files: vec![("/a".into(), 3)], ..Changes::default() };
        let expected = answer.clone();
        let server = std::thread::spawn(move || control.serve(guest.into(), || answer.clone()));
        Frame::read_from(&mut host).unwrap().check_hello().unwrap();
        Frame::hello().write_to(&mut host).unwrap();
        let read = |host: &mut UnixStream| -> ToHost {
            serde_json::from_slice(&Frame::read_from(host).unwrap().payload).unwrap()
        };
        assert_eq!(read(&mut host), ToHost::Ready);
        encode(&ToGuest::Changes).write_to(&mut host).unwrap();
        assert_eq!(read(&mut host), ToHost::Changes(expected));
        drop(host);
        assert!(matches!(server.join().unwrap(), Err(WireError::Closed)));
    }
}
