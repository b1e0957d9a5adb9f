//! A connection to the service, on which one question at a time is asked.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix, SocketFlags};

use super::PATIENCE;
use crate::error::{Error, Result};
use crate::protocol::{Reply, Request};
use crate::socket;

/// A connection on which one question at a time is asked.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) socket: Arc<OwnedFd>,
    sequence: u64,
    patience: Duration,
    /// Number of a question about a named object that is not answered yet, and whose answer nobody waits for any more.
    unanswered: Option<u64>,
    /// Objects, by index and incarnation, that are open and that nobody here knows of.
    to_close: Vec<(u32, u64)>,
}

impl Line {
    pub(super) fn open(path: &Path) -> Result<Self> {
        Self::open_within(path, PATIENCE)
    }

    pub(super) fn open_within(path: &Path, patience: Duration) -> Result<Self> {
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
    pub(super) fn ask(&mut self, request: &Request, fd: Option<&OwnedFd>) -> Result<(Reply, Vec<OwnedFd>)> {
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
    pub(super) fn ask_for_object(&mut self, request: &Request) -> Result<Reply> {
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
#[cfg(test)]
pub(super) mod tests {
    use isthmus_region::objects::{Access, Kind, ObjectGrant};

    use super::*;

    pub(in crate::client) const LONG: Duration = Duration::from_secs(60);

    /// A service that answers when it is told to.
    pub(in crate::client) struct Slow(OwnedFd);

    impl Slow {
        pub(in crate::client) fn question(&self) -> (u64, Request) {
            Request::decode(&socket::receive(&self.0, RecvFlags::empty()).unwrap().frame).unwrap()
        }

        pub(in crate::client) fn answer(&self, number: u64, reply: &Reply) {
            socket::send(&self.0, &reply.encode(number), &[], SendFlags::empty()).unwrap();
        }

        /// Answers a question that closes this object; any other one is a failure.
        fn close(&self, index: u32, incarnation: u64) {
            let (number, question) = self.question();
            assert_eq!(question, Request::Close { index, incarnation });
            self.answer(number, &Reply::Done);
        }
    }

    pub(in crate::client) fn line() -> (Slow, Line, tempfile::TempDir) {
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

    pub(in crate::client) fn object(index: u32) -> Reply {
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
        slow.answer(late, &Reply::Refused { code: crate::protocol::Code::NotFound, text: "no".into() });
        std::thread::scope(|scope| {
            let next = scope.spawn(|| line.ask_for_object(&open("next")).unwrap());
            let (number, question) = slow.question();
            assert_eq!(question, open("next"));
            slow.answer(number, &object(2));
            assert_eq!(next.join().unwrap(), object(2));
        });
    }
}
