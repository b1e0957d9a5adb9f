//! The process's side: connect, map, and ask.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use isthmus_region::error::ObjectProblem;
use isthmus_region::error::with_causes;
use isthmus_region::extent::Extent;
use isthmus_region::format::GlobalSlot;
use isthmus_region::mapping::Mapping;
use isthmus_region::member::{LocalService, Member};
use isthmus_region::membership::Region;
use isthmus_region::objects::{Access, Kind, NewObject, ObjectGrant};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix, SocketFlags};
use rustix::process::{Pid, PidfdFlags};

use crate::error::{Error, Result};
use crate::protocol::{Code, Observed, Reply, Request, VERSION, Welcome};
use crate::socket;

/// How long a process waits for an answer.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Attaches this process to its local service, wherever [`socket::find_socket`] finds it.
///
/// # Errors
/// [`Error::NoSocket`], or as [`connect_at`].
pub fn connect() -> Result<Arc<Member>> {
    connect_at(&socket::find_socket()?)
}

/// Attaches this process to the service that listens at `path`.
///
/// # Errors
/// [`Error::Connect`], [`Error::Refused`], [`Error::TimedOut`], [`Error::Gone`], or whatever is wrong with the region.
pub fn connect_at(path: &Path) -> Result<Arc<Member>> {
    let mut line = Line::open(path)?;
    let pid = rustix::process::getpid();
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())
        .map_err(|source| Error::System { action: "open a pidfd of this process", source })?;
    let name = std::env::current_exe().ok();
    let name = name.as_deref().and_then(Path::file_name).map(|n| n.to_string_lossy().into_owned());
    let hello = Request::Hello {
        version: VERSION,
        pid: u32::try_from(pid.as_raw_nonzero().get()).unwrap_or(0),
        name: name.unwrap_or_default(),
    };
    let (reply, fds) = line.ask(&hello, Some(&pidfd))?;
    let welcome = match reply {
        Reply::Welcome(welcome) => welcome,
        Reply::Refused { code, text } => return Err(Error::Refused { code, text }),
        _ => return Err(Error::BadFrame { what: "not the answer to Hello" }),
    };
    let [region, wake]: [OwnedFd; 2] =
        fds.try_into().map_err(|_| Error::BadFrame { what: "not the two descriptors of a Welcome" })?;
    let map = map(&region, &welcome)?;
    let socket = Arc::clone(&line.socket);
    let client = Client { line: Mutex::new(line), socket, path: path.to_path_buf(), pid, _wake: wake };
    Ok(Member::new(&map, welcome.peer, welcome.grant, Box::new(client))?)
}

/// A region as somebody sees it who only looks.
#[derive(Debug)]
pub struct View {
    /// The region's memory, for reading only.
    pub region: OwnedFd,
    /// What the service says about it, for the looker to check.
    pub said: Observed,
    /// The process that opened the service's socket.
    pub service: u32,
}

/// Asks the service that listens at `path` for a look at its region, within `patience`. The process gets no place in
/// the region, and nothing of it is trusted or mapped here.
///
/// # Errors
/// [`Error::Connect`], [`Error::Refused`], [`Error::TimedOut`], [`Error::Gone`].
pub fn observe_at(path: &Path, patience: Duration) -> Result<View> {
    let mut line = Line::open_within(path, patience)?;
    let service = rustix::net::sockopt::socket_peercred(&line.socket)
        .map_err(|source| Error::System { action: "see whose the service is", source })?;
    let (reply, fds) = line.ask(&Request::Observe { version: VERSION }, None)?;
    let said = match reply {
        Reply::Observed(said) => said,
        Reply::Refused { code, text } => return Err(Error::Refused { code, text }),
        _ => return Err(Error::BadFrame { what: "not the answer to Observe" }),
    };
    let [region]: [OwnedFd; 1] =
        fds.try_into().map_err(|_| Error::BadFrame { what: "not the one descriptor of an Observed" })?;
    let service = u32::try_from(service.pid.as_raw_nonzero().get()).unwrap_or(0);
    Ok(View { region, said, service })
}

