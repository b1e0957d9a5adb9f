//! The target of RMA and atomics that come as messages: `READ`, `WRITE`, `WRITE_READY`, `ATOMIC`; and the
//! initiator's `RESULT`.

use isthmus_lockfree::slot::Message;
use isthmus_region::counters::{Counter, LaneCounter};
use isthmus_region::local::LocalBuf;

use super::cushion::zeroed;
use super::payload::Payload;
use super::poll::Stop;
use super::table::Operation;
use super::{Because, Core, Push, Registered};
use crate::fault::{Step, step};
use crate::matching::Bufs;
use crate::types::{Access, AtomicKind, Completion, Long, Op, PeerId, RemoteAtomic, Status, Ticket};
use crate::wire::{self, AtomicWord, flag};
use Stop::Faulty;

impl Core {
    /// Tells the owner of memory that another system has reached it by a message.
    fn tell_reached(&self, source: PeerId, key: u64, found: &Result<LocalBuf, Status>) {
        let is_far = self.peers.get(source.0 as usize).is_some_and(|peer| !peer.is_near);
        if let Ok(buf) = found
            && is_far
            && self.config.long != Long::Copy
        {
            self.memory.reached(key, *buf);
        }
    }

    /// Serves a read: the bytes go in the answer if they are few, else in a pipeline.
    pub(super) fn take_read(&mut self, source: PeerId, message: &Message) -> Result<(), Stop> {
        let (id, key, addr, len) = (message[1], message[2], message[3], message[4]);
        if !self.still_lives(source) {
            return Ok(());
        }
        step(Step::ReadAsked);
        let found = self.memory.find(key, addr, len, Access::Read);
        self.tell_reached(source, key, &found);
        match found {
            Ok(buf) if len <= self.config.eager_bytes.min(4096) => {
                let mut payload = self.cushion.borrow(|| zeroed(len))?;
                buf.read(&mut payload);
                self.count_answer(source, len);
                self.send_result(source, id, Status::Ok, Some(payload.into()));
            }
            Ok(buf) => {
                self.count_answer(source, len);
                let registered = Some(Registered { key, addr });
                let bufs = Bufs::One(buf);
                let push = Push { registered, ..Push::new(id, bufs, len, None) };
                self.peers[source.0 as usize].pushes.push_back(push);
                self.owe(source);
            }
            Err(status) => self.send_result(source, id, status, None),
        }
        Ok(())
    }

    /// Counts the bytes that answer a read.
    fn count_answer(&mut self, to: PeerId, len: u64) {
        self.tally.add(Counter::RmaBytes, len);
        self.peers[to.0 as usize].sent.add(LaneCounter::RmaBytes, len);
    }

    /// The completion of a remote write.
    fn remote_write(&self, source: PeerId, data: Option<u64>, len: u64, buf: u64) -> Completion {
        let mut completion = self.template(Ticket::default(), Op::RemoteWrite, len);
        completion.data = data;
        completion.source = Some(source);
        completion.buf = buf;
        completion
    }

    /// Serves a write whose bytes are in the data ring.
    pub(super) fn take_write(
        &mut self,
        source: PeerId,
        message: &Message,
        flags: u8,
        payload: &Payload<'_>,
    ) -> Result<(), Stop> {
        let [_, id, key, addr, _, _, data, _] = *message;
        let len = payload.len();
        // Only what is certainly the sender's reaches the program's memory: copied out, checked (P5), then
        // placed.
        let mut bytes = self.cushion.borrow(|| zeroed(len))?;
        payload.read(&mut bytes)?;
        if !self.still_lives(source) {
            return Ok(());
        }
        let found = self.memory.find(key, addr, len, Access::Write);
        self.tell_reached(source, key, &found);
        let status = match found {
            Ok(buf) => {
                buf.write(&bytes);
                step(Step::Written);
                if flags & flag::DATA != 0 {
                    let completion = self.remote_write(source, Some(data), len, buf.address());
                    self.completions.push_back(completion);
                }
                Status::Ok
            }
            Err(status) => status,
        };
        self.send_done(source, Some(id), status, Because::Asked);
        Ok(())
    }

