//! Execution in a guest: starts what the launcher's side asks for, carries standard streams and signals, and tells
//! how it ended.
//!
//! Every process that is asked for is a *session*: it and all that comes of it are in a control group of their own
//! (or, where there is none, are found by their ancestors and their session number). A session ends when its first
//! process does, when the launcher's side closes its stream, or when the whole connection goes; then everything in
//! it is killed, whatever it did to get away.
//!
//! The process runs as its caller: this program is started again as [`exec_as`], which has one thread, so that
//! ids, groups, limits and mask can be set before it becomes the real program.

pub mod exec_as;
mod session;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};

use rustix::event::Timespec;

use crate::wire::mux::{Mux, Turn, set_nonblocking};
use crate::wire::{CHANNEL_ERR, CHANNEL_IN, CHANNEL_OUT, Exit, Frame, Kind, Request, Window, WireError};
use session::{Session, Streams};

/// Most sessions at a time. A launcher needs one per VM, and one more for each spawn.
const MAX_SESSIONS: usize = 1024;
/// How often sessions that are ending are looked after.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// How sessions are held together.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A directory of a cgroup v2 hierarchy in which each session gets a group; without one, sessions are told
    /// apart through `/proc`.
    pub cgroup: Option<PathBuf>,
}

struct Server<'a> {
    mux: Mux,
    options: &'a Options,
    sessions: BTreeMap<u32, Session>,
    ended: Receiver<(u32, Exit)>,
    /// What the threads that wait for processes use, and what wakes this one.
    report: Sender<(u32, Exit)>,
    waker: UnixStream,
    woken: UnixStream,
}

/// Serves one connection until it ends; then everything that it started has ended too.
///
/// # Errors
/// [`WireError::Closed`] when the other side is gone, which is how it always ends; or what is wrong with it.
pub fn serve(port: OwnedFd, options: &Options) -> Result<(), WireError> {
    let (waker, woken) = UnixStream::pair()?;
    set_nonblocking(&woken)?;
    let (report, ended) = mpsc::channel();
    let mux = Mux::new(port)?;
    let mut server = Server { mux, options, sessions: BTreeMap::new(), ended, report, waker, woken };
    let end = loop {
        if let Err(e) = server.turn() {
            break e;
        }
    };
    for session in server.sessions.values_mut() {
        session.kill();
    }
    Err(end)
}