/// Maps the region, after a look at its size: beyond a file's end a load is a signal, not an error.
fn map(fd: &OwnedFd, welcome: &Welcome) -> Result<Arc<Mapping>> {
    let stat = rustix::fs::fstat(fd)
        .map_err(|source| Error::System { action: "look at the region's descriptor", source })?;
    let found = u64::try_from(stat.st_size).unwrap_or(0);
    if found < welcome.region_bytes {
        return Err(isthmus_region::Error::WrongSize { found, expected: welcome.region_bytes }.into());
    }
    let map = Mapping::map(fd.as_fd(), welcome.region_bytes)?;
    if Region::open(&map)?.shape().uuid != welcome.uuid {
        return Err(Error::BadFrame { what: "the region is not the one that was announced" });
    }
    Ok(map)
}

/// The attachment that all users in this process share: the one there is while anybody holds it, else a new one. A
/// forked child that asks gets one of its own.
///
/// # Errors
/// As [`connect`].
pub fn shared() -> Result<Arc<Member>> {
    shared_at(None)
}

/// As [`shared`], where a new attachment is to the service that listens at `named`, if that is given.
///
/// # Errors
/// As [`connect_at`].
pub fn shared_at(named: Option<&Path>) -> Result<Arc<Member>> {
    static CACHE: Mutex<Option<(Pid, Weak<Member>)>> = Mutex::new(None);
    let pid = rustix::process::getpid();
    let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(member) = cache.as_ref().filter(|(owner, _)| *owner == pid).and_then(|(_, m)| m.upgrade()) {
        return Ok(member);
    }
    let member = named.map_or_else(connect, connect_at)?;
    *cache = Some((pid, Arc::downgrade(&member)));
    Ok(member)
}

/// A connection on which one question at a time is asked.
#[derive(Debug)]
struct Line {
    socket: Arc<OwnedFd>,
    sequence: u64,
    patience: Duration,
    /// Number of a question about a named object that is not answered yet, and whose answer nobody waits for any more.
    unanswered: Option<u64>,
    /// Objects, by index and incarnation, that are open and that nobody here knows of.
    to_close: Vec<(u32, u64)>,
}

impl Line {
    fn open(path: &Path) -> Result<Self> {
        Self::open_within(path, PATIENCE)
    }

    fn open_within(path: &Path, patience: Duration) -> Result<Self> {
        let failed = |source| Error::Connect { path: path.to_path_buf(), source };
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let socket = socket::packet_socket(SocketFlags::empty()).map_err(failed)?;
        // Also bounds `connect`, when the queue of a service that does not accept is full.
        rustix::net::sockopt::set_socket_timeout(
            &socket,
            rustix::net::sockopt::Timeout::Send,
            Some(patience),
        )
        .map_err(failed)?;
        rustix::net::connect(&socket, &address).map_err(failed)?;
        Ok(Self { socket: Arc::new(socket), sequence: 0, patience, unanswered: None, to_close: Vec::new() })
    }

    /// Sends a request and waits for its reply.
    fn ask(&mut self, request: &Request, fd: Option<&OwnedFd>) -> Result<(Reply, Vec<OwnedFd>)> {
        let deadline = Instant::now() + self.patience;
        self.send(request, fd)?;
        let answer = self.hear(self.sequence, deadline);
        if self.unanswered.is_none() {
            // If that fails it is done before the next question about an object.
            let _ = self.close_one();
        }
        answer
    }

    /// As [`Line::ask`], about a named object. The service takes one such question at a time: one that was given up, and what it
    /// opened, is over with first.
    fn ask_for_object(&mut self, request: &Request) -> Result<Reply> {
        let deadline = Instant::now() + self.patience;
        if let Err(e) = self.catch_up(deadline).and_then(|()| self.send(request, None)) {
            if let Request::Close { index, incarnation } = request {
                self.to_close.push((*index, *incarnation));
            }
            return Err(e);
        }
        let answer = self.hear(self.sequence, deadline);
        if let Err(Error::TimedOut { .. }) = answer {
            self.unanswered = Some(self.sequence);
        }
        answer.map(|(reply, _)| reply)
    }

