//! Execution in a guest: starts processes for the launcher's side, carries their standard streams and signals, and
//! reports how they ended.
//!
//! Each such process and all its descendants are a *session*: they are in a control group of their own (or, without
//! control groups, are found by their ancestors and their session number). A session ends when its first process
//! does, when the launcher's side closes its stream, or when the connection ends; then everything in it is killed,
//! including processes that have made a session of their own.
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
/// How often sessions that are ending are checked.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// How the processes of a session are found.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A directory of a cgroup v2 hierarchy in which each session gets a group; without one, a session's processes
    /// are found in `/proc`.
    pub cgroup: Option<PathBuf>,
}

struct Server<'a> {
    mux: Mux,
    options: &'a Options,
    sessions: BTreeMap<u32, Session>,
    ended: Receiver<(u32, Exit)>,
    /// For the threads that wait for processes: sends `ended`.
    report: Sender<(u32, Exit)>,
    /// For the same threads: makes `woken` readable, which ends this thread's wait.
    waker: UnixStream,
    woken: UnixStream,
}

/// Serves one connection until it ends, and then kills everything that it started.
///
/// # Errors
/// [`WireError::Closed`] when the other side is gone, which is the normal end; otherwise what is wrong with it.
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
            self.handle(&frame);
        }
        while let Ok((stream, exit)) = self.ended.try_recv() {
            if let Some(session) = self.sessions.get_mut(&stream) {
                session.first_ended(exit);
            }
        }
        self.finish();
        Ok(())
    }

    fn handle(&mut self, frame: &Frame) {
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
            // No other frame is for this port.
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
        let waker = self.waker.try_clone().map_err(|e| e.to_string())?;
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
        let owned = crate::boot::reaper::own(child.id());
        let waiter = std::thread::Builder::new().spawn(move || {
            let exit = session::exit_of(child.wait());
            drop(owned);
            // Both fail only if the connection has ended.
            let _ = report.send((stream, exit));
            let _ = (&waker).write(&[1]);
        });
        waiter.map(drop).map_err(|e| {
            // Nobody would learn of its end. Dropped, it is killed.
            self.sessions.remove(&stream);
            self.mux.drop_stream(stream);
            format!("cannot wait for a process: {e}")
        })
    }

    /// Reports sessions that have ended and whose output was sent.
    fn finish(&mut self) {
        let done: Vec<u32> = self
            .sessions
            .iter_mut()
            .filter_map(|(stream, session)| {
                let any = |is: &dyn Fn((u32, u8)) -> bool| {
                    [CHANNEL_OUT, CHANNEL_ERR].iter().any(|channel| is((*stream, *channel)))
                };
                let (open, held_up) = (any(&|key| self.mux.has(key)), any(&|key| self.mux.is_held_up(key)));
                session.is_over(open, held_up).then_some(*stream)
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

/// Mounts the cgroup v2 hierarchy if it is not mounted, and makes a group in it for sessions.
///
/// # Errors
/// Those of mount(2) and mkdir(2). Sessions can do without the group.
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

    // Starting processes is tested in isthmus-run, which has a program that can be started again.

    #[test]
    fn a_bad_request_is_refused_and_the_next_one_is_read() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || serve(theirs.into(), &Options::default()));
        assert!(Frame::read_from(&mut ours).unwrap().check_hello().is_ok());
        Frame::hello().write_to(&mut ours).unwrap();
        Frame::new(Kind::Start, 5, *b"rubbish").write_to(&mut ours).unwrap();
        Frame::new(Kind::Open, 6, [0, 0]).write_to(&mut ours).unwrap();
        let refused = Frame::read_from(&mut ours).unwrap();
        assert_eq!((refused.kind, refused.stream), (Kind::Refused, 5));
        assert_eq!(Frame::read_from(&mut ours).unwrap().stream, 6);
        // A signal for no session, then a frame that is not allowed.
        Frame::new(Kind::Signal, 9, 15_u32.to_le_bytes()).write_to(&mut ours).unwrap();
        ours.write_all(&[0xff; 12]).unwrap();
        assert!(matches!(server.join().unwrap(), Err(WireError::BadFrame { .. })));
    }
}
