//! The attach protocol as a member's local service.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use isthmus_region::driver::Ringer;
use isthmus_region::error::{ObjectProblem, with_causes};
use isthmus_region::extent::Extent;
use isthmus_region::format::GlobalSlot;
use isthmus_region::grants::{Granted, Outcome};
use isthmus_region::kept::Kept;
use isthmus_region::member::{LocalService, no_grants};
use isthmus_region::objects::sysv::{Change, Sharing};
use isthmus_region::objects::{Access, Kind, NewObject, ObjectGrant};
use isthmus_region::shared_by_threads::Flag;
use isthmus_region::signals;
use isthmus_region::text::printable;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::connection::Connection;
use crate::error::Error;
use crate::protocol::{Code, NAME_BYTES, Reply, Request};
use crate::socket;

/// How long a process waits that asks or rings in the middle of its messages, and does without an answer.
const SOON: Duration = Duration::from_secs(1);

/// The attach protocol as a member's local service.
#[derive(Debug)]
pub(super) struct Client {
    connection: Mutex<Connection>,
    /// The connection's, for frames without an answer, which do not wait for other threads' requests. A packet is
    /// sent whole.
    socket: Arc<Kept>,
    path: PathBuf,
    has_former: bool,
    /// Whether the last ring found no room for a second: then the next ones do not wait, until one is taken.
    stands: Flag,
    /// By which it rings other peers, if the region is the guest driver's.
    ringer: Option<Ringer>,
}

impl Client {
    pub(super) fn new(connection: Connection, path: &Path, has_former: bool, ringer: Option<Ringer>) -> Self {
        let socket = Arc::clone(&connection.socket);
        Self {
            connection: Mutex::new(connection),
            socket,
            path: path.to_path_buf(),
            has_former,
            stands: Flag::new(false),
            ringer,
        }
    }

    /// Whether this process may use the connection: it is not a forked child, and the descriptor is still the connection's.
    fn is_own(&self) -> bool {
        self.socket.is_own() && self.socket.is_there()
    }

    /// Sends a ring, for which there is no reply. A socket that is full has hundreds of them, so its service is busy: as somebody may
    /// sleep until this one comes, this waits for room, a second at most. To a service that is gone nothing is sent.
    fn post(&self, frame: &[u8]) {
        let is_full = || socket::send(&self.socket, frame, &[], SendFlags::DONTWAIT) == Err(Errno::AGAIN);
        if !is_full() {
            self.stands.clear();
            return;
        }
        if self.stands.is_set() {
            return;
        }
        let until = Instant::now() + SOON;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.stands.set();
                return;
            }
            let room = &mut [PollFd::new(&self.socket, PollFlags::OUT)];
            let _ = rustix::event::poll(room, Timespec::try_from(left).ok().as_ref());
            if !is_full() {
                return;
            }
        }
    }

    fn ask(&self, action: &'static str, request: &Request) -> isthmus_region::Result<Reply> {
        self.ask_with(action, request).map(|(reply, _)| reply)
    }

    fn ask_with(
        &self,
        action: &'static str,
        request: &Request,
    ) -> isthmus_region::Result<(Reply, Vec<OwnedFd>)> {
        self.refuse_others(action)?;
        self.ask_on(&mut signals::lock(&self.connection), action, request)
    }

    /// Fails in a forked child, and where the program has closed the connection. Called before the lock is taken, which another
    /// thread of the parent may have left locked.
    fn refuse_others(&self, action: &'static str) -> isthmus_region::Result<()> {
        if self.is_own() {
            return Ok(());
        }
        let reason = match self.socket.is_own() {
            true => "this process has closed its connection to the service".into(),
            false => Error::Forked.to_string(),
        };
        Err(isthmus_region::Error::Service { action, reason })
    }

    fn ask_on(
        &self,
        connection: &mut Connection,
        action: &'static str,
        request: &Request,
    ) -> isthmus_region::Result<(Reply, Vec<OwnedFd>)> {
        let refused = |reason| isthmus_region::Error::Service { action, reason };
        match connection.ask(request, None) {
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
    isthmus_region::Error::Service { action, reason: "its reply is not one to this request".into() }
}

/// The problem with an object that a refusal names, if it names one.
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
        self.refuse_others(action)?;
        let mut connection = signals::lock(&self.connection);
        match connection.ask_for_object(request) {
            Ok(Reply::Refused { code, text }) => Err(match problem_of(code) {
                Some(problem) => isthmus_region::Error::Object { problem, text },
                None => refused(text),
            }),
            Ok(reply) => Ok(reply),
            Err(e) => Err(refused(format!("{} ({})", with_causes(&e), self.path.display()))),
        }
    }

    /// Says something to which there is no answer; gives whether it was sent. Waits while the socket is full.
    fn say(&self, request: &Request) -> bool {
        self.is_own() && socket::send(&self.socket, &request.encode(0), &[], SendFlags::empty()).is_ok()
    }

    /// As `ask_for_object`, where the answer says only that it is done.
    fn done(&self, action: &'static str, request: &Request) -> isthmus_region::Result<()> {
        match self.ask_for_object(action, request)? {
            Reply::Done => Ok(()),
            _ => Err(unexpected(action)),
        }
    }
}

