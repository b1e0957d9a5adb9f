//! The requests of an attached process, and their replies.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use isthmus_region::format::GlobalSlot;
use isthmus_region::gate_bits as gate;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::client::{AT_ONCE, AWAKE, Client, SHORT, code_of, is_dead, is_short};
use super::event_loop::Loop;
use super::{Answer, Asked, Asker, Ending, Order, Settling, To, Wakeup};
use crate::bells::Bells;
use crate::error::{Error, Result};
use crate::protocol::{Code, Reply, Request};
use crate::socket;

/// A bell, and the end that the service keeps.
type NewBell = (OwnedFd, OwnedFd);

/// Most bells for places of the region that one process may have.
const MOST_WATCHES: usize = 256;
/// What a process may have said about named objects, without waiting for an answer, that was not passed on yet: beyond it, it is not
/// heard until half of that is.
const MOST_UNTOLD: usize = 256;

impl Loop {
    /// Carries out a request and replies, if it has a reply.
    pub(super) fn serve(&mut self, key: u64, sequence: u64, request: Request, fds: Vec<OwnedFd>) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        let pid = client.who.pid;
        let area = client.attached.as_ref().map(|a| a.area);
        let done = match (area, request) {
            (None, Request::Hello { version, name, image, .. }) => {
                // Log lines name it.
                client.who.name = isthmus_region::text::printable(&name);
                client.image = image;
                return self.greet(key, sequence, version, fds);
            }
            (None, Request::Observe { version, file }) => return self.observe(key, sequence, version, file),
            (None, _) => return self.reject(key, sequence, "it came before Hello"),
            (Some(_), Request::Hello { .. } | Request::Observe { .. }) => {
                return self.reject(key, sequence, "a second Hello");
            }
            (Some(_), Request::Detach) => return self.end(key, Ending::Detached),
            (Some(area), Request::Grow { bytes }) => self.writer.grow_area(area, bytes).map(Reply::Extent),
            (Some(area), Request::OpenEndpoint { block }) => self
                .writer
                .open_endpoint(area, block, pid)
                .map(|(slot, incarnation)| Reply::Endpoint { slot, incarnation }),
            (Some(area), Request::CloseEndpoint { slot }) => {
                let closed = self.writer.close_endpoint(area, slot);
                if closed.is_ok() {
                    self.bells.remove_endpoint(slot);
                }
                closed.map(|()| Reply::Done)
            }
            (Some(_), Request::Wake { slot }) => return self.wake_endpoint(GlobalSlot(slot)),
            (Some(_), Request::Ring { peers, place }) => return self.ring_place(peers, place),
            (Some(area), Request::File { index }) => return self.give_file(key, sequence, area, index),
            (Some(_), Request::Process { slot, incarnation }) => {
                return self.give_process(key, sequence, slot, incarnation);
            }
            (Some(_), Request::Watch { place }) => return self.give_watch(key, sequence, place),
            (
                Some(_),
                request @ (Request::Create(_)
                | Request::Open { .. }
                | Request::Close { .. }
                | Request::Shrink { .. }
                | Request::Unlink { .. }
                | Request::Hold { .. }
                | Request::Change { .. }
                | Request::Remove { .. }
                | Request::Share { .. }),
            ) => return self.ask_about_object(key, sequence, request),
            (Some(_), Request::Forget) => {
                self.forget_former(key);
                Ok(Reply::Done)
            }
            (Some(_), Request::Settle) => {
                let attached = self.clients.get(&key).and_then(|c| c.attached.as_ref());
                // One that has not waited for its answer is refused, before all are looked at.
                if !attached.is_some_and(|a| a.asks) && !self.notice_deaths() {
                    // What others said since, and deaths, are not all known yet: another time, from the start.
                    let _ = self.orders.send(Order::Settle(Settling::Client { key, sequence }));
                    isthmus_region::doorbell::ring(&*self.bell);
                    return;
                }
                return self.ask_about_object(key, sequence, Request::Settle);
            }
            (
                Some(_),
                request @ (Request::Release { .. } | Request::Enter { .. } | Request::Removed { .. }),
            ) => return self.tell_of_object(key, request),
            (Some(area), Request::Bell { slot }) => return self.give_bell(key, sequence, area, slot),
        };
        let reply = done.unwrap_or_else(|e| refusal(&e));
        self.answer(key, &reply.encode(sequence));
    }

    /// Wakes an endpoint of any peer, if it exists.
    fn wake_endpoint(&self, slot: GlobalSlot) {
        let endpoints = self.writer.directory().shape().endpoints;
        if slot.peer(endpoints) == self.config.peer {
            self.bells.wake(slot.local(endpoints));
        } else if let Some(relay) = &self.config.relay.0 {
            relay(Wakeup::Endpoint(slot));
        }
    }

    /// Wakes the waiters at a place, here and in other peers.
    fn ring_place(&self, peers: u64, place: u64) {
        let here = gate::bit(self.config.peer);
        if peers & here != 0 {
            self.bells.ring(place);
        }
        // The last bit stands for all further peers, so it is passed on even if it stands for this one.
        let others = if here == gate::bit(u32::MAX) { peers } else { peers & !here };
        if others != 0
            && let Some(relay) = &self.config.relay.0
        {
            relay(Wakeup::Gate { peers: others, place });
        }
    }

    /// Passes on a request about a named object.
    pub(super) fn ask_about_object(&mut self, key: u64, sequence: u64, request: Request) {
        let asker = self
            .clients
            .get(&key)
            .and_then(|c| Some(Asker { party: c.attached.as_ref()?.party, user: (c.who.uid, c.gid) }));
        let Some(asker) = asker else { return };
        if let Some(attached) = self.clients.get_mut(&key).and_then(|c| c.attached.as_mut())
            && std::mem::replace(&mut attached.asks, true)
        {
            // One at a time, so that a process that does not wait for its answers cannot delay those of others.
            let text = "an earlier request of this process about a named object is not answered yet".into();
            return self.answer(key, &Reply::Refused { code: Code::Failed, text }.encode(sequence));
        }
        let bell = Arc::clone(&self.bell);
        let answer = Answer(To::Asker(Asked { key, sequence, orders: self.orders.clone(), bell }));
        let now = match &mut self.config.names {
            Some(names) => names.ask(asker, request, answer),
            None => Some(Reply::Refused {
                code: Code::Failed,
                text: "this service looks after no named objects".into(),
            }),
        };
        if let Some(reply) = now {
            self.answer_about_object(key, &reply.encode(sequence));
        }
    }

    /// Sends the answer to a client's request about an object, which may have another one then.
    pub(super) fn answer_about_object(&mut self, key: u64, frame: &[u8]) {
        if let Some(attached) = self.clients.get_mut(&key).and_then(|c| c.attached.as_mut()) {
            attached.asks = false;
        }
        self.answer(key, frame);
        // Who has made an object uses it next.
        self.awake_until = Some(Instant::now() + AWAKE);
    }

    /// Does not hear a client for now.
    fn hold_up(&mut self, key: u64) {
        if let Some(client) = self.clients.get(&key)
            && self.held_up.insert(key)
        {
            let _ = epoll::delete(&self.epoll, &client.socket);
        }
    }

    /// Hears those again that have waited long enough.
    pub(super) fn let_go_on(&mut self) {
        for key in self.held_up.iter().copied().collect::<Vec<_>>() {
            let client = self.clients.get(&key);
            let untold =
                client.and_then(|c| c.attached.as_ref()).map_or(0, |attached| attached.untold.count());
            if untold > MOST_UNTOLD / 2 {
                continue;
            }
            self.held_up.remove(&key);
            if let Some(client) = client
                && self.watch(&client.socket, key).is_err()
            {
                self.end(key, Ending::Dropped);
            }
        }
    }

    /// Passes on what a process says of a named object without waiting for an answer.
    fn tell_of_object(&mut self, key: u64, request: Request) {
        let asker = self
            .clients
            .get(&key)
            .and_then(|c| Some(Asker { party: c.attached.as_ref()?.party, user: (c.who.uid, c.gid) }));
        let untold = self.clients.get(&key).and_then(|c| Some(c.attached.as_ref()?.untold.clone()));
        let Some(untold) = untold else { return };
        // Others' requests wait behind them, and an agent has no more memory than its VM. So no more is heard of it meanwhile.
        if untold.count() > MOST_UNTOLD {
            self.hold_up(key);
        }
        if let (Some(asker), Some(names)) = (asker, &mut self.config.names) {
            let _ = names.ask(asker, request, Answer(To::Nobody(untold)));
            self.awake_until = Some(Instant::now() + AWAKE);
        }
    }

    /// Gives the client a descriptor of a file of the region, and keeps none.
    fn give_file(&mut self, key: u64, sequence: u64, area: u32, index: u32) {
        let Some(client) = self.clients.get(&key) else { return };
        let file = match self.config.source.file_for_area(index, area) {
            Ok(file) => file,
            Err(e) => return self.answer(key, &refusal(&e).encode(sequence)),
        };
        let frame = Reply::File.encode(sequence);
        let sent = socket::send(&client.socket, &frame, &[file.as_fd()], SendFlags::DONTWAIT);
        self.refuse_unless_sent(key, sequence, sent);
    }

    /// Gives the client the pidfd of the process that has an endpoint, if it is one of the same user. Not where several users
    /// are let in: all members write the whole region, so a process of one of them could have another process copy what it
    /// names from a third one (docs/threat-model.md).
    fn give_process(&mut self, key: u64, sequence: u64, slot: u32, incarnation: u64) {
        let refused = |code, text: &str| Reply::Refused { code, text: text.into() }.encode(sequence);
        let Some(client) = self.clients.get(&key) else { return };
        let area = self.writer.owner(slot, incarnation);
        let owner = area.and_then(|area| {
            let is_its = |c: &&Client| c.attached.as_ref().is_some_and(|a| a.area == area);
            self.clients.values().find(is_its)
        });
        let Some((owner, attached)) = owner.and_then(|o| Some((o, o.attached.as_ref()?))) else {
            return self.answer(key, &refused(Code::NotFound, "no process has this endpoint"));
        };
        if owner.who.uid != client.who.uid || !self.config.allowed.is_one_user(client.who.uid) {
            let text = "processes of several users are let in here";
            return self.answer(key, &refused(Code::Denied, text));
        }
        // The kernel does not say whose pidfd a caller without a number brought.
        if owner.who.pid == 0 || is_dead(&attached.pidfd, AT_ONCE) {
            return self.answer(
                key,
                &refused(Code::NotFound, "the process of this endpoint is dead, or has no number here"),
            );
        }
        let frame = Reply::Process.encode(sequence);
        let sent = socket::send(&client.socket, &frame, &[attached.pidfd.as_fd()], SendFlags::DONTWAIT);
        self.refuse_unless_sent(key, sequence, sent);
    }

    /// Gives the client a bell for a place of the region.
    fn give_watch(&mut self, key: u64, sequence: u64, place: u64) {
        let refused = |code, text: String| Reply::Refused { code, text }.encode(sequence);
        if !self.bells.is_place(place) {
            let text = format!("offset {place} is no line of the region");
            return self.answer(key, &refused(Code::Invalid, text));
        }
        if let Some(made) = self.bells.of_place(place) {
            return self.hand_out_drivers(key, sequence, made);
        }
        if self.bells.places_of(key) >= MOST_WATCHES {
            self.bells.forget_closed(key);
        }
        if self.bells.places_of(key) >= MOST_WATCHES {
            let text = format!("this process has {MOST_WATCHES} bells for places already");
            return self.answer(key, &refused(Code::Full, text));
        }
        let watch = match bell() {
            Ok(watch) => watch,
            Err(e) => return self.answer(key, &refused(Code::Failed, e.to_string())),
        };
        self.hand_out(key, sequence, watch, |bells, own| bells.add_place(place, key, own));
    }

    /// Gives the client a bell for one of its endpoints.
    fn give_bell(&mut self, key: u64, sequence: u64, area: u32, slot: u32) {
        if !self.writer.owns(area, slot) {
            let error = isthmus_region::Error::Invalid { what: "endpoint slot", value: slot.into() };
            return self.answer(key, &refusal(&error).encode(sequence));
        }
        if let Some(made) = self.bells.of_endpoint(slot) {
            return self.hand_out_drivers(key, sequence, made);
        }
        let bell = match bell() {
            Ok(bell) => bell,
            Err(e) => {
                let reply = Reply::Refused { code: Code::Failed, text: e.to_string() };
                return self.answer(key, &reply.encode(sequence));
            }
        };
        self.hand_out(key, sequence, bell, |bells, own| bells.add_endpoint(slot, key, own));
    }

    /// Sends a client a descriptor of the guest driver.
    fn hand_out_drivers(&mut self, key: u64, sequence: u64, made: rustix::io::Result<OwnedFd>) {
        match made {
            Ok(bell) => {
                let Some(client) = self.clients.get(&key) else { return };
                let frame = Reply::Bell.encode(sequence);
                let sent = socket::send(&client.socket, &frame, &[bell.as_fd()], SendFlags::DONTWAIT);
                self.refuse_unless_sent(key, sequence, sent);
            }
            Err(e) => {
                let reply =
                    Reply::Refused { code: Code::Failed, text: format!("the driver gives no bell: {e}") };
                self.answer(key, &reply.encode(sequence));
            }
        }
    }

    /// Sends a client a bell. It can be rung before the client has it, so no wake-up is lost in between.
    fn hand_out(
        &mut self,
        key: u64,
        sequence: u64,
        (bell, own): NewBell,
        keep: impl FnOnce(&Bells, OwnedFd),
    ) {
        let Some(client) = self.clients.get(&key) else { return };
        keep(&self.bells, own);
        let frame = Reply::Bell.encode(sequence);
        let sent = socket::send(&client.socket, &frame, &[bell.as_fd()], SendFlags::DONTWAIT);
        self.refuse_unless_sent(key, sequence, sent);
    }

    /// Sends a reply. A client whose socket is full of unread replies is dropped.
    pub(super) fn answer(&mut self, key: u64, frame: &[u8]) {
        let Some(client) = self.clients.get(&key) else { return };
        let sent = socket::send(&client.socket, frame, &[], SendFlags::DONTWAIT);
        self.end_unless_sent(key, sent);
    }

    /// After an answer with a descriptor. Where those on their way are too many, it is another client that does not read.
    fn refuse_unless_sent(&mut self, key: u64, sequence: u64, sent: rustix::io::Result<()>) {
        if !sent.is_err_and(is_short) {
            return self.end_unless_sent(key, sent);
        }
        self.tell_short();
        self.answer(key, &Reply::Refused { code: Code::Failed, text: SHORT.into() }.encode(sequence));
    }

    fn end_unless_sent(&mut self, key: u64, sent: rustix::io::Result<()>) {
        match sent {
            Ok(()) => {}
            // It died, or closed its end, between its request and this reply. What it had sent by then is read first, and then the end is.
            Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(_) => self.end(key, Ending::Dropped),
        }
    }
}

fn bell() -> Result<NewBell> {
    isthmus_region::doorbell::bell().map_err(|source| Error::System { action: "create a bell", source })
}

fn refusal(error: &isthmus_region::Error) -> Reply {
    Reply::Refused { code: code_of(error), text: error.to_string() }
}
