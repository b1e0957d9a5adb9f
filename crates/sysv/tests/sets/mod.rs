//! Sets of a region, for several processes.
#![allow(dead_code, unreachable_pub)] // each test uses a part of it

#[path = "../processes/mod.rs"]
mod processes;

use std::sync::Arc;
use std::time::Duration;

use isthmus_sysv::ipc::{CREAT, NOWAIT};
use isthmus_sysv::sem::{Op, Set, UNDO};
use isthmus_sysv::waiting::Uninterrupted;
use isthmus_sysv::{Caller, Ipc, Result};

pub use processes::*;

impl World {
    /// A new set with these values.
    pub fn set(&self, values: &[u16]) -> (i32, Arc<Set>) {
        let count = i32::try_from(values.len()).unwrap();
        let id = self.ipc.semget(0, count, CREAT | 0o600, &Caller::current()).unwrap();
        let set = open(&self.ipc, id);
        set.set_all(values).unwrap();
        (id, set)
    }

    pub fn remove(&self, id: i32) {
        self.ipc.semrm(id, &Caller::current()).unwrap();
    }
}

pub fn open(ipc: &Ipc, id: i32) -> Arc<Set> {
    ipc.set(id, std::process::id()).unwrap()
}

impl Told {
    /// The set whose id is the first argument.
    pub fn set(&self) -> Arc<Set> {
        open(&self.ipc, i32::try_from(self.args[0]).unwrap())
    }

    /// Says that it is ready, and waits for a line.
    pub fn rendezvous() {
        println!("ready");
        std::io::stdin().read_line(&mut String::new()).unwrap();
    }
}

pub fn op(num: u16, op: i16) -> Op {
    Op { num, op, flags: 0 }
}

pub fn now(num: u16, op: i16) -> Op {
    Op { num, op, flags: i16::try_from(NOWAIT).unwrap() }
}

pub fn undone(num: u16, op: i16) -> Op {
    Op { num, op, flags: UNDO }
}

pub fn undone_now(num: u16, op: i16) -> Op {
    Op { flags: UNDO | now(num, op).flags, ..undone(num, op) }
}

/// Operates, for [`LONG`] at most.
pub fn semop(set: &Set, ops: &[Op]) -> Result<()> {
    set.operate(ops, &mut Uninterrupted, Some(LONG))
}

/// Operates, for a time.
pub fn semtimedop(set: &Set, ops: &[Op], limit: Duration) -> Result<()> {
    set.operate(ops, &mut Uninterrupted, Some(limit))
}
