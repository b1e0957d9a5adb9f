//! A queue in its memory: messages in a chain, senders at one end of it and receivers at the other.
//!
//! Two robust mutexes, so that a sender and a receiver do not wait for each other: the *senders'* protects the chain's end and
//! the free blocks, the *receivers'* all that comes before. What both sides use are two words of the chain, each changed by
//! one store:
//!
//! ```text
//! reclaimed   head                                  tail
//!     │        │                                     │
//!   taken ─► taken ─► message ─► message ─► ... ─► message ─► 0
//! ```
//! - A message is *sent* by the store that links it behind the tail; before that no other process knows of it.
//! - It is *taken* by the store that makes it the head, if it is the first; or that links its neighbours around it; or, if it
//!   is the last, and senders may be about to link another one to it, that sets its type to 0. Its text was copied before that.
//! - Blocks are given back by senders, who alone keep account of them: they follow the chain up to the head. Messages that
//!   were taken from the middle are put into a list of their own for them.
//!
//! So a message is in the queue, or was taken, perhaps by a process that died with it; never twice, never half. All else
//! (counts, the tail, the free blocks) can be told from the chain. Whoever changes any of it says so first, and the next owner
//! of the lock that finds such a word, or anything that cannot be right, takes both locks and makes all of it anew
//! (`Queue::repair`). What is not a sound message ends the chain there, and all behind it is lost.
//!
//! Receivers wait for a message at a gate of theirs, and senders for room at another. A waiting thread looks at the word of
//! its gate and takes no lock until that changes.
//!
//! # Layout
//! ```text
//!    0  senders' lock
//!   64  receivers' gate: a word that each message sent changes
//!  128  sent: messages, bytes, last process, time, tail
//!  192  senders' own: state, messages and bytes that they know to be taken, reclaimed, free blocks, first word with free blocks
//!  256  receivers' lock
//!  320  senders' gate: a word that each message taken changes
//!  384  taken: messages, bytes, last process, time, head
//!  448  receivers' own: state, list of messages that were taken from the middle
//!  512  bits of blocks
//!       blocks
//! ```
//! Zeros are an empty queue.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use isthmus_lockfree::sync::{Word, release_fence};
use isthmus_region::gate::Gate;
use isthmus_region::local::LocalBuf;
use isthmus_region::mapping::{LineRef, Section};
use isthmus_region::member::Member;
use isthmus_sync::mutex::Guard;
use isthmus_sync::wait::Learned;
use isthmus_sync::{Error, Mutex};
use rustix::io::Errno;

use super::fault::{Step, step};
use super::pool::{BLOCK, Found, Message, Pool, Rubbish, most_blocks};
use super::space::Space;
use crate::Result;
use crate::waiting::{self, Attempt, Sleep};

/// A lock that the calling thread takes, has, or gives back, and the one that it was at before, by their addresses. Between two
/// instructions of that the lock names the process and none of its threads: then this tells the handler of a signal, which would wait for the
/// thread that it interrupts.
struct At {
    before: usize,
}

thread_local! {
    static AT: Cell<usize> = const { Cell::new(0) };
}

impl At {
    /// How often a lock is looked at that another thread may be just taking.
    const LOOKS: u32 = 1000;

    #[inline]
    fn new(mutex: &Mutex) -> Self {
        Self { before: AT.replace(std::ptr::from_ref(mutex).addr()) }
    }

    /// Whether the thread was at this lock already, and is between two instructions of that.
    fn is_between(&self, mutex: &Mutex) -> bool {
        let looks = |_| {
            std::hint::spin_loop();
            mutex.is_between()
        };
        self.before == std::ptr::from_ref(mutex).addr() && (0..Self::LOOKS).all(looks)
    }
}

impl Drop for At {
    #[inline]
    fn drop(&mut self) {
        AT.set(self.before);
    }
}

/// A lock of the queue, taken. It is given back before the thread is at it no more.
pub(super) struct Locked<'a> {
    _guard: Guard<'a>,
    _at: At,
}