    /// Serves the announcement of a pipelined write.
    pub(super) fn take_write_ready(
        &mut self,
        source: PeerId,
        message: &Message,
        flags: u8,
    ) -> Result<(), Stop> {
        let [_, id, key, addr, len, _, data, _] = *message;
        if !self.still_lives(source) {
            return Ok(());
        }
        let found = self.memory.find(key, addr, len, Access::Write);
        self.tell_reached(source, key, &found);
        match found {
            Ok(buf) => {
                let data = (flags & flag::DATA != 0).then_some(data);
                let then = self.remote_write(source, data, len, buf.address());
                let mine = self.operations.insert(Operation::Incoming {
                    from: source,
                    dest: Bufs::One(buf),
                    want: len,
                    received: 0,
                    then,
                    multi: None,
                    done: Some(id),
                    registered: Some(Registered { key, addr }),
                    measured: None,
                    timed: None,
                    again: false,
                    paged: 0,
                    is_odd: false,
                });
                self.send_clear(source, id, mine, len, 0, Because::Asked);
            }
            Err(status) => self.send_done(source, Some(id), status, Because::Asked),
        }
        Ok(())
    }

    /// Serves an atomic operation.
    pub(super) fn take_atomic(
        &mut self,
        source: PeerId,
        message: &Message,
        payload: &Payload<'_>,
    ) -> Result<(), Stop> {
        let [_, id, key, addr, what, _, lengths, size] = *message;
        let word = AtomicWord::unpack(what).ok_or(Faulty)?;
        let (operands, compares) = (lengths & 0xffff_ffff, lengths >> 32);
        let limit = super::ATOMIC_BYTES as u64;
        let span = u64::from(word.count).checked_mul(size).ok_or(Faulty)?;
        if operands > limit || compares > limit || span > limit {
            return Err(Faulty);
        }
        let mut bytes = self.cushion.borrow(|| zeroed(operands + compares))?;
        payload.read(&mut bytes)?;
        if !self.still_lives(source) {
            return Ok(());
        }
        let (operand, compare) = bytes.split_at(usize::try_from(operands).unwrap_or(0));
        let mut before = Vec::new();
        // An operation that returns values needs read access, too.
        let readable = match word.kind {
            AtomicKind::Plain => Ok(()),
            AtomicKind::Fetch | AtomicKind::Compare => {
                self.memory.find(key, addr, span, Access::Read).map(|_| ())
            }
        };
        let target = readable.and_then(|()| self.memory.find(key, addr, span, Access::Atomic));
        self.tell_reached(source, key, &target);
        let done = target.and_then(|target| {
            let what = RemoteAtomic {
                kind: word.kind,
                datatype: word.datatype,
                op: word.op,
                count: word.count,
                operand,
                compare,
            };
            self.memory.atomic(target, &what, &mut before)
        });
        let status = done.err().unwrap_or(Status::Ok);
        step(Step::AtomicDone);
        if word.kind == AtomicKind::Plain {
            self.send_done(source, Some(id), status, Because::Asked);
            return Ok(());
        }
        let payload = if status == Status::Ok { before.into_boxed_slice() } else { Box::default() };
        self.send_result(source, id, status, Some(payload));
        Ok(())
    }

    /// Takes the answer to our read or atomic operation.
    pub(super) fn take_result(
        &mut self,
        source: PeerId,
        message: &Message,
        payload: &Payload<'_>,
    ) -> Result<(), Stop> {
        let [_, id, code, ..] = *message;
        let Some(Operation::Incoming { dest, want, received, then, .. }) = self.operations.get(id, source)
        else {
            return Ok(());
        };
        // Messages and writes end with their last chunk.
        if !matches!(then.op, Op::Read | Op::Atomic(_)) {
            return Err(Faulty);
        }
        let status = wire::status_of(code);
        if status == Status::Ok {
            if *received != 0 || payload.len() != *want {
                return Err(Faulty);
            }
            payload.place(payload.len(), dest, 0)?;
            if !self.still_lives(source) {
                return Ok(());
            }
        }
        step(Step::ResultPlaced);
        if let Some(Operation::Incoming { mut then, .. }) = self.operations.take(id, source) {
            then.status = status;
            then.source = (status != Status::Ok).then_some(source);
            self.completions.push_back(then);
        }
        Ok(())
    }
}
