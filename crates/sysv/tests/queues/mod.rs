//! Queues of a region, for several processes.
#![allow(dead_code, unreachable_pub)] // each test uses a part of it

#[path = "../processes/mod.rs"]
mod processes;

use std::sync::Arc;

use isthmus_region::local::LocalBuf;
use isthmus_sysv::ipc::{CREAT, NOWAIT};
use isthmus_sysv::msg::{Limits, Open, Who};
use isthmus_sysv::waiting::Uninterrupted;
use isthmus_sysv::{Caller, Result};

pub use processes::*;

impl World {
    /// A new queue.
    pub fn queue(&self) -> (i32, Queue) {
        let id = self.ipc.msgget(0, CREAT | 0o600, &Caller::current(), &Limits::default()).unwrap();
        (id, Queue(self.ipc.queue(id).unwrap()))
    }

    pub fn remove(&self, id: i32) {
        self.ipc.msgremove(id, &Caller::current()).unwrap();
    }
}

impl Told {
    /// The queue whose id is the first argument.
    pub fn queue(&self) -> Queue {
        Queue(self.ipc.queue(i32::try_from(self.args[0]).unwrap()).unwrap())
    }
}

pub fn read_line() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// This process, which stays who it is.
pub struct Me;

impl Who for Me {
    fn version(&self) -> u64 {
        0
    }

    fn caller(&self) -> Arc<Caller> {
        Arc::new(Caller::current())
    }
}

/// A queue, with calls that take and give vectors.
#[derive(Clone)]
pub struct Queue(pub Arc<Open>);

impl Queue {
    pub fn send(&self, kind: i64, text: &[u8], flags: i32) -> Result<()> {
        let text = LocalBuf::leaked(text.to_vec());
        self.0.send(kind, text, flags, &Me, &mut Uninterrupted)
    }

    pub fn receive(&self, kind: i64, size: usize, flags: i32) -> Result<(i64, Vec<u8>)> {
        let room = LocalBuf::leaked(vec![0xee; size]);
        let place = |len| Ok(room.part(0, len));
        let (kind, count) = self.0.receive(kind, size, &place, flags, &Me, &mut Uninterrupted)?;
        Ok((kind, room.part(0, count).to_vec()))
    }

    /// All that is in it, in order.
    pub fn drain(&self) -> Vec<(i64, Vec<u8>)> {
        std::iter::from_fn(|| self.receive(0, 8192, NOWAIT).ok()).collect()
    }

    /// As many messages of `len` bytes as it takes.
    pub fn fill(&self, len: usize) -> usize {
        (0..).take_while(|_| self.send(1, &vec![7; len], NOWAIT).is_ok()).count()
    }
}
