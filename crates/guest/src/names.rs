//! Passes on the requests of this VM's processes about named objects. One after the other, they go to the host
//! service through the VM's own section; the answers come back through the host section
//! ([`isthmus_region::objects::call`]).
//!
//! Each tells the other by the wake port. As a ring may be lost, this asks again after [`RECHECK`].
//!
//! `Settle` is no such request, since its answer waits for the agents of other VMs: two of them that ask at once would wait for
//! each other, if each kept the place of its VM's requests. It goes over the port, behind all requests that came before.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use isthmus_attach::protocol::{Code, Reply, Request};
use isthmus_attach::server::{Answer, Asker, Names, Untold};
use isthmus_region::mapping::Section;
use isthmus_region::membership::{PeerInfo, Region};
use isthmus_region::objects::ObjectGrant;
use isthmus_region::objects::call::{self, Call};
use isthmus_region::party::Party;

use crate::wakes::{Port, RECHECK};

/// How long to wait for the answer to a request, from when it came; a little less than the process waits for ours.
const PATIENCE: Duration = Duration::from_secs(8);

/// Passes on requests.
#[derive(Debug)]
pub(crate) struct Forwarder {
    orders: mpsc::Sender<Order>,
}

#[derive(Debug)]
enum Order {
    Ask(Asked),
    /// The host service has answered.
    Look,
    /// The host service is to be told once all requests that came before are answered.
    Tell(u32),
    /// What was asked for with this number, all services have done.
    Settled(u32),
}

/// What is done one after the other.
#[derive(Debug)]
enum Work {
    Ask(Asked),
    Tell(u32),
}

/// A request, where its answer goes, and how long to wait for that.
#[derive(Debug)]
struct Asked {
    asker: Asker,
    request: Request,
    answer: Answer,
    until: Instant,
}

/// Tells the thread that the host service has answered, from any thread.
#[derive(Debug, Clone)]
pub(crate) struct Bell(mpsc::Sender<Order>);

impl Bell {
    pub(crate) fn ring(&self) {
        // Fails if the thread has ended, and then it waits for nothing.
        let _ = self.0.send(Order::Look);
    }

    /// The host service says that all services have done what this number asked for.
    pub(crate) fn settled(&self, number: u32) {
        let _ = self.0.send(Order::Settled(number));
    }

    /// Tells the host service, with its number, that it knows all that this VM's processes have asked by now.
    pub(crate) fn tell(&self, number: u32) {
        let _ = self.0.send(Order::Tell(number));
    }
}

impl Forwarder {
    /// Starts the thread that asks.
    pub(crate) fn start(region: Region, peer: PeerInfo, section: Section, port: Port) -> (Self, Bell) {
        let (orders, inbox) = mpsc::channel();
        let bell = Bell(orders.clone());
        let body = move || {
            let mut caller = Caller::new(region, peer, section, port, inbox);
            while let Some(asked) = caller.next() {
                if asked.request == Request::Settle {
                    caller.settle(asked);
                    continue;
                }
                let Asked { asker, request, answer, until } = asked;
                let reply = caller.ask(asker, &request, answer.untold(), until);
                answer.give(&reply);
            }
        };
        // Without the thread, `ask` finds no receiver and refuses the requests.
        let _ = std::thread::Builder::new().name("isthmus-names".into()).spawn(body);
        (Self { orders }, bell)
    }
}

impl Names for Forwarder {
    fn ask(&mut self, asker: Asker, request: Request, answer: Answer) -> Option<Reply> {
        let asked = Asked { asker, request, answer, until: Instant::now() + PATIENCE };
        let sent = self.orders.send(Order::Ask(asked));
        sent.is_err().then(|| failed("the agent of this VM has no thread that asks the host service"))
    }

    fn gone(&mut self, _: Party) {
        // The host service sees it in this VM's area table.
    }
}

fn failed(text: &str) -> Reply {
    Reply::Refused { code: Code::Failed, text: text.into() }
}

/// The thread's state: the host service takes one request of this VM at a time.
struct Caller {
    region: Region,
    peer: PeerInfo,
    section: Section,
    port: Port,
    inbox: mpsc::Receiver<Order>,
    number: u64,
    /// What came while this waited for an answer.
    waiting: VecDeque<Work>,
    /// Processes that wait until all services know all that was said, and all deaths.
    settling: BTreeMap<u32, Asked>,
    settles: u32,
    /// When the host service is asked for these again.
    again: Instant,
    /// The process of the last request, if that has no answer yet, and whether what the answer opens is to be closed: not where the
    /// process does not wait for an answer, but uses it already.
    unanswered: Option<(Asker, bool)>,
    /// Requests that close what given-up requests opened, with the processes for which they opened it.
    to_close: VecDeque<(Asker, Request, Option<Untold>)>,
}