    /// Waits until no question about an object is unanswered, and nothing is open that nobody knows of.
    fn catch_up(&mut self, deadline: Instant) -> Result<()> {
        while self.unanswered.is_some() || !self.to_close.is_empty() {
            match self.unanswered {
                Some(number) => drop(self.hear(number, deadline)?),
                None => self.close_one()?,
            }
        }
        Ok(())
    }

    /// Sends the question that closes what is open and nobody knows of.
    fn close_one(&mut self) -> Result<()> {
        if let Some((index, incarnation)) = self.to_close.last().copied() {
            self.send(&Request::Close { index, incarnation }, None)?;
            self.to_close.pop();
            self.unanswered = Some(self.sequence);
        }
        Ok(())
    }

    /// Sends a request with the next number.
    fn send(&mut self, request: &Request, fd: Option<&OwnedFd>) -> Result<()> {
        self.sequence += 1;
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        match socket::send(&self.socket, &request.encode(self.sequence), &fds, SendFlags::empty()) {
            // A service that refuses closes at once; what it said is still there to be read.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(Errno::AGAIN) => Err(Error::TimedOut { seconds: self.patience.as_secs() }),
            Err(source) => Err(Error::System { action: "ask the isthmus service", source }),
        }
    }

    /// Waits for the answer to the question with this number.
    fn hear(&mut self, number: u64, deadline: Instant) -> Result<(Reply, Vec<OwnedFd>)> {
        loop {
            self.wait(deadline)?;
            let packet = match socket::receive(&self.socket, RecvFlags::DONTWAIT) {
                Ok(packet) => packet,
                // A reset is reported once, ahead of what the service said before it closed.
                Err(Errno::AGAIN | Errno::CONNRESET) => continue,
                Err(source) => {
                    return Err(Error::System { action: "hear the isthmus service", source });
                }
            };
            if packet.frame.is_empty() {
                return Err(Error::Gone);
            }
            let (sequence, reply) = Reply::decode(&packet.frame)?;
            if self.unanswered == Some(sequence) {
                self.unanswered = None;
                if let Reply::Object(grant) = &reply {
                    self.to_close.push((grant.index, grant.incarnation));
                }
            }
            // An answer to a question that was given up belongs to nobody; a refusal of the line itself has number 0.
            if sequence == number || (sequence == 0 && matches!(reply, Reply::Refused { .. })) {
                return Ok((reply, packet.fds));
            }
        }
    }

    fn wait(&self, deadline: Instant) -> Result<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).unwrap_or_default();
            let mut poll = [PollFd::new(&self.socket, PollFlags::IN)];
            match rustix::event::poll(&mut poll, Some(&timeout)) {
                Ok(0) if left.is_zero() => return Err(Error::TimedOut { seconds: self.patience.as_secs() }),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(source) => return Err(Error::System { action: "wait for the isthmus service", source }),
            }
        }
    }
}

/// The attach protocol as a member's local service.
#[derive(Debug)]
struct Client {
    line: Mutex<Line>,
    /// The line's, for frames that have no answer: they wait for nobody's question. A packet is sent whole.
    socket: Arc<OwnedFd>,
    path: PathBuf,
    pid: Pid,
    /// Held so that the service can ring as long as the process is attached.
    _wake: OwnedFd,
}

impl Client {
    fn ask(&self, action: &'static str, request: &Request) -> isthmus_region::Result<Reply> {
        self.ask_with(action, request).map(|(reply, _)| reply)
    }

    fn ask_with(
        &self,
        action: &'static str,
        request: &Request,
    ) -> isthmus_region::Result<(Reply, Vec<OwnedFd>)> {
        self.refuse_forked(action)?;
        self.ask_on(&mut self.line.lock().unwrap_or_else(PoisonError::into_inner), action, request)
    }

    /// Before the lock: in a forked child another thread of the parent may have left it locked.
    fn refuse_forked(&self, action: &'static str) -> isthmus_region::Result<()> {
        match rustix::process::getpid() == self.pid {
            true => Ok(()),
            false => Err(isthmus_region::Error::Service { action, reason: Error::Forked.to_string() }),
        }
    }

