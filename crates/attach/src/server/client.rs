//! One connection: from its greeting to its end.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use isthmus_region::directory::AreaGrant;
use isthmus_region::party::Party;
use isthmus_region::unread::unread;
use rustix::event::epoll;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::event_loop::{Loop, TOLD};
use super::{Ending, Event, Newcomer, Untold, Who};
use crate::error::{Error, Result};
use crate::protocol::{self, Code, Observed, Reply, Request, VERSION, Welcome};
use crate::socket;

/// How long the service looks for another frame after one about an object, before it sleeps.
pub(super) const AWAKE: Duration = Duration::from_micros(30);
/// How long after the end of a connection its process may die, so that it is told as a death and not as a mere close: a dying process
/// closes its descriptors about a millisecond before its pidfd becomes readable.
const DEATH_GRACE: Duration = Duration::from_millis(5);
/// Connections of one user that have ended and whose answers were not read, at most: each holds a descriptor of this service, and others
/// that are on their way.
const MOST_UNREAD: usize = 64;
/// Why no descriptor can be sent.
pub(super) const SHORT: &str = "as many descriptors as this service's user may have on their way (its ulimit -n) wait for processes that do not read what they were sent";
/// Checks a pidfd without waiting.
pub(super) const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// One connection.
pub(super) struct Client {
    pub(super) socket: OwnedFd,
    pub(super) who: Who,
    pub(super) gid: u32,
    pub(super) since: Instant,
    /// As its `Hello` has it; 0 before.
    pub(super) image: u64,
    pub(super) attached: Option<Attached>,
}

/// A process that lives on after its attachment, or its former program's.
pub(super) struct Lingering {
    pub(super) pid: u32,
    pub(super) pidfd: OwnedFd,
    pub(super) image: u64,
}

/// An end of a connection of which it is not known yet whether its process is dying.
pub(super) struct Undecided {
    pub(super) until: Instant,
    who: Who,
    area: u32,
    endpoints: Vec<u32>,
}

impl Undecided {
    /// What it is told as, once that is decided.
    fn into_event(self, ending: Ending) -> Event {
        Event::Gone { who: self.who, area: self.area, ending, endpoints: self.endpoints }
    }
}

/// Whether of two attachments with these process ids and images, the second of which is of a living process, the first is of a program
/// that the same process has replaced by another since, so that nothing of it is left.
fn is_replaced((pid, image): (u32, u64), (now_pid, now): (u32, u64)) -> bool {
    pid == now_pid && pid != 0 && image != now && image != 0 && now != 0
}

/// What an attached client has beyond its connection.
pub(super) struct Attached {
    pub(super) area: u32,
    pub(super) pidfd: OwnedFd,
    /// The process's identity in words of the region.
    pub(super) party: Party,
    /// Whether a request of this process about a named object has no answer yet.
    pub(super) asks: bool,
    /// What it has said about named objects, and was not passed on yet.
    pub(super) untold: Untold,
}

impl Loop {
    /// Handles one frame of a client. If there are more, the socket stays readable, so the clients take turns.
    pub(super) fn receive(&mut self, key: u64) {
        // It may have ended earlier in this round.
        let Some(client) = self.clients.get(&key) else { return };
        let received = match socket::receive(&client.socket, RecvFlags::DONTWAIT) {
            // It has closed with an answer unread. That is told once, ahead of what it had sent before.
            Err(Errno::CONNRESET) => socket::receive(&client.socket, RecvFlags::DONTWAIT),
            received => received,
        };
        let packet = match received {
            Ok(packet) if packet.frame.is_empty() => return self.end(key, Ending::Closed),
            Ok(packet) => packet,
            Err(Errno::AGAIN) => return,
            Err(Errno::MSGSIZE) => return self.reject(key, 0, "it is too long"),
            Err(Errno::MFILE) if client.attached.is_none() => {
                let text = "the service may not open more descriptors (its ulimit -n)";
                return self.turn_away(key, 0, Code::Full, text);
            }
            Err(_) => return self.end(key, Ending::Closed),
        };
        match Request::decode(&packet.frame) {
            Ok((sequence, request)) => self.serve(key, sequence, request, packet.fds),
            Err(Error::BadFrame { what }) => {
                self.reject(key, protocol::sequence_of(&packet.frame), what);
            }
            Err(_) => self.reject(key, protocol::sequence_of(&packet.frame), "it cannot be read"),
        }
    }