impl Server<'_> {
    fn turn(&mut self) -> Result<(), WireError> {
        let ending = self.sessions.values().any(Session::is_ending);
        let turn = self.mux.wait(&[self.woken.as_fd()], ending.then_some(&TICK))?;
        let Turn { frame, ready } = turn;
        if !ready.is_empty() {
            let mut drained = [0; 64];
            while self.woken.read(&mut drained).is_ok_and(|n| n > 0) {}
        }
        if let Some(frame) = frame {
            self.obey(&frame);
        }
        while let Ok((stream, exit)) = self.ended.try_recv() {
            if let Some(session) = self.sessions.get_mut(&stream) {
                session.first_ended(exit);
            }
        }
        self.finish();
        Ok(())
    }

    fn obey(&mut self, frame: &Frame) {
        match frame.kind {
            Kind::Start => {
                let started = Request::decode(&frame.payload)
                    .map_err(|e| e.to_string())
                    .and_then(|request| self.start(frame.stream, &request));
                if let Err(why) = started {
                    self.mux.send(&Frame::new(Kind::Refused, frame.stream, why));
                }
            }
            Kind::Signal => {
                if let (Some(session), Ok(signal)) = (self.sessions.get(&frame.stream), frame.number()) {
                    session.signal(signal);
                }
            }
            Kind::Resize => {
                if let (Some(session), Ok(window)) =
                    (self.sessions.get(&frame.stream), Window::decode(&frame.payload))
                {
                    session.resize(window);
                }
            }
            Kind::Close | Kind::Refused => {
                if let Some(session) = self.sessions.get_mut(&frame.stream) {
                    self.mux.drop_stream(frame.stream);
                    session.kill();
                }
            }
            // Nothing else is for this port; saying so is all there is to do.
            _ => self.mux.send(&Frame::new(Kind::Refused, frame.stream, *b"not a frame for the exec port")),
        }
    }

    fn start(&mut self, stream: u32, request: &Request) -> Result<(), String> {
        if self.sessions.contains_key(&stream) {
            return Err(format!("stream {stream} is in use"));
        }
        if self.sessions.len() >= MAX_SESSIONS {
            return Err(format!("{MAX_SESSIONS} sessions run already"));
        }
        let (session, streams, mut child) = Session::start(stream, request, self.options.cgroup.as_deref())?;
        let (stdin, outputs) = match streams {
            Streams::Pipes { stdin, stdout, stderr } => {
                (stdin, vec![(CHANNEL_OUT, stdout), (CHANNEL_ERR, stderr)])
            }
            Streams::Terminal { master } => {
                (master.try_clone().map_err(|e| e.to_string())?, vec![(CHANNEL_OUT, master)])
            }
        };
        for (channel, fd) in outputs {
            set_nonblocking(&fd).map_err(|e| e.to_string())?;
            self.mux.add_source((stream, channel), fd);
        }
        set_nonblocking(&stdin).map_err(|e| e.to_string())?;
        self.mux.add_sink((stream, CHANNEL_IN), stdin);
        self.sessions.insert(stream, session);
        let report = self.report.clone();
        let waker = self.waker.try_clone().map_err(|e| e.to_string())?;
        let owned = crate::boot::reaper::own(child.id());
        std::thread::spawn(move || {
            let exit = session::exit_of(child.wait());
            drop(owned);
            // Both fail only if the server is gone.
            let _ = report.send((stream, exit));
            let _ = (&waker).write(&[1]);
        });
        Ok(())
    }

    /// Reports sessions that have ended and whose output has gone out.
    fn finish(&mut self) {
        let done: Vec<u32> = self
            .sessions
            .iter_mut()
            .filter_map(|(stream, session)| {
                let open = [CHANNEL_OUT, CHANNEL_ERR].iter().any(|channel| self.mux.has((*stream, *channel)));
                session.is_over(open).then_some(*stream)
            })
            .collect();
        for stream in done {
            self.mux.drop_stream(stream);
            if let Some(exit) = self.sessions.remove(&stream).and_then(|session| session.exit()) {
                self.mux.send(&Frame::new(Kind::Exited, stream, exit.encode()));
            }
        }
    }
}

/// Mounts the cgroup v2 hierarchy if nobody has, and makes a group in it for sessions.
///
/// # Errors
/// Those of mount(2) and mkdir(2): then sessions do without.
pub fn cgroup() -> io::Result<PathBuf> {
    let root = PathBuf::from("/sys/fs/cgroup");
    if !root.join("cgroup.procs").exists() {
        rustix::mount::mount("cgroup2", &root, "cgroup2", rustix::mount::MountFlags::empty(), None)?;
    }
    let group = root.join("isthmus");
    match std::fs::create_dir(&group) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(group),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // What starts processes is tested where there is a program that can be started again: in isthmus-run.

    #[test]
    fn what_is_no_request_is_refused_and_the_next_one_is_looked_at() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || serve(theirs.into(), &Options::default()));
        assert!(Frame::read_from(&mut ours).unwrap().check_hello().is_ok());
        Frame::hello().write_to(&mut ours).unwrap();
        Frame::new(Kind::Start, 5, *b"rubbish").write_to(&mut ours).unwrap();
        Frame::new(Kind::Open, 6, [0, 0]).write_to(&mut ours).unwrap();
        let refused = Frame::read_from(&mut ours).unwrap();
        assert_eq!((refused.kind, refused.stream), (Kind::Refused, 5));
        assert_eq!(Frame::read_from(&mut ours).unwrap().stream, 6);
        // A signal for nobody, then a frame that nobody may send.
        Frame::new(Kind::Signal, 9, 15_u32.to_le_bytes()).write_to(&mut ours).unwrap();
        ours.write_all(&[0xff; 12]).unwrap();
        assert!(matches!(server.join().unwrap(), Err(WireError::BadFrame { .. })));
    }
}