    fn ask_on(
        &self,
        line: &mut Line,
        action: &'static str,
        request: &Request,
    ) -> isthmus_region::Result<(Reply, Vec<OwnedFd>)> {
        let refused = |reason| isthmus_region::Error::Service { action, reason };
        match line.ask(request, None) {
            Ok((Reply::Refused { code: Code::Full, .. }, _)) => {
                let bytes = if let Request::Grow { bytes } = request { *bytes } else { 0 };
                Err(isthmus_region::Error::Full { bytes })
            }
            Ok((Reply::Refused { text, .. }, _)) => Err(refused(text)),
            Ok(answer) => Ok(answer),
            Err(e) => Err(refused(format!("{} ({})", with_causes(&e), self.path.display()))),
        }
    }
}

fn unexpected(action: &'static str) -> isthmus_region::Error {
    isthmus_region::Error::Service { action, reason: "its answer belongs to another question".into() }
}

/// What a refusal about an object means.
fn problem_of(code: Code) -> Option<ObjectProblem> {
    match code {
        Code::NotFound => Some(ObjectProblem::NotFound),
        Code::Exists => Some(ObjectProblem::Exists),
        Code::Denied => Some(ObjectProblem::Denied),
        Code::Full => Some(ObjectProblem::Full),
        Code::Invalid => Some(ObjectProblem::Invalid),
        Code::Version | Code::NotAllowed | Code::BadFrame | Code::Failed => None,
    }
}

impl Client {
    /// As `ask`, where a refusal is about an object.
    fn ask_for_object(&self, action: &'static str, request: &Request) -> isthmus_region::Result<Reply> {
        let refused = |reason| isthmus_region::Error::Service { action, reason };
        self.refuse_forked(action)?;
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        match line.ask_for_object(request) {
            Ok(Reply::Refused { code, text }) => Err(match problem_of(code) {
                Some(problem) => isthmus_region::Error::Object { problem, text },
                None => refused(text),
            }),
            Ok(reply) => Ok(reply),
            Err(e) => Err(refused(format!("{} ({})", with_causes(&e), self.path.display()))),
        }
    }
}

impl LocalService for Client {
    fn grow(&self, bytes: u64) -> isthmus_region::Result<Extent> {
        let action = "grant more memory";
        match self.ask(action, &Request::Grow { bytes })? {
            Reply::Extent(extent) => Ok(extent),
            _ => Err(unexpected(action)),
        }
    }

    fn open_endpoint(&self, block: u64) -> isthmus_region::Result<(u32, u64)> {
        let action = "open an endpoint";
        match self.ask(action, &Request::OpenEndpoint { block })? {
            Reply::Endpoint { slot, incarnation } => Ok((slot, incarnation)),
            _ => Err(unexpected(action)),
        }
    }

    fn close_endpoint(&self, slot: u32) -> isthmus_region::Result<()> {
        let action = "close an endpoint";
        match self.ask(action, &Request::CloseEndpoint { slot })? {
            Reply::Done => Ok(()),
            _ => Err(unexpected(action)),
        }
    }

    fn wake(&self, slot: GlobalSlot) {
        if rustix::process::getpid() == self.pid {
            // A service that is gone, or has no room for this, wakes nobody; the sleeper looks up by itself.
            let frame = Request::Wake { slot: slot.0 }.encode(0);
            let _ = socket::send(&self.socket, &frame, &[], SendFlags::DONTWAIT);
        }
    }

    fn bell(&self, slot: u32) -> isthmus_region::Result<OwnedFd> {
        let action = "give an eventfd";
        match self.ask_with(action, &Request::Bell { slot })? {
            (Reply::Eventfd, fds) => fds.into_iter().next().ok_or_else(|| unexpected(action)),
            _ => Err(unexpected(action)),
        }
    }

    fn create_object(&self, new: &NewObject) -> isthmus_region::Result<ObjectGrant> {
        let action = "make a named object";
        match self.ask_for_object(action, &Request::Create(new.clone()))? {
            Reply::Object(grant) => Ok(grant),
            _ => Err(unexpected(action)),
        }
    }