    /// Answers a bad frame with a refusal, and ends the connection.
    pub(super) fn reject(&mut self, key: u64, sequence: u64, what: &str) {
        if let Some(client) = self.clients.get(&key) {
            refuse(&client.socket, sequence, Code::BadFrame, what);
            if client.attached.is_none() {
                let reason = format!("a frame that is not of the attach protocol: {what}");
                self.tell_refused(client.who.clone(), reason);
            }
        }
        self.end(key, Ending::Dropped);
    }

    /// Turns away a client that has said `Hello`.
    pub(super) fn turn_away(&mut self, key: u64, sequence: u64, code: Code, text: &str) {
        if let Some(client) = self.clients.remove(&key) {
            refuse(&client.socket, sequence, code, text);
            self.tell_refused(client.who, text.to_owned());
        }
    }

    /// Gives an observer a read-only descriptor of a file of the region, and closes its connection.
    pub(super) fn observe(&mut self, key: u64, sequence: u64, version: u32, file: u32) {
        if version != VERSION {
            return self.turn_away(key, sequence, Code::Version, &other_version(version));
        }
        let region = match self.config.source.file_for_reading(file) {
            Ok(region) => region,
            Err(e) => return self.turn_away(key, sequence, code_of(&e), &e.to_string()),
        };
        if self.reads_too_little(key, sequence) {
            return;
        }
        let reply = Reply::Observed(Observed {
            version: VERSION,
            peer: self.config.peer,
            region_bytes: self.config.source.bytes(),
            uuid: self.config.uuid,
            host_name: self.config.host_name.clone(),
        });
        // The reply can still be read after the service has closed its end. If the observer is gone, nothing is lost.
        let Some(client) = self.clients.get(&key) else { return };
        let frame = reply.encode(sequence);
        let sent = socket::send(&client.socket, &frame, &[region.as_fd()], SendFlags::DONTWAIT);
        if sent.is_err_and(is_short) {
            self.tell_short();
            return self.turn_away(key, sequence, Code::Failed, SHORT);
        }
        if let Some(client) = self.clients.remove(&key) {
            self.part(client, true);
        }
    }

    /// Closes the connection of a client that is gone from the others, or keeps it, shut down, as long as the process does not read what
    /// it was sent: so long the descriptors there count against this service's user.
    fn part(&mut self, client: Client, has_descriptors: bool) {
        let _ = rustix::net::shutdown(&client.socket, rustix::net::Shutdown::Both);
        let _ = epoll::delete(&self.epoll, &client.socket);
        if has_descriptors && is_unread(&client.socket) {
            self.unread.push((client.who.uid, client.socket));
        }
    }

    /// Turns a client away whose user has too many connections of which the answers are not read. Gives whether it did.
    fn reads_too_little(&mut self, key: u64, sequence: u64) -> bool {
        let Some(uid) = self.clients.get(&key).map(|c| c.who.uid) else { return true };
        let count = |all: &[(u32, OwnedFd)]| all.iter().filter(|(user, _)| *user == uid).count();
        if count(&self.unread) >= MOST_UNREAD {
            self.forget_read();
        }
        let is_too_many = count(&self.unread) >= MOST_UNREAD;
        if is_too_many {
            let text = format!(
                "user {uid} has {MOST_UNREAD} connections to this service whose answers are not read: let those processes read, or end them"
            );
            self.turn_away(key, sequence, Code::Full, &text);
        }
        is_too_many
    }