impl Caller {
    fn new(
        region: Region,
        peer: PeerInfo,
        section: Section,
        port: Port,
        inbox: mpsc::Receiver<Order>,
    ) -> Self {
        Self {
            region,
            peer,
            section,
            port,
            inbox,
            number: 0,
            waiting: VecDeque::new(),
            settling: BTreeMap::new(),
            settles: 0,
            again: Instant::now(),
            unanswered: None,
            to_close: VecDeque::new(),
        }
    }

    fn next(&mut self) -> Option<Asked> {
        loop {
            self.remind();
            match self.waiting.pop_front() {
                Some(Work::Ask(asked)) => return Some(asked),
                Some(Work::Tell(number)) => {
                    // Where it does not answer requests, it need not be told either.
                    if self.catch_up(Instant::now() + RECHECK).is_ok() {
                        self.port.settled(number);
                    }
                    continue;
                }
                None => {}
            }
            let is_idle = self.catch_up(Instant::now()).is_ok();
            let order = if is_idle && self.settling.is_empty() {
                self.inbox.recv().ok()?
            } else {
                match self.inbox.recv_timeout(RECHECK) {
                    Err(mpsc::RecvTimeoutError::Timeout) => {
                        if !is_idle {
                            self.port.call(self.number);
                        }
                        Order::Look
                    }
                    order => order.ok()?,
                }
            };
            self.take(order);
        }
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Ask(asked) => self.waiting.push_back(Work::Ask(asked)),
            Order::Tell(number) => self.waiting.push_back(Work::Tell(number)),
            Order::Settled(number) => {
                if let Some(Asked { answer, .. }) = self.settling.remove(&number) {
                    answer.give(&Reply::Done);
                }
            }
            Order::Look => {}
        }
    }

    /// Has all services look at their processes; this VM's own has done so, and its requests until then are answered.
    fn settle(&mut self, asked: Asked) {
        if self.catch_up(asked.until).is_err() {
            return asked.answer.give(&silent());
        }
        self.settles = self.settles.wrapping_add(1);
        if self.settling.is_empty() {
            self.again = Instant::now() + RECHECK;
        }
        self.settling.insert(self.settles, asked);
        self.port.settle(self.settles);
    }

    /// Asks again for what was not answered, and gives up what the processes have given up.
    fn remind(&mut self) {
        let now = Instant::now();
        if self.settling.is_empty() || now < self.again {
            return;
        }
        self.again = now + RECHECK;
        let late: Vec<u32> = self.settling.iter().filter(|(_, a)| now >= a.until).map(|(n, _)| *n).collect();
        for number in late {
            if let Some(Asked { answer, .. }) = self.settling.remove(&number) {
                answer.give(&silent());
            }
        }
        for number in self.settling.keys() {
            self.port.settle(*number);
        }
    }

    /// Sends a request and waits for the answer. There is one place for requests, so a request that was given up is
    /// first waited for, and what it opened is closed.
    fn ask(&mut self, asker: Asker, request: &Request, untold: Option<Untold>, until: Instant) -> Reply {
        let answered = self.catch_up(until).and_then(|()| {
            if Instant::now() >= until {
                // The process has given it up.
                return Err(silent());
            }
            self.put(asker, request)
        });
        if let Err(no) = answered {
            if matches!(
                request,
                Request::Close { .. }
                    | Request::Release { .. }
                    | Request::Enter { .. }
                    | Request::Removed { .. }
            ) {
                // The process will not repeat it.
                self.to_close.push_back((asker, request.clone(), untold));
            }
            return no;
        }
        let closes = !matches!(request, Request::Enter { .. });
        self.receive((asker, closes), until).unwrap_or_else(|no| no)
    }

    /// Waits for the answer to a request that was given up, and closes what such requests opened.
    fn catch_up(&mut self, until: Instant) -> std::result::Result<(), Reply> {
        loop {
            if let Some((asker, closes)) = self.unanswered {
                let reply = self.receive((asker, closes), until)?;
                if closes && let Reply::Object(ObjectGrant { index, incarnation, .. }) = reply {
                    self.to_close.push_back((asker, Request::Close { index, incarnation }, None));
                }
            } else if let Some((asker, late, _untold)) = self.to_close.pop_front() {
                // In the order in which they came.
                self.put(asker, &late)?;
                self.unanswered = Some((asker, !matches!(late, Request::Enter { .. })));
            } else {
                return Ok(());
            }
        }
    }

    /// Writes a request where the host service polls for it.
    fn put(&mut self, asker: Asker, request: &Request) -> std::result::Result<(), Reply> {
        self.number += 1;
        let frame = request.encode(self.number);
        let call = Call { number: self.number, party: asker.party.word(), user: asker.user, frame };
        call::ask(&self.section, &call).map_err(|e| failed(&e.to_string()))?;
        self.port.call(self.number);
        Ok(())
    }

    /// Waits for the answer to the last request: whose it is, and whether what a late answer opens is to be closed.
    fn receive(&mut self, asker: (Asker, bool), until: Instant) -> std::result::Result<Reply, Reply> {
        loop {
            match call::answered(&self.region, &self.peer, self.number) {
                Ok(Some(frame)) => {
                    self.unanswered = None;
                    return Reply::decode(&frame).map(|(_, reply)| reply).map_err(|e| failed(&e.to_string()));
                }
                Ok(None) => {}
                Err(e) => return Err(failed(&e.to_string())),
            }
            self.unanswered = Some(asker);
            if Instant::now() >= until {
                return Err(silent());
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.inbox.recv_timeout(left.min(RECHECK)) {
                Ok(order) => self.take(order),
                Err(mpsc::RecvTimeoutError::Timeout) => self.port.call(self.number),
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(failed("the agent ends")),
            }
        }
    }
}