    fn open_object(&self, kind: Kind, name: &str, access: Access) -> isthmus_region::Result<ObjectGrant> {
        let action = "open a named object";
        match self.ask_for_object(action, &Request::Open { kind, name: name.into(), access })? {
            Reply::Object(grant) => Ok(grant),
            _ => Err(unexpected(action)),
        }
    }

    fn close_object(&self, index: u32, incarnation: u64) -> isthmus_region::Result<()> {
        let action = "close a named object";
        match self.ask_for_object(action, &Request::Close { index, incarnation })? {
            Reply::Done => Ok(()),
            _ => Err(unexpected(action)),
        }
    }

    fn shrink_object(&self, index: u32, incarnation: u64, len: u64) -> isthmus_region::Result<u64> {
        let action = "make a named object smaller";
        match self.ask_for_object(action, &Request::Shrink { index, incarnation, len })? {
            Reply::Len(len) => Ok(len),
            _ => Err(unexpected(action)),
        }
    }

    fn unlink_object(&self, kind: Kind, name: &str) -> isthmus_region::Result<()> {
        let action = "take a name away";
        match self.ask_for_object(action, &Request::Unlink { kind, name: name.into() })? {
            Reply::Done => Ok(()),
            _ => Err(unexpected(action)),
        }
    }

