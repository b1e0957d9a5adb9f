//! A connection to the service, with one request at a time under way.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_region::extent::Extent;
use isthmus_region::kept::Kept;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix, SocketFlags};

use super::PATIENCE;
use crate::error::{Error, Result};
use crate::protocol::{Code, Reply, Request};
use crate::socket;

/// How long a thread looks for an answer before it sleeps: most come sooner, and a sleep takes longer than that.
const AWAKE: Duration = Duration::from_micros(30);
/// Time from a refusal of a bell by the service, which may be short of descriptors, to the next request.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// A connection with one request at a time under way.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: Arc<Kept>,
    sequence: u64,
    patience: Duration,
    /// Number of a request about a named object that was given up and has no answer yet, and whether it opens one.
    unanswered: Option<(u64, bool)>,
    /// Objects, by index and incarnation, that such a request opened: no user of this process knows of them.
    to_close: Vec<(u32, u64)>,
    /// Numbers of requests for more memory that were given up and have no answer yet.
    grows: Vec<u64>,
    /// Memory that came in answer to such requests, and serves the next ones: the service counts it as this process's.
    spare: Vec<Extent>,
    /// Number and place of a request for a bell that was given up and has no answer yet. There is one at most: a service that does not
    /// answer is asked no more.
    awaited_bell: Option<(u64, u64)>,
    /// A bell that came in answer to such a request, with its place.
    spare_bell: Option<(u64, Kept)>,
    /// When the service refused a bell.
    bell_refused: Option<Instant>,
}