fn silent() -> Reply {
    failed("the host service does not answer; is it still running?")
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use isthmus_region::mapping::Mapping;
    use isthmus_region::membership::{NewPeer, Shape, Writer};
    use isthmus_region::objects::{Access, Kind};

    use super::*;

    const BYTES: u64 = 4 << 20;
    const LONG: Duration = Duration::from_secs(60);

    /// A port whose frames nobody reads.
    fn nowhere() -> Port {
        OwnedFd::from(std::os::unix::net::UnixStream::pair().unwrap().0).into()
    }

    /// The host service's side, which answers when the test tells it to, and a caller.
    fn caller() -> (Region, Section, mpsc::Sender<Order>, Caller) {
        let fd = isthmus_region::create::memory(BYTES).unwrap();
        let map = Mapping::map(fd.as_fd(), BYTES).unwrap();
        let shape = Shape::new(BYTES, [1, 2], 2, 16).unwrap().with_shared(1 << 20, 8).unwrap();
        let mut writer = Writer::create(&map, &shape, 1).unwrap();
        let (section, section_bytes) = (shape.first_section(), 1 << 20);
        writer.add(1, &NewPeer { file: 0, section, section_bytes, is_vm: true, name: "vm1" }).unwrap();
        let region = writer.region().clone();
        let peer = region.peer(1).unwrap().unwrap();
        let section = region.own_section(&peer).unwrap();
        let (orders, inbox) = mpsc::channel();
        let caller = Caller::new(region.clone(), peer, section.clone(), nowhere(), inbox);
        (region, section, orders, caller)
    }

    fn asker(area: u32) -> Asker {
        Asker { party: Party::new(1, area, 1), user: (0, 0) }
    }

    fn open(name: &str) -> Request {
        Request::Open { kind: Kind::Segment, name: name.into(), access: Access::Write }
    }

    fn object(index: u32) -> Reply {
        let incarnation = 10 + u64::from(index);
        Reply::Object(ObjectGrant { index, incarnation, offset: 0, len: 64, params: [0; 4], is_new: false })
    }

    /// Waits for request `number`. Returns the process and the request.
    fn heard(section: &Section, number: u64) -> (u64, Request) {
        let begun = Instant::now();
        loop {
            if let Some(call) = call::heard(&section.for_reading(), number - 1).unwrap() {
                assert_eq!(call.number, number);
                return (call.party, Request::decode(&call.frame).unwrap().1);
            }
            assert!(begun.elapsed() < LONG, "request {number} is not sent");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_a_given_up_request_opened_is_closed_and_no_request_replaces_another() {
        let (region, section, orders, mut caller) = caller();
        let answer = |number, reply: Reply| call::answer(&region, 1, number, &reply.encode(number)).unwrap();
        assert_eq!(
            caller.ask(asker(1), &open("late"), None, Instant::now() + Duration::from_millis(20)),
            silent()
        );
        assert_eq!(heard(&section, 1), (asker(1).party.word(), open("late")));
        // The first has no answer yet, so the second is not sent.
        assert_eq!(
            caller.ask(asker(2), &open("b"), None, Instant::now() + Duration::from_millis(20)),
            silent()
        );
        assert_eq!(heard(&section, 1).1, open("late"));
        std::thread::scope(|scope| {
            let next = scope.spawn(|| caller.ask(asker(2), &open("c"), None, Instant::now() + LONG));
            answer(1, object(1));
            let close = Request::Close { index: 1, incarnation: 11 };
            assert_eq!(heard(&section, 2), (asker(1).party.word(), close));
            answer(2, Reply::Done);
            assert_eq!(heard(&section, 3), (asker(2).party.word(), open("c")));
            answer(3, object(2));
            assert_eq!(next.join().unwrap(), object(2));
        });
        assert_eq!(caller.ask(asker(2), &open("d"), None, Instant::now()), silent());
        assert_eq!(heard(&section, 3).1, open("c"), "it was too old to be sent");
        // Also while there are no requests.
        assert_eq!(
            caller.ask(asker(1), &open("e"), None, Instant::now() + Duration::from_millis(20)),
            silent()
        );
        std::thread::scope(|scope| {
            let idle = scope.spawn(|| caller.next().is_none());
            answer(4, object(4));
            let close = Request::Close { index: 4, incarnation: 14 };
            assert_eq!(heard(&section, 5), (asker(1).party.word(), close));
            answer(5, Reply::Done);
            drop(orders);
            assert!(idle.join().unwrap());
        });
    }
}