const SEND_LOCK: u64 = 0;
const RECEIVERS_GATE: u64 = 64;
/// Offset of what was sent: messages and bytes, the last sender (number and peer), and when, a word each.
pub const SENT: u64 = 128;
const SENDERS_OWN: u64 = 192;
const RECEIVE_LOCK: u64 = 256;
const SENDERS_GATE: u64 = 320;
/// Offset of what was received, likewise.
pub const TAKEN: u64 = 384;
const RECEIVERS_OWN: u64 = 448;
const BITS: u64 = 512;

/// Words of the lines of what was sent and taken.
pub(super) const MESSAGES: usize = 0;
pub(super) const BYTES: usize = 1;
const PROCESS: usize = 2;
const TIME: usize = 3;
pub(super) const END: usize = 4;

/// Words of the senders' line, beside those of [`Space`].
pub(super) const STATE: usize = 0;
pub(super) const KNOWN_MESSAGES: usize = 1;
pub(super) const KNOWN_BYTES: usize = 2;
pub(super) const RECLAIMED: usize = 3;
/// States of the senders' line: zero has no bits of blocks yet.
pub(super) const SOUND: u64 = 1;
pub(super) const CHANGING: u64 = 2;

/// Words of the receivers' line; its state is 0 or [`CHANGING`].
pub(super) const LIST: usize = 1;

/// How long a lock is waited for before signals are looked after.
const SLICE: Duration = Duration::from_secs(1);
/// How often a lock is waited for that long, and how often a queue is mended, in one call.
const MOST_SLICES: u32 = 60;
const MOST_REPAIRS: u32 = 3;

/// Up to this many bytes a queue can hold messages however small they are; beyond, messages of 16 bytes and more.
const SMALL: u64 = 64 << 10;

/// Bytes of memory for a queue of so many bytes, whose longest message has `longest`.
pub fn bytes(most: u64, longest: u32) -> u64 {
    let small = most.min(SMALL);
    // A message of no text takes a block and counts as one byte; scattered blocks hold 24 bytes of text each. One message that
    // was taken is kept as the chain's head.
    let blocks = small
        .saturating_add(small / 24)
        .saturating_add((most - small) / 16)
        .saturating_add(u64::from(most_blocks(longest)) * 2)
        .saturating_add(2)
        .min(1 << 31)
        .next_multiple_of(512);
    BITS + blocks / 8 + blocks * BLOCK
}

/// Which message is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// The first one.
    Any,
    /// The first one of this type.
    Type(i64),
    /// The first one of another type.
    Except(i64),
    /// The first one of the lowest type, which is at most this.
    UpTo(i64),
}

/// Where a message is to go.
pub struct Room<'a> {
    /// Most bytes of its text.
    pub size: usize,
    /// Whether a longer one is cut, rather than left.
    pub cut: bool,
    /// The place for as many bytes; it may be that there is none.
    pub place: &'a dyn Fn(usize) -> Result<LocalBuf>,
}

/// How a call on a queue is made.
pub struct Call<'a> {
    /// Whether the caller may do it, and the most bytes that the queue may hold; looked at with each attempt.
    pub admit: &'a dyn Fn() -> Result<u64>,
    /// Whether it fails rather than waits.
    pub no_wait: bool,
    /// How the thread sleeps.
    pub sleep: &'a mut dyn Sleep,
}

/// A queue's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Numbers {
    /// Messages in it.
    pub messages: u64,
    /// Bytes of their texts.
    pub bytes: u64,
    /// Number and peer of the process that sent last, as [`isthmus_region::objects::sysv::both`] has them.
    pub sender: u64,
    /// The one that received last.
    pub receiver: u64,
    /// When that was, in seconds since 1970.
    pub sent: u64,
    /// See there.
    pub received: u64,
}

/// Why an attempt came to no end.
pub(super) enum Stop {
    /// With this.
    Errno(Errno),
    /// Its lock is another's for long.
    Busy,
    /// The queue is to be mended first.
    Repair,
    /// So it seems to the sender of a message with so many bytes, in a queue of so many; a receiver at work would look like that, too.
    Doubt { len: u64, most: u64 },
}

type Tried<'a, T> = std::result::Result<Attempt<'a, T>, Stop>;