    /// Closes the connections that have ended and whose answers were read.
    pub(super) fn forget_read(&mut self) {
        self.unread.retain(|(_, socket)| is_unread(socket));
    }

    /// Says that no descriptor can be sent, once a minute.
    pub(super) fn tell_short(&mut self) {
        let now = Instant::now();
        if self.short_until.is_none_or(|until| now >= until) {
            self.short_until = Some(now + TOLD);
            let reason = format!("cannot give a process a descriptor: {SHORT}");
            self.tell(&Event::Trouble { reason });
        }
    }

    /// Handles a `Hello`: turns the client away, hands it on to its peer's service, or welcomes it.
    pub(super) fn greet(&mut self, key: u64, sequence: u64, version: u32, fds: Vec<OwnedFd>) {
        let Some(who) = self.clients.get(&key).map(|c| c.who.clone()) else { return };
        if version != VERSION {
            return self.turn_away(key, sequence, Code::Version, &other_version(version));
        }
        let Ok([pidfd]) = <[OwnedFd; 1]>::try_from(fds) else {
            return self.turn_away(key, sequence, Code::Invalid, "a Hello comes with one pidfd");
        };
        if let Err(text) = check_pidfd(&pidfd, who.pid) {
            return self.turn_away(key, sequence, Code::NotAllowed, &text);
        }
        let other = self.config.door.as_mut().and_then(|door| door.peer_of(who.pid, &pidfd));
        match other {
            None => self.welcome(key, sequence, pidfd),
            Some(other) => {
                // The process sends nothing before its Welcome, so the connection has no frame that was read here.
                let Some(Client { socket, who, gid, image, .. }) = self.clients.remove(&key) else { return };
                let _ = epoll::delete(&self.epoll, &socket);
                other.take(Newcomer { socket, who, gid, image, sequence, pidfd });
            }
        }
    }

    /// Grants an area and sends the `Welcome`, or turns the client away.
    pub(super) fn welcome(&mut self, key: u64, sequence: u64, pidfd: OwnedFd) {
        let Some((who, image)) = self.clients.get(&key).map(|c| (c.who.clone(), c.image)) else { return };
        if self.reads_too_little(key, sequence) {
            return;
        }
        self.end_replaced(who.pid, image);
        self.tell_closed(Some(who.pid));
        let grant = match self.writer.open_area(self.config.area_bytes, who.pid, &who.name) {
            Ok(grant) => grant,
            Err(e) => return self.turn_away(key, sequence, code_of(&e), &e.to_string()),
        };
        let welcome = Reply::Welcome(Welcome {
            version: VERSION,
            peer: self.config.peer,
            incarnation: self.config.incarnation,
            region_bytes: self.config.source.bytes(),
            uuid: self.config.uuid,
            grant,
            host_name: self.config.host_name.clone(),
            former: u32::try_from(self.former(who.pid, image).len()).unwrap_or(u32::MAX),
        });
        let area = grant.area;
        match self.attach(key, pidfd, grant, &welcome.encode(sequence)) {
            Ok(()) => self.tell(&Event::Attached { who, area }),
            Err(e) => {
                self.publish_end(area);
                self.take_back(area);
                if matches!(e, Error::System { source, .. } if is_short(source)) {
                    self.tell_short();
                    return self.turn_away(key, sequence, Code::Failed, SHORT);
                }
                let cause =
                    std::error::Error::source(&e).map_or_else(String::new, |cause| format!(": {cause}"));
                self.turn_away(key, sequence, Code::Failed, &format!("{e}{cause}"));
            }
        }
    }

    /// Ends what a process had before it executed the program that it is now. Its connection may still be open, held by a forked child.
    fn end_replaced(&mut self, pid: u32, image: u64) {
        let is_attached =
            |c: &&Client| c.attached.is_some() && is_replaced((c.who.pid, c.image), (pid, image));
        let of = |(key, client): (&u64, &Client)| is_attached(&client).then_some(*key);
        let keys: Vec<u64> = self.clients.iter().filter_map(of).collect();
        for key in keys {
            self.hear_out(key);
            self.end(key, Ending::Executed);
        }
    }

