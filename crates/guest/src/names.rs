//! Questions of this VM's processes about named objects: one after the other, they go to the host service through the VM's own
//! section, and its answers come back through the host's ([`isthmus_region::objects::call`]).
//!
//! The port for wake-ups makes that quick. Without it, the host service finds a question as it looks at its members twice a
//! second.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use isthmus_attach::protocol::{Code, Reply, Request};
use isthmus_attach::server::{Answer, Asker, Names};
use isthmus_region::mapping::Section;
use isthmus_region::membership::{PeerInfo, Region};
use isthmus_region::objects::call::{self, Call};
use isthmus_region::party::Party;

use crate::wakes::Port;

/// Between two looks for an answer that nobody rings for.
const PAUSE: Duration = Duration::from_millis(5);
/// How long to wait for an answer; a process waits a little longer for ours.
const PATIENCE: Duration = Duration::from_secs(8);

/// Passes on questions.
#[derive(Debug)]
pub(crate) struct Forwarder {
    questions: mpsc::Sender<Order>,
}

#[derive(Debug)]
enum Order {
    Ask {
        asker: Asker,
        question: Request,
        answer: Answer,
    },
    /// The host service has answered.
    Look,
}

/// Says that the host service has answered, from any thread.
#[derive(Debug, Clone)]
pub(crate) struct Bell(mpsc::Sender<Order>);

impl Bell {
    pub(crate) fn ring(&self) {
        // A thread that is gone waits for nothing.
        let _ = self.0.send(Order::Look);
    }
}

impl Forwarder {
    /// Starts the thread that asks.
    pub(crate) fn start(
        region: Region,
        peer: PeerInfo,
        section: Section,
        port: Option<Port>,
    ) -> (Self, Bell) {
        let (questions, inbox) = mpsc::channel();
        let bell = Bell(questions.clone());
        let body = move || {
            let mut line = Line { region, peer, section, port, inbox, number: 0, waiting: Vec::new() };
            while let Some((asker, question, answer)) = line.next() {
                let reply = line.ask(asker, &question);
                answer.give(&reply);
            }
        };
        // Without the thread nobody takes the questions, and they are refused.
        let _ = std::thread::Builder::new().name("isthmus-names".into()).spawn(body);
        (Self { questions }, bell)
    }
}

impl Names for Forwarder {
    fn ask(&mut self, asker: Asker, question: Request, answer: Answer) {
        if let Err(mpsc::SendError(Order::Ask { answer, .. })) =
            self.questions.send(Order::Ask { asker, question, answer })
        {
            answer.give(&failed("the agent of this VM has no thread that asks the host service"));
        }
    }

    fn gone(&mut self, _: Party) {
        // The host service sees it in this VM's area table.
    }
}

fn failed(text: &str) -> Reply {
    Reply::Refused { code: Code::Failed, text: text.into() }
}

struct Line {
    region: Region,
    peer: PeerInfo,
    section: Section,
    port: Option<Port>,
    inbox: mpsc::Receiver<Order>,
    number: u64,
    /// What came while an answer was waited for.
    waiting: Vec<(Asker, Request, Answer)>,
}

impl Line {
    fn next(&mut self) -> Option<(Asker, Request, Answer)> {
        if !self.waiting.is_empty() {
            return Some(self.waiting.remove(0));
        }
        loop {
            if let Order::Ask { asker, question, answer } = self.inbox.recv().ok()? {
                return Some((asker, question, answer));
            }
        }
    }

    fn ask(&mut self, asker: Asker, question: &Request) -> Reply {
        self.number += 1;
        let frame = question.encode(self.number);
        let call = Call { number: self.number, party: asker.party.word(), user: asker.user, frame };
        if let Err(e) = call::ask(&self.section, &call) {
            return failed(&e.to_string());
        }
        if let Some(port) = &self.port {
            port.call(self.number);
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            match call::answered(&self.region, &self.peer, self.number) {
                Ok(Some(frame)) => {
                    return Reply::decode(&frame).map_or_else(|e| failed(&e.to_string()), |(_, reply)| reply);
                }
                Ok(None) => {}
                Err(e) => return failed(&e.to_string()),
            }
            if Instant::now() >= deadline {
                return failed("the host service does not answer; is it still running?");
            }
            match self.inbox.recv_timeout(PAUSE) {
                Ok(Order::Ask { asker, question, answer }) => self.waiting.push((asker, question, answer)),
                Ok(Order::Look) | Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return failed("the agent ends"),
            }
        }
    }
}