impl From<Rubbish> for Stop {
    fn from(Rubbish: Rubbish) -> Self {
        Self::Repair
    }
}

/// A queue, as one process has it open. Any thread may use it, several at once.
#[derive(Debug)]
pub struct Queue {
    member: Arc<Member>,
    pub(super) send_lock: Mutex,
    pub(super) receive_lock: Mutex,
    /// Rung when something was sent, or taken.
    pub(super) receivers: Gate,
    pub(super) senders: Gate,
    pub(super) sent: LineRef,
    pub(super) taken: LineRef,
    pub(super) senders_own: LineRef,
    pub(super) receivers_own: LineRef,
    pub(super) space: Space,
    pub(super) pool: Pool,
    learned_senders: Learned,
    learned_receivers: Learned,
    /// This process, as the lines name the last one.
    me: u64,
    slices: u32,
    slice: Duration,
}

/// How far a search came.
struct Match {
    before: u32,
    message: Message,
}

fn seconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    u64::try_from(now.tv_sec).unwrap_or(0)
}

/// Changes a gate's word, as the owner of the lock of the side that rings it.
#[inline]
pub(super) fn change(gate: &Gate) {
    gate.word().set(gate.word().peek().wrapping_add(1));
}

pub(super) fn index(word: &Word) -> u32 {
    u32::try_from(word.get()).unwrap_or(u32::MAX)
}

impl Queue {
    /// Opens the queue in `memory`, which is zeroed before it is opened for the first time. The process is to be known as `me`.
    ///
    /// # Errors
    /// `EINVAL` for memory that is too small.
    pub fn open(member: &Arc<Member>, memory: &Section, me: u64) -> Result<Self> {
        Self::open_at(member, memory, me).map_err(|_| Errno::INVAL)
    }

    fn open_at(member: &Arc<Member>, memory: &Section, me: u64) -> std::result::Result<Self, Rubbish> {
        // Blocks come in as many as the bits of a line stand for.
        let blocks = memory.len().saturating_sub(BITS) / (BLOCK * 512 + 64) * 512;
        if blocks == 0 || blocks > 1 << 31 {
            return Err(Rubbish);
        }
        let line = |offset| memory.line("queue", offset);
        let lock = |offset| {
            let line = memory.part("lock of a queue", offset, isthmus_sync::mutex::BYTES)?;
            Mutex::open(member, &line).map_err(|_| Rubbish)
        };
        let bits = memory.part("bits of blocks", BITS, blocks / 8)?;
        let pool = memory.part("blocks", BITS + blocks / 8, blocks * BLOCK)?;
        Ok(Self {
            member: Arc::clone(member),
            send_lock: lock(SEND_LOCK)?,
            receive_lock: lock(RECEIVE_LOCK)?,
            receivers: Gate::with_near(member, memory, RECEIVERS_GATE)?,
            senders: Gate::with_near(member, memory, SENDERS_GATE)?,
            sent: line(SENT)?,
            taken: line(TAKEN)?,
            senders_own: line(SENDERS_OWN)?,
            receivers_own: line(RECEIVERS_OWN)?,
            space: Space::new(line(SENDERS_OWN)?, bits),
            pool: Pool::new(pool),
            learned_senders: Learned::new(member.doorbell()),
            learned_receivers: Learned::new(member.doorbell()),
            me,
            slices: MOST_SLICES,
            slice: SLICE,
        })
    }

    /// The same, with less patience for a lock that another process has and does not give back. For tests.
    #[must_use]
    pub fn impatient(self) -> Self {
        Self { slices: 1, slice: Duration::from_micros(200), ..self }
    }

    /// Bytes of the longest text that can be in the queue at all.
    pub fn longest(&self) -> u64 {
        // All but block 0 and the head, each with 24 bytes of text.
        u64::from(self.pool.count().saturating_sub(3)) * (BLOCK - 8)
    }