    fn watch(&self, place: u64) -> isthmus_region::Result<OwnedFd> {
        let action = "give an eventfd";
        self.refuse_forked(action)?;
        // Who waits with a limit must not wait here for another thread's question: without an eventfd it sleeps by the clock.
        let mut line = match self.line.try_lock() {
            Ok(line) => line,
            Err(TryLockError::Poisoned(line)) => line.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let reason = "another thread asks the service just now".into();
                return Err(isthmus_region::Error::Service { action, reason });
            }
        };
        match self.ask_on(&mut line, action, &Request::Watch { place })? {
            (Reply::Eventfd, fds) => fds.into_iter().next().ok_or_else(|| unexpected(action)),
            _ => Err(unexpected(action)),
        }
    }

    fn ring(&self, peers: u64, place: u64) {
        if rustix::process::getpid() == self.pid {
            // As with `wake`: who is not rung looks up by himself.
            let frame = Request::Ring { peers, place }.encode(0);
            let _ = socket::send(&self.socket, &frame, &[], SendFlags::DONTWAIT);
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A forked child that drops its copy must not end the parent's attachment.
        if rustix::process::getpid() == self.pid {
            let line = self.line.get_mut().unwrap_or_else(PoisonError::into_inner);
            let _ = socket::send(&line.socket, &Request::Detach.encode(0), &[], SendFlags::DONTWAIT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// A service that answers when it is told to.
    struct Slow(OwnedFd);

    impl Slow {
        fn question(&self) -> (u64, Request) {
            Request::decode(&socket::receive(&self.0, RecvFlags::empty()).unwrap().frame).unwrap()
        }

        fn answer(&self, number: u64, reply: &Reply) {
            socket::send(&self.0, &reply.encode(number), &[], SendFlags::empty()).unwrap();
        }

        /// Answers a question that closes this object; any other one is a failure.
        fn close(&self, index: u32, incarnation: u64) {
            let (number, question) = self.question();
            assert_eq!(question, Request::Close { index, incarnation });
            self.answer(number, &Reply::Done);
        }
    }

    fn line() -> (Slow, Line, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = socket::listen(&path, rustix::net::SocketType::SEQPACKET, 0o600, None).unwrap();
        let line = Line::open(&path).unwrap();
        let slow = rustix::net::accept_with(&listener, SocketFlags::CLOEXEC).unwrap();
        let limit = rustix::net::sockopt::Timeout::Recv;
        rustix::net::sockopt::set_socket_timeout(&slow, limit, Some(LONG)).unwrap();
        (Slow(slow), line, dir)
    }

    fn open(name: &str) -> Request {
        Request::Open { kind: Kind::Segment, name: name.into(), access: Access::Write }
    }

    fn object(index: u32) -> Reply {
        let incarnation = 10 + u64::from(index);
        Reply::Object(ObjectGrant { index, incarnation, offset: 0, len: 64, params: [0; 4], is_new: false })
    }

    /// Asks, and hears no answer.
    fn give_up(slow: &Slow, line: &mut Line) -> u64 {
        line.patience = Duration::from_millis(5);
        assert!(matches!(line.ask_for_object(&open("late")), Err(Error::TimedOut { .. })));
        line.patience = LONG;
        let (number, question) = slow.question();
        assert_eq!(question, open("late"));
        number
    }

    #[test]
    fn a_sleeper_gets_no_eventfd_while_another_thread_asks_and_waits_for_nobody() {
        let (slow, line, _dir) = line();
        let (socket, pid) = (Arc::clone(&line.socket), rustix::process::getpid());
        let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let client = Client { line: Mutex::new(line), socket, path: PathBuf::new(), pid, _wake: wake };
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| client.open_object(Kind::Segment, "slow", Access::Write));
            let (number, _) = slow.question();
            let (said, hears) = std::sync::mpsc::channel();
            let client = &client;
            scope.spawn(move || said.send(client.watch(64).map(drop)));
            let watched = hears.recv_timeout(LONG / 12);
            slow.answer(number, &object(1));
            assert!(asks.join().unwrap().is_ok());
            assert!(matches!(watched, Ok(Err(_))), "{watched:?}");
        });
    }

    #[test]
    fn an_object_that_was_opened_too_late_is_closed_before_the_next_question() {
        let (slow, mut line, _dir) = line();
        // Answered before the next question, and while that waits to be asked.
        for is_there in [true, false] {
            let number = give_up(&slow, &mut line);
            if is_there {
                slow.answer(number, &object(1));
            }
            std::thread::scope(|scope| {
                let next = scope.spawn(|| line.ask_for_object(&open("next")).unwrap());
                if !is_there {
                    slow.answer(number, &object(1));
                }
                slow.close(1, 11);
                let (number, question) = slow.question();
                assert_eq!(question, open("next"));
                slow.answer(number, &object(2));
                assert_eq!(next.join().unwrap(), object(2));
            });
        }
        assert!(line.unanswered.is_none() && line.to_close.is_empty());
    }

    #[test]
    fn what_cannot_be_closed_behind_an_unanswered_question_is_closed_later() {
        let (slow, mut line, _dir) = line();
        let late = give_up(&slow, &mut line);
        line.patience = Duration::from_millis(5);
        let closed = line.ask_for_object(&Request::Close { index: 7, incarnation: 17 });
        assert!(matches!(closed, Err(Error::TimedOut { .. })));
        line.patience = LONG;
        slow.answer(late, &object(1));
        std::thread::scope(|scope| {
            let next = scope.spawn(|| line.ask_for_object(&open("next")).unwrap());
            slow.close(1, 11);
            slow.close(7, 17);
            let (number, _) = slow.question();
            slow.answer(number, &object(2));
            assert_eq!(next.join().unwrap(), object(2));
        });
    }

    #[test]
    fn an_answer_too_late_that_is_met_by_another_question_is_closed_after_it() {
        let (slow, mut line, _dir) = line();
        let late = give_up(&slow, &mut line);
        std::thread::scope(|scope| {
            let grow = scope.spawn(|| line.ask(&Request::Grow { bytes: 1 }, None).unwrap().0);
            let (number, question) = slow.question();
            assert_eq!(question, Request::Grow { bytes: 1 });
            slow.answer(late, &object(3));
            slow.answer(number, &Reply::Done);
            assert_eq!(grow.join().unwrap(), Reply::Done);
            slow.close(3, 13);
        });
        // What opened nothing leaves nothing to close.
        let late = give_up(&slow, &mut line);
        slow.answer(late, &Reply::Refused { code: Code::NotFound, text: "no".into() });
        std::thread::scope(|scope| {
            let next = scope.spawn(|| line.ask_for_object(&open("next")).unwrap());
            let (number, question) = slow.question();
            assert_eq!(question, open("next"));
            slow.answer(number, &object(2));
            assert_eq!(next.join().unwrap(), object(2));
        });
    }
}