impl LocalService for Client {
    fn file(&self, index: u32) -> isthmus_region::Result<OwnedFd> {
        let action = "give a file of the region";
        match self.ask_with(action, &Request::File { index })? {
            (Reply::File, fds) => fds.into_iter().next().ok_or_else(|| unexpected(action)),
            _ => Err(unexpected(action)),
        }
    }

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

    fn has_ended(&self) -> bool {
        // Asked for nothing, poll(2) still tells that the other end is closed.
        let mut poll = [PollFd::new(&self.socket, PollFlags::empty())];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut poll, Some(&at_once)).is_ok_and(|count| count > 0)
    }

    fn wake(&self, slot: GlobalSlot) {
        if self.ringer.as_ref().is_some_and(|ringer| ringer.endpoint(slot)) {
            return;
        }
        if self.is_own() {
            self.post(&Request::Wake { slot: slot.0 }.encode(0));
        }
    }

    fn grant(&self, address: u64, into: &mut [Option<Granted>]) -> isthmus_region::Result<Outcome> {
        let ringer = self.ringer.as_ref().ok_or_else(|| no_grants("the guest driver is not there"))?;
        ringer.grant(address, true, false, into).map_err(|e| no_grants(&e.to_string()))
    }

    fn keep(&self, address: u64, into: &mut [Option<Granted>]) -> isthmus_region::Result<Outcome> {
        let ringer = self.ringer.as_ref().ok_or_else(|| no_grants("the guest driver is not there"))?;
        ringer.grant(address, true, true, into).map_err(|e| no_grants(&e.to_string()))
    }

    fn release_kept(&self, pages: &[Granted]) {
        if let Some(ringer) = &self.ringer {
            // It fails where the device is gone, or the process is a fork's child: neither keeps anything.
            let _ = ringer.release(pages);
        }
    }

    fn revoke(&self, address: u64, count: u32) -> isthmus_region::Result<usize> {
        let ringer = self.ringer.as_ref().ok_or_else(|| no_grants("the guest driver is not there"))?;
        ringer.revoke(address, count).map_err(|e| no_grants(&e.to_string()))
    }

    fn bell(&self, slot: u32) -> isthmus_region::Result<OwnedFd> {
        let action = "give a bell";
        match self.ask_with(action, &Request::Bell { slot })? {
            (Reply::Bell, fds) => fds.into_iter().next().ok_or_else(|| unexpected(action)),
            _ => Err(unexpected(action)),
        }
    }

    fn process(&self, slot: u32, incarnation: u64) -> isthmus_region::Result<Option<OwnedFd>> {
        let action = "tell of a process";
        self.refuse_others(action)?;
        // Another thread's question may take as long as the service lets it.
        let Ok(mut connection) = self.connection.try_lock() else {
            return Err(isthmus_region::Error::Service {
                action,
                reason: "it is being asked something else".into(),
            });
        };
        match connection.ask_within(&Request::Process { slot, incarnation }, SOON) {
            Ok((Reply::Process, fds)) => fds.into_iter().next().map(Some).ok_or_else(|| unexpected(action)),
            Ok((Reply::Refused { code: Code::NotFound | Code::Denied, .. }, _)) => Ok(None),
            Ok((Reply::Refused { text, .. }, _)) => {
                Err(isthmus_region::Error::Service { action, reason: text })
            }
            Ok(_) => Err(unexpected(action)),
            Err(e) => Err(isthmus_region::Error::Service { action, reason: with_causes(&e) }),
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

    fn hold_object(&self, index: u32, incarnation: u64) -> isthmus_region::Result<ObjectGrant> {
        let action = "open an object";
        match self.ask_for_object(action, &Request::Hold { index, incarnation })? {
            Reply::Object(grant) => Ok(grant),
            _ => Err(unexpected(action)),
        }
    }

    fn release_object(&self, index: u32, incarnation: u64) {
        let _ = self.say(&Request::Release { index, incarnation });
    }

    fn enter_object(&self, index: u32, incarnation: u64) -> bool {
        self.say(&Request::Enter { index, incarnation })
    }

    fn removed_object(&self, index: u32, incarnation: u64) {
        let _ = self.say(&Request::Removed { index, incarnation });
    }

    fn change_object(&self, index: u32, incarnation: u64, change: &Change) -> isthmus_region::Result<()> {
        let action = "change an object";
        self.done(action, &Request::Change { index, incarnation, change: *change })
    }

    fn share_object(&self, index: u32, incarnation: u64, sharing: &Sharing) -> isthmus_region::Result<()> {
        let action = "share an object";
        // A longer one would be cut, and might be another's then.
        if let Sharing::With(name) | Sharing::Also(name) | Sharing::Next(name) = sharing
            && (name.len() >= NAME_BYTES || name.contains('\0'))
        {
            let reason = format!("no host or VM is called {}", printable(name));
            return Err(isthmus_region::Error::Service { action, reason });
        }
        self.done(action, &Request::Share { index, incarnation, sharing: sharing.clone() })
    }

    fn remove_object(&self, index: u32, incarnation: u64) -> isthmus_region::Result<()> {
        self.done("remove an object", &Request::Remove { index, incarnation })
    }

    fn settle(&self) -> isthmus_region::Result<()> {
        self.done("look who lives", &Request::Settle)
    }

    fn watch(&self, place: u64, patience: Duration) -> isthmus_region::Result<Kept> {
        let action = "give a bell";
        self.refuse_others(action)?;
        // A caller with a time limit must not wait here for another thread's request; without a bell it naps.
        let mut connection = match self.connection.try_lock() {
            Ok(connection) => connection,
            Err(TryLockError::Poisoned(connection)) => connection.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let reason = "another thread asks the service just now".into();
                return Err(isthmus_region::Error::Service { action, reason });
            }
        };
        match connection.watch(place, patience) {
            Ok((Reply::Bell, Some(bell))) => Ok(bell),
            Ok((Reply::Refused { text, .. }, _)) => {
                Err(isthmus_region::Error::Service { action, reason: text })
            }
            Ok(_) => Err(unexpected(action)),
            Err(e) => Err(isthmus_region::Error::Service { action, reason: with_causes(&e) }),
        }
    }

    fn ring(&self, peers: u64, place: u64) {
        let peers = self.ringer.as_ref().map_or(peers, |ringer| ringer.gate(peers, place));
        if peers != 0 && self.is_own() {
            self.post(&Request::Ring { peers, place }.encode(0));
        }
    }

    fn has_former(&self) -> bool {
        self.has_former
    }

    fn forget_former(&self) -> isthmus_region::Result<()> {
        let action = "forget what this process had before it executed its program";
        match self.ask(action, &Request::Forget)? {
            Reply::Done => Ok(()),
            _ => Err(unexpected(action)),
        }
    }

    fn abandon(&self) {
        self.socket.abandon();
        if let Some(ringer) = &self.ringer {
            ringer.abandon();
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A forked child that drops its copy must not end the parent's attachment.
        if self.is_own() {
            let connection = self.connection.get_mut().unwrap_or_else(PoisonError::into_inner);
            let _ = socket::send(&connection.socket, &Request::Detach.encode(0), &[], SendFlags::DONTWAIT);
        }
    }
}
#[cfg(test)]
mod tests {
    use super::super::connection::tests::{LONG, connection, object};
    use super::*;

    #[test]
    fn an_object_is_shared_with_nobody_whose_name_would_be_cut() {
        let (_slow, connection, _dir) = connection();
        let client = Client::new(connection, Path::new(""), false, None);
        for name in ["v".repeat(64), "vm1\0x".into()] {
            let refused = client.share_object(1, 1, &Sharing::With(name));
            assert!(matches!(refused, Err(isthmus_region::Error::Service { .. })), "{refused:?}");
        }
    }

    #[test]
    fn watch_fails_at_once_while_another_thread_waits_for_an_answer() {
        let (slow, connection, _dir) = connection();
        let client = Client::new(connection, Path::new(""), false, None);
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| client.open_object(Kind::Segment, "slow", Access::Write));
            let (number, _) = slow.request();
            let (said, hears) = std::sync::mpsc::channel();
            let client = &client;
            scope.spawn(move || said.send(client.watch(64, LONG).map(drop)));
            let watched = hears.recv_timeout(LONG / 12);
            slow.answer(number, &object(1));
            assert!(asks.join().unwrap().is_ok());
            assert!(matches!(watched, Ok(Err(_))), "{watched:?}");
        });
    }
}