impl Connection {
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
        Ok(Self {
            socket: Arc::new(Kept::new(socket)),
            sequence: 0,
            patience,
            unanswered: None,
            to_close: Vec::new(),
            grows: Vec::new(),
            spare: Vec::new(),
            awaited_bell: None,
            spare_bell: None,
            bell_refused: None,
        })
    }

    /// Sends a request and waits for its reply. A descriptor is sent along, and closed: more may come with the reply, and the process be at
    /// its limit.
    pub(super) fn ask(&mut self, request: &Request, fd: Option<OwnedFd>) -> Result<(Reply, Vec<OwnedFd>)> {
        self.ask_until(request, fd, Instant::now() + self.patience)
    }

    /// As [`Connection::ask`], with less patience.
    pub(super) fn ask_within(
        &mut self,
        request: &Request,
        patience: Duration,
    ) -> Result<(Reply, Vec<OwnedFd>)> {
        self.ask_until(request, None, Instant::now() + patience)
    }

    fn ask_until(
        &mut self,
        request: &Request,
        fd: Option<OwnedFd>,
        deadline: Instant,
    ) -> Result<(Reply, Vec<OwnedFd>)> {
        if let Request::Grow { bytes } = request
            && let Some(extent) = self.take_spare(*bytes)
        {
            return Ok((Reply::Extent(extent), Vec::new()));
        }
        self.send(request, fd.as_ref(), SendFlags::empty())?;
        drop(fd);
        let answer = self.receive(self.sequence, deadline);
        if let (Request::Grow { .. }, Err(Error::TimedOut { .. })) = (request, &answer) {
            self.grows.push(self.sequence);
        }
        if self.unanswered.is_none() {
            // If that fails, it is tried again before the next request about an object.
            let _ = self.close_one();
        }
        answer
    }

    /// The smallest spare memory of so many bytes, or up to twice as many: what is much larger is for one that asks for as much again.
    fn take_spare(&mut self, bytes: u64) -> Option<Extent> {
        let fits = |extent: &&Extent| (bytes..=bytes.saturating_mul(2)).contains(&extent.bytes);
        let found = *self.spare.iter().filter(fits).min_by_key(|extent| extent.bytes)?;
        self.spare.retain(|extent| extent.offset != found.offset);
        Some(found)
    }

    /// As [`Connection::ask`], about a named object. The service takes one such request at a time, so one that was
    /// given up is first waited for, and what it opened is closed.
    pub(super) fn ask_for_object(&mut self, request: &Request) -> Result<Reply> {
        let deadline = Instant::now() + self.patience;
        if let Err(e) = self.catch_up(deadline).and_then(|()| self.send(request, None, SendFlags::empty())) {
            if let Request::Close { index, incarnation } = request {
                self.to_close.push((*index, *incarnation));
            }
            return Err(e);
        }
        let answer = self.receive(self.sequence, deadline);
        if let Err(Error::TimedOut { .. }) = answer {
            // What is made of System V IPC is not opened by that.
            let opens = !matches!(request, Request::Create(new) if new.kind.is_sysv());
            self.unanswered = Some((self.sequence, opens));
        }
        answer.map(|(reply, _)| reply)
    }

    /// Waits for the answers to requests that were given up, and closes what they opened.
    fn catch_up(&mut self, deadline: Instant) -> Result<()> {
        while self.unanswered.is_some() || !self.to_close.is_empty() {
            match self.unanswered {
                Some((number, _)) => drop(self.receive(number, deadline)?),
                None => self.close_one()?,
            }
        }
        Ok(())
    }

    /// Asks to close one object of `to_close`, if there is any.
    fn close_one(&mut self) -> Result<()> {
        if let Some((index, incarnation)) = self.to_close.last().copied() {
            self.send(&Request::Close { index, incarnation }, None, SendFlags::empty())?;
            self.to_close.pop();
            self.unanswered = Some((self.sequence, false));
        }
        Ok(())
    }

    /// A bell for a place, for one who can do without: waits for `patience` at most, and not at all while a service that has not
    /// answered in that time still does not. What it answers later is given to one that asks then.
    pub(super) fn watch(&mut self, place: u64, patience: Duration) -> Result<(Reply, Option<Kept>)> {
        let deadline = Instant::now() + patience;
        if let Some((number, of)) = self.awaited_bell {
            let (reply, fds) = self.receive(number, Instant::now())?;
            self.keep_bell(of, &reply, fds);
        }
        if let Some((_, bell)) = self.spare_bell.take_if(|(of, bell)| *of == place && bell.is_there()) {
            return Ok((Reply::Bell, Some(bell)));
        }
        if self.bell_refused.is_some_and(|at| at.elapsed() < ASK_AGAIN) {
            let text = "it has refused one just now".into();
            return Ok((Reply::Refused { code: Code::Failed, text }, None));
        }
        // A socket that is full is that of a service that does not read.
        self.send(&Request::Watch { place }, None, SendFlags::DONTWAIT)?;
        self.awaited_bell = Some((self.sequence, place));
        let (reply, fds) = self.receive(self.sequence, deadline)?;
        if let Reply::Refused { .. } = reply {
            self.bell_refused = Some(Instant::now());
        }
        Ok((reply, fds.into_iter().next().map(Kept::new)))
    }

    /// Keeps a late answer to a request for a bell.
    fn keep_bell(&mut self, place: u64, reply: &Reply, fds: Vec<OwnedFd>) {
        match reply {
            Reply::Bell => self.spare_bell = fds.into_iter().next().map(|bell| (place, Kept::new(bell))),
            _ => self.bell_refused = Some(Instant::now()),
        }
    }

    /// Sends a request with the next number.
    fn send(&mut self, request: &Request, fd: Option<&OwnedFd>, flags: SendFlags) -> Result<()> {
        self.sequence += 1;
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        match socket::send(&self.socket, &request.encode(self.sequence), &fds, flags) {
            // A service that refuses closes its end at once; its refusal can still be read.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(Errno::AGAIN) => Err(Error::TimedOut { seconds: self.patience.as_secs() }),
            Err(source) => Err(Error::System { action: "ask the isthmus service", source }),
        }
    }

    /// Waits for the answer to the request with this number.
    fn receive(&mut self, number: u64, deadline: Instant) -> Result<(Reply, Vec<OwnedFd>)> {
        let answer = self.receive_until(number, deadline);
        if let Err(e) = &answer
            && !matches!(e, Error::TimedOut { .. })
        {
            // It may have been lost, as for want of a descriptor.
            self.awaited_bell = None;
        }
        answer
    }

    fn receive_until(&mut self, number: u64, deadline: Instant) -> Result<(Reply, Vec<OwnedFd>)> {
        let awake_until = deadline.min(Instant::now() + AWAKE);
        loop {
            let packet = match socket::receive(&self.socket, RecvFlags::DONTWAIT) {
                Ok(packet) => packet,
                Err(Errno::AGAIN) if Instant::now() < awake_until => {
                    std::thread::yield_now();
                    continue;
                }
                Err(Errno::AGAIN) => {
                    self.wait(deadline)?;
                    continue;
                }
                // It is reported once, ahead of what the service said before it closed.
                Err(Errno::CONNRESET) => continue,
                Err(source) => {
                    return Err(Error::System { action: "hear the isthmus service", source });
                }
            };
            if packet.frame.is_empty() {
                return Err(Error::Gone);
            }
            let (sequence, reply) = Reply::decode(&packet.frame)?;
            if let Some((_, opens)) = self.unanswered.take_if(|(number, _)| *number == sequence)
                && let Reply::Object(grant) = &reply
                && opens
            {
                self.to_close.push((grant.index, grant.incarnation));
            }
            if let Some(at) = self.grows.iter().position(|number| *number == sequence) {
                self.grows.swap_remove(at);
                if let Reply::Extent(extent) = &reply {
                    self.spare.push(*extent);
                }
            }
            let awaited = self.awaited_bell.take_if(|(awaited, _)| *awaited == sequence);
            // A refusal of the connection itself has number 0.
            if sequence == number || (sequence == 0 && matches!(reply, Reply::Refused { .. })) {
                return Ok((reply, packet.fds));
            }
            // Other answers to requests that were given up are dropped.
            if let Some((_, place)) = awaited {
                self.keep_bell(place, &reply, packet.fds);
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

    /// A service that answers when the test tells it to.
    pub(in crate::client) struct Slow(OwnedFd);

    impl Slow {
        pub(in crate::client) fn request(&self) -> (u64, Request) {
            Request::decode(&socket::receive(&self.0, RecvFlags::empty()).unwrap().frame).unwrap()
        }

        pub(in crate::client) fn answer(&self, number: u64, reply: &Reply) {
            socket::send(&self.0, &reply.encode(number), &[], SendFlags::empty()).unwrap();
        }

        /// Answers a request for a bell; gives what rings it.
        fn bell(&self, number: u64) -> OwnedFd {
            let (bell, own) = isthmus_region::doorbell::bell().unwrap();
            let frame = Reply::Bell.encode(number);
            socket::send(&self.0, &frame, &[bell.as_fd()], SendFlags::empty()).unwrap();
            own
        }

        /// Answers a request to close this object; fails on any other request.
        fn close(&self, index: u32, incarnation: u64) {
            let (number, request) = self.request();
            assert_eq!(request, Request::Close { index, incarnation });
            self.answer(number, &Reply::Done);
        }
    }

    pub(in crate::client) fn connection() -> (Slow, Connection, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = socket::listen(&path, rustix::net::SocketType::SEQPACKET, 0o600, None).unwrap();
        let connection = Connection::open(&path).unwrap();
        let slow = rustix::net::accept_with(&listener, SocketFlags::CLOEXEC).unwrap();
        let limit = rustix::net::sockopt::Timeout::Recv;
        rustix::net::sockopt::set_socket_timeout(&slow, limit, Some(LONG)).unwrap();
        (Slow(slow), connection, dir)
    }

    fn open(name: &str) -> Request {
        Request::Open { kind: Kind::Segment, name: name.into(), access: Access::Write }
    }

    pub(in crate::client) fn object(index: u32) -> Reply {
        let incarnation = 10 + u64::from(index);
        Reply::Object(ObjectGrant { index, incarnation, offset: 0, len: 64, params: [0; 4], is_new: false })
    }

    /// Sends a request and gives it up without an answer.
    fn give_up(slow: &Slow, connection: &mut Connection) -> u64 {
        connection.patience = Duration::from_millis(5);
        assert!(matches!(connection.ask_for_object(&open("late")), Err(Error::TimedOut { .. })));
        connection.patience = LONG;
        let (number, request) = slow.request();
        assert_eq!(request, open("late"));
        number
    }

    #[test]
    fn memory_that_came_too_late_serves_the_next_request() {
        let (slow, mut connection, _dir) = connection();
        let grow = |bytes| Request::Grow { bytes };
        connection.patience = Duration::from_millis(5);
        assert!(matches!(connection.ask(&grow(4096), None), Err(Error::TimedOut { .. })));
        connection.patience = LONG;
        let late = Extent { offset: 1 << 20, bytes: 4096 };
        let (number, _) = slow.request();
        slow.answer(number, &Reply::Extent(late));
        let more = Extent { offset: 2 << 20, bytes: 8192 };
        std::thread::scope(|scope| {
            let next = scope.spawn(|| connection.ask(&grow(8192), None).unwrap().0);
            slow.answer(slow.request().0, &Reply::Extent(more));
            assert_eq!(next.join().unwrap(), Reply::Extent(more));
        });
        assert_eq!(connection.take_spare(100), None, "much larger");
        // Without a request.
        assert_eq!(connection.ask(&grow(4000), None).unwrap().0, Reply::Extent(late));
        assert!(connection.spare.is_empty() && connection.grows.is_empty());
    }

    #[test]
    fn a_service_that_does_not_answer_is_asked_for_one_bell_and_nobody_waits_for_it() {
        let (slow, mut connection, _dir) = connection();
        let soon = Duration::from_millis(5);
        let begun = Instant::now();
        for place in [64, 64, 128, 64] {
            assert!(matches!(connection.watch(place, soon), Err(Error::TimedOut { .. })));
        }
        assert!(begun.elapsed() < LONG / 12, "{:?}", begun.elapsed());
        let (number, request) = slow.request();
        assert_eq!(request, Request::Watch { place: 64 });
        // What comes now is for one that asks for that place; others ask anew.
        let late = slow.bell(number);
        std::thread::scope(|scope| {
            let both =
                scope.spawn(|| [128, 64].map(|place| connection.watch(place, LONG).unwrap().1.unwrap()));
            let (number, request) = slow.request();
            assert_eq!(request, Request::Watch { place: 128 });
            let other = slow.bell(number);
            let given = both.join().unwrap();
            for (given, own) in given.iter().zip([other, late]) {
                isthmus_region::doorbell::ring(own);
                assert!(isthmus_region::doorbell::drain(given.as_fd()));
            }
        });
        // Also if it comes while another question is asked.
        assert!(matches!(connection.watch(192, soon), Err(Error::TimedOut { .. })));
        let (number, _) = slow.request();
        std::thread::scope(|scope| {
            let grow = scope.spawn(|| connection.ask(&Request::Grow { bytes: 1 }, None).unwrap().0);
            let (next, _) = slow.request();
            let _own = slow.bell(number);
            slow.answer(next, &Reply::Done);
            assert_eq!(grow.join().unwrap(), Reply::Done);
        });
        assert!(matches!(connection.watch(192, soon), Ok((Reply::Bell, Some(_)))));
    }

    #[test]
    fn a_bell_is_not_asked_for_again_directly_after_a_refusal() {
        let (slow, mut connection, _dir) = connection();
        let refusal = || Reply::Refused { code: Code::Failed, text: "no descriptor is left".into() };
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| connection.watch(64, LONG).unwrap().0);
            slow.answer(slow.request().0, &refusal());
            assert_eq!(asks.join().unwrap(), refusal());
        });
        // Nobody answers this one.
        assert!(matches!(connection.watch(64, LONG), Ok((Reply::Refused { .. }, None))));
    }

    #[test]
    fn an_object_that_was_opened_too_late_is_closed_before_the_next_request() {
        let (slow, mut connection, _dir) = connection();
        // Answered before the next request, and while that waits to be sent.
        for is_there in [true, false] {
            let number = give_up(&slow, &mut connection);
            if is_there {
                slow.answer(number, &object(1));
            }
            std::thread::scope(|scope| {
                let next = scope.spawn(|| connection.ask_for_object(&open("next")).unwrap());
                if !is_there {
                    slow.answer(number, &object(1));
                }
                slow.close(1, 11);
                let (number, request) = slow.request();
                assert_eq!(request, open("next"));
                slow.answer(number, &object(2));
                assert_eq!(next.join().unwrap(), object(2));
            });
        }
        assert!(connection.unanswered.is_none() && connection.to_close.is_empty());
    }

    #[test]
    fn what_cannot_be_closed_behind_an_unanswered_request_is_closed_later() {
        let (slow, mut connection, _dir) = connection();
        let late = give_up(&slow, &mut connection);
        connection.patience = Duration::from_millis(5);
        let closed = connection.ask_for_object(&Request::Close { index: 7, incarnation: 17 });
        assert!(matches!(closed, Err(Error::TimedOut { .. })));
        connection.patience = LONG;
        slow.answer(late, &object(1));
        std::thread::scope(|scope| {
            let next = scope.spawn(|| connection.ask_for_object(&open("next")).unwrap());
            slow.close(1, 11);
            slow.close(7, 17);
            let (number, _) = slow.request();
            slow.answer(number, &object(2));
            assert_eq!(next.join().unwrap(), object(2));
        });
    }

    #[test]
    fn an_object_whose_late_answer_comes_during_another_request_is_closed_after_it() {
        let (slow, mut connection, _dir) = connection();
        let late = give_up(&slow, &mut connection);
        std::thread::scope(|scope| {
            let grow = scope.spawn(|| connection.ask(&Request::Grow { bytes: 1 }, None).unwrap().0);
            let (number, request) = slow.request();
            assert_eq!(request, Request::Grow { bytes: 1 });
            slow.answer(late, &object(3));
            slow.answer(number, &Reply::Done);
            assert_eq!(grow.join().unwrap(), Reply::Done);
            slow.close(3, 13);
        });
        // A request that opened nothing leaves nothing to close.
        let late = give_up(&slow, &mut connection);
        slow.answer(late, &Reply::Refused { code: crate::protocol::Code::NotFound, text: "no".into() });
        std::thread::scope(|scope| {
            let next = scope.spawn(|| connection.ask_for_object(&open("next")).unwrap());
            let (number, request) = slow.request();
            assert_eq!(request, open("next"));
            slow.answer(number, &object(2));
            assert_eq!(next.join().unwrap(), object(2));
        });
    }
}
