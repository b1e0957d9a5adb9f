//! A host service with endpoints that have exchanged messages, all in this process.

// Each test program uses a part of it.
#![allow(dead_code, unreachable_pub)]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use isthmus_attach::client::observe_at;
use isthmus_host::{Config, Service};
use isthmus_region::local::LocalBuf;
use isthmus_region::reader::Reader;
use isthmus_transport::types::NoMemory;
use isthmus_transport::{Endpoint, Posted, Receive, Selector, Send, Ticket};

pub const REGION: u64 = 4 << 20;

pub struct Job {
    pub service: Service,
    pub ends: Vec<Endpoint>,
    pub dir: tempfile::TempDir,
}

/// A service and `count` endpoints, each of a process of its own as far as the region knows.
pub fn job(count: usize) -> Job {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { host_name: "host".into(), endpoints: 16, ..Config::new(dir.path(), REGION) };
    let service = Service::start(config, Arc::new(|_| ())).unwrap();
    let ends = (0..count).map(|_| {
        let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
        Endpoint::open(&member, isthmus_transport::Config::default(), Box::new(NoMemory)).unwrap()
    });
    let ends = ends.collect();
    Job { service, ends, dir }
}

impl Job {
    /// `count` messages of `len` zeros from one endpoint to another, received.
    pub fn send(&mut self, from: usize, to: usize, count: usize, len: usize) {
        let address = self.ends[to].address();
        let target = self.ends[from].resolve(&address).unwrap();
        let out = LocalBuf::leaked(vec![0; len]);
        let into = LocalBuf::leaked(vec![0; len]);
        for _ in 0..count {
            let select = Selector { tagged: true, from: None, tag: 1, ignore: 0 };
            let receive = Receive { select, bufs: &[into], multi: None, ticket: Ticket::default() };
            self.ends[to].receive(&receive).unwrap();
            let bufs = [out];
            let ticket = Ticket::default();
            let send = Send {
                to: target,
                tagged: true,
                tag: 1,
                data: None,
                bufs: &bufs,
                inject: false,
                delivered: false,
                ticket,
            };
            while !matches!(self.ends[from].send(&send), Ok(Posted::Done | Posted::Pending)) {
                self.ends[to].progress();
            }
            for _ in 0..100_000 {
                self.ends[from].progress();
                self.ends[to].progress();
                let _ = self.ends[from].pop();
                if self.ends[to].pop().is_some() {
                    break;
                }
            }
        }
        // Enough for what endpoints do now and then: telling counters, opening lanes to the end.
        for _ in 0..2000 {
            self.ends[from].progress();
            self.ends[to].progress();
        }
    }

    pub fn fd(&self) -> OwnedFd {
        observe_at(self.service.attach_socket(), Duration::from_secs(2)).unwrap().region
    }

    pub fn reader(&self) -> Reader {
        Reader::new(self.fd()).unwrap()
    }

    /// All bytes of the region.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(REGION).unwrap()];
        self.reader().bytes("all", 0, &mut bytes).unwrap();
        bytes
    }
}