    /// The areas that a process had before it executed the program that it is now.
    fn former(&self, pid: u32, image: u64) -> Vec<u32> {
        // A number that was used again is another process's.
        let is_it =
            |l: &Lingering| is_replaced((l.pid, l.image), (pid, image)) && !is_dead(&l.pidfd, AT_ONCE);
        let of = |(area, l): (&u32, &Lingering)| is_it(l).then_some(*area);
        self.lingering.iter().filter_map(of).collect()
    }

    /// Takes back what a client's process had before it executed its program.
    pub(super) fn forget_former(&mut self, key: u64) {
        let Some((pid, image)) = self.clients.get(&key).map(|c| (c.who.pid, c.image)) else { return };
        for area in self.former(pid, image) {
            if let Some(Lingering { pidfd, .. }) = self.lingering.remove(&area) {
                let _ = epoll::delete(&self.epoll, &pidfd);
            }
            self.take_back(area);
        }
    }

    /// Sends a client its `Welcome`, after which it may use its area.
    fn attach(&mut self, key: u64, pidfd: OwnedFd, grant: AreaGrant, welcome: &[u8]) -> Result<()> {
        let system = |action| move |source| Error::System { action, source };
        let region = self.config.source.file_for_area(0, grant.area)?;
        self.watch(&pidfd, key + 1).map_err(system("watch a pidfd"))?;
        let client = self.clients.get_mut(&key).ok_or(Error::BadFrame { what: "a client that is gone" })?;
        let fds = [region.as_fd()];
        if let Err(source) = socket::send(&client.socket, welcome, &fds, SendFlags::DONTWAIT) {
            // A client that has given up, or cannot be sent its Welcome, never learns of its area: take it back.
            let _ = epoll::delete(&self.epoll, &pidfd);
            return Err(system("send the region's descriptor")(source));
        }
        let party = Party::new(self.config.peer, grant.area, grant.incarnation);
        self.parties.insert(grant.area, party);
        client.attached =
            Some(Attached { area: grant.area, pidfd, party, asks: false, untold: Untold::default() });
        Ok(())
    }

    /// Ends a connection, whatever led to it. The death is published before the event is.
    pub(super) fn end(&mut self, key: u64, ending: Ending) {
        let Some(mut client) = self.clients.remove(&key) else { return };
        let (who, image, attached) = (client.who.clone(), client.image, client.attached.take());
        // A forked child may hold another descriptor of this connection; it is shut down for that one, too.
        self.part(client, attached.is_some());
        let Some(Attached { area, pidfd, .. }) = attached else { return };
        self.bells.forget(key);
        let endpoints = self.publish_end(area);
        if !endpoints.is_empty() {
            self.ring_all();
        }
        let (ending, done) = match ending {
            Ending::Died | Ending::Detached => (ending, true),
            Ending::Closed if is_dead(&pidfd, AT_ONCE) => (Ending::Died, true),
            Ending::Closed | Ending::Executed | Ending::Dropped => (ending, is_dead(&pidfd, AT_ONCE)),
        };
        if done {
            let _ = epoll::delete(&self.epoll, &pidfd);
            self.take_back(area);
        } else {
            // Its pidfd stays watched; its death leads to `sweep`.
            self.lingering.insert(area, Lingering { pid: who.pid, pidfd, image });
        }
        let end = Undecided { until: Instant::now() + DEATH_GRACE, who, area, endpoints };
        match ending {
            // Others have their turns meanwhile.
            Ending::Closed if !done => self.undecided.push(end),
            ending => self.tell(&end.into_event(ending)),
        }
    }