    /// msgsnd(2).
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`; `EINVAL` for a text that is too long for the queue; `EIO` where it cannot be mended; those of the
    /// call.
    pub fn send(&self, kind: i64, text: LocalBuf, call: Call<'_>) -> Result<()> {
        if kind < 1 || text.len() as u64 > self.longest() {
            return Err(Errno::INVAL);
        }
        let Call { admit, no_wait, sleep } = call;
        let attempt = |count| self.try_send(kind, text, admit, count);
        self.run(&self.learned_senders, no_wait.then_some(Errno::AGAIN), sleep, attempt)
    }

    /// msgrcv(2): copies the text of a message, and takes it. Gives its type, and how much was copied.
    ///
    /// # Errors
    /// `ENOMSG`, `E2BIG`, `EINTR`; `EIO` where the queue cannot be mended; those of the room and of the call.
    pub fn receive(&self, selection: Selection, room: &Room<'_>, call: Call<'_>) -> Result<(i64, usize)> {
        let Call { admit, no_wait, sleep } = call;
        let attempt = |count| self.try_receive(selection, room, admit, count);
        self.run(&self.learned_receivers, no_wait.then_some(Errno::NOMSG), sleep, attempt)
    }

    /// Makes attempts until one comes to an end; with `blocked`, that is the end where it would wait.
    #[inline]
    fn run<'a, T>(
        &'a self,
        learned: &Learned,
        blocked: Option<Errno>,
        sleep: &mut dyn Sleep,
        mut attempt: impl FnMut(u32) -> Tried<'a, T>,
    ) -> Result<T> {
        let first = match (attempt(0), blocked) {
            (Ok(Attempt::Done(it)), _) => return Ok(it),
            (Ok(Attempt::Blocked(..)), Some(errno)) | (Err(Stop::Errno(errno)), _) => return Err(errno),
            (other, _) => other,
        };
        self.run_on(learned, blocked, sleep, first, &mut attempt)
    }

    /// Goes on after a first attempt.
    #[cold]
    fn run_on<'a, T>(
        &'a self,
        learned: &Learned,
        blocked: Option<Errno>,
        sleep: &mut dyn Sleep,
        first: Tried<'a, T>,
        attempt: &mut dyn FnMut(u32) -> Tried<'a, T>,
    ) -> Result<T> {
        let (mut count, mut slices, mut repairs) = (0, 0, 0);
        let mut first = Some(first);
        let mut once = || {
            count += 1;
            // What the first one found counts, so that it is not made twice.
            let stop = match first.take().unwrap_or_else(|| attempt(count)) {
                Ok(attempt) => return Ok(attempt),
                Err(stop) => stop,
            };
            match stop {
                Stop::Errno(errno) => Err(errno),
                Stop::Busy if slices < self.slices => {
                    slices += 1;
                    Ok(Attempt::Again)
                }
                Stop::Repair if repairs < MOST_REPAIRS => {
                    repairs += 1;
                    match self.repair() {
                        Ok(()) | Err(Stop::Repair | Stop::Doubt { .. } | Stop::Busy) => Ok(Attempt::Again),
                        Err(Stop::Errno(errno)) => Err(errno),
                    }
                }
                Stop::Doubt { len, most } => match self.repair_if_wrong(len, most) {
                    Ok(false) => Ok(Attempt::Again),
                    Err(Stop::Busy) if slices < self.slices => {
                        slices += 1;
                        Ok(Attempt::Again)
                    }
                    Err(Stop::Busy) => Err(Errno::IO),
                    Err(Stop::Errno(errno)) => Err(errno),
                    _ if repairs < MOST_REPAIRS => {
                        repairs += 1;
                        Ok(Attempt::Again)
                    }
                    _ => Err(Errno::IO),
                },
                Stop::Busy | Stop::Repair => Err(Errno::IO),
            }
        };
        let Some(errno) = blocked else {
            if learned.must_recheck() {
                learned.set_scarce(self.member.is_crowded());
            }
            return waiting::until(sleep, learned, None, once, |_| ());
        };
        loop {
            match once()? {
                Attempt::Done(it) => return Ok(it),
                Attempt::Blocked(..) => return Err(errno),
                Attempt::Again => {}
            }
        }
    }

    /// Takes a lock. That an owner died says nothing here: what it left half done says so itself.
    #[inline]
    pub(super) fn lock<'a>(&self, mutex: &'a Mutex) -> std::result::Result<Locked<'a>, Stop> {
        let at = At::new(mutex);
        match mutex.try_lock() {
            Ok(mut guard) => {
                if guard.owner_died() {
                    guard.mend();
                }
                Ok(Locked { _guard: guard, _at: at })
            }
            Err(error) => self.lock_slowly(mutex, error, at),
        }
    }

    #[cold]
    fn lock_slowly<'a>(
        &self,
        mutex: &'a Mutex,
        error: Error,
        at: At,
    ) -> std::result::Result<Locked<'a>, Stop> {
        let taken = match error {
            Error::WouldBlock if at.is_between(mutex) => Err(Error::Deadlock),
            Error::WouldBlock => mutex.lock_within(self.slice),
            other => Err(other),
        };
        match taken {
            Ok(mut guard) => {
                guard.mend();
                Ok(Locked { _guard: guard, _at: at })
            }
            Err(Error::TimedOut | Error::WouldBlock) => Err(Stop::Busy),
            // A signal's handler that uses the queue which the thread it interrupted was at.
            Err(Error::Deadlock) => Err(Stop::Errno(Errno::DEADLK)),
            Err(_) => Err(Stop::Errno(Errno::IO)),
        }
    }

    #[inline]
    fn try_send(
        &self,
        kind: i64,
        text: LocalBuf,
        admit: &dyn Fn() -> Result<u64>,
        count: u32,
    ) -> Tried<'_, ()> {
        let guard = self.lock(&self.send_lock)?;
        step(Step::SendLocked);
        let most = admit().map_err(Stop::Errno)?;
        let own = &self.senders_own.words;
        if own[STATE].get() != SOUND {
            return Err(Stop::Repair);
        }
        let len = text.len() as u64;
        if !self.fits(len, most)? {
            let seen = self.senders.word().get();
            own[STATE].put(CHANGING);
            release_fence();
            self.reclaim()?;
            own[STATE].set(SOUND);
            if !self.fits(len, most)? {
                if count > 1 && self.is_wrongly_full(len, most) {
                    return Err(Stop::Doubt { len, most });
                }
                return Ok(Attempt::Blocked(&self.senders, seen));
            }
        }
        own[STATE].put(CHANGING);
        release_fence();
        step(Step::SendBegun);
        let message = self.pool.write(kind, text, |need| self.space.take(need))?;
        step(Step::Written);
        let sent = &self.sent.words;
        let tail = index(&sent[END]);
        if self.pool.next(tail)? != 0 {
            return Err(Stop::Repair);
        }
        // Here it is sent.
        self.pool.link(tail, message)?;
        step(Step::Sent);
        sent[END].set(message.into());
        sent[MESSAGES].bump(1);
        sent[BYTES].bump(len);
        sent[PROCESS].put(self.me);
        sent[TIME].put(seconds());
        step(Step::SentCounted);
        own[STATE].set(SOUND);
        change(&self.receivers);
        drop(guard);
        step(Step::SendUnlocked);
        self.receivers.ring(u32::MAX);
        Ok(Attempt::Done(()))
    }

    /// Whether there is room for a message, as far as the senders know.
    #[inline]
    pub(super) fn fits(&self, len: u64, most: u64) -> Found<bool> {
        let (sent, own) = (&self.sent.words, &self.senders_own.words);
        let messages = sent[MESSAGES].peek().wrapping_sub(own[KNOWN_MESSAGES].peek());
        let bytes = sent[BYTES].peek().wrapping_sub(own[KNOWN_BYTES].peek());
        // Each message has a block, and each block has no more bytes than it has.
        let blocks = u64::from(self.pool.count());
        if messages > blocks || bytes > blocks * BLOCK {
            return Err(Rubbish);
        }
        let room = u32::try_from(len).map_or(u64::MAX, |len| u64::from(most_blocks(len)));
        Ok(messages < most && len <= most.saturating_sub(bytes) && bytes <= most && room <= self.space.free())
    }

    /// Whether there is no room although nothing is in the queue, or a receiver died and has left its message counted. A receiver
    /// that is at work, or has just taken the last message, looks the same.
    #[cold]
    pub(super) fn is_wrongly_full(&self, len: u64, most: u64) -> bool {
        let is_empty = self.taken.words[END].get() == self.sent.words[END].peek();
        self.receivers_own.words[STATE].get() != 0 || (is_empty && most > 0 && len <= most)
    }

    /// Learns what was taken, and gives its blocks back.
    #[cold]
    pub(super) fn reclaim(&self) -> Found<()> {
        let (taken, own) = (&self.taken.words, &self.senders_own.words);
        own[KNOWN_MESSAGES].put(taken[MESSAGES].get());
        own[KNOWN_BYTES].put(taken[BYTES].get());
        let head = index(&taken[END]);
        let mut at = index(&own[RECLAIMED]);
        self.give_back(&mut at, head)?;
        step(Step::Reclaiming);
        own[RECLAIMED].put(at.into());
        let list = &self.receivers_own.words[LIST];
        if list.peek() != 0 {
            let mut at = u32::try_from(list.swap(0)).map_err(|_| Rubbish)?;
            self.give_back(&mut at, 0)?;
        }
        Ok(())
    }

    /// Gives back the blocks of the messages from `at` up to `end`.
    fn give_back(&self, at: &mut u32, end: u32) -> Found<()> {
        for _ in 0..self.pool.count() {
            if *at == end {
                return Ok(());
            }
            let next = self.pool.next(*at)?;
            // The chain begins with a block that is no message's.
            if *at != 0 {
                let message = self.pool.message(*at)?;
                self.pool.runs(&message, |run| self.space.give(run))?;
            }
            if next == 0 && end != 0 {
                return Err(Rubbish);
            }
            *at = next;
        }
        Err(Rubbish)
    }

    #[inline]
    fn try_receive(
        &self,
        selection: Selection,
        room: &Room<'_>,
        admit: &dyn Fn() -> Result<u64>,
        count: u32,
    ) -> Tried<'_, (i64, usize)> {
        let guard = self.lock(&self.receive_lock)?;
        step(Step::ReceiveLocked);
        admit().map_err(Stop::Errno)?;
        let (taken, own) = (&self.taken.words, &self.receivers_own.words);
        if own[STATE].get() != 0 {
            return Err(Stop::Repair);
        }
        let mut last = 0;
        let found = match self.search(selection, &mut |passed| last = passed)? {
            Some(found) => found,
            None => {
                let seen = self.receivers.word().get();
                if count <= 1 && self.pool.next(last)? == 0 {
                    return Ok(Attempt::Blocked(&self.receivers, seen));
                }
                // What was sent must be there to be found, or it never will be.
                let (tail, mut is_there) = (index(&self.sent.words[END]), count <= 1);
                match self.search(selection, &mut |passed| is_there |= passed == tail)? {
                    Some(found) => found,
                    None if is_there => return Ok(Attempt::Blocked(&self.receivers, seen)),
                    None => return Err(Stop::Repair),
                }
            }
        };
        let message = found.message;
        let len = message.len as usize;
        if len > room.size && !room.cut {
            return Err(Stop::Errno(Errno::TOOBIG));
        }
        let into = (room.place)(len.min(room.size)).map_err(Stop::Errno)?;
        let copied = self.pool.copy_out(&message, into)?;
        step(Step::Copied);
        own[STATE].put(CHANGING);
        release_fence();
        step(Step::ReceiveBegun);
        // Here it is taken.
        if found.before == index(&taken[END]) {
            taken[END].set(message.index.into());
        } else {
            match self.pool.next(message.index)? {
                0 => self.pool.mark(message.index)?,
                next => {
                    self.pool.link(found.before, next)?;
                    step(Step::Bypassed);
                    self.put_aside(message.index)?;
                }
            }
        }
        step(Step::Taken);
        taken[MESSAGES].bump(1);
        taken[BYTES].bump(message.len.into());
        taken[PROCESS].put(self.me);
        taken[TIME].put(seconds());
        step(Step::TakenCounted);
        own[STATE].set(0);
        change(&self.senders);
        drop(guard);
        step(Step::ReceiveUnlocked);
        self.senders.ring(u32::MAX);
        Ok(Attempt::Done((message.kind, copied)))
    }

    /// Looks for a message, and takes those out of the chain that were only marked as taken. Tells `pass` each block that it
    /// comes by.
    #[inline]
    fn search(&self, selection: Selection, pass: &mut impl FnMut(u32)) -> Found<Option<Match>> {
        let (taken, own) = (&self.taken.words, &self.receivers_own.words);
        let mut head = index(&taken[END]);
        let mut before = head;
        pass(head);
        let mut at = self.pool.next(head)?;
        // The lowest type so far, that message, and the one before it.
        let mut lowest: Option<(i64, u32, u32)> = None;
        let found = |before, at| self.pool.message(at).map(|message| Some(Match { before, message }));
        for _ in 0..self.pool.count() {
            if at == 0 {
                return lowest.map_or(Ok(None), |(_, at, before)| found(before, at));
            }
            pass(at);
            let (next, kind) = self.pool.next_and_kind(at)?;
            if kind == 0 {
                if before == head {
                    taken[END].set(at.into());
                    (head, before) = (at, at);
                } else if next != 0 {
                    own[STATE].put(CHANGING);
                    release_fence();
                    self.pool.link(before, next)?;
                    step(Step::Bypassed);
                    self.put_aside(at)?;
                    own[STATE].set(0);
                } else {
                    before = at;
                }
                at = next;
                continue;
            }
            let is_it = match selection {
                Selection::Any => true,
                Selection::Type(wanted) => kind == wanted,
                Selection::Except(other) => kind != other,
                Selection::UpTo(most) => {
                    if kind <= most && lowest.is_none_or(|(lowest, ..)| kind < lowest) {
                        lowest = Some((kind, at, before));
                    }
                    // There is none lower.
                    kind == 1 && kind <= most
                }
            };
            if is_it {
                return found(before, at);
            }
            (before, at) = (at, next);
        }
        Err(Rubbish)
    }

    /// Leaves a message that is not in the chain any more to the senders.
    fn put_aside(&self, message: u32) -> Found<()> {
        let list = &self.receivers_own.words[LIST];
        let mut first = list.get();
        loop {
            self.pool.link(message, u32::try_from(first).map_err(|_| Rubbish)?)?;
            match list.replace(first, message.into()) {
                Ok(()) => return Ok(()),
                Err(other) => first = other,
            }
        }
    }

    /// Wakes all that wait, to look again: the queue was removed, or its limits were changed.
    pub fn wake(&self) {
        for (lock, gate) in [(&self.send_lock, &self.receivers), (&self.receive_lock, &self.senders)] {
            // A lock that is not to be had: they look again by themselves.
            let guard = self.lock(lock);
            if guard.is_ok() {
                change(gate);
            }
            drop(guard);
            gate.ring(u32::MAX);
        }
    }

    /// Its numbers now.
    pub fn numbers(&self) -> Numbers {
        for _ in 0..MOST_REPAIRS {
            let senders = self.lock(&self.send_lock);
            let receivers = self.lock(&self.receive_lock);
            let is_sound =
                self.senders_own.words[STATE].get() != CHANGING && self.receivers_own.words[STATE].get() == 0;
            if is_sound || senders.is_err() || receivers.is_err() {
                return self.read();
            }
            drop(receivers);
            drop(senders);
            let _ = self.repair();
        }
        self.read()
    }

    fn read(&self) -> Numbers {
        let (sent, taken) = (&self.sent.words, &self.taken.words);
        let most = u64::from(self.pool.count());
        Numbers {
            messages: sent[MESSAGES].get().wrapping_sub(taken[MESSAGES].get()).min(most),
            bytes: sent[BYTES].get().wrapping_sub(taken[BYTES].get()).min(most * BLOCK),
            sender: sent[PROCESS].get(),
            receiver: taken[PROCESS].get(),
            sent: sent[TIME].get(),
            received: taken[TIME].get(),
        }
    }
}