    /// Takes the ends of which it is known by `now` what they were. To be told once the memory of the dead was taken back.
    pub(super) fn decided(&mut self, now: Instant) -> Vec<Event> {
        let lingering = &self.lingering;
        let mut events = Vec::new();
        let ending = |end: &Undecided| match lingering.get(&end.area) {
            Some(Lingering { pidfd, .. }) if is_dead(pidfd, AT_ONCE) => Some(Ending::Died),
            Some(_) if now < end.until => None,
            _ => Some(Ending::Closed),
        };
        for end in std::mem::take(&mut self.undecided) {
            match ending(&end) {
                Some(ending) => events.push(end.into_event(ending)),
                None => self.undecided.push(end),
            }
        }
        events
    }

    /// Takes the end of the connection of a process that has died with this area, if it was undecided.
    pub(super) fn died_undecided(&mut self, area: u32) -> Option<Event> {
        let at = self.undecided.iter().position(|end| end.area == area)?;
        Some(self.undecided.remove(at).into_event(Ending::Died))
    }

    /// Waits for those that may be dying, a few milliseconds for all together.
    pub(super) fn await_the_dying(&self) {
        for end in &self.undecided {
            if let Some(Lingering { pidfd, .. }) = self.lingering.get(&end.area) {
                let left = end.until.saturating_duration_since(Instant::now());
                let _ = is_dead(pidfd, Timespec::try_from(left).unwrap_or(AT_ONCE));
            }
        }
    }

    /// Tells of the ends of connections of a process that lives, since it has come again, or of any if the service ends.
    pub(super) fn tell_closed(&mut self, pid: Option<u32>) {
        let (told, kept) = std::mem::take(&mut self.undecided)
            .into_iter()
            .partition(|end: &Undecided| pid.is_none_or(|pid| end.who.pid == pid));
        self.undecided = kept;
        let told: Vec<Undecided> = told;
        told.into_iter().for_each(|end| self.tell(&end.into_event(Ending::Closed)));
    }
}

fn other_version(version: u32) -> String {
    format!(
        "the service speaks version {VERSION} of the attach protocol, the process version {version}; use one isthmus version for both"
    )
}

pub(super) fn code_of(error: &isthmus_region::Error) -> Code {
    match error {
        isthmus_region::Error::Full { .. } => Code::Full,
        isthmus_region::Error::OutOfBounds { .. }
        | isthmus_region::Error::NoFile { .. }
        | isthmus_region::Error::Invalid { .. } => Code::Invalid,
        _ => Code::Failed,
    }
}

/// Sends a refusal to a client that may not be reading.
pub(super) fn refuse(socket: &OwnedFd, sequence: u64, code: Code, text: &str) {
    let frame = Reply::Refused { code, text: text.to_owned() }.encode(sequence);
    let _ = socket::send(socket, &frame, &[], SendFlags::DONTWAIT);
}

/// Whether a descriptor could not be sent for want of something that returns when others read.
pub(super) fn is_short(error: Errno) -> bool {
    matches!(error, Errno::TOOMANYREFS | Errno::NOBUFS)
}

fn is_unread(socket: &OwnedFd) -> bool {
    unread(socket).is_ok_and(|bytes| bytes > 0)
}

pub(super) fn is_dead(pidfd: &OwnedFd, limit: Timespec) -> bool {
    let mut poll = [PollFd::new(pidfd, PollFlags::IN)];
    matches!(rustix::event::poll(&mut poll, Some(&limit)), Ok(1))
}

/// Checks that a descriptor is a pidfd of the process `pid` at the other end. Otherwise a process could hand over the
/// pidfd of another one that never ends, and its own death would go unnoticed while a child holds the socket.
fn check_pidfd(pidfd: &OwnedFd, pid: u32) -> std::result::Result<(), String> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))
        .map_err(|e| format!("the descriptor that came with Hello cannot be checked: {e}"))?;
    let named = info.lines().find_map(|l| l.strip_prefix("Pid:")).map(str::trim);
    match named {
        None => Err("the descriptor that came with Hello is not a pidfd".into()),
        Some(named) if named.parse() == Ok(pid) => Ok(()),
        Some(named) => {
            Err(format!("the pidfd that came with Hello is of process {named}, but process {pid} sent it"))
        }
    }
}
